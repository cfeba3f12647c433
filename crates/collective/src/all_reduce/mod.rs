//! All-reduce: every rank gets the reduction of all contributions.

mod bcube;
mod binary_tree;
mod direct;
mod direct_scatter;
mod double_binary_tree;
mod halving_doubling;
mod hierarchical;
mod re_encoding;
mod recursive_doubling;
mod ring;
mod torus;

pub(crate) use bcube::BCube;
pub use bcube::bcube_all_reduce;
pub(crate) use binary_tree::BinaryTree;
pub(crate) use direct::Direct;
pub(crate) use direct_scatter::DirectScatter;
pub(crate) use double_binary_tree::DoubleBinaryTree;
pub(crate) use halving_doubling::HalvingDoubling;
pub(crate) use hierarchical::Hierarchical;
pub use re_encoding::{ReEncodingAllReduce, re_encoding_all_reduce};
pub(crate) use recursive_doubling::RecursiveDoubling;
pub(crate) use ring::Ring;
pub(crate) use torus::Torus;
pub use torus::torus_all_reduce;
