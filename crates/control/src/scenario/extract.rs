//! Variables from answers.

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::text::{JsonPath, Pattern, Selected};

/// Where the value of a variable stands in an answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "RawExtraction")]
pub struct Extraction {
    /// Where.
    pub from: Place,
    /// Whether its value is never to be shown.
    pub secret: bool,
}

/// A place in an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// A value of a JSON body, by path (RFC 9535).
    JsonPath(JsonPath),
    /// A value of a JSON body, by pointer (RFC 6901).
    Pointer(String),
    /// A header field; for gRPC, of the initial metadata.
    Header(HeaderName),
    /// The first group of a regular expression in the body, or its whole match if it has none.
    Regex(Pattern),
    /// A cookie that the answer sets.
    Cookie(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::JsonPath(path) => path.fmt(f),
            Place::Pointer(pointer) => write!(f, "the pointer {pointer:?}"),
            Place::Header(name) => write!(f, "the header field `{name}`"),
            Place::Regex(pattern) => write!(f, "a match of `{pattern}`"),
            Place::Cookie(name) => write!(f, "the cookie `{name}`"),
        }
    }
}

impl Place {
    /// The value in a body, for places in bodies.
    pub(crate) fn in_body(&self, body: &[u8]) -> Option<String> {
        let json = || serde_json::from_slice::<Value>(body).ok();
        match self {
            Place::JsonPath(path) => match path.select(&json()?) {
                Selected::Value(value) => text(&value),
                Selected::Nothing => None,
            },
            Place::Pointer(pointer) => text(json()?.pointer(pointer)?),
            Place::Regex(pattern) => pattern.capture(&String::from_utf8_lossy(body)),
            Place::Header(_) | Place::Cookie(_) => None,
        }
    }
}

/// A value as text: texts as they are, others as JSON. `null` is no value.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Where a variable's value stands: exactly one of `json_path`, `pointer`, `header`, `regex`, `cookie`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Extraction")]
pub(super) struct RawExtraction {
    /// In the JSON body, by path (RFC 9535).
    #[serde(default)]
    json_path: Option<JsonPath>,
    /// In the JSON body, by pointer (RFC 6901).
    #[serde(default)]
    pointer: Option<String>,
    /// A header field.
    #[serde(default, deserialize_with = "header")]
    #[schemars(with = "Option<String>")]
    header: Option<HeaderName>,
    /// In the body: the first group of a regular expression, or its whole match.
    #[serde(default)]
    regex: Option<Pattern>,
    /// A cookie that the answer sets.
    #[serde(default)]
    cookie: Option<String>,
    /// Its value is a secret: it is shown nowhere.
    #[serde(default)]
    secret: bool,
}

fn header<'de, D: Deserializer<'de>>(d: D) -> Result<Option<HeaderName>, D::Error> {
    let name = String::deserialize(d)?;
    let parsed = name
        .parse()
        .map_err(|_| serde::de::Error::custom(format_args!("expected the name of a header field, found {name:?}")))?;
    Ok(Some(parsed))
}

impl TryFrom<RawExtraction> for Extraction {
    type Error = String;

    fn try_from(raw: RawExtraction) -> Result<Self, String> {
        let mut places: Vec<Place> = raw.json_path.map(Place::JsonPath).into_iter().collect();
        places.extend(raw.pointer.map(Place::Pointer));
        places.extend(raw.header.map(Place::Header));
        places.extend(raw.regex.map(Place::Regex));
        places.extend(raw.cookie.map(Place::Cookie));
        let found = match places.len() {
            1 => {
                let from = places.remove(0);
                if let Place::Pointer(pointer) = &from
                    && !pointer.is_empty()
                    && !pointer.starts_with('/')
                {
                    return Err(format!("expected a JSON pointer such as `/id`, found {pointer:?}"));
                }
                return Ok(Extraction { from, secret: raw.secret });
            }
            0 => "none",
            _ => "several",
        };
        Err(format!("expected exactly one of `json_path`, `pointer`, `header`, `regex`, `cookie`, found {found}"))
    }
}

impl JsonSchema for Extraction {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawExtraction::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawExtraction::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(extraction: Value, body: &str) -> Option<String> {
        serde_json::from_value::<Extraction>(extraction).unwrap().from.in_body(body.as_bytes())
    }

    #[test]
    fn a_value_is_found_by_path_pointer_and_pattern() {
        let body = r#"{"id": "a b", "n": 7, "none": null, "list": [{"x/y": true}, {"x/y": false}]}"#;
        for (extraction, expected) in [
            (json!({"json_path": "$.id"}), Some("a b")),
            (json!({"json_path": "$.n"}), Some("7")),
            (json!({"json_path": "$.none"}), None),
            (json!({"json_path": "$.gone"}), None),
            (json!({"json_path": "$.list[*]['x/y']"}), Some("[true,false]")),
            (json!({"pointer": "/list/0/x~1y"}), Some("true")),
            (json!({"pointer": "/list/2"}), None),
            (json!({"regex": "\"n\": ([0-9]+)"}), Some("7")),
            (json!({"regex": "n.: [0-9]"}), Some("n\": 7")),
            (json!({"regex": "zzz"}), None),
            (json!({"regex": "(zzz)?list"}), None),
        ] {
            assert_eq!(found(extraction.clone(), body).as_deref(), expected, "{extraction}");
        }
        assert_eq!(found(json!({"json_path": "$.id"}), "<html>"), None);
    }

    #[test]
    fn a_place_is_exactly_one() {
        for (extraction, expected) in [
            (json!({}), "found none"),
            (json!({"json_path": "$", "regex": "x"}), "found several"),
            (json!({"pointer": "id"}), "expected a JSON pointer such as `/id`, found \"id\""),
            (json!({"header": "a b"}), "expected the name of a header field, found \"a b\""),
        ] {
            let error = serde_json::from_value::<Extraction>(extraction).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
