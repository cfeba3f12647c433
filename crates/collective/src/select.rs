//! The algorithm and the tile size that the closed formulas find cheapest: what `algorithm=auto` runs.

use paceline_plan::{CollectiveKind, LinkCost};

use crate::{Algorithm, registry};

/// The tile sizes that are tried: powers of two from 16 KiB, below which overheads rule, to 4 MiB, above which a
/// pipeline gains nothing more.
pub const TILE_BYTES: std::ops::RangeInclusive<usize> = 1 << 14..=1 << 22;

/// Formulas that say the same may differ by rounding. This much, relatively, is no difference.
const TIE: f64 = 1e-9;

/// What was chosen.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    /// Bytes per tile of a block.
    pub tile_bytes: usize,
    /// What the formula promises.
    pub seconds: f64,
}

/// The cheapest algorithm for `bytes` per block among those that `admits` lets through, and its cheapest tile size.
/// None if none is left.
///
/// A pure function: ranks that agree about the cost of the link choose the same. Of equals it takes the first in the
/// registry, and the smallest tile.
pub fn cheapest(
    kind: CollectiveKind,
    world: usize,
    bytes: usize,
    link: &LinkCost,
    admits: impl Fn(&dyn Algorithm) -> bool,
) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    for algorithm in registry::of_kind(kind).filter(|algorithm| algorithm.supports(world) && admits(*algorithm)) {
        for tile_bytes in tile_sizes() {
            let seconds = algorithm.seconds(world, bytes, tile_bytes, link);
            if best.is_none_or(|best| seconds < best.seconds * (1.0 - TIE)) {
                best = Some(Choice { algorithm, tile_bytes, seconds });
            }
        }
    }
    best
}

/// The powers of two in [`TILE_BYTES`].
fn tile_sizes() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(*TILE_BYTES.start()), |bytes| Some(bytes * 2))
        .take_while(|bytes| TILE_BYTES.contains(bytes))
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in tiles of {} bytes, {} s", self.algorithm.name(), self.tile_bytes, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkCost = LinkCost { alpha: 20e-6, beta: 1e-9, gamma: 0.1e-9 };

    fn name(kind: CollectiveKind, world: usize, bytes: usize) -> &'static str {
        cheapest(kind, world, bytes, &LINK, |_| true).unwrap().algorithm.name()
    }

    #[test]
    fn latency_decides_for_small_messages_and_bandwidth_for_large_ones() {
        use CollectiveKind::{AllGather, AllReduce, Broadcast};
        assert_eq!(name(AllReduce, 16, 1 << 10), "recursive-doubling");
        assert_eq!(name(AllReduce, 16, 1 << 24), "halving-doubling");
        assert_eq!(name(AllReduce, 13, 1 << 27), "ring");
        assert_eq!(name(AllGather, 16, 1 << 10), "bruck");
        assert_eq!(name(Broadcast, 16, 1 << 10), "binomial");
        assert_eq!(name(Broadcast, 16, 1 << 24), "pipelined");
    }

    #[test]
    fn a_pipeline_gets_the_tile_that_balances_latency_and_bandwidth() {
        let choice = cheapest(CollectiveKind::Broadcast, 8, 1 << 24, &LINK, |_| true).unwrap();
        // The optimum of (n − 2 + S/c)(alpha + c·beta) is c = √(S·alpha/((n − 2)·beta)): 236 KiB.
        assert_eq!(choice.tile_bytes, 1 << 18, "{choice:?}");
    }

    #[test]
    fn only_admitted_algorithms_are_chosen() {
        let in_pairs = |algorithm: &dyn Algorithm| algorithm.name() == "direct";
        let choice = cheapest(CollectiveKind::AllReduce, 16, 1 << 24, &LINK, in_pairs).unwrap();
        assert_eq!(choice.algorithm.name(), "direct");
        assert!(cheapest(CollectiveKind::AllReduce, 16, 1 << 24, &LINK, |_| false).is_none());
        assert!(cheapest(CollectiveKind::SendReceive, 3, 1, &LINK, |_| true).is_none());
    }

    #[test]
    fn every_collective_has_a_choice_in_every_world() {
        for &kind in CollectiveKind::ALL.iter().filter(|&&kind| kind != CollectiveKind::SendReceive) {
            for world in 1..40 {
                for bytes in [0, 1, 1 << 14, (1 << 20) + 1] {
                    let choice = cheapest(kind, world, bytes, &LINK, |_| true).unwrap();
                    assert!(choice.seconds.is_finite() && choice.seconds >= 0.0, "{kind}, {world}: {choice:?}");
                }
            }
        }
    }
}
