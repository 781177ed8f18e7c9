//! The scenarios of Online Boutique and of the three patterns, with the guards that they must get.

use aftershock_core::duration::Interval;
use aftershock_core::event::{ApiRef, OutcomeFilter};
use aftershock_core::plan::{Fault, Hold, Occurrence, Pattern, Phase, Side, Target};
use aftershock_generate::explain::Fate;
use aftershock_generate::{GenerateError, Request, patterns, synthesize};

use crate::support::{Node, Todo, api, call, leaf, parallel, traces};

const CHARGE: &str = "paymentservice hipstershop.PaymentService/Charge";
const GET_PRODUCT: &str = "productcatalogservice hipstershop.ProductCatalogService/GetProduct";

/// POST /cart/checkout with two cart lines, as far as context is propagated: 17 of 20 calls.
fn checkout() -> Node {
    let lines = (0..2).map(|_| leaf(GET_PRODUCT, 300));
    let order = [leaf("cartservice hipstershop.CartService/GetCart", 400)].into_iter().chain(lines).chain([
        leaf("shippingservice hipstershop.ShippingService/GetQuote", 200),
        leaf(CHARGE, 900),
        leaf("shippingservice hipstershop.ShippingService/ShipOrder", 200),
        leaf("cartservice hipstershop.CartService/EmptyCart", 200),
        leaf("emailservice hipstershop.EmailService/SendOrderConfirmation", 200),
    ]);
    let recommended = call(
        "recommendationservice hipstershop.RecommendationService/ListRecommendations",
        100,
        vec![leaf("productcatalogservice hipstershop.ProductCatalogService/ListProducts", 100)],
    );
    let mut steps = vec![
        Todo::Call(call("checkoutservice hipstershop.CheckoutService/PlaceOrder", 100, order.collect())),
        Todo::Call(recommended),
    ];
    steps.extend((0..5).map(|_| leaf(GET_PRODUCT, 300)));
    steps.push(leaf("currencyservice hipstershop.CurrencyService/GetSupportedCurrencies", 100));
    call("frontend POST /cart/checkout", 100, steps)
}

/// Sign-up: the refusal comes before CreateUser's success, and whichever is first decides.
fn signup() -> Node {
    let mut risk = call("risk fig2.Risk/Check", 5_000, Vec::new());
    risk.outcome = aftershock_core::event::Outcome::Error;
    let race = Todo::Parallel {
        branches: vec![vec![leaf("user fig2.User/CreateUser", 40_000)], vec![Todo::Call(risk)]],
        first: true,
    };
    call("gateway POST /signup", 10, vec![Todo::Call(call("signup fig2.SignUp/SignUp", 10, vec![race]))])
}

/// Four concurrent calls whose answers come 20 ms apart.
fn page() -> Node {
    let product = |i: u64| vec![leaf("product fig2.Product/GetProduct", 20_000 * i)];
    call("gateway GET /page", 10, vec![parallel((1..=4).map(product).collect())])
}

fn target(api: &str, k: u32, phase: Phase) -> Target {
    Target::new(ApiRef::Api(crate::support::api(api)), Occurrence::Number(k), phase)
}

fn hold() -> Option<Hold> {
    Some(Hold { deadline: Interval(std::time::Duration::from_secs(1)) })
}

#[test]
fn a_lost_charge_response_needs_the_post_effect_condition_and_no_atom() {
    let mut request = Request::new(target(CHARGE, 1, Phase::Response), Fault::Drop);
    request.pattern = Some(Pattern::PostEffect);
    let found = synthesize(&request, &traces(&checkout(), 10)).unwrap();
    assert_eq!((found.side, found.caller.unwrap().as_str()), (Side::Caller, "checkoutservice"));
    assert_eq!(found.tfic.target.caller.as_ref().unwrap().as_str(), "checkoutservice");
    assert!(found.tfic.target.post_effect);
    assert_eq!(found.tfic.target.outcome, OutcomeFilter::Ok);
    assert_eq!(found.tfic.guard.to_string(), "After(true)");
    assert_eq!(found.tfic.pattern, Some(Pattern::PostEffect));
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    assert!(found.explanation.traces.iter().all(|trace| trace.fires == Some(1)));
}

#[test]
fn a_charge_after_the_quote_waits_for_the_quote_at_the_caller() {
    let mut request = Request::new(target(CHARGE, 1, Phase::Response), Fault::Abort);
    request.competing = vec![patterns::competing(api("shippingservice hipstershop.ShippingService/GetQuote"), None)];
    let found = synthesize(&request, &traces(&checkout(), 10)).unwrap();
    assert_eq!(
        found.tfic.guard.to_string(),
        "After(response-received(ok) of shippingservice hipstershop.ShippingService/GetQuote at checkoutservice ≥ 1)"
    );
    assert_eq!(found.tfic.pattern, Some(Pattern::OrderSensitive));
}

#[test]
fn a_held_refusal_waits_for_the_success_of_the_other_branch() {
    let mut request = Request::new(
        target("risk fig2.Risk/Check", 1, Phase::Response),
        Fault::Delay(Interval(std::time::Duration::from_millis(100))),
    );
    request.pattern = Some(Pattern::OrderSensitive);
    request.competing = vec![patterns::competing(api("user fig2.User/CreateUser"), None)];
    let traces = traces(&signup(), 10);
    let early = synthesize(&request, &traces).unwrap_err();
    assert!(matches!(early, GenerateError::FalseAtTarget { held: false, count: 0, .. }), "{early}");

    request.hold = hold();
    let found = synthesize(&request, &traces).unwrap();
    assert_eq!(found.tfic.guard.to_string(), "After(response-received(ok) of user fig2.User/CreateUser at signup ≥ 1)");
    for trace in &found.explanation.traces {
        let Fate::FiresHeld { waited_nanos, .. } = trace.passes[0].fate else { panic!("{trace:?}") };
        assert!((30_000_000..40_000_000).contains(&waited_nanos), "{waited_nanos}");
    }
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
}

#[test]
fn a_hold_cannot_wait_for_what_its_own_message_causes() {
    let mut request = Request::new(target(CHARGE, 1, Phase::Response), Fault::Drop);
    request.competing = vec![patterns::competing(api("shippingservice hipstershop.ShippingService/ShipOrder"), None)];
    request.hold = hold();
    let error = synthesize(&request, &traces(&checkout(), 3)).unwrap_err();
    assert!(matches!(error, GenerateError::FalseAtTarget { held: true, .. }), "{error}");
    assert!(error.to_string().ends_with("counts 0 however long the message is held"), "{error}");
}

#[test]
fn the_third_of_four_concurrent_answers_is_told_by_the_two_before_it() {
    let mut request = Request::new(target("product fig2.Product/GetProduct", 3, Phase::Response), Fault::Drop);
    request.pattern = Some(Pattern::KOfN);
    let found = synthesize(&request, &traces(&page(), 10)).unwrap();
    assert_eq!(
        found.tfic.guard.to_string(),
        "After(response-received of product fig2.Product/GetProduct at gateway ≥ 2)"
    );
    assert_eq!((found.earlier, found.margin), (20, Some(1)));
    assert!(found.candidates.iter().any(|candidate| candidate.own && candidate.local && candidate.chosen));
    for trace in &found.explanation.traces {
        assert_eq!(trace.fires, Some(3));
        let counts: Vec<u64> = trace.passes.iter().map(|pass| pass.counts[0]).collect();
        assert_eq!(counts, [0, 1, 2, 3]);
    }
}

#[test]
fn a_lost_answer_of_the_entry_acts_at_the_callee() {
    let mut request = Request::new(target("frontend POST /cart/checkout", 1, Phase::Response), Fault::Drop);
    request.pattern = Some(Pattern::PostEffect);
    let found = synthesize(&request, &traces(&checkout(), 10)).unwrap();
    assert_eq!((found.side, found.caller), (Side::Callee, None));
    assert_eq!(found.explanation.site.service.as_str(), "frontend");
    assert_eq!(found.tfic.target.caller, None);
}

#[test]
fn a_target_with_two_callers_must_name_one() {
    let mut request = Request::new(target(GET_PRODUCT, 2, Phase::Response), Fault::Drop);
    let error = synthesize(&request, &traces(&checkout(), 2)).unwrap_err();
    assert_eq!(error.to_string(), "the target's caller is ambiguous: the traces show checkoutservice, frontend");
    request.target.caller = Some("checkoutservice".parse().unwrap());
    let found = synthesize(&request, &traces(&checkout(), 2)).unwrap();
    assert_eq!(
        found.tfic.guard.to_string(),
        format!("After(response-received of {GET_PRODUCT} at checkoutservice ≥ 1)")
    );
}

#[test]
fn an_open_occurrence_is_told_by_what_happened_between_and_survives_other_repeat_counts() {
    // The recommendations: frontend's GetProduct calls after the order are all after ListRecommendations.
    let mut request = Request::new(target(GET_PRODUCT, 1, Phase::Response), Fault::Drop);
    request.target.caller = Some("frontend".parse().unwrap());
    request.target.k = Occurrence::First;
    let page = |products: u64| {
        let mut steps: Vec<Todo> = (0..products).map(|_| leaf(GET_PRODUCT, 300)).collect();
        steps.push(leaf("shippingservice hipstershop.ShippingService/GetQuote", 200));
        steps.extend((0..2).map(|_| leaf(GET_PRODUCT, 300)));
        call("frontend GET /cart", 100, steps)
    };
    request.pass = Some(6);
    let found = synthesize(&request, &traces(&page(5), 12)).unwrap();
    let atom = &found.tfic.guard.after[..];
    assert_eq!(atom.len(), 1);
    assert_eq!(
        atom[0].to_string(),
        "request-sent of shippingservice hipstershop.ShippingService/GetQuote at frontend ≥ 1"
    );
    assert!(found.candidates.iter().all(|candidate| !candidate.own));
    let fewer = aftershock_generate::explain::explain(&found.tfic, &Default::default(), &traces(&page(3), 2)).unwrap();
    assert!(fewer.traces.iter().all(|trace| trace.fires == Some(4)), "{:#?}", fewer.lines());
}

#[test]
fn alike_passes_that_nothing_lies_between_cannot_be_told_apart_but_by_their_own_count() {
    let mut request = Request::new(target(GET_PRODUCT, 1, Phase::Request), Fault::Drop);
    request.target.k = Occurrence::First;
    request.pass = Some(2);
    let both = parallel(vec![vec![leaf(GET_PRODUCT, 300)], vec![leaf(GET_PRODUCT, 300)]]);
    let error = synthesize(&request, &traces(&call("frontend GET /", 10, vec![both]), 10)).unwrap_err();
    assert!(matches!(error, GenerateError::Indistinguishable { pass: 1, .. }), "{error}");
}

#[test]
fn a_target_that_is_not_reached_names_the_traces_and_what_may_be_meant() {
    let request =
        Request::new(target("paymentservice hipstershop.PaymentService/Chrage", 1, Phase::Request), Fault::Abort);
    let error = synthesize(&request, &traces(&checkout(), 2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no trace has a call of `paymentservice hipstershop.PaymentService/Chrage`; did you mean `{CHARGE}`?")
    );
    let request = Request::new(target(CHARGE, 2, Phase::Request), Fault::Abort);
    let error = synthesize(&request, &traces(&checkout(), 2)).unwrap_err();
    assert!(
        matches!(&error, GenerateError::Unreached { traces, total: 2, most: 1, .. } if traces.len() == 2),
        "{error}"
    );
    let mut request = Request::new(target(CHARGE, 1, Phase::Request), Fault::Abort);
    request.target.caller = Some("frontend".parse().unwrap());
    let error = synthesize(&request, &traces(&checkout(), 2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no trace has a call of `{CHARGE}` from frontend; did you mean the caller checkoutservice?")
    );
}

#[test]
fn a_competing_event_that_never_happens_is_refused_by_name() {
    let mut request = Request::new(target(CHARGE, 1, Phase::Response), Fault::Drop);
    request.competing = vec![patterns::competing(api("shippingservice hipstershop.ShippingService/GetQuot"), None)];
    let error = synthesize(&request, &traces(&checkout(), 2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the event `response-received(ok) of shippingservice hipstershop.ShippingService/GetQuot` happens in no trace; \
         did you mean `response-received of shippingservice hipstershop.ShippingService/GetQuote`?"
    );
}

/// The text of an explanation is what a user of `explain` reads.
#[test]
fn an_explanation_shows_each_pass_with_its_atoms_and_where_it_fires() {
    let mut request = Request::new(target("product fig2.Product/GetProduct", 3, Phase::Response), Fault::Drop);
    request.pattern = Some(Pattern::KOfN);
    let found = synthesize(&request, &traces(&page(), 1)).unwrap();
    assert_eq!(
        found.lines(),
        [
            "target  response of product fig2.Product/GetProduct, k = 3, from gateway",
            "acts    at the sidecar of gateway, on response-received",
            "fault   drop",
            "guard   after",
            "  [1] response-received of product fig2.Product/GetProduct at gateway ≥ 2",
            "trace 0000000000000001 (gateway GET /page): fires at pass 3 of 4",
            "  [1] is true from clock 12 on",
            "  pass 1 at clock 11, ok, [1] false (0 of 2): another number",
            "  pass 2 at clock 12, ok, [1] false (1 of 2): another number",
            "  pass 3 at clock 13, ok, [1] true (2 of 2): fires",
            "  pass 4 at clock 14, ok, [1] true (3 of 2): after the fault",
            "told apart: 2 earlier passes, by 1 of 5 candidates: \
             `response-received of product fig2.Product/GetProduct at gateway ≥ 2`",
            "  margin 1",
        ]
    );
}

/// In a trace of the faulted round the third answer never became an event, and yet it was the third pass.
#[test]
fn an_explanation_of_a_faulted_trace_counts_the_swallowed_answer() {
    use aftershock_core::plan::Tfic;
    use aftershock_core::span::{Ending, Injection, Pass};

    let request = Request::new(target("product fig2.Product/GetProduct", 3, Phase::Response), Fault::Drop);
    let mut trace = traces(&page(), 1).remove(0);
    let found = synthesize(&request, std::slice::from_ref(&trace)).unwrap();
    let tfic: Tfic = found.tfic;
    let third = found.explanation.traces[0].passes[2].call;
    let call = trace.calls.iter_mut().find(|call| call.id == third).unwrap().client.as_mut().unwrap();
    let decided = call.response.take().unwrap().clock - 1;
    call.outcome = None;
    call.ending = Ending::Faulted;
    call.passes = vec![Pass { rule: 0, k: Some(3), clock: decided, passed_by: None }];
    call.injection = Some(Injection { rule: 0, k: 3, decided, held: false, fault: "drop".to_owned() });
    let shown = aftershock_generate::explain::explain(&tfic, &Default::default(), &[trace.clone()]).unwrap();
    assert_eq!(shown.traces[0].fires, Some(3), "{:#?}", shown.lines());
    assert_eq!(shown.traces[0].passes[2].injected.as_deref(), Some("drop"));
    assert_eq!(shown.traces[0].passes.len(), 4);

    // An answer made in place of a request is an event, but no message came.
    let call = trace.calls.iter_mut().find(|call| call.client.as_ref().is_some_and(|c| c.injection.is_some())).unwrap();
    let span = call.client.as_mut().unwrap();
    span.response = Some(span.request);
    span.made = true;
    span.passes.clear();
    span.injection.as_mut().unwrap().decided = span.request.clock - 1;
    let shown = aftershock_generate::explain::explain(&tfic, &Default::default(), &[trace]).unwrap();
    assert_eq!(shown.traces[0].passes.len(), 3);
}

#[test]
fn an_order_is_made_to_happen_by_holding_and_letting_go() {
    let mut request = Request::new(target("risk fig2.Risk/Check", 1, Phase::Response), Fault::Release);
    request.pattern = Some(Pattern::OrderSensitive);
    request.competing = vec![patterns::competing(api("user fig2.User/CreateUser"), None)];
    let traces = traces(&signup(), 10);
    assert_eq!(synthesize(&request, &traces).unwrap_err(), GenerateError::Release);
    request.hold = hold();
    let found = synthesize(&request, &traces).unwrap();
    assert_eq!(found.tfic.fault, Fault::Release);
    assert_eq!(found.tfic.guard.to_string(), "After(response-received(ok) of user fig2.User/CreateUser at signup ≥ 1)");
    assert!(found.explanation.traces.iter().all(|t| matches!(t.passes[0].fate, Fate::FiresHeld { .. })));
}
