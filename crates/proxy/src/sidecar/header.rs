//! What a message brings of identity and evidence, read from its field lines, and the edits that put ours in.

use std::hash::{DefaultHasher, Hash, Hasher};

use aftershock_core::hop;
use aftershock_core::plan::Side;
use aftershock_core::w3c::{Baggage, BaggageFull, Member, MemberError, TraceParent, TraceState, correlation};
use smallvec::SmallVec;

use crate::config::{Carrier, Config};
use crate::exchange::{Edit, Edits, Fields};

pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";
/// Jaeger's field for the baggage key `aft`.
const UBERCTX: &str = "uberctx-aft";
const UBER_TRACE_ID: &str = "uber-trace-id";

/// A correlation id, for comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Correlation {
    /// The position of its header field in the configuration; of the first one, where two fields carry the same id.
    pub(crate) header: u8,
    /// SipHash of its one form. That two ids share it is as likely as that two ids of ours are equal; who wants it to
    /// happen could send the same id in the first place.
    digest: u64,
}

/// A correlation id and the family of its field in one number; two that share it share what [`Correlation`] says of two.
pub(crate) type Digest = u64;

impl Correlation {
    /// The id that `value` of the configuration's `index`th header field carries.
    pub(crate) fn read(correlate: &[&'static str], index: usize, value: &[u8]) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        correlation(correlate[index], value)?.hash(&mut hasher);
        Some(Correlation { header: Correlation::family(correlate, index), digest: hasher.finish() })
    }

    /// What tells the ids of the `index`th field from those of others: an application that takes B3 in one form may send
    /// it in the other.
    pub(crate) fn family(correlate: &[&'static str], index: usize) -> u8 {
        let b3 = |name: &str| matches!(name, "b3" | "x-b3-traceid");
        let first = match b3(correlate[index]) {
            true => correlate.iter().position(|name| b3(name)).unwrap_or(index),
            false => index,
        };
        u8::try_from(first).expect("the configuration limits the fields")
    }

    /// Under which it is remembered.
    pub(crate) fn digest(self) -> Digest {
        self.digest.rotate_left(u32::from(self.header))
    }

    /// Add `id` unless it is there.
    pub(crate) fn add(id: Option<Self>, to: &mut SmallVec<[Self; 1]>) {
        to.extend(id.filter(|id| !to.contains(id)));
    }
}

/// A request's identity as it arrived.
#[derive(Debug)]
pub(crate) struct Arriving<'a> {
    pub(crate) hop: HopLine<'a>,
    pub(crate) state: TraceState<'a>,
    /// The member, where this side of the sidecar expects it: between sidecars in `tracestate`, from the application in
    /// its carrier.
    pub(crate) member: Option<Result<Member, MemberError>>,
    carried: Carried,
    /// None also where there are two: the standard allows one.
    pub(crate) traceparent: Option<TraceParent>,
    pub(crate) correlations: SmallVec<[Correlation; 1]>,
}

/// What stands in a carrier other than `tracestate`.
#[derive(Debug)]
enum Carried {
    Tracestate,
    Baggage(Baggage),
    Uberctx { present: bool, trace: u32 },
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
    pub(crate) fn read(fields: &Fields<'a>, side: Side, config: &Config) -> Self {
        let state = TraceState::parse(fields.all(TRACESTATE));
        let mut parents = fields.all(TRACEPARENT);
        let traceparent = match (parents.next(), parents.next()) {
            (Some(value), None) => TraceParent::parse(value).ok(),
            _ => None,
        };
        let (carried, member) = match config.carrier {
            Carrier::Tracestate => (Carried::Tracestate, None),
            Carrier::Baggage => {
                let baggage = Baggage::parse(fields.all(BAGGAGE));
                let member = baggage.get(Member::KEY).map(Member::parse);
                (Carried::Baggage(baggage), member)
            }
            Carrier::Uberctx => {
                let value = fields.all(UBERCTX).next();
                let member = value.map(Member::parse_encoded);
                let trace = fields.all(UBER_TRACE_ID).next().map_or(0, uber_check);
                (Carried::Uberctx { present: value.is_some(), trace }, member)
            }
        };
        let member = match (side, config.carrier) {
            (Side::Callee, _) | (_, Carrier::Tracestate) => state.member(),
            (Side::Caller, Carrier::Baggage | Carrier::Uberctx) => member,
        };
        let mut correlations = SmallVec::new();
        for (index, name) in config.correlate.iter().enumerate() {
            let value = fields.all(name).next();
            let id = value.and_then(|value| Correlation::read(&config.correlate, index, value));
            Correlation::add(id, &mut correlations);
        }
        Arriving { hop: HopLine::read(fields), state, member, carried, traceparent, correlations }
    }

    /// The member as it arrived, beside which a hop header is tagged: a value has one text. Empty without one.
    pub(crate) fn member_text(&self) -> &str {
        let value = self.state.get(Member::KEY).filter(|_| matches!(self.member, Some(Ok(_))));
        value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
    }

    /// The member of a client of a round: always in `tracestate`.
    pub(crate) fn client(&self) -> Option<Member> {
        self.state.member().and_then(Result::ok).filter(|member| member.call.is_zero())
    }

    /// What the member's check is compared with.
    pub(crate) fn check(&self) -> u32 {
        self.traceparent.map_or(0, |parent| parent.check())
    }

    /// Whether the trace id beside the application's member agrees with it. `tracestate` means nothing without its
    /// `traceparent`; the other carriers go alone where the application hands on nothing of W3C.
    pub(crate) fn agrees(&self, member: &Member) -> bool {
        let beside = match self.carried {
            Carried::Tracestate => return member.check == self.check(),
            Carried::Baggage(_) => self.check(),
            Carried::Uberctx { trace, .. } => trace,
        };
        member.check == 0 || beside == 0 || member.check == beside
    }

    /// The trace id beside the member; 0 without one.
    pub(crate) fn trace_id(&self) -> u128 {
        self.traceparent.map_or(0, |parent| parent.trace_id)
    }

    /// Whether the application reads its member where sidecars do.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.carried, Carried::Tracestate)
    }

    /// Give the application `member`: in its carrier and nowhere else.
    ///
    /// # Errors
    /// When the carrier has no room.
    pub(crate) fn hand_over(&self, member: &Member, edits: &mut Edits) -> Result<(), BaggageFull> {
        match &self.carried {
            Carried::Tracestate => self.set_state(member, edits),
            Carried::Baggage(baggage) => {
                self.clear_state(edits);
                let mut baggage = baggage.clone();
                let (had, room) =
                    (baggage.get(Member::KEY).is_some(), baggage.prepend(Member::KEY, &member.to_string()));
                if had || room.is_ok() {
                    edits.push(value_edit(BAGGAGE, baggage.value()));
                }
                return room;
            }
            Carried::Uberctx { trace, .. } => {
                self.clear_state(edits);
                let minted = edits.iter().rev().find_map(|edit| match edit {
                    Edit::Set(UBER_TRACE_ID, value) => Some(uber_check(value)),
                    _ => None,
                });
                let own = Member { check: minted.unwrap_or(*trace), ..*member };
                edits.push(Edit::Set(UBERCTX, own.to_string().into_bytes()));
            }
        }
        Ok(())
    }

    /// Send `member` to another sidecar: at the left of `tracestate`, and not in the application's carrier.
    pub(crate) fn send(&self, member: &Member, edits: &mut Edits) {
        self.set_state(member, edits);
        self.clear_carrier(edits);
    }

    /// Take every member of ours out.
    pub(crate) fn remove_member(&self, edits: &mut Edits) {
        self.clear_state(edits);
        self.clear_carrier(edits);
    }

    fn set_state(&self, member: &Member, edits: &mut Edits) {
        edits.push(value_edit(TRACESTATE, Some(self.state.with_member(member))));
    }

    fn clear_state(&self, edits: &mut Edits) {
        let mut state = self.state.clone();
        if state.remove(Member::KEY) {
            edits.push(value_edit(TRACESTATE, state.value()));
        }
    }

    fn clear_carrier(&self, edits: &mut Edits) {
        match &self.carried {
            Carried::Baggage(baggage) => {
                let mut baggage = baggage.clone();
                if baggage.remove(Member::KEY) {
                    edits.push(value_edit(BAGGAGE, baggage.value()));
                }
            }
            Carried::Uberctx { present: true, .. } => edits.push(Edit::Remove(UBERCTX)),
            Carried::Tracestate | Carried::Uberctx { present: false, .. } => {}
        }
    }

    /// Take the hop header off, if there is one.
    pub(crate) fn remove_hop(&self, edits: &mut Edits) {
        if self.hop != HopLine::Absent {
            edits.push(Edit::Remove(hop::HEADER));
        }
    }
}

/// The low 32 bits of the trace id in an `uber-trace-id`; 0 if there is none to read.
fn uber_check(value: &[u8]) -> u32 {
    let id = correlation(UBER_TRACE_ID, value).and_then(|id| u128::from_str_radix(&id, 16).ok());
    id.map_or(0, |id| id as u32)
}

fn value_edit(name: &'static str, value: Option<Vec<u8>>) -> Edit {
    match value {
        Some(value) => Edit::Set(name, value),
        None => Edit::Remove(name),
    }
}
