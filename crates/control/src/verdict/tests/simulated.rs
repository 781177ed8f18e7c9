//! Rounds told by a small model of services and sidecars whose truth is known, against what is judged of their records.
//!
//! The model shares no code with what it checks: knowledge is a set of true occurrences, not counts; a sidecar is a clock
//! and such a set; messages carry both. `front` handles an entry request by groups of calls; the calls of a group run
//! side by side, in an order drawn at random, and some handlers call on. Then something is done to the round, and what
//! its verdict must be follows from what was done and from what truly happened.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{CountedEvent, EventKind};
use aftershock_core::plan::Atom;
use proptest::prelude::*;

use super::*;

const SERVICES: [&str; 3] = ["front", "payment", "shipping"];
const FRONT: usize = 0;

/// A call that a handler makes: of which service, and what that one's handler calls in turn.
#[derive(Debug, Clone)]
struct Plot {
    service: usize,
    groups: Vec<Vec<Plot>>,
}

fn called(service: usize) -> &'static str {
    [ENTRY, CHARGE, QUOTE][service]
}

/// One true occurrence of a boundary event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Happened {
    kind: EventKind,
    call: u64,
    service: usize,
    caller: usize,
}

/// What a sidecar knows, and what a message carries.
#[derive(Debug, Clone, Default)]
struct Known {
    clock: u64,
    events: BTreeSet<Happened>,
}

impl Known {
    fn merge(&mut self, other: &Known) {
        self.clock = self.clock.max(other.clock);
        self.events.extend(&other.events);
    }

    fn happen(&mut self, event: Happened) -> u64 {
        self.clock += 1;
        self.events.insert(event);
        self.clock
    }

    fn holds(&self, guard: &[Condition]) -> Vec<usize> {
        let fails =
            |condition: &Condition| self.events.iter().filter(|event| condition.is_of(event)).count() < condition.count;
        guard.iter().enumerate().filter(|(_, condition)| fails(condition)).map(|(index, _)| index).collect()
    }
}

/// An atom, in the model's own terms.
#[derive(Debug, Clone)]
struct Condition {
    kind: EventKind,
    service: usize,
    count: usize,
}

impl Condition {
    fn is_of(&self, event: &Happened) -> bool {
        event.kind == self.kind && event.service == self.service
    }

    fn atom(&self) -> Atom {
        atom(self.kind, called(self.service), self.count as u64)
    }
}

/// How the sidecar of `front` goes about its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conduct {
    /// As it should.
    Honest,
    /// It takes the pass with this number for the one that is meant, and says so.
    WrongNumber(u32),
    /// It takes it for the one that is meant, and claims that it has the right number.
    Miscounts(u32),
    /// It does not ask the guard.
    Guardless,
    /// It fires at every pass at which the guard holds, from the one meant on.
    Repeats,
}

/// The rule: on calls of `payment` by `front`.
#[derive(Debug, Clone)]
struct Shot {
    k: Option<u32>,
    phase: Phase,
    fault: Fault,
    guard: Vec<Condition>,
    conduct: Conduct,
}

/// What happens next, for the scheduler to choose from.
#[derive(Debug, Clone)]
enum Next {
    Send { parent: u64, plot: Plot, group: u64 },
    Arrive { call: u64, plot: Plot, brought: Known },
    Begin { call: u64, groups: Vec<Vec<Plot>> },
    Answer { call: u64, brought: Known },
}

/// One execution of the model.
struct World<'a> {
    shot: &'a Shot,
    execution: u64,
    seed: u64,
    sidecars: [Known; 3],
    next: Vec<Next>,
    spans: Vec<CallSpan>,
    /// The open calls of a group: how many, and what its handler does then.
    waiting: BTreeMap<u64, (usize, u64, Vec<Vec<Plot>>)>,
    group_of: BTreeMap<u64, u64>,
    calls: u64,
    groups: u64,
    passes: u32,
    fired: u32,
    /// The guard, number or both were wrong when it fired.
    outside: bool,
    /// The pass that was meant came.
    reached: bool,
    /// The clock of the hit, and the clocks of the passes, at `front`.
    hit: Option<u64>,
}

impl<'a> World<'a> {
    fn run(shot: &'a Shot, execution: u64, seed: u64, groups: &[Vec<Plot>], spent: bool) -> Self {
        let mut world = World {
            shot,
            execution,
            seed,
            sidecars: Default::default(),
            next: Vec::new(),
            spans: Vec::new(),
            waiting: BTreeMap::new(),
            group_of: BTreeMap::new(),
            calls: 1,
            groups: 0,
            passes: 0,
            fired: u32::from(spent),
            outside: false,
            reached: false,
            hit: None,
        };
        let clock = world.sidecars[FRONT].happen(Happened {
            kind: EventKind::RequestReceived,
            call: 1,
            service: FRONT,
            caller: FRONT,
        });
        let mut entry = span(Side::Callee, "front", None, ENTRY, 1, (clock, 0));
        (entry.response, entry.outcome) = (None, None);
        world.record(entry);
        world.next.push(Next::Begin { call: 1, groups: groups.to_vec() });
        while !world.next.is_empty() {
            let chosen = usize::try_from(world.draw() % world.next.len() as u64).unwrap();
            let next = world.next.swap_remove(chosen);
            world.step(next);
        }
        world
    }

    /// SplitMix64: the schedule is a function of the seed.
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn record(&mut self, mut span: CallSpan) {
        span.execution = ExecutionId(self.execution);
        self.spans.push(span);
    }

    fn span(&mut self, side: Side, call: u64) -> &mut CallSpan {
        self.spans.iter_mut().find(|span| span.side == side && span.call == CallId(call)).unwrap()
    }

    fn service_of(&self, call: u64) -> usize {
        let span = self.spans.iter().find(|span| span.side == Side::Callee && span.call == CallId(call)).unwrap();
        SERVICES.iter().position(|service| *service == span.service.as_str()).unwrap()
    }

    fn step(&mut self, next: Next) {
        match next {
            Next::Begin { call, mut groups } => {
                if groups.is_empty() {
                    self.answer(call);
                    return;
                }
                let group = groups.remove(0);
                self.groups += 1;
                let id = self.groups;
                self.waiting.insert(id, (group.len(), call, groups));
                for plot in group {
                    self.next.push(Next::Send { parent: call, plot, group: id });
                }
            }
            Next::Send { parent, plot, group } => self.send(parent, plot, group),
            Next::Arrive { call, plot, brought } => {
                let caller = self.sent_by(call);
                let here = &mut self.sidecars[plot.service];
                here.merge(&brought);
                let clock =
                    here.happen(Happened { kind: EventKind::RequestReceived, call, service: plot.service, caller });
                let mut server = span(
                    Side::Callee,
                    SERVICES[plot.service],
                    Some(SERVICES[caller]),
                    called(plot.service),
                    call,
                    (clock, 0),
                );
                server.parent = self.span(Side::Caller, call).parent;
                (server.response, server.outcome) = (None, None);
                self.record(server);
                self.next.push(Next::Begin { call, groups: plot.groups });
            }
            Next::Answer { call, brought } => self.answered(call, &brought),
        }
    }

    fn sent_by(&mut self, call: u64) -> usize {
        let service = self.span(Side::Caller, call).service.clone();
        SERVICES.iter().position(|name| *name == service.as_str()).unwrap()
    }

    fn send(&mut self, parent: u64, plot: Plot, group: u64) {
        let caller = self.service_of(parent);
        self.calls += 1;
        let call = self.calls;
        self.group_of.insert(call, group);
        let mut client =
            span(Side::Caller, SERVICES[caller], Some(SERVICES[caller]), called(plot.service), call, (0, 0));
        client.parent = Some(CallId(parent));
        (client.response, client.outcome) = (None, None);
        let fires = self.decide(caller, plot.service, Phase::Request, &mut client);
        let event = Happened { kind: EventKind::RequestSent, call, service: plot.service, caller };
        let clock = self.sidecars[caller].happen(event);
        client.request = Instant { clock, unix_nanos: clock };
        if fires {
            // Nothing leaves; an abort is answered by the sidecar, a drop by the caller's own timeout.
            (client.evidence_went, client.evidence_came, client.ending) = (false, false, Ending::Faulted);
            (client.http_status, client.grpc_status) = (None, None);
            if self.shot.fault == Fault::Abort {
                let event = Happened { kind: EventKind::ResponseReceived, call, service: plot.service, caller };
                let clock = self.sidecars[caller].happen(event);
                client.response = Some(Instant { clock, unix_nanos: clock });
                (client.outcome, client.made, client.http_status) = (Some(Outcome::Error), true, Some(200));
            }
            self.record(client);
            self.over(group);
            return;
        }
        let brought = self.sidecars[caller].clone();
        self.record(client);
        self.next.push(Next::Arrive { call, plot, brought });
    }

    /// The handler of `call` is done.
    fn answer(&mut self, call: u64) {
        let service = self.service_of(call);
        let caller = if call == 1 { FRONT } else { self.sent_by(call) };
        let clock = self.sidecars[service].happen(Happened { kind: EventKind::ResponseSent, call, service, caller });
        let server = self.span(Side::Callee, call);
        (server.response, server.outcome) = (Some(Instant { clock, unix_nanos: clock }), Some(Outcome::Ok));
        if call != 1 {
            let brought = self.sidecars[service].clone();
            self.next.push(Next::Answer { call, brought });
        }
    }

    fn answered(&mut self, call: u64, brought: &Known) {
        let caller = self.sent_by(call);
        let mut client = self.span(Side::Caller, call).clone();
        let service = SERVICES.iter().position(|name| *name == client.api.service.as_str()).unwrap();
        self.sidecars[caller].merge(brought);
        let fires = self.decide(caller, service, Phase::Response, &mut client);
        if fires && self.shot.fault == Fault::Drop {
            client.ending = Ending::Faulted;
        } else {
            let event = Happened { kind: EventKind::ResponseReceived, call, service, caller };
            let clock = self.sidecars[caller].happen(event);
            client.response = Some(Instant { clock, unix_nanos: clock });
            let outcome = if fires { Outcome::Error } else { Outcome::Ok };
            (client.outcome, client.made) = (Some(outcome), fires);
        }
        *self.span(Side::Caller, call) = client;
        self.over(self.group_of[&call]);
    }

    /// A call of a group is over for its handler.
    fn over(&mut self, group: u64) {
        let (open, call, groups) = self.waiting.get_mut(&group).unwrap();
        *open -= 1;
        if *open == 0 {
            let (call, groups) = (*call, groups.clone());
            self.next.push(Next::Begin { call, groups });
        }
    }

    /// A message is at its interception point: number it, ask the guard, and say whether it is faulted.
    fn decide(&mut self, caller: usize, service: usize, phase: Phase, client: &mut CallSpan) -> bool {
        if caller != FRONT || service != 1 || phase != self.shot.phase {
            return false;
        }
        self.passes += 1;
        let true_number = self.passes;
        let here = &self.sidecars[FRONT];
        let clock = here.clock;
        let unmet = here.holds(&self.shot.guard);
        let meant = match self.shot.conduct {
            Conduct::WrongNumber(n) | Conduct::Miscounts(n) => true_number == n,
            Conduct::Repeats => self.shot.k.is_none_or(|k| true_number >= k),
            Conduct::Honest | Conduct::Guardless => self.shot.k.is_none_or(|k| true_number == k),
        };
        self.reached |= self.shot.k.is_none_or(|k| true_number == k);
        let told = match (self.shot.conduct, self.shot.k) {
            // It counts from elsewhere, so that the pass it wants gets the number it should have.
            (Conduct::Miscounts(n), Some(k)) => (true_number + k).saturating_sub(n),
            _ => true_number,
        };
        let spent = self.fired > 0 && self.shot.conduct != Conduct::Repeats;
        let passed_by = if spent {
            Some(PassedBy::Spent)
        } else if !meant {
            Some(PassedBy::Number)
        } else if !unmet.is_empty() && self.shot.conduct != Conduct::Guardless {
            Some(PassedBy::GuardFalse(unmet.clone()))
        } else {
            None
        };
        let fires = passed_by.is_none();
        client.passes.push(Pass { rule: 0, k: Some(told), clock, passed_by });
        if fires {
            self.fired += 1;
            self.hit = self.hit.or(Some(clock));
            self.outside |= !unmet.is_empty() || self.shot.k.is_some_and(|k| k != true_number);
            let fault = self.shot.fault.to_string();
            client.injection = Some(Injection { rule: 0, k: told, decided: clock, held: false, fault });
        }
        fires
    }
}

/// What is done to a round after it was run honestly.
#[derive(Debug, Clone)]
enum Deed {
    Nothing,
    LoseSpan(prop::sample::Index),
    LoseMessage,
    Fail,
    Gap(prop::sample::Index, GapKind, usize),
    Unjudge(prop::sample::Index),
    LoseEvidence(prop::sample::Index),
}

fn plots(depth: u32) -> BoxedStrategy<Plot> {
    let service = prop_oneof![3 => Just(1_usize), 2 => Just(2_usize)];
    if depth == 0 {
        return service.prop_map(|service| Plot { service, groups: Vec::new() }).boxed();
    }
    let groups = proptest::collection::vec(proptest::collection::vec(plots(depth - 1), 1..3), 0..2);
    (service, groups).prop_map(|(service, groups)| Plot { service, groups }).boxed()
}

fn entry() -> impl Strategy<Value = Vec<Vec<Plot>>> {
    proptest::collection::vec(proptest::collection::vec(plots(1), 1..4), 1..4)
}

fn guards(local: bool) -> impl Strategy<Value = Vec<Condition>> {
    let kinds = if local {
        vec![EventKind::RequestSent, EventKind::ResponseReceived]
    } else {
        vec![EventKind::RequestSent, EventKind::RequestReceived, EventKind::ResponseSent, EventKind::ResponseReceived]
    };
    let condition = (proptest::sample::select(kinds), 1..3_usize, 1..4_usize)
        .prop_map(|(kind, service, count)| Condition { kind, service, count });
    proptest::collection::vec(condition, 0..3)
}

fn shots(conducts: impl Strategy<Value = Conduct> + 'static) -> impl Strategy<Value = Shot> {
    let k = prop_oneof![Just(None), (1..5_u32).prop_map(Some)];
    let phase = prop_oneof![Just(Phase::Request), Just(Phase::Response)];
    let fault = prop_oneof![Just(Fault::Drop), Just(Fault::Abort)];
    (k, phase, fault, guards(false), conducts).prop_map(|(k, phase, fault, guard, conduct)| Shot {
        k,
        phase,
        fault,
        guard,
        conduct,
    })
}

/// The round of these executions, as the controller would know it.
fn round(shot: &Shot, worlds: &[World<'_>]) -> Round {
    let k = shot.k.map_or(Occurrence::First, Occurrence::Number);
    let mut fault = tfic(CHARGE, k, shot.phase);
    fault.fault = shot.fault.clone();
    fault.guard.after = shot.guard.iter().map(Condition::atom).collect();
    Round::new(fault, worlds.iter().flat_map(|world| world.spans.clone()).collect())
}

/// The verdict of honest sidecars with nothing lost.
fn honest(worlds: &[World<'_>]) -> Verdict {
    if worlds.iter().any(|world| world.hit.is_some()) {
        Verdict::Injected
    } else if worlds.iter().any(|world| world.reached && world.passes > 0) {
        Verdict::Missed
    } else {
        Verdict::Unreached
    }
}

/// Two executions, the second one of a client that tries again: the rule is spent there once it has fired.
fn two<'a>(shot: &'a Shot, seed: u64, first: &[Vec<Plot>], second: &[Vec<Plot>]) -> [World<'a>; 2] {
    let one = World::run(shot, 1, seed, first, false);
    let spent = one.fired > 0 && shot.conduct != Conduct::Repeats;
    let two = World::run(shot, 2, seed ^ 0xffff, second, spent);
    [one, two]
}

proptest! {
    #[test]
    fn honest_sidecars_with_a_whole_record_are_believed(
        shot in shots(Just(Conduct::Honest)), seed: u64, first in entry(), second in entry(),
    ) {
        let worlds = two(&shot, seed, &first, &second);
        let (faults, verdict) = round(&shot, &worlds).judged();
        prop_assert_eq!(verdict, honest(&worlds), "{:?}", faults[0].reasons);
        prop_assert!(!faults[0].reasons.is_empty());
    }

    #[test]
    fn a_wrong_number_is_found_out_whatever_is_claimed(
        shot in shots(prop_oneof![(1..5_u32).prop_map(Conduct::WrongNumber), (1..5_u32).prop_map(Conduct::Miscounts)]),
        k in 1..5_u32, seed: u64, first in entry(),
    ) {
        let shot = Shot { k: Some(k), guard: Vec::new(), ..shot };
        let world = [World::run(&shot, 1, seed, &first, false)];
        prop_assume!(world[0].fired > 0);
        let wrong = match shot.conduct {
            Conduct::WrongNumber(n) | Conduct::Miscounts(n) => Some(n) != shot.k,
            _ => unreachable!(),
        };
        let (faults, verdict) = round(&shot, &world).judged();
        prop_assert_eq!(verdict, if wrong { Verdict::Premature } else { Verdict::Injected }, "{:?}", faults[0].reasons);
        prop_assert_eq!(faults[0].premature, u32::from(wrong));
    }

    #[test]
    fn a_guard_that_was_not_asked_is_found_out_if_its_events_are_the_acting_sidecars_own(
        shot in shots(Just(Conduct::Guardless)), guard in guards(true), seed: u64, first in entry(),
    ) {
        // `front` alone calls here, so that every sent and received event of a call is its own.
        let flat: Vec<Vec<Plot>> = first
            .iter()
            .map(|group| group.iter().map(|plot| Plot { service: plot.service, groups: Vec::new() }).collect())
            .collect();
        let shot = Shot { guard, ..shot };
        let world = [World::run(&shot, 1, seed, &flat, false)];
        prop_assume!(world[0].fired > 0);
        let (faults, verdict) = round(&shot, &world).judged();
        let expected = if world[0].outside { Verdict::Premature } else { Verdict::Injected };
        prop_assert_eq!(verdict, expected, "{:?}", faults[0].reasons);
    }

    #[test]
    fn premature_is_never_said_of_a_hit_whose_guard_held(
        shot in shots(Just(Conduct::Guardless)), seed: u64, first in entry(),
    ) {
        let world = [World::run(&shot, 1, seed, &first, false)];
        let (_, verdict) = round(&shot, &world).judged();
        prop_assert!(world[0].outside || verdict != Verdict::Premature);
    }

    #[test]
    fn a_second_shot_is_never_overlooked(
        shot in shots(Just(Conduct::Repeats)), seed: u64, first in entry(), second in entry(), unlimited: bool,
    ) {
        let worlds = two(&shot, seed, &first, &second);
        let mut round = round(&shot, &worlds);
        if unlimited {
            round.plan.faults[0].max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
        }
        let (faults, verdict) = round.judged();
        let fired: Vec<u32> = worlds.iter().map(|world| world.fired).collect();
        let multiple = fired.iter().any(|n| *n > 1) || (!unlimited && fired.iter().sum::<u32>() > 1);
        prop_assert_eq!(verdict == Verdict::Multiple, multiple, "{:?} {:?}", fired, faults[0].reasons);
        prop_assert_eq!(faults[0].injections, fired.iter().sum::<u32>());
    }

    #[test]
    fn what_is_lost_or_doubtful_makes_the_verdict_incomplete_exactly_where_it_matters(
        shot in shots(Just(Conduct::Honest)), seed: u64, first in entry(), second in entry(),
        deed in prop_oneof![
            Just(Deed::Nothing),
            any::<prop::sample::Index>().prop_map(Deed::LoseSpan),
            Just(Deed::LoseMessage),
            Just(Deed::Fail),
            (any::<prop::sample::Index>(), prop_oneof![Just(GapKind::Number), Just(GapKind::Evidence)], 0..3_usize)
                .prop_map(|(at, kind, service)| Deed::Gap(at, kind, service)),
            any::<prop::sample::Index>().prop_map(Deed::Unjudge),
            any::<prop::sample::Index>().prop_map(Deed::LoseEvidence),
        ],
    ) {
        let worlds = two(&shot, seed, &first, &second);
        let truth = honest(&worlds);
        let fired = truth == Verdict::Injected;
        let hit_in = worlds.iter().position(|world| world.hit.is_some()).map(|index| index as u64 + 1);
        let mut round = round(&shot, &worlds);
        let expected = match &deed {
            Deed::Nothing => truth,
            Deed::LoseMessage => {
                round.missing.push("the sidecar of payment lost 1 span".to_owned());
                Verdict::Incomplete
            }
            Deed::Fail => {
                round.failures.push(Failure::Client("gone".to_owned()));
                Verdict::Inconclusive
            }
            Deed::LoseSpan(at) => {
                // The roots' absence shows nowhere in the spans that are left: completion is the controller's to know.
                let calls: Vec<usize> = (0..round.spans.len()).filter(|index| {
                    let span = &round.spans[*index];
                    let pair = round.spans.iter().filter(|other| (other.execution, other.call) == (span.execution, span.call));
                    span.call != CallId(1) && pair.count() == 2
                }).collect();
                prop_assume!(!calls.is_empty());
                round.spans.remove(calls[at.index(calls.len())]);
                Verdict::Incomplete
            }
            Deed::Gap(at, kind, service) => {
                let index = at.index(round.spans.len());
                let span = &mut round.spans[index];
                let gap = Gap { kind: *kind, observer: ObserverId(1), service: SERVICES[*service].parse().unwrap() };
                span.gaps.insert(gap);
                let of_the_hit = Some(span.execution.0) == hit_in;
                let matters = !fired || (of_the_hit && *kind == GapKind::Number && *service == FRONT);
                if matters { Verdict::Incomplete } else { truth }
            }
            Deed::Unjudge(at) => {
                let judged: Vec<usize> = (0..round.spans.len())
                    .filter(|index| round.spans[*index].passes.len() == 1 && round.spans[*index].injection.is_none())
                    .collect();
                prop_assume!(!judged.is_empty());
                let span = &mut round.spans[judged[at.index(judged.len())]];
                let clock = span.passes.remove(0).clock;
                let execution = span.execution.0;
                let hit = worlds[execution as usize - 1].hit;
                // At one sidecar the order of clocks is the order in which things happened.
                let harmless = fired && (Some(execution) != hit_in || hit.is_some_and(|hit| clock > hit));
                // A dropped answer is not counted: the next message may have the hit's clock, which proves nothing.
                prop_assume!(!(fired && Some(execution) == hit_in && hit == Some(clock)));
                // Where nothing fired: what came after the numbered pass that was meant cannot have been it.
                let judged = round.spans.iter().filter(|span| span.execution.0 == execution).flat_map(|span| &span.passes);
                let meant = judged.filter(|pass| pass.k == shot.k).map(|pass| pass.clock).next();
                let too_late = !fired && meant.is_some_and(|meant| meant < clock);
                if harmless || too_late { truth } else { Verdict::Incomplete }
            }
            Deed::LoseEvidence(at) => {
                let pairs: Vec<usize> = (0..round.spans.len()).filter(|index| {
                    let span = &round.spans[*index];
                    span.side == Side::Callee && span.call != CallId(1)
                }).collect();
                prop_assume!(!pairs.is_empty());
                round.spans[pairs[at.index(pairs.len())]].evidence_came = false;
                if fired { truth } else { Verdict::Incomplete }
            }
        };
        let (faults, verdict) = round.judged();
        prop_assert_eq!(verdict, expected, "{:?}: {:?}", deed, faults[0].reasons);
    }
}

#[test]
fn the_model_reaches_every_verdict_it_is_asked_about() {
    let mut seen: BTreeMap<Verdict, u32> = BTreeMap::new();
    let pay = |n: usize| vec![Plot { service: 1, groups: Vec::new() }; n];
    for (k, count) in [(Some(1), 1), (Some(3), 1), (Some(1), 3), (None, 2)] {
        let guard = vec![Condition { kind: EventKind::ResponseSent, service: 1, count }];
        let shot = Shot { k, phase: Phase::Response, fault: Fault::Drop, guard, conduct: Conduct::Honest };
        for seed in 0..8 {
            let worlds = two(&shot, seed, &[pay(2)], &[pay(1)]);
            *seen.entry(honest(&worlds)).or_default() += 1;
        }
    }
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [Verdict::Unreached, Verdict::Missed, Verdict::Injected]);
    let counted =
        CountedEvent { apis: BTreeSet::from([api(CHARGE)]), event: atom(EventKind::ResponseSent, CHARGE, 1).event() };
    let shot =
        Shot { k: Some(9), phase: Phase::Request, fault: Fault::Drop, guard: Vec::new(), conduct: Conduct::Honest };
    let world = World::run(&shot, 1, 5, &[pay(3)], false);
    let trace = &Trace::assemble(world.spans)[0];
    assert_eq!(trace.steps().iter().filter(|step| counted.matches(&step.occurrence())).count(), 3);
}
