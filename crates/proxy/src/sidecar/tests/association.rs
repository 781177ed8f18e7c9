//! Whose call it is, step by step of the ladder (design §3.1).

use std::time::Duration;

use aftershock_core::event::EventKind;
use aftershock_core::evidence::Knowledge;
use aftershock_core::hop::{HEADER, Hop};
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::plan::Side;
use aftershock_core::span::Association;
use aftershock_core::w3c::{Member, TraceParent};

use crate::exchange::{Closed, Protocol};
use crate::sidecar::testing::*;

const CHARGE: &str = "shop.Payment/Charge";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_TRACE: &str = "00-1111111111111111111111111111dead-b7ad6b7169203331-01";

fn shop() -> Net {
    let mut net = Net::new(&["front", "checkout", "payment"]);
    net.arm(&[], &[event(EventKind::RequestSent, &format!("payment {CHARGE}"))]);
    net
}

/// A request that came in at the front of the round, as its application sees it.
fn entry(net: &mut Net) -> Request {
    let request = tagged(Request::http("POST", "/buy")).with("traceparent", TRACE);
    net.come_in("front", request).1.through()
}

#[test]
fn an_entry_of_a_round_begins_an_execution_and_hands_its_member_to_the_application() {
    let mut net = shop();
    let first = entry(&mut net);
    let member = first.member().unwrap();
    assert_eq!((member.token, member.check), (ROUND, 0x1c80_319c));
    assert!(!member.execution.is_zero() && !member.call.is_zero());
    assert_eq!(first.get("traceparent"), Some(TRACE), "a trace context that came stays");
    let second = entry(&mut net).member().unwrap();
    assert_ne!(second.execution, member.execution, "every entry request is a new execution");
    assert_eq!(second.token, ROUND);
}

#[test]
fn a_declared_execution_is_used_as_it_is() {
    let mut net = shop();
    let state = format!("aft=1-{}-0-{ROUND}-0", ExecutionId(77));
    for _ in 0..2 {
        let request = Request::http("POST", "/buy").with("tracestate", &state).with("traceparent", TRACE);
        let seen = net.come_in("front", request).1.through();
        assert_eq!(seen.member().unwrap().execution, ExecutionId(77));
    }
}

#[test]
fn the_member_makes_parent_and_execution_exact() {
    let mut net = shop();
    let seen = entry(&mut net);
    let call = net.call("front", "checkout", Request::http("POST", "/order").within(&seen));
    let (above, member) = (seen.member().unwrap(), call.seen.member().unwrap());
    assert_eq!((member.execution, member.token), (above.execution, ROUND));
    assert_ne!(member.call, above.call);
    assert!(!call.seen.has_hop(), "the application never sees the hop header");
    net.answer(&call, Response::http(200)).through();
    let spans = net.all_spans();
    let side = |side| spans.iter().find(|span| span.side == side && span.call == member.call).unwrap();
    let (client, server) = (side(Side::Caller), side(Side::Callee));
    assert_eq!((client.parent, client.association), (Some(above.call), Association::Exact));
    assert_eq!(server.caller.as_ref().map(|service| service.as_str()), Some("front"));
    assert!(client.evidence_went && client.evidence_came && server.evidence_came && server.evidence_went);
    assert_eq!(net.associated("front", Association::Exact), 2, "the entry and the call");
    assert_eq!(net.associated("checkout", Association::Exact), 0, "a call is counted by its caller");
}

#[test]
fn other_members_of_tracestate_stay_and_ours_is_leftmost() {
    let mut net = shop();
    let request = Request::http("GET", "/").with("traceparent", TRACE);
    let request = request.with("tracestate", &format!("congo=1,aft=1-0-0-{ROUND}-0")).with("tracestate", "rojo=2");
    let seen = net.come_in("front", request).1.through();
    let lines: Vec<_> = seen.lines.iter().filter(|(name, _)| name == "tracestate").collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].1.starts_with("aft=1-") && lines[0].1.ends_with(",congo=1,rojo=2"), "{}", lines[0].1);
    let sent = net.go_out("front", "checkout", Request::http("GET", "/").within(&seen)).1.through();
    assert!(sent.get("tracestate").unwrap().ends_with(",congo=1,rojo=2"));
    assert_eq!(sent.get("tracestate").unwrap().matches("aft=").count(), 1, "replaced, never appended");
}

#[test]
fn the_limits_of_tracestate_are_kept_and_the_member_is_never_what_goes() {
    let full = |count: usize, width: usize| {
        (0..count).map(|n| format!("v{n}={}", "x".repeat(width))).collect::<Vec<_>>().join(",")
    };
    for (state, malformed) in [
        (full(32, 1), false),
        (full(33, 1), false),
        (full(20, 20), false),
        (full(4, 150), false),
        (full(2, 256), false),
        ("no equals sign".to_owned(), true),
        ("a=1,=,b=2".to_owned(), true),
    ] {
        let mut net = shop();
        let request = Request::http("POST", "/buy").with("traceparent", TRACE).with("tracestate", &state);
        let seen = net.come_in("front", request).1.through();
        let sent = net.go_out("front", "checkout", Request::http("GET", "/").within(&seen)).1.through();
        for text in [&seen, &sent].map(|request| request.get("tracestate").unwrap()) {
            let members: Vec<&str> = text.split(',').collect();
            assert!(members.len() <= 32 && text.len() <= 512 && members[0].starts_with("aft=1-"), "{text}");
            assert!(members[1..].iter().all(|member| state.split(',').any(|came| came == *member)), "whole members go");
            assert!(!malformed || members.len() == 1, "{text}");
        }
        assert_eq!(net.associated("front", Association::Exact), 2, "{state}");
        // Where nothing of ours goes, what others wrote stays as the application sent it.
        let stray = Request::http("GET", "/").with("tracestate", &state);
        assert_eq!(net.go_out("front", "checkout", stray).1.through().get("tracestate"), Some(state.as_str()));
    }
}

#[test]
fn a_service_that_copies_all_headers_does_not_make_them_grow() {
    let services = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];
    let mut net = Net::new(&services);
    net.arm(&[], &[]);
    let request = tagged(Request::http("GET", "/")).with("traceparent", TRACE);
    let mut seen = net.come_in("a0", request).1.through();
    let size = seen.lines.len();
    for pair in services.windows(2) {
        let copied = Request { lines: seen.lines.clone(), ..Request::http("GET", "/") };
        let call = net.call(pair[0], pair[1], copied);
        assert_eq!(call.seen.lines.len(), size);
        seen = call.seen;
    }
    assert_eq!(net.associated("a8", Association::Exact), 1);
}

#[test]
fn a_call_whose_parent_has_ended_is_detached_within_the_linger_time_and_unassociated_after_it() {
    let mut net = shop();
    let (leg, passage) = net.come_in("front", tagged(Request::http("POST", "/buy")).with("traceparent", TRACE));
    let seen = passage.through();
    net.response(&leg, Response::http(202)).through();
    let send =
        |net: &mut Net| net.go_out("front", "checkout", Request::http("POST", "/order").within(&seen)).1.through();
    let sent = send(&mut net);
    assert_eq!(sent.member().unwrap().execution, seen.member().unwrap().execution);
    assert_eq!(net.associated("front", Association::Detached), 1);
    net.pass_time(Duration::from_secs(31));
    assert_eq!(send(&mut net).member(), None);
    assert_eq!(net.associated("front", Association::Unassociated), 1);
    assert_eq!(net.ignored("front", "member-stale"), 1);
}

#[test]
fn a_member_whose_check_does_not_fit_the_trace_beside_it_is_stale() {
    let mut net = shop();
    let seen = entry(&mut net);
    let frozen = Request::grpc(CHARGE).hands_on(&seen, &["tracestate"]).with("traceparent", OTHER_TRACE);
    let sent = net.go_out("front", "payment", frozen).1.through();
    assert_eq!(net.ignored("front", "member-stale"), 1);
    assert_eq!(net.associated("front", Association::Unassociated), 1);
    assert_eq!(sent.get("tracestate"), None, "a stale member goes to nobody");
    assert!(sent.has_hop(), "the callee is told that this is no entry");
}

#[test]
fn an_unassociated_call_is_no_entry_at_its_callee() {
    let mut net = shop();
    let call = net.call("front", "payment", Request::grpc(CHARGE).with("traceparent", TRACE));
    assert!(!call.seen.has_hop() && call.seen.member().is_none());
    let inner = net.go_out("payment", "checkout", Request::http("GET", "/x").within(&call.seen)).1.through();
    assert_eq!(inner.member(), None, "what it calls belongs to no execution either");
    net.answer(&call, Response::grpc(0)).through();
    assert!(net.all_spans().is_empty(), "nothing of a round");
}

#[test]
fn without_any_context_an_entry_is_ordinary_and_its_calls_are_associated_but_not_recorded() {
    let mut net = shop();
    let (leg, passage) = net.come_in("front", Request::http("POST", "/buy"));
    let seen = passage.through();
    let member = seen.member().unwrap();
    assert_eq!((member.token, member.check), (Token(0), 0));
    assert_eq!(seen.get("traceparent"), None, "ordinary traffic keeps its own sampling");
    let call = net.call("front", "payment", Request::grpc(CHARGE).within(&seen));
    assert_eq!(call.seen.member().unwrap().execution, member.execution);
    net.answer(&call, Response::grpc(0)).through();
    net.response(&leg, Response::http(200)).through();
    assert!(net.all_spans().is_empty());
    assert_eq!(net.sidecar("front").executions.len(), 0, "its state ended with its last call");
    assert_eq!(net.sidecar("payment").executions.len(), 0);
}

#[test]
fn ordinary_traffic_is_recorded_on_request() {
    let mut net = Net::configured(&[("front", "record: all\n"), ("payment", "")], &["front", "payment"]);
    net.register(&["front", "payment"]);
    let (leg, passage) = net.come_in("front", Request::http("POST", "/buy"));
    let seen = passage.through();
    assert!(seen.get("traceparent").is_some(), "what is recorded has a trace");
    let call = net.call("front", "payment", Request::grpc(CHARGE).within(&seen));
    net.answer(&call, Response::grpc(0)).through();
    let stray = net.call("front", "payment", Request::grpc(CHARGE));
    net.answer(&stray, Response::grpc(0)).through();
    net.response(&leg, Response::http(200)).through();
    let spans = net.spans("front");
    let steps: Vec<_> = spans.iter().map(|span| (span.side, span.association, span.execution.is_zero())).collect();
    assert_eq!(
        steps,
        [
            (Side::Caller, Association::Exact, false),
            (Side::Caller, Association::Unassociated, true),
            (Side::Callee, Association::Exact, false),
        ]
    );
    assert!(net.spans("payment").is_empty());
}

#[test]
fn an_unknown_token_and_members_without_a_hop_tag_are_removed_and_counted() {
    let mut net = shop();
    let unknown = Token(0xbad);
    let call = CallId(5);
    let cases = [
        (Member { execution: ExecutionId(0), call: CallId(0), token: unknown, check: 0 }, "token-unknown"),
        (Member { execution: ExecutionId(9), call, token: unknown, check: 0 }, "token-unknown"),
        (Member { execution: ExecutionId(9), call, token: Token(0), check: 0 }, "member-untagged"),
        (Member { execution: ExecutionId(0), call, token: ROUND, check: 0 }, "member-malformed"),
    ];
    for (index, (member, counter)) in cases.into_iter().enumerate() {
        let request = Request::http("GET", "/").with("tracestate", &format!("aft={member}"));
        let before = net.ignored("front", counter);
        let seen = net.come_in("front", request).1.through().member().unwrap();
        assert_eq!(net.ignored("front", counter), before + 1, "case {index}");
        assert_eq!(seen.token, Token(0), "case {index}: an ordinary entry");
        assert_ne!(seen.execution, ExecutionId(9), "case {index}");
    }
    for (text, counter) in [("1-zz", "member-malformed"), ("2-0-0-0-0", "member-version")] {
        let request = Request::http("GET", "/").with("tracestate", &format!("aft={text}"));
        assert_eq!(net.come_in("front", request).1.through().member().unwrap().token, Token(0));
        assert_eq!(net.ignored("front", counter), if counter == "member-malformed" { 2 } else { 1 });
    }
}

#[test]
fn a_client_beside_its_own_sidecar_passes_unchanged() {
    let mut net = shop();
    let request = tagged(Request::http("POST", "/buy")).with("traceparent", TRACE);
    let sent = net.go_out("front", "checkout", request.clone()).1.through();
    assert_eq!(sent, request);
    let seen = net.come_in("checkout", sent).1.through();
    assert_eq!(seen.member().unwrap().token, ROUND, "the callee's sidecar begins the execution");
}

#[test]
fn a_member_behind_a_hop_without_sidecar_is_the_parent_and_sets_the_gap() {
    let mut net = Net::configured(&[("front", "relay: [legacy]\n"), ("payment", "")], &["legacy", "payment"]);
    net.register(&["front", "payment"]);
    net.arm(&[], &[]);
    let seen = entry(&mut net);
    let (out, passage) = net.go_out("front", "legacy", Request::http("GET", "/").within(&seen));
    let relayed = passage.through();
    assert!(!relayed.has_hop(), "no hop header for a callee without sidecar");
    let member = relayed.member().unwrap();
    let (into, passage) = net.come_in("payment", Request::grpc(CHARGE).within(&relayed));
    let inner = passage.through().member().unwrap();
    assert_eq!((inner.execution, inner.token), (member.execution, ROUND));
    assert_ne!(inner.call, member.call, "a new id is minted");
    let sent = net.response(&into, Response::grpc(0)).through();
    assert!(!sent.has_hop(), "response evidence only in answer to a valid hop tag");
    net.response(&out, Response::http(200)).through();
    let spans = net.all_spans();
    assert!(spans.iter().all(|span| !span.gaps.is_empty()));
    let server = spans.iter().find(|span| span.side == Side::Callee).unwrap();
    assert_eq!((server.parent, server.association, &server.caller), (Some(member.call), Association::Relayed, &None));
    assert!(!server.gaps.blocks_number(&"payment".parse().unwrap()), "evidence may be missing, no pass is");
}

#[test]
fn callees_without_sidecar_get_nothing_of_ours() {
    let mut net = Net::configured(&[("front", "")], &["database"]);
    net.register(&["front"]);
    net.arm(&[], &[]);
    let seen = entry(&mut net);
    let request = Request::http("GET", "/").within(&seen).with("tracestate", "rojo=2").with(HEADER, "copied");
    let sent = net.go_out("front", "database", request).1.through();
    assert_eq!((sent.get("tracestate"), sent.has_hop()), (Some("rojo=2"), false));
    assert_eq!(sent.get("traceparent"), Some(TRACE));
}

// ── correlation ids ─────────────────────────────────────────────────────────────────────────────────────────────────

const UBER: &str = "association: {correlate: [uber-trace-id]}\n";

fn uber() -> Net {
    let with = [("front", UBER), ("checkout", UBER), ("payment", UBER)];
    let mut net = Net::configured(&with, &["front", "checkout", "payment"]);
    net.register(&["front", "checkout", "payment"]);
    net.arm(&[], &[]);
    net
}

const SPAN: &str = "abc123:1:0:1";

#[test]
fn a_correlation_id_that_one_open_call_carries_makes_the_parent_exact() {
    let mut net = uber();
    let request = tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN);
    let seen = net.come_in("front", request).1.through();
    let above = seen.member().unwrap();
    let mut below = seen.clone();
    for callee in ["checkout", "payment"] {
        let caller = if callee == "checkout" { "front" } else { "checkout" };
        // The application hands its trace id on with a span of its own, and nothing else.
        let call = net.call(caller, callee, Request::grpc(CHARGE).with("uber-trace-id", "0abc123:77:1:1"));
        let member = call.seen.member().unwrap();
        assert_eq!((member.execution, member.token), (above.execution, ROUND));
        let parent: TraceParent = call.seen.get("traceparent").unwrap().parse().unwrap();
        assert_eq!(parent.check(), member.check, "a missing traceparent is minted with the execution's trace id");
        assert_eq!(parent.check(), above.check);
        assert_eq!(net.associated(caller, Association::Correlated), 1);
        below = call.seen;
    }
    assert_eq!(below.get("uber-trace-id"), Some("0abc123:77:1:1"), "the application's own id stays");
}

#[test]
fn under_a_live_token_an_entry_without_correlation_id_gets_one() {
    let mut net = uber();
    let seen = net.come_in("front", tagged(Request::http("POST", "/buy"))).1.through();
    let id = seen.get("uber-trace-id").unwrap().to_owned();
    let trace: TraceParent = seen.get("traceparent").unwrap().parse().unwrap();
    assert!(id.starts_with(&format!("{:032x}:", trace.trace_id)));
    let call = net.call("front", "payment", Request::grpc(CHARGE).with("uber-trace-id", &id));
    assert_eq!(call.seen.member().unwrap().execution, seen.member().unwrap().execution);
    assert_eq!(net.come_in("front", Request::http("GET", "/")).1.through().get("uber-trace-id"), None);
}

#[test]
fn a_correlation_id_of_several_open_calls_of_one_execution_leaves_the_parent_open() {
    let mut net = uber();
    let seen = net.come_in("front", tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN)).1.through();
    let send = |net: &mut Net, caller: &str, callee: &str| {
        net.call(caller, callee, Request::grpc(CHARGE).with("uber-trace-id", SPAN))
    };
    let (one, two) = (send(&mut net, "front", "checkout"), send(&mut net, "front", "checkout"));
    let inner = send(&mut net, "checkout", "payment");
    assert_eq!(inner.seen.member().unwrap().execution, seen.member().unwrap().execution);
    assert_eq!(net.associated("checkout", Association::Ambiguous), 1);
    net.answer(&inner, Response::grpc(0)).through();
    assert_eq!(net.spans("checkout")[0].parent, None, "never guessed");
    net.answer(&one, Response::grpc(0)).through();
    send(&mut net, "checkout", "payment");
    assert_eq!(net.associated("checkout", Association::Correlated), 1, "one of them is open");
    net.answer(&two, Response::grpc(0)).through();
    send(&mut net, "checkout", "payment");
    assert_eq!(net.associated("checkout", Association::Detached), 1, "all have ended");
}

#[test]
fn a_correlation_id_of_two_executions_says_nothing_even_after_one_has_ended() {
    let mut net = uber();
    let come = |net: &mut Net| net.come_in("front", tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN));
    let (first, _) = come(&mut net);
    come(&mut net).1.through();
    let send = |net: &mut Net| {
        let (leg, passage) = net.go_out("front", "payment", Request::grpc(CHARGE).with("uber-trace-id", SPAN));
        let member = passage.through().member();
        net.close(&leg, Closed::ByUpstream);
        member
    };
    assert_eq!(send(&mut net), None);
    net.response(&first, Response::http(200)).through();
    assert_eq!(send(&mut net), None, "the first may still send");
    net.pass_time_renewing(Duration::from_secs(36));
    assert!(send(&mut net).is_some(), "after the linger time only the second carries it");
    assert_eq!(net.associated("front", Association::Unassociated), 2);
}

#[test]
fn a_correlation_id_that_an_unassociated_call_carries_says_nothing() {
    let mut net = uber();
    net.come_in("checkout", tagged(Request::http("POST", "/order")).with("uber-trace-id", SPAN)).1.through();
    net.call("front", "checkout", Request::http("POST", "/order").with("uber-trace-id", SPAN));
    let sent = net.go_out("checkout", "payment", Request::grpc(CHARGE).with("uber-trace-id", SPAN)).1.through();
    assert_eq!(sent.member(), None);
}

#[test]
fn a_correlation_id_that_an_unassociated_call_went_out_with_says_nothing_for_the_linger_time() {
    let mut net = uber();
    let stray = net.go_out("front", "payment", Request::grpc(CHARGE).with("uber-trace-id", SPAN));
    net.close(&stray.0, Closed::ByUpstream);
    net.come_in("front", tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN)).1.through();
    let send = |net: &mut Net| {
        let (leg, passage) = net.go_out("front", "payment", Request::grpc(CHARGE).with("uber-trace-id", SPAN));
        let member = passage.through().member();
        net.close(&leg, Closed::ByUpstream);
        member
    };
    assert_eq!(send(&mut net), None);
    net.pass_time_renewing(Duration::from_secs(36));
    assert!(send(&mut net).is_some());
}

#[test]
fn b3_in_one_form_correlates_with_b3_in_the_other() {
    const B3: &str = "association: {correlate: [b3, x-b3-traceid]}\n";
    let mut net = Net::configured(&[("front", B3), ("payment", "")], &["payment"]);
    net.register(&["front", "payment"]);
    net.arm(&[], &[]);
    let id = "80f198ee56343ba864fe8b2a57d3eff7";
    let came = tagged(Request::http("GET", "/")).with("b3", &format!("{id}-e457b5a2e4d86bd1-1"));
    let one = net.come_in("front", came).1.through();
    assert_eq!(one.get("x-b3-traceid"), None, "the form that came is enough");
    let multi = Request::grpc(CHARGE).with("x-b3-traceid", id).with("x-b3-spanid", "1");
    let sent = net.go_out("front", "payment", multi).1.through();
    assert_eq!(sent.member().unwrap().execution, one.member().unwrap().execution);
    // Both forms at once are one id, and what is minted is whole in both.
    let two = net.come_in("front", tagged(Request::http("GET", "/"))).1.through();
    let both = ["b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled"];
    assert!(both.iter().all(|name| two.get(name).is_some()));
    let sent = net.go_out("front", "payment", Request::grpc(CHARGE).hands_on(&two, &both)).1.through();
    assert_eq!(sent.member().unwrap().execution, two.member().unwrap().execution);
    assert_eq!(net.associated("front", Association::Correlated), 2);
}

#[test]
fn each_correlation_id_stands_for_its_execution() {
    for (name, other) in [
        ("traceparent", OTHER_TRACE.to_owned()),
        ("b3", "abc-1-1".to_owned()),
        ("x-b3-traceid", "abc".to_owned()),
        ("uber-trace-id", "abc:1:0:1".to_owned()),
        ("x-request-id", "abc".to_owned()),
        ("x-own-id", "abc".to_owned()),
    ] {
        let config = format!("association: {{correlate: [{name}]}}\n");
        let mut net = Net::configured(&[("front", &config), ("payment", "")], &["payment"]);
        net.register(&["front", "payment"]);
        net.arm(&[], &[]);
        let one = net.come_in("front", tagged(Request::http("GET", "/"))).1.through();
        let two = net.come_in("front", tagged(Request::http("GET", "/")).with(name, &other)).1.through();
        for seen in [&one, &two] {
            let sent = net.go_out("front", "payment", Request::grpc(CHARGE).hands_on(seen, &[name])).1.through();
            assert_eq!(sent.member().unwrap().execution, seen.member().unwrap().execution, "{name}");
        }
        assert_eq!(net.associated("front", Association::Correlated), 2, "{name}");
    }
}

#[test]
fn a_correlation_id_that_only_outbound_calls_carry_names_their_execution() {
    let mut net = uber();
    let seen = net.come_in("front", Request::http("POST", "/buy").with("traceparent", TRACE)).1.through();
    // The application has an id of its own for what it sends, and hands the trace on only sometimes.
    let first = Request::grpc(CHARGE).within(&seen).with("uber-trace-id", "77:1:0:1");
    net.go_out("front", "payment", first).1.through();
    let second = Request::grpc(CHARGE).with("uber-trace-id", "77:2:0:1");
    let sent = net.go_out("front", "payment", second).1.through();
    assert_eq!(sent.member().unwrap().execution, seen.member().unwrap().execution);
    assert_eq!(net.associated("front", Association::Ambiguous), 1);
}

#[test]
fn a_hop_that_begins_another_trace_does_not_make_members_stale() {
    let mut net = shop();
    let seen = entry(&mut net);
    let mut sent = net.go_out("front", "checkout", Request::http("POST", "/order").within(&seen)).1.through();
    for (name, value) in &mut sent.lines {
        if name == "traceparent" {
            *value = OTHER_TRACE.to_owned();
        }
    }
    let (into, passage) = net.come_in("checkout", sent.clone());
    let order = passage.through();
    let (arrived, given) = (sent.member().unwrap(), order.member().unwrap());
    assert_eq!((given.call, given.check), (arrived.call, 0x1111_dead));
    let call = net.call("checkout", "payment", Request::grpc(CHARGE).within(&order));
    assert_eq!(call.seen.member().unwrap().execution, arrived.execution);
    assert_eq!(net.associated("checkout", Association::Exact), 1);
    assert!(net.response(&into, Response::http(200)).through().has_hop());
}

#[test]
fn a_stale_member_steps_down_to_the_correlation_id() {
    let mut net = uber();
    let request = tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN).with("traceparent", TRACE);
    let seen = net.come_in("front", request).1.through();
    let frozen = Member { execution: ExecutionId(1), call: CallId(2), token: ROUND, check: 0x1c80_319c };
    let request = Request::grpc(CHARGE).with("uber-trace-id", SPAN).with("traceparent", TRACE);
    let sent = net.go_out("front", "payment", request.with("tracestate", &format!("aft={frozen}"))).1.through();
    assert_eq!(sent.member().unwrap().execution, seen.member().unwrap().execution);
    assert_eq!((net.ignored("front", "member-stale"), net.associated("front", Association::Correlated)), (1, 1));
}

#[test]
fn constant_context_is_replaced_at_the_entry() {
    let mut net = uber();
    net.arm_with(&[], &[], |arm| arm.constant_context = true);
    let come = |net: &mut Net| {
        let request = tagged(Request::http("POST", "/buy")).with("uber-trace-id", SPAN).with("traceparent", TRACE);
        net.come_in("front", request).1.through()
    };
    let (one, two) = (come(&mut net), come(&mut net));
    for seen in [&one, &two] {
        assert_ne!(seen.get("traceparent"), Some(TRACE));
        assert_ne!(seen.get("uber-trace-id"), Some(SPAN));
        let parent: TraceParent = seen.get("traceparent").unwrap().parse().unwrap();
        assert_eq!(parent.check(), seen.member().unwrap().check);
    }
    assert_ne!(one.get("uber-trace-id"), two.get("uber-trace-id"));
    let id = two.get("uber-trace-id").unwrap().to_owned();
    let sent = net.go_out("front", "payment", Request::grpc(CHARGE).with("uber-trace-id", &id)).1.through();
    assert_eq!(sent.member().unwrap().execution, two.member().unwrap().execution);
}

#[test]
fn relayed_members_are_taken_out_of_queues_on_request_and_set_the_gap() {
    let member = Member { execution: ExecutionId(8), call: CallId(9), token: ROUND, check: 0x1c80_319c };
    let request = Request::grpc(CHARGE).with("tracestate", &format!("aft={member}")).with("traceparent", TRACE);
    for (config, expected) in [("", None), ("accept_relayed: true\n", Some(ExecutionId(8)))] {
        let mut net = Net::configured(&[("worker", config), ("payment", "")], &["payment"]);
        net.register(&["worker", "payment"]);
        net.arm(&[], &[]);
        let call = net.call("worker", "payment", request.clone());
        assert_eq!(call.seen.member().map(|member| member.execution), expected);
        net.answer(&call, Response::grpc(0)).through();
        for span in net.all_spans() {
            assert!(!span.gaps.is_empty() && span.parent.is_none());
        }
        let unknown = Request { lines: request.lines.clone(), ..request.clone() };
        net.tell("worker", aftershock_core::wire::FromController::End { token: ROUND });
        let sent = net.go_out("worker", "payment", unknown).1.through();
        assert_eq!(sent.member(), None, "only under a live token");
    }
}

// ── trust ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A request as the front's sidecar sends it to the payment service.
fn signed(net: &mut Net) -> Request {
    let seen = entry(net);
    net.go_out("front", "payment", Request::grpc(CHARGE).within(&seen)).1.through()
}

fn with_hop(mut request: Request, value: &str) -> Request {
    for (name, line) in &mut request.lines {
        if name == HEADER {
            value.clone_into(line);
        }
    }
    request
}

#[test]
fn what_is_forged_oversized_or_signed_elsewhere_does_not_count_and_the_request_goes_through() {
    let mut net = shop();
    let sent = signed(&mut net);
    let hop = sent.get(HEADER).unwrap().to_owned();
    let other_key = aftershock_core::hop::HopKey { id: 99, ..KEYS };
    let gap = aftershock_core::evidence::Gap {
        kind: aftershock_core::evidence::GapKind::Evidence,
        observer: aftershock_core::id::ObserverId(1),
        service: "front".parse().unwrap(),
    };
    let mark = Hop { call: CallId(0), caller: None, outcome: None, knowledge: Knowledge::default() };
    let mut flipped = hop.clone();
    let last = if flipped.ends_with('A') { "E" } else { "A" };
    flipped.replace_range(hop.len() - 1.., last);
    let cases = [
        (flipped, "hop-forged"),
        ("x".repeat(2000), "hop-oversized"),
        ("%%%".to_owned(), "hop-malformed"),
        (mark.encode(&other_key, "", &gap), "hop-unknown-key"),
    ];
    for (value, counter) in cases {
        let seen = net.come_in("payment", with_hop(sent.clone(), &value)).1.through();
        assert_eq!(net.ignored("payment", counter), 1, "{counter}");
        let (given, minted) = (sent.member().unwrap(), seen.member().unwrap());
        assert_eq!(minted.execution, given.execution, "{counter}: the live token still says whose it is");
        assert_ne!(minted.call, given.call, "{counter}: as behind a hop without sidecar");
        assert!(!seen.has_hop(), "{counter}");
    }
    let twice = sent.clone().with(HEADER, &hop);
    net.come_in("payment", twice).1.through();
    assert_eq!(net.ignored("payment", "hop-malformed"), 2, "two lines are not ours");
}

#[test]
fn a_hop_mark_of_another_request_does_not_turn_a_call_into_something_else() {
    let mut net = shop();
    let sent = signed(&mut net);
    let mark = net.go_out("front", "payment", Request::grpc(CHARGE)).1.through();
    let seen = net.come_in("payment", with_hop(sent.clone(), mark.get(HEADER).unwrap())).1.through();
    assert_eq!(net.ignored("payment", "hop-forged"), 1, "its tag covers that there is no member");
    assert_eq!(seen.member().unwrap().execution, sent.member().unwrap().execution);
}

#[test]
fn a_replayed_call_is_an_entry_of_no_round() {
    let mut net = shop();
    let sent = signed(&mut net);
    let (leg, passage) = net.come_in("payment", sent.clone());
    assert_eq!(passage.through().member(), sent.member());
    for ended in [false, true] {
        let seen = net.come_in("payment", sent.clone()).1.through();
        assert!(!seen.has_hop());
        let member = seen.member().unwrap();
        assert_eq!(member.token, Token(0), "ended: {ended}");
        assert_ne!(member.execution, sent.member().unwrap().execution);
        if !ended {
            net.response(&leg, Response::grpc(0)).through();
        }
    }
    assert_eq!(net.ignored("payment", "replay"), 2);
}

#[test]
fn a_service_that_calls_itself_is_no_replay() {
    let mut net = shop();
    let seen = entry(&mut net);
    let call = net.call("front", "front", Request::http("GET", "/inner").within(&seen));
    let deeper = net.call("front", "payment", Request::grpc(CHARGE).within(&call.seen));
    assert_eq!(net.ignored("front", "replay"), 0);
    net.answer(&deeper, Response::grpc(0)).through();
    net.answer(&call, Response::http(200)).through();
    let spans = net.all_spans();
    let charge = spans.iter().find(|span| span.side == Side::Caller && span.call == deeper.seen.member().unwrap().call);
    assert_eq!(charge.unwrap().parent, Some(call.seen.member().unwrap().call));
}

#[test]
fn response_evidence_is_written_only_in_answer_to_a_valid_hop_tag() {
    let mut net = shop();
    let (leg, passage) = net.come_in("front", tagged(Request::http("POST", "/buy")));
    passage.through();
    let sent = net.response(&leg, Response::http(200)).through();
    assert!(!sent.has_hop(), "an entry's client gets nothing of ours");
    let copied = Response { lines: vec![(HEADER.to_owned(), "own".to_owned())], ..Response::http(200) };
    let (leg, passage) = net.come_in("front", tagged(Request::http("POST", "/buy")));
    passage.through();
    assert!(!net.response(&leg, copied).through().has_hop(), "nor what the application made up");
}

#[test]
fn a_newer_header_passes_untouched_and_blocks_numbers() {
    let mut net = shop();
    let sent = signed(&mut net);
    // Version 2, then bytes that this version cannot know.
    let newer = "AgMAAAAA";
    let (leg, passage) = net.come_in("payment", with_hop(sent.clone(), newer));
    let seen = passage.through();
    assert_eq!(seen.get(HEADER), Some(newer));
    assert_eq!(seen.member().unwrap().execution, sent.member().unwrap().execution);
    net.response(&leg, Response::grpc(0)).through();
    let spans = net.spans("payment");
    assert!(spans[0].gaps.blocks_number(&"payment".parse().unwrap()));
    assert_eq!(net.ignored("payment", "hop-newer"), 1);
}

// ── what is none of our business ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn without_keys_everything_passes_untouched() {
    let mut net = Net::configured(&[("front", UBER), ("payment", "")], &["payment"]);
    let request = tagged(Request::http("POST", "/buy")).with(HEADER, "whatever");
    let (leg, passage) = net.come_in("front", request.clone());
    assert_eq!(passage.through(), request);
    let outbound = Request::grpc(CHARGE).within(&request);
    assert_eq!(net.go_out("front", "payment", outbound.clone()).1.through(), outbound);
    let response = Response { lines: vec![(HEADER.to_owned(), "x".to_owned())], ..Response::http(200) };
    assert_eq!(net.response(&leg, response.clone()).through(), response);
    assert!(net.all_spans().is_empty());
}

#[test]
fn health_probes_are_neither_counted_nor_recorded() {
    let mut net = Net::configured(&[("front", "health_paths: [/healthz]\nrecord: all\n")], &["front"]);
    net.register(&["front"]);
    net.arm(&[], &[event(EventKind::RequestReceived, "front GET /healthz")]);
    let probes = [
        Request::http("GET", "/healthz?full"),
        Request::http("GET", "/").with("user-agent", "kube-probe/1.29"),
        Request { protocol: Protocol::Http2, ..Request::grpc("grpc.health.v1.Health/Check") },
    ];
    for probe in probes {
        let probe = tagged(probe);
        let (leg, passage) = net.come_in("front", probe);
        let seen = passage.through();
        assert_eq!(seen.member(), None);
        net.response(&leg, Response::http(200)).through();
    }
    assert!(net.spans("front").is_empty());
    assert_eq!(net.associated("front", Association::Exact), 0);
    assert_eq!(net.sidecar("front").executions.len(), 0);
}

#[test]
fn an_exchange_that_its_link_left_open_ends_with_it() {
    let mut net = shop();
    let (leg, passage) = net.come_in("front", tagged(Request::http("POST", "/buy")));
    passage.through();
    net.close(&leg, Closed::ByApplication);
    assert_eq!(net.spans("front").len(), 1);
}
