//! Short ways to say calls and spans in unit tests.

use aftershock_core::event::Outcome;
use aftershock_core::evidence::Gaps;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan, Ending, Instant};
use aftershock_core::trace::Trace;

pub(crate) fn service(name: &str) -> Service {
    name.parse().unwrap()
}

/// A completed gRPC call of execution 1 under token 1. Clocks and times follow the call's number.
pub(crate) fn span(side: Side, call: u64, parent: Option<u64>, api: &str) -> CallSpan {
    let api: Api = api.parse().unwrap();
    let observer = match side {
        Side::Caller => ObserverId(0x1000),
        Side::Callee => ObserverId(0x2000),
    };
    let inner = u64::from(side == Side::Callee);
    CallSpan {
        side,
        service: api.service.clone(),
        observer,
        execution: ExecutionId(1),
        token: Token(1),
        call: CallId(call),
        parent: parent.map(CallId),
        caller: None,
        api,
        association: Association::Exact,
        trace_id: 1,
        request: Instant { clock: call * 100 + inner, unix_nanos: call * 1_000 },
        response: Some(Instant { clock: call * 100 + 90 - inner, unix_nanos: call * 1_000 + 900 }),
        ended_unix_nanos: call * 1_000 + 950,
        outcome: Some(Outcome::Ok),
        http_status: Some(200),
        grpc_status: Some(0),
        made: false,
        ending: Ending::Complete,
        evidence_went: true,
        evidence_came: true,
        gaps: Gaps::default(),
        messages: Some(1),
        passes: vec![],
        injection: None,
    }
}

/// Both sides of a call from `caller`.
pub(crate) fn call(call: u64, parent: Option<u64>, caller: &str, api: &str) -> [CallSpan; 2] {
    let client =
        CallSpan { service: service(caller), caller: Some(service(caller)), ..span(Side::Caller, call, parent, api) };
    let server = CallSpan { caller: Some(service(caller)), ..span(Side::Callee, call, None, api) };
    [client, server]
}

/// An entry, which only the callee's sidecar sees.
pub(crate) fn entry(call: u64, api: &str) -> CallSpan {
    CallSpan { evidence_came: false, ..span(Side::Callee, call, None, api) }
}

/// A checkout: the entry, a quote, a charge.
pub(crate) fn checkout() -> Vec<Trace> {
    let mut spans = vec![entry(1, "checkout POST /checkout")];
    spans.extend(call(2, Some(1), "checkout", "shipping shop.Shipping/Quote"));
    spans.extend(call(3, Some(1), "checkout", "payment shop.Payment/Charge"));
    Trace::assemble(spans)
}
