//! Links in memory: an editor and the decider behind it, with an [`End`] on either side.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::Service;
use aftershock_core::otlp::Batch;
use aftershock_core::plan::{Rule, Side};
use aftershock_core::span::{CallSpan, PassedBy};
use aftershock_core::w3c::{Member, TraceParent};
use aftershock_core::wire::{Arm, FromController, FromSidecar, PROTOCOL, Registry};
use aftershock_proxy::config::Config;
use aftershock_proxy::exchange::{Decider, Door, Editor, LinkId};
use aftershock_proxy::sidecar::Sidecar;
use aftershock_proxy::{h1, h2};
use anyhow::Context as _;

use crate::ends::{Context, End, Http1, Http2};
use crate::pass::Pass;
use crate::{Protocol, Scenario, Traffic, measured};

/// The round to which recorded traffic belongs.
const ROUND: Token = Token(0x5eed_0000_0000_0001);
/// Exchanges of one declared execution.
const DECLARED: u64 = 100;
/// Spans that are encoded at once.
const BATCH: usize = 100;
/// Longer than any run.
const LEASE: Duration = Duration::from_secs(3600);
/// Time between two exchanges. With the linger time of 30 s this many are remembered, far below any limit.
const PACE: Duration = Duration::from_millis(10);

/// A link: client, editor, server.
struct Link {
    decider: Rc<RefCell<dyn Decider>>,
    id: LinkId,
    editor: Box<dyn Editor>,
    client: Box<dyn End>,
    server: Box<dyn End>,
    /// Bytes that an end has written.
    written: Vec<u8>,
    to_app: Vec<u8>,
    to_upstream: Vec<u8>,
}

impl Link {
    fn new(decider: Rc<RefCell<dyn Decider>>, door: Door, protocol: Protocol) -> Self {
        let id = decider.borrow_mut().opened(door);
        let (editor, client, server): (Box<dyn Editor>, Box<dyn End>, Box<dyn End>) = match protocol {
            Protocol::Http1 => (Box::new(h1::Link::new()), Box::new(Http1), Box::new(Http1)),
            Protocol::H2c => (Box::new(h2::Link::new()), Box::new(Http2::new()), Box::new(Http2::new())),
        };
        Self { decider, id, editor, client, server, written: Vec::new(), to_app: Vec::new(), to_upstream: Vec::new() }
    }

    /// Hands what an end has written to the editor, as the connection driver does.
    fn carry(&mut self, up: bool, now: Instant) {
        let (editor, bytes) = (&mut self.editor, std::mem::take(&mut self.written));
        let mut decider = self.decider.borrow_mut();
        measured(|| {
            decider.intercept(self.id, now, &mut |decide| match up {
                true => editor.app_bytes(&bytes, decide),
                false => editor.upstream_bytes(&bytes, decide),
            });
            assert!(decider.resumes().is_empty(), "nothing is held here");
        });
        let out = self.editor.output();
        self.to_app.extend_from_slice(&out.to_app.split());
        self.to_upstream.extend_from_slice(&out.to_upstream.split());
    }

    /// A request with `context` goes through; returns the context that the server sees.
    fn request(&mut self, context: &Context, now: Instant) -> anyhow::Result<Context> {
        self.client.request(context, &mut self.written);
        self.carry(true, now);
        self.server.read(&mut self.to_upstream).context("the request did not arrive")
    }

    /// Its response goes through.
    fn respond(&mut self, now: Instant) -> anyhow::Result<()> {
        self.server.respond(&mut self.written);
        self.carry(false, now);
        self.client.read(&mut self.to_app).map(drop).context("the response did not arrive")
    }
}

/// The links that an exchange passes, the first one at the front, and the brains among their deciders.
pub(crate) struct Chain {
    links: Vec<Link>,
    brains: Vec<Rc<RefCell<Sidecar>>>,
    traffic: Traffic,
    /// What waits for the collector.
    batch: Batch,
    now: Instant,
    exchanges: u64,
}

impl Chain {
    pub(crate) fn new(scenario: &Scenario) -> anyhow::Result<Self> {
        let now = Instant::now();
        let mut chain = Self {
            links: Vec::new(),
            brains: Vec::new(),
            traffic: scenario.traffic,
            batch: Batch::default(),
            now,
            exchanges: 0,
        };
        let mut decider = |service: &str, listeners: &str| -> anyhow::Result<Rc<RefCell<dyn Decider>>> {
            if scenario.traffic == Traffic::Editors {
                return Ok(Rc::new(RefCell::new(Pass::default())));
            }
            let arm = match scenario.traffic {
                Traffic::Matched => guarded()?,
                _ => Arm::clean(ROUND, LEASE),
            };
            let brain = Rc::new(RefCell::new(brain(service, listeners, arm, now)?));
            chain.brains.push(brain.clone());
            Ok(brain)
        };
        let origin = decider("origin", "inbound:\n  - {listen: '127.0.0.1:3', to: '127.0.0.1:4'}\n")?;
        chain.links.push(Link::new(origin, Door::Inbound(0), scenario.protocol));
        if scenario.links == 3 {
            let front = decider(
                "front",
                "inbound:\n  - {listen: '127.0.0.1:1', to: '127.0.0.1:9'}\n\
                 outbound:\n  - {listen: '127.0.0.1:2', callee: origin, to: ['127.0.0.1:3']}\n",
            )?;
            chain.links.insert(0, Link::new(front.clone(), Door::Inbound(0), scenario.protocol));
            chain.links.insert(1, Link::new(front, Door::Outbound(0), scenario.protocol));
        }
        Ok(chain)
    }

    /// One exchange from the client at the front to the last server and back.
    pub(crate) fn exchange(&mut self) -> anyhow::Result<()> {
        self.exchanges += 1;
        self.now += PACE;
        let mut context = client_context(self.exchanges, self.traffic);
        for link in &mut self.links {
            context = link.request(&context, self.now)?;
        }
        for link in self.links.iter_mut().rev() {
            link.respond(self.now)?;
        }
        self.record()
    }

    /// Encodes the spans of an exchange for the collector, where it is matched, and sees to it that they are all there.
    fn record(&mut self) -> anyhow::Result<()> {
        let matched = self.traffic == Traffic::Matched;
        let passed = |span: &CallSpan| match &span.passes[..] {
            [pass] => matches!(&pass.passed_by, Some(PassedBy::GuardFalse(atoms)) if atoms == &[0]),
            _ => false,
        };
        let (mut spans, mut at_target) = (0, true);
        for brain in &self.brains {
            let take = |taken: &[CallSpan]| {
                spans += taken.len();
                if matched {
                    at_target &= taken.iter().all(passed);
                    taken.iter().for_each(|span| self.batch.push(span));
                }
            };
            measured(|| brain.borrow_mut().hand_over_spans(take));
        }
        let recorded = matches!(self.traffic, Traffic::Recorded | Traffic::Matched);
        let expected = if recorded { self.links.len() } else { 0 };
        anyhow::ensure!(spans == expected, "{spans} spans, expected {expected}");
        anyhow::ensure!(at_target, "a request was not at the target, or its guard was true");
        if self.batch.len() >= BATCH {
            let batch = std::mem::take(&mut self.batch);
            measured(|| self.batch = Batch::reusing(black_box(batch.finish())));
        }
        Ok(())
    }
}

/// What a client sends beside its request.
fn client_context(number: u64, traffic: Traffic) -> Context {
    let trace_id = u128::from(splitmix(number)) << 64 | u128::from(number);
    let parent = TraceParent { version: 0, trace_id, parent_id: number, flags: 1 };
    let mut context = vec![("traceparent".to_owned(), parent.to_string())];
    let execution = match traffic {
        Traffic::Editors | Traffic::Ordinary => None,
        Traffic::Recorded => Some(ExecutionId(0)),
        Traffic::Matched => Some(ExecutionId(1 + number / DECLARED)),
    };
    if let Some(execution) = execution {
        let member = Member { execution, call: CallId(0), token: ROUND, check: parent.check() };
        context.push(("tracestate".to_owned(), format!("{}={member}", Member::KEY)));
    }
    context
}

/// A brain that a controller has registered, and armed with a round that records.
fn brain(service: &str, listeners: &str, arm: Arm, now: Instant) -> anyhow::Result<Sidecar> {
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: {service}\n\
         templates: ['POST /cart/{{id}}/items', 'GET /cart/{{id}}']\n{listeners}"
    );
    let config = Config::parse("instructions.yaml", &text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut drawn = 0;
    let seed = service.len() as u64;
    let random = move || {
        drawn += 1;
        splitmix(seed << 56 | drawn)
    };
    let mut brain = Sidecar::new(config, ObserverId(seed), Box::new(random), Box::new(|| 1_700_000_000_000_000_000));
    let (front, origin): (Service, Service) = ("front".parse()?, "origin".parse()?);
    let addresses = [("127.0.0.1:1", &front), ("127.0.0.1:3", &origin)];
    let templates = vec!["POST /cart/{id}/items".to_owned(), "GET /cart/{id}".to_owned()];
    let registry = Registry {
        addresses: addresses.into_iter().map(|(address, service)| (address.to_owned(), service.clone())).collect(),
        templates: BTreeMap::from([(front.clone(), templates.clone()), (origin.clone(), templates)]),
        services: BTreeSet::from([front, origin]),
        ..Registry::default()
    };
    let keys = Keyring(vec![HopKey { id: 1, secret: [7; 16] }]);
    let welcome =
        FromController::Welcome { protocol: PROTOCOL, version: String::new(), keys, registry, late: Vec::new() };
    brain.on_control(welcome, now);
    brain.on_control(FromController::Arm(arm), now);
    anyhow::ensure!(brain.take_control().contains(&FromSidecar::Armed { token: ROUND }), "the round was not armed");
    Ok(brain)
}

/// A round with a rule for every request to the origin, whose guard waits for what never happens.
fn guarded() -> anyhow::Result<Arm> {
    let apis = BTreeSet::from(["origin POST /cart/{id}/items".parse()?, "origin shop.Cart/AddItem".parse()?]);
    let never = Event {
        event: EventKind::RequestSent,
        api: ApiRef::Api("stock shop.Stock/Reserve".parse()?),
        caller: None,
        outcome: OutcomeFilter::Any,
    };
    let rule = Rule {
        index: 0,
        service: "origin".parse()?,
        side: Side::Callee,
        apis,
        tfic: serde_json::from_value(serde_json::json!({
            "target": {"api": "group:cart", "k": "first", "phase": "request"},
            "fault": "abort",
            "guard": {"after": [{"event": "request-sent", "api": "stock shop.Stock/Reserve", "count": 1}]},
        }))?,
        arbitrated: false,
    };
    let ApiRef::Api(api) = never.api.clone() else { anyhow::bail!("an Api was named") };
    let counted = CountedEvent { event: never, apis: BTreeSet::from([api]) };
    Ok(Arm { rules: vec![rule], events: vec![counted], ..Arm::clean(ROUND, LEASE) })
}

/// A permutation of the numbers; none that is used here becomes zero.
fn splitmix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
