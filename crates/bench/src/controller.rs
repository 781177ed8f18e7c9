//! The controller of one sidecar, and the collector of its spans, as small as they can be: it arms rounds whose target
//! every request matches and whose guard is false at each, and counts what it gets.
//!
//! Spans are counted without being read, since this shares a processor with the load; of some requests all spans are read
//! afterwards.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventKind, OutcomeFilter};
use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{Token, scatter};
use aftershock_core::name::{Api, Service};
use aftershock_core::otlp;
use aftershock_core::plan::{Atom, Fault, Guard, Occurrence, Phase, Rule, Side, Target, Tfic};
use aftershock_core::span::CallSpan;
use aftershock_core::wire::{
    Arm, Counters, FromController, FromSidecar, Hello, PROTOCOL, Registry, TRACES_PATH, UPGRADE_PATH, UPGRADE_TOKEN,
};
use anyhow::{Context, anyhow, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// How long a sidecar may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of so many requests with spans one is kept to be read.
const KEPT_EVERY: u64 = 64;
/// Most that are kept.
const MOST_KEPT: usize = 64;
/// What rounds are armed for: longer than any load lasts.
const LEASE: Duration = Duration::from_secs(3_600);

/// What the sidecar has said and sent so far.
#[derive(Debug, Default)]
struct Heard {
    hello: Option<Hello>,
    armed: BTreeSet<Token>,
    fired: u64,
    flushed: Option<Flushed>,
    counters: Counters,
    spans: u64,
    requests: u64,
    kept: Vec<Vec<u8>>,
    /// The sidecar did what it must not.
    problem: Option<String>,
}

/// What a sidecar says of its spans, since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flushed {
    id: u64,
    pub(crate) exported: u64,
    pub(crate) lost: u64,
}

/// Everything that came since the process began.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub(crate) flushed: Flushed,
    /// Spans that were counted here.
    pub(crate) spans: u64,
    pub(crate) fired: u64,
    pub(crate) counters: Counters,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Controller {
    address: SocketAddr,
    service: Service,
    operations: Vec<&'static str>,
    /// Services with a sidecar, by the address at which that listens.
    peers: BTreeMap<String, Service>,
    heard: RefCell<Heard>,
    changed: Notify,
    say: RefCell<Option<mpsc::UnboundedSender<FromController>>>,
    last_token: Cell<u64>,
    last_flush: Cell<u64>,
}

impl Controller {
    /// Listens for the sidecar of `service`, which calls `peers`. The `operations` of all of them are the targets of its
    /// rounds.
    pub(crate) async fn start(
        service: &str,
        operations: Vec<&'static str>,
        peers: BTreeMap<String, &str>,
    ) -> anyhow::Result<Rc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let named = |name: &str| name.parse::<Service>().with_context(|| format!("{name:?} is no service name"));
        let controller = Rc::new(Controller {
            address: listener.local_addr()?,
            service: named(service)?,
            peers: peers.into_iter().map(|(at, name)| Ok((at, named(name)?))).collect::<anyhow::Result<_>>()?,
            operations,
            heard: RefCell::default(),
            changed: Notify::new(),
            say: RefCell::new(None),
            last_token: Cell::new(0),
            last_flush: Cell::new(0),
        });
        let accepting = Rc::downgrade(&controller);
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(controller) = accepting.upgrade() else { return };
                tokio::task::spawn_local(async move {
                    if let Err(error) = controller.attend(stream).await {
                        controller.trouble(format!("{error:#}"));
                    }
                });
            }
        });
        Ok(controller)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn trouble(&self, problem: String) {
        self.heard.borrow_mut().problem.get_or_insert(problem);
        self.changed.notify_waiters();
    }

    // ── what it is asked ────────────────────────────────────────────────────────────────────────────────────────────

    /// Where the sidecar listens, once it has registered.
    pub(crate) async fn registered(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let hello = self.wait_for("register", |heard| heard.hello.clone()).await?;
        hello.inbound.iter().map(|address| address.parse().context("the sidecar listens at no address")).collect()
    }

    /// Arms a new round.
    pub(crate) fn arm(&self) -> Token {
        self.last_token.set(self.last_token.get() + 1);
        let token = Token(scatter(u64::from(self.address.port()) << 32 | self.last_token.get()).max(1));
        self.arm_as(token);
        token
    }

    /// Arms a round that another controller has armed.
    pub(crate) fn arm_as(&self, token: Token) {
        let (rules, events) = self.rules();
        self.say(FromController::Arm(Arm { rules, events, ..Arm::clean(token, LEASE) }));
    }

    pub(crate) fn is_armed(&self, token: Token) -> bool {
        self.heard.borrow().armed.contains(&token)
    }

    /// Completes once `token` is armed.
    pub(crate) async fn armed(&self, token: Token) -> anyhow::Result<()> {
        self.wait_for("arm a round", |heard| heard.armed.contains(&token).then_some(())).await
    }

    /// Disarms a round, which stays live.
    pub(crate) fn disarm(&self, token: Token) {
        self.say(FromController::Disarm { token });
    }

    /// Ends a round.
    pub(crate) fn end(&self, token: Token) {
        self.say(FromController::End { token });
    }

    /// Everything that was recorded so far.
    pub(crate) async fn account(&self) -> anyhow::Result<Account> {
        let id = self.last_flush.get() + 1;
        self.last_flush.set(id);
        self.say(FromController::Flush { id });
        let done = |heard: &Heard| heard.flushed.filter(|flushed| flushed.id == id);
        let flushed = self.wait_for("export its spans", done).await?;
        let heard = self.heard.borrow();
        Ok(Account { flushed, spans: heard.spans, fired: heard.fired, counters: heard.counters.clone() })
    }

    /// The spans that were kept since the last call, read.
    pub(crate) fn take_kept(&self) -> anyhow::Result<Vec<CallSpan>> {
        let bodies = std::mem::take(&mut self.heard.borrow_mut().kept);
        let mut spans = Vec::new();
        for body in bodies {
            let decoded = otlp::decode(&body).context("spans cannot be read")?;
            ensure!(decoded.foreign == 0, "{} spans are not ours", decoded.foreign);
            spans.extend(decoded.spans);
        }
        Ok(spans)
    }

    /// An error if the sidecar did what it must not.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.heard.borrow().problem.as_ref().map_or(Ok(()), |problem| bail!("{problem}"))
    }

    fn say(&self, word: FromController) {
        let was_sent = self.say.borrow().as_ref().is_some_and(|say| say.send(word).is_ok());
        if !was_sent {
            self.trouble("the sidecar is not connected to its controller".to_owned());
        }
    }

    async fn wait_for<T>(&self, what: &str, done: impl Fn(&Heard) -> Option<T>) -> anyhow::Result<T> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                self.check()?;
                if let Some(done) = done(&self.heard.borrow()) {
                    return Ok(done);
                }
                changed.await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.map_err(|_| anyhow!("the sidecar did not {what} within {} s", PATIENCE.as_secs()))?
    }

    /// Rules whose targets are all requests to the service and to its peers, and whose guards wait for a call that nobody
    /// makes.
    fn rules(&self) -> (Vec<Rule>, Vec<CountedEvent>) {
        let payment = "payment".parse().expect("a service name");
        let never = self.api(&payment, "shop.Payment/Charge");
        let event = Event {
            event: EventKind::ResponseReceived,
            api: ApiRef::Api(never.clone()),
            caller: Some(self.service.clone()),
            outcome: OutcomeFilter::Ok,
        };
        let rule = |index: usize, side: Side, api: Api| {
            let apis = BTreeSet::from([api.clone()]);
            let caller = (side == Side::Caller).then(|| self.service.clone());
            let target = Target { caller, ..Target::new(ApiRef::Api(api), Occurrence::First, Phase::Request) };
            let guard = Guard { after: vec![Atom::new(event.clone(), 1)] };
            let tfic = Tfic { guard, ..Tfic::new(target, Fault::Drop) };
            Rule { index, service: self.service.clone(), side, apis, tfic, arbitrated: false }
        };
        let callers = self.peers.values().map(|peer| (Side::Caller, peer));
        let sides = std::iter::once((Side::Callee, &self.service)).chain(callers);
        let apis = sides.flat_map(|(side, service)| self.operations.iter().map(move |text| (side, service, *text)));
        let rules = apis.enumerate().map(|(index, (side, service, text))| rule(index, side, self.api(service, text)));
        let rules = rules.collect();
        (rules, vec![CountedEvent { event, apis: BTreeSet::from([never]) }])
    }

    fn api(&self, service: &Service, operation: &str) -> Api {
        format!("{service} {operation}").parse().expect("the operations of the load are well-formed")
    }

    // ── its connections ─────────────────────────────────────────────────────────────────────────────────────────────

    async fn attend(&self, mut stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut input = Vec::new();
        let Some(head) = read_head(&mut stream, &mut input).await? else { return Ok(()) };
        if head.path == UPGRADE_PATH {
            let answer =
                format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {UPGRADE_TOKEN}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
            input.drain(..head.length);
            return self.converse(stream, input).await;
        }
        self.collect(stream, input, head).await
    }

    /// The sidecar's words.
    async fn converse(&self, stream: TcpStream, mut input: Vec<u8>) -> anyhow::Result<()> {
        let (mut reader, mut writer) = stream.into_split();
        let (say, mut words) = mpsc::unbounded_channel::<FromController>();
        tokio::task::spawn_local(async move {
            while let Some(word) = words.recv().await {
                let mut line = serde_json::to_vec(&word)?;
                line.push(b'\n');
                writer.write_all(&line).await?;
            }
            anyhow::Ok(())
        });
        *self.say.borrow_mut() = Some(say);
        loop {
            while let Some(end) = memchr::memchr(b'\n', &input) {
                let word = serde_json::from_slice(&input[..end]).context("the sidecar said what is no word")?;
                input.drain(..=end);
                self.hear(word)?;
                self.changed.notify_waiters();
            }
            if reader.read_buf(&mut input).await? == 0 {
                bail!("the sidecar left its controller");
            }
        }
    }

    fn hear(&self, word: FromSidecar) -> anyhow::Result<()> {
        let mut heard = self.heard.borrow_mut();
        match word {
            FromSidecar::Hello(hello) => {
                ensure!(hello.protocol == PROTOCOL, "the sidecar speaks protocol {}", hello.protocol);
                let keys = Keyring(vec![HopKey { id: 1, secret: [7; 16] }]);
                let mut addresses = self.peers.clone();
                addresses.extend(hello.inbound.iter().map(|at| (at.clone(), hello.service.clone())));
                let services = addresses.values().cloned().collect();
                let registry = Registry { addresses, services, ..Registry::default() };
                heard.hello = Some(hello);
                drop(heard);
                let version = env!("CARGO_PKG_VERSION").to_owned();
                self.say(FromController::Welcome { protocol: PROTOCOL, version, keys, registry, late: Vec::new() });
            }
            FromSidecar::Armed { token } => drop(heard.armed.insert(token)),
            FromSidecar::NotArmed { reason, .. } => bail!("the sidecar does not arm: {reason}"),
            FromSidecar::Lapsed { .. } => bail!("a lease ran out"),
            FromSidecar::Fired { .. } => heard.fired += 1,
            FromSidecar::Counters(counters) => heard.counters = counters,
            FromSidecar::Flushed { id, exported, lost, .. } => heard.flushed = Some(Flushed { id, exported, lost }),
            _ => {}
        }
        Ok(())
    }

    /// The sidecar's spans.
    async fn collect(&self, mut stream: TcpStream, mut input: Vec<u8>, first: Head) -> anyhow::Result<()> {
        let mut head = first;
        loop {
            ensure!(head.path == TRACES_PATH, "the sidecar asked for {}", head.path);
            let end = head.length + head.body;
            while input.len() < end {
                input.reserve(end - input.len());
                ensure!(stream.read_buf(&mut input).await? > 0, "the sidecar left within a request");
            }
            self.receive(&input[head.length..end])?;
            input.drain(..end);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await?;
            match read_head(&mut stream, &mut input).await? {
                Some(next) => head = next,
                None => return Ok(()),
            }
        }
    }

    fn receive(&self, body: &[u8]) -> anyhow::Result<()> {
        let spans = count_spans(body).context("spans are no protobuf message")?;
        let mut heard = self.heard.borrow_mut();
        heard.spans += spans;
        if heard.requests.is_multiple_of(KEPT_EVERY) && heard.kept.len() < MOST_KEPT {
            heard.kept.push(body.to_vec());
        }
        heard.requests += 1;
        Ok(())
    }
}

/// What is looked at of a request's head.
struct Head {
    path: String,
    length: usize,
    body: usize,
}

/// Reads until `input` begins with the head of a request; none if the peer ended before one.
async fn read_head(stream: &mut TcpStream, input: &mut Vec<u8>) -> anyhow::Result<Option<Head>> {
    loop {
        let mut lines = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut lines);
        if let httparse::Status::Complete(length) = request.parse(input).context("a request cannot be read")? {
            let body = request.headers.iter().find(|line| line.name.eq_ignore_ascii_case("content-length"));
            let body = body.map(|line| std::str::from_utf8(line.value).ok().and_then(|text| text.parse().ok()));
            let path = request.path.unwrap_or_default().to_owned();
            return Ok(Some(Head { path, length, body: body.unwrap_or(Some(0)).context("a request has no length")? }));
        }
        if stream.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}

/// The number of spans in an `ExportTraceServiceRequest` (opentelemetry-proto `trace_service.proto`, `trace.proto`):
/// `resource_spans` is its field 1, `scope_spans` field 2 of that, `spans` field 2 of that.
fn count_spans(request: &[u8]) -> Option<u64> {
    let mut spans = 0;
    messages(request, 1, &mut |resource| {
        messages(resource, 2, &mut |scope| {
            messages(scope, 2, &mut |_| {
                spans += 1;
                Some(())
            })
        })
    })?;
    Some(spans)
}

/// Hands every message of `field` in a protobuf message to `each`; none if the bytes are no such message.
fn messages(mut bytes: &[u8], field: u64, each: &mut dyn FnMut(&[u8]) -> Option<()>) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (content, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        if key == field << 3 | 2 {
            each(content)?;
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use aftershock_core::evidence::Gaps;
    use aftershock_core::id::{CallId, ExecutionId, ObserverId};
    use aftershock_core::span::{Association, Ending, Instant};

    use super::*;

    fn span(call: u64) -> CallSpan {
        let at = Instant { clock: call, unix_nanos: 1_700_000_000_000_000_000 };
        CallSpan {
            side: Side::Callee,
            service: "origin".parse().unwrap(),
            observer: ObserverId(call % 2 + 1),
            execution: ExecutionId(7),
            token: Token(9),
            call: CallId(call),
            parent: None,
            caller: None,
            api: "origin POST /cart/checkout".parse().unwrap(),
            association: Association::Exact,
            trace_id: 5,
            request: at,
            response: Some(at),
            ended_unix_nanos: 1_700_000_000_000_000_000,
            outcome: None,
            http_status: Some(200),
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

    #[test]
    fn spans_are_counted_as_they_are_read() {
        for count in [0, 1, 2, 3, 512] {
            let body = otlp::encode(&(1..=count).map(span).collect::<Vec<_>>());
            assert_eq!(count_spans(&body), Some(count));
            assert_eq!(otlp::decode(&body).unwrap().spans.len() as u64, count);
            if count > 0 {
                assert_eq!(count_spans(&body[..body.len() - 1]), None, "cut");
            }
        }
    }
}
