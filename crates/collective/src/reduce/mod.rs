//! Reduce: the root gets the reduction of all contributions.

mod binomial;
mod pipelined;

pub(crate) use binomial::Binomial;
pub(crate) use pipelined::Pipelined;
