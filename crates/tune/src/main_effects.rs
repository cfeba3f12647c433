//! What each of many choices takes, where there was time to call some of them only.
//!
//! A choice is believed to take what a model expects of it, times a factor for each of its traits: its algorithm, its protocol, its lanes,
//! its threads, its chunks. A call then tells of all choices that share a trait with the one that was called, as in a fractional
//! factorial experiment (Box, Hunter and Hunter, "Statistics for Experimenters", 1978, chapter 12: main effects). How traits work
//! together, the model knows or nobody does: what was called counts for itself, too.

use serde::{Deserialize, Serialize};

use crate::statistics::median;

/// Numbers of the traits of a choice: two that have the same number at the same place are alike in that.
pub type Traits = [u8; TRAITS];

/// How many there are.
pub const TRAITS: usize = 5;

/// A choice among others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entrant {
    /// What it has in common with others. Kin share the first two: algorithm and protocol.
    pub traits: Traits,
    /// Seconds that a model expects of it; 1, if there is no model.
    pub modelled_s: f64,
}

impl Entrant {
    /// One of which no model says anything.
    pub fn unmodelled(traits: Traits) -> Entrant {
        Entrant { traits, modelled_s: 1.0 }
    }

    /// Are they of one algorithm and protocol?
    pub fn is_kin(&self, other: &Entrant) -> bool {
        self.traits[..2] == other.traits[..2]
    }
}

/// As if each level of a trait had been seen so often without any effect.
const SHRINKAGE: f64 = 1.0;
/// Times that are so many deviations off, which one in eighty is by chance, are taken for so many: a call that was interrupted says nothing of
/// its traits.
const CLIPPED: f64 = 2.5;
/// The deviation of a normal variable over its median distance from the middle.
const DEVIATION_OF_DISTANCES: f64 = 1.4826;
/// Sweeps over the traits, each of which brings them nearer to the least squares.
const SWEEPS: usize = 30;

/// What each is expected to take, in seconds, from what some of them took. Of one that was called, half way (in logarithms) between what
/// its traits say and what it took itself. What is not a time, or of no model, says nothing.
pub fn expected_s(entrants: &[Entrant], measured_s: &[Option<f64>]) -> Vec<f64> {
    let log = |(one, seconds): (&Entrant, &Option<f64>)| {
        seconds.map(|seconds| (seconds / one.modelled_s).ln()).filter(|log| log.is_finite())
    };
    let mut logs: Vec<Option<f64>> = entrants.iter().zip(measured_s).map(log).collect();
    let rough = Effects::of(entrants, &logs);
    let away = entrants.iter().zip(&logs).filter_map(|(one, log)| Some((log.as_ref()? - rough.at(&one.traits)).abs()));
    let most = CLIPPED * DEVIATION_OF_DISTANCES * median(&away.collect::<Vec<f64>>()).unwrap_or(0.0);
    for (one, log) in entrants.iter().zip(&mut logs) {
        let expected = rough.at(&one.traits);
        *log = log.map(|log| log.clamp(expected - most, expected + most));
    }
    let effects = Effects::of(entrants, &logs);
    let expected = |(one, log): (&Entrant, &Option<f64>)| {
        let by_traits = effects.at(&one.traits);
        one.modelled_s * log.map_or(by_traits, |log| 0.5 * (by_traits + log)).exp()
    };
    entrants.iter().zip(&logs).map(expected).collect()
}

/// Logarithms of factors.
struct Effects {
    mean: f64,
    of_traits: [Vec<f64>; TRAITS],
}

impl Effects {
    /// That explain these logarithms best (ridge regression by cyclic coordinate descent).
    fn of(entrants: &[Entrant], logs: &[Option<f64>]) -> Effects {
        let seen: Vec<(&Traits, f64)> =
            entrants.iter().zip(logs).filter_map(|(one, log)| Some((&one.traits, (*log)?))).collect();
        let mut effects = Effects { mean: 0.0, of_traits: std::array::from_fn(|_| vec![0.0; 256]) };
        for _ in 0..SWEEPS {
            let left: f64 = seen.iter().map(|(traits, log)| log - effects.at(traits)).sum();
            effects.mean += left / seen.len().max(1) as f64;
            for place in 0..TRAITS {
                let (mut sums, mut counts) = (vec![0.0; 256], vec![SHRINKAGE; 256]);
                for (traits, log) in &seen {
                    let level = usize::from(traits[place]);
                    sums[level] += log - effects.at(traits) + effects.of_traits[place][level];
                    counts[level] += 1.0;
                }
                effects.of_traits[place] = sums.iter().zip(counts).map(|(sum, count)| sum / count).collect();
            }
        }
        effects
    }

    fn at(&self, traits: &Traits) -> f64 {
        let of_traits = self.of_traits.iter().zip(traits).map(|(levels, &level)| levels[usize::from(level)]);
        self.mean + of_traits.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Four algorithms, three protocols, two numbers of lanes, two of threads, four chunks.
    fn grid() -> Vec<Entrant> {
        let place = |number: usize, below: usize, count: usize| ((number / below) % count) as u8;
        let traits = |number| {
            [place(number, 48, 4), place(number, 16, 3), place(number, 8, 2), place(number, 4, 2), place(number, 1, 4)]
        };
        (0..192).map(|number| Entrant { traits: traits(number), modelled_s: 1.0 }).collect()
    }

    /// Two threads are a tenth faster, the second protocol a twentieth, the third chunk a twentieth; each algorithm is a tenth slower than
    /// the one before.
    fn truly_s(one: &Entrant) -> f64 {
        let [algorithm, protocol, _, threads, chunk] = one.traits;
        let times = |is: bool, factor: f64| if is { factor } else { 1.0 };
        1e-3 * times(threads == 1, 0.9)
            * times(protocol == 1, 0.95)
            * times(chunk == 2, 0.95)
            * (1.0 + 0.1 * f64::from(algorithm))
    }

    /// The true place of the best of the twelve that are expected to be the fastest, after so many calls, with noise of 4 %, and one of ten
    /// interrupted.
    fn best_of_the_first(called: usize, seed: u64) -> usize {
        let (grid, mut random) = (grid(), Random::new(seed, 1));
        let mut measured = vec![None; grid.len()];
        for _ in 0..called {
            let number = random.below(grid.len());
            let interrupted = if random.below(10) == 0 { 3.0 } else { 1.0 };
            measured[number] = Some(truly_s(&grid[number]) * (1.0 + 0.04 * random.normal()).abs() * interrupted);
        }
        let expected = expected_s(&grid, &measured);
        let mut order: Vec<usize> = (0..grid.len()).collect();
        order.sort_by(|&one, &other| expected[one].total_cmp(&expected[other]));
        let least = order.iter().take(12).map(|&number| truly_s(&grid[number])).fold(f64::INFINITY, f64::min);
        grid.iter().filter(|one| truly_s(one) < least - 1e-9).count()
    }

    #[test]
    fn few_calls_tell_of_all() {
        // Two of the grid, which differ in nothing but lanes, are the best; the next ones are 5 % slower. Twelve by lot have one of the two in
        // one case of eight.
        let places: Vec<usize> = (0..40).map(|seed| best_of_the_first(60, seed)).collect();
        assert!(places.iter().filter(|&&place| place == 0).count() >= 30, "{places:?}");
        assert!(places.iter().all(|&place| place <= 10), "{places:?}");
    }

    #[test]
    fn without_calls_the_model_says_it_and_with_a_call_it_counts_half() {
        let [one, other] = [(0, 2e-3), (1, 3e-3)]
            .map(|(algorithm, modelled_s)| Entrant { traits: [algorithm, 0, 0, 0, 0], modelled_s });
        assert_eq!(expected_s(&[one, other], &[None, None]), [2e-3, 3e-3]);
        // All take twice what is modelled.
        let expected = expected_s(&[one, other], &[Some(4e-3), None]);
        assert!((expected[0] - 4e-3).abs() < 2e-4 && (expected[1] - 6e-3).abs() < 6e-4, "{expected:?}");
        // What cannot have been measured says nothing.
        assert_eq!(expected_s(&[one, other], &[Some(0.0), Some(f64::NAN)])[0], 2e-3);
        assert!(expected_s(&[], &[]).is_empty());
    }

    #[test]
    fn kin_share_algorithm_and_protocol() {
        let entrant = |traits| Entrant { traits, modelled_s: 1.0 };
        assert!(entrant([1, 2, 3, 4, 5]).is_kin(&entrant([1, 2, 0, 0, 0])));
        assert!(!entrant([1, 2, 3, 4, 5]).is_kin(&entrant([1, 1, 3, 4, 5])));
    }
}
