//! Topologies that run: real processes and sockets, no sidecars, faults made by a hop of the test's own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aftershock_lab::events::{Failure, Kind, Nanoseconds, Outcome};
use aftershock_lab::truth::{Call, Fate, Log, Question};
use aftershock_lab::{Launcher, Options, Propagation, RunningLab, Topology, up};

use crate::client::{self, get, post, request, send};
use crate::hop::{Act, Hop};
use crate::topology_files::shipped;

pub(crate) fn service_launcher() -> Launcher {
    Launcher { program: env!("CARGO_BIN_EXE_aftershock-lab-service").into(), args: Vec::new() }
}

pub(crate) async fn start(topology: Topology) -> RunningLab {
    up(topology, &Options::new(service_launcher())).await.unwrap()
}

/// Starts `topology` with all calls of `service` going through `hop`.
async fn start_with_hop(topology: Topology, service: &str, hop: &Hop, propagation: Option<Propagation>) -> RunningLab {
    let detours = BTreeMap::from([(service.to_owned(), hop.address)]);
    let lab = up(topology, &Options { detours, propagation, ..Options::new(service_launcher()) }).await.unwrap();
    hop.send_to(lab.address(service).unwrap());
    lab
}

async fn ask(lab: &RunningLab, request: &str, target: &str) -> (u16, serde_json::Value) {
    let api = lab.topology().api(&lab.topology().request(request).unwrap().api).unwrap();
    let method = api.operation.to_string().split(' ').next().unwrap().to_owned();
    send(lab.entry(request).unwrap(), client::request(&method, target, &[])).await
}

/// The logs once `done` holds of them. What is waited for happens by itself: nobody is told when.
async fn log_when(lab: &RunningLab, key: &str, done: impl Fn(&Log) -> bool) -> Log {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let log = lab.events(key).await.unwrap();
        if done(&log) {
            return log;
        }
        assert!(Instant::now() < deadline, "still not so: {:#?}", log.calls());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn one<'a>(log: &'a Log, api: &'a str) -> &'a Call {
    let calls: Vec<&Call> = log.calls_of(api).collect();
    assert_eq!(calls.len(), 1, "{api}: {calls:#?}");
    calls[0]
}

/// How long the messages of a call that arrived were under way, in nanoseconds.
fn transits(call: &Call) -> Vec<u64> {
    let request = call.request_sent.zip(call.request_received);
    let response = call.response_sent.as_ref().zip(call.response_received.as_ref()).map(|(s, r)| (s.at, r.at));
    request.into_iter().chain(response).map(|(sent, arrived)| arrived.0.saturating_sub(sent.0)).collect()
}

fn calls_by_api(log: &Log) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in log.calls().iter().filter(|call| call.parent.is_some()) {
        *counts.entry(call.api.clone()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn every_request_of_online_boutique_makes_its_calls_and_its_effects() {
    let lab = start(shipped("online-boutique")).await;
    // (request, target, status, ledgers: carts, cleared carts, charges, shipments, emails)
    let cases = [
        ("home", "/", 200, [0, 0, 0, 0, 0]),
        ("product_page", "/product/OLJCESPC7Z", 200, [0, 0, 0, 0, 0]),
        ("cart_page", "/cart", 200, [0, 0, 0, 0, 0]),
        ("add_to_cart", "/cart", 302, [1, 0, 0, 0, 0]),
        ("checkout", "/cart/checkout", 200, [0, 1, 1, 1, 1]),
        ("checkout_1", "/cart/checkout", 200, [0, 1, 1, 1, 1]),
    ];
    assert_eq!(cases.len(), lab.topology().requests().len());
    for (name, target, status, [carts, cleared, charges, shipments, emails]) in cases {
        let asked = lab.topology().request(name).unwrap().clone();
        let overrides: String = asked.overrides.iter().map(|(name, value)| format!("&{name}={value}")).collect();
        let key = format!("{name}-key");
        let (found, body) = ask(&lab, name, &format!("{target}?key={key}{overrides}")).await;
        assert_eq!(found, status, "{name}: {body}");
        assert_eq!(body["key"], key.as_str());

        let cart = lab.ledger("carts", &key).await.unwrap();
        assert_eq!((cart.count, cart.cleared), (carts, cleared), "{name}");
        for (ledger, count) in [("charges", charges), ("shipments", shipments), ("emails", emails)] {
            assert_eq!(lab.ledger(ledger, &key).await.unwrap().count, count, "{name} {ledger}");
        }

        let log = lab.events(&key).await.unwrap();
        assert!(log.is_complete() && log.faulted().next().is_none(), "{name}");
        let mut expected = BTreeMap::new();
        for call in lab.topology().expand(&asked.api, &asked.params).unwrap() {
            *expected.entry(call.api).or_default() += 1;
        }
        assert_eq!(calls_by_api(&log), expected, "{name}");
    }
    lab.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn sequential_steps_are_sequential_and_answers_reach_the_calls_made_of_them() {
    let lab = start(shipped("online-boutique")).await;
    assert_eq!(post(lab.entry("checkout").unwrap(), "/cart/checkout?key=k").await.0, 200);
    let log = lab.events("k").await.unwrap();
    let made: Vec<&Call> = log.calls().iter().filter(|call| call.caller == "checkoutservice").collect();
    let order: Vec<&str> = made.iter().map(|call| call.api.as_str()).collect();
    assert_eq!(
        order,
        [
            "GetCart",
            "GetProduct",
            "Convert",
            "GetProduct",
            "Convert",
            "GetQuote",
            "Convert",
            "Charge",
            "ShipOrder",
            "EmptyCart",
            "SendOrderConfirmation"
        ]
    );
    for pair in made.windows(2) {
        let received = pair[0].response_received.as_ref().unwrap().at;
        assert!(received <= pair[1].request_sent.unwrap(), "{} before {}", pair[0], pair[1]);
    }
    let charge = one(&log, "Charge");
    let sent = charge.response_sent.as_ref().unwrap();
    assert_eq!(charge.effects.len(), 1);
    assert!(charge.effects[0].0 <= sent.at, "the charge is durable before the answer is sent");
    assert_eq!(log.execution(charge).api, "checkout");
}

#[tokio::test]
async fn a_refused_sign_up_fails_and_the_losing_branch_creates_the_user_all_the_same() {
    let lab = start(shipped("fig2-patterns")).await;
    let (status, body) = post(lab.entry("signup").unwrap(), "/signup?key=refuse-7").await;
    assert_eq!(status, 500, "{body}");
    assert!(body["error"].as_str().unwrap().contains("FAILED_PRECONDITION"), "{body}");
    let log = log_when(&lab, "refuse-7", Log::is_complete).await;
    let answered = one(&log, "post_signup").response_sent.as_ref().unwrap().at;
    assert!(one(&log, "CreateUser").response_received.as_ref().unwrap().at > answered, "it ran on");
    assert_eq!(one(&log, "CreateUser").fate(), Fate::Whole);
    assert_eq!(lab.ledger("users", "refuse-7").await.unwrap().count, 1);
    log.received_in_order("signup", "RiskCheck", "CreateUser").unwrap_err();
    log.received_in_order("signup", "CreateUser", "RiskCheck").unwrap_err();

    let (status, _) = post(lab.entry("signup").unwrap(), "/signup?key=good-7").await;
    assert_eq!(status, 200, "Risk refuses by key only");
}

#[tokio::test]
async fn a_late_refusal_comes_after_the_success_was_told() {
    let hop = Hop::start(|_, _| Act::DelayAnswer(Duration::from_millis(200))).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "risk", &hop, None).await;
    let (status, body) = post(lab.entry("signup").unwrap(), "/signup?key=refuse-1").await;
    assert_eq!(status, 200, "{body}");
    let log = log_when(&lab, "refuse-1", Log::is_complete).await;
    log.received_in_order("signup", "CreateUser", "RiskCheck").unwrap();
    let risk = one(&log, "RiskCheck").response_received.clone().unwrap();
    assert_eq!((risk.outcome, risk.status.as_str()), (Outcome::Error, "FAILED_PRECONDITION"));
    assert!(risk.at > one(&log, "post_signup").response_sent.as_ref().unwrap().at);
}

#[tokio::test]
async fn an_unsafe_retry_after_a_lost_answer_charges_twice() {
    let hop = Hop::start(|_, number| if number == 1 { Act::LoseAnswer } else { Act::Pass }).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "payment", &hop, None).await;
    let started = Instant::now();
    let (status, body) = post(lab.entry("checkout").unwrap(), "/checkout?key=k").await;
    assert_eq!(status, 200, "{body}");
    assert!(started.elapsed() >= Duration::from_secs(1), "the first attempt had its whole timeout");
    assert_eq!(lab.ledger("charges", "k").await.unwrap().count, 2);
    let log = lab.events("k").await.unwrap();
    let lost = log.lost_after_effect("ChargeCard", "charges").unwrap();
    assert_eq!((lost.attempt, lost.failed.unwrap().1), (1, Failure::Hang));
    assert_eq!(log.calls_of("ChargeCard").map(|call| call.attempt).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(hop.connections(), 1, "both attempts on the one connection");
    assert!(hop.seen().iter().all(|(_, headers)| headers["grpc-timeout"] == "1000m"));
}

#[tokio::test]
async fn after_its_one_retry_a_charge_is_given_up() {
    let hop = Hop::start(|_, _| Act::LoseAnswer).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "payment", &hop, None).await;
    // The gateway gives up after 2 s, just when checkout does: which is first is open, but nobody charges again.
    let (status, _) = post(lab.entry("checkout").unwrap(), "/checkout?key=k").await;
    assert_eq!(status, 500);
    let log = log_when(&lab, "k", Log::is_complete).await;
    assert_eq!(log.calls_of("ChargeCard").count(), 2);
    assert_eq!(lab.ledger("charges", "k").await.unwrap().count, 2);
}

#[tokio::test]
async fn the_page_waits_for_all_branches_and_hides_a_lost_one() {
    let hop = Hop::start(|_, number| if number == 3 { Act::LoseAnswer } else { Act::Pass }).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "product", &hop, None).await;
    let started = Instant::now();
    let (status, _) = get(lab.entry("page").unwrap(), "/page?key=k").await;
    assert_eq!(status, 200);
    assert!(started.elapsed() >= Duration::from_secs(2), "the lost branch had the gateway's timeout");
    let log = lab.events("k").await.unwrap();
    let lost = log.only_fault("GetProduct", &Fate::ResponseLost).unwrap();
    let place = log.earlier_answers(lost) + 1;
    log.lost_answer("GetProduct", place).unwrap();
    log.lost_answer("GetProduct", place + 1).unwrap_err();
}

#[tokio::test]
async fn concurrent_calls_are_answered_in_the_order_of_the_business_key() {
    let lab = start(shipped("fig2-patterns")).await;
    let address = lab.entry("page").unwrap();
    let mut orders = std::collections::BTreeSet::new();
    for key in (0..8).map(|key| format!("page-{key}")) {
        let twice = [(), ()].map(|()| key.clone());
        let mut seen = Vec::new();
        for (run, key) in twice.iter().enumerate() {
            assert_eq!(get(address, &format!("/page?key={key}")).await.0, 200);
            let log = lab.events(key).await.unwrap();
            let mut calls: Vec<&Call> = log.calls_of("GetProduct").skip(4 * run).collect();
            assert_eq!(calls.len(), 4);
            let started = calls.iter().map(|call| call.request_sent.unwrap()).max().unwrap();
            calls.sort_by_key(|call| call.response_sent.as_ref().unwrap().at);
            assert!(started < calls[0].response_sent.as_ref().unwrap().at, "all four run at the same time");
            for (place, call) in calls.iter().enumerate() {
                assert_eq!(log.earlier_answers(call), place);
            }
            seen.push(calls.iter().map(|call| call.index).collect::<Vec<_>>());
        }
        assert_eq!(seen[0], seen[1], "the order depends on the key alone");
        orders.insert(seen.remove(0));
    }
    assert!(orders.len() > 3, "eight keys give several orders: {orders:?}");
}

#[tokio::test]
async fn a_call_with_a_timeout_of_its_own_is_given_up_and_ignored() {
    let hop = Hop::start(|_, _| Act::HoldRequest).await;
    let lab = start_with_hop(shipped("online-boutique"), "adservice", &hop, None).await;
    let started = Instant::now();
    assert_eq!(get(lab.entry("home").unwrap(), "/?key=k").await.0, 200);
    assert!(started.elapsed() >= Duration::from_millis(100));
    let log = lab.events("k").await.unwrap();
    let ads = one(&log, "GetAds");
    assert_eq!((ads.fate(), ads.failed.unwrap().1), (Fate::RequestLost, Failure::Hang));
    assert_eq!(hop.seen()[0].1["grpc-timeout"], "100m");
}

#[tokio::test]
async fn an_error_in_the_recommendations_hides_the_block_and_nothing_else() {
    // Nobody listens at the detour: a refused connection.
    let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let detours = BTreeMap::from([("recommendationservice".to_owned(), refused)]);
    let lab = up(shipped("online-boutique"), &Options { detours, ..Options::new(service_launcher()) }).await.unwrap();
    assert_eq!(get(lab.entry("product_page").unwrap(), "/product/1?key=k").await.0, 200);
    let log = lab.events("k").await.unwrap();
    let failed = one(&log, "ListRecommendations");
    assert_eq!((failed.fate(), failed.failed.unwrap().1), (Fate::RequestLost, Failure::Transport));
    let frontend_products = log.calls_of("GetProduct").filter(|call| call.caller == "frontend").count();
    assert_eq!(frontend_products, 1, "the page's own product only");
    assert_eq!(log.calls_of("GetAds").count(), 1);
}

#[tokio::test]
async fn a_failed_step_answers_what_the_file_says_and_stops() {
    let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let detours = BTreeMap::from([("shippingservice".to_owned(), refused)]);
    let lab = up(shipped("online-boutique"), &Options { detours, ..Options::new(service_launcher()) }).await.unwrap();
    let (status, body) = post(lab.entry("checkout").unwrap(), "/cart/checkout?key=k").await;
    assert_eq!(status, 500);
    assert!(body["error"].as_str().unwrap().starts_with("PlaceOrder: INTERNAL, GetQuote:"), "{body}");
    let log = lab.events("k").await.unwrap();
    assert_eq!(one(&log, "PlaceOrder").response_received.as_ref().unwrap().status, "INTERNAL");
    assert_eq!(log.calls_of("Charge").count(), 0);
    assert_eq!(lab.ledger("charges", "k").await.unwrap().count, 0);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_what_is_in_progress() {
    let hop = Hop::start(|method, _| if method == "Charge" { Act::LoseAnswer } else { Act::Pass }).await;
    let lab = start_with_hop(shipped("online-boutique"), "paymentservice", &hop, None).await;
    let asked = tokio::spawn({
        let address = lab.entry("checkout").unwrap();
        async move { post(address, "/cart/checkout?key=k").await }
    });
    // An answer is lost only if it was under way for longer than any that arrived.
    log_when(&lab, "k", |log| {
        let slowest = log.calls().iter().flat_map(transits).max().unwrap_or(0);
        let answered = log.calls_of("Charge").filter_map(|call| call.response_sent.as_ref());
        answered.map(|sent| Nanoseconds::now().0 - sent.at.0).any(|under_way| under_way > slowest)
    })
    .await;
    asked.abort();
    let log = log_when(&lab, "k", |log| {
        log.calls_of("Charge").all(|call| call.failed.is_some())
            && log.calls_of("checkout").all(|call| call.handling_cancelled.is_some())
    })
    .await;
    assert_eq!(one(&log, "Charge").failed.unwrap().1, Failure::Cancelled);
    assert_eq!(one(&log, "PlaceOrder").failed.unwrap().1, Failure::Cancelled);
    assert!(one(&log, "PlaceOrder").handling_cancelled.is_some());
    assert_eq!(one(&log, "PlaceOrder").fate(), Fate::LeftByCaller);
    assert_eq!(log.lost_after_effect("Charge", "charges").unwrap().api, "Charge");
    assert_eq!(log.calls_of("ShipOrder").count(), 0);
    assert_eq!(lab.ledger("charges", "k").await.unwrap().count, 1);
}

#[tokio::test]
async fn a_call_without_context_outlives_the_request_that_caused_it() {
    let hop = Hop::start(|method, _| match method {
        "Convert" => Act::DelayAnswer(Duration::from_millis(300)),
        _ => Act::Pass,
    })
    .await;
    let lab = start_with_hop(shipped("online-boutique"), "currencyservice", &hop, None).await;
    let asked = tokio::spawn({
        let address = lab.entry("checkout").unwrap();
        async move { post(address, "/cart/checkout?key=k").await }
    });
    log_when(&lab, "k", |log| log.calls_of("Convert").any(|call| call.response_sent.is_some())).await;
    asked.abort();
    let log = log_when(&lab, "k", |log| log.calls_of("Convert").all(|call| call.response_received.is_some())).await;
    assert_eq!(one(&log, "Convert").fate(), Fate::Whole);
    assert_eq!(one(&log, "PlaceOrder").failed.unwrap().1, Failure::Cancelled);
    assert_eq!(log.calls_of("GetQuote").count(), 0, "the handler itself went no further");
}

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

async fn headers_at_hop(propagation: Option<Propagation>, service: &str) -> Vec<(String, http::HeaderMap)> {
    let hop = Hop::start(|_, _| Act::Pass).await;
    let lab = start_with_hop(shipped("online-boutique"), service, &hop, propagation).await;
    let traceparent = format!("00-{TRACE_ID}-b7ad6b7169203331-01");
    let headers = [
        ("traceparent", traceparent.as_str()),
        ("tracestate", "aft=1-a-b-0-c,vendor=x"),
        ("uber-trace-id", "abc:def:0:1"),
        ("uberctx-aft", "member"),
        ("x-other", "never"),
    ];
    let asked = request("POST", "/cart/checkout?key=k", &headers);
    assert_eq!(send(lab.entry("checkout").unwrap(), asked).await.0, 200);
    hop.seen()
}

#[tokio::test]
async fn shipped_propagation_hands_on_w3c_context_with_a_span_of_its_own() {
    let seen = headers_at_hop(None, "paymentservice").await;
    let [(method, headers)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(method, "Charge");
    let parts: Vec<&str> = headers["traceparent"].to_str().unwrap().split('-').collect();
    assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE_ID, "01"));
    assert_ne!(parts[2], "b7ad6b7169203331");
    assert_eq!(headers["tracestate"], "aft=1-a-b-0-c,vendor=x");
    assert!(!headers.contains_key("uber-trace-id") && !headers.contains_key("x-other"));
}

#[tokio::test]
async fn calls_from_an_empty_context_carry_no_trace_headers() {
    let seen = headers_at_hop(None, "currencyservice").await;
    let with_context = |wanted: bool| {
        seen.iter()
            .filter(|(_, headers)| headers.contains_key("traceparent") == wanted)
            .map(|(m, _)| m.as_str())
            .collect()
    };
    let (without, with): (Vec<&str>, Vec<&str>) = (with_context(false), with_context(true));
    assert_eq!(without, ["Convert", "Convert", "Convert"]);
    assert_eq!(with, ["GetSupportedCurrencies"]);
}

#[tokio::test]
async fn propagation_can_be_replaced_for_all_services() {
    let seen = headers_at_hop(Some(Propagation::Uber), "paymentservice").await;
    let headers = &seen[0].1;
    assert_eq!(
        (&headers["uber-trace-id"], &headers["uberctx-aft"]),
        (&"abc:def:0:1".parse().unwrap(), &"member".parse().unwrap())
    );
    assert!(!headers.contains_key("traceparent") && !headers.contains_key("tracestate"));

    let seen = headers_at_hop(Some(Propagation::None), "paymentservice").await;
    let names: Vec<&str> = seen[0].1.keys().map(http::HeaderName::as_str).collect();
    assert!(!names.iter().any(|name| name.contains("trace") || name.starts_with("uber")), "{names:?}");
}

#[tokio::test]
async fn one_connection_serves_all_calls_and_is_made_again_when_it_broke() {
    let hop = Hop::start(|_, _| Act::Pass).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "product", &hop, None).await;
    let upstream = lab.address("product").unwrap();
    let page = lab.entry("page").unwrap();
    for key in ["a", "b", "c"] {
        assert_eq!(get(page, &format!("/page?key={key}")).await.0, 200);
    }
    assert_eq!((hop.connections(), hop.seen().len()), (1, 12));

    let address = hop.address;
    drop(hop);
    // The connection ends when the hop's task does, which is not at once.
    log_when(&lab, "a", |_| std::net::TcpListener::bind(address).is_ok()).await;
    let hop = Hop::start_at(address, |_, _| Act::Pass).await;
    hop.send_to(upstream);
    assert_eq!(get(page, "/page?key=d").await.0, 200);
    let log = lab.events("d").await.unwrap();
    assert_eq!(log.calls_of("GetProduct").filter(|call| call.fate() == Fate::Whole).count(), 4);
    assert_eq!((hop.connections(), hop.seen().len()), (1, 4));
}

#[tokio::test]
async fn requests_without_key_or_operation_are_refused_and_leave_no_trace() {
    let lab = start(shipped("online-boutique")).await;
    let frontend = lab.address("frontend").unwrap();
    let (status, body) = get(frontend, "/").await;
    assert_eq!(status, 400);
    assert!(body["error"].as_str().unwrap().contains("business key"), "{body}");
    let (status, body) = get(frontend, "/nowhere?key=k").await;
    assert_eq!((status, body["error"].as_str().unwrap()), (404, "frontend has no operation GET /nowhere"));
    assert_eq!(get(frontend, "/?key=k&cart_items=many").await.0, 400);
    assert!(lab.events("k").await.unwrap().events().is_empty());
}

#[tokio::test]
async fn the_state_of_a_service_is_read_over_http() {
    let lab = start(shipped("online-boutique")).await;
    let admin = lab.admin("paymentservice").unwrap();
    assert_eq!(post(lab.entry("checkout").unwrap(), "/cart/checkout?key=a%20b").await.0, 200);
    let (status, ledger) = get(admin, "/ledgers/charges?key=a%20b").await;
    assert_eq!((status, &ledger["count"], ledger["entries"].as_array().unwrap().len()), (200, &1.into(), 1));
    assert_eq!(ledger["entries"][0]["api"], "Charge");
    let url = lab.ledger_url("charges").unwrap();
    assert_eq!(url, format!("http://{admin}/ledgers/charges"));
    let (_, events) = get(admin, "/events?key=a%20b").await;
    let kinds: Vec<&str> = events.as_array().unwrap().iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["request-received", "effect-made", "response-sent"]);
    for (target, status) in [
        ("/ledgers/charges", 400),
        ("/ledgers/carts?key=k", 404),
        ("/events", 400),
        ("/other", 404),
        ("/ledgers/charges?key=unheard-of", 200),
    ] {
        assert_eq!(get(admin, target).await.0, status, "{target}");
    }
    assert_eq!(send(admin, request("POST", "/events?key=k", &[])).await.0, 405);
    let error = lab.ledger("charge", "k").await.unwrap_err().to_string();
    assert_eq!(error, "unknown ledger `charge`, did you mean `charges`?");
}

#[tokio::test]
async fn a_client_retry_with_the_same_key_is_another_execution_on_the_same_ledgers() {
    let lab = start(shipped("online-boutique")).await;
    for _ in 0..2 {
        assert_eq!(post(lab.entry("checkout").unwrap(), "/cart/checkout?key=k").await.0, 200);
    }
    assert_eq!(lab.ledger("charges", "k").await.unwrap().count, 2);
    let log = lab.events("k").await.unwrap();
    let roots: Vec<&str> = log.calls_of("Charge").map(|call| log.execution(call).id.as_str()).collect();
    assert_eq!(roots.len(), 2);
    assert_ne!(roots[0], roots[1]);
    assert!(log.calls_of("Charge").all(|call| log.earlier_answers(call) == 0), "counted within each execution");
    assert_eq!(log.events().iter().filter(|event| event.event == Kind::EffectMade && event.api == "Charge").count(), 2);
}

#[tokio::test]
async fn the_lab_judges_a_round_by_its_own_logs_and_ledgers() {
    let hop = Hop::start(|_, number| if number == 1 { Act::LoseAnswer } else { Act::Pass }).await;
    let lab = start_with_hop(shipped("fig2-patterns"), "payment", &hop, None).await;
    assert_eq!(post(lab.entry("checkout").unwrap(), "/checkout?key=k").await.0, 200);
    let right = [
        Question::lost_after_effect("ChargeCard", "charges"),
        Question::lost_answer("ChargeCard", 1),
        Question::entries("charges", 2),
        Question::cleared("charges", 0),
    ];
    let within = Duration::from_secs(5);
    assert_eq!(lab.judge("k", &right, within).await.unwrap(), []);
    let wrong = [
        Question::Untouched,
        Question::only_fault("ChargeCard", Fate::RequestLost),
        Question::entries("charges", 1),
        Question::received_in_order("signup", "CreateUser", "RiskCheck"),
    ];
    let found: Vec<String> = lab.judge("k", &wrong, within).await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].starts_with("no call was interfered with: checkout -> ChargeCard #1 attempt 1"), "{}", found[0]);
    assert_eq!(found[2], "number of entries in charges: 1: found 2");
    lab.judge("k", &[Question::entries("nothing", 1)], within).await.unwrap_err();
}

/// The processes that answered calls of this Api, each once.
fn answered_by(log: &Log, api: &str) -> std::collections::BTreeSet<u32> {
    let answers = log.events().iter().filter(|event| event.event == Kind::ResponseSent && event.api == api);
    answers.map(|event| event.process).collect()
}

#[tokio::test]
async fn calls_take_the_replicas_of_a_callee_in_turn_with_and_without_a_hop_that_spreads_connections() {
    let relay = Launcher { program: env!("CARGO_BIN_EXE_aftershock-lab-relay").into(), args: Vec::new() };
    for sidecar in [None, Some(relay)] {
        let replicas = 3.try_into().unwrap();
        let options = Options { sidecar, replicas, ..Options::new(service_launcher()) };
        let lab = up(shipped("fan"), &options).await.unwrap();
        let entries = lab.entries("batch");
        assert_eq!(entries.len(), 3);
        // The second execution is the first whose connections were all made before it.
        for key in ["before", "k"] {
            assert_eq!(post(entries[0], &format!("/batch?key={key}")).await.0, 200);
        }
        let log = lab.events("k").await.unwrap();
        assert_eq!(log.calls_of("Work").count(), 6);
        assert!(log.is_complete() && log.faulted().next().is_none(), "the halves of a call meet across replicas");
        assert_eq!(answered_by(&log, "Work").len(), 3, "{:#?}", log.calls());
        assert!(answered_by(&log, "put_item").len() > 1);
    }
}

#[tokio::test]
async fn every_replica_answers_for_the_ledgers_of_all() {
    let options = Options { replicas: 3.try_into().unwrap(), ..Options::new(service_launcher()) };
    let lab = up(shipped("online-boutique"), &options).await.unwrap();
    for entry in lab.entries("checkout") {
        assert_eq!(post(entry, "/cart?key=k").await.0, 302);
    }
    let carts = |admin| get(admin, "/ledgers/carts?key=k");
    let admins = lab.admins("cartservice");
    for admin in &admins {
        assert_eq!(carts(*admin).await.1["count"], 3);
    }
    assert_eq!(post(lab.entries("checkout")[1], "/cart/checkout?key=k").await.0, 200);
    for admin in &admins {
        let (_, ledger) = carts(*admin).await;
        assert_eq!((&ledger["count"], &ledger["cleared"]), (&0.into(), &1.into()), "a clear at one is a clear of all");
    }
    let ledger = lab.ledger("charges", "k").await.unwrap();
    assert_eq!((ledger.count, ledger.entries.len()), (1, 1));
}

#[tokio::test]
async fn ordinary_traffic_has_keys_of_its_own_and_each_of_its_requests_that_was_interfered_with_is_named() {
    for (faulty, expected) in [(usize::MAX, 0), (3, 1)] {
        let lose = move |_: &str, number| if number == faulty { Act::LoseAnswer } else { Act::Pass };
        let hop = Hop::start(lose).await;
        let lab = start_with_hop(shipped("fig2-patterns"), "payment", &hop, None).await;
        let load = lab.load("checkout", "ordinary-", 200.0).unwrap();
        log_when(&lab, "ordinary-5", |log| log.calls_of("post_checkout").any(|call| call.response_sent.is_some()))
            .await;
        let ordinary = lab.unload(load, Duration::from_secs(10)).await.unwrap();
        assert!(ordinary.requests >= 6, "{ordinary:?}");
        assert_eq!(ordinary.faulted.len(), expected, "{ordinary:?}");
        assert!(ordinary.faulted.iter().all(|found| found.contains("ResponseLost")), "{ordinary:?}");
        assert_eq!(lab.ledger("charges", "ordinary-0").await.unwrap().count, 1);
    }
}

#[tokio::test]
async fn ordinary_traffic_that_cannot_be_is_refused_by_name() {
    let lab = start(shipped("fan")).await;
    assert_eq!(
        lab.load("batches", "k", 1.0).unwrap_err().to_string(),
        "unknown request `batches`, did you mean `batch`?"
    );
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(lab.load("batch", "k", rate).is_err(), "{rate}");
    }
}
