//! Stops in mid-body, and the ends of requests.

use super::*;
use crate::exchange::Marks;
use crate::h1::MAX_DRAIN;

const GRPC: &str = "Content-Type: application/grpc\r\n";

/// Length-prefixed messages.
fn messages(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| [&[0, 0, 0, 0, text.len() as u8][..], text.as_bytes()].concat()).collect()
}

fn watch(marks: &[Mark], verdict: Verdict) -> Script {
    let watch = Verdict::Watch(Marks::from_slice(marks));
    Script::default().at(1, Point::Response, watch).at(1, Point::Mark, verdict)
}

/// The same body in each framing: by its length, in one chunk, in two, in chunks of a byte, up to the close.
fn framings(body: &[u8]) -> Vec<Vec<u8>> {
    let head = |framing: String| format!("HTTP/1.1 200 OK\r\n{GRPC}{framing}\r\n").into_bytes();
    let chunked = || head("Transfer-Encoding: chunked\r\n".into());
    let chunk = |part: &[u8]| [format!("{:x};x=y\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
    let chunks = |parts: Vec<&[u8]>| {
        let parts: Vec<_> = parts.into_iter().map(chunk).collect();
        [chunked(), parts.concat(), b"0\r\nT: v\r\n\r\n".to_vec()].concat()
    };
    vec![
        [head(format!("Content-Length: {}\r\n", body.len())), body.to_vec()].concat(),
        chunks(vec![body]),
        chunks(vec![&body[..9], &body[9..]]),
        chunks(body.chunks(1).collect()),
        [head(String::new()), body.to_vec()].concat(),
    ]
}

/// Bytes of a response up to the one before which a mark stands: those before `place` bytes of content, and the framing
/// between.
fn before(response: &[u8], place: usize) -> &[u8] {
    let start = response.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    let mut at = start;
    if !String::from_utf8_lossy(&response[..start]).contains("chunked") {
        return &response[..start + place];
    }
    let mut content = 0;
    loop {
        let line = response[at..].windows(2).position(|w| w == b"\r\n").expect("a size line") + 2;
        let text = String::from_utf8_lossy(&response[at..at + line]).into_owned();
        let size = usize::from_str_radix(text.split(';').next().expect("a size"), 16).expect("a size");
        at += line;
        if place < content + size {
            return &response[..at + place - content];
        }
        content += size;
        at += size + 2;
    }
}

#[test]
fn all_before_a_mark_is_handed_on_and_nothing_behind_it() {
    let body = messages(&["one", "", "three"]);
    let starts = [0, 8, 13];
    let marks = (1..5).map(Mark::Message).chain([0, 1, 8, 9, 22, 23, 30].map(Mark::Bytes));
    for mark in marks {
        let place = match mark {
            Mark::Message(n) => starts.get(n as usize - 1).copied(),
            Mark::Bytes(n) => Some(n as usize).filter(|n| *n < body.len()),
        };
        for response in framings(&body) {
            let steps = [app(GET), up(&response), Step::UpEnd(PeerEnd::Eof)];
            let script = watch(&[mark], Verdict::Park);
            let outcome = check(&steps, &script);
            assert_eq!(outcome.logged(&format!("reached 1 {mark:?}")), place.is_some(), "{mark:?}: {:?}", outcome.log);
            let expected = place.map_or(&response[..], |place| before(&response, place));
            assert_eq!(outcome.to_app.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{mark:?}");
            if place.is_some() {
                assert_eq!(outcome.log.last(), Some(&format!("reached 1 {mark:?}")), "the end waits");
            }
            let resumed = check(&[&steps[..], &[Step::Resume(1, Resume::Pass)]].concat(), &script);
            assert_eq!(resumed.to_app, response);
            let end = resumed.log.iter().rfind(|line| line.starts_with("end ")).expect("an end");
            assert!(end.ends_with(" messages=3"), "{end}");
            assert!(resumed.logged("closed 1 Complete"));
        }
    }
}

#[test]
fn several_marks_are_reached_in_the_order_of_the_body() {
    let body = messages(&["one", "two"]);
    let marks = [Mark::Bytes(8), Mark::Message(2), Mark::Bytes(15), Mark::Bytes(0), Mark::Bytes(16), Mark::Message(1)];
    for response in framings(&body) {
        let outcome = check(&[app(GET), up(&response), Step::UpEnd(PeerEnd::Eof)], &watch(&marks, Verdict::Pass));
        let reached: Vec<_> = outcome.log.iter().filter(|line| line.starts_with("reached")).collect();
        let expected =
            ["Bytes(0)", "Message(1)", "Bytes(8)", "Message(2)", "Bytes(15)"].map(|m| format!("reached 1 {m}"));
        assert_eq!(reached, expected.iter().collect::<Vec<_>>());
        assert_eq!(outcome.to_app, response);
    }
}

#[test]
fn faults_at_a_mark_cut_the_body_there() {
    let body = messages(&["one", "two"]);
    for parked in [false, true] {
        for (n, response) in framings(&body).into_iter().enumerate() {
            let until_close = n == 4;
            let play = |act: Act, more: &[Step]| {
                let verdict = if parked { Verdict::Park } else { Verdict::Act(act.clone()) };
                let mut steps = vec![app(GET), up(&response)];
                if parked {
                    steps.push(Step::Resume(1, Resume::Act(act)));
                }
                steps.extend_from_slice(more);
                check(&steps, &watch(&[Mark::Message(2)], verdict))
            };
            let cut = before(&response, 8);
            let outcome = play(RESET, &[]);
            assert_eq!((&outcome.to_app[..], outcome.app, outcome.upstream), (cut, Fate::Reset, Fate::Linger));
            assert_eq!(outcome.log.last().unwrap(), "closed 1 ByFault");
            // The rest is drained, and the exchange waits for somebody to end it.
            let outcome = play(Act::Drop, &[]);
            assert_eq!((&outcome.to_app[..], outcome.app, outcome.upstream), (cut, Fate::Open, Fate::Open));
            assert_eq!(outcome.open, [1]);
            let outcome = play(Act::Drop, &[up("HTTP/1.1 500 Nobody asked\r\n\r\n")]);
            let closed = if until_close { Fate::Open } else { Fate::Close };
            assert_eq!(
                (&outcome.to_app[..], outcome.upstream),
                (cut, closed),
                "what is drained ends with the response"
            );
            let outcome = play(Act::Drop, &[Step::UpEnd(PeerEnd::Eof), Step::Resume(1, Resume::Close)]);
            assert_eq!((&outcome.to_app[..], outcome.app, outcome.upstream), (cut, Fate::Linger, Fate::Close));
            assert_eq!(outcome.log.last().unwrap(), "closed 1 ByFault");
            // What has left cannot be replaced.
            let outcome = play(made(503, "no"), &[Step::UpEnd(PeerEnd::Eof)]);
            assert_eq!((&outcome.to_app[..], outcome.app), (&response[..], Fate::Fin));
            assert!(outcome.logged("refused 1 TooLate") && outcome.logged("closed 1 Complete"));
        }
    }
}

#[test]
fn a_fault_at_a_mark_does_not_hit_another_request() {
    for act in [Act::Drop, RESET] {
        let response = &framings(&messages(&["one", "two"]))[1];
        let steps = [app([GET, GET].concat()), up([&response[..], OK.as_bytes()].concat())];
        let outcome = check(&steps, &watch(&[Mark::Bytes(3)], Verdict::Act(act)));
        assert!(outcome.logged("refused 1 Pipelined"));
        assert_eq!(outcome.to_app, [&response[..], OK.as_bytes()].concat());
    }
}

#[test]
fn a_drop_in_mid_body_is_drained_to_a_limit() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nabc";
    let mut steps = vec![app(GET), up(head)];
    let piece = vec![b'x'; 64 * 1024];
    steps.extend((0..MAX_DRAIN as usize / piece.len() - 1).map(|_| up(&piece)));
    let script = watch(&[Mark::Bytes(2)], Verdict::Act(Act::Drop));
    let outcome = play(&steps, script.clone());
    assert_eq!((outcome.app, outcome.upstream), (Fate::Open, Fate::Open));
    steps.push(up(&piece));
    let outcome = play(&steps, script);
    assert_eq!((outcome.app, outcome.upstream), (Fate::Open, Fate::Close));
    assert_eq!(outcome.app_text(), &head[..head.len() - 1]);
}

#[test]
fn a_parked_body_is_not_read_and_its_caller_may_leave() {
    let mut link = Link::new();
    let mut script = watch(&[Mark::Bytes(1)], Verdict::Park);
    link.app_bytes(GET.as_bytes(), &mut script);
    link.upstream_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", &mut script);
    while link.wants_upstream() {
        link.upstream_bytes(&[b'x'; 1000], &mut script);
    }
    assert!(link.upstream.pending.len() <= crate::h1::MAX_KEPT + 1000);
    assert!(link.minds_close());
    link.app_end(PeerEnd::Eof, &mut script);
    assert_eq!(script.log.last().unwrap(), "closed 1 ByApplication");
    assert_eq!((link.output().app, link.output().upstream), (Fate::Close, Fate::Close));
}

#[test]
fn an_upstream_that_breaks_off_behind_a_mark_is_seen_behind_it() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcdef";
    for (how, fate) in [(PeerEnd::Eof, Fate::Fin), (PeerEnd::Broken, Fate::Reset)] {
        let steps = [app(GET), up(cut), Step::UpEnd(how)];
        let script = watch(&[Mark::Bytes(3)], Verdict::Park);
        let outcome = check(&steps, &script);
        assert_eq!((outcome.app_text().as_str(), outcome.app), (&cut[..cut.len() - 3], Fate::Open));
        let outcome = check(&[&steps[..], &[Step::Resume(1, Resume::Pass)]].concat(), &script);
        assert_eq!((outcome.app_text().as_str(), outcome.app), (cut, fate));
        assert_eq!(outcome.log.last().unwrap(), "closed 1 ByUpstream");
    }
}

#[test]
fn responses_without_a_body_have_no_marks() {
    let script = watch(&[Mark::Bytes(0), Mark::Message(1)], Verdict::Act(RESET));
    let empty = format!("HTTP/1.1 200 OK\r\n{GRPC}Content-Length: 0\r\n\r\n");
    let chunked = format!("HTTP/1.1 200 OK\r\n{GRPC}Transfer-Encoding: chunked\r\n\r\n");
    for (request, response) in [
        (GET.replace("GET", "HEAD"), empty.replace(": 0", ": 9")),
        (GET.into(), empty.replace("200 OK", "204 No")),
        (GET.into(), empty.replace("200 OK", "304 Not").replace(": 0", ": 9")),
        (GET.into(), empty),
        (GET.into(), chunked.clone() + "0\r\n\r\n"),
    ] {
        let outcome = check(&[app(&request), up(&response), app(GET), up(OK)], &script);
        assert_eq!(outcome.app_text(), [&response, OK].concat());
        assert!(!outcome.log.iter().any(|line| line.starts_with("reached")));
    }
    let late = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 9 });
    let outcome = check(&[app(GET), up(chunked + "0\r\n\r\n")], &late);
    assert!(outcome.logged("end 1 - messages=0 body="), "{:?}", outcome.log);
}

#[test]
fn a_withheld_body_is_shown_whole_without_its_framing() {
    let body = b"hello \xff world";
    for response in framings(body) {
        let response = String::from_utf8_lossy(&response).replace(GRPC, "").replace('\u{fffd}', "f");
        let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 100 });
        let outcome = check(&[app(GET), up(&response), Step::UpEnd(PeerEnd::Eof)], &script);
        let end = outcome.log.iter().find(|line| line.starts_with("end ")).expect("an end");
        assert!(end.ends_with(" body=hello f world"), "{end}: {response}");
        assert_eq!(outcome.app_text(), response);
    }
}

#[test]
fn a_withheld_call_is_released_when_its_second_message_begins() {
    let two = messages(&["one", "two"]);
    for (limit, why) in [(100, "Stream"), (8, "Stream"), (7, "Size")] {
        for response in framings(&two) {
            if why == "Size" && String::from_utf8_lossy(&response).contains("Content-Length") {
                continue;
            }
            let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit }).at(
                1,
                Point::End,
                Verdict::Act(made(503, "")),
            );
            let outcome = check(&[app(GET), up(&response), Step::UpEnd(PeerEnd::Eof)], &script);
            assert_eq!(outcome.to_app, response);
            let refused: Vec<_> = outcome.log.iter().filter(|line| line.starts_with("refused")).collect();
            if limit == 8 && outcome.app_text().contains("Content-Length") {
                assert_eq!(refused, ["refused 1 Size", "refused 1 TooLate"], "its length says it all");
            } else {
                assert_eq!(refused, [&format!("refused 1 {why}"), "refused 1 TooLate"], "limit {limit}");
            }
            assert!(outcome.log.iter().any(|line| line.starts_with("end") && line.ends_with(" messages=2")));
        }
    }
    // One message is a unary call; its last byte may be the end of the body.
    let one = messages(&["nine byte"]);
    for response in framings(&one) {
        let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 100 });
        let outcome = check(&[app(GET), up(&response), Step::UpEnd(PeerEnd::Eof)], &script);
        assert!(outcome.log.iter().any(|line| line.contains(" messages=1 body=")), "{:?}", outcome.log);
        assert!(!outcome.log.iter().any(|line| line.starts_with("refused")));
    }
    // A second message of which only the first byte comes, which is the end.
    let cut = [&messages(&["one"])[..], &[0]].concat();
    for response in [&framings(&cut)[0], &framings(&[&cut[..], &[0]].concat())[1]] {
        let script = Script::default().at(1, Point::Response, Verdict::Withhold { limit: 100 });
        let outcome = check(&[app(GET), up(response)], &script);
        assert!(outcome.logged("refused 1 Stream"), "{:?}", outcome.log);
        assert_eq!(outcome.to_app, *response);
    }
}

#[test]
fn the_end_of_a_request_is_stamped_where_it_has_trailers() {
    let head = "POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let set = Edit::Set("aft", "e".into());
    let remove = Edit::Remove("t");
    for (end, edits, expected) in [
        ("0\r\n\r\n", vec![set.clone()], "0\r\n\r\n"),
        ("0;x\r\nT: v\r\n\r\n", vec![], "0;x\r\nT: v\r\n\r\n"),
        ("0;x\r\nT: v\r\n\r\n", vec![set.clone()], "0;x\r\nT: v\r\naft: e\r\n\r\n"),
        ("0\r\nT: v\r\n\r\n", vec![remove.clone()], "0\r\n\r\n"),
        ("00\r\nT: v\r\nU: w\r\n\r\n", vec![remove, set.clone()], "00\r\nU: w\r\naft: e\r\n\r\n"),
    ] {
        for parked in [false, true] {
            let mut script = Script { end_edits: edits.clone(), ..Script::default() };
            let mut steps = vec![app([head, "2\r\nab\r\n", end, GET].concat())];
            if parked {
                script = script.at(1, Point::Request, Verdict::Park);
                steps.push(Step::Resume(1, Resume::Pass));
            }
            let outcome = check(&steps, &script);
            assert_eq!(outcome.upstream_text(), [head, "2\r\nab\r\n", expected, GET].concat());
            let at = |line: &str| outcome.log.iter().position(|l| l.starts_with(line)).expect("a call");
            assert!(at("stamp 1 Request") < at("request-end 1 "));
            assert_eq!(at("request-end 1 ") + 1, at("stamp 1 RequestEnd"));
            let told = if end.contains("T: v") { "T=v" } else { "-" };
            assert!(outcome.log.iter().any(|line| line.starts_with(&format!("request-end 1 {told}"))));
        }
    }
    let outcome = check(&[app(POST)], &Script { end_edits: vec![set], ..Script::default() });
    assert_eq!(outcome.upstream_text(), POST, "no place for trailers");
    assert!(outcome.logged("request-end 1 -") && outcome.logged("stamp 1 RequestEnd"));
}

#[test]
fn requests_without_an_end_of_their_own_have_none() {
    let connect = "CONNECT h:1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
    // Answered in full while it was being sent.
    let early = [app(&POST[..POST.len() - 1]), up(OK), app("c")];
    let dropped = [app(POST)];
    for (steps, script) in [
        (&[app(connect)][..], Script::default()),
        (&[app(GET)], Script::default()),
        (&early, Script::default()),
        (&dropped, Script::default().at(1, Point::Request, Verdict::Act(made(503, "")))),
    ] {
        let outcome = check(steps, &script);
        assert!(!outcome.log.iter().any(|line| line.contains("request-end") || line.contains("RequestEnd")));
    }
    assert_eq!(check(&early, &Script::default()).upstream_text(), POST);
}

#[test]
fn request_trailers_that_readers_disagree_about_are_refused() {
    let head = "POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    for trailers in ["T : v\r\n", " T: v\r\n", "T\r\n", "T: a\rb\r\n"] {
        let outcome = check(&[app(format!("{head}0\r\n{trailers}\r\n"))], &Script::default());
        assert!(outcome.app_text().starts_with("HTTP/1.1 400 "), "{trailers:?}");
        assert_eq!(outcome.upstream_text(), head);
        assert_eq!(outcome.app, Fate::Linger);
    }
}
