//! `aftershock lab`.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use aftershock_lab::{Propagation, Topology, up};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::AtControl;
use crate::output::{self, Format};
use crate::stage::{self, Rehearsal};
use crate::{Ended, cases};

/// Mock services from a topology file: real processes, each with its sidecar.
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    Up(Up),
    Evaluate(Evaluate),
}

/// Start every service of a topology and a sidecar for each, until Ctrl-C.
///
/// Service i listens on 127.77.1.i (`--subnet` chooses another), its ledgers and event log are on port 30000 there.
/// Replica r of it is on 127.77.r.i, with an event log of its own; each replica answers for the ledgers of all.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// The topology.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Trace context that services hand on, instead of what the topology says.
    #[arg(long, value_enum)]
    propagation: Option<PropagationArgument>,
    /// Start no sidecars: services call each other directly.
    #[arg(long)]
    without_sidecars: bool,
    /// Instances of each service, each with a sidecar of its own.
    #[arg(long, value_name = "N", default_value = "1")]
    replicas: NonZeroU16,
    /// The /24 of loopback to use; replicas are in those after it.
    #[arg(long, value_name = "A.B.C", default_value = "127.77.1", value_parser = subnet)]
    subnet: [u8; 3],
    /// Keep logs and sidecar configurations here.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    at: AtControl,
}

/// Inject the built-in cases many times, and compare each verdict with the lab's own logs and ledgers.
///
/// Starts its own lab and controller. Ends with 2 unless every round is `injected`, its finding is the declared one, and
/// the logs agree.
#[derive(Debug, Args)]
pub(crate) struct Evaluate {
    /// Rounds with the fault, for each case.
    #[arg(long, default_value_t = 50)]
    trials: u32,
    /// Clean rounds before them, for each case.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Trace context that services hand on, instead of what the topology says.
    #[arg(long, value_enum)]
    propagation: Option<PropagationArgument>,
    /// Only these cases.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PropagationArgument {
    /// `traceparent` and `tracestate`.
    W3c,
    /// `uber-trace-id` and `uberctx-*`.
    Uber,
    /// Nothing.
    None,
}

impl From<PropagationArgument> for Propagation {
    fn from(argument: PropagationArgument) -> Self {
        match argument {
            PropagationArgument::W3c => Propagation::W3c,
            PropagationArgument::Uber => Propagation::Uber,
            PropagationArgument::None => Propagation::None,
        }
    }
}

fn subnet(text: &str) -> Result<[u8; 3], String> {
    let parts: Vec<u8> = text.split('.').filter_map(|part| part.parse().ok()).collect();
    match parts[..] {
        [127, b, c] if text.split('.').count() == 3 => Ok([127, b, c]),
        _ => Err("expected the first three numbers of a loopback address, such as 127.77.1".to_owned()),
    }
}

impl Lab {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        match self {
            Lab::Up(up) => up.run().await,
            Lab::Evaluate(evaluate) => super::until_interrupted(None, evaluate.run()).await,
        }
    }
}

impl Up {
    async fn run(self) -> anyhow::Result<Ended> {
        let topology = Topology::parse(&self.file.display().to_string(), &super::read(&self.file)?)?;
        let mut options = super::lab_options()?;
        options.propagation = self.propagation.map(Into::into);
        options.subnet = Some(self.subnet);
        options.replicas = self.replicas;
        options.directory = self.logs.clone();
        options.control = Some(self.at.control.clone());
        if self.without_sidecars {
            options.sidecar = None;
            options.control = None;
        }
        let interrupted = super::interrupted();
        tokio::pin!(interrupted);
        let mut lab = tokio::select! {
            lab = up(topology, &options) => lab?,
            signal = &mut interrupted => {
                output::remark(format!("{}: stopped while starting", signal?));
                return Ok(Ended::AsExpected);
            }
        };
        let mut table = output::table(["service", "callers reach it at", "ledgers and events at"]);
        for service in lab.topology().services() {
            let urls = |addresses: Vec<SocketAddr>| {
                addresses.iter().map(|address| format!("http://{address}")).collect::<Vec<_>>().join("\n")
            };
            table.add_row([service.name.clone(), urls(lab.addresses(&service.name)), urls(lab.admins(&service.name))]);
        }
        output::line(table);
        output::remark("running until Ctrl-C");
        loop {
            tokio::select! {
                signal = &mut interrupted => {
                    output::remark(format!("{}: stopping", signal?));
                    lab.stop(Duration::from_secs(5)).await;
                    return Ok(Ended::AsExpected);
                }
                // Children tell of their end by their exit status only.
                () = tokio::time::sleep(Duration::from_millis(200)) => {
                    if let Some(ended) = lab.ended().first() {
                        let (role, service, status) = (ended.role, &ended.service, ended.status);
                        anyhow::bail!("the {role} of {service} ended by itself ({status}):\n{}", ended.output);
                    }
                }
            }
        }
    }
}

/// One line of the evaluation.
#[derive(Debug, Serialize)]
struct Row {
    scenario: &'static str,
    trials: u32,
    injected: u32,
    as_declared: u32,
    disagree: u32,
    /// What was not as it should be, trial by trial.
    differences: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    propagation: String,
    rows: Vec<Row>,
}

impl Evaluate {
    async fn run(self) -> anyhow::Result<Ended> {
        let chosen = stage::choose(&self.cases)?;
        let propagation: Option<Propagation> = self.propagation.map(Into::into);
        let mut report = Report {
            schema: "aftershock.dev/evaluation/v1",
            propagation: propagation.map_or("as shipped", Propagation::name).to_owned(),
            rows: Vec::new(),
        };
        stage::rehearse(&chosen, propagation, self.rounds, async |rehearsal: Rehearsal<'_>| {
            report.rows.push(evaluate(&rehearsal, self.trials).await?);
            Ok(())
        })
        .await?;
        let good = report
            .rows
            .iter()
            .all(|row| row.injected == row.trials && row.as_declared == row.trials && row.disagree == 0);
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => {
                let mut table = output::table(["case", "trials", "injected", "as declared", "logs disagree"]);
                for row in &report.rows {
                    table.add_row([
                        row.scenario.to_owned(),
                        row.trials.to_string(),
                        row.injected.to_string(),
                        row.as_declared.to_string(),
                        row.disagree.to_string(),
                    ]);
                }
                output::line(table);
                for difference in report.rows.iter().flat_map(|row| &row.differences) {
                    output::line(format!("  {difference}"));
                }
            }
        }
        Ok(if good { Ended::AsExpected } else { Ended::Unexpected })
    }
}

async fn evaluate(rehearsal: &Rehearsal<'_>, trials: u32) -> anyhow::Result<Row> {
    let case: &cases::Case = rehearsal.case;
    let mut row = Row { scenario: case.id, trials, injected: 0, as_declared: 0, disagree: 0, differences: Vec::new() };
    let progress = crate::progress::Progress::new(case.id, trials.into());
    for trial in 1..=trials {
        let outcome = rehearsal.inject().await?;
        let verdict = outcome.finished.verdict;
        let injected = verdict == aftershock_control::api::Verdict::Injected;
        let contradictions = case.contradictions(rehearsal.lab, &outcome.key).await?;
        row.injected += u32::from(injected);
        row.as_declared += u32::from(outcome.as_declared);
        if !injected {
            let reasons: Vec<&String> = outcome.finished.faults.iter().flat_map(|fault| &fault.reasons).collect();
            row.differences.push(format!("{} trial {trial}: {verdict}: {reasons:?}", case.id));
        }
        if !outcome.as_declared {
            row.differences.push(format!(
                "{} trial {trial}: oracle {}: {:?}",
                case.id, outcome.oracle.found, outcome.oracle.differences
            ));
        }
        if injected != contradictions.is_empty() {
            row.disagree += 1;
            let shown = if injected { contradictions.join("; ") } else { "the fault happened".to_owned() };
            row.differences.push(format!("{} trial {trial}: verdict {verdict}, but the lab's logs: {shown}", case.id));
        }
        progress.step();
    }
    Ok(row)
}
