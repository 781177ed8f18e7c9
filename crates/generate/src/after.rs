//! What follows from a message, by call tree (design §4.2): with `hold` the message is parked, so nothing of this can be
//! waited for.
//!
//! Causally after m: requests that the handler which m reaches sends after m, its own answer after m, and what follows
//! from those: calls of removed calls, and what a handler sends after a removed answer. Answers to calls already open at
//! m are not. Data dependencies inside a handler are not known, so *every* later request of it counts as after m: too
//! much may be removed, never too little. For the same reason a call whose parent is not known may be any handler's of
//! its calling service.

use std::collections::BTreeSet;

use aftershock_core::event::EventKind;
use aftershock_core::id::CallId;
use aftershock_core::name::Service;
use aftershock_core::trace::{Call, Step, Trace};

/// Steps that do not happen while a message is parked: the message itself and everything causally after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed(BTreeSet<(CallId, EventKind)>);

impl Removed {
    /// Whether `step` is one of them.
    pub fn contains(&self, step: &Step<'_>) -> bool {
        self.0.contains(&(step.call.id, step.event))
    }

    /// Add what another one has.
    pub fn extend(&mut self, other: Removed) {
        self.0.extend(other.0);
    }

    /// The calls and instants, in order.
    pub fn iter(&self) -> impl Iterator<Item = (CallId, EventKind)> + '_ {
        self.0.iter().copied()
    }
}

/// The message of `call` at `event`, and what is causally after it in `trace`. Nothing if the trace has no such call.
pub fn after_message(trace: &Trace, call: CallId, event: EventKind) -> Removed {
    after_messages(trace, [(call, event)])
}

/// What follows from any of several messages.
pub fn after_messages(trace: &Trace, messages: impl IntoIterator<Item = (CallId, EventKind)>) -> Removed {
    let mut closure = Closure { trace, steps: BTreeSet::new(), calls: BTreeSet::new(), answers: BTreeSet::new() };
    for (id, event) in messages {
        let Some(call) = trace.call(id) else { continue };
        match event {
            EventKind::RequestSent => closure.remove_call(call),
            // Parked at the callee: the caller had sent it before.
            EventKind::RequestReceived => closure.remove_handling(call),
            EventKind::ResponseSent => closure.remove_answer(call),
            EventKind::ResponseReceived => {
                closure.steps.insert((id, EventKind::ResponseReceived));
                closure.answer_missing(call);
            }
        }
    }
    Removed(closure.steps)
}

struct Closure<'a> {
    trace: &'a Trace,
    steps: BTreeSet<(CallId, EventKind)>,
    /// Calls that are not handled.
    calls: BTreeSet<CallId>,
    /// Calls whose answer does not come.
    answers: BTreeSet<CallId>,
}

impl<'a> Closure<'a> {
    /// The call is not made.
    fn remove_call(&mut self, call: &'a Call) {
        self.steps.insert((call.id, EventKind::RequestSent));
        self.remove_handling(call);
    }

    /// The call does not reach its handler, which sends nothing; its caller gets no answer.
    fn remove_handling(&mut self, call: &'a Call) {
        if !self.calls.insert(call.id) {
            return;
        }
        self.steps.insert((call.id, EventKind::RequestReceived));
        let began = call.server.as_ref().map_or(0, |span| span.request.clock);
        self.remove_sent(Handler::Of(call), call, began);
        self.remove_answer(call);
    }

    /// The callee does not answer.
    fn remove_answer(&mut self, call: &'a Call) {
        for event in [EventKind::ResponseSent, EventKind::ResponseReceived] {
            self.steps.insert((call.id, event));
        }
        self.answer_missing(call);
    }

    /// The answer does not reach the handler that waits for it: what it sent afterwards is not sent.
    fn answer_missing(&mut self, call: &'a Call) {
        if !self.answers.insert(call.id) {
            return;
        }
        let Some(came) = call.client.as_ref().or(call.server.as_ref()).and_then(|span| span.response) else {
            return;
        };
        let since = came.clock;
        match (call.parent.and_then(|parent| self.trace.call(parent)), &call.caller) {
            (Some(parent), _) => self.stop(parent, call, since),
            (None, Some(service)) => {
                let handlers = self.trace.calls.iter().filter(|handler| handler.api.service == *service);
                handlers.for_each(|handler| self.stop(handler, call, since));
                self.remove_sent(Handler::At(service), call, since);
            }
            (None, None) => self.remove_later_entries(call),
        }
    }

    /// The handler of `call`, which waits for `awaited`, sends nothing after `since`, its own answer included. A handler
    /// without sidecar has no clock: everything of it may be later.
    fn stop(&mut self, call: &'a Call, awaited: &Call, since: u64) {
        let since = if call.server.is_some() { since } else { 0 };
        self.remove_sent(Handler::Of(call), awaited, since);
        let answered = call.server.as_ref().or(call.client.as_ref()).and_then(|span| span.response);
        if answered.is_none_or(|at| at.clock > since) {
            self.remove_answer(call);
        }
    }

    fn remove_sent(&mut self, handler: Handler<'_>, except: &Call, since: u64) {
        for call in &self.trace.calls {
            let sent = call.client.as_ref().or(call.server.as_ref()).map_or(0, |span| span.request.clock);
            if sent > since && call.id != except.id && handler.may_send(self.trace, call) {
                self.remove_call(call);
            }
        }
    }

    /// A client that sends several requests as one execution sends the next after the answer to the last. It carries no
    /// clock, so only what the same sidecar saw before is known to have been sent before.
    fn remove_later_entries(&mut self, entry: &'a Call) {
        let first_seen = |call: &Call| call.server.as_ref().map(|span| (span.observer, span.request.clock));
        let Some((observer, clock)) = first_seen(entry) else { return };
        for call in &self.trace.calls {
            let entry_too = call.client.is_none() && call.caller.is_none() && call.parent.is_none();
            let before = first_seen(call).is_some_and(|(o, c)| o == observer && c <= clock);
            if entry_too && !before {
                self.remove_call(call);
            }
        }
    }
}

/// Who may have sent a call.
#[derive(Clone, Copy)]
enum Handler<'a> {
    /// The handler of this call.
    Of(&'a Call),
    /// Some handler of this service.
    At(&'a Service),
}

impl Handler<'_> {
    fn may_send(self, trace: &Trace, call: &Call) -> bool {
        let parent = call.parent.filter(|parent| trace.call(*parent).is_some());
        match (self, parent) {
            (Handler::Of(handler), Some(parent)) => parent == handler.id,
            (Handler::Of(handler), None) => call.caller.as_ref() == Some(&handler.api.service),
            (Handler::At(service), _) => call.caller.as_ref() == Some(service),
        }
    }
}
