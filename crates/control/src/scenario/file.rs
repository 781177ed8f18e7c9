//! The `kind: Scenario` file as it is written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aftershock_core::duration::Interval;
use aftershock_core::yaml::Spanned;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::DEFAULT_TIMEOUT;
use super::check::{Expectation, Invariant};
use super::entry::Entries;
use super::extract::Extraction;
use super::request::Message;
use super::template::{JsonTemplate, Template};
use super::text::{BaseUrl, GrpcMethod, Method};

/// A scenario: what a client does, and what must hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// `aftershock.dev/v1alpha1`.
    #[serde(rename = "apiVersion")]
    #[schemars(extend("const" = aftershock_core::yaml::API_VERSION))]
    #[expect(dead_code, reason = "checked before this is read")]
    api_version: String,
    /// `Scenario`.
    #[schemars(extend("const" = super::SCENARIO))]
    #[expect(dead_code, reason = "checked before this is read")]
    kind: String,
    /// Its name.
    pub(super) metadata: Metadata,
    /// What it does.
    pub(super) spec: Spec,
}

/// What every file of ours is called by.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    /// The name: letters, digits, `-`, `_` and `.`.
    pub(super) name: Spanned<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScenarioSpec")]
pub(super) struct Spec {
    /// Base URL of the entry, or of each of its replicas: requests take them in turn.
    pub(super) entry: Entries,
    /// The business key of a round: `{random}` is 8 hexadecimal digits, `{n}` counts the rounds of a run.
    #[serde(default)]
    #[schemars(with = "Option<Template>")]
    pub(super) key: Option<Spanned<Template>>,
    /// Named base URLs, usable as `{NAME}`.
    #[serde(default)]
    pub(super) ledgers: BTreeMap<String, Spanned<BaseUrl>>,
    /// Environment variables whose values are secrets: usable as `{env:NAME}`, shown and stored nowhere.
    #[serde(default)]
    pub(super) secrets: Vec<Spanned<String>>,
    /// Further variables, usable as `{NAME}`.
    #[serde(default)]
    pub(super) variables: BTreeMap<String, Spanned<Template>>,
    /// Whether the client keeps cookies (RFC 6265), each round its own.
    #[serde(default)]
    pub(super) cookies: bool,
    /// Which requests are one execution.
    #[serde(default)]
    pub(super) execution: Execution,
    /// Requests before the round is armed. One that fails ends the round before anything is faulted.
    #[serde(default)]
    pub(super) setup: Vec<RawRequest>,
    /// Requests after the round, whatever came of it.
    #[serde(default)]
    pub(super) teardown: Vec<RawRequest>,
    /// The client's requests, sent one after the other.
    pub(super) requests: Spanned<Vec<RawRequest>>,
    /// What must hold of the system's state, whatever the client saw.
    #[serde(default)]
    pub(super) invariants: Vec<Spanned<Invariant>>,
}

/// Which requests of a client are one execution: what is counted together, in which a fault fires at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// Each request, and each retry, is an execution of its own.
    #[default]
    EachRequest,
    /// All requests with their retries are one execution, whose counts go through.
    Sequence,
}

/// One request: `http` or `grpc`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Request")]
pub(super) struct RawRequest {
    /// Its name.
    pub(super) name: Spanned<String>,
    /// One of the `ledgers` to send it to; the entry if left out.
    #[serde(default)]
    pub(super) to: Option<Spanned<String>>,
    /// An HTTP/1.1 request.
    #[serde(default)]
    pub(super) http: Option<RawHttp>,
    /// A unary gRPC call.
    #[serde(default)]
    pub(super) grpc: Option<RawGrpc>,
    /// How long an attempt may take; ten seconds if left out.
    #[serde(default = "default_timeout")]
    pub(super) timeout: Spanned<Interval>,
    /// When the client tries again; never if left out.
    #[serde(default)]
    pub(super) retry: Option<RawRetry>,
    /// What the last answer must be.
    #[serde(default)]
    pub(super) expect: Spanned<Expectation>,
    /// Variables that the last answer sets, for what comes after.
    #[serde(default)]
    pub(super) extract: BTreeMap<String, Spanned<Extraction>>,
}

fn default_timeout() -> Spanned<Interval> {
    DEFAULT_TIMEOUT.into()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HttpRequest")]
pub(super) struct RawHttp {
    /// The method.
    pub(super) method: Method,
    /// The path, with a query if there is one. `{key}` is the round's business key.
    pub(super) path: Spanned<Template>,
    /// Further header fields.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Spanned<Template>>,
    /// The body, as text.
    #[serde(default)]
    #[schemars(with = "Option<Template>")]
    pub(super) body: Option<Spanned<Template>>,
    /// The body as a JSON document: a variable's value cannot leave the text that it stands in.
    #[serde(default)]
    #[schemars(with = "Option<JsonTemplate>")]
    pub(super) json: Option<Spanned<JsonTemplate>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GrpcRequest")]
pub(super) struct RawGrpc {
    /// The method.
    pub(super) method: GrpcMethod,
    /// Further metadata.
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, Spanned<Template>>,
    /// The message: text, or `{base64: …}`.
    pub(super) message: Spanned<Message>,
}

/// When a client tries again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Retry")]
pub(super) struct RawRetry {
    /// Tries in all, the first one too.
    #[schemars(range(min = 1))]
    pub(super) attempts: Spanned<u32>,
    /// What makes it try again; `[timeout, transport]` if left out.
    #[serde(default = "default_on")]
    pub(super) on: BTreeSet<RetryOn>,
    /// The pause before the next try; none if left out.
    #[serde(default)]
    pub(super) backoff: Interval,
}

impl Default for RawRetry {
    fn default() -> Self {
        RawRetry { attempts: 1.into(), on: BTreeSet::new(), backoff: Interval::default() }
    }
}

fn default_on() -> BTreeSet<RetryOn> {
    BTreeSet::from([RetryOn::Timeout, RetryOn::Transport])
}

/// What makes a client try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// No answer in time.
    Timeout,
    /// The connection was refused, reset or closed before the answer was complete.
    Transport,
    /// HTTP status 500 and above; gRPC UNAVAILABLE.
    Status,
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct MessageVisitor;

        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or `{base64: …}`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Message, E> {
                Ok(Message::Text(text.parse().expect("every text is a template")))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Message, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Encoded {
                    base64: String,
                }
                let encoded = Encoded::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match STANDARD.decode(encoded.base64.trim()) {
                    Ok(bytes) => Ok(Message::Bytes(bytes)),
                    Err(error) => Err(de::Error::custom(format_args!("expected base64 (RFC 4648 §4): {error}"))),
                }
            }
        }

        d.deserialize_any(MessageVisitor)
    }
}

impl JsonSchema for Message {
    fn schema_name() -> Cow<'static, str> {
        "Message".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "the bytes of a gRPC message",
            "oneOf": [
                {"type": "string", "description": "text, sent as UTF-8"},
                {
                    "type": "object",
                    "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
                    "required": ["base64"],
                    "additionalProperties": false
                }
            ]
        })
    }
}
