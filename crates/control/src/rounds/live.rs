//! A round that is under way, and what its sidecars said of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::Channel;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{Arm, Ask, CutConnections, FromController, OpenCall, Ordinary, Ruling};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::activity::{Seen, quiet_time};
use crate::api::{LiveRound, RoundId, StartRound, StopCondition};
use crate::arbiter::{Arbiter, Release};
use crate::arming::Armament;
use crate::server::Options;
use crate::state::State;
use crate::verdict::{Failure, Fired};

/// Where a round is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Sidecars have been sent the rules.
    Arming,
    /// All have acknowledged.
    Armed,
    /// Somebody sees it to its end; nobody else may.
    Ending,
}

/// What holds for a round besides its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// For how long nothing may happen before it has settled.
    pub(super) quiet: Duration,
    lease: Duration,
    max_parked: usize,
    arbiter_timeout: Duration,
    /// Spans that are kept of it, and acts of its arbiter.
    record: usize,
    /// The operator's condition and the round's own: neither loosens the other.
    stop: [Option<StopCondition>; 2],
}

impl Terms {
    pub(crate) fn new(options: &Options, traces: &[Trace]) -> Self {
        Terms {
            quiet: quiet_time(traces),
            lease: options.lease,
            max_parked: options.max_parked,
            arbiter_timeout: options.arbiter_timeout,
            record: options.spans_per_round,
            stop: [options.stop, None],
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) token: Token,
    pub(super) request: StartRound,
    pub(super) armament: Armament,
    pub(super) terms: Terms,
    pub(crate) phase: Phase,
    /// Every sidecar that was registered when it was armed.
    pub(crate) participants: BTreeMap<ObserverId, Participant>,
    /// When its open calls last changed.
    pub(super) last_change: Instant,
    /// Goes up with everything that may complete it.
    pub(crate) revision: u64,
    pub(super) fired: Vec<Fired>,
    /// Numbers passes and grants shots where a rule acts at several instances.
    pub(super) arbiter: Arbiter,
    pub(crate) failures: Vec<Failure>,
    /// When the runner was last heard of.
    pub(super) heard: Instant,
    /// Requests of the runner that are being answered.
    pub(super) requests: usize,
    /// When leases were last renewed.
    pub(super) renewed: Instant,
    /// Ordinary entry requests that ended since it was armed.
    ordinary: Ordinary,
    /// They failed too often.
    pub(crate) stopped: bool,
    /// Rung when they do.
    pub(super) alarm: Arc<Notify>,
    /// Entries were sent what ordinary traffic they tag.
    tagging: bool,
    /// Beats with every change that somebody may wait for.
    pub(crate) pulse: watch::Sender<()>,
}

/// A sidecar of a round.
#[derive(Debug)]
pub(crate) struct Participant {
    pub(super) service: Service,
    /// It acknowledged the rules.
    pub(super) armed: bool,
    /// It has not acknowledged what it was sent last.
    pending: bool,
    /// Why it would not be armed.
    refused: Option<String>,
    pub(super) disarmed: bool,
    /// What met the cuts of the round there, by callee.
    cut: BTreeMap<Service, CutConnections>,
    /// Its connection ended since. One that comes back is another participant, a late one.
    pub(super) gone: bool,
    /// Its calls without association, before the round.
    pub(super) unassociated: BTreeMap<Api, u64>,
    /// Its open calls.
    pub(super) seen: Seen,
    /// Whether it said so since it was last asked.
    spoke: bool,
}

impl Participant {
    pub(super) fn new(service: Service) -> Self {
        Participant {
            service,
            armed: false,
            pending: true,
            refused: None,
            disarmed: false,
            cut: BTreeMap::new(),
            gone: false,
            unassociated: BTreeMap::new(),
            seen: Seen::default(),
            spoke: false,
        }
    }

    /// Neither armed, nor refused, nor gone.
    pub(crate) fn is_undecided(&self) -> bool {
        self.pending && self.refused.is_none() && !self.gone
    }

    /// Armed and within reach.
    pub(crate) fn is_present(&self) -> bool {
        self.armed && !self.gone
    }
}

impl Live {
    pub(crate) fn new(token: Token, request: StartRound, armament: Armament, mut terms: Terms) -> Self {
        let now = Instant::now();
        let arbiter = Arbiter::new(&request.plan, &armament.rules, terms.record);
        terms.arbiter_timeout = request.arbiter_timeout.map_or(terms.arbiter_timeout, |Interval(timeout)| timeout);
        terms.stop[1] = request.stop;
        Live {
            token,
            request,
            armament,
            terms,
            phase: Phase::Arming,
            participants: BTreeMap::new(),
            last_change: now,
            revision: 0,
            fired: Vec::new(),
            arbiter,
            failures: Vec::new(),
            heard: now,
            requests: 0,
            renewed: now,
            ordinary: Ordinary::default(),
            stopped: false,
            alarm: Arc::default(),
            tagging: false,
            pulse: watch::Sender::new(()),
        }
    }

    /// A sidecar takes part; what it is armed with.
    pub(crate) fn joined_by(&mut self, observer: ObserverId, service: Service) -> Arm {
        let arm = self.arm_of(&service);
        self.participants.insert(observer, Participant::new(service));
        arm
    }

    fn arm_of(&self, service: &Service) -> Arm {
        let cuts = self.request.plan.cuts.iter().filter(|channel| channel.caller == *service);
        let rules = self.armament.rules.iter().filter(|rule| rule.service == *service);
        Arm {
            rules: rules.cloned().collect(),
            events: self.armament.events.clone(),
            gap_apis: self.armament.gap_apis.clone(),
            constant_context: self.request.constant_context,
            max_parked: self.terms.max_parked,
            arbiter_timeout: self.terms.arbiter_timeout,
            outcomes: self.request.outcomes.clone(),
            known_calls: self.armament.known_calls.get(service).cloned().unwrap_or_default(),
            cuts: cuts.map(|channel| channel.callee.clone()).collect(),
            ..Arm::clean(self.token, self.terms.lease)
        }
    }

    /// Somebody may wait for what was changed.
    pub(super) fn changed(&self) {
        self.pulse.send_replace(());
    }

    // ---- what sidecars say; those that took no part are not listened to --------------------------------------------

    /// Returns whom to arm anew, and with what: where ordinary traffic enters it is tagged only once every sidecar knows
    /// the token, for whoever does not would miss passes.
    pub(crate) fn armed(&mut self, observer: ObserverId, unassociated: BTreeMap<Api, u64>) -> Vec<(ObserverId, Arm)> {
        let Some(participant) = self.participants.get_mut(&observer) else { return Vec::new() };
        participant.armed = true;
        participant.pending = false;
        participant.unassociated = unassociated;
        self.changed();
        let everybody = self.participants.values().all(|one| !one.pending && one.armed);
        if !everybody || self.phase != Phase::Arming || self.tagging {
            return Vec::new();
        }
        let Some(traffic) = self.request.traffic.clone() else { return Vec::new() };
        self.tagging = true;
        let arm = Arm { tagging: Some(traffic.tagging), ..self.arm_of(&traffic.entry) };
        let entries = self.participants.iter_mut().filter(|(_, one)| one.service == traffic.entry && !one.gone);
        entries
            .map(|(observer, participant)| {
                participant.pending = true;
                (*observer, arm.clone())
            })
            .collect()
    }

    pub(crate) fn not_armed(&mut self, observer: ObserverId, reason: String) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.refused = Some(reason);
            self.changed();
        }
    }

    pub(crate) fn disarmed(&mut self, observer: ObserverId) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.disarmed = true;
            self.changed();
        }
    }

    pub(crate) fn cut(&mut self, observer: ObserverId, connections: BTreeMap<Service, CutConnections>) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.cut = connections;
        }
    }

    /// What met the cuts of the plan, at all instances of each caller.
    pub(super) fn met_cuts(&self) -> BTreeMap<Channel, CutConnections> {
        let mut met: BTreeMap<Channel, CutConnections> = BTreeMap::new();
        for participant in self.participants.values() {
            for (callee, connections) in &participant.cut {
                let channel = Channel { caller: participant.service.clone(), callee: callee.clone() };
                let sum = met.entry(channel).or_default();
                sum.broken = sum.broken.saturating_add(connections.broken);
                sum.refused = sum.refused.saturating_add(connections.refused);
            }
        }
        met
    }

    pub(crate) fn lapsed(&mut self, observer: ObserverId) {
        if let Some(participant) = self.participants.get(&observer) {
            let service = participant.service.clone();
            self.fail(Failure::LeaseLapsed { service, observer });
        }
    }

    /// Its connection ended, or its process began a new one.
    pub(crate) fn lost_sidecar(&mut self, observer: ObserverId) {
        if let Some(participant) = self.participants.get_mut(&observer)
            && !participant.gone
        {
            participant.gone = true;
            self.revision += 1;
            self.pulse.send_replace(());
            if participant.armed {
                let service = participant.service.clone();
                self.fail(Failure::SidecarDied { service, observer });
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        tracing::warn!(token = %self.token, %failure, "the round is inconclusive");
        if !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
        self.changed();
    }

    /// A span of it came in.
    pub(crate) fn grew(&mut self) {
        self.revision += 1;
        self.changed();
    }

    /// These ordinary entry requests ended at a sidecar since it last said so. Once they fail too often the round is to be
    /// ended.
    pub(crate) fn ordinary(&mut self, observer: ObserverId, ended: Ordinary) {
        // Until it was armed the round had not begun there; who came later is taken as it comes.
        let not_yet = self.participants.get(&observer).is_some_and(|participant| !participant.armed);
        if not_yet || !self.may_be_stopped() {
            return;
        }
        self.ordinary.requests = self.ordinary.requests.saturating_add(ended.requests);
        self.ordinary.errors = self.ordinary.errors.saturating_add(ended.errors);
        let Ordinary { requests, errors } = self.ordinary;
        let exceeded = |stop: &&StopCondition| {
            let beyond = u128::from(errors) * 1_000_000 > u128::from(stop.errors_per_million) * u128::from(requests);
            requests >= stop.min_requests.max(1) && beyond
        };
        let Some(stop) = self.terms.stop.iter().flatten().find(exceeded) else { return };
        let percent = |per_million: f64| format!("{} %", (per_million / 100.0).round() / 100.0);
        let rate = percent(errors as f64 * 1e6 / requests as f64);
        let bound = percent(f64::from(stop.errors_per_million));
        self.fail(Failure::Ended(format!(
            "stopped: {errors} of {requests} ordinary requests failed ({rate}), more than {bound}"
        )));
        self.stopped = true;
        self.alarm.notify_one();
    }

    pub(crate) fn activity(&mut self, observer: ObserverId, begun: u64, open: Vec<OpenCall>) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            let seen = Seen { begun, open };
            participant.spoke = true;
            self.pulse.send_replace(());
            if participant.seen != seen {
                participant.seen = seen;
                self.last_change = Instant::now();
                self.revision += 1;
            }
        }
    }

    /// A pass wants its number, and the shot. Nobody answers for a sidecar without the rule: not for a late one, and not
    /// for one whose connection ended since it was armed, whose passes of before may have gone unheard.
    pub(crate) fn ask(&mut self, observer: ObserverId, ask: &Ask) -> Option<(u32, Ruling)> {
        let service = &self.participants.get(&observer).filter(|participant| participant.is_present())?.service;
        let acts_there = self.armament.rules.iter().any(|rule| rule.index == ask.rule && rule.service == *service);
        if acts_there { self.arbiter.ask(observer, ask) } else { None }
    }

    /// Returns the held passes that are to be told that they wait in vain.
    pub(crate) fn fired(
        &mut self,
        observer: ObserverId,
        rule: usize,
        execution: ExecutionId,
        call: CallId,
    ) -> Vec<Release> {
        let fired = Fired { rule, execution, call, observer };
        if !self.participants.contains_key(&observer) || self.fired.contains(&fired) {
            return Vec::new();
        }
        self.fired.push(fired);
        self.arbiter.fired(rule, execution, (observer, call))
    }

    /// As [`Live::fired`].
    pub(crate) fn gave_up(
        &mut self,
        observer: ObserverId,
        rule: usize,
        execution: ExecutionId,
        call: CallId,
    ) -> Vec<Release> {
        if !self.participants.contains_key(&observer) {
            return Vec::new();
        }
        self.arbiter.give_up(rule, execution, (observer, call))
    }

    /// As [`Live::fired`].
    pub(crate) fn handed_back(
        &mut self,
        observer: ObserverId,
        rule: usize,
        execution: ExecutionId,
        call: CallId,
    ) -> Vec<Release> {
        if !self.participants.contains_key(&observer) {
            return Vec::new();
        }
        self.arbiter.hand_back(rule, execution, (observer, call))
    }

    /// Whether it is ended if ordinary traffic suffers, and has not been.
    pub(super) fn may_be_stopped(&self) -> bool {
        self.terms.stop.iter().any(Option::is_some) && !self.stopped && self.phase != Phase::Ending
    }

    /// Whether it is to be ended, by whoever asks: its runner is silent, or ordinary traffic suffers.
    pub(super) fn is_to_be_ended(&mut self, now: Instant, runner_lease: Duration) -> bool {
        if self.runner_deadline(runner_lease).is_some_and(|at| at <= now) {
            self.fail(Failure::Ended(format!("its runner said nothing for {}", Interval(runner_lease))));
        } else if !self.stopped {
            return false;
        }
        // The task that arms it sees the failure and ends it.
        let ours = self.phase == Phase::Armed;
        if ours {
            self.phase = Phase::Ending;
            self.changed();
        }
        ours
    }

    // ---- how it stands ---------------------------------------------------------------------------------------------

    /// Open calls by sidecar, of those within reach.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (ObserverId, &Service, &Seen)> {
        self.participants
            .iter()
            .filter(|(_, participant)| participant.is_present())
            .map(|(observer, participant)| (*observer, &participant.service, &participant.seen))
    }

    /// Sidecars within reach that have not said what is open there since they were last asked.
    pub(super) fn unheard(&self) -> impl Iterator<Item = &Service> {
        let silent = |participant: &&Participant| participant.is_present() && !participant.spoke;
        self.participants.values().filter(silent).map(|participant| &participant.service)
    }

    pub(crate) fn all_spoke(&self) -> bool {
        self.unheard().next().is_none()
    }

    /// Who did not acknowledge, as sentences.
    pub(super) fn unarmed(&self, within: Duration) -> Vec<String> {
        self.participants
            .iter()
            .filter(|(_, participant)| {
                !participant.is_present() || participant.pending || participant.refused.is_some()
            })
            .map(|(observer, participant)| {
                let who = format!("the sidecar of {} ({observer})", participant.service);
                match &participant.refused {
                    Some(reason) => format!("{who} refused: {reason}"),
                    None if participant.gone => format!("{who} disconnected"),
                    None => format!("{who} did not acknowledge within {}", Interval(within)),
                }
            })
            .collect()
    }

    /// When the runner is taken for dead; not while one of its requests is being answered, and not before it has an
    /// armed round.
    pub(super) fn runner_deadline(&self, lease: Duration) -> Option<Instant> {
        (self.requests == 0 && self.phase == Phase::Armed).then(|| self.heard + lease)
    }

    /// For `GET /v1/status`.
    pub(crate) fn status(&self, id: RoundId, lease: Duration) -> LiveRound {
        let rules = self.armament.rules.iter().map(|rule| {
            let hold = if rule.tfic.hold.is_some() { ", held until then" } else { "" };
            format!("{}: {} at {}, {}{hold}", rule.service, rule.tfic.fault, rule.tfic.target, rule.tfic.guard)
        });
        LiveRound {
            id,
            scenario: self.request.scenario.clone(),
            rules: rules.collect(),
            lease_left: Interval((self.renewed + lease).saturating_duration_since(Instant::now())),
        }
    }
}

impl State {
    /// Send to every sidecar of a round that is within reach.
    pub(super) fn tell(&mut self, id: RoundId, message: impl Fn(Token) -> FromController) {
        let Some(live) = self.round(id) else { return };
        for (observer, participant) in &live.participants {
            if participant.gone {
                continue;
            }
            self.send(*observer, message(live.token));
        }
    }

    pub(crate) fn renew(&mut self, id: RoundId, now: Instant) {
        self.tell(id, |token| FromController::Renew { token });
        if let Some(live) = self.round_mut(id) {
            live.renewed = now;
        }
    }

    /// Ask what is open, and for every change of it.
    pub(crate) fn watch(&mut self, id: RoundId) {
        if let Some(live) = self.round_mut(id) {
            live.participants.values_mut().for_each(|participant| participant.spoke = false);
        }
        self.tell(id, |token| FromController::Watch { token });
    }
}
