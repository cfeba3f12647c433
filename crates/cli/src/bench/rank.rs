//! One rank of a world: what it is told, and what rank 0 answers.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::budget::Effort;
use super::cell::Cell;
use crate::Registry;
use crate::failure::{Failure, unless_closed};
use paceline_train::CellRun;
use paceline_tune::learner::Lesson;

/// What a world is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorldSpec {
    /// What to measure.
    pub cell: Cell,
    /// How much.
    pub effort: Effort,
    /// Trace one more iteration.
    pub timeline: bool,
    /// Of a cell whose calls are tuned: what earlier runs have learned on this cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lessons: Vec<Lesson>,
}

/// candle sizes its own pools by this variable of the environment.
const POOL_THREADS: &str = "RAYON_NUM_THREADS";
/// How this program is told to be a rank of a world.
pub const RANK_COMMAND: &str = "bench-rank";
/// Where the ranks find it.
const VARIABLE: &str = "PACELINE_BENCH_WORLD";
/// What the result's line begins with: a model of the user's own may write lines, too.
const MARK: &str = "paceline-bench-result ";

impl WorldSpec {
    /// How many processes the world has: the workers, and the servers that have hosts of their own.
    pub fn processes(&self) -> usize {
        let cell = &self.cell;
        cell.workers + if cell.dedicated_servers { cell.shards } else { 0 }
    }

    /// The environment that tells ranks so.
    ///
    /// # Errors
    /// Never in practice: the fields have a JSON form.
    pub fn environment(&self) -> serde_json::Result<Vec<(String, String)>> {
        let pool = (POOL_THREADS.to_owned(), self.cell.threads.to_string());
        Ok(vec![(VARIABLE.to_owned(), serde_json::to_string(self)?), pool])
    }
}

/// The line that rank 0 says its result with.
///
/// # Errors
/// Never in practice: the fields have a JSON form.
pub fn announce(measured: &CellRun) -> serde_json::Result<String> {
    Ok(format!("{MARK}{}\n", serde_json::to_string(measured)?))
}

/// The result that stands in rank 0's words, as JSON.
///
/// # Errors
/// There is none.
pub fn result_text(words: &str) -> Result<&str, String> {
    let line = words.lines().rev().find_map(|line| line.strip_prefix(MARK));
    line.ok_or_else(|| "rank 0 ended without a result".to_owned())
}

/// As [`result_text`], read.
///
/// # Errors
/// A sentence that says what is missing.
pub fn result(words: &str) -> Result<CellRun, String> {
    serde_json::from_str(result_text(words)?)
        .map_err(|error| format!("rank 0 gave a result that cannot be read: {error}"))
}

/// Is one rank of a world.
///
/// # Errors
/// What it was told makes no sense; the measurement failed.
pub fn run(registry: &Registry) -> Result<ExitCode, Failure> {
    let spec = env::var(VARIABLE)
        .map_err(|error| Failure::usage("this command is for the ranks that `paceline bench` starts").cause(error))?;
    let spec: WorldSpec = serde_json::from_str(&spec)
        .map_err(|error| Failure::usage(format!("{VARIABLE} makes no sense")).cause(error))?;
    if let Some(measured) = super::measure::measure(&spec, registry)? {
        let line = announce(&measured).map_err(|error| Failure::failed("cannot say the result").cause(error))?;
        unless_closed(io::stdout().lock().write_all(line.as_bytes()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::super::summary::samples::cell_run;
    use super::*;

    #[test]
    fn a_result_is_found_among_other_words() {
        let measured = CellRun { iteration_s: vec![0.1 + 0.2, 1.0 / 3.0], ..cell_run(1.0) };
        let words = format!("a model says hello\n{}and goodbye", announce(&measured).expect("it has a form"));
        assert_eq!(result(&words), Ok(measured));
        assert_eq!(result("nothing"), Err("rank 0 ended without a result".to_owned()));
        assert!(result(&format!("{MARK}{{}}")).is_err());
    }
}
