//! What goes to stdout and stderr.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is this module's job")]

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use serde::Serialize;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// Whether some of the result could not be written, so that the exit code must not say that all is well.
static LOST: AtomicBool = AtomicBool::new(false);

/// A line of a result, on stdout. A reader that went away is no error; a full disk is, see [`complete`].
pub(crate) fn line(text: impl std::fmt::Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}")
        && error.kind() != std::io::ErrorKind::BrokenPipe
        && !LOST.swap(true, Ordering::Relaxed)
    {
        remark(format!("error: failed to write the result: {error}"));
    }
}

/// Whether everything that was printed on stdout got there, or nobody wanted it any more.
pub(crate) fn complete() -> bool {
    if std::io::stdout().flush().is_err_and(|error| error.kind() != std::io::ErrorKind::BrokenPipe) {
        LOST.store(true, Ordering::Relaxed);
    }
    !LOST.load(Ordering::Relaxed)
}

/// A result as JSON, on stdout.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A remark, on stderr.
pub(crate) fn remark(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// An error with its causes, on stderr.
pub(crate) fn error(error: &anyhow::Error) {
    let mut text = format!("error: {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Many error types repeat their source in their own text.
        if !said.contains(&cause) {
            text.push_str(&format!("\n  because {cause}"));
            said = cause;
        }
    }
    remark(text);
}

/// Send logs to stderr: warnings, or what `AFTERSHOCK_LOG` asks for.
pub(crate) fn logs() {
    let (filter, unfit) = aftershock_proxy::log_filter(tracing::Level::WARN);
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    if let Some(unfit) = unfit {
        tracing::warn!("{unfit}");
    }
}

/// A table without frames.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    table
}
