//! What became of the faults of a round (design §3.7): a pure function of what was recorded.
//!
//! The sidecars do not judge themselves. Their records are taken for what they saw; that a fault fell into its window
//! is counted again from the events of all sidecars. Two directions of doubt never mix: a verdict that accuses
//! (`multiple`, `premature`) needs proof, and so does a verdict that reassures (`unreached`, `missed`, `injected`);
//! what can be proved neither way is `incomplete`.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::plan::{Channel, Plan, Rule};
use aftershock_core::span::{CallSpan, Injection};
use aftershock_core::trace::{Call, Trace};
use aftershock_core::wire::CutConnections;

use crate::api::{ArbiterEntry, CutVerdict, FaultVerdict, Verdict};

mod arbitration;
mod causal;
mod cut;
mod missed;
mod pass;
mod record;
mod window;

use arbitration::Arbitration;
use causal::After;
pub use cut::judge as judge_cuts;
use pass::{Armed, Sighting, Unjudged, misnumbered};
use record::Holes;
use window::times;

/// A sidecar said that a rule fired ([`FromSidecar::Fired`](aftershock_core::wire::FromSidecar::Fired)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fired {
    /// The rule's position in its plan.
    pub rule: usize,
    /// In which execution.
    pub execution: ExecutionId,
    /// On which call.
    pub call: CallId,
    /// Who said so.
    pub observer: ObserverId,
}

/// Why a round could not be run as planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A sidecar did not acknowledge the plan, or the plan could not be armed at all.
    #[error("arming failed: {0}")]
    Arming(String),
    /// The client could not be run; a request that failed is no such case.
    #[error("the client could not be run: {0}")]
    Client(String),
    /// A lease ran out before the round's completion.
    #[error("the lease lapsed at the sidecar of {service} ({observer})")]
    LeaseLapsed {
        /// The sidecar's service.
        service: Service,
        /// The sidecar.
        observer: ObserverId,
    },
    /// An armed sidecar's connection or process ended before the round's completion, fired or not.
    #[error("the armed sidecar of {service} ({observer}) died")]
    SidecarDied {
        /// The sidecar's service.
        service: Service,
        /// The sidecar.
        observer: ObserverId,
    },
    /// Whoever drove the round fell silent, or it was ended from outside.
    #[error("the round was ended early: {0}")]
    Ended(String),
}

/// Everything a verdict rests on.
#[derive(Debug, Clone, Copy)]
pub struct RoundFacts<'a> {
    /// What was to be armed.
    pub plan: &'a Plan,
    /// The plan's faults as the sidecars were armed with them; empty if it did not come to that.
    pub rules: &'a [Rule],
    /// The sidecars that acknowledged the rules, with their services.
    pub armed: &'a BTreeMap<ObserverId, Service>,
    /// The executions of the round, from all spans that arrived.
    pub traces: &'a [Trace],
    /// What sidecars said at once when a rule fired.
    pub fired: &'a [Fired],
    /// Why the round could not be run as planned.
    pub failures: &'a [Failure],
    /// What the arbiter did, in its order.
    pub arbiter: &'a [ArbiterEntry],
    /// The connections that met the cuts of the plan.
    pub cut: &'a BTreeMap<Channel, CutConnections>,
    /// Executions that are not complete (design §3.11), and why.
    pub incomplete: &'a BTreeMap<ExecutionId, String>,
    /// What else is missing from the record of the round, as sentences: spans a sidecar lost, a flush that was not
    /// answered. Empty if every sidecar's record is here.
    pub missing: &'a [String],
}

/// One verdict for each fault of the plan, in its order; none for a clean recording.
pub fn judge(facts: &RoundFacts<'_>) -> Vec<FaultVerdict> {
    (0..facts.plan.faults.len()).map(|index| judge_fault(facts, index)).collect()
}

/// The verdict of the round: the worst of its faults' and its cuts', or what a clean recording is worth.
pub fn of_round(facts: &RoundFacts<'_>, faults: &[FaultVerdict], cuts: &[CutVerdict]) -> Verdict {
    let verdicts = faults.iter().map(|fault| fault.verdict).chain(cuts.iter().map(|cut| cut.verdict));
    if let Some(worst) = verdicts.min() {
        return worst;
    }
    if !facts.failures.is_empty() {
        Verdict::Inconclusive
    } else if record_reasons(facts).is_empty() && !facts.traces.is_empty() {
        Verdict::Clean
    } else {
        Verdict::Incomplete
    }
}

/// What is missing from the record of the round, as sentences; empty if it is whole. This alone keeps a recording
/// without faults from being `clean`, besides a failure and the lack of any execution.
pub fn record_reasons(facts: &RoundFacts<'_>) -> Vec<String> {
    let mut reasons = facts.missing.to_vec();
    reasons.extend(facts.incomplete.iter().map(|(execution, why)| in_execution(*execution, why)));
    for trace in facts.traces {
        let holes = Holes::of(trace, facts.rules);
        reasons.extend(holes.spans.iter().map(|hole| in_execution(trace.execution, hole)));
    }
    reasons
}

fn in_execution(execution: ExecutionId, reason: &str) -> String {
    format!("execution {execution}: {reason}")
}

/// A fault that fired, where.
struct Hit<'a> {
    trace: &'a Trace,
    sightings: Vec<Sighting<'a>>,
    at: usize,
    injection: &'a Injection,
}

impl<'a> Hit<'a> {
    fn sighting(&self) -> &Sighting<'a> {
        &self.sightings[self.at]
    }
}

fn judge_fault(facts: &RoundFacts<'_>, index: usize) -> FaultVerdict {
    let tfic = &facts.plan.faults[index];
    let rules = facts.rules.iter().filter(|rule| rule.index == index).collect();
    let limit = tfic.max_injections.limit();
    let arbitration = Arbitration::of(facts.arbiter, index, limit, &recorded(facts, index));
    let armed = Armed { index, tfic, rules, sidecars: facts.armed, plan_rules: facts.rules, arbitration };
    let hits = hits(facts, &armed);
    let unrecorded = unrecorded(facts, &armed, &hits);

    let multiple = multiple(limit, &hits, &unrecorded);
    let premature = premature(facts, &armed, &hits);
    let injections = u32::try_from(hits.len() + unrecorded.len()).unwrap_or(u32::MAX);
    let premature_hits =
        u32::try_from(premature.iter().filter(|reasons| !reasons.is_empty()).count()).unwrap_or(u32::MAX);
    let premature: Vec<String> = premature.concat();

    let (verdict, reasons) = if !multiple.is_empty() {
        (Verdict::Multiple, [multiple.clone(), premature].concat())
    } else if !premature.is_empty() {
        (Verdict::Premature, premature)
    } else if !facts.failures.is_empty() {
        (Verdict::Inconclusive, facts.failures.iter().map(Failure::to_string).collect())
    } else if armed.rules.is_empty() {
        (Verdict::Inconclusive, vec!["no sidecar was armed with this fault".to_owned()])
    } else if injections > 0 {
        fired(facts, &armed, &hits, &unrecorded)
    } else {
        not_fired(facts, &armed)
    };
    FaultVerdict {
        rule: index,
        verdict,
        reasons,
        injections,
        premature: premature_hits,
        multiple: !multiple.is_empty(),
    }
}

/// The calls that are on record as hit by this fault.
fn recorded(facts: &RoundFacts<'_>, index: usize) -> BTreeSet<(ExecutionId, CallId)> {
    let of = |trace: &'_ Trace| -> Vec<(ExecutionId, CallId)> {
        let spans = trace.calls.iter().flat_map(|call| call.spans().map(|span| (call.id, span)));
        let hit = |span: &CallSpan| span.injection.as_ref().is_some_and(|injection| injection.rule == index);
        spans.filter(|(_, span)| hit(span)).map(|(call, _)| (trace.execution, call)).collect()
    };
    facts.traces.iter().flat_map(of).collect()
}

/// What was said to have fired, to the controller or to the arbiter, and is on no span.
fn unrecorded(facts: &RoundFacts<'_>, armed: &Armed<'_>, hits: &[Hit<'_>]) -> Vec<Fired> {
    let rule = armed.index;
    let logged = armed.arbitration.shots();
    let logged = logged.map(|((execution, call), observer)| Fired { rule, execution, call, observer });
    let mut said: BTreeMap<(ExecutionId, CallId), Fired> = BTreeMap::new();
    for fired in facts.fired.iter().copied().filter(|fired| fired.rule == rule).chain(logged) {
        said.entry((fired.execution, fired.call)).or_insert(fired);
    }
    for hit in hits {
        said.remove(&(hit.trace.execution, hit.sighting().call.id));
    }
    said.into_values().collect()
}

fn hits<'a>(facts: &RoundFacts<'a>, armed: &Armed<'a>) -> Vec<Hit<'a>> {
    let mut hits = Vec::new();
    for trace in facts.traces {
        let sightings = armed.sightings(trace);
        for (at, sighting) in sightings.iter().enumerate() {
            if let Some(injection) = sighting.hit {
                hits.push(Hit { trace, sightings: sightings.clone(), at, injection });
            }
        }
    }
    hits
}

/// Twice in one execution, or more often than the round allows.
fn multiple(limit: u32, hits: &[Hit<'_>], unrecorded: &[Fired]) -> Vec<String> {
    let mut per_execution: BTreeMap<ExecutionId, u64> = BTreeMap::new();
    let executions = hits.iter().map(|hit| hit.trace.execution).chain(unrecorded.iter().map(|fired| fired.execution));
    for execution in executions {
        *per_execution.entry(execution).or_insert(0) += 1;
    }
    let mut reasons: Vec<String> = per_execution
        .iter()
        .filter(|(_, n)| **n > 1)
        .map(|(execution, n)| in_execution(*execution, &format!("it fired {}", times(*n))))
        .collect();
    let total: u64 = per_execution.values().sum();
    if total > u64::from(limit) {
        reasons.push(format!("it fired {} in the round, which allows {limit}", times(total)));
    }
    reasons
}

/// For each hit, how it was outside its window; empty where it was inside, or where the record is too thin to say.
fn premature(facts: &RoundFacts<'_>, armed: &Armed<'_>, hits: &[Hit<'_>]) -> Vec<Vec<String>> {
    let dead = facts.failures.iter().any(|failure| matches!(failure, Failure::SidecarDied { .. }));
    hits.iter()
        .map(|hit| {
            let execution = hit.trace.execution;
            let whole = !dead
                && facts.missing.is_empty()
                && !facts.incomplete.contains_key(&execution)
                && Holes::of(hit.trace, facts.rules).spans.is_empty()
                && armed.arbiters_doubts(facts.traces, Some(execution)).is_empty();
            if !whole || armed.rules.is_empty() {
                return Vec::new();
            }
            window::outside(armed, facts.plan, hit.trace, &hit.sightings, hit.sighting(), hit.injection)
                .iter()
                .map(|reason| in_execution(execution, reason))
                .collect()
        })
        .collect()
}

/// It fired, inside its window as far as is known: `injected` if nothing puts that in doubt.
fn fired(facts: &RoundFacts<'_>, armed: &Armed<'_>, hits: &[Hit<'_>], unrecorded: &[Fired]) -> (Verdict, Vec<String>) {
    let mut doubts = record_reasons(facts);
    doubts.extend(armed.arbiters_doubts(facts.traces, None));
    for fired in unrecorded {
        let says =
            format!("the sidecar {} said that it fired on call {}, whose span is missing", fired.observer, fired.call);
        doubts.push(in_execution(fired.execution, &says));
    }
    for hit in hits {
        let execution = hit.trace.execution;
        for rule in &armed.rules {
            let blocked = |span: &&CallSpan| span.gaps.blocks_number(&rule.service);
            if let Some(span) = hit.trace.calls.iter().flat_map(Call::spans).find(blocked) {
                let gap = format!(
                    "passes at {} may have been missed, says the span of {} at {}",
                    rule.service, span.api, span.service
                );
                doubts.push(in_execution(execution, &gap));
            }
        }
        let after = After::moment(hit.trace, hit.sighting().span.observer, hit.injection.decided);
        let before = |pass: &Unjudged<'_>| !pass.follows(armed, hit, &after);
        let unjudged = armed.unjudged(hit.trace).into_iter().filter(before);
        // The hit itself may be the one that lost its header: it does not follow itself.
        let headerless = armed.headerless(hit.trace).into_iter().filter(before);
        doubts.extend(unjudged.chain(headerless).map(|pass| in_execution(execution, &pass.reason)));
    }
    if !doubts.is_empty() {
        return (Verdict::Incomplete, doubts);
    }
    let reasons = hits.iter().map(|hit| in_execution(hit.trace.execution, &success(armed, hit))).collect();
    (Verdict::Injected, reasons)
}

fn success(armed: &Armed<'_>, hit: &Hit<'_>) -> String {
    let Injection { decided, held, fault, .. } = hit.injection;
    let k = hit.sighting().number.unwrap_or(hit.injection.k);
    let place = armed.place(hit.sighting().span);
    let held = if *held { ", which was held for it," } else { "" };
    format!("{fault} of {place}, pass {k}{held} was decided at clock {decided}, when {} held", armed.tfic.guard)
}

/// It fired nowhere: `unreached` or `missed`, if that is certain.
fn not_fired(facts: &RoundFacts<'_>, armed: &Armed<'_>) -> (Verdict, Vec<String>) {
    let mut doubts = record_reasons(facts);
    doubts.extend(armed.arbiters_doubts(facts.traces, None));
    for trace in facts.traces {
        let holes = Holes::of(trace, facts.rules);
        let unjudged = armed.undecided(trace).into_iter().chain(armed.headerless(trace)).map(|pass| pass.reason);
        let mut here: Vec<String> = holes.evidence.into_iter().chain(holes.gaps).chain(unjudged).collect();
        if let Some(k) = misnumbered(&armed.sightings(trace), armed.tfic.target.k) {
            here.push(format!("pass {k} of the target is not in the record"));
        }
        doubts.extend(here.iter().map(|reason| in_execution(trace.execution, reason)));
    }
    if !doubts.is_empty() {
        return (Verdict::Incomplete, doubts);
    }
    missed::explain(facts.plan, armed, facts.traces)
}

#[cfg(test)]
mod tests;
