//! Random systems: services, how often each is there, and what one client request makes them do.

use aftershock_core::name::Api;

use crate::random::Random;

/// A service.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) grpc: bool,
    pub(crate) replicas: usize,
    /// False: a hop that hands the context on and has no sidecar.
    pub(crate) sidecar: bool,
}

/// What a handler does next.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// These calls side by side, until each has ended.
    Calls(Vec<usize>),
    /// Microseconds of work.
    Work(u64),
}

/// A call that the client's request causes, and what its handler does.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) service: usize,
    pub(crate) operation: usize,
    pub(crate) steps: Vec<Step>,
    /// It answers with an error whatever happens.
    pub(crate) fails: bool,
    /// It answers with an error if a call of its own failed.
    pub(crate) strict: bool,
    /// How often its caller tries it again if it failed.
    pub(crate) retries: u32,
}

/// The system and its scenario.
#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) services: Vec<Service>,
    /// The first is the client's request.
    pub(crate) nodes: Vec<Node>,
    /// Handlers stop when their caller has gone.
    pub(crate) cancels: bool,
    /// How long callers wait, in microseconds.
    pub(crate) patience: u64,
    /// Spread of the delays on every edge.
    pub(crate) spread: u64,
    /// Calls that go out without their context.
    pub(crate) forgotten: Vec<usize>,
}

impl System {
    pub(crate) fn draw(random: &mut Random, relay: bool) -> System {
        let services = random.between(3, 7) as usize;
        let services: Vec<Service> = (0..services)
            .map(|at| Service {
                name: format!("s{at}"),
                grpc: random.one_in(2),
                replicas: if random.one_in(2) { 1 } else { random.between(1, 3) as usize },
                sidecar: !(relay && at == 1),
            })
            .collect();
        let mut system = System {
            services,
            nodes: Vec::new(),
            cancels: random.one_in(2),
            patience: 900_000,
            spread: *random.pick(&[300, 2_000, 8_000]),
            forgotten: Vec::new(),
        };
        system.grow(random, 0, 0, &mut 14);
        system
    }

    fn grow(&mut self, random: &mut Random, service: usize, depth: u64, left: &mut usize) -> usize {
        let at = self.nodes.len();
        self.nodes.push(Node {
            service,
            operation: random.below(2) as usize * random.below(2) as usize,
            steps: Vec::new(),
            fails: depth > 0 && random.one_in(14),
            strict: random.one_in(3),
            retries: u32::from(random.one_in(5)),
        });
        let last = self.services.len() - 1;
        let steps = if depth == 0 { random.between(2, 3) } else { random.below(4).saturating_sub(depth / 2) };
        for _ in 0..steps {
            if random.one_in(4) {
                let work = random.below(3_000);
                self.nodes[at].steps.push(Step::Work(work));
            }
            let side_by_side = if random.one_in(2) { 1 } else { random.between(2, 4) };
            // Often the same callee again: occurrences that have to be told apart.
            let favourite = random.between((service as u64 + 1).min(last as u64), last as u64) as usize;
            let mut calls = Vec::new();
            for _ in 0..side_by_side {
                if *left == 0 || (service == last && depth > 3) {
                    break;
                }
                *left -= 1;
                let other = random.between((service as u64 + 1).min(last as u64), last as u64) as usize;
                let callee = if random.one_in(3) { other } else { favourite };
                calls.push(self.grow(random, callee, depth + 1, left));
            }
            if !calls.is_empty() {
                self.nodes[at].steps.push(Step::Calls(calls));
            }
        }
        at
    }

    pub(crate) fn path(&self, node: usize) -> String {
        let Node { service, operation, .. } = self.nodes[node];
        if self.services[service].grpc { format!("/sim.S/Op{operation}") } else { format!("/op{operation}") }
    }

    pub(crate) fn api(&self, node: usize) -> Api {
        let service = &self.services[self.nodes[node].service];
        let path = self.path(node);
        let operation = if service.grpc { path[1..].to_owned() } else { format!("GET {path}") };
        format!("{} {operation}", service.name).parse().unwrap()
    }
}
