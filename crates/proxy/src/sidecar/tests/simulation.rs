//! Whole systems at random, whose truth only the simulation knows: no call is ever tied to the wrong execution, whatever
//! the ladder has to go by (design §3.1).
//!
//! Services answer before their own calls are done, call back into services above them, go on working for clients that
//! have been answered, poll and refresh on timers, lose context on some of their calls, keep members of old requests.
//! Clients come with correlation ids of their own, with ids that others use too, or with none; some declare a sequence
//! of requests to be one execution, most belong to no round. Each handler hands on the header fields that it got. What
//! the sidecars make of that is compared with what the simulation knows.
//!
//! What no sidecar can know is left out, as `docs/association.md` says: an id of a client under which an application
//! does other work of its own, and work that goes on for longer than the linger time after the call that began it where
//! that work carries nothing of its own.
//!
//! `AFTERSHOCK_SIMULATED_SYSTEMS` asks for more than the usual number of systems.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan};
use aftershock_core::w3c::TraceParent;

use crate::exchange::Closed;
use crate::sidecar::testing::*;

const LINGER: u64 = 30_000;
const SERVICES: [&str; 5] = ["front", "cart", "order", "payment", "stock"];
const IDS: [&str; 4] = ["x-request-id", "uber-trace-id", "b3", "traceparent"];
/// How many systems there are, with [`EXECUTIONS`] each.
const SYSTEMS: u64 = 300;
const EXECUTIONS: usize = 40;

struct Dice(u64);

impl Dice {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// How the application of a service treats what it gets.
struct App {
    hands_on: Vec<&'static str>,
    /// How many of its calls in a hundred go without.
    loses: u64,
    exclusive: bool,
    /// The first `tracestate` that it got, where a client object keeps it.
    frozen: Option<Option<String>>,
}

/// A client request of the simulation, and all that it causes.
struct Execution {
    /// What the sidecars call it, once its first request came in.
    named: Option<(Token, ExecutionId)>,
    /// Nobody else uses its ids.
    unique: bool,
}

/// One request being served.
struct Handler {
    service: &'static str,
    seen: Request,
    /// The execution it works for; none for what a timer began.
    truth: Option<usize>,
    into: Leg,
    /// The caller's side of the same call, where the caller has a sidecar.
    out: Option<Leg>,
    depth: u32,
    ended: Option<u64>,
}

#[derive(Clone, Copy)]
enum Event {
    Enter,
    Call { handler: usize },
    Answer { handler: usize },
    GiveUp { handler: usize },
    Timer { service: &'static str },
}

struct System {
    seed: u64,
    few: bool,
    dice: Dice,
    net: Net,
    start: std::time::Instant,
    services: Vec<&'static str>,
    apps: BTreeMap<&'static str, App>,
    executions: Vec<Execution>,
    handlers: Vec<Handler>,
    queue: BTreeMap<(u64, u64), Event>,
    now: u64,
    last: u64,
    /// Whose each call is.
    truth: BTreeMap<CallId, Option<usize>>,
    spans: Vec<CallSpan>,
}

/// What came of the calls of many systems.
#[derive(Debug, Default)]
struct Tally {
    executions: usize,
    steps: BTreeMap<Association, u64>,
    /// Calls that were tied to the wrong execution.
    wrong: Vec<String>,
}

impl System {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let count = 2 + dice.below(4) as usize;
        let services = SERVICES[..count].to_vec();
        let mut apps = BTreeMap::new();
        let mut configured = Vec::new();
        for service in &services {
            let correlate: Vec<&str> = IDS.iter().copied().filter(|_| dice.percent(50)).collect();
            let exclusive = dice.percent(60);
            let mut hands_on: Vec<&str> = IDS[..3].iter().copied().filter(|_| dice.percent(60)).collect();
            match dice.below(4) {
                0 | 1 => hands_on.extend(["traceparent", "tracestate"]),
                2 => hands_on.push("traceparent"),
                _ => {}
            }
            if dice.percent(15) {
                hands_on.clear();
            }
            let frozen = dice.percent(20).then_some(None);
            let loses = dice.one_of(&[0, 0, 10, 50]);
            apps.insert(*service, App { hands_on, loses, exclusive, frozen });
            let association = format!("{{correlate: [{}], exclusive: {exclusive}}}", correlate.join(", "));
            configured.push((*service, format!("record: all\nassociation: {association}\n")));
        }
        let configured: Vec<(&str, &str)> =
            configured.iter().map(|(service, text)| (*service, text.as_str())).collect();
        let mut net = Net::configured(&configured, &services);
        net.register(&services);
        net.arm_with(&[], &[], |arm| {
            arm.lease = Duration::from_secs(1 << 20);
            arm.known_calls = services.iter().map(|service| api(&format!("{service} POST /work"))).collect();
        });
        // Some have memory for few calls, as busy ones have.
        let few = dice.percent(40);
        if few {
            let most = 1 + dice.below(24) as usize;
            for service in &services {
                net.sidecar(service).remember_at_most(most);
            }
        }
        let mut system = System {
            seed,
            few,
            start: net.now,
            dice,
            net,
            services,
            apps,
            executions: Vec::new(),
            handlers: Vec::new(),
            queue: BTreeMap::new(),
            now: 0,
            last: 0,
            truth: BTreeMap::new(),
            spans: Vec::new(),
        };
        // Busy ones, and ones in which executions are far apart.
        let between = system.dice.one_of(&[20, 500, 40_000]);
        let mut at = 0;
        for _ in 0..EXECUTIONS {
            at += system.dice.below(between);
            system.at(at, Event::Enter);
        }
        for service in system.services.clone() {
            for _ in 0..system.dice.below(4) {
                let when = system.dice.below(at + 1);
                system.at(when, Event::Timer { service });
            }
        }
        system
    }

    fn at(&mut self, when: u64, event: Event) {
        self.last += 1;
        self.queue.insert((when, self.last), event);
    }

    fn run(&mut self) {
        while let Some(((now, _), event)) = self.queue.pop_first() {
            self.now = now;
            self.net.now = self.start + Duration::from_millis(now);
            match event {
                Event::Enter => self.enter(),
                Event::Call { handler } => self.call(handler),
                Event::Answer { handler } => self.end(handler, false),
                Event::GiveUp { handler } => self.end(handler, true),
                Event::Timer { service } => self.timer(service),
            }
        }
        self.spans.extend(self.net.all_spans());
    }

    /// Correlation ids of a client: its own, some that others use, or none.
    fn ids(&mut self, mut request: Request, shared: bool) -> Request {
        for name in IDS {
            if self.dice.percent(40) {
                continue;
            }
            // A trace is a client's own, as the standard has it; the others may be anything.
            let n = if shared && name != "traceparent" { 1 + self.dice.below(3) } else { self.dice.draw() | 1 << 63 };
            let value = match name {
                "traceparent" => {
                    TraceParent { version: 0, trace_id: u128::from(n), parent_id: 7, flags: 1 }.to_string()
                }
                "uber-trace-id" => format!("{n:x}:1:0:1"),
                "b3" => format!("{n:032x}-{:016x}-1", 7),
                _ => format!("id-{n:x}"),
            };
            request = request.with(name, &value);
        }
        request
    }

    fn enter(&mut self) {
        let service = self.dice.one_of(&self.services.clone());
        let shared = self.dice.percent(40);
        let known = self.executions.len() as u64;
        let declared = self.dice.percent(15);
        let (truth, token) = if declared {
            // A sequence of one to many requests.
            let slot = self.dice.below(3);
            let id = ExecutionId(0xdec1a7ed0 + slot);
            let named = Some((ROUND, id));
            let truth = self.executions.iter().position(|execution| execution.named == named).unwrap_or_else(|| {
                self.executions.push(Execution { named, unique: false });
                known as usize
            });
            (truth, format!("aft=1-{id}-0-{ROUND}-0"))
        } else {
            self.executions.push(Execution { named: None, unique: !shared });
            let round = self.dice.percent(50);
            (known as usize, if round { format!("aft=1-0-0-{ROUND}-0") } else { String::new() })
        };
        let mut request = self.ids(Request::http("POST", "/work"), shared);
        if !token.is_empty() {
            request = request.with("tracestate", &token);
        }
        let (into, passage) = self.net.come_in(service, request);
        let seen = passage.through();
        let member = seen.member().expect("an entry's application is told its member");
        let named = (member.token, member.execution);
        assert_eq!(*self.executions[truth].named.get_or_insert(named), named, "seed {}", self.seed);
        self.truth.insert(member.call, Some(truth));
        self.serve(Handler { service, seen, truth: Some(truth), into, out: None, depth: 0, ended: None });
    }

    /// A request has come in: what its handler will do, and when.
    fn serve(&mut self, handler: Handler) {
        let (index, depth, service) = (self.handlers.len(), handler.depth, handler.service);
        if let Some(App { frozen: Some(kept @ None), .. }) = self.apps.get_mut(service) {
            *kept = handler.seen.get("tracestate").map(str::to_owned);
        }
        self.handlers.push(handler);
        let pace = self.dice.one_of(&[20, 200, 20_000]);
        let answer = self.now + self.dice.below(pace);
        let most = if self.handlers[index].truth.is_some() { 4 } else { 2 };
        let calls = if depth < 3 { self.dice.below(most) } else { 0 };
        for _ in 0..calls {
            // Some after the answer, some of those long after it.
            let when = match self.dice.below(10) {
                0 => answer + self.dice.below(LINGER * 2),
                1 | 2 => answer + self.dice.below(100),
                _ => self.now + self.dice.below(pace),
            };
            self.at(when, Event::Call { handler: index });
        }
        if self.dice.percent(5) {
            let when = self.now + self.dice.below(pace);
            self.at(when, Event::GiveUp { handler: index });
        }
        self.at(answer, Event::Answer { handler: index });
    }

    /// Whether this work carries nothing by which it could be told from that of others: it has gone on for too long.
    fn is_beyond(&self, handler: &Handler) -> bool {
        let late = handler.ended.is_some_and(|at| self.now - at > LINGER);
        let unique = handler.truth.is_none_or(|truth| self.executions[truth].unique);
        late && (self.apps[handler.service].exclusive || !unique)
    }

    fn call(&mut self, index: usize) {
        let handler = &self.handlers[index];
        if self.is_beyond(handler) {
            return;
        }
        let (service, truth, depth) = (handler.service, handler.truth, handler.depth);
        let app = &self.apps[service];
        let lost = self.dice.percent(app.loses);
        let mut request = Request::http("POST", "/work");
        if !lost {
            request = request.hands_on(&handler.seen, &app.hands_on);
            if let Some(Some(kept)) = &app.frozen
                && self.dice.percent(50)
            {
                request.lines.retain(|(name, _)| name != "tracestate");
                request = request.with("tracestate", kept);
                // Beside the trace at hand, or beside none.
                if self.dice.percent(20) {
                    request.lines.retain(|(name, _)| name != "traceparent");
                } else if request.get("traceparent").is_none() {
                    let seen = handler.seen.get("traceparent").map(str::to_owned);
                    request.lines.extend(seen.map(|value| ("traceparent".to_owned(), value)));
                }
            }
        }
        let callee = self.dice.one_of(&self.services.clone());
        self.send(service, callee, request, truth, depth + 1);
    }

    /// A timer of a service: it polls, refreshes a cache, or works for nobody in particular, with an id of its own.
    fn timer(&mut self, service: &'static str) {
        let exclusive = self.apps[service].exclusive;
        // What `exclusive` may claim is configured: work of timers is not among it.
        let path = if exclusive || self.dice.percent(50) { "/poll" } else { "/work" };
        let request = Request::http("POST", path);
        let request = match self.dice.below(3) {
            0 => request.with("x-request-id", &format!("refresh-of-{service}")),
            1 => request.with("x-request-id", &format!("tick-{}", self.dice.draw())),
            _ => request,
        };
        let callee = self.dice.one_of(&self.services.clone());
        self.send(service, callee, request, None, 1);
        if self.dice.percent(50) {
            let when = self.now + self.dice.below(20_000);
            self.at(when, Event::Timer { service });
        }
    }

    fn send(
        &mut self,
        service: &'static str,
        callee: &'static str,
        request: Request,
        truth: Option<usize>,
        depth: u32,
    ) {
        let (out, passage) = self.net.go_out(service, callee, request);
        let sent = passage.through();
        if let Some(member) = sent.member() {
            self.truth.insert(member.call, truth);
        }
        let (into, passage) = self.net.come_in(callee, sent);
        let seen = passage.through();
        self.serve(Handler { service: callee, seen, truth, into, out: Some(out), depth, ended: None });
    }

    fn end(&mut self, index: usize, gives_up: bool) {
        let now = self.now;
        let handler = &mut self.handlers[index];
        if handler.ended.replace(now).is_some() {
            // It had ended before, and that is when it did.
            return;
        }
        let (into, out) = (handler.into.clone(), handler.out.clone());
        if gives_up {
            for leg in out.iter().chain([&into]) {
                self.net.close(leg, Closed::ByApplication);
            }
        } else {
            let answer = self.net.response(&into, Response::http(200)).through();
            if let Some(out) = out {
                self.net.response(&out, answer).through();
            }
        }
        self.spans.extend(self.net.all_spans());
    }

    /// Compare what the sidecars said with the truth.
    fn check(&self, tally: &mut Tally) {
        for span in &self.spans {
            if span.side == Side::Caller {
                *tally.steps.entry(span.association).or_default() += 1;
            }
            if span.execution.is_zero() {
                continue;
            }
            let truth = self.truth[&span.call];
            let said = Some((span.token, span.execution));
            let is = truth.and_then(|truth| self.executions[truth].named);
            if said != is {
                let (seed, few) = (self.seed, self.few);
                tally.wrong.push(format!(
                    "seed {seed}, few {few}: {} at {} by {}, {said:?} is {is:?}",
                    span.api, span.service, span.association
                ));
            }
        }
        tally.executions += self.executions.len();
    }
}

fn simulate(seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let mut system = System::new(seed);
        system.run();
        system.check(&mut tally);
    }
    tally
}

#[test]
fn no_call_of_any_system_is_tied_to_the_wrong_execution() {
    let systems = std::env::var("AFTERSHOCK_SIMULATED_SYSTEMS").ok();
    let systems = systems.map_or(SYSTEMS, |text| text.parse().expect("AFTERSHOCK_SIMULATED_SYSTEMS is a number"));
    let tally = simulate(0..systems);
    let some = &tally.wrong[..tally.wrong.len().min(20)];
    assert!(some.is_empty(), "{} calls of the wrong execution: {some:#?} {:?}", tally.wrong.len(), tally.steps);
    if systems >= SYSTEMS {
        assert!(tally.executions >= 10_000, "{tally:?}");
    }
    let reached: BTreeSet<Association> = tally.steps.keys().copied().collect();
    let all: BTreeSet<Association> =
        Association::ALL.into_iter().filter(|step| *step != Association::Relayed).collect();
    assert_eq!(reached, all, "the simulation is about every step but that of hops without sidecar: {tally:?}");
    for step in all {
        assert!(tally.steps[&step] >= systems / 3, "{tally:?}");
    }
}
