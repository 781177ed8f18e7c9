//! What two readers could understand in two ways goes nowhere.

use super::*;

fn refused(head: &str, status: &str) {
    let outcome = check(&[app(head)], &Script::default());
    assert_eq!(outcome.upstream_text(), "", "{head:?}");
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    assert_eq!(outcome.app_text(), answer, "{head:?}");
    assert_eq!(outcome.app, Fate::Linger, "{head:?}");
    assert_eq!(outcome.log, Vec::<String>::new(), "{head:?}");
    // What follows is not taken for a request.
    let outcome = play(&[app(head), app(GET)], Script::default());
    assert_eq!(outcome.upstream_text(), "");
}

#[test]
fn ambiguous_requests_are_answered_400_and_go_nowhere() {
    for lines in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: 3,\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length\t: 3\r\n",
        "A: b\r\n c\r\n",
        "A: b\r\n\tc\r\n",
        " A: b\r\n",
        "A: b\rC: d\r\n",
        "A: b\n",
        "A: b\nContent-Length: 3\r\n",
        "A: b\0c\r\n",
        "A\r\n",
        ": b\r\n",
        "A(: b\r\n",
    ] {
        refused(&format!("POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n"), "400 Bad Request");
    }
    for line in
        ["GET / HTTP/1.1\n", "GET  / HTTP/1.1\r\n", "GET / HTTP/1.2\r\n", "GET / HTTP/1.1 \r\n", "G@T / HTTP/1.1\r\n"]
    {
        refused(&format!("{line}Host: h\r\n\r\n"), "400 Bad Request");
    }
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400 Bad Request");
}

#[test]
fn a_head_beyond_the_limit_is_answered_431() {
    let line = format!("A: {}\r\n", "b".repeat(1000));
    let long = format!("GET / HTTP/1.1\r\n{}\r\n", line.repeat(261));
    let outcome = play(&[app(&long)], Script::default());
    assert!(outcome.app_text().starts_with("HTTP/1.1 431 "), "{}", outcome.app_text());
    let pieces: Vec<_> = long.as_bytes().chunks(1000).map(app).collect();
    assert_eq!(play(&pieces, Script::default()), outcome);
    let endless = play(&[app("A".repeat(270_000))], Script::default());
    assert!(endless.app_text().starts_with("HTTP/1.1 431 "));

    let fits = format!("GET / HTTP/1.1\r\n{}\r\n", line.repeat(260));
    assert_eq!(play(&[app(&fits)], Script::default()).upstream_text(), fits);
}

#[test]
fn a_refusal_waits_for_its_turn() {
    let bad = "GET / HTTP/1.1\r\nA : b\r\n\r\n";
    let waiting = check(&[app([GET, bad, GET].concat())], &Script::default());
    assert_eq!((waiting.upstream_text().as_str(), waiting.app_text().as_str()), (GET, ""));
    let outcome = check(&[app([GET, bad, GET].concat()), up(OK)], &Script::default());
    assert!(outcome.app_text().starts_with(OK));
    assert!(outcome.app_text()[OK.len()..].starts_with("HTTP/1.1 400 "));
    assert_eq!(outcome.app, Fate::Linger);
}

#[test]
fn a_malformed_chunk_is_not_passed_on() {
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    for bad in ["zz\r\n", "3\nabc", "3\r\nabcd\r\n", "3;a\nb\r\n", "0\r\nA: b\n\r\n"] {
        let outcome = check(&[app([head, "1\r\nx\r\n", bad].concat())], &Script::default());
        assert!(outcome.app_text().starts_with("HTTP/1.1 400 "), "{bad:?}: {}", outcome.app_text());
        assert!(outcome.upstream_text().starts_with(&[head, "1\r\nx\r\n"].concat()));
        assert!(!outcome.upstream_text().contains('\n') || !outcome.upstream_text().replace("\r\n", "").contains('\n'));
        assert!(outcome.logged("closed 1 ByApplication"), "{:?}", outcome.log);
        assert_eq!(outcome.app, Fate::Linger);
        assert_ne!(outcome.upstream, Fate::Open);
    }
    // Behind a response that has begun there is no place for another.
    let begun = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
    let outcome = check(&[app([head, "1\r\nx\r\n"].concat()), up(begun), app("zz\r\n")], &Script::default());
    assert_eq!(outcome.app_text(), begun);
    assert_eq!((outcome.app, outcome.upstream), (Fate::Linger, Fate::Reset));
    assert!(outcome.logged("closed 1 ByApplication"));
}

#[test]
fn an_ambiguous_response_closes_both_connections() {
    for bad in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\rB: c\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "SSH-2.0-x\r\n\r\n",
    ] {
        let outcome = check(&[app(GET), up(bad)], &Script::default());
        assert_eq!(outcome.app_text(), "", "{bad:?}");
        assert_eq!((outcome.app, outcome.upstream), (Fate::Close, Fate::Close), "{bad:?}");
        assert!(outcome.logged("closed 1 ByUpstream"), "{bad:?}: {:?}", outcome.log);
        assert!(!outcome.log.iter().any(|l| l.starts_with("stamp 1 Response")));
    }
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    let outcome = check(&[app(GET), up([cut, "x\r\n"].concat())], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (cut, Fate::Close));
}

#[test]
fn what_nobody_asked_for_passes_and_ends_the_link() {
    let timeout = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n";
    let outcome = check(&[up(timeout), Step::UpEnd(PeerEnd::Eof)], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (timeout, Fate::Fin));
    assert_eq!(outcome.log, Vec::<String>::new());
    // It is about the request that did not come to its end, and arrives in pieces as well.
    let (head, line) = timeout.split_at(20);
    let outcome =
        check(&[app("GET / HTTP/1.1\r\n"), up(head), up(line), Step::UpEnd(PeerEnd::Eof)], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (timeout, Fate::Fin));
    assert_eq!(outcome.upstream_text(), "");
    let outcome = check(&[app(GET), up([OK, OK].concat()), app(GET)], &Script::default());
    assert_eq!(outcome.app_text(), [OK, OK].concat());
    assert_eq!(outcome.upstream_text(), GET);
    assert_eq!((outcome.app, outcome.upstream), (Fate::Close, Fate::Close));
}
