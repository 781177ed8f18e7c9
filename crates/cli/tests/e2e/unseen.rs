//! Calls that no sidecar can read are named.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::System;

/// What a TLS client that asks for `name` says first (RFC 8446 §4.1.2, RFC 6066 §3).
fn client_hello(name: &str) -> Vec<u8> {
    let vector = |length: usize, body: &[u8]| {
        let size = body.len().to_be_bytes();
        [&size[size.len() - length..], body].concat()
    };
    let names = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extensions = [&[0, 0][..], &vector(2, &names)].concat();
    let hello =
        [&[3, 3][..], &[7; 32], &[0], &vector(2, &[0x13, 1]), &vector(1, &[0]), &vector(2, &extensions)].concat();
    let handshake = [&[1][..], &vector(3, &hello)].concat();
    [&[22, 3, 1][..], &vector(2, &handshake)].concat()
}

#[test]
fn record_and_status_name_the_calls_that_cannot_be_seen() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    // The lab looked whether everybody listens, and said nothing.
    assert!(!system.run(&["status"]).expect(0).stdout.contains("cannot be seen"));
    // The way of a service to one of its callees, as its sidecar has it.
    let config = std::fs::read_to_string(system.folder.path().join("logs/signup.sidecar.yaml")).unwrap();
    let outbound = config.lines().find(|line| line.contains("callee: ")).unwrap();
    let (_, rest) = outbound.split_once("listen: \"").unwrap();
    let (listen, rest) = rest.split_once('"').unwrap();
    let callee = rest.split_once("callee: ").unwrap().1.split_once(',').unwrap().0;
    for first in [client_hello("bank.example"), client_hello("bank.example"), b"SELECT 1\r\n".to_vec()] {
        let mut stream = TcpStream::connect(listen).unwrap();
        stream.write_all(&first).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The callee understands none of it and closes.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let expected = [
        format!("signup: 1 connection to {callee} cannot be seen (not HTTP): passed on, never faulted"),
        format!("signup: 2 connections to {callee} cannot be seen (TLS, server name bank.example): passed on"),
    ];
    let scenario = system.file("scenarios/fig2-patterns/page.yaml", |text| text);
    let recorded = system.run(&["record", &scenario, "--rounds", "1"]).expect(0).stdout;
    let status = system.run(&["status"]).expect(0).stdout;
    for line in &expected {
        assert!(recorded.contains(line) && status.contains(line), "{line:?} in:\n{recorded}\n{status}");
    }
}
