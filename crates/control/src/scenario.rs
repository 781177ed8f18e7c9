//! What a round does and what it must show: `kind: Scenario` and `kind: TemporalFault` (design §2, §4.4).
//!
//! Files are read strictly; every complaint names file, line, column and what was expected. Whatever parses can be run:
//! names resolve, templates speak of variables that exist, URLs have hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::name::nearest;
use aftershock_core::yaml::{self, Located, Spanned};
use http::{HeaderMap, HeaderName, HeaderValue};

mod check;
mod fault;
mod file;
mod text;

pub use check::{Check, Comparator, Expectation, InvalidInvariant, Invariant, OneComparator};
pub use fault::{Declared, ExpectedOracle, FaultExpectation, TemporalFault, TemporalFaultFile};
pub use file::{RetryOn, ScenarioFile};
pub use text::{
    BaseUrl, GrpcMethod, JsonPath, Method, ParseTextError, Pattern, Selected, Template, UnknownVariable, When,
};

pub(crate) use check::gettable;
use file::{RawCall, RawRequest};

/// The kind of a scenario's file.
pub const SCENARIO: &str = "Scenario";
/// The kind of a temporal fault's file.
pub const TEMPORAL_FAULT: &str = "TemporalFault";

/// Variables that every scenario has.
const BUILT_IN: [&str; 1] = ["key"];
/// Variables of the business key's template.
const OF_THE_KEY: [&str; 2] = ["random", "n"];
/// Fields that the runner sets itself: they tie a request to its round.
const RESERVED: [&str; 7] = [
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "aftershock-hop",
    "content-length",
    "transfer-encoding",
    "connection",
];

/// A scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Where requests go.
    pub entry: BaseUrl,
    /// The business key of a round, with `{random}` and `{n}`.
    pub key: Template,
    /// Named base URLs.
    pub ledgers: BTreeMap<String, BaseUrl>,
    /// The client's requests, in order.
    pub requests: Vec<Request>,
    /// What must hold of the system's state.
    pub invariants: Vec<Invariant>,
}

/// One request of the client, with its retries.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// What is sent.
    pub call: Call,
    /// How long an attempt may take, from the connection to the last byte.
    pub timeout: Duration,
    /// When it is tried again.
    pub retry: Retry,
    /// What the last answer must be.
    pub expect: Expectation,
}

/// What a request sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// HTTP/1.1.
    Http {
        /// The method.
        method: http::Method,
        /// The path with its query, below the entry's own path.
        path: Template,
        /// Further header fields; values are templates.
        headers: Vec<(HeaderName, Template)>,
        /// The body.
        body: Template,
    },
    /// A unary gRPC call over HTTP/2 by prior knowledge.
    Grpc {
        /// The method.
        method: GrpcMethod,
        /// Further metadata; values are templates.
        metadata: Vec<(HeaderName, Template)>,
        /// The message.
        message: Message,
    },
}

impl Call {
    /// Whether it is a gRPC call.
    pub fn is_grpc(&self) -> bool {
        matches!(self, Call::Grpc { .. })
    }
}

/// The bytes of a gRPC message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Text, as UTF-8.
    Text(Template),
    /// Bytes, as they are.
    Bytes(Vec<u8>),
}

/// When a client tries again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, at least one.
    pub attempts: u32,
    /// What makes it try again.
    pub on: BTreeSet<RetryOn>,
    /// The pause before the next try.
    pub backoff: Duration,
}

/// A scenario cannot be put elsewhere as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Not a base URL.
    #[error("{0}")]
    Url(#[from] ParseTextError),
    /// The scenario has no such ledger.
    #[error("scenario {scenario:?} has no ledger {name:?}{hint}")]
    UnknownLedger {
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
        let mut ledgers = BTreeMap::new();
        for (name, url) in spec.ledgers {
            if !text::is_name(&name) || BUILT_IN.contains(&name.as_str()) || OF_THE_KEY.contains(&name.as_str()) {
                let message = format!(
                    "expected a name of letters, digits, `-` and `_` other than `key`, `random` and `n`, found {name:?}"
                );
                return Err(source.at(&url, message));
            }
            ledgers.insert(name, url.value);
        }
        let known = || BUILT_IN.into_iter().chain(ledgers.keys().map(String::as_str));
        if spec.requests.is_empty() {
            return Err(source.at(&spec.requests, "expected at least one request"));
        }
        let mut requests: Vec<Request> = Vec::new();
        for raw in spec.requests.value {
            if requests.iter().any(|request| request.name == *raw.name) {
                return Err(
                    source.at(&raw.name, format!("expected each request's name once, found `{}` again", raw.name))
                );
            }
            requests.push(request(&source, raw, &known)?);
        }
        let scenario = Scenario {
            name: raw.metadata.name.value,
            entry: spec.entry,
            key: key.value,
            ledgers,
            requests,
            invariants: Vec::new(),
        };
        scenario.check_invariants(&source, &spec.invariants, &[])?;
        Ok(Scenario { invariants: spec.invariants.into_iter().map(|invariant| invariant.value).collect(), ..scenario })
    }

    /// Puts the scenario where it is to run: another entry, other ledgers.
    ///
    /// # Errors
    /// A URL that is none, a ledger that the scenario does not have.
    pub fn relocate(&mut self, entry: Option<&str>, ledgers: &[(String, String)]) -> Result<(), RelocateError> {
        if let Some(entry) = entry {
            self.entry = entry.parse()?;
        }
        for (name, url) in ledgers {
            let Some(ledger) = self.ledgers.get_mut(name) else {
                let known = self.ledgers.keys().map(String::as_str);
                let hint = match nearest(name, known.clone()) {
                    Some(near) => format!("; did you mean {near:?}?"),
                    None if self.ledgers.is_empty() => String::new(),
                    None => format!(", only {}", known.collect::<Vec<_>>().join(", ")),
                };
                return Err(RelocateError::UnknownLedger { scenario: self.name.clone(), name: name.clone(), hint });
            };
            *ledger = url.parse()?;
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
            expectation_fits(request.call.is_grpc(), expectation).map_err(|message| source.at(expectation, message))?;
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
        let known = || BUILT_IN.into_iter().chain(self.ledgers.keys().map(String::as_str));
        let mut names: BTreeSet<&str> = others.iter().map(|invariant| invariant.name.as_str()).collect();
        for invariant in invariants {
            if !names.insert(&invariant.name) {
                let message = format!("expected each invariant's name once, found `{}` again", invariant.name);
                return Err(source.at(invariant, message));
            }
            source.check(invariant, invariant.get.check(known()))?;
            let mut values: BTreeMap<String, String> =
                self.ledgers.iter().map(|(name, url)| (name.clone(), url.to_string())).collect();
            values.insert("key".to_owned(), "key".to_owned());
            source.check(invariant, gettable(&invariant.get.fill(&values)))?;
            let named: Vec<&Request> = match &invariant.request {
                Some(name) => {
                    vec![self.request(name).ok_or_else(|| source.at(invariant, self.unknown_request(name)))?]
                }
                None => self.requests.iter().collect(),
            };
            let most = named.iter().map(|request| request.retry.attempts).max().unwrap_or(0);
            if let When::AfterAttempt(n) = invariant.when
                && n > most
            {
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

fn request<'n, K: Iterator<Item = &'n str>>(
    source: &Source<'_>,
    raw: RawRequest,
    known: &impl Fn() -> K,
) -> Result<Request, Located> {
    source.named(&raw.name, "the request")?;
    let call = match (raw.http, raw.grpc) {
        (Some(http), None) => RawCall::Http(http),
        (None, Some(grpc)) => RawCall::Grpc(grpc),
        (None, None) => return Err(source.at(&raw.name, "expected `http` or `grpc` for this request, found neither")),
        (Some(_), Some(_)) => {
            return Err(source.at(&raw.name, "expected either `http` or `grpc` for this request, found both"));
        }
    };
    let call = match call {
        RawCall::Http(http) => {
            source.check(&http.path, http.path.check(known()))?;
            if !http.path.as_str().starts_with('/') {
                return Err(source
                    .at(&http.path, format!("expected a path that begins with `/`, found {:?}", http.path.as_str())));
            }
            let sample = format!("http://h{}", http.path.fill(&BTreeMap::from([("key".to_owned(), "k".to_owned())])));
            if sample.parse::<http::Uri>().is_err() {
                return Err(source.at(&http.path, format!("expected a path of a URL, found {:?}", http.path.as_str())));
            }
            source.check(&http.body, http.body.check(known()))?;
            Call::Http {
                method: http.method.0,
                path: http.path.value,
                headers: headers(source, http.headers, known)?,
                body: http.body.value,
            }
        }
        RawCall::Grpc(grpc) => {
            let message = match grpc.message.value {
                Message::Text(text) => {
                    text.check(known())
                        .map_err(|error| Located::at(source.file, source.text, grpc.message.location, error))?;
                    Message::Text(text)
                }
                bytes => bytes,
            };
            Call::Grpc { method: grpc.method, metadata: headers(source, grpc.metadata, known)?, message }
        }
    };
    if raw.timeout.value.0.is_zero() {
        return Err(source.at(&raw.timeout, "expected a timeout above zero"));
    }
    let retry = raw.retry.unwrap_or_default();
    if *retry.attempts == 0 {
        return Err(source.at(&retry.attempts, "expected at least one attempt: `attempts` counts the first try too"));
    }
    source.check(&raw.expect, expectation_fits(call.is_grpc(), &raw.expect))?;
    Ok(Request {
        name: raw.name.value,
        call,
        timeout: raw.timeout.value.0,
        retry: Retry { attempts: retry.attempts.value, on: retry.on, backoff: retry.backoff.0 },
        expect: raw.expect.value,
    })
}

fn expectation_fits(grpc: bool, expectation: &Expectation) -> Result<(), String> {
    if !grpc && expectation.grpc_status.is_some() {
        return Err("expected no `grpc_status` for an HTTP request".to_owned());
    }
    match expectation.status {
        Some(status) if !(100..=599).contains(&status) => {
            Err(format!("expected a status from 100 to 599, found {status}"))
        }
        _ => Ok(()),
    }
}

fn headers<'n, K: Iterator<Item = &'n str>>(
    source: &Source<'_>,
    raw: BTreeMap<String, Spanned<Template>>,
    known: &impl Fn() -> K,
) -> Result<Vec<(HeaderName, Template)>, Located> {
    let mut headers = Vec::new();
    for (name, value) in raw {
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| source.at(&value, format!("expected the name of a header field, found {name:?}")))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(source.at(&value, format!("expected no `{parsed}` here: the runner sets it")));
        }
        source.check(&value, value.check(known()))?;
        let fits = HeaderValue::from_str(&value.fill(&BTreeMap::new())).is_ok();
        if !fits {
            return Err(source.at(&value, "expected a value of a header field, without control characters"));
        }
        headers.push((parsed, value.value));
    }
    Ok(headers)
}

/// Header fields with their variables filled.
pub(crate) fn fill_headers(
    headers: &[(HeaderName, Template)],
    values: &BTreeMap<String, String>,
) -> Result<HeaderMap, http::header::InvalidHeaderValue> {
    headers.iter().map(|(name, value)| Ok((name.clone(), HeaderValue::from_str(&value.fill(values))?))).collect()
}

/// Ten seconds.
pub(crate) const DEFAULT_TIMEOUT: Interval = Interval(Duration::from_secs(10));

#[cfg(test)]
mod tests;
