//! How long a rehearsal's trials may be: as long as there is time for.

use paceline_tune::trial::{HALF_AS_PATIENT_BLOCKS, PATIENT_BLOCKS, Trial, WORTHWHILE, WORTHWHILE_FOR_NOTHING};

use super::ENDURANCE_CALLS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Whole,
    Half,
    None,
}

impl Patience {
    /// `has_time`: for so many more calls?
    pub(super) fn within(has_time: impl Fn(usize) -> bool) -> Patience {
        let whole = 3 * PATIENT_BLOCKS + 2 * ENDURANCE_CALLS;
        // What follows may end with the time.
        let half = 3 * HALF_AS_PATIENT_BLOCKS;
        match () {
            () if has_time(whole) => Patience::Whole,
            () if has_time(half) => Patience::Half,
            () => Patience::None,
        }
    }

    /// A trial that errs so seldom.
    pub(super) fn trial(self, level: f64) -> Trial {
        match self {
            Patience::Whole => Trial::patient(level),
            Patience::Half => Trial::half_as_patient(level),
            Patience::None => Trial::brief(level),
        }
    }

    /// Which share of the time must look saved, so that it is tried?
    pub(super) fn worthwhile(self) -> f64 {
        if self == Patience::None { WORTHWHILE } else { WORTHWHILE_FOR_NOTHING }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_as_long_as_there_is_time_for() {
        let within = |calls: usize| Patience::within(|needed| needed <= calls);
        assert_eq!([896, 895, 192, 191].map(within), [Patience::Whole, Patience::Half, Patience::Half, Patience::None]);
        assert!(Patience::Half.worthwhile() < Patience::None.worthwhile());
    }
}
