//! Several sidecars in one process, without sockets: messages are lists of field lines, passed from hand to hand.
//!
//! A sidecar is named by its service, and `service#n` where that has several instances.
//!
//! [`Net`] plays the editors: it calls the interception points in the order they would, keeps what is parked or withheld,
//! applies edits, and carries out what a sidecar lets go after each message has been "written". Applications are the
//! test's business: it takes the request that an application sees, and says what that application sends.

mod flow;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use aftershock_core::evidence::{Evidence, Gaps};
use aftershock_core::hop::{HEADER, HopKey, Keyring};
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side, Target, Tfic};
use aftershock_core::span::{Association, CallSpan, Ending, Instant as Stamp};
use aftershock_core::w3c::{Member, TraceState};
use aftershock_core::wire::{Arm, Ask, FromController, FromSidecar, PROTOCOL, Registry, Ruling};

use super::Sidecar;
use super::execution::Key;
use crate::config::Config;
use crate::exchange::{
    Act, Closed, Decider, Door, Edit, Edits, Fields, Interceptor, LinkId, Made, Part, Protocol, Refusal, RequestHead,
    Resume, StreamId, Verdict,
};
use flow::Flow;

/// The token of the tests' round.
pub(crate) const ROUND: Token = Token(0xa11ce);
pub(crate) const KEYS: HopKey = HopKey { id: 3, secret: *b"hops of the test" };

type Lines = Vec<(String, String)>;

fn fields(lines: &Lines) -> Fields<'_> {
    Fields(lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect())
}

/// The edits of a part, as the editors apply them.
fn edited(mut lines: Lines, edits: &Edits) -> Lines {
    for edit in edits {
        match edit {
            Edit::Remove(name) => lines.retain(|(n, _)| n != name),
            Edit::Set(name, value) => match lines.iter().position(|(n, _)| n == name) {
                None => lines.push(((*name).to_owned(), String::from_utf8_lossy(value).into_owned())),
                Some(first) => {
                    lines[first].1 = String::from_utf8_lossy(value).into_owned();
                    let mut at = 0;
                    lines.retain(|(n, _)| {
                        at += 1;
                        n != name || at == first + 1
                    });
                }
            },
        }
    }
    lines
}

/// A request, as a peer sends or sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) protocol: Protocol,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) lines: Lines,
}

impl Request {
    pub(crate) fn http(method: &str, path: &str) -> Self {
        Request { protocol: Protocol::Http1, method: method.to_owned(), path: path.to_owned(), lines: Vec::new() }
    }

    pub(crate) fn grpc(operation: &str) -> Self {
        let request = Request {
            protocol: Protocol::Http2,
            method: "POST".to_owned(),
            path: format!("/{operation}"),
            lines: Vec::new(),
        };
        request.with("content-type", "application/grpc")
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// As an application sends it that hands on `names` from the request it serves.
    pub(crate) fn hands_on(mut self, from: &Request, names: &[&str]) -> Self {
        let handed = from.lines.iter().filter(|(name, _)| names.contains(&name.as_str()));
        self.lines.extend(handed.cloned());
        self
    }

    /// As an application with W3C trace context sends it.
    pub(crate) fn within(self, from: &Request) -> Self {
        self.hands_on(from, &["traceparent", "tracestate"])
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.lines.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn member(&self) -> Option<Member> {
        let lines = self.lines.iter().filter(|(name, _)| name == "tracestate").map(|(_, value)| value);
        TraceState::parse(lines).member().and_then(Result::ok)
    }

    pub(crate) fn has_hop(&self) -> bool {
        self.get(HEADER).is_some()
    }

    fn head(&self) -> RequestHead<'_> {
        RequestHead {
            protocol: self.protocol,
            method: &self.method,
            path: &self.path,
            authority: "test",
            fields: fields(&self.lines),
            ends: false,
        }
    }
}

/// A response, as a peer sends or sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) lines: Lines,
    /// It ends with its head.
    pub(crate) ends: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Lines>,
}

impl Response {
    pub(crate) fn http(status: u16) -> Self {
        Response { status, lines: Vec::new(), ends: false, body: Vec::new(), trailers: None }
    }

    pub(crate) fn grpc(status: u32) -> Self {
        Response {
            status: 200,
            lines: vec![("content-type".into(), "application/grpc".into())],
            ends: false,
            body: Vec::new(),
            trailers: Some(vec![("grpc-status".into(), status.to_string())]),
        }
    }

    pub(crate) fn trailers_only(status: u32) -> Self {
        let mut response = Response::grpc(status);
        response.lines.append(response.trailers.as_mut().expect("it has trailers"));
        Response { ends: true, trailers: None, ..response }
    }

    pub(crate) fn with_body(self, body: impl Into<Vec<u8>>) -> Self {
        Response { body: body.into(), ..self }
    }

    /// With gRPC messages of these lengths.
    pub(crate) fn with_messages(mut self, lengths: &[u32]) -> Self {
        for length in lengths {
            self.body.push(0);
            self.body.extend(length.to_be_bytes());
            self.body.resize(self.body.len() + *length as usize, b'm');
        }
        self
    }

    /// Where its gRPC messages begin.
    fn message_starts(&self) -> Vec<usize> {
        let grpc = self.lines.iter().any(|(name, value)| name == "content-type" && value == "application/grpc");
        let mut starts = Vec::new();
        let mut at = 0;
        while let Some(prefix) = self.body.get(at..at + 5).filter(|_| grpc) {
            starts.push(at);
            at += 5 + u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        }
        starts
    }

    pub(crate) fn has_hop(&self) -> bool {
        self.lines.iter().chain(self.trailers.iter().flatten()).any(|(name, _)| name == HEADER)
    }

    pub(crate) fn without_hop(mut self) -> Self {
        self.lines.retain(|(name, _)| name != HEADER);
        if let Some(trailers) = &mut self.trailers {
            trailers.retain(|(name, _)| name != HEADER);
        }
        self
    }
}

/// What became of a message at a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Passage<M> {
    /// It was forwarded, as edited.
    Through(M),
    /// It is parked.
    Kept,
    /// A fault took it.
    Dropped,
    /// A fault reset the exchange.
    Reset,
    /// A fault answered.
    Made(Made),
}

impl<M: std::fmt::Debug> Passage<M> {
    #[track_caller]
    pub(crate) fn through(self) -> M {
        match self {
            Passage::Through(message) => message,
            other => panic!("expected the message to pass, found {other:?}"),
        }
    }
}

/// One side of one exchange at one sidecar.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leg {
    pub(crate) service: String,
    link: LinkId,
    stream: StreamId,
}

/// What a sidecar let go later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resumed {
    Request(Passage<Request>),
    Response(Passage<Response>),
    /// What was dropped was closed.
    Closed,
}

#[derive(Debug, Default)]
struct Kept {
    request: Option<Request>,
    response: Option<Flow>,
    dropped: bool,
}

struct Node {
    sidecar: Sidecar,
    inbound: LinkId,
    outbound: BTreeMap<String, LinkId>,
    kept: BTreeMap<(LinkId, StreamId), Kept>,
    streams: u64,
    said: Vec<FromSidecar>,
}

/// Sidecars of services, one for each instance, with listeners to all services.
pub(crate) struct Net {
    pub(crate) now: Instant,
    nodes: BTreeMap<String, Node>,
    resumed: VecDeque<(Leg, Resumed)>,
    /// Body bytes of responses that have left.
    written: BTreeMap<Leg, usize>,
    /// What the next message meets if a fault is to act on it.
    pub(crate) refuse: Option<Refusal>,
    /// The same for the next message that is let go.
    refuse_resumed: Option<Refusal>,
    /// Links are slow: what is let go waits for [`Net::carry_out`].
    pub(crate) slow: bool,
    waiting: Vec<(Leg, Resume)>,
}

fn random(seed: u64) -> super::Random {
    // SplitMix64, from starts that are no multiples of its increment: their sequences would be one sequence.
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d;
    Box::new(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// The service of an instance: `checkout` of `checkout#2`.
pub(crate) fn service_of(instance: &str) -> &str {
    instance.split_once('#').map_or(instance, |(service, _)| service)
}

impl Net {
    /// Registered sidecars of `instances`: one for each service, or several named `service#n`.
    pub(crate) fn new(instances: &[&str]) -> Self {
        let with = instances.iter().map(|instance| (*instance, "")).collect::<Vec<_>>();
        let mut services: Vec<&str> = instances.iter().map(|instance| service_of(instance)).collect();
        services.sort_unstable();
        services.dedup();
        let mut net = Net::configured(&with, &services);
        net.register(&services);
        net
    }

    /// Sidecars with further lines of configuration and listeners to `callees`, not registered yet.
    pub(crate) fn configured(instances: &[(&str, &str)], callees: &[&str]) -> Self {
        let mut nodes = BTreeMap::new();
        for (index, (instance, more)) in instances.iter().enumerate() {
            let service = service_of(instance);
            let outbound: String = callees
                .iter()
                .enumerate()
                .map(|(port, callee)| {
                    let (listen, host) = (port + 100, port + 1);
                    format!("  - {{listen: \"127.0.0.1:{listen}\", callee: {callee}, to: [\"10.0.0.{host}:80\"]}}\n")
                })
                .collect();
            let text = format!(
                "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: {service}\n\
                 inbound: [{{listen: \"127.0.0.1:80\", to: \"127.0.0.1:81\"}}]\noutbound:\n{outbound}{more}"
            );
            let config = Config::parse("test", &text).unwrap_or_else(|error| panic!("{error}"));
            let id = index as u64 + 1;
            let mut sidecar = Sidecar::new(config, ObserverId(id), random(id), Box::new(|| 7));
            let inbound = sidecar.opened(Door::Inbound(0));
            let outbound = callees
                .iter()
                .enumerate()
                .map(|(i, callee)| ((*callee).to_owned(), sidecar.opened(Door::Outbound(i))))
                .collect();
            let node = Node { sidecar, inbound, outbound, kept: BTreeMap::new(), streams: 0, said: Vec::new() };
            nodes.insert((*instance).to_owned(), node);
        }
        Net {
            now: Instant::now(),
            nodes,
            resumed: VecDeque::new(),
            written: BTreeMap::new(),
            refuse: None,
            refuse_resumed: None,
            slow: false,
            waiting: Vec::new(),
        }
    }

    /// Welcome every sidecar; `services` are said to be registered.
    pub(crate) fn register(&mut self, services: &[&str]) {
        let registry = Registry {
            services: services.iter().map(|service| service.parse().unwrap()).collect(),
            ..Registry::default()
        };
        for service in self.services() {
            let word = FromController::Welcome {
                protocol: PROTOCOL,
                version: "test".into(),
                keys: Keyring(vec![KEYS]),
                registry: registry.clone(),
                late: Vec::new(),
            };
            self.tell(&service, word);
        }
    }

    pub(crate) fn services(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    pub(crate) fn sidecar(&mut self, service: &str) -> &mut Sidecar {
        &mut self.node(service).sidecar
    }

    fn node(&mut self, service: &str) -> &mut Node {
        self.nodes.get_mut(service).unwrap_or_else(|| panic!("no sidecar of {service}"))
    }

    /// A word of the controller to one sidecar.
    pub(crate) fn tell(&mut self, service: &str, word: FromController) {
        let now = self.now;
        self.sidecar(service).on_control(word, now);
        self.settle(service);
    }

    /// Arm the round everywhere. Rules go to the sidecar of their service; all count the events of all guards, and
    /// `further` ones.
    pub(crate) fn arm(&mut self, rules: &[Rule], further: &[Event]) {
        self.arm_with(rules, further, |_| {});
    }

    pub(crate) fn arm_with(&mut self, rules: &[Rule], further: &[Event], change: impl Fn(&mut Arm)) {
        let events = rules.iter().flat_map(|rule| rule.tfic.guard.after.iter().map(|atom| atom.event()));
        let events: Vec<CountedEvent> = events.chain(further.iter().cloned()).map(counted).collect();
        let gap_apis: std::collections::BTreeSet<Api> =
            rules.iter().flat_map(|rule| rule.apis.iter().cloned()).collect();
        for service in self.services() {
            let mut arm = Arm {
                rules: rules.iter().filter(|rule| rule.service.as_str() == service_of(&service)).cloned().collect(),
                events: events.clone(),
                gap_apis: gap_apis.clone(),
                max_parked: 16,
                ..Arm::clean(ROUND, Duration::from_secs(10))
            };
            change(&mut arm);
            let token = arm.token;
            self.tell(&service, FromController::Arm(arm));
            let said = self.sidecar(&service).take_control();
            assert!(said.contains(&FromSidecar::Armed { token }), "{service} did not arm");
            self.node(&service).said.extend(said.into_iter().filter(|word| *word != FromSidecar::Armed { token }));
        }
    }

    /// What a sidecar said to the controller since the last call.
    pub(crate) fn said(&mut self, service: &str) -> Vec<FromSidecar> {
        let words = self.sidecar(service).take_control();
        let node = self.node(service);
        node.said.extend(words);
        std::mem::take(&mut node.said)
    }

    /// What a sidecar asked the arbiter since the last call; what else it said stays.
    pub(crate) fn asked(&mut self, service: &str) -> Vec<Ask> {
        let words = self.sidecar(service).take_control();
        let node = self.node(service);
        node.said.extend(words);
        let (asks, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut node.said).into_iter().partition(|word| matches!(word, FromSidecar::Ask(_)));
        node.said = others;
        asks.into_iter()
            .map(|word| match word {
                FromSidecar::Ask(ask) => ask,
                _ => unreachable!("only questions were taken"),
            })
            .collect()
    }

    /// The arbiter's answer to a question of a sidecar.
    pub(crate) fn rule_on(&mut self, service: &str, ask: &Ask, number: u32, ruling: Ruling) {
        let Ask { token, rule, execution, call, .. } = *ask;
        self.tell(service, FromController::Ruled { token, rule, execution, call, number, ruling });
    }

    /// Let time pass at every sidecar.
    pub(crate) fn pass_time(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for service in self.services() {
            self.sidecar(&service).on_time(now);
            self.settle(&service);
        }
    }

    /// Let time pass while the controller renews the round's leases.
    pub(crate) fn pass_time_renewing(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(3));
            self.pass_time(step);
            for service in self.services() {
                self.tell(&service, FromController::Renew { token: ROUND });
            }
            left -= step;
        }
    }

    /// What was let go since the last call.
    pub(crate) fn resumed(&mut self) -> Vec<(Leg, Resumed)> {
        self.resumed.drain(..).collect()
    }

    /// The spans of a service since the last call.
    pub(crate) fn spans(&mut self, service: &str) -> Vec<CallSpan> {
        self.sidecar(service).take_spans()
    }

    pub(crate) fn all_spans(&mut self) -> Vec<CallSpan> {
        self.services().iter().flat_map(|service| self.spans(service)).collect()
    }

    pub(crate) fn evidence(&mut self, service: &str, execution: ExecutionId) -> Evidence {
        let key = Key { token: ROUND, execution };
        self.sidecar(service).executions.get(key).map(|e| e.knowledge.evidence.clone()).unwrap_or_default()
    }

    /// How often `service` ignored something of this name.
    pub(crate) fn ignored(&mut self, service: &str, what: &str) -> u64 {
        self.sidecar(service).counters.report().ignored.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn associated(&mut self, service: &str, step: Association) -> u64 {
        self.sidecar(service).counters.report().associations.get(&step).copied().unwrap_or(0)
    }

    /// The exchanges of a service with a parked message.
    pub(crate) fn parked(&mut self, service: &str) -> Vec<Leg> {
        let exchanges = &self.node(service).sidecar.exchanges;
        let parked = exchanges
            .iter()
            .filter(|(_, exchange)| exchange.call.as_deref().is_some_and(|call| call.stage.is_parked()));
        parked.map(|(id, _)| Leg { service: service.to_owned(), link: id.link, stream: id.stream }).collect()
    }

    fn at(&mut self, leg: &Leg, mut what: impl FnMut(&mut dyn Interceptor)) {
        let (link, now) = (leg.link, self.now);
        self.node(&leg.service).sidecar.intercept(link, now, &mut |points| what(points));
    }

    // ── what the editors do ─────────────────────────────────────────────────────────────────────────────────────────

    /// A request comes in at `service`.
    pub(crate) fn come_in(&mut self, service: &str, request: Request) -> (Leg, Passage<Request>) {
        let link = self.node(service).inbound;
        self.request(service, link, request)
    }

    /// The application of `service` sends a request to `callee`, any instance of it.
    pub(crate) fn go_out(&mut self, service: &str, callee: &str, request: Request) -> (Leg, Passage<Request>) {
        let link = self.node(service).outbound[service_of(callee)];
        self.request(service, link, request)
    }

    fn request(&mut self, service: &str, link: LinkId, request: Request) -> (Leg, Passage<Request>) {
        let node = self.node(service);
        node.streams += 1;
        let leg = Leg { service: service.to_owned(), link, stream: StreamId(node.streams) };
        node.kept.insert((link, leg.stream), Kept::default());
        let refuse = self.refuse.take();
        let mut passage = Passage::Kept;
        let mut kept = None;
        self.at(&leg, |points| {
            let verdict = points.request(leg.stream, &request.head());
            passage = match verdict {
                Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {
                    Passage::Through(stamped(points, &leg, &request))
                }
                Verdict::Park => {
                    kept = Some(request.clone());
                    Passage::Kept
                }
                Verdict::Act(act) => match refuse {
                    Some(why) => {
                        points.refused(leg.stream, why);
                        Passage::Through(stamped(points, &leg, &request))
                    }
                    None => act_on(points, &leg, act),
                },
            };
        });
        self.keep(&leg, |state| state.request = kept);
        self.dropped(&leg, &passage);
        self.settle(service);
        (leg, passage)
    }

    /// The end of a request that did not end with its head: the trailers that leave, given those that came.
    pub(crate) fn request_end(&mut self, leg: &Leg, trailers: Lines) -> Lines {
        let mut sent = Lines::new();
        self.at(leg, |points| {
            points.request_end(leg.stream, (!trailers.is_empty()).then(|| fields(&trailers)).as_ref());
            let edits = points.stamp(leg.stream, Part::RequestEnd);
            sent = edited(trailers.clone(), &edits);
        });
        self.settle(&leg.service);
        sent
    }

    /// The response comes from the upstream of `leg`, all of it.
    pub(crate) fn response(&mut self, leg: &Leg, response: Response) -> Passage<Response> {
        let refuse = self.refuse.take();
        let passage = self.flow(leg, Flow::new(response), refuse, None);
        self.settle(&leg.service);
        passage
    }

    fn flow(
        &mut self,
        leg: &Leg,
        mut flow: Flow,
        mut refuse: Option<Refusal>,
        mut resume: Option<Resume>,
    ) -> Passage<Response> {
        let mut passage = Passage::Kept;
        self.at(leg, |points| passage = flow.run(points, leg, &mut refuse, resume.take()));
        self.written.insert(leg.clone(), flow.written);
        let kept = (passage == Passage::Kept).then_some(flow);
        self.keep(leg, |state| state.response = kept);
        self.dropped(leg, &passage);
        passage
    }

    /// How many bytes of its body have left.
    pub(crate) fn written(&self, leg: &Leg) -> usize {
        self.written.get(leg).copied().unwrap_or(0)
    }

    /// The head of a response that passes, written before the rest comes.
    pub(crate) fn response_head(&mut self, leg: &Leg, response: Response) -> Response {
        let mut flow = Flow::new(response.clone());
        let mut lines = Lines::new();
        self.at(leg, |points| lines = flow.only_head(points, leg));
        self.keep(leg, |state| state.response = Some(flow));
        self.settle(&leg.service);
        Response { lines, ..response }
    }

    /// The rest of a response whose head was written.
    pub(crate) fn response_rest(&mut self, leg: &Leg) -> Passage<Response> {
        let mut flow = None;
        self.keep(leg, |state| flow = state.response.take());
        let passage = self.flow(leg, flow.expect("its head was written"), None, Some(Resume::Pass));
        self.settle(&leg.service);
        passage
    }

    /// Fields of an answer arrive whose caller has gone.
    pub(crate) fn late(&mut self, leg: &Leg, lines: &Lines) {
        self.at(leg, |points| points.late(leg.stream, &fields(lines)));
        self.settle(&leg.service);
    }

    fn keep(&mut self, leg: &Leg, change: impl FnOnce(&mut Kept)) {
        if let Some(state) = self.node(&leg.service).kept.get_mut(&(leg.link, leg.stream)) {
            change(state);
        }
    }

    fn dropped<M>(&mut self, leg: &Leg, passage: &Passage<M>) {
        match passage {
            Passage::Dropped => self.keep(leg, |state| state.dropped = true),
            Passage::Reset | Passage::Made(_) => {
                self.node(&leg.service).kept.remove(&(leg.link, leg.stream));
            }
            Passage::Through(_) | Passage::Kept => {}
        }
    }

    /// Whether the next message that was let go meets a refusal, if a fault is to act on it.
    pub(crate) fn refuse_next(&mut self, why: Option<Refusal>) {
        self.refuse_resumed = why;
    }

    /// [`Net::response`]; what it lets go is refused.
    pub(crate) fn response_then_refuse(&mut self, leg: &Leg, response: Response, why: Refusal) -> Passage<Response> {
        self.refuse_resumed = Some(why);
        self.response(leg, response)
    }

    /// The editor says so.
    pub(crate) fn refused(&mut self, leg: &Leg, why: Refusal) {
        self.at(leg, |points| points.refused(leg.stream, why));
        self.settle(&leg.service);
    }

    /// The exchange ends before its response did.
    pub(crate) fn close(&mut self, leg: &Leg, how: Closed) {
        self.at(leg, |points| points.closed(leg.stream, how));
        self.node(&leg.service).kept.remove(&(leg.link, leg.stream));
        self.settle(&leg.service);
    }

    /// What was caused by the last message has been written: carry out what may go on now, and what that lets go.
    fn settle(&mut self, service: &str) {
        loop {
            let resumes = self.node(service).sidecar.resumes();
            if resumes.is_empty() {
                return;
            }
            for (link, stream, resume) in resumes {
                let leg = Leg { service: service.to_owned(), link, stream };
                if self.slow {
                    self.waiting.push((leg, resume));
                } else {
                    self.resume(&leg, resume);
                }
            }
        }
    }

    /// The links come to what they were told to do.
    pub(crate) fn carry_out(&mut self) {
        self.slow = false;
        for (leg, resume) in std::mem::take(&mut self.waiting) {
            self.resume(&leg, resume);
            self.settle(&leg.service);
        }
    }

    fn resume(&mut self, leg: &Leg, resume: Resume) {
        let mut state = Kept::default();
        self.keep(leg, |kept| state = std::mem::take(kept));
        let refuse = self.refuse_resumed.take();
        if let Some(flow) = state.response.take() {
            let passage = self.flow(leg, flow, refuse, Some(resume));
            self.resumed.push_back((leg.clone(), Resumed::Response(passage)));
            return;
        }
        let mut out = None;
        self.at(leg, |points| {
            out = match (&state, resume.clone()) {
                (Kept { dropped: true, .. }, Resume::Close) => {
                    points.closed(leg.stream, Closed::ByFault);
                    Some(Resumed::Closed)
                }
                (_, Resume::Close) => None,
                (Kept { request: Some(request), .. }, Resume::Pass) => {
                    Some(Resumed::Request(Passage::Through(stamped(points, leg, request))))
                }
                (Kept { request: Some(request), .. }, Resume::Act(act)) => Some(Resumed::Request(match refuse {
                    Some(why) => {
                        points.refused(leg.stream, why);
                        Passage::Through(stamped(points, leg, request))
                    }
                    None => act_on(points, leg, act),
                })),
                _ => None,
            };
        });
        if let Some(Resumed::Request(passage)) = &out {
            self.dropped(leg, passage);
        }
        self.resumed.extend(out.map(|out| (leg.clone(), out)));
    }

    // ── whole calls ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// A call from `caller`'s application to `callee`'s, both with sidecars: the request as the callee sees it.
    #[track_caller]
    pub(crate) fn call(&mut self, caller: &str, callee: &str, request: Request) -> Dialogue {
        let (out, passage) = self.go_out(caller, callee, request);
        let (into, seen) = self.come_in(callee, passage.through());
        Dialogue { out, into, seen: seen.through() }
    }

    /// The callee answers: what its sidecar sends, as the caller's sidecar lets it through.
    #[track_caller]
    pub(crate) fn answer(&mut self, dialogue: &Dialogue, response: Response) -> Passage<Response> {
        let sent = self.response(&dialogue.into, response).through();
        self.response(&dialogue.out, sent)
    }
}

/// A call between two sidecars.
#[derive(Debug, Clone)]
pub(crate) struct Dialogue {
    pub(crate) out: Leg,
    pub(crate) into: Leg,
    /// The request as the callee's application sees it.
    pub(crate) seen: Request,
}

fn stamped(points: &mut dyn Interceptor, leg: &Leg, request: &Request) -> Request {
    let edits = points.stamp(leg.stream, Part::Request);
    Request { lines: edited(request.lines.clone(), &edits), ..request.clone() }
}

fn act_on<M>(points: &mut dyn Interceptor, leg: &Leg, act: Act) -> Passage<M> {
    match act {
        Act::Drop => Passage::Dropped,
        Act::Reset { .. } => {
            points.closed(leg.stream, Closed::ByFault);
            Passage::Reset
        }
        Act::Answer(made) => {
            points.closed(leg.stream, Closed::Complete);
            Passage::Made(*made)
        }
    }
}

// ── words of plans ──────────────────────────────────────────────────────────────────────────────────────────────────

pub(crate) fn api(text: &str) -> Api {
    text.parse().unwrap()
}

pub(crate) fn event(kind: EventKind, of: &str) -> Event {
    Event { event: kind, api: ApiRef::Api(api(of)), caller: None, outcome: OutcomeFilter::Any }
}

pub(crate) fn counted(event: Event) -> CountedEvent {
    let ApiRef::Api(api) = &event.api else { panic!("the tests have no groups") };
    CountedEvent { apis: [api.clone()].into(), event }
}

/// A rule at the sidecar of `service`, as its caller or, for entry Apis, as its callee.
pub(crate) fn rule(service: &str, side: Side, of: &str, k: Occurrence, phase: Phase, fault: Fault) -> Rule {
    let caller: Option<Service> = (side == Side::Caller).then(|| service.parse().unwrap());
    Rule {
        index: 0,
        service: service.parse().unwrap(),
        side,
        apis: [api(of)].into(),
        arbitrated: false,
        tfic: Tfic::new(Target { caller, ..Target::new(ApiRef::Api(api(of)), k, phase) }, fault),
    }
}

/// An entry request of the tests' round.
pub(crate) fn tagged(request: Request) -> Request {
    request.with("tracestate", &format!("aft=1-0-0-{ROUND}-0"))
}

/// A span of a round, for whoever only moves spans.
pub(crate) fn any_span(token: Token) -> CallSpan {
    CallSpan {
        side: Side::Caller,
        service: "checkout".parse().unwrap(),
        observer: ObserverId(1),
        execution: ExecutionId(2),
        token,
        call: CallId(3),
        parent: None,
        caller: None,
        api: api("payment shop.Payment/Charge"),
        association: Association::Exact,
        trace_id: 0,
        request: Stamp { clock: 1, unix_nanos: 0 },
        response: None,
        ended_unix_nanos: 0,
        outcome: None,
        http_status: None,
        grpc_status: None,
        made: false,
        ending: Ending::Complete,
        evidence_went: false,
        evidence_came: false,
        gaps: Gaps::default(),
        messages: None,
        passes: Vec::new(),
        injection: None,
    }
}
