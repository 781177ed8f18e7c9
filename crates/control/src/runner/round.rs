//! One round, from its setup to its teardown (design §3.7).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aftershock_core::duration::Interval;
use aftershock_core::id::Token;
use aftershock_core::plan::Plan;

use super::context::Context;
use super::cookies::Jar;
use super::live::Live;
use super::oracle::{Judgement, differences};
use super::send::{self, Failure, Sent};
use super::transcode::Codecs;
use super::values::Values;
use super::{Progress, RoundOutcome, RunError, Runner, Step, grpc};
use crate::api::{Attempt, Conclude, Finish, Finished, OracleVerdict, RoundId, StartRound};
use crate::client::Client;
use crate::scenario::{BaseUrl, Execution, Expectation, Invariant, Request, RetryOn, Scenario, TemporalFault, When};

/// A round under way.
pub(super) struct Round<'a> {
    runner: &'a Runner,
    fault: Option<&'a TemporalFault>,
    progress: &'a dyn Progress,
    values: Values,
    jar: Option<Jar>,
    codecs: Codecs,
    notes: Vec<String>,
    /// The setup began, and the teardown did not end.
    untidy: bool,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        runner: &'a Runner,
        fault: Option<&'a TemporalFault>,
        progress: &'a dyn Progress,
        values: Values,
    ) -> Self {
        let jar = runner.scenario.cookies.then(Jar::default);
        Round { runner, fault, progress, values, jar, codecs: Codecs::new(), notes: Vec::new(), untidy: false }
    }

    /// Sets up, runs the round under `plan`, tears down, whatever came of it.
    pub(super) async fn run(mut self, plan: Plan) -> Result<RoundOutcome, RunError> {
        let result = self.set_up_and_drive(plan).await;
        let failures = self.tear_down().await;
        match result {
            Ok(mut outcome) => {
                outcome.notes.extend(failures);
                Ok(outcome)
            }
            Err(error) => {
                failures.iter().for_each(|failure| tracing::warn!("{failure}"));
                Err(error.hidden(&self.values))
            }
        }
    }

    async fn set_up_and_drive(&mut self, plan: Plan) -> Result<RoundOutcome, RunError> {
        let Runner { client, scenario, .. } = self.runner;
        self.codecs = self.runner.codecs(&self.values).await?;
        self.untidy = !scenario.teardown.is_empty();
        for request in &scenario.setup {
            let base = request.base(scenario, self.runner.turn());
            let sent = outside(base, request, &mut self.values, self.jar.as_mut(), &self.codecs).await;
            sent.map_err(|reason| RunError::Setup { request: request.name.clone(), reason })?;
        }
        let key = self.values.key().to_owned();
        let start = StartRound {
            scenario: scenario.name.clone(),
            plan,
            key: key.clone(),
            constant_context: scenario.requests.iter().any(|request| request.call.is_command()),
            outcomes: scenario.outcomes.clone(),
            traffic: scenario.traffic.as_ref().map(|traffic| traffic.tagged.clone()),
            stop: scenario.stop,
            arbiter_timeout: self.runner.arbiter_timeout.map(Interval),
        };
        let started = client.start(&start).await?;
        let mut live = Live::new(client.clone(), started.id);
        self.progress.step(Step::Started { id: started.id, key: &key });
        match self.drive(&mut live, started.token).await {
            Ok(outcome) => {
                live.ended = true;
                Ok(outcome)
            }
            Err(error) => {
                let error = error.hidden(&self.values);
                live.give_up(&error).await;
                Err(error)
            }
        }
    }

    async fn drive(&mut self, live: &mut Live, token: Token) -> Result<RoundOutcome, RunError> {
        let Runner { client, scenario, deadlines, .. } = self.runner;
        let scenario: &Scenario = scenario;
        let invariants = scenario.invariants_under(self.fault);
        let sequence = match scenario.execution {
            Execution::Sequence => Some(Context::of_a_sequence(token)?),
            Execution::EachRequest => None,
        };
        let mut evaluated: BTreeSet<&str> = BTreeSet::new();
        let mut attempts = Vec::new();
        let mut judgement = Judgement::default();
        for (index, request) in scenario.requests.iter().enumerate() {
            if judgement.is_unavailable() {
                // A client that did not get what it needs does not go on.
                self.notes.push(format!("the request {:?} was not sent, since one before it failed", request.name));
                continue;
            }
            let expected = scenario.expectation_under(request, self.fault);
            let mut number = 0;
            let (sent, latency) = loop {
                number += 1;
                let context = match sequence {
                    Some(sequence) => sequence,
                    None => Context::of_one_request(token)?,
                };
                let base = request.base(scenario, self.runner.turn());
                let began = Instant::now();
                let client_of_round = send::Client {
                    values: &self.values,
                    jar: self.jar.as_mut(),
                    codecs: &self.codecs,
                    context: Some(context),
                };
                let sent = send::send(base, request, client_of_round).await?;
                let attempt = Attempt {
                    request: index,
                    attempt: number,
                    result: self.values.hide(&sent.to_string()),
                    latency: Interval(began.elapsed()),
                };
                self.progress.step(Step::Attempted { request: &request.name, attempt: &attempt });
                let latency = attempt.latency.0;
                attempts.push(attempt);
                let settled = match sent {
                    // A client that reached nobody left no call to wait for.
                    Sent::Failed(Failure::Transport(_)) => client.settle_unanswered(live.id, deadlines.settle).await?,
                    _ => client.settle(live.id, deadlines.settle).await?,
                };
                if !settled.settled {
                    self.notes.push(format!(
                        "attempt {number} of {:?} did not settle within {}: {}",
                        request.name,
                        Interval(deadlines.settle),
                        settled.running.join(", ")
                    ));
                }
                self.progress.step(Step::Settled(&settled));
                for invariant in &invariants {
                    if invariant.when == When::AfterAttempt(number)
                        && invariant.request.as_ref().is_none_or(|name| *name == request.name)
                        && self.evaluate(invariant, &mut judgement).await?
                    {
                        evaluated.insert(&invariant.name);
                    }
                }
                if number >= request.retry.attempts || !tries_again(request, expected, &sent) {
                    break (sent, latency);
                }
                if !request.retry.backoff.is_zero() {
                    tokio::time::sleep(request.retry.backoff).await;
                }
            };
            let hide = |text: &str| self.values.hide(text);
            let mut found = differences(request, expected, &sent, latency, &hide);
            if found.is_empty() {
                found = self.values.extract(request, &sent);
            }
            judgement.unmet(request, found);
        }
        let ended_early = match &scenario.traffic {
            Some(traffic) => live.wait(traffic.span).await,
            None => false,
        };
        let finish = Finish { deadline: Interval(deadlines.finish), client_failed: None };
        let finished = client.finish(live.id, &finish).await?;
        live.finished = true;
        self.progress.step(Step::Finished(&finished));
        for invariant in &invariants {
            if invariant.when == When::AfterRound {
                // Who killed the service that keeps the state wants to know at least the verdict.
                let read = self.evaluate(invariant, &mut judgement).await;
                if read.map_err(|error| self.unread(live.id, &finished, error))? {
                    evaluated.insert(&invariant.name);
                }
            }
        }
        for invariant in invariants.iter().filter(|invariant| !evaluated.contains(invariant.name.as_str())) {
            let why = match self.values.missing(invariant.templates()) {
                Some(variable) => format!("`{{{variable}}}` has no value"),
                None => format!("there was no {}", invariant.when),
            };
            self.notes.push(format!("the invariant {:?} was not evaluated: {why}", invariant.name));
        }
        let (oracle, broken) = judgement.finding();
        client.conclude(live.id, &Conclude { attempts: attempts.clone(), oracle: oracle.clone() }).await?;
        self.progress.step(Step::Concluded(&oracle));
        let expected_oracle = self.fault.map_or(OracleVerdict::Held, TemporalFault::expected_oracle);
        let as_declared = oracle.found == expected_oracle && self.breaks_as_declared(&broken);
        Ok(RoundOutcome {
            id: live.id,
            key: self.values.key().to_owned(),
            finished,
            attempts,
            oracle,
            expected_oracle,
            broken,
            as_declared,
            ended_early,
            notes: std::mem::take(&mut self.notes),
        })
    }

    fn unread(&self, id: RoundId, finished: &Finished, error: RunError) -> RunError {
        let of_faults = finished.faults.iter().flat_map(|fault| &fault.reasons);
        RunError::Unread {
            id,
            key: self.values.key().to_owned(),
            verdict: finished.verdict,
            reasons: finished.reasons.iter().chain(of_faults).cloned().collect(),
            source: Box::new(error),
        }
    }

    fn breaks_as_declared(&self, broken: &[String]) -> bool {
        let Some(declared) = self.fault.and_then(|fault| fault.expect.violates.as_ref()) else { return true };
        let declared: BTreeSet<&str> = declared.iter().map(|name| name.as_str()).collect();
        declared == broken.iter().map(String::as_str).collect()
    }

    /// Whether it could be evaluated: not if it speaks of a variable that no answer set.
    async fn evaluate(&self, invariant: &Invariant, judgement: &mut Judgement) -> Result<bool, RunError> {
        if self.values.missing(invariant.templates()).is_some() {
            return Ok(false);
        }
        let Runner { scenario, deadlines, .. } = self.runner;
        let found = send::look(scenario, invariant, &self.values, deadlines.invariant).await;
        let found =
            found.map_err(|(what, reason)| RunError::Invariant { invariant: invariant.name.clone(), what, reason })?;
        let difference = judgement.invariant(invariant, &found, &|text| self.values.hide(text));
        self.progress.step(Step::Checked { invariant: &invariant.name, difference: difference.as_deref() });
        Ok(true)
    }

    /// What went wrong, a sentence each.
    async fn tear_down(&mut self) -> Vec<String> {
        if !self.untidy {
            return Vec::new();
        }
        let runner = self.runner;
        let failures =
            tear_down(&runner.scenario, || runner.turn(), &mut self.values, &mut self.jar, &self.codecs).await;
        self.untidy = false;
        failures
    }
}

impl Drop for Round<'_> {
    /// A round that is dropped half-way is torn down in the background.
    fn drop(&mut self) {
        if !self.untidy {
            return;
        }
        let client: Client = self.runner.client.clone();
        let scenario = self.runner.scenario.clone();
        let (mut values, mut jar, first) = (self.values.clone(), self.jar.take(), self.runner.turn());
        let codecs = std::mem::take(&mut self.codecs);
        client.before_leaving(async move {
            let mut turns = first..;
            let failures = tear_down(&scenario, || turns.next().unwrap_or(first), &mut values, &mut jar, &codecs).await;
            failures.iter().for_each(|failure| tracing::warn!("{failure}"));
        });
    }
}

/// Sends the teardown's requests, each whatever came of those before it. Returns what went wrong, a sentence each.
async fn tear_down(
    scenario: &Scenario,
    mut turn: impl FnMut() -> usize,
    values: &mut Values,
    jar: &mut Option<Jar>,
    codecs: &Codecs,
) -> Vec<String> {
    let mut failures = Vec::new();
    for request in &scenario.teardown {
        if let Some(variable) = values.missing(&request.templates()) {
            let name = &request.name;
            failures.push(format!("the teardown request {name:?} was not sent: `{{{variable}}}` has no value"));
            continue;
        }
        let base = request.base(scenario, turn());
        if let Err(reason) = outside(base, request, values, jar.as_mut(), codecs).await {
            failures.push(values.hide(&format!("the teardown request {:?} failed: {reason}", request.name)));
        }
    }
    failures
}

/// Sends a request of the setup or teardown, with its retries: without token, so that it is none of the round's. Returns
/// why it did not go well.
async fn outside(
    base: &BaseUrl,
    request: &Request,
    values: &mut Values,
    mut jar: Option<&mut Jar>,
    codecs: &Codecs,
) -> Result<(), String> {
    let mut number = 0;
    loop {
        number += 1;
        let began = Instant::now();
        let client = send::Client { values, jar: jar.as_deref_mut(), codecs, context: None };
        let sent = send::send(base, request, client).await.map_err(|error| error.to_string())?;
        if number < request.retry.attempts && tries_again(request, &request.expect, &sent) {
            tokio::time::sleep(request.retry.backoff).await;
            continue;
        }
        let latency: Duration = began.elapsed();
        let mut found = differences(request, &request.expect, &sent, latency, &|text| values.hide(text));
        if found.is_empty() {
            found = values.extract(request, &sent);
        }
        return if found.is_empty() { Ok(()) } else { Err(found.join("; ")) };
    }
}

/// Whether the request's policy has it sent again after this.
fn tries_again(request: &Request, expected: &Expectation, sent: &Sent) -> bool {
    let kind = match sent {
        Sent::Failed(Failure::Timeout) => RetryOn::Timeout,
        Sent::Failed(Failure::Transport(_)) => RetryOn::Transport,
        Sent::Http { status, .. } if *status >= 500 => RetryOn::Status,
        Sent::Grpc { reply, .. } if reply.status == grpc::UNAVAILABLE => RetryOn::Status,
        Sent::Ran(ran) if ran.exit != Ok(expected.exit.unwrap_or(0)) => RetryOn::Status,
        Sent::Http { .. } | Sent::Grpc { .. } | Sent::Ran(_) => return false,
    };
    request.retry.on.contains(&kind)
}
