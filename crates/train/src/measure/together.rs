//! What computation takes where all workers compute at once: they share cores, memory and what other programs leave, and whoever is
//! slowest is waited for. A worker alone knows nothing of that.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use paceline_comm::{CallOptions, Communicator, Reduction};

use super::beside::{Interference, measure_interference};
use super::cost::Before;
use crate::backend::{Backend, BackendError, OpenGate, SharedSink, Slot, TensorInfo};
use crate::data::Batch;
use crate::error::{TrainError, WhileTraining};
use crate::profiling::Arena;

/// So many passes count, as many as fit into the seconds. Many of short ones: a scheduler lets one worker go on for some
/// milliseconds before another of the same core has its turn.
const PASSES_MIN: usize = 2;
const PASSES_MAX: usize = 64;
const SECONDS: f64 = 0.25;
/// So many before them do not count, besides the very first, as many as fit into the seconds: what iterations compute later has its
/// memory already.
const WARM_UP_MAX: usize = 3;
const WARM_UP_S: f64 = 0.75;
/// So many barriers tell what a barrier takes.
const BARRIERS: usize = 16;

/// Where a pass takes no longer than this, operations are timed each behind one: ranks arrive at different times and caches hold
/// other things then, which adds some 50 µs. Of longer passes that is nothing, and it would take too long.
pub(super) const SHORT_PASS_S: f64 = 10e-3;

/// What workers compute while something else is timed.
pub(crate) struct Passing<'a> {
    /// A pass of forward and backward.
    pub(crate) pass: Before<'a>,
    /// Seconds of one, about; the same on all workers.
    pub(crate) seconds: f64,
}

impl Passing<'_> {
    /// What is done before an operation that is timed: a short pass, or nothing.
    pub(crate) fn before(&mut self) -> Option<Before<'_>> {
        if self.seconds <= SHORT_PASS_S { Some(&mut *self.pass) } else { None }
    }
}

/// Lets `time` make passes of forward and backward, and leaves the model as it was: nothing is updated, and buffers, which passes
/// renew, are put back. `pass_s` is the same on all workers, and None where nothing is computed. A worker without a batch makes
/// passes of nothing.
pub(crate) fn with_passes<R>(
    rank: usize,
    backend: &mut dyn Backend,
    pass_s: Option<f64>,
    batch: impl FnOnce() -> Option<Batch>,
    time: impl FnOnce(Option<Passing<'_>>) -> Result<R, TrainError>,
) -> Result<R, TrainError> {
    let Some(seconds) = pass_s else { return time(None) };
    let failed = |source: BackendError| TrainError::Backend { rank, source };
    let kept = buffers(backend).map_err(failed)?;
    let mut passes = batch().map(|batch| Passes::new(rank, &mut *backend, batch));
    let mut pass = || passes.as_mut().map_or(Ok(()), |passes| passes.pass());
    let timed = time(Some(Passing { pass: &mut pass, seconds }))?;
    drop(passes);
    put_back(backend, &kept).map_err(failed)?;
    Ok(timed)
}

/// What a model's buffers hold.
fn buffers(backend: &mut dyn Backend) -> Result<Vec<Vec<f32>>, BackendError> {
    let mut kept = vec![Vec::new(); backend.buffers().len()];
    for (number, values) in kept.iter_mut().enumerate() {
        backend.access(Slot::Buffer(number), &mut |buffer: &mut [f32]| *values = buffer.to_vec())?;
    }
    Ok(kept)
}

fn put_back(backend: &mut dyn Backend, kept: &[Vec<f32>]) -> Result<(), BackendError> {
    kept.iter().enumerate().try_for_each(|(number, values)| {
        backend.access(Slot::Buffer(number), &mut |buffer: &mut [f32]| buffer.copy_from_slice(values))
    })
}

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
}

/// What computing costs a worker where all others do, too. Nothing of a replay.
#[derive(Clone, Copy, Default)]
pub(super) struct Company {
    /// Seconds of a pass of all workers at once ([`together_s`]).
    pub pass_s: Option<f64>,
    /// What passes and all-reduces cost each other; of several workers.
    pub interference: Option<Interference>,
}

impl Company {
    /// Measures it with these passes, and all-reduces of about so many bytes. All workers have passes, or none.
    pub fn measure(
        workers: &Communicator,
        passes: Option<&mut Passes<'_>>,
        bytes: usize,
    ) -> Result<Company, TrainError> {
        let Some(passes) = passes else { return Ok(Company::default()) };
        let mut pass = || passes.pass();
        let pass_s = together_s(workers, &mut pass)?;
        let several = workers.world_size() > 1;
        let interference = several.then(|| measure_interference(workers, bytes, &mut pass)).transpose()?;
        Ok(Company { pass_s: Some(pass_s), interference })
    }
}

/// Seconds of a pass of forward and backward without communication, from when all workers begin together until the last has
/// ended: the mean over a few passes, after some that do not count. Where workers take turns on a core, each of them may have it for
/// itself while it computes, and only the last one's end tells what that costs. All workers call it; every one comes to the
/// same number.
pub(crate) fn together_s(workers: &Communicator, pass: Before<'_>) -> Result<f64, TrainError> {
    let fit = |seconds: f64, each_s: f64| (seconds / each_s.max(f64::MIN_POSITIVE)) as usize;
    let mut pass_s = rounds_s(workers, 1, pass)?;
    let warm_up = fit(WARM_UP_S, pass_s).min(WARM_UP_MAX);
    if warm_up > 0 {
        pass_s = rounds_s(workers, warm_up, pass)?;
    }
    let count = fit(SECONDS, pass_s).clamp(PASSES_MIN, PASSES_MAX);
    let barrier_s = rounds_s(workers, BARRIERS, &mut || Ok(()))?;
    Ok((rounds_s(workers, count, pass)? - barrier_s).max(0.0))
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::data::Inputs;
    use crate::fake_backend::FakeBackend;
    use crate::on_ranks::on_ranks;

    /// A pass in front of each of three operations, if passes are short; and the model is as it was.
    #[test]
    fn passes_that_time_operations_change_nothing() {
        let one = Batch { samples: 1, inputs: Inputs::Values(vec![0.0]), targets: vec![vec![0]] };
        let cases = [
            (Some(0.5 * SHORT_PASS_S), Some(&one), 3),
            (Some(2.0 * SHORT_PASS_S), Some(&one), 0),
            (None, Some(&one), 0),
            (Some(0.5 * SHORT_PASS_S), None, 0),
        ];
        for (pass_s, batch, expected) in cases {
            let passes = Arc::<AtomicUsize>::default();
            let mut backend = FakeBackend::counting(Duration::ZERO, passes.clone());
            backend.counted = [7.0];
            let own = || batch.cloned();
            let short = with_passes(0, &mut backend, pass_s, own, |passing| {
                let Some(mut passing) = passing else { return Ok(false) };
                let short = passing.before().is_some();
                if let Some(pass) = passing.before() {
                    (0..3).try_for_each(|_| pass())?;
                }
                Ok(short)
            });
            assert_eq!(passes.load(Ordering::Relaxed), expected, "{pass_s:?}");
            assert_eq!(backend.counted, [7.0], "{pass_s:?}: the buffers are not those before");
            // Whether operations are timed by the fastest worker is the same on all, whoever has a batch.
            assert_eq!(short.unwrap(), pass_s == Some(0.5 * SHORT_PASS_S));
        }
    }

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
