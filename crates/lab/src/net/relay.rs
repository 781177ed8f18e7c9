//! Ways in and out of a network: connections that arrive at a listener of one namespace go on from another.
//!
//! A relay changes nothing: halves are closed as they are closed, and what is reset on one side is reset on the other. A
//! connection that cannot go on is reset, and one to a dead host waits, as its own would.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::mpsc;

use super::{Namespace, NetError};

/// Goes on from one namespace, for as long as it lives: every relay and connection ends with it.
#[derive(Debug)]
pub(crate) struct Gate {
    relays: mpsc::UnboundedSender<(TcpListener, SocketAddr)>,
}

impl Gate {
    /// From this namespace, on a thread of its own; from the host's if there is none.
    ///
    /// With `unconfirmed`, connections whose peer is dead or out of reach break after that time, on the other side too.
    pub(crate) fn of(namespace: Option<&Namespace>, unconfirmed: Option<Duration>) -> Result<Self, NetError> {
        let (relays, mut wanted) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| NetError::system("start a runtime", source))?;
        // It ends when the gate is dropped, and what it runs ends with it.
        let run = move || {
            runtime.block_on(async {
                while let Some((listener, to)) = wanted.recv().await {
                    tokio::spawn(relay(listener, to, unconfirmed));
                }
            });
        };
        match namespace {
            Some(namespace) => namespace.thread("gate", run).map(drop)?,
            None => {
                let started = std::thread::Builder::new().name("gate".into()).spawn(run);
                started.map(drop).map_err(|source| NetError::system("start a thread", source))?;
            }
        }
        Ok(Self { relays })
    }

    /// What arrives at `listener`, of whatever namespace, goes on from here to `to`.
    pub(crate) fn relay(&self, listener: TcpListener, to: SocketAddr) -> Result<(), NetError> {
        listener.set_nonblocking(true).map_err(|source| NetError::system("relay connections", source))?;
        let ended = |_| NetError::system("relay connections", io::Error::from(io::ErrorKind::BrokenPipe));
        self.relays.send((listener, to)).map_err(ended)
    }
}

async fn relay(listener: TcpListener, to: SocketAddr, unconfirmed: Option<Duration>) {
    let listener = match Listener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%error, %to, "cannot relay"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    if let Err(error) = join(&stream, to, unconfirmed).await {
                        tracing::debug!(%error, %to, "a relayed connection broke");
                    }
                    drop(stream);
                });
            }
            // Out of descriptors: wait for connections to end instead of spinning.
            Err(error) => {
                tracing::warn!(%error, %to, "cannot accept");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Until both directions have ended, or one has broken.
async fn join(near: &TcpStream, to: SocketAddr, unconfirmed: Option<Duration>) -> io::Result<()> {
    let far = match TcpStream::connect(to).await {
        Ok(far) => far,
        Err(error) => {
            near.set_zero_linger()?;
            return Err(error);
        }
    };
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    if let Some(time) = unconfirmed {
        // What it relays cannot see through it whether its peer is there.
        for stream in [near, &far] {
            sockopt::set_socket_keepalive(stream, true)?;
            sockopt::set_tcp_keepidle(stream, time / 2)?;
            sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
            sockopt::set_tcp_user_timeout(stream, u32::try_from(time.as_millis()).unwrap_or(u32::MAX))?;
        }
    }
    let both = tokio::try_join!(copy(near, &far), copy(&far, near));
    if both.is_err() {
        near.set_zero_linger()?;
        far.set_zero_linger()?;
    }
    both.map(drop)
}

async fn copy(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        from.readable().await?;
        let read = match from.try_read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &chunk[..read];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    match rustix::net::shutdown(to, rustix::net::Shutdown::Write) {
        // The other side has gone already; its own direction says how.
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
