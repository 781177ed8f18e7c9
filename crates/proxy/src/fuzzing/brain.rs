//! The brain behind real editors: requests and responses with random heads, hostile and of our own making, through the
//! listeners of a sidecar with an armed round; words of the controller and time in between.
//!
//! Checked besides what the editors' contract asks for: nothing panics; every call that opens closes, and has its span;
//! no fault happens without a live lease; without keys everything passes as it came; when all links are gone and the round is
//! over, nothing is left.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use aftershock_core::hop::{HEADER, HopKey, Keyring};
use aftershock_core::id::{ExecutionId, ObserverId, Token};
use aftershock_core::wire::{Arm, FromController, FromSidecar, PROTOCOL, Registry, Ruling};

use super::Input;
use crate::config::Config;
use crate::exchange::{Decider, Door, Editor, LinkId, PeerEnd, Resume, StreamId};
use crate::h1;
use crate::sidecar::Sidecar;

const CONFIG: &str = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n\
    inbound: [{listen: \"127.0.0.1:80\", to: \"127.0.0.1:81\"}]\n\
    outbound:\n\
    \x20 - {listen: \"127.0.0.1:100\", callee: cart, to: [\"127.0.0.1:1000\"]}\n\
    \x20 - {listen: \"127.0.0.1:101\", callee: other, to: [\"127.0.0.1:1001\", \"127.0.0.1:1002\"]}\n\
    relay: [other]\n";

/// How the service beside the sidecar hands its context on.
const VARIANTS: [&str; 4] = [
    "",
    "association: {carrier: baggage}\naccept_relayed: true\n",
    "association: {carrier: uberctx}\nallow_detached: true\n",
    "record: tagged\nassociation: {exclusive: true, calls: [\"cart GET /items\"]}\n",
];

const TOKEN: Token = Token(0xa11ce);
const KEY: HopKey = HopKey { id: 3, secret: *b"for fuzzing only" };

/// Field lines that a head may have.
const LINES: [&str; 20] = [
    "Host: cart",
    "traceparent: 00-0000000000000000000000000000000a-000000000000000b-01",
    "traceparent: 00-000000000000000000000000000000ff-000000000000000b-01",
    "tracestate: aft=1-0-0-00000000000a11ce-0",
    "tracestate: aft=1-0-0-00000000000a11ce-0000000a",
    "tracestate: aft=1-0000000000000009-0-00000000000a11ce-0",
    "tracestate: aft=1-0000000000000009-0000000000000008-00000000000a11ce-0",
    "tracestate: x=y,aft=1-0000000000000009-0000000000000008-00000000000dead0-0",
    "baggage: user=7,aft=1-0-0-00000000000a11ce-0",
    "uberctx-aft: 1-0000000000000009-0000000000000008-00000000000a11ce-0",
    "uber-trace-id: a:b:0:1",
    "b3: 0000000000000000000000000000000a-000000000000000b-1",
    "x-request-id: one",
    "x-request-id: two",
    "user-agent: kube-probe/1",
    "aftershock-hop: AQMAAAAAAAAAAQ",
    "content-type: application/grpc",
    "connection: close",
    "expect: 100-continue",
    "aftershock-hop: Ag",
];

/// What the round does. Left out of an arming, by its position, as the input says.
const RULES: [&str; 6] = [
    r#"{"side":"caller","apis":["cart GET /items"],"arbitrated":false,"tfic":{"target":{"caller":"shop","api":"cart GET /items","k":2,"phase":"request"},"fault":"drop","max_injections":"unlimited"}}"#,
    r#"{"side":"caller","apis":["cart GET /items"],"arbitrated":false,"tfic":{"target":{"caller":"shop","api":"cart GET /items","k":1,"phase":"response"},"fault":{"delay":"100ms"},"max_injections":"unlimited"}}"#,
    r#"{"side":"callee","apis":["shop POST /buy"],"arbitrated":false,"tfic":{"target":{"api":"shop POST /buy","k":"first","phase":"response"},"fault":"abort","guard":{"after":[{"event":"response-received","api":"cart GET /items","count":1}]},"hold":{"deadline":"300ms"},"max_injections":"unlimited"}}"#,
    r#"{"side":"caller","apis":["cart GET /items"],"arbitrated":true,"tfic":{"target":{"caller":"shop","api":"cart GET /items","k":"first","phase":"request"},"fault":{"error":404},"guard":{"after":[{"event":"request-sent","api":"other GET /items","count":1}]},"hold":{"deadline":"1s"},"max_injections":3}}"#,
    r#"{"side":"caller","apis":["other GET /items"],"arbitrated":false,"tfic":{"target":{"caller":"shop","api":"other GET /items","k":"first","phase":"response","at":{"bytes":1}},"fault":"reset"}}"#,
    r#"{"side":"caller","apis":["other GET /items"],"arbitrated":true,"tfic":{"target":{"caller":"shop","api":"other GET /items","k":1,"phase":"response","post_effect":true},"fault":"drop"}}"#,
];

/// A connection pair with its editor.
struct Connection {
    id: LinkId,
    inbound: bool,
    link: h1::Link,
    /// The lines of our own in what went to the application or came out towards a callee last.
    came_up: Vec<u8>,
    went_up: Vec<u8>,
    came_down: Vec<u8>,
    went_down: Vec<u8>,
}

struct World {
    sidecar: Sidecar,
    now: Instant,
    connections: Vec<Connection>,
    /// What the sidecar wrote into messages: hop headers and members, to be handed on, replayed and mixed up.
    seen: Vec<String>,
    /// Questions of the arbitrated rules.
    asked: Vec<aftershock_core::wire::Ask>,
    registered: bool,
    /// It was, at least once.
    armed: bool,
}

pub(super) fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut world = World::new(input.byte());
    while !input.is_empty() {
        world.step(&mut input);
        world.settle();
    }
    world.end();
}

impl World {
    fn new(mode: u8) -> Self {
        static CONFIGS: LazyLock<[Config; 4]> = LazyLock::new(|| {
            VARIANTS.map(|variant| {
                Config::parse("fuzzing", &format!("{CONFIG}{variant}")).unwrap_or_else(|error| panic!("{error}"))
            })
        });
        let config = CONFIGS[usize::from(mode / 2) % CONFIGS.len()].clone();
        let mut number = 0x1234_5678_9abc_def0_u64;
        let random = move || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            number ^ number >> 29
        };
        let sidecar = Sidecar::new(config, ObserverId(5), Box::new(random), Box::new(|| 7));
        let mut world = World {
            sidecar,
            now: Instant::now(),
            connections: Vec::new(),
            seen: Vec::new(),
            asked: Vec::new(),
            registered: false,
            armed: false,
        };
        if mode & 1 == 0 {
            world.register();
        }
        world
    }

    fn register(&mut self) {
        let service = |name: &str| name.parse().unwrap();
        let registry = Registry {
            addresses: [("127.0.0.1:1000".to_owned(), service("cart"))].into(),
            services: [service("cart"), service("shop")].into(),
            templates: [(service("cart"), vec!["GET /items/{item}".to_owned()])].into(),
            ..Registry::default()
        };
        let (version, keys) = (String::new(), Keyring(vec![KEY]));
        let word = FromController::Welcome { protocol: PROTOCOL, version, keys, registry, late: vec![Token(0xdead0)] };
        self.sidecar.on_control(word, self.now);
        self.registered = true;
    }

    fn arm(&mut self, rules: u8, how: u8) {
        let chosen = RULES.iter().enumerate().filter(|(index, _)| rules >> index & 1 == 1);
        let rules = chosen.map(|(index, text)| {
            let mut rule: serde_json::Value = serde_json::from_str(text).unwrap();
            rule["index"] = index.into();
            rule["service"] = "shop".into();
            serde_json::from_value(rule).unwrap()
        });
        let counted = r#"[
            {"event":{"event":"response-received","api":"cart GET /items"},"apis":["cart GET /items"]},
            {"event":{"event":"request-sent","api":"other GET /items"},"apis":["other GET /items"]}]"#;
        let arm = Arm {
            rules: rules.collect(),
            events: serde_json::from_str(counted).unwrap(),
            constant_context: how & 1 == 1,
            max_parked: usize::from(how / 2 % 4),
            gap_apis: ["cart GET /items".parse().unwrap()].into(),
            ..Arm::clean(TOKEN, Duration::from_secs(10))
        };
        self.sidecar.on_control(FromController::Arm(arm), self.now);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..16 => self.open(input.below(3)),
            16..96 => self.request(input),
            96..160 => self.response(input),
            160..176 => {
                let at = input.byte();
                let app = input.byte() & 1 == 0;
                let piece = input.piece().to_vec();
                self.feed(at, app, &piece);
            }
            176..184 => self.arm(input.byte(), input.byte()),
            184 => self.register(),
            185..188 => self.sidecar.on_control(FromController::Disarm { token: TOKEN }, self.now),
            188 => self.sidecar.on_control(FromController::End { token: TOKEN }, self.now),
            189 => self.sidecar.on_control(FromController::Renew { token: TOKEN }, self.now),
            190 => self.sidecar.on_control(FromController::Watch { token: TOKEN }, self.now),
            191..200 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 20);
                self.sidecar.on_time(self.now);
            }
            200..220 => self.rule(input),
            220..236 => {
                let at = input.byte();
                let end = input.pick(&[PeerEnd::Eof, PeerEnd::Broken, PeerEnd::Refused]);
                let app = input.byte() & 1 == 0 && end != PeerEnd::Refused;
                self.with(at, |link, decide| match app {
                    true => link.app_end(end, decide),
                    false => link.upstream_end(end, decide),
                });
            }
            _ => self.close(input.byte()),
        }
    }

    fn open(&mut self, door: usize) {
        if self.connections.len() == 8 {
            return;
        }
        let door = [Door::Inbound(0), Door::Outbound(0), Door::Outbound(1)][door];
        let id = self.sidecar.opened(door);
        let inbound = matches!(door, Door::Inbound(_));
        let none = Vec::new;
        self.connections.push(Connection {
            id,
            inbound,
            link: h1::Link::new(),
            came_up: none(),
            went_up: none(),
            came_down: none(),
            went_down: none(),
        });
    }

    /// Field lines: of the list, of what was seen before, or any.
    fn lines(&self, input: &mut Input<'_>) -> String {
        let mut text = String::new();
        for _ in 0..input.below(6) {
            match input.byte() {
                choice @ 0..128 => text.push_str(LINES[usize::from(choice) % LINES.len()]),
                choice @ 128..240 if !self.seen.is_empty() => {
                    text.push_str(&self.seen[self.seen.len() - 1 - usize::from(choice - 128) % self.seen.len()]);
                }
                choice => {
                    let names = ["tracestate", "baggage", HEADER, "traceparent", "b3", "uberctx-aft"];
                    text.push_str(names[usize::from(choice) % names.len()]);
                    text.push_str(": ");
                    text.extend(
                        input.piece().iter().map(|byte| char::from(byte & 0x7f)).filter(char::is_ascii_graphic),
                    );
                }
            }
            text.push_str("\r\n");
        }
        text
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let at = input.byte();
        let line = input.pick(&["GET /items", "POST /buy", "GET /items/7", "GET /other", "CONNECT a:1"]);
        let lines = self.lines(input);
        let (length, body) = if input.byte() & 1 == 0 { ("", "") } else { ("content-length: 3\r\n", "abc") };
        self.feed(at, true, format!("{line} HTTP/1.1\r\n{lines}{length}\r\n{body}").as_bytes());
    }

    fn response(&mut self, input: &mut Input<'_>) {
        let at = input.byte();
        let status = input.pick(&["200 OK", "503 No", "103 Early", "404 Not", "204 None"]);
        let lines = self.lines(input);
        let (framing, body) = input.pick(&[
            ("content-length: 2\r\n", "ok"),
            ("content-length: 0\r\n", ""),
            ("transfer-encoding: chunked\r\n", "2\r\nok\r\n0\r\nt: v\r\n\r\n"),
            ("", ""),
        ]);
        self.feed(at, false, format!("HTTP/1.1 {status}\r\n{lines}{framing}\r\n{body}").as_bytes());
    }

    fn feed(&mut self, at: u8, app: bool, bytes: &[u8]) {
        let count = self.connections.len();
        let Some(connection) = self.connections.get_mut(usize::from(at) % count.max(1)) else { return };
        let wanted = if app { connection.link.wants_app() } else { connection.link.wants_upstream() };
        if !wanted {
            return;
        }
        let came = if app { &mut connection.came_up } else { &mut connection.came_down };
        came.extend_from_slice(bytes);
        self.with(at, |link, decide| match app {
            true => link.app_bytes(bytes, decide),
            false => link.upstream_bytes(bytes, decide),
        });
    }

    fn with(&mut self, at: u8, call: impl Fn(&mut h1::Link, &mut dyn crate::exchange::Interceptor)) {
        let count = self.connections.len();
        let Some(connection) = self.connections.get_mut(usize::from(at) % count.max(1)) else { return };
        self.sidecar.intercept(connection.id, self.now, &mut |decide| call(&mut connection.link, decide));
    }

    /// An answer of the arbiter: to a question, to one that was answered, or to none.
    fn rule(&mut self, input: &mut Input<'_>) {
        let ruling = match input.byte() % 8 {
            0..=3 => Ruling::Grant,
            4 => Ruling::Number,
            5 => Ruling::NotYet(vec![input.byte().into()]),
            _ => Ruling::Spent,
        };
        let Some(ask) = self.asked.get(usize::from(input.byte()) % self.asked.len().max(1)).cloned() else { return };
        let (execution, rule) = match input.byte() {
            0 => (ExecutionId(77), 99),
            _ => (ask.execution, ask.rule),
        };
        let number = u32::from(input.byte());
        let word = FromController::Ruled { token: ask.token, rule, execution, call: ask.call, number, ruling };
        self.sidecar.on_control(word, self.now);
    }

    fn close(&mut self, at: u8) {
        if self.connections.is_empty() {
            return;
        }
        let mut connection = self.connections.remove(usize::from(at) % self.connections.len());
        self.take_output(&mut connection);
        let Connection { id, link, .. } = &mut connection;
        self.sidecar.intercept(*id, self.now, &mut |decide| link.app_end(PeerEnd::Broken, decide));
        self.sidecar.gone(*id);
    }

    /// What the editors put out is seen, then what may go on goes on, until nothing does.
    fn settle(&mut self) {
        loop {
            for at in 0..self.connections.len() {
                let mut connection = self.connections.swap_remove(at);
                self.take_output(&mut connection);
                self.connections.push(connection);
                let last = self.connections.len() - 1;
                self.connections.swap(at, last);
            }
            let resumes: Vec<(LinkId, StreamId, Resume)> = self.sidecar.resumes();
            if resumes.is_empty() {
                break;
            }
            for (id, stream, resume) in resumes {
                let Some(connection) = self.connections.iter_mut().find(|known| known.id == id) else { continue };
                let link = &mut connection.link;
                self.sidecar.intercept(id, self.now, &mut |decide| link.resume(stream, resume.clone(), decide));
            }
        }
        for word in self.sidecar.take_control() {
            match word {
                FromSidecar::Ask(ask) => self.asked.push(ask),
                FromSidecar::Armed { .. } => self.armed = true,
                FromSidecar::NotArmed { reason, .. } => assert!(!self.registered, "not armed: {reason}"),
                _ => {}
            }
        }
        for span in self.sidecar.take_spans() {
            assert!(span.injection.is_none() || self.armed, "a fault without a round");
            assert!(self.registered, "without keys nothing is recorded");
        }
    }

    fn take_output(&mut self, connection: &mut Connection) {
        let out = connection.link.output();
        connection.went_up.extend_from_slice(&out.to_upstream.split());
        connection.went_down.extend_from_slice(&out.to_app.split());
        if !self.registered {
            assert!(connection.came_up.starts_with(&connection.went_up), "without keys everything passes as it came");
        }
        // What an application, or the next sidecar, gets to see of ours.
        let text =
            String::from_utf8_lossy(if connection.inbound { &connection.went_up } else { &connection.went_down });
        let other =
            String::from_utf8_lossy(if connection.inbound { &connection.went_down } else { &connection.went_up });
        for line in text.lines().chain(other.lines()) {
            let ours = ["tracestate:", "traceparent:", "aftershock-hop:", "baggage:", "uberctx-aft:"];
            if ours.iter().any(|name| line.starts_with(name)) && !self.seen.iter().any(|known| known == line) {
                self.seen.push(line.to_owned());
            }
        }
    }

    fn end(mut self) {
        while !self.connections.is_empty() {
            self.close(0);
            self.settle();
        }
        self.sidecar.on_control(FromController::End { token: TOKEN }, self.now);
        self.now += Duration::from_secs(120);
        self.sidecar.on_time(self.now);
        self.sidecar.shutdown();
        self.settle();
        let left = self.sidecar.remains();
        assert!(left.is_empty(), "left behind: {left:?}");
        assert!(self.sidecar.live_tokens().is_empty());
        let mut counts: BTreeMap<Token, usize> = BTreeMap::new();
        for word in self.sidecar.take_control() {
            if let FromSidecar::Activity { token, open, .. } = word {
                counts.insert(token, open.len());
            }
        }
        assert!(counts.values().all(|open| *open == 0), "calls are open without links: {counts:?}");
    }
}
