use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::rank_order::reduce_in_rank_order;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Linear: everyone sends its contribution to rank 0, which adds them in the order of the ranks and sends everyone the
/// result. No other algorithm sends fewer messages, and each of them wakes a rank that may share its processor with others.
///
/// Source: the linear reduce and broadcast of MPI libraries.
pub(crate) struct Linear;

impl FlatAlgorithm for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        if rank > 0 {
            builder.send(0, input);
            builder.receive(0, output);
        } else {
            let scratch = builder.tile(Space::Scratch, 0);
            reduce_in_rank_order(&mut builder, rank, world, input, scratch, output);
            for peer in 1..world {
                builder.send(peer, output);
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1)
    }

    fn rounds(&self, world: usize) -> usize {
        if world > 1 { 2 } else { 0 }
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        let peers = (world - 1) as f64;
        let (gathering, spreading) = (peers * busy_folding(link, bytes), peers * busy(link, bytes));
        TileSeconds::pipeline(2.0 * link.latency() + gathering + spreading, gathering.max(spreading))
    }
}
