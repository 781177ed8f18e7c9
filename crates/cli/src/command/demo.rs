//! `aftershock demo`.

use std::time::Instant;

use aftershock_control::api::{OracleVerdict, Verdict};
use aftershock_control::runner::RoundOutcome;
use aftershock_core::plan::Pattern;
use clap::Args;
use serde::Serialize;

use super::lab::NetworkArguments;
use crate::cases::{self, Case};
use crate::output::{self, Format};
use crate::stage::{self, Rehearsal};
use crate::{Ended, draw};

/// The schema of the JSON result.
const SCHEMA: &str = "aftershock.dev/demo/v1";
/// Rounds with the fault before the demo gives up on it. One is what it takes.
const MOST_ATTEMPTS: u32 = 3;

/// Four faults at exactly the wrong moment, on services of the demo's own.
///
/// Starts an online shop and a small system with the three temporal patterns, a sidecar beside every service and a
/// controller, all on this machine; records clean rounds, synthesizes each guard, injects once, shows what the services'
/// own ledgers say; stops everything.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    network: NetworkArguments,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    seconds: f64,
    sidecar_rss_kib: u64,
    sidecar_binary: String,
    rounds: Vec<Round>,
}

#[derive(Debug, Serialize)]
struct Round {
    scenario: String,
    pattern: Option<Pattern>,
    verdict: Verdict,
    /// Rounds with the fault until it was injected.
    attempts: u32,
    guard: String,
    premature: u32,
    multiple: bool,
    oracle: Oracle,
    /// What the lab's own logs and ledgers hold against the verdict.
    contradictions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Oracle {
    expected: OracleVerdict,
    found: OracleVerdict,
}

impl Demo {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        super::until_interrupted(None, self.play()).await
    }

    async fn play(self) -> anyhow::Result<Ended> {
        let began = Instant::now();
        let human = self.format == Format::Human;
        let (program, arguments) = super::sidecar_binary()?;
        let mut rounds = Vec::new();
        let shown: Vec<&Case<'_>> = cases::ALL.iter().take(cases::SHOWN).collect();
        let setting = stage::Setting { pods: self.network.pods(), ..stage::Setting::default() };
        let usage = stage::rehearse(&shown, setting, async |rehearsal: Rehearsal<'_>| {
            if human {
                introduce(&rehearsal);
            }
            let mut attempts = 1;
            let mut outcome = rehearsal.inject().await?;
            while outcome.finished.verdict != Verdict::Injected && attempts < MOST_ATTEMPTS {
                attempts += 1;
                outcome = rehearsal.inject().await?;
            }
            let round = round(&rehearsal, &outcome, attempts).await?;
            if human {
                tell(&rehearsal, &outcome, &round);
            }
            rounds.push(round);
            Ok(())
        })
        .await?;
        let binary = std::iter::once(program.display().to_string())
            .chain(arguments.iter().map(|argument| argument.to_string_lossy().into_owned()))
            .collect::<Vec<_>>()
            .join(" ");
        let report = Report {
            schema: SCHEMA,
            seconds: began.elapsed().as_secs_f64(),
            sidecar_rss_kib: usage.sidecar_rss_kib,
            sidecar_binary: binary,
            rounds,
        };
        let good = report.rounds.iter().all(|round| {
            round.verdict == Verdict::Injected
                && round.oracle.expected == round.oracle.found
                && round.contradictions.is_empty()
        });
        match self.format {
            Format::Json => output::json(&report)?,
            Format::Human => {
                output::line(format!(
                    "{} of {} faults injected, once each and in their window. {:.1} s, {} sidecars of at most {:.1} MiB. \
                     Everything started was stopped.",
                    report.rounds.iter().filter(|round| round.verdict == Verdict::Injected).count(),
                    report.rounds.len(),
                    report.seconds,
                    usage.sidecars,
                    report.sidecar_rss_kib as f64 / 1024.0
                ));
                output::line("Next: your own two services, see the README.");
            }
        }
        Ok(if good { Ended::AsExpected } else { Ended::Unexpected })
    }
}

fn introduce(rehearsal: &Rehearsal<'_>) {
    output::line(format!("━━ {}", rehearsal.case.story));
    output::line("");
    output::line(super::record::summary(&rehearsal.recording));
    if let Some(trace) = rehearsal.recording.traces.first() {
        for line in draw::tree::render(trace) {
            output::line(format!("  {line}"));
        }
    }
    output::line("");
    output::line(format!("  fault  {} the {}", rehearsal.synthesis.tfic.fault, rehearsal.synthesis.tfic.target));
    output::line(format!("  guard  {}", guard(rehearsal)));
}

/// The guard with what is a condition of the target and not an atom.
fn guard(rehearsal: &Rehearsal<'_>) -> String {
    let tfic = &rehearsal.synthesis.tfic;
    let mut text = tfic.guard.to_string();
    if tfic.target.post_effect {
        text.push_str(" and post-effect: the callee's sidecar saw this very call end ok");
    }
    if let Some(hold) = &tfic.hold {
        text.push_str(&format!(", the message held until then (at most {})", hold.deadline));
    }
    text
}

async fn round(rehearsal: &Rehearsal<'_>, outcome: &RoundOutcome, attempts: u32) -> anyhow::Result<Round> {
    let fault = outcome.finished.faults.first();
    let contradictions = rehearsal.contradictions(&outcome.key).await?;
    Ok(Round {
        scenario: rehearsal.case.id.to_owned(),
        pattern: rehearsal.synthesis.tfic.pattern,
        verdict: outcome.finished.verdict,
        attempts,
        guard: guard(rehearsal),
        premature: fault.map_or(0, |fault| fault.premature),
        multiple: fault.is_some_and(|fault| fault.multiple),
        oracle: Oracle { expected: outcome.expected_oracle, found: outcome.oracle.found },
        contradictions,
    })
}

fn tell(rehearsal: &Rehearsal<'_>, outcome: &RoundOutcome, round: &Round) {
    output::line("");
    super::inject::sequences(outcome, &rehearsal.fault().plan);
    output::line("");
    super::inject::attempts(outcome);
    output::line(format!("  verdict  {}, attempts: {}", round.verdict, round.attempts));
    for reason in outcome.finished.faults.iter().flat_map(|fault| &fault.reasons) {
        output::line(format!("           {reason}"));
    }
    output::line(format!("  oracle   {}, as declared: {}", round.oracle.found, outcome.as_declared));
    for difference in &outcome.oracle.differences {
        output::line(format!("           {difference}"));
    }
    match &round.contradictions[..] {
        [] => output::line("  lab      the services' own logs and ledgers agree"),
        contradictions => {
            output::line(format!("  lab      the services' own logs disagree: {}", contradictions.join("; ")))
        }
    }
    output::line("");
}
