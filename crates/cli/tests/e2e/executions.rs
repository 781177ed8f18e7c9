//! What is one execution: each try of a client of its own, a declared sequence of requests together.

use serde_json::Value;

use crate::support::{System, root};

/// A scenario for the topology of the table: `requests`, each of them in YAML, and further lines of its `spec`.
fn scenario(system: &System, name: &str, spec: &str, requests: &[String]) -> String {
    let path = system.folder.path().join(format!("{name}.yaml"));
    let requests: String = requests.iter().map(|request| format!("    - {request}\n")).collect();
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: {name}}}\nspec:\n  entry: \
         http://{}1:8080\n{spec}  requests:\n{requests}",
        system.prefix
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn request(name: &str, further: &str) -> String {
    format!(
        "{{name: {name}, http: {{method: POST, path: /web, body: '{{\"key\":\"{{key}}\"}}'}}, timeout: 5s{further}}}"
    )
}

fn fault(system: &System, scenario: &str, k: u32, oracle: &str) -> String {
    let path = system.folder.path().join(format!("{scenario}-fault.yaml"));
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata: {{name: lost}}\nspec:\n  scenario: \
         {scenario}\n  faults:\n    - target: {{caller: gateway, api: web POST /store, k: {k}, phase: request}}\n      \
         fault: abort\n  expect: {{oracle: {oracle}}}\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn start() -> System {
    System::start(root().join("crates/cli/tests/e2e/files/table.yaml").to_str().unwrap(), &[])
}

/// Where a round's fault fired: execution, in the order in which they began, and number; and how many there were.
fn hits(round: &Value) -> (Vec<(usize, u64)>, usize) {
    let mut traces = round["finished"]["traces"].as_array().unwrap().clone();
    let began = |trace: &Value| {
        let calls = trace["calls"].as_array().unwrap().iter();
        calls.filter_map(|call| call["server"]["request"]["unix_nanos"].as_u64()).min().unwrap()
    };
    traces.sort_by_key(began);
    let mut hits = Vec::new();
    for (n, trace) in traces.iter().enumerate() {
        for call in trace["calls"].as_array().unwrap() {
            hits.extend(call["client"]["injection"]["k"].as_u64().map(|k| (n, k)));
        }
    }
    (hits, traces.len())
}

#[test]
fn a_client_that_retries_three_times_inside_a_round_is_faulted_once() {
    let system = start();
    let clean = scenario(&system, "retries", "", &[request("store", "")]);
    system.run(&["record", &clean, "--rounds", "2"]).expect(0);
    // The store refuses what is not faulted, too: the client tries four times.
    let stubborn = request("store", ", retry: {attempts: 4, on: [status]}");
    let stubborn = scenario(&system, "retries", "  key: refuse-{random}\n", &[stubborn]);
    let fault = fault(&system, "retries", 1, "unavailable");
    let report = system.run(&["inject", &fault, "--scenario", &stubborn, "--format", "json"]).expect(0).json();
    let round = &report["rounds"][0];
    assert_eq!(round["attempts"].as_array().unwrap().len(), 4, "{round:#}");
    assert_eq!(round["finished"]["faults"][0]["injections"], 1, "{round:#}");
    assert_eq!(hits(round), (vec![(0, 1)], 4), "the first of four executions, and no other");
    assert_eq!(report["injected"], 1, "{round:#}");
}

#[test]
fn a_sequence_of_four_requests_declared_one_execution_counts_through() {
    let system = start();
    let requests: Vec<String> = (1..=4).map(|n| request(&format!("step-{n}"), "")).collect();
    let sequence = scenario(&system, "sequence", "  execution: sequence\n", &requests);
    system.run(&["record", &sequence, "--rounds", "2"]).expect(0);
    let at_four = fault(&system, "sequence", 4, "unavailable");
    let report = system.run(&["inject", &at_four, "--scenario", &sequence, "--trials", "3", "--format", "json"]);
    let report = report.expect(0).json();
    for round in report["rounds"].as_array().unwrap() {
        let answers: Vec<&str> =
            round["attempts"].as_array().unwrap().iter().map(|it| &it["result"].as_str().unwrap()[..3]).collect();
        assert_eq!(answers, ["200", "200", "200", "500"], "{round:#}");
        assert_eq!(hits(round), (vec![(0, 4)], 1), "one execution, whose fourth call is hit");
    }
    // Each request on its own never gets to a fourth call: refused before anything is sent, by what was recorded.
    let apart = scenario(&system, "apart", "", &requests);
    system.run(&["record", &apart, "--rounds", "2"]).expect(0);
    let never = fault(&system, "apart", 4, "held");
    let refused = system.run(&["inject", &never, "--scenario", &apart]).expect(1);
    assert!(refused.stderr.contains("clean traces"), "{}", refused.stderr);
}
