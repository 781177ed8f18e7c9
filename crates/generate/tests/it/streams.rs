//! Faults inside responses: what must be said, what cannot be, and what traces tell of it.

use std::collections::BTreeSet;

use aftershock_core::event::{ApiRef, Event, EventKind, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Guard, Occurrence, Phase, Plan, StreamPoint, Target, Tfic};
use aftershock_core::trace::Trace;
use aftershock_generate::guard::Warning;
use aftershock_generate::{GenerateError, Request, patterns, synthesize, validate};
use proptest::prelude::*;

use crate::definitions::{all_events, passes, smallest, some_target};
use crate::support::random::tree;
use crate::support::{Node, Random, Simulated, api, call, leaf, parallel, simulate, traces};

const FEED: &str = "feed t.Feed/Watch";
const NOTE: &str = "note t.Note/Add";

/// A stream, a note, then two streams at once.
fn page() -> Node {
    let both = parallel(vec![vec![leaf(FEED, 100)], vec![leaf(FEED, 9_000)]]);
    call("front GET /", 10, vec![leaf(FEED, 100), leaf(NOTE, 100), both])
}

/// Each response of `FEED` with as many messages.
fn streaming(root: &Node, n: u64, messages: u64) -> Vec<Trace> {
    let mut traces = traces(root, n);
    for call in traces.iter_mut().flat_map(|trace| &mut trace.calls).filter(|call| call.api == api(FEED)) {
        for span in call.client.iter_mut().chain(call.server.as_mut()) {
            span.messages = Some(messages);
        }
    }
    traces
}

fn target(k: Occurrence, phase: Phase, at: Option<StreamPoint>) -> Target {
    Target { at, ..Target::new(ApiRef::Api(api(FEED)), k, phase) }
}

fn request(k: u32, at: StreamPoint) -> Request {
    Request::new(target(Occurrence::Number(k), Phase::Response, Some(at)), Fault::Reset(Default::default()))
}

fn by_hand(target: Target, fault: Fault) -> Plan {
    Plan { faults: vec![Tfic::new(target, fault)], ..Plan::default() }
}

#[test]
fn a_target_whose_responses_are_streams_must_say_where() {
    let bare = target(Occurrence::Number(1), Phase::Response, None);
    let traces = streaming(&page(), 2, 3);
    let refused = [
        synthesize(&Request::new(bare.clone(), Fault::Drop), &traces).unwrap_err(),
        validate::plan(&by_hand(bare.clone(), Fault::Drop), &traces).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(
            error.to_string(),
            format!(
                "the responses of `{FEED}` are streams, trace 0000000000000001 has one of 3 messages: say where in it with \
                 `at: head`, `at: {{message: n}}` or `at: {{bytes: n}}`"
            )
        );
    }
    // One message is no stream, and a request is none.
    assert!(synthesize(&Request::new(bare.clone(), Fault::Drop), &streaming(&page(), 2, 1)).is_ok());
    let request = Target { phase: Phase::Request, ..bare };
    assert!(synthesize(&Request::new(request, Fault::Drop), &traces).is_ok());
}

#[test]
fn what_does_not_go_with_a_place_in_a_stream_is_refused() {
    let traces = streaming(&page(), 2, 3);
    let refused = |change: &dyn Fn(&mut Request), needs: &str| {
        let mut request = request(1, StreamPoint::Message(2));
        change(&mut request);
        let error = synthesize(&request, &traces).unwrap_err().to_string();
        assert!(error.contains(needs), "{error}");
        let plan = by_hand(request.target, request.fault);
        assert_eq!(validate::plan(&plan, &traces).unwrap_err().to_string(), error);
    };
    refused(&|it| it.target.phase = Phase::Request, "`at: {message: 2}` needs the phase `response`");
    refused(&|it| it.target.outcome = OutcomeFilter::Ok, "needs the outcome `any`");
    refused(&|it| it.target.api = ApiRef::Api(api("front GET /")), "`at: {message: 2}` needs a gRPC operation");
    let entry = |it: &mut Request, fault| {
        it.target.api = ApiRef::Api(api("front GET /"));
        (it.target.at, it.fault) = (Some(StreamPoint::Bytes(9)), fault);
    };
    refused(&|it| entry(it, Fault::Abort), "`at: {bytes: 9}` needs one of `delay`, `drop` and `reset`");
    let mut cut = request(1, StreamPoint::Head);
    entry(&mut cut, Fault::Reset(Default::default()));
    let found = synthesize(&cut, &traces).unwrap();
    assert_eq!(found.warnings, [Warning::StreamBytes]);
    assert_eq!(found.explanation.lines()[1], "acts    at the sidecar of front, on response-sent, after 9 bytes of it");
    refused(&|it| it.fault = Fault::Release, "`release` needs `hold`");
}

#[test]
fn passes_are_the_responses_that_reach_the_place() {
    let mut traces = streaming(&page(), 3, 3);
    // The first stream of each page is short.
    for trace in &mut traces {
        let first = trace.calls.iter_mut().find(|call| call.api == api(FEED)).unwrap();
        first.client.as_mut().unwrap().messages = Some(1);
    }
    let found = synthesize(&request(1, StreamPoint::Message(2)), &traces).unwrap();
    assert!(found.explanation.traces.iter().all(|trace| trace.passes.len() == 2 && trace.fires == Some(1)));
    let error = synthesize(&request(1, StreamPoint::Message(4)), &traces).unwrap_err();
    assert!(matches!(error, GenerateError::Unreached { most: 0, .. }), "{error}");
    assert_eq!(synthesize(&request(1, StreamPoint::Head), &traces).unwrap().explanation.traces[0].passes.len(), 3);
}

#[test]
fn with_a_number_the_number_alone_decides_and_overlapping_calls_are_named() {
    let traces = streaming(&page(), 4, 3);
    let first = synthesize(&request(1, StreamPoint::Message(2)), &traces).unwrap();
    assert_eq!((first.tfic.guard, first.warnings), (Guard::default(), vec![]));
    let second = synthesize(&request(2, StreamPoint::Message(2)), &traces).unwrap();
    assert_eq!(second.tfic.guard, Guard::default());
    let all: Vec<_> = traces.iter().map(|trace| trace.execution).collect();
    assert_eq!(second.warnings, [Warning::StreamNumber, Warning::StreamOrder { traces: all }]);
}

#[test]
fn only_what_was_known_when_the_request_left_can_be_waited_for() {
    // The note is before the second stream and beside none; the other stream ends while this one runs.
    let mut request = request(2, StreamPoint::Message(2));
    request.competing = vec![patterns::competing(api(NOTE), None)];
    let found = synthesize(&request, &streaming(&page(), 4, 3)).unwrap();
    assert_eq!(found.tfic.guard.to_string(), format!("After(response-received(ok) of {NOTE} at front ≥ 1)"));
    let own = Event {
        event: EventKind::ResponseReceived,
        api: ApiRef::Api(api(FEED)),
        caller: None,
        outcome: OutcomeFilter::Any,
    };
    let mut third = self::request(3, StreamPoint::Message(2));
    third.competing = vec![Atom::new(own, 2)];
    let error = synthesize(&third, &streaming(&page(), 4, 3)).unwrap_err();
    assert!(matches!(error, GenerateError::FalseAtTarget { count: 1, held: false, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// The definition, read a second time: sure at the target is what had been heard when the request left; at earlier
    /// passes anything may be known that was heard before their outcome.
    #[test]
    fn an_open_target_inside_a_stream_gets_a_smallest_guard_over_what_is_sure(seed in any::<u64>()) {
        let mut random = Random(seed);
        let root = tree(&mut random);
        let sims: Vec<Simulated> = (0..3).map(|i| simulate(&root, seed.wrapping_add(i))).collect();
        let Some((mut target, _)) = some_target(&sims, &mut random) else { return Ok(()) };
        target.phase = Phase::Response;
        let most = sims.iter().map(|sim| passes(sim, &target).len()).min().unwrap();
        prop_assume!(most > 0);
        let n = 1 + random.below(most as u64) as usize;
        target.at = Some(StreamPoint::Head);
        let sure = |sim: &Simulated, event: &Event| {
            let (call, _) = passes(sim, &target)[n - 1];
            let sent = (call, EventKind::RequestSent);
            let mut heard = sim.heard[&sent].clone();
            heard.insert(sent);
            sim.count(event, &heard)
        };
        let definition = |left_out: &dyn Fn(&Event) -> bool| {
            let universe: Vec<(Event, u64)> = all_events(&sims)
                .into_iter()
                .filter(|event| !left_out(event))
                .map(|event| { let least = sims.iter().map(|sim| sure(sim, &event)).min().unwrap(); (event, least) })
                .filter(|(_, least)| *least > 0)
                .collect();
            let clauses: Vec<BTreeSet<usize>> = sims
                .iter()
                .flat_map(|sim| passes(sim, &target).into_iter().take(n - 1).map(|p| {
                    let false_there = |(event, t): &(Event, u64)| sim.count(event, &sim.heard[&p]) < *t;
                    universe.iter().enumerate().filter(|(_, atom)| false_there(atom)).map(|(i, _)| i).collect()
                }))
                .collect();
            smallest(universe.len(), &clauses)
        };
        let own = |event: &Event| event.api == target.api && event.caller == target.caller;
        let sizes = [
            definition(&own),
            definition(&|event| own(event) && event.event == EventKind::ResponseReceived),
        ];
        let mut request = Request::new(target.clone(), Fault::Drop);
        request.pass = Some(n as u32);
        let traces: Vec<Trace> = sims.iter().map(|sim| sim.trace.clone()).collect();
        match synthesize(&request, &traces) {
            Ok(found) => {
                prop_assert_eq!(Some(found.tfic.guard.after.len()), sizes[0].or(sizes[1]));
                for sim in &sims {
                    prop_assert!(found.tfic.guard.after.iter().all(|atom| sure(sim, &atom.event()) >= atom.count));
                    for p in passes(sim, &target).into_iter().take(n - 1) {
                        let may_hold =
                            found.tfic.guard.after.iter().all(|a| sim.count(&a.event(), &sim.heard[&p]) >= a.count);
                        prop_assert!(!may_hold);
                    }
                }
            }
            Err(GenerateError::Indistinguishable { .. }) => prop_assert_eq!(sizes, [None, None]),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}
