//! A gRPC hop between a caller and a service that can do what a fault does, and writes down what passes.
//!
//! Independent of the sidecar: hyper on both sides.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the hop does with a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Pass,
    /// The callee answers, and nobody hears it.
    LoseAnswer,
    /// The callee never sees the request, and the caller waits.
    HoldRequest,
    DelayAnswer(Duration),
}

#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

type Decide = dyn Fn(&str, usize) -> Act + Send + Sync;

struct Shared {
    upstream: OnceLock<SocketAddr>,
    decide: Box<Decide>,
    seen: Mutex<Vec<(String, HeaderMap)>>,
    connections: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl Hop {
    /// `decide` gets the method's name and the number of this call among all that came, from 1.
    pub(crate) async fn start(decide: impl Fn(&str, usize) -> Act + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), decide).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        decide: impl Fn(&str, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: OnceLock::new(),
            decide: Box::new(decide),
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    pub(crate) fn send_to(&self, upstream: SocketAddr) {
        self.shared.upstream.set(upstream).unwrap();
    }

    /// The headers of each call that came, with its method's name.
    pub(crate) fn seen(&self) -> Vec<(String, HeaderMap)> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Hop {
    /// Closes the listener and, with the task that owns them, all connections.
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(|request| relay(shared.clone(), request));
            // A caller that goes away ends it with an error, which is no concern of the hop.
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Relayed = Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

async fn relay(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Relayed, Infallible> {
    let (head, body) = request.into_parts();
    let method = head.uri.path().rsplit('/').next().unwrap().to_owned();
    let number = {
        let mut seen = shared.seen.lock().unwrap();
        seen.push((method.clone(), head.headers.clone()));
        seen.len()
    };
    let act = (shared.decide)(&method, number);
    if let Act::HoldRequest = act {
        std::future::pending::<()>().await;
    }
    let body = body.collect().await.unwrap().to_bytes();
    let stream = TcpStream::connect(shared.upstream.get().unwrap()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (response, body) = sender.send_request(Request::from_parts(head, Full::new(body))).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    match act {
        Act::Pass | Act::HoldRequest => {}
        Act::LoseAnswer => std::future::pending().await,
        Act::DelayAnswer(time) => tokio::time::sleep(time).await,
    }
    let trailers = body.trailers().cloned();
    let relayed = match trailers {
        None => Full::new(body.to_bytes()).boxed(),
        Some(trailers) => Full::new(body.to_bytes()).with_trailers(std::future::ready(Some(Ok(trailers)))).boxed(),
    };
    Ok(Response::from_parts(response, relayed))
}
