//! The binary `aftershock-proxy`: one sidecar, and nothing else.

use std::error::Error as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use aftershock_proxy::{CommandError, main_from_args};

fn main() -> ExitCode {
    let error = match main_from_args(std::env::args_os()) {
        Ok(printed) => {
            let written = io::stdout().write_all(printed.unwrap_or_default().as_bytes());
            return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Err(CommandError::Usage(error)) if error.exit_code() == 0 => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => error,
    };
    let mut text = format!("aftershock-proxy: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::FAILURE
}
