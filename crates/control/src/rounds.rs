//! The life of a round: armed, settled after each attempt, disarmed, completed, judged, stored (design §3.6, §3.7).
//!
//! A round ends exactly once: whoever moves it to [`Phase::Ending`] sees it through in a task of its own, so that a
//! client that goes away cannot leave it half ended. Reasons to end are the runner's `finish`, the silence of a runner,
//! failed arming, `disarm` and the end of the controller.

mod ending;
mod judging;
mod live;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::activity::standing;
use crate::api::{
    Conclude, Disarmed, Finish, Finished, RoundId, RoundRecord, Settle, Settled, StartRound, StartedRound,
};
use crate::arming::{Refusal, resolve};
use crate::hub::{Hub, Look, new_token, unix_seconds};
use crate::state::State;
use crate::store::{NewRound, StoreError};
use crate::verdict::Failure;

use ending::Ended;
use live::Participant;
pub(crate) use live::{Live, Phase, Terms};

/// How many of the latest clean recordings show what is normal.
pub(crate) const RECORDINGS: u32 = 10;

/// How often sidecars are asked how ordinary traffic fares, while a round is to be stopped if it suffers.
pub(crate) const COUNTERS_EVERY: Duration = Duration::from_secs(1);

/// Rounds that are armed at once, at most.
const MAX_LIVE: usize = 256;

/// The longest name of a scenario and the longest business key, in bytes.
const MAX_NAME: usize = 512;

/// Why a request about a round fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    #[error("there is no round {}", .0.0)]
    Unknown(RoundId),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("expected a {what} of 1 to {MAX_NAME} bytes, found {length}")]
    Name { what: &'static str, length: usize },
    #[error("{MAX_LIVE} rounds are armed already")]
    TooMany,
    #[error("the controller is stopping")]
    Stopping,
    #[error("{0}")]
    Arming(String),
    #[error("round {} {problem}", .id.0)]
    Phase { id: RoundId, problem: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// While it exists, the runner of the round is alive: one of its requests is being answered.
struct Heard {
    hub: Arc<Hub>,
    id: RoundId,
}

impl Heard {
    fn new(hub: &Arc<Hub>, id: RoundId) -> Self {
        if let Some(live) = hub.look().round_mut(id) {
            live.requests += 1;
        }
        Heard { hub: Arc::clone(hub), id }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if let Some(live) = self.hub.look().round_mut(self.id) {
            live.requests = live.requests.saturating_sub(1);
            live.heard = Instant::now();
        }
    }
}

impl Hub {
    /// `POST /v1/rounds`: refuse, or arm every registered sidecar and wait until all acknowledged.
    pub(crate) async fn start(self: &Arc<Self>, request: StartRound) -> Result<StartedRound, RoundError> {
        for (what, text) in [("scenario", &request.scenario), ("key", &request.key)] {
            if text.is_empty() || text.len() > MAX_NAME {
                return Err(RoundError::Name { what, length: text.len() });
            }
        }
        let traces = self.store.clean_traces(request.scenario.clone(), RECORDINGS).await?;
        // What cannot work is refused before anything is stored, and again below if sidecars came or went meanwhile.
        let instances = self.look().registry.instances();
        resolve(&request, self.options.faultable.as_ref(), &instances, &traces)?;
        let token = new_token();
        let round = NewRound {
            token,
            scenario: request.scenario.clone(),
            key: request.key.clone(),
            started: unix_seconds(),
            plan: request.plan.clone(),
        };
        let id = self.store.begin(round).await?;
        let sent = self.change(|state| -> Result<(), RoundError> {
            if state.stopping {
                return Err(RoundError::Stopping);
            }
            if state.rounds().len() >= MAX_LIVE {
                return Err(RoundError::TooMany);
            }
            state.arm(id, token, request, &traces, &self.options)?;
            Ok(())
        });
        if let Err(error) = sent {
            self.store.cut_short(id, crate::api::Verdict::Inconclusive, error.to_string()).await?;
            return Err(error);
        }
        tracing::info!(round = id.0, %token, "arming");
        tokio::spawn(keep(Arc::clone(self), id));
        let hub = Arc::clone(self);
        let arming = tokio::spawn(async move { hub.await_acknowledgements(id).await });
        flatten(arming.await)?;
        Ok(StartedRound { id, token })
    }

    async fn await_acknowledgements(self: Arc<Self>, id: RoundId) -> Result<(), RoundError> {
        let within = self.options.acknowledge_within;
        let all = |state: &mut State| match state.round(id) {
            Some(live) if live.failures.is_empty() && live.participants.values().any(Participant::is_undecided) => {
                Look::OnChange
            }
            _ => Look::Ready(()),
        };
        let _ = self.until_round(id, Instant::now() + within, all).await;
        let problem = self.look().round_mut(id).and_then(|live| {
            let unarmed = live.unarmed(within);
            if !unarmed.is_empty() {
                live.failures.push(Failure::Arming(unarmed.join("; ")));
            }
            let problem = live.failures.first().map(|failure| match failure {
                Failure::Arming(problem) => problem.clone(),
                other => other.to_string(),
            });
            live.phase = if problem.is_some() { Phase::Ending } else { Phase::Armed };
            live.heard = Instant::now();
            problem
        });
        match problem {
            None => Ok(()),
            Some(problem) => {
                self.end(id, Instant::now()).await?;
                Err(RoundError::Arming(problem))
            }
        }
    }

    /// `POST /v1/rounds/{id}/renew`.
    pub(crate) async fn renew(self: &Arc<Self>, id: RoundId) -> Result<(), RoundError> {
        let _heard = Heard::new(self, id);
        match self.look().round(id) {
            Some(live) if live.phase != Phase::Ending => return Ok(()),
            _ => {}
        }
        Err(self.ended(id).await?)
    }

    /// `POST /v1/rounds/{id}/settle`.
    pub(crate) async fn settle(self: &Arc<Self>, id: RoundId, request: Settle) -> Result<Settled, RoundError> {
        let _heard = Heard::new(self, id);
        let began = Instant::now();
        self.look().watch(id);
        let settled = self.until_round(id, deadline(began, request.deadline.0), |state| {
            let Some(live) = state.round(id).filter(|live| live.phase == Phase::Armed) else {
                return Look::Ready(None);
            };
            let standing = standing(live.seen());
            let never_came = request.unanswered && standing.begun == 0;
            if !live.all_spoke() || !(standing.is_settled() || never_came) {
                return Look::OnChange;
            }
            let quiet_until = live.last_change.max(began) + live.terms.quiet;
            if Instant::now() < quiet_until {
                return Look::At(quiet_until);
            }
            Look::Ready(Some(Settled { settled: true, kept: standing.kept, running: Vec::new() }))
        });
        match settled.await {
            Some(Some(settled)) => return Ok(settled),
            Some(None) => {}
            None => {
                if let Some(live) = self.look().round(id) {
                    let standing = standing(live.seen());
                    let mut running = standing.running;
                    running.extend(live.unheard().map(|service| format!("the sidecar of {service} did not answer")));
                    if standing.begun == 0 {
                        running.push("no sidecar saw a call of the round".to_owned());
                    } else if running.is_empty() {
                        running.push("calls still come and go".to_owned());
                    }
                    return Ok(Settled { settled: false, kept: standing.kept, running });
                }
            }
        }
        Err(self.ended(id).await?)
    }

    /// `POST /v1/rounds/{id}/finish`. Of a round that has ended otherwise, what came of it.
    pub(crate) async fn finish(self: &Arc<Self>, id: RoundId, request: Finish) -> Result<Finished, RoundError> {
        let _heard = Heard::new(self, id);
        let at = deadline(Instant::now(), request.deadline.0);
        let ours = self.look().round_mut(id).map(|live| {
            if live.phase == Phase::Arming {
                return Err(RoundError::Phase { id, problem: "is not armed yet".to_owned() });
            }
            if live.phase == Phase::Ending {
                return Ok(false);
            }
            live.phase = Phase::Ending;
            live.failures.extend(request.client_failed.map(Failure::Client));
            Ok(true)
        });
        match ours.transpose()? {
            Some(true) => return Ok(flatten(self.spawn_end(id, at).await)?.finished),
            Some(false) => {
                let gone = |state: &mut State| {
                    if state.round(id).is_some() { Look::OnChange } else { Look::Ready(()) }
                };
                let _ = self.until_round(id, at + self.options.acknowledge_within * 3, gone).await;
            }
            None => {}
        }
        match self.store.round(id).await?.ok_or(RoundError::Unknown(id))? {
            RoundRecord { finished: Some(finished), .. } => Ok(finished),
            record => Err(RoundError::Phase { id, problem: why_ended(record) }),
        }
    }

    /// `POST /v1/rounds/{id}/conclude`.
    pub(crate) async fn conclude(self: &Arc<Self>, id: RoundId, concluded: Conclude) -> Result<(), RoundError> {
        if self.store.conclude(id, concluded).await? {
            return Ok(());
        }
        self.store.round(id).await?.ok_or(RoundError::Unknown(id))?;
        Err(RoundError::Phase { id, problem: "is not finished".to_owned() })
    }

    /// `POST /v1/disarm`: end every round, for this reason.
    pub(crate) async fn disarm_all(self: &Arc<Self>, reason: &str) -> Disarmed {
        let mut disarmed = Disarmed { rounds: Vec::new(), unconfirmed: Vec::new() };
        let mut endings = Vec::new();
        self.change(|state| {
            for (id, live) in state.rounds_mut() {
                match live.phase {
                    Phase::Ending => continue,
                    // The task that arms it sees this and ends it.
                    Phase::Arming => live.failures.push(Failure::Ended(reason.to_owned())),
                    Phase::Armed => {
                        live.failures.push(Failure::Ended(reason.to_owned()));
                        live.phase = Phase::Ending;
                        endings.push(id);
                    }
                }
                live.changed();
                disarmed.rounds.push(id);
            }
        });
        let tasks: Vec<_> = endings.into_iter().map(|id| self.spawn_end(id, Instant::now())).collect();
        for task in tasks {
            match flatten(task.await) {
                Ok(ended) => disarmed.unconfirmed.extend(ended.unconfirmed),
                Err(error) => tracing::error!(%error, "a round was disarmed and not stored"),
            }
        }
        let rounds = disarmed.rounds.clone();
        let none_left = |state: &mut State| {
            if rounds.iter().any(|id| state.round(*id).is_some()) { Look::OnChange } else { Look::Ready(()) }
        };
        let _ = self.until(Instant::now() + self.options.acknowledge_within * 3, none_left).await;
        disarmed.unconfirmed.sort();
        disarmed.unconfirmed.dedup();
        disarmed
    }

    fn spawn_end(self: &Arc<Self>, id: RoundId, at: Instant) -> JoinHandle<Result<Ended, RoundError>> {
        let hub = Arc::clone(self);
        tokio::spawn(async move { hub.end(id, at).await })
    }

    /// Why something cannot be done with a round that has ended or never was.
    async fn ended(&self, id: RoundId) -> Result<RoundError, RoundError> {
        let ending = self.look().round(id).map(|live| match live.failures.first() {
            Some(failure) => format!("is ending: {failure}"),
            None => "is being finished".to_owned(),
        });
        let problem = match ending {
            Some(reason) => reason,
            None => why_ended(self.store.round(id).await?.ok_or(RoundError::Unknown(id))?),
        };
        Ok(RoundError::Phase { id, problem })
    }
}

fn why_ended(record: RoundRecord) -> String {
    let reasons = record.finished.into_iter().flat_map(|finished| finished.reasons);
    match record.ended_early.into_iter().chain(reasons).next() {
        Some(reason) => format!("has ended: {reason}"),
        None => "has ended".to_owned(),
    }
}

/// A deadline in the far future is as good as none, and can be added.
fn deadline(from: Instant, within: Duration) -> Instant {
    from + within.min(Duration::from_secs(24 * 3600))
}

/// The result of a task; a panic in it goes on here.
fn flatten<T>(joined: Result<Result<T, RoundError>, tokio::task::JoinError>) -> Result<T, RoundError> {
    match joined {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(RoundError::Stopping),
        },
    }
}

/// The result of what is computed apart from the tasks that answer sidecars; a panic in it goes on here.
async fn blocking<T: Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> Result<T, RoundError> {
    flatten(tokio::task::spawn_blocking(move || Ok(compute())).await)
}

/// Renew the leases of a round while its runner is alive; end the round when it is not, or when ordinary traffic
/// suffers.
async fn keep(hub: Arc<Hub>, id: RoundId) {
    let every = hub.options.renew_every;
    let mut renew_at = Instant::now() + every;
    let mut counters_at = Instant::now() + COUNTERS_EVERY;
    loop {
        let (wake_at, alarm) = {
            let state = hub.look();
            let Some(live) = state.round(id) else { return };
            let wake_at = live.runner_deadline(hub.options.runner_lease).map_or(renew_at, |at| at.min(renew_at));
            let wake_at = if live.may_be_stopped() { wake_at.min(counters_at) } else { wake_at };
            (wake_at, Arc::clone(&live.alarm))
        };
        tokio::select! {
            () = tokio::time::sleep_until(wake_at) => {}
            () = alarm.notified() => {}
        }
        let now = Instant::now();
        let ended = {
            let mut state = hub.look();
            if now >= renew_at {
                renew_at = now + every;
                state.renew(id, now);
            }
            let Some(live) = state.round_mut(id) else { return };
            let ended = live.is_to_be_ended(now, hub.options.runner_lease);
            if now >= counters_at {
                counters_at = now + COUNTERS_EVERY;
                if live.may_be_stopped() {
                    state.ask_for_counters(now);
                }
            }
            ended
        };
        if ended {
            tracing::warn!(round = id.0, "the round is ended");
            let end = hub.spawn_end(id, now);
            // The token stays live while the round completes; this loop goes on renewing it.
            drop(end);
        }
    }
}
