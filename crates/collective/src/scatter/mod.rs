//! Scatter: rank r gets the root's block r.

mod binomial;
mod direct;

pub(crate) use binomial::Binomial;
pub(crate) use direct::Direct;
