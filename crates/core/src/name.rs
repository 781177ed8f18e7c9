//! Names of services, operations and Apis (design §2, §3.10).

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseNameError {
    /// A service name with a character that could break a header or a log line, empty, or too long.
    #[error("expected a service name of 1 to 128 visible ASCII characters without spaces, found {0:?}")]
    Service(String),
    /// An operation that is neither gRPC nor HTTP.
    #[error("expected `package.Service/Method` or `METHOD /path/{{template}}`, found {0:?}")]
    Operation(String),
    /// An Api without the space between service and operation.
    #[error(
        "expected `SERVICE OPERATION`, e.g. `payment shop.Payment/Charge` or `cart POST /cart/{{id}}`, found {0:?}"
    )]
    Api(String),
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

macro_rules! text_serde {
    ($name:ident, $schema:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "description": $schema})
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_string())
            }
        }
    };
}

/// The name of a service, as its sidecar registered it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service(Arc<str>);

impl Service {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Service {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ParseNameError::Service(excerpt(text)));
        }
        Ok(Service(text.into()))
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Service {
    fn borrow(&self) -> &str {
        &self.0
    }
}

text_serde!(Service, "the name of a service, as its sidecar is configured");

/// gRPC `package.Service/Method` or HTTP `METHOD /path/{template}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(Arc<str>);

impl Operation {
    /// The operation as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a gRPC method: HTTP operations have a space.
    pub fn is_grpc(&self) -> bool {
        !self.0.contains(' ')
    }
}

impl FromStr for Operation {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let printable = text.len() <= 512 && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        let shaped = match text.split_once(' ') {
            Some((method, path)) => {
                !method.is_empty()
                    && (path.starts_with('/') || path == "*" || method == "CONNECT")
                    && !path.is_empty()
                    && !path.contains(' ')
            }
            None => {
                !text.starts_with('/')
                    && text.split_once('/').is_some_and(|(s, m)| !s.is_empty() && !m.is_empty() && !m.contains('/'))
            }
        };
        if printable && shaped { Ok(Operation(text.into())) } else { Err(ParseNameError::Operation(excerpt(text))) }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(Operation, "`package.Service/Method` (gRPC) or `METHOD /path/{template}` (HTTP)");

/// What a call calls: an operation of a service. Written `SERVICE OPERATION`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Api {
    /// The callee.
    pub service: Service,
    /// Its operation.
    pub operation: Operation,
}

impl Api {
    /// The last part of the operation, for narrow places: `Charge`, or the whole HTTP operation.
    pub fn short(&self) -> &str {
        let text = self.operation.as_str();
        if self.operation.is_grpc() { text.rsplit('/').next().unwrap_or(text) } else { text }
    }
}

impl FromStr for Api {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let (service, operation) = text.split_once(' ').ok_or_else(|| ParseNameError::Api(excerpt(text)))?;
        Ok(Api { service: service.parse()?, operation: operation.parse()? })
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.service, self.operation)
    }
}

text_serde!(Api, "an Api, `SERVICE OPERATION`: `payment shop.Payment/Charge` or `cart POST /cart/{id}`");

/// The name among `known` that is most like `wanted`, for "did you mean": at most a third of its letters differ.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (distance(&wanted.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(d, name)| *d * 3 <= wanted.len().max(name.len()).max(3))
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let cost = if x == y { diagonal } else { 1 + diagonal.min(row[j]).min(row[j + 1]) };
            diagonal = row[j + 1];
            row[j + 1] = cost;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_is_a_service_and_an_operation() {
        let api: Api = "payment shop.Payment/Charge".parse().unwrap();
        assert_eq!(
            (api.service.as_str(), api.operation.as_str(), api.short()),
            ("payment", "shop.Payment/Charge", "Charge")
        );
        let api: Api = "cart POST /cart/{id}".parse().unwrap();
        assert_eq!((api.operation.as_str(), api.operation.is_grpc()), ("POST /cart/{id}", false));
    }

    #[test]
    fn what_is_no_api_is_refused_with_the_expected_form() {
        for text in ["", "payment", "payment /shop.Payment/Charge", "payment POST cart", "pay\nment a/b", "p a/b/c"] {
            let error = text.parse::<Api>().unwrap_err().to_string();
            assert!(error.starts_with("expected"), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_only_if_it_is_near() {
        let known = ["paymentservice", "shippingservice"];
        assert_eq!(nearest("paymentservise", known), Some("paymentservice"));
        assert_eq!(nearest("frobnicator", known), None);
    }
}
