//! What operators see of the real binary: probes and metrics by curl, read by Prometheus' own parser; its logs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::Token;
use aftershock_core::plan::Rule;
use aftershock_core::wire::{Arm, FromController, FromSidecar, PROTOCOL, Registry};

use crate::support::peers::{PYTHON, curl, has_curl, present};
use crate::support::rules;

const ROUND: Token = Token(0x5ec2_e7a1_1ce0_77aa);
const SECRET: &str = "hidden hop keys!";
/// Nothing here takes as long.
const HANG: Duration = Duration::from_secs(20);

/// The head of a message and its body, if it says its length.
fn read_message(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head)
}

/// An application that answers every request with 200.
fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                while read_message(&mut stream).is_some() {
                    let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                }
            });
        }
    });
    address
}

/// The controller's end of the connection, with words and spans taken.
struct Controller {
    stream: BufReader<TcpStream>,
}

impl Controller {
    /// Takes spans and throws them away; the sidecar's connection comes out.
    fn serve(listener: TcpListener) -> mpsc::Receiver<Controller> {
        let (sender, sessions) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Some(head) = read_message(&mut stream) {
                        if head.starts_with("GET /v1/sidecar ") {
                            let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: aftershock/1\r\n\r\n";
                            stream.get_mut().write_all(switch.as_bytes()).expect("the sidecar reads");
                            let _ = sender.send(Controller { stream });
                            return;
                        }
                        let taken = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        stream.get_mut().write_all(taken).expect("the sidecar reads");
                    }
                });
            }
        });
        sessions
    }

    fn say(&mut self, word: &FromController) {
        let line = format!("{}\n", serde_json::to_string(word).expect("a word"));
        self.stream.get_mut().write_all(line.as_bytes()).expect("the sidecar reads");
    }

    fn expect<T>(&mut self, wanted: impl Fn(FromSidecar) -> Option<T>) -> T {
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).expect("the sidecar speaks") > 0, "the sidecar is gone");
            if let Some(found) = wanted(serde_json::from_str(&line).expect("a word")) {
                return found;
            }
        }
    }

    /// Register the sidecar; where callers reach it.
    fn welcome(&mut self) -> SocketAddr {
        let hello = self.expect(|word| match word {
            FromSidecar::Hello(hello) => Some(hello),
            _ => None,
        });
        self.say(&FromController::Welcome {
            protocol: PROTOCOL,
            version: "test".to_owned(),
            keys: Keyring(vec![HopKey { id: 1, secret: SECRET.as_bytes().try_into().expect("sixteen bytes") }]),
            registry: Registry::default(),
            late: Vec::new(),
        });
        hello.inbound[0].parse().expect("an address")
    }

    /// Arm an abort of the first request.
    fn arm(&mut self) {
        let rule = Rule { index: 3, ..rules::abort("shop POST /buy") };
        self.say(&FromController::Arm(Arm { rules: vec![rule], ..Arm::clean(ROUND, Duration::from_secs(600)) }));
        self.expect(|word| (word == FromSidecar::Armed { token: ROUND }).then_some(()));
    }

    /// Everything that was recorded has been taken.
    fn flush(&mut self) {
        self.say(&FromController::Flush { id: 1 });
        self.expect(|word| matches!(word, FromSidecar::Flushed { .. }).then_some(()));
    }
}

/// The binary, and what it logs.
struct Proxy {
    child: Child,
    lines: mpsc::Receiver<serde_json::Value>,
    log: Vec<serde_json::Value>,
    _folder: tempfile::TempDir,
}

impl Proxy {
    fn start(control: Option<SocketAddr>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sidecar.yaml");
        let control = control.map(|address| format!("control: http://{address}\n")).unwrap_or_default();
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n{control}admin: 127.0.0.1:0\n\
             inbound: [{{listen: \"127.0.0.1:0\", to: \"{}\"}}]\n",
            application()
        );
        std::fs::write(&file, text).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_aftershock-proxy"))
            .arg("--config")
            .arg(&file)
            .args(["--log-format", "json"])
            .env_remove("AFTERSHOCK_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                let _ = sender.send(value);
            }
        });
        Proxy { child, lines, log: Vec::new(), _folder: folder }
    }

    /// The next line with this message.
    fn logged(&mut self, message: &str) -> serde_json::Value {
        if let Some(line) = self.log.iter().find(|line| line["message"] == message) {
            return line.clone();
        }
        loop {
            let line = self.lines.recv_timeout(HANG).unwrap_or_else(|_| panic!("no {message:?} in {:?}", self.log));
            self.log.push(line.clone());
            if line["message"] == message {
                return line;
            }
        }
    }

    fn address(&mut self, message: &str) -> SocketAddr {
        self.logged(message)["at"].as_str().and_then(|at| at.parse().ok()).expect("an address")
    }

    /// Ask it to end, and take the rest of its log.
    fn stop(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it runs").success());
        self.log.extend(self.lines.iter());
        let lines: Vec<String> = self.log.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

/// What Prometheus' parser for Python reads of an exposition: `name{labels}` with its value, and the types of families.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    const READ: &str = "import sys, json\n\
        from prometheus_client.parser import text_string_to_metric_families as read\n\
        out = {}\n\
        for family in read(sys.stdin.read()):\n\
        \x20   assert family.type in ('counter', 'gauge', 'histogram'), family\n\
        \x20   assert family.documentation and family.samples, family\n\
        \x20   for s in family.samples:\n\
        \x20       key = s.name + ''.join(',%s=%s' % l for l in sorted(s.labels.items()))\n\
        \x20       assert key not in out, key\n\
        \x20       out[key] = s.value\n\
        json.dump(out, sys.stdout)";
    let mut child = Command::new(PYTHON)
        .args(["-c", READ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("python reads");
    let out = child.wait_with_output().expect("python ends");
    assert!(out.status.success(), "{text}");
    serde_json::from_slice(&out.stdout).expect("a map")
}

fn has_parser() -> bool {
    let import = Command::new(PYTHON).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

fn buy(inbound: SocketAddr) -> u16 {
    let mut stream = BufReader::new(TcpStream::connect(inbound).expect("the sidecar listens"));
    let request =
        format!("POST /buy HTTP/1.1\r\nhost: shop\r\ntracestate: aft=1-0-0-{ROUND}-0\r\ncontent-length: 0\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).expect("the sidecar reads");
    let head = read_message(&mut stream).expect("an answer");
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

#[test]
fn metrics_say_what_was_done_and_logs_tell_no_secrets() {
    const TEST: &str = "metrics_say_what_was_done_and_logs_tell_no_secrets";
    if !present(TEST, "curl", has_curl()) || !present(TEST, "python3-prometheus-client", has_parser()) {
        return;
    }
    let controller = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = controller.local_addr().expect("a bound socket");
    let sessions = Controller::serve(controller);
    let mut proxy = Proxy::start(Some(address));
    let admin = proxy.address("listening for operators");
    let mut session = sessions.recv_timeout(HANG).expect("the sidecar connects");
    let inbound = session.welcome();
    session.arm();
    assert_eq!([buy(inbound), buy(inbound), buy(inbound)], [503, 200, 200]);
    let mut forged = BufReader::new(TcpStream::connect(inbound).expect("the sidecar listens"));
    for _ in 0..1_000 {
        let request = b"GET / HTTP/1.1\r\nhost: shop\r\naftershock-hop: AQIDBAUGBwgJCgsMDQ4PEA\r\n\r\n";
        forged.get_mut().write_all(request).expect("the sidecar reads");
        assert!(read_message(&mut forged).expect("an answer").starts_with("HTTP/1.1 200 "));
    }
    let mut tls = TcpStream::connect(inbound).expect("the sidecar listens");
    tls.write_all(&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0]).expect("the sidecar reads");
    tls.shutdown(std::net::Shutdown::Write).expect("a connection");
    assert!(tls.read(&mut [0; 16]).is_ok_and(|read| read == 0), "the application does not speak TLS");
    drop((tls, forged));
    session.flush();
    let ready = curl(&[&format!("http://{admin}/readyz")]);
    assert!(ready.starts_with("exit Some(0)\nHTTP/1.1 200 OK\r\n"), "{ready}");
    assert!(ready.ends_with("ready\ncontroller: connected\n"), "{ready}");
    let answer = curl(&[&format!("http://{admin}/metrics")]);
    let (head, text) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let metrics = parsed(text);
    for (name, value) in [
        ("aftershock_build_info,service=shop,version=0.1.0", 1.0),
        ("aftershock_controller_connected", 1.0),
        ("aftershock_controller_registrations_total", 1.0),
        ("aftershock_draining", 0.0),
        ("aftershock_active_leases", 1.0),
        ("aftershock_armed_rules", 1.0),
        ("aftershock_armings_total,result=armed", 1.0),
        ("aftershock_associations_total,step=exact", 1_003.0),
        ("aftershock_connections_total,direction=inbound", 5.0),
        ("aftershock_opaque_connections_total", 1.0),
        ("aftershock_events_total,event=request-received,outcome=none", 1_003.0),
        ("aftershock_events_total,event=response-sent,outcome=ok", 1_002.0),
        ("aftershock_events_total,event=response-sent,outcome=error", 1.0),
        ("aftershock_events_total,event=request-sent,outcome=none", 0.0),
        ("aftershock_rule_decisions_total,verdict=injected", 1.0),
        ("aftershock_injections_total,fault=abort", 1.0),
        ("aftershock_ordinary_requests_total,outcome=ok", 1_000.0),
        ("aftershock_spans_exported_total", 3.0),
        ("aftershock_spans_lost_total", 0.0),
        ("aftershock_parked_messages", 0.0),
        ("process_max_fds", metrics["process_max_fds"].max(8.0)),
    ] {
        assert_eq!(metrics.get(name), Some(&value), "{name} in\n{text}");
    }
    let refused: f64 =
        metrics.iter().filter(|(name, _)| name.starts_with("aftershock_ignored_total")).map(|(_, value)| value).sum();
    assert_eq!(refused, 1_000.0, "{text}");
    assert!(metrics["process_resident_memory_bytes"] > 1e6 && metrics["process_open_fds"] > 5.0, "{text}");
    let posted = curl(&["--request", "POST", &format!("http://{admin}/metrics")]);
    assert!(
        posted.contains("HTTP/1.1 405 Method Not Allowed\r\n") && posted.contains("allow: GET, HEAD\r\n"),
        "{posted}"
    );
    assert!(curl(&[&format!("http://{admin}/")]).contains("HTTP/1.1 404 Not Found\r\n"));

    let fired = proxy.logged("fault injected");
    assert_eq!((&fired["level"], &fired["rule"]), (&"INFO".into(), &3.into()), "{fired}");
    assert_eq!((&fired["api"], &fired["fault"]), (&"shop POST /buy".into(), &"abort".into()), "{fired}");
    assert!(fired["timestamp"].is_string() && fired["target"].is_string(), "{fired}");
    assert_eq!(fired["execution"].as_str().map(str::len), Some(16), "{fired}");
    let log = proxy.stop();
    assert!(log.contains("armed") && log.contains("stopping"), "{log}");
    assert!(log.lines().count() < 200, "a flood of bad input is no flood of lines");
    for secret in [ROUND.to_string(), SECRET.to_owned(), format!("{:?}", SECRET.as_bytes())] {
        assert!(!log.contains(&secret), "{secret} in {log}");
    }
}

#[test]
fn without_a_controller_it_is_ready_and_while_it_drains_it_is_not() {
    if !present("without_a_controller_it_is_ready_and_while_it_drains_it_is_not", "curl", has_curl()) {
        return;
    }
    // An address where nobody listens.
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let mut proxy = Proxy::start(Some(nobody));
    let (inbound, admin) = (proxy.address("listening for the application"), proxy.address("listening for operators"));
    let ready = curl(&[&format!("http://{admin}/readyz")]);
    assert!(ready.contains("HTTP/1.1 200 OK\r\n") && ready.ends_with("ready\ncontroller: not connected\n"), "{ready}");
    // A request whose end is still to come keeps the process from ending.
    let mut open = BufReader::new(TcpStream::connect(inbound).expect("the sidecar listens"));
    open.get_mut().write_all(b"POST /buy HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nab").expect("it reads");
    let settled = buy(inbound);
    assert_eq!(settled, 200);
    let pid = rustix::process::Pid::from_child(&proxy.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    proxy.logged("stopping");
    let draining = curl(&[&format!("http://{admin}/readyz")]);
    assert!(draining.contains("HTTP/1.1 503 Service Unavailable\r\n") && draining.contains("draining\n"), "{draining}");
    assert!(curl(&[&format!("http://{admin}/livez")]).contains("HTTP/1.1 200 OK\r\n"));
    open.get_mut().write_all(b"c").expect("it reads");
    assert!(read_message(&mut open).expect("an answer").starts_with("HTTP/1.1 200 "));
    assert!(proxy.child.wait().expect("it ends").success());
}
