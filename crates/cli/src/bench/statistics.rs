//! What numbers that were measured several times say. Pure.

use paceline_train::student_t_975;
use serde::{Deserialize, Serialize};

/// A quantity that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The arithmetic mean.
    pub mean: f64,
    /// The standard deviation of the sample (n − 1); none of a single value.
    pub std: Option<f64>,
    /// The value in the middle; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); none of a single value.
    pub half_width_95: Option<f64>,
    /// How many values.
    pub runs: usize,
}

impl Estimate {
    /// Of these values; None if there are none.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let (runs, mean) = (values.len(), mean(values)?);
        let std = (runs > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (runs - 1) as f64).sqrt()
        });
        let half_width_95 = std.map(|std| student_t_975(runs - 1) * std / (runs as f64).sqrt());
        Some(Estimate { mean, std, median: median(values)?, half_width_95, runs })
    }

    /// What the values say when each is so many times as large.
    pub fn times(&self, factor: f64) -> Estimate {
        let of = |value: f64| factor * value;
        let (mean, median) = (of(self.mean), of(self.median));
        Estimate { mean, std: self.std.map(of), median, half_width_95: self.half_width_95.map(of), runs: self.runs }
    }

    /// Half the width of the 95 % interval as a share of the mean; None of a single value.
    pub fn relative_half_width(&self) -> Option<f64> {
        self.half_width_95.map(|half| half / self.mean).filter(|share| share.is_finite())
    }
}

/// The arithmetic mean; None of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The value in the middle; None of nothing. What is no number counts, unlike in the tuner's: whoever measured it shall see it.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The geometric mean of positive values; None of nothing.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    mean(&values.iter().map(|value| value.ln()).collect::<Vec<_>>()).map(f64::exp)
}

/// How far two sets of runs of the *same* thing (an A/A comparison) lie apart, as a share of their mean: the range of all
/// runs. The difference of two other things is only believed if it is larger.
pub fn spread(first: &[f64], again: &[f64]) -> Option<f64> {
    let all = [first, again].concat();
    let (low, high) = (all.iter().copied().fold(f64::NAN, f64::min), all.iter().copied().fold(f64::NAN, f64::max));
    (!first.is_empty() && !again.is_empty()).then_some((high - low) / mean(&all)?)
}

/// Fewer values have no standard deviation worth the name, so no difference is decided by them.
pub const VALUES_MIN: usize = 3;

/// A product of powers of independent measured quantities, such as the ratio of two throughputs, and what chance leaves
/// open of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The product of the means' powers.
    pub value: f64,
    /// It may be larger or smaller by this share. Infinite where nobody knows.
    pub open: f64,
}

impl Ratio {
    /// Of quantities with their powers. What is open is the largest of the `noises`, each measured by an A/A comparison in a
    /// place that a quantity comes from (None: it was not), and of half the 95 % confidence interval: relative variances of
    /// the means add up, times the squares of the powers (first order); the degrees of freedom of Student's t are those of
    /// Welch (Biometrika 34, 1947) and Satterthwaite (1946), rounded down. A quantity of fewer than [`VALUES_MIN`] values
    /// leaves everything open.
    pub fn of(factors: &[(&Estimate, f64)], noises: &[Option<f64>]) -> Ratio {
        let value = factors.iter().map(|(estimate, power)| estimate.mean.powf(*power)).product();
        let noise = noises.iter().map(|noise| noise.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
        Ratio { value, open: noise.max(half_width(factors)) }
    }

    /// Is it known how far it may be off?
    pub fn is_known(&self) -> bool {
        self.open.is_finite()
    }

    /// Is it larger than the limit, beyond what is open?
    pub fn is_above(&self, limit: f64) -> bool {
        self.value > limit * (1.0 + self.open)
    }

    /// Is it smaller than the limit, beyond what is open?
    pub fn is_below(&self, limit: f64) -> bool {
        self.is_known() && self.value * (1.0 + self.open) < limit
    }
}

fn half_width(factors: &[(&Estimate, f64)]) -> f64 {
    let (mut variance, mut weighted) = (0.0, 0.0);
    for (estimate, power) in factors {
        let Some(std) = estimate.std.filter(|_| estimate.runs >= VALUES_MIN) else { return f64::INFINITY };
        let of_mean = (power * std / estimate.mean).powi(2) / estimate.runs as f64;
        variance += of_mean;
        weighted += of_mean.powi(2) / (estimate.runs - 1) as f64;
    }
    let degrees = if weighted > 0.0 { variance.powi(2) / weighted } else { f64::MAX };
    // What is a whole number may have been rounded to just below it.
    student_t_975((degrees + 1e-9) as usize) * variance.sqrt()
}

/// The factor f(N) of the bytes that a worker sends in an exchange of D bytes among N workers, for the ring and for as
/// many evenly loaded shards as workers: 2(N − 1)/N (Patarasuk and Yuan 2009; BytePS, OSDI 2020).
pub fn traffic_factor(workers: usize) -> f64 {
    2.0 * (workers as f64 - 1.0) / workers as f64
}

/// The communication-to-computation ratio of the study, C2C = f(N)/(M·I), with local batch size M and model intensity
/// I = C/D in operations per parameter and sample. It orders models and batches; it has no unit of time, as the speeds of
/// network and processor are left out.
pub fn c2c(workers: usize, local_batch: usize, intensity: f64) -> f64 {
    traffic_factor(workers) / (local_batch as f64 * intensity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_those_of_the_textbook() {
        let estimate = Estimate::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).expect("there are values");
        assert_eq!((estimate.mean, estimate.median, estimate.runs), (5.0, 4.5, 8));
        let std = (32.0_f64 / 7.0).sqrt();
        assert!((estimate.std.expect("of eight") - std).abs() < 1e-12);
        assert!((estimate.half_width_95.expect("of eight") - 2.365 * std / 8.0_f64.sqrt()).abs() < 1e-12);
        let one = Estimate::of(&[3.0]).expect("there is one");
        assert_eq!((one.mean, one.std, one.median, one.half_width_95), (3.0, None, 3.0, None));
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(
            Estimate::of(&[8.0, 16.0, 20.0, 16.0]),
            Estimate::of(&[2.0, 4.0, 5.0, 4.0]).map(|one| one.times(4.0))
        );
    }

    /// Of two arms with the same number of values and the same variance, the interval is that of the classical t test with
    /// 2(n − 1) degrees of freedom; an arm that does not scatter adds none.
    #[test]
    fn what_a_ratio_leaves_open_is_the_interval_of_the_t_test() {
        let estimate = |values: &[f64]| Estimate::of(values).expect("values");
        let (first, other) = (estimate(&[202.0, 200.0, 198.0]), estimate(&[101.0, 100.0, 99.0]));
        let both = Ratio::of(&[(&first, 1.0), (&other, -1.0)], &[Some(0.0)]);
        assert!((both.value - 2.0).abs() < 1e-12);
        assert!((both.open - 2.776 * (2.0 * 1e-4 / 3.0_f64).sqrt()).abs() < 1e-9, "{both:?}");
        let steady = estimate(&[100.0; 3]);
        let one = Ratio::of(&[(&first, 1.0), (&steady, -1.0)], &[Some(0.0)]);
        assert!((one.open - 4.303 * (1e-4 / 3.0_f64).sqrt()).abs() < 1e-9, "{one:?}");
        assert_eq!(Ratio::of(&[(&steady, 1.0), (&steady, -1.0)], &[Some(0.01), Some(0.02)]).open, 0.02);
    }

    /// Whatever the numbers: the quotient of rounded numbers may lie just below the whole one that it is.
    #[test]
    fn degrees_of_freedom_are_not_lost_in_rounding() {
        for step in 1..3000 {
            for (runs, degrees) in [(3, 4), (4, 6), (6, 10), (8, 14)] {
                let std = 1e-4 * f64::from(step);
                let one = Estimate { mean: 1.1, std: Some(std), median: 1.1, half_width_95: None, runs };
                let expected = student_t_975(degrees) * (2.0 * (std / 1.1).powi(2) / runs as f64).sqrt();
                let open = Ratio::of(&[(&one, 1.0), (&one, -1.0)], &[Some(0.0)]).open;
                assert!((open / expected - 1.0).abs() < 1e-9, "{runs} runs, {std}: {open} and not {expected}");
            }
        }
    }

    #[test]
    fn nothing_is_decided_by_two_values_or_without_a_known_noise() {
        let estimate = |values: &[f64]| Estimate::of(values).expect("values");
        let (three, two, one) = (estimate(&[10.0; 3]), estimate(&[1.0; 2]), estimate(&[1.0]));
        for (other, noise) in [(two, Some(0.0)), (one, Some(0.0)), (three, None)] {
            let ratio = Ratio::of(&[(&three, 1.0), (&other, -1.0)], &[noise]);
            assert!(!ratio.is_known() && !ratio.is_above(0.0) && !ratio.is_below(1e9), "{ratio:?}");
        }
        let ratio = Ratio { value: 1.2, open: 0.1 };
        assert!(ratio.is_above(1.0) && !ratio.is_above(1.15) && ratio.is_below(1.4) && !ratio.is_below(1.3));
    }

    #[test]
    fn the_spread_is_what_differs_between_runs_of_the_same_thing() {
        assert_eq!(spread(&[100.0, 102.0], &[98.0, 100.0]), Some(0.04));
        assert_eq!(spread(&[100.0], &[]), None);
        assert_eq!(spread(&[5.0], &[5.0]), Some(0.0));
    }

    #[test]
    fn means_of_ratios_are_geometric() {
        assert!((geometric_mean(&[0.5, 2.0]).expect("two") - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }

    /// Larger batches and intensities make communication cheaper, more workers dearer, and one worker needs none.
    #[test]
    fn c2c_orders_as_the_study_says() {
        assert_eq!(c2c(1, 64, 470.0), 0.0);
        assert!((c2c(32, 64, 470.0) - 1.9375 / 30_080.0).abs() < 1e-12);
        assert!(c2c(8, 64, 470.0) < c2c(8, 64, 249.0) && c2c(8, 64, 249.0) < c2c(8, 8, 249.0));
        assert!(c2c(4, 64, 470.0) < c2c(32, 64, 470.0));
    }
}
