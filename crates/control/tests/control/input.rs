use aftershock_control::api::{RoundSummary, Status};
use aftershock_core::id::Token;
use aftershock_core::otlp;
use aftershock_core::plan::Plan;
use aftershock_core::wire::{FromController, FromSidecar, MAX_LINE, PROTOCOL};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokio::io::AsyncWriteExt;

use crate::sidecar::{Sidecar, hello, read, rest, upgraded};
use crate::spans::{charge_server, entry};
use crate::*;

const JSON: &str = "content-type: application/json\r\n";
const PROTOBUF: &str = "content-type: application/x-protobuf\r\n";

#[tokio::test]
async fn garbage_is_answered_with_an_error_and_does_no_harm() {
    let (_controller, api) = patient().await;
    let _checkout = Sidecar::connect(api, "checkout", 1).await;
    // Method, path, header lines, body; status, and how the error begins.
    type Case<'a> = (&'a str, &'a str, &'a str, &'a [u8], u16, &'a str);
    let cases: &[Case<'_>] = &[
        ("POST", "/v1/rounds", JSON, b"", 400, "the body is malformed: EOF while parsing a value at line 1 column 0"),
        (
            "POST",
            "/v1/rounds",
            JSON,
            b"{\"scenario\":1}",
            400,
            "the body is malformed: invalid type: integer `1`, expected a string at line 1 column 13",
        ),
        ("POST", "/v1/rounds", JSON, b"\xff\xfe\0", 400, "the body is malformed: expected value at line 1 column 1"),
        (
            "POST",
            "/v1/rounds",
            JSON,
            br#"{"scenario":"s","plan":{},"key":"k","colour":1}"#,
            400,
            "the body is malformed: unknown field `colour`",
        ),
        ("POST", "/v1/rounds", "", b"{}", 415, "expected content-type application/json, found \"\""),
        (
            "POST",
            "/v1/rounds",
            "content-type: text/plain\r\n",
            b"{}",
            415,
            "expected content-type application/json, found \"text/plain\"",
        ),
        ("DELETE", "/v1/rounds", "", b"", 405, "/v1/rounds takes other methods than DELETE"),
        ("GET", "/v1/rounds?limit=many", "", b"", 400, "the parameters are malformed: "),
        ("GET", "/v1/rounds?limit=-1", "", b"", 400, "the parameters are malformed: "),
        ("GET", "/v1/rounds?colour=red", "", b"", 400, "the parameters are malformed: "),
        ("GET", "/v1/rounds/99", "", b"", 404, "there is no round 99"),
        ("GET", "/v1/rounds/-1", "", b"", 404, "there is no round -1"),
        ("GET", "/v1/rounds/one", "", b"", 400, "expected the number of a round, found \"one\""),
        ("GET", "/v1/rounds/99999999999999999999", "", b"", 400, "expected the number of a round"),
        ("GET", "/v1/rounds/%ff%fe", "", b"", 400, "expected the number of a round"),
        ("POST", "/v1/rounds/99/renew", "", b"", 404, "there is no round 99"),
        ("POST", "/v1/rounds/99/settle", JSON, br#"{"deadline":"1s"}"#, 404, "there is no round 99"),
        (
            "POST",
            "/v1/rounds/99/settle",
            JSON,
            br#"{"deadline":5}"#,
            400,
            "the body is malformed: expected a duration with a unit",
        ),
        ("POST", "/v1/rounds/99/finish", JSON, br#"{"deadline":"18446744073709551615s"}"#, 404, "there is no round 99"),
        (
            "POST",
            "/v1/rounds/99/conclude",
            JSON,
            br#"{"attempts":[],"oracle":{"found":"held","differences":[]}}"#,
            404,
            "there is no round 99",
        ),
        ("POST", "/v1/rounds/99/conclude", JSON, b"[]", 400, "the body is malformed: "),
        ("GET", "/v1/traces", "", b"", 400, "the parameters are malformed: "),
        ("GET", "/v1/rounds/1/settle", "", b"", 405, "/v1/rounds/1/settle takes other methods than GET"),
        ("GET", "/", "", b"", 404, "there is no path /"),
        ("GET", "/v1/sidecar", "", b"", 426, "expected `connection: upgrade` and `upgrade: aftershock/1`"),
        ("GET", "/v1/sidecar", "upgrade: websocket\r\n", b"", 426, "expected "),
        (
            "POST",
            "/v1/disarm",
            "origin: http://evil.example\r\n",
            b"",
            403,
            "requests of web pages (with an `origin`) are refused",
        ),
        ("GET", "/v1/status", "origin: null\r\n", b"", 403, "requests of web pages"),
        (
            "POST",
            "/v1/traces",
            "",
            b"",
            415,
            "expected content-type application/x-protobuf or application/json, found \"\"",
        ),
        ("POST", "/v1/traces", "content-type: text/html\r\n", b"", 415, "expected content-type "),
        (
            "POST",
            "/v1/traces",
            "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n",
            b"\x1f\x8b",
            415,
            "the content-encoding \"gzip\" is not supported, send spans uncompressed",
        ),
        ("POST", "/v1/traces", PROTOBUF, b"\xff\xff\xff\xff", 400, "the body is no OTLP message in protobuf"),
        ("POST", "/v1/traces", JSON, b"{\"resourceSpans\":7}", 400, "the body is no OTLP message in JSON: "),
    ];
    for (method, path, headers, body, status, error) in cases {
        let answer = api.send(method, path, headers, body).await;
        let found = answer.error(*status);
        assert!(found.starts_with(error), "{method} {path}: {found}");
    }
    for raw in [&b"GET\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET /v1/status HTTP/1.1\r\nhost : x\r\n\r\n"] {
        assert_eq!(api.raw(raw).await.status, 400);
    }
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!((status.sidecars.len(), status.stored_rounds), (1, 0));
}

#[tokio::test]
async fn oversized_bodies_are_refused() {
    let (_controller, api) = patient().await;
    let body = vec![b' '; otlp::MAX_BODY + 1];
    for headers in [PROTOBUF, JSON] {
        let error = api.send("POST", "/v1/traces", headers, &body).await.error(413);
        assert_eq!(error, format!("expected a body of at most {} bytes", otlp::MAX_BODY));
    }
    let error = api.send("POST", "/v1/rounds", JSON, &body[..(4 << 20) + 1]).await.error(413);
    assert_eq!(error, format!("expected a body of at most {} bytes", 4 << 20));
    // Chunked: its length is not known before.
    let head =
        format!("POST /v1/rounds HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n");
    let chunk = format!("{:x}\r\n", (4 << 20) + 1);
    let request = [head.as_bytes(), chunk.as_bytes(), &body[..(4 << 20) + 1], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(api.raw(&request).await.status, 413);
    let rounds: Vec<RoundSummary> = api.get("/v1/rounds").await.ok();
    assert_eq!(rounds, []);
}

#[tokio::test]
async fn spans_of_others_and_of_ordinary_traffic_are_taken_and_let_go() {
    let (_controller, api) = patient().await;
    let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], name: "GET /".to_owned(), ..Span::default() };
    let scope = ScopeSpans { spans: vec![span; 3], ..ScopeSpans::default() };
    let foreign = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() }],
    };
    let answer = api.send("POST", "/v1/traces", PROTOBUF, &foreign.encode_to_vec()).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b""[..]));
    assert!(answer.head.contains("content-type: application/x-protobuf"), "{}", answer.head);
    let headers = "content-type: Application/JSON; charset=utf-8\r\n";
    let answer = api.send("POST", "/v1/traces", headers, &serde_json::to_vec(&foreign).unwrap()).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"{}"[..]));
    let spans = [entry(Token(0), 1), entry(Token(99), 1)];
    sidecar::export(api, &spans).await;
    let status: Status = api.get("/v1/status").await.ok();
    let counted = status.collected;
    assert_eq!((counted.foreign, counted.ordinary, counted.unknown, counted.kept), (6, 1, 1, 0));
}

#[tokio::test]
async fn json_spans_complete_a_round_as_protobuf_ones_do() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let round = started(api, Plan::default()).await;
    checkout.was_busy(round.token);
    let protobuf = otlp::encode(&[entry(round.token, 1)]);
    let request = ExportTraceServiceRequest::decode(protobuf.as_slice()).unwrap();
    assert_eq!(api.send("POST", "/v1/traces", JSON, &serde_json::to_vec(&request).unwrap()).await.status, 200);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.traces[0].calls[0].server, Some(entry(round.token, 1)));
}

#[tokio::test]
async fn spans_beyond_the_limit_of_a_round_are_rejected_and_make_it_incomplete() {
    let options = Options { spans_per_round: 1, acknowledge_within: AMPLE, ..Options::default() };
    let (_controller, api) = controller(options).await;
    let _checkout = Sidecar::connect(api, "checkout", 1).await;
    let round = started(api, Plan::default()).await;
    let body = otlp::encode(&[entry(round.token, 1), charge_server(round.token, 1)]);
    let answer = api.send("POST", "/v1/traces", PROTOBUF, &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(otlp::Answer::decode(&answer.body).unwrap().rejected, 1);
    let finished = finish(api, round.id, AMPLE).await;
    assert_eq!(finished.reasons, ["the collector dropped 1 span(s) beyond the limit of one round"]);
}

async fn refused(api: Api, lines: &[u8]) -> String {
    let (mut reader, mut writer) = upgraded(api).await;
    // It may be refused before all is written.
    let _ = writer.write_all(lines).await;
    let refused = loop {
        match read(&mut reader).await {
            Some(FromController::Refused { reason }) => break reason,
            Some(FromController::Welcome { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rest(reader).await, "", "the connection is closed after that");
    refused
}

#[tokio::test]
async fn a_sidecar_that_does_not_speak_the_protocol_is_told_why() {
    let (_controller, api) = patient().await;
    let line = |message: &FromSidecar| {
        let mut line = serde_json::to_string(message).unwrap();
        line.push('\n');
        line
    };
    let hello = FromSidecar::Hello(hello("cart", 5));
    // One version apart, in both directions; the other protocol's words may have another form.
    for theirs in [PROTOCOL - 1, PROTOCOL + 1] {
        let other = line(&hello)
            .replace(&format!("\"protocol\":{PROTOCOL}"), &format!("\"protocol\":{theirs},\"new\":true"))
            .replace("\"inbound\"", "\"in\"");
        let expected = format!(
            "the sidecar of cart (version 0.1.0-test) speaks protocol {theirs}, this controller (version 0.1.0) speaks \
             protocol {PROTOCOL}"
        );
        assert_eq!(refused(api, other.as_bytes()).await, expected);
    }
    let error = refused(api, b"GET / HTTP/1.1\n").await;
    assert!(error.starts_with(&format!("expected a message of protocol {PROTOCOL}: ")), "{error}");
    assert_eq!(
        refused(api, line(&FromSidecar::Armed { token: Token(1) }).as_bytes()).await,
        "expected `hello` first and only once"
    );
    assert_eq!(refused(api, line(&hello).repeat(2).as_bytes()).await, "expected `hello` first and only once");
    let unknown = line(&hello) + "{\"say\":\"sing\"}\n";
    let error = refused(api, unknown.as_bytes()).await;
    assert!(
        error.starts_with(&format!("expected a message of protocol {PROTOCOL}: unknown variant `sing`")),
        "{error}"
    );
    let error = refused(api, &vec![b'['; MAX_LINE + 1]).await;
    assert_eq!(error, format!("a line is longer than {MAX_LINE} bytes"));
    let error = refused(api, (line(&hello) + &"[".repeat(1000) + "\n").as_bytes()).await;
    assert!(error.starts_with(&format!("expected a message of protocol {PROTOCOL}: ")), "{error}");
    let status: Status = api.get("/v1/status").await.ok();
    assert_eq!(status.sidecars, []);
}

#[tokio::test]
async fn messages_about_rounds_that_are_not_there_are_ignored() {
    let (_controller, api) = patient().await;
    let checkout = Sidecar::connect(api, "checkout", 1).await;
    let token = Token(42);
    checkout.say(FromSidecar::Armed { token });
    checkout.say(FromSidecar::Lapsed { token });
    checkout.say(FromSidecar::Disarmed { token });
    checkout.say(FromSidecar::Activity { token, begun: 3, open: vec![] });
    checkout.say(FromSidecar::Flushed { id: u64::MAX, exported: 0, lost: 0, lost_of: [(token, 3)].into() });
    let round = started(api, Plan::default()).await;
    checkout.record([entry(round.token, 1)]);
    assert!(finish(api, round.id, AMPLE).await.reasons.is_empty());
}
