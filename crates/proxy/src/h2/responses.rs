//! Frames of the upstream that belong to a stream: responses, their ends, resets.

use super::frame::{self, Frame, Violation, code, flag, kind};
use super::head;
use super::stream::{Part, Request, Response, Way};
use super::{DRAIN_LIMIT, Link, Step};
use crate::exchange::{Interceptor, Mark, StreamId, Tail, Verdict};
use crate::hpack::HeaderList;
use crate::marks::{Cursor, Messages, is_grpc};

/// The last part of a response as it arrived.
#[derive(Clone, Copy)]
enum End<'a> {
    Data { frame: &'a Frame<'a>, data: &'a [u8] },
    Trailers(&'a HeaderList),
}

impl Link {
    /// The application's stream behind one of the upstream's, if it is still known. Idle streams are a connection error.
    pub(super) fn upstream_stream(&self, upstream: u32) -> Result<Option<u32>, Violation> {
        if self.ids.is_idle(upstream) {
            return Err(Violation::protocol("a frame on an idle stream"));
        }
        Ok(self.ids.app(upstream))
    }

    pub(super) fn response_block(
        &mut self,
        upstream: u32,
        end: bool,
        list: &HeaderList,
        decide: &mut dyn Interceptor,
    ) -> Step {
        self.upstream.budget = super::CONTROL_BUDGET.max(self.upstream.budget);
        let Some(id) = self.upstream_stream(upstream)? else {
            self.late(upstream, end, list, decide);
            self.drain_off(upstream, 0, end);
            return Ok(());
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if stream.up_ended {
            self.stream_error(Way::Down, id, code::STREAM_CLOSED, decide);
            return Ok(());
        }
        match stream.response {
            Response::Awaited => return self.response_head(id, end, list, decide),
            Response::Dropped { .. } => {
                if end {
                    stream.up_ended = true;
                    self.close_upstream_half(id);
                }
            }
            _ if end && head::trailers(list).is_ok() => self.response_ends(id, End::Trailers(list), decide),
            _ => self.stream_error(Way::Down, id, code::PROTOCOL_ERROR, decide),
        }
        Ok(())
    }

    /// A header block of a stream that the application gave up: its fields are still true. Told once.
    fn late(&mut self, upstream: u32, end: bool, list: &HeaderList, decide: &mut dyn Interceptor) {
        let Some(at) = self.abandoned.iter().position(|(id, _)| *id == upstream) else { return };
        let fields = match head::response(list, end) {
            Ok(head) if head.status < 200 => return,
            Ok(head) => Some(head.fields),
            Err(_) => head::trailers(list).ok(),
        };
        if let (Some((_, id)), Some(fields)) = (self.abandoned.remove(at), fields) {
            decide.late(StreamId(id.into()), &fields);
        }
    }

    fn response_head(&mut self, id: u32, end: bool, list: &HeaderList, decide: &mut dyn Interceptor) -> Step {
        let head = match head::response(list, end) {
            Ok(head) if head.status >= 200 => head,
            Ok(_) if !end => {
                // Informational: passes, and is no event.
                self.put_list(Way::Down, id, list, false);
                return Ok(());
            }
            _ => {
                self.stream_error(Way::Down, id, code::PROTOCOL_ERROR, decide);
                return Ok(());
            }
        };
        let bare = matches!(head.status, 204 | 304);
        let verdict = decide.response(StreamId(id.into()), &head);
        let grpc = matches!(verdict, Verdict::Withhold { .. } | Verdict::Watch(_)) && is_grpc(&head.fields);
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.bare |= bare;
        stream.up_ended = end;
        let tunnel = stream.connect && (200..300).contains(&head.status);
        if grpc && !end && !tunnel {
            stream.messages = Some(Messages::default());
        }
        self.close_upstream_half(id);
        let kept = |list: &HeaderList| Part::Head { list: Box::new(list.clone()), end };
        match verdict {
            Verdict::Park => {
                self.set_response(id, Response::Parked);
                self.keep(Way::Down, id, kept(list));
            }
            // A response that ends here has no later end to wait for, and a tunnel has no outcome.
            Verdict::Withhold { limit } if !end && !tunnel => {
                self.set_response(id, Response::Withheld { limit });
                self.keep(Way::Down, id, kept(list));
            }
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {
                self.set_response(id, Response::Passing);
                if let Verdict::Watch(marks) = verdict
                    && let Some(stream) = self.streams.get_mut(&id).filter(|_| !end && !tunnel)
                {
                    stream.cursor = Cursor::new(marks, grpc).map(Box::new);
                }
                self.put_head(Way::Down, (id, id), list, end, decide);
                if end {
                    self.complete(id, decide);
                }
            }
            Verdict::Act(act) => self.act_on_response(id, act, decide),
        }
        Ok(())
    }

    pub(super) fn set_response(&mut self, id: u32, response: Response) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.response = response;
        }
    }

    pub(super) fn response_data(&mut self, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let octets = frame.payload.len() + frame.stripped;
        if !self.down.receive(octets) {
            return Err(Violation::new(code::FLOW_CONTROL_ERROR, "the connection's window is overrun"));
        }
        let end = frame.flags & flag::END_STREAM != 0;
        let data = frame.unpadded()?;
        let Some(id) = self.upstream_stream(frame.stream)? else {
            self.settle(Way::Down);
            self.drain_off(frame.stream, octets, end);
            return if octets == 0 && !end { self.upstream.spend() } else { Ok(()) };
        };
        let settled = self.app.settings.settled();
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if stream.up_ended || stream.response == Response::Awaited {
            let code = if stream.up_ended { code::STREAM_CLOSED } else { code::PROTOCOL_ERROR };
            self.settle(Way::Down);
            self.stream_error(Way::Down, id, code, decide);
            return Ok(());
        }
        if !stream.down.receive(octets) && settled && octets > 0 {
            return Err(Violation::new(code::FLOW_CONTROL_ERROR, "a stream's window is overrun"));
        }
        // Most responses are nothing but forwarded.
        let watched = stream.is_watched();
        let (mut response, mut marked) = (stream.response, false);
        if octets == 0 && !end {
            self.upstream.spend()?;
        }
        if watched {
            self.look_into(id, data, decide);
            let Some(stream) = self.streams.get(&id) else { return Ok(()) };
            response = stream.response;
            marked = stream.has_mark_in(data);
        }
        if let Response::Dropped { drained } = response {
            self.drop_data(id, drained + octets, end);
        } else if end {
            self.response_ends(id, End::Data { frame, data }, decide);
        } else if response == Response::Passing && !marked && frame.stripped == 0 && self.fits(Way::Down, id, octets) {
            self.spent(Way::Down, id, octets);
            if watched {
                self.left(id, data);
            }
            frame::put(&mut self.out.to_app, kind::DATA, frame.flags, id, frame.payload);
        } else {
            self.keep_data(Way::Down, id, data, false);
            self.flush(Way::Down, id, decide);
        }
        Ok(())
    }

    /// Count what has come of a body, and release a withheld one that is not what it was taken for.
    fn look_into(&mut self, id: u32, content: &[u8], decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(messages) = &mut stream.messages {
            messages.pass(content);
        }
        if let Response::Withheld { limit } = stream.response
            && let Some(why) = stream.overflows(content.len(), limit)
        {
            decide.refused(StreamId(id.into()), why);
            self.set_response(id, Response::Passing);
            self.flush(Way::Down, id, decide);
        }
    }

    /// Body octets of a response have left that were never kept.
    fn left(&mut self, id: u32, content: &[u8]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.left(content);
        }
    }

    /// Octets of a response that the application is not to get.
    fn drop_data(&mut self, id: u32, drained: usize, end: bool) {
        self.set_response(id, Response::Dropped { drained });
        self.settle(Way::Down);
        if end {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.up_ended = true;
            }
            self.close_upstream_half(id);
        } else if drained > DRAIN_LIMIT {
            self.discard(Way::Up, id);
            self.cancel_upstream(id, code::CANCEL);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.request = Request::Discarded;
            }
        } else {
            self.settle_stream(Way::Down, id);
        }
    }

    /// The response has arrived to its end.
    fn response_ends(&mut self, id: u32, end: End<'_>, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.up_ended = true;
        let last = if let End::Data { data, .. } = end { data } else { &[] };
        let behind_marks = stream.cursor.is_some() && (!stream.down_queue.is_empty() || stream.has_mark_in(last));
        let parked = matches!(stream.response, Response::Parked | Response::AtMark);
        let whole = matches!(stream.response, Response::Withheld { .. });
        self.close_upstream_half(id);
        if parked || behind_marks {
            // Judged when what is before it has been released.
            self.keep_end(id, end);
            return self.flush(Way::Down, id, decide);
        }
        match self.judge(id, end, whole, decide) {
            Verdict::Park => {
                self.set_response(id, Response::EndParked { whole });
                self.keep_end(id, end);
            }
            Verdict::Act(act) => {
                self.settle(Way::Down);
                if !self.act_on_end(id, act, whole, decide) {
                    self.pass_end(id, end, decide);
                }
            }
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => self.pass_end(id, end, decide),
        }
    }

    /// `whole`: all that came before the end is kept.
    fn judge(&mut self, id: u32, end: End<'_>, whole: bool, decide: &mut dyn Interceptor) -> Verdict {
        let Some(stream) = self.streams.get_mut(&id) else { return Verdict::Pass };
        stream.judged = true;
        let messages = stream.messages.map(|messages| messages.begun());
        let last = if let End::Data { data, .. } = end { data } else { &[] };
        let body = whole.then(|| stream.down_queue.content(last));
        let trailers = if let End::Trailers(list) = end { head::trailers(list).ok() } else { None };
        decide.response_end(StreamId(id.into()), &Tail { trailers, body: body.as_deref(), messages })
    }

    fn keep_end(&mut self, id: u32, end: End<'_>) {
        match end {
            End::Trailers(list) => self.keep(Way::Down, id, Part::Trailers { list: Box::new(list.clone()) }),
            End::Data { data, .. } => self.keep_data(Way::Down, id, data, true),
        }
        self.settle(Way::Down);
    }

    /// Write the end of a response, at once if nothing is in its way.
    fn pass_end(&mut self, id: u32, end: End<'_>, decide: &mut dyn Interceptor) {
        if self.streams.get(&id).is_some_and(|stream| stream.response == Response::Passing) {
            match end {
                End::Trailers(list) if self.fits(Way::Down, id, 0) => {
                    self.put_trailers(Way::Down, (id, id), list, decide);
                    return self.complete(id, decide);
                }
                End::Data { frame, .. } if frame.stripped == 0 && self.fits(Way::Down, id, frame.payload.len()) => {
                    self.spent(Way::Down, id, frame.payload.len());
                    self.put_last_data(Way::Down, (id, id), frame.flags, frame.payload, decide);
                    return self.complete(id, decide);
                }
                _ => {}
            }
        }
        self.keep_end(id, end);
        self.set_response(id, Response::Passing);
        self.flush(Way::Down, id, decide);
    }

    /// A parked or withheld response goes on from its head.
    pub(super) fn release_response(&mut self, id: u32, decide: &mut dyn Interceptor) {
        self.set_response(id, Response::Passing);
        if let Some(Part::Head { .. }) = self.streams.get(&id).and_then(|stream| stream.down_queue.front())
            && let Some(Part::Head { list, end }) = self.take(Way::Down, id)
        {
            self.put_head(Way::Down, (id, id), &list, end, decide);
            if end {
                self.complete(id, decide);
            }
        }
        self.flush(Way::Down, id, decide);
    }

    /// The next part of a response is about to leave: calls that come before it. `None` if there is nothing to call;
    /// otherwise whether anything moved.
    pub(super) fn come_to(&mut self, id: u32, decide: &mut dyn Interceptor) -> Option<bool> {
        let stream = self.streams.get_mut(&id)?;
        let front = stream.down_queue.front()?;
        if let (Some(cursor), Part::Data { octets, made: false, .. }) = (&mut stream.cursor, front)
            && !octets.is_empty()
        {
            let due = cursor.due();
            let before = cursor.free(octets) < octets.len();
            if cursor.is_spent() {
                stream.cursor = None;
            }
            if let Some(mark) = due {
                return Some(self.reach(id, mark, decide));
            }
            if before {
                return None;
            }
        }
        if stream.judged || !front.is_end_of_peer() {
            return None;
        }
        stream.judged = true;
        let trailers = if let Part::Trailers { list } = front { head::trailers(list).ok() } else { None };
        let messages = stream.messages.map(|messages| messages.begun());
        let verdict = decide.response_end(StreamId(id.into()), &Tail { trailers, body: None, messages });
        Some(match verdict {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => true,
            Verdict::Park => {
                stream.response = Response::EndParked { whole: false };
                false
            }
            Verdict::Act(act) => {
                self.act_on_end(id, act, false, decide);
                true
            }
        })
    }

    /// A mark is reached; whether the response goes on in one way or another.
    fn reach(&mut self, id: u32, mark: Mark, decide: &mut dyn Interceptor) -> bool {
        match decide.reached(StreamId(id.into()), mark) {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => true,
            Verdict::Park => {
                self.set_response(id, Response::AtMark);
                false
            }
            Verdict::Act(act) => {
                self.act_at_mark(id, act, decide);
                true
            }
        }
    }

    pub(super) fn response_reset(&mut self, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let code = u32::from_be_bytes(frame.exactly()?);
        let Some(id) = self.upstream_stream(frame.stream)? else {
            self.abandoned.retain(|(id, _)| *id != frame.stream);
            if self.drained(frame.stream) {
                return Ok(());
            }
            return self.upstream.spend();
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.up_open = false;
        stream.up_ended = true;
        stream.request = Request::Discarded;
        self.ids.close(frame.stream);
        self.up_open -= 1;
        self.discard(Way::Up, id);
        self.keep_break(id, Part::Reset { code }, decide);
        Ok(())
    }

    /// The upstream gave the stream up: that waits behind what is kept of it.
    pub(super) fn keep_break(&mut self, id: u32, part: Part, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match stream.response {
            // The application is to get nothing.
            Response::Dropped { .. } => return,
            // Without its end there is nothing to decide.
            Response::Withheld { .. } => stream.response = Response::Passing,
            _ => {}
        }
        self.keep(Way::Down, id, part);
        self.flush(Way::Down, id, decide);
    }
}
