use std::time::Duration;

use aftershock_control::api::{RoundSummary, Status, Verdict};
use aftershock_control::server::Options;
use aftershock_core::plan::{Plan, Side};
use aftershock_core::wire::{Arm, FromController, FromSidecar};

use crate::sidecar::{Acknowledge, Manners, Sidecar};
use crate::*;

#[tokio::test]
async fn every_sidecar_is_armed_and_rules_go_where_they_act() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let mut payment = Sidecar::connect(api, "payment", 2).await;
    let mut plan = lost_charge();
    plan.faults[0].guard.after.push(
        serde_json::from_value(serde_json::json!(
            {"event": "request-received", "api": "payment shop.Payment/Charge", "count": 1}))
        .unwrap(),
    );
    let round = started(api, plan).await;
    let arm = checkout.hears_arm().await;
    assert_eq!(arm.token, round.token);
    let [rule] = arm.rules.as_slice() else { panic!("{arm:?}") };
    assert_eq!((rule.index, rule.side, rule.service.as_str()), (0, Side::Caller, "checkout"));
    assert_eq!((arm.record, arm.max_parked, arm.lease), (true, 64, Duration::from_secs(10)));
    let at_payment = payment.hears_arm().await;
    assert_eq!(at_payment, Arm { rules: vec![], ..arm }, "it counts the same events and has no rules");
    assert_eq!(at_payment.events.len(), 1);
}

#[tokio::test]
async fn the_answer_comes_only_after_the_last_acknowledgement() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let silent = Manners { acknowledge: Acknowledge::Silent, ..Manners::default() };
    let mut payment = Sidecar::with(api, "payment", 2, silent).await;
    let starting = tokio::spawn(started(api, lost_charge()));
    checkout.hears_arm().await;
    let arm = payment.hears_arm().await;
    // A request and its answer later the other acknowledgement has long arrived.
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!(status.rounds.len(), 1);
    assert!(!starting.is_finished());
    payment.say(FromSidecar::Armed { token: arm.token });
    assert_eq!(starting.await.unwrap().token, arm.token);
}

async fn fails_to_arm(acknowledge: Acknowledge, problem: &str) {
    let within = if acknowledge == Acknowledge::Silent { Duration::from_millis(100) } else { AMPLE };
    let (_controller, api) = controller(Options { acknowledge_within: within, ..Options::default() }).await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let unwilling = Manners { acknowledge, ..Manners::default() };
    let _payment = Sidecar::with(api, "payment", 2, unwilling).await;
    let error = api.post("/v1/rounds", &start_of("checkout", lost_charge())).await.error(503);
    assert_eq!(error, format!("the sidecar of payment (0000000000000002) {problem}"));
    let token = checkout.hears_arm().await.token;
    assert_eq!(checkout.hears_disarm().await, token, "who had acknowledged is disarmed");
    assert_eq!(checkout.hears_end().await, token);
    let rounds: Vec<RoundSummary> = api.get("/v1/rounds").await.ok();
    assert_eq!(rounds[0].verdict, Some(Verdict::Inconclusive));
    let finished = record(api, rounds[0].id).await.finished.unwrap();
    assert!(finished.reasons[0].starts_with("arming failed: the sidecar of payment"), "{finished:?}");
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!(status.rounds, []);
}

#[tokio::test]
async fn a_sidecar_that_does_not_acknowledge_is_named_and_the_others_disarmed() {
    fails_to_arm(Acknowledge::Silent, "did not acknowledge within 100ms").await;
}

#[tokio::test]
async fn a_sidecar_that_refuses_is_named_with_its_reason() {
    fails_to_arm(Acknowledge::Refuse("too many rules".to_owned()), "refused: too many rules").await;
}

#[tokio::test]
async fn a_sidecar_that_disconnects_while_it_is_armed_is_named() {
    fails_to_arm(Acknowledge::Hang, "disconnected").await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_sent() {
    let (_controller, api) = patient().await;
    assert_eq!(
        api.post("/v1/rounds", &start_of("checkout", Plan::default())).await.error(422),
        "no sidecar is registered"
    );
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    let unknown: Plan = serde_json::from_value(serde_json::json!({"faults": [{
        "target": {"api": "paymnet shop.Payment/Charge", "k": 1, "phase": "response"}, "fault": "drop"}]}))
    .unwrap();
    assert_eq!(
        api.post("/v1/rounds", &start_of("checkout", unknown)).await.error(422),
        "faults[0]: unknown service `paymnet`; did you mean `payment`?"
    );
    for name in ["", &"x".repeat(513)] {
        let error = api.post("/v1/rounds", &start_of(name, Plan::default())).await.error(422);
        assert!(error.starts_with("expected a scenario of 1 to 512 bytes, found "), "{error}");
    }
    // A round that is armed comes after whatever was sent before.
    let round = started(api, lost_charge()).await;
    assert_eq!(checkout.hears_arm().await.token, round.token, "the first arming is that of the valid plan");
    let rounds: Vec<RoundSummary> = api.get("/v1/rounds").await.ok();
    assert_eq!(rounds.len(), 1, "a plan that was refused is no round");
}

#[tokio::test]
async fn the_scenarios_clean_traces_show_what_a_plan_may_speak_of() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    checkout.record([spans::entry(round.token, 1), spans::charge_client(round.token, 1)]);
    payment.record([spans::charge_server(round.token, 1)]);
    assert_eq!(finish(api, round.id, AMPLE).await.verdict, Verdict::Clean);
    let refund: Plan = serde_json::from_value(serde_json::json!({"faults": [{
        "target": {"api": "payment shop.Payment/Charges", "k": 1, "phase": "response"}, "fault": "drop"}]}))
    .unwrap();
    assert_eq!(
        api.post("/v1/rounds", &start_of("checkout", refund.clone())).await.error(422),
        "faults[0]: no clean trace of the scenario reaches `payment shop.Payment/Charges`; did you mean \
         `payment shop.Payment/Charge`?"
    );
    let other = api.post("/v1/rounds", &start_of("another scenario", refund)).await;
    assert_eq!(other.status, 200, "{}", other.text());
}

#[tokio::test]
async fn leases_are_renewed_while_the_runner_lives_and_the_round_ends_when_it_is_silent() {
    let options = Options {
        renew_every: Duration::from_millis(20),
        runner_lease: Duration::from_secs(1),
        acknowledge_within: AMPLE,
        ..Options::default()
    };
    let (_controller, api) = controller(options).await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let mut payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost_charge()).await;
    let renewed = |message: &FromController| match message {
        FromController::Renew { token } => Some(*token),
        _ => None,
    };
    for _ in 0..3 {
        assert_eq!(checkout.hears(renewed).await, round.token);
        assert_eq!(payment.hears(renewed).await, round.token);
        assert_eq!(api.send("POST", &format!("/v1/rounds/{}/renew", round.id.0), "", b"").await.status, 204);
    }
    assert_eq!(checkout.hears_disarm().await, round.token, "nobody renews any more");
    assert_eq!(checkout.hears_end().await, round.token);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(finished.reasons[0], "the round was ended early: its runner said nothing for 1s");
    for (verb, body) in [("renew", ""), ("settle", r#"{"deadline":"1s"}"#)] {
        let path = format!("/v1/rounds/{}/{verb}", round.id.0);
        let error = api.send("POST", &path, "content-type: application/json\r\n", body.as_bytes()).await.error(409);
        assert_eq!(
            error,
            format!("round {} has ended: the round was ended early: its runner said nothing for 1s", round.id.0)
        );
    }
}

#[tokio::test]
async fn a_request_that_takes_longer_than_the_runners_lease_keeps_the_round_alive() {
    let options = Options {
        renew_every: Duration::from_millis(10),
        runner_lease: Duration::from_millis(50),
        acknowledge_within: AMPLE,
        ..Options::default()
    };
    let (_controller, api) = controller(options).await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    let settled = settle(api, round.id, Duration::from_millis(400)).await;
    assert_eq!((settled.settled, settled.running), (false, vec!["no sidecar saw a call of the round".to_owned()]));
    checkout.record([spans::entry(round.token, 1)]);
    assert_eq!(finish(api, round.id, AMPLE).await.verdict, Verdict::Clean);
}

#[tokio::test]
async fn a_sidecar_that_registers_during_a_round_is_late_to_it() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let late_of = |sidecar: &Sidecar| match &sidecar.welcome {
        FromController::Welcome { late, registry, keys, .. } => {
            assert_eq!(keys.0.len(), 1);
            (late.clone(), registry.services.len())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(late_of(&checkout), (vec![], 1));
    let round = started(api, Plan::default()).await;
    let mut payment = Sidecar::connect(api, "payment", 2).await;
    assert_eq!(late_of(&payment), (vec![round.token], 2));
    let registry = checkout.hears_registry().await;
    assert_eq!(
        registry.addresses.values().map(|service| service.as_str()).collect::<Vec<_>>(),
        ["checkout", "payment"]
    );
    checkout.record([spans::entry(round.token, 1)]);
    finish(api, round.id, AMPLE).await;
    assert_eq!(payment.hears_end().await, round.token);
    assert!(!payment.backlog().iter().any(|message| matches!(message, FromController::Arm(_))));
    payment.dies().await;
    assert_eq!(checkout.hears_registry().await.services.len(), 1);
}
