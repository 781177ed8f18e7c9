//! Exchanges of real peers.

use std::time::Duration;

use aftershock_proxy::exchange::{Act, Made, Resume, Verdict};

use crate::support::brain::Chain;
use crate::support::peers::{GrpcServer, Nginx, curl, grpc_calls, grpc_try, has_curl, has_grpc, has_nginx, present};
use crate::support::sidecar::{Board, Point, Sidecar};

#[test]
fn curl_sees_the_same_of_nginx() {
    let test = "curl_sees_the_same_of_nginx";
    if !(present(test, "curl", has_curl()) && present(test, "nginx-light", has_nginx())) {
        return;
    }
    let nginx = Nginx::start();
    let board = Board::default();
    let sidecar = Sidecar::recording(&[nginx.address], &board);
    let chain = Chain::start(nginx.address);
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
        &["--request", "BREW", "@/small.txt"],
        &["--header", "Connection: close, x", "--header", "X-Case;", "@/seen"],
        &["--location", "@/moved"],
        &["--header", "Expect: 100-continue", "--data", "0123456789", "@/seen"],
        &["--header", "Expect: 100-continue", "--data-binary", "@LARGE", "@/refused"],
        &["--path-as-is", "@/../small.txt?%20//"],
    ];
    let large = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(large.path(), vec![b'x'; 4096]).expect("a file");
    let mut opened = 0;
    for case in cases {
        let of = |address: std::net::SocketAddr| {
            let arguments: Vec<_> = case
                .iter()
                .map(|a| match a.strip_prefix('@') {
                    Some("LARGE") => format!("@{}", large.path().display()),
                    Some(path) => format!("http://{address}{path}"),
                    None => (*a).to_owned(),
                })
                .collect();
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            // The authority differs by the port alone.
            curl(&arguments).replace(&address.to_string(), "authority")
        };
        let direct = of(nginx.address);
        assert!(direct.contains("HTTP/1."), "{case:?}: {direct}");
        assert_eq!(of(sidecar.address), direct, "{case:?}");
        assert_eq!(of(chain.address), direct, "{case:?}");
        opened += 1;
    }
    // Not one of them passed as something else than HTTP.
    let log = board.log();
    assert!(log.iter().filter(|l| l.contains(" request ")).count() > opened, "{log:?}");
    assert!(!log.iter().any(|l| l.ends_with("opaque")), "{log:?}");
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
    let unavailable = || {
        let field = |name: &str, value: &str| (name.to_string(), value.to_string());
        let fields = vec![
            field("content-type", "application/grpc"),
            field("grpc-status", "14"),
            field("grpc-message", "made by a fault"),
        ];
        Act::Answer(Box::new(Made { status: 200, fields, body: bytes::Bytes::new(), trailers: None }))
    };
    let reset = || Act::Reset { code: 2, connection: false };
    let server = GrpcServer::start();
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(300));
    for (point, withheld) in [(Point::Request, false), (Point::Response, false), (Point::End, true)] {
        for (act, timeout, status) in [
            (unavailable(), long, "UNAVAILABLE made by a fault"),
            (reset(), long, "INTERNAL "),
            (Act::Drop, short, "DEADLINE_EXCEEDED "),
        ] {
            let what = format!("{act:?} at {point:?}");
            let mut board = Board::default().only("/test.Peer/Unary").at(point, Verdict::Act(act));
            if withheld {
                board = board.at(Point::Response, Verdict::Withhold { limit: 1 << 20 });
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
            Point::End => "1.1 end",
        };
        board = board.when(decided, 1, 1, Resume::Close);
        if withheld {
            board = board.at(Point::Response, Verdict::Withhold { limit: 1 << 20 });
        }
        let sidecar = Sidecar::recording(&[server.address], &board);
        let seen = grpc_try(sidecar.address, long);
        assert!(seen.starts_with("Unary CANCELLED "), "{point:?}: {seen}");
        assert!(seen.ends_with("Metadata OK\n"), "{point:?}: {seen}");
        board.wait("1.1 closed ByFault");
    }
}
