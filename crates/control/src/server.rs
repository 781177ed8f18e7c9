//! The controller's one listener: OTLP/HTTP, the sidecars' upgrade, and the JSON API of [`crate::api`].
//!
//! It speaks HTTP/1.1, perhaps over TLS. Beyond the loopback interface it listens only if it asks for tokens or client
//! certificates ([`Access`]). Web pages are not clients: whatever names an `Origin` is refused.

mod access;
mod doors;
mod extract;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aftershock_core::name::Service;
use aftershock_core::otlp::{self, OtlpError};
use aftershock_core::trace::Trace;
use aftershock_core::wire::{ARBITER_TIMEOUT, FromController, TRACES_PATH, UPGRADE_PATH, UPGRADE_TOKEN};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::api::{
    Conclude, Disarmed, Finish, Finished, Imported, RUNNER_LEASE, RoundRecord, RoundSummary, Settle, Settled,
    StartRound, StartedRound, Status, StopCondition, TraceSet,
};
use crate::hub::{Hub, Look, new_secret};
use crate::link;
use crate::rounds::{RECORDINGS, RoundError};
pub use crate::store::{Location, Redaction, Retention, StoreError};

pub use access::Access;
use access::{Gate, TurnedAway, with_token};
use doors::{Doors, Peer};
use extract::{Body, Failed, Id, Parameters};

/// Settings of a controller. The default keeps rounds in memory.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where rounds are kept.
    pub store: Location,
    /// How long.
    pub retention: Retention,
    /// What of them is not stored.
    pub redaction: Redaction,
    /// What is asked of whoever connects.
    pub access: Access,
    /// How often the key of hop tags is exchanged for a new one.
    pub rotate_keys: Duration,
    /// How long an old key is taken after the last sidecar has stopped signing with it.
    pub drain_keys: Duration,
    /// How long rules stay at a sidecar that hears nothing.
    pub lease: Duration,
    /// How often leases are renewed.
    pub renew_every: Duration,
    /// How long a runner may say nothing.
    pub runner_lease: Duration,
    /// How long a sidecar may take to acknowledge.
    pub acknowledge_within: Duration,
    /// Most messages parked at once at one sidecar, per round.
    pub max_parked: usize,
    /// Most spans kept of one round.
    pub spans_per_round: usize,
    /// How long a pass waits for the arbiter, unless a round says otherwise.
    pub arbiter_timeout: Duration,
    /// The only services that faults may touch, where they act or as callees; all if there is no list.
    pub faultable: Option<BTreeSet<Service>>,
    /// When ordinary traffic suffers, a round that says nothing of its own about that is ended.
    pub stop: Option<StopCondition>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            store: Location::Memory,
            retention: Retention::default(),
            redaction: Redaction::default(),
            access: Access::default(),
            rotate_keys: Duration::from_secs(60 * 60),
            drain_keys: crate::keys::DRAIN,
            lease: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            runner_lease: RUNNER_LEASE,
            acknowledge_within: Duration::from_secs(2),
            max_parked: 64,
            spans_per_round: 250_000,
            arbiter_timeout: ARBITER_TIMEOUT,
            faultable: None,
            stop: None,
        }
    }
}

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It would be reachable from other hosts, and ask nobody for anything.
    #[error(
        "{0} can be reached from other hosts, and whoever reaches the controller can fault traffic: give `--token-file F` \
         (and `--tls-cert F --tls-key F`), or `--tls-cert F --tls-key F --client-ca F`, or listen on a loopback address"
    )]
    Open(SocketAddr),
    /// Tokens would be readable on their way.
    #[error(
        "{0} can be reached from other hosts, and tokens would be readable on their way: give `--tls-cert F --tls-key F`, \
         or `--insecure-plaintext` where a tunnel or a mesh encrypts"
    )]
    Plaintext(SocketAddr),
    /// The listener is not usable.
    #[error("the listener failed: {0}")]
    Listener(#[from] std::io::Error),
    /// The store is not usable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A running controller. Dropping it stops the listener at once and disarms nobody; see [`Controller::shutdown`].
#[derive(Debug)]
pub struct Controller {
    hub: Arc<Hub>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    rotation: JoinHandle<()>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Controller {
    /// Begin to serve on `listener`.
    ///
    /// # Errors
    /// When the address is no loopback one and that was not allowed, or the store cannot be opened.
    pub async fn start(listener: TcpListener, options: Options) -> Result<Controller, ControlError> {
        let address = listener.local_addr()?;
        options.access.suits(address)?;
        let Access { tokens, tls, .. } = options.access.clone();
        let encrypted = tls.is_some();
        let hub = Hub::new(options).await?;
        let (stop, stopped) = oneshot::channel();
        let gate = Gate { tokens, turned_away: Arc::default() };
        let doors = Doors::new(listener, tls, Arc::clone(&gate.turned_away));
        let app = router(Arc::clone(&hub), gate).into_make_service_with_connect_info::<Peer>();
        let serving = axum::serve(doors, app).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        let server = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the listener failed");
            }
        });
        let rotation = tokio::spawn(rotate_keys(Arc::clone(&hub)));
        tracing::info!(%address, encrypted, "controller listening");
        Ok(Controller { hub, address, stop: Some(stop), server, rotation })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// End every armed round: rules are removed, parked messages released.
    pub async fn disarm_all(&self) -> Disarmed {
        self.hub.disarm_all("everything was disarmed").await
    }

    /// Disarm everything, store what was running as inconclusive, take leave of the sidecars, close the store. Rounds
    /// that somebody asks for meanwhile are refused.
    pub async fn shutdown(mut self) -> Disarmed {
        self.hub.look().stopping = true;
        let disarmed = self.hub.disarm_all("the controller was stopped").await;
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        self.hub.change(|state| state.registry.clear());
        let within = self.hub.options.acknowledge_within;
        let left = |state: &mut crate::state::State| if state.links == 0 { Look::Ready(()) } else { Look::OnChange };
        let _ = self.hub.until(Instant::now() + within, left).await;
        // Answers under way go out; idle clients are not waited for.
        let _ = tokio::time::timeout(within, &mut self.server).await;
        self.hub.store.close().await;
        disarmed
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.server.abort();
        self.rotation.abort();
    }
}

/// Exchange the key of hop tags from time to time, for as long as the controller runs.
async fn rotate_keys(hub: Arc<Hub>) {
    // What is longer than that is never.
    let every = hub.options.rotate_keys.min(Duration::from_secs(60 * 60 * 24 * 365));
    loop {
        tokio::time::sleep(every).await;
        let waits = hub.look().rotate_keys(new_secret());
        if !waits.is_empty() {
            tracing::warn!(sidecars = ?waits, "a rotation of hop keys waits for sidecars that do not confirm it");
        }
        let switched = |state: &mut crate::state::State| match state.keys.is_switched() {
            true => Look::Ready(()),
            false => Look::OnChange,
        };
        // A sidecar that does not confirm and does not go is told of once more at the next turn.
        if hub.until(Instant::now() + every, switched).await.is_some() {
            tracing::info!("every sidecar signs with the new key of hop tags");
            tokio::time::sleep(hub.options.drain_keys).await;
            hub.look().keys_drained();
            tracing::info!("the key of hop tags was exchanged");
        }
    }
}

/// Serve on `listener` until `stop` resolves, then shut down as [`Controller::shutdown`] does.
///
/// # Errors
/// As [`Controller::start`].
pub async fn serve(
    listener: TcpListener,
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<Disarmed, ControlError> {
    let controller = Controller::start(listener, options).await?;
    stop.await;
    Ok(controller.shutdown().await)
}

/// The largest body of the JSON API.
const MAX_JSON: usize = 4 << 20;

/// The largest set of traces that is imported at once: some thousands of executions.
const MAX_TRACE_SET: usize = 64 << 20;

fn router(hub: Arc<Hub>, gate: Gate) -> Router {
    let api = Router::new()
        .route("/v1/rounds", post(start).get(rounds))
        .route("/v1/rounds/{id}", get(round))
        .route("/v1/rounds/{id}/renew", post(renew))
        .route("/v1/rounds/{id}/settle", post(settle))
        .route("/v1/rounds/{id}/finish", post(finish))
        .route("/v1/rounds/{id}/conclude", post(conclude))
        .route("/v1/status", get(status))
        .route("/v1/disarm", post(disarm))
        .route(UPGRADE_PATH, get(sidecar))
        .layer(DefaultBodyLimit::max(MAX_JSON));
    let collector =
        Router::new().route(TRACES_PATH, post(collect).get(traces)).layer(DefaultBodyLimit::max(otlp::MAX_BODY));
    let imports = Router::new().route("/v1/recordings", post(import)).layer(DefaultBodyLimit::max(MAX_TRACE_SET));
    api.merge(collector)
        .merge(imports)
        .fallback(|request: Request| async move {
            let path: String = request.uri().path().chars().take(200).collect();
            Failed::new(StatusCode::NOT_FOUND, format!("there is no path {path}"))
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let path: String = request.uri().path().chars().take(200).collect();
            let problem = format!("{path} takes other methods than {}", request.method());
            Failed::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(Extension(Arc::clone(&gate.turned_away)))
        .layer(middleware::from_fn(no_web_pages))
        .layer(middleware::from_fn_with_state(gate, with_token))
        .with_state(hub)
}

/// A page in somebody's browser can send requests to loopback addresses, too.
async fn no_web_pages(request: Request, next: Next) -> Response {
    if request.headers().contains_key(header::ORIGIN) {
        let problem = "requests of web pages (with an `origin`) are refused".to_owned();
        return Failed::new(StatusCode::FORBIDDEN, problem).into_response();
    }
    next.run(request).await
}

type Shared = State<Arc<Hub>>;

async fn start(State(hub): Shared, Body(request): Body<StartRound>) -> Result<Json<StartedRound>, Failed> {
    Ok(Json(hub.start(request).await?))
}

async fn renew(State(hub): Shared, Id(id): Id) -> Result<StatusCode, Failed> {
    hub.renew(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn settle(State(hub): Shared, Id(id): Id, Body(request): Body<Settle>) -> Result<Json<Settled>, Failed> {
    Ok(Json(hub.settle(id, request).await?))
}

async fn finish(State(hub): Shared, Id(id): Id, Body(request): Body<Finish>) -> Result<Json<Finished>, Failed> {
    Ok(Json(hub.finish(id, request).await?))
}

async fn conclude(State(hub): Shared, Id(id): Id, Body(request): Body<Conclude>) -> Result<StatusCode, Failed> {
    hub.conclude(id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn round(State(hub): Shared, Id(id): Id) -> Result<Json<RoundRecord>, Failed> {
    let record = hub.store.round(id).await?;
    Ok(Json(record.ok_or(RoundError::Unknown(id))?))
}

/// `GET /v1/rounds?…`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListRounds {
    scenario: Option<String>,
    #[serde(default = "hundred")]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

async fn rounds(
    State(hub): Shared,
    Parameters(list): Parameters<ListRounds>,
) -> Result<Json<Vec<RoundSummary>>, Failed> {
    Ok(Json(hub.store.rounds(list.scenario, list.limit).await?))
}

/// `GET /v1/traces?…`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CleanTraces {
    scenario: String,
    #[serde(default = "recordings")]
    recordings: u32,
}

fn recordings() -> u32 {
    RECORDINGS
}

async fn traces(State(hub): Shared, Parameters(of): Parameters<CleanTraces>) -> Result<Json<Vec<Trace>>, Failed> {
    Ok(Json(hub.store.clean_traces(of.scenario, of.recordings).await?))
}

/// Traces that were recorded elsewhere.
async fn import(State(hub): Shared, Body(set): Body<TraceSet, MAX_TRACE_SET>) -> Result<Json<Imported>, Failed> {
    set.check().map_err(|error| Failed::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    let all = set.traces.len() as u64;
    let stored = hub.store.import(set, "a file of traces").await?;
    Ok(Json(Imported { stored, present: all - stored }))
}

async fn disarm(State(hub): Shared) -> Json<Disarmed> {
    Json(hub.disarm_all("everything was disarmed").await)
}

/// Sidecars that do not say how they are within this time are shown as they were.
const REPORT_WITHIN: Duration = Duration::from_millis(500);

async fn status(
    State(hub): Shared,
    Extension(turned_away): Extension<Arc<TurnedAway>>,
) -> Result<Json<Status>, Failed> {
    let stored_rounds = hub.store.count().await?;
    let before: Vec<_> = hub.change(|state| {
        let sidecars = state.registry.iter();
        sidecars
            .map(|(observer, connected)| {
                connected.send(FromController::Report);
                (observer, connected.reports)
            })
            .collect()
    });
    let reported = |state: &mut crate::state::State| {
        let behind = |(observer, reports): &(_, u64)| {
            state.registry.get(*observer).is_some_and(|connected| connected.reports <= *reports)
        };
        if before.iter().any(behind) { Look::OnChange } else { Look::Ready(()) }
    };
    let _ = hub.until(Instant::now() + REPORT_WITHIN, reported).await;
    let state = hub.look();
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sidecars: state.registry.status(),
        rounds: state.rounds().iter().map(|(id, live)| live.status(*id, hub.options.lease)).collect(),
        stored_rounds,
        collected: state.collector.counted(),
        refused: state.refused.clone(),
        turned_away: turned_away.count(),
    }))
}

/// An OTLP/HTTP export.
async fn collect(
    State(hub): Shared,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Failed> {
    let named = |name: header::HeaderName| headers.get(name).map_or(Ok(""), http::HeaderValue::to_str).unwrap_or("?");
    let encoding = named(header::CONTENT_ENCODING);
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
        let problem = format!("the content-encoding {encoding:?} is not supported, send spans uncompressed");
        return Err(Failed::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem));
    }
    let essence = named(header::CONTENT_TYPE).split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let json = match essence.as_str() {
        otlp::PROTOBUF => false,
        otlp::JSON => true,
        other => {
            let problem = format!("expected content-type {} or {}, found {other:?}", otlp::PROTOBUF, otlp::JSON);
            return Err(Failed::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem));
        }
    };
    let body = body.map_err(|rejection| Failed::of_body(&rejection, otlp::MAX_BODY))?;
    let decoded = if json { otlp::decode_json(&body) } else { otlp::decode(&body) }.map_err(|error| {
        let status = match error {
            OtlpError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Failed::new(status, error.to_string())
    })?;
    let answer = hub.collect(decoded).await;
    Ok(if json {
        ([(header::CONTENT_TYPE, otlp::JSON)], answer.encode_json()).into_response()
    } else {
        ([(header::CONTENT_TYPE, otlp::PROTOBUF)], answer.encode()).into_response()
    })
}

/// A sidecar's upgrade.
async fn sidecar(State(hub): Shared, mut request: Request) -> Response {
    let has = |name: header::HeaderName, token: &str| {
        let values = request.headers().get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, UPGRADE_TOKEN) {
        let problem = format!("expected `connection: upgrade` and `upgrade: {UPGRADE_TOKEN}`");
        let failed = Failed::new(StatusCode::UPGRADE_REQUIRED, problem);
        return ([(header::UPGRADE, UPGRADE_TOKEN), (header::CONNECTION, "upgrade")], failed).into_response();
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => link::attend(hub, hyper_util::rt::TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "a sidecar's upgrade failed"),
        }
    });
    (StatusCode::SWITCHING_PROTOCOLS, [(header::UPGRADE, UPGRADE_TOKEN), (header::CONNECTION, "upgrade")])
        .into_response()
}
