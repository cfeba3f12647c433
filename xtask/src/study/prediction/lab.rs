//! The same in the lab, whose links the kernel shapes to 1 Gbit/s.

use paceline_cli::Estimate;
use paceline_cli::worlds::{Seen, predict_replay};
use paceline_train::Decision;
use serde::{Deserialize, Serialize};
use xtask::lab::Lab;

use super::super::Place as Study;
use super::super::kept::Kept;
use super::super::measured::Measured;
use super::super::tensors::Model;
use super::super::workload::{Computation, Workload};
use super::super::worlds::{Effort, Worlds, cell};
use super::judge::{Outcome, Place};
use super::{AUTO, METHODS, Skipped};
use crate::compare::Error;
use crate::compare::statistics::median;

/// Hosts, and workers of each. Eight hosts would be 16 Gbit/s through the kernel of one machine, which two cores are too slow for:
/// what is measured there is them.
const LAYOUTS: [(usize, usize); 3] = [(2, 1), (4, 1), (4, 2)];
const MODELS: [Model; 3] = [Model::MobileNetV2, Model::ResNet50, Model::BertBase];
/// Communication at line rate takes as long as forward and backward together.
const COMPUTATION: Computation = Computation::Both(1.0);
const EFFORT: Effort = Effort { warm_up: 1, iterations: 5 };
const QUICK: Effort = Effort { warm_up: 1, iterations: 2 };
/// A model with so many workers that takes longer is left out, unless `--case` names it.
const LONGEST_S: f64 = 1200.0;

/// A finished run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    case: String,
    method: String,
    round: usize,
    /// Of the profile that was replayed.
    fingerprint: String,
    /// Samples per second of all workers: by the median iteration, and predicted.
    measured: f64,
    predicted: Option<f64>,
    /// From where to where, with 95 %. (None stands in runs that an earlier study has kept.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interval: Option<[f64; 2]>,
    /// Why it was not predicted.
    why: Option<String>,
    /// What ran, where that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chosen: Option<String>,
    /// What `auto` decided, one after the other. (None stand in runs that an earlier study has kept.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    decisions: Vec<Decision>,
    /// If processors were the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limited: Option<String>,
}

/// Measures what was not measured yet by this program. Where there is no lab, says so and goes on.
///
/// # Errors
/// Finished runs cannot be kept.
pub fn measure(
    place: &Study,
    rounds: usize,
    outcomes: &mut Vec<Outcome>,
    skipped: &mut Vec<Skipped>,
) -> Result<(), Error> {
    let quick = place.options.quick;
    let mut cases: Vec<(usize, Model)> =
        LAYOUTS.into_iter().flat_map(|(hosts, each)| MODELS.map(|model| (hosts * each, model))).collect();
    if quick {
        cases = vec![(2, Model::MobileNetV2)];
    }
    let (wanted, others) = cases.into_iter().partition(|&(workers, model)| place.wants(&name(workers, model)));
    let others: Vec<(usize, Model)> = others;
    skipped.extend(others.into_iter().map(|(workers, model)| (name(workers, model), super::NOT_ASKED.to_owned())));
    let cases: Vec<(usize, Model)> = wanted;
    if cases.is_empty() {
        return Ok(());
    }
    let alone = MODELS.into_iter().map(|model| name(1, model)).filter(|name| !quick && place.wants(name));
    skipped.extend(alone.map(|name| (name, "one worker sends nothing".to_owned())));
    if let Err(error) = Lab::permitted() {
        skipped.extend(cases.iter().map(|&(workers, model)| (name(workers, model), error.to_string())));
        eprintln!("no lab: {error}");
        return Ok(());
    }
    let mut kept = Kept::open(place.scratch.join(format!("prediction-lab-{}.jsonl", place.program_fingerprint()?)))?;
    for (hosts, each) in LAYOUTS {
        let workers = hosts * each;
        let here: Vec<Model> = cases.iter().filter(|case| case.0 == workers).map(|case| case.1).collect();
        if here.is_empty() {
            continue;
        }
        let worlds = match place.worlds_of(hosts) {
            Ok(worlds) => worlds.with_workers_per_host(each),
            Err(error) => {
                skipped.extend(here.iter().map(|&model| (name(workers, model), error.to_string())));
                continue;
            }
        };
        for model in here {
            let workload = place.workload_for(model, COMPUTATION, hosts)?;
            let case = Case { name: name(workers, model), worlds: &worlds, workload: &workload, effort: effort(quick) };
            let seconds = case.estimate_s(rounds);
            if seconds > LONGEST_S && place.options.case.is_none() {
                let minutes = (seconds / 60.0).ceil();
                let why = format!("it takes about {minutes:.0} minutes; `--case {}` measures it", case.name);
                skipped.push((case.name, why));
                continue;
            }
            eprintln!("  {}: about {:.0} minutes", case.name, (seconds / 60.0).ceil());
            case.measure(rounds, &mut kept, outcomes)?;
        }
    }
    Ok(())
}

fn name(workers: usize, model: Model) -> String {
    format!("lab-{}-{workers}", model.name())
}

fn effort(quick: bool) -> Effort {
    if quick { QUICK } else { EFFORT }
}

/// Those that stay the same, and what chooses.
fn methods() -> impl Iterator<Item = &'static str> {
    METHODS.into_iter().chain([AUTO])
}

/// A model on so many workers.
struct Case<'a> {
    name: String,
    worlds: &'a Worlds,
    workload: &'a Workload,
    effort: Effort,
}

impl Case<'_> {
    /// Seconds that it takes, about: as if nothing overlapped.
    fn estimate_s(&self, rounds: usize) -> f64 {
        let iteration_s = self.workload.compute_s() + self.workload.line_s;
        (rounds * methods().count()) as f64 * (Effort::START_S + self.effort.seconds(iteration_s))
    }

    /// In turns: whoever disturbs the machine for a minute disturbs one round of each method.
    fn measure(&self, rounds: usize, kept: &mut Kept<Run>, outcomes: &mut Vec<Outcome>) -> Result<(), Error> {
        let mut failures: Vec<(&str, String)> = Vec::new();
        for round in 1..=rounds {
            for method in methods() {
                if find(kept, &self.name, method, &self.workload.fingerprint).any(|run| run.round == round) {
                    continue;
                }
                eprintln!("{}: round {round} of {rounds}: {method}", self.name);
                match self.worlds.ours(method, self.workload, self.effort).and_then(Measured::punctual) {
                    Ok(measured) => kept.keep(self.run(method, round, &measured)?)?,
                    Err(error) => failures.push((method, format!("round {round}: {error}"))),
                }
            }
        }
        for method in methods() {
            let runs: Vec<&Run> = find(kept, &self.name, method, &self.workload.fingerprint).collect();
            let failed = failures.iter().filter(|(of, _)| *of == method).map(|(_, why)| why.clone());
            outcomes.push(self.outcome(method, &runs, failed.collect()));
        }
        Ok(())
    }

    /// One run, with what was to be expected from what its ranks measured when they met; of what chooses, what it expected itself
    /// when it had chosen.
    fn run(&self, method: &str, round: usize, measured: &Measured) -> Result<Run, Error> {
        let (workers, hosts) = (self.worlds.workers(), self.worlds.hosts());
        let cell = cell(method, self.workload, workers, hosts)?;
        let profile = &self.workload.profile;
        let costs = measured.inputs.communication.as_ref();
        let seen = measured.links.map(|links| Seen {
            links,
            operations: costs.map(|costs| costs.points.clone()).unwrap_or_default(),
            in_flight: costs.and_then(|costs| costs.in_flight),
            large_in_flight: costs.and_then(|costs| costs.large_in_flight),
            overtaking: costs.map(|costs| costs.overtaking.clone()).unwrap_or_default(),
        });
        let samples = (workers * profile.local_batch) as f64;
        let decisions: Vec<Decision> = measured.abandoned.iter().chain(&measured.decision).cloned().collect();
        // Of several decisions the first one saw no iteration of the cell.
        let predicted = match (decisions.first(), seen) {
            (Some(decision), _) => Ok(foreseen(decision, samples)),
            (None, Some(seen)) => predict_replay(&cell, profile, hosts, &[seen]).map(|predicted| {
                let interval = [predicted.samples_per_s_low, predicted.samples_per_s_high];
                (predicted.samples_per_s, interval)
            }),
            (None, None) => Err("its ranks did not say what their links cost".to_owned()),
        };
        let why = predicted.as_ref().err().cloned();
        let (predicted, interval) = predicted.ok().unzip();
        Ok(Run {
            case: self.name.clone(),
            method: method.to_owned(),
            round,
            fingerprint: self.workload.fingerprint.clone(),
            measured: samples / measured.median_s(),
            predicted,
            interval,
            why,
            chosen: decisions.last().map(|decision| decision.strategy.clone()),
            decisions,
            limited: measured.limited(),
        })
    }

    /// Medians over the rounds.
    fn outcome(&self, method: &str, runs: &[&Run], failures: Vec<String>) -> Outcome {
        let of = |value: &dyn Fn(&Run) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let end = |end: usize| of(&|run| Some(run.interval?[end]));
        let rounds = runs.iter().map(|run| run.round).max().unwrap_or(0);
        let last_choice = runs.iter().rev().find(|run| run.chosen.is_some());
        let unpredicted = runs.iter().filter_map(|run| run.why.as_ref()).map(|why| format!("no prediction: {why}"));
        Outcome {
            place: Place::Lab,
            group: self.name.clone(),
            workers: self.worlds.workers(),
            method: method.to_owned(),
            measured: of(&|run| Some(run.measured)),
            predicted: of(&|run| run.predicted),
            interval: end(0).zip(end(1)).map(|(low, high)| [low, high]),
            throughput: Estimate::of(&runs.iter().map(|run| run.measured).collect::<Vec<_>>()),
            rounds: (1..=rounds).map(|round| Some(runs.iter().find(|run| run.round == round)?.measured)).collect(),
            noise: None,
            missing: failures.into_iter().chain(unpredicted).collect(),
            chosen: last_choice.and_then(|run| run.chosen.clone()),
            decisions: last_choice.map_or_else(Vec::new, |run| run.decisions.clone()),
            limited: runs.iter().rev().find_map(|run| run.limited.clone()),
        }
    }
}

/// Samples per second by what was decided, and from where to where.
pub(super) fn foreseen(decision: &Decision, samples: f64) -> (f64, [f64; 2]) {
    // No JSON has an infinite rate.
    let rate = |seconds: f64| samples / seconds.max(1e-9);
    (rate(decision.predicted_iteration_s), [decision.predicted_high_s, decision.predicted_low_s].map(rate))
}

/// The kept ones of a method on a case.
fn find<'a>(
    kept: &'a Kept<Run>,
    case: &'a str,
    method: &'a str,
    fingerprint: &'a str,
) -> impl Iterator<Item = &'a Run> {
    let same = move |run: &&Run| run.case == case && run.method == method && run.fingerprint == fingerprint;
    kept.runs().iter().filter(same)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use paceline_strategy::Registry;

    use super::super::judge::samples::decision;
    use super::*;

    fn run(round: usize) -> Run {
        Run {
            case: "lab-resnet50-4".to_owned(),
            method: "mg-wfbp".to_owned(),
            round,
            fingerprint: "f".to_owned(),
            measured: 1.0 / 3.0,
            predicted: Some(0.3),
            interval: Some([0.28, 0.32]),
            why: None,
            chosen: None,
            decisions: Vec::new(),
            limited: None,
        }
    }

    #[test]
    fn a_run_of_another_profile_is_another_run() {
        let path = std::env::temp_dir().join(format!("xtask-prediction-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut kept = Kept::open(path.clone()).expect("a file");
        [1, 2].into_iter().for_each(|round| kept.keep(run(round)).expect("kept"));
        let again = Kept::open(path.clone()).expect("the same file");
        fs::remove_file(&path).expect("it is there");
        assert_eq!(again.runs(), [run(1), run(2)]);
        assert_eq!(find(&again, "lab-resnet50-4", "mg-wfbp", "f").count(), 2);
        assert_eq!(find(&again, "lab-resnet50-4", "mg-wfbp", "of another profile").count(), 0);
    }

    /// What was decided is kept with the run; a run that was kept without it counts as before.
    #[test]
    fn what_auto_decided_is_kept_with_its_run() {
        let decided = decision(0.2, Some(0.21));
        let chosen = Some(decided.strategy.clone());
        let auto = Run { method: AUTO.to_owned(), chosen, decisions: vec![decided], ..run(1) };
        let line = serde_json::to_value(&auto).expect("JSON");
        assert_eq!(serde_json::from_value::<Run>(line.clone()).expect("a run"), auto);
        let mut earlier = line;
        for later in ["decisions", "interval"] {
            earlier.as_object_mut().expect("an object").remove(later).expect("it is there");
        }
        let earlier: Run = serde_json::from_value(earlier).expect("a run");
        assert_eq!(earlier, Run { decisions: Vec::new(), interval: None, ..auto });
    }

    /// The more seconds, the fewer samples in one.
    #[test]
    fn what_auto_expected_has_an_interval() {
        let (rate, [low, high]) = foreseen(&decision(0.2, None), 100.0);
        assert!((rate - 500.0).abs() < 1e-9 && (low - 100.0 / 0.22).abs() < 1e-9 && (high - 100.0 / 0.18).abs() < 1e-9);
    }

    #[test]
    fn the_methods_of_the_lab_can_all_be_named() {
        let grammar = Registry::built_in();
        assert!(methods().all(|method| grammar.parse(method).is_ok()) && methods().last() == Some(AUTO));
    }
}
