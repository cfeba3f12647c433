//! `cargo xtask compare`: our collectives and those of others, in one run, by one set of rules, interleaved.
//!
//! Rules (docs/benchmarking.md): out of place, a barrier before each call, a call takes as long as its slowest rank,
//! results are checked. Contestants take turns size by size, and ours is measured before and after each rival: what is
//! quoted is the median over the rounds of rival / √(ours before · ours after).

#[path = "../../crates/cli/src/perf/calls.rs"]
mod calls;
mod chart;
pub mod circumstances;
pub mod command;
mod contestants;
mod gloo;
mod memory_floor;
mod openmpi;
pub mod ours;
mod profile;
pub mod publish;
pub mod raw_exchange;
pub mod report;
mod resident;
mod results;
pub mod statistics;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;

use calls::sizes;
use circumstances::{Commit, Load, command_line, date};
pub use command::Error;
use command::Setting;
use contestants::{Rivals, Session};
use ours::Ours;
use profile::profile;
use report::Report;
use results::{Cell, Results};

use crate::study;

/// What `compare` is told.
#[derive(Args)]
pub struct Options {
    /// Every second size and fewer rounds: about two minutes
    #[arg(long)]
    quick: bool,

    /// Compare training instead: PyTorch's DDP on Gloo and our methods in the lab; the same as `study --part ddp`
    #[arg(long, conflicts_with_all = ["collectives", "ranks", "transports", "sizes", "seconds", "profile"])]
    train: bool,

    /// Collectives
    #[arg(long, value_delimiter = ',', default_value = "all-reduce",
          value_parser = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"])]
    collectives: Vec<String>,

    /// World sizes; beyond 4 ours is measured alone
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<usize>,

    /// Transports
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_parser = ["shm", "tcp"])]
    transports: Vec<String>,

    /// Sizes in bytes [default: 1 KiB to 64 MiB by factors of 4, and 100 MiB; with --quick by factors of 16; memory of
    /// the communicator also with 25 MiB]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,

    /// A Python with torch: Gloo is measured through torch.distributed
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,

    /// How often everything is measured [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<usize>,

    /// The time for one size of one contestant in one round
    #[arg(long, value_name = "S", default_value_t = 0.1)]
    seconds: f64,

    /// Also find out where our time goes, with `perf` or `strace`
    #[arg(long)]
    profile: bool,

    /// Where the report goes [default: benches/runs/<date>-<machine>]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The version of the report's form. Raised when a field is renamed or removed, or its meaning or unit changes.
const SCHEMA: u32 = 2;

/// Measures everything and writes `compare.json` and `compare.md`.
pub fn run(options: &Options) -> Result<(), Error> {
    if options.train {
        return compare_training(options);
    }
    // What we compile is nobody else's load.
    let load = Load::before("before the run");
    let root = root()?;
    let scratch = root.join("target/compare");
    fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    let ours = Ours::build(root, &scratch)?;
    let (factor, rounds, passes) = if options.quick { (16, 3, 1) } else { (4, 5, 3) };
    let mut sizes = if options.sizes.is_empty() { sizes(1 << 10, 100 << 20, factor) } else { options.sizes.clone() };
    sizes.sort_unstable();
    let rounds = options.rounds.unwrap_or(rounds);
    if rounds < 5 {
        eprintln!("{rounds} rounds are too few to publish");
    }
    let mut results = begin(load, rounds, options.seconds);
    let rivals = Rivals::prepare(root, &scratch, options.torch.as_deref());
    results.versions = rivals.versions();

    let mut profiles = Vec::new();
    for setting in settings(options) {
        results.loads.push(Load::now(setting.to_string()));
        let mut session = Session::open(&setting, &ours, &rivals, root, &scratch, options.seconds)?;
        session.scout(&sizes, passes)?;
        let cell = |bytes| Cell { setting: setting.clone(), bytes, runs: Vec::new() };
        let mut cells: Vec<Cell> = session.sizes(&sizes, options.sizes.is_empty()).into_iter().map(cell).collect();
        for round in 1..=rounds {
            eprintln!("{setting}: round {round} of {rounds}");
            for cell in &mut cells {
                if sizes.contains(&cell.bytes) {
                    session.compare(cell, round)?;
                }
                session.measure_alloc(cell, round)?;
            }
        }
        session.close(&mut results);
        results.cells.extend(cells);
        if options.profile {
            profiles.extend(profile(&ours, &setting, &results, &scratch));
        }
    }
    results.machine = ours.machine();
    results.loads.push(Load::now("after the run"));
    let folder = options.out.clone().unwrap_or_else(|| {
        root.join("benches/runs").join(format!("{}-{}", results.date, report::machine_name(&results.machine)))
    });
    let summary = summary::summarize(&results);
    report::write(&folder, &Report { results, summary, profiles })
}

fn compare_training(options: &Options) -> Result<(), Error> {
    study::run(&study::Options {
        part: study::Part::Ddp,
        rounds: options.rounds,
        quick: options.quick,
        case: None,
        torch: options.torch.clone(),
        seed: study::SEED,
        core_rate: study::CORE_BYTES_PER_S,
        database: None,
        out: options.out.clone(),
    })
}

/// Where the workspace lies.
pub fn root() -> Result<&'static Path, Error> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies in no workspace")?)
}

/// The circumstances, before anything is measured.
fn begin(load: Load, rounds: usize, seconds: f64) -> Results {
    Results {
        schema: SCHEMA,
        date: date(SystemTime::now()),
        command: command_line(),
        commit: Commit::here(),
        rounds,
        seconds,
        loads: vec![load],
        ..Results::default()
    }
}

/// Worlds of one collective and transport stand together.
fn settings(options: &Options) -> Vec<Setting> {
    let mut settings = Vec::new();
    for collective in &options.collectives {
        for transport in &options.transports {
            settings.extend(options.ranks.iter().map(|&ranks| Setting {
                collective: collective.clone(),
                transport: transport.clone(),
                ranks,
            }));
        }
    }
    settings
}
