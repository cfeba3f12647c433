//! A computation on the caller's thread, alone and beside an all-reduce in the background.
//!
//! It is done in slices so short that many lie within a background call: whatever the call's time turns out to be, the
//! slices within it count, and the one in which it ended does not. A round is slices alone for about as long as a
//! background call takes, then slices beside one; so both see the same minute of the machine. Of each round the *mean*
//! slice counts: a median would not see a thread that loses its processor in every tenth slice.

use std::hint::black_box;
use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Reduction};
use rustix::time::{ClockId, clock_gettime};

use super::{Bench, Overlap, median};

/// How long a slice takes about: long against reading two clocks, short against a background call.
const SLICE_SECONDS: f64 = 2e-3;
/// Slices alone that are made even if a background call is shorter.
const SLICES_MIN: usize = 10;
/// Calls in the background before the first round: the first makes its memory and finds the rate of its connections.
const WARM_UP: usize = 2;
/// Elements that stay in the first-level cache: the computation does not compete for memory.
const ELEMENTS: usize = 2048;

impl Bench<'_> {
    pub(super) fn compute(&mut self) -> Result<Overlap, CommError> {
        let (communicator, options) = (self.communicator, CallOptions::default());
        let mut background = 0.0;
        for _ in 0..WARM_UP {
            communicator.barrier(&options)?;
            let start = Instant::now();
            let pending = self.start()?;
            self.finish(pending)?;
            background = start.elapsed().as_secs_f64();
        }
        let passes = passes_of_a_slice();
        let alone_slices = ((background / SLICE_SECONDS) as usize).max(SLICES_MIN);
        let mut columns: [Vec<f64>; 4] = Default::default();
        let (mut slices, mut too_short) = (f64::INFINITY, 0);
        for _ in 0..self.rounds {
            communicator.barrier(&options)?;
            let alone = Slices::compute(passes, |done| done == alone_slices);
            communicator.barrier(&options)?;
            let pending = self.start()?;
            let mut beside = Slices::compute(passes, |_| pending.is_done());
            beside.drop_last();
            self.finish(pending)?;
            let ratios = [beside.wall() / alone.wall(), beside.processor() / alone.processor()];
            let too_few = f64::from(u8::from(beside.count() == 0));
            // The fewest slices, as a maximum.
            let mut slowest = [alone.wall(), beside.wall(), ratios[0], ratios[1], too_few, -(beside.count() as f64)];
            communicator.all_reduce(&mut slowest, Reduction::Max, &options)?;
            if slowest[4] > 0.0 {
                too_short += 1;
                continue;
            }
            columns.iter_mut().zip(slowest).for_each(|(column, value)| column.push(value));
            slices = slices.min(-slowest[5]);
        }
        let rounds = columns[0].len();
        let [alone, beside, ratio, processor_ratio] = columns.map(median);
        Ok(Overlap {
            rounds,
            alone_p50_us: alone * 1e6,
            beside_p50_us: beside * 1e6,
            ratio,
            processor_ratio: Some(processor_ratio),
            slices: Some(if rounds == 0 { 0 } else { slices as usize }),
            too_short,
            ..self.outcome("compute")?
        })
    }
}

/// The clocks after each slice, and before the first: the time on the wall, and of this thread on a processor.
struct Slices(Vec<[f64; 2]>);

impl Slices {
    /// Computes slices until `enough`, which is asked after each with how many there are.
    fn compute(passes: usize, enough: impl Fn(usize) -> bool) -> Slices {
        let start = Instant::now();
        let clocks = || [start.elapsed().as_secs_f64(), processor_seconds()];
        let mut slices = Slices(vec![clocks()]);
        while !enough(slices.count()) {
            work(passes);
            slices.0.push(clocks());
        }
        slices
    }

    /// Forgets the last slice.
    fn drop_last(&mut self) {
        self.0.truncate((self.0.len() - 1).max(1));
    }

    fn count(&self) -> usize {
        self.0.len() - 1
    }

    /// Seconds of a slice, as a mean.
    fn wall(&self) -> f64 {
        self.mean(0)
    }

    /// Seconds of the processor in a slice, as a mean.
    fn processor(&self) -> f64 {
        self.mean(1)
    }

    fn mean(&self, clock: usize) -> f64 {
        let total = self.0.last().map_or(0.0, |last| last[clock] - self.0[0][clock]);
        total / self.count().max(1) as f64
    }
}

/// How long this thread has been on a processor.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// How many passes a slice has: by processor time, which others on this machine disturb least.
fn passes_of_a_slice() -> usize {
    const PASSES: usize = 1000;
    work(PASSES);
    let start = processor_seconds();
    work(PASSES);
    let seconds = (processor_seconds() - start).max(1e-9);
    (PASSES as f64 * SLICE_SECONDS / seconds) as usize + 1
}

/// So many passes over data in the cache.
fn work(passes: usize) {
    let mut data = [1.0_f32; ELEMENTS];
    for _ in 0..passes {
        for element in &mut black_box(&mut data)[..] {
            *element = element.mul_add(0.999, 0.001);
        }
    }
    black_box(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_slices_counts_every_slice_but_one_that_is_dropped() {
        let mut slices = Slices(vec![[1.0, 0.0], [2.0, 0.5], [4.0, 1.0], [14.0, 9.0]]);
        assert_eq!((slices.count(), slices.wall()), (3, 13.0 / 3.0));
        slices.drop_last();
        assert_eq!((slices.count(), slices.wall(), slices.processor()), (2, 1.5, 0.5));
        slices.drop_last();
        slices.drop_last();
        slices.drop_last();
        assert_eq!((slices.count(), slices.wall()), (0, 0.0));
    }

    #[test]
    fn a_computation_takes_no_more_processor_than_time() {
        let slices = Slices::compute(50, |done| done == 20);
        assert_eq!(slices.count(), 20);
        assert!(slices.processor() > 0.0);
        // The two clocks are read one after the other.
        assert!(slices.processor() <= slices.wall() * 1.05 + 1e-5, "{:?}", slices.0);
    }
}
