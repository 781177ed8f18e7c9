//! Several faults together, several instances, several entries, and plans written by hand.

use aftershock_core::event::{ApiRef, Event, EventKind, OutcomeFilter};
use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Atom, Fault, Guard, Occurrence, Phase, Plan, Target, Tfic};
use aftershock_core::trace::Trace;
use aftershock_generate::guard::Warning;
use aftershock_generate::{GenerateError, Request, patterns, synthesize, validate};

use crate::support::{Course, Node, Todo, api, call, leaf, parallel, simulate_as, traces};

const ITEM: &str = "item t.Item/Get";
const PRICE: &str = "price t.Price/Get";

fn target(api: &str, k: Occurrence, phase: Phase) -> Target {
    Target::new(ApiRef::Api(crate::support::api(api)), k, phase)
}

fn tfic(target: Target, fault: Fault, after: Vec<Atom>) -> Tfic {
    Tfic { guard: Guard { after }, ..Tfic::new(target, fault) }
}

/// An item, its price, two more items at once.
fn shop() -> Node {
    let both = parallel(vec![vec![leaf(ITEM, 100)], vec![leaf(ITEM, 9_000)]]);
    call("front GET /", 10, vec![leaf(ITEM, 100), leaf(PRICE, 100), both])
}

#[test]
fn what_another_fault_may_keep_from_happening_is_left_out() {
    let mut request = Request::new(target(ITEM, Occurrence::First, Phase::Response), Fault::Drop);
    request.pass = Some(2);
    let alone = synthesize(&request, &traces(&shop(), 10)).unwrap();
    assert_eq!(alone.tfic.guard.to_string(), format!("After(request-sent of {PRICE} at front ≥ 1)"));
    // An aborted price may end the page, and its answer is an error in any case: only its request is sure.
    request.other_faults = vec![tfic(target(PRICE, Occurrence::Number(1), Phase::Response), Fault::Abort, vec![])];
    let both = synthesize(&request, &traces(&shop(), 10)).unwrap();
    assert_eq!(both.tfic.guard.to_string(), format!("After(request-sent of {PRICE} at front ≥ 1)"));
    let answer = |s: &aftershock_generate::Synthesis| {
        s.candidates.iter().any(|c| c.atom.event == EventKind::ResponseReceived && c.atom.api.to_string() == PRICE)
    };
    assert!(answer(&alone) && !answer(&both));
    // Without the price's request nothing tells the passes apart.
    request.other_faults =
        vec![tfic(target(PRICE, Occurrence::First, Phase::Request), Fault::Reset(Default::default()), vec![])];
    let error = synthesize(&request, &traces(&shop(), 10)).unwrap_err();
    assert!(matches!(error, GenerateError::Indistinguishable { pass: 1, .. }), "{error}");
    // A delay lets everything after it come later, the target too.
    request.other_faults[0].fault = Fault::Delay("1s".parse().unwrap());
    assert_eq!(synthesize(&request, &traces(&shop(), 10)).unwrap().tfic.guard, alone.tfic.guard);
    // So does a message that is held and let go.
    request.other_faults[0].fault = Fault::Release;
    assert_eq!(synthesize(&request, &traces(&shop(), 10)).unwrap().tfic.guard, alone.tfic.guard);
}

#[test]
fn a_fault_on_an_earlier_pass_leaves_the_number_alone_to_decide() {
    let mut request = Request::new(target(ITEM, Occurrence::Number(3), Phase::Response), Fault::Drop);
    request.other_faults = vec![tfic(target(ITEM, Occurrence::Number(1), Phase::Response), Fault::Drop, vec![])];
    let found = synthesize(&request, &traces(&shop(), 10)).map(|found| (found.tfic.guard, found.warnings));
    // Pass 3 always counts two before it on clean traces; with pass 1 dropped it does not.
    assert_eq!(found, Ok((Guard::default(), vec![Warning::OwnEventFalsifiable])));
}

#[test]
fn a_competing_event_that_another_fault_may_prevent_is_pointed_out() {
    let mut request = Request::new(target(ITEM, Occurrence::Number(3), Phase::Response), Fault::Drop);
    request.competing = vec![patterns::competing(api(PRICE), None)];
    request.other_faults = vec![tfic(target(PRICE, Occurrence::Number(1), Phase::Response), Fault::Abort, vec![])];
    let found = synthesize(&request, &traces(&shop(), 3)).unwrap();
    let price = patterns::competing(api(PRICE), Some("front".parse().unwrap()));
    assert!(found.warnings.contains(&Warning::Falsifiable { fault: 1, atom: price }), "{:?}", found.warnings);
}

#[test]
fn over_several_instances_the_arbiter_numbers_and_counts_the_own_event() {
    // Six handlers of `mid`, spread over its instances, each look up once.
    let mid = || Todo::Call(call("mid t.Mid/Do", 100, vec![leaf(ITEM, 100)]));
    let root = call("front GET /", 10, (0..6).map(|_| mid()).collect());
    let traces: Vec<Trace> =
        (0..10).map(|seed| simulate_as(&root, seed, Course { replicas: 3, parked: None }).trace).collect();
    let request = Request::new(target(ITEM, Occurrence::Number(4), Phase::Request), Fault::Abort);
    let found = synthesize(&request, &traces).unwrap();
    assert_eq!(found.tfic.guard.to_string(), format!("After(request-sent of {ITEM} at mid ≥ 3)"));
    assert!(
        matches!(&found.warnings[..], [Warning::Instances { traces }] if !traces.is_empty()),
        "{:?}",
        found.warnings
    );
    for trace in &found.explanation.traces {
        assert_eq!(trace.fires, Some(4), "{:?}", trace.instances);
    }
}

#[test]
fn traces_of_an_entry_that_never_reaches_the_target_must_not_be_hit_either() {
    let mut all = traces(&shop(), 10);
    let elsewhere = traces(&call("front GET /other", 10, vec![leaf(PRICE, 10), leaf(ITEM, 10)]), 2);
    all.extend(elsewhere.into_iter().map(|trace| Trace { execution: ExecutionId(trace.execution.0 + 100), ..trace }));
    let mut request = Request::new(target(ITEM, Occurrence::First, Phase::Response), Fault::Drop);
    request.pass = Some(2);
    // The price alone is no longer enough: it also comes before the item of the other page.
    let found = synthesize(&request, &all).unwrap();
    assert_eq!(found.warnings, [Warning::OtherEntries { entries: vec!["front GET /other".to_owned()] }]);
    assert_eq!(
        found.tfic.guard.to_string(),
        format!("After(request-sent of {PRICE} at front ≥ 1 ∧ request-received of front GET / ≥ 1)")
    );
    for trace in &found.explanation.traces {
        assert_eq!(trace.fires, (trace.entry == "front GET /").then_some(2), "{trace:?}");
    }
}

#[test]
fn a_trace_of_the_same_entry_that_stops_short_is_named() {
    let mut all = traces(&shop(), 3);
    let short = call("front GET /", 10, vec![leaf(ITEM, 10)]);
    all.extend(traces(&short, 1).into_iter().map(|trace| Trace { execution: ExecutionId(0xabc), ..trace }));
    let request = Request::new(target(ITEM, Occurrence::Number(3), Phase::Request), Fault::Abort);
    let error = synthesize(&request, &all).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "request of {ITEM}, k = 3, from front is not reached in 1 of 4 traces (0000000000000abc): \
             the most passes of a trace are 1"
        )
    );
}

#[test]
fn pooled_counts_of_a_group_number_its_members_together() {
    let mut request = Request::new(target(ITEM, Occurrence::Number(2), Phase::Request), Fault::Abort);
    request.target.api = ApiRef::Group("lookups".to_owned());
    request.groups.insert("lookups".to_owned(), [api(ITEM), api(PRICE)].into());
    let found = synthesize(&request, &traces(&shop(), 5)).unwrap();
    assert_eq!(found.tfic.guard.to_string(), "After(request-sent of group:lookups at front ≥ 1)");
    let hit = &found.explanation.traces[0].passes[1];
    let trace = traces(&shop(), 1).remove(0);
    assert_eq!(trace.call(hit.call).unwrap().api, api(PRICE));
    request.groups.clear();
    assert!(matches!(synthesize(&request, &traces(&shop(), 1)), Err(GenerateError::Group(_))));
}

fn plan(faults: Vec<Tfic>) -> Plan {
    Plan { faults, ..Plan::default() }
}

#[test]
fn a_plan_by_hand_is_checked_before_anything_is_armed() {
    let traces = traces(&shop(), 3);
    let price = patterns::competing(api(PRICE), None);
    let good = tfic(target(ITEM, Occurrence::Number(2), Phase::Response), Fault::Drop, vec![price.clone()]);
    let checked = validate::plan(&plan(vec![good.clone()]), &traces).unwrap();
    assert_eq!(checked.warnings, []);
    assert!(checked.explanations[0].traces.iter().all(|trace| trace.fires == Some(2)));

    let early = Tfic { target: target(ITEM, Occurrence::Number(1), Phase::Response), ..good.clone() };
    let error = validate::plan(&plan(vec![early]), &traces).unwrap_err();
    assert!(matches!(error, GenerateError::FalseAtTarget { count: 0, held: false, .. }), "{error}");

    let none = Event {
        event: EventKind::ResponseSent,
        api: ApiRef::Api(api("price t.Price/Got")),
        caller: None,
        outcome: OutcomeFilter::Any,
    };
    let unknown = Tfic { guard: Guard { after: vec![Atom::new(none, 1)] }, ..good.clone() };
    let error = validate::plan(&plan(vec![unknown]), &traces).unwrap_err();
    assert!(
        error.to_string().ends_with("happens in no trace; did you mean `response-sent of price t.Price/Get`?"),
        "{error}"
    );

    let beyond = Tfic { target: target(ITEM, Occurrence::Number(9), Phase::Response), ..good.clone() };
    assert!(matches!(validate::plan(&plan(vec![beyond]), &traces), Err(GenerateError::Unreached { most: 3, .. })));

    let first = tfic(target(PRICE, Occurrence::Number(1), Phase::Response), Fault::Abort, vec![]);
    let checked = validate::plan(&plan(vec![first, good]), &traces).unwrap();
    assert!(matches!(&checked.warnings[..], [Warning::Falsifiable { fault: 1, .. }]), "{:?}", checked.warnings);
}

#[test]
fn the_answer_that_one_fault_makes_is_an_event_for_the_guard_of_another() {
    let traces = traces(&shop(), 3);
    for phase in [Phase::Request, Phase::Response] {
        let broken = tfic(target(PRICE, Occurrence::Number(1), phase), Fault::Abort, vec![]);
        let mut failed = patterns::competing(api(PRICE), None);
        failed.outcome = OutcomeFilter::Error;
        let after = tfic(target(ITEM, Occurrence::Number(2), Phase::Response), Fault::Drop, vec![failed]);
        // On its own it waits for an error that no trace has.
        let error = validate::plan(&plan(vec![after.clone()]), &traces).unwrap_err();
        assert!(matches!(error, GenerateError::FalseAtTarget { count: 0, .. }), "{error}");
        let checked = validate::plan(&plan(vec![broken.clone(), after.clone()]), &traces).unwrap();
        assert_eq!(checked.warnings, [Warning::RestsOnFaults { fault: 1 }]);
        assert!(checked.explanations[1].traces.iter().all(|trace| trace.fires == Some(2)));
        // A fault that makes no answer gives nothing to wait for.
        let lost = Tfic { fault: Fault::Drop, ..broken };
        assert!(validate::plan(&plan(vec![lost, after]), &traces).is_err());
    }
}

#[test]
fn a_group_as_competing_event_pools_the_answers_of_its_members() {
    let mut request = Request::new(target(ITEM, Occurrence::Number(2), Phase::Response), Fault::Drop);
    request.groups.insert("both".to_owned(), [api(ITEM), api(PRICE)].into());
    let both = |count| {
        let api = ApiRef::Group("both".to_owned());
        let event = EventKind::ResponseReceived;
        Atom::new(Event { event, api, caller: None, outcome: OutcomeFilter::Ok }, count)
    };
    request.competing = vec![both(2)];
    let found = synthesize(&request, &traces(&shop(), 5)).unwrap();
    assert_eq!(
        found.tfic.guard.to_string(),
        format!("After(response-received(ok) of group:both at front ≥ 2 ∧ response-received of {ITEM} at front ≥ 1)")
    );
    assert!(found.explanation.traces.iter().all(|trace| trace.passes[1].counts == [2, 1]));
    request.competing = vec![both(3)];
    let error = synthesize(&request, &traces(&shop(), 5)).unwrap_err();
    assert!(matches!(error, GenerateError::FalseAtTarget { count: 2, .. }), "{error}");
    // The same by hand; the group must be the plan's.
    let by_hand = tfic(target(ITEM, Occurrence::Number(2), Phase::Response), Fault::Drop, vec![both(2)]);
    let mut plan = plan(vec![by_hand]);
    assert!(matches!(validate::plan(&plan, &traces(&shop(), 2)), Err(GenerateError::Group(_))));
    plan.groups = request.groups.clone();
    let checked = validate::plan(&plan, &traces(&shop(), 2)).unwrap();
    assert!(checked.explanations[0].traces.iter().all(|trace| trace.fires == Some(2)));
}

#[test]
fn an_open_target_on_a_group_is_told_by_what_is_not_of_the_group() {
    let quote = "quote t.Quote/Get";
    let root = call("front GET /", 10, vec![leaf(ITEM, 10), leaf(PRICE, 10), leaf(quote, 10), leaf(PRICE, 10)]);
    let mut request = Request::new(target(ITEM, Occurrence::First, Phase::Request), Fault::Abort);
    request.target.api = ApiRef::Group("lookups".to_owned());
    request.groups.insert("lookups".to_owned(), [api(ITEM), api(PRICE)].into());
    request.pass = Some(3);
    let found = synthesize(&request, &traces(&root, 10)).unwrap();
    assert_eq!(found.tfic.guard.to_string(), format!("After(request-sent of {quote} at front ≥ 1)"));
    // Members that different services call have no one caller.
    let nested = call("back t.Back/Do", 10, vec![leaf(PRICE, 10)]);
    let root = call("front GET /", 10, vec![leaf(ITEM, 10), Todo::Call(nested)]);
    request.target.k = Occurrence::Number(1);
    let error = synthesize(&request, &traces(&root, 2)).unwrap_err();
    assert!(matches!(error, GenerateError::AmbiguousCaller { .. }), "{error}");
}

#[test]
fn the_arbiter_counts_the_targets_own_event_whoever_is_named_as_caller_and_by_outcome() {
    let mid = || Todo::Call(call("mid t.Mid/Do", 100, vec![leaf(ITEM, 100)]));
    let root = call("front GET /", 10, (0..6).map(|_| mid()).collect());
    let traces: Vec<Trace> =
        (0..10).map(|seed| simulate_as(&root, seed, Course { replicas: 3, parked: None }).trace).collect();
    assert!(traces.iter().any(|trace| trace.calls.iter().filter(|call| call.api == api(ITEM)).count() == 6));
    let own = |outcome| {
        let event = EventKind::ResponseReceived;
        Atom::new(Event { event, api: ApiRef::Api(api(ITEM)), caller: None, outcome }, 3)
    };
    for (outcome, fires) in [(OutcomeFilter::Any, true), (OutcomeFilter::Ok, true), (OutcomeFilter::Error, false)] {
        let by_hand = tfic(target(ITEM, Occurrence::Number(4), Phase::Response), Fault::Drop, vec![own(outcome)]);
        assert_eq!(validate::plan(&plan(vec![by_hand]), &traces).is_ok(), fires, "{outcome:?}");
    }
}
