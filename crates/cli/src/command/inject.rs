//! `aftershock inject`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use aftershock_control::api::Verdict;
use aftershock_control::client::Client;
use aftershock_control::runner::{RoundOutcome, RunError, Runner};
use aftershock_control::scenario::TemporalFault;
use aftershock_core::duration::Interval;
use aftershock_core::plan::Plan;
use aftershock_core::trace::Trace;
use clap::Args;
use futures_util::{StreamExt as _, stream};
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
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// How many rounds are in flight at once, each with its own token and business key.
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// How long a call waits for the arbiter, where several instances share a count; the controller's own time if left
    /// out.
    #[arg(long, value_name = "TIME")]
    arbiter_timeout: Option<Interval>,
    #[command(flatten)]
    elsewhere: Elsewhere,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    scenario: String,
    fault: String,
    trials: u32,
    parallel: u32,
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
        let mut runner = super::runner(client, scenario)?;
        if let Some(timeout) = self.arbiter_timeout {
            runner = runner.with_arbiter_timeout(timeout.0);
        }
        let (rounds, stopped) = self.trials(&runner, &fault).await?;
        let count = |holds: fn(&RoundOutcome) -> bool| rounds.iter().filter(|round| holds(round)).count() as u32;
        let report = Report {
            schema: "aftershock.dev/inject/v1",
            scenario: runner.scenario().name.clone(),
            fault: fault.name.clone(),
            trials: self.trials,
            parallel: self.parallel,
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

    /// The rounds that came to their end, in the order of their trials, and what stopped the others from being run. No
    /// trial begins after one was stopped or ended early by the controller; those in flight come to their end.
    async fn trials(
        &self,
        runner: &Runner,
        fault: &TemporalFault,
    ) -> anyhow::Result<(Vec<RoundOutcome>, Option<anyhow::Error>)> {
        let progress = Progress::new("injecting", self.trials.into());
        let begun = AtomicU32::new(0);
        let stop = AtomicBool::new(false);
        let trials = stream::iter(1..=self.trials)
            .take_while(|_| std::future::ready(!stop.load(Ordering::Relaxed)))
            .map(|trial| {
                begun.fetch_add(1, Ordering::Relaxed);
                async move { (trial, runner.round(Some(fault), &()).await) }
            })
            .buffer_unordered(self.parallel as usize);
        let mut trials = pin!(trials);
        let mut rounds: Vec<(u32, RoundOutcome)> = Vec::new();
        let mut stopped: Vec<(u32, RunError)> = Vec::new();
        while let Some((trial, result)) = trials.next().await {
            match result {
                Ok(outcome) => {
                    stop.fetch_or(outcome.ended_early, Ordering::Relaxed);
                    rounds.push((trial, outcome));
                }
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    stopped.push((trial, error));
                }
            }
            progress.step();
            let other = rounds.iter().filter(|(_, round)| !as_expected(round)).count() + stopped.len();
            let in_flight = begun.load(Ordering::Relaxed) as usize - rounds.len() - stopped.len();
            progress.say(format!("{in_flight} in flight, {other} not as expected"));
        }
        rounds.sort_by_key(|(trial, _)| *trial);
        let rounds: Vec<RoundOutcome> = rounds.into_iter().map(|(_, outcome)| outcome).collect();
        let first = stopped.into_iter().min_by_key(|(trial, _)| *trial);
        match first {
            Some((_, error)) if rounds.is_empty() => Err(error.into()),
            // What was found until then is not thrown away.
            Some((trial, error)) => {
                Ok((rounds, Some(anyhow::Error::from(error).context(format!("stopped at trial {trial}")))))
            }
            None => Ok((rounds, None)),
        }
    }
}

fn as_expected(round: &RoundOutcome) -> bool {
    round.finished.verdict == Verdict::Injected && round.as_declared
}

fn human(report: &Report, plan: &Plan) {
    for fault in &plan.faults {
        output::line(format!("{} the {} when {}", fault.fault, fault.target, fault.guard));
    }
    plan.cuts.iter().for_each(|channel| output::line(format!("cut {channel}")));
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
    if report.rounds.iter().any(|round| round.ended_early) && (report.rounds.len() as u64) < report.trials.into() {
        output::line(format!(
            "{} of {} rounds: none began after one was ended early",
            report.rounds.len(),
            report.trials
        ));
    }
    if plan.len() > 1 {
        of_each_fault(&report.rounds, plan);
    }
    for round in &report.rounds {
        let id = round.id.0;
        if report.rounds.len() == 1 || round.finished.verdict != Verdict::Injected {
            reasons(round, plan).for_each(|reason| output::line(format!("  round {id}: {reason}")));
        }
        if report.rounds.len() == 1 || !round.as_declared {
            output::line(format!("  round {id}: found {}, declared {}", round.oracle.found, round.expected_oracle));
            round.oracle.differences.iter().for_each(|difference| output::line(format!("    {difference}")));
        }
        round.notes.iter().for_each(|note| output::line(format!("  round {id}: {note}")));
    }
}

/// How often each fault and each cut of a plan had which verdict.
fn of_each_fault(rounds: &[RoundOutcome], plan: &Plan) {
    let finished = || rounds.iter().map(|round| &round.finished);
    for (rule, fault) in plan.faults.iter().enumerate() {
        let of_fault = finished().flat_map(|round| &round.faults).filter(|fault| fault.rule == rule);
        let verdicts = counted(of_fault.map(|fault| fault.verdict));
        output::line(format!("  fault {}, {} the {}: {verdicts}", rule + 1, fault.fault, fault.target));
    }
    for channel in &plan.cuts {
        let of_cut = finished().flat_map(|round| &round.cuts).filter(|cut| cut.channel == *channel);
        output::line(format!("  cut {channel}: {}", counted(of_cut.map(|cut| cut.verdict))));
    }
}

/// How often which verdict was found.
fn counted(verdicts: impl Iterator<Item = Verdict>) -> String {
    let mut times: BTreeMap<Verdict, u32> = BTreeMap::new();
    verdicts.for_each(|verdict| *times.entry(verdict).or_default() += 1);
    times.iter().map(|(verdict, times)| format!("{times} × {verdict}")).collect::<Vec<_>>().join(", ")
}

/// Why a round's verdict is what it is; of several faults and cuts, of which.
fn reasons<'a>(round: &'a RoundOutcome, plan: &Plan) -> impl Iterator<Item = String> + use<'a> {
    let several = plan.len() > 1;
    let told = move |of: String, reasons: &'a [String]| {
        reasons.iter().map(move |reason| if several { format!("{of}: {reason}") } else { reason.clone() })
    };
    let of_faults = round.finished.faults.iter();
    let of_faults =
        of_faults.flat_map(move |fault| told(format!("fault {} {}", fault.rule + 1, fault.verdict), &fault.reasons));
    let of_cuts = round.finished.cuts.iter();
    let of_cuts = of_cuts.flat_map(move |cut| told(format!("cut {} {}", cut.channel, cut.verdict), &cut.reasons));
    round.finished.reasons.iter().cloned().chain(of_faults).chain(of_cuts)
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
