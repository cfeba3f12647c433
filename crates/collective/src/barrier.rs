//! Barrier: nobody leaves before everybody has come.

use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::chained;
use crate::arithmetic::{ahead, behind, log2_ceil};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Dissemination: in round k every rank tells the rank 2ᵏ places ahead that it, and all that it has heard of, have come.
///
/// Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
pub(crate) struct Dissemination;

impl FlatAlgorithm for Dissemination {
    fn name(&self) -> &'static str {
        "dissemination"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Barrier
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some((0..log2_ceil(world)).map(|round| ahead(rank, 1 << round, world)).collect())
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let input = builder.tile(Space::Input, 0);
        let mut heard = Vec::new();
        for round in 0..log2_ceil(world) {
            heard.iter().for_each(|&step| builder.wait_for(step));
            builder.send(ahead(rank, 1 << round, world), input);
            // The messages have no content; what matters is that they come.
            let nothing = builder.tile(Space::Scratch, round);
            heard.push(builder.receive(behind(rank, 1 << round, world), nothing));
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        log2_ceil(world) * world
    }

    fn rounds(&self, world: usize) -> usize {
        log2_ceil(world)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        log2_ceil(world) as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let rounds = log2_ceil(world) as f64;
        chained(rounds, link, rounds * link.beta * bytes)
    }
}
