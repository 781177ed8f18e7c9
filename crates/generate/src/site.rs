//! Where a fault acts: whose sidecar, at which of the four instants (design §3.4).
//!
//! At the caller's sidecar, unless the caller has none (an entry Api, a call out of a hop without sidecar): then at the
//! callee's.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, Outcome, OutcomeFilter};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Phase, Side, StreamPoint, Target, UnknownGroup};
use aftershock_core::span::Instant;
use aftershock_core::trace::{Call, Step, Trace};
use serde::Serialize;

use crate::error::{GenerateError, no_such_call};
use crate::stream;

/// Named sets of Apis whose counts are pooled, as in a plan.
pub type Groups = BTreeMap<String, BTreeSet<Api>>;

/// The Apis that `api` stands for.
///
/// # Errors
/// When it names a group that is not in `groups`.
pub fn resolve(api: &ApiRef, groups: &Groups) -> Result<BTreeSet<Api>, UnknownGroup> {
    match api {
        ApiRef::Api(api) => Ok(BTreeSet::from([api.clone()])),
        ApiRef::Group(name) => groups.get(name).cloned().ok_or_else(|| UnknownGroup(name.clone())),
    }
}

/// `event` with its group resolved.
///
/// # Errors
/// When it names a group that is not in `groups`.
pub fn counted(event: Event, groups: &Groups) -> Result<CountedEvent, UnknownGroup> {
    Ok(CountedEvent { apis: resolve(&event.api, groups)?, event })
}

/// Where the messages of a target pass: the sidecar that numbers and faults them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// As whose sidecar it acts.
    pub side: Side,
    /// The calling service; none for a client without sidecar.
    pub caller: Option<Service>,
    /// The service whose sidecar acts.
    pub service: Service,
    /// The Apis of the target.
    pub apis: BTreeSet<Api>,
    /// The instant at which its messages pass, or the last one before which they do: see [`Site::at`].
    pub event: EventKind,
    /// Where in the response they pass, if that is no instant of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<StreamPoint>,
}

/// A message that matches a target's caller, Apis and phase, with its number.
#[derive(Debug, Clone, Copy)]
pub struct SitePass<'a> {
    /// Its number in the trace, from 1, in the order of the execution's clock.
    pub number: u32,
    /// The boundary event.
    pub step: Step<'a>,
}

/// Where `target` acts, by what the traces show of its calls. The caller is inferred where they show exactly one.
///
/// # Errors
/// When no trace has such a call, when the caller is left out and the traces show several, or when the target names a
/// group that is not in `groups`.
pub fn acting_side(target: &Target, groups: &Groups, traces: &[Trace]) -> Result<Site, GenerateError> {
    let apis = resolve(&target.api, groups)?;
    let of_api: Vec<(&Trace, &Call)> = traces
        .iter()
        .flat_map(|trace| trace.calls.iter().map(move |call| (trace, call)))
        .filter(|(_, call)| apis.contains(&call.api))
        .collect();
    let calls: Vec<&Call> = of_api
        .iter()
        .filter(|(trace, call)| !lost_header(trace, call))
        .map(|(_, call)| *call)
        .filter(|call| target.caller.is_none() || target.caller == call.caller)
        .collect();
    let callers: BTreeSet<Option<&Service>> = calls.iter().map(|call| call.caller.as_ref()).collect();
    let Some(caller) = callers.first().copied() else {
        return Err(missing(target, &apis, &of_api, traces));
    };
    if callers.len() > 1 {
        return Err(GenerateError::AmbiguousCaller {
            target: target.api.to_string(),
            callers: callers.into_iter().map(Option::<&Service>::cloned).collect(),
        });
    }
    let at_caller = caller.filter(|_| calls.iter().any(|call| call.client.is_some()));
    let (side, service) = match at_caller {
        Some(caller) => (Side::Caller, caller.clone()),
        None => {
            let services: BTreeSet<&Service> = apis.iter().map(|api| &api.service).collect();
            if services.len() > 1 {
                let services = services.into_iter().cloned().collect();
                return Err(GenerateError::GroupSpansCallees { services });
            }
            (Side::Callee, calls[0].api.service.clone())
        }
    };
    let event = target.phase.event(side);
    Ok(Site { side, caller: caller.cloned(), service, apis, event, at: target.at })
}

/// A call whose hop header was lost on the way has two ids: the caller's, and one that the callee's sidecar minted and
/// whose parent is the former. The latter tells nothing about callers.
fn lost_header(trace: &Trace, call: &Call) -> bool {
    call.client.is_none()
        && call.caller.is_none()
        && call
            .parent
            .and_then(|parent| trace.call(parent))
            .is_some_and(|parent| parent.api == call.api && parent.client.is_some() && parent.server.is_none())
}

fn missing(target: &Target, apis: &BTreeSet<Api>, of_api: &[(&Trace, &Call)], traces: &[Trace]) -> GenerateError {
    let name = match &target.caller {
        Some(caller) => format!("`{}` from {caller}", target.api),
        None => format!("`{}`", target.api),
    };
    let callers: BTreeSet<&Service> = of_api.iter().filter_map(|(_, call)| call.caller.as_ref()).collect();
    if of_api.is_empty() {
        let wanted: Vec<Api> = apis.iter().cloned().collect();
        let known: BTreeSet<&Api> = traces.iter().flat_map(|trace| trace.calls.iter().map(|call| &call.api)).collect();
        return no_such_call(name, &wanted, &known.into_iter().cloned().collect::<Vec<_>>());
    }
    let callers: Vec<&str> = callers.into_iter().map(Service::as_str).collect();
    let nearest = match callers.as_slice() {
        [] => "no caller, which it has in no trace".to_owned(),
        callers => format!("the caller {}", callers.join(" or ")),
    };
    GenerateError::NoSuchCall { target: name, nearest: Some(nearest) }
}

impl Site {
    /// The messages of the target in `trace`, numbered.
    pub fn passes<'a>(&self, trace: &'a Trace) -> Vec<SitePass<'a>> {
        let of_target =
            |call: &&Call| self.apis.contains(&call.api) && (self.caller.is_none() || self.caller == call.caller);
        let mut steps: Vec<Step<'a>> =
            trace.calls.iter().filter(of_target).filter_map(|call| self.message(call)).collect();
        steps.sort_by_key(|step| (step.at.clock, step.observer, step.call.id));
        (1..).zip(steps).map(|(number, step)| SitePass { number, step }).collect()
    }

    /// The message of `call` from the network at the acting sidecar. In a trace of a faulted round an answer that a fault
    /// swallowed is a pass without an event, and an answer made in place of a request is an event without a pass.
    fn message<'a>(&self, call: &'a Call) -> Option<Step<'a>> {
        let span = call.side(self.side).filter(|span| stream::reaches(self.at, span))?;
        let step = |at: Instant, outcome| Step { call, event: self.event, at, observer: span.observer, outcome };
        if !self.event.is_response() {
            return Some(step(span.request, None));
        }
        let at_request = |decided: u64| decided < span.request.clock;
        match span.response {
            Some(_) if span.made && span.injection.as_ref().is_some_and(|done| at_request(done.decided)) => None,
            Some(at) => Some(step(at, span.outcome)),
            None => {
                let swallowed = span.passes.iter().find(|pass| !at_request(pass.clock))?;
                let at = Instant { clock: swallowed.clock.saturating_add(1), unix_nanos: span.ended_unix_nanos };
                Some(step(at, span.outcome.or(call.server.as_ref().and_then(|server| server.outcome))))
            }
        }
    }

    /// The target's own event at the sidecar that acts: its count is the number of earlier passes.
    pub fn own_event(&self, target: &Target) -> Event {
        Event { event: self.event, api: target.api.clone(), caller: self.caller.clone(), outcome: OutcomeFilter::Any }
    }

    /// Whether `event` is the target's own event at its caller, with any outcome: what an arbiter counts passes for, if
    /// there are several instances.
    pub fn is_own(&self, event: &CountedEvent) -> bool {
        event.event.event == self.event
            && event.apis == self.apis
            && match self.side {
                Side::Caller => event.event.caller.is_none() || event.event.caller == self.caller,
                Side::Callee => event.event.caller.is_none(),
            }
    }

    /// Whether the acting sidecar itself observes `event`, so that it needs no message to know of it.
    pub fn is_local(&self, event: &CountedEvent) -> bool {
        if event.event.event.at_caller() {
            event.event.caller.as_ref() == Some(&self.service)
        } else {
            event.apis.iter().all(|api| api.service == self.service)
        }
    }

    /// How many instances of the acting service the passes of `trace` go through.
    pub fn instances(&self, trace: &Trace) -> usize {
        let observers: BTreeSet<_> = self.passes(trace).iter().map(|pass| pass.step.observer).collect();
        observers.len()
    }
}

/// Whether `target` faults this message: its outcome matches, and for *post-effect* the callee's sidecar also saw this
/// call end `ok`. A callee without sidecar says nothing, and then the outcome at hand decides.
pub fn admits(target: &Target, step: &Step<'_>) -> bool {
    refused_outcome(target, step).is_none()
}

/// The outcome for which `target` does not fault this message; none if it does.
pub fn refused_outcome(target: &Target, step: &Step<'_>) -> Option<Option<Outcome>> {
    if target.phase == Phase::Request {
        return None;
    }
    if !target.outcome.admits(step.outcome) || (step.outcome.is_none() && target.outcome != OutcomeFilter::Any) {
        return Some(step.outcome);
    }
    if target.post_effect {
        if step.outcome != Some(Outcome::Ok) {
            return Some(step.outcome);
        }
        if let Some(server) = &step.call.server
            && server.outcome != Some(Outcome::Ok)
        {
            return Some(server.outcome);
        }
    }
    None
}
