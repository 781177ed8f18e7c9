use opentelemetry_proto::tonic::collector::trace::v1 as theirs;
use opentelemetry_proto::tonic::common::v1::any_value::Value as TheirValue;
use proptest::prelude::*;

use super::message::{AnyValue, ArrayValue};
use super::*;
use crate::event::Outcome;
use crate::span::{Association, Ending, PassedBy};

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn array(texts: impl IntoIterator<Item = String>) -> Value {
    let values = texts.into_iter().map(|text| AnyValue { value: Some(Value::String(text)) }).collect();
    Value::Array(ArrayValue { values })
}

fn request(spans: &[CallSpan]) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest::decode(encode(spans).as_slice()).unwrap()
}

fn names() -> impl Strategy<Value = Service> {
    "[a-z][a-z0-9.-]{0,12}".prop_map(|name| name.parse().unwrap())
}

fn apis() -> impl Strategy<Value = Api> {
    prop_oneof![
        "[a-z]{1,8} [a-z]{1,6}\\.[A-Z][a-z]{1,6}/[A-Z][a-z]{1,6}",
        "[a-z]{1,8} (GET|POST|DELETE) /[a-z]{0,8}(/\\{[a-z]{1,4}\\})?",
    ]
    .prop_map(|api| api.parse().unwrap())
}

fn instants() -> impl Strategy<Value = Instant> {
    (any::<u64>(), any::<u64>()).prop_map(|(clock, unix_nanos)| Instant { clock, unix_nanos })
}

fn gaps() -> impl Strategy<Value = Gaps> {
    let gap = (any::<bool>(), any::<u64>(), names()).prop_map(|(number, observer, service)| Gap {
        kind: if number { GapKind::Number } else { GapKind::Evidence },
        observer: ObserverId(observer),
        service,
    });
    proptest::collection::vec(gap, 0..6).prop_map(|list| {
        let mut gaps = Gaps::default();
        list.into_iter().for_each(|gap| gaps.insert(gap));
        gaps
    })
}

fn passes() -> impl Strategy<Value = Vec<Pass>> {
    let atoms = || proptest::collection::vec(0..9_usize, 0..3);
    let by = prop_oneof![
        Just(PassedBy::Number),
        atoms().prop_map(PassedBy::GuardFalse),
        atoms().prop_map(PassedBy::GuardUnknown),
        Just(PassedBy::NumberBlocked),
        Just(PassedBy::Outcome),
        Just(PassedBy::Spent),
        Just(PassedBy::HoldDeadline),
        Just(PassedBy::Disarmed),
        Just(PassedBy::RoundOver),
        Just(PassedBy::CallerGone),
        Just(PassedBy::Pipelined),
        Just(PassedBy::Goaway),
        Just(PassedBy::Size),
        Just(PassedBy::ParkedLimit),
        Just(PassedBy::Stream),
        Just(PassedBy::Arbiter),
    ];
    let pass = (0..4_usize, any::<u32>(), any::<u64>(), proptest::option::of(by))
        .prop_map(|(rule, k, clock, passed_by)| Pass { rule, k: Some(k).filter(|k| k % 2 == 0), clock, passed_by });
    proptest::collection::vec(pass, 0..4)
}

fn injections() -> impl Strategy<Value = Option<Injection>> {
    proptest::option::of(
        (0..4_usize, any::<u32>(), any::<u64>(), any::<bool>(), "\\PC{0,20}")
            .prop_map(|(rule, k, decided, held, fault)| Injection { rule, k, decided, held, fault }),
    )
}

prop_compose! {
    fn ids()(service in names(), observer: u64, execution: u64, token: u64, call: u64, parent: Option<u64>,
             caller in proptest::option::of(names()), api in apis(), trace_id: u128, bare: [bool; 4])
        -> (Service, ObserverId, ExecutionId, Token, CallId, Option<CallId>, Option<Service>, Api, u128) {
        let keep = |absent: bool, id: u64| if absent { 0 } else { id };
        (service, ObserverId(observer), ExecutionId(keep(bare[0], execution)), Token(keep(bare[1], token)),
         CallId(keep(bare[2], call)), parent.map(CallId), caller, api, if bare[3] { 0 } else { trace_id })
    }
}

prop_compose! {
    fn call_spans()(
        (service, observer, execution, token, call, parent, caller, api, trace_id) in ids(),
        side in prop_oneof![Just(Side::Caller), Just(Side::Callee)],
        association in proptest::sample::select(Association::ALL.to_vec()),
        request in instants(),
        response in proptest::option::of(instants()),
        (ended_unix_nanos, http_status, grpc_status, messages) in any::<(u64, Option<u16>, Option<u32>, Option<u64>)>(),
        (made, evidence_went, evidence_came) in any::<(bool, bool, bool)>(),
        outcome in proptest::sample::select(vec![None, Some(Outcome::Ok), Some(Outcome::Error), Some(Outcome::Unknown)]),
        ending in proptest::sample::select(
            vec![Ending::Complete, Ending::ApplicationGone, Ending::UpstreamFailed, Ending::Faulted]),
        gaps in gaps(), passes in passes(), injection in injections(),
    ) -> CallSpan {
        CallSpan { side, service, observer, execution, token, call, parent, caller, api, association, trace_id, request,
            response, ended_unix_nanos, outcome, http_status, grpc_status, made, ending, evidence_went, evidence_came,
            gaps, messages, passes, injection }
    }
}

fn charge(side: Side) -> CallSpan {
    CallSpan {
        side,
        service: if side == Side::Caller { "checkout" } else { "payment" }.parse().unwrap(),
        observer: ObserverId(0xabc),
        execution: ExecutionId(0xe),
        token: Token(0x7),
        call: CallId(0xc1),
        parent: Some(CallId(0xc0)),
        caller: Some("checkout".parse().unwrap()),
        api: "payment shop.Payment/Charge".parse().unwrap(),
        association: Association::Exact,
        trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        request: Instant { clock: 4, unix_nanos: 1_700_000_000_000_000_001 },
        response: Some(Instant { clock: 9, unix_nanos: 1_700_000_000_005_000_000 }),
        ended_unix_nanos: 1_700_000_000_005_100_000,
        outcome: Some(Outcome::Ok),
        http_status: Some(200),
        grpc_status: Some(0),
        made: false,
        ending: Ending::Complete,
        evidence_went: true,
        evidence_came: true,
        gaps: Gaps::default(),
        messages: Some(1),
        passes: vec![Pass { rule: 0, k: Some(1), clock: 8, passed_by: Some(PassedBy::GuardFalse(vec![1])) }],
        injection: None,
    }
}

fn their_spans(bytes: &[u8]) -> Vec<opentelemetry_proto::tonic::trace::v1::Span> {
    let request = <theirs::ExportTraceServiceRequest as prost::Message>::decode(bytes).unwrap();
    request.resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(spans in proptest::collection::vec(call_spans(), 0..6)) {
        let decoded = decode(&encode(&spans)).unwrap();
        prop_assert_eq!(decoded, Decoded { spans, foreign: 0 });
    }

    #[test]
    fn the_reference_messages_carry_the_same_spans_in_protobuf_and_in_json(
        spans in proptest::collection::vec(call_spans(), 0..4),
    ) {
        let bytes = encode(&spans);
        let request = <theirs::ExportTraceServiceRequest as prost::Message>::decode(bytes.as_slice()).unwrap();
        let expected = Decoded { spans, foreign: 0 };
        prop_assert_eq!(decode(&prost::Message::encode_to_vec(&request)).unwrap(), expected.clone());
        prop_assert_eq!(decode_json(&serde_json::to_vec(&request).unwrap()).unwrap(), expected);
        for span in their_spans(&bytes) {
            prop_assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
            prop_assert!(span.trace_id.iter().any(|byte| *byte != 0) && span.span_id.iter().any(|byte| *byte != 0));
            prop_assert!(matches!(span.parent_span_id.len(), 0 | 8));
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
        let _ = decode_json(&bytes);
    }

    #[test]
    fn a_changed_byte_does_not_panic(span in call_spans(), at: prop::sample::Index, byte: u8) {
        let mut bytes = encode(&[span]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode(&bytes);
    }
}

#[test]
fn spans_of_one_sidecar_share_a_resource_however_long_they_are() {
    let long = CallSpan {
        passes: (0..600).map(|clock| Pass { rule: 1, k: None, clock, passed_by: None }).collect(),
        api: format!("payment POST /{}", "a/".repeat(200)).parse().unwrap(),
        ..charge(Side::Callee)
    };
    let spans = [charge(Side::Caller), long.clone(), long, charge(Side::Callee), charge(Side::Caller)];
    let request = request(&spans);
    let shared: Vec<usize> = request.resource_spans.iter().map(|of_one| of_one.scope_spans[0].spans.len()).collect();
    assert_eq!(shared, [1, 3, 1]);
    assert_eq!(decode(&encode(&spans)).unwrap().spans, spans);
    let mut batch = Batch::default();
    assert!(batch.is_empty());
    spans.iter().for_each(|span| batch.push(span));
    assert_eq!((batch.len(), batch.size()), (spans.len(), encode(&spans).len()));
}

#[test]
fn client_and_server_spans_make_one_tree() {
    let entry = CallSpan {
        call: CallId(0xc0),
        parent: None,
        caller: None,
        service: "checkout".parse().unwrap(),
        api: "checkout POST /checkout".parse().unwrap(),
        ..charge(Side::Callee)
    };
    let spans = their_spans(&encode(&[entry, charge(Side::Caller), charge(Side::Callee)]));
    assert_eq!(spans.iter().map(|span| span.kind).collect::<Vec<_>>(), [2, 3, 2]);
    assert_eq!(spans[0].parent_span_id, Vec::<u8>::new());
    assert_eq!(spans[1].parent_span_id, spans[0].span_id);
    assert_eq!(spans[1].span_id, 0xc1_u64.to_be_bytes());
    assert_eq!(spans[2].parent_span_id, spans[1].span_id);
    assert_eq!(spans[0].trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
}

#[test]
fn standard_attributes_follow_the_conventions() {
    let span = |span: CallSpan| -> BTreeMap<String, TheirValue> {
        let spans = their_spans(&encode(&[span]));
        spans[0].attributes.iter().map(|a| (a.key.clone(), a.value.clone().unwrap().value.unwrap())).collect()
    };
    let text = |text: &str| Some(TheirValue::StringValue(text.to_owned()));
    let grpc = span(CallSpan { outcome: Some(Outcome::Error), grpc_status: Some(14), ..charge(Side::Caller) });
    assert_eq!(grpc.get("rpc.system").cloned(), text("grpc"));
    assert_eq!(grpc.get("rpc.service").cloned(), text("shop.Payment"));
    assert_eq!(grpc.get("rpc.method").cloned(), text("Charge"));
    assert_eq!(grpc.get("rpc.grpc.status_code").cloned(), Some(TheirValue::IntValue(14)));
    assert_eq!(grpc.get("error.type").cloned(), text("14"));
    assert_eq!(grpc.get("peer.service").cloned(), text("payment"));
    let http = span(CallSpan {
        api: "cart GET /cart/{id}".parse().unwrap(),
        grpc_status: None,
        http_status: Some(404),
        outcome: Some(Outcome::Error),
        ..charge(Side::Callee)
    });
    assert_eq!(http.get("http.request.method").cloned(), text("GET"));
    assert_eq!(http.get("http.route").cloned(), text("/cart/{id}"));
    assert_eq!(http.get("http.response.status_code").cloned(), Some(TheirValue::IntValue(404)));
    assert_eq!(http.get("error.type").cloned(), text("404"));
    let lost = span(CallSpan {
        response: None,
        outcome: None,
        http_status: None,
        grpc_status: None,
        ending: Ending::Faulted,
        ..charge(Side::Caller)
    });
    assert_eq!(lost.get("error.type").cloned(), text("faulted"));
}

#[test]
fn spans_of_others_are_counted_and_kept_out() {
    let mut request = request(&[charge(Side::Caller)]);
    let scope = &mut request.resource_spans[0].scope_spans[0];
    let mut foreign = scope.spans[0].clone();
    foreign.attributes.retain(|attribute| !attribute.key.starts_with("aftershock."));
    scope.spans.insert(0, foreign);
    let decoded = decode(&request.encode_to_vec()).unwrap();
    assert_eq!(decoded, Decoded { spans: vec![charge(Side::Caller)], foreign: 1 });
}

#[test]
fn a_malformed_attribute_of_ours_names_the_span_and_the_attribute() {
    let with = |key: &str, value: Option<Value>| {
        let mut request = request(&[charge(Side::Caller)]);
        let span = &mut request.resource_spans[0].scope_spans[0].spans[0];
        match value {
            None => span.attributes.retain(|attribute| attribute.key != key),
            Some(value) => {
                span.attributes.insert(0, attribute(key, value));
            }
        }
        decode(&request.encode_to_vec()).unwrap_err().to_string()
    };
    for (key, value, problem) in [
        ("aftershock.call", None, "missing"),
        ("aftershock.call", Some(text("xyz")), "expected 1 to 16 hexadecimal digits, found \"xyz\""),
        ("aftershock.call", Some(Value::Bool(true)), "expected text or an integer, found a truth value"),
        ("aftershock.made", Some(text("yes")), "expected true or false, found \"yes\""),
        ("aftershock.api", Some(text("payment")), "expected `SERVICE OPERATION`"),
        ("aftershock.association", Some(text("guessed")), "unknown variant `guessed`"),
        ("aftershock.request.clock", Some(Value::Int(-1)), "invalid digit found in string (found -1)"),
        ("http.response.status_code", Some(Value::Int(70_000)), "found 70000"),
        ("aftershock.gaps", Some(array(["number".to_owned()])), "expected `any` or `KIND OBSERVER SERVICE`"),
        ("aftershock.passes", Some(array(["{".to_owned()])), "EOF while parsing"),
        ("aftershock.schema", Some(Value::Int(2)), "expected the schema version 1 of this build, found 2"),
    ] {
        let error = with(key, value);
        assert!(error.starts_with("span \"00000000000000c1 shop.Payment/Charge\": attribute "), "{error}");
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
}

#[test]
fn json_numbers_ids_and_nulls_are_read_in_every_form_the_protocol_allows() {
    let span = |start: &str, extra: &str| {
        format!(
            r#"{{"resourceSpans":[{{"resource":{{"attributes":[
                {{"key":"service.name","value":{{"stringValue":"checkout"}}}},
                {{"key":"service.instance.id","value":{{"stringValue":"abc"}}}}]}},
              "schemaUrl":"unknown fields are skipped","scopeSpans":[{{"scope":null,"spans":[{{
                "traceId":"0AF7651916CD43DD8448EB211C80319C","spanId":"00000000000000c1","parentSpanId":"",
                "flags":1,"name":null,"kind":3,"startTimeUnixNano":{start},"endTimeUnixNano":"7","events":[{{}}],
                "attributes":[{extra}
                  {{"key":"aftershock.schema","value":{{"intValue":1}}}},
                  {{"key":"aftershock.execution","value":{{"stringValue":"e"}}}},
                  {{"key":"aftershock.call","value":{{"stringValue":"c1"}}}},
                  {{"key":"aftershock.api","value":{{"stringValue":"payment shop.Payment/Charge"}}}},
                  {{"key":"aftershock.association","value":{{"stringValue":"exact"}}}},
                  {{"key":"aftershock.trace_id_derived","value":{{"boolValue":false}}}},
                  {{"key":"aftershock.request.clock","value":{{"intValue":"18"}}}},
                  {{"key":"aftershock.made","value":{{"boolValue":false}}}},
                  {{"key":"aftershock.ending","value":{{"stringValue":"faulted"}}}},
                  {{"key":"aftershock.evidence.went","value":{{"boolValue":true}}}},
                  {{"key":"aftershock.evidence.came","value":{{"boolValue":false}}}},
                  {{"key":"other","value":{{"kvlistValue":{{"values":[]}}}}}},
                  {{"key":"empty","value":{{}}}}]}}]}}]}}]}}"#
        )
    };
    let decoded = decode_json(span("\"18446744073709551615\"", "").as_bytes()).unwrap();
    let [only] = decoded.spans.as_slice() else { panic!("{decoded:?}") };
    assert_eq!(only.request, Instant { clock: 18, unix_nanos: u64::MAX });
    assert_eq!(only.trace_id, charge(Side::Caller).trace_id);
    assert_eq!((only.call, only.ended_unix_nanos, only.response), (CallId(0xc1), 7, None));
    let decoded = decode_json(span("18446744073709551615", "").as_bytes()).unwrap();
    assert_eq!(decoded.spans[0].request.unix_nanos, u64::MAX);
    for (start, extra) in [("-1", ""), ("\"x\"", ""), ("1.5", ""), ("1", r#"{"key":"a","value":{"intValue":"x"}},"#)] {
        let error = decode_json(span(start, extra).as_bytes()).unwrap_err();
        assert!(matches!(error, OtlpError::Json(_)), "{error}");
    }
    for body in
        ["3", "{\"resourceSpans\":3}", "", "{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"traceId\":\"0\"}]}]}]}"]
    {
        assert!(matches!(decode_json(body.as_bytes()), Err(OtlpError::Json(_))), "{body}");
    }
    assert_eq!(decode_json(b"{\"resourceSpans\":null}").unwrap(), Decoded::default());
}

#[test]
fn a_body_beyond_the_limit_is_refused_before_it_is_read() {
    let body = vec![0_u8; MAX_BODY + 1];
    assert!(matches!(decode(&body), Err(OtlpError::TooLarge(n)) if n == MAX_BODY + 1));
    assert!(matches!(decode_json(&body), Err(OtlpError::TooLarge(_))));
}

#[test]
fn the_answer_says_what_was_rejected_and_is_empty_if_nothing_was() {
    assert_eq!(Answer::default().encode(), Vec::<u8>::new());
    assert_eq!(Answer::default().encode_json(), "{}");
    let answer = Answer { rejected: 3, message: "too many spans".to_owned() };
    assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
    let theirs = <theirs::ExportTraceServiceResponse as prost::Message>::decode(answer.encode().as_slice()).unwrap();
    assert_eq!(theirs.partial_success.unwrap().rejected_spans, 3);
    let json: ExportTraceServiceResponse = serde_json::from_str(&answer.encode_json()).unwrap();
    assert_eq!(json, answer.to_message());
}
