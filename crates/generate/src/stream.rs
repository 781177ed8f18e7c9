//! Faults inside a response (`at:`, design §3.5), of which traces know little: a mark is no boundary event.
//!
//! * A response is a pass of `message: n` if its recorded count says that the n-th message began. Bytes are not counted on
//!   record: every response is taken to be long enough, and a note says so.
//! * Visible counts at a mark are a lower bound: what the acting sidecar holds at the response head. For HTTP the head is
//!   the response event. For gRPC it is no event of the record, and evidence comes with the trailers only: what is sure
//!   is what was known when the request left. At *earlier* passes, where an atom must be false, what was known at the
//!   outcome is the upper bound.
//! * Marks do not follow the order of outcomes, so the target's own event does not count them: with a numbered `k` the
//!   number alone tells passes apart. Passes are numbered by their outcomes' order; where the calls overlap the traces
//!   cannot tell the order of their heads, and a note says so.

use aftershock_core::event::OutcomeFilter;
use aftershock_core::evidence::Evidence;
use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Fault, Phase, StreamPoint, Target};
use aftershock_core::span::CallSpan;
use aftershock_core::trace::{Step, Trace};

use crate::error::GenerateError;
use crate::site::{Site, SitePass};
use crate::visible::Replayed;

/// Whether a fault at `target` can be made at the place in the response that the target says, or leaves out.
///
/// # Errors
/// When the traces show streams and the target does not say where, and when `at` does not go with the rest.
pub(crate) fn check(target: &Target, fault: &Fault, site: &Site, traces: &[Trace]) -> Result<(), GenerateError> {
    let Some(at) = target.at else {
        let stream = traces.iter().find_map(|trace| longest(target, site, trace).map(|n| (trace.execution, n)));
        return match stream {
            Some((trace, messages)) => Err(GenerateError::NeedsAt { target: target.api.to_string(), trace, messages }),
            None => Ok(()),
        };
    };
    let refuse = |needs| Err(GenerateError::At { at, needs });
    let all_grpc = site.apis.iter().all(|api| api.operation.is_grpc());
    let answers = matches!(fault, Fault::Abort | Fault::Error(_));
    match at {
        _ if target.phase != Phase::Response => refuse("the phase `response`"),
        _ if target.post_effect || target.outcome != OutcomeFilter::Any => {
            refuse("the outcome `any`: none is known there yet")
        }
        StreamPoint::Message(_) if !all_grpc => refuse("a gRPC operation: only there messages are told apart"),
        StreamPoint::Bytes(_) if !all_grpc && answers => {
            refuse("one of `delay`, `drop` and `reset`: an HTTP response whose head has gone cannot be another one")
        }
        _ => Ok(()),
    }
}

/// The most messages of a response of the target, if more than one.
fn longest(target: &Target, site: &Site, trace: &Trace) -> Option<u64> {
    if target.phase != Phase::Response {
        return None;
    }
    let passes = site.passes(trace);
    let messages = passes.iter().flat_map(|pass| pass.step.call.spans().filter_map(|span| span.messages));
    messages.max().filter(|n| *n > 1)
}

/// Whether the response of `span` is long enough, as far as the record tells.
pub(crate) fn reaches(at: Option<StreamPoint>, span: &CallSpan) -> bool {
    match at {
        Some(StreamPoint::Message(n)) => span.messages.is_some_and(|begun| begun >= u64::from(n)),
        None | Some(StreamPoint::Head | StreamPoint::Bytes(_)) => true,
    }
}

/// What the acting sidecar is sure to know when it decides on `step`.
pub(crate) fn sure(site: &Site, replayed: &Replayed<'_>, step: &Step<'_>) -> Evidence {
    if site.at.is_none() || !step.call.api.operation.is_grpc() {
        return replayed.known_before(step);
    }
    let request = Phase::Request.event(site.side);
    let sent = replayed.steps().iter().find(|seen| seen.step.call.id == step.call.id && seen.step.event == request);
    sent.map_or_else(|| replayed.known_before(step), |seen| seen.after.clone())
}

/// The traces in which pass `number` overlaps another one at the same sidecar, so that their heads' order is not known.
pub(crate) fn unordered(site: &Site, number: u32, traces: &[&Trace]) -> Vec<ExecutionId> {
    if site.at.is_none() {
        return Vec::new();
    }
    let interval = |pass: &SitePass<'_>| {
        let sent = pass.step.call.side(site.side).map_or(0, |span| span.request.clock);
        // The head of an HTTP response is its event.
        let from = if pass.step.call.api.operation.is_grpc() { sent } else { pass.step.at.clock };
        (from, pass.step.at.clock)
    };
    let overlaps = |trace: &&&Trace| {
        let passes = site.passes(trace);
        passes.iter().find(|pass| pass.number == number).is_some_and(|meant| {
            let (from, to) = interval(meant);
            passes.iter().any(|other| {
                let (begun, ended) = interval(other);
                other.number != number && other.step.observer == meant.step.observer && begun <= to && from <= ended
            })
        })
    };
    traces.iter().filter(overlaps).map(|trace| trace.execution).collect()
}
