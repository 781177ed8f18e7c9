//! The body of every request and answer: 1 KiB, one gRPC message as well, that tells its own from others.
//!
//! An answer repeats the tag of its request, so that a client knows an answer that is somebody else's. A request says what
//! answer it wants, since the origin looks at nothing else of it.

/// The size of all bodies.
pub(crate) const BODY: usize = 1024;
/// The prefix of a gRPC message: not compressed, and the length of the rest.
const PREFIX: [u8; 5] = [0, 0, 0, 0x03, 0xfb];
/// Prefix, answer and tag.
pub(crate) const TAGGED: usize = PREFIX.len() + 9;
static FILLER: [u8; BODY - TAGGED] = [b'x'; BODY - TAGGED];

/// How a request wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Answer {
    /// HTTP/1.1: with a length. HTTP/2: as unary gRPC, with trailers.
    #[default]
    Usual,
    /// HTTP/1.1: in chunks. HTTP/2: without trailers.
    Other,
    /// HTTP/1.1: as `Usual`, and the connection is closed behind it.
    Last,
}

impl Answer {
    fn octet(self) -> u8 {
        match self {
            Answer::Usual => b'u',
            Answer::Other => b'o',
            Answer::Last => b'l',
        }
    }

    fn of(octet: u8) -> Option<Self> {
        [Answer::Usual, Answer::Other, Answer::Last].into_iter().find(|answer| answer.octet() == octet)
    }
}

/// What a body begins with.
pub(crate) fn head(answer: Answer, tag: u64) -> [u8; TAGGED] {
    let mut head = [0; TAGGED];
    head[..PREFIX.len()].copy_from_slice(&PREFIX);
    head[PREFIX.len()] = answer.octet();
    head[PREFIX.len() + 1..].copy_from_slice(&tag.to_be_bytes());
    head
}

/// Reads what a body begins with.
pub(crate) fn read_head(head: &[u8]) -> Option<(Answer, u64)> {
    let (answer, tag) = head.get(..TAGGED)?.strip_prefix(&PREFIX)?.split_first()?;
    Some((Answer::of(*answer)?, u64::from_be_bytes(tag.try_into().ok()?)))
}

/// Writes a whole body.
pub(crate) fn write(answer: Answer, tag: u64, output: &mut Vec<u8>) {
    output.extend_from_slice(&head(answer, tag));
    output.extend_from_slice(&FILLER);
}

/// Reads a whole body.
pub(crate) fn read(body: &[u8]) -> Option<(Answer, u64)> {
    let (head, filler) = body.split_at_checked(TAGGED)?;
    if filler != FILLER {
        return None;
    }
    read_head(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        for answer in [Answer::Usual, Answer::Other, Answer::Last] {
            let mut body = Vec::new();
            write(answer, 0x0102_0304_0506_0708, &mut body);
            assert_eq!(body.len(), BODY);
            assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, BODY - 5, "one gRPC message");
            assert_eq!(read(&body), Some((answer, 0x0102_0304_0506_0708)));
            assert_eq!(read(&body[..BODY - 1]), None);
            for at in [0, 4, 5, TAGGED, BODY - 1] {
                let mut changed = body.clone();
                changed[at] ^= 0x80;
                assert_eq!(read(&changed), None, "octet {at}");
            }
        }
    }
}
