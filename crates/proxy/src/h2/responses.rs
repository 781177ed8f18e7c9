//! Frames of the upstream that belong to a stream: responses, their ends, resets.

use super::frame::{self, Frame, Violation, code, flag, kind};
use super::head;
use super::stream::{Part, Request, Response, Way};
use super::{DRAIN_LIMIT, Link, Step};
use crate::exchange::{Interceptor, Refusal, StreamId, Tail, Verdict};
use crate::hpack::HeaderList;

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
            self.drain(upstream, 0, end);
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
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.bare |= bare;
        stream.up_ended = end;
        let tunnel = stream.connect && (200..300).contains(&head.status);
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
            self.drain(frame.stream, octets, end);
            return Ok(());
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
        let response = stream.response;
        if octets == 0 && !end {
            self.upstream.spend()?;
        }
        if let Response::Dropped { drained } = response {
            self.drop_data(id, drained + octets, end);
        } else if end {
            self.response_ends(id, End::Data { frame, data }, decide);
        } else if response == Response::Passing && frame.stripped == 0 && self.fits(Way::Down, id, octets) {
            self.spent(Way::Down, id, octets);
            frame::put(&mut self.out.to_app, kind::DATA, frame.flags, id, frame.payload);
        } else {
            self.keep_data(Way::Down, id, data, false);
            if let Response::Withheld { limit } = response
                && self.streams.get(&id).is_some_and(|stream| stream.down_queue.data() > limit)
            {
                decide.refused(StreamId(id.into()), Refusal::Size);
                self.set_response(id, Response::Passing);
            }
            self.flush(Way::Down, id, decide);
        }
        Ok(())
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
        let parked = stream.response == Response::Parked;
        let whole = matches!(stream.response, Response::Withheld { .. });
        self.close_upstream_half(id);
        if parked {
            // Judged when its head has been released.
            return self.keep_end(id, end);
        }
        let trailers = match end {
            End::Trailers(list) => head::trailers(list).ok(),
            End::Data { .. } => None,
        };
        match self.judge(id, trailers, decide) {
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

    fn judge(
        &mut self,
        id: u32,
        trailers: Option<crate::exchange::Fields<'_>>,
        decide: &mut dyn Interceptor,
    ) -> Verdict {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.judged = true;
        }
        decide.response_end(StreamId(id.into()), &Tail { trailers, ..Tail::default() })
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
                    self.put_trailers(id, list, decide);
                    return self.complete(id, decide);
                }
                End::Data { frame, .. } if frame.stripped == 0 && self.fits(Way::Down, id, frame.payload.len()) => {
                    self.spent(Way::Down, id, frame.payload.len());
                    self.put_last_data(id, frame.flags, frame.payload, decide);
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
        self.judge_kept(id, decide);
        self.flush(Way::Down, id, decide);
    }

    /// The end of a response that arrived while its head was parked.
    fn judge_kept(&mut self, id: u32, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.judged {
            return;
        }
        let Some(end) = stream.down_queue.iter().find(|part| part.ends()) else { return };
        let trailers = if let Part::Trailers { list } = end { head::trailers(list).ok() } else { None };
        let verdict = decide.response_end(StreamId(id.into()), &Tail { trailers, ..Tail::default() });
        stream.judged = true;
        match verdict {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {}
            Verdict::Park => stream.response = Response::EndParked { whole: false },
            Verdict::Act(act) => {
                self.act_on_end(id, act, false, decide);
            }
        }
    }

    pub(super) fn response_reset(&mut self, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let code = u32::from_be_bytes(frame.exactly()?);
        let Some(id) = self.upstream_stream(frame.stream)? else {
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
