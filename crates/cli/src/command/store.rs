//! `aftershock store`.

use std::path::PathBuf;

use aftershock_control::api::TraceSet;
use aftershock_core::name::nearest;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use super::AtControl;
use crate::output::{self, Format};
use crate::{Ended, command};

/// Take clean recordings out of a controller's store, or bring them into another's.
///
/// Guards are synthesized from clean recordings: who imports those of a test system can generate for it elsewhere.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    Export(Export),
    Import(Import),
}

/// Write the latest clean recordings of a scenario to a file.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The scenario's name.
    scenario: String,
    /// The file to write; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    at: AtControl,
}

/// Take the traces of a file as clean recordings of their scenario. What is there already is left out.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// As `aftershock store export` and `aftershock record --out` write it.
    file: PathBuf,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

impl Store {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        match self {
            Store::Export(export) => export.run().await,
            Store::Import(import) => import.run().await,
        }
    }
}

impl Export {
    async fn run(self) -> anyhow::Result<Ended> {
        let client = self.at.client()?;
        let traces = client.traces(&self.scenario).await?;
        if traces.is_empty() {
            let rounds = client.rounds().await?;
            let hint = match nearest(&self.scenario, rounds.iter().map(|round| round.scenario.as_str())) {
                Some(name) if *name != *self.scenario => format!("; did you mean {name:?}?"),
                _ => String::new(),
            };
            bail!("the controller has no clean recording of a scenario {:?}{hint}", self.scenario);
        }
        let (executions, set) = (traces.len(), TraceSet::new(self.scenario, traces));
        match &self.out {
            None => output::json(&set)?,
            Some(path) => {
                std::fs::write(path, serde_json::to_vec_pretty(&set)?)
                    .with_context(|| format!("failed to write {}", path.display()))?;
                output::remark(format!("{executions} executions of {} in {}", set.scenario, path.display()));
            }
        }
        Ok(Ended::AsExpected)
    }
}

impl Import {
    async fn run(self) -> anyhow::Result<Ended> {
        let set = command::trace_set(&self.file)?;
        let imported = self.at.client()?.import(&set).await?;
        match self.format {
            Format::Json => output::json(&imported)?,
            Format::Human => output::line(format!(
                "{} executions of {} imported, {} were there already",
                imported.stored, set.scenario, imported.present
            )),
        }
        Ok(Ended::AsExpected)
    }
}
