//! What a fault of a plan must look like from outside: one call bears its mark, in the window that its target allows.
//!
//! A sidecar decides about a message somewhere between the instant at which its sender logged it and the instant at which
//! its receiver logged it or gave up; nobody outside sees where. So "it was the k-th" is judged by what is certain and what
//! is possible: at most k − 1 passes had certainly arrived before it, and at least k − 1 may have. Where all passes take
//! one connection they arrive in the order in which they were sent, and the number must be exact. Guards are judged alike:
//! evidence never says more than what happened, so a guard that held must have been true.

use aftershock_core::event::{ApiRef, EventKind, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Occurrence, Phase, Plan};
use std::collections::BTreeSet;
use std::time::Duration;

use super::{Answer, Call, Contradiction, Fate, Log};
use crate::events::{Nanoseconds, Outcome};
use crate::topology::Topology;

/// The mark of a fault of a plan, and where it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The fault in words.
    claim: String,
    mark: Mark,
    pass: Pass,
    /// The number; `None` for `first`.
    k: Option<usize>,
    atoms: Vec<(Pass, EventKind, OutcomeFilter, usize)>,
    ordered: bool,
}

/// What the fault leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    /// The two ends of the call disagree.
    Fate(Fate),
    /// The message took at least this long.
    Late(Duration),
    /// Nothing but an order.
    Released,
}

/// Which calls are meant, and which of their messages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pass {
    caller: Option<String>,
    /// Short names.
    apis: BTreeSet<String>,
    phase: Phase,
}

/// Why no window can be said of a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWindow {
    /// The topology does not know an Api of the plan.
    #[error("the topology has no Api {0}")]
    UnknownApi(String),
    /// The fault acts at an entry, where the lab sees one half only.
    #[error("the client's own requests leave no log of the client")]
    Entry,
}

impl Window {
    /// What the fault at `index` of `plan` must look like on `topology`. `ordered` says that all passes of its target take
    /// one connection: one instance on either side, and gRPC.
    ///
    /// # Errors
    /// When the logs cannot tell.
    pub fn of(topology: &Topology, plan: &Plan, index: usize, ordered: bool) -> Result<Self, NoWindow> {
        let tfic = &plan.faults[index];
        let target = &tfic.target;
        let apis = short_names(topology, plan, &target.api)?;
        let called = |service: &str| {
            apis.iter().any(|api| {
                topology
                    .callees(service)
                    .iter()
                    .any(|callee| topology.api(api).is_some_and(|api| api.service == callee.name))
            })
        };
        if target.caller.is_none() && !topology.services().iter().any(|service| called(&service.name)) {
            return Err(NoWindow::Entry);
        }
        let caller = target.caller.as_ref().map(|caller| caller.as_str().to_owned());
        let mark = match (&tfic.fault, target.phase) {
            (Fault::Delay(time), _) => Mark::Late(time.0),
            (Fault::Release, _) => Mark::Released,
            (_, Phase::Request) => Mark::Fate(Fate::RequestLost),
            (Fault::Drop | Fault::Reset(_), Phase::Response) => Mark::Fate(Fate::ResponseLost),
            (Fault::Abort | Fault::Error(_), Phase::Response) => Mark::Fate(Fate::ResponseReplaced),
        };
        let atom = |atom: &Atom| {
            let phase = if atom.event.is_response() { Phase::Response } else { Phase::Request };
            let caller = atom.caller.as_ref().map(|caller| caller.as_str().to_owned());
            let pass = Pass { caller, apis: short_names(topology, plan, &atom.api)?, phase };
            Ok((pass, atom.event, atom.outcome, usize::try_from(atom.count).unwrap_or(usize::MAX)))
        };
        Ok(Self {
            claim: format!("exactly one {target} bears the mark of {}, when {}", tfic.fault, tfic.guard),
            mark,
            pass: Pass { caller, apis, phase: target.phase },
            k: match target.k {
                Occurrence::Number(k) => Some(k as usize),
                Occurrence::First => None,
            },
            atoms: tfic.guard.after.iter().map(atom).collect::<Result<_, _>>()?,
            ordered,
        })
    }

    fn contradiction(&self, found: impl Into<String>) -> Contradiction {
        Contradiction { claim: self.claim.clone(), found: found.into() }
    }

    /// Whether the logs say so, and of which call.
    pub(super) fn judge<'a>(&self, log: &'a Log) -> Result<&'a Call, Contradiction> {
        let faulted: Vec<&Call> = log.faulted().collect();
        let listed = |calls: &[&Call]| {
            calls.iter().map(|call| format!("{call}: {:?}", call.fate())).collect::<Vec<_>>().join("; ")
        };
        let candidates: Vec<&Call> = match &self.mark {
            Mark::Fate(fate) => match faulted[..] {
                [] => return Err(self.contradiction("no call was interfered with")),
                [call] if self.pass.means(call) && call.fate() == *fate => vec![call],
                _ => return Err(self.contradiction(format!("interfered with were {}", listed(&faulted)))),
            },
            _ if !faulted.is_empty() => {
                return Err(self.contradiction(format!("interfered with were {}", listed(&faulted))));
            }
            Mark::Late(time) => {
                // A delay ends with the round, and that may be once the client has its answer.
                let late = |call: &&Call| {
                    let Some((sent, Some(arrived))) = self.pass.span(call) else { return false };
                    let told = log.execution(call).response_sent.as_ref().map(|answer| answer.at);
                    Duration::from_nanos(arrived.0 - sent.0) >= *time || told.is_some_and(|told| arrived > told)
                };
                log.calls().iter().filter(|call| self.pass.means(call)).filter(late).collect()
            }
            Mark::Released => log.calls().iter().filter(|call| self.pass.means(call)).collect(),
        };
        let mut found = Err(self.contradiction("no call of the target bears it"));
        for call in candidates {
            found = self.admits(log, call).map(|()| call);
            if found.is_ok() {
                break;
            }
        }
        found
    }

    /// Whether the fault leaves a mark that nothing else leaves: an order or a late message can come about by itself.
    pub fn is_unmistakable(&self) -> bool {
        matches!(self.mark, Mark::Fate(_))
    }

    /// Whether `call` is one that the target means.
    pub fn means(&self, call: &Call) -> bool {
        self.pass.means(call)
    }

    /// Whether the message of `call` can have been the one that was meant.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, log: &Log, call: &Call) -> Result<(), Contradiction> {
        let Some((sent, gone)) = self.pass.span(call) else {
            return Err(self.contradiction(format!("{call} has no such message")));
        };
        let execution = &log.execution(call).id;
        let before_gone = |at: Nanoseconds| gone.is_none_or(|gone| at < gone);
        if let Some(k) = self.k {
            let (mut certain, mut possible, mut in_order) = (0, 0, 0);
            let of_execution = |other: &&Call| other.id != call.id && log.execution(other).id == *execution;
            for other in log.calls().iter().filter(|other| self.pass.means(other)).filter(of_execution) {
                let Some((other_sent, arrived)) = self.pass.span(other) else { continue };
                certain += usize::from(arrived.is_some_and(|arrived| arrived <= sent));
                possible += usize::from(before_gone(other_sent));
                in_order += usize::from(other_sent < sent);
            }
            let (least, most) = if self.ordered { (in_order, in_order) } else { (certain, possible) };
            if !(least + 1..=most + 1).contains(&k) {
                let number =
                    if least == most { format!("{}", least + 1) } else { format!("{} to {}", least + 1, most + 1) };
                return Err(self.contradiction(format!("{call} was number {number}")));
            }
        }
        for (pass, event, outcome, count) in &self.atoms {
            // The decision sees the counts before its own message is counted.
            let same = event.is_response() == (self.pass.phase == Phase::Response) && event.at_caller();
            let counts = |other: &&Call| pass.means(other) && !(same && other.id == call.id);
            let in_execution = |other: &&Call| log.execution(other).id == *execution;
            let happened = log.calls().iter().filter(counts).filter(in_execution);
            let earliest = happened.filter_map(|other| instant(other, *event, *outcome));
            let so_far = earliest.filter(|at| before_gone(*at)).count();
            if so_far < *count {
                let apis = pass.apis.iter().map(String::as_str).collect::<Vec<_>>().join(" or ");
                return Err(self.contradiction(format!("{call}: only {so_far} {event} of {apis} can have been before")));
            }
        }
        Ok(())
    }
}

impl Pass {
    fn means(&self, call: &Call) -> bool {
        self.apis.contains(&call.api) && self.caller.as_ref().is_none_or(|caller| *caller == call.caller)
    }

    /// When the message was sent, and when it had arrived or its receiver had given it up; `None` if it never was or did.
    fn span(&self, call: &Call) -> Option<(Nanoseconds, Option<Nanoseconds>)> {
        let given_up = call.failed.as_ref().map(|(at, _)| *at);
        let answered = call.response_received.as_ref().map(|answer| answer.at);
        match self.phase {
            Phase::Request => Some((call.request_sent?, call.request_received.or(answered).or(given_up))),
            Phase::Response => Some((call.response_sent.as_ref()?.at, answered.or(given_up))),
        }
    }
}

/// The earliest instant at which a sidecar can have seen this event of a call, if it was.
fn instant(call: &Call, event: EventKind, outcome: OutcomeFilter) -> Option<Nanoseconds> {
    let admitted = |answer: &Answer| match outcome {
        OutcomeFilter::Any => true,
        OutcomeFilter::Ok => answer.outcome == Outcome::Ok,
        OutcomeFilter::Error => answer.outcome == Outcome::Error,
    };
    match event {
        EventKind::RequestSent => call.request_sent,
        // Of a client's own request only the callee's half is known, which is later than its sidecar's.
        EventKind::RequestReceived => {
            call.request_received.map(|at| call.request_sent.unwrap_or(Nanoseconds(0)).min(at))
        }
        EventKind::ResponseSent | EventKind::ResponseReceived => {
            // An answer that was made on the way has no sender.
            let answer = call.response_sent.as_ref().or(call.response_received.as_ref());
            answer.filter(|answer| admitted(answer)).map(|answer| answer.at)
        }
    }
}

fn short_names(topology: &Topology, plan: &Plan, api: &ApiRef) -> Result<BTreeSet<String>, NoWindow> {
    let apis = plan.resolve(api).map_err(|error| NoWindow::UnknownApi(error.0))?;
    let short = |wanted: &aftershock_core::name::Api| {
        let is_it = |api: &&crate::topology::Api| format!("{} {}", api.service, api.operation) == wanted.to_string();
        let found = topology.apis().find(is_it);
        found.map(|api| api.name.clone()).ok_or_else(|| NoWindow::UnknownApi(wanted.to_string()))
    };
    apis.iter().map(short).collect()
}
