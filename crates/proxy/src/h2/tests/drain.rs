//! The graceful end of a link (RFC 9113 §6.8).

use super::*;

const HEARD: &[u8; 8] = b"aft-gone";

fn drain(net: &mut Net) {
    net.link.drain(&mut net.script);
}

fn fates(net: &mut Net) -> (Fate, Fate) {
    let out = net.link.output();
    (out.app, out.upstream)
}

#[test]
fn a_drained_link_takes_what_was_on_its_way_and_ends_behind_the_last_stream() {
    let mut net = Net::new();
    net.request(1, true, "/");
    net.seen_up();
    drain(&mut net);
    assert_eq!(net.seen_app(), ["GOAWAY 2147483647 0", "PING aft-gone"]);
    // Sent before the warning was seen.
    net.request(3, true, "/crossing");
    assert_eq!(net.seen_up().len(), 1);
    net.app(&ping(HEARD, true));
    assert_eq!(net.seen_app(), ["GOAWAY 3 0"]);
    assert!(net.seen_up().is_empty(), "the answer was for the sidecar");
    // The application knows that this one is not processed.
    net.request(5, false, "/late");
    net.app(&data(5, true, b"late"));
    assert_eq!((net.seen_app(), net.seen_up()), (vec!["WINDOW 0 4".to_owned()], vec![]));
    net.up_headers(3, true, OK);
    assert_eq!(fates(&mut net), (Fate::Open, Fate::Open));
    net.up_headers(1, false, OK);
    net.up(&data(1, true, b"bye"));
    assert_eq!(net.seen_app(), ["HEADERS 3 end :status=200", "HEADERS 1 :status=200", "DATA 1 'bye' end"]);
    assert_eq!(fates(&mut net), (Fate::Linger, Fate::Linger));
    let closed: Vec<_> = net.calls().into_iter().filter(|call| call.starts_with("closed")).collect();
    assert_eq!(closed, ["closed 3 Complete", "closed 1 Complete"]);
}

#[test]
fn a_link_without_streams_ends_when_the_application_has_heard() {
    let mut net = Net::new();
    drain(&mut net);
    assert!(!net.link.idle(), "a request may be on its way");
    assert_eq!(fates(&mut net), (Fate::Open, Fate::Open));
    // Another PING's acknowledgement belongs to the upstream.
    net.app(&ping(b"01234567", true));
    assert_eq!(net.seen_up(), ["PING ack 01234567"]);
    net.app(&ping(HEARD, true));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 0 0");
    assert_eq!(fates(&mut net), (Fate::Linger, Fate::Linger));
}

#[test]
fn a_warning_waits_for_the_upstreams_settings() {
    let mut net = Net::silent();
    drain(&mut net);
    net.app(PREFACE);
    net.app(&settings(&[]));
    net.request(1, true, "/");
    assert!(net.seen_app().is_empty());
    net.up(&settings(&[]));
    assert_eq!(net.seen_app(), ["SETTINGS", "GOAWAY 2147483647 0", "PING aft-gone"]);
}

#[test]
fn parked_and_dropped_streams_hold_a_link_until_they_are_let_go() {
    let mut net = Net::new();
    net.script.request.insert(1, Verdict::Park);
    net.script.request.insert(3, Verdict::Act(Act::Drop));
    net.request(1, true, "/");
    net.request(3, true, "/");
    drain(&mut net);
    net.app(&ping(HEARD, true));
    assert_eq!(net.seen_app().last().unwrap(), "GOAWAY 3 0");
    net.resume(3, Resume::Close);
    net.resume(1, Resume::Pass);
    assert_eq!(fates(&mut net), (Fate::Open, Fate::Open));
    net.up_headers(1, true, OK);
    assert_eq!(net.seen_app(), ["RST 3 8", "HEADERS 1 end :status=200"]);
    assert_eq!(fates(&mut net), (Fate::Linger, Fate::Linger));
}

#[test]
fn the_upstreams_goaway_and_a_drain_never_raise_the_last_stream() {
    // The upstream is faster: nothing more is to be said.
    let mut net = Net::new();
    net.request(1, true, "/");
    net.up(&goaway(1, 0));
    net.seen_app();
    drain(&mut net);
    assert!(net.seen_app().is_empty());
    net.up_headers(1, true, OK);
    assert_eq!(fates(&mut net), (Fate::Linger, Fate::Linger));

    // Between the warning and its answer.
    let mut net = Net::new();
    net.request(1, true, "/");
    net.request(3, true, "/");
    drain(&mut net);
    net.up(&goaway(1, 0));
    net.app(&ping(HEARD, true));
    let told = ["GOAWAY 2147483647 0", "PING aft-gone", "GOAWAY 1 0"];
    assert_eq!(net.seen_app(), told);

    // After the last word: a warning would raise it again.
    let mut net = Net::new();
    net.request(1, true, "/");
    drain(&mut net);
    net.app(&ping(HEARD, true));
    net.seen_app();
    net.up(&goaway(0x7fff_ffff, 0));
    net.up(&goaway(9, 2));
    assert_eq!(net.seen_app(), ["GOAWAY 1 0", "GOAWAY 1 2"]);
}

#[test]
fn a_link_that_ends_anyway_is_not_drained() {
    let mut net = Net::new();
    net.request(1, true, "/");
    net.link.app_end(PeerEnd::Eof, &mut net.script);
    drain(&mut net);
    assert!(net.seen_app().is_empty());
    assert!(net.link.idle() || !net.link.streams.is_empty());
}
