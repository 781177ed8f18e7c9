//! `aftershock rounds`.

use clap::Args;

use super::AtControl;
use crate::output::{self, Format};
use crate::{Ended, draw};
use aftershock_control::api::RoundId;

/// List the rounds in the controller's store, newest last, or show one.
#[derive(Debug, Args)]
pub(crate) struct Rounds {
    /// Show this round: its verdict with reasons, and its message sequences.
    round: Option<i64>,
    /// Only rounds of this scenario.
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// At most this many, the latest.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

impl Rounds {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let client = self.at.client()?;
        if let Some(id) = self.round {
            let record = client.round(RoundId(id)).await?;
            if self.format == Format::Json {
                output::json(&record)?;
                return Ok(Ended::AsExpected);
            }
            for fault in &record.plan.faults {
                output::line(format!("{}: {} when {}", fault.fault, fault.target, fault.guard));
            }
            record.plan.cuts.iter().for_each(|channel| output::line(format!("cut {channel}")));
            if let Some(finished) = &record.finished {
                for trace in &finished.traces {
                    output::line(draw::sequence::render(trace, &record.plan).join("\n"));
                }
                output::line(format!("verdict {}", finished.verdict));
                let of_cuts = finished.cuts.iter().flat_map(|cut| &cut.reasons);
                for reason in finished.faults.iter().flat_map(|fault| &fault.reasons).chain(of_cuts) {
                    output::line(format!("  {reason}"));
                }
            }
            if let Some(concluded) = &record.concluded {
                output::line(format!("oracle {}", concluded.oracle.found));
                for difference in &concluded.oracle.differences {
                    output::line(format!("  {difference}"));
                }
            }
            return Ok(Ended::AsExpected);
        }
        let mut rounds = client.rounds().await?;
        rounds.retain(|round| self.scenario.as_ref().is_none_or(|scenario| round.scenario == *scenario));
        rounds.sort_by_key(|round| round.id);
        rounds.drain(..rounds.len().saturating_sub(self.limit as usize));
        if self.format == Format::Json {
            output::json(&rounds)?;
            return Ok(Ended::AsExpected);
        }
        if rounds.is_empty() {
            match &self.scenario {
                Some(scenario) => output::line(format!("no rounds of scenario {scenario}")),
                None => output::line("no rounds yet"),
            }
            return Ok(Ended::AsExpected);
        }
        let mut table = output::table(["round", "scenario", "key", "faults", "verdict", "oracle"]);
        for round in rounds {
            table.add_row([
                round.id.0.to_string(),
                round.scenario,
                round.key,
                round.faults.to_string(),
                round.verdict.map_or_else(|| "running".to_owned(), |verdict| verdict.to_string()),
                round.oracle.map_or_else(|| "–".to_owned(), |oracle| oracle.to_string()),
            ]);
        }
        output::line(table);
        Ok(Ended::AsExpected)
    }
}
