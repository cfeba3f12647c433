//! `cargo xtask study`: the evidence that the schedules do what their formulas say, and what others do in the same place.
//!
//! | part | question | where |
//! |---|---|---|
//! | `lossless` | does every method give the parameters of single-worker SGD? | this host |
//! | `overlap` | does WFBP hide what its formula says can be hidden? | lab |
//! | `efficiency` | how far is an iteration from its schedule's formula? | lab |
//! | `ddp` | how far are we from PyTorch's DDP on Gloo? | lab |
//! | `crossovers` | which method wins where, and do the study's cells come out? | emulated networks |
//! | `prediction` | how far are predictions off, and what do they choose? | emulated networks and lab |
//! | `tuning` | how far is the tuner of single calls from the best, and what does it cost? | this host, lab, simulated |
//! | `nccl` | does NCCL's plug-in keep to its rules, and is its cost model NCCL's? | this host, without NCCL |
//!
//! What kept pages of predictions say together, `cargo xtask join-predictions` tells.
//!
//! In the lab, computation is slept through and communication is real, over NICs that the kernel shapes
//! (docs/benchmarking.md).

mod calibration;
mod cells;
mod cluster;
mod crossovers;
mod ddp;
mod efficiency;
mod explanations;
mod formula;
mod kept;
mod lossless;
mod measured;
mod nccl;
mod overlap;
mod pairs;
mod prediction;
mod ranks;
mod report;
mod rounds;
mod tensors;
mod tuning;
mod workload;
mod worlds;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use paceline_plan::Fnv1a;
use serde_json::Value;
use xtask::lab::{Lab, LabOptions, Rate, Shaper};

use crate::compare::ours::Ours;
use crate::compare::{Error, command, root};
pub use paceline_cli::CORE_BYTES_PER_S;
pub use prediction::joined;
use report::Circumstances;
use tensors::Model;
use workload::{Computation, Workload};
use worlds::Worlds;

/// What `study` is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to find out
    #[arg(long, value_enum)]
    pub part: Part,

    /// How often everything is measured, in turns [default: 3; prediction and the study's own cells in crossovers 1; sizes
    /// in tuning 5; lossless always once]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,

    /// The smallest cases only, once, with few iterations: does it work?
    #[arg(long)]
    pub quick: bool,

    /// Only the cases whose names contain this, or one of several texts with commas between
    #[arg(long, value_name = "TEXT")]
    pub case: Option<String>,

    /// A Python with torch, for DDP
    #[arg(long, value_name = "PYTHON")]
    pub torch: Option<PathBuf>,

    /// What the tensor lists and networks of prediction are drawn from
    #[arg(long, value_name = "N", default_value_t = SEED)]
    pub seed: u64,

    /// What a core sends, receives and adds, in bytes per second: emulated clusters of crossovers and prediction are slowed
    /// until that suffices
    #[arg(long, value_name = "BYTES", default_value_t = CORE_BYTES_PER_S, value_parser = rate)]
    pub core_rate: f64,

    /// Keep finished runs of crossovers, prediction and tuning here, and do not repeat those that are [default: a file
    /// below target/study for these programs]
    #[arg(long, value_name = "FILE")]
    pub database: Option<PathBuf>,

    /// Where the reports go [default: benches/runs/<date>-<machine>]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// Bytes per second.
fn rate(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 1e6);
    value.ok_or_else(|| "bytes per second are a number from 1e6 on, such as 1.2e9".to_owned())
}

/// What can be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Does every method give the parameters of single-worker SGD, bit by bit on all ranks, and again?
    Lossless,
    /// Does WFBP hide what its formula says can be hidden?
    Overlap,
    /// How far is an iteration from its schedule's formula?
    Efficiency,
    /// How far are we from PyTorch's DDP on Gloo?
    Ddp,
    /// Which method wins where, and do the study's cells come out?
    Crossovers,
    /// How far are predictions off, and what do they choose?
    Prediction,
    /// How far is the tuner of single calls from the best, and what does it cost?
    Tuning,
    /// Does NCCL's plug-in keep to its rules, and is its cost model NCCL's?
    Nccl,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Lossless => "lossless",
            Part::Overlap => "overlap",
            Part::Efficiency => "efficiency",
            Part::Ddp => "ddp",
            Part::Crossovers => "crossovers",
            Part::Prediction => "prediction",
            Part::Tuning => "tuning",
            Part::Nccl => "nccl",
        }
    }
}

/// Drawn if nobody says another one.
pub const SEED: u64 = 5;

/// What all parts need.
struct Place {
    options: Options,
    root: &'static Path,
    scratch: PathBuf,
    program: PathBuf,
    rounds: usize,
}

/// The lab of the evidence: so many hosts, at 1 Gbit/s.
const HOSTS: usize = 4;

/// Finds out, and writes `study-PART.json` and `study-PART.md`.
pub fn run(options: &Options) -> Result<(), Error> {
    let root = root()?;
    let scratch = root.join("target/study");
    fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    Ours::build(root, &scratch)?;
    let program = crate::compare::ours::program(root);
    let rounds = match (options.rounds, options.quick) {
        (Some(rounds), _) => rounds.max(1),
        (None, true) => 1,
        (None, false) => 3,
    };
    let place = Place { options: options.clone(), root, scratch, program, rounds };
    let mut circumstances = Circumstances::begin(options.part.name(), place.machine()?);
    let findings = match options.part {
        Part::Lossless => lossless::run(&place)?,
        Part::Overlap => overlap::run(&place)?,
        Part::Efficiency => efficiency::run(&place)?,
        Part::Ddp => ddp::run(&place, &mut circumstances)?,
        Part::Crossovers => crossovers::run(&place)?,
        Part::Prediction => prediction::run(&place)?,
        Part::Tuning => tuning::run(&place)?,
        Part::Nccl => nccl::run(&place)?,
    };
    let folder = options.out.clone().unwrap_or_else(|| circumstances.folder(root));
    circumstances.write(&folder, &findings)
}

impl Place {
    fn worlds(&self) -> Result<Worlds, Error> {
        self.worlds_of(HOSTS)
    }

    /// In a lab of so many hosts.
    fn worlds_of(&self, hosts: usize) -> Result<Worlds, Error> {
        let shaper = Shaper::new(Rate::GIGABIT);
        let lab = Lab::build(&LabOptions { hosts, shaper }).map_err(|error| error.to_string())?;
        eprintln!("{lab}");
        Ok(Worlds::new(lab, self.program.clone(), self.scratch.clone()))
    }

    fn workload(&self, model: Model, computation: Computation) -> Result<Workload, Error> {
        self.workload_for(model, computation, HOSTS)
    }

    /// For a lab of so many hosts.
    fn workload_for(&self, model: Model, computation: Computation, hosts: usize) -> Result<Workload, Error> {
        Workload::make(model, computation, hosts, Rate::GIGABIT.bits_per_s(), self.root, &self.scratch)
    }

    /// Where the finished runs of a part are kept.
    fn database(&self, part: Part) -> Result<PathBuf, Error> {
        let database = match &self.options.database {
            Some(database) => database.clone(),
            // Numbers of another program are never gone on with: each has a file of its own.
            None => self.scratch.join(format!("{}-{}.db", part.name(), self.program_fingerprint()?)),
        };
        eprintln!("runs are kept in {}", database.display());
        Ok(database)
    }

    /// Is this case asked for?
    fn wants(&self, case: &str) -> bool {
        self.options.case.as_ref().is_none_or(|texts| texts.split(',').any(|text| case.contains(text)))
    }

    /// Of the program that is measured, and of this one, which sets up what it is measured in. A commit that changes neither of them goes
    /// on with what was measured before it.
    fn program_fingerprint(&self) -> Result<String, Error> {
        let mut fingerprint = Fnv1a::default();
        for program in [&self.program, &env::current_exe().map_err(|error| format!("this program: {error}"))?] {
            let bytes = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
            fingerprint.number(Fnv1a::of(&bytes));
        }
        Ok(format!("{:016x}", fingerprint.value()))
    }

    /// As our own reports describe it.
    fn machine(&self) -> Result<Value, Error> {
        let json = self.scratch.join("machine.json");
        let mut perf = Command::new(&self.program);
        perf.args(["perf", "barrier", "--ranks", "1", "--seconds", "0.01", "--json"]).arg(&json);
        command::output(&mut perf)?;
        Ok(read_json(&json)?["machine"].clone())
    }
}

/// What a program has written.
fn read_json(path: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Tells what is to come: worlds, and about how long they take together.
fn announce(part: Part, runs: usize, seconds: f64) {
    eprintln!("{}", announcement(part, runs, seconds));
}

fn announcement(part: Part, runs: usize, seconds: f64) -> String {
    // The sum of nothing is -0.
    format!("{}: {runs} runs, about {:.0} minutes", part.name(), (seconds / 60.0).ceil() + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_takes_no_time() {
        let nothing = std::iter::empty::<f64>().sum();
        assert_eq!(announcement(Part::Crossovers, 0, nothing), "crossovers: 0 runs, about 0 minutes");
        assert_eq!(announcement(Part::Overlap, 2, 61.0), "overlap: 2 runs, about 2 minutes");
    }
}
