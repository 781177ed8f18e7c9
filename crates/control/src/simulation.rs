//! The controller without time, tasks, sockets or store, for deterministic simulations of whole rounds.
//!
//! It is the `State` that the hub keeps: what sidecars say goes in with [`Simulation::hear`] and
//! [`Simulation::collect`], what they are told comes out of [`Simulation::outbox`], in order; whoever simulates decides
//! when and whether it arrives. Not simulated are what tasks do by the clock: renewing leases ([`Simulation::renew`]),
//! waiting ([`Simulation::is_armed`], [`Simulation::is_settled`], [`Simulation::is_over`], [`Simulation::is_flushed`]),
//! and giving up waiting.
//!
//! A round goes `start` → `Armed` of every sidecar → executions → `disarm` → `flush` → `finish`.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::hop::Keyring;
use aftershock_core::id::{ObserverId, Token};
use aftershock_core::otlp::Decoded;
use aftershock_core::span::CallSpan;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{FromController, FromSidecar, Hello};

use crate::activity::standing;
use crate::api::{Finished, RoundId, StartRound};
use crate::registry::Outgoing;
use crate::rounds::Phase;
use crate::server::Options;
use crate::state::State;
use crate::verdict::Failure;

/// See the module.
pub struct Simulation {
    options: Options,
    state: State,
    links: BTreeMap<ObserverId, Outgoing>,
    /// By round: its last flush, and who was asked.
    flushes: BTreeMap<RoundId, (u64, BTreeSet<ObserverId>)>,
    rounds: i64,
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("sidecars", &self.links.keys()).finish_non_exhaustive()
    }
}

impl Simulation {
    /// A controller with `options`, as far as they are not about time and the store, whose sidecars sign with `keys`.
    pub fn new(options: Options, keys: Keyring) -> Self {
        let state = State::new(keys, options.spans_per_round);
        Simulation { options, state, links: BTreeMap::new(), flushes: BTreeMap::new(), rounds: 0 }
    }

    /// A sidecar connects. One that was connected under the same observer is gone from then on.
    pub fn register(&mut self, hello: Hello) -> ObserverId {
        let observer = hello.observer;
        let outgoing = self.state.register(hello);
        self.links.insert(observer, outgoing);
        observer
    }

    /// A sidecar's connection ends; what was not taken from its outbox is lost.
    pub fn deregister(&mut self, observer: ObserverId) {
        if let Some(link) = self.links.remove(&observer) {
            self.state.deregister(observer, link.connection);
        }
    }

    /// A connected sidecar says something; others are not heard. False if it may not say that.
    pub fn hear(&mut self, observer: ObserverId, message: FromSidecar) -> bool {
        let Some(link) = self.links.get(&observer) else { return true };
        self.state.hear(observer, link.connection, message) != crate::state::Heard::Unfit
    }

    /// Everything that a sidecar was told since it was last asked for, in order.
    pub fn outbox(&mut self, observer: ObserverId) -> Vec<FromController> {
        let Some(link) = self.links.get_mut(&observer) else { return Vec::new() };
        std::iter::from_fn(|| link.messages.try_recv().ok()).collect()
    }

    /// Spans come in. Of rounds that were judged they are late and change nothing.
    pub fn collect(&mut self, spans: Vec<CallSpan>) {
        self.state.collect(Decoded { spans, foreign: 0 });
    }

    /// Begin a round under `token`, against the clean traces of its scenario, or none.
    ///
    /// # Errors
    /// Why it is refused, as a sentence.
    pub fn start(&mut self, token: Token, request: StartRound, traces: &[Trace]) -> Result<(), String> {
        self.rounds += 1;
        let id = RoundId(self.rounds);
        self.state.arm(id, token, request, traces, &self.options).map_err(|refusal| refusal.to_string())
    }

    /// Whether every sidecar has acknowledged, so that executions may begin; the round is armed from then on.
    pub fn is_armed(&mut self, token: Token) -> bool {
        let Some(live) = self.state.token(token).and_then(|id| self.state.round_mut(id)) else { return false };
        if live.phase == Phase::Arming && live.participants.values().all(|one| one.is_present() && !one.is_undecided())
        {
            live.phase = Phase::Armed;
        }
        live.phase != Phase::Arming
    }

    /// Prolong the round's leases.
    pub fn renew(&mut self, token: Token) {
        if let Some(id) = self.state.token(token) {
            self.state.renew(id, tokio::time::Instant::now());
        }
    }

    /// Ask what is open, and for every change of it.
    pub fn watch(&mut self, token: Token) {
        if let Some(id) = self.state.token(token) {
            self.state.watch(id);
        }
    }

    /// Whether, by what sidecars have said since [`Simulation::watch`], nothing of the round is open but what a fault
    /// keeps, and something has begun. The quiet time is whoever simulates' to wait.
    pub fn is_settled(&self, token: Token) -> bool {
        let live = self.state.token(token).and_then(|id| self.state.round(id));
        live.is_some_and(|live| live.all_spoke() && standing(live.seen()).is_settled())
    }

    /// Why the round is not what was planned; for what happens outside the simulation: a client that could not be run.
    pub fn fail(&mut self, token: Token, failure: Failure) {
        if let Some(live) = self.state.token(token).and_then(|id| self.state.round_mut(id)) {
            live.failures.push(failure);
        }
    }

    /// Whether ordinary traffic suffered beyond the round's stop condition, so that it is to be disarmed.
    pub fn is_stopped(&self, token: Token) -> bool {
        self.state.token(token).and_then(|id| self.state.round(id)).is_some_and(|live| live.stopped)
    }

    /// Remove the round's rules; parked messages are released.
    pub fn disarm(&mut self, token: Token) {
        if let Some(id) = self.state.token(token) {
            if let Some(live) = self.state.round_mut(id) {
                live.phase = Phase::Ending;
            }
            self.state.disarm(id);
        }
    }

    /// Whether every sidecar within reach confirmed the disarming and has no call of the round open.
    pub fn is_over(&self, token: Token) -> bool {
        self.state.token(token).is_none_or(|id| self.state.unconfirmed(id).is_empty() && self.state.is_over(id))
    }

    /// Ask every sidecar for the spans that it has recorded.
    pub fn flush(&mut self, token: Token) {
        if let Some(id) = self.state.token(token) {
            let asked = self.state.recorders(id);
            let flush = self.state.flush();
            self.flushes.insert(id, (flush, asked));
        }
    }

    /// Whether every connected sidecar has answered the last [`Simulation::flush`] of the round.
    pub fn is_flushed(&self, token: Token) -> bool {
        let flush = self.state.token(token).and_then(|id| self.flushes.get(&id));
        flush.is_some_and(|(flush, asked)| self.state.behind(*flush, asked).is_empty())
    }

    /// Whether nothing is missing from the round's record.
    pub fn is_complete(&self, token: Token) -> bool {
        let gathered = self.state.token(token).and_then(|id| self.state.gather(id, &BTreeSet::new(), &BTreeSet::new()));
        gathered.is_some_and(|gathered| gathered.assemble().is_complete())
    }

    /// Judge the round by what is in, and end it. None if there is no such round.
    pub fn finish(&mut self, token: Token) -> Option<Finished> {
        let id = self.state.token(token)?;
        let silent = match self.flushes.remove(&id) {
            Some((flush, asked)) => self.state.behind(flush, &asked),
            None => self.state.recorders(id),
        };
        let assembled = self.state.gather(id, &self.state.unconfirmed(id), &silent)?.assemble();
        let finished = self.state.close(id)?.judge(assembled);
        self.state.end(id);
        Some(finished)
    }
}
