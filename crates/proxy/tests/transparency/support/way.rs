//! The ways from a client to an origin: direct, and those with sidecars between.
//!
//! A test is one exchange, a function of a [`Stage`], that is made once directly and then once on each other way. What
//! client and origin saw must be the same: bytes, ends, and the order in which scripts could go on. Two things may differ
//! at the origin, and [`Stage::without_ours`] takes them out: the member `aft=` of `tracestate` that the sidecar hands to
//! its application, and a `traceparent` that the client did not send. The hop header ends at the callee's sidecar; nothing of
//! ours reaches a client.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use super::brain::{Back, Front, TOKEN};
use super::pods::Redirected;
use super::sidecar::{Board, Sidecar};
use super::wire::{self, Origin, Seen, Step, follow};

/// A way from a client to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing between.
    Direct,
    /// One sidecar's connection driver; its decider lets everything pass and writes it down.
    Driver,
    /// The caller's sidecar, called by a client that hands on no context, and the callee's: calls carry the hop mark.
    Unassociated,
    /// Through the caller's sidecar into the caller, which hands on every byte as it is, out through its sidecar again and
    /// through the callee's: ordinary traffic. Calls carry members and evidence.
    Ordinary,
    /// The same with the token of a live round, which is recorded.
    Round,
    /// Client and origin in pods of their own, knowing nothing of the sidecars to which the kernel redirects their
    /// connections; the token is that of a live round.
    Redirected,
}

/// Every way whose client and origin stand where the test does.
pub(crate) const THROUGH: [Way; 4] = [Way::Driver, Way::Unassociated, Way::Ordinary, Way::Round];

/// Where an exchange is made: where clients and origins stand, and the way between them.
pub(crate) struct Stage {
    pub(crate) way: Way,
    board: Board,
    pods: Option<&'static Redirected>,
}

/// The sidecars between a client and an origin, for as long as this lives.
pub(crate) struct Route {
    /// What the client connects to.
    pub(crate) address: SocketAddr,
    _sidecars: Vec<Sidecar>,
}

impl Stage {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, board: Board::default(), pods: None }
    }

    /// That of [`Way::Redirected`]; none where tests cannot have one.
    fn redirected() -> Option<Self> {
        Redirected::pods().map(|pods| Self { way: Way::Redirected, board: Board::default(), pods: Some(pods) })
    }

    /// Direct, and then every other way.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        [Way::Direct].into_iter().chain(THROUGH).map(Self::new).chain(Self::redirected())
    }

    /// What the decider of [`Way::Driver`] wrote down.
    pub(crate) fn log(&self) -> Vec<String> {
        self.board.log()
    }

    /// Waits until it wrote this down.
    pub(crate) fn wait(&self, note: &str) {
        self.board.wait(note);
    }

    /// A listening socket where origins stand. Programs inherit theirs, so that nobody else can take its port and
    /// connections are accepted from the start.
    pub(crate) fn listen(&self) -> TcpListener {
        self.as_origin(|host| TcpListener::bind((host, 0)).expect("a free port"))
    }

    /// Does `what`, or starts a program that does, where origins stand; they listen at the address that it gets.
    pub(crate) fn as_origin<T: Send>(&self, what: impl FnOnce(IpAddr) -> T + Send) -> T {
        match self.pods {
            Some(pods) => pods.back.run(|| what(pods.address)).expect("a thread"),
            None => what(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// A connection of a client's.
    pub(crate) fn connect(&self, address: SocketAddr) -> TcpStream {
        self.as_client(|| wire::connect(address))
    }

    /// Does `what`, or starts a program that does, where clients stand.
    pub(crate) fn as_client<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        match self.pods {
            Some(pods) => pods.front.run(what).expect("a thread"),
            None => what(),
        }
    }

    /// Puts the sidecars of this way before an origin.
    pub(crate) fn lead_to(&self, origin: SocketAddr) -> Route {
        match self.way {
            Way::Direct | Way::Redirected => Route { address: origin, _sidecars: Vec::new() },
            Way::Driver => {
                let sidecar = Sidecar::recording(&[origin], &self.board);
                Route { address: sidecar.address, _sidecars: vec![sidecar] }
            }
            Way::Unassociated | Way::Ordinary | Way::Round => {
                let back = Back::before(origin).start();
                let front = Front::calling(&[back.address]).start();
                let address = if self.way == Way::Unassociated { front.addresses[1] } else { front.address };
                Route { address, _sidecars: vec![front, back] }
            }
        }
    }

    /// The `tracestate` that clients send on this way.
    pub(crate) fn tracestate(&self) -> Option<String> {
        matches!(self.way, Way::Round | Way::Redirected).then(|| format!("aft=1-0-0-{TOKEN}-0"))
    }

    /// A client's HTTP/1 script as it is on this way: the first request of each step carries the token.
    fn tagged(&self, script: &[Step]) -> Vec<Step> {
        let Some(tracestate) = self.tracestate() else { return script.to_vec() };
        let tag = |step: &Step| match step {
            Step::Send(bytes) => match first_line(bytes) {
                Some(end) => {
                    let line = format!("tracestate: {tracestate}\r\n");
                    Step::Send([&bytes[..end], line.as_bytes(), &bytes[end..]].concat())
                }
                None => step.clone(),
            },
            other => other.clone(),
        };
        script.iter().map(tag).collect()
    }

    /// What an HTTP/1 origin saw, without what the sidecar wrote for its application; `sent` is what the client sent.
    pub(crate) fn without_ours(&self, seen: &[u8], sent: &[u8]) -> Vec<u8> {
        if matches!(self.way, Way::Direct | Way::Driver | Way::Unassociated) {
            return seen.to_vec();
        }
        let mut kept = Vec::with_capacity(seen.len());
        for line in seen.split_inclusive(|b| *b == b'\n') {
            let lower = line.to_ascii_lowercase();
            if lower.starts_with(b"traceparent: 00-") && memchr::memmem::find(sent, line).is_none() {
                continue;
            }
            let member = lower.starts_with(b"tracestate:").then(|| memchr::memmem::find(&lower, b"aft=1-")).flatten();
            match member {
                Some(start) => {
                    let rest = &line[start..];
                    // Alone, the line is ours; before others, the member is.
                    if let Some(comma) = memchr::memchr(b',', rest) {
                        kept.extend_from_slice(&line[..start]);
                        kept.extend_from_slice(&rest[comma + 1..]);
                    }
                }
                None => kept.extend_from_slice(line),
            }
        }
        kept
    }

    /// Follows a client's HTTP/1 script on a connection of its own.
    pub(crate) fn follow(&self, address: SocketAddr, script: &[Step]) -> Seen {
        follow(self.connect(address), &self.tagged(script))
    }

    /// Follows the scripts, a connection each, one after the other; what the clients and the origin saw.
    pub(crate) fn exchange(&self, clients: &[&[Step]], origins: &[&[Step]]) -> Exchanged {
        let origin = Origin::on(self.listen(), origins.iter().map(|script| script.to_vec()).collect());
        let route = self.lead_to(origin.address);
        let clients_saw = clients.iter().map(|script| self.follow(route.address, script)).collect();
        let sent: Vec<Vec<u8>> = clients.iter().map(|script| wire::sent(script)).collect();
        let origins_saw = origin.seen().into_iter().enumerate().map(|(at, seen)| {
            let bytes = self.without_ours(&seen.bytes, sent.get(at).map_or(&[], |sent| sent));
            Seen { bytes, ended: seen.ended }
        });
        Exchanged { clients: clients_saw, origins: origins_saw.collect() }
    }
}

/// What came of the connections of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exchanged {
    pub(crate) clients: Vec<Seen>,
    pub(crate) origins: Vec<Seen>,
}

/// Makes an exchange directly and then on every other way; what came of it directly came of it everywhere.
pub(crate) fn alike<T: PartialEq + Debug>(mut exchange: impl FnMut(&Stage) -> T) -> T {
    let mut ways = Stage::every();
    let direct = exchange(&ways.next().expect("the direct one"));
    for stage in ways {
        let (through, way) = (exchange(&stage), stage.way);
        assert!(through == direct, "{way:?}:\n{through:?}\ninstead of\n{direct:?}");
    }
    direct
}

/// Follows a client's and an origin's script on every way; what both saw.
pub(crate) fn same(client: &[Step], origin: &[Step]) -> (Seen, Seen) {
    let mut seen = alike(|stage| stage.exchange(&[client], &[origin]));
    (seen.clients.remove(0), seen.origins.remove(0))
}

/// Where the first line of `bytes` ends, if it is an HTTP/1 request line.
fn first_line(bytes: &[u8]) -> Option<usize> {
    let end = memchr::memmem::find(bytes, b"\r\n")? + 2;
    let line = &bytes[..end - 2];
    let is_request = line.first().is_some_and(u8::is_ascii_uppercase)
        && !line.starts_with(b"HTTP/")
        && [&b" HTTP/1.1"[..], b" HTTP/1.0"].iter().any(|version| line.ends_with(version));
    is_request.then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::wire::{client, send, until};

    const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    const OK: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

    /// What the callee's sidecar gets, on the way that `stage` is on.
    fn between(stage: &Stage, through_the_caller: bool) -> String {
        let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(OK)]]);
        let front = Front::calling(&[origin.address]).start();
        let address = front.addresses[usize::from(!through_the_caller)];
        assert_eq!(client(address, &stage.tagged(&[send(GET), Step::End])).text(), OK);
        origin.seen()[0].text()
    }

    #[test]
    fn what_these_ways_compare_really_carries_our_fields_between_the_sidecars() {
        let marked = between(&Stage::new(Way::Unassociated), false);
        assert!(marked.contains("\r\naftershock-hop: ") && !marked.contains("aft="), "{marked}");
        let ordinary = between(&Stage::new(Way::Ordinary), true);
        assert!(ordinary.contains("\r\naftershock-hop: ") && ordinary.contains("\r\ntracestate: aft=1-"), "{ordinary}");
        let round = between(&Stage::new(Way::Round), true);
        assert!(round.contains("\r\naftershock-hop: ") && round.contains(&format!("-{TOKEN}-")), "{round}");
    }

    #[test]
    fn redirected_connections_really_pass_both_sidecars() {
        let Some(stage) = Stage::redirected() else { return };
        let origin = Origin::on(stage.listen(), vec![vec![until("\r\n\r\n"), send(OK)]; 2]);
        // The callee's sidecar takes the tagged request for an entry of the round, and tells its application.
        assert_eq!(stage.follow(origin.address, &[send(GET), Step::End]).text(), OK);
        // The caller's has marked the one without context; the callee's has taken the mark off.
        assert_eq!(follow(stage.connect(origin.address), &[send(GET), Step::End]).text(), OK);
        let seen = origin.seen();
        let tagged = seen[0].text();
        assert!(tagged.contains(&format!("-{TOKEN}-")) && !tagged.contains("aft=1-0-0-"), "{tagged}");
        assert_eq!(seen[1].text(), GET);
    }

    #[test]
    fn only_what_a_sidecar_may_write_is_left_out_of_the_comparison() {
        let stage = Stage::new(Way::Round);
        let seen = b"GET / HTTP/1.1\r\ntracestate: aft=1-1-2-3-4,a=b\r\naftershock-hop: x\r\ntraceparent: 00-x\r\n\r\n";
        let kept = |sent: &str| String::from_utf8(stage.without_ours(seen, sent.as_bytes())).expect("text");
        let without = "GET / HTTP/1.1\r\ntracestate: a=b\r\naftershock-hop: x\r\n\r\n";
        assert_eq!(kept("GET / HTTP/1.1\r\n"), without);
        assert!(kept("GET / HTTP/1.1\r\ntraceparent: 00-x\r\n").contains("traceparent: 00-x"));
        let alone = b"GET / HTTP/1.1\r\ntracestate: aft=1-1-2-3-4\r\n\r\n";
        assert_eq!(stage.without_ours(alone, b""), b"GET / HTTP/1.1\r\n\r\n");
    }
}
