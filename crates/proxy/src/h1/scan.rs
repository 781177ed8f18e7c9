//! Finding line ends (RFC 9112 §2.2, §5, §7.1).
//!
//! Invariant: every line that passed ends in CRLF. A bare LF is refused as soon as it is seen, before the head is
//! complete, so that a peer which only sends LF gets its answer instead of a wait. A bare CR inside a line is refused by
//! the parser of that line.

use super::Malformed;

/// Where looking for the end of a block of lines stopped, so that no byte of a complete line is looked at twice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scan {
    /// Start of the first line that is not known to be complete.
    line: usize,
    /// A line with text was seen; until then empty lines are skipped (RFC 9112 §2.2).
    text: bool,
}

impl Scan {
    /// Length of `input` up to and including the first CRLF; `None` if it has none yet.
    pub(super) fn line(input: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(lf) = memchr::memchr(b'\n', input) else { return Ok(None) };
        if lf == 0 || input[lf - 1] != b'\r' {
            return Err(Malformed::LineEnd);
        }
        Ok(Some(lf + 1))
    }

    /// Length of `input` up to and including the empty line that ends a head.
    pub(super) fn head(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        loop {
            let Some(length) = Self::line(&input[self.line..])? else { return Ok(None) };
            self.line += length;
            if length > 2 {
                self.text = true;
            } else if self.text {
                return Ok(Some(self.line));
            }
        }
    }

    /// Length of `input` up to and including the empty line that ends a trailer section, whose field lines start at
    /// `from`.
    pub(super) fn trailers(&mut self, input: &[u8], from: usize) -> Result<Option<usize>, Malformed> {
        self.line = self.line.max(from);
        self.text = true;
        self.head(input)
    }

    /// Starts over, at the beginning of the next block.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_found_wherever_it_was_split() {
        let head = b"\r\nGET / HTTP/1.1\r\na: b\r\n\r\nrest";
        let mut scan = Scan::default();
        for end in 0..25 {
            assert_eq!(scan.head(&head[..end]), Ok(None), "at {end}");
        }
        assert_eq!(scan.head(&head[..26]), Ok(Some(26)));
    }

    #[test]
    fn a_bare_line_feed_is_refused_at_once() {
        assert_eq!(Scan::default().head(b"GET / HTTP/1.1\n"), Err(Malformed::LineEnd));
        assert_eq!(Scan::default().head(b"\n"), Err(Malformed::LineEnd));
        assert_eq!(Scan::default().head(b"GET / HTTP/1.1\r\na: b\n\r\n"), Err(Malformed::LineEnd));
    }
}
