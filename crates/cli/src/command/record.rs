//! `aftershock record`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aftershock_control::api::TraceSet;
use aftershock_control::client::Client;
use aftershock_control::runner::{RoundOutcome, Runner, Step};
use aftershock_core::name::{Api, Service};
use aftershock_core::trace::Trace;
use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::{AtControl, Elsewhere};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::{Ended, draw};

/// Run clean rounds of a scenario, and keep their traces at the controller.
///
/// Each must meet the scenario's own expectations and invariants; the first that does not stops the recording, with the
/// difference shown.
#[derive(Debug, Args)]
pub(crate) struct Record {
    /// The scenario file.
    scenario: PathBuf,
    /// How many rounds.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Also write the traces to this file, as `aftershock store export` does.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    elsewhere: Elsewhere,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

/// Clean rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Recording {
    schema: &'static str,
    scenario: String,
    rounds: Vec<i64>,
    /// Calls that carried no context, per calling service, over all rounds.
    unassociated: BTreeMap<Service, BTreeMap<Api, u64>>,
    pub(crate) traces: Vec<Trace>,
}

impl Recording {
    /// Record `rounds` clean rounds.
    pub(crate) async fn make(runner: &Runner, rounds: u32) -> anyhow::Result<Recording> {
        let progress = Progress::new(&format!("recording {}", runner.scenario().name), rounds.into());
        let count = |step: Step<'_>| {
            if let Step::Concluded(_) = step {
                progress.step();
            }
        };
        let outcomes: Vec<RoundOutcome> = runner.record(rounds as usize, &count).await?;
        let mut recording = Recording {
            schema: "aftershock.dev/recording/v1",
            scenario: runner.scenario().name.clone(),
            rounds: outcomes.iter().map(|outcome| outcome.id.0).collect(),
            unassociated: BTreeMap::new(),
            traces: Vec::new(),
        };
        for outcome in outcomes {
            for (service, apis) in outcome.finished.unassociated {
                let of_service = recording.unassociated.entry(service).or_default();
                apis.into_iter().for_each(|(api, calls)| *of_service.entry(api).or_default() += calls);
            }
            recording.traces.extend(outcome.finished.traces);
        }
        Ok(recording)
    }
}

impl Record {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let client = self.at.client()?;
        super::until_interrupted(Some(&client), self.record(&client)).await
    }

    async fn record(&self, client: &Client) -> anyhow::Result<Ended> {
        let scenario = super::scenario(&self.scenario, &self.elsewhere)?;
        let runner = super::runner(client, scenario)?;
        let recording = Recording::make(&runner, self.rounds).await?;
        if let Some(path) = &self.out {
            let set = TraceSet::new(recording.scenario.clone(), recording.traces.clone());
            std::fs::write(path, serde_json::to_vec_pretty(&set)?)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        match self.format {
            Format::Json => output::json(&recording)?,
            Format::Human => {
                output::line(summary(&recording));
                for line in recording.traces.first().map(draw::tree::render).unwrap_or_default() {
                    output::line(format!("  {line}"));
                }
            }
        }
        Ok(Ended::AsExpected)
    }
}

/// How many calls and Apis of a round were recorded, and which carried no context.
pub(crate) fn summary(recording: &Recording) -> String {
    let rounds = recording.rounds.len().max(1) as u64;
    let inner = || recording.traces.iter().flat_map(|trace| &trace.calls).filter(|call| call.caller.is_some());
    let apis: BTreeSet<&Api> = inner().map(|call| &call.api).collect();
    let lost = || recording.unassociated.values().flatten();
    let all_apis: BTreeSet<&Api> = apis.iter().copied().chain(lost().map(|(api, _)| api)).collect();
    let calls = inner().count() as u64;
    let all = calls + lost().map(|(_, calls)| calls).sum::<u64>();
    let mut text = format!("{rounds} clean rounds recorded; behind the entry, ");
    if all == calls {
        text.push_str(&format!("{} calls of {} Apis in each", calls / rounds, apis.len()));
        return text;
    }
    text.push_str(&format!(
        "{} of {} calls and {} of {} Apis in each carry context",
        calls / rounds,
        all / rounds,
        apis.len(),
        all_apis.len()
    ));
    for (service, apis) in &recording.unassociated {
        for (api, calls) in apis {
            text.push_str(&format!(
                "\n{service} calls {api} {} times without: passed on, never faulted",
                calls / rounds
            ));
        }
    }
    text
}
