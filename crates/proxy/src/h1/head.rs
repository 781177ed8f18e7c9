//! What a head says about its message (RFC 9112 §3 to §6, §9).
//!
//! httparse reads the lines; this module adds what the forwarding of bytes depends on. Whatever two readers could take for
//! two different messages is [`Malformed`] here and goes nowhere.

use std::mem::MaybeUninit;

use super::Malformed;
use super::body::Body;
use crate::exchange::{Fields, Protocol, RequestHead, ResponseHead};

/// Field lines that are parsed without an allocation.
const USUAL_LINES: usize = 64;

/// A request head and what it says about its connection.
pub(super) struct Request<'a> {
    pub(super) head: RequestHead<'a>,
    pub(super) body: Option<Body>,
    /// The connection ends after this exchange: HTTP/1.0, or `Connection: close`.
    pub(super) close: bool,
    /// Asks for another protocol, or is a CONNECT: what follows is unknown until the answer.
    pub(super) switch: bool,
    /// Asks for HTTP/2 on this connection.
    pub(super) h2c: bool,
    /// Waits for a 100 before it sends its body.
    pub(super) expects: bool,
}

/// A response head and what it says about its connection. `head.ends` depends on the request and is set by `Response::of`.
pub(super) struct Response<'a> {
    pub(super) head: ResponseHead<'a>,
    pub(super) close: bool,
    framing: Framing,
    old: bool,
}

/// The framing fields of a head.
#[derive(Debug, Default)]
struct Framing {
    length: Option<u64>,
    /// Some Transfer-Encoding; whether its last coding is `chunked`, applied once.
    coding: Option<Coding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Other,
}

/// What the lines say besides framing.
#[derive(Debug, Default)]
struct Said {
    close: bool,
    upgrade: bool,
    h2c: bool,
    expects: bool,
}

/// Reads a complete request head.
pub(super) fn request(raw: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_LINES];
    let mut lines = httparse::Request::new(&mut []);
    match lines.parse_with_uninit_headers(raw, &mut usual) {
        Err(httparse::Error::TooManyHeaders) => {
            let mut many = vec![httparse::EMPTY_HEADER; count_lines(raw)];
            let mut lines = httparse::Request::new(&mut many);
            complete(lines.parse(raw), raw)?;
            request_of(&lines)
        }
        other => {
            complete(other, raw)?;
            request_of(&lines)
        }
    }
}

fn request_of<'a>(lines: &httparse::Request<'_, 'a>) -> Result<Request<'a>, Malformed> {
    let (method, target) = (lines.method.ok_or(Malformed::Syntax)?, lines.path.ok_or(Malformed::Syntax)?);
    let old = lines.version == Some(0);
    let fields = fields(lines.headers);
    let (framing, said) = read(&fields)?;
    let body = match (framing.coding, framing.length) {
        (Some(_), Some(_)) => return Err(Malformed::TwoFramings),
        // RFC 9112 §6.1: a Transfer-Encoding that an HTTP/1.0 client sends is faulty framing.
        (Some(Coding::Chunked), None) if !old => Some(Body::chunked()),
        (Some(_), None) => return Err(Malformed::Coding),
        (None, length) => Body::of_length(length.unwrap_or(0)),
    };
    let connect = method == "CONNECT";
    let (path, authority) = if connect { (target, target) } else { split_target(target) };
    let authority = if authority.is_empty() { fields.text("host").unwrap_or_default() } else { authority };
    let ends = body.is_none();
    Ok(Request {
        head: RequestHead { protocol: Protocol::Http1, method, path, authority, fields, ends },
        body,
        close: old || said.close,
        switch: connect || said.upgrade,
        h2c: said.h2c,
        expects: said.expects,
    })
}

/// Path with query, and authority (empty unless the target is in absolute form).
fn split_target(target: &str) -> (&str, &str) {
    if target.starts_with('/') {
        return (target, "");
    }
    let Some((scheme, rest)) = target.split_once("://") else { return (target, "") };
    if !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) {
        return (target, "");
    }
    match rest.find(['/', '?']) {
        Some(at) => (&rest[at..], &rest[..at]),
        None => ("/", rest),
    }
}

/// Reads a complete response head.
pub(super) fn response(raw: &[u8]) -> Result<Response<'_>, Malformed> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_LINES];
    let mut lines = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut lines, raw, &mut usual) {
        Err(httparse::Error::TooManyHeaders) => {
            let mut many = vec![httparse::EMPTY_HEADER; count_lines(raw)];
            let mut lines = httparse::Response::new(&mut many);
            complete(lines.parse(raw), raw)?;
            response_of(&lines)
        }
        other => {
            complete(other, raw)?;
            response_of(&lines)
        }
    }
}

fn response_of<'a>(lines: &httparse::Response<'_, 'a>) -> Result<Response<'a>, Malformed> {
    let status = lines.code.filter(|code| *code >= 100).ok_or(Malformed::Syntax)?;
    let old = lines.version == Some(0);
    let fields = fields(lines.headers);
    let (framing, said) = read(&fields)?;
    Ok(Response { head: ResponseHead { status, fields, ends: false }, close: old || said.close, framing, old })
}

impl Response<'_> {
    /// The body of this response to a request of that kind; sets `head.ends`.
    pub(super) fn body(&mut self, to_head: bool, to_connect: bool) -> Result<Option<Body>, Malformed> {
        let status = self.head.status;
        let bodiless = to_head || status == 204 || status == 304 || (to_connect && (200..300).contains(&status));
        let body = match (self.framing.coding, self.framing.length) {
            _ if bodiless => None,
            (Some(_), Some(_)) => return Err(Malformed::TwoFramings),
            (Some(_), None) if self.old => return Err(Malformed::Coding),
            (Some(Coding::Chunked), None) => Some(Body::chunked()),
            (Some(Coding::Other), None) | (None, None) => Some(Body::UntilClose),
            (None, Some(length)) => Body::of_length(length),
        };
        self.head.ends = body.is_none();
        Ok(body)
    }
}

/// Reads a complete trailer section: field lines and the empty line.
pub(super) fn trailers(raw: &[u8]) -> Result<Fields<'_>, Malformed> {
    let mut lines = vec![httparse::EMPTY_HEADER; count_lines(raw)];
    match httparse::parse_headers(raw, &mut lines) {
        Ok(httparse::Status::Complete((length, lines))) if length == raw.len() => Ok(fields(lines)),
        _ => Err(Malformed::Syntax),
    }
}

/// An upper bound for the number of field lines.
fn count_lines(raw: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', raw).count()
}

/// The parser must agree with [`super::scan::Scan`] about where the head ends.
fn complete(parsed: httparse::Result<usize>, raw: &[u8]) -> Result<(), Malformed> {
    match parsed {
        Ok(httparse::Status::Complete(length)) if length == raw.len() => Ok(()),
        _ => Err(Malformed::Syntax),
    }
}

fn fields<'a>(lines: &[httparse::Header<'a>]) -> Fields<'a> {
    Fields(lines.iter().map(|line| (line.name.as_bytes(), line.value)).collect())
}

/// One pass over the lines that matter here, told apart by the length of their names.
fn read(fields: &Fields<'_>) -> Result<(Framing, Said), Malformed> {
    let (mut framing, mut said) = (Framing::default(), Said::default());
    for (name, value) in &fields.0 {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            6 if is("expect") => said.expects |= value.eq_ignore_ascii_case(b"100-continue"),
            7 if is("upgrade") => {
                said.upgrade = true;
                said.h2c |= tokens(value).any(|t| t.eq_ignore_ascii_case(b"h2c"));
            }
            10 if is("connection") => said.close |= tokens(value).any(|t| t.eq_ignore_ascii_case(b"close")),
            14 if is("content-length") => {
                for token in value.split(|b| *b == b',') {
                    let length = decimal(token.trim_ascii()).ok_or(Malformed::Length)?;
                    if framing.length.is_some_and(|known| known != length) {
                        return Err(Malformed::Length);
                    }
                    framing.length = Some(length);
                }
            }
            17 if is("transfer-encoding") => {
                for token in tokens(value) {
                    let chunked = token.eq_ignore_ascii_case(b"chunked");
                    // Whatever follows `chunked` hides the end of the message from one reader or another.
                    if framing.coding == Some(Coding::Chunked) {
                        return Err(Malformed::Coding);
                    }
                    framing.coding = Some(if chunked { Coding::Chunked } else { Coding::Other });
                }
                framing.coding.get_or_insert(Coding::Other);
            }
            _ => {}
        }
    }
    Ok((framing, said))
}

/// What a head says about its connection (RFC 9110 §7.6.1).
pub(super) fn connection_options<'f>(fields: &'f Fields<'_>) -> impl Iterator<Item = &'f [u8]> + Clone {
    let lines = fields.0.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"));
    lines.flat_map(|(_, value)| tokens(value))
}

/// The elements of a comma-separated list, empty ones left out.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|t| !t.is_empty())
}

/// `1*DIGIT`, no sign, no overflow.
fn decimal(digits: &[u8]) -> Option<u64> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let more = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(digit(*byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, more) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_every_form_give_path_and_authority() {
        for (target, path, authority) in [
            ("/a?b=http://c/d", "/a?b=http://c/d", ""),
            ("*", "*", ""),
            ("http://h:1/a?b", "/a?b", "h:1"),
            ("http://h", "/", "h"),
            ("HTTP://h?x", "?x", "h"),
            ("a/b://c", "a/b://c", ""),
        ] {
            assert_eq!(split_target(target), (path, authority), "{target}");
        }
        let raw = b"CONNECT h:443 HTTP/1.1\r\nHost: other\r\n\r\n";
        let connect = request(raw).expect("a well-formed head");
        assert_eq!((connect.head.path, connect.head.authority, connect.switch), ("h:443", "h:443", true));
    }

    #[test]
    fn more_lines_than_usual_are_read_as_well() {
        let mut raw = b"GET / HTTP/1.1\r\n".to_vec();
        (0..1000).for_each(|n| raw.extend_from_slice(format!("n{n}: v\r\n").as_bytes()));
        raw.extend_from_slice(b"content-length: 3\r\n\r\n");
        let parsed = request(&raw).expect("a well-formed head");
        assert_eq!(parsed.head.fields.0.len(), 1001);
        assert!(matches!(parsed.body, Some(Body::Length(3))));
    }

    #[test]
    fn equal_lengths_are_one_length() {
        for lines in ["content-length: 3\r\ncontent-length: 3\r\n", "content-length: 3, 3\r\n"] {
            let raw = format!("GET / HTTP/1.1\r\n{lines}\r\n");
            assert!(matches!(request(raw.as_bytes()).expect("one length").body, Some(Body::Length(3))));
        }
    }

    #[test]
    fn the_framing_of_a_response_depends_on_its_request() {
        let body = |raw: &str, head: bool, connect: bool| {
            response(raw.as_bytes()).and_then(|mut r| r.body(head, connect)).map(|b| b.map(|b| format!("{b:?}")))
        };
        let cl = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(body(cl, false, false), Ok(Some("Length(5)".into())));
        assert_eq!(body(cl, true, false), Ok(None));
        assert_eq!(body(cl, false, true), Ok(None));
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\n", false, false), Ok(Some("UntilClose".into())));
        assert_eq!(body("HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n", false, false), Ok(None));
        assert_eq!(body("HTTP/1.1 304 No\r\ncontent-length: 9\r\n\r\n", false, false), Ok(None));
        let gzip = "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n";
        assert_eq!(body(gzip, false, false), Ok(Some("UntilClose".into())));
        let both = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(body(both, false, false), Err(Malformed::TwoFramings));
        assert_eq!(body(both, true, false), Ok(None));
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(body(old, false, false), Err(Malformed::Coding));
    }
}
