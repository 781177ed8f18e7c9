//! What survives a restart: rounds, their plans, verdicts and spans, in an SQLite file. The only module that knows SQL.
//!
//! `rusqlite` blocks, so one thread owns the connection and works off closures in order: what was asked first is written
//! first, and a reader sees every write that was asked for before. The file is locked for as long as it is open: of two
//! controllers on one file the second is refused. A file that is not ours, damaged, read-only or of a newer version is
//! refused before a byte of it is written.

mod open;
mod redaction;
mod retention;
mod rows;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use aftershock_core::id::{ExecutionId, Token};
use aftershock_core::plan::Plan;
use aftershock_core::trace::Trace;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::api::{Conclude, Finished, RoundId, RoundRecord, RoundSummary, TraceSet, Verdict};
use crate::hub::unix_seconds;
use crate::rounds::RECORDINGS;

pub use redaction::Redaction;
pub use retention::Retention;
use rows::Failure;

/// Where rounds are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Location {
    /// In memory: everything is gone when the controller ends.
    #[default]
    Memory,
    /// In this file, created if it is not there.
    File(PathBuf),
}

/// Why the store could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("the store {} is in use by another controller", .0.display())]
    Locked(PathBuf),
    /// A later version of this program wrote it.
    #[error("the store {} has version {found}, this controller knows versions up to {known}", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// `open::VERSION`.
        known: i64,
    },
    /// An SQLite file of another program.
    #[error("{} is a database of another program, not a store of Aftershock", .0.display())]
    Foreign(PathBuf),
    /// Not an SQLite file, or a damaged one.
    #[error("the store {} is damaged or not a database: {problem}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite found.
        problem: String,
    },
    /// It cannot be written to.
    #[error("the store {} is read-only", .0.display())]
    ReadOnly(PathBuf),
    /// It could not be opened.
    #[error("the store {} cannot be opened: {problem}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// There is no place left where it is.
    #[error("the store {} is full: nothing more can be written where it is; what it holds is unharmed", .0.display())]
    Full(PathBuf),
    /// SQLite failed otherwise.
    #[error("the store {} failed: {problem}", .path.display())]
    Sql {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        problem: rusqlite::Error,
    },
    /// A row holds what this version did not write.
    #[error("the store holds a malformed {what}: {problem}")]
    Row {
        /// Which kind of value.
        what: &'static str,
        /// What was wrong with it.
        problem: String,
    },
    /// It was closed.
    #[error("the store is closed")]
    Closed,
}

/// A round, as it begins.
#[derive(Debug, Clone)]
pub(crate) struct NewRound {
    pub(crate) token: Token,
    pub(crate) scenario: String,
    pub(crate) key: String,
    /// Seconds since the Unix epoch.
    pub(crate) started: i64,
    pub(crate) plan: Plan,
}

enum Job {
    Run(Box<dyn FnOnce(&mut Connection) + Send>),
    Close(oneshot::Sender<()>),
}

/// The store, from any number of tasks. Dropping it works off what was asked for and releases the file.
#[derive(Debug)]
pub(crate) struct Store {
    /// How errors call it.
    path: PathBuf,
    retention: Retention,
    redaction: Redaction,
    jobs: mpsc::Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Store {
    fn drop(&mut self) {
        // The thread ends when nobody can ask any more.
        self.jobs = mpsc::channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Store {
    /// Open or create it, bring it to the current version, and end the rounds that were not.
    pub(crate) async fn open(
        location: Location,
        retention: Retention,
        redaction: Redaction,
    ) -> Result<Store, StoreError> {
        let path = match &location {
            Location::Memory => PathBuf::from(open::MEMORY),
            Location::File(path) => path.clone(),
        };
        let (jobs, work) = mpsc::channel::<Job>();
        let (opened, answer) = oneshot::channel();
        let thread = std::thread::Builder::new().name("store".to_owned());
        let spawned = thread.spawn(move || {
            let mut connection = match open::open(&location) {
                Ok(connection) => connection,
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            if opened.send(Ok(())).is_err() {
                return;
            }
            let mut closed = None;
            while let Ok(job) = work.recv() {
                match job {
                    Job::Run(work) => work(&mut connection),
                    Job::Close(done) => {
                        closed = Some(done);
                        break;
                    }
                }
            }
            // The lock is released before anybody hears that it is.
            if let Err((_, error)) = connection.close() {
                tracing::warn!(%error, "the store was not closed cleanly");
            }
            if let Some(done) = closed {
                let _ = done.send(());
            }
        });
        let thread = spawned
            .map_err(|error| StoreError::Open { path: PathBuf::from("(thread)"), problem: error.to_string() })?;
        answer.await.unwrap_or(Err(StoreError::Closed))?;
        let store = Store { path, retention, redaction, jobs, thread: Some(thread) };
        store.prune().await?;
        Ok(store)
    }

    /// Work off what was asked for so far, then release the file. Later calls fail.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).is_ok() {
            let _ = closed.await;
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rows::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, answer) = oneshot::channel();
        let job = Job::Run(Box::new(move |connection| {
            let _ = done.send(work(connection));
        }));
        self.jobs.send(job).map_err(|_| StoreError::Closed)?;
        match answer.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(Failure::Sql(error))) => Err(open::refused(&self.path, error)),
            Ok(Err(Failure::Row { what, problem })) => Err(StoreError::Row { what, problem }),
            Err(_) => Err(StoreError::Closed),
        }
    }

    /// A round begins.
    pub(crate) async fn begin(&self, mut round: NewRound) -> Result<RoundId, StoreError> {
        round.plan = self.redaction.plan(&round.plan);
        self.run(move |c| rows::begin(c, &round)).await
    }

    /// A round has its verdict.
    pub(crate) async fn finish(&self, id: RoundId, finished: Finished) -> Result<(), StoreError> {
        self.run(move |c| rows::finish(c, id, &finished)).await?;
        if !self.retention.is_unlimited() {
            self.prune().await?;
        }
        Ok(())
    }

    /// A round was cut short: it has a verdict and a reason, and nothing came of it.
    pub(crate) async fn cut_short(&self, id: RoundId, verdict: Verdict, reason: String) -> Result<(), StoreError> {
        self.run(move |c| rows::cut_short(c, id, verdict, &reason)).await
    }

    /// What the runner said of a round. False if there is no such round, or if it has not been judged yet.
    pub(crate) async fn conclude(&self, id: RoundId, concluded: Conclude) -> Result<bool, StoreError> {
        self.run(move |c| rows::conclude(c, id, &concluded)).await
    }

    /// Spans of a round came after it was judged.
    pub(crate) async fn late(&self, id: RoundId, execution: ExecutionId, spans: u64) -> Result<(), StoreError> {
        self.run(move |c| rows::late(c, id, execution, spans)).await
    }

    /// The latest rounds, the newest first.
    pub(crate) async fn rounds(&self, scenario: Option<String>, limit: u32) -> Result<Vec<RoundSummary>, StoreError> {
        self.run(move |c| rows::summaries(c, scenario.as_deref(), limit)).await
    }

    /// One round.
    pub(crate) async fn round(&self, id: RoundId) -> Result<Option<RoundRecord>, StoreError> {
        self.run(move |c| rows::record(c, id)).await
    }

    /// The complete executions of the latest `recordings` clean rounds of a scenario, the oldest first. Rounds whose
    /// client or invariants found something are no clean ones.
    pub(crate) async fn clean_traces(&self, scenario: String, recordings: u32) -> Result<Vec<Trace>, StoreError> {
        self.run(move |c| rows::clean_traces(c, &scenario, recordings)).await
    }

    /// Store traces that were recorded elsewhere as clean rounds of their scenario. Returns how many were not here yet.
    pub(crate) async fn import(&self, set: TraceSet, from: &'static str) -> Result<u64, StoreError> {
        self.run(move |c| rows::import(c, &set, from)).await
    }

    /// Forget what is beyond the retention. Returns how many rounds that were.
    async fn prune(&self) -> Result<u64, StoreError> {
        let retention = self.retention;
        let forgotten = self.run(move |c| retention::prune(c, &retention, RECORDINGS, unix_seconds())).await?;
        if forgotten > 0 {
            tracing::info!(forgotten, "rounds beyond the retention were forgotten");
        }
        Ok(forgotten)
    }

    /// How many rounds there are.
    pub(crate) async fn count(&self) -> Result<u64, StoreError> {
        self.run(|c| rows::count(c)).await
    }
}
