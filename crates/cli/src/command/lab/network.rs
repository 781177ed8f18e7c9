//! `--network`: where a lab's services are.

use aftershock_lab::net::Family;
use clap::{Args, ValueEnum};

/// Where the services of a lab are.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct NetworkArguments {
    /// On loopback, or each on a host of its own with its traffic redirected to its sidecar (needs root).
    #[arg(long, value_enum, default_value_t)]
    network: Network,
    /// Addresses of those hosts.
    #[arg(long, value_name = "FAMILY", value_enum, default_value_t, requires = "network")]
    ip: Ip,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Network {
    /// Every process on this host.
    #[default]
    Loopback,
    /// Each instance in a network namespace of its own.
    Netns,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Ip {
    /// IPv4.
    #[default]
    V4,
    /// IPv6 alone.
    V6,
    /// Both.
    Dual,
}

impl NetworkArguments {
    /// The network of pods that is asked for, if one is.
    pub(crate) fn pods(self) -> Option<Family> {
        (self.network == Network::Netns).then_some(match self.ip {
            Ip::V4 => Family::V4,
            Ip::V6 => Family::V6,
            Ip::Dual => Family::Dual,
        })
    }
}
