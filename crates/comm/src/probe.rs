//! What the links of this world cost: measured by collectives of its own, agreed by all ranks.

use std::time::Instant;

use paceline_collective::kernels::Elementwise;
use paceline_plan::{DataType, LinkCost, LinkCosts, Reduction};

use crate::{CallOptions, CommError, Communicator};

/// Rounds of a few small all-reduces and a large one: spread over some milliseconds, so that another process on the
/// same processors does not spoil all of them.
const ROUNDS: usize = 8;
const SMALL_CALLS: usize = 8;

/// The large one is far beyond eager messages and caches of one core, so it shows the bandwidth.
const LARGE_BYTES: usize = 1 << 20;

/// Tiles of the small all-reduce that shows how fast messages follow each other: as many as are in flight at once.
const TILES: usize = 4;

impl Communicator {
    /// Measures alpha, overhead, beta and gamma of the links within the hosts and between them, and makes all ranks of
    /// the world agree on them: from then on `algorithm=auto` chooses by them. All ranks of the *world* call it, at the
    /// same time; it takes some milliseconds. Links of a kind that the world has not count as the others.
    ///
    /// From the times of all-reduces of S bytes (`docs/algorithms.md`): a ring, T = 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ,
    /// at two sizes; and a small direct one, T = α + (n−2)·overhead. Between two ranks, T tiles of one instead of one
    /// cost (T−1)·overhead more. Gamma is measured on its own. The agreed values are the largest of any rank.
    ///
    /// # Errors
    /// As any collective.
    pub fn probe(&self) -> Result<LinkCosts, CommError> {
        let (topology, gamma) = (self.topology().clone(), seconds_per_byte_reduced());
        let mut costs = [0.0; 7];
        if topology.is_flat() {
            let measured = self.measure(gamma)?;
            costs[..3].copy_from_slice(&measured);
            costs[3..6].copy_from_slice(&measured);
        } else {
            // All hosts at once; then one rank of each.
            let host = topology.host(self.rank()) as u32;
            if let Some(within) = self.split(Some(host), 0)? {
                costs[..3].copy_from_slice(&within.measure(gamma)?);
            }
            let first = topology.index_on_host(self.rank()) == 0;
            if let Some(across) = self.split(first.then_some(0), 0)? {
                costs[3..6].copy_from_slice(&across.measure(gamma)?);
            }
        }
        costs[6] = gamma;
        self.all_reduce(&mut costs, Reduction::Max, &CallOptions::algorithm("ring"))?;
        let link = |of: &[f64]| LinkCost { alpha: of[0], overhead: of[1], beta: of[2], gamma: costs[6] };
        let costs = LinkCosts { within: link(&costs[..3]), across: link(&costs[3..6]) };
        self.world.set_link_costs(costs);
        Ok(costs)
    }

    /// Alpha, overhead and beta between the ranks of this group; zeros if it has only one.
    fn measure(&self, gamma: f64) -> Result<[f64; 3], CommError> {
        let ranks = self.world_size();
        if ranks == 1 {
            return Ok([0.0; 3]);
        }
        let mut small_data = self.alloc(ranks.max(TILES))?;
        let (mut large_data, element) = (self.alloc(LARGE_BYTES / size_of::<f32>())?, size_of::<f32>());
        let [mut ring, mut direct, mut tiled, mut large] = [f64::INFINITY; 4];
        for _ in 0..ROUNDS {
            for _ in 0..SMALL_CALLS {
                ring = ring.min(self.seconds("ring", &mut small_data[..ranks], LARGE_BYTES)?);
                direct = direct.min(self.seconds("direct", &mut small_data[..TILES], LARGE_BYTES)?);
                if ranks == 2 {
                    tiled = tiled.min(self.seconds("direct", &mut small_data[..TILES], element)?);
                }
            }
            large = large.min(self.seconds("ring", &mut large_data, LARGE_BYTES)?);
        }
        let steps = 2.0 * (ranks as f64 - 1.0);
        let alpha = ring / steps;
        let overhead = match ranks {
            2 => (tiled - direct) / (TILES as f64 - 1.0),
            _ => (direct - alpha) / (ranks as f64 - 2.0),
        };
        let part = LARGE_BYTES as f64 / ranks as f64;
        let beta = ((large - ring) / (steps * part) - gamma / 2.0).max(1e-12);
        Ok([alpha, overhead.clamp(0.0, alpha), beta])
    }

    fn seconds(&self, algorithm: &str, data: &mut [f32], tile_bytes: usize) -> Result<f64, CommError> {
        let options = CallOptions { chunk_bytes: Some(tile_bytes), ..CallOptions::algorithm(algorithm) };
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
