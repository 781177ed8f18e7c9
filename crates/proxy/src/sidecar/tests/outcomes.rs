//! Outcomes that are not what the status says (design §3.3): lists of statuses, and values in a JSON body.

use std::time::Duration;

use aftershock_core::event::{Event, EventKind, Outcome, OutcomeFilter};
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::plan::{Atom, Fault, Occurrence, Phase, Rule, Side, StreamPoint};
use aftershock_core::span::PassedBy;
use aftershock_core::wire::{Arm, FromController, FromSidecar};
use serde_json::json;

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const PAY: &str = "payment POST /pay";
const CHARGE: &str = "payment shop.Payment/Charge";

fn reading(value: serde_json::Value) -> OutcomeOverride {
    serde_json::from_value(value).unwrap()
}

fn by_body() -> OutcomeOverride {
    reading(json!({"api": PAY, "ok": [404], "body": {"pointer": "/state", "ok": ["paid"]}}))
}

struct Shop {
    net: Net,
    seen: Request,
}

const KINDS: [EventKind; 2] = [EventKind::ResponseSent, EventKind::ResponseReceived];

impl Shop {
    fn armed(rules: &[Rule], outcomes: &[OutcomeOverride]) -> Self {
        let mut net = Net::new(&["checkout", "payment"]);
        let of = |api: &'static str| {
            KINDS.into_iter().flat_map(move |kind| {
                [OutcomeFilter::Any, OutcomeFilter::Ok, OutcomeFilter::Error]
                    .map(|outcome| Event { outcome, ..event(kind, api) })
            })
        };
        let events: Vec<Event> = of(PAY).chain(of(CHARGE)).collect();
        net.arm_with(rules, &events, |arm| arm.outcomes = outcomes.to_vec());
        let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
        Shop { net, seen }
    }

    fn call(&mut self, request: Request) -> Dialogue {
        self.net.call("checkout", "payment", request.within(&self.seen))
    }

    /// What a service knows of the responses of `api`, sent and received: all, ok, error.
    fn counts(&mut self, at: &str, api: &str) -> [(u64, u64, u64); 2] {
        let execution = self.seen.member().unwrap().execution;
        let evidence = self.net.evidence(at, execution);
        KINDS.map(|kind| {
            let count = |outcome| evidence.count(Event { outcome, ..event(kind, api) }.id());
            (count(OutcomeFilter::Any), count(OutcomeFilter::Ok), count(OutcomeFilter::Error))
        })
    }

    fn outcomes(&mut self) -> Vec<Option<Outcome>> {
        ["payment", "checkout"].map(|service| self.net.spans(service).pop().unwrap().outcome).to_vec()
    }
}

#[test]
fn listed_statuses_say_how_a_call_ended_on_both_sides() {
    let http = reading(json!({"api": PAY, "ok": [404], "error": [202]}));
    let grpc = reading(json!({"api": CHARGE, "ok": [5], "error": [0]}));
    let pay = || Request::http("POST", "/pay");
    let charge = || Request::grpc("shop.Payment/Charge");
    for (request, response, expected) in [
        (pay(), Response::http(404), Outcome::Ok),
        (pay(), Response::http(202), Outcome::Error),
        (pay(), Response::http(200), Outcome::Ok),
        (pay(), Response::http(500), Outcome::Error),
        (charge(), Response::grpc(5), Outcome::Ok),
        (charge(), Response::trailers_only(5), Outcome::Ok),
        (charge(), Response::grpc(0), Outcome::Error),
        (charge(), Response::grpc(9), Outcome::Error),
        (charge(), Response { trailers: None, ..Response::grpc(0) }, Outcome::Error),
        (charge(), Response { status: 503, ..Response::trailers_only(5) }, Outcome::Error),
    ] {
        let mut shop = Shop::armed(&[], &[http.clone(), grpc.clone()]);
        let call = shop.call(request);
        shop.net.answer(&call, response.clone()).through();
        assert_eq!(shop.outcomes(), [Some(expected); 2], "{response:?}");
    }
}

#[test]
fn a_body_says_how_a_call_ended_and_both_sidecars_wait_for_it() {
    for (response, expected) in [
        (Response::http(200).with_body(r#"{"state": "paid"}"#), Outcome::Ok),
        (Response::http(200).with_body(r#"{"state": "declined"}"#), Outcome::Error),
        (Response::http(404).with_body(r#"{"state": "paid"}"#), Outcome::Ok),
        (Response::http(200).with_body("paid"), Outcome::Unknown),
        (Response { ends: true, ..Response::http(204) }, Outcome::Unknown),
        (Response::http(500).with_body(r#"{"state": "paid"}"#), Outcome::Error),
    ] {
        let mut shop = Shop::armed(&[], &[by_body()]);
        let call = shop.call(Request::http("POST", "/pay"));
        let sent = shop.net.response(&call.into, response.clone()).through();
        assert!(sent.has_hop() && sent.trailers.is_none(), "the head that left after the body told everything");
        let one = |outcome| u64::from(expected == outcome);
        let counted = (1, one(Outcome::Ok), one(Outcome::Error));
        assert_eq!(shop.counts("payment", PAY)[0], counted);
        let seen = shop.net.response(&call.out, sent).through();
        assert_eq!(seen, response);
        assert_eq!(shop.counts("checkout", PAY), [counted; 2], "{response:?}");
        assert_eq!(shop.outcomes(), [Some(expected); 2]);
        assert!(shop.net.all_spans().iter().all(|span| span.gaps.is_empty()));
    }
}

#[test]
fn a_fault_waits_for_the_outcome_in_the_body() {
    let mut fault = rule("checkout", Side::Caller, PAY, Occurrence::First, Phase::Response, Fault::Drop);
    fault.tfic.target.outcome = OutcomeFilter::Ok;
    let mut lost = fault.clone();
    (lost.tfic.target.k, lost.tfic.target.post_effect) = (Occurrence::Number(2), true);
    for rule in [fault, lost] {
        let mut shop = Shop::armed(&[rule], &[by_body()]);
        let call = shop.call(Request::http("POST", "/pay"));
        shop.net.answer(&call, Response::http(200).with_body(r#"{"state": "declined"}"#)).through();
        let call = shop.call(Request::http("POST", "/pay"));
        let passage = shop.net.answer(&call, Response::http(200).with_body(r#"{"state": "paid"}"#));
        assert_eq!((passage, shop.net.written(&call.out)), (Passage::Dropped, 0));
        assert_eq!(shop.counts("checkout", PAY), [(2, 1, 1), (1, 0, 1)]);
    }
}

#[test]
fn a_body_too_large_to_read_is_of_unknown_outcome_and_counted_at_its_end() {
    let mut any = rule("checkout", Side::Caller, PAY, Occurrence::Number(1), Phase::Response, Fault::Drop);
    for (outcome, why) in [(OutcomeFilter::Any, PassedBy::Size), (OutcomeFilter::Ok, PassedBy::Outcome)] {
        any.tfic.target.outcome = outcome;
        let mut shop = Shop::armed(std::slice::from_ref(&any), &[by_body()]);
        let call = shop.call(Request::http("POST", "/pay"));
        let large = Response::http(200).with_body(vec![b' '; crate::sidecar::streams::MAX_WITHHELD + 1]);
        let sent = shop.net.response(&call.into, large).through();
        assert!(sent.trailers.as_ref().is_some_and(|trailers| trailers.len() == 1), "told again where it was known");
        shop.net.response(&call.out, sent).through();
        assert_eq!(shop.counts("checkout", PAY), [(1, 0, 0); 2]);
        let span = shop.net.spans("checkout").pop().unwrap();
        assert_eq!((span.passes[0].k, span.passes[0].passed_by.clone()), (Some(1), Some(why)));
        assert!(span.gaps.is_empty());
    }
    // HTTP/1 has no place for trailers behind a length: what the callee saw of the outcome stays unknown.
    let mut shop = Shop::armed(&[], &[by_body()]);
    let call = shop.call(Request::http("POST", "/pay"));
    let large = Response::http(200).with_body(vec![b' '; crate::sidecar::streams::MAX_WITHHELD + 1]);
    let sent = Response { trailers: None, ..shop.net.response(&call.into, large).through() };
    assert!(sent.has_hop(), "the head told what was known then");
    shop.net.response(&call.out, sent).through();
    assert_eq!(shop.counts("checkout", PAY), [(0, 0, 0), (1, 0, 0)]);
    assert!(!shop.net.spans("checkout").pop().unwrap().gaps.is_empty());
}

#[test]
fn a_body_that_is_cut_short_is_an_error_and_no_pass() {
    let drop = rule("checkout", Side::Caller, PAY, Occurrence::Number(1), Phase::Response, Fault::Drop);
    let mut shop = Shop::armed(&[drop], &[by_body()]);
    let call = shop.call(Request::http("POST", "/pay"));
    shop.net.close(&call.out, Closed::ByUpstream);
    assert_eq!(shop.counts("checkout", PAY)[1], (1, 0, 1));
    assert!(shop.net.spans("checkout").pop().unwrap().passes.is_empty());
}

#[test]
fn only_executions_of_the_round_wait_for_their_bodies() {
    let mut shop = Shop::armed(&[], &[by_body()]);
    let (_, ordinary) = shop.net.come_in("checkout", Request::http("POST", "/buy"));
    let call = shop.net.call("checkout", "payment", Request::http("POST", "/pay").within(&ordinary.through()));
    // The network of the tests asserts that a head which goes on alone was not kept back.
    shop.net.response_head(&call.into, Response::http(200).with_body(r#"{"state": "declined"}"#));
    let sent = shop.net.response_rest(&call.into).through();
    shop.net.response_head(&call.out, sent);
    shop.net.response_rest(&call.out).through();
}

#[test]
fn what_cannot_be_read_or_done_is_refused_at_arming() {
    let mut inside = rule("checkout", Side::Caller, PAY, Occurrence::Number(1), Phase::Response, Fault::Drop);
    inside.tfic.target.at = Some(StreamPoint::Bytes(9));
    let mut shop = Shop::armed(&[], &[]);
    for (rules, outcome, says) in [
        (vec![inside], by_body(), "are kept back for their outcome, which is in the body"),
        (vec![], reading(json!({"api": PAY, "ok": [200], "error": [200]})), "200 is both"),
        (vec![], reading(json!({"api": CHARGE, "body": {"pointer": "/x", "ok": [1]}})), "gRPC"),
    ] {
        let token = aftershock_core::id::Token(5);
        let arm = Arm { rules, outcomes: vec![outcome], ..Arm::clean(token, Duration::from_secs(10)) };
        shop.net.tell("checkout", FromController::Arm(arm));
        let said = shop.net.said("checkout");
        let [FromSidecar::NotArmed { reason, .. }] = &said[..] else { panic!("{said:?}") };
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn a_guard_counts_what_the_body_said() {
    let mut fault = rule("checkout", Side::Caller, PAY, Occurrence::First, Phase::Request, Fault::Abort);
    let declined = Event { outcome: OutcomeFilter::Error, ..event(EventKind::ResponseReceived, PAY) };
    fault.tfic.guard.after = vec![Atom::new(declined, 1)];
    let mut shop = Shop::armed(&[fault], &[by_body()]);
    for (body, fires) in [(r#"{"state": "paid"}"#, false), (r#"{"state": "declined"}"#, true)] {
        let call = shop.call(Request::http("POST", "/pay"));
        shop.net.answer(&call, Response::http(200).with_body(body)).through();
        let (out, passage) =
            shop.net.go_out("checkout", "payment", Request::http("POST", "/pay").within(&shop.seen.clone()));
        assert_eq!(matches!(passage, Passage::Made(_)), fires);
        if !fires {
            shop.net.close(&out, Closed::ByApplication);
        }
    }
}

#[test]
fn a_kept_back_body_that_cannot_be_faulted_is_still_counted_once() {
    let mut fault = rule("checkout", Side::Caller, PAY, Occurrence::First, Phase::Response, Fault::Abort);
    fault.tfic.target.outcome = OutcomeFilter::Ok;
    let mut shop = Shop::armed(&[fault], &[by_body()]);
    let call = shop.call(Request::http("POST", "/pay"));
    let sent = shop.net.response(&call.into, Response::http(200).with_body(r#"{"state": "paid"}"#)).through();
    shop.net.refuse = Some(Refusal::Pipelined);
    shop.net.response(&call.out, sent).through();
    assert_eq!(shop.counts("checkout", PAY), [(1, 1, 0); 2]);
}
