//! Exchanges of real peers.

use std::time::Duration;

use aftershock_proxy::exchange::{Act, Edit, Edits, Made, Mark, Marks, Resume, Verdict};

use crate::support::brain::Chain;
use crate::support::peers::{
    GrpcServer, Nginx, curl, grpc_calls, grpc_stream, grpc_try, has_curl, has_grpc, has_nginx, present,
};
use crate::support::sidecar::{Board, Point, Sidecar};
use crate::support::way::alike;
use crate::support::wire::{Ended, Origin, Step, send, until};

/// A gRPC answer that is a status alone, in either place where one may stand.
fn unavailable() -> Act {
    let field = |name: &str, value: &str| (name.to_string(), value.to_string());
    let fields = vec![
        field("content-type", "application/grpc"),
        field("grpc-status", "14"),
        field("grpc-message", "made by a fault"),
    ];
    let trailers = Some(fields[1..].to_vec());
    Act::Answer(Box::new(Made { status: 200, fields, body: bytes::Bytes::new(), trailers }))
}

fn watch(mark: Mark) -> Verdict {
    Verdict::Watch(Marks::from_slice(&[mark]))
}

#[test]
fn curl_sees_the_same_of_nginx() {
    let test = "curl_sees_the_same_of_nginx";
    if !(present(test, "curl", has_curl()) && present(test, "nginx-light", has_nginx())) {
        return;
    }
    let cases: [&[&str]; 17] = [
        &["@/small.txt"],
        &["--head", "@/small.txt"],
        &["@/none"],
        &["--header", "If-None-Match: \"6553f100-6\"", "@/small.txt"],
        &["--header", "If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT", "@/small.txt"],
        &["--range", "2-3", "@/small.txt"],
        &["--raw", "--header", "Accept-Encoding: gzip", "--output", "-", "@/gzip"],
        &["@/large.txt"],
        &["--http1.0", "@/small.txt"],
        &["--http1.0", "--header", "Connection: keep-alive", "@/small.txt", "@/small.txt"],
        &["@/small.txt", "@/none", "@/large.txt", "@/missing"],
        &["--request", "PROPFIND", "@/small.txt"],
        &["--header", "Connection: close, x", "--header", "X-Case;", "@/seen"],
        &["--location", "@/moved"],
        &["--header", "Expect: 100-continue", "--data", "0123456789", "@/seen"],
        &["--header", "Expect: 100-continue", "--data-binary", "@LARGE", "@/refused"],
        &["--path-as-is", "@/../small.txt?%20//"],
    ];
    let large = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(large.path(), vec![b'x'; 4096]).expect("a file");
    alike(|stage| {
        let nginx = Nginx::on(stage.listen());
        let route = stage.lead_to(nginx.address);
        let tracestate = stage.tracestate().map(|value| format!("tracestate: {value}"));
        cases.map(|case| {
            let arguments: Vec<_> = case
                .iter()
                .map(|a| match a.strip_prefix('@') {
                    Some("LARGE") => format!("@{}", large.path().display()),
                    Some(path) => format!("http://{}{path}", route.address),
                    None => (*a).to_owned(),
                })
                .collect();
            let tagged = tracestate.iter().flat_map(|line| ["--header", line]);
            let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(tagged).collect();
            // The authority differs by the port alone.
            let seen = stage.as_client(|| curl(&arguments)).replace(&route.address.to_string(), "authority");
            assert!(seen.contains("HTTP/1."), "{case:?}: {seen}");
            // Not one of them passed as something else than HTTP.
            assert!(!stage.log().iter().any(|l| l.ends_with("opaque")), "{case:?}: {:?}", stage.log());
            seen
        })
    });
}

#[test]
fn grpc_calls_end_as_they_do_without_a_sidecar() {
    if !present("grpc_calls_end_as_they_do_without_a_sidecar", "python3-grpcio", has_grpc()) {
        return;
    }
    let server = GrpcServer::start();
    let direct = grpc_calls(server.address);
    for expected in ["FAILED_PRECONDITION", "CANCELLED", "DEADLINE_EXCEEDED", "DATA_LOSS", "WasCancelled b'yes'"] {
        assert!(direct.contains(expected), "{direct}");
    }
    let board = Board::default();
    let server = GrpcServer::start();
    let sidecar = Sidecar::recording(&[server.address], &board);
    assert_eq!(grpc_calls(sidecar.address), direct);
    let log = board.log();
    let count = |what: &str| log.iter().filter(|l| l.contains(what)).count();
    assert_eq!(count(" request POST /test.Peer/Unary"), 52);
    assert_eq!(count(" request "), count(" closed "), "{log:?}");
    let cancelled = log.iter().find_map(|l| l.strip_suffix(" request POST /test.Peer/Endless")).expect("it was called");
    assert!(log.contains(&format!("{cancelled} closed ByApplication")), "{log:?}");

    let server = GrpcServer::start();
    let chain = Chain::start(server.address);
    assert_eq!(grpc_calls(chain.address), direct);
}

#[test]
fn grpc_clients_see_faults_as_statuses() {
    if !present("grpc_clients_see_faults_as_statuses", "python3-grpcio", has_grpc()) {
        return;
    }
    let reset = || Act::Reset { code: 2, connection: false };
    let server = GrpcServer::start();
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(300));
    let points = [
        (Point::Request, None),
        (Point::Response, None),
        (Point::Mark, Some(watch(Mark::Bytes(0)))),
        (Point::End, Some(Verdict::Withhold { limit: 1 << 20 })),
    ];
    for (point, head) in points {
        for (act, timeout, status) in [
            (unavailable(), long, "UNAVAILABLE made by a fault"),
            (reset(), long, "INTERNAL "),
            (Act::Drop, short, "DEADLINE_EXCEEDED "),
        ] {
            let what = format!("{act:?} at {point:?}");
            let mut board = Board::default().only("/test.Peer/Unary").at(point, Verdict::Act(act));
            if let Some(head) = &head {
                board = board.at(Point::Response, head.clone());
            }
            let sidecar = Sidecar::recording(&[server.address], &board);
            let seen = grpc_try(sidecar.address, timeout);
            assert!(seen.starts_with(&format!("Unary {status}")), "{what}: {seen}");
            // Its neighbours and followers on the connection are untouched.
            assert!(seen.ends_with("Metadata OK\n"), "{what}: {seen}");
        }
        // A dropped call ends when somebody closes it.
        let mut board = Board::default().only("/test.Peer/Unary").at(point, Verdict::Act(Act::Drop));
        let decided = match point {
            Point::Request => "1.1 request POST /test.Peer/Unary",
            Point::Response => "1.1 response 200",
            Point::Mark => "1.1 reached Bytes(0)",
            Point::End => "1.1 end",
        };
        board = board.when(decided, 1, 1, Resume::Close);
        if let Some(head) = head {
            board = board.at(Point::Response, head);
        }
        let sidecar = Sidecar::recording(&[server.address], &board);
        let seen = grpc_try(sidecar.address, long);
        assert!(seen.starts_with("Unary CANCELLED "), "{point:?}: {seen}");
        assert!(seen.ends_with("Metadata OK\n"), "{point:?}: {seen}");
        board.wait("1.1 closed ByFault");
    }
}

#[test]
fn grpc_servers_see_no_trailers_of_requests_that_a_sidecar_strips() {
    if !present("grpc_servers_see_no_trailers_of_requests_that_a_sidecar_strips", "python3-grpcio", has_grpc()) {
        return;
    }
    let server = GrpcServer::start();
    let direct = grpc_calls(server.address);
    let server = GrpcServer::start();
    let (caller, callee) = (Board::default(), Board::default());
    let callee = callee.stamping_ends_of_requests(Edits::from_iter([Edit::Remove("aft-end")]));
    let caller = caller.stamping_ends_of_requests(Edits::from_iter([Edit::Set("aft-end", "evidence".into())]));
    let back = Sidecar::recording(&[server.address], &callee);
    let front = Sidecar::recording(&[back.address], &caller);
    assert_eq!(grpc_calls(front.address), direct);
    let log = callee.log();
    let requests = log.iter().filter(|l| l.contains(" request POST ")).count();
    let trailers = log.iter().filter(|l| l.ends_with(" request trailer aft-end: evidence")).count();
    // Each request carried them between the sidecars, but for those that their application ended without END_STREAM.
    assert!(requests >= 60, "{log:?}");
    assert!(trailers + 2 >= requests && trailers <= requests, "{trailers} of {requests}");
}

#[test]
fn grpc_clients_see_a_fault_in_mid_stream_behind_the_messages_before_it() {
    if !present("grpc_clients_see_a_fault_in_mid_stream_behind_the_messages_before_it", "python3-grpcio", has_grpc()) {
        return;
    }
    let reset = |connection| Act::Reset { code: 2, connection };
    for (method, first, second) in
        [("Ticks", "b'tick'", "b'tick'"), ("Count", "b'0'", "b'1'"), ("Echo", "b'0'", "b'1'")]
    {
        for (act, status) in
            [(unavailable(), "UNAVAILABLE made by a fault"), (reset(false), "INTERNAL "), (reset(true), "UNAVAILABLE ")]
        {
            for parked in [false, true].into_iter().filter(|parked| !parked || method == "Echo") {
                let what = format!("{act:?} in {method}, parked {parked}");
                let server = GrpcServer::start();
                let at_mark = if parked { Verdict::Park } else { Verdict::Act(act.clone()) };
                let mut board = Board::default()
                    .only(&format!("/test.Peer/{method}"))
                    .at(Point::Response, watch(Mark::Message(3)))
                    .at(Point::Mark, at_mark);
                if parked {
                    board = board.when("1.1 reached Message(3)", 1, 1, Resume::Act(act.clone()));
                }
                let sidecar = Sidecar::recording(&[server.address], &board);
                let seen = grpc_stream(sidecar.address, method);
                let got: &[String] = &[format!("[{first}, {second}]"), format!("[{first}]"), "[]".into()];
                // Behind a status come all messages before it; a reset may overtake those that the client did not read.
                let got = if matches!(act, Act::Answer(_)) { &got[..1] } else { got };
                let is_told = |got: &String| seen.starts_with(&format!("{method} {got} {status}"));
                assert!(got.iter().any(is_told), "{what}: {seen}");
                // The server does not go on for nobody, and other calls are untouched.
                assert!(method != "Ticks" || seen.contains("\nWasCancelled b'yes'\n"), "{what}: {seen}");
                assert!(seen.ends_with("\nMetadata OK\n"), "{what}: {seen}");
                board.wait("1.1 reached Message(3)");
                let closed = if matches!(act, Act::Answer(_)) { "1.1 closed Complete" } else { "1.1 closed ByFault" };
                board.wait(closed);
            }
        }
    }
}

#[test]
fn curl_sees_a_body_that_was_reset_as_a_cut_transfer() {
    if !present("curl_sees_a_body_that_was_reset_as_a_cut_transfer", "curl", has_curl()) {
        return;
    }
    const CUT: usize = 70_000;
    let body = "x".repeat(100_000);
    let chunks: String =
        body.as_bytes().chunks(3000).map(|c| format!("{:x}\r\n{}\r\n", c.len(), &body[..c.len()])).collect();
    for (framing, sent) in [
        ("Content-Length: 100000\r\n", body.clone()),
        ("Transfer-Encoding: chunked\r\n", chunks + "0\r\n\r\n"),
        ("Connection: close\r\n", body.clone()),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n");
        let reset = Verdict::Act(Act::Reset { code: 2, connection: false });
        let board = Board::default().at(Point::Response, watch(Mark::Bytes(CUT as u64))).at(Point::Mark, reset);
        let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(head.clone() + &sent), Step::End]]);
        let sidecar = Sidecar::recording(&[origin.address], &board);
        let seen = curl(&[&format!("http://{}/", sidecar.address)]);
        // 56: failure in receiving network data. A FIN would have been 18, or for a body up to the close no failure.
        assert_eq!(seen, format!("exit Some(56)\n{head}{}", &body[..CUT]), "{framing}");
        board.wait("1.1 closed ByFault");
        assert_eq!(origin.seen()[0].ended, Ended::Fin);
    }
}
