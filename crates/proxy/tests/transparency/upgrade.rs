//! Connections that become something else than HTTP/1: WebSockets of real libraries, tunnels, and requests to switch that
//! are answered as HTTP.

use std::io::{Read, Write};

use crate::support::http_peers::{Server, call_web_sockets};
use crate::support::way::{Way, alike, same};
use crate::support::wire::{Ended, Step, send, until};

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const BYE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbye";

#[test]
fn libraries_have_the_same_conversation_over_a_web_socket() {
    let test = "libraries_have_the_same_conversation_over_a_web_socket";
    for server in [Server::NodeWs, Server::Aiohttp, Server::H11, Server::Httptools] {
        if !(Server::NodeWs.is_present(test) && server.is_present(test)) {
            continue;
        }
        let lines = alike(|stage| {
            let running = server.on(stage.listen());
            let route = stage.lead_to(running.address);
            let url = |path: &str| format!("ws://{}{path}", route.address);
            let tracestate = stage.tracestate();
            // Accepted, and refused: by node with 426, by the others with an answer.
            let seen = stage.as_client(|| call_web_sockets(&[url("/ws"), url("/other")], tracestate.as_deref()));
            assert!(!stage.log().iter().any(|l| l.ends_with("opaque")), "{:?}", stage.log());
            seen
        });
        for expected in ["upgrade 101 websocket", "text back one", "pong are you there", "text 300005", "close 1000"] {
            assert!(lines.contains(expected), "{server:?}: {lines}");
        }
        if server == Server::NodeWs {
            assert!(lines.contains("text hello") && lines.contains("refused 426"), "{lines}");
        }
    }
}

#[test]
fn what_follows_a_101_passes_in_order_both_ways() {
    // The 101 and frames in one packet; frames that look like HTTP; ends one after the other, each way.
    let client = [
        send(UPGRADE),
        until("same packet"),
        send("GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"),
        until("HTTP/1.1 200 OK\r\n\r\n"),
        Step::Fin,
        until("after your end"),
        Step::End,
    ];
    let origin = [
        until("\r\n\r\n"),
        send(format!("{SWITCH}same packet")),
        until("/smuggled"),
        until("\r\n\r\n"),
        send("HTTP/1.1 200 OK\r\n\r\n"),
        Step::End,
        send("after your end"),
    ];
    let (seen, _) = same(&client, &origin);
    assert_eq!(seen.text(), format!("{SWITCH}same packetHTTP/1.1 200 OK\r\n\r\nafter your end"));
    // The origin ends first; a reset is one.
    let client = [send(UPGRADE), until("frame"), Step::End, send("after your end"), Step::Fin];
    let origin = [until("\r\n\r\n"), send(format!("{SWITCH}frame")), Step::Fin, until("after your end"), Step::End];
    assert_eq!(same(&client, &origin).1.ended, Ended::Fin);
    for side in 0..2 {
        let (mut client, mut origin) =
            (vec![send(UPGRADE), until("frame")], vec![until("\r\n\r\n"), send(format!("{SWITCH}frame"))]);
        if side == 0 {
            client.push(Step::Reset);
            origin.push(Step::End);
            assert_eq!(same(&client, &origin).1.ended, Ended::Reset);
        } else {
            client.extend([send("x"), Step::End]);
            origin.extend([until("x"), Step::Reset]);
            assert_eq!(same(&client, &origin).0.ended, Ended::Reset);
        }
    }
}

#[test]
fn frames_before_the_101_wait_for_it() {
    let early = "early frames";
    let client = [
        send(format!("{UPGRADE}{early}")),
        until("101"),
        until("\r\n\r\n"),
        send("late"),
        until("!"),
        Step::Fin,
        Step::End,
    ];
    let origin = [until("\r\n\r\n"), send(SWITCH), until(early), until("late"), send("!"), Step::End];
    let (_, seen) = same(&client, &origin);
    assert_eq!(seen.text(), format!("{UPGRADE}{early}late"));
    // An interim response is not the answer yet.
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let origin = [until("\r\n\r\n"), send(interim), send(SWITCH), until(early), until("late"), send("!"), Step::End];
    let (seen, _) = same(&client, &origin);
    assert_eq!(seen.text(), format!("{interim}{SWITCH}!"));
}

#[test]
fn a_refused_upgrade_is_followed_by_the_next_request() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        // What the client sent behind its request is the next request, or the tunnel's first bytes: only the answer says.
        let client = [send(format!("{UPGRADE}{LAST}")), until("bye"), Step::End];
        let origin = [until("\r\n\r\n"), send(answer), until("/last"), until("\r\n\r\n"), send(BYE)];
        let (client, origin) = same(&client, &origin);
        assert_eq!(client.text(), format!("{answer}{BYE}"));
        assert_eq!(origin.text(), format!("{UPGRADE}{LAST}"));
    }
}

#[test]
fn a_connect_opens_a_tunnel_or_is_refused() {
    let connect = "CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n";
    let client = [send(connect), until("\r\n\r\n"), send("\x16\x03\x01"), until("tls"), Step::Fin, Step::End];
    same(&client, &[until("\r\n\r\n"), send("HTTP/1.1 200 OK\r\n\r\n"), until("\x16\x03\x01"), send("tls"), Step::End]);
    let refused = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno";
    let client = [send(connect), until("no"), send(LAST), Step::End];
    let (client, _) = same(&client, &[until("\r\n\r\n"), send(refused), until("/last"), until("\r\n\r\n"), send(BYE)]);
    assert_eq!(client.text(), format!("{refused}{BYE}"));
}

#[test]
fn a_tunnel_carries_much_both_ways_at_once() {
    const SIZE: usize = 8 << 20;
    alike(|stage| {
        let listener = stage.listen();
        let route = stage.lead_to(listener.local_addr().expect("a bound socket"));
        std::thread::scope(|scope| {
            let origin = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("a request");
                    head.push(byte[0]);
                }
                stream.write_all(SWITCH.as_bytes()).expect("open");
                exchange(stream)
            });
            let mut stream = stage.connect(route.address);
            stream.write_all(UPGRADE.as_bytes()).expect("open");
            let mut switch = vec![0; SWITCH.len()];
            stream.read_exact(&mut switch).expect("a 101");
            assert_eq!(switch, SWITCH.as_bytes());
            let seen = exchange(stream);
            (seen, origin.join().expect("the origin ran"))
        })
    });

    /// Sends and reads at once; how much came, and whether it was all right.
    fn exchange(stream: std::net::TcpStream) -> (usize, bool) {
        let mut writes = stream.try_clone().expect("a socket");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let block: Vec<u8> = (0..=255).cycle().take(1 << 16).collect();
                (0..SIZE >> 16).for_each(|_| writes.write_all(&block).expect("open"));
                writes.shutdown(std::net::Shutdown::Write).expect("open");
            });
            let (mut seen, mut right, mut buffer) = (0, true, vec![0; 1 << 16]);
            let mut reads = &stream;
            while let Ok(read @ 1..) = reads.read(&mut buffer) {
                right &= buffer[..read].iter().zip(seen..).all(|(byte, at)| *byte == (at % 256) as u8);
                seen += read;
            }
            (seen, right)
        })
    }
}

#[test]
fn a_switch_to_http_2_is_a_tunnel_that_is_counted() {
    let upgrade = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    alike(|stage| {
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let client = [send(upgrade), until("\r\n\r\n"), send(preface), until("frames"), Step::Fin, Step::End];
        let origin = [until("\r\n\r\n"), send(switch), until("SM\r\n\r\n"), send("frames"), Step::End];
        let seen = stage.exchange(&[&client], &[&origin]);
        assert_eq!(stage.way == Way::Driver, stage.log().iter().any(|l| l == "1 opaque"));
        seen
    });
}
