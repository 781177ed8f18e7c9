//! Several sidecars in one process, without sockets: messages are lists of field lines, passed from hand to hand.

use aftershock_core::evidence::Gaps;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::plan::Side;
use aftershock_core::span::{Association, CallSpan, Ending, Instant};

/// A span of a round, for whoever only moves spans.
pub(crate) fn any_span(token: Token) -> CallSpan {
    CallSpan {
        side: Side::Caller,
        service: "checkout".parse().unwrap(),
        observer: ObserverId(1),
        execution: ExecutionId(2),
        token,
        call: CallId(3),
        parent: None,
        caller: None,
        api: "payment shop.Payment/Charge".parse().unwrap(),
        association: Association::Exact,
        trace_id: 0,
        request: Instant { clock: 1, unix_nanos: 0 },
        response: None,
        ended_unix_nanos: 0,
        outcome: None,
        http_status: None,
        grpc_status: None,
        made: false,
        ending: Ending::Complete,
        evidence_went: false,
        evidence_came: false,
        gaps: Gaps::default(),
        messages: None,
        passes: Vec::new(),
        injection: None,
    }
}
