//! Responses as streams: where the outcome of one is, whether it is kept back for it, and where rules act in mid-body
//! (design §3.3, §3.5).
//!
//! The outcome of an HTTP response stands in its head, that of a gRPC one in its trailers, and that of an Api with a
//! [`BodyOutcome`](aftershock_core::outcome::BodyOutcome) in its body. A response is *kept back* where a rule may have to
//! take all of it away when the outcome is known, and where both sidecars have to read the body first. It is *watched*
//! where a rule acts inside it, and where its messages are counted for the record. Both at once cannot be: what is kept
//! back has no middle that anybody sees, so plans that want both are refused ([`super::fault`]).

use aftershock_core::event::Outcome;

use super::Sidecar;
use super::call::{Call, ExchangeId};
use super::rules::{Frame, Point, Released};
use crate::exchange::{Marks, ResponseHead, Verdict};

/// Most body bytes of a response that are kept back for its outcome.
pub(crate) const MAX_WITHHELD: usize = 1 << 20;

/// The part of a response that carries its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutcomeIn {
    /// Its head.
    Head,
    /// Its trailers.
    Trailers,
    /// Its body: known at the end, and told by the head that left after it.
    Body,
}

impl Call {
    /// Where the outcome of the response with this head is.
    pub(crate) fn outcome_in(&self, head: &ResponseHead<'_>) -> OutcomeIn {
        let reads_body = self.reading.as_deref().is_some_and(|reading| reading.body.is_some());
        match self.grpc {
            true if !head.ends => OutcomeIn::Trailers,
            false if reads_body && !head.ends && !self.connect && self.status_says() == Outcome::Ok => OutcomeIn::Body,
            _ => OutcomeIn::Head,
        }
    }

    /// What the statuses that arrived say.
    fn status_says(&self) -> Outcome {
        let of = |ok: bool| if ok { Outcome::Ok } else { Outcome::Error };
        let http = self.http_status.unwrap_or_default();
        let (status, by_default) = match (self.grpc, self.grpc_status) {
            (false, _) => (Some(http), of(http < 400)),
            // Nobody said how the call ended, so that no list can speak of it.
            (true, None) => (None, Outcome::Error),
            (true, Some(_)) if http >= 400 => (None, Outcome::Error),
            (true, Some(status)) => (u16::try_from(status).ok(), of(status == 0)),
        };
        match (self.reading.as_deref(), status) {
            (Some(reading), Some(status)) => reading.of_status(status, by_default),
            _ => by_default,
        }
    }

    /// How the response ended, now that its outcome is here. `body` is that of a response that was kept back; without it
    /// what the body says stays unknown.
    pub(crate) fn outcome_says(&self, body: Option<&[u8]>) -> Outcome {
        let status = self.status_says();
        match self.reading.as_deref().filter(|reading| reading.body.is_some()) {
            Some(reading) if !self.grpc && !self.connect && status == Outcome::Ok => {
                body.map_or(Outcome::Unknown, |body| reading.of_body(body))
            }
            _ => status,
        }
    }
}

impl Call {
    /// Whether the response whose outcome is at hand has left before, so that nothing can be done with it.
    pub(crate) fn released(&self) -> Option<Released> {
        if self.outcome.is_none() || self.outcome_in == OutcomeIn::Head {
            return None;
        }
        // What no rule wanted at its head has gone on as it came.
        self.released.or((!self.kept_back).then_some(Released::Stream))
    }
}

impl Sidecar {
    /// How the body of a response is to come whose head passes.
    pub(super) fn follow_body(&mut self, id: ExchangeId) -> Verdict {
        let Some(call) = self.call(id).filter(|call| !call.connect) else { return Verdict::Pass };
        let (outcome_in, counts_messages) = (call.outcome_in, call.grpc && call.record);
        let (keep_back, marks) = match outcome_in {
            OutcomeIn::Body => (true, Marks::new()),
            _ => self.wanted(call),
        };
        if keep_back {
            if let Some(call) = self.call_mut(id) {
                call.kept_back = true;
            }
            return Verdict::Withhold { limit: MAX_WITHHELD };
        }
        if let Some(call) = self.call_mut(id).filter(|call| call.grpc && !marks.is_empty()) {
            call.may_be_cut = true;
        }
        if marks.is_empty() && !counts_messages {
            return Verdict::Pass;
        }
        Verdict::Watch(marks)
    }

    /// What the rules that can still fire want of this call's response: its outcome before any of it has left, or to be
    /// asked at marks.
    fn wanted(&self, call: &Call) -> (bool, Marks) {
        let mut marks = Marks::new();
        let Some(key) = call.key.filter(|_| call.target) else { return (false, marks) };
        let (Some(round), Some(execution)) = (self.rounds.get(key.token), self.executions.get(key)) else {
            return (false, marks);
        };
        let Some(subject) = call.subject() else { return (false, marks) };
        let point = Point {
            service: &self.config.service,
            evidence: &execution.knowledge.evidence,
            whole: round.is_whole(execution.born),
            faulted: call.injection.is_some(),
            disarmed: round.disarmed,
        };
        let mut keep_back = false;
        for (index, armed) in round.rules.iter().enumerate() {
            let progress = execution.progress.get(index).copied().unwrap_or_default();
            let at_end = call.outcome_in == OutcomeIn::Trailers && armed.takes(subject, Frame::Outcome);
            keep_back |= at_end && armed.can_fire(progress, point);
            // A call that another rule faulted takes its number like any other, and one that comes after the disarming is
            // recorded: where its outcome is that needs no watch.
            let numbers = armed.can_fire(progress, Point { faulted: false, disarmed: false, ..point });
            let mark = armed.mark().filter(|mark| numbers && armed.takes(subject, Frame::Inside(*mark)));
            if let Some(mark) = mark.filter(|mark| !marks.contains(mark)) {
                marks.push(mark);
            }
        }
        (keep_back, marks)
    }
}
