use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy;
use crate::rank_order::serve_in_rank_order;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct: everyone sends its contribution to the root, which adds them in the order of the ranks, as they arrive, and
/// sends the sum back. The root takes nothing in before its turn, so it needs no memory but its result: a contribution
/// that is early waits with its sender, or, if it is small, in the pool of its link. Tiles overlap: the root sends one
/// back while it takes in the next.
///
/// Source: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::PushPull
    }

    fn supports(&self, world: usize) -> bool {
        world >= 2
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let output = builder.tile(Space::Output, 0);
        if rank == root {
            serve_in_rank_order(&mut builder, root, world, output);
            for worker in (0..world).filter(|&rank| rank != root) {
                builder.send(worker, output);
            }
        } else {
            let input = builder.tile(Space::Input, 0);
            builder.send(root, input);
            builder.receive(root, output);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1)
    }

    fn rounds(&self, _world: usize) -> usize {
        2
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    /// The root takes in one contribution after the other. What it sends goes to different workers.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let workers = (world - 1) as f64;
        let pulled = workers * busy(link, bytes);
        let pushed = pulled + (workers - 1.0) * link.gamma * bytes;
        TileSeconds::pipeline(2.0 * link.latency() + pushed + pulled, pushed)
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::LinkCosts;

    use super::*;
    use crate::program::Action;
    use crate::{Topology, push};

    #[test]
    fn contributions_that_are_taken_in_one_after_the_other_do_not_meet() {
        let costs = LinkCosts { contention: 1e-9, ..LinkCosts::uniform(LinkCost::hockney(10e-6, 1e-9, 0.0)) };
        let algorithms: [&dyn crate::Algorithm; 2] = [&Direct, &push::Direct];
        for algorithm in algorithms {
            assert_eq!(algorithm.contention_seconds(&Topology::regular(8, 1), 1e6, &costs), 0.0);
        }
    }

    #[test]
    fn whoever_comes_early_costs_the_root_no_memory_and_the_order_is_that_of_the_ranks() {
        for world in 2..20 {
            for root in 0..world {
                let program = Direct.rank_program(root, world, root);
                assert_eq!(program.scratch_blocks, 0, "{world} ranks, root {root}");
                let mut taken = Vec::new();
                for (index, step) in program.steps.iter().enumerate() {
                    if let Action::Receive { from, fold, .. } = step.action {
                        // Its turn is when the one before has been added.
                        let before = index.checked_sub(1).map(|before| vec![before as u32]);
                        assert_eq!(step.after, before.unwrap_or_default());
                        assert_eq!(fold.is_some(), !taken.is_empty());
                        taken.push(from);
                    }
                }
                assert_eq!(taken, (0..world).filter(|&rank| rank != root).collect::<Vec<_>>());
            }
        }
    }
}
