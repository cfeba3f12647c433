use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, chained};
use crate::doubling::{Doubling, Role};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Recursive halving: partners exchange halves of the blocks that they still share, the farthest first.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), on reduce-scatter.
pub(crate) struct RecursiveHalving;

impl FlatAlgorithm for RecursiveHalving {
    fn name(&self) -> &'static str {
        "recursive-halving"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::ReduceScatter
    }

    // Several blocks travel as one message and are folded in scratch.
    fn variable_counts(&self) -> bool {
        false
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let doubling = Doubling::of(world);
        let output = builder.tile(Space::Output, 0);
        match doubling.role(rank) {
            Role::Folded { proxy } => {
                let all = builder.tiles(Space::Input, 0, world);
                builder.send(proxy, all);
                builder.receive(proxy, output);
            }
            Role::Participant { index, acts_for } => {
                let mut source = Space::Input;
                if let Some(folded) = acts_for {
                    source = Space::Scratch;
                    let (all, into) = (builder.tiles(Space::Input, 0, world), builder.tiles(Space::Scratch, 0, world));
                    builder.receive_fold(folded, all, into, false);
                }
                halve(&mut builder, &doubling, index, source, acts_for.is_none().then_some(output));
                if let Some(folded) = acts_for {
                    let (own, other) = (builder.tile(Space::Scratch, rank), builder.tile(Space::Scratch, folded));
                    builder.send(folded, other);
                    builder.copy(own, output);
                }
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        let doubling = Doubling::of(world);
        2 * doubling.folded + doubling.participants * doubling.exchanges()
    }

    fn rounds(&self, world: usize) -> usize {
        Doubling::of(world).rounds()
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        let doubling = Doubling::of(world);
        match doubling.folded {
            0 => (world - 1) as f64 * bytes,
            // A rank that sits out sends everything, unless a participant that acts for two or one sends more.
            _ => world as f64 * bytes,
        }
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let doubling = Doubling::of(world);
        let exchanges = doubling.exchanges() as f64;
        if doubling.folded == 0 {
            return chained(exchanges, link, (world - 1) as f64 * bytes * (link.beta + link.gamma));
        }
        // Participant 0 takes in all blocks beforehand, and then in each exchange those of the ranks that it and the
        // participants next to it act for.
        let kept: usize = (0..doubling.exchanges()).map(|bit| (1 << bit) + doubling.folded.min(1 << bit)).sum();
        let taken_in = chained(exchanges + 1.0, link, (world + kept) as f64 * bytes * (link.beta + link.gamma));
        // The own block is copied while the other one leaves.
        let first = doubling.rounds() as f64 * link.latency() + taken_in.next + busy(link, bytes);
        TileSeconds::with_gaps(first, taken_in.next + link.gamma * bytes, taken_in.gaps)
    }
}

/// The exchanges. The first reads `source`; results go to scratch, in which each block has its own place, except the
/// last one, if it is to go to `output`.
fn halve(builder: &mut RankBuilder, doubling: &Doubling, index: usize, mut source: Space, output: Option<Slot>) {
    let mut distance = doubling.participants / 2;
    while distance > 0 {
        let partner = index ^ distance;
        let last = distance == 1;
        let (keep, give) =
            (blocks_of(builder, doubling, index, distance), blocks_of(builder, doubling, partner, distance));
        let into = output.filter(|_| last).unwrap_or(Slot { space: Space::Scratch, ..keep });
        builder.send(doubling.rank(partner), Slot { space: source, ..give });
        builder.receive_fold(doubling.rank(partner), Slot { space: source, ..keep }, into, last);
        source = Space::Scratch;
        distance /= 2;
    }
}

/// The blocks of all ranks for which the `length` participants around `index` act.
fn blocks_of(builder: &RankBuilder, doubling: &Doubling, index: usize, length: usize) -> Slot {
    let start = |index: usize| index + index.min(doubling.folded);
    let first = index / length * length;
    builder.tiles(Space::Scratch, start(first), start(first + length) - start(first))
}
