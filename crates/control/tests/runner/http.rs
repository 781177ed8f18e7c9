//! Requests over HTTP/1.1: order of steps, context, retries, failures, invariants.

use aftershock_control::api::{OracleVerdict, Verdict};
use aftershock_control::runner::{RecordError, RoundOutcome, RunError, Step};
use aftershock_core::w3c::{Member, TraceParent, TraceState};
use serde_json::json;

use crate::stage::{Act, Controller, Log, fault, field, finished, outline, reply, runner, scenario, service};

/// A scenario of one request to `entry`, with more below `requests:` and below `spec:`.
fn one_request(entry: &str, request: &str, more: &str) -> String {
    format!(
        "  entry: {entry}\n  key: order-{{random}}\n{more}  requests:\n    - name: place\n      http: {{method: POST, path: \"/p?k={{key}}\", body: '{{\"key\":\"{{key}}\"}}'}}\n{request}"
    )
}

/// One round against a service that does `acts`, with `request` settings.
async fn round(acts: Vec<Act>, request: &str) -> (RoundOutcome, Log) {
    let log = Log::default();
    let entry = service("entry", &log, acts).await;
    let (runner, _) = runner(Controller::default(), scenario(&one_request(&entry, request, "")), &log).await;
    (runner.round(None, &()).await.unwrap(), log)
}

#[tokio::test]
async fn a_request_carries_the_token_as_call_0_and_ids_of_its_own() {
    let (outcome, log) = round(vec![reply(200, "{}")], "").await;
    assert_eq!(
        outline(&log.lines()),
        ["rounds", &format!("entry POST /p?k={}", outcome.key), "settle", "finish", "conclude"]
    );
    assert!(outcome.key.len() == "order-".len() + 8 && outcome.key.starts_with("order-"), "{}", outcome.key);
    let request = &log.lines()[1];
    assert!(request.ends_with(&format!("\n\n{{\"key\":\"{}\"}}", outcome.key)), "{request}");
    let parent = TraceParent::parse(field(request, "traceparent")).unwrap();
    let member = TraceState::parse([field(request, "tracestate")]).member().unwrap().unwrap();
    assert_eq!(member, Member::parse(format!("1-0-0-00000000000000aa-{:08x}", parent.check())).unwrap());
    assert_ne!(parent.check(), 0);
    let uber = aftershock_core::w3c::correlation("uber-trace-id", field(request, "uber-trace-id")).unwrap();
    assert_ne!(uber, format!("{:x}", parent.trace_id));
    let start: serde_json::Value = serde_json::from_str(log.lines()[0].strip_prefix("rounds ").unwrap()).unwrap();
    assert_eq!(
        (&start["scenario"], &start["key"], &start["plan"]["faults"]),
        (&json!("s"), &json!(outcome.key), &json!([]))
    );
    assert_eq!((outcome.oracle.found, outcome.as_declared), (OracleVerdict::Held, true));
}

#[tokio::test]
async fn a_retry_is_a_new_execution_after_the_first_has_settled_and_its_invariants_were_checked() {
    let log = Log::default();
    let entry = service("entry", &log, vec![Act::Silence, reply(200, "{}")]).await;
    let ledger = service("ledger", &log, vec![reply(200, r#"{"count": 1}"#), reply(200, r#"{"count": 2}"#)]).await;
    let request = "      timeout: 100ms\n      retry: {attempts: 3, on: [timeout]}\n";
    let more = format!(
        "  ledgers: {{pay: {ledger}}}\n  invariants:\n    \
         - {{name: charged once, when: after_attempt(1), get: \"{{pay}}/c?k={{key}}\", json_path: $.count, equals: 1}}\n    \
         - {{name: never so late, when: after_attempt(3), get: \"{{pay}}/never\", json_path: $.count, equals: 1}}\n    \
         - {{name: one charge, get: \"{{pay}}/c?k={{key}}\", json_path: $.count, equals: 1}}\n"
    );
    let (runner, _) = runner(
        Controller { finished: finished("injected"), ..Controller::default() },
        scenario(&one_request(&entry, request, &more)),
        &log,
    )
    .await;
    let steps = std::sync::Mutex::new(Vec::new());
    let progress = |step: Step<'_>| {
        steps.lock().unwrap().push(match step {
            Step::Started { id, .. } => format!("started {}", id.0),
            Step::Attempted { request, attempt } => format!("{request} {} {}", attempt.attempt, attempt.result),
            Step::Settled(settled) => format!("settled {}", settled.settled),
            Step::Checked { invariant, difference } => format!("{invariant}: {difference:?}"),
            Step::Finished(finished) => finished.verdict.to_string(),
            Step::Concluded(finding) => finding.found.to_string(),
        });
    };
    let fault = fault("{oracle: violated, violates: [one charge]}");
    runner.scenario().check(&fault).unwrap();
    let outcome = runner.round(Some(&fault), &progress).await.unwrap();

    let key = &outcome.key;
    let (post, get) = (format!("entry POST /p?k={key}"), format!("ledger GET /c?k={key}"));
    log.has("entry client gone").await;
    let lines: Vec<String> = log.lines().into_iter().filter(|line| line != "entry client gone").collect();
    assert_eq!(outline(&lines), ["rounds", &post, "settle", &get, &post, "settle", "finish", &get, "conclude"]);
    let ids: Vec<&str> = [&lines[1], &lines[4]].map(|request| field(request, "traceparent")).to_vec();
    assert_ne!(ids[0], ids[1]);
    assert_ne!(field(&lines[1], "uber-trace-id"), field(&lines[4], "uber-trace-id"));
    let results: Vec<(u32, &str)> =
        outcome.attempts.iter().map(|attempt| (attempt.attempt, attempt.result.as_str())).collect();
    assert_eq!(results, [(1, "timeout"), (2, "200")]);
    assert!(outcome.attempts[0].latency.0 >= std::time::Duration::from_millis(100));
    assert_eq!(outcome.oracle.found, OracleVerdict::Violated);
    assert_eq!(outcome.oracle.differences, ["one charge: $.count: expected 1, found 2"]);
    assert_eq!((outcome.broken.as_slice(), outcome.as_declared), (&["one charge".to_owned()][..], true));
    assert_eq!(outcome.notes, ["the invariant \"never so late\" was not evaluated: there was no after_attempt(3)"]);
    assert_eq!(
        *steps.lock().unwrap(),
        [
            "started 7",
            "place 1 timeout",
            "settled true",
            "charged once: None",
            "place 2 200",
            "settled true",
            "injected",
            "one charge: Some(\"$.count: expected 1, found 2\")",
            "violated"
        ]
    );
    let said: serde_json::Value =
        serde_json::from_str(log.lines().last().unwrap().strip_prefix("conclude ").unwrap()).unwrap();
    assert_eq!(
        said["oracle"],
        json!({"found": "violated", "differences": ["one charge: $.count: expected 1, found 2"]})
    );
    assert_eq!(said["attempts"][1]["result"], "200");
}

#[tokio::test]
async fn what_happened_to_a_connection_is_told_apart() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}".to_owned();
    for (act, result) in [
        (Act::Reset, "connection reset"),
        (Act::Close, "connection closed"),
        (Act::Reply(cut), "connection closed"),
        (Act::Silence, "timeout"),
        (reply(302, ""), "302"),
        (reply(503, ""), "503"),
    ] {
        let (outcome, _) = round(vec![act], "      timeout: 300ms\n").await;
        assert_eq!(outcome.attempts[0].result, result);
    }
}

#[tokio::test]
async fn bytes_that_are_no_answer_and_a_refused_connection_are_results_too() {
    let (outcome, _) = round(vec![Act::Reply("SMTP 220 hello\r\n\r\n".to_owned())], "").await;
    assert_eq!(outcome.oracle.found, OracleVerdict::Unavailable);
    let log = Log::default();
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (runner, _) =
        runner(Controller::default(), scenario(&one_request(&format!("http://{gone}"), "", "")), &log).await;
    let outcome = runner.round(None, &()).await.unwrap();
    assert_eq!(outcome.attempts[0].result, "connection refused");
    assert_eq!(outcome.oracle.differences, ["place: expected an answer, found: connection refused"]);
    assert_eq!(outline(&log.lines()), ["rounds", "settle", "finish", "conclude"]);
}

#[tokio::test]
async fn only_what_the_policy_names_is_tried_again() {
    for (acts, on, results) in [
        (vec![reply(503, ""), reply(200, "")], "[status]", &["503", "200"][..]),
        (vec![reply(500, ""), reply(404, "")], "[status]", &["500", "404"]),
        (vec![reply(503, ""), reply(200, "")], "[timeout, transport]", &["503"]),
        (vec![Act::Reset, reply(200, "")], "[transport]", &["connection reset", "200"]),
        (vec![Act::Reset, reply(200, "")], "[timeout, status]", &["connection reset"]),
        (vec![Act::Close], "[transport]", &["connection closed"; 3]),
        (vec![Act::Silence], "[transport]", &["timeout"]),
        (vec![reply(302, ""), reply(200, "")], "[status]", &["302"]),
    ] {
        let settings = format!("      timeout: 200ms\n      retry: {{attempts: 3, on: {on}, backoff: 1ms}}\n");
        let (outcome, _) = round(acts, &settings).await;
        let found: Vec<&str> = outcome.attempts.iter().map(|attempt| attempt.result.as_str()).collect();
        assert_eq!(found, results, "{on}");
    }
}

#[tokio::test]
async fn a_fault_is_as_declared_only_with_its_own_finding_and_broken_invariants() {
    let expectations = [
        ("{}", OracleVerdict::Unavailable, false),
        ("{oracle: unavailable}", OracleVerdict::Unavailable, true),
        ("{requests: {place: {status: 500}}}", OracleVerdict::Held, true),
        ("{requests: {place: {status: 503}}}", OracleVerdict::Unavailable, false),
        ("{oracle: held, invariants: []}", OracleVerdict::Unavailable, false),
        (
            "{oracle: violated, invariants: {also: [{name: two, get: \"{pay}/x\", json_path: $.n, equals: 2}]}}",
            OracleVerdict::Violated,
            true,
        ),
        (
            "{oracle: violated, violates: [one], invariants: {also: [{name: two, get: \"{pay}/x\", json_path: $.n, equals: 2}]}}",
            OracleVerdict::Violated,
            false,
        ),
    ];
    for (expect, found, as_declared) in expectations {
        let log = Log::default();
        let entry = service("entry", &log, vec![reply(500, "")]).await;
        let ledger = service("ledger", &log, vec![reply(200, r#"{"n": 1}"#)]).await;
        let more = format!(
            "  ledgers: {{pay: {ledger}}}\n  invariants: [{{name: one, get: \"{{pay}}/x\", json_path: $.n, equals: 1}}]\n"
        );
        let (runner, _) = runner(Controller::default(), scenario(&one_request(&entry, "", &more)), &log).await;
        let fault = fault(expect);
        runner.scenario().check(&fault).unwrap();
        let outcome = runner.round(Some(&fault), &()).await.unwrap();
        assert_eq!((outcome.oracle.found, outcome.as_declared), (found, as_declared), "{expect}");
        let start = log.has("rounds").await;
        assert!(start.contains("\"fault\":\"drop\""), "{start}");
    }
}

#[tokio::test]
async fn a_client_that_did_not_get_what_it_needs_does_not_go_on() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, ""), reply(404, ""), reply(200, "")]).await;
    let requests: String =
        ["a", "b", "c"].map(|name| format!("    - {{name: {name}, http: {{method: GET, path: /{name}}}}}\n")).concat();
    let (runner, _) =
        runner(Controller::default(), scenario(&format!("  entry: {entry}\n  requests:\n{requests}")), &log).await;
    let outcome = runner.round(None, &()).await.unwrap();
    assert_eq!(
        outline(&log.lines()),
        ["rounds", "entry GET /a", "settle", "entry GET /b", "settle", "finish", "conclude"]
    );
    assert_eq!(outcome.oracle.differences, ["b: expected a status below 400, found 404"]);
    assert_eq!(outcome.notes, ["the request \"c\" was not sent, since one before it failed"]);
    assert_eq!(outcome.attempts[1].request, 1);
}

#[tokio::test]
async fn a_state_that_cannot_be_read_ends_the_round_as_not_run() {
    for (when, outlined) in [
        ("after_attempt(1)", &["rounds", "entry POST", "settle", "ledger GET /x", "finish"][..]),
        ("after_round", &["rounds", "entry POST", "settle", "finish", "ledger GET /x"]),
    ] {
        let log = Log::default();
        let entry = service("entry", &log, vec![reply(200, "")]).await;
        let ledger = service("ledger", &log, vec![reply(500, "oops")]).await;
        let more = format!(
            "  ledgers: {{pay: {ledger}}}\n  invariants: [{{name: one, when: {when}, get: \"{{pay}}/x\", json_path: $.n, equals: 1}}]\n"
        );
        let (runner, client) = runner(Controller::default(), scenario(&one_request(&entry, "", &more)), &log).await;
        let error = runner.round(None, &()).await.unwrap_err();
        let error = error.to_string();
        let said = format!("failed to evaluate the invariant \"one\": GET {ledger}/x: status 500");
        assert_eq!(error.lines().next(), Some(&said[..]), "{error}");
        // A round that was judged before is told of.
        assert_eq!(error.contains("but what the system made of it cannot be said"), when == "after_round", "{error}");
        client.farewells().await;
        let lines: Vec<String> =
            outline(&log.lines()).into_iter().map(|line| line.split("/p?").next().unwrap().trim().to_owned()).collect();
        assert_eq!(lines, outlined);
        let finish = log.has("finish").await;
        assert_eq!(finish.contains("failed to evaluate the invariant"), when == "after_attempt(1)", "{finish}");
    }
}

#[tokio::test]
async fn an_attempt_that_does_not_settle_is_noted() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let settled = json!({"settled": false, "kept": 0, "running": ["Charge of payment"]});
    let controller = Controller { settled, ..Controller::default() };
    let (runner, _) = runner(controller, scenario(&one_request(&entry, "", "")), &log).await;
    let outcome = runner.round(None, &()).await.unwrap();
    assert_eq!(outcome.notes, ["attempt 1 of \"place\" did not settle within 10s: Charge of payment"]);
}

#[tokio::test]
async fn nothing_is_sent_when_the_controller_refuses_and_its_words_are_passed_on() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let controller =
        Controller { start: (409, json!({"error": "no sidecar of payment is registered"})), ..Controller::default() };
    let (runner, _) = runner(controller, scenario(&one_request(&entry, "", "")), &log).await;
    let error = runner.round(None, &()).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to start a round: no sidecar of payment is registered");
    assert!(matches!(error, RunError::Controller(error) if error.is_refusal()));
    assert_eq!(outline(&log.lines()), ["rounds"]);
}

#[tokio::test]
async fn a_controller_that_is_none_or_not_there_is_named() {
    let log = Log::default();
    let foreign = service("web", &log, vec![reply(200, "<html>")]).await;
    let client = aftershock_control::client::Client::new(&foreign).unwrap();
    let error = client.status().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("failed to ask for the status: {foreign} answered with something else")),
        "{error}"
    );
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = aftershock_control::client::Client::new(&format!("http://{gone}")).unwrap();
    let error = client.disarm().await.unwrap_err().to_string();
    assert_eq!(error, format!("failed to disarm: no answer from the controller at http://{gone}: connection refused"));
}

#[tokio::test]
async fn a_round_that_is_dropped_is_ended_at_the_controller_and_its_request_is_cancelled() {
    let log = Log::default();
    let entry = service("entry", &log, vec![Act::Silence]).await;
    let (runner, client) =
        runner(Controller::default(), scenario(&one_request(&entry, "      timeout: 1h\n", "")), &log).await;
    tokio::select! {
        _ = runner.round(None, &()) => panic!("the service never answers"),
        _ = log.has("entry POST") => {}
    }
    client.farewells().await;
    let finish = log.has("finish").await;
    assert!(finish.contains(r#""client_failed":"the runner was stopped""#), "{finish}");
    log.has("entry client gone").await;
    let lines = log.lines();
    assert!(!lines.iter().any(|line| line.starts_with("conclude")), "{lines:?}");
}

#[tokio::test]
async fn a_long_request_keeps_its_round_alive() {
    let log = Log::default();
    // The service answers only once the runner has renewed its lease.
    let entry = service("entry", &log, vec![Act::Once("renew")]).await;
    let (runner, _) =
        runner(Controller::default(), scenario(&one_request(&entry, "      timeout: 30s\n", "")), &log).await;
    let outcome = runner.round(None, &()).await.unwrap();
    assert_eq!(outcome.attempts[0].result, "200");
    assert!(outcome.attempts[0].latency.0 < aftershock_control::api::RUNNER_LEASE / 2);
}

#[tokio::test]
async fn recording_stops_at_the_first_round_that_fails_its_own_oracle() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, ""), reply(200, ""), reply(500, "")]).await;
    let (runner, _) = runner(Controller::default(), scenario(&one_request(&entry, "", "")), &log).await;
    let error = runner.record(5, &()).await.unwrap_err();
    let RecordError::NotClean { number, of, outcome, .. } = &error else { panic!("{error}") };
    assert_eq!((*number, *of), (3, 5));
    let expected = format!(
        "clean round 3 of 5 (7, key {}) does not meet its own oracle:\n  place: expected a status below 400, found 500",
        outcome.key
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(outline(&log.lines()).iter().filter(|line| *line == "rounds").count(), 3);
}

#[tokio::test]
async fn recording_stops_at_a_round_that_is_not_recorded_completely() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let mut incomplete = finished("incomplete");
    incomplete["incomplete"] = json!({"00000000000000ff": "2 spans were lost"});
    let controller = Controller { finished: incomplete, ..Controller::default() };
    let (runner, _) = runner(controller, scenario(&one_request(&entry, "", "")), &log).await;
    let error = runner.record(2, &()).await.unwrap_err().to_string();
    assert!(
        error.ends_with("\n  the recording is incomplete\n  execution 00000000000000ff: 2 spans were lost"),
        "{error}"
    );
}

#[tokio::test]
async fn recordings_are_the_rounds_in_order_with_a_key_each() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let spec = one_request(&entry, "", "").replace("order-{random}", "order-{n}");
    let (runner, _) = runner(Controller::default(), scenario(&spec), &log).await;
    let outcomes = runner.record(3, &()).await.unwrap();
    let keys: Vec<&str> = outcomes.iter().map(|outcome| outcome.key.as_str()).collect();
    assert_eq!(keys, ["order-1", "order-2", "order-3"]);
    assert!(outcomes.iter().all(|outcome| outcome.finished.verdict == Verdict::Clean));
}
