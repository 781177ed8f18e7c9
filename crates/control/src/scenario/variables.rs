//! Which variables a text of a scenario may speak of, and which of them carry secrets.

use std::collections::{BTreeMap, BTreeSet};

use aftershock_core::yaml::{Located, Spanned};

use super::template::{SECRET, Template, UnknownVariable, is_name};
use super::{Request, Scenario, Source};

/// Variables that every scenario has.
pub(crate) const BUILT_IN: [&str; 3] = ["key", "random", "n"];
/// Variables of the business key's template.
pub(crate) const OF_THE_KEY: [&str; 2] = ["random", "n"];

/// The variables that have values at one point of a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// In the order in which they are listed in messages.
    names: Vec<String>,
    secret: BTreeSet<String>,
}

impl Known {
    /// The built-in ones.
    fn built_in() -> Self {
        Known { names: BUILT_IN.map(str::to_owned).to_vec(), secret: BTreeSet::new() }
    }

    fn add(&mut self, name: &str, secret: bool) {
        if !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
        if secret {
            self.secret.insert(name.to_owned());
        }
    }

    /// With what `request` extracts.
    pub(crate) fn extended(mut self, request: &Request) -> Self {
        for (name, extraction) in &request.extract {
            self.add(name, extraction.secret);
        }
        self
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Checks that every variable of `template` is known.
    pub(crate) fn check(&self, template: &Template) -> Result<(), UnknownVariable> {
        template.check(self.names.iter().map(String::as_str))
    }

    /// The first variable of `template` that carries a secret.
    pub(crate) fn secret<'t>(&self, template: &'t Template) -> Option<&'t str> {
        template.variables().find(|name| self.secret.contains(*name))
    }

    /// A value for each, to see whether a text is well-formed once it is filled.
    pub(crate) fn samples(&self, scenario: &Scenario) -> BTreeMap<String, String> {
        let url = |name: &String| scenario.ledgers.get(name).map(ToString::to_string);
        self.names.iter().map(|name| (name.clone(), url(name).unwrap_or_else(|| "x".to_owned()))).collect()
    }
}

impl Scenario {
    /// What has a value before any request is sent.
    pub(crate) fn known_at_the_start(&self) -> Known {
        let mut known = Known::built_in();
        for name in self.ledgers.keys() {
            known.add(name, false);
        }
        for name in &self.secrets {
            known.add(&format!("{SECRET}{name}"), true);
        }
        for (name, template) in &self.variables {
            let secret = known.secret(template).is_some();
            known.add(name, secret);
        }
        known
    }

    /// What has a value before the request at `index` is sent.
    pub(crate) fn known_before(&self, index: usize) -> Known {
        let before = self.setup.iter().chain(&self.requests[..index]);
        before.fold(self.known_at_the_start(), Known::extended)
    }
}

/// Checks the name of a ledger or variable: one that nothing else has.
pub(crate) fn check_name<T>(source: &Source<'_>, name: &str, place: &Spanned<T>, taken: &Known) -> Result<(), Located> {
    if !is_name(name) || BUILT_IN.contains(&name) {
        let message = format!(
            "expected a name of letters, digits, `-` and `_` other than `key`, `random` and `n`, found {name:?}"
        );
        return Err(source.at(place, message));
    }
    if taken.contains(name) {
        return Err(source.at(place, format!("expected a name that nothing else has, found `{name}` again")));
    }
    Ok(())
}

/// Puts variables in an order in which each speaks only of earlier ones.
pub(crate) fn ordered(
    source: &Source<'_>,
    raw: BTreeMap<String, Spanned<Template>>,
    known: &Known,
) -> Result<Vec<(String, Template)>, Located> {
    let mut all = known.clone();
    for (name, template) in &raw {
        check_name(source, name, template, known)?;
        all.add(name, false);
    }
    for template in raw.values() {
        source.check(template, all.check(template))?;
    }
    let mut waiting: Vec<(String, Spanned<Template>)> = raw.into_iter().collect();
    let mut ordered: Vec<(String, Template)> = Vec::new();
    while !waiting.is_empty() {
        let names: BTreeSet<String> = waiting.iter().map(|(name, _)| name.clone()).collect();
        let (later, ready): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, template)| template.variables().any(|name| names.contains(name)));
        if ready.is_empty() {
            let (name, template) = &later[0];
            return Err(source.at(template, format!("expected a value that does not speak of itself: `{name}` does")));
        }
        ordered.extend(ready.into_iter().map(|(name, template)| (name, template.value)));
        waiting = later;
    }
    Ok(ordered)
}

/// The values of a scenario's secrets. They are never shown, not even in `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, String>);

/// Secrets that are not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scenario {scenario:?} needs the {} in the environment: {}", if .names.len() == 1 { "secret" } else { "secrets" }, .names.join(", "))]
pub struct MissingSecrets {
    /// The scenario.
    pub scenario: String,
    /// Which are unset or empty.
    pub names: Vec<String>,
}

impl Secrets {
    /// The secrets of `scenario`, each from `lookup`.
    ///
    /// # Errors
    /// Those that are unset or empty.
    pub fn read(scenario: &Scenario, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, MissingSecrets> {
        let mut found = BTreeMap::new();
        let mut names = Vec::new();
        for name in &scenario.secrets {
            match lookup(name).filter(|value| !value.is_empty()) {
                Some(value) => drop(found.insert(name.clone(), value)),
                None => names.push(name.clone()),
            }
        }
        if names.is_empty() {
            Ok(Secrets(found))
        } else {
            Err(MissingSecrets { scenario: scenario.name.clone(), names })
        }
    }

    /// Whether every secret of `scenario` is here.
    pub(crate) fn check(&self, scenario: &Scenario) -> Result<(), MissingSecrets> {
        Secrets::read(scenario, |name| self.0.get(name).cloned()).map(drop)
    }

    /// Variable names and values.
    pub(crate) fn values(&self) -> impl Iterator<Item = (String, &str)> {
        self.0.iter().map(|(name, value)| (format!("{SECRET}{name}"), value.as_str()))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
