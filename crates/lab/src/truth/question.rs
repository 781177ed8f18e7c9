//! Claims about a round as values, so that a case can list what must be true of it.

use super::{Contradiction, Fate, Log, Window};
use crate::events::Ledger;

/// What the services' own logs and ledgers are expected to say about one business key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Nothing on the way interfered with any call.
    Untouched,
    /// Exactly one call was interfered with, it is of this Api, and this became of it.
    OnlyFault {
        /// The Api's short name.
        api: String,
        /// What became of the call.
        fate: Fate,
    },
    /// The only fault is a lost answer, the `k`-th of this Api that its callee sent in the execution.
    LostAnswer {
        /// The Api's short name.
        api: String,
        /// Its number, from 1.
        k: usize,
    },
    /// The only fault is a lost answer that reported one change of this ledger, made before the answer was sent.
    LostAfterEffect {
        /// The Api's short name.
        api: String,
        /// The ledger's name.
        ledger: String,
    },
    /// The only fault is that of a plan, in the window that its target allows.
    Window(Box<Window>),
    /// At this caller a success of `first` was received before any answer of `second`.
    ReceivedInOrder {
        /// The calling service.
        caller: String,
        /// Short name of the Api that must succeed first.
        first: String,
        /// Short name of the Api that must be answered later.
        second: String,
    },
    /// The ledger holds this many entries.
    Entries {
        /// The ledger's name.
        ledger: String,
        /// How many.
        count: usize,
    },
    /// The ledger was cleared this often.
    Cleared {
        /// The ledger's name.
        ledger: String,
        /// How often.
        times: usize,
    },
}

impl Question {
    /// [`Question::OnlyFault`].
    pub fn only_fault(api: &str, fate: Fate) -> Self {
        Self::OnlyFault { api: api.into(), fate }
    }

    /// [`Question::LostAnswer`].
    pub fn lost_answer(api: &str, k: usize) -> Self {
        Self::LostAnswer { api: api.into(), k }
    }

    /// [`Question::LostAfterEffect`].
    pub fn lost_after_effect(api: &str, ledger: &str) -> Self {
        Self::LostAfterEffect { api: api.into(), ledger: ledger.into() }
    }

    /// [`Question::ReceivedInOrder`].
    pub fn received_in_order(caller: &str, first: &str, second: &str) -> Self {
        Self::ReceivedInOrder { caller: caller.into(), first: first.into(), second: second.into() }
    }

    /// [`Question::Entries`].
    pub fn entries(ledger: &str, count: usize) -> Self {
        Self::Entries { ledger: ledger.into(), count }
    }

    /// [`Question::Cleared`].
    pub fn cleared(ledger: &str, times: usize) -> Self {
        Self::Cleared { ledger: ledger.into(), times }
    }

    /// The ledger that is needed to answer it.
    pub fn ledger(&self) -> Option<&str> {
        match self {
            Self::Entries { ledger, .. } | Self::Cleared { ledger, .. } => Some(ledger),
            _ => None,
        }
    }

    /// Compares with the merged logs, and with the ledger that [`Self::ledger`] names.
    pub fn ask(&self, log: &Log, ledger: Option<&Ledger>) -> Result<(), Contradiction> {
        let counted = |claim: String, expected: usize, found: Option<usize>| match found {
            Some(found) if found == expected => Ok(()),
            found => Err(Contradiction {
                claim,
                found: found.map_or("it was not read".to_owned(), |found| format!("found {found}")),
            }),
        };
        let named = |name: &str| ledger.filter(|ledger| ledger.ledger == name);
        match self {
            Self::Untouched => log.untouched(),
            Self::OnlyFault { api, fate } => log.only_fault(api, fate).map(drop),
            Self::LostAnswer { api, k } => log.lost_answer(api, *k).map(drop),
            Self::LostAfterEffect { api, ledger } => log.lost_after_effect(api, ledger).map(drop),
            Self::Window(window) => window.judge(log).map(drop),
            Self::ReceivedInOrder { caller, first, second } => log.received_in_order(caller, first, second),
            Self::Entries { ledger: name, count } => {
                counted(format!("number of entries in {name}: {count}"), *count, named(name).map(|ledger| ledger.count))
            }
            Self::Cleared { ledger: name, times } => counted(
                format!("number of times {name} was cleared: {times}"),
                *times,
                named(name).map(|ledger| ledger.cleared),
            ),
        }
    }
}
