//! Unary gRPC calls over HTTP/2 by prior knowledge.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use aftershock_control::api::OracleVerdict;
use aftershock_control::runner::RoundOutcome;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::stage::{Controller, Log, runner, scenario};

/// What the server answers.
#[derive(Clone)]
enum Act {
    /// A message, and a status in the trailers.
    Message(&'static [u8], &'static str),
    /// A status in the head, and nothing else.
    TrailersOnly(&'static str, &'static str),
    /// An HTTP status without gRPC.
    Http(u16),
    /// A message without trailers.
    NoTrailers,
    /// The stream breaks off in the body.
    Break,
    /// Nothing, until the client cancels.
    Silence,
}

async fn server(log: &Log, acts: Vec<Act>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (log, acts) = (log.clone(), Arc::new(Mutex::new(VecDeque::from(acts))));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (log, acts) = (log.clone(), acts.clone());
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(log.clone(), acts.clone(), request));
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}

struct Gone(Log);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.add("cancelled");
    }
}

async fn answer(
    log: Log,
    acts: Arc<Mutex<VecDeque<Act>>>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, std::io::Error>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let fields: String =
        head.headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap())).collect();
    log.add(format!("entry {} {}\n{fields}\n{body:?}", head.method, head.uri));
    let act = {
        let mut acts = acts.lock().unwrap();
        if acts.len() > 1 { acts.pop_front().unwrap() } else { acts[0].clone() }
    };
    let response = Response::builder().header("content-type", "application/grpc");
    let empty = || Full::new(Bytes::new()).map_err(|never| match never {}).boxed();
    let framed = |message: &[u8]| {
        Bytes::from([&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat())
    };
    Ok(match act {
        Act::Message(message, status) => {
            let trailers = [("grpc-status".parse().unwrap(), status.parse().unwrap())].into_iter().collect();
            let frames = [Ok(Frame::data(framed(message))), Ok(Frame::trailers(trailers))];
            response.body(StreamBody::new(futures_util::stream::iter(frames)).boxed()).unwrap()
        }
        Act::TrailersOnly(status, message) => {
            response.header("grpc-status", status).header("grpc-message", message).body(empty()).unwrap()
        }
        Act::Http(status) => Response::builder().status(status).body(empty()).unwrap(),
        Act::NoTrailers => response.body(Full::new(framed(b"{}")).map_err(|never| match never {}).boxed()).unwrap(),
        Act::Break => {
            let frames = [Ok(Frame::data(framed(b"{}"))), Err(std::io::Error::other("broken"))];
            response.body(StreamBody::new(futures_util::stream::iter(frames)).boxed()).unwrap()
        }
        Act::Silence => {
            let _gone = Gone(log);
            std::future::pending().await
        }
    })
}

async fn round(acts: Vec<Act>, settings: &str) -> (RoundOutcome, Log) {
    let log = Log::default();
    let entry = server(&log, acts).await;
    let spec = format!(
        "  entry: {entry}\n  requests:\n    - name: call\n      grpc: {{method: shop.Checkout/PlaceOrder, message: '{{\"key\":\"{{key}}\"}}', metadata: {{x-key: \"{{key}}\"}}}}\n{settings}"
    );
    let (runner, _) = runner(Controller::default(), scenario(&spec), &log).await;
    (runner.round(None, &()).await.unwrap(), log)
}

#[tokio::test]
async fn a_call_is_a_framed_message_with_the_rounds_context() {
    let settings = "      expect: {status: 200, grpc_status: 0, body: [{json_path: $.ok, equals: true}]}\n";
    let (outcome, log) = round(vec![Act::Message(br#"{"ok": true}"#, "0")], settings).await;
    assert_eq!((outcome.attempts[0].result.as_str(), outcome.oracle.found), ("grpc-status 0", OracleVerdict::Held));
    assert_eq!(outcome.oracle.differences, [""; 0]);
    let request = log.has("entry POST").await;
    assert!(request.contains("/shop.Checkout/PlaceOrder\n"), "{request}");
    for field in ["content-type: application/grpc\n", "te: trailers\n", &format!("x-key: {}\n", outcome.key)] {
        assert!(request.contains(field), "{request}");
    }
    assert!(request.contains("tracestate: aft=1-0-0-00000000000000aa-"), "{request}");
    let message = format!("{{\"key\":\"{}\"}}", outcome.key);
    let framed = Bytes::from([&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message.as_bytes()].concat());
    assert!(request.ends_with(&format!("{framed:?}")), "{request}");
}

#[tokio::test]
async fn the_status_is_found_wherever_it_stands() {
    for (act, result, difference) in [
        (Act::Message(b"{}", "9"), "grpc-status 9", "call: expected grpc-status 0, found 9"),
        (
            Act::TrailersOnly("14", "gone%20away"),
            "grpc-status 14",
            "call: expected grpc-status 0, found 14 (gone away)",
        ),
        (
            Act::Http(503),
            "grpc-status 14 (HTTP 503)",
            "call: expected grpc-status 0, found 14 (HTTP status 503 without grpc-status)",
        ),
        (
            Act::NoTrailers,
            "grpc-status 2",
            "call: expected grpc-status 0, found 2 (the answer ended without grpc-status)",
        ),
    ] {
        let (outcome, _) = round(vec![act], "").await;
        assert_eq!(outcome.attempts[0].result, result);
        assert_eq!(outcome.oracle.differences, [difference]);
        assert_eq!(outcome.oracle.found, OracleVerdict::Unavailable);
    }
}

#[tokio::test]
async fn a_broken_stream_is_a_transport_failure_and_names_its_code() {
    let (outcome, _) =
        round(vec![Act::Break, Act::Message(b"{}", "0")], "      retry: {attempts: 2, on: [transport]}\n").await;
    let results: Vec<&str> = outcome.attempts.iter().map(|attempt| attempt.result.as_str()).collect();
    assert!(results[0].contains("internal error"), "{results:?}");
    assert_eq!(results[1..], ["grpc-status 0"]);
}

#[tokio::test]
async fn unavailable_is_tried_again_and_another_status_is_not() {
    let settings = "      retry: {attempts: 3, on: [status]}\n";
    let acts = vec![Act::TrailersOnly("14", ""), Act::Http(503), Act::Message(b"{}", "0")];
    let (outcome, _) = round(acts, settings).await;
    let results: Vec<&str> = outcome.attempts.iter().map(|attempt| attempt.result.as_str()).collect();
    assert_eq!(results, ["grpc-status 14", "grpc-status 14 (HTTP 503)", "grpc-status 0"]);
    let (outcome, _) = round(vec![Act::TrailersOnly("13", "")], settings).await;
    assert_eq!(outcome.attempts.len(), 1);
}

#[tokio::test]
async fn the_server_sees_a_cancel_when_the_time_is_over() {
    let (outcome, log) = round(vec![Act::Silence], "      timeout: 100ms\n").await;
    assert_eq!(outcome.attempts[0].result, "timeout");
    log.has("cancelled").await;
}
