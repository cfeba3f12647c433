//! Calls that are late for reasons that are nobody's: a packet that was lost, a process that had to wait. The default has them, too.

use crate::statistics::binomial_tail;

/// So many of a choice's calls are late by chance more seldom than that, if they are as the default's: then it is its own fault.
const BY_CHANCE: f64 = 0.01;

/// What a call of the default leaves of what those before it say: two hundred count.
const KEEP: f64 = 0.995;

/// Calls, and those of them that were late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    pub(super) calls: f64,
    pub(super) late: f64,
    /// Seconds that were charged for them.
    pub(super) charged_s: f64,
}

impl Late {
    /// A further call.
    pub(super) fn add(&mut self, is_late: bool) {
        self.calls += 1.0;
        self.late += f64::from(u8::from(is_late));
    }

    /// The same of calls that go on for ever, as the default's do.
    pub(super) fn add_to_last(&mut self, is_late: bool) {
        (self.calls, self.late) = (KEEP * self.calls, KEEP * self.late);
        self.add(is_late);
    }

    /// If these are the default's: were as many of those late as may be by chance? Where the default is never late, one is too many.
    pub(super) fn excuse(&self, those: &Late) -> bool {
        self.late > 0.0 && binomial_tail(those.calls as u64, those.late as u64, self.late / self.calls) >= BY_CHANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_to_the_default_as_often_is_excused() {
        let of = |calls: usize, late: usize| {
            let mut all = Late::default();
            (0..calls).for_each(|call| all.add(call < late));
            all
        };
        let one_in_twenty = of(100, 5);
        assert!(
            one_in_twenty.excuse(&of(1, 1)) && one_in_twenty.excuse(&of(6, 2)) && one_in_twenty.excuse(&of(200, 15))
        );
        // 1/400, and 20 of 200 where 10 are expected, with a deviation of 3.
        assert!(!one_in_twenty.excuse(&of(2, 2)) && !one_in_twenty.excuse(&of(200, 20)));
        assert!(!of(100, 0).excuse(&of(1, 1)) && !of(200, 1).excuse(&of(1, 1)) && !Late::default().excuse(&of(1, 1)));
        // What was long ago is forgotten.
        let mut calls = one_in_twenty;
        (0..1000).for_each(|_| calls.add_to_last(false));
        assert!(!calls.excuse(&of(1, 1)) && calls.calls <= 200.0);
    }
}
