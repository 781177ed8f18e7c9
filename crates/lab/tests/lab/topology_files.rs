//! Topology files: what the shipped ones expand to, and what malformed ones are told.

use aftershock_core::yaml::Located;
use aftershock_lab::expand::{self, ExpandedCall};
use aftershock_lab::topology::{Expected, Topology};

pub(crate) fn shipped(name: &str) -> Topology {
    let path = format!("{}/../../topologies/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    Topology::parse(&format!("topologies/{name}.yaml"), &text).unwrap_or_else(|error| panic!("{error}"))
}

fn expanded(topology: &Topology, request: &str) -> Vec<ExpandedCall> {
    let request = topology.request(request).unwrap();
    topology.expand(&request.api, &request.params).unwrap()
}

/// The numbers that were read off the applications' sources, independently of our files.
#[test]
fn each_request_causes_the_calls_of_the_application_it_models() {
    let cases = [
        (
            "online-boutique",
            &[
                ("home", 13, 5),
                ("product_page", 12, 7),
                ("cart_page", 15, 7),
                ("add_to_cart", 2, 2),
                ("checkout", 20, 12),
                ("checkout_1", 18, 12),
            ][..],
        ),
        ("fig2-patterns", &[("signup", 3, 3), ("page", 4, 1), ("checkout", 2, 2)][..]),
        ("fan", &[("batch", 12, 2)][..]),
    ];
    for (name, requests) in cases {
        let topology = shipped(name);
        assert_eq!(topology.requests().len(), requests.len(), "{name}: every request is checked");
        for (request, calls, distinct) in requests {
            let found = expand::count(&expanded(&topology, request));
            assert_eq!(found, Expected { calls: *calls, distinct: *distinct }, "{name} {request}");
        }
    }
}

#[test]
fn checkout_makes_its_calls_in_the_order_of_the_application() {
    let topology = shipped("online-boutique");
    let tree: Vec<String> = expanded(&topology, "checkout")
        .iter()
        .map(|call| {
            let mark = if call.propagates { "" } else { " without context" };
            format!("{}{} -> {} {}{mark}", "  ".repeat(call.depth), call.caller, call.api, call.index)
        })
        .collect();
    assert_eq!(
        tree,
        [
            "frontend -> PlaceOrder 1",
            "  checkoutservice -> GetCart 1",
            "  checkoutservice -> GetProduct 1",
            "  checkoutservice -> Convert 1 without context",
            "  checkoutservice -> GetProduct 2",
            "  checkoutservice -> Convert 2 without context",
            "  checkoutservice -> GetQuote 1",
            "  checkoutservice -> Convert 3 without context",
            "  checkoutservice -> Charge 1",
            "  checkoutservice -> ShipOrder 1",
            "  checkoutservice -> EmptyCart 1",
            "  checkoutservice -> SendOrderConfirmation 1",
            "frontend -> ListRecommendations 1",
            "  recommendationservice -> ListProducts 1",
            "frontend -> GetProduct 1",
            "frontend -> GetProduct 2",
            "frontend -> GetProduct 3",
            "frontend -> GetProduct 4",
            "frontend -> GetProduct 5",
            "frontend -> GetSupportedCurrencies 1",
        ]
    );
}

/// A small valid file; each case below breaks one place of it.
const SMALL: &str = "\
apiVersion: aftershock.dev/v1alpha1
kind: Topology
metadata: {name: small}
params: {lines: 2}
services:
  web: {server: http1, port: 8080, propagation: w3c, client: {timeout: 2s}}
  pay: {server: grpc, port: 7000, propagation: leaf}
ledgers:
  charges: {service: pay}
apis:
  order: {service: web, http: POST /order}
  Charge: {service: pay, grpc: shop.Pay/Charge, service_time: 5ms, effects: [{append: charges}]}
handlers:
  order:
    steps:
      - {call: Charge, as: tx, on_failure: {fail: 500}}
      - {respond: 200}
requests:
  order: {api: order, expect: {calls: 1, distinct: 1}}
";

/// The text from the place that an error points at.
fn text_at(text: &str, error: &Located) -> String {
    let (line, column) = (error.line.unwrap() as usize, error.column.unwrap() as usize);
    let from_line: String = text.split_inclusive('\n').skip(line - 1).collect();
    from_line.chars().skip(column - 1).collect()
}

#[test]
fn the_small_file_is_valid() {
    Topology::parse("small.yaml", SMALL).unwrap();
}

#[test]
fn a_malformed_file_is_told_where_and_what_was_expected() {
    let order_step = "{call: Charge, as: tx, on_failure: {fail: 500}}";
    // (what is replaced, by what, what the error points at, what it says)
    let cases: &[(&str, &str, &str, &str)] = &[
        ("kind: Topology", "kind: Scenario", "Scenario", "expected `kind: Topology`, found `kind: Scenario`"),
        ("v1alpha1", "v2", "aftershock.dev/v2", "newer"),
        ("params:", "parms:", "parms", "unknown key `parms`"),
        ("lines: 2", "lines: 1001", "1001", "a parameter is a number from 0 to 1000"),
        ("name: small", "name: a b", "a b", "letters, digits"),
        ("server: http1", "server: http3", "http3", "unknown value `http3`"),
        ("port: 8080", "port: 0", "0, prop", "a port from 1 to 65535"),
        ("port: 8080", "port: 70000", "70000", "from 0 to 65535"),
        ("timeout: 2s", "timeout: 2", "2}", "a duration with a unit"),
        ("timeout: 2s", "timeout: 0s", "0s", "a timeout above 0, or `none`"),
        ("propagation: leaf}", "propagation: leaf, client: {timeout: none}}", "leaf, client", "needs no `client`"),
        ("charges: {service: pay}", "charges: {service: pax}", "pax", "unknown service `pax`, did you mean `pay`?"),
        ("order: {service: web", "order: {service: wbe", "wbe", "unknown service `wbe`"),
        ("http: POST /order", "http: POST order", "POST order", "a path that begins with `/`"),
        ("http: POST /order", "grpc: shop.Web/Order", "shop.Web/Order", "`server: http1`"),
        ("grpc: shop.Pay/Charge", "grpc: /shop.Pay/Charge", "/shop", "expected `package.Service/Method`"),
        (", grpc: shop.Pay/Charge", "", "Charge: {service: pay", "needs `grpc` or `http`"),
        ("service_time: 5ms", "service_time: 5", "service_time: 5", "expected a duration"),
        ("service_time: 5ms", "service_time: 2m", "2m", "at most 60s"),
        ("service_time: 5ms", "service_time: {permuted: [5ms]}", "permuted: [", "permuted_by_key"),
        ("service_time: 5ms", "service_time: {permuted_by_key: []}", "{permuted_by_key", "at least one time"),
        ("append: charges", "append: charge", "charge}", "unknown ledger `charge`, did you mean `charges`?"),
        ("append: charges", "add: charges", "add: ", "unknown value `add`"),
        ("charges: {service: pay}", "charges: {service: web}", "charges}]", "kept by `web`, not by `pay`"),
        ("  order:\n", "  ordr:\n", "ordr:", "unknown Api `ordr`, did you mean `order`?"),
        ("call: Charge", "call: Chrage", "Chrage", "unknown Api `Chrage`, did you mean `Charge`?"),
        (", on_failure: {fail: 500}", "", "Charge, as", "needs `on_failure`"),
        ("{fail: 500}", "{fail: INTERNAL}", "INTERNAL", "answers HTTP"),
        ("{fail: 500}", "{fail: 99}", "99", "no HTTP status"),
        ("{fail: 500}", "{fail: INTERNEL}", "INTERNEL", "did you mean `INTERNAL`?"),
        ("{fail: 500}", "leave_group", "leave_group", "inside the steps of a group"),
        ("{fail: 500}", "give_up", "give_up", "unknown reaction `give_up`"),
        ("{fail: 500}", "{hang: ignore}", "{hang", "a reaction for each of transport, status and hang"),
        (order_step, "{call: Charge, uses: [ty], on_failure: ignore}", "ty]", "unknown answer `ty`"),
        (order_step, "{call: order, on_failure: ignore}", "order, on", "without end: order → order"),
        (order_step, "{as: tx}", "{as: tx", "a step needs one of call"),
        (order_step, "{respond: 200, call: Charge, on_failure: ignore}", "{respond: 200, call", "only one of"),
        (order_step, "{respond: 200, as: x}", "{respond: 200, as", "`as` belongs to a step with `call`"),
        (order_step, "{repeat: {times: line, steps: []}}", "line,", "unknown parameter `line`, did you mean `lines`?"),
        (order_step, "{respond: 200}", "{respond: 200}\n", "never reached"),
        (order_step, "{parallel: {join: any, branches: []}}", "any", "unknown value `any`"),
        (order_step, "{parallel: {join: all, branches: [[]]}}", "[]]", "at least one step in a branch"),
        (order_step, "{parallel: {join: all, branches: [[{respond: 200}]]}}", "200}]]", "the join decides"),
        ("respond: 200", "respond: OK", "OK}", "answers HTTP"),
        ("{api: order, expect", "{api: ordr, expect", "ordr", "unknown Api `ordr`"),
        ("{api: order, expect", "{api: order, params: {line: 1}, expect", "line: 1", "unknown parameter `line`"),
        ("calls: 1", "calls: 2", "order: {api: order", "causes 1 calls of 1 different Apis, but `expect` says 2 and 1"),
        ("requests:\n", "requests: [\n", "[\n", ""),
        ("  pay: {server", "  web: {server", "web: {server: grpc", "found `web` again"),
    ];
    let mut wrong = Vec::new();
    for (from, to, points_at, expected) in cases {
        assert!(SMALL.contains(from), "{from}");
        let text = SMALL.replacen(from, to, 1);
        let error = match Topology::parse("small.yaml", &text) {
            Ok(_) => panic!("{from} -> {to} was accepted"),
            Err(error) => error,
        };
        if !text_at(&text, &error).starts_with(points_at) || !error.message.contains(expected) {
            wrong.push(format!("{from} -> {to}: expected at `{points_at}`: {expected}\n{error}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_handler_of_a_leaf_service_makes_no_calls() {
    let text = SMALL.replace(
        "  order:\n    steps:",
        "  Charge:\n    steps: [{call: order, on_failure: ignore}]\n  order:\n    steps:",
    );
    let error = Topology::parse("small.yaml", &text).unwrap_err();
    assert!(text_at(&text, &error).starts_with("order, on_failure"), "{error}");
    assert!(error.message.contains("propagation: leaf"), "{error}");
}

/// Every `$ref` of a schema, and every place with an object whose keys are all known.
fn visit(value: &serde_json::Value, refs: &mut Vec<String>, closed: &mut usize) {
    match value {
        serde_json::Value::Object(map) => {
            refs.extend(map.get("$ref").and_then(|r| r.as_str()).map(str::to_owned));
            *closed += usize::from(map.get("additionalProperties") == Some(&false.into()));
            map.values().for_each(|value| visit(value, refs, closed));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|value| visit(value, refs, closed)),
        _ => {}
    }
}

#[test]
fn the_json_schema_is_closed_and_describes_the_file_form() {
    let schema = serde_json::to_value(schemars::schema_for!(aftershock_lab::TopologyFile)).unwrap();
    let (mut refs, mut closed) = (Vec::new(), 0);
    visit(&schema, &mut refs, &mut closed);
    for reference in &refs {
        let name = reference.strip_prefix("#/$defs/").unwrap();
        assert!(schema["$defs"].get(name).is_some(), "{reference}");
    }
    let properties: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        properties,
        ["apiVersion", "apis", "handlers", "kind", "ledgers", "metadata", "params", "requests", "services"]
    );
    assert_eq!(schema["required"], serde_json::json!(["apiVersion", "kind", "metadata", "services", "apis"]));
    assert!(closed >= 12, "{closed}");
}
