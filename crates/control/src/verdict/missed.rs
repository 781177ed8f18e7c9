//! Why a fault that fired nowhere did not, once the record leaves no doubt: `unreached`, or `missed` with its reasons.

use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Occurrence, Plan};
use aftershock_core::span::PassedBy;
use aftershock_core::trace::Trace;

use super::pass::{Armed, Sighting};
use super::window::{happened, own_event, times};
use crate::api::Verdict;

/// The verdict and a reason for each execution.
pub(super) fn explain(plan: &Plan, armed: &Armed<'_>, traces: &[Trace]) -> (Verdict, Vec<String>) {
    if traces.is_empty() {
        return (Verdict::Unreached, vec!["no execution of the round was seen by any sidecar".to_owned()]);
    }
    let mut verdict = Verdict::Unreached;
    let mut reasons = Vec::new();
    for trace in traces {
        let sightings = armed.sightings(trace);
        let meant: Vec<&Sighting<'_>> = sightings
            .iter()
            .filter(|sighting| match armed.tfic.target.k {
                Occurrence::First => true,
                Occurrence::Number(k) => sighting.number == Some(k),
            })
            .collect();
        // Where the rule ended before the number that was meant, what ended it is the reason.
        let told = if meant.is_empty() && !too_few(armed, sightings.len()) {
            sightings.iter().filter(|sighting| ended_by(armed, trace, sighting)).collect()
        } else {
            meant
        };
        if told.is_empty() {
            reasons.push(sentence(trace.execution, &absent(armed, sightings.len())));
            continue;
        }
        verdict = Verdict::Missed;
        for sighting in told {
            reasons.push(sentence(trace.execution, &not_faulted(plan, armed, trace, sighting)));
        }
    }
    (verdict, reasons)
}

/// Whether the numbered pass that is meant cannot have come.
fn too_few(armed: &Armed<'_>, passes: usize) -> bool {
    match armed.tfic.target.k {
        Occurrence::First => passes == 0,
        Occurrence::Number(k) => (passes as u64) < u64::from(k),
    }
}

/// Whether the rule ended with this pass or before it, unused: the arbiter did not answer it in time, its grant came back,
/// or the round was disarmed.
fn ended_by(armed: &Armed<'_>, trace: &Trace, sighting: &Sighting<'_>) -> bool {
    let ended = |why: &PassedBy| matches!(why, PassedBy::Arbiter | PassedBy::RoundOver);
    sighting.pass.is_some_and(|pass| pass.passed_by.as_ref().is_some_and(ended))
        || armed.handed_back(trace.execution, sighting)
}

fn sentence(execution: ExecutionId, reason: &str) -> String {
    super::in_execution(execution, reason)
}

/// No message was the target.
fn absent(armed: &Armed<'_>, passes: usize) -> String {
    let target = &armed.tfic.target;
    let wanted = format!("{} of {}", target.phase, target.api);
    match (passes, target.k) {
        (0, _) | (_, Occurrence::First) => format!("no {wanted} was seen"),
        (n, Occurrence::Number(k)) => {
            format!("the {wanted} was seen {}, pass {k} never came", times(n as u64))
        }
    }
}

/// A message was the target, and went on.
fn not_faulted(plan: &Plan, armed: &Armed<'_>, trace: &Trace, sighting: &Sighting<'_>) -> String {
    let place = armed.place(sighting.span);
    let Some(pass) = sighting.pass else { return format!("{place} was not looked at") };
    let went = format!("{} ({place})", sighting.name());
    let Some(passed_by) = &pass.passed_by else { return format!("{went} was not faulted") };
    if let (PassedBy::Spent, Some(other)) = (passed_by, sighting.taken_by_another(pass)) {
        return format!("{went} was already taken by faults[{}]: a message gets one fault", other.rule);
    }
    let handed_back = armed.handed_back(trace.execution, sighting);
    let back = if handed_back { "; the arbiter's grant was handed back" } else { "" };
    if handed_back && *passed_by == PassedBy::Arbiter {
        return format!("{went} was granted by the arbiter too late, and the grant was handed back");
    }
    let reason = why(plan, armed, trace, sighting, &went, passed_by);
    format!("{reason}{back}")
}

fn why(
    plan: &Plan,
    armed: &Armed<'_>,
    trace: &Trace,
    sighting: &Sighting<'_>,
    went: &str,
    passed_by: &PassedBy,
) -> String {
    match passed_by {
        PassedBy::GuardFalse(atoms) => {
            let mut false_atoms: Vec<String> =
                atoms.iter().map(|atom| false_atom(plan, armed, trace, *atom, sighting)).collect();
            if false_atoms.is_empty() {
                false_atoms.push("the guard was false".to_owned());
            }
            format!("at {went} {}", false_atoms.join(", and "))
        }
        PassedBy::Outcome if armed.tfic.target.post_effect => {
            format!("{went} did not say `ok`, or its callee's sidecar did not see the call end `ok`")
        }
        PassedBy::Outcome => format!("{went} did not have the outcome that the target takes"),
        PassedBy::Spent => format!("{went} came when the rule had ended, or the round's injections were used up"),
        PassedBy::HoldDeadline => {
            let deadline = armed.tfic.hold.as_ref().map_or(String::new(), |hold| format!(" of {}", hold.deadline));
            let waiting: Vec<String> = armed.tfic.guard.after.iter().map(ToString::to_string).collect();
            format!(
                "{went} was held until its deadline{deadline}, and {} did not come true in time",
                waiting.join(" ∧ ")
            )
        }
        PassedBy::Disarmed => format!("{went} was still held when the rule was disarmed"),
        PassedBy::RoundOver => format!("{went} came after the round was disarmed"),
        PassedBy::CallerGone => format!("the caller of {went} went away while it was held"),
        PassedBy::Pipelined => format!("{went} was pipelined behind another request on its connection"),
        PassedBy::Goaway => format!("{went} was released because the upstream said GOAWAY"),
        PassedBy::Size => format!("{went} was larger than what can be kept back"),
        PassedBy::ParkedLimit => format!("{went} found no place to be held: too many messages were"),
        PassedBy::Stream => format!("{went} was released because a second message came on its call"),
        PassedBy::Arbiter => format!("{went} was not granted by the arbiter in time"),
        PassedBy::Number | PassedBy::NumberBlocked | PassedBy::GuardUnknown(_) => format!("{went} was not the target"),
    }
}

/// An atom that was false, with how often its event had happened by then: at all, since what a sidecar knew is not
/// recorded. On the target's own event over several instances it is the arbiter who counted.
fn false_atom(plan: &Plan, armed: &Armed<'_>, trace: &Trace, atom: usize, sighting: &Sighting<'_>) -> String {
    let Some(atom) = armed.tfic.guard.after.get(atom) else {
        return format!("atom {} of the guard was false", atom + 1);
    };
    if armed.arbitrated() && own_event(armed, plan, atom) {
        let asked = armed.arbitration.asked(trace.execution, sighting.call.id);
        let earlier =
            asked.map(|asked| armed.arbitration.earlier(trace.execution, asked, armed.tfic.target.phase, atom.outcome));
        return match earlier {
            Some(n) => format!("`{atom}` was false: the arbiter had seen such a pass {}", times(n)),
            None => format!("`{atom}` was false"),
        };
    }
    match happened(plan, trace, atom, sighting.at) {
        Some(n) if n >= atom.count => {
            format!("`{atom}` was false: it had happened {}, but this was not known there yet", times(n))
        }
        Some(n) => format!("`{atom}` was false: it had happened {}", times(n)),
        None => format!("`{atom}` was false"),
    }
}
