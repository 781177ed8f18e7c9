//! A stage: a fake controller, scripted services, and one log of everything that happened, in its order.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use aftershock_control::client::Client;
use aftershock_control::runner::Runner;
use aftershock_control::scenario::{Scenario, TemporalFault};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>, Arc<Notify>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
        self.1.notify_waiters();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until a line begins with `start`.
    pub(crate) async fn has(&self, start: &str) -> String {
        loop {
            let changed = self.1.notified();
            if let Some(line) = self.lines().into_iter().find(|line| line.starts_with(start)) {
                return line;
            }
            changed.await;
        }
    }
}

/// What the fake controller answers.
#[derive(Clone)]
pub(crate) struct Controller {
    pub(crate) start: (u16, Value),
    pub(crate) settled: Value,
    pub(crate) finished: Value,
}

impl Default for Controller {
    fn default() -> Self {
        Controller {
            start: (200, json!({"id": 7, "token": "00000000000000aa"})),
            settled: json!({"settled": true, "kept": 0, "running": []}),
            finished: finished("clean"),
        }
    }
}

pub(crate) fn finished(verdict: &str) -> Value {
    json!({"verdict": verdict, "faults": [], "reasons": [], "traces": [], "incomplete": {}, "unassociated": {}})
}

impl Controller {
    pub(crate) async fn serve(self, log: &Log) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let log = log.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (log, controller) = (log.clone(), self.clone());
                tokio::spawn(async move {
                    let answer = service_fn(move |request| controller.clone().answer(log.clone(), request));
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        address
    }

    async fn answer(self, log: Log, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let what = head.uri.path().rsplit('/').next().unwrap().to_owned();
        match &what[..] {
            "finish" | "conclude" | "rounds" => log.add(format!("{what} {}", String::from_utf8_lossy(&body))),
            _ => log.add(what.clone()),
        }
        let (status, body) = match &what[..] {
            "rounds" => self.start,
            "settle" => (200, self.settled),
            "finish" => (200, self.finished),
            _ => (204, Value::Null),
        };
        let body = if status == 204 { Bytes::new() } else { body.to_string().into() };
        Ok(Response::builder().status(status).body(Full::new(body)).unwrap())
    }
}

/// What a scripted HTTP/1.1 service does with a request.
#[derive(Clone)]
pub(crate) enum Act {
    /// Answer with these bytes and close.
    Reply(String),
    /// Reset the connection.
    Reset,
    /// Close it without an answer.
    Close,
    /// Say nothing until the client goes.
    Silence,
    /// Answer 200 once the log has a line that begins so.
    Once(&'static str),
}

pub(crate) fn reply(status: u16, body: &str) -> Act {
    let length = body.len();
    Act::Reply(format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nlocation: /elsewhere\r\n\r\n{body}"))
}

/// A service that logs each request and does what the script says, the last act again and again.
pub(crate) async fn service(name: &'static str, log: &Log, acts: Vec<Act>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let log = log.clone();
    let mut acts: VecDeque<Act> = acts.into();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let act = if acts.len() > 1 { acts.pop_front().unwrap() } else { acts[0].clone() };
            tokio::spawn(perform(name, log.clone(), stream, act));
        }
    });
    address
}

async fn perform(name: &str, log: Log, mut stream: TcpStream, act: Act) {
    let request = read_request(&mut stream).await;
    log.add(format!("{name} {request}"));
    match act {
        Act::Reply(bytes) => {
            stream.write_all(bytes.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        Act::Reset => SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap(),
        Act::Close => {}
        Act::Silence => {
            let gone = stream.read(&mut [0; 1]).await;
            assert!(matches!(gone, Ok(0) | Err(_)), "the client sent more");
            log.add(format!("{name} client gone"));
        }
        Act::Once(start) => {
            log.has(start).await;
            let Act::Reply(bytes) = reply(200, "{}") else { unreachable!() };
            stream.write_all(bytes.as_bytes()).await.unwrap();
        }
    }
}

/// `METHOD PATH\nheaders\n\nbody`.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head
                .split("content-length: ")
                .nth(1)
                .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
            if bytes.len() >= end + 4 + length {
                return String::from_utf8_lossy(&bytes).replace("\r\n", "\n").replacen(" HTTP/1.1\n", "\n", 1);
            }
        }
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "the request ended early: {bytes:?}");
    }
}

/// The field `name` of a logged request.
pub(crate) fn field<'a>(request: &'a str, name: &str) -> &'a str {
    let line =
        request.lines().find(|line| line.split(": ").next().is_some_and(|found| found.eq_ignore_ascii_case(name)));
    line.unwrap_or_else(|| panic!("no {name} in {request}")).split_once(": ").unwrap().1
}

/// The first words of each line: what happened, without the details.
pub(crate) fn outline(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.lines().next().unwrap_or_default().split(" {").next().unwrap().to_owned()).collect()
}

/// A scenario with this `spec`, as YAML below `spec:`.
pub(crate) fn scenario(spec: &str) -> Scenario {
    let text = format!("apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: s}}\nspec:\n{spec}");
    Scenario::parse("s.yaml", &text).unwrap_or_else(|error| panic!("{error}"))
}

/// A fault with this `expect`.
pub(crate) fn fault(expect: &str) -> TemporalFault {
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata: {{name: f}}\nspec:\n  scenario: s\n  faults:\n    \
         - {{target: {{api: a GET /, k: 1, phase: response}}, fault: drop}}\n  expect: {expect}\n"
    );
    TemporalFault::parse("f.yaml", &text).unwrap_or_else(|error| panic!("{error}"))
}

/// A runner of `scenario` against a fake controller.
pub(crate) async fn runner(controller: Controller, scenario: Scenario, log: &Log) -> (Runner, Client) {
    let client = Client::new(&controller.serve(log).await).unwrap();
    (Runner::new(client.clone(), scenario), client)
}
