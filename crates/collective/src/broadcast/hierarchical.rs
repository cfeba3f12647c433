use paceline_plan::{CollectiveKind, LinkCosts, Rank};

use crate::algorithm::busy;
use crate::arithmetic::log2_ceil;
use crate::binomial::Binomial;
use crate::{Algorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, Topology};

/// Hierarchical: a binomial tree over one rank of every host, then one within every host. The data enters a host once,
/// wherever its ranks are in the world.
///
/// Source: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
/// performance" (2000); the binomial tree of Thakur, Rabenseifner and Gropp (2005).
pub(crate) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Broadcast
    }

    fn for_hosts(&self) -> bool {
        true
    }

    fn parts(&self, _topology: &Topology) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        let place = Place { kind: self.kind(), rank, world: topology.world(), root };
        let mut builder = RankBuilder::new(place, self.parts(topology));
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let (host, root_host) = (topology.host(rank), topology.host(root));
        let leader = |host: usize| if host == root_host { root } else { topology.members(host)[0] };
        let across = Binomial::new(host, topology.hosts(), root_host);
        let members = topology.members(host);
        let within = Binomial::new(topology.index_on_host(rank), members.len(), topology.index_on_host(leader(host)));
        let leads = rank == leader(host);
        let parent = match within.parent() {
            Some(parent) => Some(members[within.rank(parent)]),
            None => across.parent().map(|parent| leader(across.rank(parent))),
        };
        if let Some(parent) = parent {
            builder.receive(parent, output);
        }
        let have = if rank == root { input } else { output };
        let hosts = across.children().into_iter().rev().filter(|_| leads).map(|child| leader(across.rank(child)));
        let ranks = within.children().into_iter().rev().map(|child| members[within.rank(child)]);
        for child in hosts.chain(ranks) {
            builder.send(child, have);
        }
        if rank == root {
            builder.copy(input, output);
        }
        builder.finish()
    }

    fn messages(&self, topology: &Topology) -> usize {
        topology.world() - 1
    }

    fn rounds(&self, topology: &Topology) -> usize {
        // A number's depth in the tree is the number of its bits.
        let deepest = |host: usize| host.count_ones() + topology.members(host).len().ilog2();
        (0..topology.hosts()).map(deepest).max().unwrap_or(0) as usize
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        let sent = |host| {
            let (hosts, ranks) = children(topology, host);
            hosts + ranks
        };
        (0..topology.hosts()).map(sent).max().unwrap_or(0) as f64 * bytes
    }

    /// Between hosts every rank takes in from one other.
    fn fan_in(&self, _topology: &Topology) -> usize {
        1
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        let (across, within) = (busy(&costs.across, bytes), busy(&costs.within, bytes));
        let port = |host| {
            let (hosts, ranks) = children(topology, host);
            hosts as f64 * across + ranks as f64 * within
        };
        let next = (0..topology.hosts()).map(port).fold(0.0, f64::max);
        let (hosts, ranks) = (topology.hosts(), topology.ranks_per_host_max());
        let latency =
            f64::from(hosts.ilog2()) * costs.across.latency() + f64::from(ranks.ilog2()) * costs.within.latency();
        let messages = log2_ceil(hosts) as f64 * across + log2_ceil(ranks) as f64 * within;
        TileSeconds::passed_on(latency + messages, next, if hosts > 1 { &costs.across } else { &costs.within })
    }
}

/// Hosts and ranks of its own host to which the first rank of a host sends, if rank 0 is the root.
fn children(topology: &Topology, host: usize) -> (usize, usize) {
    let hosts = Binomial::new(host, topology.hosts(), 0).children().len();
    (hosts, log2_ceil(topology.members(host).len()))
}
