//! `aftershock lab random`: targets drawn by lot on topologies drawn by lot, judged by the lab's own logs.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::time::Duration;

use aftershock_control::api::Verdict;
use aftershock_control::runner::Runner;
use aftershock_control::scenario::Scenario;
use aftershock_core::duration::Interval;
use aftershock_core::event::ApiRef;
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{ErrorAnswer, Fault, Hold, Occurrence, Phase, Plan, Target};
use aftershock_core::trace::Trace;
use aftershock_generate::{Request, patterns, synthesize};
use aftershock_lab::random::{ENTRY, SplitMix64, topology};
use aftershock_lab::{RunningLab, Topology};
use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

use crate::command::record::Recording;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::stage::{Setting, Stage};
use crate::{Ended, cases};

/// Draw topologies and targets by lot, inject each once, and compare every verdict with the lab's own logs.
///
/// Topologies have three to five services, calls in sequence and in parallel, retries, HTTP and gRPC, and one to three
/// replicas; targets have a number, or `k: first`, or are held until a competing answer came; clients try again. The same
/// seed draws the same. Ends with 2 unless all are `injected` and the logs agree.
#[derive(Debug, Args)]
pub(crate) struct Random {
    /// How many targets.
    #[arg(long, default_value_t = 200)]
    targets: u32,
    /// Targets on each topology.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    per_topology: u32,
    /// What everything is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most replicas of a service.
    #[arg(long, value_name = "N", default_value = "3")]
    replicas: NonZeroU16,
    /// How long a pass waits for the arbiter.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    arbiter_timeout: Interval,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    seed: u64,
    topologies: u32,
    targets: u32,
    injected: u32,
    /// Verdict and logs say different things.
    disagree: u32,
    /// How many of each kind there were.
    kinds: BTreeMap<String, u32>,
    /// Targets for which the traces allow no guard, so that others were drawn.
    unsolved: u32,
    /// What was not as it should be, with all that it takes to see it again.
    differences: Vec<String>,
}

/// Clean rounds of each topology: guards of `k: first` rely on what all of them show.
const ROUNDS: u32 = 8;
/// Draws for one target before its topology is given up: one that never branches has nothing to hold, for example.
const MOST_DRAWS: u32 = 200;

impl Random {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        let mut report = Report {
            schema: "aftershock.dev/random-targets/v1",
            seed: self.seed,
            topologies: 0,
            targets: 0,
            injected: 0,
            disagree: 0,
            kinds: BTreeMap::new(),
            unsolved: 0,
            differences: Vec::new(),
        };
        let mut lots = SplitMix64::new(self.seed);
        let progress = Progress::new("random targets", self.targets.into());
        while report.targets < self.targets {
            let most = self.per_topology.min(self.targets - report.targets);
            self.topology(lots.bits(), most, &mut report, &progress).await?;
        }
        drop(progress);
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => {
                output::line(format!(
                    "{} of {} targets on {} topologies injected, the logs disagree with {}",
                    report.injected, report.targets, report.topologies, report.disagree
                ));
                for (kind, count) in &report.kinds {
                    output::line(format!("  {count:>4} × {kind}"));
                }
                report.differences.iter().for_each(|difference| output::line(format!("  {difference}")));
            }
        }
        let good = report.injected == report.targets && report.disagree == 0;
        Ok(if good { Ended::AsExpected } else { Ended::Unexpected })
    }

    /// Up to `most` targets on the topology of `seed`.
    async fn topology(&self, seed: u64, most: u32, report: &mut Report, progress: &Progress) -> anyhow::Result<()> {
        let mut lots = SplitMix64::new(seed);
        let replicas = 1 + lots.below(self.replicas.get().into()) as u16;
        let file = format!("random-{seed:x}.yaml");
        let topology = Topology::parse(&file, &topology(seed))?;
        let arbiter_timeout = self.arbiter_timeout.0;
        let setting = Setting { replicas: replicas.try_into()?, rounds: ROUNDS, arbiter_timeout, ..Setting::default() };
        let stage = Stage::set(topology, setting).await?;
        let attempts = 1 + lots.below(3);
        let runner = Runner::new(stage.client.clone(), scenario(&stage.lab, attempts)?);
        let recording = Recording::make(&runner, ROUNDS).await.with_context(|| format!("on topology {seed:x}"))?;
        report.topologies += 1;
        let mut draws = 0;
        let mut of_topology = 0;
        while of_topology < most && draws < MOST_DRAWS {
            draws += 1;
            let Some((kind, plan)) = draw(&mut lots, &recording.traces) else {
                report.unsolved += 1;
                continue;
            };
            of_topology += 1;
            report.targets += 1;
            *report.kinds.entry(format!("{kind}, {replicas} replicas")).or_default() += 1;
            let truth = cases::windows(&stage.lab, &plan)?;
            let case = format!("topology {seed:x}, replicas {replicas}, attempts {attempts}, {}", plan_in_words(&plan));
            match runner.round_with(plan, None, &()).await {
                Err(error) => report.differences.push(format!("{case}: {error}")),
                Ok(outcome) => {
                    let verdict = outcome.finished.verdict;
                    let contradictions = cases::contradictions(&stage.lab, &outcome.key, &truth).await?;
                    report.injected += u32::from(verdict == Verdict::Injected);
                    let of_faults = outcome.finished.faults.iter().flat_map(|fault| &fault.reasons);
                    let reasons: Vec<&String> = outcome.finished.reasons.iter().chain(of_faults).collect();
                    if verdict != Verdict::Injected {
                        report.differences.push(format!("{case}: key {}: {verdict}: {reasons:?}", outcome.key));
                    }
                    if cases::disagrees(verdict, &contradictions, &truth) {
                        report.disagree += 1;
                        let shown = if contradictions.is_empty() {
                            "the fault happened".to_owned()
                        } else {
                            contradictions.join("; ")
                        };
                        report
                            .differences
                            .push(format!("{case}: key {}: {verdict}, but the lab's logs: {shown}", outcome.key));
                    }
                }
            }
            progress.step();
        }
        stage.strike().await;
        Ok(())
    }
}

/// A client of the entry that tries `attempts` times.
fn scenario(lab: &RunningLab, attempts: usize) -> anyhow::Result<Scenario> {
    let entries: Vec<String> = lab.addresses("s0").iter().map(|address| format!("http://{address}")).collect();
    let entries = entries.join(", ");
    let (method, path) = ENTRY.split_once(' ').context("a method and a path")?;
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: {}}}\nspec:\n  entry: [{entries}]\n  \
         key: key-{{random}}\n  requests:\n    - name: entry\n      http: {{method: {method}, path: \"{path}?key={{key}}\"}}\n      \
         timeout: 30s\n      retry: {{attempts: {attempts}, on: [status, timeout, transport]}}\n      expect: {{status: 200}}\n",
        lab.topology().name()
    );
    let scenario = Scenario::parse("a generated scenario", &text)?;
    ensure!(scenario.requests.len() == 1, "one request");
    Ok(scenario)
}

/// A target drawn by lot and what it is, with its guard from `traces`; `None` where they allow none.
fn draw(lots: &mut SplitMix64, traces: &[Trace]) -> Option<(String, Plan)> {
    let mut passes: BTreeMap<(Service, Api), Vec<u32>> = BTreeMap::new();
    for trace in traces {
        let mut of_trace: BTreeMap<(Service, Api), u32> = BTreeMap::new();
        for call in &trace.calls {
            if let Some(caller) = &call.caller {
                *of_trace.entry((caller.clone(), call.api.clone())).or_default() += 1;
            }
        }
        of_trace.into_iter().for_each(|(target, count)| passes.entry(target).or_default().push(count));
    }
    // What some trace does not have is no target.
    passes.retain(|_, counts| counts.len() == traces.len());
    let targets: Vec<(&(Service, Api), u32)> =
        passes.iter().map(|(target, counts)| (target, counts.iter().copied().min().unwrap_or(0))).collect();
    let ((caller, api), most) = *lots.pick(&targets);
    let phase = if lots.once_in(2) { Phase::Request } else { Phase::Response };
    let pass = 1 + lots.below(most as usize) as u32;
    let fault = fault(lots, phase, api);
    let mut target = Target {
        caller: Some(caller.clone()),
        ..Target::new(ApiRef::Api(api.clone()), Occurrence::Number(pass), phase)
    };
    let (name, request) = match lots.below(8) {
        0 => {
            target.k = Occurrence::First;
            ("first", Request { pass: Some(pass), ..Request::new(target, fault) })
        }
        1..=3 => {
            // Another call of the same service, whose answer is to come first.
            let siblings: BTreeSet<&Api> =
                passes.keys().filter(|(other, of)| other == caller && of != api).map(|(_, of)| of).collect();
            let siblings: Vec<&Api> = siblings.into_iter().collect();
            if siblings.is_empty() {
                return None;
            }
            let competing = patterns::competing((*lots.pick(&siblings)).clone(), Some(caller.clone()));
            let hold = Some(Hold { deadline: Interval(Duration::from_secs(3)) });
            ("held", Request { competing: vec![competing], hold, ..Request::new(target, fault) })
        }
        _ => ("numbered", Request::new(target, fault)),
    };
    let tfic = synthesize(&request, traces).ok()?.tfic;
    let protocol = if api.operation.is_grpc() { "gRPC" } else { "HTTP" };
    Some((format!("{name} {phase} over {protocol}"), Plan { faults: vec![tfic], ..Plan::default() }))
}

fn fault(lots: &mut SplitMix64, phase: Phase, api: &Api) -> Fault {
    match lots.below(5) {
        0 => Fault::Drop,
        1 => Fault::Reset(Default::default()),
        2 => {
            let grpc = api.operation.is_grpc();
            let answer = ErrorAnswer::default();
            Fault::Error(match grpc {
                true => ErrorAnswer { grpc_status: Some(if phase == Phase::Request { 8 } else { 13 }), ..answer },
                false => ErrorAnswer { status: Some(if phase == Phase::Request { 429 } else { 500 }), ..answer },
            })
        }
        _ => Fault::Abort,
    }
}

fn plan_in_words(plan: &Plan) -> String {
    let words = plan.faults.iter().map(|tfic| {
        let held = if tfic.hold.is_some() { ", held" } else { "" };
        format!("{} the {} when {}{held}", tfic.fault, tfic.target, tfic.guard)
    });
    words.collect::<Vec<_>>().join("; ")
}
