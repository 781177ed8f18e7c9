use std::path::Path;

use aftershock_core::duration::Interval;
use rusqlite::OpenFlags;

use super::*;
use crate::api::{Attempt, FaultVerdict, OracleFinding, OracleVerdict};
use crate::testing::checkout;

fn new_round(scenario: &str) -> NewRound {
    let plan = serde_json::json!({"faults": [
        {"target": {"api": "payment shop.Payment/Charge", "k": 1, "phase": "response"}, "fault": "drop"}]});
    NewRound {
        token: Token(7),
        scenario: scenario.to_owned(),
        key: "k1".to_owned(),
        started: 1_700_000_000,
        plan: serde_json::from_value(plan).unwrap(),
    }
}

fn finished(verdict: Verdict) -> Finished {
    Finished {
        verdict,
        faults: vec![FaultVerdict {
            rule: 0,
            verdict,
            reasons: vec!["because".to_owned(), "and".to_owned()],
            injections: 1,
            premature: 0,
            multiple: false,
        }],
        reasons: vec!["the sidecar of payment lost 3 spans".to_owned()],
        traces: checkout(),
        incomplete: [(ExecutionId(2), "the sidecar of payment lost 3 spans".to_owned())].into(),
        unassociated: [("checkout".parse().unwrap(), [("currency shop.Currency/Convert".parse().unwrap(), 3)].into())]
            .into(),
        arbiter: Vec::new(),
    }
}

fn conclude(found: OracleVerdict) -> Conclude {
    Conclude {
        attempts: vec![Attempt {
            request: 0,
            attempt: 1,
            result: "200".to_owned(),
            latency: Interval(std::time::Duration::from_millis(12)),
        }],
        oracle: OracleFinding { found, differences: vec!["expected 1 charge, found 2".to_owned()] },
    }
}

async fn file(path: &Path) -> Result<Store, StoreError> {
    Store::open(Location::File(path.to_owned())).await
}

#[tokio::test]
async fn a_round_is_read_as_it_was_written_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let store = file(&path).await.unwrap();
    let round = new_round("checkout");
    let id = store.begin(round.clone()).await.unwrap();
    store.finish(id, finished(Verdict::Injected)).await.unwrap();
    assert!(store.conclude(id, conclude(OracleVerdict::Violated)).await.unwrap());
    let before = store.round(id).await.unwrap().unwrap();
    assert_eq!(before.plan, round.plan);
    assert_eq!(before.finished, Some(finished(Verdict::Injected)));
    assert_eq!(before.concluded, Some(conclude(OracleVerdict::Violated)));
    assert_eq!((before.summary.faults, before.summary.oracle), (1, Some(OracleVerdict::Violated)));
    store.close().await;
    assert!(matches!(store.count().await, Err(StoreError::Closed)));

    let store = file(&path).await.unwrap();
    assert_eq!(store.round(id).await.unwrap().unwrap(), before);
    assert_eq!(store.rounds(None, 10).await.unwrap(), [before.summary]);
    assert_eq!(store.round(RoundId(99)).await.unwrap(), None);
}

#[tokio::test]
async fn rounds_found_unfinished_are_inconclusive_and_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let store = file(&path).await.unwrap();
    let id = store.begin(new_round("checkout")).await.unwrap();
    assert!(!store.conclude(id, conclude(OracleVerdict::Held)).await.unwrap(), "it has no verdict yet");
    store.close().await;
    let store = file(&path).await.unwrap();
    let record = store.round(id).await.unwrap().unwrap();
    assert_eq!(record.summary.verdict, Some(Verdict::Inconclusive));
    assert_eq!(record.ended_early.as_deref(), Some("the controller stopped during the round"));
    assert_eq!(record.finished, None);
}

#[tokio::test]
async fn clean_traces_are_the_complete_ones_of_the_latest_clean_rounds_the_oldest_first() {
    let store = Store::open(Location::Memory).await.unwrap();
    let run = async |verdict: Verdict, execution: u64, oracle: Option<OracleVerdict>| {
        let id = store.begin(new_round("checkout")).await.unwrap();
        let mut finished = finished(verdict);
        for call in finished.traces.iter_mut().flat_map(|trace| &mut trace.calls) {
            for span in call.client.iter_mut().chain(&mut call.server) {
                span.execution = ExecutionId(execution);
            }
        }
        store.finish(id, finished).await.unwrap();
        if let Some(found) = oracle {
            store.conclude(id, conclude(found)).await.unwrap();
        }
        id
    };
    run(Verdict::Clean, 10, None).await;
    run(Verdict::Clean, 11, Some(OracleVerdict::Held)).await;
    run(Verdict::Clean, 12, Some(OracleVerdict::Unavailable)).await;
    run(Verdict::Injected, 13, None).await;
    run(Verdict::Clean, 2, None).await;
    let late = run(Verdict::Clean, 15, None).await;
    run(Verdict::Clean, 16, None).await;
    store.late(late, ExecutionId(15), 2).await.unwrap();
    store.late(late, ExecutionId(15), 1).await.unwrap();
    let executions = async |recordings| -> Vec<u64> {
        let traces = store.clean_traces("checkout".to_owned(), recordings).await.unwrap();
        traces.iter().map(|trace| trace.execution.0).collect()
    };
    assert_eq!(executions(10).await, [10, 11, 16], "2 is incomplete, 15 is late");
    assert_eq!(executions(1).await, [16]);
    assert_eq!(store.clean_traces("other".to_owned(), 10).await.unwrap(), []);
    let record = store.round(late).await.unwrap().unwrap();
    assert_eq!(
        record.finished.unwrap().incomplete[&ExecutionId(15)],
        "late: 3 span(s) came after the round was judged"
    );
}

#[tokio::test]
async fn the_list_is_the_newest_first_by_scenario_and_bounded() {
    let store = Store::open(Location::Memory).await.unwrap();
    for scenario in ["a", "b", "a", "a"] {
        store.begin(new_round(scenario)).await.unwrap();
    }
    let ids = async |scenario: Option<&str>, limit| -> Vec<i64> {
        store.rounds(scenario.map(str::to_owned), limit).await.unwrap().iter().map(|round| round.id.0).collect()
    };
    assert_eq!(ids(None, 10).await, [4, 3, 2, 1]);
    assert_eq!(ids(Some("a"), 2).await, [4, 3]);
    assert_eq!(ids(Some("none"), 2).await, [0; 0]);
    assert_eq!(store.count().await.unwrap(), 4);
}

/// Opens a file with these bytes, expects a refusal, and that not a byte was changed.
async fn refused(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    std::fs::write(&path, bytes).unwrap();
    let error = file(&path).await.unwrap_err().to_string();
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "{error}");
    error.replace(&folder.path().display().to_string(), "…")
}

fn bytes_of(prepare: impl FnOnce(&Connection)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let connection = Connection::open(&path).unwrap();
    prepare(&connection);
    connection.close().unwrap();
    std::fs::read(path).unwrap()
}

#[tokio::test]
async fn files_that_are_not_ours_or_not_whole_are_refused_untouched() {
    let text = refused(b"this is not a database, but long enough to hold a header of one").await;
    assert!(text.starts_with("the store …/rounds.db is damaged or not a database: "), "{text}");
    let foreign = bytes_of(|c| c.execute_batch("CREATE TABLE notes (text)").unwrap());
    assert_eq!(refused(&foreign).await, "…/rounds.db is a database of another program, not a store of Aftershock");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let store = file(&path).await.unwrap();
    for _ in 0..40 {
        let id = store.begin(new_round("checkout")).await.unwrap();
        store.finish(id, finished(Verdict::Clean)).await.unwrap();
    }
    store.close().await;
    let whole = std::fs::read(&path).unwrap();
    let mut torn = whole.clone();
    let middle = torn.len() / 2 / 4096 * 4096;
    torn[middle..middle + 4096].fill(0xa5);
    let text = refused(&torn).await;
    assert!(text.starts_with("the store …/rounds.db is damaged or not a database: "), "{text}");
    let text = refused(&whole[..whole.len() - 3 * 4096]).await;
    assert!(text.starts_with("the store …/rounds.db is damaged or not a database: "), "{text}");

    let mut connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    connection = match connection.close() {
        Ok(()) => Connection::open_in_memory().unwrap(),
        Err((connection, _)) => connection,
    };
    drop(connection);
    let newer = std::fs::read(&path).unwrap();
    assert_eq!(refused(&newer).await, "the store …/rounds.db has version 7, this controller knows versions up to 1");
}

#[tokio::test]
async fn a_read_only_store_and_one_without_a_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    file(&path).await.unwrap().close().await;
    // Permissions do not bind the superuser; the flag has the effect that they have on others.
    let error = open::open_file(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap_err();
    assert!(matches!(&error, StoreError::ReadOnly(read_only) if *read_only == path), "{error}");
    let error = file(&folder.path().join("no/rounds.db")).await.unwrap_err().to_string();
    assert!(error.contains("cannot be opened: there is no directory "), "{error}");
    let error = file(folder.path()).await.unwrap_err().to_string();
    assert!(error.ends_with("cannot be opened: it is a directory"), "{error}");
}

#[test]
fn a_name_that_sqlite_would_take_for_something_else_is_a_file() {
    let name = std::path::PathBuf::from(format!("file:aftershock-{}?mode=memory", std::process::id()));
    let opened = open::open_file(&name, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE);
    drop(opened.unwrap());
    let kept = name.is_file();
    // Nothing else may be left in the crate's folder, where tests run.
    std::fs::remove_file(&name).unwrap();
    assert!(kept);
}

#[tokio::test]
async fn a_second_controller_on_the_same_file_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let first = file(&path).await.unwrap();
    let error = file(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
    first.begin(new_round("still works")).await.unwrap();
    first.close().await;
    assert_eq!(file(&path).await.unwrap().count().await.unwrap(), 1);
}
