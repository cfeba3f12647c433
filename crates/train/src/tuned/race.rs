//! A race: which of many contestants takes least. The better they are, the more they run.
//!
//! Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (arXiv 1502.07943,
//! AISTATS 2016): successive halving; here a third is kept. Where the time is too short for everybody to run, some run, and what they have
//! in common with the others tells who else is worth it.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_tune::Random;
use paceline_tune::main_effects::{Entrant, expected_s};
use paceline_tune::statistics::{median, median_margin};

use super::clock::Took;

/// So many run to the end.
const FINALISTS: usize = 6;
/// Measured calls of a finalist, at least and at most, unless the time is over: the study's protocol.
const CALLS: std::ops::RangeInclusive<usize> = 10..=100;
/// The final has its result when the fastest one's median is known so well: the half of its 95 % interval.
const KNOWN: f64 = 0.01;
/// A first call that takes so long hides what preparing it takes. After a shorter one, this many count instead.
const LONG_S: f64 = 20e-3;
const AGAIN: usize = 3;
/// So many count where not everybody can run.
const AGAIN_IN_HASTE: usize = 1;
/// Of an algorithm and protocol of which so many have run, and the best took so many times what the best of all took, nobody else runs.
const HOPELESS_AFTER: usize = 4;
const HOPELESS: f64 = 2.0;
/// So many tell who else is likely to be fast: each level of a trait has run some times then.
const ENOUGH: usize = 24;
/// The share of the time in which everybody must have run for the first time. If that is too short, it is spent on some of them.
const FIRST_HEAT: f64 = 0.5;

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Those who ran last, the fastest first.
    pub ranking: Vec<usize>,
    /// So many have run at all.
    pub called: usize,
    /// So many did not, as others of their algorithm and protocol were hopeless.
    pub hopeless: usize,
    /// Did it end before the time was over?
    pub is_complete: bool,
    /// Nothing that is much better is likely to be left: everybody has run, or so many that they tell who is likely to be fast, and all of
    /// these.
    pub is_enough: bool,
    /// By contestant, seconds of its calls until the last rank has ended them; of those who ran last, those of the final.
    pub seconds: Vec<Vec<f64>>,
}

impl Finish {
    /// 0, and the best so many of the others.
    pub fn best_beside_the_first(&self, count: usize) -> Vec<usize> {
        let others = self.ranking.iter().copied().filter(|&number| number > 0);
        std::iter::once(0).chain(others.take(count)).collect()
    }
}

/// Contestants by number, in the order in which they first run; 0 stays to the end. `play` calls one and gives what that took on this rank. All
/// ranks take part, and all get the same.
///
/// # Errors
/// Those of the calls.
pub fn race<T: Into<Took>>(
    communicator: &Communicator,
    entrants: &[Entrant],
    limit_s: f64,
    play: &mut dyn FnMut(usize) -> Result<T, CommError>,
) -> Result<Finish, CommError> {
    let (began, mut took) = (Instant::now(), |number| play(number).map(Into::into));
    race_by(communicator, entrants, limit_s, &mut took, &|| began.elapsed().as_secs_f64())
}

/// The same, by a clock of seconds since it began.
fn race_by(
    communicator: &Communicator,
    entrants: &[Entrant],
    limit_s: f64,
    play: &mut dyn FnMut(usize) -> Result<Took, CommError>,
    clock: &dyn Fn() -> f64,
) -> Result<Finish, CommError> {
    let times = vec![Vec::new(); entrants.len()];
    let mut race = Race { communicator, entrants, clock, elapsed_s: 0.0, limit_s, times, is_screened: false, play };
    let mut left = if race.can_all_run()? { race.first_heat()? } else { race.screening()? };
    let called = race.who_ran().len();
    let others = 1..entrants.len();
    let hopeless = others.filter(|&number| race.times[number].is_empty() && race.is_hopeless(number)).count();
    let all_ran = called + hopeless == entrants.len();
    let mut calls = 2;
    while left.len() > FINALISTS && !race.is_over() {
        race.keep(&mut left);
        race.heat(&left, calls)?;
        calls = (2 * calls).min(*CALLS.end());
    }
    race.keep(&mut left);
    let is_known = race.finals(&left)?;
    race.rank(&mut left);
    let is_compared = left.iter().all(|&number| race.times[number].len() >= *CALLS.start());
    let is_enough = (all_ran || race.is_screened) && is_compared;
    let is_complete = all_ran && is_known;
    Ok(Finish { ranking: left, called, hopeless, is_complete, is_enough, seconds: race.times })
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
    entrants: &'a [Entrant],
    clock: &'a dyn Fn() -> f64,
    /// As all ranks have agreed.
    elapsed_s: f64,
    limit_s: f64,
    times: Vec<Vec<f64>>,
    /// Not everybody could run, but all who are likely to be fast did.
    is_screened: bool,
    play: &'a mut dyn FnMut(usize) -> Result<Took, CommError>,
}

impl Race<'_> {
    fn is_over(&self) -> bool {
        self.elapsed_s >= self.limit_s
    }

    /// Once; seconds until the last rank has ended it.
    fn call(&mut self, number: usize) -> Result<f64, CommError> {
        let [less_s, began_s, ended_s, seconds] = (self.play)(number)?.told();
        let mut agreed = [less_s, began_s, ended_s, seconds, (self.clock)()];
        agree(self.communicator, &mut agreed)?;
        let [told @ .., elapsed_s] = agreed;
        self.elapsed_s = elapsed_s;
        Ok(Took::lasted(told))
    }

    /// Calls one for the first time, so often that what preparing it takes does not count.
    fn call_first(&mut self, number: usize, again: usize) -> Result<(), CommError> {
        let mut times = vec![self.call(number)?];
        if times[0] < LONG_S {
            times.clear();
            for _ in 0..again {
                times.push(self.call(number)?);
            }
        }
        self.times[number] = times;
        Ok(())
    }

    /// Calls the first one. Is there time for all the others, if their models are as far off as its own? Twice, as the first time may be
    /// interrupted.
    fn can_all_run(&mut self) -> Result<bool, CommError> {
        self.call_first(0, AGAIN)?;
        let once_s = self.elapsed_s;
        let others = self.entrants[1..].iter().map(|it| it.modelled_s).sum::<f64>() / self.entrants[0].modelled_s;
        if others * once_s <= FIRST_HEAT * self.limit_s || self.is_over() {
            return Ok(true);
        }
        self.call_first(0, AGAIN)?;
        Ok(others * (self.elapsed_s - once_s) <= FIRST_HEAT * self.limit_s)
    }

    /// Everybody, but for the hopeless, and for those to whom the time did not come.
    fn first_heat(&mut self) -> Result<Vec<usize>, CommError> {
        self.call_in_order(1..self.entrants.len(), AGAIN, self.limit_s)?;
        Ok(self.who_ran())
    }

    /// Some, by lot; and of all, those who are likely to be the fastest then.
    fn screening(&mut self) -> Result<Vec<usize>, CommError> {
        let mut order: Vec<usize> = (1..self.entrants.len()).collect();
        // The same on all ranks.
        let mut random = Random::new(self.entrants.len() as u64, 0x5c2e);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        let (began_s, until_s) = (self.elapsed_s, FIRST_HEAT * self.limit_s);
        self.call_in_order(order, AGAIN_IN_HASTE, until_s)?;
        let ran = self.who_ran().len().max(2) - 1;
        // What is left is for a heat of the likely ones, most of whom have not run, and for the final.
        let once_s = (self.elapsed_s - began_s) / ran as f64;
        let in_time = (FIRST_HEAT * (self.limit_s - self.elapsed_s) / (2.0 * once_s).max(1e-9)) as usize;
        let likely = self.likely(in_time.clamp(FINALISTS, self.entrants.len().div_ceil(3).max(FINALISTS)))?;
        for &number in &likely {
            if self.times[number].is_empty() && !self.is_hopeless(number) && !self.is_over() {
                self.call_first(number, AGAIN_IN_HASTE)?;
            }
        }
        self.is_screened = ran >= ENOUGH && !self.is_over();
        let left: Vec<usize> =
            std::iter::once(0).chain(likely).filter(|&number| !self.times[number].is_empty()).collect();
        self.heat(&left, 1)?;
        Ok(left)
    }

    /// So many others, who by what was called are likely to be the fastest. Rank 0 says it: logarithms may differ in the last bit between
    /// processors that are not alike.
    fn likely(&self, count: usize) -> Result<Vec<usize>, CommError> {
        let measured_s: Vec<Option<f64>> = self.times.iter().map(|times| median(times)).collect();
        let expected = expected_s(self.entrants, &measured_s);
        let mut others: Vec<usize> = (1..self.entrants.len()).collect();
        others.sort_by(|&one, &other| expected[one].total_cmp(&expected[other]));
        let mut told: Vec<i64> = others.iter().take(count).map(|&number| number as i64).collect();
        self.communicator.broadcast(&mut told, 0, &CallOptions::default())?;
        Ok(told.iter().filter_map(|&number| usize::try_from(number).ok()).collect())
    }

    /// Whoever is not hopeless by then.
    fn call_in_order(
        &mut self,
        order: impl IntoIterator<Item = usize>,
        again: usize,
        until_s: f64,
    ) -> Result<(), CommError> {
        for number in order {
            if self.elapsed_s >= until_s {
                break;
            }
            if !self.is_hopeless(number) {
                self.call_first(number, again)?;
            }
        }
        Ok(())
    }

    /// By those of its algorithm and protocol. The first one is nobody's kin: its knobs are the library's business.
    fn is_hopeless(&self, number: usize) -> bool {
        let least = |times: &Vec<f64>| times.iter().copied().fold(f64::INFINITY, f64::min);
        let best = self.times.iter().map(least).fold(f64::INFINITY, f64::min);
        let kin = self
            .times
            .iter()
            .zip(self.entrants)
            .skip(1)
            .filter(|(times, entrant)| !times.is_empty() && entrant.is_kin(&self.entrants[number]));
        let (ran, of_kin) =
            kin.fold((0, f64::INFINITY), |(ran, seconds), (times, _)| (ran + 1, seconds.min(least(times))));
        ran >= HOPELESS_AFTER && of_kin > HOPELESS * best
    }

    fn who_ran(&self) -> Vec<usize> {
        (0..self.times.len()).filter(|&number| !self.times[number].is_empty()).collect()
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
    use std::cell::Cell;
    use std::thread;

    use super::*;

    /// Contestant `number` of ten algorithms with eight chunks each.
    fn entrant(number: usize) -> Entrant {
        Entrant::unmodelled([(number % 10) as u8, 0, 0, 0, (number / 10) as u8])
    }

    /// What it takes: the third algorithm and the fourth chunk are the fastest, and the last algorithm takes ten times as long.
    fn seconds(number: usize) -> f64 {
        let far = (number % 10).abs_diff(2) + (number / 10).abs_diff(3);
        (1.0 + 0.05 * far as f64) * if number % 10 == 9 { 0.1 } else { 0.01 }
    }

    const FASTEST: usize = 32;

    /// A race of two ranks, who agree, by a clock on which nothing but calls takes time; how often each was called, too.
    fn raced(limit_s: f64) -> (Finish, Vec<usize>) {
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let entrants: Vec<Entrant> = (0..80).map(entrant).collect();
                let (now, mut calls) = (Cell::new(0.0), vec![0; entrants.len()]);
                let mut play = |number: usize| {
                    calls[number] += 1;
                    now.set(now.get() + seconds(number));
                    Ok(Took::from(seconds(number)))
                };
                let finish = race_by(&communicator, &entrants, limit_s, &mut play, &|| now.get());
                (finish.expect("both ranks call"), calls)
            })
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert_eq!(all[0], all[1], "ranks disagree");
        all[0].clone()
    }

    #[test]
    fn the_fastest_wins_and_the_hopeless_are_spared() {
        let (finish, calls) = raced(60.0);
        assert_eq!(finish.ranking[0], FASTEST, "{finish:?}");
        assert!(finish.ranking.contains(&0) && finish.is_complete, "{finish:?}");
        assert_eq!((finish.called, finish.hopeless), (76, 4), "{finish:?}");
        assert!(calls[FASTEST] > calls[60] && calls[79] == 0, "{calls:?}");
    }

    /// Everybody four times would take some five seconds.
    #[test]
    fn without_time_for_everybody_some_tell_who_is_fast() {
        let (finish, calls) = raced(2.5);
        assert!(finish.called < 75 && !finish.is_complete && finish.is_enough, "{finish:?}");
        assert!(seconds(finish.ranking[0]) <= 1.05 * seconds(FASTEST), "{finish:?}");
        assert!(finish.ranking.contains(&0), "{finish:?}");
        assert!(calls.iter().sum::<usize>() < 250, "{calls:?}");
    }

    #[test]
    fn a_race_without_time_knows_the_first_only() {
        let communicator = Communicator::solo().expect("a world of one");
        let entrants: Vec<Entrant> = (0..3).map(entrant).collect();
        let finish = race(&communicator, &entrants, 0.0, &mut |number| Ok(seconds(number))).expect("it runs");
        assert_eq!((&finish.ranking[..], finish.called, finish.hopeless, finish.is_complete), (&[0][..], 1, 0, false));
        assert_eq!(finish.seconds.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 0]);
        assert!(!finish.is_enough);
    }
}
