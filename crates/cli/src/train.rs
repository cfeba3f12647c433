//! `paceline train`: data-parallel training in N processes.

mod learned;
mod model;
mod peers;
mod recorded;
mod screen;
mod update_arguments;

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use clap::Args;
use paceline_comm::{Communicator, Emulation, TransportChoice};
use paceline_fabric::environment::{Environment, World};
use paceline_strategy::{Call, Strategy};
use paceline_train::{
    BatchSize, DEFAULT_EPOCHS, DataSource, ExecutedPlans, ModelName, Observer, Silent, TrainOptions, TrainReport,
    TuneOptions, available_memory,
};
use paceline_tune::Policy;
use serde::Serialize;

use crate::Registry;
use crate::arguments::{at_least_one, seconds};
use crate::emulation::{Emulated, EmulationArguments};
use crate::explain;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::policy;
use crate::program;
use crate::security::SecurityArguments;
use crate::telemetry::Telemetry;
use crate::topology::TopologyArguments;
use crate::tuning::{self, Experience};
use crate::workers::{self, Place};
use learned::Learned;
pub use model::ChosenModel;
use recorded::Recorded;
use screen::Screen;
use update_arguments::UpdateArguments;

/// What `train` is told.
#[derive(Args)]
pub struct TrainArguments {
    /// The model: cnn, mlp, resnet20 (images), transformer-lm (text); resnet50, bert-base, bert-large
    #[arg(long, value_name = "NAME", default_value_t = ModelName::default().to_string())]
    model: String,

    /// What to train on: sample (in the program), synthetic, fashion-mnist (Debian's package dataset-fashion-mnist),
    /// images:DIR (a folder of PNG and JPEG files for each class), text:FILE, idx:DIR (four gzip IDX files)
    #[arg(long, value_name = "SOURCE", default_value_t)]
    data: DataSource,

    /// The same as --data idx:DIR
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    data_dir: Option<PathBuf>,

    /// Processes to start here [default: 2; under a launcher: as many as it has started]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: Option<usize>,

    /// How the workers communicate: bsp-a2a, wfbp-a2a, ddp, or aspects (`paceline explain` says what it means); auto
    /// measures and chooses
    #[arg(long, value_name = "STRATEGY", default_value_t = TrainOptions::default().strategy)]
    strategy: String,

    #[arg(long, value_name = "N", value_parser = at_least_one)]
    #[arg(help = format!("Passes over the training images [default: {DEFAULT_EPOCHS}, or as many as --iterations needs]"))]
    epochs: Option<usize>,

    /// Updates of the parameters; with --epochs: whichever ends first
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    iterations: Option<usize>,

    /// Samples per worker and pass
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    batch: Option<usize>,

    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "batch")]
    #[arg(help = format!("Samples per pass on all workers together [default: {}]", default_batch()))]
    global_batch: Option<usize>,

    /// Passes per update; the workers communicate in the last one only
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = TrainOptions::default().accumulate)]
    accumulate: usize,

    #[command(flatten)]
    update: UpdateArguments,

    /// Of the initial parameters and the order of the samples: the same seed, the same run
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().seed)]
    seed: u64,

    /// Threads that compute in each worker [default: cores divided by workers on this host]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    threads: Option<usize>,

    /// What carries the gradients: shm, tcp, or auto (shared memory within a host, TCP otherwise); the same as
    /// protocol=NAME in the strategy
    #[arg(long, value_name = "NAME")]
    transport: Option<TransportChoice>,

    /// TCP connections per pair of ranks, over which large messages are spread; with --tune the tuner chooses over how many of them
    /// (lanes), call by call [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "emulate")]
    tcp_streams: Option<u32>,

    #[command(flatten)]
    emulation: EmulationArguments,

    #[command(flatten)]
    topology: TopologyArguments,

    #[command(flatten)]
    security: SecurityArguments,

    /// Write what each call did to this file, a JSON object a line (docs/telemetry.md); rank R > 0 writes to FILE.rankR
    #[arg(long, value_name = "FILE")]
    telemetry: Option<PathBuf>,

    /// Write the report to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Tune all-reduces while training runs: algorithm, protocol, lanes, threads and chunks of each (docs/tuning.md);
    /// PACELINE_TUNE=off in the environment switches it off
    #[arg(long)]
    tune: bool,

    /// Before the first iteration, or with --tune-fusion when the threshold stands, make each kind of all-reduce for its time only, with
    /// all that can be chosen, in at most so many seconds for all kinds together; 0: not at all. What an earlier job has told of is not
    /// rehearsed
    #[arg(long, value_name = "S", default_value_t = TuneOptions::REHEARSAL.as_secs_f64(), requires = "tune")]
    #[arg(value_parser = seconds)]
    tune_rehearsal: f64,

    /// Find the threshold of a schedule that fuses (ddp, fusion:BYTES) first, by the time of iterations: half and twice of it, and further
    /// where that gains; calls are tuned under what stands then (docs/tuning.md)
    #[arg(long, requires = "tune")]
    tune_fusion: bool,

    /// Begin with what was learned on this cluster before, and keep what is learned: a database, as that of bench
    #[arg(long, value_name = "FILE.sqlite", requires = "tune")]
    tune_database: Option<PathBuf>,

    /// Write what stands in the end to this file, as a policy, which --policy follows, here and in bench
    #[arg(long, value_name = "FILE.toml", requires = "tune")]
    policy_out: Option<PathBuf>,

    /// With --tune: a program that the tuner may choose, besides the algorithms: an all-reduce as an MSCCL XML file, for as many
    /// ranks and for gradients of minBytes to maxBytes; may be repeated
    #[arg(long, value_name = "FILE", requires = "tune", conflicts_with = "dump_plan")]
    program: Vec<PathBuf>,

    /// Have all-reduces follow this policy, where it has a rule for them, instead of learning (docs/tuning.md); a file that cannot be
    /// used, or that is not the same on all ranks, changes nothing
    #[arg(long, value_name = "FILE.toml")]
    policy: Option<PathBuf>,

    /// Carry out again what --dump-plan has written, instead of what the strategy gives: the same bits again
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Write the plans that were carried out to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    dump_plan: Option<PathBuf>,

    /// Write each rank's parameters to this directory: rank-0.safetensors, rank-1.safetensors, …
    #[arg(long, value_name = "DIR")]
    dump_parameters: Option<PathBuf>,
}

/// What is trained with if neither --batch nor --global-batch is given, for the help.
fn default_batch() -> String {
    match TrainOptions::default().batch {
        BatchSize::Local(samples) => format!("{samples} per worker"),
        BatchSize::Global(samples) => samples.to_string(),
    }
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report<'a> {
    transport: &'a str,
    tcp_streams: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    emulated: Option<Emulated>,
    threads: usize,
    #[serde(flatten)]
    report: &'a TrainReport,
}

/// Trains, as one rank or by starting the ranks.
///
/// # Errors
/// Wrong usage; the data, a rank or the communication failed; training diverged.
pub fn run(arguments: &TrainArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let place = Place::find(arguments.workers, "--workers")?;
    let model = ChosenModel::find(&arguments.model, registry)?;
    let (strategy, transport) = arguments.strategy(registry)?;
    peers::check(&strategy)?;
    arguments.check_streams(transport, &place)?;
    let mut options = TrainOptions {
        own_model: model.own_name(),
        model: model.name(),
        schedulers: registry.schedulers().clone(),
        compressors: registry.compressors().clone(),
        ..arguments.options(arguments.data(), &strategy, place.local_ranks())?
    };
    if let Some(tune) = &mut options.tune {
        let programs = arguments.program.iter().map(|path| program::to_choose(path, place.ranks()));
        tune.programs = programs.collect::<Result<_, _>>()?;
    }
    options.check()?;
    let emulation = arguments.emulation.of_world(place.ranks())?;
    if emulation.as_ref().is_some_and(|emulation| emulation.dilation != 1.0) {
        let what = "--dilate slows the network down, and this computation cannot be slowed down with it";
        return Err(Failure::usage(what).help("leave it out, or replay recorded times instead of computing"));
    }
    match place {
        Place::Launcher { ranks } => {
            // Said once, rather than by every worker.
            model.check_memory(&options, [ranks, ranks], available_memory())?;
            let mut variables = arguments.security.for_ranks()?;
            variables.push((CHECKED.to_owned(), "1".to_owned()));
            variables.push((POOL_THREADS.to_owned(), options.threads.to_string()));
            workers::launch(ranks, variables)
        }
        Place::Rank(environment) => {
            Job { arguments, registry, model, strategy, transport, emulation }.train(*environment, options)
        }
    }
}

/// What the ranks of a world train, and how they meet.
struct Job<'a> {
    arguments: &'a TrainArguments,
    registry: &'a Registry,
    model: ChosenModel,
    strategy: Strategy,
    transport: TransportChoice,
    emulation: Option<Emulation>,
}

impl Job<'_> {
    /// Trains as a rank.
    fn train(&self, mut environment: Environment, mut options: TrainOptions) -> Result<ExitCode, Failure> {
        let Job { arguments, registry, model, strategy, transport, emulation } = self;
        arguments.security.apply(&mut environment.network);
        arguments.topology.apply(&mut environment);
        size_pools(options.threads)?;
        let seats = to_check(environment.world.as_ref());
        // Before the others of this host take their part of it.
        let available = available_memory();
        let emulated = emulation.as_ref().map(Emulated::new);
        let streams = arguments.tcp_streams.unwrap_or(1);
        let met = peers::meet(environment, *transport, streams, emulation.clone(), strategy, registry)?;
        let communicator = &met.world;
        if let Some(seats) = seats {
            let checked = model.check_memory(&options, seats, available);
            // The others learn the reason, instead of missing this one.
            checked.inspect_err(|error| communicator.abort(&error.to_string()))?;
        }
        let is_first = communicator.rank() == 0;
        let json = arguments.json.as_deref().filter(|_| is_first).map(JsonFile::create).transpose()?;
        let policy_out = arguments.policy_out.as_deref().filter(|_| is_first && options.tune.is_some());
        let policy_out = policy_out.map(PlainFile::create).transpose()?;
        let telemetry = arguments.telemetry.as_deref();
        let telemetry = telemetry.map(|path| Telemetry::start(path, communicator)).transpose()?;
        self.agree_on_switch(met.peers.workers())?;
        let screen = self.screen(communicator, emulated.as_ref(), &mut options);
        self.follow(met.peers.workers(), &mut options)?;
        let mut observer = Recorded::new(screen, telemetry, communicator);
        let trained = model.train(&met.peers, &options, &mut observer);
        // Also of a training that failed: that is when one wants to know.
        let recorded = observer.finish();
        let report = trained?;
        recorded?;
        if let (Some(path), Some(tuning), true) = (&arguments.tune_database, &report.tuning, is_first) {
            let cluster = tuning::cluster_of(communicator, emulated.as_ref());
            tuning::keep_standings(path, &cluster, &tuning.contexts);
        }
        if let Some(json) = json {
            let transport = workers::transport_name(communicator);
            let tcp_streams = communicator.tcp_streams();
            json.write(&Report { transport, tcp_streams, emulated, threads: options.threads, report: &report })?;
        }
        if let Some(file) = policy_out {
            policy::write(file, &report.tuning.as_ref().map(|tuning| tuning.policy.clone()).unwrap_or_default())?;
        }
        if is_first {
            unless_closed(screen::summary(&report, arguments.tune_database.is_some()))?;
        }
        met.part()?;
        Ok(ExitCode::SUCCESS)
    }

    /// The environment switches off what was asked for on all ranks or on none. Servers, which are in the same world, are not asked.
    fn agree_on_switch(&self, workers: &Communicator) -> Result<(), Failure> {
        let TrainArguments { tune, policy, .. } = self.arguments;
        for (option, asked) in [("--tune", *tune), ("--policy", policy.is_some())] {
            if asked {
                tuning::is_on_for(option, workers)?;
            }
        }
        Ok(())
    }

    /// Tells people how training goes, on the first rank; with a database, tuning begins with what it has, and what is learned is
    /// kept there.
    fn screen(
        &self,
        communicator: &Communicator,
        emulated: Option<&Emulated>,
        options: &mut TrainOptions,
    ) -> Box<dyn Observer> {
        if communicator.rank() > 0 {
            return Box::new(Silent);
        }
        let screen = Box::new(Screen::new());
        let Some(tune) = &mut options.tune else { return screen };
        let Some(path) = &self.arguments.tune_database else { return screen };
        // A job does not fail for what it could have begun with.
        match Experience::open(path, tuning::cluster_of(communicator, emulated)) {
            Ok(experience) => {
                tune.lessons = experience.lessons().to_vec();
                Box::new(Learned::new(screen, experience))
            }
            Err(failure) => {
                tuning::say_lost("tuning begins with nothing, and keeps nothing", &failure);
                screen
            }
        }
    }

    /// Calls follow the policy that was named, if all workers have the same one, and are not switched off.
    fn follow(&self, workers: &Communicator, options: &mut TrainOptions) -> Result<(), Failure> {
        if let Some(path) = self.arguments.policy.as_deref().filter(|_| options.policy.is_some()) {
            options.policy = policy::agreed(path, workers)?;
        }
        Ok(())
    }
}

/// So our own launcher tells ranks that their memory has been checked.
const CHECKED: &str = "PACELINE_TRAIN_CHECKED";

/// World size and ranks on this host, if it is for this rank to check that they fit in its memory: the first one here, as
/// far as its launcher says it.
fn to_check(world: Option<&World>) -> Option<[usize; 2]> {
    let Some(world) = world.filter(|_| env::var_os(CHECKED).is_none()) else {
        return world.is_none().then_some([1, 1]);
    };
    let local_size = world.local_size.unwrap_or(1);
    (world.local_rank.unwrap_or(0) == 0).then_some([world.world_size as usize, local_size as usize])
}

/// candle sizes its own pools by this variable of the environment.
const POOL_THREADS: &str = "RAYON_NUM_THREADS";

/// Starts this program over, as the same process, with [`POOL_THREADS`] set, unless it is: under another launcher, and
/// without one, nobody has set it, and every worker's pool would take all cores.
///
/// # Errors
/// The program cannot be started.
pub fn size_pools(threads: usize) -> Result<(), Failure> {
    if env::var_os(POOL_THREADS).is_some() {
        return Ok(());
    }
    let program = env::current_exe()
        .map_err(|error| Failure::failed("cannot find our own program to set the size of its pools").cause(error))?;
    let error = Command::new(program).args(env::args_os().skip(1)).env(POOL_THREADS, threads.to_string()).exec();
    Err(Failure::failed(format!("cannot start over with {POOL_THREADS} set")).cause(error))
}

impl TrainArguments {
    /// The strategy with every aspect, and the transport that it asks for.
    fn strategy(&self, registry: &Registry) -> Result<(Strategy, TransportChoice), Failure> {
        let mut strategy = explain::parse(registry.grammar(), &self.strategy)?;
        if let Some(transport) = self.transport {
            let named = &strategy.protocol.name;
            if named != transport.name() && named != TransportChoice::default().name() {
                let what = format!("--transport {transport} contradicts protocol={named} in the strategy");
                return Err(Failure::usage(what));
            }
            strategy.protocol = Call::named(&transport.to_string());
        }
        let transport = strategy.protocol.name.parse().map_err(Failure::usage)?;
        Ok((strategy, transport))
    }

    /// Refuses connections of which there would be none.
    fn check_streams(&self, transport: TransportChoice, place: &Place) -> Result<(), Failure> {
        // Whoever starts all ranks here starts them where they share memory.
        let has_none = match transport {
            TransportChoice::Shm => true,
            TransportChoice::Auto => matches!(place, Place::Launcher { .. }),
            TransportChoice::Tcp => false,
        };
        match self.tcp_streams {
            Some(streams) if has_none => {
                let what = format!("--tcp-streams {streams}: shared memory carries what these ranks say, and no TCP");
                Err(Failure::usage(what).help("add --transport tcp, or leave --tcp-streams out"))
            }
            _ => Ok(()),
        }
    }

    fn data(&self) -> DataSource {
        self.data_dir.clone().map_or_else(|| self.data.clone(), DataSource::Idx)
    }

    fn options(&self, data: DataSource, strategy: &Strategy, local_workers: usize) -> Result<TrainOptions, Failure> {
        let default = TrainOptions::default();
        let batch = match (self.batch, self.global_batch) {
            (Some(samples), _) => BatchSize::Local(samples),
            (None, Some(samples)) => BatchSize::Global(samples),
            (None, None) => default.batch,
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (rehearsal, fusion) = (Duration::from_secs_f64(self.tune_rehearsal), self.tune_fusion);
        self.update.apply(TrainOptions {
            data,
            strategy: strategy.to_string(),
            epochs: self.epochs,
            iterations: self.iterations,
            batch,
            accumulate: self.accumulate,
            seed: self.seed,
            threads: self.threads.unwrap_or((cores / local_workers).max(1)),
            tune: tuning::is_on(self.tune)?.then(|| TuneOptions { rehearsal, fusion, ..TuneOptions::default() }),
            // Until the ranks have read it, it says nothing.
            policy: tuning::is_on(self.policy.is_some())?.then(Policy::default),
            plan: self.plan.as_deref().map(ExecutedPlans::read).transpose().map_err(Failure::usage)?,
            dump_plan: self.dump_plan.clone(),
            dump_parameters: self.dump_parameters.clone(),
            ..default
        })
    }
}
