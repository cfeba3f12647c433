//! A value and its interval from what rounds have found. Pure.

use paceline_plan::Constant;

use crate::bench::median;

/// Fewer rounds have no 95 % interval of their median: of five values, the median of everything that could have been
/// measured lies outside them in one case of sixteen.
pub const ROUNDS_MIN: usize = 6;

/// The median, and its 95 % interval: that of the sign test, whatever the distribution. Between the k-th smallest and the
/// k-th largest of n values, where k is the largest with 2·P(Binomial(n, 1/2) < k) ≤ 0.05. Of fewer than [`ROUNDS_MIN`]
/// values, all of them; of none, zero.
///
/// Source: Conover, "Practical nonparametric statistics" (1999), §3.2.
pub fn constant(values: &[f64]) -> Constant {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(median) = median(&sorted) else { return Constant::ZERO };
    let outside = left_out(sorted.len());
    Constant::between(median, sorted[outside], sorted[sorted.len() - 1 - outside])
}

/// With five digits, which is more than anything is known to.
pub fn rounded(Constant { value, low, high }: Constant) -> Constant {
    let digits = |number: f64| format!("{number:.4e}").parse().unwrap_or(number);
    Constant::between(digits(value), digits(low), digits(high))
}

/// How many values lie below the interval, and as many above.
fn left_out(count: usize) -> usize {
    // P(Binomial(n, 1/2) = 0); more rounds than a double can halve are not made.
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = 0.0;
    for outside in 0..count / 2 {
        below += probability;
        if 2.0 * below > 0.05 {
            return outside.saturating_sub(1);
        }
        probability *= (count - outside) as f64 / (outside + 1) as f64;
    }
    (count / 2).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conover, table A3: 95 % intervals of a median.
    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        for (count, outside) in [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5)] {
            assert_eq!(left_out(count), outside, "{count}");
        }
        let values: Vec<f64> = (1..=12).rev().map(f64::from).collect();
        assert_eq!(constant(&values), Constant::between(6.5, 3.0, 10.0));
        assert_eq!(constant(&[2.0]), Constant::exact(2.0));
        assert_eq!(constant(&[]), Constant::ZERO);
    }

    #[test]
    fn five_digits_are_kept() {
        let long = Constant::between(1.234_56e-6, 1.234_549_9e-6, -98_765.4);
        assert_eq!(rounded(long), Constant::between(1.2346e-6, 1.2345e-6, -98_765.0));
        assert_eq!(rounded(Constant::ZERO), Constant::ZERO);
        assert!(rounded(Constant::exact(f64::NAN)).value.is_nan());
    }

    #[test]
    fn one_bad_round_moves_neither_median_nor_interval_far() {
        let values = [1.0, 1.1, 0.9, 1.0, 50.0, 1.2, 1.0, 1.05, 0.95, 1.0, 1.0, 1.0];
        let found = constant(&values);
        assert!(found.value == 1.0 && found.high < 1.2, "{found:?}");
    }
}
