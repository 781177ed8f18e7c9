//! Peers that follow a script on a raw socket and write down every byte and the end they see.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

/// Nothing in these tests takes long: whoever waits for so long waits for ever.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// What a peer does next.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Send bytes.
    Send(Vec<u8>),
    /// Read until these bytes have come.
    Until(&'static str),
    /// Close the writing side.
    Fin,
    /// Close with an RST.
    Reset,
    /// Read until the other side ends.
    End,
}

/// How the other side's bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was not waited for.
    Open,
    Fin,
    Reset,
}

/// What a peer saw.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: Ended,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, then {:?}", String::from_utf8_lossy(&self.bytes), self.ended)
    }
}

impl Seen {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

pub(crate) fn send(bytes: impl AsRef<[u8]>) -> Step {
    Step::Send(bytes.as_ref().to_vec())
}

pub(crate) fn until(bytes: &'static str) -> Step {
    Step::Until(bytes)
}

/// All that a peer sends that follows `script` to its end.
pub(crate) fn sent(script: &[Step]) -> Vec<u8> {
    script.iter().flat_map(|step| if let Step::Send(bytes) = step { &bytes[..] } else { &[] }).copied().collect()
}

/// Connects and follows `script`.
pub(crate) fn client(address: SocketAddr, script: &[Step]) -> Seen {
    follow(connect(address), script)
}

/// Connects as every peer here does: without waiting for ever, without delaying small writes.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("somebody listens");
    prepare(&stream);
    stream
}

pub(crate) fn prepare(stream: &TcpStream) {
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    stream.set_write_timeout(Some(HANG)).expect("a timeout");
}

/// A server that follows one script per connection, in the order in which they are accepted.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    thread: thread::JoinHandle<Vec<Seen>>,
}

impl Origin {
    pub(crate) fn start(scripts: Vec<Vec<Step>>) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a free port"), scripts)
    }

    pub(crate) fn on(listener: TcpListener, scripts: Vec<Vec<Step>>) -> Self {
        let address = listener.local_addr().expect("a bound socket");
        // Accepting obeys it as well.
        SockRef::from(&listener).set_read_timeout(Some(HANG)).expect("a timeout");
        let thread = thread::spawn(move || {
            let connections: Vec<_> = scripts
                .into_iter()
                .map(|script| {
                    let (stream, _) = listener.accept().expect("a connection");
                    prepare(&stream);
                    thread::spawn(move || follow(stream, &script))
                })
                .collect();
            connections.into_iter().map(|c| c.join().expect("the script ran")).collect()
        });
        Self { address, thread }
    }

    /// What each connection saw.
    pub(crate) fn seen(self) -> Vec<Seen> {
        self.thread.join().expect("the scripts ran")
    }
}

/// A server to which nothing may be sent.
pub(crate) struct Untouched(TcpListener);

impl Untouched {
    pub(crate) fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket")
    }

    /// Whoever connected has left without a byte.
    pub(crate) fn check(self) {
        self.0.set_nonblocking(true).expect("a socket");
        while let Ok((stream, _)) = self.0.accept() {
            stream.set_nonblocking(false).expect("a socket");
            prepare(&stream);
            let seen = follow(stream, &[Step::End]);
            assert_eq!(seen.text(), "", "nothing may be sent to this server");
        }
    }
}

/// An address at which nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    nobody_at(Ipv4Addr::LOCALHOST.into())
}

/// The same, at a host.
pub(crate) fn nobody_at(host: IpAddr) -> SocketAddr {
    TcpListener::bind((host, 0)).and_then(|l| l.local_addr()).expect("a free port")
}

/// An address at which connections are refused until somebody listens there; nobody else can take it.
pub(crate) struct Shut(Socket);

impl Shut {
    pub(crate) fn at(host: IpAddr) -> Self {
        let socket = Socket::new(Domain::for_address((host, 0).into()), Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((host, 0)).into()).expect("a free port");
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().ok().and_then(|address| address.as_socket()).expect("a bound socket")
    }

    /// From now on connections are accepted.
    pub(crate) fn open(self) -> TcpListener {
        self.0.listen(128).expect("a bound socket");
        self.0.into()
    }

    /// From now on the kernel answers nobody, until [`Full::open`]. The calling thread is where the socket is.
    pub(crate) fn fill(self) -> Full {
        // Nobody accepts, and no more connections wait than one.
        self.0.listen(0).expect("a bound socket");
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&self.address(), Duration::from_millis(100)) {
            waiting.push(stream);
            assert!(waiting.len() < 100, "the kernel lets everybody in");
        }
        Full { address: self.address(), listener: self.0.into(), waiting }
    }
}

/// A server to which connections take their time.
pub(crate) struct Full {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    waiting: Vec<TcpStream>,
}

impl Full {
    /// Waits until the kernel has begun to connect somebody, and nobody answers. The calling thread is where that is.
    pub(crate) fn is_dialled(&self) {
        let begun = format!(":{:04X} 02 ", self.address.port());
        let deadline = Instant::now() + HANG;
        // Sockets of IPv6 connect to addresses of IPv4, too.
        let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        while !tables.iter().any(|table| std::fs::read_to_string(table).is_ok_and(|t| t.contains(&begun))) {
            assert!(Instant::now() < deadline, "nobody connects");
            thread::yield_now();
        }
    }

    /// Whoever connects now, or tries again, is the next to be accepted.
    pub(crate) fn open(self) -> TcpListener {
        for _ in self.waiting {
            drop(self.listener.accept().expect("it waits"));
        }
        self.listener
    }
}

/// Follows `script` on a connected socket.
pub(crate) fn follow(mut stream: TcpStream, script: &[Step]) -> Seen {
    let mut seen = Seen { bytes: Vec::new(), ended: Ended::Open };
    let mut matched = 0;
    let mut buffer = vec![0; 64 * 1024];
    for step in script {
        match step {
            Step::Send(bytes) => {
                if let Err(error) = stream.write_all(bytes) {
                    assert!(is_reset(error.kind()), "cannot send: {error}");
                }
            }
            Step::Fin => drop(stream.shutdown(Shutdown::Write)),
            Step::Reset => {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
                return seen;
            }
            Step::Until(marker) => loop {
                if let Some(at) = memchr::memmem::find(&seen.bytes[matched..], marker.as_bytes()) {
                    matched += at + marker.len();
                    break;
                }
                // What was searched is not searched again, but for the start of a marker.
                matched = matched.max((seen.bytes.len() + 1).saturating_sub(marker.len()));
                if let Some(ended) = read(&mut stream, &mut buffer, &mut seen.bytes, marker) {
                    seen.ended = ended;
                    return seen;
                }
            },
            Step::End => loop {
                if let Some(ended) = read(&mut stream, &mut buffer, &mut seen.bytes, "the end") {
                    seen.ended = ended;
                    break;
                }
            },
        }
    }
    seen
}

/// Reads once; the end, if that came.
fn read(stream: &mut TcpStream, buffer: &mut [u8], into: &mut Vec<u8>, what: &str) -> Option<Ended> {
    match stream.read(buffer) {
        Ok(0) => Some(Ended::Fin),
        Ok(read) => {
            into.extend_from_slice(&buffer[..read]);
            None
        }
        Err(error) if is_reset(error.kind()) => Some(Ended::Reset),
        Err(error) => panic!("waiting for {what:?} after {:?}: {error}", String::from_utf8_lossy(into)),
    }
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}
