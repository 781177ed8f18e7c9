//! Passes that an arbiter decides (design §3.4), where the caller service has several instances.
//!
//! Each pass asks when it arrives, and its message waits. The answer carries its number; a grant reserves the shot for it,
//! and is used at once or handed back. Invariants:
//! * What waits for an answer waits no longer than the round's `arbiter_timeout`. A pass without an answer goes on and
//!   ends the rule in its execution, and so does every grant that is handed back.
//! * A grant for what no longer waits is handed back, whatever the reason: timeout, caller gone, disarmed.
//! * Only one rule at a time may be granted a message: the others say that they are not ready, so that they get their
//!   numbers, and ask again when that one was refused.

use std::time::Instant;

use aftershock_core::id::{CallId, Token};
use aftershock_core::plan::{Fault, Phase};
use aftershock_core::span::PassedBy;
use aftershock_core::wire::{Ask, FromSidecar, Ruling};
use smallvec::SmallVec;

use super::Sidecar;
use super::call::{ExchangeId, On, Shot, Stage, Wait};
use super::counters::Ignored;
use super::execution::Key;
use super::rounds::deadline;
use super::rules::{Judgement, misses};

impl Sidecar {
    /// Ask about the pass at `pass` of the call, for the rule at `rule`: what it waits for then.
    pub(super) fn ask(
        &mut self,
        id: ExchangeId,
        (rule, pass): (usize, usize),
        found: Judgement,
        ready: bool,
        now: Instant,
    ) -> Option<Wait> {
        let call = self.call(id)?;
        let key = call.key?;
        let round = self.rounds.get(key.token)?;
        let armed = round.rules.get(rule)?;
        let asked = self.executions.get(key)?.version;
        let until = deadline(now, round.arbiter_timeout);
        let hold = armed.rule.tfic.hold.as_ref().map(|hold| deadline(now, hold.deadline.0));
        let ask = Ask {
            token: key.token,
            rule: armed.rule.index,
            execution: key.execution,
            call: call.id,
            ready,
            outcome: call.outcome,
        };
        self.asking.insert((key.token, ask.call), id);
        self.outbox.push(FromSidecar::Ask(ask));
        self.set_timer(id, until);
        let on = On::Answer { until, asked, found, ready };
        Some(Wait { rule, pass, deadline: hold, held: false, on })
    }

    /// The first of `waits` that may ask now does, unless one is being answered that may be granted the message.
    pub(super) fn ask_again(&mut self, id: ExchangeId, key: Key, waits: &mut [Wait]) {
        if waits.iter().any(|wait| matches!(wait.on, On::Answer { ready: true, .. })) {
            return;
        }
        let (Some(now), Some(version)) = (self.now, self.executions.get(key).map(|execution| execution.version)) else {
            return;
        };
        let may_ask = |wait: &&mut Wait| match wait.on {
            On::Turn => true,
            On::Chance { asked } => asked != version,
            On::Guard | On::Answer { .. } => false,
        };
        for wait in waits.iter_mut().filter(may_ask) {
            if self.judge_wait(id, key, wait) != Judgement::Fire {
                continue;
            }
            if let Some(asking) = self.ask(id, (wait.rule, wait.pass), Judgement::Fire, true, now) {
                wait.on = asking.on;
                return;
            }
        }
    }

    /// The arbiter's answer about a pass.
    pub(super) fn ruled(&mut self, key: Key, rule: usize, call: CallId, number: u32, ruling: Ruling) {
        self.numbered(key, rule, call, number);
        let Some((id, at)) = self.asking_wait(key, rule, call) else {
            // Nobody waits for it any more, or nobody asked.
            match ruling {
                Ruling::Grant => self.hand_back(key, rule, call),
                Ruling::Spent => self.end_rule(key, rule),
                Ruling::Number | Ruling::NotYet(_) => {}
            }
            return;
        };
        let Some(Stage::Waiting { phase, mut waits }) = self.call(id).map(|call| call.stage.clone()) else { return };
        let mut wait = waits.remove(at);
        let why = match ruling {
            Ruling::Grant => match self.use_of_grant(id, key, &wait, &waits) {
                Ok(()) => {
                    for other in waits {
                        self.pass_by(id, other.pass, PassedBy::Spent);
                    }
                    self.unhold(id);
                    let shot = Shot { rule: wait.rule, pass: wait.pass, phase, granted: true };
                    self.fire_held(id, shot, wait.held);
                    return;
                }
                Err(why) => {
                    self.hand_back(key, rule, call);
                    Some(why)
                }
            },
            Ruling::Number => {
                let why = self.point(id, key, wait.rule, |armed, point, _| misses(armed, point));
                Some(why.unwrap_or(PassedBy::Number))
            }
            Ruling::Spent => {
                self.end_rule(key, rule);
                match self.judge_wait(id, key, &wait) {
                    Judgement::PassBy(PassedBy::NumberBlocked) => Some(PassedBy::NumberBlocked),
                    _ => Some(PassedBy::Spent),
                }
            }
            Ruling::NotYet(own) => self.not_yet(id, key, &mut wait, &waits, own).err(),
        };
        match why {
            Some(why) => self.pass_by(id, wait.pass, why),
            None => waits.insert(at, wait),
        }
        // Another rule may ask now, or this one again: more may be known than when it asked.
        self.stirred.insert(key);
        self.keep(id, phase, waits);
    }

    /// A pass has its number, whether its message still waits or not.
    fn numbered(&mut self, key: Key, rule: usize, call: CallId, number: u32) {
        if let Some(call) = self.asking.get(&(key.token, call)).copied().and_then(|id| self.call_mut(id))
            && let Some(pass) = call.passes.iter_mut().find(|pass| pass.rule == rule)
        {
            pass.k.get_or_insert(number);
        }
        if let Some((at, execution)) = self.armed_at(key, rule).zip(self.executions.get_mut(key)) {
            execution.progress(at).learn(number);
        }
    }

    /// The message that waits for the answer about this pass, and the place of that among what it waits for.
    fn asking_wait(&self, key: Key, rule: usize, call: CallId) -> Option<(ExchangeId, usize)> {
        let id = self.asking.get(&(key.token, call)).copied()?;
        let call = self.call(id).filter(|call| call.key == Some(key))?;
        let Stage::Waiting { waits, .. } = &call.stage else { return None };
        let asks = |wait: &Wait| {
            matches!(wait.on, On::Answer { .. }) && call.passes.get(wait.pass).is_some_and(|pass| pass.rule == rule)
        };
        Some((id, waits.iter().position(asks)?))
    }

    /// Whether the granted fault can happen now. More may have come to pass since the question: a number in doubt, another
    /// fault, the end of the rule.
    fn use_of_grant(&mut self, id: ExchangeId, key: Key, wait: &Wait, others: &[Wait]) -> Result<(), PassedBy> {
        match self.judge_wait(id, key, wait) {
            Judgement::Fire => {}
            Judgement::PassBy(why) => return Err(why),
            // It was said to be ready, and what holds goes on holding.
            Judgement::Hold => return Err(PassedBy::Arbiter),
        }
        let delays = |fault: &Fault| matches!(fault, Fault::Delay(_));
        let round = self.rounds.get(key.token);
        let parks = round.and_then(|round| round.rules.get(wait.rule)).is_some_and(|a| delays(&a.rule.tfic.fault));
        if parks && !self.has_place(key, wait, others) {
            self.no_place(key.token);
            return Err(PassedBy::ParkedLimit);
        }
        Ok(())
    }

    /// Whether a message has a place among the parked ones, or can get one.
    fn has_place(&self, key: Key, wait: &Wait, others: &[Wait]) -> bool {
        let has_room = || self.rounds.get(key.token).is_some_and(|round| round.has_room());
        wait.held || others.iter().any(|other| other.held) || has_room()
    }

    /// The number fits, and it is not yet time: what it waits for next, or why it goes on.
    fn not_yet(
        &mut self,
        id: ExchangeId,
        key: Key,
        wait: &mut Wait,
        others: &[Wait],
        own: Vec<usize>,
    ) -> Result<(), PassedBy> {
        let On::Answer { asked, found, ready, .. } = &wait.on else { return Ok(()) };
        if *found == Judgement::Fire && !ready {
            wait.on = On::Turn;
            return Ok(());
        }
        if wait.deadline.is_none() {
            return Err(refused(found, own));
        }
        if let Judgement::PassBy(why) = self.judge_wait(id, key, wait) {
            return Err(why);
        }
        if !self.has_place(key, wait, others) {
            self.no_place(key.token);
            return Err(PassedBy::ParkedLimit);
        }
        wait.on = On::Chance { asked: *asked };
        wait.held = true;
        Ok(())
    }

    /// A pass was not answered in time.
    pub(super) fn give_up(&mut self, id: ExchangeId, key: Key, rule: usize) {
        let Some(call) = self.call(id).map(|call| call.id) else { return };
        let Some(rule) = self.rounds.get(key.token).and_then(|round| round.rules.get(rule)) else { return };
        let rule = rule.rule.index;
        self.outbox.push(FromSidecar::GiveUp { token: key.token, rule, execution: key.execution, call });
        self.end_rule(key, rule);
    }

    /// A grant is not used. `rule` is the rule's position in its plan.
    pub(super) fn hand_back(&mut self, key: Key, rule: usize, call: CallId) {
        self.outbox.push(FromSidecar::HandBack { token: key.token, rule, execution: key.execution, call });
        self.end_rule(key, rule);
    }

    /// The rule fires no more in this execution: whatever waits for it here may go on.
    fn end_rule(&mut self, key: Key, rule: usize) {
        if let Some((at, execution)) = self.armed_at(key, rule).zip(self.executions.get_mut(key)) {
            execution.progress(at).ended = true;
            self.stirred.insert(key);
        }
    }

    /// The place of a plan's rule among those armed here.
    fn armed_at(&self, key: Key, rule: usize) -> Option<usize> {
        self.rounds.get(key.token)?.rules.iter().position(|armed| armed.rule.index == rule)
    }

    /// A message goes on that was to be parked. Each is counted, the first of a round is told.
    pub(super) fn no_place(&mut self, token: Token) {
        self.counters.ignored(Ignored::ParkedLimit);
        if let Some(round) = self.rounds.get_mut(token)
            && !std::mem::replace(&mut round.was_full, true)
        {
            tracing::warn!(
                max_parked = round.max_parked,
                "no place to park a message of a round: it goes on unfaulted"
            );
        }
    }

    /// A parked message waits for this from now on; for nothing: it goes on.
    pub(super) fn keep(&mut self, id: ExchangeId, phase: Phase, waits: SmallVec<[Wait; 1]>) {
        if waits.is_empty() {
            self.release(id);
        } else {
            self.set_waits(id, phase, waits);
        }
    }
}

/// Why a pass without `hold` was not granted: what this sidecar found, and the atoms that the arbiter did.
fn refused(found: &Judgement, own: Vec<usize>) -> PassedBy {
    let with = |open: &Vec<usize>| {
        let mut atoms = [open.clone(), own.clone()].concat();
        atoms.sort_unstable();
        atoms.dedup();
        atoms
    };
    match found {
        Judgement::PassBy(PassedBy::GuardFalse(open)) => PassedBy::GuardFalse(with(open)),
        Judgement::PassBy(PassedBy::GuardUnknown(open)) => PassedBy::GuardUnknown(with(open)),
        Judgement::PassBy(why) => why.clone(),
        // The arbiter counts what no gap here can hide.
        Judgement::Fire | Judgement::Hold => PassedBy::GuardFalse(own),
    }
}
