//! A decider that lets everything pass: what the editors cost alone.

use std::time::Instant;

use aftershock_proxy::exchange::{
    Closed, Decider, Door, Edits, Interceptor, LinkId, Part, Refusal, RequestHead, ResponseHead, Resume, StreamId,
    Tail, Verdict,
};

/// See the module.
#[derive(Default)]
pub(crate) struct Pass {
    links: u64,
}

impl Interceptor for Pass {
    fn request(&mut self, _: StreamId, _: &RequestHead<'_>) -> Verdict {
        Verdict::Pass
    }

    fn response(&mut self, _: StreamId, _: &ResponseHead<'_>) -> Verdict {
        Verdict::Pass
    }

    fn response_end(&mut self, _: StreamId, _: &Tail<'_>) -> Verdict {
        Verdict::Pass
    }

    fn stamp(&mut self, _: StreamId, _: Part) -> Edits {
        Edits::new()
    }

    fn refused(&mut self, _: StreamId, _: Refusal) {}

    fn closed(&mut self, _: StreamId, _: Closed) {}
}

impl Decider for Pass {
    fn opened(&mut self, _: Door) -> LinkId {
        self.links += 1;
        LinkId(self.links)
    }

    fn intercept(&mut self, _: LinkId, _: Instant, call: &mut dyn FnMut(&mut dyn Interceptor)) {
        call(self);
    }

    fn gone(&mut self, _: LinkId) {}

    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)> {
        Vec::new()
    }

    fn opaque(&mut self, _: LinkId, _: Option<&str>) {}
}
