//! Peers that vanish without a word.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// A silent connection is asked after this time whether somebody is there,
const IDLE: Duration = Duration::from_secs(3);
/// and again after each of these.
const INTERVAL: Duration = Duration::from_secs(1);
/// What was sent and not confirmed for this long breaks the connection: less than a lease, so that nobody waits for a host
/// that is dead, and an experiment after its death does not either.
const UNCONFIRMED: Duration = Duration::from_secs(6);

/// Sends at once what is to be sent, and breaks the connection soon after its peer is dead or out of reach, whether
/// anything is sent or not (RFC 9293 §3.8.3 and §3.8.4).
///
/// # Errors
/// The connection is gone already.
pub fn notice_vanished(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    let milliseconds = u32::try_from(UNCONFIRMED.as_millis()).expect("it is a few seconds");
    Ok(sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}
