//! Figures of a run, as JSON and for reading.

use std::time::Duration;

use serde::Serialize;

use super::subjects::Kind;
use super::{H1, H2, Mode, Row, Void};
use crate::load::{Measured, Pace, Protocol, Shape};
use crate::machine::Machine;

pub(crate) const UNDER_LOAD: &str = "64 connections under load";
pub(crate) const IDLE: &str = "2,000 connections idle after one request each";
pub(crate) const GROWTH: &str = "after 100,000 recorded executions, over that after 20,000";

/// What a row is called.
pub(crate) fn name(row: &Row) -> String {
    let pace = match row.pace {
        Pace::Saturated => "saturated".to_owned(),
        Pace::Rate(rate) => format!("{rate:.0}/s"),
    };
    format!("{}, {pace}", shape_name(row.shape))
}

fn shape_name(shape: Shape) -> String {
    match shape.protocol {
        Protocol::Http1 => format!("HTTP/1.1 {}", shape.connections),
        Protocol::H2c => format!("h2c {}×{}", shape.connections, shape.streams),
    }
}

/// Smallest, median, largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        let round = |value: f64| (value * 10_000.0).round() / 10_000.0;
        Some(Spread { min: round(min), median: round(median), max: round(max) })
    }
}

/// One subject's turn at one row.
#[derive(Debug)]
struct Turn {
    /// Which turn; those of one row that have the same number belong together.
    number: usize,
    row: Row,
    subject: Kind,
    cpu_us: Option<f64>,
    load_cpu_us: f64,
    busy: Option<f64>,
    throughput: f64,
    p50_us: f64,
    p99_us: f64,
    seconds: f64,
    requests: u64,
    unsent: u64,
}

impl Turn {
    fn new(number: usize, row: Row, subject: Kind, measured: &Measured) -> Self {
        let seconds = measured.elapsed.as_secs_f64();
        let per_request = |time: Duration| time.as_secs_f64() * 1e6 / measured.requests.max(1) as f64;
        let quantile = |share| measured.latencies.quantile(share).unwrap_or_default().as_secs_f64() * 1e6;
        Turn {
            number,
            row,
            subject,
            cpu_us: measured.cpu.map(per_request),
            load_cpu_us: per_request(measured.load_cpu),
            busy: measured.cpu.map(|cpu| cpu.as_secs_f64() / seconds),
            throughput: measured.requests as f64 / seconds,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            seconds,
            requests: measured.requests,
            unsent: measured.unsent,
        }
    }
}

/// All turns of one subject at one row.
#[derive(Debug, Serialize)]
struct Figures {
    load: String,
    #[serde(flatten)]
    shape: Shape,
    /// Requests in a second; none where the load is saturated.
    rate: Option<f64>,
    subject: Kind,
    turns: usize,
    /// What all figures rest on, summed over the turns.
    seconds: f64,
    requests: u64,
    /// Requests that were due and could not be sent in time; their wait counts as latency.
    unsent: u64,
    /// User and system time of the process for each request.
    cpu_us: Option<Spread>,
    throughput: Option<Spread>,
    p50_us: Option<Spread>,
    p99_us: Option<Spread>,
    /// Part of the time that the process was on its processor.
    busy: Option<Spread>,
    /// The same of load and origin together; of no meaning at a fixed rate, where the load spins.
    load_cpu_us: Option<Spread>,
}

/// Memory of one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) figure: &'static str,
    pub(crate) subject: Kind,
    pub(crate) kib: i64,
}

#[derive(Debug, Serialize)]
struct MemoryFigures {
    figure: &'static str,
    subject: Kind,
    kib: Option<Spread>,
}

/// What the claims are about: medians of what was taken within each turn.
#[derive(Debug, Default, Serialize)]
struct Ratios {
    cpu_h1_vs_envoy: Option<f64>,
    cpu_h2_vs_envoy: Option<f64>,
    cpu_h1_vs_relay: Option<f64>,
    cpu_h2_vs_relay: Option<f64>,
    cpu_h1_vs_naive: Option<f64>,
    cpu_h2_vs_naive: Option<f64>,
    added_p99_ms: Option<f64>,
    rss_64_kib: Option<f64>,
    rss_idle_over_naive_kib: Option<f64>,
    rss_growth_kib: Option<f64>,
}

/// Where a claim stands.
#[derive(Debug, Serialize)]
struct Claim {
    name: &'static str,
    #[serde(flatten)]
    spread: Option<Spread>,
    /// The median is to be at most this.
    bar: f64,
    stretch: Option<f64>,
    /// Seconds of load on the sidecar that it rests on.
    seconds: f64,
}

/// A run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    mode: Mode,
    rounds: usize,
    seconds: f64,
    machine: Machine,
    /// Envoy's version.
    pub(crate) envoy: Option<String>,
    ratios: Ratios,
    claims: Vec<Claim>,
    rows: Vec<Figures>,
    memory_rows: Vec<MemoryFigures>,
    voids: Vec<Void>,
    #[serde(skip)]
    turns: Vec<Turn>,
    #[serde(skip)]
    latency: Vec<Turn>,
    #[serde(skip)]
    pub(crate) memory: Vec<Memory>,
    #[serde(skip)]
    taken: usize,
}

impl Report {
    pub(crate) fn new(mode: Mode, rounds: usize, machine: Machine) -> Self {
        Report {
            schema: "aftershock.dev/overhead/v1alpha1",
            mode,
            rounds,
            seconds: 0.0,
            machine,
            envoy: None,
            ratios: Ratios::default(),
            claims: Vec::new(),
            rows: Vec::new(),
            memory_rows: Vec::new(),
            voids: Vec::new(),
            turns: Vec::new(),
            latency: Vec::new(),
            memory: Vec::new(),
            taken: 0,
        }
    }

    pub(crate) fn add_turn(&mut self, row: &Row, turn: Vec<(Kind, Measured)>) {
        self.taken += 1;
        let number = self.taken;
        self.turns.extend(turn.iter().map(|(kind, measured)| Turn::new(number, *row, *kind, measured)));
    }

    /// A turn at half of the saturation of that round.
    pub(crate) fn add_latency(&mut self, shape: Shape, turn: Vec<(Kind, Measured)>) {
        self.taken += 1;
        let number = self.taken;
        // All rounds are one row, although each has a rate of its own.
        let row = Row { shape, pace: Pace::Saturated, makes_ratio: false };
        self.latency.extend(turn.iter().map(|(kind, measured)| Turn::new(number, row, *kind, measured)));
    }

    /// The sidecar's throughput in the last turn.
    pub(crate) fn saturation(&self, shape: Shape) -> Option<f64> {
        let is_it = |turn: &&Turn| {
            turn.row.shape == shape && turn.row.pace == Pace::Saturated && turn.subject == Kind::Aftershock
        };
        self.turns.iter().rfind(is_it).map(|turn| turn.throughput)
    }

    pub(crate) fn finish(&mut self, voids: Vec<Void>, took: Duration) {
        self.voids = voids;
        self.seconds = took.as_secs_f64().round();
        let mut rows: Vec<Row> = Vec::new();
        for turn in &self.turns {
            if !rows.contains(&turn.row) {
                rows.push(turn.row);
            }
        }
        self.rows = rows.iter().flat_map(|row| figures(&self.turns, row, &name(row), rate(row))).collect();
        for shape in [H1, H2] {
            let load = format!("{}, half of saturation", shape_name(shape));
            let row = Row { shape, pace: Pace::Saturated, makes_ratio: false };
            let turns = self.latency.iter().filter(|turn| turn.row == row);
            let rates = Spread::of(turns.map(|turn| turn.throughput));
            self.rows.extend(figures(&self.latency, &row, &load, rates.map(|spread| spread.median)));
        }
        for figure in [UNDER_LOAD, IDLE, GROWTH] {
            for subject in Kind::ALL {
                let kib = Spread::of(self.kib(figure, subject));
                if kib.is_some() {
                    self.memory_rows.push(MemoryFigures { figure, subject, kib });
                }
            }
        }
        self.claim();
    }

    fn kib(&self, figure: &str, subject: Kind) -> impl Iterator<Item = f64> {
        let is_it = move |memory: &&Memory| memory.figure == figure && memory.subject == subject;
        self.memory.iter().filter(is_it).map(|memory| memory.kib as f64)
    }

    /// The sidecar's CPU over that of `other`, in each turn.
    fn cpu_over(&self, shape: Shape, other: Kind) -> Vec<f64> {
        let of = |kind: Kind| {
            let rows = self.turns.iter().filter(move |turn| turn.row.shape == shape && turn.row.makes_ratio);
            rows.filter(move |turn| turn.subject == kind)
        };
        of(Kind::Aftershock)
            .filter_map(|ours| {
                let theirs = of(other).find(|theirs| theirs.number == ours.number)?;
                Some(ours.cpu_us? / theirs.cpu_us?)
            })
            .collect()
    }

    /// What the sidecar adds to the 99th percentile, in milliseconds, in each turn.
    fn added_p99(&self, shape: Shape) -> Vec<f64> {
        let of = |kind: Kind| self.latency.iter().filter(move |turn| turn.row.shape == shape && turn.subject == kind);
        of(Kind::Aftershock)
            .filter_map(|ours| {
                let direct = of(Kind::NoProxy).find(|direct| direct.number == ours.number)?;
                Some((ours.p99_us - direct.p99_us) / 1_000.0)
            })
            .collect()
    }

    fn claim(&mut self) {
        let seconds = |turns: &[Turn], shape: Shape, makes_ratio| {
            let ours = turns.iter().filter(|turn| {
                turn.subject == Kind::Aftershock && turn.row.shape == shape && turn.row.makes_ratio == makes_ratio
            });
            ours.map(|turn| turn.seconds).sum::<f64>()
        };
        let of_h1 = seconds(&self.turns, H1, true);
        let of_h2 = seconds(&self.turns, H2, true);
        let of_latency = seconds(&self.latency, H1, false);
        let idle: Vec<f64> = self
            .kib(IDLE, Kind::Aftershock)
            .zip(self.kib(IDLE, Kind::HyperRelay))
            .map(|(ours, naive)| ours - naive)
            .collect();
        let cpu = |shape, other| self.cpu_over(shape, other);
        let claim = |name, values: Vec<f64>, bar, stretch, seconds: f64| Claim {
            name,
            spread: Spread::of(values),
            bar,
            stretch,
            seconds: seconds.round(),
        };
        let under_load: Vec<f64> = self.kib(UNDER_LOAD, Kind::Aftershock).collect();
        let growth: Vec<f64> = self.kib(GROWTH, Kind::Aftershock).collect();
        self.claims = vec![
            claim("cpu_h1_vs_envoy", cpu(H1, Kind::Envoy), 0.40, Some(0.33), of_h1),
            claim("cpu_h2_vs_envoy", cpu(H2, Kind::Envoy), 0.25, Some(0.16), of_h2),
            claim("cpu_h1_vs_relay", cpu(H1, Kind::TcpRelay), 1.5, Some(1.25), of_h1),
            claim("cpu_h2_vs_relay", cpu(H2, Kind::TcpRelay), 2.2, Some(1.6), of_h2),
            claim("cpu_h1_vs_naive", cpu(H1, Kind::HyperRelay), 1.15, Some(1.0), of_h1),
            claim("cpu_h2_vs_naive", cpu(H2, Kind::HyperRelay), 0.65, Some(0.45), of_h2),
            claim("added_p99_ms", self.added_p99(H1), 1.0, Some(0.3), of_latency),
            claim("rss_64_kib", under_load, 10.0 * 1024.0, Some(6.0 * 1024.0), 0.0),
            claim("rss_idle_over_naive_kib", idle, 8.0 * 1024.0, None, 0.0),
            claim("rss_growth_kib", growth, 1024.0, None, 0.0),
        ];
        let median = |name: &str| {
            self.claims.iter().find(|claim| claim.name == name).and_then(|claim| claim.spread).map(|s| s.median)
        };
        self.ratios = Ratios {
            cpu_h1_vs_envoy: median("cpu_h1_vs_envoy"),
            cpu_h2_vs_envoy: median("cpu_h2_vs_envoy"),
            cpu_h1_vs_relay: median("cpu_h1_vs_relay"),
            cpu_h2_vs_relay: median("cpu_h2_vs_relay"),
            cpu_h1_vs_naive: median("cpu_h1_vs_naive"),
            cpu_h2_vs_naive: median("cpu_h2_vs_naive"),
            added_p99_ms: median("added_p99_ms"),
            rss_64_kib: median("rss_64_kib"),
            rss_idle_over_naive_kib: median("rss_idle_over_naive_kib"),
            rss_growth_kib: median("rss_growth_kib"),
        };
    }

    pub(crate) fn print(&self) {
        if self.mode == Mode::Smoke {
            println!("everything was measured, {} turns were void; the figures mean nothing", self.voids.len());
            return;
        }
        println!(
            "{:<32}{:<13}{:>22}{:>11}{:>11}{:>11}{:>7}",
            "load", "", "CPU µs/request", "requests/s", "p50 µs", "p99 µs", "busy"
        );
        let mut last = "";
        for row in &self.rows {
            let load = if row.load == last { "" } else { &row.load };
            last = &row.load;
            let cpu =
                row.cpu_us.map_or_else(String::new, |cpu| format!("{:.2} ({:.2}–{:.2})", cpu.median, cpu.min, cpu.max));
            let median =
                |spread: Option<Spread>| spread.map_or_else(String::new, |spread| format!("{:.0}", spread.median));
            let busy = row.busy.map_or_else(String::new, |busy| format!("{:.0} %", busy.median * 100.0));
            println!(
                "{load:<32}{:<13}{cpu:>22}{:>11}{:>11}{:>11}{busy:>7}",
                row.subject.name(),
                median(row.throughput),
                median(row.p50_us),
                median(row.p99_us),
            );
        }
        println!();
        for row in &self.memory_rows {
            if let Some(kib) = row.kib {
                println!(
                    "{:<60}{:<13}{:>8.0} KiB ({:.0}–{:.0})",
                    row.figure,
                    row.subject.name(),
                    kib.median,
                    kib.min,
                    kib.max
                );
            }
        }
        println!("\n{:<26}{:>11}{:>26}{:>10}{:>10}", "figure", "median", "", "bar", "stretch");
        for claim in &self.claims {
            let Some(spread) = claim.spread else {
                println!("{:<26}{:>11}{:>26}{:>10}", claim.name, "–", "", claim.bar);
                continue;
            };
            let verdict = match claim.stretch {
                Some(stretch) if spread.median <= stretch => "within stretch",
                _ if spread.median <= claim.bar => "within bar",
                _ => "MISSED",
            };
            let range = format!("({:.3}–{:.3})", spread.min, spread.max);
            let stretch = claim.stretch.map_or_else(String::new, |stretch| stretch.to_string());
            println!("{:<26}{:>11.3}{range:>26}{:>10}{stretch:>10}  {verdict}", claim.name, spread.median, claim.bar);
        }
        println!("\n{} rounds in {:.0} s, {} turns void", self.rounds, self.seconds, self.voids.len());
    }
}

fn rate(row: &Row) -> Option<f64> {
    match row.pace {
        Pace::Saturated => None,
        Pace::Rate(rate) => Some(rate),
    }
}

/// One row, a line for each subject.
fn figures(turns: &[Turn], row: &Row, load: &str, rate: Option<f64>) -> Vec<Figures> {
    let of = |subject: Kind| -> Vec<&Turn> {
        turns.iter().filter(|turn| turn.row == *row && turn.subject == subject).collect()
    };
    let with_turns = Kind::ALL.into_iter().map(|subject| (subject, of(subject))).filter(|(_, turns)| !turns.is_empty());
    with_turns
        .map(|(subject, turns)| {
            let spread = |what: &dyn Fn(&Turn) -> Option<f64>| Spread::of(turns.iter().filter_map(|turn| what(turn)));
            Figures {
                load: load.to_owned(),
                shape: row.shape,
                rate,
                subject,
                turns: turns.len(),
                seconds: (turns.iter().map(|turn| turn.seconds).sum::<f64>() * 100.0).round() / 100.0,
                requests: turns.iter().map(|turn| turn.requests).sum(),
                unsent: turns.iter().map(|turn| turn.unsent).sum(),
                cpu_us: spread(&|turn| turn.cpu_us),
                throughput: spread(&|turn| Some(turn.throughput)),
                p50_us: spread(&|turn| Some(turn.p50_us)),
                p99_us: spread(&|turn| Some(turn.p99_us)),
                busy: spread(&|turn| turn.busy),
                load_cpu_us: spread(&|turn| rate.is_none().then_some(turn.load_cpu_us)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_of_an_odd_and_the_mean_of_an_even_number() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]), Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_turn() {
        let machine = Machine::describe(crate::machine::Cpus { load: 0, subject: 1 });
        let mut report = Report::new(Mode::Quick, 3, machine);
        let row = Row { shape: H1, pace: Pace::Saturated, makes_ratio: true };
        // The machine is ten times as slow in the second turn; the ratio of the totals would be 2.8.
        for (ours, relay) in [(2, 1), (60, 20), (3, 2)] {
            let measured = |cpu| Measured {
                requests: 1_000,
                elapsed: Duration::from_secs(1),
                cpu: Some(Duration::from_millis(cpu)),
                ..Measured::default()
            };
            report.add_turn(&row, vec![(Kind::TcpRelay, measured(relay)), (Kind::Aftershock, measured(ours))]);
        }
        report.finish(Vec::new(), Duration::from_secs(3));
        assert_eq!(report.ratios.cpu_h1_vs_relay, Some(2.0));
        assert_eq!((report.ratios.cpu_h1_vs_envoy, report.ratios.cpu_h2_vs_relay), (None, None));
        let ours = report.rows.iter().find(|row| row.subject == Kind::Aftershock).unwrap();
        assert_eq!((ours.seconds, ours.requests), (3.0, 3_000));
        assert_eq!(ours.cpu_us, Some(Spread { min: 2.0, median: 3.0, max: 60.0 }));
    }
}
