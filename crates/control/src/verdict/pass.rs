//! Which messages of an execution were passes of a target, and which of them a rule judged (design §2, §3.4).
//!
//! A pass inside a stream (`at:`) is numbered when its mark is reached, which is no event of the record: beside the passes
//! that sidecars recorded there are only those whose message count tells that the mark was reached.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::plan::{Occurrence, Phase, Rule, Side, StreamPoint, Tfic};
use aftershock_core::span::{Association, CallSpan, Ending, Injection, Pass, PassedBy};
use aftershock_core::trace::{Call, Trace};

use super::Hit;
use super::arbitration::{Arbitration, Position};
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
    /// What the arbiter's log says of it.
    pub(super) arbitration: Arbitration,
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
    /// Its number: the arbiter's, where there is one.
    pub(super) number: Option<u32>,
    /// The clock there when it arrived, before it was counted. Of a mark in a stream that nobody recorded, a clock before
    /// that.
    pub(super) at: u64,
}

/// A pass that no rule judged, and why that is so.
#[derive(Debug, Clone)]
pub(super) struct Unjudged<'a> {
    call: &'a Call,
    /// As a sentence.
    pub(super) reason: String,
    /// Why nobody judged it is known: where no fault fired that is a reason of `missed`, not a doubt.
    pub(super) explained: bool,
    /// It came after the round was disarmed where it was seen.
    after_disarming: bool,
    known: Known,
}

/// What is known of the place of an unjudged pass in time.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// It was seen by this sidecar, when its clock was this, with this number if it got one, and at this position of the
    /// arbiter's log.
    Seen { observer: ObserverId, at: u64, k: Option<u32>, arrived: Option<Position> },
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

    /// Whether another fault, or this one, acted on the response of `span`: then there was one.
    fn acted_on_response(&self, span: &CallSpan) -> bool {
        span.injection.as_ref().is_some_and(|injection| {
            let rule = self.plan_rules.iter().find(|rule| rule.index == injection.rule);
            rule.is_some_and(|rule| rule.tfic.target.phase == Phase::Response)
        })
    }

    /// Whether the frame with the outcome came from the network: a response that a sidecar made takes no number, nor
    /// does an upstream that failed before that frame (design §3.4).
    fn answered(&self, span: &CallSpan) -> bool {
        let cut_short =
            span.api.operation.is_grpc() && span.grpc_status.is_none() && span.ending == Ending::UpstreamFailed;
        self.acted_on_response(span) || (span.response.is_some() && self.head_came(span) && !cut_short)
    }

    /// Whether a response head came from the network.
    fn head_came(&self, span: &CallSpan) -> bool {
        span.http_status.is_some() && (!span.made || self.acted_on_response(span))
    }

    /// Whether the response reached `point`, as far as a record without a pass tells: an instance that was armed would
    /// have recorded one, an instance that was not may have let it pass unseen.
    fn reached(&self, span: &CallSpan, point: StreamPoint) -> bool {
        let unseen = || !self.sidecars.contains_key(&span.observer) && self.head_came(span);
        match (point, span.messages) {
            (StreamPoint::Head, _) => self.head_came(span),
            (StreamPoint::Message(n), Some(begun)) => begun >= u64::from(n),
            (StreamPoint::Message(_), None) | (StreamPoint::Bytes(_), _) => unseen(),
        }
    }

    /// Whether an arbiter numbers the passes and grants the shot.
    pub(super) fn arbitrated(&self) -> bool {
        self.rules.iter().any(|rule| rule.arbitrated)
    }

    fn is_pass(&self, call: &Call, span: &CallSpan) -> bool {
        self.names(call, span)
            // A call whose parent has ended is counted, but no target without leave.
            && span.association != Association::Detached
            && match (self.tfic.target.phase, self.tfic.target.at) {
                (Phase::Request, _) => true,
                (Phase::Response, None) => self.answered(span),
                (Phase::Response, Some(point)) => self.reached(span, point),
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
                let event = match (self.tfic.target.phase, self.tfic.target.at) {
                    (Phase::Request, _) => Some(span.request),
                    (Phase::Response, None) => span.response,
                    // Where the rule was over an armed instance does not look for marks; elsewhere nobody knows when.
                    (Phase::Response, Some(_)) => span.response.filter(|_| self.sidecars.contains_key(&span.observer)),
                };
                let at = pass
                    .map(|pass| pass.clock)
                    .or(hit.map(|hit| hit.decided))
                    .or(event.map(|at| at.clock.saturating_sub(1)))
                    .unwrap_or(span.request.clock);
                let asked = self.arbitration.asked(trace.execution, call.id).map(|asked| asked.told);
                let number = asked.or_else(|| pass.and_then(|pass| pass.k));
                seen.push(Sighting { call, span, pass, hit, number, at });
            }
        }
        seen.sort_by_key(|sighting| (sighting.at, sighting.number, sighting.call.id));
        seen
    }

    /// The passes of an execution that went unjudged (design §3.7): at a late or unregistered instance, without an
    /// answer, after the round was disarmed, with a blocked number, with an unknown guard, refused for a shot that came back,
    /// or recorded in a way that contradicts itself or the arbiter's log.
    pub(super) fn unjudged<'t>(&self, trace: &'t Trace) -> Vec<Unjudged<'t>> {
        let sightings = self.sightings(trace);
        let mut found: Vec<Unjudged<'t>> = sightings
            .iter()
            .filter(|sighting| sighting.hit.is_none())
            .filter_map(|sighting| {
                let reason = self.why_unjudged(trace, &sightings, sighting)?;
                let why = sighting.pass.and_then(|pass| pass.passed_by.as_ref());
                let after_disarming = why == Some(&PassedBy::RoundOver);
                let explained = after_disarming || why == Some(&PassedBy::Arbiter);
                let known = self.known(trace, sighting);
                Some(Unjudged { call: sighting.call, reason, explained, after_disarming, known })
            })
            .collect();
        if self.acts_at_caller() {
            found.extend(trace.calls.iter().filter_map(|call| self.unseen(trace, call)));
        }
        found
    }

    fn known(&self, trace: &Trace, sighting: &Sighting<'_>) -> Known {
        let arrived = self.arbitration.asked(trace.execution, sighting.call.id).map(|asked| asked.arrived);
        Known::Seen { observer: sighting.span.observer, at: sighting.at, k: sighting.number, arrived }
    }

    /// Why nothing is known by a pass that was not hit; none if it was judged.
    fn why_unjudged(&self, trace: &Trace, sightings: &[Sighting<'_>], sighting: &Sighting<'_>) -> Option<String> {
        let place = self.place(sighting.span);
        let Some(pass) = sighting.pass else {
            return Some(if self.sidecars.contains_key(&sighting.span.observer) {
                format!("no rule looked at {place}, although the instance was armed")
            } else {
                format!("no rule looked at {place}: the instance was not armed")
            });
        };
        let name = format!("{} ({place})", sighting.name());
        match (&pass.passed_by, self.tfic.target.k) {
            (Some(PassedBy::GuardUnknown(_)), _) => {
                return Some(format!("at {name} it is not known whether the guard held, because of a gap"));
            }
            (Some(PassedBy::NumberBlocked), _) => {
                return Some(format!("the number of {place} is not known, because of a gap"));
            }
            (Some(PassedBy::Arbiter), _) => {
                return Some(format!("{name} went on because the arbiter did not answer in time"));
            }
            (Some(PassedBy::RoundOver), _) => return Some(format!("{name} came after the round was disarmed")),
            (None, _) => return Some(format!("{name} is recorded as faulted, but nothing was injected")),
            (Some(PassedBy::Number), Occurrence::Number(k)) if sighting.number == Some(k) => {
                return Some(format!("{name} has the number of the target, but is recorded as having another"));
            }
            _ => {}
        }
        if self.arbitrated() { self.unarbitrated(trace, sightings, sighting, pass, &name) } else { None }
    }

    /// Why a pass that a sidecar judged was not judged by the arbiter's log.
    fn unarbitrated(
        &self,
        trace: &Trace,
        sightings: &[Sighting<'_>],
        sighting: &Sighting<'_>,
        pass: &Pass,
        name: &str,
    ) -> Option<String> {
        let (execution, call) = (trace.execution, sighting.call.id);
        let Some(asked) = self.arbitration.asked(execution, call) else {
            if pass.k.is_some() {
                return Some(format!("{name} has a number of which the arbiter's log says nothing"));
            }
            // The sidecar alone knew that the rule was over, or that the message was taken.
            let taken = sighting.taken_by_another(pass).is_some();
            let over = self.arbitration.is_over(execution)
                || sightings.iter().any(|other| other.hit.is_some() || other.went_without_answer());
            let known = taken || over || pass.passed_by != Some(PassedBy::Spent);
            return (!known).then(|| format!("{name} was passed as if the rule had ended, which nothing shows"));
        };
        if pass.k.is_some_and(|k| k != asked.told) {
            return Some(format!("{name} is recorded with another number than the arbiter's log has"));
        }
        if self.arbitration.refused_for_nothing(execution, call) {
            return Some(format!(
                "{name} was refused while a shot was granted to another pass, and that one came back"
            ));
        }
        (pass.passed_by == Some(PassedBy::Spent) && self.arbitration.refused_without_cause(execution, call))
            .then(|| format!("{name} was refused by the arbiter, although no shot had been granted"))
    }

    /// What keeps the arbiter's log from being relied on: in one execution, or everywhere.
    pub(super) fn arbiters_doubts(&self, traces: &[Trace], only: Option<ExecutionId>) -> Vec<String> {
        if !self.arbitrated() {
            return Vec::new();
        }
        let mut doubts = Vec::new();
        let wanted = |execution: ExecutionId| only.is_none_or(|only| only == execution);
        let numbered =
            |sighting: &Sighting<'_>| sighting.hit.is_some() || sighting.pass.is_some_and(|pass| pass.k.is_some());
        if self.arbitration.is_empty() && traces.iter().any(|trace| self.sightings(trace).iter().any(numbered)) {
            doubts.push(
                "the arbiter's log has nothing on this fault, which several instances were armed with".to_owned(),
            );
        }
        for execution in self.arbitration.executions().into_iter().filter(|execution| wanted(*execution)) {
            let trace = traces.iter().find(|trace| trace.execution == execution);
            let sightings = trace.map(|trace| self.sightings(trace)).unwrap_or_default();
            for (call, asked) in self.arbitration.passes(execution) {
                let told = asked.told;
                let judged = |sighting: &Sighting<'_>| sighting.pass.is_some() || sighting.hit.is_some();
                let doubt = if !sightings.iter().any(|sighting| sighting.call.id == call && judged(sighting)) {
                    format!("pass {told}, which the arbiter numbered, is not in the record")
                } else if told != asked.number {
                    format!("the arbiter called a pass number {told} that was number {} in its log", asked.number)
                } else {
                    continue;
                };
                doubts.push(super::in_execution(execution, &doubt));
            }
        }
        doubts
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
            explained: false,
            after_disarming: false,
            known: Known::Beneath(call.parent),
        })
    }

    /// Those of [`Armed::unjudged`] that leave open whether the fault should have fired, where it did not. One that came
    /// after the numbered pass that was meant, or after the rule had gone, cannot have been it.
    pub(super) fn undecided<'t>(&self, trace: &'t Trace) -> Vec<Unjudged<'t>> {
        let sightings = self.sightings(trace);
        let settled = |unjudged: &Unjudged<'t>| match (unjudged.known, self.tfic.target.k) {
            // The arbiter gave it another number, or the rule had ended there when it arrived.
            (Known::Seen { arrived: Some(arrived), k: Some(number), .. }, meant) => {
                matches!(meant, Occurrence::Number(k) if k != number)
                    || self.arbitration.ended(trace.execution).is_some_and(|ended| ended < arrived)
            }
            (Known::Seen { observer, at, k: None, .. }, _) => {
                sightings.iter().filter(|other| other.span.observer == observer && other.at < at).any(|other| {
                    other.pass.is_some_and(|pass| match (self.tfic.target.k, &pass.passed_by) {
                        (_, Some(PassedBy::Disarmed | PassedBy::RoundOver)) => true,
                        (_, None | Some(PassedBy::NumberBlocked | PassedBy::GuardUnknown(_) | PassedBy::Number)) => {
                            false
                        }
                        (Occurrence::Number(k), Some(_)) => other.number == Some(k),
                        (Occurrence::First, Some(_)) => false,
                    })
                })
            }
            (Known::Seen { .. } | Known::Beneath(_), _) => false,
        };
        let mut unjudged = self.unjudged(trace);
        unjudged.retain(|unjudged| !unjudged.explained && !settled(unjudged));
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
                explained: false,
                after_disarming: false,
                known: self.known(trace, &sighting),
            })
            .collect()
    }

    /// Whether the arbiter's grant for this pass came back.
    pub(super) fn handed_back(&self, execution: ExecutionId, sighting: &Sighting<'_>) -> bool {
        self.arbitration.asked(execution, sighting.call.id).is_some_and(|asked| asked.handed_back)
    }

    /// A message of the target in words: `the response of payment shop.Payment/Charge at checkout`.
    pub(super) fn place(&self, span: &CallSpan) -> String {
        format!("the {} of {} at {}", self.tfic.target.phase, span.api, span.service)
    }
}

impl<'a> Sighting<'a> {
    /// How sentences call it.
    pub(super) fn name(&self) -> String {
        self.number.map_or_else(|| "a pass without number".to_owned(), |k| format!("pass {k}"))
    }

    /// The fault of the plan that was first to take this very message.
    pub(super) fn taken_by_another(&self, pass: &Pass) -> Option<&'a Injection> {
        // Decided at the same clock: the same message.
        self.span.injection.as_ref().filter(|it| it.rule != pass.rule && it.decided == pass.clock)
    }

    /// Whether the arbiter was asked and did not answer in time.
    fn went_without_answer(&self) -> bool {
        self.pass.is_some_and(|pass| pass.passed_by == Some(PassedBy::Arbiter))
    }
}

impl Unjudged<'_> {
    /// Whether it certainly came after `hit`, so that it cannot have been the message that was meant: by the arbiter's
    /// log where both are in it, else by the order at one sidecar, else causally.
    pub(super) fn follows(&self, armed: &Armed<'_>, hit: &Hit<'_>, after: &After) -> bool {
        let (sighting, injection) = (hit.sighting(), hit.injection);
        if self.call.id == sighting.call.id {
            return false;
        }
        // Nothing was granted any more when the first sidecar was told to disarm.
        let granted = armed.arbitration.asked(hit.trace.execution, sighting.call.id).and_then(|asked| asked.granted);
        match self.known {
            Known::Seen { arrived: None, .. } if self.after_disarming && granted.is_some() => true,
            Known::Seen { arrived: Some(arrived), .. } if granted.is_some_and(|granted| granted < arrived) => true,
            Known::Seen { arrived: Some(_), .. } if granted.is_some() => false,
            Known::Seen { observer, at, k, .. } if observer == sighting.span.observer => {
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
    let numbers: Vec<u32> = sightings.iter().filter_map(|sighting| sighting.number).collect();
    let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
    let last = match meant {
        Occurrence::Number(k) if distinct.contains(&k) => k,
        _ => u32::try_from(numbers.len()).unwrap_or(u32::MAX),
    };
    (1..=last).find(|number| !distinct.contains(number))
}
