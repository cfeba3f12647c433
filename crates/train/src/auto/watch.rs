//! Does the prediction hold? A pure state machine: times go in, judgements come out.

/// Iterations that are looked at together. Their median counts: an evaluation, or another program that has the processor for a
/// moment, is not to change a plan.
pub(crate) const WINDOW: usize = 20;

/// A prediction that is off by no more than this share holds.
const TOLERANCE: f64 = 0.15;

/// So many windows in a row must be off before something is done.
const STRIKES: usize = 2;

/// Another plan must be predicted to be faster by this share.
const GAIN: f64 = 0.03;

/// After so many windows in a row that held, the next attempt is again as near as the first one was.
const CONTENT: usize = 50;

/// After each of so many that held in a row, where looking costs something, the next window is twice as long, up to so many times.
const CALM: usize = 4;
const LONGEST: usize = 16;

/// What a window says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Go on.
    GoOn,
    /// Measure and plan again.
    PlanAgain,
}

/// Compares windows with what is expected.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    expected_s: f64,
    /// What another plan took that was carried out before.
    other_s: Option<f64>,
    /// Windows in a row that were off, and that held.
    strikes: usize,
    held: usize,
    /// Windows until something may be done again.
    rest: usize,
    /// How long the next rest is.
    next_rest: usize,
}

impl Watch {
    /// Expects iterations of so many seconds.
    pub(crate) fn new(expected_s: f64) -> Watch {
        Watch { expected_s, other_s: None, strikes: 0, held: 0, rest: 0, next_rest: 1 }
    }

    /// A window has taken so long per iteration: the same number on all ranks.
    pub(crate) fn judge(&mut self, measured_s: f64) -> Judgement {
        let worse = self.other_s.is_some_and(|other_s| Watch::worth_changing(measured_s, other_s));
        if holds(self.expected_s, measured_s) && !worse {
            (self.strikes, self.held) = (0, self.held + 1);
        } else {
            (self.strikes, self.held) = (self.strikes + 1, 0);
        }
        if self.held >= CONTENT {
            self.next_rest = 1;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return Judgement::GoOn;
        }
        if self.strikes < STRIKES {
            return Judgement::GoOn;
        }
        self.strikes = 0;
        self.rest = self.next_rest;
        self.next_rest = self.next_rest.saturating_mul(2);
        Judgement::PlanAgain
    }

    /// As how many windows of the usual length the next one may last where looking costs something, as all that is on its way must
    /// arrive first: the longer it holds, the more.
    pub(crate) fn windows(&self) -> usize {
        1 << (self.held / CALM).min(LONGEST.ilog2() as usize)
    }

    /// From here on iterations of so many seconds are expected, and another plan took `other_s`: what is slower than that by
    /// more than a change costs is off, too, whatever was expected of it.
    pub(crate) fn expect(&mut self, expected_s: f64, other_s: Option<f64>) {
        (self.expected_s, self.other_s) = (expected_s, other_s);
    }

    /// Is a plan that is predicted to take `other_s` worth leaving one that is predicted to take `current_s`?
    pub(crate) fn worth_changing(current_s: f64, other_s: f64) -> bool {
        other_s < current_s * (1.0 - GAIN)
    }
}

/// Has a prediction come true?
pub(crate) fn holds(expected_s: f64, measured_s: f64) -> bool {
    (measured_s / expected_s - 1.0).abs() <= TOLERANCE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(watch: &mut Watch, windows: &[f64]) -> Vec<usize> {
        let judged = windows.iter().map(|&measured_s| watch.judge(measured_s)).enumerate();
        judged.filter(|(_, judgement)| *judgement == Judgement::PlanAgain).map(|(window, _)| window).collect()
    }

    #[test]
    fn a_prediction_that_holds_changes_nothing() {
        assert!(judge(&mut Watch::new(1.0), &[1.0, 1.1, 0.9, 1.15, 0.85]).is_empty());
        // One window is no reason: another program was running.
        assert!(judge(&mut Watch::new(1.0), &[1.0, 3.0, 1.0, 3.0, 1.0, 0.5, 1.0]).is_empty());
    }

    #[test]
    fn two_windows_in_a_row_are_a_reason_whether_slower_or_faster() {
        assert_eq!(judge(&mut Watch::new(1.0), &[1.0, 1.2, 1.2]), [2]);
        assert_eq!(judge(&mut Watch::new(1.0), &[0.8, 0.8]), [1]);
        assert_eq!(judge(&mut Watch::new(1.0), &[f64::INFINITY, f64::NAN]), [1]);
    }

    /// What never comes true is tried less and less often.
    #[test]
    fn attempts_become_rare() {
        let again = judge(&mut Watch::new(1.0), &[2.0; 40]);
        let apart: Vec<usize> = again.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(again[0], 1);
        assert!(apart.windows(2).all(|pair| pair[1] > pair[0]), "{again:?}");
    }

    #[test]
    fn what_was_measured_is_expected_from_then_on() {
        let mut watch = Watch::new(1.0);
        assert_eq!(judge(&mut watch, &[2.0, 2.0]), [1]);
        watch.expect(2.0, None);
        assert!(judge(&mut watch, &[2.0, 2.1, 1.9, 2.0]).is_empty());
        assert_eq!(judge(&mut watch, &[1.0, 1.0]), [1]);
    }

    /// It does what was predicted, and another plan was better.
    #[test]
    fn a_better_plan_is_not_forgotten() {
        let mut watch = Watch::new(1.0);
        watch.expect(1.0, Some(0.9));
        assert_eq!(judge(&mut watch, &[1.0, 0.92, 1.0, 1.0]), [3]);
        watch.expect(1.0, Some(0.99));
        assert!(judge(&mut watch, &[1.0; 9]).is_empty());
    }

    #[test]
    fn what_holds_for_long_may_be_asked_again_soon() {
        let mut watch = Watch::new(1.0);
        judge(&mut watch, &[2.0; 40]);
        judge(&mut watch, &[1.0; CONTENT]);
        assert_eq!(judge(&mut watch, &[2.0; 6]), [1, 3]);
    }

    #[test]
    fn what_holds_is_looked_at_less_often() {
        let mut watch = Watch::new(1.0);
        let lengths: Vec<usize> = (0..20)
            .map(|_| {
                watch.judge(1.0);
                watch.windows()
            })
            .collect();
        assert_eq!([lengths[0], lengths[2], lengths[3], lengths[7], lengths[15], lengths[19]], [1, 1, 2, 4, 16, 16]);
        watch.judge(2.0);
        assert_eq!(watch.windows(), 1);
    }

    #[test]
    fn a_small_gain_is_not_worth_a_change() {
        assert!(!Watch::worth_changing(1.0, 0.98) && Watch::worth_changing(1.0, 0.95));
    }
}
