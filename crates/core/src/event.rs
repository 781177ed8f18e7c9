//! Boundary events and their identity in evidence (design §2, §3.2).

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::name::{Api, Service};

/// The four instants of a call that sidecars see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The request head passed the caller's sidecar.
    RequestSent,
    /// The request head reached the callee's sidecar.
    RequestReceived,
    /// The frame with the outcome left the callee.
    ResponseSent,
    /// The frame with the outcome reached the caller's sidecar.
    ResponseReceived,
}

impl EventKind {
    /// Whether the event belongs to the response.
    pub fn is_response(self) -> bool {
        matches!(self, EventKind::ResponseSent | EventKind::ResponseReceived)
    }

    /// Whether the caller's sidecar observes it (else the callee's).
    pub fn at_caller(self) -> bool {
        matches!(self, EventKind::RequestSent | EventKind::ResponseReceived)
    }

    /// The name in files and output.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::RequestSent => "request-sent",
            EventKind::RequestReceived => "request-received",
            EventKind::ResponseSent => "response-sent",
            EventKind::ResponseReceived => "response-received",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a call ended, as one sidecar saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// HTTP status below 400 and, for gRPC, status 0.
    Ok,
    /// Anything else that ended.
    Error,
    /// The body that carries the outcome was too large to read; only [`OutcomeFilter::Any`] matches.
    Unknown,
}

impl Outcome {
    /// The word in spans and output.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which outcomes an event or a target takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeFilter {
    /// Every outcome.
    #[default]
    Any,
    /// [`Outcome::Ok`] only.
    Ok,
    /// [`Outcome::Error`] only.
    Error,
}

impl OutcomeFilter {
    /// Whether it is the default, which files leave out.
    pub(crate) fn is_any(&self) -> bool {
        *self == OutcomeFilter::Any
    }

    /// Whether `outcome` passes. Request events have none and pass.
    pub fn admits(self, outcome: Option<Outcome>) -> bool {
        match self {
            OutcomeFilter::Any => true,
            OutcomeFilter::Ok => matches!(outcome, None | Some(Outcome::Ok)),
            OutcomeFilter::Error => matches!(outcome, None | Some(Outcome::Error)),
        }
    }
}

/// One Api, or a named group of Apis whose counts are pooled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ApiRef {
    /// One Api.
    Api(Api),
    /// A group of the plan, by name. Written `group:NAME`.
    Group(String),
}

impl fmt::Display for ApiRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiRef::Api(api) => api.fmt(f),
            ApiRef::Group(name) => write!(f, "group:{name}"),
        }
    }
}

impl FromStr for ApiRef {
    type Err = crate::name::ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("group:") {
            Some(name) => Ok(ApiRef::Group(name.to_owned())),
            None => text.parse().map(ApiRef::Api),
        }
    }
}

impl Serialize for ApiRef {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApiRef {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ApiRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ApiRef".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "an Api, `SERVICE OPERATION`, or `group:NAME`"})
    }
}

/// A boundary event as guards and counts speak of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Which instant of the call.
    pub event: EventKind,
    /// Of which Api or group.
    pub api: ApiRef,
    /// Only at this caller; any caller if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Service>,
    /// Only with this outcome; always `any` for request events.
    #[serde(default, skip_serializing_if = "OutcomeFilter::is_any")]
    pub outcome: OutcomeFilter,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.event)?;
        match self.outcome {
            OutcomeFilter::Any => {}
            OutcomeFilter::Ok => f.write_str("(ok)")?,
            OutcomeFilter::Error => f.write_str("(error)")?,
        }
        write!(f, " of {}", self.api)?;
        if let Some(caller) = &self.caller {
            write!(f, " at {caller}")?;
        }
        Ok(())
    }
}

/// What identifies an event in evidence: a 64-bit digest of its canonical text, the same in every process and version,
/// so that a sidecar can relay and merge counts of events it has never heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventId(pub u64);

impl Event {
    /// The digest of this event.
    pub fn id(&self) -> EventId {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        hasher.write(self.to_string().as_bytes());
        EventId(hasher.finish())
    }
}

/// One occurrence at a sidecar, to be matched against events.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence<'a> {
    /// Which instant.
    pub event: EventKind,
    /// Of which Api.
    pub api: &'a Api,
    /// The calling service, where it is known.
    pub caller: Option<&'a Service>,
    /// The outcome of a response event.
    pub outcome: Option<Outcome>,
}

/// An event with its group resolved: what a sidecar counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedEvent {
    /// The event.
    pub event: Event,
    /// The Apis it speaks of: one, or the members of its group.
    pub apis: BTreeSet<Api>,
}

impl CountedEvent {
    /// Whether `occurrence` counts.
    pub fn matches(&self, occurrence: &Occurrence<'_>) -> bool {
        self.event.event == occurrence.event
            && self.event.outcome.admits(occurrence.outcome)
            && self.event.caller.as_ref().is_none_or(|caller| Some(caller) == occurrence.caller)
            && self.apis.contains(occurrence.api)
    }
}
