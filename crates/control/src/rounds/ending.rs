//! The end of a round: disarm → completion → verdict → store → end of the token (design §3.7, §3.11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aftershock_core::id::{ExecutionId, ObserverId};
use aftershock_core::name::{Api, Service};
use aftershock_core::trace::Trace;
use aftershock_core::wire::{FromController, OpenCall};
use tokio::time::Instant;

use super::RoundError;
use super::live::{Live, Phase};
use crate::api::{Finished, RoundId};
use crate::completion::{self, Record};
use crate::hub::{Hub, Look, State};
use crate::verdict::{RoundFacts, judge, of_round};

/// What came of a round, and who did not confirm that it is disarmed.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) finished: Finished,
    pub(super) unconfirmed: BTreeSet<Service>,
}

/// The record of a round as it is judged.
struct Gathered {
    traces: Vec<Trace>,
    incomplete: BTreeMap<ExecutionId, String>,
    missing: Vec<String>,
    unassociated: BTreeMap<Service, BTreeMap<Api, u64>>,
}

impl Hub {
    /// See a round in [`Phase::Ending`] to its end. It waits for completion until `deadline`, and a little longer for
    /// what sidecars have recorded by then.
    pub(super) async fn end(self: Arc<Self>, id: RoundId, deadline: Instant) -> Result<Ended, RoundError> {
        debug_assert!(self.look().rounds.get(&id).is_none_or(|live| live.phase == Phase::Ending));
        let unconfirmed = self.disarm(id).await;
        self.await_closed(id, deadline).await;
        let gathered = self.complete(id, deadline, &unconfirmed).await.ok_or(RoundError::Unknown(id))?;
        let finished = {
            let state = self.look();
            let live = state.rounds.get(&id).ok_or(RoundError::Unknown(id))?;
            judged(live, gathered)
        };
        let stored = self.store.finish(id, finished.clone()).await;
        self.change(|state| {
            if let Some(live) = state.rounds.remove(&id) {
                // Also to those that came late.
                for (_, connected) in state.registry.iter() {
                    connected.send(FromController::End { token: live.token });
                }
            }
        });
        tracing::info!(round = id.0, verdict = %finished.verdict, "round ended");
        stored?;
        Ok(Ended { finished, unconfirmed })
    }

    /// Remove the rules; the token stays live. Returns who did not confirm.
    async fn disarm(&self, id: RoundId) -> BTreeSet<Service> {
        self.change(|state| {
            if let Some(live) = state.rounds.get_mut(&id) {
                live.arbiter.close();
            }
            state.tell(id, |token| FromController::Disarm { token });
            // Whoever was never armed has nothing to confirm.
            state.watch(id);
        });
        let confirmed = |state: &mut State| match state.rounds.get(&id) {
            Some(live) if live.participants.values().any(|one| one.is_present() && !one.disarmed) => Look::OnChange,
            _ => Look::Ready(()),
        };
        let _ = self.until(Instant::now() + self.options.acknowledge_within, confirmed).await;
        let state = self.look();
        let participants = state.rounds.get(&id).map(|live| live.participants.values()).into_iter().flatten();
        participants.filter(|one| one.is_present() && !one.disarmed).map(|one| one.service.clone()).collect()
    }

    /// Wait until no sidecar has an open call of the round.
    async fn await_closed(&self, id: RoundId, deadline: Instant) {
        let closed = |state: &mut State| match state.rounds.get(&id) {
            Some(live) if !live.all_spoke() || live.seen().any(|(_, _, seen)| !seen.open.is_empty()) => Look::OnChange,
            _ => Look::Ready(()),
        };
        let _ = self.until(deadline, closed).await;
    }

    /// Flush every sidecar and look at what is in, until it is complete, nothing more can come, or the deadline.
    async fn complete(&self, id: RoundId, deadline: Instant, unconfirmed: &BTreeSet<Service>) -> Option<Gathered> {
        loop {
            let (revision, silent) = self.flush(id, deadline).await?;
            let done = self.change(|state| {
                let live = state.rounds.get(&id)?;
                let gathered = gather(state, live, unconfirmed, &silent);
                let complete = gathered.incomplete.is_empty() && gathered.missing.is_empty();
                // What was lost does not come, however long one waits.
                let hopeless = !gathered.missing.is_empty() || live.participants.values().any(|one| one.gone);
                if !complete && !hopeless && Instant::now() < deadline {
                    return Some(None);
                }
                state.collector.close(live.token, id);
                Some(Some(gathered))
            })?;
            if done.is_some() {
                return done;
            }
            let changed = |state: &mut State| match state.rounds.get(&id) {
                Some(live) if live.revision == revision => Look::OnChange,
                _ => Look::Ready(()),
            };
            let _ = self.until(deadline, changed).await;
            self.await_closed(id, deadline).await;
        }
    }

    /// Ask every connected sidecar for all it has recorded. Returns the round's revision before, and who did not answer.
    async fn flush(&self, id: RoundId, deadline: Instant) -> Option<(u64, BTreeSet<ObserverId>)> {
        let (flush, revision, asked) = self.change(|state| {
            state.flushes += 1;
            let flush = state.flushes;
            for (_, connected) in state.registry.iter() {
                connected.send(FromController::Report);
                connected.send(FromController::Flush { id: flush });
            }
            let revision = state.rounds.get(&id)?.revision;
            // Sidecars that were never armed recorded nothing of it.
            let unarmed = |observer: &ObserverId| {
                let participant = state.rounds.get(&id).and_then(|live| live.participants.get(observer));
                participant.is_some_and(|participant| !participant.armed)
            };
            let asked: BTreeSet<ObserverId> =
                state.registry.observers().into_iter().filter(|observer| !unarmed(observer)).collect();
            Some((flush, revision, asked))
        })?;
        let silent = |state: &State| -> BTreeSet<ObserverId> {
            let behind = |observer: &ObserverId| state.registry.get(*observer).is_some_and(|one| one.flushed < flush);
            asked.iter().copied().filter(behind).collect()
        };
        let answered = |state: &mut State| if silent(state).is_empty() { Look::Ready(()) } else { Look::OnChange };
        // Even past the deadline sidecars get the time to say what they know.
        let until = deadline.max(Instant::now() + self.options.acknowledge_within);
        let _ = self.until(until, answered).await;
        let silent = silent(&self.look());
        Some((revision, silent))
    }
}

/// What is in of a round, and what is not.
fn gather(state: &State, live: &Live, unconfirmed: &BTreeSet<Service>, silent: &BTreeSet<ObserverId>) -> Gathered {
    let collected = state.collector.gathered(live.token);
    let spans = collected.map(|gathered| gathered.spans.clone()).unwrap_or_default();
    let traces = Trace::assemble(spans);
    let open: Vec<(Service, OpenCall)> = live
        .seen()
        .flat_map(|(_, service, seen)| seen.open.iter().map(|call| (service.clone(), call.clone())))
        .collect();
    let armed = live.participants.values().filter(|one| one.armed);
    let services: BTreeSet<Service> = armed.map(|one| one.service.clone()).collect();
    let record = Record { traces: &traces, open: &open, services: &services, rules: &live.armament.rules };
    let mut incomplete = completion::incomplete(&record);

    let mut missing = Vec::new();
    for (observer, connected) in state.registry.iter() {
        let service = &connected.hello.service;
        if let Some(lost) = connected.lost_of.get(&live.token).filter(|lost| **lost > 0) {
            missing.push(format!("the sidecar of {service} lost {lost} span(s)"));
        }
        if silent.contains(&observer) {
            missing.push(format!("the sidecar of {service} did not answer a flush"));
        }
    }
    for participant in live.participants.values().filter(|one| one.armed && one.gone) {
        missing.push(format!("the sidecar of {} died before its spans were known to be in", participant.service));
    }
    for service in unconfirmed {
        missing.push(format!("the sidecar of {service} did not confirm that it is disarmed"));
    }
    if let Some(dropped) = collected.map(|gathered| gathered.dropped).filter(|dropped| *dropped > 0) {
        missing.push(format!("the collector dropped {dropped} span(s) beyond the limit of one round"));
    }
    if live.arbiter.has_overflowed() {
        missing.push(format!("the log of the arbiter ends after {} acts", live.arbiter.log().len()));
    }
    // Which executions these concern nobody knows: no execution of the round is complete.
    if !missing.is_empty() {
        let all = missing.join("; ");
        for trace in &traces {
            let reason = incomplete.entry(trace.execution).or_default();
            *reason = if reason.is_empty() { all.clone() } else { format!("{reason}; {all}") };
        }
    }
    if traces.is_empty() && open.is_empty() {
        missing.push("no sidecar recorded a call of the round".to_owned());
    }

    let mut unassociated: BTreeMap<Service, BTreeMap<Api, u64>> = BTreeMap::new();
    for (observer, participant) in &live.participants {
        let Some(connected) = state.registry.get(*observer).filter(|_| !participant.gone) else { continue };
        for (api, now) in connected.unassociated() {
            let before = participant.unassociated.get(api).copied().unwrap_or(0);
            if *now > before {
                let of_service = unassociated.entry(participant.service.clone()).or_default();
                *of_service.entry(api.clone()).or_default() += now - before;
            }
        }
    }
    Gathered { traces, incomplete, missing, unassociated }
}

fn judged(live: &Live, gathered: Gathered) -> Finished {
    let armed: BTreeMap<ObserverId, Service> = live
        .participants
        .iter()
        .filter(|(_, participant)| participant.armed)
        .map(|(observer, participant)| (*observer, participant.service.clone()))
        .collect();
    let facts = RoundFacts {
        plan: &live.request.plan,
        rules: &live.armament.rules,
        armed: &armed,
        traces: &gathered.traces,
        fired: &live.fired,
        failures: &live.failures,
        arbiter: live.arbiter.log(),
        incomplete: &gathered.incomplete,
        missing: &gathered.missing,
    };
    let faults = judge(&facts);
    let verdict = of_round(&facts, &faults);
    let reasons = live.failures.iter().map(ToString::to_string).chain(gathered.missing).collect();
    let Gathered { traces, incomplete, unassociated, .. } = gathered;
    Finished { verdict, faults, reasons, traces, incomplete, unassociated, arbiter: live.arbiter.log().to_vec() }
}
