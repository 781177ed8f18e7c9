//! Why no temporal fault can be made of a request and its traces.

use std::fmt;

use aftershock_core::event::{Event, Outcome};
use aftershock_core::id::ExecutionId;
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Atom, Pattern, StreamPoint, UnknownGroup};

use crate::hitting_set::HittingSetError;

/// Why no temporal fault can be made. Every trace is named by its execution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// There is nothing to learn from.
    #[error("no traces to learn from")]
    NoTraces,
    /// The request or an atom names a group that is not defined.
    #[error(transparent)]
    Group(#[from] UnknownGroup),
    /// No call of any trace is one of the target's.
    #[error("no trace has a call of {target}{}", did_you_mean(.nearest))]
    NoSuchCall {
        /// Api or group, and the caller if one was given.
        target: String,
        /// The Api of the traces that is most like it, or the callers that it does have.
        nearest: Option<String>,
    },
    /// The traces show several callers and the target names none.
    #[error("the target's caller is ambiguous: the traces show {}", who(.callers))]
    AmbiguousCaller {
        /// The Api or group.
        target: String,
        /// Who calls it; `None` is a client without sidecar.
        callers: Vec<Option<Service>>,
    },
    /// A group acts at the callees' sidecars and its Apis belong to several services.
    #[error("the group of the target has no caller with a sidecar and spans {}", listed(.services))]
    GroupSpansCallees {
        /// The callees.
        services: Vec<Service>,
    },
    /// Traces end before the wanted occurrence.
    #[error(
        "{target} is not reached in {} of {total} traces ({}): the most passes of a trace are {most}",
        .traces.len(), listed(.traces)
    )]
    Unreached {
        /// The target.
        target: String,
        /// The traces that do not reach it.
        traces: Vec<ExecutionId>,
        /// How many traces were given.
        total: usize,
        /// The most passes that any of them has.
        most: u32,
    },
    /// The message at the wanted occurrence has another outcome than the target takes.
    #[error("pass {pass} of trace {trace} ends {}, which the target does not take", outcome(.found))]
    Outcome {
        /// The trace.
        trace: ExecutionId,
        /// The number of the pass.
        pass: u32,
        /// The outcome at the sidecar that would act, or at the callee's for the post-effect condition.
        found: Option<Outcome>,
    },
    /// The pattern and the rest of the request contradict each other.
    #[error("the pattern {pattern} needs {needs}")]
    Pattern {
        /// The pattern.
        pattern: Pattern,
        /// What is missing.
        needs: &'static str,
    },
    /// The traces show that the target's responses are streams, and the target does not say where in one.
    #[error(
        "the responses of `{target}` are streams, trace {trace} has one of {messages} messages: say where in it with \
         `at: head`, `at: {{message: n}}` or `at: {{bytes: n}}`"
    )]
    NeedsAt {
        /// The Api or group.
        target: String,
        /// A trace that shows it.
        trace: ExecutionId,
        /// How many messages its longest response has.
        messages: u64,
    },
    /// A place in a stream, and something that does not go with it.
    #[error("`at: {}` needs {needs}", place(.at))]
    At {
        /// The place.
        at: StreamPoint,
        /// What is missing.
        needs: &'static str,
    },
    /// `release` lets go what `hold` keeps.
    #[error("`release` needs `hold`: it lets a message go on when the guard holds")]
    Release,
    /// With `k: first` a held message waits for the guard: the first pass fires, no later one can be meant.
    #[error("with `hold` and `k: first` the first pass waits for the guard, so pass {pass} cannot be meant: number it")]
    HeldPass {
        /// The pass that was meant.
        pass: u32,
    },
    /// The event of an atom happens in no trace.
    #[error("the event `{event}` happens in no trace{}", did_you_mean(.nearest))]
    NoSuchEvent {
        /// The event.
        event: Box<Event>,
        /// The event of the traces that is most like it.
        nearest: Option<String>,
    },
    /// An atom of the guard does not hold when it should.
    #[error(
        "`{atom}` is not known at the target in trace {trace}: the sidecar of {service} counts {count}{}",
        if *.held { " however long the message is held" } else { "" }
    )]
    FalseAtTarget {
        /// The atom.
        atom: Box<Atom>,
        /// The trace.
        trace: ExecutionId,
        /// The service whose sidecar acts.
        service: Service,
        /// What it counts.
        count: u64,
        /// The message is held: the count is the last one with the message and everything after it left out.
        held: bool,
    },
    /// The guard holds too early.
    #[error("the guard already holds at pass {pass} of trace {trace}, before the target")]
    TrueBefore {
        /// The trace.
        trace: ExecutionId,
        /// The number of the pass.
        pass: u32,
    },
    /// No event that the sidecar is sure to know at the target tells it apart from an earlier pass.
    #[error(
        "evidence cannot tell pass {pass} of trace {trace} from the target: every event that is known at the target in \
         all traces is known there already as often"
    )]
    Indistinguishable {
        /// The trace.
        trace: ExecutionId,
        /// The number of the earlier pass.
        pass: u32,
    },
    /// The solver gave up.
    #[error("failed to find a minimum hitting set")]
    HittingSet(#[source] HittingSetError),
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|text| format!("; did you mean {text}?")).unwrap_or_default()
}

fn listed<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = items.iter().take(SHOWN).map(T::to_string).collect();
    if items.len() > SHOWN {
        text.push(format!("{} more", items.len() - SHOWN));
    }
    text.join(", ")
}

fn place(at: &StreamPoint) -> String {
    match at {
        StreamPoint::Head => "head".to_owned(),
        StreamPoint::Message(n) => format!("{{message: {n}}}"),
        StreamPoint::Bytes(n) => format!("{{bytes: {n}}}"),
    }
}

fn who(callers: &[Option<Service>]) -> String {
    let names: Vec<String> = callers
        .iter()
        .map(|caller| caller.as_ref().map_or_else(|| "a client without sidecar".to_owned(), Service::to_string))
        .collect();
    names.join(", ")
}

fn outcome(found: &Option<Outcome>) -> String {
    found.map_or_else(|| "without an outcome".to_owned(), |outcome| format!("`{outcome}`"))
}

/// The error for a call that no trace has, with the Api that may have been meant.
pub(crate) fn no_such_call(target: String, wanted: &[Api], known: &[Api]) -> GenerateError {
    let known: Vec<String> = known.iter().map(Api::to_string).collect();
    let nearest = wanted
        .iter()
        .find_map(|api| aftershock_core::name::nearest(&api.to_string(), known.iter().map(String::as_str)))
        .map(|name| format!("`{name}`"));
    GenerateError::NoSuchCall { target, nearest }
}
