//! `aftershock lab`.

mod evaluate;
mod hosts;
mod kills;
mod network;
mod random;

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use aftershock_lab::hosts::Hosts;
use aftershock_lab::{Propagation, Topology, up};
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};

use self::evaluate::Evaluate;
use self::hosts::{Heal, KillHost, Partition, ReviveHost, ShowHosts};
use self::kills::Kills;
pub(crate) use self::network::NetworkArguments;
use self::random::Random;
use super::AtControl;
use crate::Ended;
use crate::output;

/// Mock services from a topology file: real processes, each with its sidecar.
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    Up(Up),
    Evaluate(Evaluate),
    Random(Random),
    Kills(Kills),
    Hosts(ShowHosts),
    Partition(Partition),
    Heal(Heal),
    KillHost(KillHost),
    ReviveHost(ReviveHost),
}

/// Start every service of a topology and a sidecar for each, until Ctrl-C.
///
/// Service i listens on 127.77.1.i (`--subnet` chooses another), its ledgers and event log are on port 30000 there.
/// Replica r of it is on 127.77.r.i, with an event log of its own; each replica answers for the ledgers of all. With
/// `--network netns` these addresses lead to hosts of their own, which `aftershock lab partition` and `lab kill-host` break.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// The topology.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Trace context that services hand on, instead of what the topology says.
    #[arg(long, value_name = "CONTEXT", value_enum)]
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
    #[command(flatten)]
    network: NetworkArguments,
    /// Keep logs and sidecar configurations here.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    at: AtControl,
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
            Lab::Random(random) => super::until_interrupted(None, random.run()).await,
            Lab::Kills(kills) => super::until_interrupted(None, kills.run()).await,
            Lab::Hosts(show) => super::until_interrupted(None, show.run()).await,
            Lab::Partition(partition) => super::until_interrupted(None, partition.run()).await,
            Lab::Heal(heal) => super::until_interrupted(None, heal.run()).await,
            Lab::KillHost(kill) => super::until_interrupted(None, kill.run()).await,
            Lab::ReviveHost(revive) => super::until_interrupted(None, revive.run()).await,
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
        options.pods = self.network.pods();
        options.directory = self.logs.clone();
        options.control = Some(self.at.for_sidecars().await?);
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
        let mut hosts = match lab.has_hosts() {
            true => {
                let address = hosts::address(self.subnet);
                output::line(format!("partitions and deaths of hosts: http://{address}/v1/hosts"));
                Some(Hosts::listen(address).await.with_context(|| format!("failed to listen on {address}"))?)
            }
            false => None,
        };
        output::remark("running until Ctrl-C");
        loop {
            let order = async {
                match &mut hosts {
                    Some(hosts) => hosts.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = order => {
                    hosts.as_mut().expect("an order comes from there").obey(order, &mut lab).await?;
                }
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
