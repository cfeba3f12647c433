//! How far predictions are off.

/// Relative errors of several predictions, without their signs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// How many predictions.
    pub rows: usize,
    /// Half of the predictions are not further off than this.
    pub median: f64,
    /// Nine in ten are not further off than this.
    pub p90: f64,
    /// None is further off than this.
    pub worst: f64,
}

impl Errors {
    /// Of predictions that are off by these shares of what was measured; all 0 if there are none.
    pub fn of(errors: impl Iterator<Item = f64>) -> Errors {
        let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| quantile(&sizes, share).unwrap_or_default();
        Errors { rows: sizes.len(), median: at(0.5), p90: at(0.9), worst: at(1.0) }
    }
}

/// A quantile of sorted values, linear between them; None of nothing.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let below = place as usize;
    let above = (below + 1).min(sorted.len() - 1);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_summarised() {
        let errors = Errors::of([0.02, -0.01, 0.04, -0.03, 0.0].into_iter());
        assert_eq!((errors.rows, errors.median, errors.worst), (5, 0.02, 0.04));
        assert!((errors.p90 - 0.036).abs() < 1e-12, "{errors:?}");
        assert_eq!(Errors::of([].into_iter()), Errors::default());
        assert_eq!(quantile(&[7.0], 0.9), Some(7.0));
    }
}
