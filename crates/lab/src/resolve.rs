//! From the file form to the typed form: names are resolved, statuses checked, loops found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use aftershock_core::yaml::{self, Located, Location, Spanned};

use crate::expand;
use crate::file::{
    Entries, Protocol, RawApi, RawEffect, RawOnFailure, RawPropagation, RawReaction, RawRefusal, RawRequest,
    RawService, RawServiceTime, RawStep, TopologyFile,
};
use crate::names::unknown;
use crate::route::Route;
use crate::scalar::{GrpcCode, RawCount, Status};
use crate::topology::{
    Action, Api, Call, Client, Count, Effect, OnFailure, Operation, Params, Propagation, Reaction, Refusal, Request,
    Service, ServiceTime, Source, Step, Topology,
};

/// The longest service time: a longer one is a slip of the unit.
const LONGEST_SERVICE_TIME: Duration = Duration::from_secs(60);
/// Most calls one client request may expand to.
const MOST_CALLS: usize = 10_000;

/// What is wrong, and where; the file is known to the caller.
#[derive(Debug)]
struct Mistake {
    location: Option<Location>,
    message: String,
}

type Checked<T> = Result<T, Mistake>;

fn mistake<T, R>(at: &Spanned<T>, message: impl fmt::Display) -> Checked<R> {
    Err(Mistake { location: at.location, message: message.to_string() })
}

pub(crate) fn topology(file: &str, text: &str) -> Result<Topology, Located> {
    let raw: TopologyFile = yaml::from_str_as("Topology", file, text)?;
    let source = Source { file: file.to_owned(), text: text.to_owned() };
    resolve(raw, source).map_err(|mistake| Located::at(file, text, mistake.location, mistake.message))
}

fn resolve(raw: TopologyFile, source: Source) -> Checked<Topology> {
    name("topology", &raw.metadata.name)?;
    let params: Params = distinct("parameter", raw.params)?.into_iter().map(|(name, value)| (name, value.0)).collect();
    let services: Vec<Service> =
        unique("service", raw.services)?.into_iter().map(|(name, raw)| service(name, raw)).collect::<Checked<_>>()?;
    if services.is_empty() {
        return mistake(&raw.metadata.name, "expected at least one service under `services`");
    }
    let ledgers = distinct("ledger", raw.ledgers)?
        .into_iter()
        .map(|(name, raw)| match services.iter().any(|service| service.name == raw.service.value) {
            true => Ok((name, raw.service.value)),
            false => mistake(&raw.service, unknown("service", &raw.service, names(&services))),
        })
        .collect::<Checked<BTreeMap<_, _>>>()?;
    let mut topology = Topology {
        name: raw.metadata.name.value,
        description: raw.metadata.description,
        params,
        services,
        ledgers,
        apis: BTreeMap::new(),
        requests: Vec::new(),
        source,
    };
    for (name, raw) in unique("Api", raw.apis)? {
        let api = api(&topology, &name, raw)?;
        topology.apis.insert(name.value, api);
    }
    let mut edges = Edges::default();
    for (name, raw) in unique("handler", raw.handlers)? {
        let Some(api) = topology.apis.get(&name.value) else {
            return mistake(&name, unknown("Api", &name, topology.apis.keys().map(String::as_str)));
        };
        let service = topology.service(&api.service).expect("the Api's service was resolved");
        let mut scope = Scope { topology: &topology, api, service, bound: BTreeSet::new(), edges: &mut edges };
        let steps = scope.steps(&raw.steps, Place { in_group: false, in_branch: false })?;
        topology.apis.get_mut(&name.value).expect("it was found above").steps = steps;
    }
    edges.check_acyclic()?;
    for (name, raw) in unique("request", raw.requests)? {
        let request = request(&topology, name, raw)?;
        topology.requests.push(request);
    }
    Ok(topology)
}

fn names(services: &[Service]) -> impl Iterator<Item = &str> {
    services.iter().map(|service| service.name.as_str())
}

/// A name is part of URLs, file names and log lines.
fn name(kind: &str, name: &Spanned<String>) -> Checked<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !name.is_empty() && name.len() <= 64 && name.chars().all(allowed) {
        true => Ok(()),
        false => mistake(
            name,
            format!("expected as {kind} name 1 to 64 letters, digits, `-` or `_`, found `{}`", name.value),
        ),
    }
}

fn unique<T>(kind: &str, entries: Entries<T>) -> Checked<Vec<(Spanned<String>, T)>> {
    for (key, _) in &entries.0 {
        name(kind, key)?;
    }
    Ok(entries.0)
}

fn distinct<T>(kind: &str, entries: Entries<T>) -> Checked<Vec<(String, T)>> {
    Ok(unique(kind, entries)?.into_iter().map(|(key, value)| (key.value, value)).collect())
}

fn service(name: Spanned<String>, raw: RawService) -> Checked<Service> {
    if raw.port.value == 0 {
        return mistake(&raw.port, "expected a port from 1 to 65535");
    }
    let propagation = match raw.propagation.value {
        RawPropagation::W3c => Some(Propagation::W3c),
        RawPropagation::Uber => Some(Propagation::Uber),
        RawPropagation::None => Some(Propagation::None),
        RawPropagation::Leaf => None,
    };
    let client = match raw.client {
        Some(_) if propagation.is_none() => {
            return mistake(
                &raw.propagation,
                format!("service `{}` has `propagation: leaf`, so it makes no calls and needs no `client`", name.value),
            );
        }
        Some(raw) => Client {
            timeout: raw.timeout.0,
            unsafe_retries_on_timeout: raw.retries.as_ref().map_or(0, |retries| retries.unsafe_on_timeout),
            unsafe_retries_on_transport: raw.retries.as_ref().map_or(0, |retries| retries.unsafe_on_transport),
        },
        None => Client::default(),
    };
    Ok(Service { name: name.value, protocol: raw.server, port: raw.port.value, propagation, client })
}

fn api(topology: &Topology, name: &Spanned<String>, raw: RawApi) -> Checked<Api> {
    let Some(service) = topology.service(&raw.service) else {
        return mistake(&raw.service, unknown("service", &raw.service, names(&topology.services)));
    };
    let operation = match (raw.grpc, raw.http, service.protocol) {
        (Some(method), None, Protocol::Grpc) => grpc_method(method)?,
        (None, Some(route), Protocol::Http1) => match Route::parse(&route) {
            Ok(parsed) => Operation::Http(parsed),
            Err(expected) => return mistake(&route, format!("{expected}, found `{}`", route.value)),
        },
        (Some(method), None, Protocol::Http1) => {
            return mistake(
                &method,
                format!("service `{}` has `server: http1`: expected `http: METHOD /path`", service.name),
            );
        }
        (None, Some(route), Protocol::Grpc) => {
            return mistake(
                &route,
                format!("service `{}` has `server: grpc`: expected `grpc: package.Service/Method`", service.name),
            );
        }
        (Some(_), Some(second), _) => return mistake(&second, "expected either `grpc` or `http`, found both"),
        (None, None, _) => return mistake(name, format!("Api `{}` needs `grpc` or `http`", name.value)),
    };
    for other in topology.apis.values().filter(|other| other.service == service.name) {
        let same = match (&operation, &other.operation) {
            (Operation::Http(mine), Operation::Http(theirs)) => mine.is_ambiguous_with(theirs),
            (mine, theirs) => mine == theirs,
        };
        if same {
            return mistake(
                name,
                format!("Api `{}` is the same operation of `{}` as Api `{}`", name.value, service.name, other.name),
            );
        }
    }
    let effects = raw.effects.into_iter().map(|raw| effect(topology, service, raw)).collect::<Checked<_>>()?;
    let service_time = match raw.service_time {
        None => ServiceTime::Fixed(Duration::ZERO),
        Some(raw) => {
            let spans: Vec<Duration> = match &raw.value {
                RawServiceTime::Fixed(span) => vec![span.0],
                RawServiceTime::PermutedByKey(spans) => spans.iter().map(|span| span.0).collect(),
            };
            if spans.iter().any(|span| *span > LONGEST_SERVICE_TIME) {
                return mistake(&raw, "expected a service time of at most 60s");
            }
            match raw.value {
                RawServiceTime::Fixed(_) => ServiceTime::Fixed(spans[0]),
                RawServiceTime::PermutedByKey(_) if spans.is_empty() => {
                    return mistake(&raw, "expected at least one time under `permuted_by_key`");
                }
                RawServiceTime::PermutedByKey(_) => ServiceTime::PermutedByKey(spans),
            }
        }
    };
    let refusal = raw.refuse.map(|raw| refusal(service, raw)).transpose()?;
    let name = name.value.clone();
    Ok(Api { name, service: service.name.clone(), operation, effects, service_time, refusal, steps: Vec::new() })
}

fn grpc_method(method: Spanned<String>) -> Checked<Operation> {
    let shaped = method.split_once('/').is_some_and(|(service, method)| {
        let word =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        word(service) && word(method)
    });
    match shaped {
        true => Ok(Operation::Grpc(method.value)),
        false => mistake(&method, format!("expected `package.Service/Method`, found `{}`", method.value)),
    }
}

fn effect(topology: &Topology, service: &Service, raw: RawEffect) -> Checked<Effect> {
    let (RawEffect::Append(ledger) | RawEffect::Clear(ledger)) = &raw;
    match topology.ledgers.get(&ledger.value) {
        None => return mistake(ledger, unknown("ledger", ledger, topology.ledgers.keys().map(String::as_str))),
        Some(owner) if *owner != service.name => {
            return mistake(
                ledger,
                format!("ledger `{}` is kept by `{owner}`, not by `{}`", ledger.value, service.name),
            );
        }
        Some(_) => {}
    }
    Ok(match raw {
        RawEffect::Append(ledger) => Effect::Append { ledger: ledger.value },
        RawEffect::Clear(ledger) => Effect::Clear { ledger: ledger.value },
    })
}

fn refusal(service: &Service, raw: RawRefusal) -> Checked<Refusal> {
    if raw.keys_starting_with.is_empty() {
        return mistake(&raw.keys_starting_with, "expected a non-empty prefix: an empty one refuses every key");
    }
    let status = status_of(service, &raw.status)?;
    if status.is_ok() {
        return mistake(&raw.status, format!("expected an error status, found {status}"));
    }
    Ok(Refusal { prefix: raw.keys_starting_with.value, status })
}

/// A status in the protocol of the service that answers it.
fn status_of(service: &Service, status: &Spanned<Status>) -> Checked<Status> {
    match (service.protocol, status.value) {
        (Protocol::Http1, Status::Http(_)) | (Protocol::Grpc, Status::Grpc(_)) => Ok(status.value),
        (Protocol::Http1, Status::Grpc(code)) => mistake(
            status,
            format!("service `{}` answers HTTP: expected a status such as 500, found {}", service.name, code.name()),
        ),
        (Protocol::Grpc, Status::Http(code)) => mistake(
            status,
            format!("service `{}` answers gRPC: expected a code such as INTERNAL, found {code}", service.name),
        ),
    }
}

/// The default answer of a handler or Api that came to its end.
pub(crate) fn success(protocol: Protocol) -> Status {
    match protocol {
        Protocol::Http1 => Status::Http(200),
        Protocol::Grpc => Status::Grpc(GrpcCode::Ok),
    }
}

/// What surrounds a step.
#[derive(Clone, Copy)]
struct Place {
    in_group: bool,
    in_branch: bool,
}

/// One handler while it is read.
struct Scope<'a> {
    topology: &'a Topology,
    api: &'a Api,
    service: &'a Service,
    /// Names of answers that steps before this one bind.
    bound: BTreeSet<String>,
    edges: &'a mut Edges,
}

impl Scope<'_> {
    fn steps(&mut self, raw: &[Spanned<RawStep>], place: Place) -> Checked<Vec<Step>> {
        let mut steps = Vec::with_capacity(raw.len());
        for (index, step) in raw.iter().enumerate() {
            let resolved = self.step(step, place)?;
            let ends = resolved.when.is_none() && matches!(resolved.action, Action::Respond(_));
            if let (true, Some(next)) = (ends, raw.get(index + 1)) {
                return mistake(next, "expected no step after `respond`: it is never reached");
            }
            steps.push(resolved);
        }
        Ok(steps)
    }

    fn step(&mut self, step: &Spanned<RawStep>, place: Place) -> Checked<Step> {
        const ACTIONS: &str = "call, repeat, parallel, group, effect, respond";
        let raw = &step.value;
        let chosen = [
            raw.call.is_some(),
            raw.repeat.is_some(),
            raw.parallel.is_some(),
            raw.group.is_some(),
            raw.effect.is_some(),
            raw.respond.is_some(),
        ];
        match chosen.into_iter().filter(|present| *present).count() {
            1 => {}
            0 => return mistake(step, format!("a step needs one of {ACTIONS}")),
            _ => return mistake(step, format!("a step has only one of {ACTIONS}")),
        }
        if raw.call.is_none() {
            let stray = [
                ("as", raw.name.is_some()),
                ("uses", raw.uses.is_some()),
                ("timeout", raw.timeout.is_some()),
                ("propagate", raw.propagate.is_some()),
                ("on_failure", raw.on_failure.is_some()),
            ];
            if let Some((key, _)) = stray.into_iter().find(|(_, present)| *present) {
                return mistake(step, format!("`{key}` belongs to a step with `call`"));
            }
        }
        if let Some(param) = &raw.when {
            self.param(param, param)?;
        }
        let action = self.action(raw, place)?;
        Ok(Step { when: raw.when.as_ref().map(|param| param.value.clone()), action })
    }

    fn action(&mut self, raw: &RawStep, place: Place) -> Checked<Action> {
        if let Some(api) = &raw.call {
            return self.call(api, raw, place).map(Action::Call);
        }
        if let Some(repeat) = &raw.repeat {
            let times = match &repeat.times.value {
                RawCount::Fixed(times) => Count::Fixed(*times),
                RawCount::Param(param) => {
                    self.param(&repeat.times, param)?;
                    Count::Param(param.clone())
                }
            };
            return Ok(Action::Repeat { times, steps: self.steps(&repeat.steps, place)? });
        }
        if let Some(parallel) = &raw.parallel {
            let outside = self.bound.clone();
            let mut bound = outside.clone();
            let mut branches = Vec::with_capacity(parallel.branches.len());
            for branch in &parallel.branches {
                if branch.value.is_empty() {
                    return mistake(branch, "expected at least one step in a branch");
                }
                self.bound.clone_from(&outside);
                branches.push(self.steps(&branch.value, Place { in_group: false, in_branch: true })?);
                bound.append(&mut self.bound);
            }
            self.bound = bound;
            return Ok(Action::Parallel { join: parallel.join, branches });
        }
        if let Some(group) = &raw.group {
            name("group", &group.name)?;
            let on_failure = self.reaction(&group.on_failure.value, group.on_failure.location, place)?;
            let steps = self.steps(&group.steps, Place { in_group: true, ..place })?;
            return Ok(Action::Group { on_failure, steps });
        }
        if let Some(raw) = &raw.effect {
            let effect_of = match &raw.value {
                RawEffect::Append(ledger) => RawEffect::Append(ledger.clone()),
                RawEffect::Clear(ledger) => RawEffect::Clear(ledger.clone()),
            };
            return effect(self.topology, self.service, effect_of).map(Action::Effect);
        }
        let status = raw.respond.as_ref().expect("exactly one action was counted");
        if place.in_branch {
            return mistake(status, "expected no `respond` in a parallel branch: the join decides the answer");
        }
        status_of(self.service, status).map(Action::Respond)
    }

    fn call(&mut self, api: &Spanned<String>, raw: &RawStep, place: Place) -> Checked<Call> {
        if !self.topology.apis.contains_key(&api.value) {
            return mistake(api, unknown("Api", api, self.topology.apis.keys().map(String::as_str)));
        }
        if self.service.propagation.is_none() {
            return mistake(
                api,
                format!("service `{}` has `propagation: leaf`, so its handlers make no calls", self.service.name),
            );
        }
        self.edges.add(&self.api.name, api);
        let uses = raw.uses.iter().flatten();
        if let Some(unbound) = uses.clone().find(|used| !self.bound.contains(&used.value)) {
            return mistake(unbound, unknown("answer", unbound, self.bound.iter().map(String::as_str)));
        }
        let uses = uses.map(|used| used.value.clone()).collect();
        let Some(on_failure) = &raw.on_failure else {
            return mistake(api, format!("the call of `{}` needs `on_failure`", api.value));
        };
        let on_failure = match &on_failure.value {
            RawOnFailure::Any(reaction) => {
                let reaction = self.reaction(reaction, on_failure.location, place)?;
                OnFailure { transport: reaction, status: reaction, hang: reaction }
            }
            RawOnFailure::ByKind { transport, status, hang } => OnFailure {
                transport: self.reaction(transport, on_failure.location, place)?,
                status: self.reaction(status, on_failure.location, place)?,
                hang: self.reaction(hang, on_failure.location, place)?,
            },
        };
        if let Some(bound) = &raw.name {
            name("answer", bound)?;
            self.bound.insert(bound.value.clone());
        }
        Ok(Call {
            api: api.value.clone(),
            name: raw.name.as_ref().map(|bound| bound.value.clone()),
            uses,
            timeout: raw.timeout.as_ref().map_or(self.service.client.timeout, |timeout| timeout.value.0),
            propagates: raw.propagate.is_none(),
            on_failure,
        })
    }

    fn reaction(&self, raw: &RawReaction, location: Option<Location>, place: Place) -> Checked<Reaction> {
        Ok(match raw {
            RawReaction::Ignore => Reaction::Ignore,
            RawReaction::LeaveGroup if !place.in_group => {
                let message = "`leave_group` belongs inside the steps of a group".to_owned();
                return Err(Mistake { location, message });
            }
            RawReaction::LeaveGroup => Reaction::LeaveGroup,
            RawReaction::Crash => Reaction::Crash,
            RawReaction::Block => Reaction::Block,
            RawReaction::Fail(status) => Reaction::Fail(status_of(self.service, status)?),
        })
    }

    fn param<T>(&self, at: &Spanned<T>, param: &str) -> Checked<()> {
        match self.topology.params.contains_key(param) {
            true => Ok(()),
            false => mistake(at, unknown("parameter", param, self.topology.params.keys().map(String::as_str))),
        }
    }
}

/// Which Api's handler calls which, and where the file says so.
#[derive(Default)]
struct Edges(BTreeMap<String, Vec<Spanned<String>>>);

impl Edges {
    fn add(&mut self, from: &str, to: &Spanned<String>) {
        self.0.entry(from.to_owned()).or_default().push(to.clone());
    }

    /// A call back to an Api whose handler is still running would never end.
    fn check_acyclic(&self) -> Checked<()> {
        let mut finished = BTreeSet::new();
        self.0.keys().try_for_each(|api| self.visit(api, &mut Vec::new(), &mut finished))
    }

    fn visit<'a>(&'a self, api: &'a str, path: &mut Vec<&'a str>, finished: &mut BTreeSet<&'a str>) -> Checked<()> {
        if finished.contains(api) {
            return Ok(());
        }
        path.push(api);
        for callee in self.0.get(api).into_iter().flatten() {
            if let Some(start) = path.iter().position(|on_path| *on_path == callee.value) {
                let cycle = [&path[start..], &[callee.value.as_str()]].concat().join(" → ");
                return mistake(callee, format!("the handlers call each other without end: {cycle}"));
            }
            self.visit(&callee.value, path, finished)?;
        }
        path.pop();
        finished.insert(api);
        Ok(())
    }
}

fn request(topology: &Topology, name: Spanned<String>, raw: RawRequest) -> Checked<Request> {
    if !topology.apis.contains_key(&raw.api.value) {
        return mistake(&raw.api, unknown("Api", &raw.api, topology.apis.keys().map(String::as_str)));
    }
    let mut params = topology.params.clone();
    let mut overrides = Params::new();
    for (param, value) in raw.params.0 {
        match params.get_mut(&param.value) {
            Some(slot) => *slot = value.0,
            None => return mistake(&param, unknown("parameter", &param, topology.params.keys().map(String::as_str))),
        }
        overrides.insert(param.value, value.0);
    }
    let request = Request { name: name.value.clone(), api: raw.api.value, params, overrides, expect: raw.expect };
    let Some(calls) = expand::calls(topology, &request.api, &request.params, MOST_CALLS) else {
        return mistake(&name, format!("request `{}` causes more than {MOST_CALLS} calls", name.value));
    };
    let found = expand::count(&calls);
    if found != request.expect {
        return mistake(
            &name,
            format!(
                "request `{}` causes {} calls of {} different Apis, but `expect` says {} and {}",
                name.value, found.calls, found.distinct, request.expect.calls, request.expect.distinct
            ),
        );
    }
    Ok(request)
}
