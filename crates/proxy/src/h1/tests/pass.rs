//! Nothing is asked for: every byte passes.

use super::*;

/// Both directions must come out as they went in, whatever was cut where; each request is answered and closed.
fn passes(steps: &[Step], exchanges: u64) -> Outcome {
    let outcome = check(steps, &Script::default());
    let of = |app: bool| -> String {
        let bytes = steps.iter().flat_map(|step| match step {
            Step::App(bytes) if app => bytes.clone(),
            Step::Up(bytes) if !app => bytes.clone(),
            _ => Vec::new(),
        });
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    };
    assert_eq!(outcome.upstream_text(), of(true));
    assert_eq!(outcome.app_text(), of(false));
    for id in 1..=exchanges {
        assert!(outcome.logged(&format!("closed {id} Complete")), "{:?}", outcome.log);
    }
    assert_eq!(outcome.open, Vec::<u64>::new());
    outcome
}

fn stays(steps: &[Step], exchanges: u64) -> Outcome {
    let outcome = passes(steps, exchanges);
    assert_eq!((outcome.app, outcome.upstream), (Fate::Open, Fate::Open));
    outcome
}

#[test]
fn a_request_and_its_response_pass_and_are_called_in_order() {
    let outcome = stays(&[app(POST), up(OK)], 1);
    assert_eq!(
        outcome.log,
        [
            "request 1 POST /p @h [Host=h&Content-Length=3]",
            "stamp 1 Request",
            "request-end 1 -",
            "stamp 1 RequestEnd",
            "response 1 200 [Content-Length=2]",
            "stamp 1 Response",
            "end 1 -",
            "stamp 1 ResponseEnd",
            "closed 1 Complete",
        ]
    );
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    for head in [
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ] {
        let outcome = stays(&[app(GET), up(head), app(GET), up(OK)], 2);
        assert!(outcome.log.iter().any(|l| l.starts_with("response 1") && l.ends_with(" ends")), "{:?}", outcome.log);
        assert!(!outcome.log.iter().any(|l| l.starts_with("end 1")));
    }
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked", "X: y"] {
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        stays(&[app(GET.replace("GET", "HEAD")), up(head), app(GET), up(OK)], 2);
    }
}

#[test]
fn chunks_extensions_and_trailers_pass_as_they_came() {
    let request = "PUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n\
                   05;ext=\"q\"\r\nhello\r\nA\r\n0123456789\r\n000;last\r\nX-Sum: 1\r\n\r\n";
    let response =
        "HTTP/1.1 200 OK\r\ntransfer-encoding:  CHUNKED \r\n\r\n1\r\na\r\n2 \r\nbc\r\n0\r\nTr: 1\r\nTR:2\r\n\r\n";
    let outcome = stays(&[app(request), up(response), app(GET), up(OK)], 2);
    assert!(outcome.logged("end 1 Tr=1&TR=2"));
}

#[test]
fn odd_but_clear_heads_keep_every_byte() {
    let request = "GET http://h:80/x?y HTTP/1.1\r\nHOST:other\r\nx-Empty:\r\nA:\t v \t\r\nA: w\r\nConnection: a, Keep-Alive\r\n\r\n";
    let response = "HTTP/1.1 299 \r\nServer: \u{e9}\r\nConnection: aft-hop\r\nContent-Length: 2, 2\r\n\r\nok";
    let outcome = stays(&[app(request), up(response)], 1);
    assert!(outcome.log[0].starts_with("request 1 GET /x?y @h:80 [HOST=other&x-Empty=&A=v&A=w"), "{}", outcome.log[0]);
}

#[test]
fn informational_responses_pass_and_are_no_event() {
    let request = "POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let steps = [app(request), up("HTTP/1.1 100 Continue\r\n\r\n"), app("abc"), up(early), up(OK), app(GET), up(OK)];
    let outcome = stays(&steps, 2);
    assert_eq!(outcome.log.iter().filter(|l| l.starts_with("response 1")).count(), 1);
}

#[test]
fn a_final_answer_may_come_before_the_body() {
    let request = "POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let refusal = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n";
    stays(&[app(request), up(refusal), app("abc"), app(GET), up(OK)], 2);
}

#[test]
fn pipelined_requests_are_matched_in_order() {
    let steps = [app([GET, POST, GET].concat()), up([OK, CHUNKED, OK].concat())];
    let outcome = stays(&steps, 3);
    let closed: Vec<_> = outcome.log.iter().filter(|l| l.starts_with("closed")).collect();
    assert_eq!(closed, ["closed 1 Complete", "closed 2 Complete", "closed 3 Complete"]);
}

#[test]
fn a_body_that_ends_with_the_connection_ends_there() {
    for request in [GET, "GET /a HTTP/1.0\r\n\r\n"] {
        let steps = [app(request), up("HTTP/1.1 200 OK\r\n\r\nsome"), up("more"), Step::UpEnd(PeerEnd::Eof)];
        let outcome = passes(&steps, 1);
        assert_eq!(outcome.app, Fate::Fin);
        assert!(outcome.logged("end 1 -"));
    }
}

#[test]
fn an_upgrade_is_a_tunnel_only_after_the_101() {
    let request = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x02frame\r\n\r\n";
    let ends = [Step::AppEnd(PeerEnd::Eof), Step::UpEnd(PeerEnd::Eof)];
    // Frames before the 101, in its packet, and after it.
    let steps =
        [vec![app([request, "\x01early\n"].concat()), up(switch), app("\x01late\n"), up("\0")], ends.to_vec()].concat();
    let outcome = passes(&steps, 1);
    assert!(!outcome.log.iter().any(|l| l.starts_with("response")));
    assert_eq!((outcome.app, outcome.upstream), (Fate::Fin, Fate::Fin));

    let before = play(&steps[..1], Script::default());
    assert_eq!(before.upstream_text(), request, "nothing behind the request leaves before its answer");
}

#[test]
fn a_refused_upgrade_is_followed_by_requests() {
    let request = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for refusal in ["HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno", OK, CHUNKED] {
        stays(&[app([request, GET].concat()), up(refusal), up(OK)], 2);
    }
}

#[test]
fn only_an_upgrade_to_h2c_makes_a_link_opaque() {
    for (protocol, opaque) in [("h2c", true), ("websocket", false)] {
        let mut link = Link::new();
        let mut script = Script::default();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: {protocol}\r\n\r\n");
        link.app_bytes(request.as_bytes(), &mut script);
        assert!(!link.opaque());
        link.upstream_bytes(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", &mut script);
        assert_eq!(link.opaque(), opaque, "{protocol}");
    }
}

#[test]
fn connect_is_a_tunnel_after_a_2xx_only() {
    let connect = "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n";
    let ends = [Step::UpEnd(PeerEnd::Eof), Step::AppEnd(PeerEnd::Eof)];
    let opened = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n\x16\x03";
    let outcome = passes(&[vec![app(connect), up(opened), app("\x16\x01"), up("tail")], ends.to_vec()].concat(), 1);
    assert!(outcome.logged("response 1 200 [Content-Length=7] ends"));
    let refused = "HTTP/1.1 407 Who\r\nContent-Length: 2\r\n\r\nno";
    stays(&[app([connect, GET].concat()), up(refused), up(OK)], 2);
}

#[test]
fn stamps_touch_their_lines_and_nothing_else() {
    let script = Script::default().stamping(&[Edit::Set("aft", "new".into()), Edit::Remove("x-gone")]);
    let request = "GET /a HTTP/1.1\r\nHost: h\r\nAft: old\r\nX-Gone: 1\r\n\r\n";
    let outcome = check(&[app(request), up(CHUNKED)], &script);
    assert_eq!(outcome.upstream_text(), "GET /a HTTP/1.1\r\nHost: h\r\nAft: new\r\n\r\n");
    assert_eq!(
        outcome.app_text(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\naft: new\r\n\r\n2\r\nok\r\n0\r\nT: v\r\naft: new\r\n\r\n"
    );
    // Without trailers there is no place for what the end would carry.
    let bare = CHUNKED.replace("T: v\r\n", "");
    let outcome = check(&[app(GET), up(bare)], &script);
    assert!(outcome.logged("stamp 1 ResponseEnd"));
    assert!(outcome.app_text().ends_with("2\r\nok\r\n0\r\n\r\n"));
}

#[test]
fn empty_lines_before_a_request_and_behind_a_response_pass() {
    stays(&[app(["\r\n", GET].concat()), up([OK, "\r\n"].concat()), app(GET), up(OK)], 2);
}

#[test]
fn requests_beyond_the_queue_wait_and_are_not_lost() {
    let many = crate::h1::MAX_QUEUE * 2 + 3;
    let outcome = play(&[app(GET.repeat(many)), up(OK.repeat(many))], Script::default());
    assert_eq!(outcome.upstream_text().len(), GET.len() * crate::h1::MAX_QUEUE);
    let answers: Vec<_> = (0..many).map(|_| up(OK)).collect();
    let outcome = play(&[vec![app(GET.repeat(many))], answers].concat(), Script::default());
    assert_eq!(outcome.upstream_text(), GET.repeat(many));
    assert_eq!(outcome.app_text(), OK.repeat(many));
}
