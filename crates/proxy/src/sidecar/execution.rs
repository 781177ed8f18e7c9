//! What this sidecar knows of each execution, bounded (design §3.1 "Memory", §3.2).
//!
//! Invariants: an execution that no live token holds ends with its last open call. A live token holds at most
//! [`MAX_PER_TOKEN`] executions; the one idle for longest is evicted first, one with an open call never: so no parked and
//! no asking message loses its execution. Who evicts says so: the round is told, and marks what follows.

use std::collections::{BTreeSet, VecDeque};

use aftershock_core::evidence::{Gap, Gaps, Knowledge};
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::w3c::Member;
use foldhash::HashMap;

use super::call::ExchangeId;
use super::rules::Progress;

/// Most executions held for one live token. Executions with an open call are held beyond it: connections bound them.
pub(crate) const MAX_PER_TOKEN: usize = 4_096;

/// Most inbound calls of an execution that are remembered to tell replays, beyond the linger time.
const MAX_SEEN: usize = 16_384;

/// An execution under its token. The same execution id under two tokens is two executions: no forged pair mixes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) token: Token,
    pub(crate) execution: ExecutionId,
}

impl Key {
    pub(crate) fn of(member: &Member) -> Self {
        Key { token: member.token, execution: member.execution }
    }
}

/// One execution, as known here.
#[derive(Debug, Default)]
pub(crate) struct Execution {
    /// Evidence and clock.
    pub(crate) knowledge: Knowledge,
    /// Grows whenever the evidence does.
    pub(crate) version: u64,
    /// The trace id of its requests; 0 before one is known.
    pub(crate) trace_id: u128,
    /// How far each rule of its round got in it.
    pub(crate) progress: Vec<Progress>,
    /// Exchanges with a message that waits for a guard or the arbiter, in the order in which they came.
    pub(crate) held: Vec<ExchangeId>,
    /// The place of its first message here among all executions.
    pub(crate) born: u64,
    open: usize,
    /// When it became idle, if it is; as in `Held::idle`.
    idle: Option<u64>,
    seen: BTreeSet<CallId>,
}

impl Execution {
    /// Merge what a message brought.
    pub(crate) fn merge(&mut self, arriving: &Knowledge) {
        if self.knowledge.merge(arriving) {
            self.version += 1;
        }
    }

    /// Something may have been missed. Returns whether that was not known yet.
    pub(crate) fn set_gap(&mut self, gap: Gap) -> bool {
        let before = self.knowledge.evidence.gaps().clone();
        self.knowledge.evidence.gaps_mut().insert(gap);
        let grew = before != *self.knowledge.evidence.gaps();
        self.version += u64::from(grew);
        grew
    }

    /// Something may have been missed, and nobody can say where. Returns whether that was not known yet.
    pub(crate) fn set_gap_anywhere(&mut self) -> bool {
        let grows = !self.knowledge.evidence.gaps().is_any();
        if grows {
            self.knowledge.evidence.gaps_mut().merge(&Gaps::any());
            self.version += 1;
        }
        grows
    }

    /// How far the rule at `index` got.
    pub(crate) fn progress(&mut self, index: usize) -> &mut Progress {
        if self.progress.len() <= index {
            self.progress.resize_with(index + 1, Progress::default);
        }
        &mut self.progress[index]
    }

    /// A call came in.
    pub(crate) fn saw(&mut self, call: CallId) {
        if self.seen.len() < MAX_SEEN {
            self.seen.insert(call);
        }
    }

    /// Whether a call came in before.
    pub(crate) fn has_seen(&self, call: CallId) -> bool {
        self.seen.contains(&call)
    }
}

/// The executions of a live token.
#[derive(Debug, Default)]
struct Held {
    count: usize,
    /// Those that became idle, the first one first. Of one that was not idle all the time since, the entry is void.
    idle: VecDeque<(u64, ExecutionId)>,
}

impl Held {
    /// Whether an entry is of an execution that has been idle since.
    fn is_idle(all: &HashMap<Key, Box<Execution>>, token: Token, (since, execution): (u64, ExecutionId)) -> bool {
        all.get(&Key { token, execution }).is_some_and(|found| found.idle == Some(since))
    }

    /// Forget the execution that is idle for longest; whether there was one.
    fn evict(&mut self, token: Token, all: &mut HashMap<Key, Box<Execution>>) -> bool {
        while let Some(oldest) = self.idle.pop_front() {
            if Held::is_idle(all, token, oldest) {
                return all.remove(&Key { token, execution: oldest.1 }).is_some();
            }
        }
        false
    }

    /// Throw away what is void before it is most of the list.
    fn tidy(&mut self, token: Token, all: &HashMap<Key, Box<Execution>>) {
        if self.idle.len() > 2 * self.count + 64 {
            self.idle.retain(|entry| Held::is_idle(all, token, *entry));
        }
    }
}

/// All executions known here.
#[derive(Debug)]
pub(crate) struct Executions {
    all: HashMap<Key, Box<Execution>>,
    held: HashMap<Token, Held>,
    clock: u64,
    /// Most executions held for one live token.
    pub(crate) most: usize,
}

impl Default for Executions {
    fn default() -> Self {
        Executions { all: HashMap::default(), held: HashMap::default(), clock: 0, most: MAX_PER_TOKEN }
    }
}

impl Executions {
    pub(crate) fn get(&self, key: Key) -> Option<&Execution> {
        self.all.get(&key).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Execution> {
        self.all.get_mut(&key).map(Box::as_mut)
    }

    /// The executions of `token`, in the order of their ids.
    pub(crate) fn of(&self, token: Token) -> Vec<Key> {
        let mut keys: Vec<Key> = self.all.keys().filter(|key| key.token == token).copied().collect();
        keys.sort_unstable();
        keys
    }

    /// The place that the next new execution will have.
    pub(crate) fn next_born(&self) -> u64 {
        self.clock + 1
    }

    /// Executions of `token` outlive their last call from now on.
    pub(crate) fn hold(&mut self, token: Token) {
        let count = self.all.keys().filter(|key| key.token == token).count();
        self.held.entry(token).or_insert(Held { count, idle: VecDeque::new() });
    }

    /// Executions of `token` end with their last call from now on; those that have none end now.
    pub(crate) fn release(&mut self, token: Token) {
        if self.held.remove(&token).is_some() {
            self.all.retain(|key, execution| {
                execution.idle = execution.idle.filter(|_| key.token != token);
                key.token != token || execution.open > 0
            });
        }
    }

    /// A call of `key` begins. Returns its execution, and whether another one was evicted for it.
    pub(crate) fn enter(&mut self, key: Key) -> (&mut Execution, bool) {
        let mut evicted = false;
        if !self.all.contains_key(&key) {
            self.clock += 1;
            if let Some(held) = self.held.get_mut(&key.token) {
                if held.count >= self.most {
                    evicted = held.evict(key.token, &mut self.all);
                    held.count -= usize::from(evicted);
                }
                held.count += 1;
            }
            self.all.insert(key, Box::new(Execution { born: self.clock, ..Execution::default() }));
        }
        let execution = self.all.get_mut(&key).expect("it was there or has been put there");
        execution.open += 1;
        execution.idle = None;
        (execution, evicted)
    }

    /// A call of `key` ends.
    pub(crate) fn leave(&mut self, key: Key) {
        let Some(execution) = self.all.get_mut(&key) else { return };
        execution.open = execution.open.saturating_sub(1);
        if execution.open > 0 {
            return;
        }
        match self.held.get_mut(&key.token) {
            Some(held) => {
                self.clock += 1;
                execution.idle = Some(self.clock);
                held.idle.push_back((self.clock, key.execution));
                held.tidy(key.token, &self.all);
            }
            None => {
                self.all.remove(&key);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Of the executions that have no open call, the one goes that is idle for longest.
        #[test]
        fn whoever_is_idle_for_longest_goes_first(
            steps in prop::collection::vec((0..12u64, any::<bool>()), 0..400), most in 1..6usize,
        ) {
            let token = Token(1);
            let mut executions = Executions { most, ..Executions::default() };
            executions.hold(token);
            // Open calls, and when it became idle, of those that are known.
            let mut model: BTreeMap<u64, (u32, usize)> = BTreeMap::new();
            for (at, (execution, enters)) in steps.into_iter().enumerate() {
                let key = Key { token, execution: ExecutionId(execution) };
                if enters {
                    let new = !model.contains_key(&execution);
                    let idle = model.iter().filter(|(_, (open, _))| *open == 0);
                    let oldest = idle.min_by_key(|(_, (_, since))| *since).map(|(execution, _)| *execution);
                    let evicts = oldest.filter(|_| new && model.len() >= most);
                    prop_assert_eq!(executions.enter(key).1, evicts.is_some());
                    evicts.map(|execution| model.remove(&execution));
                    model.entry(execution).or_default().0 += 1;
                } else if let Some((open, since)) = model.get_mut(&execution).filter(|(open, _)| *open > 0) {
                    executions.leave(key);
                    (*open, *since) = (*open - 1, at);
                }
                let known: Vec<u64> = executions.of(token).iter().map(|key| key.execution.0).collect();
                prop_assert_eq!(known, model.keys().copied().collect::<Vec<_>>());
                prop_assert!(executions.held[&token].idle.len() <= 2 * model.len() + 64);
            }
            executions.release(token);
            prop_assert_eq!(executions.len(), model.values().filter(|(open, _)| *open > 0).count());
        }
    }
}
