//! The editor byte by byte: scripted conversations, cut at every position.

mod drain;
mod ends;
mod faults;
mod framing;
mod marks;
mod pass;
mod random;

use std::collections::HashMap;

use crate::exchange::{
    Act, Closed, Edit, Editor, Edits, Fate, Fields, Interceptor, Made, Mark, Part, PeerEnd, Refusal, RequestHead,
    ResponseHead, Resume, StreamId, Tail, Verdict,
};
use crate::h1::Link;

/// One step of a conversation.
#[derive(Debug, Clone)]
enum Step {
    App(Vec<u8>),
    Up(Vec<u8>),
    AppEnd(PeerEnd),
    UpEnd(PeerEnd),
    Resume(u64, Resume),
    Drain,
}

fn app(bytes: impl AsRef<[u8]>) -> Step {
    Step::App(bytes.as_ref().to_vec())
}

fn up(bytes: impl AsRef<[u8]>) -> Step {
    Step::Up(bytes.as_ref().to_vec())
}

/// An interception point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Point {
    Request,
    Response,
    Mark,
    End,
}

/// Answers with scripted verdicts, stamps with scripted edits, writes down every call.
#[derive(Debug, Default, Clone)]
struct Script {
    verdicts: HashMap<(u64, Point), Verdict>,
    edits: Vec<Edit>,
    /// For the ends of requests.
    end_edits: Vec<Edit>,
    log: Vec<String>,
    open: Vec<u64>,
}

impl Script {
    fn at(mut self, stream: u64, point: Point, verdict: Verdict) -> Self {
        self.verdicts.insert((stream, point), verdict);
        self
    }

    fn stamping(mut self, edits: &[Edit]) -> Self {
        self.edits = edits.to_vec();
        self
    }

    fn verdict(&self, stream: StreamId, point: Point) -> Verdict {
        self.verdicts.get(&(stream.0, point)).cloned().unwrap_or(Verdict::Pass)
    }

    fn known(&self, stream: StreamId) {
        assert!(self.open.contains(&stream.0), "call for {stream:?}, which is not open: {:?}", self.log);
    }
}

fn lines(fields: &Fields<'_>) -> String {
    let text = String::from_utf8_lossy;
    fields.0.iter().map(|(n, v)| format!("{}={}", text(n), text(v))).collect::<Vec<_>>().join("&")
}

impl Interceptor for Script {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        assert_eq!(self.open.iter().max().copied().unwrap_or(stream.0 - 1).max(stream.0 - 1), stream.0 - 1);
        self.open.push(stream.0);
        self.log.push(format!(
            "request {} {} {} @{} [{}]{}",
            stream.0,
            head.method,
            head.path,
            head.authority,
            lines(&head.fields),
            if head.ends { " ends" } else { "" }
        ));
        self.verdict(stream, Point::Request)
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        self.known(stream);
        let ends = if head.ends { " ends" } else { "" };
        self.log.push(format!("response {} {} [{}]{ends}", stream.0, head.status, lines(&head.fields)));
        self.verdict(stream, Point::Response)
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        let trailers = tail.trailers.as_ref();
        self.known(stream);
        let mut call = format!("end {} {}", stream.0, trailers.map_or("-".into(), lines));
        if let Some(messages) = tail.messages {
            call += &format!(" messages={messages}");
        }
        if let Some(body) = tail.body {
            call += &format!(" body={}", body.escape_ascii());
        }
        self.log.push(call);
        self.verdict(stream, Point::End)
    }

    fn request_end(&mut self, stream: StreamId, trailers: Option<&Fields<'_>>) {
        self.known(stream);
        self.log.push(format!("request-end {} {}", stream.0, trailers.map_or("-".into(), lines)));
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        self.known(stream);
        self.log.push(format!("reached {} {mark:?}", stream.0));
        self.verdict(stream, Point::Mark)
    }

    fn late(&mut self, stream: StreamId, _: &Fields<'_>) {
        panic!("nothing comes late on HTTP/1, not for {stream:?}");
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        self.known(stream);
        self.log.push(format!("stamp {} {part:?}", stream.0));
        let edits = if part == Part::RequestEnd { &self.end_edits } else { &self.edits };
        edits.iter().cloned().collect()
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        self.known(stream);
        self.log.push(format!("refused {} {why:?}", stream.0));
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.known(stream);
        self.open.retain(|open| *open != stream.0);
        self.log.push(format!("closed {} {how:?}", stream.0));
    }
}

/// Everything a conversation puts out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    to_app: Vec<u8>,
    to_upstream: Vec<u8>,
    app: Fate,
    upstream: Fate,
    log: Vec<String>,
    open: Vec<u64>,
}

impl Outcome {
    fn app_text(&self) -> String {
        String::from_utf8_lossy(&self.to_app).into_owned()
    }

    fn upstream_text(&self) -> String {
        String::from_utf8_lossy(&self.to_upstream).into_owned()
    }

    fn logged(&self, entry: &str) -> bool {
        self.log.iter().any(|line| line == entry)
    }
}

/// Plays `steps` the way the driver does: nothing is fed to a side whose fate is final.
fn play(steps: &[Step], mut script: Script) -> Outcome {
    let mut link = Link::new();
    let (mut to_app, mut to_upstream) = (Vec::new(), Vec::new());
    for step in steps {
        let heard = |fate: Fate| matches!(fate, Fate::Open | Fate::Fin);
        let (app, upstream) = (heard(link.output().app), heard(link.output().upstream));
        match step {
            Step::App(bytes) if app => link.app_bytes(bytes, &mut script),
            Step::Up(bytes) if upstream => link.upstream_bytes(bytes, &mut script),
            Step::AppEnd(how) if app => link.app_end(*how, &mut script),
            Step::UpEnd(how) if upstream => link.upstream_end(*how, &mut script),
            Step::Drain => link.drain(&mut script),
            Step::Resume(stream, resume) => link.resume(StreamId(*stream), resume.clone(), &mut script),
            _ => {}
        }
        to_app.extend_from_slice(&link.output().to_app.split());
        to_upstream.extend_from_slice(&link.output().to_upstream.split());
    }
    let Script { log, open, .. } = script;
    Outcome { to_app, to_upstream, app: link.output().app, upstream: link.output().upstream, log, open }
}

/// Plays `steps` whole, with every step of bytes cut in two at every position, and one byte at a time: the outcome must
/// always be the same.
fn check(steps: &[Step], script: &Script) -> Outcome {
    let whole = play(steps, script.clone());
    for (at, step) in steps.iter().enumerate() {
        let (bytes, wrap): (_, fn(Vec<u8>) -> Step) = match step {
            Step::App(bytes) => (bytes, Step::App),
            Step::Up(bytes) => (bytes, Step::Up),
            _ => continue,
        };
        for cut in 1..bytes.len() {
            let mut cut_steps = steps.to_vec();
            let (first, second) = bytes.split_at(cut);
            cut_steps.splice(at..=at, [wrap(first.to_vec()), wrap(second.to_vec())]);
            assert_eq!(play(&cut_steps, script.clone()), whole, "step {at} cut at {cut}");
        }
    }
    let bytewise: Vec<_> = steps
        .iter()
        .flat_map(|step| match step {
            Step::App(bytes) => bytes.iter().map(|b| Step::App(vec![*b])).collect(),
            Step::Up(bytes) => bytes.iter().map(|b| Step::Up(vec![*b])).collect(),
            other => vec![other.clone()],
        })
        .collect();
    assert_eq!(play(&bytewise, script.clone()), whole, "one byte at a time");
    whole
}

fn made(status: u16, body: &'static str) -> Act {
    let fields = vec![("x-made".to_string(), "yes".to_string())];
    Act::Answer(Box::new(Made { status, fields, body: bytes::Bytes::from_static(body.as_bytes()), trailers: None }))
}

const RESET: Act = Act::Reset { code: 2, connection: false };
const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const POST: &str = "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: v\r\n\r\n";
