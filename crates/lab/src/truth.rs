//! What really happened in a round, read from the services' own logs and from nothing of the injector's.
//!
//! Both ends of a call log the identity that the caller passed in the payload, so the two halves are put together here.
//! A fault is recognized by what the halves disagree about: an answer sent and never received, a request sent that never
//! arrived, a status that changed on the way.

mod question;
mod window;

use std::collections::BTreeMap;
use std::fmt;

pub use self::question::Question;
pub use self::window::{NoWindow, Window};

use crate::events::{Event, Failure, Kind, Nanoseconds, Outcome};

/// The logs of all services about one business key.
#[derive(Clone, Debug, Default)]
pub struct Log {
    events: Vec<Event>,
    calls: Vec<Call>,
}

/// One attempt of a call, as both ends saw it. The client's own request is one without a caller's half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its identity.
    pub id: String,
    /// The call whose handler made it; `None` for the client's request.
    pub parent: Option<String>,
    /// The Api's short name.
    pub api: String,
    /// The calling service, or `client`.
    pub caller: String,
    /// Place among the calls of this Api in the caller's handler run, from 1.
    pub index: usize,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// When the caller sent it.
    pub request_sent: Option<Nanoseconds>,
    /// When the callee had read it.
    pub request_received: Option<Nanoseconds>,
    /// When the callee made which ledger's changes.
    pub effects: Vec<(Nanoseconds, String)>,
    /// What the callee answered, and when.
    pub response_sent: Option<Answer>,
    /// What the caller was answered, and when.
    pub response_received: Option<Answer>,
    /// When and why the caller gave up.
    pub failed: Option<(Nanoseconds, Failure)>,
    /// When the callee noticed that its caller had gone.
    pub handling_cancelled: Option<Nanoseconds>,
}

/// An answer at one end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When.
    pub at: Nanoseconds,
    /// Success or error.
    pub outcome: Outcome,
    /// The status.
    pub status: String,
}

/// What became of a call on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Request and answer arrived as they were sent.
    Whole,
    /// The callee never saw the request; what the caller got was made on the way.
    RequestLost,
    /// The callee answered, and the caller never read an answer.
    ResponseLost,
    /// The callee answered one status, the caller read another.
    ResponseReplaced,
    /// The caller gave up before the callee had answered.
    LeftByCaller,
    /// Still running when the logs were read.
    Open,
}

impl Call {
    fn new(event: &Event) -> Self {
        Self {
            id: event.call.clone(),
            parent: event.parent.clone(),
            api: event.api.clone(),
            caller: event.caller.clone(),
            index: event.index,
            attempt: event.attempt,
            request_sent: None,
            request_received: None,
            effects: Vec::new(),
            response_sent: None,
            response_received: None,
            failed: None,
            handling_cancelled: None,
        }
    }

    fn add(&mut self, event: &Event) {
        let answer = || Answer {
            at: event.clock,
            outcome: event.outcome.unwrap_or(Outcome::Error),
            status: event.status.clone().unwrap_or_default(),
        };
        match event.event {
            Kind::RequestSent => self.request_sent = Some(event.clock),
            Kind::RequestReceived => self.request_received = Some(event.clock),
            Kind::EffectMade => self.effects.push((event.clock, event.ledger.clone().unwrap_or_default())),
            Kind::ResponseSent => self.response_sent = Some(answer()),
            Kind::ResponseReceived => self.response_received = Some(answer()),
            Kind::CallFailed => self.failed = Some((event.clock, event.failure.unwrap_or(Failure::Transport))),
            Kind::HandlingCancelled => self.handling_cancelled = Some(event.clock),
        }
    }

    /// How long its messages that arrived were under way, in nanoseconds.
    fn transits(&self) -> impl Iterator<Item = u64> {
        let request = self.request_sent.zip(self.request_received);
        let response = self.response_sent.as_ref().zip(self.response_received.as_ref()).map(|(s, r)| (s.at, r.at));
        [request, response].into_iter().flatten().map(|(sent, arrived)| arrived.0.saturating_sub(sent.0))
    }

    /// What became of it. Of the client's own request only the callee's half is known: it is whole once answered.
    pub fn fate(&self) -> Fate {
        let callers_half = self.request_sent.is_some();
        match (&self.response_sent, &self.response_received, &self.failed) {
            (Some(sent), Some(received), _) if sent.status == received.status => Fate::Whole,
            // Nobody waited for it any more when it was sent.
            (Some(sent), None, Some((gave_up, _))) if *gave_up < sent.at => Fate::LeftByCaller,
            (Some(_), Some(_), _) => Fate::ResponseReplaced,
            (Some(_), None, Some(_)) => Fate::ResponseLost,
            (Some(_), None, None) if callers_half => Fate::Open,
            (Some(_), None, None) => Fate::Whole,
            (None, Some(_), _) | (None, None, Some(_)) if self.request_received.is_none() => Fate::RequestLost,
            // An answer came although the callee had sent none: made on the way, and the callee left alone.
            (None, Some(_), _) => Fate::ResponseReplaced,
            (None, None, Some(_)) => Fate::LeftByCaller,
            // Of a client that gave up only the callee can tell.
            (None, None, None) if !callers_half && self.handling_cancelled.is_some() => Fate::LeftByCaller,
            (None, None, None) => Fate::Open,
        }
    }
}

/// The logs contradict what was claimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{claim}: {found}")]
pub struct Contradiction {
    pub(crate) claim: String,
    pub(crate) found: String,
}

impl Log {
    /// Puts the events of several logs in the order of their clock and the two halves of each call together.
    pub fn new(events: impl IntoIterator<Item = Event>) -> Self {
        let mut events: Vec<Event> = events.into_iter().collect();
        events.sort_by(|a, b| (a.clock, &a.service, a.sequence).cmp(&(b.clock, &b.service, b.sequence)));
        let mut calls: Vec<Call> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for event in &events {
            let place = *places.entry(event.call.clone()).or_insert_with(|| {
                calls.push(Call::new(event));
                calls.len() - 1
            });
            calls[place].add(event);
        }
        Self { events, calls }
    }

    /// All events, by time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// All calls, by the time of their first event, the client's requests among them.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The calls of one Api, by the time of their first event.
    pub fn calls_of<'a>(&'a self, api: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(move |call| call.api == api)
    }

    /// The client's request that a call belongs to.
    pub fn execution<'a>(&'a self, call: &'a Call) -> &'a Call {
        let mut at = call;
        while let Some(parent) = at.parent.as_ref().and_then(|id| self.calls.iter().find(|call| call.id == *id)) {
            at = parent;
        }
        at
    }

    /// Whether no call is open any more.
    pub fn is_complete(&self) -> bool {
        self.calls.iter().all(|call| call.fate() != Fate::Open)
    }

    /// The calls that something on the way interfered with. A message that was under way when its caller was cancelled is
    /// none, unless it was under way for longer than any that arrived.
    pub fn faulted(&self) -> impl Iterator<Item = &Call> {
        let touched = |fate| matches!(fate, Fate::RequestLost | Fate::ResponseLost | Fate::ResponseReplaced);
        let slowest = self.calls.iter().flat_map(Call::transits).max().unwrap_or(0);
        let cut_off = move |call: &Call| match (&call.response_sent, &call.failed) {
            (Some(sent), Some((at, Failure::Cancelled))) => at.0.saturating_sub(sent.at.0) <= slowest,
            (None, Some((at, Failure::Cancelled))) => {
                call.request_sent.is_some_and(|sent| at.0.saturating_sub(sent.0) <= slowest)
            }
            _ => false,
        };
        self.calls.iter().filter(move |call| touched(call.fate()) && !cut_off(call))
    }

    /// How many answers of this call's Api its callee had sent in the same execution before that of this call.
    pub fn earlier_answers(&self, call: &Call) -> usize {
        let Some(own) = &call.response_sent else { return 0 };
        let execution = &self.execution(call).id;
        self.calls_of(&call.api)
            .filter(|other| other.id != call.id && self.execution(other).id == *execution)
            .filter(|other| other.response_sent.as_ref().is_some_and(|sent| sent.at < own.at))
            .count()
    }

    /// Claim: nothing on the way interfered with any call.
    pub fn untouched(&self) -> Result<(), Contradiction> {
        match self.faulted().next() {
            None => Ok(()),
            Some(call) => Err(Contradiction {
                claim: "no call was interfered with".to_owned(),
                found: format!("{call}: {:?}", call.fate()),
            }),
        }
    }

    /// Claim: exactly one call of all was interfered with, it is of `api`, and its fate is `fate`.
    pub fn only_fault(&self, api: &str, fate: &Fate) -> Result<&Call, Contradiction> {
        let faulted: Vec<&Call> = self.faulted().collect();
        match faulted[..] {
            [call] if call.api == api && call.fate() == *fate => Ok(call),
            _ => Err(Contradiction {
                claim: format!("exactly one call was interfered with, {api}: {fate:?}"),
                found: if faulted.is_empty() {
                    "none was".to_owned()
                } else {
                    faulted.iter().map(|call| format!("{call}: {:?}", call.fate())).collect::<Vec<_>>().join("; ")
                },
            }),
        }
    }

    /// Claim: the one lost answer is that of `api` which its callee sent as the `k`-th of its execution.
    pub fn lost_answer(&self, api: &str, k: usize) -> Result<&Call, Contradiction> {
        let call = self.only_fault(api, &Fate::ResponseLost)?;
        match self.earlier_answers(call) + 1 {
            place if place == k => Ok(call),
            place => Err(Contradiction {
                claim: format!("the lost answer of {api} was number {k} that its callee sent"),
                found: format!("{call} was number {place}"),
            }),
        }
    }

    /// Claim: the one lost answer of `api` was a success whose effect on `ledger` had been made before it was sent.
    pub fn lost_after_effect(&self, api: &str, ledger: &str) -> Result<&Call, Contradiction> {
        let call = self.only_fault(api, &Fate::ResponseLost)?;
        let sent = call.response_sent.as_ref().filter(|sent| sent.outcome == Outcome::Ok);
        let effects = call.effects.iter().filter(|(at, of)| of == ledger && sent.is_some_and(|sent| *at <= sent.at));
        match effects.count() {
            1 => Ok(call),
            count => Err(Contradiction {
                claim: format!("the lost answer of {api} reported one change of {ledger}"),
                found: format!("{call} answered {:?} after {count} changes", call.response_sent),
            }),
        }
    }

    /// Claim: at `caller`, the first success of `first` was received before any answer of `second`, in each execution
    /// that called both.
    pub fn received_in_order(&self, caller: &str, first: &str, second: &str) -> Result<(), Contradiction> {
        let claim = || format!("at {caller}, a success of {first} was received before any answer of {second}");
        let mut both = 0;
        for root in self.calls.iter().filter(|call| call.parent.is_none()) {
            let of = |api: &str| -> Vec<&Call> {
                let mine =
                    |call: &&Call| call.api == api && call.caller == caller && self.execution(call).id == root.id;
                self.calls.iter().filter(mine).collect()
            };
            let (firsts, seconds) = (of(first), of(second));
            if firsts.is_empty() || seconds.is_empty() {
                continue;
            }
            both += 1;
            let received = |call: &&Call| call.response_received.clone();
            let success = firsts.iter().filter_map(received).filter(|a| a.outcome == Outcome::Ok).map(|a| a.at).min();
            let earliest = seconds.iter().filter_map(received).map(|a| a.at).min();
            let in_order = match (success, earliest) {
                (Some(success), Some(earliest)) => success < earliest,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if !in_order {
                return Err(Contradiction {
                    claim: claim(),
                    found: format!("{first} succeeded at {success:?}, {second} was answered at {earliest:?}"),
                });
            }
        }
        match both {
            0 => Err(Contradiction { claim: claim(), found: "no execution called both".to_owned() }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} #{} attempt {} ({})", self.caller, self.api, self.index, self.attempt, self.id)
    }
}
