//! Fixed scripts on the same network: retries, sequences, and the gap rules of design §3.2, each with its verdict.

use aftershock_control::api::{Finished, Verdict};
use aftershock_core::event::{ApiRef, EventKind, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, MaxInjections, Occurrence, Phase, Target, Tfic};
use aftershock_core::trace::Trace;

use crate::net::{Event, Net};
use crate::rounds::Clients;
use crate::system::{Node, Service, Step, System};

const ONE: Clients = Clients { number: 1, within: 0, retries: 0, sequence: 0 };

/// Services `s0`, `s1`, … with so many replicas, all gRPC but the entry; `nodes` are the calls, the first the client's.
fn system(replicas: &[usize], nodes: Vec<Node>) -> System {
    let service = |(at, replicas): (usize, &usize)| Service {
        name: format!("s{at}"),
        grpc: at > 0,
        replicas: *replicas,
        sidecar: true,
    };
    System {
        services: replicas.iter().enumerate().map(service).collect(),
        nodes,
        cancels: true,
        patience: 900_000,
        spread: 1_000,
        forgotten: Vec::new(),
    }
}

fn node(service: usize, steps: Vec<Step>) -> Node {
    Node { service, operation: 0, steps, fails: false, strict: true, retries: 0 }
}

fn calls(nodes: &[usize]) -> Step {
    Step::Calls(nodes.to_vec())
}

fn api(service: usize) -> ApiRef {
    ApiRef::Api(format!("s{service} sim.S/Op0").parse().unwrap())
}

/// Abort the k-th request of `caller` to `callee`.
fn abort(caller: Option<usize>, callee: usize, k: u32) -> Tfic {
    let caller = caller.map(|caller| format!("s{caller}").parse().unwrap());
    let target = Target { caller, ..Target::new(api(callee), Occurrence::Number(k), Phase::Request) };
    Tfic::new(target, Fault::Abort)
}

fn record(net: &mut Net, clients: Clients) -> Vec<Trace> {
    let round = net.start(None, clients, &[]).unwrap();
    net.finish(&[round]);
    net.rounds[round].finished.clone().unwrap().traces
}

/// Begin a round against a clean trace of the same clients.
fn begin(net: &mut Net, tfic: Tfic, clients: Clients) -> usize {
    let traces = record(net, clients);
    net.start(Some(tfic), clients, &traces).unwrap()
}

/// See it to its end; what the network found wrong is none of what a script expects.
#[track_caller]
fn end(net: &mut Net, round: usize) -> Finished {
    net.finish(&[round]);
    let (_, wrong) = net.check(round);
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(net.wrong, Vec::<String>::new());
    assert_eq!(net.leftovers(), Vec::<String>::new());
    net.rounds[round].finished.clone().unwrap()
}

#[track_caller]
fn assert_reason(finished: &Finished, verdict: Verdict, part: &str) {
    assert_eq!(finished.verdict, verdict, "{:?}", finished.faults[0].reasons);
    let reasons = &finished.faults[0].reasons;
    assert!(reasons.iter().any(|reason| reason.contains(part)), "{reasons:?}");
}

#[test]
fn a_client_that_retries_three_times_inside_a_round_is_faulted_once() {
    for replicas in [1, 3] {
        let failing = Node { fails: true, ..node(0, vec![calls(&[1])]) };
        let mut net = Net::new(system(&[replicas, 1], vec![failing, node(1, vec![])]), 7, &[], None);
        let round = begin(&mut net, abort(Some(0), 1, 1), Clients { retries: 3, ..ONE });
        let finished = end(&mut net, round);
        assert_reason(&finished, Verdict::Injected, "abort of the request of s1 sim.S/Op0 at s0, pass 1");
        assert_eq!(finished.traces.len(), 4, "each retry is an execution");
        let faulted: Vec<usize> = net.rounds[round].faults.iter().map(|fault| fault.attempt).collect();
        assert_eq!(faulted, [net.rounds[round].attempts[0]], "the first, and no other");
    }
}

#[test]
fn a_sequence_of_four_requests_declared_one_execution_counts_through() {
    for replicas in [1, 3] {
        let nodes = vec![node(0, vec![calls(&[1])]), node(1, vec![])];
        let mut net = Net::new(system(&[replicas, 1], nodes), 8, &[], None);
        let round = begin(&mut net, abort(Some(0), 1, 3), Clients { sequence: 3, ..ONE });
        let finished = end(&mut net, round);
        assert_reason(&finished, Verdict::Injected, "pass 3");
        assert_eq!(finished.traces.len(), 1);
        let [fault] = &net.rounds[round].faults[..] else { panic!("one fault") };
        assert_eq!(net.calls[fault.call].attempt, net.rounds[round].attempts[2], "in the third request");
    }
}

/// `s0` calls `s1`, which calls `s2`, twice; then `s0` calls `s3`.
fn through_a_hop(sidecar: bool) -> System {
    let nodes = vec![
        node(0, vec![calls(&[1]), calls(&[3]), calls(&[5])]),
        node(1, vec![calls(&[2])]),
        node(2, vec![]),
        node(1, vec![calls(&[4])]),
        node(2, vec![]),
        node(3, vec![]),
    ];
    let mut system = system(&[1, 1, 1, 1], nodes);
    system.services[1].sidecar = sidecar;
    system
}

#[test]
fn behind_a_hop_without_sidecar_numbers_count_at_the_callee() {
    let mut net = Net::new(through_a_hop(false), 9, &[], None);
    let round = begin(&mut net, abort(None, 2, 2), ONE);
    let finished = end(&mut net, round);
    assert_reason(&finished, Verdict::Injected, "at s2, pass 2");
}

#[test]
fn behind_a_hop_without_sidecar_a_false_guard_is_unknown_and_the_verdict_incomplete() {
    for (sidecar, verdict, part) in [
        (true, Verdict::Injected, "abort of the request of s3 sim.S/Op0 at s0"),
        (false, Verdict::Incomplete, "it is not known whether the guard held, because of a gap"),
    ] {
        let mut net = Net::new(through_a_hop(sidecar), 10, &[], None);
        let mut tfic = abort(Some(0), 3, 1);
        tfic.guard.after.push(Atom {
            event: EventKind::ResponseSent,
            api: api(2),
            caller: None,
            outcome: OutcomeFilter::Any,
            count: 2,
        });
        // Recorded when every hop had its sidecar: without it arming would refuse such a guard.
        let traces = record(&mut Net::new(through_a_hop(true), 10, &[], None), ONE);
        let round = net.start(Some(tfic), ONE, &traces).unwrap();
        let finished = end(&mut net, round);
        assert_reason(&finished, verdict, part);
        assert_eq!(net.rounds[round].faults.len(), usize::from(sidecar));
    }
}

/// `s0` calls `s1` so often, with a pause before each call; each calls `s2`.
fn visits(replicas: usize, number: usize) -> System {
    let mut nodes = vec![node(0, vec![])];
    for visit in 0..number {
        nodes[0].steps.extend([Step::Work(40_000), calls(&[1 + 2 * visit])]);
        nodes.extend([node(1, vec![calls(&[2 + 2 * visit])]), node(2, vec![])]);
    }
    system(&[1, replicas, 1], nodes)
}

#[test]
fn an_evicted_execution_is_not_faulted_by_number_and_the_verdict_incomplete() {
    let two = Clients { number: 2, within: 2_000, ..ONE };
    let mut net = Net::new(visits(1, 2), 11, &[], Some(1));
    let round = begin(&mut net, abort(Some(1), 2, 2), two);
    let finished = end(&mut net, round);
    assert_reason(&finished, Verdict::Incomplete, "number gap noticed by the sidecar of s1");
    assert_eq!(net.rounds[round].faults.len(), 0);

    // With a place for each of them nothing is forgotten.
    let mut net = Net::new(visits(1, 2), 11, &[], Some(2));
    let round = begin(&mut net, abort(Some(1), 2, 2), two);
    let finished = end(&mut net, round);
    assert_reason(&finished, Verdict::Injected, "at s1, pass 2");
}

#[test]
fn a_sidecar_that_joins_late_keeps_numbers_of_its_service_from_being_trusted() {
    let late = 2;
    let mut net = Net::new(visits(2, 4), 12, &[late], None);
    let round = begin(&mut net, abort(Some(1), 2, 4), ONE);
    // Armed within milliseconds; the first call comes after some forty.
    net.later(20_000, Event::Boot(late));
    let finished = end(&mut net, round);
    let reasons = format!("{:?}", finished.faults[0].reasons);
    assert_eq!(finished.verdict, Verdict::Incomplete, "{reasons}");
    assert!(reasons.contains("the instance was not armed"), "{reasons}");
    assert!(reasons.contains("number gap noticed by the sidecar of s1"), "{reasons}");
    assert_eq!(net.rounds[round].faults.len(), 0);

    // Nobody joins: the one instance counts all four.
    let mut net = Net::new(visits(2, 4), 12, &[late], None);
    let round = begin(&mut net, abort(Some(1), 2, 4), ONE);
    let finished = end(&mut net, round);
    assert_reason(&finished, Verdict::Injected, "at s1, pass 4");
}

#[test]
fn a_call_without_context_keeps_numbers_beneath_it_from_being_trusted() {
    // Over one instance of the caller and over two, of which only one may see the execution at all.
    for replicas in [1, 2] {
        let mut net = Net::new(visits(replicas, 3), 14, &[], None);
        let traces = record(&mut net, ONE);
        net.system.forgotten = vec![1];
        let round = net.start(Some(abort(Some(1), 2, 2)), ONE, &traces).unwrap();
        let finished = end(&mut net, round);
        assert_eq!(finished.verdict, Verdict::Incomplete, "{:?}", finished.faults[0].reasons);
        assert_eq!(net.rounds[round].faults.len(), 0, "the second that is seen is the third");
    }
}

#[test]
fn no_fault_happens_when_the_lease_has_lapsed() {
    let mut net = Net::new(visits(1, 1), 13, &[], None);
    net.system.nodes[0].steps.insert(0, Step::Work(14_000_000));
    let mut tfic = abort(Some(1), 2, 1);
    let traces = {
        let mut clean = Net::new(visits(1, 1), 13, &[], None);
        record(&mut clean, ONE)
    };
    tfic.max_injections = MaxInjections::Limited(1);
    let round = net.start(Some(tfic), ONE, &traces).unwrap();
    net.run_for(20_000);
    net.silent_until = net.now + 13_000_000;
    let finished = end(&mut net, round);
    assert_reason(&finished, Verdict::Inconclusive, "the lease lapsed at the sidecar of s");
    assert_eq!(net.rounds[round].faults.len(), 0);
}
