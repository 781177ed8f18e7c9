//! Protocol detection: final once made, made within bounds, and never against bytes that are a request; and the reader of
//! a TLS client's server name.

use super::Input;
use crate::detect::{self, Detected, PREFACE};
use crate::tls::{self, Hello};

/// More than an undecided connection may keep waiting.
const MOST: usize = crate::h1::MAX_HEAD + 8;

pub(super) fn detect(input: &[u8]) {
    client(input);
    hello(input);

    // Both sides in any order, until it is known; from then on the driver asks no more.
    let mut input = Input(input);
    let (mut app, mut upstream) = (Vec::new(), Vec::new());
    while !input.is_empty() && app.len() + upstream.len() < 4096 {
        let choice = input.byte();
        let (to, some) = match choice {
            0..48 => (&mut app, input.bytes(usize::from(choice) / 8 + 1)),
            48..64 => (&mut app, &PREFACE[..usize::from(choice - 48) + 9]),
            64..128 => (&mut upstream, input.bytes(usize::from(choice) / 32)),
            128..160 => (&mut upstream, &[0, 0, 0, 4, 0, 0, 0, 0, 0][..usize::from(choice) % 10]),
            _ => (&mut app, &b"GET / HTTP/1.1\r\n"[..usize::from(choice) % 17]),
        };
        to.extend_from_slice(some);
        match detect::of(&app, &upstream) {
            None => assert!(upstream.len() < 9, "undecided although the server has spoken"),
            Some(Detected::Http1) => return assert!(upstream.is_empty(), "servers of HTTP/1 do not speak first"),
            Some(_) => return,
        }
    }
}

fn client(input: &[u8]) {
    let mut decided = None;
    // Every length of a short input; of a long one the first and the last.
    for end in (0..=input.len()).filter(|end| *end < 300 || *end + 8 > input.len() || end.is_multiple_of(997)) {
        let now = detect::of(&input[..end], b"");
        assert!(decided.is_none() || now == decided, "{decided:?} was taken back at {end}");
        assert!(now.is_some() || end < MOST, "undecided after {end} bytes");
        decided = now;
    }
    if input.starts_with(PREFACE) {
        assert_eq!(decided, Some(Detected::Http2));
    }
    // What the strict reader of heads takes for a request must not pass by the editor.
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    if let Ok(httparse::Status::Complete(_)) = request.parse(input)
        && matches!(request.method, Some("GET" | "POST" | "PUT" | "HEAD" | "DELETE" | "OPTIONS" | "PATCH" | "CONNECT"))
        && input.iter().take_while(|byte| b"\r\n".contains(byte)).all(|byte| *byte != b'\n')
    {
        assert_eq!(decided, Some(Detected::Http1), "a request that is not seen");
    }
}

/// What was read of a TLS hello stays; a name is one that can be printed.
fn hello(input: &[u8]) {
    let mut known = Hello::More;
    for end in (0..=input.len()).filter(|end| *end < 600 || *end == input.len()) {
        let now = tls::hello(&input[..end]);
        match &known {
            Hello::More => known = now,
            // Bytes that come later may be malformed in their turn: the driver has stopped reading them.
            Hello::Known(_) => break,
        }
    }
    if let Hello::Known(Some(name)) = known {
        assert!((1..=253).contains(&name.len()), "{name:?}");
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()), "{name:?}");
    }
}
