//! The connection driver: sockets on one side, editors on the other.
//!
//! Explicit mode: an inbound listener stands before the application, one outbound listener before each callee. Transparent
//! mode: the kernel redirects connections to two listeners, and says where each was going. Every accepted connection gets
//! one upstream connection of its own, dialled at accept, and one task (`relay`) that owns both sockets and the editor.
//! Nothing is pooled or shared, so that the application's connection behaviour stays its own. No name is resolved.
//!
//! Everything runs on one thread: [`serve`] must run inside a [`tokio::task::LocalSet`]. Decisions are made by a [`Decider`];
//! what it lets go ([`Decider::resumes`]) reaches the link it belongs to over the [`Router`], which timers and control code
//! may use as well.

mod opaque;
mod redirected;
mod relay;
mod side;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::exchange::{Decider, Door, LinkId, Resume, StreamId};

/// Size of the buffer that all links of a thread read into.
const READ: usize = 64 * 1024;
/// How long accepting pauses after an error that another attempt would meet as well (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket and what stands behind it.
#[derive(Debug)]
pub struct Listener {
    /// The socket, listening.
    pub socket: TcpListener,
    /// Where its connections go on to.
    pub behind: Behind,
}

impl Listener {
    /// One that stands before `upstreams`.
    pub fn before(door: Door, socket: TcpListener, upstreams: Vec<SocketAddr>) -> Self {
        Listener { socket, behind: Behind::Listed { door, upstreams } }
    }
}

/// Where the connections of a listener go on to.
#[derive(Debug, Clone)]
pub enum Behind {
    /// To these addresses; at least one, taken in turn from the first, one per call of [`Decider::opened`] for this door.
    Listed {
        /// Which listener it is, handed to [`Decider::opened`].
        door: Door,
        /// The addresses.
        upstreams: Vec<SocketAddr>,
    },
    /// Where callers were connecting to when the kernel redirected them.
    RedirectedIn,
    /// Where the application was connecting to when the kernel redirected it.
    RedirectedOut,
}

/// Ends [`serve`]: clones stop the same server.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl Stop {
    /// A handle that has not been used.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Stops accepting; idle links are closed, the others when they have become idle.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    async fn stopped(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// What a link is told from outside.
#[derive(Debug)]
enum Message {
    Resume(StreamId, Resume),
    /// Its upstream is cut off.
    Cut,
    Stop,
}

/// Finds the link that something is said to. Cheap to clone; clones know the same links.
#[derive(Debug, Clone, Default)]
pub struct Router(Rc<RefCell<HashMap<LinkId, mpsc::UnboundedSender<Message>>>>);

impl Router {
    /// A router that knows no link.
    pub fn new() -> Self {
        Self::default()
    }

    /// Delivers resumes; those of links that are gone are ignored.
    pub fn deliver(&self, resumes: impl IntoIterator<Item = (LinkId, StreamId, Resume)>) {
        let links = self.0.borrow();
        for (link, stream, resume) in resumes {
            if let Some(inbox) = links.get(&link) {
                // A link whose task has ended takes itself off; until then its inbox exists.
                let _ = inbox.send(Message::Resume(stream, resume));
            }
        }
    }

    /// Breaks the upstream connections of these links, so that their applications see them broken.
    pub fn cut(&self, cut: impl IntoIterator<Item = LinkId>) {
        let links = self.0.borrow();
        for inbox in cut.into_iter().filter_map(|link| links.get(&link)) {
            let _ = inbox.send(Message::Cut);
        }
    }

    fn enter(&self, link: LinkId) -> mpsc::UnboundedReceiver<Message> {
        let (sender, inbox) = mpsc::unbounded_channel();
        self.0.borrow_mut().insert(link, sender);
        inbox
    }

    fn leave(&self, link: LinkId) {
        self.0.borrow_mut().remove(&link);
    }

    fn stop(&self) {
        self.0.borrow().values().for_each(|inbox| drop(inbox.send(Message::Stop)));
    }
}

/// What all links of a thread share.
#[derive(Clone)]
struct Shared {
    decider: Rc<RefCell<dyn Decider>>,
    router: Router,
    buffer: Rc<RefCell<Box<[u8]>>>,
    own: Rc<redirected::Own>,
}

/// Accepts and relays until `stop`; then waits for links to become idle, at most `grace`, and cuts the rest.
///
/// Must run inside a [`tokio::task::LocalSet`]. Dropping the future cuts every link at once.
pub async fn serve(
    listeners: Vec<Listener>,
    decider: Rc<RefCell<dyn Decider>>,
    router: Router,
    stop: Stop,
    grace: Duration,
) {
    let buffer = Rc::new(RefCell::new(vec![0; READ].into_boxed_slice()));
    let own = Rc::new(redirected::Own::of(&listeners));
    let shared = Shared { decider, router, buffer, own };
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn_local(accept(listener, shared.clone(), stop.clone()));
    }
    stop.stopped().await;
    let drained = async { while accepting.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, drained).await.is_err() {
        tracing::debug!("links are cut that did not become idle in time");
    }
    accepting.shutdown().await;
}

/// Accepts on one listener; returns when stopped and its last link is gone.
async fn accept(listener: Listener, shared: Shared, stop: Stop) {
    let mut links = JoinSet::new();
    let mut turn = 0;
    let mut open = |app: TcpStream, links: &mut JoinSet<()>| {
        let (door, target) = match &listener.behind {
            Behind::Listed { door, upstreams } => {
                let target = upstreams[turn];
                turn = (turn + 1) % upstreams.len();
                (*door, target)
            }
            Behind::RedirectedIn | Behind::RedirectedOut => match shared.own.destination(&app) {
                Ok(target) if matches!(listener.behind, Behind::RedirectedIn) => (Door::RedirectedIn(target), target),
                Ok(target) => (Door::RedirectedOut(target), target),
                Err(refusal) => return shared.own.refuse(app, &refusal),
            },
        };
        links.spawn_local(relay::Relay::new(door, app, target, shared.clone()));
    };
    loop {
        tokio::select! {
            accepted = listener.socket.accept() => match accepted {
                Ok((app, _)) => open(app, &mut links),
                Err(error) => {
                    tracing::warn!(%error, listener = ?listener.behind, "cannot accept");
                    if is_lasting(&error) {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
            Some(ended) = links.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a link was lost");
                }
            }
            () = stop.stopped() => break,
        }
    }
    // Whoever the kernel has let in is connected and may have sent a request, which closing the socket would reset.
    while let Ok((app, _)) = SockRef::from(&listener.socket).accept() {
        let accepted = app.set_nonblocking(true).and_then(|()| TcpStream::from_std(app.into()));
        match accepted {
            Ok(app) => open(app, &mut links),
            Err(error) => tracing::warn!(%error, listener = ?listener.behind, "cannot accept"),
        }
    }
    drop(listener.socket);
    shared.router.stop();
    while links.join_next().await.is_some() {}
}

/// Whether the next attempt to accept would fail as well; an error of the connection itself is over.
fn is_lasting(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
