//! The third of many gRPC calls of an execution, with real sidecars: one fault in each execution, and the right one.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Fault, Phase, Side};
use aftershock_core::span::CallSpan;

use crate::support::application::{Application, Entry};
use crate::support::brain::Back;
use crate::support::http2::{Came, Echo, End, Fields, Http2, message, value};
use crate::support::rules::{everywhere, rule};
use crate::support::sidecar::Sidecar;

/// Which of the calls is faulted.
const K: u32 = 3;

/// An application and the replicas that it calls; the third call of each execution is faulted.
struct Stage {
    application: Application,
    origins: Vec<Echo>,
    _backs: Vec<Sidecar>,
}

impl Stage {
    fn armed(replicas: usize, phase: Phase) -> Self {
        let origins: Vec<_> = (0..replicas).map(|_| Echo::start()).collect();
        let backs: Vec<_> = origins.iter().map(|origin| Back::before(origin.address).start()).collect();
        let mut application = Application::calling(&backs.iter().map(|back| back.address).collect::<Vec<_>>());
        let third = rule(Some("front"), "back shop.Item/Get", K, phase, Fault::Abort);
        application.controller.arm(vec![everywhere(third)]);
        Stage { application, origins, _backs: backs }
    }

    /// A connection of the application's to `back`.
    fn connect(&self) -> Http2 {
        Http2::connect(self.application.way_out)
    }

    /// The numbers of the calls that have reached each replica since the last time.
    fn reached(&self) -> Vec<BTreeSet<String>> {
        let numbers = |requests: Vec<Fields>| {
            requests.iter().map(|fields| value(fields, "call").expect("its number").to_owned()).collect()
        };
        self.origins.iter().map(|origin| numbers(origin.requests())).collect()
    }
}

/// What a call says, and nothing else does.
fn said(number: usize) -> Vec<u8> {
    message(&format!("message of call {number}"))
}

/// Begins a call.
fn call(connection: &mut Http2, entry: &Entry, number: usize) -> u32 {
    let mark = number.to_string();
    let fields = entry.behind(&[("content-type", "application/grpc"), ("te", "trailers"), ("call", &mark)]);
    let stream = connection.open("POST", "/shop.Item/Get", &fields, false);
    connection.data(stream, &said(number), true);
    stream
}

/// Whether a call was faulted; if not, it has its own answer.
fn is_faulted(number: usize, seen: &Came) -> bool {
    assert_eq!((seen.ended, seen.field(":status")), (Some(End::Stream), Some("200")), "{seen:?}");
    match seen.field("grpc-status") {
        Some("14") => assert_eq!(seen.body, b"", "{seen:?}"),
        status => assert_eq!((status, &seen.body), (Some("0"), &said(number)), "{seen:?}"),
    }
    seen.field("grpc-status") == Some("14")
}

/// The record says the same: of each execution all calls were numbered, and the third was faulted and no other.
fn check_record(spans: &[CallSpan], executions: usize, calls: usize) {
    let mut of: BTreeMap<ExecutionId, Vec<&CallSpan>> = BTreeMap::new();
    for span in spans.iter().filter(|span| span.side == Side::Caller) {
        of.entry(span.execution).or_default().push(span);
    }
    assert_eq!(of.len(), executions);
    for (execution, spans) in of {
        let mut numbers: Vec<_> = spans.iter().flat_map(|span| &span.passes).map(|pass| pass.k).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=calls as u32).map(Some).collect::<Vec<_>>(), "{execution}");
        let injected: Vec<_> = spans.iter().filter_map(|span| span.injection.as_ref()).map(|one| one.k).collect();
        assert_eq!(injected, [K], "{execution}");
    }
}

#[test]
fn in_one_execution_after_the_other_the_third_of_fifty_calls_on_a_connection_is_faulted() {
    const CALLS: usize = 50;
    for phase in [Phase::Request, Phase::Response] {
        let mut stage = Stage::armed(1, phase);
        let mut connection = stage.connect();
        for execution in 0..30 {
            let entry = stage.application.enter();
            let streams: Vec<_> = (0..CALLS).map(|number| call(&mut connection, &entry, number)).collect();
            let answers = streams.into_iter().map(|stream| connection.ended(stream));
            let faulted: Vec<_> = answers.enumerate().filter(|(number, seen)| is_faulted(*number, seen)).collect();
            // They go, and are answered, in the order of the connection.
            assert_eq!(faulted.len(), 1, "{phase}, execution {execution}: {faulted:?}");
            assert_eq!(faulted[0].0, K as usize - 1, "{phase}, execution {execution}");
            let reached = &stage.reached()[0];
            let lost: Vec<_> = (0..CALLS).filter(|number| !reached.contains(&number.to_string())).collect();
            let expected = if phase == Phase::Request { vec![K as usize - 1] } else { Vec::new() };
            assert_eq!(lost, expected, "{phase}, execution {execution}");
            stage.application.leave(&entry);
            check_record(&stage.application.controller.spans(CALLS + 1), 1, CALLS);
        }
    }
}

/// So many executions at once with so many calls each, dealt to connections in turn; then what clients, replicas and the
/// record saw.
fn interleave(executions: usize, calls: usize, connections: usize) {
    /// Streams that are open at once on a connection.
    const OPEN: usize = 100;
    const REPLICAS: usize = 2;
    for phase in [Phase::Request, Phase::Response] {
        let mut stage = Stage::armed(REPLICAS, phase);
        let entries: Vec<_> = (0..executions).map(|_| stage.application.enter()).collect();
        let mut connections: Vec<_> = (0..connections).map(|_| (stage.connect(), Vec::new())).collect();
        let mut faulted = vec![Vec::new(); executions];
        // Every execution makes its first call before any makes its second.
        for number in 0..executions * calls {
            let width = connections.len();
            let (connection, open) = &mut connections[(number % executions + number / executions) % width];
            if open.len() == OPEN {
                let (stream, number) = open.remove(0);
                if is_faulted(number, &connection.ended(stream)) {
                    faulted[number % executions].push(number);
                }
            }
            open.push((call(connection, &entries[number % executions], number), number));
        }
        for (mut connection, open) in connections {
            for (stream, number) in open {
                if is_faulted(number, &connection.ended(stream)) {
                    faulted[number % executions].push(number);
                }
            }
        }
        for (execution, faulted) in faulted.iter().enumerate() {
            assert_eq!(faulted.len(), 1, "{phase}, execution {execution}: {faulted:?}");
        }
        let reached = stage.reached();
        assert!(reached.iter().all(|calls| calls.len() > 1), "every replica was called");
        let reached: BTreeSet<_> = reached.into_iter().flatten().collect();
        let lost: BTreeSet<_> = (0..executions * calls).filter(|call| !reached.contains(&call.to_string())).collect();
        let expected = if phase == Phase::Request { faulted.concat().into_iter().collect() } else { BTreeSet::new() };
        assert_eq!(lost, expected, "{phase}: what was faulted, and nothing else, never came");
        entries.iter().for_each(|entry| stage.application.leave(entry));
        check_record(&stage.application.controller.spans(executions * (calls + 1)), executions, calls);
    }
}

#[test]
fn of_fifty_calls_over_two_replicas_one_is_faulted() {
    for _ in 0..20 {
        interleave(1, 50, 2);
    }
}

#[test]
fn in_each_of_a_thousand_interleaved_executions_one_call_is_faulted() {
    interleave(1000, 5, 4);
}
