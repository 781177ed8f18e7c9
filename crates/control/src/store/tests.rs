use std::path::Path;
use std::time::Duration;

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
        cuts: vec![crate::api::CutVerdict {
            channel: aftershock_core::plan::Channel {
                caller: "checkout".parse().unwrap(),
                callee: "payment".parse().unwrap(),
            },
            verdict,
            reasons: vec!["no call was made".to_owned()],
            failed: 2,
            connections: aftershock_core::wire::CutConnections { broken: 1, refused: 3 },
        }],
        reasons: vec!["the sidecar of payment lost 3 spans".to_owned()],
        traces: checkout(),
        incomplete: [(ExecutionId(2), "the sidecar of payment lost 3 spans".to_owned())].into(),
        unassociated: [("checkout".parse().unwrap(), [("currency shop.Currency/Convert".parse().unwrap(), 3)].into())]
            .into(),
        arbiter: vec![crate::api::ArbiterEntry {
            rule: 0,
            execution: ExecutionId(2),
            call: aftershock_core::id::CallId(9),
            observer: aftershock_core::id::ObserverId(4),
            act: crate::api::ArbiterAct::Ruled {
                number: 3,
                ready: false,
                outcome: None,
                ruling: aftershock_core::wire::Ruling::NotYet(vec![1]),
            },
        }],
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
    Store::open(Location::File(path.to_owned()), Retention::default(), Redaction::default()).await
}

async fn in_memory(retention: Retention) -> Store {
    Store::open(Location::Memory, retention, Redaction::default()).await.unwrap()
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
    let store = in_memory(Retention::default()).await;
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
    let store = in_memory(Retention::default()).await;
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
    assert_eq!(refused(&newer).await, "the store …/rounds.db has version 7, this controller knows versions up to 3");
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

/// A store as version 1 of the schema wrote it: statements and texts are those of that version.
const V1_ROWS: &str = r#"
PRAGMA application_id = 1095128146;
PRAGMA user_version = 1;
INSERT INTO plans (id, body) VALUES (1, '{"faults":[{"target":{"api":"payment shop.Payment/Charge","k":1,"phase":"response"},"fault":"reset","guard":{"after":[]}}]}');
INSERT INTO rounds (id, token, scenario, key, started, plan, faults, verdict, finished, oracle)
    VALUES (3, '0000000000000007', 'checkout', 'k3', 1700000000, 1, 1, 'injected', 1, 'held');
INSERT INTO verdicts VALUES (3, 0, 'injected', '["because"]', 1, 0, 0);
INSERT INTO spans (round, body) VALUES (3, '{"side":"caller","service":"checkout","observer":"0000000000000001","execution":"0000000000000002","token":"0000000000000007","call":"0000000000000003","parent":null,"caller":"checkout","api":"payment shop.Payment/Charge","association":"exact","trace_id":"00000000000000000000000000000000","request":{"clock":1,"unix_nanos":1},"response":{"clock":2,"unix_nanos":2},"ended_unix_nanos":2,"outcome":"error","http_status":null,"grpc_status":null,"made":false,"ending":"faulted","evidence_went":true,"evidence_came":false,"gaps":{"named":[],"any":false},"messages":null,"passes":[{"rule":0,"k":1,"clock":1,"passed_by":null}],"injection":{"rule":0,"k":1,"decided":1,"held":false,"fault":"reset"}}');
INSERT INTO rounds (id, token, scenario, key, started, plan, faults) VALUES (4, '0000000000000008', 'checkout', 'k4', 1700000001, 1, 1);
"#;

#[tokio::test]
async fn a_store_of_an_earlier_version_is_upgraded_and_a_copy_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let old = bytes_of(|c| {
        c.execute_batch(include_str!("v1.sql")).unwrap();
        c.execute_batch(V1_ROWS).unwrap();
    });
    std::fs::write(&path, &old).unwrap();
    let store = file(&path).await.unwrap();
    let record = store.round(RoundId(3)).await.unwrap().unwrap();
    assert_eq!(record.plan.faults[0].fault, aftershock_core::plan::Fault::Reset(Default::default()));
    let finished = record.finished.unwrap();
    let span = finished.traces[0].calls[0].client.as_ref().unwrap();
    assert_eq!((span.passes[0].k, span.injection.as_ref().unwrap().k), (Some(1), 1));
    assert_eq!((finished.arbiter, finished.faults[0].reasons.clone()), (vec![], vec!["because".to_owned()]));
    let unfinished = store.round(RoundId(4)).await.unwrap().unwrap();
    assert_eq!(unfinished.summary.verdict, Some(Verdict::Inconclusive));
    assert_eq!(store.begin(new_round("checkout")).await.unwrap(), RoundId(5), "numbers go on");
    store.close().await;
    file(&path).await.unwrap().close().await;

    let copy = Connection::open(folder.path().join("rounds.db.v1")).unwrap();
    let version: i64 = copy.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    let open: i64 = copy.query_row("SELECT count(*) FROM rounds WHERE verdict IS NULL", [], |row| row.get(0)).unwrap();
    assert_eq!((version, open), (1, 1), "as it was");
}

#[tokio::test]
async fn what_is_beyond_the_retention_is_forgotten_but_not_the_recordings_that_guards_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let store = file(&path).await.unwrap();
    let now = unix_seconds();
    // The reference: (id, scenario, clean, age in days).
    let mut rounds = Vec::new();
    for n in 0..60_i64 {
        let scenario = if n % 7 == 0 { "rare" } else { "checkout" };
        let clean = n % 3 == 0;
        let age = 60 - n;
        let id = store.begin(NewRound { started: now - age * 86_400, ..new_round(scenario) }).await.unwrap();
        let verdict = if clean { Verdict::Clean } else { Verdict::Injected };
        store.finish(id, finished(verdict)).await.unwrap();
        rounds.push((id.0, scenario, clean, age));
    }
    let running = store.begin(NewRound { started: 0, ..new_round("checkout") }).await.unwrap();
    store.close().await;

    let day = Duration::from_secs(86_400);
    for retention in [
        Retention { age: Some(20 * day + day / 2), rounds: None },
        Retention { age: None, rounds: Some(15) },
        Retention { age: Some(5 * day + day / 2), rounds: Some(30) },
        Retention { age: None, rounds: Some(0) },
    ] {
        let copy = folder.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        // `running` is ended by the opening, like every round that a stop of the controller left.
        let store = Store::open(Location::File(copy), retention, Redaction::default()).await.unwrap();
        let kept: Vec<i64> = store.rounds(None, 1000).await.unwrap().iter().rev().map(|round| round.id.0).collect();
        let all: Vec<i64> = rounds.iter().map(|round| round.0).chain([running.0]).collect();
        let newest: Vec<i64> = match retention.rounds {
            Some(n) => all[all.len() - n as usize..].to_vec(),
            None => all.clone(),
        };
        let recent = |(_, _, _, age): &&(i64, &str, bool, i64)| {
            retention.age.is_none_or(|most| *age as u64 * 86_400 <= most.as_secs())
        };
        let within = rounds.iter().filter(|round| newest.contains(&round.0)).filter(recent).map(|round| round.0);
        let recordings = ["rare", "checkout"].into_iter().flat_map(|scenario| {
            let clean = rounds.iter().rev().filter(move |round| round.1 == scenario && round.2);
            clean.take(RECORDINGS as usize).map(|round| round.0)
        });
        let mut expected: Vec<i64> = within.chain(recordings).collect();
        if retention.age.is_none() && newest.contains(&running.0) {
            expected.push(running.0);
        }
        expected.sort();
        expected.dedup();
        assert_eq!(kept, expected, "{retention:?}");
        let orphans = store
            .run(|c| {
                let spans: i64 =
                    c.query_row("SELECT count(*) FROM spans WHERE round NOT IN (SELECT id FROM rounds)", [], |row| {
                        row.get(0)
                    })?;
                let plans: i64 =
                    c.query_row("SELECT count(*) FROM plans WHERE id NOT IN (SELECT plan FROM rounds)", [], |row| {
                        row.get(0)
                    })?;
                Ok(spans + plans)
            })
            .await
            .unwrap();
        assert_eq!(orphans, 0);
    }
}

#[tokio::test]
async fn with_a_retention_each_round_that_ends_makes_place() {
    let store = in_memory(Retention { age: None, rounds: Some(3) }).await;
    for _ in 0..10 {
        let id = store.begin(new_round("checkout")).await.unwrap();
        store.finish(id, finished(Verdict::Injected)).await.unwrap();
    }
    assert_eq!(store.count().await.unwrap(), 3);
}

#[tokio::test]
async fn a_full_store_says_so_in_one_sentence_and_keeps_what_it_has() {
    let store = in_memory(Retention::default()).await;
    let id = store.begin(new_round("checkout")).await.unwrap();
    store.finish(id, finished(Verdict::Injected)).await.unwrap();
    // As on a file system without space: no page can be added any more.
    store.run(|c| Ok(c.query_row("PRAGMA max_page_count = 1", [], |_| Ok(()))?)).await.unwrap();
    let next = loop {
        match store.begin(new_round("checkout")).await {
            Ok(next) => match store.finish(next, finished(Verdict::Injected)).await {
                Ok(()) => {}
                Err(error) => break error,
            },
            Err(error) => break error,
        }
    };
    assert_eq!(
        next.to_string(),
        "the store :memory: is full: nothing more can be written where it is; what it holds is unharmed"
    );
    assert_eq!(store.round(id).await.unwrap().unwrap().finished, Some(finished(Verdict::Injected)));
}

#[tokio::test]
async fn imported_traces_are_clean_recordings_and_the_same_twice_is_once() {
    let store = in_memory(Retention::default()).await;
    let mut traces = checkout();
    for (n, trace) in (100..).zip(&mut traces) {
        trace.execution = ExecutionId(n);
        for span in trace.calls.iter_mut().flat_map(|call| call.client.iter_mut().chain(&mut call.server)) {
            span.execution = ExecutionId(n);
        }
    }
    let set = TraceSet::new("checkout".to_owned(), traces.clone());
    set.check().unwrap();
    assert_eq!(store.import(set.clone(), "elsewhere").await.unwrap(), traces.len() as u64);
    assert_eq!(store.import(set.clone(), "elsewhere").await.unwrap(), 0);
    assert_eq!(store.clean_traces("checkout".to_owned(), 10).await.unwrap(), traces);
    let other = TraceSet { scenario: "other".to_owned(), ..set };
    assert_eq!(store.import(other, "elsewhere").await.unwrap(), traces.len() as u64, "another scenario's are its own");
}

#[test]
fn a_set_of_traces_that_is_none_is_refused() {
    let good = TraceSet::new("checkout".to_owned(), checkout());
    good.check().unwrap();
    let check = |change: &dyn Fn(&mut TraceSet)| {
        let mut set = good.clone();
        change(&mut set);
        set.check().unwrap_err().to_string()
    };
    assert!(check(&|set| set.schema = "x/v9".to_owned()).contains("found \"x/v9\""));
    assert!(check(&|set| set.scenario.clear()).contains("name of a scenario"));
    assert!(check(&|set| set.traces.push(set.traces[0].clone())).contains("stands before it already"));
    assert!(check(&|set| set.traces[0].calls.clear()).contains("no spans"));
    assert!(check(&|set| set.traces[0].execution = ExecutionId(0)).contains("no execution id"));
    assert!(
        check(&|set| {
            let call = set.traces[0].calls[0].clone();
            set.traces[0].calls.push(call);
        })
        .contains("stand twice")
    );
}

#[tokio::test]
async fn credentials_in_header_fields_of_a_plan_never_reach_the_store() {
    let plan = serde_json::json!({"faults": [{
        "target": {"api": "payment POST /charge", "k": 1, "phase": "request"},
        "fault": {"error": {"status": 401, "headers": {"Set-Cookie": "s3cret", "x-tenant": "s3cret", "x-b": "shown"}}}}]});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounds.db");
    let redaction = Redaction::default().also([http::HeaderName::from_static("x-tenant")]);
    let store = Store::open(Location::File(path.clone()), Retention::default(), redaction).await.unwrap();
    let id = store.begin(NewRound { plan: serde_json::from_value(plan).unwrap(), ..new_round("c") }).await.unwrap();
    let record = store.round(id).await.unwrap().unwrap();
    let aftershock_core::plan::Fault::Error(answer) = &record.plan.faults[0].fault else { panic!() };
    assert_eq!((&*answer.headers["Set-Cookie"], &*answer.headers["x-b"]), ("[redacted]", "shown"));
    store.close().await;
    let bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"s3cret"));
}
