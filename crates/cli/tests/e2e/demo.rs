//! `aftershock demo`.

use std::process::Stdio;
use std::time::Duration;

use crate::support::{Running, aftershock, alive, alone, descendants, eventually};

#[test]
fn the_demo_injects_each_fault_once_and_the_ledgers_agree() {
    let _alone = alone();
    let demo = Running::start(aftershock(&["demo", "--format", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut children = Vec::new();
    eventually("the shop's twenty processes run", || {
        children = descendants(demo.pid());
        children.len() >= 20
    });
    let finished = demo.wait(Duration::from_secs(120)).expect(0);
    let report = finished.json();
    assert_eq!(report["schema"], "aftershock.dev/demo/v1");
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["sidecar_rss_kib"].as_u64().unwrap() > 0);
    let rounds = report["rounds"].as_array().unwrap();
    let of = |key: &str| rounds.iter().map(|round| round[key].as_str().unwrap_or_default()).collect::<Vec<_>>();
    assert_eq!(of("scenario"), ["payment-post-effect", "fig2a-post-effect", "fig2b-order-sensitive", "fig2c-k-of-n"]);
    assert_eq!(of("pattern"), ["post-effect", "post-effect", "order-sensitive", "k-of-n"]);
    assert_eq!(of("verdict"), ["injected"; 4]);
    for round in rounds {
        assert_eq!(round["contradictions"], serde_json::json!([]), "the lab's own logs agree: {round}");
        assert_eq!(round["attempts"], 1, "{round}");
        assert_eq!(round["premature"], 0, "{round}");
        assert_eq!(round["multiple"], false, "{round}");
        assert_eq!(round["oracle"]["expected"], round["oracle"]["found"], "{round}");
    }
    assert_eq!(rounds[0]["oracle"]["found"], "violated");
    assert!(rounds[0]["guard"].as_str().unwrap().contains("post-effect"));
    assert!(rounds[2]["guard"].as_str().unwrap().contains("response-received(ok) of user fig2.User/CreateUser"));
    assert!(rounds[3]["guard"].as_str().unwrap().contains("≥ 2"));
    assert_eq!(alive(&children), [0_u32; 0], "everything started was stopped");
}

#[test]
fn ctrl_c_stops_every_child_of_the_demo() {
    let _alone = alone();
    let demo = Running::start(aftershock(&["demo", "--format", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut children = Vec::new();
    eventually("the shop's twenty processes run", || {
        children = descendants(demo.pid());
        children.len() >= 20
    });
    demo.signal("INT");
    let finished = demo.wait(Duration::from_secs(10)).expect(1);
    assert!(finished.stderr.contains("interrupted by SIGINT"), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    eventually("every child has ended", || alive(&children).is_empty());
}
