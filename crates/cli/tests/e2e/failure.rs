//! What happens when parts of Aftershock itself fail.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{ParkedCharge, Running, System, aftershock, eventually, get};

#[test]
fn when_the_controller_dies_parked_messages_go_on_and_nothing_is_faulted() {
    let mut system = System::start("topologies/online-boutique.yaml", &[]);
    let ParkedCharge { scenario, inject, key } = system.park_a_charge();
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
    // The next round works as if nothing had been.
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
}

#[test]
fn a_sidecar_that_does_not_acknowledge_is_named_and_nothing_is_sent() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
    let stopped = sidecar_of(&system, "payment");
    signal(stopped, "STOP");
    let refused = system.run(&["record", &scenario, "--rounds", "1"]);
    signal(stopped, "CONT");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("payment"), "{}", refused.stderr);
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
}

/// The process id of a lab's sidecar.
fn sidecar_of(system: &System, service: &str) -> u32 {
    let config = format!("{service}.sidecar.yaml");
    crate::support::descendants(system.lab.pid())
        .into_iter()
        .find(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&config)))
        .unwrap()
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
    let mut key = String::new();
    eventually("the round runs", || {
        let rounds = system.run(&["rounds", "--format", "json"]).json();
        let running = rounds.as_array().unwrap().iter().find(|round| round["faults"] == 1);
        key = running.map_or(String::new(), |round| round["key"].as_str().unwrap().to_owned());
        !key.is_empty()
    });
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
