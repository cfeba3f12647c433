//! The fusion threshold is tuned while a job runs: what is learned stays the same, and calls are tuned under what stands in the end.

mod support;

use std::fs;
use std::sync::{Arc, Mutex};

use candle_core::{Result as CandleResult, Tensor};
use paceline_train::{
    Buffers, CandleBackend, Data, ExecutedPlans, Model, Observer, Parameters, TensorSpec, TrainError, TrainOptions,
    TuneOptions, TuningNews, TuningReport, dump_path, train_model,
};
use paceline_tune::fusion::Event;
use support::lossless::{assert_close, dumping};
use support::{Directory, on_ranks, options, parameters, sample};

/// Seven linear layers with ReLU between them, on images of 28 × 28 pixels in 10 classes. Its gradients of 280 KiB travel in one bucket as
/// DDP has it, and in two under smaller thresholds.
struct Deep;

const LAYERS: usize = 7;
const WIDTH: usize = 64;

impl Model for Deep {
    fn parameters(&self) -> Vec<TensorSpec> {
        let layer = |number: usize| {
            let inputs = if number == 0 { 28 * 28 } else { WIDTH };
            let outputs = if number + 1 == LAYERS { 10 } else { WIDTH };
            let weight = TensorSpec::uniform(&format!("{number}.weight"), &[outputs, inputs], inputs);
            [weight, TensorSpec::uniform(&format!("{number}.bias"), &[outputs], inputs)]
        };
        (0..LAYERS).flat_map(layer).collect()
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn forward(&self, parameters: &Parameters<'_>, _: &Buffers<'_>, inputs: &Tensor) -> CandleResult<Vec<Tensor>> {
        let mut values = inputs.clone();
        for number in 0..LAYERS {
            let weight = parameters.get(2 * number)?.t()?;
            values = values.matmul(&weight)?.broadcast_add(&parameters.get(2 * number + 1)?)?;
            if number + 1 < LAYERS {
                values = values.relu()?;
            }
        }
        Ok(vec![values])
    }
}

/// `ddp`, with its threshold tuned or not.
fn ddp(iterations: usize, is_tuned: bool) -> TrainOptions {
    TrainOptions {
        own_model: Some("deep".into()),
        strategy: "ddp".into(),
        iterations: Some(iterations),
        tune: is_tuned.then(|| TuneOptions { fusion: true, ..TuneOptions::default() }),
        ..options()
    }
}

/// Keeps what it is told.
#[derive(Default)]
struct Told(Arc<Mutex<Vec<TuningNews>>>);

impl Observer for Told {
    fn tuned(&mut self, _: usize, news: &TuningNews) {
        self.0.lock().unwrap().push(*news);
    }
}

/// What a rank has at the end.
struct Trained {
    dump: Vec<u8>,
    tuning: Option<TuningReport>,
    news: Vec<TuningNews>,
}

/// Trains on so many workers; and what was carried out.
fn trained(workers: usize, data: &Data, options: &TrainOptions) -> (Vec<Trained>, ExecutedPlans) {
    let directory = Directory::new();
    let (options, plan) = dumping(&directory, options);
    let all = on_ranks(workers, |communicator| {
        let mut told = Told::default();
        let news = told.0.clone();
        let model = CandleBackend::new(Deep, communicator.rank() as u64 + 1).unwrap();
        let report = train_model(communicator, Box::new(model), data, &options, &mut told).unwrap();
        let dump = fs::read(dump_path(directory.path(), communicator.rank())).unwrap();
        let news = news.lock().unwrap().clone();
        Trained { dump, tuning: report.tuning, news }
    });
    (all, ExecutedPlans::read(&plan).unwrap())
}

/// Two thresholds make other buckets than 25 MiB do; a trial of each takes 384 iterations at most. A sum of two has the same bits in
/// whichever bucket it travels.
#[test]
fn the_search_ends_and_two_workers_have_the_bits_of_a_training_without_it() {
    let data = sample(121, 10);
    let (tuned, executed) = trained(2, &data, &ddp(800, true));
    let (plain, _) = trained(2, &data, &ddp(800, false));
    assert!(tuned.iter().zip(&plain).all(|(one, other)| one.dump == other.dump), "other bits than without");
    let report = tuned[0].tuning.as_ref().expect("rank 0 has tuned");
    let fusion = report.fusion.expect("the threshold, too");
    assert!(fusion.decided && fusion.strategy_bytes == 25 << 20 && (1..=2).contains(&fusion.trials), "{fusion:?}");
    assert!(report.tuned_iterations > 0, "calls are tuned afterwards: {report:#?}");
    // The two sides of a trial have taken turns, and the file says what stands.
    assert!(executed.stages.len() > 10, "{} stages", executed.stages.len());
    let last = &executed.stages[executed.stages.len() - 1].plan;
    let stays = fusion.threshold_bytes == fusion.strategy_bytes;
    let (is_ddp, buckets) = (last.strategy.contains("schedule=ddp"), last.buckets.len());
    assert_eq!((is_ddp, buckets == 1, fusion.gain.is_none()), (stays, stays, stays), "{fusion:?}, {last:?}");
    let news = &tuned[0].news;
    let tried = news.iter().filter(|news| matches!(news, TuningNews::Fusion(Event::Trial { .. }))).count();
    assert_eq!(tried, fusion.trials as usize, "{news:?}");
    assert!(news.contains(&TuningNews::Fusion(Event::Ended { bytes: fusion.threshold_bytes })), "{news:?}");
    assert!(tuned[1].tuning.is_none() && tuned[1].news.is_empty(), "rank 1 has decided something");
    assert!(plain.iter().all(|rank| rank.tuning.is_none()), "nobody asked for it");
}

/// In the middle of a search, too.
#[test]
fn a_training_whose_threshold_is_tuned_is_right_and_can_be_repeated() {
    let (data, options) = (sample(121, 10), ddp(40, true));
    let (tuned, executed) = trained(3, &data, &options);
    assert!(executed.stages.len() > 2, "no other threshold was tried: {executed:?}");
    assert!(tuned.iter().all(|rank| rank.dump == tuned[0].dump), "ranks have other bits");
    let (plain, _) = trained(3, &data, &ddp(40, false));
    assert_close(&tuned[0].dump, &parameters(&plain[0].dump), "ddp, its threshold tuned");
    let report = tuned[0].tuning.as_ref().and_then(|report| report.fusion).expect("rank 0 has tuned");
    assert!(!report.decided && report.trials == 1 && report.gain.is_none(), "{report:?}");
    let again = TrainOptions { tune: None, plan: Some(executed.clone()), ..options };
    let (repeated, executed_again) = trained(3, &data, &again);
    assert_eq!(executed_again, executed);
    assert!(repeated.iter().zip(&tuned).all(|(one, other)| one.dump == other.dump), "the same plans give other bits");
}

#[test]
fn a_strategy_without_a_threshold_is_refused_and_one_worker_has_nothing_to_tune() {
    let data = sample(60, 10);
    let train = |workers: usize, options: &TrainOptions| {
        on_ranks(workers, |communicator| {
            let model = CandleBackend::new(Deep, 1).unwrap();
            train_model(communicator, Box::new(model), &data, options, &mut Told::default())
        })
    };
    let without = TrainOptions { strategy: "wfbp-a2a".into(), ..ddp(4, true) };
    for result in train(2, &without) {
        let error = result.unwrap_err();
        assert!(matches!(error, TrainError::Options(_)), "{error:?}");
        assert!(error.to_string().contains("choose ddp or schedule=fusion:BYTES"), "{error}");
    }
    for result in train(1, &ddp(12, true)) {
        assert_eq!(result.unwrap().tuning, None);
    }
}
