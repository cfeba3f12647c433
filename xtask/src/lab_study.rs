//! `cargo xtask lab-study`: what the communicator does on hosts whose links are slower than their processors, measured in
//! the lab, each number beside the one that is demanded.

mod cases;
mod report;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use xtask::lab::{Job, Lab, LabOptions, Rate, Shaper};

use crate::compare::circumstances::{Commit, Load, command_line, date};
use crate::compare::ours::{self, Ours};
use crate::compare::{Error, report as comparison, root};
use cases::{Case, cases};
use report::{Row, Study};

/// What `lab-study` is told.
#[derive(Args)]
pub struct Options {
    /// What every host's NIC sends and receives at most, as tc writes it
    #[arg(long, default_value = "1gbit")]
    rate: Rate,

    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Only these rows
    #[arg(long, value_delimiter = ',', default_value = "bandwidth,urgent,computation",
          value_parser = ["bandwidth", "urgent", "computation"])]
    rows: Vec<String>,

    /// Where the report goes [default: benches/runs/<date>-<machine>]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// No job takes longer.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The version of the report's form. Raised when a field is renamed or removed, or its meaning or unit changes.
const SCHEMA: u32 = 1;

/// Measures and writes `lab.json` and `lab.md`.
pub fn run(options: &Options) -> Result<(), Error> {
    Lab::permitted().map_err(|error| error.to_string())?;
    // What we compile is nobody else's load.
    let load = Load::now("before the run");
    let root = root()?;
    let scratch = root.join("target/compare");
    fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    Ours::build(root, &scratch)?;
    let perf = Perf { program: ours::program(root), json: scratch.join("lab-perf.json") };
    let shaper = Shaper::new(options.rate);
    let cases: Vec<Case> = cases().into_iter().filter(|case| options.rows.iter().any(|row| row == case.row)).collect();
    let mut study = Study {
        schema: SCHEMA,
        date: date(SystemTime::now()),
        command: command_line(),
        commit: Commit::here(),
        machine: Value::Null,
        loads: vec![load],
        shaper: shaper.to_string(),
        bits_per_s: options.rate.bits_per_s(),
        rounds: options.rounds,
        rows: cases.iter().flat_map(|case| case.rows(options.rate.bits_per_s())).collect(),
    };
    // Whoever disturbs the machine for a minute disturbs one round of each case, not all of one.
    for round in 1..=options.rounds {
        let mut rows = study.rows.iter_mut();
        for case in &cases {
            eprintln!("round {round} of {}: {}", options.rounds, case.name());
            let measured = perf.run(case, shaper)?;
            for row in rows.by_ref().take(case.sizes.len()) {
                row.add(case, &measured)?;
            }
            study.machine = measured.machine;
        }
    }
    study.loads.push(Load::now("after the run"));
    let folder = options.out.clone().unwrap_or_else(|| {
        root.join("benches/runs").join(format!("{}-{}", study.date, comparison::machine_name(&study.machine)))
    });
    report::write(&folder, &study)
}

/// Our program, run as ranks in a lab.
struct Perf {
    program: PathBuf,
    json: PathBuf,
}

/// What we read from the file that `perf --json` writes.
#[derive(Deserialize)]
struct Measured {
    machine: Value,
    rows: Vec<Value>,
    overlap: Option<Value>,
}

impl Perf {
    /// Runs a case once, in a lab of its own.
    fn run(&self, case: &Case, shaper: Shaper) -> Result<Measured, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::from(format!("{}: {error}", case.name()));
        let lab = Lab::build(&LabOptions { hosts: case.hosts, shaper }).map_err(|error| failed(&error))?;
        let words = ["perf", "all-reduce", "--json"].map(OsString::from).into_iter();
        let command: Vec<OsString> = std::iter::once(self.program.clone().into())
            .chain(words)
            .chain([self.json.clone().into()])
            .chain(case.arguments().iter().map(OsString::from))
            .collect();
        // The measurement before must not be taken for this one's.
        if self.json.exists() {
            fs::remove_file(&self.json).map_err(|error| failed(&error))?;
        }
        let job = Job { command, ranks_per_host: 1, timeout: TIMEOUT, faults: Vec::new(), tag: false };
        let end = lab.run(&job).map_err(|error| failed(&error))?;
        if !end.is_success() {
            return Err(failed(&end));
        }
        read(&self.json).map_err(|error| failed(&error))
    }
}

fn read(path: &Path) -> Result<Measured, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::from(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

impl Row {
    /// Takes in what one run of its case has measured.
    fn add(&mut self, case: &Case, measured: &Measured) -> Result<(), Error> {
        let found = match self.bytes {
            Some(bytes) => measured.rows.iter().find(|row| row["bytes"] == bytes),
            None => measured.overlap.as_ref(),
        };
        let found = found.ok_or_else(|| format!("{}: it has not measured {}", case.name(), self.case))?;
        if found["wrong"] != 0 {
            return Err(format!("{}: {} elements were wrong", case.name(), found["wrong"]).into());
        }
        let field = |name: &str| found[name].as_f64().filter(|value| value.is_finite() && *value > 0.0);
        let value = match self.floor_us {
            Some(floor_us) => field("p50_us").map(|time| floor_us / time),
            None => field("ratio"),
        };
        self.values.push(value.ok_or_else(|| format!("{}: nothing was measured: {found}", case.name()))?);
        self.measurements.push(found.clone());
        Ok(())
    }
}
