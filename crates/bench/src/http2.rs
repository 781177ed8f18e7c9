//! HTTP/2 as two known peers speak it, framed like unary gRPC calls: headers, 1 KiB of data, trailers.
//!
//! Neither end keeps a decoding table: of a header block only its first field is looked at, which has to be the status as
//! every encoder writes it. Both write such as clients and servers write: everything that repeats goes to the table with
//! the first message and is one octet from then on, the trace context is a literal in each request.

use std::collections::VecDeque;
use std::time::Instant;

use crate::client::{Client, Ticket, Wrong};
use crate::message::{self, Answer, BODY, TAGGED};
use crate::traffic::Context;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// Windows are opened as wide as they get, and again after so many octets.
const WIDE: u32 = 0x7fff_ffff;
const REOPEN: u32 = 1 << 28;

/// The operation that sidecars see.
pub(crate) const OPERATION: &str = "hipstershop.CartService/AddItem";

/// Fields of a request that repeat: the index of the name in the static table, or its text, and the value.
const REPEATED: [(u8, &str, &str); 6] = [
    (4, ":path", "/hipstershop.CartService/AddItem"),
    (1, ":authority", "cart.example:8080"),
    (31, "content-type", "application/grpc"),
    (0, "te", "trailers"),
    (58, "user-agent", "grpc-bench/1.0"),
    (0, "grpc-accept-encoding", "identity,deflate,gzip"),
];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], output: &mut Vec<u8>) {
    frame_head(kind, flags, stream, payload.len(), output);
    output.extend_from_slice(payload);
}

fn frame_head(kind: u8, flags: u8, stream: u32, length: usize, output: &mut Vec<u8>) {
    let length = u32::try_from(length).unwrap_or_default().to_be_bytes();
    output.extend_from_slice(&length[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
}

/// One frame.
struct Frame<'a> {
    /// With its head, on the wire.
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl Frame<'_> {
    /// The frame at the front of `input`, once it is complete.
    fn next(input: &[u8]) -> Option<Frame<'_>> {
        let (head, rest) = input.split_at_checked(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & WIDE;
        Some(Frame { length: 9 + length, kind: head[3], flags: head[4], stream, payload: rest.get(..length)? })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a header block begins with `:status: 200`, behind changes of the table's size.
    fn says_ok(&self) -> bool {
        let mut block = self.payload;
        while let [first @ 0x20..=0x3f, rest @ ..] = block {
            let more = if *first == 0x3f { rest.iter().take_while(|octet| **octet >= 0x80).count() + 1 } else { 0 };
            block = rest.get(more..).unwrap_or_default();
        }
        block.first() == Some(&0x88)
    }
}

fn text(text: &str, block: &mut Vec<u8>) {
    // A length below 127 without Huffman coding.
    debug_assert!(text.len() < 127);
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

/// What either end knows of the connection as such.
#[derive(Debug)]
struct Connection {
    opened: bool,
    /// What may still be sent.
    credit: i64,
    /// What was received since the window was opened.
    received: u32,
}

impl Default for Connection {
    fn default() -> Self {
        Connection { opened: false, credit: 65_535, received: 0 }
    }
}

impl Connection {
    fn open(&mut self, output: &mut Vec<u8>) {
        self.opened = true;
        let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        settings.extend_from_slice(&WIDE.to_be_bytes());
        frame(SETTINGS, 0, 0, &settings, output);
        frame(WINDOW_UPDATE, 0, 0, &(WIDE - 65_535).to_be_bytes(), output);
    }

    /// Whether another body may be sent.
    fn has_credit(&self) -> bool {
        self.credit >= BODY as i64
    }

    /// Deals with what is no stream's.
    fn take(&mut self, frame: &Frame<'_>, output: &mut Vec<u8>) -> Result<(), Wrong> {
        match frame.kind {
            SETTINGS if !frame.has(ACK) => {
                for setting in frame.payload.chunks_exact(6) {
                    let id = u16::from_be_bytes([setting[0], setting[1]]);
                    let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                    if id == INITIAL_WINDOW_SIZE && (value as usize) < BODY {
                        return Err(Wrong("a stream has no room for a body of 1 KiB"));
                    }
                }
                self::frame(SETTINGS, ACK, 0, &[], output);
            }
            PING if !frame.has(ACK) => self::frame(PING, ACK, 0, frame.payload, output),
            WINDOW_UPDATE if frame.stream == 0 => {
                let octets = frame.payload.try_into().map(u32::from_be_bytes).unwrap_or_default();
                self.credit += i64::from(octets & WIDE);
            }
            DATA if frame.has(PADDED) => return Err(Wrong("data came with padding")),
            DATA => {
                self.received += u32::try_from(frame.payload.len()).unwrap_or_default();
                if self.received >= REOPEN {
                    self::frame(WINDOW_UPDATE, 0, 0, &self.received.to_be_bytes(), output);
                    self.received = 0;
                }
            }
            HEADERS if !frame.has(END_HEADERS) || frame.has(PADDED) || frame.has(PRIORITY) => {
                return Err(Wrong("a header block is not in one plain frame"));
            }
            CONTINUATION => return Err(Wrong("a header block is not in one plain frame")),
            GOAWAY => return Err(Wrong("the connection was ended by GOAWAY")),
            _ => {}
        }
        Ok(())
    }
}

/// What has come of a body.
#[derive(Debug, Clone, Copy, Default)]
struct Body {
    head: [u8; TAGGED],
    length: usize,
}

impl Body {
    fn take(&mut self, data: &[u8]) -> Result<(), Wrong> {
        if self.length < TAGGED {
            let some = data.len().min(TAGGED - self.length);
            self.head[self.length..self.length + some].copy_from_slice(&data[..some]);
        }
        self.length += data.len();
        // All octets behind the tag are alike; the last one stands for them.
        let is_right = self.length <= BODY && (self.length <= TAGGED || data.last().is_none_or(|last| *last == b'x'));
        if is_right { Ok(()) } else { Err(Wrong("a body is another than the one that was sent")) }
    }

    /// What a complete body says.
    fn read(&self) -> Result<(Answer, u64), Wrong> {
        let read = if self.length == BODY { message::read_head(&self.head) } else { None };
        read.ok_or(Wrong("a body is another than the one that was sent"))
    }
}

/// The origin's end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Server {
    connection: Connection,
    answered: bool,
    open: Vec<(u32, Body)>,
    /// Answers that wait for credit.
    due: VecDeque<(u32, Answer, u64)>,
}

impl Server {
    /// Answers every request that ends in `input`; octets taken.
    pub(crate) fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<usize, Wrong> {
        let mut at = 0;
        if !self.connection.opened {
            if input.len() < PREFACE.len() {
                return Ok(0);
            }
            at = PREFACE.len();
            self.connection.open(output);
        }
        while let Some(frame) = Frame::next(&input[at..]) {
            at += frame.length;
            self.connection.take(&frame, output)?;
            match frame.kind {
                HEADERS => self.open.push((frame.stream, Body::default())),
                DATA => {
                    let place = self.open.iter().position(|(stream, _)| *stream == frame.stream);
                    let place = place.ok_or(Wrong("data came for a stream that is not open"))?;
                    self.open[place].1.take(frame.payload)?;
                    if frame.has(END_STREAM) {
                        let (stream, body) = self.open.swap_remove(place);
                        let (answer, tag) = body.read()?;
                        self.due.push_back((stream, answer, tag));
                    }
                }
                RST_STREAM => {
                    self.open.retain(|(stream, _)| *stream != frame.stream);
                    self.due.retain(|(stream, ..)| *stream != frame.stream);
                }
                _ => {}
            }
        }
        while self.connection.has_credit()
            && let Some((stream, answer, tag)) = self.due.pop_front()
        {
            self.respond(stream, answer, tag, output);
        }
        Ok(at)
    }

    fn respond(&mut self, stream: u32, answer: Answer, tag: u64, output: &mut Vec<u8>) {
        self.connection.credit -= BODY as i64;
        let mut block = vec![0x88];
        let mut trailers = Vec::new();
        if self.answered {
            // The newest entry is 62.
            block.push(0x80 | 63);
            trailers.push(0x80 | 62);
        } else {
            indexed(31, "content-type", "application/grpc", &mut block);
            if answer != Answer::Other {
                indexed(0, "grpc-status", "0", &mut trailers);
            }
            self.answered = !trailers.is_empty();
        }
        frame(HEADERS, END_HEADERS, stream, &block, output);
        let with_trailers = answer != Answer::Other;
        frame_head(DATA, if with_trailers { 0 } else { END_STREAM }, stream, BODY, output);
        message::write(answer, tag, output);
        if with_trailers {
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers, output);
        }
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Open {
    stream: u32,
    ticket: Ticket,
    is_ok: bool,
    body: Body,
}

/// A client that keeps up to so many streams open.
#[derive(Debug)]
pub(crate) struct Multiplexed {
    connection: Connection,
    streams: usize,
    next: u32,
    open: Vec<Open>,
}

impl Multiplexed {
    pub(crate) fn new(streams: usize) -> Self {
        Multiplexed { connection: Connection::default(), streams, next: 1, open: Vec::new() }
    }

    /// Gives up the oldest request that waits; whether there was one.
    pub(crate) fn cancel(&mut self, output: &mut Vec<u8>) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let open = self.open.remove(0);
        // RFC 9113 §7: CANCEL.
        frame(RST_STREAM, 0, open.stream, &8_u32.to_be_bytes(), output);
        true
    }

    /// How many answers are awaited.
    pub(crate) fn waiting(&self) -> u64 {
        self.open.len() as u64
    }

    /// Whether frames of `stream` may still come of a request that was given up.
    fn was_given_up(&self, stream: u32) -> bool {
        stream % 2 == 1 && stream < self.next
    }
}

impl Client for Multiplexed {
    fn has_room(&self) -> bool {
        self.open.len() < self.streams && self.connection.has_credit()
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    fn send(&mut self, ticket: Ticket, context: &Context, output: &mut Vec<u8>) {
        if !self.connection.opened {
            output.extend_from_slice(PREFACE);
            self.connection.open(output);
        }
        // `:method: POST` and `:scheme: http` are in the static table.
        let mut block = Vec::with_capacity(256);
        block.extend_from_slice(&[0x83, 0x86]);
        let count = u8::try_from(REPEATED.len()).unwrap_or_default();
        for (place, (name, name_text, value)) in (1..=count).zip(REPEATED) {
            if self.next == 1 {
                indexed(name, name_text, value, &mut block);
            } else {
                block.push(0x80 | (62 + count - place));
            }
        }
        for (name, value) in context.fields() {
            block.push(0);
            text(name, &mut block);
            text(value, &mut block);
        }
        frame(HEADERS, END_HEADERS, self.next, &block, output);
        frame_head(DATA, END_STREAM, self.next, BODY, output);
        message::write(ticket.answer, ticket.tag, output);
        self.connection.credit -= BODY as i64;
        self.open.push(Open { stream: self.next, ticket, is_ok: false, body: Body::default() });
        self.next += 2;
    }

    fn take(&mut self, input: &[u8], output: &mut Vec<u8>, answered: &mut dyn FnMut(Instant)) -> Result<usize, Wrong> {
        let mut at = 0;
        while let Some(frame) = Frame::next(&input[at..]) {
            at += frame.length;
            self.connection.take(&frame, output)?;
            if !matches!(frame.kind, HEADERS | DATA | RST_STREAM) {
                continue;
            }
            let Some(place) = self.open.iter().position(|open| open.stream == frame.stream) else {
                if self.was_given_up(frame.stream) {
                    continue;
                }
                return Err(Wrong("something came for a stream that nobody opened"));
            };
            let open = &mut self.open[place];
            match frame.kind {
                RST_STREAM => return Err(Wrong("a request was answered by RST_STREAM")),
                HEADERS if !open.is_ok => {
                    if !frame.says_ok() {
                        return Err(Wrong("an answer has another status than 200"));
                    }
                    open.is_ok = true;
                }
                DATA if !open.is_ok => return Err(Wrong("data came before its headers")),
                DATA => open.body.take(frame.payload)?,
                _ => {}
            }
            if frame.has(END_STREAM) {
                let open = self.open.swap_remove(place);
                if open.body.read()? != (open.ticket.answer, open.ticket.tag) {
                    return Err(Wrong("an answer is to another request"));
                }
                answered(open.ticket.since);
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(tag: u64, answer: Answer) -> Ticket {
        Ticket { tag, answer, since: Instant::now() }
    }

    #[test]
    fn client_and_origin_agree_however_the_octets_are_split() {
        for step in [1, 7, 100, 5000] {
            let (mut client, mut server) = (Multiplexed::new(3), Server::default());
            let (mut up, mut down) = (Vec::new(), Vec::new());
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            let (mut sent, mut answered) = (0, 0);
            while answered < 50 {
                while client.has_room() && sent < 50 {
                    let answer = if sent % 5 == 0 { Answer::Other } else { Answer::Usual };
                    client.send(ticket(sent, answer), &Context::default(), &mut up);
                    sent += 1;
                }
                let some = up.len().min(step);
                to_server.extend(up.drain(..some));
                let taken = server.answer(&to_server, &mut down).unwrap();
                to_server.drain(..taken);
                let some = down.len().min(step);
                to_client.extend(down.drain(..some));
                let taken = client.take(&to_client, &mut up, &mut |_| answered += 1).unwrap();
                to_client.drain(..taken);
            }
            assert!(client.is_idle());
        }
    }

    #[test]
    fn an_answer_that_was_changed_is_noticed() {
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let (mut client, mut server) = (Multiplexed::new(1), Server::default());
            let (mut up, mut down) = (Vec::new(), Vec::new());
            client.send(ticket(1, Answer::Usual), &Context::default(), &mut up);
            server.answer(&up, &mut down).unwrap();
            change(&mut down);
            client.take(&down, &mut Vec::new(), &mut |_| {}).map(|_| client.is_idle())
        };
        let change = |what: fn(&[u8]) -> usize, to: u8| {
            move |down: &mut Vec<u8>| {
                let at = what(down);
                down[at] = to;
            }
        };
        let status = |down: &[u8]| down.iter().position(|octet| *octet == 0x88).unwrap();
        let tag = |down: &[u8]| memchr::memmem::find(down, b"xxxx").unwrap() - 1;
        let last = |down: &[u8]| memchr::memmem::rfind(down, b"xxxx").unwrap() + 3;
        assert_eq!(with(&|_| {}), Ok(true));
        assert!(with(&change(status, 0x8d)).is_err(), "status 404");
        assert!(with(&change(tag, 0x7f)).is_err(), "tag");
        assert!(with(&change(last, b'y')).is_err(), "body");
        let mut reset = Vec::new();
        frame(RST_STREAM, 0, 1, &[0; 4], &mut reset);
        assert!(with(&|down| drop(down.splice(0..0, reset.clone()))).is_err(), "reset");
    }

    #[test]
    fn a_client_without_credit_waits_for_it() {
        let mut client = Multiplexed::new(1000);
        let mut output = Vec::new();
        let mut sent = 0;
        while client.has_room() {
            client.send(ticket(sent, Answer::Usual), &Context::default(), &mut output);
            sent += 1;
        }
        assert_eq!(sent, 63, "of 65,535 octets");
        let mut update = Vec::new();
        frame(WINDOW_UPDATE, 0, 0, &1024_u32.to_be_bytes(), &mut update);
        client.take(&update, &mut output, &mut |_| {}).unwrap();
        assert!(client.has_room());
    }
}
