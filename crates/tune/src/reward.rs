//! What a choice is judged by. What becomes of iterations is compared in trials ([`crate::trial`]), as logarithms: twice as fast and half
//! as fast weigh the same.

/// Seconds of a call on the rank that came last, of the times of all ranks, each from its own start to its own end: the least of
/// them. The others have waited for it, and that is not the fault of the choice. None if there are none, or if one is no time.
pub fn call_s(seconds: &[f64]) -> Option<f64> {
    let usable = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
    if !seconds.iter().all(usable) {
        return None;
    }
    seconds.iter().copied().reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_not_charged_to_the_choice() {
        // Three ranks waited for the fourth.
        assert_eq!(call_s(&[9e-3, 8e-3, 9.5e-3, 1e-3]), Some(1e-3));
        assert_eq!(call_s(&[]), None);
        assert_eq!(call_s(&[1.0, f64::NAN]), None);
        assert_eq!(call_s(&[1.0, -1.0]), None);
    }
}
