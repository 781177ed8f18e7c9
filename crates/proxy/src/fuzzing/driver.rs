//! The driver of a link without sockets: what arrives is read when the editor wants it, what it puts out is taken at once.

use std::collections::VecDeque;

use super::contract::{Contract, resume};
use crate::exchange::{Editor, Fate, PeerEnd, Resume, StreamId};

/// Beyond this many bytes what is taken off a socket depends on the sizes of reads: what is kept has a limit, and it is
/// only looked at between two reads.
const COMPARABLE: usize = crate::h1::MAX_HEAD / 2;

/// What happens on a link.
#[derive(Debug, Clone)]
pub(super) enum Step {
    App(Vec<u8>),
    Upstream(Vec<u8>),
    AppEnd(PeerEnd),
    UpstreamEnd(PeerEnd),
    /// Of one of the messages that wait, or of a stream that need not exist.
    Resume(u8, u8),
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) to_app: Vec<u8>,
    pub(super) to_upstream: Vec<u8>,
    pub(super) app: Fate,
    pub(super) upstream: Fate,
    pub(super) log: Vec<String>,
}

/// An editor that says how much it keeps.
pub(super) trait Bounded: Editor {
    /// A fresh one.
    fn fresh() -> Self;
    /// Panics if too much is kept, given the longest read.
    fn check_bounds(&self, longest: usize);
    /// Panics if something is left after the link has gone.
    fn check_gone(&self);
}

/// Plays the steps as they are and with neighbouring reads put together: the outcome must be the same, but where a fault
/// depends on whether another request has come by then.
pub(super) fn check<E: Bounded>(steps: &[Step], choices: &[u8], finish: impl Fn(&Driver<'_, E>)) -> Outcome {
    let split = play(steps, choices, &finish);
    let whole = joined(steps);
    let lengths = whole.iter().map(|step| if let Step::App(b) | Step::Upstream(b) = step { b.len() } else { 0 });
    if lengths.sum::<usize>() < COMPARABLE {
        let outcome = play(&whole, choices, &finish);
        let timed = |outcome: &Outcome| outcome.log.iter().any(|line| line.ends_with("refused Pipelined"));
        if outcome != split && !timed(&outcome) && !timed(&split) {
            let texts = |outcome: &Outcome| {
                [&outcome.to_app, &outcome.to_upstream].map(|bytes| bytes.escape_ascii().to_string())
            };
            panic!(
                "the outcome depends on how the bytes were split:\n{:#?}\n{:#?}\nwhole {:#?} {:?} {:?} {:#?}\nsplit {:#?} {:?} {:?} {:#?}",
                steps.iter().map(show).collect::<Vec<_>>(),
                choices,
                texts(&outcome),
                outcome.app,
                outcome.upstream,
                outcome.log,
                texts(&split),
                split.app,
                split.upstream,
                split.log,
            );
        }
    }
    split
}

fn show(step: &Step) -> String {
    match step {
        Step::App(bytes) => format!("app {}", bytes.escape_ascii()),
        Step::Upstream(bytes) => format!("upstream {}", bytes.escape_ascii()),
        other => format!("{other:?}"),
    }
}

fn joined(steps: &[Step]) -> Vec<Step> {
    let mut whole: Vec<Step> = Vec::new();
    for step in steps {
        match (whole.last_mut(), step) {
            (Some(Step::App(before)), Step::App(bytes)) | (Some(Step::Upstream(before)), Step::Upstream(bytes)) => {
                before.extend_from_slice(bytes);
            }
            _ => whole.push(step.clone()),
        }
    }
    whole
}

/// One side of a link, as the driver sees it: what has arrived and was not read, and how it ended.
#[derive(Default)]
pub(super) struct Socket {
    pub(super) unread: VecDeque<Vec<u8>>,
    end: Option<PeerEnd>,
    told: bool,
    /// Everything that came.
    pub(super) all: Vec<u8>,
    longest: usize,
}

impl Socket {
    fn arrives(&mut self, bytes: &[u8]) {
        if self.end.is_none() && !bytes.is_empty() {
            self.unread.push_back(bytes.to_vec());
            self.all.extend_from_slice(bytes);
            self.longest = self.longest.max(bytes.len());
        }
    }
}

/// A link under way.
pub(super) struct Driver<'a, E> {
    pub(super) link: E,
    pub(super) decide: Contract<'a>,
    pub(super) app: Socket,
    pub(super) upstream: Socket,
    pub(super) to_app: Vec<u8>,
    pub(super) to_upstream: Vec<u8>,
}

fn is_heard(fate: Fate) -> bool {
    matches!(fate, Fate::Open | Fate::Fin)
}

impl<E: Bounded> Driver<'_, E> {
    /// Carries on until nothing more happens by itself.
    fn settle(&mut self) {
        loop {
            let out = self.link.output();
            self.to_app.extend_from_slice(&out.to_app.split());
            self.to_upstream.extend_from_slice(&out.to_upstream.split());
            let (app, upstream) = (is_heard(out.app), is_heard(out.upstream));
            let moved =
                (app && !self.app.told && self.hear_app()) || (upstream && !self.upstream.told && self.hear_upstream());
            if !moved {
                break;
            }
            self.link.check_bounds(self.app.longest.max(self.upstream.longest));
        }
    }

    fn hear_app(&mut self) -> bool {
        if !self.link.wants_app() && !self.link.minds_close() {
            return false;
        }
        if self.link.wants_app()
            && let Some(bytes) = self.app.unread.pop_front()
        {
            self.link.app_bytes(&bytes, &mut self.decide);
            return true;
        }
        let Some(end) = self.app.end else { return false };
        self.app.told = true;
        self.link.app_end(end, &mut self.decide);
        true
    }

    fn hear_upstream(&mut self) -> bool {
        if !self.link.wants_upstream() {
            return false;
        }
        if let Some(bytes) = self.upstream.unread.pop_front() {
            self.link.upstream_bytes(&bytes, &mut self.decide);
            return true;
        }
        let Some(end) = self.upstream.end else { return false };
        self.upstream.told = true;
        self.link.upstream_end(end, &mut self.decide);
        true
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::App(bytes) => self.app.arrives(bytes),
            Step::Upstream(bytes) => self.upstream.arrives(bytes),
            Step::AppEnd(how) => self.app.end = self.app.end.or(Some(*how)),
            Step::UpstreamEnd(how) => self.upstream.end = self.upstream.end.or(Some(*how)),
            Step::Resume(which, choice) => {
                let waiting = &self.decide.waiting;
                let stream = match waiting.get(usize::from(*which) % (waiting.len() + 1)) {
                    Some(stream) => *stream,
                    None => u64::from(which % 8),
                };
                self.decide.added += 400;
                let resume = resume(*choice);
                self.decide.acted |= matches!(resume, Resume::Act(_));
                self.link.resume(StreamId(stream), resume, &mut self.decide);
            }
        }
        self.settle();
    }
}

fn play<E: Bounded>(steps: &[Step], choices: &[u8], finish: &impl Fn(&Driver<'_, E>)) -> Outcome {
    let mut driver = Driver {
        link: E::fresh(),
        decide: Contract::new(choices),
        app: Socket::default(),
        upstream: Socket::default(),
        to_app: Vec::new(),
        to_upstream: Vec::new(),
    };
    for step in steps {
        driver.take(step);
    }
    finish(&driver);
    let (app, upstream) = (driver.link.output().app, driver.link.output().upstream);
    let Driver { mut link, mut decide, to_app, to_upstream, .. } = driver;
    link.app_end(PeerEnd::Broken, &mut decide);
    assert_eq!(decide.open().count(), 0, "every exchange is closed when the link is gone");
    link.check_gone();
    Outcome { to_app, to_upstream, app, upstream, log: decide.log }
}
