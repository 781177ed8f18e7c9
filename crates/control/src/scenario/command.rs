//! Commands of the user's own: as the client of a round, and as invariants.

use std::collections::BTreeMap;

use aftershock_core::duration::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::template::Template;
use super::variables::Known;

/// What the runner puts into the environment of every command of a round.
const RESERVED: [&str; 4] = ["TRACEPARENT", "TRACESTATE", "AFTERSHOCK_KEY", "AFTERSHOCK_ENTRY"];

/// A program with its arguments; no shell is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments.
    #[schemars(length(min = 1))]
    pub run: Vec<Template>,
    /// Further environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// How long it may take; ten seconds if left out. Then it is killed with everything that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Interval>,
    /// The exit code that means that all is well.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 255))]
    pub exit: i32,
}

fn is_zero(exit: &i32) -> bool {
    *exit == 0
}

impl Command {
    /// Every text with variables.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.run.iter().chain(self.env.values())
    }

    /// Checks that it can be run where `known` variables have values.
    pub(super) fn check(&self, known: &Known) -> Result<(), String> {
        check(&self.run, self.env.iter().map(|(name, value)| (name.as_str(), value)), known)?;
        if self.timeout.is_some_and(|timeout| timeout.0.is_zero()) {
            return Err("expected a timeout above zero".to_owned());
        }
        exit_code(self.exit)
    }
}

/// Checks that these arguments and environment variables can be given to a program.
pub(super) fn check<'a>(
    run: &[Template],
    env: impl Iterator<Item = (&'a str, &'a Template)>,
    known: &Known,
) -> Result<(), String> {
    if run.first().is_none_or(|program| program.as_str().trim().is_empty()) {
        return Err("expected a program and its arguments under `run`, found nothing to run".to_owned());
    }
    for argument in run {
        known.check(argument).map_err(|error| error.to_string())?;
        if let Some(secret) = known.secret(argument) {
            return Err(format!(
                "expected no secret in an argument, found `{{{secret}}}`: others can see arguments; put it under `env`"
            ));
        }
        no_nul(argument.as_str())?;
    }
    for (name, value) in env {
        if RESERVED.contains(&name) {
            return Err(format!("expected no `{name}` here: the runner sets it"));
        }
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("expected the name of an environment variable, found {name:?}"));
        }
        known.check(value).map_err(|error| error.to_string())?;
        no_nul(value.as_str())?;
    }
    Ok(())
}

fn no_nul(text: &str) -> Result<(), String> {
    if text.contains('\0') { Err("expected a text without NUL characters".to_owned()) } else { Ok(()) }
}

/// Whether a program can end so.
pub(super) fn exit_code(exit: i32) -> Result<(), String> {
    match exit {
        0..=255 => Ok(()),
        _ => Err(format!("expected an exit code from 0 to 255, found {exit}")),
    }
}
