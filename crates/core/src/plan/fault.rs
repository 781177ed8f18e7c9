//! What a fault does to a message, and how files write it (design §3.5).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::duration::Interval;

/// What happens to the message. In files: `drop`, `reset`, `abort`, `release`, `delay: 100ms`, `reset: {code: CANCEL}`,
/// `error: 503` or `error: {status: 503, body: "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The message is held for this long, then goes on.
    Delay(Interval),
    /// The message is lost; the client gets no byte.
    Drop,
    /// TCP RST on HTTP/1; RST_STREAM on HTTP/2.
    Reset(Reset),
    /// HTTP 503, or gRPC UNAVAILABLE.
    Abort,
    /// A chosen answer.
    Error(ErrorAnswer),
    /// Only with `hold`: the message goes on unchanged once the guard holds, which makes an order happen.
    Release,
}

const WORDS: [&str; 4] = ["drop", "reset", "abort", "release"];
const FIELDS: [&str; 3] = ["delay", "reset", "error"];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Delay(time) => write!(f, "delay {time}"),
            Fault::Drop => f.write_str("drop"),
            Fault::Reset(reset) => reset.fmt(f),
            Fault::Abort => f.write_str("abort"),
            Fault::Release => f.write_str("release"),
            Fault::Error(answer) => match (answer.status, answer.grpc_status) {
                (_, Some(code)) => write!(f, "error grpc-status {code}"),
                (Some(status), None) => write!(f, "error {status}"),
                (None, None) => f.write_str("error"),
            },
        }
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        fn tagged<S: Serializer>(s: S, name: &str, value: &impl Serialize) -> Result<S::Ok, S::Error> {
            let mut map = s.serialize_map(Some(1))?;
            map.serialize_entry(name, value)?;
            map.end()
        }
        match self {
            Fault::Delay(time) => tagged(s, "delay", time),
            Fault::Drop => s.serialize_str("drop"),
            Fault::Reset(reset) if *reset == Reset::default() => s.serialize_str("reset"),
            Fault::Reset(reset) => tagged(s, "reset", reset),
            Fault::Abort => s.serialize_str("abort"),
            Fault::Error(answer) => tagged(s, "error", answer),
            Fault::Release => s.serialize_str("release"),
        }
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct FaultVisitor;

        impl<'de> Visitor<'de> for FaultVisitor {
            type Value = Result<Fault, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`drop`, `reset`, `abort`, `release`, or a mapping with `delay`, `reset` or `error`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
                Ok(match word {
                    "drop" => Ok(Fault::Drop),
                    "reset" => Ok(Fault::Reset(Reset::default())),
                    "abort" => Ok(Fault::Abort),
                    "release" => Ok(Fault::Release),
                    other => Err(other.to_owned()),
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let Some(name) = map.next_key::<String>()? else {
                    return Err(de::Error::invalid_length(0, &self));
                };
                let fault = match name.as_str() {
                    "delay" => Fault::Delay(map.next_value()?),
                    "reset" => Fault::Reset(map.next_value()?),
                    "error" => Fault::Error(map.next_value::<Answered>()?.0),
                    _ => return Err(de::Error::unknown_field(&name, &FIELDS)),
                };
                match map.next_key::<String>()? {
                    None => Ok(Ok(fault)),
                    Some(more) => Err(de::Error::custom(format_args!("expected one fault, found `{more}` too"))),
                }
            }
        }

        d.deserialize_any(FaultVisitor)?.map_err(|word| match FIELDS.contains(&word.as_str()) {
            true => de::Error::custom(format_args!("expected a value for `{word}`")),
            false => de::Error::unknown_variant(&word, &WORDS),
        })
    }
}

/// An [`ErrorAnswer`], or only its HTTP status.
struct Answered(ErrorAnswer);

impl<'de> Deserialize<'de> for Answered {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AnsweredVisitor;

        impl<'de> Visitor<'de> for AnsweredVisitor {
            type Value = Answered;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an HTTP status or a mapping")
            }

            fn visit_u64<E: de::Error>(self, status: u64) -> Result<Answered, E> {
                match u16::try_from(status) {
                    Ok(status) => Ok(Answered(ErrorAnswer { status: Some(status), ..ErrorAnswer::default() })),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Unsigned(status), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, status: i64) -> Result<Answered, E> {
                match u64::try_from(status) {
                    Ok(status) => self.visit_u64(status),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(status), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Answered, A::Error> {
                ErrorAnswer::deserialize(MapAccessDeserializer::new(map)).map(Answered)
            }
        }

        d.deserialize_any(AnsweredVisitor)
    }
}

impl JsonSchema for Fault {
    fn schema_name() -> Cow<'static, str> {
        "Fault".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let field = |name: &str, value: schemars::Schema| {
            schemars::json_schema!({
                "type": "object",
                "properties": {name: value},
                "required": [name],
                "additionalProperties": false
            })
        };
        let status = schemars::json_schema!({"type": "integer", "minimum": 200, "maximum": 599});
        let answer = generator.subschema_for::<ErrorAnswer>();
        let error = schemars::json_schema!({"oneOf": [status, answer]});
        schemars::json_schema!({
            "description": "what happens to the message",
            "oneOf": [
                {"enum": WORDS},
                field("delay", generator.subschema_for::<Interval>()),
                field("reset", generator.subschema_for::<Reset>()),
                field("error", error)
            ]
        })
    }
}

/// How [`Fault::Reset`] cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// HTTP/2 error code of the RST_STREAM; INTERNAL_ERROR if left out. HTTP/1 has none.
    #[serde(default, skip_serializing_if = "ResetCode::is_default")]
    pub code: ResetCode,
    /// What is cut.
    #[serde(default, skip_serializing_if = "ResetScope::is_default")]
    pub scope: ResetScope,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reset")?;
        if self.code != ResetCode::default() {
            write!(f, " {}", self.code)?;
        }
        if self.scope == ResetScope::Connection {
            f.write_str(" of the connection")?;
        }
        Ok(())
    }
}

/// What a reset cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResetScope {
    /// The exchange: on HTTP/2 its stream only; on HTTP/1 the connection, which carries nothing else.
    #[default]
    Stream,
    /// The application's connection with everything on it.
    Connection,
}

impl ResetScope {
    fn is_default(&self) -> bool {
        *self == ResetScope::default()
    }
}

/// An HTTP/2 error code (RFC 9113 §7) that a reset may have, by its name in files. REFUSED_STREAM is none of them: clients
/// take it for a promise that nothing happened, and retry silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResetCode(u32);

const CODES: [(&str, u32); 13] = [
    ("NO_ERROR", 0),
    ("PROTOCOL_ERROR", 1),
    ("INTERNAL_ERROR", 2),
    ("FLOW_CONTROL_ERROR", 3),
    ("SETTINGS_TIMEOUT", 4),
    ("STREAM_CLOSED", 5),
    ("FRAME_SIZE_ERROR", 6),
    ("CANCEL", 8),
    ("COMPRESSION_ERROR", 9),
    ("CONNECT_ERROR", 10),
    ("ENHANCE_YOUR_CALM", 11),
    ("INADEQUATE_SECURITY", 12),
    ("HTTP_1_1_REQUIRED", 13),
];

/// Why a text is no [`ResetCode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseResetCodeError {
    /// RFC 9113 §8.7.
    #[error("REFUSED_STREAM says that nothing happened, and clients retry it silently: choose another code")]
    Refused,
    /// No name of an HTTP/2 error code.
    #[error("expected the name of an HTTP/2 error code such as `INTERNAL_ERROR` or `CANCEL`, found {0:?}")]
    Unknown(String),
}

impl ResetCode {
    /// The number in the frame.
    pub fn code(self) -> u32 {
        self.0
    }

    fn is_default(&self) -> bool {
        *self == ResetCode::default()
    }
}

impl Default for ResetCode {
    fn default() -> Self {
        ResetCode(2)
    }
}

impl FromStr for ResetCode {
    type Err = ParseResetCodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match CODES.iter().find(|(name, _)| *name == text) {
            Some((_, code)) => Ok(ResetCode(*code)),
            None if text == "REFUSED_STREAM" => Err(ParseResetCodeError::Refused),
            None => Err(ParseResetCodeError::Unknown(text.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for ResetCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODES.iter().find(|(_, code)| *code == self.0).map_or("?", |(name, _)| name))
    }
}

impl Serialize for ResetCode {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResetCode {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for ResetCode {
    fn schema_name() -> Cow<'static, str> {
        "ResetCode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = CODES.iter().map(|(name, _)| *name).collect();
        schemars::json_schema!({"description": "an HTTP/2 error code (RFC 9113 section 7)", "enum": names})
    }
}

/// The answer of [`Fault::Error`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorAnswer {
    /// HTTP status, 500 if left out; gRPC answers have 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 200, max = 599))]
    pub status: Option<u16>,
    /// gRPC status, for gRPC calls; 13 (INTERNAL) if left out there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub grpc_status: Option<u8>,
    /// gRPC message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_message: Option<String>,
    /// Further header fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body; gRPC answers have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_back_as_it_was_written_in_json_and_yaml() {
        let cancel = Reset { code: "CANCEL".parse().unwrap(), scope: ResetScope::Connection };
        for fault in [
            Fault::Delay(Interval(std::time::Duration::from_millis(20))),
            Fault::Drop,
            Fault::Reset(Reset::default()),
            Fault::Reset(cancel),
            Fault::Abort,
            Fault::Error(ErrorAnswer { status: Some(418), body: "no".to_owned(), ..ErrorAnswer::default() }),
            Fault::Release,
        ] {
            let json = serde_json::to_string(&fault).unwrap();
            assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), fault, "{json}");
            assert_eq!(crate::yaml::from_str::<Fault>("f", &json).unwrap(), fault, "{json}");
        }
        let short: Fault = serde_json::from_str(r#"{"error": 503}"#).unwrap();
        assert_eq!(short, Fault::Error(ErrorAnswer { status: Some(503), ..ErrorAnswer::default() }));
    }

    #[test]
    fn what_is_no_fault_is_refused_with_what_was_expected() {
        for (text, expected) in [
            (r#""dorp""#, "drop"),
            (r#""delay""#, "expected a value for `delay`"),
            (r#"{"delay": "1s", "reset": {}}"#, "expected one fault"),
            (r#"{"explode": 1}"#, "expected one of `delay`, `reset`, `error`"),
            (r#"{}"#, "a mapping with `delay`"),
            (r#"{"reset": {"code": "REFUSED_STREAM"}}"#, "retry it silently"),
            (r#"{"reset": {"code": "BOOM"}}"#, "such as `INTERNAL_ERROR`"),
            (r#"{"error": -1}"#, "an HTTP status or a mapping"),
        ] {
            let error = serde_json::from_str::<Fault>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
