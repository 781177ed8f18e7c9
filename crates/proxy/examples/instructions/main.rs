//! Exchanges through editors and brains in memory, for counting instructions: `cargo xtask bench instructions` runs this
//! under callgrind and compares with `limits.json`.
//!
//! No sockets, no clock, no chance: the same instructions in every run but for the hash seeds of the standard library.
//! Only what a sidecar does is counted, inside `measured`: the editor, the brain, and asking it what may go on. A *single*
//! exchange passes one sidecar, before the origin. A *chain* passes three times: into the front's application, out of it, and
//! into the origin; the front hands the trace context on. Ordinary traffic belongs to no round; recorded traffic does, and
//! leaves a span at each passage. Matched traffic is what costs most without any fault: every request carries a live token,
//! belongs to an execution that its client declared, and is a pass of a rule whose guard is false; its spans are encoded for
//! the collector.

mod chain;
mod ends;
#[path = "../shared/pass.rs"]
mod pass;

use std::hint::black_box;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;

use chain::Chain;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    H2c,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Without brains.
    Editors,
    Ordinary,
    Recorded,
    /// Recorded, in executions that the client declared, at the target of a rule whose guard is false; spans are encoded.
    Matched,
}

/// What is counted.
pub(crate) struct Scenario {
    name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) traffic: Traffic,
    /// How many links an exchange passes: 1 or 3.
    pub(crate) links: usize,
}

const fn scenario(name: &'static str, protocol: Protocol, links: usize, traffic: Traffic) -> Scenario {
    Scenario { name, protocol, traffic, links }
}

const SCENARIOS: [Scenario; 10] = [
    scenario("http1-single-editors", Protocol::Http1, 1, Traffic::Editors),
    scenario("http1-single-ordinary", Protocol::Http1, 1, Traffic::Ordinary),
    scenario("http1-single-matched", Protocol::Http1, 1, Traffic::Matched),
    scenario("http1-chain-ordinary", Protocol::Http1, 3, Traffic::Ordinary),
    scenario("http1-chain-recorded", Protocol::Http1, 3, Traffic::Recorded),
    scenario("h2c-single-editors", Protocol::H2c, 1, Traffic::Editors),
    scenario("h2c-single-ordinary", Protocol::H2c, 1, Traffic::Ordinary),
    scenario("h2c-single-matched", Protocol::H2c, 1, Traffic::Matched),
    scenario("h2c-chain-ordinary", Protocol::H2c, 3, Traffic::Ordinary),
    scenario("h2c-chain-recorded", Protocol::H2c, 3, Traffic::Recorded),
];

/// Exchanges through sidecars in memory.
#[derive(Parser)]
struct Arguments {
    /// Which; without it their names are listed.
    scenario: Option<String>,
    /// Exchanges that are counted.
    #[arg(long, default_value_t = 500)]
    exchanges: usize,
    /// Exchanges before, so that what is remembered for the linger time has its lasting size.
    #[arg(long, default_value_t = 3_500)]
    warm_up: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let Some(name) = &arguments.scenario else {
        for scenario in &SCENARIOS {
            writeln!(out, "{}", scenario.name)?;
        }
        return Ok(());
    };
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name == name) else {
        anyhow::bail!("no scenario `{name}`");
    };
    let mut chain = Chain::new(scenario)?;
    for _ in 0..arguments.warm_up {
        chain.exchange()?;
    }
    COUNTING.store(true, Ordering::Relaxed);
    for _ in 0..arguments.exchanges {
        chain.exchange()?;
    }
    Ok(())
}

static COUNTING: AtomicBool = AtomicBool::new(false);

/// Runs what is to be counted, once warm.
pub(crate) fn measured(what: impl FnOnce()) {
    if COUNTING.load(Ordering::Relaxed) {
        counted(what);
    } else {
        what();
    }
}

/// Callgrind counts what this calls; it finds it by its name.
#[inline(never)]
fn counted(what: impl FnOnce()) {
    what();
    // Keeps this from becoming a jump, which would end the counting at its start.
    black_box(());
}
