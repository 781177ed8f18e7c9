//! What certainly came after a moment at one sidecar: by that sidecar's own order, and through the messages that carried
//! evidence away from it. Lamport clocks alone cannot tell "after" from "elsewhere at the time".

use std::collections::BTreeSet;

use aftershock_core::event::EventKind;
use aftershock_core::id::{CallId, ObserverId};
use aftershock_core::trace::Trace;

/// The events after a moment.
#[derive(Debug, Clone)]
pub(super) struct After(BTreeSet<(CallId, ObserverId, EventKind)>);

impl After {
    /// Everything of `trace` that came after `observer`'s clock was `clock`.
    pub(super) fn moment(trace: &Trace, observer: ObserverId, clock: u64) -> Self {
        let mut after = BTreeSet::new();
        let mut reached: BTreeSet<ObserverId> = BTreeSet::new();
        let mut under_way: BTreeSet<(CallId, EventKind)> = BTreeSet::new();
        // The clock's order agrees with causality: whatever a message brought is known when its arrival is visited.
        for step in trace.steps() {
            let span = if step.event.at_caller() { &step.call.client } else { &step.call.server };
            let Some(span) = span else { continue };
            let brought = match step.event {
                EventKind::RequestReceived => Some(EventKind::RequestSent),
                EventKind::ResponseReceived => Some(EventKind::ResponseSent),
                EventKind::RequestSent | EventKind::ResponseSent => None,
            };
            if step.observer == observer && step.at.clock > clock
                || brought.is_some_and(|sent| span.evidence_came && under_way.contains(&(step.call.id, sent)))
            {
                reached.insert(step.observer);
            }
            if reached.contains(&step.observer) {
                after.insert((step.call.id, step.observer, step.event));
                if brought.is_none() && span.evidence_went {
                    under_way.insert((step.call.id, step.event));
                }
            }
        }
        After(after)
    }

    /// Whether the whole of `call`, as `observer` saw it, came after.
    pub(super) fn contains_call_at(&self, call: CallId, observer: ObserverId) -> bool {
        [EventKind::RequestSent, EventKind::RequestReceived]
            .into_iter()
            .any(|event| self.0.contains(&(call, observer, event)))
    }

    /// Whether `call` arrived at its callee after, so that whatever its handler did came after.
    pub(super) fn contains_arrival(&self, call: CallId) -> bool {
        self.0.iter().any(|(id, _, event)| *id == call && *event == EventKind::RequestReceived)
    }
}
