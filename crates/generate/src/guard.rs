//! Guard synthesis (design §4.2): pattern atoms ∪ a minimum hitting set.
//!
//! For a target σ at position `i_σ(τ)` of every clean trace τ: `U = {(e, min_τ v_τ(e, i_σ)) : min > 0}`; for every
//! earlier occurrence p at the same injection point `D_τ(p) = {(e, t) ∈ U : v_τ(e, p) < t}`; `G*` is a minimum hitting
//! set of all D, and the guard is the pattern's atoms ∪ `G*`.
//!
//! * Numbered `k`: the own event (k − 1) is in every D and first among ties, so `G*` is just that.
//! * `k: first`: U is without the own event, and, where the rest suffices, without the other instants of the target's
//!   own calls, which count the same occurrences: such a guard survives changes of repeat counts. Earlier passes that
//!   the target would not fault by their outcome need not be told apart.
//! * `hold`: v at the target is what the sidecar knows in the end with the message and everything causally after it
//!   removed; what came with the message is known.
//! * Several faults: atoms that another one may keep from becoming true are left out of U.
//! * `at:` inside a response: v at the target is a lower bound, and with a number nothing need be told apart (`stream`).

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{CountedEvent, Event};
use aftershock_core::evidence::Evidence;
use aftershock_core::id::ExecutionId;
use aftershock_core::name::Service;
use aftershock_core::plan::{
    Atom, Fault, Guard, Hold, MaxInjections, Occurrence, Pattern, Side, StreamPoint, Target, Tfic,
};
use aftershock_core::trace::{Step, Trace};
use serde::Serialize;

use crate::after::{Removed, after_message, after_messages};
use crate::error::GenerateError;
use crate::explain::{Explanation, explain, held_away, joined};
use crate::hitting_set::{self, Element, HittingSetError, Proof};
use crate::site::{Groups, Site, SitePass, acting_side, admits, counted};
use crate::visible::{Replayed, candidates};
pub use crate::warning::{WANTED_TRACES, Warning};
use crate::{patterns, stream, validate};

/// What a temporal fault is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where. With `k: first` [`Request::pass`] says which pass of the traces is meant.
    pub target: Target,
    /// What.
    pub fault: Fault,
    /// Which situation; by the other fields if left out ([`patterns::infer`]).
    pub pattern: Option<Pattern>,
    /// With `k: first`, the pass of the clean traces that is meant: the first if left out. Not used with a number.
    pub pass: Option<u32>,
    /// What must have been seen before, whatever the hitting set needs; see [`patterns::competing`].
    pub competing: Vec<Atom>,
    /// Park the message until the guard holds.
    pub hold: Option<Hold>,
    /// How often it fires in a round.
    pub max_injections: MaxInjections,
    /// The groups that target and events may name.
    pub groups: Groups,
    /// The other faults of the same plan.
    pub other_faults: Vec<Tfic>,
}

impl Request {
    /// A fault at a target, and nothing else asked.
    pub fn new(target: Target, fault: Fault) -> Self {
        Request {
            target,
            fault,
            pattern: None,
            pass: None,
            competing: Vec::new(),
            hold: None,
            max_injections: MaxInjections::default(),
            groups: Groups::new(),
            other_faults: Vec::new(),
        }
    }
}

/// A temporal fault made from clean traces, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Synthesis {
    /// The fault, with the caller filled in.
    pub tfic: Tfic,
    /// As whose sidecar it acts.
    pub side: Side,
    /// The calling service; none for a client without sidecar.
    pub caller: Option<Service>,
    /// U: what the acting sidecar is sure to know at the target.
    pub candidates: Vec<Candidate>,
    /// How many earlier occurrences the guard tells apart from the target, over all traces.
    pub earlier: usize,
    /// Why no smaller set of atoms does.
    pub proof: Proof,
    /// How many further occurrences it takes, at the earlier pass where it takes fewest, until the guard is true too
    /// early; none if there is no earlier pass to tell apart.
    pub margin: Option<u64>,
    /// What it does on the traces it was made from.
    pub explanation: Explanation,
    /// What the user should know.
    pub warnings: Vec<Warning>,
}

/// An element of U.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The event and its smallest count at the target.
    pub atom: Atom,
    /// It counts the target's own event at its caller.
    pub own: bool,
    /// The acting sidecar observes it itself.
    pub local: bool,
    /// The smallest distance between its threshold and its count at an earlier occurrence that it tells apart; none if
    /// it tells none.
    pub margin: Option<u64>,
    /// It is in the hitting set.
    pub chosen: bool,
}

/// Make a temporal fault that acts at the wanted occurrence of every clean trace and not before.
///
/// # Errors
/// When the target is not reached in every trace of an entry that reaches it, when its caller is ambiguous, when pattern
/// and request contradict each other, and when no guard over visible counts does what is wanted.
pub fn synthesize(request: &Request, traces: &[Trace]) -> Result<Synthesis, GenerateError> {
    if traces.is_empty() {
        return Err(GenerateError::NoTraces);
    }
    let mut target = patterns::target(request)?;
    if request.fault == Fault::Release && request.hold.is_none() {
        return Err(GenerateError::Release);
    }
    let site = acting_side(&target, &request.groups, traces)?;
    stream::check(&target, &request.fault, &site, traces)?;
    target.caller = site.caller.clone();
    let number = match target.k {
        Occurrence::Number(k) => k,
        Occurrence::First => request.pass.unwrap_or(1),
    };
    if target.k == Occurrence::First && request.hold.is_some() && number > 1 {
        return Err(GenerateError::HeldPass { pass: number });
    }
    let reach = validate::reach(&site, &target, number, traces)?;
    let mut tfic = Tfic {
        target,
        fault: request.fault.clone(),
        pattern: patterns::infer(request),
        guard: Guard::default(),
        hold: request.hold.clone(),
        max_injections: request.max_injections,
    };
    let mut atoms = patterns::atoms(&request.competing, &request.groups, &traces.iter().collect::<Vec<_>>())?;
    let ground = Ground { request, tfic: &tfic, site: &site, number, traces, reach: &reach };
    let mut warnings = ground.warnings();
    let solved = ground.solve(&mut warnings)?;
    atoms.extend(solved.candidates.iter().filter(|candidate| candidate.chosen).map(|c| c.atom.clone()));
    tfic.guard.after = strongest(atoms);

    let explanation = explain(&tfic, &request.groups, traces)?;
    let number_alone =
        warnings.contains(&Warning::OwnEventFalsifiable) || (site.at.is_some() && tfic.target.k != Occurrence::First);
    validate::check(&explanation, number, &reach, number_alone)?;
    if validate::callee_without_sidecar(&explanation, &reach.relevant) {
        warnings.push(Warning::CalleeWithoutSidecar);
    }
    let others: Vec<&Tfic> = request.other_faults.iter().collect();
    warnings.extend(validate::together(
        request.other_faults.len(),
        &explanation,
        number,
        &others,
        &request.groups,
        traces,
        &reach,
    )?);
    warnings.extend(too_short(&explanation));
    warnings.sort();
    Ok(Synthesis {
        side: site.side,
        caller: site.caller.clone(),
        candidates: solved.candidates,
        earlier: solved.earlier,
        proof: solved.proof,
        margin: solved.margin,
        tfic: explanation.tfic.clone(),
        explanation,
        warnings,
    })
}

/// Each event once, with its largest count, in the order of first mention.
fn strongest(atoms: Vec<Atom>) -> Vec<Atom> {
    let mut kept: Vec<Atom> = Vec::new();
    for atom in atoms {
        match kept.iter_mut().find(|other| other.event() == atom.event()) {
            Some(other) => other.count = other.count.max(atom.count),
            None => kept.push(atom),
        }
    }
    kept
}

fn too_short(explanation: &Explanation) -> Option<Warning> {
    use crate::explain::Fate;
    let deadline = explanation.tfic.hold.as_ref()?.deadline.0.as_nanos();
    let waits = explanation.traces.iter().flat_map(|trace| &trace.passes).filter_map(|pass| match pass.fate {
        Fate::FiresHeld { waited_nanos, .. } => Some(waited_nanos),
        _ => None,
    });
    let longest = waits.max()?;
    (u128::from(longest) > deadline).then_some(Warning::HoldDeadline { waited_nanos: longest })
}

/// What other faults of a plan may keep from happening before the message at `target`: their messages and everything
/// causally after them. A delay or a release only
/// lets it happen later, which does not matter where `target` comes after it anyway.
pub(crate) fn disturbed(
    others: &[&Tfic],
    groups: &Groups,
    traces: &[Trace],
    trace: &Trace,
    target: &Step<'_>,
) -> Result<Removed, GenerateError> {
    let mut messages = Vec::new();
    for other in others {
        let site = acting_side(&other.target, groups, traces)?;
        for pass in site.passes(trace) {
            let may_fire = match other.target.k {
                Occurrence::Number(k) => pass.number == k,
                Occurrence::First => true,
            };
            let message = (pass.step.call.id, pass.step.event);
            let shifted = || after_message(trace, message.0, message.1).contains(target);
            if may_fire && !(matches!(other.fault, Fault::Delay(_) | Fault::Release) && shifted()) {
                messages.push(message);
            }
        }
    }
    Ok(after_messages(trace, messages))
}

/// What decides at `pass` if `removed` does not happen: the evidence when it comes or, with `hold`, in the end.
pub(crate) fn known_at_target(
    tfic: &Tfic,
    site: &Site,
    trace: &Trace,
    counted: &[CountedEvent],
    passes: &[SitePass<'_>],
    pass: &SitePass<'_>,
    removed: &Removed,
) -> Evidence {
    let at_arrival = stream::sure(site, &Replayed::new(trace, counted, removed), &pass.step);
    if tfic.hold.is_none() {
        return at_arrival;
    }
    let mut gone = removed.clone();
    gone.extend(held_away(tfic, trace, passes, pass));
    joined(&at_arrival, &Replayed::new(trace, counted, &gone).finally(pass.step.observer))
}

/// What a guard is made from.
struct Ground<'a> {
    request: &'a Request,
    tfic: &'a Tfic,
    site: &'a Site,
    number: u32,
    traces: &'a [Trace],
    reach: &'a validate::Reach<'a>,
}

/// The hitting set and what it was chosen from.
struct Solved {
    candidates: Vec<Candidate>,
    earlier: usize,
    proof: Proof,
    margin: Option<u64>,
}

/// An earlier occurrence, with the count of each event there.
struct Earlier {
    trace: ExecutionId,
    pass: u32,
    counts: BTreeMap<Event, u64>,
}

impl Ground<'_> {
    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let having = |holds: &dyn Fn(&Trace) -> bool| -> Vec<ExecutionId> {
            self.reach.relevant.iter().filter(|trace| holds(trace)).map(|trace| trace.execution).collect()
        };
        let gaps = having(&|trace| trace.calls.iter().any(|call| call.spans().any(|span| !span.gaps.is_empty())));
        if !gaps.is_empty() {
            warnings.push(Warning::Gaps { traces: gaps });
        }
        let several = having(&|trace| self.site.instances(trace) > 1);
        if !several.is_empty() {
            warnings.push(Warning::Instances { traces: several });
        }
        let entries: BTreeSet<String> = self.reach.others.iter().map(|trace| crate::explain::entry(trace)).collect();
        if !entries.is_empty() {
            warnings.push(Warning::OtherEntries { entries: entries.into_iter().collect() });
        }
        let unordered = stream::unordered(self.site, self.number, &self.reach.relevant);
        if !unordered.is_empty() {
            warnings.push(Warning::StreamOrder { traces: unordered });
        }
        if matches!(self.site.at, Some(StreamPoint::Bytes(_))) {
            warnings.push(Warning::StreamBytes);
        }
        let have = self.reach.relevant.len();
        if self.tfic.target.k == Occurrence::First && have < WANTED_TRACES {
            warnings.push(Warning::FewTraces { have });
        }
        warnings
    }

    fn own(&self) -> Event {
        self.site.own_event(&self.tfic.target)
    }

    fn solve(&self, warnings: &mut Vec<Warning>) -> Result<Solved, GenerateError> {
        let own = self.own();
        let mut events = candidates(&self.reach.relevant);
        events.insert(own.clone());
        let counted: Vec<CountedEvent> =
            events.into_iter().map(|event| counted(event, &self.request.groups)).collect::<Result<_, _>>()?;
        let universe = self.universe(&counted)?;
        let earlier = self.earlier(&counted);
        match self.tfic.target.k {
            Occurrence::Number(_) if self.site.at.is_some() => {
                if self.number > 1 {
                    warnings.push(Warning::StreamNumber);
                }
                self.hit(&universe, &counted, &[])
            }
            Occurrence::Number(_) if self.number > 1 && !universe.contains_key(&own) => {
                // Only another fault can keep the own event from being sure. The number says which pass is meant.
                warnings.push(Warning::OwnEventFalsifiable);
                self.hit(&universe, &counted, &[])
            }
            Occurrence::Number(_) => self.hit(&universe, &counted, &earlier),
            Occurrence::First => {
                let others: BTreeMap<Event, u64> =
                    universe.iter().filter(|(event, _)| **event != own).map(|(e, t)| (e.clone(), *t)).collect();
                let foreign: BTreeMap<Event, u64> = others
                    .iter()
                    .filter(|(event, _)| !self.of_own_calls(event, &counted))
                    .map(|(e, t)| (e.clone(), *t))
                    .collect();
                match self.hit(&foreign, &counted, &earlier) {
                    Err(GenerateError::Indistinguishable { .. }) => {
                        let solved = self.hit(&others, &counted, &earlier)?;
                        warnings.push(Warning::CountsRepeats);
                        Ok(solved)
                    }
                    solved => solved,
                }
            }
        }
    }

    /// Whether `event` is an instant of the target's own calls.
    fn of_own_calls(&self, event: &Event, counted: &[CountedEvent]) -> bool {
        let apis = counted.iter().filter(|c| c.event == *event).flat_map(|c| &c.apis);
        event.caller == self.site.caller && apis.into_iter().any(|api| self.site.apis.contains(api))
    }

    /// U: every event with its smallest count at the target, if that is not zero and no other fault may lower it.
    fn universe(&self, counted: &[CountedEvent]) -> Result<BTreeMap<Event, u64>, GenerateError> {
        let mut least: BTreeMap<Event, u64> = BTreeMap::new();
        let mut sure: BTreeMap<Event, u64> = BTreeMap::new();
        let others: Vec<&Tfic> = self.request.other_faults.iter().collect();
        for trace in &self.reach.relevant {
            let passes = self.site.passes(trace);
            let Some(pass) = passes.iter().find(|pass| pass.number == self.number) else { continue };
            lower(&mut least, self.at_target(trace, counted, &passes, pass, &Removed::default()));
            if !others.is_empty() {
                let disturbed = disturbed(&others, &self.request.groups, self.traces, trace, &pass.step)?;
                lower(&mut sure, self.at_target(trace, counted, &passes, pass, &disturbed));
            }
        }
        least.retain(|event, count| *count > 0 && sure.get(event).is_none_or(|sure| sure >= count));
        Ok(least)
    }

    /// v at the target, with `removed` left out.
    fn at_target(
        &self,
        trace: &Trace,
        counted: &[CountedEvent],
        passes: &[SitePass<'_>],
        pass: &SitePass<'_>,
        removed: &Removed,
    ) -> BTreeMap<Event, u64> {
        let evidence = known_at_target(self.tfic, self.site, trace, counted, passes, pass, removed);
        let own = self.own();
        let before = passes.iter().filter(|p| p.number < pass.number && !removed.contains(&p.step)).count() as u64;
        counted
            .iter()
            .map(|c| {
                let numbered = c.event == own && self.site.at.is_none();
                let count = if numbered { before } else { evidence.count(c.event.id()) };
                (c.event.clone(), count)
            })
            .collect()
    }

    /// The earlier occurrences at the same injection point that must be told apart from the target.
    fn earlier(&self, counted: &[CountedEvent]) -> Vec<Earlier> {
        let own = self.own();
        let first = self.tfic.target.k == Occurrence::First;
        let relevant = self.reach.relevant.iter().map(|trace| (*trace, self.number));
        // Where the entry never reaches the target, `k: first` must not fire at all.
        let others = self.reach.others.iter().filter(|_| first).map(|trace| (*trace, u32::MAX));
        relevant
            .chain(others)
            .flat_map(|(trace, before)| {
                let mut early = self.site.passes(trace);
                early.retain(|pass| pass.number < before && (!first || admits(&self.tfic.target, &pass.step)));
                if early.is_empty() {
                    return Vec::new();
                }
                let replayed = Replayed::new(trace, counted, &Removed::default());
                early
                    .into_iter()
                    .map(|pass| {
                        let known = replayed.known_before(&pass.step);
                        let count = |event: &Event| {
                            if *event == own { u64::from(pass.number) - 1 } else { known.count(event.id()) }
                        };
                        Earlier {
                            trace: trace.execution,
                            pass: pass.number,
                            counts: counted.iter().map(|c| (c.event.clone(), count(&c.event))).collect(),
                        }
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// A minimum hitting set of all D over `universe`.
    fn hit(
        &self,
        universe: &BTreeMap<Event, u64>,
        counted: &[CountedEvent],
        earlier: &[Earlier],
    ) -> Result<Solved, GenerateError> {
        let own = self.own();
        let distance = |event: &Event, threshold: u64, p: &Earlier| threshold.saturating_sub(p.counts[event]);
        let mut candidates: Vec<Candidate> = universe
            .iter()
            .map(|(event, threshold)| Candidate {
                atom: Atom::new(event.clone(), *threshold),
                own: *event == own,
                local: counted.iter().any(|c| c.event == *event && self.site.is_local(c)),
                margin: earlier.iter().map(|p| distance(event, *threshold, p)).filter(|d| *d > 0).min(),
                chosen: false,
            })
            .collect();
        let clauses: Vec<BTreeSet<usize>> = earlier
            .iter()
            .map(|p| {
                universe
                    .iter()
                    .enumerate()
                    .filter(|(_, (event, threshold))| distance(event, **threshold, p) > 0)
                    .map(|(index, _)| index)
                    .collect()
            })
            .collect();
        let elements: Vec<Element> =
            candidates.iter().map(|c| Element { own: c.own, local: c.local, margin: c.margin.unwrap_or(0) }).collect();
        let minimum =
            hitting_set::minimum(&elements, &clauses, hitting_set::NODE_BUDGET).map_err(|error| match error {
                HittingSetError::Empty(clause) => {
                    GenerateError::Indistinguishable { trace: earlier[clause].trace, pass: earlier[clause].pass }
                }
                error => GenerateError::HittingSet(error),
            })?;
        for index in &minimum.elements {
            candidates[*index].chosen = true;
        }
        // A guard is false as long as one of its atoms is.
        let margin = earlier
            .iter()
            .filter_map(|p| {
                let chosen = candidates.iter().filter(|c| c.chosen);
                chosen.map(|c| distance(&c.atom.event(), c.atom.count, p)).max()
            })
            .min();
        Ok(Solved { candidates, earlier: earlier.len(), proof: minimum.proof, margin })
    }
}

/// Keep the smaller count of each event.
fn lower(least: &mut BTreeMap<Event, u64>, counts: BTreeMap<Event, u64>) {
    for (event, count) in counts {
        least.entry(event).and_modify(|known| *known = count.min(*known)).or_insert(count);
    }
}

impl Synthesis {
    /// As text, a line each: the explanation, what the guard was chosen from, warnings.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.explanation.lines();
        if self.earlier > 0 {
            lines.push(format!("told apart: {} earlier passes, by {}", self.earlier, self.chosen()));
            match &self.proof {
                // One pass needs one atom.
                Proof::Disjoint(clauses) if clauses.len() < 2 => {}
                Proof::Disjoint(clauses) => lines.push(format!(
                    "  no smaller set does: {} of these passes have no candidate in common",
                    clauses.len()
                )),
                Proof::Exhausted(nodes) => {
                    lines.push(format!("  no smaller set does: all were tried ({nodes} nodes)"));
                }
            }
        }
        if let Some(margin) = self.margin {
            lines.push(format!("  margin {margin}"));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("note: {warning}")));
        lines
    }

    fn chosen(&self) -> String {
        let chosen: Vec<String> =
            self.candidates.iter().filter(|c| c.chosen).map(|c| format!("`{}`", c.atom)).collect();
        match chosen.len() {
            0 => "the number alone".to_owned(),
            _ => format!("{} of {} candidates: {}", chosen.len(), self.candidates.len(), chosen.join(", ")),
        }
    }
}
