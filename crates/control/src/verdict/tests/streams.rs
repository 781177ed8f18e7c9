//! Faults inside a stream (`at:`): passes are numbered at marks that are no events of the record.

use aftershock_core::plan::StreamPoint;

use super::*;

/// Three streams one beside the other: all requests first, the trailers last. Each has two messages.
fn streams(point: StreamPoint, k: Occurrence) -> Round {
    let mut spans = vec![span(Side::Callee, "front", None, ENTRY, 1, (1, 20))];
    for (i, id) in (2..=4).enumerate() {
        let i = i as u64;
        spans.extend(call(id, 1, "front", CHARGE, [2 + i, 3 + i, 10 + i, 11 + i]));
    }
    let mut round = Round::new(tfic(CHARGE, k, Phase::Response), spans);
    round.plan.faults[0].target.at = Some(point);
    round.plan.faults[0].fault = Fault::Reset(Default::default());
    round.armed.insert(observer("front"), "front".parse().unwrap());
    for id in 2..=4 {
        round.at(Side::Caller, id).messages = Some(2);
    }
    round
}

impl Round {
    fn mark(mut self, call: u64, k: u32, clock: u64, passed_by: Option<PassedBy>) -> Self {
        let hit = passed_by.is_none();
        let span = self.at(Side::Caller, call);
        span.passes.push(Pass { rule: 0, k: Some(k), clock, passed_by });
        if hit {
            let fault = "reset".to_owned();
            span.injection = Some(Injection { rule: 0, k, decided: clock, held: false, fault });
            (span.response, span.outcome, span.ending) = (None, None, Ending::Faulted);
            (span.grpc_status, span.evidence_came) = (None, false);
            let server = self.at(Side::Callee, call);
            (server.response, server.outcome, server.evidence_went) = (None, None, false);
        }
        self
    }
}

const MARK: StreamPoint = StreamPoint::Message(2);

#[test]
fn marks_are_numbered_by_themselves_and_not_by_the_order_of_trailers() {
    // Call 4 reaches its mark first, and its trailers come last. No event lies between the marks: one clock.
    let round = streams(MARK, Occurrence::Number(2));
    let round = round.mark(4, 1, 7, Some(PassedBy::Number)).mark(2, 2, 7, None).mark(3, 3, 7, Some(PassedBy::Spent));
    assert_eq!(round.judged().1, Verdict::Injected, "{:?}", round.judged());
    let wrong = streams(MARK, Occurrence::Number(2));
    let wrong = wrong.mark(4, 1, 7, Some(PassedBy::Number)).mark(2, 3, 8, Some(PassedBy::Number)).mark(3, 2, 9, None);
    wrong.is(Verdict::Premature, &["it acted on pass 2 by its sidecar's count, but 2 came before it there"]);
}

#[test]
fn a_stream_that_did_not_reach_its_mark_is_no_pass() {
    let mut round = streams(StreamPoint::Message(3), Occurrence::Number(1));
    round.is(Verdict::Unreached, &["no response of payment shop.Payment/Charge was seen"]);
    round.at(Side::Caller, 3).messages = Some(3);
    round.is(
        Verdict::Incomplete,
        &["no rule looked at the response of payment shop.Payment/Charge at front, although the instance was armed"],
    );
    // A byte mark leaves no count: an armed instance would have recorded a pass, another may have let it go.
    let mut bytes = streams(StreamPoint::Bytes(100), Occurrence::Number(1));
    assert_eq!(bytes.judged().1, Verdict::Unreached);
    bytes.armed.clear();
    assert_eq!(bytes.judged().1, Verdict::Incomplete);
    // No head came: nothing was let go.
    for id in 2..=4 {
        bytes.at(Side::Caller, id).http_status = None;
    }
    assert_eq!(bytes.judged().1, Verdict::Unreached);
}

#[test]
fn every_response_with_a_head_is_a_pass_at_the_head() {
    let mut round = streams(StreamPoint::Head, Occurrence::Number(1));
    assert_eq!(round.judged().1, Verdict::Incomplete);
    for id in 2..=4 {
        let span = round.at(Side::Caller, id);
        (span.http_status, span.ending, span.evidence_came) = (None, Ending::UpstreamFailed, false);
        let server = round.at(Side::Callee, id);
        server.evidence_went = false;
    }
    assert_eq!(round.judged().1, Verdict::Unreached, "{:?}", round.judged());
    // A stream that broke off after its head was a pass all the same.
    let span = round.at(Side::Caller, 3);
    (span.http_status, span.grpc_status) = (Some(200), None);
    assert_eq!(round.judged().1, Verdict::Incomplete);
}

#[test]
fn marks_that_nobody_looked_for_follow_the_hit_only_where_the_rule_was_over() {
    let hit = || streams(MARK, Occurrence::First).mark(2, 1, 7, None);
    // An armed instance does not look for marks when the rule is over.
    assert_eq!(hit().judged().1, Verdict::Injected, "{:?}", hit().judged());
    // Of an instance that was not armed nobody knows when they were reached: it may have been before.
    let mut late = hit();
    late.at(Side::Caller, 3).observer = ObserverId(0x77);
    assert_eq!(late.judged().1, Verdict::Incomplete);
    late.at(Side::Caller, 3).messages = Some(1);
    assert_eq!(late.judged().1, Verdict::Injected);
}
