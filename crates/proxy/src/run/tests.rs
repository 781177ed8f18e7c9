//! One sidecar process in a thread of sockets: a controller, a collector and an application that the test plays.

use std::time::Duration;

use aftershock_core::event::EventKind;
use aftershock_core::hop::Keyring;
use aftershock_core::otlp;
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side};
use aftershock_core::span::{CallSpan, Ending, PassedBy};
use aftershock_core::wire::{Arm, FromController, FromSidecar, Hello, MAX_LINE, PROTOCOL, Registry};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

mod cuts;

use super::*;
use crate::sidecar::testing::{KEYS, ROUND, event, rule};

const BUY: &str = "shop POST /buy";

/// Head and body of one HTTP/1.1 message with a `content-length`, or none at the end of the connection.
async fn read_message(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    loop {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return None;
        }
        if head.ends_with("\r\n\r\n") {
            break;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// The controller's end of the upgraded connection.
struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    async fn say(&mut self, word: &FromController) {
        let line = format!("{}\n", serde_json::to_string(word).unwrap());
        self.stream.get_mut().write_all(line.as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> FromSidecar {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).await.unwrap() > 0, "the sidecar closed the connection");
        serde_json::from_str(&line).unwrap()
    }

    /// The next word that `wanted` takes; activity and counters come in between.
    async fn expect<T>(&mut self, wanted: impl Fn(FromSidecar) -> Option<T>) -> T {
        loop {
            if let Some(word) = wanted(self.hear().await) {
                return word;
            }
        }
    }

    async fn welcome(&mut self) -> Hello {
        let FromSidecar::Hello(hello) = self.hear().await else { panic!("expected a hello") };
        self.say(&FromController::Welcome {
            protocol: PROTOCOL,
            version: "test".to_owned(),
            keys: Keyring(vec![KEYS]),
            registry: Registry::default(),
            late: Vec::new(),
        })
        .await;
        hello
    }

    async fn arm(&mut self, rules: Vec<Rule>, lease: Duration) {
        let received = event(EventKind::RequestReceived, BUY);
        self.say(&FromController::Arm(Arm {
            rules,
            events: vec![crate::sidecar::testing::counted(received)],
            ..Arm::clean(ROUND, lease)
        }))
        .await;
        assert_eq!(self.hear().await, FromSidecar::Armed { token: ROUND });
    }

    async fn flush(&mut self, id: u64) -> (u64, u64, BTreeMap<aftershock_core::id::Token, u64>) {
        self.say(&FromController::Flush { id }).await;
        assert!(matches!(self.hear().await, FromSidecar::Counters(_)), "counters go with every flush");
        let flushed = |word| match word {
            FromSidecar::Flushed { id: of, exported, lost, lost_of } if of == id => Some((exported, lost, lost_of)),
            _ => None,
        };
        self.expect(flushed).await
    }
}

/// Everything around one sidecar.
struct Stage {
    inbound: SocketAddr,
    controller: TcpListener,
    sessions: mpsc::UnboundedReceiver<Session>,
    spans: mpsc::UnboundedReceiver<CallSpan>,
    app: mpsc::UnboundedReceiver<String>,
    stop: Option<oneshot::Sender<()>>,
    sidecar: tokio::task::JoinHandle<Result<(), RunError>>,
}

/// Answers every request with 200, and tells what it saw.
async fn application(listener: TcpListener, seen: mpsc::UnboundedSender<String>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let seen = seen.clone();
        tokio::task::spawn_local(async move {
            let mut stream = BufReader::new(stream);
            while let Some((head, _)) = read_message(&mut stream).await {
                let _ = seen.send(head);
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            }
        });
    }
}

/// Serves one connection of the controller: an upgrade becomes a session, spans are collected.
async fn serve(
    stream: TcpStream,
    sessions: mpsc::UnboundedSender<Session>,
    spans: mpsc::UnboundedSender<CallSpan>,
    collects: bool,
) {
    let mut stream = BufReader::new(stream);
    while let Some((head, body)) = read_message(&mut stream).await {
        if head.starts_with("GET /v1/sidecar ") {
            let lower = head.to_lowercase();
            assert!(lower.contains("upgrade: aftershock/1\r\n") && lower.contains("connection: upgrade\r\n"), "{head}");
            let switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: aftershock/1\r\n\r\n";
            stream.get_mut().write_all(switch).await.unwrap();
            let _ = sessions.send(Session { stream });
            return;
        }
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let answer = if collects {
            otlp::decode(&body).unwrap().spans.into_iter().for_each(|span| drop(spans.send(span)));
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..]
        } else {
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
        };
        stream.get_mut().write_all(answer).await.unwrap();
    }
}

impl Stage {
    async fn set(collects: bool) -> (Stage, Session) {
        Self::with(collects, "").await
    }

    /// With further lines of configuration.
    async fn with(collects: bool, more: &str) -> (Stage, Session) {
        let app = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let controller = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\ncontrol: http://{}\n\
             inbound: [{{listen: \"127.0.0.1:0\", to: \"{}\"}}]\n{more}",
            controller.local_addr().unwrap(),
            app.local_addr().unwrap(),
        );
        let config = Config::parse("test", &text).unwrap();
        let (seen, app_seen) = mpsc::unbounded_channel();
        tokio::task::spawn_local(application(app, seen));
        let (stop, stopped) = oneshot::channel::<()>();
        let sidecar =
            tokio::task::spawn_local(run_local(config, async move { drop(stopped.await) }, std::future::pending()));
        let (_, sessions) = mpsc::unbounded_channel();
        let (_, spans) = mpsc::unbounded_channel();
        let inbound = "127.0.0.1:0".parse().unwrap();
        let mut stage = Stage { inbound, controller, sessions, spans, app: app_seen, stop: Some(stop), sidecar };
        let mut session = stage.control(collects).await;
        let hello = session.welcome().await;
        assert_eq!((hello.service.as_str(), hello.protocol), ("shop", PROTOCOL));
        stage.inbound = hello.inbound[0].parse().unwrap();
        (stage, session)
    }

    /// Begin to be the controller, as often as its port is there.
    async fn control(&mut self, collects: bool) -> Session {
        let address = self.controller.local_addr().unwrap();
        let (sessions, taken) = mpsc::unbounded_channel();
        let (spans, collected) = mpsc::unbounded_channel();
        (self.sessions, self.spans) = (taken, collected);
        let placeholder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = std::mem::replace(&mut self.controller, placeholder);
        assert_eq!(listener.local_addr().unwrap(), address);
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::task::spawn_local(serve(stream, sessions.clone(), spans.clone(), collects));
            }
        });
        self.session().await
    }

    /// The next connection of the sidecar.
    async fn session(&mut self) -> Session {
        self.sessions.recv().await.expect("the controller runs")
    }

    /// A client of the round: its connection, after the request was sent.
    async fn buy(&self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.inbound).await.unwrap();
        let request =
            format!("POST /buy HTTP/1.1\r\nhost: shop\r\ntracestate: aft=1-0-0-{ROUND}-0\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        BufReader::new(stream)
    }

    async fn status(stream: &mut BufReader<TcpStream>) -> Option<String> {
        let (head, _) = read_message(stream).await?;
        head.split(' ').nth(1).map(str::to_owned)
    }

    async fn stop(mut self) {
        let stop = self.stop.take().expect("it was not stopped before");
        stop.send(()).expect("the sidecar runs");
        self.sidecar.await.unwrap().unwrap();
    }
}

/// The test's own limit: nothing here waits for longer than leases of a second.
fn on_stage(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("it takes too long") };
    runtime.block_on(LocalSet::new().run_until(limited));
}

fn at_entry(phase: Phase, fault: Fault) -> Rule {
    rule("shop", Side::Callee, BUY, Occurrence::Number(1), phase, fault)
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_sidecar_registers_is_armed_faults_and_exports() {
    on_stage(async {
        let (mut stage, mut session) = Stage::set(true).await;
        let mut client = stage.buy().await;
        assert_eq!(Stage::status(&mut client).await.as_deref(), Some("200"), "nothing is armed");
        let seen = stage.app.recv().await.unwrap();
        assert!(seen.contains("tracestate: aft=1-") && !seen.contains("aftershock-hop"), "{seen}");
        session.arm(vec![at_entry(Phase::Request, Fault::Abort)], LONG).await;
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("503"));
        let fired = |word| matches!(word, FromSidecar::Fired { rule: 0, .. }).then_some(());
        session.expect(fired).await;
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("200"), "once in a round");
        assert!(stage.app.recv().await.unwrap().contains(&ROUND.to_string()));
        let (exported, lost, lost_of) = session.flush(7).await;
        assert_eq!((exported, lost, lost_of.len()), (2, 0, 0));
        let spans = [stage.spans.recv().await.unwrap(), stage.spans.recv().await.unwrap()];
        assert_eq!(spans.each_ref().map(|span| span.token), [ROUND; 2]);
        assert_eq!(spans.each_ref().map(|span| span.injection.is_some()), [true, false]);
        assert_eq!(spans[1].ending, Ending::Complete);
        stage.stop().await;
    });
}

#[test]
fn when_the_controller_dies_the_lease_ends_and_traffic_flows_throughout() {
    on_stage(async {
        let (mut stage, mut session) = Stage::set(true).await;
        let forever = Fault::Delay(Duration::from_secs(600).into());
        session.arm(vec![at_entry(Phase::Response, forever)], Duration::from_millis(400)).await;
        session.say(&FromController::Watch { token: ROUND }).await;
        let mut parked = stage.buy().await;
        let is_parked = |word| match word {
            FromSidecar::Activity { open, .. } => {
                open.iter().any(|call| call.state == aftershock_core::wire::OpenState::Parked).then_some(())
            }
            _ => None,
        };
        session.expect(is_parked).await;
        drop(session);
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("200"), "the connection is gone");
        assert_eq!(Stage::status(&mut parked).await.as_deref(), Some("200"), "parked until the lease ended");
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("200"), "nothing is faulted any more");
        let mut session = stage.session().await;
        session.welcome().await;
        let lapsed = |word| (word == FromSidecar::Lapsed { token: ROUND }).then_some(());
        session.expect(lapsed).await;
        stage.stop().await;
    });
}

#[test]
fn disarming_is_confirmed_after_what_was_parked_has_left() {
    on_stage(async {
        let (mut stage, mut session) = Stage::set(true).await;
        let forever = Fault::Delay(Duration::from_secs(600).into());
        session.arm(vec![at_entry(Phase::Request, forever)], LONG).await;
        let mut parked = stage.buy().await;
        let fired = |word| matches!(word, FromSidecar::Fired { .. }).then_some(());
        session.expect(fired).await;
        assert!(stage.app.try_recv().is_err(), "the application has not seen it");
        session.say(&FromController::Disarm { token: ROUND }).await;
        assert_eq!(session.hear().await, FromSidecar::Disarmed { token: ROUND });
        assert_eq!(Stage::status(&mut parked).await.as_deref(), Some("200"));
        stage.app.recv().await.unwrap();
        stage.stop().await;
    });
}

#[test]
fn a_collector_that_is_down_costs_spans_and_no_traffic() {
    on_stage(async {
        let (stage, mut session) = Stage::set(false).await;
        session.arm(Vec::new(), LONG).await;
        let mut client = stage.buy().await;
        assert_eq!(Stage::status(&mut client).await.as_deref(), Some("200"));
        let (exported, lost, lost_of) = session.flush(1).await;
        assert_eq!((exported, lost, lost_of), (0, 1, BTreeMap::from([(ROUND, 1)])));
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("200"));
        stage.stop().await;
    });
}

#[test]
fn a_controller_of_another_version_is_refused_and_asked_again() {
    on_stage(async {
        let (mut stage, session) = Stage::set(true).await;
        drop(session);
        let mut newer = stage.session().await;
        assert!(matches!(newer.hear().await, FromSidecar::Hello(_)));
        let welcome = FromController::Welcome {
            protocol: PROTOCOL + 1,
            version: "9.9.9".to_owned(),
            keys: Keyring::default(),
            registry: Registry::default(),
            late: Vec::new(),
        };
        newer.say(&welcome).await;
        let mut older = stage.session().await;
        assert!(matches!(older.hear().await, FromSidecar::Hello(_)));
        let other_form = format!("{{\"say\":\"welcome\",\"protocol\":{},\"keys\":\"none\"}}\n", PROTOCOL - 1);
        older.stream.get_mut().write_all(other_form.as_bytes()).await.unwrap();
        let mut long = stage.session().await;
        assert!(matches!(long.hear().await, FromSidecar::Hello(_)), "it closed the connection and came again");
        let _ = long.stream.get_mut().write_all(&vec![b'x'; MAX_LINE + 2]).await;
        let mut refusing = stage.session().await;
        assert!(matches!(refusing.hear().await, FromSidecar::Hello(_)), "a line without end is not read for ever");
        refusing.say(&FromController::Refused { reason: "no".to_owned() }).await;
        stage.session().await.welcome().await;
        assert_eq!(Stage::status(&mut stage.buy().await).await.as_deref(), Some("200"), "traffic flows throughout");
        stage.stop().await;
    });
}

#[test]
fn stopping_releases_what_is_parked_closes_what_is_dropped_and_sends_the_last_spans() {
    on_stage(async {
        let (stage, mut session) = Stage::set(true).await;
        let mut hold = at_entry(Phase::Request, Fault::Drop);
        hold.tfic.guard.after =
            vec![aftershock_core::plan::Atom::new(event(EventKind::RequestReceived, "shop GET /other"), 1)];
        hold.tfic.hold = Some(aftershock_core::plan::Hold { deadline: Duration::from_secs(600).into() });
        session.arm(vec![hold], LONG).await;
        session.say(&FromController::Watch { token: ROUND }).await;
        let mut parked = stage.buy().await;
        let is_parked = |word| match word {
            FromSidecar::Activity { open, .. } => {
                open.iter().any(|call| call.state == aftershock_core::wire::OpenState::Parked).then_some(())
            }
            _ => None,
        };
        session.expect(is_parked).await;
        let Stage { stop, sidecar, mut spans, .. } = stage;
        stop.unwrap().send(()).unwrap();
        assert_eq!(Stage::status(&mut parked).await.as_deref(), Some("200"));
        sidecar.await.unwrap().unwrap();
        let span = spans.recv().await.unwrap();
        assert_eq!(span.passes[0].passed_by, Some(PassedBy::Disarmed));
    });
}

#[test]
fn an_address_that_is_taken_is_named() {
    on_stage(async {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n\
             inbound: [{{listen: \"{address}\", to: \"127.0.0.1:1\"}}]\n"
        );
        let config = Config::parse("test", &text).unwrap();
        let error = run_local(config, std::future::pending(), std::future::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen on {address}"));
    });
}
