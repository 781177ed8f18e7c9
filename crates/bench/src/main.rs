//! Measures and wears out the sidecar, as it ships: `cargo xtask bench overhead` and `cargo xtask soak` start this.
//!
//! Load, origin, controller and collector are one thread of this process. What is measured are processes of their own.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool prints")]

mod client;
mod controller;
mod envoy;
mod histogram;
mod http1;
mod http2;
mod load;
mod machine;
mod message;
mod origin;
mod overhead;
mod process;
mod relay;
mod sidecar;
mod soak;
mod traffic;

use std::ffi::OsString;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Measure and wear out the sidecar.
#[derive(Parser)]
#[command(name = "aftershock-bench")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Overhead(overhead::Overhead),
    Soak(soak::Soak),
    /// Become a program that ends with its parent.
    #[command(hide = true)]
    Launch {
        #[arg(long)]
        cpu: Option<usize>,
        #[arg(long)]
        parent: u32,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Copy bytes both ways.
    #[command(hide = true)]
    Relay {
        #[arg(long)]
        to: SocketAddr,
    },
    /// Relay with a hyper server and a hyper client.
    #[command(hide = true)]
    Naive {
        #[arg(long)]
        to: SocketAddr,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Overhead(overhead) => on_one_thread(overhead.run()),
        Command::Soak(soak) => on_one_thread(soak.run()),
        Command::Launch { cpu, parent, command } => process::launch(cpu, parent, &command),
        Command::Relay { to } => relay::plain(to),
        Command::Naive { to } => relay::naive(to),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until it is done, or this process is told to end; either way it takes its children along.
fn on_one_thread(run: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            done = run => done,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("told to end"),
        }
    })
}
