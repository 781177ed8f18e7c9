//! Whether the record of an execution is whole: every span is here, and all evidence that went also came
//! (design §3.7, §3.11).

use aftershock_core::plan::{Fault, Phase, Rule};
use aftershock_core::span::{CallSpan, Ending, Injection};
use aftershock_core::trace::{Call, Trace};

/// What is missing from an execution, as sentences.
#[derive(Debug, Clone, Default)]
pub(super) struct Holes {
    /// Spans that must exist and are not here.
    pub(super) spans: Vec<String>,
    /// Evidence that left with a message and did not arrive with it.
    pub(super) evidence: Vec<String>,
    /// Gaps that sidecars noticed.
    pub(super) gaps: Vec<String>,
}

impl Holes {
    pub(super) fn of(trace: &Trace, rules: &[Rule]) -> Self {
        let mut holes = Holes::default();
        for call in &trace.calls {
            match (&call.client, &call.server) {
                (Some(client), Some(server)) => holes.between(call, client, server),
                (Some(client), None) if client.evidence_went && !never_arrived(client, rules) => {
                    if lost_header(trace, call) {
                        holes
                            .evidence
                            .push(format!("the request of {} at {} lost its header", call.api, client.service));
                    } else {
                        holes.spans.push(format!(
                            "the span of {} at {} is missing, to which {} sent a request",
                            call.api, call.api.service, client.service
                        ));
                    }
                }
                // Only a sidecar can have told the callee who called.
                (None, Some(server)) => {
                    if let Some(caller) = &server.caller {
                        holes.spans.push(format!("the span of {} at its caller {caller} is missing", call.api));
                    }
                }
                _ => {}
            }
            for span in call.spans() {
                if span.gaps.is_any() {
                    holes.gap(format!("anything may be missing at {}: more gaps than are kept apart", span.service));
                }
                for gap in span.gaps.named() {
                    holes.gap(gap.to_string());
                }
            }
        }
        holes
    }

    fn gap(&mut self, sentence: String) {
        if !self.gaps.contains(&sentence) {
            self.gaps.push(sentence);
        }
    }

    fn between(&mut self, call: &Call, client: &CallSpan, server: &CallSpan) {
        if client.evidence_went && !server.evidence_came {
            self.evidence
                .push(format!("evidence went with the request of {} and did not come to {}", call.api, server.service));
        }
        // Who has left does not learn what came too late: nothing that it did afterwards rests on it.
        let left_first = client.response.is_none() && client.ending == Ending::ApplicationGone;
        if server.evidence_went && !client.evidence_came && !left_first {
            self.evidence.push(format!(
                "evidence went with the response of {} and did not come to {}",
                call.api, client.service
            ));
        }
    }
}

/// The request cannot have reached the callee's sidecar: a fault kept it, or the upstream failed before it answered.
fn never_arrived(client: &CallSpan, rules: &[Rule]) -> bool {
    let kept = |injection: &Injection| {
        rules.iter().any(|rule| {
            rule.index == injection.rule
                && rule.tfic.target.phase == Phase::Request
                && !matches!(rule.tfic.fault, Fault::Delay(_) | Fault::Release)
        })
    };
    client.injection.as_ref().is_some_and(kept)
        || (client.ending == Ending::UpstreamFailed && client.http_status.is_none())
}

/// The callee took the request for one out of a hop without sidecar: its header was lost, its member was not.
fn lost_header(trace: &Trace, call: &Call) -> bool {
    trace.calls.iter().any(|other| other.parent == Some(call.id) && other.caller.is_none() && other.api == call.api)
}
