//! Durations as people write them in files: `100ms`, `2s`, `1m30s`, `1.5s`.
//!
//! The unit is never left out: `timeout: 5` is an error that says so, since a reader cannot tell seconds from
//! milliseconds. Units come in descending order, each at most once, which is what the schema's pattern says too.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time, written with its units. The text form and back loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Interval(pub Duration);

/// Why a text is not an [`Interval`]. Each says what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseIntervalError {
    /// A bare number.
    #[error("expected a duration with a unit, e.g. `{0}ms` or `{0}s`, found `{0}`")]
    Unitless(String),
    /// Not of the form number and unit, repeated.
    #[error("expected a duration such as `100ms`, `2s`, `1m30s` or `1.5s`, found {0:?}")]
    Form(String),
    /// A unit that is none.
    #[error("expected one of the units h, m, s, ms, us, ns in a duration, found {unit:?} in {text:?}")]
    Unit {
        /// What stands where the unit should be.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// `30s1m`, `1s1s`.
    #[error("expected the units of a duration in descending order, each once, e.g. `1m30s`, found {0:?}")]
    Order(String),
    /// A fraction of a nanosecond.
    #[error("expected a duration no finer than a nanosecond, found {0:?}")]
    TooFine(String),
    /// More than fits.
    #[error("expected a duration of less than 2^64 seconds, found {0:?}")]
    TooLong(String),
}

/// The units, largest first, with their length in nanoseconds.
const UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl FromStr for Interval {
    type Err = ParseIntervalError;

    fn from_str(text: &str) -> Result<Self, ParseIntervalError> {
        let quoted = || text.chars().take(40).collect::<String>();
        let mut rest = text;
        let mut total = 0u128;
        let mut next_unit = 0;
        while !rest.is_empty() || next_unit == 0 {
            let (whole, fraction, after) = number(rest).ok_or_else(|| ParseIntervalError::Form(quoted()))?;
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let unit = &after[..end];
            if unit.is_empty() && next_unit == 0 {
                return Err(ParseIntervalError::Unitless(quoted()));
            }
            let place = UNITS
                .iter()
                .position(|(name, _)| *name == unit)
                .ok_or_else(|| ParseIntervalError::Unit { unit: unit.chars().take(16).collect(), text: quoted() })?;
            if place < next_unit {
                return Err(ParseIntervalError::Order(quoted()));
            }
            let part = nanoseconds(whole, fraction, UNITS[place].1).map_err(|error| error(quoted()))?;
            total = total.checked_add(part).ok_or_else(|| ParseIntervalError::TooLong(quoted()))?;
            next_unit = place + 1;
            rest = &after[end..];
        }
        let seconds = u64::try_from(total / UNITS[2].1).map_err(|_| ParseIntervalError::TooLong(quoted()))?;
        Ok(Interval(Duration::new(seconds, (total % UNITS[2].1) as u32)))
    }
}

/// Splits `12.5ms…` into `12`, `5` and `ms…`.
fn number(text: &str) -> Option<(&str, &str, &str)> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("0", rest),
    };
    (!whole.is_empty() && !fraction.is_empty()).then_some((whole, fraction, rest))
}

/// `whole.fraction` units of `unit` nanoseconds, exactly.
fn nanoseconds(whole: &str, fraction: &str, unit: u128) -> Result<u128, fn(String) -> ParseIntervalError> {
    let whole: u128 = whole.parse().map_err(|_| ParseIntervalError::TooLong as fn(String) -> _)?;
    let mut total = whole.checked_mul(unit).ok_or(ParseIntervalError::TooLong as fn(String) -> _)?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return Ok(total);
    }
    // 3.6e12 has 11 powers of two and of ten at most: a fraction with more digits cannot be whole nanoseconds.
    let scale = match u32::try_from(fraction.len()) {
        Ok(digits) if digits <= 13 => 10u128.pow(digits),
        _ => return Err(ParseIntervalError::TooFine),
    };
    let scaled = fraction.parse::<u128>().map_err(|_| ParseIntervalError::TooFine as fn(String) -> _)? * unit;
    if !scaled.is_multiple_of(scale) {
        return Err(ParseIntervalError::TooFine);
    }
    total = total.checked_add(scaled / scale).ok_or(ParseIntervalError::TooLong as fn(String) -> _)?;
    Ok(total)
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let (hours, minutes, rest) = (nanos / UNITS[0].1, nanos % UNITS[0].1 / UNITS[1].1, nanos % UNITS[1].1);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if rest == 0 {
            return Ok(());
        }
        let (unit, length) =
            UNITS[2..].iter().find(|(_, length)| rest >= *length).copied().expect("at least one nanosecond is left");
        write!(f, "{}", rest / length)?;
        if rest % length > 0 {
            let width = length.ilog10() as usize;
            let fraction = format!("{:0width$}", rest % length);
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        f.write_str(unit)
    }
}

impl From<Duration> for Interval {
    fn from(duration: Duration) -> Self {
        Interval(duration)
    }
}

impl From<Interval> for Duration {
    fn from(interval: Interval) -> Self {
        interval.0
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Interval;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `100ms`, `2s`, `1m30s` or `1.5s`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Interval, E> {
                Err(E::custom(ParseIntervalError::Unitless(number.to_string())))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Interval, E> {
                Err(E::custom(ParseIntervalError::Form(number.to_string())))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Interval, E> {
                Err(E::custom(ParseIntervalError::Unitless(number.to_string())))
            }
        }

        // Not `deserialize_str`: a bare number shall reach the visitor, which knows the better complaint.
        d.deserialize_any(Visitor)
    }
}

impl JsonSchema for Interval {
    fn schema_name() -> Cow<'static, str> {
        "Interval".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let units: String = UNITS.iter().map(|(unit, _)| format!(r"([0-9]+(\.[0-9]+)?{unit})?")).collect();
        schemars::json_schema!({
            "type": "string",
            "description": "a duration with its units: `100ms`, `2s`, `1m30s`, `1.5s`",
            "pattern": format!("^(?=.){units}$"),
            "examples": ["100ms", "2s", "1m30s", "1.5s"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Duration, ParseIntervalError> {
        text.parse::<Interval>().map(Duration::from)
    }

    #[test]
    fn numbers_with_units_add_up() {
        for (text, expected) in [
            ("100ms", Duration::from_millis(100)),
            ("2s", Duration::from_secs(2)),
            ("1m30s", Duration::from_secs(90)),
            ("1.5s", Duration::from_millis(1500)),
            ("0.25ms", Duration::from_micros(250)),
            ("1h0m1s1ms1us1ns", Duration::new(3601, 1_001_001)),
            ("1.5h", Duration::from_secs(5400)),
            ("0.0000000000250h", Duration::from_nanos(90)),
            ("0s", Duration::ZERO),
            ("007s", Duration::from_secs(7)),
            ("18446744073709551615s", Duration::from_secs(u64::MAX)),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_text_is_the_shortest_usual_one() {
        for text in ["0s", "100ms", "1.5s", "1m30s", "1h", "1h1ns", "2h3m4.000000005s", "999us", "1.000001ms", "17ns"] {
            assert_eq!(text.parse::<Interval>().unwrap().to_string(), text);
        }
        assert_eq!("90s".parse::<Interval>().unwrap().to_string(), "1m30s");
    }

    #[test]
    fn a_number_without_a_unit_is_refused_and_the_unit_asked_for() {
        let message = parsed("100").unwrap_err().to_string();
        assert_eq!(message, "expected a duration with a unit, e.g. `100ms` or `100s`, found `100`");
        for json in ["100", "1.5", "\"5\""] {
            let error = serde_json::from_str::<Interval>(json).unwrap_err().to_string();
            assert!(error.contains("with a unit"), "{json}: {error}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_for_its_own_reason() {
        let form = |text: &str| ParseIntervalError::Form(text.to_owned());
        for text in ["", " ", "s", "-1s", "1.s", ".5s", "+1s", " 1s", "∞"] {
            assert_eq!(parsed(text), Err(form(text)));
        }
        for (text, unit) in [("1d", "d"), ("1 s", " s"), ("1S", "S"), ("1s ", "s "), ("1m30", ""), ("1µs", "µs")] {
            assert_eq!(parsed(text), Err(ParseIntervalError::Unit { unit: unit.to_owned(), text: text.to_owned() }));
        }
        for text in ["30s1m", "1s1s", "1ms1s"] {
            assert_eq!(parsed(text), Err(ParseIntervalError::Order(text.to_owned())));
        }
        for text in ["0.1ns", "1.0000000001s", "0.00000000000001h"] {
            assert_eq!(parsed(text), Err(ParseIntervalError::TooFine(text.to_owned())));
        }
        for text in [
            "18446744073709551616s",
            "99999999999999999999999999999999999999999h",
            "340282366920938463463374607431768211455h",
        ] {
            assert!(matches!(parsed(text), Err(ParseIntervalError::TooLong(_))), "{text}");
        }
        let error = serde_json::from_str::<Interval>("true").unwrap_err().to_string();
        assert!(error.contains("expected a duration such as"), "{error}");
    }

    proptest! {
        #[test]
        fn text_and_back_loses_nothing(seconds: u64, nanos in 0u32..1_000_000_000, shift in 0u32..64) {
            for duration in [Duration::new(seconds >> shift, nanos), Duration::from_nanos(seconds >> shift)] {
                let text = Interval(duration).to_string();
                prop_assert_eq!(parsed(&text), Ok(duration), "{}", text);
                let json = serde_json::to_string(&Interval(duration)).unwrap();
                prop_assert_eq!(serde_json::from_str::<Interval>(&json).unwrap(), Interval(duration));
            }
        }

        #[test]
        fn no_text_panics_and_what_parses_means_the_same_when_written_anew(text in "[0-9.hmsnu ]{0,12}|\\PC*") {
            if let Ok(interval) = text.parse::<Interval>() {
                prop_assert_eq!(interval.to_string().parse::<Interval>(), Ok(interval));
            }
        }
    }
}
