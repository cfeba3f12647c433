//! Gradients that are compressed: by a lossless compressor training is that on one worker; by any, all ranks have the same bits.

mod support;
#[path = "../../compress/tests/support/verbatim.rs"]
mod verbatim;

use paceline_collective::registry;
use paceline_comm::{Communicator, ThreadsConfig};
use paceline_compress::{Compressor, Compressors};
use paceline_plan::CollectiveKind;
use paceline_schedule::Schedulers;
use paceline_server::{ParameterServer, Roles, ServeOptions, serve};
use paceline_strategy::{Aspect, Kind, Method};
use paceline_train::{
    CellRun, Data, ExecutedPlans, Length, MeasureOptions, ModelName, Peers, Silent, Subject, TrainError, TrainOptions,
    TuneOptions, measure, train_model,
};
use support::lossless::{assert_close, single_worker_sgd, trained_on, trained_with};
use support::{backend, emulated, on_ranks, on_served, options, sample};
use verbatim::Verbatim;

/// The largest number of all and its place; what is left out waits for the next time, and every rank has a whim of its own.
struct Largest {
    residual: Vec<f32>,
    whim: f32,
}

impl Compressor for Largest {
    fn bytes(&self) -> usize {
        8
    }

    fn compress(&mut self, gradient: &[f32], bytes: &mut [u8]) {
        self.residual.iter_mut().zip(gradient).for_each(|(rest, value)| *rest += value);
        let largest =
            (0..self.residual.len()).max_by(|&a, &b| self.residual[a].abs().total_cmp(&self.residual[b].abs()));
        let place = largest.unwrap_or_default();
        let value = self.residual.get_mut(place).map(std::mem::take).unwrap_or_default() * self.whim;
        bytes[..4].copy_from_slice(&(place as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&value.to_le_bytes());
    }

    fn add_decompressed(&self, bytes: &[u8], sum: &mut [f32]) {
        let place = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        sum[place] += f32::from_le_bytes(bytes[4..].try_into().unwrap());
    }
}

fn registries() -> (Schedulers, Compressors) {
    let (mut schedulers, mut compressors) = (Schedulers::built_in(), Compressors::default());
    let method = |name, lossless| Method {
        aspect: Aspect::Compress,
        name,
        parameters: &[],
        sentence: "gradients of the tests",
        lossless,
        available: true,
    };
    let grammar = schedulers.grammar_mut();
    compressors.add(grammar, method("verbatim", true), |_, piece| Box::new(Verbatim(piece.elements)));
    compressors.add(grammar, method("largest", false), |_, piece| {
        let whim = 1.0 + 0.25 * piece.rank as f32;
        Box::new(Largest { residual: vec![0.0; piece.elements], whim })
    });
    (schedulers, compressors)
}

fn training(strategy: &str) -> TrainOptions {
    let (schedulers, compressors) = registries();
    TrainOptions { strategy: strategy.into(), schedulers, compressors, ..options() }
}

fn measuring(strategy: &str) -> MeasureOptions {
    let (schedulers, compressors) = registries();
    let strategy = strategy.into();
    MeasureOptions { strategy, schedulers, compressors, length: Length::Iterations(4), ..MeasureOptions::default() }
}

/// How shards serve a strategy.
fn serving(strategy: &str) -> ServeOptions {
    let (schedulers, compressors) = registries();
    let strategy = schedulers.grammar().parse(strategy).unwrap();
    ServeOptions { compression: compressors.of(&strategy).unwrap(), ..ServeOptions::default() }
}

/// What each rank has at the end, and the plans.
fn run(workers: usize, shards: usize, data: &Data, options: &TrainOptions) -> (Vec<Vec<u8>>, ExecutedPlans) {
    if shards == 0 {
        return trained_with(workers, 0, data, ModelName::Mlp, options);
    }
    let serving = serving(&options.strategy);
    let world = ThreadsConfig::default();
    trained_on(&|train| on_served(&world, &serving, workers, shards, train), workers, data, ModelName::Mlp, options)
}

/// 10 joined batches of 12 and one of a single image, so that all ranks but one have nothing to do in the last.
const TRAINING_IMAGES: usize = 121;

#[test]
fn a_lossless_compressor_equals_single_worker_sgd() {
    let data = sample(TRAINING_IMAGES, 10);
    let expected = single_worker_sgd(&data, ModelName::Mlp, &options());
    let cut = "schedule=bytescheduler:64KiB:64KiB";
    let [cut, cut_twice] = [format!("bytescheduler-a2a,{cut}"), format!("bytescheduler-ps,{cut},arch=ps:2:64KiB")];
    let worlds = [
        ("bsp-a2a", 1, 0),
        ("wfbp-a2a,arch=a2a:ring", 3, 0),
        ("mg-wfbp", 1, 0),
        ("mg-wfbp", 3, 0),
        (cut.as_str(), 3, 0),
        ("bsp-ps,arch=ps:1", 1, 1),
        ("wfbp-ps,arch=ps:2:64KiB", 3, 2),
        (cut_twice.as_str(), 2, 2),
    ];
    for (strategy, workers, shards) in worlds {
        let what = format!("{strategy}, {workers} workers");
        let options = training(&format!("{strategy},compress=verbatim"));
        let (dumps, executed) = run(workers, shards, &data, &options);
        assert!(dumps.iter().all(|dump| *dump == dumps[0]), "{what}: the ranks have different bits");
        assert_close(&dumps[0], &expected, &what);
        assert!(executed.stages.iter().all(|stage| stage.all_reduces.is_empty()), "{what}: something was reduced");
        let again = TrainOptions { plan: Some(executed.clone()), ..options };
        let (dumps_again, executed_again) = run(workers, shards, &data, &again);
        assert!(dumps_again == dumps && executed_again == executed, "{what}: the same plan gives something else");
    }
}

/// What a rank keeps and how it rounds is its own business; the sum is everybody's.
#[test]
fn all_ranks_have_the_same_bits_of_a_lossy_compressor() {
    let data = sample(TRAINING_IMAGES, 10);
    let worlds =
        [("wfbp-a2a", 0), ("bytescheduler-a2a,schedule=bytescheduler:64KiB:64KiB", 0), ("wfbp-ps,arch=ps:2:64KiB", 2)];
    for (strategy, shards) in worlds {
        let run = |strategy: &str| run(3, shards, &data, &training(strategy)).0;
        let lossy = run(&format!("{strategy},compress=largest"));
        assert!(lossy.iter().all(|dump| *dump == lossy[0]), "{strategy}: the ranks have different bits");
        assert!(lossy == run(&format!("{strategy},compress=largest")), "{strategy}: the same run gives other bits");
        assert!(lossy[0] != run(strategy)[0], "{strategy}: nothing was compressed");
    }
}

/// A bucket that is cut alike is added up alike, by workers as by servers.
#[test]
fn servers_give_the_bits_of_workers() {
    let data = sample(40, 10);
    let all_to_all = run(3, 0, &data, &training("wfbp-a2a,compress=largest")).0;
    let served = run(3, 1, &data, &training("wfbp-ps,arch=ps:1:1GiB,compress=largest")).0;
    assert!(served == all_to_all);
}

/// Sums of a lossless compressor are checked, those of a lossy one cannot be; and what travels is what it has made.
#[test]
fn compressed_replays_are_measured() {
    let profile = emulated::profile(&[40_000, 100_000], 0.004);
    let run = |strategy: &str| -> CellRun {
        let options = measuring(strategy);
        let runs = on_ranks(2, |world| measure(world, Subject::Replay(&profile), &options));
        runs.into_iter().map(Result::unwrap).next().unwrap()
    };
    let gradients = 4.0 * 140_000.0;
    let verbatim = run("wfbp-a2a,compress=verbatim");
    assert_eq!((verbatim.bytes_per_iteration, verbatim.plan.operations()), (gradients, 2));
    assert!(verbatim.inputs.communication.is_some(), "compressed operations are measured as such");
    // 8 bytes for each of two tensors.
    assert_eq!(run("wfbp-a2a,compress=largest").bytes_per_iteration, 16.0);
    let strategy = "wfbp-ps,arch=ps:1:1GiB,compress=largest";
    let served = on_served(&ThreadsConfig::default(), &serving(strategy), 2, 1, |peers| {
        measure(peers, Subject::Replay(&profile), &measuring(strategy))
    });
    // A worker pushes 8 bytes for each; the sums come from the server, or by way of the other worker.
    let pushed = served.into_iter().next().unwrap().unwrap().bytes_per_iteration;
    assert!((16.0..16.0 + gradients).contains(&pushed), "{pushed}");
    assert!(run("mg-wfbp,compress=largest").plan.strategy.contains("compress=largest,schedule=mg-wfbp"));
}

#[test]
fn a_wrong_sum_of_a_lossless_compressor_is_found() {
    let profile = emulated::profile(&[40_000], 0.001);
    let mut options = measuring("wfbp-a2a,compress=largest");
    // It says of itself that it is.
    let method = options.schedulers.grammar().method(Aspect::Compress, "verbatim").copied().expect("it was added");
    options.schedulers.grammar_mut().add_method(Method { name: "largest", ..method });
    let runs = on_ranks(2, |world| measure(world, Subject::Replay(&profile), &options));
    assert!(runs.iter().any(|run| matches!(run, Err(TrainError::WrongSum { .. }))), "{runs:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let data = sample(20, 10);
    let refused = |options: TrainOptions| -> String {
        let solo = Communicator::solo().unwrap();
        train_model(&solo, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap_err().to_string()
    };
    let tuned = TrainOptions { tune: Some(TuneOptions::default()), ..training("ddp,compress=verbatim") };
    assert!(refused(tuned).contains("what compress=verbatim makes is gathered"));
    let unknown = TrainOptions { compressors: Compressors::default(), ..training("ddp,compress=verbatim") };
    assert!(refused(unknown).contains("there is no compressor for compress=verbatim"));
    assert!(refused(training("wfbp-ps,arch=ps:apply,compress=verbatim")).contains("choose the mode aggregate"));
    let (_, plain) = trained_with(1, 0, &data, ModelName::Mlp, &training("ddp"));
    let other = refused(TrainOptions { plan: Some(plain), ..training("ddp,compress=largest") });
    assert!(other.contains("version 1 of the plan to carry out again compresses as"), "{other}");
}

/// Shards that were started without a compressor say so to everybody.
#[test]
fn a_server_that_cannot_decompress_is_told_to_the_workers() {
    let data = sample(20, 10);
    let roles = Roles::new(1, 1).unwrap();
    let [worker, shard] = Communicator::threads(2).unwrap().try_into().ok().unwrap();
    let served = std::thread::spawn(move || serve(&shard, roles, &ServeOptions::default()));
    let peers = Peers::from(ParameterServer::connect(&worker, roles).unwrap());
    let options = training("wfbp-ps,arch=ps:1,compress=verbatim");
    let refused = train_model(peers, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap_err();
    for message in [refused.to_string(), served.join().unwrap().unwrap_err().to_string()] {
        assert!(message.contains("these shards were started without a compressor"), "{message}");
    }
}

/// A name of `arch=a2a` is refused if and only if there is no all-gather of that name.
#[test]
fn compressed_gradients_go_by_every_all_gather_that_can_be_named() {
    let (schedulers, _) = registries();
    let a2a = schedulers.grammar().method(Aspect::Arch, "a2a").expect("it is built in");
    let Kind::OneOf(names) = a2a.parameters[0].kind else { panic!("the algorithm is one of several") };
    for name in names.iter().filter(|name| **name != "auto") {
        let parsed = schedulers.grammar().parse(&format!("ddp,arch=a2a:{name},compress=verbatim"));
        assert_eq!(parsed.is_ok(), registry::find(CollectiveKind::AllGather, name).is_ok(), "{name}");
    }
}
