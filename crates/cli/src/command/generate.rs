//! `aftershock generate`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use aftershock_control::api::OracleVerdict;
use aftershock_control::scenario::{ExpectedOracle, FaultExpectation, TemporalFault};
use aftershock_core::duration::Interval;
use aftershock_core::event::{ApiRef, OutcomeFilter};
use aftershock_core::name::{Api, Service, nearest};
use aftershock_core::plan::{
    Atom, ErrorAnswer, Fault, Hold, Occurrence, Pattern, Phase, Plan, StreamPoint, Target, Tfic,
};
use aftershock_core::trace::Trace;
use aftershock_generate::site::Groups;
use aftershock_generate::{Request, Synthesis, acting_side, patterns, synthesize};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{AtControl, Elsewhere};
use crate::Ended;
use crate::output::{self, Format};

/// Synthesize the guard of a fault from clean traces, and write the fault as a file.
///
/// The target is an Api (`SERVICE OPERATION`, or the end of it if that is unambiguous), a phase and an occurrence. The
/// guard is solved for: the smallest condition that is true at the target in every clean trace and false before it.
/// `--from` solves a fault file's guards anew, after the application has changed.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["api", "from"]))]
pub(crate) struct Generate {
    /// The scenario file whose clean traces are used.
    scenario: PathBuf,
    /// What is called: `payment shop.Payment/Charge`, `POST /reserve`, `Charge`.
    #[arg(long)]
    api: Option<String>,
    /// Who calls it, where the traces show several callers.
    #[arg(long)]
    caller: Option<Service>,
    /// Which side of the call.
    #[arg(long, value_enum, default_value_t = PhaseArgument::Response)]
    phase: PhaseArgument,
    /// Which pass: a number from 1, or `first` for the first at which the guard holds.
    #[arg(short, long, default_value = "1", value_parser = occurrence)]
    k: Occurrence,
    /// With `-k first`, the pass of the clean traces that is meant.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pass: Option<u32>,
    /// Only a message with this outcome.
    #[arg(long, value_enum, default_value_t = OutcomeArgument::Any)]
    outcome: OutcomeArgument,
    /// Where in a response of several messages: `head`, `message=2` or `bytes=100`.
    #[arg(long = "at", value_name = "PLACE", value_parser = place)]
    inside: Option<StreamPoint>,
    /// `drop`, `reset`, `abort`, `delay=100ms`, `error=STATUS`, with `--hold` also `release`.
    #[arg(long, default_value = "drop", value_parser = kind_of_fault)]
    fault: Fault,
    /// Which situation to make.
    #[arg(long, value_enum)]
    pattern: Option<PatternArgument>,
    /// A success of this Api must have reached the caller before (order-sensitive).
    #[arg(long, value_name = "API")]
    after: Vec<String>,
    /// Park the message until the guard holds, at most this long.
    #[arg(long, value_name = "DEADLINE")]
    hold: Option<Interval>,
    /// What a round with this fault is expected to find.
    #[arg(long, value_enum, default_value_t = OracleArgument::Held)]
    expect: OracleArgument,
    /// Solve the guards of this fault file anew, and keep the rest of it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["caller", "phase", "k", "pass", "outcome", "inside", "fault", "pattern", "after", "hold", "expect"])]
    from: Option<PathBuf>,
    /// Take clean traces from this file (`aftershock record --out`) instead of the controller.
    #[arg(long, value_name = "FILE")]
    traces: Option<PathBuf>,
    /// Write the fault here instead of stdout.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    elsewhere: Elsewhere,
    /// How the explanation is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    at: AtControl,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PhaseArgument {
    Request,
    Response,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OutcomeArgument {
    Any,
    Ok,
    Error,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PatternArgument {
    /// The effect happened, its answer is lost.
    PostEffect,
    /// A competing answer was seen first; name it with `--after`.
    OrderSensitive,
    /// One of several alike occurrences.
    KOfN,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OracleArgument {
    Violated,
    Unavailable,
    Held,
}

fn occurrence(text: &str) -> Result<Occurrence, String> {
    match text.parse() {
        Ok(k) if k > 0 => Ok(Occurrence::Number(k)),
        _ if text == "first" => Ok(Occurrence::First),
        _ => Err("expected a number from 1, or `first`".to_owned()),
    }
}

fn place(text: &str) -> Result<StreamPoint, String> {
    let found = match text.split_once('=') {
        None if text == "head" => Some(StreamPoint::Head),
        Some(("message", n)) => n.parse().ok().filter(|n| *n > 0).map(StreamPoint::Message),
        Some(("bytes", n)) => n.parse().ok().map(StreamPoint::Bytes),
        _ => None,
    };
    found.ok_or_else(|| "expected head, message=N from 1, or bytes=N".to_owned())
}

fn kind_of_fault(text: &str) -> Result<Fault, String> {
    let expected = || "expected drop, reset, abort, release, delay=100ms or error=STATUS".to_owned();
    match text.split_once('=') {
        None => match text {
            "drop" => Ok(Fault::Drop),
            "reset" => Ok(Fault::Reset(Default::default())),
            "abort" => Ok(Fault::Abort),
            "release" => Ok(Fault::Release),
            _ => Err(expected()),
        },
        Some(("delay", time)) => time.parse().map(Fault::Delay).map_err(|error| format!("{error}")),
        Some(("error", status)) => match status.parse::<u16>() {
            // gRPC codes end where HTTP status codes have not begun.
            Ok(code @ 1..=16) => {
                Ok(Fault::Error(ErrorAnswer { grpc_status: Some(code as u8), ..ErrorAnswer::default() }))
            }
            Ok(status @ 200..=599) => Ok(Fault::Error(ErrorAnswer { status: Some(status), ..ErrorAnswer::default() })),
            _ => Err("expected an HTTP status (200 to 599) or a gRPC status (1 to 16)".to_owned()),
        },
        Some(_) => Err(expected()),
    }
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    faults: &'a [Synthesis],
    file: &'a str,
}

impl Generate {
    pub(crate) async fn run(self) -> anyhow::Result<Ended> {
        let scenario = super::scenario(&self.scenario, &self.elsewhere)?;
        let traces = match &self.traces {
            Some(path) => super::traces(path)?,
            None => self.at.client()?.traces(&scenario.name).await?,
        };
        if traces.is_empty() {
            bail!("there are no clean traces of scenario {}; record some: aftershock record", &scenario.name);
        }
        let mut file = match &self.from {
            Some(path) => super::fault(path)?,
            None => self.file(&scenario.name, &traces)?,
        };
        scenario.check(&file)?;
        let mut syntheses = Vec::new();
        for index in 0..file.plan.faults.len() {
            let synthesis = match &self.from {
                Some(_) => resolve(&file, index, self.pass, &traces)?,
                // The guard so far is what `--after` asks for, with any pattern or none.
                None => solve(&file, index, self.pass, file.plan.faults[index].guard.after.clone(), &traces)?,
            };
            file.plan.faults[index] = synthesis.tfic.clone();
            syntheses.push(synthesis);
        }
        let text = file.to_yaml()?;
        // What is written here must be accepted by `inject`: a status of the wrong protocol, for example, is not.
        TemporalFault::parse("the generated file", &text).context("failed to make a fault that can be injected")?;
        if let Some(path) = &self.out {
            std::fs::write(path, &text).with_context(|| format!("failed to write {}", path.display()))?;
        }
        match self.format {
            Format::Json => {
                output::json(&Report { schema: "aftershock.dev/generate/v1", faults: &syntheses, file: &text })?;
            }
            Format::Human => {
                for synthesis in &syntheses {
                    output::remark(synthesis.lines().join("\n"));
                }
                match &self.out {
                    Some(path) => output::remark(format!("written to {}", path.display())),
                    None => output::line(text.trim_end()),
                }
            }
        }
        Ok(Ended::AsExpected)
    }

    /// The fault file that the arguments ask for, its guard still to be solved.
    fn file(&self, scenario: &str, traces: &[Trace]) -> anyhow::Result<TemporalFault> {
        let wanted = self.api.as_deref().expect("clap asks for --api or --from");
        let api = find(wanted, traces)?;
        let phase = match self.phase {
            PhaseArgument::Request => Phase::Request,
            PhaseArgument::Response => Phase::Response,
        };
        let outcome = match self.outcome {
            OutcomeArgument::Any => OutcomeFilter::Any,
            OutcomeArgument::Ok => OutcomeFilter::Ok,
            OutcomeArgument::Error => OutcomeFilter::Error,
        };
        let pattern = self.pattern.map(|pattern| match pattern {
            PatternArgument::PostEffect => Pattern::PostEffect,
            PatternArgument::OrderSensitive => Pattern::OrderSensitive,
            PatternArgument::KOfN => Pattern::KOfN,
        });
        let target = Target {
            caller: self.caller.clone(),
            k: self.k,
            phase,
            outcome,
            at: self.inside,
            post_effect: pattern == Some(Pattern::PostEffect),
            api: ApiRef::Api(api.clone()),
        };
        // A competing answer counts where the target is: at its caller.
        let caller = acting_side(&target, &Groups::new(), traces)?.caller;
        let competing: Vec<Atom> = self
            .after
            .iter()
            .map(|text| Ok(patterns::competing(find(text, traces)?, caller.clone())))
            .collect::<anyhow::Result<_>>()?;
        let tfic = Tfic {
            target,
            fault: self.fault.clone(),
            pattern,
            guard: aftershock_core::plan::Guard { after: competing },
            hold: self.hold.map(|deadline| Hold { deadline }),
            max_injections: Default::default(),
        };
        let oracle = match self.expect {
            OracleArgument::Violated => OracleVerdict::Violated,
            OracleArgument::Unavailable => OracleVerdict::Unavailable,
            OracleArgument::Held => OracleVerdict::Held,
        };
        let name = format!("{}-{}-{}", self.fault, phase, api.short());
        let plan = Plan { faults: vec![tfic], ..Plan::default() };
        let expect = FaultExpectation { oracle: ExpectedOracle(oracle), ..FaultExpectation::default() };
        Ok(TemporalFault::new(&slug(&name), scenario, plan, expect))
    }
}

/// Solve the guard of one fault of a file anew. What a hand-written guard of an order-sensitive fault names are its
/// competing events; every other guard is solved for from nothing.
pub(crate) fn resolve(
    file: &TemporalFault,
    index: usize,
    pass: Option<u32>,
    traces: &[Trace],
) -> anyhow::Result<Synthesis> {
    let tfic = &file.plan.faults[index];
    let competing = if tfic.pattern == Some(Pattern::OrderSensitive) { tfic.guard.after.clone() } else { Vec::new() };
    solve(file, index, pass, competing, traces)
}

/// Solve the guard of one fault of a file, with its competing events.
fn solve(
    file: &TemporalFault,
    index: usize,
    pass: Option<u32>,
    competing: Vec<Atom>,
    traces: &[Trace],
) -> anyhow::Result<Synthesis> {
    let tfic = &file.plan.faults[index];
    let mut request = Request::new(tfic.target.clone(), tfic.fault.clone());
    request.pattern = tfic.pattern;
    request.pass = pass;
    request.hold = tfic.hold.clone();
    request.max_injections = tfic.max_injections;
    request.groups = file.plan.groups.clone();
    request.competing = competing;
    request.other_faults = file
        .plan
        .faults
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index)
        .map(|(_, tfic)| tfic.clone())
        .collect();
    Ok(synthesize(&request, traces)?)
}

/// The Api of the traces that `wanted` names: in full, by its operation, or by the end of it.
fn find(wanted: &str, traces: &[Trace]) -> anyhow::Result<Api> {
    let known: BTreeSet<&Api> = traces.iter().flat_map(|trace| trace.calls.iter().map(|call| &call.api)).collect();
    let fits = |api: &&&Api| api.to_string() == wanted || api.operation.as_str() == wanted || api.short() == wanted;
    let found: Vec<&&Api> = known.iter().filter(fits).collect();
    match found[..] {
        [api] => Ok((*api).clone()),
        [] => {
            let names: Vec<String> = known.iter().map(|api| api.to_string()).collect();
            let near = nearest(wanted, names.iter().map(String::as_str)).or_else(|| {
                known
                    .iter()
                    .find(|api| nearest(wanted, [api.short()]).is_some())
                    .and_then(|api| names.iter().find(|name| **name == api.to_string()).map(String::as_str))
            });
            match near {
                Some(near) => bail!("no clean trace calls {wanted:?}; did you mean `{near}`?"),
                None => bail!("no clean trace calls {wanted:?}; they call:\n  {}", names.join("\n  ")),
            }
        }
        _ => {
            let names: Vec<String> = found.iter().map(|api| api.to_string()).collect();
            bail!("{wanted:?} is ambiguous:\n  {}", names.join("\n  "))
        }
    }
}

/// A name for a file: lower case, words joined by hyphens.
fn slug(text: &str) -> String {
    let words: Vec<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}
