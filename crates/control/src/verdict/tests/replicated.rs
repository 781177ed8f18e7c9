//! Rounds over several instances of the caller, told by a small timed model with an arbiter of its own.
//!
//! `gateway` handles an entry request by groups of calls of `front`, side by side; each handler runs at one of `front`'s
//! instances and calls `shipping` and `payment` in turn. The rule is on calls of `payment` by `front`. Times are drawn at
//! random; questions and answers of one sidecar stay in order, and so everything from a late answer to a grant that
//! nobody waits for comes about by itself. Beside what sidecars and arbiter write down the model keeps the truth: what
//! was known and what would have been known had no header been lost, every pass and when it came.
//!
//! It shares no code with what it checks. The last assertions of this file are what a verdict may never say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use aftershock_core::plan::Atom;
use aftershock_core::wire::Ruling;

use super::*;
use crate::api::ArbiterAct;

const CHECKOUT: &str = "front shop.Front/Checkout";
const PAGE: &str = "gateway GET /page";

/// SplitMix64.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What goes wrong in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    None,
    /// Answers take up to three times the timeout.
    SlowArbiter,
    /// Handlers give up on calls that wait.
    CallersLeave,
    /// Both, and the network is slow too.
    SlowEverything,
    /// The arbiter grants another number than the one that is meant.
    WrongNumber,
    /// The arbiter grants without looking at what it granted before.
    Lavish,
    /// A sidecar fires at a pass without having been granted the shot.
    Rogue,
    /// Sidecars say that they are ready whatever the guard says.
    Guardless,
    /// One instance was not armed, and says nothing of it.
    Unarmed,
    /// Headers are lost.
    LostHeaders,
    /// A span is lost.
    LostSpan,
    /// The arbiter's log is lost.
    LostLog,
    /// The log was too long: its end is not kept.
    ShortLog,
    /// An instance dies: its later spans are lost, and what it was asked.
    Death,
}

const TROUBLES: [Trouble; 14] = [
    Trouble::None,
    Trouble::SlowArbiter,
    Trouble::CallersLeave,
    Trouble::SlowEverything,
    Trouble::WrongNumber,
    Trouble::Lavish,
    Trouble::Rogue,
    Trouble::Guardless,
    Trouble::Unarmed,
    Trouble::LostHeaders,
    Trouble::LostSpan,
    Trouble::LostLog,
    Trouble::ShortLog,
    Trouble::Death,
];

/// The rule and the system.
#[derive(Debug, Clone)]
struct Shape {
    k: Option<u32>,
    phase: Phase,
    /// How many answers of `shipping` must be known.
    quotes: u64,
    /// How many earlier passes the arbiter must have seen.
    own: u64,
    hold: bool,
    instances: u64,
    limit: u32,
    /// Groups of handlers; each handler's calls: true is `payment`.
    groups: Vec<Vec<Vec<bool>>>,
}

impl Shape {
    fn draw(random: &mut Random) -> Shape {
        let handler = |random: &mut Random| (0..1 + random.below(3)).map(|_| random.below(5) < 3).collect::<Vec<_>>();
        let group = |random: &mut Random| (0..1 + random.below(3)).map(|_| handler(random)).collect::<Vec<_>>();
        let k = (!random.one_in(3)).then(|| 1 + random.below(4) as u32);
        let own = match k {
            Some(k) if random.one_in(2) => u64::from(k) - 1,
            None if random.one_in(4) => 1 + random.below(2),
            _ => 0,
        };
        Shape {
            k,
            phase: if random.one_in(2) { Phase::Request } else { Phase::Response },
            quotes: random.below(3).min(1 + random.below(2)) * random.below(2),
            own,
            hold: random.one_in(3),
            instances: 2 + random.below(2),
            limit: 1 + random.below(2) as u32,
            groups: (0..1 + random.below(2)).map(|_| group(random)).collect(),
        }
    }

    fn tfic(&self) -> Tfic {
        let mut tfic = tfic(CHARGE, self.k.map_or(Occurrence::First, Occurrence::Number), self.phase);
        tfic.fault = Fault::Abort;
        tfic.max_injections = MaxInjections::Limited(self.limit);
        if self.quotes > 0 {
            tfic.guard.after.push(atom(EventKind::ResponseReceived, QUOTE, self.quotes));
        }
        if self.own > 0 {
            let own = Atom { caller: Some("front".parse().unwrap()), ..atom(self.own_event(), CHARGE, self.own) };
            tfic.guard.after.push(own);
        }
        if self.hold {
            tfic.hold = Some(Hold { deadline: std::time::Duration::from_secs(2).into() });
        }
        tfic
    }

    fn own_event(&self) -> EventKind {
        self.phase.event(Side::Caller)
    }
}

/// What a sidecar knows or a message carries: a clock and the answers of `shipping` that were received.
#[derive(Debug, Clone, Default)]
struct Known {
    clock: u64,
    quotes: BTreeSet<u64>,
    /// The same, had no header been lost.
    ideally: BTreeSet<u64>,
}

impl Known {
    fn merge(&mut self, other: &Known, header_came: bool) {
        if header_came {
            self.clock = self.clock.max(other.clock);
            self.quotes.extend(&other.quotes);
        }
        self.ideally.extend(&other.ideally);
    }
}

/// How a pass was fired at.
#[derive(Debug, Clone, Copy)]
struct Shot {
    /// Enough was known at its sidecar.
    known: bool,
    /// The clock at which it was decided.
    decided: u64,
    /// Enough happened anywhere at clocks up to that. More cannot be told from a record; honest sidecars need no more.
    happened: bool,
    /// The arbiter had granted it.
    granted: bool,
}

/// A pass as it truly went.
#[derive(Debug, Clone)]
struct Truth {
    execution: u64,
    call: u64,
    /// When it came to its sidecar.
    came: u64,
    /// How many questions had come to the arbiter before its first one, if that came.
    asked: Option<u64>,
    fired: Option<Shot>,
    /// The guard would have held when it went on, had no header been lost.
    ideally: bool,
    /// The instance was armed.
    armed: bool,
    /// It was refused for a shot that came back unused.
    robbed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Asking,
    Parked,
}

/// A call by `front`.
#[derive(Debug, Clone)]
struct Out {
    instance: u64,
    handler: u64,
    pays: bool,
    waits: Option<Waits>,
    pass: Option<usize>,
    /// How often it asked.
    questions: u64,
}

/// What happens next.
#[derive(Debug, Clone)]
enum Next {
    Group(usize),
    Handle { call: u64, instance: u64, steps: Vec<bool>, brought: Known },
    Step(u64),
    Arrive { call: u64, brought: Known },
    Answer { call: u64, brought: Known },
    Ask { call: u64, ready: bool },
    Ruled { call: u64, number: u32, ruling: Ruling },
    GiveUp { call: u64 },
    HandBack { call: u64 },
    Fired { call: u64 },
    Timeout { call: u64, question: u64 },
    Deadline { call: u64 },
    Gone { call: u64 },
    Done { handler: u64, brought: Known },
}

/// The model's own arbiter.
#[derive(Debug, Clone, Default)]
struct Arbiter {
    log: Vec<ArbiterEntry>,
    /// Numbers of the passes that asked.
    numbers: BTreeMap<(u64, u64), u32>,
    ended: BTreeSet<u64>,
    granted: BTreeSet<u64>,
    taken: u32,
    /// Passes, by their place in the truth, that were refused only since another shot was out: while which calls' were.
    denied: Vec<(usize, Vec<(u64, u64)>)>,
    /// Shots that are out.
    out: Vec<(u64, u64)>,
}

struct World<'a> {
    shape: &'a Shape,
    trouble: Trouble,
    execution: u64,
    random: Random,
    now: u64,
    order: u64,
    next: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Next>,
    arbiter: &'a mut Arbiter,
    truth: &'a mut Vec<Truth>,
    known: BTreeMap<u64, Known>,
    spans: Vec<CallSpan>,
    calls: u64,
    out: BTreeMap<u64, Out>,
    /// Handlers of `front`: instance and what is left to do.
    handlers: BTreeMap<u64, (u64, Vec<bool>)>,
    open: usize,
    /// When the last word of a sidecar to the arbiter arrives, and the last answer there.
    said: BTreeMap<u64, u64>,
    heard: BTreeMap<u64, u64>,
    /// Where the sidecars know that the rule has ended.
    over: BTreeSet<u64>,
    rogue: bool,
    /// The clocks at which answers of `shipping` were received, anywhere.
    quotes: Vec<u64>,
}

const GATEWAY: u64 = 1;
const FRONT: u64 = 10;
const PAYMENT: u64 = 20;
const SHIPPING: u64 = 21;
const TIMEOUT: u64 = 50;

impl<'a> World<'a> {
    fn new(
        shape: &'a Shape,
        trouble: Trouble,
        execution: u64,
        random: Random,
        now: u64,
        arbiter: &'a mut Arbiter,
        truth: &'a mut Vec<Truth>,
    ) -> Self {
        World {
            shape,
            trouble,
            execution,
            random,
            now,
            order: 0,
            next: BinaryHeap::new(),
            due: BTreeMap::new(),
            arbiter,
            truth,
            known: BTreeMap::new(),
            spans: Vec::new(),
            calls: 1,
            out: BTreeMap::new(),
            handlers: BTreeMap::new(),
            open: 0,
            said: BTreeMap::new(),
            heard: BTreeMap::new(),
            over: BTreeSet::new(),
            rogue: false,
            quotes: Vec::new(),
        }
    }

    fn run(&mut self) {
        let clock = self.tick(GATEWAY);
        let mut entry = span(Side::Callee, "gateway", None, PAGE, 1, (clock, 0));
        (entry.response, entry.observer, entry.execution) = (None, ObserverId(GATEWAY), ExecutionId(self.execution));
        self.spans.push(entry);
        self.later(1, Next::Group(0));
        while let Some(Reverse((at, order))) = self.next.pop() {
            self.now = at;
            let next = self.due.remove(&order).unwrap();
            self.step(next);
        }
        let of_here = self.truth.iter_mut().filter(|pass| pass.execution == self.execution);
        for shot in of_here.filter_map(|pass| pass.fired.as_mut()) {
            let happened = self.quotes.iter().filter(|clock| **clock <= shot.decided).count() as u64;
            shot.happened = happened >= self.shape.quotes;
        }
    }

    fn later(&mut self, after: u64, next: Next) {
        let at = self.now + after;
        self.at(at, next);
    }

    fn at(&mut self, at: u64, next: Next) {
        self.order += 1;
        self.next.push(Reverse((at, self.order)));
        self.due.insert(self.order, next);
    }

    fn tick(&mut self, observer: u64) -> u64 {
        let known = self.known.entry(observer).or_default();
        known.clock += 1;
        known.clock
    }

    fn travel(&mut self) -> u64 {
        let spread = if self.trouble == Trouble::SlowEverything { 60 } else { 20 };
        1 + self.random.below(spread)
    }

    fn span(&mut self, side: Side, call: u64) -> &mut CallSpan {
        self.spans.iter_mut().find(|span| span.side == side && span.call == CallId(call)).unwrap()
    }

    /// A message arrives at `observer`; whether its header did.
    fn brought(&mut self, observer: u64, brought: &Known) -> bool {
        let came = !(self.trouble == Trouble::LostHeaders && self.random.one_in(6));
        self.known.entry(observer).or_default().merge(brought, came);
        came
    }

    #[allow(clippy::too_many_arguments, reason = "what stands in a span")]
    fn begin(&mut self, side: Side, service: &str, observer: u64, caller: &str, called: &str, call: u64, parent: u64) {
        let clock = self.tick(observer);
        let mut span = span(side, service, Some(caller), called, call, (clock, 0));
        (span.response, span.observer, span.parent) = (None, ObserverId(observer), Some(CallId(parent)));
        span.execution = ExecutionId(self.execution);
        self.spans.push(span);
    }

    fn end(&mut self, side: Side, observer: u64, call: u64) {
        let clock = self.tick(observer);
        self.span(side, call).response = Some(Instant { clock, unix_nanos: 0 });
    }

    fn step(&mut self, next: Next) {
        match next {
            Next::Group(n) => {
                let Some(group) = self.shape.groups.get(n) else {
                    self.end(Side::Callee, GATEWAY, 1);
                    return;
                };
                self.open = group.len();
                for steps in group.clone() {
                    self.calls += 1;
                    let (call, instance) = (self.calls, FRONT + self.random.below(self.shape.instances));
                    self.begin(Side::Caller, "gateway", GATEWAY, "gateway", CHECKOUT, call, 1);
                    let (brought, travel) = (self.known[&GATEWAY].clone(), self.travel());
                    self.later(travel, Next::Handle { call, instance, steps, brought });
                }
                // The next group begins when the last of this one is done.
                self.handlers.insert(0, (n as u64, Vec::new()));
            }
            Next::Handle { call, instance, steps, brought } => {
                let came = self.brought(instance, &brought);
                self.begin(Side::Callee, "front", instance, "gateway", CHECKOUT, call, 1);
                self.span(Side::Callee, call).evidence_came = came;
                self.handlers.insert(call, (instance, steps));
                self.grown(instance);
                self.later(1, Next::Step(call));
            }
            Next::Step(handler) => self.handler(handler),
            Next::Arrive { call, brought } => {
                let (callee, service, api) = self.callee(call);
                let came = self.brought(callee, &brought);
                let handler = self.out[&call].handler;
                self.begin(Side::Callee, service, callee, "front", api, call, handler);
                self.span(Side::Callee, call).evidence_came = came;
                self.end(Side::Callee, callee, call);
                let (brought, travel) = (self.known[&callee].clone(), self.travel());
                self.later(travel, Next::Answer { call, brought });
            }
            Next::Answer { call, brought } => {
                let out = self.out[&call].clone();
                let came = self.brought(out.instance, &brought);
                self.span(Side::Caller, call).evidence_came = came;
                self.grown(out.instance);
                if out.pays && self.shape.phase == Phase::Response {
                    self.pass(call);
                } else {
                    self.received(call, false);
                }
            }
            Next::Done { handler, brought } => {
                let came = self.brought(GATEWAY, &brought);
                self.end(Side::Caller, GATEWAY, handler);
                self.span(Side::Caller, handler).evidence_came = came;
                self.open -= 1;
                if self.open == 0 {
                    let n = self.handlers[&0].0 as usize;
                    self.later(1, Next::Group(n + 1));
                }
            }
            Next::Ask { call, ready } => self.arbitrate(call, ready),
            Next::Ruled { call, number, ruling } => self.ruled(call, number, ruling),
            Next::GiveUp { call } => {
                self.arbiter.ended.insert(self.execution);
                self.note(call, ArbiterAct::GivenUp);
            }
            Next::HandBack { call } => {
                self.arbiter.ended.insert(self.execution);
                self.arbiter.taken -= 1;
                let back = (self.execution, call);
                self.arbiter.out.retain(|shot| *shot != back);
                for (pass, _) in self.arbiter.denied.iter().filter(|(_, out)| out.contains(&back)) {
                    self.truth[*pass].robbed = true;
                }
                self.note(call, ArbiterAct::HandedBack);
            }
            Next::Fired { call } => {
                let fired = (self.execution, call);
                self.arbiter.out.retain(|shot| *shot != fired);
                self.note(call, ArbiterAct::Fired);
            }
            Next::Timeout { call, question } => {
                // A held pass may have asked again since.
                if self.out[&call].waits == Some(Waits::Asking) && self.out[&call].questions == question {
                    let instance = self.out[&call].instance;
                    self.over.insert(instance);
                    self.tell(instance, Next::GiveUp { call });
                    self.pass_by(call, PassedBy::Arbiter);
                }
            }
            Next::Deadline { call } => {
                if self.out[&call].waits.is_some() {
                    self.pass_by(call, PassedBy::HoldDeadline);
                }
            }
            Next::Gone { call } => {
                if self.out[&call].waits.is_some() {
                    self.pass_by(call, PassedBy::CallerGone);
                }
            }
        }
    }

    fn callee(&self, call: u64) -> (u64, &'static str, &'static str) {
        if self.out[&call].pays { (PAYMENT, "payment", CHARGE) } else { (SHIPPING, "shipping", QUOTE) }
    }

    /// A handler of `front` goes on.
    fn handler(&mut self, handler: u64) {
        let (instance, steps) = self.handlers.get_mut(&handler).unwrap();
        let instance = *instance;
        if steps.is_empty() {
            self.end(Side::Callee, instance, handler);
            let (brought, travel) = (self.known[&instance].clone(), self.travel());
            self.later(travel, Next::Done { handler, brought });
            return;
        }
        let pays = steps.remove(0);
        self.calls += 1;
        let call = self.calls;
        self.out.insert(call, Out { instance, handler, pays, waits: None, pass: None, questions: 0 });
        if pays && self.shape.phase == Phase::Request {
            self.pass(call);
        } else {
            self.send(call);
        }
    }

    fn send(&mut self, call: u64) {
        let Out { instance, handler, .. } = self.out[&call];
        let (_, _, api) = self.callee(call);
        self.begin(Side::Caller, "front", instance, "front", api, call, handler);
        let (brought, travel) = (self.known[&instance].clone(), self.travel());
        self.later(travel, Next::Arrive { call, brought });
    }

    /// The answer goes on to the handler.
    fn received(&mut self, call: u64, made: bool) {
        let Out { instance, handler, pays, .. } = self.out[&call];
        self.end(Side::Caller, instance, call);
        let span = self.span(Side::Caller, call);
        span.made = made;
        if made {
            span.outcome = Some(Outcome::Error);
        }
        if !pays {
            let known = self.known.get_mut(&instance).unwrap();
            self.quotes.push(known.clock);
            known.quotes.insert(call);
            known.ideally.insert(call);
            self.grown(instance);
        }
        self.later(1, Next::Step(handler));
    }

    fn guard(&self, instance: u64) -> bool {
        self.known.get(&instance).map_or(0, |known| known.quotes.len() as u64) >= self.shape.quotes
    }

    fn is_armed(&self, instance: u64) -> bool {
        !(self.trouble == Trouble::Unarmed && instance == FRONT)
    }

    /// A message is at the interception point.
    fn pass(&mut self, call: u64) {
        let instance = self.out[&call].instance;
        let clock = self.known.entry(instance).or_default().clock;
        let armed = self.is_armed(instance);
        let (execution, came) = (self.execution, self.now);
        let index = self.truth.len();
        self.truth.push(Truth {
            execution,
            call,
            came,
            asked: None,
            fired: None,
            ideally: false,
            armed,
            robbed: false,
        });
        if self.shape.phase == Phase::Request {
            // The span is there from now on; the event is counted when the message goes on.
            let Out { handler, .. } = self.out[&call];
            let mut span = span(Side::Caller, "front", Some("front"), CHARGE, call, (clock, 0));
            (span.response, span.observer, span.parent) = (None, ObserverId(instance), Some(CallId(handler)));
            span.execution = ExecutionId(self.execution);
            self.spans.push(span);
        }
        self.out.get_mut(&call).unwrap().pass = Some(index);
        if !armed {
            self.goes_on(call);
            return;
        }
        let rogue = self.trouble == Trouble::Rogue && !self.rogue && self.random.one_in(3);
        let span = self.span(Side::Caller, call);
        span.passes.push(Pass { rule: 0, k: None, clock, passed_by: None });
        if rogue {
            self.rogue = true;
            self.span(Side::Caller, call).passes[0].k = self.shape.k.or(Some(1));
            self.fire(call, false);
            return;
        }
        if self.over.contains(&instance) {
            self.pass_by(call, PassedBy::Spent);
            return;
        }
        if matches!(self.trouble, Trouble::CallersLeave | Trouble::SlowEverything) && self.random.one_in(3) {
            let after = self.random.below(2 * TIMEOUT);
            self.later(after, Next::Gone { call });
        }
        if self.shape.hold {
            let after = 60 + self.random.below(300);
            self.later(after, Next::Deadline { call });
        }
        self.ask(call);
    }

    fn ask(&mut self, call: u64) {
        let instance = self.out[&call].instance;
        let ready = self.trouble == Trouble::Guardless || self.guard(instance);
        let out = self.out.get_mut(&call).unwrap();
        out.waits = Some(Waits::Asking);
        out.questions += 1;
        let question = out.questions;
        self.tell(instance, Next::Ask { call, ready });
        self.later(TIMEOUT, Next::Timeout { call, question });
    }

    /// Over the one connection of a sidecar to the arbiter.
    fn tell(&mut self, instance: u64, next: Next) {
        let at = self.on_the_wire(self.said.get(&instance).copied());
        self.said.insert(instance, at);
        self.at(at, next);
    }

    /// When something arrives that follows what arrives at `last`.
    fn on_the_wire(&mut self, last: Option<u64>) -> u64 {
        let slow = matches!(self.trouble, Trouble::SlowArbiter | Trouble::SlowEverything);
        let travel = self.random.below(if slow { 3 * TIMEOUT / 2 } else { 8 });
        (self.now + travel).max(last.map_or(0, |last| last + 1))
    }

    fn note(&mut self, call: u64, act: ArbiterAct) {
        let observer = ObserverId(self.out[&call].instance);
        let (execution, call) = (ExecutionId(self.execution), CallId(call));
        self.arbiter.log.push(ArbiterEntry { rule: 0, execution, call, observer, act });
    }

    fn arbitrate(&mut self, call: u64, ready: bool) {
        let questions = self.truth.iter().filter(|pass| pass.asked.is_some()).count() as u64;
        self.truth[self.out[&call].pass.unwrap()].asked.get_or_insert(questions);
        let asked = self.arbiter.numbers.keys().filter(|(execution, _)| *execution == self.execution).count() as u32;
        let number = *self.arbiter.numbers.entry((self.execution, call)).or_insert(asked + 1);
        let meant = match (self.trouble, self.shape.k) {
            (Trouble::WrongNumber, Some(k)) => Some(if k == 1 { 2 } else { k - 1 }),
            (_, k) => k,
        };
        let lavish = self.trouble == Trouble::Lavish;
        let gone = self.arbiter.ended.contains(&self.execution)
            || self.arbiter.granted.contains(&self.execution)
            || self.arbiter.taken >= self.shape.limit;
        let own = u64::from(number) > self.shape.own;
        let ruling = if meant.is_some_and(|k| k != number) && !lavish {
            Ruling::Number
        } else if gone && !lavish {
            Ruling::Spent
        } else if !ready || !own {
            Ruling::NotYet(if own { Vec::new() } else { vec![usize::from(self.shape.quotes > 0)] })
        } else {
            self.arbiter.granted.insert(self.execution);
            self.arbiter.taken += 1;
            self.arbiter.out.push((self.execution, call));
            Ruling::Grant
        };
        if ruling == Ruling::Spent && ready && own && !self.arbiter.ended.contains(&self.execution) {
            let pass = self.out[&call].pass.unwrap();
            self.arbiter.denied.push((pass, self.arbiter.out.clone()));
        }
        let outcome = (self.shape.phase == Phase::Response).then_some(Outcome::Ok);
        self.note(call, ArbiterAct::Ruled { number, ready, outcome, ruling: ruling.clone() });
        let instance = self.out[&call].instance;
        let at = self.on_the_wire(self.heard.get(&instance).copied());
        self.heard.insert(instance, at);
        self.at(at, Next::Ruled { call, number, ruling });
    }

    fn ruled(&mut self, call: u64, number: u32, ruling: Ruling) {
        let instance = self.out[&call].instance;
        self.span(Side::Caller, call).passes[0].k.get_or_insert(number);
        if self.out[&call].waits != Some(Waits::Asking) {
            if ruling == Ruling::Grant {
                self.over.insert(instance);
                self.tell(instance, Next::HandBack { call });
            }
            return;
        }
        match ruling {
            Ruling::Grant => {
                self.over.insert(instance);
                self.tell(instance, Next::Fired { call });
                self.fire(call, true);
            }
            Ruling::Number => self.pass_by(call, PassedBy::Number),
            Ruling::Spent => {
                self.over.insert(instance);
                self.pass_by(call, PassedBy::Spent);
            }
            Ruling::NotYet(own) if !self.shape.hold => {
                let mut atoms = own;
                if !self.guard(instance) {
                    atoms.insert(0, 0);
                }
                self.pass_by(call, PassedBy::GuardFalse(atoms));
            }
            Ruling::NotYet(_) => self.out.get_mut(&call).unwrap().waits = Some(Waits::Parked),
        }
    }

    /// More is known at an instance: what is parked there may ask again.
    fn grown(&mut self, instance: u64) {
        if !self.guard(instance) {
            return;
        }
        let parked = self.out.iter().filter(|(_, out)| out.instance == instance && out.waits == Some(Waits::Parked));
        let parked: Vec<u64> = parked.map(|(call, _)| *call).collect();
        // One whose atoms on the own event do not hold will never be granted: asking again changes nothing.
        for call in parked {
            if self.arbiter.numbers.get(&(self.execution, call)).is_some_and(|n| u64::from(*n) > self.shape.own) {
                self.ask(call);
            }
        }
    }

    fn fire(&mut self, call: u64, granted: bool) {
        let instance = self.out[&call].instance;
        let decided = self.known[&instance].clock;
        let shot = Shot { known: self.guard(instance), decided, happened: false, granted };
        let out = self.out.get_mut(&call).unwrap();
        out.waits = None;
        let index = out.pass.unwrap();
        self.truth[index].fired = Some(shot);
        let phase = self.shape.phase;
        let span = self.span(Side::Caller, call);
        let k = span.passes[0].k.unwrap_or(1);
        span.injection = Some(Injection { rule: 0, k, decided, held: false, fault: "abort".to_owned() });
        span.ending = Ending::Faulted;
        if phase == Phase::Request {
            let clock = self.tick(instance);
            let span = self.span(Side::Caller, call);
            span.request.clock = clock;
            (span.evidence_went, span.evidence_came) = (false, false);
        }
        self.received(call, true);
    }

    fn pass_by(&mut self, call: u64, why: PassedBy) {
        self.out.get_mut(&call).unwrap().waits = None;
        self.span(Side::Caller, call).passes[0].passed_by = Some(why);
        self.goes_on(call);
    }

    /// The message goes on, unfaulted.
    fn goes_on(&mut self, call: u64) {
        let Out { instance, pass, .. } = self.out[&call];
        let ideal = self.known.get(&instance).map_or(0, |known| known.ideally.len() as u64) >= self.shape.quotes;
        self.truth[pass.unwrap()].ideally = ideal;
        if self.shape.phase == Phase::Request {
            let clock = self.tick(instance);
            self.span(Side::Caller, call).request.clock = clock;
            let (brought, travel) = (self.known[&instance].clone(), self.travel());
            self.later(travel, Next::Arrive { call, brought });
        } else {
            self.received(call, false);
        }
    }
}

/// A round, what is on record of it, and the truth.
struct Told {
    shape: Shape,
    trouble: Trouble,
    round: Round,
    truth: Vec<Truth>,
}

fn tell(seed: u64) -> Told {
    let mut random = Random(seed);
    let shape = Shape::draw(&mut random);
    let trouble = TROUBLES[random.below(TROUBLES.len() as u64) as usize];
    let (mut arbiter, mut truth, mut spans) = (Arbiter::default(), Vec::new(), Vec::new());
    // A client that tries again: a second execution of the same round.
    let mut now = 0;
    for execution in 1..=1 + random.below(2) {
        let mut world = World::new(&shape, trouble, execution, Random(random.next()), now, &mut arbiter, &mut truth);
        world.run();
        now = world.now + 1_000;
        spans.extend(std::mem::take(&mut world.spans));
    }
    let mut round = Round::new(shape.tfic(), spans);
    round.arbiter = Some(arbiter.log);
    for instance in 0..shape.instances {
        if !(trouble == Trouble::Unarmed && instance == 0) {
            round.armed.insert(ObserverId(FRONT + instance), "front".parse().unwrap());
        }
    }
    match trouble {
        Trouble::LostSpan => {
            let inner: Vec<usize> = (0..round.spans.len()).filter(|i| round.spans[*i].call != CallId(1)).collect();
            round.spans.remove(inner[random.below(inner.len() as u64) as usize]);
        }
        Trouble::LostLog => round.arbiter = Some(Vec::new()),
        Trouble::ShortLog => {
            let log = round.arbiter.as_mut().unwrap();
            log.truncate(random.below(log.len() as u64 + 1) as usize);
            round.missing.push("the arbiter's log was longer than what is kept".to_owned());
        }
        Trouble::Death => {
            // Its spans end with it; what it had told before stays.
            let dead = ObserverId(FRONT);
            let from = random.below(30);
            round.spans.retain(|span| span.observer != dead || span.request.clock < from);
            round.failures.push(Failure::SidecarDied { service: "front".parse().unwrap(), observer: dead });
        }
        _ => {}
    }
    Told { shape, trouble, round, truth }
}

impl Told {
    fn shots(&self) -> impl Iterator<Item = &Truth> {
        self.truth.iter().filter(|pass| pass.fired.is_some())
    }

    /// The true number of a pass: how many questions had come to the arbiter before its own. What nobody asked about counts
    /// where it certainly came before.
    fn number(&self, pass: &Truth) -> u32 {
        let before = |other: &&Truth| {
            other.execution == pass.execution
                && other.call != pass.call
                && match (other.asked, pass.asked) {
                    (Some(other), Some(this)) => other < this,
                    _ => other.came < pass.came,
                }
        };
        1 + self.truth.iter().filter(before).count() as u32
    }

    /// Whether a shot fell outside its window, as it truly was, and as far as any record can show.
    fn is_wrong(&self, pass: &Truth) -> (bool, bool) {
        let shot = pass.fired.unwrap();
        let number = self.number(pass);
        let place = !shot.granted || self.shape.k.is_some_and(|k| k != number) || u64::from(number) <= self.shape.own;
        (place || !shot.known, place || !shot.happened)
    }

    /// Whether the fault may have been due at a pass that nobody looked at, that would have been ready but for a header,
    /// or that was refused for a shot that came back.
    fn is_open(&self) -> bool {
        self.truth.iter().any(|pass| {
            let number = self.number(pass);
            let fits = self.shape.k.is_none_or(|k| k == number) && u64::from(number) > self.shape.own;
            let unknown = self.trouble == Trouble::LostHeaders || !pass.armed;
            // Who left before the answer came would not have been faulted by another one either.
            let waited = self.round.spans.iter().any(|span| {
                (span.execution, span.call) == (ExecutionId(pass.execution), CallId(pass.call))
                    && span.passes.iter().any(|pass| pass.passed_by == Some(PassedBy::Spent))
            });
            pass.fired.is_none() && (pass.robbed && waited || fits && pass.ideally && unknown)
        })
    }
}

/// What may never be said.
fn check(seed: u64, seen: &mut BTreeMap<(Trouble, Verdict), u32>) {
    let told = tell(seed);
    let (faults, verdict) = told.round.judged();
    let reasons = &faults[0].reasons;
    let shots = told.shots().count();
    let per_execution = |execution| told.shots().filter(|shot| shot.execution == execution).count();
    let twice = per_execution(1) > 1 || per_execution(2) > 1 || shots > told.shape.limit as usize;
    let wrong = told.shots().any(|shot| told.is_wrong(shot).0);
    let provably_wrong = told.shots().any(|shot| told.is_wrong(shot).1);
    let trouble = told.trouble;
    let context = format!("seed {seed}, {trouble:?}, {:?}: {verdict} {reasons:#?}", told.shape);
    *seen.entry((trouble, verdict)).or_default() += 1;
    match verdict {
        Verdict::Injected => {
            assert!(shots > 0 && !twice, "{context}");
            assert!(!provably_wrong, "a wrong pass is called injected: {context}");
            assert!(!wrong || trouble == Trouble::Guardless, "a wrong pass is called injected: {context}");
        }
        Verdict::Premature => assert!(wrong, "a right hit is called premature: {context}"),
        Verdict::Multiple => assert!(twice, "{context}"),
        Verdict::Missed | Verdict::Unreached => {
            assert_eq!(shots, 0, "a shot went unnoticed: {context}");
            assert!(!told.is_open(), "a gap may be the reason: {context}");
        }
        Verdict::Inconclusive => assert_eq!(trouble, Trouble::Death, "{context}"),
        Verdict::Incomplete | Verdict::Clean => {}
    }
    // What is on record shows a second shot whatever else is lost.
    let kept_all = !matches!(trouble, Trouble::LostSpan | Trouble::Death);
    if twice && kept_all {
        assert_eq!(verdict, Verdict::Multiple, "{context}");
    }
    match trouble {
        // Nothing was lost: the verdict is the truth.
        Trouble::None => {
            let reached = |execution| told.truth.iter().filter(|pass| pass.execution == execution).count();
            let k = told.shape.k.unwrap_or(1) as usize;
            let missed = reached(1) >= k || reached(2) >= k;
            let expected = match (shots, missed) {
                (0, false) => Verdict::Unreached,
                (0, true) => Verdict::Missed,
                _ => Verdict::Injected,
            };
            assert_eq!(verdict, expected, "{context}");
        }
        Trouble::WrongNumber | Trouble::Guardless | Trouble::Rogue if !twice => {
            assert!(!provably_wrong || matches!(verdict, Verdict::Premature | Verdict::Incomplete), "{context}");
        }
        Trouble::LostLog | Trouble::ShortLog => assert_ne!(verdict, Verdict::Injected, "{context}"),
        _ => {}
    }
}

#[test]
fn no_verdict_over_several_instances_says_what_is_not_so() {
    let share = |from: u64| {
        let mut seen = BTreeMap::new();
        (from..20_000).step_by(2).for_each(|seed| check(seed, &mut seen));
        seen
    };
    let mut seen: BTreeMap<(Trouble, Verdict), u32> = BTreeMap::new();
    std::thread::scope(|scope| {
        for half in [0, 1].map(|from| scope.spawn(move || share(from))) {
            for (what, n) in half.join().unwrap() {
                *seen.entry(what).or_default() += n;
            }
        }
    });
    // The model makes what the assertions are about.
    let at_least = |trouble, verdict, n| {
        let found = seen.get(&(trouble, verdict)).copied().unwrap_or(0);
        assert!(found >= n, "{found} {verdict} with {trouble:?}: {seen:#?}");
    };
    for verdict in [Verdict::Unreached, Verdict::Missed, Verdict::Injected] {
        at_least(Trouble::None, verdict, 100);
        at_least(Trouble::SlowArbiter, verdict, 20);
    }
    at_least(Trouble::SlowArbiter, Verdict::Incomplete, 20);
    at_least(Trouble::SlowEverything, Verdict::Incomplete, 20);
    at_least(Trouble::WrongNumber, Verdict::Premature, 100);
    at_least(Trouble::Guardless, Verdict::Premature, 50);
    at_least(Trouble::Rogue, Verdict::Premature, 50);
    at_least(Trouble::Rogue, Verdict::Multiple, 20);
    at_least(Trouble::Lavish, Verdict::Multiple, 100);
    at_least(Trouble::Unarmed, Verdict::Injected, 20);
    at_least(Trouble::Unarmed, Verdict::Incomplete, 100);
    at_least(Trouble::LostHeaders, Verdict::Incomplete, 100);
    at_least(Trouble::Death, Verdict::Inconclusive, 100);
}
