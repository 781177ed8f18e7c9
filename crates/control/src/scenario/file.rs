//! The `kind: Scenario` file as it is written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aftershock_core::duration::Interval;
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::yaml::Spanned;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::DEFAULT_TIMEOUT;
use super::check::Expectation;
use super::entry::Entries;
use super::extract::Extraction;
use super::invariant::Invariant;
use super::template::{JsonTemplate, Template};
use super::text::{BaseUrl, GrpcMethod, Method};
use super::traffic::{RawStop, RawTraffic};

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
    #[serde(default)]
    #[schemars(with = "Option<Vec<RawRequest>>")]
    pub(super) requests: Option<Spanned<Vec<RawRequest>>>,
    /// A command of the user's own in place of `requests`; it is the request `command`.
    #[serde(default)]
    #[schemars(with = "Option<RawCommand>")]
    pub(super) command: Option<Spanned<RawCommand>>,
    /// Ordinary traffic in place of `requests`.
    #[serde(default)]
    #[schemars(with = "Option<RawTraffic>")]
    pub(super) traffic: Option<Spanned<RawTraffic>>,
    /// Apis whose outcome is not what their status says.
    #[serde(default)]
    pub(super) outcomes: Vec<Spanned<OutcomeOverride>>,
    /// When a round is ended at once, because ordinary traffic suffers.
    #[serde(default)]
    pub(super) stop: Option<RawStop>,
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
    pub(super) method: Spanned<GrpcMethod>,
    /// Further metadata.
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, Spanned<Template>>,
    /// The message as bytes: text, or `{base64: …}`.
    #[serde(default)]
    #[schemars(with = "Option<RawMessage>")]
    pub(super) message: Option<Spanned<RawMessage>>,
    /// The message as JSON (ProtoJSON), with `descriptors` or `reflection`. The answer is read as JSON then.
    #[serde(default)]
    #[schemars(with = "Option<JsonTemplate>")]
    pub(super) json: Option<Spanned<JsonTemplate>>,
    /// A file of descriptors, as `protoc --include_imports --descriptor_set_out` or `buf build -o` writes it, beside the
    /// scenario's.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub(super) descriptors: Option<Spanned<String>>,
    /// Whether the server is asked for its descriptors.
    #[serde(default)]
    #[schemars(with = "bool")]
    pub(super) reflection: Spanned<bool>,
}

/// The client as a command: it gets `TRACEPARENT` and `TRACESTATE` in its environment, to be put into its requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CommandClient")]
pub(super) struct RawCommand {
    /// The program and its arguments.
    #[schemars(length(min = 1))]
    pub(super) run: Spanned<Vec<Template>>,
    /// Further environment variables.
    #[serde(default)]
    pub(super) env: BTreeMap<String, Template>,
    /// How long it may take; one minute if left out. Then it is killed with everything that it started.
    #[serde(default = "a_minute")]
    pub(super) timeout: Spanned<Interval>,
    /// When it is run again; never if left out.
    #[serde(default)]
    pub(super) retry: Option<RawRetry>,
    /// How it must end, and what it must print.
    #[serde(default)]
    pub(super) expect: Spanned<Expectation>,
    /// Variables that its output sets, for invariants and the teardown.
    #[serde(default)]
    pub(super) extract: BTreeMap<String, Spanned<Extraction>>,
}

fn a_minute() -> Spanned<Interval> {
    Interval(std::time::Duration::from_secs(60)).into()
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
    /// HTTP status 500 and above; gRPC UNAVAILABLE; another exit code than the expected one.
    Status,
}

/// The bytes of a gRPC message.
#[derive(Debug)]
pub(super) enum RawMessage {
    Text(Template),
    Bytes(Vec<u8>),
}

impl<'de> Deserialize<'de> for RawMessage {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct MessageVisitor;

        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = RawMessage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or `{base64: …}`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawMessage, E> {
                Ok(RawMessage::Text(text.parse().expect("every text is a template")))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawMessage, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Encoded {
                    base64: String,
                }
                let encoded = Encoded::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match STANDARD.decode(encoded.base64.trim()) {
                    Ok(bytes) => Ok(RawMessage::Bytes(bytes)),
                    Err(error) => Err(de::Error::custom(format_args!("expected base64 (RFC 4648 §4): {error}"))),
                }
            }
        }

        d.deserialize_any(MessageVisitor)
    }
}

impl JsonSchema for RawMessage {
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
