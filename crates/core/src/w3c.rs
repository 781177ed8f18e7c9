//! The headers that carry identity through applications: W3C Trace Context Level 2, W3C Baggage, our member in them, and
//! the correlation ids of other tracers (design §3.1).
//!
//! Values are taken as bytes, as they stand in a message. Nothing here fails on what a peer sends: what cannot be read
//! is not there, and goes on as it came.

mod baggage;
mod correlation;
mod member;
mod traceparent;
mod tracestate;

pub use baggage::{Baggage, BaggageFull};
pub use correlation::{correlation, mint};
pub use member::{Member, MemberError};
pub use traceparent::{ParseTraceParentError, TraceParent};
pub use tracestate::{InvalidMember, TraceState};

/// The value of `text`, 1 to 32 lower-case hexadecimal digits; the standard parsers also take upper case and signs.
fn lower_hex(text: &[u8]) -> Option<u128> {
    let mut value = 0u128;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(digit);
    }
    (1..=32).contains(&text.len()).then_some(value)
}

/// Without the optional whitespace around an element of a list (RFC 9110 §5.6.3).
fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}
