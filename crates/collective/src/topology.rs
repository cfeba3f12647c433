//! Which ranks share a host.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use paceline_plan::{Rank, Shape};

/// How many ranks there are, and on which host each of them is. Cheap to clone.
///
/// Hosts may have unequal numbers of ranks, and the ranks of a host need not be consecutive. Hosts are numbered from 0
/// in the order of their first ranks, so two topologies are equal if the same ranks share hosts (and the hosts stand in the same
/// torus or BCube, or in none).
///
/// ```
/// use paceline_collective::Topology;
///
/// let topology = Topology::of_hosts(&[7, 7, 3, 7]);
/// assert_eq!((topology.world(), topology.hosts()), (4, 2));
/// assert_eq!(topology.members(0), [0, 1, 3]);
/// assert_eq!((topology.host(2), topology.index_on_host(3)), (1, 2));
/// ```
#[derive(Clone)]
pub struct Topology(Arc<Layout>);

struct Layout {
    /// The host of each rank, and its place among the host's ranks.
    places: Vec<(usize, usize)>,
    /// The ranks of each host, rising.
    members: Vec<Vec<Rank>>,
    /// How the hosts are wired, if anybody has said so.
    wiring: Option<Wiring>,
}

/// A network that gives each host several ports, which programs can follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wiring {
    /// Its sides.
    Torus([usize; 2]),
    /// The ports of a switch, and the levels.
    BCube { ports: usize, levels: usize },
}

impl Topology {
    /// All ranks on one host.
    pub fn flat(world: usize) -> Self {
        Topology::regular(1, world)
    }

    /// So many hosts with so many ranks each, one host after the other.
    pub fn regular(hosts: usize, ranks_per_host: usize) -> Self {
        Topology::filled(hosts * ranks_per_host, ranks_per_host)
    }

    /// So many ranks on hosts with room for so many each, one host after the other: the last one may have fewer. Takes no
    /// longer than its ranks, where [`Topology::of_hosts`] compares hosts with each other.
    ///
    /// # Panics
    /// If there are ranks, and no room for any.
    pub fn filled(world: usize, ranks_per_host: usize) -> Self {
        let places = (0..world).map(|rank| (rank / ranks_per_host, rank % ranks_per_host)).collect();
        let ranks: Vec<Rank> = (0..world).collect();
        let members = ranks.chunks(ranks_per_host.max(1)).map(<[Rank]>::to_vec).collect();
        Topology(Arc::new(Layout { places, members, wiring: None }))
    }

    /// The host of each rank, by any numbers that differ between hosts.
    pub fn of_hosts<H: PartialEq>(hosts: &[H]) -> Self {
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut places = Vec::with_capacity(hosts.len());
        for (rank, host) in hosts.iter().enumerate() {
            let known = members.iter().position(|members| hosts[members[0]] == *host);
            let number = known.unwrap_or(members.len());
            if known.is_none() {
                members.push(Vec::new());
            }
            places.push((number, members[number].len()));
            members[number].push(rank);
        }
        Topology(Arc::new(Layout { places, members, wiring: None }))
    }

    /// The same ranks, on hosts that are connected in this way. Only a torus and a BCube change anything.
    pub fn on(&self, shape: Shape) -> Self {
        match shape {
            Shape::Torus { x, y } => self.on_torus(x, y),
            Shape::BCube { ports, levels } => self.on_bcube(ports, levels),
            Shape::Flat | Shape::Tree(_) | Shape::FatTree { .. } => self.clone(),
        }
    }

    /// The same ranks, on hosts that stand on a torus: host h in column h mod x of row ⌊h/x⌋. Where there are not x·y hosts, nothing
    /// changes.
    pub fn on_torus(&self, x: usize, y: usize) -> Self {
        self.wired(Wiring::Torus([x, y]), x.checked_mul(y))
    }

    /// The same ranks, on hosts that stand in a BCube: the switches of level l, of so many `ports`, join the hosts whose numbers,
    /// written in base `ports`, differ in digit l only, the lowest digit being that of level 0. Where there are not `ports` to the
    /// power of `levels` hosts, nothing changes.
    pub fn on_bcube(&self, ports: usize, levels: usize) -> Self {
        let places = u32::try_from(levels).ok().and_then(|levels| ports.checked_pow(levels));
        // Switches of one port join nobody.
        self.wired(Wiring::BCube { ports, levels }, places.filter(|_| ports > 1))
    }

    fn wired(&self, wiring: Wiring, places: Option<usize>) -> Self {
        if places != Some(self.hosts()) {
            return self.clone();
        }
        let Layout { places, members, .. } = &*self.0;
        Topology(Arc::new(Layout { places: places.clone(), members: members.clone(), wiring: Some(wiring) }))
    }

    /// How the hosts are wired, as somebody has said: a torus, a BCube, or flat if nobody has. Programs follow it where
    /// [`Topology::torus`] or [`Topology::bcube`] says so.
    pub fn shape(&self) -> Shape {
        match self.0.wiring {
            Some(Wiring::Torus([x, y])) => Shape::Torus { x, y },
            Some(Wiring::BCube { ports, levels }) => Shape::BCube { ports, levels },
            None => Shape::Flat,
        }
    }

    /// How the hosts are wired, if programs can follow that: none does where ranks share hosts.
    fn followed(&self) -> Option<Wiring> {
        self.0.wiring.filter(|_| self.hosts() == self.world())
    }

    /// The sides of the torus on which the ranks stand, each on a host of its own. None: nobody has said that they do.
    pub fn torus(&self) -> Option<[usize; 2]> {
        if let Some(Wiring::Torus(sides)) = self.followed() { Some(sides) } else { None }
    }

    /// The ports of a switch and the levels of the BCube in which the ranks stand, each on a host of its own. None: nobody has
    /// said that they do.
    pub fn bcube(&self) -> Option<(usize, usize)> {
        match self.followed() {
            Some(Wiring::BCube { ports, levels }) => Some((ports, levels)),
            _ => None,
        }
    }

    /// The topology of some of the ranks, renumbered in the order given. If all hosts are among theirs, in the order in which they
    /// were, they stand in the same torus or BCube.
    pub fn subset(&self, ranks: &[Rank]) -> Self {
        let hosts: Vec<usize> = ranks.iter().map(|&rank| self.host(rank)).collect();
        let subset = Topology::of_hosts(&hosts);
        let in_order = subset.0.members.iter().map(|members| hosts[members[0]]).eq(0..self.hosts());
        match self.0.wiring {
            Some(wiring) if in_order => subset.wired(wiring, Some(self.hosts())),
            _ => subset,
        }
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.0.places.len()
    }

    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        self.0.members.len()
    }

    /// The host of a rank.
    pub fn host(&self, rank: Rank) -> usize {
        self.0.places[rank].0
    }

    /// The ranks of a host, rising.
    pub fn members(&self, host: usize) -> &[Rank] {
        &self.0.members[host]
    }

    /// Which of its host's ranks a rank is, from 0.
    pub fn index_on_host(&self, rank: Rank) -> usize {
        self.0.places[rank].1
    }

    /// Are two ranks on one host?
    pub fn same_host(&self, one: Rank, other: Rank) -> bool {
        self.host(one) == self.host(other)
    }

    /// The ranks of the host that has the most.
    pub fn ranks_per_host_max(&self) -> usize {
        self.0.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Are all links of one kind: are all ranks on one host, or each on its own?
    pub fn is_flat(&self) -> bool {
        self.hosts() <= 1 || self.hosts() == self.world()
    }
}

impl PartialEq for Topology {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.places == other.0.places && self.0.wiring == other.0.wiring)
    }
}

impl Eq for Topology {}

impl Hash for Topology {
    /// The ranks of one host, the common case, cost no more than a number.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.world().hash(state);
        if self.hosts() > 1 {
            self.0.places.hash(state);
        }
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.0.members).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_means_that_the_same_ranks_share_hosts() {
        assert_eq!(Topology::of_hosts(&["b", "a", "b"]), Topology::of_hosts(&[0, 1, 0]));
        assert_ne!(Topology::of_hosts(&[0, 1, 0]), Topology::of_hosts(&[0, 0, 1]));
        assert_eq!(Topology::regular(2, 2), Topology::of_hosts(&[5, 5, 1, 1]));
        assert_eq!(Topology::regular(3, 2).subset(&[4, 0, 1]), Topology::of_hosts(&[2, 0, 0]));
        assert_eq!(Topology::filled(5, 2), Topology::of_hosts(&[0, 0, 1, 1, 2]));
        assert_eq!((Topology::filled(5, 2).members(2), Topology::flat(0).hosts()), (&[4][..], 0));
        assert_eq!(format!("{:?}", Topology::of_hosts(&[1, 2, 1])), "[[0, 2], [1]]");
    }

    #[test]
    fn a_torus_has_a_place_for_each_host() {
        let hosts = Topology::regular(6, 1);
        let there = hosts.on_torus(3, 2);
        assert_eq!((there.torus(), hosts.torus()), (Some([3, 2]), None));
        assert_ne!(there, hosts);
        assert_ne!(there, hosts.on_torus(2, 3));
        assert_eq!(
            (there.subset(&[0, 1]).torus(), hosts.on_torus(4, 2), hosts.on_torus(3, usize::MAX)),
            (None, hosts.clone(), hosts)
        );
        assert_eq!(Topology::regular(6, 2).on_torus(3, 2).torus(), None);
    }

    #[test]
    fn programs_follow_the_wiring_where_each_rank_has_a_host_of_its_own() {
        let shared = Topology::regular(4, 2).on(Shape::Torus { x: 2, y: 2 });
        assert_eq!(shared.torus(), None);
        let of = |ranks: &[Rank]| shared.subset(ranks).torus();
        // One rank of each host; but not some of the hosts, or all of them in another order.
        assert_eq!([of(&[0, 2, 4, 6]), of(&[1, 2, 5, 6])], [Some([2, 2]); 2]);
        assert_eq!([of(&[0, 2, 4]), of(&[2, 0, 4, 6]), of(&[0, 1, 2, 4, 6])], [None; 3]);
        // Workers, and behind them servers that live beside two of them.
        let world = Topology::of_hosts(&[0, 1, 2, 3, 0, 2]).on(Shape::BCube { ports: 2, levels: 2 });
        assert_eq!((world.bcube(), world.subset(&[0, 1, 2, 3]).bcube()), (None, Some((2, 2))));
        assert_eq!(world.on(Shape::Flat), world);
        // Hosts are wired whether programs can follow that or not.
        let shapes = [&world, &shared, &shared.subset(&[0, 2, 4])].map(Topology::shape);
        assert_eq!(shapes, [Shape::BCube { ports: 2, levels: 2 }, Shape::Torus { x: 2, y: 2 }, Shape::Flat]);
    }

    #[test]
    fn a_bcube_has_a_place_for_each_host() {
        let hosts = Topology::regular(16, 1);
        let there = hosts.on_bcube(2, 4);
        assert_eq!((there.bcube(), there.torus(), hosts.bcube()), (Some((2, 4)), None, None));
        assert!(there != hosts && there != hosts.on_bcube(4, 2) && there != hosts.on_torus(4, 4));
        assert_eq!((hosts.on_bcube(2, 3), hosts.on_bcube(2, usize::MAX)), (hosts.clone(), hosts));
        assert_eq!(Topology::flat(1).on_bcube(1, 9).bcube(), None);
        assert_eq!(Topology::regular(8, 2).on_bcube(2, 3).bcube(), None);
    }

    #[test]
    fn flat_is_one_host_or_one_rank_on_each() {
        assert!(Topology::flat(1).is_flat() && Topology::flat(7).is_flat() && Topology::regular(5, 1).is_flat());
        assert!(!Topology::regular(2, 2).is_flat() && !Topology::of_hosts(&[0, 1, 0]).is_flat());
    }
}
