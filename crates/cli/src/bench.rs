//! `paceline bench`: the comparative study. Models × methods × workers, under one protocol, with one report.

mod arguments;
mod budget;
mod catalogue;
mod cell;
mod conduct;
mod files;
mod measure;
mod models;
mod rank;
mod screen;
mod statistics;
mod store;
mod study;
mod summary;
mod verdict;
mod world;

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use paceline_fabric::environment::Environment;

use crate::Registry;
use crate::failure::{Failure, unless_closed};
use crate::json_file::command_line;
use crate::machine::Machine;
use crate::report::{self, Report};
use crate::supervisor::{Signals, adopt_orphans};
pub use arguments::BenchArguments;
use conduct::{StudyEnd, Worlds, conduct};

use rank::WorldSpec;
pub use rank::run as run_rank;
use screen::Screen;
pub use statistics::geometric_mean;
pub use store::{Store as ResultStore, StudyRecord as Study};
use store::{Store, StudyRecord, now};
use study::{Place, Refusal, plan};
pub use summary::{Group, Panel, Row, panels};
pub use verdict::Verdict;
use world::WorldEnd;

/// Measures, and writes the report.
///
/// # Errors
/// Wrong usage; a result could not be kept; a file could not be written.
pub fn run(arguments: &BenchArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(world) = Environment::read().ok().and_then(|environment| environment.world) {
        let what = format!("{} has started this program as a rank, and bench starts its worlds itself", world.launcher);
        return Err(Failure::usage(what).help("run it without a launcher, on one machine"));
    }
    let place = Place { cores: thread::available_parallelism().map_or(1, usize::from), launched: None };
    let catalogue = models::catalogue(registry);
    let study = plan(arguments, &catalogue, place)?;
    for panel in &study.panels {
        // The largest world needs the most.
        let largest = panel.cells.iter().max_by_key(|one| one.cell.workers);
        largest.map_or(Ok(()), |one| models::check(&one.cell, place.launched.is_some()))?;
    }
    let files = files::Files::create(arguments)?;
    let store = Store::open(&arguments.database)?;
    let record = record(arguments, &study, &place);
    let resumed = if arguments.resume { store.last_with(&record.fingerprint)? } else { None };
    let id = match resumed {
        Some(id) => id,
        None => store.begin(&record)?,
    };
    let mut screen = Screen::start(&study, &arguments.database, resumed.is_some())?;
    let mut worlds = Processes::new(arguments)?;
    let end = conduct(&study, &store, id, &mut worlds, &mut screen);
    screen.finish();
    let (end, failure) = match end {
        Ok(end) => (Some(end), None),
        Err(failure) => (None, Some(failure)),
    };
    // Whatever happened, what has been measured is shown.
    let panels = panels(&store.cells(id)?);
    unless_closed(screen::tables(&panels, &mut io::stdout().lock()))?;
    let report = Report { study: record, panels };
    files.write(&report)?;
    report::write(std::slice::from_ref(&report), &arguments.report)?;
    unless_closed(screen::paths(arguments, &mut io::stdout().lock()))?;
    match (end, failure) {
        (_, Some(failure)) => Err(failure),
        (Some(StudyEnd::Interrupted(signal)), _) => {
            eprintln!(
                "paceline: interrupted; what has ended is kept in {}, --resume goes on",
                arguments.database.display()
            );
            Ok(ExitCode::from(128 + signal.as_raw() as u8))
        }
        (Some(StudyEnd::Complete { failed }), _) if failed > 0 => {
            Err(Failure::failed(format!("{failed} runs gave no result; the report says which and why"))
                .help("--resume runs only those again"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// What the study is, and what must be the same to go on with it: everything that has to do with a number.
fn record(arguments: &BenchArguments, study: &study::Study, place: &Place) -> StudyRecord {
    let machine = Machine::this();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let keys: Vec<String> =
        study.panels.iter().flat_map(|panel| &panel.cells).filter_map(|one| one.cell.key().ok()).collect();
    let (protocol, security) = (study.protocol, arguments.security);
    let all = format!("{version}\n{machine:?}\n{protocol}\n{place:?}\n{security:?}\n{}", keys.join("\n"));
    StudyRecord {
        id: 0,
        started: now(),
        command: command_line(),
        version,
        machine,
        fingerprint: format!("{:016x}", fnv1a(all.as_bytes())),
        protocol: study.protocol.to_string(),
    }
}

/// FNV-1a, 64 bits: the same in every build and on every machine.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Worlds whose ranks are processes of this program.
struct Processes {
    command: Vec<OsString>,
    environment: Vec<(String, String)>,
    signals: Signals,
}

impl Processes {
    fn new(arguments: &BenchArguments) -> Result<Processes, Failure> {
        let program = env::current_exe()
            .map_err(|error| Failure::failed("cannot find our own program to start the ranks").cause(error))?;
        let signals = Signals::catch().map_err(|error| Failure::failed("cannot catch signals").cause(error))?;
        adopt_orphans();
        let environment = arguments.security.for_ranks()?;
        Ok(Processes { command: vec![program.into(), "bench-rank".into()], environment, signals })
    }
}

impl Worlds for Processes {
    fn run(&mut self, spec: &WorldSpec, deadline: Duration) -> Result<WorldEnd, Failure> {
        let cannot = |error| Failure::failed("cannot tell the ranks what to do").cause(error);
        let mut environment = self.environment.clone();
        environment.push(spec.environment().map_err(cannot)?);
        environment.push((POOL_THREADS.to_owned(), spec.cell.threads.to_string()));
        let job = world::job(self.command.clone(), spec.processes(), environment);
        world::run(&job, deadline, &mut self.signals)
    }
}

/// A study that was never run, for the tests of what is made of it.
#[cfg(test)]
pub fn sample_panels() -> Vec<Panel> {
    panels(&summary::samples::study())
}

/// What that study was.
#[cfg(test)]
pub fn sample_study() -> StudyRecord {
    let command = ["paceline", "bench", "--models", "cnn"].map(str::to_owned).to_vec();
    StudyRecord { started: 0, command, ..store::tests::study_record("f") }
}

/// candle sizes its own pools by this variable of the environment.
const POOL_THREADS: &str = "RAYON_NUM_THREADS";

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let failure = Failure::usage(refusal.what);
        match refusal.help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}
