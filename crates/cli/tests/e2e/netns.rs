//! The main job on a network of pods: an address for each instance, traffic redirected, applications that know of no proxy;
//! and hosts that are out of reach or dead.

use std::time::{Duration, Instant};

use aftershock_lab::net::{Family, PodNetwork};

use crate::scenarios::a_channel_is_cut_for_a_round;
use crate::support::{ParkedCharge, System, ask, eventually, get, run, skipped};

/// Whether this machine can make such a network and redirect traffic on it; a test that cannot is skipped aloud.
fn possible(test: &str) -> bool {
    let network = PodNetwork::new(Family::Dual);
    if let Err(error) = &network {
        skipped(test, &error.to_string());
        return false;
    }
    let rules = std::process::Command::new("nft").arg("--version").output().is_ok_and(|output| output.status.success());
    if !rules {
        skipped(test, "nft (Debian package nftables)");
    }
    rules
}

/// The lab's own evaluation of every case of the demo. `docs/pod-network.md` names the command for more trials.
fn every_case_is_injected(test: &str, family: &str, replicas: &str) {
    if !possible(test) {
        return;
    }
    let _alone = crate::support::alone();
    let cases = ["payment-post-effect", "fig2a-post-effect", "fig2b-order-sensitive", "fig2c-k-of-n"];
    let mut arguments = vec!["lab", "evaluate", "--network", "netns", "--ip", family, "--replicas", replicas];
    arguments.extend(["--trials", "1", "--rounds", "3", "--format", "json"]);
    arguments.extend(cases.iter().flat_map(|case| ["--case", case]));
    let report = run(&arguments).expect(0).json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), cases.len(), "{report:#}");
    for row in rows {
        assert_eq!((row["injected"].as_u64(), row["as_declared"].as_u64()), (Some(1), Some(1)), "{row:#}");
        assert_eq!(row["disagree"].as_u64(), Some(0), "{row:#}");
    }
}

#[test]
fn every_case_is_injected_over_ipv4() {
    every_case_is_injected("every_case_is_injected_over_ipv4", "v4", "1");
}

#[test]
fn every_case_is_injected_over_ipv6_alone() {
    every_case_is_injected("every_case_is_injected_over_ipv6_alone", "v6", "1");
}

#[test]
fn every_case_is_injected_over_both_with_two_replicas() {
    every_case_is_injected("every_case_is_injected_over_both_with_two_replicas", "dual", "2");
}

/// `aftershock lab …` about the hosts of `system`.
fn hosts(system: &System, arguments: &[&str]) -> crate::support::Finished {
    let at = format!("{}255:4710", system.prefix);
    let mut line = vec!["lab"];
    line.extend(arguments);
    line.extend(["--lab", &at]);
    run(&line)
}

#[test]
fn applications_are_told_of_their_callees_and_of_no_proxy() {
    let test = "applications_are_told_of_their_callees_and_of_no_proxy";
    if !possible(test) {
        return;
    }
    let system = System::start("topologies/fig2-patterns.yaml", &["--network", "netns", "--ip", "dual"]);
    let status = system.run(&["status", "--format", "json"]).expect(0).json();
    let sidecars = status["sidecars"].as_array().unwrap();
    assert!(!sidecars.is_empty());
    let shown = hosts(&system, &["hosts"]).expect(0).json();
    for host in shown["hosts"].as_array().unwrap() {
        assert_eq!(host["addresses"].as_array().unwrap().len(), 2, "{host}");
        assert_eq!(host["alive"], true, "{host}");
    }
    let config = std::fs::read_to_string(system.folder.path().join("logs/signup.sidecar.yaml")).unwrap();
    assert!(config.contains("transparent:") && !config.contains("listen:"), "{config}");
    // Recording says what the sidecars saw: redirected calls, by the names of services.
    let scenario = system.file("scenarios/fig2-patterns/page.yaml", |text| text);
    let recorded = system.run(&["record", &scenario, "--rounds", "2", "--format", "json"]).expect(0);
    assert!(recorded.stdout.contains("fig2.Product/GetProduct"), "{}", recorded.stdout);
}

#[test]
fn hosts_are_parted_and_killed_by_scenarios_and_restored_after_each_round() {
    let test = "hosts_are_parted_and_killed_by_scenarios_and_restored_after_each_round";
    if !possible(test) {
        return;
    }
    let system = System::start("topologies/online-boutique.yaml", &["--network", "netns"]);
    let restored = || {
        let shown = hosts(&system, &["hosts"]).expect(0).json();
        shown["partitions"] == serde_json::json!([])
            && shown["hosts"].as_array().unwrap().iter().all(|host| host["alive"] == true)
    };
    // A host that died without a word and came back: whoever had a connection to it goes on.
    let restarted = system.file("scenarios/online-boutique/ads-host-restarted.yaml", |text| text);
    system.run(&["record", &restarted, "--rounds", "2"]).expect(0);
    assert!(restored());
    let rounds = system.run(&["rounds", "--format", "json"]).expect(0).json();
    let rounds = rounds.as_array().unwrap();
    assert_eq!(rounds.len(), 2, "{rounds:?}");
    for round in rounds {
        let key = round["key"].as_str().unwrap();
        let ads = |key: &str, kind: &str| {
            let log: serde_json::Value = serde_json::from_str(&system.events(1, key)).unwrap();
            let of_ads = |event: &&serde_json::Value| event["api"] == "GetAds" && event["event"] == kind;
            log.as_array().unwrap().iter().filter(of_ads).count()
        };
        let without = format!("without-{key}");
        assert_eq!((ads(&without, "request-sent"), ads(&without, "response-received")), (1, 0), "{key}: it was dead");
        assert_eq!((ads(key, "request-sent"), ads(key, "response-received")), (1, 1), "{key}: it is back");
    }
    // Out of reach: the fault is injected, and nobody can tell what the other side saw.
    let parted = system.file("scenarios/online-boutique/ads-out-of-reach.yaml", |text| text);
    let fault = system.file("scenarios/online-boutique/slow-catalogue.yaml", |text| text);
    let round = system.run(&["inject", &fault, "--scenario", &parted, "--format", "json"]).expect(2);
    assert!(round.stdout.contains("the sidecar of adservice has no record"), "{}", round.stdout);
    assert!(restored());
    // By command: what is asked wrong is told, what is asked right ends by itself.
    let wrong = hosts(&system, &["partition", "frontend", "adservce"]).expect(1);
    assert!(wrong.stderr.contains("did you mean `adservice`?"), "{}", wrong.stderr);
    let immortal = hosts(&system, &["kill-host", "controller"]).expect(1);
    assert!(immortal.stderr.contains("stands for what is outside the lab"), "{}", immortal.stderr);
    hosts(&system, &["kill-host", "adservice", "--for", "1s"]).expect(0);
    hosts(&system, &["partition", "frontend", "adservice", "--for", "1s"]).expect(0);
    assert!(!restored());
    eventually("their leases are over", restored);
    let (head, _) = ask(&format!("{}255:4710", system.prefix), "GET", "/v1/hosts", "origin: http://evil\r\n", "");
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
}

#[test]
fn a_channel_is_cut_for_a_round_and_healed_behind_it() {
    if !possible("a_channel_is_cut_for_a_round_and_healed_behind_it") {
        return;
    }
    a_channel_is_cut_for_a_round(&System::start("topologies/online-boutique.yaml", &["--network", "netns"]));
}

#[test]
fn a_sidecar_parted_from_the_controller_lets_go_within_the_lease() {
    let test = "a_sidecar_parted_from_the_controller_lets_go_within_the_lease";
    if !possible(test) {
        return;
    }
    let system = System::start("topologies/online-boutique.yaml", &["--network", "netns"]);
    let ParkedCharge { inject, key } = system.park_a_charge();
    let parted = Instant::now();
    hosts(&system, &["partition", "checkoutservice", "controller"]).expect(0);
    for _ in 0..3 {
        get(&format!("{}1:8080", system.prefix), "/?key=ordinary");
    }
    // The lease is ten seconds; the delay would have been thirty.
    eventually("the parked answer went on, and the checkout with it", || {
        system.events(9, &key).contains("request-received")
    });
    assert!(parted.elapsed() < Duration::from_secs(20), "{:?}", parted.elapsed());
    let finished = inject.wait(Duration::from_secs(60));
    assert_ne!(finished.code, Some(0), "a fault that was cut short is not as expected");

    hosts(&system, &["heal", "checkoutservice", "controller"]).expect(0);
    system.run(&["status", "--wait", "10"]).expect(0);
    system.lose_a_charge();
}

#[test]
fn a_control_connection_breaks_soon_after_its_peer_has_vanished() {
    let test = "a_control_connection_breaks_soon_after_its_peer_has_vanished";
    if !possible(test) {
        return;
    }
    let mut network = PodNetwork::new(Family::V6).unwrap();
    let controller = std::net::SocketAddr::new(network.add("controller").unwrap().address(), 4700);
    let inside = network.pod("controller").unwrap().namespace().clone();
    let listener = inside.run(|| std::net::TcpListener::bind(controller)).unwrap().unwrap();
    let sidecar = network.add("sidecar").unwrap().namespace().clone();
    let (connected, when_connected) = std::sync::mpsc::channel();
    let waiting = sidecar
        .thread("sidecar", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let endpoint = aftershock_trust::Endpoint::new(&format!("http://{controller}"), Default::default());
                let mut stream = endpoint.unwrap().connect().await.unwrap();
                connected.send(()).unwrap();
                // Nothing is sent on it, so only the question whether somebody is there can tell.
                let mut byte = [0];
                let read = tokio::io::AsyncReadExt::read(&mut stream, &mut byte);
                tokio::time::timeout(Duration::from_secs(30), read).await
            })
        })
        .unwrap();
    let _held = listener.accept().unwrap();
    when_connected.recv().unwrap();
    network.kill_host("controller").unwrap();
    let died = Instant::now();
    let read = waiting.join().unwrap().unwrap().expect("not after half a minute");
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    assert!(died.elapsed() < Duration::from_secs(10), "within the lease of a fault: {:?}", died.elapsed());
}
