//! Sidecars as they run, with their brain: the caller's and the callee's, registered with the same keys, a round armed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::{ObserverId, Token};
use aftershock_core::name::Service;
use aftershock_core::plan::Rule;
use aftershock_core::span::CallSpan;
use aftershock_core::wire::{Arm, FromController, FromSidecar, PROTOCOL, Registry};
use aftershock_proxy::config::{Config, transparent};
use aftershock_proxy::exchange::{Decider, Door, Interceptor, LinkId, Resume, StreamId};
use aftershock_proxy::link::Behind;
use aftershock_proxy::sidecar::Sidecar as Brain;

use super::sidecar::Sidecar;
use super::wire::HANG;

/// The live round of these sidecars.
pub(crate) const TOKEN: Token = Token(0xa11ce);

/// Makes a decider of a brain.
type Decides = Box<dyn FnOnce(Rc<RefCell<Brain>>) -> Rc<RefCell<dyn Decider>> + Send>;

/// The sidecar of the service `back`.
pub(crate) struct Back {
    origin: SocketAddr,
}

impl Back {
    pub(crate) fn before(origin: SocketAddr) -> Self {
        Self { origin }
    }

    pub(crate) fn start(self) -> Sidecar {
        self.start_with(Box::new(|brain| brain))
    }

    /// With somebody who tells it what to do.
    pub(crate) fn told(self) -> (Sidecar, Controller) {
        told(|decides| self.start_with(decides))
    }

    fn start_with(self, decides: Decides) -> Sidecar {
        let Self { origin } = self;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = listener.local_addr().expect("a bound socket");
        let text = format!("service: back\ninbound:\n  - listen: {listen}\n    to: {origin}\n");
        Sidecar::run(vec![(Door::Inbound(0), listener, vec![origin])], move || decides(brain(&text, &[listen])))
    }
}

/// The sidecar of the service `front`, which calls `back`. The first of its addresses leads into `front`, an application that
/// hands on every byte to its sidecar's way out; the second is that way out.
pub(crate) struct Front {
    backs: Vec<SocketAddr>,
    application: Option<SocketAddr>,
}

impl Front {
    /// Its connections to `back` go to these replicas in turn.
    pub(crate) fn calling(backs: &[SocketAddr]) -> Self {
        Self { backs: backs.to_vec(), application: None }
    }

    /// Around an application of its own.
    pub(crate) fn before(self, application: SocketAddr) -> Self {
        Self { application: Some(application), ..self }
    }

    pub(crate) fn start(self) -> Sidecar {
        self.start_with(Box::new(|brain| brain))
    }

    /// With somebody who tells it what to do.
    pub(crate) fn told(self) -> (Sidecar, Controller) {
        told(|decides| self.start_with(decides))
    }

    fn start_with(self, decides: Decides) -> Sidecar {
        let Self { backs, application } = self;
        let [inbound, outbound] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [listen, out] = [&inbound, &outbound].map(|socket| socket.local_addr().expect("a bound socket"));
        let to = application.unwrap_or(out);
        let callees: Vec<_> = backs.iter().map(|back| format!("\"{back}\"")).collect();
        let text = format!(
            "service: front\ninbound:\n  - listen: {listen}\n    to: {to}\n\
             outbound:\n  - listen: {out}\n    callee: back\n    to: [{}]\n",
            callees.join(", ")
        );
        let ports = vec![(Door::Inbound(0), inbound, vec![to]), (Door::Outbound(0), outbound, backs.clone())];
        Sidecar::run(ports, move || decides(brain(&text, &backs)))
    }
}

/// Starts a sidecar whose brain is told what to do.
fn told(start: impl FnOnce(Decides) -> Sidecar) -> (Sidecar, Controller) {
    let (words, hears) = mpsc::channel();
    let (says, acknowledged) = mpsc::channel();
    let (answers, answered) = mpsc::channel();
    let (records, record) = mpsc::channel();
    let sidecar = start(Box::new(move |brain| {
        Rc::new(RefCell::new(Told { brain, hears, says, answers, records })) as Rc<RefCell<_>>
    }));
    let asks = Box::new(sidecar.asks());
    (sidecar, Controller { words, asks, acknowledged, answered, record })
}

/// Tells the brain of a running sidecar what to do, and takes its record.
pub(crate) struct Controller {
    words: mpsc::Sender<FromController>,
    asks: Box<dyn Fn() + Send>,
    acknowledged: mpsc::Receiver<()>,
    answered: mpsc::Receiver<FromSidecar>,
    record: mpsc::Receiver<CallSpan>,
}

impl Controller {
    /// Returns when it is in force.
    pub(crate) fn say(&mut self, word: FromController) {
        self.words.send(word).expect("the sidecar runs");
        (self.asks)();
        self.acknowledged.recv_timeout(HANG).expect("the sidecar hears");
    }

    /// Arms these rules, and nothing else, in the round of these sidecars.
    pub(crate) fn arm(&mut self, rules: Vec<Rule>) {
        self.say(FromController::Arm(Arm { rules, ..Arm::clean(TOKEN, Duration::from_secs(3600)) }));
        self.hears(|word| *word == FromSidecar::Armed { token: TOKEN });
    }

    /// Waits until a rule has fired.
    pub(crate) fn fired(&mut self) {
        self.hears(|word| matches!(word, FromSidecar::Fired { .. }));
    }

    /// Waits for a word of the sidecar's.
    fn hears(&mut self, wanted: impl Fn(&FromSidecar) -> bool) {
        while !wanted(&self.answered.recv_timeout(HANG).expect("the sidecar says so")) {}
    }

    /// The next so many calls that have ended.
    pub(crate) fn spans(&mut self, calls: usize) -> Vec<CallSpan> {
        (0..calls).map(|_| self.record.recv_timeout(HANG).expect("a call ends")).collect()
    }

    /// Whether no other call has ended.
    pub(crate) fn no_spans(&self) -> bool {
        self.record.try_recv().is_err()
    }
}

/// A brain that hears what it is told between two messages.
struct Told {
    brain: Rc<RefCell<Brain>>,
    hears: mpsc::Receiver<FromController>,
    says: mpsc::Sender<()>,
    answers: mpsc::Sender<FromSidecar>,
    records: mpsc::Sender<CallSpan>,
}

impl Told {
    /// Hands on what came out of the brain.
    fn pass_on(&self) {
        let mut brain = self.brain.borrow_mut();
        for word in brain.take_control() {
            let _ = self.answers.send(word);
        }
        for span in brain.take_spans() {
            let _ = self.records.send(span);
        }
    }
}

impl Decider for Told {
    fn opened(&mut self, door: Door) -> LinkId {
        self.brain.borrow_mut().opened(door)
    }

    fn intercept(&mut self, link: LinkId, now: Instant, call: &mut dyn FnMut(&mut dyn Interceptor)) {
        self.brain.borrow_mut().intercept(link, now, call);
        self.pass_on();
    }

    fn gone(&mut self, link: LinkId) {
        self.brain.borrow_mut().gone(link);
        self.pass_on();
    }

    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)> {
        let mut brain = self.brain.borrow_mut();
        while let Ok(word) = self.hears.try_recv() {
            brain.on_control(word, Instant::now());
            let _ = self.says.send(());
        }
        let resumes = brain.resumes();
        drop(brain);
        self.pass_on();
        resumes
    }

    fn opaque(&mut self, link: LinkId, server_name: Option<&str>) {
        self.brain.borrow_mut().opaque(link, server_name);
    }
}

/// The sidecar of `front`, or of `back`, in the network namespace that the calling thread is in, where the kernel redirects
/// connections to it; `back` is the host of the service of that name.
pub(crate) fn redirected(service: &str, back: IpAddr) -> Sidecar {
    let listen = |address: Ipv4Addr, port| TcpListener::bind((address, port)).expect("a port of the namespace's own");
    let ports = vec![
        (listen(Ipv4Addr::UNSPECIFIED, transparent::INBOUND), Behind::RedirectedIn),
        (listen(Ipv4Addr::LOCALHOST, transparent::OUTBOUND), Behind::RedirectedOut),
    ];
    let text = format!("service: {service}\ntransparent: {{}}\n");
    // Every port of that host.
    Sidecar::behind(ports, move || brain(&text, &[SocketAddr::new(back, 0)]))
}

/// A registered brain with an armed round, `backs` being the addresses of the service `back`.
fn brain(text: &str, backs: &[SocketAddr]) -> Rc<RefCell<Brain>> {
    static OBSERVERS: AtomicU64 = AtomicU64::new(1);
    let observer = OBSERVERS.fetch_add(1, Ordering::Relaxed);
    let text = format!("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\n{text}");
    let config = Config::parse("test.yaml", &text).expect("a well-formed configuration");
    let mut last = observer << 32;
    let random = move || {
        last += 1;
        last
    };
    let mut brain = Brain::new(config, ObserverId(observer), Box::new(random), Box::new(|| 0));
    let service = |name: &str| name.parse::<Service>().expect("a name");
    let registry = Registry {
        addresses: backs.iter().map(|back| (back.to_string(), service("back"))).collect(),
        templates: BTreeMap::new(),
        services: BTreeSet::from([service("back"), service("front")]),
        ..Registry::default()
    };
    let welcome = FromController::Welcome {
        protocol: PROTOCOL,
        version: "0".into(),
        keys: Keyring(vec![HopKey { id: 1, secret: [7; 16] }]),
        registry,
        late: Vec::new(),
    };
    brain.on_control(welcome, Instant::now());
    // Nobody renews the lease.
    brain.on_control(FromController::Arm(Arm::clean(TOKEN, Duration::from_secs(3600))), Instant::now());
    Rc::new(RefCell::new(brain))
}
