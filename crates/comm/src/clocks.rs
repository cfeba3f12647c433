//! Offsets between the ranks' clocks.

use std::time::Duration;

use crate::{CallOptions, CommError, Communicator};

/// The offset of this rank's clock ([`Communicator::clock`]) from that of the communicator's rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// Nanoseconds by which it is ahead.
    ahead: i64,
    /// The most, in nanoseconds, by which this may be wrong: half a round trip.
    error: i64,
}

impl ClockOffset {
    /// A time of this rank on rank 0's clock, in nanoseconds; negative for times before rank 0 connected.
    pub fn on_rank_0_ns(&self, time: Duration) -> i64 {
        // Whatever rank 0 may have told.
        (time.as_nanos() as i64).saturating_sub(self.ahead)
    }

    /// The most, in nanoseconds, by which [`ClockOffset::on_rank_0_ns`] may be wrong.
    pub fn error_ns(&self) -> i64 {
        self.error
    }
}

impl Communicator {
    /// Compares this rank's clock with rank 0's; all ranks together. When rank 0 asks at t₀ and has the answer at t₁, the
    /// other rank has read its clock in between: its distance from (t₀ + t₁) / 2 is known to (t₁ − t₀) / 2. The shortest
    /// of `round_trips` (at least 1) between rank 0 and each other rank counts: nobody was interrupted in it.
    ///
    /// Its messages are of the caller's kind, with tag 0: no other message with that tag may be pending between rank 0 and
    /// another rank of this communicator.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn compare_clocks(&self, round_trips: usize) -> Result<ClockOffset, CommError> {
        self.compare(round_trips.max(1), || self.clock().as_nanos() as i64)
    }

    fn compare(&self, round_trips: usize, now: impl Fn() -> i64) -> Result<ClockOffset, CommError> {
        let options = CallOptions::default();
        if self.rank() > 0 {
            for _ in 0..round_trips {
                self.receive(&mut [0_i64], 0, 0, &options)?;
                self.send(&[now()], 0, 0, &options)?;
            }
            let mut result = [0_i64; 2];
            self.receive(&mut result, 0, 0, &options)?;
            return Ok(ClockOffset { ahead: result[0], error: result[1] });
        }
        for peer in 1..self.world_size() {
            let mut best = ClockOffset { ahead: 0, error: i64::MAX };
            for _ in 0..round_trips {
                let (asked, mut theirs) = (now(), [0_i64]);
                self.send(&[asked], peer, 0, &options)?;
                self.receive(&mut theirs, peer, 0, &options)?;
                let half = (now() - asked + 1) / 2;
                if half < best.error {
                    best = ClockOffset { ahead: theirs[0].saturating_sub(asked + half), error: half };
                }
            }
            self.send(&[best.ahead, best.error], peer, 0, &options)?;
        }
        Ok(ClockOffset::default())
    }
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
                communicator.compare(64, || origin.elapsed().as_nanos() as i64 + ahead).expect("all ranks are there")
            })
        });
        let clocks: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert_eq!(clocks[0], ClockOffset::default());
        for (rank, clock) in clocks.iter().enumerate().skip(1) {
            assert!(
                clock.error > 0 && (clock.ahead - hours_ahead(rank)).abs() <= clock.error,
                "rank {rank}: {clock:?}"
            );
            let noon = Duration::from_secs(12 * 3600);
            let shown = noon.as_nanos() as i64 - hours_ahead(rank);
            assert!((clock.on_rank_0_ns(noon) - shown).abs() <= clock.error_ns(), "rank {rank}");
        }
    }

    #[test]
    fn no_clock_is_too_far_away() {
        let world = Communicator::threads(2).expect("threads connect");
        let threads = world.into_iter().map(|communicator| {
            thread::spawn(move || {
                let never = if communicator.rank() == 0 { 1_000_000 } else { i64::MIN };
                communicator.compare(2, || never).expect("all ranks are there")
            })
        });
        let clocks: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert_eq!(clocks[1].ahead, i64::MIN);
        assert_eq!(clocks[1].on_rank_0_ns(Duration::from_secs(1)), i64::MAX);
    }
}
