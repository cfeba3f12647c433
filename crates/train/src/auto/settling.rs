//! From when on iterations are worth planning from. The first ones of a process take longer than what follows, by a fifth and more on
//! some machines: memory is touched for the first time, caches fill, clocks rise. What is planned from them does not come true.

/// A window that is faster than the one before it by more than this share says that the next one may be faster still.
const FALL: f64 = 0.03;

/// So many windows are looked at, at most: where other programs compute, too, they never settle.
const WINDOWS_MAX: usize = 7;

/// Compares windows of iterations with those before them. A pure state machine: medians go in, which are the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settling {
    before_s: f64,
    windows: usize,
}

impl Default for Settling {
    fn default() -> Settling {
        Settling { before_s: f64::INFINITY, windows: 0 }
    }
}

impl Settling {
    /// The median iteration of a window has taken so long. Is another window to be measured before anything is planned? Always behind
    /// the first one.
    pub(crate) fn goes_on(&mut self, median_s: f64) -> bool {
        let is_faster = median_s < self.before_s * (1.0 - FALL);
        self.before_s = median_s;
        self.windows += 1;
        is_faster && self.windows < WINDOWS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many windows are looked at.
    fn windows(medians: impl IntoIterator<Item = f64>) -> usize {
        let mut settling = Settling::default();
        1 + medians.into_iter().take_while(|&median_s| settling.goes_on(median_s)).count()
    }

    #[test]
    fn it_ends_where_windows_are_no_faster_any_more() {
        assert_eq!(windows([1.0, 1.0, 0.5]), 2);
        assert_eq!(windows([1.0, 0.98, 0.5]), 2);
        assert_eq!(windows([1.0, 1.4, 0.5]), 2);
        assert_eq!(windows([1.0, 0.8, 0.7, 0.69, 0.5]), 4);
    }

    #[test]
    fn it_ends_though_nothing_settles() {
        assert_eq!(windows((0..).map(|window| 0.9_f64.powi(window))), WINDOWS_MAX);
        assert_eq!(windows([0.0, 0.0]), 2, "iterations that take no time");
    }
}
