//! Many systems, many targets, every trouble.

use std::collections::BTreeMap;

use aftershock_control::api::Verdict;
use aftershock_core::plan::{Occurrence, Tfic};
use aftershock_core::trace::Trace;

use crate::net::{ARBITER_TIMEOUT, Event, LEASE, Net, Weather};
use crate::random::Random;
use crate::rounds::Clients;
use crate::system::System;
use crate::targets;

/// What goes wrong in a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Nothing,
    Join,
    Restart,
    Eviction,
    LostRequestHeaders,
    LostResponseHeaders,
    OversizedHeaders,
    SlowArbiter,
    LostSpans,
    LostContext,
    Relay,
    Impatience,
    Silence,
    Everything,
}

/// How many there are.
const TROUBLES: u64 = Trouble::Everything as u64;

/// Seeds of each.
const SEEDS: u64 = 1_000_000;

/// Targets of a usual run; `AFTERSHOCK_TARGETS` asks for another number.
const DEFAULT_TARGETS: u64 = 1_000;

/// Targets for each system.
const TARGETS: usize = 20;

#[derive(Debug, Default)]
struct Tally {
    verdicts: BTreeMap<Verdict, u64>,
    /// Injected, and all, of the targets with a number, of those that are also held, and of those with `k: first`.
    numbered: (u64, u64),
    held: (u64, u64),
    first: (u64, u64),
    refused: u64,
    ordinary: u64,
    headers: Vec<usize>,
    faults: u64,
    wrong: Vec<String>,
}

impl Trouble {
    fn is(self, other: Trouble) -> bool {
        self == other
    }

    fn weather(self, random: &mut Random) -> Weather {
        let mut weather = Weather::default();
        let all = self == Trouble::Everything;
        let mut some = |which: Trouble, most: u64| match () {
            () if self.is(which) => random.between(most / 5, most),
            () if all && random.one_in(3) => random.below(most / 2 + 1),
            () => 0,
        };
        weather.lost_requests = some(Trouble::LostRequestHeaders, 250);
        weather.lost_responses = some(Trouble::LostResponseHeaders, 250);
        weather.oversized = some(Trouble::OversizedHeaders, 200);
        weather.lost_spans = some(Trouble::LostSpans, 60);
        weather.forgetful = some(Trouble::LostContext, 100);
        weather.impatient = some(Trouble::Impatience, 10) > 0;
        weather.slow_control = match some(Trouble::SlowArbiter, 3 * ARBITER_TIMEOUT) {
            0 => None,
            most => Some(most),
        };
        weather
    }
}

fn run(seed: u64, trouble: Trouble, tally: &mut Tally, trace: bool) {
    let mut random = Random::new(seed);
    let all = trouble == Trouble::Everything;
    let relay = trouble.is(Trouble::Relay) || (all && random.one_in(4));
    let system = System::draw(&mut random, relay);
    let evicts = (trouble.is(Trouble::Eviction) || (all && random.one_in(4))).then(|| random.between(1, 3) as usize);
    // The last instance of a service that has several, or of any: it comes later.
    let joins = trouble.is(Trouble::Join) || (all && random.one_in(3));
    let instances: usize = system.services.iter().map(|service| service.replicas).sum();
    let mut absent = Vec::new();
    if joins {
        let mut last = 0;
        let several: Vec<usize> = system
            .services
            .iter()
            .filter_map(|service| {
                last += service.replicas;
                (service.replicas > 1 && service.sidecar).then_some(last - 1)
            })
            .collect();
        if several.is_empty() {
            return;
        }
        absent.push(*random.pick(&several));
    }
    let with_sidecar: Vec<usize> = {
        let mut at = 0;
        let mut list = Vec::new();
        for service in &system.services {
            list.extend((at..at + service.replicas).filter(|_| service.sidecar));
            at += service.replicas;
        }
        list
    };
    assert!(instances > 0);
    let mut net = Net::new(system, seed, &absent, evicts);
    net.trace = trace;
    // What is valid on ten traces can still be missed in an order of arrival that none of them showed: two in a thousand
    // are. Where every target is to be hit there are more.
    let recordings = if trouble == Trouble::Nothing { random.between(40, 50) } else { random.between(10, 14) };
    let Some(traces) = record(&mut net, recordings, tally) else { return };

    let mut left = TARGETS;
    while left > 0 {
        net.weather = trouble.weather(&mut random);
        let parallel = if random.one_in(2) { 1 } else { random.between(2, 6) as usize }.min(left);
        left -= parallel;
        let mut rounds = Vec::new();
        for _ in 0..parallel {
            let Some(tfic) = target(&mut random, &traces, tally) else { continue };
            let clients = Clients {
                number: if evicts.is_some() {
                    random.between(2, 5) as usize
                } else {
                    1 + usize::from(random.one_in(6))
                },
                within: if trouble.is(Trouble::Silence) { 2 * LEASE } else { 15_000 },
                retries: random.below(3) as u32,
                sequence: if random.one_in(8) { random.between(1, 3) as u32 } else { 0 },
            };
            rounds.push(net.start(Some(tfic), clients, &traces).unwrap_or_else(|refusal| panic!("{seed}: {refusal}")));
        }
        if rounds.is_empty() {
            continue;
        }
        if random.one_in(2) {
            net.later(1_000, Event::Ordinary);
        }
        // Arming takes some milliseconds; then things go wrong.
        if joins && !net.instances[absent[0]].up {
            net.later(random.between(12_000, 40_000), Event::Boot(absent[0]));
        }
        if trouble.is(Trouble::Restart) || (all && random.one_in(4)) {
            let victim = *random.pick(&with_sidecar);
            let when = random.between(12_000, 60_000);
            net.later(when, Event::Kill(victim, random.one_in(2)));
            let down = random.between(500, 30_000);
            net.later(when + down, Event::Boot(victim));
        }
        if trouble.is(Trouble::Silence) || (all && random.one_in(12)) {
            net.run_for(random.between(15_000, 30_000));
            net.silent_until = net.now + LEASE + random.between(0, LEASE);
        }
        net.finish(&rounds);
        for round in rounds {
            let (verdict, wrong) = net.check(round);
            tally.faults += net.rounds[round].faults.len() as u64;
            *tally.verdicts.entry(verdict).or_default() += 1;
            let tfic = net.rounds[round].tfic.as_ref().unwrap();
            let rate = match (tfic.target.k, &tfic.hold) {
                (Occurrence::First, _) => &mut tally.first,
                (Occurrence::Number(_), Some(_)) => &mut tally.held,
                (Occurrence::Number(_), None) => &mut tally.numbered,
            };
            rate.0 += u64::from(verdict == Verdict::Injected);
            rate.1 += 1;
            let calm = trouble == Trouble::Nothing && verdict != Verdict::Injected;
            if calm && std::env::var("AFTERSHOCK_MISSES").is_ok() {
                let finished = net.rounds[round].finished.as_ref().unwrap();
                eprintln!("seed {seed}: {verdict}: {:?}\n  {:?}", finished.faults[0].reasons, net.rounds[round].tfic);
            }
            tally.wrong.extend(wrong.into_iter().map(|what| format!("{trouble:?} seed {seed}, round {round}: {what}")));
        }
        let mut wrong = std::mem::take(&mut net.wrong);
        wrong.extend(net.leftovers());
        tally.wrong.extend(wrong.into_iter().map(|what| format!("{trouble:?} seed {seed}: {what}")));
        if joins && net.instances[absent[0]].up {
            net.later(0, Event::Kill(absent[0], true));
            net.run_for(100_000);
        }
    }
    if net.ordinary_faulted > 0 {
        tally.wrong.push(format!("{trouble:?} seed {seed}: {} ordinary messages were faulted", net.ordinary_faulted));
    }
    tally.ordinary += net.ordinary_sent;
    tally.headers.append(&mut net.headers);
}

const ONE: Clients = Clients { number: 1, within: 0, retries: 0, sequence: 0 };

/// Clean rounds.
fn record(net: &mut Net, recordings: u64, tally: &mut Tally) -> Option<Vec<Trace>> {
    let mut traces = Vec::new();
    for _ in 0..recordings {
        let round = net.start(None, ONE, &[]).unwrap();
        net.finish(&[round]);
        let finished = net.rounds[round].finished.clone().unwrap();
        let relays = net.system.services.iter().any(|service| !service.sidecar);
        if finished.verdict != Verdict::Clean && !relays {
            tally
                .wrong
                .push(format!("seed {}: a clean round is {}: {:?}", net.seed, finished.verdict, finished.reasons));
            return None;
        }
        traces.extend(finished.traces);
    }
    Some(traces)
}

/// A target with a valid guard.
fn target(random: &mut Random, traces: &[Trace], tally: &mut Tally) -> Option<Tfic> {
    for _ in 0..20 {
        match targets::draw(random, traces) {
            Ok(tfic) => return Some(tfic),
            Err(_) => tally.refused += 1,
        }
    }
    None
}

/// Play `trouble` with its share of the targets, and compare every verdict with the truth.
fn judge(trouble: Trouble) {
    let mut tally = Tally::default();
    if let Ok(seed) = std::env::var("AFTERSHOCK_SEED") {
        let seed: u64 = seed.parse().unwrap();
        if seed / SEEDS == trouble as u64 {
            run(seed, trouble, &mut tally, true);
            assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
        }
        return;
    }
    let targets: u64 = std::env::var("AFTERSHOCK_TARGETS").ok().map_or(DEFAULT_TARGETS, |n| n.parse().unwrap());
    // As many without trouble as with all troubles together.
    let share = match trouble {
        Trouble::Nothing => targets / 2,
        _ => targets / 2 / TROUBLES,
    };
    let wanted = share.max(TARGETS as u64);
    let mut systems = 0;
    while tally.targets() < wanted && tally.wrong.len() < 40 {
        systems += 1;
        run(systems + SEEDS * trouble as u64, trouble, &mut tally, false);
    }
    tally.report(trouble);
    assert!(tally.wrong.is_empty(), "{} findings:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
    if trouble == Trouble::Nothing {
        // A guard for `k: first` may rely on what was known by luck in every clean trace, and the message that gets the
        // number of a held target may be one that the awaited answer comes after: one in a thousand may be missed.
        let (injected, all) =
            [tally.numbered, tally.held, tally.first].iter().fold((0, 0), |(i, n), of| (i + of.0, n + of.1));
        assert!(all - injected <= (all / 1000).max(1), "without loss {injected} of {all} targets were injected");
        // A number without `hold` needs nothing that a trace can show by luck; a pass after the disarm can leave it open.
        let Tally { numbered, .. } = tally;
        assert!(
            numbered.1 - numbered.0 <= numbered.1 / 1000,
            "without loss {numbered:?} targets with a number were injected"
        );
    }
}

impl Tally {
    fn targets(&self) -> u64 {
        self.verdicts.values().sum()
    }

    fn report(&mut self, trouble: Trouble) {
        let verdicts: Vec<String> = self.verdicts.iter().map(|(verdict, n)| format!("{verdict} {n}")).collect();
        self.headers.sort_unstable();
        let at = |percent: usize| self.headers.get(self.headers.len() * percent / 100).or(self.headers.last());
        eprintln!(
            "{trouble:?}: {} targets with a valid guard ({} drawn had none): {}; injected {:?} numbered, {:?} numbered and held, {:?} first; {} faults happened; {} ordinary requests, \
             none faulted; {} hop headers of p50 {:?}, p95 {:?}, max {:?} bytes",
            self.targets(),
            self.refused,
            verdicts.join(", "),
            self.numbered,
            self.held,
            self.first,
            self.faults,
            self.ordinary,
            self.headers.len(),
            at(50).unwrap_or(&0),
            at(95).unwrap_or(&0),
            at(100).unwrap_or(&0),
        );
    }
}

#[test]
fn without_trouble_targets_are_injected_and_nothing_else_is() {
    judge(Trouble::Nothing);
}

/// One test for each trouble: the verdict may be any that is true.
macro_rules! no_verdict_is_wrong_when {
    ($($name:ident: $trouble:ident,)*) => {
        $(#[test]
        fn $name() {
            judge(Trouble::$trouble);
        })*
    };
}

no_verdict_is_wrong_when! {
    no_verdict_is_wrong_when_an_instance_joins: Join,
    no_verdict_is_wrong_when_an_instance_restarts: Restart,
    no_verdict_is_wrong_when_executions_are_evicted: Eviction,
    no_verdict_is_wrong_when_requests_lose_their_headers: LostRequestHeaders,
    no_verdict_is_wrong_when_responses_lose_their_headers: LostResponseHeaders,
    no_verdict_is_wrong_when_headers_are_oversized: OversizedHeaders,
    no_verdict_is_wrong_when_the_arbiter_is_slow: SlowArbiter,
    no_verdict_is_wrong_when_spans_are_lost: LostSpans,
    no_verdict_is_wrong_when_calls_lose_their_context: LostContext,
    no_verdict_is_wrong_when_a_hop_has_no_sidecar: Relay,
    no_verdict_is_wrong_when_callers_give_up: Impatience,
    no_verdict_is_wrong_when_the_controller_falls_silent: Silence,
    no_verdict_is_wrong_when_everything_goes_wrong: Everything,
}
