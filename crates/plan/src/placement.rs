//! Where the shards of a parameter server live: one rule for the program, its emulation and its formulas.

use crate::{Hosts, Rank};

/// Shards are dealt out host by host, so that as few of them as possible share an interface, although launchers fill hosts
/// in blocks of ranks: with one shard for each host, every host has one.
impl Hosts {
    /// The rank at which a shard lives, if the ranks here are those at which shards may live: with H hosts, shard s is on
    /// host s mod H, at that host's rank (s / H) mod (its ranks). Hosts count in the order of their numbers, and only those
    /// that have ranks; ranks in their own order.
    ///
    /// The ranks are workers where shards live beside them, or the processes of the hosts that serve and do nothing else.
    pub fn rank_of_shard(&self, shard: usize) -> Rank {
        let hosts = self.members();
        let (ranks, round) = (&hosts[shard % hosts.len()], shard / hosts.len());
        ranks[round % ranks.len()]
    }

    /// The ranks of each host that has any; hosts in the order of their numbers.
    pub fn members(&self) -> Vec<Vec<Rank>> {
        let mut members = vec![Vec::new(); self.count()];
        (0..self.ranks()).for_each(|rank| members[self.host(rank)].push(rank));
        members.retain(|ranks| !ranks.is_empty());
        members
    }

    /// The hosts of these ranks, which are workers, and behind them those of `shards` shards that live beside them
    /// ([`Hosts::rank_of_shard`]).
    pub fn with_shards(&self, shards: usize) -> Hosts {
        let beside = (0..shards).map(|shard| self.host(self.rank_of_shard(shard)));
        Hosts::numbered(self.by_rank().iter().copied().chain(beside).collect())
    }

    /// The host of each rank under numbers that count from 0 in the order in which hosts come first; there must be one.
    pub fn in_order(hosts: impl Iterator<Item = usize>) -> Hosts {
        let mut known = Vec::new();
        let mut number = |host| {
            known.iter().position(|&other| other == host).unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            })
        };
        Hosts::numbered(hosts.map(&mut number).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(hosts: &str, shards: usize) -> Vec<Rank> {
        let hosts: Hosts = hosts.parse().expect("hosts");
        (0..shards).map(|shard| hosts.rank_of_shard(shard)).collect()
    }

    #[test]
    fn every_host_has_a_shard_before_any_has_two() {
        assert_eq!(beside("8x4", 8), [0, 4, 8, 12, 16, 20, 24, 28]);
        assert_eq!(beside("2x2", 2), [0, 2]);
        assert_eq!(beside("2x2", 5), [0, 2, 1, 3, 0]);
        assert_eq!(beside("1x3", 4), [0, 1, 2, 0]);
        assert_eq!(beside("3x1", 2), [0, 1]);
    }

    #[test]
    fn hosts_may_be_uneven_mixed_and_unnumbered() {
        // Five workers on hosts of 2, 2 and 1.
        assert_eq!(beside("0,0,1,1,2", 7), [0, 2, 4, 1, 3, 4, 0]);
        assert_eq!(beside("0,1,0,1", 4), [0, 1, 2, 3]);
        // Nobody is on host 1.
        assert_eq!(beside("0,0,2", 3), [0, 2, 1]);
    }

    #[test]
    fn shards_are_where_the_workers_are_beside_whom_they_live() {
        let hosts: Hosts = "2x4".parse().expect("hosts");
        assert_eq!(hosts.with_shards(3).by_rank(), [0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0]);
        assert_eq!(hosts.with_shards(0), hosts);
        assert_eq!(Hosts::in_order([7, 7, 3, 7, 5].into_iter()).by_rank(), [0, 0, 1, 0, 2]);
    }
}
