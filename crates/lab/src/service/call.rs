//! One outbound call of a handler: attempts, timeout, retries, and what is logged about each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::{Method, Request, Uri};
use http_body_util::{Collected, Full};
use serde_json::Value;

use super::grpc;
use super::handler::Run;
use super::memory::Details;
use super::outbound::{Message, TransportError};
use super::payload::{Caller, Payload};
use crate::events::{Failure, Kind};
use crate::scalar::{GrpcCode, Status};
use crate::topology::{Api, Call, Operation};

/// A call without a good answer.
#[derive(Debug)]
pub(crate) struct CallFailed {
    api: String,
    pub(crate) failure: Failure,
    reason: String,
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.api, self.reason)
    }
}

impl CallFailed {
    /// The task of a detached call died of a bug.
    pub(crate) fn panicked(api: &str) -> Self {
        Self { api: api.to_owned(), failure: Failure::Transport, reason: "the calling task panicked".into() }
    }
}

/// Makes a call, with the retries its service is configured for.
pub(crate) async fn perform(
    run: Arc<Run>,
    call: Call,
    index: usize,
    inputs: BTreeMap<String, Value>,
) -> Result<Value, CallFailed> {
    let client = run.process.client;
    let (mut timeouts, mut breaks) = (client.unsafe_retries_on_timeout, client.unsafe_retries_on_transport);
    let mut attempt = 1;
    loop {
        let caller = Caller {
            service: run.process.service.clone(),
            call: run.process.next_call(),
            parent: Some(run.inbound.caller.call.clone()),
            index,
            attempt,
        };
        let failed = match try_once(&run, &call, caller, inputs.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        let left = match failed.failure {
            Failure::Hang => &mut timeouts,
            Failure::Transport => &mut breaks,
            Failure::Status | Failure::Cancelled => return Err(failed),
        };
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => return Err(failed),
        }
        attempt += 1;
    }
}

/// Logs the end of an attempt exactly once, as cancelled if it is dropped.
struct Attempt<'a> {
    run: &'a Run,
    api: &'a str,
    caller: Caller,
    open: bool,
}

impl Attempt<'_> {
    fn log(&self, kind: Kind, details: Details<'_>) {
        self.run.process.memory.log(&self.run.inbound.key, self.api, kind, &self.caller, details);
    }

    fn failed(mut self, failure: Failure, reason: String) -> CallFailed {
        self.open = false;
        self.log(Kind::CallFailed, Details { failure: Some(failure), ..Details::default() });
        CallFailed { api: self.api.to_owned(), failure, reason }
    }

    fn answered(mut self, status: Status, text: &str, message: Value) -> Result<Value, CallFailed> {
        self.open = false;
        let failure = (!status.is_ok()).then_some(Failure::Status);
        self.log(Kind::ResponseReceived, Details { status: Some(status), failure, ..Details::default() });
        match failure {
            None => Ok(message),
            Some(failure) => {
                let reason = if text.is_empty() { format!("{status}") } else { format!("{status}, {text}") };
                Err(CallFailed { api: self.api.to_owned(), failure, reason })
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.open {
            self.log(Kind::CallFailed, Details { failure: Some(Failure::Cancelled), ..Details::default() });
        }
    }
}

async fn try_once(
    run: &Run,
    call: &Call,
    caller: Caller,
    inputs: BTreeMap<String, Value>,
) -> Result<Value, CallFailed> {
    let api = run.process.topology.api(&call.api).expect("the call's Api was resolved");
    let payload = Payload {
        key: run.inbound.key.clone(),
        params: run.inbound.overrides.clone(),
        caller: Some(caller.clone()),
        inputs,
    };
    let (address, channel) = run.process.channel(&api.service);
    let mut request = request(api, address, &payload, call.timeout);
    if call.propagates {
        run.inbound.context.write(request.headers_mut(), run.process.next_span());
    }
    let attempt = Attempt { run, api: &api.name, caller, open: true };
    attempt.log(Kind::RequestSent, Details::default());
    let exchange = channel.exchange(request);
    let read = match call.timeout {
        None => exchange.await,
        Some(timeout) => match tokio::time::timeout(timeout, exchange).await {
            Ok(read) => read,
            Err(_) => {
                return Err(attempt.failed(Failure::Hang, format!("no answer within {} ms", timeout.as_millis())));
            }
        },
    };
    let (head, body) = match read {
        Ok(read) => read,
        Err(error) => return Err(attempt.failed(Failure::Transport, chain(&error))),
    };
    let understood = match &api.operation {
        Operation::Grpc(_) => understand_grpc(&head, body),
        Operation::Http(_) => Ok(understand_http(&head, body)),
    };
    match understood {
        Ok((status, text, message)) => attempt.answered(status, &text, message),
        Err(reason) => Err(attempt.failed(Failure::Transport, reason)),
    }
}

fn request(api: &Api, address: std::net::SocketAddr, payload: &Payload, timeout: Option<Duration>) -> Request<Message> {
    match &api.operation {
        Operation::Grpc(method) => {
            let uri: Uri = format!("http://{address}/{method}").parse().expect("an address and a checked method");
            let mut request = Request::new(Full::new(grpc::frame(&payload.to_json())));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = uri;
            let headers = request.headers_mut();
            headers.insert(CONTENT_TYPE, grpc::CONTENT_TYPE_GRPC);
            headers.insert(TE, HeaderValue::from_static("trailers"));
            if let Some(timeout) = timeout {
                headers.insert("grpc-timeout", grpc_timeout(timeout));
            }
            request
        }
        Operation::Http(route) => {
            let number = payload.caller.as_ref().map_or(1, |caller| caller.index);
            let method: Method = route.method().parse().expect("upper-case letters are a method");
            let path = route.example_path(number);
            let (target, body) = match route.method() {
                "GET" | "HEAD" | "DELETE" | "OPTIONS" => (format!("{path}?{}", payload.to_query()), Bytes::new()),
                _ => (path, Bytes::from(payload.to_json())),
            };
            let mut request = Request::new(Full::new(body));
            *request.method_mut() = method;
            *request.uri_mut() = target.parse().expect("a checked path with an escaped query");
            let headers = request.headers_mut();
            let host = HeaderValue::try_from(address.to_string()).expect("an address is printable");
            headers.insert(http::header::HOST, host);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request
        }
    }
}

/// At most 8 digits and a unit (gRPC over HTTP/2, "Timeout").
fn grpc_timeout(timeout: Duration) -> HeaderValue {
    let micros = timeout.as_micros();
    let text = match micros {
        0..=99_999_999 if !micros.is_multiple_of(1000) => format!("{micros}u"),
        0..=99_999_999_999 => format!("{}m", micros / 1000),
        _ => format!("{}S", timeout.as_secs().min(99_999_999)),
    };
    HeaderValue::try_from(text).expect("digits and a letter")
}

type Understood = (Status, String, Value);

fn understand_grpc(head: &http::response::Parts, body: Collected<Bytes>) -> Result<Understood, String> {
    if head.status != http::StatusCode::OK {
        // What a gRPC client makes of an intermediary's HTTP answer (gRPC core, `doc/http-grpc-status-mapping.md`).
        let code = match head.status.as_u16() {
            400 => GrpcCode::Internal,
            401 => GrpcCode::Unauthenticated,
            403 => GrpcCode::PermissionDenied,
            404 => GrpcCode::Unimplemented,
            429 | 502..=504 => GrpcCode::Unavailable,
            _ => GrpcCode::Unknown,
        };
        return Ok((Status::Grpc(code), format!("HTTP {}", head.status.as_u16()), Value::Null));
    }
    let trailers = body.trailers().unwrap_or(&head.headers);
    let Some((code, text)) = grpc::status(trailers) else {
        return Err("the answer ended without grpc-status".into());
    };
    if code != GrpcCode::Ok {
        return Ok((Status::Grpc(code), text, Value::Null));
    }
    let stream = body.to_bytes();
    let message = grpc::unframe(&stream)?;
    let message = serde_json::from_slice(message).map_err(|error| format!("the answer is no JSON: {error}"))?;
    Ok((Status::Grpc(code), text, message))
}

fn understand_http(head: &http::response::Parts, body: Collected<Bytes>) -> Understood {
    let message: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
    let text = message.get("error").and_then(Value::as_str).unwrap_or_default().to_owned();
    (Status::Http(head.status.as_u16()), text, message)
}

/// An error with its causes, in one line.
fn chain(error: &TransportError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_timeout_has_at_most_eight_digits_and_a_unit() {
        for (timeout, expected) in [
            (Duration::from_millis(100), "100m"),
            (Duration::from_secs(1), "1000m"),
            (Duration::from_micros(1500), "1500u"),
            (Duration::from_secs(3600), "3600000m"),
            (Duration::from_secs(200_000), "200000S"),
        ] {
            assert_eq!(grpc_timeout(timeout), expected);
        }
    }
}
