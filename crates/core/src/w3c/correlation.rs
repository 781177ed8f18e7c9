//! Correlation ids: what an application passes on that tells executions apart (design §3.1, step 2 of the ladder).
//!
//! Ids are brought to one form, so that a hop that pads, shortens or changes case does not hide that they are the same:
//! hexadecimal trace ids lower-case and, but for `traceparent`, without leading zeros. Anything else is taken verbatim.
//! An id that would have to be cut is none: two cut ids could be equal.

use percent_encoding::percent_decode;

use super::{TraceParent, lower_hex, trim_ows};

/// The longest id of a header that we do not know, in characters.
const MAX_VERBATIM: usize = 128;

/// The id that `value` of the header `name` carries, if it carries one.
pub fn correlation(name: &str, value: impl AsRef<[u8]>) -> Option<String> {
    let value = trim_ows(value.as_ref());
    if name.eq_ignore_ascii_case("traceparent") {
        return TraceParent::parse(value).ok().map(|parent| format!("{:032x}", parent.trace_id));
    }
    if name.eq_ignore_ascii_case("uber-trace-id") {
        // `trace:span:parent:flags`; some clients percent-encode it, as it is also used in places that need that.
        let decoded: Vec<u8> = percent_decode(value).take(256).collect();
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        return trace_id(&decoded[..colon]);
    }
    if name.eq_ignore_ascii_case("b3") {
        // `trace-span[-sampled[-parent]]`, or the sampling state alone.
        let dash = value.iter().position(|byte| *byte == b'-')?;
        return trace_id(&value[..dash]);
    }
    if name.eq_ignore_ascii_case("x-b3-traceid") {
        return trace_id(value);
    }
    let text = std::str::from_utf8(value).ok()?;
    let plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    (plain && (1..=MAX_VERBATIM).contains(&text.len())).then(|| text.to_owned())
}

/// 1 to 32 hexadecimal digits, not zero.
fn trace_id(digits: &[u8]) -> Option<String> {
    let id = lower_hex(&digits.to_ascii_lowercase())?;
    (id != 0).then(|| format!("{id:x}"))
}

/// A value of the header `name` for a request that has none: a root span of the trace `trace`, sampled.
///
/// `trace` and `span` are random and not zero.
pub fn mint(name: &str, trace: u128, span: u64) -> String {
    match name.to_ascii_lowercase().as_str() {
        "traceparent" => TraceParent { version: 0, trace_id: trace, parent_id: span, flags: 1 }.to_string(),
        "uber-trace-id" => format!("{trace:032x}:{span:016x}:0:1"),
        "b3" => format!("{trace:032x}-{span:016x}-1"),
        _ => format!("{trace:032x}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_header_is_read_by_its_own_rule() {
        let long = "x".repeat(129);
        for (name, value, expected) in [
            (
                "traceparent",
                "00-00f92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                Some("00f92f3577b34da6a3ce929d0e0e4736"),
            ),
            ("traceparent", "00-00f92f3577b34da6a3ce929d0e0e4736", None),
            ("uber-trace-id", "00ABCDEF01234567:1:0:1", Some("abcdef01234567")),
            ("Uber-Trace-Id", "abcdef01234567:1:0:1", Some("abcdef01234567")),
            ("uber-trace-id", "abcdef01234567%3A1%3a0%3A1", Some("abcdef01234567")),
            ("uber-trace-id", "0:1:0:1", None),
            ("uber-trace-id", ":1:0:1", None),
            ("uber-trace-id", "xyz:1:0:1", None),
            ("uber-trace-id", "abcdef", None),
            ("uber-trace-id", "f0000000000000000000000000000000f:1:0:1", None),
            (
                "b3",
                "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90",
                Some("80f198ee56343ba864fe8b2a57d3eff7"),
            ),
            ("b3", "000000000000000064fe8b2a57d3eff7-e457b5a2e4d86bd1", Some("64fe8b2a57d3eff7")),
            ("b3", "0", None),
            ("b3", "d", None),
            ("X-B3-TraceId", "64fe8b2a57d3eff7", Some("64fe8b2a57d3eff7")),
            ("x-b3-traceid", "", None),
            ("x-request-id", " c0ffee-42 \t", Some("c0ffee-42")),
            ("x-request-id", "", None),
            ("x-request-id", "a\u{1}b", None),
            ("x-request-id", "h\u{e9}", None),
            ("x-trace", &long, None),
            ("x-trace", &long[..128], Some(&long[..128])),
        ] {
            assert_eq!(correlation(name, value).as_deref(), expected, "{name}: {value}");
        }
    }

    #[test]
    fn what_is_minted_is_a_root_span() {
        assert_eq!(mint("uber-trace-id", 0xab, 0xcd), format!("{:032x}:{:016x}:0:1", 0xab, 0xcd));
        assert_eq!(mint("Traceparent", 1, 2), "00-00000000000000000000000000000001-0000000000000002-01");
    }

    const NAMES: [&str; 6] = ["traceparent", "uber-trace-id", "b3", "x-b3-traceid", "x-request-id", "x-other"];

    proptest! {
        #[test]
        fn minted_ids_are_read_and_told_apart(name in prop::sample::select(&NAMES[..]), a in 1u128.., b in 1u128.., span in 1u64..) {
            let id = |trace| correlation(name, mint(name, trace, span));
            prop_assert!(id(a).is_some());
            prop_assert_eq!(id(a) == id(b), a == b);
        }

        #[test]
        fn padding_and_case_do_not_hide_an_id(id in 1u64.., zeros in 0usize..16) {
            let texts = [format!("{id:x}"), format!("{}{id:X}", "0".repeat(zeros)), format!("{id:032x}")];
            for text in texts {
                let expected = Some(format!("{id:x}"));
                prop_assert_eq!(correlation("uber-trace-id", format!("{text}:1:0:1")), expected.clone());
                prop_assert_eq!(correlation("b3", format!("{text}-1")), expected.clone());
                prop_assert_eq!(correlation("x-b3-traceid", &text), expected);
            }
        }

        #[test]
        fn no_bytes_panic_and_ids_are_short_and_plain(name in prop::sample::select(&NAMES[..]), value: Vec<u8>) {
            if let Some(id) = correlation(name, value) {
                prop_assert!((1..=128).contains(&id.len()) && id.bytes().all(|b| (b' '..=b'~').contains(&b)));
            }
        }
    }
}
