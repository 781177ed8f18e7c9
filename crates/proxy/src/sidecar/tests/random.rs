//! Random call trees, with fan-out, diamonds and re-entrancy, in random interleavings, against sets of true occurrences.
//!
//! The model knows nothing of counts: each sidecar has a set of occurrences it knows of, a message takes the sender's set
//! along at the frames that carry evidence, a receiver adds what came. Laws (design §3.2): a sidecar's counts are never
//! above the true number, never below its set, never decrease; without lost headers they are the set's exactly.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{Event, EventKind};
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side};
use proptest::prelude::*;

use crate::sidecar::testing::*;

const SERVICES: [&str; 4] = ["a", "b", "c", "d"];
const KINDS: [EventKind; 4] =
    [EventKind::RequestSent, EventKind::RequestReceived, EventKind::ResponseSent, EventKind::ResponseReceived];

/// A call and what its handler calls, all at once or one after the other.
#[derive(Debug, Clone)]
struct Tree {
    callee: usize,
    grpc: bool,
    parallel: bool,
    calls: Vec<Tree>,
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = (0..SERVICES.len(), any::<bool>()).prop_map(|(callee, grpc)| Tree {
        callee,
        grpc,
        parallel: false,
        calls: Vec::new(),
    });
    leaf.prop_recursive(4, 24, 4, |inner| {
        (0..SERVICES.len(), any::<bool>(), any::<bool>(), proptest::collection::vec(inner, 0..4))
            .prop_map(|(callee, grpc, parallel, calls)| Tree { callee, grpc, parallel, calls })
    })
}

/// The event of a kind at a service, as evidence names it. HTTP and gRPC calls are different Apis.
fn event_of(kind: EventKind, callee: usize, grpc: bool) -> Event {
    event(kind, &api_of(callee, grpc))
}

fn api_of(callee: usize, grpc: bool) -> String {
    let operation = if grpc { "t.T/Call" } else { "GET /call" };
    format!("{} {operation}", SERVICES[callee])
}

type Known = BTreeSet<(EventKind, usize, bool, usize)>;

/// The true occurrences, and what each sidecar knows of them.
#[derive(Debug, Default)]
struct Truth {
    all: Known,
    known: BTreeMap<usize, Known>,
}

impl Truth {
    fn happens(&mut self, at: usize, kind: EventKind, callee: usize, grpc: bool, call: usize) {
        self.all.insert((kind, callee, grpc, call));
        self.known.entry(at).or_default().insert((kind, callee, grpc, call));
    }

    fn knows(&mut self, at: usize) -> &mut Known {
        self.known.entry(at).or_default()
    }
}

/// Where an exchange is.
enum State {
    /// Its handler runs: which of its calls were sent, how many are open.
    Open {
        dialogue: Option<Box<Dialogue>>,
        entry: Option<Leg>,
        next: usize,
        open: usize,
    },
    Ended,
}

struct Running {
    tree: Tree,
    caller: Option<usize>,
    parent: Option<usize>,
    seen: Request,
    state: State,
}

/// One thing that can happen next.
#[derive(Debug, Clone, Copy)]
enum Move {
    Send(usize),
    Answer(usize),
}

struct World {
    net: Net,
    running: Vec<Running>,
    truth: Truth,
    /// Whether the n-th header is lost on its way.
    lost: Vec<bool>,
    sent: usize,
}

impl World {
    fn new(lost: Vec<bool>, rules: &[Rule]) -> Self {
        let mut net = Net::new(&SERVICES);
        let events: Vec<Event> = (0..SERVICES.len())
            .flat_map(|callee| {
                [false, true].into_iter().flat_map(move |grpc| KINDS.map(|kind| event_of(kind, callee, grpc)))
            })
            .collect();
        net.arm(rules, &events);
        World { net, running: Vec::new(), truth: Truth::default(), lost, sent: 0 }
    }

    fn loses(&mut self) -> bool {
        self.sent += 1;
        self.lost.get(self.sent - 1).copied().unwrap_or(false)
    }

    fn request(grpc: bool) -> Request {
        if grpc { Request::grpc("t.T/Call") } else { Request::http("GET", "/call") }
    }

    fn enter(&mut self, tree: Tree) {
        let at = tree.callee;
        let (leg, passage) = self.net.come_in(SERVICES[at], tagged(World::request(tree.grpc)));
        self.truth.happens(at, EventKind::RequestReceived, at, tree.grpc, 0);
        let state = State::Open { dialogue: None, entry: Some(leg), next: 0, open: 0 };
        self.running.push(Running { tree, caller: None, parent: None, seen: passage.through(), state });
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
            let State::Open { next, open, .. } = &running.state else { continue };
            if *next < running.tree.calls.len() && (running.tree.parallel || *open == 0) {
                moves.push(Move::Send(index));
            } else if *next == running.tree.calls.len() && *open == 0 {
                moves.push(Move::Answer(index));
            }
        }
        moves
    }

    fn send(&mut self, parent: usize) {
        let from = self.running[parent].tree.callee;
        let Running { tree, state, .. } = &mut self.running[parent];
        let State::Open { next, open, .. } = state else { unreachable!("it was open") };
        let tree = tree.calls[*next].clone();
        (*next, *open) = (*next + 1, *open + 1);
        let (to, grpc, call) = (tree.callee, tree.grpc, self.running.len());
        let request = World::request(grpc).within(&self.running[parent].seen);
        let (out, passage) = self.net.go_out(SERVICES[from], SERVICES[to], request);
        let mut sent = passage.through();
        self.truth.happens(from, EventKind::RequestSent, to, grpc, call);
        if self.loses() {
            sent.lines.retain(|(name, _)| name != aftershock_core::hop::HEADER);
        } else {
            let known = self.truth.knows(from).clone();
            self.truth.knows(to).extend(known);
        }
        let (into, seen) = self.net.come_in(SERVICES[to], sent);
        self.truth.happens(to, EventKind::RequestReceived, to, grpc, call);
        let state = State::Open {
            dialogue: Some(Box::new(Dialogue { out, into, seen: Request::http("GET", "/") })),
            entry: None,
            next: 0,
            open: 0,
        };
        self.running.push(Running { tree, caller: Some(from), parent: Some(parent), seen: seen.through(), state });
    }

    fn answer(&mut self, index: usize) -> Option<u32> {
        let (to, grpc) = (self.running[index].tree.callee, self.running[index].tree.grpc);
        let state = std::mem::replace(&mut self.running[index].state, State::Ended);
        let State::Open { dialogue, entry, .. } = state else { unreachable!("it was open") };
        let response = if grpc { Response::grpc(0) } else { Response::http(200) };
        let mut dropped = None;
        self.truth.happens(to, EventKind::ResponseSent, to, grpc, index);
        match (dialogue, entry, self.running[index].caller) {
            (Some(dialogue), _, Some(from)) => {
                let mut sent = self.net.response(&dialogue.into, response).through();
                // Where the request's header was lost none comes back.
                let came = sent.has_hop();
                if self.loses() {
                    sent = sent.without_hop();
                } else if came {
                    let known = self.truth.knows(to).clone();
                    self.truth.knows(from).extend(known);
                }
                match self.net.response(&dialogue.out, sent) {
                    Passage::Through(_) => self.truth.happens(from, EventKind::ResponseReceived, to, grpc, index),
                    Passage::Dropped => {
                        self.net.close(&dialogue.out, crate::exchange::Closed::ByApplication);
                        dropped = Some(1);
                    }
                    other => panic!("{other:?}"),
                }
            }
            (_, Some(entry), _) => {
                self.net.response(&entry, response).through();
            }
            _ => unreachable!("a call has a caller or is an entry"),
        }
        if let Some(parent) = self.running[index].parent
            && let State::Open { open, .. } = &mut self.running[parent].state
        {
            *open -= 1;
        }
        dropped
    }

    /// The counts of every sidecar lie between what it must know and what is true; without loss they are what it knows.
    fn check(&mut self, before: &mut BTreeMap<(usize, usize, bool, EventKind), u64>, exact: bool) {
        let execution = self.running[0].seen.member().unwrap().execution;
        for (at, service) in SERVICES.into_iter().enumerate() {
            let evidence = self.net.evidence(service, execution);
            for callee in 0..SERVICES.len() {
                for grpc in [false, true] {
                    for kind in KINDS {
                        let count = evidence.count(event_of(kind, callee, grpc).id());
                        let of = |known: &Known| {
                            known.iter().filter(|o| (o.0, o.1, o.2) == (kind, callee, grpc)).count() as u64
                        };
                        let (known, all) = (of(self.truth.knows(at)), of(&self.truth.all));
                        let name = format!("{kind} of {} at {}", api_of(callee, grpc), service);
                        assert!(count <= all, "{name}: {count} > {all} true occurrences");
                        assert!(count >= known, "{name}: {count} < {known} known");
                        assert!(!exact || count == known, "{name}: {count}, not {known}");
                        let earlier = before.insert((at, callee, grpc, kind), count).unwrap_or(0);
                        assert!(count >= earlier, "{name}: fell from {earlier} to {count}");
                    }
                }
            }
        }
    }

    /// Let everything happen, in the order that `choices` give.
    fn run(&mut self, tree: Tree, choices: &[prop::sample::Index], exact: bool) -> Vec<usize> {
        self.enter(tree);
        let mut before = BTreeMap::new();
        let mut dropped = Vec::new();
        let mut step = 0;
        loop {
            let moves = self.moves();
            if moves.is_empty() {
                return dropped;
            }
            let choice = &choices[step % choices.len()];
            step += 1;
            match *choice.get(&moves) {
                Move::Send(parent) => self.send(parent),
                Move::Answer(index) => {
                    if self.answer(index).is_some() {
                        dropped.push(index);
                    }
                }
            }
            self.check(&mut before, exact);
        }
    }
}

fn choices() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    proptest::collection::vec(any::<prop::sample::Index>(), 1..64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn without_loss_counts_are_exactly_what_messages_told(tree in trees(), choices in choices()) {
        World::new(Vec::new(), &[]).run(tree, &choices, true);
    }

    #[test]
    fn with_lost_headers_counts_stay_between_the_known_and_the_true(
        tree in trees(),
        choices in choices(),
        lost in proptest::collection::vec(proptest::bool::weighted(0.3), 48),
    ) {
        let mut world = World::new(lost.clone(), &[]);
        world.run(tree, &choices, false);
        let any = lost.iter().take(world.sent).any(|lost| *lost);
        let gaps = world.net.all_spans().iter().any(|span| !span.gaps.is_empty());
        prop_assert_eq!(gaps, any, "every loss is noticed, and nothing else is");
    }

    #[test]
    fn the_k_th_answer_at_the_caller_is_faulted_and_no_other(
        tree in trees(),
        choices in choices(),
        (caller, callee, grpc, k) in (0..SERVICES.len(), 0..SERVICES.len(), any::<bool>(), 1..4_u32),
    ) {
        let of = api_of(callee, grpc);
        let rule = rule(SERVICES[caller], Side::Caller, &of, Occurrence::Number(k), Phase::Response, Fault::Drop);
        let mut world = World::new(Vec::new(), &[rule]);
        let dropped = world.run(tree, &choices, false);
        let mut passes: Vec<_> = world
            .net
            .spans(SERVICES[caller])
            .into_iter()
            .flat_map(|span| span.passes.into_iter().map(move |pass| (pass.clock, pass.k, pass.passed_by.is_none())))
            .collect();
        passes.sort();
        let numbers: Vec<u32> = passes.iter().map(|(_, k, _)| k.unwrap()).collect();
        prop_assert_eq!(numbers, (1..=passes.len() as u32).collect::<Vec<_>>(), "numbered as they came");
        let hit: Vec<u32> = passes.iter().filter(|(_, _, hit)| *hit).map(|(_, k, _)| k.unwrap()).collect();
        let expected: Vec<u32> = (passes.len() as u32 >= k).then_some(k).into_iter().collect();
        prop_assert_eq!(hit, expected);
        prop_assert_eq!(dropped.len(), usize::from(passes.len() as u32 >= k));
    }

    #[test]
    fn recorded_spans_assemble_into_the_tree_that_was_run(tree in trees(), choices in choices()) {
        fn shape(tree: &Tree) -> (String, Vec<String>) {
            (api_of(tree.callee, tree.grpc), tree.calls.iter().map(|call| format!("{:?}", shape(call))).collect())
        }
        let mut world = World::new(Vec::new(), &[]);
        world.run(tree.clone(), &choices, true);
        let traces = aftershock_core::trace::Trace::assemble(world.net.all_spans());
        prop_assert_eq!(traces.len(), 1);
        let trace = &traces[0];
        fn recorded(trace: &aftershock_core::trace::Trace, call: &aftershock_core::trace::Call) -> (String, Vec<String>) {
            let inner = trace.children(Some(call.id)).map(|call| format!("{:?}", recorded(trace, call)));
            (call.api.to_string(), inner.collect())
        }
        let roots: Vec<_> = trace.roots().collect();
        prop_assert_eq!(roots.len(), 1);
        let sorted = |(api, mut calls): (String, Vec<String>)| { calls.sort(); (api, calls) };
        // Parallel siblings may be sent in any order only among those of other parents: their own order is kept.
        prop_assert_eq!(sorted(recorded(trace, roots[0])), sorted(shape(&tree)));
    }

    #[test]
    fn replaying_the_trace_gives_what_the_sidecars_knew(tree in trees(), choices in choices()) {
        let mut world = World::new(Vec::new(), &[]);
        world.run(tree, &choices, true);
        let execution = world.running[0].seen.member().unwrap().execution;
        let events: Vec<_> = (0..SERVICES.len())
            .flat_map(|callee| [false, true].map(|grpc| (callee, grpc)))
            .flat_map(|(callee, grpc)| KINDS.map(|kind| counted(event_of(kind, callee, grpc))))
            .collect();
        let trace = aftershock_core::trace::Trace::assemble(world.net.all_spans()).remove(0);
        let visible = aftershock_core::replay::replay(&trace, &events);
        for service in SERVICES {
            let sidecar = world.net.sidecar(service).observer();
            let Some(last) = visible.iter().rev().find(|visible| visible.step.observer == sidecar) else { continue };
            let live = world.net.evidence(service, execution);
            for counted in &events {
                let own = u64::from(counted.matches(&last.step.occurrence()));
                prop_assert_eq!(last.evidence.count(counted.event.id()) + own, live.count(counted.event.id()));
            }
        }
    }
}
