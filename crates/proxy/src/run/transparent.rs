//! Transparent mode: the listeners to which the kernel redirects, and at which addresses callers find this instance.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::RunError;
use crate::config::Config;
use crate::config::transparent::Transparent;
use crate::link::{Behind, Listener};

/// Connections that wait to be accepted; as many as the system's limit allows, for they come in bursts.
const BACKLOG: i32 = 4096;

/// The listeners. Rules in the prerouting hook redirect to the address of the interface at which a connection came in, in the
/// output hook to loopback.
pub(super) fn bind(transparent: &Transparent) -> Result<Vec<Listener>, RunError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if !transparent.own.is(uid, gid) {
        return Err(RunError::Identity { own: transparent.own, uid, gid });
    }
    let everywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let mut listeners = Vec::new();
    for (addresses, port, behind) in [
        (everywhere, transparent.inbound, Behind::RedirectedIn),
        (loopback, transparent.outbound, Behind::RedirectedOut),
    ] {
        let mut refused = None;
        let before = listeners.len();
        for address in addresses.map(|address| SocketAddr::new(address, port)) {
            match listen(address) {
                Ok(socket) => {
                    tracing::info!(at = %address, ?behind, "listening for redirected connections");
                    listeners.push(Listener { socket, behind: behind.clone() });
                }
                Err(source) if is_absent(&source) => refused = Some(RunError::Listen { address, source }),
                Err(source) => return Err(RunError::Listen { address, source }),
            }
        }
        if let Some(refused) = refused
            && listeners.len() == before
        {
            return Err(refused);
        }
    }
    Ok(listeners)
}

/// Whether the system has no addresses of that family: then none of its connections is redirected.
fn is_absent(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let absent = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| absent.contains(&code))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // The other family has a listener of its own, and other addresses.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The addresses of this network namespace's interfaces, without those that nobody else reaches.
pub(super) fn interfaces() -> Result<BTreeSet<IpAddr>, RunError> {
    let addresses = getifaddrs().map_err(|error| RunError::Interfaces(error.into()))?;
    let ip = |address: nix::ifaddrs::InterfaceAddress| {
        let address = address.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    Ok(addresses.filter_map(ip).filter(|ip| is_reached(*ip)).collect())
}

/// Whether callers elsewhere name this address. A link-local one of IPv6 is none without its interface.
fn is_reached(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    }
}

/// Where callers reach the application.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Through the sidecar; port 0 stands for every port.
    pub(super) through: BTreeSet<SocketAddr>,
    /// Past it, although the address beneath is in `through`.
    pub(super) past: BTreeSet<SocketAddr>,
}

impl Reached {
    /// On a host with these addresses.
    pub(super) fn new(config: &Config, transparent: &Transparent, interfaces: &BTreeSet<IpAddr>) -> Self {
        let own = interfaces.iter().map(|ip| SocketAddr::new(*ip, 0));
        let through: BTreeSet<SocketAddr> = own.chain(transparent.addresses.iter().copied()).collect();
        let explicit: BTreeSet<SocketAddr> = config.inbound.iter().map(|inbound| inbound.listen).collect();
        let whole = through.iter().filter(|address| address.port() == 0);
        let past = whole.flat_map(|address| {
            transparent.exclude.inbound_ports.iter().map(|port| SocketAddr::new(address.ip(), *port))
        });
        Reached { past: past.filter(|address| !explicit.contains(address)).collect(), through }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_reach_every_port_of_every_own_address_through_it_but_for_the_excluded_ones() {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n\
                    inbound: [{listen: \"10.0.0.1:9090\", to: \"127.0.0.1:1\"}]\n\
                    transparent: {addresses: [\"10.96.0.7:80\", 10.97.0.7], exclude: {inbound_ports: [22, 9090]}}\n";
        let config = Config::parse("s", text).unwrap();
        let interfaces = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).into();
        let reached = Reached::new(&config, config.transparent.as_ref().unwrap(), &interfaces);
        let text = |set: &BTreeSet<SocketAddr>| set.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&reached.through), ["10.0.0.1:0", "10.96.0.7:80", "10.97.0.7:0", "[fd00::1]:0"]);
        let past = ["10.0.0.1:22", "10.97.0.7:22", "10.97.0.7:9090", "[fd00::1]:22", "[fd00::1]:9090"];
        assert_eq!(text(&reached.past), past, "10.0.0.1:9090 has an explicit listener");
    }

    #[test]
    fn addresses_that_only_this_host_understands_are_not_announced() {
        for (ip, reached) in [
            ("10.0.0.1", true),
            ("169.254.7.7", true),
            ("127.9.9.1", false),
            ("fd00::1", true),
            ("::1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_reached(ip.parse().unwrap()), reached, "{ip}");
        }
    }
}
