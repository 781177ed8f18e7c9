//! What is not HTTP, and how links begin and end.

use std::io::{Read, Write};
use std::time::Duration;

use crate::support::peers::{curl, installed, present};
use crate::support::sidecar::{Board, Sidecar};
use crate::support::wire::{self, Ended, Origin, Seen, Step, client, connect, nobody, send, until};

/// Makes the exchange directly and through a sidecar; the board of the latter.
fn same(client_script: &[Step], origin_script: &[Step]) -> Board {
    let direct = Origin::start(vec![origin_script.to_vec()]);
    let expected = client(direct.address, client_script);
    let expected_at_origin = direct.seen();
    let board = Board::default();
    let through = Origin::start(vec![origin_script.to_vec()]);
    let sidecar = Sidecar::recording(&[through.address], &board);
    assert_eq!(client(sidecar.address, client_script), expected);
    assert_eq!(through.seen(), expected_at_origin);
    board.wait("1 gone");
    board
}

#[test]
fn protocols_that_are_not_http_pass_at_once() {
    // The server speaks first; the client speaks something else; it half-closes and still gets its answer.
    let smtp = same(
        &[until("220 ready\r\n"), send("EHLO c\r\n"), until("250 ok\r\n"), Step::Fin, until("221 bye"), Step::End],
        &[send("220 ready\r\n"), until("EHLO c\r\n"), send("250 ok\r\n"), Step::End, send("221 bye")],
    );
    let mysql = same(&[until("mysql"), send([0x85, 0xa6]), Step::Fin], &[send("J\0\0\0\x0a8.0-mysql"), Step::End]);
    let tls =
        same(&[send("\x16\x03\x01\x00\x05hello"), until("\x16"), Step::End], &[until("hello"), send("\x16\x03\x03")]);
    let redis = same(
        &[send("*1\r\n$4\r\nPING\r\n"), until("PONG"), Step::Reset],
        &[until("PING\r\n"), send("+PONG\r\n"), Step::End],
    );
    let memcached = same(
        &[send("get a\r\n"), until("END\r\n"), Step::Fin, Step::End],
        &[until("\r\n"), send("END\r\n"), Step::End],
    );
    // A FIN of the server's passes on its own.
    let half = same(
        &[send("\0\x01a"), Step::End, send("still here"), Step::Fin],
        &[until("a"), Step::Fin, until("still here"), Step::End],
    );
    // Nobody says anything.
    let idle = same(&[Step::Fin, Step::End], &[Step::End]);
    for board in [smtp, mysql, tls, redis, memcached, half, idle] {
        assert_eq!(board.log(), ["1 opaque", "1 gone"]);
    }
}

#[test]
fn the_server_that_a_tls_client_asks_for_is_noted_in_passing() {
    let test = "the_server_that_a_tls_client_asks_for_is_noted_in_passing";
    if !present(test, "curl", installed("curl").is_some()) {
        return;
    }
    // The hello passes whole; what answers is no TLS.
    let origin = Origin::start(vec![vec![until("bank.example"), send("no TLS"), Step::End]]);
    let board = Board::default();
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let port = sidecar.address.port();
    let out = curl(&["--resolve", &format!("bank.example:{port}:127.0.0.1"), &format!("https://bank.example:{port}/")]);
    assert!(out.starts_with("exit Some(35)"), "the handshake fails: {out}");
    board.wait("1 opaque bank.example");
    let hello = &origin.seen()[0];
    assert_eq!(hello.bytes[0], 22);
}

#[test]
fn a_word_that_begins_no_request_is_not_waited_for() {
    let board = same(
        &[send("HELO without a line"), until("hello"), Step::Fin, Step::End],
        &[until("line"), send("hello"), Step::End],
    );
    assert_eq!(board.log(), ["1 opaque", "1 gone"]);
}

#[test]
fn a_reset_passes_where_nobody_reads() {
    let board = same(&[send("\0"), until("x"), Step::End], &[until("\0"), send("x"), Step::Reset]);
    assert_eq!(board.log(), ["1 opaque", "1 gone"]);
}

#[test]
fn a_request_in_single_bytes_is_http_all_the_same() {
    let bytes = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let origin = Origin::start(vec![vec![until("\r\n\r\n"), send("HTTP/1.1 204 No\r\nConnection: close\r\n\r\n")]]);
    let board = Board::default();
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let script: Vec<_> = bytes.bytes().map(|b| send([b])).chain([Step::End]).collect();
    assert_eq!(client(sidecar.address, &script).ended, Ended::Fin);
    assert_eq!(origin.seen()[0].text(), bytes);
    board.wait("1.1 closed Complete");
}

#[test]
fn a_refused_upstream_resets_after_the_request_was_seen() {
    let board = Board::default();
    let sidecar = Sidecar::recording(&[nobody()], &board);
    let seen = client(sidecar.address, &[send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), Step::End]);
    assert_eq!(seen, Seen { bytes: Vec::new(), ended: Ended::Reset });
    board.wait("1 gone");
    assert_eq!(board.log(), ["1.1 request GET /", "1.1 closed ByUpstream", "1 gone"]);
    // Whoever waits for the server to speak first must learn of it, too.
    assert_eq!(client(sidecar.address, &[Step::End]).ended, Ended::Reset);
}

#[test]
fn addresses_are_taken_in_turn_by_connections() {
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n{body}");
    let origins: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| Origin::start(vec![vec![until("\r\n\r\n"), send(answer(name))]; 2]))
        .collect();
    let addresses: Vec<_> = origins.iter().map(|o| o.address).collect();
    let sidecar = Sidecar::recording(&addresses, &Board::default());
    let bodies: String = (0..6)
        .map(|_| client(sidecar.address, &[send("GET / HTTP/1.0\r\n\r\n"), Step::End]).text())
        .filter_map(|text| text.chars().last())
        .collect();
    assert_eq!(bodies, "abcabc");
}

#[test]
fn a_stop_closes_idle_links_and_lets_the_others_end() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let idle = vec![until("\r\n\r\n"), send(ok), Step::End];
    let busy = vec![until("\r\n\r\n"), until("go on"), send(ok), Step::End];
    let origin = Origin::start(vec![idle, busy]);
    let board = Board::default();
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let address = sidecar.address;
    let mut first = connect(address);
    first.write_all(b"GET /idle HTTP/1.1\r\nHost: h\r\n\r\n").expect("open");
    let mut buffer = [0; 1000];
    let read = first.read(&mut buffer).expect("a response");
    assert_eq!(&buffer[..read], ok.as_bytes());
    let mut second = connect(address);
    second.write_all(b"POST /busy HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n").expect("open");
    board.wait("2.1 request POST /busy");
    sidecar.stop();
    assert_eq!(first.read(&mut buffer).expect("a FIN"), 0);
    second.write_all(b"go on").expect("open");
    let seen = wire::follow(second, &[until("ok"), Step::End]);
    let last = ok.replace("2\r\n\r\n", "2\r\nconnection: close\r\n\r\n");
    assert_eq!(seen, Seen { bytes: last.into(), ended: Ended::Fin });
    sidecar.join();
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody accepts any more");
}

#[test]
fn a_slow_reader_slows_the_origin_down() {
    let total = 64 * 1024 * 1024;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let sidecar = Sidecar::recording(&[listener.local_addr().expect("bound")], &Board::default());
    let mut slow = connect(sidecar.address);
    slow.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("open");
    let (mut origin, _) = listener.accept().expect("a connection");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n");
    origin.write_all(head.as_bytes()).expect("open");
    // The kernel's buffers take some megabytes; the sidecar must not take the rest.
    origin.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let mut sent = 0;
    while let Ok(wrote) = origin.write(&vec![b'x'; (total - sent).min(64 * 1024)]) {
        sent += wrote;
        assert!(sent < total, "nothing held the origin back");
    }
    let before = sidecar.busy();
    std::thread::sleep(Duration::from_millis(100));
    assert!(sidecar.busy() - before < Duration::from_millis(10), "waiting is not work");
    let reader = std::thread::spawn(move || {
        let mut left = head.len() + total;
        let mut buffer = vec![0; 256 * 1024];
        while left > 0 {
            left -= slow.read(&mut buffer).expect("the rest");
        }
    });
    origin.set_write_timeout(Some(wire::HANG)).expect("a timeout");
    origin.write_all(&vec![b'x'; total - sent]).expect("the reader reads");
    reader.join().expect("everything came");
}
