//! Rounds over several instances of the caller, told by hand: what the arbiter's log proves and what it leaves open.

use aftershock_core::wire::Ruling;

use super::*;
use crate::api::ArbiterAct;

/// Three charges in a row, each by another instance of `front`, the second one meant; nothing asked yet.
fn spread(k: Occurrence) -> Round {
    let mut round = three_charges(Phase::Request, k);
    round.arbiter = Some(Vec::new());
    for call in 2..=4 {
        let instance = ObserverId(100 + call);
        round.at(Side::Caller, call).observer = instance;
        round.armed.insert(instance, "front".parse().unwrap());
    }
    round.armed.insert(observer("front"), "front".parse().unwrap());
    round
}

impl Round {
    fn log(mut self, call: u64, act: ArbiterAct) -> Self {
        let observer = self.at(Side::Caller, call).observer;
        let entry = ArbiterEntry { rule: 0, execution: ExecutionId(1), call: CallId(call), observer, act };
        self.arbiter.as_mut().unwrap().push(entry);
        self
    }

    fn ruled(self, call: u64, number: u32, ruling: Ruling) -> Self {
        self.log(call, ArbiterAct::Ruled { number, ready: true, outcome: None, ruling })
    }

    /// Granted and fired.
    fn shot(self, call: u64, number: u32) -> Self {
        self.ruled(call, number, Ruling::Grant).log(call, ArbiterAct::Fired).hit(call, number)
    }

    /// Another number than the one that is meant.
    fn other(self, call: u64, number: u32) -> Self {
        self.ruled(call, number, Ruling::Number).passed(call, number, PassedBy::Number)
    }

    /// Refused because the shot was gone.
    fn spent(self, call: u64, number: u32) -> Self {
        self.ruled(call, number, Ruling::Spent).passed(call, number, PassedBy::Spent)
    }

    /// It went on without an answer, and said so.
    fn given_up(self, call: u64) -> Self {
        let mut round = self.log(call, ArbiterAct::GivenUp).passed(call, 1, PassedBy::Arbiter);
        round.at(Side::Caller, call).passes[0].k = None;
        round
    }

    /// It came after the round was disarmed: nobody was asked.
    fn over(self, call: u64) -> Self {
        let mut round = self.passed(call, 1, PassedBy::RoundOver);
        round.at(Side::Caller, call).passes[0].k = None;
        round
    }

    fn back(self, call: u64) -> Self {
        self.log(call, ArbiterAct::HandedBack)
    }

    fn said(&self) -> (Verdict, Vec<String>) {
        let (faults, _) = self.judged();
        (faults[0].verdict, faults[0].reasons.clone())
    }
}

const SECOND: Occurrence = Occurrence::Number(2);

#[test]
fn the_number_is_the_arbiters_whatever_the_clocks_say() {
    // Call 4 was sent last and arrived second: it is pass 2.
    let round = spread(SECOND).other(2, 1).shot(4, 2).ruled(3, 3, Ruling::Spent).passed(3, 3, PassedBy::Spent);
    assert_eq!(round.said().0, Verdict::Injected, "{:?}", round.said());
    // A sidecar's own number does not matter.
    let mut own = round.clone();
    own.at(Side::Caller, 4).injection.as_mut().unwrap().k = 9;
    assert_eq!(own.said().0, Verdict::Injected);
    assert!(own.said().1[0].contains("pass 2"), "{:?}", own.said());
}

#[test]
fn a_shot_for_another_number_is_premature_whatever_was_told() {
    let told = spread(SECOND).other(2, 1).other(3, 2).shot(4, 3);
    let (verdict, reasons) = told.said();
    assert_eq!(verdict, Verdict::Premature, "{reasons:?}");
    assert!(reasons[0].ends_with("it acted on pass 3 by the arbiter's log, not on pass 2"), "{reasons:?}");
    // An arbiter that tells number 2 twice is no witness of its own count.
    let miscounted = spread(SECOND).other(2, 1).other(3, 1).shot(4, 2);
    assert_eq!(miscounted.said().0, Verdict::Incomplete, "{:?}", miscounted.said());
}

#[test]
fn a_shot_that_the_log_does_not_grant_is_premature() {
    for round in
        [spread(SECOND).other(2, 1).ruled(3, 2, Ruling::NotYet(vec![])).hit(3, 2), spread(SECOND).other(2, 1).hit(3, 2)]
    {
        let (verdict, reasons) = round.passed(4, 3, PassedBy::Spent).said();
        assert_eq!(verdict, Verdict::Premature, "{reasons:?}");
        assert!(reasons[0].ends_with("which the arbiter's log grants no shot"), "{reasons:?}");
    }
    // A log that has nothing at all on the fault is a lost log, not a proof.
    let lost = spread(SECOND).passed(2, 1, PassedBy::Number).hit(3, 2).passed(4, 3, PassedBy::Spent);
    let (verdict, reasons) = lost.said();
    assert_eq!(verdict, Verdict::Incomplete, "{reasons:?}");
    assert!(reasons[0].starts_with("the arbiter's log has nothing on this fault"), "{reasons:?}");
}

#[test]
fn atoms_on_the_targets_own_event_are_judged_by_the_logs_earlier_passes() {
    let own = |count| {
        let mut round = spread(Occurrence::First);
        round.plan.faults[0].guard.after.push(atom(EventKind::RequestSent, CHARGE, count));
        round
    };
    // By clocks call 2 has nothing before it. The arbiter saw call 3 first.
    let not_yet = |round: Round, call, number| {
        round.ruled(call, number, Ruling::NotYet(vec![0])).passed(call, number, PassedBy::GuardFalse(vec![0]))
    };
    let right = not_yet(own(1), 3, 1).shot(2, 2).spent(4, 3);
    assert_eq!(right.said().0, Verdict::Injected, "{:?}", right.said());
    let early = not_yet(own(2), 3, 1).shot(4, 2).spent(2, 3);
    let (verdict, reasons) = early.said();
    assert_eq!(verdict, Verdict::Premature);
    let said = "it was granted although the arbiter had seen request-sent of payment shop.Payment/Charge once before it, not \
                twice";
    assert!(reasons[0].ends_with(said), "{reasons:?}");
    let missed = not_yet(not_yet(not_yet(own(3), 3, 1), 2, 2), 4, 3);
    let (verdict, reasons) = missed.said();
    assert_eq!(verdict, Verdict::Missed);
    assert!(reasons[2].ends_with("was false: the arbiter had seen such a pass twice"), "{reasons:?}");
}

#[test]
fn other_atoms_are_judged_by_clocks_as_ever() {
    let mut round = spread(SECOND);
    round.plan.faults[0].guard.after.push(atom(EventKind::ResponseReceived, CHARGE, 2));
    let early = round.clone().other(2, 1).shot(3, 2).spent(4, 3);
    assert_eq!(early.said().0, Verdict::Premature, "{:?}", early.said());
    round.plan.faults[0].guard.after[0].count = 1;
    assert_eq!(round.other(2, 1).shot(3, 2).spent(4, 3).said().0, Verdict::Injected);
}

#[test]
fn two_shots_are_multiple_wherever_they_were_told() {
    let twice = spread(SECOND).other(2, 1).shot(3, 2).shot(4, 3);
    assert_eq!(twice.said().0, Verdict::Multiple);
    // The second span is lost: the arbiter was told all the same.
    let mut lost = twice.clone();
    lost.spans.retain(|span| span.call != CallId(4));
    assert_eq!(lost.said().0, Verdict::Multiple);
    let mut unsaid = spread(SECOND).other(2, 1).shot(3, 2).ruled(4, 3, Ruling::Spent).hit(4, 3);
    assert_eq!(unsaid.said().0, Verdict::Multiple);
    // Said to the controller and to the arbiter: once.
    unsaid = spread(SECOND).other(2, 1).shot(3, 2).spent(4, 3);
    let observer = unsaid.at(Side::Caller, 3).observer;
    unsaid.fired.push(Fired { rule: 0, execution: ExecutionId(1), call: CallId(3), observer });
    assert_eq!(unsaid.said().0, Verdict::Injected);
}

#[test]
fn a_pass_without_an_answer_is_missed_and_ends_the_rule() {
    let round = spread(SECOND).ruled(2, 1, Ruling::Number).given_up(2).spent(3, 2).spent(4, 3);
    let (verdict, reasons) = round.said();
    assert_eq!(verdict, Verdict::Missed, "{reasons:?}");
    // The meant pass came when the rule had ended.
    assert!(reasons[0].contains("pass 2") && reasons[0].contains("came when the rule had ended"), "{reasons:?}");
    let meant = spread(SECOND).other(2, 1).ruled(3, 2, Ruling::NotYet(vec![])).given_up(3).spent(4, 3);
    let (verdict, reasons) = meant.said();
    assert_eq!(verdict, Verdict::Missed, "{reasons:?}");
    assert!(
        reasons[0].contains("pass 2") && reasons[0].ends_with("was not granted by the arbiter in time"),
        "{reasons:?}"
    );
    // The question never reached the arbiter: its number is nobody's, but the rule ended with it.
    let unheard = spread(SECOND).given_up(2);
    let mut unheard = unheard.passed(3, 1, PassedBy::Spent).passed(4, 1, PassedBy::Spent);
    for call in [3, 4] {
        unheard.at(Side::Caller, call).passes[0].k = None;
    }
    let (verdict, reasons) = unheard.said();
    assert_eq!(verdict, Verdict::Missed, "{reasons:?}");
    assert!(reasons[0].contains("a pass without number"), "{reasons:?}");
    // With fewer passes than k it never came, whatever became of the rule.
    let few = spread(Occurrence::Number(4)).ruled(2, 1, Ruling::Number).given_up(2).spent(3, 2).spent(4, 3);
    assert_eq!(few.said().0, Verdict::Unreached, "{:?}", few.said());
}

#[test]
fn a_grant_that_was_handed_back_is_the_reason_of_missed() {
    let late = spread(SECOND).other(2, 1).ruled(3, 2, Ruling::Grant).given_up(3).back(3).spent(4, 3);
    let (verdict, reasons) = late.said();
    assert_eq!(verdict, Verdict::Missed, "{reasons:?}");
    assert!(reasons[0].ends_with("was granted by the arbiter too late, and the grant was handed back"), "{reasons:?}");
    let gone = spread(SECOND).other(2, 1).ruled(3, 2, Ruling::Grant).passed(3, 2, PassedBy::CallerGone).back(3);
    let (verdict, reasons) = gone.spent(4, 3).said();
    assert_eq!(verdict, Verdict::Missed, "{reasons:?}");
    assert!(reasons[0].ends_with("went away while it was held; the arbiter's grant was handed back"), "{reasons:?}");
}

#[test]
fn what_was_refused_while_a_grant_was_out_that_came_back_is_unjudged() {
    let first = Occurrence::First;
    let refused = || spread(first).ruled(2, 1, Ruling::Grant).spent(3, 2);
    let back = refused().given_up(2).back(2).spent(4, 3);
    let (verdict, reasons) = back.said();
    assert_eq!(verdict, Verdict::Incomplete, "{reasons:?}");
    let said = "pass 2 (the request of payment shop.Payment/Charge at front) was refused while a shot was granted to another \
                pass, and that one came back";
    assert!(reasons.iter().any(|reason| reason.ends_with(said)), "{reasons:?}");
    // Refused after it had come back: the rule had ended.
    let after = spread(first).ruled(2, 1, Ruling::Grant).given_up(2).back(2).spent(3, 2).spent(4, 3);
    assert_eq!(after.said().0, Verdict::Missed, "{:?}", after.said());
    // A grant of which nothing is heard again, and whose pass was not faulted, came back too.
    let silent = refused().passed(2, 1, PassedBy::CallerGone).spent(4, 3);
    assert_eq!(silent.said().0, Verdict::Incomplete, "{:?}", silent.said());
    // Another execution's pass may have been refused for the round's only shot.
    let mut other = refused().given_up(2).back(2);
    other.spans.retain(|span| span.call != CallId(4));
    let mut again = other.spans.clone();
    again.retain(|span| span.call != CallId(2));
    again.iter_mut().for_each(|span| span.execution = ExecutionId(2));
    other.spans.retain(|span| span.call != CallId(3));
    other.spans.extend(again);
    other.arbiter.as_mut().unwrap()[1].execution = ExecutionId(2);
    if let ArbiterAct::Ruled { number, .. } = &mut other.arbiter.as_mut().unwrap()[1].act {
        *number = 1;
    }
    other.at(Side::Caller, 3).passes[0].k = Some(1);
    assert_eq!(other.said().0, Verdict::Incomplete, "{:?}", other.said());
    other.plan.faults[0].max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
    // Without a limit nothing explains that refusal.
    let (verdict, reasons) = other.said();
    assert_eq!(verdict, Verdict::Incomplete);
    assert!(reasons.iter().any(|reason| reason.ends_with("although no shot had been granted")), "{reasons:?}");
}

#[test]
fn an_unjudged_pass_follows_the_hit_by_the_log_where_both_are_in_it() {
    let first = Occurrence::First;
    let not_yet = |round: Round, call, number| {
        round.ruled(call, number, Ruling::NotYet(vec![])).passed(call, number, PassedBy::GuardUnknown(vec![]))
    };
    // By its clock call 2 comes first; the arbiter heard of it after the shot.
    let after = not_yet(spread(first).shot(3, 1), 2, 2).spent(4, 3);
    assert_eq!(after.said().0, Verdict::Injected, "{:?}", after.said());
    // By its clock call 4 comes last; the arbiter heard of it before the shot.
    let before = not_yet(spread(first), 4, 1).shot(3, 2).spent(2, 3);
    assert_eq!(before.said().0, Verdict::Incomplete, "{:?}", before.said());
    // A held pass is numbered early and granted late.
    let held = not_yet(spread(first).ruled(2, 1, Ruling::NotYet(vec![])), 3, 2).shot(2, 1).spent(4, 3);
    assert_eq!(held.said().0, Verdict::Incomplete, "{:?}", held.said());
}

#[test]
fn a_late_or_unarmed_instance_leaves_every_verdict_open_unless_messages_say_it_came_after() {
    for round in [spread(SECOND).other(2, 1).shot(3, 2), spread(SECOND).other(2, 1).other(3, 2)] {
        let mut round = round;
        let late = round.at(Side::Caller, 4).observer;
        round.armed.remove(&late);
        let (verdict, reasons) = round.said();
        assert_eq!(verdict, Verdict::Incomplete);
        assert!(reasons.iter().any(|reason| reason.contains("the instance was not armed")), "{reasons:?}");
    }
}

#[test]
fn a_blocked_number_and_an_unknown_guard_are_unjudged_over_several_instances_too() {
    let blocked = spread(SECOND).passed(2, 1, PassedBy::NumberBlocked);
    let mut blocked = blocked.shot(3, 2);
    blocked.at(Side::Caller, 2).passes[0].k = None;
    blocked = blocked.spent(4, 3);
    assert_ne!(blocked.said().0, Verdict::Injected);
}

#[test]
fn what_the_log_numbered_must_be_in_the_record_and_the_other_way_round() {
    let mut lost = spread(SECOND).other(2, 1).shot(3, 2).spent(4, 3);
    lost.spans.retain(|span| span.call != CallId(4));
    let (verdict, reasons) = lost.said();
    assert_eq!(verdict, Verdict::Incomplete);
    assert!(reasons[0].ends_with("pass 3, which the arbiter numbered, is not in the record"), "{reasons:?}");
    let unlogged = spread(SECOND).passed(2, 1, PassedBy::Number).ruled(3, 2, Ruling::NotYet(vec![]));
    let unlogged = unlogged.passed(3, 2, PassedBy::GuardFalse(vec![])).spent(4, 3);
    assert_eq!(unlogged.said().0, Verdict::Incomplete, "{:?}", unlogged.said());
    let contradiction = spread(SECOND).ruled(2, 1, Ruling::Number).passed(2, 4, PassedBy::Number);
    assert_eq!(contradiction.shot(3, 2).spent(4, 3).said().0, Verdict::Incomplete);
    // The sidecar says that the rule was over, and nobody knows why.
    let mut groundless = spread(SECOND).other(2, 1).passed(3, 1, PassedBy::Spent).passed(4, 1, PassedBy::Spent);
    for call in [3, 4] {
        groundless.at(Side::Caller, call).passes[0].k = None;
    }
    let (verdict, reasons) = groundless.said();
    assert_eq!(verdict, Verdict::Incomplete);
    assert!(reasons[0].ends_with("was passed as if the rule had ended, which nothing shows"), "{reasons:?}");
}

#[test]
fn spans_that_are_lost_keep_the_log_from_accusing() {
    let mut round = spread(SECOND).other(2, 1).other(3, 2).shot(4, 3);
    assert_eq!(round.said().0, Verdict::Premature);
    round.missing.push("the arbiter's log was longer than what is kept".to_owned());
    assert_eq!(round.said().0, Verdict::Incomplete);
}

#[test]
fn a_pass_after_the_disarming_follows_every_shot_that_was_granted() {
    assert_eq!(spread(SECOND).other(2, 1).shot(3, 2).over(4).said().0, Verdict::Injected);
    // Whatever the clocks of its instance say.
    assert_eq!(spread(Occurrence::First).shot(3, 1).over(2).spent(4, 2).said().0, Verdict::Injected);
    let (verdict, reasons) = spread(SECOND).other(2, 1).over(3).over(4).said();
    assert_eq!(verdict, Verdict::Missed);
    assert!(reasons.iter().all(|reason| reason.contains("came after the round was disarmed")), "{reasons:?}");
    // The third never came.
    let third = spread(Occurrence::Number(4)).other(2, 1).over(3).over(4);
    assert_eq!(third.said().0, Verdict::Unreached);
}
