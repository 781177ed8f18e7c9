//! `cargo xtask bench …`: figures, as ratios within one run since machines are noisy.

use clap::Subcommand;

use crate::run;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// CPU per request through one sidecar over that of a plain TCP relay, HTTP/1.1 and h2c.
    Overhead {
        /// Arguments for the benchmark, e.g. `--format json`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(what: &Bench) -> anyhow::Result<()> {
    let Bench::Overhead { arguments } = what;
    let mut command =
        run::cargo(&["run", "--release", "--quiet", "--package", "aftershock-proxy", "--example", "overhead", "--"]);
    run::pass(command.args(arguments))
}
