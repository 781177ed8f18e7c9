//! Messages at sidecars, as editors handle them: which interception points are called in which order, and what becomes of
//! what they decide.

use aftershock_core::plan::Phase;
use aftershock_proxy::exchange::{Act, Closed, Interceptor, Part, Refusal, Resume, StreamId, Tail, Verdict};

use crate::message::{Request, Response, apply, fields, hop_length, lose_hop, member};
use crate::net::{Event, Net, Parked};
use crate::truth::Moment;

/// What became of a message.
enum Passage<M> {
    Through(M),
    Kept(Parked),
    Acted(Act),
}

/// What of a stamped message does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    NoneForEvidence,
    NoneForAnything,
}

fn write_request(points: &mut dyn Interceptor, stream: StreamId, mut request: Request, room: Room) -> Request {
    let mut edits = points.stamp(stream, Part::Request);
    if squeeze(&mut edits, room) {
        points.refused(stream, Refusal::Oversized);
    }
    apply(&mut request.lines, edits);
    if request.grpc {
        apply(&mut request.trailers, points.stamp(stream, Part::RequestEnd));
    }
    request
}

/// Take out what does not fit; whether anything was.
fn squeeze(edits: &mut aftershock_proxy::exchange::Edits, room: Room) -> bool {
    use aftershock_core::hop::HEADER;
    use aftershock_proxy::exchange::Edit;
    let before = edits.len();
    if before > 0 && edits.iter().any(|edit| matches!(edit, Edit::Set(name, _) if *name == HEADER)) {
        edits.retain(|edit| match edit {
            Edit::Set(name, _) if *name == HEADER => room == Room::Enough,
            Edit::Set("tracestate", _) => room != Room::NoneForAnything,
            _ => true,
        });
    }
    edits.len() < before
}

fn request_comes(points: &mut dyn Interceptor, stream: StreamId, request: Request, room: Room) -> Passage<Request> {
    let verdict = points.request(stream, &request.head());
    if request.grpc && !matches!(verdict, Verdict::Act(_)) {
        let trailers = (!request.trailers.is_empty()).then(|| fields(&request.trailers));
        points.request_end(stream, trailers.as_ref());
    }
    match verdict {
        Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {
            Passage::Through(write_request(points, stream, request, room))
        }
        Verdict::Park => Passage::Kept(Parked::Request(request)),
        Verdict::Act(act) => Passage::Acted(act),
    }
}

fn response_comes(
    points: &mut dyn Interceptor,
    stream: StreamId,
    mut response: Response,
    room: Room,
) -> Passage<Response> {
    let verdict = points.response(stream, &response.head());
    let head = match verdict {
        Verdict::Act(act) => return Passage::Acted(act),
        Verdict::Park => return Passage::Kept(Parked::Response { response, at_end: false, head: false }),
        Verdict::Withhold { .. } => false,
        Verdict::Pass | Verdict::Watch(_) => {
            write_head(points, stream, &mut response, room);
            true
        }
    };
    response_ends(points, stream, response, head, room)
}

fn write_head(points: &mut dyn Interceptor, stream: StreamId, response: &mut Response, room: Room) {
    let mut edits = points.stamp(stream, Part::Response);
    if squeeze(&mut edits, room) {
        points.refused(stream, Refusal::Oversized);
    }
    apply(&mut response.lines, edits);
}

fn response_ends(
    points: &mut dyn Interceptor,
    stream: StreamId,
    response: Response,
    head: bool,
    room: Room,
) -> Passage<Response> {
    if let Some(trailers) = &response.trailers {
        let body = (!head).then_some(&b""[..]);
        let tail = Tail { trailers: Some(fields(trailers)), body, messages: (!head).then_some(1) };
        let verdict = points.response_end(stream, &tail);
        drop(tail);
        match verdict {
            Verdict::Act(act) => return Passage::Acted(act),
            Verdict::Park => return Passage::Kept(Parked::Response { response, at_end: true, head }),
            Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {}
        }
    }
    Passage::Through(write_end(points, stream, response, head, room))
}

fn write_end(
    points: &mut dyn Interceptor,
    stream: StreamId,
    mut response: Response,
    head: bool,
    room: Room,
) -> Response {
    if !head {
        write_head(points, stream, &mut response, room);
    }
    if let Some(trailers) = &mut response.trailers {
        let mut edits = points.stamp(stream, Part::ResponseEnd);
        if squeeze(&mut edits, room) {
            points.refused(stream, Refusal::Oversized);
        }
        apply(trailers, edits);
    }
    points.closed(stream, Closed::Complete);
    response
}

fn act_on(points: &mut dyn Interceptor, stream: StreamId, act: &Act) {
    match act {
        Act::Drop => {}
        Act::Reset { .. } => points.closed(stream, Closed::ByFault),
        Act::Answer(_) => points.closed(stream, Closed::Complete),
    }
}

impl Net {
    fn room(&mut self, call: usize) -> Room {
        if self.is_ordinary(call) || !self.random.per_mille(self.weather.oversized) {
            return Room::Enough;
        }
        if self.random.one_in(3) { Room::NoneForAnything } else { Room::NoneForEvidence }
    }

    // ---- requests --------------------------------------------------------------------------------------------------

    /// At the sidecar beside the caller.
    pub(crate) fn out(&mut self, call: usize) {
        self.calls[call].detached = self.calls[call].parent.is_some_and(|parent| {
            let parent = &self.calls[parent];
            parent.inn.as_ref().is_some_and(|leg| !leg.open)
        });
        if self.calls[call].ended || self.leg_of(call, true).is_none() {
            self.done(call, false);
            return;
        }
        self.request_at(call, true);
    }

    /// At the callee's instance.
    pub(crate) fn come_in(&mut self, call: usize) {
        let callee = self.calls[call].callee;
        self.calls[call].arrived = true;
        if !self.instances[callee].up {
            self.broken(call);
            return;
        }
        if !self.has_sidecar(callee) {
            let knows = std::mem::take(&mut self.calls[call].request_knows);
            self.learns(callee, call, &knows);
            self.calls[call].handler.context = std::mem::take(&mut self.calls[call].request.lines);
            self.later(30, Event::Handle(call));
            return;
        }
        let grpc = self.calls[call].request.grpc;
        let leg = self.accept(callee, grpc).expect("it is up");
        self.calls[call].inn = Some(leg);
        let knows = std::mem::take(&mut self.calls[call].request_knows);
        self.learns(callee, call, &knows);
        self.request_at(call, false);
    }

    fn request_at(&mut self, call: usize, is_out: bool) {
        let room = if is_out { self.room(call) } else { Room::Enough };
        let Some(leg) = self.leg_of(call, is_out) else { return };
        let (at, link, stream) = (leg.instance, leg.link, leg.stream);
        self.instances[at].exchanges.insert((link, stream), (call, is_out));
        self.arrives(call, Phase::Request, is_out);
        let mut request = Some(std::mem::take(&mut self.calls[call].request));
        let mut passage = None;
        self.intercept(at, link, |points| {
            passage = request.take().map(|request| {
                let passage = request_comes(points, stream, request, room);
                if let Passage::Acted(act) = &passage {
                    act_on(points, stream, act);
                }
                passage
            });
        });
        self.request_goes(call, is_out, passage.expect("it was called"));
        self.after(at, Some(call));
    }

    fn request_goes(&mut self, call: usize, is_out: bool, passage: Passage<Request>) {
        let at = self.leg_instance(call, is_out);
        match passage {
            Passage::Kept(parked) => self.keep(call, is_out, parked),
            Passage::Acted(act) => {
                self.faulted(call, Phase::Request, at);
                if is_out {
                    self.happen(at, call, Moment::RequestSent);
                }
                self.acted(call, is_out, act);
            }
            Passage::Through(mut request) => {
                self.leaves(call, Phase::Request, is_out);
                self.happen(at, call, if is_out { Moment::RequestSent } else { Moment::RequestReceived });
                if let Some(member) = member(&request.lines) {
                    if !self.calls[call].lost || !is_out {
                        self.learn_execution(call, &member);
                    }
                    // Where our member did not fit the one above it is still there.
                    let is_new = !member.call.is_zero() && !self.ids.contains_key(&member.call);
                    if self.calls[call].id.is_none() && is_new {
                        self.named(call, member.call);
                    }
                }
                if !is_out {
                    self.calls[call].handler.context = request.lines;
                    self.later(30, Event::Handle(call));
                    return;
                }
                self.measure(call, &request.lines);
                self.calls[call].request_knows = self.known(at, call);
                if !self.is_ordinary(call) && self.random.per_mille(self.weather.lost_requests) {
                    lose_hop(&mut request.lines);
                    lose_hop(&mut request.trailers);
                }
                self.calls[call].request = request;
                self.calls[call].forwarded = true;
                let delay = self.delay();
                self.later(delay, Event::In(call));
            }
        }
    }

    fn measure(&mut self, call: usize, lines: &[(String, String)]) {
        if let Some(length) = hop_length(&lines.to_vec()).filter(|_| !self.is_ordinary(call)) {
            self.headers.push(length);
        }
    }

    fn keep(&mut self, call: usize, is_out: bool, parked: Parked) {
        if self.is_ordinary(call) {
            self.wrong.push(format!("an ordinary message of call {call} was kept"));
        }
        if let Some(leg) = self.leg_of(call, is_out) {
            leg.parked = Some(parked);
        }
    }

    // ---- responses -------------------------------------------------------------------------------------------------

    /// The application of the callee answers.
    pub(crate) fn answer(&mut self, call: usize) {
        if std::mem::replace(&mut self.calls[call].handler.over, true) {
            return;
        }
        let node = &self.system.nodes[self.calls[call].node];
        let grpc = self.system.services[node.service].grpc;
        let ok = !(node.fails || (node.strict && self.calls[call].handler.failed));
        let trailers_only = !ok && self.random.one_in(2);
        let response = Response::new(grpc, ok, trailers_only);
        let callee = self.calls[call].callee;
        self.calls[call].sent_ok = Some(ok);
        if !self.has_sidecar(callee) {
            self.calls[call].response_knows = self.known(callee, call);
            self.send_back(call, response);
        } else if self.leg_of(call, false).is_some() {
            self.response_at(call, false, response);
        }
    }

    fn send_back(&mut self, call: usize, response: Response) {
        self.calls[call].response = Some(response);
        let delay = self.delay();
        self.later(delay, Event::Back(call));
    }

    /// A response has come to where the call was sent from.
    pub(crate) fn back(&mut self, call: usize) {
        let Some(response) = self.calls[call].response.take() else { return };
        let ok = self.calls[call].sent_ok == Some(true);
        let Some(at) = self.calls[call].out.as_ref().map(|leg| leg.instance) else {
            // A client, or a hop without sidecar.
            if let Some(caller) = self.calls[call].caller.filter(|_| !self.calls[call].ended) {
                let knows = std::mem::take(&mut self.calls[call].response_knows);
                self.learns(caller, call, &knows);
            }
            self.done(call, ok);
            return;
        };
        let knows = std::mem::take(&mut self.calls[call].response_knows);
        if self.leg_of(call, true).is_none() {
            let leg = self.calls[call].out.as_ref().expect("it was there");
            let (link, stream, own) = (leg.link, leg.stream, leg.own_link);
            // Only where streams share a connection does anybody still read.
            if !own && leg.observer == self.instances[at].observer && self.instances[at].up {
                let last = response.trailers.as_ref().unwrap_or(&response.lines).clone();
                self.intercept(at, link, |points| points.late(stream, &fields(&last)));
                self.learns(at, call, &knows);
                self.after(at, None);
            }
            return;
        }
        self.learns(at, call, &knows);
        self.response_at(call, true, response);
    }

    fn response_at(&mut self, call: usize, is_out: bool, response: Response) {
        let room = if is_out { Room::Enough } else { self.room(call) };
        let Some(leg) = self.leg_of(call, is_out) else { return };
        let (at, link, stream) = (leg.instance, leg.link, leg.stream);
        if is_out {
            self.calls[call].received_ok = self.calls[call].sent_ok;
        }
        self.arrives(call, Phase::Response, is_out);
        self.flow(call, is_out, at, Flow::Comes(response), link, stream, room);
        self.after(at, Some(call));
    }

    #[allow(clippy::too_many_arguments, reason = "one exchange, taken apart for the borrow checker")]
    fn flow(
        &mut self,
        call: usize,
        is_out: bool,
        at: usize,
        flow: Flow,
        link: aftershock_proxy::exchange::LinkId,
        stream: StreamId,
        room: Room,
    ) {
        let mut flow = Some(flow);
        let mut passage = None;
        self.intercept(at, link, |points| {
            passage = flow.take().map(|flow| {
                let passage = match flow {
                    Flow::Comes(response) => response_comes(points, stream, response, room),
                    Flow::GoesOn { mut response, at_end: false, .. } => {
                        write_head(points, stream, &mut response, room);
                        response_ends(points, stream, response, true, room)
                    }
                    Flow::GoesOn { response, head, .. } => {
                        Passage::Through(write_end(points, stream, response, head, room))
                    }
                };
                if let Passage::Acted(act) = &passage {
                    act_on(points, stream, act);
                }
                passage
            });
        });
        match passage.expect("it was called") {
            Passage::Kept(parked) => self.keep(call, is_out, parked),
            Passage::Acted(act) => {
                self.faulted(call, Phase::Response, at);
                self.acted(call, is_out, act);
            }
            Passage::Through(response) => self.response_goes(call, is_out, at, response),
        }
    }

    fn response_goes(&mut self, call: usize, is_out: bool, at: usize, mut response: Response) {
        self.leaves(call, Phase::Response, is_out);
        self.happen(at, call, if is_out { Moment::ResponseReceived } else { Moment::ResponseSent });
        self.close_leg(call, is_out);
        if is_out {
            let ok = self.calls[call].received_ok == Some(true);
            self.later(30, Event::Done(call, ok));
            return;
        }
        let lines = response.trailers.as_ref().unwrap_or(&response.lines).clone();
        self.measure(call, &lines);
        self.calls[call].response_knows = self.known(at, call);
        if !self.is_ordinary(call) && self.random.per_mille(self.weather.lost_responses) {
            lose_hop(&mut response.lines);
            response.trailers.iter_mut().for_each(|trailers| {
                lose_hop(trailers);
            });
        }
        self.send_back(call, response);
    }

    // ---- what ends an exchange otherwise ---------------------------------------------------------------------------

    /// An editor carried out a fault.
    fn acted(&mut self, call: usize, is_out: bool, act: Act) {
        match act {
            Act::Drop => {
                if let Some(leg) = self.leg_of(call, is_out) {
                    leg.dropped = true;
                }
                return;
            }
            Act::Reset { .. } | Act::Answer(_) => {}
        }
        let at = self.leg_instance(call, is_out);
        self.close_leg(call, is_out);
        if is_out {
            self.calls[call].received_ok = Some(false);
            self.happen(at, call, Moment::ResponseReceived);
            self.later(30, Event::Done(call, false));
        } else {
            self.calls[call].sent_ok = Some(false);
            self.happen(at, call, Moment::ResponseSent);
            let delay = self.delay();
            self.later(delay, Event::Broken(call));
        }
    }

    /// What was parked goes on, or what was dropped is closed.
    pub(crate) fn resume(&mut self, call: usize, is_out: bool, resume: Resume) {
        let room = self.room(call);
        let Some(leg) = self.leg_of(call, is_out) else { return };
        let (at, link, stream, dropped) = (leg.instance, leg.link, leg.stream, leg.dropped);
        let parked = leg.parked.take();
        self.note(|| format!("call {call} {}", Net::resumes_with(&resume)));
        match (parked, resume) {
            (None, Resume::Close) if dropped => {
                self.intercept(at, link, |points| points.closed(stream, Closed::ByFault));
                self.close_leg(call, is_out);
                let delay = self.delay();
                self.later(delay, if is_out { Event::Done(call, false) } else { Event::Broken(call) });
            }
            (Some(Parked::Request(request)), Resume::Pass) => {
                let room = if is_out { room } else { Room::Enough };
                let mut request = Some(request);
                let mut passage = None;
                self.intercept(at, link, |points| {
                    passage = request.take().map(|request| write_request(points, stream, request, room));
                });
                self.request_goes(call, is_out, Passage::Through(passage.expect("it was called")));
            }
            (Some(Parked::Request(_)), Resume::Act(act)) => {
                self.intercept(at, link, |points| act_on(points, stream, &act));
                self.request_goes(call, is_out, Passage::Acted(act));
            }
            (Some(Parked::Response { response, at_end, head }), Resume::Pass) => {
                let room = if is_out { Room::Enough } else { room };
                self.flow(call, is_out, at, Flow::GoesOn { response, at_end, head }, link, stream, room);
            }
            (Some(Parked::Response { .. }), Resume::Act(act)) => {
                self.intercept(at, link, |points| act_on(points, stream, &act));
                self.faulted(call, Phase::Response, at);
                self.acted(call, is_out, act);
            }
            (parked, resume) => {
                self.note(|| format!("call {call}: nothing to do for {resume:?} with {parked:?}"));
            }
        }
    }

    /// The callee's side is gone, as the caller's sees it.
    pub(crate) fn broken(&mut self, call: usize) {
        if self.calls[call].out.is_some() {
            if self.calls[call].received_ok.is_some() {
                return;
            }
            let Some(leg) = self.leg_of(call, true) else { return };
            let (at, link, stream) = (leg.instance, leg.link, leg.stream);
            self.intercept(at, link, |points| points.closed(stream, Closed::ByUpstream));
            self.calls[call].received_ok = Some(false);
            self.happen(at, call, Moment::ResponseReceived);
            self.close_leg(call, true);
            self.after(at, Some(call));
            self.later(30, Event::Done(call, false));
        } else {
            self.done(call, false);
        }
    }

    /// The calling application closes its side.
    pub(crate) fn hang_up(&mut self, call: usize) {
        self.calls[call].ended = true;
        if let Some(leg) = self.leg_of(call, true) {
            let (at, link, stream) = (leg.instance, leg.link, leg.stream);
            self.intercept(at, link, |points| points.closed(stream, Closed::ByApplication));
            self.close_leg(call, true);
            self.after(at, Some(call));
        }
        let delay = self.delay() + self.system.spread;
        self.later(delay, Event::Left(call));
    }

    /// The callee's side learns that nobody waits any more.
    pub(crate) fn left(&mut self, call: usize) {
        if !self.calls[call].arrived {
            if self.calls[call].forwarded {
                self.later(400, Event::Left(call));
            }
            return;
        }
        if let Some(leg) = self.leg_of(call, false) {
            let (at, link, stream) = (leg.instance, leg.link, leg.stream);
            self.intercept(at, link, |points| points.closed(stream, Closed::ByApplication));
            self.close_leg(call, false);
            self.after(at, Some(call));
        }
        if self.system.cancels && !std::mem::replace(&mut self.calls[call].handler.over, true) {
            let children: Vec<usize> = self.attempts[self.execution_of(call)].calls.clone();
            for child in children {
                if self.calls[child].parent == Some(call) && !self.calls[child].ended {
                    self.hang_up(child);
                }
            }
        }
    }

    fn leg_instance(&self, call: usize, is_out: bool) -> usize {
        let call = &self.calls[call];
        let leg = if is_out { call.out.as_ref() } else { call.inn.as_ref() };
        leg.map_or(call.callee, |leg| leg.instance)
    }
}

enum Flow {
    Comes(Response),
    GoesOn { response: Response, at_end: bool, head: bool },
}
