//! The HTTP/1.x editor (RFC 9112): bytes in; bytes and calls of the [`Interceptor`] out.
//!
//! Heads are read with httparse, the framing of bodies is followed, the lines that a stamp names are rewritten, and
//! everything else is forwarded as it came: case, order and white space of the fields, chunk boundaries and extensions,
//! trailers. `Connection` lists and other hop-by-hop fields pass too: both ends see the connection they would have had.
//!
//! Invariants:
//! * A request that two readers could frame differently is answered 400 (431 if its head is too large) and goes nowhere;
//!   such a response closes both connections ([`Malformed`]).
//! * A head leaves only complete, and only after its interception point.
//! * `queue` holds the exchanges whose response has not ended, oldest first. A parked request is its last entry; an entry
//!   that no request of the upstream belongs to (answered here, parked, dropped) has nothing in flight behind it that the
//!   upstream would answer first.
//! * Every exchange that was announced by [`Interceptor::request`] is closed once, when it leaves the queue.
//! * What lies before a mark has been written when it is reached, framing included; what lies behind it was not even taken.
//! * What is kept is bounded: [`MAX_HEAD`] ([`MAX_KEPT`] while a message waits) and one read per direction, the limit of a withheld response, [`MAX_QUEUE`].
//!
//! Decisions that the standard leaves open:
//! * A FIN of the application is a half-close and passes on, except while one of its messages is parked or dropped: then
//!   its caller gave up, since a client that waits with its writing side closed cannot be told from one that left. A FIN
//!   that came before the message was parked is a half-close.
//! * A made answer to a request with a `content-length` of at most [`MAX_DRAIN`] is sent when the body has been read (and
//!   thrown away), so that the connection can stay. If the client waits for a 100, if the body is larger or chunked, the
//!   answer goes out at once and the connection ends behind it.
//! * A made answer instead of a chunked response goes out at once; if more than [`MAX_DRAIN`] bytes of the response follow,
//!   the connection is closed then. No request is taken before the rest of the response has been drained.
//! * Behind a request that asks for another protocol (Upgrade, CONNECT) nothing is forwarded before the upstream has
//!   answered it: only the answer says what those bytes are.
//! * A link that drains takes no request while a response is outstanding. The last response gets `connection: close`
//!   (RFC 9112 §9.6), unless its head has left or it opens a tunnel; then the next one gets it.
//! * A response that nobody asked for (a 408 on an idle connection) is forwarded with all that follows it; a request behind
//!   it closes the link. What had come of an unfinished request head is dropped: that is what it is about.

mod body;
mod faults;
mod head;
mod lines;
mod made;
mod requests;
mod responses;
mod scan;
#[cfg(test)]
mod tests;
mod watched;

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::exchange::{Closed, Editor, Fate, Interceptor, Made, Output, PeerEnd, Resume, StreamId};
use requests::Upload;
use responses::Download;
use scan::Scan;

/// Largest head or trailer section: more than common servers take, so that it is they who refuse.
pub const MAX_HEAD: usize = 256 * 1024;
/// Most bytes kept behind a message that waits (plus what one read brings).
pub const MAX_KEPT: usize = 64 * 1024;
/// Most bytes of a message that are read and thrown away so that its connection can stay.
pub const MAX_DRAIN: u64 = 1024 * 1024;
/// Most requests of a connection that wait for their response; further ones are not read.
pub const MAX_QUEUE: usize = 128;

/// Why a message was refused. Nobody can be sure where it ends, so it is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A bare LF, or one behind something else than CR.
    #[error("a line does not end in CRLF")]
    LineEnd,
    /// A head or a trailer section of more than [`MAX_HEAD`] bytes.
    #[error("a head or trailer section exceeds 256 KiB")]
    TooLarge,
    /// Not the grammar: bare CR, obsolete folding, white space before a colon, control characters, another version.
    #[error("a start line or field line is not well-formed")]
    Syntax,
    /// Content-Length together with Transfer-Encoding.
    #[error("both content-length and transfer-encoding")]
    TwoFramings,
    /// Lengths that differ, or that are no numbers.
    #[error("content-length is not one number")]
    Length,
    /// The last transfer coding is not `chunked`, or it is applied twice, or the peer speaks HTTP/1.0.
    #[error("transfer-encoding does not end in chunked")]
    Coding,
    /// A chunk that is not well-formed.
    #[error("a chunk is not well-formed")]
    Chunk,
    /// A 101 that was not asked for.
    #[error("101 without a request to switch")]
    Switch,
}

/// One application connection and its upstream connection, both speaking HTTP/1.x.
#[derive(Debug)]
pub struct Link {
    out: Output,
    /// Ordinal of the last request.
    last: u64,
    queue: VecDeque<Exchange>,
    app: Inbound,
    upstream: Inbound,
    upload: Upload,
    download: Download,
    opaque: bool,
    drain: Drain,
}

/// How far a graceful end of the link has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// Nobody asked for it.
    No,
    /// The last response that is under way, or the next, is to say that the connection closes.
    Wanted,
    /// It has said so: behind it the link ends.
    Announced,
}

/// What has arrived from one peer.
#[derive(Debug, Default)]
struct Inbound {
    /// Bytes that were not taken yet.
    pending: BytesMut,
    /// How far `pending` was searched for the end it waits for.
    scan: Scan,
    /// How the peer's bytes ended.
    end: Option<PeerEnd>,
    /// The end was acted upon.
    ended: bool,
}

/// How many bytes an editor keeps.
#[cfg(any(test, feature = "fuzzing"))]
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) app: usize,
    pub(crate) upstream: usize,
    pub(crate) withheld: usize,
}

impl Inbound {
    /// Puts back what was not taken of `bytes`, in front of nothing.
    fn keep(&mut self, mut bytes: BytesMut, taken: usize) {
        debug_assert!(self.pending.is_empty());
        bytes::Buf::advance(&mut bytes, taken);
        if !bytes.is_empty() {
            self.pending = bytes;
        }
    }
}

/// A request whose response has not ended.
#[derive(Debug)]
struct Exchange {
    /// `None` for a request that was refused: nobody knows of it.
    id: Option<StreamId>,
    head: bool,
    connect: bool,
    /// It asks for another protocol.
    switch: bool,
    h2c: bool,
    /// The application's connection ends after it.
    close: bool,
    reply: Reply,
}

/// Who answers.
#[derive(Debug)]
enum Reply {
    /// The upstream, to which the request was forwarded.
    Upstream,
    /// Nobody knows yet: the request is parked.
    Parked,
    /// The sidecar, when the answer's turn has come and the request has been read (`ready`).
    Made { made: Box<Made>, ready: bool, close: bool },
    /// Nobody.
    Dropped,
}

impl Exchange {
    fn is(&self, stream: StreamId) -> bool {
        self.id == Some(stream)
    }

    fn closed(&self, how: Closed, decide: &mut dyn Interceptor) {
        if let Some(id) = self.id {
            decide.closed(id, how);
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A link on which nothing has happened.
    pub fn new() -> Self {
        Self {
            out: Output::default(),
            last: 0,
            queue: VecDeque::new(),
            app: Inbound::default(),
            upstream: Inbound::default(),
            upload: Upload::Head,
            download: Download::Head,
            opaque: false,
            drain: Drain::No,
        }
    }

    /// How much is kept of what came.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn held(&self) -> Held {
        let withheld = match &self.download {
            Download::Withheld(withheld) => withheld.bytes.len(),
            _ => 0,
        };
        Held { app: self.app.pending.len(), upstream: self.upstream.pending.len(), withheld }
    }

    /// Goes on wherever what happened last has removed an obstacle, until nothing moves.
    fn settle(&mut self, decide: &mut dyn Interceptor) {
        loop {
            let mut moved = false;
            if !self.app.pending.is_empty() {
                let bytes = std::mem::take(&mut self.app.pending);
                let taken = self.take_requests(&bytes, decide);
                self.app.keep(bytes, taken);
                moved |= taken > 0;
            }
            if !self.upstream.pending.is_empty() {
                let bytes = std::mem::take(&mut self.upstream.pending);
                let taken = self.take_responses(&bytes, decide);
                self.upstream.keep(bytes, taken);
                moved |= taken > 0;
            }
            if !moved {
                break;
            }
        }
        self.settle_app_end(decide);
        self.settle_upstream_end(decide);
    }

    /// Sends the answers made here whose turn has come.
    fn answer(&mut self, decide: &mut dyn Interceptor) {
        while let Some(Exchange { head, reply: Reply::Made { made, ready: true, close }, .. }) = self.queue.front() {
            let last = self.drain != Drain::No && self.queue.len() == 1;
            let close = *close || last || self.upstream.end.is_some();
            made::write(made, *head, close, &mut self.out.to_app);
            if let Some(done) = self.queue.pop_front() {
                done.closed(Closed::Complete, decide);
            }
            if close {
                self.fail(Closed::ByFault, Fate::Linger, Fate::Linger, decide);
            }
        }
    }

    /// Ends every exchange and the link.
    fn fail(&mut self, how: Closed, app: Fate, upstream: Fate, decide: &mut dyn Interceptor) {
        self.close_queue(how, decide);
        self.upload = Upload::Stopped;
        self.download = Download::Stopped;
        (self.app.pending, self.upstream.pending) = (BytesMut::new(), BytesMut::new());
        (self.app.ended, self.upstream.ended) = (true, true);
        raise(&mut self.out.app, app);
        raise(&mut self.out.upstream, upstream);
    }

    fn close_queue(&mut self, how: Closed, decide: &mut dyn Interceptor) {
        while let Some(exchange) = self.queue.pop_front() {
            exchange.closed(how, decide);
        }
    }

    /// Both peers are done: nothing further will be taken or sent.
    fn is_over(&self) -> bool {
        matches!((&self.upload, &self.download), (Upload::Stopped, Download::Stopped)) && self.queue.is_empty()
    }

    /// Whether one of the application's messages is parked or dropped, so that its FIN means it gave up.
    fn keeps_app_waiting(&self) -> bool {
        matches!(self.upload, Upload::Parked(_))
            || self.download.is_parked()
            || self.queue.front().is_some_and(|e| matches!(e.reply, Reply::Dropped))
    }

    /// Ends an exchange whose application connection was closed while it waited for what is parked or dropped.
    fn app_gave_up(&mut self, decide: &mut dyn Interceptor) {
        let only_parked =
            matches!(self.upload, Upload::Parked(_)) && !self.download.is_parked() && self.queue.len() > 1;
        if only_parked {
            // Requests before it are in flight; their answers may still be awaited.
            if let Some(parked) = self.queue.pop_back() {
                parked.closed(Closed::ByApplication, decide);
            }
            self.upload = Upload::Stopped;
            self.app.pending = BytesMut::new();
        } else {
            self.fail(Closed::ByApplication, Fate::Close, Fate::Close, decide);
        }
    }
}

impl Editor for Link {
    fn app_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor) {
        if self.app.pending.is_empty() {
            let taken = self.take_requests(input, decide);
            if !self.is_over() {
                self.app.pending.extend_from_slice(&input[taken..]);
            }
        } else {
            self.app.pending.extend_from_slice(input);
        }
        self.settle(decide);
    }

    fn upstream_bytes(&mut self, input: &[u8], decide: &mut dyn Interceptor) {
        if self.upstream.pending.is_empty() {
            let taken = self.take_responses(input, decide);
            if !self.is_over() {
                self.upstream.pending.extend_from_slice(&input[taken..]);
            }
        } else {
            self.upstream.pending.extend_from_slice(input);
        }
        self.settle(decide);
    }

    fn app_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        if self.app.end.is_some() && how == PeerEnd::Eof {
            return;
        }
        self.app.end = Some(how);
        match how {
            PeerEnd::Eof => {
                if self.keeps_app_waiting() {
                    self.app_gave_up(decide);
                }
                self.settle(decide);
            }
            // The direct peer would have got the RST.
            PeerEnd::Broken | PeerEnd::Refused => {
                self.fail(Closed::ByApplication, Fate::Close, Fate::Reset, decide);
            }
        }
    }

    fn upstream_end(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        if self.upstream.end.is_none() || how == PeerEnd::Broken {
            self.upstream.end = Some(how);
            self.upstream.ended &= self.is_over();
            self.settle(decide);
        }
    }

    fn resume(&mut self, stream: StreamId, resume: Resume, decide: &mut dyn Interceptor) {
        let front = self.queue.front().is_some_and(|e| e.is(stream));
        let dropped = front && matches!(self.queue[0].reply, Reply::Dropped);
        match resume {
            Resume::Close if dropped => self.fail(Closed::ByFault, Fate::Linger, Fate::Close, decide),
            Resume::Close => return,
            Resume::Pass | Resume::Act(_) => {
                let act = if let Resume::Act(act) = resume { Some(act) } else { None };
                if front && self.download.is_parked() {
                    self.resume_response(act, decide);
                } else if matches!(self.upload, Upload::Parked(_)) && self.queue.back().is_some_and(|e| e.is(stream)) {
                    self.resume_request(act, decide);
                }
            }
        }
        self.settle(decide);
    }

    fn output(&mut self) -> &mut Output {
        &mut self.out
    }

    fn wants_app(&self) -> bool {
        let most = match self.upload {
            Upload::Stopped => return false,
            Upload::Head if self.takes_request() => MAX_HEAD,
            Upload::Body { .. } | Upload::Discard(_) => MAX_HEAD,
            Upload::Head | Upload::Parked(_) | Upload::Switching | Upload::Tunnel => MAX_KEPT,
        };
        self.app.pending.len() <= most
    }

    fn wants_upstream(&self) -> bool {
        let most = match self.download {
            Download::Stopped => return false,
            _ if self.download.is_parked() => MAX_KEPT,
            _ => MAX_HEAD,
        };
        self.upstream.pending.len() <= most
    }

    fn minds_close(&self) -> bool {
        matches!(self.upload, Upload::Stopped) || self.keeps_app_waiting()
    }

    fn drain(&mut self, _: &mut dyn Interceptor) {
        self.drain = Drain::Wanted;
    }

    fn idle(&self) -> bool {
        self.queue.is_empty()
            && matches!((&self.upload, &self.download), (Upload::Head, Download::Head))
            && self.app.pending.is_empty()
            && self.upstream.pending.is_empty()
    }

    fn opaque(&self) -> bool {
        self.opaque
    }
}

/// Makes a fate at least as final as `to`.
fn raise(fate: &mut Fate, to: Fate) {
    let rank = |fate: Fate| match fate {
        Fate::Open => 0,
        Fate::Fin => 1,
        Fate::Linger => 2,
        Fate::Close => 3,
        Fate::Reset => 4,
    };
    if rank(to) > rank(*fate) {
        *fate = to;
    }
}

/// What the editor does with an act that it was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    /// The fault was carried out.
    Acted,
    /// It cannot be carried out without hitting another request; the message is to be forwarded.
    Pipelined,
}
