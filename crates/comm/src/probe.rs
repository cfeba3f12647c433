//! What the links of this world cost: measured by collectives of its own, agreed by all ranks.

use std::time::Instant;

use paceline_collective::kernels::Elementwise;
use paceline_plan::{DataType, LinkCost, Reduction};

use crate::{CallOptions, CommError, Communicator};

/// Rounds of a few small all-reduces and a large one: spread over some milliseconds, so that another process on the
/// same processors does not spoil all of them.
const ROUNDS: usize = 8;
const SMALL_CALLS: usize = 8;

/// The large one is far beyond eager messages and caches of one core, so it shows the bandwidth.
const LARGE_BYTES: usize = 1 << 20;

impl Communicator {
    /// Measures alpha, beta and gamma of the links, and makes all ranks of the world agree on them: from then on
    /// `algorithm=auto` chooses by them. All ranks of the *world* call it, at the same time; it takes a few milliseconds.
    ///
    /// From the time of a ring all-reduce, T(S) = 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ (Thakur, Rabenseifner and Gropp
    /// 2005, §4), at two sizes; gamma is measured on its own. The agreed values are the largest of any rank.
    ///
    /// # Errors
    /// As any collective.
    pub fn probe(&self) -> Result<LinkCost, CommError> {
        let world = self.world_size();
        let gamma = seconds_per_byte_reduced();
        let mut cost = [0.0, 0.0, gamma];
        if world > 1 {
            let steps = 2.0 * (world as f64 - 1.0);
            let (mut small_data, mut large_data) = (self.alloc(world)?, self.alloc(LARGE_BYTES / size_of::<f32>())?);
            let (mut small, mut large) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..ROUNDS {
                for _ in 0..SMALL_CALLS {
                    small = small.min(self.seconds_of_ring(&mut small_data)?);
                }
                large = large.min(self.seconds_of_ring(&mut large_data)?);
            }
            let bytes = LARGE_BYTES as f64 / world as f64;
            cost[0] = small / steps;
            cost[1] = ((large - small) / (steps * bytes) - gamma / 2.0).max(1e-12);
        }
        self.all_reduce(&mut cost, Reduction::Max, &CallOptions::algorithm("ring"))?;
        let cost = LinkCost { alpha: cost[0], beta: cost[1], gamma: cost[2] };
        self.world.set_link_cost(cost);
        Ok(cost)
    }

    fn seconds_of_ring(&self, data: &mut [f32]) -> Result<f64, CommError> {
        let options = CallOptions { chunk_bytes: Some(LARGE_BYTES), ..CallOptions::algorithm("ring") };
        let start = Instant::now();
        self.all_reduce(data, Reduction::Sum, &options)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Gamma: the time to combine a byte, of operands that lie in the second-level cache.
fn seconds_per_byte_reduced() -> f64 {
    const BYTES: usize = 256 << 10;
    let sum = Elementwise { data_type: DataType::F32, reduction: Reduction::Sum, divisor: 1 };
    let (mut into, other) = (vec![0u8; BYTES], vec![0u8; BYTES]);
    let mut least = f64::INFINITY;
    for _ in 0..8 {
        let start = Instant::now();
        sum.combine_in_place(&mut into, &other);
        least = least.min(start.elapsed().as_secs_f64());
    }
    least / BYTES as f64
}
