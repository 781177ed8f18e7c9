//! The laws of evidence, Lamport clock, assembly and replay against a model that tracks true sets of occurrences.
//!
//! The model runs one execution as a random interleaving: handlers send requests to any service, also to those above
//! them, several at a time; instances are chosen per request; answers come in any order, late, or never; on some
//! messages the hop header is lost. Sidecars run the real code, messages travel through the real codec. Beside them the
//! model keeps every occurrence, each with an identity of its own, and the messages between them.

#![allow(clippy::unwrap_used, reason = "test helpers are not seen as tests")]

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::event::{ApiRef, CountedEvent, Event, EventId, EventKind, Occurrence, Outcome, OutcomeFilter};
use aftershock_core::evidence::{Evidence, Gap, GapKind, Gaps, Knowledge};
use aftershock_core::hop::{Hop, HopKey, Keyring, MAX_LEN};
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::Side;
use aftershock_core::replay::{replay, replay_without};
use aftershock_core::span::{Association, CallSpan, Ending, Instant};
use aftershock_core::trace::Trace;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

const SERVICES: usize = 4;
const KEY: HopKey = HopKey { id: 1, secret: *b"model of the law" };

fn service(index: usize) -> Service {
    format!("s{index}").parse().unwrap()
}

fn api(index: usize, operation: usize) -> Api {
    Api { service: service(index), operation: format!("t.S{index}/M{operation}").parse().unwrap() }
}

/// What is counted: any caller and one caller, any outcome and one, single Apis and a group.
fn counted_events() -> Vec<CountedEvent> {
    let mut events = Vec::new();
    for event in
        [EventKind::RequestSent, EventKind::RequestReceived, EventKind::ResponseSent, EventKind::ResponseReceived]
    {
        for (s, caller, outcome) in
            [(0, None, OutcomeFilter::Any), (1, Some(service(0)), OutcomeFilter::Any), (2, None, OutcomeFilter::Ok)]
        {
            let event = Event { event, api: ApiRef::Api(api(s, 0)), caller, outcome };
            events.push(CountedEvent { event, apis: BTreeSet::from([api(s, 0)]) });
        }
        let group = Event { event, api: ApiRef::Group("m1".to_owned()), caller: None, outcome: OutcomeFilter::Any };
        events.push(CountedEvent { event: group, apis: (0..SERVICES).map(|s| api(s, 1)).collect() });
    }
    events
}

/// An occurrence, and what its sidecar knew.
#[derive(Debug, Clone)]
struct Happened {
    observer: ObserverId,
    call: CallId,
    event: EventKind,
    api: Api,
    caller: Option<Service>,
    outcome: Option<Outcome>,
    clock: u64,
    /// The evidence at the decision, and after counting.
    before: Evidence,
    after: Evidence,
    /// The occurrence whose message arrived with this one, and whether it carried evidence.
    sender: Option<(usize, bool)>,
}

impl Happened {
    fn is(&self, counted: &CountedEvent) -> bool {
        let Happened { event, api, caller, outcome, .. } = self;
        counted.matches(&Occurrence { event: *event, api, caller: caller.as_ref(), outcome: *outcome })
    }
}

/// A call as its two sides see it. They have different ids when the hop header of the request was lost.
#[derive(Debug, Clone)]
struct Call {
    /// The call whose handler sent it, and the id it gave.
    client: Option<(usize, CallId)>,
    server_id: CallId,
    service: usize,
    operation: usize,
    outcome: Outcome,
    /// The request has a hop header.
    tagged: bool,
    state: State,
    /// The callee's instance, once the request arrived.
    observer: ObserverId,
    /// The message under way: the occurrence that sent it, and the hop header if it was not lost.
    message: Option<(usize, Option<String>)>,
    /// The four occurrences, by [`EventKind`].
    steps: [Option<usize>; 4],
    /// The response left with evidence.
    response_went: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    RequestUnderWay,
    Running,
    ResponseUnderWay,
    Over,
}

/// One random execution.
#[derive(Clone)]
struct Model {
    choices: std::vec::IntoIter<u32>,
    /// One message of how many loses its header; none if zero.
    losing: u32,
    replicas: u32,
    events: Vec<CountedEvent>,
    sidecars: BTreeMap<ObserverId, Knowledge>,
    calls: Vec<Call>,
    happened: Vec<Happened>,
}

impl Model {
    fn run(choices: Vec<u32>, replicas: u32, losing: u32) -> Model {
        let mut model = Model {
            choices: choices.into_iter(),
            losing,
            replicas,
            events: counted_events(),
            sidecars: BTreeMap::new(),
            calls: Vec::new(),
            happened: Vec::new(),
        };
        let mut going = model.send(None);
        while going.is_some() {
            going = model.act();
        }
        model
    }

    /// Below `of`; none when the choices are used up.
    fn pick(&mut self, of: usize) -> Option<usize> {
        self.choices.next().map(|choice| choice as usize % of)
    }

    fn loses(&mut self) -> Option<bool> {
        if self.losing == 0 { Some(false) } else { Some(self.pick(self.losing as usize)? == 0) }
    }

    /// One step of the execution; none when nothing is left to do.
    fn act(&mut self) -> Option<()> {
        let alive: Vec<usize> = (0..self.calls.len()).filter(|call| self.calls[*call].state != State::Over).collect();
        if alive.is_empty() {
            return None;
        }
        let call = alive[self.pick(alive.len())?];
        let state = self.calls[call].state;
        match state {
            State::RequestUnderWay => self.arrive(call),
            State::Running if self.pick(3)? == 0 => self.answer(call),
            State::Running => self.send(Some(call)),
            State::ResponseUnderWay => self.answered(call),
            State::Over => None,
        }
    }

    fn step(
        &mut self,
        observer: ObserverId,
        call: usize,
        event: EventKind,
        message: Option<(usize, Option<String>)>,
    ) -> usize {
        let of = &self.calls[call];
        let caller = of.client.map(|(parent, _)| service(self.calls[parent].service));
        let here = self.sidecars.entry(observer).or_default();
        if let Some((_, Some(text))) = &message {
            here.merge(&Hop::decode(text.as_bytes(), &Keyring(vec![KEY]), "").unwrap().knowledge);
        }
        let mut happened = Happened {
            observer,
            call: if event.at_caller() { of.client.unwrap().1 } else { of.server_id },
            event,
            api: api(of.service, of.operation),
            caller: caller.filter(|_| event.at_caller() || of.tagged),
            outcome: event.is_response().then_some(of.outcome),
            clock: 0,
            before: here.evidence.clone(),
            after: Evidence::default(),
            sender: message.map(|(sender, text)| (sender, text.is_some())),
        };
        let ids: Vec<EventId> = self.events.iter().filter(|c| happened.is(c)).map(|c| c.event.id()).collect();
        happened.clock = here.happen(observer, ids);
        happened.after = here.evidence.clone();
        self.happened.push(happened);
        let index = self.happened.len() - 1;
        self.calls[call].steps[event as usize] = Some(index);
        index
    }

    /// What leaves with an occurrence, as it is on the wire.
    fn stamped(&self, step: usize) -> String {
        let Happened { observer, call, caller, outcome, .. } = self.happened[step].clone();
        let knowledge = self.sidecars[&observer].clone();
        let gap = Gap { kind: GapKind::Evidence, observer, service: service(0) };
        let text = Hop { call, caller, outcome, knowledge }.encode(&KEY, "", &gap);
        assert!(text.len() <= MAX_LEN);
        text
    }

    /// A handler sends a request; without a handler, the client does.
    fn send(&mut self, from: Option<usize>) -> Option<()> {
        let target = if from.is_some() { self.pick(SERVICES)? } else { 0 };
        let operation = self.pick(2)?;
        let outcome = if self.pick(4)? == 0 { Outcome::Error } else { Outcome::Ok };
        let lost = from.is_some() && self.loses()?;
        let call = self.calls.len();
        let id = CallId(2 * call as u64 + 1);
        self.calls.push(Call {
            client: from.map(|parent| (parent, id)),
            server_id: if lost { CallId(id.0 + 1) } else { id },
            service: target,
            operation,
            outcome,
            tagged: from.is_some() && !lost,
            state: State::RequestUnderWay,
            observer: ObserverId(0),
            message: None,
            steps: [None; 4],
            response_went: false,
        });
        if let Some(parent) = from {
            let step = self.step(self.calls[parent].observer, call, EventKind::RequestSent, None);
            self.calls[call].message = Some((step, (!lost).then(|| self.stamped(step))));
        }
        Some(())
    }

    fn arrive(&mut self, call: usize) -> Option<()> {
        let instance = self.pick(self.replicas as usize)?;
        let observer = ObserverId(100 * (self.calls[call].service as u64 + 1) + instance as u64);
        self.calls[call].observer = observer;
        self.calls[call].state = State::Running;
        let message = self.calls[call].message.take();
        self.step(observer, call, EventKind::RequestReceived, message);
        Some(())
    }

    fn answer(&mut self, call: usize) -> Option<()> {
        let lost = self.loses()?;
        let step = self.step(self.calls[call].observer, call, EventKind::ResponseSent, None);
        // Evidence goes only in answer to a request with a hop header.
        let went = self.calls[call].tagged;
        let text = (went && !lost).then(|| self.stamped(step));
        let of = &mut self.calls[call];
        of.response_went = went;
        of.message = Some((step, text));
        of.state = if of.client.is_some() { State::ResponseUnderWay } else { State::Over };
        Some(())
    }

    fn answered(&mut self, call: usize) -> Option<()> {
        let gave_up = self.pick(8)? == 0;
        self.calls[call].state = State::Over;
        if !gave_up {
            let message = self.calls[call].message.take();
            let (parent, _) = self.calls[call].client.unwrap();
            self.step(self.calls[parent].observer, call, EventKind::ResponseReceived, message);
        }
        Some(())
    }

    /// For each occurrence the set of those that causally precede it: the ones before it at its sidecar, and the ones up
    /// to the message that came with it, if `through` admits a message that carried evidence or not.
    fn pasts(&self, through: impl Fn(bool) -> bool) -> Vec<BTreeSet<usize>> {
        let mut pasts: Vec<BTreeSet<usize>> = Vec::new();
        let mut last: BTreeMap<ObserverId, usize> = BTreeMap::new();
        for (this, happened) in self.happened.iter().enumerate() {
            let message = happened.sender.filter(|(_, carried)| through(*carried)).map(|(sender, _)| sender);
            let mut past = BTreeSet::new();
            for direct in last.insert(happened.observer, this).into_iter().chain(message) {
                past.insert(direct);
                past.extend(pasts[direct].iter().copied());
            }
            pasts.push(past);
        }
        pasts
    }

    fn number(&self, of: &CountedEvent, among: impl IntoIterator<Item = usize>) -> u64 {
        among.into_iter().filter(|index| self.happened[*index].is(of)).count() as u64
    }

    /// What the sidecars export.
    fn spans(&self) -> Vec<CallSpan> {
        self.calls.iter().flat_map(|call| [self.client_span(call), self.server_span(call)]).flatten().collect()
    }

    fn client_span(&self, call: &Call) -> Option<CallSpan> {
        let (parent, id) = call.client?;
        let span = self.span(call, Side::Caller, [EventKind::RequestSent, EventKind::ResponseReceived])?;
        let service = service(self.calls[parent].service);
        let came = self.carried(call, EventKind::ResponseReceived);
        Some(CallSpan {
            call: id,
            parent: Some(self.calls[parent].server_id),
            service,
            evidence_went: true,
            evidence_came: came,
            ..span
        })
    }

    fn server_span(&self, call: &Call) -> Option<CallSpan> {
        let span = self.span(call, Side::Callee, [EventKind::RequestReceived, EventKind::ResponseSent])?;
        Some(CallSpan {
            // The callee's sidecar knows no parent, but after a lost header: then it is the call it came as.
            parent: call.client.map(|(_, id)| id).filter(|id| *id != call.server_id),
            evidence_went: call.response_went,
            evidence_came: self.carried(call, EventKind::RequestReceived),
            ..span
        })
    }

    fn carried(&self, call: &Call, event: EventKind) -> bool {
        let step = call.steps[event as usize];
        step.and_then(|step| self.happened[step].sender).is_some_and(|(_, carried)| carried)
    }

    fn span(&self, call: &Call, side: Side, [request, response]: [EventKind; 2]) -> Option<CallSpan> {
        let first = &self.happened[call.steps[request as usize]?];
        let instant = |step: usize| Instant { clock: self.happened[step].clock, unix_nanos: step as u64 };
        let response = call.steps[response as usize];
        Some(CallSpan {
            side,
            service: service(call.service),
            observer: first.observer,
            execution: ExecutionId(1),
            token: Token(2),
            call: call.server_id,
            parent: None,
            caller: first.caller.clone(),
            api: first.api.clone(),
            association: Association::Exact,
            trace_id: 0,
            request: instant(call.steps[request as usize]?),
            response: response.map(instant),
            ended_unix_nanos: 0,
            outcome: response.map(|_| call.outcome),
            http_status: None,
            grpc_status: None,
            made: false,
            ending: Ending::Complete,
            evidence_went: false,
            evidence_came: false,
            gaps: Gaps::default(),
            messages: None,
            passes: Vec::new(),
            injection: None,
        })
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.happened
            .iter()
            .try_for_each(|h| writeln!(f, "{} {:?} {} {} from {:?}", h.observer, h.call, h.event, h.api, h.sender))
    }
}

/// Executions of up to some 60 occurrences, 1 to 3 instances per service; one message of `losing` loses its header.
fn executions(losing: impl Strategy<Value = u32>) -> impl Strategy<Value = Model> {
    (prop::collection::vec(any::<u32>(), 3..200), 1_u32..4, losing)
        .prop_map(|(choices, replicas, losing)| Model::run(choices, replicas, losing))
}

#[test]
fn the_model_has_fan_out_diamonds_re_entrancy_replicas_concurrency_and_loss() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let models: Vec<Model> = (0..200).map(|_| executions(0_u32..6).new_tree(&mut runner).unwrap().current()).collect();
    let children =
        |m: &Model, parent| m.calls.iter().filter(move |c| c.client.is_some_and(|(p, _)| p == parent)).count();
    let above = |m: &Model, mut call: usize| {
        let wanted = m.calls[call].service;
        while let Some((parent, _)) = m.calls[call].client {
            call = parent;
            if m.calls[call].service == wanted {
                return true;
            }
        }
        false
    };
    let some = |name: &str, has: &dyn Fn(&Model) -> bool| {
        assert!(models.iter().filter(|m| has(m)).count() >= 20, "few executions have {name}");
    };
    some("fan-out", &|m| (0..m.calls.len()).any(|call| children(m, call) > 2));
    some("re-entrancy", &|m| (0..m.calls.len()).any(|call| above(m, call)));
    some("a service that two others call", &|m| {
        let pairs: BTreeSet<_> =
            m.calls.iter().filter_map(|c| c.client.map(|(p, _)| (c.service, m.calls[p].service))).collect();
        (0..SERVICES).any(|s| pairs.iter().filter(|(callee, caller)| *callee == s && caller != callee).count() > 1)
    });
    some("replicas", &|m| m.sidecars.keys().any(|o| m.sidecars.contains_key(&ObserverId(o.0 + 1))));
    some("loss", &|m| m.happened.iter().any(|h| h.sender.is_some_and(|(_, carried)| !carried)));
    some("unordered occurrences", &|m| m.pasts(|_| true).iter().enumerate().any(|(this, past)| past.len() < this));
    some("forty occurrences", &|m| m.happened.len() > 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn counts_are_those_of_the_causal_past_through_messages_that_carried_evidence(model in executions(0_u32..6)) {
        let heard = model.pasts(|carried| carried);
        for (this, happened) in model.happened.iter().enumerate() {
            prop_assert!(happened.before.gaps().is_empty(), "a header overflowed");
            for counted in &model.events {
                let count = happened.before.count(counted.event.id());
                // Never below what precedes through messages that carried evidence, and no more is known either.
                prop_assert_eq!(count, model.number(counted, heard[this].iter().copied()), "{}", counted.event);
                prop_assert!(count <= model.number(counted, 0..this), "more than have happened so far");
            }
        }
    }

    #[test]
    fn with_all_context_propagated_counts_are_exact(model in executions(Just(0))) {
        for (this, past) in model.pasts(|_| true).into_iter().enumerate() {
            for counted in &model.events {
                let count = model.happened[this].before.count(counted.event.id());
                prop_assert_eq!(count, model.number(counted, past.iter().copied()), "{}", counted.event);
            }
        }
    }

    #[test]
    fn counts_never_decrease_at_a_sidecar(model in executions(0_u32..6)) {
        let grown = |from: &Evidence, to: &Evidence| {
            from.entries().all(|(event, observer, n)| to.entries().any(|(e, o, m)| (e, o) == (event, observer) && m >= n))
        };
        let mut last: BTreeMap<ObserverId, &Evidence> = BTreeMap::new();
        for happened in &model.happened {
            if let Some(before) = last.insert(happened.observer, &happened.after) {
                prop_assert!(grown(before, &happened.before));
            }
            prop_assert!(grown(&happened.before, &happened.after));
        }
    }

    #[test]
    fn the_clock_agrees_with_causality(model in executions(0_u32..6)) {
        for (this, past) in model.pasts(|carried| carried).into_iter().enumerate() {
            for before in past {
                prop_assert!(model.happened[before].clock < model.happened[this].clock);
            }
        }
    }

    #[test]
    fn replay_gives_the_evidence_that_the_sidecars_had(model in executions(0_u32..6)) {
        let traces = Trace::assemble(model.spans());
        prop_assert_eq!(traces.len(), usize::from(!model.happened.is_empty()));
        for trace in &traces {
            let seen = replay(trace, &model.events);
            let mut truth: BTreeMap<(CallId, EventKind), &Happened> =
                model.happened.iter().map(|h| ((h.call, h.event), h)).collect();
            for visible in seen {
                let happened = truth.remove(&(visible.step.call.id, visible.step.event)).expect("each step once");
                prop_assert_eq!(visible.step.observer, happened.observer);
                prop_assert_eq!(&visible.evidence, &happened.before);
                prop_assert_eq!(&visible.after, &happened.after);
            }
            prop_assert!(truth.is_empty(), "{} occurrences are in no step", truth.len());
        }
    }

    #[test]
    fn replay_without_what_happened_later_gives_the_same_past(
        model in executions(0_u32..6),
        at in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!model.happened.is_empty());
        let cut = at.index(model.happened.len());
        let trace = &Trace::assemble(model.spans())[0];
        let kept: BTreeMap<(CallId, EventKind), &Happened> =
            model.happened[..=cut].iter().map(|h| ((h.call, h.event), h)).collect();
        let seen = replay_without(trace, &model.events, |step| !kept.contains_key(&(step.call.id, step.event)));
        prop_assert_eq!(seen.len(), cut + 1);
        for visible in seen {
            prop_assert_eq!(&visible.evidence, &kept[&(visible.step.call.id, visible.step.event)].before);
        }
    }

    #[test]
    fn a_trace_does_not_depend_on_the_order_of_spans_nor_on_repetitions(
        (model, turned) in executions(0_u32..6).prop_flat_map(|model| {
            let twice: Vec<CallSpan> = model.spans().into_iter().chain(model.spans()).collect();
            (Just(model), Just(twice).prop_shuffle())
        }),
    ) {
        let spans = model.spans();
        let trace = Trace::assemble(spans.clone());
        prop_assert_eq!(&trace, &Trace::assemble(turned.clone()));
        // One observation exported twice, the second time with a later end.
        let late = turned.into_iter().map(|span| CallSpan { ended_unix_nanos: 1, ..span });
        prop_assert_eq!(&trace, &Trace::assemble(late.chain(spans)));
        let clocks: Vec<u64> = trace.iter().flat_map(|t| t.steps().into_iter().map(|step| step.at.clock)).collect();
        prop_assert!(clocks.is_sorted());
    }
}

fn gaps() -> impl Strategy<Value = Gaps> {
    let gap = (any::<bool>(), 0_u64..3, 0_usize..2).prop_map(|(number, observer, at)| Gap {
        kind: if number { GapKind::Number } else { GapKind::Evidence },
        observer: ObserverId(observer),
        service: service(at),
    });
    prop_oneof![
        1 => Just(Gaps::any()),
        8 => prop::collection::vec(gap, 0..6).prop_map(|all| {
            let mut gaps = Gaps::default();
            all.into_iter().for_each(|gap| gaps.insert(gap));
            gaps
        })
    ]
}

fn evidence() -> impl Strategy<Value = Evidence> {
    (prop::collection::vec((0_u64..4, 0_u64..4, 0_u64..5), 0..10), gaps()).prop_map(|(entries, gaps)| {
        let mut evidence = Evidence::default();
        for (event, observer, count) in entries {
            evidence.raise(EventId(event), ObserverId(observer), count);
        }
        *evidence.gaps_mut() = gaps;
        evidence
    })
}

fn joined(a: &Evidence, b: &Evidence) -> Evidence {
    let mut both = a.clone();
    let grew = both.merge(b);
    assert_eq!(grew, both != *a, "merge says whether anything grew");
    both
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn merge_is_associative_commutative_and_idempotent(a in evidence(), b in evidence(), c in evidence()) {
        prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
        prop_assert_eq!(joined(&a, &b), joined(&b, &a));
        prop_assert_eq!(joined(&a, &a), a.clone());
        prop_assert_eq!(joined(&a, &Evidence::default()), a.clone());
        prop_assert_eq!(joined(&joined(&a, &b), &a), joined(&a, &b));
    }

    #[test]
    fn merge_is_the_maximum_per_observer_and_a_count_is_their_sum(a in evidence(), b in evidence()) {
        let both = joined(&a, &b);
        let entry = |of: &Evidence, event, observer| {
            of.entries().find(|(e, o, _)| (*e, *o) == (event, observer)).map_or(0, |(_, _, n)| n)
        };
        for event in (0..4).map(EventId) {
            let observers = (0..4).map(ObserverId);
            let expected: u64 = observers.map(|o| entry(&a, event, o).max(entry(&b, event, o))).sum();
            prop_assert_eq!(both.count(event), expected);
        }
    }

    #[test]
    fn gaps_are_a_union_until_there_are_too_many(a in gaps(), b in gaps()) {
        let mut both = a.clone();
        both.merge(&b);
        let union: BTreeSet<&Gap> = a.named().chain(b.named()).collect();
        let overflow = a.is_any() || b.is_any() || union.len() > Gaps::KEPT;
        prop_assert_eq!(both.is_any(), overflow);
        let kept = if overflow { BTreeSet::new() } else { union };
        prop_assert_eq!(both.named().collect::<BTreeSet<_>>(), kept);
        prop_assert_eq!(both.is_empty(), a.is_empty() && b.is_empty());
        for s in (0..2).map(service) {
            let number = |gaps: &Gaps| gaps.named().any(|gap| gap.kind == GapKind::Number && gap.service == s);
            prop_assert_eq!(both.blocks_number(&s), overflow || number(&a) || number(&b));
        }
    }

    #[test]
    fn one_gap_more_is_a_merge_with_that_gap(a in gaps(), observer in 0_u64..9) {
        let gap = Gap { kind: GapKind::Number, observer: ObserverId(observer), service: service(0) };
        let mut only = Gaps::default();
        only.insert(gap.clone());
        let (mut inserted, mut merged) = (a.clone(), a);
        inserted.insert(gap);
        merged.merge(&only);
        prop_assert_eq!(inserted, merged);
    }

    #[test]
    fn an_event_that_happens_comes_after_all_that_was_known(a in evidence(), b in evidence(), x in 0_u64..9, y in 0_u64..9) {
        let mut both = Knowledge { evidence: a.clone(), clock: x };
        both.merge(&Knowledge { evidence: b.clone(), clock: y });
        prop_assert_eq!(&both, &Knowledge { evidence: joined(&a, &b), clock: x.max(y) });
        prop_assert_eq!(both.happen(ObserverId(0), [EventId(0)]), x.max(y) + 1);
        prop_assert_eq!(both.evidence.count(EventId(0)), joined(&a, &b).count(EventId(0)) + 1);
    }
}
