//! What operators ask the sidecar, over HTTP on a loopback address: whether it lives, whether it is ready, its metrics.
//!
//! `GET /livez` answers as long as the thread that moves the traffic does. `GET /readyz` says 200 once every listener is
//! bound and 503 while the process drains; a controller that is away does not matter, since traffic flows without one, and
//! the body says so. `GET /metrics` is Prometheus' text format.
//!
//! It shares its thread with the traffic, so whoever asks can cost little, whatever they do: one request a connection,
//! [`AT_ONCE`] connections, each for at most [`PATIENCE`]; the newest takes the place of the oldest. No more than one
//! connection is accepted in each [`PACE`], but for a burst; what comes faster waits with the kernel, and what does not fit
//! there is refused.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::metrics;
use crate::pace::{Limit, Pacer};

/// Most connections at once.
const AT_ONCE: usize = 16;
/// How long a connection may take, from its acceptance to the last byte of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The mean time between two connections, at least.
const PACE: Duration = Duration::from_millis(10);
/// How many may come faster than that.
const BURST: u32 = 16;
/// How many wait with the kernel.
const BACKLOG: u32 = 64;
/// The largest request head.
const MAX_HEAD: usize = 16 << 10;

/// How the controller stands to this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// None is configured.
    None,
    /// One is configured, and not connected.
    Away,
    /// This sidecar is registered.
    Connected,
}

impl Controller {
    fn as_str(self) -> &'static str {
        match self {
            Controller::None => "not configured",
            Controller::Away => "not connected",
            Controller::Connected => "connected",
        }
    }
}

/// What is asked about.
pub(crate) trait Operated {
    /// Whether the process is about to end and takes no new connections.
    fn is_draining(&self) -> bool;
    /// How the controller stands to it.
    fn controller(&self) -> Controller;
    /// Its metrics, in Prometheus' text format.
    fn metrics(&self) -> String;
}

/// Listen at `address`.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As tokio's own listeners do: a restart does not wait for what the process before it left behind.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answer until dropped.
pub(crate) async fn serve(listener: TcpListener, operated: impl Operated + 'static) {
    serve_for(PATIENCE, listener, operated).await;
}

async fn serve_for(patience: Duration, listener: TcpListener, operated: impl Operated + 'static) {
    let operated = Rc::new(operated);
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    let mut pace = Pacer::new(Limit { burst: BURST, pace: PACE }, Instant::now());
    loop {
        tokio::time::sleep_until(pace.next().into()).await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept on the admin listener");
                tokio::time::sleep(PACE).await;
                continue;
            }
        };
        pace.take(Instant::now());
        open.retain(|connection| !connection.is_finished());
        if open.len() == AT_ONCE
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let operated = operated.clone();
        open.push_back(tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(patience, connection(stream, &*operated)).await;
        }));
    }
}

async fn connection(stream: TcpStream, operated: &impl Operated) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, operated))));
    let served = http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection ended");
    }
}

fn answer<T>(request: &Request<T>, operated: &impl Operated) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let asked = match request.uri().path() {
        "/livez" => Asked::Live,
        "/readyz" => Asked::Ready,
        "/metrics" => Asked::Metrics,
        _ => {
            let body = "not found; there are /livez, /readyz and /metrics\n".to_owned();
            return response(StatusCode::NOT_FOUND, TEXT, body);
        }
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let body = "method not allowed; use GET\n".to_owned();
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, body);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match asked {
        Asked::Live => response(StatusCode::OK, TEXT, "live\n".to_owned()),
        Asked::Ready => {
            let (status, word) = match operated.is_draining() {
                false => (StatusCode::OK, "ready"),
                true => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            };
            response(status, TEXT, format!("{word}\ncontroller: {}\n", operated.controller().as_str()))
        }
        Asked::Metrics => response(StatusCode::OK, metrics::CONTENT_TYPE, operated.metrics()),
    }
}

enum Asked {
    Live,
    Ready,
    Metrics,
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::LocalSet;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    struct Fixed(bool, Controller);

    impl Operated for Fixed {
        fn is_draining(&self) -> bool {
            self.0
        }

        fn controller(&self) -> Controller {
            self.1
        }

        fn metrics(&self) -> String {
            "# TYPE up gauge\nup 1\n".to_owned()
        }
    }

    fn ask(method: &str, path: &str, operated: Fixed) -> (u16, String, Response<Full<Bytes>>) {
        use http_body_util::BodyExt as _;
        let answer = answer(&Request::builder().method(method).uri(path).body(()).unwrap(), &operated);
        let (head, body) = answer.into_parts();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(body.clone().collect()).unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        (head.status.as_u16(), text, Response::from_parts(head, body))
    }

    #[test]
    fn ready_is_who_does_not_drain_whatever_the_controller_does() {
        for (controller, says) in [
            (Controller::None, "not configured"),
            (Controller::Away, "not connected"),
            (Controller::Connected, "connected"),
        ] {
            let (status, body, _) = ask("GET", "/readyz", Fixed(false, controller));
            assert_eq!((status, body), (200, format!("ready\ncontroller: {says}\n")));
            let (status, body, _) = ask("GET", "/readyz", Fixed(true, controller));
            assert_eq!((status, body), (503, format!("draining\ncontroller: {says}\n")));
            assert_eq!(ask("GET", "/livez", Fixed(true, controller)).0, 200);
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused_as_http_says() {
        let fixed = Fixed(false, Controller::None);
        for path in ["/", "/metrics/", "/livez/x", "/readyz2", "*"] {
            assert_eq!(ask("GET", path, fixed).0, 404, "{path}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
            let (status, _, answer) = ask(method, "/metrics", fixed);
            assert_eq!((status, answer.headers()["allow"].to_str().unwrap()), (405, "GET, HEAD"), "{method}");
        }
        let (status, body, answer) = ask("GET", "/metrics?name=up", fixed);
        assert_eq!((status, &*body), (200, "# TYPE up gauge\nup 1\n"));
        assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    }

    fn on_a_thread(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(test));
    }

    fn start(patience: Duration) -> SocketAddr {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(serve_for(patience, listener, Fixed(false, Controller::None)));
        address
    }

    async fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Whether the other end has closed `stream`, which it never says anything on.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        matches!(stream.read(&mut [0; 16]).await, Ok(0) | Err(_))
    }

    #[test]
    fn who_connects_and_says_nothing_keeps_nobody_else_from_being_answered() {
        on_a_thread(async {
            let address = start(Duration::from_secs(3600));
            let mut silent = Vec::new();
            for _ in 0..AT_ONCE * 2 {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let answer = get(address).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nlive\n"), "{answer}");
            // The newest took the places of the oldest.
            for stream in &mut silent[..=AT_ONCE] {
                assert!(is_closed(stream).await);
            }
            for stream in &mut silent[AT_ONCE + 1..] {
                let waiting = stream.try_read(&mut [0; 16]);
                assert!(waiting.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
            }
        });
    }

    #[test]
    fn a_connection_is_closed_when_its_time_is_over() {
        on_a_thread(async {
            let address = start(Duration::from_millis(20));
            let mut silent = TcpStream::connect(address).await.unwrap();
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(b"GET /metrics HT").await.unwrap();
            assert!(is_closed(&mut silent).await && is_closed(&mut slow).await);
        });
    }

    #[test]
    fn a_head_that_never_ends_is_refused() {
        on_a_thread(async {
            let address = start(Duration::from_secs(3600));
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
            let line = format!("x-filler: {}\r\n", "x".repeat(1000));
            let mut sent = 0;
            while stream.write_all(line.as_bytes()).await.is_ok() {
                sent += line.len();
                assert!(sent < 64 << 20, "nobody reads it for ever");
            }
            assert!(get(address).await.ends_with("live\n"));
        });
    }

    #[test]
    fn it_is_there_over_ipv6_too() {
        on_a_thread(async {
            let listener = bind("[::1]:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            tokio::task::spawn_local(serve(listener, Fixed(false, Controller::None)));
            assert!(get(address).await.ends_with("live\n"));
        });
    }
}
