//! What a client of a round sends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::name::nearest;
use aftershock_core::yaml::{Located, Spanned};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::check::Expectation;
use super::extract::{Extraction, Place};
use super::file::{RawCommand, RawGrpc, RawHttp, RawMessage, RawRequest, RawRetry, RetryOn};
use super::template::{JsonTemplate, Template, is_name};
use super::text::GrpcMethod;
use super::variables::Known;
use super::{BaseUrl, Scenario, Source, command, listed};

/// Fields that the runner sets itself: they tie a request to its round, or frame it.
const RESERVED: [&str; 7] = [
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "aftershock-hop",
    "content-length",
    "transfer-encoding",
    "connection",
];

/// One request of the client, with its retries.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Where to, if not to the entry.
    pub to: Option<String>,
    /// What is sent, or run.
    pub call: Call,
    /// How long an attempt may take, from the connection to the last byte.
    pub timeout: Duration,
    /// When it is tried again.
    pub retry: Retry,
    /// What the last answer must be.
    pub expect: Expectation,
    /// Variables that the last answer sets.
    pub extract: BTreeMap<String, Extraction>,
}

/// What a request sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// HTTP/1.1.
    Http {
        /// The method.
        method: http::Method,
        /// The path with its query, below the entry's own path.
        path: Template,
        /// Further header fields; values are templates.
        headers: Vec<(HeaderName, Template)>,
        /// The body.
        body: Body,
    },
    /// A unary gRPC call over HTTP/2 by prior knowledge.
    Grpc {
        /// The method.
        method: GrpcMethod,
        /// Further metadata; values are templates.
        metadata: Vec<(HeaderName, Template)>,
        /// The message.
        message: Message,
    },
    /// A command, whose requests are its own.
    Command {
        /// The program and its arguments.
        run: Vec<Template>,
        /// Further environment variables.
        env: BTreeMap<String, Template>,
    },
}

impl Call {
    /// Whether it is a command.
    pub fn is_command(&self) -> bool {
        matches!(self, Call::Command { .. })
    }
}

/// The body of an HTTP request.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Text.
    Text(Template),
    /// A JSON document, whose `content-type` is set unless the request sets another.
    Json(JsonTemplate),
}

/// A gRPC message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Text, as UTF-8.
    Text(Template),
    /// Bytes, as they are.
    Bytes(Vec<u8>),
    /// A document that is made a message of the method's input; its answer is made a document.
    Json {
        /// The document.
        json: JsonTemplate,
        /// What says how.
        schema: MessageSchema,
    },
}

/// Where the descriptors of messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSchema {
    /// A file, beside the scenario's.
    Descriptors(String),
    /// The server itself.
    Reflection,
}

/// When a client tries again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, at least one.
    pub attempts: u32,
    /// What makes it try again.
    pub on: BTreeSet<RetryOn>,
    /// The pause before the next try.
    pub backoff: Duration,
}

/// Reads a request of which `known` variables have values.
pub(super) fn parse(
    source: &Source<'_>,
    raw: RawRequest,
    known: &Known,
    scenario: &Scenario,
) -> Result<Request, Located> {
    source.named(&raw.name, "the request")?;
    let call = match (raw.http, raw.grpc) {
        (Some(http), None) => parse_http(source, http, known, scenario)?,
        (None, Some(grpc)) => parse_grpc(source, grpc, known)?,
        (None, None) => return Err(source.at(&raw.name, "expected `http` or `grpc` for this request, found neither")),
        (Some(_), Some(_)) => {
            return Err(source.at(&raw.name, "expected either `http` or `grpc` for this request, found both"));
        }
    };
    if let Some(to) = &raw.to
        && !scenario.ledgers.contains_key(&**to)
    {
        let names: Vec<&str> = scenario.ledgers.keys().map(String::as_str).collect();
        let near = nearest(to, names.iter().copied()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(source.at(to, format!("unknown ledger `{to}`, expected one of {}{near}", listed(&names))));
    }
    let extract = parse_extract(source, raw.extract, &call, scenario)?;
    let answer = Answer { timeout: raw.timeout, retry: raw.retry, expect: raw.expect };
    answer.parse(source, raw.name.value, raw.to.map(|to| to.value), call, extract)
}

/// Reads the command that is the client; it has the name `command`.
pub(super) fn parse_command(
    source: &Source<'_>,
    raw: RawCommand,
    known: &Known,
    scenario: &Scenario,
) -> Result<Request, Located> {
    let env = raw.env.iter().map(|(name, value)| (name.as_str(), value));
    source.check(&raw.run, command::check(&raw.run, env, known))?;
    let call = Call::Command { run: raw.run.value, env: raw.env };
    let extract = parse_extract(source, raw.extract, &call, scenario)?;
    let answer = Answer { timeout: raw.timeout, retry: raw.retry, expect: raw.expect };
    answer.parse(source, "command".to_owned(), None, call, extract)
}

/// How long an answer may take, and what it must be, as it is written.
struct Answer {
    timeout: Spanned<Interval>,
    retry: Option<RawRetry>,
    expect: Spanned<Expectation>,
}

impl Answer {
    fn parse(
        self,
        source: &Source<'_>,
        name: String,
        to: Option<String>,
        call: Call,
        extract: BTreeMap<String, Extraction>,
    ) -> Result<Request, Located> {
        if self.timeout.value.0.is_zero() {
            return Err(source.at(&self.timeout, "expected a timeout above zero"));
        }
        let retry = self.retry.unwrap_or_default();
        if *retry.attempts == 0 {
            return Err(
                source.at(&retry.attempts, "expected at least one attempt: `attempts` counts the first try too")
            );
        }
        source.check(&self.expect, expectation_fits(&call, &self.expect))?;
        let retry = Retry { attempts: retry.attempts.value, on: retry.on, backoff: retry.backoff.0 };
        Ok(Request { name, to, call, timeout: self.timeout.value.0, retry, expect: self.expect.value, extract })
    }
}

fn parse_extract(
    source: &Source<'_>,
    raw: BTreeMap<String, Spanned<Extraction>>,
    call: &Call,
    scenario: &Scenario,
) -> Result<BTreeMap<String, Extraction>, Located> {
    let mut extract = BTreeMap::new();
    for (name, extraction) in raw {
        if !is_name(&name) {
            let message = format!("expected the name of a variable of letters, digits, `-` and `_`, found {name:?}");
            return Err(source.at(&extraction, message));
        }
        if scenario.known_at_the_start().contains(&name) {
            return Err(source.at(&extraction, format!("expected a name that nothing else has, found `{name}` again")));
        }
        match (&extraction.from, call) {
            (Place::Cookie(_), Call::Grpc { .. }) => {
                return Err(source.at(&extraction, "expected no `cookie` of a gRPC answer: it sets none"));
            }
            (Place::Cookie(_) | Place::Header(_), Call::Command { .. }) => {
                let message = "expected `json_path`, `pointer` or `regex`: a command has nothing but its output";
                return Err(source.at(&extraction, message));
            }
            _ => {}
        }
        extract.insert(name, extraction.value);
    }
    Ok(extract)
}

fn parse_http(source: &Source<'_>, http: RawHttp, known: &Known, scenario: &Scenario) -> Result<Call, Located> {
    let path = &http.path;
    source.check(path, known.check(path))?;
    if !path.as_str().starts_with('/') {
        return Err(source.at(path, format!("expected a path that begins with `/`, found {:?}", path.as_str())));
    }
    if let Some(secret) = known.secret(path) {
        let message = format!("expected no secret in a path, found `{{{secret}}}`: paths are recorded and shown");
        return Err(source.at(path, message));
    }
    if format!("http://h{}", path.fill(&known.samples(scenario))).parse::<http::Uri>().is_err() {
        return Err(source.at(path, format!("expected a path of a URL, found {:?}", path.as_str())));
    }
    let body = match (http.body, http.json) {
        (Some(_), Some(json)) => return Err(source.at(&json, "expected either `body` or `json`, found both")),
        (None, Some(json)) => {
            for text in json.texts() {
                source.check(&json, known.check(&text))?;
            }
            Body::Json(json.value)
        }
        (body, None) => {
            let body = body.unwrap_or_default();
            source.check(&body, known.check(&body))?;
            Body::Text(body.value)
        }
    };
    let headers = headers(source, http.headers, known)?;
    Ok(Call::Http { method: http.method.0, path: http.path.value, headers, body })
}

fn parse_grpc(source: &Source<'_>, grpc: RawGrpc, known: &Known) -> Result<Call, Located> {
    let reflection = *grpc.reflection;
    let message = match (grpc.message, grpc.json) {
        (Some(message), None) => {
            if let Some(file) = &grpc.descriptors {
                return Err(source.at(file, "expected `descriptors` only beside `json`"));
            }
            if reflection {
                return Err(source.at(&grpc.reflection, "expected `reflection` only beside `json`"));
            }
            match message.value {
                RawMessage::Text(text) => {
                    known
                        .check(&text)
                        .map_err(|error| Located::at(source.file, source.text, message.location, error))?;
                    Message::Text(text)
                }
                RawMessage::Bytes(bytes) => Message::Bytes(bytes),
            }
        }
        (None, Some(json)) => {
            for text in json.texts() {
                source.check(&json, known.check(&text))?;
            }
            let schema = match (grpc.descriptors, reflection) {
                (Some(file), false) if !file.trim().is_empty() => MessageSchema::Descriptors(file.value),
                (Some(file), false) => return Err(source.at(&file, "expected the name of a file of descriptors")),
                (None, true) => MessageSchema::Reflection,
                (Some(file), true) => {
                    return Err(source.at(&file, "expected either `descriptors` or `reflection: true`, found both"));
                }
                (None, false) => {
                    let message =
                        "expected `descriptors: FILE` or `reflection: true` beside `json`: what its fields are";
                    return Err(source.at(&json, message));
                }
            };
            Message::Json { json: json.value, schema }
        }
        (None, None) => {
            return Err(source.at(&grpc.method, "expected `message` or `json` for this call, found neither"));
        }
        (Some(_), Some(json)) => {
            return Err(source.at(&json, "expected either `message` or `json` for this call, found both"));
        }
    };
    Ok(Call::Grpc { method: grpc.method.value, metadata: headers(source, grpc.metadata, known)?, message })
}

/// Whether an answer to this call can be what is expected.
pub(super) fn expectation_fits(call: &Call, expectation: &Expectation) -> Result<(), String> {
    let (grpc, command) = (matches!(call, Call::Grpc { .. }), call.is_command());
    if !grpc && expectation.grpc_status.is_some() {
        let what = if command { "a command" } else { "an HTTP request" };
        return Err(format!("expected no `grpc_status` for {what}"));
    }
    if command && expectation.status.is_some() {
        return Err("expected no `status` for a command: it has an `exit` code".to_owned());
    }
    match expectation.exit {
        Some(_) if !command => return Err("expected no `exit` code: only a command has one".to_owned()),
        Some(exit) => command::exit_code(exit)?,
        None => {}
    }
    match expectation.status {
        Some(status) if !(100..=599).contains(&status) => {
            Err(format!("expected a status from 100 to 599, found {status}"))
        }
        _ => Ok(()),
    }
}

fn headers(
    source: &Source<'_>,
    raw: BTreeMap<String, Spanned<Template>>,
    known: &Known,
) -> Result<Vec<(HeaderName, Template)>, Located> {
    let mut headers: Vec<(HeaderName, Template)> = Vec::new();
    for (name, value) in raw {
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| source.at(&value, format!("expected the name of a header field, found {name:?}")))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(source.at(&value, format!("expected no `{parsed}` here: the runner sets it")));
        }
        if headers.iter().any(|(other, _)| *other == parsed) {
            return Err(source.at(&value, format!("expected each header field once, found `{parsed}` again")));
        }
        source.check(&value, known.check(&value))?;
        let fits = HeaderValue::from_str(&value.fill(&BTreeMap::new())).is_ok();
        if !fits {
            return Err(source.at(&value, "expected a value of a header field, without control characters"));
        }
        headers.push((parsed, value.value));
    }
    Ok(headers)
}

/// Header fields with their variables filled.
pub(crate) fn fill_headers(
    headers: &[(HeaderName, Template)],
    values: &BTreeMap<String, String>,
) -> Result<HeaderMap, http::header::InvalidHeaderValue> {
    headers.iter().map(|(name, value)| Ok((name.clone(), HeaderValue::from_str(&value.fill(values))?))).collect()
}

impl Request {
    /// Every text with variables.
    pub(crate) fn templates(&self) -> Vec<Template> {
        let of_fields = |fields: &[(HeaderName, Template)]| fields.iter().map(|(_, value)| value.clone()).collect();
        let mut texts: Vec<Template> = match &self.call {
            Call::Http { headers, .. } => of_fields(headers),
            Call::Grpc { metadata, .. } => of_fields(metadata),
            Call::Command { run, env } => run.iter().chain(env.values()).cloned().collect(),
        };
        match &self.call {
            Call::Http { path, body: Body::Text(body), .. } => texts.extend([path.clone(), body.clone()]),
            Call::Http { path, body: Body::Json(json), .. } => {
                texts.push(path.clone());
                texts.extend(json.texts());
            }
            Call::Grpc { message: Message::Text(text), .. } => texts.push(text.clone()),
            Call::Grpc { message: Message::Json { json, .. }, .. } => texts.extend(json.texts()),
            Call::Grpc { message: Message::Bytes(_), .. } | Call::Command { .. } => {}
        }
        texts
    }

    /// Where it goes: a ledger of `scenario`, or the entry whose turn it is.
    pub(crate) fn base<'a>(&self, scenario: &'a Scenario, turn: usize) -> &'a BaseUrl {
        let ledger = self.to.as_ref().and_then(|name| scenario.ledgers.get(name));
        ledger.unwrap_or_else(|| scenario.entry.turn(turn))
    }
}
