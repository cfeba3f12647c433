//! Beta, from a ring all-reduce in which all ranks of a group send and receive at the same time, as they do in training:
//! where they share cores or memory, a byte takes longer than a single pair of them would show.

use std::time::Instant;

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, LinkCost, Reduction};

use crate::bench::median;

/// The ring takes no more memory on a rank.
const BYTES_MAX: usize = 64 << 20;
/// A ring that is repeated takes no more time in a round, about.
const SECONDS: f64 = 20e-3;
const REPETITIONS_MAX: usize = 5;

/// A ring among the ranks of a group, on one of them.
pub struct Ring {
    group: Communicator,
    /// What goes to the neighbour in one step.
    part_bytes: usize,
    buffer: Option<Buffer<f32>>,
    often: usize,
}

impl Ring {
    /// With messages of so many bytes, which take so many seconds; both are the same on all ranks. Nothing is done in a
    /// group of one.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(group: &Communicator, message_bytes: usize, message_s: f64) -> Result<Ring, CommError> {
        let ranks = group.world_size();
        let elements = message_bytes.min(BYTES_MAX / ranks) / size_of::<f32>();
        let buffer = if ranks > 1 { Some(group.alloc(elements * ranks)?) } else { None };
        let seconds = steps(ranks) * message_s;
        let often = ((SECONDS / seconds.max(1e-9)) as usize).clamp(1, REPETITIONS_MAX);
        Ok(Ring { group: group.clone(), part_bytes: elements * size_of::<f32>(), buffer, often })
    }

    /// Beta, on all ranks of the group at the same time; 0 in a group of one. From T = 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ
    /// (docs/algorithms.md), one tile, the median of some.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn beta(&mut self, link: &LinkCost) -> Result<f64, CommError> {
        let Some(buffer) = &mut self.buffer else { return Ok(0.0) };
        let options =
            CallOptions { chunk_bytes: Some(size_of_val(&**buffer).max(1)), ..CallOptions::algorithm("ring") };
        let mut seconds = Vec::with_capacity(self.often);
        for _ in 0..self.often {
            self.group.barrier(&CallOptions::default())?;
            let start = Instant::now();
            self.group.all_reduce(buffer, Reduction::Sum, &options)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let ring_s = median(&seconds).unwrap_or_default();
        Ok(beta(ring_s, self.group.world_size(), self.part_bytes, link))
    }
}

/// Messages of a ring, one after the other.
fn steps(ranks: usize) -> f64 {
    2.0 * (ranks as f64 - 1.0)
}

/// Half of the steps add what comes.
fn beta(ring_s: f64, ranks: usize, part_bytes: usize, link: &LinkCost) -> f64 {
    let step_s = ring_s / steps(ranks) - link.alpha;
    (step_s / part_bytes.max(1) as f64 - link.gamma / 2.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use paceline_collective::Topology;
    use paceline_collective::registry::find;
    use paceline_plan::{CollectiveKind, LinkCosts};

    use super::*;

    #[test]
    fn the_beta_of_the_formula_is_found_again() {
        let link = LinkCost { alpha: 50e-6, overhead: 0.0, beta: 0.8e-9, gamma: 0.1e-9 };
        let ring = find(CollectiveKind::AllReduce, "ring").expect("there is one");
        for ranks in [2, 3, 8] {
            let bytes = ranks << 20;
            let seconds = ring.seconds(&Topology::flat(ranks), bytes, bytes, &LinkCosts::uniform(link));
            let found = beta(seconds, ranks, 1 << 20, &link);
            assert!((found / link.beta - 1.0).abs() < 1e-6, "{ranks}: {found:e}");
        }
        assert_eq!(beta(0.0, 2, 1 << 20, &link), 0.0);
    }

    #[test]
    fn three_threads_find_a_beta() {
        let world = Communicator::threads(3).expect("threads connect");
        std::thread::scope(|scope| {
            for communicator in world {
                scope.spawn(move || {
                    let mut ring = Ring::new(&communicator, 4 << 20, 1e-3).expect("memory");
                    assert_eq!((ring.part_bytes, ring.often), (4 << 20, 5));
                    let beta = ring.beta(&LinkCost::hockney(0.0, 0.0, 0.0)).expect("all ranks call");
                    assert!(beta > 0.0 && beta < 1e-6, "{beta:e}");
                });
            }
        });
        let alone = Communicator::solo().expect("a world of one");
        let mut ring = Ring::new(&alone, 4 << 20, 1e-3).expect("no memory is needed");
        assert_eq!(ring.beta(&LinkCost::hockney(0.0, 0.0, 0.0)).expect("nothing is done"), 0.0);
    }
}
