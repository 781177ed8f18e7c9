//! The `kind: TemporalFault` file: one or more faults armed together, and what a round with them must find.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aftershock_core::event::{ApiRef, OutcomeFilter};
use aftershock_core::name::{Api, nearest};
use aftershock_core::plan::{Channel, Fault, MaxInjections, Phase, Plan, Tfic};
use aftershock_core::yaml::{self, API_VERSION, Located, Location, Spanned, WriteError};
use http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::check::Expectation;
use super::file::Metadata;
use super::invariant::Invariant;
use super::{Source, TEMPORAL_FAULT, listed};
use crate::api::OracleVerdict;

/// A temporal fault: a plan for one round of a scenario, and what that round must find.
///
/// Equality is that of what the file says, whatever its layout.
#[derive(Debug, Clone)]
pub struct TemporalFault {
    /// Its name.
    pub name: String,
    /// The scenario that it is written for.
    pub scenario: Spanned<String>,
    /// What is armed.
    pub plan: Plan,
    /// What a round must find.
    pub expect: FaultExpectation,
    file: String,
    text: String,
}

impl PartialEq for TemporalFault {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.scenario, &self.plan, &self.expect)
            == (&other.name, &other.scenario, &other.plan, &other.expect)
    }
}

/// What a round with a fault must find.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultExpectation {
    /// The oracle's finding; `held` if left out.
    #[serde(default = "held")]
    pub oracle: ExpectedOracle,
    /// With `oracle: violated`: exactly these invariants are broken, by their names. Any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violates: Option<Vec<Spanned<String>>>,
    /// Expectations that replace those of the scenario's requests, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Spanned<Expectation>>,
    /// Invariants that replace the scenario's, or are checked beside them: `{also: […]}`.
    #[serde(default, skip_serializing_if = "Declared::is_as_scenario")]
    pub invariants: Declared,
}

/// The finding that is expected; [`OracleVerdict::Held`] by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ExpectedOracle(pub OracleVerdict);

impl Default for ExpectedOracle {
    fn default() -> Self {
        held()
    }
}

fn held() -> ExpectedOracle {
    ExpectedOracle(OracleVerdict::Held)
}

/// The invariants of a round under a fault.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Declared {
    /// Those of the scenario.
    #[default]
    AsScenario,
    /// These, in place of the scenario's.
    Instead(Vec<Spanned<Invariant>>),
    /// These beside the scenario's.
    Also(Vec<Spanned<Invariant>>),
}

impl Declared {
    fn is_as_scenario(&self) -> bool {
        *self == Declared::AsScenario
    }
}

impl Serialize for Declared {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Declared::AsScenario => s.serialize_none(),
            Declared::Instead(invariants) => invariants.serialize(s),
            Declared::Also(invariants) => BTreeMap::from([("also", invariants)]).serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Declared {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct DeclaredVisitor;

        impl<'de> Visitor<'de> for DeclaredVisitor {
            type Value = Declared;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of invariants, or `{also: […]}`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Declared, A::Error> {
                Deserialize::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Declared::Instead)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Declared, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Also {
                    also: Vec<Spanned<Invariant>>,
                }
                let also = Also::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Declared::Also(also.also))
            }
        }

        d.deserialize_any(DeclaredVisitor)
    }
}

impl JsonSchema for Declared {
    fn schema_name() -> Cow<'static, str> {
        "DeclaredInvariants".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let list = generator.subschema_for::<Vec<Invariant>>();
        schemars::json_schema!({
            "description": "invariants in place of the scenario's, or `{also: […]}` beside them",
            "oneOf": [
                list,
                {"type": "object", "properties": {"also": list}, "required": ["also"], "additionalProperties": false}
            ]
        })
    }
}

/// A temporal fault: a target, a guard and a fault, or several; and what a round with it must find.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TemporalFaultFile {
    /// `aftershock.dev/v1alpha1`.
    #[serde(rename = "apiVersion")]
    #[schemars(extend("const" = API_VERSION))]
    #[expect(dead_code, reason = "checked before this is read")]
    api_version: String,
    /// `TemporalFault`.
    #[schemars(extend("const" = TEMPORAL_FAULT))]
    #[expect(dead_code, reason = "checked before this is read")]
    kind: String,
    /// Its name.
    metadata: Metadata,
    /// What it does.
    spec: Spec,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TemporalFaultSpec")]
struct Spec {
    /// The name of the scenario that this is written for.
    scenario: Spanned<String>,
    /// The faults, armed together. There may be none beside `cuts`.
    #[serde(default)]
    faults: Spanned<Vec<Tfic>>,
    /// Named sets of Apis whose counts are pooled, for `group:NAME`.
    #[serde(default)]
    groups: BTreeMap<String, Spanned<BTreeSet<Api>>>,
    /// Channels that are cut from arming to disarming: open connections are broken, new ones refused. They carry ordinary
    /// calls, too, which fail as well.
    #[serde(default)]
    cuts: Vec<Spanned<Channel>>,
    /// What a round with this fault must find.
    #[serde(default)]
    expect: FaultExpectation,
}

/// The same file, written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    kind: &'a str,
    metadata: WrittenMetadata<'a>,
    spec: WrittenSpec<'a>,
}

#[derive(Serialize)]
struct WrittenMetadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct WrittenSpec<'a> {
    scenario: &'a str,
    faults: &'a [Tfic],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    groups: &'a BTreeMap<String, BTreeSet<Api>>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    cuts: &'a BTreeSet<Channel>,
    expect: &'a FaultExpectation,
}

/// Where the parts of a fault stand: the typed values of `core` do not know it.
#[derive(Debug, Deserialize)]
struct Places {
    spec: SpecPlaces,
}

#[derive(Debug, Deserialize)]
struct SpecPlaces {
    #[serde(default)]
    faults: Vec<FaultPlaces>,
}

#[derive(Debug, Deserialize)]
struct FaultPlaces {
    target: TargetPlaces,
    fault: Spanned<Value>,
    #[serde(default)]
    guard: GuardPlaces,
    #[serde(default)]
    hold: Spanned<Value>,
    #[serde(default)]
    max_injections: Spanned<Value>,
}

#[derive(Debug, Deserialize)]
struct TargetPlaces {
    api: Spanned<Value>,
    #[serde(default)]
    outcome: Spanned<Value>,
    #[serde(default)]
    at: Spanned<Value>,
    #[serde(default)]
    post_effect: Spanned<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct GuardPlaces {
    #[serde(default)]
    after: Vec<AtomPlaces>,
}

#[derive(Debug, Deserialize)]
struct AtomPlaces {
    api: Spanned<Value>,
    #[serde(default)]
    outcome: Spanned<Value>,
    count: Spanned<Value>,
}

impl TemporalFault {
    /// A fault that is in no file yet.
    pub fn new(name: &str, scenario: &str, plan: Plan, expect: FaultExpectation) -> Self {
        TemporalFault {
            name: name.to_owned(),
            scenario: scenario.to_owned().into(),
            plan,
            expect,
            file: format!("{name}.yaml"),
            text: String::new(),
        }
    }

    /// Reads `text`, the contents of `file`.
    ///
    /// # Errors
    /// Located: what was expected, and where.
    pub fn parse(file: &str, text: &str) -> Result<Self, Located> {
        let raw: TemporalFaultFile = yaml::from_str_as(TEMPORAL_FAULT, file, text)?;
        let places: Places = yaml::from_str(file, text)?;
        let source = Source { file, text };
        source.named(&raw.metadata.name, "the fault")?;
        let spec = raw.spec;
        if spec.faults.is_empty() && spec.cuts.is_empty() {
            let place = spec.faults.location.or(spec.scenario.location);
            return Err(Located::at(
                file,
                text,
                place,
                "expected at least one fault, or a channel under `cuts`".to_owned(),
            ));
        }
        let mut cuts = BTreeSet::new();
        for channel in spec.cuts {
            if !cuts.insert(channel.value.clone()) {
                return Err(source.at(&channel, format!("expected each channel once, found {} again", channel.value)));
            }
        }
        for (name, apis) in &spec.groups {
            if apis.is_empty() {
                return Err(source.at(apis, format!("expected at least one Api in the group `{name}`")));
            }
        }
        let groups = spec.groups.into_iter().map(|(name, apis)| (name, apis.value)).collect();
        let plan = Plan { faults: spec.faults.value, groups, cuts };
        for (tfic, places) in plan.faults.iter().zip(&places.spec.faults) {
            check(&source, &plan, tfic, places)?;
        }
        if let Err((fault, why)) = plan.check_points() {
            let place = places.spec.faults.get(fault).and_then(|places| places.target.at.location);
            return Err(Located::at(file, text, place, why.to_string()));
        }
        if let Some(first) = spec.expect.violates.iter().flatten().next()
            && spec.expect.oracle.0 != OracleVerdict::Violated
        {
            return Err(source.at(first, "expected `violates` only beside `oracle: violated`"));
        }
        Ok(TemporalFault {
            name: raw.metadata.name.value,
            scenario: spec.scenario,
            plan,
            expect: spec.expect,
            file: file.to_owned(),
            text: text.to_owned(),
        })
    }

    /// The file that [`TemporalFault::parse`] reads back.
    ///
    /// # Errors
    /// None that a parsed fault can cause.
    pub fn to_yaml(&self) -> Result<String, WriteError> {
        yaml::to_string(&Written {
            api_version: API_VERSION,
            kind: TEMPORAL_FAULT,
            metadata: WrittenMetadata { name: &self.name },
            spec: WrittenSpec {
                scenario: &self.scenario,
                faults: &self.plan.faults,
                groups: &self.plan.groups,
                cuts: &self.plan.cuts,
                expect: &self.expect,
            },
        })
    }

    /// The finding that a round with this fault must have.
    pub fn expected_oracle(&self) -> OracleVerdict {
        self.expect.oracle.0
    }

    pub(super) fn source(&self) -> Source<'_> {
        Source { file: &self.file, text: &self.text }
    }
}

/// What the types of `core` admit and no sidecar can do, or means nothing.
fn check(source: &Source<'_>, plan: &Plan, tfic: &Tfic, places: &FaultPlaces) -> Result<(), Located> {
    let at = |place: Option<Location>, message: String| Err(Located::at(source.file, source.text, place, message));
    let target = &tfic.target;
    known_group(source, plan, &target.api, &places.target.api)?;
    if target.phase == Phase::Request && target.post_effect {
        return at(places.target.post_effect.location, "expected `post_effect` only with `phase: response`".to_owned());
    }
    if target.phase == Phase::Request && target.outcome != OutcomeFilter::Any {
        return at(places.target.outcome.location, "expected no `outcome`: a request has none".to_owned());
    }
    if target.post_effect && target.outcome == OutcomeFilter::Error {
        return at(places.target.outcome.location, "expected no `outcome: error` beside `post_effect`".to_owned());
    }
    for (atom, place) in tfic.guard.after.iter().zip(&places.guard.after) {
        known_group(source, plan, &atom.api, &place.api)?;
        if !atom.event.is_response() && atom.outcome != OutcomeFilter::Any {
            return at(place.outcome.location, format!("expected no `outcome`: {} has none", atom.event));
        }
        if atom.count == 0 {
            return at(
                place.count.location,
                "expected a count from 1, found 0: every event has happened never".to_owned(),
            );
        }
    }
    if let Some(hold) = &tfic.hold
        && hold.deadline.0.is_zero()
    {
        return at(places.hold.location, "expected a deadline above zero: nothing is held for no time".to_owned());
    }
    if tfic.fault == Fault::Release && tfic.hold.is_none() {
        let message = "expected `hold` beside `release`: only what is held can be let go";
        return at(places.fault.location, message.to_owned());
    }
    if tfic.max_injections == MaxInjections::Limited(0) {
        let message = "expected a number from 1 or `unlimited`, found 0: the fault could never fire";
        return at(places.max_injections.location, message.to_owned());
    }
    if let Err(message) = answer_fits(plan, tfic) {
        return at(places.fault.location, message);
    }
    Ok(())
}

fn known_group(source: &Source<'_>, plan: &Plan, api: &ApiRef, place: &Spanned<Value>) -> Result<(), Located> {
    let ApiRef::Group(name) = api else { return Ok(()) };
    if plan.groups.contains_key(name) {
        return Ok(());
    }
    let names: Vec<&str> = plan.groups.keys().map(String::as_str).collect();
    let near = nearest(name, names.iter().copied()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    Err(source.at(place, format!("unknown group `{name}`, expected one of {}{near}", listed(&names))))
}

/// Whether an `error` answer can be made for every Api of the target.
fn answer_fits(plan: &Plan, tfic: &Tfic) -> Result<(), String> {
    let Fault::Error(answer) = &tfic.fault else { return Ok(()) };
    let apis = plan.resolve(&tfic.target.api).unwrap_or_default();
    let (grpc, http): (Vec<&Api>, Vec<&Api>) = apis.iter().partition(|api| api.operation.is_grpc());
    if let Some(status) = answer.status
        && !(200..=599).contains(&status)
    {
        return Err(format!("expected a `status` from 200 to 599, found {status}"));
    }
    if let Some(status) = answer.grpc_status
        && !(1..=16).contains(&status)
    {
        return Err(format!("expected a `grpc_status` from 1 to 16, found {status}"));
    }
    if let Some(api) = http.first()
        && (answer.grpc_status.is_some() || answer.grpc_message.is_some())
    {
        return Err(format!("expected `status` and no gRPC status: {api} is HTTP"));
    }
    if let Some(api) = grpc.first()
        && (answer.status.is_some() || !answer.body.is_empty())
    {
        return Err(format!("expected `grpc_status`, no `status` and no `body`: {api} is gRPC"));
    }
    for (name, value) in &answer.headers {
        if name.parse::<HeaderName>().is_err() || HeaderValue::from_str(value).is_err() {
            return Err(format!("expected a header field, found `{}`", format_args!("{name}: {value}")));
        }
    }
    Ok(())
}
