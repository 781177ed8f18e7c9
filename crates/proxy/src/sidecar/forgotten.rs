//! Correlation ids of calls that were forgotten before their time, because more calls ended than are remembered.
//!
//! Such an id may have been another execution's a moment ago, so it says nothing any more for the linger time. There is no
//! telling how many there are, and memory is bounded: they are kept as a Bloom filter in two generations, the older of
//! which goes when all in it are over. What it takes for forgotten and is not costs an association and never makes a wrong
//! one; where far too many are forgotten, no id says anything.

use std::time::{Duration, Instant};

use super::header::Digest;

/// Bits of a generation, a power of two: with 65,536 ids in it, every fortieth other id is taken for one of them.
const BITS: usize = 1 << 19;
const PROBES: u64 = 4;

/// The ids forgotten within the linger time. Takes no memory while there are none.
#[derive(Debug)]
pub(crate) struct Forgotten {
    linger: Duration,
    generations: Option<Generations>,
}

#[derive(Debug)]
struct Generations {
    /// When the current one began.
    since: Instant,
    current: Box<[u64]>,
    previous: Box<[u64]>,
}

impl Forgotten {
    /// None yet; each is kept for at least `linger`.
    pub(crate) fn new(linger: Duration) -> Self {
        Forgotten { linger, generations: None }
    }

    /// A call with this id was forgotten.
    pub(crate) fn put(&mut self, id: Digest, now: Instant) {
        self.expire(now);
        let empty = || vec![0; BITS / 64].into_boxed_slice();
        let generations =
            self.generations.get_or_insert_with(|| Generations { since: now, current: empty(), previous: empty() });
        for bit in bits(id) {
            generations.current[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Whether a call with this id may have been forgotten within the linger time.
    pub(crate) fn may_have(&self, id: Digest) -> bool {
        let Some(generations) = &self.generations else { return false };
        let within = |generation: &[u64]| bits(id).all(|bit| generation[bit / 64] & 1 << (bit % 64) != 0);
        within(&generations.current) || within(&generations.previous)
    }

    /// Time has come to `now`.
    pub(crate) fn expire(&mut self, now: Instant) {
        let Some(generations) = &mut self.generations else { return };
        let age = now.saturating_duration_since(generations.since);
        if age > self.linger * 2 {
            self.generations = None;
        } else if age > self.linger {
            std::mem::swap(&mut generations.current, &mut generations.previous);
            generations.current.fill(0);
            // What came until now is in the previous one, and goes no earlier than a linger time after this moment.
            generations.since = now;
        }
    }
}

/// Double hashing (Kirsch and Mitzenmacher 2006) of what is a hash already.
fn bits(digest: Digest) -> impl Iterator<Item = usize> {
    let (first, step) = (digest, digest >> 32 | 1);
    (0..PROBES).map(move |probe| (first.wrapping_add(probe.wrapping_mul(step)) % BITS as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sidecar::header::Correlation;

    const LINGER: Duration = Duration::from_secs(30);

    fn id(n: u64) -> Digest {
        Correlation::read(&["x-request-id"], 0, n.to_string().as_bytes()).unwrap().digest()
    }

    #[test]
    fn an_id_is_kept_for_the_linger_time_whenever_it_was_forgotten_and_not_for_ever() {
        let start = Instant::now();
        let mut forgotten = Forgotten::new(LINGER);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for second in 0..200 {
            forgotten.put(id(second), at(second));
            for kept in second.saturating_sub(30)..=second {
                assert!(forgotten.may_have(id(kept)), "{kept} at {second}");
            }
        }
        assert!(!forgotten.may_have(id(100)), "long over");
        forgotten.expire(at(199) + LINGER * 2 + Duration::from_secs(1));
        assert!(forgotten.generations.is_none(), "its memory is given back");
    }

    #[test]
    fn few_others_are_taken_for_forgotten_ones() {
        let now = Instant::now();
        let mut forgotten = Forgotten::new(LINGER);
        assert!(!forgotten.may_have(id(0)));
        (0..65_536).for_each(|n| forgotten.put(id(n), now));
        assert!((0..65_536).all(|n| forgotten.may_have(id(n))));
        let wrong = (100_000..200_000).filter(|n| forgotten.may_have(id(*n))).count();
        assert!((1_500..3_500).contains(&wrong), "{wrong} of 100,000");
    }
}
