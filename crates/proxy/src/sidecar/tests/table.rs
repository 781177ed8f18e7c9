//! The table of design §3.4 as a table: every cell, for HTTP/1.1 and gRPC, where the caller has a sidecar and where it has
//! none. [`expected`] is a second reading of it, which knows nothing of rules, evidence or frames.

use std::collections::BTreeMap;
use std::time::Duration;

use aftershock_core::event::{Event, EventKind, Outcome, OutcomeFilter};
use aftershock_core::evidence::Evidence;
use aftershock_core::id::ExecutionId;
use aftershock_core::plan::{Fault, Occurrence, Phase, Rule, Side};
use aftershock_core::span::CallSpan;
use proptest::prelude::*;

use crate::exchange::Closed;
use crate::sidecar::testing::*;

const DELAY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Speaks {
    Http,
    Grpc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delay,
    /// The caller leaves while it lasts.
    DelayLeft,
    Abort,
    Error,
    Reset,
    Drop,
}

const KINDS: [Kind; 6] = [Kind::Delay, Kind::DelayLeft, Kind::Abort, Kind::Error, Kind::Reset, Kind::Drop];

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Answered,
    Failed,
    Request(Kind),
    Response(Kind),
    GivesUp,
    Refused,
    Dies,
}

fn rows() -> Vec<Row> {
    let faults = [Phase::Request, Phase::Response].into_iter().flat_map(|phase| {
        KINDS.map(|kind| if phase == Phase::Request { Row::Request(kind) } else { Row::Response(kind) })
    });
    [Row::Answered, Row::Failed, Row::GivesUp, Row::Refused, Row::Dies].into_iter().chain(faults).collect()
}

/// Request sent, response received `ok`, response received `error`; or what the callee's sidecar sees of it.
type Counts = (u64, u64, u64);

/// Whether the upstream is contacted, and what the caller's and the callee's sidecar count.
fn expected(row: Row) -> (bool, Counts, Counts) {
    const NONE: Counts = (0, 0, 0);
    match row {
        Row::Answered => (true, (1, 1, 0), (1, 1, 0)),
        Row::Failed => (true, (1, 0, 1), (1, 0, 1)),
        Row::Request(Kind::Delay) => (true, (1, 1, 0), (1, 1, 0)),
        Row::Request(Kind::DelayLeft | Kind::Drop) => (false, (1, 0, 0), NONE),
        Row::Request(Kind::Abort | Kind::Error | Kind::Reset) => (false, (1, 0, 1), NONE),
        Row::Response(Kind::Delay) => (true, (1, 1, 0), (1, 1, 0)),
        Row::Response(Kind::DelayLeft | Kind::Drop) => (true, (1, 0, 0), (1, 1, 0)),
        Row::Response(Kind::Abort | Kind::Error | Kind::Reset) => (true, (1, 0, 1), (1, 1, 0)),
        Row::GivesUp => (true, (1, 0, 0), (1, 0, 0)),
        Row::Refused => (true, (1, 0, 1), NONE),
        Row::Dies => (true, (1, 0, 1), (1, 0, 1)),
    }
}

impl Row {
    fn fault(self) -> Option<(Phase, Kind)> {
        match self {
            Row::Request(kind) => Some((Phase::Request, kind)),
            Row::Response(kind) => Some((Phase::Response, kind)),
            _ => None,
        }
    }

    /// Whether a response comes to the sidecar that acts.
    fn is_answered(self) -> bool {
        match self {
            Row::Answered | Row::Failed | Row::Response(_) => true,
            Row::Request(kind) => kind == Kind::Delay,
            Row::GivesUp | Row::Refused | Row::Dies => false,
        }
    }
}

impl Kind {
    fn fault(self) -> Fault {
        match self {
            Kind::Delay | Kind::DelayLeft => Fault::Delay(DELAY.into()),
            Kind::Abort => Fault::Abort,
            Kind::Error => Fault::Error(Default::default()),
            Kind::Reset => Fault::Reset(Default::default()),
            Kind::Drop => Fault::Drop,
        }
    }
}

impl Speaks {
    fn api(self) -> &'static str {
        match self {
            Speaks::Http => "payment POST /pay",
            Speaks::Grpc => "payment shop.Payment/Charge",
        }
    }

    fn request(self) -> Request {
        match self {
            Speaks::Http => Request::http("POST", "/pay"),
            Speaks::Grpc => Request::grpc("shop.Payment/Charge"),
        }
    }

    fn response(self, ok: bool) -> Response {
        match (self, ok) {
            (Speaks::Http, true) => Response::http(200).with_body("paid"),
            (Speaks::Http, false) => Response::http(500),
            (Speaks::Grpc, true) => Response::grpc(0).with_messages(&[4]),
            (Speaks::Grpc, false) => Response::trailers_only(9),
        }
    }
}

fn outcome(kind: EventKind, outcome: OutcomeFilter, speaks: Speaks) -> Event {
    Event { outcome, ..event(kind, speaks.api()) }
}

fn counts(evidence: &Evidence, side: Side, speaks: Speaks) -> Counts {
    let count = |phase: Phase, of| evidence.count(outcome(phase.event(side), of, speaks).id());
    let (ok, error) = (count(Phase::Response, OutcomeFilter::Ok), count(Phase::Response, OutcomeFilter::Error));
    assert_eq!(count(Phase::Response, OutcomeFilter::Any), ok + error);
    (count(Phase::Request, OutcomeFilter::Any), ok, error)
}

/// Calls of one execution, one after the other, each with what happens to it.
struct Table {
    net: Net,
    /// The caller's sidecar acts; else there is none, and every call is an entry.
    seen: Option<Request>,
}

const EXECUTION: ExecutionId = ExecutionId(0xe);

impl Table {
    /// For each call that a fault hits: a rule with the number that the call has among the passes of its phase.
    fn rules(calls: &[(Speaks, Row)], side: Side) -> Vec<Rule> {
        let mut passes: BTreeMap<(Speaks, bool), u32> = BTreeMap::new();
        let mut rules = Vec::new();
        for (speaks, row) in calls {
            let mut number = |phase: Phase| {
                let passed = passes.entry((*speaks, phase == Phase::Request)).or_default();
                *passed += 1;
                *passed
            };
            let (request, response) = (number(Phase::Request), row.is_answered().then(|| number(Phase::Response)));
            let Some((phase, kind)) = row.fault() else { continue };
            let k = if phase == Phase::Request { Some(request) } else { response };
            let service = if side == Side::Caller { "checkout" } else { "payment" };
            let k = Occurrence::Number(k.expect("a response that is faulted has come"));
            rules.push(Rule { index: rules.len(), ..rule(service, side, speaks.api(), k, phase, kind.fault()) });
        }
        rules
    }

    fn new(calls: &[(Speaks, Row)], side: Side) -> Self {
        let mut net = Net::new(&["checkout", "payment"]);
        let filters = [OutcomeFilter::Any, OutcomeFilter::Ok, OutcomeFilter::Error];
        let mut events = Vec::new();
        for speaks in [Speaks::Http, Speaks::Grpc] {
            for side in [Side::Caller, Side::Callee] {
                events.push(event(Phase::Request.event(side), speaks.api()));
                events.extend(filters.map(|of| outcome(Phase::Response.event(side), of, speaks)));
            }
        }
        net.arm(&Table::rules(calls, side), &events);
        let buy = Request::http("POST", "/buy").with("tracestate", &format!("aft=1-{EXECUTION}-0-{ROUND}-0"));
        let seen = (side == Side::Caller).then(|| net.come_in("checkout", buy).1.through());
        Table { net, seen }
    }

    /// One call, from its request to its end. Returns whether the upstream of the sidecar that acts was contacted.
    fn call(&mut self, speaks: Speaks, row: Row) -> bool {
        let (leg, passage) = match &self.seen {
            Some(seen) => self.net.go_out("checkout", "payment", speaks.request().within(seen)),
            None => {
                let entry = speaks.request().with("tracestate", &format!("aft=1-{EXECUTION}-0-{ROUND}-0"));
                self.net.come_in("payment", entry)
            }
        };
        let sent = match (row, passage) {
            (Row::Request(Kind::Delay | Kind::DelayLeft), Passage::Kept) => {
                if row == Row::Request(Kind::DelayLeft) {
                    self.net.close(&leg, Closed::ByApplication);
                }
                self.net.pass_time_renewing(DELAY);
                match self.net.resumed().pop() {
                    Some((_, Resumed::Request(Passage::Through(sent)))) => sent,
                    None => return false,
                    other => panic!("{other:?}"),
                }
            }
            (Row::Request(Kind::Drop), Passage::Dropped) => {
                self.net.close(&leg, Closed::ByApplication);
                return false;
            }
            (Row::Request(Kind::Abort | Kind::Error), Passage::Made(_))
            | (Row::Request(Kind::Reset), Passage::Reset) => {
                return false;
            }
            (_, Passage::Through(sent)) => sent,
            (row, passage) => panic!("{row:?}: {passage:?}"),
        };
        if row == Row::Refused {
            self.net.close(&leg, Closed::ByUpstream);
            return true;
        }
        // The payment's sidecar, where it is not the one that acts.
        let into = self.seen.is_some().then(|| {
            let (into, seen) = self.net.come_in("payment", sent);
            seen.through();
            into
        });
        let legs: Vec<Leg> = into.clone().into_iter().chain([leg.clone()]).collect();
        let early = match row {
            Row::Dies => Some(Closed::ByUpstream),
            Row::GivesUp => Some(Closed::ByApplication),
            _ => None,
        };
        if let Some(how) = early {
            legs.iter().for_each(|leg| self.net.close(leg, how));
            return true;
        }
        let mut response = speaks.response(row != Row::Failed);
        if let Some(into) = &into {
            response = self.net.response(into, response).through();
        }
        match (row, self.net.response(&leg, response)) {
            (Row::Response(Kind::Delay | Kind::DelayLeft), Passage::Kept) => {
                if row == Row::Response(Kind::DelayLeft) {
                    self.net.close(&leg, Closed::ByApplication);
                }
                self.net.pass_time_renewing(DELAY);
                assert_eq!(self.net.resumed().len(), usize::from(row == Row::Response(Kind::Delay)));
            }
            (Row::Response(Kind::Drop), Passage::Dropped) => self.net.close(&leg, Closed::ByApplication),
            (Row::Response(Kind::Abort | Kind::Error), Passage::Made(_)) => {}
            (Row::Response(Kind::Reset), Passage::Reset) => {}
            (Row::Answered | Row::Failed | Row::Request(Kind::Delay), Passage::Through(_)) => {}
            (row, passage) => panic!("{row:?}: {passage:?}"),
        }
        true
    }

    fn spans(&mut self, service: &str) -> Vec<CallSpan> {
        self.net.spans(service)
    }
}

fn add(sums: &mut BTreeMap<(bool, Speaks), Counts>, acting: bool, speaks: Speaks, more: Counts) {
    let sum = sums.entry((acting, speaks)).or_default();
    *sum = (sum.0 + more.0, sum.1 + more.1, sum.2 + more.2);
}

fn check(calls: &[(Speaks, Row)], side: Side) {
    let mut table = Table::new(calls, side);
    let acting = if side == Side::Caller { "checkout" } else { "payment" };
    let mut sums = BTreeMap::new();
    for (index, (speaks, row)) in calls.iter().enumerate() {
        let (contacted, here, there) = expected(*row);
        assert_eq!(table.call(*speaks, *row), contacted, "{side:?} call {index}: {speaks:?} {row:?}");
        add(&mut sums, true, *speaks, here);
        add(&mut sums, false, *speaks, there);
        for speaks in [Speaks::Http, Speaks::Grpc] {
            let evidence = table.net.evidence(acting, EXECUTION);
            let sum = sums.get(&(true, speaks)).copied().unwrap_or_default();
            assert_eq!(counts(&evidence, side, speaks), sum, "{side:?} call {index}: {speaks:?} {row:?}");
            if side == Side::Caller {
                let evidence = table.net.evidence("payment", EXECUTION);
                let sum = sums.get(&(false, speaks)).copied().unwrap_or_default();
                assert_eq!(counts(&evidence, Side::Callee, speaks), sum, "callee, call {index}: {speaks:?} {row:?}");
            }
        }
        let span = table.spans(acting).pop().expect("every call is recorded");
        let (phase, kind) = row.fault().unzip();
        assert_eq!(span.injection.is_some(), kind.is_some(), "{row:?} is injected, also if its caller left first");
        let made = matches!(kind, Some(Kind::Abort | Kind::Error));
        assert_eq!((span.made, span.response.is_some()), (made, here.1 + here.2 == 1), "{row:?}");
        if phase == Some(Phase::Request) && *row != Row::Request(Kind::Delay) {
            assert!(!span.evidence_went, "{row:?}: nothing left");
        }
    }
}

#[test]
fn every_cell_counts_what_the_table_says() {
    for side in [Side::Caller, Side::Callee] {
        for speaks in [Speaks::Http, Speaks::Grpc] {
            for row in rows() {
                check(&[(speaks, row)], side);
                check(&[(speaks, Row::Answered), (speaks, row), (speaks, Row::Answered)], side);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn counts_are_the_sum_of_what_happened_to_each_call(
        calls in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..12),
        entry in any::<bool>(),
    ) {
        let rows = rows();
        let calls: Vec<(Speaks, Row)> = calls
            .into_iter()
            .map(|(grpc, row)| (if grpc { Speaks::Grpc } else { Speaks::Http }, *row.get(&rows)))
            .collect();
        check(&calls, if entry { Side::Callee } else { Side::Caller });
    }
}

#[test]
fn probes_are_neither_faulted_nor_counted_nor_recorded() {
    let rule = |of: &str, phase| rule("checkout", Side::Caller, of, Occurrence::First, phase, Fault::Abort);
    let check = "payment grpc.health.v1.Health/Check";
    let live = "payment GET /live";
    let mut net = Net::new(&["checkout", "payment"]);
    let events = [check, live].map(|of| event(EventKind::RequestSent, of));
    net.arm(&[rule(check, Phase::Request), Rule { index: 1, ..rule(live, Phase::Response) }], &events);
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    let kubelet = Request::http("GET", "/live").with("user-agent", "kube-probe/1.33");
    for (request, response) in
        [(Request::grpc("grpc.health.v1.Health/Check"), Response::grpc(0)), (kubelet, Response::http(200))]
    {
        let (out, passage) = net.go_out("checkout", "payment", request.within(&seen));
        passage.through();
        net.response(&out, response).through();
    }
    let evidence = net.evidence("checkout", seen.member().unwrap().execution);
    assert_eq!(events.map(|event| evidence.count(event.id())), [0, 0]);
    assert!(net.spans("checkout").is_empty());
}

#[test]
fn the_only_events_of_a_tunnel_are_its_heads() {
    let of = "payment CONNECT *";
    let mut net = Net::new(&["checkout", "payment"]);
    let received = event(EventKind::ResponseReceived, of);
    net.arm(&[], &[received.clone(), event(EventKind::RequestSent, of)]);
    let seen = net.come_in("checkout", tagged(Request::http("POST", "/buy"))).1.through();
    let (out, passage) = net.go_out("checkout", "payment", Request::http("CONNECT", "payment:80").within(&seen));
    let (into, seen_there) = net.come_in("payment", passage.through());
    seen_there.through();
    let head = net.response_head(&into, Response::http(200));
    net.response_head(&out, head);
    net.close(&out, Closed::ByApplication);
    let span = net.spans("checkout").pop().unwrap();
    assert_eq!((span.api.to_string(), span.outcome), (of.to_owned(), Some(Outcome::Ok)));
    let evidence = net.evidence("checkout", seen.member().unwrap().execution);
    assert_eq!(evidence.count(received.id()), 1, "though the caller went before the tunnel's end");
}
