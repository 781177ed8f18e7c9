//! What the arbiter's log says of one fault over several instances (design §3.4): which number each pass got, which shot
//! was granted, which came back.
//!
//! The log's order is the only order across instances. A number is told, and counted again from the order of arrival: an
//! arbiter that miscounts is found out like a sidecar that does. A grant *came back* if it was handed back, or if its
//! pass is on record as not faulted; while it was out the arbiter refused others for nothing.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{Outcome, OutcomeFilter};
use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::plan::Phase;
use aftershock_core::wire::Ruling;

use crate::api::{ArbiterAct, ArbiterEntry};

/// A position in the log.
pub(super) type Position = usize;

/// The log, as far as it concerns one fault.
#[derive(Debug, Clone, Default)]
pub(super) struct Arbitration {
    passes: BTreeMap<(ExecutionId, CallId), Asked>,
    /// Where the rule first ended in an execution without a shot.
    ended: BTreeMap<ExecutionId, Position>,
    grants: Vec<Grant>,
    shots: BTreeMap<(ExecutionId, CallId), ObserverId>,
    /// How many shots the round allows.
    limit: u32,
}

/// A pass that the arbiter was asked about.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// When it asked first.
    pub(super) arrived: Position,
    /// The number that it was told.
    pub(super) told: u32,
    /// Its number by the order of arrival.
    pub(super) number: u32,
    /// When it was granted the shot last.
    pub(super) granted: Option<Position>,
    /// Its grant came back unused.
    pub(super) handed_back: bool,
    outcome: Option<Outcome>,
    /// When it was refused although it may have been the one that is meant.
    refused: Vec<Refused>,
}

#[derive(Debug, Clone, Copy)]
struct Refused {
    at: Position,
    spent: bool,
}

#[derive(Debug, Clone)]
struct Grant {
    execution: ExecutionId,
    call: CallId,
    at: Position,
    /// When it came back; none if it was used.
    back: Option<Position>,
}

impl Arbitration {
    /// What `log` says of fault `index`, of which a round allows `limit` shots. `hits` are the calls that are on record
    /// as faulted: what was granted to others and not spent came back, if only at the end.
    pub(super) fn of(
        log: &[ArbiterEntry],
        index: usize,
        limit: u32,
        hits: &BTreeSet<(ExecutionId, CallId)>,
    ) -> Arbitration {
        let mut of = Arbitration { limit, ..Arbitration::default() };
        let mut numbers: BTreeMap<ExecutionId, u32> = BTreeMap::new();
        for (at, entry) in log.iter().enumerate().filter(|(_, entry)| entry.rule == index) {
            let key = (entry.execution, entry.call);
            match &entry.act {
                ArbiterAct::Ruled { number, outcome, ruling, .. } => {
                    let asked = of.passes.entry(key).or_insert_with(|| {
                        let counted = numbers.entry(entry.execution).or_insert(0);
                        *counted += 1;
                        Asked {
                            arrived: at,
                            told: *number,
                            number: *counted,
                            granted: None,
                            handed_back: false,
                            outcome: *outcome,
                            refused: Vec::new(),
                        }
                    });
                    match ruling {
                        Ruling::Grant => {
                            asked.granted = Some(at);
                            of.grants.push(Grant { execution: key.0, call: key.1, at, back: None });
                        }
                        Ruling::NotYet(_) => asked.refused.push(Refused { at, spent: false }),
                        Ruling::Spent => asked.refused.push(Refused { at, spent: true }),
                        Ruling::Number => {}
                    }
                }
                ArbiterAct::Fired => {
                    of.shots.insert(key, entry.observer);
                }
                ArbiterAct::HandedBack => {
                    of.ended.entry(key.0).or_insert(at);
                    if let Some(asked) = of.passes.get_mut(&key) {
                        asked.handed_back = true;
                    }
                    for grant in of.grants.iter_mut().filter(|grant| (grant.execution, grant.call) == key) {
                        grant.back = Some(at);
                    }
                }
                ArbiterAct::GivenUp => {
                    of.ended.entry(key.0).or_insert(at);
                }
            }
        }
        for grant in &mut of.grants {
            let key = (grant.execution, grant.call);
            if grant.back.is_none() && !of.shots.contains_key(&key) && !hits.contains(&key) {
                grant.back = Some(log.len());
            }
        }
        of
    }

    /// Whether the arbiter was asked at all.
    pub(super) fn is_empty(&self) -> bool {
        self.passes.is_empty()
    }

    /// What it says of a pass.
    pub(super) fn asked(&self, execution: ExecutionId, call: CallId) -> Option<&Asked> {
        self.passes.get(&(execution, call))
    }

    /// The passes of an execution.
    pub(super) fn passes(&self, execution: ExecutionId) -> impl Iterator<Item = (CallId, &Asked)> {
        self.passes
            .range((execution, CallId(0))..=(execution, CallId(u64::MAX)))
            .map(|((_, call), asked)| (*call, asked))
    }

    /// The executions that passes are of.
    pub(super) fn executions(&self) -> BTreeSet<ExecutionId> {
        self.passes.keys().map(|(execution, _)| *execution).collect()
    }

    /// What the arbiter was told to have been fired, and by whom.
    pub(super) fn shots(&self) -> impl Iterator<Item = ((ExecutionId, CallId), ObserverId)> {
        self.shots.iter().map(|(key, observer)| (*key, *observer))
    }

    /// When the rule ended in `execution` without a shot.
    pub(super) fn ended(&self, execution: ExecutionId) -> Option<Position> {
        self.ended.get(&execution).copied()
    }

    /// Whether anything that the log knows of explains that the rule was over for a pass of `execution` that did not ask.
    pub(super) fn is_over(&self, execution: ExecutionId) -> bool {
        let granted = self.grants.iter().any(|grant| grant.execution == execution);
        granted || self.ended(execution).is_some() || self.shots.len() as u64 >= u64::from(self.limit)
    }

    /// How many passes of the execution with such an outcome had arrived before `asked`. A request has no outcome, which
    /// every filter takes; a response whose outcome is not known only counts for `any`.
    pub(super) fn earlier(&self, execution: ExecutionId, asked: &Asked, phase: Phase, of: OutcomeFilter) -> u64 {
        let outcome = |other: &Asked| match phase {
            Phase::Request => None,
            Phase::Response => other.outcome.or(Some(Outcome::Unknown)),
        };
        self.passes(execution).filter(|(_, other)| other.arrived < asked.arrived && of.admits(outcome(other))).count()
            as u64
    }

    /// Whether the pass was refused while a grant was out that came back: nobody knows what it would have been told.
    pub(super) fn refused_for_nothing(&self, execution: ExecutionId, call: CallId) -> bool {
        let Some(asked) = self.asked(execution, call) else { return false };
        asked.refused.iter().any(|refused| {
            self.grants.iter().any(|grant| {
                let out = grant.at < refused.at && grant.back.is_some_and(|back| refused.at < back);
                // Another execution's grant counts for the round's limit only.
                let concerns = grant.execution == execution || (refused.spent && self.limit < u32::MAX);
                out && concerns && (grant.execution, grant.call) != (execution, call)
            })
        })
    }

    /// Whether the pass was refused as spent when nothing had been granted, nor the rule ended.
    pub(super) fn refused_without_cause(&self, execution: ExecutionId, call: CallId) -> bool {
        let Some(asked) = self.asked(execution, call) else { return false };
        asked.refused.iter().filter(|refused| refused.spent).any(|refused| {
            let before = || self.grants.iter().filter(|grant| grant.at < refused.at);
            let here = before().any(|grant| grant.execution == execution);
            let ended = self.ended(execution).is_some_and(|at| at < refused.at);
            let out = before().filter(|grant| grant.back.is_none_or(|back| back > refused.at)).count() as u64;
            !here && !ended && out < u64::from(self.limit)
        })
    }
}
