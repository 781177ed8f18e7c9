//! The HTTP/2 editor: frames and noise from both sides, faults, ends.
//!
//! Checked besides the [`Contract`](super::contract::Contract): the outcome does not depend on how the bytes were split;
//! whatever the peers send, what the editor writes is a sequence of frames that a strict peer takes (identifiers grow,
//! nothing comes on a stream that is idle or has ended, every header block can be decoded); without rules messages are what
//! was sent, or end early; when the link is gone nothing is kept.

use std::collections::BTreeMap;

use super::Input;
use super::contract::CHOICES;
use super::driver::{Bounded, Driver, Step, check};
use crate::exchange::PeerEnd;
use crate::h2::frame::{Frame, PREFACE, Reader, flag, kind};
use crate::h2::{KEPT_LIMIT, Link};
use crate::hpack::{Decoder, Encoder, HeaderList, Indexing};

/// Heads and trailers.
const HEADS: [&[(&str, &str)]; 12] = [
    &[(":method", "POST"), (":scheme", "http"), (":path", "/p.S/M"), ("content-type", "application/grpc")],
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a"), ("x-gone", "1")],
    &[(":method", "CONNECT"), (":authority", "a:1")],
    &[(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/"), (":authority", "a")],
    &[(":status", "200"), ("content-type", "application/grpc")],
    &[(":status", "200"), ("aft", "old")],
    &[(":status", "103"), ("link", "x")],
    &[(":status", "404"), ("content-length", "5")],
    &[("grpc-status", "0"), ("t", "v")],
    &[("t", "v")],
    &[(":status", "101")],
    &[("Upper", "case"), (":late", "pseudo")],
];

/// One peer as it speaks.
struct Speaker {
    encoder: Encoder,
    out: Vec<u8>,
}

impl Speaker {
    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    /// A header block, perhaps in several frames; requests say on which stream they were sent.
    fn head(&mut self, input: &mut Input<'_>, stream: u32) {
        let (which, how) = (input.below(HEADS.len()), input.byte());
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        let n = stream.to_string();
        let n = [("n", n.as_str())];
        let mark: &[(&str, &str)] = if which < 4 { &n } else { &[] };
        for (name, value) in HEADS[which].iter().chain(mark) {
            let indexing = [Indexing::Incremental, Indexing::Without, Indexing::Never][usize::from(how / 16) % 3];
            self.encoder.field(name.as_bytes(), value.as_bytes(), indexing, &mut block);
        }
        let end = how & flag::END_STREAM;
        if how & 2 == 0 {
            return self.frame(kind::HEADERS, end | flag::END_HEADERS, stream, &block);
        }
        let (first, second) = block.split_at(block.len() / 2);
        self.frame(kind::HEADERS, end, stream, first);
        self.frame(kind::CONTINUATION, flag::END_HEADERS, stream, second);
    }

    /// One frame, or noise; whether it was a frame of a kind that a decent peer sends.
    fn speak(&mut self, input: &mut Input<'_>) -> bool {
        let choice = input.byte();
        let stream = u32::from(input.byte() % 10) * 2 + 1;
        match choice % 32 {
            0..=8 => self.head(input, stream),
            9..=14 => {
                let (flags, payload) = (input.byte() & 1, input.piece());
                self.frame(kind::DATA, flags, stream, payload);
            }
            15 => {
                let length = usize::from(input.byte()) * 64;
                self.frame(kind::DATA, 0, stream, &vec![0; length]);
            }
            16 => {
                let body = input.piece();
                let padding = input.byte() % 32;
                let payload = [&[padding][..], body, &vec![0; padding.into()]].concat();
                self.frame(kind::DATA, flag::PADDED, stream, &payload);
            }
            17 | 18 => {
                let on = if choice & 64 == 0 { stream } else { 0 };
                let increment = u32::from(input.u16());
                self.frame(kind::WINDOW_UPDATE, 0, on, &increment.to_be_bytes());
            }
            19 | 20 => self.frame(kind::RST_STREAM, 0, stream, &u32::from(input.byte() % 14).to_be_bytes()),
            21 => {
                let entry = [u16::from(input.byte() % 9).to_be_bytes(), [0, 0], input.u16().to_be_bytes()].concat();
                self.frame(kind::SETTINGS, 0, 0, &entry);
            }
            22 => self.frame(kind::SETTINGS, flag::ACK, 0, &[]),
            23 => self.frame(kind::PING, (choice / 64) & 1, 0, b"01234567"),
            24 => {
                let payload = [stream.to_be_bytes(), [0; 4]].concat();
                self.frame(kind::GOAWAY, 0, 0, &payload);
            }
            25 => self.frame(kind::PRIORITY, 0, stream, &[0, 0, 0, 0, 1]),
            26 => {
                let payload = [&stream.to_be_bytes()[..], b"u=1"].concat();
                self.frame(kind::PRIORITY_UPDATE, 0, 0, &payload);
            }
            27 => self.frame(0x50, 0, stream, input.piece()),
            28 => {
                let (kind, flags) = (input.byte() % 18, input.byte());
                let on = if choice & 64 == 0 { stream } else { u32::from(input.byte()) };
                self.frame(kind, flags, on, input.piece());
                return false;
            }
            29 => {
                self.frame(kind::HEADERS, flag::END_HEADERS, stream, input.piece());
                return false;
            }
            30 => {
                self.out.extend_from_slice(input.piece());
                return false;
            }
            _ => self.frame(kind::SETTINGS, 0, 0, &[]),
        }
        true
    }
}

pub(super) fn run(input: &[u8]) {
    let mut input = Input(input);
    let mode = input.byte();
    let choices = if mode % 4 == 0 { &[][..] } else { input.bytes(CHOICES) };
    let speaker = || Speaker { encoder: Encoder::default(), out: Vec::new() };
    let (mut app, mut upstream) = (speaker(), speaker());
    app.out.extend_from_slice(PREFACE);
    app.frame(kind::SETTINGS, 0, 0, &[]);
    let mut steps = vec![Step::App(std::mem::take(&mut app.out))];
    if mode & 4 == 0 {
        upstream.frame(kind::SETTINGS, 0, 0, &[]);
        steps.push(Step::Upstream(std::mem::take(&mut upstream.out)));
    }
    let mut decent = true;
    while !input.is_empty() {
        let choice = input.byte();
        match choice {
            0..100 => {
                decent &= app.speak(&mut input);
                steps.extend(pieces(&mut app.out, choice).map(Step::App));
            }
            100..200 => {
                decent &= upstream.speak(&mut input);
                steps.extend(pieces(&mut upstream.out, choice).map(Step::Upstream));
            }
            200..246 => steps.push(Step::Resume(input.byte(), input.byte())),
            246..248 => steps.push(Step::AppEnd(PeerEnd::Eof)),
            248 => steps.push(Step::AppEnd(PeerEnd::Broken)),
            249..251 => steps.push(Step::UpstreamEnd(PeerEnd::Eof)),
            251 => steps.push(Step::UpstreamEnd(PeerEnd::Broken)),
            252 => steps.push(Step::UpstreamEnd(PeerEnd::Refused)),
            _ => {}
        }
    }
    check(&steps, choices, |driver: &Driver<'_, Link>| finish(driver, decent));
}

/// What was said, in one or two reads.
fn pieces(out: &mut Vec<u8>, choice: u8) -> impl Iterator<Item = Vec<u8>> + use<> {
    let mut first = std::mem::take(out);
    let at = (first.len() / 2 + usize::from(choice & 2)).min(first.len());
    let second = if choice & 1 == 0 { Vec::new() } else { first.split_off(at) };
    [first, second].into_iter().filter(|piece| !piece.is_empty())
}

impl Bounded for Link {
    fn fresh() -> Self {
        Link::new()
    }

    fn check_bounds(&self, longest: usize) {
        let [up, down] = self.kept();
        assert!(up <= KEPT_LIMIT + longest && down <= KEPT_LIMIT + longest, "{up} and {down} are kept");
    }

    fn check_gone(&self) {
        assert_eq!(self.kept(), [0, 0]);
        assert!(self.is_empty(), "streams are left");
    }
}

/// A message, as far as it came: its blocks, its body, and whether it has ended.
#[derive(Debug, Default, PartialEq)]
struct Message {
    blocks: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    body: Vec<u8>,
    ended: bool,
    reset: bool,
}

/// A strict reader of what one side writes.
struct Tap {
    reader: Reader,
    greeted: bool,
    settled: bool,
    decoder: Decoder,
    block: Option<(u32, bool, Vec<u8>)>,
    messages: BTreeMap<u32, Message>,
    last: u32,
}

impl Tap {
    /// Reads `bytes`, all of them; `idle` says of a stream without a message whether it was never used.
    fn read(client: bool, bytes: &[u8], idle: impl Fn(u32) -> bool) -> BTreeMap<u32, Message> {
        let mut tap = Tap {
            reader: if client { Reader::with_preface() } else { Reader::default() },
            greeted: !client,
            settled: false,
            decoder: Decoder::new(1 << 20),
            block: None,
            messages: BTreeMap::new(),
            last: 0,
        };
        let mut input = bytes;
        if !tap.greeted {
            tap.greeted = tap.reader.greet(&mut input).expect("the preface");
        }
        let mut reader = std::mem::take(&mut tap.reader);
        while let Some(frame) = reader.next(&mut input, 1 << 24).expect("a frame") {
            tap.frame(client, &frame, &idle);
        }
        tap.messages
    }

    fn frame(&mut self, client: bool, frame: &Frame<'_>, idle: &impl Fn(u32) -> bool) {
        let id = frame.stream;
        assert!(self.settled || frame.kind == kind::SETTINGS || frame.kind == kind::GOAWAY, "SETTINGS come first");
        self.settled = true;
        if let Some((stream, ..)) = &self.block {
            assert!(frame.kind == kind::CONTINUATION && id == *stream, "a header block is interrupted");
        }
        match frame.kind {
            kind::HEADERS => {
                assert!(id % 2 == 1, "HEADERS on stream {id}");
                if client && id > self.last {
                    self.last = id;
                    self.messages.insert(id, Message::default());
                } else if !client && !idle(id) {
                    self.messages.entry(id).or_default();
                }
                self.open(id);
                let block = frame.unpadded().expect("padding").to_vec();
                self.block = Some((id, frame.flags & flag::END_STREAM != 0, block));
                self.complete(frame.flags);
            }
            kind::CONTINUATION => {
                self.block.as_mut().expect("HEADERS before it").2.extend_from_slice(frame.payload);
                self.complete(frame.flags);
            }
            kind::DATA => {
                let body = frame.unpadded().expect("padding").to_vec();
                let message = self.open(id);
                assert!(!message.blocks.is_empty(), "DATA before HEADERS on stream {id}");
                message.body.extend_from_slice(&body);
                message.ended = frame.flags & flag::END_STREAM != 0;
            }
            kind::RST_STREAM => {
                assert!(self.messages.contains_key(&id) || !client && !idle(id), "RST_STREAM on idle stream {id}");
                self.messages.entry(id).or_default().reset = true;
            }
            kind::WINDOW_UPDATE => {
                assert!(
                    id == 0 || self.messages.contains_key(&id) || !client && !idle(id),
                    "WINDOW_UPDATE on idle stream {id}"
                );
                assert!(frame.payload != [0; 4], "WINDOW_UPDATE of nothing");
            }
            kind::PRIORITY | kind::PUSH_PROMISE => panic!("frame of type {}", frame.kind),
            _ => {}
        }
    }

    /// The message of `id`, which must be one that goes on.
    fn open(&mut self, id: u32) -> &mut Message {
        let message = self.messages.get_mut(&id).unwrap_or_else(|| panic!("stream {id} is idle"));
        assert!(!message.ended && !message.reset, "stream {id} has ended: {message:?}");
        message
    }

    fn complete(&mut self, flags: u8) {
        if flags & flag::END_HEADERS == 0 {
            return;
        }
        let Some((id, end, block)) = self.block.take() else { return };
        let mut list = HeaderList::default();
        self.decoder.decode(&block, &mut list).expect("a block that can be decoded");
        let message = self.open(id);
        message.blocks.push(list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect());
        message.ended = end;
    }
}

fn finish(driver: &Driver<'_, Link>, decent: bool) {
    let requests = Tap::read(true, &driver.to_upstream, |_| true);
    let used = largest_of(&driver.app.all);
    let responses = Tap::read(false, &driver.to_app, |id| id > used);
    if !driver.decide.is_transparent() || !decent {
        return;
    }
    // Decent peers without rules: each message is what was sent on that stream, as far as it came.
    let (Some(sent), Some(answered)) = (said(true, &driver.app.all), said(false, &driver.upstream.all)) else { return };
    for (up, request) in &requests {
        let Some(head) = request.blocks.first() else { continue };
        let Some((_, n)) = head.iter().find(|(name, _)| name == b"n") else { continue };
        let n: u32 = std::str::from_utf8(n).unwrap().parse().unwrap();
        same(&sent[&n], request);
        if let (Some(response), Some(origin)) = (responses.get(&n), answered.get(up)) {
            same(origin, response);
        }
    }
}

/// The largest stream of a HEADERS frame, whatever else there is.
fn largest_of(mut bytes: &[u8]) -> u32 {
    let mut largest = 0;
    bytes = bytes.strip_prefix(PREFACE.as_slice()).unwrap_or(bytes);
    while let Some((header, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        if header[3] == kind::HEADERS {
            largest = largest.max(u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & 0x7fff_ffff);
        }
        let Some((_, after)) = rest.split_at_checked(length) else { break };
        bytes = after;
    }
    largest
}

/// What a decent peer said on each stream, mistakes of the conversation included; `None` if it cannot be read.
fn said(client: bool, bytes: &[u8]) -> Option<BTreeMap<u32, Message>> {
    let mut reader = if client { Reader::with_preface() } else { Reader::default() };
    let mut input = bytes;
    reader.greet(&mut input).ok()?;
    let mut decoder = Decoder::new(1 << 20);
    let mut messages: BTreeMap<u32, Message> = BTreeMap::new();
    let mut block: Option<(u32, Vec<u8>)> = None;
    while let Ok(Some(frame)) = reader.next(&mut input, 1 << 24) {
        match frame.kind {
            kind::DATA => {
                messages.entry(frame.stream).or_default().body.extend_from_slice(frame.unpadded().ok()?);
            }
            kind::HEADERS => block = Some((frame.stream, frame.payload.to_vec())),
            kind::CONTINUATION => block.as_mut()?.1.extend_from_slice(frame.payload),
            _ => continue,
        }
        let message = messages.entry(frame.stream).or_default();
        message.ended |= frame.kind != kind::CONTINUATION && frame.flags & flag::END_STREAM != 0;
        if frame.kind != kind::DATA && frame.flags & flag::END_HEADERS != 0 {
            let (_, octets) = block.take()?;
            let mut list = HeaderList::default();
            decoder.decode(&octets, &mut list).ok()?;
            message.blocks.push(list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect());
        }
    }
    Some(messages)
}

fn same(origin: &Message, relayed: &Message) {
    assert!(origin.body.starts_with(&relayed.body), "a body is not what was sent");
    assert!(origin.blocks.starts_with(&relayed.blocks), "{:?} are not {:?}", relayed.blocks, origin.blocks);
    assert!(!relayed.ended || origin.ended, "an end that nobody sent");
}
