//! Who won a group, and why. Pure.

use serde::{Deserialize, Serialize};

use super::summary::{Row, RowResult};

/// Who won.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// One method is faster than every other, beyond the noise.
    Winner {
        /// Its name.
        method: String,
        /// The second.
        runner_up: String,
        /// By which share it is faster than the second.
        margin: f64,
    },
    /// The difference between the fastest ones is within the noise.
    Tie {
        /// The fastest first.
        methods: Vec<String>,
    },
    /// There are no two methods to compare, or the noise was not measured.
    Undecided {
        /// What is missing.
        why: String,
    },
}

impl Verdict {
    /// Does this method win, alone or with others?
    pub fn is_among_the_best(&self, method: &str) -> bool {
        match self {
            Verdict::Winner { method: winner, .. } => winner == method,
            Verdict::Tie { methods } => methods.iter().any(|tied| tied == method),
            Verdict::Undecided { .. } => false,
        }
    }

    /// In a few words.
    pub fn headline(&self) -> String {
        match self {
            Verdict::Winner { method, runner_up, margin } => {
                format!("{method} wins, {:.1} % ahead of {runner_up}", 100.0 * margin)
            }
            Verdict::Tie { methods } => format!("tie: {}", methods.join(", ")),
            Verdict::Undecided { why } => format!("undecided: {why}"),
        }
    }
}

/// The verdict on the rows of a group, and the reason in words. The difference of two methods counts if it exceeds the
/// noise and what the runs themselves leave open (twice the standard error of the difference).
pub fn decide(rows: &[Row], noise: Option<f64>, c2c: Option<f64>, workers: usize) -> (Verdict, String) {
    let mut results: Vec<(&Row, &RowResult)> =
        rows.iter().filter_map(|row| Some((row, row.result.as_ref()?))).collect();
    results.sort_by(|a, b| b.1.samples_per_s.mean.total_cmp(&a.1.samples_per_s.mean));
    let undecided = |why: &str| (Verdict::Undecided { why: why.to_owned() }, String::new());
    let [(first, best), (second, next), ..] = results[..] else {
        return undecided("fewer than two methods gave a result");
    };
    let Some(noise) = noise else { return undecided("no method was measured twice, so the noise is unknown") };
    let within = |other: &RowResult| margin(best, other) <= noise.max(open(best, other));
    let tied: Vec<String> =
        results.iter().filter(|(_, result)| within(result)).map(|(row, _)| row.method.clone()).collect();
    let verdict = if tied.len() > 1 {
        Verdict::Tie { methods: tied }
    } else {
        let (method, runner_up) = (first.method.clone(), second.method.clone());
        Verdict::Winner { method, runner_up, margin: margin(best, next) }
    };
    let reason = reason(&verdict, &results, noise, c2c, workers);
    (verdict, reason)
}

/// By which share the first is faster.
fn margin(first: &RowResult, other: &RowResult) -> f64 {
    first.samples_per_s.mean / other.samples_per_s.mean - 1.0
}

/// Twice the standard error of the difference, as a share of the slower one's throughput.
fn open(first: &RowResult, other: &RowResult) -> f64 {
    let square = |result: &RowResult| {
        let estimate = &result.samples_per_s;
        estimate.std.map_or(0.0, |std| std * std / estimate.runs as f64)
    };
    2.0 * (square(first) + square(other)).sqrt() / other.samples_per_s.mean
}

fn reason(verdict: &Verdict, results: &[(&Row, &RowResult)], noise: f64, c2c: Option<f64>, workers: usize) -> String {
    let ratio = c2c.map(|c2c| format!("C2C = f({workers})/(M·I) = {c2c:.2e}; ")).unwrap_or_default();
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let Some((_, best)) = results.first() else { return String::new() };
    let bulk = results.iter().find(|(row, _)| row.method.starts_with("bsp-"));
    match verdict {
        Verdict::Tie { .. } => {
            let exposed = percent(best.exposed_share);
            format!(
                "{ratio}they differ by less than the same method from itself ({}); {exposed} of the fastest one's time is exposed communication",
                percent(noise)
            )
        }
        Verdict::Winner { runner_up, .. } => {
            let second = results.get(1).map_or(0.0, |(_, result)| result.exposed_share);
            let hidden = bulk.map(|(row, result)| {
                let (before, after) = (result.exposed_communication_s, best.exposed_communication_s);
                format!(
                    "; without overlap ({}) {:.1} ms of an iteration are exposed, here {:.1} ms",
                    row.method,
                    1e3 * before,
                    1e3 * after
                )
            });
            format!(
                "{ratio}{} of its time is exposed communication, {} of {runner_up}'s{}; the noise is {}",
                percent(best.exposed_share),
                percent(second),
                hidden.unwrap_or_default(),
                percent(noise)
            )
        }
        Verdict::Undecided { .. } => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::{panels, samples};
    use super::*;

    fn verdict(panel: usize, group: usize) -> (Verdict, String) {
        let group = panels(&samples::study())[panel].groups[group].clone();
        (group.verdict, group.reason)
    }

    #[test]
    fn a_clear_difference_has_a_winner_and_a_reason() {
        let (verdict, reason) = verdict(1, 0);
        let Verdict::Winner { method, runner_up, margin } = &verdict else { panic!("{verdict:?}") };
        assert_eq!((method.as_str(), runner_up.as_str()), ("bytescheduler-ps", "mg-wfbp"));
        assert!((margin - 0.117).abs() < 0.01, "{margin}");
        assert!(reason.contains("C2C = f(8)/(M·I) = 5.70e-5") && reason.contains("bsp-a2a"), "{reason}");
        assert!(verdict.is_among_the_best("bytescheduler-ps") && !verdict.is_among_the_best("mg-wfbp"));
    }

    #[test]
    fn a_difference_within_the_noise_is_a_tie() {
        let (verdict, reason) = verdict(0, 0);
        assert!(verdict.headline().starts_with("tie: "), "{verdict:?}");
        assert!(verdict.is_among_the_best("bsp-a2a") && verdict.is_among_the_best("wfbp-a2a"));
        assert!(reason.contains("less than the same method from itself"), "{reason}");
    }

    #[test]
    fn without_a_second_measurement_of_the_same_nothing_is_decided() {
        let mut group = panels(&samples::study())[1].groups[0].clone();
        let (verdict, _) = decide(&group.rows, None, None, 8);
        assert!(matches!(verdict, Verdict::Undecided { .. }));
        group.rows.truncate(1);
        let (verdict, _) = decide(&group.rows, Some(0.01), None, 8);
        assert!(matches!(verdict, Verdict::Undecided { .. }));
    }

    /// The noise of the A/A arm may be small by luck, while the runs of the methods scatter.
    #[test]
    fn runs_that_scatter_make_a_tie_too() {
        use super::super::cell::samples::{cell, setting};
        use super::super::cell::{Arm, Cell};
        let here = setting("cnn");
        let again = Cell { arm: Arm::Again, ..cell(&here, "bsp-a2a", 2) };
        let records = [
            samples::record(cell(&here, "bsp-a2a", 2), &[0.1, 0.1]),
            samples::record(cell(&here, "wfbp-a2a", 2), &[0.08, 0.11]),
            samples::record(again, &[0.1, 0.1]),
        ];
        let group = panels(&records)[0].groups[0].clone();
        assert_eq!(group.noise, Some(0.0));
        assert!(matches!(group.verdict, Verdict::Tie { .. }), "{:?}", group.verdict);
    }
}
