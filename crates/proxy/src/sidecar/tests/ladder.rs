//! The ladder against a model that keeps everything (design §3.1): whatever comes in whatever order, each call stands on
//! the step that the text says, and none is ever tied to the wrong execution.
//!
//! The generator knows the truth: which handler sent a call, and so of which execution it is. Its applications hand on
//! what they got, lose parts of it, keep old copies, or make things up. The model decides from lists of all calls ever
//! seen, with the time of each; it has no ring, no counts and no digests.

use std::time::Duration;

use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan};
use aftershock_core::w3c::{Member, TraceParent};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::exchange::Closed;
use crate::sidecar::testing::*;

const LINGER: Duration = Duration::from_secs(30);
const ID: &str = "x-request-id";
const CHARGE: &str = "shop.Payment/Charge";

#[derive(Debug, Clone)]
enum Step {
    /// A request comes in.
    Enter { from: From, id: u8, traced: bool },
    /// The handler of one of the calls that came in, open or not, sends one. `member` says how it treats what it got.
    Send { of: Index, member: Handed, id: bool, known: bool },
    /// One of the inbound calls ends.
    Leave { which: Index },
    /// One of the outbound calls ends.
    Close { which: Index },
    /// Time passes.
    Wait { seconds: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// A client of the round.
    Client,
    /// A client of the round, in a declared execution.
    Declared(u8),
    /// Somebody else.
    Outside,
    /// A caller with a sidecar, that has this execution and a call of its own.
    Caller(u8),
    /// A caller whose sidecar did not know.
    Marked,
    /// A hop without sidecar below a call of this execution.
    Relay(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handed {
    /// `traceparent` and `tracestate`.
    Whole,
    /// Nothing.
    Nothing,
    /// Its own member beside a trace of its own.
    OtherTrace,
    /// A member made up.
    Forged,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let from = prop_oneof![
        3 => Just(From::Client),
        2 => (1..3_u8).prop_map(From::Declared),
        2 => Just(From::Outside),
        3 => (1..3_u8).prop_map(From::Caller),
        1 => Just(From::Marked),
        1 => (1..3_u8).prop_map(From::Relay),
    ];
    let handed = prop_oneof![
        4 => Just(Handed::Whole),
        4 => Just(Handed::Nothing),
        1 => Just(Handed::OtherTrace),
        1 => Just(Handed::Forged),
    ];
    let step = prop_oneof![
        4 => (from, 0..4_u8, any::<bool>()).prop_map(|(from, id, traced)| Step::Enter { from, id, traced }),
        8 => (any::<Index>(), handed, any::<bool>(), any::<bool>())
            .prop_map(|(of, member, id, known)| Step::Send { of, member, id, known }),
        4 => any::<Index>().prop_map(|which| Step::Leave { which }),
        3 => any::<Index>().prop_map(|which| Step::Close { which }),
        2 => (1..40_u8).prop_map(|seconds| Step::Wait { seconds }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// An execution, as the sidecars name it.
type Execution = (Token, ExecutionId);

/// A call as the model remembers it, for ever.
#[derive(Debug, Clone)]
struct Seen {
    side: Side,
    call: CallId,
    execution: Option<Execution>,
    id: Option<String>,
    /// Evidence of its own: it came in, or went out with a member, or with nothing.
    counts: bool,
    ended: Option<Duration>,
}

impl Seen {
    fn is_remembered(&self, now: Duration) -> bool {
        self.ended.is_none_or(|at| now - at <= LINGER)
    }
}

#[derive(Debug, Default)]
struct Model {
    seen: Vec<Seen>,
    now: Duration,
    exclusive: bool,
}

/// What the text says of a call that goes out.
type Decided = (Option<Execution>, Option<CallId>, Association);

impl Model {
    fn remembered(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|seen| seen.is_remembered(self.now))
    }

    /// What calls say that all belong to one execution: the parent is the one inbound call that is open, or that ended.
    fn agree(calls: &[&Seen], open_step: Association) -> Option<Decided> {
        let mut executions: Vec<Option<Execution>> = calls.iter().map(|seen| seen.execution).collect();
        executions.sort();
        executions.dedup();
        let [Some(execution)] = executions[..] else { return None };
        let inbound: Vec<&Seen> = calls.iter().copied().filter(|seen| seen.side == Side::Callee).collect();
        let open: Vec<&&Seen> = inbound.iter().filter(|seen| seen.ended.is_none()).collect();
        let several = if open_step == Association::Exclusive { open_step } else { Association::Ambiguous };
        Some(match (&open[..], &inbound[..]) {
            ([one], _) => (Some(execution), Some(one.call), open_step),
            ([], []) => (Some(execution), None, several),
            ([], [one]) => (Some(execution), Some(one.call), Association::Detached),
            ([], _) => (Some(execution), None, Association::Detached),
            _ => (Some(execution), None, several),
        })
    }

    /// The steps that rest on what the call carries.
    fn evident(&self, member: Option<Member>, trace: Option<u128>, id: Option<&str>) -> Option<Decided> {
        let check = trace.map_or(0, |trace| trace as u32);
        if let Some(member) = member.filter(|member| member.check == check) {
            let parent = self.remembered().find(|seen| {
                seen.side == Side::Callee
                    && seen.call == member.call
                    && seen.execution == Some((member.token, member.execution))
            });
            if let Some(parent) = parent {
                let step = if parent.ended.is_none() { Association::Exact } else { Association::Detached };
                return Some((parent.execution, Some(parent.call), step));
            }
        }
        let carry: Vec<_> = self.remembered().filter(|seen| id.is_some() && seen.id.as_deref() == id).collect();
        Model::agree(&carry, Association::Correlated)
    }

    fn outbound(&self, member: Option<Member>, trace: Option<u128>, id: Option<&str>, known: bool) -> Decided {
        if let Some(decided) = self.evident(member, trace, id) {
            return decided;
        }
        if self.exclusive && known {
            let seen = |seen: &&Seen| seen.side == Side::Callee || (seen.counts && seen.execution.is_some());
            let about: Vec<_> = self.remembered().filter(seen).collect();
            let only = Model::agree(&about, Association::Exclusive)
                .filter(|(execution, ..)| execution.is_some_and(|(token, _)| token == ROUND))
                .filter(|(execution, ..)| {
                    member.is_none_or(|member| *execution == Some((member.token, member.execution)))
                });
            if let Some(decided) = only {
                return decided;
            }
        }
        (None, None, Association::Unassociated)
    }
}

/// A call that came in, as its handler knows it.
struct Handler {
    leg: Leg,
    seen: Request,
    call: CallId,
    /// The truth.
    execution: Option<Execution>,
    open: bool,
}

struct Sent {
    leg: Leg,
    /// Its place among what the model has seen.
    place: usize,
    /// The call above it.
    parent: Option<CallId>,
}

fn declared(n: u8) -> ExecutionId {
    ExecutionId(1000 + u64::from(n))
}

fn trace(n: u64) -> String {
    TraceParent { version: 0, trace_id: u128::from(n) << 40 | u128::from(n), parent_id: 1, flags: 1 }.to_string()
}

struct Play {
    net: Net,
    model: Model,
    handlers: Vec<Handler>,
    sent: Vec<Sent>,
    traces: u64,
    steps: Vec<Association>,
}

impl Play {
    fn new(exclusive: bool) -> Self {
        let config = format!("association: {{correlate: [{ID}], exclusive: {exclusive}}}\nrecord: all\n");
        let services = ["caller", "front", "payment"];
        let mut net = Net::configured(&[("caller", ""), ("front", &config), ("payment", "")], &services);
        net.register(&services);
        net.arm_with(&[], &[], |arm| {
            arm.lease = Duration::from_secs(100_000);
            arm.known_calls.insert(api(&format!("payment {CHARGE}")));
        });
        let model = Model { exclusive, ..Model::default() };
        Play { net, model, handlers: Vec::new(), sent: Vec::new(), traces: 0, steps: Vec::new() }
    }

    fn enter(&mut self, from: From, id: u8, traced: bool) {
        self.traces += 1;
        let mut request = Request::http("POST", "/buy");
        if traced {
            request = request.with("traceparent", &trace(self.traces));
        }
        // Ids are given to executions that are declared, so that several of their calls carry the same; else they are
        // fresh, or one that everybody uses.
        let shared = match (from, id) {
            (_, 0) => None,
            (From::Declared(n) | From::Caller(n) | From::Relay(n), 1 | 2) => Some(format!("execution-{n}")),
            (_, 3) => Some("constant".to_owned()),
            _ => Some(format!("fresh-{}", self.traces)),
        };
        if let Some(id) = &shared {
            request = request.with(ID, id);
        }
        let member = |execution, call| Member { execution, call: CallId(call), token: ROUND, check: 0 };
        let with_member = |request: Request, member: Member| request.with("tracestate", &format!("aft={member}"));
        let request = match from {
            From::Client => tagged(request),
            From::Declared(n) => with_member(request, member(declared(n), 0)),
            From::Outside => request,
            From::Relay(n) => with_member(request, member(declared(n), 77)),
            From::Marked => self.net.go_out("caller", "front", request).1.through(),
            From::Caller(n) => {
                // The caller's own entry of that execution, then its call.
                let entry = with_member(Request::http("GET", "/"), member(declared(n), 0));
                let (leg, passage) = self.net.come_in("caller", entry.with("traceparent", &trace(self.traces)));
                let seen = passage.through();
                let mut below = Request::http("POST", "/buy").within(&seen);
                below.lines.extend(request.lines.into_iter().filter(|(name, _)| name == ID));
                let sent = self.net.go_out("caller", "front", below).1.through();
                self.net.response(&leg, Response::http(200)).through();
                sent
            }
        };
        let (leg, passage) = self.net.come_in("front", request);
        let seen = passage.through();
        let got = seen.member();
        match from {
            From::Marked => assert_eq!(got, None),
            From::Outside => assert_eq!(got.map(|member| member.token), Some(Token(0))),
            From::Client => assert_eq!(got.map(|member| member.token), Some(ROUND)),
            From::Declared(n) | From::Caller(n) | From::Relay(n) => {
                assert_eq!(got.map(|member| (member.token, member.execution)), Some((ROUND, declared(n))));
            }
        }
        assert!(!seen.has_hop());
        let execution = got.map(|member| (member.token, member.execution));
        // An unassociated call has no id that its handler could hand on: what the sidecar calls it does not matter.
        let call = got.map_or(CallId(u64::MAX - self.traces), |member| member.call);
        assert!(self.handlers.iter().all(|handler| handler.call != call), "ids are never used twice");
        let id = seen.get(ID).map(str::to_owned);
        self.model.seen.push(Seen { side: Side::Callee, call, execution, id, counts: true, ended: None });
        self.handlers.push(Handler { leg, seen, call, execution, open: true });
    }

    fn send(&mut self, of: &Index, handed: Handed, with_id: bool, known: bool) {
        if self.handlers.is_empty() {
            return;
        }
        self.traces += 1;
        let handler = of.get(&self.handlers);
        let mut request = if known { Request::grpc(CHARGE) } else { Request::http("GET", "/refresh") };
        request = match handed {
            Handed::Whole => request.within(&handler.seen),
            Handed::Nothing => request,
            Handed::OtherTrace => {
                request.hands_on(&handler.seen, &["tracestate"]).with("traceparent", &trace(1 << 30 | self.traces))
            }
            Handed::Forged => {
                let forged = Member { execution: declared(1), call: CallId(5), token: ROUND, check: 0 };
                request.with("tracestate", &format!("aft={forged}"))
            }
        };
        let id = handler.seen.get(ID).filter(|_| with_id).map(str::to_owned);
        if let Some(id) = &id {
            request = request.with(ID, id);
        }
        let parent = request.get("traceparent").map(|text| text.parse::<TraceParent>().unwrap().trace_id);
        let member = request.member();
        let expected = self.model.outbound(member, parent, id.as_deref(), known);
        let alone = self.model.evident(member, parent, id.as_deref()).is_none();
        let truth = handler.execution;
        let before = self.net.associated("front", expected.2);
        let (leg, passage) = self.net.go_out("front", "payment", request);
        let sent = passage.through();
        assert_eq!(self.net.associated("front", expected.2), before + 1, "expected {expected:?}");
        let got = sent.member().map(|member| (member.token, member.execution));
        assert_eq!(got, expected.0, "expected {expected:?}");
        assert!(sent.has_hop(), "evidence, or the mark of an unassociated call");
        // The truth. That an id is no constant, and that who is alone sends what has no name, is what the configuration
        // promises.
        let unnamed = member.is_none() || handed == Handed::Forged;
        let promised = id.as_deref() == Some("constant") || (alone && unnamed);
        if let Some(got) = got.filter(|_| !promised) {
            assert_eq!(Some(got), truth, "tied to the wrong execution by {:?}", expected.2);
        }
        self.steps.push(expected.2);
        let by_member = match expected.2 {
            Association::Exact => true,
            Association::Detached => member.is_some_and(|member| Some(member.call) == expected.1),
            _ => false,
        };
        let unassociated = expected.0.is_none();
        let call = sent.member().map_or(CallId(self.traces), |member| member.call);
        let id = id.filter(|_| by_member || unassociated);
        let seen = Seen { side: Side::Caller, call, execution: expected.0, id, counts: by_member, ended: None };
        self.model.seen.push(seen);
        self.sent.push(Sent { leg, place: self.model.seen.len() - 1, parent: expected.1 });
    }

    fn leave(&mut self, which: &Index) {
        let open: Vec<usize> = (0..self.handlers.len()).filter(|at| self.handlers[*at].open).collect();
        if open.is_empty() {
            return;
        }
        let handler = &mut self.handlers[*which.get(&open)];
        handler.open = false;
        let (leg, call) = (handler.leg.clone(), handler.call);
        self.net.response(&leg, Response::http(200)).through();
        let now = self.model.now;
        let seen = self.model.seen.iter_mut().find(|seen| seen.side == Side::Callee && seen.call == call);
        seen.expect("the model has seen what came in").ended = Some(now);
    }

    fn close(&mut self, which: &Index) {
        if self.sent.is_empty() {
            return;
        }
        let at = which.index(self.sent.len());
        let Sent { leg, place, parent } = self.sent.swap_remove(at);
        self.net.close(&leg, Closed::ByApplication);
        self.model.seen[place].ended = Some(self.model.now);
        let spans: Vec<CallSpan> = self.net.spans("front");
        let span = spans.last().expect("all is recorded");
        assert_eq!((span.token, span.execution), self.model.seen[place].execution.unwrap_or_default());
        assert_eq!(span.parent, parent, "of a call that stands on {:?}", span.association);
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Enter { from, id, traced } => self.enter(*from, *id, *traced),
                Step::Send { of, member, id, known } => self.send(of, *member, *id, *known),
                Step::Leave { which } => self.leave(which),
                Step::Close { which } => self.close(which),
                Step::Wait { seconds } => {
                    let time = Duration::from_secs(u64::from(*seconds));
                    self.net.pass_time(time);
                    self.model.now += time;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_call_stands_on_the_step_that_the_model_says(steps in steps(), exclusive: bool) {
        Play::new(exclusive).run(&steps);
    }
}

#[test]
fn the_generator_reaches_every_step() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut reached = std::collections::BTreeSet::new();
    for round in 0..60 {
        let mut play = Play::new(round % 2 == 0);
        play.run(&steps().new_tree(&mut runner).unwrap().current());
        reached.extend(play.steps);
    }
    let expected = [
        Association::Exact,
        Association::Correlated,
        Association::Ambiguous,
        Association::Detached,
        Association::Exclusive,
        Association::Unassociated,
    ];
    assert_eq!(reached.into_iter().collect::<Vec<_>>(), expected);
}
