//! The calls that ended lately: a ring in the order in which they ended, and an index by id.
//!
//! Every call passes through it and few are ever asked for, so it is made for passing through: what goes in and out stands
//! side by side, and the index, which is met at random, has four bytes for each.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::time::Instant;

use aftershock_core::id::CallId;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::association::{Direction, Known};

/// A call that ended.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) at: Instant,
    pub(super) call: CallId,
    pub(super) direction: Direction,
    pub(super) known: Known,
}

/// The calls that ended lately.
#[derive(Debug, Default)]
pub(super) struct Ended {
    ring: VecDeque<Past>,
    /// How many have left the ring, modulo 2³²: the place of its first one.
    left: u32,
    /// The places of those in the ring.
    index: HashTable<u32>,
    hasher: RandomState,
}

impl Ended {
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    /// When the first of them ended.
    pub(super) fn first(&self) -> Option<Instant> {
        self.ring.front().map(|past| past.at)
    }

    /// Appends one.
    pub(super) fn push(&mut self, past: Past) {
        let place = self.left.wrapping_add(self.ring.len() as u32);
        self.ring.push_back(past);
        let Ended { ring, left, index, hasher } = self;
        let hash = |place: &u32| hash(hasher, &ring[place.wrapping_sub(*left) as usize]);
        index.insert_unique(hash(&place), place, hash);
    }

    /// Takes out the first.
    pub(super) fn pop(&mut self) -> Option<Past> {
        let past = self.ring.pop_front()?;
        let place = self.left;
        self.left = place.wrapping_add(1);
        if let Ok(entry) = self.index.find_entry(hash(&self.hasher, &past), |other| *other == place) {
            entry.remove();
        }
        Some(past)
    }

    /// What was known of a call.
    pub(super) fn get(&self, call: CallId, direction: Direction) -> Option<&Known> {
        let past = |place: &u32| &self.ring[place.wrapping_sub(self.left) as usize];
        let is_it = |place: &u32| past(place).call == call && past(place).direction == direction;
        let place = self.index.find(self.hasher.hash_one((call, direction)), is_it)?;
        Some(&past(place).known)
    }
}

fn hash(hasher: &RandomState, past: &Past) -> u64 {
    hasher.hash_one((past.call, past.direction))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn direction(goes_out: bool) -> Direction {
        if goes_out { Direction::Out } else { Direction::In }
    }

    proptest! {
        /// The same as a list that is searched from its beginning, also where places begin anew.
        #[test]
        fn it_is_a_queue_in_which_calls_are_found(
            steps in prop::collection::vec((0..40u64, any::<bool>(), any::<bool>()), 0..300), left in prop_oneof![Just(0), u32::MAX - 20..],
        ) {
            let now = Instant::now();
            let mut ended = Ended { left, ..Ended::default() };
            let mut model: VecDeque<(u64, bool, u64)> = VecDeque::new();
            for (at, (call, goes_out, pops)) in steps.into_iter().enumerate() {
                let is_it = |known: &&(u64, bool, u64)| (known.0, known.1) == (call, goes_out);
                let found = ended.get(CallId(call), direction(goes_out)).map(|known| known.ids[0]);
                let expected = model.iter().find(is_it).map(|known| known.2);
                prop_assert_eq!(found, expected);
                if pops {
                    let popped = ended.pop().map(|past| (past.call.0, past.direction == Direction::Out, past.known.ids[0]));
                    prop_assert_eq!(popped, model.pop_front());
                } else if expected.is_none() {
                    let known = Known { key: None, ids: [at as u64].into_iter().collect() };
                    ended.push(Past { at: now, call: CallId(call), direction: direction(goes_out), known });
                    model.push_back((call, goes_out, at as u64));
                }
                prop_assert_eq!((ended.len(), ended.index.len()), (model.len(), model.len()));
                prop_assert_eq!(ended.first().is_some(), !model.is_empty());
            }
        }
    }
}
