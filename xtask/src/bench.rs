//! `cargo xtask bench …`: figures that hold on any machine. Times are ratios within one run since machines are noisy;
//! instructions are counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use crate::overhead::{self, Overhead};
use crate::run;

#[derive(Subcommand)]
pub(crate) enum Bench {
    Overhead(Overhead),
    /// Instructions per exchange in editors and brains, under callgrind, compared with the limits checked in.
    ///
    /// Fails when a scenario needs over 10 % more than its limit. Says SKIPPED where valgrind is not installed.
    Instructions {
        /// How to print the result.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Human,
    Json,
}

pub(crate) fn run(what: &Bench) -> anyhow::Result<()> {
    match what {
        Bench::Overhead(overhead) => overhead::run(overhead),
        Bench::Instructions { format } => instructions(*format, false),
    }
}

/// What `cargo xtask ci` runs of the instructions: all. Where valgrind is `required`, a skip is a failure.
pub(crate) fn ci(required: bool) -> anyhow::Result<()> {
    instructions(Format::Human, required)
}

/// Instructions per exchange by scenario, for the processor and compiler on which they were written down.
const LIMITS: &str = "crates/proxy/examples/instructions/limits.json";
/// How much above its limit a figure may be, in percent: compilers, libc and processors differ a little.
const TOLERANCE: u64 = 10;
/// Exchanges that are counted.
const EXCHANGES: u64 = 500;
/// The function below which the example does what is to be counted.
const COUNTED: &str = "*instructions*counted*";
/// A release build whose functions have names.
const PROFILE: [&str; 6] = [
    "--config",
    "profile.counted.inherits=\"release\"",
    "--config",
    "profile.counted.strip=\"none\"",
    "--profile",
    "counted",
];

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Exceeded,
    Skipped,
}

#[derive(Serialize)]
struct Counted {
    scenario: String,
    instructions: u64,
    limit: u64,
    exceeded: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    status: Status,
    exchanges: u64,
    tolerance_percent: u64,
    scenarios: Vec<Counted>,
}

fn instructions(format: Format, required: bool) -> anyhow::Result<()> {
    let mut report = Report {
        schema: "aftershock.dev/instructions/v1alpha1",
        status: Status::Skipped,
        exchanges: EXCHANGES,
        tolerance_percent: TOLERANCE,
        scenarios: Vec::new(),
    };
    let counts = has_valgrind();
    ensure!(counts || !required, "valgrind was installed and does not run");
    if counts {
        report.scenarios = measure()?;
        let exceeded = report.scenarios.iter().any(|counted| counted.exceeded);
        report.status = if exceeded { Status::Exceeded } else { Status::Ok };
    }
    print(&report, format)?;
    ensure!(
        !matches!(report.status, Status::Exceeded),
        "more instructions than {LIMITS} allows; if they are worth it, raise the limits in the same change"
    );
    Ok(())
}

fn has_valgrind() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

fn measure() -> anyhow::Result<Vec<Counted>> {
    let path = run::root().join(LIMITS);
    let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {LIMITS}"))?;
    let limits: BTreeMap<String, u64> =
        serde_json::from_str(&text).with_context(|| format!("failed to read {LIMITS}"))?;
    let mut build = run::cargo(&["build", "--quiet", "--package", "aftershock-proxy", "--example", "instructions"]);
    let program = run::executable(build.args(PROFILE), "instructions")?;
    let (listed, _) = output(&mut Command::new(&program))?;
    if let Some(unknown) = limits.keys().find(|name| !listed.lines().any(|listed| listed == *name)) {
        bail!("{LIMITS} has a limit for `{unknown}`, which is no scenario");
    }
    let count = |name: &str| {
        let limit = *limits.get(name).with_context(|| format!("{LIMITS} has no limit for `{name}`"))?;
        let instructions = count(&program, name)?;
        let exceeded = instructions * 100 > limit * (100 + TOLERANCE);
        Ok(Counted { scenario: name.to_owned(), instructions, limit, exceeded })
    };
    listed.lines().map(count).collect()
}

/// Instructions per exchange of one scenario.
fn count(program: &Path, scenario: &str) -> anyhow::Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(format!("--toggle-collect={COUNTED}"));
    let (_, said) = output(command.arg(program).args([scenario, "--exchanges", &EXCHANGES.to_string()]))?;
    let collected = said.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, number)| number.trim());
    let total: u64 = collected.and_then(|number| number.parse().ok()).context("callgrind told no total")?;
    ensure!(total > 0, "callgrind found no function named {COUNTED}");
    Ok(total / EXCHANGES)
}

/// Runs it and returns what it wrote to standard output and standard error.
fn output(command: &mut Command) -> anyhow::Result<(String, String)> {
    let shown = format!("{command:?}");
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("failed to start {shown}"))?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "{shown} ended with {}\n{err}", done.status);
    Ok((out.into_owned(), err.into_owned()))
}

fn print(report: &Report, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    if matches!(report.status, Status::Skipped) {
        println!("SKIPPED: valgrind is not installed");
        return Ok(());
    }
    println!(
        "instructions per exchange, mean of {}; at most {} % over the limit",
        report.exchanges, report.tolerance_percent
    );
    for counted in &report.scenarios {
        let Counted { scenario, instructions, limit, exceeded } = counted;
        let change = (*instructions as f64 / *limit as f64 - 1.0) * 100.0;
        let verdict = if *exceeded { "EXCEEDED" } else { "ok" };
        println!("{scenario:<24} {instructions:>8}   limit {limit:>8}   {change:>+5.1} %   {verdict}");
    }
    Ok(())
}
