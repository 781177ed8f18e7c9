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
        Occurrence { event: self.event, api: &self.call.api, caller: self.call.caller.as_ref(), outcome: self.outcome }
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::event::Outcome;
    use crate::evidence::Gaps;
    use crate::span::{Association, Ending};

    /// The spans of one call, the caller's first.
    pub(crate) struct Sides(pub(crate) Vec<CallSpan>);

    fn service(name: &str) -> Service {
        name.parse().unwrap()
    }

    /// A call of `t.X/Do` of service `to` by `from`; without `to`, an entry of `from` itself. The clocks are those of
    /// request-sent, request-received, response-sent, response-received.
    pub(crate) fn call(id: u64, parent: Option<u64>, from: &str, to: Option<&str>, clocks: [u64; 4]) -> Sides {
        let callee = to.unwrap_or(from);
        let span = |side: Side, at: &str, request: usize, response: usize| CallSpan {
            side,
            service: service(at),
            observer: ObserverId(u64::from(at.as_bytes()[0])),
            execution: ExecutionId(1),
            token: Token(1),
            call: CallId(id),
            parent: parent.map(CallId).filter(|_| side == Side::Caller),
            caller: to.map(|_| service(from)),
            api: format!("{callee} t.{}/Do", callee.to_uppercase()).parse().unwrap(),
            association: Association::Exact,
            trace_id: 0,
            request: Instant { clock: clocks[request], unix_nanos: clocks[request] },
            response: Some(Instant { clock: clocks[response], unix_nanos: clocks[response] }),
            ended_unix_nanos: 0,
            outcome: Some(Outcome::Ok),
            http_status: None,
            grpc_status: None,
            made: false,
            ending: Ending::Complete,
            evidence_went: true,
            evidence_came: to.is_some(),
            gaps: Gaps::default(),
            messages: None,
            passes: Vec::new(),
            injection: None,
        };
        let client = to.map(|_| span(Side::Caller, from, 0, 3));
        Sides(client.into_iter().chain([span(Side::Callee, callee, 1, 2)]).collect())
    }

    fn trace(sides: Vec<Sides>) -> Trace {
        let mut traces = Trace::assemble(sides.into_iter().flat_map(|sides| sides.0));
        assert_eq!(traces.len(), 1);
        traces.remove(0)
    }

    fn ids<'a>(calls: impl Iterator<Item = &'a Call>) -> Vec<u64> {
        calls.map(|call| call.id.0).collect()
    }

    #[test]
    fn the_two_sides_of_a_call_become_one_and_know_what_either_knows() {
        let trace = trace(vec![
            call(3, Some(1), "a", Some("c"), [8, 9, 10, 11]),
            call(1, None, "a", None, [0, 1, 12, 0]),
            call(2, Some(1), "a", Some("b"), [2, 3, 4, 5]),
        ]);
        assert_eq!(ids(trace.calls.iter()), [1, 2, 3]);
        assert_eq!((ids(trace.roots()), ids(trace.children(Some(CallId(1))))), (vec![1], vec![2, 3]));
        assert!(trace.calls[1..].iter().all(|call| call.client.is_some() && call.server.is_some()));
        assert_eq!(
            trace.steps().iter().map(|step| step.at.clock).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
        );
        assert_eq!(trace.services().into_iter().map(Service::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn a_call_whose_parent_is_lost_is_a_root() {
        let trace =
            trace(vec![call(2, Some(7), "a", Some("b"), [1, 2, 3, 4]), call(3, Some(2), "b", Some("c"), [5, 6, 7, 8])]);
        assert_eq!(ids(trace.roots()), [2]);
    }

    #[test]
    fn the_callee_names_the_operation_and_the_caller_names_itself() {
        let mut sides = call(2, Some(1), "a", Some("b"), [1, 2, 3, 4]);
        sides.0[0].api = "b GET /item/17".parse().unwrap();
        sides.0[0].caller = None;
        sides.0[1].api = "b GET /item/{id}".parse().unwrap();
        sides.0[1].caller = None;
        let trace = trace(vec![sides]);
        assert_eq!(
            (trace.calls[0].api.to_string().as_str(), trace.calls[0].caller.as_ref()),
            ("b GET /item/{id}", Some(&service("a")))
        );
    }

    #[test]
    fn spans_without_execution_are_no_trace_and_executions_are_kept_apart() {
        let mut spans = call(1, None, "a", None, [0, 1, 2, 0]).0;
        let mut other = call(1, None, "a", None, [0, 1, 2, 0]).0.remove(0);
        other.execution = ExecutionId(2);
        let mut none = other.clone();
        none.execution = ExecutionId(0);
        spans.extend([none, other]);
        let traces = Trace::assemble(spans);
        assert_eq!(traces.iter().map(|trace| trace.execution.0).collect::<Vec<_>>(), [1, 2]);
    }
}
