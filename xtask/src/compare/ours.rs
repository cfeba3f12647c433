//! `paceline perf`, as a user would run it: started anew for every measurement.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use super::command::{self, Error, Measured, Setting};

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

/// The command that builds the program for release.
pub fn build(root: &Path) -> Command {
    let mut build = cargo(root);
    build.args(["build", "--quiet", "--release", "--package", "paceline-cli"]);
    build
}

/// Cargo, as somebody starts it who was not started by it.
pub fn cargo(root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    // `cargo run` has told us about our own package. A build script that asks for such names (ring's does) would run again
    // each time, and whatever hangs on it be compiled anew.
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for name in std::env::vars_os().map(|(name, _)| name).filter(of_package) {
        command.env_remove(name);
    }
    command
}

impl Ours {
    /// Builds the program.
    pub fn build(root: &Path, scratch: &Path) -> Result<Ours, Error> {
        command::output(&mut build(root))?;
        Ok(Ours { program: program(root), json: scratch.join("perf.json"), machine: OnceCell::new() })
    }

    /// Measures one size with our own choice of algorithm, on plain memory or on the communicator's.
    pub fn measure(&self, setting: &Setting, bytes: usize, seconds: f64, alloc: bool) -> Result<Measured, Error> {
        let mut perf = self.command(setting, bytes);
        perf.args(["--seconds", &seconds.to_string()]).args(alloc.then_some("--alloc"));
        command::output(perf.arg("--json").arg(&self.json))?;
        let read = |error: &dyn std::fmt::Display| format!("{}: {error}", self.json.display());
        let text = fs::read_to_string(&self.json).map_err(|error| read(&error))?;
        let mut report: Report = serde_json::from_str(&text).map_err(|error| read(&error))?;
        self.machine.get_or_init(|| report.machine);
        let measured = report.rows.pop().ok_or_else(|| read(&"no rows"))?;
        command::check(measured, bytes)
    }

    /// The command that measures this size.
    pub fn command(&self, setting: &Setting, bytes: usize) -> Command {
        let mut perf = Command::new(&self.program);
        perf.args(["perf", &setting.collective, "--transport", &setting.transport, "--algorithm", "auto"]);
        perf.args(["--ranks", &setting.ranks.to_string()]);
        perf.args(["--min", &bytes.to_string(), "--max", &bytes.to_string()]);
        perf
    }

    /// The machine as our own report describes it; null before the first measurement.
    pub fn machine(&self) -> Value {
        self.machine.get().cloned().unwrap_or_default()
    }
}
