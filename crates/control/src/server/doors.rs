//! Accepting connections, encrypted or not. A client that is slow with its handshake keeps nobody else waiting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aftershock_trust::{ServerTls, Stream};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::access::TurnedAway;

/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Most handshakes at once; further connections wait in the system's queue.
const MAX_HANDSHAKES: usize = 256;
/// How long to wait when the system has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Doors {
    listener: TcpListener,
    tls: Option<ServerTls>,
    turned_away: Arc<TurnedAway>,
    handshakes: JoinSet<Option<(Stream, SocketAddr)>>,
}

/// Who connected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        Peer(*stream.remote_addr())
    }
}

impl Doors {
    pub(super) fn new(listener: TcpListener, tls: Option<ServerTls>, turned_away: Arc<TurnedAway>) -> Self {
        Doors { listener, tls, turned_away, handshakes: JoinSet::new() }
    }

    fn greet(&mut self, tls: ServerTls, stream: TcpStream, peer: SocketAddr) {
        let turned_away = Arc::clone(&self.turned_away);
        self.handshakes.spawn(async move {
            match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
                Ok(Ok(stream)) => return Some((stream, peer)),
                Ok(Err(error)) => turned_away.note(peer, &format!("the TLS handshake failed: {error}")),
                Err(_) => turned_away.note(peer, "the TLS handshake took too long"),
            }
            None
        });
    }
}

impl Listener for Doors {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < MAX_HANDSHAKES => match accepted {
                    Ok((stream, peer)) => {
                        // Messages to sidecars are small and waited for: they shall not wait for each other.
                        // And a host that dies says nothing.
                        if let Err(error) = aftershock_trust::notice_vanished(&stream) {
                            tracing::debug!(%error, "a connection was gone at once");
                        }
                        match self.tls.clone() {
                            None => return (Stream::Plain(stream), peer),
                            Some(tls) => self.greet(tls, stream, peer),
                        }
                    }
                    Err(error) if is_of_the_client(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "no connection can be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Some(done) = self.handshakes.join_next() => if let Ok(Some(greeted)) = done {
                    return greeted;
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The client went before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
