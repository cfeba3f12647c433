//! Means that forget, and a test of pairs that assumes nothing about how times are distributed.

mod middle;

pub use middle::{Last, Middle};

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
    /// As if values of this weight, mean and variance had been seen.
    pub fn known(weight: f64, mean: f64, variance: f64) -> Tally {
        Tally { weight, mean, squares: variance * (weight - 1.0).max(0.0) }
    }

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

    /// As if so many values of this mean had been seen besides: what was seen on another day, by somebody else. Nothing is said
    /// about how they vary.
    pub fn include(&mut self, weight: f64, mean: f64) {
        if weight > 0.0 {
            self.mean += (mean - self.mean) * weight / (self.weight + weight);
            self.weight += weight;
        }
    }

    /// As if no value had been above this one, where their mean is.
    pub fn lower_to(&mut self, most: f64) {
        if self.weight > 0.0 && self.mean > most {
            (self.mean, self.squares) = (most, 0.0);
        }
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

/// Up to so many pairs, the signed-rank test is exact.
const EXACT_MAX: usize = 64;

/// How likely pairs whose differences are symmetric about 0 would show differences as negative as these: Wilcoxon's
/// signed-rank test, one-sided (Wilcoxon, "Individual comparisons by ranking methods", 1945). Exact for up to 64 pairs, ties
/// included: then each size is as likely to be negative as positive, and the sums of all signs are counted. By the normal
/// approximation beyond. 1 for no pairs. Differences of 0 are left out. O(n³) for n pairs.
pub fn signed_rank(differences: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = differences.iter().copied().filter(|it| *it != 0.0 && it.is_finite()).collect();
    sizes.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    if sizes.is_empty() {
        return 1.0;
    }
    // Twice the rank, which is whole: equal sizes share their ranks, so that their order says nothing.
    let mut ranks: Vec<usize> = Vec::with_capacity(sizes.len());
    while ranks.len() < sizes.len() {
        let begin = ranks.len();
        let equal = sizes[begin..].iter().take_while(|it| it.abs() == sizes[begin].abs()).count();
        ranks.extend(std::iter::repeat_n(2 * begin + equal + 1, equal));
    }
    let negative: usize = ranks.iter().zip(&sizes).filter(|(_, size)| **size < 0.0).map(|(rank, _)| rank).sum();
    if ranks.len() <= EXACT_MAX {
        return at_least(&ranks, negative);
    }
    let count = ranks.len() as f64;
    let mean = count * (count + 1.0) / 4.0;
    let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    // The half is for the steps of a sum of whole numbers.
    upper_tail((0.5 * negative as f64 - mean - 0.5) / deviation)
}

/// How likely those of these ranks that a coin picks, each by itself, add up to so much or more.
fn at_least(ranks: &[usize], sum: usize) -> f64 {
    let pairs: Vec<[usize; 2]> = ranks.iter().map(|&rank| [0, rank]).collect();
    sums(&pairs)[sum..].iter().sum()
}

/// How likely each sum is of one number out of each set, where all of a set are equally likely.
fn sums<const N: usize>(sets: &[[usize; N]]) -> Vec<f64> {
    let mut likely = vec![1.0];
    for set in sets {
        let most = set.iter().copied().max().unwrap_or(0);
        let mut next = vec![0.0; likely.len() + most];
        for number in set {
            for (total, share) in likely.iter().enumerate() {
                next[total + number] += share / N as f64;
            }
        }
        likely = next;
    }
    likely
}

/// A value of a row of logarithms that is so far above its middle, twice as much, says nothing about where the row lies: were it to move the
/// mean, the others would look as much too low, beside those of other rows.
const BESIDE: f64 = std::f64::consts::LN_2;

/// How likely one of three columns would be as low as this, if within each row all three were alike and chance had put them in
/// their order: the aligned-rank test, one-sided (Hodges and Lehmann, "Rank methods for combination of independent experiments in
/// analysis of variance", 1962). Rows are aligned by their means, without what is more than [`BESIDE`] above their middle, and all values
/// ranked together; then each of a row's three ranks is as likely to be the column's, and all sums are counted, ties included. 1 for no
/// rows. The least there is, of n rows, is 3⁻ⁿ.
pub fn aligned_ranks(rows: &[[f64; 3]], column: usize) -> f64 {
    let aligned = |row: &[f64; 3]| {
        let most = median(row).unwrap_or(0.0) + BESIDE;
        let (sum, count) = row
            .iter()
            .filter(|value| **value <= most)
            .fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        row.map(|value| value - sum / count)
    };
    let aligned: Vec<[f64; 3]> = rows.iter().map(aligned).collect();
    let mut sorted: Vec<f64> = aligned.iter().flatten().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    // Twice the rank, from 0 on, which is whole: equal values share theirs.
    let rank = |value: f64| {
        sorted.partition_point(|other| *other < value) + sorted.partition_point(|other| *other <= value) - 1
    };
    let ranks: Vec<[usize; 3]> = aligned.iter().map(|row| row.map(rank)).collect();
    let sum: usize = ranks.iter().map(|row| row[column]).sum();
    sums(&ranks)[..=sum].iter().sum::<f64>().min(1.0)
}

/// How likely two samples of one distribution would be apart at least so far, to either side: the rank-sum test (Mann and Whitney, "On a
/// test of whether one of two random variables is stochastically larger than the other", 1947). Exact, ties included: any so many of
/// all ranks are as likely to be the first sample's. 1 if one of them is empty. O(n·N³) for n of one and N of both.
pub fn rank_sum(one: &[f64], other: &[f64]) -> f64 {
    if one.is_empty() || other.is_empty() {
        return 1.0;
    }
    let mut sorted = [one, other].concat();
    sorted.sort_unstable_by(f64::total_cmp);
    // Twice the rank, from 0 on, which is whole: equal values share theirs.
    let rank = |value: f64| sorted.partition_point(|it| *it < value) + sorted.partition_point(|it| *it <= value) - 1;
    let ranks: Vec<usize> = sorted.iter().map(|&value| rank(value)).collect();
    let sum: usize = one.iter().map(|&value| rank(value)).sum();
    let total: usize = ranks.iter().sum();
    // In how many ways so many of them add up to each sum.
    let mut ways = vec![vec![0.0; total + 1]; one.len() + 1];
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for taken in (0..one.len()).rev() {
            for below in 0..=total - rank {
                ways[taken + 1][below + rank] += ways[taken][below];
            }
        }
    }
    let of_all = &ways[one.len()];
    let (low, high): (f64, f64) = (of_all[..=sum].iter().sum(), of_all[sum..].iter().sum());
    (2.0 * low.min(high) / of_all.iter().sum::<f64>()).min(1.0)
}

/// How likely so many of `count` are hit or more, if each one is with this probability. 1 for none. O(hits).
pub fn binomial_tail(count: u64, hits: u64, probability: f64) -> f64 {
    if hits > count {
        return 0.0;
    }
    if hits == 0 || probability >= 1.0 {
        return 1.0;
    }
    if probability <= 0.0 {
        return 0.0;
    }
    // In logarithms: of many, none has a probability that there is no number for.
    let odds = (probability / (1.0 - probability)).ln();
    let (mut exactly, mut fewer) = (count as f64 * (1.0 - probability).ln(), 0.0);
    for hit in 0..hits {
        fewer += exactly.exp();
        exactly += odds + ((count - hit) as f64 / (hit + 1) as f64).ln();
    }
    (1.0 - fewer).max(0.0)
}

/// The mean, and its standard deviation; None below two values.
pub fn mean_and_error(values: &[f64]) -> Option<(f64, f64)> {
    let mut tally = Tally::default();
    values.iter().for_each(|&value| tally.add(value, 1.0));
    tally.variance().map(|variance| (tally.mean, (variance / tally.weight).sqrt()))
}

/// The middle value; None of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    values.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&values)
}

/// The same of values that follow each other by size.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
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
    sorted.sort_unstable_by(f64::total_cmp);
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
        let variance = tally.variance();
        tally.include(2.0, 8.0);
        assert!((tally.weight - 4.0).abs() < 1e-9 && (tally.mean - 7.5).abs() < 1e-9);
        assert!(tally.variance() <= variance, "what others saw says nothing about how values vary");
        assert_eq!(mean_and_error(&[1.0, 3.0]), Some((2.0, 1.0)));
        assert_eq!(mean_and_error(&[1.0]), None);
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

    /// Values of the tables for the smaller rank sum T: P(T <= 8) and P(T <= 10) of ten pairs.
    #[test]
    fn few_pairs_are_counted_exactly() {
        let pairs = |count: i32, positive: &[i32]| -> Vec<f64> {
            (1..=count).map(|rank| f64::from(if positive.contains(&rank) { rank } else { -rank })).collect()
        };
        assert_eq!(signed_rank(&pairs(8, &[])), 1.0 / 256.0);
        assert_eq!(signed_rank(&pairs(32, &[])), 0.5f64.powi(32));
        assert!((signed_rank(&pairs(10, &[8])) - 25.0 / 1024.0).abs() < 1e-12);
        assert!((signed_rank(&pairs(10, &[10])) - 43.0 / 1024.0).abs() < 1e-12);
        // Equal sizes: three of four negative, as coins fall.
        assert!((signed_rank(&[-1.0, -1.0, -1.0, 1.0]) - 5.0 / 16.0).abs() < 1e-12);
        // Many pairs: the normal distribution takes over without a step.
        let third: Vec<i32> = (1..=64).filter(|rank| rank % 3 == 0).collect();
        let (exact, normal) = (signed_rank(&pairs(64, &third)), signed_rank(&pairs(65, &third)));
        assert!((0.5..1.0).contains(&(normal / exact)), "{exact} {normal}");
    }

    #[test]
    fn columns_that_are_alike_are_found_lower_as_often_as_said() {
        let mut random = Random::new(8, 0);
        let (mut below, mut seldom) = (0, 0);
        for _ in 0..4000 {
            // Rows differ by a lot, and a tenth of all values is far off.
            let rows: Vec<[f64; 3]> = (0..8)
                .map(|row| {
                    [(); 3].map(|()| {
                        10.0 * f64::from(row) + random.normal() * if random.below(10) == 0 { 9.0 } else { 1.0 }
                    })
                })
                .collect();
            let probability = aligned_ranks(&rows, 1);
            below += usize::from(probability <= 0.05);
            seldom += usize::from(probability <= 0.005);
        }
        // 200 and 20 are expected, with deviations of 14 and 4.5.
        assert!((130..250).contains(&below) && seldom <= 38, "{below} and {seldom}");
        assert!((aligned_ranks(&[[2.0, 1.0, 3.0]; 8], 1) / 3f64.powi(-8) - 1.0).abs() < 1e-9);
        assert!((aligned_ranks(&[[2.0, 1.0, 3.0]; 1], 0) - 2.0 / 3.0).abs() < 1e-9);
        assert!((aligned_ranks(&[[1.0; 3]; 4], 2) - 1.0).abs() < 1e-9);
        assert_eq!(aligned_ranks(&[], 1), 1.0);
    }

    #[test]
    fn two_samples_of_one_kind_are_found_apart_as_often_as_said() {
        let mut random = Random::new(9, 0);
        let draw = |random: &mut Random, count: usize| -> Vec<f64> {
            (0..count).map(|_| random.normal() * if random.below(10) == 0 { 9.0 } else { 1.0 }).collect()
        };
        let below = (0..2000).filter(|_| rank_sum(&draw(&mut random, 5), &draw(&mut random, 31)) <= 0.05).count();
        // 100 at most are expected, with a deviation of 10.
        assert!((60..140).contains(&below), "{below}");
        // All five beyond all twelve: 1 in 6188 of choices, to each side.
        let (few, many): (Vec<f64>, Vec<f64>) = ((0..5).map(f64::from).collect(), (10..22).map(f64::from).collect());
        assert!((rank_sum(&few, &many) - 2.0 / 6188.0).abs() < 1e-12);
        assert!((rank_sum(&many, &few) - 2.0 / 6188.0).abs() < 1e-12);
        // U = 1 of 3 and 4 is twice 2 of 35; what is equal says nothing.
        assert!((rank_sum(&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0, 7.0]) - 4.0 / 35.0).abs() < 1e-12);
        assert_eq!((rank_sum(&[1.0; 5], &[1.0; 12]), rank_sum(&[], &[1.0])), (1.0, 1.0));
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

    #[test]
    fn a_binomial_tail_is_counted() {
        assert_eq!((binomial_tail(0, 0, 0.3), binomial_tail(2, 3, 0.3), binomial_tail(5, 1, 0.0)), (1.0, 0.0, 0.0));
        // Of four coins, five of sixteen ways have three heads or more.
        assert!((binomial_tail(4, 3, 0.5) - 5.0 / 16.0).abs() < 1e-12);
        assert!((binomial_tail(2, 2, 0.1) - 0.01).abs() < 1e-12 && binomial_tail(3, 1, 1.0) == 1.0);
        // Of 100,000, two deviations of 68.9 more than the 5,000 that are expected, and ten.
        let beyond = |deviations: f64| binomial_tail(100_000, (5_000.0 + 68.9 * deviations) as u64, 0.05);
        assert!((beyond(2.0) - 0.0235).abs() < 1e-3 && beyond(10.0) < 1e-9, "{}", beyond(2.0));
    }
}
