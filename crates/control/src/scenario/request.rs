//! What a client of a round sends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::name::nearest;
use aftershock_core::yaml::{Located, Spanned};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::check::Expectation;
use super::extract::{Extraction, Place};
use super::file::{RawGrpc, RawHttp, RawRequest, RetryOn};
use super::template::{JsonTemplate, Template, is_name};
use super::text::GrpcMethod;
use super::variables::Known;
use super::{BaseUrl, Scenario, Source, listed};

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
    /// What is sent.
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
}

impl Call {
    /// Whether it is a gRPC call.
    pub fn is_grpc(&self) -> bool {
        matches!(self, Call::Grpc { .. })
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

/// The bytes of a gRPC message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Text, as UTF-8.
    Text(Template),
    /// Bytes, as they are.
    Bytes(Vec<u8>),
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
    if raw.timeout.value.0.is_zero() {
        return Err(source.at(&raw.timeout, "expected a timeout above zero"));
    }
    let retry = raw.retry.unwrap_or_default();
    if *retry.attempts == 0 {
        return Err(source.at(&retry.attempts, "expected at least one attempt: `attempts` counts the first try too"));
    }
    source.check(&raw.expect, expectation_fits(call.is_grpc(), &raw.expect))?;
    let mut extract = BTreeMap::new();
    for (name, extraction) in raw.extract {
        if !is_name(&name) {
            let message = format!("expected the name of a variable of letters, digits, `-` and `_`, found {name:?}");
            return Err(source.at(&extraction, message));
        }
        if scenario.known_at_the_start().contains(&name) {
            return Err(source.at(&extraction, format!("expected a name that nothing else has, found `{name}` again")));
        }
        if call.is_grpc() && matches!(extraction.from, Place::Cookie(_)) {
            return Err(source.at(&extraction, "expected no `cookie` of a gRPC answer: it sets none"));
        }
        extract.insert(name, extraction.value);
    }
    Ok(Request {
        name: raw.name.value,
        to: raw.to.map(|to| to.value),
        call,
        timeout: raw.timeout.value.0,
        retry: Retry { attempts: retry.attempts.value, on: retry.on, backoff: retry.backoff.0 },
        expect: raw.expect.value,
        extract,
    })
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
    let message = match grpc.message.value {
        Message::Text(text) => {
            known.check(&text).map_err(|error| Located::at(source.file, source.text, grpc.message.location, error))?;
            Message::Text(text)
        }
        bytes => bytes,
    };
    Ok(Call::Grpc { method: grpc.method, metadata: headers(source, grpc.metadata, known)?, message })
}

/// Whether an answer of this protocol can be what is expected.
pub(super) fn expectation_fits(grpc: bool, expectation: &Expectation) -> Result<(), String> {
    if !grpc && expectation.grpc_status.is_some() {
        return Err("expected no `grpc_status` for an HTTP request".to_owned());
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
        let (mut texts, fields) = match &self.call {
            Call::Http { path, headers, body, .. } => {
                let body = match body {
                    Body::Text(text) => vec![text.clone()],
                    Body::Json(json) => json.texts(),
                };
                (std::iter::once(path.clone()).chain(body).collect::<Vec<_>>(), headers)
            }
            Call::Grpc { metadata, message, .. } => match message {
                Message::Text(text) => (vec![text.clone()], metadata),
                Message::Bytes(_) => (Vec::new(), metadata),
            },
        };
        texts.extend(fields.iter().map(|(_, value)| value.clone()));
        texts
    }

    /// Where it goes: a ledger of `scenario`, or the entry whose turn it is.
    pub(crate) fn base<'a>(&self, scenario: &'a Scenario, turn: usize) -> &'a BaseUrl {
        let ledger = self.to.as_ref().and_then(|name| scenario.ledgers.get(name));
        ledger.unwrap_or_else(|| scenario.entry.turn(turn))
    }
}
