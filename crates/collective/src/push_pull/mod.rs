//! Push and pull: one rank, a parameter server's shard, adds the contributions of all others and gives everyone the sum.

mod direct;
mod hierarchical;

pub(crate) use direct::Direct;
pub(crate) use hierarchical::Hierarchical;
