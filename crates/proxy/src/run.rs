//! One sidecar process: listeners, brain, controller, exporter and clock, on one thread.
//!
//! Everything that may change what is due (a message, a word of the controller, a deadline) goes through `Hub`, which
//! passes on what comes out: resumed messages to their links, spans to the exporter, answers to the controller.

#[cfg(test)]
mod tests;
mod transparent;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aftershock_core::id::ObserverId;
use aftershock_core::wire::{FromController, FromSidecar, Hello, PROTOCOL};
use aftershock_trust::{Endpoint, TrustError};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::admin::{self, Controller, Operated};
use crate::config::Config;
use crate::config::transparent::Own;
use crate::control_link::{self, Brain};
use crate::exchange::{Decider, Door, Interceptor, LinkId, Resume, StreamId};
use crate::export::Spans;
use crate::link::{self, Listener, Router, Stop};
use crate::log;
use crate::metrics::{self, Exposition};
use crate::sidecar::Sidecar;

/// How long the last spans may take.
const LAST_EXPORT: Duration = Duration::from_secs(1);

/// Why a sidecar could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address is taken or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It runs as somebody whose connections would be redirected to itself.
    #[error(
        "what the sidecar sends must not be redirected: run it as {own} (`transparent: own`), not as user {uid}, group {gid}"
    )]
    Identity {
        /// As whom it is to run.
        own: Own,
        /// As whom it runs.
        uid: u32,
        /// In which group.
        gid: u32,
    },
    /// The addresses of this host cannot be read.
    #[error("cannot read the addresses of the network interfaces")]
    Interfaces(#[source] io::Error),
    /// The controller's address or what is to be shown there is not usable.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The system has no randomness.
    #[error("cannot draw random numbers: {0}")]
    Random(getrandom::Error),
}

/// Run the sidecar that `config` describes until `shutdown` completes; then release what is parked, close what was
/// dropped, let exchanges end, send the last spans. If `at_once` completes meanwhile, everything is cut.
///
/// # Errors
/// When it cannot start. Once it runs, nothing but `shutdown` ends it.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()>,
    at_once: impl Future<Output = ()>,
) -> Result<(), RunError> {
    LocalSet::new().run_until(run_local(config, shutdown, at_once)).await
}

async fn run_local(
    config: Config,
    shutdown: impl Future<Output = ()>,
    at_once: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let drain = config.drain;
    let listeners = bind(&config).await?;
    let inbound = listeners[..config.inbound.len()].iter();
    let mut random = Random::new()?;
    let observer = ObserverId(loop {
        match random.draw() {
            0 => {}
            number => break number,
        }
    });
    let hello = hello(&config, observer, inbound.filter_map(|listener| listener.socket.local_addr().ok()))?;
    let control = config.control.as_ref().map(crate::config::Control::endpoint).transpose()?;
    let admin = config.admin.map(bind_admin).transpose()?;
    let hub = Hub::new(Sidecar::new(config, observer, Box::new(move || random.draw()), Box::new(unix_nanos)));
    if let Some(admin) = admin {
        // Everything else is bound: whoever can ask may be told that it is ready.
        tokio::task::spawn_local(admin::serve(admin, hub.clone()));
    }
    if let Some(control) = &control {
        spawn_control(&hub, control.clone(), hello);
    }
    tokio::task::spawn_local(hub.clone().keep_time());
    let stop = Stop::new();
    let relays = link::serve(listeners, Rc::new(RefCell::new(hub.clone())), hub.0.router.clone(), stop.clone(), drain);
    let mut relays = Box::pin(relays);
    tokio::select! {
        () = &mut relays => {}
        () = shutdown => {
            tracing::info!("stopping");
            hub.0.draining.set(true);
            hub.change(|sidecar| sidecar.shutdown());
            stop.stop();
            tokio::select! {
                () = &mut relays => {}
                () = at_once => {
                    tracing::warn!("ending at once: open connections are cut");
                    return Ok(());
                }
            }
        }
    }
    if control.is_some() {
        hub.0.spans.stop();
        let _ = tokio::time::timeout(LAST_EXPORT, hub.0.exported.notified()).await;
    }
    Ok(())
}

fn spawn_control(hub: &Hub, control: Endpoint, hello: Hello) {
    hub.0.controller.set(Controller::Away);
    let (exporter, spans) = (hub.clone(), hub.0.spans.clone());
    let collector = control.clone();
    tokio::task::spawn_local(async move {
        let settled = || exporter.settle_flushes();
        spans.run(collector, settled).await;
        exporter.0.exported.notify_one();
    });
    tokio::task::spawn_local(control_link::run(control, hello, hub.clone()));
}

/// The explicit inbound listeners first.
async fn bind(config: &Config) -> Result<Vec<Listener>, RunError> {
    let inbound = config.inbound.iter().enumerate();
    let inbound =
        inbound.map(|(i, inbound)| (Door::Inbound(i), inbound.listen, std::slice::from_ref(&inbound.to), None));
    let outbound = config.outbound.iter().enumerate();
    let outbound =
        outbound.map(|(i, outbound)| (Door::Outbound(i), outbound.listen, &outbound.to[..], Some(&outbound.callee)));
    let mut listeners = Vec::new();
    for (door, address, to, callee) in inbound.chain(outbound) {
        let listen = |source| RunError::Listen { address, source };
        let socket = TcpListener::bind(address).await.map_err(listen)?;
        let at = socket.local_addr().map_err(listen)?;
        match callee {
            None => tracing::info!(%at, ?to, "listening for the application"),
            Some(callee) => tracing::info!(%at, %callee, ?to, "listening for calls"),
        }
        listeners.push(Listener::before(door, socket, to.to_vec()));
    }
    if let Some(transparent) = &config.transparent {
        listeners.extend(transparent::bind(transparent)?);
    }
    Ok(listeners)
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, RunError> {
    let listen = |source| RunError::Listen { address, source };
    let socket = admin::bind(address).map_err(listen)?;
    let at = socket.local_addr().map_err(listen)?;
    tracing::info!(%at, "listening for operators");
    Ok(socket)
}

fn hello(config: &Config, observer: ObserverId, inbound: impl Iterator<Item = SocketAddr>) -> Result<Hello, RunError> {
    let mut outbound: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for listener in &config.outbound {
        outbound.entry(listener.callee.clone()).or_default().extend(listener.to.iter().map(ToString::to_string));
    }
    let mut inbound: Vec<String> = inbound.map(|address| address.to_string()).collect();
    let mut excluded = Vec::new();
    if let Some(transparent) = &config.transparent {
        let reached = transparent::Reached::new(config, transparent, &transparent::interfaces()?);
        inbound.extend(reached.through.iter().map(ToString::to_string));
        excluded.extend(reached.past.iter().map(ToString::to_string));
    }
    Ok(Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        service: config.service.clone(),
        observer,
        inbound,
        excluded,
        outbound,
        templates: config.templates.templates().iter().map(ToString::to_string).collect(),
    })
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Random numbers of the system, drawn some at a time: a call mints an id, and a system call each would show.
struct Random {
    pool: [u8; 1024],
    used: usize,
}

impl Random {
    fn new() -> Result<Self, RunError> {
        let mut pool = [0; 1024];
        getrandom::fill(&mut pool).map_err(RunError::Random)?;
        Ok(Random { pool, used: 0 })
    }

    fn draw(&mut self) -> u64 {
        if self.used == self.pool.len() {
            getrandom::fill(&mut self.pool).expect("the system gave random numbers when the process began");
            self.used = 0;
        }
        let (bytes, _) =
            self.pool[self.used..].split_first_chunk::<8>().expect("the pool is a multiple of eight bytes");
        self.used += 8;
        u64::from_ne_bytes(*bytes)
    }
}

/// The brain and all that hangs on it. Clones are the same.
#[derive(Clone)]
struct Hub(Rc<Shared>);

struct Shared {
    sidecar: RefCell<Sidecar>,
    router: Router,
    spans: Spans,
    /// Answers to flushes, said after what was said before them.
    answers: RefCell<Vec<FromSidecar>>,
    /// There may be something to say to the controller.
    word: Notify,
    /// A deadline may have come nearer.
    alarm: Notify,
    /// The deadline that the clock waits for.
    waits_for: RefCell<Option<Instant>>,
    /// The last spans are gone.
    exported: Notify,
    controller: Cell<Controller>,
    /// Connections of the controller that were welcomed.
    registrations: Cell<u64>,
    draining: Cell<bool>,
    started: SystemTime,
}

impl Hub {
    fn new(sidecar: Sidecar) -> Self {
        Hub(Rc::new(Shared {
            sidecar: RefCell::new(sidecar),
            router: Router::new(),
            spans: Spans::default(),
            answers: RefCell::default(),
            word: Notify::new(),
            alarm: Notify::new(),
            waits_for: RefCell::new(None),
            exported: Notify::new(),
            controller: Cell::new(Controller::None),
            registrations: Cell::new(0),
            draining: Cell::new(false),
            started: SystemTime::now(),
        }))
    }

    /// Something happened: pass on what came out, but for resumed messages.
    fn pass_on(&self) {
        let mut sidecar = self.0.sidecar.borrow_mut();
        sidecar.hand_over_spans(|spans| self.0.spans.push(spans));
        if sidecar.has_control() {
            self.0.word.notify_one();
        }
        let waits_for = *self.0.waits_for.borrow();
        if let Some(next) = sidecar.next_deadline()
            && waits_for.is_none_or(|at| next < at)
        {
            self.0.alarm.notify_one();
        }
    }

    /// Do something with the brain that is no message, and let go what may go on.
    fn change(&self, what: impl FnOnce(&mut Sidecar)) {
        what(&mut self.0.sidecar.borrow_mut());
        let resumes = self.0.sidecar.borrow_mut().resumes();
        self.0.router.deliver(resumes);
        self.0.router.cut(self.0.sidecar.borrow_mut().take_cuts());
        self.pass_on();
    }

    /// Deadlines take effect when they come.
    async fn keep_time(self) {
        loop {
            let next = self.0.sidecar.borrow().next_deadline();
            *self.0.waits_for.borrow_mut() = next;
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.change(|sidecar| sidecar.on_time(Instant::now())),
                () = self.0.alarm.notified() => {}
            }
        }
    }

    /// Answer the flushes that are done.
    fn settle_flushes(&self) {
        let done = self.0.spans.flushed();
        if done.is_empty() {
            return;
        }
        let tally = self.0.spans.tally(&self.0.sidecar.borrow().live_tokens());
        self.0.answers.borrow_mut().extend(done.into_iter().map(|id| FromSidecar::Flushed {
            id,
            exported: tally.exported,
            lost: tally.lost,
            lost_of: tally.lost_of.clone(),
        }));
        self.0.word.notify_one();
    }
}

impl Brain for Hub {
    async fn hear(&self, word: FromController) {
        let flush = match word {
            FromController::Flush { id } => Some(id),
            FromController::Welcome { .. } => {
                self.0.controller.set(Controller::Connected);
                self.0.registrations.set(self.0.registrations.get() + 1);
                None
            }
            _ => None,
        };
        self.change(|sidecar| match flush {
            // Counters go with every flush.
            Some(_) => sidecar.on_control(FromController::Report, Instant::now()),
            None => sidecar.on_control(word, Instant::now()),
        });
        if let Some(id) = flush {
            self.0.spans.flush(id);
            self.settle_flushes();
        }
        // Links that were told to go on have done so before the answer leaves.
        tokio::task::yield_now().await;
    }

    fn say(&self) -> Vec<FromSidecar> {
        let mut words = self.0.sidecar.borrow_mut().take_control();
        words.append(&mut self.0.answers.borrow_mut());
        words
    }

    async fn has_word(&self) {
        self.0.word.notified().await;
    }

    fn cut(&self) {
        self.0.controller.set(Controller::Away);
        // Whoever asked for a flush is gone; the numbers of the next connection are its own.
        self.0.answers.borrow_mut().clear();
        self.0.spans.forget_flushes();
    }
}

impl Operated for Hub {
    fn is_draining(&self) -> bool {
        self.0.draining.get()
    }

    fn controller(&self) -> Controller {
        self.0.controller.get()
    }

    fn metrics(&self) -> String {
        let mut text = Exposition::default();
        let sidecar = self.0.sidecar.borrow();
        text.gauge("aftershock_build_info", "1; its labels say what runs here.")
            .sample(&[("service", sidecar.service()), ("version", env!("CARGO_PKG_VERSION"))], 1);
        text.gauge("aftershock_draining", "Whether the process is about to end.").value(u8::from(self.is_draining()));
        text.gauge("aftershock_controller_connected", "Whether this sidecar is registered with its controller now.")
            .value(u8::from(self.controller() == Controller::Connected));
        text.counter("aftershock_controller_registrations_total", "How often this sidecar registered.")
            .value(self.0.registrations.get());
        sidecar.expose(&mut text);
        let (exported, lost) = self.0.spans.total();
        text.counter("aftershock_spans_exported_total", "Spans that the collector accepted.").value(exported);
        text.counter("aftershock_spans_lost_total", "Spans that did not fit, or that the collector did not take.")
            .value(lost);
        text.gauge("aftershock_spans_waiting", "Spans that wait for the collector.").value(self.0.spans.waiting());
        let mut left_out =
            text.counter("aftershock_log_lines_left_out_total", "Lines that came too often to be logged.");
        for (level, count) in log::left_out() {
            left_out = left_out.sample(&[("level", level)], count);
        }
        metrics::process(&mut text, self.0.started);
        text.into_text()
    }
}

impl Decider for Hub {
    fn opened(&mut self, door: Door) -> LinkId {
        self.0.sidecar.borrow_mut().opened(door)
    }

    fn is_cut(&self, link: LinkId) -> bool {
        self.0.sidecar.borrow().is_cut(link)
    }

    fn intercept(&mut self, link: LinkId, now: Instant, call: &mut dyn FnMut(&mut dyn Interceptor)) {
        self.0.sidecar.borrow_mut().intercept(link, now, call);
        self.pass_on();
    }

    fn gone(&mut self, link: LinkId) {
        self.0.sidecar.borrow_mut().gone(link);
        self.pass_on();
    }

    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)> {
        let resumes = self.0.sidecar.borrow_mut().resumes();
        // A guard that came true may have been told, or have set a deadline.
        self.pass_on();
        resumes
    }

    fn opaque(&mut self, link: LinkId, server_name: Option<&str>) {
        self.0.sidecar.borrow_mut().opaque(link, server_name);
    }

    fn unseen(&mut self, link: LinkId, server_name: Option<&str>) {
        self.0.sidecar.borrow_mut().unseen(link, server_name);
    }
}
