//! The HTTP/2 editor (RFC 9113, by prior knowledge): relays frames between one application connection and one upstream
//! connection, rewriting stream identifiers and re-encoding header blocks, and does nothing else unless a decision asks.
//!
//! What passes untouched: DATA with its padding, PING, GOAWAY of the application, RST_STREAM, WINDOW_UPDATE, SETTINGS and
//! their acknowledgements, extension frames. What does not: PRIORITY and the priority fields of HEADERS are dropped (RFC
//! 9113 §5.3.2 deprecates them, and a mapped dependency may name the stream itself), padding of HEADERS is dropped, and
//! the two settings named in `settings`. PUSH_PROMISE is a connection error, since push was disabled.
//!
//! Invariants:
//! * The upstream sees the preface, SETTINGS and then identifiers that strictly grow; the application sees the upstream's
//!   SETTINGS before anything this editor makes (RFC 9113 §3.4).
//! * Every header block is decoded, whatever becomes of its stream, so the compression contexts stay in step.
//! * No window is overrun at either receiver, and no credit is lost (module `flow`).
//! * Bodies are looked into only where a verdict asked for it.
//! * [`Interceptor::closed`] comes exactly once per [`Interceptor::request`]; malformed messages (RFC 9113 §8.1.1) get
//!   RST_STREAM and no call at all.
//! * The output does not depend on how the input was split.
//! * Memory: at most [`KEPT_LIMIT`] octets each way are kept for parked messages before [`Editor::wants_app`] or
//!   [`Editor::wants_upstream`] says no; a header block has at most [`BLOCK_LIMIT`] octets in [`FRAGMENT_LIMIT`] frames
//!   and [`LIST_LIMIT`] octets decoded; at most [`STREAM_LIMIT`] streams are open. Floods (CVE-2019-9512 and its kin,
//!   CVE-2023-44487) that are relayed are for the peer to judge, as without a sidecar; what is consumed here has a budget
//!   ([`CONTROL_BUDGET`]) that real traffic refills, and beyond it the peer gets ENHANCE_YOUR_CALM.
//!
//! How the two ends stay apart where a fault stands between them:
//! * A dropped request's upload gets the connection's credit back, so that its neighbours go on, but none of its own, as
//!   from a peer that does not read.
//! * A response that is replaced is drained, so that the upstream ends its work undisturbed, until [`DRAIN_LIMIT`] or until
//!   the upstream's SETTINGS_MAX_CONCURRENT_STREAMS needs its place; a request still going up is cancelled.
//! * A response that a decision watches passes frame by frame like any other, but for a frame with a mark in it: that is cut
//!   there. A mark is reached when all before it has been written, so the end of a response with marks is judged when it
//!   is its turn, not when it came.
//! * A fault in mid-body, unless it is a drop, cancels the upstream's stream: nobody is left to read it.
//! * Of streams that the application gave up, the last 256 are remembered until their answer comes or is reset.
//! * The last DATA of a response is held with its end: what waits at [`Interceptor::response_end`] is a whole frame.
//! * A GOAWAY never names fewer streams than were answered or dropped here: the application must not take those for
//!   unprocessed. New requests after it are for nobody and are ignored, as they would be by the upstream.
//! * When the upstream is gone, what is kept of complete responses is still delivered as it is released, then the
//!   application's connection ends; nothing is made up.
//!
//! How a link is drained ([`Editor::drain`], RFC 9113 §6.8): GOAWAY without a last stream and a PING; whatever the
//! application sent before it saw them has come when it acknowledges the PING, and is processed. Then GOAWAY with the last
//! stream; later ones are ignored, and the connections end behind the last open one.
//!
//! A connection upgraded by a 101 to `h2c` is not handled here: the HTTP/1 editor counts it as opaque.

mod connection;
mod deliver;
mod faults;
mod flow;
pub(crate) mod frame;
mod head;
mod ids;
mod requests;
mod responses;
mod settings;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::exchange::{Editor, Fate, Interceptor, Output, PeerEnd, Resume, StreamId};
use crate::hpack::{Decoder, Encoder, HeaderList};
use flow::{Account, DEFAULT_WINDOW};
use frame::{Frame, Reader, Violation, code, flag, kind};
use ids::{Crossing, IdMap, Ids};
use settings::Settings;
use stream::{Stream, Way};

/// Octets kept per direction for messages that wait, after which no more is read from their sender.
pub const KEPT_LIMIT: usize = 16 << 20;
/// Octets of one encoded header block.
pub const BLOCK_LIMIT: usize = 256 << 10;
/// Frames of one header block.
pub const FRAGMENT_LIMIT: usize = 128;
/// Octets of one decoded header list, counted as SETTINGS_MAX_HEADER_LIST_SIZE does.
pub const LIST_LIMIT: usize = 256 << 10;
/// Streams open at once; further ones are refused (REFUSED_STREAM).
pub const STREAM_LIMIT: usize = 16_384;
/// Octets of a response that are taken off the wire for a fault, before its stream is cancelled.
pub const DRAIN_LIMIT: usize = 1 << 20;
/// Frames that are consumed here and cost the peer nothing, before it is asked to calm down.
pub const CONTROL_BUDGET: u32 = 10_000;
/// Unwritten octets towards a peer after which the other peer is not read.
const OUTPUT_LIMIT: usize = 256 << 10;

/// The bits of an identifier.
const MAX_ID: u32 = 0x7fff_ffff;

/// One direction's step: a violation is a connection error of the peer whose frame was handled.
type Step = Result<(), Violation>;

/// What is known of one peer.
#[derive(Debug)]
struct Side {
    reader: Reader,
    /// For the blocks it sends.
    decoder: Decoder,
    /// For the blocks it gets.
    encoder: Encoder,
    /// What it announced.
    settings: Settings,
    /// The largest frame it may send: announced by the other side.
    max_frame: usize,
    /// A header block whose END_HEADERS is still to come.
    fragments: Vec<u8>,
    block: Option<Block>,
    /// Left of [`CONTROL_BUDGET`].
    budget: u32,
}

/// A header block in several frames.
#[derive(Debug, Clone, Copy)]
struct Block {
    stream: u32,
    end: bool,
    /// Its priority names its own stream.
    on_itself: bool,
    frames: usize,
}

impl Side {
    fn new(reader: Reader) -> Self {
        Self {
            reader,
            decoder: Decoder::new(LIST_LIMIT),
            encoder: Encoder::default(),
            settings: Settings::default(),
            max_frame: frame::PIECE,
            fragments: Vec::new(),
            block: None,
            budget: CONTROL_BUDGET,
        }
    }

    /// A frame was consumed that costs its sender nothing.
    fn spend(&mut self) -> Step {
        self.budget = self.budget.checked_sub(1).ok_or(Violation::calm("too many frames without traffic"))?;
        Ok(())
    }
}

/// How far a link is that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It is not.
    No,
    /// The application was warned, and asked whether it has heard.
    Warned,
    /// It knows which stream is the last.
    Told,
}

/// A response that is thrown away after its exchange is over for the application.
#[derive(Debug, Clone, Copy)]
struct Drain {
    upstream: u32,
    left: usize,
}

/// The HTTP/2 editor of one link. See the module.
#[derive(Debug)]
pub struct Link {
    app: Side,
    upstream: Side,
    streams: IdMap<Stream>,
    ids: Ids,
    /// Streams that may yet be opened and reset without the upstream seeing them.
    unseen: u32,
    /// The window new streams start with: what each receiver announced and its sender acknowledged.
    initial_up: i64,
    initial_down: i64,
    /// The connections' accounts.
    up: Account,
    down: Account,
    /// Streams with something kept, in the order of service.
    waiting_up: VecDeque<u32>,
    waiting_down: VecDeque<u32>,
    kept_up: usize,
    kept_down: usize,
    drains: VecDeque<Drain>,
    /// Streams that the application gave up while the upstream was answering: the upstream's identifiers and the
    /// application's.
    abandoned: VecDeque<(u32, u32)>,
    /// PRIORITY_UPDATEs for streams the upstream does not know yet.
    priorities: VecDeque<(u32, Bytes)>,
    /// The largest identifier the application used.
    last_app: u32,
    /// Streams that are open at the upstream.
    up_open: usize,
    /// The upstream's GOAWAY as the application got it, unless it was only a warning.
    goaway: Option<u32>,
    ending: Ending,
    /// Streams that were closed towards the application while it could not know that yet.
    crossing: Crossing,
    /// What was made for the application before the upstream's SETTINGS came.
    early: BytesMut,
    /// What would have gone to an upstream that is gone.
    nowhere: BytesMut,
    /// The application ended its side; what is in flight goes on.
    app_ended: bool,
    /// The upstream is gone; what becomes of the application's connection when nothing is kept for it any more.
    upstream_gone: Option<Fate>,
    /// Both connections are done with.
    over: bool,
    /// Reused for every block.
    list: HeaderList,
    block: Vec<u8>,
    out: Output,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// An editor for two fresh connections. The application's bytes start with the connection preface.
    pub fn new() -> Self {
        Self {
            app: Side::new(Reader::with_preface()),
            upstream: Side::new(Reader::default()),
            streams: IdMap::default(),
            ids: Ids::default(),
            unseen: CONTROL_BUDGET,
            initial_up: DEFAULT_WINDOW,
            initial_down: DEFAULT_WINDOW,
            up: Account::new(DEFAULT_WINDOW),
            down: Account::new(DEFAULT_WINDOW),
            waiting_up: VecDeque::new(),
            waiting_down: VecDeque::new(),
            kept_up: 0,
            kept_down: 0,
            drains: VecDeque::new(),
            abandoned: VecDeque::new(),
            priorities: VecDeque::new(),
            last_app: 0,
            up_open: 0,
            goaway: None,
            ending: Ending::No,
            crossing: Crossing::default(),
            early: BytesMut::new(),
            nowhere: BytesMut::new(),
            app_ended: false,
            upstream_gone: None,
            over: false,
            list: HeaderList::default(),
            block: Vec::new(),
            out: Output::default(),
        }
    }

    /// Octets that are kept each way.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn kept(&self) -> [usize; 2] {
        [self.kept_up, self.kept_down]
    }

    /// Whether no stream is open.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// The peer whose frames travel `way`.
    fn sender(&mut self, way: Way) -> &mut Side {
        match way {
            Way::Up => &mut self.app,
            Way::Down => &mut self.upstream,
        }
    }

    fn receiver(&mut self, way: Way) -> &mut Side {
        match way {
            Way::Up => &mut self.upstream,
            Way::Down => &mut self.app,
        }
    }

    fn account(&mut self, way: Way) -> &mut Account {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    /// Where frames that travel `way` are written.
    fn sink(&mut self, way: Way) -> &mut BytesMut {
        match way {
            Way::Up if self.upstream_gone.is_some() => {
                self.nowhere.clear();
                &mut self.nowhere
            }
            Way::Up => &mut self.out.to_upstream,
            Way::Down if self.upstream.settings.begun => &mut self.out.to_app,
            Way::Down => &mut self.early,
        }
    }

    fn input(&mut self, way: Way, input: &[u8], decide: &mut dyn Interceptor) {
        let gone = match way {
            Way::Up => self.app_ended,
            Way::Down => self.upstream_gone.is_some(),
        };
        if self.over || gone {
            return;
        }
        // The reader is out of the way while its frames are handled: they borrow it.
        let mut reader = std::mem::take(&mut self.sender(way).reader);
        let mut rest = input;
        let result = match reader.greet(&mut rest) {
            Ok(complete) => {
                if complete {
                    self.out.to_upstream.extend_from_slice(frame::PREFACE);
                }
                self.frames(way, &mut reader, rest, decide)
            }
            Err(violation) => Err(violation),
        };
        self.sender(way).reader = reader;
        if let Err(violation) = result {
            self.violated(way, violation, decide);
        }
        self.after(decide);
    }

    fn frames(&mut self, way: Way, reader: &mut Reader, mut input: &[u8], decide: &mut dyn Interceptor) -> Step {
        // The limit is read anew: a frame may change it for the next one.
        while let Some(frame) = reader.next(&mut input, self.sender(way).max_frame)? {
            self.frame(way, &frame, decide)?;
            if self.over {
                break;
            }
        }
        Ok(())
    }

    /// One frame of the peer whose frames travel `way`.
    fn frame(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let side = self.sender(way);
        if !side.settings.begun && (frame.kind != kind::SETTINGS || frame.flags & flag::ACK != 0) {
            return Err(Violation::protocol("the first frame is not SETTINGS"));
        }
        if side.block.is_some_and(|block| frame.kind != kind::CONTINUATION || frame.stream != block.stream) {
            return Err(Violation::protocol("a header block is interrupted"));
        }
        match (frame.kind, way) {
            (kind::DATA, Way::Up) => self.request_data(frame, decide),
            (kind::DATA, Way::Down) => self.response_data(frame, decide),
            (kind::HEADERS, _) => self.headers(way, frame, decide),
            (kind::CONTINUATION, _) => self.continuation(way, frame, decide),
            (kind::PRIORITY, _) => {
                let [dependency @ .., _] = frame.exactly::<5>()?;
                if frame.stream == 0 || frame.stream == u32::from_be_bytes(dependency) & MAX_ID {
                    return Err(Violation::protocol("PRIORITY of no stream or on itself"));
                }
                self.sender(way).spend()
            }
            (kind::RST_STREAM, Way::Up) => self.request_reset(frame, decide),
            (kind::RST_STREAM, Way::Down) => self.response_reset(frame, decide),
            (kind::SETTINGS, _) => self.settings(way, frame, decide),
            (kind::PUSH_PROMISE, _) => Err(Violation::protocol("PUSH_PROMISE although push is disabled")),
            (kind::PING, _) => self.ping(way, frame),
            (kind::GOAWAY, _) => self.goaway(way, frame, decide),
            (kind::WINDOW_UPDATE, _) => self.window_update(way, frame, decide),
            (kind::PRIORITY_UPDATE, Way::Up) => self.priority_update(frame),
            _ => self.extension(way, frame, decide),
        }
    }

    fn headers(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let mut fragment = frame.unpadded()?;
        let mut on_itself = false;
        if frame.flags & flag::PRIORITY != 0 {
            let (priority, rest) =
                fragment.split_at_checked(5).ok_or(Violation::size("HEADERS too short for its priority"))?;
            on_itself = frame::u32_at(priority, 0) & MAX_ID == frame.stream;
            fragment = rest;
        }
        let block = Block { stream: frame.stream, end: frame.flags & flag::END_STREAM != 0, on_itself, frames: 1 };
        if frame.flags & flag::END_HEADERS != 0 {
            return self.block(way, block, fragment, decide);
        }
        let side = self.sender(way);
        side.fragments.extend_from_slice(fragment);
        side.block = Some(block);
        Ok(())
    }

    fn continuation(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let side = self.sender(way);
        let block = side.block.as_mut().ok_or(Violation::protocol("CONTINUATION without HEADERS"))?;
        block.frames += 1;
        if block.frames > FRAGMENT_LIMIT || side.fragments.len() + frame.payload.len() > BLOCK_LIMIT {
            return Err(Violation::calm("header block too large"));
        }
        side.fragments.extend_from_slice(frame.payload);
        if frame.flags & flag::END_HEADERS == 0 {
            return Ok(());
        }
        let block = *block;
        side.block = None;
        let fragments = std::mem::take(&mut side.fragments);
        self.block(way, block, &fragments, decide)
    }

    /// A complete header block. Decoded first: the tables must stay in step whatever the stream is.
    fn block(&mut self, way: Way, block: Block, fragments: &[u8], decide: &mut dyn Interceptor) -> Step {
        let Block { stream, end, .. } = block;
        let mut list = std::mem::take(&mut self.list);
        let result = match self.sender(way).decoder.decode(fragments, &mut list) {
            Ok(()) if stream == 0 => Err(Violation::protocol("HEADERS on stream 0")),
            Ok(()) if way == Way::Up && block.on_itself => self.refuse_block(stream, end, decide),
            Ok(()) if way == Way::Up => self.request_block(stream, end, &list, decide),
            Ok(()) => self.response_block(stream, end, &list, decide),
            Err(crate::hpack::Error::ListTooLarge(_)) => Err(Violation::calm("header list too large")),
            Err(_) => Err(Violation::new(code::COMPRESSION_ERROR, "undecodable header block")),
        };
        self.list = list;
        result
    }
}

impl Editor for Link {
    fn app_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor) {
        self.input(Way::Up, input, decide);
    }

    fn upstream_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor) {
        self.input(Way::Down, input, decide);
    }

    fn app_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        if !self.over {
            self.app_gone(how, decide);
            self.after(decide);
        }
    }

    fn upstream_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        if !self.over && self.upstream_gone.is_none() {
            self.upstream_gone(how, decide);
            self.after(decide);
        }
    }

    fn resume(&mut self, stream: StreamId, resume: Resume, decide: &mut dyn Interceptor) {
        if let Ok(id) = u32::try_from(stream.0)
            && !self.over
        {
            self.resume_stream(id, resume, decide);
            self.after(decide);
        }
    }

    fn output(&mut self) -> &mut Output {
        &mut self.out
    }

    fn wants_app(&self) -> bool {
        // What the application makes this editor write to it is small; four times the limit is only reached by a peer that
        // floods and does not read. An ordinary response does not stop requests.
        self.kept_up < KEPT_LIMIT
            && self.out.to_upstream.len() < OUTPUT_LIMIT
            && self.out.to_app.len() + self.early.len() < 4 * OUTPUT_LIMIT
    }

    fn wants_upstream(&self) -> bool {
        self.kept_down < KEPT_LIMIT
            && self.out.to_app.len() < OUTPUT_LIMIT
            && self.out.to_upstream.len() < 4 * OUTPUT_LIMIT
    }

    fn drain(&mut self, decide: &mut dyn Interceptor) {
        self.warn();
        self.after(decide);
    }

    fn idle(&self) -> bool {
        // Whoever has not heard of the end yet may be sending a request.
        if self.ending == Ending::Warned {
            return false;
        }
        // Frames of the connection alone, such as a PING in the making, are nobody's exchange, but the beginning of a
        // frame may be that of a request.
        let between = |side: &Side| side.reader.between_frames() && side.block.is_none();
        self.streams.is_empty() && self.early.is_empty() && between(&self.app) && between(&self.upstream)
    }
}
