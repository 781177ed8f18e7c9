//! The seam between the protocol editors and the sidecar's decisions.
//!
//! An *editor* ([`crate::h1`], [`crate::h2`]) owns the bytes of one link: one application connection paired with one
//! upstream connection. It knows framing and nothing of rules. At the four interception points it calls an
//! [`Interceptor`], which knows rules and nothing of framing. Neither does I/O, reads a clock or draws a random number:
//! bytes go in, bytes and calls come out, so both can be tested byte by byte.
//!
//! Life of an exchange, seen from the editor (design §3.3; `docs/request-life.md` has the picture):
//!
//! 1. [`Interceptor::request`] when a complete request head has arrived. `Pass` forwards it, `Park` keeps it (and what
//!    follows on that stream) until [`Resume`], `Act` does a fault.
//! 2. [`Interceptor::stamp`] exactly once for every part that really leaves, at the moment it is written: what a parked
//!    message carries is what is known when it is released, not when it came.
//! 3. [`Interceptor::request_end`] at the end of a request that did not end with its head, with its trailers if any. It
//!    is no interception point: nothing is decided there, evidence is merged and stamped.
//! 4. [`Interceptor::response`] at the final response head (never for 1xx). `Withhold` keeps head and body back until the
//!    end, where the outcome of a gRPC call is; `Watch` stops in mid-body.
//! 5. [`Interceptor::reached`] at each mark of a `Watch`.
//! 6. [`Interceptor::response_end`] at the end of the response, with its trailers if it has any.
//! 7. [`Interceptor::closed`] exactly once per exchange, whatever happened.
//! 8. [`Interceptor::late`], only after `closed` and at most once, with the fields of a response that was under way when
//!    the application gave up: nobody gets it, what it says of other events is still true.

use std::net::SocketAddr;

use bytes::Bytes;
use smallvec::SmallVec;

/// One exchange (request and response) on one link. The editor assigns it: the ordinal of the request on HTTP/1, the
/// application's stream id on HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The version of HTTP an exchange uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2, by prior knowledge.
    Http2,
}

/// Field lines as received, in order, borrowed from the editor.
#[derive(Debug, Default, Clone)]
pub struct Fields<'a>(pub Vec<(&'a [u8], &'a [u8])>);

impl<'a> Fields<'a> {
    /// Every value of `name` (given in lower case; names are compared without case), in order.
    pub fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, v)| *v)
    }

    /// The first value of `name` as text; `None` when absent or not UTF-8.
    pub fn text(&self, name: &'static str) -> Option<&'a str> {
        self.all(name).next().and_then(|v| std::str::from_utf8(v).ok())
    }
}

/// A request head at [`Interceptor::request`]. Pseudo-header fields are in their own members, not in `fields`.
#[derive(Debug, Clone)]
pub struct RequestHead<'a> {
    /// HTTP version of the link.
    pub protocol: Protocol,
    /// Method, as received.
    pub method: &'a str,
    /// Request target without scheme and authority: path and query (`*` for an asterisk-form `OPTIONS`; the authority
    /// for `CONNECT`).
    pub path: &'a str,
    /// `:authority` or `Host`, or the authority of an absolute-form target; empty if there is none.
    pub authority: &'a str,
    /// Field lines without pseudo-header fields.
    pub fields: Fields<'a>,
    /// The request ends with this head.
    pub ends: bool,
}

/// A final response head at [`Interceptor::response`].
#[derive(Debug, Clone)]
pub struct ResponseHead<'a> {
    /// Status code, 200 to 999.
    pub status: u16,
    /// Field lines without pseudo-header fields.
    pub fields: Fields<'a>,
    /// The response ends with this head (for gRPC: a trailers-only answer; its status is in `fields`).
    pub ends: bool,
}

/// What to do with a message at an interception point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Forward it now.
    Pass,
    /// Keep it until [`Resume`]. Later messages of *other* HTTP/2 streams go on.
    Park,
    /// Do a fault instead of forwarding.
    Act(Act),
    /// From `response` only, elsewhere it means `Pass`: keep head and body back until [`Interceptor::response_end`], but
    /// not more than `limit` body bytes; beyond that the editor calls [`Interceptor::refused`] with [`Refusal::Size`] and
    /// passes everything on. For a gRPC response of more than one message it does so with [`Refusal::Stream`] when the
    /// second begins.
    Withhold {
        /// Most body bytes to keep back.
        limit: usize,
    },
    /// From `response` only, elsewhere it means `Pass`: forward, count gRPC messages, and stop at each of these marks to
    /// call [`Interceptor::reached`], in the order of the stream. No marks: only count.
    Watch(Marks),
}

/// Marks of one response, in any order, each once.
pub type Marks = SmallVec<[Mark; 1]>;

/// A place in the body of a response. What lies before it has been handed on when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// The first byte of the n-th gRPC message (its five-byte prefix included), from 1.
    Message(u32),
    /// The byte after the first n body bytes; padding and chunk framing are none. A body of exactly n bytes has no such
    /// byte and the mark is not reached.
    Bytes(u64),
}

/// What a response was, at its end.
#[derive(Debug, Clone, Default)]
pub struct Tail<'a> {
    /// Its trailers, if it has any.
    pub trailers: Option<Fields<'a>>,
    /// The whole body, where it was withheld: without chunk framing, still with its content coding.
    pub body: Option<&'a [u8]>,
    /// How many gRPC messages began in it, where a verdict asked for that.
    pub messages: Option<u64>,
}

/// A fault, as the editor carries it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// The application gets no byte. A request is not forwarded; a response is taken off the wire (its body drained to a
    /// limit). The exchange stays open until the application gives up or [`Resume::Close`].
    Drop,
    /// HTTP/1: TCP RST of the application's connection. HTTP/2: RST_STREAM with this code.
    Reset {
        /// HTTP/2 error code (RFC 9113 §7); ignored on HTTP/1.
        code: u32,
        /// HTTP/2: a TCP RST of the application's connection, with everything on it; all its exchanges are closed
        /// [`Closed::ByFault`], and the upstream's connection ends in order.
        connection: bool,
    },
    /// Answer with a response the sidecar made. At the request: nothing goes upstream. At the response: the upstream's
    /// answer is taken off the wire and thrown away. Once the head has gone, HTTP/2 editors send the fields of a
    /// [`Made::trailers`] as the end of the stream; anything else is [`Refusal::TooLate`].
    Answer(Box<Made>),
}

/// A response made by the sidecar. It never gets [`Interceptor::stamp`]ed; `fields` is all there is, besides the framing
/// fields that the editor adds (`content-length` on HTTP/1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Status code.
    pub status: u16,
    /// Field lines, names in lower case.
    pub fields: Vec<(String, String)>,
    /// Body; empty for a gRPC trailers-only answer, whose status stands in `fields`.
    pub body: Bytes,
    /// The same answer as trailers, for a response whose head has gone; gRPC only.
    pub trailers: Option<Vec<(String, String)>>,
}

/// The end of a [`Verdict::Park`] or of an [`Act::Drop`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Forward the parked message, stamped now.
    Pass,
    /// Do a fault with the parked message.
    Act(Act),
    /// Close what was dropped: FIN on HTTP/1, RST_STREAM CANCEL on HTTP/2. No effect on an exchange that is not dropped.
    Close,
}

/// A part of a message that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The request head, towards the upstream.
    Request,
    /// The end of a request that did not end with its head, towards the upstream. Edits are merged into the trailers.
    /// Where the message has none, HTTP/2 editors append a trailer block for a non-empty edit and HTTP/1 editors drop it;
    /// a block of which edits leave nothing is not sent.
    RequestEnd,
    /// The final response head, towards the application.
    Response,
    /// The end of the response, towards the application. Edits are merged into the trailers. Where the message has none,
    /// HTTP/2 editors append a trailer block for a non-empty edit and HTTP/1 editors drop it.
    ResponseEnd,
}

/// One edit of field lines. Every line that is not named stays as it was received, bytes and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// The first line of that name gets this value in its place, further lines of the name go; without one, a line is
    /// added at the end. Never HPACK-indexed. `host` on HTTP/2 means `:authority` (or the `host` line of a message that has
    /// only that); absolute-form targets of HTTP/1 stay as they are.
    Set(&'static str, Vec<u8>),
    /// Every line of that name goes.
    Remove(&'static str),
}

/// The edits of one part, applied in order.
pub type Edits = SmallVec<[Edit; 4]>;

/// Why an editor did not do what a verdict or a resume asked. The message was (or will be) forwarded unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// HTTP/1: another request of the connection is outstanding, so a drop, a reset or a made answer would hit it too.
    Pipelined,
    /// The withheld body grew beyond its limit; head and body were released, the end is still to come.
    Size,
    /// A second gRPC message began in a withheld response; all was released, the end is still to come.
    Stream,
    /// HTTP/2: the upstream said GOAWAY and will not process the parked request; the application was told so.
    Goaway,
    /// The message already left.
    TooLate,
    /// HTTP/2: with our field lines a part would exceed the receiver's SETTINGS_MAX_HEADER_LIST_SIZE. It left without
    /// those [`Edit::Set`]s that did not fit; all else about it is unchanged.
    Oversized,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The response was written to its end (made answers included).
    Complete,
    /// The application cancelled the stream or closed the connection first.
    ByApplication,
    /// The upstream refused, closed or reset before the end of the response, or broke the protocol.
    ByUpstream,
    /// A fault ended it: a reset, or a drop that was closed by [`Resume::Close`].
    ByFault,
}

/// The decisions at the interception points. Calls are synchronous; an implementation answers at once and defers with
/// [`Verdict::Park`].
pub trait Interceptor {
    /// A complete request head has arrived from the application side of the link.
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict;

    /// A request that did not end with its head has arrived to its end; on HTTP/2 perhaps while its head is parked. Not
    /// called for a CONNECT, nor for a request that a fault replaced or that was answered to the end before.
    fn request_end(&mut self, _stream: StreamId, _trailers: Option<&Fields<'_>>) {}

    /// A final response head has arrived from the upstream.
    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict;

    /// A mark of a [`Verdict::Watch`] is reached. The verdict acts on what has not left yet.
    fn reached(&mut self, _stream: StreamId, _mark: Mark) -> Verdict {
        Verdict::Pass
    }

    /// The response has arrived to its end. Called once after `response` unless `head.ends`, with the trailers if the
    /// message has any. The verdict acts on what has not left yet: the whole response if it was withheld, else its end.
    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict;

    /// A part is about to be written: how to edit its field lines. A part that a fault replaced is never stamped.
    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits;

    /// The editor could not do what was asked.
    fn refused(&mut self, stream: StreamId, why: Refusal);

    /// The exchange is over.
    fn closed(&mut self, stream: StreamId, how: Closed);

    /// Fields of a response head or of trailers that came after the application had given up the exchange. Only HTTP/2
    /// editors hear of them: HTTP/1 cuts the upstream's connection.
    fn late(&mut self, _stream: StreamId, _fields: &Fields<'_>) {}
}

/// What an editor wants done with a socket once its output has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// Go on.
    #[default]
    Open,
    /// Shut down the writing side, go on reading.
    Fin,
    /// Shut down the writing side, read and discard up to 1 MiB or 2 s, then close: closing with unread bytes would be an
    /// RST that eats the answer.
    Linger,
    /// Close at once.
    Close,
    /// Close with an RST (`SO_LINGER` 0), after the output has been written.
    Reset,
}

/// How a peer's side of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEnd {
    /// Orderly end of its bytes (FIN); the other direction may go on.
    Eof,
    /// The connection broke (RST or another socket error).
    Broken,
    /// The upstream could not be connected at all.
    Refused,
}

/// Bytes and fates that an editor wants carried out, in this order: bytes first, then the fate.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes for the application.
    pub to_app: bytes::BytesMut,
    /// What becomes of the application's connection after `to_app`.
    pub app: Fate,
    /// Bytes for the upstream.
    pub to_upstream: bytes::BytesMut,
    /// What becomes of the upstream's connection after `to_upstream`.
    pub upstream: Fate,
}

/// One link's bytes: a protocol editor without I/O.
pub trait Editor {
    /// Bytes from the application.
    fn app_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor);
    /// Bytes from the upstream.
    fn upstream_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor);
    /// The application's side ended.
    fn app_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor);
    /// The upstream's side ended.
    fn upstream_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor);
    /// A parked or dropped exchange goes on. Unknown or closed streams are ignored.
    fn resume(&mut self, stream: StreamId, resume: Resume, decide: &mut dyn Interceptor);
    /// What is to be written; the driver takes bytes from its front as the sockets accept them.
    fn output(&mut self) -> &mut Output;
    /// Whether the editor takes more bytes from the application now (back-pressure for what is parked).
    fn wants_app(&self) -> bool;
    /// Whether the editor takes more bytes from the upstream now.
    fn wants_upstream(&self) -> bool;
    /// While [`Editor::wants_app`] is false: whether [`Editor::app_end`] is to be called as soon as the application has
    /// closed, although bytes that nobody read may lie before its end (its caller gave up on what is parked or dropped).
    fn minds_close(&self) -> bool {
        false
    }
    /// The process is about to end: tell the application, so that it takes another connection for what comes next, and
    /// end the link behind what is under way. Called at most once, perhaps before the first byte.
    fn drain(&mut self, _decide: &mut dyn Interceptor) {}
    /// Whether no exchange and no part of one is under way, so that a graceful stop may close the link now.
    fn idle(&self) -> bool {
        false
    }
    /// Whether the link is known to be one that nobody reads (no HTTP, or a 101 to `h2c`): counted as opaque.
    fn opaque(&self) -> bool {
        false
    }
    /// Whether the application has said nothing on an opaque link yet: who only looks whether somebody listens calls nobody.
    fn silent(&self) -> bool {
        false
    }
    /// What a TLS client asked for, of an opaque link.
    fn server_name(&self) -> Option<&str> {
        None
    }
}

/// Names one link of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Where a connection was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// By the listener with this index under `inbound`.
    Inbound(usize),
    /// By the listener with this index under `outbound`.
    Outbound(usize),
    /// Redirected on its way to the application, from this address.
    RedirectedIn(SocketAddr),
    /// Redirected on the application's way to this address.
    RedirectedOut(SocketAddr),
}

/// What the connection driver needs of the sidecar's brain ([`crate::sidecar`] in production, a recorder in tests).
pub trait Decider {
    /// A connection was accepted.
    fn opened(&mut self, door: Door) -> LinkId;
    /// Whether a link that was just opened leads to a callee that is cut off: its upstream is not dialled, as if it had
    /// refused.
    fn is_cut(&self, _link: LinkId) -> bool {
        false
    }
    /// Run `call` with the interceptor of `link`, at `now`.
    fn intercept(&mut self, link: LinkId, now: std::time::Instant, call: &mut dyn FnMut(&mut dyn Interceptor));
    /// The link is gone; every exchange of it was closed before.
    fn gone(&mut self, link: LinkId);
    /// Messages of any link that may go on since the last call. The driver carries them out only after it has written
    /// what the call that caused them put out (design §3.5: "after the message that made it grow has been written").
    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)>;
    /// A connection turned out to be neither HTTP/1 nor HTTP/2 and passes as opaque TCP; `server_name` is what a TLS client
    /// asked for.
    fn opaque(&mut self, link: LinkId, server_name: Option<&str>);
    /// The application said something on an opaque connection: calls on it cannot be seen.
    fn unseen(&mut self, _link: LinkId, _server_name: Option<&str>) {}
}
