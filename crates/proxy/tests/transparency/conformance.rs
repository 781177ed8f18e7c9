//! Raw HTTP/2 frames: the h2spec conformance suite against nghttpd, and its sibling for clients against nghttp, directly
//! and through sidecars. A sidecar fails nothing that the peer behind it passes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use aftershock_proxy::exchange::Door;

use crate::support::peers::{Nghttpd, from_registry, has_nghttp, has_nghttpd, present};
use crate::support::sidecar::{Board, Recorder, Sidecar};
use crate::support::way::{Stage, Way};

/// Cases of servers and clients that the suite has, at least: it did run.
const SERVER_CASES: usize = 140;
const CLIENT_CASES: usize = 50;
/// Seconds after which a case has failed. Cases that pass do not wait.
const PATIENCE: &str = "10";

/// The cases of a report and whether each passed.
fn cases(report: &Path) -> BTreeMap<String, bool> {
    let text = std::fs::read_to_string(report).expect("the suite wrote its report");
    let cases = text.split("<testcase ").skip(1).map(|case| {
        let attribute = |name: &str| {
            let (_, rest) = case.split_once(&format!("{name}=\"")).expect("an attribute");
            rest.split('"').next().expect("a value").to_owned()
        };
        let passed = !case.split("</testcase>").next().is_some_and(|body| body.contains("<failure"));
        (format!("{} {}", attribute("package"), attribute("classname")), passed)
    });
    cases.collect()
}

/// The same from what the suite for clients prints: a line per case under the heading of its section.
fn printed_cases(text: &str) -> BTreeMap<String, bool> {
    let mut section = "";
    let mut cases = BTreeMap::new();
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Failures:")) {
        if let Some((case, passed)) =
            line.strip_prefix('✔').map(|case| (case, true)).or_else(|| line.strip_prefix('×').map(|case| (case, false)))
        {
            cases.insert(format!("{section}{case}"), passed);
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            section = line;
        }
    }
    cases
}

fn passed(cases: &BTreeMap<String, bool>) -> BTreeSet<&str> {
    cases.iter().filter(|(_, passed)| **passed).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_sidecar_passes_every_frame_level_case_that_the_server_behind_it_passes() {
    let test = "a_sidecar_passes_every_frame_level_case_that_the_server_behind_it_passes";
    let suite = from_registry("h2spec");
    if !(present(test, "nghttp2-server", has_nghttpd()) && present(test, "h2spec", suite.is_some())) {
        return;
    }
    let run = |stage: &Stage| {
        let server = stage.as_origin(|host| Nghttpd::at(host, &[]));
        let route = stage.lead_to(server.address);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let report = folder.path().join("report.xml");
        // What fails directly would wait; there is no need to be patient.
        let patience = if stage.way == Way::Direct { "2" } else { PATIENCE };
        let (host, port) = (route.address.ip().to_string(), route.address.port().to_string());
        let mut command = Command::new(suite.as_ref().expect("it is present"));
        command
            .args(["--strict", "--host", &host, "--port", &port, "--timeout", patience, "--path", "/small.txt"])
            .arg("--junit-report")
            .arg(&report)
            .stdout(Stdio::null());
        stage.as_client(|| command.status()).expect("the suite runs");
        cases(&report)
    };
    let mut ways = Stage::every();
    let direct = run(&ways.next().expect("the direct one"));
    assert!(passed(&direct).len() >= SERVER_CASES, "{direct:?}");
    for stage in ways {
        let (through, way) = (run(&stage), stage.way);
        let lost: Vec<_> = passed(&direct).difference(&passed(&through)).copied().map(str::to_owned).collect();
        assert!(lost.is_empty(), "{way:?} fails {lost:?}");
    }
}

#[test]
fn a_sidecar_passes_every_frame_level_case_that_the_client_before_it_passes() {
    let test = "a_sidecar_passes_every_frame_level_case_that_the_client_before_it_passes";
    let suite = from_registry("h2specd");
    if !(present(test, "nghttp2-client", has_nghttp()) && present(test, "h2specd", suite.is_some())) {
        return;
    }
    const PORTS: u16 = 64;
    let run = |through: bool| {
        let first = free_ports(PORTS);
        let ports = first..first + PORTS;
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Each case of the suite listens on a port of its own; its client finds there where to go instead.
        let listeners: Vec<_> = ports
            .clone()
            .map(|port| {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
                let own = listener.local_addr().expect("a bound socket").port();
                let entrance = if through { own } else { port };
                std::fs::write(folder.path().join(port.to_string()), entrance.to_string()).expect("a file");
                (Door::Inbound(0), listener, vec![([127, 0, 0, 1], port).into()])
            })
            .collect();
        let sidecar = through.then(|| {
            let recorder = || std::rc::Rc::new(std::cell::RefCell::new(Recorder::new(Board::default())));
            Sidecar::run(listeners, move || recorder() as _)
        });
        let client = folder.path().join("client");
        let script = "#!/bin/sh\nport=${1##*:}\nport=${port%%/*}\n\
                      exec nghttp --timeout=10 \"http://127.0.0.1:$(cat \"${0%/*}/$port\")/\"\n";
        std::fs::write(&client, script).expect("a file");
        let out = Command::new(suite.as_ref().expect("it is present"))
            .args(["--host", "127.0.0.1", "--from-port", &first.to_string(), "--timeout", PATIENCE, "--exec"])
            .arg(format!("/bin/sh {}", client.display()))
            .stderr(Stdio::null())
            .output()
            .expect("the suite runs");
        drop(sidecar);
        printed_cases(&String::from_utf8_lossy(&out.stdout))
    };
    let direct = run(false);
    assert!(passed(&direct).len() >= CLIENT_CASES, "{direct:?}");
    let through = run(true);
    let lost: Vec<_> = passed(&direct).difference(&passed(&through)).copied().map(str::to_owned).collect();
    assert!(lost.is_empty(), "through a sidecar it fails {lost:?}");
}

/// The first of so many ports in a row at which nobody listens, out of those that are not given to connections.
fn free_ports(count: u16) -> u16 {
    let start = 16_384 + (std::process::id() % 128) as u16 * 64;
    let is_free = |first: &u16| (*first..first + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    (start..32_000).step_by(usize::from(count)).find(is_free).expect("some ports in a row are free")
}
