//! Linear regression that is updated sample by sample, and forgets: all alike, or by how far a coefficient may have wandered.

use super::features::FEATURES;

/// Bayesian linear regression with a normal prior about 0: ridge regression. A sample costs O(d²) by the formula of
/// Sherman and Morrison (1950).
#[derive(Clone, Debug)]
pub struct Ridge {
    /// The covariance of the coefficients; over the noise's variance where all samples have the same.
    covariance: [[f64; FEATURES]; FEATURES],
    coefficients: [f64; FEATURES],
    /// The variances at first.
    first: [f64; FEATURES],
    /// Samples seen.
    pub samples: u64,
}

/// What a sample leaves of those before it: about five hundred count.
const KEEP: f64 = 0.998;

/// No direction is forgotten further than it was believed at first: what is not seen for long would otherwise have any
/// variance (the wind-up of recursive least squares).
const VARIANCE_MAX: f64 = 1.0;

impl Default for Ridge {
    fn default() -> Ridge {
        Ridge::believing(&[VARIANCE_MAX.sqrt(); FEATURES])
    }
}

impl Ridge {
    /// The value expected at these numbers.
    pub fn mean(&self, at: &[f64; FEATURES]) -> f64 {
        dot(&self.coefficients, at)
    }

    /// About coefficients that are believed to be within these deviations of 0, in the units of the values.
    pub fn believing(deviations: &[f64; FEATURES]) -> Ridge {
        let first = deviations.map(|deviation| deviation.powi(2));
        let mut covariance = [[0.0; FEATURES]; FEATURES];
        first.iter().enumerate().for_each(|(number, variance)| covariance[number][number] = *variance);
        Ridge { covariance, coefficients: [0.0; FEATURES], first, samples: 0 }
    }

    /// How far that may be off: in units of a sample's own noise, or in those of the values if samples have come with theirs.
    pub fn deviation(&self, at: &[f64; FEATURES]) -> f64 {
        dot(&self.spread(at), at).max(0.0).sqrt()
    }

    /// Adds a sample, and forgets a bit of those before it.
    pub fn add(&mut self, at: &[f64; FEATURES], value: f64) {
        let trace: f64 = (0..FEATURES).map(|number| self.covariance[number][number]).sum();
        if trace < VARIANCE_MAX * FEATURES as f64 {
            self.covariance.iter_mut().flatten().for_each(|entry| *entry /= KEEP);
        }
        self.include(at, value, 1.0);
    }

    /// What was true of each coefficient may have changed, by this share of the variance that it was believed to have at first; none is
    /// doubted more than then.
    pub fn wander(&mut self, share: f64) {
        for (number, first) in self.first.iter().enumerate() {
            let variance = &mut self.covariance[number][number];
            *variance = (*variance + share * first).min(variance.max(*first));
        }
    }

    /// Adds a sample that may be off by this variance, and forgets nothing.
    pub fn include(&mut self, at: &[f64; FEATURES], value: f64, variance: f64) {
        let spread = self.spread(at);
        let scale = variance + dot(&spread, at);
        let error = value - self.mean(at);
        for ((coefficient, row), step) in self.coefficients.iter_mut().zip(&mut self.covariance).zip(&spread) {
            *coefficient += step / scale * error;
            row.iter_mut().zip(&spread).for_each(|(entry, other)| *entry -= step * other / scale);
        }
        self.samples += 1;
    }

    fn spread(&self, at: &[f64; FEATURES]) -> [f64; FEATURES] {
        // The covariance is symmetric: its rows are its columns, and to add these up nothing waits for the sum before.
        let mut spread = [0.0; FEATURES];
        for (row, number) in self.covariance.iter().zip(at).filter(|(_, number)| **number != 0.0) {
            spread.iter_mut().zip(row).for_each(|(entry, other)| *entry += number * other);
        }
        spread
    }
}

fn dot(one: &[f64; FEATURES], other: &[f64; FEATURES]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn coefficients_are_found() {
        let (mut ridge, mut random) = (Ridge::default(), Random::new(3, 0));
        let mut at = [0.0; FEATURES];
        let truth = |at: &[f64; FEATURES]| 0.5 * at[0] - 2.0 * at[3] + at[5];
        let before = ridge.deviation(&[1.0; FEATURES]);
        for _ in 0..1000 {
            at.iter_mut().for_each(|entry| *entry = random.normal());
            at[0] = 1.0;
            ridge.add(&at, truth(&at) + 0.01 * random.normal());
        }
        at.iter_mut().for_each(|entry| *entry = random.normal());
        assert!((ridge.mean(&at) - truth(&at)).abs() < 0.05, "{} {}", ridge.mean(&at), truth(&at));
        assert!(ridge.deviation(&[1.0; FEATURES]) < 0.2 * before);
    }

    #[test]
    fn what_was_true_is_forgotten() {
        let mut at = [0.0; FEATURES];
        at[0] = 1.0;
        let after = |share: f64| {
            let mut ridge = Ridge::believing(&[0.25; FEATURES]);
            for value in std::iter::repeat_n(0.3, 400).chain(std::iter::repeat_n(-0.3, 200)) {
                ridge.wander(share);
                ridge.include(&at, value, 0.0225);
            }
            ridge.mean(&at)
        };
        assert!(after(0.0) > 0.05 && after(2e-4) < -0.28, "{} {}", after(0.0), after(2e-4));
        let mut ridge = Ridge::believing(&[0.25; FEATURES]);
        (0..10_000).for_each(|_| ridge.wander(0.5));
        assert!((ridge.deviation(&at) - 0.25).abs() < 1e-9, "nobody knows less than at first");
    }

    /// A sample of little weight moves what is believed little, and the deviation is in the units of the values.
    #[test]
    fn samples_count_by_their_variance() {
        let mut at = [0.0; FEATURES];
        at[0] = 1.0;
        let ridge = Ridge::believing(&[0.2; FEATURES]);
        assert!((ridge.deviation(&at) - 0.2).abs() < 1e-12);
        let after = |variance: f64| {
            let mut ridge = ridge.clone();
            ridge.include(&at, 1.0, variance);
            (ridge.mean(&at), ridge.deviation(&at))
        };
        let (mean, deviation) = after(0.04);
        assert!((mean - 0.5).abs() < 1e-12 && (deviation - 0.02f64.sqrt()).abs() < 1e-12, "{mean} {deviation}");
        assert!(after(4.0).0 < 0.02 && after(4.0).1 > 0.19);
    }
}
