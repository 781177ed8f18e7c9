//! The end of a round: disarm → completion → verdict → store → end of the token (design §3.7, §3.11).

use std::collections::BTreeSet;
use std::sync::Arc;

use aftershock_core::id::ObserverId;
use aftershock_core::name::Service;
use aftershock_core::wire::FromController;
use tokio::time::Instant;

use super::judging::{Assembled, Case};
use super::live::Phase;
use super::{RoundError, blocking};
use crate::api::{Finished, RoundId};
use crate::hub::{Hub, Look};
use crate::state::State;

/// What came of a round, and who did not confirm that it is disarmed.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) finished: Finished,
    pub(super) unconfirmed: BTreeSet<Service>,
}

impl State {
    /// Remove the rules of a round in [`Phase::Ending`]; its token stays live.
    pub(crate) fn disarm(&mut self, id: RoundId) {
        if let Some(live) = self.round_mut(id) {
            live.arbiter.close();
        }
        self.tell(id, |token| FromController::Disarm { token });
        // Whoever was never armed has nothing to confirm.
        self.watch(id);
    }

    /// The services of which a sidecar within reach did not confirm that it is disarmed.
    pub(crate) fn unconfirmed(&self, id: RoundId) -> BTreeSet<Service> {
        let participants = self.round(id).map(|live| live.participants.values()).into_iter().flatten();
        participants.filter(|one| one.is_present() && !one.disarmed).map(|one| one.service.clone()).collect()
    }

    /// Whether no sidecar has an open call of the round, as far as those within reach have said.
    pub(crate) fn is_over(&self, id: RoundId) -> bool {
        self.round(id).is_none_or(|live| live.all_spoke() && live.seen().all(|(_, _, seen)| seen.open.is_empty()))
    }

    /// The connected sidecars whose spans a round waits for. Those that were never armed recorded nothing of it.
    pub(crate) fn recorders(&self, id: RoundId) -> BTreeSet<ObserverId> {
        let unarmed = |observer: &ObserverId| {
            let participant = self.round(id).and_then(|live| live.participants.get(observer));
            participant.is_some_and(|participant| !participant.armed)
        };
        self.registry.observers().into_iter().filter(|observer| !unarmed(observer)).collect()
    }
}

impl Hub {
    /// See a round in [`Phase::Ending`] to its end. It waits for completion until `deadline`, and a little longer for
    /// what sidecars have recorded by then.
    pub(super) async fn end(self: Arc<Self>, id: RoundId, deadline: Instant) -> Result<Ended, RoundError> {
        debug_assert!(self.look().round(id).is_none_or(|live| live.phase == Phase::Ending));
        let unconfirmed = self.disarm(id).await;
        self.await_closed(id, deadline).await;
        let (case, assembled) = self.complete(id, deadline, &unconfirmed).await.ok_or(RoundError::Unknown(id))?;
        let finished = blocking(move || case.judge(assembled)).await?;
        let stored = self.store.finish(id, finished.clone()).await;
        self.change(|state| state.end(id));
        tracing::info!(round = id.0, verdict = %finished.verdict, "round ended");
        stored?;
        Ok(Ended { finished, unconfirmed })
    }

    /// Remove the rules; the token stays live. Returns who did not confirm.
    async fn disarm(&self, id: RoundId) -> BTreeSet<Service> {
        self.look().disarm(id);
        let confirmed = |state: &mut State| match state.unconfirmed(id).is_empty() {
            false => Look::OnChange,
            true => Look::Ready(()),
        };
        let _ = self.until_round(id, Instant::now() + self.options.acknowledge_within, confirmed).await;
        self.look().unconfirmed(id)
    }

    /// Wait until no sidecar has an open call of the round.
    async fn await_closed(&self, id: RoundId, deadline: Instant) {
        let closed = |state: &mut State| if state.is_over(id) { Look::Ready(()) } else { Look::OnChange };
        let _ = self.until_round(id, deadline, closed).await;
    }

    /// Flush every sidecar and look at what is in, until it is complete, nothing more can come, or the deadline.
    async fn complete(
        &self,
        id: RoundId,
        deadline: Instant,
        unconfirmed: &BTreeSet<Service>,
    ) -> Option<(Case, Assembled)> {
        loop {
            let silent = self.flush(id, deadline).await;
            let gathered = self.look().gather(id, unconfirmed, &silent)?;
            let assembled = blocking(move || gathered.assemble()).await.ok()?;
            let last = assembled.is_hopeless() || Instant::now() >= deadline;
            if assembled.is_complete() || last {
                let mut state = self.look();
                if state.round(id)?.revision == assembled.revision {
                    return Some((state.close(id)?, assembled));
                }
                if last {
                    // Something came in the meantime: it is taken, and nothing more.
                    let assembled = state.gather(id, unconfirmed, &silent)?.assemble();
                    return Some((state.close(id)?, assembled));
                }
            }
            let changed = |state: &mut State| match state.round(id) {
                Some(live) if live.revision == assembled.revision => Look::OnChange,
                _ => Look::Ready(()),
            };
            let _ = self.until_round(id, deadline, changed).await;
            self.await_closed(id, deadline).await;
        }
    }

    /// Ask every connected sidecar for all it has recorded. Returns who did not answer.
    async fn flush(&self, id: RoundId, deadline: Instant) -> BTreeSet<ObserverId> {
        let (flush, asked) = {
            let mut state = self.look();
            (state.flush(), state.recorders(id))
        };
        let answered = |state: &mut State| match state.behind(flush, &asked).is_empty() {
            true => Look::Ready(()),
            false => Look::OnChange,
        };
        // Even past the deadline sidecars get the time to say what they know.
        let until = deadline.max(Instant::now() + self.options.acknowledge_within);
        let _ = self.until(until, answered).await;
        self.look().behind(flush, &asked)
    }
}
