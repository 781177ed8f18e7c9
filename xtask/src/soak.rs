//! `cargo xtask soak`: builds the sidecar as it ships and wears it out, by `crates/bench`.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;

use crate::{dist, overhead, run};

/// Send very many requests through two sidecars, over connections that come and go, some of them badly.
///
/// HTTP/1.1, h2c and gRPC, recorded and ordinary, while rounds are armed and disarmed. Ends with an error if a request failed,
/// a span was lost, a file stayed open, or a sidecar needed over 1 MiB more in the last quarter than before.
#[derive(Args)]
pub(crate) struct Soak {
    /// How many requests.
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Go on for so many minutes instead.
    #[arg(long)]
    minutes: Option<f64>,
    /// What connections are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use a debug build: less to compile.
    #[arg(long)]
    debug: bool,
}

impl Soak {
    /// What a change is held against. It takes some ten seconds.
    pub(crate) fn short() -> Self {
        Soak { requests: 15_000, minutes: None, seed: 1, debug: true }
    }

    fn command(&self) -> anyhow::Result<Command> {
        ensure!(cfg!(target_os = "linux"), "the soak reads Linux's accounts of processes; this is another system");
        let (program, sidecar) = match self.debug {
            true => (run::debug("aftershock-bench")?, run::debug("aftershock-proxy")?),
            false => (overhead::build()?, dist::build()?),
        };
        let mut command = Command::new(program);
        command.arg("soak").arg("--sidecar").arg(sidecar);
        command.args(["--requests", &self.requests.to_string(), "--seed", &self.seed.to_string()]);
        if let Some(minutes) = self.minutes {
            command.args(["--minutes", &minutes.to_string()]);
        }
        Ok(command)
    }
}

pub(crate) fn run(soak: &Soak) -> anyhow::Result<()> {
    // Signals are for the program: it takes its children along.
    Err(soak.command()?.exec()).context("cannot start the soak")
}

/// Runs it and comes back.
pub(crate) fn pass(soak: &Soak) -> anyhow::Result<()> {
    run::pass(&mut soak.command()?)
}
