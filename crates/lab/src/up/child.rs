//! One child process: started with a pipe as its lifeline, watched, ended, reaped.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Launcher, Role, UpError};
use crate::net::Namespace;

/// How much of a child's output an error quotes.
const QUOTED: u64 = 4096;

#[derive(Debug)]
pub(super) struct Child {
    pub(super) role: Role,
    pub(super) service: String,
    /// From 0.
    pub(super) replica: usize,
    process: std::process::Child,
    /// Set once it was reaped.
    status: Option<ExitStatus>,
    log: PathBuf,
}

impl Child {
    /// In the namespace and the group of `place`, if there is one.
    #[expect(clippy::too_many_arguments, reason = "what a process is, and where")]
    pub(super) fn start(
        role: Role,
        service: &str,
        replica: usize,
        launcher: &Launcher,
        args: &[OsString],
        log: &Path,
        first_line: Option<&str>,
        place: Option<(&Namespace, Option<u32>)>,
    ) -> Result<Self, UpError> {
        let file = |source| UpError::File { path: log.to_owned(), source };
        // What the process before it said stays.
        let output = File::options().create(true).append(true).open(log).map_err(file)?;
        let errors = output.try_clone().map_err(file)?;
        let failed =
            |source| UpError::Start { role, service: service.to_owned(), program: launcher.program.clone(), source };
        let mut command = Command::new(&launcher.program);
        command.args(&launcher.args).args(args);
        command.stdin(Stdio::piped()).stdout(output).stderr(errors).process_group(0);
        let process = match place {
            None => command.spawn().map_err(failed)?,
            Some((namespace, group)) => {
                if let Some(group) = group {
                    command.gid(group);
                }
                namespace.run(|| command.spawn())?.map_err(failed)?
            }
        };
        let mut child = Self { role, service: service.to_owned(), replica, process, status: None, log: log.to_owned() };
        if let Some(line) = first_line {
            let stdin = child.process.stdin.as_mut().expect("standard input is a pipe");
            match stdin.write_all(line.as_bytes()) {
                // It has ended already: waiting for its readiness tells why.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                other => other.map_err(failed)?,
            }
        }
        Ok(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.process.try_wait().ok().flatten();
        }
        self.status
    }

    pub(super) fn terminate(&mut self) {
        if self.ended().is_none()
            && let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw)
        {
            // It may end between the two lines; it is not reaped before, so the id is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Kills it if it still runs, and reaps it.
    pub(super) fn kill(&mut self) {
        if self.ended().is_none() {
            // An error means that it has ended in between; waiting reaps it either way.
            let _ = self.process.kill();
            self.status = self.process.wait().ok();
        }
    }

    /// The end of what it wrote.
    pub(super) fn last_output(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(QUOTED)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        match read() {
            Ok(text) if text.is_empty() => "(none)".to_owned(),
            Ok(text) => text,
            Err(error) => format!("(cannot read {}: {error})", self.log.display()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
