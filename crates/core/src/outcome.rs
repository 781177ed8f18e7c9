//! Outcomes that are not what the status says: a 200 that means failure, a 404 that is an answer (design §2, §3.3).

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::Outcome;
use crate::name::Api;

/// How the responses of one Api are read. Without any, HTTP < 400 and, for gRPC, status 0 are `ok`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutcomeOverride {
    /// Which Api.
    pub api: Api,
    /// Statuses that are `ok` whatever they are by default: HTTP statuses, or gRPC ones for a gRPC operation.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ok: BTreeSet<u16>,
    /// Statuses that are an `error` whatever they are by default.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub error: BTreeSet<u16>,
    /// Where the status says `ok`, a JSON body has the last word. HTTP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyOutcome>,
}

/// A value in a JSON body that says how the call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BodyOutcome {
    /// JSON pointer (RFC 6901) to the value.
    pub pointer: String,
    /// The outcome is `ok` if the value is one of these, else `error`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ok: Vec<Value>,
    /// The outcome is `error` if the value is one of these, else `ok`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error: Vec<Value>,
}

/// Why an override cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOverride {
    /// It says nothing.
    #[error("expected `ok`, `error` or `body` in the outcome of `{0}`")]
    Empty(Api),
    /// One status both ways.
    #[error("the status {status} is both `ok` and `error` in the outcome of `{api}`")]
    Both {
        /// Of which Api.
        api: Api,
        /// Which.
        status: u16,
    },
    /// Not RFC 6901.
    #[error("expected a JSON pointer such as `/state`, found {pointer:?} in the outcome of `{api}`")]
    Pointer {
        /// Of which Api.
        api: Api,
        /// As written.
        pointer: String,
    },
    /// Neither or both lists of values.
    #[error("expected either `ok` or `error` values under `body` in the outcome of `{0}`")]
    Values(Api),
    /// gRPC bodies are not JSON.
    #[error("`{0}` is a gRPC operation, whose messages are not JSON: `body` is for HTTP")]
    Grpc(Api),
}

impl OutcomeOverride {
    /// Whether it says something that can be applied.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), InvalidOverride> {
        if self.ok.is_empty() && self.error.is_empty() && self.body.is_none() {
            return Err(InvalidOverride::Empty(self.api.clone()));
        }
        if let Some(status) = self.ok.intersection(&self.error).next() {
            return Err(InvalidOverride::Both { api: self.api.clone(), status: *status });
        }
        let Some(body) = &self.body else { return Ok(()) };
        if self.api.operation.is_grpc() {
            return Err(InvalidOverride::Grpc(self.api.clone()));
        }
        let well_formed = body.pointer.is_empty() || body.pointer.starts_with('/');
        let escapes = body
            .pointer
            .match_indices('~')
            .all(|(at, _)| matches!(body.pointer.as_bytes().get(at + 1), Some(b'0' | b'1')));
        if !well_formed || !escapes {
            return Err(InvalidOverride::Pointer { api: self.api.clone(), pointer: body.pointer.clone() });
        }
        if body.ok.is_empty() == body.error.is_empty() {
            return Err(InvalidOverride::Values(self.api.clone()));
        }
        Ok(())
    }

    /// The outcome that the status says: `by_default` unless it is listed.
    pub fn of_status(&self, status: u16, by_default: Outcome) -> Outcome {
        if self.ok.contains(&status) {
            Outcome::Ok
        } else if self.error.contains(&status) {
            Outcome::Error
        } else {
            by_default
        }
    }

    /// The outcome that a body says whose status says `ok`. A body that is no JSON (compressed ones included) or has no
    /// such value leaves it unknown.
    pub fn of_body(&self, body: &[u8]) -> Outcome {
        let Some(rule) = &self.body else { return Outcome::Ok };
        let Ok(document) = serde_json::from_slice::<Value>(body) else { return Outcome::Unknown };
        let Some(value) = document.pointer(&rule.pointer) else { return Outcome::Unknown };
        let ok = match rule.ok.is_empty() {
            true => !rule.error.contains(value),
            false => rule.ok.contains(value),
        };
        if ok { Outcome::Ok } else { Outcome::Error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> OutcomeOverride {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_200_can_mean_failure_and_a_404_an_answer() {
        let rule = of(
            r#"{"api": "stock GET /items/{id}", "ok": [404], "body": {"pointer": "/state", "error": ["failed", null]}}"#,
        );
        rule.check().unwrap();
        assert_eq!(rule.of_status(404, Outcome::Error), Outcome::Ok);
        assert_eq!(rule.of_status(500, Outcome::Error), Outcome::Error);
        assert_eq!(rule.of_status(200, Outcome::Ok), Outcome::Ok);
        for (body, outcome) in [
            (r#"{"state": "failed"}"#, Outcome::Error),
            (r#"{"state": null}"#, Outcome::Error),
            (r#"{"state": "done"}"#, Outcome::Ok),
            (r#"{"other": 1}"#, Outcome::Unknown),
            ("state: failed", Outcome::Unknown),
            ("", Outcome::Unknown),
        ] {
            assert_eq!(rule.of_body(body.as_bytes()), outcome, "{body}");
        }
        let listed = of(r#"{"api": "stock GET /", "body": {"pointer": "/a~1b/0", "ok": [1]}}"#);
        listed.check().unwrap();
        assert_eq!(listed.of_body(br#"{"a/b": [1]}"#), Outcome::Ok);
        assert_eq!(listed.of_body(br#"{"a/b": [2]}"#), Outcome::Error);
    }

    #[test]
    fn an_override_that_cannot_be_applied_is_refused() {
        for (json, expected) in [
            (r#"{"api": "a GET /"}"#, "expected `ok`, `error` or `body`"),
            (r#"{"api": "a GET /", "ok": [404], "error": [404]}"#, "404 is both"),
            (r#"{"api": "a GET /", "body": {"pointer": "state", "ok": [1]}}"#, "JSON pointer"),
            (r#"{"api": "a GET /", "body": {"pointer": "/~2", "ok": [1]}}"#, "JSON pointer"),
            (r#"{"api": "a GET /", "body": {"pointer": "/s"}}"#, "either `ok` or `error`"),
            (r#"{"api": "a p.S/M", "body": {"pointer": "/s", "ok": [1]}}"#, "gRPC"),
        ] {
            let error = of(json).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
