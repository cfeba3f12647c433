//! What calls of an arm usually take: a single late call moves their mean, and by how much they seem to vary, but not their middle.

use crate::statistics::{Last, Middle};

/// So many of the last calls count: four of them may be late.
const LAST: usize = 15;

/// Fewer than so many have no middle to speak of: two of four may be late.
const ENOUGH: usize = 5;

/// The last calls of an arm, as logarithms.
#[derive(Clone, Debug, Default)]
pub(super) struct Usual {
    last: Last<LAST>,
    /// Of them: it is asked for more often than it changes. None of few.
    middle: Option<Middle>,
}

impl Usual {
    /// A further call.
    pub(super) fn add(&mut self, value: f64) {
        self.last.add(value);
        let sorted = self.last.by_size();
        self.middle = if sorted.len() < ENOUGH { None } else { Middle::of_sorted(sorted) };
    }

    /// All of them took so much less.
    pub(super) fn lower(&mut self, by: f64) {
        self.last.lower(by);
        self.middle.iter_mut().for_each(|middle| middle.value -= by);
    }

    /// They say nothing any more.
    pub(super) fn forget(&mut self) {
        self.last.clear();
        self.middle = None;
    }

    /// None of few calls.
    pub(super) fn middle(&self) -> Option<Middle> {
        self.middle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_calls_move_no_middle_and_old_ones_are_forgotten() {
        let mut usual = Usual::default();
        for call in 0..20 {
            assert_eq!(usual.middle().is_some(), call >= ENOUGH);
            usual.add(if call % 7 == 3 { 5.0 } else { 0.1 * ((call % 3) as f64 - 1.0) });
        }
        let middle = usual.middle().expect("20 calls");
        let Middle { value, deviation, count } = middle;
        assert!(value.abs() <= 0.1 && (0.05..0.2).contains(&deviation) && count == LAST, "{value}, {deviation}");
        usual.lower(1.0);
        assert!(usual.middle().is_some_and(|middle| (middle.value - value + 1.0).abs() < 1e-12));
        (0..LAST).for_each(|_| usual.add(3.0));
        assert_eq!(usual.middle(), Some(Middle { value: 3.0, deviation: 0.0, count: LAST }));
        usual.forget();
        assert_eq!(usual.middle(), None);
    }
}
