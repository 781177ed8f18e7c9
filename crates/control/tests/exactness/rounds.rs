//! Rounds, driven as the hub and the runner drive them: armed, executed, settled, disarmed, flushed, judged.

use std::collections::BTreeSet;

use aftershock_control::api::{Finished, StartRound};
use aftershock_control::verdict::Failure;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::plan::{Plan, Tfic};
use aftershock_core::trace::Trace;

use crate::net::{Event, Micros, Net};
use crate::truth::{Attempt, TrueFault};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Arming,
    Running,
    Disarming,
    Flushing,
    Done,
}

/// How the clients of a round behave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients {
    /// How many send a request of their own, beginning within this time of each other.
    pub(crate) number: usize,
    pub(crate) within: Micros,
    /// How often a failed request is sent again.
    pub(crate) retries: u32,
    /// More requests after the first, declared as one execution.
    pub(crate) sequence: u32,
}

/// A round and the truth about it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) token: Token,
    pub(crate) tfic: Option<Tfic>,
    pub(crate) arbitrated: bool,
    /// The sidecars that are armed.
    pub(crate) armed: BTreeSet<ObserverId>,
    pub(crate) attempts: Vec<usize>,
    clients: Clients,
    stage: Stage,
    since: Micros,
    quiet_since: Option<Micros>,
    pub(crate) faults: Vec<TrueFault>,
    /// Delays and releases, by the sidecars' ids.
    pub(crate) kept: Vec<(ExecutionId, CallId, Micros)>,
    pub(crate) said_fired: Vec<CallId>,
    pub(crate) armed_at: Micros,
    pub(crate) finished: Option<Finished>,
}

const POLL: Micros = 4_000;

impl Net {
    /// Begin a round. None if the controller refuses it.
    pub(crate) fn start(&mut self, tfic: Option<Tfic>, clients: Clients, traces: &[Trace]) -> Result<usize, String> {
        let token = Token(self.random.next() | 1);
        let plan = Plan { faults: tfic.iter().cloned().collect(), ..Plan::default() };
        let request = StartRound { scenario: "simulated".into(), key: "1".into(), plan, ..StartRound::default() };
        self.control.start(token, request, traces)?;
        let acting = tfic.as_ref().map(|tfic| match (&tfic.target.caller, &tfic.target.api) {
            (Some(caller), _) => caller.to_string(),
            (None, aftershock_core::event::ApiRef::Api(api)) => api.service.to_string(),
            (None, aftershock_core::event::ApiRef::Group(name)) => name.clone(),
        });
        let registered = self
            .instances
            .iter()
            .enumerate()
            .filter(|(at, one)| one.brain.is_some() && acting.as_deref() == Some(self.name(*at).as_str()));
        let arbitrated = registered.count() > 1;
        let armed = self.instances.iter().filter(|one| one.brain.is_some()).map(|one| one.observer).collect();
        let at = self.rounds.len();
        self.rounds.push(Round {
            token,
            tfic,
            arbitrated,
            armed,
            attempts: Vec::new(),
            clients,
            stage: Stage::Arming,
            since: self.now,
            quiet_since: None,
            faults: Vec::new(),
            kept: Vec::new(),
            said_fired: Vec::new(),
            armed_at: 0,
            finished: None,
        });
        self.tell();
        self.later(POLL, Event::Poll(at));
        self.later(3_000_000, Event::Renew(at));
        Ok(at)
    }

    pub(crate) fn renew(&mut self, round: usize) {
        if self.rounds[round].stage != Stage::Done {
            self.control.renew(self.rounds[round].token);
            self.tell();
            self.later(3_000_000, Event::Renew(round));
        }
    }

    /// The clients begin.
    fn run(&mut self, round: usize) {
        let Round { clients, token, .. } = self.rounds[round];
        self.rounds[round].armed_at = self.now;
        for _ in 0..clients.number {
            let attempt = self.attempts.len();
            let declared = if clients.sequence > 0 { ExecutionId(self.random.next() | 1) } else { ExecutionId(0) };
            self.attempts.push(Attempt {
                retries: clients.retries,
                sequence: clients.sequence,
                declared,
                ..Attempt::new(Some(round), token)
            });
            self.rounds[round].attempts.push(attempt);
            let begins = self.random.below(clients.within + 1);
            self.later(begins, Event::Client(attempt));
        }
        self.control.watch(token);
        self.tell();
    }

    /// A client has its answer, or has given up.
    pub(crate) fn attempt_ends(&mut self, attempt: usize, ok: bool) {
        self.attempts[attempt].over = true;
        let Attempt { round, token, declared, retries, sequence, .. } = self.attempts[attempt];
        let Some(round) = round else { return };
        let (retries, sequence) = match () {
            () if !ok && retries > 0 => (retries - 1, sequence),
            () if sequence > 0 => (retries, sequence - 1),
            () => return,
        };
        let next = self.attempts.len();
        self.attempts.push(Attempt { retries, sequence, declared, ..Attempt::new(Some(round), token) });
        self.rounds[round].attempts.push(next);
        let pause = self.random.between(2_000, 20_000);
        self.later(pause, Event::Client(next));
    }

    pub(crate) fn poll(&mut self, round: usize) {
        let Round { token, stage, since, .. } = self.rounds[round];
        let waited = self.now - since;
        match stage {
            Stage::Arming => {
                if self.control.is_armed(token) {
                    self.enter(round, Stage::Running);
                    self.run(round);
                } else if waited > 2_000_000 {
                    let why = "a sidecar did not acknowledge".to_owned();
                    self.control.fail(token, Failure::Arming(why));
                    self.enter(round, Stage::Disarming);
                    self.control.disarm(token);
                }
            }
            Stage::Running => {
                let over = self.rounds[round].attempts.iter().all(|attempt| self.attempts[*attempt].over);
                if !over {
                    self.rounds[round].since = self.now;
                } else if self.control.is_settled(token) || waited > 4_000_000 {
                    let quiet = *self.rounds[round].quiet_since.get_or_insert(self.now);
                    if self.now - quiet >= 20_000 {
                        self.enter(round, Stage::Disarming);
                        self.control.disarm(token);
                    }
                } else {
                    self.rounds[round].quiet_since = None;
                }
            }
            Stage::Disarming => {
                if self.control.is_over(token) || waited > 6_000_000 {
                    self.enter(round, Stage::Flushing);
                    self.control.flush(token);
                }
            }
            Stage::Flushing => {
                if self.control.is_flushed(token) || waited > 2_000_000 {
                    self.enter(round, Stage::Done);
                    self.rounds[round].finished = self.control.finish(token);
                }
            }
            Stage::Done => return,
        }
        self.tell();
        self.later(POLL, Event::Poll(round));
    }

    fn enter(&mut self, round: usize, stage: Stage) {
        self.rounds[round].stage = stage;
        self.rounds[round].since = self.now;
    }

    /// Until these rounds are judged, and what they left behind is gone.
    pub(crate) fn finish(&mut self, rounds: &[usize]) {
        while rounds.iter().any(|round| self.rounds[*round].finished.is_none()) {
            assert!(self.next(), "nothing happens any more, and a round is not over");
            assert!(self.now < 3_600_000_000, "a round does not come to its end");
        }
        // The longest deadline of a hold is over by then, and what the controller could not say has been said.
        self.run_for(3_600_000 + self.silent_until.saturating_sub(self.now));
    }
}
