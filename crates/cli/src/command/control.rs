//! `aftershock control serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aftershock_control::api::StopCondition;
use aftershock_control::server::{Access, Controller, Location, Options, Redaction, Retention};
use aftershock_core::duration::Interval;
use aftershock_core::name::Service;
use aftershock_core::wire::ARBITER_TIMEOUT;
use aftershock_trust::{ServerTls, Tokens};
use anyhow::Context;
use clap::{Args, Subcommand};
use http::HeaderName;

use crate::{Ended, output};

const STORE: &str = "Store";
const SAFETY: &str = "Safety";
const ACCESS: &str = "Access";

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
    /// Where to listen. Beyond loopback it asks for tokens or client certificates: whoever reaches it can inject faults.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4700")]
    listen: SocketAddr,
    /// The file of the store; it is made if it is not there.
    #[arg(long, value_name = "FILE", default_value = "aftershock.db", help_heading = STORE)]
    store: PathBuf,
    /// Forget rounds that began longer ago than this, e.g. `720h`; all are kept if left out. The latest clean recordings
    /// of each scenario always stay, since guards come from them.
    #[arg(long, value_name = "AGE", help_heading = STORE)]
    keep_for: Option<Interval>,
    /// Keep this many rounds and forget those before them, except for such recordings; all are kept if left out.
    #[arg(long, value_name = "N", help_heading = STORE)]
    keep_rounds: Option<u64>,
    /// Do not store values of this header field; may be given repeatedly. Those that carry credentials never are.
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    redact_header: Vec<HeaderName>,
    /// Let faults touch this service, where they act or as the callee, and no other; may be given repeatedly.
    #[arg(long, value_name = "SERVICE", help_heading = SAFETY)]
    allow_fault: Vec<Service>,
    /// How long a pass waits for the arbiter where a fault acts at several instances.
    #[arg(long, value_name = "TIME", default_value_t = Interval(ARBITER_TIMEOUT))]
    arbiter_timeout: Interval,
    /// End a round at once when more than this part of the ordinary requests that entered since it began failed, e.g.
    /// `10%`. A scenario's own `stop` holds beside it.
    #[arg(long, value_name = "PERCENT", value_parser = per_million, help_heading = SAFETY)]
    stop_error_rate: Option<u32>,
    /// Conclude nothing from fewer ordinary requests than these.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "stop_error_rate", help_heading = SAFETY)]
    stop_min_requests: u64,
    /// Sidecars and commands show a token of this file, which has one a line. It is read again when it changes, so that a
    /// new token can be handed out before an old one goes.
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    token_file: Option<PathBuf>,
    /// The controller's certificate chain, PEM: connections are encrypted.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = ACCESS)]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = ACCESS)]
    tls_key: Option<PathBuf>,
    /// Whoever connects has a certificate of one of these authorities, PEM; beside `--token-file` both are needed.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = ACCESS)]
    client_ca: Option<PathBuf>,
    /// Take tokens of other hosts over unencrypted connections, because a tunnel or a mesh encrypts them.
    #[arg(long, conflicts_with = "tls_cert", help_heading = ACCESS)]
    insecure_plaintext: bool,
    /// How often the key that sidecars sign their hop headers with is exchanged.
    #[arg(long, value_name = "TIME", default_value = "1h", help_heading = ACCESS)]
    rotate_keys: Interval,
}

/// More often serves nobody.
const LEAST_ROTATION: Duration = Duration::from_secs(1);

impl Serve {
    /// What is asked of whoever connects.
    fn access(&self) -> anyhow::Result<Access> {
        let tokens = self.token_file.as_deref().map(Tokens::load).transpose()?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(ServerTls::load(certificate, key, self.client_ca.as_deref())?),
            _ => None,
        };
        Ok(Access { tokens: tokens.map(Arc::new), tls, insecure_plaintext: self.insecure_plaintext })
    }
}

/// `10%` or `0.5%`, in a million.
fn per_million(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    match percent.filter(|percent| (0.0..100.0).contains(percent)) {
        // Below a million.
        Some(percent) => Ok((percent * 1e4).round() as u32),
        None => Err("expected a percentage of at least 0 and below 100, such as `10%`".to_owned()),
    }
}

impl Control {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let Control::Serve(serve) = self;
        let access = serve.access()?;
        let listener = tokio::net::TcpListener::bind(serve.listen)
            .await
            .with_context(|| format!("failed to listen on {}", serve.listen))?;
        let options = Options {
            store: Location::File(serve.store.clone()),
            retention: Retention { age: serve.keep_for.map(|age| age.0), rounds: serve.keep_rounds },
            redaction: Redaction::default().also(serve.redact_header),
            faultable: (!serve.allow_fault.is_empty()).then(|| serve.allow_fault.into_iter().collect()),
            arbiter_timeout: serve.arbiter_timeout.0,
            stop: serve
                .stop_error_rate
                .map(|errors_per_million| StopCondition { errors_per_million, min_requests: serve.stop_min_requests }),
            access,
            rotate_keys: serve.rotate_keys.0.max(LEAST_ROTATION),
            ..Options::default()
        };
        let scheme = if options.access.tls.is_some() { "https" } else { "http" };
        let controller = Controller::start(listener, options).await?;
        output::remark(format!("controller on {scheme}://{}, store {}", controller.address(), serve.store.display()));
        let signal = super::interrupted().await?;
        output::remark(format!("{signal}: disarming every round"));
        controller.shutdown().await;
        Ok(Ended::AsExpected)
    }
}
