//! The small values of a topology file: durations, statuses, counts.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use aftershock_core::duration::Interval;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// How long a caller waits for an answer: a span, or `none` for as long as the peer keeps the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "none" {
            return Ok(Self(None));
        }
        match text.parse::<Interval>() {
            Ok(Interval(span)) if !span.is_zero() => Ok(Self(Some(span))),
            Ok(_) => Err(de::Error::custom("expected a timeout above 0, or `none`")),
            Err(error) => Err(de::Error::custom(format!("{error}; or `none`"))),
        }
    }
}

impl JsonSchema for Timeout {
    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"const": "none"}, generator.subschema_for::<Interval>()]})
    }
}

/// Number of repetitions: written out, or the name of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawCount {
    /// Written out.
    Fixed(u32),
    /// The parameter of this name.
    Param(String),
}

impl<'de> Deserialize<'de> for RawCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;

        impl Visitor<'_> for CountVisitor {
            type Value = RawCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of repetitions or the name of a parameter")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<RawCount, E> {
                u32::try_from(value)
                    .map(RawCount::Fixed)
                    .map_err(|_| E::custom(format!("{value} repetitions are too many")))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<RawCount, E> {
                u64::try_from(value)
                    .map_err(|_| E::custom(format!("{value} is no number of repetitions")))
                    .and_then(|value| self.visit_u64(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<RawCount, E> {
                Ok(RawCount::Param(value.to_owned()))
            }
        }

        deserializer.deserialize_any(CountVisitor)
    }
}

impl JsonSchema for RawCount {
    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["integer", "string"], "minimum": 0, "description": "a number of repetitions, or the name of a parameter"})
    }
}

/// The status an answer carries, as files write it: an HTTP number or the name of a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// HTTP status code.
    Http(u16),
    /// gRPC status code.
    Grpc(GrpcCode),
}

impl Status {
    /// Whether the caller takes it for a success: HTTP below 400, gRPC code 0.
    pub fn is_ok(self) -> bool {
        match self {
            Self::Http(code) => code < 400,
            Self::Grpc(code) => code == GrpcCode::Ok,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(code) => code.fmt(f),
            Self::Grpc(code) => f.write_str(code.name()),
        }
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StatusVisitor;

        impl Visitor<'_> for StatusVisitor {
            type Value = Status;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an HTTP status from 200 to 599 or the name of a gRPC code such as INTERNAL")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Status, E> {
                match u16::try_from(value) {
                    Ok(code @ 200..=599) => Ok(Status::Http(code)),
                    _ => Err(E::custom(format!("{value} is no HTTP status from 200 to 599"))),
                }
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Status, E> {
                self.visit_u64(u64::try_from(value).unwrap_or(0))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Status, E> {
                GrpcCode::from_name(value).map(Status::Grpc).ok_or_else(|| {
                    E::custom(crate::names::unknown("gRPC code", value, GrpcCode::ALL.iter().map(|code| code.name())))
                })
            }
        }

        deserializer.deserialize_any(StatusVisitor)
    }
}

impl JsonSchema for Status {
    fn schema_name() -> Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = GrpcCode::ALL.iter().map(|code| code.name()).collect();
        json_schema!({"anyOf": [
            {"type": "integer", "minimum": 200, "maximum": 599, "description": "HTTP status"},
            {"enum": names, "description": "gRPC code"},
        ]})
    }
}

/// gRPC status codes (gRPC core, `doc/statuscodes.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum GrpcCode {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl GrpcCode {
    /// All codes, at the index of their number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The specification's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// The code of a number; unknown numbers are `UNKNOWN`, as the specification asks of clients.
    pub(crate) fn from_number(number: u32) -> Self {
        usize::try_from(number).ok().and_then(|index| Self::ALL.get(index).copied()).unwrap_or(Self::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grpc_code_stands_at_its_number_and_is_found_by_its_name() {
        for (number, code) in GrpcCode::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), number);
            assert_eq!(GrpcCode::from_name(code.name()), Some(code));
            assert_eq!(GrpcCode::from_number(number as u32), code);
        }
        assert_eq!(GrpcCode::from_number(99), GrpcCode::Unknown);
    }
}
