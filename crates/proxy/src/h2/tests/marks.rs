//! Stops in mid-body, the ends of requests, resets of the connection, and what comes late.

use smallvec::smallvec;

use super::*;
use crate::exchange::Marks;

const GRPC: &[(&str, &str)] = &[(":status", "200"), ("content-type", "application/grpc+proto")];

/// Length-prefixed messages.
fn messages(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| [&[0, 0, 0, 0, text.len() as u8][..], text.as_bytes()].concat()).collect()
}

fn watch(net: &mut Net, marks: &[Mark]) {
    net.script.response.insert(1, Verdict::Watch(Marks::from_slice(marks)));
}

/// What the application got of bodies, without padding, and in what kinds of frames.
fn got(net: &mut Net) -> (Vec<u8>, Vec<String>) {
    let out = net.link.output().to_app.clone();
    let (mut rest, mut content) = (&out[..], Vec::new());
    while rest.len() >= 9 {
        let length = usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == 0 {
            let padding = if rest[4] & 8 != 0 { 1 + usize::from(rest[9]) } else { 0 };
            content.extend_from_slice(&rest[9 + padding.min(1)..9 + length - padding.saturating_sub(1)]);
        }
        rest = &rest[9 + length..];
    }
    (content, net.seen_app())
}

/// The same body in frames of every kind: one, two cut at every place, one for each byte, a padded one, with its end in
/// the last frame or in trailers.
fn framings(body: &[u8]) -> Vec<Vec<u8>> {
    let two = (1..body.len()).map(|cut| [data(1, false, &body[..cut]), data(1, false, &body[cut..])].concat());
    let each = body.iter().flat_map(|b| data(1, false, &[*b])).collect();
    let padded = frame_of(0, 8, 1, &[&[3][..], body, &[0; 3]].concat());
    let last = data(1, true, body);
    two.chain([data(1, false, body), each, padded, last]).collect()
}

#[test]
fn all_before_a_mark_is_handed_on_and_nothing_behind_it() {
    let body = messages(&["one", "", "three"]);
    let starts = [0, 8, 13];
    let marks = (1..5).map(Mark::Message).chain((0..=body.len() as u64).map(Mark::Bytes));
    for mark in marks {
        let place = match mark {
            Mark::Message(n) => starts.get(n as usize - 1).copied(),
            Mark::Bytes(n) => Some(n as usize).filter(|n| *n < body.len()),
        };
        for frames in framings(&body) {
            let mut net = Net::new();
            watch(&mut net, &[mark]);
            net.script.marks.insert((1, mark), Verdict::Park);
            net.request(1, true, "/p.S/M");
            net.up_headers(1, false, GRPC);
            net.up(&frames);
            let ended = frames[4] & 1 != 0;
            if !ended {
                net.up_headers(1, true, &[("grpc-status", "0")]);
            }
            let (before, _) = got(&mut net);
            assert_eq!(before, body[..place.unwrap_or(body.len())], "{mark:?}");
            let calls = net.decisions();
            let reached = format!("reached 1 {mark:?}");
            let end = format!("end 1 {} messages=3", if ended { "-" } else { "0" });
            if place.is_some() {
                assert_eq!(calls[2..], [reached], "{mark:?}: what follows waits, the end too");
                net.resume(1, Resume::Pass);
                assert_eq!(net.decisions(), [end, "closed 1 Complete".into()]);
            } else {
                assert_eq!(calls[2..], [end, "closed 1 Complete".into()], "{mark:?} is no place in this body");
            }
            let (behind, lines) = got(&mut net);
            assert_eq!([before, behind].concat(), body);
            assert!(place.is_none() || lines.last().unwrap().contains(" end"), "{lines:?}");
            // Every octet is the sender's again once the application has read what it got.
            net.app(&window(0, body.len() as u32));
            assert_eq!(net.link.down.room, net.link.down.credit);
            assert_eq!(net.link.kept_down, 0);
        }
    }
}

#[test]
fn calls_and_output_do_not_depend_on_how_the_bytes_were_split() {
    let play = |cut: Option<usize>| {
        let mut net = Net::new();
        watch(&mut net, &[Mark::Bytes(9), Mark::Message(2), Mark::Message(3)]);
        net.script.marks.insert((1, Mark::Message(3)), Verdict::Act(unavailable()));
        net.request(1, true, "/p.S/M");
        let body = messages(&["one", "two", "three"]);
        let mut bytes = headers(&mut net.up_encoder, 1, false, GRPC);
        bytes.extend(data(1, false, &body[..7]));
        bytes.extend(frame_of(0, 8, 1, &[&[3][..], &body[7..20], &[0; 3]].concat()));
        bytes.extend(data(1, false, &body[20..]));
        match cut {
            Some(0) => bytes.iter().for_each(|b| net.up(&[*b])),
            Some(cut) => {
                net.up(&bytes[..cut.min(bytes.len())]);
                net.up(&bytes[cut.min(bytes.len())..]);
            }
            None => net.up(&bytes),
        }
        (net.link.output().to_app.to_vec(), net.link.output().to_upstream.to_vec(), net.calls())
    };
    let whole = play(None);
    assert_eq!(
        whole.2[3..],
        ["stamp 1 response", "reached 1 Message(2)", "reached 1 Bytes(9)", "reached 1 Message(3)", "closed 1 Complete"]
    );
    for cut in 0..100 {
        assert_eq!(play(Some(cut)), whole, "{cut}");
    }
}

#[test]
fn faults_at_a_mark_end_the_stream_there() {
    let late = made(503, &[], b"x");
    type Lines = &'static [&'static str];
    let cases: &[(Act, Lines, Lines, Lines)] = &[
        (unavailable(), &["HEADERS 1 end grpc-status=14 grpc-message=lost"], &["RST 1 8"], &["closed 1 Complete"]),
        (Act::Reset { code: 13, connection: false }, &["RST 1 13"], &["RST 1 8"], &["closed 1 ByFault"]),
        (Act::Drop, &[], &[], &[]),
        (late, &["DATA 1 '\0\0\0\0\x03two'"], &[], &["refused 1 TooLate"]),
    ];
    for parked in [false, true] {
        for (act, lines, upstream, calls) in cases {
            let mut net = Net::new();
            let mark = Mark::Message(2);
            watch(&mut net, &[mark]);
            net.script.marks.insert((1, mark), if parked { Verdict::Park } else { Verdict::Act(act.clone()) });
            net.request(1, true, "/p.S/M");
            net.up_headers(1, false, GRPC);
            net.up(&data(1, false, &messages(&["one"])));
            net.app(&window(0, 8));
            net.app(&window(1, 8));
            net.seen_up();
            net.seen_app();
            net.up(&data(1, false, &messages(&["two"])));
            if parked {
                assert!(net.seen_app().is_empty());
                assert_eq!(net.seen_up(), ["WINDOW 0 8"], "parked octets do not stall the neighbours");
                net.resume(1, Resume::Act(act.clone()));
            }
            assert_eq!(net.seen_app(), *lines, "{act:?}");
            let sent = net.seen_up();
            assert!(upstream.iter().all(|line| sent.iter().any(|s| s == line)), "{act:?}: {sent:?}");
            assert_eq!(net.decisions()[3..], **calls, "{act:?}");
            if *act == Act::Drop {
                // The rest is drained, so that the upstream ends its work undisturbed, and nobody notices its end.
                assert!(sent.iter().any(|line| line == "WINDOW 1 8"), "{sent:?}");
                net.up(&data(1, false, &messages(&["three"])));
                net.up_headers(1, true, &[("grpc-status", "0")]);
                assert_eq!(net.seen_up(), ["WINDOW 0 10", "WINDOW 1 10"]);
                assert!(net.seen_app().is_empty() && net.link.up_open == 0);
                net.resume(1, Resume::Close);
                assert_eq!(net.seen_app(), ["RST 1 8"]);
            }
        }
    }
}

#[test]
fn a_drop_in_mid_body_is_drained_to_a_limit() {
    let mut net = Net::new();
    watch(&mut net, &[Mark::Bytes(20_000)]);
    net.script.marks.insert((1, Mark::Bytes(20_000)), Verdict::Act(Act::Drop));
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    let piece = body(1, false, 16_384);
    let mut sent = 0;
    while !net.seen_up().contains(&"RST 1 8".to_owned()) {
        net.up(&piece);
        sent += 16_384;
        assert!(sent <= super::super::DRAIN_LIMIT + 3 * 16_384);
    }
    assert_eq!(got(&mut net).0.len(), 20_000);
}

#[test]
fn several_marks_of_one_place_are_each_reached() {
    let mut net = Net::new();
    watch(&mut net, &[Mark::Bytes(8), Mark::Message(2), Mark::Bytes(0), Mark::Message(1)]);
    net.script.marks.insert((1, Mark::Bytes(8)), Verdict::Park);
    net.script.marks.insert((1, Mark::Message(2)), Verdict::Park);
    net.request(1, true, "/p.S/M");
    net.up_headers(1, false, GRPC);
    net.up(&data(1, false, &messages(&["one", "two"])));
    assert_eq!(net.decisions()[2..], ["reached 1 Bytes(0)", "reached 1 Message(1)", "reached 1 Bytes(8)"]);
    net.resume(1, Resume::Pass);
    assert_eq!(net.decisions(), ["reached 1 Message(2)"]);
    assert_eq!(got(&mut net).0, messages(&["one"]));
    net.resume(1, Resume::Pass);
    assert_eq!(got(&mut net).0, messages(&["two"]));
}

#[test]
fn a_mark_is_reached_when_the_application_has_room_for_what_lies_before_it() {
    let mut net = Net::with_settings(&[(4, 10)], &[]);
    watch(&mut net, &[Mark::Bytes(12)]);
    net.script.marks.insert((1, Mark::Bytes(12)), Verdict::Act(Act::Reset { code: 2, connection: false }));
    net.script.request.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.resume(1, Resume::Pass);
    net.up_headers(1, false, OK);
    net.up(&data(1, false, b"0123456789"));
    net.app(&window(1, 1));
    net.up(&data(1, false, b"a"));
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 '0123456789'", "DATA 1 'a'"]);
    // A sender that overruns is none of ours; here the window is lowered while data is on its way.
    net.app(&settings(&[(4, 9)]));
    net.up(&ack());
    net.app(&window(1, 4));
    net.up(&data(1, false, b"bcd"));
    assert_eq!(net.seen_app().last().unwrap(), "RST 1 2");
    assert_eq!(net.decisions()[2..], ["reached 1 Bytes(12)", "closed 1 ByFault"]);
}

#[test]
fn data_before_a_mark_that_waits_for_the_window_comes_first() {
    let mut net = Net::new();
    // The connection's window is used up by what the sidecar made.
    net.script.request.insert(1, Verdict::Act(made(503, &[], &[b'm'; 65_530])));
    net.request(1, true, "/");
    net.seen_app();
    net.script.response.insert(3, Verdict::Watch(Marks::from_slice(&[Mark::Bytes(7), Mark::Bytes(100)])));
    net.script.marks.insert((3, Mark::Bytes(7)), Verdict::Act(Act::Reset { code: 2, connection: false }));
    net.request(3, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, true, b"0123456789"));
    assert_eq!(net.seen_app(), ["HEADERS 3 :status=200", "DATA 3 '01234'"]);
    assert!(!net.calls().iter().any(|call| call.starts_with("reached") || call.starts_with("end")));
    net.app(&window(0, 65_530));
    assert_eq!(net.seen_app(), ["DATA 3 '56'", "RST 3 2"]);
    assert_eq!(net.decisions(), ["reached 3 Bytes(7)", "closed 3 ByFault"]);
}

#[test]
fn an_upstream_that_gives_up_behind_a_mark_is_seen_behind_it() {
    for connection in [false, true] {
        let mut net = Net::new();
        watch(&mut net, &[Mark::Bytes(3)]);
        net.script.marks.insert((1, Mark::Bytes(3)), Verdict::Park);
        net.request(1, true, "/");
        net.up_headers(1, false, OK);
        net.up(&data(1, false, b"abcdef"));
        if connection {
            net.link.upstream_end(PeerEnd::Eof, &mut net.script);
        } else {
            net.up(&reset(1, 2));
        }
        assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'abc'"]);
        net.resume(1, Resume::Pass);
        let end: &[&str] = if connection { &["DATA 1 'def'"] } else { &["DATA 1 'def'", "RST 1 2"] };
        assert_eq!(net.seen_app(), end);
        assert_eq!(net.link.output().app, if connection { Fate::Linger } else { Fate::Open });
        assert_eq!(net.decisions()[2..], ["reached 1 Bytes(3)", "closed 1 ByUpstream"]);
    }
}

#[test]
fn whoever_waits_at_a_mark_may_leave() {
    for end in [false, true] {
        let mut net = Net::new();
        watch(&mut net, &[Mark::Bytes(3)]);
        net.script.marks.insert((1, Mark::Bytes(3)), Verdict::Park);
        net.request(1, true, "/");
        net.up_headers(1, false, OK);
        net.up(&data(1, false, b"abcdef"));
        if end {
            net.link.app_end(PeerEnd::Eof, &mut net.script);
        } else {
            net.app(&reset(1, 8));
        }
        assert_eq!(net.decisions()[2..], ["reached 1 Bytes(3)", "closed 1 ByApplication"]);
        assert!(net.seen_up().contains(&"RST 1 8".to_owned()));
        net.resume(1, Resume::Pass);
        assert!(net.calls().is_empty());
    }
}

#[test]
fn a_withheld_call_is_released_when_its_second_message_begins() {
    let three = messages(&["one", "two"]);
    for frames in framings(&three) {
        let mut net = Net::new();
        net.script.response.insert(1, Verdict::Withhold { limit: 1000 });
        net.script.end.insert(1, Verdict::Act(made(503, &[], b"")));
        net.request(1, true, "/p.S/M");
        net.up_headers(1, false, GRPC);
        net.up(&frames);
        assert_eq!(got(&mut net).0, three);
        let end = frames[4] & 1 != 0;
        if !end {
            net.up_headers(1, true, &[("grpc-status", "0")]);
        }
        let end = format!("end 1 {} messages=2", if end { "-" } else { "0" });
        let calls = net.decisions();
        assert_eq!(calls[2..], ["refused 1 Stream", &end, "refused 1 TooLate", "closed 1 Complete"]);
    }
    // One message is a unary call, whatever its length; and other bodies have no messages.
    for (head, count) in [(GRPC, " messages=1"), (OK, "")] {
        let mut net = Net::new();
        net.script.response.insert(1, Verdict::Withhold { limit: 1000 });
        net.request(1, true, "/p.S/M");
        net.up_headers(1, false, head);
        net.up(&data(1, false, b"\0\0\0\0\x09ab"));
        net.up(&data(1, false, b"cdefghi"));
        assert!(net.seen_app().is_empty());
        net.up_headers(1, true, &[("grpc-status", "0")]);
        let call = format!("end 1 0{count} body=\\x00\\x00\\x00\\x00\\tabcdefghi");
        assert_eq!(net.decisions()[2..], [call, "closed 1 Complete".into()]);
    }
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Withhold { limit: 1000 });
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, false, b"abc"));
    net.up(&data(1, true, b"def"));
    assert_eq!(net.decisions()[2..], ["end 1 - body=abcdef", "closed 1 Complete"]);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'abc'", "DATA 1 'def' end"]);
}

#[test]
fn a_withheld_body_beyond_its_limit_is_released_also_by_its_last_frame() {
    for (limit, refused) in [(5, true), (6, false)] {
        let mut net = Net::new();
        net.script.response.insert(1, Verdict::Withhold { limit });
        net.request(1, true, "/");
        net.up_headers(1, false, OK);
        net.up(&data(1, false, b"abc"));
        assert!(net.seen_app().is_empty());
        net.up(&data(1, true, b"def"));
        assert_eq!(net.decisions().contains(&"refused 1 Size".to_owned()), refused);
        assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'abc'", "DATA 1 'def' end"]);
    }
}

#[test]
fn responses_without_a_body_have_no_marks() {
    let mut net = Net::new();
    watch(&mut net, &[Mark::Bytes(0), Mark::Message(1)]);
    net.request(1, true, "/");
    net.up_headers(1, true, GRPC);
    assert_eq!(net.decisions()[1..], ["response 1 200 ends", "closed 1 Complete"]);
    // The octets of a tunnel are no body.
    let mut net = Net::new();
    watch(&mut net, &[Mark::Bytes(0)]);
    net.app_headers(1, false, &[(":method", "CONNECT"), (":authority", "db:1")]);
    net.up_headers(1, false, GRPC);
    net.up(&data(1, false, b"abc"));
    assert_eq!(net.decisions()[1..], ["response 1 200"]);
}

#[test]
fn the_end_of_a_request_is_stamped_when_it_leaves() {
    let set = || smallvec![Edit::Set("aft", "e".into())];
    let remove = || smallvec![Edit::Remove("t")];
    let cases: [(bool, Edits, &[&str]); 6] = [
        (false, smallvec![], &["DATA 1 'ab' end"]),
        (false, set(), &["DATA 1 'ab'", "HEADERS 1 end aft=e"]),
        (false, remove(), &["DATA 1 'ab' end"]),
        (true, smallvec![], &["DATA 1 'ab'", "HEADERS 1 end t=v"]),
        (true, set(), &["DATA 1 'ab'", "HEADERS 1 end t=v aft=e"]),
        (true, remove(), &["DATA 1 'ab'", "DATA 1 '' end"]),
    ];
    for parked in [false, true] {
        for (trailers, edits, lines) in &cases {
            let mut net = Net::new();
            net.script.edits.insert((1, "request end"), edits.clone());
            if parked {
                net.script.request.insert(1, Verdict::Park);
            }
            net.request(1, false, "/");
            net.app(&data(1, !trailers, b"ab"));
            if *trailers {
                net.app_headers(1, true, &[("t", "v")]);
            }
            let end = if *trailers { "request end 1 v" } else { "request end 1 -" };
            if parked {
                assert_eq!(net.calls(), ["request 1 POST /", end], "what is parked is not stamped");
                net.resume(1, Resume::Pass);
                assert_eq!(net.calls(), ["stamp 1 request", "stamp 1 request end"]);
            } else {
                assert_eq!(net.calls(), ["request 1 POST /", "stamp 1 request", end, "stamp 1 request end"]);
            }
            assert_eq!(net.seen_up()[1..], **lines, "{edits:?}");
            net.up_headers(1, true, OK);
            assert_eq!(net.calls().last().unwrap(), "closed 1 Complete");
        }
    }
}

#[test]
fn the_end_of_a_request_waits_for_the_upstreams_window() {
    let mut net = Net::with_settings(&[], &[(4, 4)]);
    net.script.edits.insert((1, "request end"), smallvec![Edit::Set("aft", "e".into())]);
    net.request(1, false, "/");
    net.app(&data(1, false, b"abcd"));
    net.up(&settings(&[(4, 3)]));
    net.app(&ack());
    net.up(&window(1, 2));
    net.app(&data(1, true, b""));
    assert_eq!(net.seen_up()[1..], ["DATA 1 'abcd'", "SETTINGS ack", "HEADERS 1 end aft=e"], "trailers need no window");
    // Padding is stripped where the frame is kept, and the end stays an end.
    net.script.request.insert(3, Verdict::Park);
    net.request(3, false, "/");
    net.app(&frame_of(0, 9, 3, b"\x01z\0"));
    net.seen_up();
    net.resume(3, Resume::Pass);
    assert_eq!(net.seen_up()[1..], ["DATA 3 'z' end"]);
}

#[test]
fn a_tunnel_and_a_replaced_request_have_no_end_to_stamp() {
    let mut net = Net::new();
    net.app_headers(1, false, &[(":method", "CONNECT"), (":authority", "db:1")]);
    net.up_headers(1, false, OK);
    net.app(&data(1, true, b"bye"));
    assert!(!net.calls().iter().any(|call| call.contains("request end")));
    net.script.request.insert(3, Verdict::Act(Act::Drop));
    net.request(3, false, "/");
    net.app(&data(3, true, b"lost"));
    assert_eq!(net.calls(), ["request 3 POST /"]);
}

#[test]
fn a_reset_of_the_connection_takes_everything_with_it() {
    let cut = Act::Reset { code: 2, connection: true };
    for (point, parked) in [("request", false), ("response", false), ("mark", false), ("end", false), ("mark", true)] {
        let mut net = Net::new();
        let verdict = if parked { Verdict::Park } else { Verdict::Act(cut.clone()) };
        match point {
            "request" => drop(net.script.request.insert(5, verdict)),
            "response" => drop(net.script.response.insert(5, verdict)),
            "mark" => {
                net.script.response.insert(5, Verdict::Watch(Marks::from_slice(&[Mark::Bytes(3)])));
                net.script.marks.insert((5, Mark::Bytes(3)), verdict);
            }
            _ => drop(net.script.end.insert(5, verdict)),
        }
        net.request(1, false, "/");
        net.script.request.insert(3, Verdict::Park);
        net.request(3, true, "/");
        net.request(5, true, "/");
        if point != "request" {
            net.up_headers(3, false, OK);
            net.up(&data(3, false, b"abcd"));
            net.up(&data(3, true, b"e"));
        }
        if parked {
            net.resume(5, Resume::Act(cut.clone()));
        }
        let lines: &[&str] = match point {
            "request" | "response" => &[],
            "mark" => &["HEADERS 5 :status=200", "DATA 5 'abc'"],
            _ => &["HEADERS 5 :status=200", "DATA 5 'abcd'"],
        };
        assert_eq!(net.seen_app(), lines, "{point}");
        assert_eq!((net.link.output().app, net.link.output().upstream), (Fate::Reset, Fate::Linger));
        let calls = net.calls();
        let closed: Vec<_> = calls.iter().filter(|call| call.starts_with("closed")).collect();
        assert_eq!(closed.len(), 3, "{calls:?}");
        assert!([1, 3, 5].iter().all(|id| closed.contains(&&format!("closed {id} ByFault"))), "{calls:?}");
        // Nothing that still comes means anything.
        net.request(7, true, "/");
        net.up(&data(1, false, b"x"));
        net.link.upstream_end(PeerEnd::Eof, &mut net.script);
        net.link.app_end(PeerEnd::Broken, &mut net.script);
        assert!(net.calls().is_empty() && net.seen_app().is_empty());
        assert!(net.link.streams.is_empty() && net.link.kept_down == 0 && net.link.kept_up == 0);
    }
}

#[test]
fn an_answer_that_comes_late_still_tells_what_it_knows() {
    let mut net = Net::new();
    for id in [1, 3, 5, 7] {
        net.request(id, true, "/");
    }
    net.up_headers(3, false, OK);
    net.up(&data(5, false, b""));
    net.calls();
    for id in [1, 3, 7] {
        net.app(&reset(id, 8));
    }
    assert!(net.calls().iter().all(|call| call.starts_with("closed")));
    net.up_headers(1, false, &[(":status", "103")]);
    net.up_headers(1, false, &[(":status", "200"), ("aft", "1")]);
    net.up_headers(1, true, &[("aft", "2")]);
    net.up_headers(3, true, &[("grpc-status", "0"), ("aft", "3")]);
    net.up(&reset(7, 8));
    net.up_headers(7, true, OK);
    assert_eq!(net.calls(), ["late 1 aft=1", "late 3 grpc-status=0&aft=3"], "once each, and not behind a reset");
    // The tables are in step.
    net.request(9, true, "/");
    net.up_headers(9, true, &[(":status", "200"), ("aft", "3")]);
    assert_eq!(net.seen_app().last().unwrap(), "HEADERS 9 end :status=200 aft=3");
}

#[test]
fn a_stream_that_was_not_given_up_has_nothing_late() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(unavailable()));
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up_headers(1, true, &[("aft", "2")]);
    net.request(3, true, "/");
    net.up_headers(3, true, OK);
    net.app(&reset(3, 8));
    assert!(!net.calls().iter().any(|call| call.starts_with("late")));
    assert!(net.link.abandoned.is_empty());
}
