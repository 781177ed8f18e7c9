//! Which protocol a connection speaks, from the application's first bytes.
//!
//! The decision is made on a prefix and never taken back: [`of`] answers `None` only as long as the bytes could still
//! become HTTP. Everything else passes as it is, so doubt is resolved towards passing: a text protocol whose first line is
//! not an HTTP request line is known at that line's end, a binary one at its first byte that no method contains.

/// What an application speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detected {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 by prior knowledge (RFC 9113 §3.3).
    Http2,
    /// Anything else.
    Opaque,
}

/// The client's connection preface (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most bytes of empty lines before the first request.
const MAX_EMPTY: usize = 4;
/// Longest token that may be a method nobody registered.
const MAX_METHOD: usize = 32;
/// Longest request line that is waited for.
const MAX_LINE: usize = crate::h1::MAX_HEAD;
/// The end of the request line of every version that the editor reads.
const VERSION: &[u8] = b"HTTP/1.";
/// Methods that are HTTP as soon as they are followed by a space: waiting for their line may take as long as it likes.
const METHODS: [&[u8]; 9] = [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE"];

/// The protocol of a connection that starts with `bytes`; `None` if more bytes are needed to know.
pub fn of(bytes: &[u8]) -> Option<Detected> {
    let shared = bytes.len().min(PREFACE.len());
    if bytes[..shared] == PREFACE[..shared] {
        return (shared == PREFACE.len()).then_some(Detected::Http2);
    }
    // RFC 9112 §2.2: a server ignores empty lines before a request.
    let start = empty_lines(bytes);
    if start > MAX_EMPTY {
        return Some(Detected::Opaque);
    }
    let line = &bytes[start..];
    let method = line.iter().take_while(|b| is_token(**b)).count();
    if method == line.len() {
        return (method > MAX_METHOD).then_some(Detected::Opaque);
    }
    if method == 0 || method > MAX_METHOD || line[method] != b' ' {
        return Some(Detected::Opaque);
    }
    match memchr::memchr(b'\n', &line[..line.len().min(MAX_LINE)]) {
        Some(end) => Some(if is_request_line(&line[..end]) { Detected::Http1 } else { Detected::Opaque }),
        // A request line that does not end is the editor's to refuse.
        None if line.len() >= MAX_LINE => {
            Some(if METHODS.contains(&&line[..method]) { Detected::Http1 } else { Detected::Opaque })
        }
        None => None,
    }
}

/// The protocol of a server that speaks first, from its first bytes; `None` if more are needed to know. An HTTP/2 server
/// may send its SETTINGS before it has seen the client's preface (RFC 9113 §3.4); everybody else is none of ours.
pub fn of_server(bytes: &[u8]) -> Option<Detected> {
    let settings = |header: &[u8]| {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        length.is_multiple_of(6) && header[3] == 4 && header[4] == 0 && header[5..9] == [0; 4]
    };
    match bytes.get(..9) {
        Some(header) => Some(if settings(header) { Detected::Http2 } else { Detected::Opaque }),
        // No text protocol greets with a NUL, and SETTINGS shorter than 64 KiB begin with one.
        None => (bytes.first() != Some(&0)).then_some(Detected::Opaque),
    }
}

/// Whether undecided `bytes` are the start of a usual HTTP request, so that waiting for the rest is right however long it
/// takes. Otherwise the peer may be one that has said all it will before it gets an answer.
pub fn is_likely_http(bytes: &[u8]) -> bool {
    let line = &bytes[empty_lines(bytes)..];
    METHODS.iter().chain([&PREFACE]).any(|known| {
        let shared = line.len().min(known.len());
        shared > 0 && line[..shared] == known[..shared]
    })
}

/// Length of the line ends at the front.
fn empty_lines(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count()
}

/// `method SP target SP HTTP/1.x`, with its CR. Whether it is well-formed is for the editor, which refuses; here it only
/// matters that a reader of HTTP could take it for a request.
fn is_request_line(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_end();
    let version = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
    version.len() == VERSION.len() + 1 && version.starts_with(VERSION) && version[VERSION.len()].is_ascii_digit()
}

/// `tchar` (RFC 9110 §5.6.2) without `*` and `$`, with which the commands of Redis start.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#%&'+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_server_that_greets_with_settings_speaks_http2_and_any_other_is_opaque() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
        for cut in 1..9 {
            assert_eq!(super::of_server(&settings[..cut]), None);
        }
        assert_eq!(super::of_server(&settings[..9]), Some(super::Detected::Http2));
        assert_eq!(super::of_server(&settings), Some(super::Detected::Http2));
        for other in [&b"220 mail"[..], b"\x00\x00\x01\x07\x00\x00\x00\x00\x00", b"\x4a\x00\x00\x00\x0a8.0", b"S"] {
            assert_eq!(super::of_server(other), Some(super::Detected::Opaque), "{other:?}");
        }
    }

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_bytes_tell_the_protocol() {
        use Detected::{Http1, Http2, Opaque};
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Some(Http1)),
            (b"GET / HTTP/1.0\r\nHost: a\r\n\r\n", Some(Http1)),
            (b"\r\nGET / HTTP/1.1\r\n", Some(Http1)),
            (b"BREW /pot HTTP/1.1\r\n", Some(Http1)),
            // Not well-formed, but a lenient server would take it for a request: the editor refuses it.
            (b"GET / HTTP/1.1\n", Some(Http1)),
            (b"GET / x HTTP/1.1\r\n", Some(Http1)),
            (PREFACE, Some(Http2)),
            (&PREFACE[..23], None),
            (b"", None),
            (b"GET /", None),
            (b"PRI * HTTP/2.0\r\n\r\nXX", Some(Opaque)),
            (b"GET /\r\n", Some(Opaque)),
            (b"get key\r\n", Some(Opaque)),
            (b"set key 0 0 3\r\nabc\r\n", Some(Opaque)),
            (b"PING\r\n", Some(Opaque)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Opaque)),
            (b"SUBSCRIBE news\r\n", Some(Opaque)),
            (b"EHLO client.example\r\n", Some(Opaque)),
            (b"\x16\x03\x01\x02\x00", Some(Opaque)),
            (b"\x00\x1d\xab\xcd", Some(Opaque)),
            (b"AMQP\x00\x00\x09\x01", Some(Opaque)),
            (b"CONNECT\naccept-version:1.2\n\n\0", Some(Opaque)),
            (b"GET / HTTP/2\r\n", Some(Opaque)),
        ] {
            assert_eq!(of(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_is_waited_for_is_bounded() {
        let mut line = b"GET /".to_vec();
        line.resize(MAX_LINE + 1, b'a');
        assert_eq!(of(&line), Some(Detected::Http1));
        line[..3].copy_from_slice(b"FOO");
        assert_eq!(of(&line), Some(Detected::Opaque));
        assert_eq!(of(&[b'A'; MAX_METHOD + 1]), Some(Detected::Opaque));
        assert_eq!(of(b"\r\n\r\n\r\n"), Some(Detected::Opaque));
    }

    #[test]
    fn usual_methods_are_worth_waiting_for() {
        assert!(is_likely_http(b"G"));
        assert!(is_likely_http(b"GET /very-long"));
        assert!(is_likely_http(b"PRI * HT"));
        assert!(!is_likely_http(b""));
        assert!(!is_likely_http(b"HELLO wor"));
    }

    proptest! {
        /// Once decided, no further byte changes the decision.
        #[test]
        fn a_decision_is_final(
            start in prop_oneof![Just(&b"GET / HTTP/1.1\r\n"[..]), Just(PREFACE), Just(&b"set a 0 0 1\r\n"[..]), Just(&b""[..])],
            tail in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes = [start, &tail].concat();
            let mut decided = None;
            for end in 0..=bytes.len() {
                let now = of(&bytes[..end]);
                if decided.is_some() {
                    prop_assert_eq!(now, decided);
                }
                decided = now;
            }
        }
    }
}
