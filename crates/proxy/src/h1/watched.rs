//! Bodies that a decision looks into: kept back to their end, or forwarded up to a mark.

use bytes::BytesMut;

use super::body::{Body, End, Piece, walk};
use super::responses::{Download, Kept};
use super::{MAX_KEPT, Malformed, Scan};
use crate::exchange::{Mark, Refusal};
use crate::marks::{Cursor, Messages};

/// A response that is kept back; `head.body` is what is still to come.
#[derive(Debug)]
pub(super) struct Withheld {
    pub(super) head: Kept,
    pub(super) bytes: BytesMut,
    payload: usize,
    limit: usize,
    pub(super) messages: Option<Messages>,
    /// Content before the second message, if that has begun.
    second: Option<usize>,
}

impl Withheld {
    /// A response of which nothing but the head has come.
    pub(super) fn new(head: Kept, limit: usize, messages: Option<Messages>) -> Self {
        Self { head, bytes: BytesMut::new(), payload: 0, limit, messages, second: None }
    }

    /// Framing counts too: chunks of one byte must not be a way to make us keep thousands of times the limit.
    fn is_full(&self) -> bool {
        self.payload > self.limit || self.bytes.len() > self.limit.saturating_mul(2).saturating_add(MAX_KEPT)
    }

    /// Keeps as much of the body as there is, up to its end or just beyond the limit; how many bytes.
    pub(super) fn take(&mut self, bytes: &[u8], scan: &mut Scan) -> (usize, Result<End, Malformed>) {
        let Some(body) = &mut self.head.body else { return (0, Ok(None)) };
        let allowed = self.limit.saturating_sub(self.payload).saturating_add(1);
        let (messages, second, payload) = (&mut self.messages, &mut self.second, &mut self.payload);
        let (moved, end) = walk(body, bytes, scan, allowed, |content| {
            if let Some(messages) = messages {
                *second = second.or_else(|| messages.until(2, content).map(|before| *payload + before));
                messages.pass(content);
            }
            *payload += content.len();
        });
        self.bytes.extend_from_slice(&bytes[..moved.wire]);
        if let (Some(messages), Ok(Some((wire, _)))) = (&self.messages, &end) {
            let last = body.content_of_end(&bytes[moved.wire..][..*wire]);
            self.second = self.second.or_else(|| messages.until(2, last).map(|before| self.payload + before));
        }
        (moved.wire, end)
    }

    /// Why it cannot be kept back any longer: whichever comes first in the body.
    pub(super) fn overflow(&self) -> Option<Refusal> {
        if self.second.is_some_and(|before| before <= self.limit) {
            Some(Refusal::Stream)
        } else {
            self.is_full().then_some(Refusal::Size)
        }
    }

    /// The whole body, which ends with `end`, without framing.
    pub(super) fn content(&self, end: &[u8]) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.payload + 1);
        match &self.head.body {
            Some(Body::Chunked(_)) => {
                let (_, walked) = walk(&mut Body::chunked(), &self.bytes, &mut Scan::default(), usize::MAX, |bytes| {
                    content.extend(bytes)
                });
                debug_assert_eq!(walked, Ok(None), "the end is not among what is kept");
            }
            Some(body) => content.extend(self.bytes.iter().chain(body.content_of_end(end))),
            None => {}
        }
        content
    }
}

/// What is looked at in a body that is forwarded.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) messages: Option<Messages>,
    pub(super) cursor: Option<Cursor>,
}

/// A body that is forwarded and looked at.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) body: Body,
    pub(super) watch: Watch,
}

/// Where a walk over a watched body stopped.
pub(super) enum Stop {
    /// Before a byte at which a mark stands.
    Mark(Mark),
    /// Before the end, or where nothing more can be said without more bytes.
    End(End),
}

impl Watched {
    /// Steps over as much of the body as there is, up to a mark or its end; how many bytes may leave.
    pub(super) fn walk(&mut self, bytes: &[u8], scan: &mut Scan) -> (usize, Result<Stop, Malformed>) {
        let mut at = 0;
        loop {
            let mut rest = &bytes[at..];
            let content = self.body.content(rest);
            if content > 0
                && let Some(cursor) = &mut self.watch.cursor
            {
                if let Some(mark) = cursor.due() {
                    return (at, Ok(Stop::Mark(mark)));
                }
                let free = cursor.free(&rest[..content]);
                if free < content {
                    rest = &rest[..free];
                }
            }
            match self.body.step(rest, scan) {
                Ok(Piece::Some { wire, payload }) => {
                    self.watch.pass(&rest[..payload]);
                    at += wire;
                }
                Ok(Piece::End { wire, trailers }) => {
                    self.watch.pass(self.body.content_of_end(&rest[..wire]));
                    return (at, Ok(Stop::End(Some((wire, trailers)))));
                }
                Ok(Piece::More) => return (at, Ok(Stop::End(None))),
                Err(why) => return (at, Err(why)),
            }
        }
    }
}

impl Watch {
    fn pass(&mut self, content: &[u8]) {
        if let Some(messages) = &mut self.messages {
            messages.pass(content);
        }
        if let Some(cursor) = &mut self.cursor {
            cursor.pass(content);
        }
    }

    /// `body`, looked at if there is anything to look for.
    pub(super) fn over(self, body: Body) -> Download {
        if self.messages.is_none() && self.cursor.is_none() {
            Download::Body(body)
        } else {
            Download::Watched(Box::new(Watched { body, watch: self }))
        }
    }
}
