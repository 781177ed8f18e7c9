//! Which messages of an execution were passes of a target, and which of them a rule judged (design §2, §3.4).

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::id::{CallId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::plan::{Occurrence, Phase, Rule, Side, Tfic};
use aftershock_core::span::{Association, CallSpan, Ending, Injection, Pass, PassedBy};
use aftershock_core::trace::{Call, Trace};

use super::causal::After;

/// One fault of the plan, as it was armed.
#[derive(Debug, Clone)]
pub(super) struct Armed<'a> {
    /// Its position in the plan.
    pub(super) index: usize,
    /// The fault.
    pub(super) tfic: &'a Tfic,
    /// Its rules: one, or one for each service whose sidecar acts.
    pub(super) rules: Vec<&'a Rule>,
    /// The sidecars that acknowledged the rules.
    pub(super) sidecars: &'a BTreeMap<ObserverId, Service>,
    /// Every rule of the plan: what another fault did to a message tells whether there was one.
    pub(super) plan_rules: &'a [Rule],
}

/// A message that was a pass of the target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sighting<'a> {
    /// The call.
    pub(super) call: &'a Call,
    /// The side at which the fault acts.
    pub(super) span: &'a CallSpan,
    /// What the rule made of it; none if no rule judged it.
    pub(super) pass: Option<&'a Pass>,
    /// That the rule fired on it.
    pub(super) hit: Option<&'a Injection>,
    /// The clock there when it arrived, before it was counted.
    pub(super) at: u64,
}

/// A pass that no rule judged, and why that is so.
#[derive(Debug, Clone)]
pub(super) struct Unjudged<'a> {
    call: &'a Call,
    /// As a sentence.
    pub(super) reason: String,
    /// Nobody answered for it: where no fault fired that is a reason of `missed`, not a doubt.
    pub(super) unanswered: bool,
    known: Known,
}

/// What is known of the place of an unjudged pass in time.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// It was seen by this sidecar, when its clock was this, with this number if it gave one.
    Seen { observer: ObserverId, at: u64, k: Option<u32> },
    /// Only its callee saw it; it came out of the handler of this call.
    Beneath(Option<CallId>),
}

impl<'a> Armed<'a> {
    /// Whether a message of `span` is one that the target names, whatever the phase.
    pub(super) fn names(&self, call: &Call, span: &CallSpan) -> bool {
        self.rules.iter().any(|rule| {
            rule.side == span.side
                && rule.service == span.service
                && (rule.apis.contains(&span.api) || rule.apis.contains(&call.api))
                && match rule.side {
                    Side::Caller => true,
                    // The fault acts at the callee because the caller has no sidecar: such calls name no caller.
                    Side::Callee => span.caller.is_none() || span.caller == self.tfic.target.caller,
                }
        })
    }

    /// Whether the target's side of `call` lies with the caller's sidecar.
    fn acts_at_caller(&self) -> bool {
        self.rules.iter().any(|rule| rule.side == Side::Caller)
    }

    /// The rule's record about `span`.
    fn record<'s>(&self, span: &'s CallSpan) -> Option<&'s Pass> {
        span.passes.iter().find(|pass| pass.rule == self.index)
    }

    /// That this fault fired on `span`.
    pub(super) fn hit<'s>(&self, span: &'s CallSpan) -> Option<&'s Injection> {
        span.injection.as_ref().filter(|injection| injection.rule == self.index)
    }

    /// Whether the frame with the outcome came from the network: a response that a sidecar made takes no number, nor
    /// does an upstream that failed before that frame (design §3.4).
    fn answered(&self, span: &CallSpan) -> bool {
        let acted_on = |injection: &Injection| {
            let rule = self.plan_rules.iter().find(|rule| rule.index == injection.rule);
            rule.is_some_and(|rule| rule.tfic.target.phase == Phase::Response)
        };
        if span.injection.as_ref().is_some_and(acted_on) {
            return true;
        }
        let cut_short =
            span.api.operation.is_grpc() && span.grpc_status.is_none() && span.ending == Ending::UpstreamFailed;
        span.response.is_some() && !span.made && span.http_status.is_some() && !cut_short
    }

    fn is_pass(&self, call: &Call, span: &CallSpan) -> bool {
        self.names(call, span)
            // A call whose parent has ended is counted, but no target without leave.
            && span.association != Association::Detached
            && match self.tfic.target.phase {
                Phase::Request => true,
                Phase::Response => self.answered(span),
            }
    }

    /// The passes of an execution that a sidecar saw where the fault acts, in the order of the clock there.
    pub(super) fn sightings<'t>(&self, trace: &'t Trace) -> Vec<Sighting<'t>> {
        let mut seen: Vec<Sighting<'t>> = Vec::new();
        for call in &trace.calls {
            for span in call.spans() {
                let (pass, hit) = (self.record(span), self.hit(span));
                if pass.is_none() && hit.is_none() && !self.is_pass(call, span) {
                    continue;
                }
                let event = match self.tfic.target.phase {
                    Phase::Request => Some(span.request),
                    Phase::Response => span.response,
                };
                let at = pass
                    .map(|pass| pass.clock)
                    .or(hit.map(|hit| hit.decided))
                    .or(event.map(|at| at.clock.saturating_sub(1)))
                    .unwrap_or(span.request.clock);
                seen.push(Sighting { call, span, pass, hit, at });
            }
        }
        seen.sort_by_key(|sighting| (sighting.at, sighting.pass.and_then(|pass| pass.k), sighting.call.id));
        seen
    }

    /// The passes of an execution that went unjudged (design §3.7): at a late or unregistered instance, without an
    /// answer, with a blocked number, with an unknown guard, or recorded in a way that contradicts itself.
    pub(super) fn unjudged<'t>(&self, trace: &'t Trace) -> Vec<Unjudged<'t>> {
        let mut found = Vec::new();
        for sighting in self.sightings(trace) {
            if sighting.hit.is_some() {
                continue;
            }
            let place = self.place(sighting.span);
            let reason = match sighting.pass {
                None if self.sidecars.contains_key(&sighting.span.observer) => {
                    format!("no rule looked at {place}, although the instance was armed")
                }
                None => format!("no rule looked at {place}: the instance was not armed"),
                Some(pass) => match (&pass.passed_by, self.tfic.target.k) {
                    (Some(PassedBy::GuardUnknown(_)), _) => {
                        format!("at {} ({place}) it is not known whether the guard held, because of a gap", pass.name())
                    }
                    (Some(PassedBy::NumberBlocked), _) => {
                        format!("the number of {place} is not known, because of a gap")
                    }
                    (Some(PassedBy::Arbiter), _) => {
                        format!("{} ({place}) went on because the arbiter did not answer in time", pass.name())
                    }
                    (None, _) => format!("{} ({place}) is recorded as faulted, but nothing was injected", pass.name()),
                    (Some(PassedBy::Number), Occurrence::Number(k)) if pass.k == Some(k) => {
                        format!(
                            "{} ({place}) has the number of the target, but is recorded as having another",
                            pass.name()
                        )
                    }
                    _ => continue,
                },
            };
            let known = Known::Seen {
                observer: sighting.span.observer,
                at: sighting.at,
                k: sighting.pass.and_then(|pass| pass.k),
            };
            let unanswered = sighting.pass.is_some_and(|pass| pass.passed_by == Some(PassedBy::Arbiter));
            found.push(Unjudged { call: sighting.call, reason, unanswered, known });
        }
        if self.acts_at_caller() {
            found.extend(trace.calls.iter().filter_map(|call| self.unseen(trace, call)));
        }
        found
    }

    /// A call that the target names, known from its callee only: the caller's sidecar was not there, or its span is
    /// lost.
    fn unseen<'t>(&self, trace: &'t Trace, call: &'t Call) -> Option<Unjudged<'t>> {
        let server = call.server.as_ref().filter(|_| call.client.is_none())?;
        let rule = self.rules.iter().find(|rule| rule.apis.contains(&call.api))?;
        let parent = call.parent.and_then(|parent| trace.call(parent));
        let from_there = match (&server.caller, parent) {
            (Some(caller), _) => *caller == rule.service,
            // The header was lost under way: the caller's sidecar judged it under the call's own id.
            (None, Some(parent)) if parent.client.is_some() && parent.api == call.api => false,
            (None, Some(parent)) => parent.api.service == rule.service,
            (None, None) => false,
        };
        from_there.then(|| Unjudged {
            call,
            reason: format!(
                "no sidecar of {} recorded its call of {} that {} saw",
                rule.service, call.api, server.service
            ),
            unanswered: false,
            known: Known::Beneath(call.parent),
        })
    }

    /// Those of [`Armed::unjudged`] that leave open whether the fault should have fired, where it did not. One that came
    /// after the numbered pass that was meant, or after the rule had gone, cannot have been it.
    pub(super) fn undecided<'t>(&self, trace: &'t Trace) -> Vec<Unjudged<'t>> {
        let sightings = self.sightings(trace);
        let settled = |unjudged: &Unjudged<'t>| {
            let Known::Seen { observer, at, k: None } = unjudged.known else { return false };
            sightings.iter().filter(|other| other.span.observer == observer && other.at < at).any(|other| {
                other.pass.is_some_and(|pass| match (self.tfic.target.k, &pass.passed_by) {
                    (_, Some(PassedBy::Disarmed)) => true,
                    (_, None | Some(PassedBy::NumberBlocked | PassedBy::GuardUnknown(_) | PassedBy::Number)) => false,
                    (Occurrence::Number(k), Some(_)) => pass.k == Some(k),
                    (Occurrence::First, Some(_)) => false,
                })
            })
        };
        let mut unjudged = self.unjudged(trace);
        unjudged.retain(|unjudged| !unjudged.unanswered && !settled(unjudged));
        unjudged
    }

    /// Passes of caller `?` whose parent is a CLIENT span to this same Api: they lost their header (design §3.7).
    pub(super) fn headerless<'t>(&self, trace: &'t Trace) -> Vec<Unjudged<'t>> {
        let lost = |sighting: &Sighting<'t>| {
            sighting.span.side == Side::Callee
                && sighting.span.caller.is_none()
                && sighting
                    .call
                    .parent
                    .and_then(|parent| trace.call(parent))
                    .is_some_and(|parent| parent.client.is_some() && parent.api == sighting.call.api)
        };
        self.sightings(trace)
            .into_iter()
            .filter(lost)
            .map(|sighting| Unjudged {
                call: sighting.call,
                reason: format!("{} came from a sidecar and lost its header", self.place(sighting.span)),
                unanswered: false,
                known: Known::Seen {
                    observer: sighting.span.observer,
                    at: sighting.at,
                    k: sighting.pass.and_then(|pass| pass.k),
                },
            })
            .collect()
    }

    /// A message of the target in words: `the response of payment shop.Payment/Charge at checkout`.
    pub(super) fn place(&self, span: &CallSpan) -> String {
        format!("the {} of {} at {}", self.tfic.target.phase, span.api, span.service)
    }
}

impl Unjudged<'_> {
    /// Whether it certainly came after `hit`, so that it cannot have been the message that was meant.
    pub(super) fn follows(&self, hit: &Sighting<'_>, after: &After) -> bool {
        let Some(injection) = hit.hit else { return false };
        if self.call.id == hit.call.id {
            return false;
        }
        match self.known {
            Known::Seen { observer, at, k } if observer == hit.span.observer => {
                at > injection.decided || (at == injection.decided && k.is_some_and(|k| k > injection.k))
            }
            Known::Seen { observer, .. } => after.contains_call_at(self.call.id, observer),
            Known::Beneath(Some(parent)) => after.contains_arrival(parent),
            Known::Beneath(None) => false,
        }
    }
}

/// The first number that is missing among the reported ones, which are 1, 2, … n, each once, if nothing is. Beyond a
/// numbered pass that was meant, and is there, none is missed.
pub(super) fn misnumbered(sightings: &[Sighting<'_>], meant: Occurrence) -> Option<u32> {
    let numbers: Vec<u32> = sightings.iter().filter_map(|sighting| sighting.pass.and_then(|pass| pass.k)).collect();
    let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
    let last = match meant {
        Occurrence::Number(k) if distinct.contains(&k) => k,
        _ => u32::try_from(numbers.len()).unwrap_or(u32::MAX),
    };
    (1..=last).find(|number| !distinct.contains(number))
}
