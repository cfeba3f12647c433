//! Training on several ranks is training on one: whatever the strategy, the sizes and the world.

mod support;

use candle_core::{Result as CandleResult, Tensor};
use paceline_comm::Communicator;
use paceline_train::{
    BatchSize, Buffers, CandleBackend, Data, DataSource, Dataset, EpochRow, Model, ModelName, Observer, Parameters,
    Progress, Silent, Start, TensorSpec, Text, TrainOptions, TrainReport, train, train_model,
};
use support::lossless::{assert_close, single_worker_sgd, trained, trained_with};
use support::{Directory, backend, on_ranks, options, parameters, sample, sgd};

/// 10 joined batches of 12 and one of a single image, so that all ranks but one have nothing to do in the last.
const TRAINING_IMAGES: usize = 121;

/// Every method, and two as the study ran them: equal to single-worker SGD, the same bits on all ranks, and the same bits when its plan is carried out
/// again. `partition` is small enough to cut the largest tensor of the model.
fn equals_single_worker_sgd(model: ModelName, partition: &str, workers: &[usize], shards: &[usize]) {
    let data = sample(TRAINING_IMAGES, 10);
    let expected = single_worker_sgd(&data, model, &options());
    let all_to_all = [
        "bsp-a2a",
        "wfbp-a2a",
        "ddp",
        "schedule=fusion:4KiB,arch=a2a:ring",
        "mg-wfbp",
        "study-mg-wfbp",
        &format!("bytescheduler-a2a,schedule=bytescheduler:{partition}:{partition}"),
    ]
    .map(|strategy| (strategy.to_owned(), 0));
    let serving = shards.iter().flat_map(|&shards| {
        let arch = format!("arch=ps:{shards}:{partition}");
        [
            format!("bsp-ps,{arch}"),
            format!("wfbp-ps,{arch}"),
            format!("ddp,{arch}"),
            format!("schedule=server-priority,{arch}"),
            format!("bytescheduler-ps,{arch},schedule=bytescheduler:{partition}:{partition}"),
            format!("study-bytescheduler-ps,{arch}:dedicated"),
        ]
        .map(|strategy| (strategy, shards))
    });
    for (strategy, shards) in all_to_all.into_iter().chain(serving) {
        for &workers in workers {
            let what = format!("{strategy}, {workers} workers");
            let options = TrainOptions { strategy: strategy.clone(), ..options() };
            let (dumps, executed) = trained_with(workers, shards, &data, model, &options);
            for (rank, dump) in dumps.iter().enumerate() {
                assert!(*dump == dumps[0], "{what}: rank {rank} has other bits than rank 0");
            }
            assert_close(&dumps[0], &expected, &what);
            let mean = &parameters(&dumps[0])["input.mean"];
            assert_eq!(*mean, [0.3], "{what}: the buffers are not rank 0's");
            let measured = strategy.ends_with("mg-wfbp");
            assert_eq!(executed.stages.len(), 1 + usize::from(measured), "{what}");
            let again = TrainOptions { plan: Some(executed.clone()), ..options };
            let (dumps_again, executed_again) = trained_with(workers, shards, &data, model, &again);
            assert_eq!(executed_again, executed, "{what}");
            assert!(dumps_again == dumps, "{what}: the same plan gives other bits");
        }
    }
}

#[test]
fn the_cnn_equals_single_worker_sgd() {
    equals_single_worker_sgd(ModelName::Cnn, "4KiB", &[3], &[2]);
}

#[test]
fn the_mlp_equals_single_worker_sgd() {
    equals_single_worker_sgd(ModelName::Mlp, "64KiB", &[1, 2], &[1]);
}

/// The whole product takes a minute or two.
#[test]
fn every_number_of_workers_and_shards_equals_single_worker_sgd() {
    if std::env::var_os("PACELINE_LONG_TESTS").is_some() {
        equals_single_worker_sgd(ModelName::Mlp, "64KiB", &[1, 2, 3, 4], &[1, 2, 3]);
    }
}

#[test]
fn buckets_are_those_of_the_strategy() {
    let data = sample(TRAINING_IMAGES, 10);
    let cases = [("bsp-a2a", 1), ("wfbp-a2a", 4), ("ddp", 1), ("schedule=fusion:4KiB", 2)];
    for (strategy, buckets) in cases {
        let options = TrainOptions { strategy: strategy.into(), iterations: Some(1), ..options() };
        let (_, executed) = trained_with(2, 0, &data, ModelName::Mlp, &options);
        assert_eq!(executed.stages[0].plan.buckets.len(), buckets, "{strategy}");
        assert_eq!(executed.stages[0].all_reduces.len(), buckets, "{strategy}");
    }
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let data = sample(TRAINING_IMAGES, 10);
    let (_, executed) = trained_with(1, 0, &data, ModelName::Mlp, &options());
    let options = TrainOptions { plan: Some(executed), ..options() };
    let communicator = Communicator::solo().unwrap();
    let refused = train_model(&communicator, backend(ModelName::Cnn, 0), &data, &options, &mut Silent);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("version 1 of the plan to carry out again"), "{message}");
}

#[test]
fn servers_that_are_not_there_are_missed() {
    let data = sample(TRAINING_IMAGES, 10);
    let options = TrainOptions { strategy: "wfbp-ps,arch=ps:2".into(), ..options() };
    let communicator = Communicator::solo().unwrap();
    let refused = train_model(&communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("wants 2 shards, and 0 are here"), "{message}");
}

/// Two algorithms add up in different orders, which the last bits show.
#[test]
fn the_algorithm_of_the_strategy_is_the_one_that_runs() {
    let data = sample(TRAINING_IMAGES, 10);
    let run = |algorithm: &str| {
        let options = TrainOptions { strategy: format!("bsp-a2a,arch=a2a:{algorithm}"), ..options() };
        trained(3, &data, ModelName::Mlp, &options).swap_remove(0)
    };
    let (ring, direct) = (run("ring"), run("direct"));
    assert!(ring != direct, "both strategies ran the same algorithm");
    assert!(ring == run("ring") && direct == run("direct"));
}

#[test]
fn accumulation_equals_a_larger_batch() {
    let data = sample(TRAINING_IMAGES, 10);
    let expected = single_worker_sgd(&data, ModelName::Mlp, &options());
    for world_size in [1, 3] {
        // Three passes of 4 are one batch of 12; the last image of the epoch is an update by itself in both.
        let options = TrainOptions { batch: BatchSize::Global(4), accumulate: 3, ..options() };
        let dumps = trained(world_size, &data, ModelName::Mlp, &options);
        assert!(dumps.iter().all(|dump| *dump == dumps[0]));
        assert_close(&dumps[0], &expected, &format!("{world_size} ranks"));
    }
}

#[test]
fn local_batches_add_up() {
    let data = sample(TRAINING_IMAGES, 10);
    let expected = single_worker_sgd(&data, ModelName::Mlp, &options());
    let options = TrainOptions { batch: BatchSize::Local(6), ..options() };
    assert_close(&trained(2, &data, ModelName::Mlp, &options)[0], &expected, "two ranks with 6 each");
}

#[test]
fn the_same_run_gives_the_same_bits() {
    let data = sample(100, 10);
    let run = |seed| trained(3, &data, ModelName::Mlp, &TrainOptions { seed, ..options() });
    assert!(run(1) == run(1));
    assert!(run(1) != run(2));
}

/// A layer, and a parameter that no loss depends on.
struct Partial {
    unused: usize,
}

impl Model for Partial {
    fn parameters(&self) -> Vec<TensorSpec> {
        let shape = [10, 28 * 28];
        vec![TensorSpec::uniform("used", &shape, 28 * 28), TensorSpec::constant("unused", &[self.unused], 1.5)]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn forward(
        &self,
        parameters: &Parameters<'_>,
        _buffers: &Buffers<'_>,
        inputs: &Tensor,
    ) -> CandleResult<Vec<Tensor>> {
        Ok(vec![inputs.matmul(&parameters.get(0)?.t()?)?])
    }
}

#[test]
fn a_parameter_without_gradient_counts_as_zeros() {
    let data = sample(50, 10);
    for strategy in ["bsp-a2a", "wfbp-a2a"] {
        let directory = Directory::new();
        let mut options = options();
        options.strategy = strategy.into();
        options.optimizer = sgd(0.5, 0.0);
        options.dump_parameters = Some(directory.path().into());
        let results = on_ranks(2, |communicator| {
            let backend = CandleBackend::new(Partial { unused: 3 }, 1).unwrap();
            train_model(communicator, Box::new(backend), &data, &options, &mut Silent)
        });
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        for rank in 0..2 {
            let dump = std::fs::read(paceline_train::dump_path(directory.path(), rank)).unwrap();
            assert_eq!(parameters(&dump)["unused"], [1.5; 3], "{strategy}");
        }
    }
}

#[test]
fn ranks_with_different_models_are_told_the_first_difference() {
    let data = sample(50, 10);
    let results = on_ranks(3, |communicator| {
        let backend = CandleBackend::new(Partial { unused: 3 + communicator.rank() / 2 }, 1).unwrap();
        train_model(communicator, Box::new(backend), &data, &options(), &mut Silent)
    });
    for result in results {
        let message = result.unwrap_err().to_string();
        let expected =
            "rank 2 differs from rank 0 in parameter 1 of the model: `unused [4]` at rank 2, `unused [3]` at rank 0";
        assert!(message.starts_with(expected), "{message}");
    }
}

/// Keeps everything that it is told.
#[derive(Default)]
struct Log {
    starts: Vec<Start>,
    iterations: Vec<Progress>,
    rows: Vec<EpochRow>,
}

impl Observer for Log {
    fn started(&mut self, start: &Start) {
        self.starts.push(start.clone());
    }

    fn iteration(&mut self, progress: &Progress) {
        self.iterations.push(*progress);
    }

    fn epoch(&mut self, row: &EpochRow) {
        self.rows.push(row.clone());
    }
}

#[test]
fn the_sample_trains_and_the_report_adds_up() {
    let options = TrainOptions { batch: BatchSize::Local(14), iterations: Some(230), ..TrainOptions::default() };
    let results = on_ranks(2, |communicator| {
        let mut log = Log::default();
        train(communicator, &options, &mut log).map(|report| (report, log))
    });
    let mut results: Vec<(TrainReport, Log)> = results.into_iter().map(Result::unwrap).collect();
    let (report, log) = results.swap_remove(0);
    assert_eq!(report, results[0].0, "the ranks report differently");
    assert!(report.test_accuracy > 0.6 && report.final_loss < 1.0, "{report:?}");

    // 6,000 images are 215 joined batches of 28; the second epoch is cut short.
    assert_eq!(log.rows, report.epochs);
    let samples: Vec<usize> = report.epochs.iter().map(|row| row.samples).collect();
    assert_eq!(samples, [6_000, 15 * 28]);
    assert_eq!((report.iterations, log.iterations.len()), (230, 230));
    assert_eq!(log.iterations.iter().map(|progress| progress.samples).sum::<usize>(), 6_000 + 15 * 28);
    assert_eq!((log.starts[0].iterations, log.starts[0].iterations_per_epoch, log.starts.len()), (230, 215, 1));
    assert_eq!(report.strategy, "sync=bsp,compress=none,schedule=wfbp,arch=a2a:auto,protocol=auto");
    let last = &report.epochs[1];
    assert_eq!((report.test_accuracy, report.final_loss), (last.test_accuracy, last.loss));
    assert!(report.exposed_communication_s > 0.0 && report.compute_s > 0.0);
    let seconds: f64 = report.epochs.iter().map(|row| row.seconds).sum();
    assert!((report.samples_per_s * seconds / 6_420.0 - 1.0).abs() < 1e-9);

    let json = serde_json::to_value(&report).unwrap();
    for field in ["test_accuracy", "samples_per_s", "final_loss", "exposed_communication_s", "epochs", "plan_hash"] {
        assert!(!json[field].is_null(), "the JSON has no {field}");
    }
}

#[test]
fn training_alone_needs_no_peer() {
    let data = sample(50, 10);
    let communicator = Communicator::solo().unwrap();
    let report = train_model(&communicator, backend(ModelName::Mlp, 0), &data, &options(), &mut Silent).unwrap();
    assert_eq!((report.world_size, report.iterations), (1, 20));
}

/// The embedding is final last and used first, and each sample predicts 64 bytes: still the same as one worker.
#[test]
fn a_language_model_learns_the_same_on_two_workers() {
    let data = Data::load(&DataSource::Sample, ModelName::TransformerLm.form()).unwrap();
    let test =
        Dataset::Text(Text::new(b"All the world's a stage, and all the men and women merely players".repeat(2), 64));
    let data = Data { training: data.training, test };
    let run = |world_size| {
        let directory = Directory::new();
        let options = TrainOptions {
            model: ModelName::TransformerLm,
            iterations: Some(4),
            batch: BatchSize::Global(4),
            dump_parameters: Some(directory.path().into()),
            ..TrainOptions::default()
        };
        let results = on_ranks(world_size, |communicator| {
            let backend = options.model.build(&data.training, 1).unwrap();
            train_model(communicator, backend, &data, &options, &mut Silent).unwrap()
        });
        let dump = |rank| std::fs::read(paceline_train::dump_path(directory.path(), rank)).unwrap();
        (results[0].final_loss, parameters(&dump(world_size - 1)))
    };
    let ((loss, alone), (_, shared)) = (run(1), run(2));
    // As good as guessing is ln 256 = 5.5.
    assert!(loss < 5.5, "{loss}");
    for (name, values) in &alone {
        let length = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let difference = length(&mut values.iter().zip(&shared[name]).map(|(a, b)| a - b));
        assert!(difference <= 1e-5 * length(&mut values.iter().copied()) + 1e-7, "{name}: {difference}");
    }
}

/// Each worker has statistics of its own samples; in the end all have rank 0's.
#[test]
fn batch_normalisation_ends_with_the_same_bits_on_every_rank() {
    let data = sample(24, 4);
    let directory = Directory::new();
    let options = TrainOptions {
        model: ModelName::ResNet20,
        iterations: Some(2),
        batch: BatchSize::Global(12),
        dump_parameters: Some(directory.path().into()),
        ..TrainOptions::default()
    };
    let results = on_ranks(3, |communicator| {
        let backend = options.model.build(&data.training, 1).unwrap();
        train_model(communicator, backend, &data, &options, &mut Silent).unwrap()
    });
    assert!(results.iter().all(|report| report.final_loss.is_finite()));
    let dumps = [0, 1, 2].map(|rank| std::fs::read(paceline_train::dump_path(directory.path(), rank)).unwrap());
    assert!(dumps[1] == dumps[0] && dumps[2] == dumps[0]);
    let mean = &parameters(&dumps[0])["layer1.0.bn1.running_mean"];
    assert!(mean.iter().any(|&value| value != 0.0), "no statistics were kept");
}
