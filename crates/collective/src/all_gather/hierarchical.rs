use paceline_plan::{CollectiveKind, LinkCosts, Rank};

use crate::algorithm::busy;
use crate::{Algorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, Topology};

/// Hierarchical: every block goes round a ring of one rank per host, and from there to the others of the host. Each
/// block enters a host once, through as many ranks at a time as it has, in as many rounds as there are hosts.
///
/// With unequal hosts a rank of a smaller one also passes on what has no counterpart there. On one host this is
/// `direct`, with one rank on each it is `ring`.
///
/// Source: Kandalla et al., "Designing multi-leader-based allgather algorithms for multi-core clusters" (2009), with every
/// rank a leader and the ring of Thakur, Rabenseifner and Gropp (2005).
pub(crate) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllGather
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
        let input = builder.tile(Space::Input, 0);
        let block = |builder: &RankBuilder, of: Rank| builder.tile(Space::Output, of);
        let (host, hosts) = (topology.host(rank), topology.hosts());
        let members = topology.members(host);
        let others = |of: usize| (1..members.len()).map(move |offset| members[(of + offset) % members.len()]);
        let own = topology.index_on_host(rank);
        for column in columns(topology, rank) {
            let (left, right) =
                (holder(topology, (host + hosts - 1) % hosts, column), holder(topology, (host + 1) % hosts, column));
            for distance in 0..hosts {
                let Some(origin) = origin(topology, host, distance, column) else { continue };
                let mut have = input;
                if origin != rank {
                    have = block(&builder, origin);
                    builder.receive(left, have);
                }
                if distance + 1 < hosts {
                    builder.send(right, have);
                }
                for peer in others(own) {
                    builder.send(peer, have);
                }
            }
        }
        let own_block = block(&builder, rank);
        builder.copy(input, own_block);
        for peer in others(own) {
            for column in columns(topology, peer) {
                for origin in (0..hosts).filter_map(|distance| origin(topology, host, distance, column)) {
                    let into = block(&builder, origin);
                    builder.receive(peer, into);
                }
            }
        }
        builder.finish()
    }

    fn messages(&self, topology: &Topology) -> usize {
        (topology.world() - 1) * topology.world()
    }

    fn rounds(&self, topology: &Topology) -> usize {
        topology.hosts() - 1 + usize::from(topology.ranks_per_host_max() > 1)
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        let blocks = |rank| {
            let (across, within) = blocks_sent(topology, rank);
            across + within
        };
        (0..topology.world()).map(blocks).max().unwrap_or(0) as f64 * bytes
    }

    /// Between hosts every rank takes in from one other.
    fn fan_in(&self, _topology: &Topology) -> usize {
        1
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        let (world, hosts, columns) = (topology.world(), topology.hosts(), topology.ranks_per_host_max());
        if world == 1 {
            return TileSeconds::NONE;
        }
        let (across, within) = (busy(&costs.across, bytes), busy(&costs.within, bytes));
        let (hops, peers) = ((hosts - 1) as f64, (columns - 1) as f64);
        let port = |rank| {
            let sent = blocks_sent(topology, rank);
            sent.0 as f64 * across + sent.1 as f64 * within
        };
        let port = (0..world).map(port).fold(0.0, f64::max);
        // What comes into the smallest host from outside.
        let outside = world - (0..hosts).map(|host| topology.members(host).len()).min().unwrap_or(0);
        let next = port.max(outside as f64 * across);
        let latency = |count: f64, link: f64| if count > 0.0 { count * link } else { 0.0 };
        let round_the_ring = latency(hops, costs.across.latency()) + outside as f64 * across;
        let last = if peers > 0.0 { costs.within.latency() + peers * within } else { 0.0 };
        let first = (round_the_ring + last).max(port + latency(peers.min(1.0), costs.within.latency()));
        TileSeconds::with_gaps(first, next, latency(hops - 1.0, costs.across.latency()))
    }
}

/// Messages that a rank sends to other hosts and within its own.
fn blocks_sent(topology: &Topology, rank: Rank) -> (usize, usize) {
    let (host, hosts) = (topology.host(rank), topology.hosts());
    let peers = topology.members(host).len() - 1;
    let mut sent = (0, 0);
    for column in columns(topology, rank) {
        for distance in (0..hosts).filter(|&distance| origin(topology, host, distance, column).is_some()) {
            sent.0 += usize::from(distance + 1 < hosts);
            sent.1 += peers;
        }
    }
    sent
}

/// The columns that a rank holds: the ranks with these places on the other hosts are its counterparts.
fn columns(topology: &Topology, rank: Rank) -> impl Iterator<Item = usize> + use<> {
    let members = topology.members(topology.host(rank)).len();
    (topology.index_on_host(rank)..topology.ranks_per_host_max()).step_by(members)
}

/// Who on a host holds a column.
fn holder(topology: &Topology, host: usize, column: usize) -> Rank {
    let members = topology.members(host);
    members[column % members.len()]
}

/// Whose block it is that in this column comes from so many hosts back, if that host has as many ranks.
fn origin(topology: &Topology, host: usize, distance: usize, column: usize) -> Option<Rank> {
    topology.members((host + topology.hosts() - distance) % topology.hosts()).get(column).copied()
}
