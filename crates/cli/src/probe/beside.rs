//! What an all-reduce costs the computation beside it, and the computation the all-reduce.

use std::time::Instant;

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Reduction};

use crate::slices::{SLICE_SECONDS, Slices, passes_of_a_slice};

/// The all-reduce is as long as that, about: many slices of the computation.
const CALL_SECONDS: f64 = 60e-3;
const BYTES_MIN: usize = 1 << 20;
const BYTES_MAX: usize = 64 << 20;

/// An all-reduce in the background and a computation on the caller's thread, on one rank.
pub struct Beside {
    communicator: Communicator,
    buffer: Option<Buffer<f32>>,
    passes: usize,
}

/// What one round has found on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Together {
    /// A slice of the computation by itself.
    pub slice_s: f64,
    /// How much longer one took beside the all-reduce, at least 1. 1 if none fitted.
    pub slice_ratio: f64,
    /// The all-reduce by itself.
    pub call_s: f64,
    /// The all-reduce beside the computation.
    pub call_beside_s: f64,
}

impl Beside {
    /// Finds how many bytes take long enough, on all ranks at the same time.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn new(communicator: &Communicator) -> Result<Beside, CommError> {
        let mut beside = Beside { communicator: communicator.clone(), buffer: None, passes: passes_of_a_slice() };
        // The first call makes its memory and finds the rate of its connections.
        for _ in 0..2 {
            beside.buffer = Some(communicator.alloc(BYTES_MIN / size_of::<f32>())?);
            let mut seconds = [beside.call()?];
            communicator.all_reduce(&mut seconds, Reduction::Max, &CallOptions::default())?;
            let bytes = BYTES_MIN as f64 * CALL_SECONDS / seconds[0].max(1e-9);
            let elements = bytes.clamp(BYTES_MIN as f64, BYTES_MAX as f64) as usize / size_of::<f32>();
            beside.buffer = Some(communicator.alloc(elements)?);
        }
        beside.call()?;
        Ok(beside)
    }

    /// Bytes of the all-reduce.
    pub fn bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() * size_of::<f32>())
    }

    /// Measures a round, on all ranks at the same time.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn measure(&mut self) -> Result<Together, CommError> {
        let call_s = self.call()?;
        let slices = ((call_s / SLICE_SECONDS) as usize).clamp(5, 50);
        self.barrier()?;
        let alone = Slices::compute(self.passes, |done| done == slices);
        self.barrier()?;
        let Some(buffer) = self.buffer.take() else { return Ok(Together::nothing()) };
        let start = Instant::now();
        let pending = self.communicator.start_all_reduce(buffer, Reduction::Sum, &CallOptions::default())?;
        let mut beside = Slices::compute(self.passes, |_| pending.is_done());
        // It ended somewhere in the last slice.
        let call_beside_s = start.elapsed().as_secs_f64() - beside.wall() / 2.0;
        beside.drop_last();
        self.buffer = Some(pending.wait()?);
        let slice_ratio = slowed(alone.wall(), beside.wall(), beside.count());
        Ok(Together { slice_s: alone.wall(), slice_ratio, call_s, call_beside_s })
    }

    /// Seconds of an all-reduce that has this rank to itself. In the background, too: what differs is what it does beside.
    fn call(&mut self) -> Result<f64, CommError> {
        self.barrier()?;
        let Some(buffer) = self.buffer.take() else { return Ok(0.0) };
        let start = Instant::now();
        let pending = self.communicator.start_all_reduce(buffer, Reduction::Sum, &CallOptions::default())?;
        self.buffer = Some(pending.wait()?);
        Ok(start.elapsed().as_secs_f64())
    }

    fn barrier(&self) -> Result<(), CommError> {
        self.communicator.barrier(&CallOptions::default())
    }
}

/// How much longer a slice takes beside the all-reduce than alone, at least 1; 1 if none fitted.
fn slowed(alone_s: f64, beside_s: f64, fitted: usize) -> f64 {
    if fitted == 0 { 1.0 } else { (beside_s / alone_s).max(1.0) }
}

impl Together {
    /// Neither was in the other's way.
    fn nothing() -> Together {
        Together { slice_s: 0.0, slice_ratio: 1.0, call_s: 0.0, call_beside_s: 0.0 }
    }

    /// Kappa: seconds of computation lost for each second of transfer within the host, as predictions count: while an
    /// all-reduce takes `busy_s` of which `transfer_s` are transfers, computation needs 1 + kappa·transfer_s/busy_s times as
    /// long. Both are the model's, so that it gives back the ratio that was measured.
    pub fn kappa(&self, transfer_s: f64, busy_s: f64) -> f64 {
        if transfer_s <= 0.0 { 0.0 } else { (self.slice_ratio - 1.0).max(0.0) * busy_s / transfer_s }
    }

    /// The share by which the all-reduce takes longer beside the computation. At least 0.
    pub fn slowdown(&self) -> f64 {
        if self.call_s <= 0.0 { 0.0 } else { (self.call_beside_s / self.call_s - 1.0).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_those_of_the_model() {
        let together = Together { slice_s: 2e-3, slice_ratio: 1.3, call_s: 0.1, call_beside_s: 0.12 };
        // 1 + 0.6 · 0.06/0.12 = 1.3.
        assert!((together.kappa(0.06, 0.12) - 0.6).abs() < 1e-12 && (together.slowdown() - 0.2).abs() < 1e-12);
        assert_eq!(
            (together.kappa(0.0, 1.0), Together::nothing().kappa(1.0, 1.0), Together::nothing().slowdown()),
            (0.0, 0.0, 0.0)
        );
        let faster = Together { call_beside_s: 0.08, ..together };
        assert_eq!(faster.slowdown(), 0.0);
    }

    /// Slices that take 2.6 ms instead of 2 during an all-reduce of which half are transfers: kappa says so, and nothing else does.
    #[test]
    fn a_known_slowdown_is_found_and_predicted_again() {
        let of = |beside_s: f64, fitted| Together {
            slice_s: 2e-3,
            slice_ratio: slowed(2e-3, beside_s, fitted),
            call_s: 0.1,
            call_beside_s: 0.1,
        };
        let (transfer_s, busy_s) = (0.05, 0.1);
        let slower = of(2.6e-3, 40);
        let kappa = slower.kappa(transfer_s, busy_s);
        assert!((slower.slice_ratio - 1.3).abs() < 1e-12 && (kappa - 0.6).abs() < 1e-12, "{slower:?}, {kappa}");
        // What predictions make of it: the slice takes as long as was measured.
        let predicted_s = slower.slice_s * (1.0 + kappa * transfer_s / busy_s);
        assert!((predicted_s - 2.6e-3).abs() < 1e-12, "{predicted_s}");
        // None that was faster by chance, and none that did not fit, is slower.
        assert_eq!((of(1.9e-3, 40).kappa(transfer_s, busy_s), of(2.6e-3, 0).kappa(transfer_s, busy_s)), (0.0, 0.0));
    }

    #[test]
    fn two_threads_find_something() {
        let world = Communicator::threads(2).expect("threads connect");
        std::thread::scope(|scope| {
            for communicator in world {
                scope.spawn(move || {
                    let mut beside = Beside::new(&communicator).expect("both ranks call");
                    assert!((BYTES_MIN..=BYTES_MAX).contains(&beside.bytes()), "{}", beside.bytes());
                    let together = beside.measure().expect("both ranks call");
                    assert!(
                        together.slice_s > 0.0 && together.call_s > 0.0 && together.slice_ratio >= 1.0,
                        "{together:?}"
                    );
                });
            }
        });
    }
}
