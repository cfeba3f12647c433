//! `paceline bench`: the comparative study. Models × methods × workers, under one protocol, with one report.

mod again;
mod arguments;
mod belief;
mod budget;
mod catalogue;
mod cell;
mod conduct;
mod dilation;
mod files;
mod fits;
mod follow;
mod identity;
mod judge;
mod labels;
mod launched;
mod measure;
mod models;
mod orders;
mod placement;
mod predicted;
mod processors;
mod rank;
mod screen;
mod share;
mod stage;
mod statistics;
mod store;
mod study;
mod summary;
mod team;
mod trace_events;
mod tuned;
mod verdict;
mod world;

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use paceline_comm::seconds_per_byte_reduced;
use paceline_fabric::environment::Environment;
use paceline_plan::Fnv1a;
use paceline_train::available_memory;

use crate::Registry;
use crate::date::now;
use crate::failure::{Failure, unless_closed};
use crate::json_file::command_line;
use crate::machine::Machine;
use crate::policy;
use crate::report::{self, Report};
use crate::supervisor::{Signals, adopt_orphans};
use crate::tuning;
pub use arguments::BenchArguments;
use conduct::{StudyEnd, Worlds, conduct};
pub use dilation::{CORE_BYTES_PER_S, Processors};
use identity::Identity;
pub use judge::WorldEnd;
use launched::Conductor;
pub use models::usual_batch;
pub use predicted::{Curve, CurveLine, Errors, Outlook, errors_by_method, rows_that_count};
use predicted::{Sources, attach};
pub use processors::{busy_processors, limited_by_processors};
use rank::WorldSpec;
pub use rank::run as run_rank;
pub use share::confine_worker;
/// What stands behind [`crate::worlds`].
pub mod worlds {
    pub use super::budget::Effort;
    pub use super::cell::{Arm, Cell, Compute, ServerHost, Setting};
    pub use super::models::fingerprint as profile_fingerprint;
    pub use super::predicted::{Predicted, Seen, predict_replay};
    pub use super::rank::{RANK_COMMAND, WorldSpec, result_text};
    pub use paceline_train::{InFlight, Overtaking, RECORDED_ITERATIONS};
}
use screen::Screen;
pub use statistics::{Estimate, Ratio, VALUES_MIN, geometric_mean, median};
use store::{CellRecord, Store, StudyId, StudyRecord};
pub use store::{Store as ResultStore, StudyRecord as Study};
use study::{Launched, Place, Refusal, plan};
#[cfg(test)]
use summary::panels;
use summary::panels_of;
pub use summary::{Group, Panel, Row, RowResult};
pub use verdict::Verdict;
pub use world::{job as world_job, run as run_world};

/// Measures, and writes the report; or helps another rank of the same launcher to.
///
/// # Errors
/// Wrong usage; a result could not be kept; a file could not be written.
pub fn run(arguments: &BenchArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let asked = arguments.tune;
    let arguments = &BenchArguments { tune: tuning::is_on(asked)?, ..arguments.clone() };
    if asked && !arguments.tune {
        tuning::say_off("--tune");
    }
    let mut environment = Environment::read().map_err(|error| {
        Failure::usage("the environment does not say where this rank belongs")
            .cause(error)
            .help("start the ranks with `paceline launch`, `torchrun`, `srun` or `mpirun`, or unset the variable")
    })?;
    let Some(place) = environment.world.clone() else {
        return study_here(arguments, registry, None, &mut || Ok(Box::new(Processes::new(arguments)?)));
    };
    arguments.security.apply(&mut environment.network);
    let met = launched::meet(environment, &place)?;
    if place.rank > 0 {
        return follow::run(&met.world, met.all_here());
    }
    let (conductor, launched) = Conductor::new(met, place.meeting_point, arguments.security.for_ranks()?)?;
    let mut conductor = Some(conductor);
    study_here(arguments, registry, Some(&launched), &mut || match conductor.take() {
        Some(conductor) => Ok(Box::new(conductor)),
        None => Err(Failure::failed("the ranks of the launcher are busy")),
    })
}

/// What runs the worlds of a study; made once it is known that the study makes sense.
type MakeWorlds<'a> = &'a mut dyn FnMut() -> Result<Box<dyn Worlds>, Failure>;

/// The study, with its database, its files and its screen.
fn study_here(
    arguments: &BenchArguments,
    registry: &Registry,
    launched: Option<&Launched>,
    worlds: MakeWorlds<'_>,
) -> Result<ExitCode, Failure> {
    let place = Place { cores: thread::available_parallelism().map_or(1, usize::from), launched };
    let followed = arguments.policy.as_deref().map(policy::for_study).transpose()?.flatten();
    let arguments = &BenchArguments { followed, ..arguments.clone() };
    let catalogue = models::catalogue(registry);
    let study = plan(arguments, &catalogue, place)?;
    let available = launched.map_or_else(|| vec![available_memory()], |launched| launched.available_bytes.clone());
    fits::check(&study, registry, &available)?;
    let record = record(arguments, &study, &place)?;
    let files = files::Files::create(arguments)?;
    let store = Store::open(&arguments.database)?;
    let resumed = if arguments.resume { identity::resume(&store, &record)? } else { None };
    let id = match resumed {
        Some(id) => id,
        None => store.begin(&record)?,
    };
    let mut screen = Screen::start(&study, &arguments.database, resumed.is_some())?;
    let mut worlds = worlds()?;
    let end = conduct(&study, &store, id, worlds.as_mut(), &mut screen);
    drop(worlds);
    screen.finish();
    // Whatever happened, what has been measured is shown. The first failure is the reason of others, as on a full disk.
    match (end, show(arguments, registry, &store, id, files)) {
        (Err(failure), shown) => {
            if let Err(also) = shown {
                also.report();
            }
            Err(failure)
        }
        (Ok(_), Err(failure)) => Err(failure),
        (Ok(StudyEnd::Interrupted(signal)), Ok(())) => {
            eprintln!(
                "paceline: interrupted; what has ended is kept in {}, --resume goes on",
                arguments.database.display()
            );
            Ok(ExitCode::from(128 + signal.as_raw() as u8))
        }
        (Ok(StudyEnd::Complete { failed }), Ok(())) if failed > 0 => {
            Err(Failure::failed(format!("{failed} runs gave no result; the report says which and why"))
                .help("--resume runs only those again"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Tables, files and report of everything that the study has measured, under the date and the command with which it began.
fn show(
    arguments: &BenchArguments,
    registry: &Registry,
    store: &Store,
    id: StudyId,
    files: files::Files,
) -> Result<(), Failure> {
    let study = store.study(id)?;
    let panels = predicted_panels(&study, &store.cells(id)?, registry);
    unless_closed(screen::tables(&panels, &mut io::stdout().lock()))?;
    let report = Report { study, panels };
    files.write(&report)?;
    report::write(std::slice::from_ref(&report), &arguments.report)?;
    unless_closed(screen::paths(arguments, &mut io::stdout().lock()))
}

/// What a study has measured, with what was to be expected of it.
pub fn predicted_panels(study: &StudyRecord, cells: &[CellRecord], registry: &Registry) -> Vec<Panel> {
    let mut panels = panels_of(study, cells);
    attach(&Sources { schedulers: registry.schedulers(), study, cells }, &mut panels);
    panels
}

/// What the study is, and what must be the same to go on with it: everything that has to do with a number.
fn record(arguments: &BenchArguments, study: &study::Study, place: &Place<'_>) -> Result<StudyRecord, Failure> {
    let machine = Machine::this();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let keys: Vec<String> =
        study.panels.iter().flat_map(|panel| &panel.cells).filter_map(|one| one.cell.key().ok()).collect();
    let program =
        identity::of_program().map_err(|error| Failure::failed("cannot read our own program").cause(error))?;
    let source = models::source(arguments.data.as_deref())?;
    let data = identity::of_data(&source)
        .map_err(|error| Failure::failed(format!("cannot read --data {source}")).cause(error))?;
    let protocol = study.protocol.to_string();
    let parts = [
        (identity::CELLS, identity::in_text(Fnv1a::of(keys.join("\n").as_bytes()))),
        (identity::PROTOCOL, protocol.clone()),
        (identity::PROGRAM, format!("{version} ({})", identity::in_text(program))),
        (identity::DATA, data.map_or_else(|| "in the program".to_owned(), identity::in_text)),
        ("machine", format!("{machine:?}")),
        ("place", place.launched.map_or_else(|| "this host".to_owned(), |launched| launched.stage.list())),
        ("security", format!("{:?}", arguments.security)),
    ];
    let identity: Identity = parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(StudyRecord {
        id: 0,
        started: now(),
        command: command_line(),
        version,
        machine,
        fingerprint: identity::fingerprint(&identity),
        identity,
        protocol,
        placement: study.placement.clone(),
        combine_s_per_byte: Some(seconds_per_byte_reduced()),
    })
}

/// Worlds whose ranks are processes of this program, on this host.
struct Processes {
    command: Vec<OsString>,
    environment: Vec<(String, String)>,
    signals: Signals,
}

/// The command line of a world's ranks: this program.
fn our_ranks() -> Result<Vec<OsString>, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::failed("cannot find our own program to start the ranks").cause(error))?;
    Ok(vec![program.into(), rank::RANK_COMMAND.into()])
}

impl Processes {
    fn new(arguments: &BenchArguments) -> Result<Processes, Failure> {
        let signals = Signals::catch().map_err(|error| Failure::failed("cannot catch signals").cause(error))?;
        adopt_orphans();
        let environment = arguments.security.for_ranks()?;
        Ok(Processes { command: our_ranks()?, environment, signals })
    }
}

/// The variable of the environment that says how often ranks give signs of life, if somebody has set it.
const HEARTBEAT: &str = "PACELINE_HEARTBEAT";

/// Seconds between signs of life where ranks share processors; otherwise what is usual. Forty ranks on two cores that touch
/// their gradients' memory for the first time do nothing else for seconds, and none of them is lost. (One that is killed
/// is known at once by its links.)
fn heartbeat(processes: usize, cores: usize) -> Option<(String, String)> {
    let cores = cores.max(1);
    (processes > cores).then(|| (HEARTBEAT.to_owned(), processes.div_ceil(cores).to_string()))
}

impl Worlds for Processes {
    fn run(&mut self, spec: &WorldSpec, deadline: Duration) -> Result<WorldEnd, Failure> {
        let cannot = |error| Failure::failed("cannot tell the ranks what to do").cause(error);
        let mut environment = self.environment.clone();
        environment.extend(spec.environment().map_err(cannot)?);
        if env::var_os(HEARTBEAT).is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            environment.extend(heartbeat(spec.processes(), cores));
        }
        let job = world::job(self.command.clone(), spec.processes(), environment);
        world::run(&job, spec.cell.workers, deadline, Some(&mut self.signals))
    }
}

/// A study that was never run, for the tests of what is made of it.
#[cfg(test)]
pub fn sample_panels() -> Vec<Panel> {
    panels(&summary::samples::study(), 2)
}

/// The same, predicted 5 % too fast.
#[cfg(test)]
pub fn sample_predicted_panels() -> Vec<Panel> {
    let mut panels = sample_panels();
    predicted::samples::predict(&mut panels, 1.05);
    panels
}

/// What that study was.
#[cfg(test)]
pub fn sample_study() -> StudyRecord {
    let command = ["paceline", "bench", "--models", "cnn"].map(str::to_owned).to_vec();
    StudyRecord { started: 0, command, ..store::tests::study_record("f") }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let failure = Failure::usage(refusal.what);
        match refusal.help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}
