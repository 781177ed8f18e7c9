//! Peers of the transparency tests that no distribution packages: Node's gRPC and WebSocket libraries, Go's gRPC and a
//! conformance suite for HTTP/2, from the lock files under `crates/proxy/tests/peers` into `peers` of the target folder.
//!
//! Nothing is installed into the system, and nothing is fetched again while what is read stays as it is.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::run;

/// A folder of lock files and sources, the program that reads them, and what of it shows that it did.
struct Source {
    folder: &'static str,
    program: &'static str,
    read: &'static [&'static str],
    install: fn(from: &Path, to: &Path) -> anyhow::Result<()>,
}

const SOURCES: [Source; 2] = [
    Source { folder: "node", program: "npm", read: &["package-lock.json"], install: npm },
    Source { folder: "go", program: "go", read: &["go.sum", "grpc_peer/main.go"], install: go },
];

pub(crate) fn run() -> anyhow::Result<()> {
    let missing = install()?;
    ensure!(missing.is_empty(), "some peers are missing: {}", missing.join(", "));
    Ok(())
}

/// Install what is missing; what stays missing.
pub(crate) fn install() -> anyhow::Result<Vec<&'static str>> {
    let from = run::root().join("crates/proxy/tests/peers");
    let to = run::target()?.join("peers");
    let mut missing = Vec::new();
    for source in &SOURCES {
        if let Err(error) = source.bring(&from.join(source.folder), &to) {
            println!("could not install the peers of {}: {error:#}", source.program);
            missing.push(source.program);
        }
    }
    Ok(missing)
}

impl Source {
    fn bring(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        let mut wanted = Vec::new();
        for file in self.read {
            wanted.extend(std::fs::read(from.join(file)).with_context(|| format!("failed to read {file}"))?);
        }
        let stamp = to.join(format!("{}.installed", self.folder));
        if std::fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        std::fs::create_dir_all(to)?;
        (self.install)(from, to)?;
        std::fs::write(stamp, wanted)?;
        Ok(())
    }
}

/// Scripts of packages are not run.
fn npm(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.join("node");
    std::fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(from.join(file), folder.join(file))?;
    }
    run::pass(Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(folder))
}

/// Modules and objects are only needed to build.
fn go(from: &Path, to: &Path) -> anyhow::Result<()> {
    let scratch = to.join("go");
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-modcacherw", "-o"]).arg(to.join("bin/")).args(["tool", "./grpc_peer"]);
    build.env("GOMODCACHE", scratch.join("modules")).env("GOCACHE", scratch.join("cache"));
    run::pass(build.current_dir(from))?;
    std::fs::remove_dir_all(scratch)?;
    Ok(())
}
