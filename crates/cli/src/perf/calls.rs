//! Which sizes are measured, and how often.
//!
//! The rule must be the same for every contestant of a comparison: xtask compiles this file too, and hands the constants
//! to those that are written in C and Python.

/// Calls that are timed to find out how many fit into the time. They count as warm-up.
pub const PROBE_CALLS: usize = 2;
/// The fewest calls that have a median.
pub const CALLS_MIN: usize = 3;
/// More calls than this no longer change the percentiles that we print.
pub const CALLS_MAX: usize = 1000;
/// One warm-up call for so many measured ones.
pub const WARM_UP_SHARE: usize = 10;

/// How many calls are made for one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Calls before the measured ones, besides the probing calls.
    pub warm_up: usize,
    /// Measured calls.
    pub measured: usize,
}

impl Calls {
    /// As many calls as fit into `seconds` at `seconds_per_call`, within limits, unless the user has said how many.
    pub fn plan(seconds: f64, seconds_per_call: f64, measured: Option<usize>, warm_up: Option<usize>) -> Calls {
        let fitting = (seconds / seconds_per_call.max(1e-9)) as usize;
        let measured = measured.unwrap_or(fitting.clamp(CALLS_MIN, CALLS_MAX));
        Calls { warm_up: warm_up.unwrap_or(measured / WARM_UP_SHARE), measured }
    }
}

/// `min`, `min·factor`, `min·factor²`, … and `max` itself.
pub fn sizes(min: usize, max: usize, factor: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(min), |size| size.checked_mul(factor));
    powers.take_while(|size| *size < max).chain([max]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_always_measured() {
        assert_eq!(sizes(1024, 5000, 2), [1024, 2048, 4096, 5000]);
        assert_eq!(sizes(1024, 4096, 4), [1024, 4096]);
        assert_eq!(sizes(7, 7, 2), [7]);
        assert_eq!(sizes(usize::MAX / 2, usize::MAX, 4), [usize::MAX / 2, usize::MAX]);
    }

    #[test]
    fn the_number_of_calls_follows_the_time_and_the_user() {
        assert_eq!(Calls::plan(0.5, 0.001, None, None), Calls { warm_up: 50, measured: 500 });
        assert_eq!(Calls::plan(0.5, 0.0, None, None), Calls { warm_up: 100, measured: 1000 });
        assert_eq!(Calls::plan(0.5, 9.0, None, None), Calls { warm_up: 0, measured: 3 });
        assert_eq!(Calls::plan(0.5, 9.0, Some(20), Some(3)), Calls { warm_up: 3, measured: 20 });
    }
}
