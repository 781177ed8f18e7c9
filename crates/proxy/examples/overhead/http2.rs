//! HTTP/2 as two known peers speak it, framed like unary gRPC calls: headers, 1 KiB of data, trailers.
//!
//! Neither end decodes header blocks; both write such as clients and servers write: everything that repeats goes to the
//! table with the first message and is one octet from then on, the trace context is a literal in each request.

use crate::http1::BODY;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// Windows are opened as wide as they get, and again after so many octets.
const WIDE: u32 = 0x7fff_ffff;
const REOPEN: u32 = 1 << 28;

/// Fields of a request that repeat: the index of the name in the static table, or its text, and the value.
const REPEATED: [(u8, &str, &str); 6] = [
    (4, ":path", "/hipstershop.CartService/AddItem"),
    (1, ":authority", "cart.example:8080"),
    (31, "content-type", "application/grpc"),
    (0, "te", "trailers"),
    (58, "user-agent", "grpc-overhead/1.0"),
    (0, "grpc-accept-encoding", "identity,deflate,gzip"),
];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], output: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    output.extend_from_slice(&length[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
    output.extend_from_slice(payload);
}

/// The frame at the front of `input`: its length on the wire, type, flags, stream, payload.
fn next(input: &[u8]) -> Option<(usize, u8, u8, u32, &[u8])> {
    let (head, rest) = input.split_at_checked(9)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & WIDE;
    Some((9 + length, head[3], head[4], stream, rest.get(..length)?))
}

fn text(text: &str, block: &mut Vec<u8>) {
    // A length below 127 without Huffman coding.
    block.push(u8::try_from(text.len()).unwrap_or_default());
    block.extend_from_slice(text.as_bytes());
}

/// A literal with incremental indexing (RFC 7541 §6.2.1).
fn indexed(name: u8, name_text: &str, value: &str, block: &mut Vec<u8>) {
    block.push(0x40 | name);
    if name == 0 {
        text(name_text, block);
    }
    text(value, block);
}

fn opening(output: &mut Vec<u8>) {
    let mut settings = vec![0, 4];
    settings.extend_from_slice(&WIDE.to_be_bytes());
    frame(SETTINGS, 0, 0, &settings, output);
    frame(8, 0, 0, &(WIDE - 65_535).to_be_bytes(), output);
}

/// Counts received octets and opens the connection's window again.
fn received(octets: &mut u32, data: usize, output: &mut Vec<u8>) {
    *octets += u32::try_from(data).unwrap_or_default();
    if *octets >= REOPEN {
        frame(8, 0, 0, &octets.to_be_bytes(), output);
        *octets = 0;
    }
}

/// The origin's end of a connection.
#[derive(Default)]
pub(crate) struct Server {
    open: bool,
    answered: bool,
    octets: u32,
}

impl Server {
    /// Answers every request that ends in `input`; bytes taken.
    pub(crate) fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> usize {
        let mut at = 0;
        if !self.open {
            if input.len() < PREFACE.len() {
                return 0;
            }
            at = PREFACE.len();
            self.open = true;
            opening(output);
        }
        while let Some((length, kind, flags, stream, payload)) = next(&input[at..]) {
            at += length;
            match kind {
                SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[], output),
                PING if flags & ACK == 0 => frame(PING, ACK, 0, payload, output),
                DATA => {
                    received(&mut self.octets, payload.len(), output);
                    if flags & END_STREAM != 0 {
                        self.respond(stream, output);
                    }
                }
                _ => {}
            }
        }
        at
    }

    fn respond(&mut self, stream: u32, output: &mut Vec<u8>) {
        let mut block = vec![0x88];
        let mut trailers = Vec::new();
        if self.answered {
            // The newest entry is 62.
            block.push(0x80 | 63);
            trailers.push(0x80 | 62);
        } else {
            indexed(31, "content-type", "application/grpc", &mut block);
            indexed(0, "grpc-status", "0", &mut trailers);
            self.answered = true;
        }
        frame(HEADERS, END_HEADERS, stream, &block, output);
        frame(DATA, 0, stream, &[b'r'; BODY], output);
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers, output);
    }
}

/// The load's end of a connection.
pub(crate) struct Client {
    streams: u32,
    waiting: u32,
    next: u32,
    octets: u32,
    /// Octets of data of each open stream, by its place among those that may be open at once.
    open: Vec<(u32, usize)>,
}

impl Client {
    /// A client that keeps so many streams open.
    pub(crate) fn new(streams: u32) -> Self {
        Self { streams, waiting: 0, next: 1, octets: 0, open: Vec::new() }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waiting > 0
    }

    pub(crate) fn turn(&mut self, input: &[u8], output: &mut Vec<u8>, last: bool) -> Option<(usize, u64)> {
        if self.next == 1 {
            output.extend_from_slice(PREFACE);
            opening(output);
        }
        let (mut at, mut answered) = (0, 0);
        while let Some((length, kind, flags, stream, payload)) = next(&input[at..]) {
            at += length;
            match kind {
                SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[], output),
                PING if flags & ACK == 0 => frame(PING, ACK, 0, payload, output),
                DATA => {
                    received(&mut self.octets, payload.len(), output);
                    self.open.iter_mut().find(|(id, _)| *id == stream)?.1 += payload.len();
                }
                HEADERS if flags & END_STREAM != 0 => {
                    let place = self.open.iter().position(|(id, _)| *id == stream)?;
                    if self.open.swap_remove(place).1 != BODY {
                        return None;
                    }
                    answered += 1;
                    self.waiting -= 1;
                }
                RST_STREAM | GOAWAY => return None,
                _ => {}
            }
        }
        while !last && self.waiting < self.streams {
            self.request(output);
        }
        Some((at, answered))
    }

    fn request(&mut self, output: &mut Vec<u8>) {
        // `:method: POST` and `:scheme: http` are in the static table.
        let mut block = vec![0x83, 0x86];
        let count = u8::try_from(REPEATED.len()).unwrap_or_default();
        for (place, (name, name_text, value)) in (1..=count).zip(REPEATED) {
            if self.next == 1 {
                indexed(name, name_text, value, &mut block);
            } else {
                block.push(0x80 | (62 + count - place));
            }
        }
        block.push(0);
        text("traceparent", &mut block);
        text(&format!("00-0af7651916cd43dd8448eb211c80319c-{:016x}-01", self.next), &mut block);
        frame(HEADERS, END_HEADERS, self.next, &block, output);
        frame(DATA, END_STREAM, self.next, &[b'q'; BODY], output);
        self.open.push((self.next, 0));
        self.next += 2;
        self.waiting += 1;
    }
}
