//! Targets, guards, temporal faults and plans (design §2, §3.4, §3.5).

mod fault;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Interval;
use crate::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use crate::evidence::Evidence;
use crate::name::{Api, Service};

pub use fault::{ErrorAnswer, Fault, ParseResetCodeError, Reset, ResetCode, ResetScope};
pub use stream::UnfitPoint;

/// The side of a call on which a fault acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The request.
    Request,
    /// The response.
    Response,
}

impl Phase {
    /// The event of this phase at the caller's sidecar, or at the callee's.
    pub fn event(self, side: Side) -> EventKind {
        match (self, side) {
            (Phase::Request, Side::Caller) => EventKind::RequestSent,
            (Phase::Request, Side::Callee) => EventKind::RequestReceived,
            (Phase::Response, Side::Caller) => EventKind::ResponseReceived,
            (Phase::Response, Side::Callee) => EventKind::ResponseSent,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Request => "request",
            Phase::Response => "response",
        })
    }
}

/// Whose sidecar sees something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The caller's: CLIENT spans.
    Caller,
    /// The callee's: SERVER spans.
    Callee,
}

/// Which pass of a target is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Occurrence {
    /// The first pass at which the guard holds. Written `first`.
    First,
    /// The k-th pass in the execution, counted from 1.
    Number(u32),
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Occurrence::First => f.write_str("first"),
            Occurrence::Number(k) => k.fmt(f),
        }
    }
}

impl Serialize for Occurrence {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Occurrence::First => s.serialize_str("first"),
            Occurrence::Number(k) => s.serialize_u32(*k),
        }
    }
}

impl<'de> Deserialize<'de> for Occurrence {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Occurrence;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`first` or a number from 1")
            }
            fn visit_u64<E: serde::de::Error>(self, k: u64) -> Result<Occurrence, E> {
                match u32::try_from(k) {
                    Ok(k) if k > 0 => Ok(Occurrence::Number(k)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(k), &self)),
                }
            }
            fn visit_i64<E: serde::de::Error>(self, k: i64) -> Result<Occurrence, E> {
                match u64::try_from(k) {
                    Ok(k) => self.visit_u64(k),
                    Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(k), &self)),
                }
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Occurrence, E> {
                if text == "first" {
                    return Ok(Occurrence::First);
                }
                Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        d.deserialize_any(Visitor)
    }
}

impl JsonSchema for Occurrence {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Occurrence".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "which pass in an execution: a number from 1, or `first` (the first at which the guard holds)",
            "oneOf": [{"type": "integer", "minimum": 1}, {"const": "first"}]
        })
    }
}

/// Where in a response stream a fault acts (design §3.5). In files: `head`, `message: 2`, or `bytes: 100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamPoint {
    /// At the response head.
    Head,
    /// At the first byte of the n-th gRPC message, from 1: those before it have gone on.
    Message(#[schemars(range(min = 1))] u32),
    /// When n body bytes, without padding, have gone on and another one is there.
    Bytes(u64),
}

/// ⟨caller, Api or group, k, phase, outcome⟩: where a fault is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The calling service. Left out where the traces show only one, and at an entry Api, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Service>,
    /// The Api or group called.
    pub api: ApiRef,
    /// Which pass.
    pub k: Occurrence,
    /// Request or response.
    pub phase: Phase,
    /// Only a message with this outcome is faulted; the outcome does not enter the number.
    #[serde(default, skip_serializing_if = "OutcomeFilter::is_any")]
    pub outcome: OutcomeFilter,
    /// Where in a stream; the frame with the outcome if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<StreamPoint>,
    /// The post-effect condition: the message at hand says `ok`, and the callee's sidecar saw this very call end `ok`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub post_effect: bool,
}

impl Target {
    /// That pass of whoever calls `api`, whatever its outcome, at the frame with the outcome.
    pub fn new(api: ApiRef, k: Occurrence, phase: Phase) -> Self {
        Target { caller: None, api, k, phase, outcome: OutcomeFilter::Any, at: None, post_effect: false }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, k = {}", self.phase, self.api, self.k)?;
        if let Some(caller) = &self.caller {
            write!(f, ", from {caller}")?;
        }
        if self.post_effect {
            f.write_str(", post-effect")?;
        }
        Ok(())
    }
}

/// One conjunct of an After guard: the event has happened at least `count` times.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Atom {
    /// Which instant of the call.
    pub event: EventKind,
    /// Of which Api or group.
    pub api: ApiRef,
    /// Only at this caller; any caller if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Service>,
    /// Only with this outcome.
    #[serde(default, skip_serializing_if = "OutcomeFilter::is_any")]
    pub outcome: OutcomeFilter,
    /// At least this often.
    #[schemars(range(min = 1))]
    pub count: u64,
}

impl Atom {
    /// The atom `event ≥ count`.
    pub fn new(event: Event, count: u64) -> Self {
        Atom { event: event.event, api: event.api, caller: event.caller, outcome: event.outcome, count }
    }

    /// The event counted.
    pub fn event(&self) -> Event {
        Event { event: self.event, api: self.api.clone(), caller: self.caller.clone(), outcome: self.outcome }
    }

    /// Whether it holds on `evidence`.
    pub fn holds(&self, evidence: &Evidence) -> bool {
        evidence.count(self.event().id()) >= self.count
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ≥ {}", self.event(), self.count)
    }
}

/// After(∧ event ≥ count). The empty conjunction always holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Guard {
    /// The conjuncts.
    #[serde(default)]
    pub after: Vec<Atom>,
}

impl Guard {
    /// Whether every atom holds on `evidence`.
    pub fn holds(&self, evidence: &Evidence) -> bool {
        self.after.iter().all(|atom| atom.holds(evidence))
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.after.is_empty() {
            return f.write_str("After(true)");
        }
        f.write_str("After(")?;
        for (i, atom) in self.after.iter().enumerate() {
            if i > 0 {
                f.write_str(" ∧ ")?;
            }
            atom.fmt(f)?;
        }
        f.write_str(")")
    }
}

/// The `hold` trigger: park the message until the guard holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hold {
    /// A message parked this long is released unfaulted.
    pub deadline: Interval,
}

/// Which situation a target and guard make (design §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The effect happened, its answer is lost.
    PostEffect,
    /// A competing response was seen first.
    OrderSensitive,
    /// One of several alike occurrences.
    KOfN,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::PostEffect => "post-effect",
            Pattern::OrderSensitive => "order-sensitive",
            Pattern::KOfN => "k-of-n",
        })
    }
}

/// A temporal fault-injection configuration: target, guard, fault.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tfic {
    /// Where.
    pub target: Target,
    /// What.
    pub fault: Fault,
    /// Which situation it makes, for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// When: `guard: {after: […]}`. A tagged form, so that other operators can come.
    #[serde(default)]
    pub guard: Guard,
    /// Park the message until the guard holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// How often it fires in a round, over all executions.
    #[serde(default, skip_serializing_if = "MaxInjections::is_default")]
    pub max_injections: MaxInjections,
}

impl Tfic {
    /// `fault` at `target`, once in a round, whatever happened before.
    pub fn new(target: Target, fault: Fault) -> Self {
        let (guard, max_injections) = (Guard::default(), MaxInjections::default());
        Tfic { target, fault, pattern: None, guard, hold: None, max_injections }
    }
}

/// A bound on injections per round. Written as a number or `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MaxInjections {
    /// At most this many.
    Limited(u32),
    /// Once in every execution.
    Unlimited(Unlimited),
}

/// The word `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unlimited {
    /// No bound.
    Unlimited,
}

impl MaxInjections {
    /// The bound as a number.
    pub fn limit(self) -> u32 {
        match self {
            MaxInjections::Limited(n) => n,
            MaxInjections::Unlimited(_) => u32::MAX,
        }
    }

    fn is_default(&self) -> bool {
        *self == MaxInjections::default()
    }
}

impl Default for MaxInjections {
    fn default() -> Self {
        MaxInjections::Limited(1)
    }
}

/// The connections of one service to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Whose connections they are; it has a sidecar.
    pub caller: Service,
    /// Where they lead.
    pub callee: Service,
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.caller, self.callee)
    }
}

/// One or more temporal faults armed together for one round, the groups they name, and the channels that are cut meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The faults; none for a clean recording.
    #[serde(default)]
    pub faults: Vec<Tfic>,
    /// Named sets of Apis whose counts are pooled.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, BTreeSet<Api>>,
    /// Channels that are cut while the plan is armed: open connections are broken, new ones refused, whoever's calls they
    /// carry.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cuts: BTreeSet<Channel>,
}

/// A plan speaks of a group it does not define.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown group {0:?}")]
pub struct UnknownGroup(pub String);

impl Plan {
    /// How many faults and cuts it has; none is a clean recording.
    pub fn len(&self) -> usize {
        self.faults.len() + self.cuts.len()
    }

    /// Whether it is that of a clean recording.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether executions go the ways of the clean traces until its fault: another fault or a cut leads them elsewhere.
    pub fn has_one_fault_alone(&self) -> bool {
        self.faults.len() == 1 && self.cuts.is_empty()
    }

    /// The Apis an [`ApiRef`] stands for.
    ///
    /// # Errors
    /// When it names a group that the plan does not define.
    pub fn resolve(&self, api: &ApiRef) -> Result<BTreeSet<Api>, UnknownGroup> {
        match api {
            ApiRef::Api(api) => Ok(BTreeSet::from([api.clone()])),
            ApiRef::Group(name) => self.groups.get(name).cloned().ok_or_else(|| UnknownGroup(name.clone())),
        }
    }

    /// Every event that the guards mention, with groups resolved, each once, in order.
    ///
    /// # Errors
    /// When an atom names a group that the plan does not define.
    pub fn counted_events(&self) -> Result<Vec<CountedEvent>, UnknownGroup> {
        let events: BTreeSet<Event> =
            self.faults.iter().flat_map(|fault| fault.guard.after.iter().map(Atom::event)).collect();
        events.into_iter().map(|event| Ok(CountedEvent { apis: self.resolve(&event.api)?, event })).collect()
    }
}

/// A fault resolved against the registered services: what one sidecar is armed with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The position of the fault in its plan.
    pub index: usize,
    /// The service whose sidecar acts: the caller, or the callee of an entry Api.
    pub service: Service,
    /// As whose sidecar it acts.
    pub side: Side,
    /// The Apis of the target.
    pub apis: BTreeSet<Api>,
    /// The fault itself.
    pub tfic: Tfic,
    /// Passes are numbered and shots granted by the arbiter, since the service has several instances; fixed at arming
    /// (design §3.4).
    #[serde(default)]
    pub arbitrated: bool,
}

impl Rule {
    /// Whether `event` is the target's own event at the side that acts, with any outcome: for an arbitrated rule an atom on
    /// it is judged by the arbiter's count of earlier passes, not by evidence (design §3.4).
    pub fn is_own_event(&self, event: &CountedEvent) -> bool {
        event.event.event == self.tfic.target.phase.event(self.side)
            && event.apis == self.apis
            && match self.side {
                Side::Caller => event.event.caller.as_ref().is_none_or(|caller| *caller == self.service),
                Side::Callee => event.event.caller.is_none(),
            }
    }
}
