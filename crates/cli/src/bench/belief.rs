//! What is believed of the time that the runs of a cell take, and how long one may take before it hangs.

use std::time::Duration;

use super::budget::{Effort, Pace, duration, is_recorded};
use super::conduct::recorded_iterations;

/// A world that takes so many times its estimate, and at least this long, hangs.
const PATIENCE: f64 = 10.0;
/// So many times, if the estimate is what a run of the cell took until it was ended: it may have been too low, and if
/// the cell hangs in fact, the study must not wait for it ten times as long each time.
pub const PATIENCE_AGAIN: f64 = 2.0;
pub const PATIENCE_MIN: Duration = Duration::from_secs(120);

/// What is believed of the time that a cell's runs take.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    /// What they take.
    pub pace: Pace,
    /// A run hangs if it takes so many times what it should.
    patience: f64,
}

impl Belief {
    /// Of a guess, or of what a run took.
    pub fn new(pace: Pace) -> Belief {
        Belief { pace, patience: PATIENCE }
    }

    /// After a run with this effort was ended, as it took so long: no faster than that.
    pub fn after_time_out(&self, effort: &Effort, number: usize, limit: Duration) -> Belief {
        let iterations = effort.warm_up + effort.at_least + recorded_iterations(is_recorded(number));
        let iteration_s = (limit.as_secs_f64() - self.pace.overhead_s) / iterations.max(1) as f64;
        let pace = Pace { iteration_s: self.pace.iteration_s.max(iteration_s), ..self.pace };
        Belief { pace, patience: PATIENCE_AGAIN }
    }

    /// How long run `number`, with this effort, may take.
    pub fn limit(&self, effort: &Effort, number: usize) -> Duration {
        let seconds = self.patience * duration(&self.pace.of_run(number), effort);
        Duration::from_secs_f64(seconds).max(PATIENCE_MIN)
    }
}
