//! What is in of a round, whether that is all, and what follows (design §3.7, §3.11).
//!
//! In three steps, so that what grows with the round is computed without the state's lock: *gather* under it, *assemble*
//! without, *close* under it if nothing came meanwhile, *judge* without.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aftershock_core::id::{ExecutionId, ObserverId};
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::{Channel, Plan, Rule};
use aftershock_core::span::CallSpan;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{CutConnections, OpenCall};

use super::live::Participant;
use crate::api::{ArbiterEntry, Finished, RoundId};
use crate::completion::{self, Record};
use crate::state::State;
use crate::verdict::{Failure, Fired, RoundFacts, judge, judge_cuts, of_round};

/// What is in, as it came.
#[derive(Debug)]
pub(crate) struct Gathered {
    revision: u64,
    spans: Vec<Arc<CallSpan>>,
    open: Vec<(Service, OpenCall)>,
    /// Services whose sidecars were armed.
    services: BTreeSet<Service>,
    rules: Vec<Rule>,
    missing: Vec<String>,
    unassociated: BTreeMap<Service, BTreeMap<Api, u64>>,
    someone_gone: bool,
}

/// What is in, as executions.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// The revision of the round that this is all of.
    pub(crate) revision: u64,
    traces: Vec<Trace>,
    incomplete: BTreeMap<ExecutionId, String>,
    missing: Vec<String>,
    unassociated: BTreeMap<Service, BTreeMap<Api, u64>>,
    someone_gone: bool,
}

/// What a round is judged by besides its executions.
#[derive(Debug)]
pub(crate) struct Case {
    plan: Plan,
    rules: Vec<Rule>,
    armed: BTreeMap<ObserverId, Service>,
    fired: Vec<Fired>,
    failures: Vec<Failure>,
    arbiter: Vec<ArbiterEntry>,
    cut: BTreeMap<Channel, CutConnections>,
}

impl State {
    /// What is in of a round, of which these did not confirm that they are disarmed, or did not answer a flush.
    pub(crate) fn gather(
        &self,
        id: RoundId,
        unconfirmed: &BTreeSet<Service>,
        silent: &BTreeSet<ObserverId>,
    ) -> Option<Gathered> {
        let live = self.round(id)?;
        let collected = self.collector.gathered(live.token);
        let open = live
            .seen()
            .flat_map(|(_, service, seen)| seen.open.iter().map(|call| (service.clone(), call.clone())))
            .collect();
        let armed = || live.participants.values().filter(|one| one.armed);

        let mut missing = Vec::new();
        for (observer, connected) in self.registry.iter() {
            let service = &connected.hello.service;
            if let Some(lost) = connected.lost_of.get(&live.token).filter(|lost| **lost > 0) {
                missing.push(format!("the sidecar of {service} lost {lost} span(s)"));
            }
            if silent.contains(&observer) {
                missing.push(format!("the sidecar of {service} did not answer a flush"));
            }
        }
        for participant in armed().filter(|one| one.gone) {
            missing.push(format!("the sidecar of {} died before its spans were known to be in", participant.service));
        }
        for service in unconfirmed {
            missing.push(format!("the sidecar of {service} did not confirm that it is disarmed"));
        }
        if let Some(dropped) = collected.map(|gathered| gathered.dropped).filter(|dropped| *dropped > 0) {
            missing.push(format!("the collector dropped {dropped} span(s) beyond the limit of one round"));
        }
        if live.arbiter.has_overflowed() {
            missing.push(format!("the log of the arbiter ends after {} acts", live.arbiter.log().len()));
        }

        let mut unassociated: BTreeMap<Service, BTreeMap<Api, u64>> = BTreeMap::new();
        for (observer, participant) in &live.participants {
            let Some(connected) = self.registry.get(*observer).filter(|_| !participant.gone) else { continue };
            for (api, now) in connected.unassociated() {
                let before = participant.unassociated.get(api).copied().unwrap_or(0);
                if *now > before {
                    let of_service = unassociated.entry(participant.service.clone()).or_default();
                    *of_service.entry(api.clone()).or_default() += now - before;
                }
            }
        }
        Some(Gathered {
            revision: live.revision,
            spans: collected.map(|gathered| gathered.spans.clone()).unwrap_or_default(),
            open,
            services: armed().map(|one| one.service.clone()).collect(),
            rules: live.armament.rules.clone(),
            missing,
            unassociated,
            someone_gone: live.participants.values().any(|one| one.gone),
        })
    }

    /// No more spans are taken for the round; what else it is judged by.
    pub(crate) fn close(&mut self, id: RoundId) -> Option<Case> {
        let live = self.round(id)?;
        let armed = live.participants.iter().filter(|(_, participant): &(_, &Participant)| participant.armed);
        let case = Case {
            plan: live.request.plan.clone(),
            rules: live.armament.rules.clone(),
            armed: armed.map(|(observer, participant)| (*observer, participant.service.clone())).collect(),
            fired: live.fired.clone(),
            failures: live.failures.clone(),
            arbiter: live.arbiter.log().to_vec(),
            cut: live.met_cuts(),
        };
        let token = live.token;
        self.collector.close(token, id);
        Some(case)
    }
}

impl Gathered {
    /// The executions, and what is missing of them.
    pub(crate) fn assemble(self) -> Assembled {
        let Gathered { revision, spans, open, services, rules, mut missing, unassociated, someone_gone } = self;
        let traces = Trace::assemble(spans.into_iter().map(Arc::unwrap_or_clone));
        let record = Record { traces: &traces, open: &open, services: &services, rules: &rules };
        let mut incomplete = completion::incomplete(&record);
        // Which executions these concern nobody knows: no execution of the round is complete.
        if !missing.is_empty() {
            let all = missing.join("; ");
            for trace in &traces {
                let reason = incomplete.entry(trace.execution).or_default();
                *reason = if reason.is_empty() { all.clone() } else { format!("{reason}; {all}") };
            }
        }
        if traces.is_empty() && open.is_empty() {
            missing.push("no sidecar recorded a call of the round".to_owned());
        }
        Assembled { revision, traces, incomplete, missing, unassociated, someone_gone }
    }
}

impl Assembled {
    /// Whether nothing is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.incomplete.is_empty() && self.missing.is_empty()
    }

    /// Whether it will not be complete, however long one waits: what was lost does not come.
    pub(crate) fn is_hopeless(&self) -> bool {
        !self.missing.is_empty() || self.someone_gone
    }
}

impl Case {
    /// What came of the round.
    pub(crate) fn judge(self, assembled: Assembled) -> Finished {
        let Case { plan, rules, armed, fired, failures, arbiter, cut } = self;
        let Assembled { traces, incomplete, missing, unassociated, .. } = assembled;
        let facts = RoundFacts {
            plan: &plan,
            rules: &rules,
            armed: &armed,
            traces: &traces,
            fired: &fired,
            failures: &failures,
            arbiter: &arbiter,
            cut: &cut,
            incomplete: &incomplete,
            missing: &missing,
        };
        let faults = judge(&facts);
        let cuts = judge_cuts(&facts);
        let verdict = of_round(&facts, &faults, &cuts);
        let reasons = failures.iter().map(ToString::to_string).chain(missing).collect();
        Finished { verdict, faults, cuts, reasons, traces, incomplete, unassociated, arbiter }
    }
}
