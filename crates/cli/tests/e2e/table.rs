//! What each fault does to a call, and what is counted of it, on real connections: one cell of the table for each fault,
//! phase and protocol. Two plans are in flight at any time, one for each protocol. What reached the callee is taken from
//! the callee's own log, what the caller saw from the status that it answers with.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Running, System, aftershock};

struct Cell {
    fault: &'static str,
    phase: &'static str,
    /// A request byte reached the callee.
    contacted: bool,
    /// The outcome of `response-received`; none if there is no such event.
    response: Option<&'static str>,
    /// The sidecar made the answer.
    made: bool,
    /// What the caller answers with: 200, or what tells an error answer, a broken connection and silence apart.
    seen: u16,
}

const fn cell(
    fault: &'static str,
    phase: &'static str,
    contacted: bool,
    response: Option<&'static str>,
    made: bool,
    seen: u16,
) -> Cell {
    Cell { fault, phase, contacted, response, made, seen }
}

/// The table of `docs/faults.md`, as its reader expects it.
const TABLE: [Cell; 10] = [
    cell("{delay: 50ms}", "request", true, Some("ok"), false, 200),
    cell("abort", "request", false, Some("error"), true, 500),
    cell("{error: ERROR}", "request", false, Some("error"), true, 500),
    cell("reset", "request", false, Some("error"), false, 503),
    cell("drop", "request", false, None, false, 504),
    cell("{delay: 50ms}", "response", true, Some("ok"), false, 200),
    cell("abort", "response", true, Some("error"), true, 500),
    cell("{error: ERROR}", "response", true, Some("error"), true, 500),
    cell("reset", "response", true, Some("error"), false, 503),
    cell("drop", "response", true, None, false, 504),
];

/// A protocol's entry path, callee, Api, and an `error` answer of it.
const PROTOCOLS: [(&str, u8, &str, &str); 2] =
    [("web", 2, "web POST /store", "{status: 418}"), ("rpc", 3, "rpc table.Rpc/Put", "{grpc_status: 9}")];

fn scenario(system: &System, name: &str, status: u16) -> String {
    let path = system.folder.path().join(format!("{name}-{status}.yaml"));
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: {name}}}\nspec:\n  entry: \
         http://{}1:8080\n  key: {name}-{{random}}\n  requests:\n    - name: it\n      http: {{method: POST, path: \
         /{name}, headers: {{content-type: application/json}}, body: '{{\"key\":\"{{key}}\"}}'}}\n      timeout: \
         10s\n      expect: {{status: {status}}}\n",
        system.prefix
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The one inner call of a round, as its sidecars saw it, and the round's key.
fn call(system: &System, id: &Value) -> (Value, String) {
    let record = system.run(&["rounds", &id.to_string(), "--format", "json"]).expect(0).json();
    let traces = record["finished"]["traces"].as_array().unwrap().clone();
    let calls = traces.iter().flat_map(|trace| trace["calls"].as_array().unwrap().clone());
    let inner: Vec<Value> = calls.filter(|call| call["caller"] == "gateway").collect();
    let [call] = &inner[..] else { panic!("one call of the gateway: {inner:#?}") };
    (call.clone(), record["summary"]["key"].as_str().unwrap().to_owned())
}

#[test]
fn each_fault_does_and_counts_what_the_table_says_with_two_plans_at_once() {
    let topology = crate::support::root().join("crates/cli/tests/e2e/files/table.yaml");
    let system = System::start(topology.to_str().unwrap(), &[]);
    for (name, ..) in PROTOCOLS {
        system.run(&["record", &scenario(&system, name, 200), "--rounds", "2"]).expect(0);
    }
    for (n, cell) in TABLE.iter().enumerate() {
        let inject = |(name, _, api, error): (&str, u8, &str, &str)| {
            let fault = cell.fault.replace("ERROR", error);
            let path = system.folder.path().join(format!("{name}-{n}-fault.yaml"));
            let oracle = if cell.seen == 200 { "held" } else { "unavailable" };
            let text = format!(
                "apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata: {{name: cell-{n}}}\nspec:\n  \
                 scenario: {name}\n  faults:\n    - target: {{caller: gateway, api: {api}, k: 1, phase: {}}}\n      \
                 fault: {fault}\n  expect: {{oracle: {oracle}}}\n",
                cell.phase
            );
            std::fs::write(&path, text).unwrap();
            let file = path.to_str().unwrap();
            let scenario = scenario(&system, name, 200);
            let arguments = ["inject", file, "--scenario", &scenario, "--format", "json", "--control", &system.url];
            Running::start(aftershock(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()))
        };
        let rounds = PROTOCOLS.map(inject);
        for (round, (name, host, ..)) in rounds.into_iter().zip(PROTOCOLS) {
            let what = format!("{} @{} of {name}", cell.fault, cell.phase);
            let report = round.wait(Duration::from_secs(60)).expect(0).json();
            let round = &report["rounds"][0];
            assert_eq!((&report["injected"], &report["as_declared"]), (&1.into(), &1.into()), "{what}: {report:#}");
            let status = round["attempts"][0]["result"].as_str().unwrap();
            assert!(status.starts_with(&cell.seen.to_string()), "{what}: the caller saw {status}");
            let (call, key) = call(&system, &round["id"]);
            let client = &call["client"];
            assert!(client["request"]["clock"].as_u64().unwrap() > 0, "{what}: request-sent is counted");
            let response = client["outcome"].as_str().filter(|_| !client["response"].is_null());
            assert_eq!(response, cell.response, "{what}: {client:#}");
            assert_eq!(client["made"], cell.made, "{what}: {client:#}");
            assert_eq!(!call["server"].is_null(), cell.contacted, "{what}: the callee's sidecar: {call:#}");
            let log = system.events(host, &key);
            assert_eq!(log.contains("request-received"), cell.contacted, "{what}: the callee's own log: {log}");
        }
    }
}

#[test]
fn a_caller_that_gives_up_and_a_callee_that_is_dead_are_counted_as_they_are() {
    let topology = crate::support::root().join("crates/cli/tests/e2e/files/table.yaml");
    let system = System::start(topology.to_str().unwrap(), &[]);
    let recorded = |name: &str, status: u16| {
        let scenario = scenario(&system, name, status);
        let report = system.run(&["record", &scenario, "--rounds", "1", "--format", "json"]).expect(0).json();
        call(&system, &report["rounds"][0])
    };
    let (given_up, key) = recorded("slow", 504);
    let client = &given_up["client"];
    assert_eq!((client["response"].is_null(), &client["ending"]), (true, &"application-gone".into()), "{client:#}");
    // Cancelled as without a sidecar: the callee learns of it and does not answer.
    let log = system.events(3, &key);
    assert!(log.contains("handling-cancelled") && !log.contains("response-sent"), "{log}");

    let healthy = crate::support::get(&format!("{}2:30000", system.prefix), "/healthz");
    let pid = serde_json::from_str::<Value>(&healthy).unwrap()["pid"].to_string();
    // The lab would stop everything once it noticed.
    system.lab.signal("STOP");
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let (dead, _) = recorded("web", 503);
    system.lab.signal("CONT");
    let client = &dead["client"];
    assert_eq!(
        (&client["outcome"], &client["made"], &client["ending"]),
        (&"error".into(), &false.into(), &"upstream-failed".into()),
        "the application sees a broken connection, never a synthetic answer: {client:#}"
    );
}
