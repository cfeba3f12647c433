//! What one worker alone computes: the profile that is replayed, or what the study's one-worker runs measured.

use paceline_plan::Profile;
use paceline_train::{CellRun, Computed, load_profile, measured_profile};

use super::super::cell::{Compute, Setting};
use super::super::models::fingerprint;
use super::super::statistics::mean;
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
            // Whatever it says of the device it was made on, it is slept through as it is.
            Ok(Profile { uncertainty: None, ..found.for_batch(setting.local_batch.max(1)) })
        }
        Compute::Real => measured(setting, cells),
    }
}

/// The first one-worker cell of the setting that has ended, over its runs.
fn measured(setting: &Setting, cells: &[CellRecord]) -> Result<Profile, String> {
    let alone =
        |record: &&CellRecord| record.cell.setting == *setting && record.cell.workers == 1 && record.cell.shards == 0;
    let runs_of = |record: &CellRecord| -> Vec<CellRun> {
        let ended = record.runs.iter().filter_map(|run| run.outcome.as_ref().ok());
        ended.filter(|run| !run.inputs.elements.is_empty()).cloned().collect()
    };
    let runs = cells.iter().filter(alone).map(runs_of).find(|runs| !runs.is_empty());
    let runs = runs.ok_or("no run of one worker says what it computes")?;
    let profile = measured_profile(&setting.model, setting.local_batch, &computed(&runs), 0.0);
    profile.check().and_then(|()| profile.check_pace()).map_err(|error| error.to_string())?;
    Ok(profile)
}

/// Means over the runs. Whatever an iteration does besides backward and the optimiser counts as forward: it delays no
/// gradient.
fn computed(runs: &[CellRun]) -> Computed {
    let average = |value: &dyn Fn(&CellRun) -> f64| mean(&runs.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0);
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
        assert!(profile(&of("0".to_owned()), &[]).is_err_and(|why| why.contains("has changed")));
    }
}
