//! What the calls of a context have taken, as whoever carries out a tuner's decisions notes it.

use std::collections::BTreeMap;
use std::iter::Sum;

use crate::statistics::Tally;
use crate::{Situation, Tuner};

/// What was the longest of the default's calls once counts so much less with each time: about the last thirty count, as of the default's
/// times.
const LONGEST_KEPT: f64 = 0.97;

/// The calls of one context: what they have taken, and how far the longest of the default's stick out.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// How many times as long as their mean the longest of the default's calls takes.
    longest: Tally,
    /// How often the network had changed when the first of these calls was made.
    drifts: u32,
    /// By arm, how many since then, and seconds of all of them.
    calls: BTreeMap<usize, (u64, f64)>,
}

/// What learning has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds of the calls that were timed since the network has last changed.
    pub measured_s: f64,
    /// How many of them would have been saved, had the best that is known now been known from the start; 0 of what is not known.
    pub regret_s: f64,
}

impl Ledger {
    /// Several calls took this arm at once, the longest of them `longest_s` and all `mean_s` in the mean: one may be enough to put out
    /// what is tried. By how much the longest exceeds the mean with the default, too, is no fault of a choice: calls of a context differ in
    /// size, and of many, some are long by chance. Times that are none say nothing.
    pub fn look_at_longest(
        &mut self,
        tuner: &mut Tuner,
        situation: &Situation,
        arm: usize,
        [mean_s, longest_s]: [f64; 2],
    ) {
        let times = longest_s / mean_s;
        if !times.is_finite() {
            return;
        }
        tuner.observe_longest(situation, arm, [mean_s, longest_s / self.longest.mean.max(1.0)]);
        if arm == situation.default {
            self.longest.add(times, LONGEST_KEPT);
        }
    }

    /// So many calls took this arm, and so long in all, after the network has changed so often. A time that is none is not counted.
    pub fn count(&mut self, drifts: u32, arm: usize, calls: u64, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        if self.drifts != drifts {
            (self.drifts, self.calls) = (drifts, BTreeMap::new());
        }
        let (count, sum_s) = self.calls.entry(arm).or_default();
        *count += calls;
        *sum_s += seconds;
    }

    /// What the calls have cost, if this arm is the best that is known.
    pub fn cost(&self, best: usize) -> Cost {
        let (count, measured_s) = self.calls.values().fold((0, 0.0), |all, it| (all.0 + it.0, all.1 + it.1));
        let as_best_s = |&(of_best, seconds): &(u64, f64)| count as f64 * seconds / of_best as f64;
        let best_s = self.calls.get(&best).map_or(measured_s, as_best_s);
        Cost { measured_s, regret_s: (measured_s - best_s).max(0.0) }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |all, it| Cost {
            measured_s: all.measured_s + it.measured_s,
            regret_s: all.regret_s + it.regret_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_what_the_best_would_have_saved_since_the_last_change() {
        let mut ledger = Ledger::default();
        ledger.count(0, 0, 10, 100.0);
        assert_eq!(ledger.cost(0), Cost { measured_s: 100.0, regret_s: 0.0 });
        ledger.count(1, 0, 3, 6.0);
        ledger.count(1, 1, 1, 1.0);
        ledger.count(1, 1, 1, f64::NAN);
        assert_eq!(ledger.cost(1), Cost { measured_s: 7.0, regret_s: 3.0 });
        // Nobody knows what that takes.
        assert_eq!(ledger.cost(2), Cost { measured_s: 7.0, regret_s: 0.0 });
        assert_eq!(
            [ledger.cost(1), ledger.cost(2)].into_iter().sum::<Cost>(),
            Cost { measured_s: 14.0, regret_s: 3.0 }
        );
    }
}
