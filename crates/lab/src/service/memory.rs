//! What a service process remembers by business key: its event log and its ledgers.
//!
//! With a journal every line is handed to the kernel before anything follows from it, so that a process that is killed
//! and started again goes on with the log and the ledgers that it had.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::payload::Caller;
use crate::events::{Event, Failure, History, Kind, LedgerEntry, Nanoseconds, Outcome};
use crate::scalar::Status;
use crate::topology::Effect;

/// Most business keys remembered; the oldest is forgotten first, log and ledgers together.
const MOST_KEYS: usize = 65_536;

/// The log and ledgers of one process.
#[derive(Debug)]
pub(crate) struct Memory {
    service: String,
    process: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    keys: HashMap<String, PerKey>,
    order: VecDeque<String>,
    sequence: u64,
    journal: Option<File>,
    /// Why the journal is not complete.
    failed: Option<String>,
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    event: Event,
    /// Of an effect: it cleared its ledger.
    #[serde(default)]
    clears: bool,
}

#[derive(Debug, Default)]
struct PerKey {
    events: Vec<Event>,
    ledgers: HashMap<String, History>,
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

    /// Remembers a line, with what it says of a ledger.
    fn remember(&mut self, Line { key, event, clears }: Line) {
        self.sequence = event.sequence + 1;
        let of_key = self.of(&key);
        if let Some(ledger) = &event.ledger {
            let history = of_key.ledgers.entry(ledger.clone()).or_default();
            match clears {
                true => history.cleared.push(event.clock),
                false => history.appended.push(LedgerEntry {
                    clock: event.clock,
                    api: event.api.clone(),
                    call: event.call.clone(),
                }),
            }
        }
        of_key.events.push(event);
    }

    fn write(&mut self, line: &Line) {
        let Some(journal) = &mut self.journal else { return };
        let mut text = serde_json::to_vec(line).expect("its map keys are strings");
        text.push(b'\n');
        if let Err(error) = journal.write_all(&text) {
            self.failed.get_or_insert_with(|| format!("the journal could not be written: {error}"));
        }
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
    /// Empty, or what the journal holds, if there is one.
    pub(crate) fn open(service: &str, journal: Option<&Path>) -> anyhow::Result<Self> {
        let mut inner = Inner::default();
        if let Some(path) = journal {
            let file = File::options().read(true).append(true).create(true).open(path);
            let file = file.with_context(|| format!("cannot open the journal {}", path.display()))?;
            let mut reader = BufReader::new(file);
            let mut text = String::new();
            // A process that was killed while it wrote has left half a line, of which nothing followed.
            while reader.read_line(&mut text)? > 0 && text.ends_with('\n') {
                let line = serde_json::from_str(&text);
                inner.remember(line.with_context(|| format!("a line of {} is malformed", path.display()))?);
                text.clear();
            }
            let mut file = reader.into_inner();
            if !text.is_empty() {
                let whole = file.metadata()?.len().saturating_sub(text.len() as u64);
                file.set_len(whole)?;
            }
            file.flush()?;
            inner.journal = Some(file);
        }
        Ok(Self { service: service.to_owned(), process: std::process::id(), inner: Mutex::new(inner) })
    }

    /// Why what it remembers would not survive the end of this process, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Writes one line; the clock is read under the lock, so that the log is in the order of its clocks.
    pub(crate) fn log(&self, key: &str, api: &str, kind: Kind, caller: &Caller, details: Details<'_>) {
        self.append(key, api, kind, caller, details, false);
    }

    fn append(&self, key: &str, api: &str, kind: Kind, caller: &Caller, details: Details<'_>, clears: bool) {
        let mut inner = self.lock();
        let event = Event {
            clock: Nanoseconds::now(),
            sequence: inner.sequence,
            service: self.service.clone(),
            process: self.process,
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
        };
        let line = Line { key: key.to_owned(), event, clears };
        inner.write(&line);
        inner.remember(line);
    }

    /// Makes a durable change and logs it, in one step.
    pub(crate) fn apply(&self, key: &str, api: &str, effect: &Effect, caller: &Caller) {
        let (Effect::Append { ledger } | Effect::Clear { ledger }) = effect;
        let details = Details { ledger: Some(ledger), ..Details::default() };
        self.append(key, api, Kind::EffectMade, caller, details, matches!(effect, Effect::Clear { .. }));
    }

    pub(crate) fn events(&self, key: &str) -> Vec<Event> {
        self.lock().keys.get(key).map(|of_key| of_key.events.clone()).unwrap_or_default()
    }

    /// What this process did to a ledger.
    pub(crate) fn history(&self, name: &str, key: &str) -> History {
        let inner = self.lock();
        inner.keys.get(key).and_then(|of_key| of_key.ledgers.get(name)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Ledger;

    fn caller(call: &str) -> Caller {
        Caller { service: "web".into(), call: call.into(), parent: None, index: 1, attempt: 1 }
    }

    #[test]
    fn ledgers_are_kept_apart_by_key_and_clearing_is_counted() {
        let memory = Memory::open("pay", None).unwrap();
        let append = Effect::Append { ledger: "charges".into() };
        memory.apply("a", "Charge", &append, &caller("1"));
        memory.apply("a", "Charge", &append, &caller("2"));
        memory.apply("b", "Charge", &append, &caller("3"));
        memory.apply("b", "Refund", &Effect::Clear { ledger: "charges".into() }, &caller("4"));
        let ledger = |key| Ledger::of("charges", key, [memory.history("charges", key)]);
        let a = ledger("a");
        assert_eq!((a.count, a.cleared), (2, 0));
        assert_eq!(a.entries.iter().map(|entry| entry.call.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        let b = ledger("b");
        assert_eq!((b.count, b.cleared), (0, 1));
        assert_eq!(ledger("c").count, 0);
        assert_eq!(memory.events("a").len(), 2);
    }

    #[test]
    fn the_oldest_key_is_forgotten_first() {
        let memory = Memory::open("pay", None).unwrap();
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
        let memory = Memory::open("pay", None).unwrap();
        for _ in 0..100 {
            memory.log("k", "Charge", Kind::RequestReceived, &caller("x"), Details::default());
        }
        let events = memory.events("k");
        assert!(events.windows(2).all(|pair| pair[0].clock <= pair[1].clock && pair[0].sequence < pair[1].sequence));
    }

    #[test]
    fn what_was_written_down_before_a_kill_is_there_after_it_and_half_a_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let append = Effect::Append { ledger: "charges".into() };
        let clear = Effect::Clear { ledger: "charges".into() };
        let killed = Memory::open("pay", Some(&path)).unwrap();
        killed.log("k", "Charge", Kind::RequestReceived, &caller("1"), Details::default());
        killed.apply("k", "Charge", &append, &caller("1"));
        killed.apply("k", "Charge", &clear, &caller("2"));
        killed.apply("k", "Charge", &append, &caller("3"));
        // Not dropped: nothing of what it would do at its end has happened.
        std::mem::forget(std::fs::File::options().append(true).open(&path).unwrap().write_all(b"{\"key\": \"k"));
        let again = Memory::open("pay", Some(&path)).unwrap();
        assert_eq!(again.events("k"), killed.events("k"));
        assert_eq!(again.history("charges", "k"), killed.history("charges", "k"));
        again.apply("k", "Charge", &append, &caller("4"));
        let third = Memory::open("pay", Some(&path)).unwrap();
        assert_eq!(third.events("k").iter().map(|event| event.sequence).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let ledger = Ledger::of("charges", "k", [third.history("charges", "k")]);
        assert_eq!((ledger.count, ledger.cleared), (2, 1));
        assert_eq!(third.failure(), None);
    }
}
