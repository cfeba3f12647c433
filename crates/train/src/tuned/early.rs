//! Before the ranks have met for the first time: when they glance, by what all of them know without being told.

/// What was called so far: calls that were timed, and the seconds that all are believed to have taken. The same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoFar {
    pub(super) timed: u64,
    pub(super) seconds: f64,
}

/// Glances after a rehearsal, until the ranks have met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    /// From one to the next: seconds of calls, and calls of each context that are timed, in the mean of all contexts.
    seconds: f64,
    calls: f64,
    /// When it was time for the last one.
    last: SoFar,
}

impl Early {
    pub(super) fn every(seconds: f64, calls: f64) -> Early {
        Early { seconds, calls, last: SoFar { timed: 0, seconds: 0.0 } }
    }

    /// A boundary, after calls of so many contexts: do the ranks glance? Not when it is time for the first: the calls until then are cold, and there are
    /// none to compare them with.
    pub(super) fn is_due(&mut self, so_far: SoFar, contexts: usize) -> bool {
        let calls = (so_far.timed - self.last.timed) as f64 / contexts.max(1) as f64;
        let is_time = calls >= self.calls && so_far.seconds - self.last.seconds >= self.seconds;
        let is_first = self.last.timed == 0;
        if is_time {
            self.last = so_far;
        }
        is_time && !is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_comes_after_calls_and_time_enough() {
        let due = |call_s: f64, contexts: usize| {
            let mut early = Early::every(20e-3, 16.0);
            let so_far = |timed: u64| SoFar { timed, seconds: timed as f64 * call_s };
            (1..=100).filter(|timed| early.is_due(so_far(*timed), contexts)).collect::<Vec<u64>>()
        };
        assert_eq!(due(0.501e-3, 1), [80]);
        assert_eq!(due(10e-3, 1), [32, 48, 64, 80, 96]);
        assert_eq!(due(10e-3, 2), [64, 96]);
    }

    /// A context is called for the first time just after one.
    #[test]
    fn another_context_makes_the_next_one_later() {
        let mut early = Early::every(0.0, 16.0);
        let mut is_due = |timed: u64, contexts: usize| early.is_due(SoFar { timed, seconds: 1.0 }, contexts);
        assert_eq!(
            [is_due(16, 1), is_due(32, 1), is_due(33, 2), is_due(63, 2), is_due(64, 2)],
            [false, true, false, false, true]
        );
    }
}
