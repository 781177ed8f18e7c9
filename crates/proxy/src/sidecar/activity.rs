//! The open calls of watched rounds, told at every change (design §3.7: completion is detected, never slept for).

use std::collections::BTreeMap;

use aftershock_core::id::Token;

/// The calls of each known round.
#[derive(Debug, Default)]
pub(crate) struct Activity(BTreeMap<Token, Watch>);

#[derive(Debug, Default)]
struct Watch {
    begun: u64,
    watched: bool,
    changed: bool,
}

impl Activity {
    /// Count the calls of `token` from now on.
    pub(crate) fn follow(&mut self, token: Token) {
        self.0.entry(token).or_default();
    }

    /// Tell changes of `token` from now on, and what it is now.
    pub(crate) fn watch(&mut self, token: Token) {
        let watch = self.0.entry(token).or_default();
        (watch.watched, watch.changed) = (true, true);
    }

    /// The round is over.
    pub(crate) fn forget(&mut self, token: Token) {
        self.0.remove(&token);
    }

    /// Only these rounds are still known.
    pub(crate) fn retain(&mut self, known: impl Fn(Token) -> bool) {
        self.0.retain(|token, _| known(*token));
    }

    /// A call began.
    pub(crate) fn begun(&mut self, token: Token) {
        if let Some(watch) = self.0.get_mut(&token) {
            watch.begun += 1;
            watch.changed = true;
        }
    }

    /// A call ended, or waits for something else.
    pub(crate) fn changed(&mut self, token: Token) {
        if let Some(watch) = self.0.get_mut(&token) {
            watch.changed = true;
        }
    }

    /// The watched rounds that changed since the last call, with the number of calls begun.
    pub(crate) fn take(&mut self) -> Vec<(Token, u64)> {
        let changed = self.0.iter_mut().filter(|(_, watch)| watch.watched && watch.changed);
        changed
            .map(|(token, watch)| {
                watch.changed = false;
                (*token, watch.begun)
            })
            .collect()
    }

    /// Whether [`Activity::take`] would return anything.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.values().any(|watch| watch.watched && watch.changed)
    }
}
