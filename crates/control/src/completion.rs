//! Whether the executions of a round are complete (design §3.11): what is missing, once every sidecar was asked.
//!
//! A span is exported when its exchange is over, so an execution whose spans are all here is over. A span is missing
//! where another one proves that it must exist: the side of a call that its other side talked to, and the call above.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::id::{CallId, ExecutionId};
use aftershock_core::name::Service;
use aftershock_core::plan::{Fault, Phase, Rule};
use aftershock_core::span::{Association, CallSpan, Ending};
use aftershock_core::trace::{Call, Trace};
use aftershock_core::wire::OpenCall;

/// What completion is judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    /// The executions, from all spans that are in.
    pub(crate) traces: &'a [Trace],
    /// Calls that are still open, with the service whose sidecar says so.
    pub(crate) open: &'a [(Service, OpenCall)],
    /// Services whose sidecars were armed.
    pub(crate) services: &'a BTreeSet<Service>,
    /// What was armed.
    pub(crate) rules: &'a [Rule],
}

/// The executions that are not complete, and why.
pub(crate) fn incomplete(record: &Record<'_>) -> BTreeMap<ExecutionId, String> {
    let mut reasons: BTreeMap<ExecutionId, Vec<String>> = BTreeMap::new();
    for (service, call) in record.open {
        let text = format!("the call {} is still open at {service}", call.api);
        reasons.entry(call.execution).or_default().push(text);
    }
    let open: BTreeSet<(ExecutionId, CallId)> =
        record.open.iter().map(|(_, call)| (call.execution, call.call)).collect();
    for trace in record.traces {
        let known: BTreeSet<CallId> = trace.calls.iter().map(|call| call.id).collect();
        for call in &trace.calls {
            // Said already, with the better reason.
            if open.contains(&(trace.execution, call.id)) {
                continue;
            }
            let above = |parent: &CallId| !known.contains(parent) && !open.contains(&(trace.execution, *parent));
            let missing = record
                .missing_side(call)
                .or_else(|| call.parent.filter(above).and_then(|_| record.missing_parent(call)));
            if let Some(missing) = missing {
                reasons.entry(trace.execution).or_default().push(missing);
            }
        }
    }
    reasons
        .into_iter()
        .map(|(execution, mut reasons)| {
            reasons.sort();
            reasons.dedup();
            (execution, reasons.join("; "))
        })
        .collect()
}

impl Record<'_> {
    fn missing_side(&self, call: &Call) -> Option<String> {
        match (&call.client, &call.server) {
            (Some(client), None) if self.services.contains(&call.api.service) && self.arrived(client) => Some(format!(
                "the sidecar of {} has no record of {}, which {} called",
                call.api.service, call.api, client.service
            )),
            (None, Some(server)) if server.evidence_came => {
                let caller = server.caller.as_ref().filter(|caller| self.services.contains(*caller))?;
                Some(format!("the sidecar of {caller} has no record of its call {}", call.api))
            }
            _ => None,
        }
    }

    /// The call whose handler sent this one passed the same sidecar, which must have recorded it.
    fn missing_parent(&self, call: &Call) -> Option<String> {
        let client = call
            .client
            .as_ref()
            .filter(|client| self.services.contains(&client.service) && client.association != Association::Relayed)?;
        Some(format!("the sidecar of {} has no record of the call out of which it called {}", client.service, call.api))
    }

    /// Whether the request is known to have reached the callee, or at least to have left for it.
    fn arrived(&self, client: &CallSpan) -> bool {
        if client.evidence_came {
            return true;
        }
        let kept = client.injection.as_ref().is_some_and(|injection| {
            self.rules.iter().any(|rule| {
                rule.index == injection.rule
                    && rule.tfic.target.phase == Phase::Request
                    && !matches!(rule.tfic.fault, Fault::Delay(_) | Fault::Release)
            })
        });
        let refused = client.ending == Ending::UpstreamFailed && client.http_status.is_none();
        client.evidence_went && !kept && !refused
    }
}

#[cfg(test)]
mod tests {
    use aftershock_core::plan::{Plan, Side};
    use aftershock_core::span::Injection;
    use aftershock_core::wire::OpenState;

    use super::*;
    use crate::testing::{call, checkout, entry, service};

    fn judged(traces: &[Trace], open: &[(Service, OpenCall)], rules: &[Rule]) -> Vec<String> {
        let services = ["checkout", "shipping", "payment"].map(service).into();
        incomplete(&Record { traces, open, services: &services, rules }).into_values().collect()
    }

    fn without(side: Side, id: u64) -> Vec<Trace> {
        let spans = checkout().into_iter().flat_map(|trace| trace.calls).flat_map(|call| {
            call.spans().filter(|span| (span.side, span.call.0) != (side, id)).cloned().collect::<Vec<_>>()
        });
        Trace::assemble(spans)
    }

    #[test]
    fn an_execution_with_all_spans_is_complete() {
        assert_eq!(judged(&checkout(), &[], &[]), Vec::<String>::new());
    }

    #[test]
    fn each_missing_span_is_named() {
        for (side, id, reason) in [
            (
                Side::Callee,
                3,
                "the sidecar of payment has no record of payment shop.Payment/Charge, which checkout called",
            ),
            (Side::Caller, 3, "the sidecar of checkout has no record of its call payment shop.Payment/Charge"),
            (
                Side::Callee,
                1,
                "the sidecar of checkout has no record of the call out of which it called payment \
                 shop.Payment/Charge; the sidecar of checkout has no record of the call out of which it called \
                 shipping shop.Shipping/Quote",
            ),
        ] {
            assert_eq!(judged(&without(side, id), &[], &[]), [reason]);
        }
    }

    #[test]
    fn an_open_call_is_the_reason_even_for_an_execution_without_spans() {
        let open = OpenCall {
            side: Side::Callee,
            execution: ExecutionId(9),
            call: CallId(4),
            parent: None,
            api: "payment shop.Payment/Charge".parse().unwrap(),
            state: OpenState::Running,
        };
        let reasons = judged(&[], &[(service("payment"), open.clone())], &[]);
        assert_eq!(reasons, ["the call payment shop.Payment/Charge is still open at payment"]);
        let open = OpenCall { execution: ExecutionId(1), call: CallId(3), ..open };
        let reasons = judged(&without(Side::Callee, 3), &[(service("payment"), open)], &[]);
        assert_eq!(reasons, ["the call payment shop.Payment/Charge is still open at payment"], "not said twice");
    }

    #[test]
    fn a_callee_without_sidecar_leaves_no_span() {
        let spans = std::iter::once(entry(1, "checkout POST /checkout")).chain(
            call(2, Some(1), "checkout", "bank POST /wire").into_iter().filter(|span| span.side == Side::Caller),
        );
        assert_eq!(judged(&Trace::assemble(spans), &[], &[]), Vec::<String>::new());
    }

    #[test]
    fn a_request_that_a_fault_kept_or_the_callee_refused_leaves_no_span() {
        let traces = without(Side::Callee, 3);
        let with = |change: &dyn Fn(&mut CallSpan)| {
            let mut traces = traces.clone();
            let call = traces[0].calls.iter_mut().find(|call| call.id == CallId(3)).unwrap();
            let client = call.client.as_mut().unwrap();
            client.evidence_came = false;
            change(client);
            traces
        };
        assert_eq!(judged(&with(&|_| {}), &[], &[]).len(), 1, "a lost response still has a callee");
        let refused = with(&|client| {
            client.ending = Ending::UpstreamFailed;
            client.http_status = None;
        });
        assert_eq!(judged(&refused, &[], &[]), Vec::<String>::new());

        let plan: Plan = serde_json::from_value(serde_json::json!({"faults": [
            {"target": {"api": "payment shop.Payment/Charge", "k": 1, "phase": "request"}, "fault": "drop"}]}))
        .unwrap();
        let rule = Rule {
            index: 0,
            service: service("checkout"),
            side: Side::Caller,
            apis: ["payment shop.Payment/Charge".parse().unwrap()].into(),
            tfic: plan.faults[0].clone(),
            arbitrated: false,
        };
        let dropped = with(&|client| {
            client.injection = Some(Injection { rule: 0, k: 1, decided: 5, held: false, fault: "drop".to_owned() });
        });
        assert_eq!(judged(&dropped, &[], std::slice::from_ref(&rule)), Vec::<String>::new());
        let mut lost = rule;
        lost.tfic.target.phase = Phase::Response;
        assert_eq!(judged(&dropped, &[], &[lost]).len(), 1, "a dropped response had a request that arrived");
    }
}
