//! A graceful end: the last response says that the connection closes, and nothing that was asked stays unanswered.

use super::*;

const CLOSING: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nconnection: close\r\n\r\nok";

#[test]
fn a_response_under_way_says_that_it_is_the_last() {
    let outcome = check(&[app(GET), Step::Drain, up(OK)], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app, outcome.upstream), (CLOSING, Fate::Linger, Fate::Linger));
    assert!(outcome.logged("closed 1 Complete"));
    let chunked = check(&[app(GET), Step::Drain, up(CHUNKED)], &Script::default());
    assert_eq!(chunked.app_text(), CHUNKED.replace("chunked\r\n", "chunked\r\nconnection: close\r\n"));
    assert_eq!(chunked.app, Fate::Linger);
    // Kept back or parked, it says so when it leaves.
    for verdict in [Verdict::Withhold { limit: 10 }, Verdict::Park] {
        let script = Script::default().at(1, Point::Response, verdict);
        let outcome = check(&[app(GET), up(OK), Step::Drain, Step::Resume(1, Resume::Pass)], &script);
        let kept = script.verdicts[&(1, Point::Response)] == Verdict::Park;
        let expected = if kept { CLOSING } else { OK };
        assert_eq!(outcome.app_text(), expected);
    }
    let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 10 });
    assert_eq!(check(&[app(GET), Step::Drain, up(OK)], &script).app_text(), CLOSING);
}

#[test]
fn an_idle_connection_answers_once_more() {
    let outcome = check(&[app(GET), up(OK), Step::Drain, app(GET), up(OK), app(GET)], &Script::default());
    assert_eq!((outcome.app_text(), outcome.app), ([OK, CLOSING].concat(), Fate::Linger));
    assert_eq!(outcome.upstream_text(), GET.repeat(2));
    // Its head had left: the next one can still say it.
    let (begun, rest) = OK.split_at(OK.len() - 1);
    let outcome = check(&[app(GET), up(begun), Step::Drain, up(rest), app(GET), up(OK)], &Script::default());
    assert_eq!((outcome.app_text(), outcome.app), ([OK, CLOSING].concat(), Fate::Linger));
}

#[test]
fn of_pipelined_requests_the_last_is_told() {
    let two = [GET, GET].concat();
    let outcome = check(&[app(two), Step::Drain, app(GET), up(OK), up(OK)], &Script::default());
    assert_eq!((outcome.app_text(), outcome.app), ([OK, CLOSING].concat(), Fate::Linger));
    // The third was not taken, as its client can tell from the second's `close` (RFC 9112 section 9.6).
    assert_eq!(outcome.upstream_text(), GET.repeat(2));
}

#[test]
fn other_options_of_the_connection_stay() {
    for (line, expected) in [
        ("Connection: keep-alive\r\n", "Connection: close\r\n"),
        ("Connection: X-Hop, Keep-Alive\r\nconnection: y\r\n", "Connection: X-Hop, y, close\r\n"),
        ("Connection: CLOSE\r\n", "Connection: CLOSE\r\n"),
    ] {
        let response = |line: &str| format!("HTTP/1.1 200 OK\r\n{line}Content-Length: 2\r\n\r\nok");
        let outcome = check(&[app(GET), Step::Drain, up(response(line))], &Script::default());
        assert_eq!((outcome.app_text(), outcome.app), (response(expected), Fate::Linger));
    }
}

#[test]
fn what_ends_otherwise_is_left_as_it_is() {
    let until_close = "HTTP/1.1 200 OK\r\n\r\nall";
    let outcome = check(&[app(GET), Step::Drain, up(until_close), Step::UpEnd(PeerEnd::Eof)], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (until_close, Fate::Fin));
    let upgrade = "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let switch = "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbytes";
    let outcome = check(&[app(upgrade), Step::Drain, up(switch), app("more")], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (switch, Fate::Open));
    assert_eq!(outcome.upstream_text(), [upgrade, "more"].concat());
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let outcome = check(&[app(GET), Step::Drain, up([interim, OK].concat())], &Script::default());
    assert_eq!(outcome.app_text(), [interim, CLOSING].concat());
}

#[test]
fn an_answer_made_here_is_the_last_too() {
    let script = Script::default().at(1, Point::Request, Verdict::Act(made(503, "no")));
    let outcome = check(&[Step::Drain, app(GET), app(GET)], &script);
    assert!(outcome.app_text().contains("connection: close\r\n"), "{}", outcome.app_text());
    assert_eq!((outcome.app, outcome.log.iter().filter(|l| l.starts_with("request")).count()), (Fate::Linger, 1));
}
