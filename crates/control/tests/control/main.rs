//! The controller over real sockets: fake sidecars that speak the wire protocol, real OTLP posts, real HTTP.

#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

mod certificates;
mod http;
mod sidecar;
mod spans;

mod access;
mod arbitration;
mod arming;
mod circumstances;
mod input;
mod lifecycle;
mod settling;
mod simulation;
mod verdicts;

use std::time::Duration;

use aftershock_control::api::{Finish, Finished, RoundId, RoundRecord, Settle, Settled, StartRound, StartedRound};
use aftershock_control::server::{Controller, Options};
use aftershock_core::duration::Interval;
use aftershock_core::plan::Plan;
use http::Api;
use tokio::net::TcpListener;

/// Long enough for anything that happens, on a busy machine too; no test waits for it to pass.
const AMPLE: Duration = Duration::from_secs(20);

async fn controller(options: Options) -> (Controller, Api) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let controller = Controller::start(listener, options).await.unwrap();
    let api = Api(controller.address());
    (controller, api)
}

/// A controller with nothing that times out soon.
async fn patient() -> (Controller, Api) {
    controller(Options { acknowledge_within: AMPLE, runner_lease: AMPLE, ..Options::default() }).await
}

fn start_of(scenario: &str, plan: Plan) -> StartRound {
    StartRound { scenario: scenario.to_owned(), plan, key: "key-1".to_owned(), ..StartRound::default() }
}

/// A response of Charge is lost.
fn lost_charge() -> Plan {
    serde_json::from_value(serde_json::json!({"faults": [{
        "target": {"caller": "checkout", "api": "payment shop.Payment/Charge", "k": 1, "phase": "response"},
        "fault": "drop"}]}))
    .unwrap()
}

async fn started(api: Api, plan: Plan) -> StartedRound {
    api.post("/v1/rounds", &start_of("checkout", plan)).await.ok()
}

async fn settle(api: Api, id: RoundId, within: Duration) -> Settled {
    api.post(&format!("/v1/rounds/{}/settle", id.0), &Settle { deadline: Interval(within), unanswered: false })
        .await
        .ok()
}

async fn finish(api: Api, id: RoundId, within: Duration) -> Finished {
    let finish = Finish { deadline: Interval(within), client_failed: None };
    api.post(&format!("/v1/rounds/{}/finish", id.0), &finish).await.ok()
}

async fn record(api: Api, id: RoundId) -> RoundRecord {
    api.get(&format!("/v1/rounds/{}", id.0)).await.ok()
}
