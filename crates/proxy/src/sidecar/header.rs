//! What a message brings of identity and evidence, read from its field lines, and the edits that put ours in.

use std::hash::{DefaultHasher, Hash, Hasher};

use aftershock_core::hop;
use aftershock_core::w3c::{Member, MemberError, TraceParent, TraceState, correlation};
use smallvec::SmallVec;

use crate::exchange::{Edit, Edits, Fields};

pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";

/// A correlation id, for comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Correlation {
    /// The position of its header field in the configuration.
    pub(crate) header: u8,
    /// SipHash of its one form. That two ids share it is as likely as that two ids of ours are equal; who wants it to
    /// happen could send the same id in the first place.
    digest: u64,
}

impl Correlation {
    /// The id that `value` of the header `name`, the configuration's `index`th, carries.
    pub(crate) fn read(index: usize, name: &str, value: &[u8]) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        correlation(name, value)?.hash(&mut hasher);
        Some(Correlation { header: u8::try_from(index).ok()?, digest: hasher.finish() })
    }
}

/// A request's identity as it arrived.
#[derive(Debug)]
pub(crate) struct Arriving<'a> {
    pub(crate) hop: HopLine<'a>,
    pub(crate) state: TraceState,
    pub(crate) member: Option<Result<Member, MemberError>>,
    /// None also where there are two: the standard allows one.
    pub(crate) traceparent: Option<TraceParent>,
    pub(crate) correlations: SmallVec<[Correlation; 1]>,
}

/// The hop header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HopLine<'a> {
    /// There is none.
    Absent,
    /// Its value.
    One(&'a [u8]),
    /// Several lines: not ours, whatever they say.
    Several,
}

impl<'a> HopLine<'a> {
    pub(crate) fn read(fields: &Fields<'a>) -> Self {
        let mut lines = fields.all(hop::HEADER);
        match (lines.next(), lines.next()) {
            (None, _) => HopLine::Absent,
            (Some(value), None) => HopLine::One(value),
            (Some(_), Some(_)) => HopLine::Several,
        }
    }
}

impl<'a> Arriving<'a> {
    pub(crate) fn read(fields: &Fields<'a>, correlate: &[&'static str]) -> Self {
        let state = TraceState::parse(fields.all(TRACESTATE));
        let member = state.member();
        let mut parents = fields.all(TRACEPARENT);
        let traceparent = match (parents.next(), parents.next()) {
            (Some(value), None) => TraceParent::parse(value).ok(),
            _ => None,
        };
        let mut correlations = SmallVec::new();
        for (index, name) in correlate.iter().enumerate() {
            correlations.extend(fields.all(name).next().and_then(|value| Correlation::read(index, name, value)));
        }
        Arriving { hop: HopLine::read(fields), state, member, traceparent, correlations }
    }

    /// The member as it arrived, beside which a hop header is tagged: a value has one text. Empty without one.
    pub(crate) fn member_text(&self) -> &str {
        let value = self.state.get(Member::KEY).filter(|_| matches!(self.member, Some(Ok(_))));
        value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
    }

    /// What the member's check is compared with.
    pub(crate) fn check(&self) -> u32 {
        self.traceparent.map_or(0, |parent| parent.check())
    }

    /// The trace id beside the member; 0 without one.
    pub(crate) fn trace_id(&self) -> u128 {
        self.traceparent.map_or(0, |parent| parent.trace_id)
    }

    /// Put `member` at the left of `tracestate`.
    pub(crate) fn set_member(&self, member: &Member, edits: &mut Edits) {
        let mut state = self.state.clone();
        state.set_member(member);
        edits.push(state_edit(&state));
    }

    /// Take every member of ours out of `tracestate`.
    pub(crate) fn remove_member(&self, edits: &mut Edits) {
        let mut state = self.state.clone();
        if state.remove(Member::KEY) {
            edits.push(state_edit(&state));
        }
    }

    /// Take the hop header off, if there is one.
    pub(crate) fn remove_hop(&self, edits: &mut Edits) {
        if self.hop != HopLine::Absent {
            edits.push(Edit::Remove(hop::HEADER));
        }
    }
}

fn state_edit(state: &TraceState) -> Edit {
    match state.value() {
        // A list that can be read is printable ASCII; what remains of a malformed one is nobody's to read.
        Some(value) => {
            let text = String::from_utf8(value);
            Edit::Set(TRACESTATE, text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
        }
        None => Edit::Remove(TRACESTATE),
    }
}
