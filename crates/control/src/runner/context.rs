//! What ties a request to its round, and tells its execution from all others (design §3.1).

use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::w3c::{self, Member, TraceParent};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::RunError;

/// One execution, as its client names it: call 0, the round's token, trace and correlation ids of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context {
    token: Token,
    /// Zero: each entry request is a new one.
    execution: ExecutionId,
    trace_id: u128,
    correlation: u128,
}

impl Context {
    /// An execution of one request.
    pub(crate) fn of_one_request(token: Token) -> Result<Self, RunError> {
        Ok(Context { token, execution: ExecutionId(0), trace_id: random_u128()?, correlation: random_u128()? })
    }

    /// An execution of as many requests as will be sent with it.
    pub(crate) fn of_a_sequence(token: Token) -> Result<Self, RunError> {
        Ok(Context { execution: ExecutionId(random_u64()?), ..Context::of_one_request(token)? })
    }

    /// `traceparent` and `tracestate` of the next request.
    pub(crate) fn trace(&self) -> Result<(String, String), RunError> {
        let parent = TraceParent { version: 0, trace_id: self.trace_id, parent_id: random_u64()?, flags: 1 };
        let member = Member { execution: self.execution, call: CallId(0), token: self.token, check: parent.check() };
        Ok((parent.to_string(), format!("{}={member}", Member::KEY)))
    }

    /// The header fields of the next request.
    pub(crate) fn headers(&self) -> Result<HeaderMap, RunError> {
        let (traceparent, tracestate) = self.trace()?;
        let uber = w3c::mint("uber-trace-id", self.correlation, random_u64()?);
        let fields = [("traceparent", traceparent), ("tracestate", tracestate), ("uber-trace-id", uber)];
        let field = |(name, value): (&'static str, String)| {
            let value = HeaderValue::from_str(&value).expect("hexadecimal digits and signs");
            (HeaderName::from_static(name), value)
        };
        Ok(fields.into_iter().map(field).collect())
    }
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
