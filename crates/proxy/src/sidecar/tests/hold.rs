//! The trigger `hold` (design §3.5): an interleaving is made to happen.

use std::time::Duration;

use aftershock_core::event::EventKind;
use aftershock_core::plan::{Atom, Fault, Hold, MaxInjections, Occurrence, Phase, Rule, Side, Unlimited};
use aftershock_core::span::PassedBy;
use aftershock_core::wire::{FromController, FromSidecar};

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const CREATE: &str = "user shop.User/Create";
const CHECK: &str = "risk shop.Risk/Check";
const DEADLINE: Duration = Duration::from_secs(2);

fn create() -> Request {
    Request::grpc("shop.User/Create")
}

fn check() -> Request {
    Request::grpc("shop.Risk/Check")
}

/// The answer of the risk check is kept until the answer of the creation was seen.
fn order_sensitive(fault: Fault) -> Rule {
    let mut rule = rule("signup", Side::Caller, CHECK, Occurrence::Number(1), Phase::Response, fault);
    rule.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseReceived, CREATE), 1)];
    rule.tfic.hold = Some(Hold { deadline: DEADLINE.into() });
    rule
}

struct Signup {
    net: Net,
    seen: Request,
}

impl Signup {
    fn armed(rules: &[Rule]) -> Self {
        Signup::armed_with(rules, |_| {})
    }

    fn armed_with(rules: &[Rule], change: impl Fn(&mut aftershock_core::wire::Arm)) -> Self {
        let mut net = Net::new(&["signup", "user", "risk"]);
        net.arm_with(rules, &[CREATE, CHECK].map(|of| event(EventKind::ResponseReceived, of)), change);
        let seen = net.come_in("signup", tagged(Request::grpc("shop.Signup/SignUp"))).1.through();
        Signup { net, seen }
    }

    fn call(&mut self, callee: &str, request: Request) -> Dialogue {
        self.net.call("signup", callee, request.within(&self.seen))
    }

    fn count(&mut self, of: &str) -> u64 {
        let execution = self.seen.member().unwrap().execution;
        self.net.evidence("signup", execution).count(event(EventKind::ResponseReceived, of).id())
    }

    /// The passes of the calls that ended: number, and why nothing was done.
    fn passes(&mut self) -> Vec<(u32, Option<PassedBy>)> {
        self.net
            .spans("signup")
            .into_iter()
            .flat_map(|span| span.passes)
            .map(|pass| (pass.k.unwrap(), pass.passed_by))
            .collect()
    }
}

#[test]
fn a_held_answer_waits_for_the_competing_one_and_is_delayed_from_then_on() {
    let delay = Duration::from_millis(100);
    let mut signup = Signup::armed(&[order_sensitive(Fault::Delay(delay.into()))]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept, "it came first");
    signup.net.pass_time(Duration::from_millis(500));
    assert!(signup.net.resumed().is_empty());
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert!(signup.net.resumed().is_empty(), "the guard holds now, the delay begins");
    assert!(signup.net.said("signup").iter().any(|word| matches!(word, FromSidecar::Fired { .. })));
    signup.net.pass_time(delay - Duration::from_millis(1));
    assert!(signup.net.resumed().is_empty());
    signup.net.pass_time(Duration::from_millis(1));
    assert!(
        matches!(&signup.net.resumed()[..], [(leg, Resumed::Response(Passage::Through(_)))] if *leg == checking.out)
    );
    let spans = signup.net.spans("signup");
    let span = spans.iter().find(|span| span.injection.is_some()).unwrap();
    let competing = spans.iter().find(|span| span.injection.is_none()).unwrap();
    let injection = span.injection.as_ref().unwrap();
    assert!(injection.held && injection.decided >= competing.response.unwrap().clock);
    assert!(span.passes[0].clock < competing.response.unwrap().clock, "its number was taken when it came");
    assert!(span.response.unwrap().clock > injection.decided);
}

#[test]
fn a_guard_that_holds_already_needs_no_hold() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Dropped);
    signup.net.close(&checking.out, Closed::ByApplication);
    let spans = signup.net.spans("signup");
    assert!(!spans.iter().find_map(|span| span.injection.as_ref()).unwrap().held);
}

#[test]
fn a_held_message_can_meet_any_fault() {
    for fault in [Fault::Drop, Fault::Reset(Default::default()), Fault::Abort] {
        let mut signup = Signup::armed(&[order_sensitive(fault.clone())]);
        let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
        signup.net.answer(&checking, Response::grpc(0));
        signup.net.answer(&creation, Response::grpc(0)).through();
        let resumed = signup.net.resumed();
        let [(_, Resumed::Response(passage))] = &resumed[..] else { panic!("{fault}: {resumed:?}") };
        assert_eq!(matches!(passage, Passage::Dropped), fault == Fault::Drop);
        assert_eq!(matches!(passage, Passage::Reset), fault == Fault::Reset(Default::default()));
        assert_eq!(matches!(passage, Passage::Made(_)), fault == Fault::Abort);
        signup.net.close(&checking.out, Closed::ByApplication);
        let injected = signup.net.spans("signup").iter().filter(|span| span.injection.is_some()).count();
        assert_eq!(injected, 1, "{fault}");
    }
}

#[test]
fn at_its_deadline_a_held_message_goes_on_unfaulted() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    signup.net.answer(&checking, Response::grpc(0));
    assert_eq!(signup.count(CHECK), 0);
    signup.net.pass_time(DEADLINE);
    assert!(matches!(&signup.net.resumed()[..], [(_, Resumed::Response(Passage::Through(_)))]));
    assert_eq!(signup.passes(), [(1, Some(PassedBy::HoldDeadline))]);
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert!(signup.net.resumed().is_empty());
}

#[test]
fn a_caller_that_leaves_a_held_message_is_no_injection_and_no_event() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    signup.net.answer(&checking, Response::grpc(0));
    signup.net.close(&checking.out, Closed::ByApplication);
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert!(signup.net.resumed().is_empty());
    let spans = signup.net.spans("signup");
    assert_eq!(spans[0].passes[0].passed_by, Some(PassedBy::CallerGone));
    assert_eq!((spans[0].response, &spans[0].injection), (None, &None));
}

#[test]
fn a_held_request_is_counted_when_it_leaves_and_carries_what_is_known_then() {
    let mut rule = rule("signup", Side::Caller, CHECK, Occurrence::Number(1), Phase::Request, Fault::Drop);
    rule.tfic.guard.after = vec![
        Atom::new(event(EventKind::RequestSent, CHECK), 1),
        Atom::new(event(EventKind::ResponseReceived, CREATE), 1),
    ];
    rule.tfic.hold = Some(Hold { deadline: DEADLINE.into() });
    let mut signup = Signup::armed(&[rule]);
    let creation = signup.call("user", create());
    let (_, passage) = signup.net.go_out("signup", "risk", check().within(&signup.seen));
    assert_eq!(passage, Passage::Kept);
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert!(signup.net.resumed().is_empty(), "its own event is not before it");
    signup.net.pass_time(DEADLINE);
    let resumed = signup.net.resumed();
    let [(_, Resumed::Request(passage))] = &resumed[..] else { panic!("{resumed:?}") };
    let sent = passage.clone().through();
    let execution = signup.seen.member().unwrap().execution;
    signup.net.come_in("risk", sent).1.through();
    let at_risk = signup.net.evidence("risk", execution);
    assert_eq!(at_risk.count(event(EventKind::ResponseReceived, CREATE).id()), 1, "stamped at release");
    assert_eq!(at_risk.count(event(EventKind::RequestSent, CHECK).id()), 1);
}

/// The first answer of a check at which two creations were seen.
fn first_after_two(fault: Fault) -> Rule {
    let mut rule = order_sensitive(fault);
    rule.tfic.target.k = Occurrence::First;
    rule.tfic.guard.after[0].count = 2;
    rule
}

#[test]
fn with_k_first_every_pass_may_be_parked_and_all_others_go_when_the_rule_fires() {
    let mut signup = Signup::armed(&[first_after_two(Fault::Drop)]);
    let checks: Vec<_> = (0..4).map(|_| signup.call("risk", check())).collect();
    for checking in &checks[..3] {
        assert_eq!(signup.net.answer(checking, Response::grpc(0)), Passage::Kept);
    }
    for expected in [0, 3] {
        let creation = signup.call("user", create());
        signup.net.answer(&creation, Response::grpc(0)).through();
        let resumed = signup.net.resumed();
        assert_eq!(resumed.len(), expected);
        for (leg, resumed) in resumed {
            let first = leg == checks[0].out;
            assert_eq!(resumed == Resumed::Response(Passage::Dropped), first, "the first to come is the one");
        }
    }
    signup.net.answer(&checks[3], Response::grpc(0)).through();
    signup.net.close(&checks[0].out, Closed::ByApplication);
    let passes = signup.passes();
    let spent = passes.iter().filter(|(_, why)| *why == Some(PassedBy::Spent)).count();
    assert_eq!((spent, passes.iter().filter(|(_, why)| why.is_none()).count()), (3, 1));
}

#[test]
fn when_the_rounds_injections_are_used_up_held_messages_of_other_executions_go() {
    for (limit, released) in [(MaxInjections::Limited(1), 1), (MaxInjections::Unlimited(Unlimited::Unlimited), 0)] {
        let mut rule = order_sensitive(Fault::Drop);
        rule.tfic.max_injections = limit;
        let mut signup = Signup::armed(&[rule]);
        let waiting = signup.call("risk", check());
        assert_eq!(signup.net.answer(&waiting, Response::grpc(0)), Passage::Kept);
        signup.seen = signup.net.come_in("signup", tagged(Request::grpc("shop.Signup/SignUp"))).1.through();
        let creation = signup.call("user", create());
        signup.net.answer(&creation, Response::grpc(0)).through();
        let checking = signup.call("risk", check());
        assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Dropped);
        let resumed = signup.net.resumed();
        assert_eq!(resumed.len(), released, "{limit:?}");
        assert!(resumed.iter().all(|(leg, _)| *leg == waiting.out));
    }
}

#[test]
fn a_number_that_comes_into_doubt_while_held_lets_the_message_go() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let checking = signup.call("risk", check());
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept);
    // A check that nobody can associate may have been number one.
    signup.net.go_out("signup", "risk", check()).1.through();
    assert!(matches!(&signup.net.resumed()[..], [(_, Resumed::Response(Passage::Through(_)))]));
    assert_eq!(signup.passes(), [(1, Some(PassedBy::NumberBlocked))]);
}

#[test]
fn an_act_refused_at_release_lets_the_message_go_and_counts_it() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Abort)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept);
    let sent = signup.net.response(&creation.into, Response::grpc(0)).through();
    // The creation's answer passes; the refusal meets the check's act.
    let passage = signup.net.response_then_refuse(&creation.out, sent, Refusal::Pipelined);
    passage.through();
    assert!(matches!(&signup.net.resumed()[..], [(_, Resumed::Response(Passage::Through(_)))]));
    assert_eq!(signup.count(CHECK), 1);
    let passes = signup.passes();
    assert!(passes.contains(&(1, Some(PassedBy::Pipelined))), "{passes:?}");
    assert!(!signup.net.said("signup").iter().any(|word| matches!(word, FromSidecar::Fired { .. })));
}

#[test]
fn a_caller_that_leaves_between_the_decision_and_the_act_is_no_injection() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept);
    signup.net.slow = true;
    signup.net.answer(&creation, Response::grpc(0)).through();
    signup.net.close(&checking.out, Closed::ByApplication);
    signup.net.carry_out();
    assert!(signup.net.resumed().is_empty());
    assert!(!signup.net.said("signup").iter().any(|word| matches!(word, FromSidecar::Fired { .. })));
    let passes = signup.passes();
    assert!(passes.contains(&(1, Some(PassedBy::CallerGone))), "{passes:?}");
    // The shot was not fired.
    signup.seen = signup.net.come_in("signup", tagged(Request::grpc("shop.Signup/SignUp"))).1.through();
    let creation = signup.call("user", create());
    signup.net.answer(&creation, Response::grpc(0)).through();
    let checking = signup.call("risk", check());
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Dropped);
}

#[test]
fn disarming_while_a_drop_is_under_way_closes_what_it_dropped() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept);
    signup.net.slow = true;
    signup.net.answer(&creation, Response::grpc(0)).through();
    signup.net.tell("signup", FromController::Disarm { token: ROUND });
    signup.net.carry_out();
    let resumed: Vec<_> = signup.net.resumed().into_iter().map(|(_, resumed)| resumed).collect();
    assert_eq!(resumed, [Resumed::Response(Passage::Dropped), Resumed::Closed]);
}

#[test]
fn evidence_that_only_arrives_lets_a_held_message_go_too() {
    let mut rule = order_sensitive(Fault::Drop);
    rule.tfic.guard.after = vec![Atom::new(event(EventKind::RequestReceived, CREATE), 1)];
    let mut net = Net::new(&["signup", "user", "risk"]);
    // Nothing that this sidecar observes itself is counted.
    net.arm(&[rule], &[]);
    let seen = net.come_in("signup", tagged(Request::grpc("shop.Signup/SignUp"))).1.through();
    let creation = net.call("signup", "user", create().within(&seen));
    let checking = net.call("signup", "risk", check().within(&seen));
    assert_eq!(net.answer(&checking, Response::grpc(0)), Passage::Kept);
    net.answer(&creation, Response::grpc(0)).through();
    assert_eq!(net.resumed(), [(checking.out, Resumed::Response(Passage::Dropped))]);
}

#[test]
fn no_place_to_park_means_no_hold() {
    let mut signup = Signup::armed_with(&[order_sensitive(Fault::Drop)], |arm| arm.max_parked = 0);
    let checking = signup.call("risk", check());
    signup.net.answer(&checking, Response::grpc(0)).through();
    assert_eq!(signup.passes(), [(1, Some(PassedBy::ParkedLimit))]);
    assert_eq!(signup.net.ignored("signup", "parked-limit"), 1);
}

#[test]
fn a_release_lets_the_held_message_go_unchanged_once_the_guard_holds_and_is_an_injection() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Release)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    assert_eq!(signup.net.answer(&checking, Response::grpc(0)), Passage::Kept);
    assert_eq!(signup.count(CHECK), 0, "counted when it goes on");
    signup.net.answer(&creation, Response::grpc(0)).through();
    let resumed = signup.net.resumed();
    let [(leg, Resumed::Response(Passage::Through(response)))] = &resumed[..] else { panic!("{resumed:?}") };
    assert_eq!((leg, response.clone().without_hop()), (&checking.out, Response::grpc(0)));
    assert_eq!((signup.count(CREATE), signup.count(CHECK)), (1, 1));
    let said = signup.net.said("signup");
    assert_eq!(said.iter().filter(|word| matches!(word, FromSidecar::Fired { .. })).count(), 1);
    let spans = signup.net.spans("signup");
    let span = spans.iter().find(|span| span.injection.is_some()).unwrap();
    let competing = spans.iter().find(|span| span.injection.is_none()).unwrap();
    let injection = span.injection.as_ref().unwrap();
    assert_eq!((injection.k, injection.held, injection.fault.as_str()), (1, true, "release"));
    assert!(!span.made && span.response.unwrap().clock > competing.response.unwrap().clock);
    assert!(injection.decided >= competing.response.unwrap().clock);
}

#[test]
fn a_released_request_is_counted_once_and_a_release_that_need_not_wait_was_not_held() {
    for first in [false, true] {
        let mut rule = rule("signup", Side::Caller, CHECK, Occurrence::Number(1), Phase::Request, Fault::Release);
        rule.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseReceived, CREATE), 1)];
        rule.tfic.hold = Some(Hold { deadline: DEADLINE.into() });
        let mut signup = Signup::armed(&[rule]);
        let creation = signup.call("user", create());
        if first {
            signup.net.answer(&creation, Response::grpc(0)).through();
        }
        let (out, passage) = signup.net.go_out("signup", "risk", check().within(&signup.seen));
        let sent = if first {
            passage.through()
        } else {
            assert_eq!(passage, Passage::Kept);
            signup.net.answer(&creation, Response::grpc(0)).through();
            let resumed = signup.net.resumed();
            let [(_, Resumed::Request(passage))] = &resumed[..] else { panic!("{resumed:?}") };
            passage.clone().through()
        };
        let into = signup.net.come_in("risk", sent).0;
        let answer = signup.net.response(&into, Response::grpc(0)).through();
        signup.net.response(&out, answer).through();
        assert_eq!(signup.count(CHECK), 1, "its answer passes");
        let spans = signup.net.spans("signup");
        let injections: Vec<_> = spans.iter().filter_map(|span| span.injection.as_ref()).collect();
        assert_eq!(injections.len(), 1);
        assert_eq!(injections[0].held, !first);
    }
}

#[test]
fn what_comes_after_the_disarming_is_recorded_as_such() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let creation = signup.call("user", create());
    signup.net.tell("signup", FromController::Disarm { token: ROUND });
    let checking = signup.call("risk", check());
    signup.net.answer(&checking, Response::grpc(0)).through();
    signup.net.answer(&creation, Response::grpc(0)).through();
    let checking = signup.call("risk", check());
    signup.net.answer(&checking, Response::grpc(0)).through();
    assert_eq!(signup.passes(), [(1, Some(PassedBy::RoundOver)), (2, Some(PassedBy::Number))]);
    assert!(signup.net.resumed().is_empty(), "nothing was kept");
}

#[test]
fn disarming_lets_held_messages_go_and_the_token_stays() {
    let mut signup = Signup::armed(&[order_sensitive(Fault::Drop)]);
    let (creation, checking) = (signup.call("user", create()), signup.call("risk", check()));
    signup.net.answer(&checking, Response::grpc(0));
    signup.net.tell("signup", FromController::Disarm { token: ROUND });
    assert!(matches!(&signup.net.resumed()[..], [(_, Resumed::Response(Passage::Through(_)))]));
    assert!(signup.net.said("signup").contains(&FromSidecar::Disarmed { token: ROUND }));
    assert_eq!(signup.passes(), [(1, Some(PassedBy::Disarmed))]);
    signup.net.answer(&creation, Response::grpc(0)).through();
    assert_eq!(signup.count(CREATE), 1, "events are counted until the round ends");
    assert_eq!(signup.net.spans("signup").len(), 1);
}
