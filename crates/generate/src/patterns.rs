//! The three patterns (design §4.2), and what each puts into a temporal fault.
//!
//! * *post-effect*: a condition of the target, not an atom: the message at hand says `ok`, and the callee's sidecar saw
//!   this very call end `ok`.
//! * *order-sensitive*: the atoms of the competing events, usually `response-received(ok)` of the other branch.
//! * *k-of-n*: the preceding occurrences, outcome-neutral: the target's own event at its caller ≥ k − 1.
//!
//! They compose: a request may name competing events and ask for the post-effect condition too. Nothing is guessed: what
//! goes into the guard follows from the fields of the request, the pattern only says which of them must be there.

use std::collections::BTreeSet;

use aftershock_core::event::{ApiRef, Event, EventKind, OutcomeFilter};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Atom, Occurrence, Pattern, Phase, Target};
use aftershock_core::trace::Trace;

use crate::error::GenerateError;
use crate::guard::Request;
use crate::site::{Groups, resolve};

/// The usual competing atom: a successful answer of `api` has reached `caller`.
pub fn competing(api: Api, caller: Option<Service>) -> Atom {
    let event = Event { event: EventKind::ResponseReceived, api: ApiRef::Api(api), caller, outcome: OutcomeFilter::Ok };
    Atom::new(event, 1)
}

/// The pattern that the fields of a request without one make: order-sensitive with competing events, k-of-n from the
/// second occurrence on, post-effect with its condition.
pub fn infer(request: &Request) -> Option<Pattern> {
    if request.pattern.is_some() {
        return request.pattern;
    }
    match request.target.k {
        _ if !request.competing.is_empty() => Some(Pattern::OrderSensitive),
        Occurrence::Number(k) if k > 1 => Some(Pattern::KOfN),
        _ if request.target.post_effect => Some(Pattern::PostEffect),
        _ => None,
    }
}

/// The target with what its pattern makes of it.
///
/// # Errors
/// When pattern and request contradict each other.
pub(crate) fn target(request: &Request) -> Result<Target, GenerateError> {
    let mut target = request.target.clone();
    let refuse = |pattern, needs| Err(GenerateError::Pattern { pattern, needs });
    match request.pattern {
        Some(Pattern::PostEffect) => target.post_effect = true,
        Some(Pattern::OrderSensitive) if request.competing.is_empty() => {
            return refuse(Pattern::OrderSensitive, "a competing event");
        }
        Some(Pattern::KOfN) if target.k == Occurrence::First => {
            return refuse(Pattern::KOfN, "a numbered occurrence");
        }
        _ => {}
    }
    if target.post_effect {
        if target.phase != Phase::Response {
            return refuse(Pattern::PostEffect, "the phase `response`");
        }
        if target.outcome == OutcomeFilter::Error {
            return refuse(Pattern::PostEffect, "the outcome `ok`");
        }
        target.outcome = OutcomeFilter::Ok;
    }
    Ok(target)
}

/// The atoms of the competing events, each scoped to its caller where the traces show exactly one.
///
/// # Errors
/// When an event happens in no trace, whatever its outcome, or names an unknown group.
pub(crate) fn atoms(competing: &[Atom], groups: &Groups, traces: &[&Trace]) -> Result<Vec<Atom>, GenerateError> {
    competing.iter().map(|atom| scoped(atom, groups, traces)).collect()
}

fn scoped(atom: &Atom, groups: &Groups, traces: &[&Trace]) -> Result<Atom, GenerateError> {
    let apis = resolve(&atom.api, groups)?;
    let mut callers: BTreeSet<Option<&Service>> = BTreeSet::new();
    let mut others: BTreeSet<&Api> = BTreeSet::new();
    for trace in traces {
        for call in &trace.calls {
            if !call.spans().any(|span| span.events().any(|(event, _, _)| event == atom.event)) {
                continue;
            }
            others.insert(&call.api);
            if apis.contains(&call.api) && (atom.caller.is_none() || atom.caller == call.caller) {
                callers.insert(call.caller.as_ref());
            }
        }
    }
    let mut atom = atom.clone();
    match callers.first() {
        None => {
            let others: Vec<String> = others.into_iter().map(Api::to_string).collect();
            let wanted = atom.api.to_string();
            let nearest = aftershock_core::name::nearest(&wanted, others.iter().map(String::as_str));
            let nearest = nearest.filter(|name| *name != wanted).map(|name| format!("`{} of {name}`", atom.event));
            return Err(GenerateError::NoSuchEvent { event: Box::new(atom.event()), nearest });
        }
        Some(only) if callers.len() == 1 => atom.caller = only.cloned(),
        Some(_) => {}
    }
    Ok(atom)
}
