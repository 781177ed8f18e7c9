//! Where messages begin and end (RFC 9112): each exchange is followed by another one on the same connection, unless the
//! connection is what ends it.

use std::io::Write;
use std::net::Ipv4Addr;

use crate::support::sidecar::{Board, Sidecar};
use crate::support::way::{alike, same};
use crate::support::wire::{Ended, Origin, Shut, Step, connect, follow, send, until};

const GET: &str = "GET /first HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &str = "HEAD /first HTTP/1.1\r\nHost: h\r\n\r\n";
const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const BYE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbye";

fn marker(text: &str) -> Step {
    // Long messages are recognized by their end.
    let start = (0..text.len()).rev().filter(|at| text.is_char_boundary(*at)).nth(60.min(text.len() - 1)).unwrap_or(0);
    Step::Until(Box::leak(text[start..].to_owned().into_boxed_str()))
}

/// Both exchanges came out as they were sent, and nothing else did.
fn then_another(what: &str, request: &str, response: &str) {
    let client = [send(request), marker(response), send(LAST), Step::End];
    // Sidecars may add lines at the end of the head.
    let mut origin = vec![until(" HTTP/1."), until("\r\n\r\n")];
    let body = request.trim_start().split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if !body.is_empty() {
        origin.push(marker(body));
    }
    origin.extend([send(response), until("/last"), until("\r\n\r\n"), send(BYE)]);
    let (client, origin) = same(&client, &origin);
    assert!(client.text() == format!("{response}{BYE}") && client.ended == Ended::Fin, "{what}: {client:?}");
    assert!(origin.text() == format!("{request}{LAST}"), "{what}: {origin:?}");
}

#[test]
fn responses_of_every_framing_are_followed_by_another() {
    let responses = [
        ("a length", GET, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ("length zero", GET, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("one length twice", GET, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\nok"),
        ("chunks", GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("no chunk", GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (
            "odd chunks",
            GET,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n0002 ;x=\"y\"\r\nok\r\n00;z\r\nT: 1\r\nt: 2\r\n\r\n",
        ),
        ("a coding and chunks", GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
        ("HEAD, length", HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"),
        ("HEAD, chunked", HEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("HEAD, both", HEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n"),
        ("HEAD, none", HEAD, "HTTP/1.1 200 OK\r\n\r\n"),
        ("HEAD, 304", HEAD, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        ("204, none", GET, "HTTP/1.1 204 No Content\r\n\r\n"),
        ("204, length", GET, "HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n"),
        ("204, chunked", GET, "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("304, length", GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        ("304, chunked", GET, "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (
            "103 then 200",
            GET,
            "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        ),
        ("102, 103, 204", GET, "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 E\r\n\r\nHTTP/1.1 204 N\r\n\r\n"),
        ("unasked 100", GET, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ("no reason", GET, "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok"),
        ("no reason, no space", GET, "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"),
        ("obs-text", GET, "HTTP/1.1 200 Gr\u{fc}n\r\nX: \u{e9}\r\nContent-Length: 2\r\n\r\nok"),
        ("205", GET, "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"),
        ("status 599", GET, "HTTP/1.1 599 Odd\r\nContent-Length: 2\r\n\r\nok"),
        (
            "Keep-Alive",
            GET,
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok",
        ),
        (
            "Connection names a field",
            GET,
            "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nok",
        ),
        ("HTTP/1.0, keep-alive", GET, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"),
        (
            "Upgrade that nobody asked for",
            GET,
            "HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
        ),
        (
            "fields of every spelling",
            GET,
            "HTTP/1.1 200 OK\r\nX-A:1\r\nx-a: 2 \r\nX-a:\t3\r\nX-Empty:\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length:2\r\n\r\nok",
        ),
    ];
    for (what, request, response) in responses {
        then_another(what, request, response);
    }
}

#[test]
fn requests_of_every_form_are_followed_by_another() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let requests = [
        ("empty lines before it", "\r\n\r\nGET /first HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("POST without a body", "POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"),
        ("POST without a length", "POST /first HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("GET with a body", "GET /first HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"),
        ("DELETE with a body", "DELETE /first HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"),
        ("chunks", "POST /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4;x\r\nbody\r\n0\r\n\r\n"),
        (
            "trailers",
            "POST /first HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nTrailer: T\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: 1\r\n\r\n",
        ),
        ("no chunk", "PUT /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("absolute form", "GET http://other:81/first?q HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("absolute form without a path", "GET http://other HTTP/1.1\r\nHost: other\r\n\r\n"),
        ("asterisk form", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("no Host", "GET /first HTTP/1.1\r\n\r\n"),
        ("an empty Host", "GET /first HTTP/1.1\r\nHost:\r\n\r\n"),
        ("HTTP/1.0, keep-alive", "GET /first HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"),
        ("a method of its own", "M-SEARCH /first HTTP/1.1\r\nHost: h\r\n\r\n"),
        (
            "hop-by-hop fields",
            "GET /first HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Connection: keep-alive\r\nTE: trailers, deflate;q=0.5\r\n\r\n",
        ),
        ("an odd target", "GET /first//../%2e%2E/a%00b?x=%zz&y[]={}|\"^` HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("obs-text in the target", "GET /f\u{fc}r HTTP/1.1\r\nHost: h\r\n\r\n"),
        (
            "fields of every spelling",
            "GET /first HTTP/1.1\r\nhOsT:h\r\nX-A:1\r\nx-a: 2 \r\nX-Empty:\r\nCookie: a\r\nCookie: b\r\n\r\n",
        ),
        (
            "their trace",
            "GET /first HTTP/1.1\r\nHost: h\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n",
        ),
        (
            "an upgrade that is refused",
            "GET /first HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x, h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        ),
    ];
    for (what, request) in requests {
        then_another(what, request, ok);
    }
}

#[test]
fn heads_of_64_kib_pass_both_ways() {
    for (lines, length) in [(1, 65_536), (64, 1024), (1000, 60)] {
        let fields: String = (0..lines).map(|n| format!("X-{n}: {}\r\n", "v".repeat(length))).collect();
        let request = format!("GET /first HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let response = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
        assert!(fields.len() >= 64_000);
        then_another("many and long fields", &request, &response);
        let trailers = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n{fields}\r\n");
        then_another("many and long trailers", GET, &trailers);
    }
    let target = "a".repeat(65_536);
    then_another(
        "a long target",
        &format!("GET /{target} HTTP/1.1\r\nHost: h\r\n\r\n"),
        "HTTP/1.1 414 Long\r\nContent-Length: 2\r\n\r\nok",
    );
}

#[test]
fn an_expectation_is_the_origins_to_answer() {
    let post = "POST /first HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    // Continued, then another request on the connection; the body is not there before the origin has asked for it.
    for request in [post.to_owned(), post.replace("Content-Length: 4", "Transfer-Encoding: chunked")] {
        let body = if request == post { "body" } else { "4\r\nbody\r\n0\r\n\r\n" };
        let client = [send(&request), until("Continue\r\n\r\n"), send(body), until("ok"), send(LAST), Step::End];
        let origin =
            [until("\r\n\r\n"), send(go_on), until("body"), send(ok), until("/last"), until("\r\n\r\n"), send(BYE)];
        let (client, origin) = same(&client, &origin);
        assert_eq!(client.text(), format!("{go_on}{ok}{BYE}"));
        assert_eq!(origin.text(), format!("{request}{body}{LAST}"));
    }
    // Refused without a close: the client takes it back and sends the next request, whose length says nothing of a body.
    for status in ["417 Expectation Failed", "413 Content Too Large", "401 Unauthorized", "200 OK"] {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        let client = [send(post), until("no"), Step::End];
        let (client, origin) = same(&client, &[until("\r\n\r\n"), send(&answer), Step::Fin, Step::End]);
        assert_eq!((client.text(), client.ended), (answer, Ended::Fin));
        assert_eq!(origin.text(), post);
        // The client sends the body all the same, as it may (RFC 9110 section 10.1.1).
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
        let client = [send(post), until("no"), send("body"), send(LAST), Step::End];
        let origin = [until("\r\n\r\n"), send(&answer), until("/last"), until("\r\n\r\n"), send(BYE)];
        let (client, origin) = same(&client, &origin);
        assert_eq!((client.text(), origin.text()), (format!("{answer}{BYE}"), format!("{post}body{LAST}")));
    }
    // Nobody says anything: the client does not wait for ever.
    let client = [send(post), send("body"), until("ok"), Step::Fin, Step::End];
    same(&client, &[until("body"), send(ok), Step::End]);
    // Nobody says anything, and the client gives up.
    let (_, origin) = same(&[send(post), Step::Fin, Step::End], &[until("\r\n\r\n"), Step::End]);
    assert_eq!((origin.text().as_str(), origin.ended), (post, Ended::Fin));
    // Something else is expected: none of our business.
    then_another("an unknown expectation", &GET.replace("Host", "Expect: miracles\r\nHost"), ok);
}

#[test]
fn requests_are_pipelined_and_answers_keep_their_order() {
    let numbered = |n: usize| format!("GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n");
    let many = 100;
    let requests: Vec<Step> = (0..many).map(|n| send(numbered(n))).collect();
    let client: Vec<Step> = requests.into_iter().chain([send(LAST), until("bye"), Step::End]).collect();
    let answers: String = (0..many)
        .map(|n| match n % 4 {
            0 => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{n}", n.to_string().len()),
            1 => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{n}\r\n0\r\n\r\n",
                n.to_string().len()
            ),
            2 => format!("HTTP/1.1 103 E\r\nX: {n}\r\n\r\nHTTP/1.1 204 N\r\nX: {n}\r\n\r\n"),
            _ => format!("HTTP/1.1 304 N\r\nContent-Length: 9\r\nX: {n}\r\n\r\n"),
        })
        .collect();
    // All requests before the first answer, and answers while requests are still coming.
    let last = until("/last");
    let (seen, _) = same(&client, &[last, until("\r\n\r\n"), send(format!("{answers}{BYE}"))]);
    assert_eq!(seen.text(), format!("{answers}{BYE}"));
    let (first, rest) = answers.split_at(answers.len() / 2);
    let origin = [until("/49 "), send(first), until("/last"), until("\r\n\r\n"), send(format!("{rest}{BYE}"))];
    assert_eq!(same(&client, &origin).0.text(), format!("{answers}{BYE}"));
    // HEAD among them, and a body.
    let mixed = format!("{HEAD}POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody{LAST}");
    let answers =
        format!("HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{BYE}");
    let (seen, origin) = same(&[send(&mixed), Step::End], &[until("/last"), until("\r\n\r\n"), send(&answers)]);
    assert_eq!((seen.text(), origin.text()), (answers, mixed));
}

#[test]
fn connections_are_one_to_one_and_end_like_each_other() {
    // Three connections, each with its own fate, in their order at the origin.
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let clients: [&[Step]; 3] = [
        &[send(GET), until("ok"), Step::Fin, Step::End],
        &[send(GET), until("ok"), Step::Reset],
        &[send(LAST), Step::End],
    ];
    let origins: [&[Step]; 3] = [
        &[until("\r\n\r\n"), send(ok), Step::End],
        &[until("\r\n\r\n"), send(ok), Step::End],
        &[until("\r\n\r\n"), send(BYE), Step::Reset],
    ];
    let seen = alike(|stage| stage.exchange(&clients, &origins));
    assert_eq!(seen.origins[0].ended, Ended::Fin);
    assert_eq!(seen.origins[1].ended, Ended::Reset);
}

#[test]
fn an_idle_origin_that_closes_is_seen_to_close() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (end, ended) in [(Step::Fin, Ended::Fin), (Step::Reset, Ended::Reset)] {
        let (seen, _) = same(&[send(GET), until("ok"), Step::End], &[until("\r\n\r\n"), send(ok), end]);
        assert_eq!((seen.text().as_str(), seen.ended), (ok, ended));
    }
}

#[test]
fn an_origin_that_is_slow_to_accept_is_waited_for() {
    let full = Shut::at(Ipv4Addr::LOCALHOST.into()).fill();
    let board = Board::default();
    let sidecar = Sidecar::recording(&[full.address], &board);
    let mut client = connect(sidecar.address);
    client.write_all(LAST.as_bytes()).expect("open");
    board.wait("1.1 request GET /last");
    // The request is there, the upstream's connection is not.
    full.is_dialled();
    let origin = Origin::on(full.open(), vec![vec![until("\r\n\r\n"), send(BYE)]]);
    assert_eq!(follow(client, &[Step::End]).text(), BYE);
    assert_eq!(origin.seen()[0].text(), LAST);
}
