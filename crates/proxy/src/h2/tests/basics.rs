//! What passes, and how: nothing but identifiers and edits changes.

use smallvec::smallvec;

use super::*;

#[test]
fn a_unary_exchange_passes_frame_by_frame() {
    let mut net = Net::silent();
    net.app(&PREFACE[..10]);
    assert!(net.link.output().to_upstream.is_empty());
    net.app(&PREFACE[10..]);
    net.app(&settings(&[(3, 100), (4, 70_000), (0x99, 1)]));
    assert_eq!(net.seen_up(), ["SETTINGS 3=100 4=70000 153=1 2=0"]);
    net.up(&settings(&[(3, 5), (6, 8192)]));
    net.up(&ack());
    net.app(&ack());
    assert_eq!(net.seen_app(), ["SETTINGS 3=5 6=8192", "SETTINGS ack"]);
    assert_eq!(net.seen_up(), ["SETTINGS ack"]);

    net.request(1, false, "/a");
    net.app(&data(1, false, b"hel"));
    net.app(&data(1, true, b"lo"));
    assert_eq!(
        net.seen_up(),
        ["HEADERS 1 :method=POST :scheme=http :path=/a :authority=svc", "DATA 1 'hel'", "DATA 1 'lo' end"]
    );
    net.up(&window(0, 5));
    net.up_headers(1, false, &[(":status", "200"), ("content-type", "text/plain")]);
    net.up(&data(1, true, b"world"));
    assert_eq!(net.seen_app(), ["WINDOW 0 5", "HEADERS 1 :status=200 content-type=text/plain", "DATA 1 'world' end"]);
    assert_eq!(
        net.calls(),
        [
            "request 1 POST /a",
            "stamp 1 request",
            "request end 1 -",
            "stamp 1 request end",
            "response 1 200",
            "stamp 1 response",
            "end 1 -",
            "stamp 1 end",
            "closed 1 Complete"
        ]
    );
}

#[test]
fn grpc_streams_pass_both_ways_at_once_with_their_trailers() {
    let mut net = Net::new();
    net.request(1, false, "/p.S/M");
    net.up_headers(1, false, OK);
    for _ in 0..3 {
        net.app(&data(1, false, b"ping"));
        assert_eq!(net.seen_up().pop().unwrap(), "DATA 1 'ping'");
        net.up(&data(1, false, b"pong"));
        assert_eq!(net.seen_app().pop().unwrap(), "DATA 1 'pong'");
    }
    net.up_headers(1, true, &[("grpc-status", "0"), ("x-bin", "AAEC")]);
    assert_eq!(net.seen_app(), ["HEADERS 1 end grpc-status=0 x-bin=AAEC"]);
    assert!(!net.calls().contains(&"closed 1 Complete".into()), "the upload still runs");
    net.app_headers(1, true, &[("x-checksum", "1")]);
    assert_eq!(net.seen_up(), ["HEADERS 1 end x-checksum=1"]);
    assert_eq!(net.calls(), ["request end 1 ?", "stamp 1 request end", "closed 1 Complete"]);
}

#[test]
fn a_trailers_only_answer_is_one_part() {
    let mut net = Net::new();
    net.request(1, true, "/p.S/M");
    net.up_headers(1, true, &[(":status", "200"), ("grpc-status", "5")]);
    assert_eq!(net.seen_app(), ["HEADERS 1 end :status=200 grpc-status=5"]);
    assert_eq!(
        net.calls(),
        [
            "request 1 POST /p.S/M ends",
            "stamp 1 request",
            "response 1 200 ends",
            "stamp 1 response",
            "closed 1 Complete"
        ]
    );
}

#[test]
fn informational_responses_pass_without_a_call() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.up_headers(1, false, &[(":status", "103"), ("link", "</a>")]);
    net.up_headers(1, false, &[(":status", "100")]);
    net.up_headers(1, true, OK);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=103 link=</a>", "HEADERS 1 :status=100"]);
    assert_eq!(net.decisions(), ["request 1 POST / ends", "response 1 200 ends"]);
}

#[test]
fn padding_of_data_extension_frames_and_pings_pass_and_priority_does_not() {
    let mut net = Net::new();
    net.request(1, false, "/");
    net.seen_up();
    net.app(&frame_of(0, 8, 1, &[3, b'a', 0, 0, 0]));
    net.app(&frame_of(0x77, 5, 1, b"ext"));
    net.app(&frame_of(0x78, 0, 0, b"conn"));
    net.app(&ping(b"01234567", false));
    net.app(&frame_of(16, 0, 0, b"\0\0\0\x01u=1"));
    net.app(&frame_of(2, 0, 1, &[0, 0, 0, 3, 9]));
    assert_eq!(
        net.seen_up(),
        ["DATA 1 padded 5", "TYPE119 1 3", "TYPE120 0 4", "PING 01234567", "PRIORITY 1"],
        "all but PRIORITY"
    );
    net.up(&ping(b"01234567", true));
    assert_eq!(net.seen_app(), ["PING ack 01234567"]);
}

#[test]
fn edits_apply_to_each_part_and_are_never_indexed() {
    let mut net = Net::new();
    net.up_tap.show_never = true;
    net.app_tap.show_never = true;
    let set = |v: &str| -> Edits { smallvec![Edit::Set("aft", v.into()), Edit::Remove("x-drop")] };
    net.script.edits.insert((1, "request"), set("q"));
    net.script.edits.insert((1, "response"), set("r"));
    net.script.edits.insert((1, "end"), set("e"));
    net.app_headers(
        1,
        true,
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("aft", "old"), ("x-drop", "1"), ("b", "2")],
    );
    assert_eq!(net.seen_up(), ["HEADERS 1 end :method=GET :scheme=http :path=/ aft=q! b=2"]);
    net.up_headers(1, false, &[(":status", "200"), ("x-drop", "1"), ("b", "2")]);
    net.up_headers(1, true, &[("grpc-status", "0"), ("x-drop", "1")]);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200 b=2 aft=r!", "HEADERS 1 end grpc-status=0 aft=e!"]);
}

#[test]
fn every_split_of_the_input_gives_the_same_output_and_calls() {
    // A conversation with a parked and a withheld response, padding, CONTINUATION and trailers.
    let mut app_encoder = Encoder::default();
    let mut up_encoder = Encoder::default();
    let get = [(":method", "POST"), (":scheme", "http"), (":path", "/p.S/M"), (":authority", "svc")];
    let mut app: Vec<u8> =
        [PREFACE.to_vec(), settings(&[(4, 100)]), headers(&mut app_encoder, 1, false, &get)].concat();
    app.extend(frame_of(0, 8, 1, &[2, b'a', 0, 0]));
    app.extend(headers(&mut app_encoder, 3, true, &get));
    let block = block_of(&mut app_encoder, &get);
    app.extend(frame_of(1, 1, 5, &block[..2]));
    app.extend(frame_of(9, 4, 5, &block[2..]));
    app.extend([headers(&mut app_encoder, 1, true, &[("t", "1")]), window(0, 10), ping(b"abcdefgh", false)].concat());
    let mut up = [settings(&[(1, 0)]), ack()].concat();
    for stream in [3, 1, 5] {
        up.extend(headers(&mut up_encoder, stream, false, &[(":status", "200"), ("content-type", "application/grpc")]));
        up.extend(data(stream, false, b"0123456789"));
        up.extend(headers(&mut up_encoder, stream, true, &[("grpc-status", "0")]));
    }
    let run = |app: &[&[u8]], up: &[&[u8]]| {
        let mut net = Net::silent();
        net.script.response.insert(1, Verdict::Park);
        net.script.response.insert(3, Verdict::Withhold { limit: 1000 });
        net.script.response.insert(5, Verdict::Withhold { limit: 5 });
        net.script.edits.insert((3, "end"), smallvec![Edit::Set("aft", "1".into())]);
        for part in app {
            net.app(part);
        }
        for part in up {
            net.up(part);
        }
        net.resume(1, Resume::Pass);
        let out = net.link.output();
        (out.to_app.split(), out.to_upstream.split(), net.calls())
    };
    let whole = run(&[&app], &[&up]);
    assert_eq!(whole.2.iter().filter(|call| call.starts_with("closed")).count(), 3, "{:?}", whole.2);
    for at in 0..=app.len() {
        assert!(run(&[&app[..at], &app[at..]], &[&up]) == whole, "application split at {at}");
    }
    for at in 0..=up.len() {
        assert!(run(&[&app], &[&up[..at], &up[at..]]) == whole, "upstream split at {at}");
    }
    let octets = |bytes: &[u8]| bytes.chunks(1).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (single_app, single_up) = (octets(&app), octets(&up));
    let single_app: Vec<&[u8]> = single_app.iter().map(Vec::as_slice).collect();
    let single_up: Vec<&[u8]> = single_up.iter().map(Vec::as_slice).collect();
    assert!(run(&single_app, &single_up) == whole, "octet by octet");
}

#[test]
fn cancellation_passes_both_ways() {
    let mut net = Net::new();
    net.request(1, false, "/a");
    net.request(3, true, "/b");
    net.seen_up();
    net.app(&reset(1, 8));
    assert_eq!(net.seen_up(), ["RST 1 8"]);
    net.up_headers(3, false, OK);
    net.up(&reset(3, 2));
    assert_eq!(net.seen_app(), ["HEADERS 3 :status=200", "RST 3 2"]);
    assert_eq!(
        net.decisions(),
        [
            "request 1 POST /a",
            "request 3 POST /b ends",
            "closed 1 ByApplication",
            "response 3 200",
            "closed 3 ByUpstream"
        ]
    );
}

#[test]
fn an_early_complete_response_followed_by_no_error_is_complete() {
    let mut net = Net::new();
    net.request(1, false, "/a");
    net.up_headers(1, true, &[(":status", "413")]);
    assert_eq!(net.decisions(), ["request 1 POST /a", "response 1 413 ends"]);
    net.up(&reset(1, 0));
    assert_eq!(net.seen_app(), ["HEADERS 1 end :status=413", "RST 1 0"]);
    assert_eq!(net.decisions(), ["closed 1 Complete"]);
}

#[test]
fn malformed_messages_are_reset_without_a_call() {
    let mut net = Net::new();
    net.app_headers(1, true, &[(":method", "GET"), (":scheme", "http")]);
    assert_eq!(net.seen_app(), ["RST 1 1"]);
    assert!(net.seen_up().is_empty());
    assert!(net.calls().is_empty());
    net.request(3, true, "/");
    net.seen_up();
    net.up_headers(1, true, &[("no-status", "200")]);
    assert_eq!(net.seen_app(), ["RST 3 1"]);
    assert_eq!(net.seen_up(), ["RST 1 1"]);
    assert_eq!(net.decisions(), ["request 3 POST / ends", "closed 3 ByUpstream"]);
}

#[test]
fn protocol_errors_of_the_application_are_a_goaway_with_the_right_code() {
    let cases: &[(&str, Vec<u8>, u32)] = &[
        ("HEADERS on an even stream", frame_of(1, 5, 2, &[]), 1),
        ("HEADERS on stream 0", frame_of(1, 5, 0, &[]), 1),
        ("DATA on stream 0", data(0, false, b"x"), 1),
        ("DATA on an idle stream", data(5, false, b"x"), 1),
        ("WINDOW_UPDATE on an idle stream", window(5, 1), 1),
        ("RST_STREAM on an idle stream", reset(5, 1), 1),
        ("RST_STREAM of a wrong length", frame_of(3, 0, 1, &[0]), 6),
        ("WINDOW_UPDATE of 0 for the connection", window(0, 0), 1),
        ("connection window overflow", window(0, 0x7fff_ffff), 3),
        ("SETTINGS of a wrong length", frame_of(4, 0, 0, &[0]), 6),
        ("SETTINGS on a stream", frame_of(4, 0, 1, &[]), 1),
        ("SETTINGS acknowledgement with a payload", frame_of(4, 1, 0, &[0; 6]), 6),
        ("SETTINGS_INITIAL_WINDOW_SIZE too large", settings(&[(4, 1 << 31)]), 3),
        ("SETTINGS_MAX_FRAME_SIZE too small", settings(&[(5, 16_383)]), 1),
        ("SETTINGS_ENABLE_PUSH of 2", settings(&[(2, 2)]), 1),
        ("PING of a wrong length", frame_of(6, 0, 0, &[0; 7]), 6),
        ("PING on a stream", frame_of(6, 0, 1, &[0; 8]), 1),
        ("PRIORITY on stream 0", frame_of(2, 0, 0, &[0, 0, 0, 1, 9]), 1),
        ("PRIORITY of a wrong length", frame_of(2, 0, 1, &[0; 4]), 6),
        ("PRIORITY on itself", frame_of(2, 0, 7, &[0x80, 0, 0, 7, 9]), 1),
        ("HEADERS too short for its priority", frame_of(1, 0x25, 3, &[0; 4]), 6),
        ("GOAWAY too short", frame_of(7, 0, 0, &[0; 7]), 6),
        ("PUSH_PROMISE", frame_of(5, 4, 1, &[0; 4]), 1),
        ("CONTINUATION alone", frame_of(9, 4, 1, &[]), 1),
        ("HEADERS interrupted", [frame_of(1, 0, 3, &[]), ping(b"01234567", false)].concat(), 1),
        ("undecodable block", frame_of(1, 5, 3, &[0xff]), 9),
        ("too much padding", frame_of(0, 8, 1, &[5, 0]), 1),
        ("frame too large", frame_of(0, 0, 1, &[0; 16_385]), 6),
        ("connection window overrun", body(1, false, 65_536), 3),
    ];
    for (what, bytes, code) in cases {
        let mut net = Net::new();
        net.request(1, false, "/");
        net.app(bytes);
        assert_eq!(net.seen_app().last().unwrap(), &format!("GOAWAY 1 {code}"), "{what}");
        assert_eq!((net.link.output().app, net.link.output().upstream), (Fate::Linger, Fate::Close), "{what}");
        assert_eq!(net.decisions(), ["request 1 POST /", "closed 1 ByApplication"], "{what}");
        net.app(b"more");
        net.up(b"more");
        net.link.upstream_end(PeerEnd::Eof, &mut net.script);
        assert!(net.calls().is_empty(), "{what}");
    }
}

/// RFC 9113 §5.1: who sent END_STREAM or RST_STREAM knows that the stream is closed.
#[test]
fn frames_on_a_stream_that_its_sender_closed_are_an_error() {
    type Close = fn(&mut Net);
    let closes: [(&str, Close); 3] = [
        ("reset by the application", |net| {
            net.request(1, false, "/");
            net.app(&reset(1, 8));
        }),
        ("answered to the end", |net| {
            net.request(1, true, "/");
            net.up_headers(1, true, OK);
        }),
        ("reset by both", |net| {
            net.request(1, false, "/");
            net.up(&reset(1, 2));
            net.app(&reset(1, 8));
        }),
    ];
    for (what, close) in closes {
        let mut net = Net::new();
        close(&mut net);
        net.seen_app();
        net.seen_up();
        net.app(&[window(1, 1), reset(1, 8), frame_of(2, 0, 1, &[0, 0, 0, 3, 9])].concat());
        assert!(net.seen_app().is_empty(), "{what}: these may always come");
        net.app(&data(1, false, b"late"));
        assert_eq!(net.seen_app(), ["WINDOW 0 4", "RST 1 5"], "{what}");
        net.app_headers(1, true, &[("t", "1")]);
        assert_eq!(net.seen_app(), ["GOAWAY 1 5"], "{what}");
        assert!(net.seen_up().is_empty(), "{what}");
    }
}

#[test]
fn what_crossed_a_reset_on_its_way_is_no_error() {
    type Close = fn(&mut Net);
    let closes: [(&str, Close); 5] = [
        ("reset by the upstream", |net| {
            net.request(1, false, "/");
            net.up(&reset(1, 2));
        }),
        ("answered and then told to stop", |net| {
            net.request(1, false, "/");
            net.up_headers(1, true, OK);
            net.up(&reset(1, 0));
        }),
        ("replaced by a fault", |net| {
            net.script.request.insert(1, Verdict::Act(unavailable()));
            net.request(1, false, "/");
        }),
        ("malformed", |net| net.app_headers(1, false, &[(":method", "GET")])),
        ("not processed", |net| {
            net.up(&goaway(0, 0));
            net.request(1, false, "/");
        }),
    ];
    for (what, close) in closes {
        let mut net = Net::new();
        close(&mut net);
        net.seen_app();
        net.app(&data(1, false, b"late"));
        assert_eq!(net.seen_app(), ["WINDOW 0 4"], "{what}");
        net.app_headers(1, true, &[("t", "1")]);
        assert!(net.seen_app().is_empty(), "{what}");
        // That was the last of it.
        net.app(&data(1, true, b"?"));
        assert_eq!(net.seen_app(), ["WINDOW 0 1", "RST 1 5"], "{what}");
    }
}

/// RFC 7540 §5.3.1; RFC 9113 has no word on it, but peers still refuse it.
#[test]
fn a_request_that_depends_on_itself_is_reset_without_a_call() {
    let mut net = Net::new();
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x", "indexed")];
    let block = block_of(&mut net.app_encoder, &fields);
    let payload = [&[0x80, 0, 0, 1, 5][..], &block].concat();
    net.app(&frame_of(1, 0x21, 1, &payload[..7]));
    net.app(&frame_of(9, 0x4, 1, &payload[7..]));
    assert_eq!(net.seen_app(), ["RST 1 1"]);
    assert!(net.calls().is_empty());
    // The tables are in step.
    net.app_headers(3, true, &fields);
    assert_eq!(net.seen_up(), ["HEADERS 1 end :method=GET :scheme=http :path=/ x=indexed"]);
    // Trailers as well.
    net.request(5, false, "/");
    let trailers = block_of(&mut net.app_encoder, &[("t", "1")]);
    net.app(&frame_of(1, 0x25, 5, &[&[0, 0, 0, 5, 5][..], &trailers].concat()));
    assert_eq!(net.seen_app(), ["RST 5 1"]);
    assert_eq!(net.decisions().last().unwrap(), "closed 5 ByApplication");
}

#[test]
fn protocol_errors_of_the_upstream_end_both_connections_without_a_made_answer() {
    let cases: &[(Vec<u8>, u32)] = &[
        (data(2, false, b"x"), 1),
        (data(9, false, b"x"), 1),
        (frame_of(5, 4, 1, &[0; 4]), 1),
        (frame_of(1, 5, 1, &[0xff]), 9),
        (window(0, 0), 1),
        (frame_of(9, 0, 1, &[]), 1),
    ];
    for (bytes, code) in cases {
        let mut net = Net::new();
        net.request(1, false, "/");
        net.seen_up();
        net.up(bytes);
        assert_eq!(net.seen_up(), [format!("GOAWAY 0 {code}")]);
        assert!(net.seen_app().is_empty());
        assert_eq!((net.link.output().app, net.link.output().upstream), (Fate::Linger, Fate::Linger));
        assert_eq!(net.decisions(), ["request 1 POST /", "closed 1 ByUpstream"]);
    }
}

#[test]
fn a_first_frame_that_is_not_settings_is_refused_on_both_sides() {
    let mut net = Net::silent();
    net.app(b"PRI * HTTP/2.0\r\n\r\nXX");
    assert_eq!(net.seen_app(), ["SETTINGS", "GOAWAY 0 1"]);
    let mut net = Net::silent();
    net.app(PREFACE);
    net.app(&ping(b"01234567", false));
    assert_eq!(net.seen_app(), ["SETTINGS", "GOAWAY 0 1"]);
    let mut net = Net::silent();
    net.app(&[PREFACE.to_vec(), settings(&[])].concat());
    net.up(&ack());
    assert_eq!(net.seen_up().last().unwrap(), "GOAWAY 0 1");
}

#[test]
fn the_end_of_the_upstream_closes_every_exchange_once() {
    for (how, fate) in [(PeerEnd::Eof, Fate::Linger), (PeerEnd::Broken, Fate::Reset), (PeerEnd::Refused, Fate::Reset)] {
        let mut net = Net::new();
        net.script.request.insert(3, Verdict::Park);
        net.script.request.insert(5, Verdict::Act(Act::Drop));
        for stream in [1, 3, 5] {
            net.request(stream, true, "/");
        }
        net.request(7, false, "/");
        net.up_headers(3, true, OK);
        net.seen_app();
        net.decisions();
        net.link.upstream_end(how, &mut net.script);
        net.link.upstream_end(how, &mut net.script);
        assert!(net.seen_app().is_empty(), "no made answer");
        assert_eq!(net.link.output().app, fate);
        assert_eq!(
            net.decisions(),
            ["closed 1 ByUpstream", "closed 3 ByUpstream", "closed 5 ByUpstream", "closed 7 Complete"]
        );
    }
}

#[test]
fn the_end_of_the_upstream_waits_behind_a_complete_parked_response() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Park);
    net.script.response.insert(3, Verdict::Park);
    for stream in [1, 3, 5] {
        net.request(stream, true, "/");
    }
    net.up_headers(1, true, OK);
    net.up_headers(3, false, OK);
    net.up(&data(3, false, b"part"));
    net.decisions();
    net.link.upstream_end(PeerEnd::Eof, &mut net.script);
    assert_eq!(net.link.output().app, Fate::Open);
    assert_eq!(net.decisions(), ["closed 5 ByUpstream"]);
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_app(), ["HEADERS 1 end :status=200"]);
    assert_eq!(net.link.output().app, Fate::Open);
    net.resume(3, Resume::Pass);
    assert_eq!(net.seen_app(), ["HEADERS 3 :status=200", "DATA 3 'part'"]);
    assert_eq!(net.link.output().app, Fate::Linger);
    assert_eq!(net.decisions(), ["closed 1 Complete", "closed 3 ByUpstream"]);
}

#[test]
fn the_end_of_the_application_is_passed_on_and_parked_messages_die() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.script.response.insert(3, Verdict::Park);
    for stream in [1, 3, 5] {
        net.request(stream, true, "/");
    }
    net.up_headers(1, true, OK);
    net.decisions();
    net.seen_up();
    net.link.app_end(PeerEnd::Eof, &mut net.script);
    assert_eq!(net.decisions(), ["closed 1 ByApplication", "closed 3 ByApplication"]);
    assert_eq!(net.link.output().upstream, Fate::Fin);
    net.up_headers(3, true, OK);
    assert_eq!(net.seen_app(), ["HEADERS 5 end :status=200"]);
    assert_eq!(net.decisions(), ["response 5 200 ends", "closed 5 Complete"]);
    net.link.upstream_end(PeerEnd::Eof, &mut net.script);
    assert_eq!(net.link.output().app, Fate::Close);

    let mut net = Net::new();
    net.request(1, true, "/");
    net.link.app_end(PeerEnd::Broken, &mut net.script);
    assert_eq!(net.decisions(), ["request 1 POST / ends", "closed 1 ByApplication"]);
    assert_eq!((net.link.output().app, net.link.output().upstream), (Fate::Close, Fate::Reset));
}

#[test]
fn a_link_is_idle_when_no_exchange_and_no_beginning_of_one_is_there() {
    assert!(!Net::silent().link.idle(), "the preface may be on its way");
    let mut net = Net::new();
    assert!(net.link.idle());
    // In the middle of a frame, wherever it is cut, and of a block of several frames.
    let head = headers(&mut net.app_encoder, 1, true, &[(":method", "GET"), (":scheme", "http"), (":path", "/")]);
    for cut in 1..head.len() {
        net.app(&head[cut - 1..cut]);
        assert!(!net.link.idle(), "after {cut} octets");
    }
    net.app(&head[head.len() - 1..]);
    assert!(!net.link.idle(), "the request is under way");
    net.up_headers(1, false, OK);
    assert!(!net.link.idle(), "the response is under way");
    net.up(&data(1, true, b"done"));
    assert!(net.link.idle());
    let block = block_of(&mut net.app_encoder, &[(":method", "GET"), (":scheme", "http"), (":path", "/")]);
    net.app(&frame_of(1, 1, 3, &block));
    assert!(!net.link.idle(), "CONTINUATION must follow");
    net.app(&frame_of(9, 4, 3, &[]));
    net.up_headers(3, true, OK);
    assert!(net.link.idle());
    // What is parked keeps its link, also with nothing on the wire.
    net.script.response.insert(5, Verdict::Park);
    net.request(5, true, "/held");
    net.up_headers(5, true, OK);
    assert!(!net.link.idle());
    net.resume(5, Resume::Pass);
    assert!(net.link.idle());
}
