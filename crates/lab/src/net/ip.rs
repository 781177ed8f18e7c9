//! The programs that do the work: unshare(1) and ip(8).

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Stdio};

use super::{Namespace, NetError};

/// A program of this name, also where a user's path leaves out the administrator's folders.
pub(super) fn program(name: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(if path.is_empty() { "/usr/sbin:/usr/bin:/sbin:/bin" } else { ":/usr/sbin:/sbin" });
    let mut command = Command::new(name);
    command.env::<_, OsString>("PATH", path).env("LC_ALL", "C");
    command
}

/// Carries out lines of ip(8) in a namespace, in their order, and returns what they print, with details and each thing on
/// a line; the first that fails ends it.
pub(super) fn ip(namespace: &Namespace, lines: &str) -> Result<String, NetError> {
    let mut command = program("ip");
    command.args(["-details", "-oneline", "-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = |error: NetError| match error {
        NetError::System { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            NetError::Missing { program: "ip", package: "iproute2" }
        }
        other => other,
    };
    let mut child = namespace.spawn(&mut command).map_err(missing)?;
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    // It reads to the end or tells why it did not.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|source| NetError::system("wait for `ip`", source))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(refusal("ip", &output.stderr)),
    }
}

/// The error of a program that ended with `stderr`.
pub(super) fn refusal(program: &'static str, stderr: &[u8]) -> NetError {
    let said = String::from_utf8_lossy(stderr).lines().map(str::trim).collect::<Vec<_>>().join("; ");
    match said.contains("Operation not permitted") || said.contains("Permission denied") {
        true => NetError::NotPermitted { said },
        false => NetError::Failed { program, said },
    }
}
