//! The commands, one module each.

pub(crate) mod control;
pub(crate) mod demo;
pub(crate) mod disarm;
pub(crate) mod explain;
pub(crate) mod generate;
pub(crate) mod inject;
pub(crate) mod lab;
pub(crate) mod record;
pub(crate) mod rounds;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod store;

use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};

use aftershock_control::api::TraceSet;
use aftershock_control::client::Client;
use aftershock_control::runner::Runner;
use aftershock_control::scenario::{Scenario, Secrets, TemporalFault};
use aftershock_core::trace::Trace;
use aftershock_lab::{Launcher, Options};
use aftershock_trust::{Credentials, Endpoint, TokenSource};
use anyhow::{Context, bail};
use clap::Args;

use crate::Ended;

/// The default address of the controller.
pub(crate) const CONTROL: &str = "http://127.0.0.1:4700";

/// Where the controller is, and what it is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Controller")]
pub(crate) struct AtControl {
    /// The controller's address, `http://HOST:PORT` or `https://HOST:PORT`.
    #[arg(
        long = "controller",
        visible_alias = "control",
        value_name = "URL",
        default_value = CONTROL,
        env = "AFTERSHOCK_CONTROLLER",
        hide_env_values = true
    )]
    pub(crate) control: String,
    /// The file with the token to show; the variable AFTERSHOCK_TOKEN may hold the token itself.
    #[arg(long, value_name = "FILE", env = "AFTERSHOCK_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// The authorities that sign the controller's certificate, PEM; needed for `https://`.
    #[arg(long, value_name = "FILE", env = "AFTERSHOCK_CA", hide_env_values = true)]
    ca: Option<PathBuf>,
    /// A certificate chain to show, PEM.
    #[arg(long, value_name = "FILE", env = "AFTERSHOCK_CERT", hide_env_values = true)]
    cert: Option<PathBuf>,
    /// The key of `--cert`, PEM.
    #[arg(long, value_name = "FILE", env = "AFTERSHOCK_CERT_KEY", hide_env_values = true)]
    key: Option<PathBuf>,
    /// Let the token travel unencrypted to another host, because a tunnel or a mesh encrypts it.
    #[arg(long)]
    insecure_plaintext: bool,
}

/// The variable with a token.
const TOKEN: &str = "AFTERSHOCK_TOKEN";

impl AtControl {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::of(Endpoint::new(&self.control, self.credentials())?))
    }

    /// Read from the environment here and not by the parser, which would print it in an error.
    fn credentials(&self) -> Credentials {
        let given = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        let file = self.token_file.clone().map(TokenSource::File);
        Credentials {
            token: file.or_else(|| given.map(|token| TokenSource::Given { name: TOKEN, token })),
            ca: self.ca.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            insecure_plaintext: self.insecure_plaintext,
        }
    }

    /// How the sidecars of a lab are told of the controller: the value of `control:` in their configurations.
    ///
    /// # Errors
    /// When only a variable has the token: a sidecar reads a file.
    pub(crate) async fn for_sidecars(&self) -> anyhow::Result<aftershock_lab::Control> {
        let credentials = self.credentials();
        let endpoint = Endpoint::new(&self.control, credentials.clone())?;
        let address = match Endpoint::check(&self.control, &credentials)? {
            Some(_) => None,
            None => Some(endpoint.resolve().await.with_context(|| format!("failed to resolve {}", self.control))?),
        };
        let token_file = match credentials.token {
            Some(TokenSource::Given { .. }) => bail!("sidecars read their token from a file: give `--token-file`"),
            Some(TokenSource::File(file)) => Some(absolute(file)?),
            None => None,
        };
        Ok(aftershock_lab::Control {
            url: self.control.clone(),
            address,
            token_file,
            ca: credentials.ca.map(absolute).transpose()?,
            cert: credentials.certificate.map(absolute).transpose()?,
            key: credentials.key.map(absolute).transpose()?,
            insecure_plaintext: credentials.insecure_plaintext,
        })
    }
}

fn absolute(path: PathBuf) -> anyhow::Result<PathBuf> {
    std::path::absolute(&path).with_context(|| format!("failed to find {}", path.display()))
}

/// Where a scenario's system is, if not where its file says.
#[derive(Debug, Args)]
pub(crate) struct Elsewhere {
    /// Base URL of the entry, instead of the scenario's; of each replica, separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) entry: Vec<String>,
    /// Value of one of the scenario's `ledgers` or `variables`, instead of the file's.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, String)>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// The text of a file, for a reader that locates its errors.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// Read a scenario file and put it where it is to run.
pub(crate) fn scenario(path: &Path, elsewhere: &Elsewhere) -> anyhow::Result<Scenario> {
    let mut scenario = Scenario::parse(&path.display().to_string(), &read(path)?)?;
    scenario.relocate(&elsewhere.entry, &elsewhere.set)?;
    Ok(scenario)
}

/// A runner of a scenario, with its secrets from the environment.
pub(crate) fn runner(client: &Client, scenario: Scenario) -> anyhow::Result<Runner> {
    let secrets = Secrets::read(&scenario, |name| std::env::var(name).ok())?;
    Ok(Runner::new(client.clone(), scenario).with_secrets(secrets))
}

/// Read a fault file.
pub(crate) fn fault(path: &Path) -> anyhow::Result<TemporalFault> {
    Ok(TemporalFault::parse(&path.display().to_string(), &read(path)?)?)
}

/// Traces from a file, as `aftershock record --out` writes them.
pub(crate) fn traces(path: &Path) -> anyhow::Result<Vec<Trace>> {
    Ok(trace_set(path)?.traces)
}

/// A file of traces, checked.
pub(crate) fn trace_set(path: &Path) -> anyhow::Result<TraceSet> {
    let failed = || format!("failed to read traces from {}", path.display());
    let set: TraceSet = serde_json::from_str(&read(path)?).with_context(failed)?;
    set.check().with_context(failed)?;
    Ok(set)
}

/// Run `work`; at SIGINT or SIGTERM drop it, which ends children, and tell `controller` of the rounds that were dropped.
pub(crate) async fn until_interrupted(
    controller: Option<&Client>,
    work: impl Future<Output = anyhow::Result<Ended>>,
) -> anyhow::Result<Ended> {
    let signal = tokio::select! {
        ended = work => return ended,
        signal = interrupted() => signal?,
    };
    if let Some(controller) = controller {
        controller.farewells().await;
    }
    bail!("interrupted by {signal}; everything started was stopped");
}

/// Completes when the user or the system wants this process to end.
pub(crate) async fn interrupted() -> anyhow::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// The sidecar's binary: the lean one beside this one, else this one.
pub(crate) fn sidecar_binary() -> anyhow::Result<(PathBuf, Vec<OsString>)> {
    let this = std::env::current_exe().context("failed to find this program's own file")?;
    let lean = this.with_file_name("aftershock-proxy");
    if lean.is_file() { Ok((lean, Vec::new())) } else { Ok((this, vec!["proxy".into()])) }
}

/// How the lab's processes are started: this binary again, and the sidecar's.
pub(crate) fn lab_options() -> anyhow::Result<Options> {
    let this = std::env::current_exe().context("failed to find this program's own file")?;
    let mut options = Options::new(Launcher { program: this, args: vec!["lab-service".into()] });
    let (program, args) = sidecar_binary()?;
    options.sidecar = Some(Launcher { program, args });
    Ok(options)
}

/// `aftershock proxy …`.
pub(crate) fn sidecar(arguments: Vec<OsString>) -> anyhow::Result<Ended> {
    let printed = aftershock_proxy::main_from_args(std::iter::once("aftershock-proxy".into()).chain(arguments))?;
    if let Some(text) = printed {
        crate::output::line(text.trim_end());
    }
    Ok(Ended::AsExpected)
}

/// `aftershock lab-service`.
pub(crate) fn lab_service() -> anyhow::Result<Ended> {
    aftershock_lab::service::main()?;
    Ok(Ended::AsExpected)
}
