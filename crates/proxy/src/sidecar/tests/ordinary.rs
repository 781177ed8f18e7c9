//! Ordinary traffic: what of it becomes executions of a round, and how it is counted (design §3.6).

use std::time::Duration;

use aftershock_core::id::{ExecutionId, Token};
use aftershock_core::plan::{Fault, Occurrence, Phase, Side};
use aftershock_core::w3c::Member;
use aftershock_core::wire::{FromController, Ordinary, Tagging};

use crate::exchange::Closed;
use crate::sidecar::testing::*;

fn tagging(headers: &[(&str, &str)], per_million: u32) -> Option<Tagging> {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Some(Tagging { headers, per_million })
}

fn armed(headers: &[(&str, &str)], per_million: u32) -> Net {
    let mut net = Net::configured(&[("front", "health_paths: [/healthz]\n"), ("payment", "")], &["front", "payment"]);
    net.register(&["front", "payment"]);
    net.arm_with(&[], &[], |arm| arm.tagging = tagging(headers, per_million));
    net
}

fn token_of(net: &mut Net, request: Request) -> Token {
    let (leg, passage) = net.come_in("front", request);
    let token = passage.through().member().map_or(Token(0), |member| member.token);
    net.response(&leg, Response::http(200)).through();
    token
}

#[test]
fn connections_that_cannot_be_read_are_told_by_the_name_of_the_callee_or_its_address() {
    use crate::exchange::{Decider as _, Door};
    let mut net = Net::configured(&[("front", "transparent: {}\n")], &["payment"]);
    net.register(&["front", "payment"]);
    let registry = aftershock_core::wire::Registry {
        addresses: [("10.0.0.7:0".to_owned(), "stock".parse().unwrap())].into(),
        services: ["stock".parse().unwrap()].into(),
        ..Default::default()
    };
    net.tell("front", FromController::Registry(registry));
    let sidecar = net.sidecar("front");
    let at = |address: &str| address.parse().unwrap();
    for (door, name) in [
        (Door::Outbound(0), None),
        (Door::RedirectedOut(at("10.0.0.7:5432")), None),
        (Door::RedirectedOut(at("10.0.0.7:6432")), None),
        (Door::RedirectedOut(at("[fd00::9]:443")), Some("api.example")),
        (Door::Inbound(0), None),
        (Door::RedirectedIn(at("10.0.0.1:80")), Some("front")),
    ] {
        let link = sidecar.opened(door);
        sidecar.opaque(link, name);
        sidecar.unseen(link, name);
        sidecar.gone(link);
    }
    // Somebody only looked whether it is there.
    let link = sidecar.opened(Door::Outbound(0));
    sidecar.opaque(link, None);
    sidecar.gone(link);
    let counters = sidecar.counters.report();
    let told: Vec<_> =
        counters.unseen.iter().map(|one| (one.to.as_str(), one.server_name.as_deref(), one.connections)).collect();
    assert_eq!(told, [("payment", None, 1), ("stock", None, 2), ("[fd00::9]:443", Some("api.example"), 1)]);
    assert_eq!(counters.opaque, 7, "those of callers are counted, too");
}

fn counted_by(net: &mut Net) -> Ordinary {
    net.sidecar("front").counters.report().ordinary
}

#[test]
fn a_request_with_every_header_becomes_an_execution_of_the_round() {
    let mut net = armed(&[("x-canary", "yes"), ("x-region", "eu")], 1_000_000);
    let both = || Request::http("GET", "/").with("X-Canary", "yes").with("x-region", "eu");
    assert_eq!(token_of(&mut net, both()), ROUND);
    for request in [
        Request::http("GET", "/"),
        Request::http("GET", "/").with("x-canary", "yes"),
        Request::http("GET", "/").with("x-canary", "yes").with("x-region", "europe"),
        both().with("user-agent", "kube-probe/1.29"),
        Request { path: "/healthz".to_owned(), ..both() },
    ] {
        assert_eq!(token_of(&mut net, request.clone()), Token(0), "{request:?}");
    }
    let seen = net.come_in("front", both()).1.through();
    let again = net.come_in("front", both()).1.through();
    assert!(seen.get("traceparent").is_some(), "as any entry of the round");
    assert_ne!(seen.member().unwrap().execution, again.member().unwrap().execution);
    let call = net.call("front", "payment", Request::grpc("a.B/C").within(&seen));
    assert_eq!(call.seen.member().unwrap().token, ROUND);
    let inner =
        net.go_out("payment", "front", Request::http("GET", "/").with("x-canary", "yes").with("x-region", "eu"));
    let mark = net.come_in("front", inner.1.through()).1.through();
    assert_eq!(mark.member(), None, "an unassociated call is no entry");
}

#[test]
fn a_forged_member_is_removed_before_and_a_replay_is_never_tagged() {
    let mut net = armed(&[], 1_000_000);
    let forged = Member { execution: ExecutionId(9), call: aftershock_core::id::CallId(9), token: Token(0), check: 0 };
    let seen = net.come_in("front", Request::http("GET", "/").with("tracestate", &format!("aft={forged}"))).1.through();
    let member = seen.member().unwrap();
    assert_eq!(member.token, ROUND);
    assert_ne!(member.execution, ExecutionId(9));
    let sent = net.go_out("front", "front", Request::http("GET", "/").within(&seen)).1.through();
    net.come_in("front", sent.clone()).1.through();
    let replayed = net.come_in("front", sent).1.through();
    assert_eq!((replayed.member().unwrap().token, net.ignored("front", "replay")), (Token(0), 1));
}

#[test]
fn a_percentage_is_kept_and_zero_means_none() {
    for (per_million, expected) in [(0, 0..=0), (250_000, 850..=1_150), (1_000_000, 4_000..=4_000)] {
        let mut net = armed(&[], per_million);
        let tagged = (0..4_000).filter(|_| token_of(&mut net, Request::http("GET", "/")) == ROUND).count();
        assert!(expected.contains(&tagged), "{per_million}: {tagged} of 4000");
        assert_eq!(counted_by(&mut net).requests, 4_000 - tagged as u64, "what is tagged is not ordinary");
    }
}

#[test]
fn the_first_round_armed_that_takes_a_request_gets_it() {
    let mut net = armed(&[("x-canary", "yes")], 1_000_000);
    // A smaller number, so that order of arming and of tokens differ.
    let second = Token(7);
    net.arm_with(&[], &[], |arm| (arm.token, arm.tagging) = (second, tagging(&[], 1_000_000)));
    let canary = || Request::http("GET", "/").with("x-canary", "yes");
    assert_eq!(token_of(&mut net, canary()), ROUND);
    assert_eq!(token_of(&mut net, Request::http("GET", "/")), second);
    net.tell("front", FromController::Disarm { token: ROUND });
    assert_eq!(token_of(&mut net, canary()), second, "disarming ends tagging");
    net.tell("front", FromController::End { token: second });
    assert_eq!(token_of(&mut net, canary()), Token(0));
}

#[test]
fn tagging_ends_with_the_lease() {
    let mut net = armed(&[], 1_000_000);
    net.pass_time(Duration::from_secs(11));
    assert_eq!(token_of(&mut net, Request::http("GET", "/")), Token(0));
}

#[test]
fn a_rule_acts_on_what_is_tagged_and_on_nothing_else() {
    let mut net = Net::new(&["front"]);
    let rule = rule("front", Side::Callee, "front GET /", Occurrence::First, Phase::Request, Fault::Abort);
    net.arm_with(&[rule], &[], |arm| arm.tagging = tagging(&[("x-canary", "yes")], 1_000_000));
    let plain = net.come_in("front", Request::http("GET", "/")).1;
    assert!(matches!(plain, Passage::Through(_)));
    let hit = net.come_in("front", Request::http("GET", "/").with("x-canary", "yes")).1;
    assert!(matches!(hit, Passage::Made(_)), "{hit:?}");
    assert_eq!(counted_by(&mut net).errors, 0, "what we broke is not held against the system");
}

#[test]
fn entry_requests_of_no_round_are_counted_by_their_outcome_at_their_end() {
    let mut net = armed(&[("x-canary", "yes")], 1_000_000);
    let mut expected = Ordinary::default();
    let mut entry = |net: &mut Net, request: Request, end: &dyn Fn(&mut Net, &Leg), requests: u64, errors: u64| {
        let (leg, passage) = net.come_in("front", request);
        passage.through();
        assert_eq!(counted_by(net), expected, "not before its end");
        end(net, &leg);
        expected.requests += requests;
        expected.errors += errors;
        assert_eq!(counted_by(net), expected);
    };
    let answer = |response: Response| {
        move |net: &mut Net, leg: &Leg| {
            net.response(leg, response.clone()).through();
        }
    };
    let get = || Request::http("GET", "/");
    entry(&mut net, get(), &answer(Response::http(200)), 1, 0);
    entry(&mut net, get(), &answer(Response::http(503)), 1, 1);
    entry(&mut net, Request::grpc("a.B/C"), &answer(Response::grpc(0)), 1, 0);
    entry(&mut net, Request::grpc("a.B/C"), &answer(Response::grpc(14)), 1, 1);
    entry(&mut net, Request::grpc("a.B/C"), &answer(Response::trailers_only(5)), 1, 1);
    entry(&mut net, get(), &|net, leg| net.close(leg, Closed::ByUpstream), 1, 1);
    entry(&mut net, get(), &|net, leg| net.close(leg, Closed::ByApplication), 1, 0);
    entry(&mut net, get().with("user-agent", "kube-probe/1"), &answer(Response::http(503)), 0, 0);
    entry(&mut net, tagged(get()), &answer(Response::http(503)), 0, 0);
    entry(&mut net, get().with("x-canary", "yes"), &answer(Response::http(503)), 0, 0);
    // A call of another sidecar, associated or not, is no entry.
    for inner in [get(), get().within(&net.come_in("payment", get()).1.through())] {
        let sent = net.go_out("payment", "front", inner).1.through();
        entry(&mut net, sent, &answer(Response::http(500)), 0, 0);
    }
    assert_eq!(net.sidecar("payment").counters.report().ordinary, Ordinary::default(), "its entry is still open");
    assert_eq!(expected, Ordinary { requests: 7, errors: 4 });
}
