//! `aftershock inject`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aftershock_control::api::Verdict;
use aftershock_control::client::Client;
use aftershock_control::runner::{RoundOutcome, Runner};
use aftershock_core::plan::Plan;
use aftershock_core::trace::Trace;
use clap::Args;
use serde::Serialize;

use super::{AtControl, Elsewhere};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::{Ended, draw};

/// Run rounds of a scenario with a fault, and judge both the injection and the system.
///
/// Ends with 0 if every round is `injected` and finds what the fault declares, with 2 if not. A plan that cannot work is
/// refused before anything is sent.
#[derive(Debug, Args)]
pub(crate) struct Inject {
    /// The fault file.
    fault: PathBuf,
    /// The scenario file.
    #[arg(short, long, value_name = "FILE")]
    scenario: PathBuf,
    /// How many rounds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    #[command(flatten)]
    elsewhere: Elsewhere,
    #[command(flatten)]
    at: AtControl,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    scenario: String,
    fault: String,
    trials: u32,
    injected: u32,
    as_declared: u32,
    rounds: Vec<RoundOutcome>,
}

impl Inject {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let client = self.at.client()?;
        super::until_interrupted(Some(&client), self.inject(&client)).await
    }

    async fn inject(&self, client: &Client) -> anyhow::Result<Ended> {
        let scenario = super::scenario(&self.scenario, &self.elsewhere)?;
        let fault = super::fault(&self.fault)?;
        scenario.check(&fault)?;
        let runner = Runner::new(client.clone(), scenario);
        let progress = Progress::new("injecting", self.trials.into());
        let mut rounds = Vec::new();
        let mut stopped = None;
        for trial in 1..=self.trials {
            match runner.round(Some(&fault), &()).await {
                Ok(outcome) => rounds.push(outcome),
                Err(error) if rounds.is_empty() => return Err(error.into()),
                // What was found until then is not thrown away.
                Err(error) => {
                    stopped = Some(anyhow::Error::from(error).context(format!("stopped at trial {trial}")));
                    break;
                }
            }
            progress.step();
        }
        drop(progress);
        let count = |holds: fn(&RoundOutcome) -> bool| rounds.iter().filter(|round| holds(round)).count() as u32;
        let report = Report {
            schema: "aftershock.dev/inject/v1",
            scenario: runner.scenario().name.clone(),
            fault: fault.name.clone(),
            trials: self.trials,
            injected: count(|round| round.finished.verdict == Verdict::Injected),
            as_declared: count(|round| round.as_declared),
            rounds,
        };
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => human(&report, &fault.plan),
        }
        if let Some(error) = stopped {
            return Err(error);
        }
        let good = report.injected == report.trials && report.as_declared == report.trials;
        Ok(if good { Ended::AsExpected } else { Ended::Unexpected })
    }
}

fn human(report: &Report, plan: &Plan) {
    for fault in &plan.faults {
        output::line(format!("{} the {} when {}", fault.fault, fault.target, fault.guard));
    }
    if let [round] = &report.rounds[..] {
        sequences(round, plan);
        attempts(round);
    }
    let mut results: BTreeMap<String, u32> = BTreeMap::new();
    for round in &report.rounds {
        *results.entry(format!("{}, oracle {}", round.finished.verdict, round.oracle.found)).or_default() += 1;
    }
    for (result, times) in results {
        output::line(format!("{times} × {result}"));
    }
    for round in &report.rounds {
        let reasons = round.finished.faults.iter().flat_map(|fault| &fault.reasons);
        if report.rounds.len() == 1 || round.finished.verdict != Verdict::Injected {
            reasons.for_each(|reason| output::line(format!("  round {}: {reason}", round.id.0)));
        }
        if report.rounds.len() == 1 || !round.as_declared {
            let expected = round.expected_oracle;
            output::line(format!("  round {}: found {}, declared {expected}", round.id.0, round.oracle.found));
            round.oracle.differences.iter().for_each(|difference| output::line(format!("    {difference}")));
        }
    }
}

/// The message sequence of each execution of a round.
pub(crate) fn sequences(outcome: &RoundOutcome, plan: &Plan) {
    let mut traces: Vec<&Trace> = outcome.finished.traces.iter().collect();
    // Executions share no clock; people go by the wall.
    traces.sort_by_key(|trace| {
        trace.calls.iter().flat_map(|call| call.spans()).map(|span| span.request.unix_nanos).min()
    });
    for (index, trace) in traces.into_iter().enumerate() {
        if outcome.finished.traces.len() > 1 {
            output::line(format!("  execution {}", index + 1));
        }
        for line in draw::sequence::render(trace, plan) {
            output::line(format!("  {line}"));
        }
    }
}

/// What the client saw, attempt by attempt.
pub(crate) fn attempts(outcome: &RoundOutcome) {
    for attempt in &outcome.attempts {
        output::line(format!(
            "  client   attempt {}: {} after {:.0} ms",
            attempt.attempt,
            attempt.result,
            attempt.latency.0.as_secs_f64() * 1e3
        ));
    }
}
