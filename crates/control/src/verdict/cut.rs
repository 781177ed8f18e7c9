//! What became of the channels that a plan cuts.

use aftershock_core::plan::Channel;
use aftershock_core::span::{CallSpan, Ending};
use aftershock_core::wire::CutConnections;

use super::window::times;
use super::{Failure, RoundFacts, in_execution, record_reasons};
use crate::api::{CutVerdict, Verdict};

/// One verdict for each cut of the plan, in its order.
pub fn judge(facts: &RoundFacts<'_>) -> Vec<CutVerdict> {
    facts.plan.cuts.iter().map(|channel| judge_cut(facts, channel)).collect()
}

fn judge_cut(facts: &RoundFacts<'_>, channel: &Channel) -> CutVerdict {
    let on_it = |span: &&CallSpan| span.service == channel.caller && span.api.service == channel.callee;
    let met = facts.cut.get(channel).copied().unwrap_or_default();
    let (mut made, mut failed) = (0, 0);
    let mut seen = vec![format!("{channel}: {} connections were broken, {} refused", met.broken, met.refused)];
    for trace in facts.traces {
        let calls: Vec<&CallSpan> = trace.calls.iter().filter_map(|call| call.client.as_ref()).filter(on_it).collect();
        let here = calls.iter().filter(|span| has_failed(span)).count() as u64;
        if here > 0 {
            seen.push(in_execution(trace.execution, &format!("a call failed on it {}", times(here))));
        }
        made += calls.len() as u64;
        failed += here;
    }
    let doubts = record_reasons(facts);
    let (verdict, reasons) = if !facts.failures.is_empty() {
        (Verdict::Inconclusive, facts.failures.iter().map(Failure::to_string).collect())
    } else if !facts.armed.values().any(|service| *service == channel.caller) {
        (Verdict::Inconclusive, vec![format!("no sidecar was armed to cut {channel}")])
    } else if !doubts.is_empty() {
        (Verdict::Incomplete, doubts)
    } else if failed > 0 || met != CutConnections::default() {
        (Verdict::Injected, seen)
    } else if made > 0 {
        (Verdict::Missed, vec![format!("{channel} was used {}, and never failed: it was healed by then", times(made))])
    } else {
        (Verdict::Unreached, vec![format!("{channel}: there was no connection and no call")])
    };
    CutVerdict { channel: channel.clone(), verdict, reasons, failed, connections: met }
}

/// Whether its connection failed before an answer began.
fn has_failed(span: &CallSpan) -> bool {
    span.ending == Ending::UpstreamFailed && span.http_status.is_none()
}
