//! What is measured in the lab, and what is demanded of it.

use super::report::{Bound, Row};

/// One command line, whose output fills one or two rows of the report.
pub struct Case {
    /// `bandwidth`, `urgent` or `computation`.
    pub row: &'static str,
    /// So many hosts, with a rank each.
    pub hosts: usize,
    /// The algorithm that is asked for.
    pub algorithm: &'static str,
    /// What stands beside, if anything.
    pub beside: &'static [&'static str],
    /// The sizes that get a row each.
    pub sizes: &'static [usize],
}

const MIB: usize = 1 << 20;
/// Of the rate, for a large all-reduce: of what a link carries 95.6 % is payload (docs/benchmarking.md).
const RATE_SHARE_MIN: f64 = 0.93;
/// An urgent call may take so many times as long as alone.
const URGENT_RATIO_MAX: f64 = 2.5;
/// A computation may take so many times as long as alone.
const COMPUTATION_RATIO_MAX: f64 = 1.05;

/// All that there is.
pub fn cases() -> Vec<Case> {
    let large = |algorithm| Case {
        row: "bandwidth",
        hosts: 4,
        algorithm,
        beside: &["--min", "10MiB", "--factor", "10"],
        sizes: &[10 * MIB, 100 * MIB],
    };
    vec![
        large("ring"),
        large("auto"),
        Case {
            row: "urgent",
            hosts: 4,
            algorithm: "auto",
            beside: &["--urgent", "1MiB", "--iterations", "5"],
            sizes: &[100 * MIB],
        },
        Case {
            row: "computation",
            hosts: 2,
            algorithm: "auto",
            beside: &["--compute", "--iterations", "3"],
            sizes: &[100 * MIB],
        },
    ]
}

impl Case {
    /// For progress and errors.
    pub fn name(&self) -> String {
        format!("{}, {} hosts, {}", self.row, self.hosts, self.algorithm)
    }

    /// What `perf all-reduce` is told.
    pub fn arguments(&self) -> Vec<String> {
        let words = ["--max", "100MiB", "--algorithm", self.algorithm].into_iter().chain(self.beside.iter().copied());
        words.map(str::to_owned).collect()
    }

    /// The rows that it fills, without measurements.
    pub fn rows(&self, bits_per_s: f64) -> Vec<Row> {
        let hosts = self.hosts;
        let row = |case, bytes, floor_us, demanded| Row {
            case,
            command: ["perf".to_owned(), "all-reduce".to_owned()].into_iter().chain(self.arguments()).collect(),
            hosts,
            bytes,
            floor_us,
            demanded,
            values: Vec::new(),
            measurements: Vec::new(),
        };
        let large = |bytes: &usize| {
            // A host must send, and receive, 2(n−1)/n of the data: Patarasuk and Yuan (2009).
            let floor_us = 2.0 * (hosts as f64 - 1.0) / hosts as f64 * *bytes as f64 * 8.0 / bits_per_s * 1e6;
            let case = format!("{} MiB, {}: share of the rate", bytes / MIB, self.algorithm);
            row(case, Some(*bytes), Some(floor_us), Bound::AtLeast(RATE_SHARE_MIN))
        };
        match self.row {
            "bandwidth" => self.sizes.iter().map(large).collect(),
            "urgent" => {
                let case = "1 MiB, urgent, beside 100 MiB: times as long as alone".to_owned();
                vec![row(case, None, None, Bound::AtMost(URGENT_RATIO_MAX))]
            }
            _ => {
                let case = "a computation beside 100 MiB: times as long as alone".to_owned();
                vec![row(case, None, None, Bound::AtMost(COMPUTATION_RATIO_MAX))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_fills_as_many_rows_as_it_has_sizes() {
        for case in cases() {
            assert_eq!(case.rows(1e9).len(), case.sizes.len(), "{}", case.name());
        }
    }

    #[test]
    fn the_floor_is_the_bytes_that_a_host_must_send() {
        let floor = cases()[0].rows(1e9)[1].floor_us.expect("bandwidth has a floor");
        // 100 MiB · 3/2 · 8 bits at 1 Gbit/s.
        assert!((floor - 1_258_291.2).abs() < 1e-3, "{floor}");
    }
}
