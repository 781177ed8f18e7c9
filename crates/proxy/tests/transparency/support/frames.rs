//! HTTP/2 frames on a raw socket, without a library that would hide them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use aftershock_proxy::hpack::{Decoder, HeaderList};

use super::wire;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// The types of the whole frames in `bytes`.
pub(crate) fn kinds(mut bytes: &[u8]) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<9>()?;
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        bytes = rest.get(len..)?;
        Some(header[3])
    })
}

/// A header block of short fields; nothing of it enters the table.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 0x7f).expect("a short text"));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A head or trailers.
pub(crate) fn head(stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, 4 | u8::from(end), stream, &block(fields))
}

/// A request head.
pub(crate) fn request(stream: u32, end: bool, method: &str, path: &str) -> Vec<u8> {
    head(stream, end, &[(":method", method), (":scheme", "http"), (":path", path), (":authority", "origin")])
}

/// The whole frames in `bytes`, a line each, without the fields that a sidecar may write for its application.
pub(crate) fn lines(bytes: &[u8]) -> Vec<String> {
    let mut bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    let mut decoder = Decoder::new(1 << 20);
    let mut lines = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(len) else { break };
        bytes = rest;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        let mut line = format!("{} {:#x} {stream}:", header[3], header[4]);
        if header[3] == 1 {
            let mut list = HeaderList::default();
            decoder.decode(payload, &mut list).expect("a block in one frame");
            for (name, value) in list.iter().filter(|(name, _)| !name.starts_with(b"trace")) {
                line += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
            }
        } else {
            line += &format!(" {}", payload.escape_ascii());
        }
        lines.push(line);
    }
    lines
}

/// A client's connection.
pub(crate) struct Frames {
    pub(crate) stream: TcpStream,
    /// What was read and is not a whole frame yet.
    partial: Vec<u8>,
    /// Streams that ended, in order.
    over: Vec<u32>,
    goaway: Option<u32>,
    /// Octets of DATA the connection takes.
    credit: i64,
}

impl Frames {
    /// Connects and greets with these SETTINGS.
    pub(crate) fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = wire::connect(address);
        let mut frames = Self { stream, partial: Vec::new(), over: Vec::new(), goaway: None, credit: 65_535 };
        let payload: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        frames.send(PREFACE);
        frames.send(&frame(4, 0, 0, &payload));
        frames
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection is open");
    }

    pub(crate) fn request(&mut self, stream: u32, end: bool, method: &str, path: &str) {
        self.send(&request(stream, end, method, path));
    }

    /// So many octets of a body, as soon as the connection's window has room for each piece. The stream's must have it.
    pub(crate) fn body(&mut self, stream: u32, octets: usize, end: bool) {
        let all = vec![b'x'; octets];
        let mut pieces = all.chunks(16_384).peekable();
        while let Some(piece) = pieces.next() {
            while self.credit < piece.len() as i64 {
                assert!(self.read().expect("credit comes") > 0, "the connection ended");
            }
            self.credit -= piece.len() as i64;
            let last = end && pieces.peek().is_none();
            self.send(&frame(0, u8::from(last), stream, piece));
        }
    }

    /// Reads once and handles what came; `false` at the end.
    fn read(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 65_536];
        let read = self.stream.read(&mut buffer)?;
        self.partial.extend_from_slice(&buffer[..read]);
        let mut at = 0;
        while let Some(header) = self.partial.get(at..at + 9) {
            let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let (kind, flags) = (header[3], header[4]);
            let id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            let Some(payload) = self.partial.get(at + 9..at + 9 + len) else { break };
            let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four octets"));
            match kind {
                0 | 1 if flags & 1 != 0 => self.over.push(id),
                3 => self.over.push(id),
                8 if id == 0 => self.credit += i64::from(word(0)),
                7 => self.goaway = Some(word(4)),
                4 if flags & 1 == 0 => drop(self.stream.write_all(&frame(4, 1, 0, &[]))),
                _ => {}
            }
            at += 9 + len;
        }
        self.partial.drain(..at);
        Ok(read)
    }

    /// Reads until these streams have ended or were reset; all that did since the last call, in order.
    pub(crate) fn until_ended(&mut self, streams: &[u32]) -> Vec<u32> {
        let wanted: BTreeSet<_> = streams.iter().collect();
        while wanted.iter().any(|id| !self.over.contains(id)) {
            let read = self.read().expect("an answer comes");
            assert!(read > 0, "the connection ended before {streams:?}: {:?}", self.over);
        }
        std::mem::take(&mut self.over)
    }

    /// Reads as long as `go_on` says so of the octets of each read.
    pub(crate) fn while_reading(&mut self, mut go_on: impl FnMut(usize) -> bool) {
        while go_on(self.read().expect("something comes")) {}
    }

    /// Reads to the end; whether it came before the socket's timeout.
    pub(crate) fn ended(&mut self) -> bool {
        loop {
            match self.read() {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                }
            }
        }
    }

    /// The code of the last GOAWAY, once everything was read.
    pub(crate) fn goaway(&mut self) -> Option<u32> {
        self.ended();
        self.goaway
    }
}
