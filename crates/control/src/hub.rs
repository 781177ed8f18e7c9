//! What the controller knows now, behind one lock, and how its tasks wait for a change of it.
//!
//! Sidecars' messages and spans change the [`State`]; every change is a beat of one pulse, on which waiting tasks look
//! again. Nothing polls. The lock is never held over an await, and messages to sidecars are put into outboxes under it,
//! so that each sidecar sees causes in their order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{ObserverId, Token};
use aftershock_core::otlp::{Answer, Decoded};
use aftershock_core::wire::{Ask, FromController, FromSidecar, Hello, PROTOCOL, Ruling};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::RoundId;
use crate::arbiter::Release;
use crate::collector::Collector;
use crate::registry::{Outgoing, Registry};
use crate::rounds::Live;
use crate::server::Options;
use crate::store::{Store, StoreError};

/// The controller's state and what changes it.
pub(crate) struct Hub {
    pub(crate) options: Options,
    pub(crate) store: Store,
    keys: Keyring,
    state: Mutex<State>,
    pulse: watch::Sender<()>,
}

/// See the module.
pub(crate) struct State {
    pub(crate) registry: Registry,
    pub(crate) collector: Collector,
    pub(crate) rounds: BTreeMap<RoundId, Live>,
    pub(crate) flushes: u64,
    /// Connections of sidecars that are not over.
    pub(crate) links: usize,
    /// No round begins any more.
    pub(crate) stopping: bool,
}

/// What a look at the state says to a task that waits.
pub(crate) enum Look<T> {
    /// It has what it waited for.
    Ready(T),
    /// It looks again after a change.
    OnChange,
    /// It looks again after a change, or at this instant.
    At(Instant),
}

impl State {
    /// The live round with this token.
    pub(crate) fn by_token(&mut self, token: Token) -> Option<&mut Live> {
        self.rounds.values_mut().find(|live| live.token == token)
    }

    fn rule(&self, observer: ObserverId, ruled: FromController) {
        if let Some(connected) = self.registry.get(observer) {
            connected.send(ruled);
        }
    }

    /// Tell held passes that they wait in vain.
    fn release(&self, token: Token, rule: usize, released: Vec<Release>) {
        for Release { observer, execution, call, number } in released {
            let ruling = Ruling::Spent;
            self.rule(observer, FromController::Ruled { token, rule, execution, call, number, ruling });
        }
    }
}

impl Hub {
    pub(crate) async fn new(options: Options) -> Result<Arc<Hub>, StoreError> {
        let store = Store::open(options.store.clone(), options.retention, options.redaction.clone()).await?;
        let state = State {
            registry: Registry::default(),
            collector: Collector::new(options.spans_per_round),
            rounds: BTreeMap::new(),
            flushes: 0,
            links: 0,
            stopping: false,
        };
        let keys = Keyring(vec![new_key()]);
        Ok(Arc::new(Hub { options, store, keys, state: Mutex::new(state), pulse: watch::Sender::new(()) }))
    }

    /// To look at the state; for a change, see [`Hub::change`].
    pub(crate) fn look(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not keep the controller from disarming.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Change the state and wake those who wait for that.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.look());
        self.pulse.send_replace(());
        result
    }

    /// Wait until `look` is ready, until `deadline` at most: none if it is not ready then.
    pub(crate) async fn until<T>(&self, deadline: Instant, mut look: impl FnMut(&mut State) -> Look<T>) -> Option<T> {
        let mut pulse = self.pulse.subscribe();
        loop {
            pulse.borrow_and_update();
            let at = match look(&mut self.look()) {
                Look::Ready(result) => return Some(result),
                Look::OnChange => deadline,
                Look::At(instant) => instant.min(deadline),
            };
            if Instant::now() >= deadline {
                return None;
            }
            tokio::select! {
                // The sender lives in `self`.
                _ = pulse.changed() => {}
                () = tokio::time::sleep_until(at) => {}
            }
        }
    }

    /// A sidecar said hello: it is registered, and late to every live round.
    pub(crate) fn register(&self, hello: Hello) -> Outgoing {
        tracing::info!(service = %hello.service, observer = %hello.observer, version = %hello.version, "sidecar registered");
        let observer = hello.observer;
        self.change(|state| {
            let (outgoing, again) = state.registry.add(hello);
            if again {
                state.rounds.values_mut().for_each(|live| live.lost_sidecar(observer));
            }
            let welcome = FromController::Welcome {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                keys: self.keys.clone(),
                registry: state.registry.to_wire(),
                late: state.rounds.values().map(|live| live.token).collect(),
            };
            if let Some(connected) = state.registry.get(observer) {
                connected.send(welcome);
            }
            outgoing
        })
    }

    /// The connection of a sidecar ended.
    pub(crate) fn deregister(&self, observer: ObserverId, connection: u64) {
        self.change(|state| {
            if state.registry.remove(observer, connection) {
                tracing::info!(%observer, "sidecar gone");
                state.rounds.values_mut().for_each(|live| live.lost_sidecar(observer));
            }
        });
    }

    /// A registered sidecar said something. False if it said what only an unregistered one may.
    pub(crate) fn hear(&self, observer: ObserverId, connection: u64, message: FromSidecar) -> bool {
        self.change(|state| {
            let asked = state.flushes;
            let Some(connected) = state.registry.get_mut(observer).filter(|known| known.is(connection)) else {
                return true;
            };
            let unassociated = connected.unassociated().clone();
            match message {
                FromSidecar::Hello(_) => return false,
                FromSidecar::Counters(counters) => {
                    connected.counters = counters;
                    connected.reports += 1;
                }
                // An answer to what was never asked proves nothing.
                FromSidecar::Flushed { id, exported: _, lost, lost_of } if id <= asked => {
                    connected.flushed = connected.flushed.max(id);
                    connected.lost = lost;
                    connected.lost_of = lost_of;
                }
                FromSidecar::Flushed { .. } => {}
                FromSidecar::Ask(ask) => {
                    let answer = state.by_token(ask.token).and_then(|live| live.ask(observer, &ask));
                    if let Some((number, ruling)) = answer {
                        let Ask { token, rule, execution, call, .. } = ask;
                        state.rule(observer, FromController::Ruled { token, rule, execution, call, number, ruling });
                    }
                }
                FromSidecar::GiveUp { token, rule, execution, call } => {
                    let released = state.by_token(token).map(|live| live.gave_up(observer, rule, execution, call));
                    state.release(token, rule, released.unwrap_or_default());
                }
                FromSidecar::HandBack { token, rule, execution, call } => {
                    let released = state.by_token(token).map(|live| live.handed_back(observer, rule, execution, call));
                    state.release(token, rule, released.unwrap_or_default());
                }
                FromSidecar::Keyed { .. } => {}
                FromSidecar::Armed { token } => with(state, token, |live| live.armed(observer, unassociated)),
                FromSidecar::NotArmed { token, reason } => with(state, token, |live| live.not_armed(observer, reason)),
                FromSidecar::Disarmed { token } => with(state, token, |live| live.disarmed(observer)),
                FromSidecar::Lapsed { token } => with(state, token, |live| live.lapsed(observer)),
                FromSidecar::Activity { token, begun, open } => {
                    with(state, token, |live| live.activity(observer, begun, open));
                }
                FromSidecar::Fired { token, rule, execution, call } => {
                    let released = state.by_token(token).map(|live| live.fired(observer, rule, execution, call));
                    state.release(token, rule, released.unwrap_or_default());
                }
            }
            true
        })
    }

    /// Spans came in.
    pub(crate) async fn collect(&self, decoded: Decoded) -> Answer {
        let accepted = self.change(|state| {
            let accepted = state.collector.accept(decoded);
            for live in state.rounds.values_mut().filter(|live| accepted.grew.contains(&live.token)) {
                live.revision += 1;
            }
            accepted
        });
        for ((round, execution), spans) in accepted.late {
            if let Err(error) = self.store.late(round, execution, spans).await {
                tracing::error!(%error, round = round.0, "late spans were not noted");
            }
        }
        accepted.answer
    }
}

/// Rounds that are not live are not spoken of any more.
fn with(state: &mut State, token: Token, act: impl FnOnce(&mut Live)) {
    if let Some(live) = state.by_token(token) {
        act(live);
    }
}

fn new_key() -> HopKey {
    let mut secret = [0; 16];
    random(&mut secret);
    let mut id = [0; 1];
    random(&mut id);
    HopKey { id: id[0], secret }
}

/// A token is a capability: it must not be guessed.
pub(crate) fn new_token() -> Token {
    let mut bytes = [0; 8];
    random(&mut bytes);
    Token(u64::from_be_bytes(bytes).max(1))
}

fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system has a source of randomness");
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
