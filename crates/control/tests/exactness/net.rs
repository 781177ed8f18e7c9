//! The network: instances with their sidecars, what is under way between them, and virtual time.
//!
//! Everything that happens is an event at a microsecond; delays are drawn from the seed. What sidecars are told and say,
//! what an editor does with a message and what an application sees of it is played here; what a sidecar decides is the
//! product's own code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use aftershock_control::server::Options;
use aftershock_control::simulation::Simulation;
use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{CallId, ObserverId, Token};
use aftershock_core::name::Service as Name;
use aftershock_core::span::CallSpan;
use aftershock_core::wire::{FromController, FromSidecar, Hello, PROTOCOL};
use aftershock_proxy::config::Config;
use aftershock_proxy::exchange::{Decider, Door, Interceptor, LinkId, Resume, StreamId};
use aftershock_proxy::sidecar::Sidecar;

use crate::message::{Request, Response};
use crate::random::Random;
use crate::rounds::Round;
use crate::system::System;
use crate::truth::{Attempt, Known};

/// Microseconds since the beginning.
pub(crate) type Micros = u64;

pub(crate) const LEASE: Micros = 10_000_000;
pub(crate) const ARBITER_TIMEOUT: Micros = 50_000;

/// What goes wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// Of a thousand requests or responses between sidecars, how many lose their hop header.
    pub(crate) lost_requests: u64,
    pub(crate) lost_responses: u64,
    /// Of a thousand stamped messages, how many are too large for what was stamped.
    pub(crate) oversized: u64,
    /// Of a thousand calls, how many go out without their context.
    pub(crate) forgetful: u64,
    /// Of a thousand spans, how many a sidecar loses, and knows it.
    pub(crate) lost_spans: u64,
    /// The words of the control connections take up to this long.
    pub(crate) slow_control: Option<Micros>,
    /// Callers give up early, sometimes.
    pub(crate) impatient: bool,
}

/// An event.
#[derive(Debug)]
pub(crate) enum Event {
    /// An attempt of a client of a round.
    Client(usize),
    /// The application's request is at the sidecar beside it.
    Out(usize),
    /// A request is at its callee.
    In(usize),
    /// The callee's application has it.
    Handle(usize),
    /// The handler of a call goes on.
    Go(usize),
    /// The callee's application answers.
    Answer(usize),
    /// The response is at the caller's sidecar.
    Back(usize),
    /// The calling application sees how it ended: ok or not.
    Done(usize, bool),
    /// The callee's side broke, at the caller's.
    Broken(usize),
    /// The callee's side learns that the caller has gone.
    Left(usize),
    /// A caller's patience is over.
    GiveUp(usize),
    Up(ObserverId, Box<FromSidecar>),
    Down(usize, ObserverId, Box<FromController>),
    Spans(Vec<CallSpan>),
    Gone(ObserverId),
    Boot(usize),
    /// A process dies: the sidecar, and the application beside it or not.
    Kill(usize, bool),
    Tick(usize, ObserverId),
    Poll(usize),
    Renew(usize),
    Ordinary,
}

/// One side of a call at one sidecar.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) instance: usize,
    pub(crate) observer: ObserverId,
    pub(crate) link: LinkId,
    pub(crate) stream: StreamId,
    pub(crate) own_link: bool,
    pub(crate) open: bool,
    pub(crate) parked: Option<Parked>,
    pub(crate) dropped: bool,
}

/// A message that waits at a sidecar, and how far it came.
#[derive(Debug)]
pub(crate) enum Parked {
    Request(Request),
    /// At its head, or at its end; `head` has been written.
    Response {
        response: Response,
        at_end: bool,
        head: bool,
    },
}

/// A service at work on a call.
#[derive(Debug, Default)]
pub(crate) struct Handler {
    pub(crate) context: Vec<(String, String)>,
    pub(crate) step: usize,
    pub(crate) waiting: usize,
    pub(crate) failed: bool,
    pub(crate) over: bool,
}

/// A call as the applications know it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) attempt: usize,
    /// Its place among those of the attempt.
    pub(crate) place: usize,
    pub(crate) node: usize,
    pub(crate) parent: Option<usize>,
    pub(crate) caller: Option<usize>,
    pub(crate) callee: usize,
    pub(crate) tries: u32,
    pub(crate) out: Option<Leg>,
    pub(crate) inn: Option<Leg>,
    pub(crate) request: Request,
    pub(crate) response: Option<Response>,
    pub(crate) request_knows: Known,
    pub(crate) response_knows: Known,
    pub(crate) handler: Handler,
    /// The calling application has seen its end.
    pub(crate) ended: bool,
    /// Its request is under way to the callee, or was; it has come there.
    pub(crate) forwarded: bool,
    pub(crate) arrived: bool,
    /// The id that sidecars gave it.
    pub(crate) id: Option<CallId>,
    /// Its outcome, at the callee's and at the caller's sidecar.
    pub(crate) sent_ok: Option<bool>,
    pub(crate) received_ok: Option<bool>,
    /// It went out without context, or beneath such a call.
    pub(crate) lost: bool,
    /// It was sent when the call above it was over.
    pub(crate) detached: bool,
}

/// One instance of a service: application and sidecar.
pub(crate) struct Instance {
    pub(crate) service: usize,
    pub(crate) address: String,
    config: Option<Config>,
    pub(crate) brain: Option<Sidecar>,
    /// The current process start of its sidecar.
    pub(crate) observer: ObserverId,
    pub(crate) up: bool,
    /// Long-lived connections: to each service's instances, and the one on which calls come in.
    shared: BTreeMap<usize, Vec<LinkId>>,
    turn: usize,
    inbound: Option<LinkId>,
    streams: u64,
    pub(crate) exchanges: BTreeMap<(LinkId, StreamId), (usize, bool)>,
    tick: Option<Micros>,
    spans: Vec<CallSpan>,
    exported: u64,
    lost: u64,
    lost_of: BTreeMap<Token, u64>,
    said: Micros,
    heard: Micros,
    /// When the leases run out that it was given.
    pub(crate) leases: BTreeMap<Token, Micros>,
}

/// See the module.
pub(crate) struct Net {
    pub(crate) seed: u64,
    pub(crate) now: Micros,
    base: Instant,
    pub(crate) random: Random,
    queue: BTreeMap<(Micros, u64), Event>,
    order: u64,
    pub(crate) system: System,
    pub(crate) weather: Weather,
    pub(crate) control: Simulation,
    pub(crate) instances: Vec<Instance>,
    pub(crate) of_service: Vec<Vec<usize>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) rounds: Vec<Round>,
    pub(crate) ids: BTreeMap<CallId, usize>,
    observers: u64,
    /// The controller is silent until then.
    pub(crate) silent_until: Micros,
    /// Lengths of hop headers that carried evidence.
    pub(crate) headers: Vec<usize>,
    pub(crate) trace: bool,
    /// What must not happen and did.
    pub(crate) wrong: Vec<String>,
    pub(crate) known_observers: BTreeSet<ObserverId>,
    pub(crate) most_executions: Option<usize>,
    pub(crate) ordinary_faulted: u64,
    pub(crate) ordinary_sent: u64,
}

impl Net {
    /// Every instance is up and registered but those in `absent`.
    pub(crate) fn new(system: System, seed: u64, absent: &[usize], most_executions: Option<usize>) -> Net {
        let keys = Keyring(vec![HopKey { id: 3, secret: *b"a simulated key." }]);
        let options = Options { arbiter_timeout: Duration::from_micros(ARBITER_TIMEOUT), ..Options::default() };
        let mut net = Net {
            seed,
            now: 1_000,
            base: Instant::now(),
            random: Random::new(seed ^ 0xfeed),
            queue: BTreeMap::new(),
            order: 0,
            weather: Weather::default(),
            control: Simulation::new(options, keys),
            instances: Vec::new(),
            of_service: Vec::new(),
            calls: Vec::new(),
            attempts: Vec::new(),
            rounds: Vec::new(),
            ids: BTreeMap::new(),
            observers: 0,
            silent_until: 0,
            headers: Vec::new(),
            trace: false,
            wrong: Vec::new(),
            known_observers: BTreeSet::new(),
            most_executions,
            ordinary_faulted: 0,
            ordinary_sent: 0,
            system,
        };
        for (service, one) in net.system.services.iter().enumerate() {
            let first = net.instances.len();
            net.of_service.push((first..first + one.replicas).collect());
            for replica in 0..one.replicas {
                net.instances.push(Instance::down(service, format!("10.0.{service}.{replica}:80")));
            }
        }
        for at in 0..net.instances.len() {
            net.instances[at].config = net.config(at);
            if !absent.contains(&at) {
                net.boot(at);
            }
        }
        net.run_for(200_000);
        net
    }

    fn config(&self, at: usize) -> Option<Config> {
        let own = &self.system.services[self.instances[at].service];
        if !own.sidecar {
            return None;
        }
        let mut text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: {}\ninbound: [{{listen: \"127.0.0.1:80\", \
             to: \"127.0.0.1:81\"}}]\noutbound:\n",
            own.name
        );
        let mut relays = Vec::new();
        for (service, callee) in self.system.services.iter().enumerate() {
            let to: Vec<String> =
                self.of_service[service].iter().map(|one| format!("\"{}\"", self.instances[*one].address)).collect();
            let (port, name, to) = (service + 100, &callee.name, to.join(", "));
            text += &format!("  - {{listen: \"127.0.0.1:{port}\", callee: {name}, to: [{to}]}}\n");
            if !callee.sidecar {
                relays.push(callee.name.as_str());
            }
        }
        if !relays.is_empty() {
            text += &format!("relay: [{}]\n", relays.join(", "));
        }
        Some(Config::parse("simulated", &text).unwrap_or_else(|error| panic!("{error}")))
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    /// A process starts: application and sidecar, under an observer that was never seen.
    pub(crate) fn boot(&mut self, at: usize) {
        self.observers += 1;
        let observer = ObserverId(self.observers);
        let mut random = Random::new(self.seed.wrapping_add(self.observers << 32));
        let services = self.system.services.len();
        let instance = &mut self.instances[at];
        instance.up = true;
        instance.observer = observer;
        instance.exchanges.clear();
        instance.leases.clear();
        instance.shared.clear();
        instance.inbound = None;
        instance.spans.clear();
        (instance.tick, instance.exported, instance.lost) = (None, 0, 0);
        instance.lost_of.clear();
        let Some(config) = instance.config.clone() else { return };
        let name = config.service.clone();
        let mut brain = Sidecar::new(config.clone(), observer, Box::new(move || random.next()), Box::new(|| 7));
        if let Some(most) = self.most_executions {
            brain.hold_at_most(most);
        }
        instance.inbound = Some(brain.opened(Door::Inbound(0)));
        for callee in 0..services {
            let links = config.outbound[callee].to.iter().map(|_| brain.opened(Door::Outbound(callee))).collect();
            instance.shared.insert(callee, links);
        }
        instance.brain = Some(brain);
        self.known_observers.insert(observer);
        let outbound = config
            .outbound
            .iter()
            .map(|one| (one.callee.clone(), one.to.iter().map(ToString::to_string).collect()))
            .collect();
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            service: name,
            observer,
            inbound: vec![self.instances[at].address.clone()],
            excluded: Vec::new(),
            outbound,
            templates: Vec::new(),
        };
        self.control.register(hello);
        self.tell();
    }

    /// A sidecar is killed, with every connection through it, and the application beside it if `both`.
    fn kill(&mut self, at: usize, both: bool) {
        let instance = &mut self.instances[at];
        if !std::mem::take(&mut instance.up) {
            return;
        }
        instance.brain = None;
        let (observer, exchanges) = (instance.observer, std::mem::take(&mut instance.exchanges));
        let delay = self.control_delay();
        self.later(delay, Event::Gone(observer));
        for (call, is_out) in exchanges.into_values() {
            let delay = self.delay();
            match (is_out, both) {
                (true, true) => self.hang_up(call),
                (true, false) => {
                    self.later(30, Event::Done(call, false));
                    self.later(delay + self.system.spread, Event::Left(call));
                }
                (false, _) => self.later(delay, Event::Broken(call)),
            }
        }
        for call in self.calls.iter_mut().filter(|_| both) {
            if call.callee == at && call.inn.as_ref().is_some_and(|leg| leg.observer == observer) {
                call.handler.over = true;
            }
        }
    }

    pub(crate) fn name(&self, instance: usize) -> Name {
        self.system.services[self.instances[instance].service].name.parse().unwrap()
    }

    pub(crate) fn has_sidecar(&self, instance: usize) -> bool {
        self.system.services[self.instances[instance].service].sidecar
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    pub(crate) fn at(&self, at: Micros) -> Instant {
        self.base + Duration::from_micros(at)
    }

    pub(crate) fn later(&mut self, after: Micros, event: Event) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), event);
    }

    /// How long a message takes between two processes.
    pub(crate) fn delay(&mut self) -> Micros {
        30 + self.random.below(self.system.spread)
    }

    fn control_delay(&mut self) -> Micros {
        match self.weather.slow_control {
            Some(most) if self.random.one_in(3) => self.random.below(most),
            _ => 50 + self.random.below(3_000),
        }
    }

    /// Until `until`, whatever happens.
    pub(crate) fn run_for(&mut self, time: Micros) {
        let until = self.now + time;
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.next();
        }
        self.now = until;
    }

    /// The next thing happens. False if there is none.
    pub(crate) fn next(&mut self) -> bool {
        let Some(((at, _), event)) = self.queue.pop_first() else { return false };
        self.now = at;
        if self.trace && !matches!(event, Event::Poll(_) | Event::Tick(..)) {
            eprintln!("{at:>9} {event:?}");
        }
        match event {
            Event::Client(attempt) => self.client(attempt),
            Event::Out(call) => self.out(call),
            Event::In(call) => self.come_in(call),
            Event::Handle(call) | Event::Go(call) => self.handle(call),
            Event::Answer(call) => self.answer(call),
            Event::Back(call) => self.back(call),
            Event::Done(call, ok) => self.done(call, ok),
            Event::Broken(call) => self.broken(call),
            Event::Left(call) => self.left(call),
            Event::GiveUp(call) => self.give_up(call),
            Event::Up(observer, word) => {
                self.asked(&word);
                self.control.hear(observer, *word);
                self.tell();
            }
            Event::Down(instance, observer, word) => self.heard(instance, observer, *word),
            Event::Spans(spans) => self.control.collect(spans),
            Event::Gone(observer) => {
                self.control.deregister(observer);
                self.tell();
            }
            Event::Boot(instance) => self.boot(instance),
            Event::Kill(instance, both) => self.kill(instance, both),
            Event::Tick(instance, observer) => self.tick(instance, observer),
            Event::Poll(round) => self.poll(round),
            Event::Renew(round) => self.renew(round),
            Event::Ordinary => self.ordinary(),
        }
        true
    }

    // ---- the control connections -----------------------------------------------------------------------------------

    /// What the controller has to say gets under way.
    pub(crate) fn tell(&mut self) {
        for at in 0..self.instances.len() {
            if self.instances[at].brain.is_none() {
                continue;
            }
            let observer = self.instances[at].observer;
            for word in self.control.outbox(observer) {
                let due = (self.now + self.control_delay()).max(self.instances[at].heard).max(self.silent_until);
                self.instances[at].heard = due;
                self.later(due - self.now, Event::Down(at, observer, Box::new(word)));
            }
        }
    }

    fn heard(&mut self, at: usize, observer: ObserverId, word: FromController) {
        let now = self.at(self.now);
        let lease_ends = self.now + LEASE;
        let instance = &mut self.instances[at];
        if instance.observer != observer {
            return;
        }
        let Some(brain) = &mut instance.brain else { return };
        match &word {
            FromController::Arm(arm) => {
                instance.leases.insert(arm.token, lease_ends);
            }
            FromController::Renew { token } => {
                // A lease that has lapsed is gone.
                if let Some(lease) = instance.leases.get_mut(token).filter(|lease| **lease > self.now) {
                    *lease = lease_ends;
                }
            }
            FromController::Flush { id } => {
                let id = *id;
                let spans = std::mem::take(&mut instance.spans);
                instance.exported += spans.len() as u64;
                let (exported, lost, lost_of) = (instance.exported, instance.lost, instance.lost_of.clone());
                let delay = self.delay();
                self.later(delay, Event::Spans(spans));
                self.say(at, FromSidecar::Flushed { id, exported, lost, lost_of }, delay);
                return;
            }
            _ => {}
        }
        brain.on_control(word, now);
        self.after(at, None);
    }

    fn say(&mut self, at: usize, word: FromSidecar, not_before: Micros) {
        let due = (self.now + self.control_delay()).max(self.instances[at].said).max(self.now + not_before + 1);
        self.instances[at].said = due;
        let observer = self.instances[at].observer;
        self.later(due - self.now, Event::Up(observer, Box::new(word)));
    }

    fn tick(&mut self, at: usize, observer: ObserverId) {
        let now = self.at(self.now);
        let instance = &mut self.instances[at];
        if instance.observer != observer || instance.tick != Some(self.now) {
            return;
        }
        instance.tick = None;
        if let Some(brain) = &mut instance.brain {
            brain.on_time(now);
            self.after(at, None);
        }
    }

    // ---- sidecars --------------------------------------------------------------------------------------------------

    /// A connection for a call, and where it leads. HTTP calls have one each, gRPC calls share.
    pub(crate) fn connect(&mut self, at: usize, service: usize) -> Option<(Leg, usize)> {
        let grpc = self.system.services[service].grpc;
        for _ in 0..8 {
            let instance = &mut self.instances[at];
            let brain = instance.brain.as_mut()?;
            let link = if grpc {
                instance.turn += 1;
                let shared = &instance.shared[&service];
                shared[instance.turn % shared.len()]
            } else {
                brain.opened(Door::Outbound(service))
            };
            let address = brain.upstream(link).expect("it is open");
            instance.streams += 1;
            let stream = StreamId(instance.streams);
            let callee = self.instances.iter().position(|other| other.address == address).expect("it is configured");
            if !self.instances[callee].up {
                // What balances the load knows who is down.
                if !grpc {
                    self.instances[at].brain.as_mut().expect("it was there").gone(link);
                }
                continue;
            }
            return Some((self.leg(at, link, stream, !grpc), callee));
        }
        None
    }

    /// A connection from elsewhere.
    pub(crate) fn accept(&mut self, at: usize, grpc: bool) -> Option<Leg> {
        let instance = &mut self.instances[at];
        let brain = instance.brain.as_mut()?;
        let link = if grpc { instance.inbound.expect("it was opened") } else { brain.opened(Door::Inbound(0)) };
        instance.streams += 1;
        let stream = StreamId(instance.streams);
        Some(self.leg(at, link, stream, !grpc))
    }

    fn leg(&self, at: usize, link: LinkId, stream: StreamId, own_link: bool) -> Leg {
        let observer = self.instances[at].observer;
        Leg { instance: at, observer, link, stream, own_link, open: true, parked: None, dropped: false }
    }

    /// Call the interception points of a leg's link.
    pub(crate) fn intercept(&mut self, at: usize, link: LinkId, mut what: impl FnMut(&mut dyn Interceptor)) {
        let now = self.at(self.now);
        if let Some(brain) = &mut self.instances[at].brain {
            brain.intercept(link, now, &mut what);
        }
    }

    /// A sidecar has done something: it is heard, and what it let go goes on.
    pub(crate) fn after(&mut self, at: usize, call: Option<usize>) {
        self.listen(at, call);
        while let Some(brain) = &mut self.instances[at].brain {
            let resumes = brain.resumes();
            self.listen(at, None);
            if resumes.is_empty() {
                break;
            }
            for (link, stream, resume) in resumes {
                let Some((call, is_out)) = self.instances[at].exchanges.get(&(link, stream)).copied() else { continue };
                self.resume(call, is_out, resume);
                self.listen(at, Some(call));
            }
        }
        let now = self.now;
        let base = self.base;
        let instance = &mut self.instances[at];
        let Some(brain) = &mut instance.brain else { return };
        let Some(deadline) = brain.next_deadline() else { return };
        let due = u64::try_from(deadline.saturating_duration_since(base).as_micros()).unwrap_or(u64::MAX).max(now);
        if instance.tick.is_none_or(|tick| due < tick) {
            instance.tick = Some(due);
            let observer = instance.observer;
            self.later(due - now, Event::Tick(at, observer));
        }
    }

    fn listen(&mut self, at: usize, call: Option<usize>) {
        let Some(brain) = &mut self.instances[at].brain else { return };
        let words = brain.take_control();
        let spans = brain.take_spans();
        for word in words {
            // What is said of a call that has not been heard of is said of the one at hand.
            let of = match &word {
                FromSidecar::Ask(ask) => Some((ask.execution, ask.call)),
                FromSidecar::Fired { execution, call, .. } => Some((*execution, *call)),
                _ => None,
            };
            if let (Some((execution, id)), Some(call)) = (of.filter(|(_, id)| !self.ids.contains_key(id)), call) {
                self.named(call, id);
                let of = self.execution_of(call);
                self.attempts[of].execution.get_or_insert(execution);
            }
            self.fired(&word, at);
            self.say(at, word, 0);
        }
        for span in spans {
            if self.random.per_mille(self.weather.lost_spans) && !span.token.is_zero() {
                let instance = &mut self.instances[at];
                instance.lost += 1;
                *instance.lost_of.entry(span.token).or_default() += 1;
            } else {
                self.instances[at].spans.push(span);
            }
        }
    }

    /// A call has this id at the sidecars.
    pub(crate) fn named(&mut self, call: usize, id: CallId) {
        self.ids.insert(id, call);
        self.calls[call].id.get_or_insert(id);
    }

    /// Whether nothing is left anywhere.
    pub(crate) fn leftovers(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (at, instance) in self.instances.iter().enumerate() {
            if let Some(brain) = &instance.brain {
                if !instance.exchanges.is_empty() {
                    left.push(format!("instance {at} has open exchanges: {:?}", instance.exchanges));
                }
                if !brain.live_tokens().is_empty() || brain.next_deadline().is_some() {
                    left.push(format!("instance {at} still has a round or a timer"));
                }
            }
        }
        left
    }

    /// What a resume is to a leg, for the trace.
    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9}   {}", self.now, what());
        }
    }

    pub(crate) fn leg_of(&mut self, call: usize, is_out: bool) -> Option<&mut Leg> {
        let call = &mut self.calls[call];
        let leg = if is_out { call.out.as_mut() } else { call.inn.as_mut() };
        leg.filter(|leg| {
            let instance = &self.instances[leg.instance];
            leg.open && instance.up && instance.observer == leg.observer
        })
    }

    /// The exchange is over at this sidecar.
    pub(crate) fn close_leg(&mut self, call: usize, is_out: bool) {
        let Some(leg) = self.leg_of(call, is_out) else { return };
        leg.open = false;
        leg.parked = None;
        let (at, link, stream, own) = (leg.instance, leg.link, leg.stream, leg.own_link);
        let instance = &mut self.instances[at];
        instance.exchanges.remove(&(link, stream));
        if own && let Some(brain) = &mut instance.brain {
            brain.gone(link);
        }
    }

    pub(crate) fn resumes_with(resume: &Resume) -> &'static str {
        match resume {
            Resume::Pass => "goes on",
            Resume::Act(_) => "is faulted",
            Resume::Close => "is closed",
        }
    }
}

impl Instance {
    fn down(service: usize, address: String) -> Instance {
        Instance {
            service,
            address,
            config: None,
            brain: None,
            observer: ObserverId(0),
            up: false,
            shared: BTreeMap::new(),
            turn: 0,
            inbound: None,
            streams: 0,
            exchanges: BTreeMap::new(),
            tick: None,
            spans: Vec::new(),
            exported: 0,
            lost: 0,
            lost_of: BTreeMap::new(),
            said: 0,
            heard: 0,
            leases: BTreeMap::new(),
        }
    }
}
