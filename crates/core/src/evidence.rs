//! Evidence: what is known of an execution at a point of it, a join-semilattice (design §3.2).
//!
//! A map (event, observer) → count with pointwise maximum as the join; the count of an event is the sum over observers.
//! Each sidecar keeps one [`Evidence`] per execution, adds its own observations, merges what arrives, stamps what leaves.
//!
//! Laws, checked by property tests against sets of true occurrences: merge is associative, commutative and idempotent;
//! counts never decrease; they are never above the true number of occurrences so far; never below the number that
//! causally precede through messages that carried evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::EventId;
use crate::id::ObserverId;
use crate::name::Service;

/// What kind of knowledge may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapKind {
    /// Passes may have been missed: blocks numbered `k` at the service.
    Number,
    /// Counts may be too low: a true guard stays true, a false one is unknown.
    Evidence,
}

impl GapKind {
    /// The word in spans and output.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GapKind::Number => "number",
            GapKind::Evidence => "evidence",
        }
    }
}

/// Something may have been missed: by whom, at which service, of what kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gap {
    /// What may be missing.
    pub kind: GapKind,
    /// The sidecar that noticed.
    pub observer: ObserverId,
    /// The service of that sidecar.
    pub service: Service,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} gap noticed by the sidecar of {} ({})", self.kind.as_str(), self.service, self.observer)
    }
}

/// Sticky gaps: at most [`Gaps::KEPT`] by name, beyond that `any`, the top of the lattice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gaps {
    named: BTreeSet<Gap>,
    any: bool,
}

impl Gaps {
    /// How many gaps are kept by name.
    pub const KEPT: usize = 4;

    /// The top: something may be missing anywhere.
    pub fn any() -> Self {
        Gaps { named: BTreeSet::new(), any: true }
    }

    /// Nothing is known to be missing.
    pub fn is_empty(&self) -> bool {
        !self.any && self.named.is_empty()
    }

    /// Whether more gaps were seen than are kept by name.
    pub fn is_any(&self) -> bool {
        self.any
    }

    /// The gaps kept by name.
    pub fn named(&self) -> impl Iterator<Item = &Gap> {
        self.named.iter()
    }

    /// Whether numbered occurrences at `service` may have been missed.
    pub fn blocks_number(&self, service: &Service) -> bool {
        self.any || self.named.iter().any(|gap| gap.kind == GapKind::Number && gap.service == *service)
    }

    /// Add one gap.
    pub fn insert(&mut self, gap: Gap) {
        if !self.any {
            self.named.insert(gap);
            self.overflow();
        }
    }

    /// The join: union, or `any`.
    pub fn merge(&mut self, other: &Gaps) {
        self.any |= other.any;
        self.named.extend(other.named.iter().cloned());
        self.overflow();
    }

    fn overflow(&mut self) {
        if self.any || self.named.len() > Self::KEPT {
            self.any = true;
            self.named.clear();
        }
    }
}

/// Counts of boundary events known at a point of an execution, and what may be missing from them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    counts: BTreeMap<(EventId, ObserverId), u64>,
    gaps: Gaps,
}

impl Evidence {
    /// How often `event` is known to have happened: the sum over observers.
    pub fn count(&self, event: EventId) -> u64 {
        let (from, to) = ((event, ObserverId(0)), (event, ObserverId(u64::MAX)));
        self.counts.range(from..=to).map(|(_, n)| n).fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Every entry, in order.
    pub fn entries(&self) -> impl Iterator<Item = (EventId, ObserverId, u64)> + '_ {
        self.counts.iter().map(|((event, observer), count)| (*event, *observer, *count))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nothing is known to have happened.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// `observer` saw `event` once more.
    pub fn observe(&mut self, event: EventId, observer: ObserverId) {
        let count = self.counts.entry((event, observer)).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Raise one entry to at least `count`; a zero leaves no entry.
    pub fn raise(&mut self, event: EventId, observer: ObserverId, count: u64) -> bool {
        if count == 0 {
            return false;
        }
        let known = self.counts.entry((event, observer)).or_insert(0);
        let grew = count > *known;
        *known = count.max(*known);
        grew
    }

    /// The join with what another point knows. Returns whether anything grew.
    pub fn merge(&mut self, other: &Evidence) -> bool {
        let mut grew = false;
        for (event, observer, count) in other.entries() {
            grew |= self.raise(event, observer, count);
        }
        if !other.gaps.is_empty() && self.gaps != other.gaps {
            let before = self.gaps.clone();
            self.gaps.merge(&other.gaps);
            grew |= before != self.gaps;
        }
        grew
    }

    /// What may be missing.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// What may be missing, to add to.
    pub fn gaps_mut(&mut self) -> &mut Gaps {
        &mut self.gaps
    }
}

/// What one sidecar knows of one execution: evidence and the execution-local Lamport clock.
///
/// The clock gives recorded events a total order that agrees with causality whatever the hosts' clocks say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Knowledge {
    /// What is known to have happened.
    pub evidence: Evidence,
    /// The largest clock value seen or given.
    pub clock: u64,
}

impl Knowledge {
    /// Merge what a message brought. Returns whether the evidence grew.
    pub fn merge(&mut self, arriving: &Knowledge) -> bool {
        self.clock = self.clock.max(arriving.clock);
        self.evidence.merge(&arriving.evidence)
    }

    /// One boundary event happens here: give it the next clock value, and count it under each of `events`.
    pub fn happen(&mut self, observer: ObserverId, events: impl IntoIterator<Item = EventId>) -> u64 {
        self.clock = self.clock.saturating_add(1);
        for event in events {
            self.evidence.observe(event, observer);
        }
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: EventId = EventId(1);
    const A: ObserverId = ObserverId(0);
    const B: ObserverId = ObserverId(u64::MAX);

    #[test]
    fn a_count_is_the_sum_over_observers_from_the_first_to_the_last() {
        let mut evidence = Evidence::default();
        evidence.observe(E, A);
        evidence.observe(E, A);
        evidence.observe(E, B);
        evidence.observe(EventId(0), B);
        evidence.observe(EventId(2), A);
        assert_eq!((evidence.count(E), evidence.len()), (3, 4));
    }

    #[test]
    fn what_was_heard_twice_counts_once() {
        let (mut one, mut two) = (Evidence::default(), Evidence::default());
        one.observe(E, A);
        assert!(two.merge(&one));
        assert!(!two.merge(&one));
        two.observe(E, B);
        assert!(one.merge(&two));
        assert_eq!((one.count(E), two.count(E)), (2, 2));
    }

    #[test]
    fn counts_from_a_forged_or_broken_peer_do_not_overflow() {
        let mut evidence = Evidence::default();
        assert!(evidence.raise(E, A, u64::MAX) && evidence.raise(E, B, 7));
        assert!(!evidence.raise(E, B, 7) && !evidence.raise(E, B, 0));
        evidence.observe(E, A);
        assert_eq!(evidence.count(E), u64::MAX);
        let mut knowledge = Knowledge { evidence, clock: u64::MAX };
        assert_eq!(knowledge.happen(A, [E]), u64::MAX);
    }

    #[test]
    fn a_zero_leaves_no_entry() {
        let mut evidence = Evidence::default();
        assert!(!evidence.raise(E, A, 0));
        assert!(evidence.is_empty());
    }

    #[test]
    fn a_gap_alone_is_growth() {
        let mut gapped = Evidence::default();
        gapped.gaps_mut().insert(Gap { kind: GapKind::Evidence, observer: A, service: "a".parse().unwrap() });
        let mut evidence = Evidence::default();
        assert!(evidence.merge(&gapped) && !evidence.merge(&gapped));
        assert!(!evidence.gaps().blocks_number(&"a".parse().unwrap()), "only a number gap blocks numbers");
        assert!(evidence.merge(&Evidence { gaps: Gaps::any(), ..Evidence::default() }));
        assert!(evidence.gaps().blocks_number(&"b".parse().unwrap()));
    }
}
