//! Rules to arm.

use aftershock_core::event::ApiRef;
use aftershock_core::name::Api;
use aftershock_core::plan::{Fault, MaxInjections, Occurrence, Phase, Rule, Side, Target, Tfic, Unlimited};

/// Does `fault` to the k-th such message of `api`, once in a round: at the sidecar of the caller if one is named, else at
/// that of the callee.
pub(crate) fn rule(caller: Option<&str>, api: &str, k: u32, phase: Phase, fault: Fault) -> Rule {
    let api: Api = api.parse().expect("an Api");
    let caller = caller.map(|name| name.parse().expect("a name"));
    Rule {
        index: 0,
        service: caller.clone().unwrap_or_else(|| api.service.clone()),
        side: if caller.is_some() { Side::Caller } else { Side::Callee },
        apis: [api.clone()].into(),
        arbitrated: false,
        tfic: Tfic::new(Target { caller, ..Target::new(ApiRef::Api(api), Occurrence::Number(k), phase) }, fault),
    }
}

/// Answers the first request to `api` with an error, at the sidecar of the callee.
pub(crate) fn abort(api: &str) -> Rule {
    rule(None, api, 1, Phase::Request, Fault::Abort)
}

/// The same in every execution.
pub(crate) fn everywhere(mut rule: Rule) -> Rule {
    rule.tfic.max_injections = MaxInjections::Unlimited(Unlimited::Unlimited);
    rule
}
