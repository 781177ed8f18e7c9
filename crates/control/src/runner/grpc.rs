//! A unary gRPC call in bytes: one length-prefixed message each way, and the status from wherever it stands
//! (gRPC over HTTP/2, `doc/PROTOCOL-HTTP2.md`, `doc/http-grpc-status-mapping.md`).

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode;

use super::exchange::Answer;

/// The status UNAVAILABLE.
pub(crate) const UNAVAILABLE: u32 = 14;
const UNKNOWN: u32 = 2;
/// The status INTERNAL.
pub(crate) const INTERNAL: u32 = 13;
/// The status UNIMPLEMENTED.
pub(crate) const UNIMPLEMENTED: u32 = 12;
const UNAUTHENTICATED: u32 = 16;
const PERMISSION_DENIED: u32 = 7;

/// What a gRPC client makes of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: u32,
    /// What the server says about it, or what is wrong with its answer.
    pub(crate) message: String,
    /// The one message; empty without one.
    pub(crate) body: Bytes,
}

/// `message` with its prefix.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a message of a file of at most 1 MiB"));
    framed.extend_from_slice(message);
    framed.freeze()
}

/// Reads an answer as a unary call's.
pub(crate) fn reply(answer: &Answer) -> Reply {
    let wrong = |status: u32, message: &str| Reply { status, message: message.to_owned(), body: Bytes::new() };
    // Trailers-only: the status stands in the head.
    let stated = answer.trailers.as_ref().and_then(stated).or_else(|| self::stated(&answer.headers));
    match stated {
        None if answer.status != StatusCode::OK => {
            wrong(of_http(answer.status), &format!("HTTP status {} without grpc-status", answer.status.as_u16()))
        }
        None => wrong(UNKNOWN, "the answer ended without grpc-status"),
        Some((0, message)) => match unframe(&answer.body) {
            Ok(Some(body)) => Reply { status: 0, message, body },
            Ok(None) => wrong(INTERNAL, "grpc-status 0 without a message"),
            Err(reason) => wrong(INTERNAL, reason),
        },
        Some((status, message)) => {
            let body = unframe(&answer.body).ok().flatten().unwrap_or_default();
            Reply { status, message, body }
        }
    }
}

fn stated(fields: &HeaderMap) -> Option<(u32, String)> {
    let status = fields.get("grpc-status")?;
    let status = status.to_str().ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNKNOWN);
    let message =
        fields.get("grpc-message").map(|text| percent_decode(text.as_bytes()).decode_utf8_lossy().into_owned());
    Some((status, message.unwrap_or_default()))
}

/// The one message in `body`; none if it is empty.
fn unframe(body: &Bytes) -> Result<Option<Bytes>, &'static str> {
    let Some((prefix, rest)) = body.split_first_chunk::<5>() else {
        return if body.is_empty() { Ok(None) } else { Err("the message is cut short") };
    };
    let [flag, length @ ..] = *prefix;
    if flag != 0 {
        return Err("the message is compressed, which was not asked for");
    }
    match (u32::from_be_bytes(length) as usize).cmp(&rest.len()) {
        std::cmp::Ordering::Equal => Ok(Some(body.slice(5..))),
        std::cmp::Ordering::Greater => Err("the message is cut short"),
        std::cmp::Ordering::Less => Err("a unary call was answered by more than one message"),
    }
}

fn of_http(status: StatusCode) -> u32 {
    match status.as_u16() {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn answer(
        status: u16,
        head: &[(&'static str, &str)],
        body: &[u8],
        trailers: Option<&[(&'static str, &str)]>,
    ) -> Answer {
        let fields = |fields: &[(&'static str, &str)]| {
            fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
        };
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: fields(head),
            body: Bytes::copy_from_slice(body),
            trailers: trailers.map(fields),
        }
    }

    #[test]
    fn the_status_is_read_from_trailers_head_or_http_status() {
        let framed = frame(b"hi");
        let ok: &[(&'static str, &str)] = &[("grpc-status", "0")];
        for (answer, status, message, body) in [
            (answer(200, &[], &framed, Some(ok)), 0, "", "hi"),
            (
                answer(200, &[("grpc-status", "9"), ("grpc-message", "not%20now %E2%82%AC")], &[], None),
                9,
                "not now €",
                "",
            ),
            (answer(200, &[], &framed, Some(&[("grpc-status", "3")])), 3, "", "hi"),
            (answer(503, &[], b"busy", None), UNAVAILABLE, "HTTP status 503 without grpc-status", ""),
            (answer(404, &[], b"", None), UNIMPLEMENTED, "HTTP status 404 without grpc-status", ""),
            (answer(200, &[], &framed, None), UNKNOWN, "the answer ended without grpc-status", ""),
            (answer(200, &[], &[], Some(ok)), INTERNAL, "grpc-status 0 without a message", ""),
            (answer(200, &[], &framed[..6], Some(ok)), INTERNAL, "the message is cut short", ""),
            (
                answer(200, &[], &[1, 0, 0, 0, 0], Some(ok)),
                INTERNAL,
                "the message is compressed, which was not asked for",
                "",
            ),
            (answer(200, &[], &[0; 10], Some(ok)), INTERNAL, "a unary call was answered by more than one message", ""),
            (answer(200, &[], &[], Some(&[("grpc-status", "x")])), UNKNOWN, "", ""),
        ] {
            let expected = Reply { status, message: message.to_owned(), body: Bytes::copy_from_slice(body.as_bytes()) };
            assert_eq!(reply(&answer), expected);
        }
    }

    proptest! {
        #[test]
        fn a_framed_message_is_unframed_and_no_bytes_panic(message: Vec<u8>, bytes: Vec<u8>) {
            prop_assert_eq!(unframe(&frame(&message)).unwrap().unwrap(), message);
            let _ = unframe(&bytes.into());
        }
    }
}
