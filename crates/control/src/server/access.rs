//! Who may speak to the controller (design §3.8): tokens, client certificates, and where it may listen without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use aftershock_trust::{ServerTls, Tokens};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use super::ControlError;
use super::doors::Peer;
use super::extract::Failed;

/// What is asked of whoever connects. The default asks nothing, which is refused beyond the loopback interface.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Every request carries one of these.
    pub tokens: Option<Arc<Tokens>>,
    /// Connections are encrypted; perhaps clients have certificates.
    pub tls: Option<ServerTls>,
    /// Tokens may travel unencrypted from other hosts: the way is safe, because it is a tunnel or a mesh.
    pub insecure_plaintext: bool,
}

impl Access {
    /// Whether that is enough at `address`.
    pub(super) fn suits(&self, address: SocketAddr) -> Result<(), ControlError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        let certificates = self.tls.as_ref().is_some_and(ServerTls::asks_for_certificates);
        if self.tokens.is_none() && !certificates {
            return Err(ControlError::Open(address));
        }
        if self.tls.is_none() && !self.insecure_plaintext {
            return Err(ControlError::Plaintext(address));
        }
        Ok(())
    }
}

/// Counts and tells of those who were turned away. Never of what they showed.
#[derive(Debug, Default)]
pub(super) struct TurnedAway(AtomicU64);

impl TurnedAway {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more. Told at the first, second, fourth, eighth, …: whoever tries for long does not fill the log.
    pub(super) fn note(&self, peer: SocketAddr, why: &str) {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(%peer, count, "turned away: {why}");
        }
    }
}

/// What the middleware needs.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) tokens: Option<Arc<Tokens>>,
    pub(super) turned_away: Arc<TurnedAway>,
}

/// Before anything else is looked at, its path included.
pub(super) async fn with_token(
    State(gate): State<Gate>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if gate.tokens.as_ref().is_none_or(|tokens| tokens.admit(request.headers(), Instant::now())) {
        return next.run(request).await;
    }
    gate.turned_away.note(peer, "no valid token");
    let problem = "expected `authorization: Bearer …` with a token of this controller (`--token-file`)".to_owned();
    let mut response = Failed::new(StatusCode::UNAUTHORIZED, problem).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
