//! Running other programs.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// `cargo`, in the root, with `arguments`.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("failed to read cargo metadata")?;
    metadata["target_directory"].as_str().map(PathBuf::from).context("cargo named no target directory")
}

/// Run a `cargo build`; where the executable of the target `name` is.
pub(crate) fn executable(build: &mut Command, name: &str) -> anyhow::Result<PathBuf> {
    let built = build.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit()).output()?;
    ensure!(built.status.success(), "the build of {name} failed");
    let messages = String::from_utf8_lossy(&built.stdout);
    let mut artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let found = artifacts.find(|artifact| artifact["target"]["name"] == name && artifact["executable"].is_string());
    let path = found.as_ref().and_then(|artifact| artifact["executable"].as_str());
    path.map(PathBuf::from).with_context(|| format!("cargo named no executable `{name}`"))
}

/// The debug build of the package `name`; where its executable is.
pub(crate) fn debug(name: &str) -> anyhow::Result<PathBuf> {
    executable(&mut cargo(&["build", "--quiet", "--locked", "-p", name, "--bin", name]), name)
}

/// Run it with its output passed through; an exit code other than 0 is an error.
pub(crate) fn pass(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("failed to start {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(())
}

/// Run it, hand every line of its output to `line`, and return whether it succeeded.
pub(crate) fn lines(command: &mut Command, mut line: impl FnMut(&str)) -> anyhow::Result<bool> {
    let shown = format!("{command:?}");
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("failed to start {shown}"))?;
    // The command holds the pipe's writing ends; without this the reader never sees its end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    Ok(child.wait()?.success())
}
