//! What calls carry in their messages. Nothing of it is ever in a header.

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::topology::{MAX_PARAM, Params};

/// Largest message read.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;
/// Longest business key.
const MAX_KEY: usize = 256;

/// Who makes a call, and which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Caller {
    pub(crate) service: String,
    /// Identity of this attempt.
    pub(crate) call: String,
    /// The call whose handler makes this one.
    pub(crate) parent: Option<String>,
    pub(crate) index: usize,
    pub(crate) attempt: u32,
}

/// A request's message. Clients need only the key; the rest is for calls between services.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) key: String,
    /// Overrides of the topology's parameters; handlers pass them on.
    #[serde(default)]
    pub(crate) params: BTreeMap<String, u32>,
    #[serde(default)]
    pub(crate) caller: Option<Caller>,
    /// Earlier answers that this request is made of.
    #[serde(default)]
    pub(crate) inputs: BTreeMap<String, Value>,
}

impl Payload {
    /// From a gRPC message or an HTTP body.
    pub(crate) fn from_json(message: &[u8], known: &Params) -> Result<Self, String> {
        let payload: Self =
            serde_json::from_slice(message).map_err(|error| format!("expected a JSON object with `key`: {error}"))?;
        payload.checked(known)
    }

    /// From an HTTP request: `?payload=` between services, else `?key=` and parameters, else the body.
    pub(crate) fn from_http(query: Option<&str>, body: &[u8], known: &Params) -> Result<Self, String> {
        let mut fields: BTreeMap<String, String> = query.map(query_fields).unwrap_or_default();
        if let Some(payload) = fields.get("payload") {
            return Self::from_json(payload.as_bytes(), known);
        }
        let mut payload = match fields.remove("key") {
            Some(key) => Self { key, params: BTreeMap::new(), caller: None, inputs: BTreeMap::new() },
            None if body.is_empty() => return Err("expected a business key: `?key=` or a JSON body with `key`".into()),
            None => Self::from_json(body, known)?,
        };
        for (name, value) in fields.into_iter().filter(|(name, _)| known.contains_key(name)) {
            let value =
                value.parse().map_err(|_| format!("expected a number for parameter `{name}`, found `{value}`"))?;
            payload.params.insert(name, value);
        }
        payload.checked(known)
    }

    fn checked(self, known: &Params) -> Result<Self, String> {
        if self.key.is_empty() || self.key.len() > MAX_KEY || self.key.chars().any(char::is_control) {
            return Err(format!("expected a business key of 1 to {MAX_KEY} bytes without control characters"));
        }
        for (name, value) in &self.params {
            if !known.contains_key(name) {
                return Err(crate::names::unknown("parameter", name, known.keys().map(String::as_str)));
            }
            if *value > MAX_PARAM {
                return Err(format!("expected at most {MAX_PARAM} for parameter `{name}`, found {value}"));
            }
        }
        Ok(self)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("its map keys are strings")
    }

    /// The query of a call whose HTTP method has no body.
    pub(crate) fn to_query(&self) -> String {
        let json = serde_json::to_string(self).expect("its map keys are strings");
        format!("payload={}", utf8_percent_encode(&json, NON_ALPHANUMERIC))
    }
}

/// `a=1&b=x%20y` as a map; of repeated names the last counts.
pub(crate) fn query_fields(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .split('&')
        .filter(|field| !field.is_empty())
        .map(|field| {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            (decode(name), decode(value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Params {
        Params::from([("lines".to_owned(), 2)])
    }

    #[test]
    fn a_key_comes_in_the_query_or_in_the_body() {
        let of = |query: Option<&str>, body: &str| Payload::from_http(query, body.as_bytes(), &known());
        assert_eq!(of(Some("key=a%20b&lines=3&other=x"), "").unwrap().key, "a b");
        assert_eq!(of(Some("key=a&lines=3"), "").unwrap().params["lines"], 3);
        assert_eq!(of(None, r#"{"key": "k", "card": 1}"#).unwrap().key, "k");
        assert_eq!(of(Some("lines=4"), r#"{"key": "k", "params": {"lines": 3}}"#).unwrap().params["lines"], 4);
    }

    #[test]
    fn a_payload_survives_the_query_of_a_call_without_body() {
        let payload = Payload {
            key: "ü&=%+ k".into(),
            params: known(),
            caller: Some(Caller { service: "web".into(), call: "web.1.1".into(), parent: None, index: 2, attempt: 1 }),
            inputs: BTreeMap::from([("cart".to_owned(), serde_json::json!({"n": [1, 2]}))]),
        };
        let back = Payload::from_http(Some(&payload.to_query()), b"", &known()).unwrap();
        assert_eq!(
            (back.key, back.params, back.caller, back.inputs),
            (payload.key, payload.params, payload.caller, payload.inputs)
        );
    }

    #[test]
    fn what_is_no_payload_is_told_what_was_expected() {
        for (query, body, expected) in [
            (None, "", "expected a business key"),
            (None, "{}", "`key`"),
            (Some("key="), "", "1 to 256 bytes"),
            (Some("key=a&lines=x"), "", "expected a number for parameter `lines`"),
            (Some("key=a&lines=1001"), "", "at most 1000"),
            (None, r#"{"key": "a", "params": {"line": 1}}"#, "did you mean `lines`?"),
        ] {
            let error = Payload::from_http(query, body.as_bytes(), &known()).unwrap_err();
            assert!(error.contains(expected), "{query:?} {body}: {error}");
        }
    }
}
