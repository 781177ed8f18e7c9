//! A round that the controller keeps for its runner.

use std::time::Duration;

use aftershock_core::duration::Interval;
use tokio::task::JoinHandle;

use super::RunError;
use crate::api::{Finish, RUNNER_LEASE, RoundId};
use crate::client::Client;

/// Renewed while it lives, ended when it is dropped.
pub(super) struct Live {
    client: Client,
    pub(super) id: RoundId,
    renewing: JoinHandle<()>,
    /// The controller has judged it.
    pub(super) finished: bool,
    /// Nothing is left to say.
    pub(super) ended: bool,
}

impl Live {
    pub(super) fn new(client: Client, id: RoundId) -> Self {
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

    /// Waits for `span`, or until the controller has ended the round, and says whether it has.
    pub(super) async fn wait(&mut self, span: Duration) -> bool {
        tokio::time::timeout(span, &mut self.renewing).await.is_ok()
    }

    /// Ends the round for a reason. The error that led here matters more than one of this.
    pub(super) async fn give_up(&mut self, error: &RunError) {
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
