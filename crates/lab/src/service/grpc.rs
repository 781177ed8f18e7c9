//! Unary gRPC over HTTP/2: message framing and status (gRPC core, `doc/PROTOCOL-HTTP2.md`). Messages are JSON.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Empty, Full};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

use super::Body;
use crate::scalar::GrpcCode;

pub(crate) const CONTENT_TYPE_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Characters of `grpc-message` that stand for themselves: printable ASCII but `%`.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// Prefixes a message with its flag and length.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("messages are at most 1 MiB"));
    framed.put_slice(message);
    framed.freeze()
}

/// The one message of a unary stream.
pub(crate) fn unframe(stream: &[u8]) -> Result<&[u8], &'static str> {
    let (prefix, message) = stream.split_first_chunk::<5>().ok_or("expected a message, found none")?;
    if prefix[0] != 0 {
        return Err("expected an uncompressed message");
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    match usize::try_from(length) {
        Ok(length) if length == message.len() => Ok(message),
        _ => Err("expected exactly one whole message"),
    }
}

/// A successful answer: head, message, trailers.
pub(crate) fn success(message: &[u8]) -> http::Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let body = Full::new(frame(message)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = http::Response::new(body.boxed());
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    response
}

/// An error answer: one header block that ends the stream ("Trailers-Only").
pub(crate) fn error(code: GrpcCode, message: &str) -> http::Response<Body> {
    let mut response = http::Response::new(Empty::new().boxed());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code.number())));
    let message = utf8_percent_encode(message, MESSAGE).to_string();
    headers.insert(GRPC_MESSAGE, HeaderValue::try_from(message).expect("percent-encoded text is printable ASCII"));
    response
}

/// Code and message of a trailers block, `None` if it carries no status.
pub(crate) fn status(trailers: &HeaderMap) -> Option<(GrpcCode, String)> {
    let code = trailers.get(GRPC_STATUS)?.to_str().ok()?.parse().map_or(GrpcCode::Unknown, GrpcCode::from_number);
    let message =
        trailers.get(GRPC_MESSAGE).map(|value| percent_decode(value.as_bytes()).decode_utf8_lossy().into_owned());
    Some((code, message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framed_message_is_read_back_and_nothing_else_is() {
        assert_eq!(unframe(&frame(b"{}")), Ok(&b"{}"[..]));
        assert_eq!(frame(b"abc")[..], *b"\0\0\0\0\x03abc");
        for wrong in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\x01ab", b"\x01\0\0\0\x01a"] {
            assert!(unframe(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_error_is_one_header_block_with_an_escaped_message() {
        let response = error(GrpcCode::FailedPrecondition, "ü 100 %\n");
        assert!(hyper::body::Body::is_end_stream(response.body()));
        assert_eq!(response.headers()["grpc-status"], "9");
        assert_eq!(response.headers()["grpc-message"], "%C3%BC 100 %25%0A");
        assert_eq!(status(response.headers()), Some((GrpcCode::FailedPrecondition, "ü 100 %\n".to_owned())));
    }
}
