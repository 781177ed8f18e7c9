//! What a round is run under besides its plan: ordinary traffic, when to stop, which services may be faulted.

use aftershock_control::api::{StopCondition, TaggedTraffic, Verdict};
use aftershock_control::server::Options;
use aftershock_core::plan::Plan;
use aftershock_core::wire::{Counters, FromController, FromSidecar, Ordinary, Tagging};

use crate::sidecar::{Acknowledge, Manners, Sidecar};
use crate::*;

impl Sidecar {
    /// So many ordinary requests have ended here, and it says so unasked.
    fn served(&self, requests: u64, errors: u64) {
        self.ordinary(requests, errors);
        let counters = Counters { ordinary: Ordinary { requests, errors }, ..Counters::default() };
        self.say(FromSidecar::Counters(counters));
    }
}

fn stop(errors_per_million: u32, min_requests: u64) -> StopCondition {
    StopCondition { errors_per_million, min_requests }
}

#[tokio::test]
async fn a_round_is_ended_at_once_when_ordinary_traffic_suffers() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let mut second = Sidecar::connect(api, "checkout", 2).await;
    let _payment = Sidecar::connect(api, "payment", 3).await;
    // What failed before is not the round's doing.
    checkout.ordinary(1_000, 1_000);
    let request = StartRound { stop: Some(stop(100_000, 50)), ..start_of("checkout", lost_charge()) };
    let round: StartedRound = api.post("/v1/rounds", &request).await.ok();
    assert_eq!(checkout.hears_arm().await.token, round.token);
    // Too few to conclude anything from.
    checkout.served(1_040, 1_020);
    second.served(9, 2);
    // Enough, and 22 of 220 are not beyond the bound.
    second.served(180, 2);
    let not_yet: aftershock_control::api::Status = api.get("/v1/status").await.ok();
    assert_eq!(not_yet.rounds.len(), 1);
    second.served(189, 3);
    assert_eq!(second.hears_disarm().await, round.token);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(
        finished.reasons[0],
        "the round was ended early: stopped: 23 of 229 ordinary requests failed (10.04 %), more than 10 %"
    );
}

#[tokio::test]
async fn the_controllers_own_stop_condition_holds_for_every_round_and_a_rounds_own_beside_it() {
    let options =
        Options { stop: Some(stop(300_000, 3)), acknowledge_within: AMPLE, runner_lease: AMPLE, ..Options::default() };
    let (_controller, api) = controller(options).await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    let with = async |own: StopCondition| -> StartedRound {
        let request = StartRound { stop: Some(own), ..start_of("checkout", Plan::default()) };
        api.post("/v1/rounds", &request).await.ok()
    };
    let (strict, lenient) = (with(stop(0, 1)).await, with(stop(999_999, 1_000)).await);
    checkout.served(2, 1);
    assert_eq!(checkout.hears_disarm().await, strict.token, "its own, from the first failure on");
    let finished = finish(api, strict.id, AMPLE).await;
    assert!(finished.reasons[0].contains("1 of 2 ordinary requests failed (50 %), more than 0 %"), "{finished:?}");
    assert_eq!(api.send("POST", &format!("/v1/rounds/{}/renew", lenient.id.0), "", b"").await.status, 204);
    checkout.served(4, 2);
    assert_eq!(checkout.hears_disarm().await, lenient.token, "the controller's, which its own cannot loosen");
    let finished = finish(api, lenient.id, AMPLE).await;
    assert!(finished.reasons[0].contains("2 of 4 ordinary requests failed (50 %), more than 30 %"), "{finished:?}");
}

#[tokio::test]
async fn what_may_not_be_faulted_is_refused_by_the_list() {
    let faultable = Some(["checkout".parse().unwrap(), "shipping".parse().unwrap()].into());
    let (_controller, api) = controller(Options { faultable, ..Options::default() }).await;
    let _checkout = Sidecar::connect(api, "checkout", 1).await;
    let _payment = Sidecar::connect(api, "payment", 2).await;
    assert_eq!(
        api.post("/v1/rounds", &start_of("checkout", lost_charge())).await.error(422),
        "faults[0]: `payment`, whose call it would be about, is not among the services that this controller lets faults \
         touch: `checkout`, `shipping`"
    );
}

#[tokio::test]
async fn ordinary_traffic_is_tagged_where_it_enters_once_everybody_knows_the_token() {
    let (_controller, api) = patient().await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let silent = Manners { acknowledge: Acknowledge::Silent, ..Manners::default() };
    let mut payment = Sidecar::with(api, "payment", 2, silent).await;
    let tagging = Tagging { headers: [("x-canary".to_owned(), "1".to_owned())].into(), per_million: 250_000 };
    let request = StartRound {
        traffic: Some(TaggedTraffic { entry: "checkout".parse().unwrap(), tagging: tagging.clone() }),
        outcomes: serde_json::from_value(serde_json::json!([{"api": "payment POST /pay", "ok": [404]}])).unwrap(),
        arbiter_timeout: Some(Interval(Duration::from_millis(7))),
        ..start_of("checkout", lost_charge())
    };
    let starting = tokio::spawn({
        let request = request.clone();
        async move { api.post("/v1/rounds", &request).await.ok::<StartedRound>() }
    });
    let first = checkout.hears_arm().await;
    assert_eq!((first.tagging.clone(), first.arbiter_timeout), (None, Duration::from_millis(7)));
    assert_eq!(first.outcomes, request.outcomes);
    let arm = payment.hears_arm().await;
    assert_eq!((arm.tagging, arm.outcomes), (None, request.outcomes));
    let status: aftershock_control::api::Status = api.get("/v1/status").await.ok();
    assert_eq!(status.rounds.len(), 1);
    let again = |message: &FromController| matches!(message, FromController::Arm(_));
    assert!(!checkout.backlog().iter().any(again), "the other does not know the token yet");
    payment.say(FromSidecar::Armed { token: arm.token });
    let second = checkout.hears_arm().await;
    assert_eq!(second.tagging, Some(tagging));
    assert_eq!(aftershock_core::wire::Arm { tagging: None, ..second }, first);
    assert_eq!(starting.await.unwrap().token, arm.token);
    assert!(!payment.backlog().iter().any(again), "it is no entry");
}

#[tokio::test]
async fn an_entry_that_will_not_tag_is_named() {
    let options = Options { acknowledge_within: Duration::from_millis(150), ..Options::default() };
    let (_controller, api) = controller(options).await;
    let once = Manners { acknowledge: Acknowledge::Once, ..Manners::default() };
    let _checkout = Sidecar::with(api, "checkout", 1, once).await;
    let request = StartRound {
        traffic: Some(TaggedTraffic {
            entry: "checkout".parse().unwrap(),
            tagging: Tagging { headers: [].into(), per_million: 1 },
        }),
        ..start_of("checkout", Plan::default())
    };
    assert_eq!(
        api.post("/v1/rounds", &request).await.error(503),
        "the sidecar of checkout (0000000000000001) did not acknowledge within 150ms"
    );
}
