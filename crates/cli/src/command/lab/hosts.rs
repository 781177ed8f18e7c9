//! `aftershock lab hosts`, `partition`, `heal`, `kill-host`, `revive-host`: hosts of a running lab.

use std::net::SocketAddr;

use aftershock_core::duration::Interval;
use aftershock_lab::hosts::{LEASE, tell};
use anyhow::{Context, bail};
use clap::Args;
use http::Method;

use crate::output;
use crate::{Ended, cases};

/// Behind the last service of the subnet.
const HOST: u8 = 255;
const PORT: u16 = 4710;

/// Where a lab on this subnet is told about its hosts.
pub(super) fn address([a, b, c]: [u8; 3]) -> SocketAddr {
    SocketAddr::from(([a, b, c, HOST], PORT))
}

#[derive(Debug, Clone, Copy, Args)]
struct At {
    /// Where the lab is told, as `lab up` prints it.
    #[arg(long, value_name = "ADDRESS", default_value_t = address(cases::SUBNET))]
    lab: SocketAddr,
}

/// How long, unless it is ended before.
#[derive(Debug, Clone, Copy, Args)]
struct Lease {
    /// It ends by itself after this time.
    #[arg(long = "for", value_name = "TIME", default_value_t = Interval(LEASE))]
    lease: Interval,
}

/// Show the hosts of a running lab and the partitions between them.
#[derive(Debug, Args)]
pub(crate) struct ShowHosts {
    #[command(flatten)]
    at: At,
}

/// Lose everything that two hosts of a running lab send each other.
///
/// Hosts are instances of services, e.g. `cartservice` or its second replica `cartservice.2`; `controller`; and `client`,
/// where requests from outside come from.
#[derive(Debug, Args)]
pub(crate) struct Partition {
    /// One host.
    a: String,
    /// The other.
    b: String,
    #[command(flatten)]
    lease: Lease,
    #[command(flatten)]
    at: At,
}

/// End a partition; without names, every one, and start dead hosts again.
#[derive(Debug, Args)]
pub(crate) struct Heal {
    /// One host.
    #[arg(requires = "b")]
    a: Option<String>,
    /// The other.
    b: Option<String>,
    #[command(flatten)]
    at: At,
}

/// Kill a host of a running lab: service and sidecar die at once, and nobody hears of it.
#[derive(Debug, Args)]
pub(crate) struct KillHost {
    /// The host.
    host: String,
    #[command(flatten)]
    lease: Lease,
    #[command(flatten)]
    at: At,
}

/// Start a dead host of a running lab again, with its service and its sidecar.
#[derive(Debug, Args)]
pub(crate) struct ReviveHost {
    /// The host.
    host: String,
    #[command(flatten)]
    at: At,
}

impl ShowHosts {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        self.at.tell(Method::GET, "hosts", None).await
    }
}

impl Partition {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        self.at.tell(Method::PUT, &format!("partitions/{}/{}", self.a, self.b), Some(self.lease)).await
    }
}

impl Heal {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        let path = match (&self.a, &self.b) {
            (Some(a), Some(b)) => format!("partitions/{a}/{b}"),
            _ => "hosts".to_owned(),
        };
        self.at.tell(Method::DELETE, &path, None).await
    }
}

impl KillHost {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        self.at.tell(Method::PUT, &format!("dead/{}", self.host), Some(self.lease)).await
    }
}

impl ReviveHost {
    pub(super) async fn run(self) -> anyhow::Result<Ended> {
        self.at.tell(Method::DELETE, &format!("dead/{}", self.host), None).await
    }
}

impl At {
    async fn tell(self, method: Method, path: &str, lease: Option<Lease>) -> anyhow::Result<Ended> {
        let query = lease.map(|lease| format!("?for={}", lease.lease)).unwrap_or_default();
        let target = format!("/v1/{path}{query}");
        // Names are those of services: letters, digits, `-`, `.` and `_`.
        if let Some(odd) = path.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._/".contains(*c)) {
            bail!("expected names of hosts, which have no {odd:?}");
        }
        let told = tell(self.lab, method, &target).await;
        let (done, said) = told.with_context(|| format!("no lab with `--network netns` answers at {}", self.lab))?;
        if done {
            output::line(said);
            return Ok(Ended::AsExpected);
        }
        let error: Option<String> = serde_json::from_str::<serde_json::Value>(&said)
            .ok()
            .and_then(|answer| Some(answer.get("error")?.as_str()?.to_owned()));
        bail!("{}", error.unwrap_or(said))
    }
}
