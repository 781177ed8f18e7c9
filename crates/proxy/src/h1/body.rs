//! Where a message ends (RFC 9112 §6.3, §7.1).
//!
//! A body is walked over the bytes as they came; nothing is decoded, nothing is copied. The *end* of a message is told
//! apart from what goes before it, because it is what makes the message complete: the last byte of a body of known length,
//! the last chunk with its trailers, the close. So a fault at the end of a response leaves out exactly that, however the
//! bytes were cut into reads.

use super::Malformed;
use super::scan::Scan;

/// Longest chunk-size line with its extensions, CRLF included.
const MAX_CHUNK_LINE: usize = 8 * 1024;
/// Longest last chunk with its trailer section.
const MAX_TRAILERS: usize = super::MAX_HEAD;

/// How the rest of a message is delimited.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// So many bytes are still to come, at least one.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// Everything up to the end of the connection; responses only.
    UntilClose,
}

/// Where in a chunked body the next byte stands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Chunk {
    /// At a chunk-size line.
    #[default]
    Size,
    /// In the data of a chunk with so many bytes to come, at least one.
    Bytes(u64),
    /// At the CRLF behind the data.
    DataEnd,
    /// At the size line of the last chunk, of this length.
    Last(usize),
}

/// A step over a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes before the end, `payload` of them content.
    Some { wire: usize, payload: usize },
    /// The end: so many bytes, of which the trailer's field lines and the empty line behind them start at `trailers`.
    End { wire: usize, trailers: usize },
    /// Nothing more can be said without more bytes.
    More,
}

impl Body {
    /// A body of `length` bytes; `None` if there is nothing to come.
    pub(super) fn of_length(length: u64) -> Option<Self> {
        (length > 0).then_some(Self::Length(length))
    }

    /// A chunked body from its start.
    pub(super) fn chunked() -> Self {
        Self::Chunked(Chunk::Size)
    }

    /// Takes one step over `input`, which starts where the last step ended. `scan` belongs to this body.
    pub(super) fn step(&mut self, input: &[u8], scan: &mut Scan) -> Result<Piece, Malformed> {
        if input.is_empty() {
            return Ok(Piece::More);
        }
        match self {
            Self::UntilClose => Ok(Piece::Some { wire: input.len(), payload: input.len() }),
            Self::Length(1) => Ok(Piece::End { wire: 1, trailers: 1 }),
            Self::Length(left) => {
                let wire = input.len().min(usize::try_from(*left - 1).unwrap_or(usize::MAX));
                *left -= wire as u64;
                Ok(Piece::Some { wire, payload: wire })
            }
            Self::Chunked(chunk) => chunk.step(input, scan),
        }
    }

    /// How many bytes of `input`, which starts where the last step ended, are content before the next framing; the last
    /// byte of a body of known length is one of them, although it is also its end.
    pub(super) fn content(&self, input: &[u8]) -> usize {
        match self {
            Self::UntilClose => input.len(),
            Self::Length(left) | Self::Chunked(Chunk::Bytes(left)) => {
                input.len().min(usize::try_from(*left).unwrap_or(usize::MAX))
            }
            Self::Chunked(_) => 0,
        }
    }

    /// What of `end`, the end of this body, is content.
    pub(super) fn content_of_end<'a>(&self, end: &'a [u8]) -> &'a [u8] {
        if matches!(self, Self::Length(_)) { end } else { &[] }
    }

    /// Whether `input`, which starts where the last step ended, goes on behind this message. A message that ends with the
    /// connection has nothing behind it, nor has one that is not complete or that is malformed.
    pub(super) fn has_more_behind(&self, input: &[u8]) -> bool {
        let (mut body, mut scan, mut at) = (self.clone(), Scan::default(), 0);
        loop {
            match body.step(&input[at..], &mut scan) {
                Ok(Piece::Some { wire, .. }) => at += wire,
                Ok(Piece::End { wire, .. }) => return input.len() > at + wire,
                Ok(Piece::More) | Err(_) => return false,
            }
        }
    }
}

/// Where a message ends: length of the end, and where in it the trailers start.
pub(super) type End = Option<(usize, usize)>;

/// How far a walk over a body went.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) wire: usize,
    pub(super) payload: usize,
}

/// Steps over as much of a body as there is, up to its end or until more than `payload` bytes of content were passed, which
/// go to `content`; the end itself is not counted in what was moved.
pub(super) fn walk(
    body: &mut Body,
    bytes: &[u8],
    scan: &mut Scan,
    payload: usize,
    mut content: impl FnMut(&[u8]),
) -> (Moved, Result<End, Malformed>) {
    let mut moved = Moved::default();
    loop {
        match body.step(&bytes[moved.wire..], scan) {
            Ok(Piece::Some { wire, payload }) => {
                content(&bytes[moved.wire..][..payload]);
                moved.wire += wire;
                moved.payload += payload;
            }
            Ok(Piece::End { wire, trailers }) => return (moved, Ok(Some((wire, trailers)))),
            Ok(Piece::More) => return (moved, Ok(None)),
            Err(why) => return (moved, Err(why)),
        }
        if moved.payload >= payload {
            return (moved, Ok(None));
        }
    }
}

impl Chunk {
    fn step(&mut self, input: &[u8], scan: &mut Scan) -> Result<Piece, Malformed> {
        match *self {
            Self::Size => {
                let Some(line) = Scan::line(input)? else {
                    return if input.len() > MAX_CHUNK_LINE { Err(Malformed::Chunk) } else { Ok(Piece::More) };
                };
                if line > MAX_CHUNK_LINE {
                    return Err(Malformed::Chunk);
                }
                match chunk_size(&input[..line - 2])? {
                    0 => {
                        *self = Self::Last(line);
                        self.step(input, scan)
                    }
                    size => {
                        *self = Self::Bytes(size);
                        Ok(Piece::Some { wire: line, payload: 0 })
                    }
                }
            }
            Self::Bytes(left) => {
                let wire = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                *self = if wire as u64 == left { Self::DataEnd } else { Self::Bytes(left - wire as u64) };
                Ok(Piece::Some { wire, payload: wire })
            }
            Self::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    *self = Self::Size;
                    Ok(Piece::Some { wire: 2, payload: 0 })
                }
                [b'\r'] => Ok(Piece::More),
                _ => Err(Malformed::Chunk),
            },
            Self::Last(trailers) => match scan.trailers(input, trailers)? {
                Some(wire) if wire <= MAX_TRAILERS => {
                    scan.reset();
                    Ok(Piece::End { wire, trailers })
                }
                None if input.len() <= MAX_TRAILERS => Ok(Piece::More),
                _ => Err(Malformed::TooLarge),
            },
        }
    }
}

/// The size in a chunk-size line without its CRLF: `1*HEXDIG`, then nothing but white space or an extension. Sixteen
/// digits and more are refused: no peer sends them, and implementations disagree where they overflow.
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    if digits.is_empty() || digits.len() > 15 {
        return Err(Malformed::Chunk);
    }
    let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    let extension = &rest[blanks..];
    if !extension.is_empty() && extension[0] != b';' {
        return Err(Malformed::Chunk);
    }
    if extension.iter().any(|b| (*b < b' ' && *b != b'\t') || *b == 0x7f) {
        return Err(Malformed::Chunk);
    }
    let digits = std::str::from_utf8(digits).expect("hexadecimal digits are ASCII");
    u64::from_str_radix(digits, 16).map_err(|_| Malformed::Chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks `input` in reads of `size` bytes; content bytes, length of the end, bytes behind the end.
    fn walk(mut body: Body, input: &[u8], size: usize) -> Result<Option<(usize, usize, usize)>, Malformed> {
        let (mut scan, mut at, mut known, mut content) = (Scan::default(), 0, 0, 0);
        loop {
            match body.step(&input[at..known], &mut scan)? {
                Piece::Some { wire, payload } => {
                    at += wire;
                    content += payload;
                }
                Piece::End { wire, .. } => return Ok(Some((content, wire, input.len() - at - wire))),
                Piece::More if known == input.len() => return Ok(None),
                Piece::More => known = input.len().min(known + size),
            }
        }
    }

    #[test]
    fn the_end_of_a_body_does_not_depend_on_how_it_was_cut() {
        let chunked = b"5;a=\"b\"\r\nhello\r\n0a\r\n0123456789\r\n000;x\r\nt: v\r\n\r\nNEXT";
        for size in 1..chunked.len() {
            assert_eq!(walk(Body::chunked(), chunked, size), Ok(Some((15, 15, 4))), "reads of {size}");
            assert_eq!(walk(Body::Length(7), chunked, size), Ok(Some((6, 1, chunked.len() - 7))));
        }
        assert_eq!(walk(Body::chunked(), b"0\r\n\r\n", 1), Ok(Some((0, 5, 0))));
        assert_eq!(walk(Body::UntilClose, b"abc", 1), Ok(None));
    }

    #[test]
    fn chunks_that_readers_disagree_about_are_refused() {
        for bad in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\n",
            b" 5\r\n",
            b"5 5\r\n",
            b"5;a\nhello",
            b"5\nhello",
            b"5;a\rb\r\n",
            b"5\r\nhelloworld",
            b"5\r\nhello\n",
            b"1000000000000000\r\n",
            b"ffffffffffffffffffff\r\n",
            b"0\r\nt: v\n\r\n",
            b"0\r\nt: v\r\n\n",
        ] {
            assert!(walk(Body::chunked(), bad, bad.len()).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn chunk_lines_and_trailers_are_bounded() {
        let mut line = b"5;".to_vec();
        line.resize(MAX_CHUNK_LINE + 1, b'a');
        assert_eq!(walk(Body::chunked(), &line, 1000), Err(Malformed::Chunk));
        let mut trailers = b"0\r\n".to_vec();
        while trailers.len() <= MAX_TRAILERS {
            trailers.extend_from_slice(b"a: b\r\n");
        }
        assert_eq!(walk(Body::chunked(), &trailers, 1000), Err(Malformed::TooLarge));
    }

    #[test]
    fn what_lies_behind_a_message_is_seen_without_consuming_it() {
        assert!(Body::Length(3).has_more_behind(b"abcG"));
        assert!(!Body::Length(3).has_more_behind(b"abc"));
        assert!(!Body::Length(3).has_more_behind(b"ab"));
        assert!(Body::chunked().has_more_behind(b"1\r\na\r\n0\r\n\r\nG"));
        assert!(!Body::chunked().has_more_behind(b"1\r\na\r\n0\r\n\r\n"));
    }
}
