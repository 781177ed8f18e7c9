//! Ordinary traffic beside rounds: requests without a token, at a steady rate, with business keys of their own, and the
//! question whether any of them was interfered with.
//!
//! Its clients trace: each request has a trace id of its own, as from an instrumented client or an ingress. What comes
//! without any is not tied to a request by sidecars, and rounds beside it are honestly incomplete (`docs/exactness.md`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::RunningLab;
use crate::admin::AdminError;
use crate::topology::Operation;

/// How long a client waits for its answer: longer than any service of a topology works.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most requests at once: a lab that cannot keep up is not buried.
const MOST_AT_ONCE: usize = 32;

/// Why there can be no ordinary traffic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No such request.
    #[error("{0}")]
    Unknown(String),
    /// It is not HTTP.
    #[error("the request `{0}` enters a gRPC service; ordinary traffic is HTTP")]
    NotHttp(String),
    /// No requests in a second.
    #[error("expected a rate above 0 requests in a second")]
    Rate,
}

/// What one client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    key: String,
    /// The status, or why there was none.
    answer: Result<u16, String>,
}

/// Ordinary traffic that is under way; it ends when this is dropped.
#[derive(Debug)]
pub struct Load {
    stop: Option<oneshot::Sender<()>>,
    sending: JoinHandle<Vec<Told>>,
}

/// What became of ordinary traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordinary {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that something on the way interfered with, each with what its logs or its client say.
    pub faulted: Vec<String>,
}

impl RunningLab {
    /// Begins to send the request of this name `rate` times in a second to its entries in turn, with business keys that
    /// begin with `prefix`.
    ///
    /// # Errors
    /// A request that the topology does not have, or that is not HTTP; a rate that is none.
    pub fn load(&self, request: &str, prefix: &str, rate: f64) -> Result<Load, LoadError> {
        self.load_with(request, prefix, rate, None)
    }

    /// The same, with this `tracestate` in every request: traffic that is not ordinary, since it carries a token.
    ///
    /// # Errors
    /// As [`RunningLab::load`].
    pub fn load_with(
        &self,
        request: &str,
        prefix: &str,
        rate: f64,
        tracestate: Option<&str>,
    ) -> Result<Load, LoadError> {
        let tracestate = tracestate.map(str::to_owned);
        let topology = self.topology();
        let known = || topology.requests().iter().map(|request| request.name.as_str());
        let found = topology
            .request(request)
            .ok_or_else(|| LoadError::Unknown(crate::names::unknown("request", request, known())))?;
        let api = topology.api(&found.api).expect("a request's Api was resolved");
        let Operation::Http(route) = &api.operation else { return Err(LoadError::NotHttp(request.to_owned())) };
        let between = Duration::try_from_secs_f64(1.0 / rate).map_err(|_| LoadError::Rate)?;
        if between.is_zero() {
            return Err(LoadError::Rate);
        }
        let params: String = found.overrides.iter().map(|(name, value)| format!("&{name}={value}")).collect();
        let (method, path) = (route.method().to_owned(), route.example_path(1));
        let (entries, prefix) = (self.entries(request), prefix.to_owned());
        let (stop, mut stopped) = oneshot::channel();
        let sending = tokio::spawn(async move {
            let mut clock = tokio::time::interval(between);
            clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let (mut told, mut under_way) = (Vec::new(), JoinSet::new());
            let room = Arc::new(Semaphore::new(MOST_AT_ONCE));
            for (n, entry) in entries.iter().cycle().enumerate() {
                tokio::select! {
                    _ = clock.tick() => {}
                    _ = &mut stopped => break,
                }
                let room = room.clone().acquire_owned().await.expect("the semaphore is never closed");
                let key = format!("{prefix}{n}");
                let (method, target, entry) = (method.clone(), format!("{path}?key={key}{params}"), *entry);
                let tracestate = tracestate.clone();
                under_way.spawn(async move {
                    let answer =
                        tokio::time::timeout(PATIENCE, send(entry, &method, &target, tracestate.as_deref())).await;
                    let late = || Err(format!("no answer within {} s", PATIENCE.as_secs()));
                    drop(room);
                    Told { key, answer: answer.unwrap_or_else(|_| late()) }
                });
                while let Some(ended) = under_way.try_join_next() {
                    told.extend(ended.ok());
                }
            }
            while let Some(ended) = under_way.join_next().await {
                told.extend(ended.ok());
            }
            told
        });
        Ok(Load { stop: Some(stop), sending })
    }

    /// Ends ordinary traffic, and asks the services' logs about each of its requests.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub async fn unload(&self, mut load: Load, within: Duration) -> Result<Ordinary, AdminError> {
        if let Some(stop) = load.stop.take() {
            // An error means that it has ended by itself.
            let _ = stop.send(());
        }
        let told = (&mut load.sending).await.unwrap_or_default();
        let mut ordinary = Ordinary { requests: told.len() as u64, faulted: Vec::new() };
        for Told { key, answer } in told {
            let log = self.settled(&key, within).await?;
            let said =
                log.calls().iter().find(|call| call.parent.is_none()).and_then(|call| call.response_sent.as_ref());
            let found = match (&answer, said) {
                (Ok(status), Some(said)) if said.status == status.to_string() => {
                    log.untouched().err().map(|it| it.to_string())
                }
                (Ok(status), Some(said)) => Some(format!("answered {}, and its client was told {status}", said.status)),
                (Ok(status), None) => Some(format!("not answered, and its client was told {status}")),
                (Err(reason), said) => Some(format!(
                    "its client got {reason}, {}",
                    match said {
                        Some(said) => format!("it was answered {}", said.status),
                        None => "it was not answered".to_owned(),
                    }
                )),
            };
            ordinary.faulted.extend(found.map(|found| format!("{key}: {found}")));
        }
        Ok(ordinary)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.sending.abort();
    }
}

/// The status of one exchange on a connection of its own.
async fn send(entry: SocketAddr, method: &str, target: &str, tracestate: Option<&str>) -> Result<u16, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(entry).await.map_err(|error| failed(&error))?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| failed(&error))?;
    let half = || getrandom::u64().map(|random| random.max(1)).map_err(|error| failed(&error));
    let (trace, span) = (u128::from(half()?) << 64 | u128::from(half()?), half()?);
    let mut request = Request::builder();
    if let Some(tracestate) = tracestate {
        request = request.header("tracestate", tracestate);
    }
    let request = request
        .method(method)
        .uri(target)
        .header(header::HOST, entry.to_string())
        .header(header::CONNECTION, "close")
        .header("traceparent", format!("00-{trace:032x}-{span:016x}-01"))
        .header("uber-trace-id", format!("{trace:032x}:{span:016x}:0:1"))
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let ask = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        response.into_body().collect().await?;
        Ok::<_, hyper::Error>(status)
    };
    // The connection is driven here and not on a task: it ends with the exchange.
    let (asked, _) = futures_util::future::join(ask, connection).await;
    asked.map_err(|error| failed(&error))
}
