use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, chained};
use crate::doubling::{Doubling, Role};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Recursive doubling: in round k each rank exchanges everything that it has with the rank whose number differs in bit
/// k. Latency-optimal; every round moves the whole message.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), on all-reduce.
pub(crate) struct RecursiveDoubling;

impl FlatAlgorithm for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive-doubling"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        let doubling = Doubling::of(world);
        Some(match doubling.role(rank) {
            Role::Folded { proxy } => vec![proxy],
            Role::Participant { index, acts_for } => {
                let partners = (0..doubling.exchanges()).map(|bit| doubling.rank(index ^ 1 << bit));
                partners.chain(acts_for).collect()
            }
        })
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
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        match doubling.role(rank) {
            Role::Folded { proxy } => {
                builder.send(proxy, input);
                builder.receive(proxy, output);
            }
            Role::Participant { index, acts_for } => {
                let mut have = input;
                if let Some(folded) = acts_for {
                    have = builder.tile(Space::Scratch, 0);
                    builder.receive_fold(folded, input, have, false);
                }
                exchange(&mut builder, &doubling, index, have);
                if let Some(folded) = acts_for {
                    builder.send(folded, output);
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
        (doubling.exchanges() + usize::from(doubling.folded > 0)) as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let doubling = Doubling::of(world);
        let exchanges = doubling.exchanges() as f64;
        if doubling.folded == 0 {
            // A single exchange cannot store its result where it read its operand.
            let copy = if world == 2 { link.gamma * bytes } else { 0.0 };
            return chained(exchanges, link, exchanges * (link.beta + link.gamma) * bytes + copy);
        }
        let taken_in = chained(exchanges + 1.0, link, (exchanges + 1.0) * (link.beta + link.gamma) * bytes);
        let waits = doubling.rounds() as f64 * link.latency();
        TileSeconds::with_gaps(waits + taken_in.next + busy(link, bytes), taken_in.next, taken_in.gaps)
    }
}

/// A rank may not overwrite what it is sending: its partner, waiting for the same, would never take it. So each result
/// goes to another place than what was sent, and in place the input and the output are the same one.
fn exchange(builder: &mut RankBuilder, doubling: &Doubling, index: usize, mut have: Slot) {
    let output = builder.tile(Space::Output, 0);
    for round in 0..doubling.exchanges() {
        let partner = doubling.rank(index ^ 1 << round);
        let last = round + 1 == doubling.exchanges();
        let into = if last && have.space == Space::Scratch {
            output
        } else {
            let free = u32::from(have.space == Space::Scratch && have.block == 0);
            builder.tile(Space::Scratch, free as usize)
        };
        builder.send(partner, have);
        builder.receive_fold(partner, have, into, last);
        have = into;
    }
    if have != output {
        builder.copy(have, output);
    }
}
