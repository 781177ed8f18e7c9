//! Numbers passes and grants shots where a rule acts at several instances of one service (design §3.4).
//!
//! One arbiter a round: a synchronous state machine without time or I/O. The number of a pass is its place in the order
//! of arrival here, per rule and execution, and never changes. A grant reserves the execution's one shot and one of the
//! round's; firing spends both; handing it back returns the round's, the execution's is gone. Whoever dies with a grant
//! keeps it. So in any order of messages, and whatever sidecars say: per execution at most one grant, per round never
//! more than `max_injections` reserved and spent together, and none in an execution where the rule has ended.
//!
//! Everything is in the log, in the arbiter's order, up to its capacity. Where it ends the record of the round is
//! incomplete, and passes are not answered any more: they go on unfaulted after their timeout. That also bounds memory.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{CountedEvent, Outcome, OutcomeFilter};
use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::plan::{Occurrence, Phase, Plan, Rule};
use aftershock_core::wire::{Ask, Ruling};

use crate::api::{ArbiterAct, ArbiterEntry};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arbiter {
    /// The arbitrated rules, by their position in the plan.
    rules: BTreeMap<usize, Arbitrated>,
    log: Vec<ArbiterEntry>,
    capacity: usize,
    overflowed: bool,
    closed: bool,
}

/// Which message of which sidecar.
type Message = (ObserverId, CallId);

/// One rule.
#[derive(Debug, Clone)]
struct Arbitrated {
    terms: Terms,
    shots: Shots,
    executions: BTreeMap<ExecutionId, Execution>,
}

/// What a rule asks for.
#[derive(Debug, Clone)]
struct Terms {
    k: Occurrence,
    phase: Phase,
    held: bool,
    /// The guard's atoms on the target's own event: position, outcome, count.
    own: Vec<(usize, OutcomeFilter, u64)>,
}

/// The shots of a round.
#[derive(Debug, Clone)]
struct Shots {
    limit: u32,
    /// Reserved or spent.
    taken: u32,
    spent: u32,
}

/// A rule in one execution.
#[derive(Debug, Clone, Default)]
struct Execution {
    passes: BTreeMap<Message, Pass>,
    tally: Tally,
    shot: Option<Shot>,
    /// Nothing more is granted.
    ended: bool,
    /// Held passes that were told to wait.
    waiting: BTreeSet<Message>,
}

/// Passes so far, by outcome.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    all: u64,
    ok: u64,
    error: u64,
}

/// One numbered pass.
#[derive(Debug, Clone)]
struct Pass {
    number: u32,
    /// As it was when it arrived.
    outcome: Option<Outcome>,
    /// The atoms on the target's own event that the passes before it do not fulfil.
    unmet: Vec<usize>,
    /// What was said of it last, and whether it was ready.
    last: Option<(bool, Ruling)>,
}

/// The shot of an execution.
#[derive(Debug, Clone, Copy)]
struct Shot {
    holder: Message,
    state: ShotState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShotState {
    Reserved,
    Fired,
    HandedBack,
}

/// A held pass that cannot be granted any more and is to be told so unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    pub(crate) observer: ObserverId,
    pub(crate) execution: ExecutionId,
    pub(crate) call: CallId,
    pub(crate) number: u32,
}

impl Tally {
    fn of(self, filter: OutcomeFilter) -> u64 {
        match filter {
            OutcomeFilter::Any => self.all,
            OutcomeFilter::Ok => self.ok,
            OutcomeFilter::Error => self.error,
        }
    }

    /// A request has no outcome, which every filter takes; an outcome that is not known only `any` does.
    fn add(&mut self, phase: Phase, outcome: Option<Outcome>) {
        let outcome = match phase {
            Phase::Request => None,
            Phase::Response => outcome.or(Some(Outcome::Unknown)),
        };
        self.all += 1;
        self.ok += u64::from(OutcomeFilter::Ok.admits(outcome));
        self.error += u64::from(OutcomeFilter::Error.admits(outcome));
    }
}

impl Arbitrated {
    fn new(plan: &Plan, rule: &Rule) -> Self {
        let atoms = rule.tfic.guard.after.iter().enumerate();
        let own = atoms.filter_map(|(at, atom)| {
            let event = atom.event();
            let counted = CountedEvent { apis: plan.resolve(&event.api).ok()?, event };
            rule.is_own_event(&counted).then_some((at, atom.outcome, atom.count))
        });
        let terms = Terms {
            k: rule.tfic.target.k,
            phase: rule.tfic.target.phase,
            held: rule.tfic.hold.is_some(),
            own: own.collect(),
        };
        let shots = Shots { limit: rule.tfic.max_injections.limit(), taken: 0, spent: 0 };
        Arbitrated { terms, shots, executions: BTreeMap::new() }
    }

    /// The held passes that wait in vain now that the rule has ended in `execution`, and in all once every shot is spent;
    /// with what is written down of it.
    fn release(&mut self, execution: ExecutionId) -> Vec<(Release, ArbiterAct)> {
        if self.shots.spent >= self.shots.limit {
            return self.executions.iter_mut().flat_map(|(id, found)| found.release(*id)).collect();
        }
        self.executions.get_mut(&execution).map(|found| found.release(execution)).unwrap_or_default()
    }
}

impl Execution {
    fn release(&mut self, id: ExecutionId) -> Vec<(Release, ArbiterAct)> {
        let release = |message: Message| {
            let pass = self.passes.get_mut(&message)?;
            let ready = pass.last.as_ref().is_some_and(|(ready, _)| *ready);
            pass.last = Some((ready, Ruling::Spent));
            let (number, outcome) = (pass.number, pass.outcome);
            let act = ArbiterAct::Ruled { number, ready, outcome, ruling: Ruling::Spent };
            Some((Release { observer: message.0, execution: id, call: message.1, number }, act))
        };
        std::mem::take(&mut self.waiting).into_iter().filter_map(release).collect()
    }

    /// The pass that `ask` is about; it is numbered if it is new.
    fn pass(&mut self, terms: &Terms, message: Message, ask: &Ask) -> &mut Pass {
        match self.passes.entry(message) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let unmet = terms.own.iter().filter(|(_, outcome, count)| self.tally.of(*outcome) < *count);
                let unmet = unmet.map(|(at, ..)| *at).collect();
                self.tally.add(terms.phase, ask.outcome);
                let number = u32::try_from(self.tally.all).unwrap_or(u32::MAX);
                new.insert(Pass { number, outcome: ask.outcome, unmet, last: None })
            }
        }
    }
}

impl Arbiter {
    /// The arbiter of a round whose plan was resolved to `rules`. It writes down `capacity` acts at most.
    pub(crate) fn new(plan: &Plan, rules: &[Rule], capacity: usize) -> Self {
        let arbitrated = rules.iter().filter(|rule| rule.arbitrated);
        Arbiter {
            rules: arbitrated.map(|rule| (rule.index, Arbitrated::new(plan, rule))).collect(),
            capacity,
            ..Arbiter::default()
        }
    }

    /// What was done, in its order.
    pub(crate) fn log(&self) -> &[ArbiterEntry] {
        &self.log
    }

    /// Whether something was done or said that is not in the log.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// The round is being disarmed: nothing is granted any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// The number of a pass, and what it may do. None if it is not answered: the rule is not arbitrated, or the log is
    /// full.
    pub(crate) fn ask(&mut self, observer: ObserverId, ask: &Ask) -> Option<(u32, Ruling)> {
        let full = self.is_full();
        let Arbitrated { terms, shots, executions } = self.rules.get_mut(&ask.rule)?;
        if full {
            self.overflowed = true;
            return None;
        }
        let message = (observer, ask.call);
        let execution = executions.entry(ask.execution).or_default();
        let open = !self.closed && !execution.ended && execution.shot.is_none() && shots.taken < shots.limit;
        let pass = execution.pass(terms, message, ask);
        let ruling = match terms.k {
            Occurrence::Number(k) if k != pass.number => Ruling::Number,
            _ if !open => Ruling::Spent,
            _ if !ask.ready || !pass.unmet.is_empty() => Ruling::NotYet(pass.unmet.clone()),
            _ => Ruling::Grant,
        };
        let number = pass.number;
        let act = ArbiterAct::Ruled { number, ready: ask.ready, outcome: pass.outcome, ruling: ruling.clone() };
        // A held pass may ask many times; only what changes is worth a line.
        let said = Some((ask.ready, ruling.clone()));
        let repeated = std::mem::replace(&mut pass.last, said.clone()) == said;
        if terms.held && matches!(ruling, Ruling::NotYet(_)) {
            execution.waiting.insert(message);
        } else {
            execution.waiting.remove(&message);
        }
        if ruling == Ruling::Grant {
            execution.shot = Some(Shot { holder: message, state: ShotState::Reserved });
            shots.taken += 1;
        }
        if !repeated {
            self.note(ask.rule, ask.execution, message, act);
        }
        Some((number, ruling))
    }

    /// A sidecar says that the rule fired. Returns the held passes that wait in vain since.
    pub(crate) fn fired(&mut self, rule: usize, execution: ExecutionId, message: Message) -> Vec<Release> {
        let Some((shots, found)) = self.find(rule, execution) else { return Vec::new() };
        match found.shot.as_mut().filter(|shot| shot.holder == message) {
            Some(shot) if shot.state == ShotState::Fired => return Vec::new(),
            Some(shot) if shot.state == ShotState::Reserved => shot.state = ShotState::Fired,
            // Nobody granted that. It cannot be undone, but it counts.
            _ => {
                found.shot = Some(Shot { holder: message, state: ShotState::Fired });
                shots.taken = shots.taken.saturating_add(1);
            }
        }
        shots.spent = shots.spent.saturating_add(1);
        self.end(rule, execution, message, ArbiterAct::Fired)
    }

    /// A pass was not answered in time and went on: the rule has ended in this execution. Its grant, if one is on its way,
    /// will be handed back.
    pub(crate) fn give_up(&mut self, rule: usize, execution: ExecutionId, message: Message) -> Vec<Release> {
        if self.find(rule, execution).is_none() {
            return Vec::new();
        }
        self.end(rule, execution, message, ArbiterAct::GivenUp)
    }

    /// A grant was not used: the rule has ended in this execution, and the round has its shot again.
    pub(crate) fn hand_back(&mut self, rule: usize, execution: ExecutionId, message: Message) -> Vec<Release> {
        let Some((shots, found)) = self.find(rule, execution) else { return Vec::new() };
        if let Some(shot) = found.shot.as_mut().filter(|shot| shot.holder == message)
            && shot.state == ShotState::Reserved
        {
            shot.state = ShotState::HandedBack;
            shots.taken -= 1;
        }
        self.end(rule, execution, message, ArbiterAct::HandedBack)
    }

    fn is_full(&self) -> bool {
        self.log.len() >= self.capacity
    }

    /// The rule in `execution`, which is remembered from now on if there is room.
    fn find(&mut self, rule: usize, execution: ExecutionId) -> Option<(&mut Shots, &mut Execution)> {
        let full = self.is_full();
        let Arbitrated { shots, executions, .. } = self.rules.get_mut(&rule)?;
        if full && !executions.contains_key(&execution) {
            self.overflowed = true;
            return None;
        }
        Some((shots, executions.entry(execution).or_default()))
    }

    /// The rule ends in `execution` by `act`.
    fn end(&mut self, rule: usize, execution: ExecutionId, message: Message, act: ArbiterAct) -> Vec<Release> {
        self.note(rule, execution, message, act);
        let Some(arbitrated) = self.rules.get_mut(&rule) else { return Vec::new() };
        if let Some(found) = arbitrated.executions.get_mut(&execution) {
            found.ended = true;
            found.waiting.remove(&message);
        }
        let released = arbitrated.release(execution);
        let mut releases = Vec::with_capacity(released.len());
        for (release, act) in released {
            self.note(rule, release.execution, (release.observer, release.call), act);
            releases.push(release);
        }
        releases
    }

    fn note(&mut self, rule: usize, execution: ExecutionId, (observer, call): Message, act: ArbiterAct) {
        if self.is_full() {
            self.overflowed = true;
            return;
        }
        self.log.push(ArbiterEntry { rule, execution, call, observer, act });
    }
}

#[cfg(test)]
mod tests;
