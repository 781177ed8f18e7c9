//! HTTP/1.1 as two known peers speak it: heads of fixed size, bodies of 1 KiB.

/// Size of all bodies.
pub(crate) const BODY: usize = 1024;

const REQUEST: &[u8] = b"POST /cart/checkout HTTP/1.1\r\n\
    Host: checkout.example:8080\r\n\
    User-Agent: overhead/1.0\r\n\
    Accept: application/json\r\n\
    Accept-Encoding: gzip, deflate\r\n\
    Content-Type: application/json\r\n\
    Content-Length: 1024\r\n\
    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
    X-Request-Id: 7b8c1a5e-5f3b-4c43-9b0f-0a9d1c1f2e3d\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: application/json\r\n\
    Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
    Server: origin\r\n\
    Content-Length: 1024\r\n\r\n";

/// Answers every complete request in `input`; bytes taken.
pub(crate) fn answer(input: &[u8], output: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(head) = memchr::memmem::find(&input[at..], b"\r\n\r\n") {
        let end = at + head + 4 + BODY;
        if end > input.len() {
            break;
        }
        output.extend_from_slice(RESPONSE);
        output.extend_from_slice(&[b'r'; BODY]);
        at = end;
    }
    at
}

/// One request at a time.
#[derive(Default)]
pub(crate) struct Client {
    waits: bool,
}

impl Client {
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn turn(&mut self, input: &[u8], output: &mut Vec<u8>, last: bool) -> Option<(usize, u64)> {
        let (mut taken, mut answered) = (0, 0);
        if self.waits {
            let Some(head) = memchr::memmem::find(input, b"\r\n\r\n") else { return Some((0, 0)) };
            if input.len() < head + 4 + BODY {
                return Some((0, 0));
            }
            if !input.starts_with(b"HTTP/1.1 200 ") || input.len() > head + 4 + BODY {
                return None;
            }
            (taken, answered) = (input.len(), 1);
        }
        self.waits = !last;
        if self.waits {
            output.extend_from_slice(REQUEST);
            output.extend_from_slice(&[b'q'; BODY]);
        }
        Some((taken, answered))
    }
}
