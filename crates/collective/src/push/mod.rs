//! Push: one rank, a parameter server's shard, gets the sum of the contributions of all others.

mod direct;
mod hierarchical;

pub(crate) use direct::Direct;
pub(crate) use hierarchical::Hierarchical;
