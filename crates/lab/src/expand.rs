//! What a handler does for given parameters: loops unrolled, conditions decided, calls numbered.
//!
//! The number of a call (its *index*) is its place among the calls of the same Api in one run of the handler, in program
//! order. It is fixed before the handler runs, so that concurrent branches cannot exchange their numbers.

use std::collections::BTreeMap;

use crate::scalar::Status;
use crate::topology::{Action, Call, Count, Effect, Expected, Join, Params, Reaction, Step, Topology};

/// One step that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Call { call: Call, index: usize },
    Parallel { join: Join, branches: Vec<Vec<Act>> },
    Group { on_failure: Reaction, acts: Vec<Act> },
    Effect(Effect),
    Respond(Status),
}

/// The run of a handler, or `None` if it has more than `limit` calls and loop passes.
pub(crate) fn run(steps: &[Step], params: &Params, limit: usize) -> Option<Vec<Act>> {
    let mut unrolling = Unrolling { params, numbers: BTreeMap::new(), left: limit };
    unrolling.steps(steps)
}

struct Unrolling<'a> {
    params: &'a Params,
    numbers: BTreeMap<&'a str, usize>,
    left: usize,
}

impl<'a> Unrolling<'a> {
    fn steps(&mut self, steps: &'a [Step]) -> Option<Vec<Act>> {
        let mut acts = Vec::new();
        for step in steps {
            if step.when.as_ref().is_some_and(|param| self.params[param] == 0) {
                continue;
            }
            match &step.action {
                Action::Call(call) => {
                    self.left = self.left.checked_sub(1)?;
                    let number = self.numbers.entry(&call.api).or_default();
                    *number += 1;
                    acts.push(Act::Call { call: call.clone(), index: *number });
                }
                Action::Repeat { times, steps } => {
                    let times = match times {
                        Count::Fixed(times) => *times,
                        Count::Param(param) => self.params[param],
                    };
                    for _ in 0..times {
                        // A pass costs as well: loops around nothing are bounded too.
                        self.left = self.left.checked_sub(1)?;
                        acts.append(&mut self.steps(steps)?);
                    }
                }
                Action::Parallel { join, branches } => {
                    let branches = branches.iter().map(|branch| self.steps(branch)).collect::<Option<_>>()?;
                    acts.push(Act::Parallel { join: *join, branches });
                }
                Action::Group { on_failure, steps } => {
                    acts.push(Act::Group { on_failure: *on_failure, acts: self.steps(steps)? });
                }
                Action::Effect(effect) => acts.push(Act::Effect(effect.clone())),
                Action::Respond(status) => acts.push(Act::Respond(*status)),
            }
        }
        Some(acts)
    }
}

/// A call that a client request causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandedCall {
    /// How many calls lie between the client's request and this one.
    pub depth: usize,
    /// The service that calls.
    pub caller: String,
    /// The Api's short name.
    pub api: String,
    /// Place among the calls of this Api in the caller's handler run, from 1.
    pub index: usize,
    /// Whether the caller hands on trace headers.
    pub propagates: bool,
    /// Whether it runs beside other branches.
    pub concurrent: bool,
}

impl Topology {
    /// Every inter-service call that a request to `api` causes without faults, in program order, callees after callers.
    ///
    /// `None` for an unknown Api, a parameter that is missing, or more than 100,000 calls and loop passes.
    pub fn expand(&self, api: &str, params: &Params) -> Option<Vec<ExpandedCall>> {
        let complete = self.params.keys().all(|name| params.contains_key(name));
        (complete && self.apis.contains_key(api)).then(|| calls(self, api, params, 100_000)).flatten()
    }
}

pub(crate) fn calls(topology: &Topology, api: &str, params: &Params, limit: usize) -> Option<Vec<ExpandedCall>> {
    let mut out = Vec::new();
    expand_api(topology, api, params, 0, limit, &mut out)?;
    Some(out)
}

fn expand_api(
    topology: &Topology,
    api: &str,
    params: &Params,
    depth: usize,
    limit: usize,
    out: &mut Vec<ExpandedCall>,
) -> Option<()> {
    let api = &topology.apis[api];
    let acts = run(&api.steps, params, limit.checked_sub(out.len())?)?;
    let mut flat = Vec::new();
    flatten(&acts, false, &mut flat);
    for (call, index, concurrent) in flat {
        out.push(ExpandedCall {
            depth,
            caller: api.service.clone(),
            api: call.api.clone(),
            index,
            propagates: call.propagates,
            concurrent,
        });
        expand_api(topology, &call.api, params, depth + 1, limit, out)?;
    }
    Some(())
}

fn flatten<'a>(acts: &'a [Act], concurrent: bool, out: &mut Vec<(&'a Call, usize, bool)>) {
    for act in acts {
        match act {
            Act::Call { call, index } => out.push((call, *index, concurrent)),
            Act::Group { acts, .. } => flatten(acts, concurrent, out),
            Act::Parallel { branches, .. } => branches.iter().for_each(|branch| flatten(branch, true, out)),
            Act::Effect(_) | Act::Respond(_) => {}
        }
    }
}

/// How many calls, and of how many different Apis.
pub fn count(calls: &[ExpandedCall]) -> Expected {
    let distinct: std::collections::BTreeSet<&str> = calls.iter().map(|call| call.api.as_str()).collect();
    Expected { calls: calls.len(), distinct: distinct.len() }
}
