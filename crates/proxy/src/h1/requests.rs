//! The application's side: requests in, towards the upstream.

use bytes::Bytes;

use super::body::{Body, walk};
use super::responses::Download;
use super::{Done, Drain, Exchange, Link, MAX_HEAD, MAX_QUEUE, Malformed, Reply, head, lines, raise};
use crate::exchange::{Act, Closed, Edits, Fate, Interceptor, Made, Part, PeerEnd, Refusal, StreamId, Verdict};

/// What the next byte of the application is.
#[derive(Debug)]
pub(super) enum Upload {
    /// The start of a request.
    Head,
    /// Of the body of a request that was forwarded; what comes behind it.
    Body { of: StreamId, body: Body, then: Then },
    /// Of the body of a request that is parked, or of a later one: not taken.
    Parked(Box<Parked>),
    /// Of the body of a request that is answered here: thrown away.
    Discard(Body),
    /// Unknown until the upstream has answered a request to switch: not taken.
    Switching,
    /// No longer HTTP/1.
    Tunnel,
    /// Nothing: the connection ends, or its last request was dropped.
    Stopped,
}

/// What follows a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Head,
    Switching,
    Tunnel,
}

impl From<Then> for Upload {
    fn from(then: Then) -> Self {
        match then {
            Then::Head => Self::Head,
            Then::Switching => Self::Switching,
            Then::Tunnel => Self::Tunnel,
        }
    }
}

/// A request that waits for its resume. Its body is still in the pending bytes.
#[derive(Debug)]
pub(super) struct Parked {
    head: Vec<u8>,
    body: Option<Body>,
    expects: bool,
}

impl Link {
    /// Takes what can be taken from the front of `bytes`; how many bytes that were.
    pub(super) fn take_requests(&mut self, bytes: &[u8], decide: &mut dyn Interceptor) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.upload {
                Upload::Stopped => return bytes.len(),
                Upload::Tunnel => {
                    self.out.to_upstream.extend_from_slice(rest);
                    return bytes.len();
                }
                Upload::Switching | Upload::Parked(_) => break,
                Upload::Head => {
                    if matches!(self.download, Download::Unasked) {
                        // Its answer could not be told from what the upstream is sending.
                        self.fail(Closed::ByApplication, Fate::Close, Fate::Close, decide);
                        continue;
                    }
                    if !self.takes_request() {
                        break;
                    }
                    match self.app.scan.head(rest) {
                        Ok(Some(end)) if end <= MAX_HEAD => {
                            self.app.scan.reset();
                            at += end;
                            self.request_head(&rest[..end], &rest[end..], decide);
                        }
                        Ok(None) if rest.len() <= MAX_HEAD => break,
                        Ok(_) => self.refuse(Malformed::TooLarge, decide),
                        Err(why) => self.refuse(why, decide),
                    }
                }
                Upload::Body { body, .. } => {
                    let (moved, end) = walk(body, rest, &mut self.app.scan, usize::MAX, |_| ());
                    self.out.to_upstream.extend_from_slice(&rest[..moved.wire]);
                    at += moved.wire;
                    match end {
                        Ok(Some((wire, trailers))) => {
                            at += wire;
                            self.request_end(&bytes[at - wire..at], trailers, decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.broken_request(why, decide),
                    }
                }
                Upload::Discard(body) => {
                    let (moved, end) = walk(body, rest, &mut self.app.scan, usize::MAX, |_| ());
                    at += moved.wire;
                    match end {
                        Ok(Some((wire, _))) => {
                            at += wire;
                            self.upload = Upload::Head;
                            if let Some(Exchange { reply: Reply::Made { ready, .. }, .. }) = self.queue.back_mut() {
                                *ready = true;
                            }
                            self.answer(decide);
                        }
                        Ok(None) => break,
                        Err(why) => self.broken_request(why, decide),
                    }
                }
            }
        }
        at
    }

    /// Whether the next request may be looked at now.
    pub(super) fn takes_request(&self) -> bool {
        let last_is_under_way = self.drain != Drain::No && !self.queue.is_empty();
        self.queue.len() < MAX_QUEUE && !matches!(self.download, Download::Drain { .. }) && !last_is_under_way
    }

    /// A complete head; `behind` is what has arrived after it.
    fn request_head(&mut self, raw: &[u8], behind: &[u8], decide: &mut dyn Interceptor) {
        let parsed = match head::request(raw) {
            Ok(parsed) => parsed,
            Err(why) => return self.refuse(why, decide),
        };
        self.last += 1;
        let id = StreamId(self.last);
        let verdict = decide.request(id, &parsed.head);
        self.queue.push_back(Exchange {
            id: Some(id),
            head: parsed.head.method == "HEAD",
            connect: parsed.head.method == "CONNECT",
            switch: parsed.switch,
            h2c: parsed.h2c,
            close: parsed.close,
            reply: Reply::Upstream,
        });
        let verdict = if self.out.app != Fate::Open && matches!(verdict, Verdict::Park | Verdict::Act(_)) {
            // The upstream has closed and the application was told so: no answer can be given any more.
            decide.refused(id, Refusal::TooLate);
            Verdict::Pass
        } else {
            verdict
        };
        match verdict {
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => self.forward(raw, &parsed, decide),
            Verdict::Park => {
                self.upload =
                    Upload::Parked(Box::new(Parked { head: raw.to_vec(), body: parsed.body, expects: parsed.expects }));
                self.set_reply(Reply::Parked);
            }
            Verdict::Act(act) => {
                if self.act_on_request(act, parsed.body.as_ref(), parsed.expects, behind, decide) == Done::Pipelined {
                    decide.refused(id, Refusal::Pipelined);
                    self.forward(raw, &parsed, decide);
                }
            }
        }
    }

    /// The parked request goes on.
    pub(super) fn resume_request(&mut self, act: Option<Act>, decide: &mut dyn Interceptor) {
        let Upload::Parked(parked) = std::mem::replace(&mut self.upload, Upload::Head) else {
            return;
        };
        let id = StreamId(self.last);
        self.set_reply(Reply::Upstream);
        let pending = std::mem::take(&mut self.app.pending);
        let faulty = act.is_some();
        let done = act.map_or(Done::Pipelined, |act| {
            self.act_on_request(act, parked.body.as_ref(), parked.expects, &pending, decide)
        });
        if !matches!(self.upload, Upload::Stopped) {
            self.app.pending = pending;
        }
        if done == Done::Pipelined {
            if faulty {
                decide.refused(id, Refusal::Pipelined);
            }
            let parsed = head::request(&parked.head).expect("the head was well-formed when it was parked");
            self.forward(&parked.head, &parsed, decide);
        }
    }

    /// Writes the head of the last request in the queue.
    fn forward(&mut self, raw: &[u8], parsed: &head::Request<'_>, decide: &mut dyn Interceptor) {
        if self.upstream.end.is_some() {
            return self.fail(Closed::ByUpstream, Fate::Reset, Fate::Close, decide);
        }
        let of = StreamId(self.last);
        let edits = decide.stamp(of, Part::Request);
        lines::write(raw, &parsed.head.fields, &edits, &mut self.out.to_upstream);
        let then = if parsed.switch { Then::Switching } else { Then::Head };
        self.upload = match parsed.body.clone() {
            Some(body) => Upload::Body { of, body, then },
            None => then.into(),
        };
    }

    /// The request that is being forwarded has arrived to its end, which is in `end`; from `trailers` on there are field
    /// lines. Nobody is told of the end of a request that was answered before, or of a CONNECT.
    fn request_end(&mut self, end: &[u8], trailers: usize, decide: &mut dyn Interceptor) {
        let Upload::Body { of, then, .. } = &self.upload else { return };
        let (of, then) = (*of, *then);
        let fields = match (end.len() > trailers + 2).then(|| head::trailers(&end[trailers..])).transpose() {
            Ok(fields) => fields,
            Err(why) => return self.broken_request(why, decide),
        };
        let edits = if self.queue.back().is_some_and(|last| last.is(of) && !last.connect) {
            decide.request_end(of, fields.as_ref());
            decide.stamp(of, Part::RequestEnd)
        } else {
            Edits::new()
        };
        match fields {
            Some(fields) => lines::write(end, &fields, &edits, &mut self.out.to_upstream),
            None => self.out.to_upstream.extend_from_slice(end),
        }
        self.upload = then.into();
    }

    pub(super) fn set_reply(&mut self, reply: Reply) {
        if let Some(last) = self.queue.back_mut() {
            last.reply = reply;
        }
    }

    /// Answers what cannot be read, when its turn has come, and takes nothing more.
    fn refuse(&mut self, why: Malformed, decide: &mut dyn Interceptor) {
        tracing::debug!(%why, "request refused");
        self.upload = Upload::Stopped;
        let made = refusal(why);
        self.queue.push_back(Exchange {
            id: None,
            head: false,
            connect: false,
            switch: false,
            h2c: false,
            close: true,
            reply: Reply::Made { made, ready: true, close: true },
        });
        self.answer(decide);
    }

    /// The body of a forwarded request turned out to be malformed.
    fn broken_request(&mut self, why: Malformed, decide: &mut dyn Interceptor) {
        let Upload::Body { of, .. } = self.upload else { return self.refuse(why, decide) };
        let waiting = self.queue.len();
        match self.queue.back_mut() {
            Some(last) if last.is(of) => {
                if waiting == 1 && !matches!(self.download, Download::Head) {
                    // Its response is on its way: another answer cannot be put there.
                    return self.fail(Closed::ByApplication, Fate::Linger, Fate::Reset, decide);
                }
                tracing::debug!(%why, "request refused in its body");
                last.closed(Closed::ByApplication, decide);
                last.id = None;
                last.reply = Reply::Made { made: refusal(why), ready: true, close: true };
                self.upload = Upload::Stopped;
                self.answer(decide);
            }
            _ => self.refuse(why, decide),
        }
    }

    /// Passes the application's FIN on when all its bytes have been.
    pub(super) fn settle_app_end(&mut self, decide: &mut dyn Interceptor) {
        if self.app.end != Some(PeerEnd::Eof) || self.app.ended {
            return;
        }
        match &self.upload {
            Upload::Parked(_) => return,
            Upload::Head if !self.app.pending.is_empty() && !self.takes_request() => return,
            Upload::Switching if !self.app.pending.is_empty() => return,
            Upload::Discard(_) => {
                if let Some(cut) = self.queue.pop_back() {
                    cut.closed(Closed::ByApplication, decide);
                }
                if self.queue.is_empty() {
                    return self.fail(Closed::ByApplication, Fate::Close, Fate::Close, decide);
                }
                self.upload = Upload::Stopped;
            }
            Upload::Head | Upload::Body { .. } => self.upload = Upload::Stopped,
            Upload::Switching | Upload::Tunnel | Upload::Stopped => {}
        }
        self.app.ended = true;
        raise(&mut self.out.upstream, Fate::Fin);
        self.settle_tunnel(decide);
    }

    /// A tunnel is over when both peers have closed.
    pub(super) fn settle_tunnel(&mut self, decide: &mut dyn Interceptor) {
        if matches!(self.download, Download::Tunnel) && self.app.ended && self.upstream.ended {
            self.close_queue(Closed::Complete, decide);
        }
    }

    /// The request that asked for another protocol got an ordinary answer.
    pub(super) fn stays_http(&mut self) {
        match &mut self.upload {
            Upload::Switching => self.upload = Upload::Head,
            Upload::Body { then, .. } if *then == Then::Switching => *then = Then::Head,
            _ => {}
        }
    }

    /// The request that asked for another protocol got it.
    pub(super) fn becomes_tunnel(&mut self) {
        match &mut self.upload {
            Upload::Switching => self.upload = Upload::Tunnel,
            Upload::Body { then, .. } => *then = Then::Tunnel,
            _ => {}
        }
    }
}

fn refusal(why: Malformed) -> Box<Made> {
    let status = if why == Malformed::TooLarge { 431 } else { 400 };
    Box::new(Made { status, fields: Vec::new(), body: Bytes::new(), trailers: None })
}
