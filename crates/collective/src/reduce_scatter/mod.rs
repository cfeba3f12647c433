//! Reduce-scatter: rank r gets block r of the reduction.

mod direct;
mod recursive_halving;
mod ring;

pub(crate) use direct::Direct;
pub(crate) use recursive_halving::RecursiveHalving;
pub(crate) use ring::Ring;
