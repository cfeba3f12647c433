//! Lossless: every method gives the parameters of single-worker SGD, whatever its workers and servers; all ranks hold the
//! same bits, and the plan that was carried out gives them again.
//!
//! Each combination is `paceline train` as a user starts it. What it is compared with is made here, of model, data and optimiser and
//! nothing else of Paceline: no exchange, no buckets, no ranks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use paceline_train::{
    Backend, BackendError, Batch, Data, DataSource, GradientSink, ModelName, OpenGate, OptimizerSettings, SgdSettings,
    Sharding, SharedSink, SinkClosed, Slot, dump_path,
};
use safetensors::SafeTensors;
use serde::Serialize;

use super::report::{Findings, Table, Target};
use super::{Part, Place, announce};
use crate::compare::{Error, command};

/// Of the largest value of a tensor, none of its values is further off.
const DEVIATION_MAX: f64 = 1e-5;

/// The methods, one of them also with the optimiser on its servers, and those with what slowed the study's: all-to-all they start their
/// operations as the study did; of one with servers only these look at priorities. Its servers stand where `SHARDS` says, beside the
/// workers, and not on hosts of their own as in the study, which `train` refuses: so `study-bsp-ps` and `study-wfbp-ps` would be
/// `bsp-ps` and `wfbp-ps` here. Partitions are small enough to cut the largest tensor of the model.
const METHODS: [&str; 17] = [
    "bsp-a2a",
    "wfbp-a2a",
    "mg-wfbp",
    "bytescheduler-a2a,schedule=bytescheduler:64KiB:64KiB",
    "ddp",
    "schedule=fusion:4KiB,arch=a2a:ring",
    "study-bsp-a2a",
    "study-wfbp-a2a",
    "study-mg-wfbp",
    "study-bytescheduler-a2a,schedule=bytescheduler:64KiB:64KiB",
    "bsp-ps,arch=ps:SHARDS:64KiB",
    "wfbp-ps,arch=ps:SHARDS:64KiB",
    "wfbp-ps,arch=ps:SHARDS:64KiB:colocated:apply",
    "bytescheduler-ps,arch=ps:SHARDS:64KiB,schedule=bytescheduler:64KiB:64KiB",
    "ddp,arch=ps:SHARDS:64KiB",
    "schedule=server-priority,arch=ps:SHARDS:64KiB",
    "study-bytescheduler-ps,arch=ps:SHARDS:64KiB",
];
const WORKERS: [usize; 4] = [1, 2, 3, 4];
/// Instead of `SHARDS`.
const SHARDS: [usize; 3] = [1, 2, 3];

const MODEL: ModelName = ModelName::Mlp;
const ITERATIONS: usize = 20;
/// Few images in all: each one more is a chance that rounding turns a unit on in one world and off in another, which no sum has lost.
const BATCH: usize = 12;
const LEARNING_RATE: f32 = 0.02;
const SGD: SgdSettings = SgdSettings { momentum: 0.5, nesterov: false, weight_decay: 0.01 };
const SEED: u64 = 1;

/// What starting, training and ending a world takes, about.
const WORLD_S: f64 = 0.4;

/// A method with so many workers and servers.
#[derive(Debug, Serialize)]
struct Trial {
    method: &'static str,
    strategy: String,
    workers: usize,
    /// 0: all-to-all.
    shards: usize,
    outcome: Option<Outcome>,
    /// Why there is none.
    failure: Option<String>,
}

/// What it gave.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    /// By how much of the largest value of its tensor a parameter of rank 0 is off, at most.
    deviation: f64,
    /// Of which tensor.
    tensor: String,
    /// All ranks hold the same bits.
    same_on_all_ranks: bool,
    /// All ranks hold these bits, too, after the plan was carried out again.
    same_again: bool,
}

pub fn run(place: &Place) -> Result<Findings, Error> {
    let (workers, shards) = if place.options.quick { (&[3][..], &[2][..]) } else { (&WORKERS[..], &SHARDS[..]) };
    let wanted = METHODS.into_iter().filter(|method| place.wants(method));
    let mut trials: Vec<Trial> = wanted.flat_map(|method| combinations(method, workers, shards)).collect();
    announce(Part::Lossless, 2 * trials.len(), 2.0 * WORLD_S * trials.len() as f64);
    let expected = single_worker()?;
    let folder = place.scratch.join("lossless");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for trial in &mut trials {
        eprintln!("{}, {} workers", trial.strategy, trial.workers);
        match trial.measure(&place.program, &folder, &expected) {
            Ok(outcome) => trial.outcome = Some(outcome),
            // The others go on.
            Err(error) => {
                eprintln!("{error}");
                trial.failure = Some(error.to_string());
            }
        }
    }
    let of = |method: &str| trials.iter().filter(|trial| trial.method == method).collect::<Vec<_>>();
    let methods: Vec<(&str, Vec<&Trial>)> =
        METHODS.into_iter().map(|method| (method, of(method))).filter(|(_, trials)| !trials.is_empty()).collect();
    let mut table = Table::new(
        "Methods",
        "The worst of all numbers of workers and servers: by how much of the largest value of its tensor a parameter is off.",
        &["method", "combinations", "off by", "where", "same bits on all ranks", "same bits again", ""],
    );
    table.rows = methods.iter().map(|(method, trials)| row(method, trials)).collect();
    Ok(Findings {
        title: "Lossless".into(),
        text: format!(
            "`{MODEL}` trained for {ITERATIONS} iterations of {BATCH} images in all, on {} workers and, where there are servers, with {} \
             of them, by `paceline train --dump-parameters` with one process for each worker; then again with the plan that \
             `--dump-plan` has written. What the parameters are compared with is SGD on the joined batches in one thread, without \
             anything that communicates.",
            list(workers),
            list(shards)
        ),
        targets: methods.iter().map(|(method, trials)| target(method, trials)).collect(),
        tables: vec![table],
        measured: serde_json::to_value(&trials).map_err(|error| error.to_string())?,
    })
}

fn combinations(method: &'static str, workers: &[usize], shards: &[usize]) -> Vec<Trial> {
    let shards = if method.contains("SHARDS") { shards } else { &[0] };
    let of = |shards: usize, workers: usize| Trial {
        method,
        strategy: method.replace("SHARDS", &shards.to_string()),
        workers,
        shards,
        outcome: None,
        failure: None,
    };
    shards.iter().flat_map(|&shards| workers.iter().map(move |&workers| of(shards, workers))).collect()
}

impl Trial {
    fn measure(&self, program: &Path, folder: &Path, expected: &Tensors) -> Result<Outcome, Error> {
        let plan = folder.join("plan.json");
        let first = self.train(program, &folder.join("first"), ["--dump-plan".as_ref(), plan.as_path()])?;
        let again = self.train(program, &folder.join("again"), ["--plan".as_ref(), plan.as_path()])?;
        let (deviation, tensor) = deviation(&first[0], expected)?;
        let same_on_all_ranks = first.iter().all(|dump| *dump == first[0]);
        Ok(Outcome { deviation, tensor, same_on_all_ranks, same_again: again == first })
    }

    /// The dumps by rank.
    fn train(&self, program: &Path, dump: &Path, plan: [&Path; 2]) -> Result<Vec<Vec<u8>>, Error> {
        // What another trial has left must not be taken for this one's.
        if dump.exists() {
            fs::remove_dir_all(dump).map_err(|error| format!("{}: {error}", dump.display()))?;
        }
        let mut train = Command::new(program);
        train.args(["train", "--model", MODEL.name(), "--data", "sample", "--threads", "1", "--optimizer", "sgd"]);
        let numbers = [
            ("--workers", self.workers.to_string()),
            ("--iterations", ITERATIONS.to_string()),
            ("--global-batch", BATCH.to_string()),
            ("--lr", LEARNING_RATE.to_string()),
            ("--momentum", SGD.momentum.to_string()),
            ("--weight-decay", SGD.weight_decay.to_string()),
            ("--seed", SEED.to_string()),
        ];
        for (name, value) in &numbers {
            train.args([name, value.as_str()]);
        }
        train.args(["--strategy", &self.strategy]).arg("--dump-parameters").arg(dump).args(plan);
        command::output(&mut train)?;
        let read = |rank: usize| {
            let path = dump_path(dump, rank);
            fs::read(&path).map_err(|error| Error::from(format!("{}: {error}", path.display())))
        };
        (0..self.workers).map(read).collect()
    }
}

type Tensors = HashMap<String, Vec<f32>>;

/// SGD on the joined batches.
fn single_worker() -> Result<Tensors, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::from(format!("SGD on one worker: {error}"));
    let data = Data::load(&DataSource::Sample, MODEL.form()).map_err(|error| failed(&error))?;
    let mut backend = MODEL.build(&data.training, SEED).map_err(|error| failed(&error))?;
    let infos = backend.parameters().to_vec();
    let mut optimizer = OptimizerSettings::Sgd(SGD).build(infos.iter().map(|info| info.elements()));
    let sharding = Sharding::new(data.training.len(), 1, BATCH, SEED);
    for iteration in 0..ITERATIONS {
        let (epoch, batch) = (iteration / sharding.batches(), iteration % sharding.batches());
        let batch = data.training.batch(&sharding.order(epoch)[sharding.joined(batch)]);
        let gradients = gradients(backend.as_mut(), &batch).map_err(|error| failed(&error))?;
        for (id, gradient) in gradients.iter().enumerate() {
            let part = paceline_train::Part::whole(id, iteration + 1, LEARNING_RATE);
            let mut finite = true;
            let step = &mut |values: &mut [f32]| finite = optimizer.step(&part, values, gradient);
            backend.access(Slot::Parameter(id), step).map_err(|error| failed(&error))?;
            if !finite {
                return Err(failed(&format!("{} is not finite after iteration {iteration}", infos[id].name)));
            }
        }
    }
    let mut tensors = Tensors::new();
    for (id, info) in infos.iter().enumerate() {
        let keep = &mut |values: &mut [f32]| drop(tensors.insert(info.name.clone(), values.to_vec()));
        backend.access(Slot::Parameter(id), keep).map_err(|error| failed(&error))?;
    }
    Ok(tensors)
}

/// By parameter; zeros, where the model gives none.
fn gradients(backend: &mut dyn Backend, batch: &Batch) -> Result<Vec<Vec<f32>>, BackendError> {
    let zeros = backend.parameters().iter().map(|info| vec![0.0; info.elements()]).collect();
    let collected = Arc::new(Mutex::new(Collected(zeros)));
    let sink: SharedSink = collected.clone();
    backend.gradients(batch, &mut OpenGate, &sink)?;
    let mut collected = collected.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(std::mem::take(&mut collected.0))
}

struct Collected(Vec<Vec<f32>>);

impl GradientSink for Collected {
    fn ready(&mut self, parameter: usize, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        if let Some(gradient) = gradient {
            self.0[parameter] = gradient.to_vec();
        }
        Ok(())
    }
}

/// By how much of the largest value of its tensor a parameter of the dump is off, at most, and of which tensor.
fn deviation(dump: &[u8], expected: &Tensors) -> Result<(f64, String), Error> {
    let found = SafeTensors::deserialize(dump).map_err(|error| format!("a dump that cannot be read: {error}"))?;
    let mut worst = (0.0, String::new());
    for (name, expected) in expected {
        let found = found.tensor(name).map_err(|error| format!("the dump has no {name}: {error}"))?;
        let found: Vec<f32> = found
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        if found.len() != expected.len() {
            return Err(format!("{name} has {} values in the dump, and not {}", found.len(), expected.len()).into());
        }
        let scale = expected.iter().fold(0_f32, |scale, value| scale.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let off = f64::from((found - expected).abs() / scale);
            // What is no number is off by more than any.
            let off = if off.is_nan() { f64::INFINITY } else { off };
            if off > worst.0 || worst.1.is_empty() {
                worst = (off, name.clone());
            }
        }
    }
    Ok(worst)
}

/// What the trials of a method say together.
struct Together<'a> {
    worst: Option<(&'a Trial, &'a Outcome)>,
    measured: usize,
    on_all_ranks: usize,
    again: usize,
    failures: Vec<&'a str>,
}

impl<'a> Together<'a> {
    fn of(trials: &[&'a Trial]) -> Together<'a> {
        let outcomes = || trials.iter().filter_map(|trial| Some((*trial, trial.outcome.as_ref()?)));
        Together {
            worst: outcomes().max_by(|one, other| one.1.deviation.total_cmp(&other.1.deviation)),
            measured: outcomes().count(),
            on_all_ranks: outcomes().filter(|(_, outcome)| outcome.same_on_all_ranks).count(),
            again: outcomes().filter(|(_, outcome)| outcome.same_again).count(),
            failures: trials.iter().filter_map(|trial| trial.failure.as_deref()).collect(),
        }
    }
}

fn target(method: &str, trials: &[&Trial]) -> Target {
    let Together { worst, measured, on_all_ranks, again, failures } = Together::of(trials);
    let deviation = worst.map(|(_, outcome)| outcome.deviation);
    let off = deviation.map_or_else(|| "nothing was measured".to_owned(), |deviation| format!("{deviation:.1e}"));
    let failed = if failures.is_empty() { String::new() } else { format!("; {} failed", failures.len()) };
    let holds =
        deviation.is_some_and(|deviation| deviation <= DEVIATION_MAX) && on_all_ranks == measured && again == measured;
    Target {
        case: method.to_owned(),
        demanded: format!(
            "off single-worker SGD ≤ {DEVIATION_MAX:e}; the same bits on all ranks, and again by its plan"
        ),
        found: format!("{off}; {on_all_ranks} of {measured}; {again} of {measured}{failed}"),
        met: if measured > 0 && !holds { Some(false) } else { (measured > 0 && failures.is_empty()).then_some(true) },
    }
}

fn row(method: &str, trials: &[&Trial]) -> Vec<String> {
    let Together { worst, measured, on_all_ranks, again, failures } = Together::of(trials);
    let place = |(trial, outcome): (&Trial, &Outcome)| {
        let servers = if trial.shards > 0 { format!(", {} shards", trial.shards) } else { String::new() };
        format!("{}, {} workers{servers}", outcome.tensor, trial.workers)
    };
    vec![
        method.to_owned(),
        trials.len().to_string(),
        worst.map_or_else(|| "–".to_owned(), |(_, outcome)| format!("{:.1e}", outcome.deviation)),
        worst.map_or_else(String::new, place),
        format!("{on_all_ranks} of {measured}"),
        format!("{again} of {measured}"),
        failures.join("; "),
    ]
}

/// `1, 2 and 3`.
fn list(numbers: &[usize]) -> String {
    let mut words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use paceline_schedule::Schedulers;
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn every_method_is_there_with_all_workers_and_servers() {
        let schedulers = Schedulers::built_in();
        let trials: Vec<Trial> =
            METHODS.into_iter().flat_map(|method| combinations(method, &WORKERS, &SHARDS)).collect();
        assert_eq!(trials.len(), 10 * 4 + 7 * 3 * 4);
        for Trial { strategy, workers, shards, .. } in &trials {
            let parsed = schedulers.grammar().parse(strategy).unwrap_or_else(|error| panic!("{strategy}: {error}"));
            assert_eq!(parsed.servers(*workers, 1).map_or(0, |servers| servers.shards), *shards, "{strategy}");
        }
        for name in
            ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp", "bytescheduler-ps", "bytescheduler-a2a", "ddp"]
        {
            assert!(METHODS.iter().any(|method| method.split(',').next() == Some(name)), "{name}");
        }
        assert_eq!((list(&WORKERS), list(&[2])), ("1, 2, 3 and 4".to_owned(), "2".to_owned()));
    }

    fn dump(values: &[f32]) -> Vec<u8> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![values.len()], &bytes).expect("a tensor");
        safetensors::serialize([("w", view)], None).expect("a dump")
    }

    #[test]
    fn a_parameter_is_off_by_a_share_of_its_tensors_largest_value() {
        let expected = Tensors::from([("w".to_owned(), vec![0.0, -4.0, 1.0])]);
        let of = |values: &[f32]| deviation(&dump(values), &expected);
        assert_eq!(of(&[0.0, -4.0, 1.0]).expect("the same"), (0.0, "w".to_owned()));
        assert_eq!(of(&[1.0, -4.0, 1.5]).expect("near").0, 0.25);
        assert_eq!(of(&[0.0, -4.0, f32::NAN]).expect("no number").0, f64::INFINITY);
        assert!(of(&[0.0, -4.0]).is_err());
        assert!(deviation(b"nothing", &expected).is_err());
        let other = Tensors::from([("v".to_owned(), vec![1.0])]);
        assert!(deviation(&dump(&[1.0]), &other).is_err());
    }

    #[test]
    fn what_is_off_differs_or_fails_is_not_met() {
        let outcome = |deviation| Outcome { deviation, tensor: "w".into(), same_on_all_ranks: true, same_again: true };
        let trial = |outcome: Result<Outcome, &str>| Trial {
            method: "bsp-ps",
            strategy: "bsp-ps".into(),
            workers: 3,
            shards: 2,
            failure: outcome.as_ref().err().map(|error| (*error).to_owned()),
            outcome: outcome.ok(),
        };
        let met = |trials: &[Trial]| target("m", &trials.iter().collect::<Vec<_>>()).met;
        let good = || trial(Ok(outcome(2e-7)));
        let trials = [good(), trial(Ok(outcome(9e-6)))];
        let all: Vec<&Trial> = trials.iter().collect();
        assert_eq!(target("m", &all).found, "9.0e-6; 2 of 2; 2 of 2");
        assert_eq!(target("m", &all).met, Some(true));
        assert_eq!(row("m", &all)[2..4], ["9.0e-6", "w, 3 workers, 2 shards"]);
        assert_eq!(met(&[good(), trial(Ok(outcome(1.1e-5)))]), Some(false));
        assert_eq!(met(&[good(), trial(Ok(Outcome { same_on_all_ranks: false, ..outcome(0.0) }))]), Some(false));
        assert_eq!(met(&[good(), trial(Ok(Outcome { same_again: false, ..outcome(0.0) }))]), Some(false));
        assert_eq!(met(&[good(), trial(Err("rank 1 was lost"))]), None, "nobody knows of one");
        assert_eq!(met(&[trial(Err("rank 1 was lost"))]), None);
    }

    /// Twenty steps of it learn something, and are the same every time.
    #[test]
    fn single_worker_sgd_is_one_thing() {
        let (one, other) = (single_worker().expect("it trains"), single_worker().expect("it trains"));
        assert!(one == other && one.len() == 4, "{:?}", one.keys());
        assert!(one.values().flatten().all(|value| value.is_finite()));
    }
}
