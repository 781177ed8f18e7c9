//! Logs on stderr: text for people, or one JSON object a line (`timestamp`, `level`, `message`, `target`, and the fields of
//! the event) for machines.
//!
//! What is logged of an execution carries `execution`, so that its lines are found beside its trace. Tokens, keys and
//! header values are capabilities and never fields. A peer that sends bad input must not be able to fill a disk: of each
//! kind of line, which is each place in the code that writes one, [`BURST`] may come at once and one in each [`PACE`] in the
//! long run; those left out are counted. Lines that somebody asked for, of level `debug` and below, are not limited.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::pace::{Limit, Pacer};

/// The environment variable with the log filter.
const FILTER: &str = "AFTERSHOCK_LOG";
/// How many lines of a kind may come at once.
const BURST: u32 = 50;
/// The mean time between two lines of a kind, at least.
const PACE: Duration = Duration::from_millis(100);

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// Lines left out since the process began, by level: error, warn, info.
static LEFT_OUT: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// The names of those levels.
const LEVELS: [&str; 3] = ["error", "warn", "info"];

fn index(level: Level) -> Option<usize> {
    [Level::ERROR, Level::WARN, Level::INFO].iter().position(|limited| *limited == level)
}

/// How many lines of each level were left out.
pub(crate) fn left_out() -> impl Iterator<Item = (&'static str, u64)> {
    LEVELS.iter().zip(&LEFT_OUT).map(|(level, count)| (*level, count.load(Ordering::Relaxed)))
}

/// Begin to log. A process that already does keeps its own way.
pub(crate) fn init(format: LogFormat) {
    let (filter, unfit) = filter(Level::INFO);
    let text =
        (format == LogFormat::Text).then(|| fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr));
    let json = (format == LogFormat::Json).then(|| {
        let layer = fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
        layer.with_writer(io::stderr)
    });
    let all = tracing_subscriber::registry().with(filter).with(Limited::default()).with(text).with(json);
    let _ = all.try_init();
    if let Some(unfit) = unfit {
        tracing::warn!("{unfit}");
    }
}

/// The lines that `AFTERSHOCK_LOG` asks for, or those of level `usual` and above; and what is to be said, once there is a
/// log, if it asks for something that cannot be understood.
pub fn filter(usual: Level) -> (Targets, Option<String>) {
    let asked = std::env::var(FILTER).ok().filter(|text| !text.is_empty());
    let usual = || Targets::new().with_default(usual);
    match asked.map(|text| text.parse::<Targets>()) {
        None => (usual(), None),
        Some(Ok(asked)) => (asked, None),
        Some(Err(error)) => {
            let unfit =
                format!("{FILTER} is ignored, {error}: expected levels, as in `info,aftershock_proxy::link=debug`");
            (usual(), Some(unfit))
        }
    }
}

/// Leaves out what comes too often.
#[derive(Debug, Default)]
struct Limited {
    /// By kind: as many as there are places that log.
    pacers: Mutex<HashMap<Identifier, Pacer>>,
}

impl Limited {
    fn lets(&self, kind: Identifier, now: Instant) -> bool {
        let mut pacers = self.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        let pacer = pacers.entry(kind).or_insert_with(|| Pacer::new(Limit { burst: BURST, pace: PACE }, now));
        let lets = pacer.next() <= now;
        if lets {
            pacer.take(now);
        }
        lets
    }
}

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let Some(level) = index(*event.metadata().level()) else { return true };
        let lets = self.lets(event.metadata().callsite(), Instant::now());
        if !lets {
            LEFT_OUT[level].fetch_add(1, Ordering::Relaxed);
        }
        lets
    }
}

#[cfg(test)]
mod tests {
    use tracing::Callsite as _;

    use super::*;

    #[test]
    fn a_kind_of_line_comes_in_a_burst_and_then_at_its_pace_whatever_the_others_do() {
        // Any two places will do.
        let identifiers: Vec<Identifier> = vec![
            tracing::callsite!(name: "a", kind: tracing::metadata::Kind::EVENT, fields: a).metadata().callsite(),
            tracing::callsite!(name: "b", kind: tracing::metadata::Kind::EVENT, fields: a).metadata().callsite(),
        ];
        let limit = Limited::default();
        let start = Instant::now();
        let let_through =
            |kind: &Identifier, at: Instant, lines: u32| (0..lines).filter(|_| limit.lets(kind.clone(), at)).count();
        assert_eq!(let_through(&identifiers[0], start, 10_000), BURST as usize);
        assert_eq!(let_through(&identifiers[1], start, 1), 1, "another kind");
        assert_eq!(let_through(&identifiers[0], start + PACE, 100), 1);
        assert_eq!(let_through(&identifiers[0], start + PACE * 11, 100), 10);
        assert_eq!(let_through(&identifiers[0], start + PACE * 10_000, 10_000), BURST as usize, "no more is saved up");
    }
}
