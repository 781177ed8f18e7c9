//! The four interception points (design §3.3): in which order things happen to one message.

use std::time::Instant;

use aftershock_core::event::Outcome;
use aftershock_core::evidence::{GapKind, Knowledge};
use aftershock_core::hop::{self, Hop};
use aftershock_core::id::{CallId, Token};
use aftershock_core::plan::{Fault, Phase, Side};
use aftershock_core::span::{Association, Pass, PassedBy};
use smallvec::SmallVec;

use super::Sidecar;
use super::association;
use super::call::{Call, Exchange, ExchangeId, HopSent, On, Shot, Stage, Wait};
use super::counters::Ignored;
use super::execution::Key;
use super::header::{Arriving, HopLine};
use super::identity::Identified;
use super::late::Departed;
use super::parking::Fired;
use super::peers;
use super::record::{Recorder, span};
use super::rounds::deadline;
use super::rules::{Frame, Judgement, Message, Point, Released, Witness, judge, judge_here};
use super::streams::OutcomeIn;
use crate::config::Host;
use crate::exchange::{
    Closed, Door, Edit, Edits, Fields, Interceptor, LinkId, Mark, Part, Refusal, RequestHead, ResponseHead, StreamId,
    Tail, Verdict,
};

/// The interception points of one link, at one instant.
pub(super) struct Points<'a> {
    pub(super) sidecar: &'a mut Sidecar,
    pub(super) link: LinkId,
    pub(super) now: Instant,
}

impl Points<'_> {
    fn id(&self, stream: StreamId) -> ExchangeId {
        ExchangeId { link: self.link, stream }
    }
}

impl Interceptor for Points<'_> {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        self.sidecar.confirm_acting();
        self.sidecar.request(self.id(stream), head, self.now)
    }

    fn request_end(&mut self, stream: StreamId, trailers: Option<&Fields<'_>>) {
        self.sidecar.confirm_acting();
        self.sidecar.request_end(self.id(stream), trailers);
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        self.sidecar.confirm_acting();
        self.sidecar.response(self.id(stream), head, self.now)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        self.sidecar.confirm_acting();
        self.sidecar.reached(self.id(stream), mark, self.now)
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        self.sidecar.confirm_acting();
        self.sidecar.response_end(self.id(stream), tail, self.now)
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        self.sidecar.confirm_acting();
        self.sidecar.stamp(self.id(stream), part)
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        let id = self.id(stream);
        if self.sidecar.acting.is_some_and(|acting| acting != id) {
            self.sidecar.confirm_acting();
        }
        match why {
            Refusal::Size => self.sidecar.released(id, Released::Size),
            Refusal::Stream => self.sidecar.released(id, Released::Stream),
            Refusal::Oversized => self.sidecar.unsent(id),
            Refusal::Pipelined | Refusal::Goaway | Refusal::TooLate => self.sidecar.undo(id, why),
        }
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.sidecar.confirm_acting();
        self.sidecar.close(self.id(stream), how, self.now);
    }

    fn late(&mut self, stream: StreamId, fields: &Fields<'_>) {
        self.sidecar.confirm_acting();
        self.sidecar.late(self.id(stream), fields);
    }
}

impl Sidecar {
    // ── request-sent, request-received ──────────────────────────────────────────────────────────────────────────────

    fn request(&mut self, id: ExchangeId, head: &RequestHead<'_>, now: Instant) -> Verdict {
        let Some(link) = self.links.get(&id.link).copied() else { return Verdict::Pass };
        let way = link.way();
        let side = if way.is_some() { Side::Caller } else { Side::Callee };
        let host = match link.door {
            Door::Outbound(index) if self.config.outbound[index].host == Host::Upstream => {
                Some(Edit::Set("host", self.config.outbound[index].to[link.upstream].to_string().into_bytes()))
            }
            _ => None,
        };
        if self.keys.current().is_none() {
            self.exchanges.insert(id, Exchange { edits: host.into_iter().collect(), call: None });
            return Verdict::Pass;
        }
        let arriving = Arriving::read(&head.fields, side, &self.config);
        let probe = peers::is_probe(head, &self.config, side == Side::Callee);
        let identity = match way {
            None => self.identify_inbound(&arriving, head, probe),
            Some(way) => self.identify_outbound(&arriving, head, way, probe),
        };
        let mut identity = match identity {
            Identified::Call(identity) => identity,
            Identified::Passes(mut edits) => {
                edits.extend(host);
                self.exchanges.insert(id, Exchange { edits, call: None });
                return Verdict::Pass;
            }
        };
        let mut edits = std::mem::take(&mut identity.edits);
        edits.extend(host);
        if let Some(key) = identity.key {
            self.enter(key, side, &mut identity);
        }
        let token = identity.key.map_or(Token(0), |key| key.token);
        let record = !probe && self.records(identity.key);
        let api = (record || !token.is_zero()).then(|| match way {
            None => self.apis.called(&self.config.service, head),
            Some(way) => self.callees.behind(way).api(head),
        });
        let reading = match (self.rounds.get(token), &api) {
            (Some(round), Some(api)) if !probe => round.reading(api),
            _ => None,
        };
        let allowed = identity.association != Association::Detached || self.config.allow_detached;
        let call = Call {
            side,
            api,
            grpc: peers::is_grpc(head),
            connect: head.method == "CONNECT",
            key: identity.key,
            id: identity.id,
            parent: identity.parent,
            caller: identity.caller,
            association: identity.association,
            trace_id: identity.trace_id,
            member: match (identity.hop, identity.member) {
                (HopSent::Evidence, Some(member)) => member.to_string(),
                _ => String::new(),
            },
            hop: identity.hop,
            record,
            counted: !probe,
            target: !probe && allowed && identity.key.is_some(),
            request: None,
            response: None,
            outcome: None,
            response_pending: false,
            witness: identity.witness,
            http_status: None,
            grpc_status: None,
            made: false,
            evidence_went: false,
            evidence_came: identity.brought.is_some() && side == Side::Callee,
            strip: SmallVec::new(),
            reading,
            outcome_in: OutcomeIn::Head,
            kept_back: false,
            may_be_cut: false,
            released: None,
            told: false,
            stamped: 0,
            messages: None,
            passes: Vec::new(),
            injection: None,
            stage: Stage::Running,
        };
        self.exchanges.insert(id, Exchange { edits, call: Some(Box::new(call)) });
        self.activity.begun(token);
        let verdict = self.decide(id, &[Frame::Request], now);
        // One that waits is decided later, and counts itself then.
        if !matches!(self.call(id).map(|call| &call.stage), Some(Stage::Waiting { .. })) {
            self.count_request(id);
        }
        verdict
    }

    // ── the decision ────────────────────────────────────────────────────────────────────────────────────────────────

    /// Number the message for every rule that takes it, and do what the first that can fire says; arbitrated ones ask. One
    /// fault acts on a call; what another rule would have done with it is `spent`.
    fn decide(&mut self, id: ExchangeId, frames: &[Frame], now: Instant) -> Verdict {
        let Some(call) = self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut()) else {
            return Verdict::Pass;
        };
        let Some(key) = call.key.filter(|_| call.target) else { return Verdict::Pass };
        let (Some(round), Some(execution)) = (self.rounds.get(key.token), self.executions.get_mut(key)) else {
            return Verdict::Pass;
        };
        let phase = frames.first().map_or(Phase::Request, |frame| frame.phase());
        let message = Message { outcome: call.outcome, witness: call.witness, released: call.released() };
        let whole = round.is_whole(execution.born);
        let mut shot = None;
        let mut full = false;
        let mut waits: SmallVec<[Wait; 1]> = SmallVec::new();
        let mut questions: SmallVec<[((usize, usize), Judgement); 1]> = SmallVec::new();
        // All rules of a sidecar are arbitrated or none, since they are its service's. Were it otherwise, what fires here
        // and now goes first.
        let rules = round.rules.iter().enumerate();
        let rules = rules.clone().filter(|(_, a)| !a.rule.arbitrated).chain(rules.filter(|(_, a)| a.rule.arbitrated));
        for (index, armed) in rules {
            let takes = |subject| frames.iter().any(|frame| armed.takes(subject, *frame));
            if !call.subject().is_some_and(takes) {
                continue;
            }
            let k = (!armed.rule.arbitrated).then(|| execution.progress(index).number());
            let progress = *execution.progress(index);
            let point = Point {
                service: &self.config.service,
                evidence: &execution.knowledge.evidence,
                whole,
                faulted: call.injection.is_some() || shot.is_some(),
                disarmed: round.disarmed,
            };
            let tfic = &armed.rule.tfic;
            let pass = call.passes.len();
            let passed_by = if let Some(k) = k {
                let parks = |judgement: &Judgement| match judgement {
                    Judgement::Hold => true,
                    Judgement::Fire => matches!(tfic.fault, Fault::Delay(_)),
                    Judgement::PassBy(_) => false,
                };
                match judge(armed, progress, k, point, message) {
                    judgement if parks(&judgement) && !round.has_room() => {
                        full = true;
                        Some(PassedBy::ParkedLimit)
                    }
                    Judgement::Fire => {
                        shot = Some(Shot { rule: index, pass, phase, granted: false });
                        None
                    }
                    Judgement::Hold => {
                        let limit = tfic.hold.as_ref().map_or(std::time::Duration::ZERO, |hold| hold.deadline.0);
                        let at = Some(deadline(now, limit));
                        waits.push(Wait { rule: index, pass, deadline: at, held: true, on: On::Guard });
                        None
                    }
                    Judgement::PassBy(why) => Some(why),
                }
            } else if progress.ended || !armed.has_shots() {
                Some(PassedBy::Spent)
            } else if round.disarmed {
                // The arbiter answers no more, so what it would have said is not known.
                Some(match judge_here(armed, point, message) {
                    Judgement::PassBy(PassedBy::NumberBlocked) => PassedBy::NumberBlocked,
                    _ => PassedBy::RoundOver,
                })
            } else {
                questions.push(((index, pass), judge_here(armed, point, message)));
                None
            };
            call.passes.push(Pass { rule: armed.rule.index, k, clock: execution.knowledge.clock, passed_by });
        }
        if full {
            self.no_place(key.token);
        }
        let mut may_be_granted = false;
        for (at, found) in questions {
            let ready = found == Judgement::Fire && !may_be_granted;
            may_be_granted |= ready;
            waits.extend(self.ask(id, at, found, ready, now));
        }
        if let Some(shot) = shot {
            for wait in waits {
                self.pass_by(id, wait.pass, PassedBy::Spent);
            }
            return match self.fire(id, shot, false, now) {
                Some(Fired::Act(act)) => {
                    self.acting = Some(id);
                    Verdict::Act(act)
                }
                Some(Fired::Delayed) => Verdict::Park,
                Some(Fired::Released) | None => Verdict::Pass,
            };
        }
        if waits.is_empty() {
            return Verdict::Pass;
        }
        self.wait(id, key, phase, waits);
        Verdict::Park
    }

    // ── response-received, response-sent ────────────────────────────────────────────────────────────────────────────

    fn response(&mut self, id: ExchangeId, head: &ResponseHead<'_>, now: Instant) -> Verdict {
        let Some(call) = self.call_mut(id) else { return Verdict::Pass };
        call.http_status = Some(head.status);
        if head.ends && call.grpc {
            call.grpc_status = grpc_status(&head.fields);
        }
        call.outcome_in = call.outcome_in(head);
        let outcome_in = call.outcome_in;
        self.take_hop(id, &head.fields, Part::Response);
        let verdict = match outcome_in {
            OutcomeIn::Head => self.outcome_arrived(id, None, &[Frame::Head, Frame::Outcome], now),
            OutcomeIn::Trailers | OutcomeIn::Body => self.decide(id, &[Frame::Head], now),
        };
        match verdict {
            Verdict::Pass if !head.ends => self.follow_body(id),
            verdict => verdict,
        }
    }

    fn response_end(&mut self, id: ExchangeId, tail: &Tail<'_>, now: Instant) -> Verdict {
        if let Some(trailers) = &tail.trailers {
            self.take_hop(id, trailers, Part::ResponseEnd);
        }
        let Some(call) = self.call_mut(id) else { return Verdict::Pass };
        call.messages = tail.messages.filter(|_| call.grpc);
        match call.outcome_in {
            OutcomeIn::Head => return Verdict::Pass,
            OutcomeIn::Trailers => call.grpc_status = tail.trailers.as_ref().and_then(grpc_status),
            OutcomeIn::Body => {}
        }
        self.outcome_arrived(id, tail.body, &[Frame::Outcome], now)
    }

    /// The frame with the outcome is here, with the body of a response that was kept back.
    fn outcome_arrived(&mut self, id: ExchangeId, body: Option<&[u8]>, frames: &[Frame], now: Instant) -> Verdict {
        let Some(call) = self.call_mut(id) else { return Verdict::Pass };
        if !matches!(call.stage, Stage::Running) || call.response.is_some() {
            // What still comes of a message that a fault took off the wire.
            return Verdict::Pass;
        }
        let body = if call.outcome_in == OutcomeIn::Head { Some(&b""[..]) } else { body };
        call.outcome = Some(call.outcome_says(body));
        call.response_pending = true;
        if call.side == Side::Caller && call.hop == HopSent::Evidence && call.evidence_went && !call.told {
            // The callee has a sidecar and was told of the call: what it says of this outcome was lost on the way.
            if let Some(key) = call.key {
                self.counters.ignored(Ignored::HopMissing);
                self.set_gap(key, GapKind::Evidence);
            }
        }
        let verdict = self.decide(id, frames, now);
        if verdict == Verdict::Pass {
            self.count_response(id);
        }
        verdict
    }

    /// A place in the body of a watched response is reached: what rules act there take their numbers now.
    fn reached(&mut self, id: ExchangeId, mark: Mark, now: Instant) -> Verdict {
        if self.call(id).is_none_or(|call| call.stage != Stage::Running) {
            return Verdict::Pass;
        }
        self.decide(id, &[Frame::Inside(mark)], now)
    }

    // ── what comes ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// The end of a request: what its sender has learned since the head.
    fn request_end(&mut self, id: ExchangeId, trailers: Option<&Fields<'_>>) {
        if let Some(trailers) = trailers {
            self.take_hop(id, trailers, Part::RequestEnd);
        }
    }

    /// What the other sidecar said, in a part of the message that it sent. Our own application says nothing we believe.
    fn take_hop(&mut self, id: ExchangeId, fields: &Fields<'_>, part: Part) {
        let line = HopLine::read(fields);
        if line == HopLine::Absent {
            return;
        }
        let Some(call) = self.call(id) else { return };
        let from = match part {
            Part::Request | Part::RequestEnd => Side::Callee,
            Part::Response | Part::ResponseEnd => Side::Caller,
        };
        let wanted = call.key.filter(|_| call.side == from && call.hop == HopSent::Evidence);
        let taken = match wanted {
            Some(key) => {
                let (ours, member) = (call.id, call.member.clone());
                self.merge_hop(key, ours, &member, line)
            }
            None => Taken::Nothing,
        };
        let Some(call) = self.call_mut(id) else { return };
        match taken {
            Taken::Newer => return,
            Taken::Nothing => {}
            Taken::Evidence(outcome) => {
                call.evidence_came = true;
                call.told |= outcome.is_some() && from == Side::Caller;
                if let Witness::Callee(witnessed) = &mut call.witness {
                    *witnessed = outcome.or(*witnessed);
                }
            }
        }
        call.strip.push(part);
    }

    /// Merge what a hop header says that belongs to the call `ours` of `key`.
    fn merge_hop(&mut self, key: Key, ours: CallId, member: &str, line: HopLine<'_>) -> Taken {
        match association::read_hop(line, &self.keys, member) {
            Ok(Some(hop)) if hop.call == ours => {
                if let Some(execution) = self.executions.get_mut(key) {
                    execution.merge(&hop.knowledge);
                }
                return Taken::Evidence(hop.outcome);
            }
            Ok(Some(_)) => self.counters.ignored(Ignored::HopUnexpected),
            Ok(None) => {}
            Err((ignored, newer)) => {
                self.counters.ignored(ignored);
                if newer {
                    self.set_gap(key, GapKind::Number);
                    return Taken::Newer;
                }
            }
        }
        Taken::Nothing
    }

    /// Fields of an answer whose caller has gone: no event, and what they say of others is true.
    fn late(&mut self, id: ExchangeId, fields: &Fields<'_>) {
        let line = HopLine::read(fields);
        let Some(Departed { key, call, member }) = self.departed.get(id).cloned() else { return };
        if line == HopLine::Absent || !self.rounds.is_live(key.token) {
            return;
        }
        self.departed.remove(id);
        self.merge_hop(key, call, &member, line);
    }

    // ── what leaves ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn stamp(&mut self, id: ExchangeId, part: Part) -> Edits {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return Edits::new() };
        // The request leaves once.
        let mut edits = if part == Part::Request { std::mem::take(&mut exchange.edits) } else { Edits::new() };
        let Some(call) = exchange.call.as_deref() else { return edits };
        let sent = match (part, call.side) {
            (Part::Request, Side::Caller) => call.hop,
            (Part::Response, Side::Callee) if call.outcome_in != OutcomeIn::Trailers => call.hop,
            (Part::RequestEnd, Side::Caller) | (Part::ResponseEnd, Side::Callee) if !call.connect => call.hop,
            _ => HopSent::Nothing,
        };
        let strip = call.strip.contains(&part);
        // A stream that ends before the length its head announces is malformed (RFC 9113 §8.1.1): its client would see a
        // protocol error in place of our trailers.
        if part == Part::Response && call.may_be_cut {
            edits.push(Edit::Remove("content-length"));
        }
        match part {
            // It was parked: it leaves now, with what is known now.
            Part::Request => self.count_request(id),
            Part::RequestEnd => {}
            // Without effect where the outcome is still to come.
            Part::Response | Part::ResponseEnd => self.count_response(id),
        }
        match self.hop_header(id, sent, part) {
            Some(header) => edits.push(Edit::Set(hop::HEADER, header.into_bytes())),
            None if strip => edits.push(Edit::Remove(hop::HEADER)),
            None => {}
        }
        edits
    }

    fn hop_header(&mut self, id: ExchangeId, sent: HopSent, part: Part) -> Option<String> {
        if sent == HopSent::Nothing {
            return None;
        }
        let overflow = self.gap(GapKind::Evidence);
        let key = *self.keys.current()?;
        let call = self.exchanges.get_mut(&id).and_then(|exchange| exchange.call.as_deref_mut())?;
        let of_request = matches!(part, Part::Request | Part::RequestEnd);
        let caller = of_request.then(|| self.config.service.clone());
        match sent {
            HopSent::Nothing => None,
            // The head has said it.
            HopSent::Mark if part == Part::RequestEnd => None,
            HopSent::Mark => {
                let mark = Hop { call: CallId(0), caller, outcome: None, knowledge: Knowledge::default() };
                Some(mark.encode(&key, "", &overflow))
            }
            HopSent::Evidence => {
                let execution_key = call.key?;
                let execution = self.executions.get(execution_key)?;
                let said = match part {
                    Part::Request | Part::Response => false,
                    Part::RequestEnd => true,
                    Part::ResponseEnd => call.told,
                };
                if said && execution.version == call.stamped {
                    // Nothing is known that the head did not say.
                    return None;
                }
                call.stamped = execution.version;
                call.evidence_went = true;
                let outcome = call.outcome.filter(|_| !of_request);
                call.told |= outcome.is_some();
                let hop = Hop { call: call.id, caller, outcome, knowledge: execution.knowledge.clone() };
                let header = hop.encode(&key, &call.member, &overflow);
                if !execution_key.token.is_zero() {
                    self.counters.evidence(header.len());
                }
                Some(header)
            }
        }
    }

    /// The editor could not keep the response back: it leaves as it comes.
    fn released(&mut self, id: ExchangeId, why: Released) {
        if let Some(call) = self.call_mut(id) {
            call.released = Some(why);
        }
    }

    /// Our lines did not fit into what just left: whoever waits for them will miss them.
    fn unsent(&mut self, id: ExchangeId) {
        self.counters.ignored(Ignored::HopUnsent);
        let Some(call) = self.call_mut(id) else { return };
        call.evidence_went = false;
        if let Some(key) = call.key {
            self.set_gap(key, GapKind::Evidence);
        }
    }

    // ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn close(&mut self, id: ExchangeId, how: Closed, now: Instant) {
        if matches!(how, Closed::ByFault | Closed::Complete) {
            self.confirm(id);
        } else if self.resuming.contains(&id) {
            // The fault was decided, and the exchange ended before it could act.
            self.undo(id, Refusal::TooLate);
        }
        if let Some(Stage::Waiting { waits, .. }) = self.call(id).map(|call| call.stage.clone()) {
            let why = if how == Closed::ByApplication { PassedBy::CallerGone } else { PassedBy::Goaway };
            for wait in waits {
                self.pass_by(id, wait.pass, why.clone());
            }
            self.unhold(id);
        }
        self.count_request(id);
        let refused = how == Closed::ByUpstream
            && self
                .call(id)
                .is_some_and(|call| call.response.is_none() && !matches!(call.stage, Stage::Dropped { .. }));
        if refused {
            self.happen(id, Phase::Response, Some(Outcome::Error));
        }
        // Gives back the place of what was parked.
        if self.call(id).is_some_and(|call| call.stage.is_parked()) {
            self.set_stage(id, Stage::Running);
        }
        let Some(call) = self.exchanges.remove(&id).and_then(|exchange| exchange.call) else { return };
        match call.side {
            Side::Callee => self.calls.end_inbound(call.id, now),
            Side::Caller => self.calls.end_outbound(call.id, now),
        }
        if call.is_ordinary_entry() {
            let unanswered = how == Closed::ByUpstream && call.outcome.is_none();
            self.counters.ordinary(unanswered || call.outcome == Some(Outcome::Error));
        }
        if !call.passes.is_empty() {
            self.tallies.decided(&call.passes, call.injection.as_ref());
        }
        let token = call.token();
        self.asking.remove(&(token, call.id));
        let key = call.key;
        if let (Closed::ByApplication, Side::Caller, true, Some(key)) = (how, call.side, call.evidence_went, key)
            && self.rounds.is_live(token)
        {
            let departed = Departed { key, call: call.id, member: call.member.clone() };
            self.departed.put(id, departed, now);
        }
        if call.record {
            let execution = key.and_then(|key| self.executions.get(key));
            let gaps = execution.map(|execution| execution.knowledge.evidence.gaps().clone()).unwrap_or_default();
            let unix_nanos = self.unix_nanos();
            let recorder = Recorder { service: &self.config.service, observer: self.observer, gaps, unix_nanos };
            self.spans.push(span(call, how, recorder));
        }
        if let Some(key) = key {
            self.executions.leave(key);
        }
        self.activity.changed(token);
    }
}

/// What a hop header came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Nothing of it counts.
    Nothing,
    /// Evidence, and what the callee's sidecar saw of the outcome.
    Evidence(Option<Outcome>),
    /// A newer sidecar wrote it: it is relayed.
    Newer,
}

/// The gRPC status in a trailer block; none if it is missing or no number.
fn grpc_status(fields: &Fields<'_>) -> Option<u32> {
    fields.text("grpc-status").and_then(|status| status.trim().parse().ok())
}
