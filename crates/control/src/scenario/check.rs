//! What is expected of an answer, and how what was found differs from it.

use aftershock_core::duration::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::text::{JsonPath, Pattern, Selected};

/// How a value is compared.
#[derive(Debug, Clone, PartialEq)]
pub enum Comparator {
    /// Equal as JSON; numbers by value (`1` equals `1.0`).
    Equals(Value),
    /// A number of at most this.
    AtMost(f64),
    /// A number of at least this.
    AtLeast(f64),
    /// A text in which this is found; other values are compared as JSON text.
    Matches(Pattern),
}

/// Shows a text without its secrets. It sees whole texts, before they are cut.
pub(crate) type Hide<'a> = &'a dyn Fn(&str) -> String;

impl Comparator {
    /// What was expected and found, unless `selected` is as expected.
    fn difference(&self, selected: &Selected, hide: Hide<'_>) -> Option<String> {
        let Selected::Value(found) = selected else {
            return Some(format!("expected {self}, found nothing"));
        };
        let fits = match self {
            Comparator::Equals(expected) => same(expected, found),
            Comparator::AtMost(most) => found.as_f64().is_some_and(|found| found <= *most),
            Comparator::AtLeast(least) => found.as_f64().is_some_and(|found| found >= *least),
            Comparator::Matches(pattern) => match found {
                Value::String(text) => pattern.matches(text),
                other => pattern.matches(&other.to_string()),
            },
        };
        (!fits).then(|| format!("expected {self}, found {}", shown(&hide(&found.to_string()))))
    }
}

impl Comparator {
    /// Whether it is of texts and not of numbers.
    fn is_of_text(&self) -> bool {
        match self {
            Comparator::Equals(value) => !value.is_number(),
            Comparator::Matches(_) => true,
            Comparator::AtMost(_) | Comparator::AtLeast(_) => false,
        }
    }
}

impl std::fmt::Display for Comparator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Comparator::Equals(value) => f.write_str(&shown(&value.to_string())),
            Comparator::AtMost(most) => write!(f, "at most {most}"),
            Comparator::AtLeast(least) => write!(f, "at least {least}"),
            Comparator::Matches(pattern) => write!(f, "a match of `{pattern}`"),
        }
    }
}

/// Equality of JSON values with numbers by value.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            // Integers are compared as integers: as floats, large ones that differ could be equal.
            match (x.as_i64().zip(y.as_i64()), x.as_u64().zip(y.as_u64())) {
                (Some((x, y)), _) => x == y,
                (_, Some((x, y))) => x == y,
                _ => x.as_f64() == y.as_f64(),
            }
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

/// A value for a message, cut where it is long.
fn shown(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A place in a document and what is expected there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawCheck", into = "RawCheck")]
pub struct Check {
    /// Where; the whole text without it.
    pub path: Option<JsonPath>,
    /// What.
    pub comparator: Comparator,
}

impl Check {
    /// What differs in the text `body`, as a sentence that begins with the path if there is one.
    pub(crate) fn difference(&self, body: &[u8], hide: Hide<'_>) -> Option<String> {
        let json = serde_json::from_slice::<Value>(body);
        if self.path.is_some() {
            return match json {
                Ok(value) => self.difference_in(&value, hide),
                Err(_) => {
                    let start: String = hide(&String::from_utf8_lossy(body)).chars().take(60).collect();
                    Some(self.placed(format!("expected JSON, found {start:?}")))
                }
            };
        }
        // A number in a text is one if a number is expected.
        let number = json.ok().filter(|value| value.is_number() && !self.comparator.is_of_text());
        let text = || String::from_utf8_lossy(body).trim_end_matches(['\r', '\n']).into();
        self.difference_in(&number.unwrap_or_else(text), hide)
    }

    /// What differs in `value`, as a sentence that begins with the path if there is one.
    pub(crate) fn difference_in(&self, value: &Value, hide: Hide<'_>) -> Option<String> {
        let selected = match &self.path {
            Some(path) => path.select(value),
            None => Selected::Value(value.clone()),
        };
        self.comparator.difference(&selected, hide).map(|difference| self.placed(difference))
    }

    fn placed(&self, difference: String) -> String {
        match &self.path {
            Some(path) => format!("{path}: {difference}"),
            None => difference,
        }
    }
}

/// A check of a text: one of `equals`, `at_most`, `at_least`, `matches`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Check")]
pub(crate) struct RawCheck {
    /// Where to look: a JSON path (RFC 9535). Several nodes are compared as a list. Without it the whole text is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    json_path: Option<JsonPath>,
    /// The value there equals this.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    equals: Option<Value>,
    /// The number there is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    /// The number there is at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    /// This regular expression matches in the text there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    matches: Option<Pattern>,
}

/// `equals: null` is an expectation of its own.
pub(super) fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(d).map(Some)
}

/// A check must compare in exactly one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected exactly one of `equals`, `at_most`, `at_least`, `matches`, found {0}")]
pub struct OneComparator(&'static str);

/// A comparison as it is written.
#[derive(Debug, Default)]
pub(super) struct RawComparison {
    pub(super) equals: Option<Value>,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    pub(super) matches: Option<Pattern>,
}

impl RawComparison {
    pub(super) fn is_empty(&self) -> bool {
        self.equals.is_none() && self.at_most.is_none() && self.at_least.is_none() && self.matches.is_none()
    }

    pub(super) fn one(self) -> Result<Comparator, OneComparator> {
        let mut found = self.equals.map(Comparator::Equals).into_iter().collect::<Vec<_>>();
        found.extend(self.at_most.map(Comparator::AtMost));
        found.extend(self.at_least.map(Comparator::AtLeast));
        found.extend(self.matches.map(Comparator::Matches));
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(OneComparator("none")),
            _ => Err(OneComparator("several")),
        }
    }
}

impl From<Comparator> for RawComparison {
    fn from(comparator: Comparator) -> Self {
        let mut raw = RawComparison::default();
        match comparator {
            Comparator::Equals(value) => raw.equals = Some(value),
            Comparator::AtMost(most) => raw.at_most = Some(most),
            Comparator::AtLeast(least) => raw.at_least = Some(least),
            Comparator::Matches(pattern) => raw.matches = Some(pattern),
        }
        raw
    }
}

impl TryFrom<RawCheck> for Check {
    type Error = OneComparator;

    fn try_from(raw: RawCheck) -> Result<Self, OneComparator> {
        let RawCheck { json_path, equals, at_most, at_least, matches } = raw;
        let comparator = RawComparison { equals, at_most, at_least, matches }.one()?;
        Ok(Check { path: json_path, comparator })
    }
}

impl From<Check> for RawCheck {
    fn from(check: Check) -> Self {
        let RawComparison { equals, at_most, at_least, matches } = check.comparator.into();
        RawCheck { json_path: check.path, equals, at_most, at_least, matches }
    }
}

impl JsonSchema for Check {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawCheck::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawCheck::json_schema(generator)
    }
}

/// What the last answer to a request must be. Without a status, an HTTP status below 400 and, for gRPC, status 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 599))]
    pub status: Option<u16>,
    /// The gRPC status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<u32>,
    /// The exit code of a command; 0 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub exit: Option<i32>,
    /// What holds of the body, of the message of a gRPC answer, or of what a command prints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<Check>,
    /// The longest that the last attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Interval>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn difference(check: Value, found: Value) -> Option<String> {
        serde_json::from_value::<Check>(check).unwrap().difference_in(&found, &str::to_owned)
    }

    #[test]
    fn each_comparator_tells_what_was_expected_and_found() {
        let body = json!({"count": 2, "state": "paid", "none": null, "items": [{"n": 1}, {"n": 3}]});
        for (check, expected) in [
            (json!({"json_path": "$.count", "equals": 2}), None),
            (json!({"json_path": "$.count", "equals": 2.0}), None),
            (json!({"json_path": "$.count", "equals": 1}), Some("$.count: expected 1, found 2")),
            (json!({"json_path": "$.count", "equals": "2"}), Some("$.count: expected \"2\", found 2")),
            (json!({"json_path": "$.count", "at_most": 2}), None),
            (json!({"json_path": "$.count", "at_most": 1.5}), Some("$.count: expected at most 1.5, found 2")),
            (json!({"json_path": "$.count", "at_least": 2}), None),
            (json!({"json_path": "$.count", "at_least": 3}), Some("$.count: expected at least 3, found 2")),
            (json!({"json_path": "$.state", "at_least": 3}), Some("$.state: expected at least 3, found \"paid\"")),
            (json!({"json_path": "$.state", "matches": "^pa"}), None),
            (json!({"json_path": "$.count", "matches": "^2$"}), None),
            (
                json!({"json_path": "$.state", "matches": "^id"}),
                Some("$.state: expected a match of `^id`, found \"paid\""),
            ),
            (json!({"json_path": "$.none", "equals": null}), None),
            (json!({"json_path": "$.gone", "equals": null}), Some("$.gone: expected null, found nothing")),
            (json!({"json_path": "$.items[*].n", "equals": [1, 3]}), None),
            (json!({"json_path": "$.items[*].n", "equals": [3, 1]}), Some("$.items[*].n: expected [3,1], found [1,3]")),
        ] {
            assert_eq!(difference(check.clone(), body.clone()).as_deref(), expected, "{check}");
        }
    }

    #[test]
    fn a_check_compares_in_exactly_one_way() {
        for (check, found) in
            [(json!({"json_path": "$"}), "none"), (json!({"json_path": "$", "equals": 1, "at_most": 2}), "several")]
        {
            let error = serde_json::from_value::<Check>(check).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("expected exactly one of `equals`, `at_most`, `at_least`, `matches`, found {found}")
            );
        }
    }

    #[test]
    fn without_a_path_the_whole_text_is_compared_and_numbers_as_numbers() {
        let difference = |check: Value, body: &str| {
            serde_json::from_value::<Check>(check).unwrap().difference(body.as_bytes(), &str::to_owned)
        };
        for (check, body, expected) in [
            (json!({"equals": "ok"}), "ok\n", None),
            (json!({"equals": "1"}), "1\r\n", None),
            (json!({"equals": 1}), "1\n", None),
            (json!({"equals": 1}), "one", Some("expected 1, found \"one\"")),
            (json!({"at_least": 3}), "2", Some("expected at least 3, found 2")),
            (json!({"matches": "^a.c$"}), "abc\n", None),
            (json!({"matches": "^a.c$"}), "{}", Some("expected a match of `^a.c$`, found \"{}\"")),
        ] {
            assert_eq!(difference(check.clone(), body).as_deref(), expected, "{check}");
        }
    }

    #[test]
    fn a_body_that_is_no_json_differs_and_is_shown() {
        let check: Check = serde_json::from_value(json!({"json_path": "$.a", "equals": 1})).unwrap();
        assert_eq!(check.difference(b"<html>", &str::to_owned).unwrap(), "$.a: expected JSON, found \"<html>\"");
    }

    #[test]
    fn large_integers_are_not_compared_as_floats() {
        let check = json!({"json_path": "$", "equals": 9_007_199_254_740_993_u64});
        assert!(difference(check.clone(), json!(9_007_199_254_740_992_u64)).is_some());
        assert!(difference(check, json!(9_007_199_254_740_993_u64)).is_none());
    }

    proptest! {
        #[test]
        fn bounds_agree_with_the_order_of_numbers(found in -1e9..1e9_f64, bound in -1e9..1e9_f64) {
            let at_most = difference(json!({"json_path": "$", "at_most": bound}), json!(found)).is_none();
            let at_least = difference(json!({"json_path": "$", "at_least": bound}), json!(found)).is_none();
            prop_assert_eq!((at_most, at_least), (found <= bound, found >= bound));
        }

        #[test]
        fn a_text_equals_itself_only(a in "\\PC{0,300}", b in "\\PC{0,300}") {
            let equal = difference(json!({"json_path": "$", "equals": a}), json!(b)).is_none();
            prop_assert_eq!(equal, a == b);
        }
    }
}
