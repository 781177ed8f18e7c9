//! House rules that neither the compiler nor clippy knows: the invariants of `docs/ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::run;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// Which of our crates may use which, design §6.
const DIRECTION: &[(&str, &[&str])] = &[
    ("aftershock-core", &[]),
    ("aftershock-generate", &["aftershock-core"]),
    ("aftershock-trust", &[]),
    ("aftershock-proxy", &["aftershock-core", "aftershock-trust"]),
    ("aftershock-lab", &["aftershock-core"]),
    ("aftershock-bench", &["aftershock-core"]),
    ("aftershock-control", &["aftershock-core", "aftershock-generate", "aftershock-trust"]),
];

/// Crates without I/O, clock or randomness.
const PURE: &[&str] = &["aftershock-core", "aftershock-generate"];
/// What a pure crate must not link.
const IMPURE: &[&str] = &["tokio", "hyper", "getrandom", "rusqlite", "rustix", "socket2", "axum"];
/// Words that betray a clock, a socket or a file in a pure crate.
const IMPURE_WORDS: &[&str] = &["std::net", "std::fs", "SystemTime", "Instant::now", "std::env", "std::process"];
/// How lines begin where a merge tool begins and ends what it could not decide.
const CONFLICT: &[&str] = &[concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

pub(crate) fn run() -> anyhow::Result<()> {
    let mut broken = Vec::new();
    let metadata = metadata()?;
    direction(&metadata, &mut broken);
    dependencies_documented(&metadata, &mut broken)?;
    sources(&mut broken)?;
    if !broken.is_empty() {
        bail!("house rules broken:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

fn metadata() -> anyhow::Result<BTreeMap<String, Package>> {
    let output = run::cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("failed to read cargo metadata")?;
    Ok(metadata.packages.into_iter().map(|package| (package.name.clone(), package)).collect())
}

fn direction(packages: &BTreeMap<String, Package>, broken: &mut Vec<String>) {
    for (name, allowed) in DIRECTION {
        let Some(package) = packages.get(*name) else {
            broken.push(format!("{name}: no such crate, but the architecture names it"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.kind.is_none()) {
            if dependency.name.starts_with("aftershock-") && !allowed.contains(&dependency.name.as_str()) {
                broken.push(format!("{name} must not use {}", dependency.name));
            }
            if PURE.contains(name) && IMPURE.contains(&dependency.name.as_str()) {
                broken.push(format!("{name} is pure and must not use {}", dependency.name));
            }
            if dependency.name == "rusqlite" && *name != "aftershock-control" {
                broken.push(format!("{name} must not use rusqlite: only aftershock-control knows SQL"));
            }
        }
    }
}

/// Every third-party dependency has a line in `docs/dependencies.md`, and every line a dependency.
fn dependencies_documented(packages: &BTreeMap<String, Package>, broken: &mut Vec<String>) -> anyhow::Result<()> {
    let used: BTreeSet<&str> = packages
        .values()
        .flat_map(|package| package.dependencies.iter().map(|d| d.name.as_str()))
        .filter(|name| !name.starts_with("aftershock-"))
        .collect();
    let text = std::fs::read_to_string(run::root().join("docs/dependencies.md"))
        .context("failed to read docs/dependencies.md")?;
    let listed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|rest| rest.split('`').next()).collect();
    for name in used.difference(&listed) {
        broken.push(format!("docs/dependencies.md has no line for {name}"));
    }
    for name in listed.difference(&used) {
        broken.push(format!("docs/dependencies.md has a line for {name}, which nothing uses"));
    }
    Ok(())
}

fn sources(broken: &mut Vec<String>) -> anyhow::Result<()> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(run::root())
        .output()
        .context("failed to run git")?;
    let pure: Vec<String> =
        PURE.iter().map(|name| format!("crates/{}/src/", name.trim_start_matches("aftershock-"))).collect();
    for path in String::from_utf8_lossy(&output.stdout).split('\0') {
        let Ok(text) = std::fs::read_to_string(run::root().join(path)) else { continue };
        let is_conflict = |line: &str| CONFLICT.iter().any(|mark| line.starts_with(mark));
        for (number, _) in text.lines().enumerate().filter(|(_, line)| is_conflict(line)) {
            broken.push(format!("{path}:{}: a merge was not finished here", number + 1));
        }
        if !path.ends_with(".rs") {
            continue;
        }
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
        if !is_test && !text.starts_with("//!") && !text.starts_with("#!") {
            broken.push(format!("{path}: no `//!` header that says what the module is for"));
        }
        let is_pure = pure.iter().any(|folder| path.starts_with(folder.as_str()));
        for (number, line) in text.lines().enumerate() {
            let at = || format!("{path}:{}", number + 1);
            if is_pure && let Some(word) = IMPURE_WORDS.iter().find(|word| line.contains(**word)) {
                broken.push(format!("{}: {word} in a pure crate", at()));
            }
            if line.trim_start().starts_with(concat!("#[", "ignore")) {
                broken.push(format!("{}: ignored tests are not kept", at()));
            }
        }
    }
    for required in ["docs/ARCHITECTURE.md", "docs/request-life.md", "README.md", "CHANGELOG.md"] {
        if !Path::new(&run::root()).join(required).exists() {
            broken.push(format!("{required} is missing"));
        }
    }
    Ok(())
}
