//! The project's own commands: `cargo xtask ci` is what continuous integration runs.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool prints")]

mod bench;
mod ci;
mod dist;
mod exactness;
mod fuzz;
mod overhead;
mod peers;
mod run;
mod schemas;
mod soak;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work on Aftershock.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change lands: format, lints, house rules, tests, docs.
    ///
    /// As root on Debian it installs the packages whose programs the tests talk to; elsewhere it names them, and the
    /// tests that need them skip aloud. The last line counts what ran and what was skipped.
    Ci,
    /// Install the peers of the transparency tests that come from npm and Go modules, into the target folder.
    Peers,
    /// Check the house rules that neither the compiler nor clippy knows.
    Tidy,
    /// Write the JSON schemas of the file kinds into `schemas/`.
    Schemas {
        /// Only compare them with what is checked in.
        #[arg(long)]
        check: bool,
    },
    Exactness(exactness::Exactness),
    Fuzz(fuzz::Fuzz),
    Soak(soak::Soak),
    /// Build the sidecar as it ships, one static file, and check that it is that.
    Dist,
    /// Measure. Figures are ratios within one run.
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Ci => ci::run(),
        Command::Peers => peers::run(),
        Command::Tidy => tidy::run(),
        Command::Schemas { check } => schemas::run(check),
        Command::Soak(soak) => soak::run(&soak),
        Command::Dist => dist::run(),
        Command::Exactness(exactness) => exactness::run(&exactness),
        Command::Fuzz(fuzz) => fuzz::run(&fuzz),
        Command::Bench { what } => bench::run(&what),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
