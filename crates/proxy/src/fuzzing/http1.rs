//! The HTTP/1 editor: requests and responses in any pieces, ends of connections in between, faults.
//!
//! Checked besides the [`Contract`]: the outcome does not depend on how the bytes were split; what leaves without rules is
//! what came, to the last byte when the editor says that nothing is under way; what is kept is bounded; when the link is
//! gone every exchange is closed.

use super::Input;
use super::contract::CHOICES;
use super::driver::{Bounded, Driver, Outcome, Step, check};
use crate::exchange::{Editor, PeerEnd};
use crate::h1::{Link, MAX_HEAD};

/// From these both well-formed and broken messages come about, without a fuzzer having to spell them.
const PIECES: [&str; 48] = [
    "GET / HTTP/1.1\r\n",
    "HEAD / HTTP/1.1\r\n",
    "CONNECT a:1 HTTP/1.1\r\n",
    "POST /a HTTP/1.0\r\n",
    "GET http://h/a?b HTTP/1.1\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 200 OK\r\n",
    "HTTP/1.1 101 Switch\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early\r\n",
    "HTTP/1.1 204 No\r\n",
    "HTTP/1.1 304 Same\r\n",
    "Host: h\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 5, 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive, upgrade\r\n",
    "Upgrade: websocket\r\n",
    "Upgrade: h2c\r\n",
    "Expect: 100-continue\r\n",
    "aft: old\r\n",
    "AFT:older\r\n",
    "T: v\r\n",
    "\r\n",
    "\n",
    "\r",
    " ",
    ":",
    "hello",
    "Content-Type: application/grpc\r\n",
    "\0\0\0\0\x01a",
    "\0\0\0\0\0",
    "5\r\nhello\r\n",
    "6;ext=\"a\"\r\n\0\0\0\0\x01b\r\n",
    "0\r\n\r\n",
    "0\r\nT: v\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: v\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nContent-Length: 12\r\n\r\n\0\0\0\0\x01a\0\0\0\0\x01b",
    "HTTP/1.1 408 Late\r\nConnection: close\r\n\r\n",
    "\0",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// Refusals: the last thing that a client gets.
const REFUSALS: [&[u8]; 2] = [
    b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
];

pub(super) fn run(input: &[u8]) {
    let mut input = Input(input);
    let choices = if input.byte() % 4 == 0 { &[][..] } else { input.bytes(CHOICES) };
    let mut steps = Vec::new();
    while !input.is_empty() {
        steps.push(step(&mut input));
    }
    drive(&steps, choices);
}

fn step(input: &mut Input<'_>) -> Step {
    let end = |choice: u8| if choice == 0 { PeerEnd::Eof } else { PeerEnd::Broken };
    match input.byte() {
        choice @ 0..96 => Step::App(PIECES[usize::from(choice) % PIECES.len()].into()),
        choice @ 96..192 => Step::Upstream(PIECES[usize::from(choice) % PIECES.len()].into()),
        192..208 => Step::App(input.piece().to_vec()),
        208..224 => Step::Upstream(input.piece().to_vec()),
        224..240 => Step::Resume(input.byte(), input.byte()),
        choice @ 240..242 => Step::AppEnd(end(choice - 240)),
        choice @ 242..244 => Step::UpstreamEnd(end(choice - 242)),
        244 => Step::UpstreamEnd(PeerEnd::Refused),
        245 => Step::App(vec![b'x'; usize::from(input.byte()) * 512]),
        246 => Step::Upstream(vec![b'x'; usize::from(input.byte()) * 512]),
        _ => Step::App(Vec::new()),
    }
}

/// Plays the steps on an HTTP/1 link.
pub(super) fn drive(steps: &[Step], choices: &[u8]) -> Outcome {
    check(steps, choices, |driver: &Driver<'_, Link>| {
        let Driver { decide, app, upstream, to_app, to_upstream, .. } = driver;
        assert!(to_upstream.len() <= app.all.len() + decide.added, "more goes up than came");
        assert!(to_app.len() <= upstream.all.len() + decide.added + 100, "more goes down than came");
        if decide.is_transparent() {
            check_transparency(driver);
        }
    })
}

impl Bounded for Link {
    fn fresh() -> Self {
        Link::new()
    }

    fn check_bounds(&self, longest: usize) {
        let (held, most) = (self.held(), MAX_HEAD + longest);
        assert!(held.app <= most && held.upstream <= most, "{held:?} are kept");
        // Its content is bounded by the verdict's limit, of at most 45, the framing around it like a head.
        assert!(held.withheld <= most + 100, "{held:?} are kept");
    }

    fn check_gone(&self) {
        let held = self.held();
        assert_eq!((held.app, held.upstream, held.withheld), (0, 0, 0), "{held:?} are kept for nobody");
    }
}

/// Without rules nothing is added, left out or put in another place; and when nothing is under way nothing is missing.
fn check_transparency(driver: &Driver<'_, Link>) {
    let Driver { link, app, upstream, to_app, to_upstream, .. } = driver;
    assert!(app.all.starts_with(to_upstream), "what goes up is not what came");
    let refusal = REFUSALS.iter().find_map(|refusal| to_app.strip_suffix(*refusal));
    assert!(
        upstream.all.starts_with(to_app) || refusal.is_some_and(|before| upstream.all.starts_with(before)),
        "what goes down is not what came: {:?}",
        to_app.escape_ascii().to_string()
    );
    if link.idle() && app.unread.is_empty() && upstream.unread.is_empty() && refusal.is_none() {
        assert_eq!(app.all.len(), to_upstream.len(), "nothing is under way, but something did not go up");
        assert_eq!(upstream.all.len(), to_app.len(), "nothing is under way, but something did not go down");
    }
}
