//! Visible counts and guards against the definitions of design §4, read a second time over the true sets of
//! occurrences that the simulator keeps.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::duration::Interval;
use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Hold, Occurrence, Phase, Target};
use aftershock_core::trace::Trace;
use aftershock_generate::after::Removed;
use aftershock_generate::explain::Fate;
use aftershock_generate::visible::{Replayed, candidates};
use aftershock_generate::{GenerateError, Request, Synthesis, guard, synthesize};
use proptest::prelude::*;

use crate::support::random::tree;
use crate::support::{
    Course, Happened, Node, Random, Simulated, Todo, api, call, leaf, parallel, simulate, simulate_as,
};

fn counted(event: &Event) -> CountedEvent {
    let ApiRef::Api(api) = &event.api else { panic!("no groups here") };
    CountedEvent { apis: BTreeSet::from([api.clone()]), event: event.clone() }
}

/// A target on some call of the tree that has a caller, taken from `seed`.
pub(crate) fn some_target(sims: &[Simulated], random: &mut Random) -> Option<(Target, u32)> {
    let calls: Vec<_> = sims[0].trace.calls.iter().filter(|call| call.caller.is_some()).collect();
    let call = calls.get(random.below(calls.len().max(1) as u64) as usize)?;
    let phase = if random.one_in(2) { Phase::Request } else { Phase::Response };
    let target =
        Target { caller: call.caller.clone(), ..Target::new(ApiRef::Api(call.api.clone()), Occurrence::First, phase) };
    let passes = passes(&sims[0], &target).len();
    Some((target, 1 + random.below(passes as u64) as u32))
}

fn instant(target: &Target) -> EventKind {
    match target.phase {
        Phase::Request => EventKind::RequestSent,
        Phase::Response => EventKind::ResponseReceived,
    }
}

/// The messages of the target in the order of true time. With one instance of the caller that is their order there.
pub(crate) fn passes(sim: &Simulated, target: &Target) -> Vec<Happened> {
    let is = |(id, event): &&Happened| {
        let call = sim.trace.call(*id).unwrap();
        *event == instant(target) && ApiRef::Api(call.api.clone()) == target.api && call.caller == target.caller
    };
    sim.by_time.iter().filter(is).copied().collect()
}

pub(crate) fn all_events(sims: &[Simulated]) -> BTreeSet<Event> {
    sims.iter()
        .flat_map(|sim| {
            sim.by_time.iter().map(|(id, event)| {
                let call = sim.trace.call(*id).unwrap();
                Event {
                    event: *event,
                    api: ApiRef::Api(call.api.clone()),
                    caller: call.caller.clone(),
                    outcome: OutcomeFilter::Any,
                }
            })
        })
        .collect()
}

/// The definitions: U and all D, for pass `n`, without the events for which `left_out` holds.
fn definition(
    sims: &[Simulated],
    target: &Target,
    n: usize,
    left_out: impl Fn(&Event) -> bool,
) -> (Vec<(Event, u64)>, Vec<BTreeSet<usize>>) {
    let universe: Vec<(Event, u64)> = all_events(sims)
        .into_iter()
        .filter(|event| !left_out(event))
        .map(|event| {
            let least = sims.iter().map(|sim| sim.count(&event, &sim.heard[&passes(sim, target)[n - 1]])).min();
            (event, least.unwrap())
        })
        .filter(|(_, least)| *least > 0)
        .collect();
    let clauses = sims
        .iter()
        .flat_map(|sim| {
            passes(sim, target).into_iter().take(n - 1).map(|p| {
                let false_there = |(event, t): &(Event, u64)| sim.count(event, &sim.heard[&p]) < *t;
                universe.iter().enumerate().filter(|(_, atom)| false_there(atom)).map(|(i, _)| i).collect()
            })
        })
        .collect();
    (universe, clauses)
}

/// The size of a smallest hitting set, by trying all sets of each size.
pub(crate) fn smallest(elements: usize, clauses: &[BTreeSet<usize>]) -> Option<usize> {
    fn hit(from: usize, left: usize, elements: usize, open: Vec<&BTreeSet<usize>>) -> bool {
        if open.is_empty() {
            return true;
        }
        left > 0
            && (from..elements).any(|element| {
                let rest = open.iter().copied().filter(|clause| !clause.contains(&element)).collect();
                hit(element + 1, left - 1, elements, rest)
            })
    }
    if clauses.iter().any(BTreeSet::is_empty) {
        return None;
    }
    (0..=elements).find(|size| hit(0, *size, elements, clauses.iter().collect()))
}

fn guard_holds(sim: &Simulated, guard: &[Atom], at: Happened) -> bool {
    guard.iter().all(|atom| sim.count(&atom.event(), &sim.heard[&at]) >= atom.count)
}

fn own_event(target: &Target) -> Event {
    Event {
        event: instant(target),
        api: target.api.clone(),
        caller: target.caller.clone(),
        outcome: OutcomeFilter::Any,
    }
}

fn reached(sims: &[Simulated], target: &Target, n: u32) -> bool {
    sims.iter().all(|sim| passes(sim, target).len() >= n as usize)
}

fn synthesized(sims: &[Simulated], request: &Request) -> Result<Synthesis, GenerateError> {
    let traces: Vec<Trace> = sims.iter().map(|sim| sim.trace.clone()).collect();
    synthesize(request, &traces)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn visible_counts_are_what_the_sidecar_has_heard_of(seed in any::<u64>(), replicas in 1_u64..4) {
        let sim = simulate_as(&tree(&mut Random(seed)), seed, Course { replicas, parked: None });
        let events: Vec<CountedEvent> = candidates(&[&sim.trace]).iter().map(counted).collect();
        prop_assert_eq!(events.iter().map(|c| c.event.clone()).collect::<BTreeSet<_>>(), all_events(std::slice::from_ref(&sim)));
        let replayed = Replayed::new(&sim.trace, &events, &Removed::default());
        prop_assert_eq!(replayed.steps().len(), sim.by_time.len());
        for (key, heard) in &sim.heard {
            let known = replayed.at(key.0, key.1).unwrap();
            for c in &events {
                prop_assert_eq!(known.count(c.event.id()), sim.count(&c.event, heard), "{} at {:?}", c.event, key);
            }
        }
    }

    /// Numbered occurrences: the own event tells all earlier passes apart, and is chosen.
    #[test]
    fn a_numbered_target_gets_its_own_event_and_nothing_else(seed in any::<u64>()) {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..4).map(|i| simulate(&root, seed.wrapping_add(i))).collect();
        let Some((mut target, n)) = some_target(&sims, &mut random) else { return Ok(()) };
        target.k = Occurrence::Number(n);
        prop_assume!(reached(&sims, &target, n));
        let found = synthesized(&sims, &Request::new(target.clone(), Fault::Drop)).unwrap();
        let expected: Vec<Atom> = (n > 1).then(|| Atom::new(own_event(&target), u64::from(n) - 1)).into_iter().collect();
        prop_assert_eq!(&found.tfic.guard.after, &expected);
        for (sim, trace) in sims.iter().zip(&found.explanation.traces) {
            prop_assert_eq!(trace.fires, Some(n));
            for (number, pass) in (1..).zip(passes(sim, &target)) {
                prop_assert_eq!(guard_holds(sim, &expected, pass), number >= n);
            }
        }
    }

    /// Open occurrences: as small as any set of atoms that does it, true at the target, false before.
    #[test]
    fn an_open_target_gets_a_smallest_guard_that_is_true_there_and_false_before(seed in any::<u64>()) {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..3).map(|i| simulate(&root, seed.wrapping_add(i))).collect();
        let Some((target, n)) = some_target(&sims, &mut random) else { return Ok(()) };
        prop_assume!(reached(&sims, &target, n));
        let own = own_event(&target);
        let siblings = |event: &Event| event.api == target.api && event.caller == target.caller;
        let sizes = [
            { let (u, d) = definition(&sims, &target, n as usize, siblings); smallest(u.len(), &d) },
            { let (u, d) = definition(&sims, &target, n as usize, |event| *event == own); smallest(u.len(), &d) },
        ];
        let mut request = Request::new(target.clone(), Fault::Drop);
        request.pass = Some(n);
        match synthesized(&sims, &request) {
            Ok(found) => {
                prop_assert_eq!(Some(found.tfic.guard.after.len()), sizes[0].or(sizes[1]));
                prop_assert_eq!(found.warnings.contains(&guard::Warning::CountsRepeats), sizes[0].is_none());
                for (sim, trace) in sims.iter().zip(&found.explanation.traces) {
                    prop_assert_eq!(trace.fires, Some(n));
                    let first = passes(sim, &target).iter().position(|p| guard_holds(sim, &found.tfic.guard.after, *p));
                    prop_assert_eq!(first, Some(n as usize - 1));
                }
                let universe: BTreeMap<Event, u64> = definition(&sims, &target, n as usize, |_| false).0.into_iter().collect();
                for candidate in &found.candidates {
                    prop_assert_eq!(universe.get(&candidate.atom.event()), Some(&candidate.atom.count));
                }
            }
            Err(GenerateError::Indistinguishable { trace, pass }) => {
                prop_assert_eq!(sizes, [None, None]);
                let sim = sims.iter().find(|sim| sim.trace.execution == trace).unwrap();
                let (universe, _) = definition(&sims, &target, n as usize, |event| *event == own);
                let p = passes(sim, &target)[pass as usize - 1];
                prop_assert!(universe.iter().all(|(event, t)| sim.count(event, &sim.heard[&p]) >= *t));
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }

    /// With `hold`: whatever is promised to become true does so in an execution in which the message is kept for ever.
    #[test]
    fn a_held_message_sees_its_guard_turn_true(seed in any::<u64>(), atom in any::<prop::sample::Index>()) {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..3).map(|i| simulate(&root, seed.wrapping_add(i))).collect();
        let Some((mut target, n)) = some_target(&sims, &mut random) else { return Ok(()) };
        target.k = Occurrence::Number(n);
        prop_assume!(reached(&sims, &target, n));
        let events: Vec<Event> = all_events(&sims).into_iter().collect();
        let mut request = Request::new(target.clone(), Fault::Drop);
        request.competing = vec![Atom::new(atom.get(&events).clone(), 1)];
        request.hold = Some(Hold { deadline: Interval(std::time::Duration::from_secs(60)) });
        match synthesized(&sims, &request) {
            Ok(found) => for (i, sim) in sims.iter().enumerate() {
                let m = passes(sim, &target)[n as usize - 1];
                let pass = &found.explanation.traces[i].passes[n as usize - 1];
                prop_assert_eq!(guard_holds(sim, &found.tfic.guard.after, m), pass.fate == Fate::Fires);
                let course = Course { replicas: 1, parked: Some(m) };
                let parked = simulate_as(&root, seed.wrapping_add(i as u64), course);
                let observer = sim.trace.call(m.0).unwrap().client.as_ref().unwrap().observer;
                let heard = &parked.heard_by[&observer];
                for atom in &found.tfic.guard.after {
                    prop_assert!(parked.count(&atom.event(), heard) >= atom.count, "{atom}");
                }
            },
            Err(GenerateError::FalseAtTarget { held, .. }) => prop_assert!(held),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }

    #[test]
    fn the_same_traces_give_the_same_bytes_in_any_order_of_spans(seed in any::<u64>()) {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..3).map(|i| simulate(&root, seed.wrapping_add(i))).collect();
        let Some((target, n)) = some_target(&sims, &mut random) else { return Ok(()) };
        prop_assume!(reached(&sims, &target, n));
        let mut request = Request::new(target, Fault::Reset(Default::default()));
        request.pass = Some(n);
        let once = synthesized(&sims, &request).map(|found| (found.lines(), found));
        let mut turned = sims;
        for sim in &mut turned {
            let spans: Vec<_> = sim.trace.calls.iter().flat_map(|call| call.spans().cloned()).collect();
            sim.trace = Trace::assemble(spans.into_iter().rev()).pop().unwrap();
        }
        prop_assert_eq!(once, synthesized(&turned, &request).map(|found| (found.lines(), found)));
    }
}

/// The published method's counts: by time order, whether or not the sidecar can know.
fn by_time(sim: &Simulated, event: &Event, at: Happened) -> u64 {
    let before = sim.by_time.iter().take_while(|key| **key != at).copied().collect();
    sim.count(event, &before)
}

/// Two lookups one after the other beside a slow branch, whose own call begins between them.
fn concurrent() -> Node {
    let slow = call("slow t.Slow/Do", 3_000, vec![leaf("deep t.Deep/Do", 20_000)]);
    let twice = vec![leaf("look t.Look/Up", 2_000), leaf("pause t.Pause/Do", 4_000), leaf("look t.Look/Up", 2_000)];
    call("root GET /", 10, vec![parallel(vec![vec![Todo::Call(slow)], twice])])
}

#[test]
fn time_order_promises_an_event_that_the_sidecar_cannot_know() {
    let sims: Vec<Simulated> = (0..10).map(|seed| simulate(&concurrent(), seed)).collect();
    let target = Target {
        caller: Some("root".parse().unwrap()),
        ..Target::new(ApiRef::Api(api("look t.Look/Up")), Occurrence::First, Phase::Request)
    };
    let deep = Event {
        event: EventKind::RequestSent,
        api: ApiRef::Api(api("deep t.Deep/Do")),
        caller: Some("slow".parse().unwrap()),
        outcome: OutcomeFilter::Any,
    };
    // By the published definition `deep ≥ 1` is a minimum guard on its own: in time it is always between the two.
    for sim in &sims {
        let passes = passes(sim, &target);
        assert_eq!((by_time(sim, &deep, passes[0]), by_time(sim, &deep, passes[1])), (0, 1));
        // Yet the sidecar of root hears of it only with slow's answer, so that guard would never fire.
        assert_eq!(sim.count(&deep, &sim.heard[&passes[1]]), 0);
    }
    let mut request = Request::new(target, Fault::Abort);
    request.pass = Some(2);
    let found = synthesized(&sims, &request).unwrap();
    assert!(found.candidates.iter().all(|candidate| candidate.atom.event() != deep));
    assert_eq!(found.tfic.guard.to_string(), "After(request-sent of pause t.Pause/Do at root ≥ 1)");
}

/// Over many random executions: guards by time order are often false on the very traces they come from.
#[test]
fn one_atom_guards_by_time_order_fail_on_their_own_traces_and_visible_ones_never_do() {
    let (mut targets, mut false_by_time) = (0, 0);
    for seed in 0..400_u64 {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..3).map(|i| simulate(&root, seed * 100 + i)).collect();
        let Some((target, n)) = some_target(&sims, &mut random) else { continue };
        if n < 2 || !reached(&sims, &target, n) {
            continue;
        }
        targets += 1;
        let at = |sim: &Simulated| passes(sim, &target)[n as usize - 1];
        let published = all_events(&sims).into_iter().filter(|event| *event != own_event(&target)).any(|event| {
            let t = sims.iter().map(|sim| by_time(sim, &event, at(sim))).min().unwrap();
            let hits_all = sims
                .iter()
                .all(|sim| passes(sim, &target)[..n as usize - 1].iter().all(|p| by_time(sim, &event, *p) < t));
            t > 0 && hits_all && sims.iter().any(|sim| sim.count(&event, &sim.heard[&at(sim)]) < t)
        });
        false_by_time += u32::from(published);
        let mut request = Request::new(target.clone(), Fault::Drop);
        request.pass = Some(n);
        if let Ok(found) = synthesized(&sims, &request) {
            assert!(sims.iter().all(|sim| guard_holds(sim, &found.tfic.guard.after, at(sim))));
        }
    }
    assert!(targets > 50, "only {targets} targets");
    assert!(false_by_time > targets / 10, "{false_by_time} of {targets}");
}
