//! gRPC messages from JSON and back, by descriptors from a file or from the server itself (ProtoJSON; integers of 64 bits
//! are read as numbers, so that they can be compared).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use aftershock_core::name::nearest;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request as HttpRequest, Uri};
use http_body_util::Full;
use prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use serde_json::Value;

use super::exchange::{Protocol, exchange};
use super::grpc;
use super::values::Values;
use crate::scenario::{BaseUrl, Call, Message, MessageSchema, Scenario};

/// The most files that a server is asked for.
const MOST_FILES: usize = 1_000;

/// How messages of one method are written and read.
#[derive(Debug, Clone)]
pub(crate) struct Codec(MethodDescriptor);

impl Codec {
    /// That of `method`, `package.Service/Method`, in `pool`.
    fn of(pool: &DescriptorPool, method: &str) -> Result<Self, String> {
        let (service, name) = method.split_once('/').expect("a gRPC method has both parts");
        let Some(service) = pool.get_service_by_name(service) else {
            let names: Vec<String> = pool.services().map(|service| service.full_name().to_owned()).collect();
            return Err(format!("unknown service `{service}`{}", hint(service, &names)));
        };
        let Some(found) = service.methods().find(|method| method.name() == name) else {
            let names: Vec<String> = service.methods().map(|method| method.name().to_owned()).collect();
            return Err(format!("`{}` has no method `{name}`{}", service.full_name(), hint(name, &names)));
        };
        if found.is_client_streaming() || found.is_server_streaming() {
            return Err(format!("`{method}` is a streaming call; a request is a unary one"));
        }
        Ok(Codec(found))
    }

    /// The message that `json` describes.
    pub(crate) fn encode(&self, json: &Value) -> Result<Vec<u8>, String> {
        if let Some(unknown) = unknown_field(&self.0.input(), json) {
            return Err(unknown);
        }
        let options = DeserializeOptions::new();
        let message = DynamicMessage::deserialize_with_options(self.0.input(), json, &options)
            .map_err(|error| format!("not a message of {}: {error}", self.0.input().full_name()))?;
        Ok(message.encode_to_vec())
    }

    /// What `bytes` say, with every field that has a value by default.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<Value, String> {
        let name = self.0.output().full_name().to_owned();
        let message = DynamicMessage::decode(self.0.output(), bytes)
            .map_err(|error| format!("not a message of {name}: {error}"))?;
        let options = SerializeOptions::new().stringify_64_bit_integers(false).skip_default_fields(false);
        message
            .serialize_with_options(serde_json::value::Serializer, &options)
            .map_err(|error| format!("a message of {name} that has no JSON form: {error}"))
    }
}

/// The codecs of a scenario's requests, by their names.
pub(crate) type Codecs = BTreeMap<String, Codec>;

/// The codecs of every request of `scenario` that is written as JSON. What they send without what answers will say is
/// tried.
///
/// # Errors
/// The request, and what is wrong with it.
pub(crate) async fn codecs(scenario: &Scenario, values: &Values) -> Result<Codecs, (String, String)> {
    let mut codecs = Codecs::new();
    for request in scenario.setup.iter().chain(&scenario.requests).chain(&scenario.teardown) {
        let Call::Grpc { method, message: Message::Json { json, schema }, .. } = &request.call else { continue };
        let method = method.to_string();
        let codec = match schema {
            MessageSchema::Descriptors(file) => from_file(&scenario.folder.join(file), &method),
            MessageSchema::Reflection => from_server(request.base(scenario, 0), &method, request.timeout).await,
        };
        let codec = codec.map_err(|reason| (request.name.clone(), reason))?;
        if values.missing(&json.texts()).is_none() {
            codec.encode(&json.fill(values.all())).map_err(|reason| (request.name.clone(), reason))?;
        }
        codecs.insert(request.name.clone(), codec);
    }
    Ok(codecs)
}

/// `; did you mean …?`, or what there is.
fn hint(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if known.is_empty() => String::new(),
        None => format!(", expected one of `{}`", known.join("`, `")),
    }
}

/// The first name in `json` that is no field of its message. Well-known types have forms of their own.
fn unknown_field(message: &MessageDescriptor, json: &Value) -> Option<String> {
    if message.full_name().starts_with("google.protobuf.") {
        return None;
    }
    let Value::Object(fields) = json else { return None };
    fields.iter().find_map(|(name, value)| {
        let Some(field) = message.get_field_by_json_name(name).or_else(|| message.get_field_by_name(name)) else {
            let names: Vec<String> = message.fields().map(|field| field.json_name().to_owned()).collect();
            return Some(format!("unknown field `{name}` of {}{}", message.full_name(), hint(name, &names)));
        };
        let kind = field.kind();
        let inner = kind.as_message()?;
        match value {
            Value::Object(entries) if field.is_map() => {
                let values = inner.map_entry_value_field().kind();
                let values = values.as_message()?;
                entries.values().find_map(|value| unknown_field(values, value))
            }
            Value::Array(values) if field.is_list() => values.iter().find_map(|value| unknown_field(inner, value)),
            value => unknown_field(inner, value),
        }
    })
}

/// The codec of `method` from a file of descriptors.
pub(crate) fn from_file(file: &Path, method: &str) -> Result<Codec, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("failed to read {}: {error}", file.display()))?;
    let pool = DescriptorPool::decode(&bytes[..]).map_err(|error| {
        format!("{} is no set of descriptors with everything that they import: {error}", file.display())
    })?;
    Codec::of(&pool, method)
}

/// The codec of `method` from the server at `base`.
pub(crate) async fn from_server(base: &BaseUrl, method: &str, timeout: Duration) -> Result<Codec, String> {
    let (service, _) = method.split_once('/').expect("a gRPC method has both parts");
    let mut version = "v1";
    let mut files: Vec<FileDescriptorProto> = Vec::new();
    let mut wanted = vec![reflection::Ask::Symbol(service.to_owned())];
    while let Some(ask) = wanted.pop() {
        let mut answer = reflect(base, version, &ask, timeout).await;
        if answer == Err(Refusal::Unimplemented) && version == "v1" {
            // What is in Debian speaks only this.
            version = "v1alpha";
            answer = reflect(base, version, &ask, timeout).await;
        }
        for bytes in answer.map_err(|refusal| format!("{base} did not describe `{service}`: {refusal}"))? {
            let file = FileDescriptorProto::decode(&bytes[..]).map_err(|error| error.to_string())?;
            if files.iter().any(|known| known.name() == file.name()) {
                continue;
            }
            if files.len() == MOST_FILES {
                return Err(format!("{base} describes `{service}` by more than {MOST_FILES} files"));
            }
            files.push(file);
        }
        let missing = files
            .iter()
            .flat_map(|file| &file.dependency)
            .find(|name| !files.iter().any(|file| file.name() == name.as_str()));
        wanted.extend(missing.map(|name| reflection::Ask::File(name.clone())));
    }
    let set = FileDescriptorSet { file: files };
    let pool = DescriptorPool::from_file_descriptor_set(set)
        .map_err(|error| format!("{base} describes `{service}` by files that do not fit: {error}"))?;
    Codec::of(&pool, method)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("it has no reflection")]
    Unimplemented,
    #[error("{0}")]
    Other(String),
}

/// One question to the reflection service: files in the form of the wire.
async fn reflect(
    base: &BaseUrl,
    version: &str,
    ask: &reflection::Ask,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let other = |text: String| Refusal::Other(text);
    let url = format!("{base}/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
    let uri: Uri = url.parse().map_err(|_| other(format!("{url} is no URL")))?;
    let asked = reflection::Request { host: String::new(), ask: Some(ask.clone()) };
    let mut request = HttpRequest::new(Full::new(grpc::frame(&asked.encode_to_vec())));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri;
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "aftershock")] {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let answer = exchange(Protocol::Http2, request, timeout).await.map_err(|error| other(error.to_string()))?;
    let reply = grpc::reply(&answer);
    match reply.status {
        0 => {}
        grpc::UNIMPLEMENTED => return Err(Refusal::Unimplemented),
        status => return Err(other(format!("grpc-status {status} {}", reply.message))),
    }
    let response = reflection::Response::decode(Bytes::clone(&reply.body)).map_err(|error| other(error.to_string()))?;
    match response.answer {
        Some(reflection::Answer::Files(files)) => Ok(files.file_descriptor_proto),
        Some(reflection::Answer::Error(error)) => Err(other(error.error_message)),
        None => Err(other("an answer to something else".to_owned())),
    }
}

/// `grpc/reflection/v1/reflection.proto`; `v1alpha` is the same on the wire.
mod reflection {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Request {
        #[prost(string, tag = "1")]
        pub(super) host: String,
        #[prost(oneof = "Ask", tags = "3, 4")]
        pub(super) ask: Option<Ask>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Ask {
        #[prost(string, tag = "3")]
        File(String),
        #[prost(string, tag = "4")]
        Symbol(String),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Response {
        #[prost(oneof = "Answer", tags = "4, 7")]
        pub(super) answer: Option<Answer>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Answer {
        #[prost(message, tag = "4")]
        Files(Files),
        #[prost(message, tag = "7")]
        Error(Error),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Files {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub(super) file_descriptor_proto: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Error {
        #[prost(int32, tag = "1")]
        pub(super) error_code: i32,
        #[prost(string, tag = "2")]
        pub(super) error_message: String,
    }
}
