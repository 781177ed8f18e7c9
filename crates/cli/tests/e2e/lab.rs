//! The lab is the same with and without sidecars.

use serde_json::{Value, json};

use crate::support::{System, ask, get};

/// What a checkout and a look at the cart leave behind.
fn ledgers(arguments: &[&str]) -> Vec<Value> {
    let system = System::start("topologies/online-boutique.yaml", arguments);
    let entry = format!("{}1:8080", system.prefix);
    let json = "content-type: application/json\r\n";
    let mut statuses = Vec::new();
    for (method, path, body) in [
        ("POST", "/cart", r#"{"key":"same"}"#),
        ("POST", "/cart/checkout", r#"{"key":"same"}"#),
        ("GET", "/cart?key=same", ""),
    ] {
        let (head, _) = ask(&entry, method, path, json, body);
        statuses.push(json!(head.lines().next()));
    }
    let ledgers = [(5, "carts"), (7, "shipments"), (8, "charges"), (9, "emails")].map(|(host, name)| {
        let text = get(&format!("{}{host}:30000", system.prefix), &format!("/ledgers/{name}?key=same"));
        let ledger: Value = serde_json::from_str(&text).unwrap();
        json!([name, ledger["count"], ledger["cleared"]])
    });
    statuses.into_iter().chain(ledgers).collect()
}

#[test]
fn ledgers_are_the_same_with_and_without_sidecars() {
    let with = ledgers(&[]);
    assert_eq!(with, ledgers(&["--without-sidecars"]));
    assert_eq!(with[0], "HTTP/1.1 302 Found");
    assert_eq!(with[1], "HTTP/1.1 200 OK");
    assert!(with.contains(&json!(["charges", 1, 0])), "{with:?}");
}
