use std::path::Path;

use aftershock_core::plan::{Guard, Target};
use proptest::prelude::*;

use super::*;
use crate::api::OracleVerdict;

const CHECKOUT: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Scenario
metadata: {name: checkout}
spec:
  entry: http://127.0.0.1:8080
  key: order-{random}
  ledgers: {payment: http://127.0.0.1:9001}
  requests:
    - name: place-order
      http: {method: POST, path: "/cart/checkout?k={key}", headers: {content-type: application/json}, body: '{"key":"{key}"}'}
      timeout: 1s
      retry: {attempts: 2, on: [timeout, status], backoff: 5ms}
      expect: {status: 200, body: [{json_path: $.ok, equals: true}], latency: 5s}
    - name: quote
      grpc: {method: shop.Quote/Get, message: {base64: aGk=}, metadata: {x-key: "{key}"}}
  invariants:
    - {name: one charge, when: after_round, get: "{payment}/ledgers/charges?key={key}", json_path: $.count, equals: 1}
    - {name: charged once before the retry, when: after_attempt(1), request: place-order, get: "{payment}/c", json_path: $.count, at_most: 1}
"#;

const LOST: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: TemporalFault
metadata: {name: lost-charge}
spec:
  scenario: checkout
  faults:
    - target: {caller: checkout, api: payment shop.Payment/Charge, k: 1, phase: response, post_effect: true}
      fault: drop
      pattern: post-effect
      guard: {after: [{event: request-sent, api: "group:both", count: 2}]}
      hold: {deadline: 1s}
      max_injections: unlimited
    - target: {api: cart GET /cart, k: first, phase: request}
      fault: {error: {status: 404, headers: {x-a: b}, body: gone}}
  groups: {both: [a x.Y/Z, b x.Y/Z]}
  expect:
    oracle: violated
    violates: [one charge]
    requests: {place-order: {status: 500}}
    invariants:
      also:
        - {name: a shipment, get: "{payment}/s", json_path: $, matches: "^x"}
"#;

fn scenario() -> Scenario {
    Scenario::parse("s.yaml", CHECKOUT).unwrap()
}

#[test]
fn a_scenario_is_read_into_typed_values() {
    let scenario = scenario();
    assert_eq!((scenario.name.as_str(), scenario.entry.turn(0).as_str()), ("checkout", "http://127.0.0.1:8080"));
    let [place, quote] = &scenario.requests[..] else { panic!("two requests") };
    let Call::Http { method, headers, body, .. } = &place.call else { panic!("an HTTP request") };
    assert_eq!((method.as_str(), headers.len(), body), ("POST", 1, &Body::Text(r#"{"key":"{key}"}"#.parse().unwrap())));
    assert_eq!((place.timeout, place.retry.attempts), (Duration::from_secs(1), 2));
    assert_eq!(place.retry.on, BTreeSet::from([RetryOn::Timeout, RetryOn::Status]));
    assert_eq!(place.expect.status, Some(200));
    let Call::Grpc { message, .. } = &quote.call else { panic!("a gRPC request") };
    assert_eq!(*message, Message::Bytes(b"hi".to_vec()));
    assert_eq!((quote.timeout, quote.retry.attempts), (Duration::from_secs(10), 1));
    assert_eq!(scenario.invariants[1].when, When::AfterAttempt(1));
}

#[test]
fn a_fault_is_read_checked_and_written_back() {
    let fault = TemporalFault::parse("f.yaml", LOST).unwrap();
    scenario().check(&fault).unwrap();
    assert_eq!(fault.expected_oracle(), OracleVerdict::Violated);
    assert_eq!(fault.plan.faults.len(), 2);
    let text = fault.to_yaml().unwrap();
    let again = TemporalFault::parse("g.yaml", &text).unwrap();
    assert_eq!(again, fault, "{text}");
    assert_eq!(again.to_yaml().unwrap(), text);
    assert!(
        text.starts_with("apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata:\n  name: lost-charge\n"),
        "{text}"
    );
}

#[test]
fn a_fault_replaces_or_adds_to_what_a_clean_round_must_show() {
    let scenario = scenario();
    let names = |fault: &TemporalFault| -> Vec<String> {
        scenario.invariants_under(Some(fault)).into_iter().map(|invariant| invariant.name.clone()).collect()
    };
    let also = TemporalFault::parse("f.yaml", LOST).unwrap();
    assert_eq!(names(&also), ["one charge", "charged once before the retry", "a shipment"]);
    assert_eq!(scenario.expectation_under(&scenario.requests[0], Some(&also)).status, Some(500));
    assert_eq!(scenario.expectation_under(&scenario.requests[0], None).status, Some(200));
    let instead = LOST
        .replace("    violates: [one charge]\n", "")
        .replace("    invariants:\n      also:\n        -", "    invariants:\n        -");
    assert_eq!(names(&TemporalFault::parse("f.yaml", &instead).unwrap()), ["a shipment"]);
    let silent = LOST.split("  expect:").next().unwrap();
    let silent = TemporalFault::parse("f.yaml", silent).unwrap();
    assert_eq!(names(&silent), ["one charge", "charged once before the retry"]);
    assert_eq!(silent.expected_oracle(), OracleVerdict::Held);
}

/// The message and place of the complaint about `original` with `from` replaced by `to`.
fn complaint<T>(
    parse: impl Fn(&str) -> Result<T, Located>,
    original: &str,
    from: &str,
    to: &str,
) -> (String, u32, String) {
    assert!(original.contains(from), "{from}");
    let text = original.replacen(from, to, 1);
    let error = parse(&text).err().unwrap_or_else(|| panic!("{to:?} was accepted"));
    let shown = error.to_string();
    let underlined = shown.lines().last().unwrap_or_default().to_owned();
    let excerpt = shown.lines().rev().nth(1).unwrap_or_default().to_owned();
    let at: String = excerpt.chars().zip(underlined.chars()).filter(|(_, mark)| *mark == '^').map(|(c, _)| c).collect();
    (error.message, error.line.unwrap_or_else(|| panic!("{shown} has no place")), at)
}

#[test]
fn every_complaint_about_a_scenario_says_what_was_expected_and_where() {
    let parse = |text: &str| Scenario::parse("s.yaml", text);
    for (from, to, message, line) in [
        ("kind: Scenario", "kind: Topology", "expected `kind: Scenario`, found `kind: Topology`", 2),
        ("name: checkout", "name: a b", "expected a name of the scenario of letters, digits", 3),
        ("entry: http", "entri: http", "unknown key `entri`, expected one of `entry`, `key`", 5),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "expected a base URL, `http://HOST:PORT`", 5),
        ("http://127.0.0.1:8080", "https://h", "expected an `http://` URL", 5),
        (
            "order-{random}",
            "order-{randon}",
            "unknown variable `{randon}`, expected one of `{random}`, `{n}`; did you mean `{random}`?",
            6,
        ),
        ("order-{random}", "order", "expected `{random}` or `{n}` in the key", 6),
        ("{payment:", "{key:", "expected a name of letters, digits, `-` and `_` other than `key`", 7),
        ("name: place-order", "name: quote", "expected each request's name once, found `quote` again", 14),
        ("method: POST", "method: post", "expected an HTTP method such as `POST`, found \"post\"", 10),
        ("\"/cart/checkout?k={key}\"", "cart", "expected a path that begins with `/`, found \"cart\"", 10),
        (
            "\"/cart/checkout?k={key}\"",
            "\"/cart/{kei}\"",
            "unknown variable `{kei}`, expected one of `{key}`, `{random}`, `{n}`, `{payment}`",
            10,
        ),
        ("\"/cart/checkout?k={key}\"", "\"/cart checkout\"", "expected a path of a URL", 10),
        ("content-type: app", "traceparent: app", "expected no `traceparent` here: the runner sets it", 10),
        ("content-type: app", "\"a b\": app", "expected the name of a header field, found \"a b\"", 10),
        ("timeout: 1s", "timeout: 1", "expected a duration with a unit, e.g. `1ms` or `1s`, found `1`", 11),
        ("timeout: 1s", "timeout: 0s", "expected a timeout above zero", 11),
        ("attempts: 2", "attempts: 0", "expected at least one attempt", 12),
        (
            "timeout, status]",
            "timeout, statis]",
            "unknown value `statis`, expected one of `timeout`, `transport`, `status`; did you mean `status`?",
            12,
        ),
        ("status: 200,", "status: 99,", "expected a status from 100 to 599, found 99", 13),
        ("status: 200,", "grpc_status: 0,", "expected no `grpc_status` for an HTTP request", 13),
        (
            "$.ok, equals: true",
            "$.ok",
            "expected exactly one of `equals`, `at_most`, `at_least`, `matches`, found none",
            13,
        ),
        ("json_path: $.ok", "json_path: ok", "expected a JSON path such as `$.count`, found \"ok\"", 13),
        ("shop.Quote/Get", "POST /x", "expected `package.Service/Method`, found \"POST /x\"", 15),
        ("aGk=", "a", "expected base64", 15),
        (
            "      grpc: {method: shop.Quote/Get, message: {base64: aGk=}, metadata: {x-key: \"{key}\"}}\n",
            "",
            "expected `http` or `grpc` for this request, found neither",
            14,
        ),
        ("after_round", "afterwards", "expected `after_round` or `after_attempt(n)`", 17),
        (
            "{payment}/ledgers",
            "{paymen}/ledgers",
            "unknown variable `{paymen}`, expected one of `{key}`, `{random}`, `{n}`, `{payment}`; did you mean `{payment}`?",
            17,
        ),
        ("{payment}/ledgers", "ledgers", "expected a base URL", 17),
        (
            "after_attempt(1), request",
            "after_round, request",
            "expected `request` only beside `when: after_attempt(n)`",
            18,
        ),
        (
            "after_attempt(1)",
            "after_attempt(3)",
            "expected an attempt that can be: no request is tried 3 times, at most 2",
            18,
        ),
        (
            "request: place-order",
            "request: placeorder",
            "unknown request `placeorder`, expected one of `place-order`, `quote`; did you mean `place-order`?",
            18,
        ),
        (
            "name: charged once before the retry",
            "name: one charge",
            "expected each invariant's name once, found `one charge` again",
            18,
        ),
    ] {
        let (found, at, _) = complaint(parse, CHECKOUT, from, to);
        assert!(found.starts_with(message), "{to:?}: {found}");
        assert_eq!(at, line, "{to:?}: {found}");
    }
    let none = CHECKOUT.split("  requests:").next().unwrap().to_owned() + "  requests: []\n";
    let error = Scenario::parse("s.yaml", &none).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.line, error.column),
        ("expected at least one request", Some(8), Some(13))
    );
}

#[test]
fn every_complaint_about_a_fault_says_what_was_expected_and_where() {
    let parse = |text: &str| TemporalFault::parse("f.yaml", text);
    for (from, to, message, line, at) in [
        ("k: 1,", "k: 0,", "expected `first` or a number from 1", 7, "k"),
        ("k: first", "k: last", "expected `first` or a number from 1", 13, "k"),
        ("phase: response,", "phase: response, at: {message: 2},", "expected no `post_effect` beside `at`", 7, "{"),
        ("phase: response,", "phase: response, at: head,", "expected no `post_effect` beside `at`", 7, "head"),
        (
            "phase: request}",
            "phase: request, at: {bytes: 9}}",
            "expected no `at`: it names a place in a response",
            13,
            "{",
        ),
        ("phase: request}", "phase: response, at: {message: 1}}", "expected `at: {bytes: …}` or `at: head`", 13, "{"),
        (
            "phase: request}",
            "phase: response, at: {bytes: 9}}",
            "expected a delay, a drop or a reset at this `at`",
            13,
            "{",
        ),
        ("phase: response,", "phase: request,", "expected `post_effect` only with `phase: response`", 7, "true"),
        ("phase: request}", "phase: request, outcome: ok}", "expected no `outcome`: a request has none", 13, "ok"),
        (
            "post_effect: true",
            "post_effect: true, outcome: error",
            "expected no `outcome: error` beside `post_effect`",
            7,
            "error",
        ),
        ("count: 2", "count: 0", "expected a count from 1", 10, "0"),
        ("count: 2", "count: 2, outcome: ok", "expected no `outcome`: request-sent has none", 10, "ok"),
        (
            "group:both",
            "group:bosh",
            "unknown group `bosh`, expected one of `both`; did you mean `both`?",
            10,
            "\"group:bosh\"",
        ),
        ("deadline: 1s", "deadline: 0s", "expected a deadline above zero", 11, "{"),
        ("unlimited", "0", "expected a number from 1 or `unlimited`, found 0", 12, "0"),
        (
            "{error: {status: 404, headers: {x-a: b}, body: gone}}",
            "release",
            "expected `hold` beside `release`",
            14,
            "release",
        ),
        ("fault: drop", "fault: dorp", "unknown value `dorp`, expected one of", 8, "fault"),
        ("status: 404", "status: 999", "expected a `status` from 200 to 599, found 999", 14, "{"),
        ("status: 404", "grpc_status: 5", "expected `status` and no gRPC status: cart GET /cart is HTTP", 14, "{"),
        ("x-a: b", "\"x a\": b", "expected a header field, found `x a: b`", 14, "{"),
        ("fault: drop", "fault: {error: {status: 500}}", "expected `grpc_status`, no `status` and no `body`", 8, "{"),
        ("[a x.Y/Z, b x.Y/Z]", "[]", "expected at least one Api in the group `both`", 15, "["),
        ("oracle: violated", "oracle: held", "expected `violates` only beside `oracle: violated`", 18, "one charge"),
        ("      also:", "      alos:", "unknown key `alos`, expected `also`", 21, "alos"),
        ("api: payment shop", "api: payment/shop", "expected `SERVICE OPERATION`", 7, "payment/shop.Payment/Charge"),
    ] {
        let (found, at_line, underlined) = complaint(parse, LOST, from, to);
        assert!(found.starts_with(message), "{to:?}: {found}");
        assert_eq!((at_line, underlined.as_str()), (line, at), "{to:?}: {found}");
    }
    let none = "apiVersion: aftershock.dev/v1alpha1\nkind: TemporalFault\nmetadata: {name: x}\nspec: {scenario: a, faults: []}\n";
    let twice = none.replace("faults: []", "cuts: [{caller: a, callee: b}, {caller: a, callee: b}]");
    let error = TemporalFault::parse("f.yaml", &twice).unwrap_err();
    assert_eq!((error.message.as_str(), error.line), ("expected each channel once, found a → b again", Some(4)));
    let error = TemporalFault::parse("f.yaml", &none.replace(", faults: []", "")).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.line),
        ("expected at least one fault, or a channel under `cuts`", Some(4))
    );
    let error = TemporalFault::parse("f.yaml", none).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.line),
        ("expected at least one fault, or a channel under `cuts`", Some(4))
    );
}

#[test]
fn a_fault_for_another_scenario_or_of_unknown_names_is_refused_in_the_faults_file() {
    let scenario = scenario();
    let check = |text: &str| TemporalFault::parse("f.yaml", text).and_then(|fault| scenario.check(&fault));
    for (from, to, message, line) in [
        ("scenario: checkout", "scenario: chekout", "expected the scenario `checkout`, found `chekout`", 5),
        (
            "{place-order: {",
            "{plase-order: {",
            "unknown request `plase-order`, expected one of `place-order`, `quote`; did you mean `place-order`?",
            19,
        ),
        (
            "{place-order: {status: 500}",
            "{place-order: {grpc_status: 5}",
            "expected no `grpc_status` for an HTTP request",
            19,
        ),
        ("{payment}/s", "{shipping}/s", "unknown variable `{shipping}`", 22),
        ("name: a shipment", "name: one charge", "expected each invariant's name once, found `one charge` again", 22),
        (
            "violates: [one charge]",
            "violates: [one charges]",
            "unknown invariant `one charges`, expected one of `one charge`",
            18,
        ),
    ] {
        let (found, at, _) = complaint(check, LOST, from, to);
        assert!(found.starts_with(message), "{to:?}: {found}");
        assert_eq!(at, line, "{to:?}");
    }
}

#[test]
fn a_scenario_is_put_elsewhere_by_name() {
    let mut scenario = scenario();
    scenario
        .relocate(&["http://127.0.0.2:1".to_owned()], &[("payment".to_owned(), "http://127.0.0.3:2/x/".to_owned())])
        .unwrap();
    assert_eq!(
        (scenario.entry.turn(0).as_str(), scenario.ledgers["payment"].as_str()),
        ("http://127.0.0.2:1", "http://127.0.0.3:2/x")
    );
    let error = scenario.relocate(&[], &[("paymnt".to_owned(), "http://h".to_owned())]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "scenario \"checkout\" has no ledger or variable \"paymnt\"; did you mean \"payment\"?"
    );
    assert!(
        scenario.relocate(&["nowhere".to_owned()], &[]).unwrap_err().to_string().starts_with("expected a base URL")
    );
}

/// The files of the repository, by kind.
fn repository(kind: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let name = path.display().to_string();
                if yaml::kind(&name, &text).unwrap_or_else(|error| panic!("{error}")) == kind {
                    files.push((name, text));
                }
            }
        }
    }
    files
}

#[test]
fn every_scenario_and_fault_of_the_repository_is_valid_and_they_fit_each_other() {
    let parse =
        |(file, text): (String, String)| Scenario::parse(&file, &text).unwrap_or_else(|error| panic!("{error}"));
    let scenarios: Vec<Scenario> = repository(SCENARIO).into_iter().map(parse).collect();
    for (file, text) in repository(TEMPORAL_FAULT) {
        let fault = TemporalFault::parse(&file, &text).unwrap_or_else(|error| panic!("{error}"));
        let scenario = scenarios.iter().find(|scenario| scenario.name == *fault.scenario);
        let scenario = scenario.unwrap_or_else(|| panic!("{file} is for the unknown scenario {}", fault.scenario));
        scenario.check(&fault).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(TemporalFault::parse("again.yaml", &fault.to_yaml().unwrap()).unwrap(), fault, "{file}");
    }
}

#[test]
fn the_schemas_name_every_key_and_admit_no_other() {
    for (schema, keys) in [
        (serde_json::to_value(schemars::schema_for!(ScenarioFile)).unwrap(), ["requests", "after_attempt", "base64"]),
        (
            serde_json::to_value(schemars::schema_for!(TemporalFaultFile)).unwrap(),
            ["max_injections", "post_effect", "also"],
        ),
    ] {
        assert_eq!(schema["additionalProperties"], false);
        let text = schema.to_string();
        for key in keys {
            assert!(text.contains(key), "{key}");
        }
    }
}

mod properties {
    use aftershock_core::event::{Event, EventKind, OutcomeFilter};
    use aftershock_core::plan::{
        Atom, Channel, Fault, Hold, MaxInjections, Occurrence, Pattern, Phase, Plan, Tfic, Unlimited,
    };

    use super::*;

    prop_compose! {
        fn faults()(k in 0..4_u32, post_effect: bool, delay in 0..5_000_u64, fault in 0..4_u8,
                    atoms in proptest::collection::vec((0..4_usize, 1..5_u64, any::<bool>()), 0..4),
                    hold in proptest::option::of(1..9_000_u64), max in 0..3_u32, group: bool) -> Tfic {
            let api = if group { "group:g" } else { "pay x.Y/Z" };
            let kinds = [EventKind::RequestSent, EventKind::RequestReceived, EventKind::ResponseSent, EventKind::ResponseReceived];
            let atom = |(kind, count, ok): (usize, u64, bool)| {
                let event = kinds[kind];
                let outcome = if ok && event.is_response() { OutcomeFilter::Ok } else { OutcomeFilter::Any };
                let caller = ok.then(|| "true".parse().unwrap());
                Atom::new(Event { event, api: api.parse().unwrap(), caller, outcome }, count)
            };
            Tfic {
                target: Target {
                    caller: None,
                    api: api.parse().unwrap(),
                    k: if k == 0 { Occurrence::First } else { Occurrence::Number(k) },
                    phase: if post_effect { Phase::Response } else { Phase::Request },
                    outcome: OutcomeFilter::Any,
                    at: None,
                    post_effect,
                },
                fault: match fault {
                    0 => Fault::Drop,
                    1 => Fault::Reset(Default::default()),
                    2 => Fault::Abort,
                    _ => Fault::Delay(Duration::from_millis(delay).into()),
                },
                pattern: post_effect.then_some(Pattern::PostEffect),
                guard: Guard { after: atoms.into_iter().map(atom).collect() },
                hold: hold.map(|deadline| Hold { deadline: Duration::from_millis(deadline).into() }),
                max_injections: match max {
                    0 => MaxInjections::Unlimited(Unlimited::Unlimited),
                    n => MaxInjections::Limited(n),
                },
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(faults in proptest::collection::vec(faults(), 0..4), name in "[a-z0-9.-]{1,12}",
                                        text in "\\PC{1,40}", status in 100..600_u16,
                                        cuts in proptest::collection::btree_set(("[a-c]", "[a-c]"), 0..3)) {
            let groups = BTreeMap::from([("g".to_owned(), BTreeSet::from(["a b/c".parse().unwrap(), "on GET /{id}".parse().unwrap()]))]);
            prop_assume!(!text.trim().is_empty());
            prop_assume!(!faults.is_empty() || !cuts.is_empty());
            let invariant = serde_json::json!({"name": text, "get": "http://h/", "json_path": "$", "equals": {"a": [text, 1, null, true]}});
            let expect = FaultExpectation {
                requests: BTreeMap::from([("r".to_owned(), Expectation { status: Some(status), ..Expectation::default() }.into())]),
                invariants: Declared::Instead(vec![Spanned::from(serde_json::from_value::<Invariant>(invariant).unwrap())]),
                ..FaultExpectation::default()
            };
            let channel = |(caller, callee): (String, String)| Channel { caller: caller.parse().unwrap(), callee: callee.parse().unwrap() };
            let cuts = cuts.into_iter().map(channel).collect();
            let fault = TemporalFault::new(&name, &text, Plan { faults, groups, cuts }, expect);
            let yaml = fault.to_yaml().unwrap();
            let again = TemporalFault::parse("x.yaml", &yaml).map_err(|error| TestCaseError::fail(format!("{error}\n{yaml}")))?;
            prop_assert_eq!(again, fault);
        }
    }
}
