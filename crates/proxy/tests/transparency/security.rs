//! Messages that two readers could take for two different ones (RFC 9112 §3 to §7, §11.2): a sidecar and the application
//! behind it must never see different requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::http_peers::SERVERS;
use crate::support::sidecar::{Board, Sidecar};
use crate::support::way::{Stage, THROUGH, Way};
use crate::support::wire::{Ended, Origin, Seen, Step, Untouched, connect, follow, send, until};

/// What becomes of a message that is not well-formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is answered with this status, the connection ends, and nothing of it goes on.
    Refused(u16),
    /// The same, where its head was well-formed and has gone.
    RefusedInBody,
    /// It goes on, byte by byte.
    Passed,
    /// It is not HTTP.
    Opaque,
}

const SMUGGLED: &str = "GET /echo/smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

/// Requests that readers disagree about, each followed by what one of them would take for another request.
fn requests() -> Vec<(&'static str, Vec<u8>, Fate)> {
    use Fate::{Opaque, Passed, Refused, RefusedInBody};
    let post =
        |fields: &str, body: &str| format!("POST /echo/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}").into_bytes();
    let get = |fields: &str| format!("GET /echo/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n{SMUGGLED}").into_bytes();
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", &format!("{body}{SMUGGLED}"));
    let length = SMUGGLED.len();
    let both = format!("0\r\n\r\n{SMUGGLED}");
    let coded = |coding: &str| post(&format!("{coding}\r\n"), &both);
    vec![
        // ── which framing ──
        ("CL.TE", post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", &both), Refused(400)),
        ("TE.CL", post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", &both), Refused(400)),
        ("CL.TE, length zero", post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", &both), Refused(400)),
        ("TE.TE, the second unknown", coded("Transfer-Encoding: chunked\r\nTransfer-Encoding: x"), Refused(400)),
        ("TE.TE, the first unknown", coded("Transfer-Encoding: x\r\nTransfer-Encoding: chunked"), Passed),
        ("TE twice chunked", coded("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Refused(400)),
        ("TE chunked, chunked", coded("Transfer-Encoding: chunked, chunked"), Refused(400)),
        ("TE xchunked", coded("Transfer-Encoding: xchunked"), Refused(400)),
        ("TE identity", coded("Transfer-Encoding: identity"), Refused(400)),
        ("TE empty", coded("Transfer-Encoding:"), Refused(400)),
        ("TE quoted", coded("Transfer-Encoding: \"chunked\""), Refused(400)),
        ("TE with parameter", coded("Transfer-Encoding: chunked;q=1"), Refused(400)),
        ("TE with vertical tab", coded("Transfer-Encoding: \x0bchunked"), Refused(400)),
        ("TE, space before the colon", coded("Transfer-Encoding : chunked"), Refused(400)),
        ("TE, folded", coded("Transfer-Encoding:\r\n chunked"), Refused(400)),
        ("TE behind a bare CR", coded("X: y\rTransfer-Encoding: chunked"), Refused(400)),
        ("TE behind a bare LF", coded("X: y\nTransfer-Encoding: chunked"), Refused(400)),
        (
            "TE in HTTP/1.0",
            b"POST /echo/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
            Refused(400),
        ),
        // ── which length ──
        ("two lengths", post(&format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), SMUGGLED), Refused(400)),
        ("two lengths in a list", post(&format!("Content-Length: 0, {length}\r\n"), SMUGGLED), Refused(400)),
        (
            "one length twice",
            post(&format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), SMUGGLED),
            Passed,
        ),
        ("one length twice in a list", post(&format!("Content-Length: {length}, {length}\r\n"), SMUGGLED), Passed),
        ("negative length", post("Content-Length: -1\r\n", SMUGGLED), Refused(400)),
        ("length with a sign", post(&format!("Content-Length: +{length}\r\n"), SMUGGLED), Refused(400)),
        ("hexadecimal length", post("Content-Length: 0x10\r\n", SMUGGLED), Refused(400)),
        ("length in words", post("Content-Length: 1 0\r\n", SMUGGLED), Refused(400)),
        ("empty length", post("Content-Length:\r\n", SMUGGLED), Refused(400)),
        ("overflowing length", post("Content-Length: 18446744073709551616\r\n", SMUGGLED), Refused(400)),
        ("length with an underscore", post("Content-Length: 1_0\r\n", SMUGGLED), Refused(400)),
        ("leading zeros", post(&format!("Content-Length: 000{length}\r\n"), SMUGGLED), Passed),
        // ── lines ──
        ("bare LF ends a line", b"GET /echo/a HTTP/1.1\nHost: h\r\n\r\n".to_vec(), Refused(400)),
        ("bare LFs only", b"GET /echo/a HTTP/1.1\nHost: h\n\n".to_vec(), Refused(400)),
        ("bare LF in a field", get("X: a\nY: b\r\n"), Refused(400)),
        ("bare CR in a field", get("X: a\rY: b\r\n"), Refused(400)),
        ("bare CR before the end", get("X: a\r\r\n"), Refused(400)),
        ("folded field", get("X: a\r\n b\r\n"), Refused(400)),
        ("folded with a tab", get("X: a\r\n\tb\r\n"), Refused(400)),
        ("folded first field", b"GET /echo/a HTTP/1.1\r\n Host: h\r\n\r\n".to_vec(), Refused(400)),
        ("NUL in a value", get("X: a\0b\r\n"), Refused(400)),
        ("NUL in a name", get("X\0: a\r\n"), Refused(400)),
        ("control character in a value", get("X: a\x01b\r\n"), Refused(400)),
        ("space before the colon", get("X : a\r\n"), Refused(400)),
        ("space in a name", get("X Y: a\r\n"), Refused(400)),
        ("no colon", get("X\r\n"), Refused(400)),
        ("no name", get(": a\r\n"), Refused(400)),
        ("obs-text in a value", get("X: \u{e4}\r\n"), Passed),
        // ── request lines ──
        ("NUL in the target", b"GET /echo/\0 HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), Opaque),
        ("space in the target", b"GET /echo/a b HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), Refused(400)),
        ("HTTP/1.2", b"GET /echo/a HTTP/1.2\r\nHost: h\r\n\r\n".to_vec(), Refused(400)),
        ("HTTP/0.9", b"GET /echo/a\r\n".to_vec(), Opaque),
        // ── chunks ──
        ("chunk size overflows", chunked("ffffffffffffffff1\r\nx"), RefusedInBody),
        ("chunk size of 16 digits", chunked("0000000000000003\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("negative chunk size", chunked("-1\r\n"), RefusedInBody),
        ("chunk size with 0x", chunked("0x3\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk size with a space before", chunked(" 3\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk size with an underscore", chunked("0_3\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk behind a bare LF", chunked("3\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk extension with a bare LF", chunked("3;a\nb\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk extension with a bare CR", chunked("3;a\rb\r\nabc\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk longer than its size", chunked("3\r\nabcde\r\n0\r\n\r\n"), RefusedInBody),
        ("chunk without CRLF behind", chunked("3\r\nabc0\r\n\r\n"), RefusedInBody),
        ("bare LF in the trailers", chunked("0\r\nX: y\n\r\n"), RefusedInBody),
        ("folded trailer", chunked("0\r\nX: y\r\n z\r\n\r\n"), RefusedInBody),
        ("chunk extension", chunked("3;a=b;c=\"d\"\r\nabc\r\n0\r\n\r\n"), Passed),
        // ── well-formed, to show that the comparison compares ──
        ("two requests", get(""), Passed),
        (
            "a body and a request",
            post(&format!("Content-Length: {length}\r\n"), &format!("{SMUGGLED}{SMUGGLED}")),
            Passed,
        ),
    ]
}

#[test]
fn what_is_not_well_formed_is_refused_or_goes_on_as_it_came() {
    for (name, request, fate) in requests() {
        for way in THROUGH {
            let stage = Stage::new(way);
            // An origin that answers nothing: what the client gets is the sidecar's.
            let script = [Step::Send(request.clone()), Step::Fin, Step::End];
            if let Fate::Refused(status) = fate {
                // Perhaps it is not even connected.
                let origin = Untouched::start();
                let route = stage.lead_to(origin.address());
                let client = stage.follow(route.address, &script);
                assert!(is_refusal(&client, status), "{name} on {way:?}: {client:?}");
                origin.check();
                continue;
            }
            let done = stage.exchange(&[&script], &[&[Step::End]]);
            let (client, origin) = (&done.clients[0], &done.origins[0]);
            let what = format!("{name} on {way:?}: {client:?}; {origin:?}");
            if fate == Fate::RefusedInBody {
                assert!(is_refusal(client, 400), "{what}");
                assert!(request.starts_with(&origin.bytes) && origin.bytes.len() < request.len(), "{what}");
                assert!(!origin.text().contains("smuggled"), "{what}");
            } else {
                assert_eq!(client.text(), "", "{what}");
                assert!(origin.bytes == request, "{what}");
            }
            assert_eq!(stage.log().iter().any(|l| l.ends_with("opaque")), fate == Fate::Opaque && way == Way::Driver);
        }
    }
}

/// Whether the sidecar said no and closed the connection.
fn is_refusal(seen: &Seen, status: u16) -> bool {
    seen.text().starts_with(&format!("HTTP/1.1 {status} "))
        && seen.text().ends_with("content-length: 0\r\nconnection: close\r\n\r\n")
        && seen.ended == Ended::Fin
}

/// What the server took for requests: `METHOD TARGET` of each that it answered, until it is silent.
fn echoes(stream: &mut TcpStream) -> Vec<String> {
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..read]);
    }
    let text = String::from_utf8_lossy(&seen);
    let echo = |line: &str| {
        let mut words = line.strip_prefix("echo ")?.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    text.lines().filter_map(echo).collect()
}

/// Waits for the answer to an ordinary request.
fn wait_for(server: std::net::SocketAddr) {
    let script = [send("GET /echo/ready HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), Step::End];
    let seen = follow(connect(server), &script);
    assert!(seen.text().contains("echo GET /echo/ready"), "{seen:?}");
}

#[test]
fn servers_never_see_other_requests_than_the_sidecar_before_them() {
    for server in SERVERS.into_iter().filter(|s| s.is_present("servers_never_see_other_requests_than_the_sidecar")) {
        let running = server.on(std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
        wait_for(running.address);
        let board = Board::default();
        let sidecar = Sidecar::recording(&[running.address], &board);
        let cases = requests();
        // All at once: each ends with a silence.
        let streams: Vec<_> = cases
            .iter()
            .enumerate()
            .map(|(at, (_, request, _))| {
                let mut stream = connect(sidecar.address);
                // A reset may come before all of it was sent.
                let _ = stream.write_all(request);
                if at > 0 && at % 8 == 0 {
                    wait_for(running.address);
                }
                stream
            })
            .collect();
        let readers: Vec<_> = streams.into_iter().map(|mut s| std::thread::spawn(move || echoes(&mut s))).collect();
        let taken: Vec<_> = readers.into_iter().map(|reader| reader.join().expect("it read")).collect();
        let log = board.log();
        for (link, ((name, ..), taken)) in cases.iter().zip(&taken).enumerate() {
            let seen: Vec<_> = log
                .iter()
                .filter_map(|note| {
                    let (of, request) = note.split_once(" request ")?;
                    of.starts_with(&format!("{}.", link + 1)).then(|| request.to_owned())
                })
                .collect();
            let opaque = log.contains(&format!("{} opaque", link + 1));
            assert!(opaque || seen.starts_with(taken), "{server:?}, {name}: {taken:?}, but the sidecar saw {seen:?}");
        }
        let both = ["GET /echo/a".to_owned(), "GET /echo/smuggled".to_owned()];
        let control = cases.iter().position(|(name, ..)| *name == "two requests").expect("it is there");
        assert_eq!(taken[control], both, "{server:?}");
        let control = cases.iter().position(|(name, ..)| *name == "a body and a request").expect("it is there");
        assert_eq!(taken[control][1..], both[1..], "{server:?}");
    }
}

#[test]
fn responses_that_readers_disagree_about_end_both_connections() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, x, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 099 Too small\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
    ] {
        for way in THROUGH {
            let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(response), Step::End]]);
            let route = Stage::new(way).lead_to(origin.address);
            let seen = follow(connect(route.address), &[send(GET), Step::End]);
            assert_eq!(seen.text(), "", "{way:?}: {response:?}");
            assert_ne!(seen.ended, Ended::Open);
            assert_ne!(origin.seen()[0].ended, Ended::Open);
        }
    }
}
