//! What one worker alone computes: the profile that is replayed, or what the study's one-worker runs measured.

use paceline_plan::{Constant, Profile};
use paceline_train::{CellRun, Computed, load_profile, measured_profile};

use super::super::cell::{Cell, Compute, Setting};
use super::super::models::fingerprint;
use super::super::statistics::{Estimate, mean};
use super::super::store::CellRecord;

/// For the setting's batch.
///
/// # Errors
/// There is none, in a sentence.
pub fn profile(setting: &Setting, cells: &[CellRecord]) -> Result<Profile, String> {
    match &setting.compute {
        Compute::Replay { profile, fingerprint: expected, .. } => {
            let found = load_profile(profile).map_err(|error| error.to_string())?;
            if fingerprint(&found) != *expected {
                return Err(format!("{profile} has changed since it was replayed"));
            }
            // Whatever it says of the device it was made on, and of which batch it was, it is slept through as it is.
            let slept = found.for_batch(setting.local_batch.max(1));
            Ok(Profile { uncertainty: None, recorded_batch: None, spread: None, ..slept })
        }
        Compute::Real => measured(setting, &runs_alone(setting, cells, |_| true)),
    }
}

/// The same for a cell of one worker that really computes. Only what other methods measured counts, as no prediction sees an
/// iteration of its own cell, nor of the one that measures the same method again.
///
/// # Errors
/// Nobody else was measured, in a sentence.
pub fn profile_of_others(cell: &Cell, cells: &[CellRecord]) -> Result<Profile, String> {
    let setting = &cell.setting;
    let is_other = |other: &Cell| other.method != cell.method;
    let is_alone = |other: &Cell| other.setting == *setting && other.workers == 1;
    if !cells.iter().any(|record| is_alone(&record.cell) && is_other(&record.cell)) {
        let why = "one worker alone was measured by this method only, and what it computes is not predicted";
        return Err(why.to_owned());
    }
    let others = runs_alone(setting, cells, is_other);
    if others.is_empty() {
        return Err("no run of one worker by another method without servers says what it computes".to_owned());
    }
    measured(setting, &others)
}

/// What the one-worker cells of the setting without servers measured, of those that are wanted: however it would communicate, a
/// worker alone computes the same.
fn runs_alone<'a>(setting: &Setting, cells: &'a [CellRecord], wanted: impl Fn(&Cell) -> bool) -> Vec<&'a CellRun> {
    let alone = |record: &&CellRecord| {
        let cell = &record.cell;
        cell.setting == *setting && cell.workers == 1 && cell.shards == 0 && wanted(cell)
    };
    let runs = cells.iter().filter(alone).flat_map(|record| &record.runs);
    runs.filter_map(|run| run.outcome.as_ref().ok()).filter(|run| !run.inputs.elements.is_empty()).collect()
}

/// Over these runs.
fn measured(setting: &Setting, runs: &[&CellRun]) -> Result<Profile, String> {
    if runs.is_empty() {
        return Err("no run of one worker says what it computes".to_owned());
    }
    let profile = measured_profile(&setting.model, setting.local_batch, &computed(runs), uncertain(runs));
    profile.check().and_then(|()| profile.check_pace()).map_err(|error| error.to_string())?;
    Ok(profile)
}

/// Half of the 95 % interval of what an iteration computes, as a share of it: over the runs, as each has a world of its own. Of a
/// single run nobody can tell.
fn uncertain(runs: &[&CellRun]) -> f64 {
    let compute_s: Vec<f64> = runs.iter().map(|run| run.compute_s).collect();
    Estimate::of(&compute_s).and_then(|all| all.relative_half_width()).unwrap_or(0.0)
}

/// Times what a worker alone computes, where all workers of a group compute at once: as passes without communication say that the
/// worlds of the group and those of one worker made before their iterations. None: nobody has measured it, or there is one
/// worker.
pub fn slower_together(setting: &Setting, workers: usize, cells: &[CellRecord]) -> Option<Constant> {
    let of = |count: usize| -> Option<Estimate> {
        let group = cells.iter().filter(|record| record.cell.setting == *setting && record.cell.workers == count);
        let runs = group.flat_map(|record| &record.runs).filter_map(|run| run.outcome.as_ref().ok());
        Estimate::of(&runs.filter_map(|run| run.inputs.pass_s).collect::<Vec<_>>())
    };
    let (together, alone) = (of(workers).filter(|_| workers > 1)?, of(1)?);
    let share = |all: &Estimate| all.relative_half_width().unwrap_or(0.0);
    let (times, open) = (together.mean / alone.mean, share(&together).hypot(share(&alone)));
    // No worker is faster because others compute, too.
    times.is_finite().then(|| Constant::between(times, times * (1.0 - open), times * (1.0 + open)).at_least(1.0))
}

/// Means over the runs. Whatever an iteration does besides backward and the optimiser counts as forward: it delays no
/// gradient.
fn computed(runs: &[&CellRun]) -> Computed {
    let average =
        |value: &dyn Fn(&CellRun) -> f64| mean(&runs.iter().map(|run| value(run)).collect::<Vec<_>>()).unwrap_or(0.0);
    let sizes = runs[0].inputs.elements.clone();
    let ready = |tensor: usize| average(&|run| run.inputs.ready_s.get(tensor).copied().unwrap_or(0.0));
    let ready_s: Vec<f64> = (0..sizes.len()).map(ready).collect();
    let backward_s = ready_s.iter().copied().fold(0.0, f64::max);
    let update_s = average(&|run| run.inputs.update_s);
    let forward_s = (average(&|run| run.compute_s) - backward_s - update_s).max(0.0);
    Computed { sizes, ready_s, forward_s, update_s }
}

#[cfg(test)]
mod tests {
    use paceline_train::FormulaInputs;

    use super::super::super::cell::Arm;
    use super::super::super::cell::samples::{cell, setting};
    use super::super::super::store::{Occasion, RunRecord};
    use super::super::super::summary::samples::cell_run;
    use super::*;

    fn record(workers: usize, compute_s: f64) -> CellRecord {
        let inputs = FormulaInputs {
            ready_s: vec![0.04, 0.02],
            elements: vec![10, 20],
            update_s: 0.01,
            ..FormulaInputs::default()
        };
        let run = CellRun { compute_s, inputs, ..cell_run(1.0) };
        let run = RunRecord { number: 1, outcome: Ok(run), occasion: Occasion::default() };
        CellRecord { cell: cell(&setting("cnn"), "bsp-a2a", workers), runs: vec![run] }
    }

    #[test]
    fn a_real_model_is_what_one_worker_measured() {
        let profile = profile(&setting("cnn"), &[record(2, 0.5), record(1, 0.1)]).expect("one worker ran");
        assert_eq!((profile.sizes(), profile.ready_s()), (vec![10, 20], vec![0.04, 0.02]));
        assert!((profile.iteration_s() - 0.1).abs() < 1e-12, "{profile:?}");
        assert_eq!((profile.update_s, profile.local_batch), (0.01, 32));
        assert!((profile.forward_s() - 0.05).abs() < 1e-12);
        let missing = super::profile(&setting("cnn"), &[record(2, 0.5)]);
        assert!(missing.is_err_and(|why| why.contains("no run of one worker")));
    }

    /// Whatever a cell's own method has measured, once or again, and whatever servers add.
    #[test]
    fn what_others_measured_is_known_without_a_cell_itself() {
        let of = |method: &str, compute_s: f64| {
            let alone = record(1, compute_s);
            CellRecord { cell: cell(&setting("cnn"), method, 1), ..alone }
        };
        let again = |mut record: CellRecord| {
            record.cell.arm = Arm::Again;
            record
        };
        let cells = [
            of("bsp-a2a", 0.1),
            again(of("bsp-a2a", 0.7)),
            of("wfbp-a2a", 0.2),
            of("wfbp-ps", 0.9),
            CellRecord { cell: cell(&setting("mlp"), "mg-wfbp", 1), ..record(1, 0.9) },
            record(2, 0.9),
        ];
        let iteration_s =
            |cell: &Cell, cells: &[CellRecord]| profile_of_others(cell, cells).map(|all| all.iteration_s());
        let is = |found: Result<f64, String>, expected: f64| found.is_ok_and(|found| (found - expected).abs() < 1e-12);
        assert!(is(iteration_s(&cells[0].cell, &cells), 0.2));
        assert!(is(iteration_s(&cells[2].cell, &cells), 0.4), "both arms of the other method count");
        // One that has servers is no part of what all runs say, either.
        assert!(is(iteration_s(&cells[3].cell, &cells[..4]), (0.1 + 0.7 + 0.2) / 3.0));
        let refused = |cells: &[CellRecord]| iteration_s(&cells[0].cell, cells).err().unwrap_or_default();
        assert!(refused(&cells[..2]).starts_with("one worker alone was measured by this method only"));
        let only_served = [of("bsp-a2a", 0.1), of("wfbp-ps", 0.9)];
        assert!(refused(&only_served).starts_with("no run of one worker by another method without servers"));
        // What other groups begin with is all of it.
        let all = profile(&setting("cnn"), &cells).expect("one worker ran");
        assert!((all.iteration_s() - (0.1 + 0.7 + 0.2) / 3.0).abs() < 1e-12, "{all:?}");
    }

    /// Two worlds of one worker, 0.10 and 0.12 s for a pass; two of two workers, 0.16 and 0.17 s.
    #[test]
    fn passes_that_all_make_at_once_say_what_company_costs() {
        let of = |workers: usize, pass_s: Option<f64>| {
            let mut record = record(workers, 0.1);
            if let Ok(run) = &mut record.runs[0].outcome {
                run.inputs.pass_s = pass_s;
            }
            record
        };
        let cells = [
            of(1, Some(0.10)),
            of(1, Some(0.12)),
            of(2, Some(0.16)),
            of(2, Some(0.17)),
            of(4, None),
            of(3, Some(0.05)),
        ];
        let times = |workers: usize| slower_together(&setting("cnn"), workers, &cells);
        let two = times(2).expect("it was measured");
        assert!((two.value - 1.5).abs() < 1e-12 && two.low >= 1.0 && two.low < 1.5 && two.high > 1.5, "{two:?}");
        // One worker has no company, of four nobody knows, and three are no faster than one.
        assert_eq!((times(1), times(4), times(3).map(|three| three.value)), (None, None, Some(1.0)));
        assert_eq!(slower_together(&setting("mlp"), 2, &cells), None);
    }

    /// Runs that differ make a profile doubtful.
    #[test]
    fn what_is_uncertain_of_one_worker_is_kept() {
        let two = CellRecord { runs: [record(1, 0.1).runs, record(1, 0.11).runs].concat(), ..record(1, 0.1) };
        let doubtful = profile(&setting("cnn"), &[two]).expect("one worker ran");
        assert!(doubtful.uncertainty.is_some_and(|share| share > 0.1), "{:?}", doubtful.uncertainty);
        let single = profile(&setting("cnn"), &[record(1, 0.1)]).expect("one worker ran");
        assert_eq!(single.uncertainty, Some(0.0));
    }

    #[test]
    fn a_replayed_profile_must_be_the_one_that_was_replayed() {
        let of = |fingerprint: String| {
            let compute = Compute::Replay {
                profile: "resnet50@rtx2080ti".to_owned(),
                fingerprint,
                recorded_batch: 64,
                samples_per_s: 253.1,
            };
            Setting { compute, local_batch: 32, ..setting("resnet50") }
        };
        let built_in = load_profile("resnet50@rtx2080ti").expect("it is built in");
        let half = profile(&of(fingerprint(&built_in)), &[]).expect("the same");
        assert!((half.forward_s() / built_in.forward_s() - 0.5).abs() < 1e-12 && half.uncertainty.is_none());
        assert_eq!(half.scaled_from(), None, "what is replayed is what is measured");
        assert!(profile(&of("0".to_owned()), &[]).is_err_and(|why| why.contains("has changed")));
    }
}
