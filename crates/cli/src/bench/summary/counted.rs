//! Which runs count, and what they give. Pure.

use paceline_train::CellRun;

use crate::bench::cell::Setting;
use crate::bench::processors::remedy;
use crate::bench::store::{CellRecord, RunRecord};

/// The runs that count: those that ended, and whose processor kept up.
pub(super) fn counted(record: &CellRecord) -> impl Iterator<Item = &CellRun> {
    record.runs.iter().filter_map(of_run)
}

/// What a run gave, if it counts.
fn of_run(run: &RunRecord) -> Option<&CellRun> {
    run.outcome.as_ref().ok().filter(|measured| counts(measured))
}

/// Does a run count that has ended?
pub fn counts(measured: &CellRun) -> bool {
    !measured.overrun() && !measured.iteration_s.is_empty()
}

/// The shards that serve: those of the cell; or, as everything that is told of a choice, those of the first run.
pub(super) fn shards(record: &CellRecord) -> usize {
    let chosen = counted(record).next().filter(|run| run.decision.is_some());
    chosen.map_or(record.cell.shards, |run| run.shards)
}

/// Samples per second of the runs that count.
pub(super) fn throughputs(record: &CellRecord) -> Vec<f64> {
    counted(record).map(CellRun::samples_per_s).collect()
}

/// The throughputs of runs 1, 2, …
pub(super) fn by_number(record: &CellRecord) -> Vec<Option<f64>> {
    let last = record.runs.iter().map(|run| run.number).max().unwrap_or(0);
    let of = |number| of_run(record.runs.iter().find(|run| run.number == number)?).map(CellRun::samples_per_s);
    (1..=last).map(of).collect()
}

/// Why a run of this setting does not count, if it does not.
pub(super) fn failure(run: &RunRecord, setting: &Setting) -> Option<String> {
    let why = match &run.outcome {
        Err(message) => message.clone(),
        // Studies of earlier versions have kept such runs.
        Ok(run) => too_late(run, setting)?,
    };
    Some(format!("run {}: {why}", run.number))
}

/// Why a run of this setting does not count although it ended, if it does not.
pub fn too_late(run: &CellRun, setting: &Setting) -> Option<String> {
    let late = 100.0 * run.lateness.filter(|lateness| lateness.overrun)?.share;
    let remedy = remedy(setting);
    Some(format!("not counted: the processor was late by {late:.0} % of the replayed computation; {remedy}"))
}

#[cfg(test)]
mod tests {
    use paceline_train::Decision;

    use super::super::samples;
    use super::*;
    use crate::bench::cell::Cell;
    use crate::bench::cell::samples::{cell, setting};

    #[test]
    fn shards_that_were_met_and_not_chosen_do_not_serve() {
        let decision = Decision {
            iteration: 0,
            strategy: "schedule=auto,arch=ps:1".to_owned(),
            plan_hash: String::new(),
            changed: true,
            predicted_iteration_s: 0.1,
            predicted_low_s: 0.1,
            predicted_high_s: 0.1,
            expected_iteration_s: 0.1,
            reasons: Vec::new(),
            doubts: Vec::new(),
            measured_iteration_s: None,
        };
        let mut record = samples::record(Cell { shards: 4, ..cell(&setting("cnn"), "auto", 4) }, &[0.1, 0.1]);
        assert_eq!(shards(&record), 4, "nothing was chosen");
        for (run, serving) in record.runs.iter_mut().zip([1, 0]) {
            let run = run.outcome.as_mut().expect("it ended");
            (run.shards, run.decision) = (serving, Some(decision.clone()));
        }
        assert_eq!(shards(&record), 1);
    }
}
