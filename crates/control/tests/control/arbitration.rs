//! Passes of one target at several instances, over real connections.

use aftershock_control::api::{ArbiterAct, Verdict};
use aftershock_core::event::Outcome;
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::plan::Plan;
use aftershock_core::wire::{Ask, FromController, FromSidecar, Ruling};

use crate::sidecar::{Manners, Sidecar};
use crate::*;

/// The `k`-th response of Charge is lost; `more` goes beside the target.
fn lost(k: serde_json::Value, more: serde_json::Value) -> Plan {
    let mut fault = serde_json::json!({
        "target": {"caller": "checkout", "api": "payment shop.Payment/Charge", "k": k, "phase": "response"},
        "fault": "drop"});
    fault.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(serde_json::json!({"faults": [fault]})).unwrap()
}

fn ask(token: Token, execution: u64, call: u64, ready: bool) -> FromSidecar {
    let outcome = Some(Outcome::Ok);
    FromSidecar::Ask(Ask { token, rule: 0, execution: ExecutionId(execution), call: CallId(call), ready, outcome })
}

fn fired(token: Token, execution: u64, call: u64) -> FromSidecar {
    FromSidecar::Fired { token, rule: 0, execution: ExecutionId(execution), call: CallId(call) }
}

impl Sidecar {
    async fn hears_ruling(&mut self, of: u64) -> (u32, Ruling) {
        self.hears(|message| match message {
            FromController::Ruled { call: CallId(call), number, ruling, .. } if *call == of => {
                Some((*number, ruling.clone()))
            }
            _ => None,
        })
        .await
    }

    async fn asks(&mut self, token: Token, execution: u64, call: u64, ready: bool) -> (u32, Ruling) {
        self.say(ask(token, execution, call, ready));
        self.hears_ruling(call).await
    }
}

fn acts(finished: &Finished) -> Vec<String> {
    let act = |act: &ArbiterAct| match act {
        ArbiterAct::Ruled { number, ready, ruling, .. } => format!("{number} {ready} {ruling:?}"),
        other => format!("{other:?}"),
    };
    finished
        .arbiter
        .iter()
        .map(|e| format!("{}/{} at {}: {}", e.execution.0, e.call.0, e.observer.0, act(&e.act)))
        .collect()
}

#[tokio::test]
async fn instances_number_their_passes_together_and_one_of_them_gets_the_shot() {
    let (_controller, api) = patient().await;
    let mut first = Sidecar::connect(api, "checkout", 1).await;
    let mut second = Sidecar::connect(api, "checkout", 2).await;
    let mut payment = Sidecar::connect(api, "payment", 3).await;
    let round = started(api, lost(3.into(), serde_json::json!({}))).await;
    for sidecar in [&mut first, &mut second] {
        let arm = sidecar.hears_arm().await;
        assert!(arm.rules[0].arbitrated, "{arm:?}");
    }
    assert_eq!(payment.hears_arm().await.rules, []);
    assert_eq!(first.asks(round.token, 1, 11, true).await, (1, Ruling::Number));
    assert_eq!(second.asks(round.token, 1, 12, true).await, (2, Ruling::Number));
    assert_eq!(first.asks(round.token, 1, 13, true).await, (3, Ruling::Grant));
    first.say(fired(round.token, 1, 13));
    assert_eq!(first.asks(round.token, 1, 14, true).await, (4, Ruling::Number));
    assert_eq!(second.asks(round.token, 2, 21, true).await, (1, Ruling::Number));
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(
        acts(&finished),
        [
            "1/11 at 1: 1 true Number",
            "1/12 at 2: 2 true Number",
            "1/13 at 1: 3 true Grant",
            "1/13 at 1: Fired",
            "1/14 at 1: 4 true Number",
            "2/21 at 2: 1 true Number"
        ]
    );
    assert_eq!(finished.faults[0].injections, 1);
}

#[tokio::test]
async fn a_held_pass_asks_again_and_the_others_are_told_that_they_wait_in_vain() {
    let (_controller, api) = patient().await;
    let mut first = Sidecar::connect(api, "checkout", 1).await;
    let mut second = Sidecar::connect(api, "checkout", 2).await;
    let _payment = Sidecar::connect(api, "payment", 3).await;
    let round = started(api, lost("first".into(), serde_json::json!({"hold": {"deadline": "5s"}}))).await;
    assert_eq!(first.asks(round.token, 1, 11, false).await, (1, Ruling::NotYet(vec![])));
    assert_eq!(second.asks(round.token, 1, 12, false).await, (2, Ruling::NotYet(vec![])));
    assert_eq!(second.asks(round.token, 1, 12, true).await, (2, Ruling::Grant));
    second.say(fired(round.token, 1, 12));
    assert_eq!(first.hears_ruling(11).await, (1, Ruling::Spent), "unasked");
}

#[tokio::test]
async fn a_pass_that_gave_up_ends_the_rule_in_its_execution_and_a_late_grant_comes_back() {
    let (_controller, api) = patient().await;
    let mut first = Sidecar::connect(api, "checkout", 1).await;
    let mut second = Sidecar::connect(api, "checkout", 2).await;
    let _payment = Sidecar::connect(api, "payment", 3).await;
    let round = started(api, lost("first".into(), serde_json::json!({}))).await;
    let token = round.token;
    let (execution, call, rule) = (ExecutionId(1), CallId(11), 0);
    // The grant is on its way when the sidecar gives up.
    assert_eq!(first.asks(token, 1, 11, true).await, (1, Ruling::Grant));
    first.say(FromSidecar::GiveUp { token, rule, execution, call });
    assert_eq!(first.asks(token, 1, 13, true).await, (2, Ruling::Spent));
    assert_eq!(second.asks(token, 1, 12, true).await, (3, Ruling::Spent));
    assert_eq!(second.asks(token, 2, 22, true).await, (1, Ruling::Spent), "the round's shot is still out");
    first.say(FromSidecar::HandBack { token, rule, execution, call });
    assert_eq!(first.asks(token, 1, 14, true).await, (4, Ruling::Spent), "not in that execution");
    assert_eq!(second.asks(token, 2, 22, true).await, (1, Ruling::Grant));
    let finished = finish(api, round.id, AMPLE).await;
    let acts = acts(&finished);
    assert_eq!(acts[1], "1/11 at 1: GivenUp");
    assert!(acts.contains(&"1/11 at 1: HandedBack".to_owned()), "{acts:?}");
    assert_eq!(finished.faults[0].injections, 0);
}

#[tokio::test]
async fn the_shot_of_a_dead_instance_is_nobody_elses_and_the_round_is_inconclusive() {
    let (_controller, api) = patient().await;
    let mut first = Sidecar::connect(api, "checkout", 1).await;
    let mut second = Sidecar::connect(api, "checkout", 2).await;
    let _payment = Sidecar::connect(api, "payment", 3).await;
    let round = started(api, lost("first".into(), serde_json::json!({"max_injections": 2}))).await;
    assert_eq!(first.asks(round.token, 1, 11, true).await.1, Ruling::Grant);
    first.dies().await;
    assert_eq!(second.hears_registry().await.services.len(), 2);
    assert_eq!(second.asks(round.token, 1, 12, true).await.1, Ruling::Spent);
    assert_eq!(second.asks(round.token, 2, 21, true).await.1, Ruling::Grant);
    assert_eq!(second.asks(round.token, 3, 31, true).await.1, Ruling::Spent, "what died with it counts");
    // It restarts, under the same observer even: it may have fired already, and is not listened to.
    let again = Sidecar::connect(api, "checkout", 1).await;
    assert!(matches!(&again.welcome, FromController::Welcome { late, .. } if late == &[round.token]));
    again.say(ask(round.token, 4, 41, true));
    // Answers of one connection come in order; this one comes after the other was heard.
    let finished = finish(api, round.id, Duration::ZERO).await;
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert!(!acts(&finished).iter().any(|act| act.starts_with("4/")), "{finished:?}");
}

#[tokio::test]
async fn an_instance_that_came_late_and_one_without_the_rule_are_not_answered() {
    let (_controller, api) = patient().await;
    let mut first = Sidecar::connect(api, "checkout", 1).await;
    let _second = Sidecar::connect(api, "checkout", 2).await;
    let mut payment = Sidecar::connect(api, "payment", 3).await;
    let round = started(api, lost(1.into(), serde_json::json!({}))).await;
    let mut late = Sidecar::connect(api, "checkout", 4).await;
    late.say(ask(round.token, 1, 11, true));
    payment.say(ask(round.token, 1, 12, true));
    // Known by what these connections bring next.
    let status: aftershock_control::api::Status = api.get("/v1/status").await.ok();
    assert_eq!(status.sidecars.len(), 4);
    assert_eq!(first.asks(round.token, 1, 13, true).await, (1, Ruling::Grant));
    for sidecar in [&mut late, &mut payment] {
        let ruled = |message: &FromController| matches!(message, FromController::Ruled { .. });
        assert!(!sidecar.backlog().iter().any(ruled));
    }
}

#[tokio::test]
async fn one_instance_counts_alone_and_what_it_asks_is_not_answered() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost(1.into(), serde_json::json!({}))).await;
    assert!(!checkout.hears_arm().await.rules[0].arbitrated);
    // A second instance that joins changes nothing about that: it is late.
    let _second = Sidecar::with(api, "checkout", 3, Manners::default()).await;
    checkout.say(ask(round.token, 1, 11, true));
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.arbiter, []);
}
