//! Validation by replay (design §4.2): on every trace the guard is true at the target and false before.
//!
//! For a numbered `k` over several instances of the caller the arbiter's number does the latter, and "false before" is
//! not asked of the guard. Traces of another entry that never reach the target need not be hit, but with `k: first` the
//! guard must be false at all of their passes.

use std::collections::BTreeSet;

use aftershock_core::event::{Outcome, OutcomeFilter};
use aftershock_core::plan::{Fault, Occurrence, Phase, Plan, Side, Tfic};
use aftershock_core::span::Injection;
use aftershock_core::trace::Trace;

use crate::error::GenerateError;
use crate::explain::{Explanation, Fate, PassExplanation, TraceExplanation, entry, explain};
use crate::guard::{Warning, disturbed, known_at_target};
use crate::site::{Groups, Site, acting_side};
use crate::{patterns, stream};

/// Traces by what they can say about a target.
#[derive(Debug)]
pub(crate) struct Reach<'a> {
    /// Their entry reaches the target: all of these must.
    pub(crate) relevant: Vec<&'a Trace>,
    /// No trace of their entry reaches it.
    pub(crate) others: Vec<&'a Trace>,
}

/// Sort `traces` by whether their entry reaches pass `number` of `site`.
///
/// # Errors
/// When no trace does, or when one trace of an entry does and another does not.
pub(crate) fn reach<'a>(
    site: &Site,
    name: &dyn std::fmt::Display,
    number: u32,
    traces: &'a [Trace],
) -> Result<Reach<'a>, GenerateError> {
    let count = |trace: &Trace| u32::try_from(site.passes(trace).len()).unwrap_or(u32::MAX);
    let entries: BTreeSet<String> = traces.iter().filter(|trace| count(trace) >= number).map(entry).collect();
    let (relevant, others): (Vec<&Trace>, Vec<&Trace>) =
        traces.iter().partition(|trace| entries.is_empty() || entries.contains(&entry(trace)));
    let short: Vec<_> = relevant.iter().filter(|trace| count(trace) < number).collect();
    if short.is_empty() {
        return Ok(Reach { relevant, others });
    }
    Err(GenerateError::Unreached {
        target: name.to_string(),
        traces: short.iter().map(|trace| trace.execution).collect(),
        total: traces.len(),
        most: short.iter().map(|trace| count(trace)).max().unwrap_or(0),
    })
}

/// Check a guard on every trace. `number` is the pass that is meant. With `number_alone` it is known that only the number
/// tells earlier passes apart, and "false before" is not asked.
///
/// # Errors
/// The first thing that is wrong, naming the trace.
pub(crate) fn check(
    explanation: &Explanation,
    number: u32,
    reach: &Reach<'_>,
    number_alone: bool,
) -> Result<(), GenerateError> {
    let relevant: BTreeSet<_> = reach.relevant.iter().map(|trace| trace.execution).collect();
    // The number does it where an arbiter counts, which it does if there are several instances, whatever one trace shows.
    let arbitrated =
        explanation.tfic.target.k != Occurrence::First && explanation.traces.iter().any(|trace| trace.instances > 1);
    for trace in &explanation.traces {
        if relevant.contains(&trace.execution) {
            at_target(explanation, trace, number)?;
            if !number_alone && !arbitrated {
                before(explanation, trace, number)?;
            }
        } else if explanation.tfic.target.k == Occurrence::First
            && let Some(pass) = trace.fires
        {
            return Err(GenerateError::TrueBefore { trace: trace.execution, pass });
        }
    }
    Ok(())
}

/// The fault acts on the pass that is meant, as far as what happens there decides.
fn at_target(explanation: &Explanation, trace: &TraceExplanation, number: u32) -> Result<(), GenerateError> {
    let Some(pass) = trace.passes.iter().find(|pass| pass.number == number) else { return Ok(()) };
    let atoms = &explanation.tfic.guard.after;
    let falses = match &pass.fate {
        Fate::Outcome(found) => {
            return Err(GenerateError::Outcome { trace: trace.execution, pass: number, found: *found });
        }
        Fate::GuardFalse(falses) | Fate::HeldInVain(falses) => falses,
        Fate::Fires | Fate::FiresHeld { .. } | Fate::AnotherNumber | Fate::Spent => return Ok(()),
    };
    let Some(first) = falses.first() else { return Ok(()) };
    Err(GenerateError::FalseAtTarget {
        atom: Box::new(atoms[*first].clone()),
        trace: trace.execution,
        service: explanation.site.service.clone(),
        count: pass.counts[*first],
        held: matches!(pass.fate, Fate::HeldInVain(_)),
    })
}

/// It acts on none before, and the guard is false at those that could be faulted by their outcome.
fn before(explanation: &Explanation, trace: &TraceExplanation, number: u32) -> Result<(), GenerateError> {
    let early = |pass: &PassExplanation| match explanation.tfic.target.k {
        Occurrence::First => matches!(pass.fate, Fate::Fires | Fate::FiresHeld { .. }),
        Occurrence::Number(_) => pass.guard,
    };
    match trace.passes.iter().find(|pass| pass.number < number && early(pass)) {
        Some(pass) => Err(GenerateError::TrueBefore { trace: trace.execution, pass: pass.number }),
        None => Ok(()),
    }
}

/// Check a plan, written by hand or synthesized, against clean traces before anything is armed: each target is reached,
/// each event of a guard exists, each guard holds at its target, also with what the plan's other faults may keep from
/// happening. That a guard with a numbered `k` also holds at an earlier pass is no error: the number decides.
///
/// # Errors
/// When a fault of the plan could not fire on these traces.
pub fn plan(plan: &Plan, traces: &[Trace]) -> Result<PlanValidation, GenerateError> {
    let mut explanations = Vec::new();
    let mut warnings = Vec::new();
    for (index, tfic) in plan.faults.iter().enumerate() {
        let others: Vec<&Tfic> =
            plan.faults.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, tfic)| tfic).collect();
        let mut explanation = explain(tfic, &plan.groups, traces)?;
        stream::check(&tfic.target, &tfic.fault, &explanation.site, traces)?;
        if tfic.fault == Fault::Release && tfic.hold.is_none() {
            return Err(GenerateError::Release);
        }
        if let Err(GenerateError::FalseAtTarget { .. }) = fires(&explanation, traces) {
            // The answer that another fault makes is an event too.
            let made = traces.iter().map(|trace| answered(trace, &others, &plan.groups, traces));
            let made = made.collect::<Result<Vec<Trace>, _>>()?;
            let with_them = explain(tfic, &plan.groups, &made)?;
            if made != traces && fires(&with_them, &made).is_ok() {
                warnings.push(Warning::RestsOnFaults { fault: index });
                explanation = with_them;
                patterns::atoms(&tfic.guard.after, &plan.groups, &traces.iter().collect::<Vec<_>>())?;
                explanations.push(explanation);
                continue;
            }
        }
        let tfic = &explanation.tfic;
        patterns::atoms(&tfic.guard.after, &plan.groups, &traces.iter().collect::<Vec<_>>())?;
        let (number, reach) = fires(&explanation, traces)?;
        warnings.extend(together(index, &explanation, number, &others, &plan.groups, traces, &reach)?);
        explanations.push(explanation);
    }
    Ok(PlanValidation { explanations, warnings })
}

/// The pass that is meant, and the traces that reach it, in all of which the fault fires.
fn fires<'a>(explanation: &Explanation, traces: &'a [Trace]) -> Result<(u32, Reach<'a>), GenerateError> {
    let target = &explanation.tfic.target;
    let number = match target.k {
        Occurrence::Number(k) => k,
        // Which pass is meant is not in the file: the first that fires, in any trace.
        Occurrence::First => explanation.traces.iter().filter_map(|trace| trace.fires).min().unwrap_or(1),
    };
    let reach = reach(&explanation.site, target, number, traces)?;
    for trace in explanation.traces.iter().filter(|t| reach.relevant.iter().any(|r| r.execution == t.execution)) {
        match target.k {
            Occurrence::Number(_) => at_target(explanation, trace, number)?,
            Occurrence::First if trace.fires.is_none() => {
                let last = trace.passes.last().map_or(0, |pass| pass.number);
                at_target(explanation, trace, last)?;
            }
            Occurrence::First => {}
        }
    }
    Ok((number, reach))
}

/// `trace` with the answers that faults of a plan make at callers' sidecars in place of the recorded ones, which count as
/// `error` (design §3.4). What the application makes of them is not known: the rest stays as it was.
fn answered(trace: &Trace, faults: &[&Tfic], groups: &Groups, traces: &[Trace]) -> Result<Trace, GenerateError> {
    let mut made = trace.clone();
    for fault in faults.iter().filter(|fault| matches!(fault.fault, Fault::Abort | Fault::Error(_) | Fault::Reset(_))) {
        let site = acting_side(&fault.target, groups, traces)?;
        let meant = match fault.target.k {
            Occurrence::Number(k) => k,
            Occurrence::First => 1,
        };
        let passes = site.passes(trace);
        let Some(pass) = passes.iter().find(|pass| pass.number == meant && site.side == Side::Caller) else { continue };
        let Some(call) = made.calls.iter_mut().find(|call| call.id == pass.step.call.id) else { continue };
        let Some(client) = call.client.as_mut() else { continue };
        (client.outcome, client.made) = (Some(Outcome::Error), true);
        if fault.target.phase == Phase::Request {
            // A request that did not leave is answered at once, and takes no number as a response.
            let decided = client.request.clock.saturating_sub(1);
            let fault = fault.fault.to_string();
            client.injection = Some(Injection { rule: usize::MAX, k: meant, decided, held: false, fault });
            (client.evidence_went, client.evidence_came) = (false, false);
            call.server = None;
        }
    }
    Ok(made)
}

/// What became of a plan's check.
#[derive(Debug, Clone)]
pub struct PlanValidation {
    /// One for each fault of the plan.
    pub explanations: Vec<Explanation>,
    /// What may go wrong although every fault fires on the clean traces.
    pub warnings: Vec<Warning>,
}

/// Atoms that the plan's other faults may keep from becoming true.
pub(crate) fn together(
    index: usize,
    explanation: &Explanation,
    number: u32,
    others: &[&Tfic],
    groups: &Groups,
    traces: &[Trace],
    reach: &Reach<'_>,
) -> Result<Vec<Warning>, GenerateError> {
    let mut shaken = BTreeSet::new();
    let tfic = &explanation.tfic;
    let events = tfic
        .guard
        .after
        .iter()
        .map(|atom| crate::site::counted(atom.event(), groups))
        .collect::<Result<Vec<_>, _>>()?;
    for trace in &reach.relevant {
        let passes = explanation.site.passes(trace);
        let Some(pass) = passes.iter().find(|pass| pass.number == number) else { continue };
        let removed = disturbed(others, groups, traces, trace, &pass.step)?;
        let known = known_at_target(tfic, &explanation.site, trace, &events, &passes, pass, &removed);
        let own = explanation.site.own_event(&tfic.target);
        for atom in &tfic.guard.after {
            let count = if atom.event() == own && explanation.site.at.is_none() {
                let earlier = passes.iter().filter(|pass| pass.number < number && !removed.contains(&pass.step));
                earlier.count() as u64
            } else {
                known.count(atom.event().id())
            };
            if count < atom.count {
                shaken.insert(atom.clone());
            }
        }
    }
    Ok(shaken.into_iter().map(|atom| Warning::Falsifiable { fault: index, atom }).collect())
}

/// Whether a target may fault responses of a callee that has no sidecar in some trace: the post-effect condition then
/// rests on the answer alone.
pub(crate) fn callee_without_sidecar(explanation: &Explanation, traces: &[&Trace]) -> bool {
    explanation.tfic.target.post_effect
        && explanation.tfic.target.outcome != OutcomeFilter::Error
        && traces.iter().any(|trace| explanation.site.passes(trace).iter().any(|pass| pass.step.call.server.is_none()))
}
