use std::time::Duration;

use aftershock_control::api::{Status, Verdict};
use aftershock_control::server::Options;
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::plan::{Plan, Side};
use aftershock_core::trace::Trace;
use aftershock_core::wire::{FromController, FromSidecar, OpenState};

use crate::sidecar::{Manners, Sidecar, convert, export, open};
use crate::spans::{charge_client, charge_server, dropped_charge, entry};
use crate::*;

async fn clean_traces(api: Api, scenario: &str) -> Vec<Trace> {
    api.get(&format!("/v1/traces?scenario={scenario}")).await.ok()
}

/// Two sidecars with the spans of one execution in their buffers.
async fn recorded(api: Api, token: Token, execution: u64, checkout: &Sidecar, payment: &Sidecar) {
    let _ = api;
    checkout.record([entry(token, execution), charge_client(token, execution)]);
    payment.record([charge_server(token, execution)]);
}

#[tokio::test]
async fn a_recording_is_clean_once_every_span_is_in_and_its_traces_can_be_had() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    checkout.unassociated(4);
    let round = started(api, Plan::default()).await;
    recorded(api, round.token, 1, &checkout, &payment).await;
    checkout.unassociated(7);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!((finished.verdict, finished.faults.len(), finished.incomplete.len()), (Verdict::Clean, 0, 0));
    assert_eq!(finished.traces[0].calls.len(), 2);
    let during = [("checkout".parse().unwrap(), [(convert(), 3)].into())].into();
    assert_eq!(finished.unassociated, during, "only those during the round");
    assert_eq!(clean_traces(api, "checkout").await, finished.traces);
    assert_eq!(clean_traces(api, "other").await, []);
    assert_eq!(checkout.hears_disarm().await, round.token);
    assert_eq!(checkout.hears_end().await, round.token);
    assert_eq!(record(api, round.id).await.finished, Some(finished.clone()));
    assert_eq!(finish(api, round.id, AMPLE).await, finished, "asked again it says the same");
}

#[tokio::test]
async fn completion_waits_for_open_calls_to_end_and_for_their_spans() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost_charge()).await;
    let kept = open(Side::Caller, 1, 11, Some(10), OpenState::Dropped);
    checkout.opens(round.token, &[open(Side::Callee, 1, 10, None, OpenState::Running), kept]);
    payment.record([charge_server(round.token, 1)]);
    let finishing = tokio::spawn(finish(api, round.id, AMPLE));
    let mut checkout = checkout;
    assert_eq!(checkout.hears_disarm().await, round.token);
    // The dropped call was closed by that; its handler goes on for a while.
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!(status.rounds.len(), 1);
    assert!(!finishing.is_finished());
    checkout.record([entry(round.token, 1), dropped_charge(round.token, 1)]);
    checkout.say(FromSidecar::Fired { token: round.token, rule: 0, execution: ExecutionId(1), call: CallId(11) });
    checkout.opens(round.token, &[]);
    let finished = finishing.await.unwrap();
    assert_eq!(finished.verdict, Verdict::Injected, "{finished:?}");
    assert_eq!(finished.faults[0].injections, 1);
}

#[tokio::test]
async fn a_span_that_comes_after_the_first_flush_still_completes_the_round() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    checkout.record([entry(round.token, 1), charge_client(round.token, 1)]);
    let finishing = tokio::spawn(finish(api, round.id, AMPLE));
    let flush = |message: &FromController| matches!(message, FromController::Flush { .. }).then_some(());
    checkout.hears(flush).await;
    // It began late at the callee: the caller had gone already.
    payment.record([charge_server(round.token, 1)]);
    payment.opens(round.token, &[open(Side::Callee, 1, 11, None, OpenState::Running)]);
    payment.opens(round.token, &[]);
    let finished = finishing.await.unwrap();
    assert_eq!((finished.verdict, finished.incomplete.len()), (Verdict::Clean, 0), "{finished:?}");
}

#[tokio::test]
async fn an_incomplete_execution_says_what_is_missing() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let short = Duration::from_millis(100);
    let reason = |finished: &Finished| {
        assert_eq!(finished.verdict, Verdict::Incomplete);
        finished.incomplete.values().cloned().collect::<Vec<_>>().join(" | ")
    };

    let round = started(api, Plan::default()).await;
    checkout.record([entry(round.token, 1), charge_client(round.token, 1)]);
    assert_eq!(
        reason(&finish(api, round.id, short).await),
        "the sidecar of payment has no record of payment shop.Payment/Charge, which checkout called"
    );

    let round = started(api, Plan::default()).await;
    recorded(api, round.token, 1, &checkout, &payment).await;
    payment.opens(round.token, &[open(Side::Callee, 2, 21, None, OpenState::Running)]);
    assert_eq!(
        reason(&finish(api, round.id, short).await),
        "the call payment shop.Payment/Charge is still open at payment"
    );

    let round = started(api, Plan::default()).await;
    recorded(api, round.token, 1, &checkout, &payment).await;
    payment.lose(round.token, 3);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(reason(&finished), "the sidecar of payment lost 3 span(s)");
    assert_eq!(finished.reasons, ["the sidecar of payment lost 3 span(s)"]);

    let round = started(api, Plan::default()).await;
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(
        (finished.verdict, finished.reasons),
        (Verdict::Incomplete, vec!["no sidecar recorded a call of the round".to_owned()])
    );
    assert_eq!(clean_traces(api, "checkout").await, [], "none of these shows what is normal");
}

#[tokio::test]
async fn a_sidecar_that_answers_no_flush_or_confirms_no_disarming_is_named() {
    let options = Options { acknowledge_within: Duration::from_millis(150), runner_lease: AMPLE, ..Options::default() };
    let (_controller, api) = controller(options).await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let mute = Manners { no_flush: true, no_disarmed: true, ..Manners::default() };
    let _payment = Sidecar::with(api, "payment", 2, mute).await;
    let round = started(api, Plan::default()).await;
    checkout.record([entry(round.token, 1)]);
    let finished = finish(api, round.id, Duration::ZERO).await;
    assert_eq!(finished.verdict, Verdict::Incomplete);
    assert_eq!(
        finished.reasons,
        ["the sidecar of payment did not answer a flush", "the sidecar of payment did not confirm that it is disarmed"]
    );
}

#[tokio::test]
async fn spans_that_come_after_the_judgement_mark_their_execution_late() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    recorded(api, round.token, 1, &checkout, &payment).await;
    assert_eq!(finish(api, round.id, AMPLE).await.verdict, Verdict::Clean);
    export(api, &[charge_server(round.token, 1)]).await;
    assert_eq!(clean_traces(api, "checkout").await.len(), 1, "one that was sent twice is not late");
    let later = CallSpan { call: CallId(77), ..charge_server(round.token, 1) };
    export(api, &[later]).await;
    assert_eq!(clean_traces(api, "checkout").await, []);
    let incomplete = record(api, round.id).await.finished.unwrap().incomplete;
    assert_eq!(incomplete[&ExecutionId(1)], "late: 1 span(s) came after the round was judged");
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!((status.collected.kept, status.collected.repeated, status.collected.late), (3, 1, 1));
}

#[tokio::test]
async fn a_lapsed_lease_makes_the_round_inconclusive() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost_charge()).await;
    recorded(api, round.token, 1, &checkout, &payment).await;
    payment.say(FromSidecar::Lapsed { token: round.token });
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(finished.reasons, ["the lease lapsed at the sidecar of payment (0000000000000002)"]);
    assert_eq!(finished.faults[0].verdict, Verdict::Inconclusive);
}

#[tokio::test]
async fn the_death_of_an_armed_sidecar_makes_the_round_inconclusive() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost_charge()).await;
    checkout.record([entry(round.token, 1), charge_client(round.token, 1)]);
    payment.dies().await;
    assert!(!checkout.hears_registry().await.services.is_empty());
    // Its next life is late to the round and changes nothing about that.
    let again = Sidecar::connect(api, "payment", 2).await;
    assert!(matches!(&again.welcome, FromController::Welcome { late, .. } if late == &[round.token]));
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(finished.reasons[0], "the armed sidecar of payment (0000000000000002) died");
}

#[tokio::test]
async fn a_client_that_could_not_be_run_makes_the_round_inconclusive() {
    let (_controller, api) = patient().await;
    let _checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, lost_charge()).await;
    let failed = serde_json::json!({"deadline": "5s", "client_failed": "no such program"});
    let finished: Finished = api.post(&format!("/v1/rounds/{}/finish", round.id.0), &failed).await.ok();
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(finished.reasons[0], "the client could not be run: no such program");
}

#[tokio::test]
async fn rounds_side_by_side_keep_to_themselves() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let mut rounds = Vec::new();
    for _ in 0..8 {
        rounds.push(started(api, lost_charge()).await);
    }
    for (n, round) in (1..).zip(&rounds) {
        let charge = if n % 2 == 0 { dropped_charge(round.token, n) } else { charge_client(round.token, n) };
        checkout.record([entry(round.token, n), charge]);
        payment.record([charge_server(round.token, n)]);
    }
    checkout.say(FromSidecar::Lapsed { token: rounds[2].token });
    let finishing: Vec<_> = rounds.iter().map(|round| tokio::spawn(finish(api, round.id, AMPLE))).collect();
    for ((n, round), finishing) in (1..).zip(&rounds).zip(finishing) {
        let finished = finishing.await.unwrap();
        let executions: Vec<u64> = finished.traces.iter().map(|trace| trace.execution.0).collect();
        assert_eq!(executions, [n], "round {}", round.id.0);
        assert!(finished.traces.iter().all(|trace| trace.token == round.token));
        assert_eq!(finished.verdict == Verdict::Inconclusive, n == 3, "{finished:?}");
        assert_eq!(finished.verdict == Verdict::Injected, n % 2 == 0, "{finished:?}");
    }
}

use aftershock_core::span::CallSpan;
