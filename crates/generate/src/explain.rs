//! What a temporal fault would do on given traces: each pass of its target, which atom is true there, where it fires.
//!
//! Without `hold` this is read off the replayed trace. With `hold` a parked message changes what happens next, so the
//! trace is replayed with the message and everything causally after it left out; with `k: first` every pass may be
//! parked, so all of them are left out. What a parked message brought is known all the same: a sidecar merges before it
//! decides.

use std::fmt::Write as _;

use aftershock_core::event::{CountedEvent, Outcome};
use aftershock_core::evidence::Evidence;
use aftershock_core::id::{CallId, ExecutionId};
use aftershock_core::plan::{Atom, Occurrence, StreamPoint, Tfic};
use aftershock_core::trace::Trace;
use serde::Serialize;

use crate::after::{Removed, after_messages};
use crate::error::GenerateError;
use crate::site::{Groups, Site, SitePass, acting_side, counted, refused_outcome};
use crate::stream;
use crate::visible::Replayed;

/// What a temporal fault would do on some traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The fault, with the caller filled in where the traces show it.
    pub tfic: Tfic,
    /// Where it acts.
    pub site: Site,
    /// One for each trace, in the given order.
    pub traces: Vec<TraceExplanation>,
}

/// What it would do in one execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceExplanation {
    /// Which execution.
    pub execution: ExecutionId,
    /// Its entry, as text.
    pub entry: String,
    /// How many instances of the acting service the passes go through. With more than one an arbiter numbers them; their
    /// order in a trace is then only one of those that the clock allows.
    pub instances: usize,
    /// For each atom of the guard the clock at which it becomes true at the acting sidecar; none if it does not.
    pub true_since: Vec<Option<u64>>,
    /// The messages of the target.
    pub passes: Vec<PassExplanation>,
    /// The number of the pass that is faulted.
    pub fires: Option<u32>,
}

/// One message of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassExplanation {
    /// Its number.
    pub number: u32,
    /// Its call.
    pub call: CallId,
    /// The clock of its event.
    pub clock: u64,
    /// Its outcome, for a response.
    pub outcome: Option<Outcome>,
    /// How often the event of each atom is visible at the decision, in the order of the guard.
    pub counts: Vec<u64>,
    /// Whether the guard holds at the decision.
    pub guard: bool,
    /// What becomes of it.
    pub fate: Fate,
    /// What was done to it in the round that this trace is of; none in a clean trace.
    pub injected: Option<String>,
}

/// What becomes of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is faulted when it comes.
    Fires,
    /// It is parked, and faulted when the guard turns true.
    FiresHeld {
        /// The clock of the step that makes it true.
        clock: u64,
        /// How long that takes in this trace, by the sidecar's own clock; later with everything that waits.
        waited_nanos: u64,
    },
    /// It is parked until its deadline: these atoms, by position, never become true.
    HeldInVain(Vec<usize>),
    /// It has another number than the target.
    AnotherNumber,
    /// It has an outcome that the target does not take.
    Outcome(Option<Outcome>),
    /// These atoms, by position, are false.
    GuardFalse(Vec<usize>),
    /// The fault has fired before.
    Spent,
}

/// What `tfic` would do on `traces`.
///
/// # Errors
/// When no trace has a call of the target, its caller is ambiguous, or a group is not defined. A target that is reached
/// in no trace or a guard that never holds is no error here: the explanation shows it.
pub fn explain(tfic: &Tfic, groups: &Groups, traces: &[Trace]) -> Result<Explanation, GenerateError> {
    if traces.is_empty() {
        return Err(GenerateError::NoTraces);
    }
    let site = acting_side(&tfic.target, groups, traces)?;
    let mut tfic = tfic.clone();
    tfic.target.caller = site.caller.clone();
    let events =
        tfic.guard.after.iter().map(|atom| counted(atom.event(), groups)).collect::<Result<Vec<CountedEvent>, _>>()?;
    let judge = Judge { tfic: &tfic, site: &site, events: &events };
    let traces = traces.iter().map(|trace| judge.trace(trace)).collect();
    Ok(Explanation { traces, site, tfic })
}

/// Evaluates one temporal fault on one trace.
struct Judge<'a> {
    tfic: &'a Tfic,
    site: &'a Site,
    events: &'a [CountedEvent],
}

impl Judge<'_> {
    fn trace(&self, trace: &Trace) -> TraceExplanation {
        let replayed = Replayed::new(trace, self.events, &Removed::default());
        let passes = self.site.passes(trace);
        let instances = self.site.instances(trace);
        let atoms = &self.tfic.guard.after;
        let mut explained: Vec<PassExplanation> = Vec::new();
        let mut fires = None;
        for pass in &passes {
            let known = stream::sure(self.site, &replayed, &pass.step);
            let counts: Vec<u64> =
                (0..atoms.len()).map(|atom| self.count(atom, &known, &passes, pass, instances)).collect();
            let falses = positions(atoms, &counts);
            let fate =
                if fires.is_some() { Fate::Spent } else { self.fate(trace, &passes, pass, instances, &known, &falses) };
            if matches!(fate, Fate::Fires | Fate::FiresHeld { .. }) {
                fires = Some(pass.number);
            }
            explained.push(PassExplanation {
                number: pass.number,
                call: pass.step.call.id,
                clock: pass.step.at.clock,
                outcome: pass.step.outcome,
                guard: falses.is_empty(),
                counts,
                fate,
                injected: self.injected(pass),
            });
        }
        let decided_at = explained.iter().find(|pass| Some(pass.number) == fires).or(explained.last());
        let observer = decided_at
            .and_then(|pass| passes.iter().find(|p| p.number == pass.number))
            .map(|pass| pass.step.observer)
            .or_else(|| trace.steps().iter().find(|step| self.observes(step)).map(|step| step.observer));
        let true_since = atoms
            .iter()
            .map(|atom| {
                let seen = replayed.first_known(observer?, |evidence| atom.holds(evidence))?;
                Some(seen.step.at.clock)
            })
            .collect();
        let entry = entry(trace);
        TraceExplanation { execution: trace.execution, entry, instances, true_since, passes: explained, fires }
    }

    /// The fault that the trace says was done to this very message.
    fn injected(&self, pass: &SitePass<'_>) -> Option<String> {
        let span = pass.step.call.side(self.site.side)?;
        let done = span.injection.as_ref()?;
        let at_request = done.decided < span.request.clock;
        (at_request != pass.step.event.is_response()).then(|| done.fault.clone())
    }

    /// Whether `step` is seen by a sidecar of the acting service.
    fn observes(&self, step: &aftershock_core::trace::Step<'_>) -> bool {
        step.call.spans().any(|span| span.observer == step.observer && span.service == self.site.service)
    }

    /// The count that decides on an atom, by its position: with several instances the arbiter's count of earlier passes
    /// for the target's own event.
    fn count(
        &self,
        atom: usize,
        known: &Evidence,
        passes: &[SitePass<'_>],
        pass: &SitePass<'_>,
        instances: usize,
    ) -> u64 {
        let event = &self.events[atom];
        if instances > 1 && self.site.is_own(event) {
            let counts = |p: &&SitePass<'_>| p.number < pass.number && event.event.outcome.admits(p.step.outcome);
            return passes.iter().filter(counts).count() as u64;
        }
        known.count(event.event.id())
    }

    fn fate(
        &self,
        trace: &Trace,
        passes: &[SitePass<'_>],
        pass: &SitePass<'_>,
        instances: usize,
        known: &Evidence,
        falses: &[usize],
    ) -> Fate {
        if let Occurrence::Number(k) = self.tfic.target.k
            && pass.number != k
        {
            return Fate::AnotherNumber;
        }
        if let Some(outcome) = refused_outcome(&self.tfic.target, &pass.step) {
            return Fate::Outcome(outcome);
        }
        if falses.is_empty() {
            return Fate::Fires;
        }
        if self.tfic.hold.is_none() {
            return Fate::GuardFalse(falses.to_vec());
        }
        let removed = held_away(self.tfic, trace, passes, pass);
        let without = Replayed::new(trace, self.events, &removed);
        let falses = |evidence: &Evidence| -> Vec<usize> {
            let atoms = &self.tfic.guard.after;
            let known = joined(known, evidence);
            let counts: Vec<u64> =
                (0..atoms.len()).map(|atom| self.count(atom, &known, passes, pass, instances)).collect();
            positions(atoms, &counts)
        };
        let observer = pass.step.observer;
        // What was known when the message came was not enough, so this is a step after it.
        match without.first_known(observer, |evidence| falses(evidence).is_empty()) {
            Some(seen) => Fate::FiresHeld {
                clock: seen.step.at.clock,
                waited_nanos: seen.step.at.unix_nanos.saturating_sub(pass.step.at.unix_nanos),
            },
            None => Fate::HeldInVain(falses(&without.finally(observer))),
        }
    }
}

/// What both know.
pub(crate) fn joined(one: &Evidence, other: &Evidence) -> Evidence {
    let mut both = one.clone();
    both.merge(other);
    both
}

/// The atoms that are false at these counts.
fn positions(atoms: &[Atom], counts: &[u64]) -> Vec<usize> {
    atoms.iter().zip(counts).enumerate().filter(|(_, (atom, n))| **n < atom.count).map(|(i, _)| i).collect()
}

/// What does not happen while `pass` is parked: with `k: first` every pass of the target may be.
pub(crate) fn held_away(tfic: &Tfic, trace: &Trace, passes: &[SitePass<'_>], pass: &SitePass<'_>) -> Removed {
    let message = |pass: &SitePass<'_>| (pass.step.call.id, pass.step.event);
    match tfic.target.k {
        Occurrence::Number(_) => after_messages(trace, [message(pass)]),
        Occurrence::First => after_messages(trace, passes.iter().map(message)),
    }
}

/// The entry of an execution, as text.
pub(crate) fn entry(trace: &Trace) -> String {
    let entry = trace.roots().find(|call| call.caller.is_none()).or_else(|| trace.roots().next());
    entry.map(|call| call.api.to_string()).unwrap_or_default()
}

impl Explanation {
    /// Where in a response, as text.
    fn inside(&self) -> String {
        match self.site.at {
            None => String::new(),
            Some(StreamPoint::Head) => ", at its head".to_owned(),
            Some(StreamPoint::Message(n)) => format!(", at message {n} of it"),
            Some(StreamPoint::Bytes(n)) => format!(", after {n} bytes of it"),
        }
    }

    /// As text, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("target  {}", self.tfic.target),
            format!("acts    at the sidecar of {}, on {}{}", self.site.service, self.site.event, self.inside()),
            format!(
                "fault   {}{}",
                self.tfic.fault,
                if self.tfic.hold.is_some() { ", held until the guard holds" } else { "" }
            ),
        ];
        match self.tfic.guard.after.as_slice() {
            [] => lines.push("guard   none: the target alone says when".to_owned()),
            atoms => {
                lines.push("guard   after".to_owned());
                lines.extend(atoms.iter().enumerate().map(|(i, atom)| format!("  [{}] {atom}", i + 1)));
            }
        }
        // Clean traces are mostly alike: each way they go is shown once.
        let mut ways: Vec<(Vec<String>, Vec<ExecutionId>)> = Vec::new();
        for trace in &self.traces {
            let way = trace.render(&self.tfic.guard.after);
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, traces)) => traces.push(trace.execution),
                None => ways.push((way, vec![trace.execution])),
            }
        }
        for (way, traces) in ways {
            let more = match traces.len() {
                1 => String::new(),
                n => format!(" and {} alike", n - 1),
            };
            lines.push(format!("trace {}{more} {}", traces[0], way[0]));
            lines.extend(way.into_iter().skip(1));
        }
        lines
    }
}

impl TraceExplanation {
    /// The first line goes behind the name of the trace.
    fn render(&self, atoms: &[Atom]) -> Vec<String> {
        let fires = match self.fires {
            Some(pass) => format!("fires at pass {pass} of {}", self.passes.len()),
            None if self.passes.is_empty() => "the target is not reached".to_owned(),
            None => format!("does not fire ({} passes)", self.passes.len()),
        };
        let mut lines = vec![format!("({}): {fires}", self.entry)];
        for (i, since) in self.true_since.iter().enumerate() {
            lines.push(match since {
                Some(clock) => format!("  [{}] is true from clock {clock} on", i + 1),
                None => format!("  [{}] never becomes true", i + 1),
            });
        }
        if self.instances > 1 {
            lines.push(format!("  the passes go through {} instances: an arbiter numbers them", self.instances));
        }
        lines.extend(self.passes.iter().map(|pass| pass.render(atoms)));
        lines
    }
}

impl PassExplanation {
    fn render(&self, atoms: &[Atom]) -> String {
        let mut line = format!("  pass {} at clock {}", self.number, self.clock);
        if let Some(outcome) = self.outcome {
            let _ = write!(line, ", {outcome}");
        }
        for (i, (atom, count)) in atoms.iter().zip(&self.counts).enumerate() {
            let mark = if *count >= atom.count { "true" } else { "false" };
            let _ = write!(line, ", [{}] {mark} ({count} of {})", i + 1, atom.count);
        }
        let _ = write!(line, ": {}", self.fate.render());
        if let Some(fault) = &self.injected {
            let _ = write!(line, "; was faulted ({fault}) in this trace");
        }
        line
    }
}

impl Fate {
    fn render(&self) -> String {
        let numbers = |falses: &[usize]| falses.iter().map(|i| format!("[{}]", i + 1)).collect::<Vec<_>>().join(", ");
        match self {
            Fate::Fires => "fires".to_owned(),
            Fate::FiresHeld { clock, waited_nanos } => {
                let millis = *waited_nanos as f64 / 1e6;
                format!("is held, fires when clock {clock} is seen ({millis:.1} ms later in this trace)")
            }
            Fate::HeldInVain(falses) => format!("is held to its deadline, {} cannot become true", numbers(falses)),
            Fate::AnotherNumber => "another number".to_owned(),
            Fate::Outcome(Some(outcome)) => format!("outcome {outcome} is not taken"),
            Fate::Outcome(None) => "no outcome".to_owned(),
            Fate::GuardFalse(falses) => format!("guard false, {}", numbers(falses)),
            Fate::Spent => "after the fault".to_owned(),
        }
    }
}
