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
    /// Assemble the executions found in `spans`; spans without an execution are left out. Two spans of one side of one
    /// call are one observation exported twice: the first is kept.
    pub fn assemble(spans: impl IntoIterator<Item = CallSpan>) -> Vec<Trace> {
        let mut executions: BTreeMap<(Token, ExecutionId), BTreeMap<CallId, Call>> = BTreeMap::new();
        for span in spans {
            if span.execution.is_zero() {
                continue;
            }
            let calls = executions.entry((span.token, span.execution)).or_default();
            let call = calls.entry(span.call).or_insert_with(|| Call {
                id: span.call,
                parent: span.parent,
                api: span.api.clone(),
                caller: span.caller.clone(),
                client: None,
                server: None,
            });
            call.parent = call.parent.or(span.parent);
            call.caller = call.caller.take().or_else(|| span.caller.clone());
            let slot = match span.side {
                Side::Caller => &mut call.client,
                Side::Callee => {
                    // The callee's sidecar knows its own templates: its name of the operation counts.
                    call.api = span.api.clone();
                    &mut call.server
                }
            };
            slot.get_or_insert(span);
        }
        executions
            .into_iter()
            .map(|((token, execution), calls)| {
                let mut calls: Vec<Call> = calls.into_values().collect();
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
