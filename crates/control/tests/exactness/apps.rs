//! Clients and services: what they send, and what they make of answers. They know trace context as data to hand on.

use aftershock_core::id::Token;

use crate::message::{Lines, Request};
use crate::net::{Call, Event, Handler, Leg, Net};
use crate::system::Step;
use crate::truth::{Attempt, Known};

impl Net {
    /// A client, of a round or of no round, sends its request.
    pub(crate) fn client(&mut self, attempt: usize) {
        let up = self.up_of(0);
        let callee = *self.random.clone().pick(&up);
        self.random.next();
        let token = self.attempts[attempt].token;
        let mut lines = Lines::new();
        let trace = (u128::from(self.random.next()) << 64) | u128::from(self.random.next());
        if !token.is_zero() || self.random.one_in(2) {
            lines.push(("traceparent".into(), format!("00-{trace:032x}-{:016x}-01", self.random.next() | 1)));
        }
        if !token.is_zero() {
            let execution = self.attempts[attempt].declared;
            let member = match execution.is_zero() {
                true => format!("aft=1-0-0-{token}-0"),
                false => format!("aft=1-{execution}-0-{token}-0"),
            };
            lines.push(("tracestate".into(), member));
        }
        let call = self.call(attempt, 0, None, None, callee, None, lines, 0);
        let delay = self.delay();
        self.later(delay, Event::In(call));
        // Longer than the services' own patience adds up to.
        let patience = self.patience(8_000_000);
        self.later(patience, Event::GiveUp(call));
    }

    fn up_of(&self, service: usize) -> Vec<usize> {
        let all = &self.of_service[service];
        let up: Vec<usize> = all.iter().copied().filter(|at| self.instances[*at].up).collect();
        if up.is_empty() { all.clone() } else { up }
    }

    fn patience(&mut self, usual: u64) -> u64 {
        if self.weather.impatient && self.random.one_in(5) { self.random.between(500, 20_000) } else { usual }
    }

    #[allow(clippy::too_many_arguments, reason = "one place where calls begin")]
    fn call(
        &mut self,
        attempt: usize,
        node: usize,
        parent: Option<usize>,
        caller: Option<usize>,
        callee: usize,
        out: Option<Leg>,
        mut lines: Lines,
        tries: u32,
    ) -> usize {
        let at = self.calls.len();
        let grpc = self.system.services[self.system.nodes[node].service].grpc;
        if grpc {
            lines.push(("content-type".into(), "application/grpc".into()));
        }
        let request = Request { grpc, path: self.system.path(node), lines, trailers: Lines::new() };
        let execution = self.first_of(attempt);
        let place = self.attempts[execution].calls.len();
        self.attempts[execution].calls.push(at);
        self.calls.push(Call {
            attempt,
            place,
            node,
            parent,
            caller,
            callee,
            tries,
            out,
            inn: None,
            request,
            response: None,
            request_knows: Known::default(),
            response_knows: Known::default(),
            handler: Handler::default(),
            ended: false,
            forwarded: parent.is_none(),
            arrived: false,
            id: None,
            sent_ok: None,
            received_ok: None,
            lost: false,
            detached: false,
        });
        at
    }

    /// A handler sends a call.
    fn send(&mut self, parent: usize, node: usize, tries: u32) {
        let caller = self.calls[parent].callee;
        let attempt = self.calls[parent].attempt;
        let service = self.system.nodes[node].service;
        let chance = !self.is_ordinary(parent) && self.random.per_mille(self.weather.forgetful);
        let forgets = chance || self.system.forgotten.contains(&node);
        let context = self.calls[parent].handler.context.iter();
        let context = context.filter(|(name, _)| !forgets && (name == "traceparent" || name == "tracestate"));
        let lines: Lines = context.cloned().collect();
        let relayed = !self.has_sidecar(caller);
        let (out, callee) = if relayed {
            let up = self.up_of(service);
            (None, up[self.random.below(up.len() as u64) as usize])
        } else {
            match self.connect(caller, service) {
                Some((leg, callee)) => (Some(leg), callee),
                None => (None, usize::MAX),
            }
        };
        let nowhere = callee == usize::MAX;
        let callee = if nowhere { self.of_service[service][0] } else { callee };
        let call = self.call(attempt, node, Some(parent), Some(caller), callee, out, lines, tries);
        self.calls[call].lost = forgets || self.calls[parent].lost;
        if nowhere {
            self.later(30, Event::Done(call, false));
            return;
        }
        if relayed {
            self.calls[call].forwarded = true;
            self.calls[call].request_knows = self.known(caller, call);
            let delay = self.delay();
            self.later(delay, Event::In(call));
        } else {
            let delay = 10 + self.random.below(60);
            self.later(delay, Event::Out(call));
        }
        let patience = self.patience(self.system.patience);
        self.later(patience, Event::GiveUp(call));
    }

    /// A handler goes on with its work.
    pub(crate) fn handle(&mut self, call: usize) {
        if self.calls[call].handler.over {
            return;
        }
        let step = self.calls[call].handler.step;
        let Some(next) = self.system.nodes[self.calls[call].node].steps.get(step).cloned() else {
            let work = self.random.below(500);
            self.later(work, Event::Answer(call));
            return;
        };
        self.calls[call].handler.step += 1;
        match next {
            Step::Work(time) => {
                let time = time / 2 + self.random.below(time + 1);
                self.later(time, Event::Go(call));
            }
            Step::Calls(nodes) => {
                self.calls[call].handler.waiting = nodes.len();
                for node in nodes {
                    self.send(call, node, 0);
                }
            }
        }
    }

    /// The calling application sees the end of a call.
    pub(crate) fn done(&mut self, call: usize, ok: bool) {
        if std::mem::replace(&mut self.calls[call].ended, true) {
            return;
        }
        let Some(parent) = self.calls[call].parent else {
            self.attempt_ends(self.calls[call].attempt, ok);
            return;
        };
        if self.calls[parent].handler.over {
            return;
        }
        let (node, tries) = (self.calls[call].node, self.calls[call].tries);
        if !ok && tries < self.system.nodes[node].retries {
            self.send(parent, node, tries + 1);
            return;
        }
        let handler = &mut self.calls[parent].handler;
        handler.failed |= !ok;
        handler.waiting = handler.waiting.saturating_sub(1);
        if handler.waiting == 0 {
            self.later(20, Event::Go(parent));
        }
    }

    /// A caller has waited long enough.
    pub(crate) fn give_up(&mut self, call: usize) {
        if self.calls[call].ended {
            return;
        }
        self.hang_up(call);
        self.calls[call].ended = false;
        self.done(call, false);
    }

    /// Ordinary traffic goes on beside the rounds.
    pub(crate) fn ordinary(&mut self) {
        if self.rounds.iter().all(|round| round.finished.is_some()) {
            return;
        }
        self.ordinary_sent += 1;
        let attempt = self.attempts.len();
        self.attempts.push(Attempt::new(None, Token(0)));
        self.client(attempt);
        let pause = self.random.between(8_000, 250_000);
        self.later(pause, Event::Ordinary);
    }
}
