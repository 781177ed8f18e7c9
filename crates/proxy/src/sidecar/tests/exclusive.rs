//! The last step of the ladder, on request: the only execution that is about (design §3.1).

use std::time::Duration;

use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::span::Association;
use aftershock_core::w3c::Member;
use aftershock_core::wire::FromController;

use crate::sidecar::association::MAX_RECENT;
use crate::sidecar::testing::*;

const CHARGE: &str = "shop.Payment/Charge";
const EXCLUSIVE: &str = "association: {exclusive: true, calls: [payment POST /configured]}\n";

fn shop(front: &str) -> Net {
    let mut net = Net::configured(&[("front", front), ("payment", "")], &["front", "payment"]);
    net.register(&["front", "payment"]);
    net.arm_with(&[], &[], |arm| {
        arm.known_calls.insert(api(&format!("payment {CHARGE}")));
    });
    net
}

fn entry(net: &mut Net) -> (Leg, Member) {
    let (leg, passage) = net.come_in("front", tagged(Request::http("POST", "/buy")));
    (leg, passage.through().member().unwrap())
}

/// The execution that a call without context is tied to.
fn send(net: &mut Net, request: Request) -> Option<ExecutionId> {
    net.go_out("front", "payment", request).1.through().member().map(|member| member.execution)
}

fn bare(net: &mut Net) -> Option<ExecutionId> {
    send(net, Request::grpc(CHARGE))
}

#[test]
fn a_call_without_context_belongs_to_the_only_execution_that_is_about() {
    let mut net = shop(EXCLUSIVE);
    let (leg, member) = entry(&mut net);
    let call = net.call("front", "payment", Request::grpc(CHARGE));
    assert_eq!(call.seen.member().unwrap().execution, member.execution);
    net.answer(&call, Response::grpc(0)).through();
    let span = net.spans("front").remove(0);
    assert_eq!((span.association, span.parent), (Association::Exclusive, Some(member.call)));
    net.response(&leg, Response::http(200)).through();
    assert_eq!(bare(&mut net), Some(member.execution), "seen a short time ago");
    assert_eq!(net.associated("front", Association::Detached), 1, "whatever sent it, its parent has ended");
}

#[test]
fn it_is_opt_in() {
    let mut net = shop("");
    entry(&mut net);
    assert_eq!(bare(&mut net), None);
}

#[test]
fn it_claims_only_apis_that_traces_or_configuration_list() {
    let mut net = shop(EXCLUSIVE);
    let (_, member) = entry(&mut net);
    assert_eq!(send(&mut net, Request::http("GET", "/v1/health/service/payment?wait=5m")), None);
    assert_eq!(send(&mut net, Request::http("POST", "/configured")), Some(member.execution));
    assert_eq!(bare(&mut net), Some(member.execution));
}

#[test]
fn another_execution_of_the_round_or_of_none_ends_it_for_the_linger_time() {
    for other in [tagged(Request::http("POST", "/buy")), Request::http("GET", "/")] {
        let mut net = shop(EXCLUSIVE);
        let (leg, passage) = net.come_in("front", other);
        passage.through();
        net.response(&leg, Response::http(200)).through();
        let (_, member) = entry(&mut net);
        assert_eq!(bare(&mut net), None);
        net.pass_time_renewing(Duration::from_secs(36));
        assert_eq!(bare(&mut net), Some(member.execution));
    }
}

#[test]
fn several_open_calls_of_the_execution_leave_the_parent_open() {
    let mut net = shop(EXCLUSIVE);
    let (_, member) = entry(&mut net);
    let request = tagged(Request::http("POST", "/buy"));
    let again =
        Request { lines: vec![("tracestate".into(), format!("aft=1-{}-0-{ROUND}-0", member.execution))], ..request };
    net.come_in("front", again).1.through();
    let call = net.call("front", "payment", Request::grpc(CHARGE));
    net.answer(&call, Response::grpc(0)).through();
    let span = net.spans("front").remove(0);
    assert_eq!((span.association, span.execution, span.parent), (Association::Exclusive, member.execution, None));
}

#[test]
fn an_unassociated_call_that_came_in_ends_it() {
    let mut net = shop(EXCLUSIVE);
    entry(&mut net);
    let call = net.call("payment", "front", Request::http("GET", "/inner"));
    assert_eq!(bare(&mut net), None);
    net.answer(&call, Response::http(200)).through();
    assert_eq!(bare(&mut net), None, "it may still send");
    net.pass_time_renewing(Duration::from_secs(36));
    assert!(bare(&mut net).is_some());
}

#[test]
fn unassociated_calls_that_went_out_do_not_end_it() {
    let mut net = shop(EXCLUSIVE);
    entry(&mut net);
    assert_eq!(send(&mut net, Request::http("GET", "/refresh")), None);
    assert!(bare(&mut net).is_some());
}

#[test]
fn a_second_round_here_or_elsewhere_ends_it() {
    let mut net = shop(EXCLUSIVE);
    entry(&mut net);
    net.arm_with(&[], &[], |arm| arm.token = Token(7));
    assert_eq!(bare(&mut net), None, "though no execution of it was seen");
    net.tell("front", FromController::End { token: Token(7) });
    assert!(bare(&mut net).is_some());
    net.sidecar("front").rounds.set_late(vec![Token(8)]);
    assert_eq!(bare(&mut net), None, "a round to which it came late");
}

#[test]
fn a_round_that_loses_a_call_to_a_second_round_knows_that_its_numbers_are_in_doubt() {
    let mut net = shop(EXCLUSIVE);
    let charge = api(&format!("payment {CHARGE}"));
    net.arm_with(&[], &[], |arm| {
        arm.known_calls.insert(charge.clone());
        arm.gap_apis.insert(charge.clone());
    });
    let (leg, member) = entry(&mut net);
    assert_eq!(bare(&mut net), Some(member.execution));
    net.arm_with(&[], &[], |arm| {
        arm.token = Token(7);
        arm.known_calls.insert(charge.clone());
    });
    assert_eq!(bare(&mut net), None, "it may be of either");
    net.tell("front", FromController::End { token: Token(7) });
    assert_eq!(bare(&mut net), Some(member.execution));
    net.response(&leg, Response::http(200)).through();
    let span = net.spans("front").into_iter().find(|span| span.call == member.call).unwrap();
    assert!(span.gaps.blocks_number(&"front".parse().unwrap()), "the second round left, what it cost is remembered");
}

#[test]
fn ordinary_executions_are_claimed_by_nobody() {
    let mut net = shop(EXCLUSIVE);
    net.come_in("front", Request::http("GET", "/")).1.through();
    assert_eq!(bare(&mut net), None);
}

#[test]
fn a_member_that_names_another_execution_is_not_overruled() {
    let mut net = shop(EXCLUSIVE);
    let (_, member) = entry(&mut net);
    let stale = |execution| {
        let stale = Member { execution, call: CallId(5), token: ROUND, check: 0 };
        Request::grpc(CHARGE).with("tracestate", &format!("aft={stale}"))
    };
    assert_eq!(send(&mut net, stale(ExecutionId(9))), None);
    assert_eq!(send(&mut net, stale(member.execution)), Some(member.execution));
}

#[test]
fn calls_forgotten_before_their_time_leave_nothing_exclusive() {
    let mut net = shop(EXCLUSIVE);
    let (leg, passage) = net.come_in("front", Request::http("GET", "/"));
    passage.through();
    net.response(&leg, Response::http(200)).through();
    let (_, member) = entry(&mut net);
    for _ in 0..=MAX_RECENT {
        let again = format!("aft=1-{}-0-{ROUND}-0", member.execution);
        let (leg, passage) = net.come_in("front", Request::http("GET", "/").with("tracestate", &again));
        passage.through();
        net.response(&leg, Response::http(200)).through();
    }
    assert_eq!(bare(&mut net), None, "the ordinary one was here a moment ago");
    net.pass_time_renewing(Duration::from_secs(36));
    assert!(bare(&mut net).is_some());
}
