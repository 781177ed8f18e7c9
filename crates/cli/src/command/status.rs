//! `aftershock status`.

use std::time::Duration;

use aftershock_control::api::Status as Answer;
use anyhow::bail;
use clap::Args;

use super::AtControl;
use crate::Ended;
use crate::output::{self, Format};

/// Show registered sidecars with how their calls were associated, armed rules, and their leases.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Wait until the controller answers and at least this many sidecars are registered (10 s at most).
    #[arg(long, value_name = "SIDECARS")]
    wait: Option<usize>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

impl Status {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let client = self.at.client()?;
        let status = match self.wait {
            None => client.status().await?,
            Some(wanted) => registered(&client, wanted, Duration::from_secs(10)).await?,
        };
        match self.format {
            Format::Json => output::json(&status)?,
            Format::Human => human(&status),
        }
        Ok(Ended::AsExpected)
    }
}

/// Ask until `wanted` sidecars are registered.
pub(crate) async fn registered(
    client: &aftershock_control::client::Client,
    wanted: usize,
    within: Duration,
) -> anyhow::Result<Answer> {
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let answer = client.status().await;
        match answer {
            Ok(status) if status.sidecars.len() >= wanted => return Ok(status),
            Ok(status) if tokio::time::Instant::now() > deadline => {
                let names: Vec<String> = status.sidecars.iter().map(|s| s.service.to_string()).collect();
                let refused: String = status.refused.values().map(|reason| format!("\nrefused: {reason}")).collect();
                bail!(
                    "{} of {wanted} sidecars registered within {within:?}: {}{refused}",
                    names.len(),
                    names.join(", ")
                );
            }
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
            // There is nothing to subscribe to before the controller answers; this is the only polling there is.
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn human(status: &Answer) {
    output::line(format!("controller {}, {} rounds stored", status.version, status.stored_rounds));
    if status.sidecars.is_empty() {
        output::line("no sidecar is registered");
    } else {
        let mut table = output::table(["service", "sidecar", "inbound", "associated calls", "ignored", "lost spans"]);
        for sidecar in &status.sidecars {
            let counts = |pairs: Vec<String>| if pairs.is_empty() { "–".to_owned() } else { pairs.join(", ") };
            table.add_row([
                sidecar.service.to_string(),
                format!("{} ({})", sidecar.observer, sidecar.version),
                sidecar.inbound.join(", "),
                counts(sidecar.associations.iter().map(|(step, n)| format!("{step} {n}")).collect()),
                counts(sidecar.ignored.iter().map(|(what, n)| format!("{what} {n}")).collect()),
                sidecar.lost.to_string(),
            ]);
        }
        output::line(table);
    }
    super::record::unseen_lines(&super::record::unseen(&status.sidecars)).for_each(output::line);
    for (service, reason) in &status.refused {
        output::line(format!("refused: {service}: {reason}"));
    }
    if status.turned_away > 0 {
        output::line(format!("turned away, without a valid token or certificate: {}", status.turned_away));
    }
    if status.rounds.is_empty() {
        output::line("no round is armed");
    }
    for round in &status.rounds {
        output::line(format!("round {} of {}: lease {} left", round.id.0, round.scenario, round.lease_left));
        for rule in &round.rules {
            output::line(format!("  {rule}"));
        }
    }
}
