//! `paceline perf`: latency and bandwidth of a collective, in the manner of nccl-tests.

mod call_arguments;
mod calls;
mod exercise;
mod followed;
mod measure;
mod overlap;
mod pattern;
mod row;
mod table;
mod timeline;
mod tune;

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use paceline_collective::Program;
use paceline_collective::registry::find;
use paceline_comm::{CallOptions, Communicator, Emulation, Kernels, ProgramError, TransportChoice, VerifiedProgram};
use paceline_fabric::environment::Environment;
use paceline_plan::{CollectiveKind, DataType, Reduction};
use paceline_train::TunedProgram;
use serde::Serialize;

use crate::arguments::{ByteSize, at_least_one};
use crate::emulation::{Emulated, EmulationArguments};
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::policy;
use crate::program;
use crate::security::SecurityArguments;
use crate::telemetry::Telemetry;
use crate::topology::TopologyArguments;
use crate::tuning;
use crate::workers::{self, Place};
use call_arguments::CallArguments;
use calls::sizes;
use exercise::Subject;
use overlap::{Overlap, OverlapArguments};
use row::Row;
use tune::{TuneArguments, Tuned};

/// Options that say themselves how calls are made, or that something is found out about it.
const NOT_WITH_POLICY: [&str; 10] = [
    "program",
    "algorithm",
    "protocol",
    "lanes",
    "reducing_threads",
    "chunk_bytes",
    "urgent",
    "compute",
    "tune",
    "tune_mix",
];

/// What `perf` is told.
#[derive(Args)]
pub struct PerfArguments {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all, barrier, send-receive,
    /// push-pull or push
    #[arg(value_name = "COLLECTIVE")]
    collective: CollectiveKind,

    /// Processes to start here [default: 2; under a launcher: as many as it has started]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    ranks: Option<usize>,

    /// What carries the data: shm, tcp, or auto (shared memory within a host, TCP otherwise)
    #[arg(long, value_name = "NAME", default_value_t)]
    transport: TransportChoice,

    /// An algorithm by name, or the one that is predicted to be the fastest
    #[arg(long, value_name = "NAME", default_value = "auto")]
    algorithm: String,

    /// Run the program of this MSCCL XML file, on as many ranks as it is for, instead of an algorithm; with --tune, given once or
    /// several times: programs that the tuner may choose, besides the algorithms, for calls of minBytes to maxBytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algorithm", "root", "in_place", "urgent", "compute"])]
    program: Vec<PathBuf>,

    /// Make calls as this policy says, where it has a rule for them, of a layer's gradient in data-parallel training (docs/tuning.md);
    /// a file that cannot be used, or that is not the same on all ranks, changes nothing
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = NOT_WITH_POLICY)]
    policy: Option<PathBuf>,

    /// With --tune: write what stands for each size in the end to this file, as a policy, which --policy follows
    #[arg(long, value_name = "FILE.toml", requires = "tune", conflicts_with_all = ["tune_drift", "tune_alike"])]
    policy_out: Option<PathBuf>,

    /// The element type: f32, f64, f16, bf16, i32, i64 or u8
    #[arg(long, value_name = "TYPE", default_value_t = DataType::F32)]
    dtype: DataType,

    /// The reduction: sum, average, min, max or product
    #[arg(long, value_name = "OP", default_value_t = Reduction::Sum)]
    op: Reduction,

    /// The smallest size: the bytes of the larger of input and output
    #[arg(long, value_name = "BYTES", default_value_t = ByteSize(1 << 10))]
    min: ByteSize,

    /// The largest size, measured in any case
    #[arg(long, value_name = "BYTES", default_value_t = ByteSize(100 << 20))]
    max: ByteSize,

    /// Each size is this many times the one before
    #[arg(long, value_name = "N", default_value_t = 4)]
    factor: usize,

    /// The time for one size; it decides how many calls are made
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,

    /// Measured calls for each size, however long they take
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    iterations: Option<usize>,

    /// Calls before the measured ones, for each size
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,

    /// The rank that has or gets the whole, in rooted collectives
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,

    /// Reduce in place (all-reduce only; the data is put back before each call, outside the measured time)
    #[arg(long)]
    in_place: bool,

    /// Take the data from the communicator's own memory, where peers on the same host can read it
    #[arg(long)]
    alloc: bool,

    #[command(flatten)]
    call: CallArguments,

    #[command(flatten)]
    overlap: OverlapArguments,

    #[command(flatten)]
    tune: TuneArguments,

    #[command(flatten)]
    emulation: EmulationArguments,

    #[command(flatten)]
    topology: TopologyArguments,

    #[command(flatten)]
    security: SecurityArguments,

    /// Write what each call did to this file, a JSON object a line (docs/telemetry.md); rank R > 0 writes to FILE.rankR
    #[arg(long, value_name = "FILE")]
    telemetry: Option<PathBuf>,

    /// Write the timeline of one more call of the largest size, on all ranks, to this file for Perfetto or
    /// chrome://tracing (docs/telemetry.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["urgent", "compute"])]
    trace: Option<PathBuf>,

    /// Write the rows to this file (times in microseconds, *_gbps in 10⁹ bytes per second as nccl-tests has it)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A program of a file, and the bytes of the calls that it is for.
type ForSizes = (Program, RangeInclusive<u64>);

/// What is written about calls, besides the rows.
struct Files {
    telemetry: Option<Telemetry>,
    /// Of rank 0 only.
    trace: Option<JsonFile>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    /// The network that was emulated, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    emulated: Option<Emulated>,
    /// Sizes in bytes, times in microseconds, bandwidths in 10⁹ bytes per second.
    rows: Vec<Row>,
    /// What was measured instead of rows, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<Overlap>,
    /// Likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    tuned: Option<Tuned>,
}

/// Measures, as one rank or by starting the ranks.
///
/// # Errors
/// Wrong usage; a rank or the communication failed; an element was wrong.
pub fn run(arguments: &PerfArguments) -> Result<ExitCode, Failure> {
    let programs: Vec<_> = arguments.program.iter().map(|path| program::read_sized(path)).collect::<Result<_, _>>()?;
    let place = match (Place::find(arguments.ranks, "--ranks")?, programs.first()) {
        (Place::Launcher { .. }, Some((program, _))) if arguments.ranks.is_none() => {
            Place::Launcher { ranks: program.ranks.len() }
        }
        (place, _) => place,
    };
    arguments.check(place.ranks())?;
    programs.iter().try_for_each(|(program, _)| arguments.check_program(program, place.ranks()))?;
    let emulation = arguments.emulation.of_world(place.ranks())?;
    match place {
        Place::Launcher { ranks } => workers::launch(ranks, arguments.security.for_ranks()?),
        Place::Rank(environment) => arguments.run_as_rank(*environment, emulation, programs),
    }
}

impl PerfArguments {
    /// What clap cannot see.
    fn check(&self, ranks: usize) -> Result<(), Failure> {
        if self.algorithm != "auto" {
            find(self.collective, &self.algorithm).map_err(Failure::usage)?;
        }
        if self.overlap.is_asked_for() && self.collective != CollectiveKind::AllReduce {
            return Err(Failure::usage(format!(
                "--urgent and --compute are for all-reduce, not for {}",
                self.collective
            )));
        }
        self.tune.check(self.collective)?;
        // Whoever misspells the switch is told so before anything is started.
        tuning::is_on(self.tune.is_asked_for() || self.policy.is_some())?;
        if self.program.len() > 1 && !self.tune.is_asked_for() {
            return Err(Failure::usage(
                "only --tune chooses among several programs; give one --program, or add --tune",
            ));
        }
        if self.min > self.max {
            return Err(Failure::usage(format!("--min {} is more than --max {}", self.min, self.max)));
        }
        if self.min.0 == 0 || self.factor < 2 {
            return Err(Failure::usage("sizes must grow: --min must be at least 1 and --factor at least 2"));
        }
        if !(self.seconds.is_finite() && self.seconds >= 0.0) {
            return Err(Failure::usage(format!("--seconds {} is no time", self.seconds)));
        }
        if self.root >= ranks {
            return Err(Failure::usage(format!("--root {} is not one of {ranks} ranks", self.root)));
        }
        if self.in_place && self.collective != CollectiveKind::AllReduce {
            let what = format!("--in-place is for all-reduce; {} has two buffers or always one", self.collective);
            return Err(Failure::usage(what));
        }
        use CollectiveKind::{Push, PushPull, SendReceive};
        if matches!(self.collective, SendReceive | PushPull | Push) && ranks < 2 {
            return Err(Failure::usage(format!("{} needs at least two ranks", self.collective)));
        }
        Ok(())
    }

    /// Measures, with the programs of files.
    fn run_as_rank(
        &self,
        mut environment: Environment,
        emulation: Option<Emulation>,
        programs: Vec<ForSizes>,
    ) -> Result<ExitCode, Failure> {
        self.security.apply(&mut environment.network);
        self.topology.apply(&mut environment);
        let emulated = emulation.as_ref().map(Emulated::new);
        let communicator = workers::connect(environment, self.transport, self.call.tcp_streams, emulation)?;
        let is_first = communicator.rank() == 0;
        let file = |path: &Option<PathBuf>| path.as_deref().filter(|_| is_first).map(JsonFile::create).transpose();
        let (json, trace) = (file(&self.json)?, file(&self.trace)?);
        let policy_out = self.policy_out.as_deref().filter(|_| is_first).map(PlainFile::create).transpose()?;
        let telemetry = self.telemetry.as_deref();
        let telemetry = telemetry.map(|path| Telemetry::start(path, &communicator)).transpose()?;
        let mut files = Files { telemetry, trace };
        let overlap = self.measure_overlap(&communicator, emulated.as_ref())?;
        let tuned = self.tuned(&communicator, &programs)?;
        if let (Some(file), Some(tuned)) = (policy_out, &tuned) {
            policy::write(file, &tuned.policy())?;
        }
        let rows = if overlap.is_some() || tuned.is_some() {
            Vec::new()
        } else {
            let subject = self.subject(programs.into_iter().next())?;
            self.measure_all(&communicator, &subject, emulated.as_ref(), &mut files)?
        };
        // The calls that no row has written: of a measurement without rows, and of a trace.
        files.telemetry.as_mut().map_or(Ok(()), |telemetry| telemetry.write(&communicator))?;
        let beside = overlap.as_ref().map_or(0, |overlap| overlap.wrong);
        let wrong = rows.iter().map(|row| row.wrong).sum::<u64>() + beside + tuned.as_ref().map_or(0, |it| it.wrong);
        if let Some(json) = json {
            json.write(&Report { emulated, rows, overlap, tuned })?;
        }
        // Every rank knows; one says it.
        match (wrong, is_first) {
            (0, _) => Ok(ExitCode::SUCCESS),
            (_, true) => Err(Failure::failed(format!("{wrong} elements were wrong"))
                .help("this is a bug in Paceline or broken memory: please report it with the command line")),
            (_, false) => Ok(ExitCode::FAILURE),
        }
    }

    /// What was to be done beside an all-reduce, if anything.
    fn measure_overlap(
        &self,
        communicator: &Communicator,
        emulated: Option<&Emulated>,
    ) -> Result<Option<Overlap>, Failure> {
        let mut overlap = self.overlap.measure(communicator, self.max, self.iterations, &self.options())?;
        if let (Some(overlap), Some(emulated)) = (&mut overlap, emulated) {
            overlap.emulated(emulated);
        }
        if let Some(overlap) = overlap.as_ref().filter(|_| communicator.rank() == 0) {
            unless_closed(overlap.print(&mut io::stdout()))?;
        }
        Ok(overlap)
    }

    /// What was to be tuned, if anything.
    fn tuned(&self, communicator: &Communicator, programs: &[ForSizes]) -> Result<Option<Tuned>, Failure> {
        if !self.tune.is_asked_for() || !tuning::is_on_for("--tune", communicator)? {
            return Ok(None);
        }
        let sizes = sizes(self.min.0, self.max.0, self.factor);
        let prove = |(program, sizes): &ForSizes| {
            let program = VerifiedProgram::new(program.clone(), Kernels::new())?;
            Ok::<_, ProgramError>(TunedProgram { program, sizes: sizes.clone() })
        };
        let programs = programs.iter().map(prove).collect::<Result<Vec<_>, _>>().map_err(Failure::failed)?;
        let tuned = self.tune.measure(communicator, &sizes, self.alloc, self.call.tcp_streams, &programs)?;
        if let Some(tuned) = tuned.as_ref().filter(|_| communicator.rank() == 0) {
            unless_closed(tuned.print(&mut io::stdout()))?;
        }
        Ok(tuned)
    }

    /// What clap cannot see of a program, either.
    fn check_program(&self, program: &Program, ranks: usize) -> Result<(), Failure> {
        let (kind, world) = (program.kind, program.ranks.len());
        if kind != self.collective {
            return Err(Failure::usage(format!("the program is of {kind}, not {}", self.collective)));
        }
        if world != ranks {
            return Err(Failure::usage(format!("the program is for {world} ranks, not {ranks}")));
        }
        Ok(())
    }

    fn subject(&self, program: Option<ForSizes>) -> Result<Subject, Failure> {
        let root = program.as_ref().map_or(self.root, |(program, _)| program.root);
        let program = program.map(|(program, _)| VerifiedProgram::new(program, Kernels::new())).transpose();
        Ok(Subject {
            kind: self.collective,
            reduction: self.op,
            root,
            in_place: self.in_place,
            allocated: self.alloc,
            program: program.map_err(Failure::failed)?,
            options: self.options(),
        })
    }

    fn options(&self) -> CallOptions {
        self.call.options((self.algorithm != "auto").then(|| self.algorithm.clone()))
    }
}
