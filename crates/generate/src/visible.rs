//! Visible counts (design §4.1): `v_τ(e, i)`, the count of event `e` in the evidence that the acting sidecar holds just
//! before the message at position `i` of trace `τ` is counted.
//!
//! The counts come out of [`aftershock_core::replay`], which runs the sidecar's own evidence. An event of a concurrent
//! branch that merely happened earlier is not visible unless a message brought it.
//!
//! Candidate events are scoped to their caller and outcome-neutral: a guard then survives a change of answers. Only
//! pattern atoms ask for an outcome.

use std::collections::BTreeSet;

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use aftershock_core::evidence::Evidence;
use aftershock_core::id::{CallId, ObserverId};
use aftershock_core::replay::{Visible, replay_without};
use aftershock_core::trace::{Step, Trace};

use crate::after::Removed;

/// Every boundary event that happens in `traces`, scoped to its caller, in order. An entry call has no caller: its event
/// counts the calls of all callers.
pub fn candidates(traces: &[&Trace]) -> BTreeSet<Event> {
    traces.iter().flat_map(|trace| trace.steps().into_iter().map(|step| event_of(&step)).collect::<Vec<_>>()).collect()
}

/// The event that a step is an occurrence of.
fn event_of(step: &Step<'_>) -> Event {
    Event {
        event: step.event,
        api: ApiRef::Api(step.call.api.clone()),
        caller: step.call.caller.clone(),
        outcome: OutcomeFilter::Any,
    }
}

/// One trace, replayed with some events counted.
#[derive(Debug, Clone)]
pub struct Replayed<'a> {
    steps: Vec<Visible<'a>>,
}

impl<'a> Replayed<'a> {
    /// Replay `trace`, counting `events`, as far as it happens without `removed`.
    pub fn new(trace: &'a Trace, events: &[CountedEvent], removed: &Removed) -> Self {
        Replayed { steps: replay_without(trace, events, |step| removed.contains(step)) }
    }

    /// Every step with the evidence at it, in the trace's order.
    pub fn steps(&self) -> &[Visible<'a>] {
        &self.steps
    }

    /// The evidence at the decision on the message of `call` at `event`; none if it does not happen.
    pub fn at(&self, call: CallId, event: EventKind) -> Option<&Evidence> {
        self.steps.iter().find(|seen| seen.step.call.id == call && seen.step.event == event).map(|seen| &seen.evidence)
    }

    /// What `observer` knows just before `step`, which may itself have been removed: then what it knows by what it saw
    /// before.
    pub fn known_before(&self, step: &Step<'_>) -> Evidence {
        if let Some(evidence) = self.at(step.call.id, step.event) {
            return evidence.clone();
        }
        let here = self.steps.iter().filter(|seen| seen.step.observer == step.observer);
        here.take_while(|seen| seen.step.at.clock < step.at.clock)
            .last()
            .map(|seen| seen.after.clone())
            .unwrap_or_default()
    }

    /// What `observer` knows in the end.
    pub fn finally(&self, observer: ObserverId) -> Evidence {
        let last = self.steps.iter().rfind(|seen| seen.step.observer == observer);
        last.map(|seen| seen.after.clone()).unwrap_or_default()
    }

    /// The first step at which `observer` knows enough for `holds`: by what arrives with it, or by counting it.
    pub fn first_known(&self, observer: ObserverId, holds: impl Fn(&Evidence) -> bool) -> Option<&Visible<'a>> {
        self.steps
            .iter()
            .filter(|seen| seen.step.observer == observer)
            .find(|seen| holds(&seen.evidence) || holds(&seen.after))
    }
}
