//! Training on several workers is training on one.

use std::collections::HashMap;
use std::path::PathBuf;

use paceline_train::{
    Data, ExecutedPlans, LearningRate, ModelName, Part, Peers, Sharding, Silent, Slot, TrainError, TrainOptions,
    TrainReport, train_model,
};

use super::{Directory, Gradients, backend, on_workers, parameters};

/// What each rank has at the end, as the bytes of its dump.
pub fn trained(world_size: usize, data: &Data, model: ModelName, options: &TrainOptions) -> Vec<Vec<u8>> {
    trained_with(world_size, 0, data, model, options).0
}

/// With servers; and the plans that were carried out.
pub fn trained_with(
    workers: usize,
    shards: usize,
    data: &Data,
    model: ModelName,
    options: &TrainOptions,
) -> (Vec<Vec<u8>>, ExecutedPlans) {
    trained_on(&|train| on_workers(workers, shards, train), workers, data, model, options)
}

/// What runs a training on all workers of a world: its result by worker.
type World<'a> =
    dyn Fn(&(dyn Fn(&Peers) -> Result<TrainReport, TrainError> + Sync)) -> Vec<Result<TrainReport, TrainError>> + 'a;

/// These options, with parameters and plan kept in a directory; and the plan's file.
pub fn dumping(directory: &Directory, options: &TrainOptions) -> (TrainOptions, PathBuf) {
    let plan = directory.path().join("plan.json");
    let options = TrainOptions {
        dump_parameters: Some(directory.path().into()),
        dump_plan: Some(plan.clone()),
        ..options.clone()
    };
    (options, plan)
}

/// In any world.
pub fn trained_on(
    world: &World,
    workers: usize,
    data: &Data,
    model: ModelName,
    options: &TrainOptions,
) -> (Vec<Vec<u8>>, ExecutedPlans) {
    let directory = Directory::new();
    let (options, plan) = dumping(&directory, options);
    let results = world(&|peers| {
        let backend = backend(model, peers.workers().rank());
        train_model(peers, backend, data, &options, &mut Silent)
    });
    let executed = ExecutedPlans::read(&plan);
    let last = |executed: &ExecutedPlans| executed.stages.last().unwrap().plan.clone();
    for result in results {
        let (report, last) = (result.unwrap(), last(executed.as_ref().unwrap()));
        assert_eq!((report.plan_hash, report.buckets), (format!("{:016x}", last.hash()), last.buckets.len()));
    }
    let dump = |rank| std::fs::read(paceline_train::dump_path(directory.path(), rank)).unwrap();
    ((0..workers).map(dump).collect(), executed.unwrap())
}

/// The optimiser on the joined batches with nothing of the engine: no exchange, no buckets, no ranks.
pub fn single_worker_sgd(data: &Data, model: ModelName, options: &TrainOptions) -> HashMap<String, Vec<f32>> {
    let mut backend = backend(model, 0);
    let infos = backend.parameters().to_vec();
    let mut optimizer = options.optimizer.build(infos.iter().map(|info| info.elements()));
    let sharding = Sharding::new(data.training.len(), 1, options.global_batch(1), options.seed);
    let batches = (0..).flat_map(|epoch| (0..sharding.batches()).map(move |batch| (epoch, batch)));
    let iterations = options.iterations.unwrap();
    let learning_rate = LearningRate::new(options.learning_rate, &options.lr_schedule, sharding.batches(), iterations);
    for (iteration, (epoch, batch)) in batches.take(iterations).enumerate() {
        let indices = &sharding.order(epoch)[sharding.joined(batch)];
        let gradients = Gradients::of(backend.as_mut(), &data.training.batch(indices));
        let squares = gradients.iter().flatten().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        let scale = options.clip_norm.map_or(1.0, |norm| (f64::from(norm) / squares.sqrt()).min(1.0) as f32);
        for (id, gradient) in gradients.into_iter().enumerate() {
            let part = Part { scale, ..Part::whole(id, iteration + 1, learning_rate.at(iteration as u64)) };
            let step = &mut |values: &mut [f32]| assert!(optimizer.step(&part, values, &gradient));
            backend.access(Slot::Parameter(id), step).unwrap();
        }
    }
    let mut values = HashMap::new();
    for (id, info) in infos.into_iter().enumerate() {
        backend
            .access(Slot::Parameter(id), &mut |place| drop(values.insert(info.name.clone(), place.to_vec())))
            .unwrap();
    }
    values
}

/// Every parameter is there, and within 1e-5 of the largest value of its tensor. What is no number is infinitely far
/// off.
pub fn assert_close(dump: &[u8], expected: &HashMap<String, Vec<f32>>, what: &str) {
    let found = parameters(dump);
    for (name, expected) in expected {
        let found = &found[name];
        assert_eq!(found.len(), expected.len(), "{what}: {name} has other elements");
        let scale = expected.iter().fold(0f32, |scale, value| scale.max(value.abs()));
        assert!(scale > 0.0, "{what}: all of {name} is expected to be 0, so nothing is close to it");
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale);
        // `f32::max` passes over what is no number.
        let worst = differences.map(|off| if off.is_nan() { f32::INFINITY } else { off }).fold(0f32, f32::max);
        assert!(worst <= 1e-5, "{what}: {name} is off by {worst}");
    }
}
