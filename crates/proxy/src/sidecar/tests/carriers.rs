//! The member in other carriers, and that nothing of ours goes to anyone else (design §3.1, §3.8).

use aftershock_core::hop::HEADER;
use aftershock_core::id::Token;
use aftershock_core::span::Association;
use aftershock_core::w3c::{Baggage, Member};

use crate::exchange::Closed;
use crate::sidecar::testing::*;

const CHARGE: &str = "shop.Payment/Charge";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_TRACE: &str = "00-1111111111111111111111111111dead-b7ad6b7169203331-01";
const BAGGAGE: &str = "association: {carrier: baggage}\n";
const UBERCTX: &str = "association: {carrier: uberctx, correlate: [uber-trace-id]}\n";

/// A shop whose checkout hands its member on in another carrier.
fn shop(checkout: &str) -> Net {
    let with = [("front", ""), ("checkout", checkout), ("payment", "")];
    let mut net = Net::configured(&with, &["front", "checkout", "payment", "stranger"]);
    net.register(&["front", "checkout", "payment"]);
    net.arm(&[], &[]);
    net
}

/// An order at the checkout in an execution of the round, with further lines, as its application sees it.
fn order(net: &mut Net, lines: &[(&str, &str)]) -> Dialogue {
    let request = tagged(Request::http("POST", "/buy")).with("traceparent", TRACE);
    let seen = net.come_in("front", request).1.through();
    let mut request = Request::http("POST", "/order").within(&seen);
    for (name, value) in lines {
        request = request.with(name, value);
    }
    net.call("front", "checkout", request)
}

fn member_in_baggage(request: &Request) -> Option<Member> {
    let lines = request.lines.iter().filter(|(name, _)| name == "baggage").map(|(_, value)| value);
    Baggage::parse(lines).get("aft").map(|value| Member::parse(value).unwrap())
}

#[test]
fn baggage_carries_the_member_through_an_application_and_no_further() {
    let mut net = shop(BAGGAGE);
    let call = order(&mut net, &[("baggage", "user=7;p , x=%20"), ("tracestate", "rojo=1")]);
    let member = member_in_baggage(&call.seen).unwrap();
    assert_eq!(call.seen.member(), None, "the application sees it in its carrier and nowhere else");
    assert!(call.seen.get("tracestate").unwrap().starts_with("rojo=1"));
    assert_eq!(call.seen.get("baggage").unwrap(), format!("aft={member},user=7;p , x=%20"));
    // This application hands on baggage, and begins a trace of its own only where it got none.
    for names in [&["baggage"][..], &["baggage", "traceparent"]] {
        let below = net.call("checkout", "payment", Request::grpc(CHARGE).hands_on(&call.seen, names));
        let passed = below.seen.member().unwrap();
        assert_eq!((passed.execution, passed.token), (member.execution, ROUND));
        assert_eq!(below.seen.get("baggage"), Some("user=7;p , x=%20"), "what others wrote is untouched");
        net.answer(&below, Response::grpc(0)).through();
    }
    assert_eq!(net.associated("checkout", Association::Exact), 2);
    assert!(net.response(&call.into, Response::http(200)).through().has_hop(), "hop tags hold whatever the carrier");
    let spans = net.spans("checkout");
    assert!(spans[..2].iter().all(|span| span.parent == Some(member.call)));
}

#[test]
fn jaeger_baggage_carries_the_member_beside_the_jaeger_trace() {
    let mut net = shop(UBERCTX);
    let call = order(&mut net, &[("uber-trace-id", "abc123:1:0:1"), ("uberctx-user", "7")]);
    let member: Member = call.seen.get("uberctx-aft").unwrap().parse().unwrap();
    assert_eq!(call.seen.member(), None);
    let handed = ["uberctx-aft", "uberctx-user", "uber-trace-id"];
    let below = net.call("checkout", "payment", Request::grpc(CHARGE).hands_on(&call.seen, &handed));
    assert_eq!(below.seen.member().unwrap().execution, member.execution);
    assert_eq!((below.seen.get("uberctx-aft"), below.seen.get("uberctx-user")), (None, Some("7")));
    assert_eq!(net.associated("checkout", Association::Exact), 1);
    // Percent-encoded, as some clients write it.
    let encoded = member.to_string().replace('-', "%2D");
    let request = Request::grpc(CHARGE).with("uberctx-aft", &encoded).with("uber-trace-id", "abc123:7:1:1");
    assert!(net.go_out("checkout", "payment", request).1.through().member().is_some());
    // Beside another trace it is a frozen copy.
    let frozen = Request::grpc(CHARGE).with("uberctx-aft", &member.to_string()).with("uber-trace-id", "77:1:0:1");
    assert_eq!(net.go_out("checkout", "payment", frozen).1.through().member(), None);
    assert_eq!(net.ignored("checkout", "member-stale"), 1);
}

#[test]
fn an_entry_without_jaeger_trace_gets_one_that_agrees_with_its_member() {
    let mut net = shop(UBERCTX);
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/order"))).1.through();
    let handed = ["uberctx-aft", "uber-trace-id"];
    let below = net.call("checkout", "payment", Request::grpc(CHARGE).hands_on(&seen, &handed));
    assert_eq!(below.seen.member().unwrap().token, ROUND);
    assert_eq!(net.associated("checkout", Association::Exact), 2, "the entry and its call");
}

#[test]
fn baggage_beside_another_trace_is_stale() {
    let mut net = shop(BAGGAGE);
    let call = order(&mut net, &[]);
    let frozen = Request::grpc(CHARGE).hands_on(&call.seen, &["baggage"]).with("traceparent", OTHER_TRACE);
    let sent = net.go_out("checkout", "payment", frozen).1.through();
    assert_eq!((sent.member(), sent.get("baggage")), (None, None));
    assert_eq!(net.ignored("checkout", "member-stale"), 1);
}

#[test]
fn a_member_that_is_not_in_the_carrier_says_nothing_and_goes_no_further() {
    let mut net = shop(BAGGAGE);
    let call = order(&mut net, &[]);
    let member = member_in_baggage(&call.seen).unwrap();
    let request = Request::grpc(CHARGE).with("tracestate", &format!("aft={member},rojo=1")).with("traceparent", TRACE);
    let sent = net.go_out("checkout", "payment", request).1.through();
    assert_eq!(sent.get("tracestate"), Some("rojo=1"));
    assert_eq!(net.associated("checkout", Association::Unassociated), 1);
}

#[test]
fn what_comes_in_a_carrier_from_outside_is_forged() {
    for (config, name, value) in [
        (BAGGAGE, "baggage", "aft=1-0000000000000009-0000000000000009-0-0,user=7"),
        (UBERCTX, "uberctx-aft", "1-0000000000000009-0000000000000009-0-0"),
    ] {
        let mut net = shop(config);
        let seen = net.come_in("checkout", Request::http("GET", "/").with(name, value)).1.through();
        let text = seen.get(name).unwrap();
        assert!(!text.contains("0000000000000009"), "{text}");
        let probe = Request::http("GET", "/").with(name, value).with("user-agent", "kube-probe/1.29");
        let seen = net.come_in("checkout", probe).1.through();
        assert_eq!(seen.get(name), (name == "baggage").then_some("user=7"));
        // An unassociated call, with the mark of its sidecar.
        let call = net.call("front", "checkout", Request::http("GET", "/").with(name, value));
        assert_eq!(call.seen.get(name), (name == "baggage").then_some("user=7"));
    }
}

#[test]
fn a_full_baggage_is_left_as_it_is_and_the_member_is_counted_as_unsent() {
    let mut net = shop(BAGGAGE);
    let full = (0..64).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
    let call = order(&mut net, &[("baggage", &full)]);
    assert_eq!((call.seen.get("baggage"), call.seen.member()), (Some(full.as_str()), None));
    assert_eq!(net.ignored("checkout", "member-unsent"), 1);
    let sent = net.go_out("checkout", "payment", Request::grpc(CHARGE).hands_on(&call.seen, &["baggage"])).1.through();
    assert_eq!((sent.member(), sent.get("baggage")), (None, Some(full.as_str())), "unassociated, not guessed");
}

#[test]
fn a_client_beside_a_sidecar_with_another_carrier_passes_unchanged() {
    for config in [BAGGAGE, UBERCTX] {
        let mut net = shop(config);
        let request = tagged(Request::http("POST", "/buy")).with("traceparent", TRACE);
        assert_eq!(net.go_out("checkout", "front", request.clone()).1.through(), request);
    }
}

#[test]
fn a_client_s_token_goes_to_registered_callees_only() {
    let mut net = shop("");
    let request = tagged(Request::http("POST", "/buy")).with("traceparent", TRACE).with("tracestate", "rojo=1");
    let sent = net.go_out("checkout", "stranger", request).1.through();
    assert_eq!(sent.get("tracestate"), Some("rojo=1"));
    assert_eq!(net.ignored("checkout", "member-unsent"), 1);
}

#[test]
fn every_line_towards_a_stranger_is_what_the_application_sent() {
    let ways: [(&str, &[(&str, &str)]); 6] = [
        ("", &[("tracestate", "congo=1"), ("baggage", "user=7"), ("x-request-id", "r1")]),
        ("", &[]),
        (BAGGAGE, &[("baggage", " user=7 ; p, x=1"), ("tracestate", "congo=1")]),
        (UBERCTX, &[("uber-trace-id", "abc123:1:0:1"), ("uberctx-user", "7")]),
        ("association: {correlate: [x-request-id]}\n", &[("x-request-id", "r1")]),
        ("record: all\n", &[("baggage", "a=1")]),
    ];
    let ours = |(name, value): &(String, String)| {
        name == HEADER || name == "uberctx-aft" || value.split(',').any(|member| member.trim().starts_with("aft="))
    };
    for (config, lines) in ways {
        let mut net = shop(config);
        let mut seen = vec![order(&mut net, lines).seen];
        let with = |request: Request| lines.iter().fold(request, |request, (name, value)| request.with(name, value));
        seen.push(net.come_in("checkout", with(Request::http("GET", "/ordinary"))).1.through());
        seen.push(net.come_in("checkout", with(tagged(Request::http("GET", "/entry")))).1.through());
        for seen in seen {
            // The application hands everything on, or the business lines alone; then it copies a hop header from somewhere.
            let copied = Request { lines: seen.lines.clone(), ..Request::http("GET", "/") };
            let alone = with(Request::http("GET", "/"));
            for request in [copied.clone(), alone, copied.with(HEADER, "AQMAAA")] {
                let expected: Vec<_> = request.lines.iter().filter(|line| !ours(line)).cloned().collect();
                let kept = |name: &str| request.lines.iter().any(|line| line.0 == name && ours(line));
                let (leg, passage) = net.go_out("checkout", "stranger", request.clone());
                let sent = passage.through();
                assert!(!sent.lines.iter().any(ours), "{config}: {:?}", sent.lines);
                for line in &expected {
                    assert!(sent.lines.contains(line), "{config}: {line:?} of {:?}", sent.lines);
                }
                for (name, value) in sent.lines.iter().filter(|line| !expected.contains(line)) {
                    assert!(
                        kept(name) && request.get(name).is_some_and(|sent| sent.ends_with(value)),
                        "{name}: {value}"
                    );
                }
                // Nor does an answer bring anything in.
                let answer = Response { lines: vec![(HEADER.to_owned(), "AQMAAA".to_owned())], ..Response::http(200) };
                assert!(!net.response(&leg, answer).through().has_hop());
            }
        }
    }
}

#[test]
fn nothing_of_ours_is_in_what_an_application_answers() {
    let mut net = shop(BAGGAGE);
    let (leg, passage) = net.come_in("checkout", Request::http("GET", "/").with("traceparent", TRACE));
    passage.through();
    let sent = net.response(&leg, Response::http(200)).through();
    assert_eq!(sent, Response::http(200));
    let (leg, passage) = net.come_in("checkout", tagged(Request::http("GET", "/")));
    passage.through();
    net.close(&leg, Closed::ByUpstream);
    assert!(net.spans("checkout").iter().all(|span| span.token != Token(0)));
}
