//! Answers that the sidecar makes (RFC 9112 §4, RFC 9110 §8.6).

use bytes::{BufMut, BytesMut};

use crate::exchange::Made;

/// Fields that belong to the framing, which is ours.
const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "connection"];

/// Writes a made answer. `to_head`: the request was a HEAD, so the body is only announced. `close`: the connection ends
/// behind it.
pub(super) fn write(made: &Made, to_head: bool, close: bool, out: &mut BytesMut) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.put_slice(made.status.to_string().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(reason(made.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in made.fields.iter().filter(|(name, _)| !FRAMING.contains(&name.as_str())) {
        line(name, value, out);
    }
    let bodiless = made.status == 204 || made.status == 304;
    if !bodiless {
        line("content-length", &made.body.len().to_string(), out);
    }
    if close {
        line("connection", "close", out);
    }
    out.extend_from_slice(b"\r\n");
    if !bodiless && !to_head {
        out.extend_from_slice(&made.body);
    }
}

/// A field line; line ends in a value, which would end the head early, become spaces.
fn line(name: &str, value: &str, out: &mut BytesMut) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend(value.bytes().map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
    out.extend_from_slice(b"\r\n");
}

/// The reason phrase of the status codes that are made here or likely to be asked for (RFC 9110 §15).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn written(status: u16, to_head: bool, close: bool) -> String {
        let fields = vec![("x".into(), "a\r\nb: c".into()), ("content-length".into(), "7".into())];
        let mut out = BytesMut::new();
        write(&Made { status, fields, body: Bytes::from_static(b"sorry"), trailers: None }, to_head, close, &mut out);
        String::from_utf8(out.to_vec()).expect("text")
    }

    #[test]
    fn an_answer_is_framed_by_its_length() {
        let head = "HTTP/1.1 503 Service Unavailable\r\nx: a  b: c\r\ncontent-length: 5\r\n";
        assert_eq!(written(503, false, false), format!("{head}\r\nsorry"));
        assert_eq!(written(503, true, true), format!("{head}connection: close\r\n\r\n"));
        assert_eq!(written(204, false, false), "HTTP/1.1 204 No Content\r\nx: a  b: c\r\n\r\n");
        assert!(written(299, false, false).starts_with("HTTP/1.1 299 \r\n"));
    }
}
