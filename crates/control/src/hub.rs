//! The controller's state behind one lock, and how its tasks wait for a change of it.
//!
//! Every change is a beat of a pulse, on which waiting tasks look again: a pulse for each round, and one for what
//! belongs to no round. Nothing polls. The lock is never held over an await or while something is computed that grows
//! with a round: passes wait for its answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{ObserverId, Token};
use aftershock_core::otlp::{Answer, Decoded};
use aftershock_core::wire::{FromSidecar, Hello};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::RoundId;
use crate::registry::Outgoing;
use crate::server::Options;
use crate::state::{Heard, State};
use crate::store::{Store, StoreError};

/// The controller's state and what changes it.
pub(crate) struct Hub {
    pub(crate) options: Options,
    pub(crate) store: Store,
    state: Mutex<State>,
    pulse: watch::Sender<()>,
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

impl Hub {
    pub(crate) async fn new(options: Options) -> Result<Arc<Hub>, StoreError> {
        let store = Store::open(options.store.clone(), options.retention, options.redaction.clone()).await?;
        let state = State::new(Keyring(vec![new_key()]), options.spans_per_round);
        Ok(Arc::new(Hub { options, store, state: Mutex::new(state), pulse: watch::Sender::new(()) }))
    }

    /// To look at the state, or to change a round, which wakes who waits for it; for other changes, see [`Hub::change`].
    pub(crate) fn look(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not keep the controller from disarming.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Change what belongs to no round, or which rounds there are, and wake those who wait for that.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.look());
        self.pulse.send_replace(());
        result
    }

    /// Wait until `look` is ready, until `deadline` at most: none if it is not ready then. It looks again after each
    /// [`Hub::change`].
    pub(crate) async fn until<T>(&self, deadline: Instant, look: impl FnMut(&mut State) -> Look<T>) -> Option<T> {
        self.watch(self.pulse.subscribe(), deadline, look).await
    }

    /// As [`Hub::until`], looking again after each change of a round, and at its end.
    pub(crate) async fn until_round<T>(
        &self,
        id: RoundId,
        deadline: Instant,
        look: impl FnMut(&mut State) -> Look<T>,
    ) -> Option<T> {
        let pulse = self.look().round(id).map_or_else(|| self.pulse.subscribe(), |live| live.pulse.subscribe());
        self.watch(pulse, deadline, look).await
    }

    async fn watch<T>(
        &self,
        mut pulse: watch::Receiver<()>,
        deadline: Instant,
        mut look: impl FnMut(&mut State) -> Look<T>,
    ) -> Option<T> {
        // A round that has ended beats no more.
        let mut beats = true;
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
                changed = pulse.changed(), if beats => beats = changed.is_ok(),
                () = tokio::time::sleep_until(at) => {}
            }
        }
    }

    /// A sidecar said hello: it is registered, and late to every live round.
    pub(crate) fn register(&self, hello: Hello) -> Outgoing {
        tracing::info!(service = %hello.service, observer = %hello.observer, version = %hello.version, "sidecar registered");
        self.change(|state| state.register(hello))
    }

    /// The connection of a sidecar ended.
    pub(crate) fn deregister(&self, observer: ObserverId, connection: u64) {
        if self.change(|state| state.deregister(observer, connection)) {
            tracing::info!(%observer, "sidecar gone");
        }
    }

    /// A registered sidecar said something. False if it said what only an unregistered one may.
    pub(crate) fn hear(&self, observer: ObserverId, connection: u64, message: FromSidecar) -> bool {
        let heard = self.look().hear(observer, connection, message);
        if heard == Heard::Change {
            self.pulse.send_replace(());
        }
        heard != Heard::Unfit
    }

    /// Spans came in.
    pub(crate) async fn collect(&self, decoded: Decoded) -> Answer {
        let accepted = self.look().collect(decoded);
        for ((round, execution), spans) in accepted.late {
            if let Err(error) = self.store.late(round, execution, spans).await {
                tracing::error!(%error, round = round.0, "late spans were not noted");
            }
        }
        accepted.answer
    }
}

/// The secret of a hop key.
pub(crate) fn new_secret() -> [u8; 16] {
    let mut secret = [0; 16];
    random(&mut secret);
    secret
}

fn new_key() -> HopKey {
    let mut id = [0; 1];
    random(&mut id);
    HopKey { id: id[0], secret: new_secret() }
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
