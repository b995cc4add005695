//! The counts of one phase, and the line that reports them.

/// A longer response waited for a delayed ACK (40 ms).
const LATE_NS: u64 = 30_000_000;
const BUCKETS: usize = 64 * 128;

/// The counts of one phase.
pub struct Counts {
    pub started: u64,
    pub done: u64,
    pub errors: u64,
    pub bytes: u64,
    pub full: u64,
    pub resumed: u64,
    /// The sum of the hashes of the requested paths.
    pub urls: u64,
    late: u64,
    latency_max: u64,
    latency_sum: u64,
    /// 64 to 128 linear steps per power of two: an error below 1.6 %.
    histogram: Vec<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            started: 0,
            done: 0,
            errors: 0,
            bytes: 0,
            full: 0,
            resumed: 0,
            urls: 0,
            late: 0,
            latency_max: 0,
            latency_sum: 0,
            histogram: vec![0; BUCKETS],
        }
    }
}

impl Counts {
    /// Counts a response by the nanoseconds since its request was due.
    pub fn finish(&mut self, latency: u64) {
        self.done += 1;
        self.histogram[bucket(latency)] += 1;
        self.latency_sum += latency;
        self.latency_max = self.latency_max.max(latency);
        self.late += u64::from(latency > LATE_NS);
    }

    fn percentile_us(&self, part: f64) -> f64 {
        let want = ((self.done as f64 * part) as u64).min(self.done.saturating_sub(1));
        let mut sum = 0;
        for (bucket, count) in self.histogram.iter().enumerate() {
            sum += count;
            if sum > want {
                return bucket_value(bucket) as f64 / 1e3;
            }
        }
        0.0
    }

    /// Returns the JSON line of the phase; `connections` were made since the start.
    pub fn line(&self, seconds: f64, cpu: f64, connections: u64) -> String {
        let mean = self.latency_sum as f64 / 1e3 / self.done.max(1) as f64;
        format!(
            "{{\"total\":{},\"seconds\":{seconds:.4},\"rps\":{:.1},\"errors\":{},\"bytes\":{},\
             \"mean_us\":{mean:.1},\"p50_us\":{:.1},\"p99_us\":{:.1},\"p999_us\":{:.1},\
             \"max_us\":{:.1},\"late\":{},\"client_cpu_s\":{cpu:.4},\"connections\":{connections},\
             \"urls\":{},\"full\":{},\"resumed\":{}}}",
            self.done,
            self.done as f64 / seconds,
            self.errors,
            self.bytes,
            self.percentile_us(0.5),
            self.percentile_us(0.99),
            self.percentile_us(0.999),
            self.latency_max as f64 / 1e3,
            self.late,
            self.urls,
            self.full,
            self.resumed,
        )
    }
}

fn bucket(value: u64) -> usize {
    if value < 128 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() as usize - 6;
    shift * 64 + (value >> shift) as usize
}

fn bucket_value(bucket: usize) -> u64 {
    if bucket < 128 {
        return bucket as u64;
    }
    let shift = bucket / 64 - 1;
    (((bucket - shift * 64) as u64) << shift) + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_to_a_64th() {
        for value in [0, 1, 127, 128, 129, 1000, 65_535, 1 << 40, (1 << 40) + 12_345_678] {
            let found = bucket_value(bucket(value));
            assert!(found.abs_diff(value) <= value / 64, "{value} {found}");
        }
    }

    #[test]
    fn percentiles_are_of_the_requests() {
        let mut counts = Counts::default();
        for _ in 0..98 {
            counts.finish(100_000);
        }
        counts.finish(50_000_000);
        counts.finish(50_000_000);
        assert!((counts.percentile_us(0.5) - 100.0).abs() < 2.0);
        assert!((counts.percentile_us(0.99) - 50_000.0).abs() < 800.0);
        assert!(counts.line(1.0, 0.5, 3).contains("\"late\":2,"));
    }
}
