//! Replay of evidence over a trace: what each sidecar knew just before each message was counted (design §4.1).
//!
//! The replay runs the sidecar's own [`Knowledge`] over the recorded boundary events: a message that carried evidence
//! brings what its sender knew when it left. An event of a concurrent branch that merely happened earlier is not known.
//!
//! What spans do not say is left out, so a replayed count is never above the true one: evidence that came again in the
//! trailers of a stream, that was late for a caller who gave up, or that was known only when a parked request left.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::event::{ApiRef, Event, OutcomeFilter};
    use crate::trace::tests::{Sides, call};

    fn events(sides: &[Sides]) -> Vec<CountedEvent> {
        let mut events = BTreeSet::new();
        for span in sides.iter().flat_map(|sides| &sides.0) {
            for (event, ..) in span.events() {
                let api = ApiRef::Api(span.api.clone());
                events.insert(Event { event, api, caller: None, outcome: OutcomeFilter::Any });
            }
        }
        let apis = |event: &Event| match &event.api {
            ApiRef::Api(api) => BTreeSet::from([api.clone()]),
            ApiRef::Group(_) => BTreeSet::new(),
        };
        events.into_iter().map(|event| CountedEvent { apis: apis(&event), event }).collect()
    }

    /// How often each event is visible at each step: `b request-received: a request-sent 1`.
    fn check(sides: Vec<Sides>, expected: &[&str]) {
        let events = events(&sides);
        let traces = Trace::assemble(sides.into_iter().flat_map(|sides| sides.0));
        let seen: Vec<String> = replay(&traces[0], &events)
            .into_iter()
            .map(|visible| {
                let counts = events.iter().filter_map(|counted| match visible.evidence.count(counted.event.id()) {
                    0 => None,
                    n => Some(format!("{} {n}", counted.event)),
                });
                let at = &visible.step;
                format!("{} {}: {}", at.call.api.service, at.event, counts.collect::<Vec<_>>().join(", "))
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_message_brings_what_its_sender_knew() {
        check(
            vec![call(1, None, "a", Some("b"), [1, 2, 3, 4])],
            &[
                "b request-sent: ",
                "b request-received: request-sent of b t.B/Do 1",
                "b response-sent: request-sent of b t.B/Do 1, request-received of b t.B/Do 1",
                "b response-received: request-sent of b t.B/Do 1, request-received of b t.B/Do 1, \
                 response-sent of b t.B/Do 1",
            ],
        );
    }

    #[test]
    fn a_message_that_lost_its_evidence_brings_nothing() {
        let mut only = call(1, None, "a", Some("b"), [1, 2, 3, 4]);
        only.0[1].evidence_came = false;
        only.0[0].evidence_came = false;
        check(
            vec![only],
            &[
                "b request-sent: ",
                "b request-received: ",
                "b response-sent: request-received of b t.B/Do 1",
                "b response-received: request-sent of b t.B/Do 1",
            ],
        );
    }

    #[test]
    fn an_event_of_another_branch_is_not_known_although_its_clock_is_lower() {
        check(
            vec![call(1, None, "a", Some("b"), [1, 3, 4, 9]), call(2, None, "a", Some("c"), [2, 5, 6, 7])],
            &[
                "b request-sent: ",
                "c request-sent: request-sent of b t.B/Do 1",
                "b request-received: request-sent of b t.B/Do 1",
                "b response-sent: request-sent of b t.B/Do 1, request-received of b t.B/Do 1",
                "c request-received: request-sent of b t.B/Do 1, request-sent of c t.C/Do 1",
                "c response-sent: request-sent of b t.B/Do 1, request-sent of c t.C/Do 1, \
                 request-received of c t.C/Do 1",
                "c response-received: request-sent of b t.B/Do 1, request-sent of c t.C/Do 1, \
                 request-received of c t.C/Do 1, response-sent of c t.C/Do 1",
                "b response-received: request-sent of b t.B/Do 1, request-sent of c t.C/Do 1, \
                 request-received of b t.B/Do 1, request-received of c t.C/Do 1, response-sent of b t.B/Do 1, \
                 response-sent of c t.C/Do 1, response-received of c t.C/Do 1",
            ],
        );
    }
}
