//! The processes of a lab: started, watched, ended, never left behind.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aftershock_lab::{Launcher, Options, Role, RunningLab, Topology, UpError, up};

use crate::client::{post, request, try_send};
use crate::running::{service_launcher, start};
use crate::topology_files::shipped;

fn program(path: &str, args: &[&str]) -> Launcher {
    Launcher { program: path.into(), args: args.iter().map(Into::into).collect() }
}

fn relay() -> Launcher {
    program(env!("CARGO_BIN_EXE_aftershock-lab-relay"), &[])
}

fn pids(lab: &RunningLab) -> Vec<u32> {
    lab.processes().map(|(_, _, pid)| pid).collect()
}

/// Zombies are there as well: they have an entry until they are reaped.
fn exists(pid: &u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn dropping_a_lab_kills_and_reaps_every_process() {
    let lab = start(shipped("fig2-patterns")).await;
    let (pids, directory) = (pids(&lab), lab.directory().to_owned());
    assert_eq!(pids.len(), 7);
    assert!(pids.iter().all(exists));
    drop(lab);
    assert!(!pids.iter().any(exists));
    assert!(!directory.exists());
}

#[tokio::test]
async fn stopping_a_lab_lets_every_process_end_by_itself() {
    let options = Options { sidecar: Some(relay()), ..Options::new(service_launcher()) };
    let lab = up(shipped("fig2-patterns"), &options).await.unwrap();
    let pids = pids(&lab);
    assert_eq!(pids.len(), 14);
    let ended = lab.stop(Duration::from_secs(10)).await;
    assert!(!pids.iter().any(exists));
    assert_eq!(ended.len(), 14);
    for process in ended {
        match process.role {
            Role::Service => assert!(process.status.success(), "{process:?}"),
            // The relay does not handle it: SIGTERM itself.
            Role::Sidecar => assert_eq!(process.status.signal(), Some(15), "{process:?}"),
        }
    }
}

#[test]
fn a_service_ends_with_its_standard_input() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A lab whose process is gone without a word leaves exactly this: closed pipes.
    let mut child =
        Command::new(service_launcher().program).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let topology = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies/fig2-patterns.yaml"));
    let spec = serde_json::json!({
        "schema": aftershock_lab::service::SPEC_SCHEMA,
        "topology_file": "fig2-patterns.yaml",
        "topology": topology.unwrap(),
        "service": "payment",
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "callees": {},
        "propagation": null,
    });
    writeln!(child.stdin.as_mut().unwrap(), "{spec}").unwrap();
    drop(child.stdin.take());
    let output = runtime.block_on(async { child.wait_with_output() }).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let error = up(shipped("fig2-patterns"), &Options::new(program("/nowhere/service", &[]))).await.unwrap_err();
    assert!(matches!(&error, UpError::Start { role: Role::Service, .. }), "{error}");
    assert_eq!(error.to_string(), "cannot start the service of gateway, /nowhere/service");
}

#[tokio::test]
async fn a_process_that_ends_early_is_reported_with_its_last_words() {
    let sidecar = program("/bin/sh", &["-c", "echo no sidecar today >&2; exit 3"]);
    let options = Options { sidecar: Some(sidecar), ..Options::new(service_launcher()) };
    let error = up(shipped("fig2-patterns"), &options).await.unwrap_err();
    let UpError::Ended { role: Role::Sidecar, status, output, .. } = &error else { panic!("{error}") };
    assert_eq!((status.code(), output.as_str()), (Some(3), "no sidecar today"));
}

#[tokio::test]
async fn a_process_that_never_becomes_ready_is_given_up() {
    let sidecar = program("/bin/sh", &["-c", "echo thinking; read never"]);
    let ready_within = Duration::from_millis(300);
    let options = Options { sidecar: Some(sidecar), ready_within, ..Options::new(service_launcher()) };
    let started = Instant::now();
    let error = up(shipped("fig2-patterns"), &options).await.unwrap_err();
    assert!(started.elapsed() >= ready_within);
    let UpError::NotReady { role: Role::Sidecar, service, output, .. } = &error else { panic!("{error}") };
    assert_eq!((service.as_str(), output.as_str()), ("gateway", "thinking"));
}

#[tokio::test]
async fn a_crash_that_the_topology_asks_for_ends_the_process() {
    let text = "\
apiVersion: aftershock.dev/v1alpha1
kind: Topology
metadata: {name: fragile}
services:
  web: {server: http1, port: 8080, propagation: none, client: {timeout: 2s}}
  pay: {server: http1, port: 7000, propagation: leaf}
apis:
  order: {service: web, http: POST /order}
  charge: {service: pay, http: 'GET /charge/{id}', refuse: {keys_starting_with: bad, status: 402}}
handlers:
  order:
    steps:
      - call: charge
        on_failure: {transport: {fail: 502}, status: crash, hang: {fail: 504}}
";
    let mut lab = start(Topology::parse("fragile.yaml", text).unwrap()).await;
    let web = lab.address("web").unwrap();
    assert_eq!(post(web, "/order?key=good").await.0, 200);
    assert!(lab.ended().is_empty());
    // The connection closes instead of an answer.
    try_send(web, request("POST", "/order?key=bad", &[])).await.unwrap_err();
    let deadline = Instant::now() + Duration::from_secs(10);
    while lab.ended().is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ended = lab.ended();
    assert_eq!((ended.len(), ended[0].service.as_str(), ended[0].status.code()), (1, "web", Some(1)));
    assert!(ended[0].output.contains("charge: 402"), "{}", ended[0].output);
}

#[tokio::test]
async fn with_sidecars_every_call_passes_two_of_them_and_the_ledgers_are_the_same() {
    let options = Options { sidecar: Some(relay()), ..Options::new(service_launcher()) };
    let lab = up(shipped("online-boutique"), &options).await.unwrap();
    let (status, body) = post(lab.entry("checkout").unwrap(), "/cart/checkout?key=k").await;
    assert_eq!(status, 200, "{body}");
    for ledger in ["charges", "shipments", "emails"] {
        assert_eq!(lab.ledger(ledger, "k").await.unwrap().count, 1, "{ledger}");
    }
    assert_eq!(lab.ledger("carts", "k").await.unwrap().cleared, 1);
    assert!(lab.events("k").await.unwrap().is_complete());

    // Applications end first, so that each relay sees its connections close and says how much they carried.
    let directory = tempfile::tempdir().unwrap();
    let options = Options { directory: Some(directory.path().to_owned()), ..options };
    let lab = up(shipped("online-boutique"), &options).await.unwrap();
    assert_eq!(post(lab.entry("checkout").unwrap(), "/cart/checkout?key=k").await.0, 200);
    for (_, _, pid) in lab.processes().filter(|(role, _, _)| *role == Role::Service) {
        let kill = Command::new("/bin/kill").arg(pid.to_string()).status().unwrap();
        assert!(kill.success());
    }
    let carried = |service: &str, role: &str| {
        let log = std::fs::read_to_string(directory.path().join(format!("{service}.sidecar.log"))).unwrap();
        log.lines().any(|line| line.starts_with(role) && !line.ends_with(" 0 bytes"))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    for (service, role) in [
        ("frontend", "inbound of frontend"),
        ("frontend", "outbound to checkoutservice"),
        ("checkoutservice", "inbound of checkoutservice"),
        ("checkoutservice", "outbound to paymentservice"),
        ("paymentservice", "inbound of paymentservice"),
    ] {
        while !carried(service, role) {
            assert!(Instant::now() < deadline, "{role} carried nothing");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn a_killed_service_that_is_durable_has_its_log_and_ledgers_again_and_another_starts_with_nothing() {
    for durable in [true, false] {
        let options = Options { durable, ..Options::new(service_launcher()) };
        let mut lab = up(shipped("fan"), &options).await.unwrap();
        assert_eq!(post(lab.entry("batch").unwrap(), "/batch?key=k").await.0, 200);
        let before = lab.events("k").await.unwrap();
        assert_eq!(lab.ledger("items", "k").await.unwrap().count, 6);
        let of = |lab: &RunningLab| lab.processes().find(|(_, service, _)| *service == "store").unwrap().2;
        let killed = of(&lab);
        assert!(lab.kill(killed));
        assert!(!lab.kill(killed), "it does not run any more");
        assert!(!lab.kill(std::process::id()), "no process of the lab");
        assert!(!exists(&killed));
        lab.revive().await.unwrap();
        assert_ne!(of(&lab), killed);
        assert!(lab.ended().is_empty());
        let ledger = lab.ledger("items", "k").await.unwrap();
        assert_eq!(ledger.count, if durable { 6 } else { 0 });
        if durable {
            assert_eq!(lab.events("k").await.unwrap().events(), before.events());
        }
        // Its callers find it again.
        assert_eq!(post(lab.entry("batch").unwrap(), "/batch?key=again").await.0, 200);
        assert_eq!(lab.ledger("items", "again").await.unwrap().count, 6);
    }
}
