//! Spans on their way to the collector: OTLP over HTTP, batched, bounded (design §3.9, §3.11).
//!
//! Traffic never waits for the collector. A span is encoded at once, while what it says is at hand, into the batch with
//! which it will leave. The buffer holds at most [`CAPACITY`] spans; what does not fit, and what the collector does not
//! take, is lost and counted, in total and for each round, so that its executions are known to be incomplete. A flush is
//! answered when every span recorded before it has been accepted or counted lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use aftershock_core::id::Token;
use aftershock_core::otlp::{self, Batch};
use aftershock_core::span::CallSpan;
use aftershock_core::wire::TRACES_PATH;
use aftershock_trust::{Endpoint, TrustError};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

/// Most spans kept until the collector takes them.
pub const CAPACITY: usize = 8_192;
/// Most spans of one request.
const BATCH: usize = 512;
/// How long spans wait for company.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before a batch is tried again; then it is lost.
const RETRIES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// The largest answer that is read.
const MAX_ANSWER: usize = 64 << 10;

/// How many spans went where, since the process began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Accepted by the collector.
    pub exported: u64,
    /// Lost.
    pub lost: u64,
    /// Lost, for each round.
    pub lost_of: BTreeMap<Token, u64>,
}

/// Encoded spans that leave together.
#[derive(Debug, Default)]
struct Packed {
    batch: Batch,
    /// How many of them belong to each round, in the order in which those came.
    rounds: Vec<(Token, u64)>,
}

impl Packed {
    fn push(&mut self, span: &CallSpan) {
        self.batch.push(span);
        match self.rounds.iter_mut().rev().find(|(token, _)| *token == span.token) {
            Some((_, spans)) => *spans += 1,
            None => self.rounds.push((span.token, 1)),
        }
    }
}

/// Spans that wait, and flushes that wait for them.
#[derive(Debug, Default)]
struct Queue {
    /// In order; all but the last are full.
    waiting: VecDeque<Packed>,
    /// How many spans those are.
    spans: usize,
    /// The memory of a batch that has left: under load the next one is as large.
    spare: Vec<u8>,
    tally: Tally,
    /// Spans that were ever put into `waiting`.
    queued: u64,
    /// How many of them have been accepted or lost. Spans are sent in order.
    settled: u64,
    /// Flushes, with `queued` as it was when each was asked for.
    flushes: VecDeque<(u64, u64)>,
    stopped: bool,
}

impl Queue {
    fn put(&mut self, span: &CallSpan) {
        if self.spans >= CAPACITY {
            return self.lose(span.token, 1);
        }
        if self.waiting.back().is_none_or(|last| last.batch.len() >= BATCH) {
            let batch = Batch::reusing(std::mem::take(&mut self.spare));
            self.waiting.push_back(Packed { batch, rounds: Vec::new() });
        }
        if let Some(last) = self.waiting.back_mut() {
            last.push(span);
            self.spans += 1;
            self.queued += 1;
        }
    }

    fn lose(&mut self, token: Token, spans: u64) {
        self.tally.lost += spans;
        if !token.is_zero() {
            *self.tally.lost_of.entry(token).or_default() += spans;
        }
    }
}

/// The bounded buffer. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Spans {
    queue: Rc<RefCell<Queue>>,
    wake: Rc<Notify>,
}

impl Spans {
    /// Record spans.
    pub fn push(&self, spans: &[CallSpan]) {
        let mut queue = self.queue.borrow_mut();
        let before = queue.spans;
        spans.iter().for_each(|span| queue.put(span));
        // Who waits for company is told of the first, and when it is enough.
        if (before == 0 && queue.spans > 0) || (before < BATCH && queue.spans >= BATCH) {
            self.wake.notify_one();
        }
    }

    /// Ask for everything recorded so far; `id` comes out of [`Spans::flushed`] when it has been dealt with.
    pub fn flush(&self, id: u64) {
        let mut queue = self.queue.borrow_mut();
        let upto = queue.queued;
        queue.flushes.push_back((id, upto));
        self.wake.notify_one();
    }

    /// Flushes that are done since the last call.
    pub fn flushed(&self) -> Vec<u64> {
        let mut queue = self.queue.borrow_mut();
        let mut done = Vec::new();
        while let Some((id, upto)) = queue.flushes.front().copied() {
            if queue.settled < upto {
                break;
            }
            queue.flushes.pop_front();
            done.push(id);
        }
        done
    }

    /// Whoever asked for flushes is gone.
    pub fn forget_flushes(&self) {
        self.queue.borrow_mut().flushes.clear();
    }

    /// Where spans went. Losses of rounds other than `live` are forgotten.
    pub fn tally(&self, live: &[Token]) -> Tally {
        let mut queue = self.queue.borrow_mut();
        queue.tally.lost_of.retain(|token, _| live.contains(token));
        queue.tally.clone()
    }

    /// Where spans went since the process began: what was exported, what was lost.
    pub fn total(&self) -> (u64, u64) {
        let queue = self.queue.borrow();
        (queue.tally.exported, queue.tally.lost)
    }

    /// How many spans wait.
    pub fn waiting(&self) -> usize {
        self.queue.borrow().spans
    }

    /// Send what is left, then end [`Spans::run`].
    pub fn stop(&self) {
        self.queue.borrow_mut().stopped = true;
        self.wake.notify_one();
    }

    fn take_batch(&self) -> Packed {
        let mut queue = self.queue.borrow_mut();
        let packed = queue.waiting.pop_front().unwrap_or_default();
        queue.spans -= packed.batch.len();
        packed
    }

    fn is_urgent(&self) -> bool {
        let queue = self.queue.borrow();
        queue.stopped || !queue.flushes.is_empty() || queue.spans >= BATCH
    }

    fn is_empty(&self) -> bool {
        self.queue.borrow().waiting.is_empty()
    }

    fn is_stopped(&self) -> bool {
        self.queue.borrow().stopped
    }

    /// Spans of these rounds have been accepted or lost.
    fn settle(&self, rounds: &[(Token, u64)], accepted: bool) {
        let mut queue = self.queue.borrow_mut();
        for (token, spans) in rounds {
            queue.settled += spans;
            if accepted {
                queue.tally.exported += spans;
            } else {
                queue.lose(*token, *spans);
            }
        }
    }

    /// The memory of a batch that has left is of use only where batches are full: idle, nothing is kept.
    fn reuse(&self, body: Bytes, spans: usize) {
        let memory = body.try_into_mut().ok().filter(|_| spans >= BATCH);
        self.queue.borrow_mut().spare = memory.map(Vec::from).unwrap_or_default();
    }

    /// Export until stopped. `settled` is called whenever flushes may be done.
    pub async fn run(self, control: Endpoint, settled: impl Fn()) {
        let mut collector = Collector { control, connection: None };
        loop {
            while self.is_empty() && !self.is_stopped() {
                settled();
                self.wake.notified().await;
            }
            if self.is_empty() {
                settled();
                return;
            }
            if !self.is_urgent() {
                // More spans may come; a flush does not wait for them.
                let _ = tokio::time::timeout(PAUSE, self.until_urgent()).await;
            }
            let Packed { batch, rounds } = self.take_batch();
            let spans = batch.len();
            let body = Bytes::from(batch.finish());
            let accepted = collector.send_patiently(&body, spans).await;
            self.reuse(body, spans);
            self.settle(&rounds, accepted);
            settled();
        }
    }

    async fn until_urgent(&self) {
        while !self.is_urgent() {
            self.wake.notified().await;
        }
    }
}

/// Why the collector did not take a batch.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("cannot connect to the collector")]
    Connect(#[source] std::io::Error),
    #[error("the connection to the collector broke")]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the collector did not answer in time")]
    Timeout,
    #[error("the collector answered {0}")]
    Status(StatusCode),
    #[error("the collector refused {rejected} spans: {message}")]
    Rejected { rejected: u64, message: String },
}

impl SendError {
    /// Whether the same batch may be taken later (OTLP/HTTP: 429, 502, 503, 504, and no answer).
    fn may_pass(&self) -> bool {
        match self {
            SendError::Connect(_) | SendError::Http(_) | SendError::Trust(_) | SendError::Timeout => true,
            SendError::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            SendError::Rejected { .. } => false,
        }
    }
}

/// The collector, over one connection that is opened again when it broke.
struct Collector {
    control: Endpoint,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Collector {
    /// Whether the batch was accepted, after a few tries.
    async fn send_patiently(&mut self, body: &Bytes, spans: usize) -> bool {
        let mut waits = RETRIES.iter();
        loop {
            let sent = tokio::time::timeout(TIMEOUT, self.send(body.clone())).await;
            let error = match sent.unwrap_or(Err(SendError::Timeout)) {
                Ok(()) => return true,
                Err(error) => error,
            };
            self.connection = None;
            match waits.next().filter(|_| error.may_pass()) {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => {
                    tracing::warn!(error = &error as &dyn std::error::Error, spans, "spans are lost");
                    return false;
                }
            }
        }
    }

    async fn send(&mut self, body: Bytes) -> Result<(), SendError> {
        let mut connection = match self.connection.take() {
            Some(open) if open.is_ready() => open,
            _ => self.connect().await?,
        };
        let mut request = Request::post(TRACES_PATH)
            .header(HOST, self.control.authority())
            .header(CONTENT_TYPE, "application/x-protobuf");
        if let Some(token) = self.control.authorization()? {
            request = request.header(AUTHORIZATION, token);
        }
        let request =
            request.body(Full::new(body)).expect("the parts are constant, or checked when the configuration was read");
        let response = connection.send_request(request).await?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        if !status.is_success() {
            return Err(SendError::Status(status));
        }
        // An answer that cannot be read is not one that refuses.
        let answer = answer.ok().and_then(|answer| otlp::Answer::decode(&answer.to_bytes()).ok()).unwrap_or_default();
        if answer.rejected > 0 {
            return Err(SendError::Rejected { rejected: answer.rejected, message: answer.message });
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let stream = self.control.connect().await.map_err(SendError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the collector ended");
            }
        });
        Ok(sender)
    }
}

#[cfg(test)]
mod tests {
    use aftershock_core::id::CallId;

    use super::*;
    use crate::sidecar::testing::any_span;

    #[test]
    fn what_does_not_fit_is_lost_and_counted_for_its_round() {
        let spans = Spans::default();
        let round = Token(7);
        spans.push(&vec![any_span(Token(0)); CAPACITY]);
        spans.push(&[any_span(round), any_span(round), any_span(Token(0))]);
        let tally = spans.tally(&[round]);
        assert_eq!((tally.exported, tally.lost), (0, 3));
        assert_eq!(tally.lost_of, BTreeMap::from([(round, 2)]));
        assert!(spans.tally(&[]).lost_of.is_empty(), "rounds that are over are forgotten");
    }

    #[test]
    fn a_flush_is_done_when_what_was_recorded_before_it_is_dealt_with() {
        let spans = Spans::default();
        spans.flush(1);
        assert_eq!(spans.flushed(), [1], "nothing was recorded");
        spans.push(&vec![any_span(Token(0)); 3]);
        spans.flush(2);
        let first = spans.take_batch();
        spans.push(&[any_span(Token(0))]);
        spans.flush(3);
        assert!(spans.flushed().is_empty());
        spans.settle(&first.rounds, false);
        assert_eq!(spans.flushed(), [2], "lost counts as dealt with");
        let second = spans.take_batch();
        spans.settle(&second.rounds, true);
        assert_eq!(spans.flushed(), [3]);
        let tally = spans.tally(&[]);
        assert_eq!((tally.exported, tally.lost), (1, 3));
    }

    #[test]
    fn batches_are_full_but_for_the_last_and_hold_the_spans_in_order() {
        let spans = Spans::default();
        let span = |call| CallSpan { call: CallId(call), ..any_span(Token(call % 3)) };
        let all: Vec<CallSpan> = (0..2 * BATCH as u64 + 7).map(span).collect();
        spans.push(&all);
        assert_eq!(spans.waiting(), all.len());
        let mut sent = Vec::new();
        for expected in [BATCH, BATCH, 7] {
            let packed = spans.take_batch();
            assert_eq!(packed.batch.len(), expected);
            assert_eq!(packed.rounds.iter().map(|(_, spans)| spans).sum::<u64>(), expected as u64);
            let body = Bytes::from(packed.batch.finish());
            sent.extend(otlp::decode(&body).unwrap().spans);
            spans.reuse(body, expected);
            assert_eq!(spans.queue.borrow().spare.capacity() > 0, expected == BATCH, "what is idle keeps nothing");
        }
        assert_eq!(sent, all);
        assert!(spans.is_empty() && spans.waiting() == 0);
    }
}
