//! Latencies, with less than 1 % of error, in constant memory.

use std::time::Duration;

/// Steps within each power of two.
const STEPS: u64 = 128;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Enough for more than a day in nanoseconds.
const BUCKETS: usize = 48 * STEPS as usize;

/// Counts by length.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0 }
    }
}

/// Values below [`STEPS`] have a bucket each; above, a power of two has [`STEPS`] of them.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(STEP_BITS + 1);
    let index = u64::from(shift) * STEPS + (nanos >> shift);
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let step = bucket - shift * STEPS;
    ((step + 1) << shift) - 1
}

impl Histogram {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.counts[bucket(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.total += 1;
    }

    /// The latency that `share` of all do not exceed; none without any.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.filter(|_| self.total > 0).map(|bucket| Duration::from_nanos(upper(bucket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_in_its_bucket_and_the_bucket_is_narrow() {
        let mut last = 0;
        for nanos in (0..100_000).chain((17..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 12_345])) {
            let at = bucket(nanos);
            assert!(upper(at) >= nanos, "{nanos}");
            assert!(at == 0 || upper(at - 1) < nanos, "{nanos}");
            assert!(upper(at) - nanos <= nanos / 100 + 1, "{nanos}");
            last = last.max(at);
        }
        assert!(last < BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        let mut values: Vec<u64> = (0..1000).map(|n| (n * 7919) % 100_003).collect();
        values.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        values.sort();
        for (share, rank) in [(0.0, 0), (0.5, 499), (0.99, 989), (1.0, 999)] {
            let exact = values[rank] as f64;
            let found = histogram.quantile(share).unwrap().as_nanos() as f64;
            assert!(found >= exact && found <= exact * 1.01 + 1.0, "{share}: {found} {exact}");
        }
    }
}
