//! What became of the faults of a round (design §3.7): a pure function of what was recorded.
//!
//! The sidecars do not judge themselves. Their records are taken for what they saw; that a fault fell into its window
//! is counted again from the events of all sidecars. Two directions of doubt never mix: a verdict that accuses
//! (`multiple`, `premature`) needs proof, and so does a verdict that reassures (`unreached`, `missed`, `injected`);
//! what can be proved neither way is `incomplete`.

use std::collections::BTreeMap;

use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::plan::{Plan, Rule};
use aftershock_core::trace::Trace;

use crate::api::{FaultVerdict, Verdict};

/// A sidecar said that a rule fired ([`FromSidecar::Fired`](aftershock_core::wire::FromSidecar::Fired)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fired {
    /// The rule's position in its plan.
    pub rule: usize,
    /// In which execution.
    pub execution: ExecutionId,
    /// On which call.
    pub call: CallId,
    /// Who said so.
    pub observer: ObserverId,
}

/// Why a round could not be run as planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A sidecar did not acknowledge the plan, or the plan could not be armed at all.
    #[error("arming failed: {0}")]
    Arming(String),
    /// The client could not be run; a request that failed is no such case.
    #[error("the client could not be run: {0}")]
    Client(String),
    /// A lease ran out before the round's completion.
    #[error("the lease lapsed at the sidecar of {service} ({observer})")]
    LeaseLapsed {
        /// The sidecar's service.
        service: Service,
        /// The sidecar.
        observer: ObserverId,
    },
    /// An armed sidecar's connection or process ended before the round's completion, fired or not.
    #[error("the armed sidecar of {service} ({observer}) died")]
    SidecarDied {
        /// The sidecar's service.
        service: Service,
        /// The sidecar.
        observer: ObserverId,
    },
    /// Whoever drove the round fell silent, or it was ended from outside.
    #[error("the round was ended early: {0}")]
    Ended(String),
}

/// Everything a verdict rests on.
#[derive(Debug, Clone, Copy)]
pub struct RoundFacts<'a> {
    /// What was to be armed.
    pub plan: &'a Plan,
    /// The plan's faults as the sidecars were armed with them; empty if it did not come to that.
    pub rules: &'a [Rule],
    /// The sidecars that acknowledged the rules, with their services.
    pub armed: &'a BTreeMap<ObserverId, Service>,
    /// The executions of the round, from all spans that arrived.
    pub traces: &'a [Trace],
    /// What sidecars said at once when a rule fired.
    pub fired: &'a [Fired],
    /// Why the round could not be run as planned.
    pub failures: &'a [Failure],
    /// Executions that are not complete (design §3.11), and why.
    pub incomplete: &'a BTreeMap<ExecutionId, String>,
    /// What else is missing from the record of the round, as sentences: spans a sidecar lost, a flush that was not
    /// answered. Empty if every sidecar's record is here.
    pub missing: &'a [String],
}

/// One verdict for each fault of the plan, in its order; none for a clean recording.
pub fn judge(facts: &RoundFacts<'_>) -> Vec<FaultVerdict> {
    let _ = facts;
    Vec::new()
}

/// The verdict of the round: the worst of its faults', or what a clean recording is worth.
pub fn of_round(facts: &RoundFacts<'_>, faults: &[FaultVerdict]) -> Verdict {
    let _ = (facts, faults);
    Verdict::Incomplete
}
