//! What is known of one stream: where its two halves stand, its flow-control accounts, and what is kept of it.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use super::flow::Account;
use crate::exchange::Refusal;
use crate::hpack::HeaderList;
use crate::marks::{Cursor, Messages};

/// A direction: towards the upstream (requests) or towards the application (responses).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// The request half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// The head is parked; the upstream knows nothing of the stream.
    Parked,
    /// Passed on.
    Open,
    /// What still comes is thrown away.
    Discarded,
}

/// The response half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    /// No final head yet.
    Awaited,
    /// The head is parked, and what follows it.
    Parked,
    /// Kept back until its end, at most `limit` body octets.
    Withheld { limit: usize },
    /// The head has left or is free to leave.
    Passing,
    /// Parked in mid-body: everything before the mark has left.
    AtMark,
    /// The end is parked; `whole`: so is everything before it.
    EndParked { whole: bool },
    /// Thrown away; the application waits. `drained` octets so far.
    Dropped { drained: usize },
    /// The end has been written.
    Done,
}

/// A part of a message that is kept.
#[derive(Debug)]
pub(crate) enum Part {
    /// A head that is to be stamped when it leaves.
    Head { list: Box<HeaderList>, end: bool },
    /// Body octets without padding. `made`: by the sidecar, not to be stamped.
    Data { octets: Bytes, end: bool, made: bool },
    /// Trailers.
    Trailers { list: Box<HeaderList> },
    /// A header block the sidecar made.
    Made { list: Box<HeaderList>, end: bool },
    /// A frame of an unknown type.
    Extension { kind: u8, flags: u8, payload: Bytes },
    /// The upstream's RST_STREAM.
    Reset { code: u32 },
    /// A reset that is a fault: RST_STREAM, or the end of the whole connection.
    Fault { code: u32, connection: bool },
    /// The upstream's connection ended here.
    Cut,
}

impl Part {
    /// What it costs to keep it, in octets.
    fn weight(&self) -> usize {
        const EACH: usize = 64;
        EACH + match self {
            Self::Head { list, .. } | Self::Trailers { list } | Self::Made { list, .. } => 2 * list.size(),
            Self::Data { octets, .. } | Self::Extension { payload: octets, .. } => octets.len(),
            Self::Reset { .. } | Self::Fault { .. } | Self::Cut => 0,
        }
    }

    fn data(&self) -> usize {
        if let Self::Data { octets, .. } = self { octets.len() } else { 0 }
    }

    /// The last part of the message proper.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Self::Trailers { .. } | Self::Data { end: true, .. })
    }

    /// The end of a message that a peer sent.
    pub(crate) fn is_end_of_peer(&self) -> bool {
        matches!(self, Self::Trailers { .. } | Self::Data { end: true, made: false, .. })
    }
}

/// Parts of one direction of a stream that have not left.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    parts: VecDeque<Part>,
    data: usize,
    weight: usize,
    /// The stream is in the connection's list of streams with something to send.
    pub(crate) listed: bool,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Body octets kept.
    pub(crate) fn data(&self) -> usize {
        self.data
    }

    /// What it costs to keep all this, in octets.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) fn front(&self) -> Option<&Part> {
        self.parts.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    pub(crate) fn push(&mut self, part: Part) {
        self.data += part.data();
        self.weight += part.weight();
        self.parts.push_back(part);
    }

    pub(crate) fn pop(&mut self) -> Option<Part> {
        let part = self.parts.pop_front()?;
        self.data -= part.data();
        self.weight -= part.weight();
        Some(part)
    }

    /// Take `n` octets from the front, which is a longer piece of data.
    pub(crate) fn cut(&mut self, n: usize) -> Bytes {
        let Some(Part::Data { octets, .. }) = self.parts.front_mut() else {
            unreachable!("only data is cut");
        };
        self.data -= n;
        self.weight -= n;
        octets.split_to(n)
    }

    /// Forget everything from the end of the message on.
    pub(crate) fn drop_end(&mut self) {
        while self.parts.iter().any(Part::ends) {
            if let Some(part) = self.parts.pop_back() {
                self.data -= part.data();
                self.weight -= part.weight();
            }
        }
    }

    /// All body octets that are kept, and `last` behind them.
    pub(crate) fn content<'a>(&'a self, last: &'a [u8]) -> Cow<'a, [u8]> {
        let pieces = self.parts.iter().filter_map(|part| match part {
            Part::Data { octets, .. } => Some(&octets[..]),
            _ => None,
        });
        let pieces: SmallVec<[&[u8]; 4]> = pieces.chain([last]).filter(|piece| !piece.is_empty()).collect();
        match pieces[..] {
            [] => Cow::Borrowed(&[]),
            [one] => Cow::Borrowed(one),
            _ => Cow::Owned(pieces.concat()),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.parts = VecDeque::new();
        (self.data, self.weight) = (0, 0);
    }
}

/// One stream, from the application's HEADERS until both its halves are over.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Its identifier at the upstream; 0 while the upstream has not seen it.
    pub(crate) upstream: u32,
    /// The upstream counts it as open.
    pub(crate) up_open: bool,
    pub(crate) request: Request,
    pub(crate) response: Response,
    /// END_STREAM came from the application.
    pub(crate) app_ended: bool,
    /// END_STREAM went to the upstream.
    pub(crate) request_sent: bool,
    /// END_STREAM or RST_STREAM came from the upstream.
    pub(crate) up_ended: bool,
    /// [`crate::exchange::Interceptor::response_end`] was called.
    pub(crate) judged: bool,
    /// The messages of the response that have arrived, where a verdict asked for them.
    pub(crate) messages: Option<Messages>,
    /// Marks of the response that are still to be reached. It stands at the first body octet that has not left.
    pub(crate) cursor: Option<Box<Cursor>>,
    pub(crate) head_only: bool,
    pub(crate) connect: bool,
    /// The response cannot carry added trailers: CONNECT, HEAD, 204, 304.
    pub(crate) bare: bool,
    pub(crate) up: Account,
    pub(crate) down: Account,
    pub(crate) up_queue: Queue,
    pub(crate) down_queue: Queue,
}

impl Stream {
    pub(crate) fn account(&mut self, way: Way) -> &mut Account {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    pub(crate) fn queue(&mut self, way: Way) -> &mut Queue {
        match way {
            Way::Up => &mut self.up_queue,
            Way::Down => &mut self.down_queue,
        }
    }

    /// Nothing of this direction may leave.
    pub(crate) fn is_held(&self, way: Way) -> bool {
        match way {
            Way::Up => self.request == Request::Parked,
            Way::Down => matches!(
                self.response,
                Response::Parked | Response::AtMark | Response::Withheld { .. } | Response::EndParked { whole: true }
            ),
        }
    }

    /// A decision or a person waits for this stream: it is parked, withheld or dropped.
    pub(crate) fn is_faulted(&self) -> bool {
        self.request == Request::Parked
            || matches!(
                self.response,
                Response::Parked | Response::AtMark | Response::EndParked { .. } | Response::Dropped { .. }
            )
    }

    /// The front of the queue may not leave.
    pub(crate) fn is_blocked(&self, way: Way) -> bool {
        self.is_held(way)
            || (way == Way::Down
                && matches!(self.response, Response::EndParked { .. })
                && self.down_queue.front().is_some_and(Part::ends))
    }

    /// Whether what comes of the response's body is looked into.
    pub(crate) fn is_watched(&self) -> bool {
        self.messages.is_some() || self.cursor.is_some() || matches!(self.response, Response::Withheld { .. })
    }

    /// Why this withheld response cannot be kept back with `octets` more body octets, which are counted already.
    pub(crate) fn overflows(&self, octets: usize, limit: usize) -> Option<Refusal> {
        if self.messages.is_some_and(|messages| messages.begun() > 1) {
            Some(Refusal::Stream)
        } else if self.down_queue.data() + octets > limit {
            Some(Refusal::Size)
        } else {
            None
        }
    }

    /// Whether a mark stands before or in `content`, which is to leave next.
    pub(crate) fn has_mark_in(&self, content: &[u8]) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.free(content) < content.len())
    }

    /// Octets of the response's body have left.
    pub(crate) fn left(&mut self, content: &[u8]) {
        if let Some(cursor) = &mut self.cursor {
            cursor.pass(content);
        }
    }

    /// Body octets that may leave as soon as the connection's window has room.
    pub(crate) fn sendable(&self, way: Way) -> usize {
        if self.is_held(way) {
            return 0;
        }
        let (queue, account) = match way {
            Way::Up => (&self.up_queue, &self.up),
            Way::Down => (&self.down_queue, &self.down),
        };
        let mut free = queue.data();
        if way == Way::Down && matches!(self.response, Response::EndParked { .. }) {
            free -= queue.iter().filter(|part| part.ends()).map(Part::data).sum::<usize>();
        }
        free.min(account.room.max(0) as usize)
    }

    /// Body octets kept that the stream's sender is not to be granted again.
    pub(crate) fn owed(&self, way: Way) -> usize {
        match way {
            Way::Up => self.up_queue.data(),
            Way::Down if matches!(self.response, Response::Withheld { .. }) => 0,
            Way::Down => self.down_queue.data(),
        }
    }
}
