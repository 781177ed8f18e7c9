//! `cargo xtask ci`.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::bail;

use crate::{run, schemas, tidy};

/// Debian packages with the programs that tests talk to or run under, and a program or file that shows they are there.
const PEERS: &[(&str, &str)] = &[
    ("curl", "/usr/bin/curl"),
    ("iproute2", "/usr/sbin/ip"),
    ("iptables", "/usr/sbin/xtables-legacy-multi"),
    ("nftables", "/usr/sbin/nft"),
    ("nghttp2-client", "/usr/bin/nghttp"),
    ("nghttp2-proxy", "/usr/sbin/nghttpx"),
    ("nghttp2-server", "/usr/sbin/nghttpd"),
    ("nginx-light", "/usr/sbin/nginx"),
    ("postgresql", "/usr/bin/pg_ctlcluster"),
    ("python3-aiohttp", "/usr/lib/python3/dist-packages/aiohttp/__init__.py"),
    ("python3-grpcio", "/usr/lib/python3/dist-packages/grpc/__init__.py"),
    ("python3-h2", "/usr/lib/python3/dist-packages/h2/__init__.py"),
    ("python3-hpack", "/usr/lib/python3/dist-packages/hpack/__init__.py"),
    ("python3-httptools", "/usr/lib/python3/dist-packages/httptools/__init__.py"),
    ("python3-pip", "/usr/lib/python3/dist-packages/pip/__init__.py"),
    ("python3-prometheus-client", "/usr/lib/python3/dist-packages/prometheus_client/__init__.py"),
    ("python3-protobuf", "/usr/lib/python3/dist-packages/google/protobuf/__init__.py"),
    ("python3-uvicorn", "/usr/lib/python3/dist-packages/uvicorn/__init__.py"),
    ("python3-websockets", "/usr/lib/python3/dist-packages/websockets/__init__.py"),
    ("valgrind", "/usr/bin/valgrind"),
];

pub(crate) fn run() -> anyhow::Result<()> {
    let mut missing = peers();
    step("peers from registries");
    missing.extend(crate::peers::install()?);
    step("format");
    run::pass(&mut run::cargo(&["fmt", "--all", "--check"]))?;
    step("lints");
    run::pass(&mut run::cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    step("house rules");
    tidy::run()?;
    step("build");
    // The end-to-end tests start both binaries, as a user would.
    run::pass(&mut run::cargo(&["build", "--workspace", "--locked"]))?;
    schemas::run(true)?;
    step("documentation");
    run::pass(run::cargo(&["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    step("tests");
    let tally = tests(missing.is_empty())?;
    step("exactness");
    crate::exactness::run(&crate::exactness::Exactness::short())?;
    step("benchmark");
    crate::overhead::smoke()?;
    step("instructions");
    crate::bench::ci(missing.is_empty())?;
    step("soak");
    crate::soak::pass(&crate::soak::Soak::short())?;
    if !missing.is_empty() {
        println!("not installed, so their tests were skipped: {}", missing.join(", "));
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped.len());
    if tally.failed > 0 || !tally.succeeded {
        std::process::exit(1);
    }
    Ok(())
}

fn step(name: &str) {
    println!("== {name}");
}

/// Install what is missing if that is possible; what stays missing.
fn peers() -> Vec<&'static str> {
    let missing = || -> Vec<&str> {
        PEERS.iter().filter(|(_, proof)| !std::path::Path::new(proof).exists()).map(|(package, _)| *package).collect()
    };
    let wanted = missing();
    if wanted.is_empty() {
        return wanted;
    }
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root || !std::path::Path::new("/usr/bin/apt-get").exists() {
        println!("to run every test, install: {}", wanted.join(" "));
        return wanted;
    }
    step("Debian packages for the tests");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run::pass(&mut command)
    };
    let install: Vec<&str> = ["install", "-y", "-q", "--no-install-recommends"].into_iter().chain(wanted).collect();
    if let Err(error) = apt(&["update", "-q"]).and_then(|()| apt(&install)) {
        println!("could not install: {error:#}");
    }
    missing()
}

#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: BTreeSet<String>,
    succeeded: bool,
}

/// Run all tests. With every peer installed a test that skips has failed.
fn tests(require_peers: bool) -> anyhow::Result<Tally> {
    let mut command = run::cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"]);
    if require_peers {
        command.env("AFTERSHOCK_REQUIRE_PEERS", "1");
    }
    let mut tally = Tally::default();
    let mut log = Vec::new();
    let succeeded = run::lines(&mut command, |line| {
        if let Some(counts) = line.strip_prefix("test result: ") {
            tally.passed += count(counts, "passed");
            tally.failed += count(counts, "failed");
            for n in 0..count(counts, "ignored") {
                tally.skipped.insert(format!("ignored test {n}"));
            }
        } else if let Some(reason) = line.strip_prefix("SKIPPED ") {
            tally.skipped.insert(reason.to_owned());
        }
        let progress = line.trim_start().starts_with("Running ") || line.starts_with("test result: ");
        if progress || line.starts_with("SKIPPED ") || line.starts_with("error") {
            println!("{line}");
        }
        log.push(line.to_owned());
    })?;
    if !succeeded {
        println!("{}", log.join("\n"));
    }
    if succeeded && tally.passed == 0 {
        bail!("no test ran");
    }
    // A skipped test returned early and was counted as passed.
    tally.passed = tally.passed.saturating_sub(tally.skipped.len() as u64);
    tally.succeeded = succeeded;
    Ok(tally)
}

/// The number before `word` in `… 12 passed; 0 failed; …`.
fn count(text: &str, word: &str) -> u64 {
    text.split(['.', ';'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .filter_map(|number| number.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_are_read_from_the_result_line() {
        let line = "ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s";
        assert_eq!(["passed", "failed", "ignored"].map(|word| super::count(line, word)), [12, 3, 1]);
    }
}
