//! Answers to calls that were given up (design §3.4: "late evidence is still merged").
//!
//! A caller that gives up ends its call: there is no event any more. The answer may be under way all the same, and what it
//! says of *other* events is true. What is needed to believe it is kept for the linger time, of calls of live rounds only,
//! and never for more than [`MAX_DEPARTED`] calls: the oldest go first.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use aftershock_core::id::CallId;

use super::call::ExchangeId;
use super::execution::Key;
use crate::exchange::LinkId;

/// Most calls whose late answers are waited for.
pub(crate) const MAX_DEPARTED: usize = 1_024;

/// A call whose caller has gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Departed {
    pub(crate) key: Key,
    pub(crate) call: CallId,
    /// The member under which its answer's hop header is tagged.
    pub(crate) member: String,
}

/// The calls of which an answer may still come.
#[derive(Debug)]
pub(crate) struct DepartedCalls {
    by_exchange: BTreeMap<ExchangeId, Departed>,
    /// By when they were given up; those that are answered meanwhile stay here until their time.
    order: VecDeque<(Instant, ExchangeId)>,
    linger: Duration,
}

impl DepartedCalls {
    pub(crate) fn new(linger: Duration) -> Self {
        DepartedCalls { by_exchange: BTreeMap::new(), order: VecDeque::new(), linger }
    }

    /// The caller of `departed` went at `now`.
    pub(crate) fn put(&mut self, id: ExchangeId, departed: Departed, now: Instant) {
        if self.order.len() == MAX_DEPARTED {
            self.forget_oldest();
        }
        self.by_exchange.insert(id, departed);
        self.order.push_back((now, id));
    }

    /// The call whose late answer is here.
    pub(crate) fn get(&self, id: ExchangeId) -> Option<&Departed> {
        self.by_exchange.get(&id)
    }

    /// Its answer has come, there is no other.
    pub(crate) fn remove(&mut self, id: ExchangeId) {
        self.by_exchange.remove(&id);
    }

    /// No answer comes on a link that is gone.
    pub(crate) fn gone(&mut self, link: LinkId) {
        self.by_exchange.retain(|id, _| id.link != link);
    }

    /// Forget whoever went longer ago than the linger time.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > self.linger) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.by_exchange.remove(&id);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_exchange.len()
    }
}

#[cfg(test)]
mod tests {
    use aftershock_core::id::{ExecutionId, Token};

    use super::*;
    use crate::exchange::StreamId;

    fn id(stream: u64) -> ExchangeId {
        ExchangeId { link: LinkId(stream % 2), stream: StreamId(stream) }
    }

    fn departed(call: u64) -> Departed {
        let key = Key { token: Token(1), execution: ExecutionId(2) };
        Departed { key, call: CallId(call), member: String::new() }
    }

    #[test]
    fn no_more_than_the_bound_are_kept_and_none_beyond_the_linger_time() {
        let start = Instant::now();
        let linger = Duration::from_secs(30);
        let mut calls = DepartedCalls::new(linger);
        for call in 0..MAX_DEPARTED as u64 + 2 {
            calls.put(id(call), departed(call), start + Duration::from_millis(call));
        }
        assert_eq!((calls.len(), calls.get(id(0)), calls.get(id(1))), (MAX_DEPARTED, None, None));
        assert_eq!(calls.get(id(2)), Some(&departed(2)));
        calls.expire(start + Duration::from_millis(2) + linger);
        assert!(calls.get(id(2)).is_some(), "to the last instant");
        calls.expire(start + Duration::from_millis(3) + linger);
        assert_eq!((calls.get(id(2)), calls.len()), (None, MAX_DEPARTED - 1));
        calls.remove(id(4));
        calls.expire(start + Duration::from_millis(5) + linger);
        assert_eq!(calls.len(), MAX_DEPARTED - 3, "one answered, two too old");
        calls.gone(LinkId(1));
        assert!(calls.get(id(7)).is_none() && calls.get(id(8)).is_some());
    }
}
