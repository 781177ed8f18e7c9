//! Input from outside that pretends to be ours: ignored, counted, and the request goes through.

use crate::support::{System, ask};

/// POST a checkout with these header lines; the status line.
fn send(system: &System, lines: &str) -> String {
    let entry = format!("{}1:8080", system.prefix);
    let lines = format!("content-type: application/json\r\n{lines}");
    let (head, _) = ask(&entry, "POST", "/checkout", &lines, r#"{"key":"hostile"}"#);
    assert!(!head.to_ascii_lowercase().contains("aftershock-hop"), "nothing of ours comes back: {head}");
    head.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn forged_and_foreign_headers_are_counted_and_the_request_goes_through() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let member = "aft=1-00000000000000aa-00000000000000bb-00000000000000cc-0";
    let version_two = "AgAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let version_one = "AQAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let cases = [
        ("aftershock-hop: !!!\r\n".to_owned(), "hop-malformed"),
        (format!("aftershock-hop: {}\r\n", "A".repeat(4000)), "hop-oversized"),
        (format!("aftershock-hop: {version_two}\r\n"), "hop-newer"),
        (format!("aftershock-hop: {version_one}\r\n"), "hop-"),
        (format!("aftershock-hop: {version_one}\r\naftershock-hop: {version_one}\r\n"), "hop-malformed"),
        (format!("tracestate: {member}\r\n"), "token-unknown"),
        ("tracestate: aft=1-0-0-00000000000000cc-0\r\n".to_owned(), "token-unknown"),
        ("tracestate: aft=1-00000000000000aa-00000000000000bb-0-0\r\n".to_owned(), "member-untagged"),
        ("tracestate: aft=1-zz\r\n".to_owned(), "member-malformed"),
        ("tracestate: aft=7-0-0-0-0\r\n".to_owned(), "member-version"),
        (format!("tracestate: {}\r\n", vec!["a=b"; 400].join(",")), ""),
        ("traceparent: 00-zz\r\ntraceparent: 00-zz\r\n".to_owned(), ""),
    ];
    let counted = || -> u64 {
        let status = system.run(&["status", "--format", "json"]).expect(0).json();
        let gateway =
            status["sidecars"].as_array().unwrap().iter().find(|s| s["service"] == "gateway").unwrap().clone();
        gateway["ignored"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    for (lines, kind) in &cases {
        let before = counted();
        assert_eq!(send(&system, lines), "HTTP/1.1 200 OK", "{kind}");
        let after = counted();
        assert_eq!(after - before, u64::from(!kind.is_empty()), "{lines:.80} is counted once");
        let status = system.run(&["status"]).expect(0);
        assert!(status.stdout.contains(kind), "{kind} in:\n{}", status.stdout);
    }
    // None of it was taken for a round.
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "1"]).expect(0);
}

#[test]
fn the_token_of_a_round_that_is_over_has_no_effect() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    let fault = system.file("scenarios/fig2-patterns/double-charge.yaml", |text| text);
    let report = system.run(&["inject", &fault, "--scenario", &scenario, "--format", "json"]).expect(0).json();
    let token = report["rounds"][0]["finished"]["traces"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(send(&system, &format!("tracestate: aft=1-0-0-{token}-0\r\n")), "HTTP/1.1 200 OK");
    // A lost answer would have been followed by a second charge.
    assert_eq!(system.ledger(6, "charges", "hostile"), 1);
    let status = system.run(&["status"]).expect(0);
    assert!(status.stdout.contains("token-unknown"), "{}", status.stdout);
}
