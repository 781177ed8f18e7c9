//! Verdicts on channels that were cut.

use super::*;

/// A round of the checkout in which `front` was cut off from `callee`, after `change`.
fn round(callee: &str, change: impl FnOnce(&mut Round)) -> Round {
    let mut round = Round::new(tfic(CHARGE, Occurrence::First, Phase::Response), checkout());
    round.plan.faults.clear();
    round.plan.cuts = [Channel { caller: "front".parse().unwrap(), callee: callee.parse().unwrap() }].into();
    round.armed = [(observer("front"), "front".parse().unwrap())].into();
    change(&mut round);
    round
}

/// The callee knows nothing of `called`, and its caller's sidecar saw the connection fail.
fn fails(spans: &mut Vec<CallSpan>, called: &str) {
    spans.retain(|span| span.side == Side::Caller || span.api != api(called));
    for span in spans.iter_mut().filter(|span| span.api == api(called)) {
        (span.http_status, span.grpc_status) = (None, None);
        (span.outcome, span.ending, span.evidence_came) = (Some(Outcome::Error), Ending::UpstreamFailed, false);
    }
}

/// The verdict of the cut and of the round, how many calls failed, and why.
fn judged(round: &Round) -> (Verdict, Verdict, u64, String) {
    let (_, cuts, verdict) = round.judged_whole();
    let [cut] = &cuts[..] else { panic!("{cuts:?}") };
    (cut.verdict, verdict, cut.failed, cut.reasons.join("; "))
}

#[test]
fn a_cut_is_injected_where_a_call_failed_on_its_channel() {
    let round = round("payment", |round| fails(&mut round.spans, CHARGE));
    let reason = "front → payment: 0 connections were broken, 0 refused; \
                  execution 0000000000000001: a call failed on it once";
    assert_eq!(judged(&round), (Verdict::Injected, Verdict::Injected, 1, reason.to_owned()));
}

#[test]
fn a_cut_is_injected_where_a_connection_met_it_though_no_call_was_seen() {
    for (broken, refused) in [(1, 0), (0, 2)] {
        let round = round("mail", |round| {
            let channel = round.plan.cuts.first().unwrap().clone();
            round.cut.insert(channel, CutConnections { broken, refused });
        });
        let (verdict, _, failed, reason) = judged(&round);
        assert_eq!((verdict, failed), (Verdict::Injected, 0));
        assert_eq!(reason, format!("front → mail: {broken} connections were broken, {refused} refused"));
    }
}

#[test]
fn a_cut_on_which_nobody_called_is_unreached_and_one_that_stopped_nobody_is_missed() {
    let (verdict, of_round, failed, _) = judged(&round("shipping", |round| fails(&mut round.spans, CHARGE)));
    assert_eq!((verdict, of_round, failed), (Verdict::Missed, Verdict::Missed, 0), "the quote was answered");
    let (verdict, _, failed, reason) = judged(&round("mail", |_| ()));
    assert_eq!(
        (verdict, failed, reason.as_str()),
        (Verdict::Unreached, 0, "front → mail: there was no connection and no call")
    );
}

#[test]
fn a_call_of_another_caller_or_one_that_a_fault_ended_is_no_failure_of_the_channel() {
    fn charges(round: &mut Round) -> impl Iterator<Item = &mut CallSpan> {
        fails(&mut round.spans, CHARGE);
        round.spans.iter_mut().filter(|span| span.api == api(CHARGE))
    }
    let other = round("payment", |round| {
        charges(round).for_each(|span| span.service = "shipping".parse().unwrap());
    });
    assert_eq!(judged(&other).0, Verdict::Unreached);
    let faulted = round("payment", |round| charges(round).for_each(|span| span.ending = Ending::Faulted));
    assert_eq!(judged(&faulted).2, 0);
}

#[test]
fn what_is_missing_leaves_a_cut_incomplete_and_what_broke_the_round_inconclusive() {
    let incomplete = round("payment", |round| {
        fails(&mut round.spans, CHARGE);
        round.missing.push("the sidecar of front lost 3 spans".to_owned());
    });
    assert_eq!(judged(&incomplete).0, Verdict::Incomplete);
    let failed = round("payment", |round| round.failures.push(Failure::Client("no such file".to_owned())));
    assert_eq!(judged(&failed).0, Verdict::Inconclusive);
    let unarmed = round("payment", |round| round.armed.clear());
    assert_eq!(judged(&unarmed).0, Verdict::Inconclusive);
}
