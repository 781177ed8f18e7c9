//! Faults on real sockets: what the application's kernel tells it.

use std::io::{Read, Write};
use std::time::Duration;

use aftershock_core::event::Outcome;
use aftershock_core::plan::{Fault, Phase, Side};
use aftershock_core::span::{CallSpan, Ending};
use aftershock_core::wire::FromController;
use aftershock_proxy::exchange::{Act, Made, Mark, Marks, Resume, Verdict};

use crate::support::application::Application;
use crate::support::brain::{Back, TOKEN};
use crate::support::http2::{Came, Echo, End, Http2, message, value};
use crate::support::rules::rule;
use crate::support::sidecar::{Board, Point, Sidecar};
use crate::support::wire::{Ended, HANG, Origin, Seen, Step, Untouched, client, connect, follow, send, until};

const POST: &str = "POST /charge HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nonce";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const RESET: Act = Act::Reset { code: 2, connection: false };

fn made() -> Act {
    Act::Answer(Box::new(Made {
        status: 503,
        fields: Vec::new(),
        body: bytes::Bytes::from_static(b"no"),
        trailers: None,
    }))
}

fn nothing(ended: Ended) -> Seen {
    Seen { bytes: Vec::new(), ended }
}

#[test]
fn a_dropped_response_leaves_one_effect_and_no_byte() {
    for point in [Point::Request, Point::Response] {
        let board = Board::default().at(point, Verdict::Act(Act::Drop));
        let reached = if point == Point::Request { Step::End } else { until("once") };
        let origin = Origin::start(vec![vec![reached, send(OK), Step::End]]);
        let sidecar = Sidecar::recording(&[origin.address], &board);
        let waiting = connect(sidecar.address);
        let waits = std::thread::spawn(move || follow(waiting, &[send(POST), Step::End]));
        board.wait(if point == Point::Request { "1.1 request POST /charge" } else { "1.1 response 200" });
        // Nothing happens, and it takes no work, until somebody ends it.
        let before = sidecar.busy();
        std::thread::sleep(Duration::from_millis(100));
        assert!(sidecar.busy() - before < Duration::from_millis(10), "waiting is not work");
        assert!(!board.log().iter().any(|l| l.contains("closed")));
        sidecar.resume(1, 1, Resume::Close);
        assert_eq!(waits.join().expect("the client ran"), nothing(Ended::Fin));
        board.wait("1.1 closed ByFault");
        board.wait("1 gone");
        let expected = if point == Point::Request { "" } else { POST };
        assert_eq!(origin.seen()[0].text(), expected);
    }
}

#[test]
fn the_close_of_a_client_that_was_dropped_is_noticed() {
    let large = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    for (request, end) in [(POST, Step::Fin), (POST, Step::Reset), (&large, Step::Fin)] {
        let board = Board::default().at(Point::Request, Verdict::Act(Act::Drop));
        let origin = Origin::start(vec![vec![Step::End]]);
        let sidecar = Sidecar::recording(&[origin.address], &board);
        let mut gives_up = connect(sidecar.address);
        gives_up.write_all(&request.as_bytes()[..request.len().min(100_000)]).expect("open");
        board.wait(if request == POST { "1.1 request POST /charge" } else { "1.1 request POST /" });
        follow(gives_up, &[end]);
        board.wait("1.1 closed ByApplication");
        board.wait("1 gone");
        assert_eq!(origin.seen()[0].bytes, b"");
    }
}

#[test]
fn a_reset_is_an_rst() {
    let board = Board::default().at(Point::Request, Verdict::Act(RESET));
    let origin = Untouched::start();
    let sidecar = Sidecar::recording(&[origin.address()], &board);
    assert_eq!(client(sidecar.address, &[send(POST), Step::End]), nothing(Ended::Reset));
    board.wait("1 gone");
    assert_eq!(board.log(), ["1.1 request POST /charge", "1.1 closed ByFault", "1 gone"]);
    origin.check();

    let board = Board::default().at(Point::Response, Verdict::Act(RESET));
    let origin = Origin::start(vec![vec![until("once"), send(OK), Step::End]]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    assert_eq!(client(sidecar.address, &[send(POST), Step::End]), nothing(Ended::Reset));
    board.wait("1.1 closed ByFault");
    let seen = &origin.seen()[0];
    assert_eq!((seen.text().as_str(), seen.ended), (POST, Ended::Fin));
}

#[test]
fn a_reset_in_mid_body_comes_behind_the_bytes_before_it() {
    let size = 8 * 1024 * 1024;
    let board = Board::default().at(Point::End, Verdict::Act(RESET));
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n{}", "x".repeat(size));
    let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(&response), Step::End]]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let mut reader = connect(sidecar.address);
    reader.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("open");
    let mut all = Vec::new();
    let error = reader.read_to_end(&mut all).expect_err("an RST");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(all.len(), response.len() - 1, "everything but the end");
}

#[test]
fn a_made_answer_reaches_a_client_that_is_still_sending() {
    let board = Board::default().at(Point::Request, Verdict::Act(made()));
    let origin = Untouched::start();
    let sidecar = Sidecar::recording(&[origin.address()], &board);
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    // The answer must not be lost in an RST because of bytes that nobody read.
    let script = [send(head), send(&chunk), send(&chunk), until("no"), send(&chunk), Step::Fin, Step::End];
    let seen = client(sidecar.address, &script);
    let expected = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    assert_eq!((seen.text().as_str(), seen.ended), (expected, Ended::Fin));
    origin.check();
}

#[test]
fn an_aborted_response_keeps_both_connections() {
    let board = Board::default().at(Point::Response, Verdict::Act(made()));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let script = vec![until("once"), send(OK), until("once"), send(chunked), until("once"), send(OK), Step::End];
    let origin = Origin::start(vec![script]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let seen = client(
        sidecar.address,
        &[
            send(POST),
            until("\r\n\r\nno"),
            send(POST),
            until("\r\n\r\nno"),
            send(POST),
            until("\r\n\r\nno"),
            Step::Fin,
            Step::End,
        ],
    );
    let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno";
    assert_eq!((seen.text(), seen.ended), (answer.repeat(3), Ended::Fin));
    assert_eq!(origin.seen()[0].text(), POST.repeat(3));
}

#[test]
fn a_parked_message_goes_on_when_somebody_says_so() {
    for point in [Point::Request, Point::Response, Point::Mark, Point::End] {
        let mut board = Board::default().at(point, Verdict::Park);
        if point == Point::Mark {
            board = board.at(Point::Response, Verdict::Watch(Marks::from_slice(&[Mark::Bytes(1)])));
        }
        let origin = Origin::start(vec![vec![until("once"), send(OK), Step::End]]);
        let sidecar = Sidecar::recording(&[origin.address], &board);
        let stream = connect(sidecar.address);
        let waits = std::thread::spawn(move || follow(stream, &[send(POST), until("ok"), Step::Fin, Step::End]));
        board.wait(match point {
            Point::Request => "1.1 request POST /charge",
            Point::Response => "1.1 response 200",
            Point::Mark => "1.1 reached Bytes(1)",
            Point::End => "1.1 end",
        });
        sidecar.resume(1, 1, Resume::Pass);
        let seen = waits.join().expect("the client ran");
        assert_eq!((seen.text().as_str(), seen.ended), (OK, Ended::Fin));
        board.wait("1.1 closed Complete");
        assert_eq!(origin.seen()[0].text(), POST);
    }
}

#[test]
fn a_message_of_one_link_lets_one_of_another_go_on() {
    // The first link's request is parked until the second link's response has been written.
    let board = Board::default().at(Point::Request, Verdict::Park);
    let board =
        board.when("2.1 request POST /charge", 2, 1, Resume::Pass).when("2.1 closed Complete", 1, 1, Resume::Pass);
    let origin = Origin::start(vec![vec![until("once"), send(OK), Step::End]; 2]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let first = connect(sidecar.address);
    let waits = std::thread::spawn(move || follow(first, &[send(POST), until("ok")]));
    board.wait("1.1 request POST /charge");
    assert_eq!(client(sidecar.address, &[send(POST), until("ok")]).text(), OK);
    assert_eq!(waits.join().expect("the client ran").text(), OK);
    let log = board.log();
    let at = |what: &str| log.iter().position(|l| l == what).expect("logged");
    assert!(at("2.1 closed Complete") < at("1.1 response 200"), "{log:?}");
}

#[test]
fn a_client_that_leaves_while_parked_with_a_full_buffer_is_noticed() {
    let board = Board::default().at(Point::Request, Verdict::Park);
    let origin = Origin::start(vec![vec![Step::End]]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let mut gives_up = connect(sidecar.address);
    gives_up.set_write_timeout(Some(HANG)).expect("a timeout");
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
    gives_up.write_all(format!("{head}{}", "x".repeat(130_000)).as_bytes()).expect("open");
    board.wait("1.1 request POST /");
    drop(gives_up);
    board.wait("1.1 closed ByApplication");
    board.wait("1 gone");
    assert_eq!(origin.seen()[0].bytes, b"");
}

#[test]
fn a_parked_upload_goes_on_whole() {
    let board = Board::default().at(Point::Request, Verdict::Park);
    let body = "0123456789abcdef".repeat(32 * 1024);
    let request = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}end", body.len() + 3);
    let origin = Origin::start(vec![vec![until("end"), send(OK), Step::End]]);
    let sidecar = Sidecar::recording(&[origin.address], &board);
    let stream = connect(sidecar.address);
    let script = [send(&request), until("ok"), Step::Fin, Step::End];
    let waits = std::thread::spawn(move || follow(stream, &script));
    board.wait("1.1 request POST /");
    // Long enough for the driver to have stopped reading in most runs; the outcome is the same in all.
    std::thread::sleep(Duration::from_millis(50));
    sidecar.resume(1, 1, Resume::Pass);
    assert_eq!(waits.join().expect("the client ran").text(), OK);
    assert!(origin.seen()[0].text() == request);
}

/// The record of a call whose answer was dropped: the callee's sidecar saw it end well, the caller's kept it.
fn check_dropped(at_caller: &CallSpan, at_callee: &CallSpan) {
    assert_eq!((at_caller.side, at_callee.side, at_caller.call), (Side::Caller, Side::Callee, at_callee.call));
    let injection = at_caller.injection.as_ref().expect("it was faulted");
    assert_eq!((injection.k, injection.fault.as_str()), (1, "drop"));
    assert_eq!((at_caller.response, at_caller.ending), (None, Ending::Faulted), "the application got nothing");
    assert!(at_caller.evidence_came, "its sidecar got the answer");
    assert!(at_callee.response.is_some() && at_callee.injection.is_none(), "{at_callee:?}");
    assert_eq!(
        (at_callee.outcome, at_callee.http_status, at_callee.ending),
        (Some(Outcome::Ok), Some(200), Ending::Complete)
    );
}

#[test]
fn a_rule_that_drops_a_response_over_http_1_leaves_one_effect_and_a_clean_upstream() {
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{body}");
    let script = |body: &str| vec![until("once"), send(answer(body)), Step::End];
    let origin = Origin::start(["first", "other", "later"].map(script).to_vec());
    let (back, mut callee) = Back::before(origin.address).told();
    let mut application = Application::calling(&[back.address]);
    let drop = rule(Some("front"), "back POST /charge", 1, Phase::Response, Fault::Drop);
    application.controller.arm(vec![drop]);
    let entry = application.enter();
    let request = POST.replace("\r\n\r\n", &format!("\r\n{}\r\n", entry.lines()));
    let mut loses = connect(application.way_out);
    loses.write_all(request.as_bytes()).expect("open");
    application.controller.fired();
    let at_callee = callee.spans(1).remove(0);
    // It has been decided, the callee is done, and nothing has come.
    loses.set_nonblocking(true).expect("a socket");
    assert_eq!(loses.peek(&mut [0]).expect_err("it is open and silent").kind(), std::io::ErrorKind::WouldBlock);
    loses.set_nonblocking(false).expect("a socket");
    // Whoever asks meanwhile, or when it is disarmed, has a connection of its own and gets its own answer.
    let asks =
        || client(application.way_out, &[send(&request), until("Length: 5\r\n\r\n"), Step::Fin, Step::End]).text();
    assert_eq!(asks(), answer("other"));
    application.controller.say(FromController::Disarm { token: TOKEN });
    assert_eq!(follow(loses, &[Step::End]), nothing(Ended::Fin));
    assert_eq!(asks(), answer("later"));
    for seen in origin.seen() {
        assert_eq!((seen.text().matches("POST ").count(), seen.ended), (1, Ended::Fin), "one effect: {seen:?}");
    }
    // The one that asked meanwhile ended before.
    let at_caller = application.controller.spans(3);
    check_dropped(&at_caller[1], &at_callee);
    assert!(at_caller.iter().filter(|span| span.injection.is_some()).count() == 1, "{at_caller:?}");
}

#[test]
fn a_rule_that_drops_a_response_over_http_2_leaves_one_effect_and_a_clean_connection() {
    for (api, path, content_type) in [
        ("back POST /charge", "/charge", "text/plain"),
        ("back shop.Pay/Charge", "/shop.Pay/Charge", "application/grpc"),
    ] {
        let origin = Echo::start();
        let (back, mut callee) = Back::before(origin.address).told();
        let mut application = Application::calling(&[back.address]);
        application.controller.arm(vec![rule(Some("front"), api, 1, Phase::Response, Fault::Drop)]);
        let entry = application.enter();
        let call = |connection: &mut Http2, text: &str| {
            let fields = entry.behind(&[("content-type", content_type), ("call", text)]);
            let stream = connection.open("POST", path, &fields, false);
            connection.data(stream, &message(text), true);
            stream
        };
        let is_answered = |connection: &mut Http2, text: &str| {
            let stream = call(connection, text);
            let Came { body, ended, .. } = connection.ended(stream);
            assert_eq!((body, ended), (message(text), Some(End::Stream)), "{api}: the answer to {text}");
        };
        let mut connection = Http2::connect(application.way_out);
        let loses = call(&mut connection, "lost");
        application.controller.fired();
        let at_callee = callee.spans(1).remove(0);
        assert_eq!(connection.so_far(loses), None, "{api}");
        is_answered(&mut connection, "neighbour");
        is_answered(&mut Http2::connect(application.way_out), "other connection");
        application.controller.say(FromController::Disarm { token: TOKEN });
        // CANCEL, and not a byte before it.
        let Came { fields, body, ended } = connection.ended(loses);
        assert_eq!((fields.len(), body.len(), ended), (0, 0, Some(End::Reset(8))), "{api}");
        is_answered(&mut connection, "follower");
        let calls = origin.requests();
        let calls: Vec<_> = calls.iter().map(|fields| value(fields, "call").expect("its name")).collect();
        assert_eq!(calls, ["lost", "neighbour", "other connection", "follower"], "{api}: each effect once");
        let at_caller = application.controller.spans(4);
        let (dropped, others): (Vec<_>, Vec<_>) = at_caller.iter().partition(|span| span.injection.is_some());
        assert_eq!((dropped.len(), others.len()), (1, 3), "{api}");
        check_dropped(dropped[0], &at_callee);
        assert!(others.iter().all(|span| span.ending == Ending::Complete), "{api}: {others:?}");
    }
}
