//! Pods with a sidecar to which the kernel redirects, and applications that know nothing of it.
//!
//! Root and the programs that make networks and rules are needed; without them a test says so and passes, unless
//! `AFTERSHOCK_REQUIRE_PEERS=1`.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use aftershock_lab::net::{Family, Namespace, NetError, PodNetwork};
use rustix::process::{Gid, Pid, Signal, kill_process};
use rustix::thread::set_thread_gid;
use tempfile::TempDir;

use super::brain;
use super::peers::present;
use super::sidecar::Sidecar;
use super::wire::{self, HANG};

/// The group whose traffic is not redirected, unless configured.
const GROUP: u32 = 4700;
/// Where the sidecars of these tests tell what they do.
const ADMIN: &str = "127.0.0.1:15020";

/// The program as it is shipped.
pub(crate) fn proxy() -> Command {
    Command::new(env!("CARGO_BIN_EXE_aftershock-proxy"))
}

/// A namespace of its own, with nothing but loopback; none where tests cannot have any.
pub(crate) fn namespace(test: &str, programs: &[(&str, &str)]) -> Option<Namespace> {
    able(test, programs).then(|| made(test, Namespace::new())).flatten()
}

/// A network with these pods.
pub(crate) fn network(test: &str, family: Family, pods: &[&str]) -> Option<PodNetwork> {
    if !able(test, &[("nft", "nftables")]) {
        return None;
    }
    let mut network = made(test, PodNetwork::new(family))?;
    for pod in pods {
        network.add(pod).expect("a pod");
    }
    Some(network)
}

fn able(test: &str, programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(program, package)| present(test, package, super::peers::installed(program).is_some()))
}

fn made<T>(test: &str, made: Result<T, NetError>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error @ (NetError::Missing { .. } | NetError::NotPermitted { .. })) => {
            present(test, &error.to_string(), false);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs a program in a namespace to its end.
pub(crate) fn run(inside: &Namespace, command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    inside.spawn(command).expect("it starts").wait_with_output().expect("it ends")
}

/// The same, of a program that must succeed; what it printed.
pub(crate) fn succeed(inside: &Namespace, command: &mut Command) -> String {
    let output = run(inside, command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Two pods with a sidecar each, `front` calling `back`: sidecars of this process, whose brains are registered and have a
/// round armed. They are there as long as this process; tests share them.
pub(crate) struct Redirected {
    pub(crate) front: Namespace,
    pub(crate) back: Namespace,
    pub(crate) address: IpAddr,
    _network: PodNetwork,
    _sidecars: Vec<Sidecar>,
}

impl Redirected {
    /// None where tests cannot have any.
    pub(crate) fn pods() -> Option<&'static Self> {
        static PODS: OnceLock<Option<Redirected>> = OnceLock::new();
        PODS.get_or_init(|| network("redirected", Family::V4, &["front", "back"]).map(Self::new)).as_ref()
    }

    fn new(network: PodNetwork) -> Self {
        let [front, back] = ["front", "back"].map(|pod| inside(&network, pod));
        let address = addresses(&network, "back")[0];
        let beside = |namespace: &Namespace, service: &str| {
            succeed(namespace, &mut Configured::new(service, "{}").redirect("apply", "nft"));
            let start = || {
                // Of this thread and those that it starts: the identity by which the rules know a sidecar.
                set_thread_gid(Gid::from_raw(GROUP)).expect("root may");
                brain::redirected(service, address)
            };
            namespace.run(start).expect("a thread")
        };
        let sidecars = vec![beside(&front, "front"), beside(&back, "back")];
        Self { front, back, address, _network: network, _sidecars: sidecars }
    }
}

/// A configuration file with a section `transparent`.
pub(crate) struct Configured {
    folder: TempDir,
}

impl Configured {
    pub(crate) fn new(service: &str, transparent: &str) -> Self {
        Self::with(service, transparent, "")
    }

    /// With further lines.
    pub(crate) fn with(service: &str, transparent: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: {service}\nadmin: {ADMIN}\n\
             transparent: {transparent}\n{more}"
        );
        std::fs::write(folder.path().join("sidecar.yaml"), text).expect("a file");
        Self { folder }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("sidecar.yaml")
    }

    /// `aftershock-proxy redirect …` with it.
    pub(crate) fn redirect(&self, action: &str, backend: &str) -> Command {
        let mut command = proxy();
        command.args(["redirect", action, "--backend", backend, "--config"]).arg(self.file());
        command
    }
}

/// A sidecar that runs in a namespace, with the rules that lead to it.
pub(crate) struct Beside {
    inside: Namespace,
    process: Child,
}

impl Beside {
    /// The application beside it need not have started, nor be told.
    pub(crate) fn start(inside: &Namespace, service: &str, transparent: &str) -> Self {
        Self::configured(inside, &Configured::new(service, transparent))
    }

    pub(crate) fn configured(inside: &Namespace, configured: &Configured) -> Self {
        succeed(inside, &mut configured.redirect("apply", "nft"));
        let mut command = proxy();
        command.arg("--config").arg(configured.file()).arg("--exit-with-stdin").gid(GROUP).stdin(Stdio::piped());
        command.stderr(Stdio::null());
        let process = inside.spawn(&mut command).expect("it starts");
        let mut beside = Beside { inside: inside.clone(), process };
        // Operators are answered when everything else listens.
        let deadline = Instant::now() + HANG;
        while beside.asked().is_none() {
            assert!(beside.process.try_wait().expect("it is ours").is_none(), "the sidecar has ended");
            assert!(Instant::now() < deadline, "the sidecar does not start");
            std::thread::yield_now();
        }
        beside
    }

    fn asked(&self) -> Option<String> {
        let address: SocketAddr = ADMIN.parse().expect("an address");
        let mut stream = self.inside.run(|| TcpStream::connect(address)).expect("a thread").ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: o\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// What the sidecar has counted: accepted connections of callers, of the application, and those that are opaque.
    pub(crate) fn counted(&self) -> [u64; 3] {
        let text = self.asked().expect("the sidecar answers");
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
            value.trim().parse().expect("a number")
        };
        [
            value("aftershock_connections_total{direction=\"inbound\"}"),
            value("aftershock_connections_total{direction=\"outbound\"}"),
            value("aftershock_opaque_connections_total"),
        ]
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn end(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("it runs");
        // The end of its input would be a second request, to end at once; waiting closes it.
        let input = self.process.stdin.take();
        let status = self.process.wait().expect("it ends");
        drop(input);
        status
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The namespace of a pod.
pub(crate) fn inside(network: &PodNetwork, pod: &str) -> Namespace {
    network.pod(pod).expect("it is there").namespace().clone()
}

/// The addresses of a pod.
pub(crate) fn addresses(network: &PodNetwork, pod: &str) -> Vec<IpAddr> {
    network.pod(pod).expect("it is there").addresses()
}

/// An application's listening socket.
pub(crate) fn listen(inside: &Namespace, address: impl Into<SocketAddr> + Send) -> TcpListener {
    inside.run(|| TcpListener::bind(address.into())).expect("a thread").expect("a free address")
}

/// An application's connection.
pub(crate) fn connect(inside: &Namespace, address: SocketAddr) -> TcpStream {
    inside.run(|| wire::connect(address)).expect("a thread")
}
