//! The laboratory's four cases: a topology, a scenario, a fault, each in a file of the repository, built in so that the
//! demo needs nothing but this binary.

use aftershock_control::scenario::{Scenario, TemporalFault};
use aftershock_lab::Topology;
use aftershock_lab::truth::Question;

/// One case.
pub(crate) struct Case {
    /// Its name in reports.
    pub(crate) id: &'static str,
    /// What happens, in a sentence.
    pub(crate) story: &'static str,
    topology: (&'static str, &'static str),
    scenario: (&'static str, &'static str),
    fault: (&'static str, &'static str),
    /// What the lab's own logs and ledgers must say of a round in which the fault was injected.
    pub(crate) truth: fn() -> Vec<Question>,
}

macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../", $path)))
    };
}

/// Every case, in the order of the demo.
pub(crate) const ALL: &[Case] = &[
    Case {
        id: "payment-post-effect",
        story: "Online Boutique: the charge is made, its answer is lost, the client tries again",
        topology: file!("topologies/online-boutique.yaml"),
        scenario: file!("scenarios/online-boutique/checkout.yaml"),
        fault: file!("scenarios/online-boutique/lost-charge.yaml"),
        truth: || vec![],
    },
    Case {
        id: "fig2a-post-effect",
        story: "an effect whose answer is lost: the checkout service itself charges again",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/checkout.yaml"),
        fault: file!("scenarios/fig2-patterns/double-charge.yaml"),
        truth: || vec![],
    },
    Case {
        id: "fig2b-order-sensitive",
        story: "a race decided the other way: success is told before the refusal is seen",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/signup.yaml"),
        fault: file!("scenarios/fig2-patterns/success-before-risk.yaml"),
        truth: || vec![],
    },
    Case {
        id: "fig2c-k-of-n",
        story: "the third of four concurrent answers is lost",
        topology: file!("topologies/fig2-patterns.yaml"),
        scenario: file!("scenarios/fig2-patterns/page.yaml"),
        fault: file!("scenarios/fig2-patterns/third-product.yaml"),
        truth: || vec![],
    },
];

impl Case {
    /// The topology's name: cases that share it share a running lab.
    pub(crate) fn topology_name(&self) -> &'static str {
        self.topology.0
    }

    pub(crate) fn topology(&self) -> anyhow::Result<Topology> {
        Ok(Topology::parse(self.topology.0, self.topology.1)?)
    }

    pub(crate) fn scenario(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(self.scenario.0, self.scenario.1)?)
    }

    pub(crate) fn fault(&self) -> anyhow::Result<TemporalFault> {
        Ok(TemporalFault::parse(self.fault.0, self.fault.1)?)
    }
}
