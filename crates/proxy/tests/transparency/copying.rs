//! Services that copy every header field they get to every call they make: our fields are replaced, never added to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use crate::support::brain::{Front, TOKEN};
use crate::support::sidecar::Sidecar;
use crate::support::wire::{Origin, Step, client, connect, send, until};

const OK: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

/// What the sidecar behind so many services sees that copy everything, byte by byte.
fn seen_behind(services: usize, request: &str) -> String {
    let last = Origin::start(vec![vec![until("\r\n\r\n"), send(OK)]]);
    let mut chain: Vec<Sidecar> = Vec::new();
    for _ in 0..services {
        let next = chain.last().map_or(last.address, |front| front.address);
        chain.push(Front::calling(&[next]).start());
    }
    let first = chain.last().expect("at least one").address;
    let seen = client(first, &[send(request), Step::End]);
    assert_eq!(seen.text(), OK, "nothing of ours comes back");
    last.seen()[0].text()
}

/// The values of a field.
fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

/// One of each of ours, and theirs as they were.
fn check(head: &str, theirs: &str) {
    let states = values(head, "tracestate");
    assert_eq!(states.len(), 1, "{head}");
    assert_eq!(states[0].matches("aft=").count(), 1, "{head}");
    assert!(states[0].starts_with("aft=1-") && states[0].ends_with(theirs), "{head}");
    assert_eq!(values(head, "aftershock-hop").len(), 1, "{head}");
    assert!(values(head, "traceparent").len() <= 1, "{head}");
}

#[test]
fn ten_services_that_copy_all_fields_let_nothing_grow() {
    let plain = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    for (fields, theirs) in [
        (String::new(), ""),
        (format!("tracestate: aft=1-0-0-{TOKEN}-0\r\n"), ""),
        (
            format!(
                "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\ntracestate: aft=1-0-0-{TOKEN}-0\r\n\
                 tracestate: a=1,b=2\r\n"
            ),
            ",a=1,b=2",
        ),
        // Forged from outside: stripped at the edge.
        ("aftershock-hop: forged\r\nAFTERSHOCK-HOP: again\r\ntracestate: aft=1-1-2-3-4\r\n".to_owned(), ""),
    ] {
        let request = format!("{plain}{fields}\r\n");
        let (once, often) = (seen_behind(1, &request), seen_behind(10, &request));
        check(&once, theirs);
        check(&often, theirs);
        assert!(!often.contains("forged"), "{often}");
        // The hop header counts the messages before it, in digits.
        assert!(often.len() <= once.len() + 4, "{once}{often}");
    }
}

/// An application that sends every field that it got, those that `twice` says a second time in another case; what it got.
fn copying(listener: TcpListener, callee: SocketAddr, twice: fn(&str) -> bool) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("a request");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("text");
        let mut call = "GET /b HTTP/1.1\r\n".to_owned();
        for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
            call += &format!("{name}: {value}\r\n");
            if twice(name) {
                call += &format!("{}: {value}\r\n", name.to_ascii_uppercase());
            }
        }
        let mut callee = connect(callee);
        callee.write_all(format!("{call}\r\n").as_bytes()).expect("open");
        let mut answer = Vec::new();
        callee.read_to_end(&mut answer).expect("an answer");
        stream.write_all(&answer).expect("open");
        head
    })
}

/// What the callee's sidecar sees of a call of such an application.
fn seen_of(twice: fn(&str) -> bool) -> String {
    let last = Origin::start(vec![vec![until("\r\n\r\n"), send(OK)]]);
    let app = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let front = Front::calling(&[last.address]).before(app.local_addr().expect("a bound socket")).start();
    let application = copying(app, front.addresses[1], twice);
    let request =
        format!("GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\ntracestate: aft=1-0-0-{TOKEN}-0,a=1\r\n\r\n");
    assert_eq!(client(front.address, &[send(request), Step::End]).text(), OK);
    let given = application.join().expect("it ran");
    assert_eq!(values(&given, "aftershock-hop"), [""; 0], "the application never sees it");
    last.seen()[0].text()
}

#[test]
fn fields_that_are_sent_twice_become_one() {
    let seen = seen_of(|name| name.eq_ignore_ascii_case("tracestate"));
    check(&seen, ",a=1,a=1");
    assert!(values(&seen, "tracestate")[0].contains(&format!("-{TOKEN}-")), "{seen}");
    // Two parents are none (W3C Trace Context), and the member does not say which trace it is of: the call
    // is tied to no execution rather than to a wrong one.
    let seen = seen_of(|name| !name.eq_ignore_ascii_case("host"));
    assert_eq!((values(&seen, "tracestate"), values(&seen, "aftershock-hop").len()), (vec!["a=1,a=1"], 1), "{seen}");
}
