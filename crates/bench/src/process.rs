//! Processes under load: how they are started, what they use, and that none outlives this one.
//!
//! Every child is this program first, as `launch`: it goes to its processor, asks the kernel for a signal when its
//! parent dies, and becomes the program that was asked for. So a child is where it belongs before its first
//! instruction, and nothing stays behind however this process ends.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::machine;

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `program`, on processor `cpu` if there is one; its standard output can be read from the result.
    pub(crate) fn start<A: AsRef<OsStr>>(
        name: &str,
        cpu: Option<usize>,
        program: &OsStr,
        arguments: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["launch", "--parent", &std::process::id().to_string()]);
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        command.arg("--").arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        // What sidecars log in quiet times is not for those who read figures.
        command.env("AFTERSHOCK_LOG", "warn");
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Process { name: name.to_owned(), child })
    }

    /// This program in another role, which says where it listens.
    pub(crate) fn role(name: &str, cpu: Option<usize>, to: SocketAddr) -> anyhow::Result<(Self, SocketAddr)> {
        let program = std::env::current_exe()?;
        let to = to.to_string();
        let mut process = Process::start(name, cpu, program.as_os_str(), [name, "--to", &to])?;
        let stdout = process.child.stdout.take().context("no output to read")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().with_context(|| format!("{name} said {line:?}, expected its address"))?;
        Ok((process, address))
    }

    /// Time its threads have spent on a processor, in user and system mode.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut total = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            total += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(total))
    }

    /// What is resident of it now, in KiB. Counted page by page, unlike the quicker figure in `status`.
    pub(crate) fn rss_kib(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no `Rss` in smaps_rollup")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse()?)
    }

    /// How many files it has open.
    pub(crate) fn files(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}", self.name),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Becomes the program of `command`, on processor `cpu` if there is one. Returns only on failure.
pub(crate) fn launch(cpu: Option<usize>, parent: u32, command: &[OsString]) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the parent")?;
    // It may have gone before the kernel was asked.
    let is_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == parent);
    ensure!(is_there, "the parent is gone");
    cpu.map_or(Ok(()), machine::pin)?;
    let (program, arguments) = command.split_first().context("no program to start")?;
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot start {}", program.to_string_lossy()))
}
