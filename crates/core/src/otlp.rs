//! Spans as OpenTelemetry protocol (OTLP) messages (design §3.11).
//!
//! A call is a CLIENT span at the caller's sidecar and a SERVER span at the callee's, so that any OpenTelemetry backend
//! shows the call tree: the CLIENT span's id is the call's, its parent is the SERVER span of the call above, and the
//! SERVER span's parent is the CLIENT span. Standard attributes say what was called and how it ended; everything else
//! of a [`CallSpan`] travels in attributes `aftershock.*`, without loss. A span without any of these is foreign: it is
//! counted and kept out. One with malformed ones is an error, since a span half understood would falsify a verdict.
//!
//! The version of the attributes is [`SCHEMA`], on every span; a change of meaning raises it.

mod encode;
mod message;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use prost::Message as _;
use serde::de::DeserializeOwned;

use crate::evidence::{Gap, GapKind, Gaps};
use crate::id::{CallId, ExecutionId, ObserverId, Token, scatter};
use crate::name::{Api, Service};
use crate::plan::Side;
use crate::span::{CallSpan, Injection, Instant, Pass};

use message::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse, KIND_CLIENT, KIND_SERVER,
    KeyValue, Resource, Span, Value,
};

pub use encode::Batch;

/// The version of the `aftershock.*` attributes.
pub const SCHEMA: u64 = 1;

/// The largest request body either end makes or takes, in bytes.
pub const MAX_BODY: usize = 4 << 20;

/// `content-type` of binary protobuf bodies.
pub const PROTOBUF: &str = "application/x-protobuf";

/// `content-type` of OTLP/JSON bodies.
pub const JSON: &str = "application/json";

/// Why a body is not an export request.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// More than [`MAX_BODY`].
    #[error("a body of {0} bytes, expected at most {MAX_BODY}")]
    TooLarge(usize),
    /// Not the protobuf encoding of the message.
    #[error("the body is no OTLP message in protobuf")]
    Protobuf(#[from] prost::DecodeError),
    /// Not the JSON encoding of the message.
    #[error("the body is no OTLP message in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A span of ours with an attribute that is missing or malformed.
    #[error("span {span:?}: attribute {attribute}: {problem}")]
    Attribute {
        /// The span's id, in hexadecimal, and its name.
        span: String,
        /// Which attribute.
        attribute: &'static str,
        /// What was expected, what was found.
        problem: String,
    },
}

/// What an export request held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decoded {
    /// Our spans, in the order of the request.
    pub spans: Vec<CallSpan>,
    /// How many spans were not ours.
    pub foreign: usize,
}

/// One `ExportTraceServiceRequest` in protobuf, for [`crate::wire::TRACES_PATH`].
pub fn encode(spans: &[CallSpan]) -> Vec<u8> {
    let mut batch = Batch::default();
    spans.iter().for_each(|span| batch.push(span));
    batch.finish()
}

/// Read an `ExportTraceServiceRequest` in protobuf.
///
/// # Errors
/// When the bytes are not such a message, or a span of ours is malformed.
pub fn decode(body: &[u8]) -> Result<Decoded, OtlpError> {
    bounded(body)?;
    spans(ExportTraceServiceRequest::decode(body)?)
}

/// Read an `ExportTraceServiceRequest` in OTLP/JSON.
///
/// # Errors
/// As [`decode`].
pub fn decode_json(body: &[u8]) -> Result<Decoded, OtlpError> {
    bounded(body)?;
    spans(serde_json::from_slice(body)?)
}

fn bounded(body: &[u8]) -> Result<(), OtlpError> {
    if body.len() > MAX_BODY { Err(OtlpError::TooLarge(body.len())) } else { Ok(()) }
}

/// The collector's answer: `ExportTraceServiceResponse`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Spans that were not accepted and shall not be sent again.
    pub rejected: u64,
    /// Why.
    pub message: String,
}

impl Answer {
    fn to_message(&self) -> ExportTraceServiceResponse {
        let partial_success = (*self != Answer::default()).then(|| ExportTracePartialSuccess {
            rejected_spans: i64::try_from(self.rejected).unwrap_or(i64::MAX),
            error_message: self.message.clone(),
        });
        ExportTraceServiceResponse { partial_success }
    }

    /// In protobuf. Everything accepted is the empty message, of no bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.to_message().encode_to_vec()
    }

    /// In OTLP/JSON.
    pub fn encode_json(&self) -> String {
        match self.to_message().partial_success {
            None => "{}".to_owned(),
            Some(partial) => serde_json::json!({"partialSuccess": {
                "rejectedSpans": partial.rejected_spans.to_string(),
                "errorMessage": partial.error_message,
            }})
            .to_string(),
        }
    }

    /// Read from protobuf.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn decode(body: &[u8]) -> Result<Answer, OtlpError> {
        let partial = ExportTraceServiceResponse::decode(body)?.partial_success.unwrap_or_default();
        Ok(Answer { rejected: u64::try_from(partial.rejected_spans).unwrap_or(0), message: partial.error_message })
    }
}

// ---- ids ------------------------------------------------------------------------------------------------------------

/// Ids of zero are invalid in OpenTelemetry.
fn nonzero(id: u64) -> u64 {
    id.max(1)
}

fn trace_id(span: &CallSpan) -> u128 {
    if span.trace_id != 0 {
        return span.trace_id;
    }
    let seed = if span.execution.is_zero() { span_id(span) } else { span.execution.0 };
    u128::from(nonzero(scatter(seed))) << 64 | u128::from(seed)
}

fn span_id(span: &CallSpan) -> u64 {
    let call = match span.call.0 {
        // An unassociated call may have no id; its span still needs one.
        0 => nonzero(scatter(span.observer.0 ^ span.request.unix_nanos)),
        call => call,
    };
    match span.side {
        Side::Caller => call,
        Side::Callee => server_span_id(CallId(call)),
    }
}

fn server_span_id(call: CallId) -> u64 {
    nonzero(scatter(call.0))
}

fn parent_span_id(span: &CallSpan) -> Option<u64> {
    match span.side {
        // Where no caller is known, none recorded a CLIENT span: at an entry, and behind a hop without sidecar.
        Side::Callee if span.caller.is_some() => Some(nonzero(span.call.0)),
        Side::Caller | Side::Callee => span.parent.map(server_span_id),
    }
}

// ---- decoding -------------------------------------------------------------------------------------------------------

fn spans(request: ExportTraceServiceRequest) -> Result<Decoded, OtlpError> {
    let mut decoded = Decoded::default();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.unwrap_or_default();
        for of_scope in of_resource.scope_spans {
            for span in of_scope.spans {
                if span.attributes.iter().any(|attribute| attribute.key.starts_with("aftershock.")) {
                    decoded.spans.push(Reading::new(&span, &resource).call_span()?);
                } else {
                    decoded.foreign += 1;
                }
            }
        }
    }
    Ok(decoded)
}

/// One span of ours, with its attributes by key.
struct Reading<'a> {
    span: &'a Span,
    attributes: BTreeMap<&'a str, &'a Value>,
    resource: BTreeMap<&'a str, &'a Value>,
}

/// Attributes by key; of several with one key, which the protocol forbids, the first.
fn by_key(attributes: &[KeyValue]) -> BTreeMap<&str, &Value> {
    let mut map = BTreeMap::new();
    for attribute in attributes {
        if let Some(value) = attribute.value.as_ref().and_then(|any| any.value.as_ref()) {
            map.entry(attribute.key.as_str()).or_insert(value);
        }
    }
    map
}

impl<'a> Reading<'a> {
    fn new(span: &'a Span, resource: &'a Resource) -> Self {
        Reading { span, attributes: by_key(&span.attributes), resource: by_key(&resource.attributes) }
    }

    fn call_span(&self) -> Result<CallSpan, OtlpError> {
        let schema: u64 = self.required("aftershock.schema")?;
        if schema != SCHEMA {
            let problem = format!("expected the schema version {SCHEMA} of this build, found {schema}");
            return Err(self.error("aftershock.schema", problem));
        }
        let side = match self.span.kind {
            KIND_CLIENT => Side::Caller,
            KIND_SERVER => Side::Callee,
            other => return Err(self.error("kind", format!("expected CLIENT (3) or SERVER (2), found {other}"))),
        };
        let trace_id = if self.flag("aftershock.trace_id_derived")? {
            0
        } else {
            let bytes = self.span.trace_id.as_slice().try_into();
            u128::from_be_bytes(bytes.map_err(|_| self.error("trace_id", "expected 16 bytes".to_owned()))?)
        };
        let response = match self.optional::<u64>("aftershock.response.clock")? {
            None => None,
            Some(clock) => Some(Instant { clock, unix_nanos: self.required("aftershock.response.unix_nanos")? }),
        };
        Ok(CallSpan {
            side,
            service: self.of_resource::<Service>("service.name")?,
            observer: self.of_resource::<ObserverId>("service.instance.id")?,
            execution: self.required::<ExecutionId>("aftershock.execution")?,
            token: self.optional::<Token>("aftershock.token")?.unwrap_or_default(),
            call: self.required::<CallId>("aftershock.call")?,
            parent: self.optional::<CallId>("aftershock.parent")?,
            caller: self.optional::<Service>("aftershock.caller")?,
            api: self.required::<Api>("aftershock.api")?,
            association: self.required_word("aftershock.association")?,
            trace_id,
            request: Instant {
                clock: self.required("aftershock.request.clock")?,
                unix_nanos: self.span.start_time_unix_nano,
            },
            response,
            ended_unix_nanos: self.span.end_time_unix_nano,
            outcome: self.optional_word("aftershock.outcome")?,
            http_status: self.optional("http.response.status_code")?,
            grpc_status: self.optional("rpc.grpc.status_code")?,
            made: self.flag("aftershock.made")?,
            ending: self.required_word("aftershock.ending")?,
            evidence_went: self.flag("aftershock.evidence.went")?,
            evidence_came: self.flag("aftershock.evidence.came")?,
            gaps: self.gaps()?,
            messages: self.optional("aftershock.messages")?,
            passes: self.passes()?,
            injection: self.injection()?,
        })
    }

    fn error(&self, attribute: &'static str, problem: String) -> OtlpError {
        let id: String = self.span.span_id.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name: String = self.span.name.chars().take(80).collect();
        OtlpError::Attribute { span: format!("{id} {name}"), attribute, problem }
    }

    /// A value as text, whether it came as text or as a number.
    fn parse<T: FromStr<Err: Display>>(&self, key: &'static str, value: &Value) -> Result<T, OtlpError> {
        let parsed = match value {
            Value::String(text) => text.parse(),
            Value::Int(number) => number.to_string().parse(),
            other => return Err(self.error(key, format!("expected text or an integer, found {}", kind(other)))),
        };
        parsed.map_err(|error| self.error(key, format!("{error} (found {})", shown(value))))
    }

    fn optional<T: FromStr<Err: Display>>(&self, key: &'static str) -> Result<Option<T>, OtlpError> {
        self.attributes.get(key).map(|value| self.parse(key, value)).transpose()
    }

    fn required<T: FromStr<Err: Display>>(&self, key: &'static str) -> Result<T, OtlpError> {
        self.optional(key)?.ok_or_else(|| self.error(key, "missing".to_owned()))
    }

    fn of_resource<T: FromStr<Err: Display>>(&self, key: &'static str) -> Result<T, OtlpError> {
        let value = self.resource.get(key).ok_or_else(|| self.error(key, "missing from the resource".to_owned()))?;
        self.parse(key, value)
    }

    fn optional_word<T: DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, OtlpError> {
        let Some(word) = self.optional::<String>(key)? else { return Ok(None) };
        serde_json::from_value(serde_json::Value::String(word)).map(Some).map_err(|e| self.error(key, e.to_string()))
    }

    fn required_word<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, OtlpError> {
        self.optional_word(key)?.ok_or_else(|| self.error(key, "missing".to_owned()))
    }

    fn flag(&self, key: &'static str) -> Result<bool, OtlpError> {
        match self.attributes.get(key) {
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(key, format!("expected true or false, found {}", shown(other)))),
            None => Err(self.error(key, "missing".to_owned())),
        }
    }

    fn texts(&self, key: &'static str) -> Result<Vec<&'a str>, OtlpError> {
        let list = match self.attributes.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(self.error(key, format!("expected an array, found {}", kind(other)))),
        };
        list.values
            .iter()
            .map(|any| match &any.value {
                Some(Value::String(text)) => Ok(text.as_str()),
                _ => Err(self.error(key, "expected an array of text".to_owned())),
            })
            .collect()
    }

    fn gaps(&self) -> Result<Gaps, OtlpError> {
        const KEY: &str = "aftershock.gaps";
        let mut gaps = Gaps::default();
        for text in self.texts(KEY)? {
            if text == "any" {
                gaps.merge(&Gaps::any());
                continue;
            }
            let gap = parse_gap(text)
                .ok_or_else(|| self.error(KEY, format!("expected `any` or `KIND OBSERVER SERVICE`, found {text:?}")))?;
            gaps.insert(gap);
        }
        Ok(gaps)
    }

    fn passes(&self) -> Result<Vec<Pass>, OtlpError> {
        const KEY: &str = "aftershock.passes";
        self.texts(KEY)?
            .into_iter()
            .map(|text| serde_json::from_str(text).map_err(|error| self.error(KEY, error.to_string())))
            .collect()
    }

    fn injection(&self) -> Result<Option<Injection>, OtlpError> {
        let Some(rule) = self.optional("aftershock.injection.rule")? else { return Ok(None) };
        Ok(Some(Injection {
            rule,
            k: self.required("aftershock.injection.k")?,
            decided: self.required("aftershock.injection.decided")?,
            held: self.flag("aftershock.injection.held")?,
            fault: self.required("aftershock.injection.fault")?,
        }))
    }
}

fn parse_gap(text: &str) -> Option<Gap> {
    let mut parts = text.splitn(3, ' ');
    let kind = match parts.next()? {
        "number" => GapKind::Number,
        "evidence" => GapKind::Evidence,
        _ => return None,
    };
    Some(Gap { kind, observer: parts.next()?.parse().ok()?, service: parts.next()?.parse().ok()? })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text",
        Value::Bool(_) => "a truth value",
        Value::Int(_) => "an integer",
        Value::Double(_) => "a floating-point number",
        Value::Array(_) => "an array",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Int(number) => number.to_string(),
        other => kind(other).to_owned(),
    }
}
