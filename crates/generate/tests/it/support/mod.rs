//! A small simulator of executions: a call tree with service times, latencies and parallel branches becomes timed
//! boundary events; a second pass over them keeps for every sidecar the true set of occurrences it has heard of. It
//! shares no code with the sidecar or with the replay: it produces what they are judged by.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{EventKind, Outcome};
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
    api: Api,
    caller: Option<Service>,
    outcome: Outcome,
}

struct Timeline<'a> {
    random: &'a mut Random,
    calls: Vec<RawCall>,
    events: Vec<Raw>,
}

impl Timeline<'_> {
    fn event(&mut self, at: Micros, call: usize, event: EventKind) {
        let order = self.events.len();
        self.events.push(Raw { at, order, call, event });
    }

    /// Returns when the answer is back at the caller.
    fn call(&mut self, node: &Node, parent: Option<usize>, at: Micros) -> Micros {
        let id = self.calls.len();
        let caller = parent.map(|parent: usize| self.calls[parent].api.service.clone());
        self.calls.push(RawCall { parent, api: node.api.clone(), caller, outcome: node.outcome });
        let client = parent.is_some();
        if client {
            self.event(at, id, EventKind::RequestSent);
        }
        let began = at + 100 + self.random.below(400);
        self.event(began, id, EventKind::RequestReceived);
        let ready = began + node.work + self.random.below(200);
        let answered = self.steps(&node.steps, id, ready);
        self.event(answered, id, EventKind::ResponseSent);
        let back = answered + 100 + self.random.below(400);
        if client {
            self.event(back, id, EventKind::ResponseReceived);
        }
        back
    }

    fn steps(&mut self, steps: &[Todo], handler: usize, at: Micros) -> Micros {
        steps.iter().fold(at, |at, step| {
            let at = at + 1 + self.random.below(50);
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

/// An occurrence: which call, which instant.
pub(crate) type Happened = (CallId, EventKind);

/// A simulated execution with the truth about it.
#[derive(Debug, Clone)]
pub(crate) struct Simulated {
    pub(crate) trace: Trace,
    /// For each occurrence, what its sidecar had heard of just before it was counted.
    pub(crate) heard: BTreeMap<Happened, BTreeSet<Happened>>,
    /// Every occurrence in the order of true time.
    pub(crate) by_time: Vec<Happened>,
}

fn observer_of(service: &Service) -> ObserverId {
    ObserverId(
        service
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)),
    )
}

/// Run `root` once: the order of concurrent branches depends on `seed`.
pub(crate) fn simulate(root: &Node, seed: u64) -> Simulated {
    let mut random = Random(seed);
    let mut line = Timeline { random: &mut random, calls: Vec::new(), events: Vec::new() };
    line.call(root, None, 0);
    let Timeline { calls, mut events, .. } = line;
    events.sort_by_key(|raw| (raw.at, raw.order));

    let id = |call: usize| CallId(call as u64 + 1);
    let mut clocks: BTreeMap<ObserverId, u64> = BTreeMap::new();
    let mut heard_by: BTreeMap<ObserverId, BTreeSet<Happened>> = BTreeMap::new();
    let mut sent: BTreeMap<Happened, (u64, BTreeSet<Happened>)> = BTreeMap::new();
    let mut instants: BTreeMap<Happened, Instant> = BTreeMap::new();
    let mut heard = BTreeMap::new();
    let mut by_time = Vec::new();
    for raw in &events {
        let call = &calls[raw.call];
        let here = if raw.event.at_caller() { call.caller.as_ref().unwrap() } else { &call.api.service };
        let observer = observer_of(here);
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
        heard.insert(key, known.clone());
        *clock += 1;
        known.insert(key);
        instants.insert(key, Instant { clock: *clock, unix_nanos: raw.at * 1000 });
        sent.insert(key, (*clock, known.clone()));
        by_time.push(key);
    }

    let spans = calls.iter().enumerate().flat_map(|(index, call)| {
        let span = |side: Side, service: &Service, events: [EventKind; 2]| CallSpan {
            side,
            service: service.clone(),
            observer: observer_of(service),
            execution: ExecutionId(seed + 1),
            token: Token(7),
            call: id(index),
            parent: call.parent.map(id),
            caller: call.caller.clone(),
            api: call.api.clone(),
            association: Association::Exact,
            trace_id: 0,
            request: instants[&(id(index), events[0])],
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
        };
        let server = span(Side::Callee, &call.api.service, [EventKind::RequestReceived, EventKind::ResponseSent]);
        let client = call
            .caller
            .as_ref()
            .map(|caller| span(Side::Caller, caller, [EventKind::RequestSent, EventKind::ResponseReceived]));
        [Some(server), client].into_iter().flatten().collect::<Vec<_>>()
    });
    let trace = Trace::assemble(spans).pop().unwrap();
    Simulated { trace, heard, by_time }
}

/// `n` executions of `root`.
pub(crate) fn traces(root: &Node, n: u64) -> Vec<Trace> {
    (0..n).map(|seed| simulate(root, seed).trace).collect()
}
