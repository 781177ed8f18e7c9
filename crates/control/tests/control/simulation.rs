//! Whole rounds without time and sockets.

use aftershock_control::api::Verdict;
use aftershock_control::simulation::Simulation;
use aftershock_core::hop::Keyring;
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::span::CallSpan;
use aftershock_core::trace::Trace;
use aftershock_core::wire::{Ask, FromController, FromSidecar, Ruling};

use crate::sidecar::hello;
use crate::spans::{charge_client, charge_server, dropped_charge, entry};
use crate::*;

const TOKEN: Token = Token(7);

/// Sidecars that acknowledge, confirm and flush at once; what they are told besides is returned.
fn answered(simulation: &mut Simulation, observers: &[ObserverId]) -> Vec<(ObserverId, FromController)> {
    let mut rest = Vec::new();
    loop {
        let said: Vec<_> = observers.iter().flat_map(|o| simulation.outbox(*o).into_iter().map(|m| (*o, m))).collect();
        if said.is_empty() {
            return rest;
        }
        for (observer, message) in said {
            let answer = match &message {
                FromController::Arm(arm) => FromSidecar::Armed { token: arm.token },
                FromController::Disarm { token } => FromSidecar::Disarmed { token: *token },
                FromController::Watch { token } => FromSidecar::Activity { token: *token, begun: 1, open: vec![] },
                FromController::Flush { id } => {
                    FromSidecar::Flushed { id: *id, exported: 0, lost: 0, lost_of: [].into() }
                }
                _ => {
                    rest.push((observer, message));
                    continue;
                }
            };
            assert!(simulation.hear(observer, answer));
        }
    }
}

fn round(simulation: &mut Simulation, observers: &[ObserverId], plan: Plan, traces: &[Trace]) {
    simulation.start(TOKEN, start_of("checkout", plan), traces).unwrap();
    assert!(!simulation.is_armed(TOKEN), "nobody has acknowledged");
    answered(simulation, observers);
    assert!(simulation.is_armed(TOKEN));
}

fn finished(simulation: &mut Simulation, observers: &[ObserverId], spans: Vec<CallSpan>) -> Finished {
    simulation.disarm(TOKEN);
    answered(simulation, observers);
    assert!(simulation.is_over(TOKEN));
    simulation.collect(spans);
    simulation.flush(TOKEN);
    assert!(!simulation.is_flushed(TOKEN));
    answered(simulation, observers);
    assert!(simulation.is_flushed(TOKEN) && simulation.is_complete(TOKEN));
    let finished = simulation.finish(TOKEN).unwrap();
    assert_eq!(simulation.finish(TOKEN), None, "it is over");
    finished
}

fn shop(simulation: &mut Simulation, checkouts: u64) -> Vec<ObserverId> {
    let checkouts = (1..=checkouts).map(|n| hello("checkout", if n == 1 { spans::CHECKOUT.0 } else { 0x1000 + n }));
    let hellos: Vec<_> = checkouts.chain([hello("payment", spans::PAYMENT.0)]).collect();
    hellos.into_iter().map(|hello| simulation.register(hello)).collect()
}

#[test]
fn a_recording_and_then_a_fault() {
    let mut simulation = Simulation::new(Options::default(), Keyring::default());
    let observers = shop(&mut simulation, 1);
    round(&mut simulation, &observers, Plan::default(), &[]);
    let clean = vec![entry(TOKEN, 1), charge_client(TOKEN, 1), charge_server(TOKEN, 1)];
    let recorded = finished(&mut simulation, &observers, clean);
    assert_eq!(recorded.verdict, Verdict::Clean, "{recorded:?}");

    round(&mut simulation, &observers, lost_charge(), &recorded.traces);
    simulation
        .hear(observers[0], FromSidecar::Fired { token: TOKEN, rule: 0, execution: ExecutionId(2), call: CallId(21) });
    let faulted = vec![entry(TOKEN, 2), dropped_charge(TOKEN, 2), charge_server(TOKEN, 2)];
    let finished = finished(&mut simulation, &observers, faulted);
    assert_eq!((finished.verdict, finished.faults[0].injections), (Verdict::Injected, 1), "{finished:?}");
}

#[test]
fn instances_ask_the_arbiter_and_the_dead_are_remembered() {
    let mut simulation = Simulation::new(Options::default(), Keyring::default());
    let observers = shop(&mut simulation, 2);
    round(&mut simulation, &observers, lost_charge(), &[]);
    let ask = Ask { token: TOKEN, rule: 0, execution: ExecutionId(1), call: CallId(11), ready: true, outcome: None };
    simulation.hear(observers[1], FromSidecar::Ask(ask));
    let told = answered(&mut simulation, &observers);
    let [(to, FromController::Ruled { number: 1, ruling: Ruling::Grant, .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*to, observers[1]);
    simulation.deregister(observers[1]);
    simulation.disarm(TOKEN);
    answered(&mut simulation, &observers);
    simulation.flush(TOKEN);
    answered(&mut simulation, &observers);
    let finished = simulation.finish(TOKEN).unwrap();
    assert_eq!(finished.verdict, Verdict::Inconclusive);
    assert_eq!(finished.arbiter.len(), 1);
    let refused = simulation.start(Token(8), start_of("s", lost_charge()), &[]);
    assert!(refused.is_ok(), "one instance is left: {refused:?}");
}
