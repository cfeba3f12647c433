//! Ranks on a ring, and powers of two.

use paceline_plan::Rank;

/// The rank `distance` places further round the ring.
pub(crate) fn ahead(rank: Rank, distance: usize, world: usize) -> Rank {
    (rank + distance) % world
}

/// The rank `distance` (at most `world`) places back round the ring.
pub(crate) fn behind(rank: Rank, distance: usize, world: usize) -> Rank {
    (rank + world - distance) % world
}

/// ⌈log₂ world⌉.
pub(crate) fn log2_ceil(world: usize) -> usize {
    world.next_power_of_two().trailing_zeros() as usize
}

/// The largest power of two that is not larger than `world` (at least 1).
pub(crate) fn power_of_two_below(world: usize) -> usize {
    1 << world.ilog2()
}
