//! A computation in slices: how much time passes, and how much of it this thread has a processor.

use std::hint::black_box;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// How long a slice takes about: long against reading two clocks, short against a background call.
pub const SLICE_SECONDS: f64 = 2e-3;
/// Elements that stay in the first-level cache: the computation does not compete for memory.
const ELEMENTS: usize = 2048;

/// The clocks after each slice, and before the first: the time on the wall, and of this thread on a processor.
pub struct Slices(Vec<[f64; 2]>);

impl Slices {
    /// Computes slices until `enough`, which is asked after each with how many there are.
    pub fn compute(passes: usize, enough: impl Fn(usize) -> bool) -> Slices {
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
    pub fn drop_last(&mut self) {
        self.0.truncate((self.0.len() - 1).max(1));
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len() - 1
    }

    /// Seconds of a slice, as a mean.
    pub fn wall(&self) -> f64 {
        self.mean(0)
    }

    /// Seconds of the processor in a slice, as a mean.
    pub fn processor(&self) -> f64 {
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
pub fn passes_of_a_slice() -> usize {
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
