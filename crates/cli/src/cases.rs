//! Cases to evaluate: a topology, a scenario, a fault, each in a file. The laboratory's own are files of the repository,
//! built in so that the demo needs nothing but this binary.

use std::time::Duration;

use aftershock_control::api::Verdict;
use aftershock_control::scenario::{Scenario, TemporalFault};
use aftershock_core::event::ApiRef;
use aftershock_core::plan::Plan;
use aftershock_lab::topology::Service;
use aftershock_lab::truth::{Fate, Question, Window};
use aftershock_lab::{RunningLab, Topology};
use anyhow::{Context, bail};

/// A file: its name, for messages, and its text.
pub(crate) type File<'a> = (&'a str, &'a str);

/// One case.
pub(crate) struct Case<'a> {
    /// Its name in reports.
    pub(crate) id: &'a str,
    /// What happens, in a sentence.
    pub(crate) story: &'a str,
    pub(crate) topology: File<'a>,
    pub(crate) scenario: File<'a>,
    pub(crate) fault: File<'a>,
    /// The request of the topology that ordinary traffic is made of.
    pub(crate) ordinary: Option<&'a str>,
    /// What the lab's own logs and ledgers must say of a round in which the fault was injected, beyond that it was in its
    /// window and alone.
    pub(crate) truth: fn() -> Vec<Question>,
}

/// How long the lab's services may take to end what a round left running, before they are asked.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(5);

macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../", $path)))
    };
}

/// Every case, those of the demo first.
pub(crate) const ALL: &[Case<'static>] = &[
    Case {
        id: "payment-post-effect",
        story: "Online Boutique: the charge is made, its answer is lost, the client tries again",
        topology: file!("topologies/online-boutique.yaml"),
        scenario: file!("scenarios/online-boutique/checkout.yaml"),
        fault: file!("scenarios/online-boutique/lost-charge.yaml"),
        ordinary: Some("checkout"),
        truth: || {
            vec![
                Question::lost_after_effect("Charge", "charges"),
                Question::entries("charges", 2),
                Question::entries("shipments", 1),
            ]
        },
    },
    Case {
        id: "fig2a-post-effect",
        story: "an effect whose answer is lost: the checkout service itself charges again",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/checkout.yaml"),
        fault: file!("scenarios/fig2-patterns/double-charge.yaml"),
        ordinary: Some("checkout"),
        truth: || vec![Question::lost_after_effect("ChargeCard", "charges"), Question::entries("charges", 2)],
    },
    Case {
        id: "fig2b-order-sensitive",
        story: "a race decided the other way: success is told before the refusal is seen",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/signup.yaml"),
        fault: file!("scenarios/fig2-patterns/success-before-risk.yaml"),
        ordinary: Some("signup"),
        truth: || vec![Question::received_in_order("signup", "CreateUser", "RiskCheck"), Question::entries("users", 1)],
    },
    Case {
        id: "fig2c-k-of-n",
        story: "the third of four concurrent answers is lost",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/page.yaml"),
        fault: file!("scenarios/fig2-patterns/third-product.yaml"),
        ordinary: Some("page"),
        // Which answer it was is the window: with several instances the order of sending is not that of arriving.
        truth: Vec::new,
    },
    Case {
        id: "fan-k-of-n",
        story: "six workers store an item each: the third is stored and its worker told that it was not",
        topology: file!("topologies/fan.yaml"),
        scenario: file!("scenarios/fan/batch.yaml"),
        fault: file!("scenarios/fan/third-store.yaml"),
        ordinary: Some("batch"),
        truth: || vec![Question::only_fault("put_item", Fate::ResponseReplaced), Question::entries("items", 10)],
    },
];

/// Those that the demo shows.
pub(crate) const SHOWN: usize = 4;

/// The subnet that the scenario files are written for; `aftershock lab up` uses it by default.
pub(crate) const SUBNET: [u8; 3] = [127, 77, 1];

impl Case<'_> {
    /// The topology's name: cases that share it share a running lab.
    pub(crate) fn topology_name(&self) -> &str {
        self.topology.0
    }

    pub(crate) fn topology(&self) -> anyhow::Result<Topology> {
        Ok(Topology::parse(self.topology.0, self.topology.1)?)
    }

    /// The scenario, on the addresses of a running lab; requests take the instances of its entry in turn.
    pub(crate) fn scenario(&self, lab: &RunningLab) -> anyhow::Result<Scenario> {
        let service = &lab.topology().services()[0].name;
        let Some(std::net::IpAddr::V4(address)) = lab.address(service).map(|address| address.ip()) else {
            bail!("the lab has no IPv4 address for {service}");
        };
        let prefix = |[a, b, c]: [u8; 3]| format!("{a}.{b}.{c}.");
        let [a, b, c, _] = address.octets();
        let text = self.scenario.1.replace(&prefix(SUBNET), &prefix([a, b, c]));
        let mut scenario = Scenario::parse(self.scenario.0, &text)?;
        // Its file names the first instance of its entry.
        let named: Vec<String> = scenario.entry.iter().map(ToString::to_string).collect();
        let url = |address: std::net::SocketAddr| format!("http://{address}");
        let is_entry = |service: &&Service| lab.address(&service.name).is_some_and(|first| named.contains(&url(first)));
        if let Some(entry) = lab.topology().services().iter().find(is_entry) {
            let all: Vec<String> = lab.addresses(&entry.name).into_iter().map(url).collect();
            scenario.relocate(&all, &[])?;
        }
        Ok(scenario)
    }

    pub(crate) fn fault(&self) -> anyhow::Result<TemporalFault> {
        Ok(TemporalFault::parse(self.fault.0, self.fault.1)?)
    }
}

/// What the lab's own logs must say of the faults of a plan: each in its window, and nothing else.
pub(crate) fn windows(lab: &RunningLab, plan: &Plan) -> anyhow::Result<Vec<Question>> {
    let window = |index: usize| {
        // One instance on either side and gRPC: one connection carries all passes of the target.
        let grpc = match &plan.faults[index].target.api {
            ApiRef::Api(api) => api.operation.is_grpc(),
            ApiRef::Group(_) => false,
        };
        let ordered = grpc && lab.replicas() == 1;
        let window = Window::of(lab.topology(), plan, index, ordered);
        let window = window.with_context(|| format!("the lab cannot judge fault {}", index + 1))?;
        Ok(Question::Window(Box::new(window)))
    };
    (0..plan.faults.len()).map(window).collect()
}

/// What the lab's own logs and ledgers hold against the claim that all of `truth` is so in the round with this key.
/// Nothing if they agree.
pub(crate) async fn contradictions(lab: &RunningLab, key: &str, truth: &[Question]) -> anyhow::Result<Vec<String>> {
    let found = lab.judge(key, truth, SETTLED_WITHIN).await;
    let found = found.context("failed to read the lab's event logs")?;
    Ok(found.iter().map(ToString::to_string).collect())
}

/// Whether a verdict and the logs say different things: `injected` although they contradict it, or a verdict that denies
/// it although the mark of the fault is there. `incomplete` and `inconclusive` say that it is not known, and that a fault
/// whose mark can come about by itself was missed is not for the logs to say.
pub(crate) fn disagrees(verdict: Verdict, contradictions: &[String], truth: &[Question]) -> bool {
    let unmistakable = |question: &Question| match question {
        Question::Window(window) => window.is_unmistakable(),
        _ => false,
    };
    match verdict {
        Verdict::Injected => !contradictions.is_empty(),
        Verdict::Missed | Verdict::Unreached | Verdict::Premature | Verdict::Multiple => {
            contradictions.is_empty() && truth.iter().any(unmistakable)
        }
        Verdict::Incomplete | Verdict::Inconclusive | Verdict::Clean => false,
    }
}
