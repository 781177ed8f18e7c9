//! One attempt of one request, and the documents of invariants.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, Uri, header};
use http_body_util::Full;

use super::RunError;
use super::command::{self, CommandError, Ran};
use super::context::Context;
use super::cookies::Jar;
use super::exchange::{ExchangeError, MAX_BODY, Protocol, exchange};
use super::grpc::{self, Reply};
use super::sql;
use super::transcode::Codecs;
use super::values::Values;
use crate::scenario::{
    BaseUrl, Body, Call, Database, Document, Invariant, Message, Request, Scenario, Template, fill_headers,
};

/// How an attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A complete HTTP answer. Redirects are answers.
    Http { status: u16, headers: HeaderMap, body: Bytes },
    /// A complete gRPC answer, or what a gRPC client makes of it.
    Grpc { http_status: u16, headers: HeaderMap, reply: Reply },
    /// A command ended.
    Ran(Ran),
    /// No complete answer.
    Failed(Failure),
}

/// Why there was no complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Timeout,
    Transport(String),
}

impl Sent {
    /// The header fields, where there are any, and the body of an answer.
    pub(crate) fn parts(&self) -> Option<(Option<&HeaderMap>, &Bytes)> {
        match self {
            Sent::Http { headers, body, .. } => Some((Some(headers), body)),
            Sent::Grpc { headers, reply, .. } => Some((Some(headers), &reply.body)),
            Sent::Ran(ran) => Some((None, &ran.stdout)),
            Sent::Failed(_) => None,
        }
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sent::Http { status, .. } => status.fmt(f),
            Sent::Grpc { http_status: 200, reply, .. } => write!(f, "grpc-status {}", reply.status),
            Sent::Grpc { http_status, reply, .. } => write!(f, "grpc-status {} (HTTP {http_status})", reply.status),
            Sent::Ran(ran) => ran.fmt(f),
            Sent::Failed(Failure::Timeout) => f.write_str("timeout"),
            Sent::Failed(Failure::Transport(reason)) => f.write_str(reason),
        }
    }
}

/// What a client has at hand when it sends.
pub(crate) struct Client<'a> {
    pub(crate) values: &'a Values,
    /// If it keeps cookies.
    pub(crate) jar: Option<&'a mut Jar>,
    pub(crate) codecs: &'a Codecs,
    /// None outside of a round: then nothing of ours is sent.
    pub(crate) context: Option<Context>,
}

/// Sends `request` once to `base`, or runs its command.
pub(crate) async fn send(base: &BaseUrl, request: &Request, client: Client<'_>) -> Result<Sent, RunError> {
    let unfit = |reason: String| RunError::Request { request: request.name.clone(), reason };
    let Client { values, mut jar, codecs, context } = client;
    let codec = codecs.get(&request.name);
    let (protocol, path, fields, body) = match &request.call {
        Call::Http { path, headers, body, .. } => {
            let bytes = match body {
                Body::Text(text) => text.fill(values.all()).into(),
                Body::Json(json) => json.fill(values.all()).to_string().into(),
            };
            (Protocol::Http1, path.fill(values.all()), headers, bytes)
        }
        Call::Grpc { method, metadata, message } => {
            let message = match (message, codec) {
                (Message::Text(text), _) => text.fill(values.all()).into_bytes(),
                (Message::Bytes(bytes), _) => bytes.clone(),
                (Message::Json { json, .. }, Some(codec)) => codec.encode(&json.fill(values.all())).map_err(unfit)?,
                (Message::Json { .. }, None) => return Err(unfit("its descriptors were not read".to_owned())),
            };
            (Protocol::Http2, method.path(), metadata, grpc::frame(&message))
        }
        Call::Command { run, env } => {
            let argv: Vec<String> = run.iter().map(|argument| argument.fill(values.all())).collect();
            let mut env = filled(env, values);
            env.extend(environment(base, values));
            if let Some(context) = context {
                let (traceparent, tracestate) = context.trace()?;
                env.extend([("TRACEPARENT".to_owned(), traceparent), ("TRACESTATE".to_owned(), tracestate)]);
            }
            return match command::run(&argv, &env, request.timeout).await {
                Ok(ran) => Ok(Sent::Ran(ran)),
                Err(CommandError::Timeout) => Ok(Sent::Failed(Failure::Timeout)),
                Err(CommandError::Io(error)) => Err(unfit(format!("failed to run {:?}: {error}", argv[0]))),
            };
        }
    };
    let url = format!("{base}{path}");
    let uri: Uri = url.parse().map_err(|_| unfit(format!("{url} is no URL")))?;
    let mut headers = context.map(|context| context.headers()).transpose()?.unwrap_or_default();
    if protocol == Protocol::Http2 {
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "aftershock")] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    if let Call::Http { body: Body::Json(_), .. } = &request.call {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    headers.extend(fill_headers(fields, values.all()).map_err(|error| unfit(error.to_string()))?);
    if let Some(jar) = &jar {
        jar.give(&url, &mut headers);
    }
    let mut built = HttpRequest::new(Full::new(body));
    *built.method_mut() = match &request.call {
        Call::Http { method, .. } => method.clone(),
        Call::Grpc { .. } | Call::Command { .. } => http::Method::POST,
    };
    *built.uri_mut() = uri;
    *built.headers_mut() = headers;
    Ok(match exchange(protocol, built, request.timeout).await {
        Ok(answer) => {
            if let Some(jar) = &mut jar {
                jar.take(&url, &answer.headers);
            }
            if protocol == Protocol::Http2 {
                let mut reply = grpc::reply(&answer);
                if let (0, Some(codec)) = (reply.status, codec) {
                    match codec.decode(&reply.body) {
                        Ok(json) => reply.body = json.to_string().into(),
                        Err(reason) => reply = Reply { status: grpc::INTERNAL, message: reason, body: Bytes::new() },
                    }
                }
                Sent::Grpc { http_status: answer.status.as_u16(), headers: answer.headers, reply }
            } else {
                Sent::Http { status: answer.status.as_u16(), headers: answer.headers, body: answer.body }
            }
        }
        Err(ExchangeError::Timeout) => Sent::Failed(Failure::Timeout),
        Err(ExchangeError::Transport(reason)) => Sent::Failed(Failure::Transport(reason)),
        Err(ExchangeError::TooLarge) => {
            return Err(unfit(format!("its answer has more than {MAX_BODY} bytes, too many to be checked")));
        }
    })
}

/// Environment variables with their variables filled.
fn filled(env: &BTreeMap<String, Template>, values: &Values) -> BTreeMap<String, String> {
    env.iter().map(|(name, value)| (name.clone(), value.fill(values.all()))).collect()
}

/// What every command of a round is told.
fn environment(entry: &BaseUrl, values: &Values) -> [(String, String); 2] {
    [("AFTERSHOCK_KEY".to_owned(), values.key().to_owned()), ("AFTERSHOCK_ENTRY".to_owned(), entry.to_string())]
}

/// What tells of the system's state, as it was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// A text.
    Text(Bytes),
    /// A value.
    Value(serde_json::Value),
    /// A command that did not end as it should: what differs.
    Difference(String),
}

/// Looks at the document of an invariant, outside of any round.
pub(crate) async fn look(
    scenario: &Scenario,
    invariant: &Invariant,
    values: &Values,
    timeout: Duration,
) -> Result<Found, (String, String)> {
    match &invariant.document {
        Document::Get(url) => {
            let url = url.fill(values.all());
            get(&url, timeout).await.map(Found::Text).map_err(|reason| (format!("GET {url}"), reason))
        }
        Document::Command(line) => {
            let argv: Vec<String> = line.run.iter().map(|argument| argument.fill(values.all())).collect();
            let mut env = filled(&line.env, values);
            env.extend(environment(scenario.entry.turn(0), values));
            let timeout = line.timeout.map_or(timeout, |timeout| timeout.0);
            let ran = command::run(&argv, &env, timeout).await.map_err(|error| (argv[0].clone(), error.to_string()))?;
            match ran.difference(line.exit, &|text| values.hide(text)) {
                // A check that was killed says nothing about the state.
                Some(difference) if ran.exit.is_err() => Err((argv[0].clone(), difference)),
                Some(difference) => Ok(Found::Difference(difference)),
                None => Ok(Found::Text(ran.stdout)),
            }
        }
        Document::Sql(sql) => {
            let url = sql.url.fill(values.all());
            let failed = |reason: String| (url.clone(), reason);
            let database = Database::parse(&url, &scenario.folder).map_err(failed)?;
            let password = sql.password.as_ref().map(|password| password.fill(values.all()));
            let parameters = sql.parameters.iter().map(|parameter| parameter.fill(values.all())).collect();
            let rows =
                sql::rows(database, password.as_deref(), &sql.query, parameters, timeout).await.map_err(failed)?;
            let selects = invariant.check.as_ref().is_some_and(|check| check.path.is_some());
            if selects {
                return Ok(Found::Value(rows.into()));
            }
            match &rows[..] {
                [serde_json::Value::Object(row)] if row.len() == 1 => {
                    Ok(Found::Value(row.values().next().cloned().unwrap_or_default()))
                }
                rows => Ok(Found::Difference(format!(
                    "expected one row of one column where no `json_path` selects, found {} rows{}",
                    rows.len(),
                    rows.first()
                        .and_then(|row| row.as_object())
                        .map_or(String::new(), |row| format!(" of {}", row.len()))
                ))),
            }
        }
    }
}

/// The document at `url`, outside of any round.
async fn get(url: &str, timeout: Duration) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|_| "no URL".to_owned())?;
    let mut request = HttpRequest::new(Full::new(Bytes::new()));
    *request.uri_mut() = uri;
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    match exchange(Protocol::Http1, request, timeout).await {
        Ok(answer) if answer.status.is_success() => Ok(answer.body),
        Ok(answer) => Err(format!("status {}", answer.status.as_u16())),
        Err(error) => Err(error.to_string()),
    }
}
