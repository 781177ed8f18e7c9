//! A client of the controller's HTTP API.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::trace::Trace;
use aftershock_trust::{Credentials, Endpoint, TrustError};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::api::{
    ApiError, Conclude, Disarmed, Finish, Finished, Imported, RoundId, RoundRecord, RoundSummary, Settle, Settled,
    StartRound, StartedRound, Status, TraceSet,
};
use crate::runner::exchange::{Answer, ExchangeError, exchange_on};

/// How long an answer may take beyond what was asked for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why the controller could not be asked, or did not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No answer.
    #[error("failed to {action}: no answer from the controller at {address}: {reason}")]
    Unreachable {
        /// What was asked for.
        action: &'static str,
        /// Whom.
        address: String,
        /// `connection refused`, `timeout`, …
        reason: String,
    },
    /// What is to be shown to the controller is not there any more.
    #[error("failed to {action}: {error}")]
    Trust {
        /// What was asked for.
        action: &'static str,
        /// Why.
        error: String,
    },
    /// The controller's own words.
    #[error("failed to {action}: {error}")]
    Refused {
        /// What was asked for.
        action: &'static str,
        /// The HTTP status.
        status: u16,
        /// Why.
        error: String,
    },
    /// Something answered that is no controller of this version.
    #[error("failed to {action}: {address} answered with something else than this version's controller does: {reason}")]
    Foreign {
        /// What was asked for.
        action: &'static str,
        /// Who.
        address: String,
        /// What was wrong with it.
        reason: String,
    },
}

impl ClientError {
    /// Whether the controller answered, and refused.
    pub fn is_refusal(&self) -> bool {
        matches!(self, ClientError::Refused { .. })
    }
}

/// A client; clones share what is still to be said.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Arc<Endpoint>,
    farewells: Arc<Farewells>,
}

/// Rounds that were dropped half-way, of which the controller is being told.
#[derive(Debug, Default)]
struct Farewells {
    open: AtomicUsize,
    changed: Notify,
}

impl Client {
    /// A client of the controller at `address`, `http://HOST:PORT`, that shows nothing.
    ///
    /// # Errors
    /// When the address is no such URL.
    pub fn new(address: &str) -> Result<Self, TrustError> {
        Ok(Client::of(Endpoint::new(address, Credentials::default())?))
    }

    /// A client of this controller.
    pub fn of(endpoint: Endpoint) -> Self {
        Client { endpoint: Arc::new(endpoint), farewells: Arc::default() }
    }

    /// Starts a round; returns when every sidecar is armed.
    ///
    /// # Errors
    /// When the controller refuses, or does not answer.
    pub async fn start(&self, start: &StartRound) -> Result<StartedRound, ClientError> {
        self.post("start a round", "/v1/rounds", start, PATIENCE).await
    }

    /// Keeps a round alive.
    ///
    /// # Errors
    /// When the round is over, or the controller does not answer.
    pub async fn renew(&self, id: RoundId) -> Result<(), ClientError> {
        let path = format!("/v1/rounds/{}/renew", id.0);
        self.ask("renew the round", Method::POST, &path, Bytes::new(), PATIENCE).await.map(drop)
    }

    /// Waits until no call of the round is open but those that a fault keeps.
    ///
    /// # Errors
    /// When the round is over, or the controller does not answer.
    pub async fn settle(&self, id: RoundId, deadline: Duration) -> Result<Settled, ClientError> {
        self.settle_with(id, &Settle { deadline: Interval(deadline), unanswered: false }).await
    }

    /// As [`Client::settle`], of a client whose connection was refused or ended without an answer.
    ///
    /// # Errors
    /// As [`Client::settle`].
    pub async fn settle_unanswered(&self, id: RoundId, deadline: Duration) -> Result<Settled, ClientError> {
        self.settle_with(id, &Settle { deadline: Interval(deadline), unanswered: true }).await
    }

    async fn settle_with(&self, id: RoundId, settle: &Settle) -> Result<Settled, ClientError> {
        let deadline = settle.deadline.0;
        self.post("settle the round", &format!("/v1/rounds/{}/settle", id.0), settle, deadline + PATIENCE).await
    }

    /// Disarms a round, waits for its completion, and has it judged.
    ///
    /// # Errors
    /// When the round is over, or the controller does not answer.
    pub async fn finish(&self, id: RoundId, finish: &Finish) -> Result<Finished, ClientError> {
        let patience = finish.deadline.0 + PATIENCE;
        self.post("finish the round", &format!("/v1/rounds/{}/finish", id.0), finish, patience).await
    }

    /// Says what the client and the oracle saw.
    ///
    /// # Errors
    /// When the round is not finished, or the controller does not answer.
    pub async fn conclude(&self, id: RoundId, conclude: &Conclude) -> Result<(), ClientError> {
        let body = json(conclude);
        let path = format!("/v1/rounds/{}/conclude", id.0);
        self.ask("conclude the round", Method::POST, &path, body, PATIENCE).await.map(drop)
    }

    /// The latest rounds in the store, the newest first.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub async fn rounds(&self) -> Result<Vec<RoundSummary>, ClientError> {
        self.get("list the rounds", "/v1/rounds").await
    }

    /// The complete executions of a scenario's latest clean recordings, the oldest first.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub async fn traces(&self, scenario: &str) -> Result<Vec<Trace>, ClientError> {
        self.get("ask for clean traces", &format!("/v1/traces?scenario={}", percent(scenario))).await
    }

    /// Have traces that were recorded elsewhere kept as clean recordings of their scenario.
    ///
    /// # Errors
    /// When the set is none, or the controller does not answer.
    pub async fn import(&self, set: &TraceSet) -> Result<Imported, ClientError> {
        self.post("import traces", "/v1/recordings", set, PATIENCE).await
    }

    /// One round.
    ///
    /// # Errors
    /// When there is none, or the controller does not answer.
    pub async fn round(&self, id: RoundId) -> Result<RoundRecord, ClientError> {
        self.get("show the round", &format!("/v1/rounds/{}", id.0)).await
    }

    /// Sidecars and armed rounds.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get("ask for the status", "/v1/status").await
    }

    /// Ends every armed round.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub async fn disarm(&self) -> Result<Disarmed, ClientError> {
        let answer = self.ask("disarm", Method::POST, "/v1/disarm", Bytes::new(), PATIENCE).await?;
        self.read("disarm", &answer)
    }

    /// Waits until the controller was told of every round whose runner was dropped half-way. Whoever drops a runner's
    /// future calls this before the runtime ends: else these rounds stay armed until their leases end.
    pub async fn farewells(&self) {
        loop {
            let changed = self.farewells.changed.notified();
            if self.farewells.open.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Ends a round in the background, because its runner was dropped.
    pub(crate) fn farewell(&self, id: RoundId, reason: &str) {
        let (client, reason) = (self.clone(), reason.to_owned());
        self.before_leaving(async move {
            // Nobody is left to hear of an error; the round's lease ends by itself.
            let finish = Finish { deadline: Interval(Duration::ZERO), client_failed: Some(reason) };
            let _ = client.finish(id, &finish).await;
        });
    }

    /// Does `work` in the background; [`Client::farewells`] waits for it.
    pub(crate) fn before_leaving(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let farewells = self.farewells.clone();
        farewells.open.fetch_add(1, Ordering::SeqCst);
        runtime.spawn(async move {
            work.await;
            farewells.open.fetch_sub(1, Ordering::SeqCst);
            farewells.changed.notify_waiters();
        });
    }

    async fn get<T: DeserializeOwned>(&self, action: &'static str, path: &str) -> Result<T, ClientError> {
        let answer = self.ask(action, Method::GET, path, Bytes::new(), PATIENCE).await?;
        self.read(action, &answer)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        action: &'static str,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let answer = self.ask(action, Method::POST, path, json(body), patience).await?;
        self.read(action, &answer)
    }

    async fn ask(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, ClientError> {
        let uri: Uri = path.parse().expect("one of our paths");
        let mut request = Request::builder().method(method).uri(uri).header(HOST, self.endpoint.authority());
        if let Some(token) =
            self.endpoint.authorization().map_err(|error| ClientError::Trust { action, error: error.to_string() })?
        {
            request = request.header(AUTHORIZATION, token);
        }
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body)).expect("every part was parsed");
        let unreachable = |error: ExchangeError| ClientError::Unreachable {
            action,
            address: self.endpoint.to_string(),
            reason: error.to_string(),
        };
        let answer = exchange_on(self.endpoint.connect(), request, patience).await.map_err(unreachable)?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        match serde_json::from_slice::<ApiError>(&answer.body) {
            Ok(ApiError { error }) => Err(ClientError::Refused { action, status: answer.status.as_u16(), error }),
            Err(_) => Err(self.foreign(action, describe(answer.status, &answer.body))),
        }
    }

    fn read<T: DeserializeOwned>(&self, action: &'static str, answer: &Answer) -> Result<T, ClientError> {
        serde_json::from_slice(&answer.body).map_err(|error| self.foreign(action, error.to_string()))
    }

    fn foreign(&self, action: &'static str, reason: String) -> ClientError {
        ClientError::Foreign { action, address: self.endpoint.to_string(), reason }
    }
}

/// A query value (RFC 3986 §2).
fn percent(text: &str) -> impl std::fmt::Display + '_ {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("API types have text keys and no fallible parts").into()
}

fn describe(status: StatusCode, body: &[u8]) -> String {
    let start: String = String::from_utf8_lossy(body).chars().take(80).collect();
    format!("status {}, {start:?}", status.as_u16())
}
