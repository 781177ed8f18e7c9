//! `cargo xtask fuzz`: cargo-fuzz on every target of `fuzz/`, one after the other.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

use crate::run;

/// Feed the parsers that see the network with inputs nobody thought of.
///
/// Installs cargo-fuzz into the target folder. A target that breaks does not keep the others from their turn. An input that
/// breaks something is kept under `fuzz/artifacts`, and how to run
/// it again is printed: mend what it found and check it in under `fuzz/corpus`, which the tests replay.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// Only this one.
    #[arg(long)]
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

pub(crate) fn run(fuzz: &Fuzz) -> anyhow::Result<()> {
    let known = targets()?;
    let chosen = match &fuzz.target {
        None => known,
        Some(target) => {
            ensure!(known.contains(target), "no target `{target}`; there are {}", known.join(", "));
            vec![target.clone()]
        }
    };
    let program = install()?;
    let target = run::target()?.join("fuzz");
    let mut broken = Vec::new();
    for name in &chosen {
        println!("== {name}, {} s", fuzz.seconds);
        // What is found goes into a folder of its own; only what is worth it is checked in.
        let found = target.join("corpus").join(name);
        std::fs::create_dir_all(&found)?;
        let mut command = run::cargo(&["fuzz", "run", "--sanitizer", "none", "--target-dir"]);
        command.arg(&target).arg(name).arg(&found).arg(run::root().join("fuzz/corpus").join(name));
        command.args(["--", &format!("-max_total_time={}", fuzz.seconds), "-print_final_stats=1", "-max_len=4096"]);
        // libFuzzer's instrumentation is a flag that the stable compiler takes only when it is told to.
        command.env("RUSTC_BOOTSTRAP", "1").env("PATH", path_with(&program)?);
        if let Err(error) = run::pass(&mut command) {
            println!("{error:#}");
            broken.push(name.as_str());
        }
    }
    ensure!(broken.is_empty(), "not every target ran to its end: {}", broken.join(", "));
    Ok(())
}

/// The targets, by their corpora.
fn targets() -> anyhow::Result<Vec<String>> {
    let folder = run::root().join("fuzz/corpus");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut names: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<_>>()?;
    names.sort_unstable();
    Ok(names)
}

/// The folder with cargo-fuzz.
fn install() -> anyhow::Result<PathBuf> {
    let tools = run::target()?.join("tools");
    let folder = tools.join("bin");
    if !folder.join("cargo-fuzz").exists() {
        run::pass(run::cargo(&["install", "--quiet", "--locked", "cargo-fuzz", "--root"]).arg(&tools))?;
    }
    Ok(folder)
}

fn path_with(first: &Path) -> anyhow::Result<std::ffi::OsString> {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(first.to_owned()).chain(std::env::split_paths(&rest));
    Ok(std::env::join_paths(folders)?)
}
