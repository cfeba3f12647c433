//! Means that forget, and a test of pairs that assumes nothing about how times are distributed.

/// Mean and variance of a stream, in which what is older weighs less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// How much has been seen: the sum of the weights.
    pub weight: f64,
    /// The mean.
    pub mean: f64,
    /// The sum of weighted squares of distances from the mean.
    squares: f64,
}

impl Tally {
    /// Adds a value, after everything before has been multiplied by `keep`, from 0 to 1 (West, "Updating mean and variance
    /// estimates", 1979).
    pub fn add(&mut self, value: f64, keep: f64) {
        self.weight *= keep;
        self.squares *= keep;
        self.weight += 1.0;
        let distance = value - self.mean;
        self.mean += distance / self.weight;
        self.squares += distance * (value - self.mean);
    }

    /// As if it had been seen longer ago.
    pub fn fade(&mut self, keep: f64) {
        self.weight *= keep;
        self.squares *= keep;
    }

    /// The variance; None below two values.
    pub fn variance(&self) -> Option<f64> {
        (self.weight > 1.0).then(|| (self.squares / (self.weight - 1.0)).max(0.0))
    }
}

/// The probability of so large a value, or a larger one, of a normal variable. The error is below 1e-7 (Hastings,
/// "Approximations for digital computers", 1955; as 7.1.26 in Abramowitz and Stegun), relative to it below 1e-3 up to 5.
pub fn upper_tail(value: f64) -> f64 {
    // Beyond 3 by Mills' ratio as a continued fraction (Laplace), which is exact to rounding there.
    let density = (-0.5 * value * value).exp() / std::f64::consts::TAU.sqrt();
    if value > 3.0 {
        let ratio = (1..=40).rev().fold(value, |below, step| value + f64::from(step) / below);
        return density / ratio;
    }
    let x = value.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let sum = series.iter().rev().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let half = 0.5 * sum * (-x * x).exp();
    if value >= 0.0 { half } else { 1.0 - half }
}

/// How likely pairs whose differences are symmetric about 0 would show differences as negative as these: Wilcoxon's
/// signed-rank test, one-sided, with the normal approximation (Wilcoxon, "Individual comparisons by ranking methods", 1945).
/// 1 for no pairs. Differences of 0 are left out.
pub fn signed_rank(differences: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = differences.iter().copied().filter(|it| *it != 0.0 && it.is_finite()).collect();
    sizes.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let count = sizes.len() as f64;
    if sizes.is_empty() {
        return 1.0;
    }
    // Equal sizes share their ranks, so that their order says nothing.
    let mut negative = 0.0;
    let mut begin = 0;
    while begin < sizes.len() {
        let equal = sizes[begin..].iter().take_while(|it| it.abs() == sizes[begin].abs()).count();
        let rank = begin as f64 + (equal as f64 + 1.0) / 2.0;
        negative += rank * sizes[begin..begin + equal].iter().filter(|it| **it < 0.0).count() as f64;
        begin += equal;
    }
    let mean = count * (count + 1.0) / 4.0;
    let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    // The half is for the steps of a sum of whole numbers.
    upper_tail((negative - mean - 0.5) / deviation)
}

/// The middle value; None of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// How far the median may be off: 1.57·(interquartile range)/√n, about a 95 % interval to each side (McGill, Tukey and
/// Larsen, "Variations of box plots", 1978). Infinite for fewer than four values.
pub fn median_margin(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    if count < 4 {
        return f64::INFINITY;
    }
    1.57 * (sorted[3 * count / 4] - sorted[count / 4]) / (count as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_tally_is_mean_and_variance() {
        let mut tally = Tally::default();
        assert_eq!(tally.variance(), None);
        [1.0, 2.0, 3.0, 4.0].iter().for_each(|&value| tally.add(value, 1.0));
        assert_eq!((tally.weight, tally.mean), (4.0, 2.5));
        assert!((tally.variance().unwrap() - 5.0 / 3.0).abs() < 1e-12);
        // With half kept, the weight tends to 2, and the mean to what was last.
        (0..60).for_each(|_| tally.add(7.0, 0.5));
        assert!((tally.weight - 2.0).abs() < 1e-9 && (tally.mean - 7.0).abs() < 1e-9);
    }

    #[test]
    fn tails_are_those_of_tables() {
        for (value, tail) in [(0.0, 0.5), (1.0, 0.158_655_3), (1.645, 0.049_984_9), (-1.0, 0.841_344_7)] {
            assert!((upper_tail(value) - tail).abs() < 2e-7, "{value}: {}", upper_tail(value));
        }
        for (value, tail) in [(4.0, 3.167_124e-5), (5.0, 2.866_516e-7), (6.0, 9.865_876e-10)] {
            assert!((upper_tail(value) / tail - 1.0).abs() < 1e-5, "{value}: {}", upper_tail(value));
        }
    }

    #[test]
    fn pairs_without_difference_are_found_different_as_often_as_said() {
        let mut random = Random::new(5, 0);
        let mut below = 0;
        for _ in 0..2000 {
            // Heavy tails: a tenth of all is ten times as wide.
            let differences: Vec<f64> =
                (0..24).map(|_| random.normal() * if random.below(10) == 0 { 10.0 } else { 1.0 }).collect();
            below += usize::from(signed_rank(&differences) < 0.05);
        }
        // 100 are expected, with a deviation of 10.
        assert!((60..140).contains(&below), "{below}");
    }

    #[test]
    fn a_difference_is_found() {
        let mut random = Random::new(6, 0);
        let differences: Vec<f64> = (0..24).map(|_| random.normal() - 1.5).collect();
        assert!(signed_rank(&differences) < 1e-3);
        let worse: Vec<f64> = differences.iter().map(|it| -it).collect();
        assert!(signed_rank(&worse) > 0.99);
        assert_eq!(signed_rank(&[]), 1.0);
        assert_eq!(signed_rank(&[0.0, 0.0]), 1.0);
    }

    #[test]
    fn medians_ignore_outliers() {
        assert_eq!(median(&[3.0, 1.0, 1e9]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median_margin(&[1.0; 3]), f64::INFINITY);
        assert_eq!(median_margin(&[2.0; 16]), 0.0);
    }
}
