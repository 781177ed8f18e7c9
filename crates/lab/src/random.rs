//! Topologies made from a seed: a few services in layers, calls in sequence and in parallel, retries, HTTP and gRPC.
//!
//! Whatever one lost answer costs a caller, its own caller waits longer: the timeouts grow towards the entry, so that a
//! fault leaves one mark in the logs and not a second one further up.

use std::fmt::Write;

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers from the same seed on every platform.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        // The high half of a 128-bit product: unbiased enough for n ≪ 2^64.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// One of these, of which there is at least one.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Most calls that one request causes.
const MOST_CALLS: usize = 24;
/// What a client's request is to a generated topology, `POST /s0?key=…`.
pub const ENTRY: &str = "POST /s0";

/// The text of a topology made from a seed. Its entry is the service `s0`; see [`ENTRY`].
pub fn topology(seed: u64) -> String {
    let mut random = SplitMix64::new(seed);
    let services = 3 + random.below(3);
    // The callees of each service come later in the list, so nothing calls itself.
    let mut handlers: Vec<Vec<Step>> = Vec::new();
    let mut costs = vec![0; services];
    for service in (0..services).rev() {
        let later: Vec<usize> = (service + 1..services).collect();
        let mut steps: Vec<Step> = Vec::new();
        // The entry calls somebody, and a service in the middle does in two of three topologies.
        if !later.is_empty() && (service == 0 || !random.once_in(3)) {
            for _ in 0..1 + random.below(3) {
                let step = Step::random(&mut random, &later);
                let cost: usize = step.callees().iter().map(|callee| 1 + costs[*callee]).sum();
                if costs[service] + cost <= MOST_CALLS {
                    costs[service] += cost;
                    steps.push(step);
                }
            }
        }
        if service == 0 && steps.is_empty() {
            // Every step was too dear: the last service calls nobody.
            steps.push(Step::Parallel(vec![services - 1; 3]));
        }
        handlers.insert(0, steps);
    }
    text(seed, &handlers, &mut random)
}

/// A step of a handler, with the services called.
#[derive(Clone, Debug)]
enum Step {
    Call(usize),
    Repeat(usize, usize),
    Parallel(Vec<usize>),
}

impl Step {
    fn random(random: &mut SplitMix64, later: &[usize]) -> Self {
        match random.below(4) {
            0 => Self::Call(*random.pick(later)),
            1 => Self::Repeat(2 + random.below(2), *random.pick(later)),
            2 => Self::Parallel(vec![*random.pick(later); 2 + random.below(3)]),
            _ => Self::Parallel((0..2 + random.below(2)).map(|_| *random.pick(later)).collect()),
        }
    }

    fn callees(&self) -> Vec<usize> {
        match self {
            Self::Call(callee) => vec![*callee],
            Self::Repeat(times, callee) => vec![*callee; *times],
            Self::Parallel(callees) => callees.clone(),
        }
    }
}

fn text(seed: u64, handlers: &[Vec<Step>], random: &mut SplitMix64) -> String {
    let mut out = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Topology\nmetadata: {{name: random-{seed:x}}}\nservices:\n"
    );
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string never fails");
    let grpc: Vec<bool> = (0..handlers.len()).map(|service| service > 0 && !random.once_in(3)).collect();
    // How many calls are below a service on the longest way.
    let mut heights = vec![0_u64; handlers.len()];
    for (service, steps) in handlers.iter().enumerate().rev() {
        let callees = steps.iter().flat_map(Step::callees);
        heights[service] = callees.map(|callee| heights[callee] + 1).max().unwrap_or(0);
    }
    for (service, steps) in handlers.iter().enumerate() {
        let server = if grpc[service] { "grpc" } else { "http1" };
        let client = match steps.is_empty() {
            true => "propagation: leaf".to_owned(),
            false => {
                let (timeouts, breaks) = (random.below(2), random.below(2));
                let timeout = 400 + 1_600 * (heights[service] - 1);
                let retries = format!("{{unsafe_on_timeout: {timeouts}, unsafe_on_transport: {breaks}}}");
                format!("propagation: w3c, client: {{timeout: {timeout}ms, retries: {retries}}}")
            }
        };
        line(format!("  s{service}: {{server: {server}, port: {}, {client}}}", 7000 + service));
    }
    line("apis:".into());
    for (service, is_grpc) in grpc.iter().enumerate() {
        let operation = match (service, is_grpc) {
            (0, _) => format!("http: \"{ENTRY}\""),
            (_, true) => format!("grpc: random.S{service}/Do"),
            (_, false) if random.once_in(2) => format!("http: \"GET /s{service}/{{id}}\""),
            (_, false) => format!("http: \"POST /s{service}\""),
        };
        let mut times = || format!("{}ms", random.below(6));
        let time = match service % 2 {
            0 => times(),
            _ => format!("{{permuted_by_key: [{}, {}, {}, {}]}}", times(), times(), times(), times()),
        };
        line(format!("  a{service}: {{service: s{service}, {operation}, service_time: {time}}}"));
    }
    line("handlers:".into());
    for (service, steps) in handlers.iter().enumerate().filter(|(_, steps)| !steps.is_empty()) {
        line(format!("  a{service}:\n    steps:"));
        let fail = if grpc[service] { "UNAVAILABLE" } else { "502" };
        let mut call = |callee: usize| {
            let reaction = if random.once_in(2) { "ignore".to_owned() } else { format!("{{fail: {fail}}}") };
            format!("{{call: a{callee}, on_failure: {reaction}}}")
        };
        for step in steps {
            line(match step {
                Step::Call(callee) => format!("      - {}", call(*callee)),
                Step::Repeat(times, callee) => {
                    format!("      - repeat: {{times: {times}, steps: [{}]}}", call(*callee))
                }
                Step::Parallel(callees) => {
                    let branches: Vec<String> = callees.iter().map(|callee| format!("[{}]", call(*callee))).collect();
                    format!("      - parallel: {{join: all, branches: [{}]}}", branches.join(", "))
                }
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn every_seed_makes_a_topology_that_is_valid_calls_somebody_and_is_always_the_same() {
        for seed in 0..500 {
            let text = topology(seed);
            assert_eq!(text, topology(seed));
            let topology = Topology::parse("random.yaml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let calls = topology.expand("a0", topology.params()).unwrap();
            assert!((1..=MOST_CALLS).contains(&calls.len()), "{} calls\n{text}", calls.len());
        }
    }

    #[test]
    fn topologies_differ_in_every_way_they_can() {
        let texts: Vec<String> = (0..100).map(topology).collect();
        for word in
            ["server: grpc", "server: http1, port: 7001", "repeat:", "parallel:", "GET /s", "unsafe_on_timeout: 1"]
        {
            let with = texts.iter().filter(|text| text.contains(word)).count();
            assert!((10..=100).contains(&with), "{word}: {with} of 100");
        }
    }

    #[test]
    fn a_caller_waits_longer_than_the_one_it_calls_for_a_lost_answer() {
        for seed in 0..200 {
            let topology = Topology::parse("random.yaml", &topology(seed)).unwrap();
            for service in topology.services() {
                for callee in topology.callees(&service.name) {
                    let (above, below) = (service.client.timeout, callee.client.timeout);
                    assert!(above > below, "{}: {above:?}, {}: {below:?}", service.name, callee.name);
                }
            }
        }
    }
}
