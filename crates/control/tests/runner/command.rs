//! Commands as clients of a round: curl, Python and a shell, as users write them.

use aftershock_control::api::OracleVerdict;
use aftershock_control::runner::{RoundOutcome, RunError};
use aftershock_control::scenario::Secrets;
use aftershock_core::w3c::{Member, TraceParent, TraceState};
use serde_json::{Value, json};

use crate::stage::{Act, Controller, Log, field, outline, reply, runner, scenario, service};

async fn round(acts: Vec<Act>, spec: &str) -> (Result<RoundOutcome, RunError>, Log) {
    let log = Log::default();
    let entry = service("entry", &log, acts).await;
    let (runner, _) = runner(Controller::default(), scenario(&spec.replace("HERE", &entry)), &log).await;
    let secrets = Secrets::read(runner.scenario(), |_| Some("hunter2".to_owned())).unwrap();
    (runner.with_secrets(secrets).round(None, &()).await, log)
}

fn member(request: &str) -> Member {
    let member = TraceState::parse([field(request, "tracestate")]).member().unwrap().unwrap();
    assert_eq!(member.check, TraceParent::parse(field(request, "traceparent")).unwrap().check());
    member
}

fn started(log: &Log) -> Value {
    let line = log.lines().into_iter().find(|line| line.starts_with("rounds ")).unwrap();
    serde_json::from_str(line.strip_prefix("rounds ").unwrap()).unwrap()
}

const CURL: &str = r#"  entry: HERE
  secrets: [PASS]
  command:
    run: [sh, -ec, 'for n in 1 2; do curl -sSf -H "traceparent: $TRACEPARENT" -H "tracestate: $TRACESTATE" -H "authorization: $AUTH" "$AFTERSHOCK_ENTRY/$AFTERSHOCK_KEY/$0/$n"; done', "{key}"]
    env: {AUTH: "Bearer {env:PASS}"}
    expect: {body: [{json_path: $.n, equals: 1}]}
"#;

#[tokio::test]
async fn a_shell_with_curl_is_a_client_whose_context_is_constant() {
    let (outcome, log) = round(vec![reply(200, r#"{"n": 1}"#), reply(200, "")], CURL).await;
    let outcome = outcome.unwrap();
    assert_eq!((outcome.oracle.found, outcome.oracle.differences), (OracleVerdict::Held, vec![]));
    assert_eq!((outcome.attempts.len(), outcome.attempts[0].result.as_str()), (1, "exit 0"));
    let key = &outcome.key;
    let (first, second) = (format!("entry GET /{key}/{key}/1"), format!("entry GET /{key}/{key}/2"));
    assert_eq!(outline(&log.lines()), ["rounds", &first, &second, "settle", "finish", "conclude"]);
    assert_eq!(started(&log)["constant_context"], json!(true));
    let requests: Vec<String> = log.lines().into_iter().filter(|line| line.starts_with("entry ")).collect();
    assert_eq!(member(&requests[0]), member(&requests[1]));
    assert_eq!((member(&requests[0]).execution.0, member(&requests[0]).call.0), (0, 0));
    assert_eq!(field(&requests[0], "authorization"), "Bearer hunter2");
}

#[tokio::test]
async fn python_as_users_write_it_is_a_client() {
    let script = "import json, os, urllib.request as u\n\
                  r = u.Request(os.environ['AFTERSHOCK_ENTRY'] + '/x', headers={'tracestate': os.environ['TRACESTATE'], 'traceparent': os.environ['TRACEPARENT']})\n\
                  print(json.dumps({'status': u.urlopen(r).status, 'id': 7}))";
    let spec = format!(
        "  entry: HERE\n  command:\n    run: [python3, -c, {}]\n    extract: {{id: {{pointer: /id}}}}\n  teardown:\n    - {{name: remove, http: {{method: DELETE, path: \"/{{id}}\"}}}}\n",
        json!(script)
    );
    let (outcome, log) = round(vec![reply(200, "")], &spec).await;
    assert_eq!(outcome.unwrap().oracle.found, OracleVerdict::Held);
    assert_eq!(member(&log.has("entry GET /x").await).token.to_string(), "00000000000000aa");
    assert!(!log.has("entry DELETE /7").await.contains("tracestate"));
}

#[tokio::test]
async fn a_command_that_fails_is_a_failed_request_with_the_end_of_what_it_said() {
    let spec = "  entry: HERE\n  secrets: [PASS]\n  command:\n    run: [sh, -c, 'echo \"no luck with $P\" >&2; exit 3']\n    env: {P: \"{env:PASS}\"}\n    retry: {attempts: 2, on: [status]}\n";
    let (outcome, log) = round(vec![reply(200, "")], spec).await;
    let outcome = outcome.unwrap();
    let results: Vec<&str> = outcome.attempts.iter().map(|attempt| attempt.result.as_str()).collect();
    assert_eq!(results, ["exit 3", "exit 3"]);
    assert_eq!(
        outcome.oracle.differences,
        ["command: expected exit 0, found exit 3; it said \"no luck with {env:PASS}\""]
    );
    assert!(!log.lines().concat().contains("hunter2"));
    let (outcome, _) = round(vec![reply(200, "")], &format!("{spec}    expect: {{exit: 3}}\n")).await;
    let outcome = outcome.unwrap();
    assert_eq!((outcome.oracle.found, outcome.attempts.len()), (OracleVerdict::Held, 1));
}

#[tokio::test]
async fn a_command_over_its_time_is_killed_with_its_children_and_one_that_is_none_makes_the_round_inconclusive() {
    let spec = "  entry: HERE\n  command: {run: [sh, -c, 'curl -s \"$AFTERSHOCK_ENTRY\" & wait'], timeout: 1s}\n";
    let (outcome, log) = round(vec![Act::Silence], spec).await;
    assert_eq!(outcome.unwrap().attempts[0].result, "timeout");
    log.has("entry client gone").await;

    let (error, log) = round(vec![reply(200, "")], "  entry: HERE\n  command: {run: [/no/such/program]}\n").await;
    assert!(error.unwrap_err().to_string().contains("failed to run \"/no/such/program\": No such file"));
    assert!(log.has("finish").await.contains("/no/such/program"));
}

#[tokio::test]
async fn a_runner_that_is_dropped_kills_its_command() {
    let log = Log::default();
    let entry = service("entry", &log, vec![Act::Silence]).await;
    let spec = format!("  entry: {entry}\n  command: {{run: [sh, -c, 'curl -s \"$AFTERSHOCK_ENTRY\" & wait']}}\n");
    let (runner, client) = runner(Controller::default(), scenario(&spec), &log).await;
    tokio::select! {
        _ = runner.round(None, &()) => panic!("the round ended"),
        _ = log.has("entry GET /") => {}
    }
    log.has("entry client gone").await;
    client.farewells().await;
}

#[tokio::test]
async fn a_command_can_be_declared_one_execution() {
    let (outcome, log) = round(vec![reply(200, r#"{"n": 1}"#)], &format!("{CURL}  execution: sequence\n")).await;
    outcome.unwrap();
    assert_ne!(member(&log.has("entry ").await).execution.0, 0);
}

#[tokio::test]
async fn what_a_round_is_run_under_reaches_the_controller_and_traffic_sends_nothing() {
    let spec = "  entry: HERE\n  traffic: {entry: shop, headers: {X-Canary: \"1\"}, percentage: 0.5, for: 5ms}\n  \
                stop: {error_rate: 10%, min_requests: 50}\n  \
                outcomes: [{api: stock GET /items, body: {pointer: /state, error: [failed]}}]\n  \
                invariants: [{name: up, get: HERE/up, matches: ^ok}]\n";
    let (outcome, log) = round(vec![reply(200, "ok then\n")], spec).await;
    assert_eq!(outcome.unwrap().oracle.found, OracleVerdict::Held);
    assert_eq!(outline(&log.lines()), ["rounds", "finish", "entry GET /up", "conclude"]);
    let started = started(&log);
    assert_eq!(started["traffic"], json!({"entry": "shop", "headers": {"x-canary": "1"}, "per_million": 5_000}));
    assert_eq!(started["stop"], json!({"errors_per_million": 100_000, "min_requests": 50}));
    assert_eq!(started["outcomes"][0]["api"], json!("stock GET /items"));
    assert_eq!(started["constant_context"], json!(false));
}
