//! Which protocol a connection speaks, from its first bytes, whichever side sends them.
//!
//! There is no timer: [`of`] answers `None` only as long as the bytes can still become HTTP, so a peer that is waited for is
//! one that has not finished its request line. Everything else is opaque with the first byte that tells, and passes as it
//! is. The decision is made on a prefix and never taken back; doubt is resolved towards passing.
//!
//! A request begins with a method of the IANA registry (RFC 9110 §16.1; `METHODS`), perhaps after an empty line (RFC 9112
//! §2.2), or with the preface of HTTP/2 (RFC 9113 §3.4). A connection whose first request has another method, as `PURGE`,
//! passes unread; on later requests of a connection any method will do.

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

/// The registered methods, WebDAV's and its extensions' among them; not `PRI` and `*`, which are reserved so that nobody
/// sends them.
const METHODS: [&str; 39] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Most empty lines before the first request.
const MAX_EMPTY: usize = 2;
/// Longest request line that is waited for.
const MAX_LINE: usize = crate::h1::MAX_HEAD;
/// The end of the request line of every version that the editor reads.
const VERSION: &[u8] = b"HTTP/1.";
/// Largest SETTINGS frame that a server may begin with: the client has not allowed more yet (RFC 9113 §4.2).
const MAX_SETTINGS: u32 = 1 << 14;

/// The protocol of a connection on which the application has sent `app` and its upstream `upstream`; `None` if more is
/// needed to know.
pub fn of(app: &[u8], upstream: &[u8]) -> Option<Detected> {
    if upstream.is_empty() {
        return of_client(app);
    }
    // Only an HTTP/2 server says something before its client has (RFC 9113 §3.4).
    let whole = app.starts_with(PREFACE);
    match of_server(upstream) {
        None if whole => Some(Detected::Http2),
        greeted if whole || PREFACE.starts_with(app) => greeted,
        _ => Some(Detected::Opaque),
    }
}

fn of_client(bytes: &[u8]) -> Option<Detected> {
    if bytes.starts_with(PREFACE) {
        return Some(Detected::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return None;
    }
    let mut line = bytes;
    for _ in 0..MAX_EMPTY {
        line = line.strip_prefix(b"\r\n").unwrap_or(line);
    }
    if line.is_empty() || line == b"\r" && bytes.len() < 2 * MAX_EMPTY {
        return None;
    }
    let known = METHODS.iter().map(|method| method.as_bytes());
    let Some(method) = known.clone().find(|method| line.starts_with(method) && line.get(method.len()) == Some(&b' '))
    else {
        return if known.clone().any(|method| method.starts_with(line)) { None } else { Some(Detected::Opaque) };
    };
    let rest = &line[method.len()..line.len().min(MAX_LINE)];
    match rest.iter().position(|byte| byte.is_ascii_control() && *byte != b'\t') {
        Some(end) if rest[end] == b'\n' => Some(of_request_line(&rest[..end])),
        Some(end) if rest[end] == b'\r' => match rest.get(end + 1) {
            Some(b'\n') => Some(of_request_line(&rest[..end])),
            Some(_) => Some(Detected::Opaque),
            None => of_whole_line(&rest[..end]),
        },
        // No request line contains it.
        Some(_) => Some(Detected::Opaque),
        // One that does not end is the editor's to refuse.
        None => (line.len() >= MAX_LINE).then_some(Detected::Http1),
    }
}

/// The decision at a line's CR: only HTTP is worth waiting for its LF.
fn of_whole_line(line: &[u8]) -> Option<Detected> {
    (of_request_line(line) == Detected::Opaque).then_some(Detected::Opaque)
}

/// What speaks this line, without its end: ` target SP HTTP/1.x`. Whether it is well-formed is for the editor, which
/// refuses; here it only matters that a reader of HTTP could take it for a request.
fn of_request_line(line: &[u8]) -> Detected {
    let version = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    match version.strip_prefix(VERSION) {
        Some([digit]) if digit.is_ascii_digit() => Detected::Http1,
        _ => Detected::Opaque,
    }
}

/// What a server that speaks first speaks: HTTP/2, if that is SETTINGS on stream 0, no acknowledgement.
fn of_server(bytes: &[u8]) -> Option<Detected> {
    let header = &bytes[..bytes.len().min(9)];
    let length = header.get(..3).map(|length| u32::from_be_bytes([0, length[0], length[1], length[2]]));
    let fits = header.first() == Some(&0)
        && length.is_none_or(|length| length.is_multiple_of(6) && length <= MAX_SETTINGS)
        && header.get(3..).unwrap_or_default().iter().zip([4, 0, 0, 0, 0, 0]).all(|(found, wanted)| *found == wanted);
    match (fits, header.len()) {
        (false, _) => Some(Detected::Opaque),
        (true, 9) => Some(Detected::Http2),
        (true, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use Detected::{Http1, Http2, Opaque};
    use proptest::prelude::*;

    use super::*;

    fn client(bytes: &[u8]) -> Option<Detected> {
        of(bytes, b"")
    }

    #[test]
    fn first_bytes_tell_the_protocol() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Some(Http1)),
            (b"GET / HTTP/1.0\r\nHost: a\r\n\r\n", Some(Http1)),
            (b"\r\nGET / HTTP/1.1\r\n", Some(Http1)),
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Some(Http1)),
            (b"PROPFIND /dav HTTP/1.1\r\n", Some(Http1)),
            (b"VERSION-CONTROL /dav HTTP/1.1\r\n", Some(Http1)),
            // Not well-formed, but a lenient server would take it for a request: the editor refuses it.
            (b"GET / HTTP/1.1\n", Some(Http1)),
            (b"GET / x HTTP/1.1\r\n", Some(Http1)),
            (b"GET  HTTP/1.1\r\n", Some(Http1)),
            (PREFACE, Some(Http2)),
            (&PREFACE[..23], None),
            (b"", None),
            (b"\r", None),
            (b"\r\n", None),
            (b"\r\n\r\n", None),
            (b"GET /", None),
            (b"GET / HTTP/1.1\r", None),
            (b"UPDATE", None),
            (b"PRI * HTTP/2.0\r\n\r\nX", Some(Opaque)),
            (b"BREW /pot HTTP/1.1\r\n", Some(Opaque)),
            (b"GET /\r", Some(Opaque)),
            (b"GET /\r\n", Some(Opaque)),
            (b"GET / HTTP/2\r\n", Some(Opaque)),
            (b"GET / HTTP/1.1\rX", Some(Opaque)),
            (b"GET \0", Some(Opaque)),
            (b"get key\r\n", Some(Opaque)),
            (b"s", Some(Opaque)),
            (b"PI", Some(Opaque)),
            (b"*", Some(Opaque)),
            (b"SU", Some(Opaque)),
            (b"EH", Some(Opaque)),
            (b"HEL", Some(Opaque)),
            (b"HELO without a line", Some(Opaque)),
            (b"\x16", Some(Opaque)),
            (b"\x00", Some(Opaque)),
            (b"AM", Some(Opaque)),
            (b"\n", Some(Opaque)),
            (b"\rG", Some(Opaque)),
            (b"\r\n\r\n\r", Some(Opaque)),
            (b"CONNECT\naccept-version:1.2\n\n\0", Some(Opaque)),
        ] {
            assert_eq!(client(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_server_that_greets_with_settings_speaks_http2_and_any_other_is_opaque() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
        for cut in 1..9 {
            assert_eq!(of(b"", &settings[..cut]), None);
        }
        assert_eq!(of(b"", &settings[..9]), Some(Http2));
        assert_eq!(of(b"PRI * HTTP", &settings), Some(Http2));
        assert_eq!(of(b"GET /", &settings), Some(Opaque), "neither speaks HTTP");
        assert_eq!(of(b"GET /", b"HTTP/1.1 408"), Some(Opaque));
        for other in [&b"2"[..], b"\x00\x00\x05", b"\x00\x40\x02", b"\x00\x00\x00\x04\x01", b"\x4a", b"S"] {
            assert_eq!(of(b"", other), Some(Opaque), "{other:?}");
            assert_eq!(of(b"P", other), Some(Opaque), "{other:?}");
        }
    }

    #[test]
    fn what_is_waited_for_is_bounded() {
        let mut line = b"GET /".to_vec();
        line.resize(MAX_LINE - 1, b'a');
        assert_eq!(client(&line), None);
        line.push(b'a');
        assert_eq!(client(&line), Some(Http1), "it is the editor's to refuse");
    }

    #[test]
    fn methods_are_sorted_tokens_without_those_that_nobody_sends() {
        assert!(METHODS.is_sorted() && !METHODS.contains(&"PRI"));
        assert!(METHODS.iter().all(|method| method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')));
    }

    /// Whether some bytes behind `bytes` make an HTTP connection of it, found out by writing one to the end: what the
    /// grammar allows, not how it is looked for.
    fn can_become_http(bytes: &[u8]) -> bool {
        if PREFACE.starts_with(bytes) || bytes.starts_with(PREFACE) {
            return true;
        }
        let text = bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
        let behind = ["", "\r\n", "\r\n\r\n"].into_iter().filter(|empty| text.starts_with(empty));
        let cut = ["\r\n", "\r\n\r\n"].into_iter().any(|empty| empty.starts_with(&text));
        cut || behind.map(|empty| &text[empty.len()..]).any(|line| {
            METHODS.iter().any(|method| {
                if method.starts_with(line) {
                    return true;
                }
                let Some(rest) = line.strip_prefix(method).and_then(|rest| rest.strip_prefix(' ')) else {
                    return false;
                };
                let end = rest.find(|c: char| c.is_ascii_control() && c != '\t');
                let (before, after) = rest.split_at(end.unwrap_or(rest.len()));
                let version = format!(" {before}");
                let version = version.trim_end().rsplit(' ').next().unwrap_or_default().to_owned();
                let is_version = version.len() == 8
                    && version.starts_with("HTTP/1.")
                    && version.ends_with(|c: char| c.is_ascii_digit());
                after.is_empty()
                    || is_version && (after.starts_with('\n') || "\r\n".starts_with(after) || after.starts_with("\r\n"))
            })
        })
    }

    fn beginning() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"GET ".to_vec()),
            Just(b"GET / HTTP/1.1\r\n".to_vec()),
            Just(PREFACE.to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b" HTTP/1.1".to_vec()),
            Just(b"set a 0 0 1\r\n".to_vec()),
            prop::sample::select(&METHODS[..]).prop_map(|method| method.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
            "[A-Z ]{0,6}".prop_map(String::into_bytes),
            "[ -~]{0,12}".prop_map(String::into_bytes),
        ];
        prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// It waits exactly as long as the bytes may become HTTP, and calls HTTP only what is.
        #[test]
        fn it_never_waits_once_the_bytes_cannot_be_http(bytes in beginning()) {
            for end in 0..=bytes.len() {
                let now = client(&bytes[..end]);
                prop_assert_eq!(now != Some(Opaque), can_become_http(&bytes[..end]), "{:?}", &bytes[..end]);
            }
        }

        /// Once decided, no further byte of either side changes the decision.
        #[test]
        fn a_decision_is_final(app in beginning(), upstream in prop_oneof![
            Just(Vec::new()), Just(vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3]), prop::collection::vec(any::<u8>(), 0..4)
        ], greets in any::<bool>()) {
            // The application's bytes come behind the upstream's, or before them.
            let ends = |total: usize| 0..=total;
            let order: Vec<(usize, usize)> = if greets {
                ends(upstream.len()).map(|u| (0, u)).chain(ends(app.len()).map(|a| (a, upstream.len()))).collect()
            } else {
                ends(app.len()).map(|a| (a, 0)).collect()
            };
            let mut decided = None;
            for (a, u) in order {
                let now = of(&app[..a], &upstream[..u]);
                // An HTTP/2 server that has greeted is believed before its client has said anything.
                let believed = decided == Some(Http2) && now == Some(Opaque) && greets;
                if decided.is_some() && !believed {
                    prop_assert_eq!(now, decided);
                }
                decided = decided.or(now);
            }
        }
    }
}
