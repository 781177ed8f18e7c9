//! What a plan means for the registered sidecars: a pure function, asked before anything is sent (design §3.4, §3.6).
//!
//! A fault acts at the caller's sidecar, unless the caller has none: at an entry Api and behind a hop without sidecar it
//! acts at the callee's. What cannot work is refused here, with the nearest name that would have been valid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aftershock_core::duration::Interval;
use aftershock_core::event::{ApiRef, CountedEvent, Event, OutcomeFilter};
use aftershock_core::id::CallId;
use aftershock_core::name::{Api, Service, nearest};
use aftershock_core::outcome::OutcomeOverride;
use aftershock_core::plan::{Atom, Channel, MaxInjections, Phase, Plan, Rule, Side, Target, Tfic, UnfitPoint};
use aftershock_core::trace::Trace;
use aftershock_generate::{GenerateError, validate};

use crate::api::{StartRound, TaggedTraffic};

const MILLION: u32 = 1_000_000;

/// The registered sidecars, as arming sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Instances {
    /// How many sidecars each service has.
    pub(crate) count: BTreeMap<Service, usize>,
    /// The callees that a service's sidecars are configured with.
    pub(crate) callees: BTreeMap<Service, BTreeSet<Service>>,
}

/// What is armed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Armament {
    /// One rule for each fault, in the plan's order.
    pub(crate) rules: Vec<Rule>,
    /// The events that every sidecar counts.
    pub(crate) events: Vec<CountedEvent>,
    /// Apis that a rule mentions, and those with such an Api beneath them in the traces.
    pub(crate) gap_apis: BTreeSet<Api>,
    /// What each service calls in the traces.
    pub(crate) known_calls: BTreeMap<Service, BTreeSet<Api>>,
}

/// The longest that a pass may be told to wait for the arbiter.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a plan is not armed. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is nobody to arm.
    #[error("no sidecar is registered")]
    NoSidecar,
    /// A group that the plan does not define.
    #[error("faults[{fault}]: unknown group `{group}`{hint}")]
    UnknownGroup {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The group.
        group: String,
        /// The nearest name.
        hint: String,
    },
    /// A group without members.
    #[error("faults[{fault}]: the group `{group}` has no members")]
    EmptyGroup {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The group.
        group: String,
    },
    /// A service that no sidecar registered and no clean trace shows.
    #[error("faults[{fault}]: unknown service `{service}`{hint}")]
    UnknownService {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The service.
        service: Service,
        /// The nearest name.
        hint: String,
    },
    /// The service whose sidecar would act has none.
    #[error("faults[{fault}]: no sidecar of `{service}` is registered, where the fault would act{hint}")]
    NoSidecarOf {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The service.
        service: Service,
        /// The registered ones.
        hint: String,
    },
    /// No clean trace of the scenario shows the target.
    #[error("faults[{fault}]: no clean trace of the scenario reaches `{api}`{hint}")]
    NeverReached {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The Api or group.
        api: ApiRef,
        /// The nearest name.
        hint: String,
    },
    /// The target is called, but not by the caller that the plan names.
    #[error("faults[{fault}]: in no clean trace of the scenario `{api}` is called by `{caller}`, but by {callers}")]
    NotCalledBy {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The Api or group.
        api: ApiRef,
        /// The caller.
        caller: Service,
        /// Who calls it.
        callers: String,
    },
    /// Several services call the target and the plan names none.
    #[error("faults[{fault}]: `{api}` is called by {callers}: name the caller that is meant")]
    ManyCallers {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The Api or group.
        api: ApiRef,
        /// Who calls it.
        callers: String,
    },
    /// The fault would act at callees of several services.
    #[error(
        "faults[{fault}]: the Apis of `{api}` belong to {services}, and their caller has no sidecar where the fault \
         could act"
    )]
    ManyCallees {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The group.
        api: ApiRef,
        /// The services.
        services: String,
    },
    /// An event of the guard happens in no clean trace.
    #[error("faults[{fault}]: the guard's event `{event}` happens in no clean trace of the scenario{hint}")]
    NoSuchEvent {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The event.
        event: Event,
        /// The nearest event.
        hint: String,
    },
    /// `at` names a place where the fault cannot act.
    #[error("faults[{fault}]: {why}")]
    Point {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// Why it cannot.
        #[source]
        why: UnfitPoint,
    },
    /// Without `at` the fault waits for the end of an answer that is a stream.
    #[error(
        "faults[{fault}]: in the clean traces an answer of `{api}` has {messages} messages, which cannot be kept back to \
         their end: say `at: head`, `at: {{message: N}}` or `at: {{bytes: N}}`"
    )]
    Streams {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// Which Api.
        api: Api,
        /// How many it has.
        messages: u64,
    },
    /// `post_effect` on a request.
    #[error("faults[{fault}]: `post_effect` asks for the outcome of a response, the phase is `request`")]
    PostEffectOfRequest {
        /// Which fault of the plan, from 0.
        fault: usize,
    },
    /// An outcome on a request.
    #[error("faults[{fault}]: a request has no outcome: leave `outcome` out, or choose the phase `response`")]
    OutcomeOfRequest {
        /// Which fault of the plan, from 0.
        fault: usize,
    },
    /// A service that may not be faulted.
    #[error(
        "faults[{fault}]: `{service}`, {role}, is not among the services that this controller lets faults touch: {allowed}"
    )]
    NotFaultable {
        /// Which fault of the plan, from 0.
        fault: usize,
        /// The service.
        service: Service,
        /// What it has to do with the fault.
        role: &'static str,
        /// The list.
        allowed: String,
    },
    /// An outcome override that says nothing that can be applied.
    #[error("outcomes[{index}]: {problem}")]
    Outcome {
        /// Which, from 0.
        index: usize,
        /// What is wrong.
        problem: String,
    },
    /// A channel that cannot be cut.
    #[error("cuts[{cut}]: {problem}")]
    Cut {
        /// Which cut of the plan, from 0.
        cut: usize,
        /// Why not.
        problem: String,
    },
    /// Ordinary traffic that cannot be tagged.
    #[error("traffic: {0}")]
    Traffic(String),
    /// A stop condition that would never or always hold.
    #[error("stop: {0}")]
    Stop(String),
    /// A timeout that cannot work.
    #[error("arbiter_timeout: expected more than 0 and at most {longest}, found {0}", longest = Interval(LONGEST_TIMEOUT))]
    ArbiterTimeout(Interval),
    /// On the clean traces it would not fire.
    #[error("on the clean traces of the scenario the plan could not work: {0}")]
    CannotFire(#[from] GenerateError),
    /// `max_injections: 0`.
    #[error("faults[{fault}]: `max_injections` is 0: the fault could never be injected")]
    NoInjections {
        /// Which fault of the plan, from 0.
        fault: usize,
    },
}

/// Resolve a round for the sidecars that are registered and the clean traces of its scenario; none if it was never
/// recorded, then names are checked against the sidecars alone. Faults may only touch `faultable`, if there is a list.
///
/// # Errors
/// When it could not work; see [`Refusal`].
pub(crate) fn resolve(
    request: &StartRound,
    faultable: Option<&BTreeSet<Service>>,
    instances: &Instances,
    traces: &[Trace],
) -> Result<Armament, Refusal> {
    if instances.count.is_empty() {
        return Err(Refusal::NoSidecar);
    }
    let plan = &request.plan;
    plan.check_points().map_err(|(fault, why)| Refusal::Point { fault, why })?;
    let map = Surroundings::new(plan, instances, traces);
    map.check_circumstances(request)?;
    let mut rules = Vec::new();
    for (index, fault) in plan.faults.iter().enumerate() {
        let rule = map.rule(index, fault)?;
        let read = fault.check_outcomes(&rule.apis, &request.outcomes);
        read.map_err(|why| Refusal::Point { fault: index, why })?;
        if let Some(allowed) = faultable {
            check_faultable(&rule, allowed)?;
        }
        rules.push(rule);
        for atom in &fault.guard.after {
            map.check_atom(index, atom)?;
        }
    }
    for (cut, channel) in plan.cuts.iter().enumerate() {
        map.check_cut(channel, faultable).map_err(|problem| Refusal::Cut { cut, problem })?;
    }
    if !traces.is_empty() && plan.has_one_fault_alone() {
        validate::plan(plan, traces)?;
    }
    let events = plan.counted_events().expect("every group was resolved above");
    let mentioned: BTreeSet<&Api> =
        rules.iter().flat_map(|rule| &rule.apis).chain(events.iter().flat_map(|event| &event.apis)).collect();
    let gap_apis = above(&mentioned, traces);
    Ok(Armament { rules, events, gap_apis, known_calls: known_calls(traces) })
}

/// A fault touches the service where it acts and those whose calls it is about.
fn check_faultable(rule: &Rule, allowed: &BTreeSet<Service>) -> Result<(), Refusal> {
    let callees = rule.apis.iter().map(|api| (&api.service, "whose call it would be about"));
    let mut touched = std::iter::once((&rule.service, "where the fault would act")).chain(callees);
    let Some((service, role)) = touched.find(|(service, _)| !allowed.contains(*service)) else { return Ok(()) };
    let allowed = listed_or_none(allowed);
    Err(Refusal::NotFaultable { fault: rule.index, service: service.clone(), role, allowed })
}

fn listed_or_none(services: &BTreeSet<Service>) -> String {
    if services.is_empty() { "none".to_owned() } else { list(services.iter().map(Service::as_str)) }
}

/// What each service calls in `traces`.
fn known_calls(traces: &[Trace]) -> BTreeMap<Service, BTreeSet<Api>> {
    let mut known: BTreeMap<Service, BTreeSet<Api>> = BTreeMap::new();
    for call in traces.iter().flat_map(|trace| &trace.calls) {
        if let Some(caller) = &call.caller {
            known.entry(caller.clone()).or_default().insert(call.api.clone());
        }
    }
    known
}

/// `apis`, and every Api that in a trace has one of them beneath it.
fn above(apis: &BTreeSet<&Api>, traces: &[Trace]) -> BTreeSet<Api> {
    let mut found: BTreeSet<Api> = apis.iter().map(|api| (*api).clone()).collect();
    for trace in traces {
        let calls: BTreeMap<CallId, (&Api, Option<CallId>)> =
            trace.calls.iter().map(|call| (call.id, (&call.api, call.parent))).collect();
        let mut seen = BTreeSet::new();
        for call in trace.calls.iter().filter(|call| apis.contains(&call.api)) {
            let mut next = call.parent;
            // A call seen before has had its ancestors added; this also ends the walk in a malformed trace with a cycle.
            while let Some(id) = next.filter(|id| seen.insert(*id)) {
                let Some((api, parent)) = calls.get(&id) else { break };
                found.insert((*api).clone());
                next = *parent;
            }
        }
    }
    found
}

/// What a plan is resolved against.
struct Surroundings<'a> {
    plan: &'a Plan,
    instances: &'a Instances,
    traces: &'a [Trace],
    /// Callers by Api; `None` is the outside, where no sidecar saw a caller.
    callers: BTreeMap<&'a Api, BTreeSet<Option<&'a Service>>>,
    services: BTreeSet<&'a Service>,
}

impl<'a> Surroundings<'a> {
    fn new(plan: &'a Plan, instances: &'a Instances, traces: &'a [Trace]) -> Self {
        let mut callers: BTreeMap<&Api, BTreeSet<Option<&Service>>> = BTreeMap::new();
        for call in traces.iter().flat_map(|trace| &trace.calls) {
            callers.entry(&call.api).or_default().insert(call.caller.as_ref());
        }
        let services = instances
            .count
            .keys()
            .chain(instances.callees.values().flatten())
            .chain(traces.iter().flat_map(Trace::services))
            .collect();
        Surroundings { plan, instances, traces, callers, services }
    }

    /// What a round is run under besides its plan.
    fn check_circumstances(&self, request: &StartRound) -> Result<(), Refusal> {
        for (index, outcome) in request.outcomes.iter().enumerate() {
            self.check_outcome(outcome, &request.outcomes[..index])
                .map_err(|problem| Refusal::Outcome { index, problem })?;
        }
        if let Some(traffic) = &request.traffic {
            self.check_traffic(traffic).map_err(Refusal::Traffic)?;
        }
        match request.stop {
            Some(stop) if stop.errors_per_million >= MILLION => {
                let found = stop.errors_per_million;
                return Err(Refusal::Stop(format!(
                    "expected less than {MILLION} errors in a million, which none can exceed, found {found}"
                )));
            }
            _ => {}
        }
        match request.arbiter_timeout {
            Some(found) if found.0.is_zero() || found.0 > LONGEST_TIMEOUT => Err(Refusal::ArbiterTimeout(found)),
            _ => Ok(()),
        }
    }

    fn check_outcome(&self, outcome: &OutcomeOverride, before: &[OutcomeOverride]) -> Result<(), String> {
        outcome.check().map_err(|error| error.to_string())?;
        if before.iter().any(|other| other.api == outcome.api) {
            return Err(format!("there is one of `{}` already", outcome.api));
        }
        let service = &outcome.api.service;
        match self.services.contains(service) {
            true => Ok(()),
            false => Err(format!("unknown service `{service}`{}", hint(service.as_str(), self.names()))),
        }
    }

    fn check_traffic(&self, traffic: &TaggedTraffic) -> Result<(), String> {
        let TaggedTraffic { entry, tagging } = traffic;
        if !self.instances.count.contains_key(entry) {
            let registered = self.instances.count.keys().map(Service::as_str);
            return Err(format!("no sidecar of `{entry}` is registered{}", hint(entry.as_str(), registered)));
        }
        let entries: BTreeSet<&str> = self
            .callers
            .iter()
            .filter(|(_, callers)| callers.contains(&None))
            .map(|(api, _)| api.service.as_str())
            .collect();
        if !entries.is_empty() && !entries.contains(entry.as_str()) {
            let hint = hint(entry.as_str(), entries.iter().copied());
            return Err(format!("`{entry}` takes no entry requests in the clean traces of the scenario{hint}"));
        }
        if tagging.per_million == 0 || tagging.per_million > MILLION {
            let found = tagging.per_million;
            return Err(format!("expected 1 to {MILLION} requests in a million, found {found}"));
        }
        for (name, value) in &tagging.headers {
            let well_formed = http::HeaderName::from_bytes(name.as_bytes()).is_ok_and(|parsed| parsed.as_str() == name);
            if !well_formed {
                return Err(format!("expected the name of a header field in lower case, found {name:?}"));
            }
            if http::HeaderValue::from_str(value).is_err() {
                return Err(format!("expected a value that a header field can have for {name:?}"));
            }
        }
        Ok(())
    }

    /// The caller's sidecar cuts, and must know which connections lead to the callee.
    fn check_cut(&self, channel: &Channel, faultable: Option<&BTreeSet<Service>>) -> Result<(), String> {
        let Channel { caller, callee } = channel;
        for service in [caller, callee] {
            if !self.services.contains(service) {
                return Err(format!("unknown service `{service}`{}", hint(service.as_str(), self.names())));
            }
            if let Some(allowed) = faultable.filter(|allowed| !allowed.contains(service)) {
                let allowed = listed_or_none(allowed);
                return Err(format!(
                    "`{service}` is not among the services that this controller lets faults touch: {allowed}"
                ));
            }
        }
        let Instances { count, callees } = self.instances;
        let registered = count.keys().map(Service::as_str);
        if !count.contains_key(caller) {
            let hint = hint(caller.as_str(), registered);
            return Err(format!("no sidecar of `{caller}` is registered, which would cut its connections{hint}"));
        }
        let configured = callees.get(caller).is_some_and(|callees| callees.contains(callee));
        if !configured && !count.contains_key(callee) {
            return Err(format!(
                "the sidecar of `{caller}` does not know which connections lead to `{callee}`: it has no outbound listener \
                 for it, and no sidecar of `{callee}` is registered"
            ));
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &'a str> + Clone + '_ {
        self.services.iter().map(|service| service.as_str())
    }

    fn rule(&self, fault: usize, tfic: &Tfic) -> Result<Rule, Refusal> {
        let target = &tfic.target;
        if target.phase == Phase::Request && target.post_effect {
            return Err(Refusal::PostEffectOfRequest { fault });
        }
        if target.phase == Phase::Request && target.outcome != OutcomeFilter::Any {
            return Err(Refusal::OutcomeOfRequest { fault });
        }
        if tfic.max_injections == MaxInjections::Limited(0) {
            return Err(Refusal::NoInjections { fault });
        }
        let apis = self.apis(fault, &target.api)?;
        if let Some(caller) = &target.caller {
            self.check_service(fault, caller)?;
        }
        self.check_stream(fault, target, &apis)?;
        let (side, service) = self.site(fault, target, &apis)?;
        match self.instances.count.get(&service) {
            None | Some(0) => {
                let known = self.instances.count.keys().map(Service::as_str);
                let hint = hint(service.as_str(), known);
                Err(Refusal::NoSidecarOf { fault, service, hint })
            }
            // Whose passes are numbered by an arbiter is fixed here, whoever comes or goes later (design §3.4).
            Some(instances) => {
                let arbitrated = *instances > 1;
                Ok(Rule { index: fault, service, side, apis, tfic: tfic.clone(), arbitrated })
            }
        }
    }

    /// The Apis of a target or an event; each of a service that is known.
    fn apis(&self, fault: usize, api: &ApiRef) -> Result<BTreeSet<Api>, Refusal> {
        let apis = self.plan.resolve(api).map_err(|unknown| {
            let hint = hint(&unknown.0, self.plan.groups.keys().map(String::as_str));
            Refusal::UnknownGroup { fault, group: unknown.0, hint }
        })?;
        if let (true, ApiRef::Group(group)) = (apis.is_empty(), api) {
            return Err(Refusal::EmptyGroup { fault, group: group.clone() });
        }
        for api in &apis {
            self.check_service(fault, &api.service)?;
        }
        Ok(apis)
    }

    /// A response that is kept back for its outcome has one message.
    fn check_stream(&self, fault: usize, target: &Target, apis: &BTreeSet<Api>) -> Result<(), Refusal> {
        if target.phase == Phase::Request || target.at.is_some() {
            return Ok(());
        }
        let calls = self.traces.iter().flat_map(|trace| &trace.calls);
        let meant = calls.filter(|call| {
            apis.contains(&call.api) && (target.caller.is_none() || target.caller.as_ref() == call.caller.as_ref())
        });
        match meant.filter_map(|call| Some((call.spans().filter_map(|span| span.messages).max()?, &call.api))).max() {
            Some((messages, api)) if messages > 1 => Err(Refusal::Streams { fault, api: api.clone(), messages }),
            _ => Ok(()),
        }
    }

    fn check_service(&self, fault: usize, service: &Service) -> Result<(), Refusal> {
        if self.services.contains(service) {
            return Ok(());
        }
        let hint = hint(service.as_str(), self.names());
        Err(Refusal::UnknownService { fault, service: service.clone(), hint })
    }

    /// Whose sidecar acts, and as which side.
    fn site(&self, fault: usize, target: &Target, apis: &BTreeSet<Api>) -> Result<(Side, Service), Refusal> {
        let callers = self.callers_of(fault, target, apis)?;
        let inside: BTreeSet<&Service> = callers.iter().flatten().copied().collect();
        let caller = match &target.caller {
            Some(caller) if callers.is_empty() || inside.contains(caller) => Some(caller),
            Some(caller) => {
                return Err(Refusal::NotCalledBy {
                    fault,
                    api: target.api.clone(),
                    caller: caller.clone(),
                    callers: who(&callers),
                });
            }
            None if callers.len() > 1 => {
                return Err(Refusal::ManyCallers { fault, api: target.api.clone(), callers: who(&callers) });
            }
            None => inside.first().copied(),
        };
        if let Some(caller) = caller
            && self.instances.count.contains_key(caller)
        {
            return Ok((Side::Caller, caller.clone()));
        }
        let mut services = apis.iter().map(|api| &api.service).collect::<BTreeSet<_>>().into_iter();
        match (services.next(), services.next()) {
            (Some(only), None) => Ok((Side::Callee, only.clone())),
            _ => {
                let services: BTreeSet<&str> = apis.iter().map(|api| api.service.as_str()).collect();
                let services = list(services);
                Err(Refusal::ManyCallees { fault, api: target.api.clone(), services })
            }
        }
    }

    /// Who calls the target: by the traces, or else by the configured outbound listeners. `None` is the outside. Empty
    /// if nothing is known.
    fn callers_of(
        &self,
        fault: usize,
        target: &Target,
        apis: &BTreeSet<Api>,
    ) -> Result<BTreeSet<Option<&'a Service>>, Refusal> {
        if self.traces.is_empty() {
            let calls = |callees: &BTreeSet<Service>| apis.iter().any(|api| callees.contains(&api.service));
            let callers = self.instances.callees.iter().filter(|(_, callees)| calls(callees));
            // That somebody may call a service does not say that it calls this Api, nor that nobody else does.
            return Ok(match target.caller {
                Some(_) => BTreeSet::new(),
                None => callers.map(|(caller, _)| Some(caller)).collect(),
            });
        }
        let callers: BTreeSet<Option<&Service>> =
            apis.iter().filter_map(|api| self.callers.get(api)).flatten().copied().collect();
        if callers.is_empty() {
            let known: Vec<String> = self.callers.keys().map(ToString::to_string).collect();
            let hint = hint(&target.api.to_string(), known.iter().map(String::as_str));
            return Err(Refusal::NeverReached { fault, api: target.api.clone(), hint });
        }
        Ok(callers)
    }

    fn check_atom(&self, fault: usize, atom: &Atom) -> Result<(), Refusal> {
        let mut event = atom.event();
        let apis = self.apis(fault, &event.api)?;
        if let Some(caller) = &event.caller {
            self.check_service(fault, caller)?;
        }
        if !self.plan.has_one_fault_alone() {
            // What another fault or a cut makes end in an error, no clean trace shows.
            event.outcome = OutcomeFilter::Any;
        }
        let counted = CountedEvent { event, apis };
        let happens = |trace: &Trace| trace.steps().iter().any(|step| counted.matches(&step.occurrence()));
        if self.traces.is_empty() || self.traces.iter().any(happens) {
            return Ok(());
        }
        let known: BTreeSet<String> = self.traces.iter().flat_map(|trace| events_like(trace, atom)).collect();
        let hint = hint(&atom.event().to_string(), known.iter().map(String::as_str));
        Err(Refusal::NoSuchEvent { fault, event: atom.event(), hint })
    }
}

/// The events of `trace` in the form of `atom`: with a caller if it names one, with an outcome if it does.
fn events_like(trace: &Trace, atom: &Atom) -> BTreeSet<String> {
    use aftershock_core::event::Outcome;
    let event = |step: &aftershock_core::trace::Step<'_>| Event {
        event: step.event,
        api: ApiRef::Api(step.call.api.clone()),
        caller: step.call.caller.clone().filter(|_| atom.caller.is_some()),
        outcome: match step.outcome {
            Some(Outcome::Ok) if atom.outcome != OutcomeFilter::Any => OutcomeFilter::Ok,
            Some(Outcome::Error) if atom.outcome != OutcomeFilter::Any => OutcomeFilter::Error,
            _ => OutcomeFilter::Any,
        },
    };
    trace.steps().iter().map(|step| event(step).to_string()).collect()
}

/// `; did you mean …?`, or what there is if nothing is near and it is not much.
fn hint<'a>(wanted: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    const FEW: usize = 8;
    match nearest(wanted, known.clone()) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => match known.clone().count() {
            0 => String::new(),
            n if n <= FEW => format!("; known: {}", list(known)),
            _ => String::new(),
        },
    }
}

fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn who(callers: &BTreeSet<Option<&Service>>) -> String {
    let name = |caller: &Option<&Service>| match caller {
        Some(service) => format!("`{service}`"),
        None => "clients without a sidecar".to_owned(),
    };
    callers.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
