//! The stream identifiers of both sides.
//!
//! A stream gets its identifier at the upstream when its request is forwarded, so that identifiers grow there whatever
//! was parked or never sent (RFC 9113 §5.1.1). They are dense, hence never above the application's. The map is not
//! monotonic, and a GOAWAY needs its past: the identifiers ever assigned are kept as runs in which both sides count alike,
//! one run as long as nothing is parked.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Runs kept. Beyond that the oldest are only known by their largest identifier.
const MAX_RUNS: usize = 256;

/// Streams kept by [`Crossing`].
const MAX_CROSSING: usize = 1024;

/// Multiplicative hashing: identifiers are small, and each peer chooses its own at most in order.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        let mixed = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A map by stream identifier.
pub(crate) type IdMap<T> = HashMap<u32, T, BuildHasherDefault<IdHasher>>;

/// Streams that were closed here while their sender could still send on them: what it sends until it knows is nobody's
/// fault (RFC 9113 §5.1). On any other closed stream DATA and HEADERS are an error of the sender.
#[derive(Debug, Default)]
pub(crate) struct Crossing {
    recent: VecDeque<u32>,
    /// The largest identifier no longer kept; nothing is held against it, nor against smaller ones.
    before: u32,
}

impl Crossing {
    /// `id` was closed while its sender could send.
    pub(crate) fn insert(&mut self, id: u32) {
        if self.recent.len() == MAX_CROSSING
            && let Some(oldest) = self.recent.pop_front()
        {
            self.before = self.before.max(oldest);
        }
        self.recent.push_back(id);
    }

    /// Whether a frame on the closed stream `id` may have crossed its end on the way; `last`: none will after it.
    pub(crate) fn allows(&mut self, id: u32, last: bool) -> bool {
        let Some(at) = self.recent.iter().position(|known| *known == id) else { return id <= self.before };
        if last {
            self.recent.remove(at);
        }
        true
    }
}

#[derive(Debug, Clone, Copy)]
struct Run {
    upstream: u32,
    app: u32,
    count: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ids {
    /// The next identifier at the upstream.
    next: u32,
    /// The application's identifier of each stream that is open at the upstream.
    app: IdMap<u32>,
    runs: VecDeque<Run>,
    /// The largest application identifier of the runs no longer kept.
    before: u32,
    largest: u32,
}

impl Default for Ids {
    fn default() -> Self {
        Self { next: 1, app: IdMap::default(), runs: VecDeque::new(), before: 0, largest: 0 }
    }
}

impl Ids {
    /// Assign the next identifier at the upstream to the application's stream `app`.
    pub(crate) fn open(&mut self, app: u32) -> u32 {
        let upstream = self.next;
        self.next += 2;
        self.app.insert(upstream, app);
        self.largest = self.largest.max(app);
        match self.runs.back_mut() {
            Some(run) if run.app + 2 * run.count == app => run.count += 1,
            _ => {
                if self.runs.len() == MAX_RUNS
                    && let Some(run) = self.runs.pop_front()
                {
                    self.before = self.before.max(run.app + 2 * (run.count - 1));
                }
                self.runs.push_back(Run { upstream, app, count: 1 });
            }
        }
        upstream
    }

    /// The application's stream behind `upstream`, while it is open at the upstream.
    pub(crate) fn app(&self, upstream: u32) -> Option<u32> {
        self.app.get(&upstream).copied()
    }

    /// The upstream's stream is closed.
    pub(crate) fn close(&mut self, upstream: u32) {
        self.app.remove(&upstream);
    }

    /// `upstream` is a stream that was never opened.
    pub(crate) fn is_idle(&self, upstream: u32) -> bool {
        upstream.is_multiple_of(2) || upstream >= self.next
    }

    /// The largest application identifier that was forwarded.
    pub(crate) fn largest(&self) -> u32 {
        self.largest
    }

    /// The largest application identifier whose upstream identifier is at most `last`; 0 if there is none.
    pub(crate) fn largest_up_to(&self, last: u32) -> u32 {
        let mut largest = self.before;
        for run in &self.runs {
            if run.upstream <= last {
                let within = ((last - run.upstream) / 2).min(run.count - 1);
                largest = largest.max(run.app + 2 * within);
            }
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn goaway_maps_as_a_scan_over_all_assignments_says(order in Just((0..60u32).collect::<Vec<_>>()).prop_shuffle(), swaps in 0..60usize, last in 0..200u32) {
            // Mostly in order, as in life, but for the first `swaps`.
            let mut order = order;
            order[swaps..].sort_unstable();
            let mut ids = Ids::default();
            let assigned: Vec<(u32, u32)> = order.iter().map(|n| (ids.open(2 * n + 1), 2 * n + 1)).collect();
            prop_assert!(assigned.is_sorted());
            let scanned = assigned.iter().filter(|(up, _)| *up <= last).map(|(_, app)| *app).max().unwrap_or(0);
            prop_assert_eq!(ids.largest_up_to(last), scanned);
            for (up, app) in assigned {
                prop_assert_eq!(ids.app(up), Some(app));
            }
        }
    }

    #[test]
    fn history_is_bounded() {
        let mut ids = Ids::default();
        for n in 0..10_000u32 {
            ids.open(if n % 2 == 0 { 2 * n + 3 } else { 2 * n - 1 });
        }
        assert!(ids.runs.len() <= MAX_RUNS);
        assert_eq!(ids.largest_up_to(u32::MAX >> 1), ids.largest());
    }
}
