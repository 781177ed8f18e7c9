//! What happens when parts of Aftershock itself fail.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Running, System, aftershock, eventually, get};

#[test]
fn when_the_controller_dies_parked_messages_go_on_and_nothing_is_faulted() {
    let mut system = System::start("topologies/online-boutique.yaml", &[]);
    let patient = |text: String| {
        text.replace("timeout: 500ms", "timeout: 40s")
            .replace("      retry: {attempts: 2, on: [timeout, transport]}\n", "")
    };
    let scenario = system.file("scenarios/online-boutique/checkout.yaml", patient);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    // A guard that comes true only after the message it holds: the quote was asked for before, the mail comes after.
    let fault = system.file("scenarios/online-boutique/lost-charge.yaml", |text| {
        text.replace("        post_effect: true\n", "")
            .replace("fault: drop", "fault: {delay: 30s}")
            .replace("      pattern: post-effect\n", "")
    });
    let mut command =
        aftershock(&["inject", &fault, "--scenario", &scenario, "--control", &system.url, "--format", "json"]);
    let inject = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    eventually("the round is armed", || {
        let status = system.run(&["status", "--format", "json"]).json();
        status["rounds"].as_array().is_some_and(|rounds| !rounds.is_empty())
    });
    // The charge is made, its answer is parked at the checkout's sidecar.
    eventually("the message is parked", || {
        let events = get(&format!("{}8:30000", system.prefix), "/events");
        events.contains("response-sent")
    });
    let died = Instant::now();
    system.kill_control();
    // Ordinary traffic flows while the lease runs out and after it.
    for _ in 0..3 {
        get(&format!("{}1:8080", system.prefix), "/?key=ordinary");
    }
    let finished = inject.wait(Duration::from_secs(60));
    assert_ne!(finished.code, Some(0), "a round whose controller died is not as expected");
    // The lease is ten seconds; the delay alone would have been thirty.
    let charged = || get(&format!("{}10:30000", system.prefix), "/events?key=").len();
    let _ = charged;
    eventually("the parked answer went on, and the checkout with it", || {
        get(&format!("{}9:30000", system.prefix), "/events").contains("SendOrderConfirmation")
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
