//! Passes that an arbiter decides (design §3.4), question by question; the test is the arbiter.

use std::time::Duration;

use aftershock_core::event::{EventKind, Outcome, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Hold, MaxInjections, Occurrence, Phase, Rule, Side, StreamPoint, Unlimited};
use aftershock_core::span::{CallSpan, PassedBy};
use aftershock_core::wire::{ARBITER_TIMEOUT, Arm, Ask, FromController, FromSidecar, OpenState, Ruling};

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const PAY: &str = "payment POST /pay";
const CHARGE: &str = "payment shop.Payment/Charge";
const SHIP: &str = "shipping POST /ship";
const ALMOST: Duration = Duration::from_millis(49);

fn arbitrated(of: &str, k: Occurrence, phase: Phase, fault: Fault) -> Rule {
    Rule { arbitrated: true, ..rule("checkout", Side::Caller, of, k, phase, fault) }
}

fn third(phase: Phase, fault: Fault) -> Rule {
    arbitrated(PAY, Occurrence::Number(3), phase, fault)
}

/// `response-received(ok) of shipping ≥ 1`
fn shipped() -> Atom {
    let received = event(EventKind::ResponseReceived, SHIP);
    Atom::new(aftershock_core::event::Event { outcome: OutcomeFilter::Ok, ..received }, 1)
}

fn held(mut rule: Rule) -> Rule {
    rule.tfic.guard.after = vec![shipped()];
    rule.tfic.hold = Some(Hold { deadline: Duration::from_secs(1).into() });
    rule
}

struct Shop {
    net: Net,
    seen: Request,
}

impl Shop {
    fn armed(rules: &[Rule]) -> Self {
        Shop::armed_with(rules, |_| {})
    }

    fn armed_with(rules: &[Rule], change: impl Fn(&mut Arm)) -> Self {
        let mut net = Net::new(&["checkout#1", "checkout#2", "payment", "shipping"]);
        let received = [PAY, CHARGE].map(|of| event(EventKind::ResponseReceived, of));
        net.arm_with(rules, &received, change);
        let seen = net.come_in("checkout#1", tagged(Request::http("POST", "/buy"))).1.through();
        Shop { net, seen }
    }

    fn send(&mut self) -> (Leg, Passage<Request>) {
        self.net.go_out("checkout#1", "payment", Request::http("POST", "/pay").within(&self.seen))
    }

    fn call(&mut self, grpc: bool) -> Dialogue {
        let request = if grpc { Request::grpc("shop.Payment/Charge") } else { Request::http("POST", "/pay") };
        self.net.call("checkout#1", "payment", request.within(&self.seen))
    }

    fn ship(&mut self) {
        let call = self.net.call("checkout#1", "shipping", Request::http("POST", "/ship").within(&self.seen));
        self.net.answer(&call, Response::http(200)).through();
    }

    /// The one question asked since the last call.
    #[track_caller]
    fn asked(&mut self) -> Ask {
        let asks = self.net.asked("checkout#1");
        assert_eq!(asks.len(), 1, "{asks:?}");
        asks.into_iter().next().unwrap()
    }

    fn rule_on(&mut self, ask: &Ask, number: u32, ruling: Ruling) {
        self.net.rule_on("checkout#1", ask, number, ruling);
    }

    /// What it said, but for questions.
    fn said(&mut self) -> Vec<FromSidecar> {
        self.net.said("checkout#1")
    }

    /// The span of the payment after its caller went away.
    #[track_caller]
    fn ended(&mut self, leg: &Leg) -> CallSpan {
        self.net.close(leg, Closed::ByApplication);
        self.span()
    }

    /// The one span of a payment.
    #[track_caller]
    fn span(&mut self) -> CallSpan {
        let spans = self.net.spans("checkout#1");
        let mut spans =
            spans.into_iter().filter(|span| span.side == Side::Caller && span.api.service.as_str() == "payment");
        let span = spans.next().expect("a payment ended");
        assert!(spans.next().is_none());
        span
    }
}

fn given_up(ask: &Ask) -> FromSidecar {
    FromSidecar::GiveUp { token: ask.token, rule: ask.rule, execution: ask.execution, call: ask.call }
}

fn handed_back(ask: &Ask) -> FromSidecar {
    FromSidecar::HandBack { token: ask.token, rule: ask.rule, execution: ask.execution, call: ask.call }
}

fn fired(ask: &Ask) -> FromSidecar {
    FromSidecar::Fired { token: ask.token, rule: ask.rule, execution: ask.execution, call: ask.call }
}

#[track_caller]
fn is_through(net: &mut Net) {
    let resumed = net.resumed();
    assert!(
        matches!(&resumed[..], [(_, Resumed::Request(Passage::Through(_)) | Resumed::Response(Passage::Through(_)))]),
        "{resumed:?}"
    );
}

#[test]
fn a_request_waits_for_its_number_and_is_faulted_on_a_grant() {
    let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
    let (leg, passage) = shop.send();
    assert_eq!(passage, Passage::Kept);
    let ask = shop.asked();
    assert_eq!((ask.token, ask.rule, ask.ready, ask.outcome), (ROUND, 0, true, None));
    assert!(shop.net.resumed().is_empty());
    shop.rule_on(&ask, 3, Ruling::Grant);
    assert_eq!(shop.net.resumed(), [(leg.clone(), Resumed::Request(Passage::Dropped))]);
    assert_eq!(shop.said(), [fired(&ask)]);
    let span = shop.ended(&leg);
    let injection = span.injection.unwrap();
    assert_eq!((injection.k, injection.held), (3, false), "it waited for an answer, not for its guard");
    assert_eq!((span.passes[0].k, &span.passes[0].passed_by), (Some(3), &None));
}

#[test]
fn an_answer_is_decided_at_its_outcome_which_the_question_tells() {
    for (grpc, ok) in [(false, true), (false, false), (true, true), (true, false)] {
        let of = if grpc { CHARGE } else { PAY };
        let mut rule = arbitrated(of, Occurrence::Number(2), Phase::Response, Fault::Abort);
        rule.tfic.target.outcome = OutcomeFilter::Ok;
        let mut shop = Shop::armed(&[rule]);
        let call = shop.call(grpc);
        let response = match (grpc, ok) {
            (true, true) => Response::grpc(0),
            (true, false) => Response::grpc(9),
            (false, true) => Response::http(200),
            (false, false) => Response::http(500),
        };
        assert_eq!(shop.net.answer(&call, response), Passage::Kept);
        let ask = shop.asked();
        assert_eq!((ask.outcome, ask.ready), (Some(if ok { Outcome::Ok } else { Outcome::Error }), ok));
        if ok {
            shop.rule_on(&ask, 2, Ruling::Grant);
            assert!(matches!(&shop.net.resumed()[..], [(_, Resumed::Response(Passage::Made(_)))]));
        } else {
            shop.rule_on(&ask, 2, Ruling::NotYet(Vec::new()));
            is_through(&mut shop.net);
            assert_eq!(shop.span().passes[0].passed_by, Some(PassedBy::Outcome));
        }
    }
}

#[test]
fn a_pass_with_another_number_goes_on_and_keeps_it() {
    let mut shop = Shop::armed(&[third(Phase::Response, Fault::Drop)]);
    for number in [1, 2] {
        let call = shop.call(false);
        assert_eq!(shop.net.answer(&call, Response::http(200)), Passage::Kept);
        let ask = shop.asked();
        shop.rule_on(&ask, number, Ruling::Number);
        is_through(&mut shop.net);
        let pass = shop.span().passes.remove(0);
        assert_eq!((pass.k, pass.passed_by), (Some(number), Some(PassedBy::Number)));
    }
    assert!(shop.said().is_empty(), "nothing was refused or lost");
}

#[test]
fn atoms_on_the_targets_own_event_are_the_arbiters_all_others_are_judged_here() {
    let mut rule = third(Phase::Response, Fault::Drop);
    let own = Atom::new(event(EventKind::ResponseReceived, PAY), 2);
    rule.tfic.guard.after = vec![own, shipped()];
    for (ship, own, expected) in [
        (true, vec![0], PassedBy::GuardFalse(vec![0])),
        (false, vec![0], PassedBy::GuardFalse(vec![0, 1])),
        (false, vec![], PassedBy::GuardFalse(vec![1])),
    ] {
        let mut shop = Shop::armed(std::slice::from_ref(&rule));
        if ship {
            shop.ship();
        }
        let call = shop.call(false);
        assert_eq!(shop.net.answer(&call, Response::http(200)), Passage::Kept);
        let ask = shop.asked();
        assert_eq!(ask.ready, ship, "no own event was counted here");
        shop.rule_on(&ask, 3, Ruling::NotYet(own));
        is_through(&mut shop.net);
        assert_eq!(shop.span().passes[0].passed_by, Some(expected));
    }
}

#[test]
fn a_false_guard_under_a_gap_is_unknown_but_not_for_atoms_that_the_arbiter_counts() {
    let mut rule = arbitrated(PAY, Occurrence::First, Phase::Response, Fault::Drop);
    rule.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseReceived, PAY), 2), shipped()];
    for (ship, expected) in [(true, PassedBy::GuardFalse(vec![0])), (false, PassedBy::GuardUnknown(vec![0, 1]))] {
        let mut shop = Shop::armed(std::slice::from_ref(&rule));
        if ship {
            shop.ship();
        }
        let call = shop.call(false);
        let sent = shop.net.response(&call.into, Response::http(200)).through();
        shop.net.response(&call.out, sent.without_hop());
        let ask = shop.asked();
        shop.rule_on(&ask, 1, Ruling::NotYet(vec![0]));
        assert_eq!(shop.span().passes[0].passed_by, Some(expected));
    }
}

#[test]
fn a_held_pass_keeps_its_number_and_asks_again_when_its_guard_turns_true() {
    let mut shop = Shop::armed(&[held(third(Phase::Request, Fault::Drop))]);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    assert!(!ask.ready);
    shop.rule_on(&ask, 3, Ruling::NotYet(Vec::new()));
    assert!(shop.net.resumed().is_empty() && shop.net.asked("checkout#1").is_empty());
    shop.net.pass_time(Duration::from_millis(500));
    assert!(shop.net.resumed().is_empty(), "a question that was answered has no timeout");
    shop.ship();
    let again = shop.asked();
    assert_eq!(again, Ask { ready: true, ..ask });
    shop.rule_on(&again, 3, Ruling::Grant);
    assert_eq!(shop.net.resumed(), [(leg.clone(), Resumed::Request(Passage::Dropped))]);
    let injection = shop.ended(&leg).injection.unwrap();
    assert_eq!((injection.k, injection.held), (3, true));
}

#[test]
fn a_guard_that_turns_true_while_the_question_is_under_way_is_not_missed() {
    let mut shop = Shop::armed(&[held(third(Phase::Request, Fault::Drop))]);
    shop.send();
    let ask = shop.asked();
    shop.ship();
    assert!(shop.net.asked("checkout#1").is_empty(), "one question at a time");
    shop.rule_on(&ask, 3, Ruling::NotYet(Vec::new()));
    assert_eq!(shop.asked(), Ask { ready: true, ..ask });
}

#[test]
fn a_held_pass_that_only_the_arbiter_refuses_asks_again_whenever_more_is_known() {
    let mut rule = held(arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop));
    rule.tfic.guard.after.insert(0, Atom::new(event(EventKind::RequestSent, PAY), 2));
    let mut shop = Shop::armed(&[rule]);
    shop.ship();
    shop.send();
    for _ in 0..3 {
        let ask = shop.asked();
        assert!(ask.ready);
        shop.rule_on(&ask, 1, Ruling::NotYet(vec![0]));
        assert!(shop.net.asked("checkout#1").is_empty(), "nothing new is known");
        shop.ship();
    }
}

#[test]
fn a_pass_without_an_answer_goes_on_and_ends_the_rule_in_its_execution() {
    let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    shop.net.pass_time(ALMOST);
    assert!(shop.net.resumed().is_empty() && shop.said().is_empty());
    assert_eq!(shop.net.sidecar("checkout#1").next_deadline(), Some(shop.net.now + ARBITER_TIMEOUT - ALMOST));
    shop.net.pass_time(ARBITER_TIMEOUT - ALMOST);
    is_through(&mut shop.net);
    assert_eq!(shop.said(), [given_up(&ask)]);
    // Its answer comes, too late.
    shop.rule_on(&ask, 3, Ruling::Grant);
    assert!(shop.net.resumed().is_empty());
    assert_eq!(shop.said(), [handed_back(&ask)]);
    assert_eq!(shop.ended(&leg).passes[0].passed_by, Some(PassedBy::Arbiter));
    // No pass of this execution asks any more; those of others do.
    let (leg, passage) = shop.send();
    passage.through();
    assert!(shop.net.asked("checkout#1").is_empty());
    let pass = shop.ended(&leg).passes.remove(0);
    assert_eq!((pass.k, pass.passed_by), (None, Some(PassedBy::Spent)));
    shop.seen = shop.net.come_in("checkout#1", tagged(Request::http("POST", "/buy"))).1.through();
    shop.send();
    shop.asked();
}

#[test]
fn a_grant_in_time_for_a_rule_that_another_pass_gave_up_is_handed_back() {
    let mut shop = Shop::armed(&[arbitrated(PAY, Occurrence::Number(2), Phase::Request, Fault::Drop)]);
    shop.send();
    shop.net.pass_time(ALMOST);
    let (second, _) = shop.send();
    let asks = shop.net.asked("checkout#1");
    shop.net.pass_time(ARBITER_TIMEOUT - ALMOST);
    is_through(&mut shop.net);
    assert_eq!(shop.said(), [given_up(&asks[0])]);
    shop.rule_on(&asks[0], 1, Ruling::Number);
    assert!(shop.net.resumed().is_empty(), "the second waits for its own answer");
    shop.rule_on(&asks[1], 2, Ruling::Grant);
    is_through(&mut shop.net);
    assert_eq!(shop.said(), [handed_back(&asks[1])]);
    let pass = shop.ended(&second).passes.remove(0);
    assert_eq!((pass.k, pass.passed_by), (Some(2), Some(PassedBy::Spent)));
}

#[test]
fn a_grant_for_a_caller_that_has_gone_is_handed_back_and_ends_the_rule() {
    let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    let span = shop.ended(&leg);
    assert_eq!(span.passes[0].passed_by, Some(PassedBy::CallerGone));
    assert!(shop.said().is_empty());
    shop.net.pass_time(ARBITER_TIMEOUT);
    assert!(shop.said().is_empty(), "nobody waits, so nobody gives up");
    shop.rule_on(&ask, 3, Ruling::Grant);
    assert_eq!(shop.said(), [handed_back(&ask)]);
    shop.send().1.through();
    // Anything but a grant needs no answer.
    for ruling in [Ruling::Number, Ruling::Spent, Ruling::NotYet(vec![])] {
        let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
        let (leg, _) = shop.send();
        let ask = shop.asked();
        shop.ended(&leg);
        shop.rule_on(&ask, 3, ruling);
        assert!(shop.said().is_empty());
    }
}

#[test]
fn what_is_disarmed_while_it_asks_goes_on_and_hands_a_late_grant_back() {
    for how in 0..4 {
        let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
        let (leg, _) = shop.send();
        let ask = shop.asked();
        match how {
            0 => shop.net.tell("checkout#1", FromController::Disarm { token: ROUND }),
            1 => shop.net.tell("checkout#1", FromController::End { token: ROUND }),
            2 => {
                shop.net.sidecar("checkout#1").shutdown();
                shop.net.pass_time(Duration::ZERO);
            }
            // What ends first is the lease.
            _ => {
                let arm = Arm {
                    rules: vec![third(Phase::Request, Fault::Drop)],
                    arbiter_timeout: Duration::from_secs(60),
                    ..Arm::clean(ROUND, Duration::from_secs(10))
                };
                shop.net.tell("checkout#1", FromController::Arm(arm));
                shop.net.pass_time(Duration::from_secs(10));
            }
        }
        is_through(&mut shop.net);
        let said = shop.said();
        assert!(!said.iter().any(|word| matches!(word, FromSidecar::GiveUp { .. })), "{said:?}");
        shop.rule_on(&ask, 3, Ruling::Grant);
        assert_eq!(shop.said(), [handed_back(&ask)]);
        assert_eq!(shop.ended(&leg).passes[0].passed_by, Some(PassedBy::Disarmed), "{how}");
        assert!(shop.net.resumed().is_empty());
    }
}

#[test]
fn a_grant_that_the_editor_cannot_use_is_handed_back_and_the_shot_does_not_come_back() {
    for (why, passed_by) in [
        (Refusal::Pipelined, PassedBy::Pipelined),
        (Refusal::Goaway, PassedBy::Goaway),
        (Refusal::TooLate, PassedBy::CallerGone),
    ] {
        let mut shop = Shop::armed(&[third(Phase::Request, Fault::Abort)]);
        let (leg, _) = shop.send();
        let ask = shop.asked();
        shop.net.refuse_next(Some(why));
        shop.rule_on(&ask, 3, Ruling::Grant);
        is_through(&mut shop.net);
        assert_eq!(shop.said(), [handed_back(&ask)]);
        let span = shop.ended(&leg);
        assert_eq!((span.injection, &span.passes[0].passed_by), (None, &Some(passed_by)));
        shop.send().1.through();
        assert!(shop.net.asked("checkout#1").is_empty(), "the rule has ended here");
    }
}

#[test]
fn a_number_that_comes_into_doubt_before_the_grant_hands_it_back() {
    for (k, faulted) in [(Occurrence::Number(3), false), (Occurrence::First, true)] {
        let mut shop = Shop::armed(&[arbitrated(PAY, k, Phase::Request, Fault::Drop)]);
        shop.send();
        let ask = shop.asked();
        // A payment that nobody can associate.
        shop.net.go_out("checkout#1", "payment", Request::http("POST", "/pay")).1.through();
        shop.rule_on(&ask, 3, Ruling::Grant);
        let dropped = matches!(&shop.net.resumed()[..], [(_, Resumed::Request(Passage::Dropped))]);
        assert_eq!(dropped, faulted);
        assert_eq!(shop.said(), [if faulted { fired(&ask) } else { handed_back(&ask) }]);
    }
}

#[test]
fn a_blocked_pass_asks_for_its_number_and_is_not_ready() {
    let mut shop = Shop::armed(&[third(Phase::Request, Fault::Drop)]);
    shop.net.go_out("checkout#1", "payment", Request::http("POST", "/pay")).1.through();
    let (leg, _) = shop.send();
    let ask = shop.asked();
    assert!(!ask.ready, "others count on its number");
    shop.rule_on(&ask, 1, Ruling::Number);
    is_through(&mut shop.net);
    let pass = shop.ended(&leg).passes.remove(0);
    assert_eq!((pass.k, pass.passed_by), (Some(1), Some(PassedBy::NumberBlocked)));
}

#[test]
fn a_spent_rule_has_ended_and_lets_go_whatever_it_keeps() {
    let mut shop = Shop::armed(&[held(arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop))]);
    let legs: Vec<Leg> = (0..3).map(|_| shop.send().0).collect();
    let asks = shop.net.asked("checkout#1");
    assert_eq!(asks.len(), 3);
    shop.rule_on(&asks[0], 1, Ruling::NotYet(Vec::new()));
    shop.rule_on(&asks[1], 2, Ruling::NotYet(Vec::new()));
    assert!(shop.net.resumed().is_empty());
    // Another instance has the shot.
    shop.rule_on(&asks[2], 5, Ruling::Spent);
    let let_go: Vec<Leg> = shop.net.resumed().into_iter().map(|(leg, _)| leg).collect();
    assert_eq!(let_go.len(), 3);
    for (leg, k) in legs.iter().zip([1, 2, 5]) {
        let pass = shop.ended(leg).passes.remove(0);
        assert_eq!((pass.k, pass.passed_by), (Some(k), Some(PassedBy::Spent)));
    }
    shop.send().1.through();
    assert!(shop.said().is_empty());
}

#[test]
fn the_arbiter_may_say_unasked_that_a_rule_is_spent() {
    let mut shop = Shop::armed(&[held(arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop))]);
    shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 1, Ruling::NotYet(Vec::new()));
    shop.rule_on(&ask, 1, Ruling::Spent);
    is_through(&mut shop.net);
    // A grant for what does not ask cannot be meant.
    let mut shop = Shop::armed(&[held(arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop))]);
    shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 1, Ruling::NotYet(Vec::new()));
    shop.rule_on(&ask, 1, Ruling::Grant);
    is_through(&mut shop.net);
    assert_eq!(shop.said(), [handed_back(&ask)]);
}

#[test]
fn the_first_grant_of_a_rule_in_an_execution_is_the_only_one_that_is_used() {
    let mut shop = Shop::armed(&[arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop)]);
    shop.send();
    shop.send();
    let asks = shop.net.asked("checkout#1");
    // An arbiter that has lost its mind.
    shop.rule_on(&asks[0], 1, Ruling::Grant);
    shop.rule_on(&asks[1], 2, Ruling::Grant);
    let resumed = shop.net.resumed();
    assert_eq!(resumed.iter().filter(|(_, what)| *what == Resumed::Request(Passage::Dropped)).count(), 1);
    assert_eq!(shop.said(), [fired(&asks[0]), handed_back(&asks[1])]);
}

#[test]
fn one_message_is_granted_to_one_rule_at_a_time() {
    let rules = [
        arbitrated(PAY, Occurrence::Number(1), Phase::Request, Fault::Drop),
        Rule { index: 1, ..arbitrated(PAY, Occurrence::Number(2), Phase::Request, Fault::Abort) },
    ];
    for first_granted in [true, false] {
        let mut shop = Shop::armed(&rules);
        let (leg, _) = shop.send();
        let asks = shop.net.asked("checkout#1");
        let ready: Vec<(usize, bool)> = asks.iter().map(|ask| (ask.rule, ask.ready)).collect();
        assert_eq!(ready, [(0, true), (1, false)]);
        if first_granted {
            shop.rule_on(&asks[0], 1, Ruling::Grant);
            assert_eq!(shop.net.resumed(), [(leg.clone(), Resumed::Request(Passage::Dropped))]);
            shop.rule_on(&asks[1], 1, Ruling::Number);
            assert_eq!(shop.said(), [fired(&asks[0])]);
            let passes = shop.ended(&leg).passes;
            assert_eq!((passes[1].k, &passes[1].passed_by), (Some(1), &Some(PassedBy::Spent)), "it has its number");
        } else {
            shop.rule_on(&asks[1], 2, Ruling::NotYet(Vec::new()));
            assert!(shop.net.asked("checkout#1").is_empty(), "it waits for its turn");
            shop.rule_on(&asks[0], 2, Ruling::Number);
            let again = shop.asked();
            assert_eq!(again, Ask { ready: true, ..asks[1].clone() });
            shop.rule_on(&again, 2, Ruling::Grant);
            assert!(matches!(&shop.net.resumed()[..], [(_, Resumed::Request(Passage::Made(_)))]));
            assert_eq!(shop.said(), [fired(&again)]);
        }
    }
}

#[test]
fn a_question_needs_no_place_but_what_is_parked_after_it_does() {
    let none = |arm: &mut Arm| arm.max_parked = 0;
    // A fault that parks nothing.
    let mut shop = Shop::armed_with(&[third(Phase::Request, Fault::Drop)], none);
    shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 3, Ruling::Grant);
    assert!(matches!(&shop.net.resumed()[..], [(_, Resumed::Request(Passage::Dropped))]));
    // A delay.
    let mut shop = Shop::armed_with(&[third(Phase::Request, Fault::Delay(Duration::from_secs(1).into()))], none);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 3, Ruling::Grant);
    is_through(&mut shop.net);
    assert_eq!(shop.said(), [handed_back(&ask)]);
    assert_eq!(shop.ended(&leg).passes[0].passed_by, Some(PassedBy::ParkedLimit));
    // A hold.
    let mut shop = Shop::armed_with(&[held(third(Phase::Request, Fault::Drop))], none);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 3, Ruling::NotYet(Vec::new()));
    is_through(&mut shop.net);
    assert_eq!(shop.ended(&leg).passes[0].passed_by, Some(PassedBy::ParkedLimit));
    assert_eq!(shop.net.ignored("checkout#1", "parked-limit"), 1);
}

#[test]
fn what_asks_is_running_and_what_is_held_is_parked() {
    let mut shop = Shop::armed(&[held(third(Phase::Request, Fault::Drop))]);
    shop.net.tell("checkout#1", FromController::Watch { token: ROUND });
    let parked = |shop: &mut Shop| {
        let said = shop.said();
        let open = said.iter().rev().find_map(|word| match word {
            FromSidecar::Activity { open, .. } => {
                Some(open.iter().filter(|call| call.state == OpenState::Parked).count())
            }
            _ => None,
        });
        open.expect("it is watched")
    };
    shop.send();
    let ask = shop.asked();
    assert_eq!(parked(&mut shop), 0);
    shop.rule_on(&ask, 3, Ruling::NotYet(Vec::new()));
    assert_eq!(parked(&mut shop), 1);
    shop.ship();
    let again = shop.asked();
    assert_eq!(parked(&mut shop), 0, "it is decided soon");
    shop.rule_on(&again, 3, Ruling::NotYet(Vec::new()));
    assert_eq!(parked(&mut shop), 1);
}

#[test]
fn a_hold_that_is_over_while_it_asks_lets_the_message_go_unfaulted() {
    let mut shop = Shop::armed(&[held(third(Phase::Request, Fault::Drop))]);
    let (leg, _) = shop.send();
    let ask = shop.asked();
    shop.rule_on(&ask, 3, Ruling::NotYet(Vec::new()));
    shop.net.pass_time(Duration::from_millis(980));
    shop.ship();
    let again = shop.asked();
    shop.net.pass_time(Duration::from_millis(20));
    is_through(&mut shop.net);
    assert!(shop.said().is_empty(), "its answer was not late");
    shop.rule_on(&again, 3, Ruling::Grant);
    assert_eq!(shop.said(), [handed_back(&again)]);
    assert_eq!(shop.ended(&leg).passes[0].passed_by, Some(PassedBy::HoldDeadline));
}

#[test]
fn answers_are_withheld_until_a_number_says_that_k_is_over() {
    let rule = arbitrated(CHARGE, Occurrence::Number(2), Phase::Response, Fault::Drop);
    let mut shop = Shop::armed(&[rule]);
    for number in [1, 2] {
        let call = shop.call(true);
        assert_eq!(shop.net.answer(&call, Response::grpc(0)), Passage::Kept, "head and all");
        let ask = shop.asked();
        // The second is at another instance; this one is the third.
        shop.rule_on(&ask, number * 2 - 1, Ruling::Number);
        is_through(&mut shop.net);
        shop.span();
    }
    let call = shop.call(true);
    let sent = shop.net.response(&call.into, Response::grpc(0)).through();
    shop.net.response_head(&call.out, sent);
    assert_eq!(shop.net.response_rest(&call.out), Passage::Kept, "its end waits for the number");
    let ask = shop.asked();
    shop.rule_on(&ask, 4, Ruling::Number);
    is_through(&mut shop.net);
    assert_eq!(shop.span().passes[0].k, Some(4));
}

#[test]
fn at_the_head_a_stream_asks_before_its_head_goes_on() {
    let mut rule = arbitrated(CHARGE, Occurrence::Number(1), Phase::Response, Fault::Reset(Default::default()));
    rule.tfic.target.at = Some(StreamPoint::Head);
    let mut shop = Shop::armed(&[rule]);
    let call = shop.call(true);
    assert_eq!(shop.net.answer(&call, Response::grpc(0)), Passage::Kept);
    let ask = shop.asked();
    assert_eq!(ask.outcome, None);
    shop.rule_on(&ask, 1, Ruling::Grant);
    assert_eq!(shop.net.resumed(), [(call.out, Resumed::Response(Passage::Reset))]);
}

#[test]
fn a_rule_that_used_up_its_shots_here_asks_no_more_and_an_unlimited_one_does() {
    for (limit, asks) in [(MaxInjections::Limited(1), 0), (MaxInjections::Unlimited(Unlimited::Unlimited), 1)] {
        let mut rule = arbitrated(PAY, Occurrence::First, Phase::Request, Fault::Drop);
        rule.tfic.max_injections = limit;
        let mut shop = Shop::armed(&[rule]);
        shop.send();
        let ask = shop.asked();
        shop.rule_on(&ask, 1, Ruling::Grant);
        shop.seen = shop.net.come_in("checkout#1", tagged(Request::http("POST", "/buy"))).1.through();
        shop.send();
        assert_eq!(shop.net.asked("checkout#1").len(), asks);
    }
}

#[test]
fn at_an_entry_the_callees_instances_ask() {
    let buy = "checkout POST /buy";
    let entry = rule("checkout", Side::Callee, buy, Occurrence::Number(1), Phase::Response, Fault::Drop);
    let mut shop = Shop::armed(&[Rule { arbitrated: true, ..entry }]);
    let (leg, passage) = shop.net.come_in("checkout#2", tagged(Request::http("POST", "/buy")));
    passage.through();
    assert_eq!(shop.net.response(&leg, Response::http(200)), Passage::Kept);
    let asks = shop.net.asked("checkout#2");
    assert_eq!((asks.len(), asks[0].outcome), (1, Some(Outcome::Ok)));
    shop.net.rule_on("checkout#2", &asks[0], 1, Ruling::Grant);
    assert_eq!(shop.net.resumed(), [(leg, Resumed::Response(Passage::Dropped))]);
}
