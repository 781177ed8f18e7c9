//! Queries of the system's databases: what an invariant asks, with parameters that are bound and never spliced.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::config::SslMode;

use super::template::Template;
use super::variables::Known;

/// A query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// `postgres://USER@HOST:PORT/DATABASE` or `sqlite:PATH`.
    pub url: Template,
    /// The password: `{env:NAME}`, one of the scenario's `secrets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Template>,
    /// One query that only reads. Parameters are `$1`, `$2`, … (PostgreSQL) or `?1`, `?2`, … (SQLite).
    pub query: String,
    /// The values of its parameters, in order, as text: the database reads them as its types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Template>,
}

/// A database that can be asked.
#[derive(Debug, Clone)]
pub(crate) enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server.
    Postgres(Box<tokio_postgres::Config>),
}

impl Database {
    /// Reads a URL; files are relative to `folder`.
    pub(crate) fn parse(url: &str, folder: &Path) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            if path.is_empty() || path.starts_with(":memory:") || path.starts_with("//") {
                return Err(format!("expected the path of a database file, `sqlite:PATH`, found {url:?}"));
            }
            return Ok(Database::Sqlite(folder.join(path)));
        }
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(format!(
                "expected `postgres://USER@HOST:PORT/DATABASE` or `sqlite:PATH`, found {:?}",
                super::text::quoted(url)
            ));
        }
        // The parser's own words could repeat a password that stands in the URL.
        let wrong = || "expected a URL such as `postgres://USER@HOST:PORT/DATABASE`".to_owned();
        let config: tokio_postgres::Config = url.parse().map_err(|_| wrong())?;
        if config.get_password().is_some() {
            return Err("expected no password in the URL: declare a secret and write `password: \"{env:NAME}\"`".into());
        }
        if config.get_ssl_mode() == SslMode::Require {
            return Err("expected no `sslmode=require`: databases are asked without TLS, from inside the system".into());
        }
        if config.get_user().is_none() || config.get_hosts().is_empty() {
            return Err(wrong());
        }
        Ok(Database::Postgres(Box::new(config)))
    }
}

impl Sql {
    /// Every text with variables.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        std::iter::once(&self.url).chain(&self.password).chain(&self.parameters)
    }

    /// Checks that it can be asked where `known` variables have values, for which `sample` stands.
    pub(super) fn check(&self, known: &Known, sample: impl Fn(&Template) -> String) -> Result<(), String> {
        for template in self.templates() {
            known.check(template).map_err(|error| error.to_string())?;
        }
        if let Some(secret) = known.secret(&self.url) {
            return Err(format!("expected no secret in the URL, found `{{{secret}}}`: it belongs under `password`"));
        }
        if let Some(password) = &self.password {
            let bare = password.variables().map(|name| name.len() + 2).sum::<usize>() == password.as_str().len();
            if known.secret(password).is_none() || !bare {
                return Err("expected `password: \"{env:NAME}\"` with a secret that the scenario declares".to_owned());
            }
        }
        let database = Database::parse(&sample(&self.url), Path::new(""))?;
        if matches!(database, Database::Sqlite(_)) && self.password.is_some() {
            return Err("expected no `password`: an SQLite database has none".to_owned());
        }
        if self.query.trim().trim_end_matches(';').trim().is_empty() {
            return Err("expected a query, found nothing to ask".to_owned());
        }
        let query: Template = self.query.parse().expect("every text is a template");
        if let Some(name) = query.variables().find(|name| known.contains(name)) {
            let place = if matches!(database, Database::Sqlite(_)) { "?1" } else { "$1" };
            return Err(format!(
                "expected no variable in a query, found `{{{name}}}`: write `{place}` and `parameters: [\"{{{name}}}\"]`"
            ));
        }
        Ok(())
    }
}
