//! Bodies of HTTP/1 responses, and the marks in them, against a second reader of chunked coding.
//!
//! The input is the body of one response, framed by length, by chunks or by the close. Withheld, the editor must find the
//! content that the plain reader finds; watched, everything before a mark must have left when it is reached, and nothing
//! behind it.

use super::Input;
use super::driver::Step;
use super::http1::drive;
use crate::exchange::{
    Closed, Editor, Edits, Interceptor, Mark, Marks, Part, PeerEnd, Refusal, RequestHead, ResponseHead, Resume,
    StreamId, Tail, Verdict,
};
use crate::h1::Link;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

pub(super) fn run(input: &[u8]) {
    let mut input = Input(input);
    let (mode, cut, mark) = (input.byte(), usize::from(input.byte()) + 1, input.byte());
    let body = input.0;
    let framing = match mode % 3 {
        0 => "Transfer-Encoding: chunked\r\n".to_owned(),
        1 => format!("Content-Length: {}\r\n", body.len()),
        _ => "Connection: close\r\n".to_owned(),
    };
    let kind = if mode & 4 == 0 { "application/grpc" } else { "text/plain" };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n");
    let response = [head.as_bytes(), body].concat();

    let expected = match mode % 3 {
        0 => dechunked(body),
        _ => Some((body.to_vec(), body.len())),
    };
    let (withheld, to_app) = withhold(&response, cut, mode % 3 == 2);
    match (&expected, withheld) {
        (Some((content, wire)), Some(found)) => {
            assert_eq!(&found, content, "the content that was withheld");
            assert!(to_app.starts_with(&response[..head.len() + wire]), "and then let go");
        }
        // Nothing in it has to be looked for at an end that its head already is.
        (Some((content, _)), None) => assert!(content.is_empty() && mode % 3 == 1, "a whole body was not taken"),
        (None, found) => assert_eq!(found, None, "a body that is not whole was taken for one"),
    }
    watch(&response, head.len(), cut, mark, mode % 3 == 0);

    // The same without and with decisions of all kinds, which must not depend on the cuts.
    let steps: Vec<Step> = std::iter::once(Step::App(REQUEST.to_vec()))
        .chain(response.chunks(cut).map(|piece| Step::Upstream(piece.to_vec())))
        .collect();
    drive(&steps, &[]);
    drive(&steps, &[0, mode, mark, cut as u8, 1]);
}

/// The content of a chunked body and its length on the wire; `None` if it is not whole, or nothing that every reader takes
/// for one. Written against RFC 9112 §7.1 alone; stricter than that where implementations are known to differ: sizes
/// have at most fifteen digits, lines at most 8 KiB, and a field line has a name.
fn dechunked(body: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut content, mut at) = (Vec::new(), 0);
    let line = |at: usize| -> Option<&[u8]> {
        let end = body[at..].iter().position(|byte| *byte == b'\n')?;
        body[at..at + end].strip_suffix(b"\r")
    };
    loop {
        let size_line = line(at)?;
        let digits = size_line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = &size_line[digits..];
        let blanks = extension.iter().take_while(|byte| b" \t".contains(byte)).count();
        let control = extension.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
        if digits == 0 || digits > 15 || control || !matches!(extension[blanks..].first(), None | Some(b';')) {
            return None;
        }
        if size_line.len() + 2 > 8 * 1024 {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size_line[..digits]).ok()?, 16).ok()?;
        at += size_line.len() + 2;
        if size == 0 {
            break;
        }
        let chunk = body.get(at..at.checked_add(size)?)?;
        content.extend_from_slice(chunk);
        at += size;
        if body.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    loop {
        let field = line(at)?;
        at += field.len() + 2;
        if field.is_empty() {
            return Some((content, at));
        }
        let colon = field.iter().position(|byte| *byte == b':')?;
        let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        let value = |byte: &u8| !byte.is_ascii_control() || *byte == b'\t';
        if colon == 0 || !field[..colon].iter().all(name) || !field[colon + 1..].iter().all(value) {
            return None;
        }
    }
}

/// Answers one response.
struct Reader {
    verdict: Verdict,
    body: Option<Vec<u8>>,
    reached: Option<Mark>,
}

impl Interceptor for Reader {
    fn request(&mut self, _: StreamId, _: &RequestHead<'_>) -> Verdict {
        Verdict::Pass
    }

    fn response(&mut self, _: StreamId, _: &ResponseHead<'_>) -> Verdict {
        self.verdict.clone()
    }

    fn reached(&mut self, _: StreamId, mark: Mark) -> Verdict {
        self.reached = Some(mark);
        Verdict::Park
    }

    fn response_end(&mut self, _: StreamId, tail: &Tail<'_>) -> Verdict {
        if matches!(self.verdict, Verdict::Withhold { .. }) {
            self.body = Some(tail.body.expect("it was withheld").to_vec());
        }
        Verdict::Pass
    }

    fn stamp(&mut self, _: StreamId, _: Part) -> Edits {
        Edits::new()
    }

    fn refused(&mut self, _: StreamId, why: Refusal) {
        // Of gRPC a second message; nothing else is in the way.
        assert_eq!(why, Refusal::Stream);
        self.verdict = Verdict::Pass;
        self.body = None;
    }

    fn closed(&mut self, _: StreamId, _: Closed) {}
}

/// The body that a reader of the whole response is shown, and what the application gets.
fn withhold(response: &[u8], cut: usize, close: bool) -> (Option<Vec<u8>>, Vec<u8>) {
    let text = response.split(|byte| *byte == b'\n').nth(1) == Some(b"Content-Type: text/plain\r");
    // A gRPC response of several messages is let go at the second: there the plain text of it is looked at instead.
    let response = if text { response.to_vec() } else { as_text(response) };
    let mut reader = Reader { verdict: Verdict::Withhold { limit: usize::MAX / 4 }, body: None, reached: None };
    let mut link = Link::new();
    link.app_bytes(REQUEST, &mut reader);
    for piece in response.chunks(cut) {
        link.upstream_bytes(piece, &mut reader);
    }
    if close {
        link.upstream_end(PeerEnd::Eof, &mut reader);
    }
    let to_app = link.output().to_app.split().to_vec();
    let to_app = if text { to_app } else { as_grpc(&to_app) };
    (reader.body, to_app)
}

fn as_text(response: &[u8]) -> Vec<u8> {
    replaced(response, b"application/grpc", b"application/text")
}

fn as_grpc(response: &[u8]) -> Vec<u8> {
    replaced(response, b"application/text", b"application/grpc")
}

/// With the first `from` replaced by `to`, which is as long.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
        bytes[at..at + from.len()].copy_from_slice(to);
    }
    bytes
}

/// Stops at one mark: what has left by then is a prefix of the response, and what has not is left behind it.
fn watch(response: &[u8], head: usize, cut: usize, mark: u8, chunked: bool) {
    let mark = match mark % 2 {
        0 => Mark::Bytes(u64::from(mark / 2)),
        _ => Mark::Message(u32::from(mark / 2)),
    };
    let mut reader = Reader { verdict: Verdict::Watch(Marks::from_slice(&[mark])), body: None, reached: None };
    let mut link = Link::new();
    link.app_bytes(REQUEST, &mut reader);
    let mut left = Vec::new();
    for piece in response.chunks(cut) {
        link.upstream_bytes(piece, &mut reader);
        left.extend_from_slice(&link.output().to_app.split());
    }
    assert!(response.starts_with(&left), "what left is what came");
    if let (Some(Mark::Bytes(n)), false) = (reader.reached, chunked) {
        assert_eq!(left.len() as u64, head as u64 + n, "exactly what lies before the mark has left");
    }
    if reader.reached.is_some() {
        assert!(left.len() < response.len());
        link.resume(StreamId(1), Resume::Pass, &mut reader);
        left.extend_from_slice(&link.output().to_app.split());
        assert!(response.starts_with(&left), "what left is what came");
    }
}
