//! The life of an exchange as [`crate::exchange`] promises it, checked call by call, and verdicts taken from an input.
//!
//! A verdict depends on the exchange and the point alone, not on how many calls came before: so two runs that differ only
//! in how bytes were split must be told the same.

use std::collections::BTreeMap;

use crate::exchange::{
    Act, Closed, Edit, Edits, Fields, Interceptor, Made, Mark, Marks, Part, Refusal, RequestHead, ResponseHead, Resume,
    StreamId, Tail, Verdict,
};

/// How many bytes of an input decide.
pub(super) const CHOICES: usize = 24;

/// The longest body that an answer made here has.
const MADE: usize = 300;

/// An exchange, as far as it has come.
#[derive(Debug, Default)]
struct Life {
    responded: bool,
    ended: bool,
    request_ended: bool,
    stamped: Vec<Part>,
    refused: usize,
    marks: Vec<Mark>,
    ends_with_head: bool,
    closed: Option<Closed>,
    late: bool,
}

/// Checks every call and answers it.
#[derive(Debug)]
pub(super) struct Contract<'a> {
    choices: &'a [u8],
    lives: BTreeMap<u64, Life>,
    /// What was called, for comparing runs.
    pub(super) log: Vec<String>,
    /// Bytes that edits and made answers may have added.
    pub(super) added: usize,
    /// Exchanges with a message that is parked or dropped.
    pub(super) waiting: Vec<u64>,
    /// A fault was asked for with a resume, though perhaps nothing waited for it.
    pub(super) acted: bool,
}

impl<'a> Contract<'a> {
    /// Everything passes unless there are `choices`.
    pub(super) fn new(choices: &'a [u8]) -> Self {
        Contract { choices, lives: BTreeMap::new(), log: Vec::new(), added: 0, waiting: Vec::new(), acted: false }
    }

    pub(super) fn is_transparent(&self) -> bool {
        self.choices.is_empty()
    }

    pub(super) fn open(&self) -> impl Iterator<Item = u64> + '_ {
        self.lives.iter().filter(|(_, life)| life.closed.is_none()).map(|(stream, _)| *stream)
    }

    fn life(&mut self, stream: StreamId) -> &mut Life {
        let life = self.lives.get_mut(&stream.0).unwrap_or_else(|| panic!("{stream:?} was never announced"));
        assert!(life.closed.is_none(), "a call for {stream:?}, which is closed");
        life
    }

    fn choice(&self, stream: StreamId, point: usize) -> u8 {
        if self.choices.is_empty() { 0 } else { self.choices[(stream.0 as usize * 5 + point) % self.choices.len()] }
    }

    fn verdict(&mut self, stream: StreamId, point: usize) -> Verdict {
        let choice = self.choice(stream, point);
        let verdict = match choice % 16 {
            0..=6 => Verdict::Pass,
            7..=9 => Verdict::Park,
            10 => Verdict::Withhold { limit: usize::from(choice / 16) * 3 },
            11 | 12 => Verdict::Watch(self.marks(choice / 16)),
            _ => Verdict::Act(act(choice / 16)),
        };
        match &verdict {
            Verdict::Park | Verdict::Act(_) => self.waiting.push(stream.0),
            Verdict::Watch(marks) if point == 1 => self.life(stream).marks = marks.to_vec(),
            _ => {}
        }
        self.added += MADE;
        verdict
    }

    fn marks(&self, choice: u8) -> Marks {
        let (first, second) = (choice % 4, choice / 4);
        let marks = [Mark::Bytes(first.into()), Mark::Message(u32::from(second)), Mark::Bytes(u64::from(first) + 7)];
        Marks::from_slice(&marks)
    }
}

/// One of the things that an editor can be asked to do.
pub(super) fn act(choice: u8) -> Act {
    match choice % 8 {
        0 | 1 => Act::Drop,
        2 => Act::Reset { code: 2, connection: false },
        3 => Act::Reset { code: 8, connection: true },
        4 => Act::Answer(Box::new(made(503, &[("x-made", "yes")], b"no", false))),
        5 => {
            Act::Answer(Box::new(made(200, &[("content-type", "application/grpc"), ("grpc-status", "14")], b"", true)))
        }
        6 => Act::Answer(Box::new(made(204, &[], b"", false))),
        _ => Act::Answer(Box::new(made(500, &[("x-made", "a\r\nb")], &[b'm'; 200], false))),
    }
}

fn made(status: u16, fields: &[(&str, &str)], body: &'static [u8], grpc: bool) -> Made {
    let fields: Vec<_> = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let trailers = grpc.then(|| fields.clone());
    Made { status, fields, body: bytes::Bytes::from_static(body), trailers }
}

/// One of the ways in which what waits may go on.
pub(super) fn resume(choice: u8) -> Resume {
    match choice % 8 {
        0..=2 => Resume::Pass,
        3 => Resume::Close,
        _ => Resume::Act(act(choice / 8)),
    }
}

fn text(fields: &Fields<'_>) -> String {
    fields.0.iter().map(|(name, value)| format!("{}={}&", name.escape_ascii(), value.escape_ascii())).collect()
}

impl Interceptor for Contract<'_> {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        assert!(!head.method.is_empty());
        assert!(self.lives.insert(stream.0, Life::default()).is_none(), "{stream:?} is announced once");
        let RequestHead { method, path, authority, ends, .. } = head;
        self.log.push(format!("{stream:?} {method} {path} {authority} {} {ends}", text(&head.fields)));
        self.life(stream).request_ended = head.ends;
        self.verdict(stream, 0)
    }

    fn request_end(&mut self, stream: StreamId, trailers: Option<&Fields<'_>>) {
        self.log.push(format!("{stream:?} request ends {:?}", trailers.map(text)));
        let life = self.life(stream);
        assert!(!life.request_ended, "{stream:?}: a request ends once, and not behind a head that ends it");
        life.request_ended = true;
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        assert!((200..=999).contains(&head.status), "{}", head.status);
        self.log.push(format!("{stream:?} {} {} {}", head.status, text(&head.fields), head.ends));
        let life = self.life(stream);
        assert!(!life.responded, "{stream:?} has one final response");
        (life.responded, life.ended, life.ends_with_head) = (true, head.ends, head.ends);
        self.verdict(stream, 1)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        self.log.push(format!("{stream:?} {mark:?}"));
        let life = self.life(stream);
        assert!(life.responded);
        let at = life.marks.iter().position(|known| *known == mark);
        life.marks.remove(at.unwrap_or_else(|| panic!("{stream:?}: {mark:?} was not asked for, or is reached again")));
        self.verdict(stream, 2)
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        let Tail { trailers, body, messages } = tail;
        self.log.push(format!("{stream:?} ends {:?} {body:?} {messages:?}", trailers.as_ref().map(text)));
        let life = self.life(stream);
        assert!(life.responded && !life.ended, "{stream:?}: a response ends once, behind its head");
        life.ended = true;
        self.verdict(stream, 3)
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        self.log.push(format!("{stream:?} stamp {part:?}"));
        let life = self.life(stream);
        assert!(!life.stamped.contains(&part), "{stream:?}: {part:?} leaves once");
        life.stamped.push(part);
        match self.choice(stream, 4) % 8 {
            1 | 2 => {
                self.added += 40;
                [Edit::Set("aft", "stamped".into())].into_iter().collect()
            }
            3 => [Edit::Remove("t"), Edit::Remove("x-gone")].into_iter().collect(),
            _ => Edits::new(),
        }
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        self.log.push(format!("{stream:?} refused {why:?}"));
        let asked = !self.is_transparent() || why == Refusal::Goaway || (self.acted && why == Refusal::TooLate);
        assert!(asked, "nothing was asked for");
        let life = self.life(stream);
        life.refused += 1;
        assert!(life.refused < 64, "{stream:?}: refused over and over");
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.log.push(format!("{stream:?} {how:?}"));
        self.life(stream).closed = Some(how);
        self.waiting.retain(|waiting| *waiting != stream.0);
    }

    fn late(&mut self, stream: StreamId, _: &Fields<'_>) {
        self.log.push(format!("{stream:?} late"));
        let life = self.lives.get_mut(&stream.0).unwrap_or_else(|| panic!("{stream:?} was never announced"));
        assert_eq!(life.closed, Some(Closed::ByApplication), "late is what was given up");
        assert!(!std::mem::replace(&mut life.late, true), "{stream:?}: late once");
    }
}
