use paceline_plan::{CollectiveKind, LinkCost, LinkCosts, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::arithmetic::{ahead, behind};
use crate::rank_order::reduce_in_rank_order;
use crate::{
    Algorithm, FlatAlgorithm, KernelId, Place, Program, RankBuilder, RankProgram, Slot, Space, TileSeconds, Topology,
};

/// `direct-scatter` in which the sums travel in another encoding: reduce in f32, gather in bf16.
///
/// Rank p gets part p of everyone, combines it in the order of the ranks, encodes the sum and sends the code to
/// everyone; all decode all parts, their own as well, so that all ranks hold the same bits. Where half of the bytes are
/// saved, a quarter of the traffic is. Not in the registry, because it needs kernels.
///
/// `encode` and `decode` are the caller's kernels: `encode` writes at most as many bytes as it reads, `decode` as many
/// as the part has.
///
/// Source: the two-shot all-reduce of GPU libraries; re-encoding between its halves as in Dettmers, "8-bit
/// approximations for parallelism in deep learning" (2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReEncodingAllReduce {
    /// From the sum to the code.
    pub encode: KernelId,
    /// From the code to the result.
    pub decode: KernelId,
    /// The length of the code over that of the sum (½ for f32 in bf16): only the formulas ask.
    pub share: f64,
}

/// The program of [`ReEncodingAllReduce`].
///
/// ```
/// use paceline_collective::{Capacity, KernelId, re_encoding_all_reduce, verify};
///
/// let program = re_encoding_all_reduce(4, KernelId(1), KernelId(2));
/// assert_eq!(verify(&program, Capacity::Rendezvous)?.rounds, 2);
/// # Ok::<(), paceline_collective::Refusal>(())
/// ```
pub fn re_encoding_all_reduce(world: usize, encode: KernelId, decode: KernelId) -> Program {
    Algorithm::program(&ReEncodingAllReduce { encode, decode, share: 1.0 }, &Topology::flat(world), 0)
}

impl ReEncodingAllReduce {
    /// The closed formula for a world of this size on links that are all alike: see [`Algorithm::seconds`].
    pub fn seconds(&self, world: usize, bytes: usize, tile_bytes: usize, link: &LinkCost) -> f64 {
        Algorithm::seconds(self, &Topology::flat(world), bytes, tile_bytes, &LinkCosts::uniform(*link))
    }
}

impl FlatAlgorithm for ReEncodingAllReduce {
    fn name(&self) -> &'static str {
        "re-encoding"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn parts(&self, world: usize) -> u32 {
        world as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let place = Place { kind: CollectiveKind::AllReduce, rank, world, root };
        let mut builder = RankBuilder::new(place, world as u32);
        let part = |space, part: usize| Slot::of_parts(space, 0, part as u32, 1);
        if world > 1 {
            // In the order of the ranks, as they are taken in.
            for to in (0..world).filter(|&to| to != rank) {
                builder.send(to, part(Space::Input, to));
            }
        }
        let (own, code) = (part(Space::Output, rank), part(Space::Scratch, rank));
        if world > 1 {
            reduce_in_rank_order(&mut builder, rank, world, part(Space::Input, rank), code, own);
        } else {
            builder.copy(part(Space::Input, rank), own);
        }
        builder.map(self.encode, own, code);
        for offset in 1..world {
            builder.send(ahead(rank, offset, world), code);
        }
        builder.map(self.decode, code, own);
        for offset in 1..world {
            let from = behind(rank, offset, world);
            builder.receive(from, part(Space::Scratch, from));
            builder.map(self.decode, part(Space::Scratch, from), part(Space::Output, from));
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1) * world
    }

    fn rounds(&self, world: usize) -> usize {
        if world == 1 { 0 } else { 2 }
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (1.0 + self.share) * (world - 1) as f64 / world as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (peers, part) = ((world - 1) as f64, bytes / world as f64);
        // Encode one part, decode all.
        let kernels = (world + 1) as f64 * part * link.gamma;
        if world == 1 {
            return TileSeconds::pipeline(kernels, kernels);
        }
        let next = peers * (busy_folding(link, part) + busy(link, self.share * part)) + kernels;
        // Everyone waits for rank 0's message first.
        let skew = (peers - 1.0) * busy_folding(link, part);
        TileSeconds::with_gaps(2.0 * link.latency() + next + skew, next, link.latency())
    }
}
