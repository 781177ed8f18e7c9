//! When a rule fires (design §3.4, §3.5): numbering of passes and the decision on one message.
//!
//! [`judge`] is a pure function of the rule, how far it got in the execution, the evidence before the message was
//! counted, and the message. With one registered instance of the caller, number and decision are one atomic step here.
//! With more, an arbiter numbers the passes, grants the shots and judges atoms on the target's own event by its count of
//! passes: [`judge_here`] is what remains for this sidecar.

use aftershock_core::event::{CountedEvent, Event, EventId, Outcome};
use aftershock_core::evidence::Evidence;
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Atom, Occurrence, Phase, Rule, Side, StreamPoint};
use aftershock_core::span::PassedBy;

use crate::exchange::Mark;

/// A rule as it is armed here.
#[derive(Debug)]
pub(crate) struct Armed {
    pub(crate) rule: Rule,
    /// How often it fired in the round.
    pub(crate) injections: u32,
    /// The atoms of the guard, in its order.
    atoms: Vec<Threshold>,
}

/// An atom, with what evidence calls its event.
#[derive(Debug)]
struct Threshold {
    event: EventId,
    count: u64,
    /// The arbiter judges it.
    arbitrated: bool,
}

/// How far a rule got in one execution.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    passes: u32,
    /// It fired, or can no longer.
    pub(crate) ended: bool,
}

impl Progress {
    /// The number of the pass that arrives now, from 1.
    pub(crate) fn number(&mut self) -> u32 {
        self.passes = self.passes.saturating_add(1);
        self.passes
    }

    /// The arbiter gave a pass this number: later passes have higher ones.
    pub(crate) fn learn(&mut self, number: u32) {
        self.passes = self.passes.max(number);
    }
}

/// The instants at which messages are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The request head.
    Request,
    /// The response head, for rules that say `at: head`.
    Head,
    /// A place in the body, for rules that name it.
    Inside(Mark),
    /// The frame with the outcome.
    Outcome,
}

impl Frame {
    pub(crate) fn phase(self) -> Phase {
        match self {
            Frame::Request => Phase::Request,
            Frame::Head | Frame::Inside(_) | Frame::Outcome => Phase::Response,
        }
    }
}

/// What tells a call from others, for targets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) side: Side,
    pub(crate) api: &'a Api,
    /// Unknown at an entry and behind a hop without sidecar.
    pub(crate) caller: Option<&'a Service>,
}

/// What another sidecar can say about the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Witness {
    /// There is none: an entry Api, or a callee without sidecar.
    Absent,
    /// What the callee's sidecar said, if anything.
    Callee(Option<Outcome>),
}

/// The message at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    /// None for requests and where it is not known yet.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) witness: Witness,
    /// It has left, whole or in part, although it was to be kept back: nothing can be done with it.
    pub(crate) released: Option<Released>,
}

/// Why a response has left before its outcome was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// It was larger than what is kept back.
    Size,
    /// It is a stream: a second message came, or its head had gone before.
    Stream,
}

impl From<Released> for PassedBy {
    fn from(released: Released) -> Self {
        match released {
            Released::Size => PassedBy::Size,
            Released::Stream => PassedBy::Stream,
        }
    }
}

/// Where the message is and what is known there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point<'a> {
    /// The caller's service, or the callee's where the caller has none: always the one beside this sidecar.
    pub(crate) service: &'a Service,
    /// Evidence before the message is counted.
    pub(crate) evidence: &'a Evidence,
    /// The execution was first seen when the rules were complete here and nothing had been evicted.
    pub(crate) whole: bool,
    /// Another rule already faulted this call.
    pub(crate) faulted: bool,
    /// The round was disarmed: nothing is faulted any more.
    pub(crate) disarmed: bool,
}

/// What to do with a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The fault.
    Fire,
    /// Park it until the guard holds.
    Hold,
    /// Let it go on.
    PassBy(PassedBy),
}

impl Armed {
    /// `events` are those of the round, among them those of the guard.
    pub(crate) fn new(rule: Rule, events: &[CountedEvent]) -> Self {
        let is_own = |event: &Event| events.iter().any(|counted| counted.event == *event && rule.is_own_event(counted));
        let threshold = |atom: &Atom| {
            let event = atom.event();
            Threshold { event: event.id(), count: atom.count, arbitrated: rule.arbitrated && is_own(&event) }
        };
        let atoms = rule.tfic.guard.after.iter().map(threshold).collect();
        Armed { rule, injections: 0, atoms }
    }

    /// Whether a message of `subject` at `frame` is a pass. At the callee only calls without known caller are: the
    /// others are passes at their caller.
    pub(crate) fn takes(&self, subject: Subject<'_>, frame: Frame) -> bool {
        let target = &self.rule.tfic.target;
        let frame_fits = match (target.phase, target.at) {
            (Phase::Request, _) => frame == Frame::Request,
            (Phase::Response, None) => frame == Frame::Outcome,
            (Phase::Response, Some(StreamPoint::Head)) => frame == Frame::Head,
            (Phase::Response, Some(StreamPoint::Message(n))) => frame == Frame::Inside(Mark::Message(n)),
            (Phase::Response, Some(StreamPoint::Bytes(n))) => frame == Frame::Inside(Mark::Bytes(n)),
        };
        let caller_fits = match subject.side {
            Side::Caller => target.caller.is_none() || target.caller.as_ref() == subject.caller,
            Side::Callee => subject.caller.is_none(),
        };
        frame_fits && caller_fits && self.rule.side == subject.side && self.rule.apis.contains(subject.api)
    }

    /// The place in a body where it acts, if it does.
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self.rule.tfic.target.at? {
            StreamPoint::Head => None,
            StreamPoint::Message(n) => Some(Mark::Message(n)),
            StreamPoint::Bytes(n) => Some(Mark::Bytes(n)),
        }
    }

    /// Whether it may still fire in the round.
    pub(crate) fn has_shots(&self) -> bool {
        self.injections < self.rule.tfic.max_injections.limit()
    }

    /// Whether it wants a numbered pass while numbers are in doubt here.
    fn is_blocked(&self, point: Point<'_>) -> bool {
        matches!(self.rule.tfic.target.k, Occurrence::Number(_)) && point.evidence.gaps().blocks_number(point.service)
    }

    /// Whether the next pass, or one after it, can be faulted, as far as is known here.
    pub(crate) fn can_fire(&self, progress: Progress, point: Point<'_>) -> bool {
        let number_can_come = match self.rule.tfic.target.k {
            Occurrence::First => true,
            Occurrence::Number(k) => progress.passes < k && !self.is_blocked(point),
        };
        self.has_shots() && !progress.ended && point.whole && !point.faulted && !point.disarmed && number_can_come
    }
}

/// Decide on the pass with number `k`.
pub(crate) fn judge(armed: &Armed, progress: Progress, k: u32, point: Point<'_>, message: Message) -> Judgement {
    // Under a gap the count itself is in doubt, so nothing is said of a number that seems to be another.
    if armed.is_blocked(point) {
        return Judgement::PassBy(PassedBy::NumberBlocked);
    }
    if let Occurrence::Number(wanted) = armed.rule.tfic.target.k
        && wanted != k
    {
        return Judgement::PassBy(PassedBy::Number);
    }
    if point.whole && (progress.ended || !armed.has_shots()) {
        return Judgement::PassBy(PassedBy::Spent);
    }
    now(armed, point, message)
}

/// Decide on a pass as far as this sidecar can where an arbiter numbers and grants: [`Judgement::Fire`] if it would fire
/// on a grant.
pub(crate) fn judge_here(armed: &Armed, point: Point<'_>, message: Message) -> Judgement {
    if armed.is_blocked(point) {
        return Judgement::PassBy(PassedBy::NumberBlocked);
    }
    now(armed, point, message)
}

/// Why the number of a pass is none, or none that fits: the arbiter said that it is another.
pub(crate) fn misses(armed: &Armed, point: Point<'_>) -> PassedBy {
    if armed.is_blocked(point) { PassedBy::NumberBlocked } else { PassedBy::Number }
}

/// Whether a message that may be faulted can be, now.
fn now(armed: &Armed, point: Point<'_>, message: Message) -> Judgement {
    match (in_time(armed, point, message), message.released) {
        (Judgement::Fire | Judgement::Hold, _) if point.disarmed => Judgement::PassBy(PassedBy::RoundOver),
        (Judgement::Fire | Judgement::Hold, Some(released)) => Judgement::PassBy(released.into()),
        (judgement, _) => judgement,
    }
}

fn in_time(armed: &Armed, point: Point<'_>, message: Message) -> Judgement {
    let tfic = &armed.rule.tfic;
    if !point.whole {
        return Judgement::PassBy(PassedBy::NumberBlocked);
    }
    if point.faulted {
        return Judgement::PassBy(PassedBy::Spent);
    }
    let witnessed = match message.witness {
        Witness::Absent => true,
        Witness::Callee(outcome) => outcome == Some(Outcome::Ok),
    };
    let post_effect = !tfic.target.post_effect || (message.outcome == Some(Outcome::Ok) && witnessed);
    if !tfic.target.outcome.admits(message.outcome) || !post_effect {
        return Judgement::PassBy(PassedBy::Outcome);
    }
    let is_open = |atom: &Threshold| !atom.arbitrated && point.evidence.count(atom.event) < atom.count;
    let open: Vec<usize> = armed.atoms.iter().enumerate().filter(|(_, atom)| is_open(atom)).map(|(i, _)| i).collect();
    if open.is_empty() {
        return Judgement::Fire;
    }
    if tfic.hold.is_some() {
        return Judgement::Hold;
    }
    Judgement::PassBy(match point.evidence.gaps().is_empty() {
        true => PassedBy::GuardFalse(open),
        false => PassedBy::GuardUnknown(open),
    })
}
