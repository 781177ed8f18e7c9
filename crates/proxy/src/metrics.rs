//! Prometheus' text exposition format 0.0.4, written from counters that are kept anyway.
//!
//! Nothing here is on the path of a message: what traffic does is counted by plain additions where it happens, and turned
//! into text when somebody asks. Every label takes its values from a fixed set, so that the number of time series does not
//! depend on traffic; names of Apis, executions and peers are not labels, and neither is anything secret.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The media type of what [`Exposition::into_text`] returns.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family of time series is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Metrics as text, a family at a time.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    /// A family of numbers that only grow; its name ends in `_total`.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, Kind::Counter, help)
    }

    /// A family of numbers that come and go.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, Kind::Gauge, help)
    }

    /// The distribution of whole numbers that were each counted, in cumulative buckets up to each of `bounds`.
    pub(crate) fn histogram(&mut self, name: &'static str, help: &str, bounds: &[u16], counted: &BTreeMap<u16, u64>) {
        let mut family = self.family(name, Kind::Histogram, help);
        for bound in bounds {
            let within: u64 = counted.range(..=bound).map(|(_, count)| count).sum();
            family = family.line("_bucket", &[("le", &bound.to_string())], within);
        }
        let count: u64 = counted.values().sum();
        let sum: u64 = counted.iter().map(|(value, count)| u64::from(*value) * count).sum();
        family.line("_bucket", &[("le", "+Inf")], count).line("_sum", &[], sum).line("_count", &[], count);
    }

    fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(&mut self.text, help, false);
        self.put(format_args!("\n# TYPE {name} {}\n", kind.as_str()));
        Family { name, to: self }
    }

    fn put(&mut self, what: fmt::Arguments<'_>) {
        self.text.write_fmt(what).expect("a string takes whatever is written");
    }

    /// What was written.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// A family whose samples follow.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    name: &'static str,
    to: &'a mut Exposition,
}

impl Family<'_> {
    /// One time series of the family.
    pub(crate) fn sample(self, labels: &[(&str, &str)], value: impl fmt::Display) -> Self {
        self.line("", labels, value)
    }

    /// The only time series of the family.
    pub(crate) fn value(self, value: impl fmt::Display) {
        self.line("", &[], value);
    }

    fn line(self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) -> Self {
        self.to.text.push_str(self.name);
        self.to.text.push_str(suffix);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.to.text.push(if index == 0 { '{' } else { ',' });
            self.to.text.push_str(label);
            self.to.text.push_str("=\"");
            escape(&mut self.to.text, text, true);
            self.to.text.push('"');
        }
        if !labels.is_empty() {
            self.to.text.push('}');
        }
        self.to.put(format_args!(" {value}\n"));
        self
    }
}

/// A label's value escapes backslash, double quote and line feed; a help text the first and the last.
fn escape(to: &mut String, text: &str, quoted: bool) {
    for character in text.chars() {
        match character {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '"' if quoted => to.push_str("\\\""),
            other => to.push(other),
        }
    }
}

/// What every process tells, by the names that Prometheus' own client libraries use. What the system does not say is left
/// out.
pub(crate) fn process(to: &mut Exposition, started: SystemTime) {
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    to.gauge("process_start_time_seconds", "When the process began, in seconds since the Unix epoch.").value(started);
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    to.counter("process_cpu_seconds_total", "CPU time of the process, user and system, in seconds.").value(seconds);
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        if let Some(resident) = kilobytes("VmRSS:") {
            to.gauge("process_resident_memory_bytes", "Resident memory of the process.").value(resident * 1024);
        }
        if let Some(all) = kilobytes("VmSize:") {
            to.gauge("process_virtual_memory_bytes", "Virtual memory of the process.").value(all * 1024);
        }
    }
    if let Some(open) = open_descriptors() {
        to.gauge("process_open_fds", "Open file descriptors.").value(open);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        to.gauge("process_max_fds", "Most file descriptors that may be open.").value(most);
    }
}

/// Since Linux 6.2 the folder's size is the number of its entries; before, somebody has to count them.
fn open_descriptors() -> Option<u64> {
    let folder = "/proc/self/fd";
    match std::fs::metadata(folder).ok()?.len() {
        // Reading the folder takes a descriptor of its own.
        0 => Some((std::fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1)),
        entries => Some(entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_written_as_the_format_says() {
        let mut text = Exposition::default();
        text.counter("a_total", "Two\nlines, a \\ and a \".")
            .sample(&[("kind", "x\"y\\z\nw"), ("of", "é")], 7)
            .sample(&[("kind", ""), ("of", "b")], u64::MAX);
        text.gauge("b", "One.").value(0.5);
        assert_eq!(
            text.into_text(),
            "# HELP a_total Two\\nlines, a \\\\ and a \".\n# TYPE a_total counter\n\
             a_total{kind=\"x\\\"y\\\\z\\nw\",of=\"é\"} 7\na_total{kind=\"\",of=\"b\"} 18446744073709551615\n\
             # HELP b One.\n# TYPE b gauge\nb 0.5\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative_and_end_with_all() {
        let mut text = Exposition::default();
        let counted = BTreeMap::from([(1, 2), (64, 3), (65, 4), (900, 1)]);
        text.histogram("h_bytes", "Sizes.", &[64, 128], &counted);
        assert_eq!(
            text.into_text(),
            "# HELP h_bytes Sizes.\n# TYPE h_bytes histogram\nh_bytes_bucket{le=\"64\"} 5\n\
             h_bytes_bucket{le=\"128\"} 9\nh_bytes_bucket{le=\"+Inf\"} 10\nh_bytes_sum 1354\nh_bytes_count 10\n"
        );
    }

    #[test]
    fn descriptors_are_counted_whichever_way_the_kernel_offers() {
        let before = open_descriptors().unwrap();
        let files: Vec<_> = (0..64).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = open_descriptors().unwrap();
        // Other tests of this process open and close some at the same time.
        assert!(after >= before + 32, "{before} before 64 were opened, {after} after");
        drop(files);
    }
}
