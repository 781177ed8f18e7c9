//! What a round does and what it must show: `kind: Scenario` and `kind: TemporalFault` (design §2, §4.4).
//!
//! Files are read strictly; every complaint names file, line, column and what was expected. Whatever parses can be run:
//! names resolve, templates speak of variables that exist, URLs have hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::name::nearest;
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::yaml::{self, Located, Spanned};

use crate::api::StopCondition;

mod check;
mod command;
mod entry;
mod extract;
mod fault;
mod file;
mod invariant;
mod request;
mod sql;
mod template;
mod text;
mod traffic;
mod variables;

pub use check::{Check, Comparator, Expectation, OneComparator};
pub use command::Command;
pub use entry::Entries;
pub use extract::{Extraction, Place};
pub use fault::{Declared, ExpectedOracle, FaultExpectation, TemporalFault, TemporalFaultFile};
pub use file::{Execution, RetryOn, ScenarioFile};
pub use invariant::{Document, InvalidInvariant, Invariant};
pub use request::{Body, Call, Message, MessageSchema, Request, Retry};
pub use sql::Sql;
pub use template::{JsonTemplate, Template, UnknownVariable};
pub use text::{BaseUrl, GrpcMethod, JsonPath, Method, ParseTextError, Pattern, Selected, When};
pub use traffic::Traffic;
pub use variables::{MissingSecrets, Secrets};

pub(crate) use check::Hide;
use request::expectation_fits;
pub(crate) use request::fill_headers;
pub(crate) use sql::Database;
use variables::{Known, OF_THE_KEY, check_name};

/// The kind of a scenario's file.
pub const SCENARIO: &str = "Scenario";
/// The kind of a temporal fault's file.
pub const TEMPORAL_FAULT: &str = "TemporalFault";

/// A scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Where requests go.
    pub entry: Entries,
    /// The business key of a round, with `{random}` and `{n}`.
    pub key: Template,
    /// Named base URLs.
    pub ledgers: BTreeMap<String, BaseUrl>,
    /// The names of environment variables whose values are secrets.
    pub secrets: BTreeSet<String>,
    /// Variables, each of which speaks only of those before it.
    pub variables: Vec<(String, Template)>,
    /// Whether the client keeps cookies.
    pub cookies: bool,
    /// Which requests are one execution.
    pub execution: Execution,
    /// Sent before a round is armed, outside of it.
    pub setup: Vec<Request>,
    /// The client's requests, in order; its one command; none where ordinary traffic is the client.
    pub requests: Vec<Request>,
    /// Ordinary traffic in place of requests.
    pub traffic: Option<Traffic>,
    /// Apis whose outcome is not what their status says.
    pub outcomes: Vec<OutcomeOverride>,
    /// When a round is ended because ordinary traffic suffers.
    pub stop: Option<StopCondition>,
    /// Where the files that the scenario names are.
    pub folder: PathBuf,
    /// Sent after a round, outside of it, whatever came of it.
    pub teardown: Vec<Request>,
    /// What must hold of the system's state.
    pub invariants: Vec<Invariant>,
}

/// A scenario cannot be put elsewhere as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Not a base URL.
    #[error("{0}")]
    Url(#[from] ParseTextError),
    /// A value that speaks of variables.
    #[error("expected a value of {name:?} without variables")]
    Value {
        /// Of which variable.
        name: String,
    },
    /// The scenario has no such ledger or variable.
    #[error("scenario {scenario:?} has no ledger or variable {name:?}{hint}")]
    Unknown {
        /// The scenario.
        scenario: String,
        /// What was asked for.
        name: String,
        /// What there is.
        hint: String,
    },
}

impl Scenario {
    /// Reads `text`, the contents of `file`.
    ///
    /// # Errors
    /// Located: what was expected, and where.
    pub fn parse(file: &str, text: &str) -> Result<Self, Located> {
        let raw: ScenarioFile = yaml::from_str_as(SCENARIO, file, text)?;
        let source = Source { file, text };
        source.named(&raw.metadata.name, "the scenario")?;
        let spec = raw.spec;
        let key = spec.key.unwrap_or_else(|| Spanned::from(default_key()));
        source.check(&key, key.check(OF_THE_KEY))?;
        if !key.mentions("random") && !key.mentions("n") {
            let message = "expected `{random}` or `{n}` in the key: each round needs a business key of its own";
            return Err(source.at(&key, message));
        }
        let mut scenario = Scenario {
            name: raw.metadata.name.value.clone(),
            entry: spec.entry,
            key: key.value,
            ledgers: BTreeMap::new(),
            secrets: BTreeSet::new(),
            variables: Vec::new(),
            cookies: spec.cookies,
            execution: spec.execution,
            setup: Vec::new(),
            requests: Vec::new(),
            traffic: None,
            outcomes: Vec::new(),
            stop: spec.stop.map(|stop| stop.parse(&source)).transpose()?,
            folder: Path::new(file).parent().unwrap_or(Path::new("")).to_owned(),
            teardown: Vec::new(),
            invariants: Vec::new(),
        };
        for (name, url) in spec.ledgers {
            check_name(&source, &name, &url, &Known::default())?;
            scenario.ledgers.insert(name, url.value);
        }
        for name in spec.secrets {
            if !template::is_name(&name) {
                return Err(
                    source.at(&name, format!("expected the name of an environment variable, found {:?}", *name))
                );
            }
            scenario.secrets.insert(name.value);
        }
        scenario.variables = variables::ordered(&source, spec.variables, &scenario.known_at_the_start())?;
        for outcome in spec.outcomes {
            source.check(&outcome, outcome.check())?;
            if scenario.outcomes.iter().any(|other| other.api == outcome.api) {
                return Err(
                    source.at(&outcome, format!("expected each Api's outcome once, found `{}` again", outcome.api))
                );
            }
            scenario.outcomes.push(outcome.value);
        }
        let mut names = BTreeSet::new();
        let mut once = |name: &Spanned<String>| match names.insert(name.value.clone()) {
            true => Ok(()),
            false => Err(source.at(name, format!("expected each request's name once, found `{name}` again"))),
        };
        for raw in spec.setup {
            once(&raw.name)?;
            let known = scenario.known_before(0);
            scenario.setup.push(request::parse(&source, raw, &known, &scenario)?);
        }
        match (spec.requests, spec.command, spec.traffic) {
            (Some(requests), None, None) => {
                if requests.is_empty() {
                    return Err(source.at(&requests, "expected at least one request"));
                }
                for raw in requests.value {
                    once(&raw.name)?;
                    let known = scenario.known_before(scenario.requests.len());
                    scenario.requests.push(request::parse(&source, raw, &known, &scenario)?);
                }
            }
            (None, Some(command), None) => {
                let known = scenario.known_before(0);
                scenario.requests.push(request::parse_command(&source, command.value, &known, &scenario)?);
            }
            (None, None, Some(traffic)) => {
                if scenario.execution == Execution::Sequence {
                    let message =
                        "expected no `execution: sequence` beside `traffic`: each of its requests is an execution";
                    return Err(source.at(&traffic, message));
                }
                let place = Spanned { value: (), location: traffic.location };
                scenario.traffic = Some(traffic.value.parse(&source, &place)?);
            }
            (None, None, None) => {
                let message = "expected `requests`, `command` or `traffic`, found none: nothing would be sent";
                return Err(source.at(&raw.metadata.name, message));
            }
            (requests, command, traffic) => {
                let message = "expected one of `requests`, `command` and `traffic`, found several";
                let places =
                    [requests.map(|it| it.location), command.map(|it| it.location), traffic.map(|it| it.location)];
                let last = places.into_iter().flatten().next_back().flatten();
                return Err(Located::at(file, text, last, message));
            }
        }
        for raw in spec.teardown {
            once(&raw.name)?;
            let all = scenario.known_before(scenario.requests.len());
            let known = scenario.teardown.iter().fold(all, Known::extended);
            scenario.teardown.push(request::parse(&source, raw, &known, &scenario)?);
        }
        scenario.check_invariants(&source, &spec.invariants, &[])?;
        scenario.invariants = spec.invariants.into_iter().map(|invariant| invariant.value).collect();
        Ok(scenario)
    }

    /// Puts the scenario where it is to run: other entries, other ledgers, other values of variables.
    ///
    /// # Errors
    /// A URL that is none, a name that the scenario does not have.
    pub fn relocate(&mut self, entry: &[String], values: &[(String, String)]) -> Result<(), RelocateError> {
        if !entry.is_empty() {
            self.entry = Entries::new(entry.iter().map(|url| url.parse()).collect::<Result<_, _>>()?);
        }
        for (name, value) in values {
            if let Some(ledger) = self.ledgers.get_mut(name) {
                *ledger = value.parse()?;
            } else if let Some((_, variable)) = self.variables.iter_mut().find(|(variable, _)| variable == name) {
                let value: Template = value.parse().expect("every text is a template");
                if value.variables().next().is_some() {
                    return Err(RelocateError::Value { name: name.clone() });
                }
                *variable = value;
            } else {
                let known =
                    || self.ledgers.keys().chain(self.variables.iter().map(|(name, _)| name)).map(String::as_str);
                let hint = match nearest(name, known()) {
                    Some(near) => format!("; did you mean {near:?}?"),
                    None if known().next().is_none() => String::new(),
                    None => format!(", only {}", known().collect::<Vec<_>>().join(", ")),
                };
                return Err(RelocateError::Unknown { scenario: self.name.clone(), name: name.clone(), hint });
            }
        }
        Ok(())
    }

    /// The request of this name.
    pub fn request(&self, name: &str) -> Option<&Request> {
        self.requests.iter().find(|request| request.name == name)
    }

    /// Checks that `fault` was written for this scenario: its name, its requests, its variables.
    ///
    /// # Errors
    /// Located in the fault's file.
    pub fn check(&self, fault: &TemporalFault) -> Result<(), Located> {
        let source = fault.source();
        if *fault.scenario != self.name {
            let message = format!("expected the scenario `{}`, found `{}`", self.name, fault.scenario);
            return Err(source.at(&fault.scenario, message));
        }
        for (name, expectation) in &fault.expect.requests {
            let request = self.request(name).ok_or_else(|| source.at(expectation, self.unknown_request(name)))?;
            expectation_fits(&request.call, expectation).map_err(|message| source.at(expectation, message))?;
        }
        let (invariants, also): (&[Spanned<Invariant>], &[Invariant]) = match &fault.expect.invariants {
            Declared::AsScenario => (&[], &[]),
            Declared::Instead(invariants) => (invariants, &[]),
            Declared::Also(invariants) => (invariants, &self.invariants),
        };
        self.check_invariants(&source, invariants, also)?;
        let names: Vec<&str> = self.invariants_under(Some(fault)).into_iter().map(|it| it.name.as_str()).collect();
        for name in fault.expect.violates.iter().flatten() {
            if !names.contains(&name.as_str()) {
                let near = nearest(name, names.iter().copied())
                    .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                return Err(
                    source.at(name, format!("unknown invariant `{name}`, expected one of {}{near}", listed(&names)))
                );
            }
        }
        Ok(())
    }

    fn unknown_request(&self, name: &str) -> String {
        let names: Vec<&str> = self.requests.iter().map(|request| request.name.as_str()).collect();
        let near =
            nearest(name, names.iter().copied()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        format!("unknown request `{name}`, expected one of {}{near}", listed(&names))
    }

    /// Checks what invariants say of this scenario; their names must be new among `others` too.
    fn check_invariants(
        &self,
        source: &Source<'_>,
        invariants: &[Spanned<Invariant>],
        others: &[Invariant],
    ) -> Result<(), Located> {
        let mut names: BTreeSet<&str> = others.iter().map(|invariant| invariant.name.as_str()).collect();
        for invariant in invariants {
            if !names.insert(&invariant.name) {
                let message = format!("expected each invariant's name once, found `{}` again", invariant.name);
                return Err(source.at(invariant, message));
            }
            let named: Vec<&Request> = match &invariant.request {
                Some(name) => {
                    vec![self.request(name).ok_or_else(|| source.at(invariant, self.unknown_request(name)))?]
                }
                None => self.requests.iter().collect(),
            };
            // What an attempt's own request extracts has its value only once it was answered for good.
            let index = match (&invariant.when, &invariant.request) {
                (When::AfterRound, _) => self.requests.len(),
                (_, Some(name)) => self.requests.iter().position(|request| request.name == *name).unwrap_or(0),
                (_, None) => 0,
            };
            let known = self.known_before(index);
            source.check(invariant, invariant.check(&known, self))?;
            let most = named.iter().map(|request| request.retry.attempts).max().unwrap_or(0);
            if let When::AfterAttempt(n) = invariant.when
                && n > most
            {
                if self.traffic.is_some() {
                    let message = "expected `when: after_round`: traffic has no attempts that the runner knows of";
                    return Err(source.at(invariant, message));
                }
                let message = format!("expected an attempt that can be: no request is tried {n} times, at most {most}");
                return Err(source.at(invariant, message));
            }
        }
        Ok(())
    }

    /// The invariants of a round: the scenario's, or what the fault puts in their place.
    pub fn invariants_under<'a>(&'a self, fault: Option<&'a TemporalFault>) -> Vec<&'a Invariant> {
        match fault.map(|fault| &fault.expect.invariants) {
            None | Some(Declared::AsScenario) => self.invariants.iter().collect(),
            Some(Declared::Instead(invariants)) => invariants.iter().map(|invariant| &invariant.value).collect(),
            Some(Declared::Also(invariants)) => {
                self.invariants.iter().chain(invariants.iter().map(|invariant| &invariant.value)).collect()
            }
        }
    }

    /// What the last answer to `request` must be: the scenario's expectation, or what the fault puts in its place.
    pub fn expectation_under<'a>(&self, request: &'a Request, fault: Option<&'a TemporalFault>) -> &'a Expectation {
        let instead = fault.and_then(|fault| fault.expect.requests.get(&request.name));
        instead.map_or(&request.expect, |expectation| &expectation.value)
    }
}

fn default_key() -> Template {
    "key-{random}".parse().expect("every text is a template")
}

/// `a`, `b`
fn listed(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A file under check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn at<T>(&self, place: &Spanned<T>, message: impl std::fmt::Display) -> Located {
        Located::at(self.file, self.text, place.location, message)
    }

    fn check<T, V, E: std::fmt::Display>(&self, place: &Spanned<T>, result: Result<V, E>) -> Result<V, Located> {
        result.map_err(|error| self.at(place, error))
    }

    fn named(&self, name: &Spanned<String>, what: &str) -> Result<(), Located> {
        let tidy = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 128 || !name.chars().all(tidy) {
            let message = format!("expected a name of {what} of letters, digits, `-`, `_` and `.`, found {:?}", **name);
            return Err(self.at(name, message));
        }
        Ok(())
    }
}

/// Ten seconds.
pub(crate) const DEFAULT_TIMEOUT: Interval = Interval(Duration::from_secs(10));

#[cfg(test)]
mod refusals;
#[cfg(test)]
mod tests;
