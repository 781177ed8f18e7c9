//! `aftershock lab evaluate`: the injector's verdicts against the lab's own logs.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;

use aftershock_control::api::Verdict;
use aftershock_core::duration::Interval;
use aftershock_core::wire::ARBITER_TIMEOUT;
use aftershock_lab::{Load, Ordinary, Propagation};
use anyhow::{Context, bail};
use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;

use super::{NetworkArguments, PropagationArgument};
use crate::cases::{self, Case, SETTLED_WITHIN};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::stage::{self, Rehearsal, Setting};
use crate::{Ended, command};

/// Inject a fault many times, and compare each verdict with the lab's own logs and ledgers.
///
/// Starts its own lab and controller. The cases are built in; or it is a topology, a scenario and a fault of your own. Ends
/// with 2 unless every round is `injected`, its finding is the declared one, the logs agree, and no ordinary request was
/// interfered with.
#[derive(Debug, Args)]
pub(crate) struct Evaluate {
    /// Rounds with the fault, for each case.
    #[arg(long, default_value_t = 50)]
    trials: u32,
    /// Clean rounds before them, for each case.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Instances of each service.
    #[arg(long, value_name = "N", default_value = "1")]
    replicas: NonZeroU16,
    #[command(flatten)]
    network: NetworkArguments,
    /// Rounds in flight at once, each with its own token and business key.
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Ordinary requests beside the rounds, in a second.
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    ordinary: f64,
    /// Which request of the topology they are, instead of the first or the case's own.
    #[arg(long, value_name = "NAME")]
    ordinary_request: Option<String>,
    /// How long a pass waits for the arbiter, which numbers passes of services with several instances.
    #[arg(long, value_name = "TIME", default_value_t = Interval(ARBITER_TIMEOUT))]
    arbiter_timeout: Interval,
    /// Trace context that services hand on, instead of what the topology says.
    #[arg(long, value_enum)]
    propagation: Option<PropagationArgument>,
    /// Only these cases.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// A topology of your own, instead of the cases.
    #[arg(short, long, value_name = "FILE", requires = "scenario", requires = "fault", conflicts_with = "cases")]
    file: Option<PathBuf>,
    /// The scenario on it, with addresses of 127.77.1.0/24, where `lab up` puts the topology.
    #[arg(long, value_name = "FILE", requires = "file")]
    scenario: Option<PathBuf>,
    /// The fault in it; its guard is solved anew.
    #[arg(long, value_name = "FILE", requires = "file")]
    fault: Option<PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// One line of the evaluation.
#[derive(Debug, Serialize)]
struct Row {
    scenario: String,
    replicas: u16,
    parallel: u32,
    /// Ordinary requests beside the rounds.
    ordinary: u64,
    trials: u32,
    injected: u32,
    as_declared: u32,
    /// Trials in which verdict and logs say different things.
    disagree: u32,
    /// Ordinary requests that something on the way interfered with.
    ordinary_faulted: u64,
    /// How long a pass waits for the arbiter.
    arbiter_timeout_ms: u64,
    /// What was not as it should be, trial by trial.
    differences: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    propagation: String,
    rows: Vec<Row>,
    headers: Vec<Headers>,
}

/// The lengths of the hop headers that carried evidence of rounds on a topology, in bytes.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Headers {
    topology: String,
    replicas: u16,
    headers: u64,
    p50: u16,
    p95: u16,
    max: u16,
}

impl Headers {
    fn of(topology: String, replicas: u16, lengths: &BTreeMap<u16, u64>) -> Self {
        let headers: u64 = lengths.values().sum();
        // The smallest length that at least this many in a hundred do not exceed.
        let percentile = |percent: u64| {
            let mut so_far = 0;
            let reached = lengths.iter().find(|(_, count)| {
                so_far += **count;
                so_far * 100 >= headers * percent
            });
            reached.map_or(0, |(length, _)| *length)
        };
        Headers { topology, replicas, headers, p50: percentile(50), p95: percentile(95), max: percentile(100) }
    }
}

/// What one trial came to.
struct Trial {
    injected: bool,
    as_declared: bool,
    disagrees: bool,
    differences: Vec<String>,
}

impl Evaluate {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        let read = |path: &Option<PathBuf>| -> anyhow::Result<(String, String)> {
            let path = path.as_ref().context("expected --file, --scenario and --fault together")?;
            Ok((path.display().to_string(), command::read(path)?))
        };
        match &self.file {
            None => self.evaluate(&stage::choose(&self.cases)?).await,
            Some(_) => {
                let (topology, scenario, fault) = (read(&self.file)?, read(&self.scenario)?, read(&self.fault)?);
                let case = Case {
                    id: &fault.0,
                    story: "",
                    topology: (&topology.0, &topology.1),
                    scenario: (&scenario.0, &scenario.1),
                    fault: (&fault.0, &fault.1),
                    ordinary: None,
                    truth: Vec::new,
                };
                self.evaluate(&[&case]).await
            }
        }
    }

    async fn evaluate(&self, chosen: &[&Case<'_>]) -> anyhow::Result<Ended> {
        let propagation: Option<Propagation> = self.propagation.map(Into::into);
        let mut report = Report {
            schema: "aftershock.dev/evaluation/v1",
            propagation: propagation.map_or("as shipped", Propagation::name).to_owned(),
            rows: Vec::new(),
            headers: Vec::new(),
        };
        let arbiter_timeout = self.arbiter_timeout.0;
        let pods = self.network.pods();
        let setting = Setting { propagation, replicas: self.replicas, pods, rounds: self.rounds, arbiter_timeout };
        let usage = stage::rehearse(chosen, setting, async |rehearsal: Rehearsal<'_>| {
            report.rows.push(self.case(&rehearsal).await?);
            Ok(())
        })
        .await?;
        let replicas = self.replicas.get();
        let of = |(topology, lengths)| Headers::of(topology, replicas, &lengths);
        report.headers = usage.evidence.into_iter().map(of).collect();
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => human(&report),
        }
        let good = report.rows.iter().all(|row| {
            row.injected == row.trials
                && row.as_declared == row.trials
                && row.disagree == 0
                && row.ordinary_faulted == 0
        });
        Ok(if good { Ended::AsExpected } else { Ended::Unexpected })
    }

    async fn case(&self, rehearsal: &Rehearsal<'_>) -> anyhow::Result<Row> {
        let case = rehearsal.case;
        let load = self.load(rehearsal)?;
        let progress = Progress::new(case.id, self.trials.into());
        let trials = futures_util::stream::iter(1..=self.trials).map(async |number| {
            let trial = trial(rehearsal, number).await;
            progress.step();
            (number, trial)
        });
        let mut trials: Vec<(u32, Trial)> = trials.buffer_unordered(self.parallel as usize).collect().await;
        trials.sort_by_key(|(number, _)| *number);
        let trials: Vec<Trial> = trials.into_iter().map(|(_, trial)| trial).collect();
        let ordinary = match load {
            Some(load) => rehearsal.lab.unload(load, SETTLED_WITHIN).await.context("failed to read the lab's logs")?,
            None => Ordinary::default(),
        };
        let count = |holds: fn(&Trial) -> bool| trials.iter().filter(|trial| holds(trial)).count() as u32;
        let row = Row {
            scenario: case.id.to_owned(),
            replicas: self.replicas.get(),
            parallel: self.parallel,
            ordinary: ordinary.requests,
            trials: self.trials,
            injected: count(|trial| trial.injected),
            as_declared: count(|trial| trial.as_declared),
            disagree: count(|trial| trial.disagrees),
            ordinary_faulted: ordinary.faulted.len() as u64,
            arbiter_timeout_ms: self.arbiter_timeout.0.as_millis() as u64,
            differences: trials.into_iter().flat_map(|trial| trial.differences).chain(ordinary.faulted).collect(),
        };
        Ok(row)
    }

    /// Begin with ordinary traffic, if any is wanted.
    fn load(&self, rehearsal: &Rehearsal<'_>) -> anyhow::Result<Option<Load>> {
        if self.ordinary == 0.0 {
            return Ok(None);
        }
        let lab = rehearsal.lab;
        let first = || lab.topology().requests().first().map(|request| request.name.as_str());
        let Some(request) = self.ordinary_request.as_deref().or(rehearsal.case.ordinary).or_else(first) else {
            bail!("the topology has no `requests`, so there can be no ordinary traffic");
        };
        // Each case has keys of its own, also when several run one after the other in one lab.
        let prefix = format!("ordinary-{:08x}-", getrandom::u32()?);
        Ok(Some(lab.load(request, &prefix, self.ordinary)?))
    }
}

async fn trial(rehearsal: &Rehearsal<'_>, number: u32) -> Trial {
    let id = rehearsal.case.id;
    let judged = async {
        let outcome = rehearsal.inject().await?;
        let contradictions = rehearsal.contradictions(&outcome.key).await?;
        anyhow::Ok((outcome, contradictions))
    };
    let (outcome, contradictions) = match judged.await {
        Ok(judged) => judged,
        Err(error) => {
            let differences = vec![format!("{id} trial {number}: {error:#}")];
            return Trial { injected: false, as_declared: false, disagrees: false, differences };
        }
    };
    let verdict = outcome.finished.verdict;
    let injected = verdict == Verdict::Injected;
    let disagrees = cases::disagrees(verdict, &contradictions, &rehearsal.truth);
    let mut differences = Vec::new();
    let mut differs = |what: String| differences.push(format!("{id} trial {number}, key {}: {what}", outcome.key));
    if !injected {
        let of_faults = outcome.finished.faults.iter().flat_map(|fault| &fault.reasons);
        let reasons: Vec<&String> = outcome.finished.reasons.iter().chain(of_faults).collect();
        differs(format!("{verdict}: {reasons:?}"));
    }
    if !outcome.as_declared {
        differs(format!("oracle {}: {:?}", outcome.oracle.found, outcome.oracle.differences));
    }
    if disagrees {
        let shown = if injected { contradictions.join("; ") } else { "the fault happened".to_owned() };
        differs(format!("verdict {verdict}, but the lab's logs: {shown}"));
    }
    Trial { injected, as_declared: outcome.as_declared, disagrees, differences }
}

fn human(report: &Report) {
    let mut table = output::table([
        "case",
        "replicas",
        "parallel",
        "trials",
        "injected",
        "as declared",
        "logs disagree",
        "ordinary",
        "faulted",
    ]);
    for row in &report.rows {
        table.add_row([
            row.scenario.clone(),
            row.replicas.to_string(),
            row.parallel.to_string(),
            row.trials.to_string(),
            row.injected.to_string(),
            row.as_declared.to_string(),
            row.disagree.to_string(),
            row.ordinary.to_string(),
            row.ordinary_faulted.to_string(),
        ]);
    }
    output::line(table);
    for Headers { topology, headers, p50, p95, max, .. } in &report.headers {
        output::line(format!("{topology}: {headers} headers with evidence, p50 {p50}, p95 {p95}, at most {max} bytes"));
    }
    for difference in report.rows.iter().flat_map(|row| &row.differences) {
        output::line(format!("  {difference}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_lengths_that_so_many_headers_do_not_exceed() {
        let of = |lengths: &[(u16, u64)]| Headers::of("t".to_owned(), 1, &lengths.iter().copied().collect());
        let some = of(&[(10, 50), (20, 44), (30, 5), (40, 1)]);
        assert_eq!((some.headers, some.p50, some.p95, some.max), (100, 10, 30, 40));
        let one = of(&[(7, 1)]);
        assert_eq!((one.p50, one.p95, one.max), (7, 7, 7));
        let none = of(&[]);
        assert_eq!((none.headers, none.p50, none.max), (0, 0, 0));
    }
}
