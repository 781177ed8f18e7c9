//! The OTLP messages this project needs, for protobuf by `prost` and for OTLP/JSON by `serde`.
//!
//! Field numbers and names are those of `opentelemetry/proto/{collector/trace,trace,resource,common}/v1`. Fields left
//! out here (events, links, byte and map values, …) are skipped when read, as both encodings ask for.

use std::fmt;

use prost::{Message, Oneof};
use serde::de::{Deserialize, Deserializer, Error as _, Unexpected, Visitor};

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<ExportTracePartialSuccess>,
}

/// `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    #[serde(deserialize_with = "signed")]
    pub(crate) rejected_spans: i64,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) error_message: String,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) scope_spans: Vec<ScopeSpans>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) spans: Vec<Span>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) version: String,
}

/// `Span`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "hex")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "hex")]
    pub(crate) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    #[serde(deserialize_with = "hex")]
    pub(crate) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[prost(int32, tag = "6")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) kind: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(deserialize_with = "unsigned")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    #[serde(deserialize_with = "unsigned")]
    pub(crate) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
}

/// `Span.SpanKind` of spans at the callee.
pub(crate) const KIND_SERVER: i32 = 2;

/// `Span.SpanKind` of spans at the caller.
pub(crate) const KIND_CLIENT: i32 = 3;

/// `Status`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) message: String,
    #[prost(int32, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) code: i32,
}

/// `Status.StatusCode` of a failed operation.
pub(crate) const STATUS_ERROR: i32 = 2;

/// `KeyValue`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

/// `AnyValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
    pub(crate) value: Option<Value>,
}

/// The kinds of [`AnyValue`] that this project writes or looks at.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
}

/// `ArrayValue`.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) values: Vec<AnyValue>,
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        /// A number as itself, or as text: 64-bit integers and the values JSON numbers cannot say.
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Number<T> {
            Itself(T),
            Text(String),
        }

        impl<T: std::str::FromStr> Number<T> {
            fn get<E: serde::de::Error>(self, expected: &'static str) -> Result<T, E> {
                match self {
                    Number::Itself(number) => Ok(number),
                    Number::Text(text) => text.parse().map_err(|_| E::invalid_value(Unexpected::Str(&text), &expected)),
                }
            }
        }

        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Json {
            string_value: Option<String>,
            bool_value: Option<bool>,
            int_value: Option<Number<i64>>,
            double_value: Option<Number<f64>>,
            array_value: Option<ArrayValue>,
        }

        let json = Json::deserialize(d)?;
        let value = if let Some(text) = json.string_value {
            Some(Value::String(text))
        } else if let Some(flag) = json.bool_value {
            Some(Value::Bool(flag))
        } else if let Some(number) = json.int_value {
            Some(Value::Int(number.get("a 64-bit integer")?))
        } else if let Some(number) = json.double_value {
            Some(Value::Double(number.get("a number")?))
        } else {
            json.array_value.map(Value::Array)
        };
        Ok(AnyValue { value })
    }
}

/// In proto3 JSON, `null` is the default of every field.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Option::deserialize(d).map(Option::unwrap_or_default)
}

/// Trace and span ids are hexadecimal in OTLP/JSON, in either case, not base64 as other bytes.
fn hex<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
    let text: String = nullable(d)?;
    let malformed = || D::Error::invalid_value(Unexpected::Str(&text), &"an id in hexadecimal digits");
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(malformed());
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8).ok_or_else(malformed);
    text.as_bytes().chunks_exact(2).map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// 64-bit numbers are decimal text in proto3 JSON; numbers are to be accepted.
fn unsigned<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    d.deserialize_any(Decimal(std::marker::PhantomData))
}

/// As [`unsigned`], with a sign.
fn signed<'de, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
    d.deserialize_any(Decimal(std::marker::PhantomData))
}

struct Decimal<T>(std::marker::PhantomData<T>);

impl<T> Visitor<'_> for Decimal<T>
where
    T: TryFrom<u64> + TryFrom<i64> + std::str::FromStr + Default,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a 64-bit number, or one as decimal text")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}
