//! Places in the body of a response, for both editors: byte positions and the beginnings of gRPC messages.
//!
//! A gRPC body is a sequence of length-prefixed messages (PROTOCOL-HTTP2, "Length-Prefixed-Message"): a flag of one byte,
//! a length of four in network order, and so many bytes. Nothing but the prefixes is looked at, and messages may lie across
//! DATA frames, chunks and reads in any way. "Content" below is the body without padding and chunk framing.
//!
//! Two things are kept apart, because they may be at different places of one body: [`Messages`] counts what has arrived,
//! [`Cursor`] stands where the next byte is to leave.

use crate::exchange::{Fields, Mark, Marks};

/// Bytes before a message: flag and length.
const PREFIX: u8 = 5;

/// Whether a body consists of length-prefixed messages: `application/grpc`, with or without subtype and parameters.
/// gRPC-Web is left out: its trailers are one more frame of the body, and its text form is none of this at all.
pub(crate) fn is_grpc(fields: &Fields<'_>) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some(value) = fields.all("content-type").next() else { return false };
    let Some((start, rest)) = value.split_at_checked(TYPE.len()) else { return false };
    start.eq_ignore_ascii_case(TYPE) && matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..])
}

/// Counts the messages of a gRPC body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Messages {
    begun: u64,
    /// Bytes of the current prefix that were seen; 0 outside of one.
    prefix: u8,
    /// The length as far as it was read; behind the prefix, what is still to come of the message.
    left: u32,
}

impl Messages {
    /// How many messages have begun: their first byte was passed.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// The next byte is the first of a message.
    fn is_between(&self) -> bool {
        self.prefix == 0 && self.left == 0
    }

    /// Passes content up to the end of a message or of `content`, at least one byte; how many bytes.
    fn step(&mut self, content: &[u8]) -> usize {
        let mut at = 0;
        if self.is_between() {
            self.begun += 1;
        }
        if self.prefix > 0 || self.left == 0 {
            for byte in &content[..content.len().min(usize::from(PREFIX - self.prefix))] {
                if self.prefix > 0 {
                    self.left = self.left << 8 | u32::from(*byte);
                }
                self.prefix += 1;
                at += 1;
            }
            if self.prefix < PREFIX {
                return at;
            }
            self.prefix = 0;
        }
        let some = (content.len() - at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= some as u32;
        at + some
    }

    /// Passes content.
    pub(crate) fn pass(&mut self, content: &[u8]) {
        let mut at = 0;
        while at < content.len() {
            at += self.step(&content[at..]);
        }
    }

    /// How many bytes of `content` come before the first byte of message `n`, if it begins there.
    pub(crate) fn until(mut self, n: u64, content: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < content.len() && self.begun < n {
            if self.is_between() && self.begun + 1 == n {
                return Some(at);
            }
            at += self.step(&content[at..]);
        }
        None
    }
}

/// A place in a body, and the marks that are still to be reached.
#[derive(Debug)]
pub(crate) struct Cursor {
    marks: Marks,
    bytes: u64,
    messages: Messages,
}

impl Cursor {
    /// Stands at the start of a body; `None` if no mark can be reached in it.
    pub(crate) fn new(mut marks: Marks, grpc: bool) -> Option<Self> {
        marks.retain(|mark| match mark {
            Mark::Message(n) => grpc && *n > 0,
            Mark::Bytes(_) => true,
        });
        (!marks.is_empty()).then(|| Self { marks, bytes: 0, messages: Messages::default() })
    }

    /// Whether every mark was reached.
    pub(crate) fn is_spent(&self) -> bool {
        self.marks.is_empty()
    }

    /// Takes a mark that stands here. It is reached if there is another byte of content, which the caller knows.
    pub(crate) fn due(&mut self) -> Option<Mark> {
        let at = self.marks.iter().position(|mark| match mark {
            Mark::Message(n) => self.messages.is_between() && self.messages.begun() + 1 == u64::from(*n),
            Mark::Bytes(n) => self.bytes == *n,
        })?;
        Some(self.marks.remove(at))
    }

    /// How many bytes of `content` lie before the next mark.
    pub(crate) fn free(&self, content: &[u8]) -> usize {
        let before = |mark: &Mark| match mark {
            Mark::Message(n) => self.messages.until(u64::from(*n), content),
            Mark::Bytes(n) => n.checked_sub(self.bytes).and_then(|before| usize::try_from(before).ok()),
        };
        self.marks.iter().filter_map(before).fold(content.len(), usize::min)
    }

    /// Passes content that has left.
    pub(crate) fn pass(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        self.messages.pass(content);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(lengths: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let (mut body, mut starts) = (Vec::new(), Vec::new());
        for length in lengths {
            starts.push(body.len());
            body.push(0);
            body.extend_from_slice(&(*length as u32).to_be_bytes());
            body.resize(body.len() + length, 0xff);
        }
        (body, starts)
    }

    proptest! {
        /// The oracle knows where the messages start because it wrote them.
        #[test]
        fn marks_stand_where_messages_and_bytes_are_however_the_body_is_cut(
            lengths in prop::collection::vec(prop_oneof![Just(0usize), Just(1), 2..20usize, Just(300)], 0..6),
            cuts in prop::collection::vec(1..40usize, 0..30),
            marks in prop::collection::vec(
                prop_oneof![(0..8u32).prop_map(Mark::Message), (0..60u64).prop_map(Mark::Bytes)], 0..5),
        ) {
            let (body, starts) = body(&lengths);
            let place = |mark: &Mark| match mark {
                Mark::Message(n) => (*n as usize).checked_sub(1).and_then(|n| starts.get(n)).copied(),
                Mark::Bytes(n) => Some(*n as usize).filter(|n| *n < body.len()),
            };
            let mut expected: Vec<_> = marks.iter().filter_map(|mark| Some((place(mark)?, *mark))).collect();
            expected.sort_by_key(|(at, _)| *at);
            let mut reached = Vec::new();
            let (mut at, mut count) = (0, Messages::default());
            let mut cursor = Cursor::new(marks.iter().copied().collect(), true);
            let mut cuts = cuts.into_iter();
            while at < body.len() {
                let piece = &body[at..body.len().min(at + cuts.next().unwrap_or(usize::MAX / 2))];
                count.pass(piece);
                prop_assert_eq!(count.begun() as usize, starts.iter().filter(|s| **s < at + piece.len()).count());
                let mut sent = 0;
                while sent < piece.len() {
                    let Some(cursor) = &mut cursor else { break };
                    if let Some(mark) = cursor.due() {
                        reached.push((at + sent, mark));
                        continue;
                    }
                    let free = cursor.free(&piece[sent..]);
                    prop_assert!(free > 0, "a mark that is not due is further on");
                    cursor.pass(&piece[sent..sent + free]);
                    sent += free;
                }
                at += piece.len();
            }
            prop_assert_eq!(reached, expected);
        }
    }

    #[test]
    fn a_mark_of_a_message_means_nothing_where_there_are_none() {
        let marks = || [Mark::Message(1), Mark::Message(0)].into_iter().collect();
        assert!(Cursor::new(marks(), false).is_none());
        assert!(Cursor::new(Marks::from_slice(&[Mark::Message(0)]), true).is_none());
        assert!(Cursor::new(marks(), true).is_some());
    }

    #[test]
    fn only_grpc_itself_has_messages() {
        for (value, grpc) in [
            ("application/grpc", true),
            ("Application/gRPC+proto", true),
            ("application/grpc; charset=x", true),
            ("application/grpc-web+proto", false),
            ("application/grpcx", false),
            ("application/json", false),
            ("text", false),
        ] {
            let fields = Fields(vec![(&b"Content-Type"[..], value.as_bytes())]);
            assert_eq!(is_grpc(&fields), grpc, "{value}");
        }
        assert!(!is_grpc(&Fields::default()));
    }
}
