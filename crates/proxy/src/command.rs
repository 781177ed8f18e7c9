//! The command line of the sidecar, for the binaries that run it.

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::{Config, ConfigError};
use crate::log::{self, LogFormat};
use crate::redirect::{self, Backend, RedirectError, Rules};
use crate::run::{RunError, run};

/// The sidecar of one service instance: passes its traffic on, records rounds, injects faults.
#[derive(Debug, Parser)]
#[command(name = "aftershock-proxy", version)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The configuration, `kind: Sidecar`.
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// End when standard input does, as whoever started this process has ended.
    #[arg(long)]
    exit_with_stdin: bool,
    /// Only read the configuration.
    #[arg(long)]
    check: bool,
    /// How logs look on standard error; which there are says AFTERSHOCK_LOG (`warn`, `debug`, …; `info` if unset).
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, env = "AFTERSHOCK_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make or remove the rules that redirect connections to the sidecar, in this network namespace.
    ///
    /// The sidecar need not run: rules are made before it starts and removed after it has ended. Needs the capability
    /// NET_ADMIN; the sidecar itself does not.
    #[command(subcommand)]
    Redirect(Redirect),
}

#[derive(Debug, Subcommand)]
enum Redirect {
    /// Make the rules, in place of those that were made before: all of them, or none and exit code 1.
    Apply(RedirectArguments),
    /// Remove the rules that were made, and nothing else. Without any it does nothing.
    Remove {
        /// What made the rules.
        #[arg(long, value_enum, default_value_t)]
        backend: Backend,
        /// Not needed: everything that was made is removed.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the rules, and change nothing.
    Print(RedirectArguments),
}

#[derive(Debug, clap::Args)]
struct RedirectArguments {
    /// The configuration, `kind: Sidecar`, with a section `transparent`.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// What makes the rules.
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
}

impl RedirectArguments {
    fn rules(&self) -> Result<Rules, CommandError> {
        let nothing = || RedirectError::Nothing { file: self.config.display().to_string() };
        Ok(Rules::of(&Config::load(&self.config)?).ok_or_else(nothing)?)
    }
}

impl Redirect {
    fn run(self) -> Result<Option<String>, CommandError> {
        match self {
            Redirect::Apply(arguments) => arguments.rules()?.apply(arguments.backend)?,
            Redirect::Remove { backend, .. } => redirect::remove(backend)?,
            Redirect::Print(arguments) => return Ok(Some(arguments.rules()?.render(arguments.backend))),
        }
        Ok(None)
    }
}

/// Why the sidecar ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command line is wrong, or asks for help.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Connections cannot be redirected, or not be left alone.
    #[error(transparent)]
    Redirect(#[from] RedirectError),
    /// It cannot start.
    #[error("failed to start the sidecar")]
    Run(#[from] RunError),
    /// The system does not give what every process needs.
    #[error("failed to set up the process")]
    Process(#[source] io::Error),
}

/// Do what the arguments say, the program's name first: run the sidecar until SIGTERM or SIGINT, with its logs on stderr, or
/// make rules of redirection. What is to be printed is returned.
///
/// # Errors
/// When the arguments or the configuration are wrong, or it cannot start.
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<String>, CommandError> {
    let arguments = Arguments::try_parse_from(arguments)?;
    if let Some(Action::Redirect(redirect)) = arguments.command {
        return redirect.run();
    }
    let file = arguments.config.expect("the parser demands it where there is no subcommand");
    let config = Config::load(&file)?;
    if arguments.check {
        config.control.as_ref().map(crate::config::Control::endpoint).transpose().map_err(RunError::from)?;
        return Ok(None);
    }
    log::init(arguments.log_format);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Process)?;
    runtime.block_on(async {
        let (shutdown, at_once) = shutdown(arguments.exit_with_stdin).map_err(CommandError::Process)?;
        run(config, shutdown, at_once).await?;
        Ok(None)
    })
}

/// Complete when the process is to end, and when it is to end at once: at a signal, and at any that comes after the first
/// was heard.
fn shutdown(with_stdin: bool) -> io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let either = || -> io::Result<_> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        Ok(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
    };
    let first = either()?;
    // Without a reader the sender lives as long as the future, so that this never completes.
    let (ended, mut stdin) = oneshot::channel::<()>();
    let ended = if with_stdin {
        // Reading blocks until there is something or the other end is gone, so it needs a thread of its own.
        std::thread::Builder::new().name("stdin".to_owned()).stack_size(64 << 10).spawn(move || {
            let mut buffer = [0; 256];
            loop {
                match io::stdin().lock().read(&mut buffer) {
                    Ok(0) => break,
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                    Ok(_) | Err(_) => {}
                }
            }
            drop(ended);
        })?;
        None
    } else {
        Some(ended)
    };
    let shutdown = async move {
        let _ended = ended;
        tokio::select! {
            () = first => {}
            _ = &mut stdin => {}
        }
    };
    let at_once = async move {
        match either() {
            Ok(again) => again.await,
            Err(error) => tracing::warn!(%error, "cannot listen for another signal"),
        }
    };
    Ok((shutdown, at_once))
}
