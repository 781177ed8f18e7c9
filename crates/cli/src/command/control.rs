//! `aftershock control serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use aftershock_control::server::{Controller, Location, Options, Redaction, Retention};
use aftershock_core::duration::Interval;
use anyhow::Context;
use clap::{Args, Subcommand};
use http::HeaderName;

use crate::{Ended, output};

/// Run the controller, which sidecars register with.
#[derive(Debug, Subcommand)]
pub(crate) enum Control {
    Serve(Serve),
}

/// Collect spans, arm rounds, judge them, keep them.
///
/// Sidecars and the other commands find it at its address; SIGINT and SIGTERM disarm every round before it ends.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen. Only loopback: whoever reaches it can inject faults.
    #[arg(long, default_value = "127.0.0.1:4700")]
    listen: SocketAddr,
    /// The file of the store; it is made if it is not there.
    #[arg(long, default_value = "aftershock.db")]
    store: PathBuf,
    /// Forget rounds that began longer ago than this, e.g. `720h`; all are kept if left out. The latest clean recordings
    /// of each scenario always stay, since guards come from them.
    #[arg(long, value_name = "AGE")]
    keep_for: Option<Interval>,
    /// Of more rounds than these, forget the oldest.
    #[arg(long, value_name = "N")]
    keep_rounds: Option<u64>,
    /// Do not store values of this header field, besides those that carry credentials anyway; may be given repeatedly.
    #[arg(long, value_name = "NAME")]
    redact_header: Vec<HeaderName>,
}

impl Control {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let Control::Serve(serve) = self;
        let listener = tokio::net::TcpListener::bind(serve.listen)
            .await
            .with_context(|| format!("failed to listen on {}", serve.listen))?;
        let options = Options {
            store: Location::File(serve.store.clone()),
            retention: Retention { age: serve.keep_for.map(|age| age.0), rounds: serve.keep_rounds },
            redaction: Redaction::default().also(serve.redact_header),
            ..Options::default()
        };
        let controller = Controller::start(listener, options).await?;
        output::remark(format!("controller on http://{}, store {}", controller.address(), serve.store.display()));
        let signal = super::interrupted().await?;
        output::remark(format!("{signal}: disarming every round"));
        controller.shutdown().await;
        Ok(Ended::AsExpected)
    }
}
