//! The editor between two scripted peers: a small frame codec, a scripted interceptor, and what each side gets as text.

mod basics;
mod drain;
mod faults;
mod marks;
mod python;
mod random;
mod traps;

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};

use super::Link;
use super::frame::{self, PREFACE, Reader, flag, kind};
use crate::exchange::{
    Act, Closed, Edit, Editor, Edits, Fate, Fields, Interceptor, Made, Mark, Part, PeerEnd, Refusal, RequestHead,
    ResponseHead, Resume, StreamId, Tail, Verdict,
};
use crate::hpack::{Decoder, Encoder, HeaderList, Indexing};

/// What an interceptor decides, and what it was told.
#[derive(Default)]
struct Script {
    request: HashMap<u64, Verdict>,
    response: HashMap<u64, Verdict>,
    end: HashMap<u64, Verdict>,
    marks: HashMap<(u64, Mark), Verdict>,
    edits: HashMap<(u64, &'static str), Edits>,
    calls: Vec<String>,
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::Request => "request",
        Part::RequestEnd => "request end",
        Part::Response => "response",
        Part::ResponseEnd => "end",
    }
}

impl Interceptor for Script {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        let ends = if head.ends { " ends" } else { "" };
        self.calls.push(format!("request {} {} {}{ends}", stream.0, head.method, head.path));
        self.request.remove(&stream.0).unwrap_or(Verdict::Pass)
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        let ends = if head.ends { " ends" } else { "" };
        self.calls.push(format!("response {} {}{ends}", stream.0, head.status));
        self.response.remove(&stream.0).unwrap_or(Verdict::Pass)
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        let trailers = tail.trailers.as_ref();
        let trailers = trailers.map(|t| t.text("grpc-status").unwrap_or("?").to_owned());
        let mut call = format!("end {} {}", stream.0, trailers.unwrap_or("-".into()));
        if let Some(messages) = tail.messages {
            call += &format!(" messages={messages}");
        }
        if let Some(body) = tail.body {
            call += &format!(" body={}", body.escape_ascii());
        }
        self.calls.push(call);
        self.end.remove(&stream.0).unwrap_or(Verdict::Pass)
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        let name = part_name(part);
        self.calls.push(format!("stamp {} {name}", stream.0));
        self.edits.remove(&(stream.0, name)).unwrap_or_default()
    }

    fn request_end(&mut self, stream: StreamId, trailers: Option<&Fields<'_>>) {
        let trailers = trailers.map(|t| t.text("t").unwrap_or("?").to_owned());
        self.calls.push(format!("request end {} {}", stream.0, trailers.unwrap_or("-".into())));
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        self.calls.push(format!("reached {} {mark:?}", stream.0));
        self.marks.remove(&(stream.0, mark)).unwrap_or(Verdict::Pass)
    }

    fn late(&mut self, stream: StreamId, fields: &Fields<'_>) {
        let fields: Vec<_> =
            fields.0.iter().map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii())).collect();
        self.calls.push(format!("late {} {}", stream.0, fields.join("&")));
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        self.calls.push(format!("refused {} {why:?}", stream.0));
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.calls.push(format!("closed {} {how:?}", stream.0));
    }
}

/// Turns one side's output into lines of text.
struct Tap {
    reader: Reader,
    decoder: Decoder,
    preface: bool,
    block: Option<(u32, bool, Vec<u8>)>,
    /// Whether fields are marked that must never be indexed.
    show_never: bool,
}

impl Tap {
    fn new(preface: bool) -> Self {
        Self {
            reader: if preface { Reader::with_preface() } else { Reader::default() },
            decoder: Decoder::new(1 << 20),
            preface,
            block: None,
            show_never: false,
        }
    }

    fn read(&mut self, bytes: &mut BytesMut) -> Vec<String> {
        let taken = bytes.split();
        let mut input = &taken[..];
        let mut lines = Vec::new();
        if self.preface {
            self.preface = !self.reader.greet(&mut input).expect("the preface");
        }
        while let Some(frame) = self.reader.next(&mut input, 1 << 24).expect("a frame") {
            let id = frame.stream;
            let end = if frame.flags & flag::END_STREAM != 0 { " end" } else { "" };
            let ack = if frame.flags & flag::ACK != 0 { " ack" } else { "" };
            lines.push(match frame.kind {
                kind::DATA if frame.flags & flag::PADDED != 0 => {
                    format!("DATA {id} padded {}{end}", frame.payload.len())
                }
                kind::DATA if frame.payload.len() > 20 => format!("DATA {id} {}{end}", frame.payload.len()),
                kind::DATA => format!("DATA {id} '{}'{end}", String::from_utf8_lossy(frame.payload)),
                kind::HEADERS | kind::CONTINUATION => {
                    let (stream, end, mut block) = match self.block.take() {
                        Some(open) => open,
                        None => (id, !end.is_empty(), Vec::new()),
                    };
                    assert_eq!(stream, id);
                    block.extend_from_slice(frame.payload);
                    if frame.flags & flag::END_HEADERS == 0 {
                        self.block = Some((stream, end, block));
                        continue;
                    }
                    let mut list = HeaderList::default();
                    self.decoder.decode(&block, &mut list).expect("a block that can be decoded");
                    let mut line = format!("HEADERS {id}{}", if end { " end" } else { "" });
                    for index in 0..list.len() {
                        let (name, value) = list.get(index);
                        let never = self.show_never && list.indexing(index) == Indexing::Never;
                        line += &format!(
                            " {}={}{}",
                            String::from_utf8_lossy(name),
                            if value.len() > 40 {
                                value.len().to_string()
                            } else {
                                String::from_utf8_lossy(value).into()
                            },
                            if never { "!" } else { "" }
                        );
                    }
                    line
                }
                kind::RST_STREAM => format!("RST {id} {}", frame::u32_at(frame.payload, 0)),
                kind::SETTINGS => {
                    let entries = frame
                        .payload
                        .chunks(6)
                        .map(|e| format!(" {}={}", u16::from_be_bytes([e[0], e[1]]), frame::u32_at(e, 2)));
                    format!("SETTINGS{ack}{}", entries.collect::<String>())
                }
                kind::PING => format!("PING{ack} {}", String::from_utf8_lossy(frame.payload)),
                kind::GOAWAY => {
                    format!("GOAWAY {} {}", frame::u32_at(frame.payload, 0), frame::u32_at(frame.payload, 4))
                }
                kind::WINDOW_UPDATE => format!("WINDOW {id} {}", frame::u32_at(frame.payload, 0)),
                kind::PRIORITY_UPDATE => format!("PRIORITY {}", frame::u32_at(frame.payload, 0)),
                other => format!("TYPE{other} {id} {}", frame.payload.len()),
            });
        }
        lines
    }
}

/// An editor between two scripted peers.
struct Net {
    link: Link,
    script: Script,
    app_encoder: Encoder,
    up_encoder: Encoder,
    app_tap: Tap,
    up_tap: Tap,
}

impl Net {
    /// Nothing sent yet.
    fn silent() -> Self {
        Self {
            link: Link::new(),
            script: Script::default(),
            app_encoder: Encoder::default(),
            up_encoder: Encoder::default(),
            app_tap: Tap::new(false),
            up_tap: Tap::new(true),
        }
    }

    /// Both sides have greeted and acknowledged.
    fn new() -> Self {
        Self::with_settings(&[], &[])
    }

    fn with_settings(app: &[(u16, u32)], upstream: &[(u16, u32)]) -> Self {
        let mut net = Self::silent();
        net.app(PREFACE);
        net.app(&settings(app));
        net.up(&settings(upstream));
        net.app(&ack());
        net.up(&ack());
        net.seen_app();
        net.seen_up();
        net
    }

    fn app(&mut self, bytes: &[u8]) {
        self.link.app_bytes(bytes, &mut self.script);
    }

    fn up(&mut self, bytes: &[u8]) {
        self.link.upstream_bytes(bytes, &mut self.script);
    }

    fn resume(&mut self, stream: u64, resume: Resume) {
        self.link.resume(StreamId(stream), resume, &mut self.script);
    }

    /// A request head of the application.
    fn request(&mut self, stream: u32, end: bool, path: &str) {
        let fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "svc")];
        let block = headers(&mut self.app_encoder, stream, end, &fields);
        self.app(&block);
    }

    /// A header block of the application.
    fn app_headers(&mut self, stream: u32, end: bool, fields: &[(&str, &str)]) {
        let block = headers(&mut self.app_encoder, stream, end, fields);
        self.app(&block);
    }

    /// A header block of the upstream.
    fn up_headers(&mut self, stream: u32, end: bool, fields: &[(&str, &str)]) {
        let block = headers(&mut self.up_encoder, stream, end, fields);
        self.up(&block);
    }

    fn seen_app(&mut self) -> Vec<String> {
        self.app_tap.read(&mut self.link.output().to_app)
    }

    fn seen_up(&mut self) -> Vec<String> {
        self.up_tap.read(&mut self.link.output().to_upstream)
    }

    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.script.calls)
    }

    /// The calls but those to `stamp`.
    fn decisions(&mut self) -> Vec<String> {
        self.calls().into_iter().filter(|call| !call.starts_with("stamp")).collect()
    }
}

fn frame_of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn block_of(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (name, value) in fields {
        encoder.field(name.as_bytes(), value.as_bytes(), Indexing::Incremental, &mut block);
    }
    block
}

fn headers(encoder: &mut Encoder, stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    frame_of(1, 4 | u8::from(end), stream, &block_of(encoder, fields))
}

fn data(stream: u32, end: bool, octets: &[u8]) -> Vec<u8> {
    frame_of(0, u8::from(end), stream, octets)
}

/// Body octets in frames of at most 16,384.
fn body(stream: u32, end: bool, octets: usize) -> Vec<u8> {
    let all = vec![b'x'; octets];
    let count = octets.div_ceil(16_384);
    all.chunks(16_384).enumerate().flat_map(|(n, piece)| data(stream, end && n + 1 == count, piece)).collect()
}

fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame_of(8, 0, stream, &increment.to_be_bytes())
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame_of(3, 0, stream, &code.to_be_bytes())
}

fn ping(text: &[u8; 8], ack: bool) -> Vec<u8> {
    frame_of(6, u8::from(ack), 0, text)
}

fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame_of(7, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        entries.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    frame_of(4, 0, 0, &payload)
}

fn ack() -> Vec<u8> {
    frame_of(4, 1, 0, &[])
}

fn made(status: u16, fields: &[(&str, &str)], body: &'static [u8]) -> Act {
    let fields = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    Act::Answer(Box::new(Made { status, fields, body: Bytes::from_static(body), trailers: None }))
}

fn unavailable() -> Act {
    let fields = [("content-type", "application/grpc"), ("grpc-status", "14"), ("grpc-message", "lost")];
    let mut act = made(200, &fields, b"");
    if let Act::Answer(made) = &mut act {
        made.trailers = Some(made.fields[1..].to_vec());
    }
    act
}

const OK: &[(&str, &str)] = &[(":status", "200")];
