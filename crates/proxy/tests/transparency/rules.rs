//! Rules that change while traffic flows: whoever was told that they are in force may rely on it, whenever its connection
//! was opened.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aftershock_core::event::ApiRef;
use aftershock_core::id::Token;
use aftershock_core::name::Api;
use aftershock_core::plan::{ErrorAnswer, Fault, Phase, Rule};
use aftershock_core::wire::{Arm, FromController, Tagging};

use crate::support::application::Application;
use crate::support::brain::{Back, TOKEN};
use crate::support::http2::{Came, Echo, End, Http2};
use crate::support::load::{answer_all, response};
use crate::support::rules::{everywhere, rule};
use crate::support::sidecar::Sidecar;
use crate::support::wire::{HANG, connect};

/// What is armed at a stage, and the status that every request then gets.
struct Stage {
    path: &'static str,
    fault: Option<Fault>,
    /// Of so many requests in a million.
    per_million: u32,
    status: &'static str,
}

fn stages() -> Vec<Stage> {
    let stage = |path, fault, per_million, status| Stage { path, fault, per_million, status };
    let teapot = || Fault::Error(ErrorAnswer { status: Some(418), ..ErrorAnswer::default() });
    vec![
        stage("", None, 0, "200"),
        stage("/load", Some(Fault::Abort), 1_000_000, "503"),
        stage("/load", Some(teapot()), 1_000_000, "418"),
        stage("/nobody-calls-this", Some(Fault::Abort), 1_000_000, "200"),
        stage("/load", Some(Fault::Abort), 1_000_000, "503"),
        stage("/load", Some(Fault::Abort), 0, "200"),
        stage("", None, 0, "200"),
    ]
}

/// Makes a request on a connection that was opened before, and tells the status of its answer.
type Client = Box<dyn FnMut() -> String + Send>;

fn over_http_1(sidecar: SocketAddr) -> Client {
    let mut stream = connect(sidecar);
    Box::new(move || {
        stream.write_all(b"GET /load HTTP/1.1\r\nHost: h\r\n\r\n").expect("the connection stays");
        let seen = response(&mut stream).expect("an answer on the same connection");
        seen.split(' ').nth(1).expect("a status").to_owned()
    })
}

fn over_http_2(sidecar: SocketAddr) -> Client {
    let mut connection = Http2::connect(sidecar);
    Box::new(move || {
        let stream = connection.open("GET", "/load", &[], true);
        let seen = connection.ended(stream);
        assert_eq!(seen.ended, Some(End::Stream));
        seen.field(":status").expect("a status").to_owned()
    })
}

/// Swaps rules while clients call a server at `origin`, each on one connection. `between` runs in every stage.
fn swap_rules(origin: SocketAddr, client: fn(SocketAddr) -> Client, mut between: impl FnMut(&Sidecar)) -> Sidecar {
    const CLIENTS: usize = 8;
    let (sidecar, mut controller) = Back::before(origin).told();
    let stages = stages();
    // One for each stage; each has made a request before all of this, and then nothing until its stage has come.
    let mut idle: Vec<Client> = stages.iter().map(|_| client(sidecar.address)).collect();
    assert!(idle.iter_mut().all(|client| client() == "200"));
    // Even while a stage is in force, odd while it changes.
    let (stage, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let judged: Vec<AtomicUsize> = (0..CLIENTS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for judged in &judged {
            let mut client = client(sidecar.address);
            let (stage, over, stages) = (&stage, &over, &stages);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let before = stage.load(Ordering::SeqCst);
                    let status = client();
                    if before.is_multiple_of(2) && before == stage.load(Ordering::SeqCst) {
                        let Stage { fault, path, status: expected, .. } = &stages[before / 2];
                        assert_eq!(status, *expected, "{fault:?} of {path}");
                        judged.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let mut last = None;
        for (number, (armed, mut idle)) in stages.iter().zip(idle).enumerate() {
            if number > 0 {
                stage.fetch_add(1, Ordering::SeqCst);
                if let Some(token) = last.take() {
                    controller.say(FromController::Disarm { token });
                    controller.say(FromController::End { token });
                }
                if let Some(fault) = &armed.fault {
                    let token = Token(number as u64);
                    let api = format!("back GET {}", armed.path);
                    let tagging = Tagging { headers: BTreeMap::new(), per_million: armed.per_million };
                    controller.say(FromController::Arm(Arm {
                        rules: vec![everywhere(rule(None, &api, 1, Phase::Request, fault.clone()))],
                        tagging: Some(tagging),
                        ..Arm::clean(token, Duration::from_secs(3600))
                    }));
                    last = Some(token);
                }
                stage.fetch_add(1, Ordering::SeqCst);
            }
            assert_eq!(idle(), armed.status, "on a connection that was idle: {:?} of {}", armed.fault, armed.path);
            between(&sidecar);
            // Every connection, each opened before all of this, has its share of every stage.
            let wanted: Vec<_> = judged.iter().map(|judged| judged.load(Ordering::SeqCst) + 50).collect();
            let begun = Instant::now();
            while judged.iter().zip(&wanted).any(|(judged, wanted)| judged.load(Ordering::SeqCst) < *wanted) {
                if begun.elapsed() > HANG {
                    over.store(true, Ordering::SeqCst);
                    panic!("stage {number} does not come about: {judged:?}");
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    sidecar
}

#[test]
fn after_the_acknowledgement_every_request_sees_the_new_rules() {
    let sidecar = swap_rules(answer_all(), over_http_1, |_| {});
    let mut silent = connect(sidecar.address);
    silent.write_all(b"GET /load HTTP/1.0\r\n\r\n").expect("open");
    assert!(silent.read(&mut [0; 100]).is_ok_and(|read| read > 0));
}

#[test]
fn after_the_acknowledgement_every_stream_sees_the_new_rules_and_those_under_way_go_on() {
    let origin = Echo::start();
    // A stream that was opened before any rule, to the very Api that the rules are about: pieces go both ways in each stage.
    let mut under_way: Option<(Http2, u32)> = None;
    let mut sent = Vec::new();
    let _sidecar = swap_rules(origin.address, over_http_2, |sidecar| {
        let (connection, stream) = under_way.get_or_insert_with(|| {
            let mut connection = Http2::connect(sidecar.address);
            let stream = connection.open("GET", "/load", &[], false);
            (connection, stream)
        });
        let piece = format!("piece {}, ", sent.len());
        connection.data(*stream, piece.as_bytes(), false);
        sent.extend_from_slice(piece.as_bytes());
        connection.until(*stream, |came| came.body == sent);
    });
    let (mut connection, stream) = under_way.expect("there were stages");
    connection.data(stream, b"the end", true);
    let Came { fields, body, ended } = connection.ended(stream);
    assert_eq!((body, ended), ([&sent[..], b"the end"].concat(), Some(End::Stream)));
    assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
}

/// What a prober asks.
struct Probe {
    method: &'static str,
    path: &'static str,
    fields: &'static [(&'static str, &'static str)],
    api: &'static str,
}

const KUBELET: &[(&str, &str)] = &[("user-agent", "kube-probe/1.33")];
const PROBES: [Probe; 3] = [
    Probe { method: "GET", path: "/live", fields: KUBELET, api: "back GET /live" },
    Probe { method: "GET", path: "/", fields: KUBELET, api: "back GET /" },
    Probe {
        method: "POST",
        path: "/grpc.health.v1.Health/Check",
        fields: &[("content-type", "application/grpc"), ("te", "trailers")],
        api: "back grpc.health.v1.Health/Check",
    },
];

/// The k-th request is answered with an error, whatever its path.
fn every_path(caller: Option<&str>, k: u32) -> Rule {
    let apis: Vec<Api> = PROBES.iter().map(|probe| probe.api.parse().expect("an Api")).collect();
    let mut rule = everywhere(rule(caller, PROBES[0].api, k, Phase::Request, Fault::Abort));
    rule.apis = apis.into_iter().collect();
    rule.tfic.target.api = ApiRef::Group("everything".parse().expect("a name"));
    rule
}

/// Whether a request of HTTP/2 passes.
fn passes(connection: &mut Http2, probe: &Probe, fields: &[(&str, &str)]) -> bool {
    let stream = connection.open(probe.method, probe.path, fields, true);
    let seen = connection.ended(stream);
    (seen.field(":status"), seen.field("grpc-status")) == (Some("200"), Some("0"))
}

#[test]
fn probes_of_a_callee_pass_uncounted_while_every_path_is_faulted() {
    let origin = Echo::start();
    let (sidecar, mut controller) = Back::before(origin.address).told();
    controller.say(FromController::Arm(Arm {
        rules: vec![every_path(None, 1)],
        tagging: Some(Tagging { headers: BTreeMap::new(), per_million: 1_000_000 }),
        ..Arm::clean(TOKEN, Duration::from_secs(3600))
    }));
    let mut connection = Http2::connect(sidecar.address);
    for probe in &PROBES {
        assert!(passes(&mut connection, probe, probe.fields), "the probe of {}", probe.path);
    }
    // The same paths without the name of a prober are faulted, each in an execution of its own.
    for probe in &PROBES[..2] {
        assert!(!passes(&mut connection, probe, &[]), "{}", probe.path);
    }
    assert_eq!(origin.requests().len(), PROBES.len(), "the probes, and nothing else");
    for span in controller.spans(2) {
        assert!(span.injection.is_some_and(|one| one.k == 1), "{}", span.api);
    }
    assert!(controller.no_spans(), "probes are not recorded");
}

#[test]
fn probes_between_the_calls_of_an_execution_pass_and_take_no_number() {
    let origin = Echo::start();
    let back = Back::before(origin.address).start();
    let mut application = Application::calling(&[back.address]);
    application.controller.arm(vec![every_path(Some("front"), 2)]);
    let entry = application.enter();
    let mut connection = Http2::connect(application.way_out);
    let probe_all = |connection: &mut Http2| {
        for probe in &PROBES {
            assert!(passes(connection, probe, &entry.behind(probe.fields)), "the probe of {}", probe.path);
        }
    };
    let call = |connection: &mut Http2| passes(connection, &PROBES[0], &entry.behind(&[]));
    probe_all(&mut connection);
    assert!(call(&mut connection), "the first call");
    probe_all(&mut connection);
    assert!(!call(&mut connection), "the second call");
    probe_all(&mut connection);
    let faulted: Vec<_> = application.controller.spans(2).iter().map(|span| span.injection.is_some()).collect();
    assert_eq!(faulted, [false, true]);
    application.leave(&entry);
    application.controller.spans(1);
    assert!(application.controller.no_spans(), "probes are not recorded");
}
