//! A stage of our own: a controller in this process and a running lab, for the demo and for evaluations.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use aftershock_control::client::Client;
use aftershock_control::runner::{RoundOutcome, Runner};
use aftershock_control::scenario::TemporalFault;
use aftershock_control::server::{Controller, Options};
use aftershock_core::name::nearest;
use aftershock_core::wire::ARBITER_TIMEOUT;
use aftershock_generate::Synthesis;
use aftershock_lab::net::Family;
use aftershock_lab::truth::Question;
use aftershock_lab::{Propagation, Role, RunningLab, Topology, up};
use anyhow::Context;

use crate::cases::{self, Case};
use crate::command;
use crate::command::record::Recording;

/// How long sidecars may take to register.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);
/// How long the processes of a lab may take to end.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// How a stage is set, beyond the case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Replaces what the topology says of propagation.
    pub(crate) propagation: Option<Propagation>,
    /// Instances of each service.
    pub(crate) replicas: NonZeroU16,
    /// The network of pods that it is on, if not on loopback.
    pub(crate) pods: Option<Family>,
    /// Clean rounds of each case.
    pub(crate) rounds: u32,
    /// How long a pass waits for the arbiter.
    pub(crate) arbiter_timeout: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            propagation: None,
            replicas: NonZeroU16::MIN,
            pods: None,
            rounds: 10,
            arbiter_timeout: ARBITER_TIMEOUT,
        }
    }
}

/// A case made ready: clean rounds recorded, its guard solved for.
pub(crate) struct Rehearsal<'a> {
    pub(crate) case: &'a Case<'a>,
    pub(crate) lab: &'a RunningLab,
    pub(crate) recording: Recording,
    pub(crate) synthesis: Synthesis,
    fault: TemporalFault,
    pub(crate) truth: Vec<Question>,
    runner: Runner,
}

impl Rehearsal<'_> {
    /// One round with the fault.
    pub(crate) async fn inject(&self) -> anyhow::Result<RoundOutcome> {
        Ok(self.runner.round(Some(&self.fault), &()).await?)
    }

    /// The fault with its solved guard.
    pub(crate) fn fault(&self) -> &TemporalFault {
        &self.fault
    }

    /// What the lab's own logs and ledgers hold against the claim that the fault happened in the round with this key, in
    /// its window and nowhere else. Nothing if they agree.
    pub(crate) async fn contradictions(&self, key: &str) -> anyhow::Result<Vec<String>> {
        cases::contradictions(self.lab, key, &self.truth).await
    }
}

/// What was learnt of the processes while they ran.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// The largest peak of resident memory of a sidecar, KiB (VmHWM).
    pub(crate) sidecar_rss_kib: u64,
    /// How many sidecars there were.
    pub(crate) sidecars: usize,
    /// Hop headers with evidence of rounds, by topology and length in bytes.
    pub(crate) evidence: BTreeMap<String, BTreeMap<u16, u64>>,
}

/// The cases with these names, or all.
pub(crate) fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Case<'static>>> {
    if names.is_empty() {
        return Ok(cases::ALL.iter().collect());
    }
    let find = |name: &String| {
        cases::ALL.iter().find(|case| case.id == name).with_context(|| {
            let known = cases::ALL.iter().map(|case| case.id);
            let near = nearest(name, known.clone()).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("no case {name:?}{near} (there are {})", known.collect::<Vec<_>>().join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// Put every case of `chosen` on a stage, record its clean rounds, solve its guard, and hand it to `act`. Cases that share
/// a topology share a running lab. Everything started is stopped, also on an error.
pub(crate) async fn rehearse(
    chosen: &[&Case<'_>],
    setting: Setting,
    mut act: impl AsyncFnMut(Rehearsal<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Usage> {
    let mut usage = Usage::default();
    let mut topologies: Vec<&str> = chosen.iter().map(|case| case.topology_name()).collect();
    topologies.dedup();
    for topology in topologies {
        let of_topology: Vec<&Case<'_>> =
            chosen.iter().copied().filter(|case| case.topology_name() == topology).collect();
        let stage = Stage::set(of_topology[0].topology()?, setting).await?;
        for case in of_topology {
            let rehearsal = stage.rehearsal(case, setting.rounds).await?;
            act(rehearsal).await.with_context(|| format!("in case {}", case.id))?;
        }
        stage.measure(&mut usage).await?;
        stage.strike().await;
    }
    Ok(usage)
}

/// A controller in this process, and a lab whose sidecars have registered with it.
pub(crate) struct Stage {
    controller: Controller,
    pub(crate) client: Client,
    pub(crate) lab: RunningLab,
}

impl Stage {
    pub(crate) async fn set(topology: Topology, setting: Setting) -> anyhow::Result<Stage> {
        let options = Options { arbiter_timeout: setting.arbiter_timeout, ..Options::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let controller = Controller::start(listener, options).await?;
        let url = format!("http://{}", controller.address());
        let mut options = command::lab_options()?;
        options.control = Some(url.clone().into());
        options.propagation = setting.propagation;
        options.replicas = setting.replicas;
        options.pods = setting.pods;
        let client = Client::new(&url)?;
        let lab = up(topology, &options).await?;
        let wanted = lab.topology().services().len() * usize::from(lab.replicas());
        command::status::registered(&client, wanted, REGISTER_WITHIN).await?;
        Ok(Stage { controller, client, lab })
    }

    async fn rehearsal<'a>(&'a self, case: &'a Case<'a>, rounds: u32) -> anyhow::Result<Rehearsal<'a>> {
        let scenario = case.scenario(&self.lab)?;
        let mut fault = case.fault()?;
        scenario.check(&fault)?;
        let runner = command::runner(&self.client, scenario)?;
        let recording = Recording::make(&runner, rounds).await?;
        let synthesis = command::generate::resolve(&fault, 0, None, &recording.traces)?;
        fault.plan.faults[0] = synthesis.tfic.clone();
        let mut truth = cases::windows(&self.lab, &fault.plan)?;
        truth.extend((case.truth)());
        Ok(Rehearsal { case, lab: &self.lab, recording, synthesis, fault, truth, runner })
    }

    async fn measure(&self, usage: &mut Usage) -> anyhow::Result<()> {
        for (role, _, pid) in self.lab.processes() {
            if role == Role::Sidecar {
                usage.sidecars += 1;
                usage.sidecar_rss_kib = usage.sidecar_rss_kib.max(peak_rss_kib(pid).unwrap_or(0));
            }
        }
        let lengths = usage.evidence.entry(self.lab.topology().name().to_owned()).or_default();
        for sidecar in self.client.status().await?.sidecars {
            sidecar.evidence.into_iter().for_each(|(length, count)| *lengths.entry(length).or_default() += count);
        }
        Ok(())
    }

    pub(crate) async fn strike(self) {
        self.controller.shutdown().await;
        self.lab.stop(STOP_WITHIN).await;
    }
}

/// VmHWM of a process, proc(5).
fn peak_rss_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
