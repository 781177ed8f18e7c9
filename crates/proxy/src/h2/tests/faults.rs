//! Faults at the three points of an exchange, and their refusals.

use smallvec::smallvec;

use super::*;

#[test]
fn a_dropped_request_stays_open_until_it_is_closed() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Act(Act::Drop));
    net.request(1, true, "/");
    net.resume(1, Resume::Pass);
    net.resume(1, Resume::Act(unavailable()));
    assert!(net.seen_app().is_empty() && net.seen_up().is_empty());
    net.resume(1, Resume::Close);
    net.resume(1, Resume::Close);
    assert_eq!(net.seen_app(), ["RST 1 8"]);
    assert_eq!(net.calls(), ["request 1 POST / ends", "closed 1 ByFault"]);
}

#[test]
fn a_dropped_response_leaves_the_upstream_undisturbed() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(Act::Drop));
    net.request(1, false, "/");
    net.up_headers(1, false, OK);
    net.seen_up();
    net.app(&data(1, true, b"rest of the request"));
    assert_eq!(net.seen_up(), ["DATA 1 'rest of the request' end"]);
    net.up(&data(1, false, b"answer"));
    net.up_headers(1, true, &[("grpc-status", "0")]);
    assert_eq!(net.seen_up(), ["WINDOW 0 6", "WINDOW 1 6"]);
    assert!(net.seen_app().is_empty());
    net.app(&reset(1, 8));
    assert!(net.seen_up().is_empty(), "the upstream has finished with it");
    assert_eq!(net.decisions(), ["request 1 POST /", "response 1 200", "request end 1 -", "closed 1 ByApplication"]);
}

#[test]
fn a_dropped_response_is_drained_to_a_limit() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(Act::Drop));
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    let piece = body(1, false, 16_384);
    let mut drained = 0;
    while !net.seen_up().contains(&"RST 1 8".to_owned()) {
        net.up(&piece);
        drained += 16_384;
        assert!(drained <= super::super::DRAIN_LIMIT + 16_384);
    }
    assert!(drained > super::super::DRAIN_LIMIT);
    net.up(&piece);
    assert_eq!(net.seen_up(), ["WINDOW 0 16384"]);
    assert!(net.seen_app().is_empty());
    net.resume(1, Resume::Close);
    assert_eq!(net.seen_app(), ["RST 1 8"]);
}

#[test]
fn a_replaced_response_is_drained_to_a_limit() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(unavailable()));
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    let piece = body(1, false, 16_384);
    for _ in 0..super::super::DRAIN_LIMIT / 16_384 - 1 {
        net.up(&piece);
        assert!(!net.seen_up().contains(&"RST 1 8".to_owned()));
    }
    net.up(&piece);
    assert_eq!(net.seen_up(), ["WINDOW 0 16384", "RST 1 8"]);
    net.up(&piece);
    assert_eq!(net.seen_up(), ["WINDOW 0 16384"]);
    assert_eq!((net.link.up_open, net.link.drains.len()), (0, 0));
}

#[test]
fn an_answer_replaces_a_response_at_its_head() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(made(503, &[("retry-after", "1")], b"sorry")));
    net.script.response.insert(3, Verdict::Act(unavailable()));
    net.request(1, true, "/");
    net.request(3, false, "/");
    net.seen_up();
    net.up_headers(1, false, OK);
    net.up_headers(3, false, OK);
    assert_eq!(
        net.seen_app(),
        [
            "HEADERS 1 :status=503 retry-after=1",
            "DATA 1 'sorry' end",
            "HEADERS 3 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=lost",
            "RST 3 0"
        ]
    );
    assert_eq!(net.seen_up(), ["RST 3 8"], "an upload that runs is cancelled, a complete request is left to finish");
    net.up(&data(1, true, b"the real answer"));
    assert_eq!(net.seen_up(), ["WINDOW 0 10"], "less the five octets that were made");
    assert_eq!(
        net.calls(),
        [
            "request 1 POST / ends",
            "stamp 1 request",
            "request 3 POST /",
            "stamp 3 request",
            "response 1 200",
            "closed 1 Complete",
            "response 3 200",
            "closed 3 Complete"
        ],
        "made answers are not stamped"
    );
}

#[test]
fn an_answer_to_head_has_no_body() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Act(made(503, &[], b"sorry")));
    net.app_headers(1, true, &[(":method", "HEAD"), (":scheme", "http"), (":path", "/")]);
    assert_eq!(net.seen_app(), ["HEADERS 1 end :status=503"]);
}

#[test]
fn a_withheld_response_is_replaced_as_a_whole_at_its_end() {
    for act in [unavailable(), Act::Reset { code: 2, connection: false }, Act::Drop] {
        let mut net = Net::new();
        net.script.response.insert(1, Verdict::Withhold { limit: 1 << 20 });
        net.script.end.insert(1, Verdict::Act(act.clone()));
        net.request(1, true, "/");
        net.up_headers(1, false, OK);
        net.up(&data(1, false, b"message"));
        assert!(net.seen_app().is_empty());
        net.up_headers(1, true, &[("grpc-status", "0")]);
        let (lines, how) = match act {
            Act::Answer(_) => (
                vec!["HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=lost"],
                Some("closed 1 Complete"),
            ),
            Act::Reset { .. } => (vec!["RST 1 2"], Some("closed 1 ByFault")),
            Act::Drop => (vec![], None),
        };
        assert_eq!(net.seen_app(), lines);
        let calls = net.decisions();
        assert_eq!(calls[..3], ["request 1 POST / ends", "response 1 200", "end 1 0 body=message"]);
        assert_eq!(calls.get(3).map(String::as_str), how);
    }
}

#[test]
fn a_withheld_response_that_passes_is_stamped_part_by_part() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Withhold { limit: 1 << 20 });
    net.script.end.insert(1, Verdict::Park);
    net.script.edits.insert((1, "response"), smallvec![Edit::Set("a", "1".into())]);
    net.script.edits.insert((1, "end"), smallvec![Edit::Set("b", "2".into())]);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, false, b"message"));
    net.up_headers(1, true, &[("grpc-status", "0")]);
    assert!(net.seen_app().is_empty());
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200 a=1", "DATA 1 'message'", "HEADERS 1 end grpc-status=0 b=2"]);
    assert_eq!(
        net.calls()[2..],
        ["response 1 200", "end 1 0 body=message", "stamp 1 response", "stamp 1 end", "closed 1 Complete"]
    );
}

#[test]
fn faults_at_the_end_of_a_response_whose_head_has_left() {
    let cases: &[(Act, &[&str], Option<&str>)] = &[
        (unavailable(), &["HEADERS 1 end grpc-status=14 grpc-message=lost"], Some("closed 1 Complete")),
        (Act::Reset { code: 2, connection: false }, &["RST 1 2"], Some("closed 1 ByFault")),
        (Act::Drop, &[], None),
        (made(503, &[], b"x"), &["HEADERS 1 end grpc-status=0"], Some("closed 1 Complete")),
    ];
    for parked in [false, true] {
        for (act, lines, how) in cases {
            let mut net = Net::new();
            let verdict = if parked { Verdict::Park } else { Verdict::Act(act.clone()) };
            net.script.end.insert(1, verdict);
            net.request(1, true, "/");
            net.up_headers(1, false, OK);
            net.up(&data(1, false, b"message"));
            assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'message'"]);
            net.up_headers(1, true, &[("grpc-status", "0")]);
            if parked {
                assert!(net.seen_app().is_empty());
                net.resume(1, Resume::Act(act.clone()));
            }
            assert_eq!(net.seen_app(), *lines, "{act:?}");
            let calls = net.decisions();
            let refused = matches!(act, Act::Answer(made) if made.status == 503);
            assert_eq!(calls.contains(&"refused 1 TooLate".to_owned()), refused);
            assert_eq!(calls.last().map(String::as_str).filter(|c| c.starts_with("closed")), *how, "{act:?}");
        }
    }
}

#[test]
fn the_end_of_a_parked_response_is_judged_when_its_head_leaves() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Park);
    net.script.end.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, false, b"one"));
    net.up(&data(1, true, b"two"));
    assert_eq!(net.decisions(), ["request 1 POST / ends", "response 1 200"]);
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_app(), ["HEADERS 1 :status=200", "DATA 1 'one'"]);
    assert_eq!(net.decisions(), ["end 1 -"]);
    net.resume(1, Resume::Pass);
    assert_eq!(net.seen_app(), ["DATA 1 'two' end"]);
    assert_eq!(net.decisions(), ["closed 1 Complete"]);
}

#[test]
fn a_parked_response_can_still_be_replaced() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Park);
    net.request(1, true, "/");
    net.up_headers(1, false, OK);
    net.up(&data(1, false, b"one"));
    net.resume(1, Resume::Act(unavailable()));
    assert_eq!(
        net.seen_app(),
        ["HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=lost"]
    );
    net.up(&data(1, true, b"two"));
    assert!(net.seen_app().is_empty());
    assert_eq!(net.decisions()[2..], ["closed 1 Complete"]);
    net.resume(1, Resume::Pass);
    assert!(net.calls().is_empty());
}

#[test]
fn a_fault_on_a_message_that_left_is_too_late() {
    let mut net = Net::new();
    net.request(1, true, "/");
    net.resume(1, Resume::Act(Act::Drop));
    net.resume(99, Resume::Act(Act::Drop));
    net.resume(1, Resume::Pass);
    net.resume(1, Resume::Close);
    assert_eq!(net.decisions(), ["request 1 POST / ends", "refused 1 TooLate"]);
    net.up_headers(1, true, OK);
    assert_eq!(net.seen_app(), ["HEADERS 1 end :status=200"]);
}

#[test]
fn an_answer_waits_for_the_upstreams_settings_and_comes_even_if_they_never_do() {
    let mut net = Net::silent();
    net.script.request.insert(1, Verdict::Act(unavailable()));
    net.app(PREFACE);
    net.app(&settings(&[]));
    net.request(1, true, "/");
    net.app(&ping(b"01234567", false));
    assert!(net.seen_app().is_empty(), "a server's first frame is SETTINGS");
    net.up(&settings(&[(3, 9)]));
    let answer = "HEADERS 1 end :status=200 content-type=application/grpc grpc-status=14 grpc-message=lost";
    assert_eq!(net.seen_app(), ["SETTINGS 3=9", answer]);

    let mut net = Net::silent();
    net.script.request.insert(1, Verdict::Act(unavailable()));
    net.app(PREFACE);
    net.app(&settings(&[]));
    net.request(1, true, "/");
    net.request(3, true, "/");
    net.link.upstream_end(PeerEnd::Refused, &mut net.script);
    assert_eq!(net.seen_app(), ["SETTINGS", answer]);
    assert_eq!(net.link.output().app, Fate::Linger);
    assert_eq!(net.decisions().last().unwrap(), "closed 3 ByUpstream");
}

#[test]
fn a_reset_carries_its_code_and_cancels_an_upload() {
    let mut net = Net::new();
    net.script.response.insert(1, Verdict::Act(Act::Reset { code: 13, connection: false }));
    net.request(1, false, "/");
    net.seen_up();
    net.up_headers(1, false, OK);
    assert_eq!(net.seen_app(), ["RST 1 13"]);
    assert_eq!(net.seen_up(), ["RST 1 8"]);
    assert_eq!(net.decisions().last().unwrap(), "closed 1 ByFault");
    net.app(&data(1, true, b"late"));
    net.up(&data(1, true, b"late"));
    assert_eq!(net.seen_app(), ["WINDOW 0 4"]);
    assert_eq!(net.seen_up(), ["WINDOW 0 4"]);
}
