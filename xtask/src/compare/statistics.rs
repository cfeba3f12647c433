//! Medians and means.

/// The median; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The geometric mean; None of nothing.
pub fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// How far values lie from their median, as a factor: the median of max(value/median, median/value).
pub fn spread(values: &[f64]) -> f64 {
    let middle = median(values).ln();
    median(&values.iter().map(|value| (value.ln() - middle).abs()).collect::<Vec<_>>()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_their_names_say() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(geometric_mean([4.0, 1.0].into_iter()), Some(2.0));
        assert_eq!(geometric_mean([].into_iter()), None);
        assert!((spread(&[1.0, 2.0, 4.0, 2.0, 8.0]) - 2.0).abs() < 1e-12);
        assert_eq!(spread(&[7.0]), 1.0);
    }
}
