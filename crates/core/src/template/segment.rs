//! Which segments of an unknown path are ids: a guess, meant to err towards few operations.
//!
//! Words with a version or a short number (`v1`, `oauth2`, `base64encode`) stay; numbers, UUIDs, digests, product codes,
//! addresses, and whatever is long or percent-encoded do not.

use std::borrow::Cow;

const ID: &str = "{id}";

/// Segments longer than this are ids.
const MAX_WORD: usize = 32;
/// Verbs (`:cancel`) longer than this are none.
const MAX_VERB: usize = 24;
/// From this length on, hexadecimal digits are an id.
const DIGEST: usize = 16;
/// From this length on, a word with any digit is an id.
const LONG: usize = 20;
/// From this length on, a word is an id if its letters are upper-case, or if digits stand in two places of it.
const MEDIUM: usize = 8;
/// As many digits in a row are an id.
const DIGITS: usize = 4;

/// The segment as it stands in an operation: as it is, or `{id}`; a custom verb after `:` stays.
pub(super) fn guess(raw: &[u8]) -> Cow<'_, str> {
    // Path parameters (`;jsessionid=…`) are no part of a name.
    let raw = raw.split(|byte| *byte == b';').next().unwrap_or_default();
    let Some(text) = std::str::from_utf8(raw).ok().filter(|text| text.bytes().all(is_plain) || is_variable(text))
    else {
        return ID.into();
    };
    match text.rsplit_once(':') {
        Some((base, verb)) if is_verb(verb) && is_id(base) => format!("{ID}:{verb}").into(),
        Some((_, verb)) if is_verb(verb) => text.into(),
        _ if is_id(text) => ID.into(),
        _ => text.into(),
    }
}

/// May stand in a segment that is no id: unreserved and sub-delims of RFC 3986 without `;`, and `:`.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:".contains(&byte)
}

/// `{name}`, perhaps with a verb: the path is a template already.
fn is_variable(text: &str) -> bool {
    let name = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let (variable, verb) = text.split_once(':').unwrap_or((text, "v"));
    let inner = variable.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| inner.len() <= MAX_WORD && name(inner)) && is_verb(verb)
}

fn is_verb(text: &str) -> bool {
    (1..=MAX_VERB).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_alphabetic())
}

fn is_id(text: &str) -> bool {
    if text.starts_with('{') {
        return false;
    }
    let bytes = text.as_bytes();
    let hexadecimal = bytes.iter().filter(|b| **b != b'-').all(u8::is_ascii_hexdigit)
        && bytes.iter().filter(|b| **b != b'-').count() >= DIGEST;
    if text.len() > MAX_WORD || hexadecimal {
        return true;
    }
    if !bytes.iter().any(u8::is_ascii_digit) {
        return false;
    }
    let separated = |b: &u8| b.is_ascii_digit() || b"-._~:".contains(b);
    bytes.iter().all(separated)
        || bytes.iter().any(|b| b"!$&'()*+,=".contains(b))
        || (bytes.len() >= MEDIUM && !bytes.iter().any(u8::is_ascii_lowercase))
        || bytes.split(|b| b"-._~:".contains(b)).any(is_code)
}

/// A part of a segment in which the digits are not a mere suffix or infix of a word.
fn is_code(part: &[u8]) -> bool {
    let runs = part.split(|b| !b.is_ascii_digit()).filter(|run| !run.is_empty());
    let (count, longest) = runs.fold((0, 0), |(count, longest), run| (count + 1, run.len().max(longest)));
    longest >= DIGITS || (count >= 1 && part.len() >= LONG) || (count >= 2 && part.len() >= MEDIUM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_kind_are_replaced() {
        for id in [
            "1",
            "42",
            "2024-01-31",
            "-1",
            "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            "6BA7B8109DAD11D180B400C04FD430C8",
            "deadbeefdeadbeef",
            "507f1f77bcf86cd799439011",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "OLJCEESPC7Z",
            "0PUK6V6EV0",
            "6E92ZMYYFZ",
            "dQw4w9WgXcQ",
            "cjld2cjxh0000qzrmn831i7rn",
            "productcatalog-7d8f9c5b6",
            "order-12345",
            "photo_20240131.jpg",
            "jane.doe@example.com",
            "caf%C3%A9",
            "%2e%2e",
            "a b",
            "na\u{ef}ve",
            "a\u{1}b",
            "{a}{b}",
            "{a-b}",
            "Products(1)",
            "lat=1",
            "this-is-a-very-long-slug-of-a-blog-post",
        ] {
            assert_eq!(guess(id.as_bytes()), "{id}", "{id}");
        }
        assert_eq!(guess(b"\xff\xfe"), "{id}");
    }

    #[test]
    fn words_stay() {
        for word in [
            "",
            "cart",
            "v1",
            "v2beta1",
            "oauth2",
            "oauth2callback",
            "oauth2-v2-callback",
            "base64encode",
            "s3",
            "getUserV2Details",
            "index.html",
            "app.min.js",
            "$metadata",
            "Products()",
            "..",
            "...",
            "{id}",
            "{user_id}",
            "items:batchGet",
            "hipstershop.CartService",
            "CHECKOUT",
        ] {
            assert_eq!(guess(word.as_bytes()), word, "{word}");
        }
    }

    #[test]
    fn verbs_stay_and_path_parameters_go() {
        for (segment, expected) in [
            ("123:cancel", "{id}:cancel"),
            ("{id}:cancel", "{id}:cancel"),
            ("{user}:cancel", "{user}:cancel"),
            ("123:456", "{id}"),
            ("10.0.0.1:8080", "{id}"),
            ("cart;jsessionid=1A530637289A03B0", "cart"),
            ("7;v=1", "{id}"),
            (";x", ""),
        ] {
            assert_eq!(guess(segment.as_bytes()), expected, "{segment}");
        }
    }
}
