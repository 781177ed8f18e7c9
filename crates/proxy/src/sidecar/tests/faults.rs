//! The table of design §3.4, row by row, for HTTP and gRPC, and the order of the decision (§3.3).

use std::time::Duration;

use aftershock_core::event::{EventKind, Outcome, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, MaxInjections, Occurrence, Phase, Rule, Side, StreamPoint, Unlimited};
use aftershock_core::span::{CallSpan, Ending, PassedBy};
use aftershock_core::wire::{FromController, FromSidecar, OpenState};

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const CHARGE: &str = "payment shop.Payment/Charge";
const PAY: &str = "payment POST /pay";
const BUY: &str = "checkout POST /buy";
const SENT: EventKind = EventKind::RequestSent;
const RECEIVED: EventKind = EventKind::ResponseReceived;
const DELAY: Duration = Duration::from_millis(100);

/// The two protocols a callee can speak, with their Api.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http,
    Grpc,
}

const BOTH: [Speaks; 2] = [Speaks::Http, Speaks::Grpc];

impl Speaks {
    fn api(self) -> &'static str {
        match self {
            Speaks::Http => PAY,
            Speaks::Grpc => CHARGE,
        }
    }

    fn request(self) -> Request {
        match self {
            Speaks::Http => Request::http("POST", "/pay"),
            Speaks::Grpc => Request::grpc("shop.Payment/Charge"),
        }
    }

    fn ok(self) -> Response {
        match self {
            Speaks::Http => Response::http(200),
            Speaks::Grpc => Response::grpc(0),
        }
    }

    fn failed(self) -> Response {
        match self {
            Speaks::Http => Response::http(500),
            Speaks::Grpc => Response::grpc(9),
        }
    }
}

fn delay() -> Fault {
    Fault::Delay(DELAY.into())
}

/// The checkout with one open entry, whose application sends payments.
struct Shop {
    net: Net,
    seen: Request,
    speaks: Speaks,
}

impl Shop {
    fn armed(speaks: Speaks, rules: &[Rule]) -> Self {
        Shop::armed_with(speaks, rules, |_| {})
    }

    fn armed_with(speaks: Speaks, rules: &[Rule], change: impl Fn(&mut aftershock_core::wire::Arm)) -> Self {
        let mut net = Net::new(&["checkout", "payment"]);
        let of = |kind, outcome| aftershock_core::event::Event { outcome, ..event(kind, speaks.api()) };
        let further = [
            of(SENT, OutcomeFilter::Any),
            of(RECEIVED, OutcomeFilter::Any),
            of(RECEIVED, OutcomeFilter::Ok),
            of(RECEIVED, OutcomeFilter::Error),
        ];
        net.arm_with(rules, &further, change);
        let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
        Shop { net, seen, speaks }
    }

    fn send(&mut self) -> (Leg, Passage<Request>) {
        self.net.go_out("checkout", "payment", self.speaks.request().within(&self.seen))
    }

    #[track_caller]
    fn call(&mut self) -> Dialogue {
        self.net.call("checkout", "payment", self.speaks.request().within(&self.seen))
    }

    /// How often the checkout's sidecar counted (request-sent, response-received ok, … error).
    fn counts(&mut self) -> (u64, u64, u64) {
        let evidence = self.net.evidence("checkout", self.seen.member().unwrap().execution);
        let count = |kind, outcome| {
            let event = aftershock_core::event::Event { outcome, ..event(kind, self.speaks.api()) };
            evidence.count(event.id())
        };
        let all = count(RECEIVED, OutcomeFilter::Any);
        let (ok, error) = (count(RECEIVED, OutcomeFilter::Ok), count(RECEIVED, OutcomeFilter::Error));
        assert_eq!(all, ok + error);
        (count(SENT, OutcomeFilter::Any), ok, error)
    }

    /// The one span of a payment at the checkout's sidecar.
    #[track_caller]
    fn span(&mut self) -> CallSpan {
        let spans = self.net.spans("checkout");
        assert_eq!(spans.len(), 1, "{spans:#?}");
        spans.into_iter().next().unwrap()
    }

    fn fired(&mut self) -> usize {
        let said = self.net.said("checkout");
        said.iter().filter(|word| matches!(word, FromSidecar::Fired { .. })).count()
    }
}

fn at_caller(speaks: Speaks, phase: Phase, fault: Fault) -> Rule {
    rule("checkout", Side::Caller, speaks.api(), Occurrence::Number(1), phase, fault)
}

#[test]
fn a_delayed_request_is_counted_at_arrival_and_sent_after_the_delay() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Request, delay())]);
        let (out, passage) = shop.send();
        assert_eq!(passage, Passage::Kept);
        assert_eq!((shop.counts(), shop.fired()), ((1, 0, 0), 1));
        shop.net.pass_time(DELAY - Duration::from_millis(1));
        assert!(shop.net.resumed().is_empty());
        shop.net.pass_time(Duration::from_millis(1));
        let resumed = shop.net.resumed();
        let [(leg, Resumed::Request(passage))] = &resumed[..] else { panic!("{resumed:?}") };
        assert_eq!(*leg, out);
        let (into, seen) = shop.net.come_in("payment", passage.clone().through());
        seen.through();
        let sent = shop.net.response(&into, speaks.ok()).through();
        shop.net.response(&out, sent).through();
        assert_eq!(shop.counts(), (1, 1, 0), "the response is counted as it comes");
        let span = shop.span();
        assert_eq!(span.injection.unwrap().fault, "delay 100ms");
        assert!(span.request.clock < span.response.unwrap().clock);
    }
}

#[test]
fn a_delayed_request_whose_caller_goes_is_never_sent_and_still_injected() {
    let mut shop = Shop::armed(Speaks::Grpc, &[at_caller(Speaks::Grpc, Phase::Request, delay())]);
    let (out, _) = shop.send();
    shop.net.close(&out, Closed::ByApplication);
    shop.net.pass_time(DELAY);
    assert!(shop.net.resumed().is_empty());
    assert_eq!(shop.counts(), (1, 0, 0));
    let span = shop.span();
    assert_eq!((span.ending, span.response, span.evidence_went), (Ending::ApplicationGone, None, false));
    assert!(span.injection.is_some());
}

#[test]
fn an_answered_or_reset_request_goes_nowhere_and_counts_as_error() {
    for speaks in BOTH {
        for fault in [Fault::Abort, Fault::Error(Default::default()), Fault::Reset(Default::default())] {
            let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Request, fault.clone())]);
            let (_, passage) = shop.send();
            let made = match &fault {
                Fault::Reset(_) => {
                    assert_eq!(passage, Passage::Reset);
                    None
                }
                _ => {
                    let Passage::Made(made) = passage else { panic!("{fault}: {passage:?}") };
                    Some(made)
                }
            };
            assert_eq!((shop.counts(), shop.fired()), ((1, 0, 1), 1), "{speaks:?} {fault}");
            let span = shop.span();
            assert_eq!((span.made, span.outcome), (made.is_some(), Some(Outcome::Error)));
            assert_eq!(span.http_status, made.as_ref().map(|made| made.status));
            assert_eq!(span.grpc_status.is_some(), made.is_some() && speaks == Speaks::Grpc);
            assert!(span.request.clock < span.response.unwrap().clock && !span.evidence_went);
            let answer = (speaks, &fault, made.map(|made| made.status));
            match answer {
                (Speaks::Http, Fault::Abort, status) => assert_eq!(status, Some(503)),
                (Speaks::Http, Fault::Error(_), status) => assert_eq!(status, Some(500)),
                (Speaks::Grpc, Fault::Abort, status) => {
                    assert_eq!((status, span.grpc_status), (Some(200), Some(14)));
                }
                (Speaks::Grpc, Fault::Error(_), status) => {
                    assert_eq!((status, span.grpc_status), (Some(200), Some(13)));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_dropped_request_has_no_response_and_is_closed_at_disarm() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Request, Fault::Drop)]);
        let (out, passage) = shop.send();
        assert_eq!(passage, Passage::Dropped);
        assert_eq!((shop.counts(), shop.fired()), ((1, 0, 0), 1));
        shop.net.tell("checkout", FromController::Disarm { token: ROUND });
        assert_eq!(shop.net.resumed(), [(out, Resumed::Closed)]);
        let span = shop.span();
        assert_eq!((span.ending, span.response, span.outcome), (Ending::Faulted, None, None));
        assert_eq!(shop.counts(), (1, 0, 0));
    }
}

#[test]
fn a_delayed_response_is_counted_at_release() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Response, delay())]);
        let call = shop.call();
        assert_eq!(shop.net.answer(&call, speaks.ok()), Passage::Kept);
        assert_eq!(shop.counts(), (1, 0, 0));
        shop.net.pass_time(DELAY);
        let resumed = shop.net.resumed();
        let [(_, Resumed::Response(passage))] = &resumed[..] else { panic!("{resumed:?}") };
        assert!(!passage.clone().through().has_hop());
        assert_eq!(shop.counts(), (1, 1, 0));
        let span = shop.span();
        assert_eq!(span.outcome, Some(Outcome::Ok));
        assert!(span.injection.unwrap().decided < span.response.unwrap().clock);
    }
}

#[test]
fn a_delayed_response_whose_caller_left_first_is_no_event_and_still_injected() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Response, delay())]);
        let call = shop.call();
        shop.net.answer(&call, speaks.ok());
        shop.net.close(&call.out, Closed::ByApplication);
        shop.net.pass_time(DELAY);
        assert!(shop.net.resumed().is_empty());
        assert_eq!(shop.counts(), (1, 0, 0));
        let span = shop.span();
        assert_eq!((span.response, span.outcome, span.http_status), (None, None, Some(200)));
        assert!(span.injection.is_some() && span.evidence_came);
    }
}

#[test]
fn an_answered_or_reset_response_counts_as_error_though_the_callee_said_ok() {
    for speaks in BOTH {
        for fault in [Fault::Abort, Fault::Error(Default::default()), Fault::Reset(Default::default())] {
            let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Response, fault.clone())]);
            let call = shop.call();
            match (shop.net.answer(&call, speaks.ok()), &fault) {
                (Passage::Reset, Fault::Reset(_)) => {}
                (Passage::Made(made), _) => assert_eq!(made.status == 200, speaks == Speaks::Grpc),
                (other, fault) => panic!("{fault}: {other:?}"),
            }
            assert_eq!((shop.counts(), shop.fired()), ((1, 0, 1), 1), "{speaks:?} {fault}");
            let span = shop.span();
            assert_eq!((span.outcome, span.made), (Some(Outcome::Error), fault != Fault::Reset(Default::default())));
            assert!(span.evidence_came && span.evidence_went);
        }
    }
}

#[test]
fn a_dropped_response_is_no_event_and_what_it_brought_is_known() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[at_caller(speaks, Phase::Response, Fault::Drop)]);
        let call = shop.call();
        assert_eq!(shop.net.answer(&call, speaks.ok()), Passage::Dropped);
        assert_eq!((shop.counts(), shop.fired()), ((1, 0, 0), 1));
        let open = open_states(&mut shop.net);
        assert_eq!(open, [OpenState::Running, OpenState::Dropped]);
        shop.net.close(&call.out, Closed::ByApplication);
        let span = shop.span();
        assert_eq!((span.ending, span.response), (Ending::ApplicationGone, None));
        assert!(span.evidence_came, "the callee's evidence is merged before the decision");
    }
}

/// The states of the calls open at the checkout's sidecar, its entry first.
fn open_states(net: &mut Net) -> Vec<OpenState> {
    net.tell("checkout", FromController::Watch { token: ROUND });
    let said = net.said("checkout");
    let open = said.iter().find_map(|word| match word {
        FromSidecar::Activity { open, .. } => Some(open),
        _ => None,
    });
    let mut open = open.unwrap().clone();
    open.sort_by_key(|call| call.side == Side::Caller);
    open.iter().map(|call| call.state).collect()
}

#[test]
fn without_a_fault_a_caller_that_gives_up_leaves_no_response_event() {
    for speaks in BOTH {
        let mut shop = Shop::armed(speaks, &[]);
        let call = shop.call();
        shop.net.close(&call.out, Closed::ByApplication);
        assert_eq!(shop.counts(), (1, 0, 0));
        assert_eq!((shop.span().ending, shop.fired()), (Ending::ApplicationGone, 0));
    }
}

#[test]
fn without_a_fault_an_upstream_that_dies_is_an_error_and_no_pass() {
    for speaks in BOTH {
        let second = rule("checkout", Side::Caller, speaks.api(), Occurrence::Number(1), Phase::Response, Fault::Drop);
        let mut shop = Shop::armed(speaks, &[second]);
        let (out, _) = shop.send();
        shop.net.close(&out, Closed::ByUpstream);
        assert_eq!(shop.counts(), (1, 0, 1));
        let span = shop.span();
        assert_eq!((span.ending, span.outcome, span.http_status), (Ending::UpstreamFailed, Some(Outcome::Error), None));
        assert!(span.passes.is_empty());
        let call = shop.call();
        assert_eq!(shop.net.answer(&call, speaks.ok()), Passage::Dropped, "so the next answer is number 1");
    }
}

// ── outcomes, post-effect, guards ───────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_outcome_does_not_enter_the_number_but_must_match() {
    for speaks in BOTH {
        let mut fault = at_caller(speaks, Phase::Response, Fault::Drop);
        fault.tfic.target.k = Occurrence::Number(2);
        fault.tfic.target.outcome = OutcomeFilter::Ok;
        let mut shop = Shop::armed(speaks, &[fault.clone()]);
        let call = shop.call();
        shop.net.answer(&call, speaks.failed()).through();
        let call = shop.call();
        assert_eq!(
            shop.net.answer(&call, speaks.ok()),
            Passage::Dropped,
            "{speaks:?}: number 2, although the first failed"
        );
        let mut shop = Shop::armed(speaks, &[fault]);
        for response in [speaks.ok(), speaks.failed(), speaks.ok()] {
            let call = shop.call();
            shop.net.answer(&call, response).through();
        }
        let passes: Vec<_> = shop.net.spans("checkout").into_iter().flat_map(|span| span.passes).collect();
        let why: Vec<_> = passes.iter().map(|pass| (pass.k, pass.passed_by.clone().unwrap())).collect();
        assert_eq!(why, [(Some(1), PassedBy::Number), (Some(2), PassedBy::Outcome), (Some(3), PassedBy::Number)]);
    }
}

#[test]
fn post_effect_asks_the_message_and_the_callees_sidecar() {
    for speaks in BOTH {
        let mut fault = at_caller(speaks, Phase::Response, Fault::Drop);
        fault.tfic.target.post_effect = true;
        // (what the caller's sidecar gets, fires)
        for (ours, hop, fires) in
            [(speaks.ok(), true, true), (speaks.failed(), true, false), (speaks.ok(), false, false)]
        {
            let mut shop = Shop::armed(speaks, &[fault.clone()]);
            let call = shop.call();
            let sent = shop.net.response(&call.into, ours).through();
            let sent = if hop { sent } else { sent.without_hop() };
            let passage = shop.net.response(&call.out, sent);
            assert_eq!(passage == Passage::Dropped, fires, "{speaks:?} {hop}");
            if !fires {
                assert_eq!(shop.span().passes[0].passed_by, Some(PassedBy::Outcome));
            }
        }
        // A proxy between them answers 200 in place of the callee's error.
        let mut shop = Shop::armed(speaks, &[fault]);
        let call = shop.call();
        let mut sent = shop.net.response(&call.into, speaks.failed()).through();
        sent.status = 200;
        for (name, value) in sent.trailers.iter_mut().flatten() {
            if name == "grpc-status" {
                *value = "0".into();
            }
        }
        shop.net.response(&call.out, sent).through();
    }
}

#[test]
fn a_trailers_only_answer_is_decided_at_its_head() {
    let mut fault = at_caller(Speaks::Grpc, Phase::Response, Fault::Drop);
    fault.tfic.target.outcome = OutcomeFilter::Error;
    let mut shop = Shop::armed(Speaks::Grpc, &[fault]);
    let call = shop.call();
    let sent = shop.net.response(&call.into, Response::trailers_only(14)).through();
    assert!(sent.has_hop() && sent.ends);
    assert_eq!(shop.net.response(&call.out, sent), Passage::Dropped);
    assert_eq!(shop.counts(), (1, 0, 0));
}

#[test]
fn the_decision_sees_the_evidence_before_the_message_is_counted() {
    for speaks in BOTH {
        let mut fault = at_caller(speaks, Phase::Request, Fault::Abort);
        fault.tfic.target.k = Occurrence::First;
        fault.tfic.guard.after = vec![Atom::new(event(SENT, speaks.api()), 2)];
        let mut shop = Shop::armed(speaks, &[fault]);
        for _ in 0..2 {
            shop.send().1.through();
        }
        assert!(matches!(shop.send().1, Passage::Made(_)), "the third is the first that two precede");
        let said = shop.net.said("checkout");
        assert!(said.iter().any(|word| matches!(word, FromSidecar::Fired { rule: 0, .. })));
    }
}

#[test]
fn what_a_message_brings_counts_for_its_own_decision() {
    let mut fault = at_caller(Speaks::Grpc, Phase::Response, Fault::Drop);
    fault.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseSent, CHARGE), 1)];
    let mut shop = Shop::armed(Speaks::Grpc, &[fault]);
    let call = shop.call();
    assert_eq!(shop.net.answer(&call, Response::grpc(0)), Passage::Dropped);
}

#[test]
fn a_false_guard_is_told_from_one_that_is_unknown() {
    let mut fault = at_caller(Speaks::Http, Phase::Response, Fault::Drop);
    fault.tfic.target.k = Occurrence::First;
    fault.tfic.guard.after =
        vec![Atom::new(event(SENT, PAY), 1), Atom::new(event(RECEIVED, PAY), 2), Atom::new(event(SENT, PAY), 9)];
    let mut shop = Shop::armed(Speaks::Http, &[fault]);
    let call = shop.call();
    shop.net.answer(&call, Response::http(200)).through();
    assert_eq!(shop.span().passes[0].passed_by, Some(PassedBy::GuardFalse(vec![1, 2])));
    let call = shop.call();
    let sent = shop.net.response(&call.into, Response::http(200)).through();
    shop.net.response(&call.out, sent.without_hop()).through();
    let span = shop.span();
    assert_eq!(span.passes[0].passed_by, Some(PassedBy::GuardUnknown(vec![1, 2])));
    assert!(!span.gaps.is_empty());
}

// ── how often ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_rule_fires_once_in_an_execution_and_not_again_for_the_clients_retry() {
    let mut fault = at_caller(Speaks::Http, Phase::Request, Fault::Abort);
    fault.tfic.target.k = Occurrence::First;
    for (limit, expected) in [
        (MaxInjections::Limited(1), vec![true, false, false, false]),
        (MaxInjections::Limited(2), vec![true, false, true, false]),
        (MaxInjections::Unlimited(Unlimited::Unlimited), vec![true, false, true, false]),
    ] {
        fault.tfic.max_injections = limit;
        let mut shop = Shop::armed(Speaks::Http, &[fault.clone()]);
        let mut fired = Vec::new();
        for _ in 0..2 {
            for _ in 0..2 {
                fired.push(matches!(shop.send().1, Passage::Made(_)));
            }
            let (_, retry) = shop.net.come_in("checkout", tagged(Request::http("POST", "/buy")));
            shop.seen = retry.through();
        }
        assert_eq!(fired, expected, "{limit:?}");
    }
}

#[test]
fn only_executions_of_the_round_are_faulted() {
    let mut fault = at_caller(Speaks::Http, Phase::Request, Fault::Abort);
    fault.tfic.target.k = Occurrence::First;
    let mut shop = Shop::armed(Speaks::Http, &[fault]);
    let (_, ordinary) = shop.net.come_in("checkout", Request::http("POST", "/buy"));
    let ordinary = ordinary.through();
    for _ in 0..3 {
        shop.net.go_out("checkout", "payment", Request::http("POST", "/pay").within(&ordinary)).1.through();
    }
    shop.net.go_out("checkout", "payment", Request::http("POST", "/pay")).1.through();
    assert!(matches!(shop.send().1, Passage::Made(_)));
}

#[test]
fn one_fault_acts_on_a_call_and_every_rule_numbers_its_passes() {
    let mut first = at_caller(Speaks::Http, Phase::Request, delay());
    first.tfic.target.k = Occurrence::Number(2);
    let mut second = at_caller(Speaks::Http, Phase::Request, Fault::Abort);
    (second.index, second.tfic.target.k) = (1, Occurrence::First);
    let mut third = second.clone();
    third.index = 2;
    let mut shop = Shop::armed(Speaks::Http, &[first, second, third]);
    assert!(matches!(shop.send().1, Passage::Made(_)));
    let span = shop.span();
    assert_eq!(span.injection.unwrap().rule, 1);
    let passes: Vec<_> = span.passes.into_iter().map(|pass| (pass.rule, pass.k, pass.passed_by)).collect();
    assert_eq!(passes, [(0, Some(1), Some(PassedBy::Number)), (1, Some(1), None), (2, Some(1), Some(PassedBy::Spent))]);
    assert_eq!(shop.send().1, Passage::Kept, "the other rule's time comes");
}

#[test]
fn the_k_th_of_fifty_parallel_calls_is_faulted_and_no_other() {
    for k in [1, 3, 50] {
        for speaks in BOTH {
            let mut fault = at_caller(speaks, Phase::Response, Fault::Drop);
            fault.tfic.target.k = Occurrence::Number(k);
            let mut shop = Shop::armed(speaks, &[fault]);
            let calls: Vec<_> = (0..50).map(|_| shop.call()).collect();
            // They come back in an order of their own.
            for (n, index) in (0..50).map(|n| (n, (n * 7) % 50)).collect::<Vec<_>>() {
                let passage = shop.net.answer(&calls[index], speaks.ok());
                assert_eq!(passage == Passage::Dropped, n + 1 == k as usize, "{speaks:?} k = {k}, answer {}", n + 1);
            }
        }
    }
}

// ── entry Apis, streams, refusals ───────────────────────────────────────────────────────────────────────────────────

#[test]
fn at_an_entry_the_callees_sidecar_acts_on_request_received_and_response_sent() {
    let received = event(EventKind::RequestReceived, BUY);
    let answered = event(EventKind::ResponseSent, BUY);
    let at_entry = |phase, fault| rule("checkout", Side::Callee, BUY, Occurrence::Number(1), phase, fault);
    let count = |net: &mut Net, seen: &Request, event: &aftershock_core::event::Event| {
        net.evidence("checkout", seen.member().unwrap().execution).count(event.id())
    };
    let mut net = Net::new(&["checkout", "front"]);
    net.arm(&[at_entry(Phase::Response, Fault::Drop)], &[received.clone(), answered.clone()]);
    let (leg, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    let seen = passage.through();
    assert_eq!(net.response(&leg, Response::http(200)), Passage::Dropped);
    assert_eq!((count(&mut net, &seen, &received), count(&mut net, &seen, &answered)), (1, 0));
    // Calls with a caller are passes there, not here.
    net.arm(&[at_entry(Phase::Request, Fault::Abort)], &[]);
    let (_, passage) = net.come_in("front", tagged(Request::http("GET", "/")));
    let inner = passage.through();
    net.call("front", "checkout", Request::http("POST", "/buy").within(&inner));
    let (_, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    assert!(matches!(passage, Passage::Made(made) if made.status == 503));
}

#[test]
fn post_effect_at_an_entry_is_the_outcome_at_hand() {
    for (status, fires) in [(200, true), (503, false)] {
        let mut fault = rule("checkout", Side::Callee, BUY, Occurrence::Number(1), Phase::Response, Fault::Drop);
        fault.tfic.target.post_effect = true;
        let mut net = Net::new(&["checkout"]);
        net.arm(&[fault], &[]);
        let (leg, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
        passage.through();
        assert_eq!(net.response(&leg, Response::http(status)) == Passage::Dropped, fires);
    }
}

#[test]
fn at_the_head_a_streams_fault_does_not_wait_for_its_end() {
    let mut fault = at_caller(Speaks::Grpc, Phase::Response, Fault::Reset(Default::default()));
    fault.tfic.target.at = Some(StreamPoint::Head);
    let mut shop = Shop::armed(Speaks::Grpc, &[fault]);
    let call = shop.call();
    assert_eq!(shop.net.answer(&call, Response::grpc(0)), Passage::Reset);
    let span = shop.span();
    assert_eq!((span.passes.len(), span.outcome, span.grpc_status), (1, Some(Outcome::Error), None));
}

#[test]
fn what_this_sidecar_cannot_do_is_refused_at_arming() {
    let mut shop = Shop::armed(Speaks::Http, &[]);
    let mut streamed = at_caller(Speaks::Http, Phase::Response, Fault::Abort);
    streamed.tfic.target.at = Some(StreamPoint::Bytes(2));
    let foreign = rule("payment", Side::Callee, CHARGE, Occurrence::First, Phase::Request, Fault::Drop);
    let smuggled = at_caller(
        Speaks::Http,
        Phase::Request,
        Fault::Error(aftershock_core::plan::ErrorAnswer {
            headers: [("x".to_owned(), "a\r\nset-cookie: b".to_owned())].into(),
            ..Default::default()
        }),
    );
    let nothing = at_caller(Speaks::Http, Phase::Request, Fault::Release);
    for (bad, says) in [
        (streamed, "`abort` cannot take it back"),
        (foreign, "the sidecar of payment"),
        (smuggled, "\"x\""),
        (nothing, "has no `hold`"),
    ] {
        let arm = aftershock_core::wire::Arm {
            rules: vec![bad],
            ..aftershock_core::wire::Arm::clean(aftershock_core::id::Token(5), Duration::from_secs(10))
        };
        shop.net.tell("checkout", FromController::Arm(arm));
        let said = shop.net.said("checkout");
        let [FromSidecar::NotArmed { reason, .. }] = &said[..] else { panic!("{said:?}") };
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn an_act_that_the_editor_refuses_gives_the_shot_back_and_counts_what_really_came() {
    for speaks in BOTH {
        for fault in [Fault::Drop, Fault::Abort, Fault::Reset(Default::default())] {
            let mut fault = at_caller(speaks, Phase::Response, fault);
            fault.tfic.target.k = Occurrence::First;
            let mut shop = Shop::armed(speaks, &[fault]);
            let call = shop.call();
            let sent = shop.net.response(&call.into, speaks.ok()).through();
            shop.net.refuse = Some(Refusal::Pipelined);
            shop.net.response(&call.out, sent).through();
            assert_eq!((shop.counts(), shop.fired()), ((1, 1, 0), 0));
            let span = shop.span();
            assert_eq!((span.injection, span.made, span.outcome), (None, false, Some(Outcome::Ok)));
            assert_eq!(span.passes[0].passed_by, Some(PassedBy::Pipelined));
            let call = shop.call();
            assert!(!matches!(shop.net.answer(&call, speaks.ok()), Passage::Through(_)), "the shot is still there");
        }
    }
}

#[test]
fn a_request_that_can_no_longer_be_answered_is_sent_unfaulted() {
    let mut shop = Shop::armed(Speaks::Http, &[at_caller(Speaks::Http, Phase::Request, Fault::Abort)]);
    shop.net.refuse = Some(Refusal::TooLate);
    let (out, passage) = shop.send();
    passage.through();
    shop.net.close(&out, Closed::ByUpstream);
    assert_eq!(shop.counts(), (1, 0, 1));
    assert_eq!(shop.span().passes[0].passed_by, Some(PassedBy::CallerGone));
}

#[test]
fn a_response_too_large_to_keep_back_is_numbered_and_cannot_be_faulted() {
    let mut fault = at_caller(Speaks::Grpc, Phase::Response, Fault::Drop);
    fault.tfic.target.k = Occurrence::Number(2);
    let mut shop = Shop::armed(Speaks::Grpc, &[fault]);
    let call = shop.call();
    shop.net.answer(&call, Response::grpc(0)).through();
    let call = shop.call();
    let sent = shop.net.response(&call.into, Response::grpc(0)).through();
    shop.net.refuse = Some(Refusal::Size);
    let seen = shop.net.response(&call.out, sent).through();
    assert!(!seen.has_hop());
    let spans = shop.net.spans("checkout");
    assert_eq!(spans[1].passes[0].passed_by, Some(PassedBy::Size));
    assert_eq!((spans[1].passes[0].k, shop.counts()), (Some(2), (2, 2, 0)));
}

#[test]
fn a_parked_place_that_is_not_there_lets_the_message_pass() {
    let mut fault = at_caller(Speaks::Http, Phase::Request, delay());
    (fault.tfic.target.k, fault.tfic.max_injections) =
        (Occurrence::First, MaxInjections::Unlimited(Unlimited::Unlimited));
    let mut shop = Shop::armed_with(Speaks::Http, &[fault], |arm| arm.max_parked = 1);
    assert_eq!(shop.send().1, Passage::Kept);
    let (_, retry) = shop.net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    shop.seen = retry.through();
    let (out, passage) = shop.send();
    passage.through();
    shop.net.close(&out, Closed::ByApplication);
    assert_eq!(shop.span().passes[0].passed_by, Some(PassedBy::ParkedLimit));
    shop.net.pass_time(DELAY);
    assert_eq!(shop.send().1, Passage::Kept, "the place was given back");
}

#[test]
fn evidence_that_grew_after_the_head_travels_in_the_trailers() {
    // Between its head and its end the callee makes a call of its own.
    let noted = event(SENT, "ledger POST /note");
    for grows in [true, false] {
        let mut net = Net::new(&["checkout", "payment", "ledger"]);
        net.arm(&[], std::slice::from_ref(&noted));
        let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
        let call = net.call("checkout", "payment", Request::http("POST", "/pay").within(&seen));
        net.response_head(&call.into, Response::http(200));
        if grows {
            net.go_out("payment", "ledger", Request::http("POST", "/note").within(&call.seen)).1.through();
        }
        let sent = net.response_rest(&call.into).through();
        assert_eq!(sent.trailers.is_some(), grows, "a message that need not carry more stays as it is");
        let seen_by_app = net.response(&call.out, sent).through();
        assert!(!seen_by_app.has_hop());
        let execution = seen.member().unwrap().execution;
        assert_eq!(net.evidence("checkout", execution).count(noted.id()), u64::from(grows));
    }
}

#[test]
fn a_detached_call_is_a_target_only_on_request() {
    let fault = rule("checkout", Side::Caller, PAY, Occurrence::First, Phase::Request, Fault::Abort);
    for (config, fires) in [("", false), ("allow_detached: true\n", true)] {
        let mut net = Net::configured(&[("checkout", config), ("payment", "")], &["payment"]);
        net.register(&["checkout", "payment"]);
        net.arm(std::slice::from_ref(&fault), &[]);
        let (leg, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
        let seen = passage.through();
        net.response(&leg, Response::http(202)).through();
        let (_, passage) = net.go_out("checkout", "payment", Request::http("POST", "/pay").within(&seen));
        assert_eq!(matches!(passage, Passage::Made(_)), fires);
    }
}
