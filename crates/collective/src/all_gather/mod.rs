//! All-gather: every rank gets every rank's block.

mod bruck;
mod direct;
mod hierarchical;
mod ring;

pub(crate) use bruck::Bruck;
pub(crate) use direct::Direct;
pub(crate) use hierarchical::Hierarchical;
pub(crate) use ring::Ring;
