//! By how much the clock of one host is ahead of another's: each sends the other the time, and whoever began knows how long that was under way.
//!
//! Half of the way there and back is what a message takes, if both take as long; the shorter both are, the less can it be wrong (Mills, "Internet
//! time synchronization", 1991; Cristian, "Probabilistic clock synchronization", 1989).

use paceline_comm::{CallOptions, CommError, Communicator};

/// Of so many exchanges with each host the shortest counts.
const EXCHANGES: usize = 5;

/// Of messages that nobody else sends.
const TAG: u32 = u32::MAX;

/// By how many seconds the clock of rank 0's host is ahead of that of this rank's. All ranks call it; one rank of each host exchanges
/// messages with rank 0, host by host. `now`: seconds of this host's clock.
///
/// # Errors
/// As [`Communicator::send`] and [`Communicator::broadcast`].
pub(super) fn ahead_s(communicator: &Communicator, now: impl Fn() -> f64) -> Result<f64, CommError> {
    let (topology, rank) = (communicator.topology(), communicator.rank());
    if topology.hosts() <= 1 {
        return Ok(0.0);
    }
    let mut ahead_s = vec![0.0; topology.hosts()];
    for (host, ahead_s) in ahead_s.iter_mut().enumerate().filter(|(host, _)| *host != topology.host(0)) {
        let Some(&other) = topology.members(host).first() else { continue };
        if rank == 0 {
            *ahead_s = ask(communicator, other, &now)?;
        } else if rank == other {
            answer(communicator, &now)?;
        }
    }
    communicator.broadcast(&mut ahead_s, 0, &CallOptions::default())?;
    Ok(ahead_s[topology.host(rank)])
}

fn ask(communicator: &Communicator, other: usize, now: &impl Fn() -> f64) -> Result<f64, CommError> {
    let options = CallOptions::default();
    let (mut shortest_s, mut ahead_s) = (f64::INFINITY, 0.0);
    for _ in 0..EXCHANGES {
        let asked = now();
        communicator.send(&[asked], other, TAG, &options)?;
        let mut answer = [0.0; 2];
        communicator.receive(&mut answer, other, TAG, &options)?;
        let (answered, [came, went]) = (now(), answer);
        let under_way_s = (answered - asked) - (went - came);
        if under_way_s < shortest_s {
            (shortest_s, ahead_s) = (under_way_s, 0.5 * ((asked - came) + (answered - went)));
        }
    }
    Ok(ahead_s)
}

fn answer(communicator: &Communicator, now: &impl Fn() -> f64) -> Result<(), CommError> {
    let options = CallOptions::default();
    for _ in 0..EXCHANGES {
        communicator.receive(&mut [0.0f64], 0, TAG, &options)?;
        let came = now();
        communicator.send(&[came, now()], 0, TAG, &options)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::on_ranks::{on_hosts, on_ranks};

    /// Each host's clock is an hour behind the one before it.
    #[test]
    fn hosts_learn_by_how_much_they_are_behind() {
        let began = Instant::now();
        let behind = on_hosts(4, "flat", |communicator| {
            let hour_s = 3600.0 * communicator.rank() as f64;
            let ahead_s = ahead_s(&communicator, || began.elapsed().as_secs_f64() - hour_s).unwrap();
            (ahead_s, ahead_s - hour_s)
        });
        assert_eq!(behind[0].0, 0.0);
        // A message takes some microseconds, and on a busy machine some milliseconds.
        assert!(behind.iter().all(|(_, wrong_s)| wrong_s.abs() < 0.1), "{behind:?}");
    }

    #[test]
    fn on_one_host_there_is_nothing_to_learn() {
        assert_eq!(on_ranks(3, |communicator| ahead_s(&communicator, || 0.0).unwrap()), [0.0; 3]);
    }
}
