//! Frames of the connections, and their ends.

use super::flow::MAX_WINDOW;
use super::frame::{self, Frame, Violation, code, flag, kind};
use super::settings::Announced;
use super::stream::{Part, Request, Response, Way};
use super::{Ending, Link, MAX_ID, Step, deliver::opposite};
use crate::exchange::{Closed, Fate, Interceptor, PeerEnd, Refusal, StreamId};

/// The last stream of a GOAWAY that only warns of one to come (RFC 9113 §6.8).
const WARNING: u32 = MAX_ID;

/// What the PING says that asks whether the application has heard a warning.
const HEARD: &[u8; 8] = b"aft-gone";

impl Link {
    /// See [`crate::exchange::Editor::drain`].
    pub(super) fn warn(&mut self) {
        if self.over || self.app_ended || self.upstream_gone.is_some() || self.ending != Ending::No {
            return;
        }
        if self.goaway.is_some() {
            // The upstream was faster.
            self.ending = Ending::Told;
            return;
        }
        self.ending = Ending::Warned;
        self.put_goaway(WARNING, code::NO_ERROR, &[]);
        frame::put(self.sink(Way::Down), kind::PING, 0, 0, HEARD);
    }

    /// The application has heard the warning: everything it sent before has come.
    fn heard(&mut self) {
        self.ending = Ending::Told;
        if self.goaway.is_none() {
            self.goaway = Some(self.last_app);
            self.put_goaway(self.last_app, code::NO_ERROR, &[]);
        }
    }

    fn put_goaway(&mut self, last: u32, code: u32, words: &[u8]) {
        let out = self.sink(Way::Down);
        frame::put_header(out, 8 + words.len(), kind::GOAWAY, 0, 0);
        out.extend_from_slice(&last.to_be_bytes());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(words);
    }

    pub(super) fn settings(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        if frame.stream != 0 {
            return Err(Violation::protocol("SETTINGS on a stream"));
        }
        if frame.flags & flag::ACK != 0 {
            if !frame.payload.is_empty() {
                return Err(Violation::size("SETTINGS acknowledgement with a payload"));
            }
            let announced = self.receiver(way).settings.acknowledged();
            frame::put(self.sink(way), kind::SETTINGS, flag::ACK, 0, &[]);
            return match announced {
                Some(announced) => self.apply(way, &announced, decide),
                None => Ok(()),
            };
        }
        self.sender(way).spend()?;
        let first = !self.sender(way).settings.begun;
        let mut passed = bytes::BytesMut::with_capacity(frame.payload.len() + 6);
        let announced = self.sender(way).settings.announce(frame.payload, way == Way::Up, &mut passed)?;
        // What is allowed more holds at once for what is accepted; what is allowed less, from the acknowledgement on.
        let other = self.receiver(way);
        if let Some((_, table)) = announced.table {
            other.decoder.allow(table.max(other.decoder.allowed()));
        }
        other.max_frame = other.max_frame.max(announced.max_frame.unwrap_or(0));
        match way {
            Way::Up => frame::put(&mut self.out.to_upstream, kind::SETTINGS, frame.flags, 0, &passed),
            Way::Down => frame::put(&mut self.out.to_app, kind::SETTINGS, frame.flags, 0, &passed),
        }
        if first && way == Way::Down {
            let early = std::mem::take(&mut self.early);
            self.out.to_app.extend_from_slice(&early);
        }
        Ok(())
    }

    /// The sender of this direction has acknowledged what its receiver announced.
    fn apply(&mut self, way: Way, announced: &Announced, decide: &mut dyn Interceptor) -> Step {
        if let Some((smallest, last)) = announced.table {
            let encoder = &mut self.receiver(way).encoder;
            encoder.resize(smallest);
            encoder.resize(last);
            self.sender(way).decoder.allow(last);
        }
        if let Some(max) = announced.max_frame {
            self.sender(way).max_frame = max;
        }
        if let Some(window) = announced.window {
            let before = std::mem::replace(self.window(way), window);
            let delta = window - before;
            let mut within = true;
            for stream in self.streams.values_mut() {
                within &= stream.account(way).shift(delta);
            }
            if !within {
                let violation =
                    Violation::new(code::FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE overflows a window");
                self.violated(opposite(way), violation, decide);
                return Ok(());
            }
            self.flush_all(way, decide);
        }
        Ok(())
    }

    /// The window that new streams start with.
    fn window(&mut self, way: Way) -> &mut i64 {
        match way {
            Way::Up => &mut self.initial_up,
            Way::Down => &mut self.initial_down,
        }
    }

    pub(super) fn ping(&mut self, way: Way, frame: &Frame<'_>) -> Step {
        let opaque: [u8; 8] = frame.exactly()?;
        if frame.stream != 0 {
            return Err(Violation::protocol("PING on a stream"));
        }
        let request = frame.flags & flag::ACK == 0;
        if way == Way::Up && !request && self.ending == Ending::Warned && opaque == *HEARD {
            self.heard();
            return Ok(());
        }
        if way == Way::Up && request && self.up_open == 0 && !self.streams.is_empty() {
            // The upstream has no stream, so to it these pings would be idle chatter, which gRPC servers punish.
            frame::put(self.sink(Way::Down), kind::PING, flag::ACK, 0, &opaque);
            return self.app.spend();
        }
        frame::put(self.sink(way), kind::PING, frame.flags, 0, &opaque);
        Ok(())
    }

    pub(super) fn goaway(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        if frame.stream != 0 {
            return Err(Violation::protocol("GOAWAY on a stream"));
        }
        if frame.payload.len() < 8 {
            return Err(Violation::size("GOAWAY too short"));
        }
        let last = frame::u32_at(frame.payload, 0) & WARNING;
        if way == Way::Up || (last == WARNING && self.goaway.is_none()) {
            frame::put(self.sink(way), kind::GOAWAY, frame.flags, 0, frame.payload);
            return Ok(());
        }
        // Streams that a fault answers here, or keeps unanswered, were processed as far as the application can know.
        let acted = self.streams.iter().filter(|(_, stream)| stream.upstream == 0 && stream.request != Request::Parked);
        let acted = acted.map(|(id, _)| *id).max().unwrap_or(0);
        let mapped = self.ids.largest_up_to(last).max(acted);
        let mapped = mapped.min(self.goaway.unwrap_or(WARNING));
        self.goaway = Some(mapped);
        self.put_goaway(mapped, frame::u32_at(frame.payload, 4), &frame.payload[8..]);
        let mut unprocessed: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| match stream.upstream {
                0 => stream.request == Request::Parked,
                upstream => upstream > last && stream.up_open,
            })
            .map(|(id, _)| *id)
            .collect();
        unprocessed.sort_unstable();
        for id in unprocessed {
            if self.streams.get(&id).is_some_and(|stream| stream.request == Request::Parked) {
                decide.refused(StreamId(id.into()), Refusal::Goaway);
            }
            if id <= mapped {
                frame::put_reset(self.sink(Way::Down), id, code::REFUSED_STREAM);
            }
            // To the upstream these streams do not exist.
            self.forget_upstream(id);
            self.finish(id, Closed::ByUpstream, decide);
        }
        Ok(())
    }

    /// The upstream's half of a stream is gone without a frame.
    fn forget_upstream(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && std::mem::take(&mut stream.up_open)
        {
            self.ids.close(stream.upstream);
            self.up_open -= 1;
        }
    }

    pub(super) fn window_update(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        let increment = u32::from_be_bytes(frame.exactly()?) & MAX_WINDOW as u32;
        // It speaks of the other direction's data.
        let data = opposite(way);
        if frame.stream == 0 {
            if increment == 0 {
                return Err(Violation::protocol("WINDOW_UPDATE of 0"));
            }
            if !self.account(data).widen(increment) {
                return Err(Violation::new(code::FLOW_CONTROL_ERROR, "the connection's window overflows"));
            }
            if self.has_waiting(data) {
                self.flush_all(data, decide);
            } else {
                self.settle(data);
            }
            return Ok(());
        }
        let known = match way {
            Way::Up => self.app_stream(frame.stream)?,
            Way::Down => self.upstream_stream(frame.stream)?,
        };
        let Some(id) = known else {
            return self.sender(way).spend();
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if increment == 0 {
            self.stream_error(way, id, code::PROTOCOL_ERROR, decide);
        } else if !stream.account(data).widen(increment) {
            self.stream_error(way, id, code::FLOW_CONTROL_ERROR, decide);
        } else if stream.queue(data).is_empty() {
            self.settle_stream(data, id);
        } else {
            self.flush(data, id, decide);
        }
        Ok(())
    }

    /// A frame of a type this editor does not know: passes in its place, or is kept with its stream.
    pub(super) fn extension(&mut self, way: Way, frame: &Frame<'_>, decide: &mut dyn Interceptor) -> Step {
        if frame.stream == 0 {
            frame::put(self.sink(way), frame.kind, frame.flags, 0, frame.payload);
            return Ok(());
        }
        let known = match way {
            Way::Up => self.streams.contains_key(&frame.stream).then_some(frame.stream),
            Way::Down => self.ids.app(frame.stream),
        };
        let part = || Part::Extension {
            kind: frame.kind,
            flags: frame.flags,
            payload: bytes::Bytes::copy_from_slice(frame.payload),
        };
        // On a stream the receiver does not know it cannot be placed, and may be ignored (RFC 9113 §5.5); so it is after
        // the end of its message.
        let Some(id) = known else { return self.sender(way).spend() };
        let Some(stream) = self.streams.get(&id) else { return Ok(()) };
        let dropped = match way {
            Way::Up => stream.app_ended || stream.request == Request::Discarded,
            Way::Down => stream.up_ended || matches!(stream.response, Response::Dropped { .. }),
        };
        if dropped {
            return self.sender(way).spend();
        }
        self.keep(way, id, part());
        self.flush(way, id, decide);
        Ok(())
    }

    /// A stream error (RFC 9113 §5.4.2) of the peer whose frames travel `way`: both halves are reset.
    pub(super) fn stream_error(&mut self, way: Way, id: u32, code: u32, decide: &mut dyn Interceptor) {
        self.cancel_upstream(id, if way == Way::Down { code } else { code::CANCEL });
        frame::put_reset(self.sink(Way::Down), id, code);
        self.finish(id, if way == Way::Down { Closed::ByUpstream } else { Closed::ByApplication }, decide);
    }

    /// See [`super::CONTROL_BUDGET`]: streams that the application opens and that are reset without the upstream seeing them.
    pub(super) fn spend_unseen(&mut self) -> Step {
        self.unseen =
            self.unseen.checked_sub(1).ok_or(Violation::calm("too many streams reset that the upstream never saw"))?;
        Ok(())
    }

    /// A connection error of the peer whose frames travel `way`.
    pub(super) fn violated(&mut self, way: Way, violation: Violation, decide: &mut dyn Interceptor) {
        let last = if way == Way::Up { self.ids.largest() } else { 0 };
        let mut goaway = [0; 8];
        goaway[..4].copy_from_slice(&last.to_be_bytes());
        goaway[4..].copy_from_slice(&violation.code.to_be_bytes());
        tracing::debug!(%violation, ?way, "HTTP/2 connection error");
        match way {
            Way::Up => {
                self.finish_all(Closed::ByApplication, decide);
                if !self.upstream.settings.begun {
                    frame::put(&mut self.out.to_app, kind::SETTINGS, 0, 0, &[]);
                }
                frame::put(&mut self.out.to_app, kind::GOAWAY, 0, 0, &goaway);
                self.out.app = Fate::Linger;
                self.out.upstream = Fate::Close;
                self.over = true;
            }
            Way::Down => {
                frame::put(&mut self.out.to_upstream, kind::GOAWAY, 0, 0, &goaway);
                self.out.upstream = Fate::Linger;
                self.upstream_lost(Fate::Linger, decide);
            }
        }
    }

    fn finish_all(&mut self, how: Closed, decide: &mut dyn Interceptor) {
        for id in self.ids_of_streams() {
            self.forget_upstream(id);
            self.finish(id, how, decide);
        }
    }

    /// A fault resets the application's connection, behind what was written. The upstream gets an orderly end.
    pub(super) fn reset_connection(&mut self, decide: &mut dyn Interceptor) {
        self.finish_all(Closed::ByFault, decide);
        self.out.app = Fate::Reset;
        if self.upstream_gone.is_none() {
            self.out.upstream = Fate::Linger;
        }
        self.over = true;
    }

    /// In the order in which they were opened, so that the same input gives the same calls.
    fn ids_of_streams(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The application's side ended.
    ///
    /// A connection that broke takes everything with it. An orderly end is passed on, and what the upstream still answers
    /// goes to the application, which may have kept its other half open; but for what is parked or dropped the caller has
    /// gone.
    pub(super) fn app_gone(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        if how != PeerEnd::Eof {
            self.finish_all(Closed::ByApplication, decide);
            self.out.app = Fate::Close;
            self.out.upstream = Fate::Reset;
            self.over = true;
            return;
        }
        self.app_ended = true;
        for id in self.ids_of_streams() {
            if self.streams.get(&id).is_some_and(|stream| stream.is_faulted() || stream.upstream == 0) {
                self.finish(id, Closed::ByApplication, decide);
            }
        }
    }

    pub(super) fn upstream_gone(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        // A reset would eat what the application is still to get.
        let mut kept = self.streams.values().any(|stream| !stream.down_queue.is_empty());
        if !self.early.is_empty() && !self.app_ended {
            kept = true;
            // Faults that were done before the upstream said a word: the application still gets them.
            frame::put(&mut self.out.to_app, kind::SETTINGS, 0, 0, &[]);
            let early = std::mem::take(&mut self.early);
            self.out.to_app.extend_from_slice(&early);
            self.upstream.settings.begun = true;
        }
        let fate = if how == PeerEnd::Eof || kept { Fate::Linger } else { Fate::Reset };
        self.out.upstream = Fate::Close;
        self.upstream_lost(fate, decide);
    }

    /// The upstream says no more. Streams fail where they are, behind what is kept of them; then the application's
    /// connection ends with `fate`.
    fn upstream_lost(&mut self, fate: Fate, decide: &mut dyn Interceptor) {
        self.upstream_gone = Some(fate);
        self.drains.clear();
        self.up_open = 0;
        for id in self.ids_of_streams() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if std::mem::take(&mut stream.up_open) {
                self.ids.close(stream.upstream);
            }
            let complete = stream.up_ended || stream.upstream == 0;
            stream.up_ended = true;
            let waits = !stream.down_queue.is_empty();
            if matches!(stream.response, Response::Dropped { .. }) || !waits {
                self.finish(id, self.by_whom(), decide);
            } else {
                stream.request = Request::Discarded;
                self.discard(Way::Up, id);
                if !complete {
                    self.keep_break(id, Part::Cut, decide);
                }
            }
        }
    }

    /// Whose end it is that an exchange does not survive.
    fn by_whom(&self) -> Closed {
        if self.app_ended { Closed::ByApplication } else { Closed::ByUpstream }
    }

    /// What follows from a call once all of it has been handled.
    pub(super) fn after(&mut self, decide: &mut dyn Interceptor) {
        if let Some(fate) = self.upstream_gone
            && !self.over
        {
            // What is dropped waits for the application; a connection that is about to end does not.
            if self.streams.values().all(|stream| matches!(stream.response, Response::Dropped { .. })) {
                self.finish_all(self.by_whom(), decide);
                self.out.app = if self.app_ended { Fate::Close } else { fate };
                self.over = true;
            } else if self.app_ended {
                self.finish_all(Closed::ByApplication, decide);
                self.out.app = Fate::Close;
                self.over = true;
            }
        }
        if self.ending == Ending::Told && !self.over && self.streams.is_empty() {
            self.out.app = Fate::Linger;
            if self.upstream_gone.is_none() {
                self.out.upstream = Fate::Linger;
            }
            self.over = true;
        }
        if self.app_ended && !self.over && self.upstream_gone.is_none() && self.out.upstream == Fate::Open {
            // The end of the requests follows the requests.
            let owing = self.waiting_up.iter().any(|id| self.streams.contains_key(id));
            if !owing {
                self.out.upstream = Fate::Fin;
            }
        }
    }
}
