//! What depends on time, on a clock that stands still until everybody waits for it. No sockets.

use aftershock_core::duration::Interval;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::plan::{Plan, Side};
use aftershock_core::wire::{FromController, FromSidecar, Hello, OpenCall, OpenState, PROTOCOL};

use super::*;
use crate::registry::Outgoing;
use crate::server::Options;
use crate::testing::service;

/// A registered sidecar that acknowledges and answers as told.
struct Fake {
    hub: Arc<Hub>,
    outgoing: Outgoing,
    observer: ObserverId,
}

impl Fake {
    fn new(hub: &Arc<Hub>) -> Fake {
        let observer = ObserverId(1);
        let hello = Hello {
            protocol: PROTOCOL,
            version: "1".to_owned(),
            service: service("checkout"),
            observer,
            inbound: vec!["127.0.0.1:1".to_owned()],
            excluded: vec![],
            outbound: [].into(),
            templates: vec![],
        };
        Fake { hub: Arc::clone(hub), outgoing: hub.register(hello), observer }
    }

    fn say(&self, message: FromSidecar) {
        assert!(self.hub.hear(self.observer, self.outgoing.connection, message));
    }

    /// The next message for which `pick` gives something.
    async fn hears<T>(&mut self, pick: impl Fn(&FromController) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(&self.outgoing.messages.recv().await.unwrap()) {
                return picked;
            }
        }
    }

    fn activity(&self, token: Token, begun: u64, open: Vec<OpenCall>) {
        self.say(FromSidecar::Activity { token, begun, open });
    }
}

fn running(call: u64) -> OpenCall {
    OpenCall {
        side: Side::Callee,
        execution: ExecutionId(1),
        call: CallId(call),
        parent: None,
        api: "checkout POST /checkout".parse().unwrap(),
        state: OpenState::Running,
    }
}

async fn armed(hub: &Arc<Hub>, fake: &mut Fake) -> StartedRound {
    let request =
        StartRound { scenario: "s".to_owned(), plan: Plan::default(), key: "k".to_owned(), ..StartRound::default() };
    let starting = tokio::spawn({
        let hub = Arc::clone(hub);
        async move { hub.start(request).await.unwrap() }
    });
    let token = fake
        .hears(|message| match message {
            FromController::Arm(arm) => Some(arm.token),
            _ => None,
        })
        .await;
    fake.say(FromSidecar::Armed { token });
    starting.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_change_starts_the_quiet_time_anew() {
    let hub = Hub::new(Options::default()).await.unwrap();
    let mut fake = Fake::new(&hub);
    let StartedRound { id, token } = armed(&hub, &mut fake).await;
    let began = Instant::now();
    let settling = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move {
            let settled = hub
                .settle(id, Settle { deadline: Interval(Duration::from_secs(60)), unanswered: false })
                .await
                .unwrap();
            (settled, Instant::now())
        }
    });
    fake.hears(|message| matches!(message, FromController::Watch { .. }).then_some(())).await;
    fake.activity(token, 1, vec![running(1)]);
    for call in 1..40 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        fake.activity(token, call, vec![]);
        tokio::time::sleep(Duration::from_millis(9)).await;
        fake.activity(token, call + 1, vec![running(call + 1)]);
    }
    fake.activity(token, 40, vec![]);
    let last = Instant::now();
    // Said again it is no change.
    tokio::time::sleep(Duration::from_millis(30)).await;
    fake.activity(token, 40, vec![]);
    let (settled, at) = settling.await.unwrap();
    assert!(settled.settled);
    assert!(at >= last + Duration::from_millis(50) && at < last + Duration::from_millis(60), "{:?}", at - began);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_every_three_seconds_and_a_runner_is_silent_for_ten_at_most() {
    let hub = Hub::new(Options::default()).await.unwrap();
    let mut fake = Fake::new(&hub);
    let StartedRound { id, token } = armed(&hub, &mut fake).await;
    let began = Instant::now();
    let at = |instant: Instant| (instant - began).as_millis().div_ceil(10) * 10;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(
            fake.hears(|message| match message {
                FromController::Renew { .. } => Some(("renew", at(Instant::now()))),
                FromController::Disarm { .. } => Some(("disarm", at(Instant::now()))),
                _ => None,
            })
            .await,
        );
    }
    let rounded: Vec<(&str, u128)> = seen.iter().map(|(what, at)| (*what, at / 1000)).collect();
    assert_eq!(rounded, [("renew", 3), ("renew", 6), ("renew", 9), ("disarm", 10)]);
    fake.say(FromSidecar::Disarmed { token });
    fake.activity(token, 0, vec![]);
    let flush = fake
        .hears(|message| match message {
            FromController::Flush { id } => Some(*id),
            _ => None,
        })
        .await;
    fake.say(FromSidecar::Flushed { id: flush, exported: 0, lost: 0, lost_of: [].into() });
    fake.hears(|message| matches!(message, FromController::End { .. }).then_some(())).await;
    assert_eq!(hub.store.round(id).await.unwrap().unwrap().summary.verdict, Some(crate::api::Verdict::Inconclusive));
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_renews_is_alive_for_as_long_as_it_likes() {
    let hub = Hub::new(Options::default()).await.unwrap();
    let mut fake = Fake::new(&hub);
    let StartedRound { id, .. } = armed(&hub, &mut fake).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        hub.renew(id).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(hub.renew(id).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reached_nobody_is_not_waited_for() {
    let hub = Hub::new(Options::default()).await.unwrap();
    let mut fake = Fake::new(&hub);
    let StartedRound { id, token } = armed(&hub, &mut fake).await;
    for unanswered in [true, false] {
        let began = Instant::now();
        let settling = tokio::spawn({
            let hub = Arc::clone(&hub);
            let settle = Settle { deadline: Interval(Duration::from_secs(10)), unanswered };
            async move { hub.settle(id, settle).await.unwrap() }
        });
        fake.hears(|message| matches!(message, FromController::Watch { .. }).then_some(())).await;
        fake.activity(token, 0, vec![]);
        let settled = settling.await.unwrap();
        let within = if unanswered { Duration::from_millis(60) } else { Duration::from_millis(10_010) };
        assert_eq!((settled.settled, began.elapsed() < within), (unanswered, true), "{settled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn counters_are_asked_for_every_second_while_a_round_is_to_be_stopped_if_traffic_suffers() {
    let counts = |stop| async move {
        let hub = Hub::new(Options { stop, ..Options::default() }).await.unwrap();
        let mut fake = Fake::new(&hub);
        armed(&hub, &mut fake).await;
        while fake.outgoing.messages.try_recv().is_ok() {}
        tokio::time::sleep(Duration::from_millis(5_500)).await;
        // As another round would.
        hub.look().ask_for_counters(Instant::now());
        let mut asked = 0;
        while let Ok(message) = fake.outgoing.messages.try_recv() {
            asked += usize::from(message == FromController::Report);
        }
        asked
    };
    let stop = crate::api::StopCondition { errors_per_million: 100_000, min_requests: 50 };
    assert_eq!(
        (counts(Some(stop)).await, counts(None).await),
        (5, 1),
        "rounds do not ask more often together than alone"
    );
}
