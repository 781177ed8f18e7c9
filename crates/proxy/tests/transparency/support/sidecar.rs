//! A sidecar's connection driver on a thread of its own, with a decider that does what the test says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aftershock_proxy::exchange::{
    Closed, Decider, Door, Edits, Fields, Interceptor, LinkId, Mark, Part, Refusal, RequestHead, ResponseHead, Resume,
    StreamId, Tail, Verdict,
};
use aftershock_proxy::link::{Behind, Listener, Router, Stop, serve};
use tokio::sync::mpsc;

use super::wire::HANG;

/// An interception point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Point {
    Request,
    Response,
    Mark,
    End,
}

/// What the decider saw, and what it is to do: shared with the test.
#[derive(Clone, Default)]
pub(crate) struct Board(Arc<(Mutex<Notes>, Condvar)>);

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) log: Vec<String>,
    verdicts: HashMap<Point, Verdict>,
    end_of_requests: Edits,
    /// The text that a request's note must contain for verdicts to hold for its exchange.
    only: String,
    /// Resumes that become ready when a note with this text is written.
    triggers: Vec<(String, (LinkId, StreamId, Resume))>,
    ready: Vec<(LinkId, StreamId, Resume)>,
}

impl Board {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        // A test that fails must not take the driver's thread with it.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every message at this point gets this verdict.
    pub(crate) fn at(self, point: Point, verdict: Verdict) -> Self {
        self.notes().verdicts.insert(point, verdict);
        self
    }

    /// Verdicts are for requests whose note contains this text.
    pub(crate) fn only(self, text: &str) -> Self {
        self.notes().only = text.into();
        self
    }

    /// Every request's end gets these edits.
    pub(crate) fn stamping_ends_of_requests(self, edits: Edits) -> Self {
        self.notes().end_of_requests = edits;
        self
    }

    /// When `note` is written, `resume` is handed out.
    pub(crate) fn when(self, note: &str, link: u64, stream: u64, resume: Resume) -> Self {
        self.notes().triggers.push((note.into(), (LinkId(link), StreamId(stream), resume)));
        self
    }

    fn note(&self, note: String) {
        let mut notes = self.notes();
        let due: Vec<_> = notes.triggers.iter().filter(|(text, _)| *text == note).map(|(_, r)| r.clone()).collect();
        notes.ready.extend(due);
        notes.log.push(note);
        self.0.1.notify_all();
    }

    /// Waits until `note` was written.
    pub(crate) fn wait(&self, note: &str) {
        let (notes, timeout) = self
            .0
            .1
            .wait_timeout_while(self.notes(), HANG, |notes| !notes.log.iter().any(|n| n == note))
            .unwrap_or_else(PoisonError::into_inner);
        let log = notes.log.clone();
        drop(notes);
        assert!(!timeout.timed_out(), "no {note:?} in {log:?}");
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.notes().log.clone()
    }
}

/// Writes down every call; passes, unless told otherwise.
pub(crate) struct Recorder {
    board: Board,
    links: u64,
}

impl Recorder {
    pub(crate) fn new(board: Board) -> Self {
        Self { board, links: 0 }
    }
}

struct Calls<'a> {
    board: &'a Board,
    link: u64,
}

impl Calls<'_> {
    fn note(&self, stream: StreamId, what: &str) {
        self.board.note(format!("{}.{} {what}", self.link, stream.0));
    }

    fn verdict(&self, stream: StreamId, point: Point) -> Verdict {
        let notes = self.board.notes();
        if notes.verdicts.is_empty() {
            return Verdict::Pass;
        }
        let request = format!("{}.{} request ", self.link, stream.0);
        if !notes.log.iter().any(|note| note.starts_with(&request) && note.contains(&notes.only)) {
            return Verdict::Pass;
        }
        notes.verdicts.get(&point).cloned().unwrap_or(Verdict::Pass)
    }
}

impl Interceptor for Calls<'_> {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        self.note(stream, &format!("request {} {}", head.method, head.path));
        self.verdict(stream, Point::Request)
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        self.note(stream, &format!("response {}", head.status));
        self.verdict(stream, Point::Response)
    }

    fn request_end(&mut self, stream: StreamId, trailers: Option<&Fields<'_>>) {
        for (name, value) in trailers.iter().flat_map(|trailers| &trailers.0) {
            self.note(stream, &format!("request trailer {}: {}", name.escape_ascii(), value.escape_ascii()));
        }
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        self.note(stream, &format!("reached {mark:?}"));
        self.verdict(stream, Point::Mark)
    }

    fn response_end(&mut self, stream: StreamId, _: &Tail<'_>) -> Verdict {
        self.note(stream, "end");
        self.verdict(stream, Point::End)
    }

    fn stamp(&mut self, _: StreamId, part: Part) -> Edits {
        if part == Part::RequestEnd { self.board.notes().end_of_requests.clone() } else { Edits::new() }
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        self.note(stream, &format!("refused {why:?}"));
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.note(stream, &format!("closed {how:?}"));
    }
}

impl Decider for Recorder {
    fn opened(&mut self, _: Door) -> LinkId {
        self.links += 1;
        LinkId(self.links)
    }

    fn intercept(&mut self, link: LinkId, _: Instant, call: &mut dyn FnMut(&mut dyn Interceptor)) {
        call(&mut Calls { board: &self.board, link: link.0 });
    }

    fn gone(&mut self, link: LinkId) {
        self.board.note(format!("{} gone", link.0));
    }

    fn resumes(&mut self) -> Vec<(LinkId, StreamId, Resume)> {
        std::mem::take(&mut self.board.notes().ready)
    }

    fn opaque(&mut self, link: LinkId, server_name: Option<&str>) {
        let name = server_name.map(|name| format!(" {name}")).unwrap_or_default();
        self.board.note(format!("{} opaque{name}", link.0));
    }
}

#[derive(Debug)]
enum Control {
    Resume(LinkId, StreamId, Resume),
    /// Deliver what the decider lets go.
    Ask,
    Stop,
}

/// A running driver.
pub(crate) struct Sidecar {
    /// Of the first listener.
    pub(crate) address: SocketAddr,
    /// Of all.
    pub(crate) addresses: Vec<SocketAddr>,
    control: mpsc::UnboundedSender<Control>,
    thread: Option<thread::JoinHandle<()>>,
    /// Where the kernel tells what the thread has used.
    accounting: PathBuf,
}

/// A listening socket of a driver: which it is, and the upstreams behind it.
pub(crate) type Port = (Door, std::net::TcpListener, Vec<SocketAddr>);

impl Sidecar {
    /// Passes everything to `upstreams` and writes it on `board`.
    pub(crate) fn recording(upstreams: &[SocketAddr], board: &Board) -> Self {
        let board = board.clone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ports = vec![(Door::Inbound(0), listener, upstreams.to_vec())];
        Self::run(ports, move || Rc::new(RefCell::new(Recorder::new(board))))
    }

    /// Starts a driver whose decider is made by `decider`, on the driver's thread.
    pub(crate) fn run(ports: Vec<Port>, decider: impl FnOnce() -> Rc<RefCell<dyn Decider>> + Send + 'static) -> Self {
        let listed = |(door, socket, upstreams)| (socket, Behind::Listed { door, upstreams });
        Self::behind(ports.into_iter().map(listed).collect(), decider)
    }

    /// The same, with whatever stands behind its listeners.
    pub(crate) fn behind(
        ports: Vec<(std::net::TcpListener, Behind)>,
        decider: impl FnOnce() -> Rc<RefCell<dyn Decider>> + Send + 'static,
    ) -> Self {
        let addresses: Vec<_> = ports.iter().map(|(socket, _)| socket.local_addr().expect("a bound socket")).collect();
        let (control, mut words) = mpsc::unbounded_channel();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            ready.send(std::fs::read_link("/proc/thread-self").expect("a Linux kernel")).expect("the test waits");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                let listeners = ports.into_iter().map(|(socket, behind)| {
                    socket.set_nonblocking(true).expect("a socket");
                    Listener { socket: tokio::net::TcpListener::from_std(socket).expect("a socket"), behind }
                });
                let listeners = listeners.collect();
                let (router, stop) = (Router::new(), Stop::new());
                let (ends, routes) = (stop.clone(), router.clone());
                let decider = decider();
                let asked = decider.clone();
                tokio::task::spawn_local(async move {
                    while let Some(word) = words.recv().await {
                        match word {
                            Control::Resume(link, stream, resume) => routes.deliver([(link, stream, resume)]),
                            Control::Ask => {
                                let resumes = asked.borrow_mut().resumes();
                                routes.deliver(resumes);
                            }
                            Control::Stop => ends.stop(),
                        }
                    }
                    ends.stop();
                });
                serve(listeners, decider, router, stop, Duration::from_secs(5)).await;
            });
        });
        let accounting = PathBuf::from("/proc").join(started.recv().expect("the thread runs"));
        Self { address: addresses[0], addresses, control, thread: Some(thread), accounting }
    }

    /// Delivers a resume from outside of any link.
    pub(crate) fn resume(&self, link: u64, stream: u64, resume: Resume) {
        let word = Control::Resume(LinkId(link), StreamId(stream), resume);
        self.control.send(word).expect("the driver runs");
    }

    /// What makes the driver ask its decider what it lets go, without a message.
    pub(crate) fn asks(&self) -> impl Fn() + Send + use<> {
        let control = self.control.clone();
        move || control.send(Control::Ask).expect("the driver runs")
    }

    /// Asks for a graceful stop.
    pub(crate) fn stop(&self) {
        self.control.send(Control::Stop).expect("the driver runs");
    }

    /// Waits for the end of a graceful stop.
    pub(crate) fn join(mut self) {
        self.thread.take().expect("joined once").join().expect("the driver does not panic");
    }

    /// Time the driver's thread has spent on a processor.
    pub(crate) fn busy(&self) -> Duration {
        let text = std::fs::read_to_string(self.accounting.join("schedstat")).expect("the thread lives");
        let nanoseconds = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        Duration::from_nanos(nanoseconds)
    }
}
