//! What must hold of the system's state, whatever the client saw (design §4.4).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Scenario;
use super::check::{Check, OneComparator, RawComparison};
use super::command::Command;
use super::sql::Sql;
use super::template::Template;
use super::text::{BaseUrl, JsonPath, ParseTextError, Pattern, When, quoted};
use super::variables::Known;

/// What must hold: a document, and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawInvariant", into = "RawInvariant")]
pub struct Invariant {
    /// Its name in reports.
    pub name: String,
    /// When it is evaluated.
    pub when: When,
    /// After whose attempts, by the request's name; every request's if left out.
    pub request: Option<String>,
    /// What tells of the state.
    pub document: Document,
    /// What it must say; a command may say all by its exit code.
    pub check: Option<Check>,
}

/// What tells of the system's state.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// A document got by HTTP.
    Get(Template),
    /// What a command prints; its exit code must be the expected one.
    Command(Command),
    /// What a database answers: the list of its rows, or the one value of its one row where nothing is selected.
    Sql(Sql),
}

/// An invariant: one of `get`, `command`, `sql`, and what it must say: one of `equals`, `at_most`, `at_least`, `matches`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Invariant")]
pub(crate) struct RawInvariant {
    /// Its name in reports.
    name: String,
    /// When it is evaluated: `after_round`, or `after_attempt(n)`, before the client tries again.
    #[serde(default = "after_round", skip_serializing_if = "is_after_round")]
    when: When,
    /// With `after_attempt(n)`: whose attempts, by the request's name. Every request's if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// A URL to get. `{key}` is the round's business key, `{NAME}` the URL of a ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    get: Option<Template>,
    /// A command that must end with its `exit` code; further checks are of what it prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Command>,
    /// A query of a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sql: Option<Sql>,
    /// Where to look: a JSON path (RFC 9535). Several nodes are compared as a list. Without it the whole text is compared,
    /// and of a database's answer its one value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    json_path: Option<JsonPath>,
    /// The value there equals this.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::check::present")]
    equals: Option<Value>,
    /// The number there is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    /// The number there is at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    /// This regular expression matches in the text there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    matches: Option<Pattern>,
}

fn after_round() -> When {
    When::AfterRound
}

fn is_after_round(when: &When) -> bool {
    *when == When::AfterRound
}

/// What is wrong with an invariant by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInvariant {
    /// No comparator, or several.
    #[error(transparent)]
    Comparator(#[from] OneComparator),
    /// `request` without `after_attempt`.
    #[error("expected `request` only beside `when: after_attempt(n)`")]
    Request,
    /// It needs a name to be reported by.
    #[error("expected a name of the invariant, found an empty one")]
    Name,
    /// Nothing to look at, or several things.
    #[error("expected exactly one of `get`, `command`, `sql`, found {0}")]
    Document(&'static str),
}

impl TryFrom<RawInvariant> for Invariant {
    type Error = InvalidInvariant;

    fn try_from(raw: RawInvariant) -> Result<Self, InvalidInvariant> {
        if raw.name.trim().is_empty() {
            return Err(InvalidInvariant::Name);
        }
        if raw.request.is_some() && raw.when == When::AfterRound {
            return Err(InvalidInvariant::Request);
        }
        let document = match (raw.get, raw.command, raw.sql) {
            (Some(url), None, None) => Document::Get(url),
            (None, Some(command), None) => Document::Command(command),
            (None, None, Some(sql)) => Document::Sql(sql),
            (None, None, None) => return Err(InvalidInvariant::Document("none")),
            _ => return Err(InvalidInvariant::Document("several")),
        };
        let comparison =
            RawComparison { equals: raw.equals, at_most: raw.at_most, at_least: raw.at_least, matches: raw.matches };
        let check = match (&document, raw.json_path) {
            (Document::Command(_), None) if comparison.is_empty() => None,
            (_, path) => Some(Check { path, comparator: comparison.one()? }),
        };
        Ok(Invariant { name: raw.name, when: raw.when, request: raw.request, document, check })
    }
}

impl From<Invariant> for RawInvariant {
    fn from(invariant: Invariant) -> Self {
        let (mut get, mut command, mut sql) = (None, None, None);
        match invariant.document {
            Document::Get(url) => get = Some(url),
            Document::Command(line) => command = Some(line),
            Document::Sql(query) => sql = Some(query),
        }
        let (json_path, comparison) = match invariant.check {
            Some(check) => (check.path, RawComparison::from(check.comparator)),
            None => (None, RawComparison::default()),
        };
        let RawComparison { equals, at_most, at_least, matches } = comparison;
        let Invariant { name, when, request, .. } = invariant;
        RawInvariant { name, when, request, get, command, sql, json_path, equals, at_most, at_least, matches }
    }
}

impl JsonSchema for Invariant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawInvariant::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawInvariant::json_schema(generator)
    }
}

impl Invariant {
    /// Every text with variables.
    pub(crate) fn templates(&self) -> Vec<&Template> {
        match &self.document {
            Document::Get(url) => vec![url],
            Document::Command(command) => command.templates().collect(),
            Document::Sql(sql) => sql.templates().collect(),
        }
    }

    /// Checks that it can be evaluated where `known` variables of `scenario` have values.
    pub(super) fn check(&self, known: &Known, scenario: &Scenario) -> Result<(), String> {
        let samples: BTreeMap<String, String> = known.samples(scenario);
        match &self.document {
            Document::Get(url) => {
                known.check(url).map_err(|error| error.to_string())?;
                if let Some(secret) = known.secret(url) {
                    return Err(format!("expected no secret in a URL, found `{{{secret}}}`: URLs are shown"));
                }
                gettable(&url.fill(&samples)).map_err(|error| error.to_string())
            }
            Document::Command(command) => command.check(known),
            Document::Sql(sql) => sql.check(known, |template| template.fill(&samples)),
        }
    }
}

/// Checks that `url` can be got: a base URL, with a query if there is one.
fn gettable(url: &str) -> Result<(), ParseTextError> {
    let (base, _) = url.split_once('?').unwrap_or((url, ""));
    base.parse::<BaseUrl>()?;
    url.parse::<http::Uri>().map(drop).map_err(|_| ParseTextError::BaseUrl(quoted(url)))
}
