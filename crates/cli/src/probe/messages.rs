//! Times of single messages within a host and between hosts, by ping-pong.

use std::time::Instant;

use paceline_comm::{Buffer, CallOptions, CommError, Communicator};

use crate::bench::median;

/// Sizes of messages, and as far as they do not take too long: from one that is nearly all alpha to ones that are larger
/// than any tile.
const SIZES: [usize; 7] = [64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// So many of them are measured however long they take: a line needs a long end.
const SIZES_MIN: usize = 4;
/// A message that takes longer is the last one.
const MESSAGE_SECONDS_MAX: f64 = 0.05;
/// A size has about so much time in a round.
const SIZE_SECONDS: f64 = 10e-3;
const REPETITIONS_MAX: usize = 32;

/// What one class of links needs for a ping-pong, on one rank.
pub struct Messages {
    /// The ranks among which pairs are made.
    group: Communicator,
    buffers: Option<[Buffer<u8>; 2]>,
    /// Bytes, and how often in a round; the same on all ranks of the world.
    sizes: Vec<(usize, usize)>,
}

/// What one round has found on one rank; zeros where it had no partner.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// By size.
    pub message_s: Vec<f64>,
    /// Of the largest message in both directions at once.
    pub both_ways_s: f64,
}

/// The other end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Partner {
    rank: usize,
    /// Does this rank send first?
    first: bool,
}

impl Messages {
    /// Among the ranks of a group, this one included. Says nothing to the others.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(group: Communicator) -> Result<Messages, CommError> {
        let largest = SIZES[SIZES.len() - 1];
        let buffers = match group.world_size() {
            1 => None,
            _ => Some([group.alloc(largest)?, group.alloc(largest)?]),
        };
        Ok(Messages { group, buffers, sizes: SIZES.map(|bytes| (bytes, 1)).to_vec() })
    }

    /// The ranks among which pairs are made.
    pub fn group(&self) -> &Communicator {
        &self.group
    }

    /// Bytes of the messages that a round measures.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().map(|(bytes, _)| *bytes)
    }

    /// Chooses sizes and repetitions by what single messages take, which must be the same numbers on all ranks.
    pub fn choose(&mut self, message_s: &[f64]) {
        let too_long = message_s.iter().position(|&seconds| seconds > MESSAGE_SECONDS_MAX);
        let count = too_long.map_or(SIZES.len(), |last| (last + 1).max(SIZES_MIN));
        let often = |seconds: f64| ((SIZE_SECONDS / seconds.max(1e-9)) as usize).clamp(1, REPETITIONS_MAX);
        self.sizes = SIZES.into_iter().zip(message_s).map(|(bytes, &seconds)| (bytes, often(seconds))).collect();
        self.sizes.truncate(count);
    }

    /// Measures a round, on all ranks of the group at the same time. Pairs change from round to round, so that an odd rank
    /// has its turn.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn measure(&mut self, round: usize) -> Result<Times, CommError> {
        let mut times = Times { message_s: vec![0.0; self.sizes.len()], both_ways_s: 0.0 };
        let Some(partner) = partner(self.group.rank(), self.group.world_size(), round) else { return Ok(times) };
        let Some([mut data, other]) = self.buffers.take() else { return Ok(times) };
        let group = &self.group;
        for (seconds, &(bytes, often)) in times.message_s.iter_mut().zip(&self.sizes) {
            *seconds = ping_pong(group, partner, &mut data[..bytes], often)?;
        }
        let largest = self.sizes.last().map_or(0, |(bytes, _)| *bytes);
        let (seconds, other) = both_ways(group, partner, &mut data[..largest], other)?;
        times.both_ways_s = seconds;
        self.buffers = Some([data, other]);
        Ok(times)
    }
}

/// In even rounds 0 with 1, 2 with 3, …; in odd ones 1 with 2, 3 with 4, …, the last one with 0 of an even number.
fn partner(rank: usize, ranks: usize, round: usize) -> Option<Partner> {
    let offset = if ranks > 2 { round % 2 } else { 0 };
    let place = (rank + ranks - offset) % ranks;
    let (other, first) = if place.is_multiple_of(2) { (place + 1, true) } else { (place - 1, false) };
    (other < ranks).then(|| Partner { rank: (other + offset) % ranks, first })
}

fn options(chunk_bytes: usize) -> CallOptions {
    CallOptions { chunk_bytes: Some(chunk_bytes), ..CallOptions::default() }
}

/// Half of a round trip of a message in one piece: the median of so many, after one that does not count.
fn ping_pong(group: &Communicator, partner: Partner, data: &mut [u8], often: usize) -> Result<f64, CommError> {
    let options = options(data.len());
    let mut seconds = Vec::with_capacity(often + 1);
    for _ in 0..=often {
        let start = Instant::now();
        if partner.first {
            group.send(data, partner.rank, 0, &options)?;
            group.receive(data, partner.rank, 0, &options)?;
        } else {
            group.receive(data, partner.rank, 0, &options)?;
            group.send(data, partner.rank, 0, &options)?;
        }
        seconds.push(start.elapsed().as_secs_f64() / 2.0);
    }
    Ok(median(&seconds[1..]).unwrap_or_default())
}

/// Seconds until as many bytes have come as have gone, and the buffer that was sent.
fn both_ways(
    group: &Communicator,
    partner: Partner,
    into: &mut [u8],
    from: Buffer<u8>,
) -> Result<(f64, Buffer<u8>), CommError> {
    let options = options(into.len());
    // Both begin together, but for a latency.
    ping_pong(group, partner, &mut into[..1], 0)?;
    let from = from.split(&[into.len()]).remove(0);
    let start = Instant::now();
    let pending = group.start_send(from, partner.rank, 1, &options)?;
    group.receive(into, partner.rank, 1, &options)?;
    let from = pending.wait()?;
    Ok((start.elapsed().as_secs_f64(), from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_partner_in_one_of_two_rounds() {
        for ranks in 1..9 {
            for round in 0..2 {
                for rank in 0..ranks {
                    let Some(found) = partner(rank, ranks, round) else { continue };
                    let back = partner(found.rank, ranks, round).expect("it has one, too");
                    assert!(back.rank == rank && back.first != found.first && found.rank != rank, "{ranks}: {rank}");
                }
            }
            let alone = |rank| (0..2).all(|round| partner(rank, ranks, round).is_none());
            assert!(ranks == 1 || !(0..ranks).any(alone), "{ranks}");
        }
        assert_eq!(partner(1, 2, 1), Some(Partner { rank: 0, first: false }));
        assert_eq!(partner(4, 5, 0), None);
        assert_eq!(partner(0, 4, 1), Some(Partner { rank: 3, first: false }));
    }

    #[test]
    fn slow_links_get_fewer_sizes_and_repetitions() {
        let mut messages = Messages::new(Communicator::solo().expect("a world of one")).expect("no memory is needed");
        messages.choose(&[1e-6, 1e-5, 1e-3, 4e-3, 0.02, 0.08, 0.3]);
        assert_eq!(messages.sizes.iter().map(|(_, often)| *often).collect::<Vec<_>>(), [32, 32, 10, 2, 1, 1]);
        assert_eq!(messages.sizes().last(), Some(1 << 20));
        messages.choose(&[0.1; 7]);
        assert_eq!(messages.sizes().count(), SIZES_MIN);
    }

    #[test]
    fn two_threads_find_times() {
        let world = Communicator::threads(2).expect("threads connect");
        std::thread::scope(|scope| {
            for communicator in world {
                scope.spawn(move || {
                    let mut messages = Messages::new(communicator).expect("memory");
                    for round in 0..3 {
                        let times = messages.measure(round).expect("both ranks measure");
                        let all = times.message_s.iter().chain([&times.both_ways_s]);
                        assert!(all.clone().all(|&seconds| seconds > 0.0 && seconds < 10.0), "{times:?}");
                    }
                });
            }
        });
    }
}
