//! A network namespace without a name.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{NetError, ip};

/// A network namespace that nobody but this process knows, empty but for its loopback, which is up. It is there for as
/// long as a clone of this, a socket or a process is in it. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Keeps it alive by itself.
    file: Arc<File>,
}

impl Namespace {
    /// A new one.
    ///
    /// # Errors
    /// Says what is missing: root, a program, room in the kernel.
    pub fn new() -> Result<Self, NetError> {
        let namespace = Self::unshared()?;
        ip::ip(&namespace, "link set lo up\n")?;
        Ok(namespace)
    }

    /// A process is put into a new namespace, and is gone when we hold that.
    fn unshared() -> Result<Self, NetError> {
        let started = ip::program("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut holder = started.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => NetError::Missing { program: "unshare", package: "util-linux" },
            _ => NetError::system("start `unshare`", source),
        })?;
        let (mut stdin, mut stdout) =
            (holder.stdin.take().expect("it is a pipe"), holder.stdout.take().expect("it is a pipe"));
        // What comes back was said inside.
        let inside = stdin.write_all(b"\n").and_then(|()| stdout.read_exact(&mut [0]));
        let opened = File::open(format!("/proc/{}/ns/net", holder.id()));
        drop(stdin);
        let output = holder.wait_with_output().map_err(|source| NetError::system("wait for `unshare`", source))?;
        match (inside, opened) {
            (Ok(()), Ok(file)) => Ok(Self { file: Arc::new(file) }),
            (Ok(()), Err(source)) => Err(NetError::system("open a new namespace", source)),
            (Err(_), _) => Err(ip::refusal("unshare", &output.stderr)),
        }
    }

    /// Does something on a thread inside, and waits for it. Sockets that are made there stay in the namespace, wherever
    /// they are used; threads and processes that are started there are in it.
    ///
    /// # Errors
    /// The thread could not start, or not enter.
    ///
    /// # Panics
    /// If `task` does.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> Result<T, NetError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("namespace".into());
            let started = thread.spawn_scoped(scope, || self.enter().map(|()| task()));
            let thread = started.map_err(|source| NetError::system("start a thread", source))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A thread inside that lives as long as it likes: a server, a runtime of one thread.
    ///
    /// # Errors
    /// The thread could not start; that it could not enter is its result.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, NetError>>, NetError> {
        let inside = self.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || inside.enter().map(|()| task()));
        started.map_err(|source| NetError::system("start a thread", source))
    }

    /// Starts a process inside.
    ///
    /// # Errors
    /// It did not start: [`NetError::System`] with what the system said.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, NetError> {
        let doing = format!("start `{}`", command.get_program().to_string_lossy());
        self.run(|| command.spawn())?.map_err(|source| NetError::system(doing, source))
    }

    /// Ids of the processes inside, but for the calling one, which may have threads there.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn processes(&self) -> Result<Vec<u32>, NetError> {
        let failed = |source| NetError::system("look for the processes of a namespace", source);
        let own = self.file.metadata().map_err(failed)?;
        let own = (own.dev(), own.ino());
        let inside = |pid: &u32| {
            // One that has just ended is nowhere.
            std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|other| (other.dev(), other.ino()) == own)
        };
        let all = std::fs::read_dir("/proc")
            .map_err(failed)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(all.filter(|&pid: &u32| pid != std::process::id()).filter(inside).collect())
    }

    /// Kills every process inside (SIGKILL), also those that these start meanwhile, and waits until they are no more;
    /// whoever started them reaps them.
    ///
    /// # Errors
    /// As [`Namespace::processes`], or one cannot be killed.
    pub fn kill(&self) -> Result<(), NetError> {
        loop {
            let left = self.processes()?;
            if left.is_empty() {
                return Ok(());
            }
            for pid in left.iter().filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                match kill_process(pid, Signal::KILL) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(error) => return Err(NetError::system("kill a process", error)),
                }
            }
            std::thread::yield_now();
        }
    }

    /// A path under which programs that we start find it, for as long as we hold it.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    fn enter(&self) -> Result<(), NetError> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|error| match error {
            rustix::io::Errno::PERM => NetError::NotPermitted { said: error.to_string() },
            _ => NetError::system("enter a namespace", error),
        })
    }
}
