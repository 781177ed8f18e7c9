//! A sidecar that speaks the wire protocol and has no traffic but what a test tells it.
//!
//! A task of its own answers as a well-behaved sidecar would; what it heard is there for the test to read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::otlp;
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan};
use aftershock_core::wire::{
    Arm, Counters, FromController, FromSidecar, Hello, OpenCall, OpenState, Ordinary, PROTOCOL, Registry,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::http::Api;

/// What it does not do, or does otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manners {
    pub(crate) acknowledge: Acknowledge,
    /// It never answers a flush.
    pub(crate) no_flush: bool,
    /// It never confirms a disarming.
    pub(crate) no_disarmed: bool,
    /// It does not say what is open.
    pub(crate) no_activity: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Acknowledge {
    #[default]
    Yes,
    /// Not a second time.
    Once,
    Silent,
    Refuse(String),
    Hang,
}

#[derive(Debug, Default)]
struct Inner {
    begun: BTreeMap<Token, u64>,
    open: BTreeMap<Token, Vec<OpenCall>>,
    /// Spans to be exported before a flush is answered.
    recorded: Vec<CallSpan>,
    lost_of: BTreeMap<Token, u64>,
    counters: Counters,
    acknowledged: BTreeSet<Token>,
}

/// See the module.
pub(crate) struct Sidecar {
    pub(crate) service: &'static str,
    pub(crate) observer: ObserverId,
    pub(crate) welcome: FromController,
    inner: Arc<Mutex<Inner>>,
    say: mpsc::UnboundedSender<Option<FromSidecar>>,
    heard: mpsc::UnboundedReceiver<FromController>,
    task: JoinHandle<()>,
}

/// Upgrade a connection; the bytes after the 101.
pub(crate) async fn upgraded(api: Api) -> (BufReader<OwnedReadHalf>, OwnedWriteHalf) {
    let stream = TcpStream::connect(api.0).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (reader, mut writer) = stream.into_split();
    let head = "GET /v1/sidecar HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: aftershock/1\r\n\r\n";
    writer.write_all(head.as_bytes()).await.unwrap();
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    reader.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("HTTP/1.1 101 "), "{line}");
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).await.unwrap();
    }
    (reader, writer)
}

pub(crate) async fn read(reader: &mut BufReader<OwnedReadHalf>) -> Option<FromController> {
    let mut line = String::new();
    reader.read_line(&mut line).await.ok().filter(|n| *n > 0)?;
    Some(serde_json::from_str(&line).unwrap())
}

pub(crate) fn hello(service: &str, observer: u64) -> Hello {
    Hello {
        protocol: PROTOCOL,
        version: "0.1.0-test".to_owned(),
        service: service.parse().unwrap(),
        observer: ObserverId(observer),
        inbound: vec![format!("127.0.0.1:{}", 10_000 + observer % 50_000)],
        excluded: vec![],
        outbound: BTreeMap::new(),
        templates: vec![],
    }
}

fn bytes_of(message: &FromSidecar) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap();
    line.push(b'\n');
    line
}

pub(crate) fn open(side: Side, execution: u64, call: u64, parent: Option<u64>, state: OpenState) -> OpenCall {
    OpenCall {
        side,
        execution: ExecutionId(execution),
        call: CallId(call),
        parent: parent.map(CallId),
        api: "payment shop.Payment/Charge".parse().unwrap(),
        state,
    }
}

/// What unassociated calls call.
pub(crate) fn convert() -> aftershock_core::name::Api {
    "currency shop.Currency/Convert".parse().unwrap()
}

impl Sidecar {
    pub(crate) async fn connect(api: Api, service: &'static str, observer: u64) -> Sidecar {
        Sidecar::with(api, service, observer, Manners::default()).await
    }

    pub(crate) async fn with(api: Api, service: &'static str, observer: u64, manners: Manners) -> Sidecar {
        let (mut reader, mut writer) = upgraded(api).await;
        writer.write_all(&bytes_of(&FromSidecar::Hello(hello(service, observer)))).await.unwrap();
        let welcome = read(&mut reader).await.unwrap();
        let (say, mut to_say) = mpsc::unbounded_channel();
        let (hear, heard) = mpsc::unbounded_channel();
        let inner = Arc::new(Mutex::new(Inner::default()));
        let behaviour = Behaviour { api, manners, inner: Arc::clone(&inner) };
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    message = read(&mut reader) => {
                        let Some(message) = message else { return };
                        for answer in behaviour.answer(&message).await {
                            writer.write_all(&bytes_of(&answer)).await.unwrap();
                        }
                        if matches!(message, FromController::Arm(_)) && behaviour.manners.acknowledge == Acknowledge::Hang {
                            return;
                        }
                        let _ = hear.send(message);
                    }
                    said = to_say.recv() => match said {
                        Some(Some(message)) => writer.write_all(&bytes_of(&message)).await.unwrap(),
                        _ => return,
                    },
                }
            }
        });
        Sidecar { service, observer: ObserverId(observer), welcome, inner, say, heard, task }
    }

    /// Say something unasked.
    pub(crate) fn say(&self, message: FromSidecar) {
        self.say.send(Some(message)).unwrap();
    }

    /// What is open changes, and the controller hears of it.
    pub(crate) fn opens(&self, token: Token, open: &[OpenCall]) {
        let begun = {
            let mut inner = self.inner.lock().unwrap();
            let before = inner.open.insert(token, open.to_vec()).unwrap_or_default();
            let new = open.iter().filter(|call| !before.iter().any(|other| other.call == call.call)).count();
            let begun = inner.begun.entry(token).or_default();
            *begun += new as u64;
            *begun
        };
        self.say(FromSidecar::Activity { token, begun, open: open.to_vec() });
    }

    /// A call began and ended, so that the round has begun here.
    pub(crate) fn was_busy(&self, token: Token) {
        *self.inner.lock().unwrap().begun.entry(token).or_default() += 1;
    }

    /// Export these with the next flush.
    pub(crate) fn record(&self, spans: impl IntoIterator<Item = CallSpan>) {
        self.inner.lock().unwrap().recorded.extend(spans);
    }

    pub(crate) fn lose(&self, token: Token, spans: u64) {
        self.inner.lock().unwrap().lost_of.insert(token, spans);
    }

    /// Ordinary entry requests that ended, to be told when it is next asked.
    pub(crate) fn ordinary(&self, requests: u64, errors: u64) {
        self.inner.lock().unwrap().counters.ordinary = Ordinary { requests, errors };
    }

    pub(crate) fn unassociated(&self, calls: u64) {
        let counters = &mut self.inner.lock().unwrap().counters;
        counters.associations.insert(Association::Unassociated, calls);
        counters.unassociated.insert(convert(), calls);
    }

    /// The next message for which `pick` gives something; earlier ones are skipped.
    pub(crate) async fn hears<T>(&mut self, pick: impl Fn(&FromController) -> Option<T>) -> T {
        loop {
            let message = self.heard.recv().await.expect("the connection ended before the message came");
            if let Some(picked) = pick(&message) {
                return picked;
            }
        }
    }

    pub(crate) async fn hears_arm(&mut self) -> Arm {
        self.hears(|message| match message {
            FromController::Arm(arm) => Some(arm.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn hears_disarm(&mut self) -> Token {
        self.hears(|message| match message {
            FromController::Disarm { token } => Some(*token),
            _ => None,
        })
        .await
    }

    pub(crate) async fn hears_end(&mut self) -> Token {
        self.hears(|message| match message {
            FromController::End { token } => Some(*token),
            _ => None,
        })
        .await
    }

    pub(crate) async fn hears_registry(&mut self) -> Registry {
        self.hears(|message| match message {
            FromController::Registry(registry) => Some(registry.clone()),
            _ => None,
        })
        .await
    }

    /// Everything heard that was not looked at yet.
    pub(crate) fn backlog(&mut self) -> Vec<FromController> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
    }

    /// The process dies: the connection ends without a word.
    pub(crate) async fn dies(self) {
        let _ = self.say.send(None);
        let _ = self.task.await;
    }

    /// The controller ends the connection; everything heard until then.
    pub(crate) async fn farewell(mut self) -> Vec<FromController> {
        self.task.await.unwrap();
        let mut rest = Vec::new();
        while let Some(message) = self.heard.recv().await {
            rest.push(message);
        }
        rest
    }
}

struct Behaviour {
    api: Api,
    manners: Manners,
    inner: Arc<Mutex<Inner>>,
}

impl Behaviour {
    async fn answer(&self, message: &FromController) -> Vec<FromSidecar> {
        match message {
            FromController::Arm(Arm { token, .. }) => match &self.manners.acknowledge {
                Acknowledge::Yes => vec![FromSidecar::Armed { token: *token }],
                Acknowledge::Once if self.inner.lock().unwrap().acknowledged.insert(*token) => {
                    vec![FromSidecar::Armed { token: *token }]
                }
                Acknowledge::Refuse(reason) => {
                    vec![FromSidecar::NotArmed { token: *token, reason: reason.clone() }]
                }
                Acknowledge::Once | Acknowledge::Silent | Acknowledge::Hang => vec![],
            },
            FromController::Disarm { token } if !self.manners.no_disarmed => {
                // What the fault kept is let go.
                let kept = |call: &OpenCall| call.state == OpenState::Running;
                if let Some(open) = self.inner.lock().unwrap().open.get_mut(token) {
                    open.retain(kept);
                }
                vec![FromSidecar::Disarmed { token: *token }, self.activity(*token)]
            }
            FromController::Watch { token } if !self.manners.no_activity => vec![self.activity(*token)],
            FromController::Report => vec![FromSidecar::Counters(self.inner.lock().unwrap().counters.clone())],
            FromController::Flush { id } if !self.manners.no_flush => {
                let (spans, lost_of) = {
                    let mut inner = self.inner.lock().unwrap();
                    (std::mem::take(&mut inner.recorded), inner.lost_of.clone())
                };
                export(self.api, &spans).await;
                let lost = lost_of.values().sum();
                vec![FromSidecar::Flushed { id: *id, exported: spans.len() as u64, lost, lost_of }]
            }
            _ => vec![],
        }
    }

    fn activity(&self, token: Token) -> FromSidecar {
        let inner = self.inner.lock().unwrap();
        FromSidecar::Activity {
            token,
            begun: inner.begun.get(&token).copied().unwrap_or(0),
            open: inner.open.get(&token).cloned().unwrap_or_default(),
        }
    }
}

/// A real OTLP export.
pub(crate) async fn export(api: Api, spans: &[CallSpan]) {
    let answer = api.send("POST", "/v1/traces", "content-type: application/x-protobuf\r\n", &otlp::encode(spans)).await;
    assert_eq!((answer.status, answer.body.len()), (200, 0), "{}", answer.text());
}

/// Bytes to the end of a connection.
pub(crate) async fn rest(mut reader: BufReader<OwnedReadHalf>) -> String {
    let mut text = String::new();
    let _ = reader.read_to_string(&mut text).await;
    text
}
