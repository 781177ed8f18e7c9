//! HTTP/2 upstreams that refuse, break off or take their time, before raw frames and before gRPC's own clients.
//!
//! No sidecar can refuse a connection that the kernel has accepted for it. It resets it before a word of the upstream's: a
//! client that waits for SETTINGS before it calls, as those of gRPC do, takes that for a connection that was refused.

use std::time::Duration;

use crate::support::frames::{self, PREFACE, frame, head, lines};
use crate::support::peers::{First, Grpc};
use crate::support::sidecar::{Board, Sidecar};
use crate::support::way::{Stage, Way, alike};
use crate::support::wire::{Ended, Origin, Seen, Shut, Step, client, connect, follow, nobody, send, until};

const GREETING: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The message of a call, as it is in DATA.
const ASKED: &str = "\0\0\0\0\u{3}abc";

fn settings() -> Vec<u8> {
    frame(4, 0, 0, &[])
}

/// What a client says at once: that it wants no push, and a request with a body.
fn asks(tracestate: Option<&str>) -> Vec<u8> {
    let mut fields = vec![(":method", "POST"), (":scheme", "http"), (":path", "/ask"), (":authority", "origin")];
    fields.extend(tracestate.map(|value| ("tracestate", value)));
    [PREFACE, &frame(4, 0, 0, &[0, 2, 0, 0, 0, 0]), &head(1, false, &fields), &frame(0, 1, 1, ASKED.as_bytes())]
        .concat()
}

fn ok(stream: u32) -> Vec<u8> {
    head(stream, false, &[(":status", "200"), ("content-type", "application/grpc")])
}

/// The answer to a call.
fn answer(stream: u32) -> Vec<u8> {
    let message = frame(0, 0, stream, b"\0\0\0\0\x03cba");
    [ok(stream), message, head(stream, true, &[("grpc-status", "0")])].concat()
}

/// Says hello, then answers the calls on these streams one after the other, then waits for the client's end.
fn answering(streams: &[u32]) -> Vec<Step> {
    let mut script = vec![until(GREETING), send(settings())];
    for (call, stream) in streams.iter().enumerate() {
        let acknowledged = if call == 0 { frame(4, 1, 0, &[]) } else { Vec::new() };
        script.extend([until(ASKED), send([acknowledged, answer(*stream)].concat())]);
    }
    script.push(Step::End);
    script
}

/// Says hello and lets a call come, then does the rest.
fn called(rest: &[Step]) -> Vec<Step> {
    [&[until(GREETING), send(settings()), until(ASKED)], rest].concat()
}

#[test]
fn frames_of_an_upstream_that_breaks_off_come_before_its_end() {
    let half = [ok(1), frame(0, 0, 1, b"half")].concat();
    let whole = [ok(1), frame(0, 1, 1, b"whole")].concat();
    let refusal = frame(3, 0, 1, &[0, 0, 0, 7]);
    let unprocessed = frame(7, 0, 0, &[0; 8]);
    let processed = frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let said: [(&str, Vec<u8>); 8] = [
        ("nothing", Vec::new()),
        ("hello", settings()),
        ("a head", [settings(), ok(1)].concat()),
        ("half a response", [settings(), half.clone()].concat()),
        ("half a frame", [&settings()[..], &half[..half.len() - 2]].concat()),
        ("a response", [settings(), whole.clone()].concat()),
        ("that it takes no streams", [settings(), refusal, unprocessed].concat()),
        ("that it takes no more", [settings(), processed, whole].concat()),
    ];
    for (what, bytes) in &said {
        for (end, ended) in [(Step::Reset, Ended::Reset), (Step::Fin, Ended::Fin)] {
            let (seen, origin) = alike(|stage| {
                let origin = Origin::on(stage.listen(), vec![vec![until(ASKED), send(bytes), end.clone(), Step::End]]);
                let route = stage.lead_to(origin.address);
                let script = [send(asks(stage.tracestate().as_deref())), Step::End];
                let seen = follow(stage.connect(route.address), &script);
                let origin = origin.seen().remove(0);
                ((lines(&seen.bytes), seen.ended), lines(&origin.bytes))
            });
            assert_eq!(seen.1, ended, "{what}");
            assert_eq!(seen.0, lines(bytes), "{what}");
            assert_eq!(origin.len(), 3, "{what}: {origin:?}");
        }
    }
}

#[test]
fn an_upstream_that_resets_at_once_resets() {
    let seen = alike(|stage| {
        let origin = Origin::on(stage.listen(), vec![vec![Step::Reset]]);
        let route = stage.lead_to(origin.address);
        let script = [send(asks(stage.tracestate().as_deref())), Step::End];
        follow(stage.connect(route.address), &script)
    });
    assert_eq!(seen, Seen { bytes: Vec::new(), ended: Ended::Reset });
}

#[test]
fn a_refused_upstream_resets_after_the_requests_that_were_made_were_seen() {
    let nothing = Seen { bytes: Vec::new(), ended: Ended::Reset };
    for stage in Stage::every().filter(|stage| stage.way != Way::Direct) {
        let shut = stage.as_origin(Shut::at);
        let route = stage.lead_to(shut.address());
        let script = [send(asks(stage.tracestate().as_deref())), Step::End];
        assert_eq!(follow(stage.connect(route.address), &script), nothing, "{:?}", stage.way);
        // Who waits for the server's SETTINGS before it asks.
        let script = [send(PREFACE), send(settings()), Step::End];
        assert_eq!(follow(stage.connect(route.address), &script), nothing, "{:?}", stage.way);
    }
    let board = Board::default();
    let sidecar = Sidecar::recording(&[nobody()], &board);
    let early = connect(sidecar.address);
    assert_eq!(client(sidecar.address, &[send(asks(None)), Step::End]), nothing);
    board.wait("2 gone");
    assert_eq!(board.log(), ["2.1 request POST /ask", "2.1 closed ByUpstream", "2 gone"]);
    // By now the upstream of the connection before it has refused, too.
    assert_eq!(follow(early, &[send(asks(None)), Step::End]), nothing);
    board.wait("1 gone");
    assert_eq!(board.log()[3..], ["1.1 request POST /ask", "1.1 closed ByUpstream", "1 gone"]);
}

/// Makes a call, and then another one that waits for a connection, on every way, against an origin that follows these
/// scripts; what became of the calls.
fn calls_end(caller: Grpc, first: First, scripts: &[Vec<Step>]) -> String {
    alike(|stage| {
        let origin = Origin::on(stage.listen(), scripts.to_vec());
        let route = stage.lead_to(origin.address);
        let seen = stage.as_client(|| caller.again(route.address, stage.tracestate().as_deref(), first, || ()));
        origin.seen();
        nothing_is_left(stage, scripts.len());
        seen
    })
}

/// Every connection through the driver has ended, and every exchange on it.
fn nothing_is_left(stage: &Stage, links: usize) {
    if stage.way == Way::Driver {
        (1..=links).for_each(|link| stage.wait(&format!("{link} gone")));
        let log = stage.log();
        let count = |what: &str| log.iter().filter(|note| note.contains(what)).count();
        assert_eq!(count(" request "), count(" closed "), "{log:?}");
    }
}

#[test]
fn grpc_calls_end_when_the_upstream_breaks_off() {
    let test = "grpc_calls_end_when_the_upstream_breaks_off";
    let half = [ok(1), frame(0, 0, 1, b"\0\0\0\0\x03c")].concat();
    let failed = "Unary UNAVAILABLE\nMetadata OK\n";
    let ends = [
        vec![Step::Reset],
        vec![Step::Fin, Step::End],
        vec![send(&half), Step::Reset],
        vec![send(&half), Step::Fin, Step::End],
    ];
    for caller in Grpc::ALL.into_iter().filter(|caller| caller.present(test)) {
        let at_once = [vec![Step::Reset], vec![Step::Reset], answering(&[1])];
        assert_eq!(calls_end(caller, First::Ends, &at_once), failed, "{caller:?}");
        for end in &ends {
            let scripts = [called(end), answering(&[1])];
            assert_eq!(calls_end(caller, First::LosesItsConnection, &scripts), failed, "{caller:?}: {end:?}");
        }
    }
}

/// What the upstream says that it has not processed is called again, unnoticed.
#[test]
fn grpc_calls_that_an_upstream_did_not_take_are_made_again() {
    let test = "grpc_calls_that_an_upstream_did_not_take_are_made_again";
    let refused = frame(3, 0, 1, &[0, 0, 0, 7]);
    let unprocessed = frame(7, 0, 0, &[0; 8]);
    let again =
        [until(ASKED), send([frame(4, 1, 0, &[]), answer(3)].concat()), until(ASKED), send(answer(5)), Step::End];
    for caller in Grpc::ALL.into_iter().filter(|caller| caller.present(test)) {
        let seen = calls_end(caller, First::Ends, &[called(&[send(&unprocessed), Step::End]), answering(&[1, 3])]);
        assert_eq!(seen, "Unary OK\nMetadata OK\n", "{caller:?}");
        let seen = calls_end(caller, First::Ends, &[called(&[&[send(&refused)], &again[..]].concat())]);
        // Python's does so where the connection says it, not where a stream does.
        let expected = if caller == Grpc::Python { "Unary UNAVAILABLE" } else { "Unary OK" };
        assert_eq!(seen, format!("{expected}\nMetadata OK\n"), "{caller:?}");
    }
}

#[test]
fn grpc_calls_to_an_upstream_that_refuses_fail_and_may_wait_for_it() {
    let test = "grpc_calls_to_an_upstream_that_refuses_fail_and_may_wait_for_it";
    for caller in Grpc::ALL.into_iter().filter(|caller| caller.present(test)) {
        let seen = alike(|stage| {
            let shut = stage.as_origin(Shut::at);
            let route = stage.lead_to(shut.address());
            let mut origin = None;
            let opens = || origin = Some(Origin::on(shut.open(), vec![answering(&[1])]));
            let seen =
                stage.as_client(|| caller.again(route.address, stage.tracestate().as_deref(), First::Ends, opens));
            let origin = origin.expect("it was opened").seen().remove(0);
            assert!(seen.ends_with("\nMetadata OK\n"), "{:?}: {seen}{:?}", stage.way, lines(&origin.bytes));
            seen
        });
        assert_eq!(seen, "Unary UNAVAILABLE\nMetadata OK\n", "{caller:?}");
    }
}

#[test]
fn grpc_calls_wait_for_an_upstream_that_is_slow_to_accept() {
    let test = "grpc_calls_wait_for_an_upstream_that_is_slow_to_accept";
    for caller in Grpc::ALL.into_iter().filter(|caller| caller.present(test)) {
        let seen = alike(|stage| {
            let full = stage.as_origin(|host| Shut::at(host).fill());
            let route = stage.lead_to(full.address);
            let tracestate = stage.tracestate();
            std::thread::scope(|scope| {
                let calls =
                    || stage.as_client(|| caller.again(route.address, tracestate.as_deref(), First::Ends, || ()));
                let calls = scope.spawn(calls);
                // The sidecar has accepted the call's connection, if there is one, and dials.
                let dialled = || full.is_dialled();
                if stage.way == Way::Direct {
                    stage.as_client(dialled)
                } else {
                    stage.as_origin(|_| dialled())
                }
                let origin = Origin::on(full.open(), vec![answering(&[1, 3])]);
                let seen = calls.join().expect("it ends");
                origin.seen();
                seen
            })
        });
        assert_eq!(seen, "Unary OK\nMetadata OK\n", "{caller:?}");
    }
}

/// A client that gives up an upstream that never accepts leaves nothing behind: nobody dials for it any more.
#[test]
fn grpc_calls_are_given_up_while_the_upstream_does_not_accept() {
    let test = "grpc_calls_are_given_up_while_the_upstream_does_not_accept";
    for caller in Grpc::ALL.into_iter().filter(|caller| caller.present(test)) {
        let seen = alike(|stage| {
            let full = stage.as_origin(|host| Shut::at(host).fill());
            let route = stage.lead_to(full.address);
            let seen = stage.as_client(|| caller.attempt(route.address, Duration::from_millis(300)));
            nothing_is_left(stage, 1);
            // Their details tell how long they waited, and for what.
            seen.lines().filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect::<Vec<_>>()
        });
        assert_eq!(seen, ["DEADLINE_EXCEEDED"; 2], "{caller:?}");
    }
}

#[test]
fn an_upstream_that_is_slow_to_accept_gets_what_was_sent_meanwhile() {
    let full = Stage::new(Way::Driver).as_origin(|host| Shut::at(host).fill());
    let board = Board::default();
    let sidecar = Sidecar::recording(&[full.address], &board);
    let mut client = frames::Frames::connect(sidecar.address, &[]);
    client.request(1, true, "GET", "/early");
    board.wait("1.1 request GET /early");
    full.is_dialled();
    let served = [settings(), frame(4, 1, 0, &[]), head(1, true, &[(":status", "204")])].concat();
    let origin = Origin::on(full.open(), vec![vec![until(GREETING), send(served), Step::End]]);
    assert_eq!(client.until_ended(&[1]), [1]);
    drop(client);
    assert_eq!(lines(&origin.seen()[0].bytes)[1], "1 0x5 1: :method=GET :scheme=http :path=/early :authority=origin");
}
