//! Push and pull by hosts: the workers of a host add up among themselves, so that the network carries one contribution of
//! each host instead of one of each worker.

use paceline_plan::{LinkCosts, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::columns::Columns;
use crate::rank_order::reduce_in_order;
use crate::{Place, RankBuilder, RankProgram, Space, TileSeconds, Topology};

/// The hosts that have workers, which are all ranks but the root.
pub(crate) struct Workers {
    /// The workers of each host, rising; hosts in the order of the topology.
    hosts: Vec<Vec<Rank>>,
    /// As many as the largest host has workers.
    columns: usize,
    /// Into how many parts each column is cut.
    parts: usize,
    /// The root's host, if it has workers.
    root_host: Option<usize>,
}

impl Workers {
    /// All ranks but the root.
    pub fn of(topology: &Topology, root: Rank) -> Workers {
        let of_host = |host| topology.members(host).iter().copied().filter(|&rank| rank != root).collect();
        let mut hosts: Vec<Vec<Rank>> = (0..topology.hosts()).map(of_host).collect();
        hosts.retain(|workers| !workers.is_empty());
        let root_host = hosts.iter().position(|workers| topology.same_host(workers[0], root));
        let columns = hosts.iter().map(Vec::len).max().unwrap_or(1);
        let parts = Workers::parts(topology) as usize / columns;
        Workers { hosts, columns, parts, root_host }
    }

    /// Into how many parts a tile is cut, whoever is the root: if its host is the only one with the most ranks, there is a
    /// column less than for another root, and both numbers divide the parts.
    pub fn parts(topology: &Topology) -> u32 {
        let most = topology.ranks_per_host_max();
        let largest = (0..topology.hosts()).filter(|&host| topology.members(host).len() == most).count();
        let parts = match (topology.hosts(), largest) {
            (1, _) => most - 1,
            (_, 1) if most > 1 => most * (most - 1),
            _ => most,
        };
        parts.max(1) as u32
    }

    fn columns<'a>(&self, members: &'a [Rank]) -> Columns<'a> {
        Columns { members, count: self.columns, parts: self.parts }
    }

    /// What a rank of a push does, or, if it `pulls`, of a push and pull.
    pub fn rank_program(place: Place, topology: &Topology, pulls: bool) -> RankProgram {
        let workers = Workers::of(topology, place.root);
        let mut builder = RankBuilder::new(place, Workers::parts(topology));
        if place.rank == place.root {
            workers.serve(&mut builder, pulls);
        } else if let Some(host) = workers.hosts.iter().position(|workers| workers.contains(&place.rank)) {
            let columns = workers.columns(&workers.hosts[host]);
            workers.contribute(&mut builder, &columns, place, pulls);
        }
        builder.finish()
    }

    /// What a worker does.
    fn contribute(&self, builder: &mut RankBuilder, columns: &Columns, place: Place, pulls: bool) {
        let (members, member) = (columns.members, columns.member(place.rank));
        let own = columns.slot(member);
        // In the order of the ranks, as they are taken in.
        for peer in (0..members.len()).filter(|&peer| peer != member) {
            builder.send(members[peer], columns.slot(peer)(Space::Input));
        }
        // A push gives workers no output to add in.
        let sums = if pulls { Space::Output } else { Space::Scratch };
        let slots = [Space::Input, Space::Scratch, sums].map(&own);
        reduce_in_order(builder, members, member, slots, self.hosts.len() == 1);
        builder.send(place.root, own(if members.len() > 1 { sums } else { Space::Input }));
        if !pulls {
            return;
        }
        builder.receive(place.root, own(Space::Output));
        for peer in columns.peers(place.rank) {
            builder.send(members[peer], own(Space::Output));
        }
        for peer in columns.peers(place.rank).rev() {
            builder.receive(members[peer], columns.slot(peer)(Space::Output));
        }
    }

    /// What the root does: it adds in the order of the hosts, and each message waits for those that come before it in its
    /// columns.
    fn serve(&self, builder: &mut RankBuilder, pulls: bool) {
        let holders = || {
            self.hosts.iter().enumerate().flat_map(|(host, workers)| {
                let columns = self.columns(workers);
                workers.iter().enumerate().map(move |(member, &rank)| (host, rank, columns.slot(member)(Space::Output)))
            })
        };
        for (host, rank, sums) in holders() {
            match host {
                0 => builder.receive(rank, sums),
                _ => builder.receive_fold(rank, sums, sums, host + 1 == self.hosts.len()),
            };
        }
        for (_, rank, sums) in holders().filter(|_| pulls) {
            builder.send(rank, sums);
        }
    }

    /// Messages of one direction, in one tile.
    pub fn messages(&self) -> usize {
        self.hosts.iter().map(|workers| workers.len() * workers.len()).sum()
    }

    /// Messages of one direction that follow each other: within a host if any has several workers, and to or from the root.
    pub fn rounds(&self) -> usize {
        1 + usize::from(self.columns > 1)
    }

    /// The bytes that the busiest rank of a push and pull sends: the root one block to each host, a worker its
    /// contribution, and its columns of the sum to the others of its host.
    pub fn bytes_sent(&self, bytes: f64) -> f64 {
        let of_worker = |workers: &Vec<Rank>| {
            let columns = self.columns(workers);
            let shares = (0..workers.len()).map(|member| columns.share(member));
            1.0 + (workers.len() - 1) as f64 * shares.fold(0.0, f64::max)
        };
        self.hosts.iter().map(of_worker).fold(self.hosts.len() as f64, f64::max) * bytes
    }

    /// What one direction takes, a tile of `bytes`.
    pub fn directions(&self, bytes: f64, costs: &LinkCosts) -> Directions {
        let LinkCosts { within, across, .. } = costs;
        let (columns, peers) = (self.columns as f64, (self.columns - 1) as f64);
        // The root's port; the interface of its host carries no more.
        let taken = |(host, workers): (usize, &Vec<Rank>)| {
            let link = if self.root_host == Some(host) { within } else { across };
            workers.len() as f64 * link.overhead + bytes * link.beta
        };
        let pulled = self.hosts.iter().enumerate().map(taken).sum::<f64>();
        let pushed = pulled + (self.hosts.len() - 1) as f64 * bytes * within.gamma;
        let everyone_beside = self.hosts.len() == 1 && self.root_host == Some(0);
        let link = if everyone_beside { within } else { across };
        // The first columns are complete, and leave, while the last host's others come in; but those of the root's host wait
        // until its port has nothing else to take.
        let last = self.hosts.last().map_or(1, Vec::len) as f64;
        let waits = self.root_host == Some(self.hosts.len() - 1) && !everyone_beside;
        let overlap = if waits { 0.0 } else { (last - 1.0) * busy(link, bytes / last) };
        let column = bytes / columns;
        let (folding, gathering) = (busy_folding(within, column), peers * busy(within, column));
        let within_latency = if peers > 0.0 { within.latency() } else { 0.0 };
        Directions {
            // The members of a host start one after the other, because all of them add in the same order.
            scattered: within_latency + (2.0 * peers - 1.0).max(0.0) * folding,
            scattering: peers * folding,
            exchanged: busy(link, column),
            pushed,
            pulled,
            latency: link.latency(),
            overlap,
            gathered: within_latency + gathering,
            gathering,
        }
    }
}

/// Seconds of the phases of a push and a pull, as if all hosts had as many workers as the largest.
pub(crate) struct Directions {
    /// Until a host's sums are complete; and of it, how long a worker's port is busy.
    scattered: f64,
    scattering: f64,
    /// A worker's port: its columns to or from the root.
    exchanged: f64,
    /// The root's port: in, and out.
    pushed: f64,
    pulled: f64,
    /// Of a message to or from the root.
    latency: f64,
    /// Of push and pull at the root.
    overlap: f64,
    /// From the root's sum to everyone on a host; and how long a worker's port is busy.
    gathered: f64,
    gathering: f64,
}

impl Directions {
    /// Of a push.
    pub fn push(&self) -> TileSeconds {
        let first = self.scattered + self.latency + self.pushed;
        TileSeconds::pipeline(first, self.pushed.max(self.scattering + self.exchanged))
    }

    /// Of a push and the pull that follows it.
    pub fn push_pull(&self) -> TileSeconds {
        let served = 2.0 * self.latency + self.pushed + self.pulled - self.overlap;
        let worker = self.scattering + self.exchanged + self.gathering;
        TileSeconds::pipeline(self.scattered + served + self.gathered, self.pushed.max(worker))
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::CollectiveKind;

    use super::*;
    use crate::program::Action;
    use crate::{push, push_pull};

    /// Whom a root hears, and whether it is the last that it adds.
    fn heard(topology: &Topology, root: Rank) -> Vec<(Rank, bool)> {
        let place = Place { kind: CollectiveKind::PushPull, rank: root, world: topology.world(), root };
        let steps = Workers::rank_program(place, topology, true).steps;
        let heard = steps.iter().filter_map(|step| match step.action {
            Action::Receive { from, fold, .. } => Some((from, fold.is_some_and(|fold| fold.last))),
            _ => None,
        });
        heard.collect()
    }

    #[test]
    fn the_root_adds_in_the_order_of_the_hosts_wherever_it_is() {
        let topology = Topology::of_hosts(&[0, 1, 0, 2, 1, 2]);
        assert_eq!(heard(&topology, 5), [(0, false), (2, false), (1, false), (4, false), (3, true)]);
        assert_eq!(heard(&topology, 0), [(2, false), (1, false), (4, false), (3, true), (5, true)]);
    }

    #[test]
    fn whoever_comes_early_costs_the_root_no_memory() {
        for root in 0..9 {
            let place = |kind| Place { kind, rank: root, world: 9, root };
            for (kind, pulls) in [(CollectiveKind::Push, false), (CollectiveKind::PushPull, true)] {
                let program = Workers::rank_program(place(kind), &Topology::regular(3, 3), pulls);
                assert_eq!(program.scratch_blocks, 0, "{kind}, root {root}");
            }
        }
    }

    #[test]
    fn both_halves_add_alike() {
        let topology = Topology::of_hosts(&[0, 0, 1, 1, 1, 0]);
        let adding = |algorithm: &dyn crate::Algorithm, rank| {
            let steps = algorithm.rank_program(rank, &topology, 5).steps.into_iter();
            let adds = |action: &Action| match action {
                Action::Receive { from, fold, into, .. } => fold.map(|_| (*from, into.part, into.parts)),
                Action::Combine { into, .. } => Some((rank, into.part, into.parts)),
                _ => None,
            };
            steps.filter_map(|step| adds(&step.action)).collect::<Vec<_>>()
        };
        for rank in 0..6 {
            assert_eq!(adding(&push::Hierarchical, rank), adding(&push_pull::Hierarchical, rank), "rank {rank}");
        }
    }
}
