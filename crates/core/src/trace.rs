//! One execution, assembled from the spans of all sidecars.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::event::{EventKind, Occurrence, Outcome};
use crate::id::{CallId, ExecutionId, ObserverId, Token};
use crate::name::{Api, Service};
use crate::plan::Side;
use crate::span::{CallSpan, Instant};

/// One call, from one or both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its id.
    pub id: CallId,
    /// The call whose handler sent it.
    pub parent: Option<CallId>,
    /// What was called.
    pub api: Api,
    /// The calling service, where known.
    pub caller: Option<Service>,
    /// What the caller's sidecar saw.
    pub client: Option<CallSpan>,
    /// What the callee's sidecar saw.
    pub server: Option<CallSpan>,
}

impl Call {
    fn of(id: CallId, client: Option<CallSpan>, server: Option<CallSpan>) -> Option<Call> {
        let api = server.as_ref().or(client.as_ref())?.api.clone();
        let sides = || client.iter().chain(&server);
        let parent = sides().find_map(|span| span.parent);
        let caller = sides().find_map(|span| match span.side {
            Side::Caller => Some(span.service.clone()),
            Side::Callee => span.caller.clone(),
        });
        Some(Call { id, parent, api, caller, client, server })
    }

    /// The span of one side.
    pub fn side(&self, side: Side) -> Option<&CallSpan> {
        match side {
            Side::Caller => self.client.as_ref(),
            Side::Callee => self.server.as_ref(),
        }
    }

    /// The spans that there are, the caller's first.
    pub fn spans(&self) -> impl Iterator<Item = &CallSpan> {
        self.client.iter().chain(&self.server)
    }
}

/// A boundary event at its place in the execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// The call.
    pub call: &'a Call,
    /// Which instant of it.
    pub event: EventKind,
    /// On both clocks.
    pub at: Instant,
    /// Whose sidecar observed it.
    pub observer: ObserverId,
    /// For a response event.
    pub outcome: Option<Outcome>,
}

impl<'a> Step<'a> {
    /// As events are matched against it.
    pub fn occurrence(&self) -> Occurrence<'a> {
        Occurrence {
            event: self.event,
            api: &self.call.api,
            caller: self.call.caller.as_ref(),
            outcome: self.outcome,
        }
    }
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Which execution.
    pub execution: ExecutionId,
    /// Under which token.
    pub token: Token,
    /// Its calls, by the clock of their first event.
    pub calls: Vec<Call>,
}

impl Trace {
    /// Assemble the executions found in `spans`; spans without an execution are left out. The order of `spans` does not
    /// matter: of two spans of one side of one call (one observation exported twice) the one with the smaller instants
    /// is kept, and where the two sides of a call disagree the caller's sidecar is believed about parent and caller, the
    /// callee's about the Api, whose templates are its own.
    pub fn assemble(spans: impl IntoIterator<Item = CallSpan>) -> Vec<Trace> {
        type Sides = (Option<CallSpan>, Option<CallSpan>);
        let mut executions: BTreeMap<(Token, ExecutionId), BTreeMap<CallId, Sides>> = BTreeMap::new();
        for span in spans {
            if span.execution.is_zero() {
                continue;
            }
            let (client, server) =
                executions.entry((span.token, span.execution)).or_default().entry(span.call).or_default();
            let slot = match span.side {
                Side::Caller => client,
                Side::Callee => server,
            };
            let instants = |span: &CallSpan| (span.observer, span.request, span.response, span.ended_unix_nanos);
            if slot.as_ref().is_none_or(|kept| instants(&span) < instants(kept)) {
                *slot = Some(span);
            }
        }
        executions
            .into_iter()
            .map(|((token, execution), calls)| {
                let mut calls: Vec<Call> =
                    calls.into_iter().filter_map(|(id, (client, server))| Call::of(id, client, server)).collect();
                calls.sort_by_key(|call| (call.spans().map(|span| span.request.clock).min(), call.id));
                Trace { execution, token, calls }
            })
            .collect()
    }

    /// Every boundary event, in the order of the execution's clock (ties: by observer), which agrees with causality.
    pub fn steps(&self) -> Vec<Step<'_>> {
        let mut steps: Vec<Step<'_>> = self
            .calls
            .iter()
            .flat_map(|call| {
                call.spans().flat_map(move |span| {
                    span.events().map(move |(event, at, outcome)| Step {
                        call,
                        event,
                        at,
                        observer: span.observer,
                        outcome,
                    })
                })
            })
            .collect();
        steps.sort_by_key(|step| (step.at.clock, step.observer, step.call.id, step.event));
        steps
    }

    /// The call with this id.
    pub fn call(&self, id: CallId) -> Option<&Call> {
        self.calls.iter().find(|call| call.id == id)
    }

    /// The calls that `parent`'s handler sent, in order; the roots for `None`.
    pub fn children(&self, parent: Option<CallId>) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.parent == parent)
    }

    /// Calls without a parent in this trace: the entry, and calls whose parent is unknown or lost.
    pub fn roots(&self) -> impl Iterator<Item = &Call> {
        let known: BTreeSet<CallId> = self.calls.iter().map(|call| call.id).collect();
        self.calls.iter().filter(move |call| call.parent.is_none_or(|parent| !known.contains(&parent)))
    }

    /// Every service that recorded or was called.
    pub fn services(&self) -> BTreeSet<&Service> {
        self.calls.iter().flat_map(|call| std::iter::once(&call.api.service).chain(&call.caller)).collect()
    }
}
