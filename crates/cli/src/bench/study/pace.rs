//! What a run of a cell takes, as far as can be said before any has been made. Pure.

use paceline_plan::NetworkModel;

use super::super::budget::Pace;
use super::super::catalogue::ModelEntry;
use super::super::cell::{Cell, Compute, Setting};
use super::super::dilation::HIDDEN_SHARE;
use super::super::statistics::traffic_factor;
use super::Place;

/// Computation, and communication of so many bytes of gradients, of which a schedule that sends during backward hides
/// some.
pub fn pace(cell: &Cell, model: Option<&ModelEntry>, bytes: f64, place: Place) -> Pace {
    let setting = &cell.setting;
    let compute_s = match &setting.compute {
        Compute::Replay { samples_per_s, .. } => setting.local_batch as f64 / samples_per_s,
        Compute::Real => {
            let sample_s = model.and_then(|model| model.sample_s).unwrap_or(1e-4);
            let here = || (cell.workers * cell.threads) as f64 / place.cores.max(1) as f64;
            let busy = place.launched.map_or_else(here, |launched| launched.placement.busy(cell));
            setting.local_batch as f64 * sample_s / cell.threads as f64 * busy.max(1.0)
        }
    };
    let hidden = if cell.strategy.contains("schedule=none") { 0.0 } else { HIDDEN_SHARE };
    let ranks = cell.workers + if cell.dedicated_servers { cell.shards } else { 0 };
    Pace {
        iteration_s: setting.dilate * (compute_s + (1.0 - hidden) * travel_s(setting, cell.workers, bytes)),
        overhead_s: START_S + RANK_START_S * ranks as f64,
    }
}

/// Seconds that gradients of so many bytes travel with nothing else to do. The workers of a host add up first.
fn travel_s(setting: &Setting, workers: usize, bytes: f64) -> f64 {
    let network = setting.network.as_deref().and_then(|name| name.parse::<NetworkModel>().ok());
    let Some(NetworkModel { within, across }) = network else {
        return bytes * traffic_factor(workers) * HERE_S_PER_BYTE;
    };
    match workers.div_ceil(setting.workers_per_host.unwrap_or(1).max(1)) {
        1 => bytes * traffic_factor(workers) * within.beta_s_per_byte,
        hosts => bytes * traffic_factor(hosts) * across.beta_s_per_byte,
    }
}

/// A byte through shared memory on a busy machine.
const HERE_S_PER_BYTE: f64 = 0.5e-9;
/// A world starts, measures its links, and ends.
const START_S: f64 = 0.3;
/// Each rank of it.
const RANK_START_S: f64 = 0.05;
