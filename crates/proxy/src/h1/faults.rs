//! Faults instead of messages: what an act means for the connection it is done on.
//!
//! A fault must not hit another request of the connection: with one outstanding, an act that ends the connection is not
//! done. A made answer takes its place in the queue; the connection stays only if the request was read to its end, neither
//! side said close, and what the upstream still sends of its response can be drained.

use bytes::BytesMut;

use super::body::Body;
use super::requests::Upload;
use super::responses::Download;
use super::watched::Withheld;
use super::{Done, Exchange, Link, MAX_DRAIN, Reply, raise};
use crate::exchange::{Act, Closed, Fate, Interceptor, Refusal};

impl Link {
    /// A fault instead of the last request in the queue, of which nothing has left.
    pub(super) fn act_on_request(
        &mut self,
        act: Act,
        body: Option<&Body>,
        expects: bool,
        behind: &[u8],
        decide: &mut dyn Interceptor,
    ) -> Done {
        let pipelined = self.queue.len() > 1 || body.map_or(!behind.is_empty(), |body| body.has_more_behind(behind));
        match act {
            Act::Drop | Act::Reset { .. } if pipelined => return Done::Pipelined,
            Act::Drop => {
                self.upload = Upload::Stopped;
                self.set_reply(Reply::Dropped);
            }
            Act::Reset { .. } => self.fail(Closed::ByFault, Fate::Reset, Fate::Close, decide),
            Act::Answer(made) => {
                let read = match body {
                    None => true,
                    Some(Body::Length(length)) => !expects && *length <= MAX_DRAIN,
                    Some(_) => false,
                };
                let close = !read || self.queue.back().is_some_and(|e| e.close) || self.upstream.end.is_some();
                if close && pipelined {
                    return Done::Pipelined;
                }
                let ready = body.is_none() || !read;
                self.upload = match body {
                    Some(body) if read => Upload::Discard(body.clone()),
                    None if !close => Upload::Head,
                    _ => Upload::Stopped,
                };
                self.set_reply(Reply::Made { made, ready, close });
                self.answer(decide);
            }
        }
        Done::Acted
    }

    /// A fault at the end of a response: instead of all of it if it was withheld, else of its end.
    pub(super) fn act_on_end(
        &mut self,
        act: Act,
        withheld: Option<Box<Withheld>>,
        end: &[u8],
        trailers: usize,
        decide: &mut dyn Interceptor,
    ) {
        let Some(id) = self.front_id() else { return };
        // What has left cannot be replaced by an answer.
        let refusal = if withheld.is_none() && matches!(act, Act::Answer(_)) {
            Some(Refusal::TooLate)
        } else {
            let close = withheld.as_ref().is_some_and(|kept| kept.head.ends_connection());
            (self.act_on_response(act, None, close, decide) == Done::Pipelined).then_some(Refusal::Pipelined)
        };
        if let Some(why) = refusal {
            decide.refused(id, why);
            self.pass_end(withheld, end, trailers, decide);
        }
    }

    /// A fault in mid-body, at a mark. What cannot be done leaves the response to go on.
    pub(super) fn act_at_mark(&mut self, act: Act, decide: &mut dyn Interceptor) {
        let (Some(id), Download::Watched(watched)) = (self.front_id(), &self.download) else { return };
        let rest = watched.body.clone();
        // What has left cannot be replaced by an answer.
        if matches!(act, Act::Answer(_)) {
            decide.refused(id, Refusal::TooLate);
        } else if self.act_on_response(act, Some(&rest), false, decide) == Done::Pipelined {
            decide.refused(id, Refusal::Pipelined);
        }
    }

    /// A fault with the response at the front of the queue, of which at least the end has not left. `rest` is what the
    /// upstream has still to send of it; `close` says that the upstream will close behind it.
    pub(super) fn act_on_response(
        &mut self,
        act: Act,
        rest: Option<&Body>,
        close: bool,
        decide: &mut dyn Interceptor,
    ) -> Done {
        // What lies behind a refused request to switch is the next one.
        let behind = match self.upload {
            Upload::Head => !self.app.pending.is_empty(),
            Upload::Switching => !self.app.pending.is_empty() && self.queue.front().is_some_and(|e| !e.connect),
            _ => false,
        };
        let pipelined = self.queue.len() > 1 || behind;
        let drain = |rest: &Body| Download::Drain { body: rest.clone(), left: MAX_DRAIN };
        match act {
            Act::Drop | Act::Reset { .. } if pipelined => return Done::Pipelined,
            Act::Reset { .. } => self.fail(Closed::ByFault, Fate::Reset, Fate::Linger, decide),
            Act::Drop => {
                self.upload = Upload::Stopped;
                self.app.pending = BytesMut::new();
                self.download = rest.map_or(Download::Head, drain);
                if let Some(front) = self.queue.front_mut() {
                    front.reply = Reply::Dropped;
                }
            }
            Act::Answer(made) => {
                let uploads = self.queue.len() == 1 && matches!(self.upload, Upload::Body { .. });
                let endless = match rest {
                    Some(Body::UntilClose) => true,
                    Some(Body::Length(length)) => *length > MAX_DRAIN,
                    Some(Body::Chunked(_)) | None => false,
                };
                let Some(front) = self.queue.front_mut() else { return Done::Acted };
                let close = close || front.close || uploads || endless || self.upstream.end.is_some();
                if pipelined && (close || matches!(rest, Some(Body::Chunked(_)))) {
                    return Done::Pipelined;
                }
                front.reply = Reply::Made { made, ready: true, close };
                self.stays_http();
                self.download = rest.map_or(Download::Head, drain);
                self.answer(decide);
            }
        }
        Done::Acted
    }

    /// A response that was taken off the wire does not end within the limit.
    pub(super) fn undrained(&mut self, decide: &mut dyn Interceptor) {
        if matches!(self.queue.front(), Some(Exchange { reply: Reply::Dropped, .. })) {
            self.download = Download::Stopped;
            raise(&mut self.out.upstream, Fate::Close);
        } else {
            self.fail(Closed::ByUpstream, Fate::Linger, Fate::Close, decide);
        }
    }
}
