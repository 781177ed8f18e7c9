//! One request at a service: its service time, its steps, its effects, its answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::Process;
use super::call::{self, CallFailed};
use super::context::Context;
use super::memory::Details;
use super::payload::Caller;
use crate::events::{Failure, Kind};
use crate::expand::{self, Act};
use crate::file::Join;
use crate::random::SplitMix64;
use crate::scalar::Status;
use crate::topology::{Api, Params, Reaction, ServiceTime};

/// Most calls and loop passes of one handler run.
const MOST_CALLS: usize = 10_000;

/// A request that was read.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) key: String,
    /// Overrides, to be passed on.
    pub(crate) overrides: Params,
    pub(crate) caller: Caller,
    pub(crate) context: Context,
    pub(crate) inputs: BTreeMap<String, Value>,
}

/// What a request is answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    /// Why it is an error.
    pub(crate) cause: Option<String>,
}

/// One handler run: what its concurrent branches share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) process: Arc<Process>,
    pub(crate) api: Api,
    pub(crate) inbound: Inbound,
    answers: Mutex<BTreeMap<String, Value>>,
    branches: Branches,
}

/// The tasks of a run's branches. A run that is cancelled takes them along; a run that has ended leaves them running.
#[derive(Debug, Default)]
struct Branches {
    ended: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Logs the cancellation of a run that is dropped before its end, and stops its branches.
struct Watch(Arc<Run>);

impl Drop for Watch {
    fn drop(&mut self) {
        let run = &self.0;
        if run.branches.ended.load(Ordering::Relaxed) {
            return;
        }
        let details = Details { failure: Some(Failure::Cancelled), ..Details::default() };
        run.log(Kind::HandlingCancelled, details);
        for task in run.branches.tasks.lock().expect("no holder of this lock panics").drain(..) {
            task.abort();
        }
    }
}

impl Answer {
    /// What the answer says; later calls can be made of it.
    fn message(&self, api: &Api, inbound: &Inbound) -> Value {
        let mut message = json!({"api": api.name, "key": inbound.key, "call": inbound.caller.call});
        if !inbound.inputs.is_empty() {
            message["inputs"] = inbound.inputs.keys().cloned().collect();
        }
        if let Some(cause) = &self.cause {
            message["error"] = Value::from(cause.as_str());
        }
        message
    }
}

/// Answers a request; dropping the future is how the caller's leaving reaches the run.
pub(crate) async fn answer(process: Arc<Process>, api: Api, inbound: Inbound) -> (Answer, Value) {
    let run = Arc::new(Run { process, api, inbound, answers: Mutex::default(), branches: Branches::default() });
    run.log(Kind::RequestReceived, Details::default());
    let watch = Watch(run.clone());
    let answer = run.clone().perform().await;
    run.log(Kind::ResponseSent, Details { status: Some(answer.status), ..Details::default() });
    run.branches.ended.store(true, Ordering::Relaxed);
    drop(watch);
    let message = answer.message(&run.api, &run.inbound);
    (answer, message)
}

/// Where the steps lead.
#[derive(Clone, Debug)]
enum Flow {
    Next,
    LeaveGroup { cause: String },
    Answer(Answer),
}

impl Run {
    fn log(&self, kind: Kind, details: Details<'_>) {
        self.process.memory.log(&self.inbound.key, &self.api.name, kind, &self.inbound.caller, details);
    }

    async fn perform(self: Arc<Self>) -> Answer {
        let time = service_time(&self.api.service_time, &self.inbound.key, self.inbound.caller.index);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        if let Some(refusal) = self.api.refusal.as_ref().filter(|refusal| self.inbound.key.starts_with(&refusal.prefix))
        {
            return Answer { status: refusal.status, cause: Some(format!("{} refuses the key", self.api.name)) };
        }
        let mut params = self.process.topology.params.clone();
        params.extend(self.inbound.overrides.clone());
        let done = match expand::run(&self.api.steps, &params, MOST_CALLS) {
            None => {
                let cause = Some(format!("more than {MOST_CALLS} calls"));
                return Answer { status: self.process.internal_error(), cause };
            }
            Some(acts) => match self.acts(&acts).await {
                Flow::Answer(answer) => answer,
                Flow::Next | Flow::LeaveGroup { .. } => Answer { status: self.process.success(), cause: None },
            },
        };
        // Durable before the first byte of the answer, and only if there is something to tell.
        if done.status.is_ok() {
            for effect in &self.api.effects {
                self.process.memory.apply(&self.inbound.key, &self.api.name, effect, &self.inbound.caller);
            }
        }
        done
    }

    fn acts<'a>(self: &'a Arc<Self>, acts: &'a [Act]) -> BoxFuture<'a, Flow> {
        Box::pin(async move {
            for act in acts {
                let flow = match act {
                    Act::Call { call, index } => match self.call(call, *index).await {
                        Ok(()) => Flow::Next,
                        Err(failed) => {
                            let reaction = match failed.failure {
                                Failure::Status => call.on_failure.status,
                                Failure::Hang => call.on_failure.hang,
                                Failure::Transport | Failure::Cancelled => call.on_failure.transport,
                            };
                            self.react(reaction, failed.to_string()).await
                        }
                    },
                    Act::Parallel { join, branches } => self.parallel(*join, branches).await,
                    Act::Group { on_failure, acts } => match self.acts(acts).await {
                        Flow::LeaveGroup { cause } => self.react(*on_failure, cause).await,
                        other => other,
                    },
                    Act::Effect(effect) => {
                        let Inbound { key, caller, .. } = &self.inbound;
                        self.process.memory.apply(key, &self.api.name, effect, caller);
                        Flow::Next
                    }
                    Act::Respond(status) => Flow::Answer(Answer { status: *status, cause: None }),
                };
                if !matches!(flow, Flow::Next) {
                    return flow;
                }
            }
            Flow::Next
        })
    }

    async fn call(self: &Arc<Self>, call: &crate::topology::Call, index: usize) -> Result<(), CallFailed> {
        let inputs: BTreeMap<String, Value> = {
            let answers = self.answers.lock().expect("no holder of this lock panics");
            let used = |name: &String| (name.clone(), answers.get(name).cloned().unwrap_or(Value::Null));
            call.uses.iter().map(used).collect()
        };
        let answer = if call.propagates {
            call::perform(self.clone(), call.clone(), index, inputs).await?
        } else {
            // The application starts from an empty context: this call outlives the request that caused it.
            let task = tokio::spawn(call::perform(self.clone(), call.clone(), index, inputs));
            task.await.map_err(|_| CallFailed::panicked(&call.api))??
        };
        if let Some(name) = &call.name {
            self.answers.lock().expect("no holder of this lock panics").insert(name.clone(), answer);
        }
        Ok(())
    }

    async fn react(&self, reaction: Reaction, cause: String) -> Flow {
        match reaction {
            Reaction::Ignore => Flow::Next,
            Reaction::LeaveGroup => Flow::LeaveGroup { cause },
            Reaction::Fail(status) => Flow::Answer(Answer { status, cause: Some(cause) }),
            Reaction::Block => std::future::pending().await,
            Reaction::Crash => {
                self.process.crash(&cause);
                std::future::pending().await
            }
        }
    }

    /// Starts the branches in their order. Those that have not ended when the join has run on by themselves.
    async fn parallel(self: &Arc<Self>, join: Join, branches: &[Vec<Act>]) -> Flow {
        let mut running: Vec<_> = branches.iter().cloned().map(|acts| self.branch(acts)).collect();
        match join {
            Join::All => {
                let mut first = Flow::Next;
                for branch in running {
                    let flow = branch.await;
                    if matches!(first, Flow::Next) {
                        first = flow;
                    }
                }
                first
            }
            Join::AwaitInOrder => {
                for branch in running {
                    match branch.await {
                        Flow::Next => {}
                        failed => return failed,
                    }
                }
                Flow::Next
            }
            Join::FirstError => {
                let mut running: FuturesUnordered<_> = running.into_iter().collect();
                while let Some(flow) = running.next().await {
                    if !matches!(flow, Flow::Next) {
                        return flow;
                    }
                }
                Flow::Next
            }
            Join::CommitOnFirstSuccess => match running.len() {
                0 => Flow::Next,
                _ => futures_util::future::select_all(running.drain(..).map(Box::pin)).await.0,
            },
        }
    }

    fn branch(self: &Arc<Self>, acts: Vec<Act>) -> impl Future<Output = Flow> + Send + use<> {
        let run = self.clone();
        let task = tokio::spawn(async move { run.acts(&acts).await });
        self.branches.tasks.lock().expect("no holder of this lock panics").push(task.abort_handle());
        let status = self.process.internal_error();
        async move {
            task.await.unwrap_or_else(|error| {
                Flow::Answer(Answer { status, cause: Some(format!("a branch ended: {error}")) })
            })
        }
    }
}

/// How long a service works on the `index`-th call of a handler run.
pub(crate) fn service_time(time: &ServiceTime, key: &str, index: usize) -> Duration {
    match time {
        ServiceTime::Fixed(time) => *time,
        ServiceTime::PermutedByKey(times) => times[permutation(key, times.len())[(index.max(1) - 1) % times.len()]],
    }
}

/// A permutation of `0..n` that depends on the key alone: Fisher–Yates, fed by SplitMix64 from the key's FNV-1a hash.
fn permutation(key: &str, n: usize) -> Vec<usize> {
    let seed = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut random = SplitMix64::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_key_gives_a_permutation_and_always_the_same(key in ".*", n in 1_usize..12) {
            let order = permutation(&key, n);
            prop_assert_eq!(&order, &permutation(&key, n));
            let mut sorted = order;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn numbered_keys_reach_every_order_about_equally_often() {
        let mut seen = BTreeMap::new();
        for key in 0..2400 {
            *seen.entry(permutation(&format!("order-{key}"), 4)).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        // 100 expected of each; five standard deviations are 49.
        assert!(seen.values().all(|count| (51..=149).contains(count)), "{seen:?}");
    }

    #[test]
    fn the_calls_of_one_run_get_different_times_of_the_list() {
        let times: Vec<Duration> = [20, 40, 60, 80].map(Duration::from_millis).to_vec();
        for key in ["a", "b", "c"] {
            let permuted = ServiceTime::PermutedByKey(times.clone());
            let mut taken: Vec<Duration> = (1..=4).map(|index| service_time(&permuted, key, index)).collect();
            taken.sort_unstable();
            assert_eq!(taken, times);
        }
    }
}
