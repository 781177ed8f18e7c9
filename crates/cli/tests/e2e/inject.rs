//! Record, generate, inject, explain, against a lab started as a user starts it.

use crate::support::{System, alone, run};

const SHOP: &str = "topologies/online-boutique.yaml";
const CHECKOUT: &str = "scenarios/online-boutique/checkout.yaml";
const LOST_CHARGE: &str = "scenarios/online-boutique/lost-charge.yaml";

/// A fault at an Api, as `generate` writes it with these arguments, injected: the report of `inject`.
fn generated(system: &System, scenario: &str, arguments: &[&str], code: i32) -> serde_json::Value {
    let out = system.folder.path().join("generated.yaml");
    let out = out.to_str().unwrap();
    let mut generate = vec!["generate", scenario, "--out", out];
    generate.extend(arguments);
    system.run(&generate).expect(0);
    system.run(&["inject", out, "--scenario", scenario, "--format", "json"]).expect(code).json()
}

#[test]
fn faults_at_the_shop_leave_the_charges_they_should() {
    let system = System::start(SHOP, &[]);
    let scenario = system.file(CHECKOUT, |text| text);
    let recorded = system.run(&["record", &scenario, "--rounds", "10"]).expect(0);
    // Three of the twenty calls carry no context, and with them the only calls to Convert.
    assert!(recorded.stdout.contains("17 of 20 calls and 11 of 12 Apis"), "{}", recorded.stdout);
    let convert = "checkoutservice calls currencyservice hipstershop.CurrencyService/Convert 3 times without";
    assert!(recorded.stdout.contains(convert), "{}", recorded.stdout);

    // Charged, the answer lost: exactly one charge before the retry, and two in the end.
    let fault = system.file(LOST_CHARGE, |text| text);
    let report =
        system.run(&["inject", &fault, "--scenario", &scenario, "--trials", "3", "--format", "json"]).expect(0);
    let report = report.json();
    assert_eq!((&report["injected"], &report["as_declared"]), (&3.into(), &3.into()), "{report:#}");
    for round in report["rounds"].as_array().unwrap() {
        assert_eq!(system.ledger(8, "charges", round["key"].as_str().unwrap()), 2);
    }

    // The request refused: nothing was charged by the first attempt, and the checkout says so.
    let none_before = |text: String| {
        let also = text.find("  expect:").unwrap();
        text[..also]
            .replace("phase: response", "phase: request")
            .replace("        post_effect: true\n", "")
            .replace("fault: drop", "fault: abort")
            .replace("      pattern: post-effect\n", "")
            + "  expect:\n    oracle: unavailable\n    invariants:\n      also:\n        - {name: nothing charged, when: \
               after_attempt(1), get: \"{payment}/ledgers/charges?key={key}\", json_path: $.count, equals: 0}\n"
    };
    let fault = system.file(LOST_CHARGE, none_before);
    let once = system.file(CHECKOUT, |text| {
        text.replace("      retry: {attempts: 2, on: [timeout, transport]}\n", "").replace("equals: 1}", "at_most: 1}")
    });
    let report = system.run(&["inject", &fault, "--scenario", &once, "--format", "json"]).expect(0).json();
    assert_eq!(report["injected"], 1, "{report:#}");
    assert_eq!(system.ledger(8, "charges", report["rounds"][0]["key"].as_str().unwrap()), 0);

    // The answer of PlaceOrder, and that of the entry itself: the order was placed, the client tries again.
    for arguments in [
        ["--api", "PlaceOrder", "--pattern", "post-effect", "--expect", "violated"],
        ["--api", "POST /cart/checkout", "--pattern", "post-effect", "--expect", "violated"],
    ] {
        let report = generated(&system, &scenario, &arguments, 0);
        assert_eq!((&report["injected"], &report["as_declared"]), (&1.into(), &1.into()), "{arguments:?}: {report:#}");
        assert_eq!(system.ledger(8, "charges", report["rounds"][0]["key"].as_str().unwrap()), 2, "{arguments:?}");
    }

    // An undeclared finding ends with 2, and says what was found.
    let report = generated(&system, &scenario, &["--api", "Charge", "--pattern", "post-effect"], 2);
    assert_eq!((&report["injected"], &report["as_declared"]), (&1.into(), &0.into()), "{report:#}");

    let explained = system.run(&["explain", &fault, "--scenario", &scenario]).expect(0);
    assert!(explained.stdout.contains("hipstershop.PaymentService/Charge"), "{}", explained.stdout);
}

#[test]
fn a_plan_that_cannot_work_is_refused_before_anything_is_sent() {
    let system = System::start(SHOP, &[]);
    let scenario = system.file(CHECKOUT, |text| text);
    system.run(&["record", &scenario, "--rounds", "2"]).expect(0);
    let before = system.run(&["rounds", "--format", "json"]).expect(0).json();
    let guard = "      guard: {after: [{event: response-received, api: shippingservice hipstershop.ShippingService/GetQuoth, count: 1}]}\n";
    for (from, to, named) in [
        ("PaymentService/Charge", "PaymentService/Refund", "PaymentService/Charge"),
        ("paymentservice hipstershop", "paymentservise hipstershop", "paymentservice"),
        ("caller: checkoutservice", "caller: emailservice", "checkoutservice"),
        ("k: 1", "k: 2", "Charge"),
        ("      pattern: post-effect\n", guard, "GetQuote"),
    ] {
        let fault = system.file(LOST_CHARGE, |text| {
            assert!(text.contains(from));
            text.replacen(from, to, 1)
        });
        let refused = system.run(&["inject", &fault, "--scenario", &scenario]).expect(1);
        assert!(refused.stderr.contains(named), "{to}: {named} in:\n{}", refused.stderr);
    }
    let after = system.run(&["rounds", "--format", "json"]).expect(0).json();
    assert_eq!(before, after, "no round was started");
}

#[test]
fn a_clean_run_that_fails_its_own_oracle_stops_with_the_difference() {
    let system = System::start("topologies/fig2-patterns.yaml", &[]);
    let scenario =
        system.file("scenarios/fig2-patterns/checkout.yaml", |text| text.replace("equals: 1}", "equals: 7}"));
    let stopped = system.run(&["record", &scenario]);
    assert_ne!(stopped.code, Some(0));
    for said in ["one charge per order", "7", "1"] {
        assert!(stopped.stderr.contains(said), "{said} in:\n{}", stopped.stderr);
    }
}

#[test]
fn the_cases_hold_with_another_correlation_id() {
    // Seconds each: the whole evaluation with more trials is `aftershock lab evaluate`.
    let _alone = alone();
    let finished =
        run(&["lab", "evaluate", "--propagation", "uber", "--trials", "2", "--rounds", "3", "--format", "json"]);
    let report = finished.expect(0).json();
    for row in report["rows"].as_array().unwrap() {
        assert_eq!((&row["injected"], &row["disagree"]), (&2.into(), &0.into()), "{report:#}");
    }
}
