//! A link whose bytes nobody reads: both directions pass, each end passes on its own.

use crate::exchange::{Editor, Fate, Interceptor, Output, PeerEnd, Resume, StreamId};

/// An application connection and its upstream connection, speaking anything.
#[derive(Debug, Default)]
pub(super) struct Link {
    out: Output,
}

impl Editor for Link {
    fn app_bytes(&mut self, input: &[u8], _: &mut dyn Interceptor) {
        self.out.to_upstream.extend_from_slice(input);
    }

    fn upstream_bytes(&mut self, input: &[u8], _: &mut dyn Interceptor) {
        self.out.to_app.extend_from_slice(input);
    }

    fn app_end(&mut self, how: PeerEnd, _: &mut dyn Interceptor) {
        match how {
            PeerEnd::Eof => self.out.upstream = Fate::Fin,
            PeerEnd::Broken | PeerEnd::Refused => (self.out.app, self.out.upstream) = (Fate::Close, Fate::Reset),
        }
    }

    fn upstream_end(&mut self, how: PeerEnd, _: &mut dyn Interceptor) {
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
}
