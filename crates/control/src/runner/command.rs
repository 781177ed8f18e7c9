//! Runs a command with everything that it starts in a process group of its own, which is killed when the time is over,
//! when the command ends, and when nobody waits for it any more.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// How much of what a command prints is kept of each stream; the rest is read and let go.
const KEPT: usize = 1 << 20;
/// How much of its errors is shown.
const SHOWN: usize = 500;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    /// Its exit code, or the signal that ended it.
    pub(crate) exit: Result<i32, i32>,
    /// The beginning of what it printed.
    pub(crate) stdout: Bytes,
    /// The end of what it said of errors.
    pub(crate) stderr: Bytes,
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.exit {
            Ok(code) => write!(f, "exit {code}"),
            Err(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl Ran {
    /// How it ended otherwise than with `expected`, with the end of what it said, shown through `hide`.
    pub(crate) fn difference(&self, expected: i32, hide: &dyn Fn(&str) -> String) -> Option<String> {
        if self.exit == Ok(expected) {
            return None;
        }
        let said = if self.stderr.is_empty() { &self.stdout } else { &self.stderr };
        let said = hide(String::from_utf8_lossy(said).trim_end());
        let start = said.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
        let said = match said.is_empty() {
            true => String::new(),
            false => format!("; it said {}{:?}", if start > 0 { "…" } else { "" }, &said[start..]),
        };
        Some(format!("expected exit {expected}, found {self}{said}"))
    }
}

/// Why a command did not end by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// It could not be started or watched.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It was killed.
    #[error("timeout")]
    Timeout,
}

/// Runs `argv` with `env` beside the environment of this process.
pub(crate) async fn run(
    argv: &[String],
    env: &BTreeMap<String, String>,
    timeout: Duration,
) -> Result<Ran, CommandError> {
    let (program, arguments) = argv.split_first().expect("checked when the file was read");
    let mut child = Command::new(program)
        .args(arguments)
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let _group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).map(Group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let outputs = async { tokio::join!(head(stdout), tail(stderr)) };
    let ended = async {
        let status = child.wait().await;
        // What it left running holds its streams open.
        drop(_group);
        status
    };
    let work = async { tokio::join!(ended, outputs) };
    let (status, (stdout, stderr)) = tokio::time::timeout(timeout, work).await.map_err(|_| CommandError::Timeout)?;
    Ok(Ran { exit: exit(status?), stdout: stdout?, stderr: stderr? })
}

fn exit(status: ExitStatus) -> Result<i32, i32> {
    status.code().ok_or_else(|| status.signal().unwrap_or_default())
}

/// The processes of a command; killed when it is dropped.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // None are left, as a rule.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// The first bytes of a stream, which is read to its end.
async fn head(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Bytes> {
    let Some(mut stream) = stream else { return Ok(Bytes::new()) };
    let mut kept = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(kept.into());
        }
        let room = KEPT - kept.len();
        kept.extend_from_slice(&piece[..read.min(room)]);
    }
}

/// The last bytes of a stream.
async fn tail(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Bytes> {
    let Some(mut stream) = stream else { return Ok(Bytes::new()) };
    let mut kept = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            let surplus = kept.len().saturating_sub(KEPT);
            return Ok(Bytes::from(kept).slice(surplus..));
        }
        kept.extend_from_slice(&piece[..read]);
        if kept.len() > 2 * KEPT {
            kept.drain(..kept.len() - KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    async fn ran(script: &str) -> Ran {
        run(&shell(script), &BTreeMap::from([("X".to_owned(), "x y".to_owned())]), Duration::from_secs(60))
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_command_gets_its_environment_and_tells_how_it_ended() {
        let Ran { exit, stdout, stderr } = ran("printf '%s' \"$X\"; echo no >&2; exit 3").await;
        assert_eq!((exit, &stdout[..], &stderr[..]), (Ok(3), &b"x y"[..], &b"no\n"[..]));
        assert_eq!(ran("kill -TERM $$").await.to_string(), "signal 15");
        let error = run(&["/no/such".to_owned()], &BTreeMap::new(), Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[tokio::test]
    async fn what_is_kept_of_a_long_output_is_bounded_and_nobody_waits_for_a_reader() {
        let Ran { exit, stdout, stderr } =
            ran("head -c 3000000 /dev/zero | tr '\\0' a; { head -c 3000000 /dev/zero | tr '\\0' b; printf end; } >&2")
                .await;
        assert_eq!((exit, stdout.len(), stderr.len()), (Ok(0), KEPT, KEPT));
        assert!(stderr.ends_with(b"bbend"));
    }

    #[tokio::test]
    async fn the_end_of_what_it_said_is_shown_without_secrets() {
        let script = format!("echo {}hunter2 {} >&2; exit 1", "x".repeat(SHOWN), "y".repeat(SHOWN - 4));
        let hide = |text: &str| text.replace("hunter2", "{env:S}");
        let difference = ran(&script).await.difference(0, &hide).unwrap();
        assert!(difference.starts_with("expected exit 0, found exit 1; it said …\""), "{difference}");
        assert!(!difference.contains("ter2"), "{difference}");
        assert_eq!(ran("exit 4").await.difference(4, &hide), None);
    }

    #[tokio::test]
    async fn everything_that_it_started_is_killed_when_the_time_is_over_and_when_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("alive");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // A grandchild holds the fifo open: reading it ends only once that is gone.
        for (script, timeout) in [
            (format!("sleep 600 > {0} & sleep 600", fifo.display()), Duration::from_millis(200)),
            (format!("sleep 600 > {0} & exit 0", fifo.display()), Duration::from_secs(60)),
        ] {
            let reader = {
                let fifo = fifo.clone();
                tokio::task::spawn_blocking(move || std::fs::read(fifo))
            };
            let _ = run(&shell(&script), &BTreeMap::new(), timeout).await;
            // A killed shell may not have opened it yet.
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
            drop(opened);
            assert_eq!(reader.await.unwrap().unwrap(), b"");
        }
    }
}
