//! What computation takes where all workers compute at once: they share cores, memory and what other programs leave, and whoever is
//! slowest is waited for. A worker alone knows nothing of that.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use paceline_comm::{CallOptions, Communicator, Reduction};

use crate::backend::{Backend, OpenGate, SharedSink, TensorInfo};
use crate::data::Batch;
use crate::error::{TrainError, WhileTraining};
use crate::profiling::Arena;

/// So many passes count, as many as fit into the seconds.
const PASSES_MIN: usize = 2;
const PASSES_MAX: usize = 8;
const SECONDS: f64 = 0.25;

/// Seconds of forward and backward without communication: of the slowest worker, the mean over a few passes that all begin
/// together, after one that does not count. All workers call it; every one comes to the same number.
pub(super) fn pass_s(workers: &Communicator, backend: &mut dyn Backend, batch: &Batch) -> Result<f64, TrainError> {
    let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
    let sink: SharedSink = Arc::new(Mutex::new(Arena::of(&sizes)));
    let mut pass = || -> Result<f64, TrainError> {
        workers.barrier(&CallOptions::default()).while_training("computing together")?;
        let began = Instant::now();
        let computed = backend.gradients(batch, &mut OpenGate, &sink);
        computed.map_err(|source| TrainError::Backend { rank: workers.rank(), source })?;
        Ok(began.elapsed().as_secs_f64())
    };
    let slowest = |mut seconds: Vec<f64>| -> Result<Vec<f64>, TrainError> {
        let reduced = workers.all_reduce(&mut seconds, Reduction::Max, &CallOptions::default());
        reduced.while_training("comparing the workers' times")?;
        Ok(seconds)
    };
    let first = slowest(vec![pass()?])?[0];
    let count = ((SECONDS / first.max(f64::MIN_POSITIVE)) as usize).clamp(PASSES_MIN, PASSES_MAX);
    let counted = slowest((0..count).map(|_| pass()).collect::<Result<_, _>>()?)?;
    Ok(counted.iter().sum::<f64>() / count as f64)
}
