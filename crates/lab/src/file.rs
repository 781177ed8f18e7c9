//! The file form of `kind: Topology`, as YAML spells it: strict, but names not yet resolved.
//!
//! [`crate::topology`] turns it into the typed form; nothing else looks at these types, except the JSON schema that is
//! generated from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use aftershock_core::duration::Interval;
use aftershock_core::yaml::Spanned;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::scalar::{RawCount, Status, Timeout};

/// A topology: mock services, what they call, and what state they keep.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// Version of this form.
    #[serde(rename = "apiVersion")]
    pub(crate) _api_version: ApiVersion,
    /// Always `Topology`.
    #[serde(rename = "kind")]
    pub(crate) _kind: Kind,
    /// What the topology is called.
    pub(crate) metadata: Metadata,
    /// Numbers and booleans that `repeat` and `when` refer to; a client may override them per request.
    #[serde(default)]
    pub(crate) params: Entries<RawParam>,
    /// The services, each its own process.
    pub(crate) services: Entries<RawService>,
    /// State that services keep by business key.
    #[serde(default)]
    pub(crate) ledgers: Entries<RawLedger>,
    /// The operations of the services, by a short name.
    pub(crate) apis: Entries<RawApi>,
    /// What a service does to answer an Api; an Api without handler answers by itself.
    #[serde(default)]
    pub(crate) handlers: Entries<RawHandler>,
    /// Client requests that enter the topology, with the calls they are known to cause.
    #[serde(default)]
    pub(crate) requests: Entries<RawRequest>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) enum ApiVersion {
    #[serde(rename = "aftershock.dev/v1alpha1")]
    V1Alpha1,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) enum Kind {
    Topology,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    /// Short name, as in messages and reports.
    pub(crate) name: Spanned<String>,
    /// What the topology shows, for readers.
    pub(crate) description: Option<String>,
}

/// A mapping in the order of the file, with the position of each key.
#[derive(Debug)]
pub(crate) struct Entries<T>(pub(crate) Vec<(Spanned<String>, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping from names to definitions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Vec<(Spanned<String>, T)> = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    entries.push((key, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Entries<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

/// A parameter: a number, or a boolean as 0 and 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawParam(pub(crate) u32);

impl<'de> Deserialize<'de> for RawParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParamVisitor;

        impl Visitor<'_> for ParamVisitor {
            type Value = RawParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 1000 or a boolean")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<RawParam, E> {
                Ok(RawParam(u32::from(value)))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<RawParam, E> {
                match u32::try_from(value) {
                    Ok(number) if number <= crate::topology::MAX_PARAM => Ok(RawParam(number)),
                    _ => Err(E::custom(format!("{value} is out of range: a parameter is a number from 0 to 1000"))),
                }
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<RawParam, E> {
                self.visit_u64(u64::try_from(value).unwrap_or(u64::MAX))
            }
        }

        deserializer.deserialize_any(ParamVisitor)
    }
}

impl JsonSchema for RawParam {
    fn schema_name() -> Cow<'static, str> {
        "Param".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["integer", "boolean"], "minimum": 0, "maximum": 1000})
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawService {
    /// The protocol the service is called with.
    pub(crate) server: Protocol,
    /// The port its callers know; its sidecar listens there.
    pub(crate) port: Spanned<u16>,
    /// Which trace headers it copies from the request it handles to the calls it makes.
    pub(crate) propagation: Spanned<RawPropagation>,
    /// How it calls others.
    pub(crate) client: Option<RawClient>,
}

/// What a service speaks with its callers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1 with JSON bodies.
    Http1,
    /// gRPC over HTTP/2 with prior knowledge, JSON messages.
    Grpc,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawPropagation {
    /// `traceparent` with a span id of its own, `tracestate` verbatim.
    W3c,
    /// `uber-trace-id` and `uberctx-*`, verbatim.
    Uber,
    /// Nothing.
    None,
    /// It makes no calls.
    Leaf,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawClient {
    /// How long it waits for an answer; `none` waits as long as the connection stands.
    pub(crate) timeout: Timeout,
    /// Automatic retries below the handler.
    pub(crate) retries: Option<RawRetries>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRetries {
    /// How often a call without answer is sent again, although its effect may have happened.
    #[serde(default)]
    pub(crate) unsafe_on_timeout: u8,
    /// How often a call is sent again after a refused, closed or reset connection, although its effect may have happened.
    #[serde(default)]
    pub(crate) unsafe_on_transport: u8,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLedger {
    /// The service that keeps it.
    pub(crate) service: Spanned<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawApi {
    /// The service that answers it.
    pub(crate) service: Spanned<String>,
    /// Full method, `package.Service/Method`; for services with `server: grpc`.
    pub(crate) grpc: Option<Spanned<String>>,
    /// `METHOD /path/{template}`; for services with `server: http1`.
    pub(crate) http: Option<Spanned<String>>,
    /// Changes of state, durable before the answer is sent; only a successful answer makes them.
    #[serde(default)]
    pub(crate) effects: Vec<RawEffect>,
    /// How long the service works before anything else happens; 0 if left out.
    pub(crate) service_time: Option<Spanned<RawServiceTime>>,
    /// Business keys that the service refuses, after its service time and without effect.
    pub(crate) refuse: Option<RawRefusal>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawEffect {
    /// One more entry in this ledger.
    Append(Spanned<String>),
    /// Empties this ledger.
    Clear(Spanned<String>),
}

#[derive(Debug)]
pub(crate) enum RawServiceTime {
    Fixed(Interval),
    PermutedByKey(Vec<Interval>),
}

impl<'de> Deserialize<'de> for RawServiceTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ServiceTimeVisitor;

        impl<'de> Visitor<'de> for ServiceTimeVisitor {
            type Value = RawServiceTime;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 5ms, or {permuted_by_key: [20ms, 40ms]}")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
                Interval::deserialize(de::value::StrDeserializer::new(value)).map(RawServiceTime::Fixed)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let spans = match map.next_key::<String>()?.as_deref() {
                    Some("permuted_by_key") => map.next_value::<Vec<Interval>>()?,
                    Some(other) => return Err(de::Error::unknown_field(other, &["permuted_by_key"])),
                    None => return Err(de::Error::missing_field("permuted_by_key")),
                };
                match map.next_key::<String>()? {
                    Some(other) => Err(de::Error::unknown_field(&other, &["permuted_by_key"])),
                    None => Ok(RawServiceTime::PermutedByKey(spans)),
                }
            }
        }

        deserializer.deserialize_any(ServiceTimeVisitor)
    }
}

impl JsonSchema for RawServiceTime {
    fn schema_name() -> Cow<'static, str> {
        "ServiceTime".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let span = generator.subschema_for::<Interval>();
        json_schema!({"anyOf": [span, {
            "type": "object",
            "description": "the n-th call of a handler run takes one of these times; the order is a permutation that depends on the business key only",
            "properties": {"permuted_by_key": {"type": "array", "items": span, "minItems": 1}},
            "required": ["permuted_by_key"],
            "additionalProperties": false,
        }]})
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRefusal {
    /// Keys that begin so are refused.
    pub(crate) keys_starting_with: Spanned<String>,
    /// The answer they get.
    pub(crate) status: Spanned<Status>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHandler {
    /// What happens, in order.
    pub(crate) steps: Vec<Spanned<RawStep>>,
}

/// One step; exactly one of `call`, `repeat`, `parallel`, `group`, `effect`, `respond`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStep {
    /// The step happens only if this parameter is not 0.
    pub(crate) when: Option<Spanned<String>>,
    /// Calls this Api and waits for the answer.
    pub(crate) call: Option<Spanned<String>>,
    /// Name of the answer, for `uses` of later calls.
    #[serde(rename = "as")]
    pub(crate) name: Option<Spanned<String>>,
    /// Earlier answers that this request is made of.
    pub(crate) uses: Option<Vec<Spanned<String>>>,
    /// Replaces the service's own timeout for this call.
    pub(crate) timeout: Option<Spanned<Timeout>>,
    /// `none`: this call gets no trace headers and outlives the request that caused it.
    pub(crate) propagate: Option<Spanned<RawPropagate>>,
    /// What the handler does when the call fails.
    pub(crate) on_failure: Option<Spanned<RawOnFailure>>,
    /// Repeats steps one after the other.
    pub(crate) repeat: Option<RawRepeat>,
    /// Runs branches at the same time.
    pub(crate) parallel: Option<RawParallel>,
    /// Steps that an error inside leaves at once.
    pub(crate) group: Option<RawGroup>,
    /// A change of the service's own state.
    pub(crate) effect: Option<Spanned<RawEffect>>,
    /// Ends the handler with this status.
    pub(crate) respond: Option<Spanned<Status>>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawPropagate {
    /// No trace headers.
    None,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRepeat {
    /// How often.
    pub(crate) times: Spanned<RawCount>,
    /// What is repeated.
    pub(crate) steps: Vec<Spanned<RawStep>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawParallel {
    /// How the branches' ends become the end of the step.
    pub(crate) join: Join,
    /// The branches, started in this order.
    pub(crate) branches: Vec<Spanned<Vec<Spanned<RawStep>>>>,
}

/// How a parallel step ends. Branches that are still running when it has ended run on to their own end.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// When all branches have ended; fails with the first failure in branch order.
    All,
    /// When all branches have ended, or with the first failure in time.
    FirstError,
    /// Awaits the branches in their order and fails at the first failed one it comes to.
    AwaitInOrder,
    /// The branch that ends first decides: its success is the step's success, its failure the step's failure.
    CommitOnFirstSuccess,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawGroup {
    /// What the group is called.
    pub(crate) name: Spanned<String>,
    /// What happens after a step left the group: `ignore`, or `{fail: STATUS}`.
    pub(crate) on_failure: Spanned<RawReaction>,
    /// The steps inside.
    pub(crate) steps: Vec<Spanned<RawStep>>,
}

/// What a handler does about a failure.
#[derive(Debug)]
pub(crate) enum RawReaction {
    Ignore,
    LeaveGroup,
    Crash,
    Block,
    Fail(Spanned<Status>),
}

const REACTION_WORDS: &[&str] = &["ignore", "leave_group", "crash", "block"];

fn reaction_word<E: de::Error>(word: &str) -> Result<RawReaction, E> {
    match word {
        "ignore" => Ok(RawReaction::Ignore),
        "leave_group" => Ok(RawReaction::LeaveGroup),
        "crash" => Ok(RawReaction::Crash),
        "block" => Ok(RawReaction::Block),
        other => Err(E::custom(format!(
            "{} or {{fail: STATUS}}",
            crate::names::unknown("reaction", other, REACTION_WORDS.iter().copied()).replace('?', ",")
        ))),
    }
}

impl<'de> Deserialize<'de> for RawReaction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match RawOnFailure::deserialize(deserializer)? {
            RawOnFailure::Any(reaction) => Ok(reaction),
            RawOnFailure::ByKind { .. } => {
                Err(de::Error::custom("expected one reaction: a word or {fail: STATUS}, not one for each failure kind"))
            }
        }
    }
}

fn reaction_schema(generator: &mut SchemaGenerator) -> Schema {
    let status = generator.subschema_for::<Status>();
    json_schema!({"anyOf": [
        {"enum": REACTION_WORDS},
        {
            "type": "object",
            "description": "ends the handler with this status",
            "properties": {"fail": status},
            "required": ["fail"],
            "additionalProperties": false,
        },
    ]})
}

impl JsonSchema for RawReaction {
    fn schema_name() -> Cow<'static, str> {
        "Reaction".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        reaction_schema(generator)
    }
}

/// One reaction to every failure, or one for each kind.
#[derive(Debug)]
pub(crate) enum RawOnFailure {
    Any(RawReaction),
    ByKind { transport: RawReaction, status: RawReaction, hang: RawReaction },
}

impl<'de> Deserialize<'de> for RawOnFailure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnFailureVisitor;

        const KEYS: &[&str] = &["fail", "transport", "status", "hang"];

        impl<'de> Visitor<'de> for OnFailureVisitor {
            type Value = RawOnFailure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("ignore, leave_group, crash, block, {fail: STATUS}, or {transport: …, status: …, hang: …}")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
                reaction_word(value).map(RawOnFailure::Any)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut fail, mut transport, mut status, mut hang) = (None, None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "fail" => fail = Some(map.next_value::<Spanned<Status>>()?),
                        "transport" => transport = Some(map.next_value()?),
                        "status" => status = Some(map.next_value()?),
                        "hang" => hang = Some(map.next_value()?),
                        other => return Err(de::Error::unknown_field(other, KEYS)),
                    }
                }
                match (fail, transport, status, hang) {
                    (Some(answer), None, None, None) => Ok(RawOnFailure::Any(RawReaction::Fail(answer))),
                    (None, Some(transport), Some(status), Some(hang)) => {
                        Ok(RawOnFailure::ByKind { transport, status, hang })
                    }
                    _ => Err(de::Error::custom(
                        "expected either fail alone, or a reaction for each of transport, status and hang",
                    )),
                }
            }
        }

        deserializer.deserialize_any(OnFailureVisitor)
    }
}

impl JsonSchema for RawOnFailure {
    fn schema_name() -> Cow<'static, str> {
        "OnFailure".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let reaction = generator.subschema_for::<RawReaction>();
        json_schema!({"anyOf": [reaction, {
            "type": "object",
            "description": "transport: refused, closed or reset; status: an error status came; hang: no answer in time",
            "properties": {"transport": reaction, "status": reaction, "hang": reaction},
            "required": ["transport", "status", "hang"],
            "additionalProperties": false,
        }]})
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRequest {
    /// The Api the client calls.
    pub(crate) api: Spanned<String>,
    /// Overrides of the topology's parameters.
    #[serde(default)]
    pub(crate) params: Entries<RawParam>,
    /// Inter-service calls without faults, the client's own request not counted.
    pub(crate) expect: Expected,
}

/// How many inter-service calls a request causes without faults.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Calls in all.
    pub calls: usize,
    /// Different Apis among them.
    pub distinct: usize,
}
