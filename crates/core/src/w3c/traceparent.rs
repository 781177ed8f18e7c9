//! `traceparent`: W3C Trace Context Level 2, §3.2.

use std::fmt;
use std::str::FromStr;

use super::lower_hex;

/// Why a value is not a `traceparent`. The receiver then acts as if it had none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseTraceParentError {
    /// Shorter than version 00 is, or longer without a dash where a newer version may go on.
    #[error("expected 55 characters `version-traceid-parentid-flags`")]
    Length,
    /// A dash that is none, or a digit that is no lower-case hexadecimal one.
    #[error("expected lower-case hexadecimal fields separated by `-`")]
    Form,
    /// Version `ff`.
    #[error("expected a version other than `ff`")]
    Version,
    /// The trace id is zero.
    #[error("expected a trace id other than zero")]
    TraceId,
    /// The parent id is zero.
    #[error("expected a parent id other than zero")]
    ParentId,
}

/// A valid `traceparent`: version not `ff`, ids not zero.
///
/// Displayed as version 00 with the flags that Level 2 defines, whatever was read: that is what one may send who does
/// not know the newer version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The version as read; 0 in what we make.
    pub version: u8,
    /// Not zero.
    pub trace_id: u128,
    /// Not zero.
    pub parent_id: u64,
    /// As read.
    pub flags: u8,
}

/// The caller may have recorded this trace.
const SAMPLED: u8 = 0x01;
/// The right-most 7 bytes of the trace id are random.
const RANDOM: u8 = 0x02;

/// The length of version 00.
const LENGTH: usize = 55;

impl TraceParent {
    /// Reads one header value. Two header lines are to be treated as none (§3.2 allows only one).
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, ParseTraceParentError> {
        let value = value.as_ref();
        if value.len() < LENGTH {
            return Err(ParseTraceParentError::Length);
        }
        let field = |from: usize, to: usize| lower_hex(&value[from..to]).ok_or(ParseTraceParentError::Form);
        let version = field(0, 2)? as u8;
        if version == 0xff {
            return Err(ParseTraceParentError::Version);
        }
        if version == 0 && value.len() > LENGTH {
            return Err(ParseTraceParentError::Length);
        }
        if [2, 35, 52].iter().any(|dash| value[*dash] != b'-') || value.get(LENGTH).is_some_and(|next| *next != b'-') {
            return Err(ParseTraceParentError::Form);
        }
        let parent = TraceParent {
            version,
            trace_id: field(3, 35)?,
            parent_id: field(36, 52)? as u64,
            flags: field(53, LENGTH)? as u8,
        };
        match parent {
            TraceParent { trace_id: 0, .. } => Err(ParseTraceParentError::TraceId),
            TraceParent { parent_id: 0, .. } => Err(ParseTraceParentError::ParentId),
            parent => Ok(parent),
        }
    }

    /// Whether the caller may have recorded this trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The low 32 bits of the trace id: the `check` of our member.
    pub fn check(&self) -> u32 {
        self.trace_id as u32
    }
}

impl FromStr for TraceParent {
    type Err = ParseTraceParentError;

    fn from_str(text: &str) -> Result<Self, ParseTraceParentError> {
        TraceParent::parse(text)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags & (SAMPLED | RANDOM))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPEC: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let parent: TraceParent = SPEC.parse().unwrap();
        assert_eq!(
            parent,
            TraceParent {
                version: 0,
                trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
                parent_id: 0x00f0_67aa_0ba9_02b7,
                flags: 1
            }
        );
        assert!(parent.is_sampled());
        assert_eq!(parent.check(), 0x0e0e_4736);
        assert_eq!(parent.to_string(), SPEC);
        assert!(!SPEC.replace("-01", "-00").parse::<TraceParent>().unwrap().is_sampled());
    }

    // The cases of the W3C validation suite (trace-context/test/test.py) about traceparent.
    #[test]
    fn the_cases_of_the_validation_suite_are_judged_as_it_does() {
        use ParseTraceParentError::{Form, Length, ParentId, TraceId, Version};
        let ids = "12345678901234567890123456789012-1234567890123456";
        for (value, expected) in [
            (format!("00-{ids}-01"), None),
            (format!("00-{ids}-ff"), None),
            (format!("cc-{ids}-01"), None),
            (format!("cc-{ids}-01-what-the-future-will-be-like"), None),
            (format!("cc-{ids}-01-"), None),
            (format!("cc-{ids}-01.what-the-future-will-be-like"), Some(Form)),
            (format!("cc-{ids}-01what"), Some(Form)),
            (format!("ff-{ids}-01"), Some(Version)),
            (format!("00-{ids}-01-what-the-future-will-not-be-like"), Some(Length)),
            (format!("00-{ids}-01.what"), Some(Length)),
            (format!("00-{ids}-01-"), Some(Length)),
            (format!(".0-{ids}-01"), Some(Form)),
            (format!("0.-{ids}-01"), Some(Form)),
            (format!("0-{ids}-01"), Some(Length)),
            (format!("000-{ids}-01"), Some(Length)),
            ("00-.2345678901234567890123456789012-1234567890123456-01".into(), Some(Form)),
            ("00-1234567890123456789012345678901.-1234567890123456-01".into(), Some(Form)),
            ("00-00000000000000000000000000000000-1234567890123456-01".into(), Some(TraceId)),
            ("00-12345678901234567890123456789012-0000000000000000-01".into(), Some(ParentId)),
            ("00-ABCDEF78901234567890123456789012-1234567890123456-01".into(), Some(Form)),
            ("00-12345678901234567890123456789012-123456789012345X-01".into(), Some(Form)),
            ("00-1234567890123456789012345678901-1234567890123456-01".into(), Some(Length)),
            ("00-123456789012345678901234567890123-1234567890123456-01".into(), Some(Length)),
            (format!("00-{ids}-.0"), Some(Form)),
            (format!("00-{ids}-0."), Some(Form)),
            (format!("00-{ids}-1"), Some(Length)),
            (format!("00-{ids}-001"), Some(Length)),
            (format!(" 00-{ids}-0"), Some(Form)),
            (format!("00-{}-01", ids.replace('-', "_")), Some(Form)),
            ("+0-12345678901234567890123456789012-1234567890123456-01".into(), Some(Form)),
            (String::new(), Some(Length)),
        ] {
            assert_eq!(TraceParent::parse(&value).err(), expected, "{value:?}");
        }
    }

    #[test]
    fn a_newer_version_is_answered_in_ours() {
        let parent = TraceParent::parse(format!("{}-ff", SPEC.replace("00-4", "01-4").replace("-01", "-ff"))).unwrap();
        assert_eq!((parent.version, parent.flags), (1, 0xff));
        assert_eq!(parent.to_string(), SPEC.replace("-01", "-03"));
    }

    /// An independent reading of the grammar, by splitting.
    fn oracle(value: &str) -> Option<(u8, u128, u64, u8)> {
        let lower = |text: &str, len: usize| {
            text.len() == len && text.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        };
        let mut fields = value.splitn(5, '-');
        let (v, t, p, f) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let more = fields.next().is_some();
        let valid = lower(v, 2) && lower(t, 32) && lower(p, 16) && lower(f, 2) && v != "ff" && !(v == "00" && more);
        let zero = |text: &str| text.chars().all(|c| c == '0');
        (valid && !zero(t) && !zero(p)).then(|| {
            (
                u8::from_str_radix(v, 16).unwrap(),
                u128::from_str_radix(t, 16).unwrap(),
                u64::from_str_radix(p, 16).unwrap(),
                u8::from_str_radix(f, 16).unwrap(),
            )
        })
    }

    fn nearly_valid() -> impl Strategy<Value = String> {
        let valid = "(00|01|cc|fe|ff)-(0{32}|[0-9a-f]{32})-(0{16}|[0-9a-f]{16})-[0-9a-f]{2}(-[a-z-]{0,4})?";
        prop_oneof![
            valid,
            (valid, any::<prop::sample::Index>(), "[ -~\u{e9}]?").prop_map(|(mut text, index, put)| {
                let at = index.index(text.len());
                text.replace_range(at..=at, &put);
                text
            }),
        ]
    }

    proptest! {
        #[test]
        fn parsing_agrees_with_the_grammar(value in nearly_valid()) {
            let parsed = TraceParent::parse(&value).ok().map(|p| (p.version, p.trace_id, p.parent_id, p.flags));
            prop_assert_eq!(parsed, oracle(&value), "{}", value);
        }

        #[test]
        fn what_is_written_is_read_again(trace_id in 1u128.., parent_id in 1u64.., flags in 0u8..4) {
            let parent = TraceParent { version: 0, trace_id, parent_id, flags };
            prop_assert_eq!(TraceParent::parse(parent.to_string()), Ok(parent));
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let _ = TraceParent::parse(value);
        }
    }
}
