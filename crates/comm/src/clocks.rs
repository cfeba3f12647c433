//! Offsets between the ranks' clocks.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::{CallOptions, CommError, Communicator};

/// Of messages that nobody else sends.
const TAG: u32 = u32::MAX;

/// A rank looks so often when its clock began.
const READINGS: usize = 8;

/// By which it may be wrong all the same, as two clocks are read one after the other.
const READING_NS: i64 = 1000;

/// The offset of this rank's clock ([`Communicator::clock`]) from that of the communicator's rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// Nanoseconds by which it is ahead.
    ahead: i64,
    /// The most, in nanoseconds, by which this may be wrong: half a round trip between hosts, and a microsecond.
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
    /// Compares this rank's clock with rank 0's; all ranks together. Ranks of a host read the same clock. One of each other host exchanges
    /// messages with rank 0, host by host: when rank 0 asks at t₀ and has the answer at t₁, the other rank has read its clock in between, so
    /// that its distance from (t₀ + t₁) / 2 is known to (t₁ − t₀) / 2. The shortest of `round_trips` (at least 1) counts: nobody was
    /// interrupted in it (Cristian, "Probabilistic clock synchronization", 1989).
    ///
    /// Its messages are of the caller's kind, with the largest tag: no other message with that tag may be pending between rank 0 and
    /// another rank of this communicator.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn compare_clocks(&self, round_trips: usize) -> Result<ClockOffset, CommError> {
        // When this rank's clock began, by its host's: whoever is interrupted between the two takes it for later.
        let began = || {
            let instant = Instant::now();
            host_ns().saturating_sub(self.clock_at(instant).as_nanos() as i64)
        };
        let began = (0..READINGS).map(|_| began()).min().unwrap_or_default();
        self.compare_by(round_trips.max(1), host_ns, began)
    }

    /// `now`: what this host's clock says, in nanoseconds; `own`: what it said when this rank's began.
    fn compare_by(&self, round_trips: usize, now: impl Fn() -> i64, own: i64) -> Result<ClockOffset, CommError> {
        let host = self.compare_hosts(round_trips, now)?;
        let mut first = [own];
        self.broadcast(&mut first, 0, &CallOptions::default())?;
        let ahead = host.ahead.saturating_add(first[0].saturating_sub(own));
        let is_first = self.rank() == 0;
        let error = host.error.saturating_add(READING_NS);
        Ok(if is_first { ClockOffset::default() } else { ClockOffset { ahead, error } })
    }

    /// By how much the clock of this rank's host is ahead of that of rank 0's. `now`: what it says, in nanoseconds.
    fn compare_hosts(&self, round_trips: usize, now: impl Fn() -> i64) -> Result<ClockOffset, CommError> {
        let topology = self.topology();
        let mut all = vec![0_i64; 2 * topology.hosts()];
        let others = all.as_chunks_mut::<2>().0.iter_mut().enumerate().filter(|(host, _)| *host != topology.host(0));
        for (host, told) in others {
            let Some(&peer) = topology.members(host).first() else { continue };
            if self.rank() == 0 {
                let ClockOffset { ahead, error } = self.ask_for_time(peer, round_trips, &now)?;
                *told = [ahead, error];
            } else if self.rank() == peer {
                self.tell_time(round_trips, &now)?;
            }
        }
        if topology.hosts() > 1 {
            self.broadcast(&mut all, 0, &CallOptions::default())?;
        }
        let [ahead, error] = all.as_chunks().0[topology.host(self.rank())];
        Ok(ClockOffset { ahead, error })
    }

    fn ask_for_time(&self, peer: usize, round_trips: usize, now: impl Fn() -> i64) -> Result<ClockOffset, CommError> {
        let options = CallOptions::default();
        let mut best = ClockOffset { ahead: 0, error: i64::MAX };
        for _ in 0..round_trips {
            let (asked, mut theirs) = (now(), [0_i64]);
            self.send(&[asked], peer, TAG, &options)?;
            self.receive(&mut theirs, peer, TAG, &options)?;
            let half = (now() - asked + 1) / 2;
            if half < best.error {
                best = ClockOffset { ahead: theirs[0].saturating_sub(asked + half), error: half };
            }
        }
        Ok(best)
    }

    fn tell_time(&self, round_trips: usize, now: impl Fn() -> i64) -> Result<(), CommError> {
        let options = CallOptions::default();
        for _ in 0..round_trips {
            self.receive(&mut [0_i64], 0, TAG, &options)?;
            self.send(&[now()], 0, TAG, &options)?;
        }
        Ok(())
    }
}

/// The clock that all processes of this host read. Nobody sets it; only its rate is adjusted.
fn host_ns() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::ThreadsConfig;

    /// What the ranks of a world of so many hosts find, one or two on each.
    fn on_hosts<R: Send + 'static>(hosts: usize, ranks: usize, rank: fn(&Communicator) -> R) -> Vec<R> {
        let config = ThreadsConfig { hosts, ..ThreadsConfig::default() };
        let world = Communicator::threads_with(ranks, &config).expect("threads connect");
        let threads = world.into_iter().map(|communicator| thread::spawn(move || rank(&communicator)));
        threads.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect()
    }

    #[test]
    fn a_hosts_clock_is_known_to_within_its_error() {
        // One clock, which each host reads as if it had been started at another time.
        fn hours_ahead(communicator: &Communicator) -> i64 {
            [0, 7, -3][communicator.topology().host(communicator.rank())] * 3_600_000_000_000
        }
        let clocks = on_hosts(3, 6, |communicator| {
            let ahead = hours_ahead(communicator);
            (ahead, communicator.compare_hosts(64, || host_ns() + ahead).expect("all ranks are there"))
        });
        assert_eq!([clocks[0].1, clocks[1].1], [ClockOffset::default(); 2], "they are on the host of rank 0");
        for (rank, (ahead, clock)) in clocks.iter().enumerate().skip(2) {
            assert!(clock.error > 0 && (clock.ahead - ahead).abs() <= clock.error, "rank {rank}: {clock:?}");
            let noon = Duration::from_secs(12 * 3600);
            let shown = noon.as_nanos() as i64 - ahead;
            assert!((clock.on_rank_0_ns(noon) - shown).abs() <= clock.error_ns(), "rank {rank}");
        }
    }

    /// Clocks of ranks that began days apart, on hosts whose clocks are hours apart.
    #[test]
    fn ranks_agree_what_time_it_is() {
        fn own(rank: usize) -> i64 {
            [5, -1, 9][rank] * 86_400_000_000_000
        }
        for hosts in [1, 3] {
            let clocks = on_hosts(hosts, 3, |communicator| {
                let host = communicator.topology().host(communicator.rank()) as i64 * 3_600_000_000_000;
                let clock = communicator.compare_by(64, || host_ns() + host, own(communicator.rank()));
                (host, clock.expect("all ranks are there"))
            });
            for (rank, (host, clock)) in clocks.iter().enumerate() {
                let ahead = host - own(rank) + own(0);
                assert!((clock.ahead - ahead).abs() <= clock.error, "{hosts} hosts, rank {rank}: {clock:?}, {ahead}");
                let is_read = hosts == 1 && clock.error == READING_NS || hosts == 3 && clock.error > READING_NS;
                assert!(if rank == 0 { clock.error == 0 } else { is_read }, "{clock:?}");
            }
        }
    }

    #[test]
    fn a_rank_knows_when_its_clock_began() {
        let clocks = on_hosts(1, 2, |communicator| communicator.compare_clocks(1).expect("all ranks are there"));
        // Both have connected within a minute, and not with the host's first second.
        assert!(clocks[1].error == READING_NS && clocks[1].ahead.abs() < 60_000_000_000, "{clocks:?}");
    }

    #[test]
    fn no_clock_is_too_far_away() {
        let clocks = on_hosts(2, 2, |communicator| {
            let never = if communicator.rank() == 0 { 1_000_000 } else { i64::MIN };
            communicator.compare_hosts(2, || never).expect("all ranks are there")
        });
        assert_eq!(clocks[1].ahead, i64::MIN);
        assert_eq!(clocks[1].on_rank_0_ns(Duration::from_secs(1)), i64::MAX);
    }
}
