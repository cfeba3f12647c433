//! The measurement itself: warm-up, calls, and the check of every element.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError};
use paceline_plan::Reduction;

use super::exercise::Exercise;
use super::pattern::Value;
use super::row::Times;
use super::schedule::{Calls, PROBE_CALLS};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The time for one size.
    pub seconds: f64,
    /// Measured calls, if the user has said how many.
    pub iterations: Option<usize>,
    /// Warm-up calls, if the user has said how many.
    pub warm_up: Option<usize>,
}

/// Measures an exercise; all ranks together. Gives the times of the calls, each the maximum over the ranks, and how many
/// elements were wrong on all ranks together: after the first call and after the last one.
///
/// # Errors
/// Those of the collective.
pub fn measure<T: Value>(exercise: &mut Exercise<'_, T>, effort: &Effort) -> Result<(Times, u64), CommError> {
    let mut wrong = 0;
    exercise.spoil();
    timed_call(exercise)?;
    wrong += exercise.count_wrong();

    let calls = agree_on_calls(exercise, effort)?;
    for _ in 0..calls.warm_up {
        timed_call(exercise)?;
    }
    exercise.spoil();
    let mut seconds = vec![0.0; calls.measured];
    for call in &mut seconds {
        *call = timed_call(exercise)?;
    }
    wrong += exercise.count_wrong();

    let communicator = exercise.communicator();
    let mut total = [wrong as i64];
    communicator.all_reduce(&mut total, Reduction::Sum, &CallOptions::default())?;
    communicator.all_reduce(&mut seconds, Reduction::Max, &CallOptions::default())?;
    Ok((Times::new(seconds), total[0] as u64))
}

/// Seconds of this rank for one call.
fn timed_call<T: Value>(exercise: &mut Exercise<'_, T>) -> Result<f64, CommError> {
    exercise.refill();
    exercise.communicator().barrier(&CallOptions::default())?;
    let start = Instant::now();
    exercise.call()?;
    Ok(start.elapsed().as_secs_f64())
}

/// All ranks must make the same number of calls, so they agree on what a call takes, with all that stands around it.
fn agree_on_calls<T: Value>(exercise: &mut Exercise<'_, T>, effort: &Effort) -> Result<Calls, CommError> {
    let mut last = [0.0];
    for _ in 0..PROBE_CALLS {
        let start = Instant::now();
        timed_call(exercise)?;
        last = [start.elapsed().as_secs_f64()];
    }
    exercise.communicator().all_reduce(&mut last, Reduction::Max, &CallOptions::default())?;
    Ok(Calls::plan(effort.seconds, last[0], effort.iterations, effort.warm_up))
}
