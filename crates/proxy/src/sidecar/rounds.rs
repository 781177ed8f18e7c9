//! Live tokens and their leases (design §3.6).
//!
//! A token is live here from the acknowledged arming until the controller ends the round or its lease runs out. Disarming
//! ends what the rules do, not the token: passes that come then are still recorded. A token that was live elsewhere before
//! this sidecar registered is *late*: its executions are relayed and carry the number gap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aftershock_core::event::{CountedEvent, EventId, Occurrence};
use aftershock_core::id::Token;
use aftershock_core::name::{Api, Service};
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::wire::{Arm, CutConnections, Tagging};

use super::rules::Armed;
use crate::exchange::RequestHead;

/// A round that is live here.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) rules: Vec<Armed>,
    /// The rules are disarmed: they act no more, and tell of what passes.
    pub(crate) disarmed: bool,
    events: Vec<(CountedEvent, EventId)>,
    pub(crate) gap_apis: BTreeSet<Api>,
    /// Apis that the rules of this sidecar act on.
    pub(crate) own_apis: BTreeSet<Api>,
    readings: BTreeMap<Api, Arc<OutcomeOverride>>,
    pub(crate) record: bool,
    pub(crate) constant_context: bool,
    /// Apis that the service beside this sidecar is known to call.
    pub(crate) known_calls: BTreeSet<Api>,
    /// Ordinary entry requests that become executions of the round.
    tagging: Option<Tagging>,
    /// Callees that are cut off; none after disarming.
    cuts: BTreeSet<Service>,
    /// What met them; it stays.
    pub(crate) cut: BTreeMap<Service, CutConnections>,
    lease: Duration,
    pub(crate) expires: Instant,
    /// How long a pass waits for the arbiter.
    pub(crate) arbiter_timeout: Duration,
    pub(crate) max_parked: usize,
    /// Messages that a `hold` or a `delay` keeps. Those that only wait for the arbiter's answer are none: they go on by
    /// themselves within `arbiter_timeout`, and to refuse one a place would cost it its number.
    pub(crate) parked: usize,
    /// A message found no place.
    pub(crate) was_full: bool,
    /// Executions born before this one were not seen from their beginning with these rules.
    pub(crate) since: u64,
    /// Set by an eviction: executions born from here on may be forgotten ones.
    pub(crate) until: Option<u64>,
}

impl Round {
    pub(crate) fn new(arm: Arm, since: u64, now: Instant) -> Self {
        let own_apis = arm.rules.iter().flat_map(|rule| rule.apis.iter().cloned()).collect();
        let rules = arm.rules.into_iter().map(|rule| Armed::new(rule, &arm.events)).collect();
        // An event that is listed twice is counted once.
        let events: BTreeMap<EventId, CountedEvent> =
            arm.events.into_iter().map(|counted| (counted.event.id(), counted)).collect();
        Round {
            rules,
            disarmed: false,
            events: events.into_iter().map(|(id, counted)| (counted, id)).collect(),
            gap_apis: arm.gap_apis,
            own_apis,
            readings: arm.outcomes.into_iter().map(|reading| (reading.api.clone(), Arc::new(reading))).collect(),
            record: arm.record,
            constant_context: arm.constant_context,
            known_calls: arm.known_calls,
            tagging: arm.tagging,
            cut: arm.cuts.iter().map(|callee| (callee.clone(), CutConnections::default())).collect(),
            cuts: arm.cuts,
            lease: arm.lease,
            expires: deadline(now, arm.lease),
            arbiter_timeout: arm.arbiter_timeout,
            max_parked: arm.max_parked,
            parked: 0,
            was_full: false,
            since,
            until: None,
        }
    }

    /// Nothing of it acts any more.
    pub(crate) fn disarm(&mut self) {
        self.disarmed = true;
        self.cuts.clear();
    }

    /// The events that `occurrence` counts as.
    pub(crate) fn events(&self, occurrence: &Occurrence<'_>) -> Vec<EventId> {
        self.events.iter().filter(|(counted, _)| counted.matches(occurrence)).map(|(_, id)| *id).collect()
    }

    /// How responses of `api` are read, where not by default.
    pub(crate) fn reading(&self, api: &Api) -> Option<Arc<OutcomeOverride>> {
        self.readings.get(api).cloned()
    }

    /// Whether an execution of this place among all was seen from its beginning, with these rules.
    pub(crate) fn is_whole(&self, born: u64) -> bool {
        born >= self.since && self.until.is_none_or(|until| born < until)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.parked < self.max_parked
    }
}

/// A point in time that may lie beyond what can be expressed; then it never comes.
pub(crate) fn deadline(now: Instant, after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now + after.min(FAR)
}

/// All rounds that are known here.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    live: BTreeMap<Token, Round>,
    late: BTreeSet<Token>,
    /// Those that tag ordinary traffic, in the order in which they were armed.
    tagging: Vec<Token>,
}

impl Rounds {
    pub(crate) fn get(&self, token: Token) -> Option<&Round> {
        self.live.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Round> {
        self.live.get_mut(&token)
    }

    pub(crate) fn is_live(&self, token: Token) -> bool {
        self.live.contains_key(&token)
    }

    /// Whether no round is live here.
    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether the controller named it: live, or late.
    pub(crate) fn takes(&self, token: Token) -> bool {
        self.is_live(token) || self.late.contains(&token)
    }

    pub(crate) fn arm(&mut self, token: Token, mut round: Round) {
        self.late.remove(&token);
        if self.live.get(&token).is_some_and(|before| before.until.is_some()) {
            // An eviction marks the token, not the arming: what seems new may be what was forgotten.
            round.until = Some(round.since);
        }
        if let Some(before) = self.live.get(&token) {
            round.cut.extend(before.cut.clone());
        }
        self.stop_tagging(token);
        if round.tagging.is_some() {
            self.tagging.push(token);
        }
        self.live.insert(token, round);
    }

    /// The only round that is about, here or elsewhere.
    pub(crate) fn only(&self) -> Option<(Token, &Round)> {
        let mut live = self.live.iter().filter(|_| self.late.is_empty());
        let (token, round) = live.next()?;
        live.next().is_none().then_some((*token, round))
    }

    /// The round whose execution an ordinary entry request becomes: the first that asks for such requests and gets this
    /// one by chance. Zero for none.
    pub(crate) fn tags(&self, head: &RequestHead<'_>, random: &mut dyn FnMut() -> u64) -> Token {
        let takes = |token: &&Token| {
            let tagging = self.live.get(*token).and_then(|round| round.tagging.as_ref());
            tagging.is_some_and(|tagging| {
                let carries = |(name, value): (&String, &String)| {
                    let same =
                        |(n, v): &(&[u8], &[u8])| n.eq_ignore_ascii_case(name.as_bytes()) && *v == value.as_bytes();
                    head.fields.0.iter().any(same)
                };
                tagging.headers.iter().all(carries) && random() % 1_000_000 < u64::from(tagging.per_million)
            })
        };
        self.tagging.iter().find(takes).copied().unwrap_or_default()
    }

    /// No more executions are made of ordinary requests for this round.
    pub(crate) fn stop_tagging(&mut self, token: Token) {
        self.tagging.retain(|other| *other != token);
    }

    pub(crate) fn renew(&mut self, token: Token, now: Instant) {
        if let Some(round) = self.live.get_mut(&token) {
            round.expires = deadline(now, round.lease);
        }
    }

    /// The round is over, or its lease.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Round> {
        self.late.remove(&token);
        self.stop_tagging(token);
        self.live.remove(&token)
    }

    /// The rounds that were live when this sidecar registered; what it has armed itself is not late.
    pub(crate) fn set_late(&mut self, tokens: Vec<Token>) {
        self.late = tokens.into_iter().filter(|token| !self.live.contains_key(token)).collect();
    }

    /// Live rounds whose lease has run out by `now`.
    pub(crate) fn lapsed(&self, now: Instant) -> Vec<Token> {
        self.live.iter().filter(|(_, round)| round.expires <= now).map(|(token, _)| *token).collect()
    }

    /// When the next lease runs out.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.live.values().map(|round| round.expires).min()
    }

    /// Whether `callee` is cut off by a round that is live here.
    pub(crate) fn cuts(&self, callee: &Service) -> bool {
        self.live.values().any(|round| round.cuts.contains(callee))
    }

    /// A connection to `callee`, which is cut off, breaks or is refused.
    pub(crate) fn met_cut(&mut self, callee: &Service, count: impl Fn(&mut CutConnections)) {
        let cutting = self.live.values_mut().filter(|round| round.cuts.contains(callee));
        cutting.filter_map(|round| round.cut.get_mut(callee)).for_each(count);
    }

    /// Cuts of callees that are armed.
    pub(crate) fn cuts_armed(&self) -> usize {
        self.live.values().map(|round| round.cuts.len()).sum()
    }

    /// Rules that are armed.
    pub(crate) fn rules(&self) -> usize {
        self.live.values().filter(|round| !round.disarmed).map(|round| round.rules.len()).sum()
    }

    /// Messages that take one of the places for parked ones.
    pub(crate) fn parked(&self) -> usize {
        self.live.values().map(|round| round.parked).sum()
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.live.keys().copied().collect()
    }

    /// Live rounds for which a call to `api` that cannot be associated may be a pass that was missed, or have such passes
    /// beneath it: whether they would be numbered here, at a rule of this sidecar.
    pub(crate) fn minding(&self, api: &Api) -> Vec<(Token, bool)> {
        let minds = self.live.iter().filter(|(_, round)| round.gap_apis.contains(api));
        minds.map(|(token, round)| (*token, round.own_apis.contains(api))).collect()
    }
}
