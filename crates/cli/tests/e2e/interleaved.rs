//! A thousand executions of one round at once, fifty parallel calls in each over one HTTP/2 connection: the third call of
//! each is faulted, and no other.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{System, ask};

const EXECUTIONS: usize = 1000;
const CALLS: usize = 50;
const CLIENTS: usize = 20;

fn topology() -> String {
    let mut text =
        "apiVersion: aftershock.dev/v1alpha1\nkind: Topology\nmetadata: {name: wide, description: Fifty calls \
                    at once.}\nservices:\n  gateway: {server: http1, port: 8080, propagation: w3c, client: {timeout: \
                    30s}}\n  item: {server: grpc, port: 7001, propagation: leaf}\napis:\n  page: {service: gateway, \
                    http: \"GET /page\"}\n  Get: {service: item, grpc: wide.Item/Get}\nhandlers:\n  page:\n    \
                    steps:\n      - parallel:\n          join: all\n          branches:\n"
            .to_owned();
    for _ in 0..CALLS {
        text.push_str("            - [{call: Get, on_failure: ignore}]\n");
    }
    let _ = write!(
        text,
        "      - {{respond: 200}}\nrequests:\n  page: {{api: page, expect: {{calls: {CALLS}, distinct: 1}}}}\n"
    );
    text
}

/// Send requests of the round until none is left, over one connection.
fn client(entry: &str, token: &str, next: &AtomicUsize) {
    let mut stream = TcpStream::connect(entry).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= EXECUTIONS {
            return;
        }
        // Call 0 without an execution: each request is one of its own.
        write!(stream, "GET /page?key=k{n} HTTP/1.1\r\nhost: {entry}\r\ntracestate: aft=1-0-0-{token}-0\r\n\r\n")
            .unwrap();
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "request {n}: {line}");
        while line.trim() != "" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn in_each_of_a_thousand_executions_exactly_the_third_of_fifty_parallel_calls_is_faulted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wide.yaml");
    std::fs::write(&file, topology()).unwrap();
    let system = System::start(file.to_str().unwrap(), &[]);
    let control = system.url.strip_prefix("http://").unwrap();
    let post = |path: &str, body: &Value| {
        let (head, answer) = ask(control, "POST", path, "content-type: application/json\r\n", &body.to_string());
        assert!(head.starts_with("HTTP/1.1 2"), "{path}: {head}\n{answer:.2000}");
        answer
    };
    let plan = json!({"faults": [{
        "target": {"caller": "gateway", "api": "item wide.Item/Get", "k": 3, "phase": "request"},
        "fault": "abort", "max_injections": "unlimited"}]});
    let started: Value =
        serde_json::from_str(&post("/v1/rounds", &json!({"scenario": "wide", "plan": plan, "key": "k"}))).unwrap();
    let (round, token) = (started["id"].to_string(), started["token"].as_str().unwrap());

    let next = AtomicUsize::new(0);
    let entry = format!("{}1:8080", system.prefix);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| client(&entry, token, &next))).collect();
        while clients.iter().any(|client| !client.is_finished()) {
            post(&format!("/v1/rounds/{round}/renew"), &json!({}));
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    post(&format!("/v1/rounds/{round}/settle"), &json!({"deadline": "9s"}));
    let finished: Value =
        serde_json::from_str(&post(&format!("/v1/rounds/{round}/finish"), &json!({"deadline": "9s"}))).unwrap();
    let fault = &finished["faults"][0];
    assert_eq!((&fault["verdict"], &fault["injections"]), (&"injected".into(), &EXECUTIONS.into()), "{fault:.2000}");

    for trace in finished["traces"].as_array().unwrap() {
        let clients =
            trace["calls"].as_array().unwrap().iter().map(|call| &call["client"]).filter(|span| !span.is_null());
        let hits: Vec<_> = clients.filter(|span| !span["injection"].is_null()).collect();
        let [hit] = &hits[..] else { panic!("{} hits in {}", hits.len(), trace["execution"]) };
        assert_eq!(hit["injection"]["k"], 3);
    }
    // What the callee itself says: one call of each execution never came.
    for n in 0..EXECUTIONS {
        let received = system.events(2, &format!("k{n}")).matches("\"request-received\"").count();
        assert_eq!(received, CALLS - 1, "execution k{n}");
    }
}
