//! The measurement itself: warm-up, calls, and the check of every element in two of them: the first call of all, and the
//! last measured one.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator};
use paceline_plan::Reduction;

use super::calls::{Calls, PROBE_CALLS};
use super::row::Times;

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

/// Something that all ranks call together, again and again.
pub trait Measurable {
    /// The ranks.
    fn communicator(&self) -> &Communicator;

    /// Puts the data back where a call changes its own input.
    fn refill(&mut self);

    /// Makes the output wrong, so that only a call can make it right.
    fn spoil(&mut self);

    /// Does it once.
    fn call(&mut self) -> Result<(), CommError>;

    /// How many elements of this rank's output are not what they must be.
    fn count_wrong(&self) -> u64;

    /// Waits until every rank has come here.
    fn barrier(&mut self) -> Result<(), CommError> {
        self.communicator().barrier(&CallOptions::default())
    }
}

/// Measures; all ranks together. Gives the times of the calls, each the maximum over the ranks, and how many elements
/// were wrong on all ranks together, in the calls that are checked: the first one and the last measured one. The output
/// is spoilt before each of these, ahead of its barrier.
///
/// # Errors
/// Those of the collective.
pub fn measure(subject: &mut impl Measurable, effort: &Effort) -> Result<(Times, u64), CommError> {
    let mut wrong = 0;
    subject.spoil();
    timed_call(subject)?;
    wrong += subject.count_wrong();

    let calls = agree_on_calls(subject, effort)?;
    for _ in 0..calls.warm_up {
        timed_call(subject)?;
    }
    let mut seconds = vec![0.0; calls.measured];
    let last = calls.measured.saturating_sub(1);
    for (index, call) in seconds.iter_mut().enumerate() {
        if index == last {
            subject.spoil();
        }
        *call = timed_call(subject)?;
    }
    wrong += subject.count_wrong();

    let communicator = subject.communicator();
    let mut total = [wrong as i64];
    communicator.all_reduce(&mut total, Reduction::Sum, &CallOptions::default())?;
    slowest(communicator, &mut seconds)?;
    Ok((Times::new(seconds), total[0] as u64))
}

/// Seconds of this rank for one call.
fn timed_call(subject: &mut impl Measurable) -> Result<f64, CommError> {
    subject.refill();
    subject.barrier()?;
    let start = Instant::now();
    subject.call()?;
    Ok(start.elapsed().as_secs_f64())
}

/// All ranks must make the same number of calls, so they agree on what a call takes, with all that stands around it.
fn agree_on_calls(subject: &mut impl Measurable, effort: &Effort) -> Result<Calls, CommError> {
    let mut last = [0.0];
    for _ in 0..PROBE_CALLS {
        let start = Instant::now();
        timed_call(subject)?;
        last = [start.elapsed().as_secs_f64()];
    }
    slowest(subject.communicator(), &mut last)?;
    Ok(Calls::plan(effort.seconds, last[0], effort.iterations, effort.warm_up))
}

/// Call by call, the time of the slowest rank.
fn slowest(communicator: &Communicator, seconds: &mut [f64]) -> Result<(), CommError> {
    communicator.all_reduce(seconds, Reduction::Max, &CallOptions::default())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_plan::CollectiveKind;

    use super::super::exercise::{Exercise, Subject};
    use super::super::pattern::Pattern;
    use super::*;

    const EFFORT: Effort = Effort { seconds: 0.0, iterations: Some(4), warm_up: Some(3) };

    fn sum() -> Subject {
        let (kind, reduction) = (CollectiveKind::AllReduce, Reduction::Sum);
        let options = CallOptions::default();
        Subject { kind, reduction, root: 0, in_place: false, allocated: false, program: None, options }
    }

    /// Runs the same on two ranks and gives what rank 0 and rank 1 got.
    fn on_two_ranks<R: Send>(rank: impl Fn(&Communicator) -> R + Sync) -> [R; 2] {
        let world = Communicator::threads(2).expect("threads connect");
        thread::scope(|scope| {
            let rank = &rank;
            let threads: Vec<_> = world.into_iter().map(|own| scope.spawn(move || rank(&own))).collect();
            let results: Vec<R> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            results.try_into().unwrap_or_else(|_| panic!("two ranks"))
        })
    }

    #[test]
    fn what_one_rank_finds_wrong_is_known_to_both() {
        let wrong = on_two_ranks(|communicator| {
            // Rank 1 contributes to, and expects, another reduction.
            let reduction = [Reduction::Sum, Reduction::Max][communicator.rank()];
            let (subject, pattern) = (sum(), Pattern::<f32>::new(reduction, 2));
            let mut exercise = Exercise::new(communicator, &subject, &pattern, 4_000).expect("memory");
            measure(&mut exercise, &EFFORT).expect("both ranks call").1
        });
        assert!(wrong[0] > 0 && wrong[0] == wrong[1], "{wrong:?}");
    }

    #[test]
    fn a_call_takes_as_long_as_its_slowest_rank() {
        let seconds = on_two_ranks(|communicator| {
            let mut seconds = if communicator.rank() == 0 { [1.0, 5.0, 2.0] } else { [3.0, 4.0, 2.5] };
            slowest(communicator, &mut seconds).expect("both ranks call");
            seconds
        });
        assert_eq!(seconds, [[3.0, 5.0, 2.5]; 2]);
    }

    /// An exercise that writes down what is done with it, and does nothing in one of the calls.
    struct Recorded<'a> {
        exercise: Exercise<'a, f32>,
        record: String,
        idle_call: Option<usize>,
    }

    impl Measurable for Recorded<'_> {
        fn communicator(&self) -> &Communicator {
            self.exercise.communicator()
        }

        fn refill(&mut self) {
            self.record.push('r');
        }

        fn spoil(&mut self) {
            self.record.push('s');
            self.exercise.spoil();
        }

        fn call(&mut self) -> Result<(), CommError> {
            self.record.push('c');
            let calls = self.record.matches('c').count();
            if self.idle_call == Some(calls) { Ok(()) } else { self.exercise.call() }
        }

        fn count_wrong(&self) -> u64 {
            self.exercise.count_wrong()
        }

        fn barrier(&mut self) -> Result<(), CommError> {
            self.record.push('b');
            self.exercise.barrier()
        }
    }

    /// What is done, how many calls are measured, and what is found wrong, if one call does nothing on both ranks.
    fn recorded(idle_call: Option<usize>) -> (String, usize, u64) {
        let [result, _] = on_two_ranks(|communicator| {
            let pattern = Pattern::<f32>::new(Reduction::Sum, 2);
            let subject = sum();
            let exercise = Exercise::new(communicator, &subject, &pattern, 4_000).expect("memory");
            let mut recorded = Recorded { exercise, record: String::new(), idle_call };
            let (times, wrong) = measure(&mut recorded, &EFFORT).expect("both ranks call");
            (recorded.record, times.calls(), wrong)
        });
        result
    }

    #[test]
    fn a_barrier_stands_before_every_call_and_the_checked_calls_start_from_wrong_data() {
        let (record, calls, wrong) = recorded(None);
        // The first call; two to learn the time; three to warm up; four that are measured.
        assert_eq!(record, format!("srbc{}{}s{}", "rbc".repeat(2 + 3), "rbc".repeat(3), "rbc"));
        assert_eq!((calls, wrong), (4, 0));
    }

    #[test]
    fn a_checked_call_that_does_nothing_is_found_out() {
        let elements = 2 * 1_000;
        assert_eq!(recorded(Some(1)).2, elements, "the first call");
        assert_eq!(recorded(Some(1 + 2 + 3 + 4)).2, elements, "the last call");
    }
}
