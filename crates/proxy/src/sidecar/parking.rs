//! Messages that wait: for a guard or the arbiter, for the end of a delay, or being faulted (design §3.4, §3.5).
//!
//! A rule that fires spends its shot at once, so that no second message fires before the first has been dealt with. What
//! the editor was told to do counts once it can no longer refuse: at the next call of the same link that is no refusal.

use std::time::Instant;

use aftershock_core::event::{EventKind, Occurrence, Outcome};
use aftershock_core::id::Token;
use aftershock_core::plan::{Fault, Phase};
use aftershock_core::span::{Injection, PassedBy};
use aftershock_core::wire::FromSidecar;
use smallvec::SmallVec;

use super::Sidecar;
use super::call::{Call, ExchangeId, On, Shot, Stage, Wait};
use super::execution::Key;
use super::fault;
use super::rounds::deadline;
use super::rules::{Armed, Judgement, Message, Point, judge, judge_here};
use crate::exchange::{Act, LinkId, Refusal, Resume};

/// What becomes of a message on which a rule fired.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// It stays parked for a time.
    Delayed,
    /// It goes on, unchanged.
    Released,
    /// The editor is to act.
    Act(Act),
}

impl Sidecar {
    pub(super) fn call(&self, id: ExchangeId) -> Option<&Call> {
        self.exchanges.get(&id).and_then(|exchange| exchange.call.as_deref())
    }

    pub(super) fn call_mut(&mut self, id: ExchangeId) -> Option<&mut Call> {
        self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut())
    }

    /// A boundary event of the call: give it a clock value and count it.
    pub(super) fn happen(&mut self, id: ExchangeId, phase: Phase, outcome: Option<Outcome>) {
        let Some(call) = self.call(id) else { return };
        let (key, event) = (call.key, phase.event(call.side));
        if call.counted {
            self.tallies.event(event, outcome);
        }
        let clock = key.map_or(0, |key| self.count(id, key, event, outcome));
        let at = self.stamp_at(clock);
        let Some(call) = self.call_mut(id) else { return };
        match phase {
            Phase::Request => call.request = Some(at),
            Phase::Response => {
                call.response = Some(at);
                call.response_pending = false;
                call.outcome = outcome;
            }
        }
    }

    fn count(&mut self, id: ExchangeId, key: Key, event: EventKind, outcome: Option<Outcome>) -> u64 {
        let Some(call) = self.exchanges.get(&id).and_then(|exchange| exchange.call.as_deref()) else { return 0 };
        let events = match (self.rounds.get(key.token), &call.api) {
            (Some(round), Some(api)) if call.counted => {
                round.events(&Occurrence { event, api, caller: call.caller.as_ref(), outcome })
            }
            _ => Vec::new(),
        };
        let Some(execution) = self.executions.get_mut(key) else { return 0 };
        if !events.is_empty() {
            execution.version += 1;
        }
        execution.knowledge.happen(self.observer, events)
    }

    /// Count a request that was parked, if it has not been counted yet.
    pub(super) fn count_request(&mut self, id: ExchangeId) {
        if self.call(id).is_some_and(|call| call.request.is_none()) {
            self.happen(id, Phase::Request, None);
        }
    }

    /// Count a response whose outcome has arrived, if it has not been counted yet.
    pub(super) fn count_response(&mut self, id: ExchangeId) {
        if let Some(call) = self.call(id).filter(|call| call.response_pending) {
            let outcome = call.outcome;
            self.happen(id, Phase::Response, outcome);
        }
    }

    /// The rule fires on the message at hand: the shot is spent.
    pub(super) fn fire(&mut self, id: ExchangeId, shot: Shot, held: bool, now: Instant) -> Option<Fired> {
        let call = self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut())?;
        let key = call.key?;
        let armed = self.rounds.get_mut(key.token)?.rules.get_mut(shot.rule)?;
        let execution = self.executions.get_mut(key)?;
        let fault = armed.rule.tfic.fault.clone();
        armed.injections += 1;
        self.stirred.insert(key);
        if !armed.has_shots() {
            // No other execution can be faulted either.
            self.stirred.extend(self.holding.keys().filter(|other| other.token == key.token));
        }
        execution.progress(shot.rule).ended = true;
        let pass = call.passes.get_mut(shot.pass)?;
        pass.passed_by = None;
        call.injection = Some(Injection {
            rule: pass.rule,
            k: pass.k.unwrap_or_default(),
            decided: execution.knowledge.clock,
            held,
            fault: fault.to_string(),
        });
        match (fault::act(&fault, call.grpc), &fault) {
            (Some(act), _) => {
                self.set_stage(id, Stage::Acting { shot, act: act.clone() });
                Some(Fired::Act(act))
            }
            (None, Fault::Delay(time)) => {
                let until = deadline(now, time.0);
                self.set_stage(id, Stage::Delayed { shot, until });
                self.set_timer(id, until);
                self.tell_fired(id);
                Some(Fired::Delayed)
            }
            (None, _) => {
                self.tell_fired(id);
                Some(Fired::Released)
            }
        }
    }

    fn tell_fired(&mut self, id: ExchangeId) {
        let Some(call) = self.call(id) else { return };
        if let (Some(key), Some(injection)) = (call.key, &call.injection) {
            tracing::info!(
                execution = %key.execution,
                call = %call.id,
                service = %self.config.service,
                api = call.api.as_ref().map(tracing::field::display),
                rule = injection.rule,
                fault = %injection.fault,
                "fault injected"
            );
            let word =
                FromSidecar::Fired { token: key.token, rule: injection.rule, execution: key.execution, call: call.id };
            self.outbox.push(word);
        }
    }

    /// The editor did not refuse: the fault has happened, and its event with it.
    pub(super) fn confirm(&mut self, id: ExchangeId) {
        if self.acting == Some(id) {
            self.acting = None;
        }
        self.resuming.remove(&id);
        let Some(Stage::Acting { shot, act }) = self.call(id).map(|call| call.stage.clone()) else { return };
        if let (Act::Answer(made), Some(call)) = (&act, self.call_mut(id)) {
            let text = |name: &str| made.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
            call.made = true;
            call.http_status = Some(made.status);
            call.grpc_status = text("grpc-status").filter(|_| call.grpc).and_then(|status| status.parse().ok());
        }
        self.count_request(id);
        if act == Act::Drop {
            if let Some(call) = self.call_mut(id) {
                call.response_pending = false;
            }
            self.set_stage(id, Stage::Dropped { shot });
            let token = self.call(id).map_or(Token(0), Call::token);
            if self.rounds.get(token).is_none_or(|round| round.disarmed) {
                // Disarmed while the act was under way.
                self.ready.push((id.link, id.stream, Resume::Close));
            }
        } else {
            // Where the outcome stood in the head, a cut behind it is no event any more.
            if self.call(id).is_some_and(|call| call.response.is_none()) {
                self.happen(id, Phase::Response, Some(Outcome::Error));
            }
            self.set_stage(id, Stage::Answered { shot });
        }
        self.tell_fired(id);
    }

    /// Before anything else is done: what the editor was told to do before, it has done.
    pub(super) fn confirm_acting(&mut self) {
        if let Some(id) = self.acting {
            self.confirm(id);
        }
    }

    /// The editor of `link` has returned: what it was told to do, it has done.
    pub(super) fn confirm_acts(&mut self, link: LinkId) {
        self.confirm_acting();
        let done: Vec<ExchangeId> = self.resuming.iter().filter(|id| id.link == link).copied().collect();
        for id in done {
            self.confirm(id);
        }
    }

    /// The editor could not: the message goes on, the shot comes back.
    pub(super) fn undo(&mut self, id: ExchangeId, why: Refusal) {
        if self.acting == Some(id) {
            self.acting = None;
        }
        self.resuming.remove(&id);
        let passed_by = match why {
            Refusal::Pipelined => PassedBy::Pipelined,
            Refusal::Goaway => PassedBy::Goaway,
            Refusal::Size => PassedBy::Size,
            Refusal::Stream => PassedBy::Stream,
            // Nobody waits for an answer any more.
            Refusal::TooLate | Refusal::Oversized => PassedBy::CallerGone,
        };
        let Some(stage) = self.call(id).map(|call| call.stage.clone()) else { return };
        match stage {
            Stage::Acting { shot, .. }
            | Stage::Delayed { shot, .. }
            | Stage::Dropped { shot }
            | Stage::Answered { shot } => self.return_shot(id, shot, passed_by),
            Stage::Waiting { waits, .. } => {
                for wait in waits {
                    self.pass_by(id, wait.pass, passed_by.clone());
                }
                self.unhold(id);
            }
            Stage::Running => return,
        }
        self.set_stage(id, Stage::Running);
    }

    fn return_shot(&mut self, id: ExchangeId, shot: Shot, why: PassedBy) {
        let Some(call) = self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut()) else { return };
        if let (Some(key), Some(injection)) = (call.key, &call.injection) {
            let execution = key.execution;
            tracing::warn!(%execution, call = %call.id, rule = injection.rule, ?why, "a fault could not be injected");
        }
        call.injection = None;
        call.made = false;
        call.response_pending |= call.outcome.is_some() && call.response.is_none();
        if let Some(pass) = call.passes.get_mut(shot.pass) {
            pass.passed_by = Some(why);
        }
        let Some(key) = call.key else { return };
        let id = call.id;
        let Some(rule) = call.passes.get(shot.pass).map(|pass| pass.rule) else { return };
        self.outbox.retain(|word| {
            !matches!(word, FromSidecar::Fired { token, rule: r, call, .. }
                if (*token, *r, *call) == (key.token, rule, id))
        });
        let execution = self.executions.get_mut(key);
        if let Some((round, execution)) = self.rounds.get_mut(key.token).zip(execution)
            // Else it was armed anew since.
            && round.is_whole(execution.born)
            && let Some(armed) = round.rules.get_mut(shot.rule)
        {
            armed.injections = armed.injections.saturating_sub(1);
            execution.progress(shot.rule).ended = false;
        }
        if shot.granted {
            self.hand_back(key, rule, id);
        }
    }

    pub(super) fn pass_by(&mut self, id: ExchangeId, pass: usize, why: PassedBy) {
        if let Some(pass) = self.call_mut(id).and_then(|call| call.passes.get_mut(pass)) {
            pass.passed_by = Some(why);
        }
    }

    /// Park a message until `waits` are decided.
    pub(super) fn wait(&mut self, id: ExchangeId, key: Key, phase: Phase, waits: SmallVec<[Wait; 1]>) {
        for at in waits.iter().filter_map(|wait| wait.deadline) {
            self.set_timer(id, at);
        }
        if let Some(execution) = self.executions.get_mut(key) {
            execution.held.push(id);
        }
        self.set_waits(id, phase, waits);
    }

    /// A parked message waits for this from now on.
    pub(super) fn set_waits(&mut self, id: ExchangeId, phase: Phase, waits: SmallVec<[Wait; 1]>) {
        // What grows decides nothing for those that only wait for an answer.
        let depends = waits.iter().any(|wait| !matches!(wait.on, On::Answer { .. }));
        let key = self.call(id).and_then(|call| call.key).filter(|_| depends);
        if let Some((key, execution)) = key.and_then(|key| Some((key, self.executions.get(key)?))) {
            // Judged just now, before it would count itself.
            self.holding.entry(key).or_insert(execution.version);
        }
        self.set_stage(id, Stage::Waiting { phase, waits });
    }

    /// Nothing of this exchange is held any longer.
    pub(super) fn unhold(&mut self, id: ExchangeId) {
        let Some(key) = self.call(id).and_then(|call| call.key) else { return };
        if let Some(execution) = self.executions.get_mut(key) {
            execution.held.retain(|held| *held != id);
            if execution.held.is_empty() {
                self.holding.remove(&key);
            }
        }
    }

    pub(super) fn set_timer(&mut self, id: ExchangeId, at: Instant) {
        self.last_timer += 1;
        self.timers.insert((at, self.last_timer), id);
    }

    /// Let a parked message go on, unfaulted or after its delay.
    pub(super) fn release(&mut self, id: ExchangeId) {
        self.unhold(id);
        self.set_stage(id, Stage::Running);
        self.ready.push((id.link, id.stream, Resume::Pass));
    }

    /// Judge what is held again wherever evidence grew or a rule ended.
    pub(super) fn judge_held(&mut self) {
        // Firing ends rules, which may let others go; each round of the loop decides at least one message.
        loop {
            let stirred = std::mem::take(&mut self.stirred);
            let grown = |key: &Key, judged: &u64| {
                stirred.contains(key) || self.executions.get(*key).is_some_and(|execution| execution.version != *judged)
            };
            let keys: Vec<Key> = self.holding.iter().filter(|(key, at)| grown(key, at)).map(|(key, _)| *key).collect();
            for key in &keys {
                self.judge_held_of(*key);
            }
            if self.stirred.is_empty() {
                return;
            }
        }
    }

    fn judge_held_of(&mut self, key: Key) {
        let Some(execution) = self.executions.get(key) else { return };
        let held = execution.held.clone();
        if let Some(judged) = self.holding.get_mut(&key) {
            *judged = execution.version;
        }
        for id in held {
            let Some(Stage::Waiting { phase, waits }) = self.call(id).map(|call| call.stage.clone()) else { continue };
            let mut left: SmallVec<[Wait; 1]> = SmallVec::new();
            let mut shot = None;
            for wait in waits {
                if matches!(wait.on, On::Answer { .. }) {
                    left.push(wait);
                    continue;
                }
                match (self.judge_wait(id, key, &wait), &wait.on) {
                    (Judgement::Fire, On::Guard) if shot.is_none() => {
                        shot = Some(Shot { rule: wait.rule, pass: wait.pass, phase, granted: false });
                    }
                    (Judgement::Fire, On::Guard) => self.pass_by(id, wait.pass, PassedBy::Spent),
                    (Judgement::Fire | Judgement::Hold, _) => left.push(wait),
                    (Judgement::PassBy(why), _) => self.pass_by(id, wait.pass, why),
                }
            }
            if let Some(shot) = shot {
                for wait in left {
                    self.pass_by(id, wait.pass, PassedBy::Spent);
                }
                self.unhold(id);
                self.fire_held(id, shot, true);
            } else {
                self.ask_again(id, key, &mut left);
                self.keep(id, phase, left);
            }
        }
    }

    /// A rule fires on a message that was parked; `held` by its `hold`, or only until the arbiter's answer.
    pub(super) fn fire_held(&mut self, id: ExchangeId, shot: Shot, held: bool) {
        // What fires here was judged by a call that came with a time.
        let Some(now) = self.now else { return };
        let fired = self.fire(id, shot, held, now);
        if shot.phase == Phase::Request {
            self.count_request(id);
        }
        match fired {
            Some(Fired::Act(act)) => self.ready.push((id.link, id.stream, Resume::Act(act))),
            Some(Fired::Delayed) => {}
            Some(Fired::Released) | None => self.release(id),
        }
    }

    /// What is known of a parked message and a rule, to judge it by.
    pub(super) fn point<T>(
        &self,
        id: ExchangeId,
        key: Key,
        rule: usize,
        judge: impl FnOnce(&Armed, Point<'_>, Message) -> T,
    ) -> Option<T> {
        let (call, execution, round) = (self.call(id)?, self.executions.get(key)?, self.rounds.get(key.token)?);
        let point = Point {
            service: &self.config.service,
            evidence: &execution.knowledge.evidence,
            whole: round.is_whole(execution.born),
            faulted: call.injection.is_some(),
            disarmed: round.disarmed,
        };
        let message = Message { outcome: call.outcome, witness: call.witness, released: call.released() };
        Some(judge(round.rules.get(rule)?, point, message))
    }

    /// Judge a parked message again.
    pub(super) fn judge_wait(&self, id: ExchangeId, key: Key, wait: &Wait) -> Judgement {
        let k = self.call(id).and_then(|call| call.passes.get(wait.pass)).and_then(|pass| pass.k);
        let progress = self.executions.get(key).and_then(|execution| execution.progress.get(wait.rule).copied());
        let progress = progress.unwrap_or_default();
        let judged = self.point(id, key, wait.rule, |armed, point, message| match wait.on {
            On::Guard => judge(armed, progress, k.unwrap_or_default(), point, message),
            On::Chance { .. } | On::Turn | On::Answer { .. } => match judge_here(armed, point, message) {
                Judgement::PassBy(PassedBy::NumberBlocked) => Judgement::PassBy(PassedBy::NumberBlocked),
                _ if progress.ended || !armed.has_shots() => Judgement::PassBy(PassedBy::Spent),
                judgement => judgement,
            },
        });
        judged.unwrap_or(Judgement::PassBy(PassedBy::Disarmed))
    }

    /// Deadlines up to `now`: delays are over, holds are given up.
    pub(super) fn expire_parked(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let id = entry.remove();
            let Some(stage) = self.call(id).map(|call| call.stage.clone()) else { continue };
            match stage {
                Stage::Delayed { until, .. } if until <= now => self.release(id),
                Stage::Waiting { phase, waits } => {
                    let Some(key) = self.call(id).and_then(|call| call.key) else { continue };
                    let mut left = SmallVec::new();
                    for wait in waits {
                        match late(&wait, now) {
                            None => left.push(wait),
                            Some(why) => {
                                if why == PassedBy::Arbiter {
                                    self.give_up(id, key, wait.rule);
                                }
                                self.pass_by(id, wait.pass, why);
                                // Another rule may ask now.
                                self.stirred.insert(key);
                            }
                        }
                    }
                    self.keep(id, phase, left);
                }
                _ => {}
            }
        }
    }

    /// The rules of a round act no more; what they keep goes on or is closed.
    pub(super) fn disarm(&mut self, token: Token) {
        let of_round = |call: &Call| call.token() == token && call.stage != Stage::Running;
        let mut kept: Vec<ExchangeId> = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| exchange.call.as_deref().is_some_and(of_round))
            .map(|(id, _)| *id)
            .collect();
        kept.sort_unstable();
        for id in kept {
            let Some(stage) = self.call(id).map(|call| call.stage.clone()) else { continue };
            match stage {
                Stage::Waiting { waits, .. } => {
                    for wait in waits {
                        self.pass_by(id, wait.pass, PassedBy::Disarmed);
                    }
                    self.release(id);
                }
                Stage::Delayed { .. } => self.release(id),
                Stage::Dropped { .. } => self.ready.push((id.link, id.stream, Resume::Close)),
                Stage::Acting { .. } | Stage::Answered { .. } | Stage::Running => {}
            }
        }
        self.rounds.stop_tagging(token);
        if let Some(round) = self.rounds.get_mut(token) {
            round.disarm();
        }
    }

    /// The rules of a round go: whatever passes from here on, nobody looks at it.
    pub(super) fn drop_rules(&mut self, token: Token) {
        self.disarm(token);
        if let Some(round) = self.rounds.get_mut(token) {
            round.rules.clear();
        }
        for key in self.executions.of(token) {
            if let Some(execution) = self.executions.get_mut(key) {
                execution.progress.clear();
            }
        }
    }
}

/// Why a parked message waits no longer for this at `now`, if so: what comes first counts.
fn late(wait: &Wait, now: Instant) -> Option<PassedBy> {
    let answer = match wait.on {
        On::Answer { until, .. } => Some((until, PassedBy::Arbiter)),
        On::Guard | On::Chance { .. } | On::Turn => None,
    };
    let hold = wait.deadline.map(|at| (at, PassedBy::HoldDeadline));
    hold.into_iter().chain(answer).filter(|(at, _)| *at <= now).min_by_key(|(at, _)| *at).map(|(_, why)| why)
}
