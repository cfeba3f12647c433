//! `paceline perf`, as a user would run it.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use super::command::{self, Error, Measured};
use super::results::Setting;

/// The program, built for release.
pub struct Ours {
    program: PathBuf,
    json: PathBuf,
    machine: OnceCell<Value>,
}

/// What we read from the file that `perf --json` writes.
#[derive(Deserialize)]
struct Report {
    machine: Value,
    rows: Vec<Measured>,
}

/// Where cargo puts the program.
pub fn program(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release/paceline")
}

impl Ours {
    /// Builds the program.
    pub fn build(root: &Path, scratch: &Path) -> Result<Ours, Error> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.current_dir(root).args(["build", "--release", "--package", "paceline-cli"]);
        command::output(&mut build)?;
        Ok(Ours { program: program(root), json: scratch.join("perf.json"), machine: OnceCell::new() })
    }

    /// Measures with our own choice of algorithm.
    pub fn measure(&self, setting: &Setting, sizes: &[usize]) -> Result<Vec<Measured>, Error> {
        command::output(self.command(setting, sizes).arg("--json").arg(&self.json))?;
        let read = |error: &dyn std::fmt::Display| format!("{}: {error}", self.json.display());
        let text = fs::read_to_string(&self.json).map_err(|error| read(&error))?;
        let report: Report = serde_json::from_str(&text).map_err(|error| read(&error))?;
        self.machine.get_or_init(|| report.machine);
        command::check(report.rows, sizes)
    }

    /// The command that measures these sizes (powers of [`super::FACTOR`], and the last one).
    pub fn command(&self, setting: &Setting, sizes: &[usize]) -> Command {
        let mut perf = Command::new(&self.program);
        perf.args(["perf", "all-reduce", "--transport", &setting.transport, "--algorithm", "auto"]);
        perf.args(["--ranks", &setting.ranks.to_string(), "--factor", &super::FACTOR.to_string()]);
        perf.args(["--seconds", &setting.seconds.to_string()]);
        let ends = [sizes.first(), sizes.last()].map(|size| size.copied().unwrap_or_default().to_string());
        perf.args(["--min", &ends[0], "--max", &ends[1]]);
        perf
    }

    /// The machine as our own report describes it; null before the first measurement.
    pub fn machine(&self) -> Value {
        self.machine.get().cloned().unwrap_or_default()
    }
}
