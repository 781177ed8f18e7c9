//! Several instances of a caller, an arbiter, and answers that come late, in any order (design §3.4).
//!
//! Three models, none of which shares code with what is tested: the arbiter, as the text says it; what each sidecar must
//! say, from when it asked and when it was answered; and who knows that the guard holds, which is one bit that goes along
//! with every message between sidecars.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use aftershock_core::event::EventKind;
use aftershock_core::id::{CallId, ExecutionId};
use aftershock_core::plan::{Atom, Fault, Hold, MaxInjections, Occurrence, Phase, Rule, Side, Unlimited};
use aftershock_core::wire::{Ask, FromController, FromSidecar, Ruling};
use proptest::prelude::*;

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const PAY: &str = "payment POST /pay";
const SHIP: &str = "shipping POST /ship";
const INSTANCES: [&str; 3] = ["checkout#1", "checkout#2", "checkout#3"];
/// Milliseconds.
const TIMEOUT: u64 = 50;
const HOLD: u64 = 400;

/// What the words of design §3.4 ask of the arbiter, for one rule of one round.
#[derive(Debug, Default)]
struct Arbiter {
    k: Option<u32>,
    limit: usize,
    /// Passes in the order of their arrival; whether they were told to wait.
    passes: BTreeMap<ExecutionId, Vec<(usize, CallId, bool)>>,
    /// Executions with a shot that is reserved or spent.
    shot: BTreeSet<ExecutionId>,
    ended: BTreeSet<ExecutionId>,
    /// Shots of the round that are reserved or spent.
    taken: usize,
}

impl Arbiter {
    fn ask(&mut self, from: usize, ask: &Ask) -> (u32, Ruling) {
        let passes = self.passes.entry(ask.execution).or_default();
        let known = passes.iter().position(|(at, call, _)| (*at, *call) == (from, ask.call));
        let at = known.unwrap_or_else(|| {
            passes.push((from, ask.call, false));
            passes.len() - 1
        });
        let number = at as u32 + 1;
        let over = self.ended.contains(&ask.execution) || self.shot.contains(&ask.execution);
        let ruling = if self.k.is_some_and(|k| k != number) {
            Ruling::Number
        } else if over || self.taken >= self.limit {
            Ruling::Spent
        } else if !ask.ready {
            Ruling::NotYet(Vec::new())
        } else {
            self.shot.insert(ask.execution);
            self.taken += 1;
            Ruling::Grant
        };
        passes[at].2 = matches!(ruling, Ruling::NotYet(_));
        (number, ruling)
    }

    /// The rule fired or ended in `execution`: who was told to wait there waits in vain.
    fn over(&mut self, execution: ExecutionId) -> Vec<(usize, CallId, u32)> {
        self.ended.insert(execution);
        let passes = self.passes.entry(execution).or_default();
        let waits = passes.iter_mut().enumerate();
        waits
            .filter_map(|(at, (from, call, waits))| std::mem::take(waits).then_some((*from, *call, at as u32 + 1)))
            .collect()
    }

    fn number(&self, execution: ExecutionId, from: usize, call: CallId) -> Option<u32> {
        let at = self.passes.get(&execution)?.iter().position(|(at, c, _)| (*at, *c) == (from, call))?;
        Some(at as u32 + 1)
    }
}

/// A word about a pass, as far as the tests look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Fired,
    GiveUp,
    HandBack,
}

/// What one sidecar must say.
#[derive(Debug, Default)]
struct Expected {
    /// Questions without an answer, and until when that is of use.
    asking: BTreeMap<CallId, (ExecutionId, u64)>,
    /// Passes that were told to wait.
    held: BTreeMap<CallId, ExecutionId>,
    /// When a `hold` is over, by call.
    deadlines: BTreeMap<CallId, u64>,
    /// Executions in which the rule has ended here.
    ended: BTreeSet<ExecutionId>,
    fired: usize,
    disarmed: bool,
    said: Vec<(Word, CallId)>,
}

impl Expected {
    fn asks(&self, execution: ExecutionId, limit: usize) -> bool {
        !self.disarmed && !self.ended.contains(&execution) && self.fired < limit
    }

    fn ends(&mut self, execution: ExecutionId) {
        self.ended.insert(execution);
        self.held.retain(|_, of| *of != execution);
    }

    fn forget(&mut self, call: CallId) {
        self.asking.remove(&call);
        self.held.remove(&call);
    }

    fn time(&mut self, now: u64) {
        // What comes first counts.
        let over: Vec<CallId> = self.deadlines.iter().filter(|(_, at)| **at <= now).map(|(call, _)| *call).collect();
        for call in over {
            if self.asking.get(&call).is_none_or(|(_, until)| *until >= self.deadlines[&call]) {
                self.forget(call);
            }
            self.deadlines.remove(&call);
        }
        let late: Vec<CallId> = self.asking.iter().filter(|(_, (_, until))| *until <= now).map(|(c, _)| *c).collect();
        for call in late {
            let (execution, _) = self.asking.remove(&call).expect("it was among them");
            self.said.push((Word::GiveUp, call));
            self.ends(execution);
        }
    }

    fn ruled(&mut self, execution: ExecutionId, call: CallId, ruling: &Ruling, held: bool, usable: bool, limit: usize) {
        let waits = self.asking.remove(&call).is_some();
        match ruling {
            Ruling::Grant if waits && usable && self.asks(execution, limit) => {
                self.said.push((Word::Fired, call));
                self.fired += 1;
                self.ends(execution);
                if self.fired >= limit {
                    self.held.clear();
                }
            }
            Ruling::Grant => {
                self.said.push((Word::HandBack, call));
                self.held.remove(&call);
                self.end_armed(execution);
            }
            Ruling::Spent => {
                self.held.remove(&call);
                self.end_armed(execution);
            }
            Ruling::NotYet(_) if waits && held && self.asks(execution, limit) => {
                self.held.insert(call, execution);
            }
            Ruling::NotYet(_) | Ruling::Number => {}
        }
    }

    fn end_armed(&mut self, execution: ExecutionId) {
        if !self.disarmed {
            self.ends(execution);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its request waits.
    Parked,
    /// The payment has it.
    Sent,
    /// Its answer waits, or was lost.
    Answered,
    Over,
}

struct Payment {
    at: usize,
    execution: ExecutionId,
    out: Leg,
    into: Option<Leg>,
    state: State,
    call: Option<CallId>,
}

struct Handler {
    at: usize,
    execution: ExecutionId,
    dialogue: Dialogue,
}

struct World {
    net: Net,
    rule: Rule,
    limit: usize,
    /// Milliseconds.
    now: u64,
    arbiter: Arbiter,
    expected: [Expected; 3],
    said: [Vec<(Word, CallId)>; 3],
    /// Words on their way to the arbiter, and its own, in order; when they arrive.
    up: [VecDeque<(u64, FromSidecar)>; 3],
    down: [VecDeque<(u64, FromController)>; 3],
    /// Delays of the messages to come, and whether an editor refuses, each used once around.
    delays: Vec<u64>,
    refusals: Vec<bool>,
    drawn: (usize, usize),
    entries: Vec<(Leg, Request)>,
    handlers: Vec<Handler>,
    payments: Vec<Payment>,
    /// Who knows that the guard holds.
    knows: BTreeSet<(String, ExecutionId)>,
}

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Spawn { of: usize, at: usize },
    Pay { of: usize },
    Ship { of: usize },
    Answer { which: usize },
    Gone { which: usize },
    Return { which: usize },
    Wait { millis: u64 },
    Disarm { at: usize },
}

impl World {
    fn new(rule: Rule, delays: Vec<u64>, refusals: Vec<bool>) -> Self {
        let mut net = Net::new(&["front", INSTANCES[0], INSTANCES[1], INSTANCES[2], "payment", "shipping"]);
        net.arm_with(std::slice::from_ref(&rule), &[event(EventKind::RequestSent, PAY)], |arm| arm.max_parked = 1_000);
        let limit = rule.tfic.max_injections.limit() as usize;
        let k = match rule.tfic.target.k {
            Occurrence::First => None,
            Occurrence::Number(k) => Some(k),
        };
        World {
            net,
            limit,
            now: 0,
            arbiter: Arbiter { k, limit, ..Arbiter::default() },
            expected: Default::default(),
            said: Default::default(),
            up: Default::default(),
            down: Default::default(),
            delays,
            refusals,
            drawn: (0, 0),
            entries: Vec::new(),
            handlers: Vec::new(),
            payments: Vec::new(),
            knows: BTreeSet::new(),
            rule,
        }
    }

    fn has_guard(&self) -> bool {
        !self.rule.tfic.guard.after.is_empty()
    }

    fn tells(&mut self, from: &str, to: &str, execution: ExecutionId) {
        if self.knows.contains(&(from.to_owned(), execution)) {
            self.knows.insert((to.to_owned(), execution));
        }
    }

    fn is_ready(&self, at: usize, execution: ExecutionId) -> bool {
        !self.has_guard() || self.knows.contains(&(INSTANCES[at].to_owned(), execution))
    }

    fn delay(&mut self) -> u64 {
        self.drawn.0 += 1;
        self.delays[self.drawn.0 % self.delays.len()]
    }

    fn refuses(&mut self) -> bool {
        self.drawn.1 += 1;
        self.refusals[self.drawn.1 % self.refusals.len()]
    }

    /// What an instance said goes its way to the arbiter; questions are those that must be asked, and no others.
    fn hear(&mut self, at: usize) {
        for word in self.net.said(INSTANCES[at]) {
            match &word {
                FromSidecar::Ask(ask) => {
                    assert_eq!(ask.ready, self.is_ready(at, ask.execution), "{ask:?}");
                    let asking = &mut self.expected[at];
                    assert!(asking.asks(ask.execution, self.limit), "the rule is over: {ask:?}");
                    let before = asking.asking.insert(ask.call, (ask.execution, self.now + TIMEOUT));
                    assert_eq!(before, None, "one question at a time");
                    if self.rule.tfic.hold.is_some() && !asking.held.contains_key(&ask.call) {
                        asking.deadlines.insert(ask.call, self.now + HOLD);
                    }
                }
                FromSidecar::Fired { call, .. } => self.said[at].push((Word::Fired, *call)),
                FromSidecar::GiveUp { call, .. } => self.said[at].push((Word::GiveUp, *call)),
                FromSidecar::HandBack { call, .. } => self.said[at].push((Word::HandBack, *call)),
                FromSidecar::Disarmed { .. } => continue,
                other => panic!("{other:?}"),
            }
            let due = self.up[at].back().map_or(0, |(due, _)| *due).max(self.now + self.delay());
            self.up[at].push_back((due, word));
        }
    }

    fn answer(&mut self, at: usize, word: FromController) {
        let due = self.down[at].back().map_or(0, |(due, _)| *due).max(self.now + self.delay());
        self.down[at].push_back((due, word));
    }

    fn ruling(&mut self, at: usize, execution: ExecutionId, call: CallId, number: u32, ruling: Ruling) {
        self.answer(at, FromController::Ruled { token: ROUND, rule: 0, execution, call, number, ruling });
    }

    /// Everything that is due arrives.
    fn deliver(&mut self) {
        for (at, instance) in INSTANCES.into_iter().enumerate() {
            while let Some((_, word)) = self.up[at].pop_front_if(|(due, _)| *due <= self.now) {
                let over = match &word {
                    FromSidecar::Ask(ask) => {
                        let (number, ruling) = self.arbiter.ask(at, ask);
                        self.ruling(at, ask.execution, ask.call, number, ruling);
                        Vec::new()
                    }
                    FromSidecar::HandBack { execution, .. } => {
                        self.arbiter.taken -= 1;
                        self.arbiter.over(*execution).into_iter().map(|over| (*execution, over)).collect()
                    }
                    FromSidecar::GiveUp { execution, .. } | FromSidecar::Fired { execution, .. } => {
                        self.arbiter.over(*execution).into_iter().map(|over| (*execution, over)).collect()
                    }
                    other => panic!("{other:?}"),
                };
                for (execution, (at, call, number)) in over {
                    self.ruling(at, execution, call, number, Ruling::Spent);
                }
            }
            while let Some((_, word)) = self.down[at].pop_front_if(|(due, _)| *due <= self.now) {
                self.net.refuse_next(None);
                match &word {
                    FromController::Ruled { execution, call, ruling, .. } => {
                        let refuses = *ruling == Ruling::Grant
                            && !matches!(self.rule.tfic.fault, Fault::Delay(_) | Fault::Release)
                            && self.refuses();
                        self.net.refuse_next(refuses.then_some(Refusal::Pipelined));
                        let held = self.rule.tfic.hold.is_some();
                        self.expected[at].ruled(*execution, *call, ruling, held, !refuses, self.limit);
                    }
                    _ => {
                        let expected = &mut self.expected[at];
                        expected.disarmed = true;
                        expected.asking.clear();
                        expected.held.clear();
                    }
                }
                self.net.tell(instance, word);
                self.net.refuse_next(None);
                self.carry_on();
            }
        }
    }

    /// What was let go reaches the payment, or its client; everybody says what there is to say.
    fn carry_on(&mut self) {
        loop {
            let resumed = self.net.resumed();
            if resumed.is_empty() {
                break;
            }
            for (leg, resumed) in resumed {
                let which = self.payments.iter().position(|payment| payment.out == leg).expect("a payment of the test");
                match resumed {
                    Resumed::Request(Passage::Through(request)) => self.arrive(which, request),
                    Resumed::Request(Passage::Dropped) | Resumed::Response(Passage::Dropped) => {
                        self.payments[which].state = State::Answered;
                    }
                    Resumed::Request(Passage::Kept) | Resumed::Response(Passage::Kept) => panic!("kept twice"),
                    Resumed::Request(_) | Resumed::Response(_) | Resumed::Closed => {
                        self.payments[which].state = State::Over;
                    }
                }
            }
        }
        for (at, instance) in INSTANCES.into_iter().enumerate() {
            self.hear(at);
            for (call, execution) in &self.expected[at].held {
                let asks = self.expected[at].asking.contains_key(call);
                assert!(asks || !self.is_ready(at, *execution), "its guard holds: {instance} asks again");
            }
        }
    }

    fn arrive(&mut self, which: usize, request: Request) {
        let (at, execution) = (self.payments[which].at, self.payments[which].execution);
        self.tells(INSTANCES[at], "payment", execution);
        let (into, seen) = self.net.come_in("payment", request);
        seen.through();
        self.payments[which].into = Some(into);
        self.payments[which].state = State::Sent;
    }

    fn advance(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += 1;
            for expected in &mut self.expected {
                expected.time(self.now);
            }
            self.net.pass_time(Duration::from_millis(1));
            self.carry_on();
            self.deliver();
        }
    }

    /// The question that the last message of a payment made, if it is one of the rule's phase.
    fn asked_now(&mut self, which: usize, phase: Phase) {
        let (at, execution) = (self.payments[which].at, self.payments[which].execution);
        if phase != self.rule.tfic.target.phase {
            return;
        }
        let before: BTreeSet<CallId> = self.expected[at].asking.keys().copied().collect();
        let must = self.expected[at].asks(execution, self.limit);
        self.hear(at);
        let asked = self.expected[at].asking.iter().find(|(call, (of, _))| !before.contains(call) && *of == execution);
        self.payments[which].call = asked.map(|(call, _)| *call);
        assert_eq!(self.payments[which].call.is_some(), must, "every pass asks until the rule is over");
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Enter => {
                let (leg, passage) = self.net.come_in("front", tagged(Request::http("POST", "/shop")));
                self.entries.push((leg, passage.through()));
            }
            Step::Spawn { of, at } => {
                let Some((_, seen)) = self.entries.get(of % self.entries.len().max(1)) else { return };
                let execution = seen.member().expect("it is of the round").execution;
                let request = Request::http("POST", "/buy").within(seen);
                self.tells("front", INSTANCES[at], execution);
                let dialogue = self.net.call("front", INSTANCES[at], request);
                self.handlers.push(Handler { at, execution, dialogue });
            }
            Step::Pay { of } => {
                let Some(handler) = self.handlers.get(of % self.handlers.len().max(1)) else { return };
                let (at, execution) = (handler.at, handler.execution);
                let request = Request::http("POST", "/pay").within(&handler.dialogue.seen);
                let (out, passage) = self.net.go_out(INSTANCES[at], "payment", request);
                let which = self.payments.len();
                self.payments.push(Payment { at, execution, out, into: None, state: State::Parked, call: None });
                self.asked_now(which, Phase::Request);
                match passage {
                    Passage::Through(request) => self.arrive(which, request),
                    Passage::Kept => {}
                    other => panic!("nothing is faulted before it was granted: {other:?}"),
                }
            }
            Step::Ship { of } => {
                let Some(handler) = self.handlers.get(of % self.handlers.len().max(1)) else { return };
                let (at, execution) = (handler.at, handler.execution);
                let request = Request::http("POST", "/ship").within(&handler.dialogue.seen);
                self.tells(INSTANCES[at], "shipping", execution);
                let call = self.net.call(INSTANCES[at], "shipping", request);
                self.tells("shipping", INSTANCES[at], execution);
                // Seen and counted by whoever gets the answer.
                self.knows.insert((INSTANCES[at].to_owned(), execution));
                self.net.answer(&call, Response::http(200)).through();
            }
            Step::Answer { which } => {
                let open: Vec<usize> =
                    (0..self.payments.len()).filter(|index| self.payments[*index].state == State::Sent).collect();
                let Some(which) = open.get(which % open.len().max(1)).copied() else { return };
                let (at, execution) = (self.payments[which].at, self.payments[which].execution);
                let into = self.payments[which].into.clone().expect("it was sent");
                let sent = self.net.response(&into, Response::http(200)).through();
                self.tells("payment", INSTANCES[at], execution);
                let out = self.payments[which].out.clone();
                let passage = self.net.response(&out, sent);
                self.payments[which].state = State::Answered;
                self.asked_now(which, Phase::Response);
                match passage {
                    Passage::Through(_) => self.payments[which].state = State::Over,
                    Passage::Kept => {}
                    other => panic!("nothing is faulted before it was granted: {other:?}"),
                }
            }
            Step::Gone { which } => {
                let open: Vec<usize> =
                    (0..self.payments.len()).filter(|index| self.payments[*index].state != State::Over).collect();
                let Some(which) = open.get(which % open.len().max(1)).copied() else { return };
                self.leave(which);
            }
            Step::Return { which } => {
                if self.handlers.is_empty() {
                    return;
                }
                let handler = self.handlers.remove(which % self.handlers.len());
                self.tells(INSTANCES[handler.at], "front", handler.execution);
                self.net.answer(&handler.dialogue, Response::http(200)).through();
            }
            Step::Wait { millis } => self.advance(millis),
            Step::Disarm { at } => self.answer(at, FromController::Disarm { token: ROUND }),
        }
        self.carry_on();
        self.deliver();
    }

    fn leave(&mut self, which: usize) {
        let payment = &mut self.payments[which];
        payment.state = State::Over;
        if let Some(call) = payment.call {
            self.expected[payment.at].forget(call);
            self.expected[payment.at].deadlines.remove(&call);
        }
        self.net.close(&payment.out.clone(), Closed::ByApplication);
    }

    /// Let everything come to rest. Returns the injections: where, in which execution, on which call, with which number.
    fn finish(&mut self) -> Vec<(usize, ExecutionId, CallId, u32)> {
        self.advance(2 * HOLD);
        for (at, instance) in INSTANCES.into_iter().enumerate() {
            assert_eq!(self.net.parked(instance), [], "nothing waits for ever at {instance}");
            assert!(self.up[at].is_empty() && self.down[at].is_empty());
            let (said, expected) = (&mut self.said[at], &mut self.expected[at].said);
            said.sort();
            expected.sort();
            assert_eq!(said, expected, "what {instance} must say, and nothing else");
        }
        for which in 0..self.payments.len() {
            if self.payments[which].state != State::Over {
                self.leave(which);
            }
        }
        let mut injections = Vec::new();
        for (at, instance) in INSTANCES.into_iter().enumerate() {
            for span in self.net.spans(instance).into_iter().filter(|span| span.side == Side::Caller) {
                for pass in &span.passes {
                    let number = self.arbiter.number(span.execution, at, span.call);
                    assert!(pass.k.is_none() || pass.k == number, "{pass:?} is {number:?} at the arbiter");
                    assert_eq!(pass.passed_by.is_none(), span.injection.is_some(), "{span:?}");
                }
                if let Some(injection) = &span.injection {
                    injections.push((at, span.execution, span.call, injection.k));
                }
            }
        }
        let executions: BTreeSet<ExecutionId> = injections.iter().map(|injection| injection.1).collect();
        assert_eq!(executions.len(), injections.len(), "once in an execution: {injections:?}");
        assert!(injections.len() <= self.limit);
        injections
    }
}

fn rules(faults: BoxedStrategy<Fault>) -> impl Strategy<Value = Rule> {
    (faults, any::<bool>(), 0..4_u32, any::<bool>(), any::<bool>(), 0..3_u32).prop_map(
        |(fault, response, k, guard, hold, limit)| {
            let phase = if response { Phase::Response } else { Phase::Request };
            let k = if k == 0 { Occurrence::First } else { Occurrence::Number(k) };
            let hold = hold || fault == Fault::Release;
            let mut rule = rule("checkout", Side::Caller, PAY, k, phase, fault);
            rule.arbitrated = true;
            if guard {
                rule.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseReceived, SHIP), 1)];
            }
            rule.tfic.hold = hold.then(|| Hold { deadline: Duration::from_millis(HOLD).into() });
            rule.tfic.max_injections = match limit {
                0 => MaxInjections::Unlimited(Unlimited::Unlimited),
                limit => MaxInjections::Limited(limit),
            };
            rule
        },
    )
}

fn any_fault() -> BoxedStrategy<Fault> {
    prop_oneof![
        Just(Fault::Drop),
        Just(Fault::Abort),
        Just(Fault::Reset(Default::default())),
        Just(Fault::Delay(Duration::from_millis(30).into())),
        Just(Fault::Release),
    ]
    .boxed()
}

fn steps(troubles: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::Enter),
        3 => (any::<usize>(), 0..INSTANCES.len()).prop_map(|(of, at)| Step::Spawn { of, at }),
        8 => any::<usize>().prop_map(|of| Step::Pay { of }),
        2 => any::<usize>().prop_map(|of| Step::Ship { of }),
        8 => any::<usize>().prop_map(|which| Step::Answer { which }),
        1 => any::<usize>().prop_map(|which| Step::Return { which }),
        5 => (0..40_u64).prop_map(|millis| Step::Wait { millis }),
        troubles * 2 => any::<usize>().prop_map(|which| Step::Gone { which }),
        troubles => (0..INSTANCES.len()).prop_map(|at| Step::Disarm { at }),
    ];
    proptest::collection::vec(step, 1..80).prop_map(|mut steps| {
        steps.splice(0..0, [Step::Enter, Step::Spawn { of: 0, at: 0 }, Step::Spawn { of: 0, at: 1 }]);
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn whatever_comes_late_nothing_is_faulted_twice_and_nothing_waits_for_ever(
        rule in rules(any_fault()),
        steps in steps(1),
        delays in proptest::collection::vec(0..40_u64, 1..40),
        refusals in proptest::collection::vec(proptest::bool::weighted(0.2), 1..8),
    ) {
        let k = rule.tfic.target.k;
        let mut world = World::new(rule, delays, refusals);
        for step in &steps {
            world.step(step);
        }
        for (at, execution, call, number) in world.finish() {
            prop_assert_eq!(world.arbiter.number(execution, at, call), Some(number));
            prop_assert!(k == Occurrence::First || k == Occurrence::Number(number));
        }
    }

    #[test]
    fn with_answers_in_time_the_k_th_pass_at_the_arbiter_is_faulted_in_every_execution(
        rule in rules(any_fault()),
        steps in steps(0),
        delays in proptest::collection::vec(0..20_u64, 1..40),
    ) {
        let mut rule = rule;
        rule.tfic.guard.after.clear();
        rule.tfic.max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
        let k = match rule.tfic.target.k {
            Occurrence::First => 1,
            Occurrence::Number(k) => k,
        };
        let mut world = World::new(rule, delays, vec![false]);
        for step in &steps {
            world.step(step);
        }
        let hit: BTreeMap<ExecutionId, u32> =
            world.finish().into_iter().map(|(_, execution, _, number)| (execution, number)).collect();
        let mut expected = BTreeMap::new();
        for (execution, passes) in &world.arbiter.passes {
            if passes.len() as u32 >= k {
                expected.insert(*execution, k);
            }
        }
        prop_assert_eq!(hit, expected);
    }
}

/// 50 calls of each of a thousand executions are open at once on one connection, answered in an order of their own.
#[test]
fn of_a_thousand_interleaved_executions_the_third_answer_of_each_is_faulted_and_nothing_else() {
    const EXECUTIONS: usize = 1_000;
    const CALLS: usize = 50;
    let mut third = rule(
        "checkout",
        Side::Caller,
        "payment shop.Payment/Charge",
        Occurrence::Number(3),
        Phase::Response,
        Fault::Drop,
    );
    third.tfic.max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
    let mut net = Net::new(&["checkout", "payment"]);
    net.arm(&[third], &[event(EventKind::ResponseReceived, "payment shop.Payment/Charge")]);
    let entries: Vec<Request> =
        (0..EXECUTIONS).map(|_| net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through()).collect();
    let mut open: Vec<(usize, Dialogue)> = Vec::with_capacity(EXECUTIONS * CALLS);
    for _ in 0..CALLS {
        for (index, seen) in entries.iter().enumerate() {
            let charge = Request::grpc("shop.Payment/Charge").within(seen);
            open.push((index, net.call("checkout", "payment", charge)));
        }
    }
    // A permutation: the step has no factor in common with their number.
    let total = open.len();
    let (mut answered, mut faulted) = (vec![0; EXECUTIONS], vec![Vec::new(); EXECUTIONS]);
    for turn in 0..total {
        let (index, call) = &open[turn * 34_567 % total];
        answered[*index] += 1;
        match net.answer(call, Response::grpc(0)) {
            Passage::Through(_) => {}
            Passage::Dropped => faulted[*index].push(answered[*index]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answered, [CALLS; EXECUTIONS]);
    assert!(faulted.iter().all(|at| *at == [3]), "the third, and once");
}
