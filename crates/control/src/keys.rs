//! The keys of hop tags and how they are exchanged for new ones while messages are on their way (design §3.8).
//!
//! A rotation has three phases; each goes on when every registered sidecar has said that it did the one before:
//!
//! | phase | ring (signs with the first, takes all) | goes on when |
//! |---|---|---|
//! | steady | `[old]` | a rotation begins |
//! | announced | `[old, new]` | all take the new key |
//! | switched | `[new, old]` | all sign with it, and what was signed before has arrived ([`DRAIN`]) |
//! | steady | `[new]` | |
//!
//! Invariant: no message is signed with a key that a registered sidecar does not take. A sidecar that registers meanwhile
//! gets the ring of the phase and is waited for like the others. One that never answers stops the rotation, not the
//! traffic: the keys stay as they are.
//!
//! Nothing here sends or waits: methods return the ring that everybody is to be told.

use std::collections::BTreeSet;
use std::time::Duration;

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::ObserverId;

/// How long the key that is no longer signed with is still taken: messages on their way.
pub(crate) const DRAIN: Duration = Duration::from_secs(30);

/// Where a rotation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Steady,
    Announced,
    Switched,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Keys {
    ring: Keyring,
    phase: Phase,
    /// Registered sidecars.
    registered: BTreeSet<ObserverId>,
    /// Those that have not said yet that they use `ring`.
    behind: BTreeSet<ObserverId>,
}

impl Keys {
    /// With the ring that everybody begins with.
    pub(crate) fn new(ring: Keyring) -> Self {
        Keys { ring, phase: Phase::Steady, registered: BTreeSet::new(), behind: BTreeSet::new() }
    }

    /// What a sidecar gets that registers now.
    pub(crate) fn ring(&self) -> Keyring {
        self.ring.clone()
    }

    /// A sidecar is about to get [`Keys::ring`]. Whether it is to be asked to confirm that, by a message of its own.
    pub(crate) fn joined(&mut self, observer: ObserverId) -> bool {
        self.registered.insert(observer);
        let asked = self.phase != Phase::Steady;
        if asked {
            self.behind.insert(observer);
        }
        asked
    }

    /// A sidecar is gone.
    pub(crate) fn left(&mut self, observer: ObserverId) -> Option<Keyring> {
        self.registered.remove(&observer);
        self.behind.remove(&observer);
        self.go_on()
    }

    /// Begin to exchange the key for one with this secret, unless that is under way.
    pub(crate) fn rotate(&mut self, secret: [u8; 16]) -> Option<Keyring> {
        let old = *self.ring.current()?;
        if self.phase != Phase::Steady {
            return None;
        }
        let next = HopKey { id: old.id.wrapping_add(1), secret };
        self.enter(Phase::Announced, vec![old, next]).or_else(|| self.go_on())
    }

    /// A sidecar says which keys it uses, the signing one first.
    pub(crate) fn keyed(&mut self, observer: ObserverId, ids: &[u8]) -> Option<Keyring> {
        // What it says of an earlier ring says nothing of this one.
        if self.ring.0.iter().map(|key| key.id).eq(ids.iter().copied()) {
            self.behind.remove(&observer);
        }
        self.go_on()
    }

    /// The time for messages on their way is over: the old key is taken no longer. To be asked for once
    /// [`Keys::is_switched`].
    pub(crate) fn drained(&mut self) -> Option<Keyring> {
        if !self.is_switched() {
            return None;
        }
        let new = *self.ring.current()?;
        // Who has not heard of it yet takes one key more than it needs.
        self.phase = Phase::Steady;
        self.ring = Keyring(vec![new]);
        self.behind.clear();
        Some(self.ring())
    }

    /// Whether everybody signs with the new key, and the old one is still taken.
    pub(crate) fn is_switched(&self) -> bool {
        self.phase == Phase::Switched && self.behind.is_empty()
    }

    /// Those that a rotation waits for.
    pub(crate) fn behind(&self) -> impl Iterator<Item = ObserverId> + '_ {
        self.behind.iter().copied()
    }

    fn go_on(&mut self) -> Option<Keyring> {
        if self.phase != Phase::Announced || !self.behind.is_empty() {
            return None;
        }
        let mut keys = self.ring.0.clone();
        keys.reverse();
        self.enter(Phase::Switched, keys);
        Some(self.ring())
    }

    /// What there is to tell, if there is anybody to tell it.
    fn enter(&mut self, phase: Phase, keys: Vec<HopKey>) -> Option<Keyring> {
        self.phase = phase;
        self.ring = Keyring(keys);
        self.behind = self.registered.clone();
        (!self.behind.is_empty()).then(|| self.ring())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn key(id: u8) -> HopKey {
        HopKey { id, secret: [id; 16] }
    }

    fn ids(ring: &Keyring) -> Vec<u8> {
        ring.0.iter().map(|key| key.id).collect()
    }

    const A: ObserverId = ObserverId(1);
    const B: ObserverId = ObserverId(2);

    #[test]
    fn a_rotation_goes_through_its_phases_when_everybody_has_answered() {
        let mut keys = Keys::new(Keyring(vec![key(7)]));
        assert!(!keys.joined(A) && !keys.joined(B), "a first ring needs no answer");
        assert_eq!(keys.rotate([8; 16]).map(|ring| ids(&ring)), Some(vec![7, 8]));
        assert_eq!(keys.rotate([9; 16]), None, "one at a time");
        assert_eq!(keys.keyed(A, &[7, 8]), None);
        assert_eq!(keys.keyed(B, &[7]), None, "an answer to an earlier ring");
        assert_eq!(keys.keyed(B, &[7, 8]).map(|ring| ids(&ring)), Some(vec![8, 7]));
        assert_eq!(keys.drained(), None, "not everybody signs with the new key");
        keys.keyed(A, &[8, 7]);
        assert_eq!(keys.behind().collect::<Vec<_>>(), [B]);
        keys.keyed(B, &[8, 7]);
        assert!(keys.is_switched());
        assert_eq!(keys.drained().map(|ring| ids(&ring)), Some(vec![8]));
        assert_eq!(keys.drained(), None);
        assert_eq!(keys.ring().0, [HopKey { id: 8, secret: [8; 16] }]);
    }

    #[test]
    fn without_sidecars_a_rotation_waits_for_nobody() {
        let mut keys = Keys::new(Keyring(vec![key(255)]));
        assert_eq!(keys.rotate([0; 16]).map(|ring| ids(&ring)), Some(vec![0, 255]));
        assert!(keys.is_switched());
        assert_eq!(keys.drained().map(|ring| ids(&ring)), Some(vec![0]));
    }

    #[test]
    fn who_leaves_is_not_waited_for_and_who_joins_is() {
        let mut keys = Keys::new(Keyring(vec![key(1)]));
        keys.joined(A);
        keys.rotate([2; 16]);
        assert!(keys.joined(B), "it has to say that it takes both");
        assert_eq!(keys.keyed(A, &[1, 2]), None);
        assert_eq!(keys.left(B).map(|ring| ids(&ring)), Some(vec![2, 1]));
        assert!(keys.joined(B));
        keys.keyed(A, &[2, 1]);
        assert!(!keys.is_switched());
        assert_eq!(keys.left(B), None);
        assert!(keys.is_switched());
    }

    /// What happens next. Words between controller and sidecars wait in two queues for each, in order.
    #[derive(Debug, Clone)]
    enum Step {
        Join,
        Leave(Index),
        Rotate,
        /// A sidecar hears the next word.
        Hear(Index),
        /// The controller hears the next answer of one.
        Answer(Index),
        Drain,
        /// A sidecar sends a message; it arrives at some later step, before the time for that is over.
        Send(Index, Index),
        Arrive(Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::Join),
            1 => any::<Index>().prop_map(Step::Leave),
            2 => Just(Step::Rotate),
            8 => any::<Index>().prop_map(Step::Hear),
            8 => any::<Index>().prop_map(Step::Answer),
            3 => Just(Step::Drain),
            6 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Step::Send(from, to)),
            5 => any::<Index>().prop_map(Step::Arrive),
        ];
        proptest::collection::vec(step, 1..200)
    }

    #[derive(Default)]
    struct Peer {
        /// None before it has heard its welcome: it signs nothing and takes nothing.
        ring: Option<Keyring>,
        /// With whether an answer is wanted.
        words: VecDeque<(Keyring, bool)>,
        answers: VecDeque<Vec<u8>>,
    }

    #[derive(Default)]
    struct World {
        peers: BTreeMap<u64, Peer>,
        /// Receiver and signing key of messages on their way.
        flying: Vec<(u64, u8)>,
        born: u64,
        rotated: usize,
    }

    impl World {
        fn tell(&mut self, ring: Option<Keyring>) {
            let Some(ring) = ring else { return };
            self.peers.values_mut().for_each(|peer| peer.words.push_back((ring.clone(), true)));
        }

        fn pick(&self, at: &Index) -> Option<u64> {
            let all: Vec<u64> = self.peers.keys().copied().collect();
            (!all.is_empty()).then(|| *at.get(&all))
        }

        fn arrive(&mut self, at: usize) {
            let (to, signed) = self.flying.swap_remove(at);
            let taken = self.peers.get(&to).and_then(|peer| peer.ring.as_ref());
            if let Some(ring) = taken {
                assert!(ids(ring).contains(&signed), "signed with {signed}, taken are {:?}", ids(ring));
            }
        }

        fn step(&mut self, keys: &mut Keys, step: &Step) {
            match step {
                Step::Join => {
                    self.born += 1;
                    let asked = keys.joined(ObserverId(self.born));
                    let mut words = VecDeque::from([(keys.ring(), false)]);
                    words.extend(asked.then(|| (keys.ring(), true)));
                    self.peers.insert(self.born, Peer { words, ..Peer::default() });
                }
                Step::Leave(at) => {
                    let Some(id) = self.pick(at) else { return };
                    self.peers.remove(&id);
                    let ring = keys.left(ObserverId(id));
                    self.tell(ring);
                }
                Step::Rotate => {
                    let ring = keys.rotate([self.rotated as u8; 16]);
                    self.rotated += usize::from(ring.is_some());
                    self.tell(ring);
                }
                Step::Hear(at) => {
                    let Some(peer) = self.pick(at).and_then(|id| self.peers.get_mut(&id)) else { return };
                    let Some((ring, wanted)) = peer.words.pop_front() else { return };
                    peer.answers.extend(wanted.then(|| ids(&ring)));
                    peer.ring = Some(ring);
                }
                Step::Answer(at) => {
                    let Some(id) = self.pick(at) else { return };
                    let Some(answer) = self.peers.get_mut(&id).and_then(|peer| peer.answers.pop_front()) else {
                        return;
                    };
                    let ring = keys.keyed(ObserverId(id), &answer);
                    self.tell(ring);
                }
                Step::Drain => {
                    // That is what the time is for.
                    if keys.is_switched() {
                        (0..self.flying.len()).rev().for_each(|at| self.arrive(at));
                    }
                    let ring = keys.drained();
                    self.tell(ring);
                }
                Step::Send(from, to) => {
                    let (Some(from), Some(to)) = (self.pick(from), self.pick(to)) else { return };
                    // Somebody who was welcomed later would not know of a message sent to it before.
                    let ready = self.peers[&to].ring.is_some();
                    if let Some(key) = self.peers[&from].ring.as_ref().and_then(Keyring::current).filter(|_| ready) {
                        self.flying.push((to, key.id));
                    }
                }
                Step::Arrive(at) => {
                    if !self.flying.is_empty() {
                        self.arrive(at.index(self.flying.len()));
                    }
                }
            }
            // At no moment: whoever sends now is understood by everybody who is there now.
            let rings: Vec<&Keyring> = self.peers.values().filter_map(|peer| peer.ring.as_ref()).collect();
            for (from, to) in rings.iter().flat_map(|from| rings.iter().map(move |to| (from, to))) {
                let signed = from.current().unwrap().id;
                assert!(ids(to).contains(&signed), "{:?} sends to {:?}", ids(from), ids(to));
            }
        }
    }

    proptest! {
        #[test]
        fn at_no_moment_is_a_message_signed_with_a_key_that_a_registered_sidecar_does_not_take(steps in steps()) {
            let (mut keys, mut world) = (Keys::new(Keyring(vec![key(250)])), World::default());
            for step in &steps {
                world.step(&mut keys, step);
            }
            // Once everybody has heard and answered everything, a rotation is never stuck.
            while world.peers.values().any(|peer| !peer.words.is_empty() || !peer.answers.is_empty()) {
                for id in world.peers.keys().copied().collect::<Vec<_>>() {
                    let at = world.peers.keys().position(|other| *other == id).unwrap();
                    let peer = world.peers.get_mut(&id).unwrap();
                    if let Some((ring, wanted)) = peer.words.pop_front() {
                        peer.answers.extend(wanted.then(|| ids(&ring)));
                        peer.ring = Some(ring);
                    }
                    prop_assert!(at < world.peers.len());
                    if let Some(answer) = world.peers.get_mut(&id).and_then(|peer| peer.answers.pop_front()) {
                        let ring = keys.keyed(ObserverId(id), &answer);
                        world.tell(ring);
                    }
                }
            }
            prop_assert!(keys.phase == Phase::Steady || keys.is_switched());
        }
    }
}
