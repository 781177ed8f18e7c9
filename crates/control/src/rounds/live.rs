//! A round that is under way, and what its sidecars said of it.

use std::collections::BTreeMap;
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::wire::{Ask, FromController, OpenCall, Ruling};
use tokio::time::Instant;

use crate::activity::Seen;
use crate::api::{LiveRound, RoundId, StartRound};
use crate::arbiter::{Arbiter, Release};
use crate::arming::Armament;
use crate::hub::State;
use crate::verdict::{Failure, Fired};

/// Where a round is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Sidecars have been sent the rules.
    Arming,
    /// All have acknowledged.
    Armed,
    /// Somebody sees it to its end; nobody else may.
    Ending,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) token: Token,
    pub(super) request: StartRound,
    pub(super) armament: Armament,
    /// For how long nothing may happen before it has settled.
    pub(super) quiet: Duration,
    pub(super) phase: Phase,
    /// Every sidecar that was registered when it was armed.
    pub(super) participants: BTreeMap<ObserverId, Participant>,
    /// When its open calls last changed.
    pub(super) last_change: Instant,
    /// Goes up with everything that may complete it.
    pub(crate) revision: u64,
    pub(super) fired: Vec<Fired>,
    /// Numbers passes and grants shots where a rule acts at several instances.
    pub(super) arbiter: Arbiter,
    pub(super) failures: Vec<Failure>,
    /// When the runner was last heard of.
    pub(super) heard: Instant,
    /// Requests of the runner that are being answered.
    pub(super) requests: usize,
    /// When leases were last renewed.
    pub(super) renewed: Instant,
}

/// A sidecar of a round.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) service: Service,
    pub(super) armed: bool,
    /// Why it would not be armed.
    refused: Option<String>,
    pub(super) disarmed: bool,
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
            refused: None,
            disarmed: false,
            gone: false,
            unassociated: BTreeMap::new(),
            seen: Seen::default(),
            spoke: false,
        }
    }

    /// Neither armed, nor refused, nor gone.
    pub(super) fn is_undecided(&self) -> bool {
        !self.armed && self.refused.is_none() && !self.gone
    }

    /// Armed and within reach.
    pub(super) fn is_present(&self) -> bool {
        self.armed && !self.gone
    }
}

impl Live {
    /// A round that keeps at most `record` spans, and acts of its arbiter.
    pub(super) fn new(token: Token, request: StartRound, armament: Armament, quiet: Duration, record: usize) -> Self {
        let now = Instant::now();
        let arbiter = Arbiter::new(&request.plan, &armament.rules, record);
        Live {
            token,
            request,
            armament,
            quiet,
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
        }
    }

    // ---- what sidecars say; those that took no part are not listened to --------------------------------------------

    pub(crate) fn armed(&mut self, observer: ObserverId, unassociated: BTreeMap<Api, u64>) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.armed = true;
            participant.unassociated = unassociated;
        }
    }

    pub(crate) fn not_armed(&mut self, observer: ObserverId, reason: String) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.refused = Some(reason);
        }
    }

    pub(crate) fn disarmed(&mut self, observer: ObserverId) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            participant.disarmed = true;
        }
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
    }

    pub(crate) fn activity(&mut self, observer: ObserverId, begun: u64, open: Vec<OpenCall>) {
        if let Some(participant) = self.participants.get_mut(&observer) {
            let seen = Seen { begun, open };
            participant.spoke = true;
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

    // ---- how it stands ---------------------------------------------------------------------------------------------

    /// Open calls by sidecar, of those within reach.
    pub(super) fn seen(&self) -> impl Iterator<Item = (ObserverId, &Service, &Seen)> {
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

    pub(super) fn all_spoke(&self) -> bool {
        self.unheard().next().is_none()
    }

    /// Who did not acknowledge, as sentences.
    pub(super) fn unarmed(&self, within: Duration) -> Vec<String> {
        self.participants
            .iter()
            .filter(|(_, participant)| !participant.is_present())
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
    pub(super) fn tell(&mut self, id: RoundId, message: impl Fn(aftershock_core::id::Token) -> FromController) {
        let Some(live) = self.rounds.get(&id) else { return };
        for (observer, participant) in &live.participants {
            if participant.gone {
                continue;
            }
            if let Some(connected) = self.registry.get(*observer) {
                connected.send(message(live.token));
            }
        }
    }

    pub(super) fn renew(&mut self, id: RoundId, now: Instant) {
        self.tell(id, |token| FromController::Renew { token });
        if let Some(live) = self.rounds.get_mut(&id) {
            live.renewed = now;
        }
    }

    /// Ask what is open, and for every change of it.
    pub(super) fn watch(&mut self, id: RoundId) {
        if let Some(live) = self.rounds.get_mut(&id) {
            live.participants.values_mut().for_each(|participant| participant.spoke = false);
        }
        self.tell(id, |token| FromController::Watch { token });
    }
}
