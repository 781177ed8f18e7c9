//! Which execution and which parent a request belongs to (design §3.1).
//!
//! [`inbound`] and [`outbound`] are the two ladders. They only read: what they decide on is the request as it arrived and
//! [`Calls`], the calls this process has open or had open within the linger time. Invariant: no step ever picks one of
//! two executions. A correlation id that two executions carry, or that an unassociated call carries, says nothing; two
//! executions seen here recently, or an unassociated call that came in, leave nothing to the step `exclusive`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use aftershock_core::hop::{Hop, HopError, Keyring};
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::span::Association;
use aftershock_core::w3c::Member;
use foldhash::HashMap;
use smallvec::SmallVec;

use super::counters::{Counters, Ignored};
use super::ended::{Ended, Past};
use super::execution::Key;
use super::forgotten::Forgotten;
use super::header::{Arriving, Correlation, Digest, HopLine};

/// Most ended calls that are remembered; the oldest are forgotten first, even within the linger time.
pub(crate) const MAX_RECENT: usize = 12_288;

/// Whether a call came in, so that it can be a parent, or went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    In,
    Out,
}

/// A call that this process has or had open.
#[derive(Debug)]
pub(super) struct Known {
    /// None: it belongs to no execution.
    pub(super) key: Option<Key>,
    /// Its correlation ids.
    pub(super) ids: SmallVec<[Digest; 2]>,
}

impl Known {
    /// Whether it tells that an execution is about here, or that a call came in of which nobody knows whose it is.
    fn is_seen(&self, direction: Direction) -> bool {
        direction == Direction::In || self.key.is_some()
    }
}

/// Calls of which only the number counts, and the one that is left where there is one.
#[derive(Debug, Default)]
struct Tally {
    count: u32,
    /// Exclusive or of their ids: what is put in twice is out again, and what remains of one is its id.
    ids: u64,
}

impl Tally {
    fn put(&mut self, call: CallId) {
        self.count += 1;
        self.ids ^= call.0;
    }

    fn take(&mut self, call: CallId) {
        self.count -= 1;
        self.ids ^= call.0;
    }

    fn only(&self) -> Option<CallId> {
        (self.count == 1).then_some(CallId(self.ids))
    }
}

/// The calls that carry one correlation id. There is one of these for every recent call, so it is small where all
/// belong to one execution.
#[derive(Debug)]
struct Carriers {
    /// An execution, and how many calls of it; `None` for calls that belong to none.
    first: (Option<Key>, u32),
    /// The same of other executions, if there are any.
    #[expect(clippy::box_collection, reason = "there is none in nearly all, and all are kept")]
    others: Option<Box<BTreeMap<Option<Key>, u32>>>,
    /// Inbound calls that are open.
    open: Tally,
    /// Inbound calls that have ended.
    ended: Tally,
}

/// What a correlation id says.
#[derive(Debug, PartialEq, Eq)]
struct Correlated {
    key: Key,
    parent: Option<CallId>,
    step: Association,
}

impl Carriers {
    fn new(key: Option<Key>) -> Self {
        Carriers { first: (key, 0), others: None, open: Tally::default(), ended: Tally::default() }
    }

    fn put(&mut self, key: Option<Key>) {
        match &mut self.first {
            (first, count) if *first == key => *count += 1,
            _ => *self.others.get_or_insert_default().entry(key).or_default() += 1,
        }
    }

    /// Whether any are left.
    fn take(&mut self, key: Option<Key>) -> bool {
        if self.first.0 == key {
            self.first.1 -= 1;
            if self.first.1 == 0 {
                let Some(next) = self.others.as_mut().and_then(|others| others.pop_first()) else { return false };
                self.first = next;
            }
        } else if let Some(others) = &mut self.others
            && let Some(count) = others.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                others.remove(&key);
            }
        }
        self.others.take_if(|others| others.is_empty());
        true
    }

    /// Whether calls of this execution, or of none, are among them.
    fn has(&self, key: Option<Key>) -> bool {
        self.first.0 == key || self.others.as_ref().is_some_and(|others| others.contains_key(&key))
    }

    fn says(&self) -> Option<Correlated> {
        let key = self.first.0.filter(|_| self.others.is_none())?;
        let (parent, step) = match (self.open.count, self.ended.count) {
            // Only calls that went out carry it: their execution is known, the call above them is not.
            (0, 0) => (None, Association::Ambiguous),
            (0, _) => (self.ended.only(), Association::Detached),
            (1, _) => (self.open.only(), Association::Correlated),
            _ => (None, Association::Ambiguous),
        };
        Some(Correlated { key, parent, step })
    }
}

/// Calls open here, and those that ended within the linger time.
#[derive(Debug)]
pub(crate) struct Calls {
    open: HashMap<(CallId, Direction), Known>,
    ended: Ended,
    carriers: HashMap<Digest, Carriers>,
    /// As if all calls carried one id more: what the step `exclusive` asks. Kept only where that is configured.
    recent: Option<Carriers>,
    exclusive: bool,
    /// When the last of those ended that were forgotten before their time.
    forgotten: Option<Instant>,
    /// Their correlation ids, where nobody remembers the execution any more.
    forgotten_ids: Forgotten,
    linger: Duration,
    /// Most ended calls that are remembered.
    pub(crate) most: usize,
}

impl Calls {
    /// `exclusive` is whether [`Calls::only`] will be asked.
    pub(crate) fn new(linger: Duration, exclusive: bool) -> Self {
        Calls {
            open: HashMap::default(),
            ended: Ended::default(),
            carriers: HashMap::default(),
            recent: None,
            exclusive,
            forgotten: None,
            forgotten_ids: Forgotten::new(linger),
            linger,
            most: MAX_RECENT,
        }
    }

    /// An inbound call begins.
    pub(crate) fn begin_inbound(&mut self, call: CallId, key: Option<Key>, correlations: &[Correlation]) {
        self.begin(call, Direction::In, key, correlations);
    }

    /// An outbound call that stands on the member, or on nothing, begins: the correlation ids beside it belong to its
    /// execution, or to none.
    pub(crate) fn begin_outbound(&mut self, call: CallId, key: Option<Key>, correlations: &[Correlation]) {
        if !correlations.is_empty() || (self.exclusive && key.is_some()) {
            self.begin(call, Direction::Out, key, correlations);
        }
    }

    fn begin(&mut self, call: CallId, direction: Direction, key: Option<Key>, correlations: &[Correlation]) {
        let known = Known { key, ids: correlations.iter().map(|id| id.digest()).collect() };
        let put = |carriers: &mut Carriers| {
            carriers.put(key);
            if direction == Direction::In {
                carriers.open.put(call);
            }
        };
        for id in &known.ids {
            put(self.carriers.entry(*id).or_insert_with(|| Carriers::new(key)));
        }
        if self.exclusive && known.is_seen(direction) {
            put(self.recent.get_or_insert_with(|| Carriers::new(key)));
        }
        self.open.insert((call, direction), known);
    }

    /// An inbound call ends; it stays known for the linger time.
    pub(crate) fn end_inbound(&mut self, call: CallId, now: Instant) {
        self.end(call, Direction::In, now);
    }

    /// An outbound call ends.
    pub(crate) fn end_outbound(&mut self, call: CallId, now: Instant) {
        self.end(call, Direction::Out, now);
    }

    fn end(&mut self, call: CallId, direction: Direction, now: Instant) {
        let Some(known) = self.open.remove(&(call, direction)) else { return };
        if direction == Direction::In {
            let end = |carriers: &mut Carriers| {
                carriers.open.take(call);
                carriers.ended.put(call);
            };
            known.ids.iter().for_each(|id| self.carriers.get_mut(id).into_iter().for_each(end));
            self.recent.iter_mut().for_each(end);
        }
        if self.ended.len() >= self.most {
            self.forgotten = self.ended.first();
            self.forget_oldest(Some(now));
        }
        self.ended.push(Past { at: now, call, direction, known });
    }

    /// Forget what ended longer ago than the linger time.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.ended.first().is_some_and(|at| now.saturating_duration_since(at) > self.linger) {
            self.forget_oldest(None);
        }
        self.forgotten_ids.expire(now);
        self.forgotten = self.forgotten.filter(|at| now.saturating_duration_since(*at) <= self.linger);
    }

    /// Forget the call that ended first; `early`: now, though its time has not come.
    fn forget_oldest(&mut self, early: Option<Instant>) {
        let Some(Past { call, direction, known, .. }) = self.ended.pop() else { return };
        let take = |carriers: &mut Carriers| {
            if direction == Direction::In {
                carriers.ended.take(call);
            }
            carriers.take(known.key)
        };
        for id in &known.ids {
            let Some(carriers) = self.carriers.get_mut(id) else { continue };
            let left = take(carriers);
            if let Some(now) = early.filter(|_| !(left && carriers.has(known.key))) {
                self.forgotten_ids.put(*id, now);
            }
            if !left {
                self.carriers.remove(id);
            }
        }
        if known.is_seen(direction) && self.recent.as_mut().is_some_and(|carriers| !take(carriers)) {
            self.recent = None;
        }
    }

    /// The inbound call with this id, and whether it is open.
    fn inbound(&self, call: CallId) -> Option<(&Known, bool)> {
        let open = self.open.get(&(call, Direction::In)).map(|known| (known, true));
        open.or_else(|| Some((self.ended.get(call, Direction::In)?, false)))
    }

    /// Whether `call` came in here and is remembered.
    pub(crate) fn came_in(&self, call: CallId) -> bool {
        self.inbound(call).is_some()
    }

    /// The inbound call that `member` names, and whether it is open.
    fn parent(&self, member: &Member) -> Option<(Key, bool)> {
        let (known, open) = self.inbound(member.call)?;
        let key = known.key.filter(|key| *key == Key::of(member))?;
        Some((key, open))
    }

    /// What the correlation ids of a request say together. Two that name two executions say nothing.
    fn correlated(&self, correlations: &[Correlation]) -> Option<Correlated> {
        let trusted = |id: &Digest| !self.forgotten_ids.may_have(*id);
        let says = |id| self.carriers.get(&id).and_then(Carriers::says);
        let mut all = correlations.iter().map(|id| id.digest()).filter(trusted).filter_map(says);
        let first = all.next()?;
        let keys: BTreeSet<Key> = all.map(|other| other.key).chain([first.key]).collect();
        (keys.len() == 1).then_some(first)
    }

    /// The only execution seen here recently, with no unassociated inbound call about.
    fn only(&self) -> Option<Correlated> {
        let all = self.recent.as_ref().filter(|_| self.forgotten.is_none())?;
        let Correlated { key, parent, step } = all.says()?;
        let step = if step == Association::Detached { step } else { Association::Exclusive };
        Some(Correlated { key, parent, step })
    }
}

/// What a request that came in is.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// A call of a caller with a sidecar, not seen here before.
    Tagged {
        /// Its identity.
        member: Member,
        /// What came with it.
        hop: Box<Hop>,
    },
    /// A call that its caller's sidecar could not associate.
    Marked,
    /// A call through a hop without sidecar.
    Relayed {
        /// The call above that hop.
        member: Member,
        /// A newer sidecar's header came along: passes may have been missed.
        newer: bool,
    },
    /// The beginning of an execution.
    Entry {
        /// Zero for ordinary traffic.
        token: Token,
        /// Zero for a new one, else declared by the client.
        execution: ExecutionId,
    },
    /// A call that was seen here before: an entry of no round, whatever else it looks like.
    Replay,
}

const ORDINARY: Inbound = Inbound::Entry { token: Token(0), execution: ExecutionId(0) };

/// The ladder of a request that came in. `seen` says whether a call came in here before, `takes` whether a token is one
/// that the controller named.
pub(crate) fn inbound(
    arriving: &Arriving<'_>,
    keys: &Keyring,
    seen: impl FnOnce(Key, CallId) -> bool,
    takes: impl FnOnce(Token) -> bool,
    counters: &mut Counters,
) -> Inbound {
    let member = match arriving.member {
        Some(Err(error)) => {
            counters.ignored(error.into());
            None
        }
        Some(Ok(member)) => Some(member),
        None => None,
    };
    let (hop, newer) = match read_hop(arriving.hop, keys, arriving.member_text()) {
        Ok(hop) => (hop, false),
        Err((ignored, newer)) => {
            counters.ignored(ignored);
            (None, newer)
        }
    };
    if let Some(hop) = hop {
        match member {
            Some(member) if hop.call == member.call && !member.call.is_zero() && !member.execution.is_zero() => {
                if seen(Key::of(&member), member.call) {
                    counters.ignored(Ignored::Replay);
                    return Inbound::Replay;
                }
                return Inbound::Tagged { member, hop: Box::new(hop) };
            }
            None if hop.call.is_zero() && arriving.member.is_none() => return Inbound::Marked,
            _ => counters.ignored(Ignored::HopUnexpected),
        }
    }
    let Some(member) = member else { return ORDINARY };
    if member.token.is_zero() {
        counters.ignored(Ignored::MemberUntagged);
        return ORDINARY;
    }
    if !takes(member.token) {
        counters.ignored(Ignored::TokenUnknown);
        return ORDINARY;
    }
    if member.call.is_zero() {
        return Inbound::Entry { token: member.token, execution: member.execution };
    }
    if member.execution.is_zero() {
        counters.ignored(Ignored::MemberMalformed);
        return ORDINARY;
    }
    Inbound::Relayed { member, newer }
}

/// Read a hop header beside `member`. An error says what to count, and whether a newer sidecar wrote it.
pub(crate) fn read_hop(line: HopLine<'_>, keys: &Keyring, member: &str) -> Result<Option<Hop>, (Ignored, bool)> {
    match line {
        HopLine::Absent => Ok(None),
        HopLine::Several => Err((Ignored::HopMalformed, false)),
        HopLine::One(value) => match Hop::decode(value, keys, member) {
            Ok(hop) => Ok(Some(hop)),
            Err(error) => Err((Ignored::from(&error), matches!(error, HopError::Newer(_)))),
        },
    }
}

/// What a request that goes out is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outbound {
    /// A client of a round beside this sidecar.
    Client,
    /// A call of an execution.
    Of {
        /// Which.
        key: Key,
        /// The call whose handler sent it, if that is known.
        parent: Option<CallId>,
        /// The step it stands on.
        step: Association,
    },
    /// A call of no execution that is known.
    Unassociated,
}

/// What is configured about the ladder of requests that go out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ladder {
    /// Members of calls unknown here are taken, where their token is live.
    pub(crate) accept_relayed: bool,
}

/// The ladder of a request that goes out. `takes` says whether a token is one that the controller named, `exclusive`
/// which round's only execution may claim it.
pub(crate) fn outbound(
    arriving: &Arriving<'_>,
    calls: &Calls,
    ladder: Ladder,
    takes: impl Fn(Token) -> bool,
    exclusive: impl FnOnce() -> Option<Token>,
    counters: &mut Counters,
) -> Outbound {
    if arriving.client().is_some_and(|client| takes(client.token)) {
        return Outbound::Client;
    }
    match arriving.member {
        None => {}
        Some(Err(error)) => counters.ignored(error.into()),
        Some(Ok(member)) => {
            let checks = arriving.agrees(&member);
            match calls.parent(&member).filter(|_| checks) {
                Some((key, open)) => {
                    let step = if open { Association::Exact } else { Association::Detached };
                    return Outbound::Of { key, parent: Some(member.call), step };
                }
                // A call that came in here is no call of elsewhere, whatever its check.
                None if ladder.accept_relayed
                    && checks
                    && !calls.came_in(member.call)
                    && !member.call.is_zero()
                    && !member.execution.is_zero()
                    && takes(member.token) =>
                {
                    return Outbound::Of { key: Key::of(&member), parent: None, step: Association::Relayed };
                }
                None => counters.ignored(Ignored::MemberStale),
            }
        }
    }
    // A member that says another execution is no claim of that one, however old, and none of the only one either.
    let names = |key: Key| !matches!(arriving.member, Some(Ok(member)) if Key::of(&member) != key);
    let claimed = || calls.only().filter(|only| names(only.key) && exclusive() == Some(only.key.token));
    match calls.correlated(&arriving.correlations).or_else(claimed) {
        Some(Correlated { key, parent, step }) => Outbound::Of { key, parent, step },
        None => Outbound::Unassociated,
    }
}
