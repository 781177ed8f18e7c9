//! Whether a fault fell into its window, counted again from the events of all sidecars (design §3.7).
//!
//! Evidence is a lower bound, and a sidecar's clock is never behind that of any event it knows of. So if the events of
//! the whole execution with clocks up to the decision are too few for an atom, the sidecar cannot have known enough:
//! the accusation is sound whatever was lost on the way. The number is counted by order at the one sidecar that acted, or
//! by the arbiter's log, and with it the target's own event: never by clocks across instances. Passes inside a stream
//! (`at:`) are numbered at marks that are no events, so they are counted by the clocks and numbers of the passes alone.

use aftershock_core::event::{CountedEvent, Outcome, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Occurrence, Phase, Plan, Side};
use aftershock_core::span::Injection;
use aftershock_core::trace::Trace;

use super::pass::{Armed, Sighting};

/// Every way in which `hit` was outside the window of its fault, as sentences.
pub(super) fn outside(
    armed: &Armed<'_>,
    plan: &Plan,
    trace: &Trace,
    sightings: &[Sighting<'_>],
    hit: &Sighting<'_>,
    injection: &Injection,
) -> Vec<String> {
    let mut reasons = Vec::new();
    if !armed.names(hit.call, hit.span) {
        let (api, service) = (&hit.span.api, &hit.span.service);
        reasons.push(format!("it acted on {api} at {service}, which is not its target"));
    }
    let one_instance = sightings.iter().all(|sighting| sighting.span.observer == hit.span.observer);
    let arbitrated = armed.arbitrated();
    if arbitrated {
        reasons.extend(granted(armed, plan, trace, hit));
    } else if let Occurrence::Number(k) = armed.tfic.target.k {
        reasons.extend(number(k, sightings, hit, injection, one_instance));
    }
    for atom in &armed.tfic.guard.after {
        if (arbitrated || !one_instance) && own_event(armed, plan, atom) {
            continue;
        }
        if let Some(known) = happened(plan, trace, atom, injection.decided)
            && known < atom.count
        {
            reasons.push(format!(
                "it was decided at clock {}, when {} had happened {}, not {}",
                injection.decided,
                atom.event(),
                times(known),
                times(atom.count)
            ));
        }
    }
    reasons.extend(outcome(armed, hit));
    reasons
}

/// How often the event of `atom` happened in the execution up to `clock`; none if the plan does not define its group.
pub(super) fn happened(plan: &Plan, trace: &Trace, atom: &Atom, clock: u64) -> Option<u64> {
    let event = atom.event();
    let counted = CountedEvent { apis: plan.resolve(&event.api).ok()?, event };
    let steps = trace.steps();
    Some(steps.iter().filter(|step| step.at.clock <= clock && counted.matches(&step.occurrence())).count() as u64)
}

/// `once`, `twice`, `3 times`.
pub(super) fn times(n: u64) -> String {
    match n {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}

fn number(
    k: u32,
    sightings: &[Sighting<'_>],
    hit: &Sighting<'_>,
    injection: &Injection,
    one_instance: bool,
) -> Option<String> {
    if injection.k != k {
        return Some(format!("it acted on pass {}, not on pass {k}", injection.k));
    }
    let unnumbered = |other: &Sighting<'_>| other.pass.is_none() && other.hit.is_none();
    if !one_instance || sightings.iter().any(unnumbered) {
        return None;
    }
    // Messages numbered between two events of this sidecar have the same clock: only its own numbers order them.
    let is_earlier = |other: &&Sighting<'_>| {
        let numbered_before = || other.pass.is_some_and(|pass| pass.k.is_some_and(|k| k < injection.k));
        other.call.id != hit.call.id && (other.at < hit.at || (other.at == hit.at && numbered_before()))
    };
    let earlier = sightings.iter().filter(is_earlier).count() as u64;
    (earlier != u64::from(k) - 1)
        .then(|| format!("it acted on pass {k} by its sidecar's count, but {earlier} came before it there"))
}

/// What the arbiter's log says against the shot: that it was not granted, or for another pass than the one that is meant.
fn granted(armed: &Armed<'_>, plan: &Plan, trace: &Trace, hit: &Sighting<'_>) -> Vec<String> {
    let log = &armed.arbitration;
    let asked = log.asked(trace.execution, hit.call.id);
    let Some(asked) = asked.filter(|asked| asked.granted.is_some()) else {
        return vec![format!("it acted on {}, which the arbiter's log grants no shot", armed.place(hit.span))];
    };
    let mut reasons = Vec::new();
    if let Occurrence::Number(k) = armed.tfic.target.k
        && asked.number != k
    {
        reasons.push(format!("it acted on pass {} by the arbiter's log, not on pass {k}", asked.number));
    }
    for atom in armed.tfic.guard.after.iter().filter(|atom| own_event(armed, plan, atom)) {
        let earlier = log.earlier(trace.execution, asked, armed.tfic.target.phase, atom.outcome);
        if earlier < atom.count {
            let (event, wanted) = (atom.event(), times(atom.count));
            let seen = times(earlier);
            reasons
                .push(format!("it was granted although the arbiter had seen {event} {seen} before it, not {wanted}"));
        }
    }
    reasons
}

/// The target's own event at its caller, which an arbiter counts if there are several instances.
pub(super) fn own_event(armed: &Armed<'_>, plan: &Plan, atom: &Atom) -> bool {
    let event = atom.event();
    let Ok(apis) = plan.resolve(&event.api) else { return false };
    let counted = CountedEvent { event, apis };
    armed.rules.iter().any(|rule| rule.is_own_event(&counted))
}

/// What the record of both sides says against the outcome that the target asks for.
fn outcome(armed: &Armed<'_>, hit: &Sighting<'_>) -> Option<String> {
    let target = &armed.tfic.target;
    if target.phase == Phase::Request {
        return None;
    }
    // What the acting sidecar's span says is what it passed on: the message's own outcome only if that was unchanged.
    let unchanged = matches!(armed.tfic.fault, Fault::Delay(_) | Fault::Release) && !hit.span.made;
    let here = hit.span.outcome.filter(|_| unchanged);
    let callee = match hit.span.side {
        Side::Caller => hit.call.server.as_ref().map(|server| server.outcome),
        Side::Callee => None,
    };
    if target.post_effect {
        let said = callee.unwrap_or(here.or(Some(Outcome::Ok)));
        if said != Some(Outcome::Ok) || here.is_some_and(|here| here != Outcome::Ok) {
            let found =
                said.filter(|said| *said != Outcome::Ok).or(here).map_or("no answer".to_owned(), |o| format!("`{o}`"));
            return Some(format!(
                "the effect is not certain: the sidecar of {} saw the call end with {found}",
                hit.call.api.service
            ));
        }
    }
    let said = here.or(callee.flatten())?;
    let admitted = match target.outcome {
        OutcomeFilter::Any => true,
        OutcomeFilter::Ok => said == Outcome::Ok,
        OutcomeFilter::Error => said == Outcome::Error,
    };
    (!admitted).then(|| format!("the message had the outcome `{said}`, which the target does not take"))
}
