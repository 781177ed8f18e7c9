//! Drives rounds: sends a scenario's requests under a round's token, checks its invariants, says what the oracle found
//! (design §3.7, §4.4).
//!
//! Nothing here waits by the clock but for the configured backoff between attempts: the controller says when an attempt
//! has settled and when the round is complete. A round whose future is dropped is ended at the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aftershock_core::duration::Interval;
use aftershock_core::id::Token;
use aftershock_core::plan::Plan;
use tokio::task::JoinHandle;

use crate::api::{
    Attempt, Conclude, Finish, Finished, OracleFinding, OracleVerdict, RUNNER_LEASE, RoundId, Settled, StartRound,
    Verdict,
};
use crate::client::{Client, ClientError};
use crate::scenario::{Invariant, Request, RetryOn, Scenario, TemporalFault, When};

pub(crate) mod exchange;
mod grpc;
mod oracle;
mod send;

use oracle::Judgement;
use send::{Failure, Sent};

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
    /// An invariant's document could not be got: what the system's state is cannot be said.
    #[error("failed to evaluate the invariant {invariant:?}: GET {url}: {reason}")]
    Invariant {
        /// Its name.
        invariant: String,
        /// The document.
        url: String,
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

/// Drives rounds of one scenario.
#[derive(Debug)]
pub struct Runner {
    client: Client,
    scenario: Scenario,
    deadlines: Deadlines,
    rounds: AtomicU32,
}

impl Runner {
    /// A runner of `scenario` against the controller of `client`.
    pub fn new(client: Client, scenario: Scenario) -> Self {
        Runner { client, scenario, deadlines: Deadlines::default(), rounds: AtomicU32::new(0) }
    }

    /// With other deadlines.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> Self {
        Runner { deadlines, ..self }
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
        let key = self.key()?;
        let start =
            StartRound { scenario: self.scenario.name.clone(), plan, key: key.clone(), ..StartRound::default() };
        let started = self.client.start(&start).await?;
        let mut live = Live::new(self.client.clone(), started.id);
        progress.step(Step::Started { id: started.id, key: &key });
        let round = Round { runner: self, fault, key: &key, values: self.values(&key), progress };
        match round.drive(&mut live, started.token).await {
            Ok(outcome) => {
                live.ended = true;
                Ok(outcome)
            }
            Err(error) => {
                live.give_up(&error).await;
                Err(error)
            }
        }
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

    /// A business key for a new round.
    fn key(&self) -> Result<String, RunError> {
        let random = getrandom::u32().map_err(|error| RunError::Random(error.to_string()))?;
        let n = self.rounds.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let values = [("random", format!("{random:08x}")), ("n", n.to_string())];
        Ok(self.scenario.key.fill(&values.map(|(name, value)| (name.to_owned(), value)).into()))
    }

    /// The variables of a round.
    fn values(&self, key: &str) -> BTreeMap<String, String> {
        let ledgers = self.scenario.ledgers.iter().map(|(name, url)| (name.clone(), url.to_string()));
        ledgers.chain([("key".to_owned(), key.to_owned())]).collect()
    }
}

/// A round under way.
struct Round<'a> {
    runner: &'a Runner,
    fault: Option<&'a TemporalFault>,
    key: &'a str,
    values: BTreeMap<String, String>,
    progress: &'a dyn Progress,
}

impl Round<'_> {
    async fn drive(&self, live: &mut Live, token: Token) -> Result<RoundOutcome, RunError> {
        let Runner { client, scenario, deadlines, .. } = self.runner;
        let invariants = scenario.invariants_under(self.fault);
        let mut evaluated: BTreeSet<&str> = BTreeSet::new();
        let mut attempts = Vec::new();
        let mut judgement = Judgement::default();
        let mut notes = Vec::new();
        for (index, request) in scenario.requests.iter().enumerate() {
            if judgement.is_unavailable() {
                // A client that did not get what it needs does not go on.
                notes.push(format!("the request {:?} was not sent, since one before it failed", request.name));
                continue;
            }
            let mut number = 0;
            let last = loop {
                number += 1;
                let began = Instant::now();
                let sent = send::send(&scenario.entry, request, &self.values, token).await?;
                let attempt = Attempt {
                    request: index,
                    attempt: number,
                    result: sent.to_string(),
                    latency: Interval(began.elapsed()),
                };
                self.progress.step(Step::Attempted { request: &request.name, attempt: &attempt });
                let latency = attempt.latency.0;
                attempts.push(attempt);
                let settled = client.settle(live.id, deadlines.settle).await?;
                if !settled.settled {
                    notes.push(format!(
                        "attempt {number} of {:?} did not settle within {}: {}",
                        request.name,
                        Interval(deadlines.settle),
                        settled.running.join(", ")
                    ));
                }
                self.progress.step(Step::Settled(&settled));
                for invariant in &invariants {
                    if invariant.when == When::AfterAttempt(number)
                        && invariant.request.as_ref().is_none_or(|name| *name == request.name)
                    {
                        evaluated.insert(&invariant.name);
                        self.evaluate(invariant, &mut judgement).await?;
                    }
                }
                if number >= request.retry.attempts || !tries_again(request, &sent) {
                    break (sent, latency);
                }
                if !request.retry.backoff.is_zero() {
                    tokio::time::sleep(request.retry.backoff).await;
                }
            };
            let expectation = scenario.expectation_under(request, self.fault);
            judgement.answer(request, expectation, &last.0, last.1);
        }
        let finish = Finish { deadline: Interval(deadlines.finish), client_failed: None };
        let finished = client.finish(live.id, &finish).await?;
        live.finished = true;
        self.progress.step(Step::Finished(&finished));
        for invariant in &invariants {
            if invariant.when == When::AfterRound {
                evaluated.insert(&invariant.name);
                // Who killed the service that keeps the state wants to know at least the verdict.
                let read = self.evaluate(invariant, &mut judgement).await;
                read.map_err(|error| self.unread(live.id, &finished, error))?;
            }
        }
        let unevaluated = invariants.iter().filter(|invariant| !evaluated.contains(invariant.name.as_str()));
        notes.extend(
            unevaluated.map(|it| format!("the invariant {:?} was not evaluated: there was no {}", it.name, it.when)),
        );
        let (oracle, broken) = judgement.finding();
        client.conclude(live.id, &Conclude { attempts: attempts.clone(), oracle: oracle.clone() }).await?;
        self.progress.step(Step::Concluded(&oracle));
        let expected_oracle = self.fault.map_or(OracleVerdict::Held, TemporalFault::expected_oracle);
        let as_declared = oracle.found == expected_oracle && self.breaks_as_declared(&broken);
        Ok(RoundOutcome {
            id: live.id,
            key: self.key.to_owned(),
            finished,
            attempts,
            oracle,
            expected_oracle,
            broken,
            as_declared,
            notes,
        })
    }

    fn unread(&self, id: RoundId, finished: &Finished, error: RunError) -> RunError {
        let of_faults = finished.faults.iter().flat_map(|fault| &fault.reasons);
        RunError::Unread {
            id,
            key: self.key.to_owned(),
            verdict: finished.verdict,
            reasons: finished.reasons.iter().chain(of_faults).cloned().collect(),
            source: Box::new(error),
        }
    }

    fn breaks_as_declared(&self, broken: &[String]) -> bool {
        let Some(declared) = self.fault.and_then(|fault| fault.expect.violates.as_ref()) else { return true };
        let declared: BTreeSet<&str> = declared.iter().map(|name| name.as_str()).collect();
        declared == broken.iter().map(String::as_str).collect()
    }

    async fn evaluate(&self, invariant: &Invariant, judgement: &mut Judgement) -> Result<(), RunError> {
        let url = invariant.get.fill(&self.values);
        let document = send::get(&url, self.runner.deadlines.invariant)
            .await
            .map_err(|reason| RunError::Invariant { invariant: invariant.name.clone(), url, reason })?;
        let difference = judgement.invariant(invariant, &document);
        self.progress.step(Step::Checked { invariant: &invariant.name, difference: difference.as_deref() });
        Ok(())
    }
}

/// Whether the request's policy has it sent again after this.
fn tries_again(request: &Request, sent: &Sent) -> bool {
    let kind = match sent {
        Sent::Failed(Failure::Timeout) => RetryOn::Timeout,
        Sent::Failed(Failure::Transport(_)) => RetryOn::Transport,
        Sent::Http { status, .. } if *status >= 500 => RetryOn::Status,
        Sent::Grpc { reply, .. } if reply.status == grpc::UNAVAILABLE => RetryOn::Status,
        Sent::Http { .. } | Sent::Grpc { .. } => return false,
    };
    request.retry.on.contains(&kind)
}

/// A round that the controller keeps for us: renewed while it lives, ended when it is dropped.
struct Live {
    client: Client,
    id: RoundId,
    renewing: JoinHandle<()>,
    /// The controller has judged it.
    finished: bool,
    /// Nothing is left to say.
    ended: bool,
}

impl Live {
    fn new(client: Client, id: RoundId) -> Self {
        let renewer = client.clone();
        let renewing = tokio::spawn(async move {
            let mut every = tokio::time::interval(RUNNER_LEASE / 4);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            every.tick().await;
            loop {
                every.tick().await;
                // A refusal is final; an unreachable controller may come back before the lease ends.
                if renewer.renew(id).await.is_err_and(|error| error.is_refusal()) {
                    return;
                }
            }
        });
        Live { client, id, renewing, finished: false, ended: false }
    }

    /// Ends the round for a reason. The error that led here matters more than one of this.
    async fn give_up(&mut self, error: &RunError) {
        if !self.finished && !self.ended {
            let finish = Finish { deadline: Interval(Duration::ZERO), client_failed: Some(error.to_string()) };
            let _ = self.client.finish(self.id, &finish).await;
        }
        self.ended = true;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.renewing.abort();
        if !self.finished && !self.ended {
            self.client.farewell(self.id, "the runner was stopped");
        }
    }
}
