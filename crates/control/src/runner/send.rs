//! One attempt of one request, as a client of a round sends it (design §3.1): call 0, the round's token, trace and
//! correlation ids of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::w3c::{self, Member, TraceParent};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, Uri};
use http_body_util::Full;

use super::RunError;
use super::exchange::{ExchangeError, MAX_BODY, Protocol, exchange};
use super::grpc::{self, Reply};
use crate::scenario::{BaseUrl, Call, Message, Request, fill_headers};

/// How an attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A complete HTTP answer. Redirects are answers.
    Http { status: u16, body: Bytes },
    /// A complete gRPC answer, or what a gRPC client makes of it.
    Grpc { http_status: u16, reply: Reply },
    /// No complete answer.
    Failed(Failure),
}

/// Why there was no complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Timeout,
    Transport(String),
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sent::Http { status, .. } => status.fmt(f),
            Sent::Grpc { http_status: 200, reply } => write!(f, "grpc-status {}", reply.status),
            Sent::Grpc { http_status, reply } => write!(f, "grpc-status {} (HTTP {http_status})", reply.status),
            Sent::Failed(Failure::Timeout) => f.write_str("timeout"),
            Sent::Failed(Failure::Transport(reason)) => f.write_str(reason),
        }
    }
}

/// Sends `request` once, as a new execution of the round of `token`.
pub(crate) async fn send(
    entry: &BaseUrl,
    request: &Request,
    values: &BTreeMap<String, String>,
    token: Token,
) -> Result<Sent, RunError> {
    let unfit = |reason: String| RunError::Request { request: request.name.clone(), reason };
    let (protocol, path, fields, body) = match &request.call {
        Call::Http { path, headers, body, .. } => {
            (Protocol::Http1, path.fill(values), headers, Bytes::from(body.fill(values)))
        }
        Call::Grpc { method, metadata, message } => {
            let message = match message {
                Message::Text(text) => text.fill(values).into_bytes(),
                Message::Bytes(bytes) => bytes.clone(),
            };
            (Protocol::Http2, method.path(), metadata, grpc::frame(&message))
        }
    };
    let uri: Uri = format!("{entry}{path}").parse().map_err(|_| unfit(format!("{entry}{path} is no URL")))?;
    let mut headers = context(token)?;
    if protocol == Protocol::Http2 {
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "aftershock")] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    headers.extend(fill_headers(fields, values).map_err(|error| unfit(error.to_string()))?);
    let mut built = HttpRequest::new(Full::new(body));
    *built.method_mut() = match &request.call {
        Call::Http { method, .. } => method.clone(),
        Call::Grpc { .. } => http::Method::POST,
    };
    *built.uri_mut() = uri;
    *built.headers_mut() = headers;
    Ok(match exchange(protocol, built, request.timeout).await {
        Ok(answer) if protocol == Protocol::Http2 => {
            Sent::Grpc { http_status: answer.status.as_u16(), reply: grpc::reply(&answer) }
        }
        Ok(answer) => Sent::Http { status: answer.status.as_u16(), body: answer.body },
        Err(ExchangeError::Timeout) => Sent::Failed(Failure::Timeout),
        Err(ExchangeError::Transport(reason)) => Sent::Failed(Failure::Transport(reason)),
        Err(ExchangeError::TooLarge) => {
            return Err(unfit(format!("its answer has more than {MAX_BODY} bytes, too many to be checked")));
        }
    })
}

/// The header fields that make a request a new execution of a round.
fn context(token: Token) -> Result<HeaderMap, RunError> {
    let trace_id = random_u128()?;
    let parent = TraceParent { version: 0, trace_id, parent_id: random_u64()?, flags: 1 };
    let member = Member { execution: ExecutionId(0), call: CallId(0), token, check: parent.check() };
    let uber = w3c::mint("uber-trace-id", random_u128()?, random_u64()?);
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("traceparent", parent.to_string()),
        ("tracestate", format!("{}={member}", Member::KEY)),
        ("uber-trace-id", uber),
    ] {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(&value).expect("hexadecimal digits and signs"),
        );
    }
    Ok(headers)
}

fn random_u64() -> Result<u64, RunError> {
    loop {
        let id = getrandom::u64().map_err(|error| RunError::Random(error.to_string()))?;
        // All zeros means "no id".
        if id != 0 {
            return Ok(id);
        }
    }
}

fn random_u128() -> Result<u128, RunError> {
    Ok(u128::from(random_u64()?) << 64 | u128::from(random_u64()?))
}

/// The document at `url`, outside of any round.
pub(crate) async fn get(url: &str, timeout: Duration) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|_| "no URL".to_owned())?;
    let mut request = HttpRequest::new(Full::new(Bytes::new()));
    *request.uri_mut() = uri;
    request.headers_mut().insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
    match exchange(Protocol::Http1, request, timeout).await {
        Ok(answer) if answer.status.is_success() => Ok(answer.body),
        Ok(answer) => Err(format!("status {}", answer.status.as_u16())),
        Err(error) => Err(error.to_string()),
    }
}
