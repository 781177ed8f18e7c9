//! The file `kind: Sidecar`: where one sidecar listens, whom it fronts, how its service hands on context.
//!
//! Read strictly, then turned once into [`Config`], whose values need no further checks. Every complaint names file, line
//! and column. Names of header fields live as long as the process: the seam to the editors wants them `'static`, and a
//! process reads one configuration.
//!
//! Names of hosts are not resolved: a resolver would wait for what the sidecar itself may have redirected, and the address
//! that it found would soon be another.

pub mod transparent;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::id::{ExecutionId, scatter};
use aftershock_core::name::{Api, Service};
use aftershock_core::template::{Matcher, Template};
use aftershock_core::yaml::{self, Located, Location, Spanned};
use aftershock_trust::{Credentials, Endpoint, TokenSource, TrustError};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use transparent::{Transparent, TransparentFile};

/// The `kind` of the file.
pub const KIND: &str = "Sidecar";

/// How long an ended call may still be named as a parent, unless configured.
pub const LINGER: Duration = Duration::from_secs(30);

/// How long exchanges may take to end after the process was told to end, unless configured.
pub const DRAIN: Duration = Duration::from_secs(30);

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// As the user named it.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error(transparent)]
    Content(#[from] Located),
}

/// One sidecar, as configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// The service beside it.
    pub service: Service,
    /// The controller; without it the sidecar passes traffic on and does nothing else.
    pub control: Option<Control>,
    /// Listeners before the application.
    pub inbound: Vec<Inbound>,
    /// Listeners before callees, one for each.
    pub outbound: Vec<Outbound>,
    /// Connections that the kernel redirects.
    pub transparent: Option<Transparent>,
    /// Callees without a sidecar that hand the trace context on.
    pub relay: BTreeSet<Service>,
    /// Members whose call is unknown here are taken where their token is live.
    pub accept_relayed: bool,
    /// Calls whose parent has ended are passes of targets too.
    pub allow_detached: bool,
    /// The header field in which the application hands its member on.
    pub carrier: Carrier,
    /// Correlation ids that the application hands on: lower-case names of header fields, in the order of the ladder.
    pub correlate: Vec<&'static str>,
    /// Calls without any context may be tied to the only execution seen here recently.
    pub exclusive: bool,
    /// Apis that this service is known to call, beside those that its traces show.
    pub known_calls: BTreeSet<Api>,
    /// The service's own HTTP operations.
    pub templates: Matcher,
    /// Paths of health probes.
    pub health_paths: BTreeSet<String>,
    /// Which executions are recorded.
    pub record: Record,
    /// How long an ended call may still be named as a parent.
    pub linger: Duration,
    /// Where operators ask; a loopback address.
    pub admin: Option<SocketAddr>,
    /// How long exchanges may take to end after the process was told to end; then their connections are cut.
    pub drain: Duration,
}

/// Where the controller is, and what this sidecar shows it.
#[derive(Debug, Clone)]
pub struct Control {
    /// `http://host:port` or `https://host:port`.
    pub url: String,
    /// Where that is.
    pub address: SocketAddr,
    /// Token and certificates.
    pub credentials: Credentials,
}

impl Control {
    /// The controller, with the files of the credentials read.
    ///
    /// # Errors
    /// When one cannot be used.
    pub fn endpoint(&self) -> Result<Endpoint, TrustError> {
        Ok(Endpoint::new(&self.url, self.credentials.clone())?.at(self.address))
    }
}

/// A listener before the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// The application.
    pub to: SocketAddr,
}

/// A listener before a callee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// Where the application connects.
    pub listen: SocketAddr,
    /// The callee's name, unless the sidecar behind its address registered another.
    pub callee: Service,
    /// The callee's addresses, taken in turn, a connection at a time; at least one.
    pub to: Vec<SocketAddr>,
    /// What the callee sees as `Host` and `:authority`.
    pub host: Host,
}

/// What a callee sees as `Host` and `:authority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// What the application sent.
    #[default]
    Keep,
    /// The address that was connected to.
    Upstream,
}

/// Which executions are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// Those of rounds.
    #[default]
    Tagged,
    /// Ordinary traffic too.
    All,
    /// Of ordinary traffic this share of executions, from 0 to 1, chosen by execution id: every sidecar chooses the same
    /// ones, so that what is recorded is whole.
    Ratio(Ratio),
}

impl Record {
    /// Whether an ordinary execution is recorded; none stands for a call of none.
    pub(crate) fn takes(self, execution: Option<ExecutionId>) -> bool {
        match self {
            Record::Tagged => false,
            Record::All => true,
            Record::Ratio(ratio) => execution.is_some_and(|execution| ratio.takes(execution)),
        }
    }
}

/// A share of all executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "f64")]
#[schemars(with = "f64", extend("minimum" = 0, "maximum" = 1))]
pub struct Ratio {
    /// Those whose scattered id is below are taken; 2⁶⁴ takes all.
    below: u128,
}

impl Ratio {
    fn takes(self, execution: ExecutionId) -> bool {
        // Declared ids need not be random.
        u128::from(scatter(execution.0)) < self.below
    }
}

impl TryFrom<f64> for Ratio {
    type Error = String;

    fn try_from(ratio: f64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(format!("expected a ratio from 0 to 1, found {ratio}"));
        }
        Ok(Ratio { below: (ratio * 2_f64.powi(64)) as u128 })
    }
}

/// The header field in which the application hands its member on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// W3C Trace Context.
    #[default]
    Tracestate,
    /// W3C Baggage, where only that survives.
    Baggage,
    /// Jaeger's baggage, a header field for each key: `uberctx-aft`.
    Uberctx,
}

/// The file `kind: Sidecar`: one sidecar beside one instance of a service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SidecarFile {
    #[serde(rename = "apiVersion")]
    #[schemars(extend("const" = yaml::API_VERSION))]
    _api_version: String,
    #[serde(rename = "kind")]
    #[schemars(extend("const" = KIND))]
    _kind: String,
    /// The name that this service has in traces, targets and guards.
    service: Service,
    /// The controller, `http://ip:port`, or what it takes to reach it elsewhere. Without it the sidecar passes traffic
    /// on and does nothing else.
    #[serde(default)]
    control: Option<Spanned<ControlFile>>,
    /// Listeners before the application.
    #[serde(default)]
    inbound: Vec<InboundFile>,
    /// Listeners before callees, one for each; the application calls these.
    #[serde(default)]
    outbound: Vec<OutboundFile>,
    /// Connections are redirected to the sidecar by the kernel; the application need not know of it.
    #[serde(default)]
    transparent: Option<TransparentFile>,
    /// Callees without a sidecar that hand the trace context on.
    #[serde(default)]
    relay: BTreeSet<Service>,
    /// Take calls whose parent is not known here, e.g. from a queue.
    #[serde(default)]
    accept_relayed: bool,
    /// Calls whose parent has ended are passes of targets too.
    #[serde(default)]
    allow_detached: bool,
    /// How calls are tied to their execution.
    #[serde(default)]
    association: AssociationFile,
    /// The service's own HTTP operations, `METHOD /path/{name}`.
    #[serde(default)]
    templates: Vec<Spanned<String>>,
    /// Paths of health probes, which are neither faulted nor counted.
    #[serde(default)]
    health_paths: Vec<Spanned<String>>,
    /// Which executions are recorded.
    #[serde(default)]
    record: Record,
    /// How long an ended call may still be named as a parent; 30s if left out.
    #[serde(default)]
    linger: Option<Spanned<Interval>>,
    /// Where `/livez`, `/readyz` and `/metrics` are asked for, `127.0.0.1:port` or `[::1]:port`; nowhere if left out.
    #[serde(default)]
    admin: Option<Spanned<String>>,
    /// How long exchanges may take to end after SIGTERM; then their connections are cut. 30s if left out.
    #[serde(default)]
    drain: Option<Spanned<Interval>>,
}

/// Where the controller is, in short or in full.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
enum ControlFile {
    /// `http://ip:port`
    Url(String),
    /// With credentials.
    Full(ControlInFull),
}

/// Where the controller is, and what this sidecar shows it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ControlInFull {
    /// `https://host:port`, or `http://host:port` on this machine.
    url: String,
    /// Where it is, `ip:port`; the sidecar resolves no names. Left out where `url` has an address.
    #[serde(default)]
    address: Option<Spanned<String>>,
    /// The file with this sidecar's token.
    #[serde(default)]
    token_file: Option<PathBuf>,
    /// The authorities that sign the controller's certificate, PEM.
    #[serde(default)]
    ca: Option<PathBuf>,
    /// This sidecar's certificate chain, PEM, where the controller asks for one.
    #[serde(default)]
    cert: Option<PathBuf>,
    /// The key of `cert`, PEM.
    #[serde(default)]
    key: Option<PathBuf>,
    /// The token may travel unencrypted to another host, because the way is safe.
    #[serde(default)]
    insecure_plaintext: bool,
}

impl<'de> Deserialize<'de> for ControlFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ControlVisitor;

        impl<'de> Visitor<'de> for ControlVisitor {
            type Value = ControlFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`http://ip:port`, or a map with `url`")
            }

            fn visit_str<E: de::Error>(self, url: &str) -> Result<ControlFile, E> {
                Ok(ControlFile::Url(url.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ControlFile, A::Error> {
                ControlInFull::deserialize(MapAccessDeserializer::new(map)).map(ControlFile::Full)
            }
        }

        deserializer.deserialize_any(ControlVisitor)
    }
}

/// A listener before the application.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InboundFile {
    /// Where callers connect, `ip:port`.
    listen: Spanned<String>,
    /// The application, `ip:port`.
    to: Spanned<String>,
}

/// A listener before a callee.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutboundFile {
    /// Where the application connects, `ip:port`.
    listen: Spanned<String>,
    /// The callee's name, unless the sidecar behind its address registers another.
    callee: Service,
    /// The callee's addresses, `ip:port`, taken in turn, a connection at a time.
    to: Spanned<Vec<Spanned<String>>>,
    /// What the callee sees as `Host` and `:authority`.
    #[serde(default)]
    host: Host,
}

/// How calls are tied to their execution.
#[derive(Debug, Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
struct AssociationFile {
    /// The header field in which the application hands its member on.
    #[serde(default)]
    carrier: Carrier,
    /// Header fields with correlation ids that the application hands on by itself.
    #[serde(default)]
    correlate: Vec<Spanned<String>>,
    /// Tie calls without any context to the only execution seen here recently, while one round runs and nothing else
    /// came in; only calls to Apis that the traces show or that `calls` names.
    #[serde(default)]
    exclusive: bool,
    /// Apis that this service calls, `SERVICE METHOD /path` or `SERVICE package.Service/Method`.
    #[serde(default)]
    calls: Vec<Spanned<Api>>,
}

impl Config {
    /// Read a file.
    ///
    /// # Errors
    /// When it cannot be read, or what is wrong in it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { file: file.clone(), source })?;
        Ok(Config::parse(&file, &text)?)
    }

    /// Read `text`, the contents of `file`.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(file: &str, text: &str) -> Result<Self, Located> {
        let read: SidecarFile = yaml::from_str_as(KIND, file, text)?;
        Source { file, text }.config(read)
    }
}

/// Where complaints point.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error<T>(&self, at: &Spanned<T>, message: impl fmt::Display) -> Located {
        Located::at(self.file, self.text, at.location, message)
    }

    fn config(&self, file: SidecarFile) -> Result<Config, Located> {
        if file.inbound.is_empty() && file.outbound.is_empty() && file.transparent.is_none() {
            let message = "expected `transparent`, or at least one listener under `inbound` or `outbound`";
            return Err(Located::at(self.file, self.text, None, message));
        }
        let mut taken = BTreeMap::new();
        let mut inbound = Vec::new();
        for entry in &file.inbound {
            let listen = self.listen(&entry.listen, &mut taken)?;
            inbound.push(Inbound { listen, to: self.upstream(&entry.to, listen)? });
        }
        let mut outbound = Vec::new();
        for entry in file.outbound {
            let listen = self.listen(&entry.listen, &mut taken)?;
            if entry.to.is_empty() {
                return Err(self.error(&entry.to, "expected at least one address, `ip:port`"));
            }
            let to = entry.to.iter().map(|to| self.upstream(to, listen)).collect::<Result<_, _>>()?;
            outbound.push(Outbound { listen, callee: entry.callee, to, host: entry.host });
        }
        let admin = file.admin.as_ref().map(|admin| self.admin(admin, &mut taken)).transpose()?;
        let at_most = |given: &Option<Spanned<Interval>>, most: Duration, default: Duration| match given {
            Some(given) if given.0 > most => Err(self.error(given, format!("expected at most {}", Interval(most)))),
            Some(given) => Ok(given.0),
            None => Ok(default),
        };
        Ok(Config {
            control: file.control.as_ref().map(|control| self.control(control)).transpose()?,
            service: file.service,
            transparent: file.transparent.map(|section| self.transparent(&section, &taken)).transpose()?,
            inbound,
            outbound,
            relay: file.relay,
            accept_relayed: file.accept_relayed,
            allow_detached: file.allow_detached,
            carrier: file.association.carrier,
            correlate: self.correlate(&file.association.correlate)?,
            exclusive: file.association.exclusive,
            known_calls: self.calls(&file.association)?,
            templates: self.templates(&file.templates)?,
            health_paths: self.health_paths(&file.health_paths)?,
            record: file.record,
            linger: at_most(&file.linger, MAX_LINGER, LINGER)?,
            drain: at_most(&file.drain, MAX_DRAIN, DRAIN)?,
            admin,
        })
    }

    /// A local address. Port 0 asks the system for a free one, so it may stand twice.
    fn listen(
        &self,
        text: &Spanned<String>,
        taken: &mut BTreeMap<SocketAddr, Option<Location>>,
    ) -> Result<SocketAddr, Located> {
        let address: SocketAddr = text.parse().map_err(|_| {
            self.error(text, format!("expected an IP address and port, e.g. `127.0.0.1:8080`, found {:?}", text.value))
        })?;
        if address.port() != 0 && taken.insert(address, text.location).is_some() {
            return Err(self.error(text, format!("expected each listener once, found {address} again")));
        }
        Ok(address)
    }

    /// Whoever can connect there may ask everything, so it is this machine only.
    fn admin(
        &self,
        text: &Spanned<String>,
        taken: &mut BTreeMap<SocketAddr, Option<Location>>,
    ) -> Result<SocketAddr, Located> {
        let address = self.listen(text, taken)?;
        if address.ip().to_canonical().is_loopback() {
            return Ok(address);
        }
        let message =
            format!("expected a loopback address, `127.0.0.1:{0}` or `[::1]:{0}`, found {address}", address.port());
        Err(self.error(text, message))
    }

    /// Where a listener's connections go on to. Its own address would make each connection one more without end.
    fn upstream(&self, text: &Spanned<String>, listen: SocketAddr) -> Result<SocketAddr, Located> {
        let address = self.address(text)?;
        if address == listen {
            return Err(self.error(text, format!("expected another address than the listener's own, found {address}")));
        }
        Ok(address)
    }

    fn address(&self, text: &Spanned<String>) -> Result<SocketAddr, Located> {
        let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
        address.ok_or_else(|| {
            let hint = if is_authority(text) { "; the sidecar resolves no names" } else { "" };
            let message = format!("expected `ip:port`, e.g. `127.0.0.1:8080`, found {:?}{hint}", text.value);
            self.error(text, message)
        })
    }

    /// The files that it names are read when the sidecar starts.
    fn control(&self, file: &Spanned<ControlFile>) -> Result<Control, Located> {
        let (url, address, credentials) = match &file.value {
            ControlFile::Url(url) => (url, None, Credentials::default()),
            ControlFile::Full(full) => {
                let credentials = Credentials {
                    token: full.token_file.clone().map(TokenSource::File),
                    ca: full.ca.clone(),
                    certificate: full.cert.clone(),
                    key: full.key.clone(),
                    insecure_plaintext: full.insecure_plaintext,
                };
                (&full.url, full.address.as_ref(), credentials)
            }
        };
        let in_url = Endpoint::check(url, &credentials).map_err(|error| self.error(file, error))?;
        let address = match (in_url, address) {
            (Some(in_url), Some(address)) if self.address(address)? != in_url => {
                let message =
                    format!("expected the address that `url` has, {in_url}, or none; found {}", address.value);
                return Err(self.error(address, message));
            }
            (Some(address), _) => address,
            (None, Some(address)) => self.address(address)?,
            (None, None) => {
                let message = "the sidecar resolves no names: expected an address in the URL, e.g. \
                               `http://127.0.0.1:4700`, or `{url: …, address: ip:port}`";
                return Err(self.error(file, message));
            }
        };
        Ok(Control { url: url.clone(), address, credentials })
    }

    fn correlate(&self, names: &[Spanned<String>]) -> Result<Vec<&'static str>, Located> {
        let mut seen = BTreeSet::new();
        let mut correlate = Vec::new();
        for name in names {
            if correlate.len() == MAX_CORRELATE {
                return Err(self.error(name, format!("expected at most {MAX_CORRELATE} header fields")));
            }
            let lower = name.to_ascii_lowercase();
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if lower.is_empty() || lower.len() > 64 || !lower.bytes().all(token) {
                return Err(self.error(name, format!("expected the name of a header field, found {:?}", name.value)));
            }
            if OURS.contains(&lower.as_str()) {
                return Err(self.error(name, format!("expected a correlation id, `{lower}` is none")));
            }
            if !seen.insert(lower.clone()) {
                return Err(self.error(name, format!("expected each header field once, found `{lower}` again")));
            }
            correlate.push(&*lower.leak());
        }
        Ok(correlate)
    }

    fn calls(&self, association: &AssociationFile) -> Result<BTreeSet<Api>, Located> {
        match association.calls.first() {
            Some(call) if !association.exclusive => {
                Err(self.error(call, "`calls` says what `exclusive: true` may claim, which is not set"))
            }
            _ => Ok(association.calls.iter().map(|call| call.value.clone()).collect()),
        }
    }

    fn templates(&self, texts: &[Spanned<String>]) -> Result<Matcher, Located> {
        let mut templates = Vec::new();
        for text in texts {
            templates.push(Template::parse(text).map_err(|error| self.error(text, error))?);
        }
        let matcher = Matcher::new(templates);
        if let Some((first, second)) = matcher.conflicts().next() {
            let at = texts.iter().find(|text| text.value == second.to_string());
            let location = at.and_then(|text| text.location);
            let message = format!("expected different templates, `{second}` takes the same requests as `{first}`");
            return Err(Located::at(self.file, self.text, location, message));
        }
        Ok(matcher)
    }

    fn health_paths(&self, paths: &[Spanned<String>]) -> Result<BTreeSet<String>, Located> {
        let mut set = BTreeSet::new();
        for path in paths {
            if !path.starts_with('/') || path.contains(['?', '#', ' ']) {
                return Err(self.error(path, format!("expected a path, `/healthz`, found {:?}", path.value)));
            }
            set.insert(path.value.clone());
        }
        Ok(set)
    }
}

/// Longer than any application keeps a context for.
const MAX_LINGER: Duration = Duration::from_secs(600);

/// Whoever stops processes kills those that take longer.
const MAX_DRAIN: Duration = Duration::from_secs(3600);

/// Each is looked for in every request.
const MAX_CORRELATE: usize = 16;

/// Fields with a meaning of their own.
const OURS: [&str; 6] =
    ["tracestate", aftershock_core::hop::HEADER, "baggage", "uberctx-aft", "host", "content-length"];

/// `host:port`, `[v6]:port`.
fn is_authority(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let name = |host: &str| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = match bracketed {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name(host),
    };
    host_fits && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Sidecar
service: checkoutservice
control: http://127.0.0.1:4700
inbound:
  - {listen: "127.9.9.1:5050", to: "127.9.9.1:15050"}
outbound:
  - {listen: "127.9.9.1:20001", callee: paymentservice, to: ["127.9.9.2:50051", "127.9.9.3:50051"], host: upstream}
  - {listen: "127.9.9.1:20002", callee: legacy, to: ["[::1]:80"]}
relay: [legacy]
accept_relayed: true
allow_detached: true
association: {carrier: tracestate, correlate: [Uber-Trace-Id, x-request-id]}
templates: ["GET /product/{id}"]
health_paths: ["/healthz"]
record: all
linger: 5s
admin: 127.0.0.1:15020
drain: 2m
"#;

    fn complaint(text: &str) -> (Option<u32>, Option<u32>, String) {
        let error = Config::parse("sidecar.yaml", text).expect_err("the file is wrong");
        assert_eq!(error.file, "sidecar.yaml");
        (error.line, error.column, error.message)
    }

    #[test]
    fn every_key_is_read() {
        let config = Config::parse("sidecar.yaml", FULL).unwrap();
        assert_eq!(config.service.as_str(), "checkoutservice");
        let control = config.control.unwrap();
        assert_eq!((control.url.as_str(), control.address), ("http://127.0.0.1:4700", ([127, 0, 0, 1], 4700).into()));
        assert_eq!(config.inbound[0].to, ([127, 9, 9, 1], 15050).into());
        assert_eq!(config.outbound[0].to, [2, 3].map(|host| ([127, 9, 9, host], 50051).into()));
        assert!(config.transparent.is_none());
        assert_eq!((config.outbound[0].host, config.outbound[1].host), (Host::Upstream, Host::Keep));
        assert_eq!(config.correlate, ["uber-trace-id", "x-request-id"]);
        assert_eq!(config.templates.operation("GET", "/product/7"), "GET /product/{id}");
        assert!(config.relay.contains("legacy") && config.accept_relayed && config.allow_detached);
        assert_eq!((config.record, config.linger), (Record::All, Duration::from_secs(5)));
        assert_eq!(config.drain, Duration::from_secs(120));
        assert!(config.health_paths.contains("/healthz"));
        assert_eq!(config.admin, Some("127.0.0.1:15020".parse().unwrap()));
    }

    #[test]
    fn a_controller_elsewhere_is_named_with_its_credentials() {
        let full =
            "{url: \"https://control:4700\", address: \"10.0.0.9:4700\", token_file: /t, ca: /ca, cert: /c, key: /k}";
        let config = Config::parse("s", &FULL.replacen("http://127.0.0.1:4700", full, 1)).unwrap();
        let Control { url, address, credentials } = config.control.unwrap();
        assert_eq!((url.as_str(), address), ("https://control:4700", ([10, 0, 0, 9], 4700).into()));
        assert!(matches!(credentials.token, Some(TokenSource::File(file)) if file == Path::new("/t")));
        let files = [credentials.ca, credentials.certificate, credentials.key].map(|file| file.unwrap());
        assert_eq!(files, ["/ca", "/c", "/k"].map(PathBuf::from));
    }

    #[test]
    fn most_keys_may_be_left_out() {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: a\n\
                    inbound: [{listen: \"127.0.0.1:80\", to: \"127.0.0.1:81\"}]\n";
        let config = Config::parse("s", text).unwrap();
        assert!(config.control.is_none() && config.outbound.is_empty() && config.correlate.is_empty());
        assert_eq!((config.record, config.linger, config.drain), (Record::Tagged, LINGER, DRAIN));
        assert_eq!(config.admin, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("127.9.9.1:5050\", to", "localhost:5050\", to", 6, "expected an IP address and port"),
            ("to: \"127.9.9.1:15050\"", "to: \"127.9.9.1\"", 6, "expected `ip:port`"),
            ("to: \"127.9.9.1:15050\"", "to: \"app:80\"", 6, "found \"app:80\"; the sidecar resolves no names"),
            ("\"127.9.9.3:50051\"", "\"payment:80\"", 8, "the sidecar resolves no names"),
            ("\"127.9.9.3:50051\"", "\"127.9.9.3:0\"", 8, "expected `ip:port`"),
            ("127.9.9.1:20002", "127.9.9.1:20001", 9, "found 127.9.9.1:20001 again"),
            ("to: \"127.9.9.1:15050\"", "to: \"127.9.9.1:5050\"", 6, "expected another address than"),
            ("to: [\"[::1]:80\"]", "to: []", 9, "expected at least one address"),
            ("http://127.0.0.1:4700", "https://127.0.0.1:4700", 4, "`https://` needs the authority"),
            ("http://127.0.0.1:4700", "127.0.0.1:4700", 4, "expected `http://host:port`"),
            ("http://127.0.0.1:4700", "http://localhost:4700", 4, "or `{url: …, address: ip:port}`"),
            ("http://127.0.0.1:4700", "{url: \"http://localhost:1\", address: here}", 4, "expected `ip:port`"),
            (
                "http://127.0.0.1:4700",
                "{url: \"http://10.0.0.1\", address: \"10.0.0.1:81\"}",
                4,
                "10.0.0.1:80, or none",
            ),
            ("http://127.0.0.1:4700", "{url: \"http://a:1\", token_file: t}", 4, "must not travel unencrypted to a"),
            ("http://127.0.0.1:4700", "{url: \"https://a:1\", ca: c, key: k}", 4, "go together"),
            ("http://127.0.0.1:4700", "{url: \"http://[::1]:1\", tokenfile: t}", 4, "did you mean `token_file`?"),
            ("http://127.0.0.1:4700", "[http]", 4, "or a map with `url`"),
            ("carrier: tracestate", "carrier: jaeger", 13, "unknown value `jaeger`"),
            ("carrier: tracestate", "calls: [\"a GET /\"]", 13, "`exclusive: true`"),
            ("carrier: tracestate", "exclusive: true, calls: [\"payment\"]", 13, "SERVICE OPERATION"),
            ("x-request-id]", "x request]", 13, "expected the name of a header field"),
            ("x-request-id]", "tracestate]", 13, "`tracestate` is none"),
            ("[\"GET /product/{id}\"]", "[\"GET product\"]", 14, "expected `METHOD /path/{name}`"),
            ("[\"GET /product/{id}\"]", "[\"GET /p/{id}\", \"GET /p/{n}\"]", 14, "takes the same requests"),
            ("[\"/healthz\"]", "[healthz]", 15, "expected a path"),
            ("record: all", "record: everything", 16, "unknown value `everything`"),
            ("record: all", "record: {ratio: 1.5}", 16, "expected a ratio from 0 to 1, found 1.5"),
            ("record: all", "record: {ratio: -0.1}", 16, "expected a ratio from 0 to 1"),
            ("record: all", "record: {ratio: .nan}", 16, "not a finite number"),
            ("linger: 5s", "linger: 5", 17, "with a unit"),
            ("linger: 5s", "linger: 1h", 17, "expected at most 10m"),
            ("127.0.0.1:15020", "0.0.0.0:15020", 18, "expected a loopback address, `127.0.0.1:15020` or"),
            ("127.0.0.1:15020", "\"[::]:15020\"", 18, "expected a loopback address"),
            ("127.0.0.1:15020", "10.0.0.1:15020", 18, "found 10.0.0.1:15020"),
            ("127.0.0.1:15020", "localhost:15020", 18, "expected an IP address and port"),
            ("127.0.0.1:15020", "15020", 18, "expected an IP address and port"),
            ("127.0.0.1:15020", "127.9.9.1:5050", 18, "found 127.9.9.1:5050 again"),
            ("drain: 2m", "drain: 2h", 19, "expected at most"),
            ("accept_relayed: true", "accept_relay: true", 11, "did you mean `accept_relayed`?"),
        ];
        for (good, bad, line, says) in cases {
            assert!(FULL.contains(good), "{good}");
            let (at, column, message) = complaint(&FULL.replacen(good, bad, 1));
            assert_eq!(at, Some(line), "{bad}: {message}");
            assert!(column.is_some() && message.contains(says), "{bad}: {message}");
        }
    }

    fn ratio(of: f64) -> Record {
        let text = FULL.replacen("record: all", &format!("record: {{ratio: {of}}}"), 1);
        Config::parse("s", &text).unwrap().record
    }

    #[test]
    fn a_ratio_takes_its_share_of_random_and_of_counted_ids_alike() {
        for share in [0.0, 0.001, 0.05, 0.5, 1.0] {
            let record = ratio(share);
            let counted = (1..=100_000).filter(|id| record.takes(Some(ExecutionId(*id)))).count() as f64;
            let random =
                (1..=100_000).filter(|id| record.takes(Some(ExecutionId(scatter(scatter(*id)))))).count() as f64;
            // Five standard deviations.
            let allowed = 5.0 * (100_000.0 * share * (1.0 - share)).sqrt();
            for taken in [counted, random] {
                assert!((taken - share * 100_000.0).abs() <= allowed, "{share}: {taken}");
            }
        }
        assert!(!ratio(1.0).takes(None) && Record::All.takes(None), "a call of no execution is no part of one");
    }

    proptest::proptest! {
        #[test]
        fn what_a_ratio_takes_every_higher_one_takes_too(id: u64, one in 0.0..=1.0_f64, other in 0.0..=1.0_f64) {
            let (low, high) = (ratio(one.min(other)), ratio(one.max(other)));
            let execution = Some(ExecutionId(id));
            proptest::prop_assert!(!low.takes(execution) || high.takes(execution));
            proptest::prop_assert_eq!(low.takes(execution), ratio(one.min(other)).takes(execution));
        }
    }

    #[test]
    fn operators_ask_at_any_loopback_address() {
        for address in ["127.8.7.6:1", "[::1]:15020", "[::ffff:127.0.0.1]:15020", "127.0.0.1:0"] {
            let config = Config::parse("s", &FULL.replacen("127.0.0.1:15020", &format!("{address:?}"), 1)).unwrap();
            assert_eq!(config.admin, Some(address.parse().unwrap()));
        }
    }

    #[test]
    fn a_sidecar_without_listeners_is_refused() {
        let (_, _, message) = complaint("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: a\n");
        assert!(message.contains("`transparent`, or at least one listener"), "{message}");
    }

    #[test]
    fn a_file_of_another_kind_is_called_that() {
        let (line, _, message) = complaint("apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nservice: a\n");
        assert!(line == Some(2) && message.contains("`kind: Sidecar`"), "{message}");
    }
}
