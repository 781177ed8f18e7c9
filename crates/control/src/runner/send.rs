//! One attempt of one request, and the documents of invariants.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, Uri, header};
use http_body_util::Full;

use super::RunError;
use super::cookies::Jar;
use super::exchange::{ExchangeError, MAX_BODY, Protocol, exchange};
use super::grpc::{self, Reply};
use super::values::Values;
use crate::scenario::{BaseUrl, Body, Call, Message, Request, fill_headers};

/// How an attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A complete HTTP answer. Redirects are answers.
    Http { status: u16, headers: HeaderMap, body: Bytes },
    /// A complete gRPC answer, or what a gRPC client makes of it.
    Grpc { http_status: u16, headers: HeaderMap, reply: Reply },
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
    /// The header fields and the body of an answer.
    pub(crate) fn parts(&self) -> Option<(&HeaderMap, &Bytes)> {
        match self {
            Sent::Http { headers, body, .. } => Some((headers, body)),
            Sent::Grpc { headers, reply, .. } => Some((headers, &reply.body)),
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
            Sent::Failed(Failure::Timeout) => f.write_str("timeout"),
            Sent::Failed(Failure::Transport(reason)) => f.write_str(reason),
        }
    }
}

/// Sends `request` once to `base`, with the header fields of `context`; none of ours outside of a round.
pub(crate) async fn send(
    base: &BaseUrl,
    request: &Request,
    values: &Values,
    jar: Option<&mut Jar>,
    context: HeaderMap,
) -> Result<Sent, RunError> {
    let unfit = |reason: String| RunError::Request { request: request.name.clone(), reason };
    let values = values.all();
    let (protocol, path, fields, body) = match &request.call {
        Call::Http { path, headers, body, .. } => {
            let bytes = match body {
                Body::Text(text) => text.fill(values).into(),
                Body::Json(json) => json.fill(values).to_string().into(),
            };
            (Protocol::Http1, path.fill(values), headers, bytes)
        }
        Call::Grpc { method, metadata, message } => {
            let message = match message {
                Message::Text(text) => text.fill(values).into_bytes(),
                Message::Bytes(bytes) => bytes.clone(),
            };
            (Protocol::Http2, method.path(), metadata, grpc::frame(&message))
        }
    };
    let url = format!("{base}{path}");
    let uri: Uri = url.parse().map_err(|_| unfit(format!("{url} is no URL")))?;
    let mut headers = context;
    if protocol == Protocol::Http2 {
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "aftershock")] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    if let Call::Http { body: Body::Json(_), .. } = &request.call {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    headers.extend(fill_headers(fields, values).map_err(|error| unfit(error.to_string()))?);
    if let Some(jar) = &jar {
        jar.give(&url, &mut headers);
    }
    let mut built = HttpRequest::new(Full::new(body));
    *built.method_mut() = match &request.call {
        Call::Http { method, .. } => method.clone(),
        Call::Grpc { .. } => http::Method::POST,
    };
    *built.uri_mut() = uri;
    *built.headers_mut() = headers;
    Ok(match exchange(protocol, built, request.timeout).await {
        Ok(answer) => {
            if let Some(jar) = jar {
                jar.take(&url, &answer.headers);
            }
            if protocol == Protocol::Http2 {
                let reply = grpc::reply(&answer);
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

/// The document at `url`, outside of any round.
pub(crate) async fn get(url: &str, timeout: Duration) -> Result<Bytes, String> {
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
