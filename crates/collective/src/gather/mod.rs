//! Gather: the root gets every rank's block.

mod binomial;
mod direct;

pub(crate) use binomial::Binomial;
pub(crate) use direct::Direct;
