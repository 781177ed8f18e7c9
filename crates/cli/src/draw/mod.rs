//! Pictures for the terminal: the call tree of an execution, and a round as a message sequence.

pub(crate) mod sequence;
pub(crate) mod tree;

use aftershock_core::span::CallSpan;

/// How a call ended, in a word: `200`, `ok`, `grpc 14`, `no answer`.
pub(crate) fn ending(span: &CallSpan) -> String {
    match (span.response, span.http_status, span.grpc_status) {
        (None, ..) => "no answer".to_owned(),
        (Some(_), _, Some(0)) => "ok".to_owned(),
        (Some(_), _, Some(code)) => format!("grpc {code}"),
        (Some(_), Some(status), None) => status.to_string(),
        (Some(_), None, None) => span.outcome.map_or_else(|| "broken off".to_owned(), |outcome| outcome.to_string()),
    }
}
