//! What happens when parts of Aftershock itself fail.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ParkedCharge, Running, System, aftershock, ask, eventually, get};

#[test]
fn when_the_controller_dies_parked_messages_go_on_and_nothing_is_faulted() {
    let mut system = System::start("topologies/online-boutique.yaml", &[]);
    let ParkedCharge { inject, key } = system.park_a_charge();
    let died = Instant::now();
    system.kill_control();
    // Ordinary traffic flows while the lease runs out and after it.
    for _ in 0..3 {
        get(&format!("{}1:8080", system.prefix), "/?key=ordinary");
    }
    let finished = inject.wait(Duration::from_secs(60));
    assert_ne!(finished.code, Some(0), "a round whose controller died is not as expected");
    // The lease is ten seconds; the delay alone would have been thirty.
    eventually("the parked answer went on, and the checkout with it", || {
        system.events(9, &key).contains("request-received")
    });
    assert!(died.elapsed() < Duration::from_secs(25), "{:?}", died.elapsed());

    system.restart_control();
    system.run(&["status", "--wait", "10"]).expect(0);
    let rounds = system.run(&["rounds", "--format", "json"]).expect(0).json();
    let verdicts: Vec<_> = rounds.as_array().unwrap().iter().map(|round| round["verdict"].clone()).collect();
    assert_eq!(verdicts, ["clean", "clean", "inconclusive"], "{rounds:#}");
    // The next rounds work as if nothing had been.
    system.lose_a_charge();
}

#[test]
fn a_sidecar_that_does_not_acknowledge_is_named_and_nothing_is_sent() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
    let stopped = system.sidecar_of("payment");
    signal(stopped, "STOP");
    let refused = system.run(&["record", &scenario, "--rounds", "1"]);
    signal(stopped, "CONT");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("payment"), "{}", refused.stderr);
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
}

fn signal(pid: u32, name: &str) {
    assert!(
        std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success()
    );
}

#[test]
fn ctrl_c_on_inject_disarms_and_releases_what_was_parked() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let patient = |text: String| text.replace("timeout: 3s", "timeout: 40s");
    let scenario = system.file("scenarios/fig2-patterns/signup.yaml", patient);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    let fault = system.file("scenarios/fig2-patterns/success-before-risk.yaml", |text| {
        text.replace("{delay: 100ms}", "{delay: 60s}")
    });
    let mut command = aftershock(&["inject", &fault, "--scenario", &scenario, "--control", &system.url]);
    let inject = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let key = system.key_of_the_fault();
    // Risk has answered, and signup has not got it.
    eventually("the answer is parked", || system.events(4, &key).contains("response-sent"));
    let risk = |log: &str| log.matches("\"RiskCheck\"").count();
    let parked = risk(&system.events(2, &key));
    let interrupted = Instant::now();
    inject.signal("INT");
    let finished = inject.wait(Duration::from_secs(15)).expect(1);
    assert!(finished.stderr.contains("SIGINT"), "{}", finished.stderr);
    let status = system.run(&["status", "--format", "json"]).expect(0).json();
    assert_eq!(status["rounds"], serde_json::json!([]), "nothing is armed");
    eventually("the parked answer arrived", || risk(&system.events(2, &key)) > parked);
    assert!(interrupted.elapsed() < Duration::from_secs(9), "not by the lease's end: {:?}", interrupted.elapsed());
    let rounds = system.run(&["rounds", "--format", "json"]).expect(0).json();
    assert_eq!(rounds.as_array().unwrap().last().unwrap()["verdict"], "inconclusive", "{rounds:#}");
}

#[test]
fn a_sidecar_killed_with_a_parked_answer_is_no_verdict_and_another_in_its_place_is_armed_in_the_next_round() {
    let system = System::start("topologies/online-boutique.yaml", &[]);
    let ParkedCharge { inject, key } = system.park_a_charge();
    let killed = Instant::now();
    let _sidecar = system.replace_sidecar("checkoutservice");
    let finished = inject.wait(Duration::from_secs(60)).expect(2);
    // The delay would have been thirty seconds.
    assert!(killed.elapsed() < Duration::from_secs(25), "{:?}", killed.elapsed());
    let report = finished.json();
    let fault = &report["rounds"][0]["finished"]["faults"][0];
    assert_eq!(fault["verdict"], "inconclusive", "{fault:#}");
    let reasons = fault["reasons"].to_string();
    assert!(reasons.contains("sidecar of checkoutservice") && reasons.contains("died"), "{reasons}");
    assert_eq!(system.ledger(8, "charges", &key), 1, "nobody charged twice");
    assert!(!system.events(9, &key).contains("request-received"), "what was parked went with its sidecar");

    system.run(&["status", "--wait", "10"]).expect(0);
    system.lose_a_charge();
}

#[test]
fn a_callee_replaced_while_its_rule_is_armed_is_faulted_and_a_second_experiment_works() {
    const TOPOLOGY: &str = "topologies/fig2-patterns.yaml";
    let system = System::start(TOPOLOGY, &[]);
    let entry = format!("{}1:8080", system.prefix);
    let buy = |key: &str, lines: &str| {
        let lines = format!("content-type: application/json\r\n{lines}");
        let (head, _) = ask(&entry, "POST", "/checkout", &lines, &json!({"key": key}).to_string());
        head.lines().next().unwrap().to_owned()
    };
    // There is a connection to the one that will be killed.
    assert_eq!(buy("before", ""), "HTTP/1.1 200 OK");
    let control = system.url.strip_prefix("http://").unwrap();
    let post = |path: &str, body: &Value| -> Value {
        let (head, answer) = ask(control, "POST", path, "content-type: application/json\r\n", &body.to_string());
        assert!(head.starts_with("HTTP/1.1 2"), "{path}: {head}\n{answer}");
        serde_json::from_str(&answer).unwrap()
    };
    let plan = json!({"faults": [{
        "target": {"caller": "checkout", "api": "payment fig2.Payment/Charge", "k": 1, "phase": "response",
            "post_effect": true},
        "fault": "drop"}]});
    let started = post("/v1/rounds", &json!({"scenario": "fig2-checkout", "plan": plan, "key": "replaced"}));
    let _payment = system.replace_leaf(TOPOLOGY, "payment", 6);
    let token = started["token"].as_str().unwrap();
    assert_eq!(buy("replaced", &format!("tracestate: aft=1-0-0-{token}-0\r\n")), "HTTP/1.1 200 OK");
    let round = format!("/v1/rounds/{}", started["id"]);
    post(&format!("{round}/settle"), &json!({"deadline": "9s"}));
    let finished = post(&format!("{round}/finish"), &json!({"deadline": "9s"}));
    let fault = &finished["faults"][0];
    assert_eq!((&fault["verdict"], &fault["injections"]), (&"injected".into(), &1.into()), "{finished:#}");
    // The successor charged, its answer was lost, and it was asked again.
    assert_eq!(system.ledger(6, "charges", "replaced"), 2);
    assert_eq!(system.ledger(6, "charges", "before"), 0, "it is another process");

    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    let fault = system.file("scenarios/fig2-patterns/double-charge.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    let second = system.run(&["inject", &fault, "--scenario", &scenario, "--format", "json"]).expect(0).json();
    assert_eq!(second["injected"], 1, "{second:#}");
}
