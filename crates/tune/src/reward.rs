//! What a choice is judged by. What becomes of iterations is compared in trials ([`crate::trial`]), as logarithms: twice as fast and half
//! as fast weigh the same.

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Seconds of the call on the rank that came last: the least of all ranks. The others have waited for it, and that is
    /// not the fault of the choice.
    pub call_s: f64,
    /// Seconds of the iteration that it was part of, if that is known.
    pub iteration_s: Option<f64>,
}

impl Sample {
    /// Of the times of all ranks, each from its own start to its own end. None if there are none, or if one is no time.
    pub fn of_ranks(seconds: &[f64], iteration_s: Option<f64>) -> Option<Sample> {
        let usable = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
        if !seconds.iter().all(usable) || !iteration_s.iter().all(usable) {
            return None;
        }
        seconds.iter().copied().reduce(f64::min).map(|call_s| Sample { call_s, iteration_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_not_charged_to_the_choice() {
        // Three ranks waited for the fourth.
        let sample = Sample::of_ranks(&[9e-3, 8e-3, 9.5e-3, 1e-3], None);
        assert_eq!(sample, Some(Sample { call_s: 1e-3, iteration_s: None }));
        assert_eq!(Sample::of_ranks(&[], None), None);
        assert_eq!(Sample::of_ranks(&[1.0, f64::NAN], None), None);
        assert_eq!(Sample::of_ranks(&[1.0], Some(-1.0)), None);
    }
}
