//! Random targets out of clean traces, with guards by the product's generator.

use std::time::Duration;

use aftershock_core::event::ApiRef;
use aftershock_core::plan::{
    ErrorAnswer, Fault, Hold, MaxInjections, Occurrence, Phase, Reset, Target, Tfic, Unlimited,
};
use aftershock_core::trace::{Call, Trace};
use aftershock_generate::{Request, patterns, synthesize};

use crate::random::Random;

/// A temporal fault that the generator found a guard for; none if it says that there is none.
pub(crate) fn draw(random: &mut Random, traces: &[Trace]) -> Result<Tfic, String> {
    let first = &traces[0];
    let call = random.pick(&first.calls).clone();
    let caller = call.client.as_ref().map(|client| client.service.clone());
    if caller.is_none() && call.server.as_ref().is_some_and(|server| server.caller.is_some()) {
        return Err("its caller's span is missing".to_owned());
    }
    let same =
        |other: &&Call| other.api == call.api && other.client.as_ref().map(|client| &client.service) == caller.as_ref();
    let most = traces.iter().map(|trace| trace.calls.iter().filter(same).count()).min().unwrap_or(0) as u64;
    let phase = if random.one_in(2) { Phase::Request } else { Phase::Response };
    let number = random.between(1, most.max(1)) as u32;
    let is_first = random.one_in(4);
    let k = if is_first { Occurrence::First } else { Occurrence::Number(number) };
    let mut request = Request::new(
        Target {
            caller: caller.clone(),
            post_effect: phase == Phase::Response && random.one_in(5),
            ..Target::new(ApiRef::Api(call.api.clone()), k, phase)
        },
        Fault::Drop,
    );
    request.pass = is_first.then_some(number);
    request.max_injections = match random.below(6) {
        0 => MaxInjections::Limited(2),
        1 => MaxInjections::Unlimited(Unlimited::Unlimited),
        _ => MaxInjections::Limited(1),
    };
    if random.one_in(3) {
        let deadline = if random.one_in(4) { 1_000 } else { 3_000 };
        request.hold = Some(Hold { deadline: Duration::from_millis(deadline).into() });
        request.pass = is_first.then_some(1);
        let others: Vec<&Call> = first
            .calls
            .iter()
            .filter(|other| {
                other.api != call.api
                    && other.client.as_ref().map(|client| &client.service) == caller.as_ref()
                    && caller.is_some()
            })
            .collect();
        if !others.is_empty() {
            let other = random.pick(&others);
            request.competing = vec![patterns::competing(other.api.clone(), caller.clone())];
        }
    }
    let grpc = call.api.operation.is_grpc();
    request.fault = match random.below(if request.hold.is_some() { 6 } else { 5 }) {
        0 if request.hold.is_none() => Fault::Delay(Duration::from_millis(350).into()),
        0 | 1 => Fault::Drop,
        2 => Fault::Reset(Reset::default()),
        3 => Fault::Abort,
        4 if grpc => Fault::Error(ErrorAnswer { grpc_status: Some(8), ..ErrorAnswer::default() }),
        4 => Fault::Error(ErrorAnswer { status: Some(429), ..ErrorAnswer::default() }),
        _ => Fault::Release,
    };
    synthesize(&request, traces).map(|made| made.tfic).map_err(|error| error.to_string())
}
