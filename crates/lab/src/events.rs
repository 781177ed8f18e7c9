//! What a service process writes down about itself, on the clock that all processes of a host share.

use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between the processes of one host, until it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// Now.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock counts from 0");
        let nanoseconds = u64::try_from(now.tv_nsec).expect("nanoseconds of a second are not negative");
        Self(seconds * 1_000_000_000 + nanoseconds)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The caller is about to write the request.
    RequestSent,
    /// The callee has read the request.
    RequestReceived,
    /// The callee has made a durable change.
    EffectMade,
    /// The callee is about to write its answer.
    ResponseSent,
    /// The caller has read the answer.
    ResponseReceived,
    /// The caller has no answer and will not get one; `failure` says why.
    CallFailed,
    /// The callee stopped working because its caller has gone.
    HandlingCancelled,
}

/// Whether an answer is a success: HTTP below 400, gRPC code 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A success.
    Ok,
    /// An error status.
    Error,
}

/// Why a call has no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// Refused, closed or reset, or no message of the protocol.
    Transport,
    /// An error status came.
    Status,
    /// Nothing came in time.
    Hang,
    /// The caller itself was left by its own caller.
    Cancelled,
}

/// One line of a process's own log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When.
    pub clock: Nanoseconds,
    /// Place in the log of its process.
    pub sequence: u64,
    /// The service that wrote it.
    pub service: String,
    /// The process of it that did.
    pub process: u32,
    /// What happened.
    pub event: Kind,
    /// The Api's short name.
    pub api: String,
    /// Identity of this attempt of a call, made up by the caller and passed in the payload; both sides log it.
    pub call: String,
    /// The call whose handler made this one; `None` at the client's own request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The calling service, `client` for the client.
    pub caller: String,
    /// Place among the calls of this Api in the caller's handler run, from 1.
    pub index: usize,
    /// 1 for the first attempt; automatic retries count on.
    pub attempt: u32,
    /// Outcome of a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Status of a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Why there is no good answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The ledger that an effect changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<String>,
}

/// What a ledger holds for one business key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The ledger's name.
    pub ledger: String,
    /// The business key.
    pub key: String,
    /// Number of entries.
    pub count: usize,
    /// How often it was cleared.
    pub cleared: usize,
    /// The entries, oldest first.
    pub entries: Vec<LedgerEntry>,
}

/// What one process did to a ledger, for one business key: a service's ledger is what its processes did together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Every entry that was made, also those cleared since.
    pub appended: Vec<LedgerEntry>,
    /// When it was cleared.
    pub cleared: Vec<Nanoseconds>,
}

impl Ledger {
    /// What is in a ledger after what its processes did, in the order of the clock they share.
    pub fn of(ledger: &str, key: &str, histories: impl IntoIterator<Item = History>) -> Self {
        let (mut entries, mut clears) = (Vec::new(), Vec::new());
        for history in histories {
            entries.extend(history.appended);
            clears.extend(history.cleared);
        }
        if let Some(last) = clears.iter().max() {
            entries.retain(|entry| entry.clock > *last);
        }
        entries.sort_by(|a, b| (a.clock, &a.call).cmp(&(b.clock, &b.call)));
        Self { ledger: ledger.to_owned(), key: key.to_owned(), count: entries.len(), cleared: clears.len(), entries }
    }
}

/// One durable change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerEntry {
    /// When it was made.
    pub clock: Nanoseconds,
    /// The Api that made it.
    pub api: String,
    /// The attempt of a call that made it.
    pub call: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(clock: u64) -> LedgerEntry {
        LedgerEntry { clock: Nanoseconds(clock), api: "Charge".into(), call: format!("pay.1.{clock}") }
    }

    #[test]
    fn a_ledger_of_several_processes_is_in_the_order_of_the_clock_and_a_clear_of_one_is_a_clear_of_all() {
        let first = History { appended: vec![entry(1), entry(7)], cleared: vec![] };
        let second = History { appended: vec![entry(2), entry(5)], cleared: vec![Nanoseconds(3)] };
        let ledger = Ledger::of("charges", "k", [first, second]);
        assert_eq!((ledger.count, ledger.cleared), (2, 1));
        assert_eq!(ledger.entries, [entry(5), entry(7)]);
    }
}
