//! A link whose bytes nobody reads: both directions pass, each end passes on its own.
//!
//! The first bytes of a TLS client are looked at as they pass, for the name of the server: it says which calls cannot be
//! seen. The link counts as opaque as soon as that is known.

use crate::exchange::{Editor, Fate, Interceptor, Output, PeerEnd, Resume, StreamId};
use crate::tls::{self, Hello};

/// An application connection and its upstream connection, speaking anything.
#[derive(Debug, Default)]
pub(super) struct Link {
    out: Output,
    peeked: Peeked,
    /// The application has said something.
    spoken: bool,
}

/// What is known of a TLS client.
#[derive(Debug)]
enum Peeked {
    /// Nothing yet; what it has sent.
    Hello(Vec<u8>),
    /// Which server it wants, if it is one and says so.
    Known(Option<Box<str>>),
}

impl Default for Peeked {
    fn default() -> Self {
        Peeked::Hello(Vec::new())
    }
}

impl Link {
    fn peek(&mut self, input: &[u8]) {
        let Peeked::Hello(seen) = &mut self.peeked else { return };
        let room = tls::MAX_HELLO.saturating_sub(seen.len());
        seen.extend_from_slice(&input[..input.len().min(room)]);
        if let Hello::Known(name) = tls::hello(seen) {
            self.peeked = Peeked::Known(name.map(String::into_boxed_str));
        }
    }

    /// Whatever comes now, it is no hello.
    fn stop_peeking(&mut self) {
        if let Peeked::Hello(_) = self.peeked {
            self.peeked = Peeked::Known(None);
        }
    }
}

impl Editor for Link {
    fn app_bytes(&mut self, input: &[u8], _: &mut dyn Interceptor) {
        self.spoken |= !input.is_empty();
        self.peek(input);
        self.out.to_upstream.extend_from_slice(input);
    }

    fn upstream_bytes(&mut self, input: &[u8], _: &mut dyn Interceptor) {
        self.stop_peeking();
        self.out.to_app.extend_from_slice(input);
    }

    fn app_end(&mut self, how: PeerEnd, _: &mut dyn Interceptor) {
        self.stop_peeking();
        match how {
            PeerEnd::Eof => self.out.upstream = Fate::Fin,
            PeerEnd::Broken | PeerEnd::Refused => (self.out.app, self.out.upstream) = (Fate::Close, Fate::Reset),
        }
    }

    fn upstream_end(&mut self, how: PeerEnd, _: &mut dyn Interceptor) {
        // A client whose upstream refused may still be saying hello.
        if how != PeerEnd::Refused {
            self.stop_peeking();
        }
        match how {
            PeerEnd::Eof => self.out.app = Fate::Fin,
            PeerEnd::Broken | PeerEnd::Refused => (self.out.app, self.out.upstream) = (Fate::Reset, Fate::Close),
        }
    }

    fn resume(&mut self, _: StreamId, _: Resume, _: &mut dyn Interceptor) {}

    fn output(&mut self) -> &mut Output {
        &mut self.out
    }

    fn wants_app(&self) -> bool {
        true
    }

    fn wants_upstream(&self) -> bool {
        true
    }

    fn opaque(&self) -> bool {
        matches!(self.peeked, Peeked::Known(_))
    }

    fn silent(&self) -> bool {
        !self.spoken
    }

    fn server_name(&self) -> Option<&str> {
        match &self.peeked {
            Peeked::Known(name) => name.as_deref(),
            Peeked::Hello(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::hello_for;

    /// Opaque links ask nobody.
    struct Nobody;

    impl Interceptor for Nobody {
        fn request(&mut self, _: StreamId, _: &crate::exchange::RequestHead<'_>) -> crate::exchange::Verdict {
            unreachable!()
        }

        fn response(&mut self, _: StreamId, _: &crate::exchange::ResponseHead<'_>) -> crate::exchange::Verdict {
            unreachable!()
        }

        fn response_end(&mut self, _: StreamId, _: &crate::exchange::Tail<'_>) -> crate::exchange::Verdict {
            unreachable!()
        }

        fn stamp(&mut self, _: StreamId, _: crate::exchange::Part) -> crate::exchange::Edits {
            unreachable!()
        }

        fn refused(&mut self, _: StreamId, _: crate::exchange::Refusal) {
            unreachable!()
        }

        fn closed(&mut self, _: StreamId, _: crate::exchange::Closed) {
            unreachable!()
        }
    }

    #[test]
    fn a_hello_in_pieces_passes_piece_by_piece_and_is_known_at_its_end() {
        let hello = hello_for("db.example");
        let mut link = Link::default();
        for (at, byte) in hello.iter().enumerate() {
            link.app_bytes(&[*byte], &mut Nobody);
            assert_eq!(link.out.to_upstream.len(), at + 1, "nothing is kept back");
        }
        assert!(link.opaque());
        assert_eq!((link.server_name(), &link.out.to_upstream[..]), (Some("db.example"), &hello[..]));
    }

    #[test]
    fn what_is_no_hello_is_known_by_the_first_byte_or_when_the_other_side_speaks_or_somebody_ends() {
        let begun = |begin: &[u8]| {
            let mut link = Link::default();
            link.app_bytes(begin, &mut Nobody);
            link
        };
        assert!(begun(b"*1").opaque());
        let hello = hello_for("db.example");
        let mut answered = begun(&hello[..50]);
        assert!(!answered.opaque());
        answered.upstream_bytes(b"?", &mut Nobody);
        assert!(answered.opaque() && answered.server_name().is_none());
        let mut ended = begun(&hello[..50]);
        ended.app_end(PeerEnd::Eof, &mut Nobody);
        assert!(ended.opaque());
    }

    #[test]
    fn a_connection_is_silent_until_the_application_speaks_whoever_greets_it() {
        let mut link = Link::default();
        link.upstream_bytes(b"220 ready\r\n", &mut Nobody);
        assert!(link.opaque() && link.silent());
        link.app_bytes(b"EHLO c\r\n", &mut Nobody);
        assert!(!link.silent());
    }
}
