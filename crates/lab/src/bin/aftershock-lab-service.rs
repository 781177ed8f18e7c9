//! One mock service; what to run is the first line of standard input. For the lab's own tests: the `aftershock` binary
//! runs its services by re-executing itself.

use std::process::ExitCode;

#[allow(clippy::print_stderr, reason = "a binary may")]
fn main() -> ExitCode {
    match aftershock_lab::service::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
