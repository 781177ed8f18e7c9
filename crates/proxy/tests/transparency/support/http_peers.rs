//! HTTP/1 servers that people use, each saying what it took a request for: `echo METHOD TARGET …`, a line of the body.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use super::peers::{Nginx, PYTHON, has_nginx, installed, peer, present, support};

/// Which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Nginx,
    Aiohttp,
    /// uvicorn with the parser h11.
    H11,
    /// uvicorn with the parser httptools.
    Httptools,
    Node,
    /// Node with the library `ws`.
    NodeWs,
}

/// All that speak HTTP/1 without a library of ours to install.
pub(crate) const SERVERS: [Server; 5] = [Server::Nginx, Server::Aiohttp, Server::H11, Server::Httptools, Server::Node];

impl Server {
    /// Whether it is installed; a test that lacks it says so.
    pub(crate) fn is_present(self, test: &str) -> bool {
        let module = |name: &str| {
            let import = Command::new(PYTHON).arg("-c").arg(format!("import {name}")).stderr(Stdio::null()).status();
            import.is_ok_and(|status| status.success())
        };
        match self {
            Self::Nginx => present(test, "nginx-light", has_nginx()),
            Self::Aiohttp => present(test, "python3-aiohttp", module("aiohttp")),
            Self::H11 => present(test, "python3-uvicorn", module("uvicorn, websockets")),
            Self::Httptools => present(test, "python3-uvicorn and python3-httptools", module("uvicorn, httptools")),
            Self::Node => present(test, "nodejs", installed("node").is_some()),
            Self::NodeWs => present(test, "ws, a package of Node,", installed("node").is_some() && ws().is_some()),
        }
    }

    /// Starts it with an inherited socket.
    pub(crate) fn on(self, listener: TcpListener) -> Running {
        let address = listener.local_addr().expect("a bound socket");
        let mut command = match self {
            Self::Nginx => return Running { address, _what: What::Nginx(Nginx::on(listener)) },
            Self::Aiohttp => python("aiohttp"),
            Self::H11 => python("h11"),
            Self::Httptools => python("httptools"),
            Self::Node => node("serve"),
            Self::NodeWs => node("serve-ws"),
        };
        let child = command.stdin(Stdio::from(OwnedFd::from(listener))).stderr(Stdio::null()).spawn();
        Running { address, _what: What::Child(Killed(child.expect("the server runs"))) }
    }
}

fn python(kind: &str) -> Command {
    let mut command = Command::new(PYTHON);
    command.arg(support("http_peer.py")).arg(kind);
    command
}

fn node(mode: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(support("node_peer.js")).arg(mode);
    if let Some(ws) = ws().as_deref().and_then(std::path::Path::parent) {
        command.env("NODE_PATH", ws);
    }
    command
}

fn ws() -> Option<std::path::PathBuf> {
    peer("node/node_modules/ws")
}

/// Has a conversation with the WebSocket server at each URL; what came of it, a line each.
pub(crate) fn call_web_sockets(urls: &[String], tracestate: Option<&str>) -> String {
    let mut command = node("call-ws");
    command.args(urls);
    if let Some(tracestate) = tracestate {
        command.env("TRACESTATE", tracestate);
    }
    let out = command.output().expect("node runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    _what: What,
}

enum What {
    Nginx(#[allow(dead_code, reason = "it runs as long as this lives")] Nginx),
    Child(#[allow(dead_code, reason = "it runs as long as this lives")] Killed),
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
