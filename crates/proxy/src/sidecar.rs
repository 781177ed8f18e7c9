//! The brain of the sidecar: the four interception points, rounds and leases, without I/O (design §3).
//!
//! Messages come in through [`Interceptor`] calls, the controller's words through
//! [`Sidecar::on_control`], time and randomness as arguments; verdicts, edits, resumed messages, spans and answers to the
//! controller come out. So every decision can be tested by a function call, and the same code runs in a simulated network.
//!
//! At each point the order is: associate, merge what arrived, decide, count and record, stamp, forward or act. The
//! decision sees the evidence before the message at hand is counted.
//!
//! Invariants:
//! * Without keys (no controller has registered this sidecar yet) everything passes untouched.
//! * A fault is only ever the effect of a rule of a live lease. When the lease ends, by disarming, by lapse or at the end
//!   of the process, parked messages go on and dropped ones are closed.
//! * A rule fires at most once in an execution and at most `max_injections` times in a round.
//! * Each module hides one decision: `association` whose call it is, `identity` what is made of that, `execution` what
//!   is kept of it, `rules` when a rule fires, `rounds` how long, `points` in which order, `parking` what waits, `asking`
//!   what an arbiter decides, `streams` how a response is followed, `late` what comes after its end, `record` what is
//!   told.

mod activity;
mod asking;
mod association;
mod call;
mod counters;
mod ended;
mod execution;
mod fault;
mod forgotten;
pub(crate) mod header;
mod identity;
mod late;
mod parking;
mod peers;
mod points;
mod record;
mod rounds;
mod rules;
mod streams;
mod tallies;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use aftershock_core::evidence::{Gap, GapKind};
use aftershock_core::hop::Keyring;
use aftershock_core::id::{CallId, ObserverId, Token};
use aftershock_core::name::Service;
use aftershock_core::plan::Side;
use aftershock_core::span::{CallSpan, Instant as Stamp};
use aftershock_core::wire::{Arm, FromController, FromSidecar, OpenCall, Registry};
use foldhash::HashMap;

use crate::config::Config;
use crate::exchange::{Decider, Door, Interceptor, LinkId, Resume, StreamId};
use activity::Activity;
use association::Calls;
use call::{Exchange, ExchangeId, Stage};
use counters::Counters;
use execution::{Executions, Key};
use late::DepartedCalls;
use peers::{Apis, Callees, Way};
use rounds::{Round, Rounds};
use tallies::Tallies;

/// Random 64-bit numbers.
pub type Random = Box<dyn FnMut() -> u64>;
/// The wall clock, nanoseconds since the Unix epoch. Never used for order.
pub type WallClock = Box<dyn Fn() -> u64>;

/// A connection that was accepted.
#[derive(Debug, Clone, Copy)]
struct Link {
    door: Door,
    /// Which of an outbound listener's addresses it goes to.
    upstream: usize,
    /// Its callee was cut off when it was opened, or since.
    cut: bool,
}

impl Link {
    /// The way out that it is; none towards the application.
    fn way(self) -> Option<Way> {
        match self.door {
            Door::Inbound(_) | Door::RedirectedIn(_) => None,
            Door::Outbound(index) => Some(Way::Listed(index)),
            Door::RedirectedOut(address) => Some(Way::Dialled(address)),
        }
    }
}

/// One sidecar's state.
pub struct Sidecar {
    config: Config,
    observer: ObserverId,
    random: Random,
    wall: WallClock,
    keys: Keyring,
    /// Those of the service itself.
    apis: Apis,
    callees: Callees,
    rounds: Rounds,
    executions: Executions,
    calls: Calls,
    departed: DepartedCalls,
    links: HashMap<LinkId, Link>,
    last_link: u64,
    /// Links whose connections are to be broken.
    cuts: Vec<LinkId>,
    /// The next address of each outbound listener.
    turns: Vec<usize>,
    exchanges: HashMap<ExchangeId, Exchange>,
    /// Deadlines of parked messages, with a number that keeps equal ones apart. An entry that no longer fits is ignored.
    timers: BTreeMap<(Instant, u64), ExchangeId>,
    last_timer: u64,
    /// Executions with messages that wait for a guard or the arbiter, and the version of their evidence that was judged
    /// last.
    holding: BTreeMap<Key, u64>,
    /// Executions in which something was decided: what waits there may go on, or ask, although no evidence grew.
    stirred: BTreeSet<Key>,
    /// Open calls about which the arbiter was asked.
    asking: BTreeMap<(Token, CallId), ExchangeId>,
    /// An editor was told to act and has not refused yet.
    acting: Option<ExchangeId>,
    /// Acts handed out with [`Decider::resumes`], until the editor had its chance to refuse.
    resuming: BTreeSet<ExchangeId>,
    ready: Vec<(LinkId, StreamId, Resume)>,
    activity: Activity,
    counters: Counters,
    tallies: Tallies,
    outbox: Vec<FromSidecar>,
    spans: Vec<CallSpan>,
    /// What it knew of the time when it was last called.
    now: Option<Instant>,
    /// The wall clock at that time, once it was asked.
    unix_nanos: Cell<Option<u64>>,
}

impl fmt::Debug for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sidecar")
            .field("service", &self.config.service)
            .field("observer", &self.observer)
            .field("exchanges", &self.exchanges.len())
            .finish_non_exhaustive()
    }
}

impl Sidecar {
    /// A sidecar that has seen nothing. `observer` is random, new in each process.
    pub fn new(config: Config, observer: ObserverId, random: Random, wall: WallClock) -> Self {
        let mut callees = Callees::default();
        callees.register(&config, Registry::default());
        Sidecar {
            apis: Apis::new(config.templates.clone()),
            callees,
            calls: Calls::new(config.linger, config.exclusive),
            departed: DepartedCalls::new(config.linger),
            turns: vec![0; config.outbound.len()],
            config,
            observer,
            random,
            wall,
            keys: Keyring::default(),
            rounds: Rounds::default(),
            executions: Executions::default(),
            links: HashMap::default(),
            last_link: 0,
            cuts: Vec::new(),
            exchanges: HashMap::default(),
            timers: BTreeMap::new(),
            last_timer: 0,
            holding: BTreeMap::new(),
            stirred: BTreeSet::new(),
            asking: BTreeMap::new(),
            acting: None,
            resuming: BTreeSet::new(),
            ready: Vec::new(),
            activity: Activity::default(),
            counters: Counters::default(),
            tallies: Tallies::default(),
            outbox: Vec::new(),
            spans: Vec::new(),
            now: None,
            unix_nanos: Cell::new(None),
        }
    }

    /// Hold at most `executions` of one live token, fewer than there would be place for: for simulations, in which what
    /// happens beyond is to happen.
    #[doc(hidden)]
    pub fn hold_at_most(&mut self, executions: usize) {
        self.executions.most = executions;
    }

    /// Remember at most `calls` that have ended, fewer than there would be place for: for simulations.
    #[doc(hidden)]
    pub fn remember_at_most(&mut self, calls: usize) {
        self.calls.most = calls;
    }

    /// What is left of traffic that is over, by name; nothing, if there are no links and no live rounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn remains(&self) -> Vec<&'static str> {
        let left = [
            ("links", !self.links.is_empty()),
            ("exchanges", !self.exchanges.is_empty()),
            ("messages asked about", !self.asking.is_empty()),
            ("an act", self.acting.is_some()),
            ("acts to be confirmed", !self.resuming.is_empty()),
            ("messages to go on", !self.ready.is_empty()),
            ("messages on hold", !self.holding.is_empty()),
            ("links to be cut", !self.cuts.is_empty()),
        ];
        left.into_iter().filter(|(_, is_left)| *is_left).map(|(name, _)| name).collect()
    }

    /// This process start.
    pub fn observer(&self) -> ObserverId {
        self.observer
    }

    /// The name of the service beside it.
    pub fn service(&self) -> &str {
        self.config.service.as_str()
    }

    /// The address that a link's upstream connection goes to. A listener's addresses are taken in turn.
    pub fn upstream(&self, link: LinkId) -> Option<String> {
        let link = self.links.get(&link)?;
        Some(match link.door {
            Door::Inbound(index) => self.config.inbound[index].to.to_string(),
            Door::Outbound(index) => self.config.outbound[index].to[link.upstream].to_string(),
            Door::RedirectedIn(address) | Door::RedirectedOut(address) => address.to_string(),
        })
    }

    /// A word of the controller, at `now`. [`FromController::Flush`] is the exporter's business and does nothing here;
    /// [`FromController::Refused`] ends the connection, not the brain.
    pub fn on_control(&mut self, word: FromController, now: Instant) {
        self.set_now(now);
        match word {
            FromController::Welcome { keys, registry, late, .. } => {
                self.keys = keys;
                self.register(registry);
                for token in &late {
                    self.activity.follow(*token);
                }
                self.rounds.set_late(late);
                self.activity.retain(|token| self.rounds.takes(token));
            }
            FromController::Registry(registry) => self.register(registry),
            FromController::Arm(arm) => self.arm(arm, now),
            FromController::Renew { token } => self.rounds.renew(token, now),
            FromController::Disarm { token } => {
                self.disarm(token);
                tracing::info!("disarmed");
                let met = self.rounds.get(token).map(|round| round.cut.clone()).unwrap_or_default();
                if !met.is_empty() {
                    self.outbox.push(FromSidecar::Cut { token, connections: met });
                }
                self.outbox.push(FromSidecar::Disarmed { token });
            }
            FromController::End { token } => {
                self.drop_rules(token);
                self.rounds.remove(token);
                self.executions.release(token);
                self.activity.forget(token);
            }
            FromController::Watch { token } => self.activity.watch(token),
            FromController::Report => self.outbox.push(FromSidecar::Counters(self.counters.report())),
            FromController::Keys { keys } => {
                self.outbox.push(FromSidecar::Keyed { keys: keys.0.iter().map(|key| key.id).collect() });
                self.keys = keys;
            }
            FromController::Ruled { token, rule, execution, call, number, ruling } => {
                self.ruled(Key { token, execution }, rule, call, number, ruling);
            }
            FromController::Flush { .. } | FromController::Refused { .. } => {}
        }
    }

    /// Everybody is named anew.
    fn register(&mut self, registry: Registry) {
        self.callees.register(&self.config, registry);
        self.cut_links();
    }

    /// Rules act from here on: what is armed is complete or nothing.
    fn arm(&mut self, arm: Arm, now: Instant) {
        let token = arm.token;
        let foreign = arm.rules.iter().find(|rule| rule.service != self.config.service);
        let reason = match foreign {
            _ if token.is_zero() => Some("a round's token is not zero".to_owned()),
            _ if self.keys.current().is_none() => Some("this sidecar has no keys".to_owned()),
            Some(rule) => Some(format!("rule {} is for the sidecar of {}", rule.index, rule.service)),
            None => fault::refusal(&arm),
        };
        self.tallies.arming(reason.is_none());
        if let Some(reason) = reason {
            tracing::warn!(%reason, "not armed");
            self.outbox.push(FromSidecar::NotArmed { token, reason });
            return;
        }
        // Armed anew: rules count from the next execution on, those that have begun were not seen from their beginning.
        self.drop_rules(token);
        let cuts: Vec<&str> = arm.cuts.iter().map(Service::as_str).collect();
        tracing::info!(rules = arm.rules.len(), ?cuts, lease = ?arm.lease, "armed");
        self.rounds.arm(token, Round::new(arm, self.executions.next_born(), now));
        self.executions.hold(token);
        self.activity.follow(token);
        self.cut_links();
        self.outbox.push(FromSidecar::Armed { token });
    }

    /// The callee behind `link`, if it is cut off.
    fn cut_off(&self, link: Link) -> Option<Service> {
        let callee = self.callees.behind(link.way()?).name()?;
        self.rounds.cuts(callee).then(|| callee.clone())
    }

    /// Open links to callees that are cut off break.
    fn cut_links(&mut self) {
        let whole = self.links.iter().filter(|(_, link)| !link.cut);
        let mut cut: Vec<(LinkId, Service)> =
            whole.filter_map(|(id, link)| Some((*id, self.cut_off(*link)?))).collect();
        cut.sort_unstable_by_key(|(id, _)| *id);
        for (id, callee) in cut {
            if let Some(link) = self.links.get_mut(&id) {
                link.cut = true;
            }
            self.rounds.met_cut(&callee, |met| met.broken += 1);
            self.tallies.broken();
            self.cuts.push(id);
        }
    }

    /// Links whose connections are to be broken, since the last call.
    pub fn take_cuts(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.cuts)
    }

    /// Time has come to `now`: leases and deadlines that have passed take effect.
    pub fn on_time(&mut self, now: Instant) {
        self.set_now(now);
        for token in self.rounds.lapsed(now) {
            self.drop_rules(token);
            self.rounds.remove(token);
            // From here on passes may be missed.
            for key in self.executions.of(token) {
                self.set_gap(key, GapKind::Number);
            }
            self.executions.release(token);
            self.activity.changed(token);
            self.tallies.lapsed();
            tracing::warn!("a lease ran out: its rules are gone, what they kept goes on");
            self.outbox.push(FromSidecar::Lapsed { token });
        }
        self.expire_parked(now);
        self.calls.expire(now);
        self.departed.expire(now);
    }

    /// When [`Sidecar::on_time`] is to be called next, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let parked = self.timers.keys().next().map(|(at, _)| *at);
        parked.into_iter().chain(self.rounds.next_expiry()).min()
    }

    /// The process is about to end: nothing is kept any longer, no rule acts any more.
    pub fn shutdown(&mut self) {
        for token in self.rounds.tokens() {
            self.drop_rules(token);
        }
    }

    /// What is to be said to the controller since the last call, in order.
    pub fn take_control(&mut self) -> Vec<FromSidecar> {
        let mut words = std::mem::take(&mut self.outbox);
        for (token, begun) in self.activity.take() {
            words.push(FromSidecar::Activity { token, begun, open: self.open_calls(token) });
        }
        words
    }

    /// Whether [`Sidecar::take_control`] would return anything.
    pub fn has_control(&self) -> bool {
        !self.outbox.is_empty() || self.activity.is_pending()
    }

    /// The spans of calls that ended since the last call.
    pub fn take_spans(&mut self) -> Vec<CallSpan> {
        std::mem::take(&mut self.spans)
    }

    /// Hands over the same, if there are any, from memory that stays.
    pub fn hand_over_spans(&mut self, to: impl FnOnce(&[CallSpan])) {
        if !self.spans.is_empty() {
            to(&self.spans);
            self.spans.clear();
        }
    }

    /// Rounds that are live here.
    pub fn live_tokens(&self) -> Vec<Token> {
        self.rounds.tokens()
    }

    fn open_calls(&self, token: Token) -> Vec<OpenCall> {
        let calls = self.exchanges.values().filter_map(|exchange| exchange.call.as_deref());
        let mut open: Vec<OpenCall> = calls
            .filter_map(|call| {
                let key = call.key.filter(|key| key.token == token)?;
                Some(OpenCall {
                    side: call.side,
                    execution: key.execution,
                    call: call.id,
                    parent: call.parent,
                    api: call.api.clone()?,
                    state: call.stage.open_state(),
                })
            })
            .collect();
        open.sort_by_key(|call| (call.execution, call.call, call.side == Side::Callee));
        open
    }

    /// A number that is not zero: zero stands for "none" on the wire.
    fn draw(&mut self) -> u64 {
        loop {
            match (self.random)() {
                0 => {}
                number => return number,
            }
        }
    }

    fn draw_call(&mut self) -> CallId {
        CallId(self.draw())
    }

    /// The wall clock's time, read once for all that happens at one instant.
    fn unix_nanos(&self) -> u64 {
        let read = self.unix_nanos.get().unwrap_or_else(|| (self.wall)());
        self.unix_nanos.set(Some(read));
        read
    }

    /// It is `now`.
    fn set_now(&mut self, now: Instant) {
        if self.now.replace(now) != Some(now) {
            self.unix_nanos.set(None);
        }
    }

    /// Now, at a clock value.
    fn stamp_at(&self, clock: u64) -> Stamp {
        Stamp { clock, unix_nanos: self.unix_nanos() }
    }

    fn gap(&self, kind: GapKind) -> Gap {
        Gap { kind, observer: self.observer, service: self.config.service.clone() }
    }

    /// Something of `key` may have been missed here.
    fn set_gap(&mut self, key: Key, kind: GapKind) {
        let gap = self.gap(kind);
        if self.executions.get_mut(key).is_some_and(|execution| execution.set_gap(gap)) {
            self.tallies.gap(kind);
            if !key.token.is_zero() {
                tracing::info!(execution = %key.execution, ?kind, "something of an execution may have been missed");
            }
        }
    }

    /// Whether calls of `key` are recorded; none stands for calls of no execution.
    fn records(&self, key: Option<Key>) -> bool {
        let token = key.map_or(Token(0), |key| key.token);
        let executions = || self.config.record.takes(key.map(|key| key.execution));
        match self.rounds.get(token) {
            Some(round) => round.record || executions(),
            // A round that is live elsewhere: what is missing here is part of its record.
            None => !token.is_zero() || executions(),
        }
    }

    fn set_stage(&mut self, id: ExchangeId, stage: Stage) {
        let Some(call) = self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut()) else { return };
        let (was, is) = (call.stage.takes_place(), stage.takes_place());
        let told = call.stage.open_state() != stage.open_state();
        call.stage = stage;
        let token = call.token();
        if let Some(round) = self.rounds.get_mut(token) {
            match (was, is) {
                (false, true) => round.parked += 1,
                (true, false) => round.parked = round.parked.saturating_sub(1),
                _ => {}
            }
        }
        if told {
            self.activity.changed(token);
        }
    }
}

impl Decider for Sidecar {
    fn opened(&mut self, door: Door) -> LinkId {
        self.last_link += 1;
        let link = LinkId(self.last_link);
        let upstream = match door {
            Door::Outbound(index) => {
                let turn = self.turns[index];
                self.turns[index] = (turn + 1) % self.config.outbound[index].to.len();
                turn
            }
            Door::RedirectedOut(address) => {
                self.callees.dial(address);
                0
            }
            Door::Inbound(_) | Door::RedirectedIn(_) => 0,
        };
        let mut opened = Link { door, upstream, cut: false };
        if let Some(callee) = self.cut_off(opened) {
            opened.cut = true;
            self.rounds.met_cut(&callee, |met| met.refused += 1);
            self.tallies.refused();
        }
        self.links.insert(link, opened);
        self.tallies.opened(door);
        link
    }

    fn is_cut(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.cut)
    }

    fn intercept(&mut self, link: LinkId, now: Instant, call: &mut dyn FnMut(&mut dyn Interceptor)) {
        self.set_now(now);
        self.calls.expire(now);
        self.departed.expire(now);
        call(&mut points::Points { sidecar: self, link, now });
        self.confirm_acts(link);
    }

    fn gone(&mut self, link: LinkId) {
        // None, where the editor closed every exchange before its link went.
        let mut left: Vec<ExchangeId> = self.exchanges.keys().filter(|id| id.link == link).copied().collect();
        left.sort_unstable();
        if let Some(now) = self.now {
            for id in left {
                self.close(id, crate::exchange::Closed::ByApplication, now);
            }
        }
        self.departed.gone(link);
        let Some(link) = self.links.remove(&link) else { return };
        self.tallies.gone(link.door);
        if let Some(Way::Dialled(address)) = link.way() {
            self.callees.hang_up(address);
        }
    }

    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)> {
        self.judge_held();
        let ready = std::mem::take(&mut self.ready);
        for (link, stream, resume) in &ready {
            if matches!(resume, Resume::Act(_)) {
                self.resuming.insert(ExchangeId { link: *link, stream: *stream });
            }
        }
        ready
    }

    fn opaque(&mut self, _: LinkId, _: Option<&str>) {
        self.counters.opaque();
    }

    fn unseen(&mut self, link: LinkId, server_name: Option<&str>) {
        let Some(way) = self.links.get(&link).copied().and_then(Link::way) else { return };
        let name = self.callees.behind(way).name().map(ToString::to_string);
        if let Some(to) = name.or_else(|| self.upstream(link)) {
            self.counters.unseen(to, server_name);
        }
    }
}
