use paceline_plan::{CollectiveKind, LinkCosts, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::columns::Columns;
use crate::{Algorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds, Topology};

/// Hierarchical: a direct reduce-scatter within every host, a ring all-reduce across the hosts among those who hold the
/// same parts, and a direct all-gather within. All ranks of a host drive its network interface, which carries no more
/// than if every host were one rank.
///
/// With unequal hosts there are as many *columns* as the largest host has ranks; on a smaller one each rank holds
/// several. On one host this is `direct-scatter`, with one rank on each it is `ring`.
///
/// Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2018), the 2D-torus
/// all-reduce; the ring of Patarasuk and Yuan (2009).
pub(crate) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn for_hosts(&self) -> bool {
        true
    }

    fn parts(&self, topology: &Topology) -> u32 {
        (topology.ranks_per_host_max() * topology.hosts()) as u32
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        let place = Place { kind: self.kind(), rank, world: topology.world(), root };
        let mut builder = RankBuilder::new(place, self.parts(topology));
        if topology.world() == 1 {
            return builder.alone();
        }
        let columns = columns_of(topology, topology.host(rank));
        let own = columns.slot(topology.index_on_host(rank));
        let partial = reduce_scatter_within(&mut builder, topology, &columns, rank);
        all_reduce_across(&mut builder, topology, &columns, rank, partial);
        for peer in columns.peers(rank) {
            builder.send(columns.members[peer], own(Space::Output));
        }
        for peer in columns.peers(rank).rev() {
            builder.receive(columns.members[peer], columns.slot(peer)(Space::Output));
        }
        builder.finish()
    }

    fn messages(&self, topology: &Topology) -> usize {
        let within = |ranks: usize| 2 * ranks * (ranks - 1);
        let hosts = topology.hosts();
        let across = 2 * (hosts - 1) * hosts * topology.ranks_per_host_max();
        (0..hosts).map(|host| within(topology.members(host).len())).sum::<usize>() + across
    }

    fn rounds(&self, topology: &Topology) -> usize {
        let hosts = topology.hosts();
        let shared = |host: usize| topology.members(host % hosts).len() > 1;
        // What starts on one host has gone almost twice round, and ends two places before where it began.
        let both_ends = |host: usize| usize::from(shared(host)) + usize::from(shared(host + 2));
        2 * (hosts - 1) + (0..hosts).map(both_ends).max().unwrap_or(0)
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        let across = 2.0 * (topology.hosts() - 1) as f64 / topology.hosts() as f64;
        let sent = |share: f64, peers: usize| {
            let within = if peers > 0 { 1.0 - share + peers as f64 * share } else { 0.0 };
            bytes * (within + across * share)
        };
        shares(topology).map(|(share, peers)| sent(share, peers)).fold(0.0, f64::max)
    }

    /// Between hosts every rank takes in from one other.
    fn fan_in(&self, _topology: &Topology) -> usize {
        1
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        if topology.world() == 1 {
            return TileSeconds::NONE;
        }
        let LinkCosts { within, across, .. } = costs;
        let (hosts, columns) = (topology.hosts() as f64, topology.ranks_per_host_max() as f64);
        let part = bytes / (hosts * columns);
        let hops = hosts - 1.0;
        // Per hop, each host's interface carries one message of every column.
        let interface = columns * busy(across, part);
        let mut phases = [0.0f64; 3];
        let mut port = 0.0f64;
        for (share, peers) in shares(topology) {
            let peers = peers as f64;
            let scattering = peers * busy_folding(within, share * bytes);
            let gathering =
                peers * within.overhead + if peers > 0.0 { (1.0 - share) * bytes * within.beta } else { 0.0 };
            let gathering = gathering.max(peers * busy(within, share * bytes));
            let folding = hops * share * columns * part * across.gamma;
            let exchanging = 2.0 * hops * share * columns * busy(across, part) + folding;
            let latency = if peers > 0.0 { within.latency() } else { 0.0 };
            let waiting = 2.0 * hops * (across.latency() + interface) + folding;
            for (phase, seconds) in phases.iter_mut().zip([latency + scattering, waiting, latency + gathering]) {
                *phase = phase.max(seconds);
            }
            port = port.max(scattering + exchanging + gathering);
        }
        let next = port.max(2.0 * hops * interface);
        // What lies between two hops; the phases within the hosts overlap with other tiles' hops.
        let gaps = if hops > 0.0 { (2.0 * hops - 1.0) * across.latency() } else { within.latency() };
        TileSeconds::with_gaps(phases.iter().sum(), next, gaps)
    }
}

/// For every rank the share of the columns that it holds, and the number of its host's other ranks.
fn shares(topology: &Topology) -> impl Iterator<Item = (f64, usize)> {
    (0..topology.world()).map(|rank| {
        let columns = columns_of(topology, topology.host(rank));
        (columns.share(topology.index_on_host(rank)), columns.members.len() - 1)
    })
}

/// Who on a host holds which columns. A column is as many parts as there are hosts.
fn columns_of(topology: &Topology, host: usize) -> Columns<'_> {
    Columns { members: topology.members(host), count: topology.ranks_per_host_max(), parts: topology.hosts() }
}

/// Each member gets its own columns from all others; where the partial result lies then.
fn reduce_scatter_within(builder: &mut RankBuilder, topology: &Topology, columns: &Columns, rank: Rank) -> Space {
    for peer in columns.peers(rank) {
        builder.send(columns.members[peer], columns.slot(peer)(Space::Input));
    }
    let own = columns.slot(topology.index_on_host(rank));
    let mut partial = Space::Input;
    let alone = topology.hosts() == 1;
    // Whoever sends to us first is the one before us.
    let mut left = columns.members.len() - 1;
    for peer in columns.peers(rank).rev() {
        left -= 1;
        builder.receive_fold(columns.members[peer], own(partial), own(Space::Output), alone && left == 0);
        partial = Space::Output;
    }
    partial
}

/// A ring among those who hold the same column, as in `ring`, for every column of this rank.
fn all_reduce_across(builder: &mut RankBuilder, topology: &Topology, columns: &Columns, rank: Rank, partial: Space) {
    let (hosts, host) = (topology.hosts(), topology.host(rank));
    if hosts == 1 {
        return;
    }
    let (first, end) = columns.range(topology.index_on_host(rank));
    for column in first..end {
        let holder = |distance: usize| columns_of(topology, (host + distance) % hosts).holder(column);
        let (left, right) = (holder(hosts - 1), holder(1));
        let part = |space, host: usize| Slot::of_parts(space, 0, (column * hosts + host) as u32, 1);
        let behind = |distance: usize| (host + hosts - distance) % hosts;
        builder.send(right, part(partial, host));
        for hop in 1..hosts {
            let into = part(Space::Output, behind(hop));
            builder.receive_fold(left, part(partial, behind(hop)), into, hop == hosts - 1);
            builder.send(right, into);
        }
        for hop in 0..hosts - 1 {
            let whole = part(Space::Output, behind(hop));
            builder.receive(left, whole);
            if hop < hosts - 2 {
                builder.send(right, whole);
            }
        }
    }
}
