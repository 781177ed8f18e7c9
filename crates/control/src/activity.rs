//! Which open calls a fault keeps, and for how long nothing has to happen before a round has settled (design §3.7).
//!
//! Open calls form a forest: the caller's side of a call waits for the callee's side, which waits for the callers' sides
//! of the calls that its handler sent. A call that runs below a parked one is not kept: its handler may still do
//! something.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::id::{CallId, ExecutionId, ObserverId};
use aftershock_core::name::Service;
use aftershock_core::plan::Side;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{OpenCall, OpenState};

/// What one sidecar last said of a round's open calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// Calls that began there so far.
    pub(crate) begun: u64,
    /// Calls that are open there.
    pub(crate) open: Vec<OpenCall>,
}

/// How a round stands, by what all its sidecars last said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// Calls that began, each counted once per side.
    pub(crate) begun: u64,
    /// Open calls that parked or dropped messages keep: these calls themselves and those that wait for them.
    pub(crate) kept: usize,
    /// Open calls that nothing keeps, as text.
    pub(crate) running: Vec<String>,
}

impl Standing {
    /// Whether nothing is open but what a fault keeps, and something has begun.
    pub(crate) fn is_settled(&self) -> bool {
        self.begun > 0 && self.running.is_empty()
    }
}

/// One side of an open call, and who sees it.
struct Node<'a> {
    observer: ObserverId,
    service: &'a Service,
    call: &'a OpenCall,
}

/// How the round stands. `seen` has an entry for each sidecar that spoke, with its service.
pub(crate) fn standing<'a>(seen: impl IntoIterator<Item = (ObserverId, &'a Service, &'a Seen)>) -> Standing {
    let mut begun = 0;
    let mut nodes = Vec::new();
    for (observer, service, seen) in seen {
        begun += seen.begun;
        nodes.extend(seen.open.iter().map(|call| Node { observer, service, call }));
    }
    let waiting = waiting(&nodes);
    let kept: BTreeSet<(ExecutionId, CallId)> =
        waiting.iter().map(|at| (nodes[*at].call.execution, nodes[*at].call.call)).collect();
    let running =
        nodes.iter().enumerate().filter(|(at, _)| !waiting.contains(at)).map(|(_, node)| node.text()).collect();
    Standing { begun, kept: kept.len(), running }
}

impl Node<'_> {
    fn text(&self) -> String {
        match self.call.side {
            Side::Caller => format!("call to {} from {}", self.call.api, self.service),
            Side::Callee => format!("{} at {}", self.call.api, self.service),
        }
    }
}

/// The nodes that are parked or dropped, and those above them.
fn waiting(nodes: &[Node<'_>]) -> BTreeSet<usize> {
    let mut sides: BTreeMap<(ExecutionId, CallId, Side), Vec<usize>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        sides.entry((node.call.execution, node.call.call, node.call.side)).or_default().push(at);
    }
    let of = |execution, call, side| sides.get(&(execution, call, side)).cloned().unwrap_or_default();
    let mut found: BTreeSet<usize> = BTreeSet::new();
    let mut from: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].call.state != OpenState::Running).collect();
    while let Some(at) = from.pop() {
        if !found.insert(at) {
            continue;
        }
        let OpenCall { side, execution, call, parent, .. } = nodes[at].call;
        let callers = of(*execution, *call, Side::Caller);
        if *side == Side::Callee && !callers.is_empty() {
            from.extend(callers);
            continue;
        }
        match parent {
            Some(parent) => from.extend(of(*execution, *parent, Side::Callee)),
            // The parent is ambiguous: it is one of the calls of this execution that are open at the same sidecar.
            None if *side == Side::Caller => from.extend((0..nodes.len()).filter(|other| {
                let node = &nodes[*other];
                node.observer == nodes[at].observer
                    && node.call.execution == *execution
                    && node.call.side == Side::Callee
            })),
            None => {}
        }
    }
    found
}

/// The shortest quiet time: a few scheduling delays.
const SHORTEST: Duration = Duration::from_millis(20);

/// The longest quiet time.
const LONGEST: Duration = Duration::from_secs(2);

/// The quiet time of a scenario of which nothing is known.
const UNKNOWN: Duration = Duration::from_millis(50);

/// For how long nothing has to happen: twice the longest pause of the clean traces in which no call was open.
pub(crate) fn quiet_time(traces: &[Trace]) -> Duration {
    match traces.iter().map(longest_pause).max() {
        Some(pause) => (pause * 2).clamp(SHORTEST, LONGEST),
        None => UNKNOWN,
    }
}

fn longest_pause(trace: &Trace) -> Duration {
    let mut open: Vec<(u64, u64)> = trace
        .calls
        .iter()
        .flat_map(|call| call.spans().map(|span| (span.request.unix_nanos, span.ended_unix_nanos)))
        .collect();
    open.sort_unstable();
    let mut longest = 0;
    let mut until = None;
    for (begin, end) in open {
        if let Some(until) = until {
            longest = longest.max(begin.saturating_sub(until));
        }
        until = until.max(Some(end));
    }
    Duration::from_nanos(longest)
}

#[cfg(test)]
mod tests {
    use aftershock_core::id::Token;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{self, service};

    const E: ExecutionId = ExecutionId(1);

    fn open(side: Side, call: u64, parent: Option<u64>, state: OpenState) -> OpenCall {
        OpenCall {
            side,
            execution: E,
            call: CallId(call),
            parent: parent.map(CallId),
            api: "payment shop.Payment/Charge".parse().unwrap(),
            state,
        }
    }

    fn stands(sidecars: &[(&str, &[OpenCall])]) -> Standing {
        let seen: Vec<(ObserverId, Service, Seen)> = sidecars
            .iter()
            .enumerate()
            .map(|(i, (name, open))| {
                let seen = Seen { begun: open.len() as u64, open: open.to_vec() };
                (ObserverId(i as u64), service(name), seen)
            })
            .collect();
        standing(seen.iter().map(|(observer, service, seen)| (*observer, service, seen)))
    }

    use OpenState::{Dropped, Parked, Running};
    use Side::{Callee, Caller};

    #[test]
    fn calls_above_a_dropped_one_wait_for_it() {
        let standing = stands(&[
            ("frontend", &[open(Callee, 1, None, Running), open(Caller, 2, Some(1), Running)]),
            ("checkout", &[open(Callee, 2, None, Running), open(Caller, 3, Some(2), Dropped)]),
        ]);
        assert_eq!(standing, Standing { begun: 4, kept: 3, running: vec![] });
        assert!(standing.is_settled());
    }

    #[test]
    fn the_callers_side_waits_for_a_message_parked_at_the_callees_side() {
        let standing = stands(&[
            ("frontend", &[open(Caller, 2, Some(1), Running), open(Callee, 1, None, Running)]),
            ("checkout", &[open(Callee, 2, None, Parked)]),
        ]);
        assert!(standing.is_settled(), "{standing:?}");
    }

    #[test]
    fn a_handler_that_runs_below_a_dropped_call_is_not_kept_by_it() {
        let standing =
            stands(&[("checkout", &[open(Caller, 3, None, Dropped)]), ("payment", &[open(Callee, 3, None, Running)])]);
        assert_eq!(standing.running, ["payment shop.Payment/Charge at payment"]);
        assert!(!standing.is_settled());
    }

    #[test]
    fn a_branch_beside_a_parked_one_runs() {
        let standing = stands(&[(
            "checkout",
            &[open(Callee, 1, None, Running), open(Caller, 2, Some(1), Parked), open(Caller, 3, Some(1), Running)],
        )]);
        assert_eq!((standing.kept, standing.running.len()), (2, 1));
    }

    #[test]
    fn an_ambiguous_parent_is_any_call_of_the_execution_open_at_that_sidecar() {
        let mut other = open(Callee, 9, None, Running);
        other.execution = ExecutionId(2);
        let standing = stands(&[
            ("checkout", &[open(Callee, 1, None, Running), open(Caller, 2, None, Parked), other]),
            ("elsewhere", &[open(Callee, 7, None, Running)]),
        ]);
        assert_eq!(standing.kept, 2);
        assert_eq!(standing.running.len(), 2, "{standing:?}");
    }

    #[test]
    fn a_round_in_which_nothing_began_has_not_settled() {
        assert!(!stands(&[("checkout", &[])]).is_settled());
        let ended = Seen { begun: 2, open: vec![] };
        assert!(standing([(ObserverId(1), &service("checkout"), &ended)]).is_settled());
    }

    /// A call as the truth has it: whether a message of it is stuck, at which side, and the calls that its handler waits
    /// for.
    #[derive(Debug, Clone)]
    struct Truth {
        stuck: Option<(Side, OpenState)>,
        below: Vec<Truth>,
    }

    fn truths() -> impl Strategy<Value = Truth> {
        let stuck = || {
            proptest::option::weighted(
                0.2,
                (prop_oneof![Just(Caller), Just(Callee)], prop_oneof![Just(Parked), Just(Dropped)]),
            )
        };
        let leaf = stuck().prop_map(|stuck| Truth { stuck, below: vec![] });
        leaf.prop_recursive(4, 24, 4, move |inner| {
            (stuck(), proptest::collection::vec(inner, 0..4)).prop_map(|(stuck, below)| Truth { stuck, below })
        })
    }

    /// Writes down what the sidecars see of `truth` and, top down, whether each side is stuck or waits for one that is.
    fn seen(truth: &Truth, id: &mut u64, parent: Option<u64>, out: &mut Vec<(OpenCall, bool)>) -> bool {
        *id += 1;
        let call = *id;
        let state = |side| truth.stuck.filter(|(at, _)| *at == side).map_or(Running, |(_, state)| state);
        let below: Vec<bool> = truth.below.iter().map(|below| seen(below, id, Some(call), out)).collect();
        let callee = state(Callee) != Running || below.contains(&true);
        let caller = state(Caller) != Running || callee;
        out.push((open(Callee, call, None, state(Callee)), callee));
        if parent.is_some() {
            out.push((open(Caller, call, parent, state(Caller)), caller));
            return caller;
        }
        callee
    }

    proptest! {
        #[test]
        fn a_side_runs_unless_it_is_stuck_or_waits_for_one_that_is(truth in truths(), seed: u64) {
            let mut calls = Vec::new();
            let mut root = truth;
            // The entry has no caller's side that could be stuck.
            root.stuck = root.stuck.filter(|(side, _)| *side == Callee);
            seen(&root, &mut 0, None, &mut calls);
            // In any order: the parents say what waits for what.
            calls.sort_by_key(|(call, _)| (call.call.0.wrapping_mul(seed | 1), call.side));
            let open: Vec<OpenCall> = calls.iter().map(|(call, _)| call.clone()).collect();
            let standing = stands(&[("checkout", &open)]);
            prop_assert_eq!(standing.running.len(), calls.iter().filter(|(_, waits)| !waits).count());
            let kept: BTreeSet<CallId> = calls.iter().filter(|(_, waits)| *waits).map(|(call, _)| call.call).collect();
            prop_assert_eq!(standing.kept, kept.len());
        }
    }

    #[test]
    fn the_quiet_time_is_twice_the_longest_pause_within_bounds() {
        let trace = |spans: &[(u64, u64)]| {
            let ms = 1_000_000;
            Trace::assemble(spans.iter().enumerate().map(|(i, (begin, end))| {
                let mut span = testing::span(Callee, i as u64 + 1, None, "a b.C/D");
                span.request.unix_nanos = begin * ms;
                span.ended_unix_nanos = end * ms;
                span.token = Token(1);
                span
            }))
        };
        let quiet = |spans: &[(u64, u64)]| quiet_time(&trace(spans)).as_millis();
        assert_eq!(quiet(&[(0, 100), (130, 140), (10, 20), (100, 110)]), 40);
        assert_eq!(quiet(&[(0, 100), (10, 20)]), 20);
        assert_eq!(quiet(&[(0, 1), (5_000, 5_001)]), 2_000);
        assert_eq!(quiet(&[]), 50);
    }
}
