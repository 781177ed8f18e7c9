use serde_json::json;

use super::*;
use crate::testing::{call, checkout, service};

/// A round of nothing but `plan`.
fn resolve(plan: &Plan, instances: &Instances, traces: &[Trace]) -> Result<Armament, Refusal> {
    super::resolve(&StartRound { plan: plan.clone(), ..StartRound::default() }, None, instances, traces)
}

/// A recording with `request` beside it.
fn circumstances(request: serde_json::Value) -> String {
    let mut whole = json!({"scenario": "s", "plan": {}, "key": "k"});
    whole.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
    let request: StartRound = serde_json::from_value(whole).unwrap();
    super::resolve(&request, None, &shop(), &checkout()).map_or_else(|refusal| refusal.to_string(), |_| String::new())
}

fn instances(services: &[&str]) -> Instances {
    let mut instances = Instances::default();
    for name in services {
        *instances.count.entry(service(name)).or_default() += 1;
    }
    instances
}

fn shop() -> Instances {
    instances(&["checkout", "payment", "shipping"])
}

fn plan(value: serde_json::Value) -> Plan {
    serde_json::from_value(value).unwrap()
}

fn target(value: serde_json::Value) -> Plan {
    plan(json!({"faults": [{"target": value, "fault": "drop"}]}))
}

fn charge(more: serde_json::Value) -> Plan {
    let mut target = json!({"api": "payment shop.Payment/Charge", "k": 1, "phase": "response"});
    target.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    self::target(target)
}

fn refusal(plan: &Plan, instances: &Instances, traces: &[Trace]) -> String {
    resolve(plan, instances, traces).unwrap_err().to_string()
}

#[test]
fn the_callers_sidecar_acts_whether_the_caller_is_named_or_the_traces_show_it() {
    for plan in [charge(json!({})), charge(json!({"caller": "checkout"}))] {
        let armament = resolve(&plan, &shop(), &checkout()).unwrap();
        let [rule] = armament.rules.as_slice() else { panic!("{armament:?}") };
        assert_eq!((rule.index, rule.side, rule.service.as_str()), (0, Side::Caller, "checkout"));
        assert_eq!(rule.tfic, plan.faults[0], "the fault itself is not touched");
    }
}

#[test]
fn a_rule_is_arbitrated_where_its_service_has_several_instances() {
    let mut several = shop();
    several.count.insert(service("payment"), 3);
    assert!(
        !resolve(&charge(json!({})), &several, &checkout()).unwrap().rules[0].arbitrated,
        "one caller counts alone"
    );
    several.count.insert(service("checkout"), 2);
    assert!(resolve(&charge(json!({})), &several, &checkout()).unwrap().rules[0].arbitrated);
}

#[test]
fn at_an_entry_api_the_callees_sidecar_acts() {
    let plan = target(json!({"api": "checkout POST /checkout", "k": 1, "phase": "response"}));
    let armament = resolve(&plan, &shop(), &checkout()).unwrap();
    assert_eq!((armament.rules[0].side, armament.rules[0].service.as_str()), (Side::Callee, "checkout"));
}

#[test]
fn where_the_caller_has_no_sidecar_the_callees_acts() {
    let registered = instances(&["payment", "shipping"]);
    for plan in [charge(json!({})), charge(json!({"caller": "checkout"}))] {
        let armament = resolve(&plan, &registered, &checkout()).unwrap();
        assert_eq!((armament.rules[0].side, armament.rules[0].service.as_str()), (Side::Callee, "payment"));
    }
}

#[test]
fn without_traces_the_configured_callees_show_the_caller() {
    let mut registered = shop();
    let armament = resolve(&charge(json!({})), &registered, &[]).unwrap();
    assert_eq!(armament.rules[0].side, Side::Callee, "nobody is configured to call it: an entry");
    registered.callees.insert(service("checkout"), [service("payment")].into());
    let armament = resolve(&charge(json!({})), &registered, &[]).unwrap();
    assert_eq!((armament.rules[0].side, armament.rules[0].service.as_str()), (Side::Caller, "checkout"));
    registered.callees.insert(service("shipping"), [service("payment")].into());
    assert_eq!(
        refusal(&charge(json!({})), &registered, &[]),
        "faults[0]: `payment shop.Payment/Charge` is called by `checkout`, `shipping`: name the caller that is meant"
    );
    let armament = resolve(&charge(json!({"caller": "shipping"})), &registered, &[]).unwrap();
    assert_eq!(armament.rules[0].service.as_str(), "shipping");
}

#[test]
fn what_could_not_work_is_refused_with_the_nearest_name() {
    let traces = checkout();
    for (plan, instances, expected) in [
        (
            target(json!({"api": "paymnt shop.Payment/Charge", "k": 1, "phase": "response"})),
            shop(),
            "faults[0]: unknown service `paymnt`; did you mean `payment`?",
        ),
        (
            charge(json!({"caller": "chekout"})),
            shop(),
            "faults[0]: unknown service `chekout`; did you mean `checkout`?",
        ),
        (
            charge(json!({"caller": "shipping"})),
            shop(),
            "faults[0]: in no clean trace of the scenario `payment shop.Payment/Charge` is called by `shipping`, but by \
             `checkout`",
        ),
        (
            target(json!({"api": "payment shop.Payment/Charg", "k": 1, "phase": "response"})),
            shop(),
            "faults[0]: no clean trace of the scenario reaches `payment shop.Payment/Charg`; did you mean `payment \
             shop.Payment/Charge`?",
        ),
        (target(json!({"api": "group:pay", "k": 1, "phase": "response"})), shop(), "faults[0]: unknown group `pay`"),
        (
            plan(json!({"groups": {"pays": ["payment shop.Payment/Charge"]},
                "faults": [{"target": {"api": "group:pay", "k": 1, "phase": "response"}, "fault": "drop"}]})),
            shop(),
            "faults[0]: unknown group `pay`; did you mean `pays`?",
        ),
        (
            plan(json!({"groups": {"pay": []},
                "faults": [{"target": {"api": "group:pay", "k": 1, "phase": "response"}, "fault": "drop"}]})),
            shop(),
            "faults[0]: the group `pay` has no members",
        ),
        (
            charge(json!({})),
            instances(&["shipping"]),
            "faults[0]: no sidecar of `payment` is registered, where the fault would act; known: `shipping`",
        ),
        (charge(json!({})), instances(&[]), "no sidecar is registered"),
        (
            charge(json!({"at": {"message": 2}, "outcome": "ok"})),
            shop(),
            "faults[0]: expected no `outcome` beside `at`: the fault acts before the outcome is known",
        ),
        (
            charge(json!({"phase": "request", "post_effect": true})),
            shop(),
            "faults[0]: `post_effect` asks for the outcome of a response, the phase is `request`",
        ),
        (
            charge(json!({"phase": "request", "outcome": "ok"})),
            shop(),
            "faults[0]: a request has no outcome: leave `outcome` out, or choose the phase `response`",
        ),
        (
            plan(json!({"faults": [{"target": {"api": "payment shop.Payment/Charge", "k": 1, "phase": "response"},
                "fault": "drop", "max_injections": 0}]})),
            shop(),
            "faults[0]: `max_injections` is 0: the fault could never be injected",
        ),
    ] {
        assert_eq!(refusal(&plan, &instances, &traces), expected);
    }
}

#[test]
fn an_event_of_the_guard_must_happen_in_a_clean_trace() {
    let guarded = |atom: serde_json::Value| {
        let mut plan = charge(json!({}));
        plan.faults[0].guard.after.push(serde_json::from_value(atom).unwrap());
        plan
    };
    let traces = checkout();
    let quote = |more: serde_json::Value| {
        let mut atom = json!({"event": "response-received", "api": "shipping shop.Shipping/Quote", "count": 1});
        atom.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        atom
    };
    for atom in [quote(json!({})), quote(json!({"outcome": "ok"})), quote(json!({"caller": "checkout"}))] {
        let armament = resolve(&guarded(atom), &shop(), &traces).unwrap();
        assert_eq!(armament.events.len(), 1);
    }
    for (atom, expected) in [
        (
            quote(json!({"api": "shipping shop.Shipping/Quota"})),
            "faults[0]: the guard's event `response-received of shipping shop.Shipping/Quota` happens in no clean trace \
             of the scenario; did you mean `response-received of shipping shop.Shipping/Quote`?",
        ),
        (
            quote(json!({"caller": "payment"})),
            "faults[0]: the guard's event `response-received of shipping shop.Shipping/Quote at payment` happens in no \
             clean trace of the scenario; did you mean `response-received of shipping shop.Shipping/Quote at checkout`?",
        ),
        (
            quote(json!({"outcome": "error"})),
            "faults[0]: the guard's event `response-received(error) of shipping shop.Shipping/Quote` happens in no clean \
             trace of the scenario; did you mean `response-received(ok) of shipping shop.Shipping/Quote`?",
        ),
        (quote(json!({"api": "group:quotes"})), "faults[0]: unknown group `quotes`"),
    ] {
        assert_eq!(refusal(&guarded(atom), &shop(), &traces), expected);
    }
    let unrecorded = guarded(quote(json!({"api": "shipping shop.Shipping/Quota"})));
    assert!(resolve(&unrecorded, &shop(), &[]).is_ok(), "without traces only services can be checked");
    let mut two = guarded(quote(json!({"outcome": "error"})));
    two.faults.extend(charge(json!({"k": 2})).faults);
    assert!(resolve(&two, &shop(), &traces).is_ok(), "another fault may make the call fail");
}

#[test]
fn an_api_called_from_inside_and_outside_needs_its_caller_named() {
    let mut spans: Vec<_> =
        checkout().into_iter().flat_map(|t| t.calls).flat_map(|c| c.spans().cloned().collect::<Vec<_>>()).collect();
    spans.extend(call(4, Some(3), "payment", "checkout POST /checkout"));
    let traces = Trace::assemble(spans);
    let entry = target(json!({"api": "checkout POST /checkout", "k": 1, "phase": "response"}));
    assert_eq!(
        refusal(&entry, &shop(), &traces),
        "faults[0]: `checkout POST /checkout` is called by clients without a sidecar, `payment`: name the caller that is \
         meant"
    );
}

#[test]
fn gaps_are_asked_for_at_every_api_above_a_mentioned_one() {
    let plan = plan(json!({"faults": [{
        "target": {"api": "payment shop.Payment/Charge", "k": 1, "phase": "response"}, "fault": "drop",
        "guard": {"after": [{"event": "request-sent", "api": "shipping shop.Shipping/Quote", "count": 1}]}}]}));
    let armament = resolve(&plan, &shop(), &checkout()).unwrap();
    let apis: Vec<String> = armament.gap_apis.iter().map(ToString::to_string).collect();
    assert_eq!(apis, ["checkout POST /checkout", "payment shop.Payment/Charge", "shipping shop.Shipping/Quote"]);
    let none = resolve(&Plan::default(), &shop(), &checkout()).unwrap();
    let known_calls = none.known_calls.clone();
    assert_eq!(none, Armament { known_calls, ..Armament::default() }, "a recording arms no rules");
}

#[test]
fn several_callees_without_a_caller_that_could_act_are_refused() {
    let plan = plan(json!({"groups": {"both": ["payment shop.Payment/Charge", "shipping shop.Shipping/Quote"]},
        "faults": [{"target": {"api": "group:both", "k": 1, "phase": "response"}, "fault": "drop"}]}));
    assert_eq!(resolve(&plan, &shop(), &checkout()).unwrap().rules[0].apis.len(), 2);
    assert_eq!(
        refusal(&plan, &instances(&["payment", "shipping"]), &checkout()),
        "faults[0]: the Apis of `group:both` belong to `payment`, `shipping`, and their caller has no sidecar where the \
         fault could act"
    );
}

#[test]
fn an_answer_of_several_messages_needs_a_place_in_its_stream() {
    let mut traces = checkout();
    let charged = traces[0].calls.iter_mut().find(|call| call.api.service.as_str() == "payment").unwrap();
    charged.client.as_mut().unwrap().messages = Some(3);
    assert_eq!(
        refusal(&charge(json!({})), &shop(), &traces),
        "faults[0]: in the clean traces an answer of `payment shop.Payment/Charge` has 3 messages, which cannot be kept \
         back to their end: say `at: head`, `at: {message: N}` or `at: {bytes: N}`"
    );
    for at in [json!("head"), json!({"message": 2}), json!({"bytes": 10})] {
        let armament = resolve(&charge(json!({"at": at})), &shop(), &traces).unwrap();
        assert!(armament.rules[0].tfic.target.at.is_some());
    }
    let request = target(json!({"api": "payment shop.Payment/Charge", "k": 1, "phase": "request"}));
    resolve(&request, &shop(), &traces).unwrap();
    let quote = target(json!({"api": "shipping shop.Shipping/Quote", "k": 1, "phase": "response"}));
    resolve(&quote, &shop(), &traces).unwrap();
}

#[test]
fn faults_touch_only_the_services_that_they_may() {
    let start = |plan: Plan| StartRound { plan, ..StartRound::default() };
    let touch = |plan: Plan, allowed: &[&str]| {
        let allowed: BTreeSet<Service> = allowed.iter().map(|name| service(name)).collect();
        super::resolve(&start(plan), Some(&allowed), &shop(), &checkout())
            .map_or_else(|refusal| refusal.to_string(), |_| String::new())
    };
    assert_eq!(touch(charge(json!({})), &["payment", "checkout"]), "");
    assert_eq!(touch(Plan::default(), &[]), "", "a recording faults nobody");
    for (allowed, expected) in [
        (
            &["payment"][..],
            "faults[0]: `checkout`, where the fault would act, is not among the services that this controller lets \
             faults touch: `payment`",
        ),
        (
            &["checkout", "shipping"],
            "faults[0]: `payment`, whose call it would be about, is not among the services that this controller lets \
             faults touch: `checkout`, `shipping`",
        ),
        (
            &[],
            "faults[0]: `checkout`, where the fault would act, is not among the services that this controller lets \
             faults touch: none",
        ),
    ] {
        assert_eq!(touch(charge(json!({})), allowed), expected);
    }
}

#[test]
fn what_a_round_is_run_under_is_checked() {
    let traffic = |more: serde_json::Value| {
        let mut traffic = json!({"entry": "checkout", "per_million": 1});
        traffic.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"traffic": traffic})
    };
    let outcome = |more: serde_json::Value| {
        let mut outcome = json!({"api": "payment POST /pay", "ok": [404]});
        outcome.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        outcome
    };
    let stop = |errors: u32| json!({"stop": {"errors_per_million": errors, "min_requests": 1}});
    for (request, expected) in [
        (json!({"outcomes": [outcome(json!({}))]}), ""),
        (
            json!({"outcomes": [outcome(json!({})), outcome(json!({"api": "paymnt GET /", "ok": [1]}))]}),
            "outcomes[1]: unknown service `paymnt`; did you mean `payment`?",
        ),
        (
            json!({"outcomes": [outcome(json!({"error": [404]}))]}),
            "outcomes[0]: the status 404 is both `ok` and `error` in the outcome of `payment POST /pay`",
        ),
        (
            json!({"outcomes": [outcome(json!({})), outcome(json!({}))]}),
            "outcomes[1]: there is one of `payment POST /pay` already",
        ),
        (traffic(json!({})), ""),
        (traffic(json!({"headers": {"x-canary": "1"}, "per_million": 1_000_000})), ""),
        (
            traffic(json!({"entry": "chekout"})),
            "traffic: no sidecar of `chekout` is registered; did you mean `checkout`?",
        ),
        (
            traffic(json!({"entry": "payment"})),
            "traffic: `payment` takes no entry requests in the clean traces of the scenario; known: `checkout`",
        ),
        (traffic(json!({"per_million": 0})), "traffic: expected 1 to 1000000 requests in a million, found 0"),
        (
            traffic(json!({"headers": {"X-Canary": "1"}})),
            "traffic: expected the name of a header field in lower case, found \"X-Canary\"",
        ),
        (
            traffic(json!({"headers": {"x-canary": "\n"}})),
            "traffic: expected a value that a header field can have for \"x-canary\"",
        ),
        (stop(0), ""),
        (stop(1_000_000), "stop: expected less than 1000000 errors in a million, which none can exceed, found 1000000"),
        (json!({"arbiter_timeout": "20ms"}), ""),
        (json!({"arbiter_timeout": "0s"}), "arbiter_timeout: expected more than 0 and at most 10s, found 0s"),
        (json!({"arbiter_timeout": "11s"}), "arbiter_timeout: expected more than 0 and at most 10s, found 11s"),
    ] {
        assert_eq!(circumstances(request.clone()), expected, "{request}");
    }
}

#[test]
fn what_each_service_calls_is_known_from_the_traces() {
    let known = resolve(&Plan::default(), &shop(), &checkout()).unwrap().known_calls;
    let of_checkout: Vec<String> = known[&service("checkout")].iter().map(ToString::to_string).collect();
    assert_eq!(of_checkout, ["payment shop.Payment/Charge", "shipping shop.Shipping/Quote"]);
    assert_eq!(known.len(), 1, "nobody else calls anything");
}

#[test]
fn a_channel_can_be_cut_where_its_caller_has_a_sidecar_that_knows_the_callee() {
    let cut = |caller: &str, callee: &str| plan(json!({"cuts": [{"caller": caller, "callee": callee}]}));
    assert_eq!(
        resolve(&cut("checkout", "payment"), &shop(), &checkout()),
        resolve(&Plan::default(), &shop(), &checkout())
    );
    let mut configured = instances(&["checkout"]);
    configured.callees.insert(service("checkout"), [service("database")].into());
    assert!(resolve(&cut("checkout", "database"), &configured, &[]).is_ok(), "a callee without a sidecar");

    let refused = |plan: &Plan, instances: &Instances| refusal(plan, instances, &checkout());
    assert_eq!(
        refused(&cut("checkout", "paymint"), &shop()),
        "cuts[0]: unknown service `paymint`; did you mean `payment`?"
    );
    assert_eq!(
        refused(&cut("payment", "checkout"), &instances(&["checkout"])),
        "cuts[0]: no sidecar of `payment` is registered, which would cut its connections; known: `checkout`"
    );
    assert_eq!(
        refused(&cut("checkout", "payment"), &instances(&["checkout"])),
        "cuts[0]: the sidecar of `checkout` does not know which connections lead to `payment`: it has no outbound listener \
         for it, and no sidecar of `payment` is registered"
    );
}

#[test]
fn a_cut_touches_no_service_that_may_not_be_faulted() {
    let plan = plan(json!({"cuts": [{"caller": "checkout", "callee": "payment"}]}));
    let request = StartRound { plan, ..StartRound::default() };
    let refused = |faultable: &[&str]| {
        let faultable = faultable.iter().map(|name| service(name)).collect();
        super::resolve(&request, Some(&faultable), &shop(), &checkout()).map_err(|refusal| refusal.to_string())
    };
    assert!(refused(&["checkout", "payment"]).is_ok());
    for (allowed, other) in [("checkout", "payment"), ("payment", "checkout")] {
        assert_eq!(
            refused(&[allowed]).unwrap_err(),
            format!("cuts[0]: `{other}` is not among the services that this controller lets faults touch: `{allowed}`")
        );
    }
}
