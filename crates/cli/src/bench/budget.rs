//! How many iterations are measured, so that a study ends in time. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    /// So many iterations and runs, however long they take.
    Fixed {
        /// Before the measured ones.
        warm_up: usize,
        /// Measured.
        iterations: usize,
        /// Of each cell.
        runs: usize,
    },
    /// As many iterations as there is time for.
    Timed {
        /// For the whole study.
        seconds: f64,
        /// Of each cell.
        runs: usize,
    },
}

/// The study's own: 10 warm-up and 100 measured iterations, 5 runs.
pub const STUDY: Protocol = Protocol::Fixed { warm_up: 10, iterations: 100, runs: 5 };

/// Warm-up iterations where time decides: the first one makes connections busy and memory present.
pub const WARM_UP: usize = 1;
/// Fewer measured iterations say nothing.
pub const ITERATIONS_MIN: usize = 3;
/// More are the study's own protocol.
pub const ITERATIONS_MAX: usize = 100;

impl Protocol {
    /// Runs of each cell.
    pub fn runs(&self) -> usize {
        match self {
            Protocol::Fixed { runs, .. } | Protocol::Timed { runs, .. } => *runs,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Fixed { warm_up, iterations, runs } => {
                write!(f, "{warm_up} warm-up + {iterations} measured iterations, {runs} runs")
            }
            Protocol::Timed { seconds, runs } => {
                write!(f, "{runs} runs, as many iterations as {seconds:.0} s allow (at least {ITERATIONS_MIN})")
            }
        }
    }
}

/// How much one run measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Iterations before the measured ones.
    pub warm_up: usize,
    /// Measured at least.
    pub at_least: usize,
    /// Measured at most.
    pub at_most: usize,
    /// None after so many seconds, once there are `at_least`; None: always `at_most`.
    pub seconds: Option<f64>,
}

/// What is known about the time that a run takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds of an iteration.
    pub iteration_s: f64,
    /// Seconds before the first and after the last iteration.
    pub overhead_s: f64,
}

/// What the next run may do if `left_s` seconds are left for it and all `runs_left - 1` after it.
pub fn effort(protocol: &Protocol, pace: &Pace, left_s: f64, runs_left: usize) -> Effort {
    match *protocol {
        Protocol::Fixed { warm_up, iterations, .. } => {
            Effort { warm_up, at_least: iterations, at_most: iterations, seconds: None }
        }
        Protocol::Timed { .. } => {
            let share = left_s / runs_left.max(1) as f64 - pace.overhead_s - WARM_UP as f64 * pace.iteration_s;
            let seconds = Some(share.max(0.0));
            Effort { warm_up: WARM_UP, at_least: ITERATIONS_MIN, at_most: ITERATIONS_MAX, seconds }
        }
    }
}

/// Seconds that a run with this effort takes.
pub fn duration(pace: &Pace, effort: &Effort) -> f64 {
    let fit = effort.seconds.map_or(effort.at_most, |seconds| (seconds / pace.iteration_s.max(1e-9)).ceil() as usize);
    let measured = fit.clamp(effort.at_least, effort.at_most);
    pace.overhead_s + (effort.warm_up + measured) as f64 * pace.iteration_s
}

/// Seconds of the whole study, before it has begun.
pub fn estimate(protocol: &Protocol, paces: &[Pace]) -> f64 {
    let runs = protocol.runs();
    let mut left = match protocol {
        Protocol::Timed { seconds, .. } => *seconds,
        Protocol::Fixed { .. } => f64::INFINITY,
    };
    let mut total = 0.0;
    for run in 0..runs {
        for (index, pace) in paces.iter().enumerate() {
            let runs_left = (runs - run) * paces.len() - index;
            let seconds = duration(pace, &effort(protocol, pace, left, runs_left));
            left -= seconds;
            total += seconds;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMED: Protocol = Protocol::Timed { seconds: 100.0, runs: 2 };

    fn pace(iteration_s: f64) -> Pace {
        Pace { iteration_s, overhead_s: 0.5 }
    }

    #[test]
    fn a_fixed_protocol_is_kept_whatever_it_takes() {
        for seconds in [1e-6, 100.0] {
            let effort = effort(&STUDY, &pace(seconds), 1.0, 1);
            assert_eq!(effort, Effort { warm_up: 10, at_least: 100, at_most: 100, seconds: None });
        }
        assert!((estimate(&STUDY, &[pace(0.1), pace(0.2)]) - 5.0 * (1.0 + 110.0 * 0.3)).abs() < 1e-9);
    }

    #[test]
    fn each_run_has_an_equal_share_of_the_time_that_is_left() {
        let of = |iteration_s, left_s| effort(&TIMED, &pace(iteration_s), left_s, 10).seconds.expect("time decides");
        assert!((of(0.1, 25.0) - (2.5 - 0.5 - 0.1)).abs() < 1e-9);
        assert_eq!(of(0.1, -5.0), 0.0);
    }

    /// Where there is time for more than the least, a study does not take longer than it may.
    #[test]
    fn a_timed_study_ends_in_time() {
        let paces: Vec<Pace> = (0..20).map(|cell| pace(0.01 * f64::from(cell + 1))).collect();
        let total = estimate(&TIMED, &paces);
        assert!(total <= 110.0 && total > 60.0, "{total}");
        let slow = estimate(&TIMED, &[pace(100.0)]);
        assert!((slow - 2.0 * (0.5 + 4.0 * 100.0)).abs() < 1e-9, "the least is measured in any case: {slow}");
    }
}
