//! Which samples a rank sees when.

use std::ops::Range;

use crate::random::Random;

/// Distributes `samples` over `world_size` ranks, epoch by epoch.
///
/// Each epoch has its own permutation of the samples, the same on every rank. It is cut into joined batches, and each
/// joined batch into one contiguous part per rank, so every sample is seen by exactly one rank once per epoch, and the
/// joined batches are the same for every world size. The last joined batch of an epoch is shorter where the batch does
/// not divide the samples; the parts of a batch differ by at most one sample, and may be empty.
#[derive(Clone, Debug)]
pub struct Sharding {
    samples: usize,
    world_size: usize,
    global_batch: usize,
    seed: u64,
}

impl Sharding {
    /// `global_batch` is the size of a joined batch.
    ///
    /// # Panics
    /// If `global_batch` or `world_size` is 0.
    pub fn new(samples: usize, world_size: usize, global_batch: usize, seed: u64) -> Self {
        assert!(global_batch > 0 && world_size > 0, "a batch and a world hold at least one");
        Sharding { samples, world_size, global_batch, seed }
    }

    /// Joined batches per epoch.
    pub fn batches(&self) -> usize {
        self.samples.div_ceil(self.global_batch)
    }

    /// The order of the samples in `epoch`. O(samples).
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        Random::new(self.seed, ORDER ^ epoch as u64).permutation(self.samples)
    }

    /// The positions in [`order`](Self::order) that make up joined batch `batch`.
    pub fn joined(&self, batch: usize) -> Range<usize> {
        let start = batch * self.global_batch;
        start..(start + self.global_batch).min(self.samples)
    }

    /// The positions of it that are `rank`'s.
    pub fn part(&self, batch: usize, rank: usize) -> Range<usize> {
        let joined = self.joined(batch);
        let part = split(joined.len(), self.world_size, rank);
        joined.start + part.start..joined.start + part.end
    }
}

/// The part of `0..count` that is `rank`'s when it is divided evenly; the first ranks take one more where it does not
/// divide.
pub(crate) fn split(count: usize, world_size: usize, rank: usize) -> Range<usize> {
    let (each, more) = (count / world_size, count % world_size);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// Sets the stream of the sample order apart from that of the initial parameters.
const ORDER: u64 = 0x5eed_0de4 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_once_per_epoch_whatever_the_sizes() {
        for (samples, global_batch) in [(0, 3), (1, 1), (7, 3), (24, 8), (103, 10), (10, 64)] {
            for world_size in 1..=6 {
                let sharding = Sharding::new(samples, world_size, global_batch, 5);
                let order = sharding.order(2);
                let mut seen = Vec::new();
                for batch in 0..sharding.batches() {
                    let parts: Vec<_> = (0..world_size).map(|rank| sharding.part(batch, rank)).collect();
                    let sizes: Vec<_> = parts.iter().map(Range::len).collect();
                    assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
                    assert_eq!(sizes.iter().sum::<usize>(), sharding.joined(batch).len());
                    seen.extend(parts.into_iter().flatten().map(|position| order[position]));
                }
                // Rank by rank in a batch, batch by batch: exactly the epoch's order, for every world size.
                assert_eq!(seen, order);
                seen.sort_unstable();
                assert_eq!(seen, (0..samples).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_order_changes_with_epoch_and_seed_only() {
        let order = |epoch, seed, world_size| Sharding::new(50, world_size, 8, seed).order(epoch);
        assert_eq!(order(0, 1, 1), order(0, 1, 4));
        assert_ne!(order(0, 1, 1), order(1, 1, 1));
        assert_ne!(order(0, 1, 1), order(0, 2, 1));
        assert_ne!(order(0, 1, 1), (0..50).collect::<Vec<_>>());
    }
}
