//! `aftershock schema`.

use aftershock_control::scenario::{ScenarioFile, TemporalFaultFile};
use clap::{Args, ValueEnum};
use schemars::schema_for;

use crate::{Ended, output};

/// Print the JSON schema of a file kind, for editors that check YAML while you type.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The kind.
    #[arg(value_enum, ignore_case = true)]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    #[value(name = "Scenario")]
    Scenario,
    #[value(name = "TemporalFault")]
    TemporalFault,
    #[value(name = "Topology")]
    Topology,
    #[value(name = "Sidecar")]
    Sidecar,
}

impl Schema {
    pub(crate) fn run(self) -> anyhow::Result<Ended> {
        let schema = match self.kind {
            Kind::Scenario => schema_for!(ScenarioFile),
            Kind::TemporalFault => schema_for!(TemporalFaultFile),
            Kind::Topology => schema_for!(aftershock_lab::TopologyFile),
            Kind::Sidecar => schema_for!(aftershock_proxy::config::SidecarFile),
        };
        output::json(&schema)?;
        Ok(Ended::AsExpected)
    }
}
