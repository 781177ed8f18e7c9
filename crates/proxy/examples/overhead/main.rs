//! What one sidecar costs: CPU per request (user and system) of its process over that of a plain TCP relay.
//!
//! Origin, relay and sidecar are processes of their own (this program, started again); the load comes from this one. HTTP/1.1:
//! 16 connections that are kept, a POST of 1 KiB answered by 1 KiB. h2c: 4 connections with 4 streams each, framed like
//! unary gRPC calls of 1 KiB. Each process has one thread. Relay and sidecar take turns, since machines are noisy; medians
//! over the rounds are reported, and the median of the ratios within each round. A failed request fails the run.
//!
//! The sidecar is the one that ships: connection driver, editors and brain, registered, with keys and a registry, before
//! an application (`--decider pass` leaves the brain out). Its traffic belongs to no round.

mod http1;
mod http2;
mod load;
#[path = "../shared/pass.rs"]
mod pass;
mod process;
mod serve;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

use load::Measured;
use process::Process;

/// CPU per request through one sidecar over that of a plain TCP relay.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Rounds; relay and sidecar are measured once in each.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of load in each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// What decides in the sidecar.
    #[arg(long, value_enum, default_value_t = Decide::Brain)]
    decider: Decide,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// What a process of the benchmark does; for its own use.
#[derive(Subcommand)]
enum Role {
    /// Answer requests.
    #[command(hide = true)]
    Origin,
    /// Copy bytes.
    #[command(hide = true)]
    Relay { to: SocketAddr },
    /// Be a sidecar.
    #[command(hide = true)]
    Sidecar { to: SocketAddr, decider: Decide },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Human,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Decide {
    /// The sidecar's brain.
    Brain,
    /// Nobody: the editors alone.
    Pass,
}

/// A protocol under load.
#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    H2c,
}

/// The figures of one protocol, microseconds of CPU per request.
#[derive(Serialize)]
struct Figures {
    relay_us: f64,
    sidecar_us: f64,
    /// Median over the rounds of the sidecar's figure over the relay's.
    ratio: f64,
    /// Requests that the sidecar carried.
    requests: u64,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    decider: Decide,
    rounds: usize,
    http1: Figures,
    h2c: Figures,
    /// The sidecar's largest resident set.
    sidecar_rss_kib: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "overhead: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.role {
        Some(Role::Origin) => serve::origin(),
        Some(Role::Relay { to }) => serve::relay(to),
        Some(Role::Sidecar { to, decider }) => serve::sidecar(to, decider),
        None => print(&measure(arguments)?, arguments.format),
    }
}

fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let origin = Process::start(&["origin"])?;
    let to = origin.address().to_string();
    let relay = Process::start(&["relay", &to])?;
    let decider = arguments.decider.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
    let sidecar = Process::start(&["sidecar", &to, &decider])?;
    let time = Duration::from_secs_f64(arguments.seconds);
    let figures = |protocol: Protocol| -> anyhow::Result<Figures> {
        // What is set up once is not what a request costs.
        for process in [&relay, &sidecar] {
            load::run(process, protocol, time.min(Duration::from_millis(300)))?;
        }
        let mut rounds: Vec<(Measured, Measured)> = Vec::new();
        for round in 0..arguments.rounds.max(1) {
            let turn = |process| load::run(process, protocol, time);
            // Whoever comes first may find another machine than whoever comes second.
            rounds.push(if round % 2 == 0 {
                let relay = turn(&relay)?;
                (relay, turn(&sidecar)?)
            } else {
                let sidecar = turn(&sidecar)?;
                (turn(&relay)?, sidecar)
            });
        }
        Ok(Figures {
            relay_us: median(rounds.iter().map(|(relay, _)| relay.micros())),
            sidecar_us: median(rounds.iter().map(|(_, sidecar)| sidecar.micros())),
            ratio: median(rounds.iter().map(|(relay, sidecar)| sidecar.micros() / relay.micros())),
            requests: rounds.iter().map(|(_, sidecar)| sidecar.requests).sum(),
        })
    };
    let (http1, h2c) = (figures(Protocol::Http1)?, figures(Protocol::H2c)?);
    Ok(Report {
        schema: "aftershock.dev/overhead/v1alpha1",
        decider: arguments.decider,
        rounds: arguments.rounds.max(1),
        http1,
        h2c,
        sidecar_rss_kib: sidecar.peak_rss_kib()?,
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(report: &Report, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(report)?)?,
        Format::Human => {
            writeln!(out, "CPU per request, medians of {} rounds", report.rounds)?;
            for (name, f) in [("HTTP/1.1, 16 connections", &report.http1), ("h2c, 4 connections x 4", &report.h2c)] {
                writeln!(
                    out,
                    "{name:<26} relay {:>6.2} us   sidecar {:>6.2} us   ratio {:.2}   ({} requests)",
                    f.relay_us, f.sidecar_us, f.ratio, f.requests
                )?;
            }
            writeln!(out, "sidecar: {:.1} MiB resident at most", report.sidecar_rss_kib as f64 / 1024.0)?;
        }
    }
    Ok(())
}
