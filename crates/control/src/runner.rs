//! Drives rounds: sends a scenario's requests under a round's token, checks its invariants, says what the oracle found
//! (design §3.7, §4.4).
//!
//! Nothing here waits by the clock but for the configured backoff between attempts: the controller says when an attempt
//! has settled and when the round is complete. A round whose future is dropped is ended at the controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use aftershock_core::plan::Plan;

use crate::api::{Attempt, Finished, OracleFinding, OracleVerdict, RoundId, Settled, Verdict};
use crate::client::{Client, ClientError};
use crate::scenario::{MissingSecrets, Scenario, Secrets, TemporalFault};

mod command;
mod context;
mod cookies;
pub(crate) mod exchange;
mod grpc;
mod live;
mod oracle;
mod round;
mod send;
mod sql;
mod transcode;
mod values;

use round::Round;
use transcode::Codecs;
use values::Values;

/// How long to wait, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For an attempt to settle.
    pub settle: Duration,
    /// For the round to be complete.
    pub finish: Duration,
    /// For an invariant's document.
    pub invariant: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            settle: Duration::from_secs(10),
            finish: Duration::from_secs(10),
            invariant: Duration::from_secs(10),
        }
    }
}

/// Why a round did not come to its end. The controller was told, as far as it could be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The controller refused, or did not answer.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// A request could not be built with this round's business key.
    #[error("failed to build the request {request:?}: {reason}")]
    Request {
        /// Its name.
        request: String,
        /// Why.
        reason: String,
    },
    /// Secrets that the scenario declares were not given. Nothing was sent.
    #[error(transparent)]
    Secrets(#[from] MissingSecrets),
    /// A request before the round did not go well. Nothing was armed.
    #[error("failed to set the scenario up: request {request:?}: {reason}")]
    Setup {
        /// Its name.
        request: String,
        /// Why.
        reason: String,
    },
    /// An invariant's document could not be got: what the system's state is cannot be said.
    #[error("failed to evaluate the invariant {invariant:?}: {what}: {reason}")]
    Invariant {
        /// Its name.
        invariant: String,
        /// What was asked, or run.
        what: String,
        /// Why.
        reason: String,
    },
    /// The round was judged, but the system's state afterwards could not be read, so the oracle found nothing.
    #[error("{source}\n  round {}, key {key}: {verdict}, but what the system made of it cannot be said{}", id.0, listed(.reasons))]
    Unread {
        /// The round.
        id: RoundId,
        /// Its business key.
        key: String,
        /// Its verdict.
        verdict: Verdict,
        /// The verdict's reasons.
        reasons: Vec<String>,
        /// What could not be read.
        source: Box<RunError>,
    },
    /// No randomness for keys and trace ids.
    #[error("failed to draw random numbers: {0}")]
    Random(String),
}

/// Why recording stopped.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecordError {
    /// A round did not come to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A clean round failed its own oracle, or was not recorded completely.
    #[error("clean round {number} of {of} ({id}, key {key}) does not meet its own oracle:{}", listed(.differences), id = .outcome.id.0, key = .outcome.key)]
    NotClean {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        of: usize,
        /// What differs, a sentence each.
        differences: Vec<String>,
        /// The round.
        outcome: Box<RoundOutcome>,
    },
}

fn listed(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// A round that came to its end.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RoundOutcome {
    /// The round.
    pub id: RoundId,
    /// Its business key.
    pub key: String,
    /// The controller's verdict, and the traces.
    pub finished: Finished,
    /// Every request sent.
    pub attempts: Vec<Attempt>,
    /// What the oracle found.
    pub oracle: OracleFinding,
    /// What it was to find.
    pub expected_oracle: OracleVerdict,
    /// The invariants that were broken, by name.
    pub broken: Vec<String>,
    /// The finding is the declared one, and the invariants that the fault names are those that were broken.
    pub as_declared: bool,
    /// The controller ended it before its time, because ordinary traffic suffered or somebody disarmed it: there is a
    /// reason not to begin another.
    pub ended_early: bool,
    /// What a reader should know: attempts that did not settle, requests not sent, invariants not evaluated.
    pub notes: Vec<String>,
}

/// A step of a round.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// Every sidecar is armed.
    Started {
        /// The round.
        id: RoundId,
        /// Its business key.
        key: &'a str,
    },
    /// A request was answered, or given up.
    Attempted {
        /// The request's name.
        request: &'a str,
        /// How it went.
        attempt: &'a Attempt,
    },
    /// Nothing of the attempt is open but what a fault keeps; or the deadline passed.
    Settled(&'a Settled),
    /// An invariant was evaluated.
    Checked {
        /// Its name.
        invariant: &'a str,
        /// What differs; none if it holds.
        difference: Option<&'a str>,
    },
    /// The round is judged.
    Finished(&'a Finished),
    /// The oracle has found.
    Concluded(&'a OracleFinding),
}

/// Hears of the steps of rounds.
pub trait Progress: Sync {
    /// A step was done.
    fn step(&self, step: Step<'_>);
}

/// Nobody listens.
impl Progress for () {
    fn step(&self, _: Step<'_>) {}
}

impl<F: Fn(Step<'_>) + Sync> Progress for F {
    fn step(&self, step: Step<'_>) {
        self(step);
    }
}

/// Drives rounds of one scenario, any number of them side by side.
#[derive(Debug)]
pub struct Runner {
    client: Client,
    scenario: Arc<Scenario>,
    secrets: Secrets,
    deadlines: Deadlines,
    arbiter_timeout: Option<Duration>,
    /// What every round needs to read and write messages; found out once.
    codecs: tokio::sync::OnceCell<Codecs>,
    rounds: AtomicU32,
    turn: AtomicUsize,
}

impl Runner {
    /// A runner of `scenario` against the controller of `client`.
    pub fn new(client: Client, scenario: Scenario) -> Self {
        Runner {
            client,
            scenario: Arc::new(scenario),
            secrets: Secrets::default(),
            deadlines: Deadlines::default(),
            arbiter_timeout: None,
            codecs: tokio::sync::OnceCell::new(),
            rounds: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    /// With other deadlines.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> Self {
        Runner { deadlines, ..self }
    }

    /// With another time that a pass waits for the arbiter than the controller's own.
    #[must_use]
    pub fn with_arbiter_timeout(self, timeout: Duration) -> Self {
        Runner { arbiter_timeout: Some(timeout), ..self }
    }

    /// With the values of the scenario's secrets.
    #[must_use]
    pub fn with_secrets(self, secrets: Secrets) -> Self {
        Runner { secrets, ..self }
    }

    /// The scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// One round: under `fault`, which must have been [checked](Scenario::check) against the scenario, or clean.
    ///
    /// # Errors
    /// When the round could not be driven to its end. A failed request and a broken invariant are results.
    pub async fn round(
        &self,
        fault: Option<&TemporalFault>,
        progress: &dyn Progress,
    ) -> Result<RoundOutcome, RunError> {
        let plan = fault.map(|fault| fault.plan.clone()).unwrap_or_default();
        self.round_with(plan, fault, progress).await
    }

    /// One round under `plan`, with the expectations of `fault` if there are any: a plan that is in no file.
    ///
    /// # Errors
    /// As [`Runner::round`].
    pub async fn round_with(
        &self,
        plan: Plan,
        fault: Option<&TemporalFault>,
        progress: &dyn Progress,
    ) -> Result<RoundOutcome, RunError> {
        self.secrets.check(&self.scenario)?;
        Round::new(self, fault, progress, self.values()?).run(plan).await
    }

    /// `n` clean rounds, each of which must be complete and meet its own oracle.
    ///
    /// # Errors
    /// At the first that does not, with the differences.
    pub async fn record(&self, n: usize, progress: &dyn Progress) -> Result<Vec<RoundOutcome>, RecordError> {
        let mut outcomes = Vec::with_capacity(n);
        for number in 1..=n {
            let outcome = self.round(None, progress).await?;
            let mut differences = outcome.oracle.differences.clone();
            if outcome.finished.verdict != Verdict::Clean {
                differences.push(format!("the recording is {}", outcome.finished.verdict));
                differences.extend(outcome.finished.reasons.iter().cloned());
                let why = outcome.finished.incomplete.iter();
                differences.extend(why.map(|(execution, reason)| format!("execution {execution}: {reason}")));
            }
            if !differences.is_empty() || !outcome.as_declared {
                return Err(RecordError::NotClean { number, of: n, differences, outcome: Box::new(outcome) });
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The variables of a new round.
    fn values(&self) -> Result<Values, RunError> {
        let random = getrandom::u32().map_err(|error| RunError::Random(error.to_string()))?;
        let n = self.rounds.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        Ok(Values::new(&self.scenario, &self.secrets, random, n))
    }

    async fn codecs(&self, values: &Values) -> Result<Codecs, RunError> {
        let codecs = self.codecs.get_or_try_init(|| transcode::codecs(&self.scenario, values)).await;
        codecs.cloned().map_err(|(request, reason)| RunError::Request { request, reason })
    }

    /// Which entry the next request takes.
    fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}

impl RunError {
    /// The same, with no secret in its texts.
    fn hidden(self, values: &Values) -> Self {
        let hide = |text: String| values.hide(&text);
        match self {
            RunError::Request { request, reason } => RunError::Request { request, reason: hide(reason) },
            RunError::Setup { request, reason } => RunError::Setup { request, reason: hide(reason) },
            RunError::Invariant { invariant, what, reason } => {
                RunError::Invariant { invariant, what: hide(what), reason: hide(reason) }
            }
            RunError::Unread { id, key, verdict, reasons, source } => {
                RunError::Unread { id, key, verdict, reasons, source: Box::new(source.hidden(values)) }
            }
            other @ (RunError::Controller(_) | RunError::Secrets(_) | RunError::Random(_)) => other,
        }
    }
}
