//! `cargo xtask schemas`: the JSON schemas of the file kinds, as `aftershock schema KIND` prints them.

use std::process::Command;

use anyhow::{Context, bail};

use crate::run;

const KINDS: &[&str] = &["Scenario", "TemporalFault", "Topology", "Sidecar"];

pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for kind in KINDS {
        let mut command: Command = run::cargo(&["run", "--quiet", "--package", "aftershock-cli", "--", "schema", kind]);
        let output = command.output().context("failed to run the schema command")?;
        if !output.status.success() {
            bail!("`aftershock schema {kind}` failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let path = run::root().join("schemas").join(format!("{kind}.schema.json"));
        if std::fs::read(&path).ok().as_deref() == Some(&output.stdout) {
            continue;
        }
        if check {
            stale.push(path.display().to_string());
        } else {
            std::fs::create_dir_all(run::root().join("schemas"))?;
            std::fs::write(&path, output.stdout).with_context(|| format!("failed to write {}", path.display()))?;
        }
    }
    if !stale.is_empty() {
        bail!("out of date, run `cargo xtask schemas`: {}", stale.join(", "));
    }
    Ok(())
}
