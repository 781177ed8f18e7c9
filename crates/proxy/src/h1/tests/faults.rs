//! Faults, parking and withholding at every interception point.

use super::*;
use crate::h1::{MAX_DRAIN, MAX_KEPT};

const MADE: &str = "HTTP/1.1 503 Service Unavailable\r\nx-made: yes\r\ncontent-length: 2\r\n\r\nno";
const MADE_CLOSE: &str =
    "HTTP/1.1 503 Service Unavailable\r\nx-made: yes\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";

fn act(point: Point, act: Act) -> Script {
    Script::default().at(1, point, Verdict::Act(act))
}

fn park(point: Point) -> Script {
    Script::default().at(1, point, Verdict::Park)
}

fn pass(stream: u64) -> Step {
    Step::Resume(stream, Resume::Pass)
}

#[test]
fn each_fault_at_each_point_does_what_it_says() {
    struct Row {
        point: Point,
        act: Act,
        withheld: bool,
        /// Whether the upstream got the request.
        sent: bool,
        to_app: String,
        fates: (Fate, Fate),
        last: &'static str,
    }
    let no = || made(503, "no");
    let row = |point, act, withheld, to_app: &str, fates, last| Row {
        point,
        act,
        withheld,
        sent: point != Point::Request,
        to_app: to_app.into(),
        fates,
        last,
    };
    let open = (Fate::Open, Fate::Open);
    let cut = &OK[..OK.len() - 1];
    let rows = [
        row(Point::Request, Act::Drop, false, "", open, "request 1"),
        row(Point::Request, RESET, false, "", (Fate::Reset, Fate::Close), "closed 1 ByFault"),
        row(Point::Request, no(), false, MADE, open, "closed 1 Complete"),
        row(Point::Response, Act::Drop, false, "", open, "response 1"),
        row(Point::Response, RESET, false, "", (Fate::Reset, Fate::Linger), "closed 1 ByFault"),
        row(Point::Response, no(), false, MADE, open, "closed 1 Complete"),
        row(Point::End, Act::Drop, false, cut, open, "end 1"),
        row(Point::End, RESET, false, cut, (Fate::Reset, Fate::Linger), "closed 1 ByFault"),
        row(Point::End, no(), false, OK, open, "closed 1 Complete"),
        row(Point::End, Act::Drop, true, "", open, "end 1"),
        row(Point::End, RESET, true, "", (Fate::Reset, Fate::Linger), "closed 1 ByFault"),
        row(Point::End, no(), true, MADE, open, "closed 1 Complete"),
    ];
    for row in rows {
        for parked in [false, true] {
            let mut script = match parked {
                false => act(row.point, row.act.clone()),
                true => park(row.point),
            };
            if row.withheld {
                script = script.at(1, Point::Response, Verdict::Withhold { limit: 100 });
            }
            let mut steps = vec![app(POST), up(OK)];
            if row.point == Point::Request {
                steps.pop();
            }
            if parked {
                steps.push(Step::Resume(1, Resume::Act(row.act.clone())));
            }
            let outcome = check(&steps, &script);
            let what = format!("{:?} at {:?}, withheld {}, parked {parked}", row.act, row.point, row.withheld);
            assert_eq!(outcome.upstream_text(), if row.sent { POST } else { "" }, "{what}");
            assert_eq!(outcome.app_text(), row.to_app, "{what}");
            assert_eq!((outcome.app, outcome.upstream), row.fates, "{what}");
            let last = outcome.log.last().expect("calls");
            assert!(last.starts_with(row.last), "{what}: {:?}", outcome.log);
            let late = row.point == Point::End && !row.withheld && matches!(row.act, Act::Answer(_));
            assert_eq!(outcome.logged("refused 1 TooLate"), late, "{what}");
            // A part that a fault replaced is never stamped.
            let stamped = outcome.log.iter().filter(|l| l.starts_with("stamp 1 Response")).count();
            let left = if late { 2 } else { usize::from(row.point == Point::End && !row.withheld) };
            assert_eq!(stamped, left, "{what}: {:?}", outcome.log);
            // The link is usable, or nothing of a dropped exchange follows it.
            if outcome.open.is_empty() && row.fates == open {
                let more = check(&[steps.clone(), vec![app(GET), up(OK)]].concat(), &script);
                assert!(more.upstream_text().ends_with(GET) && more.app_text().ends_with(OK), "{what}");
            } else {
                let more = play(&[steps.clone(), vec![app(GET)]].concat(), script);
                assert_eq!(more.upstream_text(), outcome.upstream_text(), "{what}");
            }
        }
    }
}

#[test]
fn a_dropped_exchange_ends_when_somebody_closes() {
    for point in [Point::Request, Point::Response, Point::End] {
        let mut steps = vec![app(GET)];
        if point != Point::Request {
            steps.push(up(OK));
        }
        for (end, fates, closed) in [
            (Step::AppEnd(PeerEnd::Eof), (Fate::Close, Fate::Close), "ByApplication"),
            (Step::AppEnd(PeerEnd::Broken), (Fate::Close, Fate::Reset), "ByApplication"),
            (Step::Resume(1, Resume::Close), (Fate::Linger, Fate::Close), "ByFault"),
        ] {
            let outcome = check(&[steps.clone(), vec![end]].concat(), &act(point, Act::Drop));
            assert_eq!((outcome.app, outcome.upstream), fates, "{point:?}");
            assert_eq!(outcome.log.last(), Some(&format!("closed 1 {closed}")), "{point:?}");
        }
        // The application must not notice that the upstream has closed.
        let steps = [steps, vec![Step::UpEnd(PeerEnd::Eof), Step::Resume(1, Resume::Pass)]].concat();
        let outcome = check(&steps, &act(point, Act::Drop));
        assert_eq!((outcome.app, outcome.upstream), (Fate::Open, Fate::Close), "{point:?}");
        assert_eq!(outcome.open, [1]);
    }
}

#[test]
fn nothing_is_read_from_an_application_whose_request_was_dropped() {
    let mut link = Link::new();
    let mut script = act(Point::Request, Act::Drop);
    link.app_bytes(POST.as_bytes(), &mut script);
    assert!(!link.wants_app());
    assert!(link.minds_close());
    assert!(link.wants_upstream());
}

#[test]
fn a_made_answer_keeps_the_connection_only_if_the_request_can_be_read() {
    let script = act(Point::Request, made(503, "no"));
    // Answered when the body has been read.
    let (head, body) = POST.split_at(POST.len() - 3);
    assert_eq!(check(&[app(head), app(&body[..2])], &script).app_text(), "");
    assert_eq!(check(&[app(head), app(body)], &script).app_text(), MADE);
    // Answered at once, and closed.
    for request in [
        head.replace("Content-Length", "Expect: 100-continue\r\nContent-Length"),
        head.replace(": 3", &format!(": {}", MAX_DRAIN + 1)),
        head.replace("Content-Length: 3", "Transfer-Encoding: chunked"),
    ] {
        let outcome = check(&[app(&request)], &script);
        assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger), "{request}");
        assert_eq!((outcome.upstream_text().as_str(), outcome.upstream), ("", Fate::Linger));
    }
    // Either side said close.
    for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n"] {
        let outcome = check(&[app(request)], &script);
        assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger), "{request}");
    }
    let head = check(&[app(GET.replace("GET", "HEAD"))], &script);
    assert_eq!(head.app_text(), MADE.strip_suffix("no").expect("a body"));
}

#[test]
fn a_made_answer_keeps_the_connection_only_if_the_response_can_be_drained() {
    let script = act(Point::Response, made(503, "no"));
    let head = |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
    // What follows a drained response is the next one.
    for response in [OK, CHUNKED] {
        let outcome = check(&[app(GET), up(response), app(GET), up(OK)], &script);
        assert_eq!(outcome.app_text(), [MADE, OK].concat());
        assert_eq!((outcome.app, outcome.upstream), (Fate::Open, Fate::Open));
    }
    // No request is taken before the rest is drained.
    let (first, rest) = CHUNKED.split_at(CHUNKED.len() - 5);
    let outcome = check(&[app(GET), up(first), app(GET)], &script);
    assert_eq!((outcome.app_text().as_str(), outcome.upstream_text().as_str()), (MADE, GET));
    let outcome = check(&[app(GET), up(first), app(GET), up(rest), up(OK)], &script);
    assert_eq!(outcome.app_text(), [MADE, OK].concat());
    for lines in [
        format!("Content-Length: {}\r\n", MAX_DRAIN + 1),
        "Content-Length: 3\r\nConnection: close\r\n".into(),
        String::new(),
    ] {
        let outcome = check(&[app(GET), up(head(&lines)), up("x")], &script);
        assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger), "{lines}");
        assert_eq!(outcome.upstream, Fate::Linger);
    }
    // The request's body is still under way.
    let outcome = check(&[app(&POST[..POST.len() - 1]), up(OK)], &script);
    assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger));
    // Chunks without end.
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let chunks = (0..17).map(|_| up(&chunk));
    let steps: Vec<_> =
        [app(GET), up(head("Transfer-Encoding: chunked\r\n"))].into_iter().chain(chunks.clone()).collect();
    let outcome = play(&steps, script.clone());
    assert_eq!((outcome.app_text().as_str(), outcome.app, outcome.upstream), (MADE, Fate::Linger, Fate::Close));
    let outcome = play(&steps, act(Point::Response, Act::Drop));
    assert_eq!((outcome.app_text().as_str(), outcome.app, outcome.upstream), ("", Fate::Open, Fate::Close));
}

#[test]
fn faults_that_would_hit_another_request_are_refused() {
    let pair = [GET, POST].concat();
    let no = || made(503, "no");
    // The second of two, and the first of two that came together.
    for stream in [1, 2] {
        for fault in [Act::Drop, RESET] {
            let script = Script::default().at(stream, Point::Request, Verdict::Act(fault));
            let outcome = play(&[app(&pair), up([OK, OK].concat())], script);
            assert!(outcome.logged(&format!("refused {stream} Pipelined")), "{:?}", outcome.log);
            assert_eq!((outcome.upstream_text(), outcome.app_text()), (pair.clone(), [OK, OK].concat()));
        }
        // An answer that does not end the connection takes its place in the queue.
        let script = Script::default().at(stream, Point::Request, Verdict::Act(no()));
        let outcome = check(&[app(&pair), up(OK)], &script);
        let expected = if stream == 1 { [MADE, OK].concat() } else { [OK, MADE].concat() };
        assert_eq!((outcome.app_text(), outcome.app), (expected, Fate::Open));
        assert_eq!(outcome.upstream_text(), if stream == 1 { POST } else { GET });
    }
    // One that must end it does not act.
    let last = GET.replace("Host", "Connection: close\r\nHost");
    let script = Script::default().at(2, Point::Request, Verdict::Act(no()));
    let outcome = check(&[app([GET, &last].concat()), up([OK, OK].concat())], &script);
    assert!(outcome.logged("refused 2 Pipelined"));
    assert_eq!(outcome.app_text(), [OK, OK].concat());
}

#[test]
fn faults_at_a_response_are_refused_if_another_request_waits() {
    let pair = [GET, GET].concat();
    for point in [Point::Response, Point::End] {
        for fault in [Act::Drop, RESET] {
            let outcome = check(&[app(&pair), up([OK, OK].concat())], &act(point, fault));
            assert!(outcome.logged("refused 1 Pipelined"));
            assert_eq!(outcome.app_text(), [OK, OK].concat());
        }
    }
    let script = act(Point::Response, made(503, "no"));
    let outcome = check(&[app(&pair), up([OK, OK].concat())], &script);
    assert_eq!((outcome.app_text(), outcome.app), ([MADE, OK].concat(), Fate::Open));
    for response in [CHUNKED.to_string(), OK.replace("OK\r\n", "OK\r\nConnection: close\r\n")] {
        let outcome = check(&[app(&pair), up(&response)], &script);
        assert!(outcome.logged("refused 1 Pipelined"));
        assert_eq!(outcome.app_text(), response);
    }
    // The last of several may be hit.
    let script = Script::default().at(2, Point::Response, Verdict::Act(RESET));
    let outcome = check(&[app(&pair), up([OK, OK].concat())], &script);
    assert_eq!((outcome.app_text().as_str(), outcome.app), (OK, Fate::Reset));
}

#[test]
fn a_parked_request_leaves_with_the_stamp_of_its_release() {
    let script = park(Point::Request);
    let waiting = check(&[app([POST, GET].concat())], &script);
    assert_eq!((waiting.upstream_text().as_str(), waiting.log.len()), ("", 1));
    let outcome = check(&[app([POST, GET].concat()), pass(1), up([OK, OK].concat())], &script);
    assert_eq!((outcome.upstream_text(), outcome.app_text()), ([POST, GET].concat(), [OK, OK].concat()));
    assert_eq!(outcome.log[1], "stamp 1 Request");
    assert!(outcome.log[4].starts_with("request 2"), "later requests wait behind: {:?}", outcome.log);
    // A second resume, one for somebody else and a close find nothing to do.
    let steps = [app(GET), Step::Resume(1, Resume::Close), pass(7), pass(1), pass(1), up(OK), pass(1)];
    let again = check(&steps, &script);
    assert_eq!((again.upstream_text().as_str(), again.app_text().as_str()), (GET, OK));
}

#[test]
fn a_parked_response_leaves_as_it_came() {
    for response in [OK, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n"] {
        for point in [Point::Response, Point::End] {
            let steps = [app([GET, GET].concat()), up([response, OK].concat())];
            if point == Point::End && response.contains("204") {
                continue;
            }
            let waiting = check(&steps, &park(point));
            assert!(!waiting.app_text().contains(OK) || response == OK);
            assert!(waiting.app_text().len() < response.len());
            let outcome = check(&[&steps[..], &[pass(1)]].concat(), &park(point));
            assert_eq!(outcome.app_text(), [response, OK].concat(), "{point:?}");
        }
    }
}

#[test]
fn a_withheld_response_is_kept_back_until_its_end() {
    let script = |limit| Script::default().at(1, Point::Response, Verdict::Withhold { limit });
    for response in [OK, CHUNKED] {
        let begun = check(&[app(GET), up(&response[..response.len() - 1])], &script(2));
        assert_eq!(begun.app_text(), "");
        let outcome = check(&[app(GET), up(response)], &script(2));
        assert_eq!(outcome.app_text(), response);
        let calls: Vec<_> = outcome.log.iter().map(|l| l.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(calls, ["request", "stamp", "response", "end", "stamp", "stamp", "closed"]);
        let outcome = check(&[app(GET), up(response)], &script(1));
        assert_eq!(outcome.app_text(), response);
        assert!(outcome.logged("refused 1 Size"));
        let calls: Vec<_> = outcome.log.iter().map(|l| l.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(calls, ["request", "stamp", "response", "refused", "stamp", "end", "stamp", "closed"]);
    }
    let bare = "HTTP/1.1 200 OK\r\n\r\nbody";
    let outcome = check(&[app(GET), up(bare), Step::UpEnd(PeerEnd::Eof)], &script(4));
    assert_eq!((outcome.app_text().as_str(), outcome.app), (bare, Fate::Fin));
    assert!(outcome.logged("closed 1 Complete"));
    let outcome =
        check(&[app(GET), up(bare), Step::UpEnd(PeerEnd::Eof), pass(1)], &script(4).at(1, Point::End, Verdict::Park));
    assert_eq!((outcome.app_text().as_str(), outcome.app), (bare, Fate::Fin));
    // Withheld and cut short: what came is passed.
    let outcome = check(&[app(GET), up(&CHUNKED[..CHUNKED.len() - 12]), Step::UpEnd(PeerEnd::Broken)], &script(4));
    assert_eq!((outcome.app_text().as_str(), outcome.app), (&CHUNKED[..CHUNKED.len() - 12], Fate::Reset));
    // From elsewhere, or without a body, it means to pass.
    let everywhere = Script::default().at(1, Point::Request, Verdict::Withhold { limit: 0 }).at(
        1,
        Point::End,
        Verdict::Withhold { limit: 0 },
    );
    assert_eq!(check(&[app(POST), up(OK)], &everywhere).app_text(), OK);
    let empty = "HTTP/1.1 204 No Content\r\n\r\n";
    assert_eq!(check(&[app(GET), up(empty)], &script(0)).app_text(), empty);
}

#[test]
fn chunks_of_one_byte_do_not_get_around_the_limit() {
    let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 100_000 });
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(4000));
    let outcome = play(&[app(GET), up([head, &chunk.repeat(70)].concat())], script);
    assert!(outcome.logged("refused 1 Size"));
    assert_eq!(outcome.app_text(), [head, &chunk.repeat(70)].concat());
}

#[test]
fn an_application_that_closes_while_it_is_kept_waiting_has_given_up() {
    let eof = Step::AppEnd(PeerEnd::Eof);
    for (steps, point) in [
        (vec![app(POST)], Point::Request),
        (vec![app(GET), up(OK)], Point::Response),
        (vec![app(GET), up(OK)], Point::End),
    ] {
        let outcome = check(&[steps, vec![eof.clone(), pass(1)]].concat(), &park(point));
        assert_eq!((outcome.app, outcome.upstream), (Fate::Close, Fate::Close), "{point:?}");
        assert_eq!(outcome.log.last().map(String::as_str), Some("closed 1 ByApplication"));
    }
    // Half-closed before anything was parked: it may still be waiting.
    let steps = [app(GET), eof.clone(), up(OK), pass(1)];
    assert_eq!(check(&steps, &park(Point::Response)).app_text(), OK);
    // The request in flight before a parked one is still answered.
    let script = Script::default().at(2, Point::Request, Verdict::Park);
    let outcome = check(&[app([GET, GET].concat()), eof, pass(2), up(OK)], &script);
    assert_eq!((outcome.app_text().as_str(), outcome.upstream_text().as_str()), (OK, GET));
    assert!(outcome.logged("closed 2 ByApplication") && outcome.logged("closed 1 Complete"));
}

#[test]
fn the_upstreams_end_waits_behind_what_is_parked() {
    for (how, fate) in [(PeerEnd::Eof, Fate::Fin), (PeerEnd::Broken, Fate::Reset)] {
        let steps = [app(GET), up(OK), Step::UpEnd(how)];
        let waiting = check(&steps, &park(Point::Response));
        assert_eq!((waiting.app_text().as_str(), waiting.app), ("", Fate::Open));
        let outcome = check(&[&steps[..], &[pass(1)]].concat(), &park(Point::Response));
        assert_eq!((outcome.app_text().as_str(), outcome.app), (OK, fate));
        assert!(outcome.logged("closed 1 Complete"));
        // A parked request finds nobody when it is released.
        let outcome = check(&[app(GET), Step::UpEnd(how), pass(1)], &park(Point::Request));
        assert_eq!((outcome.upstream_text().as_str(), outcome.app), ("", Fate::Reset));
        assert!(outcome.logged("closed 1 ByUpstream"));
        let answered = Step::Resume(1, Resume::Act(made(503, "no")));
        let outcome = check(&[app(GET), Step::UpEnd(how), answered], &park(Point::Request));
        assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger));
    }
}

#[test]
fn what_is_parked_is_bounded() {
    let mut link = Link::new();
    let mut script = park(Point::Request).at(2, Point::Response, Verdict::Park);
    let long = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 10 * MAX_KEPT);
    link.app_bytes(long.as_bytes(), &mut script);
    let mut sent = 0;
    while link.wants_app() {
        link.app_bytes(&[b'x'; 1000], &mut script);
        sent += 1000;
    }
    assert!((MAX_KEPT..MAX_KEPT + 2000).contains(&sent), "{sent}");
    assert!(link.minds_close());
    link.resume(StreamId(1), Resume::Pass, &mut script);
    assert!(link.wants_app());
    assert_eq!(link.output().to_upstream.len(), long.len() + sent);

    let mut link = Link::new();
    let mut script = park(Point::Response);
    link.app_bytes(GET.as_bytes(), &mut script);
    link.upstream_bytes(b"HTTP/1.1 200 OK\r\n\r\n", &mut script);
    let mut sent = 0;
    while link.wants_upstream() {
        link.upstream_bytes(&[b'x'; 1000], &mut script);
        sent += 1000;
    }
    assert!((MAX_KEPT..MAX_KEPT + 2000).contains(&sent), "{sent}");
}

#[test]
fn a_fault_instead_of_an_opened_tunnel_ends_the_connection() {
    let connect = "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n";
    let opened = "HTTP/1.1 200 OK\r\n\r\n";
    let script = act(Point::Response, made(503, "no"));
    let outcome = check(&[app(connect), up(opened)], &script);
    assert_eq!((outcome.app_text().as_str(), outcome.app), (MADE_CLOSE, Fate::Linger));
    // An answer instead of the request: what follows is HTTP.
    let script = act(Point::Request, made(503, "no"));
    let outcome = check(&[app([connect, GET].concat()), up(OK)], &script);
    assert_eq!((outcome.app_text(), outcome.upstream_text().as_str()), ([MADE, OK].concat(), GET));
    // Parked, then passed: the tunnel opens then.
    let outcome =
        check(&[app([connect, "\x16"].concat()), up([opened, "\x17"].concat()), pass(1)], &park(Point::Response));
    assert_eq!((outcome.app_text(), outcome.upstream_text()), ([opened, "\x17"].concat(), [connect, "\x16"].concat()));
}
