//! `aftershock disarm`.

use clap::Args;

use super::AtControl;
use crate::Ended;
use crate::output::{self, Format};

/// End every armed round: rules go, parked messages are released, dropped calls are closed.
#[derive(Debug, Args)]
pub(crate) struct Disarm {
    /// All of them. There is no other choice yet; it is asked for because it ends other people's rounds too.
    #[arg(long, required = true)]
    all: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

impl Disarm {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let disarmed = self.at.client()?.disarm().await?;
        if self.format == Format::Json {
            output::json(&disarmed)?;
        } else if disarmed.rounds.is_empty() {
            output::line("no round was armed");
        } else {
            let rounds: Vec<String> = disarmed.rounds.iter().map(|round| round.0.to_string()).collect();
            output::line(format!("disarmed rounds {}", rounds.join(", ")));
        }
        if !disarmed.unconfirmed.is_empty() {
            let names: Vec<&str> = disarmed.unconfirmed.iter().map(|service| service.as_str()).collect();
            output::remark(format!("not confirmed by {}: their leases end by themselves", names.join(", ")));
            return Ok(Ended::Unexpected);
        }
        Ok(Ended::AsExpected)
    }
}
