use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, sent};
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Pipelined chain: every rank passes each tile on to the next as soon as it has it. Every byte leaves a rank once.
///
/// Source: van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm" (1997),
/// on pipelining.
pub(crate) struct Pipelined;

impl FlatAlgorithm for Pipelined {
    fn name(&self) -> &'static str {
        "pipelined"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Broadcast
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(vec![ahead(rank, 1, world)])
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let (previous, next) = (behind(rank, 1, world), ahead(rank, 1, world));
        if rank != root {
            builder.receive(previous, output);
        }
        if next != root {
            builder.send(next, if rank == root { input } else { output });
        }
        if rank == root {
            builder.copy(input, output);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        world - 1
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        if world > 1 { bytes } else { 0.0 }
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        TileSeconds::passed_on((world - 1) as f64 * sent(link, bytes), busy(link, bytes), link)
    }
}
