//! Broadcast: every rank gets the root's data.

mod binomial;
mod direct;
mod hierarchical;
mod pipelined;

pub(crate) use binomial::Binomial;
pub(crate) use direct::Direct;
pub(crate) use hierarchical::Hierarchical;
pub(crate) use pipelined::Pipelined;
