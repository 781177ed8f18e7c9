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

use crate::hex;

/// The value of `text`, 1 to 32 lower-case hexadecimal digits; the standard parsers also take upper case and signs.
#[inline]
fn lower_hex(text: &[u8]) -> Option<u128> {
    if !(1..=32).contains(&text.len()) {
        return None;
    }
    let (first, rest) = text.split_at(text.len() % 8);
    let mut value = 0;
    if !first.is_empty() {
        let mut digits = [b'0'; 8];
        digits[8 - first.len()..].copy_from_slice(first);
        value = u128::from(hex::to_u32(digits)?);
    }
    let (words, _) = rest.as_chunks();
    words.iter().try_fold(value, |value, digits| Some(value << 32 | u128::from(hex::to_u32(*digits)?)))
}

/// Without the optional whitespace around an element of a list (RFC 9110 §5.6.3).
fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hexadecimal_digits_are_read_as_the_standard_library_does_but_for_upper_case_and_signs(
            text in "[0-9a-f]{0,33}|[0-9a-fA-F+-]{1,3}"
        ) {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            let expected = u128::from_str_radix(&text, 16).ok().filter(|_| plain && text.len() <= 32);
            prop_assert_eq!(super::lower_hex(text.as_bytes()), expected);
        }

        #[test]
        fn a_byte_that_is_no_digit_is_noticed_wherever_it_stands(mut text in "[0-9a-f]{1,32}", at: prop::sample::Index, byte in "[g-z]|[A-Z]|[/:@`]") {
            let at = at.index(text.len());
            text.replace_range(at..=at, &byte);
            prop_assert_eq!(super::lower_hex(text.as_bytes()), None);
        }
    }
}
