//! One accepted connection: a task that owns both sockets and one editor.
//!
//! The task is a hand-written future, because a relay waits for up to six things at once and does the same whichever
//! happens: write what can be written, carry out fates, hand on what may go on, read one side. Four system calls carry a
//! request and its response; the future adds none.
//!
//! Order: what a call put out is written before fates are applied and before the [`Decider`](crate::exchange::Decider) is asked what may go on
//! (design §3.5: a held message follows the message that released it). If a peer is too slow to take it, asking waits.
//!
//! Back-pressure: a side is not read while the other side's backlog is at [`BACKLOG`] or its editor wants no bytes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::side::{Side, Written};
use super::{Message, Shared, opaque};
use crate::detect::{self, Detected};
use crate::exchange::{Door, Editor, Fate, Interceptor, LinkId, PeerEnd};
use crate::{h1, h2};

/// Most bytes that wait for a peer before the other side is not read any more.
const BACKLOG: usize = 256 * 1024;
/// How long a connection whose upstream refused may stay silent: a peer that waits for the server to speak first would wait
/// for ever.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// How long an upstream is still dialled for an application that has gone without a request: what it said finds whoever
/// listens, and whoever does not answer the kernel's first attempt is not besieged by connections that nobody has.
const FORSAKEN_TIME: Duration = Duration::from_secs(1);
/// How long a link must have been silent before a graceful stop closes it: who used it just now is likely to be sending the
/// next request, which it would lose. That request's answer can say that the connection closes.
const QUIET: Duration = Duration::from_millis(500);

type Dial = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

/// What a dial to nobody comes to.
fn refused() -> Dial {
    Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionRefused.into())))
}

/// The task of one link.
pub(super) struct Relay {
    shared: Shared,
    id: LinkId,
    inbox: mpsc::UnboundedReceiver<Message>,
    app: Side,
    upstream: Side,
    dial: Option<Dial>,
    /// The application has gone without a request; when dialling ends.
    forsaken: Option<Pin<Box<Sleep>>>,
    stage: Stage,
    /// The editor was called since the decider was last asked.
    called: bool,
    /// The decider knows that the link is opaque.
    counted: bool,
    /// It knows that the application said something on it.
    named: bool,
    /// When the editor was last called, or the connection was accepted.
    active: Instant,
    /// A graceful stop was asked for; what is idle may be closed when this has passed.
    stopping: Option<Pin<Box<Sleep>>>,
    /// Which side is read first: it changes, so that a busy one cannot starve the other.
    upstream_first: bool,
}

/// What is known of the protocol.
enum Stage {
    /// Nothing; the first bytes of the application and of an upstream that speaks first, the upstream's refusal, and when
    /// waiting ends after one.
    Detecting { first: BytesMut, greeting: BytesMut, refused: bool, deadline: Option<Pin<Box<Sleep>>> },
    /// Its editor.
    Running(Box<dyn Editor>),
}

/// A side of the link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    App,
    Upstream,
}

impl Relay {
    pub(super) fn new(door: Door, app: TcpStream, target: SocketAddr, shared: Shared) -> Self {
        let id = shared.decider.borrow_mut().opened(door);
        let dial = match shared.decider.borrow().is_cut(id) {
            true => refused(),
            false => Box::pin(TcpStream::connect(target)),
        };
        let inbox = shared.router.enter(id);
        let _ = app.set_nodelay(true);
        Self {
            shared,
            id,
            inbox,
            app: Side::new(Some(app)),
            upstream: Side::new(None),
            dial: Some(dial),
            forsaken: None,
            stage: Stage::Detecting {
                first: BytesMut::new(),
                greeting: BytesMut::new(),
                refused: false,
                deadline: None,
            },
            called: false,
            counted: false,
            named: false,
            active: Instant::now(),
            stopping: None,
            upstream_first: false,
        }
    }

    /// Calls the editor, if there is one.
    fn call(&mut self, mut what: impl FnMut(&mut dyn Editor, &mut dyn Interceptor)) {
        let Stage::Running(editor) = &mut self.stage else { return };
        self.active = Instant::now();
        self.shared.decider.borrow_mut().intercept(self.id, self.active, &mut |decide| what(&mut **editor, decide));
        self.called = true;
        self.tell_opaque();
    }

    /// Tells the decider what has become known of a link that nobody reads.
    fn tell_opaque(&mut self) {
        let Stage::Running(editor) = &self.stage else { return };
        if !self.counted && editor.opaque() {
            self.counted = true;
            self.shared.decider.borrow_mut().opaque(self.id, editor.server_name());
        }
        if self.counted && !self.named && !editor.silent() {
            self.named = true;
            self.shared.decider.borrow_mut().unseen(self.id, editor.server_name());
        }
    }

    /// Settles the protocol and hands over what came before it was known.
    fn start(&mut self, protocol: Detected) {
        let editor: Box<dyn Editor> = match protocol {
            Detected::Http1 => Box::new(h1::Link::new()),
            Detected::Http2 => Box::new(h2::Link::new()),
            Detected::Opaque => Box::new(opaque::Link::default()),
        };
        let stage = std::mem::replace(&mut self.stage, Stage::Running(editor));
        let Stage::Detecting { first, greeting, refused, .. } = stage else { return };
        if self.stopping.is_some() {
            self.call(|editor, decide| editor.drain(decide));
        }
        if !first.is_empty() {
            self.call(|editor, decide| editor.app_bytes(&first, decide));
        }
        // Requests that have come were made, whichever was faster: they are seen before their connection ends.
        if refused {
            self.call(|editor, decide| editor.upstream_end(PeerEnd::Refused, decide));
        }
        if !greeting.is_empty() {
            self.call(|editor, decide| editor.upstream_bytes(&greeting, decide));
        }
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(dial) = &mut self.dial else { return false };
        let Poll::Ready(dialled) = dial.as_mut().poll(cx) else { return false };
        self.dial = None;
        match dialled {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                self.upstream.connected(stream);
            }
            Err(error) => {
                tracing::debug!(%error, "the upstream cannot be connected");
                if let Stage::Detecting { refused, deadline, .. } = &mut self.stage {
                    *refused = true;
                    *deadline = Some(Box::pin(tokio::time::sleep(REFUSED_TIME)));
                } else {
                    self.call(|editor, decide| editor.upstream_end(PeerEnd::Refused, decide));
                }
            }
        }
        true
    }

    /// The upstream refused and the application says nothing: tell it.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> bool {
        let Stage::Detecting { deadline: Some(deadline), .. } = &mut self.stage else { return false };
        if deadline.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.start(Detected::Opaque);
        true
    }

    fn poll_forsaken(&mut self, cx: &mut Context<'_>) -> bool {
        let Stage::Running(editor) = &self.stage else { return false };
        if self.dial.is_none() || !self.app.ended || !editor.idle() {
            return false;
        }
        let end = self.forsaken.get_or_insert_with(|| Box::pin(tokio::time::sleep(FORSAKEN_TIME)));
        if end.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.dial = None;
        self.app.close();
        true
    }

    fn poll_inbox(&mut self, cx: &mut Context<'_>) -> bool {
        match self.inbox.poll_recv(cx) {
            Poll::Ready(Some(Message::Resume(stream, resume))) => {
                self.call(|editor, decide| editor.resume(stream, resume.clone(), decide));
                true
            }
            Poll::Ready(Some(Message::Cut)) => {
                self.cut();
                true
            }
            Poll::Ready(Some(Message::Stop)) => {
                self.stopping = Some(Box::pin(tokio::time::sleep_until((self.active + QUIET).into())));
                self.call(|editor, decide| editor.drain(decide));
                true
            }
            // The router keeps the sender until this task leaves it.
            Poll::Ready(None) | Poll::Pending => false,
        }
    }

    /// The callee is cut off: its connection breaks, or is refused where it has not come about yet.
    fn cut(&mut self) {
        if self.dial.is_some() {
            self.dial = Some(refused());
            return;
        }
        let heard = self.upstream.is_open();
        self.upstream.reset();
        if heard {
            self.end(Which::Upstream, PeerEnd::Broken);
        }
    }

    /// Writes what a side is owed and carries out its fate; whether anything is left, and whether anything changed.
    fn poll_out(&mut self, cx: &mut Context<'_>, which: Which) -> (bool, bool) {
        let Stage::Running(editor) = &mut self.stage else { return (false, false) };
        let out = editor.output();
        let (side, bytes, fate) = match which {
            Which::App => (&mut self.app, &mut out.to_app, out.app),
            Which::Upstream => (&mut self.upstream, &mut out.to_upstream, out.upstream),
        };
        if which == Which::Upstream && self.dial.is_some() {
            // Nobody waits for a connection that would be closed without a byte.
            if !bytes.is_empty() || matches!(fate, Fate::Open | Fate::Fin) {
                return (!bytes.is_empty(), false);
            }
            self.dial = None;
            return (false, true);
        }
        if side.is_closed() || side.write_broken() {
            bytes.clear();
        }
        match side.poll_write(cx, bytes) {
            Written::Blocked => (!side.is_closed(), false),
            Written::All => (false, side.poll_fate(cx, fate, &mut self.shared.buffer.borrow_mut())),
            Written::Broken => {
                bytes.clear();
                if which == Which::Upstream && !side.ended {
                    // Its answer may have come before its reset: it is read to its end first.
                    side.break_write();
                    return (false, true);
                }
                side.ended = true;
                side.close();
                if matches!(fate, Fate::Open | Fate::Fin) {
                    self.call(|editor, decide| match which {
                        Which::App => editor.app_end(PeerEnd::Broken, decide),
                        Which::Upstream => editor.upstream_end(PeerEnd::Broken, decide),
                    });
                }
                (false, true)
            }
        }
    }

    /// Asks the decider what may go on; whether any of it was ours.
    fn take_resumes(&mut self) -> bool {
        self.called = false;
        let resumes = self.shared.decider.borrow_mut().resumes();
        if resumes.is_empty() {
            return false;
        }
        let (own, others): (Vec<_>, Vec<_>) = resumes.into_iter().partition(|(link, ..)| *link == self.id);
        self.shared.router.deliver(others);
        let some = !own.is_empty();
        for (_, stream, resume) in own {
            self.call(|editor, decide| editor.resume(stream, resume.clone(), decide));
        }
        some
    }

    /// Reads one side once and feeds the editor; whether anything came.
    fn poll_in(&mut self, cx: &mut Context<'_>, which: Which) -> bool {
        let side = match which {
            Which::App => &mut self.app,
            Which::Upstream => &mut self.upstream,
        };
        if !side.is_heard() {
            return false;
        }
        if let Stage::Running(editor) = &mut self.stage {
            let out = editor.output();
            let backlog = if which == Which::App { out.to_upstream.len() } else { out.to_app.len() };
            let wanted = if which == Which::App { editor.wants_app() } else { editor.wants_upstream() };
            if !wanted && which == Which::App && editor.minds_close() {
                let Poll::Ready(how) = side.poll_closed(cx) else { return false };
                self.end(which, how);
                return true;
            }
            if !wanted || backlog >= BACKLOG {
                return false;
            }
        }
        let buffer = self.shared.buffer.clone();
        let mut buffer = buffer.borrow_mut();
        let Poll::Ready(read) = side.poll_read(cx, &mut buffer) else { return false };
        match read {
            Ok(0) if side.write_broken() => self.end(which, PeerEnd::Broken),
            Ok(0) => self.end(which, PeerEnd::Eof),
            Ok(read) => self.bytes(which, &buffer[..read]),
            Err(error) => {
                tracing::trace!(%error, "cannot read");
                self.end(which, PeerEnd::Broken);
            }
        }
        true
    }

    fn bytes(&mut self, which: Which, bytes: &[u8]) {
        if let Stage::Detecting { first, greeting, .. } = &mut self.stage {
            match which {
                Which::App => first.extend_from_slice(bytes),
                Which::Upstream => greeting.extend_from_slice(bytes),
            }
            if let Some(protocol) = detect::of(first, greeting) {
                self.start(protocol);
            }
            return;
        }
        match which {
            Which::App => self.call(|editor, decide| editor.app_bytes(bytes, decide)),
            Which::Upstream => self.call(|editor, decide| editor.upstream_bytes(bytes, decide)),
        }
    }

    fn end(&mut self, which: Which, how: PeerEnd) {
        if matches!(self.stage, Stage::Detecting { .. }) {
            self.start(Detected::Opaque);
        }
        let side = match which {
            Which::App => &mut self.app,
            Which::Upstream => &mut self.upstream,
        };
        side.ended = true;
        if how == PeerEnd::Broken {
            side.close();
        }
        match which {
            Which::App => self.call(|editor, decide| editor.app_end(how, decide)),
            Which::Upstream => self.call(|editor, decide| editor.upstream_end(how, decide)),
        }
    }

    /// Whether a graceful stop may end the link now.
    fn may_stop(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(quiet) = &mut self.stopping else { return false };
        quiet.as_mut().poll(cx).is_ready()
            && match &mut self.stage {
                Stage::Detecting { first, .. } => first.is_empty(),
                Stage::Running(editor) => {
                    editor.idle() && editor.output().to_app.is_empty() && editor.output().to_upstream.is_empty()
                }
            }
    }

    fn is_over(&self) -> bool {
        self.app.is_closed() && self.upstream.is_closed() && self.dial.is_none()
    }

    fn poll_once(&mut self, cx: &mut Context<'_>) -> bool {
        let (app_waits, app_moved) = self.poll_out(cx, Which::App);
        let (upstream_waits, upstream_moved) = self.poll_out(cx, Which::Upstream);
        if app_moved || upstream_moved {
            return true;
        }
        if self.called && !app_waits && !upstream_waits && self.take_resumes() {
            return true;
        }
        let (first, second) =
            if self.upstream_first { (Which::Upstream, Which::App) } else { (Which::App, Which::Upstream) };
        self.upstream_first = !self.upstream_first;
        self.poll_in(cx, first)
            || self.poll_in(cx, second)
            || self.poll_inbox(cx)
            || self.poll_dial(cx)
            || self.poll_deadline(cx)
            || self.poll_forsaken(cx)
    }
}

impl Future for Relay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.poll_once(cx) {
                continue;
            }
            if self.may_stop(cx) {
                self.app.close();
                self.upstream.close();
                self.dial = None;
            }
            return if self.is_over() { Poll::Ready(()) } else { Poll::Pending };
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.router.leave(self.id);
        let over = self.is_over();
        // Cut from outside: the editor closes what is open. Not while unwinding: the decider may be the one that panicked.
        if std::thread::panicking() {
            return;
        }
        if self.shared.decider.try_borrow_mut().is_ok() {
            if !over {
                self.call(|editor, decide| editor.app_end(PeerEnd::Broken, decide));
            }
            self.shared.decider.borrow_mut().gone(self.id);
        }
    }
}
