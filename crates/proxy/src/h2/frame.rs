//! Frames (RFC 9113 §4, §6): constants, headers, and a reader that finds their boundaries in a byte stream.
//!
//! Invariants of the reader: its answers do not depend on how the bytes were split, and it never keeps more than one frame
//! of at most [`MAX_KEPT`] octets. A DATA frame larger than [`PIECE`] is given out in pieces of that size as they arrive,
//! so that a peer that allows frames of 16 MiB costs no memory here; an extension frame larger than [`MAX_KEPT`] is skipped
//! (RFC 9113 §5.5 lets anybody discard those).

use bytes::{BufMut, BytesMut};

/// The client's connection preface (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Octets of a frame header.
pub(crate) const HEADER: usize = 9;
/// The smallest SETTINGS_MAX_FRAME_SIZE there is, and the largest piece of DATA that is handled at once.
pub(crate) const PIECE: usize = 16_384;
/// The largest frame that is kept to be handled as a whole: header blocks, SETTINGS, GOAWAY, extensions.
pub(crate) const MAX_KEPT: usize = 65_536;

/// Frame types (RFC 9113 §6, RFC 9218 §7.1).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const PRIORITY_UPDATE: u8 = 16;
}

/// Frame flags.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Error codes (RFC 9113 §7).
pub(crate) mod code {
    pub(crate) const NO_ERROR: u32 = 0;
    pub(crate) const PROTOCOL_ERROR: u32 = 1;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
    pub(crate) const STREAM_CLOSED: u32 = 5;
    pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
    pub(crate) const REFUSED_STREAM: u32 = 7;
    pub(crate) const CANCEL: u32 = 8;
    pub(crate) const COMPRESSION_ERROR: u32 = 9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
}

/// A peer broke the protocol: the code of the GOAWAY it gets, and what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} (error code {code})")]
pub(crate) struct Violation {
    pub(crate) code: u32,
    pub(crate) what: &'static str,
}

impl Violation {
    pub(crate) fn new(code: u32, what: &'static str) -> Self {
        Self { code, what }
    }

    pub(crate) fn protocol(what: &'static str) -> Self {
        Self::new(code::PROTOCOL_ERROR, what)
    }

    pub(crate) fn size(what: &'static str) -> Self {
        Self::new(code::FRAME_SIZE_ERROR, what)
    }

    pub(crate) fn calm(what: &'static str) -> Self {
        Self::new(code::ENHANCE_YOUR_CALM, what)
    }
}

/// One frame, or one piece of a large DATA frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    /// As received, padding included; of a large DATA frame without padding.
    pub(crate) payload: &'a [u8],
    /// Octets that count for flow control but are not in `payload`: the padding of a large DATA frame.
    pub(crate) stripped: usize,
}

impl<'a> Frame<'a> {
    /// The payload without padding (RFC 9113 §6.1, §6.2).
    pub(crate) fn unpadded(&self) -> Result<&'a [u8], Violation> {
        if self.flags & flag::PADDED == 0 {
            return Ok(self.payload);
        }
        let (len, rest) = self.payload.split_first().ok_or(Violation::size("padded frame without a length"))?;
        let kept = rest.len().checked_sub(usize::from(*len)).ok_or(Violation::protocol("more padding than payload"))?;
        Ok(&rest[..kept])
    }

    /// The payload as exactly `N` octets.
    pub(crate) fn exactly<const N: usize>(&self) -> Result<[u8; N], Violation> {
        self.payload.try_into().map_err(|_| Violation::size("wrong length of a frame of fixed length"))
    }
}

pub(crate) fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().expect("four octets"))
}

/// Append a frame header.
pub(crate) fn put_header(out: &mut BytesMut, len: usize, kind: u8, flags: u8, stream: u32) {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&((len as u32) << 8 | u32::from(kind)).to_be_bytes());
    header[4] = flags;
    header[5..].copy_from_slice(&stream.to_be_bytes());
    out.put_slice(&header);
}

/// Append a whole frame.
pub(crate) fn put(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEADER + payload.len());
    put_header(out, payload.len(), kind, flags, stream);
    out.put_slice(payload);
}

pub(crate) fn put_reset(out: &mut BytesMut, stream: u32, code: u32) {
    put(out, kind::RST_STREAM, 0, stream, &code.to_be_bytes());
}

pub(crate) fn put_window_update(out: &mut BytesMut, stream: u32, increment: u32) {
    put(out, kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

/// Append a header block as HEADERS and as many CONTINUATION as `max` (the receiver's SETTINGS_MAX_FRAME_SIZE) asks for.
pub(crate) fn put_headers(out: &mut BytesMut, stream: u32, end: bool, block: &[u8], max: usize) {
    let end = if end { flag::END_STREAM } else { 0 };
    out.reserve(HEADER + block.len());
    if block.len() <= max {
        return put(out, kind::HEADERS, end | flag::END_HEADERS, stream, block);
    }
    let (first, rest) = block.split_at(max);
    put(out, kind::HEADERS, end, stream, first);
    let mut fragments = rest.chunks(max).peekable();
    while let Some(fragment) = fragments.next() {
        let flags = if fragments.peek().is_none() { flag::END_HEADERS } else { 0 };
        put(out, kind::CONTINUATION, flags, stream, fragment);
    }
}

/// A DATA frame larger than [`PIECE`] that is being given out in pieces.
#[derive(Debug, Clone, Copy)]
struct Large {
    stream: u32,
    end: bool,
    left: usize,
    stripped: usize,
    padding: usize,
}

/// Finds frames in the bytes of one peer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The beginning of a unit (preface, frame, piece) whose rest is yet to come.
    partial: Vec<u8>,
    /// `partial` was given out as a whole.
    used: bool,
    /// Octets to be skipped.
    skip: usize,
    large: Option<Large>,
    /// The preface is still to come.
    preface: bool,
}

impl Reader {
    /// A reader that expects the client's preface first.
    pub(crate) fn with_preface() -> Self {
        Self { preface: true, ..Self::default() }
    }

    /// Whether the preface and a whole number of frames were read.
    pub(crate) fn between_frames(&self) -> bool {
        !self.preface && (self.partial.is_empty() || self.used) && self.skip == 0 && self.large.is_none()
    }

    /// Octets kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.partial.capacity()
    }

    /// `n` octets, if they are there; else what is there is kept.
    fn unit<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], n: usize) -> Option<&'a [u8]> {
        if self.partial.is_empty() && input.len() >= n {
            let (unit, rest) = input.split_at(n);
            *input = rest;
            return Some(unit);
        }
        if !self.fill(input, n) {
            return None;
        }
        self.used = true;
        Some(&self.partial)
    }

    /// Fill `partial` up to `n` octets; whether they are all there.
    fn fill(&mut self, input: &mut &[u8], n: usize) -> bool {
        let missing = n.saturating_sub(self.partial.len()).min(input.len());
        let (taken, rest) = input.split_at(missing);
        self.partial.extend_from_slice(taken);
        *input = rest;
        self.partial.len() >= n
    }

    /// The first `N` octets of the next unit without consuming them.
    fn peek<const N: usize>(&mut self, input: &mut &[u8]) -> Option<[u8; N]> {
        let octets = if self.partial.is_empty() && input.len() >= N {
            input
        } else if self.fill(input, N) {
            &self.partial[..]
        } else {
            return None;
        };
        octets.first_chunk().copied()
    }

    /// Forget `n` octets that [`Reader::peek`] showed.
    fn consume(&mut self, input: &mut &[u8], n: usize) {
        if self.partial.is_empty() {
            *input = &input[n..];
        } else {
            self.partial.clear();
        }
    }

    fn done(&mut self) {
        if self.used {
            self.used = false;
            self.partial.clear();
            if self.partial.capacity() > 2 * PIECE {
                self.partial = Vec::new();
            }
        }
    }

    /// Take the preface off `input`, where one is expected; whether it has just become complete. To be called before
    /// [`Reader::next`].
    pub(crate) fn greet(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        if !self.preface {
            return Ok(false);
        }
        let expected = &PREFACE[self.partial.len()..];
        let comparable = expected.len().min(input.len());
        if input[..comparable] != expected[..comparable] {
            return Err(Violation::protocol("no connection preface"));
        }
        if !self.fill(input, PREFACE.len()) {
            return Ok(false);
        }
        self.preface = false;
        self.partial.clear();
        Ok(true)
    }

    /// The next frame, of at most `max_frame` octets; `None` when `input` is used up.
    pub(crate) fn next<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        max_frame: usize,
    ) -> Result<Option<Frame<'a>>, Violation> {
        self.done();
        if self.preface {
            return Ok(None);
        }
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(input.len());
                *input = &input[skipped..];
                self.skip -= skipped;
                if self.skip > 0 {
                    return Ok(None);
                }
            }
            if self.large.is_some() {
                return Ok(self.piece(input));
            }
            let Some(header) = self.peek::<HEADER>(input) else { return Ok(None) };
            let len = (u32_at(&header, 0) >> 8) as usize;
            let (kind, flags, stream) = (header[3], header[4], u32_at(&header, 5) & 0x7fff_ffff);
            if len > max_frame {
                return Err(Violation::size("frame larger than SETTINGS_MAX_FRAME_SIZE"));
            }
            if kind == kind::DATA && len > PIECE {
                let mut large =
                    Large { stream, end: flags & flag::END_STREAM != 0, left: len, stripped: 0, padding: 0 };
                let mut consumed = HEADER;
                if flags & flag::PADDED != 0 {
                    consumed += 1;
                    let Some(octets) = self.peek::<{ HEADER + 1 }>(input) else { return Ok(None) };
                    large.padding = usize::from(octets[HEADER]);
                    large.stripped = large.padding + 1;
                    // Cannot underflow: a padding has at most 255 octets, this frame more than a piece.
                    large.left -= large.stripped;
                }
                self.consume(input, consumed);
                self.large = Some(large);
            } else if len > MAX_KEPT {
                match kind {
                    kind::HEADERS | kind::CONTINUATION => return Err(Violation::calm("header block too large")),
                    0..=kind::CONTINUATION => return Err(Violation::size("control frame too large")),
                    _ => {
                        self.consume(input, HEADER);
                        self.skip = len;
                    }
                }
            } else {
                let unit = self.unit(input, HEADER + len);
                return Ok(unit.map(|u| Frame { kind, flags, stream, payload: &u[HEADER..], stripped: 0 }));
            }
        }
    }

    fn piece<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Frame<'a>> {
        let large = self.large?;
        let len = large.left.min(PIECE);
        // Whether the piece is there is decided before the state changes: `unit` borrows the reader to the end.
        if self.partial.len() + input.len() < len {
            self.fill(input, len);
            return None;
        }
        let last = len == large.left;
        self.large = (!last).then(|| Large { left: large.left - len, stripped: 0, ..large });
        if last {
            self.skip = large.padding;
        }
        let flags = if last && large.end { flag::END_STREAM } else { 0 };
        let stripped = large.stripped;
        self.unit(input, len).map(|payload| Frame { kind: kind::DATA, flags, stream: large.stream, payload, stripped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kept = (u8, u8, u32, Vec<u8>, usize);

    fn read(input: &[u8], chunk: usize, max_frame: usize) -> (Vec<Kept>, Option<Violation>) {
        let mut reader = Reader::with_preface();
        let mut frames = Vec::new();
        for mut part in input.chunks(chunk) {
            if let Err(violation) = reader.greet(&mut part) {
                return (frames, Some(violation));
            }
            loop {
                match reader.next(&mut part, max_frame) {
                    Ok(Some(f)) => frames.push((f.kind, f.flags, f.stream, f.payload.to_vec(), f.stripped)),
                    Ok(None) => break,
                    Err(violation) => return (frames, Some(violation)),
                }
            }
            assert!(part.is_empty());
            assert!(reader.kept() <= 2 * MAX_KEPT);
        }
        (frames, None)
    }

    fn sample() -> BytesMut {
        let mut wire = BytesMut::from(&PREFACE[..]);
        put(&mut wire, kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
        put(&mut wire, kind::DATA, flag::PADDED, 1, &[2, b'x', 0, 0]);
        let mut padded = vec![9];
        padded.extend((0..40_000).map(|i| i as u8));
        padded.extend([0; 9]);
        put(&mut wire, kind::DATA, flag::PADDED | flag::END_STREAM, 3, &padded);
        put(&mut wire, 0x42, 7, 5, &vec![1; MAX_KEPT + 1]);
        put(&mut wire, kind::DATA, flag::END_STREAM, 5, &vec![7; PIECE * 2]);
        put(&mut wire, kind::PING, 0, 0, b"12345678");
        wire
    }

    #[test]
    fn frames_do_not_depend_on_how_the_bytes_were_split() {
        let wire = sample();
        let whole = read(&wire, wire.len(), 1 << 20);
        let lengths: Vec<(u8, usize, usize)> = whole.0.iter().map(|f| (f.0, f.3.len(), f.4)).collect();
        assert_eq!(
            lengths,
            [
                (kind::SETTINGS, 6, 0),
                (kind::DATA, 4, 0),
                (kind::DATA, PIECE, 10),
                (kind::DATA, PIECE, 0),
                (kind::DATA, 40_000 - 2 * PIECE, 0),
                (kind::DATA, PIECE, 0),
                (kind::DATA, PIECE, 0),
                (kind::PING, 8, 0)
            ]
        );
        assert_eq!(whole.0.iter().map(|f| f.1).collect::<Vec<_>>(), [0, 8, 0, 0, 1, 0, 1, 0]);
        let joined: Vec<u8> = whole.0[2..5].iter().flat_map(|f| f.3.clone()).collect();
        assert!(joined.iter().enumerate().all(|(i, b)| *b == i as u8));
        for chunk in [1, 2, 3, 7, 8, 9, 10, 11, 100, PIECE - 1, PIECE, PIECE + 9, PIECE + 10] {
            assert!(read(&wire, chunk, 1 << 20) == whole, "chunks of {chunk}");
        }
        for at in 0..200 {
            let (head, tail) = wire.split_at(at);
            let mut reader = Reader::with_preface();
            let mut count = 0;
            for mut part in [head, tail] {
                reader.greet(&mut part).unwrap();
                while let Some(frame) = reader.next(&mut part, 1 << 20).unwrap() {
                    assert_eq!(frame.payload, whole.0[count].3);
                    count += 1;
                }
            }
            assert_eq!(count, whole.0.len());
        }
    }

    #[test]
    fn wrong_prefaces_and_oversized_frames_are_violations() {
        assert_eq!(read(b"GET / HTTP/1.1\r\n", 1, PIECE).1.unwrap().code, code::PROTOCOL_ERROR);
        assert_eq!(read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", 5, PIECE).1.unwrap().code, code::PROTOCOL_ERROR);
        let wire = sample();
        let (frames, violation) = read(&wire, 1000, PIECE);
        assert_eq!((frames.len(), violation.unwrap().code), (2, code::FRAME_SIZE_ERROR));
        let mut wire = BytesMut::from(&PREFACE[..]);
        put(&mut wire, kind::HEADERS, 0, 1, &vec![0; MAX_KEPT + 1]);
        assert_eq!(read(&wire, 1000, 1 << 20).1.unwrap().code, code::ENHANCE_YOUR_CALM);
    }

    #[test]
    fn padding_is_taken_off_or_refused() {
        let frame = |payload| Frame { kind: 0, flags: flag::PADDED, stream: 1, payload, stripped: 0 };
        assert_eq!(frame(&[2, b'a', 0, 0]).unpadded().unwrap(), b"a");
        assert_eq!(frame(&[0]).unpadded().unwrap(), b"");
        assert_eq!(frame(&[1]).unpadded().unwrap_err().code, code::PROTOCOL_ERROR);
        assert_eq!(frame(&[]).unpadded().unwrap_err().code, code::FRAME_SIZE_ERROR);
    }

    #[test]
    fn a_block_is_split_at_the_receivers_frame_size() {
        let block: Vec<u8> = (0..40_000).map(|i| i as u8).collect();
        for (len, frames) in [(0, 1), (16_384, 1), (16_385, 2), (32_768, 2), (40_000, 3)] {
            let mut wire = BytesMut::new();
            put_headers(&mut wire, 7, true, &block[..len], 16_384);
            let mut reader = Reader::default();
            let mut input = &wire[..];
            let mut joined = Vec::new();
            let mut count = 0;
            while let Some(frame) = reader.next(&mut input, PIECE).unwrap() {
                assert_eq!(frame.kind, if count == 0 { kind::HEADERS } else { kind::CONTINUATION });
                assert_eq!(frame.flags & flag::END_STREAM != 0, count == 0);
                count += 1;
                assert_eq!(frame.flags & flag::END_HEADERS != 0, count == frames);
                joined.extend_from_slice(frame.payload);
            }
            assert_eq!((count, &joined[..]), (frames, &block[..len]));
        }
    }
}
