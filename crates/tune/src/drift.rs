//! Notices that a network is no longer what it was.

use crate::statistics::Tally;

/// A call in so many is the default's, for as long as another choice stands: the sentinel.
pub const SENTINEL_EVERY: u64 = 256;

/// Deviations that are normal. One: the mean that calls are compared with is off by some tenths of a deviation itself, and half a
/// deviation to each side would take that for a change sooner or later.
const SLACK: f64 = 1.0;

/// The sum from which it is no chance: with normal noise, once in e^24 calls.
const ALARM: f64 = 12.0;

/// No single call counts for more deviations than that, so that a straggler alone is no drift.
const CLIPPED: f64 = 4.0;

/// Calls from which the mean is known well enough to compare with.
const KNOWN: f64 = 16.0;

/// The least deviation that counts, of the logarithm: one percent.
const DEVIATION_MIN: f64 = 0.01;

/// Watches one choice: sums of deviations to both sides (Page, "Continuous inspection schemes", 1954).
#[derive(Clone, Debug, Default)]
pub struct Drift {
    reference: Tally,
    slower: f64,
    faster: f64,
}

impl Drift {
    /// A call took so many seconds. True if the network has changed; then it starts anew.
    pub fn observe(&mut self, seconds: f64) -> bool {
        let value = seconds.ln();
        if self.reference.weight < KNOWN {
            self.reference.add(value, 1.0);
            return false;
        }
        // Few calls say little about a deviation: it may be larger than it looks.
        let doubt = 1.0 + 2.0 / self.reference.weight.sqrt();
        let deviation = doubt * self.reference.variance().unwrap_or(0.0).sqrt().max(DEVIATION_MIN);
        let away = ((value - self.reference.mean) / deviation).clamp(-CLIPPED, CLIPPED);
        self.slower = (self.slower + away - SLACK).max(0.0);
        self.faster = (self.faster - away - SLACK).max(0.0);
        if self.slower > ALARM || self.faster > ALARM {
            *self = Drift::default();
            return true;
        }
        // While nothing is suspected, it learns on.
        if self.slower < 1.0 && self.faster < 1.0 || self.reference.weight < 4.0 * KNOWN {
            self.reference.add(value, 0.995);
        }
        false
    }
}

/// Compares a choice that stands with the default, by the sentinel's calls.
#[derive(Clone, Debug, Default)]
pub struct Sentinel {
    chosen: Tally,
    default: Tally,
}

impl Sentinel {
    /// Is this call, by its number in the context, the sentinel's?
    pub fn is_due(call: u64) -> bool {
        call % SENTINEL_EVERY == SENTINEL_EVERY - 1
    }

    /// A call of the choice.
    pub fn add_chosen(&mut self, seconds: f64) {
        self.chosen.add(seconds.ln(), 0.98);
    }

    /// A call of the default.
    pub fn add_default(&mut self, seconds: f64) {
        self.default.add(seconds.ln(), 0.8);
    }

    /// Is the default better, by all that is known? Then there is no reason to stand by the choice.
    pub fn prefers_default(&self) -> bool {
        let (Some(chosen), Some(default)) = (self.chosen.variance(), self.default.variance()) else { return false };
        if self.default.weight < 2.5 {
            return false;
        }
        let error = (chosen / self.chosen.weight + default / self.default.weight).sqrt();
        self.default.mean + 2.0 * error < self.chosen.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn calls_until_noticed(factor: f64, seed: u64) -> Option<usize> {
        let (mut drift, mut random) = (Drift::default(), Random::new(seed, 3));
        for call in 0..3000 {
            let factor = if call < 200 { 1.0 } else { factor };
            if drift.observe(1e-3 * factor * (0.05 * random.normal()).exp()) {
                return Some(call);
            }
        }
        None
    }

    #[test]
    fn a_change_is_noticed_within_ten_calls_and_noise_is_not() {
        for seed in 0..20 {
            for factor in [5.0, 1.5, 0.6] {
                let call = calls_until_noticed(factor, seed);
                assert!(call.is_some_and(|call| (200..210).contains(&call)), "seed {seed}, {factor}: {call:?}");
            }
            assert_eq!(calls_until_noticed(1.0, seed), None, "seed {seed}");
        }
    }

    #[test]
    fn the_sentinel_reverts_when_the_default_is_better() {
        let (mut worse, mut better) = (Sentinel::default(), Sentinel::default());
        for call in 0..20 {
            let wobble = 1.0 + 0.01 * f64::from(call % 3);
            worse.add_chosen(1.3e-3 * wobble);
            better.add_chosen(0.9e-3 * wobble);
            [&mut worse, &mut better].into_iter().for_each(|it| it.add_default(1e-3 * wobble));
        }
        assert!(worse.prefers_default() && !better.prefers_default());
        assert_eq!((0..1024).filter(|&call| Sentinel::is_due(call)).count(), 4);
    }
}
