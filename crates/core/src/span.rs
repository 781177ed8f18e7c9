//! What one sidecar records of one call (design §3.11). Travels as an OpenTelemetry span, see [`crate::otlp`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::Outcome;
use crate::evidence::Gaps;
use crate::id::{CallId, ExecutionId, ObserverId, Token};
use crate::name::{Api, Service};
use crate::plan::Side;

/// How a call was tied to its execution and parent (design §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Association {
    /// By the `aft` member, or at an entry: execution and parent are exact.
    Exact,
    /// By a correlation id that only one call open here carries: the execution is exact, and that call the parent unless an
    /// ended one of the same execution still works.
    Correlated,
    /// By a correlation id that several calls of one execution carry: the execution is exact, the parent ambiguous.
    Ambiguous,
    /// The call's parent had ended, within the linger time.
    Detached,
    /// Through a hop without sidecar: the execution is known, the parent is not ours.
    Relayed,
    /// The only execution seen here recently (opt-in).
    Exclusive,
    /// Not tied to any execution; forwarded with a hop mark.
    Unassociated,
}

impl fmt::Display for Association {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Association {
    /// The word in spans, files and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Association::Exact => "exact",
            Association::Correlated => "correlated",
            Association::Ambiguous => "ambiguous",
            Association::Detached => "detached",
            Association::Relayed => "relayed",
            Association::Exclusive => "exclusive",
            Association::Unassociated => "unassociated",
        }
    }

    /// Every step, in order.
    pub const ALL: [Association; 7] = [
        Association::Exact,
        Association::Correlated,
        Association::Ambiguous,
        Association::Detached,
        Association::Relayed,
        Association::Exclusive,
        Association::Unassociated,
    ];
}

/// A boundary event on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instant {
    /// The execution-local Lamport clock.
    pub clock: u64,
    /// The host's wall clock, nanoseconds since the Unix epoch. For people; never for order.
    pub unix_nanos: u64,
}

/// How an exchange ended, as the sidecar saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The response was written to its end.
    Complete,
    /// The application's side went first.
    ApplicationGone,
    /// The upstream's side failed.
    UpstreamFailed,
    /// A fault ended it.
    Faulted,
}

impl Ending {
    /// The word in spans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Ending::Complete => "complete",
            Ending::ApplicationGone => "application-gone",
            Ending::UpstreamFailed => "upstream-failed",
            Ending::Faulted => "faulted",
        }
    }
}

/// What a rule did with a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// The rule's position in its plan.
    pub rule: usize,
    /// The number of the pass.
    pub k: u32,
    /// The Lamport clock at which it was decided, before the message itself was counted.
    pub decided: u64,
    /// The message had been parked by `hold` before.
    pub held: bool,
    /// What was done: `drop`, `delay 100ms`, …
    pub fault: String,
}

/// Why a pass that a rule looked at was not faulted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassedBy {
    /// Another number than `k`.
    Number,
    /// The guard was false; the atoms that were, by their position in the guard.
    GuardFalse(Vec<usize>),
    /// The guard was false under a gap.
    GuardUnknown(Vec<usize>),
    /// The number is not to be trusted here.
    NumberBlocked,
    /// The outcome or the post-effect condition did not match.
    Outcome,
    /// The rule had fired or ended in this execution, or the round's injections were used up.
    Spent,
    /// Parked until its deadline.
    HoldDeadline,
    /// Parked when the rule was disarmed or its lease ended.
    Disarmed,
    /// It came after the controller had disarmed the round, and nothing else kept it from being faulted.
    RoundOver,
    /// The caller went away while it was parked.
    CallerGone,
    /// Another request was outstanding on its HTTP/1 connection.
    Pipelined,
    /// The upstream said GOAWAY.
    Goaway,
    /// The withheld body was larger than the limit.
    Size,
    /// There was no place left to park it.
    ParkedLimit,
    /// A second message on a held call.
    Stream,
    /// The arbiter did not grant it in time.
    Arbiter,
}

/// A pass: a message that matches a target's caller, Api and phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// The rule's position in its plan.
    pub rule: usize,
    /// Its number in the execution, from 1; none if the arbiter gave it none.
    pub k: Option<u32>,
    /// The Lamport clock at which it was numbered, before the message itself was counted.
    pub clock: u64,
    /// Why it was not faulted; none if it was.
    pub passed_by: Option<PassedBy>,
}

impl Pass {
    /// How sentences call it: `pass 3`, or `a pass without number`.
    pub fn name(&self) -> String {
        self.k.map_or_else(|| "a pass without number".to_owned(), |k| format!("pass {k}"))
    }
}

/// One side of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSpan {
    /// Whose sidecar recorded it.
    pub side: Side,
    /// The recording sidecar's service.
    pub service: Service,
    /// The recording sidecar's process start.
    pub observer: ObserverId,
    /// The execution; zero if the call is unassociated.
    pub execution: ExecutionId,
    /// The round's token; zero for ordinary traffic.
    pub token: Token,
    /// The call. At an entry, which has none on the wire, the callee's sidecar mints it.
    pub call: CallId,
    /// The call whose handler sent this one. None at an entry and where the parent is not known.
    pub parent: Option<CallId>,
    /// The calling service; none at an entry and where it is not known.
    pub caller: Option<Service>,
    /// What was called.
    pub api: Api,
    /// How it was associated.
    pub association: Association,
    /// The trace id of the `traceparent` beside it; 0 without one.
    #[serde(with = "hex128")]
    pub trace_id: u128,
    /// request-sent (caller) or request-received (callee).
    pub request: Instant,
    /// response-received (caller) or response-sent (callee); none if there was none.
    pub response: Option<Instant>,
    /// When the exchange was over, nanoseconds since the Unix epoch.
    pub ended_unix_nanos: u64,
    /// The outcome of the response event.
    pub outcome: Option<Outcome>,
    /// HTTP status, if there was a response.
    pub http_status: Option<u16>,
    /// gRPC status, if there was one.
    pub grpc_status: Option<u32>,
    /// The response was made by this sidecar.
    pub made: bool,
    /// How the exchange ended.
    pub ending: Ending,
    /// Evidence left with the message that this sidecar sends (caller: request, callee: response).
    pub evidence_went: bool,
    /// Evidence came with the message that this sidecar gets (caller: response, callee: request).
    pub evidence_came: bool,
    /// What may be missing from this execution's evidence here, when the exchange ended.
    pub gaps: Gaps,
    /// Messages of a gRPC response, as far as it came.
    pub messages: Option<u64>,
    /// The passes of this call, one for each rule that matched.
    pub passes: Vec<Pass>,
    /// What was injected.
    pub injection: Option<Injection>,
}

impl CallSpan {
    /// The two boundary events of this side with their instants, in order.
    pub fn events(&self) -> impl Iterator<Item = (crate::event::EventKind, Instant, Option<Outcome>)> + '_ {
        use crate::plan::Phase;
        let request = (Phase::Request.event(self.side), self.request, None);
        let response = self.response.map(|at| (Phase::Response.event(self.side), at, self.outcome));
        std::iter::once(request).chain(response)
    }
}

/// 128-bit trace ids as 32 hexadecimal digits: JSON numbers do not hold them.
mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &u128, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{id:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}
