//! Real peers: curl, nginx, the gRPC of Python, Node and Go.
//!
//! A test that needs one which is not installed says so and passes, unless `AFTERSHOCK_REQUIRE_PEERS=1`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Whether a test can run; says what it lacks otherwise.
#[allow(clippy::print_stderr, reason = "the test harness shows what a skipped test says")]
pub(crate) fn present(test: &str, package: &str, found: bool) -> bool {
    if found {
        return true;
    }
    assert!(
        std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_none_or(|v| v != "1"),
        "{test} needs {package}: a Debian package, or what `cargo xtask peers` installs"
    );
    eprintln!("SKIPPED {test}: needs {package}");
    false
}

pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

pub(crate) fn has_curl() -> bool {
    installed("curl").is_some()
}

pub(crate) fn has_nginx() -> bool {
    installed("nginx").is_some()
}

pub(crate) fn has_nghttp() -> bool {
    installed("nghttp").is_some()
}

pub(crate) fn has_nghttpd() -> bool {
    installed("nghttpd").is_some()
}

/// A file below the folder that `cargo xtask peers` installs into.
pub(super) fn peer(file: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors().map(|folder| folder.join("peers").join(file)).find(|file| file.exists())
}

/// A program that `cargo xtask peers` has built.
pub(crate) fn from_registry(program: &str) -> Option<PathBuf> {
    peer(&format!("bin/{program}"))
}

/// Python with gRPC, from the distribution.
fn has_grpc() -> bool {
    let import = Command::new(PYTHON).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

pub(crate) const PYTHON: &str = "/usr/bin/python3";

pub(super) fn support(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transparency/support").join(file)
}

/// Runs curl; its whole output, header fields included, without what changes from one second to the next.
pub(crate) fn curl(arguments: &[&str]) -> String {
    let out = Command::new("curl")
        .args(["--silent", "--include", "--max-time", "20", "--noproxy", "*"])
        .args(arguments)
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&out.stdout);
    let lines = text.split_inclusive('\n').filter(|line| !line.to_ascii_lowercase().starts_with("date: "));
    format!("exit {:?}\n{}", out.status.code(), lines.collect::<String>())
}

/// An nginx that serves the cases of `nginx.conf`.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl Nginx {
    /// With an inherited socket.
    pub(crate) fn on(listener: std::net::TcpListener) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = listener.local_addr().expect("a bound socket");
        let root = folder.path().join("root");
        std::fs::create_dir(&root).expect("a folder");
        std::fs::write(root.join("small.txt"), "small\n").expect("a file");
        std::fs::write(root.join("large.txt"), "0123456789abcdef".repeat(64 * 1024)).expect("a file");
        // One time for all runs: Last-Modified and ETag are made from it.
        for file in ["small.txt", "large.txt"] {
            let opened = std::fs::File::open(root.join(file)).expect("a file");
            let then = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
            opened.set_modified(then).expect("a time");
        }
        let template = std::fs::read_to_string(support("nginx.conf")).expect("the template");
        let config = template
            .replace("@address@", &address.to_string())
            .replace("@folder@", &folder.path().display().to_string());
        std::fs::write(folder.path().join("nginx.conf"), config).expect("a file");
        let child = Command::new("sh")
            .args(["-c", "exec \"$0\" -c \"$1/nginx.conf\" -p \"$1\" -e stderr 3<&0 0</dev/null"])
            .arg(installed("nginx").expect("nginx is present"))
            .arg(folder.path())
            .env("NGINX", "3;")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx runs");
        Self { address, child, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its worker only if it is asked to.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// nghttp2's server, with a small and a large file.
pub(crate) struct Nghttpd {
    pub(crate) address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl Nghttpd {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), options)
    }

    /// In the namespace that the calling thread is in. It cannot inherit a socket, so somebody else may take the port
    /// before it does: then it gets another.
    pub(crate) fn at(host: IpAddr, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("small.txt"), "small\n").expect("a file");
        std::fs::write(folder.path().join("large.txt"), vec![b'x'; 1 << 20]).expect("a file");
        loop {
            let address = super::wire::nobody_at(host);
            let mut child = Command::new(installed("nghttpd").expect("nghttpd is present"))
                .arg("--no-tls")
                .arg(format!("--address={host}"))
                .arg("--htdocs")
                .arg(folder.path())
                .args(options)
                .arg(address.port().to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("nghttpd runs");
            while child.try_wait().expect("a child").is_none() {
                if listens(child.id(), address.port()) {
                    return Self { address, child, _folder: folder };
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Whether this process itself, and nobody else, listens at this port.
fn listens(process: u32, port: u16) -> bool {
    // In its own namespace; it may have ended.
    let sockets = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let listening = sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let here = fields.get(1)?.ends_with(&format!(":{port:04X}")) && *fields.get(3)? == "0A";
        here.then(|| format!("socket:[{}]", fields[9]))
    });
    let open = std::fs::read_dir(format!("/proc/{process}/fd"));
    listening.zip(open.ok()).is_some_and(|(socket, open)| {
        open.filter_map(Result::ok)
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|to| to == Path::new(&socket))
    })
}

impl Drop for Nghttpd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whose gRPC it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grpc {
    Python,
    Node,
    Go,
}

/// When the second of two calls begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// When the first has ended.
    Ends,
    /// When the first has ended, and its client knows that the connection is lost. Some tell of the call before that, and
    /// would use the connection once more.
    LosesItsConnection,
}

impl Grpc {
    pub(crate) const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Go];

    /// Whether `test` can use it; says so otherwise.
    pub(crate) fn present(self, test: &str) -> bool {
        match self {
            Self::Python => present(test, "python3-grpcio", has_grpc()),
            Self::Node => present(test, "@grpc/grpc-js", installed("node").is_some() && peer(GRPC_JS).is_some()),
            Self::Go => present(test, "google.golang.org/grpc", from_registry(GRPC_GO).is_some()),
        }
    }

    fn command(self) -> Command {
        match self {
            Self::Python => {
                let mut python = Command::new(PYTHON);
                python.arg(support("grpc_peer.py"));
                python
            }
            Self::Node => {
                let mut node = Command::new("node");
                let modules = peer(GRPC_JS).and_then(|package| Some(package.ancestors().nth(2)?.to_owned()));
                node.arg(support("grpc_peer.js")).env("NODE_PATH", modules.expect("it is present"));
                node
            }
            Self::Go => Command::new(from_registry(GRPC_GO).expect("it is present")),
        }
    }

    /// A server; `options` is a JSON object of gRPC's channel arguments.
    pub(crate) fn serve(self, options: &str) -> GrpcServer {
        self.serve_at(Ipv4Addr::LOCALHOST.into(), options)
    }

    /// The same, at an address of the namespace that the calling thread is in.
    pub(crate) fn serve_at(self, host: IpAddr, options: &str) -> GrpcServer {
        let mut child = self
            .command()
            .args(["serve", &host.to_string()])
            .env("GRPC_OPTIONS", options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("the server says its port");
        let port: u16 = line.trim().parse().expect("a port");
        GrpcServer { address: SocketAddr::new(host, port), child }
    }

    /// Makes a call of each kind and reports what came of each, one line per call. Each carries `tracestate`, if any.
    pub(crate) fn calls(self, server: SocketAddr, tracestate: Option<&str>) -> String {
        let mut command = self.command();
        command.args(["call", &server.to_string()]).envs(tracestate.map(|value| ("TRACESTATE", value)));
        report(&mut command)
    }

    /// Makes a call of `Unary` and then one of `Metadata`, and reports their statuses, one per line.
    pub(crate) fn attempt(self, server: SocketAddr, timeout: Duration) -> String {
        report(self.command().args(["try", &server.to_string(), &timeout.as_secs_f64().to_string()]))
    }

    /// Makes a call of `Unary`, then does `between`, then makes one of `Metadata` that waits for a connection; reports their
    /// statuses, one per line. Each carries `tracestate`, if any.
    pub(crate) fn again(
        self,
        server: SocketAddr,
        tracestate: Option<&str>,
        first: First,
        between: impl FnOnce(),
    ) -> String {
        let mut command = self.command();
        command
            .args([if first == First::Ends { "again" } else { "anew" }, &server.to_string()])
            .envs(tracestate.map(|value| ("TRACESTATE", value)));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the client runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut seen = String::new();
        stdout.read_line(&mut seen).expect("text");
        between();
        stdout.read_to_string(&mut seen).expect("text");
        assert!(child.wait().expect("a child").success(), "{seen}");
        seen
    }

    /// Makes a call of a streaming method and then one of `Metadata` on the same channel; reports the messages and the
    /// status of the first, whether its server noticed, and the status of the second, one per line.
    pub(crate) fn stream(self, server: SocketAddr, method: &str) -> String {
        report(self.command().args(["stream", &server.to_string(), method]))
    }

    /// A client that calls without pause the first of `servers` that accepts, on several channels.
    pub(crate) fn load(self, servers: &[SocketAddr]) -> GrpcLoad {
        let addresses: Vec<_> = servers.iter().map(ToString::to_string).collect();
        let mut child = self
            .command()
            .args(["last", &format!("ipv4:{}", addresses.join(","))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        GrpcLoad { child, lines }
    }
}

const GRPC_JS: &str = "node/node_modules/@grpc/grpc-js";
const GRPC_GO: &str = "grpc_peer";

fn report(command: &mut Command) -> String {
    let out = command.output().expect("the client runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// A gRPC server.
pub(crate) struct GrpcServer {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl GrpcServer {
    pub(crate) fn start() -> Self {
        Grpc::Python.serve("{}")
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        // The server ends when its input does.
        drop(self.child.stdin.take().map(|mut input| input.flush()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gRPC client that calls without pause.
pub(crate) struct GrpcLoad {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl GrpcLoad {
    /// Waits for some hundred further answers.
    pub(crate) fn goes_on(&mut self) {
        for _ in 0..2 {
            self.lines.next().expect("it calls").expect("text");
        }
    }

    /// Ends it; the statuses that its calls had.
    pub(crate) fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let last =
            self.lines.by_ref().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("outcomes ")?.to_owned()));
        last.expect("it says what it saw")
    }
}

impl Drop for GrpcLoad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
