//! The machine: which processors there are for whom, and how many files a process may open.

use anyhow::{Context, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpus {
    /// Load, origin, controller and collector.
    pub(crate) load: usize,
    /// Whatever is measured.
    pub(crate) subject: usize,
}

impl Cpus {
    /// The first two that this process may use.
    pub(crate) fn choose() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(None).context("cannot ask which processors this process may use")?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        match (allowed.next(), allowed.next()) {
            (Some(load), Some(subject)) => Ok(Cpus { load, subject }),
            _ => bail!("needs two processors, one for the load and one for what is measured"),
        }
    }
}

/// Keeps this thread, and all that it starts from here on, on one processor.
pub(crate) fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot keep to processor {cpu}"))
}

/// Lets this process, and all that it starts, open `files` files.
pub(crate) fn allow_files(files: u64) -> anyhow::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= files) {
        return Ok(());
    }
    ensure!(
        maximum.is_none_or(|maximum| maximum >= files),
        "needs {files} open files, this machine allows {} (`ulimit -Hn`)",
        maximum.unwrap_or_default()
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).context("cannot allow more open files")
}

/// What a reader of figures wants to know of the machine.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Machine {
    processor: String,
    processors: usize,
    kernel: String,
    load_cpu: usize,
    subject_cpu: usize,
}

impl Machine {
    pub(crate) fn describe(cpus: Cpus) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
        Machine {
            processor: model.unwrap_or("unknown").trim().to_owned(),
            processors: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_cpu: cpus.load,
            subject_cpu: cpus.subject,
        }
    }
}
