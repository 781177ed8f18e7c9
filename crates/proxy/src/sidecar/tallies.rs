//! What operators want to see of a sidecar: counted by plain additions as it happens, told when it is asked for.
//!
//! Beside what `counters` tells the controller. All of it is about this process since its start; nothing is kept by
//! execution, Api or round.

use aftershock_core::event::{EventKind, Outcome};
use aftershock_core::evidence::GapKind;
use aftershock_core::span::{Association, Injection, Pass, PassedBy};

use super::Sidecar;
use super::counters::Ignored;
use crate::exchange::Door;
use crate::metrics::Exposition;

const EVENTS: [EventKind; 4] =
    [EventKind::RequestSent, EventKind::RequestReceived, EventKind::ResponseSent, EventKind::ResponseReceived];
const OUTCOMES: [Option<Outcome>; 4] = [None, Some(Outcome::Ok), Some(Outcome::Error), Some(Outcome::Unknown)];
const FAULTS: [&str; 6] = ["delay", "drop", "reset", "abort", "error", "release"];
/// How rules decided on passes, in the order of [`verdict`].
const VERDICTS: [&str; 17] = [
    "injected",
    "number",
    "guard-false",
    "guard-unknown",
    "number-blocked",
    "outcome",
    "spent",
    "hold-deadline",
    "disarmed",
    "caller-gone",
    "pipelined",
    "goaway",
    "size",
    "parked-limit",
    "stream",
    "arbiter",
    "round-over",
];
const DIRECTIONS: [&str; 2] = ["inbound", "outbound"];
/// Bounds of the buckets of [`aftershock_core::wire::Counters::evidence`]: a hop header has at most 1,024 bytes.
const HOP_BYTES: [u16; 6] = [32, 64, 128, 256, 512, 1024];

fn verdict(pass: &Pass) -> usize {
    let Some(why) = &pass.passed_by else { return 0 };
    match why {
        PassedBy::Number => 1,
        PassedBy::GuardFalse(_) => 2,
        PassedBy::GuardUnknown(_) => 3,
        PassedBy::NumberBlocked => 4,
        PassedBy::Outcome => 5,
        PassedBy::Spent => 6,
        PassedBy::HoldDeadline => 7,
        PassedBy::Disarmed => 8,
        PassedBy::CallerGone => 9,
        PassedBy::Pipelined => 10,
        PassedBy::Goaway => 11,
        PassedBy::Size => 12,
        PassedBy::ParkedLimit => 13,
        PassedBy::Stream => 14,
        PassedBy::Arbiter => 15,
        PassedBy::RoundOver => 16,
    }
}

fn direction(door: Door) -> usize {
    match door {
        Door::Inbound(_) | Door::RedirectedIn(_) => 0,
        Door::Outbound(_) | Door::RedirectedOut(_) => 1,
    }
}

/// Counted since the process began.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// By kind and outcome.
    events: [[u64; OUTCOMES.len()]; EVENTS.len()],
    decisions: [u64; VERDICTS.len()],
    injections: [u64; FAULTS.len()],
    /// Gaps of the kinds number and evidence, and those of an unknown place.
    gaps: [u64; 3],
    armed: u64,
    not_armed: u64,
    lapsed: u64,
    opened: [u64; 2],
    gone: [u64; 2],
    /// Connections to callees that were cut off: those that were open, those that came later.
    cut: [u64; 2],
}

impl Tallies {
    /// A boundary event. The outcome is that of a response.
    pub(crate) fn event(&mut self, event: EventKind, outcome: Option<Outcome>) {
        let outcome = match outcome {
            None => 0,
            Some(Outcome::Ok) => 1,
            Some(Outcome::Error) => 2,
            Some(Outcome::Unknown) => 3,
        };
        let event = match event {
            EventKind::RequestSent => 0,
            EventKind::RequestReceived => 1,
            EventKind::ResponseSent => 2,
            EventKind::ResponseReceived => 3,
        };
        self.events[event][outcome] += 1;
    }

    /// A call ended of which rules took passes.
    pub(crate) fn decided(&mut self, passes: &[Pass], injection: Option<&Injection>) {
        for pass in passes {
            self.decisions[verdict(pass)] += 1;
        }
        let kind = |injection: &Injection| FAULTS.iter().position(|name| injection.fault.starts_with(name));
        if let Some(fault) = injection.and_then(kind) {
            self.injections[fault] += 1;
        }
    }

    /// A gap was set here in an execution that had none like it.
    pub(crate) fn gap(&mut self, kind: GapKind) {
        self.gaps[match kind {
            GapKind::Number => 0,
            GapKind::Evidence => 1,
        }] += 1;
    }

    /// A gap was set here, and nobody can say where what is missing would be.
    pub(crate) fn gap_anywhere(&mut self) {
        self.gaps[2] += 1;
    }

    /// The answer to an arming.
    pub(crate) fn arming(&mut self, taken: bool) {
        *(if taken { &mut self.armed } else { &mut self.not_armed }) += 1;
    }

    /// A lease ran out.
    pub(crate) fn lapsed(&mut self) {
        self.lapsed += 1;
    }

    /// A connection was accepted.
    pub(crate) fn opened(&mut self, door: Door) {
        self.opened[direction(door)] += 1;
    }

    /// A connection breaks because its callee is cut off.
    pub(crate) fn broken(&mut self) {
        self.cut[0] += 1;
    }

    /// A connection leads to a callee that is cut off.
    pub(crate) fn refused(&mut self) {
        self.cut[1] += 1;
    }

    /// A connection is gone.
    pub(crate) fn gone(&mut self, door: Door) {
        self.gone[direction(door)] += 1;
    }
}

impl Sidecar {
    /// What there is to see of it.
    pub(crate) fn expose(&self, to: &mut Exposition) {
        let told = self.counters.told();
        self.expose_connections(to);
        let mut events = to.counter("aftershock_events_total", "Boundary events of calls; requests have no outcome.");
        for (event, counts) in EVENTS.iter().zip(&self.tallies.events) {
            for (outcome, count) in OUTCOMES.iter().zip(counts) {
                if event.is_response() == outcome.is_some() {
                    let outcome = outcome.map_or_else(|| "none".to_owned(), |outcome| outcome.to_string());
                    events = events.sample(&[("event", event.as_str()), ("outcome", &outcome)], count);
                }
            }
        }
        let mut steps =
            to.counter("aftershock_associations_total", "Calls by the step that tied them to their execution.");
        for step in Association::ALL {
            let count = told.associations.get(&step).copied().unwrap_or_default();
            steps = steps.sample(&[("step", &step.to_string())], count);
        }
        let mut ignored = to.counter("aftershock_ignored_total", "Things that came and did not count, by kind.");
        for what in Ignored::ALL {
            let count = told.ignored.get(what.as_str()).copied().unwrap_or_default();
            ignored = ignored.sample(&[("kind", what.as_str())], count);
        }
        let mut gaps = to.counter("aftershock_gaps_total", "Gaps that this sidecar set in executions, by kind.");
        for (kind, count) in ["number", "evidence", "any"].iter().zip(self.tallies.gaps) {
            gaps = gaps.sample(&[("kind", kind)], count);
        }
        to.histogram(
            "aftershock_hop_header_bytes",
            "Lengths of the hop headers with evidence of rounds that left.",
            &HOP_BYTES,
            &told.evidence,
        );
        let ordinary = told.ordinary;
        to.counter("aftershock_ordinary_requests_total", "Entry requests of no round that ended, by outcome.")
            .sample(&[("outcome", "ok")], ordinary.requests - ordinary.errors)
            .sample(&[("outcome", "error")], ordinary.errors);
        self.expose_rounds(to);
    }

    fn expose_connections(&self, to: &mut Exposition) {
        let (opened, gone) = (self.tallies.opened, self.tallies.gone);
        let mut total = to.counter("aftershock_connections_total", "Connections that were accepted.");
        for (direction, opened) in DIRECTIONS.iter().zip(opened) {
            total = total.sample(&[("direction", direction)], opened);
        }
        let mut open = to.gauge("aftershock_open_connections", "Accepted connections that are open.");
        for (index, direction) in DIRECTIONS.iter().enumerate() {
            open = open.sample(&[("direction", direction)], opened[index] - gone[index]);
        }
        to.counter(
            "aftershock_opaque_connections_total",
            "Connections that turned out to be neither HTTP/1 nor HTTP/2.",
        )
        .value(self.counters.told().opaque);
        to.gauge("aftershock_open_exchanges", "Requests whose exchange is not over.").value(self.exchanges.len());
    }

    fn expose_rounds(&self, to: &mut Exposition) {
        to.counter("aftershock_armings_total", "Plans that this sidecar was armed with, by what came of it.")
            .sample(&[("result", "armed")], self.tallies.armed)
            .sample(&[("result", "refused")], self.tallies.not_armed);
        to.counter("aftershock_lapsed_leases_total", "Rounds whose lease ran out here.").value(self.tallies.lapsed);
        to.gauge("aftershock_active_leases", "Rounds that are live here.").value(self.rounds.tokens().len());
        to.gauge("aftershock_armed_rules", "Rules that may act here now.").value(self.rounds.rules());
        to.gauge("aftershock_armed_cuts", "Callees that are cut off now, by each round.")
            .value(self.rounds.cuts_armed());
        let [broken, refused] = self.tallies.cut;
        to.counter(
            "aftershock_cut_connections_total",
            "Connections to callees that were cut off, by what became of them.",
        )
        .sample(&[("result", "broken")], broken)
        .sample(&[("result", "refused")], refused);
        to.gauge("aftershock_parked_messages", "Messages that a hold or a delay keeps.").value(self.rounds.parked());
        to.gauge("aftershock_asking_calls", "Calls about which the arbiter was asked.").value(self.asking.len());
        let mut decisions = to.counter(
            "aftershock_rule_decisions_total",
            "Passes of rules in calls that have ended: injected, or why not.",
        );
        for (verdict, count) in VERDICTS.iter().zip(self.tallies.decisions) {
            decisions = decisions.sample(&[("verdict", verdict)], count);
        }
        let mut injections = to.counter("aftershock_injections_total", "Faults in calls that have ended, by kind.");
        for (fault, count) in FAULTS.iter().zip(self.tallies.injections) {
            injections = injections.sample(&[("fault", fault)], count);
        }
    }
}
