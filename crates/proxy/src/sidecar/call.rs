//! One exchange, from its request to its end: identity, where it stands, what is recorded of it.

use std::sync::Arc;
use std::time::Instant;

use aftershock_core::event::Outcome;
use aftershock_core::id::{CallId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::plan::{Phase, Side};
use aftershock_core::span::{Association, Injection, Instant as Stamp, Pass};
use aftershock_core::wire::OpenState;
use smallvec::SmallVec;

use super::execution::Key;
use super::rules::{Judgement, Released, Subject, Witness};
use super::streams::OutcomeIn;
use crate::exchange::{Act, Edits, LinkId, Part, StreamId};

/// An exchange of any link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExchangeId {
    pub(crate) link: LinkId,
    pub(crate) stream: StreamId,
}

/// An exchange that is open.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// What is edited in the request whatever is known when it leaves.
    pub(crate) edits: Edits,
    /// None: it passes through.
    pub(crate) call: Option<Box<Call>>,
}

/// What stands in the hop header that leaves with this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HopSent {
    /// No header.
    Nothing,
    /// Caller: that the call is unassociated, so that the callee does not take it for an entry.
    Mark,
    /// Caller: with the request. Callee: with the response, in answer to a valid one.
    Evidence,
}

/// A call as this sidecar sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) side: Side,
    /// None: the call belongs to no round and is not recorded, so that nobody asks.
    pub(crate) api: Option<Api>,
    pub(crate) grpc: bool,
    pub(crate) connect: bool,
    /// None: unassociated.
    pub(crate) key: Option<Key>,
    pub(crate) id: CallId,
    pub(crate) parent: Option<CallId>,
    pub(crate) caller: Option<Service>,
    pub(crate) association: Association,
    pub(crate) trace_id: u128,
    /// The member under which this call's hop headers are tagged, in both directions; empty where they carry no evidence.
    pub(crate) member: String,
    pub(crate) hop: HopSent,
    pub(crate) record: bool,
    /// Its messages are events.
    pub(crate) counted: bool,
    /// Its messages are passes of targets.
    pub(crate) target: bool,
    pub(crate) request: Option<Stamp>,
    pub(crate) response: Option<Stamp>,
    /// The outcome as seen here, once the frame that says it has arrived.
    pub(crate) outcome: Option<Outcome>,
    /// The outcome frame has arrived and was not counted yet.
    pub(crate) response_pending: bool,
    /// What another sidecar can say of the outcome.
    pub(crate) witness: Witness,
    pub(crate) http_status: Option<u16>,
    pub(crate) grpc_status: Option<u32>,
    pub(crate) made: bool,
    pub(crate) evidence_went: bool,
    pub(crate) evidence_came: bool,
    /// The parts that a hop header is to be taken off.
    pub(crate) strip: SmallVec<[Part; 1]>,
    /// How statuses and bodies are read, where not by default.
    pub(crate) reading: Option<Arc<OutcomeOverride>>,
    /// Where the response's outcome is; of no meaning before its head.
    pub(crate) outcome_in: OutcomeIn,
    /// The response is to be kept back to its end.
    pub(crate) kept_back: bool,
    /// It may be ended by trailers of ours before its body has come to its end.
    pub(crate) may_be_cut: bool,
    /// It has left all the same.
    pub(crate) released: Option<Released>,
    /// A hop header has told the outcome: the callee's sidecar to ours, or ours to the caller's.
    pub(crate) told: bool,
    /// Evidence as of the last hop header that left with the message that this sidecar sends.
    pub(crate) stamped: u64,
    /// Messages of the response.
    pub(crate) messages: Option<u64>,
    pub(crate) passes: Vec<Pass>,
    pub(crate) injection: Option<Injection>,
    pub(crate) stage: Stage,
}

/// A rule for which a message is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Its place among the armed rules.
    pub(crate) rule: usize,
    /// Its place among the call's passes.
    pub(crate) pass: usize,
    /// When its `hold` is over; none if the rule has no `hold`.
    pub(crate) deadline: Option<Instant>,
    /// It is kept by `hold`: it takes one of the places for parked messages.
    pub(crate) held: bool,
    pub(crate) on: On,
}

/// What a parked message waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum On {
    /// That the guard holds, of a rule that this sidecar decides alone.
    Guard,
    /// That the guard holds, so that it can ask; the version of the evidence when it asked before.
    Chance {
        /// The evidence then.
        asked: u64,
    },
    /// That another rule, which may be granted this message, is answered. Then it asks.
    Turn,
    /// The arbiter's answer.
    Answer {
        /// Later it is of no use.
        until: Instant,
        /// The version of the evidence when it asked.
        asked: u64,
        /// What this sidecar found then.
        found: Judgement,
        /// What it said: a grant may come only if it said yes.
        ready: bool,
    },
}

/// A rule that fired on a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shot {
    pub(crate) rule: usize,
    pub(crate) pass: usize,
    pub(crate) phase: Phase,
    /// The arbiter granted it: what is not used is handed back.
    pub(crate) granted: bool,
}

/// Where a call stands with regard to faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It runs.
    Running,
    /// A message is parked until these rules are decided, or one of them fires.
    Waiting { phase: Phase, waits: SmallVec<[Wait; 1]> },
    /// A message is parked for a time.
    Delayed { shot: Shot, until: Instant },
    /// The editor was told to act and may still refuse.
    Acting { shot: Shot, act: Act },
    /// A message was dropped.
    Dropped { shot: Shot },
    /// It was reset or answered here.
    Answered { shot: Shot },
}

impl Stage {
    pub(crate) fn is_parked(&self) -> bool {
        matches!(self, Stage::Waiting { .. } | Stage::Delayed { .. })
    }

    /// Whether it takes one of the places for parked messages.
    pub(crate) fn takes_place(&self) -> bool {
        match self {
            Stage::Waiting { waits, .. } => waits.iter().any(|wait| wait.held),
            Stage::Delayed { .. } => true,
            _ => false,
        }
    }

    /// A message that asks is running, not parked: it is decided within the arbiter's timeout, and a round is not over
    /// while a decision is under way.
    pub(crate) fn open_state(&self) -> OpenState {
        let decided_soon = |wait: &Wait| matches!(wait.on, On::Answer { .. } | On::Turn);
        match self {
            Stage::Running | Stage::Answered { .. } => OpenState::Running,
            Stage::Waiting { waits, .. } if waits.iter().any(decided_soon) => OpenState::Running,
            Stage::Waiting { .. } | Stage::Delayed { .. } => OpenState::Parked,
            Stage::Acting { act: Act::Drop, .. } | Stage::Dropped { .. } => OpenState::Dropped,
            Stage::Acting { .. } => OpenState::Running,
        }
    }
}

impl Call {
    pub(crate) fn token(&self) -> Token {
        self.key.map_or(Token(0), |key| key.token)
    }

    pub(crate) fn subject(&self) -> Option<Subject<'_>> {
        Some(Subject { side: self.side, api: self.api.as_ref()?, caller: self.caller.as_ref() })
    }

    /// Whether it is an entry request of no round.
    pub(crate) fn is_ordinary_entry(&self) -> bool {
        self.side == Side::Callee
            && self.association == Association::Exact
            && self.hop == HopSent::Nothing
            && self.token().is_zero()
    }
}
