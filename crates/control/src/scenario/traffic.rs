//! Ordinary traffic as a round's executions, and when it must not go on (design §3.6).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::name::Service;
use aftershock_core::wire::Tagging;
use aftershock_core::yaml::{Located, Spanned};
use http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Source;
use super::text::text_serde;
use crate::api::{StopCondition, TaggedTraffic};

const MILLION: f64 = 1e6;

/// What is tagged, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Where it enters, and which requests.
    pub tagged: TaggedTraffic,
    /// How long the round lasts.
    pub span: Duration,
}

/// Ordinary traffic, tagged where it enters, in place of requests: the runner sends nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Traffic")]
pub(super) struct RawTraffic {
    /// The service that it enters at.
    entry: Service,
    /// Only requests with these header fields.
    #[serde(default)]
    headers: BTreeMap<String, Spanned<String>>,
    /// Of those, this share, in percent; all if left out.
    #[serde(default = "all")]
    #[schemars(with = "f64")]
    percentage: Spanned<f64>,
    /// How long the round lasts.
    #[serde(rename = "for")]
    span: Spanned<Interval>,
}

fn all() -> Spanned<f64> {
    100.0.into()
}

impl RawTraffic {
    /// Reads what stands at `place`.
    pub(super) fn parse(self, source: &Source<'_>, place: &Spanned<()>) -> Result<Traffic, Located> {
        let per_million = (*self.percentage * MILLION / 100.0).round();
        if !(1.0..=MILLION).contains(&per_million) {
            let message =
                format!("expected a percentage above 0, at least 0.0001, and at most 100, found {}", *self.percentage);
            return Err(source.at(&self.percentage, message));
        }
        if self.headers.is_empty() && per_million >= MILLION {
            let message = "expected `headers` or a `percentage` below 100: all ordinary traffic would be tagged";
            return Err(source.at(place, message));
        }
        let mut headers = BTreeMap::new();
        for (name, value) in self.headers {
            let parsed: HeaderName = name
                .parse()
                .map_err(|_| source.at(&value, format!("expected the name of a header field, found {name:?}")))?;
            if HeaderValue::from_str(&value).is_err() {
                return Err(source.at(&value, "expected a value of a header field, without control characters"));
            }
            if headers.insert(parsed.to_string(), value.value.clone()).is_some() {
                return Err(source.at(&value, format!("expected each header field once, found `{parsed}` again")));
            }
        }
        if self.span.0.is_zero() {
            return Err(source.at(&self.span, "expected a time above zero"));
        }
        let tagging = Tagging { headers, per_million: per_million as u32 };
        Ok(Traffic { tagged: TaggedTraffic { entry: self.entry, tagging }, span: self.span.0 })
    }
}

/// When a round is ended at once, because ordinary traffic suffers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Stop")]
pub(super) struct RawStop {
    /// More of the ordinary requests than this end in an error.
    error_rate: Spanned<Percentage>,
    /// Nothing is concluded from fewer requests.
    min_requests: Spanned<u64>,
}

impl RawStop {
    pub(super) fn parse(self, source: &Source<'_>) -> Result<StopCondition, Located> {
        if self.error_rate.0 >= MILLION as u32 {
            return Err(source.at(&self.error_rate, "expected less than 100%, which no error rate exceeds"));
        }
        if *self.min_requests == 0 {
            return Err(source.at(&self.min_requests, "expected at least one request: nothing is known from none"));
        }
        Ok(StopCondition { errors_per_million: self.error_rate.0, min_requests: *self.min_requests })
    }
}

/// A share in millionths, written `10%` or `0.05%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Percentage(u32);

/// Not a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a percentage from 0% to 100% with at most four decimals, e.g. `10%`, found {0:?}")]
pub(super) struct ParsePercentageError(String);

impl FromStr for Percentage {
    type Err = ParsePercentageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParsePercentageError(text.chars().take(40).collect());
        let number = text.strip_suffix('%').ok_or_else(wrong)?.trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || whole.len() > 3 || !digits(decimals) || decimals.len() > 4 {
            return Err(wrong());
        }
        let value: u32 = format!("{whole}{decimals:0<4}").parse().map_err(|_| wrong())?;
        if value <= 1_000_000 { Ok(Percentage(value)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

text_serde!(Percentage, "a share in percent, e.g. `10%`");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_exact_to_the_millionth() {
        for (text, millionths) in
            [("10%", 100_000), ("0.0001%", 1), ("0.05%", 500), ("100%", 1_000_000), ("0%", 0), ("12.5 %", 125_000)]
        {
            let parsed: Percentage = text.parse().unwrap();
            assert_eq!(parsed.0, millionths, "{text}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        for wrong in ["10", "0.1", "-1%", "100.1%", "1e2%", "0.00001%", "%", ".5%", "5.%", "+5%"] {
            assert!(wrong.parse::<Percentage>().is_err(), "{wrong}");
        }
    }
}
