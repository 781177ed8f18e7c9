//! What really happened, kept by those to whom it happened.
//!
//! No header tells any of this: calls are known by the objects of the simulation, faults by the editors that carried them
//! out, the arbiter's order by the questions as they came in. *Known* is what a sidecar would know of an execution had no
//! header been lost, no process restarted and every hop a sidecar: what happened causally before, by the applications'
//! own messages.

use std::collections::BTreeMap;

use aftershock_core::event::{EventKind, Occurrence, Outcome};
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::Service as Name;
use aftershock_core::plan::{Atom, Fault, Phase, Side, Tfic};
use aftershock_core::w3c::Member;
use aftershock_core::wire::FromSidecar;

use crate::net::{Micros, Net};

/// A boundary event of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    RequestSent,
    RequestReceived,
    ResponseSent,
    ResponseReceived,
}

impl Moment {
    fn kind(self) -> EventKind {
        match self {
            Moment::RequestSent => EventKind::RequestSent,
            Moment::RequestReceived => EventKind::RequestReceived,
            Moment::ResponseSent => EventKind::ResponseSent,
            Moment::ResponseReceived => EventKind::ResponseReceived,
        }
    }

    const ALL: [Moment; 4] =
        [Moment::RequestSent, Moment::RequestReceived, Moment::ResponseSent, Moment::ResponseReceived];
}

/// A set of events of one execution: four bits for each of its calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known(Vec<u64>);

impl Known {
    fn add(&mut self, place: usize, moment: Moment) {
        let bit = place * 4 + moment as usize;
        if self.0.len() <= bit / 64 {
            self.0.resize(bit / 64 + 1, 0);
        }
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn has(&self, place: usize, moment: Moment) -> bool {
        let bit = place * 4 + moment as usize;
        self.0.get(bit / 64).is_some_and(|word| word & (1 << (bit % 64)) != 0)
    }

    fn merge(&mut self, other: &Known) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (ours, theirs) in self.0.iter_mut().zip(&other.0) {
            *ours |= theirs;
        }
    }
}

/// A message that matched the round's target, where the fault acts.
#[derive(Debug, Clone)]
pub(crate) struct TruePass {
    pub(crate) call: usize,
    pub(crate) arrived: Micros,
    pub(crate) instance: usize,
    pub(crate) observer: ObserverId,
    /// Whether the guard held, by what was known, when it arrived; and when it went on or was faulted, if it did.
    pub(crate) guard_then: bool,
    pub(crate) guard_at_last: Option<bool>,
    /// Whether its outcome is what the target takes.
    pub(crate) outcome: bool,
    /// It could not be associated.
    pub(crate) lost: bool,
}

/// A fault that an editor carried out, or a message that was kept for it.
#[derive(Debug, Clone)]
pub(crate) struct TrueFault {
    pub(crate) call: usize,
    pub(crate) attempt: usize,
    pub(crate) at: Micros,
    pub(crate) guard: bool,
}

/// One request of a client, and all it causes: an execution.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempt {
    pub(crate) round: Option<usize>,
    pub(crate) token: Token,
    pub(crate) declared: ExecutionId,
    pub(crate) execution: Option<ExecutionId>,
    pub(crate) calls: Vec<usize>,
    pub(crate) over: bool,
    pub(crate) retries: u32,
    /// What the client sends after this, as the same execution.
    pub(crate) sequence: u32,
    pub(crate) passes: Vec<TruePass>,
    /// Calls in the order in which the arbiter first heard of them.
    pub(crate) asked: Vec<usize>,
    pub(crate) known: BTreeMap<usize, Known>,
}

impl Attempt {
    pub(crate) fn new(round: Option<usize>, token: Token) -> Attempt {
        Attempt { round, token, ..Attempt::default() }
    }
}

impl Net {
    pub(crate) fn is_ordinary(&self, call: usize) -> bool {
        self.attempts[self.calls[call].attempt].token.is_zero()
    }

    /// Attempts of a declared sequence are one execution, kept under the first of them.
    pub(crate) fn execution_of(&self, call: usize) -> usize {
        self.first_of(self.calls[call].attempt)
    }

    pub(crate) fn first_of(&self, attempt: usize) -> usize {
        let declared = self.attempts[attempt].declared;
        let Some(round) = self.attempts[attempt].round.filter(|_| !declared.is_zero()) else { return attempt };
        let same = |one: &&usize| self.attempts[**one].declared == declared;
        *self.rounds[round].attempts.iter().find(same).expect("it is there itself")
    }

    pub(crate) fn known(&self, at: usize, call: usize) -> Known {
        self.attempts[self.execution_of(call)].known.get(&at).cloned().unwrap_or_default()
    }

    pub(crate) fn learns(&mut self, at: usize, call: usize, what: &Known) {
        let execution = self.execution_of(call);
        self.attempts[execution].known.entry(at).or_default().merge(what);
    }

    pub(crate) fn happen(&mut self, at: usize, call: usize, moment: Moment) {
        let execution = self.execution_of(call);
        self.attempts[execution].known.entry(at).or_default().add(self.calls[call].place, moment);
    }

    pub(crate) fn learn_execution(&mut self, call: usize, member: &Member) {
        let execution = self.execution_of(call);
        if member.token == self.attempts[execution].token && !member.execution.is_zero() {
            self.attempts[execution].execution.get_or_insert(member.execution);
        }
    }

    fn caller_name(&self, call: usize) -> Option<Name> {
        // Who calls from a hop without sidecar is not known.
        self.calls[call].caller.filter(|at| self.has_sidecar(*at)).map(|at| self.name(at))
    }

    fn count(&self, known: &Known, call: usize, atom: &Atom) -> u64 {
        let event = atom.event();
        let apis = match &event.api {
            aftershock_core::event::ApiRef::Api(api) => [api.clone()].into(),
            aftershock_core::event::ApiRef::Group(_) => unreachable!("there are no groups here"),
        };
        let counted = aftershock_core::event::CountedEvent { event, apis };
        let execution = self.execution_of(call);
        let mut count = 0;
        for call in &self.attempts[execution].calls {
            let Some(moment) = Moment::ALL.into_iter().find(|moment| moment.kind() == counted.event.event) else {
                continue;
            };
            if !known.has(self.calls[*call].place, moment) {
                continue;
            }
            let ok = |ok: Option<bool>| ok.map(|ok| if ok { Outcome::Ok } else { Outcome::Error });
            let outcome = match moment {
                Moment::RequestSent | Moment::RequestReceived => None,
                Moment::ResponseSent => ok(self.calls[*call].sent_ok),
                Moment::ResponseReceived => ok(self.calls[*call].received_ok),
            };
            let api = self.system.api(self.calls[*call].node);
            let caller = self.caller_name(*call);
            let occurrence = Occurrence { event: counted.event.event, api: &api, caller: caller.as_ref(), outcome };
            count += u64::from(counted.matches(&occurrence));
        }
        count
    }

    /// Whether the guard holds by what is known at `at`. Atoms on the target's own event are the arbiter's to judge where
    /// there is one.
    fn guard_holds(&self, at: usize, call: usize, tfic: &Tfic, own_too: bool) -> bool {
        let known = self.known(at, call);
        let acts_at_caller = tfic.target.caller.is_some();
        let side = if acts_at_caller { Side::Caller } else { Side::Callee };
        let is_own = |atom: &Atom| {
            atom.event == tfic.target.phase.event(side)
                && atom.api == tfic.target.api
                && (!acts_at_caller || atom.caller.is_none() || atom.caller == tfic.target.caller)
        };
        tfic.guard
            .after
            .iter()
            .filter(|atom| own_too || !is_own(atom))
            .all(|atom| self.count(&known, call, atom) >= atom.count)
    }

    fn round_target(&self, call: usize, phase: Phase, is_out: bool) -> Option<(usize, Tfic, bool)> {
        let round = self.attempts[self.calls[call].attempt].round?;
        let tfic = self.rounds[round].tfic.as_ref()?;
        let caller = self.caller_name(call);
        let fits = tfic.target.phase == phase
            && tfic.target.caller == caller
            && is_out == caller.is_some()
            && tfic.target.api == aftershock_core::event::ApiRef::Api(self.system.api(self.calls[call].node))
            && !self.calls[call].detached;
        fits.then(|| (round, tfic.clone(), self.rounds[round].arbitrated))
    }

    /// A message has come to where it could be faulted.
    pub(crate) fn arrives(&mut self, call: usize, phase: Phase, is_out: bool) {
        let Some((_, tfic, arbitrated)) = self.round_target(call, phase, is_out) else { return };
        let leg = if is_out { self.calls[call].out.as_ref() } else { self.calls[call].inn.as_ref() };
        let leg = leg.expect("it has come there");
        let (instance, observer) = (leg.instance, leg.observer);
        let guard_then = self.guard_holds(instance, call, &tfic, !arbitrated);
        let outcome = !tfic.target.post_effect || self.calls[call].sent_ok == Some(true);
        let lost = self.calls[call].lost;
        let pass =
            TruePass { call, arrived: self.now, instance, observer, guard_then, guard_at_last: None, outcome, lost };
        let execution = self.execution_of(call);
        self.attempts[execution].passes.push(pass);
    }

    /// A message goes on, faulted or not, if it was a pass.
    pub(crate) fn leaves(&mut self, call: usize, phase: Phase, is_out: bool) {
        let Some((_, tfic, arbitrated)) = self.round_target(call, phase, is_out) else { return };
        let execution = self.execution_of(call);
        let Some(at) = self.attempts[execution].passes.iter().position(|pass| pass.call == call) else { return };
        let instance = self.attempts[execution].passes[at].instance;
        let holds = self.guard_holds(instance, call, &tfic, !arbitrated);
        self.attempts[execution].passes[at].guard_at_last = Some(holds);
    }

    /// An editor carried out a fault.
    pub(crate) fn faulted(&mut self, call: usize, phase: Phase, at: usize) {
        let is_out = self.calls[call].out.as_ref().is_some_and(|leg| leg.instance == at && leg.open);
        self.leaves(call, phase, is_out);
        let Some(round) = self.attempts[self.calls[call].attempt].round else {
            self.ordinary_faulted += 1;
            return;
        };
        self.check_lease(round, at);
        let execution = self.execution_of(call);
        let pass = self.attempts[execution].passes.iter().find(|pass| pass.call == call);
        let guard = pass.is_some_and(|pass| pass.guard_at_last == Some(true));
        if pass.is_none() {
            self.wrong.push(format!("the {phase} of call {call} was faulted, which is no pass of the target"));
        }
        let fault = TrueFault { call, attempt: execution, at: self.now, guard };
        self.rounds[round].faults.push(fault);
    }

    fn check_lease(&mut self, round: usize, at: usize) {
        let token = self.rounds[round].token;
        if self.instances[at].leases.get(&token).is_none_or(|until| *until < self.now) {
            self.wrong.push(format!("instance {at} faulted a message of {token} without a lease"));
        }
    }

    /// A sidecar says something of a rule that keeps or releases messages, which no editor can tell from patience.
    pub(crate) fn fired(&mut self, word: &FromSidecar, at: usize) {
        let FromSidecar::Fired { token, execution, call, .. } = word else { return };
        let Some(round) = self.rounds.iter().position(|round| round.token == *token) else {
            self.wrong.push(format!("a rule of the unknown token {token} fired"));
            return;
        };
        let keeps = |tfic: &Tfic| matches!(tfic.fault, Fault::Delay(_) | Fault::Release);
        if self.rounds[round].tfic.as_ref().is_some_and(keeps) {
            self.check_lease(round, at);
            self.rounds[round].kept.push((*execution, *call, self.now));
        }
        self.rounds[round].said_fired.push(*call);
    }

    /// Delays and releases, now that ids of calls are known.
    pub(crate) fn kept_faults(&mut self, round: usize) {
        for (named, id, at) in std::mem::take(&mut self.rounds[round].kept) {
            let Some(call) = self.call_of(round, id).or_else(|| self.nameless(round, named)) else {
                self.wrong.push(format!("a rule fired on the unknown call {id}"));
                continue;
            };
            let execution = self.execution_of(call);
            let delays = self.rounds[round].tfic.as_ref().is_some_and(|tfic| matches!(tfic.fault, Fault::Delay(_)));
            let pass = self.attempts[execution].passes.iter().find(|pass| pass.call == call);
            let guard = pass.is_some_and(|pass| match delays {
                true => pass.guard_then,
                false => pass.guard_at_last == Some(true) || pass.guard_then,
            });
            self.rounds[round].faults.push(TrueFault { call, attempt: execution, at, guard });
        }
    }

    /// The pass of an id that nobody outside the sidecar has seen, since the member that tells it did not fit: the last
    /// that went on by then whose context was taken for that of the call above it.
    fn nameless(&self, round: usize, execution: ExecutionId) -> Option<usize> {
        let executions = self.executions(round).into_iter().map(|at| &self.attempts[at]);
        let mut passes = executions.filter(|one| one.execution == Some(execution)).flat_map(|one| &one.passes);
        let said = &self.rounds[round].said_fired;
        let unnamed = |call: usize| self.calls[call].id.is_none_or(|id| !said.contains(&id));
        passes.rfind(|pass| unnamed(pass.call) && pass.guard_at_last == Some(true)).map(|pass| pass.call)
    }

    pub(crate) fn call_of(&self, round: usize, id: CallId) -> Option<usize> {
        let known = self.ids.get(&id).copied();
        known.filter(|call| self.attempts[self.calls[*call].attempt].round == Some(round))
    }

    /// A question comes to the arbiter.
    pub(crate) fn asked(&mut self, word: &FromSidecar) {
        let FromSidecar::Ask(ask) = word else { return };
        let Some(call) = self.ids.get(&ask.call).copied() else {
            self.wrong.push(format!("a sidecar asked about the unknown call {}", ask.call));
            return;
        };
        let execution = self.execution_of(call);
        let asked = &mut self.attempts[execution].asked;
        if !asked.contains(&call) {
            asked.push(call);
        }
    }
}
