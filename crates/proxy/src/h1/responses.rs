//! The upstream's side: responses in, towards the application.

use bytes::BytesMut;

use super::body::{Body, Piece};
use super::requests::Upload;
use super::{Done, Exchange, Link, MAX_HEAD, Malformed, Reply, head, lines, raise};
use crate::exchange::{Act, Closed, Fate, Interceptor, Part, PeerEnd, Refusal, StreamId, Tail, Verdict};

/// What the next byte of the upstream is.
#[derive(Debug)]
pub(super) enum Download {
    /// The start of a response.
    Head,
    /// Of a body that is forwarded.
    Body(Body),
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
        matches!(self, Self::Parked(_) | Self::ParkedEnd(_))
    }
}

/// A response head that has not left.
#[derive(Debug)]
pub(super) struct Kept {
    raw: Vec<u8>,
    body: Option<Body>,
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

/// A response that is kept back; `head.body` is what is still to come.
#[derive(Debug)]
pub(super) struct Withheld {
    pub(super) head: Kept,
    bytes: BytesMut,
    payload: usize,
    limit: usize,
}

#[derive(Debug)]
pub(super) struct ParkedEnd {
    withheld: Option<Box<Withheld>>,
    end: Vec<u8>,
    trailers: usize,
}

impl Withheld {
    /// Framing counts too: chunks of one byte must not be a way to make us keep thousands of times the limit.
    fn is_full(&self) -> bool {
        self.payload > self.limit || self.bytes.len() > self.limit.saturating_mul(2).saturating_add(MAX_HEAD)
    }
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
                Download::Parked(_) | Download::ParkedEnd(_) => break,
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
                    let (moved, end) = walk(body, rest, &mut self.upstream.scan, usize::MAX);
                    self.out.to_app.extend_from_slice(&rest[..moved.wire]);
                    at += moved.wire;
                    match end {
                        Ok(Some((wire, trailers))) => {
                            at += wire;
                            self.response_end(None, &bytes[at - wire..at], trailers, decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Withheld(kept) => {
                    let Some(body) = &mut kept.head.body else { return at };
                    let allowed = kept.limit.saturating_sub(kept.payload).saturating_add(1);
                    let (moved, end) = walk(body, rest, &mut self.upstream.scan, allowed);
                    kept.bytes.extend_from_slice(&rest[..moved.wire]);
                    kept.payload += moved.payload;
                    at += moved.wire;
                    if kept.is_full() {
                        self.release_withheld(Some(Refusal::Size), decide);
                        // An end that was seen is looked at again, now as that of a response on its way.
                        continue;
                    }
                    match end {
                        Ok(Some((wire, trailers))) => {
                            at += wire;
                            let Download::Withheld(kept) = std::mem::replace(&mut self.download, Download::Head) else {
                                return at;
                            };
                            self.response_end(Some(kept), &bytes[at - wire..at], trailers, decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.ambiguous(why, decide),
                    }
                }
                Download::Drain { body, left } => {
                    let (moved, end) = walk(body, rest, &mut self.upstream.scan, usize::MAX);
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
        match decide.response(id, &parsed.head) {
            Verdict::Pass | Verdict::Watch(_) => self.pass_head(raw, &parsed.head.fields, body, connects, decide),
            Verdict::Withhold { limit } => match body {
                Some(Body::Length(length)) if usize::try_from(length).is_ok_and(|length| length <= limit) => {
                    self.withhold(kept(body), limit);
                }
                Some(Body::Chunked(_) | Body::UntilClose) => self.withhold(kept(body), limit),
                Some(Body::Length(_)) => {
                    decide.refused(id, Refusal::Size);
                    self.pass_head(raw, &parsed.head.fields, body, connects, decide);
                }
                None => self.pass_head(raw, &parsed.head.fields, body, connects, decide),
            },
            Verdict::Park => self.download = Download::Parked(Box::new(kept(body))),
            Verdict::Act(act) => {
                // An answer instead of an opened tunnel leaves an upstream that does not speak HTTP any more.
                let close = parsed.close || connects;
                if self.act_on_response(act, body.as_ref(), close, decide) == Done::Pipelined {
                    decide.refused(id, Refusal::Pipelined);
                    self.pass_head(raw, &parsed.head.fields, body, connects, decide);
                }
            }
        }
    }

    fn withhold(&mut self, head: Kept, limit: usize) {
        self.download = Download::Withheld(Box::new(Withheld { head, bytes: BytesMut::new(), payload: 0, limit }));
    }

    fn pass_head(
        &mut self,
        raw: &[u8],
        fields: &crate::exchange::Fields<'_>,
        body: Option<Body>,
        connects: bool,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        let edits = decide.stamp(id, Part::Response);
        lines::write(raw, fields, &edits, &mut self.out.to_app);
        match body {
            Some(body) => self.download = Download::Body(body),
            None if connects => self.tunnel(),
            None => self.finish(decide),
        }
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
        self.answer(decide);
    }

    /// The response has arrived to its end, which is in `end`; from `trailers` on there are field lines.
    fn response_end(
        &mut self,
        withheld: Option<Box<Withheld>>,
        end: &[u8],
        trailers: usize,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        let fields = match (end.len() > trailers + 2).then(|| head::trailers(&end[trailers..])).transpose() {
            Ok(fields) => fields,
            Err(why) => return self.ambiguous(why, decide),
        };
        let tail = Tail { trailers: fields, ..Tail::default() };
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
        let edits = decide.stamp(id, Part::Response);
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
            self.download = Download::Body(body);
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
                self.pass_head(&kept.raw, &parsed.head.fields, kept.body, kept.connects, decide);
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
                Download::Withheld(kept) => matches!(kept.head.body, Some(Body::UntilClose)),
                _ => false,
            };
            if ends_here {
                let withheld = match std::mem::replace(&mut self.download, Download::Head) {
                    Download::Withheld(kept) => Some(kept),
                    _ => None,
                };
                self.response_end(withheld, &[], 0, decide);
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
            Download::Body(_) => {
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

/// How far a walk over a body went.
#[derive(Default)]
struct Moved {
    wire: usize,
    payload: usize,
}

/// Where a message ends: length of the end, and where in it the trailers start.
type End = Option<(usize, usize)>;

/// Steps over as much of a body as there is, up to its end or until more than `payload` bytes of content were passed; the
/// end itself is not counted in what was moved.
fn walk(body: &mut Body, bytes: &[u8], scan: &mut super::Scan, payload: usize) -> (Moved, Result<End, Malformed>) {
    let mut moved = Moved::default();
    loop {
        match body.step(&bytes[moved.wire..], scan) {
            Ok(Piece::Some { wire, payload }) => {
                moved.wire += wire;
                moved.payload += payload;
            }
            Ok(Piece::End { wire, trailers }) => return (moved, Ok(Some((wire, trailers)))),
            Ok(Piece::More) => return (moved, Ok(None)),
            Err(why) => return (moved, Err(why)),
        }
        if moved.payload >= payload {
            return (moved, Ok(None));
        }
    }
}
