//! `aftershock explain`.

use std::path::PathBuf;

use aftershock_control::api::RoundId;
use aftershock_core::trace::Trace;
use aftershock_generate::explain::explain;
use anyhow::bail;
use clap::Args;

use super::AtControl;
use crate::Ended;
use crate::output::{self, Format};

/// Show which atom of a fault's guard is true when on given traces, and where the fault would fire.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("on").required(true).args(["trace", "scenario", "round"]))]
pub(crate) struct Explain {
    /// The fault file.
    fault: PathBuf,
    /// A file of traces (`aftershock record --out`).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The controller's clean traces of this scenario file.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The traces of this round in the controller's store.
    #[arg(long, value_name = "NUMBER")]
    round: Option<i64>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

impl Explain {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let file = super::fault(&self.fault)?;
        let traces = self.traces().await?;
        let explanations = file
            .plan
            .faults
            .iter()
            .map(|tfic| Ok(explain(tfic, &file.plan.groups, &traces)?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        if self.format == Format::Json {
            output::json(&explanations)?;
            return Ok(Ended::AsExpected);
        }
        if explanations.is_empty() {
            output::line("there is nothing to explain: this file only cuts channels");
        }
        for (index, explanation) in explanations.iter().enumerate() {
            if index > 0 {
                output::line("");
            }
            output::line(explanation.lines().join("\n"));
        }
        Ok(Ended::AsExpected)
    }

    async fn traces(&self) -> anyhow::Result<Vec<Trace>> {
        if let Some(path) = &self.trace {
            return super::traces(path);
        }
        let client = self.at.client()?;
        if let Some(path) = &self.scenario {
            let scenario = super::scenario(path, &super::Elsewhere { entry: Vec::new(), set: Vec::new() })?;
            return Ok(client.traces(&scenario.name).await?);
        }
        let id = self.round.expect("clap asks for one of three");
        match client.round(RoundId(id)).await?.finished {
            Some(finished) => Ok(finished.traces),
            None => bail!("round {id} has no traces: it did not come to its end"),
        }
    }
}
