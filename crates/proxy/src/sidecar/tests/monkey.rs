//! Anything in any order: whatever peers, controller and clock do, nothing is faulted twice and nothing waits for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use aftershock_core::event::{EventKind, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Hold, MaxInjections, Occurrence, Phase, Rule, Side};
use aftershock_core::wire::{FromController, FromSidecar};
use proptest::prelude::*;

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const PAY: &str = "payment POST /pay";
const CHARGE: &str = "payment shop.Payment/Charge";

#[derive(Debug, Clone)]
enum Step {
    /// A client of the round, or an ordinary one.
    Enter { tagged: bool },
    /// The application of one of the open entries calls, with its context or without.
    Send { of: usize, grpc: bool, context: bool },
    /// One of the open calls is answered.
    Answer { which: usize, ok: bool, hop: bool, refused: bool },
    /// One of the open exchanges ends early.
    Close { which: usize, by_upstream: bool },
    /// One of the open entries is answered.
    Leave { which: usize },
    /// Time passes.
    Wait { millis: u64 },
    /// The controller says something.
    Say { what: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => proptest::bool::weighted(0.8).prop_map(|tagged| Step::Enter { tagged }),
        8 => (any::<usize>(), any::<bool>(), proptest::bool::weighted(0.9))
            .prop_map(|(of, grpc, context)| Step::Send { of, grpc, context }),
        8 => (any::<usize>(), any::<bool>(), proptest::bool::weighted(0.9), proptest::bool::weighted(0.1))
            .prop_map(|(which, ok, hop, refused)| Step::Answer { which, ok, hop, refused }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, by_upstream)| Step::Close { which, by_upstream }),
        1 => any::<usize>().prop_map(|which| Step::Leave { which }),
        3 => (0..1500_u64).prop_map(|millis| Step::Wait { millis }),
        1 => (0..8_usize).prop_map(|what| Step::Say { what }),
    ];
    proptest::collection::vec(step, 1..60)
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let fault = prop_oneof![
        Just(Fault::Delay(Duration::from_millis(300).into())),
        Just(Fault::Drop),
        Just(Fault::Reset(Default::default())),
        Just(Fault::Abort),
        Just(Fault::Release),
    ];
    let one = (fault, any::<bool>(), any::<bool>(), 0..4_u32, 0..3_u64, any::<bool>(), 1..3_u32);
    let rule = one.prop_map(|(fault, grpc, response, k, count, hold, limit)| {
        let of = if grpc { CHARGE } else { PAY };
        let phase = if response { Phase::Response } else { Phase::Request };
        let k = if k == 0 { Occurrence::First } else { Occurrence::Number(k) };
        let mut rule = rule("checkout", Side::Caller, of, k, phase, fault);
        if count > 0 {
            let atom = aftershock_core::event::Event {
                outcome: OutcomeFilter::Ok,
                ..event(EventKind::ResponseReceived, if grpc { PAY } else { CHARGE })
            };
            rule.tfic.guard.after = vec![Atom::new(atom, count)];
        }
        let hold = hold || rule.tfic.fault == Fault::Release;
        rule.tfic.hold = hold.then(|| Hold { deadline: Duration::from_secs(1).into() });
        rule.tfic.max_injections = MaxInjections::Limited(limit);
        rule
    });
    proptest::collection::vec(rule, 1..3).prop_map(|mut rules| {
        rules.iter_mut().enumerate().for_each(|(index, rule)| rule.index = index);
        rules
    })
}

/// One call of the checkout: its leg, and the payment's when the request got there.
struct Open {
    out: Leg,
    grpc: bool,
    into: Option<Leg>,
    answered: bool,
}

struct Monkey {
    net: Net,
    rules: Vec<Rule>,
    entries: Vec<(Leg, Request)>,
    calls: Vec<Open>,
    said: Vec<FromSidecar>,
}

impl Monkey {
    fn arm(&mut self) {
        let rules = self.rules.clone();
        self.net.arm_with(&rules, &[event(EventKind::RequestSent, PAY)], |arm| arm.max_parked = 3);
    }

    /// What was let go reaches the payment, or ends.
    fn carry_on(&mut self) {
        for (leg, resumed) in self.net.resumed() {
            match resumed {
                Resumed::Request(Passage::Through(request)) => {
                    let into = self.net.come_in("payment", request).0;
                    if let Some(call) = self.calls.iter_mut().find(|call| call.out == leg) {
                        call.into = Some(into);
                    }
                }
                Resumed::Request(Passage::Dropped) | Resumed::Response(Passage::Dropped) => {}
                Resumed::Request(Passage::Kept) | Resumed::Response(Passage::Kept) => {
                    panic!("what is let go is not kept again")
                }
                Resumed::Request(_) | Resumed::Response(_) | Resumed::Closed => {
                    self.calls.retain(|call| call.out != leg);
                }
            }
        }
        let words = self.net.said("checkout");
        self.said.extend(words);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Enter { tagged: of_round } => {
                let request = Request::http("POST", "/buy");
                let request = if of_round { tagged(request) } else { request };
                let (leg, passage) = self.net.come_in("checkout", request);
                self.entries.push((leg, passage.through()));
            }
            Step::Send { of, grpc, context } => {
                let Some((_, seen)) = self.entries.get(of % self.entries.len().max(1)) else { return };
                let request = if grpc { Request::grpc("shop.Payment/Charge") } else { Request::http("POST", "/pay") };
                let request = if context { request.within(seen) } else { request };
                let (out, passage) = self.net.go_out("checkout", "payment", request);
                let into = match passage {
                    Passage::Through(request) => Some(self.net.come_in("payment", request).0),
                    Passage::Kept | Passage::Dropped => None,
                    Passage::Reset | Passage::Made(_) => return,
                };
                self.calls.push(Open { out, grpc, into, answered: false });
            }
            Step::Answer { which, ok, hop, refused } => {
                let open: Vec<usize> = (0..self.calls.len())
                    .filter(|index| self.calls[*index].into.is_some() && !self.calls[*index].answered)
                    .collect();
                let Some(index) = open.get(which % open.len().max(1)).copied() else { return };
                let response = match (self.calls[index].grpc, ok) {
                    (true, true) => Response::grpc(0),
                    (true, false) => Response::trailers_only(14),
                    (false, true) => Response::http(200),
                    (false, false) => Response::http(500),
                };
                let into = self.calls[index].into.clone().expect("it was filtered");
                let sent = self.net.response(&into, response).through();
                let sent = if hop { sent } else { sent.without_hop() };
                self.net.refuse = refused.then_some(Refusal::Pipelined);
                let out = self.calls[index].out.clone();
                match self.net.response(&out, sent) {
                    Passage::Kept | Passage::Dropped => self.calls[index].answered = true,
                    Passage::Through(_) | Passage::Reset | Passage::Made(_) => {
                        self.calls.remove(index);
                    }
                }
                self.net.refuse = None;
            }
            Step::Close { which, by_upstream } => {
                if self.calls.is_empty() {
                    return;
                }
                let call = self.calls.remove(which % self.calls.len());
                let by_upstream = by_upstream && call.into.is_some() && !call.answered;
                self.net.close(&call.out, if by_upstream { Closed::ByUpstream } else { Closed::ByApplication });
            }
            Step::Leave { which } => {
                if !self.entries.is_empty() {
                    let (leg, _) = self.entries.remove(which % self.entries.len());
                    self.net.response(&leg, Response::http(200)).through();
                }
            }
            Step::Wait { millis } => self.net.pass_time(Duration::from_millis(millis)),
            Step::Say { what } => match what {
                0 => self.net.tell("checkout", FromController::Disarm { token: ROUND }),
                1 => self.net.tell("checkout", FromController::End { token: ROUND }),
                2 => {
                    // What was said before a new arming belongs to the one before.
                    self.arm();
                }
                _ => self.net.tell("checkout", FromController::Renew { token: ROUND }),
            },
        }
        self.carry_on();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_is_faulted_twice_and_nothing_waits_for_ever(rules in rules(), steps in steps()) {
        let net = Net::new(&["checkout", "payment"]);
        let mut monkey = Monkey { net, rules: rules.clone(), entries: Vec::new(), calls: Vec::new(), said: Vec::new() };
        monkey.arm();
        let mut rearmed = false;
        let mut parked_for = BTreeMap::new();
        for step in &steps {
            rearmed |= matches!(step, Step::Say { what: 2 });
            monkey.step(step);
            let now = monkey.net.now;
            let parked = monkey.net.parked("checkout");
            prop_assert!(parked.len() <= 3, "no more than `max_parked`: {:?}", parked);
            parked_for.retain(|leg, _| parked.contains(leg));
            for leg in parked {
                let since = *parked_for.entry(leg).or_insert(now);
                prop_assert!(now - since <= Duration::from_millis(1300), "a hold of 1 s and a delay of 300 ms at most");
            }
        }
        // The controller is gone; the lease ends.
        monkey.net.pass_time(Duration::from_secs(10));
        monkey.carry_on();
        prop_assert!(monkey.net.parked("checkout").is_empty());
        prop_assert!(monkey.net.sidecar("checkout").next_deadline().is_none());
        for call in std::mem::take(&mut monkey.calls) {
            monkey.net.close(&call.out, Closed::ByApplication);
        }
        for (leg, _) in std::mem::take(&mut monkey.entries) {
            monkey.net.close(&leg, Closed::ByApplication);
        }
        monkey.carry_on();
        prop_assert_eq!(monkey.net.sidecar("checkout").executions.len(), 0, "nothing is kept of a round that is over");
        let spans = monkey.net.spans("checkout");
        let mut injected: Vec<_> =
            spans.iter().filter_map(|span| span.injection.as_ref().map(|shot| (shot.rule, span.execution, span.call))).collect();
        let mut fired: Vec<_> = monkey
            .said
            .iter()
            .filter_map(|word| match word {
                FromSidecar::Fired { rule, execution, call, .. } => Some((*rule, *execution, *call)),
                _ => None,
            })
            .collect();
        injected.sort();
        fired.sort();
        prop_assert_eq!(&injected, &fired, "what was told at once is what was recorded");
        for span in &spans {
            let hits = span.passes.iter().filter(|pass| pass.passed_by.is_none()).count();
            prop_assert_eq!(hits, usize::from(span.injection.is_some()), "every pass has its reason: {:?}", span);
        }
        if !rearmed {
            for (index, rule) in rules.iter().enumerate() {
                let of_rule: Vec<_> = injected.iter().filter(|(rule, ..)| *rule == index).collect();
                prop_assert!(of_rule.len() as u32 <= rule.tfic.max_injections.limit());
                let executions: std::collections::BTreeSet<_> = of_rule.iter().map(|(_, execution, _)| execution).collect();
                prop_assert_eq!(executions.len(), of_rule.len(), "once in an execution");
            }
        }
    }
}
