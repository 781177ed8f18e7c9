//! `aftershock lab kills`: kill -9 at random points of rounds, and what must be true all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use aftershock_control::api::{RoundId, RoundSummary, StartRound, Verdict};
use aftershock_control::client::Client;
use aftershock_control::runner::{Runner, Step};
use aftershock_control::server::Options;
use aftershock_core::id::{CallId, ExecutionId};
use aftershock_core::plan::{MaxInjections, Plan, Unlimited};
use aftershock_core::w3c::Member;
use aftershock_lab::events::{Failure, Nanoseconds};
use aftershock_lab::random::SplitMix64;
use aftershock_lab::truth::{Call, Fate, Log, Window};
use aftershock_lab::{Role, RunningLab, up};
use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use tokio::process::{Child, Command};

use crate::command::record::Recording;
use crate::command::{generate, status};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::{Ended, cases, command};

/// Kill the controller, a sidecar or a service at a random point of each round, start it again, and check what must hold.
///
/// No fault after the lease, no round called `injected` that was not, no rule fired twice in a round, no round lost or
/// repeated in the store, no process left over. Ends with 2 unless all of it holds.
#[derive(Debug, Args)]
pub(crate) struct Kills {
    /// How many kills.
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// What victims and instants are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What the kills came to; everything from `wrong` on must be 0.
#[derive(Debug, Default, Serialize)]
struct Report {
    schema: &'static str,
    seed: u64,
    kills: u32,
    victims: BTreeMap<&'static str, u32>,
    verdicts: BTreeMap<String, u32>,
    /// Rounds whose controller died and whose token was used on until after the lease.
    lease_rounds: u32,
    /// Rounds `injected` of whose fault the services can say nothing, since the caller was killed or cancelled before it had
    /// read it.
    unseen: u32,
    /// A verdict that the logs contradict.
    wrong: u32,
    /// Rounds in which a rule fired more often than once.
    twice: u32,
    /// Faults after the lease of a dead controller.
    after_lease: u32,
    /// Rounds that never came to an end.
    stuck: u32,
    /// Rounds that the controller acknowledged and its store does not have, or has without an end.
    lost_rounds: u32,
    /// Rounds that its store has twice, or that nobody started.
    repeated_rounds: u32,
    /// Processes that were there when everything had been stopped.
    leftover: u32,
    /// All of that, round by round.
    differences: Vec<String>,
}

/// Clean rounds from which the guard is made.
const ROUNDS: u32 = 8;
/// How long processes may take to be there again, and to register.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// A round that is not over then never will be.
const STUCK_AFTER: Duration = Duration::from_secs(120);
/// How long a log may take to be settled, in which a killed process leaves calls open for ever.
const SETTLED_WITHIN: Duration = Duration::from_millis(300);
/// Of this many kills of the controller one is watched until after the lease.
const WATCHED: u32 = 16;

impl Kills {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        let mut report = Report { schema: "aftershock.dev/kills/v1", seed: self.seed, ..Report::default() };
        let mut lots = SplitMix64::new(self.seed);
        let progress = Progress::new("kills", self.times.into());
        // One instance of the caller, whose sidecar numbers by itself, and two, which ask the arbiter.
        for (replicas, times) in [(1, self.times / 2), (2, self.times - self.times / 2)] {
            if times > 0 {
                series(replicas, times, &mut lots, &mut report, &progress).await?;
            }
        }
        drop(progress);
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => human(&report),
        }
        let bad = [
            report.wrong,
            report.twice,
            report.after_lease,
            report.stuck,
            report.lost_rounds,
            report.repeated_rounds,
            report.leftover,
        ];
        Ok(if bad.iter().all(|count| *count == 0) { Ended::AsExpected } else { Ended::Unexpected })
    }
}

fn human(report: &Report) {
    output::line(format!("{} kills: {:?}", report.kills, report.victims));
    output::line(format!("verdicts: {:?}, {} of faults that nobody lived to see", report.verdicts, report.unseen));
    output::line(format!(
        "watched until after the lease: {}, faults after it: {}",
        report.lease_rounds, report.after_lease
    ));
    output::line(format!("wrong verdicts {}, fired twice {}, stuck {}", report.wrong, report.twice, report.stuck));
    output::line(format!(
        "rounds lost {}, repeated {}, processes left over {}",
        report.lost_rounds, report.repeated_rounds, report.leftover
    ));
    report.differences.iter().for_each(|difference| output::line(format!("  {difference}")));
}

/// A controller as a process of its own, which can be killed.
struct Controller {
    process: Child,
    listen: SocketAddr,
    store: PathBuf,
}

impl Controller {
    async fn start(listen: SocketAddr, store: &Path) -> anyhow::Result<Controller> {
        let this = std::env::current_exe().context("failed to find this program's own file")?;
        let mut command = Command::new(this);
        command.args(["control", "serve", "--listen", &listen.to_string(), "--store"]).arg(store);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("failed to start a controller")?;
        Ok(Controller { process, listen, store: store.to_owned() })
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("failed to kill the controller")
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        *self = Controller::start(self.listen, &self.store).await?;
        Ok(())
    }
}

/// Whom to kill.
#[derive(Clone, Copy)]
enum Victim {
    Controller,
    Process(u32),
}

/// The system under test, and what was learnt of its rounds.
struct Series<'a> {
    controller: Controller,
    client: Client,
    lab: RunningLab,
    runner: Runner,
    plan: Plan,
    window: Window,
    /// How long a clean round takes.
    typical: Duration,
    /// Rounds that were acknowledged.
    acknowledged: BTreeSet<RoundId>,
    /// Rounds that were asked for and may or may not have begun.
    unanswered: usize,
    report: &'a mut Report,
}

async fn series(
    replicas: u16,
    times: u32,
    lots: &mut SplitMix64,
    report: &mut Report,
    progress: &Progress,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("failed to make a temporary directory")?;
    let case = cases::ALL.iter().find(|case| case.ordinary == Some("batch")).context("the case fan is built in")?;
    // The kernel gave this port to nobody else; it is used again after each kill.
    let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let controller = Controller::start(listen, &folder.path().join("rounds.db")).await?;
    let url = format!("http://{listen}");
    let client = Client::new(&url)?;
    status::registered(&client, 0, BACK_WITHIN).await?;
    let mut options = command::lab_options()?;
    options.control = Some(url.into());
    options.replicas = replicas.try_into()?;
    options.durable = true;
    options.directory = Some(folder.path().join("lab"));
    let lab = up(case.topology()?, &options).await?;
    status::registered(&client, sidecars(&lab), BACK_WITHIN).await?;
    let runner = command::runner(&client, case.scenario(&lab)?)?;
    let began = Instant::now();
    let recording = Recording::make(&runner, ROUNDS).await?;
    let typical = began.elapsed() / ROUNDS;
    let mut plan = case.fault()?.plan;
    plan.faults[0] = generate::resolve(&case.fault()?, 0, None, &recording.traces)?.tfic;
    let window = Window::of(lab.topology(), &plan, 0, false)?;
    let acknowledged = client.rounds().await?.into_iter().map(|round| round.id).collect();
    let mut series =
        Series { controller, client, lab, runner, plan, window, typical, acknowledged, unanswered: 0, report };
    let mut controllers = 0;
    for _ in 0..times {
        let victim = match lots.below(3) {
            0 => Victim::Controller,
            role => {
                let role = if role == 1 { Role::Sidecar } else { Role::Service };
                let of_role: Vec<u32> =
                    series.lab.processes().filter(|(of, _, _)| *of == role).map(|(_, _, pid)| pid).collect();
                Victim::Process(*lots.pick(&of_role))
            }
        };
        // Up to a little after the end of a round.
        let most = series.typical.as_micros() as usize * 5 / 4;
        let after = Duration::from_micros(lots.below(most.max(1)) as u64);
        let pause = Duration::from_millis(lots.below(200) as u64);
        controllers += u32::from(matches!(victim, Victim::Controller));
        match victim {
            Victim::Controller if controllers % WATCHED == 1 => series.watch_the_lease(after).await?,
            _ => series.strike(victim, after, pause).await?,
        }
        series.report.kills += 1;
        series.whole_again().await?;
        progress.step();
    }
    series.end(folder.path()).await
}

fn sidecars(lab: &RunningLab) -> usize {
    lab.processes().filter(|(role, _, _)| *role == Role::Sidecar).count()
}

impl Series<'_> {
    /// One round, in which `victim` is killed `after` its beginning and started again after a `pause`.
    async fn strike(&mut self, victim: Victim, after: Duration, pause: Duration) -> anyhow::Result<()> {
        let started: Mutex<Option<(RoundId, String)>> = Mutex::new(None);
        let listen = |step: Step<'_>| {
            if let Step::Started { id, key } = step {
                *started.lock().expect("no holder of this lock panics") = Some((id, key.to_owned()));
            }
        };
        let Series { controller, lab, runner, plan, report, .. } = self;
        let kill = async {
            tokio::time::sleep(after).await;
            let (name, killed) = match victim {
                Victim::Controller => {
                    controller.kill().await?;
                    ("controller".to_owned(), "controller")
                }
                Victim::Process(pid) => {
                    let found = lab.processes().find(|(_, _, of)| *of == pid);
                    let (role, service) =
                        found.map(|(role, service, _)| (role, service.to_owned())).context("a victim")?;
                    ensure!(lab.kill(pid), "the {role} of {service} had ended by itself");
                    (format!("{role} of {service}"), if role == Role::Sidecar { "sidecar" } else { "service" })
                }
            };
            *report.victims.entry(killed).or_default() += 1;
            tokio::time::sleep(pause).await;
            match victim {
                Victim::Controller => controller.restart().await?,
                Victim::Process(_) => lab.revive().await?,
            }
            anyhow::Ok(name)
        };
        let round = tokio::time::timeout(STUCK_AFTER, runner.round_with(plan.clone(), None, &listen));
        let (outcome, name) = futures_util::future::join(round, kill).await;
        let name = format!("{} killed after {} ms", name?, after.as_millis());
        let started = started.into_inner().expect("no holder of this lock panics");
        let verdict = match outcome {
            Err(_) => {
                self.report.stuck += 1;
                self.report.differences.push(format!("{name}: the round {started:?} was stuck"));
                None
            }
            Ok(Err(_)) => None,
            Ok(Ok(outcome)) => Some(outcome.finished.verdict),
        };
        let said = verdict.map_or("no verdict".to_owned(), |verdict| verdict.to_string());
        *self.report.verdicts.entry(said.clone()).or_default() += 1;
        let Some((id, key)) = started else {
            self.unanswered += 1;
            return Ok(());
        };
        self.acknowledged.insert(id);
        let log = self.lab.settled(&key, SETTLED_WITHIN).await?;
        for difference in self.judge(verdict, &log) {
            self.report.differences.push(format!("{name}, round {}, key {key}, {said}: {difference}", id.0));
        }
        Ok(())
    }

    /// What the logs hold against a verdict. A killed process loses messages too, but only a fault makes up an answer.
    fn judge(&mut self, verdict: Option<Verdict>, log: &Log) -> Vec<String> {
        let made_up: Vec<&Call> = log.calls().iter().filter(|call| call.fate() == Fate::ResponseReplaced).collect();
        let mut differences = Vec::new();
        if made_up.len() > 1 {
            self.report.twice += 1;
            differences.extend(made_up.iter().map(|call| format!("fired on {call}")));
        }
        if let Some(call) = made_up.iter().find(|call| !self.window.means(call)) {
            self.report.wrong += 1;
            differences.push(format!("{call} is no call of the target, and was answered by nobody"));
        }
        // Its answer was sent, and its caller was killed or cancelled before it had read one: a fault that was made then is
        // injected all the same, and nobody lived to write it down.
        let untold = |call: &&Call| {
            let unread =
                matches!(call.failed, None | Some((_, Failure::Cancelled))) && call.response_received.is_none();
            self.window.means(call) && call.response_sent.is_some() && unread
        };
        let contradiction = match (verdict, &made_up[..]) {
            (Some(Verdict::Injected), []) if log.calls().iter().any(|call| untold(&call)) => {
                self.report.unseen += 1;
                None
            }
            (Some(Verdict::Injected), []) => {
                let calls = log.calls().iter().filter(|call| self.window.means(call));
                let fates: Vec<String> = calls.map(|call| format!("{call}: {:?}", call.fate())).collect();
                Some(format!("no fault is to be seen: {}", fates.join("; ")))
            }
            (Some(Verdict::Injected), [call]) => self.window.admits(log, call).err().map(|error| error.to_string()),
            (Some(Verdict::Missed | Verdict::Unreached), [call, ..]) => Some(format!("the fault is there: {call}")),
            (Some(Verdict::Multiple), [] | [_]) => Some("it was not multiple".to_owned()),
            _ => None,
        };
        if let Some(contradiction) = contradiction {
            self.report.wrong += 1;
            differences.push(contradiction);
        }
        differences
    }

    /// A round without bound on injections whose token is used on and on: its controller is killed, and is not there until
    /// the lease has ended everywhere. From then on nothing may be faulted.
    async fn watch_the_lease(&mut self, after: Duration) -> anyhow::Result<()> {
        let lease = Options::default().lease;
        let mut plan = self.plan.clone();
        plan.faults[0].max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
        let key = format!("lease-{:08x}", getrandom::u32()?);
        let scenario = self.runner.scenario().name.clone();
        let start = StartRound { scenario, plan, key: key.clone(), ..StartRound::default() };
        let started = self.client.start(&start).await?;
        self.acknowledged.insert(started.id);
        let member = Member { execution: ExecutionId(0), call: CallId(0), token: started.token, check: 0 };
        let tracestate = format!("{}={member}", Member::KEY);
        let prefix = format!("{key}-");
        let load = self.lab.load_with("batch", &prefix, 20.0, Some(&tracestate))?;
        tokio::time::sleep(Duration::from_millis(500) + after).await;
        self.controller.kill().await?;
        let killed = Nanoseconds::now();
        *self.report.victims.entry("controller").or_default() += 1;
        tokio::time::sleep(lease + Duration::from_secs(2)).await;
        let sent = self.lab.unload(load, BACK_WITHIN).await?.requests;
        self.controller.restart().await?;
        let end = killed.0 + u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let (mut before, mut late) = (0, 0);
        for n in 0..sent {
            let log = self.lab.settled(&format!("{prefix}{n}"), SETTLED_WITHIN).await?;
            for call in log.calls().iter().filter(|call| call.fate() == Fate::ResponseReplaced) {
                // Decided after its answer was sent.
                let answered = call.response_sent.as_ref().map_or(0, |answer| answer.at.0);
                before += u32::from(answered < killed.0);
                if answered > end {
                    late += 1;
                    self.report
                        .differences
                        .push(format!("{key}: {call} was faulted {} ms after the lease", (answered - end) / 1_000_000));
                }
            }
        }
        ensure!(before > 0, "{key}: nothing was faulted while the controller was there, so nothing was shown");
        self.report.lease_rounds += 1;
        self.report.after_lease += late;
        Ok(())
    }

    /// Everything that was killed is there again and has registered.
    async fn whole_again(&mut self) -> anyhow::Result<()> {
        self.lab.revive().await?;
        status::registered(&self.client, sidecars(&self.lab), BACK_WITHIN).await?;
        Ok(())
    }

    /// Compare the store with what was acknowledged, stop everything, and look for what is left.
    async fn end(self, folder: &Path) -> anyhow::Result<()> {
        let Series { mut controller, client, lab, report, acknowledged, unanswered, .. } = self;
        // What a controller that was killed left unfinished was ended by the one after it.
        let stored = stored(&client, &acknowledged, unanswered).await?;
        let ids: BTreeSet<RoundId> = stored.iter().map(|round| round.id).collect();
        let keys: BTreeSet<&String> = stored.iter().map(|round| &round.key).collect();
        for id in acknowledged.difference(&ids) {
            report.lost_rounds += 1;
            report.differences.push(format!("round {} is not in the store", id.0));
        }
        for round in stored.iter().filter(|round| round.verdict.is_none()) {
            report.lost_rounds += 1;
            report.differences.push(format!("round {}, key {}, has no end in the store", round.id.0, round.key));
        }
        let unknown = ids.difference(&acknowledged).count();
        let repeated = (stored.len() - ids.len().min(keys.len())) + unknown.saturating_sub(unanswered);
        if repeated > 0 {
            report.repeated_rounds += repeated as u32;
            report.differences.push(format!(
                "{} rounds in the store, {} ids, {} keys, {unknown} of rounds that were not acknowledged",
                stored.len(),
                ids.len(),
                keys.len()
            ));
        }
        lab.stop(Duration::from_secs(10)).await;
        controller.kill().await?;
        for (pid, command) in processes_of(folder) {
            report.leftover += 1;
            report.differences.push(format!("process {pid} is left: {command}"));
        }
        Ok(())
    }
}

/// Every round of the store: their numbers count up from 1, and no more were asked for than these.
async fn stored(
    client: &Client,
    acknowledged: &BTreeSet<RoundId>,
    unanswered: usize,
) -> anyhow::Result<Vec<RoundSummary>> {
    let last = acknowledged.last().map_or(0, |id| id.0) + unanswered as i64;
    let mut found = Vec::new();
    // One beyond the last that there can be, to see that it is not there.
    for id in 1..=last + 1 {
        match client.round(RoundId(id)).await {
            Ok(record) => found.push(record.summary),
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Children of this process, and processes that were told of `folder`.
fn processes_of(folder: &Path) -> Vec<(u32, String)> {
    let own = std::process::id();
    let folder = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.replace('\0', " ");
        // The name in parentheses may hold spaces; after it come the state and the parent.
        let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (pid != own && (parent == own || command.contains(&folder))).then_some((pid, command))
    });
    found.collect()
}
