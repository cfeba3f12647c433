//! How many cells were measured to lie within what was predicted of them.

use crate::bench::Row;

/// What counts as within.
pub const LEGEND: &str = "Within 95 %: of the cells that were both predicted and measured, those whose measured \
    throughput (the mean over the runs) lies in the predicted 95 % interval, its ends included. What the runs leave \
    open of that mean does not widen the interval.";

/// Of cells that were both predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    cells: usize,
    within: usize,
}

impl Coverage {
    /// Of those among these rows.
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Coverage {
        let compared: Vec<bool> = rows.filter_map(is_within).collect();
        Coverage { cells: compared.len(), within: compared.iter().filter(|within| **within).count() }
    }

    /// `7 of 9 (78 %)`.
    pub fn in_words(self) -> String {
        let Coverage { cells, within } = self;
        if cells > 0 { format!("{within} of {cells} ({})", self.percent()) } else { "–".to_owned() }
    }

    fn percent(self) -> String {
        format!("{:.0} %", 100.0 * self.within as f64 / self.cells as f64)
    }

    /// As a sentence without a full stop; None if there is nothing to count.
    pub fn sentence(self) -> Option<String> {
        let Coverage { cells, within } = self;
        let (s, percent) = (if cells == 1 { "" } else { "s" }, self.percent());
        (cells > 0).then(|| {
            format!("{within} of {cells} cell{s} ({percent}) were measured within the predicted 95 % interval")
        })
    }
}

/// None if it was not both predicted and measured.
pub fn is_within(row: &Row) -> Option<bool> {
    let (predicted, result) = (row.predicted.as_ref()?, row.result.as_ref()?);
    let interval = predicted.samples_per_s_low..=predicted.samples_per_s_high;
    Some(interval.contains(&result.samples_per_s.mean))
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::bench::{Panel, sample_predicted_panels};

    fn all(panels: &[Panel]) -> Coverage {
        Coverage::of(panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.rows))
    }

    /// The ends count, and what was not measured, or not predicted, does not.
    #[test]
    fn cells_within_their_interval_are_counted() {
        let mut panels = sample_predicted_panels();
        assert_eq!(all(&panels), Coverage { cells: 9, within: 9 }, "predicted 5 % too fast, give or take 5 %");
        let rows = &mut panels[1].groups[0].rows;
        let mean = rows[0].result.as_ref().expect("it ran").samples_per_s.mean;
        let predicted = rows[0].predicted.as_mut().expect("it was predicted");
        predicted.samples_per_s_low = mean;
        assert_eq!(is_within(&rows[0]), Some(true));
        rows[0].predicted.as_mut().expect("it was predicted").samples_per_s_low = 1.001 * mean;
        (rows[1].predicted, rows[2].result) = (None, None);
        assert_eq!([0, 1, 2, 3].map(|row: usize| is_within(&rows[row])), [Some(false), None, None, Some(true)]);
        let coverage = all(&panels);
        assert_eq!((coverage.in_words().as_str(), coverage.cells), ("6 of 7 (86 %)", 7));
        let sentence = "6 of 7 cells (86 %) were measured within the predicted 95 % interval";
        assert_eq!(coverage.sentence().as_deref(), Some(sentence));
        let nothing = Coverage::of(iter::empty());
        assert_eq!((nothing.in_words().as_str(), nothing.sentence()), ("–", None));
    }
}
