//! The examples of `docs/scenarios.md`.

use aftershock_control::api::OracleVerdict;
use aftershock_control::runner::Runner;
use aftershock_control::scenario::{Scenario, Secrets};

use crate::stage::{Controller, Log, reply, runner, service};

/// Each YAML block of the page.
fn examples() -> Vec<String> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
    blocks.collect()
}

/// A runner of the example with this name, whose addresses are those of a service that does `acts`.
async fn example(name: &str, log: &Log, acts: Vec<crate::stage::Act>) -> Runner {
    let text = examples().into_iter().find(|text| text.contains(&format!("metadata: {{name: {name}}}"))).unwrap();
    let mut scenario = Scenario::parse("docs/scenarios.md", &text).unwrap_or_else(|error| panic!("{error}"));
    let url = service("entry", log, acts).await;
    let ledgers: Vec<(String, String)> = scenario.ledgers.keys().map(|name| (name.clone(), url.clone())).collect();
    scenario.relocate(&[url], &ledgers).unwrap();
    let secrets = Secrets::read(&scenario, |_| Some("s3cret".to_owned())).unwrap();
    let (runner, _) = runner(Controller::default(), scenario, log).await;
    runner.with_secrets(secrets)
}

#[test]
fn every_example_is_a_valid_scenario() {
    let examples = examples();
    assert!(examples.len() >= 5);
    for text in examples {
        Scenario::parse("docs/scenarios.md", &text).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[tokio::test]
async fn the_example_of_requests_runs() {
    let log = Log::default();
    let placed = "HTTP/1.1 201 X\r\nx-order-id: 7\r\ncontent-length: 0\r\n\r\n".to_owned();
    let acts = vec![
        reply(200, r#"{"token": "t"}"#),
        crate::stage::Act::Reply(placed),
        reply(200, r#"{"state": "paid"}"#),
        reply(200, r#"{"count": 1}"#),
        reply(200, ""),
    ];
    let outcome = example("order", &log, acts).await.round(None, &()).await.unwrap();
    assert_eq!((outcome.oracle.found, outcome.oracle.differences), (OracleVerdict::Held, vec![]));
    log.has("entry DELETE /orders/7").await;
    assert_eq!(outcome.notes, [""; 0]);
}

#[tokio::test]
async fn the_example_of_a_command_runs() {
    let log = Log::default();
    let outcome = example("load", &log, vec![reply(200, "")]).await.round(None, &()).await.unwrap();
    assert_eq!((outcome.oracle.found, outcome.oracle.differences), (OracleVerdict::Held, vec![]));
}
