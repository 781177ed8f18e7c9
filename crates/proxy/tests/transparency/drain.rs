//! A sidecar that is told to end loses nobody's request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::load::{answer_all, response};
use crate::support::process::Process;
use crate::support::wire::{Ended, Origin, Seen, Step, connect, follow, send, until};

const GET: &[u8] = b"GET /load HTTP/1.1\r\nHost: h\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const SLOW: &str = "POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n";

/// A client that keeps its connection as long as nobody says that it closes; how many requests were answered, and how many
/// were not. It takes the first of `servers` that lets it in.
fn keep_asking(servers: &[SocketAddr], over: &AtomicBool, answered: &AtomicUsize) -> usize {
    let mut lost = 0;
    while !over.load(Ordering::Relaxed) {
        let connected = servers.iter().find_map(|server| match TcpStream::connect(server) {
            Ok(stream) => Some(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
            Err(error) => panic!("cannot connect: {error}"),
        });
        let mut stream = connected.expect("one of them accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        loop {
            if over.load(Ordering::Relaxed) {
                return lost;
            }
            match stream.write_all(GET).ok().and_then(|()| response(&mut stream)) {
                Some(response) => {
                    answered.fetch_add(1, Ordering::Relaxed);
                    if response.to_ascii_lowercase().contains("connection: close") {
                        break;
                    }
                }
                None => {
                    lost += 1;
                    break;
                }
            }
        }
    }
    lost
}

#[test]
fn a_sidecar_that_ends_under_load_loses_no_request() {
    let origin = answer_all();
    let mut first = Process::before(origin, "");
    let second = Process::before(origin, "");
    let servers = [first.addresses[0], second.addresses[0]];
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wait_for = |count| {
        let begun = Instant::now();
        while answered.load(Ordering::Relaxed) < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "the load stands still");
            thread::sleep(Duration::from_millis(1));
        }
    };
    let lost: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(|| keep_asking(&servers, &over, &answered))).collect();
        wait_for(2000);
        first.terminate();
        assert!(first.wait().success());
        wait_for(answered.load(Ordering::Relaxed) + 2000);
        over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("the client ran")).sum()
    });
    assert_eq!(lost, 0, "of {}", answered.load(Ordering::Relaxed));
}

/// An exchange that is under way, at an origin that answers when it has the body.
fn begin(sidecar: &Process) -> TcpStream {
    let mut stream = connect(sidecar.addresses[0]);
    stream.write_all(SLOW.as_bytes()).expect("open");
    stream
}

#[test]
fn what_is_under_way_ends_and_says_that_it_was_the_last() {
    let origin = Origin::start(vec![vec![
        until("\r\n\r\n"),
        send("HTTP/1.1 100 Continue\r\n\r\n"),
        until("go on"),
        send(OK),
        Step::End,
    ]]);
    let mut sidecar = Process::before(origin.address, "");
    let address = sidecar.addresses[0];
    let mut stream = begin(&sidecar);
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("the origin has it");
    sidecar.terminate();
    // It accepts nobody any more, which says that it has heard.
    while TcpStream::connect(address).is_ok() {}
    let seen = follow(stream, &[send("go on"), Step::End]);
    assert_eq!(seen.text(), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nconnection: close\r\n\r\nok");
    assert_eq!(seen.ended, Ended::Fin);
    assert!(sidecar.wait().success());
    assert_eq!(origin.seen()[0].text(), format!("{SLOW}go on"));
}

#[test]
fn what_does_not_end_is_cut_at_the_deadline_or_at_the_second_signal() {
    for (further, signals) in [("drain: 200ms\n", 1), ("drain: 1h\n", 2)] {
        let origin = Origin::start(vec![vec![until("\r\n\r\n"), send("HTTP/1.1 100 Continue\r\n\r\n"), Step::End]]);
        let mut sidecar = Process::before(origin.address, further);
        let address = sidecar.addresses[0];
        let mut stream = begin(&sidecar);
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).expect("the origin has it");
        sidecar.terminate();
        if signals == 2 {
            while TcpStream::connect(address).is_ok() {}
            sidecar.terminate();
        }
        let seen = follow(stream, &[Step::End]);
        assert_eq!(seen.bytes, b"", "nothing is made up");
        assert_ne!(seen.ended, Ended::Open);
        assert!(sidecar.wait().success());
        let Seen { ended, .. } = &origin.seen()[0];
        assert_ne!(*ended, Ended::Open);
    }
}

#[test]
fn a_silent_connection_is_not_waited_for() {
    let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(OK), Step::End]]);
    let mut sidecar = Process::before(origin.address, "drain: 1h\n");
    let stream = connect(sidecar.addresses[0]);
    let script = [Step::Send(GET.to_vec()), until("ok")];
    let silent = stream.try_clone().expect("a socket");
    follow(stream, &script);
    sidecar.terminate();
    assert_eq!(follow(silent, &[Step::End]), Seen { bytes: Vec::new(), ended: Ended::Fin });
    assert!(sidecar.wait().success());
}
