//! What computation takes where all workers compute at once: they share cores, memory and what other programs leave, and whoever is
//! slowest is waited for. A worker alone knows nothing of that.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use paceline_comm::{CallOptions, Communicator, Reduction};

use crate::backend::{Backend, OpenGate, SharedSink, TensorInfo};
use crate::data::Batch;
use crate::error::{TrainError, WhileTraining};
use crate::profiling::Arena;

/// So many passes count, as many as fit into the seconds. Many of short ones: a scheduler lets one worker go on for some
/// milliseconds before another of the same core has its turn.
const PASSES_MIN: usize = 2;
const PASSES_MAX: usize = 64;
const SECONDS: f64 = 0.25;
/// So many barriers tell what a barrier takes.
const BARRIERS: usize = 16;

/// Passes of forward and backward on a worker's first batch, whose gradients nobody needs.
pub(super) struct Passes<'a> {
    backend: &'a mut dyn Backend,
    batch: Batch,
    sink: SharedSink,
    rank: usize,
}

impl<'a> Passes<'a> {
    pub fn new(rank: usize, backend: &'a mut dyn Backend, batch: Batch) -> Passes<'a> {
        let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
        Passes { backend, batch, sink: Arc::new(Mutex::new(Arena::of(&sizes))), rank }
    }

    /// One of them, on this worker alone.
    pub fn pass(&mut self) -> Result<(), TrainError> {
        let computed = self.backend.gradients(&self.batch, &mut OpenGate, &self.sink);
        computed.map(drop).map_err(|source| TrainError::Backend { rank: self.rank, source })
    }

    /// Seconds of forward and backward without communication, from when all workers begin together until the last has ended: the
    /// mean over a few passes, after one that does not count. Where workers take turns on a core, each of them may have it for
    /// itself while it computes, and only the last one's end tells what that costs. All workers call it; every one comes to the
    /// same number.
    pub fn seconds(&mut self, workers: &Communicator) -> Result<f64, TrainError> {
        let first = rounds_s(workers, 1, &mut || self.pass())?;
        let count = ((SECONDS / first.max(f64::MIN_POSITIVE)) as usize).clamp(PASSES_MIN, PASSES_MAX);
        let barrier_s = rounds_s(workers, BARRIERS, &mut || Ok(()))?;
        Ok((rounds_s(workers, count, &mut || self.pass())? - barrier_s).max(0.0))
    }
}

/// Seconds of a round, the mean over `count`: all workers do it, and wait for each other. The largest that any of them sees.
fn rounds_s(
    workers: &Communicator,
    count: usize,
    round: &mut dyn FnMut() -> Result<(), TrainError>,
) -> Result<f64, TrainError> {
    let wait = || workers.barrier(&CallOptions::default()).while_training("computing together");
    wait()?;
    let began = Instant::now();
    for _ in 0..count {
        round()?;
        wait()?;
    }
    let mut seconds = [began.elapsed().as_secs_f64() / count as f64];
    let reduced = workers.all_reduce(&mut seconds, Reduction::Max, &CallOptions::default());
    reduced.while_training("comparing the workers' times")?;
    Ok(seconds[0])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::on_ranks::on_ranks;

    const COMPUTES_S: f64 = 1e-3;

    /// Keeps a processor busy for so long, whoever else has it in between.
    fn compute() -> Result<(), TrainError> {
        let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("time does not run backwards");
        let began = cpu();
        while (cpu() - began).as_secs_f64() < COMPUTES_S {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Runs this thread on the first processor that it may use.
    fn share_one_processor() {
        let allowed = sched_getaffinity(None).expect("Linux says it");
        let mut first = CpuSet::new();
        first.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("it runs on one"));
        sched_setaffinity(None, &first).expect("a smaller set");
    }

    /// Each of them has the processor for itself while it computes: no pass is longer than one alone.
    #[test]
    fn workers_that_take_turns_on_a_processor_take_as_long_as_all_their_turns() {
        let seconds = on_ranks(3, |workers| {
            share_one_processor();
            rounds_s(&workers, 20, &mut compute).unwrap()
        });
        assert!(seconds[0] >= 3.0 * COMPUTES_S && seconds.iter().all(|other| *other == seconds[0]), "{seconds:?}");
    }
}
