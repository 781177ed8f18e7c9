//! What leaves: header blocks with their edits, parts that were kept, and the credit that goes back for them.

use bytes::Bytes;

use super::frame::{self, PIECE, code, flag, kind};
use super::head::{self, Line};
use super::stream::{Part, Request, Response, Stream, Way};
use super::{DRAIN_LIMIT, Drain, Link};
use crate::exchange::{Closed, Edit, Edits, Interceptor, Part as Stamped, Refusal, StreamId};
use crate::hpack::{HeaderList, Indexing};

/// Responses that are drained at once; the oldest is cancelled for one more.
const DRAINS: usize = 256;
/// Streams given up by the application of which an answer may still come that are remembered; the oldest is forgotten for
/// one more.
const ABANDONED: usize = 256;

impl Link {
    /// Write a header block as it is.
    pub(super) fn put_list(&mut self, way: Way, wire: u32, list: &HeaderList, end: bool) {
        self.put_block(way, wire, end, |encoder, block| {
            for index in 0..list.len() {
                encoder.relay(list, index, block);
            }
        });
    }

    fn put_block(
        &mut self,
        way: Way,
        wire: u32,
        end: bool,
        fields: impl FnOnce(&mut crate::hpack::Encoder, &mut Vec<u8>),
    ) {
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        let side = self.receiver(way);
        side.encoder.begin(&mut block);
        fields(&mut side.encoder, &mut block);
        let max = side.settings.max_frame;
        frame::put_headers(self.sink(way), wire, end, &block, max);
        self.block = block;
    }

    /// Write a header block with the edits of `edits`. Without any line left (trailers only), an empty DATA ends the
    /// stream.
    fn put_edited(
        &mut self,
        way: Way,
        (id, wire): (u32, u32),
        list: &HeaderList,
        edits: &Edits,
        end: bool,
        decide: &mut dyn Interceptor,
    ) {
        if edits.is_empty() {
            return self.put_list(way, wire, list, end);
        }
        let edited = head::edit(list, edits, self.receiver(way).settings.max_list);
        if edited.oversized {
            decide.refused(StreamId(id.into()), Refusal::Oversized);
        }
        if edited.lines.is_empty() {
            return frame::put(self.sink(way), kind::DATA, flag::END_STREAM, wire, &[]);
        }
        self.put_block(way, wire, end, |encoder, block| {
            for line in &edited.lines {
                match line {
                    Line::Kept(index) => encoder.relay(list, *index, block),
                    Line::Set(index) => {
                        if let Edit::Set(name, value) = &edits[*index] {
                            let name = head::line_name(list, name);
                            encoder.field(name.as_bytes(), value, Indexing::Never, block);
                        }
                    }
                }
            }
        });
    }

    /// Write a head that is stamped now.
    pub(super) fn put_head(
        &mut self,
        way: Way,
        (id, wire): (u32, u32),
        list: &HeaderList,
        end: bool,
        decide: &mut dyn Interceptor,
    ) {
        let part = if way == Way::Up { Stamped::Request } else { Stamped::Response };
        let edits = decide.stamp(StreamId(id.into()), part);
        self.put_edited(way, (id, wire), list, &edits, end, decide);
    }

    /// Write the trailers of a message, stamped now.
    pub(super) fn put_trailers(
        &mut self,
        way: Way,
        (id, wire): (u32, u32),
        list: &HeaderList,
        decide: &mut dyn Interceptor,
    ) {
        let edits = self.stamp_end(way, id, decide);
        self.put_edited(way, (id, wire), list, &edits, true, decide);
    }

    /// The edits of a message's end. A CONNECT has none: its only event frames are its heads.
    fn stamp_end(&mut self, way: Way, id: u32, decide: &mut dyn Interceptor) -> Edits {
        if self.streams.get(&id).is_some_and(|stream| stream.connect) {
            return Edits::new();
        }
        decide.stamp(StreamId(id.into()), if way == Way::Up { Stamped::RequestEnd } else { Stamped::ResponseEnd })
    }

    /// Write the last DATA of a message, stamped now: END_STREAM moves to a trailer block if there is something to add.
    /// `flags` and `payload` as received.
    pub(super) fn put_last_data(
        &mut self,
        way: Way,
        (id, wire): (u32, u32),
        flags: u8,
        payload: &[u8],
        decide: &mut dyn Interceptor,
    ) {
        let mut edits = self.stamp_end(way, id, decide);
        edits.retain(|edit| matches!(edit, Edit::Set(..)));
        let bare = way == Way::Down && self.streams.get(&id).is_none_or(|stream| stream.bare);
        if edits.is_empty() || bare {
            return frame::put(self.sink(way), kind::DATA, flags | flag::END_STREAM, wire, payload);
        }
        if !payload.is_empty() {
            frame::put(self.sink(way), kind::DATA, flags & !flag::END_STREAM, wire, payload);
        }
        self.put_edited(way, (id, wire), &HeaderList::default(), &edits, true, decide);
    }

    /// Keep a part of a stream.
    pub(super) fn keep(&mut self, way: Way, id: u32, part: Part) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let queue = stream.queue(way);
        let before = queue.weight();
        queue.push(part);
        let added = queue.weight() - before;
        let listed = std::mem::replace(&mut queue.listed, true);
        match way {
            Way::Up => self.kept_up += added,
            Way::Down => self.kept_down += added,
        }
        if !listed {
            self.waiting(way).push_back(id);
        }
    }

    /// Something of this direction is kept.
    pub(super) fn has_waiting(&self, way: Way) -> bool {
        match way {
            Way::Up => !self.waiting_up.is_empty(),
            Way::Down => !self.waiting_down.is_empty(),
        }
    }

    fn waiting(&mut self, way: Way) -> &mut std::collections::VecDeque<u32> {
        match way {
            Way::Up => &mut self.waiting_up,
            Way::Down => &mut self.waiting_down,
        }
    }

    fn released(&mut self, way: Way, weight: usize) {
        match way {
            Way::Up => self.kept_up -= weight,
            Way::Down => self.kept_down -= weight,
        }
    }

    /// Take the first part that is kept.
    pub(super) fn take(&mut self, way: Way, id: u32) -> Option<Part> {
        let queue = self.streams.get_mut(&id)?.queue(way);
        let before = queue.weight();
        let part = queue.pop();
        let freed = before - queue.weight();
        self.released(way, freed);
        part
    }

    /// Throw away what is kept; its octets are no debt.
    pub(super) fn discard(&mut self, way: Way, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            if !stream.queue(way).listed {
                return;
            }
            let weight = stream.queue(way).weight();
            stream.queue(way).clear();
            self.released(way, weight);
            self.unlist(way, id);
            self.settle(way);
        }
    }

    /// Throw away the end of a response that is kept.
    pub(super) fn discard_end(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let before = stream.down_queue.weight();
            stream.down_queue.drop_end();
            let freed = before - stream.down_queue.weight();
            self.released(Way::Down, freed);
            self.unlist(Way::Down, id);
            self.settle(Way::Down);
        }
    }

    fn unlist(&mut self, way: Way, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.queue(way).is_empty()
            && std::mem::take(&mut stream.queue(way).listed)
        {
            self.waiting(way).retain(|waiting| *waiting != id);
        }
    }

    /// Grant the sender of this direction what its connection window is due.
    pub(super) fn settle(&mut self, way: Way) {
        let waiting = self.sendable(way);
        let increment = self.account(way).grant(waiting);
        if increment > 0 {
            frame::put_window_update(self.sink(opposite(way)), 0, increment);
        }
    }

    fn sendable(&self, way: Way) -> usize {
        let list = if way == Way::Up { &self.waiting_up } else { &self.waiting_down };
        list.iter().filter_map(|id| self.streams.get(id)).map(|stream| stream.sendable(way)).sum()
    }

    /// Grant the sender of this direction what the stream's window is due.
    pub(super) fn settle_stream(&mut self, way: Way, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let wire = match way {
            Way::Up if stream.app_ended || stream.request == Request::Discarded => return,
            Way::Up => id,
            Way::Down if stream.up_ended || !stream.up_open => return,
            Way::Down => stream.upstream,
        };
        let owed = stream.owed(way);
        let increment = stream.account(way).grant(owed);
        if increment > 0 {
            frame::put_window_update(self.sink(opposite(way)), wire, increment);
        }
    }

    /// Whether `octets` of DATA may leave at once: nothing is kept before them, and the receiver has room.
    pub(super) fn fits(&mut self, way: Way, id: u32, octets: usize) -> bool {
        let room = self.account(way).room;
        self.streams.get_mut(&id).is_some_and(|stream| {
            stream.queue(way).is_empty() && (octets == 0 || octets as i64 <= room.min(stream.account(way).room))
        })
    }

    /// `octets` of DATA were written to the receiver.
    pub(super) fn spent(&mut self, way: Way, id: u32, octets: usize) {
        self.account(way).room -= octets as i64;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.account(way).room -= octets as i64;
        }
    }

    /// Write what is kept of a stream as far as decisions and windows allow.
    pub(super) fn flush(&mut self, way: Way, id: u32, decide: &mut dyn Interceptor) {
        while self.flush_part(way, id, decide) {}
        self.unlist(way, id);
        self.settle(way);
        self.settle_stream(way, id);
    }

    /// The same for every stream, a frame each in turn.
    pub(super) fn flush_all(&mut self, way: Way, decide: &mut dyn Interceptor) {
        let mut idle = 0;
        while idle < self.waiting(way).len() {
            let Some(id) = self.waiting(way).pop_front() else { break };
            self.waiting(way).push_back(id);
            if self.flush_part(way, id, decide) {
                idle = 0
            } else {
                idle += 1
            }
            self.unlist(way, id);
        }
        self.settle(way);
    }

    /// Write one frame of what is kept of a stream; whether there was one that could leave.
    fn flush_part(&mut self, way: Way, id: u32, decide: &mut dyn Interceptor) -> bool {
        let room = self.account(way).room;
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.is_blocked(way) {
            return false;
        }
        if way == Way::Down
            && let Some(moved) = self.come_to(id, decide)
        {
            return moved;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let wire = if way == Way::Up { stream.upstream } else { id };
        let room = room.min(stream.account(way).room).max(0) as usize;
        let (front, cursor) = match way {
            Way::Up => (stream.up_queue.front(), None),
            Way::Down => (stream.down_queue.front(), stream.cursor.as_ref()),
        };
        if let Some(Part::Data { octets, .. }) = front {
            let len = octets.len();
            let free = cursor.map_or(len, |cursor| cursor.free(octets));
            let fitting = free.min(room).min(PIECE);
            if fitting < len {
                if fitting == 0 {
                    return false;
                }
                let piece = stream.queue(way).cut(fitting);
                if way == Way::Down {
                    stream.left(&piece);
                }
                self.released(way, fitting);
                frame::put(self.sink(way), kind::DATA, 0, wire, &piece);
                self.spent(way, id, fitting);
                return true;
            }
        }
        let Some(part) = self.take(way, id) else { return false };
        match part {
            Part::Data { octets, end, made } => {
                self.spent(way, id, octets.len());
                if way == Way::Down
                    && let Some(stream) = self.streams.get_mut(&id)
                {
                    stream.left(&octets);
                }
                if end && !made {
                    self.put_last_data(way, (id, wire), 0, &octets, decide);
                } else {
                    frame::put(self.sink(way), kind::DATA, u8::from(end), wire, &octets);
                }
                match way {
                    Way::Up if end => self.request_is_sent(id, decide),
                    Way::Down if end && made => self.answered(id, decide),
                    Way::Down if end => self.complete(id, decide),
                    _ => {}
                }
            }
            Part::Head { list, end } => {
                self.put_head(way, (id, wire), &list, end, decide);
                if end {
                    self.complete(id, decide);
                }
            }
            Part::Trailers { list } => {
                self.put_trailers(way, (id, wire), &list, decide);
                match way {
                    Way::Up => self.request_is_sent(id, decide),
                    Way::Down => self.complete(id, decide),
                }
            }
            Part::Made { list, end } => {
                self.put_list(way, wire, &list, end);
                if end {
                    self.answered(id, decide);
                }
            }
            Part::Extension { kind, flags, payload } => frame::put(self.sink(way), kind, flags, wire, &payload),
            Part::Reset { code } => {
                frame::put_reset(self.sink(Way::Down), id, code);
                self.finish(id, Closed::ByUpstream, decide);
            }
            Part::Fault { code, connection } => {
                self.detach(id);
                self.reset(id, code, connection, decide);
            }
            Part::Cut => self.finish(id, Closed::ByUpstream, decide),
        }
        true
    }

    /// END_STREAM went to the upstream.
    pub(super) fn request_is_sent(&mut self, id: u32, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.request_sent = true;
        self.close_upstream_half(id);
        if self.streams.get(&id).is_some_and(|stream| stream.response == Response::Done) {
            self.finish(id, Closed::Complete, decide);
        }
    }

    /// Both directions of the upstream's half are over: it no longer counts against the upstream's stream limit.
    pub(super) fn close_upstream_half(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.request_sent
            && stream.up_ended
            && std::mem::take(&mut stream.up_open)
        {
            self.ids.close(stream.upstream);
            self.up_open -= 1;
        }
    }

    /// The response was written to its end.
    pub(super) fn complete(&mut self, id: u32, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.response = Response::Done;
        let request_over = stream.request == Request::Discarded || (stream.app_ended && stream.up_queue.is_empty());
        if request_over && stream.down_queue.is_empty() {
            self.finish(id, Closed::Complete, decide);
        }
    }

    /// An answer of our own was written to its end. An upload that still runs is told that nobody reads it (RFC 9113 §8.1).
    fn answered(&mut self, id: u32, decide: &mut dyn Interceptor) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.response = Response::Done;
        if !stream.app_ended {
            self.detach(id);
            frame::put_reset(self.sink(Way::Down), id, code::NO_ERROR);
        }
        self.finish(id, Closed::Complete, decide);
    }

    /// Reset the stream at the upstream, if it is open there.
    pub(super) fn cancel_upstream(&mut self, id: u32, code: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && std::mem::take(&mut stream.up_open)
        {
            let upstream = stream.upstream;
            self.ids.close(upstream);
            self.up_open -= 1;
            frame::put_reset(self.sink(Way::Up), upstream, code);
        }
    }

    /// Have done with the upstream's half: what is still to come of its response is drained, so that the upstream finishes
    /// its work undisturbed; a request that was still going up is cancelled.
    pub(super) fn detach(&mut self, id: u32) {
        self.discard(Way::Up, id);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.request = Request::Discarded;
        if stream.request_sent && stream.up_open {
            stream.up_open = false;
            let drained = if let Response::Dropped { drained } = stream.response { drained } else { 0 };
            let drain = Drain { upstream: stream.upstream, left: DRAIN_LIMIT.saturating_sub(drained) };
            // Octets that were kept took stream credit with them; the drain starts with what the upstream has left.
            let increment = stream.down.grant(0);
            self.ids.close(drain.upstream);
            if self.drains.len() == DRAINS
                && let Some(oldest) = self.drains.pop_front()
            {
                self.up_open -= 1;
                frame::put_reset(self.sink(Way::Up), oldest.upstream, code::CANCEL);
            }
            self.drains.push_back(drain);
            if increment > 0 {
                frame::put_window_update(self.sink(Way::Up), drain.upstream, increment);
            }
        } else {
            self.cancel_upstream(id, code::CANCEL);
        }
    }

    /// The exchange is over for the application: forget the stream and say so.
    pub(super) fn finish(&mut self, id: u32, how: Closed, decide: &mut dyn Interceptor) {
        self.cancel_upstream(id, code::CANCEL);
        self.discard(Way::Up, id);
        self.discard(Way::Down, id);
        let Some(stream) = self.streams.remove(&id) else { return };
        if !stream.app_ended {
            self.crossing.insert(id);
        }
        if stream.upstream == 0 {
            self.priorities.retain(|(waiting, _)| *waiting != id);
        }
        let how = if stream.response == Response::Done { Closed::Complete } else { how };
        if how == Closed::ByApplication && stream.upstream != 0 && !stream.up_ended {
            if self.abandoned.len() == ABANDONED {
                self.abandoned.pop_front();
            }
            self.abandoned.push_back((stream.upstream, id));
        }
        if how == Closed::Complete {
            self.unseen = super::CONTROL_BUDGET;
        }
        decide.closed(StreamId(id.into()), how);
    }

    /// The upstream closed or reset one of the streams that are only drained.
    pub(super) fn drained(&mut self, upstream: u32) -> bool {
        let before = self.drains.len();
        self.drains.retain(|drain| drain.upstream != upstream);
        let found = self.drains.len() < before;
        self.up_open -= usize::from(found);
        found
    }

    /// Octets of a stream that is only drained. Its window is kept open until the limit.
    pub(super) fn drain_off(&mut self, upstream: u32, octets: usize, end: bool) {
        let Some(drain) = self.drains.iter_mut().find(|drain| drain.upstream == upstream) else { return };
        drain.left = drain.left.saturating_sub(octets);
        if end {
            self.drained(upstream);
        } else if drain.left == 0 {
            self.drained(upstream);
            frame::put_reset(self.sink(Way::Up), upstream, code::CANCEL);
        } else if octets > 0 {
            frame::put_window_update(self.sink(Way::Up), upstream, octets as u32);
        }
    }

    /// Make room for one more stream at the upstream. Those the application has done with must not count against the
    /// upstream's limit: what is only drained, and what still waits to be sent of requests that were answered early.
    pub(super) fn make_room(&mut self, decide: &mut dyn Interceptor) {
        while self.upstream.settings.max_streams.is_some_and(|max| self.up_open >= max as usize) {
            if let Some(drain) = self.drains.pop_front() {
                self.up_open -= 1;
                frame::put_reset(self.sink(Way::Up), drain.upstream, code::CANCEL);
                continue;
            }
            let answered = |stream: &Stream| stream.response == Response::Done && stream.app_ended;
            let oldest = self.waiting_up.iter().filter(|id| self.streams.get(id).is_some_and(answered)).min();
            let Some(id) = oldest.copied() else { return };
            self.finish(id, Closed::Complete, decide);
        }
    }

    /// Keep body octets.
    pub(super) fn keep_data(&mut self, way: Way, id: u32, octets: &[u8], end: bool) {
        if end || !octets.is_empty() {
            self.keep(way, id, Part::Data { octets: Bytes::copy_from_slice(octets), end, made: false });
        }
    }
}

pub(super) fn opposite(way: Way) -> Way {
    match way {
        Way::Up => Way::Down,
        Way::Down => Way::Up,
    }
}
