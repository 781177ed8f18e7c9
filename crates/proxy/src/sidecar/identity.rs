//! From a request as it arrived to a call: which execution, which parent, what is edited, what may be missing.
//!
//! The ladders of `association` say where a request belongs; here ids are minted, the edits are made that put the result
//! into the request, and the execution's state is entered.

use aftershock_core::evidence::{GapKind, Knowledge};
use aftershock_core::id::{CallId, ExecutionId, Token};
use aftershock_core::name::Service;
use aftershock_core::plan::Side;
use aftershock_core::span::Association;
use aftershock_core::w3c::{self, Member, TraceParent};
use smallvec::SmallVec;

use super::Sidecar;
use super::association::{self, Inbound, Ladder, Outbound};
use super::call::HopSent;
use super::counters::Ignored;
use super::execution::Key;
use super::header::{Arriving, Correlation, TRACEPARENT};
use super::peers::Way;
use super::rules::Witness;
use crate::exchange::{Edit, Edits, RequestHead};

/// What the ladders found out about a request.
pub(super) struct Identity {
    pub(super) key: Option<Key>,
    pub(super) id: CallId,
    pub(super) parent: Option<CallId>,
    pub(super) caller: Option<Service>,
    pub(super) association: Association,
    pub(super) trace_id: u128,
    pub(super) member: Option<Member>,
    pub(super) hop: HopSent,
    pub(super) witness: Witness,
    pub(super) gaps: SmallVec<[GapKind; 2]>,
    pub(super) brought: Option<Knowledge>,
    pub(super) edits: Edits,
}

/// What a request is to this sidecar. Nearly all are calls.
#[expect(clippy::large_enum_variant, reason = "it is looked at once, by whoever asked")]
pub(super) enum Identified {
    /// A call, associated or not.
    Call(Identity),
    /// None of its business: it passes, with these edits.
    Passes(Edits),
}

impl Sidecar {
    /// The execution of a call that begins: its state, what came with the message, what may be missing.
    pub(super) fn enter(&mut self, key: Key, side: Side, identity: &mut Identity) {
        if !key.token.is_zero() && !self.rounds.is_live(key.token) {
            self.counters.ignored(Ignored::TokenUnknown);
            identity.gaps.push(GapKind::Number);
        }
        let born = self.executions.next_born();
        let (execution, evicted) = self.executions.enter(key);
        if execution.trace_id == 0 {
            execution.trace_id = identity.trace_id;
        }
        // The ids that others minted may come again; those minted here come with no valid tag.
        if side == Side::Callee && identity.hop == HopSent::Evidence {
            execution.saw(identity.id);
        }
        if let Some(knowledge) = &identity.brought {
            execution.merge(knowledge);
        }
        if evicted {
            self.evicted(key.token, born);
        }
        if self.rounds.get(key.token).is_some_and(|round| round.until.is_some()) {
            identity.gaps.push(GapKind::Number);
        }
        for kind in &identity.gaps {
            self.set_gap(key, *kind);
        }
    }

    /// An execution of `token` was forgotten: what comes later may belong to it.
    fn evicted(&mut self, token: Token, born: u64) {
        if let Some(round) = self.rounds.get_mut(token)
            && round.until.is_none()
        {
            tracing::warn!(
                "too many executions of one round: the oldest are forgotten, rules no longer act on new ones"
            );
            round.until = Some(born);
            for key in self.executions.of(token) {
                self.set_gap(key, GapKind::Number);
            }
        }
    }

    pub(super) fn identify_inbound(
        &mut self,
        arriving: &Arriving<'_>,
        head: &RequestHead<'_>,
        probe: bool,
    ) -> Identified {
        let mut edits = Edits::new();
        let (executions, calls, rounds) = (&self.executions, &self.calls, &self.rounds);
        let seen = |key: Key, call: CallId| {
            calls.came_in(call) || executions.get(key).is_some_and(|execution| execution.has_seen(call))
        };
        let found = association::inbound(arriving, &self.keys, seen, |token| rounds.takes(token), &mut self.counters);
        // A newer sidecar's header goes on as it came; whoever reads it knows what to do with it.
        if !matches!(found, Inbound::Relayed { newer: true, .. }) {
            arriving.remove_hop(&mut edits);
        }
        let identity = match found {
            Inbound::Tagged { member, hop } => {
                let check = arriving.check();
                // A hop between the sidecars may have begun another trace; that is the one the application hands on.
                if check != member.check || !arriving.is_shared() {
                    self.hand_over(arriving, &Member { check, ..member }, &mut edits);
                }
                Identity {
                    key: Some(Key::of(&member)),
                    id: member.call,
                    parent: None,
                    caller: hop.caller,
                    association: Association::Exact,
                    trace_id: arriving.trace_id(),
                    member: Some(member),
                    hop: HopSent::Evidence,
                    witness: Witness::Absent,
                    gaps: SmallVec::new(),
                    brought: Some(hop.knowledge),
                    edits,
                }
            }
            // A probe without a valid tag begins nothing.
            _ if probe => {
                arriving.remove_member(&mut edits);
                return Identified::Passes(edits);
            }
            Inbound::Marked => {
                arriving.remove_member(&mut edits);
                Identity {
                    key: None,
                    id: self.draw_call(),
                    parent: None,
                    caller: None,
                    association: Association::Unassociated,
                    trace_id: arriving.trace_id(),
                    member: None,
                    hop: HopSent::Nothing,
                    witness: Witness::Absent,
                    gaps: SmallVec::new(),
                    brought: None,
                    edits,
                }
            }
            Inbound::Relayed { member, newer } => {
                let call = self.draw_call();
                let own = Member { call, check: arriving.check(), ..member };
                self.hand_over(arriving, &own, &mut edits);
                self.counters.associated(Association::Relayed);
                Identity {
                    key: Some(Key::of(&member)),
                    id: call,
                    parent: Some(member.call),
                    caller: None,
                    association: Association::Relayed,
                    trace_id: arriving.trace_id(),
                    member: Some(own),
                    hop: HopSent::Nothing,
                    witness: Witness::Absent,
                    gaps: [GapKind::Evidence].into_iter().chain(newer.then_some(GapKind::Number)).collect(),
                    brought: None,
                    edits,
                }
            }
            Inbound::Entry { token, execution } => {
                let token = if token.is_zero() { self.rounds.tags(head, &mut self.random) } else { token };
                self.entry(arriving, token, execution, edits)
            }
            Inbound::Replay => self.entry(arriving, Token(0), ExecutionId(0), edits),
        };
        let correlations = self.correlations_after(arriving, &identity.edits);
        self.calls.begin_inbound(identity.id, identity.key, &correlations);
        Identified::Call(identity)
    }

    /// Give the application its member, where there is room for it.
    fn hand_over(&mut self, arriving: &Arriving<'_>, member: &Member, edits: &mut Edits) {
        if arriving.hand_over(member, edits).is_err() {
            self.counters.ignored(Ignored::MemberUnsent);
        }
    }

    /// The correlation ids that the application sees: those that came, or those put in their place.
    fn correlations_after(&self, arriving: &Arriving<'_>, edits: &Edits) -> SmallVec<[Correlation; 1]> {
        let mut correlations = arriving.correlations.clone();
        let mut minted = Vec::new();
        for edit in edits {
            let Edit::Set(name, value) = edit else { continue };
            let Some(index) = self.config.correlate.iter().position(|known| known == name) else { continue };
            let family = Correlation::family(&self.config.correlate, index);
            correlations.retain(|known| known.header != family || minted.contains(&family));
            minted.push(family);
            Correlation::add(Correlation::read(&self.config.correlate, index, value), &mut correlations);
        }
        correlations
    }

    /// An execution begins. Under a token the application gets what it needs to hand on: a trace context, and the
    /// correlation ids it is known for.
    fn entry(&mut self, arriving: &Arriving<'_>, token: Token, execution: ExecutionId, mut edits: Edits) -> Identity {
        let execution = if execution.is_zero() { ExecutionId(self.draw()) } else { execution };
        let constant = self.rounds.get(token).is_some_and(|round| round.constant_context);
        let mut trace_id = arriving.trace_id();
        if constant || (trace_id == 0 && (!token.is_zero() || self.records(Some(Key { token, execution })))) {
            trace_id = self.mint_traceparent(0, &mut edits);
        }
        if !token.is_zero() {
            for (index, name) in self.config.correlate.clone().into_iter().enumerate() {
                let family = Correlation::family(&self.config.correlate, index);
                let came = arriving.correlations.iter().any(|known| known.header == family);
                if name != TRACEPARENT && (constant || !came) {
                    let span = self.draw();
                    edits.push(Edit::Set(name, w3c::mint(name, trace_id, span).into_bytes()));
                    if name == "x-b3-traceid" {
                        // Tracers take a trace id only beside a span id.
                        edits.push(Edit::Set("x-b3-spanid", format!("{span:016x}").into_bytes()));
                        edits.push(Edit::Set("x-b3-sampled", b"1".to_vec()));
                        edits.push(Edit::Remove("x-b3-parentspanid"));
                    }
                }
            }
        }
        let call = self.draw_call();
        let member = Member { execution, call, token, check: trace_id as u32 };
        self.hand_over(arriving, &member, &mut edits);
        self.counters.associated(Association::Exact);
        Identity {
            key: Some(Key::of(&member)),
            id: call,
            parent: None,
            caller: None,
            association: Association::Exact,
            trace_id,
            member: Some(member),
            hop: HopSent::Nothing,
            witness: Witness::Absent,
            gaps: SmallVec::new(),
            brought: None,
            edits,
        }
    }

    /// A `traceparent` of the trace `trace`, or of a new one for 0. Returns its trace id.
    fn mint_traceparent(&mut self, trace: u128, edits: &mut Edits) -> u128 {
        let trace_id = match trace {
            0 => u128::from(self.draw()) << 64 | u128::from(self.draw()),
            trace => trace,
        };
        let parent = TraceParent { version: 0, trace_id, parent_id: self.draw(), flags: 1 };
        edits.push(Edit::Set(TRACEPARENT, parent.to_string().into_bytes()));
        trace_id
    }

    pub(super) fn identify_outbound(
        &mut self,
        arriving: &Arriving<'_>,
        head: &RequestHead<'_>,
        way: Way,
        probe: bool,
    ) -> Identified {
        let mut edits = Edits::new();
        arriving.remove_hop(&mut edits);
        let callee = self.callees.behind(way);
        let (registered, relay) = (callee.registered, callee.relays(&self.config, head));
        if probe {
            arriving.remove_member(&mut edits);
            return Identified::Passes(edits);
        }
        let ladder = Ladder { accept_relayed: self.config.accept_relayed };
        let (rounds, config) = (&self.rounds, &self.config);
        let exclusive = || {
            let (token, round) = rounds.only().filter(|_| config.exclusive)?;
            let api = callee.api(head);
            (config.known_calls.contains(&api) || round.known_calls.contains(&api)).then_some(token)
        };
        let takes = |token| rounds.takes(token);
        let found = association::outbound(arriving, &self.calls, ladder, takes, exclusive, &mut self.counters);
        let goes = registered || relay;
        let (key, parent, step) = match found {
            Outbound::Client if goes => return Identified::Passes(edits),
            Outbound::Client => {
                // The token is worth something, and its callee is a stranger.
                self.counters.ignored(Ignored::MemberUnsent);
                arriving.remove_member(&mut edits);
                return Identified::Passes(edits);
            }
            Outbound::Unassociated => {
                return Identified::Call(self.unassociated(arriving, head, way, edits));
            }
            Outbound::Of { key, parent, step } => (key, parent, step),
        };
        self.counters.associated(step);
        let rests_on_member = match step {
            Association::Exact | Association::Relayed => true,
            Association::Detached => matches!(arriving.member, Some(Ok(member)) if parent == Some(member.call)),
            _ => false,
        };
        let call = self.draw_call();
        let mut trace_id = arriving.trace_id();
        if trace_id == 0 && goes && (!key.token.is_zero() || self.records(Some(key))) {
            let known = self.executions.get(key).map_or(0, |execution| execution.trace_id);
            trace_id = self.mint_traceparent(known, &mut edits);
        }
        let member = Member { execution: key.execution, call, token: key.token, check: trace_id as u32 };
        let mut gaps = SmallVec::new();
        if goes {
            arriving.send(&member, &mut edits);
        } else {
            arriving.remove_member(&mut edits);
        }
        if (relay && !registered) || step == Association::Relayed {
            gaps.push(GapKind::Evidence);
        }
        // What rests on an id or on being alone is no evidence of its own.
        if rests_on_member {
            self.calls.begin_outbound(call, Some(key), &arriving.correlations);
        }
        Identified::Call(Identity {
            key: Some(key),
            id: call,
            parent,
            caller: Some(self.config.service.clone()),
            association: step,
            trace_id,
            member: goes.then_some(member),
            hop: if registered { HopSent::Evidence } else { HopSent::Nothing },
            witness: if registered { Witness::Callee(None) } else { Witness::Absent },
            gaps,
            brought: None,
            edits,
        })
    }

    /// A call of no execution that is known: forwarded, marked for a callee with a sidecar. Where a rule speaks of such
    /// calls, its rounds can no longer be sure of their numbers.
    fn unassociated(&mut self, arriving: &Arriving<'_>, head: &RequestHead<'_>, way: Way, edits: Edits) -> Identity {
        let mut edits = edits;
        arriving.remove_member(&mut edits);
        let api = self.callees.behind(way).api(head);
        self.counters.unassociated(&api);
        if !self.rounds.is_empty() {
            for (token, here) in self.rounds.minding(&api) {
                for key in self.executions.of(token) {
                    self.set_gap(key, GapKind::Number);
                    // Passes beneath the call are numbered at a service that is not known here.
                    let execution = self.executions.get_mut(key).filter(|_| !here);
                    if execution.is_some_and(|execution| execution.set_gap_anywhere()) {
                        self.tallies.gap_anywhere();
                    }
                }
            }
        }
        let id = self.draw_call();
        self.calls.begin_outbound(id, None, &arriving.correlations);
        Identity {
            key: None,
            id,
            parent: None,
            caller: Some(self.config.service.clone()),
            association: Association::Unassociated,
            trace_id: arriving.trace_id(),
            member: None,
            hop: if self.callees.behind(way).registered { HopSent::Mark } else { HopSent::Nothing },
            witness: Witness::Absent,
            gaps: SmallVec::new(),
            brought: None,
            edits,
        }
    }
}
