//! What is measured: nothing between load and origin, two relays, our sidecar, Envoy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use aftershock_core::id::Token;
use aftershock_core::span::{Association, CallSpan, PassedBy};
use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::Programs;
use crate::controller::{Account, Controller};
use crate::envoy;
use crate::load::{Load, Measured, Protocol};
use crate::machine::Cpus;
use crate::process::Process;
use crate::sidecar::Sidecar;
use crate::traffic::Traffic;

/// Which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    NoProxy,
    TcpRelay,
    HyperRelay,
    Aftershock,
    Envoy,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Kind::NoProxy, Kind::TcpRelay, Kind::HyperRelay, Kind::Aftershock, Kind::Envoy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::NoProxy => "no proxy",
            Kind::TcpRelay => "tcp relay",
            Kind::HyperRelay => "hyper relay",
            Kind::Aftershock => "aftershock",
            Kind::Envoy => "envoy",
        }
    }
}

/// What a sidecar is told to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Executions of rounds, and the load belongs to some.
    Rounds,
    /// All, and the load is ordinary.
    All,
}

/// One of them, running.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) process: Option<Process>,
    controller: Option<(Rc<Controller>, Record)>,
    http1: SocketAddr,
    h2c: SocketAddr,
}

/// Where they run, and from what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) cpus: Cpus,
    /// For their configurations.
    pub(crate) folder: &'a Path,
    pub(crate) origin: SocketAddr,
}

impl Subject {
    pub(crate) async fn start(kind: Kind, record: Record, place: Place<'_>) -> anyhow::Result<Self> {
        let Place { programs, cpus, folder, origin } = place;
        let one = |process, controller, address| Subject { kind, process, controller, http1: address, h2c: address };
        let relay = |role| Process::role(role, Some(cpus.subject), origin);
        Ok(match kind {
            Kind::NoProxy => one(None, None, origin),
            Kind::TcpRelay => relay("relay").map(|(process, address)| one(Some(process), None, address))?,
            Kind::HyperRelay => relay("naive").map(|(process, address)| one(Some(process), None, address))?,
            Kind::Aftershock => {
                let record_as = if record == Record::All { "all" } else { "tagged" };
                let settings =
                    format!("inbound:\n  - {{listen: '127.0.0.1:0', to: '{origin}'}}\nrecord: {record_as}\n");
                let (cpu, program) = (Some(cpus.subject), &programs.sidecar);
                let Sidecar { process, controller, address, .. } =
                    Sidecar::start("origin", cpu, program, folder, &settings, BTreeMap::new()).await?;
                one(Some(process), Some((controller, record)), address)
            }
            Kind::Envoy => {
                let program = programs.envoy.as_ref().context("no Envoy to start")?;
                let (process, http1, h2c) = envoy::start(program, cpus.subject, origin, folder).await?;
                Subject { kind, process: Some(process), controller: None, http1, h2c }
            }
        })
    }

    /// Puts it under load. A sidecar must have recorded every request, and done nothing to any.
    pub(crate) async fn load(&mut self, load: &Load) -> anyhow::Result<Measured> {
        let address = match load.shape.protocol {
            Protocol::Http1 => self.http1,
            Protocol::H2c => self.h2c,
        };
        let before = self.account().await?;
        let traffic = Rc::new(self.traffic().await?);
        let measured = load.run(address, &traffic, self.process.as_ref()).await?;
        self.settle(&before, &traffic, measured.all).await?;
        Ok(measured)
    }

    /// Opens connections that stay idle after one request each, and returns what is resident of it then.
    pub(crate) async fn idle_rss_kib(&mut self, connections: usize) -> anyhow::Result<u64> {
        let before = self.account().await?;
        let traffic = Rc::new(self.traffic().await?);
        let kept = crate::load::idle(self.http1, &traffic, connections).await?;
        self.settle(&before, &traffic, connections as u64).await?;
        let rss = self.rss_kib()?;
        drop(kept);
        Ok(rss)
    }

    pub(crate) fn rss_kib(&self) -> anyhow::Result<u64> {
        self.process.as_ref().context("there is no process")?.rss_kib()
    }

    async fn account(&self) -> anyhow::Result<Account> {
        match &self.controller {
            Some((controller, _)) => controller.account().await,
            None => Ok(Account::default()),
        }
    }

    /// Everybody gets the same requests.
    async fn traffic(&self) -> anyhow::Result<Traffic> {
        match &self.controller {
            Some((controller, Record::Rounds)) => Traffic::of_rounds(Rc::clone(controller)).await,
            Some((_, Record::All)) => Ok(Traffic::ordinary()),
            None => Ok(Traffic::of_nobody()),
        }
    }

    async fn settle(&mut self, before: &Account, traffic: &Traffic, requests: u64) -> anyhow::Result<()> {
        if let Some(process) = &mut self.process {
            process.check()?;
        }
        let Some((controller, record)) = &self.controller else { return Ok(()) };
        let after = controller.account().await?;
        let tokens = traffic.end();
        controller.check()?;
        let exact = |account: &Account| account.counters.associations.get(&Association::Exact).copied().unwrap_or(0);
        let lost = after.flushed.lost - before.flushed.lost;
        ensure!(lost == 0, "{lost} spans of {requests} were lost");
        for (what, count) in [
            ("spans were exported", after.flushed.exported - before.flushed.exported),
            ("spans arrived", after.spans - before.spans),
            ("calls were associated", exact(&after) - exact(before)),
        ] {
            ensure!(count == requests, "{count} {what}, expected {requests}");
        }
        ensure!(after.fired == before.fired, "a rule fired");
        ensure!(after.counters.ignored == before.counters.ignored, "ignored: {:?}", after.counters.ignored);
        controller.take_kept()?.iter().try_for_each(|span| check(span, *record, &tokens))
    }
}

/// Whether a span is that of a request of this load.
fn check(span: &CallSpan, record: Record, tokens: &[Token]) -> anyhow::Result<()> {
    let is_of_load = match record {
        Record::Rounds => tokens.contains(&span.token),
        Record::All => span.token.is_zero(),
    };
    ensure!(is_of_load && !span.execution.is_zero(), "a span belongs to no execution of the load: {span:?}");
    ensure!(span.association == Association::Exact && span.http_status == Some(200), "another call: {span:?}");
    ensure!(span.injection.is_none(), "a fault was injected: {span:?}");
    if record == Record::Rounds {
        let guard_was_false =
            matches!(&span.passes[..], [pass] if matches!(pass.passed_by, Some(PassedBy::GuardFalse(_))));
        ensure!(guard_was_false, "a request did not find its guard false: {:?}", span.passes);
    }
    Ok(())
}
