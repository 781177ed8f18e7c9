//! Spans of a checkout: the entry at `checkout`, which calls `payment`.

use aftershock_core::event::Outcome;
use aftershock_core::evidence::Gaps;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan, Ending, Injection, Instant, Pass};

pub(crate) const CHECKOUT: ObserverId = ObserverId(1);
pub(crate) const PAYMENT: ObserverId = ObserverId(2);

fn span(side: Side, token: Token, execution: u64, call: u64) -> CallSpan {
    CallSpan {
        side,
        service: "checkout".parse().unwrap(),
        observer: CHECKOUT,
        execution: ExecutionId(execution),
        token,
        call: CallId(call),
        parent: None,
        caller: None,
        api: "checkout POST /checkout".parse().unwrap(),
        association: Association::Exact,
        trace_id: 7,
        request: Instant { clock: 1, unix_nanos: 1_000_000 },
        response: Some(Instant { clock: 8, unix_nanos: 9_000_000 }),
        ended_unix_nanos: 9_100_000,
        outcome: Some(Outcome::Ok),
        http_status: Some(200),
        grpc_status: None,
        made: false,
        ending: Ending::Complete,
        evidence_went: false,
        evidence_came: false,
        gaps: Gaps::default(),
        messages: None,
        passes: vec![],
        injection: None,
    }
}

pub(crate) fn entry(token: Token, execution: u64) -> CallSpan {
    span(Side::Callee, token, execution, execution * 10)
}

/// The charge, as `checkout` saw it.
pub(crate) fn charge_client(token: Token, execution: u64) -> CallSpan {
    CallSpan {
        parent: Some(CallId(execution * 10)),
        caller: Some("checkout".parse().unwrap()),
        api: "payment shop.Payment/Charge".parse().unwrap(),
        request: Instant { clock: 2, unix_nanos: 2_000_000 },
        response: Some(Instant { clock: 5, unix_nanos: 7_000_000 }),
        ended_unix_nanos: 7_000_000,
        grpc_status: Some(0),
        evidence_went: true,
        evidence_came: true,
        messages: Some(1),
        ..span(Side::Caller, token, execution, execution * 10 + 1)
    }
}

/// The charge, as `payment` saw it.
pub(crate) fn charge_server(token: Token, execution: u64) -> CallSpan {
    CallSpan {
        side: Side::Callee,
        service: "payment".parse().unwrap(),
        observer: PAYMENT,
        parent: None,
        request: Instant { clock: 3, unix_nanos: 3_000_000 },
        response: Some(Instant { clock: 4, unix_nanos: 6_000_000 }),
        ended_unix_nanos: 6_000_000,
        ..charge_client(token, execution)
    }
}

/// The charge whose response was dropped by rule 0, as `checkout` saw it.
pub(crate) fn dropped_charge(token: Token, execution: u64) -> CallSpan {
    CallSpan {
        response: None,
        outcome: None,
        ending: Ending::Faulted,
        passes: vec![Pass { rule: 0, k: Some(1), clock: 4, passed_by: None }],
        injection: Some(Injection { rule: 0, k: 1, decided: 4, held: false, fault: "drop".to_owned() }),
        ..charge_client(token, execution)
    }
}
