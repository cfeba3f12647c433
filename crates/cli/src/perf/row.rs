//! One line of the table, and how times become numbers.

use std::io::{self, Write};

use paceline_plan::CollectiveKind;
use serde::Serialize;

/// What was measured for one size. `algbw_gbps` and `busbw_gbps` are 10⁹ bytes per second, as nccl-tests prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The collective.
    pub collective: String,
    /// What carried it.
    pub transport: String,
    /// The algorithm that was run.
    pub algorithm: String,
    /// The world size.
    pub ranks: usize,
    /// The element type.
    pub dtype: String,
    /// The bytes of the larger of input and output.
    pub bytes: usize,
    /// How many calls were measured.
    pub iterations: usize,
    /// The fastest call. A call takes as long as its slowest rank.
    pub min_us: f64,
    /// Half of the calls were not slower.
    pub p50_us: f64,
    /// 99 % of the calls were not slower.
    pub p99_us: f64,
    /// The slowest call.
    pub max_us: f64,
    /// Bytes over the median time.
    pub algbw_gbps: f64,
    /// `algbw_gbps` times [`bus_factor`].
    pub busbw_gbps: f64,
    /// Elements that were not what they must be, on all ranks together.
    pub wrong: u64,
}

/// The times of the calls of one size, in ascending order, in seconds.
pub struct Times(Vec<f64>);

impl Times {
    /// The times in any order; at least one.
    pub fn new(mut seconds: Vec<f64>) -> Times {
        seconds.sort_by(f64::total_cmp);
        Times(seconds)
    }

    /// The times that a clock would have shown that goes slower by a factor.
    pub fn divided_by(mut self, factor: f64) -> Times {
        self.0.iter_mut().for_each(|seconds| *seconds /= factor);
        self
    }

    /// The smallest time, in microseconds, that is not exceeded by this share of the calls.
    pub fn percentile_us(&self, share: f64) -> f64 {
        let place = (share * self.0.len() as f64).ceil() as usize;
        self.0[place.clamp(1, self.0.len()) - 1] * 1e6
    }

    /// How many calls.
    pub fn calls(&self) -> usize {
        self.0.len()
    }
}

/// How the bus bandwidth follows from the algorithm bandwidth: the share of the bytes that must cross the link of a
/// rank. It makes collectives and world sizes comparable with the link's own bandwidth. With a shard, everything crosses
/// the shard's link.
///
/// Source: nccl-tests, doc/PERFORMANCE.md; a shard by the same rule.
pub fn bus_factor(kind: CollectiveKind, ranks: usize) -> f64 {
    let ranks = ranks as f64;
    match kind {
        CollectiveKind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll => (ranks - 1.0) / ranks,
        CollectiveKind::PushPull | CollectiveKind::Push => ranks - 1.0,
        CollectiveKind::Broadcast
        | CollectiveKind::Reduce
        | CollectiveKind::Gather
        | CollectiveKind::Scatter
        | CollectiveKind::Barrier
        | CollectiveKind::SendReceive => 1.0,
    }
}

/// The head of the table.
pub fn write_head(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "#{:>11} {:>11} {:>5} {:<19} {:>7} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}",
        "bytes", "count", "type", "algorithm", "calls", "min", "p50", "p99", "max", "algbw", "busbw", "wrong"
    )?;
    writeln!(
        out,
        "#{:>11} {:>11} {:>5} {:<19} {:>7} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}",
        "", "", "", "", "", "us", "us", "us", "us", "GB/s", "GB/s", ""
    )
}

impl Row {
    /// One line of the table.
    pub fn write(&self, element_bytes: usize, out: &mut dyn Write) -> io::Result<()> {
        let Row { bytes, dtype, algorithm, iterations, min_us, p50_us, p99_us, max_us, wrong, .. } = self;
        let count = bytes / element_bytes;
        writeln!(
            out,
            " {bytes:>11} {count:>11} {dtype:>5} {algorithm:<19} {iterations:>7} {min_us:>10.2} {p50_us:>10.2} \
             {p99_us:>10.2} {max_us:>10.2} {:>8.2} {:>8.2} {wrong:>6}",
            self.algbw_gbps, self.busbw_gbps
        )?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_times() {
        let times = Times::new((1..=200).rev().map(|microseconds| f64::from(microseconds) * 1e-6).collect());
        let rounded = |share| times.percentile_us(share).round();
        assert_eq!([rounded(0.0), rounded(0.5), rounded(0.99), rounded(1.0)], [1.0, 100.0, 198.0, 200.0]);
        assert_eq!(Times::new(vec![3e-6]).percentile_us(0.99).round(), 3.0);
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        assert_eq!(bus_factor(CollectiveKind::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(CollectiveKind::AllGather, 4), 0.75);
        assert_eq!(bus_factor(CollectiveKind::Broadcast, 4), 1.0);
    }
}
