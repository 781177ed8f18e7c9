//! What a sidecar costs, beside what else could stand in its place: `docs/benchmarks.md` says how and why.
//!
//! All subjects take turns within one row of one round, in another order in each round, so that what the machine does
//! meanwhile hits all alike. Ratios are taken within a turn and their medians reported. A turn in which anything failed is
//! void and done again, with new processes.

mod report;
mod subjects;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::load::{Extent, Load, Measured, Pace, Shape};
use crate::machine::{self, Cpus, Machine};
use crate::{envoy, origin};
use report::{Memory, Report};
use subjects::{Kind, Place, Record, Subject};

/// Connections of which each has had one request.
const IDLE: usize = 2_000;
/// After so many recorded executions memory is looked at, and looked at again.
const GROWTH: (u64, u64) = (20_000, 100_000);

/// CPU, latency and memory of one sidecar, beside no proxy, a TCP relay, a hyper relay and Envoy, in one run.
#[derive(Debug, Args)]
pub(crate) struct Overhead {
    /// The sidecar's binary.
    #[arg(long)]
    sidecar: PathBuf,
    /// Envoy's binary; without it its ratios are null.
    #[arg(long)]
    envoy: Option<PathBuf>,
    /// How thorough.
    #[arg(long, value_enum, default_value_t = Mode::Full)]
    mode: Mode,
    /// Rounds; as many as the mode wants, unless given.
    #[arg(long)]
    rounds: Option<usize>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Also write the result to this file, as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// All figures, for keeping: about 25 minutes.
    Full,
    /// All figures but the growth of memory: below 4 minutes.
    Quick,
    /// Only whether all of it works: some seconds.
    Smoke,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
}

/// The binaries under test.
#[derive(Debug)]
struct Programs {
    sidecar: PathBuf,
    envoy: Option<PathBuf>,
}

/// How long what lasts.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    rounds: usize,
    /// Rows whose CPU makes a ratio.
    ratio: Duration,
    other: Duration,
    /// Where nothing is between load and origin there is no CPU to measure.
    direct: Duration,
    warm_up: Duration,
    /// What the sidecar adds to latencies is measured in turns of this length.
    latency: Duration,
    /// So many of them in each round.
    latency_turns: usize,
    memory: Duration,
    idle: usize,
    growth: bool,
}

impl Schedule {
    fn of(mode: Mode) -> Self {
        let ms = Duration::from_millis;
        match mode {
            Mode::Full => Schedule {
                rounds: 9,
                ratio: ms(10_000),
                other: ms(1_150),
                direct: ms(400),
                warm_up: ms(150),
                latency: ms(500),
                latency_turns: 5,
                memory: ms(800),
                idle: IDLE,
                growth: true,
            },
            Mode::Quick => Schedule {
                rounds: 3,
                ratio: ms(3_000),
                other: ms(350),
                direct: ms(200),
                warm_up: ms(150),
                latency: ms(500),
                latency_turns: 3,
                memory: ms(500),
                idle: IDLE,
                growth: false,
            },
            Mode::Smoke => Schedule {
                rounds: 1,
                ratio: ms(200),
                other: ms(150),
                direct: ms(100),
                warm_up: ms(20),
                latency: ms(150),
                latency_turns: 1,
                memory: ms(150),
                idle: 100,
                growth: false,
            },
        }
    }
}

/// A load that everybody gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    shape: Shape,
    pace: Pace,
    makes_ratio: bool,
}

/// HTTP/1.1 whose CPU makes ratios, and whose saturation the latency rows are half of.
const H1: Shape = Shape::http1(16);
const H2: Shape = Shape::h2c(4, 4);

fn rows() -> Vec<Row> {
    let shapes = [H1, H2, Shape::http1(1), Shape::http1(64), Shape::h2c(1, 32)];
    let saturated = shapes.map(|shape| Row { shape, pace: Pace::Saturated, makes_ratio: shape == H1 || shape == H2 });
    let open = shapes.map(|shape| Row { shape, pace: Pace::Rate(10_000.0), makes_ratio: false });
    saturated.into_iter().chain(open).collect()
}

/// A turn that does not count.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Void {
    round: usize,
    turn: String,
    subject: Kind,
    reason: String,
}

/// One run.
struct Run {
    overhead: Overhead,
    programs: Programs,
    schedule: Schedule,
    cpus: Cpus,
    folder: tempfile::TempDir,
    origin: std::net::SocketAddr,
    kinds: Vec<Kind>,
    running: Vec<Subject>,
    voids: Vec<Void>,
    began: Instant,
}

impl Overhead {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let cpus = Cpus::choose()?;
        machine::allow_files(4 * IDLE as u64 + 1_000)?;
        machine::pin(cpus.load)?;
        let programs = Programs { sidecar: self.sidecar.clone(), envoy: self.envoy.clone() };
        ensure!(programs.sidecar.exists(), "no sidecar at {}", programs.sidecar.display());
        let mut schedule = Schedule::of(self.mode);
        schedule.rounds = self.rounds.unwrap_or(schedule.rounds).max(1);
        let mut report = Report::new(self.mode, schedule.rounds, Machine::describe(cpus));
        if let Some(program) = &programs.envoy {
            report.envoy = Some(envoy::version(program)?);
        }
        let with_envoy = |kind: &Kind| programs.envoy.is_some() || *kind != Kind::Envoy;
        let mut run = Run {
            kinds: Kind::ALL.into_iter().filter(with_envoy).collect(),
            overhead: self,
            programs,
            schedule,
            cpus,
            folder: tempfile::tempdir()?,
            origin: origin::start().await?,
            running: Vec::new(),
            voids: Vec::new(),
            began: Instant::now(),
        };
        run.rounds(&mut report).await?;
        report.finish(run.voids, run.began.elapsed());
        let json = serde_json::to_string_pretty(&report)?;
        if let Some(path) = &run.overhead.output {
            std::fs::write(path, format!("{json}\n")).with_context(|| format!("cannot write {}", path.display()))?;
        }
        match run.overhead.format {
            Format::Json => println!("{json}"),
            Format::Human => report.print(),
        }
        Ok(())
    }
}

impl Run {
    async fn rounds(&mut self, report: &mut Report) -> anyhow::Result<()> {
        for round in 0..self.schedule.rounds {
            self.running.clear();
            for row in rows() {
                self.progress(round, &report::name(&row));
                let turn = self.row(round, &row).await?;
                report.add_turn(&row, turn);
            }
            self.progress(round, "latency at half of saturation");
            for shape in [H1, H2] {
                let saturation = report.saturation(shape).context("the sidecar was put under load before")?;
                let row = Row { shape, pace: Pace::Rate(saturation / 2.0), makes_ratio: false };
                for turn in 0..self.schedule.latency_turns {
                    let turn = self.latency(round, turn, &row).await?;
                    report.add_latency(shape, turn);
                }
            }
            self.progress(round, "memory");
            self.running.clear();
            let memory = self.memory(round).await?;
            report.memory.extend(memory);
        }
        Ok(())
    }

    fn progress(&self, round: usize, what: &str) {
        let (round, rounds) = (round + 1, self.schedule.rounds);
        eprintln!("{:>5.0} s  round {round} of {rounds}: {what}", self.began.elapsed().as_secs_f64());
    }

    fn place(&self) -> Place<'_> {
        Place { programs: &self.programs, cpus: self.cpus, folder: self.folder.path(), origin: self.origin }
    }

    /// The order of a round: each begins with another subject, and every other one goes backwards.
    fn order(&self, round: usize, kinds: &[Kind]) -> Vec<Kind> {
        let mut order = kinds.to_vec();
        order.rotate_left(round / 2 % kinds.len());
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }

    async fn row(&mut self, round: usize, row: &Row) -> anyhow::Result<Vec<(Kind, Measured)>> {
        let kinds = self.order(round, &self.kinds);
        let Schedule { ratio, other, direct, warm_up, .. } = self.schedule;
        let extent = |kind| Extent::Time {
            warm_up,
            measured: match kind {
                Kind::NoProxy => direct,
                _ if row.makes_ratio => ratio,
                _ => other,
            },
        };
        self.turn(round, row, &kinds, extent).await
    }

    async fn latency(&mut self, round: usize, turn: usize, row: &Row) -> anyhow::Result<Vec<(Kind, Measured)>> {
        let extent = Extent::Time { warm_up: self.schedule.warm_up, measured: self.schedule.latency };
        let kinds = self.order(round + turn, &[Kind::NoProxy, Kind::Aftershock]);
        self.turn(round, row, &kinds, |_| extent).await
    }

    /// Everybody's turn with one row, in the order of `kinds`.
    async fn turn(
        &mut self,
        round: usize,
        row: &Row,
        kinds: &[Kind],
        extent: impl Fn(Kind) -> Extent,
    ) -> anyhow::Result<Vec<(Kind, Measured)>> {
        'again: loop {
            let mut measured = Vec::new();
            for kind in kinds.iter().copied() {
                let load = Load { shape: row.shape, pace: row.pace, extent: extent(kind), watch_memory: false };
                match self.one(kind, &load).await {
                    Ok(one) => measured.push((kind, one)),
                    Err(error) => {
                        self.void(round, report::name(row), kind, &error)?;
                        continue 'again;
                    }
                }
            }
            return Ok(measured);
        }
    }

    async fn one(&mut self, kind: Kind, load: &Load) -> anyhow::Result<Measured> {
        let place = match self.running.iter().position(|subject| subject.kind == kind) {
            Some(place) => place,
            None => {
                let subject = Subject::start(kind, Record::Rounds, self.place()).await?;
                self.running.push(subject);
                self.running.len() - 1
            }
        };
        self.running[place].load(load).await
    }

    /// A turn failed: it does not count, and is done again unless too many did.
    fn void(&mut self, round: usize, turn: String, subject: Kind, error: &anyhow::Error) -> anyhow::Result<()> {
        let reason = format!("{error:#}");
        eprintln!("         void: {turn}, {}: {reason}", subject.name());
        self.voids.push(Void { round: round + 1, turn, subject, reason });
        self.running.clear();
        let most = self.schedule.rounds.max(3);
        if self.voids.len() > most {
            bail!("{} turns were void, expected at most {most}; the last one: {error:#}", self.voids.len());
        }
        Ok(())
    }

    /// Memory, each figure of processes that were just started.
    async fn memory(&mut self, round: usize) -> anyhow::Result<Vec<Memory>> {
        let proxies: Vec<Kind> = self.kinds.iter().copied().filter(|kind| *kind != Kind::NoProxy).collect();
        let mut figures = Vec::new();
        for kind in self.order(round, &proxies) {
            let shape = Shape::http1(64);
            let extent = Extent::Time { warm_up: self.schedule.warm_up, measured: self.schedule.memory };
            let load = Load { shape, pace: Pace::Saturated, extent, watch_memory: true };
            let under_load =
                async |subject: &mut Subject| subject.load(&load).await?.rss_kib.context("nobody looked at the memory");
            let kib = self.fresh(round, "memory of 64 connections", kind, under_load).await?;
            figures.push(Memory { figure: report::UNDER_LOAD, subject: kind, kib: kib as i64 });
        }
        for kind in self.order(round, &[Kind::HyperRelay, Kind::Aftershock]) {
            let count = self.schedule.idle;
            let idle = async |subject: &mut Subject| subject.idle_rss_kib(count).await;
            let kib = self.fresh(round, "memory of idle connections", kind, idle).await?;
            figures.push(Memory { figure: report::IDLE, subject: kind, kib: kib as i64 });
        }
        if self.schedule.growth {
            let growth = async |subject: &mut Subject| {
                let executions = |count| Load {
                    shape: H1,
                    pace: Pace::Saturated,
                    extent: Extent::Requests(count),
                    watch_memory: false,
                };
                subject.load(&executions(GROWTH.0)).await?;
                let before = subject.rss_kib()?;
                subject.load(&executions(GROWTH.1 - GROWTH.0)).await?;
                Ok(subject.rss_kib()? as i64 - before as i64)
            };
            let kib = self.fresh(round, "growth of memory", Kind::Aftershock, growth).await?;
            figures.push(Memory { figure: report::GROWTH, subject: Kind::Aftershock, kib });
        }
        Ok(figures)
    }

    /// Something done with a subject of its own.
    async fn fresh<T>(
        &mut self,
        round: usize,
        turn: &str,
        kind: Kind,
        what: impl AsyncFn(&mut Subject) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        loop {
            let done = async {
                let mut subject = Subject::start(kind, Record::All, self.place()).await?;
                what(&mut subject).await
            };
            match done.await {
                Ok(done) => return Ok(done),
                Err(error) => self.void(round, turn.to_owned(), kind, &error)?,
            }
        }
    }
}
