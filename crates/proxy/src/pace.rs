//! A bound on how often something may happen.

use std::time::{Duration, Instant};

/// Lets some through at once and one in each `pace` in the long run (the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// How many may come at once.
    pub(crate) burst: u32,
    /// The mean time between two, at least.
    pub(crate) pace: Duration,
}

/// How far one limit is used up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacer {
    limit: Limit,
    /// When everything taken so far would have come at the mean rate.
    due: Instant,
}

impl Pacer {
    pub(crate) fn new(limit: Limit, now: Instant) -> Self {
        Pacer { limit, due: now }
    }

    /// When the next may be taken.
    pub(crate) fn next(&self) -> Instant {
        self.due.checked_sub(self.limit.pace * (self.limit.burst - 1)).unwrap_or(self.due)
    }

    /// One is taken.
    pub(crate) fn take(&mut self, now: Instant) {
        self.due = self.due.max(now) + self.limit.pace;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_lets_a_burst_through_and_then_one_at_a_time() {
        const BURST: u32 = 16;
        const PACE: Duration = Duration::from_millis(10);
        let start = Instant::now();
        let mut pacer = Pacer::new(Limit { burst: BURST, pace: PACE }, start);
        for taken in 0..BURST {
            assert!(pacer.next() <= start, "{taken} of the burst");
            pacer.take(start);
        }
        for further in 1..50 {
            let next = pacer.next();
            assert_eq!(next, start + PACE * further, "one in each pace");
            pacer.take(next);
        }
        let later = start + Duration::from_secs(60);
        for _ in 0..BURST {
            assert!(pacer.next() <= later, "a pause saves up no more than a burst");
            pacer.take(later);
        }
        assert_eq!(pacer.next(), later + PACE);
    }
}
