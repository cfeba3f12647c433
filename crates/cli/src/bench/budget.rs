//! How many iterations are measured, so that a study ends in time. Pure.

use std::fmt;

use paceline_train::RECORDED_ITERATIONS;
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

/// Warm-up iterations at least where time decides: the first one makes connections busy and memory present.
pub const WARM_UP: usize = 1;
/// And at most, as in the study: what is really computed gets faster by some percent until about then.
const WARM_UP_MAX: usize = 10;
/// Of the time that is left over at most this share is for more than the least of them.
const WARM_UP_SHARE: f64 = 0.25;
/// Measured iterations of a cell at least, over all its runs: a run is one value of several, and its iterations only make that
/// value steadier.
const OF_CELL_MIN: usize = 5;
/// Measured iterations of a run at least: the 95 % interval of its mean, by which it may end earlier, takes two.
const OF_RUN_MIN: usize = 2;
/// More of the shortest ones say nothing new.
pub const ITERATIONS_MAX: usize = 1000;

impl Protocol {
    /// Runs of each cell.
    pub fn runs(&self) -> usize {
        match self {
            Protocol::Fixed { runs, .. } | Protocol::Timed { runs, .. } => *runs,
        }
    }

    /// Measured iterations of a run in any case.
    pub fn at_least(&self) -> usize {
        match self {
            Protocol::Fixed { iterations, .. } => *iterations,
            Protocol::Timed { runs, .. } => OF_CELL_MIN.div_ceil((*runs).max(1)).max(OF_RUN_MIN),
        }
    }

    /// Seconds that run `number` of a cell, counted from 1, takes in any case.
    pub fn least_s(&self, pace: &Pace, number: usize) -> f64 {
        let warm_up = match self {
            Protocol::Fixed { warm_up, .. } => *warm_up,
            Protocol::Timed { .. } => WARM_UP,
        };
        pace.of_run(number).overhead_s + (warm_up + self.at_least()) as f64 * pace.iteration_s
    }

    /// Seconds that all runs of these cells take in any case.
    pub fn least_of_all_s<'a>(&self, paces: impl IntoIterator<Item = &'a Pace>) -> f64 {
        let of_cell = |pace| (1..=self.runs()).map(|number| self.least_s(pace, number)).sum::<f64>();
        paces.into_iter().map(of_cell).sum()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Fixed { warm_up, iterations, runs } => {
                write!(f, "{warm_up} warm-up + {iterations} measured iterations, {runs} runs")
            }
            Protocol::Timed { seconds, runs } => {
                let least = self.at_least();
                write!(f, "{runs} runs, as many iterations as {seconds:.0} s allow (at least {least})")
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
    /// None after so many seconds from the first measured one, once there are `at_least`; None: always `at_most`.
    pub seconds: Option<f64>,
}

/// What is known about the time that a run takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds of an iteration.
    pub iteration_s: f64,
    /// Seconds before the first and after the last measured iteration, but for the warm-up.
    pub overhead_s: f64,
}

/// Does this run of a cell, counted from 1, record iterations for the timeline, after those that are measured?
pub fn is_recorded(number: usize) -> bool {
    number == 1
}

impl Pace {
    /// That of run `number` of the cell, counted from 1.
    pub fn of_run(&self, number: usize) -> Pace {
        let recorded = if is_recorded(number) { RECORDED_ITERATIONS } else { 0 };
        Pace { overhead_s: self.overhead_s + recorded as f64 * self.iteration_s, ..*self }
    }
}

/// What is left for the next run and all after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Seconds.
    pub seconds: f64,
    /// Of them, what these runs take in any case.
    pub least_s: f64,
    /// How many there are.
    pub runs: usize,
}

/// What the next run may do: what it does in any case, and an equal share of the time that is left besides.
pub fn effort(protocol: &Protocol, pace: &Pace, left: Left) -> Effort {
    match *protocol {
        Protocol::Fixed { warm_up, iterations, .. } => {
            Effort { warm_up, at_least: iterations, at_most: iterations, seconds: None }
        }
        Protocol::Timed { .. } => {
            let share = (left.seconds - left.least_s).max(0.0) / left.runs.max(1) as f64;
            let at_least = protocol.at_least();
            let more = (WARM_UP_SHARE * share / pace.iteration_s.max(1e-9)) as usize;
            let more = more.min(WARM_UP_MAX - WARM_UP);
            let seconds = Some((at_least as f64 - more as f64) * pace.iteration_s + share);
            Effort { warm_up: WARM_UP + more, at_least, at_most: ITERATIONS_MAX, seconds }
        }
    }
}

/// Seconds that a run with this effort takes.
pub fn duration(pace: &Pace, effort: &Effort) -> f64 {
    let in_time = |seconds: f64| (seconds / pace.iteration_s.max(1e-9)).round() as usize;
    let fit = effort.seconds.map_or(effort.at_most, in_time);
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
    let mut least_s = protocol.least_of_all_s(paces);
    let mut total = 0.0;
    for run in 0..runs {
        for (index, pace) in paces.iter().enumerate() {
            let runs = (runs - run) * paces.len() - index;
            let effort = effort(protocol, pace, Left { seconds: left, least_s, runs });
            let seconds = duration(&pace.of_run(run + 1), &effort);
            left -= seconds;
            least_s -= protocol.least_s(pace, run + 1);
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
            let effort = effort(&STUDY, &pace(seconds), Left { seconds: 1.0, least_s: 0.0, runs: 1 });
            assert_eq!(effort, Effort { warm_up: 10, at_least: 100, at_most: 100, seconds: None });
        }
        // The first run of each cell records three more.
        let expected = 5.0 * (1.0 + 110.0 * 0.3) + 3.0 * 0.3;
        assert!((estimate(&STUDY, &[pace(0.1), pace(0.2)]) - expected).abs() < 1e-9);
    }

    #[test]
    fn each_run_has_what_it_needs_and_an_equal_share_of_the_rest() {
        let of = |iteration_s, seconds| {
            let left = Left { seconds, least_s: 15.0, runs: 10 };
            let effort = effort(&TIMED, &pace(iteration_s), left);
            (effort.warm_up, effort.seconds.expect("time decides"))
        };
        // A quarter of the rest is for warming up, as far as that takes.
        for (iteration_s, seconds, warm_up, measured_s) in
            [(0.1, 25.0, 3, 0.3 + 0.8), (0.01, 25.0, 10, 0.03 + 0.91), (1.0, 25.0, 1, 3.0 + 1.0), (0.1, -5.0, 1, 0.3)]
        {
            let (warmed_up, timed_s) = of(iteration_s, seconds);
            assert_eq!(warmed_up, warm_up, "{iteration_s} s");
            assert!((timed_s - measured_s).abs() < 1e-9, "{iteration_s} s: {timed_s} s");
        }
    }

    #[test]
    fn a_cell_has_five_iterations_and_a_run_two() {
        let of = |runs| Protocol::Timed { seconds: 1.0, runs };
        assert_eq!([1, 2, 3, 4, 5, 9].map(|runs| of(runs).at_least()), [5, 3, 2, 2, 2, 2]);
        assert!(of(2).to_string().contains("(at least 3)"));
        let once = effort(&of(1), &pace(0.1), Left { seconds: 0.0, least_s: 9.0, runs: 1 });
        assert_eq!((once.at_least, once.warm_up), (5, WARM_UP));
    }

    /// Where there is time for more than the least, a study does not take longer than it may, even if what is slow comes
    /// last.
    #[test]
    fn a_timed_study_ends_in_time() {
        let paces: Vec<Pace> = (0..20).map(|cell| pace(0.01 * f64::from(cell + 1))).collect();
        let total = estimate(&TIMED, &paces);
        assert!(total <= 105.0 && total > 60.0, "{total}");
        let slow_at_last = [pace(0.001), pace(0.001), pace(0.001), pace(7.0)];
        assert!(estimate(&TIMED, &slow_at_last) <= 105.0);
        let slow = estimate(&TIMED, &[pace(100.0)]);
        // One to warm up and three measured in each run, and three recorded.
        let least_s = 2.0 * (0.5 + 4.0 * 100.0) + 3.0 * 100.0;
        assert!((slow - least_s).abs() < 1e-9, "the least is measured in any case: {slow}");
        assert!((TIMED.least_of_all_s(&[pace(100.0)]) - least_s).abs() < 1e-9);
    }
}
