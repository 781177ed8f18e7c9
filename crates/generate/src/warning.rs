//! What to know about a temporal fault that could be made all the same.

use std::fmt;

use aftershock_core::id::ExecutionId;
use aftershock_core::plan::Atom;
use serde::Serialize;

/// What the user should know about a fault that could be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Warning {
    /// A guard for `k: first` rests on few traces.
    FewTraces {
        /// How many reach the target.
        have: usize,
    },
    /// The callee has no sidecar: the post-effect condition rests on the answer alone.
    CalleeWithoutSidecar,
    /// Only other instants of the target's own calls tell earlier passes apart: the guard depends on repeat counts.
    CountsRepeats,
    /// Traces with gaps: their counts are lower bounds.
    Gaps {
        /// The executions.
        traces: Vec<ExecutionId>,
    },
    /// Traces whose entry never reaches the target: the guard is not learnt from them.
    OtherEntries {
        /// Their entries.
        entries: Vec<String>,
    },
    /// The passes go through several instances: their order in a trace is one of those that the clock allows.
    Instances {
        /// The executions.
        traces: Vec<ExecutionId>,
    },
    /// Inside a response stream the number alone tells passes apart: marks are no events, so nothing counts them.
    StreamNumber,
    /// The target's call overlaps another one: which of them reaches its place in the stream first cannot be told from
    /// these traces.
    StreamOrder {
        /// The executions.
        traces: Vec<ExecutionId>,
    },
    /// Traces do not tell how many bytes a response has.
    StreamBytes,
    /// Another fault of the plan may keep this atom from becoming true.
    Falsifiable {
        /// The fault whose guard it is, by position in the plan.
        fault: usize,
        /// The atom.
        atom: Atom,
    },
    /// The guard of this fault, by position, holds only if the plan's other faults fire: it waits for an answer that one of
    /// them makes.
    RestsOnFaults {
        /// Its position in the plan.
        fault: usize,
    },
    /// Another fault of the plan may keep earlier passes from being counted: the number alone decides.
    OwnEventFalsifiable,
    /// In a trace the message was parked longer than the deadline until the guard held.
    HoldDeadline {
        /// The longest wait, in nanoseconds.
        waited_nanos: u64,
    },
}

/// Fewer traces than this make a guard for `k: first` doubtful.
pub const WANTED_TRACES: usize = 10;

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::FewTraces { have } => {
                write!(f, "a guard for `k: first` wants {WANTED_TRACES} clean traces or more, this one rests on {have}")
            }
            Warning::CalleeWithoutSidecar => {
                f.write_str("the callee has no sidecar: that the effect happened is concluded from the answer alone")
            }
            Warning::CountsRepeats => f.write_str(
                "only the target's own calls tell its passes apart: the guard changes its meaning with repeat counts",
            ),
            Warning::Gaps { traces } => write!(f, "{} traces have gaps: their counts are lower bounds", traces.len()),
            Warning::OtherEntries { entries } => {
                write!(f, "not learnt from: traces of {}, which do not reach the target", entries.join(", "))
            }
            Warning::Instances { traces } => write!(
                f,
                "in {} traces the passes go through several instances: the order in which an arbiter sees them may differ",
                traces.len()
            ),
            Warning::StreamNumber => {
                f.write_str("inside a response the number alone tells passes apart: no event is counted there")
            }
            Warning::StreamOrder { traces } => write!(
                f,
                "in {} traces the target's call overlaps another one: their order inside the responses is not on record",
                traces.len()
            ),
            Warning::StreamBytes => f.write_str("traces do not tell whether a response has that many bytes"),
            Warning::Falsifiable { fault, atom } => {
                write!(f, "`{atom}` of fault {fault} may not become true when the plan's other faults fire")
            }
            Warning::RestsOnFaults { fault } => {
                write!(
                    f,
                    "fault {fault} waits for an answer that another fault of the plan makes: it fires after that one"
                )
            }
            Warning::OwnEventFalsifiable => {
                f.write_str("the plan's other faults may hit earlier passes: the number alone decides which is meant")
            }
            Warning::HoldDeadline { waited_nanos } => write!(
                f,
                "in a clean trace the guard holds {:.1} ms after the message, which is beyond the deadline of `hold`",
                *waited_nanos as f64 / 1e6
            ),
        }
    }
}
