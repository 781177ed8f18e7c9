//! Replay of evidence over a trace: what each sidecar knew just before each message was counted (design §4.1).
//!
//! The replay runs the sidecar's own [`Knowledge`] over the recorded boundary events: a message that carried evidence
//! brings what its sender knew when it left. An event of a concurrent branch that merely happened earlier is not known.

use std::collections::BTreeMap;

use crate::event::{CountedEvent, EventId, EventKind};
use crate::evidence::{Evidence, Knowledge};
use crate::id::{CallId, ObserverId};
use crate::trace::{Step, Trace};

/// One step of a trace, and the evidence at its sidecar at the instant of decision: after what arrived was merged,
/// before the step itself was counted.
#[derive(Debug, Clone)]
pub struct Visible<'a> {
    /// The step.
    pub step: Step<'a>,
    /// What the observing sidecar knew.
    pub evidence: Evidence,
    /// What it knew as soon as the step was counted: what a parked message is judged by when this step made it grow.
    pub after: Evidence,
}

/// Replay `trace`, counting `events`. The result is in the order of [`Trace::steps`].
pub fn replay<'a>(trace: &'a Trace, events: &[CountedEvent]) -> Vec<Visible<'a>> {
    replay_without(trace, events, |_| false)
}

/// [`replay`] with every step removed for which `removed` holds: it is neither seen nor counted, and what its message
/// carried does not arrive.
pub fn replay_without<'a>(
    trace: &'a Trace,
    events: &[CountedEvent],
    removed: impl Fn(&Step<'a>) -> bool,
) -> Vec<Visible<'a>> {
    let ids: Vec<EventId> = events.iter().map(|counted| counted.event.id()).collect();
    let mut known: BTreeMap<ObserverId, Knowledge> = BTreeMap::new();
    let mut under_way: BTreeMap<(CallId, EventKind), Knowledge> = BTreeMap::new();
    let mut seen = Vec::new();
    for step in trace.steps() {
        if removed(&step) {
            continue;
        }
        let here = known.entry(step.observer).or_default();
        if let Some(sent) = sending(step.event)
            && arrived(&step)
            && let Some(message) = under_way.remove(&(step.call.id, sent))
        {
            here.merge(&message);
        }
        let evidence = here.evidence.clone();
        let occurrence = step.occurrence();
        here.happen(
            step.observer,
            events.iter().zip(&ids).filter(|(counted, _)| counted.matches(&occurrence)).map(|(_, id)| *id),
        );
        if sends(step.event) && went(&step) {
            under_way.insert((step.call.id, step.event), here.clone());
        }
        let after = here.evidence.clone();
        seen.push(Visible { step, evidence, after });
    }
    seen
}

/// The event whose message arrives with `event`.
fn sending(event: EventKind) -> Option<EventKind> {
    match event {
        EventKind::RequestReceived => Some(EventKind::RequestSent),
        EventKind::ResponseReceived => Some(EventKind::ResponseSent),
        EventKind::RequestSent | EventKind::ResponseSent => None,
    }
}

fn sends(event: EventKind) -> bool {
    sending(event).is_none()
}

fn span<'a>(step: &Step<'a>) -> Option<&'a crate::span::CallSpan> {
    if step.event.at_caller() { step.call.client.as_ref() } else { step.call.server.as_ref() }
}

fn arrived(step: &Step<'_>) -> bool {
    span(step).is_some_and(|span| span.evidence_came)
}

fn went(step: &Step<'_>) -> bool {
    span(step).is_some_and(|span| span.evidence_went)
}
