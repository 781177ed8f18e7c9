//! Verdicts of rounds told by hand. `simulated` beside this has rounds told by a model.

use std::collections::BTreeSet;

use aftershock_core::event::{ApiRef, EventKind, Outcome, OutcomeFilter};
use aftershock_core::evidence::{Gap, GapKind, Gaps};
use aftershock_core::id::Token;
use aftershock_core::name::Api;
use aftershock_core::plan::{
    Atom, Channel, Fault, Hold, MaxInjections, Occurrence, Phase, Side, Target, Tfic, Unlimited,
};
use aftershock_core::span::{Association, Ending, Instant, Pass, PassedBy};

use super::*;

mod arbitrated;
mod cuts;
mod replicated;
mod simulated;
mod streams;

pub(super) const CHARGE: &str = "payment shop.Payment/Charge";
pub(super) const QUOTE: &str = "shipping shop.Shipping/Quote";
const ENTRY: &str = "front POST /checkout";

pub(super) fn api(text: &str) -> Api {
    text.parse().unwrap()
}

fn observer(service: &str) -> ObserverId {
    let digits = service.bytes().fold(1_u64, |id, byte| id.wrapping_mul(31).wrapping_add(byte.into()));
    ObserverId(digits)
}

/// A span as a sidecar would record it of a call that went well.
pub(super) fn span(
    side: Side,
    service: &str,
    caller: Option<&str>,
    called: &str,
    call: u64,
    clocks: (u64, u64),
) -> CallSpan {
    let at = |clock| Instant { clock, unix_nanos: clock };
    CallSpan {
        side,
        service: service.parse().unwrap(),
        observer: observer(service),
        execution: ExecutionId(1),
        token: Token(9),
        call: CallId(call),
        parent: None,
        caller: caller.map(|caller| caller.parse().unwrap()),
        api: api(called),
        association: Association::Exact,
        trace_id: 0,
        request: at(clocks.0),
        response: Some(at(clocks.1)),
        ended_unix_nanos: clocks.1,
        outcome: Some(Outcome::Ok),
        http_status: Some(200),
        grpc_status: Some(0),
        made: false,
        ending: Ending::Complete,
        evidence_went: caller.is_some(),
        evidence_came: caller.is_some(),
        gaps: Gaps::default(),
        messages: None,
        passes: Vec::new(),
        injection: None,
    }
}

/// Both sides of a call from `caller`, at four clocks.
fn call(id: u64, parent: u64, caller: &str, called: &str, clocks: [u64; 4]) -> Vec<CallSpan> {
    let service = api(called).service;
    let mut both = vec![
        span(Side::Caller, caller, Some(caller), called, id, (clocks[0], clocks[3])),
        span(Side::Callee, service.as_str(), Some(caller), called, id, (clocks[1], clocks[2])),
    ];
    for span in &mut both {
        span.parent = Some(CallId(parent));
    }
    both
}

/// An entry of `front`, a charge after a quote, each called by `front`: clocks 1 to 10.
fn checkout() -> Vec<CallSpan> {
    let mut spans = vec![span(Side::Callee, "front", None, ENTRY, 1, (1, 10))];
    spans.extend(call(2, 1, "front", QUOTE, [2, 3, 4, 5]));
    spans.extend(call(3, 1, "front", CHARGE, [6, 7, 8, 9]));
    spans
}

pub(super) fn tfic(called: &str, k: Occurrence, phase: Phase) -> Tfic {
    Tfic::new(Target::new(called.parse().unwrap(), k, phase), Fault::Drop)
}

pub(super) fn atom(event: EventKind, called: &str, count: u64) -> Atom {
    Atom { event, api: called.parse().unwrap(), caller: None, outcome: OutcomeFilter::Any, count }
}

/// A round as the controller knows it, to be changed by each test.
#[derive(Clone)]
pub(super) struct Round {
    pub(super) plan: Plan,
    pub(super) acting: (&'static str, Side),
    pub(super) armed: BTreeMap<ObserverId, Service>,
    pub(super) spans: Vec<CallSpan>,
    pub(super) fired: Vec<Fired>,
    /// The log of the arbiter, if there are several instances.
    pub(super) arbiter: Option<Vec<ArbiterEntry>>,
    /// What met the cuts of the plan.
    cut: BTreeMap<Channel, CutConnections>,
    pub(super) failures: Vec<Failure>,
    pub(super) incomplete: BTreeMap<ExecutionId, String>,
    pub(super) missing: Vec<String>,
}

impl Round {
    pub(super) fn new(tfic: Tfic, spans: Vec<CallSpan>) -> Self {
        Round {
            plan: Plan { faults: vec![tfic], ..Plan::default() },
            acting: ("front", Side::Caller),
            armed: BTreeMap::new(),
            spans,
            fired: Vec::new(),
            arbiter: None,
            cut: BTreeMap::new(),
            failures: Vec::new(),
            incomplete: BTreeMap::new(),
            missing: Vec::new(),
        }
    }

    pub(super) fn judged(&self) -> (Vec<FaultVerdict>, Verdict) {
        let (faults, _, round) = self.judged_whole();
        (faults, round)
    }

    fn judged_whole(&self) -> (Vec<FaultVerdict>, Vec<CutVerdict>, Verdict) {
        let traces = Trace::assemble(self.spans.clone());
        let rules: Vec<Rule> = self
            .plan
            .faults
            .iter()
            .enumerate()
            .map(|(index, tfic)| Rule {
                index,
                service: self.acting.0.parse().unwrap(),
                side: self.acting.1,
                apis: self.plan.resolve(&tfic.target.api).unwrap(),
                tfic: tfic.clone(),
                arbitrated: self.arbiter.is_some(),
            })
            .collect();
        let facts = RoundFacts {
            plan: &self.plan,
            rules: &rules,
            armed: &self.armed,
            traces: &traces,
            fired: &self.fired,
            failures: &self.failures,
            arbiter: self.arbiter.as_deref().unwrap_or_default(),
            cut: &self.cut,
            incomplete: &self.incomplete,
            missing: &self.missing,
        };
        let faults = judge(&facts);
        let cuts = judge_cuts(&facts);
        let round = of_round(&facts, &faults, &cuts);
        (faults, cuts, round)
    }

    #[track_caller]
    fn is(&self, verdict: Verdict, reasons: &[&str]) {
        let (faults, round) = self.judged();
        assert_eq!((faults[0].verdict, round), (verdict, verdict), "{:?}", faults[0].reasons);
        let said: Vec<&str> = faults[0]
            .reasons
            .iter()
            .map(|reason| reason.strip_prefix("execution 0000000000000001: ").unwrap_or(reason))
            .collect();
        assert_eq!(said, reasons);
    }

    /// The span of one side of a call.
    fn at(&mut self, side: Side, call: u64) -> &mut CallSpan {
        self.spans.iter_mut().find(|span| span.side == side && span.call == CallId(call)).unwrap()
    }

    /// The rule passed by a call's message, at the clock before its event.
    fn passed(mut self, call: u64, k: u32, passed_by: PassedBy) -> Self {
        let (side, phase) = (self.acting.1, self.plan.faults[0].target.phase);
        let span = self.at(side, call);
        let at = if phase == Phase::Request { span.request } else { span.response.unwrap() };
        span.passes.push(Pass { rule: 0, k: Some(k), clock: at.clock - 1, passed_by: Some(passed_by) });
        self
    }

    /// The fault, a drop, hit a call's message at the clock before its event.
    fn hit(mut self, call: u64, k: u32) -> Self {
        let (side, phase, fault) = (self.acting.1, self.plan.faults[0].target.phase, self.plan.faults[0].fault.clone());
        let span = self.at(side, call);
        let at = if phase == Phase::Request { span.request } else { span.response.unwrap() };
        let decided = at.clock - 1;
        span.passes.push(Pass { rule: 0, k: Some(k), clock: decided, passed_by: None });
        span.injection = Some(Injection { rule: 0, k, decided, held: false, fault: fault.to_string() });
        if fault == Fault::Drop {
            (span.response, span.outcome, span.ending) = (None, None, Ending::Faulted);
            if phase == Phase::Request {
                (span.http_status, span.grpc_status, span.evidence_went) = (None, None, false);
                self.spans.retain(|span| span.call != CallId(call) || span.side != Side::Callee);
            }
        }
        self
    }

    fn gap(mut self, side: Side, call: u64, kind: GapKind, service: &str) -> Self {
        let gap = Gap { kind, observer: ObserverId(0xab), service: service.parse().unwrap() };
        self.at(side, call).gaps.insert(gap);
        self
    }
}

/// The lost answer of the first charge, with a guard on the quote.
fn lost_charge() -> Round {
    let mut tfic = tfic(CHARGE, Occurrence::Number(1), Phase::Response);
    tfic.guard.after.push(atom(EventKind::ResponseReceived, QUOTE, 1));
    Round::new(tfic, checkout())
}

const INJECTED: &str = "drop of the response of payment shop.Payment/Charge at front, pass 1 was decided at clock 8, when \
                        After(response-received of shipping shop.Shipping/Quote ≥ 1) held";

#[test]
fn a_hit_in_its_window_is_injected() {
    lost_charge().hit(3, 1).is(Verdict::Injected, &[INJECTED]);
    let (faults, _) = lost_charge().hit(3, 1).judged();
    assert_eq!((faults[0].injections, faults[0].premature, faults[0].multiple), (1, 0, false));
}

#[test]
fn a_request_fault_is_injected_without_the_callees_span() {
    for fault in [Fault::Drop, Fault::Abort, Fault::Reset(Default::default())] {
        let mut round = Round::new(tfic(CHARGE, Occurrence::Number(1), Phase::Request), checkout());
        round.plan.faults[0].fault = fault;
        let mut round = round.hit(3, 1);
        round.spans.retain(|span| span.call != CallId(3) || span.side != Side::Callee);
        let span = round.at(Side::Caller, 3);
        (span.made, span.evidence_went, span.evidence_came) = (true, true, false);
        assert_eq!(round.judged().1, Verdict::Injected);
    }
    let mut round = Round::new(tfic(CHARGE, Occurrence::Number(1), Phase::Request), checkout());
    round.plan.faults[0].fault = Fault::Delay(std::time::Duration::from_millis(1).into());
    let mut round = round.hit(3, 1);
    assert_eq!(round.judged().1, Verdict::Injected);
    // A delayed request goes on: its callee's span must be there.
    round.spans.retain(|span| span.call != CallId(3) || span.side != Side::Callee);
    assert_eq!(round.judged().1, Verdict::Incomplete);
}

#[test]
fn a_hit_before_its_guard_held_is_premature() {
    let mut round = lost_charge();
    round.plan.faults[0].guard.after[0].count = 2;
    let hit = round.hit(3, 1);
    hit.is(
        Verdict::Premature,
        &["it was decided at clock 8, when response-received of shipping shop.Shipping/Quote had happened once, not twice"],
    );
    assert_eq!(hit.judged().0[0].premature, 1);
}

#[test]
fn the_message_itself_and_what_came_later_do_not_make_its_guard_true() {
    let mut round = lost_charge();
    round.plan.faults[0].guard.after = vec![atom(EventKind::ResponseReceived, CHARGE, 1)];
    round.plan.faults[0].fault = Fault::Abort;
    assert_eq!(round.hit(3, 1).judged().1, Verdict::Premature);
    let mut round = Round::new(tfic(CHARGE, Occurrence::Number(1), Phase::Request), checkout());
    round.plan.faults[0].guard.after = vec![atom(EventKind::RequestReceived, CHARGE, 1)];
    assert_eq!(round.hit(3, 1).judged().1, Verdict::Premature);
}

/// Three charges in a row, at clocks 1 to 14.
fn three_charges(phase: Phase, k: Occurrence) -> Round {
    let mut spans = vec![span(Side::Callee, "front", None, ENTRY, 1, (1, 14))];
    for (id, from) in [(2, 2), (3, 6), (4, 10)] {
        spans.extend(call(id, 1, "front", CHARGE, [from, from + 1, from + 2, from + 3]));
    }
    Round::new(tfic(CHARGE, k, phase), spans)
}

#[test]
fn a_hit_on_another_number_is_premature_whoever_miscounted() {
    for phase in [Phase::Request, Phase::Response] {
        let round = || three_charges(phase, Occurrence::Number(2)).passed(2, 1, PassedBy::Number);
        let right = round().hit(3, 2).passed(4, 3, PassedBy::Spent);
        assert_eq!(right.judged().1, Verdict::Injected);
        let reported = round().passed(3, 2, PassedBy::Number).hit(4, 3);
        reported.is(Verdict::Premature, &["it acted on pass 3, not on pass 2"]);
        let miscounted = round().passed(3, 1, PassedBy::Number).hit(4, 2);
        miscounted.is(Verdict::Premature, &["it acted on pass 2 by its sidecar's count, but 2 came before it there"]);
        let early = three_charges(phase, Occurrence::Number(2)).hit(2, 2).passed(3, 3, PassedBy::Spent);
        let early = early.passed(4, 4, PassedBy::Spent);
        early.is(Verdict::Premature, &["it acted on pass 2 by its sidecar's count, but 0 came before it there"]);
    }
}

#[test]
fn a_hit_on_something_else_than_the_target_is_premature() {
    let round = lost_charge();
    let round = round.hit(2, 1);
    let (faults, verdict) = round.judged();
    assert_eq!(verdict, Verdict::Premature);
    assert!(
        faults[0].reasons[0].contains("it acted on shipping shop.Shipping/Quote at front, which is not its target")
    );
}

#[test]
fn the_outcome_must_be_the_targets() {
    for (filter, callee, verdict) in [
        (OutcomeFilter::Ok, Outcome::Ok, Verdict::Injected),
        (OutcomeFilter::Ok, Outcome::Error, Verdict::Premature),
        (OutcomeFilter::Error, Outcome::Error, Verdict::Injected),
        (OutcomeFilter::Error, Outcome::Ok, Verdict::Premature),
        (OutcomeFilter::Any, Outcome::Unknown, Verdict::Injected),
        (OutcomeFilter::Ok, Outcome::Unknown, Verdict::Premature),
    ] {
        let mut round = lost_charge();
        round.plan.faults[0].target.outcome = filter;
        round.at(Side::Callee, 3).outcome = Some(callee);
        assert_eq!(round.hit(3, 1).judged().1, verdict, "{filter:?} {callee}");
    }
}

#[test]
fn a_post_effect_needs_the_callees_own_ok() {
    for (callee, verdict) in [(Outcome::Ok, Verdict::Injected), (Outcome::Error, Verdict::Premature)] {
        let mut round = lost_charge();
        round.plan.faults[0].target.post_effect = true;
        round.at(Side::Callee, 3).outcome = Some(callee);
        assert_eq!(round.hit(3, 1).judged().1, verdict);
    }
    let mut unanswered = lost_charge();
    unanswered.plan.faults[0].target.post_effect = true;
    let callee = unanswered.at(Side::Callee, 3);
    (callee.response, callee.outcome, callee.evidence_went) = (None, None, false);
    let said = "the effect is not certain: the sidecar of payment saw the call end with no answer";
    unanswered.hit(3, 1).is(Verdict::Premature, &[said]);

    // A callee without sidecar: the message at hand is all there is.
    let mut bare = lost_charge();
    bare.plan.faults[0].target.post_effect = true;
    bare.spans.retain(|span| span.call != CallId(3) || span.side == Side::Caller);
    let span = bare.at(Side::Caller, 3);
    (span.evidence_went, span.evidence_came) = (false, false);
    assert_eq!(bare.hit(3, 1).judged().1, Verdict::Injected);
}

#[test]
fn an_accusation_needs_a_complete_record() {
    let premature = || {
        let mut round = lost_charge();
        round.plan.faults[0].guard.after[0].count = 2;
        round.hit(3, 1)
    };
    assert_eq!(premature().judged().1, Verdict::Premature);
    let mut missing = premature();
    missing.missing.push("the sidecar of payment lost 1 span".to_owned());
    assert_eq!(missing.judged().1, Verdict::Incomplete);
    let mut open = premature();
    open.incomplete.insert(ExecutionId(1), "a call is open".to_owned());
    assert_eq!(open.judged().1, Verdict::Incomplete);
    let mut lost = premature();
    lost.spans.retain(|span| span.call != CallId(2) || span.side != Side::Callee);
    assert_eq!(lost.judged().1, Verdict::Incomplete);
    let mut dead = premature();
    dead.failures.push(Failure::SidecarDied { service: "payment".parse().unwrap(), observer: ObserverId(3) });
    assert_eq!(dead.judged().1, Verdict::Inconclusive);
    // A lapsed lease loses no span.
    let mut lapsed = premature();
    lapsed.failures.push(Failure::LeaseLapsed { service: "payment".parse().unwrap(), observer: ObserverId(3) });
    assert_eq!(lapsed.judged().1, Verdict::Premature);
}

#[test]
fn twice_in_an_execution_or_too_often_in_the_round_is_multiple() {
    let twice = three_charges(Phase::Response, Occurrence::First).hit(2, 1).hit(3, 2).passed(4, 3, PassedBy::Spent);
    twice.is(Verdict::Multiple, &["it fired twice", "it fired twice in the round, which allows 1"]);
    assert_eq!((twice.judged().0[0].injections, twice.judged().0[0].multiple), (2, true));

    let mut round = lost_charge().hit(3, 1);
    let mut again = round.spans.clone();
    again.iter_mut().for_each(|span| span.execution = ExecutionId(2));
    round.spans.extend(again);
    round.is(Verdict::Multiple, &["it fired twice in the round, which allows 1"]);
    round.plan.faults[0].max_injections = MaxInjections::Limited(2);
    assert_eq!(round.judged().1, Verdict::Injected);
    round.plan.faults[0].max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
    assert_eq!(round.judged().1, Verdict::Injected);
    // Twice in one execution is too often whatever the round allows.
    let mut twice = twice;
    twice.plan.faults[0].max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
    twice.is(Verdict::Multiple, &["it fired twice"]);
}

#[test]
fn what_a_sidecar_said_of_a_lost_span_counts() {
    let said = |call| Fired { rule: 0, execution: ExecutionId(1), call: CallId(call), observer: observer("front") };
    // Said of a span that is there: nothing new.
    let mut round = lost_charge().hit(3, 1);
    round.fired = vec![said(3), said(3)];
    assert_eq!(round.judged().1, Verdict::Injected);
    round.fired.push(said(4));
    assert_eq!(round.judged().1, Verdict::Multiple);
    let mut unseen = lost_charge();
    unseen.spans.retain(|span| span.call != CallId(3));
    unseen.fired.push(said(3));
    let (faults, verdict) = unseen.judged();
    assert_eq!((verdict, faults[0].injections), (Verdict::Incomplete, 1));
    // Another rule's shot is none of this one's.
    let mut other = lost_charge().passed(3, 1, PassedBy::Outcome);
    other.fired.push(Fired { rule: 1, ..said(2) });
    assert_eq!(other.judged().1, Verdict::Missed);
}

#[test]
fn a_round_that_was_not_run_as_planned_is_inconclusive_fired_or_not() {
    for (failure, said) in [
        (Failure::Arming("payment did not acknowledge".to_owned()), "arming failed: payment did not acknowledge"),
        (Failure::Client("no such program".to_owned()), "the client could not be run: no such program"),
        (Failure::Ended("disarmed by hand".to_owned()), "the round was ended early: disarmed by hand"),
        (
            Failure::LeaseLapsed { service: "front".parse().unwrap(), observer: ObserverId(5) },
            "the lease lapsed at the sidecar of front (0000000000000005)",
        ),
        (
            Failure::SidecarDied { service: "front".parse().unwrap(), observer: ObserverId(5) },
            "the armed sidecar of front (0000000000000005) died",
        ),
    ] {
        for round in [lost_charge().hit(3, 1), lost_charge().passed(3, 1, PassedBy::GuardFalse(vec![0]))] {
            let mut round = round;
            round.failures.push(failure.clone());
            round.is(Verdict::Inconclusive, &[said]);
        }
    }
    let twice = three_charges(Phase::Response, Occurrence::First).hit(2, 1).hit(3, 2).passed(4, 3, PassedBy::Spent);
    let mut twice = twice;
    twice.failures.push(Failure::Client("x".to_owned()));
    assert_eq!(twice.judged().1, Verdict::Multiple);
}

#[test]
fn a_fault_without_rules_was_never_armed() {
    let traces = Trace::assemble(checkout());
    let plan = lost_charge().plan;
    let facts = RoundFacts {
        plan: &plan,
        rules: &[],
        armed: &BTreeMap::new(),
        traces: &traces,
        fired: &[],
        failures: &[],
        arbiter: &[],
        cut: &BTreeMap::new(),
        incomplete: &BTreeMap::new(),
        missing: &[],
    };
    assert_eq!(judge(&facts)[0].verdict, Verdict::Inconclusive);
}

#[test]
fn a_target_that_never_came_is_unreached() {
    let mut round = lost_charge();
    round.spans.retain(|span| span.call != CallId(3));
    round.is(Verdict::Unreached, &["no response of payment shop.Payment/Charge was seen"]);
    let few = three_charges(Phase::Response, Occurrence::Number(4));
    let few = few.passed(2, 1, PassedBy::Number).passed(3, 2, PassedBy::Number).passed(4, 3, PassedBy::Number);
    few.is(Verdict::Unreached, &["the response of payment shop.Payment/Charge was seen 3 times, pass 4 never came"]);
    let mut nothing = lost_charge();
    nothing.spans.clear();
    nothing.is(Verdict::Unreached, &["no execution of the round was seen by any sidecar"]);
}

#[test]
fn a_target_that_came_at_the_wrong_time_is_missed_and_the_reason_is_told() {
    let place = "the response of payment shop.Payment/Charge at front";
    for (passed_by, said) in [
        (
            PassedBy::GuardFalse(vec![0]),
            format!(
                "at pass 1 ({place}) `response-received of shipping shop.Shipping/Quote ≥ 1` was false: it had happened \
                 once, but this was not known there yet"
            ),
        ),
        (PassedBy::GuardFalse(vec![]), format!("at pass 1 ({place}) the guard was false")),
        (PassedBy::Outcome, format!("pass 1 ({place}) did not have the outcome that the target takes")),
        (
            PassedBy::Spent,
            format!("pass 1 ({place}) came when the rule had ended, or the round's injections were used up"),
        ),
        (
            PassedBy::HoldDeadline,
            format!(
                "pass 1 ({place}) was held until its deadline of 2s, and response-received of shipping \
                 shop.Shipping/Quote ≥ 1 did not come true in time"
            ),
        ),
        (PassedBy::Disarmed, format!("pass 1 ({place}) was still held when the rule was disarmed")),
        (PassedBy::RoundOver, format!("pass 1 ({place}) came after the round was disarmed")),
        (PassedBy::CallerGone, format!("the caller of pass 1 ({place}) went away while it was held")),
        (PassedBy::Pipelined, format!("pass 1 ({place}) was pipelined behind another request on its connection")),
        (PassedBy::Goaway, format!("pass 1 ({place}) was released because the upstream said GOAWAY")),
        (PassedBy::Size, format!("pass 1 ({place}) was larger than what can be kept back")),
        (PassedBy::ParkedLimit, format!("pass 1 ({place}) found no place to be held: too many messages were")),
        (PassedBy::Stream, format!("pass 1 ({place}) was released because a second message came on its call")),
        (PassedBy::Arbiter, format!("pass 1 ({place}) was not granted by the arbiter in time")),
    ] {
        let mut round = lost_charge();
        round.plan.faults[0].hold = Some(Hold { deadline: std::time::Duration::from_secs(2).into() });
        round.passed(3, 1, passed_by).is(Verdict::Missed, &[&said]);
    }
    let mut never = lost_charge();
    never.plan.faults[0].guard.after[0].count = 3;
    never.passed(3, 1, PassedBy::GuardFalse(vec![0])).is(
        Verdict::Missed,
        &["at pass 1 (the response of payment shop.Payment/Charge at front) `response-received of shipping \
           shop.Shipping/Quote ≥ 3` was false: it had happened once"],
    );
}

#[test]
fn the_second_of_two_faults_of_one_message_is_missed_and_names_the_first() {
    let mut round = lost_charge().hit(3, 1);
    let second = round.plan.faults[0].clone();
    round.plan.faults.push(second);
    let decided = round.at(Side::Caller, 3).injection.as_ref().unwrap().decided;
    let spent = |clock| Pass { rule: 1, k: Some(1), clock, passed_by: Some(PassedBy::Spent) };
    round.at(Side::Caller, 3).passes.push(spent(decided));
    let (faults, verdict) = round.judged();
    assert_eq!((faults[0].verdict, faults[1].verdict, verdict), (Verdict::Injected, Verdict::Missed, Verdict::Missed));
    let said = |faults: &[FaultVerdict]| faults[1].reasons.join("\n");
    assert!(said(&faults).ends_with("was already taken by faults[0]: a message gets one fault"), "{}", said(&faults));
    // Another message of the same call is another matter.
    round.at(Side::Caller, 3).passes.last_mut().unwrap().clock = decided - 1;
    assert!(said(&round.judged().0).contains("came when the rule had ended"));
}

#[test]
fn one_reached_execution_makes_the_round_missed_and_each_says_its_reason() {
    let mut round = lost_charge().passed(3, 1, PassedBy::Outcome);
    let mut other = checkout();
    other.retain(|span| span.call != CallId(3));
    other.iter_mut().for_each(|span| span.execution = ExecutionId(2));
    round.spans.extend(other);
    let (faults, verdict) = round.judged();
    assert_eq!(verdict, Verdict::Missed);
    assert_eq!(faults[0].reasons.len(), 2);
    assert!(faults[0].reasons[1].starts_with("execution 0000000000000002: no response of"), "{:?}", faults[0].reasons);
}

#[test]
fn not_fired_is_certain_only_without_any_gap() {
    let missed = || lost_charge().passed(3, 1, PassedBy::GuardFalse(vec![0]));
    assert_eq!(missed().judged().1, Verdict::Missed);
    for (kind, said) in [(GapKind::Number, "number"), (GapKind::Evidence, "evidence")] {
        for (side, call) in [(Side::Callee, 1), (Side::Caller, 2), (Side::Callee, 3)] {
            let expected = format!("{said} gap noticed by the sidecar of shipping (00000000000000ab)");
            missed().gap(side, call, kind, "shipping").is(Verdict::Incomplete, &[&expected]);
        }
    }
    let mut any = missed();
    any.at(Side::Caller, 2).gaps = Gaps::any();
    any.is(Verdict::Incomplete, &["anything may be missing at front: more gaps than are kept apart"]);
}

#[test]
fn a_hit_is_doubtful_only_by_a_number_gap_of_the_callers_service_in_its_execution() {
    let injected = || lost_charge().hit(3, 1);
    for (kind, service, verdict) in [
        (GapKind::Evidence, "front", Verdict::Injected),
        (GapKind::Number, "payment", Verdict::Injected),
        (GapKind::Number, "front", Verdict::Incomplete),
    ] {
        for (side, call) in [(Side::Callee, 1), (Side::Caller, 3), (Side::Callee, 2)] {
            assert_eq!(injected().gap(side, call, kind, service).judged().1, verdict, "{kind:?} {service}");
        }
    }
    let mut elsewhere = injected();
    let mut other = checkout();
    for span in &mut other {
        span.execution = ExecutionId(2);
        span.gaps = Gaps::any();
    }
    elsewhere.spans.extend(other);
    assert_eq!(elsewhere.judged().1, Verdict::Injected);
}

#[test]
fn evidence_that_went_and_did_not_come_makes_not_fired_uncertain() {
    let missed = || lost_charge().passed(3, 1, PassedBy::GuardFalse(vec![0]));
    let mut request = missed();
    request.at(Side::Callee, 2).evidence_came = false;
    request.is(
        Verdict::Incomplete,
        &["evidence went with the request of shipping shop.Shipping/Quote and did not come to shipping"],
    );
    let mut response = missed();
    response.at(Side::Caller, 2).evidence_came = false;
    response.is(
        Verdict::Incomplete,
        &["evidence went with the response of shipping shop.Shipping/Quote and did not come to front"],
    );
    // A caller that left first learns nothing of the answer, and rests nothing on it.
    let span = response.at(Side::Caller, 2);
    (span.response, span.outcome, span.ending) = (None, None, Ending::ApplicationGone);
    assert_eq!(response.judged().1, Verdict::Missed);
    // A hit needs none of it.
    let mut hit = lost_charge().hit(3, 1);
    hit.at(Side::Callee, 2).evidence_came = false;
    assert_eq!(hit.judged().1, Verdict::Injected);
}

#[test]
fn lost_spans_make_every_verdict_but_an_accusation_incomplete() {
    for round in [lost_charge().hit(3, 1), lost_charge().passed(3, 1, PassedBy::Outcome)] {
        let mut server = round.clone();
        server.spans.retain(|span| span.call != CallId(2) || span.side != Side::Callee);
        server.is(
            Verdict::Incomplete,
            &["the span of shipping shop.Shipping/Quote at shipping is missing, to which front sent a request"],
        );
        let mut client = round.clone();
        client.spans.retain(|span| span.call != CallId(2) || span.side != Side::Caller);
        client.is(Verdict::Incomplete, &["the span of shipping shop.Shipping/Quote at its caller front is missing"]);
        let mut missing = round.clone();
        missing.missing.push("the sidecar of front lost 2 spans".to_owned());
        missing.is(Verdict::Incomplete, &["the sidecar of front lost 2 spans"]);
        let mut incomplete = round;
        incomplete.incomplete.insert(ExecutionId(1), "the collector was down".to_owned());
        incomplete.is(Verdict::Incomplete, &["the collector was down"]);
    }
}

#[test]
fn an_upstream_that_failed_before_it_answered_needs_no_span() {
    let mut round = lost_charge();
    round.spans.retain(|span| span.call != CallId(3) || span.side != Side::Callee);
    let span = round.at(Side::Caller, 3);
    (span.http_status, span.grpc_status, span.outcome) = (None, None, Some(Outcome::Error));
    (span.ending, span.evidence_came) = (Ending::UpstreamFailed, false);
    // The error was made by the failure, not by a message: no pass.
    round.is(Verdict::Unreached, &["no response of payment shop.Payment/Charge was seen"]);
}

#[test]
fn calls_without_context_are_no_reason_for_doubt() {
    let mut round = lost_charge().hit(3, 1);
    for id in [20, 21, 22] {
        let mut convert = span(Side::Caller, "front", Some("front"), "currency shop.Currency/Convert", id, (1, 2));
        (convert.execution, convert.token, convert.association) = (ExecutionId(0), Token(0), Association::Unassociated);
        round.spans.push(convert);
    }
    round.is(Verdict::Injected, &[INJECTED]);
}

#[test]
fn a_pass_that_nobody_judged_before_the_hit_makes_it_doubtful_and_after_it_does_not() {
    let place = "the response of payment shop.Payment/Charge at front";
    let round = || three_charges(Phase::Response, Occurrence::First);
    round().passed(2, 1, PassedBy::GuardFalse(vec![])).hit(3, 2).is(
        Verdict::Injected,
        &["drop of the response of payment shop.Payment/Charge at front, pass 2 was decided at clock 8, when After(true) held"],
    );
    let bare = round().hit(3, 1);
    bare.is(Verdict::Incomplete, &[&format!("no rule looked at {place}: the instance was not armed")]);
    let mut armed = bare;
    armed.armed.insert(observer("front"), "front".parse().unwrap());
    armed.is(Verdict::Incomplete, &[&format!("no rule looked at {place}, although the instance was armed")]);
    for (passed_by, said) in [
        (
            PassedBy::GuardUnknown(vec![0]),
            format!("at pass 1 ({place}) it is not known whether the guard held, because of a gap"),
        ),
        (PassedBy::NumberBlocked, format!("the number of {place} is not known, because of a gap")),
        (PassedBy::Arbiter, format!("pass 1 ({place}) went on because the arbiter did not answer in time")),
        (PassedBy::RoundOver, format!("pass 1 ({place}) came after the round was disarmed")),
    ] {
        round().passed(2, 1, passed_by.clone()).hit(3, 2).is(Verdict::Incomplete, &[&said]);
        let after = round().hit(2, 1).passed(3, 2, passed_by.clone()).passed(4, 3, PassedBy::Spent);
        assert_eq!(after.judged().1, Verdict::Injected, "{passed_by:?}");
        let alone =
            round().passed(2, 1, PassedBy::Outcome).passed(3, 2, PassedBy::Outcome).passed(4, 3, passed_by.clone());
        let explained = matches!(passed_by, PassedBy::Arbiter | PassedBy::RoundOver);
        let verdict = if explained { Verdict::Missed } else { Verdict::Incomplete };
        assert_eq!(alone.judged().1, verdict, "{passed_by:?}");
    }
}

#[test]
fn a_pass_that_nobody_judged_is_harmless_once_it_cannot_have_been_meant() {
    let after = |k, passed_by: PassedBy| three_charges(Phase::Response, k).passed(2, 1, passed_by).judged().1;
    // The numbered pass that was meant had been judged before.
    assert_eq!(after(Occurrence::Number(1), PassedBy::Outcome), Verdict::Missed);
    assert_eq!(after(Occurrence::Number(1), PassedBy::GuardUnknown(vec![0])), Verdict::Incomplete);
    assert_eq!(after(Occurrence::Number(2), PassedBy::Number), Verdict::Incomplete);
    assert_eq!(after(Occurrence::First, PassedBy::Outcome), Verdict::Incomplete);
    // The rule had gone: whatever was released then goes on without it.
    assert_eq!(after(Occurrence::First, PassedBy::Disarmed), Verdict::Missed);
    assert_eq!(after(Occurrence::Number(1), PassedBy::Disarmed), Verdict::Missed);
}

#[test]
fn a_grpc_answer_that_broke_off_before_its_status_is_no_pass() {
    let mut round = three_charges(Phase::Response, Occurrence::Number(2)).passed(2, 1, PassedBy::Number);
    let span = round.at(Side::Caller, 3);
    (span.grpc_status, span.outcome, span.ending) = (None, Some(Outcome::Error), Ending::UpstreamFailed);
    span.evidence_came = false;
    round.at(Side::Callee, 3).evidence_went = false;
    assert_eq!(round.hit(4, 2).judged().1, Verdict::Injected);
}

#[test]
fn passes_that_contradict_themselves_are_no_judgement() {
    let contradiction = lost_charge().passed(3, 1, PassedBy::Number);
    contradiction.is(
        Verdict::Incomplete,
        &["pass 1 (the response of payment shop.Payment/Charge at front) has the number of the target, but is recorded as \
           having another"],
    );
    let mut faulted = lost_charge().hit(3, 1);
    faulted.at(Side::Caller, 3).injection = None;
    assert_eq!(faulted.judged().1, Verdict::Incomplete);
    let holes = three_charges(Phase::Response, Occurrence::Number(9));
    let holes = holes.passed(2, 1, PassedBy::Number).passed(3, 2, PassedBy::Number).passed(4, 4, PassedBy::Number);
    holes.is(Verdict::Incomplete, &["pass 3 of the target is not in the record"]);
}

#[test]
fn a_pass_at_another_instance_follows_only_if_messages_say_so() {
    // An instance of `front` that was not armed charges too, at clocks beyond those of the hit.
    let elsewhere = |parent: u64| {
        let mut round = lost_charge().hit(3, 1);
        let mut late = call(4, parent, "front", CHARGE, [20, 21, 22, 23]);
        late[0].observer = ObserverId(0x77);
        round.spans.extend(late);
        round
    };
    let said = "no rule looked at the response of payment shop.Payment/Charge at front: the instance was not armed";
    elsewhere(1).is(Verdict::Incomplete, &[said]);

    // `front` calls `front` after the hit, and that handler charges: now it certainly came after.
    let mut after = elsewhere(5);
    let mut relay = call(5, 1, "front", "front shop.Front/Again", [11, 12, 30, 31]);
    relay[1].observer = ObserverId(0x77);
    after.spans.extend(relay.clone());
    assert_eq!(after.judged().1, Verdict::Injected);
    // The message without its evidence proves nothing.
    let mut unproved = elsewhere(5);
    relay[1].evidence_came = false;
    unproved.spans.extend(relay);
    assert_eq!(unproved.judged().1, Verdict::Incomplete);
}

#[test]
fn a_call_that_only_its_callee_saw_is_an_unjudged_pass_of_its_callers_service() {
    // Sent by an instance of `front` without sidecar: the callee does not know who called.
    let with = |handler: &str| {
        let mut round = lost_charge().passed(3, 1, PassedBy::Outcome);
        let mut stray = span(Side::Callee, "payment", None, CHARGE, 9, (7, 8));
        let asked = call(8, 1, "gateway", handler, [3, 4, 12, 13]);
        stray.parent = Some(CallId(8));
        round.spans.extend(asked);
        round.spans.push(stray);
        round
    };
    with("front shop.Front/Again").is(
        Verdict::Incomplete,
        &["no sidecar of front recorded its call of payment shop.Payment/Charge that payment saw"],
    );
    // Another service's calls of the same Api are not this target's.
    assert_eq!(with("admin shop.Admin/Again").judged().1, Verdict::Missed);
}

#[test]
fn at_an_entry_the_callees_side_is_judged() {
    let mut round = Round::new(tfic(ENTRY, Occurrence::Number(1), Phase::Response), checkout());
    round.acting = ("front", Side::Callee);
    round.plan.faults[0].guard.after.push(atom(EventKind::ResponseReceived, CHARGE, 1));
    round.clone().hit(1, 1).is(
        Verdict::Injected,
        &["drop of the response of front POST /checkout at front, pass 1 was decided at clock 9, when After(response-received \
           of payment shop.Payment/Charge ≥ 1) held"],
    );
    assert_eq!(round.clone().passed(1, 1, PassedBy::Outcome).judged().1, Verdict::Missed);
    assert_eq!(round.clone().hit(1, 1).gap(Side::Callee, 2, GapKind::Number, "front").judged().1, Verdict::Incomplete);
    // A call of the same Api by a service with a sidecar of its own is no pass here.
    let mut inner = round.hit(1, 1);
    inner.spans.extend(call(7, 1, "admin", ENTRY, [3, 4, 5, 6]));
    assert_eq!(inner.judged().1, Verdict::Injected);
}

#[test]
fn a_pass_of_an_unknown_caller_that_came_from_a_sidecar_lost_its_header() {
    let mut round = Round::new(tfic(CHARGE, Occurrence::Number(1), Phase::Response), checkout());
    round.acting = ("payment", Side::Callee);
    let said = "the response of payment shop.Payment/Charge at payment came from a sidecar and lost its header";
    // The callee minted id 9 beneath the caller's call 3.
    let lost = |round: &Round| {
        let mut round = round.clone();
        round.spans.retain(|span| span.call != CallId(3) || span.side == Side::Caller);
        let mut stray = span(Side::Callee, "payment", None, CHARGE, 9, (7, 8));
        stray.parent = Some(CallId(3));
        round.spans.push(stray);
        round.at(Side::Caller, 3).evidence_came = false;
        round
    };
    lost(&round).hit(9, 1).is(Verdict::Incomplete, &[said]);
    let went = "the request of payment shop.Payment/Charge at front lost its header";
    lost(&round).passed(9, 1, PassedBy::Outcome).is(Verdict::Incomplete, &[went, said]);
    // A rule at the caller judged the call under its own id: the lost header is the callee's trouble.
    let mut caller = lost(&round).clone();
    caller.acting = ("front", Side::Caller);
    assert_eq!(caller.hit(3, 1).judged().1, Verdict::Injected);
}

#[test]
fn a_group_pools_its_passes_and_counts() {
    let group = |k| {
        let mut tfic = tfic(CHARGE, k, Phase::Response);
        tfic.target.api = ApiRef::Group("both".to_owned());
        tfic.guard.after.push(atom(EventKind::ResponseReceived, "group:both", 1));
        let mut round = Round::new(tfic, checkout());
        round.plan.groups.insert("both".to_owned(), BTreeSet::from([api(CHARGE), api(QUOTE)]));
        round
    };
    assert_eq!(group(Occurrence::Number(2)).passed(2, 1, PassedBy::Number).hit(3, 2).judged().1, Verdict::Injected);
    let first = group(Occurrence::First).hit(2, 1).passed(3, 2, PassedBy::Spent);
    first.is(
        Verdict::Premature,
        &["it was decided at clock 4, when response-received of group:both had happened never, not once"],
    );
}

#[test]
fn a_held_message_is_judged_when_it_is_decided_and_numbered_when_it_came() {
    let mut round = three_charges(Phase::Response, Occurrence::Number(1));
    round.plan.faults[0].hold = Some(Hold { deadline: std::time::Duration::from_secs(2).into() });
    round.plan.faults[0].fault = Fault::Delay(std::time::Duration::from_millis(1).into());
    round.plan.faults[0].guard.after.push(atom(EventKind::RequestReceived, CHARGE, 2));
    let held = |decided: u64| {
        let mut round = round.clone().passed(3, 2, PassedBy::Spent).passed(4, 3, PassedBy::Spent);
        let span = round.at(Side::Caller, 2);
        let at = span.response.unwrap().clock - 1;
        span.response = Some(Instant { clock: decided + 1, unix_nanos: 0 });
        span.passes.push(Pass { rule: 0, k: Some(1), clock: at, passed_by: None });
        span.injection = Some(Injection { rule: 0, k: 1, decided, held: true, fault: "delay 1ms".to_owned() });
        round
    };
    let (faults, verdict) = held(9).judged();
    assert_eq!(verdict, Verdict::Injected, "{faults:?}");
    assert!(faults[0].reasons[0].contains("pass 1, which was held for it, was decided at clock 9"), "{faults:?}");
    assert_eq!(held(5).judged().1, Verdict::Premature);
}

#[test]
fn a_response_that_another_fault_made_takes_no_number_and_one_it_changed_does() {
    let mut round = three_charges(Phase::Response, Occurrence::Number(2));
    let mut abort = tfic(CHARGE, Occurrence::Number(1), Phase::Request);
    abort.fault = Fault::Abort;
    round.plan.faults.push(abort);
    // Call 2 was answered by the other fault's sidecar: its response is no pass.
    let span = round.at(Side::Caller, 2);
    span.passes.push(Pass { rule: 1, k: Some(1), clock: 1, passed_by: None });
    span.injection = Some(Injection { rule: 1, k: 1, decided: 1, held: false, fault: "abort".to_owned() });
    (span.made, span.evidence_went, span.evidence_came) = (true, false, false);
    round.spans.retain(|span| span.call != CallId(2) || span.side == Side::Caller);
    for (call, k) in [(3, 2), (4, 3)] {
        let clock = 4 * call - 7;
        round.at(Side::Caller, call).passes.push(Pass { rule: 1, k: Some(k), clock, passed_by: Some(PassedBy::Spent) });
    }
    let round = round.passed(3, 1, PassedBy::Number).hit(4, 2);
    let (faults, verdict) = round.judged();
    assert_eq!(faults.iter().map(|fault| fault.verdict).collect::<Vec<_>>(), [Verdict::Injected; 2], "{faults:?}");
    assert_eq!(verdict, Verdict::Injected);
}

#[test]
fn the_round_has_the_worst_of_its_faults_verdicts() {
    let mut round = lost_charge().hit(3, 1);
    round.plan.faults.push(tfic("payment shop.Payment/Refund", Occurrence::Number(1), Phase::Request));
    let (faults, verdict) = round.judged();
    assert_eq!(faults.iter().map(|fault| fault.verdict).collect::<Vec<_>>(), [Verdict::Injected, Verdict::Unreached]);
    assert_eq!(verdict, Verdict::Unreached);
}

#[test]
fn a_recording_is_clean_if_it_is_complete() {
    let clean = || Round { plan: Plan::default(), ..lost_charge() };
    let verdict = |round: &Round| round.judged().1;
    assert_eq!(verdict(&clean()), Verdict::Clean);
    // Gaps are no reason: a system with hops that have no sidecar always has some.
    assert_eq!(verdict(&clean().gap(Side::Caller, 2, GapKind::Evidence, "front")), Verdict::Clean);
    let mut missing = clean();
    missing.missing.push("lost".to_owned());
    assert_eq!(verdict(&missing), Verdict::Incomplete);
    let mut lost = clean();
    lost.spans.retain(|span| span.call != CallId(2) || span.side != Side::Callee);
    assert_eq!(verdict(&lost), Verdict::Incomplete);
    let mut nothing = clean();
    nothing.spans.clear();
    assert_eq!(verdict(&nothing), Verdict::Incomplete);
    let mut failed = clean();
    failed.failures.push(Failure::Client("x".to_owned()));
    assert_eq!(verdict(&failed), Verdict::Inconclusive);
}
