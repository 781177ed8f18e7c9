//! Frames of the application that belong to a stream: requests, their bodies and trailers, cancellation.

use bytes::Bytes;

use super::flow::Account;
use super::frame::{self, Frame, Violation, code, flag, kind};
use super::head;
use super::stream::{Part, Queue, Request, Response, Stream, Way};
use super::{Link, STREAM_LIMIT, Step};
use crate::exchange::{Closed, Fields, Interceptor, StreamId, Verdict};
use crate::hpack::HeaderList;

impl Link {
    /// The application's stream a frame names, if it is still known. Idle streams are a connection error.
    pub(super) fn app_stream(&self, id: u32) -> Result<Option<u32>, Violation> {
        if id.is_multiple_of(2) || id > self.last_app {
            return Err(Violation::protocol("a frame on an idle stream"));
        }
        Ok(self.streams.contains_key(&id).then_some(id))
    }

    pub(super) fn request_block(
        &mut self,
        id: u32,
        end: bool,
        list: &HeaderList,
        decide: &mut dyn Interceptor,
    ) -> Step {
        if id.is_multiple_of(2) {
            return Err(Violation::protocol("HEADERS on a stream of the server"));
        }
        if id > self.last_app {
            self.last_app = id;
            return self.new_request(id, end, list, decide);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            if !self.crossing.allows(id, end) {
                return Err(Violation::new(code::STREAM_CLOSED, "HEADERS on a closed stream"));
            }
            // Reset or answered here while these trailers were on their way.
            return self.app.spend();
        };
        if stream.app_ended {
            self.stream_error(Way::Up, id, code::STREAM_CLOSED, decide);
            return Ok(());
        }
        let Some(fields) = head::trailers(list).ok().filter(|_| end) else {
            self.stream_error(Way::Up, id, code::PROTOCOL_ERROR, decide);
            return Ok(());
        };
        stream.app_ended = true;
        let (request, upstream, queued) = (stream.request, stream.upstream, !stream.up_queue.is_empty());
        self.request_ends(id, Some(&fields), decide);
        match request {
            Request::Open if !queued => {
                self.put_trailers(Way::Up, (id, upstream), list, decide);
                self.request_is_sent(id, decide);
            }
            Request::Open | Request::Parked => {
                self.keep(Way::Up, id, Part::Trailers { list: Box::new(list.clone()) });
            }
            Request::Discarded => self.upload_is_over(id, decide),
        }
        Ok(())
    }

    /// A block that cannot be taken as it is: of a new stream or of one that is open, which is reset.
    pub(super) fn refuse_block(&mut self, id: u32, end: bool, decide: &mut dyn Interceptor) -> Step {
        if id.is_multiple_of(2) {
            return Err(Violation::protocol("HEADERS on a stream of the server"));
        }
        if id > self.last_app {
            self.last_app = id;
            return self.refuse(id, end, code::PROTOCOL_ERROR);
        }
        if self.streams.contains_key(&id) {
            self.stream_error(Way::Up, id, code::PROTOCOL_ERROR, decide);
        }
        self.spend_unseen()
    }

    /// A new stream that never becomes a request. Nobody else could notice a flood of them (CVE-2019-9514).
    fn refuse(&mut self, id: u32, end: bool, code: u32) -> Step {
        frame::put_reset(self.sink(Way::Down), id, code);
        self.closed_early(id, end);
        self.spend_unseen()
    }

    fn closed_early(&mut self, id: u32, end: bool) {
        if !end {
            self.crossing.insert(id);
        }
    }

    fn new_request(&mut self, id: u32, end: bool, list: &HeaderList, decide: &mut dyn Interceptor) -> Step {
        if self.goaway.is_some() || self.upstream_gone.is_some() {
            // The application knows, or is about to learn, that it was not processed.
            self.closed_early(id, end);
            return self.app.spend();
        }
        let Ok(head) = head::request(list, end) else {
            return self.refuse(id, end, code::PROTOCOL_ERROR);
        };
        if self.streams.len() >= STREAM_LIMIT {
            return self.refuse(id, end, code::REFUSED_STREAM);
        }
        self.app.budget = super::CONTROL_BUDGET.max(self.app.budget);
        let connect = head.method == "CONNECT";
        let head_only = head.method == "HEAD";
        let verdict = decide.request(StreamId(id.into()), &head);
        let (up, down) = (self.initial_up, self.initial_down);
        let stream = Stream {
            upstream: 0,
            up_open: false,
            request: Request::Parked,
            response: Response::Awaited,
            app_ended: end,
            request_sent: false,
            up_ended: false,
            judged: false,
            messages: None,
            cursor: None,
            head_only,
            connect,
            bare: connect || head_only,
            up: Account::new(up),
            down: Account::new(down),
            up_queue: Queue::default(),
            down_queue: Queue::default(),
        };
        self.streams.insert(id, stream);
        match verdict {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => self.open_upstream(id, list, end, decide),
            Verdict::Park => self.keep(Way::Up, id, Part::Head { list: Box::new(list.clone()), end }),
            Verdict::Act(act) => self.act_on_request(id, act, decide),
        }
        Ok(())
    }

    /// Forward a request head: the upstream learns of the stream now, with the next identifier.
    fn open_upstream(&mut self, id: u32, list: &HeaderList, end: bool, decide: &mut dyn Interceptor) {
        self.make_room(decide);
        let upstream = self.ids.open(id);
        self.up_open += 1;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request = Request::Open;
            stream.upstream = upstream;
            stream.up_open = true;
            stream.request_sent = end;
        }
        self.put_head(Way::Up, (id, upstream), list, end, decide);
        if !self.priorities.is_empty() {
            self.send_priorities(id, upstream);
        }
        // WINDOW_UPDATEs that came while the request was parked.
        self.settle_stream(Way::Down, id);
    }

    /// A parked request goes on.
    pub(super) fn release_request(&mut self, id: u32, decide: &mut dyn Interceptor) {
        if let Some(Part::Head { list, end }) = self.take(Way::Up, id) {
            self.open_upstream(id, &list, end, decide);
        }
        self.flush(Way::Up, id, decide);
    }

    pub(super) fn request_data(&mut self, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let octets = frame.payload.len() + frame.stripped;
        if !self.up.receive(octets) {
            return Err(Violation::new(code::FLOW_CONTROL_ERROR, "the connection's window is overrun"));
        }
        let id = frame.stream;
        let end = frame.flags & flag::END_STREAM != 0;
        let Some(id) = self.app_stream(id)? else {
            self.settle(Way::Up);
            if !self.crossing.allows(id, end) {
                frame::put_reset(self.sink(Way::Down), id, code::STREAM_CLOSED);
            }
            return self.app.spend();
        };
        let settled = self.upstream.settings.settled();
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if stream.app_ended {
            self.settle(Way::Up);
            self.stream_error(Way::Up, id, code::STREAM_CLOSED, decide);
            return Ok(());
        }
        if !stream.up.receive(octets) && settled && octets > 0 {
            return Err(Violation::new(code::FLOW_CONTROL_ERROR, "a stream's window is overrun"));
        }
        stream.app_ended = end;
        let (request, upstream) = (stream.request, stream.upstream);
        if octets == 0 && !end {
            self.app.spend()?;
        }
        let data = frame.unpadded()?;
        if end {
            self.request_ends(id, None, decide);
        }
        if request == Request::Open && frame.stripped == 0 && self.fits(Way::Up, id, octets) {
            self.spent(Way::Up, id, octets);
            if end {
                self.put_last_data(Way::Up, (id, upstream), frame.flags, frame.payload, decide);
                self.request_is_sent(id, decide);
            } else {
                frame::put(&mut self.out.to_upstream, kind::DATA, frame.flags, upstream, frame.payload);
            }
            return Ok(());
        }
        match request {
            Request::Discarded => {
                self.settle(Way::Up);
                if end {
                    self.upload_is_over(id, decide);
                }
            }
            Request::Parked | Request::Open => {
                self.keep_data(Way::Up, id, data, end);
                self.flush(Way::Up, id, decide);
            }
        }
        Ok(())
    }

    /// A request that did not end with its head has arrived to its end. A tunnel has no end of that kind, and of one that
    /// a fault replaced nobody is told.
    fn request_ends(&mut self, id: u32, trailers: Option<&Fields<'_>>, decide: &mut dyn Interceptor) {
        if self.streams.get(&id).is_some_and(|stream| !stream.connect && stream.request != Request::Discarded) {
            decide.request_end(StreamId(id.into()), trailers);
        }
    }

    /// The application has sent all of a request that nobody takes any more.
    fn upload_is_over(&mut self, id: u32, decide: &mut dyn Interceptor) {
        if self.streams.get(&id).is_some_and(|stream| stream.response == Response::Done) {
            self.finish(id, Closed::Complete, decide);
        }
    }

    pub(super) fn request_reset(&mut self, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let code = u32::from_be_bytes(frame.exactly()?);
        let Some(id) = self.app_stream(frame.stream)? else {
            self.crossing.allows(frame.stream, true);
            return self.app.spend();
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.app_ended = true;
        let unseen = stream.upstream == 0;
        self.cancel_upstream(id, code);
        self.finish(id, Closed::ByApplication, decide);
        // The upstream cannot notice a flood of streams that are opened and reset while they are parked.
        if unseen { self.spend_unseen() } else { Ok(()) }
    }

    /// A PRIORITY_UPDATE (RFC 9218 §7.1) names its stream in the payload; it may come before the stream.
    pub(super) fn priority_update(&mut self, frame: &Frame<'_>) -> Step {
        const KEPT: usize = 32;
        if frame.stream != 0 || frame.payload.len() < 4 || frame.payload.len() > 1024 {
            return Err(Violation::protocol("malformed PRIORITY_UPDATE"));
        }
        let id = frame::u32_at(frame.payload, 0) & 0x7fff_ffff;
        let value = &frame.payload[4..];
        match self.streams.get(&id) {
            Some(stream) if stream.upstream != 0 => {
                let upstream = stream.upstream;
                put_priority(self.sink(Way::Up), upstream, value);
                return Ok(());
            }
            None if id <= self.last_app => {}
            _ => {
                self.priorities.retain(|(waiting, _)| *waiting != id);
                if self.priorities.len() == KEPT {
                    self.priorities.pop_front();
                }
                self.priorities.push_back((id, Bytes::copy_from_slice(value)));
            }
        }
        self.app.spend()
    }

    fn send_priorities(&mut self, id: u32, upstream: u32) {
        for (_, value) in self.priorities.iter().filter(|(waiting, _)| *waiting == id) {
            put_priority(&mut self.out.to_upstream, upstream, value);
        }
        self.priorities.retain(|(waiting, _)| *waiting != id);
    }
}

fn put_priority(out: &mut bytes::BytesMut, stream: u32, value: &[u8]) {
    frame::put_header(out, 4 + value.len(), kind::PRIORITY_UPDATE, 0, 0);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(value);
}
