//! Rounds, leases, activity, the end (design §3.6, §3.7).

use std::time::Duration;

use aftershock_core::event::EventKind;
use aftershock_core::hop::Keyring;
use aftershock_core::id::Token;
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side};
use aftershock_core::wire::{FromController, FromSidecar, OpenState, PROTOCOL, Registry};

use crate::exchange::Closed;
use crate::sidecar::testing::*;

const PAY: &str = "payment POST /pay";
const LEASE: Duration = Duration::from_secs(10);

fn pay(seen: &Request) -> Request {
    Request::http("POST", "/pay").within(seen)
}

fn fault(phase: Phase, fault: Fault) -> Rule {
    rule("checkout", Side::Caller, PAY, Occurrence::First, phase, fault)
}

fn armed(rule: Rule) -> (Net, Request) {
    let mut net = Net::new(&["checkout", "payment"]);
    net.arm(&[rule], &[event(EventKind::RequestSent, PAY)]);
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    (net, seen)
}

#[test]
fn a_lease_that_lapses_takes_rules_and_token_and_lets_everything_go() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Delay(Duration::from_secs(60).into())));
    let (out, passage) = net.go_out("checkout", "payment", pay(&seen));
    assert_eq!(passage, Passage::Kept);
    assert_eq!(net.sidecar("checkout").next_deadline(), Some(net.now + LEASE));
    net.pass_time(LEASE - Duration::from_millis(1));
    assert!(net.resumed().is_empty());
    net.pass_time(Duration::from_millis(1));
    assert!(matches!(&net.resumed()[..], [(leg, Resumed::Request(Passage::Through(_)))] if *leg == out));
    assert!(net.said("checkout").contains(&FromSidecar::Lapsed { token: ROUND }));
    assert!(net.sidecar("checkout").live_tokens().is_empty());
    net.go_out("checkout", "payment", pay(&seen)).1.through();
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    assert_eq!(seen.member().unwrap().token, Token(0), "the token is worth nothing any more");
    net.close(&out, Closed::ByApplication);
    let spans = net.spans("checkout");
    assert!(spans[0].gaps.blocks_number(&"checkout".parse().unwrap()), "from then on passes may be missed");
}

#[test]
fn renewing_keeps_a_lease_and_disarming_does_not_end_it() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Abort));
    net.pass_time_renewing(Duration::from_secs(25));
    assert!(matches!(net.go_out("checkout", "payment", pay(&seen)).1, Passage::Made(_)));
    for service in ["checkout", "payment"] {
        net.tell(service, FromController::Disarm { token: ROUND });
    }
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    assert_eq!(seen.member().unwrap().token, ROUND, "the token stays live");
    net.go_out("checkout", "payment", pay(&seen)).1.through();
    net.pass_time(LEASE);
    assert!(net.said("checkout").contains(&FromSidecar::Lapsed { token: ROUND }));
}

#[test]
fn dropped_calls_are_closed_at_disarm_at_lapse_at_the_end_and_at_shutdown() {
    for how in 0..4 {
        let (mut net, seen) = armed(fault(Phase::Response, Fault::Drop));
        let call = net.call("checkout", "payment", pay(&seen));
        assert_eq!(net.answer(&call, Response::http(200)), Passage::Dropped);
        match how {
            0 => net.tell("checkout", FromController::Disarm { token: ROUND }),
            1 => net.pass_time(LEASE),
            2 => net.tell("checkout", FromController::End { token: ROUND }),
            _ => {
                net.sidecar("checkout").shutdown();
                net.pass_time(Duration::ZERO);
            }
        }
        assert_eq!(net.resumed(), [(call.out, Resumed::Closed)], "{how}");
    }
}

#[test]
fn a_round_that_ended_is_forgotten() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Abort));
    net.go_out("checkout", "payment", pay(&seen));
    assert_eq!(net.sidecar("checkout").executions.len(), 1);
    for service in ["checkout", "payment"] {
        net.tell(service, FromController::End { token: ROUND });
    }
    assert_eq!(net.sidecar("checkout").executions.len(), 1, "its entry is still open");
    let call = net.call("checkout", "payment", pay(&seen));
    assert_eq!(call.seen.member().unwrap().token, ROUND, "what runs is relayed");
    assert_eq!(net.ignored("payment", "token-unknown"), 1);
    net.answer(&call, Response::http(200)).through();
    let entry = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    assert_eq!(entry.member().unwrap().token, Token(0));
}

#[test]
fn arming_anew_replaces_rules_and_leaves_executions_that_have_begun_alone() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Drop));
    net.arm(&[fault(Phase::Request, Fault::Abort)], &[]);
    net.go_out("checkout", "payment", pay(&seen)).1.through();
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    assert!(matches!(net.go_out("checkout", "payment", pay(&seen)).1, Passage::Made(_)));
}

#[test]
fn arming_without_keys_is_refused() {
    let mut net = Net::configured(&[("checkout", "")], &["payment"]);
    let arm = aftershock_core::wire::Arm::clean(ROUND, LEASE);
    net.tell("checkout", FromController::Arm(arm));
    assert!(matches!(&net.said("checkout")[..], [FromSidecar::NotArmed { token: ROUND, .. }]));
}

#[test]
fn a_sidecar_that_came_late_relays_and_sets_the_gap() {
    let mut net = Net::configured(&[("checkout", ""), ("payment", "")], &["payment"]);
    net.register(&["checkout", "payment"]);
    let welcome = |late| FromController::Welcome {
        protocol: PROTOCOL,
        version: "test".into(),
        keys: Keyring(vec![KEYS]),
        registry: Registry {
            services: ["checkout".parse().unwrap(), "payment".parse().unwrap()].into(),
            ..Registry::default()
        },
        late,
    };
    net.tell("checkout", welcome(vec![ROUND]));
    let (entry, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    let seen = passage.through();
    assert_eq!(seen.member().unwrap().token, ROUND, "the controller named it, so it is real");
    let sent = net.go_out("checkout", "payment", pay(&seen)).1.through();
    assert!(sent.has_hop());
    net.response(&entry, Response::http(200)).through();
    let spans = net.spans("checkout");
    assert!(spans[0].gaps.blocks_number(&"checkout".parse().unwrap()));
    // Welcomed again while the round it has armed itself is live: not late.
    net.arm(&[], &[]);
    net.tell("checkout", welcome(vec![ROUND]));
    let (entry, passage) = net.come_in("checkout", tagged(Request::http("POST", "/buy")));
    passage.through();
    net.response(&entry, Response::http(200)).through();
    assert!(net.spans("checkout")[0].gaps.is_empty());
}

#[test]
fn activity_is_told_at_every_change_once() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Delay(Duration::from_secs(1).into())));
    assert!(net.said("checkout").is_empty(), "nobody watches");
    net.tell("checkout", FromController::Watch { token: ROUND });
    let activity = |net: &mut Net| match &net.said("checkout")[..] {
        [] => None,
        said => said.iter().find_map(|word| match word {
            FromSidecar::Activity { begun, open, .. } => {
                Some((*begun, open.iter().map(|call| call.state).collect::<Vec<_>>()))
            }
            _ => None,
        }),
    };
    assert_eq!(activity(&mut net), Some((1, vec![OpenState::Running])));
    assert_eq!(activity(&mut net), None);
    let (out, _) = net.go_out("checkout", "payment", pay(&seen));
    let (begun, mut open) = activity(&mut net).unwrap();
    open.sort_by_key(|state| *state == OpenState::Parked);
    assert_eq!((begun, open), (2, vec![OpenState::Running, OpenState::Parked]));
    net.pass_time(Duration::from_secs(1));
    assert_eq!(activity(&mut net), Some((2, vec![OpenState::Running; 2])));
    net.close(&out, Closed::ByUpstream);
    assert_eq!(activity(&mut net), Some((2, vec![OpenState::Running])));
    // Other traffic is no activity of the round.
    net.come_in("checkout", Request::http("GET", "/")).1.through();
    assert_eq!(activity(&mut net), None);
}

#[test]
fn deadlines_of_parked_messages_come_before_those_of_leases() {
    let (mut net, seen) = armed(fault(Phase::Request, Fault::Delay(Duration::from_secs(1).into())));
    net.go_out("checkout", "payment", pay(&seen));
    let at = net.now + Duration::from_secs(1);
    assert_eq!(net.sidecar("checkout").next_deadline(), Some(at));
}
