//! Partitions and deaths of hosts on request: what a running lab is told over HTTP, by scenarios and by commands.
//!
//! Each of them is a lease: it ends by itself, should nobody end it before. Asking twice is asking once, so what cleans up
//! need not know what there is to clean up. Nobody is asked for anything: it is for loopback addresses only.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use aftershock_core::duration::Interval;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::net::NetError;
use crate::{HostError, RunningLab};

/// How long a partition or a death lasts, unless it is said or it is ended before.
pub const LEASE: Duration = Duration::from_secs(60);
/// The longest that can be asked for.
const LONGEST: Duration = Duration::from_secs(3600);

/// What is wrong with hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// The lesser name first.
    Partition(String, String),
    Death(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Show,
    Begin(Trouble, Duration),
    End(Trouble),
    EndAll,
}

/// Something to do: asked for, or due.
#[derive(Debug)]
pub struct Order {
    wish: Wish,
    answer: Option<oneshot::Sender<Result<State, HostError>>>,
}

/// Hosts as they are.
#[derive(Debug, Serialize)]
struct State {
    hosts: Vec<Host>,
    partitions: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct Host {
    name: String,
    addresses: Vec<std::net::IpAddr>,
    alive: bool,
}

/// A listener for what a lab is told, and the leases of what it was told.
#[derive(Debug)]
pub struct Hosts {
    orders: mpsc::Receiver<Order>,
    leases: BTreeMap<Trouble, Instant>,
}

impl Hosts {
    /// Listens at a loopback address, until this is dropped.
    ///
    /// # Errors
    /// It cannot listen there.
    pub async fn listen(address: SocketAddr) -> std::io::Result<Self> {
        if !address.ip().is_loopback() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "expected a loopback address"));
        }
        let listener = TcpListener::bind(address).await?;
        let (sender, orders) = mpsc::channel(16);
        tokio::spawn(accept(listener, sender));
        Ok(Self { orders, leases: BTreeMap::new() })
    }

    /// What is to be done next. Can be given up and asked again.
    pub async fn next(&mut self) -> Order {
        let due = self.leases.iter().min_by_key(|(_, until)| **until).map(|(trouble, until)| (trouble.clone(), *until));
        let lapse = async {
            match &due {
                Some((_, until)) => tokio::time::sleep_until(*until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(order) = self.orders.recv() => order,
            () = lapse => {
                let (trouble, _) = due.expect("only a lease lapses");
                Order { wish: Wish::End(trouble), answer: None }
            }
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// A host whose time was over could not be restored; whoever asked for something is told what went wrong with it.
    pub async fn obey(&mut self, order: Order, lab: &mut RunningLab) -> Result<(), HostError> {
        let done = match order.wish {
            Wish::Show => Ok(()),
            Wish::Begin(trouble, lease) => {
                let begun = begin(&trouble, lab);
                if begun.is_ok() {
                    self.leases.insert(trouble, Instant::now() + lease);
                }
                begun
            }
            Wish::End(trouble) => {
                self.leases.remove(&trouble);
                end(&trouble, lab).await
            }
            Wish::EndAll => {
                self.leases.clear();
                lab.restore_hosts().await
            }
        };
        match order.answer {
            None => done,
            Some(answer) => {
                // Whoever asked may have gone.
                let _ = answer.send(done.map(|()| state(lab)));
                Ok(())
            }
        }
    }
}

fn begin(trouble: &Trouble, lab: &mut RunningLab) -> Result<(), HostError> {
    match trouble {
        Trouble::Partition(a, b) => lab.partition(a, b),
        Trouble::Death(host) => match lab.kill_host(host) {
            Err(HostError::Network(NetError::Dead(_))) => Ok(()),
            other => other,
        },
    }
}

async fn end(trouble: &Trouble, lab: &mut RunningLab) -> Result<(), HostError> {
    match trouble {
        Trouble::Partition(a, b) => lab.heal(a, b),
        Trouble::Death(host) => match lab.revive_host(host).await {
            Err(HostError::Network(NetError::Alive(_))) => Ok(()),
            other => other,
        },
    }
}

fn state(lab: &RunningLab) -> State {
    let host = |(name, pod): (&str, &crate::net::Pod)| Host {
        name: name.to_owned(),
        addresses: pod.addresses(),
        alive: pod.is_alive(),
    };
    State {
        hosts: lab.hosts().map(host).collect(),
        partitions: lab.partitions().map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
    }
}

async fn accept(listener: TcpListener, orders: mpsc::Sender<Order>) {
    while !orders.is_closed() {
        tokio::select! {
            () = orders.closed() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let orders = orders.clone();
                    let service = service_fn(move |request| {
                        let orders = orders.clone();
                        async move { Ok::<_, Infallible>(answer(&request, &orders).await) }
                    });
                    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }
}

async fn answer(request: &Request<Incoming>, orders: &mpsc::Sender<Order>) -> Response<Full<Bytes>> {
    if request.headers().contains_key(header::ORIGIN) {
        return said(StatusCode::FORBIDDEN, "web pages may not ask this");
    }
    let wish = match wish(request.method(), request.uri().path(), request.uri().query()) {
        Ok(wish) => wish,
        Err((status, why)) => return said(status, &why),
    };
    let (sender, answer) = oneshot::channel();
    let sent = orders.send(Order { wish, answer: Some(sender) }).await;
    let Some(answer) = (match sent {
        Ok(()) => answer.await.ok(),
        Err(_) => None,
    }) else {
        return said(StatusCode::SERVICE_UNAVAILABLE, "the lab is stopping");
    };
    match answer {
        Ok(state) => json(StatusCode::OK, &state),
        Err(error @ (HostError::Network(NetError::Unknown(_)) | HostError::Immortal(_))) => {
            said(StatusCode::NOT_FOUND, &error.to_string())
        }
        Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn wish(method: &Method, path: &str, query: Option<&str>) -> Result<Wish, (StatusCode, String)> {
    let segments: Vec<String> = path
        .strip_prefix("/v1/")
        .unwrap_or_default()
        .split('/')
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect();
    let trouble = match segments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hosts"] => None,
        ["partitions", a, b] => Some(Trouble::Partition(a.min(b).to_owned(), a.max(b).to_owned())),
        ["dead", host] => Some(Trouble::Death(host.to_owned())),
        _ => {
            let known =
                "GET or DELETE /v1/hosts, PUT or DELETE /v1/partitions/{host}/{host}, PUT or DELETE /v1/dead/{host}";
            return Err((StatusCode::NOT_FOUND, format!("expected {known}, found {method} {path}")));
        }
    };
    match (method.as_str(), trouble) {
        ("GET", None) => Ok(Wish::Show),
        ("DELETE", None) => Ok(Wish::EndAll),
        ("PUT", Some(trouble)) => Ok(Wish::Begin(trouble, lease(query)?)),
        ("DELETE", Some(trouble)) => Ok(Wish::End(trouble)),
        _ => Err((StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not know {method}"))),
    }
}

fn lease(query: Option<&str>) -> Result<Duration, (StatusCode, String)> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(LEASE) };
    let asked = query.strip_prefix("for=").and_then(|text| text.parse::<Interval>().ok());
    let lease = asked.map(|interval| interval.0).filter(|lease| !lease.is_zero() && *lease <= LONGEST);
    lease.ok_or_else(|| (StatusCode::BAD_REQUEST, format!("expected `for=30s`, at most an hour, found {query:?}")))
}

fn said(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    json(status, &serde_json::json!({ "error": error }))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    let text = serde_json::to_vec_pretty(value).expect("its keys are strings");
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Tells a running lab something: what it answers, and whether it did it.
///
/// # Errors
/// Nobody answers there.
pub async fn tell(address: SocketAddr, method: Method, path: &str) -> Result<(bool, String), crate::AdminError> {
    let (status, body) = crate::admin::exchange(address, method, path).await?;
    Ok((status.is_success(), String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(a: &str, b: &str) -> Trouble {
        Trouble::Partition(a.to_owned(), b.to_owned())
    }

    #[test]
    fn a_wish_is_a_method_and_a_path() {
        let cases = [
            ("GET", "/v1/hosts", None, Wish::Show),
            ("DELETE", "/v1/hosts", None, Wish::EndAll),
            ("PUT", "/v1/partitions/b/a", None, Wish::Begin(part("a", "b"), LEASE)),
            ("PUT", "/v1/partitions/a/b", Some("for=5s"), Wish::Begin(part("a", "b"), Duration::from_secs(5))),
            ("DELETE", "/v1/partitions/b/a", None, Wish::End(part("a", "b"))),
            ("PUT", "/v1/dead/cart%2e2", Some(""), Wish::Begin(Trouble::Death("cart.2".into()), LEASE)),
        ];
        for (method, path, query, expected) in cases {
            assert_eq!(wish(&method.parse().unwrap(), path, query), Ok(expected), "{method} {path}");
        }
    }

    #[test]
    fn what_is_no_wish_is_told_what_is() {
        let cases = [
            ("PUT", "/v1/hosts", None, 405, "does not know PUT"),
            ("PUT", "/v1/partitions/a", None, 404, "expected GET or DELETE /v1/hosts"),
            ("PUT", "/hosts", None, 404, "expected GET or DELETE /v1/hosts"),
            ("PUT", "/v1/dead/a", Some("for=0s"), 400, "expected `for=30s`"),
            ("PUT", "/v1/dead/a", Some("for=2h"), 400, "at most an hour"),
            ("PUT", "/v1/dead/a", Some("fro=2s"), 400, "expected `for=30s`"),
        ];
        for (method, path, query, status, words) in cases {
            let (found, said) = wish(&method.parse().unwrap(), path, query).unwrap_err();
            assert!(found == status && said.contains(words), "{method} {path}: {found} {said}");
        }
    }
}
