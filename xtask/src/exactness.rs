//! `cargo xtask exactness`: one fault, in its window, in every round, and never elsewhere, on real processes.
//!
//! The work is `aftershock lab evaluate`, `lab random` and `lab kills`; this collects what they say.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::run;

/// Inject every case of the lab many times with replicas, with rounds in flight, and with ordinary traffic beside, and
/// compare each verdict with the lab's own logs.
///
/// Ends with an error unless every round is `injected`, no log disagrees, and no ordinary request was interfered with.
#[derive(Args)]
pub(crate) struct Exactness {
    /// Rounds for each case in each setting.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    trials: u32,
    /// Instances of each service, where there are several.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    replicas: u16,
    /// Rounds in flight, where there are several.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    parallel: u32,
    /// Ordinary requests in a second, where there are any.
    #[arg(long, default_value_t = 10.0)]
    ordinary: f64,
    /// How long a pass waits for the arbiter, in milliseconds. This is about exactness, not about how fast a machine is.
    #[arg(long, default_value_t = 1000)]
    arbiter_timeout_ms: u64,
    /// Only this case; may be given several times.
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Only this setting; may be given several times.
    #[arg(long, value_enum)]
    setting: Vec<Setting>,
    /// Draw this many targets on topologies by lot instead.
    #[arg(long, value_name = "TARGETS", conflicts_with = "kills")]
    random: Option<u32>,
    /// Kill a process this many times at random points of rounds instead.
    #[arg(long, value_name = "TIMES")]
    kills: Option<u32>,
    /// What `--random` and `--kills` draw from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use a debug build: less to compile, and more for the processors to do in each round.
    #[arg(long)]
    debug: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Exactness {
    /// What a change is held against: one case that asks the arbiter and one that holds messages, with everything beside.
    /// It takes about half a minute.
    pub(crate) fn short() -> Self {
        Exactness {
            trials: 8,
            replicas: 3,
            parallel: 4,
            ordinary: 10.0,
            arbiter_timeout_ms: 1000,
            only: ["fan-k-of-n", "fig2b-order-sensitive"].map(str::to_owned).to_vec(),
            setting: vec![Setting::Both],
            random: None,
            kills: None,
            seed: 1,
            debug: true,
            format: Format::Human,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Format {
    #[default]
    Human,
    Json,
}

/// What is beside a round.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Setting {
    /// Nothing: one instance of each service, one round at a time.
    Plain,
    /// Several instances of each service.
    Replicas,
    /// Several rounds in flight.
    Parallel,
    /// Both, and ordinary traffic.
    Both,
}

/// One case in one setting, as `aftershock lab evaluate` reports it.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    scenario: String,
    replicas: u16,
    parallel: u32,
    /// Ordinary requests beside the rounds.
    ordinary: u64,
    trials: u32,
    injected: u32,
    as_declared: u32,
    disagree: u32,
    ordinary_faulted: u64,
    arbiter_timeout_ms: u64,
    differences: Vec<String>,
}

impl Row {
    fn is_good(&self) -> bool {
        self.injected == self.trials && self.disagree == 0 && self.ordinary_faulted == 0
    }
}

#[derive(Deserialize)]
struct Evaluation {
    rows: Vec<Row>,
    headers: Vec<Headers>,
}

/// The lengths of hop headers with evidence on a topology.
#[derive(Debug, Serialize, Deserialize)]
struct Headers {
    topology: String,
    replicas: u16,
    headers: u64,
    p50: u16,
    p95: u16,
    max: u16,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    rows: Vec<Row>,
    headers: Vec<Headers>,
}

pub(crate) fn run(exactness: &Exactness) -> anyhow::Result<()> {
    let program = build(exactness.debug)?;
    let lab = |arguments: &[String]| {
        let mut command = Command::new(&program);
        command.arg("lab").args(arguments).current_dir(run::root());
        command
    };
    let seed = exactness.seed.to_string();
    for (what, count, counted) in [("random", exactness.random, "--targets"), ("kills", exactness.kills, "--times")] {
        if let Some(count) = count {
            let format = if exactness.format == Format::Json { "json" } else { "human" };
            let arguments = [what, counted, &count.to_string(), "--seed", &seed, "--format", format];
            return run::pass(&mut lab(&arguments.map(str::to_owned)));
        }
    }
    let mut report = Report { schema: "aftershock.dev/exactness/v1", rows: Vec::new(), headers: Vec::new() };
    let chosen = |setting: &Setting| exactness.setting.is_empty() || exactness.setting.contains(setting);
    for setting in Setting::value_variants().iter().filter(|setting| chosen(setting)) {
        let (replicas, parallel, ordinary) = match setting {
            Setting::Plain => (1, 1, 0.0),
            Setting::Replicas => (exactness.replicas, 1, 0.0),
            Setting::Parallel => (1, exactness.parallel, 0.0),
            Setting::Both => (exactness.replicas, exactness.parallel, exactness.ordinary),
        };
        eprintln!("exactness: replicas {replicas}, rounds in flight {parallel}, ordinary requests {ordinary}/s");
        let mut arguments: Vec<String> = ["evaluate", "--format", "json"].map(str::to_owned).to_vec();
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("--trials", exactness.trials.to_string());
        option("--replicas", replicas.to_string());
        option("--parallel", parallel.to_string());
        option("--ordinary", ordinary.to_string());
        option("--arbiter-timeout", format!("{}ms", exactness.arbiter_timeout_ms));
        exactness.only.iter().for_each(|case| option("--case", case.clone()));
        let Evaluation { rows, headers } = evaluate(&mut lab(&arguments))?;
        report.headers.extend(headers);
        for row in &rows {
            eprintln!("  {}: {} of {} injected", row.scenario, row.injected, row.trials);
            row.differences.iter().for_each(|difference| eprintln!("    {difference}"));
        }
        report.rows.extend(rows);
    }
    match exactness.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Format::Human => human(&report),
    }
    let bad = report.rows.iter().filter(|row| !row.is_good()).count();
    ensure!(bad == 0, "{bad} of {} rows are not exact", report.rows.len());
    Ok(())
}

/// What one evaluation found. It ends with an exit code of its own when something is not as it should be.
fn evaluate(command: &mut Command) -> anyhow::Result<Evaluation> {
    let shown = format!("{command:?}");
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = done.with_context(|| format!("failed to start {shown}"))?;
    match serde_json::from_slice::<Evaluation>(&done.stdout) {
        Ok(evaluation) => Ok(evaluation),
        Err(error) if done.status.success() => Err(error).with_context(|| format!("{shown} printed something else")),
        Err(_) => bail!("{shown} ended with {}", done.status),
    }
}

/// Builds both binaries; where `aftershock` is.
fn build(debug: bool) -> anyhow::Result<PathBuf> {
    let mut command = run::cargo(&["build", "--quiet", "-p", "aftershock-cli", "-p", "aftershock-proxy", "--bins"]);
    if !debug {
        command.arg("--release");
    }
    let done = command.args(["--message-format", "json"]).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "the build failed");
    let messages = String::from_utf8_lossy(&done.stdout);
    let mut artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let found =
        artifacts.find(|artifact| artifact["target"]["name"] == "aftershock" && artifact["executable"].is_string());
    let path = found.as_ref().and_then(|artifact| artifact["executable"].as_str());
    path.map(PathBuf::from).context("cargo named no executable `aftershock`")
}

fn human(report: &Report) {
    println!(
        "{:<24}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "case", "replicas", "in flight", "injected", "disagree", "ordinary", "faulted"
    );
    for row in &report.rows {
        let injected = format!("{}/{}", row.injected, row.trials);
        println!(
            "{:<24}{:>9}{:>10}{injected:>10}{:>10}{:>10}{:>10}",
            row.scenario, row.replicas, row.parallel, row.disagree, row.ordinary, row.ordinary_faulted
        );
    }
    for Headers { topology, replicas, headers, p50, p95, max } in &report.headers {
        println!(
            "{topology}, {replicas} replicas: {headers} headers with evidence, p50 {p50}, p95 {p95}, at most {max} bytes"
        );
    }
}
