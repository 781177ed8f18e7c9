//! Exchanges of gRPC's own implementations.

use std::time::Duration;

use aftershock_lab::net::{Family, PodNetwork};
use aftershock_proxy::exchange::{Act, Edit, Edits, Made, Mark, Marks, Resume, Verdict};

use crate::support::peers::{Grpc, GrpcServer};
use crate::support::pods::{Beside, addresses, inside, network};
use crate::support::process::Process;
use crate::support::sidecar::{Board, Point, Sidecar};
use crate::support::way::{Stage, Way};

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

/// Every kind of call of every client to `server`, on every way.
fn calls_end_alike(test: &str, server: Grpc) {
    for client in Grpc::ALL {
        if !(server.present(test) && client.present(test)) {
            return;
        }
        let calls = |stage: &Stage| {
            let server = stage.as_origin(|host| server.serve_at(host, "{}"));
            let route = stage.lead_to(server.address);
            let seen = stage.as_client(|| client.calls(route.address, stage.tracestate().as_deref()));
            // Go's servers reset a call whose time is over, and may be the first to know.
            let late = |told: &str| (format!("Slow {told}CANCELLED"), format!("Slow {told}DEADLINE_EXCEEDED"));
            let seen = ["", "StatusCode."].map(late).iter().fold(seen, |seen, (reset, late)| seen.replace(reset, late));
            (seen, stage.log())
        };
        let mut ways = Stage::every();
        let (direct, _) = calls(&ways.next().expect("the direct one"));
        for expected in ["FAILED_PRECONDITION", "CANCELLED", "DEADLINE_EXCEEDED", "DATA_LOSS", "WasCancelled b'yes'"] {
            let expected = if client == Grpc::Node { expected.replace("b'yes'", "yes") } else { expected.to_owned() };
            assert!(direct.contains(&expected), "{direct}");
        }
        for stage in ways {
            let ((through, log), way) = (calls(&stage), stage.way);
            let differs = through.lines().zip(direct.lines()).find(|(through, direct)| through != direct);
            assert!(differs.is_none(), "{client:?} calls {server:?}, {way:?}: {differs:?}");
            assert_eq!(through.lines().count(), direct.lines().count(), "{client:?} calls {server:?}, {way:?}");
            if way != Way::Driver {
                continue;
            }
            let count = |what: &str| log.iter().filter(|l| l.contains(what)).count();
            assert!(count(" request POST /test.Peer/Unary") >= 52, "{log:?}");
            assert_eq!(count(" request "), count(" closed "), "{log:?}");
            let endless = log.iter().find_map(|l| l.strip_suffix(" request POST /test.Peer/Endless"));
            assert!(log.contains(&format!("{} closed ByApplication", endless.expect("it was called"))), "{log:?}");
        }
    }
}

#[test]
fn grpc_calls_to_a_server_in_python_end_as_they_do_without_a_sidecar() {
    calls_end_alike("grpc_calls_to_a_server_in_python_end_as_they_do_without_a_sidecar", Grpc::Python);
}

#[test]
fn grpc_calls_to_a_server_in_node_end_as_they_do_without_a_sidecar() {
    calls_end_alike("grpc_calls_to_a_server_in_node_end_as_they_do_without_a_sidecar", Grpc::Node);
}

#[test]
fn grpc_calls_to_a_server_in_go_end_as_they_do_without_a_sidecar() {
    calls_end_alike("grpc_calls_to_a_server_in_go_end_as_they_do_without_a_sidecar", Grpc::Go);
}

/// A server in a pod.
fn serve_in(network: &PodNetwork, pod: &str, options: &str) -> GrpcServer {
    let host = addresses(network, pod)[0];
    inside(network, pod).run(|| Grpc::Python.serve_at(host, options)).expect("a thread")
}

/// Options of a server that says GOAWAY on each connection soon, and lets calls come to their end.
const AGE: &str = r#"{"grpc.max_connection_age_ms": 50, "grpc.max_connection_age_grace_ms": 20000}"#;

fn assert_survived(client: Grpc, statuses: &str) {
    // Node's client fails calls that it begins between two GOAWAYs, without a sidecar as well.
    let expected = if client == Grpc::Node { statuses.replace(",UNAVAILABLE", "") } else { statuses.to_owned() };
    assert_eq!(expected, "OK", "{client:?}: {statuses}");
}

/// Servers say GOAWAY again and again, with streams under way and the next ones on their way.
#[test]
fn grpc_calls_survive_servers_that_limit_the_age_of_connections() {
    let test = "grpc_calls_survive_servers_that_limit_the_age_of_connections";
    for (client, server) in [
        (Grpc::Python, Grpc::Python),
        (Grpc::Python, Grpc::Node),
        (Grpc::Python, Grpc::Go),
        (Grpc::Node, Grpc::Python),
        (Grpc::Go, Grpc::Python),
        (Grpc::Go, Grpc::Go),
    ] {
        if !(server.present(test) && client.present(test)) {
            return;
        }
        let server = server.serve(AGE);
        let board = Board::default();
        let sidecar = Sidecar::recording(&[server.address], &board);
        let mut load = client.load(&[sidecar.address]);
        // Each of its channels has needed several connections.
        while !board.log().iter().any(|note| note.starts_with("30.")) {
            load.goes_on();
        }
        assert_survived(client, &load.end());
    }
}

/// The same, of applications that know of no sidecar.
#[test]
fn redirected_grpc_calls_survive_servers_that_limit_the_age_of_connections() {
    let test = "redirected_grpc_calls_survive_servers_that_limit_the_age_of_connections";
    for client in Grpc::ALL {
        let Some(network) = network(test, Family::V4, &["front", "back"]) else { return };
        if !(Grpc::Python.present(test) && client.present(test)) {
            return;
        }
        let [_front, back] = ["front", "back"].map(|pod| Beside::start(&inside(&network, pod), pod, "{}"));
        let server = serve_in(&network, "back", AGE);
        let mut load = inside(&network, "front").run(|| client.load(&[server.address])).expect("a thread");
        while back.counted()[0] < 30 {
            load.goes_on();
        }
        assert_survived(client, &load.end());
    }
}

/// One sidecar of two gets SIGTERM, with the connections redirected to it: nobody notices.
#[test]
fn redirected_grpc_calls_move_to_another_instance_when_a_sidecar_ends() {
    let test = "redirected_grpc_calls_move_to_another_instance_when_a_sidecar_ends";
    for client in Grpc::ALL {
        let Some(network) = network(test, Family::V4, &["front", "one", "two"]) else { return };
        if !(Grpc::Python.present(test) && client.present(test)) {
            return;
        }
        let [_front, mut first, _second] = [("front", "front"), ("one", "back"), ("two", "back")]
            .map(|(pod, service)| Beside::start(&inside(&network, pod), service, "{}"));
        let servers = ["one", "two"].map(|pod| serve_in(&network, pod, "{}"));
        let addresses = servers.each_ref().map(|server| server.address);
        let mut load = inside(&network, "front").run(|| client.load(&addresses)).expect("a thread");
        load.goes_on();
        assert!(first.counted()[0] > 0, "the first instance is called first");
        assert!(first.end().success());
        load.goes_on();
        assert_eq!(load.end(), "OK", "{client:?}");
    }
}

/// One sidecar of two gets SIGTERM: nobody notices.
#[test]
fn grpc_calls_move_to_another_instance_when_a_sidecar_ends() {
    let test = "grpc_calls_move_to_another_instance_when_a_sidecar_ends";
    for client in Grpc::ALL {
        if !(Grpc::Python.present(test) && client.present(test)) {
            return;
        }
        let server = Grpc::Python.serve("{}");
        let mut first = Process::before(server.address, "");
        let second = Process::before(server.address, "");
        let mut load = client.load(&[first.addresses[0], second.addresses[0]]);
        load.goes_on();
        first.terminate();
        assert!(first.wait().success());
        load.goes_on();
        assert_eq!(load.end(), "OK", "{client:?}");
    }
}

#[test]
fn grpc_clients_see_faults_as_statuses() {
    for client in Grpc::ALL {
        let both = Grpc::Python.present("grpc_clients_see_faults_as_statuses")
            && client.present("grpc_clients_see_faults_as_statuses");
        if !both {
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
                let seen = client.attempt(sidecar.address, timeout);
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
            let seen = client.attempt(sidecar.address, long);
            assert!(seen.starts_with("Unary CANCELLED "), "{point:?}: {seen}");
            assert!(seen.ends_with("Metadata OK\n"), "{point:?}: {seen}");
            board.wait("1.1 closed ByFault");
        }
    }
}

#[test]
fn grpc_servers_see_no_trailers_of_requests_that_a_sidecar_strips() {
    for client in Grpc::ALL {
        let both = Grpc::Python.present("grpc_servers_see_no_trailers_of_requests_that_a_sidecar_strips")
            && client.present("grpc_servers_see_no_trailers_of_requests_that_a_sidecar_strips");
        if !both {
            return;
        }
        let server = GrpcServer::start();
        let direct = client.calls(server.address, None);
        let server = GrpcServer::start();
        let (caller, callee) = (Board::default(), Board::default());
        let callee = callee.stamping_ends_of_requests(Edits::from_iter([Edit::Remove("aft-end")]));
        let caller = caller.stamping_ends_of_requests(Edits::from_iter([Edit::Set("aft-end", "evidence".into())]));
        let back = Sidecar::recording(&[server.address], &callee);
        let front = Sidecar::recording(&[back.address], &caller);
        assert_eq!(client.calls(front.address, None), direct);
        let log = callee.log();
        let requests = log.iter().filter(|l| l.contains(" request POST ")).count();
        let trailers = log.iter().filter(|l| l.ends_with(" request trailer aft-end: evidence")).count();
        // Each request carried them between the sidecars, but for those that their application ended without END_STREAM.
        assert!(requests >= 60, "{log:?}");
        assert!(trailers + 2 >= requests && trailers <= requests, "{trailers} of {requests}");
    }
}

#[test]
fn grpc_clients_see_a_fault_in_mid_stream_behind_the_messages_before_it() {
    for client in Grpc::ALL {
        let both = Grpc::Python.present("grpc_clients_see_a_fault_in_mid_stream_behind_the_messages_before_it")
            && client.present("grpc_clients_see_a_fault_in_mid_stream_behind_the_messages_before_it");
        if !both {
            return;
        }
        let reset = |connection| Act::Reset { code: 2, connection };
        for (method, first, second) in
            [("Ticks", "b'tick'", "b'tick'"), ("Count", "b'0'", "b'1'"), ("Echo", "b'0'", "b'1'")]
        {
            for (act, status) in [
                (unavailable(), "UNAVAILABLE made by a fault"),
                (reset(false), "INTERNAL "),
                (reset(true), "UNAVAILABLE "),
            ] {
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
                    let seen = client.stream(sidecar.address, method);
                    let got: &[String] = &[format!("[{first}, {second}]"), format!("[{first}]"), "[]".into()];
                    // Behind a status come all messages before it; a reset may overtake those that the client did not read.
                    let got = if matches!(act, Act::Answer(_)) { &got[..1] } else { got };
                    let is_told = |got: &String| seen.starts_with(&format!("{method} {got} {status}"));
                    assert!(got.iter().any(is_told), "{what}: {seen}");
                    // The server does not go on for nobody, and other calls are untouched.
                    assert!(method != "Ticks" || seen.contains("\nWasCancelled b'yes'\n"), "{what}: {seen}");
                    assert!(seen.ends_with("\nMetadata OK\n"), "{what}: {seen}");
                    board.wait("1.1 reached Message(3)");
                    let closed =
                        if matches!(act, Act::Answer(_)) { "1.1 closed Complete" } else { "1.1 closed ByFault" };
                    board.wait(closed);
                }
            }
        }
    }
}
