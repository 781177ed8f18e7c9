use std::path::Path;
use std::time::Duration;

use aftershock_control::api::{
    Conclude, Disarmed, Imported, OracleFinding, OracleVerdict, RoundSummary, Status, TraceSet, Verdict,
};
use aftershock_control::server::{ControlError, Controller, Location, Options, StoreError, serve};
use aftershock_core::plan::{Plan, Side};
use aftershock_core::trace::Trace;
use aftershock_core::wire::{FromController, OpenState};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::sidecar::{Manners, Sidecar, open};
use crate::spans::entry;
use crate::*;

fn in_file(path: &Path) -> Options {
    Options {
        store: Location::File(path.to_owned()),
        acknowledge_within: AMPLE,
        runner_lease: AMPLE,
        ..Options::default()
    }
}

#[tokio::test]
async fn after_a_restart_earlier_rounds_and_their_traces_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let (first, api) = controller(in_file(&path)).await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let round = started(api, Plan::default()).await;
    checkout.record([entry(round.token, 1)]);
    let finished = finish(api, round.id, AMPLE).await;
    let concluded =
        Conclude { attempts: vec![], oracle: OracleFinding { found: OracleVerdict::Held, differences: vec![] } };
    assert_eq!(api.post(&format!("/v1/rounds/{}/conclude", round.id.0), &concluded).await.status, 204);
    let running = started(api, lost_charge_at_entry()).await;
    assert_eq!(first.shutdown().await, Disarmed { rounds: vec![running.id], unconfirmed: vec![] });

    let (_second, api) = controller(in_file(&path)).await;
    let rounds: Vec<RoundSummary> = api.get("/v1/rounds?scenario=checkout&limit=5").await.ok();
    let shown: Vec<_> = rounds.iter().map(|round| (round.id, round.verdict, round.oracle)).collect();
    assert_eq!(
        shown,
        [(running.id, Some(Verdict::Inconclusive), None), (round.id, Some(Verdict::Clean), Some(OracleVerdict::Held)),]
    );
    let record = record(api, round.id).await;
    assert_eq!((record.finished.as_ref(), record.concluded.as_ref()), (Some(&finished), Some(&concluded)));
    let traces: Vec<Trace> = api.get("/v1/traces?scenario=checkout").await.ok();
    assert_eq!(traces, finished.traces);
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!((status.stored_rounds, status.sidecars.len(), status.rounds.len()), (2, 0, 0));
}

#[tokio::test]
async fn recordings_of_one_controller_are_recordings_of_another_once_imported() {
    let (_first, api) = controller(Options { acknowledge_within: AMPLE, ..Options::default() }).await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    for execution in 1..=3 {
        let round = started(api, Plan::default()).await;
        checkout.record([entry(round.token, execution)]);
        finish(api, round.id, AMPLE).await;
    }
    let traces: Vec<Trace> = api.get("/v1/traces?scenario=checkout").await.ok();
    assert_eq!(traces.len(), 3);

    let (_second, api) = controller(Options::default()).await;
    let set = TraceSet::new("checkout".to_owned(), traces.clone());
    assert_eq!(api.post("/v1/recordings", &set).await.ok::<Imported>(), Imported { stored: 3, present: 0 });
    assert_eq!(api.post("/v1/recordings", &set).await.ok::<Imported>(), Imported { stored: 0, present: 3 });
    assert_eq!(api.get("/v1/traces?scenario=checkout").await.ok::<Vec<Trace>>(), traces);
    let broken = TraceSet { schema: "aftershock.dev/traces/v9".to_owned(), ..set };
    let error = api.post("/v1/recordings", &broken).await.error(422);
    assert!(error.contains("expected schema \"aftershock.dev/traces/v1\""), "{error}");
}

fn lost_charge_at_entry() -> Plan {
    serde_json::from_value(serde_json::json!({"faults": [{
        "target": {"api": "checkout POST /checkout", "k": 1, "phase": "response"}, "fault": "drop"}]}))
    .unwrap()
}

#[test]
fn a_round_during_which_the_controller_died_is_inconclusive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let id = first.block_on(async {
        let (controller, api) = controller(in_file(&path)).await;
        let checkout = Sidecar::connect(api, "checkout", 1).await;
        let round = started(api, lost_charge_at_entry()).await;
        // The process dies: nobody says good-bye.
        std::mem::forget(controller);
        drop(checkout);
        round.id
    });
    drop(first);
    // A killed process has no memory of its own either: only here does the store thread outlive its controller.
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let log = |of: &Path| of.with_extension("db-wal");
    std::fs::copy(log(&path), log(&copy)).unwrap();
    runtime().block_on(async {
        let (_second, api) = controller(in_file(&copy)).await;
        let record = record(api, id).await;
        assert_eq!(record.summary.verdict, Some(Verdict::Inconclusive));
        assert_eq!(record.ended_early.as_deref(), Some("the controller stopped during the round"));
        let path = format!("/v1/rounds/{}/finish", id.0);
        let error = api.post(&path, &serde_json::json!({"deadline": "1s"})).await.error(409);
        assert_eq!(error, format!("round {} has ended: the controller stopped during the round", id.0));
    });
}

#[tokio::test]
async fn a_store_that_cannot_be_used_keeps_the_controller_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let start = async |path: &Path| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Controller::start(listener, in_file(path)).await
    };
    let first = start(&path).await.unwrap();
    let error = start(&path).await.unwrap_err();
    assert!(matches!(error, ControlError::Store(StoreError::Locked(_))), "{error}");
    assert_eq!(error.to_string(), format!("the store {} is in use by another controller", path.display()));
    first.shutdown().await;
    let garbage = folder.path().join("garbage.db");
    std::fs::write(&garbage, "a text file that somebody named by mistake, of some length, which is no store").unwrap();
    let error = start(&garbage).await.unwrap_err();
    assert!(matches!(error, ControlError::Store(StoreError::Damaged { .. })), "{error}");
    start(&path).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn its_end_disarms_before_sidecars_are_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api(listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(serve(listener, Options::default(), async {
        let _ = stopped.await;
    }));
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let round = started(api, lost_charge_at_entry()).await;
    checkout.opens(round.token, &[open(Side::Callee, 1, 10, None, OpenState::Dropped)]);
    stop.send(()).unwrap();
    let heard = checkout.farewell().await;
    let at = |wanted: &FromController| heard.iter().position(|message| message == wanted);
    let disarm = at(&FromController::Disarm { token: round.token });
    let end = at(&FromController::End { token: round.token });
    assert!(disarm.is_some() && disarm < end, "{heard:?}");
    let disarmed = serving.await.unwrap().unwrap();
    assert_eq!(disarmed, Disarmed { rounds: vec![round.id], unconfirmed: vec![] });
}

#[tokio::test]
async fn disarm_ends_every_round_and_names_who_did_not_confirm() {
    let options = Options { acknowledge_within: Duration::from_millis(150), runner_lease: AMPLE, ..Options::default() };
    let (_controller, api) = controller(options).await;
    let mut checkout = Sidecar::connect(api, "checkout", 1).await;
    let deaf = Manners { no_disarmed: true, ..Manners::default() };
    let _payment = Sidecar::with(api, "payment", 2, deaf).await;
    let rounds = [started(api, lost_charge()).await, started(api, Plan::default()).await];
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!(status.rounds.len(), 2);
    assert_eq!(
        status.rounds[0].rules,
        ["checkout: drop at response of payment shop.Payment/Charge, k = 1, from checkout, After(true)"]
    );
    assert!(status.rounds[0].lease_left.0 > Duration::from_secs(5), "{status:?}");
    let path = format!("/v1/rounds/{}/settle", rounds[0].id.0);
    let settling =
        tokio::spawn(async move { api.post(&path, &serde_json::json!({"deadline": "20s"})).await.error(409) });
    checkout.hears(|message| matches!(message, FromController::Watch { .. }).then_some(())).await;
    let disarmed: Disarmed = api.send("POST", "/v1/disarm", "", b"").await.ok();
    assert_eq!(disarmed.rounds, [rounds[0].id, rounds[1].id]);
    assert_eq!(disarmed.unconfirmed, ["payment".parse().unwrap()]);
    for _ in &rounds {
        checkout.hears_disarm().await;
    }
    let why = settling.await.unwrap();
    assert!(why.ends_with("the round was ended early: everything was disarmed"), "{why}");
    for round in rounds {
        let finished = finish(api, round.id, AMPLE).await;
        assert_eq!(finished.verdict, Verdict::Inconclusive);
    }
    let nothing: Disarmed = api.send("POST", "/v1/disarm", "", b"").await.ok();
    assert_eq!(nothing, Disarmed { rounds: vec![], unconfirmed: vec![] });
}

#[tokio::test]
async fn status_shows_sidecars_with_their_counters() {
    let (_controller, api) = patient().await;
    let payment = Sidecar::connect(api, "payment", 2).await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    payment.unassociated(5);
    let status: Status = api.get("/v1/status").await.ok();
    let [first, second] = status.sidecars.as_slice() else { panic!("{status:?}") };
    assert_eq!((first.service.as_str(), first.observer, first.inbound.len()), ("checkout", checkout.observer, 1));
    assert_eq!(second.service.as_str(), payment.service);
    assert_eq!(second.associations.values().sum::<u64>(), 5);
}
