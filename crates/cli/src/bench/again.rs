//! Which method of a group is measured twice: the one that came out fastest in the first round. The winner is compared with
//! the others, so it is the winner that must not differ from itself; and whoever names methods in another order gets the same.

use super::cell::{Arm, Cell};
use super::store::{Store, StoreError, StudyId};
use super::study::PlannedCell;
use super::summary::counts;

/// The cell that is measured where the plan has one for the second measurement of some method, out of the cells of its
/// panel. A study that goes on takes the one with which it began; as planned where no method's first run counts.
///
/// # Errors
/// The database cannot be read.
pub fn chosen(
    store: &Store,
    study: StudyId,
    planned: &PlannedCell,
    panel: &[PlannedCell],
) -> Result<PlannedCell, StoreError> {
    // What is tuned is not the same twice: each run begins with what the ones before have learned.
    let is_rival = |PlannedCell { cell, .. }: &&PlannedCell| {
        cell.arm == Arm::Method && cell.workers == planned.cell.workers && !cell.tuned
    };
    let mut fastest: Option<(f64, PlannedCell)> = None;
    for PlannedCell { cell, pace } in panel.iter().filter(is_rival) {
        let again = PlannedCell { cell: Cell { arm: Arm::Again, ..cell.clone() }, pace: *pace };
        if store.knows(study, &again.cell)? {
            return Ok(again);
        }
        let Some(run) = store.measured(study, cell, 1)?.filter(counts) else { continue };
        let samples_per_s = run.samples_per_s();
        if fastest.as_ref().is_none_or(|(most, _)| samples_per_s > *most) {
            fastest = Some((samples_per_s, again));
        }
    }
    Ok(fastest.map_or_else(|| planned.clone(), |(_, again)| again))
}
