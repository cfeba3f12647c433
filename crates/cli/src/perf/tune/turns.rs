//! By turns: what a tuner chooses, and rivals that are always the same.
//!
//! What a boundary takes belongs to the tuner: without it, there would be none.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator};
use paceline_train::{Took, student_t_975};
use paceline_tune::Random;
use paceline_tune::statistics::median;

use super::largest;

/// Totals are compared from so many calls on: before, one call decides.
pub const PREFIX: usize = 100;

/// Something that a tuner does, and that rivals do.
pub trait Playing {
    /// What the others do.
    type Rival;

    /// The ranks.
    fn communicator(&self) -> &Communicator;

    /// Once, as the tuner says; what it took on this rank.
    ///
    /// # Errors
    /// Those of the communication.
    fn tuned(&mut self, is_checked: bool) -> Result<Took, CommError>;

    /// Once, as a rival does it.
    ///
    /// # Errors
    /// Those of the communication.
    fn rival(&mut self, rival: &Self::Rival, is_checked: bool) -> Result<Took, CommError>;

    /// Nothing is under way: the ranks may change to another policy.
    ///
    /// # Errors
    /// Those of the communication.
    fn boundary(&mut self) -> Result<(), CommError>;
}

/// Seconds, call by call. All ranks begin together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// From when the last rank has begun until the last one has ended: what an iteration waits for.
    pub lasted: Vec<f64>,
    /// Of the fastest one, which as a rule is the one that came last: others have waited for it.
    pub fastest: Vec<f64>,
}

/// Round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    /// Calls alone.
    pub tuned: Times,
    /// By rival.
    pub rivals: Vec<Times>,
    /// Seconds of the boundary after each round; 0 where there was none.
    pub boundaries: Vec<f64>,
}

/// How long it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    pub rounds: usize,
    /// So many rounds lie between two boundaries.
    pub between: usize,
    pub seed: u64,
}

/// Round by round, the tuner and every rival once, in an order of chance that is the same on all ranks. The first round and the
/// last are checked.
///
/// # Errors
/// Those of the communication.
pub fn play<P: Playing>(playing: &mut P, rivals: &[P::Rival], length: &Length) -> Result<Turns, CommError> {
    let mut order: Vec<usize> = (0..=rivals.len()).collect();
    let mut random = Random::new(length.seed, 0x7025);
    let (mut tuned, mut others) = (Vec::new(), vec![Vec::new(); rivals.len()]);
    let (mut boundaries, nothing_s) = (Vec::new(), clock_s());
    for round in 1..=length.rounds {
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        let is_checked = round == 1 || round == length.rounds;
        for &turn in &order {
            match turn.checked_sub(1) {
                None => tuned.push(playing.tuned(is_checked)?),
                Some(rival) => others[rival].push(playing.rival(&rivals[rival], is_checked)?),
            }
        }
        let is_last = round % length.between == 0 || round == length.rounds;
        boundaries.push(if is_last { (boundary(playing)? - nothing_s).max(0.0) } else { 0.0 });
    }
    let communicator = playing.communicator();
    largest(communicator, &mut boundaries)?;
    let rivals = others.iter().map(|calls| Times::of(communicator, calls)).collect::<Result<_, _>>()?;
    Ok(Turns { tuned: Times::of(communicator, &tuned)?, rivals, boundaries })
}

/// What the clock says of nothing, in seconds. Nobody reads it at a job's boundaries, of which those of short calls take no longer. (All
/// calls have it in them, a tuner's and its rivals' alike.)
fn clock_s() -> f64 {
    let nothing = || Instant::now().elapsed().as_secs_f64();
    median(&(0..1001).map(|_| nothing()).collect::<Vec<f64>>()).unwrap_or(0.0)
}

/// Seconds of this rank. As before a call, the ranks wait for each other first.
fn boundary<P: Playing>(playing: &mut P) -> Result<f64, CommError> {
    playing.communicator().barrier(&CallOptions::default())?;
    let began = Instant::now();
    playing.boundary()?;
    Ok(began.elapsed().as_secs_f64())
}

impl Times {
    /// Of what each rank has measured.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn of(communicator: &Communicator, calls: &[Took]) -> Result<Times, CommError> {
        let mut told: Vec<f64> = calls.iter().flat_map(Took::told).collect();
        largest(communicator, &mut told)?;
        let (lasted, fastest) =
            told.as_chunks().0.iter().map(|told| (Took::lasted(*told), Took::least_s(*told))).unzip();
        Ok(Times { lasted, fastest })
    }

    fn then(&self, later: &Times) -> Times {
        let joined = |one: &[f64], other: &[f64]| [one, other].concat();
        Times { lasted: joined(&self.lasted, &later.lasted), fastest: joined(&self.fastest, &later.fastest) }
    }

    fn plus(&self, other: &Times) -> Times {
        Times { lasted: sums(&self.lasted, &other.lasted), fastest: sums(&self.fastest, &other.fastest) }
    }
}

impl Turns {
    /// These and then others, with the first rivals that both have.
    pub fn then(&self, later: &Turns) -> Turns {
        Turns {
            tuned: self.tuned.then(&later.tuned),
            rivals: self.rivals.iter().zip(&later.rivals).map(|(one, other)| one.then(other)).collect(),
            boundaries: [self.boundaries.as_slice(), &later.boundaries].concat(),
        }
    }

    /// Round by round, these and those of another job, added up.
    pub fn plus(&self, other: &Turns) -> Turns {
        Turns {
            tuned: self.tuned.plus(&other.tuned),
            rivals: self.rivals.iter().zip(&other.rivals).map(|(one, other)| one.plus(other)).collect(),
            boundaries: sums(&self.boundaries, &other.boundaries),
        }
    }

    /// All that the tuner takes, round by round: its call, and the boundary after it.
    pub fn tuned_whole(&self) -> Vec<f64> {
        self.tuned.lasted.iter().zip(&self.boundaries).map(|(call, boundary)| call + boundary).collect()
    }

    /// The rival whose calls from this one on take least together.
    pub fn best(&self, from: usize) -> usize {
        let total = |rival: &usize| self.rivals[*rival].lasted.iter().skip(from).sum::<f64>();
        (0..self.rivals.len()).min_by(|one, other| total(one).total_cmp(&total(other))).unwrap_or(0)
    }

    /// What a boundary takes in the mean, in microseconds; 0 if there was none.
    pub fn boundary_us(&self) -> f64 {
        let count = self.boundaries.iter().filter(|seconds| **seconds > 0.0).count();
        1e6 * self.boundaries.iter().sum::<f64>() / count.max(1) as f64
    }
}

/// Of both, number by number.
fn sums(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one + other).collect()
}

/// The sum of some times over that of others.
pub fn ratio(of: &[f64], over: &[f64]) -> f64 {
    of.iter().sum::<f64>() / over.iter().sum::<f64>()
}

/// Half of the 95 % interval of [`ratio`] of what took turns: what rounds leave open of it. None: there are too few.
pub fn ratio_half_width(of: &[f64], over: &[f64]) -> Option<f64> {
    let (count, ratio) = (of.len().min(over.len()), ratio(of, over));
    if count < 2 {
        return None;
    }
    // What a round takes more than in proportion is noise (the estimator of a ratio: Cochran, "Sampling Techniques", section 6.4).
    let squares: f64 = of.iter().zip(over).map(|(one, other)| (one - ratio * other).powi(2)).sum();
    let mean_over = over.iter().sum::<f64>() / count as f64;
    let deviation = (squares / (count - 1) as f64 / count as f64).sqrt();
    Some(student_t_975(count - 1) * deviation / mean_over).filter(|half| half.is_finite())
}

/// The largest ratio of totals up to any call from the [`PREFIX`]th on. None: there are not so many.
pub fn worst_prefix(of: &[f64], over: &[f64]) -> Option<f64> {
    let (mut total, mut total_over) = (0.0, 0.0);
    let ratios = of.iter().zip(over).map(|(seconds, seconds_over)| {
        total += seconds;
        total_over += seconds_over;
        total / total_over
    });
    ratios.skip(PREFIX - 1).reduce(f64::max)
}

/// The middle, in microseconds; None of nothing.
pub fn median_us(seconds: &[f64]) -> Option<f64> {
    median(seconds).map(|seconds| seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn prefixes_count_from_the_hundredth_call_on() {
        let mut of = vec![2.0; 50];
        of.extend([1.0; 150]);
        assert_eq!(worst_prefix(&of, &[1.0; 200]), Some(1.5));
        assert_eq!(worst_prefix(&of[..99], &[1.0; 99]), None);
        of.extend([100.0]);
        assert!(worst_prefix(&of, &[1.0; 201]).is_some_and(|worst| worst > 1.7));
    }

    #[test]
    fn a_ratio_is_known_as_far_as_rounds_agree() {
        let over: Vec<f64> = (0..100).map(|round| 1.0 + 0.5 * f64::from(round % 3)).collect();
        let of = |noise: f64| -> Vec<f64> {
            let signs = [1.0, -1.0].into_iter().cycle();
            over.iter().zip(signs).map(|(seconds, sign)| 1.2 * seconds + sign * noise).collect()
        };
        let [exact, known, open] =
            [0.0, 0.01, 0.3].map(|noise| ratio_half_width(&of(noise), &over).expect("there are enough"));
        // 1.98 · noise / sqrt(100) of a mean of 1.5.
        assert!(exact < 1e-9 && (known - 1.98 * 0.001 / 1.5).abs() < 3e-5 && open > 0.03, "{exact} {known} {open}");
        assert_eq!(ratio_half_width(&[1.0], &[1.0]), None);
    }

    fn times(lasted: &[f64]) -> Times {
        Times { lasted: lasted.to_vec(), fastest: lasted.iter().map(|seconds| seconds / 2.0).collect() }
    }

    #[test]
    fn turns_are_joined_by_rival_and_boundaries_are_the_tuners() {
        let early = Turns { tuned: times(&[1.0]), rivals: vec![times(&[2.0])], boundaries: vec![0.5] };
        let late = Turns {
            tuned: times(&[3.0, 1.0]),
            rivals: vec![times(&[4.0, 1.0]), times(&[9.0, 0.5])],
            boundaries: vec![0.0, 0.1],
        };
        let all = early.then(&late);
        assert_eq!((&all.tuned, &all.rivals), (&times(&[1.0, 3.0, 1.0]), &vec![times(&[2.0, 4.0, 1.0])]));
        assert_eq!(all.tuned_whole(), [1.5, 3.0, 1.1]);
        assert!((all.boundary_us() - 0.3e6).abs() < 1e-6, "{}", all.boundary_us());
        assert_eq!((late.best(0), late.best(1)), (0, 1));
        let twice = late.plus(&late);
        assert_eq!((&twice.tuned, &twice.boundaries[..]), (&times(&[6.0, 2.0]), &[0.0, 0.2][..]));
        assert_eq!(twice.rivals[1], times(&[18.0, 1.0]));
    }

    /// Calls take nothing; a boundary of rank 1 takes 5 ms.
    struct Idle {
        communicator: Communicator,
        boundaries: u32,
    }

    impl Playing for Idle {
        type Rival = ();

        fn communicator(&self) -> &Communicator {
            &self.communicator
        }

        fn tuned(&mut self, _: bool) -> Result<Took, CommError> {
            Ok(Took::from(self.communicator.rank() as f64 + 1.0))
        }

        fn rival(&mut self, (): &(), _: bool) -> Result<Took, CommError> {
            Ok(Took::from(self.communicator.rank() as f64 + 4.0))
        }

        fn boundary(&mut self) -> Result<(), CommError> {
            self.boundaries += 1;
            if self.communicator.rank() == 1 {
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    }

    #[test]
    fn ranks_agree_on_the_slowest_the_fastest_and_on_boundaries() {
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let mut idle = Idle { communicator, boundaries: 0 };
                let turns = play(&mut idle, &[()], &Length { rounds: 5, between: 2, seed: 1 }).expect("both play");
                (turns, idle.boundaries)
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let (turns, boundaries) = rank.join().expect("no panic");
            assert_eq!(turns.tuned, Times { lasted: vec![2.0; 5], fastest: vec![1.0; 5] });
            assert_eq!(turns.rivals, [Times { lasted: vec![5.0; 5], fastest: vec![4.0; 5] }]);
            // After two, four and the last one; and all ranks have waited for the slow one.
            let is_there: Vec<bool> = turns.boundaries.iter().map(|seconds| *seconds >= 5e-3).collect();
            assert_eq!((is_there, boundaries), (vec![false, true, false, true, true], 3));
        }
    }
}
