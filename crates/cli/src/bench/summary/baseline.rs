//! What a model's numbers are compared with: the throughput of a speedup of 1, and its intensity. Pure.

use paceline_train::{CellRun, ModelName};
use serde::{Deserialize, Serialize};

use super::counted::throughputs;
use crate::bench::cell::{Cell, Setting};
use crate::bench::statistics::Estimate;
use crate::bench::store::CellRecord;

/// The throughput that a speedup of 1 is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Where it comes from.
    pub source: String,
    /// Samples per second.
    pub samples_per_s: f64,
    /// Where it was measured, with what its runs leave open.
    #[serde(default)]
    pub measured: Option<Estimate>,
}

/// The model's intensity I = C/D: operations per parameter and sample. The study's published numbers fit three operations
/// for each multiply-accumulate of forward: one forward and two backward, a multiply-accumulate counted as one. None where
/// nobody has counted them: models and sizes of inputs of the user's own.
pub(super) fn intensity(run: &CellRun, setting: &Setting) -> Option<f64> {
    let own_size = setting.data.as_ref().is_some_and(|data| data.starts_with("idx:") || data.starts_with("images:"));
    let counted = || run.model.parse::<ModelName>().ok().filter(|_| !own_size).map(ModelName::forward_macs_per_sample);
    let macs = run.forward_macs_per_sample.or_else(counted).filter(|_| run.parameters > 0)?;
    Some(3.0 * macs as f64 / run.parameters as f64)
}

/// The profile's device, or one worker here without anybody to talk to.
pub(super) fn baseline(setting: &Setting, cells: &[&CellRecord]) -> Option<Baseline> {
    if let Some(samples_per_s) = setting.single_device() {
        return Some(Baseline { source: "one device, by the profile".to_owned(), samples_per_s, measured: None });
    }
    let plain = |cell: &Cell| cell.shards == 0 && !cell.compresses();
    let alone = |record: &&&CellRecord| record.cell.workers == 1 && plain(&record.cell);
    let measured = |record: &CellRecord| Some((record.cell.method.clone(), Estimate::of(&throughputs(record))?));
    let (method, estimate) = cells.iter().filter(alone).find_map(|record| measured(record))?;
    let source = format!("one worker here ({method})");
    Some(Baseline { source, samples_per_s: estimate.mean, measured: Some(estimate) })
}
