//! The typed topology: every name resolved, every status of its Api's protocol, every expansion finite.
//!
//! [`Topology::parse`] is the only way to get one, so nothing downstream checks these again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use aftershock_core::yaml::Located;

pub use crate::file::{Expected, Join, Protocol};
use crate::route::Route;
use crate::scalar::Status;

/// Largest value of a parameter; bounds what a client's override can make a handler do.
pub const MAX_PARAM: u32 = 1000;

/// A topology of mock services.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) params: Params,
    pub(crate) services: Vec<Service>,
    pub(crate) ledgers: BTreeMap<String, String>,
    pub(crate) apis: BTreeMap<String, Api>,
    pub(crate) requests: Vec<Request>,
    pub(crate) source: Source,
}

/// The file a topology was read from, kept so that service processes read the very same text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) text: String,
}

/// Parameters by name.
pub type Params = BTreeMap<String, u32>;

/// A mock service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Unique name, also the callee's name in Apis and sidecars.
    pub name: String,
    /// What it speaks with its callers.
    pub protocol: Protocol,
    /// The port its callers know.
    pub port: u16,
    /// What it copies to its calls; `None` for a service that makes none.
    pub propagation: Option<Propagation>,
    /// How it calls.
    pub client: Client,
}

/// Which headers a service copies from the request it handles to the calls it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// `traceparent` with the same trace id and a new parent id, `tracestate` verbatim.
    W3c,
    /// `uber-trace-id` and every `uberctx-*`, verbatim.
    Uber,
    /// Nothing.
    None,
}

impl Propagation {
    /// The word used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::W3c => "w3c",
            Self::Uber => "uber",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Propagation {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "w3c" => Ok(Self::W3c),
            "uber" => Ok(Self::Uber),
            "none" => Ok(Self::None),
            other => Err(format!("unknown propagation `{other}`, expected one of: w3c, uber, none")),
        }
    }
}

/// Transport behaviour of the calls a service makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// How long it waits for each answer; `None` for as long as the connection stands.
    pub timeout: Option<Duration>,
    /// Further attempts after a timeout, whatever the lost one did.
    pub unsafe_retries_on_timeout: u8,
    /// Further attempts after a transport failure, whatever the lost one did.
    pub unsafe_retries_on_transport: u8,
}

/// An operation of a service.
#[derive(Clone, Debug)]
pub struct Api {
    /// The short name used in the file.
    pub name: String,
    /// The service that answers it.
    pub service: String,
    /// What it is called on the wire.
    pub operation: Operation,
    /// Changes of state, made before a successful answer is sent.
    pub effects: Vec<Effect>,
    /// How long the service works first.
    pub service_time: ServiceTime,
    /// Business keys it refuses.
    pub refusal: Option<Refusal>,
    /// What it does to answer; empty for an Api that answers by itself.
    pub steps: Vec<Step>,
}

/// An operation as it is called on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// gRPC `package.Service/Method`.
    Grpc(String),
    /// HTTP `METHOD /path/{template}`.
    Http(Route),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grpc(method) => f.write_str(method),
            Self::Http(route) => route.fmt(f),
        }
    }
}

/// A change of a ledger, for the business key at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// One more entry.
    Append {
        /// The ledger.
        ledger: String,
    },
    /// Its entries are removed, and the clearing is counted.
    Clear {
        /// The ledger.
        ledger: String,
    },
}

/// How long a service works on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceTime {
    /// Always this long.
    Fixed(Duration),
    /// The n-th call of a handler run takes the n-th of these times in an order that depends on the business key only.
    PermutedByKey(Vec<Duration>),
}

/// A rule by which a service refuses business keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Keys that begin so are refused.
    pub prefix: String,
    /// The answer they get.
    pub status: Status,
}

/// One step of a handler.
#[derive(Clone, Debug)]
pub struct Step {
    /// The step happens only if this parameter is not 0.
    pub(crate) when: Option<String>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Call(Call),
    Repeat { times: Count, steps: Vec<Step> },
    Parallel { join: Join, branches: Vec<Vec<Step>> },
    Group { on_failure: Reaction, steps: Vec<Step> },
    Effect(Effect),
    Respond(Status),
}

#[derive(Clone, Debug)]
pub(crate) enum Count {
    Fixed(u32),
    Param(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) api: String,
    pub(crate) name: Option<String>,
    pub(crate) uses: Vec<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) propagates: bool,
    pub(crate) on_failure: OnFailure,
}

/// What a handler does about each kind of failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnFailure {
    pub(crate) transport: Reaction,
    pub(crate) status: Reaction,
    pub(crate) hang: Reaction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Goes on as if nothing had happened.
    Ignore,
    /// Leaves the innermost group.
    LeaveGroup,
    /// The process dies.
    Crash,
    /// The handler never goes on.
    Block,
    /// The handler answers this.
    Fail(Status),
}

/// A client request that enters the topology.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it is called.
    pub name: String,
    /// The Api the client calls.
    pub api: String,
    /// The topology's parameters with the request's overrides.
    pub params: Params,
    /// The overrides alone; the client sends these.
    pub overrides: Params,
    /// Calls it causes without faults.
    pub expect: Expected,
}

impl Topology {
    /// Reads the YAML text of a topology; `file` is only named in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, Located> {
        crate::resolve::topology(file, text)
    }

    /// The name in the file's metadata.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it shows, if the file says so.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The parameters' values where a request does not override them.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The services in the order of the file.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }

    /// The ledgers' names, each with the service that keeps it.
    pub fn ledgers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ledgers.iter().map(|(name, service)| (name.as_str(), service.as_str()))
    }

    /// The Apis by name.
    pub fn apis(&self) -> impl Iterator<Item = &Api> {
        self.apis.values()
    }

    /// The Api of this short name.
    pub fn api(&self, name: &str) -> Option<&Api> {
        self.apis.get(name)
    }

    /// The client requests in the order of the file.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The client request of this name.
    pub fn request(&self, name: &str) -> Option<&Request> {
        self.requests.iter().find(|request| request.name == name)
    }

    /// The services that `service` calls, in the order of the file.
    pub fn callees(&self, service: &str) -> Vec<&Service> {
        let mut called = std::collections::BTreeSet::new();
        for api in self.apis.values().filter(|api| api.service == service) {
            visit_calls(&api.steps, &mut |call| {
                called.insert(self.apis[&call.api].service.as_str());
            });
        }
        self.services.iter().filter(|callee| called.contains(callee.name.as_str())).collect()
    }
}

fn visit_calls(steps: &[Step], visit: &mut impl FnMut(&Call)) {
    for step in steps {
        match &step.action {
            Action::Call(call) => visit(call),
            Action::Repeat { steps, .. } | Action::Group { steps, .. } => visit_calls(steps, visit),
            Action::Parallel { branches, .. } => branches.iter().for_each(|branch| visit_calls(branch, visit)),
            Action::Effect(_) | Action::Respond(_) => {}
        }
    }
}
