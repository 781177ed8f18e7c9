//! The upstream's side: responses in, towards the application.

use super::body::{Body, walk};
use super::requests::Upload;
use super::watched::{Stop, Watch, Watched, Withheld};
use super::{Done, Drain, Exchange, Link, MAX_HEAD, Malformed, Reply, head, lines, raise};
use crate::exchange::{
    Act, Closed, Edit, Edits, Fate, Fields, Interceptor, Mark, Part, PeerEnd, Refusal, StreamId, Tail, Verdict,
};
use crate::marks::{Cursor, Messages, is_grpc};

/// What the next byte of the upstream is.
#[derive(Debug)]
pub(super) enum Download {
    /// The start of a response.
    Head,
    /// Of a body that is forwarded.
    Body(Body),
    /// Of a body that is forwarded and looked at.
    Watched(Box<Watched>),
    /// Of the body of a response that is parked at a mark: not taken.
    AtMark(Box<Watched>),
    /// Of the body of a response whose head is parked: not taken.
    Parked(Box<Kept>),
    /// Of the body of a response that is kept back until its end.
    Withheld(Box<Withheld>),
    /// Of a later response: not taken. The end of this one is parked, with all of it if it was withheld.
    ParkedEnd(Box<ParkedEnd>),
    /// Of the body of a response that was taken off the wire; so many bytes of it may still be read.
    Drain { body: Body, left: u64 },
    /// No longer HTTP/1.
    Tunnel,
    /// Of something that nobody asked for.
    Unasked,
    /// Nothing.
    Stopped,
}

impl Download {
    /// Whether a response waits for its resume.
    pub(super) fn is_parked(&self) -> bool {
        matches!(self, Self::Parked(_) | Self::AtMark(_) | Self::ParkedEnd(_))
    }
}

/// A response head that has not left.
#[derive(Debug)]
pub(super) struct Kept {
    raw: Vec<u8>,
    pub(super) body: Option<Body>,
    /// The upstream will close behind it.
    close: bool,
    /// It opens a tunnel.
    connects: bool,
}

impl Kept {
    pub(super) fn ends_connection(&self) -> bool {
        self.close || self.connects || matches!(self.body, Some(Body::UntilClose))
    }
}

#[derive(Debug)]
pub(super) struct ParkedEnd {
    withheld: Option<Box<Withheld>>,
    end: Vec<u8>,
    trailers: usize,
}

impl Link {
    /// Takes what can be taken from the front of `bytes`; how many bytes that were.
    pub(super) fn take_responses(&mut self, bytes: &[u8], decide: &mut dyn Interceptor) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.download {
                Download::Stopped => return bytes.len(),
                Download::Tunnel | Download::Unasked => {
                    self.out.to_app.extend_from_slice(rest);
                    return bytes.len();
                }
                Download::Parked(_) | Download::AtMark(_) | Download::ParkedEnd(_) => break,
                Download::Head => {
                    if !self.is_asked_for() {
                        // Empty lines behind a response are no answer to anything.
                        let empty = rest.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
                        self.out.to_app.extend_from_slice(&rest[..empty]);
                        at += empty;
                        if at < bytes.len() {
                            self.unasked(decide);
                        }
                        continue;
                    }
                    match self.upstream.scan.head(rest) {
                        Ok(Some(end)) if end <= MAX_HEAD => {
                            self.upstream.scan.reset();
                            at += end;
                            self.response_head(&rest[..end], decide);
                        }
                        Ok(None) if rest.len() <= MAX_HEAD => break,
                        Ok(_) => self.ambiguous(Malformed::TooLarge, decide),
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Body(body) => {
                    let (moved, end) = walk(body, rest, &mut self.upstream.scan, usize::MAX, |_| ());
                    self.out.to_app.extend_from_slice(&rest[..moved.wire]);
                    at += moved.wire;
                    match end {
                        Ok(Some((wire, trailers))) => {
                            at += wire;
                            self.response_end(None, None, &bytes[at - wire..at], trailers, decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Watched(watched) => {
                    let (moved, stop) = watched.walk(rest, &mut self.upstream.scan);
                    let messages = watched.watch.messages;
                    self.out.to_app.extend_from_slice(&rest[..moved]);
                    at += moved;
                    match stop {
                        Ok(Stop::Mark(mark)) => self.reached(mark, decide),
                        Ok(Stop::End(Some((wire, trailers)))) => {
                            at += wire;
                            self.response_end(None, messages, &bytes[at - wire..at], trailers, decide);
                        }
                        Ok(Stop::End(None)) => break,
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Withheld(kept) => {
                    let (moved, end) = kept.take(rest, &mut self.upstream.scan);
                    at += moved;
                    if let Some(why) = kept.overflow() {
                        self.release_withheld(Some(why), decide);
                        // An end that was seen is looked at again, now as that of a response on its way.
                        continue;
                    }
                    match end {
                        Ok(Some((wire, trailers))) => {
                            at += wire;
                            let Download::Withheld(kept) = std::mem::replace(&mut self.download, Download::Head) else {
                                return at;
                            };
                            let messages = kept.messages;
                            self.response_end(Some(kept), messages, &bytes[at - wire..at], trailers, decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Drain { body, left } => {
                    let (moved, end) = walk(body, rest, &mut self.upstream.scan, usize::MAX, |_| ());
                    at += moved.wire;
                    *left = left.saturating_sub(moved.wire as u64);
                    let spent = *left == 0;
                    match end {
                        Ok(Some((wire, _))) => {
                            at += wire;
                            self.download = Download::Head;
                        }
                        Ok(None) if !spent => break,
                        Ok(None) | Err(_) => self.undrained(decide),
                    }
                }
            }
        }
        at
    }

    /// Whether the upstream's bytes are the answer to a request.
    fn is_asked_for(&self) -> bool {
        matches!(self.queue.front(), Some(Exchange { reply: Reply::Upstream, .. }))
    }

    /// The upstream sent what nobody asked for.
    fn unasked(&mut self, decide: &mut dyn Interceptor) {
        if matches!(self.queue.front(), Some(Exchange { reply: Reply::Dropped, .. })) {
            self.download = Download::Stopped;
            return raise(&mut self.out.upstream, Fate::Close);
        }
        self.close_queue(Closed::ByUpstream, decide);
        if matches!(self.upload, Upload::Parked(_) | Upload::Discard(_)) {
            self.upload = Upload::Stopped;
        }
        if matches!(self.upload, Upload::Head) {
            // What has come of a request head is what it is about, as with a 408: that is never sent, and closes nothing.
            self.app.pending.clear();
            self.app.scan.reset();
        }
        self.download = Download::Unasked;
    }

    fn response_head(&mut self, raw: &[u8], decide: &mut dyn Interceptor) {
        let Some(Exchange { id: Some(id), head: to_head, connect, switch, h2c, .. }) = self.queue.front() else {
            return;
        };
        let (id, connect, switch, h2c) = (*id, *connect, *switch, *h2c);
        let mut parsed = match head::response(raw) {
            Ok(parsed) => parsed,
            Err(why) => return self.ambiguous(why, decide),
        };
        let status = parsed.head.status;
        if status == 101 {
            if !switch || connect {
                return self.ambiguous(Malformed::Switch, decide);
            }
            self.out.to_app.extend_from_slice(raw);
            self.opaque = h2c;
            self.tunnel();
            return;
        }
        if status < 200 {
            self.out.to_app.extend_from_slice(raw);
            return;
        }
        let body = match parsed.body(*to_head, connect) {
            Ok(body) => body,
            Err(why) => return self.ambiguous(why, decide),
        };
        let connects = connect && status < 300;
        let kept = |body| Kept { raw: raw.to_vec(), body, close: parsed.close, connects };
        let messages = || is_grpc(&parsed.head.fields).then(Messages::default);
        match decide.response(id, &parsed.head) {
            Verdict::Pass => self.pass_head(raw, &parsed.head.fields, body, connects, Watch::default(), decide),
            Verdict::Watch(marks) => {
                let messages = messages();
                let watch = Watch { messages, cursor: Cursor::new(marks, messages.is_some()) };
                self.pass_head(raw, &parsed.head.fields, body, connects, watch, decide);
            }
            Verdict::Withhold { limit } => match body {
                Some(Body::Length(length)) if usize::try_from(length).is_ok_and(|length| length <= limit) => {
                    self.withhold(kept(body), limit, messages());
                }
                Some(Body::Chunked(_) | Body::UntilClose) => self.withhold(kept(body), limit, messages()),
                Some(Body::Length(_)) => {
                    decide.refused(id, Refusal::Size);
                    let watch = Watch { messages: messages(), cursor: None };
                    self.pass_head(raw, &parsed.head.fields, body, connects, watch, decide);
                }
                None => self.pass_head(raw, &parsed.head.fields, body, connects, Watch::default(), decide),
            },
            Verdict::Park => self.download = Download::Parked(Box::new(kept(body))),
            Verdict::Act(act) => {
                // An answer instead of an opened tunnel leaves an upstream that does not speak HTTP any more.
                let close = parsed.close || connects;
                if self.act_on_response(act, body.as_ref(), close, decide) == Done::Pipelined {
                    decide.refused(id, Refusal::Pipelined);
                    self.pass_head(raw, &parsed.head.fields, body, connects, Watch::default(), decide);
                }
            }
        }
    }

    fn withhold(&mut self, head: Kept, limit: usize, messages: Option<Messages>) {
        self.download = Download::Withheld(Box::new(Withheld::new(head, limit, messages)));
    }

    fn pass_head(
        &mut self,
        raw: &[u8],
        fields: &Fields<'_>,
        body: Option<Body>,
        connects: bool,
        watch: Watch,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        let mut edits = decide.stamp(id, Part::Response);
        if !connects && !matches!(body, Some(Body::UntilClose)) {
            self.announce_close(fields, &mut edits);
        }
        lines::write(raw, fields, &edits, &mut self.out.to_app);
        match body {
            Some(body) => self.download = watch.over(body),
            None if connects => self.tunnel(),
            None => self.finish(decide),
        }
    }

    /// Has the response at the front of the queue, whose head is about to leave, say that the link drains, if it is the
    /// last.
    fn announce_close(&mut self, fields: &Fields<'_>, edits: &mut Edits) {
        if self.drain == Drain::No || self.queue.len() > 1 {
            return;
        }
        self.drain = Drain::Announced;
        let options = head::connection_options(fields);
        if options.clone().any(|option| option.eq_ignore_ascii_case(b"close")) {
            return;
        }
        let mut value = Vec::new();
        for option in options.filter(|option| !option.eq_ignore_ascii_case(b"keep-alive")) {
            value.extend_from_slice(option);
            value.extend_from_slice(b", ");
        }
        value.extend_from_slice(b"close");
        edits.push(Edit::Set("connection", value));
    }

    fn tunnel(&mut self) {
        self.download = Download::Tunnel;
        self.becomes_tunnel();
    }

    pub(super) fn front_id(&self) -> Option<StreamId> {
        self.queue.front().and_then(|e| e.id)
    }

    /// The response at the front of the queue has been written.
    fn finish(&mut self, decide: &mut dyn Interceptor) {
        self.download = Download::Head;
        if let Some(done) = self.queue.pop_front() {
            done.closed(Closed::Complete, decide);
            if done.switch {
                self.stays_http();
            }
        }
        if self.drain == Drain::Announced {
            self.fail(Closed::Complete, Fate::Linger, Fate::Linger, decide);
        }
        self.answer(decide);
    }

    /// A mark of the response at the front of the queue is reached: all before it has been handed on.
    fn reached(&mut self, mark: Mark, decide: &mut dyn Interceptor) {
        let Some(id) = self.front_id() else { return };
        match decide.reached(id, mark) {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {}
            Verdict::Park => match std::mem::replace(&mut self.download, Download::Head) {
                Download::Watched(watched) => self.download = Download::AtMark(watched),
                other => self.download = other,
            },
            Verdict::Act(act) => self.act_at_mark(act, decide),
        }
    }

    /// The response has arrived to its end, which is in `end`; from `trailers` on there are field lines. `messages` is
    /// what was counted.
    fn response_end(
        &mut self,
        withheld: Option<Box<Withheld>>,
        messages: Option<Messages>,
        end: &[u8],
        trailers: usize,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        let body = withheld.as_ref().map(|kept| kept.content(end));
        let fields = match (end.len() > trailers + 2).then(|| head::trailers(&end[trailers..])).transpose() {
            Ok(fields) => fields,
            Err(why) => return self.ambiguous(why, decide),
        };
        let messages = messages.map(|mut messages| {
            if let Some(body) = withheld.as_ref().and_then(|kept| kept.head.body.as_ref()) {
                messages.pass(body.content_of_end(end));
            }
            messages.begun()
        });
        let tail = Tail { trailers: fields, body: body.as_deref(), messages };
        match decide.response_end(id, &tail) {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {
                self.pass_end(withheld, end, trailers, decide)
            }
            Verdict::Park => {
                let end = end.to_vec();
                self.download = Download::ParkedEnd(Box::new(ParkedEnd { withheld, end, trailers }));
            }
            Verdict::Act(act) => self.act_on_end(act, withheld, end, trailers, decide),
        }
    }

    pub(super) fn pass_end(
        &mut self,
        withheld: Option<Box<Withheld>>,
        end: &[u8],
        trailers: usize,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        if let Some(kept) = withheld {
            self.write_withheld(id, &kept, decide);
        }
        let edits = decide.stamp(id, Part::ResponseEnd);
        if end.len() > trailers + 2 {
            let fields = head::trailers(&end[trailers..]).expect("the trailers were well-formed at their interception");
            lines::write(end, &fields, &edits, &mut self.out.to_app);
        } else {
            self.out.to_app.extend_from_slice(end);
        }
        self.finish(decide);
    }

    fn write_withheld(&mut self, id: StreamId, kept: &Withheld, decide: &mut dyn Interceptor) {
        let parsed = head::response(&kept.head.raw).expect("the head was well-formed when it was kept back");
        let mut edits = decide.stamp(id, Part::Response);
        if !kept.head.ends_connection() {
            self.announce_close(&parsed.head.fields, &mut edits);
        }
        lines::write(&kept.head.raw, &parsed.head.fields, &edits, &mut self.out.to_app);
        self.out.to_app.extend_from_slice(&kept.bytes);
    }

    /// Lets a withheld response go before its end.
    fn release_withheld(&mut self, why: Option<Refusal>, decide: &mut dyn Interceptor) {
        let Download::Withheld(kept) = std::mem::replace(&mut self.download, Download::Stopped) else { return };
        let Some(id) = self.front_id() else { return };
        if let Some(why) = why {
            decide.refused(id, why);
        }
        self.write_withheld(id, &kept, decide);
        if let Some(body) = kept.head.body {
            self.download = Watch { messages: kept.messages, cursor: None }.over(body);
        }
    }

    /// The parked response goes on.
    pub(super) fn resume_response(&mut self, act: Option<Act>, decide: &mut dyn Interceptor) {
        let Some(id) = self.front_id() else { return };
        match std::mem::replace(&mut self.download, Download::Head) {
            Download::Parked(kept) => {
                let close = kept.ends_connection();
                if let Some(act) = act {
                    if self.act_on_response(act, kept.body.as_ref(), close, decide) == Done::Acted {
                        return;
                    }
                    decide.refused(id, Refusal::Pipelined);
                }
                let parsed = head::response(&kept.raw).expect("the head was well-formed when it was parked");
                self.pass_head(&kept.raw, &parsed.head.fields, kept.body, kept.connects, Watch::default(), decide);
            }
            Download::AtMark(watched) => {
                self.download = Download::Watched(watched);
                if let Some(act) = act {
                    self.act_at_mark(act, decide);
                }
            }
            Download::ParkedEnd(parked) => {
                let ParkedEnd { withheld, end, trailers } = *parked;
                match act {
                    Some(act) => self.act_on_end(act, withheld, &end, trailers, decide),
                    None => self.pass_end(withheld, &end, trailers, decide),
                }
            }
            other => self.download = other,
        }
    }

    /// The upstream's bytes could mean two things.
    fn ambiguous(&mut self, why: Malformed, decide: &mut dyn Interceptor) {
        tracing::debug!(%why, "response refused");
        self.fail(Closed::ByUpstream, Fate::Close, Fate::Close, decide);
    }

    /// Acts upon the upstream's end when all its bytes have been.
    pub(super) fn settle_upstream_end(&mut self, decide: &mut dyn Interceptor) {
        let Some(how) = self.upstream.end else { return };
        if self.upstream.ended || self.download.is_parked() {
            return;
        }
        if how == PeerEnd::Eof {
            let ends_here = match &self.download {
                Download::Body(Body::UntilClose) => true,
                Download::Watched(watched) => matches!(watched.body, Body::UntilClose),
                Download::Withheld(kept) => matches!(kept.head.body, Some(Body::UntilClose)),
                _ => false,
            };
            if ends_here {
                let (messages, withheld) = match std::mem::replace(&mut self.download, Download::Head) {
                    Download::Withheld(kept) => (kept.messages, Some(kept)),
                    Download::Watched(watched) => (watched.watch.messages, None),
                    _ => (None, None),
                };
                self.response_end(withheld, messages, &[], 0, decide);
                if self.upstream.ended || self.download.is_parked() {
                    return;
                }
            }
        }
        match &self.download {
            // Cut short: the application sees as much of it as it would have.
            Download::Withheld(_) => {
                let partial = std::mem::take(&mut self.upstream.pending);
                self.release_withheld(None, decide);
                self.out.to_app.extend_from_slice(&partial);
            }
            Download::Body(_) | Download::Watched(_) => {
                let partial = std::mem::take(&mut self.upstream.pending);
                self.out.to_app.extend_from_slice(&partial);
            }
            _ => {}
        }
        self.upstream.ended = true;
        if matches!(self.download, Download::Tunnel) && how == PeerEnd::Eof {
            raise(&mut self.out.app, Fate::Fin);
            return self.settle_tunnel(decide);
        }
        self.download = Download::Stopped;
        self.upstream_is_gone(how, decide);
    }

    fn upstream_is_gone(&mut self, how: PeerEnd, decide: &mut dyn Interceptor) {
        let closed = if self.app.end.is_some() { Closed::ByApplication } else { Closed::ByUpstream };
        match self.queue.front().map(|e| &e.reply) {
            // The application waits for nobody; it must not notice.
            Some(Reply::Dropped) => return raise(&mut self.out.upstream, Fate::Close),
            // Nothing of it was sent to the upstream: decided when its turn comes.
            Some(Reply::Parked | Reply::Made { .. }) => return,
            // A refusal is told at the first request.
            None if how == PeerEnd::Refused => return,
            Some(Reply::Upstream) | None => {}
        }
        self.close_queue(closed, decide);
        match how {
            PeerEnd::Eof => {
                if matches!(self.upload, Upload::Parked(_) | Upload::Discard(_) | Upload::Switching) {
                    self.upload = Upload::Stopped;
                }
                raise(&mut self.out.app, Fate::Fin);
            }
            PeerEnd::Broken | PeerEnd::Refused => self.fail(closed, Fate::Reset, Fate::Close, decide),
        }
    }
}
