//! Faults and the ends of waiting.

use bytes::Bytes;

use super::Link;
use super::frame::{self, code};
use super::stream::{Part, Request, Response, Way};
use crate::exchange::{Act, Closed, Interceptor, Made, Refusal, Resume, StreamId};
use crate::hpack::{HeaderList, Indexing};

impl Link {
    /// A fault instead of a request: nothing of it goes up.
    pub(super) fn act_on_request(&mut self, id: u32, act: Act, decide: &mut dyn Interceptor) {
        self.discard(Way::Up, id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request = Request::Discarded;
        }
        self.act(id, act, decide);
    }

    /// A fault instead of a response of which nothing has left. A dropped one keeps its request going; else the upstream's
    /// half is drained or cancelled.
    pub(super) fn act_on_response(&mut self, id: u32, act: Act, decide: &mut dyn Interceptor) {
        self.discard(Way::Down, id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.cursor = None;
        }
        if act == Act::Drop {
            self.set_response(id, Response::Dropped { drained: 0 });
            return self.settle_stream(Way::Down, id);
        }
        self.detach(id);
        self.act(id, act, decide);
    }

    fn act(&mut self, id: u32, act: Act, decide: &mut dyn Interceptor) {
        match act {
            Act::Drop => self.set_response(id, Response::Dropped { drained: 0 }),
            Act::Reset { code, connection } => self.reset(id, code, connection, decide),
            Act::Answer(made) => self.answer(id, &made, decide),
        }
    }

    /// Reset the application's stream, or its whole connection with everything on it.
    pub(super) fn reset(&mut self, id: u32, code: u32, connection: bool, decide: &mut dyn Interceptor) {
        if connection {
            return self.reset_connection(decide);
        }
        frame::put_reset(self.sink(Way::Down), id, code);
        self.finish(id, Closed::ByFault, decide);
    }

    fn answer(&mut self, id: u32, made: &Made, decide: &mut dyn Interceptor) {
        let body =
            if self.streams.get(&id).is_some_and(|stream| stream.head_only) { Bytes::new() } else { made.body.clone() };
        let mut list = HeaderList::default();
        list.push(b":status", made.status.to_string().as_bytes(), Indexing::Incremental);
        for (name, value) in &made.fields {
            list.push(name.as_bytes(), value.as_bytes(), Indexing::Without);
        }
        self.set_response(id, Response::Passing);
        self.keep(Way::Down, id, Part::Made { list: Box::new(list), end: body.is_empty() });
        if !body.is_empty() {
            self.keep(Way::Down, id, Part::Data { octets: body, end: true, made: true });
        }
        self.flush(Way::Down, id, decide);
    }

    /// A fault instead of the end of a response; of the `whole` response if nothing of it has left. `false` if it cannot
    /// be done: the end is then to pass.
    pub(super) fn act_on_end(&mut self, id: u32, act: Act, whole: bool, decide: &mut dyn Interceptor) -> bool {
        if whole {
            self.act_on_response(id, act, decide);
            return true;
        }
        let part = match act {
            Act::Drop => None,
            Act::Reset { code, connection } => Some(Part::Fault { code, connection }),
            Act::Answer(made) => match self.made_end(id, &made, decide) {
                None => return false,
                end => end,
            },
        };
        self.discard_end(id);
        match part {
            None => self.set_response(id, Response::Dropped { drained: 0 }),
            Some(part) => {
                self.set_response(id, Response::Passing);
                self.keep(Way::Down, id, part);
            }
        }
        self.flush(Way::Down, id, decide);
        true
    }

    /// A fault in mid-body, at a mark. Nothing is kept but what lies behind it. `false` if it cannot be done: the response
    /// is then to go on.
    pub(super) fn act_at_mark(&mut self, id: u32, act: Act, decide: &mut dyn Interceptor) -> bool {
        let end = match act {
            Act::Drop => {
                self.act_on_response(id, Act::Drop, decide);
                return true;
            }
            Act::Reset { code, connection } => Part::Fault { code, connection },
            Act::Answer(made) => match self.made_end(id, &made, decide) {
                None => return false,
                Some(end) => end,
            },
        };
        // The stream has ended for the application; its other half is not to stay open.
        self.cancel_upstream(id, code::CANCEL);
        self.discard(Way::Up, id);
        self.discard(Way::Down, id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request = Request::Discarded;
            stream.up_ended = true;
            stream.cursor = None;
        }
        self.set_response(id, Response::Passing);
        self.keep(Way::Down, id, end);
        self.flush(Way::Down, id, decide);
        true
    }

    /// A made answer as the end of a response whose head has left.
    fn made_end(&mut self, id: u32, made: &Made, decide: &mut dyn Interceptor) -> Option<Part> {
        let bare = self.streams.get(&id).is_none_or(|stream| stream.bare);
        let Some(trailers) = made.trailers.as_ref().filter(|trailers| !bare && !trailers.is_empty()) else {
            decide.refused(StreamId(id.into()), Refusal::TooLate);
            return None;
        };
        let mut list = HeaderList::default();
        for (name, value) in trailers {
            list.push(name.as_bytes(), value.as_bytes(), Indexing::Without);
        }
        Some(Part::Made { list: Box::new(list), end: true })
    }

    /// See [`crate::exchange::Editor::resume`].
    pub(super) fn resume_stream(&mut self, id: u32, resume: Resume, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get(&id) else { return };
        match (resume, stream.request, stream.response) {
            (Resume::Close, _, Response::Dropped { .. }) => {
                self.detach(id);
                frame::put_reset(self.sink(Way::Down), id, code::CANCEL);
                self.finish(id, Closed::ByFault, decide);
            }
            (Resume::Close, ..) | (_, _, Response::Dropped { .. }) => {}
            (Resume::Pass, Request::Parked, _) => self.release_request(id, decide),
            (Resume::Act(act), Request::Parked, _) => self.act_on_request(id, act, decide),
            (Resume::Pass, _, Response::Parked | Response::AtMark | Response::EndParked { .. }) => {
                self.release_response(id, decide);
            }
            (Resume::Act(act), _, Response::AtMark) => {
                if !self.act_at_mark(id, act, decide) {
                    self.release_response(id, decide);
                }
            }
            (Resume::Act(act), _, Response::Parked) => self.act_on_response(id, act, decide),
            (Resume::Act(act), _, Response::EndParked { whole }) => {
                if !self.act_on_end(id, act, whole, decide) {
                    self.release_response(id, decide);
                }
            }
            (Resume::Pass, ..) => {}
            (Resume::Act(_), ..) => decide.refused(StreamId(id.into()), Refusal::TooLate),
        }
    }
}
