//! What is expected of an answer, and how what was found differs from it.

use aftershock_core::duration::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::template::Template;
use super::text::{BaseUrl, JsonPath, Pattern, Selected, When};

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

/// A JSON path and what is expected there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawCheck", into = "RawCheck")]
pub struct Check {
    /// Where.
    pub path: JsonPath,
    /// What.
    pub comparator: Comparator,
}

impl Check {
    /// What differs in the JSON text `body`, as a sentence that begins with the path.
    pub(crate) fn difference(&self, body: &[u8], hide: Hide<'_>) -> Option<String> {
        let value: Value = match serde_json::from_slice(body) {
            Ok(value) => value,
            Err(_) => {
                let start: String = hide(&String::from_utf8_lossy(body)).chars().take(60).collect();
                return Some(format!("{}: expected JSON, found {start:?}", self.path));
            }
        };
        self.difference_in(&value, hide)
    }

    /// What differs in `value`, as a sentence that begins with the path.
    pub(crate) fn difference_in(&self, value: &Value, hide: Hide<'_>) -> Option<String> {
        let difference = self.comparator.difference(&self.path.select(value), hide)?;
        Some(format!("{}: {difference}", self.path))
    }
}

/// A check of the body of an answer: a JSON path, and one of `equals`, `at_most`, `at_least`, `matches`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Check")]
pub(crate) struct RawCheck {
    /// Where to look: a JSON path (RFC 9535). Several nodes are compared as a list.
    json_path: JsonPath,
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
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(d).map(Some)
}

/// A check must compare in exactly one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected exactly one of `equals`, `at_most`, `at_least`, `matches`, found {0}")]
pub struct OneComparator(&'static str);

fn comparator(
    equals: Option<Value>,
    at_most: Option<f64>,
    at_least: Option<f64>,
    matches: Option<Pattern>,
) -> Result<Comparator, OneComparator> {
    let mut found = equals.map(Comparator::Equals).into_iter().collect::<Vec<_>>();
    found.extend(at_most.map(Comparator::AtMost));
    found.extend(at_least.map(Comparator::AtLeast));
    found.extend(matches.map(Comparator::Matches));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(OneComparator("none")),
        _ => Err(OneComparator("several")),
    }
}

impl TryFrom<RawCheck> for Check {
    type Error = OneComparator;

    fn try_from(raw: RawCheck) -> Result<Self, OneComparator> {
        let comparator = comparator(raw.equals, raw.at_most, raw.at_least, raw.matches)?;
        Ok(Check { path: raw.json_path, comparator })
    }
}

impl From<Check> for RawCheck {
    fn from(check: Check) -> Self {
        let mut raw = RawCheck { json_path: check.path, equals: None, at_most: None, at_least: None, matches: None };
        match check.comparator {
            Comparator::Equals(value) => raw.equals = Some(value),
            Comparator::AtMost(most) => raw.at_most = Some(most),
            Comparator::AtLeast(least) => raw.at_least = Some(least),
            Comparator::Matches(pattern) => raw.matches = Some(pattern),
        }
        raw
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
    /// What holds of the body, or of the message of a gRPC answer, read as JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<Check>,
    /// The longest that the last attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Interval>,
}

/// What must hold of the system's state, whatever the client saw: a JSON document got by HTTP, and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawInvariant", into = "RawInvariant")]
pub struct Invariant {
    /// Its name in reports.
    pub name: String,
    /// When it is evaluated.
    pub when: When,
    /// After whose attempts, by the request's name; every request's if left out.
    pub request: Option<String>,
    /// The URL to get.
    pub get: Template,
    /// What the document must say.
    pub check: Check,
}

/// An invariant: a JSON document to get, a JSON path, and one of `equals`, `at_most`, `at_least`, `matches`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Invariant")]
pub(crate) struct RawInvariant {
    /// Its name in reports.
    name: String,
    /// When it is evaluated: `after_round`, or `after_attempt(n)`, before the client tries again.
    #[serde(default = "after_round", skip_serializing_if = "is_after_round")]
    when: When,
    /// With `after_attempt(n)`: whose attempts, by the request's name. Every request's if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// The URL to get. `{key}` is the round's business key, `{NAME}` the URL of a ledger.
    get: Template,
    /// Where to look: a JSON path (RFC 9535). Several nodes are compared as a list.
    json_path: JsonPath,
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

fn after_round() -> When {
    When::AfterRound
}

fn is_after_round(when: &When) -> bool {
    *when == When::AfterRound
}

/// What is wrong with an invariant by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInvariant {
    /// No comparator, or several.
    #[error(transparent)]
    Comparator(#[from] OneComparator),
    /// `request` without `after_attempt`.
    #[error("expected `request` only beside `when: after_attempt(n)`")]
    Request,
    /// It needs a name to be reported by.
    #[error("expected a name of the invariant, found an empty one")]
    Name,
}

impl TryFrom<RawInvariant> for Invariant {
    type Error = InvalidInvariant;

    fn try_from(raw: RawInvariant) -> Result<Self, InvalidInvariant> {
        if raw.name.trim().is_empty() {
            return Err(InvalidInvariant::Name);
        }
        if raw.request.is_some() && raw.when == When::AfterRound {
            return Err(InvalidInvariant::Request);
        }
        let comparator = comparator(raw.equals, raw.at_most, raw.at_least, raw.matches)?;
        let check = Check { path: raw.json_path, comparator };
        Ok(Invariant { name: raw.name, when: raw.when, request: raw.request, get: raw.get, check })
    }
}

impl From<Invariant> for RawInvariant {
    fn from(invariant: Invariant) -> Self {
        let check = RawCheck::from(invariant.check);
        RawInvariant {
            name: invariant.name,
            when: invariant.when,
            request: invariant.request,
            get: invariant.get,
            json_path: check.json_path,
            equals: check.equals,
            at_most: check.at_most,
            at_least: check.at_least,
            matches: check.matches,
        }
    }
}

impl JsonSchema for Invariant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawInvariant::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawInvariant::json_schema(generator)
    }
}

/// Checks that `base`-relative URLs of `invariant` can be got: after filling, an `http://` URL.
pub(crate) fn gettable(url: &str) -> Result<http::Uri, super::text::ParseTextError> {
    // The base alone is checked by its own parser; a query may follow here.
    let (base, _) = url.split_once('?').unwrap_or((url, ""));
    base.parse::<BaseUrl>()?;
    url.parse().map_err(|_| super::text::ParseTextError::BaseUrl(super::text::quoted(url)))
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
