//! The binary `aftershock-proxy` as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::wire::HANG;

/// A running sidecar.
pub(crate) struct Process {
    /// Where its listeners are, in the order of the configuration.
    pub(crate) addresses: Vec<SocketAddr>,
    child: Child,
    /// Its log is at its end.
    ended: mpsc::Receiver<()>,
    _folder: tempfile::TempDir,
}

impl Process {
    /// Starts it with what follows `kind: Sidecar`; listeners at port 0 get free ports.
    pub(crate) fn start(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("sidecar.yaml");
        std::fs::write(&config, format!("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\n{text}")).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_aftershock-proxy"))
            .arg("--config")
            .arg(&config)
            .env("AFTERSHOCK_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the sidecar runs");
        let listeners = text.matches("listen: ").count();
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let listening = |line: String| line.split_once(" at=").and_then(|(_, at)| at.split(' ').next()?.parse().ok());
        let addresses = log.by_ref().map_while(Result::ok).filter_map(listening).take(listeners).collect::<Vec<_>>();
        assert_eq!(addresses.len(), listeners, "the sidecar says where it listens");
        let (sender, ended) = mpsc::channel();
        // It must not block on a log that nobody reads.
        thread::spawn(move || {
            log.for_each(drop);
            let _ = sender.send(());
        });
        Self { addresses, child, ended, _folder: folder }
    }

    /// One in front of `origin`, with further lines of configuration.
    pub(crate) fn before(origin: SocketAddr, further: &str) -> Self {
        Self::start(&format!("service: back\ninbound:\n  - {{listen: \"127.0.0.1:0\", to: \"{origin}\"}}\n{further}"))
    }

    /// Octets of memory it occupies.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a Linux kernel");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
    }

    /// Its end, if that comes.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.ended.recv_timeout(HANG).expect("the sidecar ends");
        self.child.wait().expect("it is our child")
    }

    /// The most memory that was resident at once, in KiB.
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says it");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
