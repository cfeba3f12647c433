//! How the clocks of the ranks lie to each other.

use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Communicator};

/// Round trips between rank 0 and each other rank. The shortest counts: nobody was interrupted in it.
const ROUND_TRIPS: usize = 64;

/// How this rank's clock lies to rank 0's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Nanoseconds by which it is ahead.
    ahead: i64,
    /// The most, in nanoseconds, by which this may be wrong: half a round trip.
    error: i64,
}

impl Clock {
    /// A time of this rank on rank 0's clock, in microseconds.
    pub fn micros(&self, time: Duration) -> f64 {
        (time.as_nanos() as i64 - self.ahead) as f64 / 1e3
    }

    /// See `error`, in microseconds.
    pub fn error_us(&self) -> f64 {
        self.error as f64 / 1e3
    }
}

/// Compares this rank's clock with rank 0's; all ranks together. When rank 0 asks at t₀ and has the answer at t₁, the
/// other rank has read its clock in between: its distance from (t₀ + t₁) / 2 is known to (t₁ − t₀) / 2.
///
/// # Errors
/// Those of the communication.
pub fn align(communicator: &Communicator) -> Result<Clock, CommError> {
    compare(communicator, || communicator.clock().as_nanos() as i64)
}

fn compare(communicator: &Communicator, now: impl Fn() -> i64) -> Result<Clock, CommError> {
    let options = CallOptions::default();
    if communicator.rank() > 0 {
        for _ in 0..ROUND_TRIPS {
            communicator.receive(&mut [0_i64], 0, 0, &options)?;
            communicator.send(&[now()], 0, 0, &options)?;
        }
        let mut result = [0_i64; 2];
        communicator.receive(&mut result, 0, 0, &options)?;
        return Ok(Clock { ahead: result[0], error: result[1] });
    }
    for peer in 1..communicator.world_size() {
        let mut best = Clock { ahead: 0, error: i64::MAX };
        for _ in 0..ROUND_TRIPS {
            let (asked, mut theirs) = (now(), [0_i64]);
            communicator.send(&[asked], peer, 0, &options)?;
            communicator.receive(&mut theirs, peer, 0, &options)?;
            let half = (now() - asked + 1) / 2;
            if half < best.error {
                best = Clock { ahead: theirs[0] - asked - half, error: half };
            }
        }
        communicator.send(&[best.ahead, best.error], peer, 0, &options)?;
    }
    Ok(Clock::default())
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_clock_is_known_to_within_its_error() {
        // One clock, which each rank reads as if it had been started at another time.
        let origin = Instant::now();
        let hours_ahead = |rank: usize| [0, 7, -3][rank] * 3_600_000_000_000;
        let world = Communicator::threads(3).expect("threads connect");
        let threads = world.into_iter().map(|communicator| {
            thread::spawn(move || {
                let ahead = hours_ahead(communicator.rank());
                compare(&communicator, || origin.elapsed().as_nanos() as i64 + ahead).expect("all ranks are there")
            })
        });
        let clocks: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert_eq!(clocks[0], Clock::default());
        for (rank, clock) in clocks.iter().enumerate().skip(1) {
            assert!(
                clock.error > 0 && (clock.ahead - hours_ahead(rank)).abs() <= clock.error,
                "rank {rank}: {clock:?}"
            );
            let noon = Duration::from_secs(12 * 3600);
            let shown = noon.as_nanos() as i64 - hours_ahead(rank);
            assert!((clock.micros(noon) - shown as f64 / 1e3).abs() <= clock.error_us() + 0.001, "rank {rank}");
        }
    }
}
