//! Where a connection was going before the kernel redirected it.
//!
//! Invariant: what is dialled is never a listener of this process. A connection that nobody redirected, straight to the port
//! for redirected ones, was going to that port itself; dialling it would come back here without end.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{SockAddr, SockRef};
use tokio::net::TcpStream;

use super::Listener;

/// The listeners of this process.
#[derive(Debug, Default)]
pub(super) struct Own {
    addresses: Vec<SocketAddr>,
    complained: Cell<bool>,
}

/// Why a connection does not go on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Refusal {
    #[error("it was going to the sidecar's own listener at {0}")]
    Own(SocketAddr),
    #[error("it was not redirected")]
    NotRedirected,
}

impl Own {
    pub(super) fn of(listeners: &[Listener]) -> Self {
        let addresses = listeners.iter().filter_map(|listener| listener.socket.local_addr().ok()).collect();
        Own { addresses, complained: Cell::new(false) }
    }

    /// Where `stream` was going.
    pub(super) fn destination(&self, stream: &TcpStream) -> Result<SocketAddr, Refusal> {
        let local = stream.local_addr().map_err(|_| Refusal::NotRedirected)?;
        let Ok(original) = original(stream, local.is_ipv4()) else { return Err(Refusal::NotRedirected) };
        self.admit(original, local)
    }

    fn admit(&self, original: SocketAddr, local: SocketAddr) -> Result<SocketAddr, Refusal> {
        let same = |one: SocketAddr| one.port() == original.port() && one.ip() == original.ip();
        // One that listens on every address takes what comes to any of this host; another host may have the same port.
        let everywhere = |one: &SocketAddr| one.ip().is_unspecified() && same(SocketAddr::new(local.ip(), one.port()));
        if same(local) || self.addresses.iter().any(|one| same(*one) || everywhere(one)) {
            return Err(Refusal::Own(original));
        }
        Ok(original)
    }

    /// Resets `stream`. The first time it says so, for whoever forgot the rules; later ones may be a scan of ports.
    pub(super) fn refuse(&self, stream: TcpStream, why: &Refusal) {
        let peer = stream.peer_addr().unwrap_or_else(|_| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        if self.complained.replace(true) {
            tracing::debug!(%peer, %why, "refused a connection");
        } else {
            tracing::warn!(%peer, %why, "refused a connection; were the rules made, by `redirect apply`?");
        }
        // It fails only where the connection is broken already.
        let _ = stream.set_zero_linger();
    }
}

/// What conntrack knows of the connection (`SO_ORIGINAL_DST`). Without any rule of address translation it knows nothing.
fn original(stream: &TcpStream, ipv4: bool) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let address: SockAddr = if ipv4 { socket.original_dst_v4()? } else { socket.original_dst_v6()? };
    // The scope of a link-local address is lost, but those are never redirected.
    address.as_socket().map(canonical).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// IPv4 in an IPv6 socket is IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, |v4| SocketAddr::new(v4.into(), address.port())),
        IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dialled_is_never_a_listener_of_this_process() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let listeners =
            ["0.0.0.0:15006", "[::]:15006", "127.0.0.1:15001", "[::1]:15001", "10.0.0.1:7000", "0.0.0.0:8000"];
        let own = Own { addresses: listeners.map(at).into(), complained: Cell::new(false) };
        for (original, local, goes_on) in [
            // Redirected on the way in, and out.
            ("10.0.0.1:80", "10.0.0.1:15006", true),
            ("[fd00::1]:80", "[fd00::1]:15006", true),
            ("10.0.0.2:80", "127.0.0.1:15001", true),
            // The same ports of other hosts are theirs.
            ("10.0.0.2:15006", "127.0.0.1:15001", true),
            ("10.0.0.2:15001", "127.0.0.1:15001", true),
            ("10.0.0.2:7000", "127.0.0.1:15001", true),
            // Straight to the ports for redirected ones.
            ("10.0.0.1:15006", "10.0.0.1:15006", false),
            ("127.0.0.1:15001", "127.0.0.1:15001", false),
            ("[::1]:15001", "[::1]:15001", false),
            // To an explicit listener, that has it by itself.
            ("10.0.0.1:7000", "10.0.0.1:15006", false),
            ("10.0.0.1:8000", "10.0.0.1:15006", false),
        ] {
            let expected = if goes_on { Ok(at(original)) } else { Err(Refusal::Own(at(original))) };
            assert_eq!(own.admit(at(original), at(local)), expected, "{original} at {local}");
        }
    }
}
