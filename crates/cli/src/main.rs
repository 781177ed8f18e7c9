//! The binary `aftershock`: everything a user does, and the sidecar and the lab's services by executing itself again.
//!
//! Results go to stdout, progress and logs to stderr. Exit codes: 0 done and as expected, 2 an expectation failed, 1 an
//! error, usage errors included.

mod cases;
mod command;
mod draw;
mod output;
mod progress;
mod stage;

use std::ffi::OsStr;
use std::process::ExitCode;

use aftershock_proxy::CommandError;
use clap::{Parser, Subcommand};

use crate::command::{control, demo, disarm, explain, generate, inject, lab, record, rounds, schema, status, store};

/// Make a system of services fail at exactly the wrong moment, and see what it makes of it.
///
/// Record clean rounds of a scenario, synthesize the guard that marks the moment, inject the fault once, and judge both
/// the injection and the system. `aftershock demo` shows it all on services of its own.
#[derive(Parser)]
#[command(name = "aftershock", version, max_term_width = 100, propagate_version = false)]
#[command(after_help = "Exit codes: 0 done and as expected, 2 an expectation failed, 1 an error.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Record(record::Record),
    Generate(Box<generate::Generate>),
    Inject(inject::Inject),
    Explain(explain::Explain),
    Rounds(rounds::Rounds),
    #[command(subcommand)]
    Store(store::Store),
    Status(status::Status),
    Disarm(disarm::Disarm),
    #[command(subcommand)]
    Control(control::Control),
    #[command(subcommand)]
    Lab(lab::Lab),
    Schema(schema::Schema),
}

/// What a command came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Done and as expected.
    AsExpected,
    /// Done, but something was not as expected; it was said what.
    Unexpected,
}

fn main() -> ExitCode {
    // Labs start these by the dozen: they do without the command line of everything else, which takes memory.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(OsStr::to_str) {
        Some("proxy") => return exit(command::sidecar(words.collect())),
        Some("lab-service") => return exit(command::lab_service()),
        _ => {}
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    exit(run(arguments.command))
}

/// Help and version come as errors too, and are none.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

fn exit(ended: anyhow::Result<Ended>) -> ExitCode {
    match ended {
        Ok(_) if !output::complete() => ExitCode::from(1),
        Ok(Ended::AsExpected) => ExitCode::SUCCESS,
        Ok(Ended::Unexpected) => ExitCode::from(2),
        Err(error) => match error.downcast_ref() {
            Some(CommandError::Usage(error)) => usage(error),
            _ => {
                output::error(&error);
                ExitCode::from(1)
            }
        },
    }
}

fn run(command: Command) -> anyhow::Result<Ended> {
    if let Command::Schema(schema) = command {
        return schema.run();
    }
    output::logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Demo(demo) => demo.run().await,
            Command::Record(record) => record.run().await,
            Command::Generate(generate) => generate.run().await,
            Command::Inject(inject) => inject.run().await,
            Command::Explain(explain) => explain.run().await,
            Command::Rounds(rounds) => rounds.run().await,
            Command::Store(store) => store.run().await,
            Command::Status(status) => status.run().await,
            Command::Disarm(disarm) => disarm.run().await,
            Command::Control(control) => control.run().await,
            Command::Lab(lab) => lab.run().await,
            Command::Schema(_) => unreachable!("handled before"),
        }
    })
}
