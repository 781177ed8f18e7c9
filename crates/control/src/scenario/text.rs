//! Texts of a scenario that are parsed where they stand: base URLs, JSON paths, regular expressions, names of
//! header fields. A text that parses keeps its spelling.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text of a scenario is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTextError {
    /// Not an `http://host[:port][/path]`.
    #[error("expected a base URL, `http://HOST:PORT`, found {0:?}")]
    BaseUrl(String),
    /// TLS.
    #[error("expected an `http://` URL, found {0:?}: requests are sent without TLS, from inside the system")]
    Tls(String),
    /// Not RFC 9535.
    #[error("expected a JSON path such as `$.count`, found {text:?}: {reason}")]
    JsonPath {
        /// What stands there.
        text: String,
        /// What the parser says.
        reason: String,
    },
    /// Not a regular expression.
    #[error("expected a regular expression, found {text:?}: {reason}")]
    Regex {
        /// What stands there.
        text: String,
        /// What the parser says.
        reason: String,
    },
    /// Not an HTTP method.
    #[error("expected an HTTP method such as `POST`, found {0:?}")]
    Method(String),
    /// Not a gRPC method.
    #[error("expected `package.Service/Method`, found {0:?}")]
    GrpcMethod(String),
    /// Neither `after_round` nor `after_attempt(n)`.
    #[error("expected `after_round` or `after_attempt(n)` with n from 1, found {0:?}")]
    When(String),
}

pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(80).collect()
}

macro_rules! text_serde {
    ($name:ident, $description:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "description": $description})
            }
        }
    };
}
pub(super) use text_serde;

/// `http://host[:port][/path]`, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The URL as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BaseUrl {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        let wrong = || ParseTextError::BaseUrl(quoted(text));
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(ParseTextError::Tls(quoted(text))),
            _ => return Err(wrong()),
        }
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.host().is_empty() || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong());
        }
        Ok(BaseUrl(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(BaseUrl, "a base URL, `http://HOST:PORT`");

/// A JSON path (RFC 9535).
#[derive(Debug, Clone)]
pub struct JsonPath {
    text: String,
    path: serde_json_path::JsonPath,
}

impl JsonPath {
    /// What it selects: the value if it is one, else all of them as a list.
    pub fn select(&self, value: &serde_json::Value) -> Selected {
        let mut nodes: Vec<serde_json::Value> = self.path.query(value).into_iter().cloned().collect();
        match nodes.len() {
            0 => Selected::Nothing,
            1 => Selected::Value(nodes.remove(0)),
            _ => Selected::Value(serde_json::Value::Array(nodes)),
        }
    }
}

/// What a JSON path selected.
#[derive(Debug, Clone, PartialEq)]
pub enum Selected {
    /// No node.
    Nothing,
    /// One node, or the list of several.
    Value(serde_json::Value),
}

impl PartialEq for JsonPath {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl FromStr for JsonPath {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        match serde_json_path::JsonPath::parse(text) {
            Ok(path) => Ok(JsonPath { text: text.to_owned(), path }),
            Err(error) => Err(ParseTextError::JsonPath { text: quoted(text), reason: error.to_string() }),
        }
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_serde!(JsonPath, "a JSON path (RFC 9535), e.g. `$.count`");

/// A regular expression that must match somewhere in the text; anchor it with `^` and `$`.
#[derive(Debug, Clone)]
pub struct Pattern(regex::Regex);

impl Pattern {
    /// Whether it matches somewhere in `text`.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The first group of the first match in `text`, or the whole match of an expression without groups.
    pub(crate) fn capture(&self, text: &str) -> Option<String> {
        let groups = self.0.captures(text)?;
        let group = if groups.len() > 1 { 1 } else { 0 };
        groups.get(group).map(|found| found.as_str().to_owned())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl FromStr for Pattern {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        regex::Regex::new(text).map(Pattern).map_err(|error| {
            // The library draws the place over several lines; its last line is the reason.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            ParseTextError::Regex { text: quoted(text), reason }
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

text_serde!(Pattern, "a regular expression that must match somewhere in the text");

/// An HTTP method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method(pub http::Method);

impl FromStr for Method {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        let tidy = !text.is_empty() && !text.bytes().any(|b| b.is_ascii_lowercase());
        match text.parse() {
            Ok(method) if tidy && text != "CONNECT" => Ok(Method(method)),
            _ => Err(ParseTextError::Method(quoted(text))),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

text_serde!(Method, "an HTTP method, e.g. `POST`");

/// `package.Service/Method`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcMethod(String);

impl GrpcMethod {
    /// The `:path` of a call.
    pub fn path(&self) -> String {
        format!("/{}", self.0)
    }
}

impl FromStr for GrpcMethod {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        match text.parse::<aftershock_core::name::Operation>() {
            Ok(operation) if operation.is_grpc() => Ok(GrpcMethod(text.to_owned())),
            _ => Err(ParseTextError::GrpcMethod(quoted(text))),
        }
    }
}

impl fmt::Display for GrpcMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(GrpcMethod, "a gRPC method, `package.Service/Method`");

/// When an invariant is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum When {
    /// After the n-th attempt of a request has settled, before the next is sent. Written `after_attempt(n)`.
    AfterAttempt(u32),
    /// Once the round is complete. Written `after_round`.
    AfterRound,
}

impl FromStr for When {
    type Err = ParseTextError;

    fn from_str(text: &str) -> Result<Self, ParseTextError> {
        if text == "after_round" {
            return Ok(When::AfterRound);
        }
        let attempt = text.strip_prefix("after_attempt(").and_then(|rest| rest.strip_suffix(')'));
        match attempt.filter(|n| n.bytes().all(|b| b.is_ascii_digit())).and_then(|n| n.parse().ok()) {
            Some(n) if n > 0 => Ok(When::AfterAttempt(n)),
            _ => Err(ParseTextError::When(quoted(text))),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::AfterRound => f.write_str("after_round"),
            When::AfterAttempt(n) => write!(f, "after_attempt({n})"),
        }
    }
}

text_serde!(When, "`after_round`, or `after_attempt(n)`: before the client tries again");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_plain_http_with_a_host() {
        assert_eq!("http://127.0.0.1:8080/".parse::<BaseUrl>().unwrap().as_str(), "http://127.0.0.1:8080");
        assert_eq!("http://[::1]:80/a/b".parse::<BaseUrl>().unwrap().as_str(), "http://[::1]:80/a/b");
        for wrong in ["", "127.0.0.1:80", "/x", "ftp://a", "http://", "http://a b", "http://u:p@h/", "http://h/?q"] {
            assert_eq!(wrong.parse::<BaseUrl>(), Err(ParseTextError::BaseUrl(wrong.to_owned())), "{wrong}");
        }
        assert_eq!("https://h".parse::<BaseUrl>(), Err(ParseTextError::Tls("https://h".to_owned())));
    }

    #[test]
    fn what_is_no_path_pattern_method_or_instant_is_refused_with_the_expected_form() {
        let refusals = [
            "$.[".parse::<JsonPath>().unwrap_err(),
            "(".parse::<Pattern>().unwrap_err(),
            "post".parse::<Method>().unwrap_err(),
            "CONNECT".parse::<Method>().unwrap_err(),
            "POST /x".parse::<GrpcMethod>().unwrap_err(),
            "after_attempt(0)".parse::<When>().unwrap_err(),
            "after_attempt(+1)".parse::<When>().unwrap_err(),
            "after_attempt".parse::<When>().unwrap_err(),
        ];
        for refusal in refusals {
            let message = refusal.to_string();
            assert!(message.starts_with("expected ") && !message.contains('\n'), "{message}");
        }
        assert_eq!("after_attempt(12)".parse::<When>().unwrap(), When::AfterAttempt(12));
    }

    #[test]
    fn a_path_selects_one_value_or_the_list_of_several() {
        let value = serde_json::json!({"a": [{"n": 1}, {"n": 2}], "b": null});
        let select = |path: &str| path.parse::<JsonPath>().unwrap().select(&value);
        assert_eq!(select("$.a[0].n"), Selected::Value(1.into()));
        assert_eq!(select("$.a[*].n"), Selected::Value(serde_json::json!([1, 2])));
        assert_eq!(select("$.b"), Selected::Value(serde_json::Value::Null));
        assert_eq!(select("$.c"), Selected::Nothing);
    }
}
