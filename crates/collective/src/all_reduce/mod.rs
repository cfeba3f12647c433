//! All-reduce: every rank gets the reduction of all contributions.

mod binary_tree;
mod direct;
mod direct_scatter;
mod halving_doubling;
mod recursive_doubling;
mod ring;

pub(crate) use binary_tree::BinaryTree;
pub(crate) use direct::Direct;
pub(crate) use direct_scatter::DirectScatter;
pub(crate) use halving_doubling::HalvingDoubling;
pub(crate) use recursive_doubling::RecursiveDoubling;
pub(crate) use ring::Ring;
