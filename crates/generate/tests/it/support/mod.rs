//! A small simulator of executions: a call tree with service times, latencies and parallel branches becomes timed
//! boundary events; a second pass over them keeps for every sidecar the true set of occurrences it has heard of. It
//! shares no code with the sidecar or with the replay: it produces what they are judged by.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{ApiRef, Event, EventKind, Outcome, OutcomeFilter};
use aftershock_core::evidence::Gaps;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan, Ending, Instant};
use aftershock_core::trace::Trace;

pub(crate) mod random;

/// Microseconds of simulated time.
pub(crate) type Micros = u64;

/// A call and what its handler does.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) api: Api,
    /// Before the first step.
    pub(crate) work: Micros,
    pub(crate) steps: Vec<Todo>,
    pub(crate) outcome: Outcome,
}

/// A step of a handler.
#[derive(Debug, Clone)]
pub(crate) enum Todo {
    Call(Node),
    /// Branches that start together. The handler goes on when all have ended, or, with `first`, when one has; the
    /// others run on.
    Parallel {
        branches: Vec<Vec<Todo>>,
        first: bool,
    },
}

pub(crate) fn api(text: &str) -> Api {
    text.parse().unwrap()
}

pub(crate) fn call(text: &str, work: Micros, steps: Vec<Todo>) -> Node {
    Node { api: api(text), work, steps, outcome: Outcome::Ok }
}

pub(crate) fn leaf(text: &str, work: Micros) -> Todo {
    Todo::Call(call(text, work, Vec::new()))
}

pub(crate) fn parallel(branches: Vec<Vec<Todo>>) -> Todo {
    Todo::Parallel { branches, first: false }
}

/// SplitMix64: enough for test inputs, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A boundary event before it has a clock.
#[derive(Debug, Clone)]
struct Raw {
    at: Micros,
    order: usize,
    call: usize,
    event: EventKind,
}

#[derive(Debug, Clone)]
struct RawCall {
    parent: Option<usize>,
    /// Which instance of the callee handles it.
    instance: u64,
    api: Api,
    caller: Option<Service>,
    outcome: Outcome,
}

/// Never: what depends on a parked message.
const NEVER: Micros = Micros::MAX;

/// How an execution goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    /// Instances per service.
    pub(crate) replicas: u64,
    /// A message that is kept for ever: by its sidecar, after it arrived there.
    pub(crate) parked: Option<Happened>,
}

struct Timeline {
    random: Random,
    course: Course,
    calls: Vec<RawCall>,
    events: Vec<Raw>,
}

impl Timeline {
    /// The instant happens; returns when the message goes on.
    fn event(&mut self, at: Micros, call: usize, event: EventKind) -> Micros {
        let order = self.events.len();
        let parked = self.course.parked == Some((id(call), event));
        if at < NEVER {
            self.events.push(Raw { at, order, call, event });
        }
        if parked { NEVER } else { at }
    }

    fn later(&mut self, at: Micros, least: Micros, spread: u64) -> Micros {
        at.saturating_add(least + self.random.below(spread))
    }

    /// Returns when the answer is back at the caller.
    fn call(&mut self, node: &Node, parent: Option<usize>, at: Micros) -> Micros {
        let call = self.calls.len();
        let caller = parent.map(|parent: usize| self.calls[parent].api.service.clone());
        let instance = self.random.below(self.course.replicas);
        self.calls.push(RawCall { parent, instance, api: node.api.clone(), caller, outcome: node.outcome });
        let client = parent.is_some();
        let sent = if client { self.event(at, call, EventKind::RequestSent) } else { at };
        let came = self.later(sent, 100, 400);
        let began = self.event(came, call, EventKind::RequestReceived);
        let ready = self.later(began, node.work, 200);
        let ended = self.steps(&node.steps, call, ready);
        let answered = self.event(ended, call, EventKind::ResponseSent);
        let back = self.later(answered, 100, 400);
        if client { self.event(back, call, EventKind::ResponseReceived) } else { back }
    }

    fn steps(&mut self, steps: &[Todo], handler: usize, at: Micros) -> Micros {
        steps.iter().fold(at, |at, step| {
            let at = self.later(at, 1, 50);
            match step {
                Todo::Call(node) => self.call(node, Some(handler), at),
                Todo::Parallel { branches, first } => {
                    let ends: Vec<Micros> = branches.iter().map(|branch| self.steps(branch, handler, at)).collect();
                    let end = if *first { ends.iter().min() } else { ends.iter().max() };
                    end.copied().unwrap_or(at)
                }
            }
        })
    }
}

fn id(call: usize) -> CallId {
    CallId(call as u64 + 1)
}

/// An occurrence: which call, which instant.
pub(crate) type Happened = (CallId, EventKind);

/// A simulated execution with the truth about it.
#[derive(Debug, Clone)]
pub(crate) struct Simulated {
    pub(crate) trace: Trace,
    /// For each occurrence, what its sidecar had heard of just before it was counted.
    pub(crate) heard: BTreeMap<Happened, BTreeSet<Happened>>,
    /// What each sidecar had heard of in the end.
    pub(crate) heard_by: BTreeMap<ObserverId, BTreeSet<Happened>>,
    /// Every occurrence in the order of true time.
    pub(crate) by_time: Vec<Happened>,
}

/// Instance and service as an observer.
fn observer_of(service: &Service, instance: u64) -> ObserverId {
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    ObserverId(service.as_str().bytes().chain([instance as u8]).fold(0xcbf2_9ce4_8422_2325, hash))
}

/// Run `root` once, one instance of each service: the order of concurrent branches depends on `seed`.
pub(crate) fn simulate(root: &Node, seed: u64) -> Simulated {
    simulate_as(root, seed, Course { replicas: 1, parked: None })
}

/// Run `root` once. The same seed gives the same times, up to what a parked message changes.
pub(crate) fn simulate_as(root: &Node, seed: u64, course: Course) -> Simulated {
    let mut line = Timeline { random: Random(seed), course, calls: Vec::new(), events: Vec::new() };
    line.call(root, None, 0);
    let Timeline { calls, mut events, .. } = line;
    events.sort_by_key(|raw| (raw.at, raw.order));

    let observer = |call: usize, side: Side| {
        let handler = if side == Side::Callee { call } else { calls[call].parent.unwrap() };
        observer_of(&calls[handler].api.service, calls[handler].instance)
    };
    let mut clocks: BTreeMap<ObserverId, u64> = BTreeMap::new();
    let mut heard_by: BTreeMap<ObserverId, BTreeSet<Happened>> = BTreeMap::new();
    let mut sent: BTreeMap<Happened, (u64, BTreeSet<Happened>)> = BTreeMap::new();
    let mut instants: BTreeMap<Happened, Instant> = BTreeMap::new();
    let mut heard = BTreeMap::new();
    let mut by_time = Vec::new();
    for raw in &events {
        let side = if raw.event.at_caller() { Side::Caller } else { Side::Callee };
        let observer = observer(raw.call, side);
        let key = (id(raw.call), raw.event);
        let brought = match raw.event {
            EventKind::RequestReceived => sent.get(&(id(raw.call), EventKind::RequestSent)),
            EventKind::ResponseReceived => sent.get(&(id(raw.call), EventKind::ResponseSent)),
            EventKind::RequestSent | EventKind::ResponseSent => None,
        };
        let clock = clocks.entry(observer).or_default();
        let known = heard_by.entry(observer).or_default();
        if let Some((at, what)) = brought {
            *clock = (*clock).max(*at);
            known.extend(what.iter().copied());
        }
        if course.parked == Some(key) {
            // What came with it is known; the message itself has not happened here.
            continue;
        }
        heard.insert(key, known.clone());
        *clock += 1;
        known.insert(key);
        instants.insert(key, Instant { clock: *clock, unix_nanos: raw.at * 1000 });
        sent.insert(key, (*clock, known.clone()));
        by_time.push(key);
    }

    let spans = calls.iter().enumerate().flat_map(|(index, call)| {
        let span = |side: Side, service: &Service, events: [EventKind; 2]| {
            Some(CallSpan {
                side,
                service: service.clone(),
                observer: observer(index, side),
                execution: ExecutionId(seed + 1),
                token: Token(7),
                call: id(index),
                parent: call.parent.map(id),
                caller: call.caller.clone(),
                api: call.api.clone(),
                association: Association::Exact,
                trace_id: 0,
                request: *instants.get(&(id(index), events[0]))?,
                response: instants.get(&(id(index), events[1])).copied(),
                ended_unix_nanos: 0,
                outcome: Some(call.outcome),
                http_status: None,
                grpc_status: None,
                made: false,
                ending: Ending::Complete,
                evidence_went: true,
                evidence_came: call.caller.is_some(),
                gaps: Gaps::default(),
                messages: None,
                passes: Vec::new(),
                injection: None,
            })
        };
        let server = span(Side::Callee, &call.api.service, [EventKind::RequestReceived, EventKind::ResponseSent]);
        let client = call
            .caller
            .as_ref()
            .and_then(|caller| span(Side::Caller, caller, [EventKind::RequestSent, EventKind::ResponseReceived]));
        [server, client].into_iter().flatten().collect::<Vec<_>>()
    });
    let trace = Trace::assemble(spans).pop();
    let trace = trace.unwrap_or(Trace { execution: ExecutionId(seed + 1), token: Token(7), calls: Vec::new() });
    Simulated { trace, heard, heard_by, by_time }
}

impl Simulated {
    /// How many of `heard` are occurrences of `event`, read off the calls themselves.
    pub(crate) fn count(&self, event: &Event, heard: &BTreeSet<Happened>) -> u64 {
        let is = |(call, kind): &&Happened| {
            let call = self.trace.call(*call).unwrap();
            *kind == event.event
                && event.api == ApiRef::Api(call.api.clone())
                && (event.caller.is_none() || event.caller == call.caller)
        };
        assert_eq!(event.outcome, OutcomeFilter::Any, "candidates are outcome-neutral");
        heard.iter().filter(is).count() as u64
    }
}

/// `n` executions of `root`.
pub(crate) fn traces(root: &Node, n: u64) -> Vec<Trace> {
    (0..n).map(|seed| simulate(root, seed).trace).collect()
}
