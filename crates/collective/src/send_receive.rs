//! Send-receive: one rank's data goes to one other rank.

use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, sent};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Point to point: rank 0 of the pair sends, rank 1 receives.
///
/// Source: one message of Hockney's model (1994).
pub(crate) struct PointToPoint;

impl FlatAlgorithm for PointToPoint {
    fn name(&self) -> &'static str {
        "point-to-point"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::SendReceive
    }

    fn supports(&self, world: usize) -> bool {
        world == 2
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        if rank == 0 {
            builder.send(1, input);
        } else {
            builder.receive(0, output);
        }
        builder.finish()
    }

    fn messages(&self, _world: usize) -> usize {
        1
    }

    fn rounds(&self, _world: usize) -> usize {
        1
    }

    fn bytes_sent(&self, _world: usize, bytes: f64) -> f64 {
        bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, _world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        TileSeconds::pipeline(sent(link, bytes), busy(link, bytes))
    }
}
