use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{chained, sent};
use crate::doubling::{Doubling, Role};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Recursive halving, then recursive doubling: a reduce-scatter in which partners exchange halves of what they still
/// share, and the way back. As few bytes as a ring in logarithmically many rounds, for powers of two.
///
/// Source: Rabenseifner, "Optimization of collective reduction operations" (2004).
pub(crate) struct HalvingDoubling;

impl FlatAlgorithm for HalvingDoubling {
    fn name(&self) -> &'static str {
        "halving-doubling"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn parts(&self, world: usize) -> u32 {
        Doubling::of(world).participants as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let doubling = Doubling::of(world);
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        match doubling.role(rank) {
            Role::Folded { proxy } => {
                builder.send(proxy, input);
                builder.receive(proxy, output);
            }
            Role::Participant { index, acts_for } => {
                let mut source = Space::Input;
                if let Some(folded) = acts_for {
                    source = Space::Output;
                    builder.receive_fold(folded, input, output, false);
                }
                halve(&mut builder, &doubling, index, source);
                double(&mut builder, &doubling, index);
                if let Some(folded) = acts_for {
                    builder.send(folded, output);
                }
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        let doubling = Doubling::of(world);
        2 * doubling.folded + 2 * doubling.participants * doubling.exchanges()
    }

    fn rounds(&self, world: usize) -> usize {
        let doubling = Doubling::of(world);
        2 * doubling.exchanges() + if doubling.folded > 0 { 2 } else { 0 }
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        let doubling = Doubling::of(world);
        let participants = doubling.participants as f64;
        2.0 * (participants - 1.0) / participants * bytes + if doubling.folded > 0 { bytes } else { 0.0 }
    }

    /// A partner in each exchange.
    fn fan_in(&self, world: usize) -> usize {
        let doubling = Doubling::of(world);
        doubling.exchanges() + usize::from(doubling.folded > 0)
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let doubling = Doubling::of(world);
        let (exchanges, participants) = (doubling.exchanges() as f64, doubling.participants as f64);
        let exchanged = (participants - 1.0) / participants * bytes;
        let both_ways = exchanged * (2.0 * link.beta + link.gamma);
        if doubling.folded == 0 {
            return chained(2.0 * exchanges, link, both_ways);
        }
        let taken_in = chained(2.0 * exchanges + 1.0, link, (link.beta + link.gamma) * bytes + both_ways);
        TileSeconds::with_gaps(taken_in.first + sent(link, bytes), taken_in.next, taken_in.gaps)
    }
}

/// Reduce-scatter: participant i ends with part i. The first exchange reads `source`, the others what came of it.
fn halve(builder: &mut RankBuilder, doubling: &Doubling, index: usize, mut source: Space) {
    let mut distance = doubling.participants / 2;
    while distance > 0 {
        let partner = doubling.rank(index ^ distance);
        let (keep, give) = (range(index, distance), range(index ^ distance, distance));
        builder.send(partner, give(source));
        builder.receive_fold(partner, keep(source), keep(Space::Output), distance == 1);
        source = Space::Output;
        distance /= 2;
    }
}

/// All-gather, the same exchanges backwards.
fn double(builder: &mut RankBuilder, doubling: &Doubling, index: usize) {
    let mut distance = 1;
    while distance < doubling.participants {
        let partner = doubling.rank(index ^ distance);
        builder.send(partner, range(index, distance)(Space::Output));
        builder.receive(partner, range(index ^ distance, distance)(Space::Output));
        distance *= 2;
    }
}

/// The `length` parts that contain part `index`, aligned to `length`.
fn range(index: usize, length: usize) -> impl Fn(Space) -> Slot {
    move |space| Slot::of_parts(space, 0, (index / length * length) as u32, length as u32)
}
