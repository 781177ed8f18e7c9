//! The controller's HTTP API: JSON over `/v1/…`. One set of types for both ends.
//!
//! A round, as its runner drives it: `POST /v1/rounds` arms every sidecar and answers only when all acknowledged;
//! the runner sends its requests with the token; after each attempt `POST /v1/rounds/{id}/settle` waits until no call of
//! the round is open but those that the fault keeps; `POST /v1/rounds/{id}/finish` disarms, waits for completion and
//! judges; after its invariants the runner says what it saw with `POST /v1/rounds/{id}/conclude`. A round whose runner
//! does not call `POST /v1/rounds/{id}/renew` (or anything else of the round) for [`RUNNER_LEASE`] is disarmed and
//! stored as inconclusive. `renew` and `conclude` answer 204 without a body. Requests with a body say
//! `content-type: application/json`.
//!
//! `GET /v1/traces?scenario=S&recordings=N` answers with the complete executions of the latest N (10 if left out) clean
//! recordings of a scenario as an array of traces, the oldest first; `GET /v1/rounds?scenario=S&limit=N` lists the
//! latest N (100) rounds, the newest first. `POST /v1/recordings` takes traces that were recorded elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::event::Outcome;
use aftershock_core::id::CallId;
use aftershock_core::id::{ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::plan::{Channel, Plan};
use aftershock_core::span::Association;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{CutConnections, Ruling, Tagging, Unseen};
use serde::{Deserialize, Serialize};

/// A runner that says nothing for this long is taken for dead.
pub const RUNNER_LEASE: Duration = Duration::from_secs(10);

/// The number of a round in the store, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoundId(pub i64);

/// Clean executions of a scenario as a file (`aftershock store export`, `aftershock record --out`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSet {
    /// [`TraceSet::SCHEMA`].
    pub schema: String,
    /// The scenario's name.
    pub scenario: String,
    /// Its executions, the oldest first.
    pub traces: Vec<Trace>,
}

/// Why a [`TraceSet`] cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTraceSet {
    /// Another version, or another thing altogether.
    #[error("expected schema {:?}, found {found:?}", TraceSet::SCHEMA)]
    Schema {
        /// What it says.
        found: String,
    },
    /// No name.
    #[error("expected the name of a scenario")]
    NoScenario,
    /// Nothing is known of what it shows.
    #[error("traces[{index}] {problem}")]
    Trace {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl TraceSet {
    /// The schema that this code reads and writes.
    pub const SCHEMA: &'static str = "aftershock.dev/traces/v1";

    /// The set of a scenario's executions.
    pub fn new(scenario: String, traces: Vec<Trace>) -> Self {
        TraceSet { schema: Self::SCHEMA.to_owned(), scenario, traces }
    }

    /// Whether it can stand for recordings that were made here.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), InvalidTraceSet> {
        if self.schema != Self::SCHEMA {
            return Err(InvalidTraceSet::Schema { found: self.schema.chars().take(64).collect() });
        }
        if self.scenario.is_empty() {
            return Err(InvalidTraceSet::NoScenario);
        }
        let mut seen = BTreeSet::new();
        for (index, trace) in self.traces.iter().enumerate() {
            let invalid = |problem| Err(InvalidTraceSet::Trace { index, problem });
            let spans: Vec<_> = trace.calls.iter().flat_map(|call| call.spans()).cloned().collect();
            if trace.execution.is_zero() || spans.is_empty() {
                return invalid("has no execution id or no spans");
            }
            if !seen.insert(trace.execution) {
                return invalid("is of an execution that stands before it already");
            }
            if Trace::assemble(spans) != [trace.clone()] {
                return invalid(
                    "is not what its own spans make: some are of other executions, stand twice, or do not fit",
                );
            }
        }
        Ok(())
    }
}

/// The answer to `POST /v1/recordings`, which takes a [`TraceSet`] as clean recordings of its scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Executions that were stored.
    pub stored: u64,
    /// Executions that were here already.
    pub present: u64,
}

/// `POST /v1/rounds`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRound {
    /// The scenario's name.
    pub scenario: String,
    /// What is armed; no faults for a clean recording.
    pub plan: Plan,
    /// The business key of this round.
    pub key: String,
    /// Clients whose environment is constant (design §3.1).
    #[serde(default)]
    pub constant_context: bool,
    /// Apis whose outcome is not what their status says.
    #[serde(default)]
    pub outcomes: Vec<OutcomeOverride>,
    /// Ordinary traffic that becomes executions of this round.
    #[serde(default)]
    pub traffic: Option<TaggedTraffic>,
    /// When ordinary traffic suffers, the round is ended at once. The controller's own condition holds beside it.
    #[serde(default)]
    pub stop: Option<StopCondition>,
    /// How long a pass waits for the arbiter; the controller's own setting if left out.
    #[serde(default)]
    pub arbiter_timeout: Option<Interval>,
}

/// Ordinary traffic that is tagged where it enters (design §3.6).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaggedTraffic {
    /// The service that it enters at.
    pub entry: Service,
    /// Which requests.
    #[serde(flatten)]
    pub tagging: Tagging,
}

/// A bound on the error rate of ordinary traffic while a round runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCondition {
    /// Errors in a million ordinary entry requests, over all of them since the round began.
    pub errors_per_million: u32,
    /// Nothing is concluded from fewer requests.
    pub min_requests: u64,
}

/// What the arbiter did, in its order (design §3.4). Numbers and shots are judged by it, never by clocks across instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArbiterEntry {
    /// Which rule of the plan.
    pub rule: usize,
    /// In which execution.
    pub execution: ExecutionId,
    /// On which call.
    pub call: CallId,
    /// The sidecar that asked or said so.
    pub observer: ObserverId,
    /// What happened.
    pub act: ArbiterAct,
}

/// One act of the arbiter, or one that it was told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "act")]
pub enum ArbiterAct {
    /// A pass was numbered and ruled on, or a held one ruled on again.
    Ruled {
        /// Its number, from 1.
        number: u32,
        /// Whether its sidecar said that guard and outcome hold.
        ready: bool,
        /// Its outcome.
        outcome: Option<Outcome>,
        /// The answer.
        ruling: Ruling,
    },
    /// A granted shot was fired.
    Fired,
    /// A grant came back unused; the rule ended in this execution.
    HandedBack,
    /// A pass was not answered in time; the rule ended in this execution.
    GivenUp,
}

/// Its answer: every registered sidecar acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartedRound {
    /// The round.
    pub id: RoundId,
    /// The capability to put into the entry requests.
    pub token: Token,
}

/// `POST /v1/rounds/{id}/settle`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settle {
    /// Give up after this long.
    pub deadline: Interval,
    /// The client's connection was refused, or ended without a byte of an answer: unless a sidecar has seen a call by now,
    /// none will, and there is nothing to wait for. Not for a client that timed out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// False if the deadline passed first.
    pub settled: bool,
    /// Calls that the fault keeps open.
    pub kept: usize,
    /// Calls still running when the deadline passed, as text.
    pub running: Vec<String>,
}

/// `POST /v1/rounds/{id}/finish`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// Wait this long for completion.
    pub deadline: Interval,
    /// The client of this round could not be run: the round is inconclusive for this reason.
    #[serde(default)]
    pub client_failed: Option<String>,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The round's verdict: the worst of its faults' and its cuts'.
    pub verdict: Verdict,
    /// One verdict for each fault of the plan.
    pub faults: Vec<FaultVerdict>,
    /// One verdict for each cut of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<CutVerdict>,
    /// What concerns the round as a whole: why it could not be run as planned, what is missing from its record.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The executions of the round.
    pub traces: Vec<Trace>,
    /// Whether each execution is complete, and what is missing where it is not.
    pub incomplete: BTreeMap<ExecutionId, String>,
    /// Calls of the round's services during it that could not be associated, per service.
    pub unassociated: BTreeMap<Service, BTreeMap<Api, u64>>,
    /// What the arbiter did, for rules over several instances.
    #[serde(default)]
    pub arbiter: Vec<ArbiterEntry>,
}

/// What became of a fault, worst first (design §3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It fired twice in one execution, or more often than allowed.
    Multiple,
    /// It fired outside its window.
    Premature,
    /// The round could not be run as planned: arming failed, a lease lapsed, the client could not be run.
    Inconclusive,
    /// Something that matters is not known.
    Incomplete,
    /// No message of the target was seen.
    Unreached,
    /// The target was seen, but it was not its time.
    Missed,
    /// Once, in its window.
    Injected,
    /// A recording without faults, complete.
    Clean,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Multiple => "multiple",
            Verdict::Premature => "premature",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Incomplete => "incomplete",
            Verdict::Unreached => "unreached",
            Verdict::Missed => "missed",
            Verdict::Injected => "injected",
            Verdict::Clean => "clean",
        })
    }
}

/// The verdict of one fault, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultVerdict {
    /// Its position in the plan.
    pub rule: usize,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, a sentence for each thing that mattered, in the order of executions.
    pub reasons: Vec<String>,
    /// How often it fired in the round.
    pub injections: u32,
    /// How many of these were outside the window.
    pub premature: u32,
    /// Whether it fired twice in one execution or too often in the round.
    pub multiple: bool,
}

/// What became of a channel that was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutVerdict {
    /// Which.
    pub channel: Channel,
    /// `injected`: a connection was broken or refused on it, or a call failed. `unreached`: there was none of either.
    /// `missed`: calls were made, and all were answered, after it was healed.
    pub verdict: Verdict,
    /// Why, a sentence for each thing that mattered, in the order of executions.
    pub reasons: Vec<String>,
    /// Calls of the round that failed on it. Callers that notice before they send a request make no call that is seen.
    pub failed: u64,
    /// Connections that it met, whoever's calls they carry.
    pub connections: CutConnections,
}

/// What the client and the invariants say (design §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OracleVerdict {
    /// An invariant is broken, whatever the client saw.
    Violated,
    /// The client did not get what it expected, the invariants hold.
    Unavailable,
    /// Everything as expected.
    Held,
}

impl std::fmt::Display for OracleVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OracleVerdict::Violated => "violated",
            OracleVerdict::Unavailable => "unavailable",
            OracleVerdict::Held => "held",
        })
    }
}

/// The oracle's finding with what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OracleFinding {
    /// The finding.
    pub found: OracleVerdict,
    /// Each expectation and invariant that failed: what was expected, what was found.
    pub differences: Vec<String>,
}

/// One request of the client, as it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Which request of the scenario, from 0.
    pub request: usize,
    /// Which try of it, from 1.
    pub attempt: u32,
    /// `200`, `grpc-status 14`, `timeout`, `connection reset`, …
    pub result: String,
    /// From the first byte sent to the last received, or to giving up.
    pub latency: Interval,
}

/// `POST /v1/rounds/{id}/conclude`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conclude {
    /// Every request sent.
    pub attempts: Vec<Attempt>,
    /// What the oracle found.
    pub oracle: OracleFinding,
}

/// One line of `GET /v1/rounds`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundSummary {
    /// The round.
    pub id: RoundId,
    /// The scenario's name.
    pub scenario: String,
    /// The business key.
    pub key: String,
    /// When it started, seconds since the Unix epoch.
    pub started: i64,
    /// How many faults and cuts its plan has; 0 for a recording.
    pub faults: usize,
    /// Its verdict, once it has one.
    pub verdict: Option<Verdict>,
    /// What the oracle found, once it did.
    pub oracle: Option<OracleVerdict>,
}

/// `GET /v1/rounds/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Its line in the list.
    pub summary: RoundSummary,
    /// What was armed.
    pub plan: Plan,
    /// What came of it; none while it runs and if it was cut short.
    pub finished: Option<Finished>,
    /// Why it was cut short, if it was.
    #[serde(default)]
    pub ended_early: Option<String>,
    /// What the runner said.
    pub concluded: Option<Conclude>,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The controller's version.
    pub version: String,
    /// Registered sidecars, by service.
    pub sidecars: Vec<SidecarStatus>,
    /// Rounds that are armed.
    pub rounds: Vec<LiveRound>,
    /// Rounds in the store.
    pub stored_rounds: u64,
    /// What the collector took since the controller began.
    #[serde(default)]
    pub collected: Collected,
    /// Sidecars that were refused because they speak another version of the protocol, by service: why. One that has
    /// registered since is not among them.
    #[serde(default)]
    pub refused: BTreeMap<Service, String>,
    /// Requests and connections without a valid token or certificate, since the controller began.
    #[serde(default)]
    pub turned_away: u64,
}

/// Spans that the collector took, by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Collected {
    /// Of live rounds: kept.
    pub kept: u64,
    /// Of live rounds, sent twice.
    pub repeated: u64,
    /// Of rounds that had been judged.
    pub late: u64,
    /// Of traffic without a round.
    pub ordinary: u64,
    /// Under tokens that are not ours.
    pub unknown: u64,
    /// Not from sidecars.
    pub foreign: u64,
    /// Of live rounds, beyond the limit of one round: dropped.
    pub dropped: u64,
}

/// One registered sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SidecarStatus {
    /// Its service.
    pub service: Service,
    /// Its process start.
    pub observer: ObserverId,
    /// Its version.
    pub version: String,
    /// Where it takes requests.
    pub inbound: Vec<String>,
    /// Calls per step of the association ladder, since it started.
    pub associations: BTreeMap<Association, u64>,
    /// What it ignored, by kind.
    pub ignored: BTreeMap<String, u64>,
    /// Spans it lost.
    pub lost: u64,
    /// Hop headers with evidence of a round that it sent, by their length in bytes.
    #[serde(default)]
    pub evidence: BTreeMap<u16, u64>,
    /// Where connections of its service went that cannot be read, since it started.
    #[serde(default)]
    pub unseen: Vec<Unseen>,
}

/// One armed round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveRound {
    /// The round.
    pub id: RoundId,
    /// The scenario.
    pub scenario: String,
    /// Its armed rules, as text: service, target, guard, fault.
    pub rules: Vec<String>,
    /// How long its leases last if nothing renews them.
    pub lease_left: Interval,
}

/// `POST /v1/disarm`: every armed round ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Disarmed {
    /// The rounds that were armed.
    pub rounds: Vec<RoundId>,
    /// Sidecars that did not confirm within the deadline; their leases end by themselves.
    pub unconfirmed: Vec<Service>,
}

/// Any answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// What was wrong: in lower case, to stand behind `failed to …: `.
    pub error: String,
}
