//! Scripted exchanges over HTTP/1, compared byte by byte.

use crate::support::way::same;
use crate::support::wire::{Ended, Step, send, until};

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: h\r\nX-Odd:  two  \r\nx-odd:three\r\n\r\n";
const LAST: &str = "GET /last HTTP/1.1\r\nhost: h\r\nConnection: close\r\n\r\n";
const BYE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbye";

/// The first exchange, then another on the same connection, which the origin then closes.
fn same_twice(request: &str, response: &str) {
    let client = [send(request), until_text(response), send(LAST), Step::End];
    let origin = [until("\r\n\r\n"), send(response), until("/last"), until("\r\n\r\n"), send(BYE)];
    let (seen, _) = same(&client, &origin);
    assert_eq!(seen.text(), format!("{response}{BYE}"));
    assert_eq!(seen.ended, Ended::Fin);
}

fn until_text(text: &str) -> Step {
    Step::Until(Box::leak(text.to_owned().into_boxed_str()))
}

#[test]
fn a_head_response_announces_a_body_that_does_not_come() {
    let head = GET.replace("GET", "HEAD");
    same_twice(&head, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nServer: s\r\n\r\n");
    same_twice(&head, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    same_twice(&head, "HTTP/1.1 404 Not Found\r\n\r\n");
}

#[test]
fn responses_without_content_keep_their_framing_fields() {
    for status in ["204 No Content", "304 Not Modified"] {
        for framing in ["", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
            same_twice(GET, &format!("HTTP/1.1 {status}\r\nETag: \"x\"\r\n{framing}\r\n"));
        }
    }
    same_twice(GET, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
}

#[test]
fn chunks_extensions_and_trailers_arrive_as_they_were_sent() {
    let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                    5;a=\"b\"\r\nhello\r\n00a\r\n0123456789\r\n0;last\r\nX-Sum: 15\r\nx-other:y\r\n\r\n";
    same_twice(GET, response);
    let request = "POST /up HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX-T: 1\r\n\r\n";
    let client = [send(request), until("bye"), Step::End];
    let origin = [until("X-T: 1\r\n\r\n"), send(BYE)];
    let (_, seen) = same(&client, &origin);
    assert_eq!(seen.text(), request);
}

#[test]
fn a_client_that_waits_for_100_sends_its_body_after_it() {
    let head = "POST /up HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let client = [send(head), until("100 Continue\r\n\r\n"), send("body"), until("bye"), Step::End];
    let origin = [until("\r\n\r\n"), send("HTTP/1.1 100 Continue\r\n\r\n"), until("body"), send(BYE)];
    same(&client, &origin);
    // Refused, answered without it, and a final answer while the body is awaited.
    for status in ["417 Expectation Failed", "413 Content Too Large", "200 OK"] {
        let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
        same(&[send(head), until("no"), Step::End], &[until("\r\n\r\n"), send(answer)]);
    }
}

#[test]
fn early_hints_come_before_the_final_response() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
    let client = [send(LAST), until("preload\r\n\r\n"), until("bye"), Step::End];
    let origin = [until("\r\n\r\n"), send(hints), send(hints), send(BYE)];
    same(&client, &origin);
}

#[test]
fn a_body_that_ends_with_the_connection_ends_with_it() {
    for version in ["1.0", "1.1"] {
        let response = format!("HTTP/{version} 200 OK\r\nServer: old\r\n\r\nall there is");
        for request in [GET.to_string(), "GET / HTTP/1.0\r\n\r\n".to_string()] {
            let client = [send(request), Step::End];
            let (seen, _) = same(&client, &[until("\r\n\r\n"), send(&response), Step::Fin, Step::End]);
            assert_eq!((seen.text(), seen.ended), (response.clone(), Ended::Fin));
        }
    }
}

#[test]
fn http_1_0_keeps_alive_only_where_it_says_so() {
    let keep = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    same_twice(keep, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok");
    let answer = "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok";
    same(&[send("GET / HTTP/1.0\r\n\r\n"), Step::End], &[until("\r\n\r\n"), send(answer)]);
}

#[test]
fn a_pipelined_pair_is_answered_in_order() {
    let second = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n2n\r\n0\r\n\r\n";
    let client = [send(format!("{GET}{GET}{LAST}")), until("bye"), Step::End];
    let first = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1s";
    let origin = [until("/last"), until("\r\n\r\n"), send(first), send(second), send(BYE)];
    let (seen, _) = same(&client, &origin);
    assert_eq!(seen.text(), format!("{first}{second}{BYE}"));
}

#[test]
fn connections_are_kept_and_used_again() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (mut client, mut origin) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        client.extend([send(GET), until("\r\n\r\nok")]);
        origin.extend([until("\r\n\r\n"), send(response)]);
    }
    client.extend([Step::Fin, Step::End]);
    origin.push(Step::End);
    let (seen_by_client, seen_by_origin) = same(&client, &origin);
    assert_eq!((seen_by_client.ended, seen_by_origin.ended), (Ended::Fin, Ended::Fin));
}

#[test]
fn a_cancelled_request_is_cancelled_at_the_origin() {
    let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n";
    for (cancel, ended) in [(Step::Reset, Ended::Reset), (Step::Fin, Ended::Fin)] {
        let client = [send(GET), until("begun"), cancel];
        let (_, origin) = same(&client, &[until("\r\n\r\n"), send(begun), Step::End]);
        assert_eq!(origin.ended, ended);
    }
    // In the middle of its body.
    let half = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf";
    let (_, origin) = same(&[send(half), Step::Reset], &[until("half"), Step::End]);
    assert_eq!(origin.ended, Ended::Reset);
}

#[test]
fn an_origin_that_breaks_off_breaks_off() {
    let begun = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    for (end, ended) in [(Step::Reset, Ended::Reset), (Step::Fin, Ended::Fin)] {
        let (seen, _) = same(&[send(GET), until("half"), Step::End], &[until("\r\n\r\n"), send(begun), end.clone()]);
        assert_eq!(seen.ended, ended);
        let (seen, _) = same(&[send(GET), Step::End], &[until("\r\n\r\n"), end]);
        assert_eq!((seen.bytes, seen.ended), (Vec::new(), ended));
    }
}

#[test]
fn half_closed_connections_stay_half_open() {
    let client = [send(LAST), Step::Fin, until("bye"), Step::End];
    let (seen, origin) = same(&client, &[until("\r\n\r\n"), Step::End, send(BYE)]);
    assert_eq!((seen.text(), origin.ended), (BYE.to_string(), Ended::Fin));
    // A server that refuses an upload closes its direction first and reads on.
    let upload = "POST /up HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n";
    let refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let client = [send(upload), Step::End, send("123456789"), Step::Fin];
    let (_, origin) = same(&client, &[until("\r\n\r\n"), send(refusal), Step::Fin, until("123456789"), Step::End]);
    assert_eq!(origin.ended, Ended::Fin);
}

#[test]
fn a_web_socket_is_a_tunnel_after_its_101() {
    let upgrade =
        "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x02same packet";
    let client = [send(upgrade), until("same packet"), send("GET / not HTTP\n"), until("\x03"), Step::Fin, Step::End];
    let origin = [until("\r\n\r\n"), send(switch), until("not HTTP\n"), send("\x03"), Step::End];
    same(&client, &origin);
    // Frames before the 101 arrive, in order.
    let client = [send(format!("{upgrade}early")), until("same packet"), Step::Fin, Step::End];
    same(&client, &[until("\r\n\r\n"), send(switch), until("early"), Step::End]);
    same_twice(upgrade, "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nno");
    same_twice(upgrade, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

#[test]
fn large_bodies_pass_both_ways_at_once() {
    let body = "0123456789abcdef".repeat(256 * 1024);
    let head = format!("Content-Length: {}\r\n\r\n", body.len() + 3);
    let request = format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{head}{body}req");
    let response = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{head}{body}res");
    let client = [send(request), until("res"), Step::End];
    let (seen, _) = same(&client, &[until("req"), send(&response)]);
    assert!(seen.text() == response);
}

#[test]
fn a_late_408_passes_as_it_is() {
    let timeout = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n";
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let client = [send(GET), until("ok"), Step::End];
    same(&client, &[until("\r\n\r\n"), send(format!("{response}{timeout}")), Step::Fin, Step::End]);
}
