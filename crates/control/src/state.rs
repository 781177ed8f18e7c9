//! What the controller knows now, and how each message changes it: synchronous, without tasks, store or sockets.
//!
//! The hub keeps it behind its lock; [`crate::simulation`] runs it alone. Messages to sidecars are put into outboxes, in
//! the order of their causes. Of a round's messages only that round is touched, so that rounds in flight cost each other
//! nothing; what concerns every round is the coming and going of sidecars, once a second the counters, and flushes.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::hop::Keyring;
use aftershock_core::id::{ObserverId, Token};
use aftershock_core::name::Service;
use aftershock_core::otlp::Decoded;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{Ask, FromController, FromSidecar, Hello, PROTOCOL, Ruling};
use tokio::time::Instant;

use crate::api::{RoundId, StartRound};
use crate::arbiter::Release;
use crate::arming::{Refusal, resolve};
use crate::collector::{Accepted, Collector};
use crate::keys::Keys;
use crate::registry::{Outgoing, Registry};
use crate::rounds::{Live, Terms};
use crate::server::Options;

/// Most services whose sidecars' refusals are remembered.
const MAX_REFUSED: usize = 64;

/// See the module.
pub(crate) struct State {
    pub(crate) registry: Registry,
    pub(crate) collector: Collector,
    pub(crate) keys: Keys,
    /// Sidecars of other versions that were refused: what each was told.
    pub(crate) refused: BTreeMap<Service, String>,
    rounds: BTreeMap<RoundId, Live>,
    tokens: BTreeMap<Token, RoundId>,
    pub(crate) flushes: u64,
    /// When counters were last asked for.
    reports: Option<Instant>,
    /// Connections of sidecars that are not over.
    pub(crate) links: usize,
    /// No round begins any more.
    pub(crate) stopping: bool,
}

/// What a sidecar's message means for those who wait. Who waits for a round is woken by the round itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// At most a round was changed.
    Quiet,
    /// Something that belongs to no round was changed.
    Change,
    /// Only an unregistered sidecar may say that.
    Unfit,
}

impl State {
    /// Nobody is registered, nothing is armed. Keeps at most `spans` of each round.
    pub(crate) fn new(keys: Keyring, spans: usize) -> Self {
        State {
            registry: Registry::default(),
            collector: Collector::new(spans),
            keys: Keys::new(keys),
            refused: BTreeMap::new(),
            rounds: BTreeMap::new(),
            tokens: BTreeMap::new(),
            flushes: 0,
            reports: None,
            links: 0,
            stopping: false,
        }
    }

    // ---- rounds ----------------------------------------------------------------------------------------------------

    /// The live rounds.
    pub(crate) fn rounds(&self) -> &BTreeMap<RoundId, Live> {
        &self.rounds
    }

    /// A live round.
    pub(crate) fn round(&self, id: RoundId) -> Option<&Live> {
        self.rounds.get(&id)
    }

    /// A live round, to be changed.
    pub(crate) fn round_mut(&mut self, id: RoundId) -> Option<&mut Live> {
        self.rounds.get_mut(&id)
    }

    /// Every live round, to be changed.
    pub(crate) fn rounds_mut(&mut self) -> impl Iterator<Item = (RoundId, &mut Live)> {
        self.rounds.iter_mut().map(|(id, live)| (*id, live))
    }

    /// The live round with this token.
    pub(crate) fn token(&self, token: Token) -> Option<RoundId> {
        self.tokens.get(&token).copied()
    }

    fn by_token(&mut self, token: Token) -> Option<&mut Live> {
        self.rounds.get_mut(self.tokens.get(&token)?)
    }

    /// Resolve a round for the sidecars that are registered and the clean traces of its scenario, and send it to all of
    /// them.
    ///
    /// # Errors
    /// When it could not work; then nothing was sent.
    pub(crate) fn arm(
        &mut self,
        id: RoundId,
        token: Token,
        request: StartRound,
        traces: &[Trace],
        options: &Options,
    ) -> Result<(), Refusal> {
        let armament = resolve(&request, options.faultable.as_ref(), &self.registry.instances(), traces)?;
        self.collector.open(token);
        let mut live = Live::new(token, request, armament, Terms::new(options, traces));
        for (observer, connected) in self.registry.iter() {
            // The counters that it answers with are those at the beginning of the round.
            connected.send(FromController::Report);
            connected.send(FromController::Arm(live.joined_by(observer, connected.hello.service.clone())));
        }
        self.rounds.insert(id, live);
        self.tokens.insert(token, id);
        Ok(())
    }

    /// The round is over: sidecars forget its token, also those that came late.
    pub(crate) fn end(&mut self, id: RoundId) {
        let Some(live) = self.rounds.remove(&id) else { return };
        self.tokens.remove(&live.token);
        for (_, connected) in self.registry.iter() {
            connected.send(FromController::End { token: live.token });
        }
    }

    /// Ask every connected sidecar for all it has recorded. Returns the number of the flush.
    pub(crate) fn flush(&mut self) -> u64 {
        self.flushes += 1;
        for (_, connected) in self.registry.iter() {
            connected.send(FromController::Report);
            connected.send(FromController::Flush { id: self.flushes });
        }
        self.flushes
    }

    /// The connected ones of `asked` that have not answered a flush.
    pub(crate) fn behind(&self, flush: u64, asked: &BTreeSet<ObserverId>) -> BTreeSet<ObserverId> {
        let behind = |observer: &ObserverId| self.registry.get(*observer).is_some_and(|one| one.flushed < flush);
        asked.iter().copied().filter(behind).collect()
    }

    /// Ask every sidecar for its counters, unless that was just done for another round.
    pub(crate) fn ask_for_counters(&mut self, now: Instant) {
        if self.reports.is_some_and(|last| now < last + crate::rounds::COUNTERS_EVERY) {
            return;
        }
        self.reports = Some(now);
        for (_, connected) in self.registry.iter() {
            connected.send(FromController::Report);
        }
    }

    // ---- keys ------------------------------------------------------------------------------------------------------

    /// Begin to exchange the key of hop tags, unless that is under way: then by whom it is kept waiting.
    pub(crate) fn rotate_keys(&mut self, secret: [u8; 16]) -> Vec<ObserverId> {
        let ring = self.keys.rotate(secret);
        let waits = if ring.is_none() { self.keys.behind().collect() } else { Vec::new() };
        self.tell_keys(ring);
        waits
    }

    /// The old key is taken no longer, if everybody signs with the new one.
    pub(crate) fn keys_drained(&mut self) {
        let ring = self.keys.drained();
        self.tell_keys(ring);
    }

    fn tell_keys(&self, ring: Option<Keyring>) {
        let Some(ring) = ring else { return };
        for (_, connected) in self.registry.iter() {
            connected.send(FromController::Keys { keys: ring.clone() });
        }
    }

    // ---- sidecars --------------------------------------------------------------------------------------------------

    /// A sidecar said hello: it is registered, and late to every live round.
    pub(crate) fn register(&mut self, hello: Hello) -> Outgoing {
        let observer = hello.observer;
        self.refused.remove(&hello.service);
        let (outgoing, again) = self.registry.add(hello);
        if again {
            self.rounds.values_mut().for_each(|live| live.lost_sidecar(observer));
        }
        let welcome = FromController::Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keys: self.keys.ring(),
            registry: self.registry.to_wire(),
            late: self.rounds.values().map(|live| live.token).collect(),
        };
        let confirm = self.keys.joined(observer);
        self.send(observer, welcome);
        if confirm {
            self.send(observer, FromController::Keys { keys: self.keys.ring() });
        }
        outgoing
    }

    /// A sidecar of another version was refused, and told why. It comes back until somebody does something about it.
    pub(crate) fn refuse(&mut self, service: &str, reason: String) {
        let Ok(service) = service.parse::<Service>() else { return };
        let has_room = self.refused.len() < MAX_REFUSED || self.refused.contains_key(&service);
        if has_room && self.refused.get(&service) != Some(&reason) {
            tracing::warn!(reason, "a sidecar is refused");
            self.refused.insert(service, reason);
        }
    }

    /// The connection of a sidecar ended. False if it had connected anew before.
    pub(crate) fn deregister(&mut self, observer: ObserverId, connection: u64) -> bool {
        let gone = self.registry.remove(observer, connection);
        if gone {
            self.rounds.values_mut().for_each(|live| live.lost_sidecar(observer));
            let ring = self.keys.left(observer);
            self.tell_keys(ring);
        }
        gone
    }

    /// A registered sidecar said something.
    pub(crate) fn hear(&mut self, observer: ObserverId, connection: u64, message: FromSidecar) -> Heard {
        let asked = self.flushes;
        let Some(connected) = self.registry.get_mut(observer).filter(|known| known.is(connection)) else {
            return Heard::Quiet;
        };
        match message {
            FromSidecar::Hello(_) => return Heard::Unfit,
            FromSidecar::Counters(counters) => {
                let ordinary = connected.report(counters);
                self.rounds.values_mut().for_each(|live| live.ordinary(observer, ordinary));
                return Heard::Change;
            }
            // An answer to what was never asked proves nothing.
            FromSidecar::Flushed { id, exported: _, lost, lost_of } if id <= asked => {
                connected.flushed = connected.flushed.max(id);
                connected.lost = lost;
                connected.lost_of = lost_of;
                return Heard::Change;
            }
            FromSidecar::Flushed { .. } => {}
            FromSidecar::Keyed { keys } => {
                let ring = self.keys.keyed(observer, &keys);
                self.tell_keys(ring);
                return Heard::Change;
            }
            FromSidecar::Ask(ask) => {
                let answer = self.by_token(ask.token).and_then(|live| live.ask(observer, &ask));
                if let Some((number, ruling)) = answer {
                    let Ask { token, rule, execution, call, .. } = ask;
                    self.send(observer, FromController::Ruled { token, rule, execution, call, number, ruling });
                }
            }
            FromSidecar::GiveUp { token, rule, execution, call } => {
                let released = self.by_token(token).map(|live| live.gave_up(observer, rule, execution, call));
                self.release(token, rule, released.unwrap_or_default());
            }
            FromSidecar::HandBack { token, rule, execution, call } => {
                let released = self.by_token(token).map(|live| live.handed_back(observer, rule, execution, call));
                self.release(token, rule, released.unwrap_or_default());
            }
            FromSidecar::Fired { token, rule, execution, call } => {
                let released = self.by_token(token).map(|live| live.fired(observer, rule, execution, call));
                self.release(token, rule, released.unwrap_or_default());
            }
            FromSidecar::Armed { token } => {
                let unassociated = connected.unassociated().clone();
                let again = self.by_token(token).map(|live| live.armed(observer, unassociated));
                for (observer, arm) in again.unwrap_or_default() {
                    self.send(observer, FromController::Arm(arm));
                }
            }
            FromSidecar::NotArmed { token, reason } => {
                self.with(token, |live| live.not_armed(observer, reason));
            }
            FromSidecar::Disarmed { token } => self.with(token, |live| live.disarmed(observer)),
            FromSidecar::Cut { token, connections } => self.with(token, |live| live.cut(observer, connections)),
            FromSidecar::Lapsed { token } => self.with(token, |live| live.lapsed(observer)),
            FromSidecar::Activity { token, begun, open } => {
                self.with(token, |live| live.activity(observer, begun, open));
            }
        }
        Heard::Quiet
    }

    /// Spans came in.
    pub(crate) fn collect(&mut self, decoded: Decoded) -> Accepted {
        let accepted = self.collector.accept(decoded);
        for token in &accepted.grew {
            self.with(*token, Live::grew);
        }
        accepted
    }

    /// Rounds that are not live are not spoken of any more.
    fn with(&mut self, token: Token, act: impl FnOnce(&mut Live)) {
        if let Some(live) = self.by_token(token) {
            act(live);
        }
    }

    /// Put a message into a sidecar's outbox, if it is connected.
    pub(crate) fn send(&self, observer: ObserverId, message: FromController) {
        if let Some(connected) = self.registry.get(observer) {
            connected.send(message);
        }
    }

    /// Tell held passes that they wait in vain.
    fn release(&self, token: Token, rule: usize, released: Vec<Release>) {
        for Release { observer, execution, call, number } in released {
            let ruling = Ruling::Spent;
            self.send(observer, FromController::Ruled { token, rule, execution, call, number, ruling });
        }
    }
}
