//! A race: which of many contestants takes least. All of them run a little, and the better they are, the more.
//!
//! Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (arXiv 1502.07943,
//! AISTATS 2016): successive halving; here a third is kept.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_tune::statistics::{median, median_margin};

/// So many run to the end.
const FINALISTS: usize = 6;
/// Measured calls of a finalist, at least and at most, unless the time is over: the study's protocol.
const CALLS: std::ops::RangeInclusive<usize> = 10..=100;
/// The final has its result when the fastest one's median is known so well: the half of its 95 % interval.
const KNOWN: f64 = 0.01;
/// A first call that takes so long hides what preparing it takes. After a shorter one, this many count instead.
const LONG_S: f64 = 20e-3;
const AGAIN: usize = 3;
/// Of a group of which so many have run, and the best took so many times what the best of all took, nobody else runs.
const HOPELESS_AFTER: usize = 4;
const HOPELESS: f64 = 2.0;

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Those who ran last, the fastest first.
    pub ranking: Vec<usize>,
    /// So many have run at all.
    pub called: usize,
    /// So many did not, as their group was hopeless.
    pub hopeless: usize,
    /// Did it end before the time was over?
    pub is_complete: bool,
    /// By contestant, seconds of its calls on the slowest rank; of those who ran last, those of the final.
    pub seconds: Vec<Vec<f64>>,
}

impl Finish {
    /// 0, and the best so many of the others.
    pub fn best_beside_the_first(&self, count: usize) -> Vec<usize> {
        let others = self.ranking.iter().copied().filter(|&number| number > 0);
        std::iter::once(0).chain(others.take(count)).collect()
    }
}

/// Contestants by number, in the order in which they first run; 0 stays to the end. `groups` says which are alike. `play` calls
/// one and gives this rank's seconds. All ranks take part, and all get the same.
///
/// # Errors
/// Those of the calls.
pub fn race(
    communicator: &Communicator,
    groups: &[usize],
    limit_s: f64,
    play: &mut dyn FnMut(usize) -> Result<f64, CommError>,
) -> Result<Finish, CommError> {
    let times = vec![Vec::new(); groups.len()];
    let mut race = Race { communicator, began: Instant::now(), elapsed_s: 0.0, limit_s, times, play };
    let hopeless = race.first_heat(groups)?;
    let called = race.times.iter().filter(|times| !times.is_empty()).count();
    let all_ran = called + hopeless == groups.len();
    let mut left: Vec<usize> = (0..groups.len()).filter(|&number| !race.times[number].is_empty()).collect();
    let mut calls = 2;
    while left.len() > FINALISTS && !race.is_over() {
        race.keep(&mut left);
        race.heat(&left, calls)?;
        calls = (2 * calls).min(*CALLS.end());
    }
    race.keep(&mut left);
    let is_known = race.finals(&left)?;
    race.rank(&mut left);
    Ok(Finish { ranking: left, called, hopeless, is_complete: all_ran && is_known, seconds: race.times })
}

/// Number by number, the largest of all ranks.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub(super) fn agree(communicator: &Communicator, numbers: &mut [f64]) -> Result<(), CommError> {
    communicator.all_reduce(numbers, Reduction::Max, &CallOptions::default())
}

struct Race<'a> {
    communicator: &'a Communicator,
    began: Instant,
    /// As all ranks have agreed.
    elapsed_s: f64,
    limit_s: f64,
    times: Vec<Vec<f64>>,
    play: &'a mut dyn FnMut(usize) -> Result<f64, CommError>,
}

impl Race<'_> {
    fn is_over(&self) -> bool {
        self.elapsed_s >= self.limit_s
    }

    /// Once; seconds of the slowest rank.
    fn call(&mut self, number: usize) -> Result<f64, CommError> {
        let mut agreed = [(self.play)(number)?, self.began.elapsed().as_secs_f64()];
        agree(self.communicator, &mut agreed)?;
        self.elapsed_s = agreed[1];
        Ok(agreed[0])
    }

    /// Everybody once, but for hopeless groups, of which so many did not run, and for those to whom the time did not come.
    fn first_heat(&mut self, groups: &[usize]) -> Result<usize, CommError> {
        let (mut best, mut hopeless) = (f64::INFINITY, 0);
        for (number, &group) in groups.iter().enumerate() {
            if number > 0 && self.is_over() {
                break;
            }
            let of_group = (0..number).filter(|&other| groups[other] == group && !self.times[other].is_empty());
            let (ran, least) = of_group.fold((0, f64::INFINITY), |(ran, least), other| {
                (ran + 1, self.times[other].iter().copied().fold(least, f64::min))
            });
            if ran >= HOPELESS_AFTER && least > HOPELESS * best {
                hopeless += 1;
                continue;
            }
            let mut times = vec![self.call(number)?];
            if times[0] < LONG_S {
                times.clear();
                for _ in 0..AGAIN {
                    times.push(self.call(number)?);
                }
            }
            best = times.iter().copied().fold(best, f64::min);
            self.times[number] = times;
        }
        Ok(hopeless)
    }

    /// By turns, so many times each.
    fn heat(&mut self, left: &[usize], calls: usize) -> Result<(), CommError> {
        for _ in 0..calls {
            for &number in left {
                if self.is_over() {
                    return Ok(());
                }
                let seconds = self.call(number)?;
                self.times[number].push(seconds);
            }
        }
        Ok(())
    }

    /// By turns, until the fastest is known well enough. Is it?
    fn finals(&mut self, left: &[usize]) -> Result<bool, CommError> {
        for &number in left {
            self.times[number].clear();
        }
        for round in 1..=*CALLS.end() {
            // A race without time has a final of one call each.
            if round > 1 && self.is_over() {
                return Ok(false);
            }
            for &number in left {
                let seconds = self.call(number)?;
                self.times[number].push(seconds);
            }
            let known = left.iter().map(|&number| (self.score(number), median_margin(&self.times[number])));
            let fastest = known.min_by(|one, other| one.0.total_cmp(&other.0));
            if round >= *CALLS.start() && fastest.is_some_and(|(seconds, margin)| margin <= KNOWN * seconds) {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn score(&self, number: usize) -> f64 {
        median(&self.times[number]).unwrap_or(f64::INFINITY)
    }

    fn rank(&self, left: &mut [usize]) {
        left.sort_by(|&one, &other| self.score(one).total_cmp(&self.score(other)));
    }

    /// The better third, but no fewer than the finalists; and 0.
    fn keep(&self, left: &mut Vec<usize>) {
        self.rank(left);
        left.truncate(left.len().div_ceil(3).max(FINALISTS));
        if !left.contains(&0) {
            left.pop();
            left.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What contestant `number` takes: 37 is the fastest, those of group 3 take ten times as long.
    fn seconds(number: usize) -> f64 {
        let far = (number as f64 - 37.0).abs();
        (1.0 + 0.02 * far) * if number % 4 == 3 { 0.1 } else { 0.01 }
    }

    #[test]
    fn the_fastest_wins_and_hopeless_groups_are_spared() {
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let groups: Vec<usize> = (0..80).map(|number| number % 4).collect();
                let mut calls = vec![0; groups.len()];
                let finish = race(&communicator, &groups, 60.0, &mut |number| {
                    calls[number] += 1;
                    Ok(seconds(number))
                });
                (finish.expect("both ranks call"), calls)
            })
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let (finish, calls) = &all[0];
        assert_eq!(*finish, all[1].0, "ranks disagree");
        assert_eq!(finish.ranking[0], 37, "{finish:?}");
        assert!(finish.ranking.contains(&0) && finish.is_complete, "{finish:?}");
        assert_eq!((finish.called, finish.hopeless), (64, 16), "{finish:?}");
        assert!(calls[37] > calls[60] && calls[79] == 0, "{calls:?}");
    }

    #[test]
    fn a_race_without_time_knows_the_first_only() {
        let communicator = Communicator::solo().expect("a world of one");
        let finish = race(&communicator, &[0, 0, 0], 0.0, &mut |number| Ok(seconds(number))).expect("it runs");
        assert_eq!((&finish.ranking[..], finish.called, finish.hopeless, finish.is_complete), (&[0][..], 1, 0, false));
        assert_eq!(finish.seconds.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 0]);
    }
}
