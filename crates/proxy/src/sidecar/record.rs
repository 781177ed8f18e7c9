//! The span of a call (design §3.11).

use aftershock_core::evidence::Gaps;
use aftershock_core::id::{ExecutionId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::span::{CallSpan, Ending, Instant};

use super::call::Call;
use crate::exchange::Closed;

/// What the sidecar adds to what the call knows of itself.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    pub(crate) service: &'a Service,
    pub(crate) observer: ObserverId,
    pub(crate) gaps: Gaps,
    pub(crate) unix_nanos: u64,
}

/// The span of `call`, which is over and was to be recorded.
pub(crate) fn span(call: Box<Call>, how: Closed, recorder: Recorder<'_>) -> CallSpan {
    let token = call.token();
    CallSpan {
        side: call.side,
        service: recorder.service.clone(),
        observer: recorder.observer,
        execution: call.key.map_or(ExecutionId(0), |key| key.execution),
        token,
        call: call.id,
        parent: call.parent,
        caller: call.caller,
        api: call.api.expect("what is recorded has been named"),
        association: call.association,
        trace_id: call.trace_id,
        request: call.request.unwrap_or(Instant { clock: 0, unix_nanos: recorder.unix_nanos }),
        response: call.response,
        ended_unix_nanos: recorder.unix_nanos,
        outcome: call.response.and(call.outcome),
        http_status: call.http_status,
        grpc_status: call.grpc_status,
        made: call.made,
        ending: match how {
            Closed::Complete => Ending::Complete,
            Closed::ByApplication => Ending::ApplicationGone,
            Closed::ByUpstream => Ending::UpstreamFailed,
            Closed::ByFault => Ending::Faulted,
        },
        evidence_went: call.evidence_went,
        evidence_came: call.evidence_came,
        gaps: recorder.gaps,
        messages: call.messages,
        passes: call.passes,
        injection: call.injection,
    }
}
