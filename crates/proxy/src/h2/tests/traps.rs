//! The traps of an HTTP/2 editor that forwards some messages later than others, one by one.

use smallvec::smallvec;

use super::*;

#[test]
fn trap_1_identifiers_are_assigned_when_a_request_is_forwarded() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, true, "/slow");
    net.request(5, true, "/a");
    net.request(9, true, "/b");
    net.resume(1, Resume::Pass);
    let heads: Vec<String> = net.seen_up().iter().map(|line| line[..13].to_owned()).collect();
    assert_eq!(heads, ["HEADERS 1 end", "HEADERS 3 end", "HEADERS 5 end"]);
    // Both ways: /slow is 5 at the upstream.
    net.up(&window(5, 7));
    net.up_headers(5, false, OK);
    net.up_headers(1, false, OK);
    net.up(&data(5, true, b"slow"));
    net.up(&reset(3, 8));
    net.app(&window(1, 9));
    net.app(&window(5, 11));
    net.app(&reset(5, 8));
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "HEADERS 5 :status=200", "DATA 1 'slow' end", "RST 9 8"]);
    assert_eq!(net.seen_up(), ["WINDOW 1 11", "RST 1 8"], "stream 1 of the application is closed");
}

#[test]
fn trap_1_a_goaway_is_mapped_and_refuses_what_was_not_processed() {
    let mut net = Net::new();
    for parked in [1, 9] {
        net.script.request.insert(parked, Verdict::Park);
    }
    for stream in [1, 3, 5, 7, 9] {
        net.request(stream, true, "/");
    }
    // The upstream's 1, 3, 5 are the application's 3, 5, 7; then 1 is released as 7, above what will be processed.
    net.resume(1, Resume::Pass);
    net.decisions();
    net.up(&goaway(0x7fff_ffff, 0));
    assert_eq!(net.seen_app(), ["GOAWAY 2147483647 0"], "a warning stays");
    assert!(net.decisions().is_empty());
    net.up(&goaway(3, 0));
    assert_eq!(net.seen_app(), ["GOAWAY 5 0", "RST 1 7"]);
    assert_eq!(
        net.decisions(),
        ["closed 1 ByUpstream", "closed 7 ByUpstream", "refused 9 Goaway", "closed 9 ByUpstream"]
    );
    // Those below go on; later ones are for nobody.
    net.up_headers(1, true, OK);
    net.up_headers(3, true, OK);
    net.request(11, true, "/");
    assert_eq!(net.seen_app(), ["HEADERS 3 end :status=200", "HEADERS 5 end :status=200"]);
    assert!(!net.calls().iter().any(|call| call.starts_with("request")));
}

#[test]
fn trap_1_a_goaway_does_not_disown_what_was_dropped_here() {
    let mut net = Net::new();
    net.script.request.insert(3, Verdict::Act(Act::Drop));
    for stream in [1, 3] {
        net.request(stream, true, "/");
    }
    net.up(&goaway(1, 0));
    assert_eq!(net.seen_app(), ["GOAWAY 3 0"], "the application must not take the dropped call for unprocessed");
    net.up(&goaway(0, 0));
    assert_eq!(net.seen_app(), ["GOAWAY 3 0", "RST 1 7"]);
    assert_eq!(net.decisions().last().unwrap(), "closed 1 ByUpstream");
}

#[test]
fn trap_1_a_parked_request_below_the_goaway_is_refused_explicitly() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.request(3, true, "/");
    net.up(&goaway(1, 0));
    assert_eq!(net.seen_app(), ["GOAWAY 3 0", "RST 1 7"]);
    assert_eq!(net.decisions()[2..], ["refused 1 Goaway", "closed 1 ByUpstream"]);
    net.resume(1, Resume::Pass);
    assert!(net.calls().is_empty());
}

#[test]
fn trap_1_the_applications_goaway_passes_and_priorities_do_not() {
    let mut net = Net::new();
    net.app(&goaway(0, 0));
    assert_eq!(net.seen_up(), ["GOAWAY 0 0"]);
    let block = block_of(&mut net.app_encoder, &[(":method", "GET"), (":scheme", "http"), (":path", "/")]);
    // HEADERS with padding and a dependency on what will be stream 1 at the upstream.
    let payload = [&[2][..], &[0, 0, 0, 1, 5], &block, &[0, 0]].concat();
    net.app(&frame_of(1, 0x2d, 3, &payload));
    assert_eq!(net.seen_up(), ["HEADERS 1 end :method=GET :scheme=http :path=/"]);
}

#[test]
fn trap_1_a_priority_update_names_the_upstreams_identifier() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, true, "/");
    let update = |id: u32| frame_of(16, 0, 0, &[&id.to_be_bytes()[..], b"u=0"].concat());
    net.app(&update(1));
    net.app(&update(3));
    assert!(net.seen_up().is_empty());
    net.request(3, true, "/");
    net.resume(1, Resume::Pass);
    let kinds: Vec<String> = net.seen_up().iter().map(|l| l.split(" :").next().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["HEADERS 1 end", "PRIORITY 1", "HEADERS 3 end", "PRIORITY 3"]);
}

#[test]
fn trap_1_push_is_disabled_in_flight() {
    let mut net = Net::silent();
    net.app(PREFACE);
    net.app(&settings(&[(2, 1), (4, 9)]));
    net.app(&settings(&[(2, 1)]));
    net.app(&settings(&[(4, 9)]));
    assert_eq!(net.seen_up(), ["SETTINGS 2=0 4=9", "SETTINGS 2=0", "SETTINGS 4=9"]);
    let mut net = Net::silent();
    net.app(PREFACE);
    net.app(&settings(&[]));
    assert_eq!(net.seen_up(), ["SETTINGS 2=0"]);
}

#[test]
fn trap_2_a_parked_response_does_not_stall_its_neighbour() {
    // Streams of 1 MiB, a connection of 65,535: parking the first answer would use it all up.
    let mut net = Net::with_settings(&[(4, 1 << 20)], &[]);
    net.script.response.insert(1, Verdict::Park);
    net.request(1, true, "/big");
    net.request(3, true, "/small");
    net.seen_up();
    net.up_headers(1, false, OK);
    let mut granted = 0;
    for _ in 0..5 {
        net.up(&body(1, false, 60_000));
        granted +=
            net.seen_up().iter().map(|l| l.strip_prefix("WINDOW 0 ").unwrap().parse::<u32>().unwrap()).sum::<u32>();
    }
    assert_eq!(granted, 300_000, "what was parked is granted back at once, for the connection only");
    net.up(&data(1, true, b"!"));
    net.up_headers(3, false, OK);
    net.up(&body(3, true, 30_000));
    assert_eq!(net.seen_app(), ["HEADERS 3 :status=200", "DATA 3 16384", "DATA 3 13616 end"]);
    net.seen_up();

    // Released, as much leaves as the receiver takes; its updates first release the rest and pay the debt.
    net.resume(1, Resume::Pass);
    let sent = |lines: &[String]| -> usize {
        let sizes = lines.iter().filter(|l| l.starts_with("DATA 1 "));
        sizes.map(|l| l.split(' ').nth(2).unwrap().trim_matches('\'').parse().unwrap_or(1)).sum()
    };
    assert_eq!(sent(&net.seen_app()), 35_535);
    assert!(net.seen_up().is_empty());
    net.app(&window(0, 65_535));
    assert_eq!(sent(&net.seen_app()), 65_535);
    net.app(&window(0, 198_931));
    assert_eq!(sent(&net.seen_app()), 198_931, "300,001 in all");
    assert!(net.seen_up().is_empty(), "the debt is not yet paid");
    // The receiver grants everything it got, 330,001 octets: only what the sender itself is due passes.
    net.app(&window(0, 330_001 - 65_535 - 198_931));
    assert_eq!(net.seen_up(), ["WINDOW 0 30000"]);
}

#[test]
fn trap_2_a_withheld_response_gets_stream_credit_up_to_its_limit() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Withhold { limit: 100_000 });
    net.request(1, true, "/");
    net.seen_up();
    net.up_headers(1, false, OK);
    net.up(&body(1, false, 16_384));
    assert_eq!(net.seen_up(), ["WINDOW 0 16384", "WINDOW 1 16384"]);
    for _ in 0..5 {
        net.up(&body(1, false, 16_384));
    }
    assert_eq!(net.decisions(), ["request 1 POST / ends", "response 1 200"]);
    net.seen_up();
    net.up(&body(1, false, 16_384));
    assert_eq!(net.decisions(), ["refused 1 Size"]);
    assert!(net.seen_up().is_empty(), "no stream credit for what is beyond the limit, and the connection is in debt");
    let lines = net.seen_app();
    assert_eq!((lines[0].as_str(), lines.len()), ("HEADERS 1 :status=200", 5), "a window of 65,535");
    // The sender has 65,535 less the last 16,384. What waits for the stream's window alone claims nothing yet.
    net.app(&window(0, 200_000));
    net.app(&window(1, 49_153));
    assert_eq!(net.seen_app(), ["DATA 1 'x'", "DATA 1 16384", "DATA 1 16384", "DATA 1 16384"]);
    assert_eq!(net.seen_up(), [format!("WINDOW 0 {}", 200_000 - (65_535 - 16_384))]);
    net.app(&window(1, 6 * 16_384 - 49_153 + 10));
    assert_eq!(net.seen_up(), ["WINDOW 1 10"]);
    net.up(&data(1, true, b"."));
    assert_eq!(net.decisions(), ["end 1 -", "closed 1 Complete"]);
}

#[test]
fn trap_2_window_changes_by_settings_move_every_account() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    net.app(&body(1, false, 40_000));
    net.seen_app();
    // The upstream lowers the window of new and old streams to 10,000.
    net.up(&settings(&[(4, 10_000)]));
    net.app(&ack());
    net.resume(1, Resume::Pass);
    let lines = net.seen_up();
    assert_eq!(lines[2..], ["DATA 1 10000"], "a stream opened at release starts from the value in force: {lines:?}");
    assert_eq!(net.seen_app(), ["SETTINGS 4=10000"]);
    // 40,000 were sent where 10,000 are allowed: the sender's window is −30,000, and so are the updates due.
    net.up(&window(1, 30_000));
    assert_eq!(net.seen_up(), ["DATA 1 6384", "DATA 1 16384", "DATA 1 7232"]);
    assert_eq!(net.seen_app(), ["WINDOW 1 30000"]);
    net.up(&settings(&[(4, 10_500)]));
    assert!(net.link.output().to_upstream.is_empty());
    net.app(&ack());
    net.app(&data(1, false, &[b'y'; 500]));
    assert_eq!(net.seen_up(), ["SETTINGS ack", "DATA 1 500"]);
}

#[test]
fn trap_2_a_sender_that_overruns_a_streams_window_is_refused_once_it_knows_the_window() {
    let mut net = Net::with_settings(&[], &[(4, 100)]);
    net.request(1, false, "/");
    net.app(&data(1, false, &[0; 100]));
    net.app(&data(1, false, &[0; 1]));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 1 3");

    let mut net = Net::with_settings(&[(4, 100)], &[]);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, false, &[0; 101]));
    assert_eq!(net.seen_up().last().unwrap(), "GOAWAY 0 3");

    // Lowered, but not yet acknowledged: what is on its way under the old window passes.
    let mut net = Net::new();
    net.request(1, false, "/");
    net.up(&settings(&[(4, 100)]));
    net.app(&data(1, false, &[0; 1000]));
    net.app(&ack());
    assert_eq!(net.seen_up()[1..], ["DATA 1 1000", "SETTINGS ack"]);
    net.app(&data(1, false, &[0; 1]));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 1 3");
}

#[test]
fn trap_2_large_frames_pass_in_pieces_and_only_where_they_are_allowed() {
    let mut net = Net::with_settings(&[], &[(5, 40_000)]);
    net.request(1, false, "/");
    net.seen_up();
    net.app(&frame_of(0, 9, 1, &[&[5][..], &[b'x'; 20_000], &[0; 5]].concat()));
    assert_eq!(net.seen_up(), ["DATA 1 16384", "DATA 1 3616 end"]);
    assert_eq!(net.seen_app(), ["WINDOW 0 6", "WINDOW 1 6"], "the padding is given back");
    net.up(&settings(&[(5, 50_000)]));
    net.request(3, false, "/");
    net.app(&data(3, false, &[b'x'; 45_000]));
    assert_eq!(net.link.output().app, Fate::Open, "what is allowed more is accepted at once");
    net.app(&ack());
    net.up(&window(0, 60_000));
    net.up(&window(3, 60_000));
    net.up(&settings(&[(5, 16_384)]));
    net.app(&data(3, false, &[b'x'; 20_000]));
    assert_eq!(net.link.output().app, Fate::Open, "what is allowed less, once acknowledged");
    net.app(&ack());
    net.app(&data(3, false, &[b'x'; 16_385]));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 3 6");
}

#[test]
fn trap_2_a_made_body_respects_the_windows_and_is_a_debt() {
    const BODY: &[u8] = &[b'e'; 1000];
    let mut net = Net::with_settings(&[(4, 300)], &[]);
    net.script.request.insert(1, Verdict::Act(made(503, &[("x", "y")], BODY)));
    net.request(1, true, "/");
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=503 x=y", "DATA 1 300"]);
    assert_eq!(net.decisions(), ["request 1 POST / ends"]);
    net.app(&window(1, 100));
    net.app(&window(1, 600));
    assert_eq!(net.seen_app(), ["DATA 1 100", "DATA 1 600 end"]);
    assert_eq!(net.decisions(), ["closed 1 Complete"]);
    net.app(&window(0, 1000));
    assert!(net.seen_up().is_empty(), "the upstream is due nothing for what it did not send");
    net.app(&window(0, 5));
    assert_eq!(net.seen_up(), ["WINDOW 0 5"]);
}

#[test]
fn trap_2_stripped_padding_of_parked_data_is_granted_back() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    net.app(&frame_of(0, 8, 1, &[200; 256]));
    assert_eq!(net.seen_app(), ["WINDOW 0 256", "WINDOW 1 201"]);
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_up()[1], "DATA 1 55");
}

#[test]
fn trap_3_discarded_uploads_and_responses_give_the_connection_window_back() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Act(unavailable()));
    net.request(1, false, "/upload");
    let answer = "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=lost";
    assert_eq!(net.seen_app(), [answer, "RST 1 0"], "an answer before the upload's end tells the sender to stop");
    net.app(&body(1, true, 60_000));
    let granted: u32 =
        net.seen_app().iter().map(|l| l.strip_prefix("WINDOW 0 ").unwrap().parse::<u32>().unwrap()).sum();
    assert_eq!(granted, 60_000);
    assert!(net.seen_up().is_empty());

    net.script.response.insert(3, Verdict::Act(Act::Drop));
    net.request(3, true, "/");
    net.up_headers(1, false, OK);
    net.up(&body(1, true, 60_000));
    let lines = net.seen_up();
    let granted = |wire: &str| -> u32 { lines.iter().filter_map(|l| l.strip_prefix(wire)?.parse::<u32>().ok()).sum() };
    assert_eq!(granted("WINDOW 0 "), 60_000);
    assert!(granted("WINDOW 1 ") > 0, "the stream is drained as well");
    assert!(net.seen_app().is_empty(), "no byte of a dropped response");
}

#[test]
fn trap_3_a_replaced_response_that_used_up_its_window_is_still_drained() {
    let mut net = Net::with_settings(&[(4, 30_000)], &[]);
    net.script.response.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&body(1, false, 30_000));
    net.seen_up();
    net.resume(1, Resume::Act(unavailable()));
    assert_eq!(net.seen_up(), ["WINDOW 1 30000"], "or the upstream would never come to its end");
    net.up(&body(1, true, 30_000));
    assert_eq!(net.seen_up()[0], "WINDOW 0 16384");
    assert_eq!(net.seen_app().len(), 1);
}

#[test]
fn trap_4_frames_for_streams_the_upstream_never_sees_are_consumed() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Act(Act::Reset { code: 2, connection: false }));
    net.script.request.insert(3, Verdict::Act(Act::Drop));
    net.request(1, false, "/");
    net.request(3, false, "/");
    assert_eq!(net.seen_app(), ["RST 1 2"]);
    for stream in [1, 3] {
        net.app(&window(stream, 10));
        net.app(&data(stream, false, b"x"));
        net.app(&frame_of(0x55, 0, stream, b"ext"));
        net.app_headers(stream, true, &[("t", "1")]);
        net.app(&reset(stream, 8));
    }
    assert!(net.seen_up().is_empty());
    assert_eq!(net.seen_app(), ["WINDOW 0 1", "WINDOW 0 1"]);
    assert_eq!(net.decisions(), ["request 1 POST /", "closed 1 ByFault", "request 3 POST /", "closed 3 ByApplication"]);
}

#[test]
fn trap_4_frames_of_a_parked_request_follow_its_head() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    net.app(&window(1, 1000));
    net.app(&data(1, false, b"body"));
    net.app(&frame_of(0x55, 0, 1, b"ext"));
    net.app(&window(1, 24));
    net.app_headers(1, true, &[("t", "1")]);
    assert!(net.seen_up().is_empty());
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_up()[1..], ["WINDOW 1 1024", "DATA 1 'body'", "TYPE85 1 3", "HEADERS 1 end t=1"]);
}

#[test]
fn trap_4_the_reset_of_a_parked_request_ends_it() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    net.app(&frame_of(16, 0, 0, b"\0\0\0\x01u=1"));
    net.app(&reset(1, 8));
    net.resume(1, Resume::Pass);
    assert!(net.seen_up().is_empty());
    assert!(net.link.priorities.is_empty());
    assert_eq!(net.calls(), ["request 1 POST /", "closed 1 ByApplication"]);
}

#[test]
fn trap_4_the_upstreams_reset_waits_behind_what_is_parked() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Park);
    net.script.response.insert(3, Verdict::Withhold { limit: 1000 });
    net.request(1, true, "/");
    net.request(3, true, "/");
    for stream in [1, 3] {
        net.up_headers(stream, false, OK);
        net.up(&data(stream, false, b"part"));
        net.up(&reset(stream, 2));
    }
    assert_eq!(net.seen_app(), ["HEADERS 3 :status=200", "DATA 3 'part'", "RST 3 2"], "nothing is left to decide");
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'part'", "RST 1 2"]);
    assert_eq!(net.decisions()[3..], ["response 3 200", "closed 3 ByUpstream", "closed 1 ByUpstream"]);
}

#[test]
fn trap_4_the_upstream_half_makes_room_before_the_applications_next_stream() {
    // One stream at a time. The application thinks the first is over; the upstream is still answering it.
    let mut net = Net::with_settings(&[], &[(3, 1)]);
    net.script.response.insert(1, Verdict::Act(Act::Reset { code: 2, connection: false }));
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    assert_eq!(net.seen_app(), ["RST 1 2"]);
    net.seen_up();
    net.up(&data(1, false, b"more"));
    assert_eq!(net.seen_up(), ["WINDOW 0 4", "WINDOW 1 4"], "drained, not cancelled");
    net.request(3, true, "/");
    assert_eq!(net.seen_up()[0], "RST 1 8");
    net.up(&data(1, true, b"late"));
    assert_eq!(net.seen_up(), ["WINDOW 0 4"]);
    assert!(net.seen_app().is_empty());
}

#[test]
fn trap_5_blocks_of_dropped_and_unknown_streams_keep_the_tables_in_step() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Act(Act::Reset { code: 2, connection: false }));
    net.script.response.insert(3, Verdict::Act(Act::Reset { code: 2, connection: false }));
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x-first", "only-here")];
    net.app_headers(1, false, &get);
    net.app_headers(1, true, &[("x-trailer", "of-a-reset-stream")]);
    net.app_headers(3, true, &[&get[..], &[("x-trailer", "of-a-reset-stream")]].concat());
    assert_eq!(
        net.seen_up(),
        ["HEADERS 1 end :method=GET :scheme=http :path=/ x-first=only-here x-trailer=of-a-reset-stream"]
    );
    net.up_headers(1, false, &[(":status", "200"), ("x-a", "dropped")]);
    net.up_headers(1, true, &[("x-b", "dropped")]);
    net.app_headers(5, true, &get);
    net.up_headers(3, true, &[(":status", "200"), ("x-a", "dropped"), ("x-b", "dropped")]);
    assert_eq!(net.seen_app().last().unwrap(), "HEADERS 5 end :status=200 x-a=dropped x-b=dropped");
}

#[test]
fn trap_6_table_sizes_are_clamped_and_changes_announced() {
    let mut net = Net::silent();
    net.app(PREFACE);
    net.app(&settings(&[(1, 1 << 30)]));
    net.up(&settings(&[(1, 65_536)]));
    assert_eq!(net.seen_up(), ["SETTINGS 1=4096 2=0"]);
    assert_eq!(net.seen_app(), ["SETTINGS 1=4096"]);
    net.up(&ack());
    net.app(&ack());
    net.seen_app();
    net.seen_up();
    // The application lowers its table to 0: our encoder says so in its next block, once the upstream has acknowledged.
    net.app(&settings(&[(1, 0)]));
    net.request(1, true, "/");
    net.request(3, true, "/");
    net.up_headers(1, true, &[(":status", "200"), ("x", "before")]);
    net.seen_app();
    net.up(&ack());
    // The upstream's encoder obeys as well.
    net.up_encoder.resize(0);
    net.up_headers(3, true, &[(":status", "200"), ("x", "after")]);
    let out = net.link.output().to_app.clone();
    assert_eq!(out[9 + 9], 0x20, "a size update to 0 starts the block: {out:02x?}");
    net.seen_app();
    // Lowered and raised at once, both are announced.
    net.app(&settings(&[(1, 0), (1, 300)]));
    net.up(&ack());
    net.seen_app();
    net.request(5, true, "/");
    net.up_encoder.resize(300);
    net.up_headers(5, true, &[(":status", "200"), ("x", "after")]);
    let out = net.link.output().to_app.clone();
    assert_eq!(out[9..13], [0x20, 0x3f, 0x8d, 0x02]);
    net.app(&settings(&[(1, 0), (1, 200)]));
    net.up(&ack());
    net.seen_app();
    net.request(7, true, "/");
    net.up_encoder.resize(200);
    net.up_headers(7, true, OK);
    let out = net.link.output().to_app.clone();
    assert_eq!(out[9..13], [0x20, 0x3f, 0xa9, 0x01]);
    net.seen_app();
    // An encoder that sets a larger table than it may is a compression error.
    net.up(&frame_of(1, 5, 3, &[0x3f, 0xe1, 0x1f, 0x88]));
    assert_eq!(net.seen_up().last().unwrap(), "GOAWAY 0 9");
}

#[test]
fn trap_7_a_grown_block_is_split_and_a_list_too_large_loses_only_our_lines() {
    let mut net = Net::with_settings(&[], &[(6, 20_000)]);
    let long = "v".repeat(16_300);
    net.script.edits.insert((1, "request"), smallvec![Edit::Set("aft", b"e".repeat(300))]);
    net.script.edits.insert((3, "request"), smallvec![Edit::Set("aft", b"e".repeat(4000)), Edit::Remove("x")]);
    for stream in [1, 3] {
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x", "1"), ("long", &long)];
        // Never indexed and not compressed, so that the block is as long as the value.
        let mut block = Vec::new();
        net.app_encoder.begin(&mut block);
        for (name, value) in fields {
            net.app_encoder.field(name.as_bytes(), value.as_bytes(), Indexing::Never, &mut block);
        }
        net.app(&frame_of(1, 5, stream, &block));
    }
    let mut out = net.link.output().to_upstream.clone();
    let lines = net.seen_up();
    assert_eq!(lines[0], "HEADERS 1 end :method=GET :scheme=http :path=/ x=1 long=16300 aft=300");
    assert_eq!(lines[1], "HEADERS 3 end :method=GET :scheme=http :path=/ long=16300");
    assert_eq!(net.decisions()[1..], ["request 3 GET / ends", "refused 3 Oversized"]);
    // The receiver's limit of 16,384 holds for every frame, whichever way the block is compressed.
    let mut reader = Reader::default();
    let mut input = &out.split()[..];
    while let Some(frame) = reader.next(&mut input, 16_384).unwrap() {
        assert!(frame.payload.len() <= 16_384);
    }
}

#[test]
fn trap_8_the_upstreams_goaway_passes_with_its_code_and_words() {
    let mut net = Net::new();
    net.request(1, true, "/");
    net.up(&frame_of(7, 0, 0, b"\0\0\0\x01\0\0\0\x0benough"));
    let out = net.link.output().to_app.clone();
    assert!(out.ends_with(b"\0\0\0\x01\0\0\0\x0benough"));
    assert_eq!(net.seen_app(), ["GOAWAY 1 11"]);
    net.up_headers(1, true, OK);
    assert_eq!(net.decisions().last().unwrap(), "closed 1 Complete");
}

#[test]
fn trap_9_end_stream_moves_to_an_added_trailer_block() {
    let mut net = Net::new();
    for stream in [1, 3, 5, 7] {
        net.script.edits.insert((stream, "end"), smallvec![Edit::Set("aft", "e".into())]);
    }
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, true, b"last"));
    assert_eq!(net.seen_app()[1..], ["DATA 1 'last'", "HEADERS 1 end aft=e"]);
    net.request(3, true, "/");
    net.up_headers(3, false, OK);
    net.up(&frame_of(0, 9, 3, &[1, b'p', 0]));
    assert_eq!(net.seen_app()[1..], ["DATA 3 padded 3", "HEADERS 3 end aft=e"]);
    net.request(5, true, "/");
    net.up_headers(5, false, OK);
    net.up(&data(5, true, b""));
    assert_eq!(net.seen_app()[1..], ["HEADERS 5 end aft=e"]);
    // HEAD and CONNECT carry none; a CONNECT is not even asked.
    net.app_headers(7, true, &[(":method", "HEAD"), (":scheme", "http"), (":path", "/")]);
    net.up_headers(7, false, OK);
    net.up(&data(7, true, b""));
    assert_eq!(net.seen_app()[1..], ["DATA 7 '' end"]);
    assert_eq!(net.calls().last().unwrap(), "closed 7 Complete");
}

#[test]
fn trap_9_a_trailer_block_that_loses_its_only_line_becomes_an_empty_data_frame() {
    let mut net = Net::new();
    net.script.edits.insert((1, "end"), smallvec![Edit::Remove("aft")]);
    net.script.edits.insert((3, "end"), smallvec![Edit::Remove("aft")]);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up_headers(1, true, &[("aft", "1")]);
    assert_eq!(net.seen_app()[1..], ["DATA 1 '' end"]);
    net.request(3, true, "/");
    net.up_headers(3, false, OK);
    net.up(&data(3, true, b"x"));
    assert_eq!(net.seen_app()[1..], ["DATA 3 'x' end"], "a removal alone adds nothing");
}

#[test]
fn trap_9_connect_and_extended_connect_are_tunnels() {
    let mut net = Net::new();
    net.app_headers(1, false, &[(":method", "CONNECT"), (":authority", "db:1")]);
    let ws = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/chat")];
    net.app_headers(3, false, &ws);
    assert_eq!(
        net.seen_up(),
        [
            "HEADERS 1 :method=CONNECT :authority=db:1",
            "HEADERS 3 :method=CONNECT :protocol=websocket :scheme=http :path=/chat"
        ]
    );
    net.script.edits.insert((1, "end"), smallvec![Edit::Set("aft", "e".into())]);
    net.script.response.insert(3, Verdict::Withhold { limit: 1000 });
    for stream in [1, 3] {
        net.up_headers(stream, false, OK);
        net.up(&data(stream, false, b"frame"));
        net.up(&data(stream, true, b"bye"));
        let lines = net.seen_app();
        assert_eq!(lines[1..], [format!("DATA {stream} 'frame'"), format!("DATA {stream} 'bye' end")]);
    }
    assert!(!net.calls().iter().any(|call| call.ends_with("stamp 1 end")));
}

#[test]
fn trap_10_pings_are_answered_here_while_only_the_application_has_streams() {
    let mut net = Net::new();
    net.app(&ping(b"idle....", false));
    assert_eq!(net.seen_up(), ["PING idle...."], "no stream on either side: for the upstream to judge");
    net.script.request.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.app(&ping(b"parked..", false));
    assert_eq!(net.seen_app(), ["PING ack parked.."]);
    net.app(&ping(b"answered", true));
    assert_eq!(net.seen_up(), ["PING ack answered"], "an acknowledgement is the upstream's");
    net.request(3, true, "/");
    net.app(&ping(b"running.", false));
    assert_eq!(net.seen_up()[1..], ["PING running."]);
    net.up_headers(1, true, OK);
    net.resume(1, Resume::Act(Act::Drop));
    net.seen_app();
    net.app(&ping(b"dropped.", false));
    assert_eq!(net.seen_app(), ["PING ack dropped."]);
    assert!(net.seen_up().is_empty());
}

#[test]
fn trap_11_an_upgrade_is_not_taken_for_prior_knowledge() {
    // After `Upgrade: h2c` the HTTP/1 editor tunnels the rest; a link of this editor starts with the preface only.
    let mut net = Net::silent();
    net.app(b"GET / HTTP/1.1\r\nupgrade: h2c\r\n\r\n");
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 0 1");
    assert!(net.calls().is_empty());
}

fn flooded(net: &mut Net, mut frame: impl FnMut(u32) -> Vec<u8>) {
    let mut worst = 0;
    for n in 0..200_000 {
        if net.link.output().app != Fate::Open {
            break;
        }
        net.app(&frame(n));
        // The application reads what it gets, the upstream does too.
        let out = net.link.output();
        worst = worst.max(out.to_app.len() + out.to_upstream.len());
        if out.app == Fate::Open {
            out.to_app.clear();
        }
        out.to_upstream.clear();
    }
    assert_eq!(net.seen_app().last().unwrap().split(' ').next_back(), Some("11"), "ENHANCE_YOUR_CALM");
    assert!(worst < 10_000, "{worst}");
}

#[test]
fn trap_12_floods_that_are_consumed_here_are_bounded() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    flooded(&mut net, |_| ping(b"01234567", false));

    let mut net = Net::new();
    net.request(1, false, "/");
    flooded(&mut net, |_| frame_of(2, 0, 1, &[0, 0, 0, 0, 1]));

    let mut net = Net::new();
    net.request(1, false, "/");
    flooded(&mut net, |_| settings(&[(4, 65_535)]));

    let mut net = Net::new();
    net.request(1, false, "/");
    flooded(&mut net, |_| data(1, false, b""));

    // Rapid reset of parked streams, which the upstream cannot see.
    let mut net = Net::new();
    for n in 0..200_000 {
        net.script.request.insert(2 * n + 1, Verdict::Park);
    }
    let mut encoder = std::mem::take(&mut net.app_encoder);
    flooded(&mut net, |n| {
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        [headers(&mut encoder, 2 * n + 1, true, &fields), reset(2 * n + 1, 8)].concat()
    });

    // Requests that must be refused (CVE-2019-9514), and requests that come in spite of a GOAWAY.
    for told in [false, true] {
        let mut net = Net::new();
        if told {
            net.up(&goaway(0, 0));
            net.seen_app();
        }
        let mut encoder = std::mem::take(&mut net.app_encoder);
        flooded(&mut net, |n| {
            let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
            headers(&mut encoder, 2 * n + 1, n % 2 == 0, if told { &fields } else { &fields[1..] })
        });
    }

    // CONTINUATION without end, empty and full.
    for fragment in [0, 16_000] {
        let mut net = Net::new();
        net.app(&frame_of(1, 0, 1, &[]));
        flooded(&mut net, |_| frame_of(9, 0, 1, &vec![0; fragment]));
    }

    // A small block that stands for a large list.
    let mut net = Net::new();
    let block = block_of(&mut net.app_encoder, &[("x", &"y".repeat(3900))]);
    net.app(&frame_of(1, 4, 1, &block));
    net.app(&frame_of(1, 5, 3, &[0xbe; 16_000]));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 0 11");
}

#[test]
fn trap_12_what_is_parked_is_bounded_by_not_reading_on() {
    let mut net = Net::with_settings(&[], &[(4, 1 << 30)]);
    net.script.request.insert(1, Verdict::Park);
    net.request(1, false, "/");
    let piece = body(1, false, 16_384);
    let mut pushed = 0;
    while net.link.wants_app() {
        net.app(&piece);
        pushed += 16_384;
        assert!(pushed < 2 * super::super::KEPT_LIMIT);
        net.link.output().to_app.clear();
    }
    assert!(pushed > super::super::KEPT_LIMIT / 2);
    assert!(net.link.wants_upstream());
    net.resume(1, Resume::Act(Act::Drop));
    assert!(net.link.wants_app());
}
