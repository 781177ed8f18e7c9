//! Our member of `tracestate`: `aft=1-<execution>-<call>-<token>-<check>` (design §3.1).
//!
//! Each id is 16 lower-case hexadecimal digits, the check 8, or `0` alone for none. One value has one text.
//! The same value text goes into the other carriers.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode;

use super::{lower_hex, trim_ows};
use crate::hex;
use crate::id::{CallId, ExecutionId, Token};

/// Why a value is not a member that this version reads. Such a member is ignored and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Written by another version.
    #[error("expected version 1 of the member")]
    Version,
    /// Not written by us, or damaged.
    #[error("expected `1-<execution>-<call>-<token>-<check>` in lower-case hexadecimal digits")]
    Form,
}

/// What a call carries of its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// Zero: an entry request, to become an execution of its own.
    pub execution: ExecutionId,
    /// Zero: the request comes from a client of a round.
    pub call: CallId,
    /// Zero: ordinary traffic.
    pub token: Token,
    /// The low 32 bits of the trace id beside it; zero without one.
    pub check: u32,
}

impl Member {
    /// The key in `tracestate`.
    pub const KEY: &'static str = "aft";

    /// Reads the value, what stands after `aft=`.
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, MemberError> {
        let mut fields = value.as_ref().split(|byte| *byte == b'-');
        match fields.next() {
            Some(b"1") => {}
            Some(version) if !version.is_empty() && version.iter().all(u8::is_ascii_alphanumeric) => {
                return Err(MemberError::Version);
            }
            _ => return Err(MemberError::Form),
        }
        let mut number = |width: usize| match fields.next() {
            Some(b"0") => Ok(0),
            Some(digits) if digits.len() == width => {
                lower_hex(digits).filter(|number| *number != 0).map(|number| number as u64).ok_or(MemberError::Form)
            }
            _ => Err(MemberError::Form),
        };
        let (execution, call, token) = (ExecutionId(number(16)?), CallId(number(16)?), Token(number(16)?));
        let check = number(8)?;
        match fields.next() {
            None => Ok(Member { execution, call, token, check: check as u32 }),
            Some(_) => Err(MemberError::Form),
        }
    }

    /// Reads a value that a carrier may have percent-encoded.
    pub fn parse_encoded(value: impl AsRef<[u8]>) -> Result<Self, MemberError> {
        Member::parse(percent_decode(trim_ows(value.as_ref())).collect::<Vec<_>>())
    }
}

impl FromStr for Member {
    type Err = MemberError;

    fn from_str(text: &str) -> Result<Self, MemberError> {
        Member::parse(text)
    }
}

/// The length of a value without zeros.
const LENGTH: usize = "1-0123456789abcdef-0123456789abcdef-0123456789abcdef-01234567".len();
/// The same with `aft=`.
pub(super) const NAMED_LENGTH: usize = Member::KEY.len() + 1 + LENGTH;

impl Member {
    /// Appends `aft=` and the value: a member of `tracestate`.
    pub(super) fn write_named(&self, out: &mut Vec<u8>) {
        out.reserve(NAMED_LENGTH);
        out.extend_from_slice(Member::KEY.as_bytes());
        out.push(b'=');
        self.write(out);
    }

    /// Appends the value, without `aft=`. Every request that passes a sidecar has one written.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.reserve(LENGTH);
        out.push(b'1');
        for id in [self.execution.0, self.call.0, self.token.0] {
            out.push(b'-');
            match id {
                0 => out.push(b'0'),
                id => out.extend_from_slice(&hex::of_u64(id)),
            }
        }
        out.push(b'-');
        match self.check {
            0 => out.push(b'0'),
            check => out.extend_from_slice(&hex::of_u32(check)),
        }
    }
}

/// The value, without `aft=`.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.write(&mut text);
        f.write_str(std::str::from_utf8(&text).expect("digits and dashes are UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(execution: u64, call: u64, token: u64, check: u32) -> Member {
        Member { execution: ExecutionId(execution), call: CallId(call), token: Token(token), check }
    }

    #[test]
    fn the_text_has_sixteen_digits_or_a_single_zero() {
        for (value, text) in [
            (member(0, 0, 0, 0), "1-0-0-0-0"),
            (member(0xab, 1, 0, 0xdead_beef), "1-00000000000000ab-0000000000000001-0-deadbeef"),
            (
                member(u64::MAX, u64::MAX, u64::MAX, u32::MAX),
                "1-ffffffffffffffff-ffffffffffffffff-ffffffffffffffff-ffffffff",
            ),
        ] {
            assert_eq!(value.to_string(), text);
            assert_eq!(Member::parse(text), Ok(value));
        }
    }

    #[test]
    fn a_carrier_may_have_encoded_it() {
        for text in ["1-0-0-0-0", "1%2D0%2d0-0-0", " 1-0-0-0-0\t"] {
            assert_eq!(Member::parse_encoded(text), Ok(member(0, 0, 0, 0)), "{text}");
        }
        assert_eq!(Member::parse_encoded("1%2"), Err(MemberError::Form));
    }

    #[test]
    fn another_version_is_told_from_a_damaged_member() {
        for (text, expected) in [
            ("2-0-0-0-0", MemberError::Version),
            ("10-anything", MemberError::Version),
            ("9", MemberError::Version),
            ("01-0-0-0-0", MemberError::Version),
            ("", MemberError::Form),
            ("1", MemberError::Form),
            ("-0-0-0-0", MemberError::Form),
            (" 1-0-0-0-0", MemberError::Form),
            ("1-0-0-0-00000000", MemberError::Form),
            ("1-0-0-0", MemberError::Form),
            ("1-0-0-0-0-0", MemberError::Form),
            ("1-0-0-0-0-", MemberError::Form),
            ("1--0-0-0", MemberError::Form),
            ("1-0000000000000000-0-0-0", MemberError::Form),
            ("1-00-0-0-0", MemberError::Form),
            ("1-ab-0-0-0", MemberError::Form),
            ("1-00000000000000AB-0-0-0", MemberError::Form),
            ("1-0-0-0-DEADBEEF", MemberError::Form),
            ("1-+0000000000000ab-0-0-0", MemberError::Form),
        ] {
            assert_eq!(Member::parse(text), Err(expected), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn each_member_has_one_text_that_fits_tracestate(execution: u64, call: u64, token: u64, check: u32, zeros in 0u8..8) {
            let keep = |bit: u8, id: u64| if zeros & bit == 0 { id } else { 0 };
            let value = member(keep(1, execution), keep(2, call), keep(4, token), check);
            let text = value.to_string();
            prop_assert_eq!(Member::parse(&text), Ok(value));
            prop_assert!(text.len() <= 61 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'));
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "1(-(0|[0-9a-f]{16}|[0-9a-f]{15,17})){3}-[0-9a-f]{7,9}") {
            if let Ok(value) = Member::parse(&text) {
                prop_assert_eq!(value.to_string(), text);
            }
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let _ = Member::parse(value);
        }
    }
}
