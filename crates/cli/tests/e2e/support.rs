//! Running the binary, and finding out what it left behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// `aftershock` with `arguments`, in the repository.
pub(crate) fn aftershock(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aftershock"));
    command.args(arguments).current_dir(root()).stdin(Stdio::null()).env_remove("AFTERSHOCK_CONTROLLER");
    command
}

/// Held by whoever runs a lab: its service times are real, and a second lab beside it on two cores would bend them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a finished command came to.
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Finished {
    /// Its stdout as JSON, with everything it said if it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr))
    }

    /// Fails with everything it said unless it ended with `code`.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// Run to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    aftershock(arguments).output().unwrap().into()
}

/// A running child that is killed and reaped when the test ends.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Send a signal, by its name.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Wait for its end, at most `within`.
    pub(crate) fn wait(mut self, within: Duration) -> Finished {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + within;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!(
                    "still running after {within:?}: {:?}",
                    Finished::from(child.wait_with_output().unwrap()).stderr
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processes whose parent is `pid`, and theirs.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let children = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may hold spaces; after it come the state and the parent.
            let of: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            (of == parent).then_some(pid)
        });
        for child in children {
            found.push(child);
            parents.push(child);
        }
    }
    found
}

/// Which of `pids` still run.
pub(crate) fn alive(pids: &[u32]) -> Vec<u32> {
    pids.iter()
        .copied()
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
        })
        .collect()
}

/// Ask until it is so, at most half a minute.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "not within half a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A loopback port that is free now.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Say aloud that a test needs something that is not here. Where everything was installed that is a failure.
pub(crate) fn skipped(test: &str, needs: &str) {
    assert!(std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_none(), "{test} needs {needs}");
    eprintln!("SKIPPED {test}: needs {needs}");
}

/// A controller and a lab as a user starts them, on addresses of their own.
pub(crate) struct System {
    pub(crate) control: Option<Running>,
    pub(crate) lab: Running,
    /// The controller's address.
    pub(crate) url: String,
    /// The lab's `127.x.y.`.
    pub(crate) prefix: String,
    /// Where scenario files and the store are.
    pub(crate) folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl System {
    /// Start `topology` with its sidecars registered.
    pub(crate) fn start(topology: &str, lab_arguments: &[&str]) -> System {
        let alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        // The kernel gave this port to nobody else, so a subnet made of it is as good as free. Replicas come after it.
        let subnet = format!("127.{}.{}", 1 + port / 256 % 254, (port % 256).min(250));
        let control = serve(&url, folder.path());
        let logs = folder.path().join("logs");
        let mut arguments = vec![
            "lab",
            "up",
            "--file",
            topology,
            "--subnet",
            &subnet,
            "--control",
            &url,
            "--logs",
            logs.to_str().unwrap(),
        ];
        arguments.extend(lab_arguments);
        let mut command = aftershock(&arguments);
        let mut lab = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        // The table of addresses comes when every process is ready.
        let mut line = String::new();
        let stdout = lab.0.as_mut().unwrap().stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert!(line.contains("service"), "the lab is up: {line:?}");
        let sidecars = match lab_arguments.contains(&"--without-sidecars") {
            true => 0,
            false => std::fs::read_to_string(root().join(topology)).unwrap().matches("{server: ").count(),
        };
        run(&["status", "--wait", &sidecars.to_string(), "--control", &url]).expect(0);
        System { control: Some(control), lab, url, prefix: format!("{subnet}."), folder, _alone: alone }
    }

    /// A file of the repository, changed by `edit` and put onto this lab's addresses; its path.
    pub(crate) fn file(&self, path: &str, edit: impl FnOnce(String) -> String) -> String {
        let text = std::fs::read_to_string(root().join(path)).unwrap().replace("127.77.1.", &self.prefix);
        let mut to = self.folder.path().join(path.replace('/', "-"));
        while to.exists() {
            to.set_extension(format!("{}.yaml", to.extension().unwrap().to_str().unwrap()));
        }
        std::fs::write(&to, edit(text)).unwrap();
        to.to_str().unwrap().to_owned()
    }

    /// `aftershock` against this controller.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        aftershock(arguments).args(["--control", &self.url]).output().unwrap().into()
    }

    /// Wait until a round with a fault runs; its business key.
    pub(crate) fn key_of_the_fault(&self) -> String {
        let mut key = String::new();
        eventually("the round runs", || {
            let rounds = self.run(&["rounds", "--format", "json"]).json();
            let running = rounds.as_array().unwrap().iter().find(|round| round["faults"] == 1);
            key = running.map_or(String::new(), |round| round["key"].as_str().unwrap().to_owned());
            !key.is_empty()
        });
        key
    }

    /// Start a round of the Online Boutique that keeps the answer to a charge for thirty seconds, and wait until it does.
    pub(crate) fn park_a_charge(&self) -> ParkedCharge {
        let scenario = self.file("scenarios/online-boutique/checkout.yaml", |text| {
            text.replace("timeout: 2s", "timeout: 40s")
                .replace("      retry: {attempts: 2, on: [timeout, transport]}\n", "")
        });
        self.run(&["record", &scenario, "--rounds", "2"]).expect(0);
        let fault = self.file("scenarios/online-boutique/lost-charge.yaml", |text| {
            text.replace("        post_effect: true\n", "")
                .replace("fault: drop", "fault: {delay: 30s}")
                .replace("      pattern: post-effect\n", "")
        });
        let mut command =
            aftershock(&["inject", &fault, "--scenario", &scenario, "--control", &self.url, "--format", "json"]);
        let inject = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let key = self.key_of_the_fault();
        // The charge is made, its answer is parked at the checkout's sidecar.
        eventually("the charge was answered", || self.events(8, &key).contains("response-sent"));
        assert!(!self.events(9, &key).contains("request-received"), "no mail was asked for yet");
        ParkedCharge { inject, key }
    }

    /// An experiment on the Online Boutique from its beginning to its end: what is declared happens.
    pub(crate) fn lose_a_charge(&self) {
        let checkout = self.file("scenarios/online-boutique/checkout.yaml", |text| text);
        let lost = self.file("scenarios/online-boutique/lost-charge.yaml", |text| text);
        self.run(&["record", &checkout, "--rounds", "2"]).expect(0);
        let report = self.run(&["inject", &lost, "--scenario", &checkout, "--format", "json"]).expect(0).json();
        assert_eq!(report["injected"], 1, "{report:#}");
    }

    /// Kill the controller without giving it a chance.
    pub(crate) fn kill_control(&mut self) {
        self.control = None;
    }

    /// Start the controller again, on the same store.
    pub(crate) fn restart_control(&mut self) {
        self.control = Some(serve(&self.url, self.folder.path()));
    }

    /// Kill a process of the lab without giving it a chance. The lab, which would stop everything, sleeps from then on.
    fn kill(&self, pid: u32) {
        self.lab.signal("STOP");
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
        eventually("a killed process has ended", || alive(&[pid]).is_empty());
    }

    /// Kill a service's sidecar and start another in its place, which must register.
    pub(crate) fn replace_sidecar(&self, service: &str) -> Running {
        let pid = self.sidecar_of(service);
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let mut words = line.trim_end_matches('\0').split('\0');
        self.kill(pid);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(root()).stdout(Stdio::null()).stderr(Stdio::null());
        Running::start(command.stdin(Stdio::piped()))
    }

    /// Kill a service that calls nobody, at `host`, and start another in its place, which knows nothing.
    pub(crate) fn replace_leaf(&self, topology: &str, service: &str, host: u8) -> Running {
        let sidecar = std::fs::read_to_string(self.folder.path().join(format!("logs/{service}.sidecar.yaml"))).unwrap();
        let listen = sidecar.split_once("to: \"").unwrap().1.split_once('"').unwrap().0;
        let admin = format!("{}{host}:30000", self.prefix);
        let health: serde_json::Value = serde_json::from_str(&get(&admin, "/healthz")).unwrap();
        self.kill(u32::try_from(health["pid"].as_u64().unwrap()).unwrap());
        let spec = serde_json::json!({
            "schema": aftershock_lab::service::SPEC_SCHEMA,
            "topology_file": topology,
            "topology": std::fs::read_to_string(root().join(topology)).unwrap(),
            "service": service,
            "listen": listen,
            "admin": admin,
            "callees": {},
            "propagation": null,
        });
        let mut command = aftershock(&["lab-service"]);
        let mut started = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()));
        let stdin = started.0.as_mut().unwrap().stdin.as_mut().unwrap();
        std::io::Write::write_all(stdin, format!("{spec}\n").as_bytes()).unwrap();
        eventually("the service is there again", || std::net::TcpStream::connect(&admin).is_ok());
        started
    }

    /// The process id of a service's sidecar.
    pub(crate) fn sidecar_of(&self, service: &str) -> u32 {
        let config = format!("{service}.sidecar.yaml");
        descendants(self.lab.pid())
            .into_iter()
            .find(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&config))
            })
            .unwrap()
    }

    /// The event log of the service at `host`, about a business key.
    pub(crate) fn events(&self, host: u8, key: &str) -> String {
        get(&format!("{}{host}:30000", self.prefix), &format!("/events?key={key}"))
    }

    /// How many entries a service's ledger has for a business key.
    pub(crate) fn ledger(&self, host: u8, name: &str, key: &str) -> u64 {
        let body = get(&format!("{}{host}:30000", self.prefix), &format!("/ledgers/{name}?key={key}"));
        serde_json::from_str::<serde_json::Value>(&body).unwrap()["count"].as_u64().unwrap()
    }
}

/// What [`System::park_a_charge`] started.
pub(crate) struct ParkedCharge {
    /// `aftershock inject`.
    pub(crate) inject: Running,
    /// The round's business key.
    pub(crate) key: String,
}

pub(crate) fn serve(url: &str, folder: &Path) -> Running {
    let store = folder.join("rounds.db");
    let listen = &url["http://".len()..];
    let mut command = aftershock(&["control", "serve", "--listen", listen, "--store", store.to_str().unwrap()]);
    Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// The answer to one request on a connection of its own: head and body.
pub(crate) fn ask(address: &str, method: &str, path: &str, lines: &str, body: &str) -> (String, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n{lines}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The body of a plain GET, which must be answered with 200.
pub(crate) fn get(address: &str, path: &str) -> String {
    let (head, body) = ask(address, "GET", path, "", "");
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    body
}
