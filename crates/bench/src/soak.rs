//! Wear: very many requests through two sidecars, over connections that come and go, some of them badly, while rounds are
//! armed and disarmed. Nothing may fail, no span may be lost, and neither memory nor files may grow.
//!
//! The way of a request: load, the front's sidecar, an application that hands everything on (a TCP relay, so that the trace
//! context goes along), the front's sidecar again, the origin's sidecar, origin. So a recorded request leaves three spans.

mod connection;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aftershock_core::id::Token;
use anyhow::{Context as _, ensure};
use clap::Args;
use tokio::task::JoinSet;

use crate::controller::Account;
use crate::machine;
use crate::origin;
use crate::process::Process;
use crate::sidecar::Sidecar;
use crate::traffic::Traffic;
use connection::Tally;

/// Connections that are open at once.
const CONNECTIONS: u64 = 24;
/// How long a round lasts; for the last part of it its rules are disarmed.
const ROUND: Duration = Duration::from_millis(600);
const DISARMED: Duration = Duration::from_millis(200);
/// Samples of memory and files, evenly over the run.
const SAMPLES: usize = 20;
/// How much more a sidecar may need in the last quarter than ever before, in KiB.
const GROWTH_KIB: i64 = 1_024;
/// Below so many requests what a sidecar remembers of recent calls is not filled, so that memory has to grow.
const FILLED: u64 = 200_000;
/// How long files may take to be closed at the end.
const CLOSING: Duration = Duration::from_secs(10);

/// Send very many requests through two sidecars; nothing may fail, be lost, or grow.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// The sidecar's binary.
    #[arg(long)]
    sidecar: PathBuf,
    /// How many requests.
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Go on for so many minutes instead.
    #[arg(long)]
    minutes: Option<f64>,
    /// What connections are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What was seen at one time.
struct Sample {
    rss_kib: Vec<i64>,
    files: Vec<usize>,
}

impl Soak {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        machine::allow_files(1_024)?;
        let folder = tempfile::tempdir()?;
        let origin = origin::start().await?;
        let start = async |service, listeners: String, peers| {
            Sidecar::start(service, None, &self.sidecar, folder.path(), &listeners, peers).await
        };
        let inbound = |to: SocketAddr| format!("inbound:\n  - {{listen: '127.0.0.1:0', to: '{to}'}}\n");
        let behind = start("origin", inbound(origin), BTreeMap::new()).await?;
        // Nobody tells where a sidecar listens for calls, so it gets a port that was free a moment ago.
        let calls = StdListener::bind("127.0.0.1:0")?.local_addr()?;
        let (_application, application) = Process::role("relay", None, calls)?;
        let listeners = format!(
            "{}outbound:\n  - {{listen: '{calls}', callee: origin, to: ['{}']}}\n",
            inbound(application),
            behind.address
        );
        let peers = BTreeMap::from([(behind.address.to_string(), "origin")]);
        let front = start("front", listeners, peers).await?;
        let mut sidecars = vec![front, behind];
        let before = accounts(&sidecars).await?;
        let files: Vec<usize> = sidecars.iter().map(|s| s.process.files()).collect::<Result<_, _>>()?;
        let tally = Rc::new(Tally::default());
        let began = Instant::now();
        let samples = self.wear(&sidecars, &tally, began).await?;
        println!(
            "{} requests answered, {} given up, on {} connections ({} ended badly), {} rounds, in {:.0} s",
            tally.answered.get(),
            tally.given_up.get(),
            tally.connections.get(),
            tally.ended_badly.get(),
            tally.rounds.get(),
            began.elapsed().as_secs_f64()
        );
        for sidecar in &mut sidecars {
            sidecar.process.check()?;
        }
        let spans = spans(&sidecars, &before).await?;
        println!("{spans} spans, none lost");
        ensure!(tally.rounds.get() > 0 && spans > 0, "no round was recorded");
        closed(&sidecars, &files).await?;
        flat(&sidecars, &samples, tally.answered.get())
    }

    /// Keeps all connections busy to the end.
    async fn wear(&self, sidecars: &[Sidecar], tally: &Rc<Tally>, began: Instant) -> anyhow::Result<Vec<Sample>> {
        let token = Rc::new(Cell::new(Token(0)));
        let rounds = Rc::new(Traffic::of_current(Rc::clone(&token), self.seed));
        let ordinary = Rc::new(Traffic::ordinary());
        let address = sidecars.first().context("there is a front")?.address;
        let mut workers = JoinSet::new();
        for number in 0..CONNECTIONS {
            let (tally, rounds, ordinary) = (Rc::clone(tally), Rc::clone(&rounds), Rc::clone(&ordinary));
            let seed = self.seed << 32 | number << 16;
            workers.spawn_local(connection::work(address, seed, tally, rounds, ordinary));
        }
        let all = async {
            while let Some(worker) = workers.join_next().await {
                worker.context("a connection's task broke off")??;
            }
            anyhow::Ok(())
        };
        let arming = async {
            while !tally.is_over.get() {
                round(sidecars, &token).await?;
                tally.rounds.set(tally.rounds.get() + 1);
            }
            anyhow::Ok(())
        };
        let ((), (), samples) = tokio::try_join!(all, arming, self.watch(sidecars, tally, began))?;
        Ok(samples)
    }

    /// Looks at memory and files, and says when it is over.
    async fn watch(&self, sidecars: &[Sidecar], tally: &Tally, began: Instant) -> anyhow::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let done = match self.minutes {
                Some(minutes) => began.elapsed().as_secs_f64() / (minutes * 60.0),
                None => tally.answered.get() as f64 / self.requests as f64,
            };
            if done * (SAMPLES as f64) < (samples.len() + 1) as f64 {
                continue;
            }
            let rss_kib = sidecars.iter().map(|s| s.process.rss_kib().map(|kib| kib as i64));
            let files = sidecars.iter().map(|s| s.process.files());
            let sample =
                Sample { rss_kib: rss_kib.collect::<Result<_, _>>()?, files: files.collect::<Result<_, _>>()? };
            samples.push(sample);
            if samples.len() % 2 == 0 {
                self.tell(sidecars, &samples, tally);
            }
            if samples.len() == SAMPLES {
                tally.is_over.set(true);
                return Ok(samples);
            }
        }
    }

    fn tell(&self, sidecars: &[Sidecar], samples: &[Sample], tally: &Tally) {
        let Some(last) = samples.last() else { return };
        let each = sidecars.iter().zip(&last.rss_kib).zip(&last.files);
        let each: Vec<String> =
            each.map(|((sidecar, kib), files)| format!("{} {kib} KiB, {files} files", sidecar.service)).collect();
        let percent = samples.len() * 100 / SAMPLES;
        println!("{percent:>3} %  {:>9} requests  {}", tally.answered.get(), each.join("  "));
    }
}

/// One round: armed everywhere, load belongs to it, disarmed, ended.
async fn round(sidecars: &[Sidecar], token: &Cell<Token>) -> anyhow::Result<()> {
    let first = sidecars.first().context("there is a front")?;
    let round = first.controller.arm();
    for sidecar in &sidecars[1..] {
        sidecar.controller.arm_as(round);
    }
    for sidecar in sidecars {
        sidecar.controller.armed(round).await?;
    }
    token.set(round);
    tokio::time::sleep(ROUND - DISARMED).await;
    sidecars.iter().for_each(|sidecar| sidecar.controller.disarm(round));
    tokio::time::sleep(DISARMED).await;
    token.set(Token(0));
    sidecars.iter().for_each(|sidecar| sidecar.controller.end(round));
    sidecars.iter().try_for_each(|sidecar| sidecar.controller.check())
}

async fn accounts(sidecars: &[Sidecar]) -> anyhow::Result<Vec<Account>> {
    let mut accounts = Vec::new();
    for sidecar in sidecars {
        accounts.push(sidecar.controller.account().await?);
    }
    Ok(accounts)
}

/// How many spans arrived; all that were recorded must have.
async fn spans(sidecars: &[Sidecar], before: &[Account]) -> anyhow::Result<u64> {
    let mut spans = 0;
    for ((sidecar, before), after) in sidecars.iter().zip(before).zip(accounts(sidecars).await?) {
        sidecar.controller.check()?;
        let lost = after.flushed.lost - before.flushed.lost;
        ensure!(lost == 0, "the sidecar of {} lost {lost} spans", sidecar.service);
        let (exported, arrived) = (after.flushed.exported - before.flushed.exported, after.spans - before.spans);
        ensure!(exported == arrived, "the sidecar of {} exported {exported} spans, {arrived} arrived", sidecar.service);
        ensure!(after.fired == before.fired, "a rule fired at the sidecar of {}", sidecar.service);
        spans += arrived;
    }
    Ok(spans)
}

/// All files that connections needed are closed again.
async fn closed(sidecars: &[Sidecar], before: &[usize]) -> anyhow::Result<()> {
    // The connection to the collector may have been opened since.
    const COLLECTOR: usize = 1;
    let until = Instant::now() + CLOSING;
    for (sidecar, before) in sidecars.iter().zip(before) {
        loop {
            let files = sidecar.process.files()?;
            if files <= before + COLLECTOR {
                println!("{}: {files} files open, {before} at the start", sidecar.service);
                break;
            }
            ensure!(
                Instant::now() < until,
                "the sidecar of {} has {files} files open without a connection, {before} at the start",
                sidecar.service
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// No sidecar needed much more in the last quarter than ever before.
fn flat(sidecars: &[Sidecar], samples: &[Sample], requests: u64) -> anyhow::Result<()> {
    for (index, sidecar) in sidecars.iter().enumerate() {
        let kib: Vec<i64> = samples.iter().map(|sample| sample.rss_kib[index]).collect();
        let growth = growth(&kib).context("memory was not looked at")?;
        if requests < FILLED {
            println!("{}: {growth:+} KiB in the last quarter; too few requests to judge", sidecar.service);
            continue;
        }
        println!("{}: {growth:+} KiB in the last quarter, at most {GROWTH_KIB} allowed", sidecar.service);
        ensure!(growth <= GROWTH_KIB, "the memory of the sidecar of {} grew by {growth} KiB", sidecar.service);
    }
    Ok(())
}

/// The most of the last quarter over the most before it.
fn growth(kib: &[i64]) -> Option<i64> {
    let (before, last) = kib.split_at(kib.len() * 3 / 4);
    Some(last.iter().max()? - before.iter().max()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_quarter_over_all_before() {
        assert_eq!(growth(&[1, 9, 5, 6, 7, 8, 7, 8]), Some(-1));
        assert_eq!(growth(&[1, 2, 3, 4, 5, 6, 7, 8]), Some(2));
        assert_eq!(growth(&[]), None);
    }
}
