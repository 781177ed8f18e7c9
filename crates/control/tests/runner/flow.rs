//! Several requests: variables, cookies, executions, replicas of the entry, setup and teardown.

use std::sync::Mutex;

use aftershock_control::api::OracleVerdict;
use aftershock_control::runner::{RoundOutcome, RunError, Step};
use aftershock_control::scenario::Secrets;
use aftershock_core::w3c::{Member, TraceState};
use serde_json::json;

use crate::stage::{Act, Controller, Log, field, finished, outline, reply, runner, scenario, service};

fn with_fields(fields: &str, body: &str) -> Act {
    Act::Reply(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{fields}\r\n{body}", body.len()))
}

/// One clean round of `spec`, in which `ENTRY` is a service that does `acts`, with the secret PASS.
async fn round(acts: Vec<Act>, spec: &str) -> (Result<RoundOutcome, RunError>, Log) {
    let log = Log::default();
    let entry = service("entry", &log, acts).await;
    let (runner, _) = runner(Controller::default(), scenario(&spec.replace("ENTRY", &entry)), &log).await;
    let secrets = Secrets::read(runner.scenario(), |name| Some(format!("{name}-hunter\"2")));
    let runner = runner.with_secrets(secrets.unwrap());
    (runner.round(None, &()).await, log)
}

fn member(request: &str) -> Member {
    TraceState::parse([field(request, "tracestate")]).member().unwrap().unwrap()
}

fn requests(log: &Log) -> Vec<String> {
    log.lines().into_iter().filter(|line| line.starts_with("entry ")).collect()
}

const LOGIN: &str = r#"  entry: ENTRY
  cookies: true
  secrets: [PASS]
  variables: {user: "u-{key}"}
  requests:
    - name: login
      http: {method: POST, path: /login, json: {user: "{user}", pass: "{env:PASS}"}}
      extract:
        token: {json_path: $.token, secret: true}
        place: {header: x-place}
        sid: {cookie: sid}
        number: {regex: 'no (\d+)'}
    - name: order
      http: {method: GET, path: "{place}?n={number}&sid={sid}", headers: {authorization: "Bearer {token}"}}
      expect: {body: [{json_path: $.ok, equals: true}]}
"#;

#[tokio::test]
async fn what_an_answer_says_is_used_by_the_requests_after_it() {
    let spec = LOGIN.replace("path: \"{place}?", "path: \"/o{place}?");
    let first = with_fields("x-place: /5\r\nset-cookie: sid=abc; Path=/\r\n", r#"{"token": "t0ken", "text": "no 42"}"#);
    let (outcome, log) = round(vec![first, reply(200, r#"{"ok": true}"#)], &spec).await;
    let outcome = outcome.unwrap();
    assert_eq!((outcome.oracle.found, outcome.oracle.differences), (OracleVerdict::Held, vec![]));
    let [login, order] = &requests(&log)[..] else { panic!("two requests") };
    let sent: serde_json::Value = serde_json::from_str(login.split("\n\n").nth(1).unwrap()).unwrap();
    assert_eq!(sent, json!({"user": format!("u-{}", outcome.key), "pass": "PASS-hunter\"2"}));
    assert_eq!(field(login, "content-type"), "application/json");
    assert!(order.starts_with("entry GET /o/5?n=42&sid=abc\n"), "{order}");
    assert_eq!((field(order, "authorization"), field(order, "cookie")), ("Bearer t0ken", "sid=abc"));
}

#[tokio::test]
async fn a_value_that_is_not_there_is_a_failed_request_and_nothing_is_sent_without_it() {
    let spec = LOGIN.replace("path: \"{place}?", "path: \"/o{place}?");
    let (outcome, log) = round(vec![reply(200, r#"{"token": null}"#)], &spec).await;
    let outcome = outcome.unwrap();
    assert_eq!(outcome.oracle.found, OracleVerdict::Unavailable);
    assert_eq!(
        outcome.oracle.differences,
        [
            "login: expected `number` at a match of `no (\\d+)`, found nothing",
            "login: expected `place` at the header field `x-place`, found nothing",
            "login: expected `sid` at the cookie `sid`, found nothing",
            "login: expected `token` at $.token, found nothing",
        ]
    );
    assert_eq!(outcome.notes, ["the request \"order\" was not sent, since one before it failed"]);
    assert_eq!(requests(&log).len(), 1);
}

#[tokio::test]
async fn a_secret_is_in_no_text_that_is_shown_or_stored() {
    // The service gives every secret away, where it will be quoted.
    let spec = LOGIN.replace("path: \"{place}?", "path: \"/o{place}?").replace("$.ok, equals: true", "$, equals: 1");
    let first = with_fields("x-place: /5\r\nset-cookie: sid=abc\r\n", r#"{"token": "t0ken", "text": "no 42"}"#);
    let long = "x".repeat(190);
    for leak in [
        json!({"a": "PASS-hunter\"2", "b": "t0ken"}).to_string(),
        "PASS-hunter\"2 t0ken".to_owned(),
        // Cut in the middle of the secret.
        json!(format!("{long}PASS-hunter\"2")).to_string(),
        format!("{}PASS-hunter\"2", "y".repeat(55)),
    ] {
        let (outcome, log) = round(vec![first.clone(), reply(200, &leak)], &spec).await;
        let outcome = outcome.unwrap();
        assert_eq!(outcome.oracle.found, OracleVerdict::Unavailable);
        let told: Vec<String> = log.lines().into_iter().filter(|line| !line.starts_with("entry ")).collect();
        let shown = format!("{outcome:?} {told:?} {}", serde_json::to_string(&outcome).unwrap());
        for secret in ["PASS-h", "hunter", "t0ken"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_missing_secret_is_named_and_nothing_is_sent() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let spec = LOGIN.replace("ENTRY", &entry).replace("path: \"{place}?", "path: \"/o{place}?");
    let (runner, _) = runner(Controller::default(), scenario(&spec), &log).await;
    let error = Secrets::read(runner.scenario(), |_| Some(String::new())).unwrap_err();
    assert_eq!(error.to_string(), "scenario \"s\" needs the secret in the environment: PASS");
    assert_eq!(runner.round(None, &()).await.unwrap_err(), RunError::Secrets(error));
    assert_eq!(log.lines(), [""; 0]);
}

#[tokio::test]
async fn each_request_is_an_execution_of_its_own_unless_the_sequence_is_declared_to_be_one() {
    let spec = |execution: &str| {
        format!(
            "  entry: ENTRY\n{execution}  requests:\n    - {{name: a, http: {{method: GET, path: /a}}, retry: {{attempts: 2, on: [status]}}}}\n    \
             - {{name: b, http: {{method: GET, path: /b}}}}\n"
        )
    };
    let acts = || vec![reply(500, ""), reply(200, ""), reply(200, "")];
    let (outcome, log) = round(acts(), &spec("")).await;
    assert_eq!(outcome.unwrap().attempts.len(), 3);
    let sent = requests(&log);
    assert!(sent.iter().all(|request| member(request).execution.0 == 0));
    let distinct = |name: &str, part: &dyn Fn(&str) -> String| {
        let values = requests(&log).iter().map(|request| part(field(request, name))).collect::<Vec<_>>();
        values.iter().collect::<std::collections::BTreeSet<_>>().len()
    };
    let trace = |value: &str| value.split('-').nth(1).unwrap().to_owned();
    let uber = |value: &str| value.split(':').next().unwrap().to_owned();
    assert_eq!((distinct("traceparent", &trace), distinct("uber-trace-id", &uber)), (3, 3));

    let (outcome, log) = round(acts(), &spec("  execution: sequence\n")).await;
    assert_eq!(outcome.unwrap().attempts.len(), 3);
    let members: Vec<Member> = requests(&log).iter().map(|request| member(request)).collect();
    assert!(members[0].execution.0 != 0 && members.iter().all(|member| member.call.0 == 0));
    assert!(members.iter().all(|member| member.execution == members[0].execution), "{members:?}");
    let parts = |name: &str, part: &dyn Fn(&str) -> String| -> Vec<String> {
        requests(&log).iter().map(|request| part(field(request, name))).collect()
    };
    let (traces, correlations) = (parts("traceparent", &trace), parts("uber-trace-id", &uber));
    assert!(traces.iter().all(|id| *id == traces[0]) && correlations.iter().all(|id| *id == correlations[0]));
    let spans = parts("traceparent", &|value| value.split('-').nth(2).unwrap().to_owned());
    assert!(spans[0] != spans[1] && spans[1] != spans[2], "{spans:?}");

    let (_, other) = round(acts(), &spec("  execution: sequence\n")).await;
    assert_ne!(member(&requests(&other)[0]).execution, members[0].execution);
}

#[tokio::test]
async fn requests_take_the_replicas_of_the_entry_in_turn_across_rounds() {
    let log = Log::default();
    let mut urls = Vec::new();
    for name in ["one", "two", "three"] {
        urls.push(service(name, &log, vec![reply(200, "")]).await);
    }
    let spec = format!(
        "  entry: [{}]\n  requests:\n    - {{name: a, http: {{method: GET, path: /}}}}\n    - {{name: b, http: {{method: GET, path: /}}}}\n",
        urls.join(", ")
    );
    let (runner, _) = runner(Controller::default(), scenario(&spec), &log).await;
    for _ in 0..2 {
        runner.round(None, &()).await.unwrap();
    }
    let lines = outline(&log.lines());
    let turns: Vec<&str> = lines.iter().filter_map(|line| line.strip_suffix(" GET /")).collect();
    assert_eq!(turns, ["one", "two", "three", "one"]);
}

const TIDY: &str = r#"  entry: ENTRY
  setup:
    - name: make
      http: {method: POST, path: "/users?k={key}"}
      retry: {attempts: 2, on: [status]}
      extract: {id: {pointer: /id}}
  requests:
    - {name: use, http: {method: GET, path: "/use/{id}"}, extract: {receipt: {pointer: /receipt}}}
  teardown:
    - {name: return, http: {method: DELETE, path: "/receipts/{receipt}"}}
    - {name: remove, http: {method: DELETE, path: "/users/{id}"}, expect: {status: 204}}
"#;

#[tokio::test]
async fn setup_comes_before_arming_and_teardown_after_the_verdict_without_token() {
    let acts = vec![
        reply(503, ""),
        reply(201, r#"{"id": 7}"#),
        reply(200, r#"{"receipt": "r"}"#),
        reply(200, ""),
        reply(204, ""),
    ];
    let (outcome, log) = round(acts, TIDY).await;
    let outcome = outcome.unwrap();
    let make = format!("entry POST /users?k={}", outcome.key);
    let (use_, back, remove) = ("entry GET /use/7", "entry DELETE /receipts/r", "entry DELETE /users/7");
    assert_eq!(outline(&log.lines()), [&make, &make, "rounds", use_, "settle", "finish", "conclude", back, remove]);
    for request in requests(&log) {
        let ours =
            ["traceparent", "tracestate", "uber-trace-id"].iter().any(|name| request.contains(&format!("\n{name}:")));
        assert_eq!(ours, request.starts_with(use_), "{request}");
    }
    assert_eq!((outcome.notes, outcome.attempts.len()), (vec![], 1));
}

#[tokio::test]
async fn a_setup_that_fails_arms_nothing_and_is_torn_down() {
    let (error, log) = round(vec![reply(500, "")], &TIDY.replace("on: [status]", "on: []")).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "failed to set the scenario up: request \"make\": expected a status below 400, found 500"
    );
    // Neither request of the teardown knows what to remove.
    assert_eq!(outline(&log.lines()).iter().filter(|line| *line == "rounds").count(), 0);
    assert_eq!(requests(&log).len(), 1);
}

#[tokio::test]
async fn a_teardown_that_fails_is_noted_and_the_rest_of_it_is_done() {
    let acts = vec![reply(201, r#"{"id": 7}"#), reply(500, ""), reply(404, "")];
    let (outcome, _) = round(acts, TIDY).await;
    assert_eq!(
        outcome.unwrap().notes,
        [
            "the teardown request \"return\" was not sent: `{receipt}` has no value",
            "the teardown request \"remove\" failed: expected status 204, found 404"
        ]
    );
}

#[tokio::test]
async fn a_round_that_is_dropped_is_torn_down_before_its_runner_leaves() {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(201, r#"{"id": 7}"#), Act::Silence, reply(204, "")]).await;
    let (runner, client) = runner(Controller::default(), scenario(&TIDY.replace("ENTRY", &entry)), &log).await;
    tokio::select! {
        _ = runner.round(None, &()) => panic!("the round ended"),
        _ = log.has("entry GET /use/7") => {}
    }
    client.farewells().await;
    let lines = outline(&log.lines());
    for expected in ["finish", "entry DELETE /users/7"] {
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }
}

#[tokio::test]
async fn rounds_side_by_side_have_keys_tokens_and_contexts_of_their_own() {
    let log = Log::default();
    // Every request waits for the others: eight rounds are in flight at once or none ends.
    let entry = service("entry", &log, vec![Act::Once("all here")]).await;
    let spec = format!("  entry: {entry}\n  requests:\n    - {{name: a, http: {{method: GET, path: \"/{{key}}\"}}}}\n");
    let controller = Controller { finished: finished("clean"), ..Controller::default() };
    let (runner, _) = runner(controller, scenario(&spec), &log).await;
    let attempted = Mutex::new(0);
    let progress = |step: Step<'_>| {
        if let Step::Attempted { .. } = step {
            *attempted.lock().unwrap() += 1;
        }
    };
    let rounds = futures_util::future::join_all((0..8).map(|_| runner.round(None, &progress)));
    let gate = async {
        while requests(&log).len() < 8 {
            tokio::task::yield_now().await;
        }
        log.add("all here");
    };
    let (outcomes, ()) = tokio::join!(rounds, gate);
    let keys: std::collections::BTreeSet<String> = outcomes.into_iter().map(|outcome| outcome.unwrap().key).collect();
    assert_eq!((keys.len(), *attempted.lock().unwrap()), (8, 8));
    let traces: std::collections::BTreeSet<String> =
        requests(&log).iter().map(|request| field(request, "traceparent").to_owned()).collect();
    assert_eq!(traces.len(), 8);
}
