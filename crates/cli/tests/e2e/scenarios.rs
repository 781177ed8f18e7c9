//! What a scenario can say, on real processes: rounds side by side, ordinary traffic and its stop condition, commands as
//! clients, setup and entries, plans of several faults, groups, outcomes in bodies. What happened is taken from the lab's
//! own logs.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Finished, Running, System, aftershock, alive, ask, descendants, eventually, get, root, run, skipped,
};

const FIG2: &str = "topologies/fig2-patterns.yaml";
const TABLE: &str = "crates/cli/tests/e2e/files/table.yaml";
/// No charge is ever asked for: the checkout fails.
const NO_CHARGE: &str = "    - target: {caller: checkout, api: payment fig2.Payment/Charge, k: 1, phase: request}\n      \
                         fault: abort\n";

fn write(system: &System, name: &str, text: &str) -> String {
    let path = system.folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A scenario file with these lines below `spec`, at this lab's gateway.
fn scenario(system: &System, name: &str, spec: &str) -> String {
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: {name}}}\nspec:\n  entry: \
         http://{}1:8080\n{spec}",
        system.prefix
    );
    write(system, &format!("{name}-scenario.yaml"), &text)
}

/// A fault file: the list of faults, and what stands below `spec` besides.
fn fault(system: &System, scenario: &str, faults: &str, rest: &str) -> String {
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata: {{name: {scenario}}}\nspec:\n  scenario: \
         {scenario}\n  faults:\n{faults}{rest}"
    );
    write(system, &format!("{scenario}-fault.yaml"), &text)
}

/// A request of the table's topology, which ends with this status.
fn post(name: &str, path: &str, key: &str, rest: &str) -> String {
    format!(
        "    - name: {name}\n      http: {{method: POST, path: /{path}, headers: {{content-type: application/json}}, \
         body: '{{\"key\":\"{key}\"}}'}}\n      timeout: 10s\n{rest}"
    )
}

fn table() -> System {
    System::start(TABLE, &[])
}

fn inject(system: &System, fault: &str, scenario: &str, arguments: &[&str], code: i32) -> Value {
    let mut all = vec!["inject", fault, "--scenario", scenario, "--format", "json"];
    all.extend(arguments);
    system.run(&all).expect(code).json()
}

/// How often the service at `host` did `what` with `api`, by its own log.
fn logged(system: &System, host: u8, key: &str, api: &str, what: &str) -> usize {
    events(system, host, key).iter().filter(|event| event["api"] == api && event["event"] == what).count()
}

fn events(system: &System, host: u8, key: &str) -> Vec<Value> {
    serde_json::from_str(&system.events(host, key)).unwrap()
}

fn armed(system: &System) -> usize {
    let status = system.run(&["status", "--format", "json"]).expect(0).json();
    status["rounds"].as_array().unwrap().len()
}

/// A request that belongs to no round; its status.
fn ordinary(system: &System, path: &str, key: &str, lines: &str) -> u16 {
    let lines = format!("content-type: application/json\r\n{lines}");
    let (head, _) = ask(&format!("{}1:8080", system.prefix), "POST", path, &lines, &format!("{{\"key\":\"{key}\"}}"));
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The verdicts of a round's faults, in the order of the plan.
fn verdicts(round: &Value) -> Vec<&str> {
    round["finished"]["faults"].as_array().unwrap().iter().map(|fault| fault["verdict"].as_str().unwrap()).collect()
}

#[test]
fn rounds_side_by_side_each_have_a_key_and_a_fault_of_their_own_and_end_together_at_ctrl_c() {
    let system = System::start(FIG2, &[]);
    let [page, third] =
        ["page", "third-product"].map(|name| system.file(&format!("scenarios/fig2-patterns/{name}.yaml"), |text| text));
    let [checkout, double] = ["checkout", "double-charge"]
        .map(|name| system.file(&format!("scenarios/fig2-patterns/{name}.yaml"), |text| text));
    let side_by_side = |fault: &str, scenario: &str| {
        let report = inject(&system, fault, scenario, &["--parallel", "8", "--trials", "24"], 0);
        assert_eq!((&report["injected"], &report["as_declared"]), (&24.into(), &24.into()), "{report:#}");
        let rounds = report["rounds"].as_array().unwrap().clone();
        let keys: BTreeSet<String> = rounds.iter().map(|round| round["key"].as_str().unwrap().to_owned()).collect();
        assert_eq!(keys.len(), 24, "each round has a key of its own: {keys:?}");
        keys
    };
    for key in side_by_side(&third, &page) {
        assert_eq!(logged(&system, 7, &key, "GetProduct", "response-sent"), 4, "{key}: all were answered");
        assert_eq!(logged(&system, 1, &key, "GetProduct", "response-received"), 3, "{key}: one answer was lost");
        assert_eq!(logged(&system, 1, &key, "GetProduct", "call-failed"), 1, "{key}");
    }
    for key in side_by_side(&double, &checkout) {
        assert_eq!(logged(&system, 6, &key, "ChargeCard", "request-received"), 2, "{key}: asked for twice");
        assert_eq!(system.ledger(6, "charges", &key), 2, "{key}");
    }

    let arguments = ["inject", &third, "--scenario", &page, "--parallel", "8", "--trials", "24"];
    let mut command = aftershock(&arguments);
    let running =
        Running::start(command.args(["--control", &system.url]).stdout(Stdio::piped()).stderr(Stdio::piped()));
    eventually("eight rounds are in flight", || armed(&system) == 8);
    running.signal("INT");
    let finished = running.wait(Duration::from_secs(15)).expect(1);
    assert!(finished.stderr.contains("SIGINT"), "{}", finished.stderr);
    assert_eq!(armed(&system), 0, "nothing is armed any more");
    let rounds = system.run(&["rounds", "--limit", "100", "--format", "json"]).expect(0).json();
    let rounds = rounds.as_array().unwrap();
    let ended: Vec<&Value> = rounds.iter().skip(48).map(|round| &round["verdict"]).collect();
    assert!((8..24).contains(&ended.len()), "those in flight are kept, no others began: {ended:?}");
    assert!(ended.iter().all(|verdict| ["injected", "inconclusive"].map(Value::from).contains(verdict)), "{ended:?}");
    assert!(ended.iter().filter(|verdict| **verdict == "inconclusive").count() >= 1, "{ended:?}");
}

#[test]
fn of_ordinary_traffic_exactly_what_is_tagged_is_faulted() {
    let system = System::start(FIG2, &[]);
    let unlimited = fault(&system, "live", &format!("{NO_CHARGE}      max_injections: unlimited\n"), "");
    // A round in which `send` sends what it likes; the round's record.
    let under = |which: &str, send: &mut dyn FnMut()| {
        let live = scenario(&system, "live", &format!("  traffic: {{entry: gateway, {which}, for: 6s}}\n"));
        let arguments = ["inject", &unlimited, "--scenario", &live, "--format", "json", "--control", &system.url];
        // More than a pipe holds that nobody reads.
        let report = system.folder.path().join("report.json");
        let stdout = std::fs::File::create(&report).unwrap();
        let round = Running::start(aftershock(&arguments).stdout(stdout).stderr(Stdio::piped()));
        eventually("the round is armed", || armed(&system) == 1);
        send();
        assert_eq!(armed(&system), 1, "all of them were sent while the round was armed");
        round.wait(Duration::from_secs(60)).expect(0);
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["injected"], 1, "{report:#}");
        report["rounds"][0]["finished"].clone()
    };
    // How many faults there were, and how many executions.
    let of = |round: &Value| {
        let injections = usize::try_from(round["faults"][0]["injections"].as_u64().unwrap()).unwrap();
        (injections, round["traces"].as_array().unwrap().len())
    };
    let canary = |n: usize| ordinary(&system, "/checkout", &format!("canary-{n}"), "x-canary: 1\r\n");
    let plain = |n: usize| {
        let other = ["", "x-canary: 2\r\n"][n % 2];
        ordinary(&system, "/checkout", &format!("plain-{n}"), other)
    };
    let mut answers = Vec::new();
    let round = under("headers: {x-canary: \"1\"}", &mut || answers.extend((0..12).map(|n| (canary(n), plain(n)))));
    assert_eq!(answers, [(500, 200); 12]);
    assert_eq!(of(&round), (12, 12), "an execution and a fault for each, and no others: {round:#}");
    for n in 0..12 {
        assert_eq!(logged(&system, 6, &format!("canary-{n}"), "ChargeCard", "request-received"), 0);
        assert_eq!(system.ledger(6, "charges", &format!("plain-{n}")), 1);
    }
    // After the round it is traffic like any other.
    assert_eq!(canary(12), 200);

    // Whichever half is tagged: those and no others fail.
    let mut answers = Vec::new();
    let half = |n: usize| ordinary(&system, "/checkout", &format!("half-{n}"), "");
    let round = under("percentage: 50", &mut || answers.extend((0..40).map(half)));
    let failed = answers.iter().filter(|status| **status == 500).count();
    assert!((1..40).contains(&failed), "{answers:?}");
    assert_eq!(of(&round), (failed, failed), "{round:#}");
    for (n, status) in answers.iter().enumerate() {
        let charges = system.ledger(6, "charges", &format!("half-{n}"));
        assert_eq!((*status, charges), if charges == 0 { (500, 0) } else { (200, 1) }, "half-{n}");
    }

    // It does not last for the time that was planned if the rest of the traffic suffers.
    let spec = "  traffic: {entry: gateway, headers: {x-canary: \"1\"}, for: 10m}\n  stop: {error_rate: 50%, \
                min_requests: 4}\n";
    let endless = scenario(&system, "live", spec);
    let arguments = ["inject", &unlimited, "--scenario", &endless, "--trials", "3", "--control", &system.url];
    let round = Running::start(aftershock(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()));
    eventually("the round is armed", || armed(&system) == 1);
    assert_eq!(canary(13), 500, "a failure of the round itself, which the rest is not blamed for");
    let refused = [0, 1, 2].map(|n| ordinary(&system, "/signup", &format!("refuse-{n}"), ""));
    assert_eq!((refused, plain(13)), ([500; 3], 200));
    let finished = round.wait(Duration::from_secs(30));
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("stopped: 3 of 4 ordinary requests failed (75 %), more than 50 %"), "{said}");
    assert!(said.contains("1 of 3 rounds: none began after one was ended early"), "{said}");
    assert_eq!((finished.code, armed(&system)), (Some(2), 0), "{said}");

    let before = system.run(&["rounds", "--format", "json"]).expect(0).json();
    for (percentage, named) in [("0", "above 0"), ("0.00001", "above 0"), ("101", "at most 100")] {
        let spec = format!("  traffic: {{entry: gateway, percentage: {percentage}, for: 1s}}\n");
        let refused = system.run(&["inject", &unlimited, "--scenario", &scenario(&system, "live", &spec)]).expect(1);
        assert!(refused.stderr.contains(named), "{percentage}: {}", refused.stderr);
    }
    assert_eq!(system.run(&["rounds", "--format", "json"]).expect(0).json(), before, "no round was started");
}

#[test]
fn a_round_is_ended_and_what_is_parked_goes_on_when_ordinary_traffic_suffers() {
    // Nobody gives up, so that only the stop condition can end the round early.
    let topology = std::fs::read_to_string(root().join(TABLE)).unwrap();
    let (put, stubborn) = ("grpc: table.Rpc/Put", ", refuse: {keys_starting_with: refuse-, status: ABORTED}");
    let topology = topology.replace("timeout: 1s", "timeout: none").replace(put, &format!("{put}{stubborn}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("patient.yaml");
    std::fs::write(&file, topology).unwrap();
    let system = System::start(file.to_str().unwrap(), &[]);
    let spec = format!(
        "  key: parked-{{random}}\n  stop: {{error_rate: 10%, min_requests: 10}}\n  requests:\n{}",
        post("web", "web", "{key}", "").replace("timeout: 10s", "timeout: 50s")
    );
    let parked = scenario(&system, "parked", &spec);
    let faults = "    - target: {caller: gateway, api: web POST /store, k: 1, phase: response}\n      fault: {delay: \
                  60s}\n";
    let fault = fault(&system, "parked", faults, "");
    let arguments = ["inject", &fault, "--scenario", &parked, "--format", "json", "--control", &system.url];
    let inject = Running::start(aftershock(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut key = String::new();
    eventually("the round runs", || {
        let rounds = system.run(&["rounds", "--format", "json"]).json();
        key = rounds[0]["key"].as_str().unwrap_or_default().to_owned();
        !key.is_empty()
    });
    eventually("the answer is parked", || logged(&system, 2, &key, "Store", "response-sent") == 1);
    // Nine failures are too few to conclude anything from.
    for n in 0..10 {
        assert_eq!(armed(&system), 1, "after {n} ordinary requests");
        assert_eq!(logged(&system, 1, &key, "Store", "response-received"), 0, "after {n} ordinary requests");
        assert_eq!(ordinary(&system, "/rpc", &format!("refuse-{n}"), ""), 500);
    }
    let finished = inject.wait(Duration::from_secs(20));
    eventually("the parked answer arrived", || logged(&system, 1, &key, "Store", "response-received") == 1);
    assert_eq!(armed(&system), 0);
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("stopped: 10 of 10 ordinary requests failed (100 %), more than 10 %"), "{said}");
    assert_eq!(finished.code, Some(1), "{said}");
    let rounds = system.run(&["rounds", "--format", "json"]).expect(0).json();
    assert_eq!(rounds[0]["verdict"], "inconclusive", "{rounds:#}");
}

#[test]
fn a_message_that_is_held_until_its_guard_and_let_go_makes_the_order_happen() {
    let system = System::start(FIG2, &[]);
    let scenario = system.file("scenarios/fig2-patterns/signup.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    let fault = system.file("scenarios/fig2-patterns/success-before-risk.yaml", |text| {
        text.replace("fault: {delay: 100ms}", "fault: release")
    });
    // Who signed up reads the answers that came: in which order?
    let order = |key: &str| -> Vec<String> {
        let received = |event: &Value| event["event"] == "response-received";
        let events = events(&system, 2, key);
        let answers = events.iter().filter(|event| received(event));
        answers.map(|event| event["api"].as_str().unwrap().to_owned()).collect()
    };
    let clean = system.run(&["rounds", "--format", "json"]).expect(0).json();
    assert_eq!(order(clean[0]["key"].as_str().unwrap()), ["RiskCheck", "CreateUser"]);
    let report = inject(&system, &fault, &scenario, &["--trials", "3"], 0);
    assert_eq!((&report["injected"], &report["as_declared"]), (&3.into(), &3.into()), "{report:#}");
    for round in report["rounds"].as_array().unwrap() {
        assert_eq!(order(round["key"].as_str().unwrap()), ["CreateUser", "RiskCheck"], "{round:#}");
        assert!(round["attempts"][0]["result"].as_str().unwrap().starts_with("200"), "{round:#}");
    }
}

const CURL: &str = r#"for n in 1 2 3; do
  if curl -sSf -H "traceparent: $TRACEPARENT" -H "tracestate: $TRACESTATE" -H "authorization: $AUTHORIZATION" \
    -H "content-type: application/json" -d "{\"key\":\"$AFTERSHOCK_KEY\"}" "$AFTERSHOCK_ENTRY/checkout" >/dev/null
  then echo "{\"tries\": $n, \"shown\": \"$AUTHORIZATION\"}"; exit 0; fi
done
exit 1
"#;

const PYTHON: &str = r#"import json, os, sys, urllib.error, urllib.request
env = os.environ
headers = {"traceparent": env["TRACEPARENT"], "tracestate": env["TRACESTATE"], "content-type": "application/json",
           "authorization": env["AUTHORIZATION"]}
body = json.dumps({"key": env["AFTERSHOCK_KEY"]}).encode()
for n in range(1, 4):
    try:
        urllib.request.urlopen(urllib.request.Request(env["AFTERSHOCK_ENTRY"] + "/checkout", body, headers))
    except urllib.error.HTTPError as error:
        print(error, env["AUTHORIZATION"], file=sys.stderr)
    else:
        print(json.dumps({"tries": n, "shown": env["AUTHORIZATION"]}))
        sys.exit(0)
sys.exit(1)
"#;

const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn a_command_that_retries_is_faulted_once_and_its_secret_is_nowhere() {
    for program in ["curl", "python3"] {
        let here = std::process::Command::new(program).arg("--version").stdout(Stdio::null()).status();
        if !here.is_ok_and(|status| status.success()) {
            return skipped("a_command_that_retries_is_faulted_once_and_its_secret_is_nowhere", program);
        }
    }
    let system = System::start(FIG2, &[]);
    let secret = |arguments: &[&str]| {
        let mut command = aftershock(arguments);
        command.args(["--control", &system.url]).env("SHOP_TOKEN", SECRET).env("RUST_LOG", "debug");
        Finished::from(command.output().unwrap())
    };
    let mut said = String::new();
    for (name, program, script) in [("curl", "sh", CURL), ("urllib", "python3", PYTHON)] {
        let script = write(&system, name, script);
        // What it prints is compared, so that a difference would show it.
        let client = |tries: u32| {
            let spec = format!(
                "  secrets: [SHOP_TOKEN]\n  command:\n    run: [{program}, {script}]\n    env: {{AUTHORIZATION: \
                 \"Bearer {{env:SHOP_TOKEN}}\"}}\n    timeout: 20s\n    expect: {{exit: 0, body: [{{json_path: \
                 $.tries, equals: {tries}}}, {{json_path: $.shown, matches: \"^Bearer\"}}]}}\n"
            );
            scenario(&system, name, &spec)
        };
        said += &secret(&["record", &client(1), "--rounds", "1", "--format", "json"]).expect(0).stderr;
        let fault = fault(&system, name, NO_CHARGE, "");
        let finished = secret(&["inject", &fault, "--scenario", &client(2), "--format", "json"]).expect(0);
        let report = finished.json();
        assert_eq!((&report["injected"], &report["as_declared"]), (&1.into(), &1.into()), "{report:#}");
        let round = &report["rounds"][0];
        assert_eq!(round["finished"]["faults"][0]["injections"], 1, "{round:#}");
        assert_eq!(round["finished"]["traces"].as_array().unwrap().len(), 2, "each try is an execution");
        let key = round["key"].as_str().unwrap();
        assert_eq!(logged(&system, 1, key, "post_checkout", "request-received"), 2, "two tries came in");
        assert_eq!(logged(&system, 6, key, "ChargeCard", "request-received"), 1, "one of them got through");
        said += &(finished.stdout + &finished.stderr);
        // A client whose output is not as expected is shown, and its secret is not.
        let shown = client(2).replace("-scenario", "-shown-scenario");
        let text = std::fs::read_to_string(client(2)).unwrap().replace("matches: \"^Bearer\"", "equals: nothing");
        std::fs::write(&shown, text).unwrap();
        let finished = secret(&["inject", &fault, "--scenario", &shown]).expect(2);
        assert!(finished.stdout.contains("{env:SHOP_TOKEN}"), "{}", finished.stdout);
        said += &(finished.stdout + &finished.stderr);
        let id = round["id"].to_string();
        said += &system.run(&["rounds", &id, "--format", "json"]).expect(0).stdout;
    }
    said += &system.run(&["rounds", "--format", "json"]).expect(0).stdout;
    assert!(!said.contains(SECRET), "{said}");
    let mut files = 0;
    for file in files_below(system.folder.path()) {
        files += 1;
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{}", file.display());
    }
    assert!(files > 14, "the store and each process's log: {files}");
}

fn files_below(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_command_that_is_interrupted_leaves_no_process_behind_and_the_teardown_is_sent() {
    let system = System::start(FIG2, &[]);
    let teardown = "http: {method: POST, path: /checkout, json: {key: \"teardown-{key}\"}}";
    let spec = format!(
        "  command: {{run: [sh, -c, 'sleep 600 & sleep 601'], timeout: 20m}}\n  teardown: [{{name: cancel, \
         {teardown}}}]\n"
    );
    let sleeping = scenario(&system, "sleeping", &spec);
    let fault = fault(&system, "sleeping", NO_CHARGE, "");
    let arguments = ["inject", &fault, "--scenario", &sleeping, "--control", &system.url];
    let inject = Running::start(aftershock(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut started = Vec::new();
    eventually("the shell and both its children run", || {
        started = descendants(inject.pid());
        started.len() == 3
    });
    let rounds = system.run(&["rounds", "--format", "json"]).expect(0).json();
    let key = format!("teardown-{}", rounds[0]["key"].as_str().unwrap());
    inject.signal("INT");
    inject.wait(Duration::from_secs(15)).expect(1);
    eventually("everything it started is gone", || alive(&started).is_empty());
    assert_eq!(armed(&system), 0);
    assert_eq!(system.ledger(6, "charges", &key), 1, "the teardown was sent, and not faulted");
}

#[test]
fn a_plan_of_two_faults_has_a_verdict_for_each_and_the_worst_is_the_rounds() {
    let system = table();
    let requests = post("web", "web", "{key}", "") + &post("rpc", "rpc", "{key}", "");
    let both =
        scenario(&system, "both", &format!("  key: both-{{random}}\n  execution: sequence\n  requests:\n{requests}"));
    system.run(&["record", &both, "--rounds", "2"]).expect(0);
    let of = |web: &str, rpc: &str| {
        format!(
            "    - target: {{caller: gateway, api: web POST /store, k: 1, phase: {web}\n    - target: {{caller: \
             gateway, api: rpc table.Rpc/Put, k: 1, phase: {rpc}\n"
        )
    };
    let expect = |web: u16, rpc: u16| {
        format!("  expect: {{oracle: held, requests: {{web: {{status: {web}}}, rpc: {{status: {rpc}}}}}}}\n")
    };
    // The second plan cuts answers in the middle: the HTTP body, and the gRPC stream at its message.
    for (faults, seen) in [
        (of("request}\n      fault: abort", "request}\n      fault: {error: {grpc_status: 9}}"), (500, 500)),
        (
            of("response, at: {bytes: 10}}\n      fault: reset", "response, at: {message: 1}}\n      fault: abort"),
            (503, 500),
        ),
    ] {
        let fault = fault(&system, "both", &faults, &expect(seen.0, seen.1));
        let report = inject(&system, &fault, &both, &[], 0);
        let round = &report["rounds"][0];
        assert_eq!(verdicts(round), ["injected", "injected"], "{round:#}");
        assert_eq!(round["finished"]["traces"].as_array().unwrap().len(), 1, "one execution");
        let key = round["key"].as_str().unwrap();
        let reached = usize::from(!faults.contains("phase: request"));
        assert_eq!(logged(&system, 2, key, "Store", "request-received"), reached, "{faults}");
        assert_eq!(logged(&system, 3, key, "Put", "request-received"), reached, "{faults}");
        let failure = |api: &str| {
            let events = events(&system, 1, key);
            let call = events.iter().find(|event| event["api"] == api && event.get("failure").is_some()).cloned();
            call.unwrap_or_else(|| panic!("{api} did not fail: {events:#?}"))["failure"].clone()
        };
        let expected = if seen.0 == 503 { "transport" } else { "status" };
        assert_eq!((failure("Store"), failure("Put")), (expected.into(), "status".into()), "{faults}");
    }
    // The first fault keeps the second one's guard from ever holding.
    let guard = "request}\n      fault: abort\n      guard: {after: [{event: response-received, api: web POST /store, \
                 caller: gateway, outcome: ok, count: 1}]}";
    let fault = fault(&system, "both", &of("request}\n      fault: abort", guard), &expect(500, 200));
    let report = inject(&system, &fault, &both, &[], 2);
    let round = &report["rounds"][0];
    assert_eq!(verdicts(round), ["injected", "missed"], "{round:#}");
    assert_eq!(round["finished"]["verdict"], "missed", "{round:#}");
    assert_eq!(logged(&system, 3, round["key"].as_str().unwrap(), "Put", "request-received"), 1);
    let human = system.run(&["inject", &fault, "--scenario", &both, "--trials", "2"]).expect(2);
    for line in ["fault 1, abort the", "2 × injected", "fault 2, abort the", "2 × missed"] {
        assert!(human.stdout.contains(line), "{line} in:\n{}", human.stdout);
    }
}

#[test]
fn the_calls_of_a_group_are_counted_together() {
    let system = table();
    // The second call of the two is hit, whichever it is.
    for (name, [first, second], hit) in [("web-first", ["web", "rpc"], (1, 0)), ("rpc-first", ["rpc", "web"], (0, 1))] {
        let requests = post(first, first, "{key}", "") + &post(second, second, "{key}", "");
        let spec = format!("  key: {name}-{{random}}\n  execution: sequence\n  requests:\n{requests}");
        let pooled = scenario(&system, name, &spec);
        system.run(&["record", &pooled, "--rounds", "2"]).expect(0);
        let faults = "    - target: {caller: gateway, api: group:stores, k: 2, phase: request}\n      fault: abort\n      \
                      guard: {after: [{event: response-received, api: group:stores, caller: gateway, count: 1}]}\n";
        let rest = format!(
            "  groups: {{stores: [web POST /store, rpc table.Rpc/Put]}}\n  expect: {{oracle: held, requests: \
             {{{second}: {{status: 500}}}}}}\n"
        );
        let fault = fault(&system, name, faults, &rest);
        let report = inject(&system, &fault, &pooled, &[], 0);
        let round = &report["rounds"][0];
        assert_eq!(verdicts(round), ["injected"], "{round:#}");
        let key = round["key"].as_str().unwrap();
        let received =
            (logged(&system, 2, key, "Store", "request-received"), logged(&system, 3, key, "Put", "request-received"));
        assert_eq!(received, hit, "{name}");
    }
}

#[test]
fn an_answer_whose_body_says_failure_is_one_whatever_its_status() {
    let system = table();
    let requests = post("paid", "web", "paid", "") + &post("declined", "web", "declined", "");
    let outcomes = "  outcomes: [{api: web POST /store, body: {pointer: /key, error: [declined]}}]\n";
    let told = scenario(&system, "told", &format!("{outcomes}  requests:\n{requests}"));
    let untold = scenario(&system, "untold", &format!("  requests:\n{requests}"));
    let faults = "    - target: {caller: gateway, api: web POST /store, k: 1, phase: response, outcome: error}\n      \
                  fault: {error: 418}\n";
    let [told_fault, untold_fault] = [("told", 500), ("untold", 200)].map(|(name, declined)| {
        fault(
            &system,
            name,
            faults,
            &format!("  expect: {{oracle: held, requests: {{declined: {{status: {declined}}}}}}}\n"),
        )
    });
    let statuses = |round: &Value| -> Vec<String> {
        let attempts = round["attempts"].as_array().unwrap().iter();
        attempts.map(|attempt| attempt["result"].as_str().unwrap()[..3].to_owned()).collect()
    };
    let report = inject(&system, &told_fault, &told, &[], 0);
    let round = &report["rounds"][0];
    assert_eq!((verdicts(round), statuses(round)), (vec!["injected"], vec!["200".into(), "500".into()]), "{round:#}");
    // The store itself answered with 200, both times.
    for key in ["paid", "declined"] {
        let answers = events(&system, 2, key);
        let sent: Vec<&Value> = answers.iter().filter(|event| event["event"] == "response-sent").collect();
        assert!(matches!(&sent[..], [sent] if sent["outcome"] == "ok"), "{key}: {answers:#?}");
    }
    // Who is not told takes both for good answers.
    let report = inject(&system, &untold_fault, &untold, &[], 2);
    let round = &report["rounds"][0];
    assert_eq!((verdicts(round), statuses(round)), (vec!["missed"], vec!["200".into(), "200".into()]), "{round:#}");
}

#[test]
fn setup_and_teardown_are_not_part_of_the_round_and_entries_are_taken_in_turn() {
    let system = System::start(TABLE, &["--replicas", "2"]);
    system.run(&["status", "--wait", "6"]).expect(0);
    let first = system.prefix.clone();
    let (network, third) = first.trim_end_matches('.').rsplit_once('.').unwrap();
    let second = format!("{network}.{}.", third.parse::<u8>().unwrap() + 1);
    // Every request does the same: only the one of the round may be faulted.
    let spec = format!(
        "  key: order-{{random}}\n  setup:\n{}  requests:\n{}  teardown:\n{}",
        post(
            "login",
            "web",
            "login-{key}",
            "      extract: {call: {json_path: $.call}, session: {regex: '\"key\":\"login-(order-[0-9a-f]+)\"'}}\n"
        ),
        post("place", "web", "{session}", "").replace("/web", "\"/web?call={call}\""),
        post("cancel", "web", "cancel-{session}", ""),
    );
    let replicas = scenario(&system, "replicas", &spec);
    let text = std::fs::read_to_string(&replicas).unwrap();
    let entries = format!("entry: [http://{first}1:8080, http://{second}1:8080]");
    std::fs::write(&replicas, text.replace(&format!("entry: http://{first}1:8080"), &entries)).unwrap();
    let faults = "    - target: {caller: gateway, api: web POST /store, k: 1, phase: request}\n      fault: abort\n";
    let fault = fault(&system, "replicas", faults, "  expect: {oracle: held, requests: {place: {status: 500}}}\n");
    let report = inject(&system, &fault, &replicas, &["--trials", "4"], 0);
    assert_eq!((&report["injected"], &report["as_declared"]), (&4.into(), &4.into()), "{report:#}");
    let at = |host: u8, key: &str, api: &str| {
        [&first, &second].map(|prefix| {
            let log = get(&format!("{prefix}{host}:30000"), &format!("/events?key={key}"));
            let log: Vec<Value> = serde_json::from_str(&log).unwrap();
            log.iter().filter(|event| event["api"] == api && event["event"] == "request-received").count()
        })
    };
    let mut turns = Vec::new();
    for round in report["rounds"].as_array().unwrap() {
        assert_eq!(round["notes"], serde_json::json!([]), "{round:#}");
        assert_eq!(round["finished"]["traces"].as_array().unwrap().len(), 1, "of the round's own request");
        let key = round["key"].as_str().unwrap();
        for (key, stored) in [(format!("login-{key}"), 1), (key.to_owned(), 0), (format!("cancel-{key}"), 1)] {
            assert_eq!(at(2, &key, "Store").iter().sum::<usize>(), stored, "{key}");
            turns.push(at(1, &key, "post_web"));
        }
    }
    let in_turn: Vec<[usize; 2]> = (0..12).map(|n| if n % 2 == 0 { [1, 0] } else { [0, 1] }).collect();
    assert_eq!(turns, in_turn, "one entry after the other");
}

#[test]
fn the_variables_of_a_command_client_do_not_reach_the_commands_of_aftershock() {
    // The business key is in the environment of a scenario's commands, which may be ours.
    let mut command = aftershock(&["status", "--control", "http://127.0.0.1:1"]);
    let finished = Finished::from(
        command.env("AFTERSHOCK_KEY", "order-1").env("AFTERSHOCK_ENTRY", "http://127.0.0.1:2").output().unwrap(),
    );
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("127.0.0.1:1"), "it asked the controller: {}", finished.stderr);
    let help = run(&["status", "--help"]).expect(0).stdout;
    assert!(!help.contains("AFTERSHOCK_KEY"), "{help}");
}

/// The front page without ads: no call reaches adservice while frontend is cut off from it, whoever's call it is.
pub(crate) fn a_channel_is_cut_for_a_round(system: &System) {
    let front = system.file("scenarios/online-boutique/front.yaml", |text| text);
    let cut = system.file("scenarios/online-boutique/ads-cut-off.yaml", |text| text);
    system.run(&["record", &front, "--rounds", "2"]).expect(0);
    let ads = |key: &str, what: &str| {
        let asked = events(system, 1, key).into_iter().filter(|event| event["api"] == "GetAds");
        asked.filter(|event| event["event"] == what).count()
    };
    let report = inject(system, &cut, &front, &["--trials", "3"], 0);
    assert_eq!((&report["injected"], &report["as_declared"]), (&json!(3), &json!(3)), "{report:#}");
    for round in report["rounds"].as_array().unwrap() {
        let key = round["key"].as_str().unwrap();
        assert_eq!((ads(key, "request-sent"), ads(key, "response-received")), (1, 0), "{key}");
    }
    // The connection of before, which the first request meets; then attempts at others, over which no call can be seen.
    let met = |round: usize, what: &str| report["rounds"][round]["finished"]["cuts"][0]["connections"][what].as_u64();
    assert_eq!(met(0, "broken"), Some(1), "{report:#}");
    assert!(met(1, "refused") > Some(0) && met(2, "refused") > Some(0), "{report:#}");
    let healed = get(&format!("{}1:8080", system.prefix), "/?key=healed");
    assert!(healed.contains(r#""key":"healed""#), "{healed}");
    assert_eq!((ads("healed", "request-sent"), ads("healed", "response-received")), (1, 1));
    // A round with a cut is no recording: what executions do in it is not what they do.
    let table = system.run(&["rounds", "--format", "json"]).expect(0).json();
    let cuts: Vec<&Value> = table.as_array().unwrap().iter().filter(|round| round["verdict"] == "injected").collect();
    assert!(cuts.len() == 3 && cuts.iter().all(|round| round["faults"] == 1), "{cuts:?}");
    let shown = system.run(&["rounds", &cuts[0]["id"].to_string()]).expect(0).stdout;
    assert!(shown.contains("cut frontend → adservice\n") && shown.contains("frontend → adservice: "), "{shown}");
}

#[test]
fn a_channel_is_cut_for_a_round_over_loopback() {
    a_channel_is_cut_for_a_round(&System::start("topologies/online-boutique.yaml", &[]));
}
