//! One fault in every round with replicas, rounds in flight and ordinary traffic beside, and what kills may not do: a few
//! trials of what `cargo xtask exactness` does many times.

use crate::support::{System, alone, get, run};

/// The rows of an evaluation, all of which must be exact.
fn exact_rows(arguments: &[&str]) -> Vec<serde_json::Value> {
    let evaluate = ["lab", "evaluate", "--format", "json", "--rounds", "5", "--arbiter-timeout", "1s"];
    let report = run(&[&evaluate, arguments].concat()).expect(0).json();
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        assert_eq!(row["injected"], row["trials"], "{row:#}");
        assert_eq!((&row["disagree"], &row["ordinary_faulted"]), (&0.into(), &0.into()), "{row:#}");
    }
    for headers in report["headers"].as_array().unwrap() {
        assert!(headers["headers"].as_u64() > Some(0) && headers["max"].as_u64() <= Some(1024), "{headers:#}");
    }
    rows
}

#[test]
fn with_replicas_rounds_in_flight_and_traffic_beside_the_third_store_fails_in_every_round_and_nothing_else() {
    let _alone = alone();
    let settings = ["--replicas", "3", "--parallel", "4", "--ordinary", "10", "--trials", "8"];
    let rows = exact_rows(&[&settings[..], &["--case", "fan-k-of-n", "--case", "fig2b-order-sensitive"]].concat());
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["replicas"], &row["parallel"]), (&3.into(), &4.into()));
        assert!(row["ordinary"].as_u64() > Some(0), "{row:#}");
    }
}

#[test]
fn a_system_of_ones_own_is_evaluated_like_the_cases() {
    let _alone = alone();
    let files = [
        ["--file", "topologies/fan.yaml"],
        ["--scenario", "scenarios/fan/batch.yaml"],
        ["--fault", "scenarios/fan/third-store.yaml"],
    ];
    let rows = exact_rows(&[&files.concat()[..], &["--replicas", "2", "--trials", "3"]].concat());
    assert_eq!(rows[0]["scenario"], "scenarios/fan/third-store.yaml");
}

#[test]
fn targets_drawn_by_lot_are_injected_once_each_in_their_window() {
    let _alone = alone();
    let random = ["lab", "random", "--targets", "6", "--per-topology", "3", "--seed", "11", "--format", "json"];
    let first = run(&random).expect(0).json();
    assert_eq!((&first["injected"], &first["disagree"]), (&6.into(), &0.into()), "{first:#}");
    assert_eq!(first["topologies"], 2);
}

#[test]
fn what_is_killed_in_the_middle_of_a_round_makes_no_verdict_wrong_and_loses_no_round() {
    let _alone = alone();
    let kills = run(&["lab", "kills", "--times", "6", "--seed", "5", "--format", "json"]).expect(0).json();
    assert_eq!(kills["kills"], 6);
    for must_be_0 in ["wrong", "twice", "after_lease", "stuck", "lost_rounds", "repeated_rounds", "leftover"] {
        assert_eq!(kills[must_be_0], 0, "{must_be_0}: {kills:#}");
    }
}

#[test]
fn every_replica_of_a_lab_has_a_sidecar_and_each_entry_answers() {
    let system = System::start("topologies/fan.yaml", &["--replicas", "2"]);
    let status = system.run(&["status", "--wait", "6", "--format", "json"]).expect(0).json();
    let mut services: Vec<&str> =
        status["sidecars"].as_array().unwrap().iter().map(|sidecar| sidecar["service"].as_str().unwrap()).collect();
    services.sort_unstable();
    assert_eq!(services, ["gateway", "gateway", "store", "store", "worker", "worker"]);
    let third: u16 = system.prefix.split('.').nth(2).unwrap().parse().unwrap();
    let first = system.prefix.rsplit_once(&format!("{third}.")).unwrap().0;
    for replica in [third, third + 1] {
        let health = get(&format!("{first}{replica}.1:30000"), "/healthz");
        assert!(health.contains("\"gateway\""), "{health}");
    }
}
