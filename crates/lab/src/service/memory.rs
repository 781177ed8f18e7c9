//! What a service process remembers by business key: its event log and its ledgers.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use super::payload::Caller;
use crate::events::{Event, Failure, Kind, Ledger, LedgerEntry, Nanoseconds, Outcome};
use crate::scalar::Status;
use crate::topology::Effect;

/// Most business keys remembered; the oldest is forgotten first, log and ledgers together.
const MOST_KEYS: usize = 65_536;

/// The log and ledgers of one process.
#[derive(Debug)]
pub(crate) struct Memory {
    service: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    keys: HashMap<String, PerKey>,
    order: VecDeque<String>,
    sequence: u64,
}

#[derive(Debug, Default)]
struct PerKey {
    events: Vec<Event>,
    ledgers: HashMap<String, (usize, Vec<LedgerEntry>)>,
}

impl Inner {
    fn of(&mut self, key: &str) -> &mut PerKey {
        if !self.keys.contains_key(key) {
            if self.order.len() == MOST_KEYS
                && let Some(oldest) = self.order.pop_front()
            {
                self.keys.remove(&oldest);
            }
            self.order.push_back(key.to_owned());
        }
        self.keys.entry(key.to_owned()).or_default()
    }
}

/// What an event says beyond which call it is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Details<'a> {
    pub(crate) status: Option<Status>,
    pub(crate) failure: Option<Failure>,
    pub(crate) ledger: Option<&'a str>,
}

impl Memory {
    pub(crate) fn new(service: &str) -> Self {
        Self { service: service.to_owned(), inner: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Writes one line; the clock is read under the lock, so that the log is in the order of its clocks.
    pub(crate) fn log(&self, key: &str, api: &str, kind: Kind, caller: &Caller, details: Details<'_>) {
        self.append(&mut self.lock(), key, api, kind, caller, details);
    }

    fn append(
        &self,
        inner: &mut Inner,
        key: &str,
        api: &str,
        kind: Kind,
        caller: &Caller,
        details: Details<'_>,
    ) -> Nanoseconds {
        let clock = Nanoseconds::now();
        let sequence = inner.sequence;
        inner.sequence += 1;
        inner.of(key).events.push(Event {
            clock,
            sequence,
            service: self.service.clone(),
            event: kind,
            api: api.to_owned(),
            call: caller.call.clone(),
            parent: caller.parent.clone(),
            caller: caller.service.clone(),
            index: caller.index,
            attempt: caller.attempt,
            outcome: details.status.map(|status| if status.is_ok() { Outcome::Ok } else { Outcome::Error }),
            status: details.status.map(|status| status.to_string()),
            failure: details.failure,
            ledger: details.ledger.map(str::to_owned),
        });
        clock
    }

    /// Makes a durable change and logs it, in one step.
    pub(crate) fn apply(&self, key: &str, api: &str, effect: &Effect, caller: &Caller) {
        let (Effect::Append { ledger } | Effect::Clear { ledger }) = effect;
        let mut inner = self.lock();
        let details = Details { ledger: Some(ledger), ..Details::default() };
        let clock = self.append(&mut inner, key, api, Kind::EffectMade, caller, details);
        let (cleared, entries) = inner.of(key).ledgers.entry(ledger.clone()).or_default();
        match effect {
            Effect::Append { .. } => {
                entries.push(LedgerEntry { clock, api: api.to_owned(), call: caller.call.clone() });
            }
            Effect::Clear { .. } => {
                *cleared += 1;
                entries.clear();
            }
        }
    }

    pub(crate) fn events(&self, key: &str) -> Vec<Event> {
        self.lock().keys.get(key).map(|of_key| of_key.events.clone()).unwrap_or_default()
    }

    pub(crate) fn ledger(&self, name: &str, key: &str) -> Ledger {
        let inner = self.lock();
        let found = inner.keys.get(key).and_then(|of_key| of_key.ledgers.get(name));
        let (cleared, entries) = found.cloned().unwrap_or_default();
        Ledger { ledger: name.to_owned(), key: key.to_owned(), count: entries.len(), cleared, entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(call: &str) -> Caller {
        Caller { service: "web".into(), call: call.into(), parent: None, index: 1, attempt: 1 }
    }

    #[test]
    fn ledgers_are_kept_apart_by_key_and_clearing_is_counted() {
        let memory = Memory::new("pay");
        let append = Effect::Append { ledger: "charges".into() };
        memory.apply("a", "Charge", &append, &caller("1"));
        memory.apply("a", "Charge", &append, &caller("2"));
        memory.apply("b", "Charge", &append, &caller("3"));
        memory.apply("b", "Refund", &Effect::Clear { ledger: "charges".into() }, &caller("4"));
        let a = memory.ledger("charges", "a");
        assert_eq!((a.count, a.cleared), (2, 0));
        assert_eq!(a.entries.iter().map(|entry| entry.call.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        let b = memory.ledger("charges", "b");
        assert_eq!((b.count, b.cleared), (0, 1));
        assert_eq!(memory.ledger("charges", "c").count, 0);
        assert_eq!(memory.events("a").len(), 2);
    }

    #[test]
    fn the_oldest_key_is_forgotten_first() {
        let memory = Memory::new("pay");
        for key in 0..=MOST_KEYS {
            memory.log(&key.to_string(), "Charge", Kind::RequestReceived, &caller("x"), Details::default());
        }
        assert!(memory.events("0").is_empty());
        assert_eq!(memory.events("1").len(), 1);
        assert_eq!(memory.events(&MOST_KEYS.to_string()).len(), 1);
        assert_eq!(memory.lock().keys.len(), MOST_KEYS);
    }

    #[test]
    fn a_log_is_in_the_order_of_its_clocks() {
        let memory = Memory::new("pay");
        for _ in 0..100 {
            memory.log("k", "Charge", Kind::RequestReceived, &caller("x"), Details::default());
        }
        let events = memory.events("k");
        assert!(events.windows(2).all(|pair| pair[0].clock <= pair[1].clock && pair[0].sequence < pair[1].sequence));
    }
}
