use std::time::Duration;

use aftershock_core::plan::{Plan, Side};
use aftershock_core::wire::OpenState;

use crate::sidecar::{Manners, Sidecar, open};
use crate::*;

use OpenState::{Dropped, Parked, Running};
use Side::{Callee, Caller};

#[tokio::test]
async fn a_round_settles_when_its_last_call_ends() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    let entry = open(Callee, 1, 10, None, Running);
    let charge = open(Caller, 1, 11, Some(10), Running);
    checkout.opens(round.token, &[entry.clone(), charge]);
    payment.opens(round.token, &[open(Callee, 1, 11, None, Running)]);
    let not_yet = settle(api, round.id, Duration::from_millis(100)).await;
    assert!(!not_yet.settled);
    assert_eq!(not_yet.running.len(), 3);
    assert!(not_yet.running.contains(&"call to payment shop.Payment/Charge from checkout".to_owned()), "{not_yet:?}");

    let settling = tokio::spawn(settle(api, round.id, AMPLE));
    payment.opens(round.token, &[]);
    checkout.opens(round.token, &[entry]);
    checkout.opens(round.token, &[]);
    assert_eq!(settling.await.unwrap(), Settled { settled: true, kept: 0, running: vec![] });
}

#[tokio::test]
async fn calls_that_a_fault_keeps_and_those_above_them_do_not_hold_it_up() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    for state in [Dropped, Parked] {
        let round = started(api, lost_charge()).await;
        let above = open(Callee, 1, 10, None, Running);
        checkout.opens(round.token, &[above, open(Caller, 1, 11, Some(10), state)]);
        let settled = settle(api, round.id, AMPLE).await;
        assert_eq!(settled, Settled { settled: true, kept: 2, running: vec![] });
        // The callee still works on what the caller's side has lost.
        payment.opens(round.token, &[open(Callee, 1, 11, None, Running)]);
        let settled = settle(api, round.id, Duration::from_millis(100)).await;
        assert_eq!(settled.running, ["payment shop.Payment/Charge at payment"]);
    }
}

#[tokio::test]
async fn a_sidecar_that_does_not_say_what_is_open_is_named() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let mute = Manners { no_activity: true, ..Manners::default() };
    let _payment = Sidecar::with(api, "payment", 2, mute).await;
    let round = started(api, Plan::default()).await;
    checkout.was_busy(round.token);
    let settled = settle(api, round.id, Duration::from_millis(100)).await;
    assert_eq!((settled.settled, settled.running), (false, vec!["the sidecar of payment did not answer".to_owned()]));
}

#[tokio::test]
async fn a_dead_sidecars_calls_do_not_hold_it_up() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let round = started(api, Plan::default()).await;
    checkout.was_busy(round.token);
    payment.opens(round.token, &[open(Callee, 1, 11, None, Running)]);
    let settling = tokio::spawn(settle(api, round.id, AMPLE));
    payment.dies().await;
    assert!(settling.await.unwrap().settled);
}
