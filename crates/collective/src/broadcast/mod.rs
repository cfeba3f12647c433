//! Broadcast: every rank gets the root's data.

mod binomial;
mod pipelined;

pub(crate) use binomial::Binomial;
pub(crate) use pipelined::Pipelined;
