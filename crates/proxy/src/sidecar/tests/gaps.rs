//! What may have been missed is said, and nothing is faulted on a number in doubt (design §3.1, §3.2).

use aftershock_core::event::EventKind;
use aftershock_core::evidence::Evidence;
use aftershock_core::name::Service;
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side};
use aftershock_core::span::PassedBy;

use crate::exchange::{Closed, Refusal};
use crate::sidecar::execution::MAX_PER_TOKEN;
use crate::sidecar::testing::*;

const CHARGE: &str = "payment shop.Payment/Charge";

fn charge() -> Request {
    Request::grpc("shop.Payment/Charge")
}

fn drop_response(k: Occurrence) -> Rule {
    rule("checkout", Side::Caller, CHARGE, k, Phase::Response, Fault::Drop)
}

fn armed(rules: &[Rule]) -> (Net, Request) {
    let mut net = Net::new(&["checkout", "payment"]);
    net.arm(rules, &[event(EventKind::ResponseSent, CHARGE)]);
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    (net, seen)
}

fn blocks(evidence: &Evidence, service: &str) -> bool {
    evidence.gaps().blocks_number(&service.parse::<Service>().unwrap())
}

#[test]
fn an_unassociated_call_to_an_api_of_a_rule_blocks_numbers_in_every_execution_of_the_round() {
    let (mut net, first) = armed(&[drop_response(Occurrence::Number(2))]);
    let second = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    net.go_out("checkout", "payment", Request::http("GET", "/other")).1.through();
    let execution = |seen: &Request| seen.member().unwrap().execution;
    assert!(net.evidence("checkout", execution(&first)).gaps().is_empty(), "an Api that no rule speaks of");
    let stray = net.call("checkout", "payment", charge());
    for seen in [&first, &second] {
        assert!(blocks(&net.evidence("checkout", execution(seen)), "checkout"));
        let call = net.call("checkout", "payment", charge().within(seen));
        net.answer(&call, Response::grpc(0)).through();
        let call = net.call("checkout", "payment", charge().within(seen));
        net.answer(&call, Response::grpc(0)).through();
    }
    net.answer(&stray, Response::grpc(0)).through();
    let passes: Vec<_> = net.spans("checkout").into_iter().flat_map(|span| span.passes).collect();
    assert_eq!(passes.len(), 4);
    assert!(passes.iter().all(|pass| pass.passed_by == Some(PassedBy::NumberBlocked)));
}

/// The callee of the stray call need not hold the execution, nor see it before its own pass: what it missed is known above.
#[test]
fn an_unassociated_call_above_the_target_blocks_numbers_wherever_they_are_counted() {
    for strays in [false, true] {
        let mut net = Net::new(&["gateway", "checkout", "payment"]);
        net.arm_with(&[drop_response(Occurrence::Number(1))], &[], |arm| {
            arm.gap_apis.insert(api("checkout shop.Checkout/Buy"));
        });
        let buy = || Request::grpc("shop.Checkout/Buy");
        let seen = net.come_in("gateway", tagged(Request::http("POST", "/buy"))).1.through();
        if strays {
            let stray = net.call("gateway", "checkout", buy());
            let pass = net.call("checkout", "payment", charge().within(&stray.seen));
            net.answer(&pass, Response::grpc(0)).through();
            net.answer(&stray, Response::grpc(0)).through();
        }
        let buying = net.call("gateway", "checkout", buy().within(&seen));
        let pass = net.call("checkout", "payment", charge().within(&buying.seen));
        let sent = net.response(&pass.into, Response::grpc(0)).through();
        let passage = net.response(&pass.out, sent);
        assert_eq!(passage == Passage::Dropped, !strays, "it would be the second in truth");
        let evidence = net.evidence("checkout", seen.member().unwrap().execution);
        assert_eq!(blocks(&evidence, "checkout"), strays);
    }
}

#[test]
fn a_number_gap_of_another_service_blocks_only_there() {
    let (mut net, seen) = armed(&[drop_response(Occurrence::Number(1))]);
    let call = net.call("checkout", "payment", charge().within(&seen));
    // The payment's sidecar misses something; its answer says so.
    let key = crate::sidecar::execution::Key { token: ROUND, execution: seen.member().unwrap().execution };
    net.sidecar("payment").set_gap(key, aftershock_core::evidence::GapKind::Number);
    let passage = net.answer(&call, Response::grpc(0));
    assert_eq!(passage, Passage::Dropped);
    assert!(blocks(&net.evidence("checkout", key.execution), "payment"));
    assert!(!blocks(&net.evidence("checkout", key.execution), "checkout"));
}

#[test]
fn a_lost_answer_header_is_an_evidence_gap_and_blocks_no_number() {
    for response in [Response::grpc(0), Response::trailers_only(0)] {
        let (mut net, seen) = armed(&[drop_response(Occurrence::Number(1))]);
        let call = net.call("checkout", "payment", charge().within(&seen));
        let sent = net.response(&call.into, response).through();
        assert!(sent.has_hop());
        assert_eq!(net.response(&call.out, sent.without_hop()), Passage::Dropped, "k = 1 needs no evidence");
        let evidence = net.evidence("checkout", seen.member().unwrap().execution);
        assert!(!evidence.gaps().is_empty() && !blocks(&evidence, "checkout"));
        assert_eq!(net.ignored("checkout", "hop-missing"), 1);
    }
}

#[test]
fn an_answer_that_never_comes_is_no_gap() {
    for how in [Closed::ByApplication, Closed::ByUpstream] {
        let (mut net, seen) = armed(&[]);
        let call = net.call("checkout", "payment", charge().within(&seen));
        net.close(&call.out, how);
        assert!(net.spans("checkout")[0].gaps.is_empty());
    }
}

#[test]
fn lines_that_did_not_fit_set_the_gap() {
    let (mut net, seen) = armed(&[]);
    let (out, passage) = net.go_out("checkout", "payment", charge().within(&seen));
    passage.through();
    net.refused(&out, Refusal::Oversized);
    net.close(&out, Closed::ByApplication);
    let span = net.spans("checkout").remove(0);
    assert!(!span.evidence_went && !span.gaps.is_empty());
    assert_eq!(net.ignored("checkout", "hop-unsent"), 1);
}

#[test]
fn gaps_travel_with_evidence_in_both_directions() {
    let (mut net, seen) = armed(&[]);
    let key = crate::sidecar::execution::Key { token: ROUND, execution: seen.member().unwrap().execution };
    net.sidecar("checkout").set_gap(key, aftershock_core::evidence::GapKind::Evidence);
    let call = net.call("checkout", "payment", charge().within(&seen));
    assert_eq!(net.evidence("payment", key.execution).gaps().named().count(), 1);
    net.sidecar("payment").set_gap(key, aftershock_core::evidence::GapKind::Evidence);
    net.answer(&call, Response::grpc(0)).through();
    assert_eq!(net.evidence("checkout", key.execution).gaps().named().count(), 2);
}

#[test]
fn a_round_with_too_many_executions_forgets_the_idlest_and_stops_acting_on_new_ones() {
    let (mut net, busy) = armed(&[drop_response(Occurrence::First)]);
    for _ in 1..MAX_PER_TOKEN {
        let (leg, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
        passage.through();
        net.response(&leg, Response::http(200)).through();
    }
    assert_eq!(net.sidecar("checkout").executions.len(), MAX_PER_TOKEN);
    let (last, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    let seen = passage.through();
    assert_eq!(net.sidecar("checkout").executions.len(), MAX_PER_TOKEN);
    let call = net.call("checkout", "payment", charge().within(&seen));
    net.answer(&call, Response::grpc(0)).through();
    net.response(&last, Response::http(200)).through();
    let spans = net.spans("checkout");
    let span = spans.iter().rev().find(|span| span.side == Side::Caller).unwrap();
    assert_eq!(span.passes[0].passed_by, Some(PassedBy::NumberBlocked));
    assert!(span.gaps.blocks_number(&"checkout".parse().unwrap()), "later messages carry the gap");
    let call = net.call("checkout", "payment", charge().within(&busy));
    assert_eq!(net.answer(&call, Response::grpc(0)), Passage::Dropped, "one with an open call was not forgotten");
}

#[test]
fn an_eviction_marks_the_token_and_arming_anew_does_not_clear_it() {
    for evicts in [false, true] {
        let (mut net, _) = armed(&[drop_response(Occurrence::First)]);
        for _ in 0..MAX_PER_TOKEN - 1 + usize::from(evicts) {
            let (leg, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
            passage.through();
            net.response(&leg, Response::http(200)).through();
        }
        // Of what was forgotten nobody knows any more that it had begun before.
        net.arm(&[drop_response(Occurrence::First)], &[]);
        net.sidecar("checkout").executions.release(ROUND);
        net.sidecar("checkout").executions.hold(ROUND);
        let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
        let call = net.call("checkout", "payment", charge().within(&seen));
        let passage = net.answer(&call, Response::grpc(0));
        assert_eq!(passage == Passage::Dropped, !evicts, "{passage:?}");
    }
}
