//! `aftershock record`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aftershock_control::api::{SidecarStatus, TraceSet};
use aftershock_control::client::Client;
use aftershock_control::runner::{RoundOutcome, Runner, Step};
use aftershock_core::name::{Api, Service};
use aftershock_core::trace::Trace;
use aftershock_core::wire::Unseen;
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
    /// Connections whose calls cannot be seen, per calling service, since its sidecars started.
    unseen: BTreeMap<Service, Vec<Unseen>>,
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
            unseen: BTreeMap::new(),
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
        let mut recording = Recording::make(&runner, self.rounds).await?;
        recording.unseen = unseen(&client.status().await?.sidecars);
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

/// Connections that cannot be read, those of the instances of a service together. They may last for many rounds, so they
/// are counted since the sidecars started.
pub(crate) fn unseen(sidecars: &[SidecarStatus]) -> BTreeMap<Service, Vec<Unseen>> {
    let mut all: BTreeMap<Service, BTreeMap<(&str, Option<&str>), u64>> = BTreeMap::new();
    for sidecar in sidecars {
        for seen in &sidecar.unseen {
            let of_service = all.entry(sidecar.service.clone()).or_default();
            *of_service.entry((&seen.to, seen.server_name.as_deref())).or_default() += seen.connections;
        }
    }
    let list = |places: BTreeMap<(&str, Option<&str>), u64>| {
        let unseen = places.into_iter().map(|((to, server_name), connections)| Unseen {
            to: to.to_owned(),
            server_name: server_name.map(str::to_owned),
            connections,
        });
        unseen.collect()
    };
    all.into_iter().map(|(service, places)| (service, list(places))).collect()
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
    } else {
        text.push_str(&format!(
            "{} of {} calls and {} of {} Apis in each carry context",
            calls / rounds,
            all / rounds,
            apis.len(),
            all_apis.len()
        ));
    }
    for (service, apis) in &recording.unassociated {
        for (api, calls) in apis {
            text.push_str(&format!(
                "\n{service} calls {api} {} times without: passed on, never faulted",
                calls / rounds
            ));
        }
    }
    for line in unseen_lines(&recording.unseen) {
        text.push('\n');
        text.push_str(&line);
    }
    text
}

/// What to say of connections that cannot be read.
pub(crate) fn unseen_lines(unseen: &BTreeMap<Service, Vec<Unseen>>) -> impl Iterator<Item = String> {
    let all = unseen.iter().flat_map(|(service, places)| places.iter().map(move |place| (service, place)));
    all.map(|(service, Unseen { to, server_name, connections })| {
        let plural = if *connections == 1 { "connection" } else { "connections" };
        let how = server_name.as_ref().map_or("not HTTP".to_owned(), |name| format!("TLS, server name {name}"));
        format!("{service}: {connections} {plural} to {to} cannot be seen ({how}): passed on, never faulted")
    })
}

#[cfg(test)]
mod tests {
    use aftershock_core::id::ObserverId;

    use super::*;

    #[test]
    fn what_cannot_be_seen_is_named_for_all_instances_of_a_service_together() {
        let unseen_at = |to: &str, name: Option<&str>, connections| Unseen {
            to: to.to_owned(),
            server_name: name.map(str::to_owned),
            connections,
        };
        let sidecar = |service: &str, observer, unseen| SidecarStatus {
            service: service.parse().unwrap(),
            observer: ObserverId(observer),
            version: String::new(),
            inbound: Vec::new(),
            associations: BTreeMap::new(),
            ignored: BTreeMap::new(),
            lost: 0,
            evidence: BTreeMap::new(),
            unseen,
        };
        let recording = Recording {
            schema: "",
            scenario: String::new(),
            rounds: vec![1],
            unassociated: BTreeMap::new(),
            unseen: unseen(&[
                sidecar("shop", 1, vec![unseen_at("10.0.0.7:3306", None, 1), unseen_at("bank", Some("bank.test"), 2)]),
                sidecar("shop", 2, vec![unseen_at("bank", Some("bank.test"), 3)]),
                sidecar("stock", 3, Vec::new()),
            ]),
            traces: Vec::new(),
        };
        let text = summary(&recording);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "shop: 1 connection to 10.0.0.7:3306 cannot be seen (not HTTP): passed on, never faulted",
                "shop: 5 connections to bank cannot be seen (TLS, server name bank.test): passed on, never faulted",
            ]
        );
    }
}
