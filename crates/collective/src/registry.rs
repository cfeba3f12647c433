//! The algorithms by name.

use paceline_plan::CollectiveKind;

use crate::{
    Algorithm, all_gather, all_reduce, all_to_all, barrier, broadcast, gather, push, push_pull, reduce, reduce_scatter,
    scatter, send_receive,
};

/// There is no such algorithm for this collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} has no algorithm `{name}`; it has: {}", known.join(", "))]
pub struct UnknownAlgorithm {
    /// The collective.
    pub kind: CollectiveKind,
    /// The name given.
    pub name: String,
    /// The names that exist.
    pub known: Vec<&'static str>,
}

/// All algorithms. The index of one stands in frame headers: new ones go to the end.
pub fn registry() -> &'static [&'static dyn Algorithm] {
    &[
        &all_reduce::Ring,
        &all_reduce::BinaryTree,
        &all_reduce::RecursiveDoubling,
        &all_reduce::HalvingDoubling,
        &all_reduce::Direct,
        &all_reduce::DirectScatter,
        &reduce_scatter::Ring,
        &reduce_scatter::RecursiveHalving,
        &reduce_scatter::Direct,
        &all_gather::Ring,
        &all_gather::Bruck,
        &all_gather::Direct,
        &broadcast::Binomial,
        &broadcast::Pipelined,
        &reduce::Binomial,
        &reduce::Pipelined,
        &gather::Direct,
        &gather::Binomial,
        &scatter::Direct,
        &scatter::Binomial,
        &all_to_all::Direct,
        &barrier::Dissemination,
        &send_receive::PointToPoint,
        &all_reduce::DoubleBinaryTree,
        &all_reduce::Hierarchical,
        &all_gather::Hierarchical,
        &broadcast::Hierarchical,
        &push_pull::Direct,
        &push::Direct,
        &push_pull::Hierarchical,
        &push::Hierarchical,
        &broadcast::Direct,
        &all_reduce::Torus,
        &all_reduce::BCube,
    ]
}

/// The algorithms for a collective, in the order of the registry.
pub fn of_kind(kind: CollectiveKind) -> impl Iterator<Item = &'static dyn Algorithm> {
    registry().iter().copied().filter(move |algorithm| algorithm.kind() == kind)
}

/// The algorithm of this name for a collective.
pub fn find(kind: CollectiveKind, name: &str) -> Result<&'static dyn Algorithm, UnknownAlgorithm> {
    of_kind(kind).find(|algorithm| algorithm.name() == name).ok_or_else(|| {
        let known = of_kind(kind).map(|algorithm| algorithm.name()).collect();
        UnknownAlgorithm { kind, name: name.to_owned(), known }
    })
}

/// Where an algorithm stands in the [`registry`]. None for one that is not in it.
pub fn index_of(algorithm: &dyn Algorithm) -> Option<u8> {
    let same = |other: &&dyn Algorithm| other.kind() == algorithm.kind() && other.name() == algorithm.name();
    registry().iter().position(same).and_then(|index| u8::try_from(index).ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_header() {
        let names: BTreeSet<_> = registry().iter().map(|algorithm| (algorithm.kind(), algorithm.name())).collect();
        assert_eq!(names.len(), registry().len());
        for (index, algorithm) in registry().iter().enumerate() {
            assert_eq!(index_of(*algorithm), Some(index as u8));
            assert_eq!(find(algorithm.kind(), algorithm.name()).unwrap().name(), algorithm.name());
        }
        for &kind in CollectiveKind::ALL {
            assert!(of_kind(kind).next().is_some(), "{kind} has no algorithm");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = find(CollectiveKind::Broadcast, "rign").err().unwrap();
        assert_eq!(
            error.to_string(),
            "broadcast has no algorithm `rign`; it has: binomial, pipelined, hierarchical, direct"
        );
    }
}
