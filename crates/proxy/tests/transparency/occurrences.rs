//! The third of many gRPC calls of an execution, with real sidecars: one fault in each execution, and the right one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Fault, Phase, Side};
use aftershock_core::span::CallSpan;

use crate::support::brain::{Back, Controller, Front, TOKEN};
use crate::support::http2::{Came, Echo, End, Fields, Http2, value};
use crate::support::rules::{everywhere, rule};
use crate::support::sidecar::Sidecar;

/// Which of the calls is faulted.
const K: u32 = 3;

/// `front`, whose application is the test, and the replicas of `back` that it calls; the third call of each execution is
/// faulted.
struct Stage {
    controller: Controller,
    front: Sidecar,
    origins: Vec<Echo>,
    client: Http2,
    application: Http2,
    _backs: Vec<Sidecar>,
}

/// A request to `front` that its application has not answered yet.
struct Entry {
    stream: u32,
    /// What the application hands on.
    context: Fields,
}

impl Stage {
    fn armed(replicas: usize, phase: Phase) -> Self {
        let origins: Vec<_> = (0..replicas).map(|_| Echo::start()).collect();
        let backs: Vec<_> = origins.iter().map(|origin| Back::before(origin.address).start()).collect();
        let addresses: Vec<_> = backs.iter().map(|back| back.address).collect();
        let application = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = application.local_addr().expect("a bound socket");
        let (front, mut controller) = Front::calling(&addresses).before(address).told();
        controller.arm(vec![everywhere(rule(Some("front"), "back shop.Item/Get", K, phase, Fault::Abort))]);
        let client = Http2::connect(front.address);
        let application = Http2::accept(&application);
        Stage { controller, front, origins, client, application, _backs: backs }
    }

    /// A connection of the application's to `back`.
    fn connect(&self) -> Http2 {
        Http2::connect(self.front.addresses[1])
    }

    /// A request of the round begins an execution.
    fn enter(&mut self) -> Entry {
        let stream = self.client.open("GET", "/page", &[("tracestate", &format!("aft=1-0-0-{TOKEN}-0"))], true);
        // There is one upstream connection for this one, and nothing else on either.
        let seen = self.application.ended(stream);
        let handed_on = |name: &str| (name.to_owned(), seen.field(name).expect("the sidecar wrote it").to_owned());
        Entry { stream, context: ["traceparent", "tracestate"].map(handed_on).to_vec() }
    }

    /// The application answers.
    fn leave(&mut self, entry: &Entry) {
        self.application.head(entry.stream, &[(":status", "200")], true);
        assert_eq!(self.client.ended(entry.stream).field(":status"), Some("200"));
    }

    /// How many of these calls, by their numbers, reached a replica since the last time, for each replica.
    fn reached(&self) -> Vec<BTreeSet<String>> {
        let numbers = |requests: Vec<Fields>| {
            requests.iter().map(|fields| value(fields, "call").expect("its number").to_owned()).collect()
        };
        self.origins.iter().map(|origin| numbers(origin.requests())).collect()
    }
}

/// A gRPC message that nothing else says.
fn message(number: usize) -> Vec<u8> {
    let text = format!("message of call {number}");
    [&[0][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// Begins a call.
fn call(connection: &mut Http2, entry: &Entry, number: usize) -> u32 {
    let mark = number.to_string();
    let mut fields = vec![("content-type", "application/grpc"), ("te", "trailers"), ("call", mark.as_str())];
    fields.extend(entry.context.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let stream = connection.open("POST", "/shop.Item/Get", &fields, false);
    connection.data(stream, &message(number), true);
    stream
}

/// Whether a call was faulted; if not, it has its own answer.
fn is_faulted(number: usize, seen: &Came) -> bool {
    assert_eq!((seen.ended, seen.field(":status")), (Some(End::Stream), Some("200")), "{seen:?}");
    match seen.field("grpc-status") {
        Some("14") => assert_eq!(seen.body, b"", "{seen:?}"),
        status => assert_eq!((status, &seen.body), (Some("0"), &message(number)), "{seen:?}"),
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
            let entry = stage.enter();
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
            stage.leave(&entry);
            check_record(&stage.controller.spans(CALLS + 1), 1, CALLS);
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
        let entries: Vec<_> = (0..executions).map(|_| stage.enter()).collect();
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
        entries.iter().for_each(|entry| stage.leave(entry));
        check_record(&stage.controller.spans(executions * (calls + 1)), executions, calls);
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
