//! What follows from a message, against executions in which that message is kept for ever.

use std::collections::BTreeSet;

use aftershock_core::event::EventKind::{self, RequestReceived, RequestSent, ResponseReceived, ResponseSent};
use aftershock_core::id::CallId;
use aftershock_core::trace::Trace;
use aftershock_generate::after::{after_message, after_messages};
use proptest::prelude::*;

use crate::support::random::tree;
use crate::support::{Course, Happened, Node, Random, Todo, call, leaf, parallel, simulate, simulate_as};

fn removed(trace: &Trace, call: u64, event: EventKind) -> BTreeSet<Happened> {
    after_message(trace, CallId(call), event).iter().collect()
}

fn whole(calls: impl IntoIterator<Item = u64>) -> BTreeSet<Happened> {
    calls
        .into_iter()
        .flat_map(|call| {
            [RequestSent, RequestReceived, ResponseSent, ResponseReceived].map(|event| (CallId(call), event))
        })
        .collect()
}

fn answers(calls: impl IntoIterator<Item = u64>) -> BTreeSet<Happened> {
    whole(calls).into_iter().filter(|(_, event)| matches!(event, ResponseSent | ResponseReceived)).collect()
}

/// 1 root: 2 a [3 x, 4 y], then in parallel 5 b [6 z] (short) and 7 c [8 z] (long), then 9 d.
fn example() -> Node {
    let a = call("a t.A/Do", 10, vec![leaf("x t.X/Do", 10), leaf("y t.Y/Do", 10)]);
    let b = call("b t.B/Do", 10, vec![leaf("z t.Z/Do", 10)]);
    let c = call("c t.C/Do", 9_000, vec![leaf("z t.Z/Do", 10)]);
    let both = parallel(vec![vec![Todo::Call(b)], vec![Todo::Call(c)]]);
    call("root GET /", 10, vec![Todo::Call(a), both, leaf("d t.D/Do", 10)])
}

#[test]
fn after_a_parked_response_come_the_callers_later_calls_and_its_answer_but_not_open_calls() {
    let trace = simulate(&example(), 1).trace;
    let expected: BTreeSet<Happened> =
        whole([9]).into_iter().chain(answers([1])).chain([(CallId(5), ResponseReceived)]).collect();
    assert_eq!(removed(&trace, 5, ResponseReceived), expected);
}

#[test]
fn after_a_parked_request_comes_all_that_its_handler_does_and_what_waits_for_it() {
    let trace = simulate(&example(), 1).trace;
    let expected: BTreeSet<Happened> = whole([3, 4, 5, 6, 7, 8, 9]).into_iter().chain(answers([1, 2])).collect();
    assert_eq!(removed(&trace, 3, RequestSent), expected);
}

#[test]
fn a_request_parked_at_the_callee_has_been_sent() {
    let trace = simulate(&example(), 1).trace;
    let mut expected = removed(&trace, 7, RequestSent);
    expected.remove(&(CallId(7), RequestSent));
    assert_eq!(removed(&trace, 7, RequestReceived), expected);
}

#[test]
fn a_request_that_arrived_but_whose_sending_follows_from_another_message_is_not_sent_either() {
    let trace = simulate(&example(), 1).trace;
    let both = [(CallId(9), RequestReceived), (CallId(3), RequestSent)];
    for order in [both, [both[1], both[0]]] {
        let removed: BTreeSet<Happened> = after_messages(&trace, order).iter().collect();
        assert!(removed.contains(&(CallId(9), RequestSent)));
    }
}

#[test]
fn a_parked_answer_of_the_entry_removes_only_itself() {
    let trace = simulate(&example(), 1).trace;
    assert_eq!(removed(&trace, 1, ResponseSent), answers([1]));
}

#[test]
fn a_call_that_no_trace_has_removes_nothing() {
    assert_eq!(removed(&simulate(&example(), 1).trace, 99, RequestSent), BTreeSet::new());
}

#[test]
fn a_call_of_unknown_parent_may_be_any_handlers_of_its_service() {
    let mut trace = simulate(&example(), 1).trace;
    let orphan = trace.calls.iter_mut().find(|call| call.id == CallId(9)).unwrap();
    orphan.parent = None;
    assert!(removed(&trace, 5, ResponseReceived).is_superset(&whole([9])));
    assert!(removed(&trace, 9, ResponseReceived).is_superset(&answers([1])), "it may be the root's handler that waits");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is not removed also happens while the message is kept, whatever the handlers' true dependencies are.
    #[test]
    fn what_is_kept_happens_although_the_message_is_parked(seed in any::<u64>(), which in any::<prop::sample::Index>()) {
        let root = tree(&mut Random(seed));
        let clean = simulate(&root, seed);
        let parked = *which.get(&clean.by_time);
        let removed = removed(&clean.trace, parked.0.0, parked.1);
        prop_assert!(removed.contains(&parked));
        let course = Course { replicas: 1, parked: Some(parked) };
        let happens: BTreeSet<Happened> = simulate_as(&root, seed, course).by_time.into_iter().collect();
        for step in clean.by_time {
            if !removed.contains(&step) {
                prop_assert!(happens.contains(&step), "{step:?} is kept but does not happen without {parked:?}");
            }
        }
    }

    /// Removal is causally closed: a kept message has a kept sender, a kept answer a kept request.
    #[test]
    fn nothing_kept_follows_from_something_removed(seed in any::<u64>(), which in any::<prop::sample::Index>()) {
        let root = tree(&mut Random(seed));
        let clean = simulate(&root, seed);
        let parked = *which.get(&clean.by_time);
        let removed = removed(&clean.trace, parked.0.0, parked.1);
        for call in &clean.trace.calls {
            let gone = |event| removed.contains(&(call.id, event));
            prop_assert!(!gone(RequestSent) || gone(RequestReceived));
            prop_assert!(!gone(RequestReceived) || gone(ResponseSent));
            prop_assert!(!gone(ResponseSent) || gone(ResponseReceived));
            if let Some(parent) = call.parent
                && removed.contains(&(parent, RequestReceived))
            {
                prop_assert!(gone(RequestSent) || call.client.is_none());
            }
        }
    }
}
