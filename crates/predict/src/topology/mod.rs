//! The hosts of a cluster, and the links between them.
//!
//! A [`Network`] is a list of directed links with a capacity and a latency; a route is a list of them. Which one a message
//! takes is a function of its two ranks and a [`PathChoice`], so two runs take the same.
//!
//! Latency: what leaves a host pays the class's alpha less its overhead, also if the host only passes it on (in a torus, in
//! BCube); a switch beyond the first adds [`Speeds::hop_s`].

mod bcube;
mod switched;
mod torus;

use paceline_plan::{Hosts, LinkClass, LinkCost, LinkCosts, NetworkModel, Rank, ShapeError};
pub use paceline_plan::{Shape, Switches};

use bcube::BCube;
use switched::Switched;
use torus::Torus;

/// The number of a link in [`Network::links`].
pub type LinkId = u32;

/// One direction of a cable, or of a rank's port within its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Where it begins.
    pub from: Node,
    /// Where it ends.
    pub to: Node,
    /// Bytes per second.
    pub capacity: f64,
    /// Seconds that it adds to the latency of whatever takes it.
    pub latency_s: f64,
}

/// What links connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A worker.
    Rank(usize),
    /// A host, where its network interfaces are.
    Host(usize),
    /// A switch: the tier of a tree (0 is next to the hosts) or the level of a BCube, and its number there.
    Switch {
        /// Tier or level.
        tier: usize,
        /// Which one of it.
        number: usize,
    },
}

/// How fast the links are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Links within a host, and between hosts: each port of a host's interface (one; in a torus up to four, in BCube one
    /// per level) carries what `across` says, in each direction.
    pub network: NetworkModel,
    /// Seconds that a switch beyond the first adds to a message's latency.
    pub hop_s: f64,
    /// Do receivers fetch from within their hosts ([`paceline_plan::LinkCosts::fetched`])? Then the sender's port is not in
    /// the way: many fetch from one as fast as one does.
    pub fetched: bool,
}

/// Which of several routes between two ranks. What does not matter in a shape is ignored. The default is what the shape says,
/// and otherwise what hardware does that was told nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathChoice {
    /// How the traffic between two switches of a fat-tree spreads over the spines.
    pub spines: Spines,
    /// Torus: along the column first, then along the row. Otherwise the other way round.
    pub y_first: bool,
    /// BCube: on which levels the digits are set right, the first one first. Levels that are not named follow, the highest
    /// first.
    pub levels: Vec<usize>,
}

/// How the traffic between two switches of a fat-tree spreads over the spines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spines {
    /// As the shape says: where it is `hashed` by a hash with seed 0, otherwise by the receiver.
    #[default]
    OfShape,
    /// By the receiver's number, modulo the number of spines: the shifts of a ring never meet where all switches are full and
    /// have a spine for each of their hosts.
    ///
    /// Source: D-mod-K in Zahavi, "Fat-tree routing and node ordering providing contention free traffic for MPI global
    /// collectives" (2012).
    ByReceiver,
    /// By a hash of sender and receiver, as equal-cost multi-path routing does: flows may meet although there is room.
    ///
    /// Source: Hopps, "Analysis of an equal-cost multi-path algorithm" (RFC 2992, 2000).
    Hash {
        /// Another seed, another way to meet.
        seed: u64,
    },
}

/// The way of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The links, in order. Each begins where the one before ends.
    pub links: Vec<LinkId>,
    /// Seconds from the moment at which the last byte has left to that at which it has arrived.
    pub latency_s: f64,
    /// What a message costs besides its bytes: it keeps the links busy as if it were so many bytes longer. (Its overhead,
    /// at the speed of the first link.)
    pub overhead_bytes: f64,
}

/// A cluster's ranks, hosts, switches and links.
#[derive(Clone, Debug)]
pub struct Network {
    shape: Shape,
    hosts: Hosts,
    speeds: Speeds,
    links: Vec<Link>,
    wiring: Wiring,
    /// Has this host more than one rank?
    shared: Vec<bool>,
}

/// The links between hosts, by number.
#[derive(Clone, Debug)]
enum Wiring {
    Switched(Switched),
    Torus(Torus),
    BCube(BCube),
}

/// Why there is no such network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The shape makes no sense, or has no room for so many hosts.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A link cannot be like this.
    #[error("{field} is {value}: {reason}")]
    Speed {
        /// Which number, as in `across.alpha_s`.
        field: String,
        /// What it is.
        value: String,
        /// What it should be.
        reason: &'static str,
    },
}

/// No link is faster than a petabyte per second: a capacity is a number.
const BETA_MIN: f64 = 1e-15;

impl Speeds {
    /// Of a network whose switches add nothing, and whose receivers fetch nothing.
    pub fn of(network: NetworkModel) -> Speeds {
        Speeds { network, hop_s: 0.0, fetched: false }
    }

    /// As the cost model of collectives has the links, with what each switch beyond the first adds.
    pub fn of_costs(costs: &LinkCosts, hop_s: f64) -> Speeds {
        let class =
            |link: &LinkCost| LinkClass { alpha_s: link.alpha, overhead_s: link.overhead, beta_s_per_byte: link.beta };
        let network = NetworkModel { within: class(&costs.within), across: class(&costs.across) };
        Speeds { network, hop_s, fetched: costs.fetched }
    }

    fn check(&self) -> Result<(), TopologyError> {
        let error = |class: &str, name: &str, value: f64, reason| {
            Err(TopologyError::Speed { field: format!("{class}{name}"), value: value.to_string(), reason })
        };
        let NetworkModel { within, across } = &self.network;
        for (class, LinkClass { alpha_s, overhead_s, beta_s_per_byte }) in [("within.", within), ("across.", across)] {
            for (name, value) in
                [("alpha_s", *alpha_s), ("overhead_s", *overhead_s), ("beta_s_per_byte", *beta_s_per_byte)]
            {
                if !is_time(value) {
                    return error(class, name, value, NO_TIME);
                }
            }
            if overhead_s > alpha_s {
                return error(class, "overhead_s", *overhead_s, "it is part of alpha_s, and at most as long");
            }
        }
        if is_time(self.hop_s) { Ok(()) } else { error("", "hop_s", self.hop_s, NO_TIME) }
    }
}

const NO_TIME: &str = "give seconds, from 0 to 10⁶";

/// As long as a cluster's constants may be. What is sent in that time is still a number.
fn is_time(seconds: f64) -> bool {
    (0.0..=1e6).contains(&seconds)
}

/// Bytes per second of a class of links.
fn capacity(class: &LinkClass) -> f64 {
    1.0 / class.beta_s_per_byte.max(BETA_MIN)
}

impl Network {
    /// Builds the links.
    ///
    /// # Errors
    /// If the shape makes no sense, or has no room for exactly so many hosts, or a speed is no time.
    pub fn new(shape: Shape, hosts: &Hosts, speeds: &Speeds) -> Result<Network, TopologyError> {
        let count = hosts.count();
        shape.check(count)?;
        speeds.check()?;
        let mut links = Vec::new();
        for (rank, &host) in hosts.by_rank().iter().enumerate() {
            let class = &speeds.network.within;
            let (from, to) = (Node::Rank(rank), Node::Host(host));
            let latency_s = class.alpha_s - class.overhead_s;
            links.push(Link { from, to, capacity: capacity(class), latency_s });
            links.push(Link { from: to, to: from, capacity: capacity(class), latency_s: 0.0 });
        }
        let wiring = match shape {
            Shape::Flat => Wiring::Switched(Switched::flat(count, speeds, &mut links)),
            Shape::Tree(switches) => Wiring::Switched(Switched::tree(count, &switches, speeds, &mut links)),
            Shape::FatTree { switches, hashed } => {
                Wiring::Switched(Switched::fat_tree(count, &switches, hashed, speeds, &mut links))
            }
            Shape::Torus { x, y } => Wiring::Torus(Torus::new(x, y, speeds, &mut links)),
            Shape::BCube { ports, levels } => Wiring::BCube(BCube::new(ports, levels, speeds, &mut links)),
        };
        let mut ranks = vec![0; count];
        hosts.by_rank().iter().for_each(|&host| ranks[host] += 1);
        let shared = ranks.iter().map(|&ranks| ranks > 1).collect();
        Ok(Network { shape, hosts: hosts.clone(), speeds: *speeds, links, wiring, shared })
    }

    /// How the hosts are connected.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.hosts.ranks()
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The port at which a rank takes in: its own one within its host if others share the host, or if the host has several
    /// ports to other hosts; otherwise that of its host.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn port_in(&self, rank: Rank) -> LinkId {
        let host = self.hosts.host(rank);
        match &self.wiring {
            Wiring::Switched(switched) if !self.shared[host] => switched.down(host),
            _ => rank_in(rank),
        }
    }

    /// The way from one rank to another; empty from a rank to itself.
    ///
    /// Between ranks of one host it leads through their two ports there; through the receiver's alone, where that fetches.
    /// Between hosts it also leads through the ranks' ports where several ranks share the host, unless the network is the
    /// faster one: then what leaves the host evidently goes past these ports.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn route(&self, from: Rank, to: Rank, choice: &PathChoice) -> Route {
        let NetworkModel { within, across } = &self.speeds.network;
        let (sender, receiver) = (self.hosts.host(from), self.hosts.host(to));
        if from == to {
            return Route { links: Vec::new(), latency_s: 0.0, overhead_bytes: 0.0 };
        }
        if sender == receiver {
            let links = if self.speeds.fetched { vec![rank_in(to)] } else { vec![rank_out(from), rank_in(to)] };
            let overhead_bytes = within.overhead_s * capacity(within);
            return Route { links, latency_s: within.alpha_s - within.overhead_s, overhead_bytes };
        }
        let mut links = self.path(sender, receiver, choice);
        let latency_s = links.iter().map(|&link| self.links[link as usize].latency_s).sum();
        let overhead_bytes = across.overhead_s * self.links[links[0] as usize].capacity;
        if within.beta_s_per_byte <= across.beta_s_per_byte {
            // Its latency is part of alpha already.
            if self.shared[sender] {
                links.insert(0, rank_out(from));
            }
            if self.shared[receiver] {
                links.push(rank_in(to));
            }
        }
        Route { links, latency_s, overhead_bytes }
    }

    /// The links at whose ports a message takes its turn over an emulated network, where it leaves and where it enters: those of the two
    /// hosts; within a host, of the two ranks.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn ports(&self, from: Rank, to: Rank, choice: &PathChoice) -> [LinkId; 2] {
        let (sender, receiver) = (self.hosts.host(from), self.hosts.host(to));
        if sender == receiver {
            return [rank_out(from), rank_in(to)];
        }
        let path = self.path(sender, receiver, choice);
        [path[0], path[path.len() - 1]]
    }

    /// The links from one host to another.
    fn path(&self, from: usize, to: usize, choice: &PathChoice) -> Vec<LinkId> {
        let mut links = Vec::with_capacity(6);
        match &self.wiring {
            Wiring::Switched(switched) => switched.path(from, to, choice, &mut links),
            Wiring::Torus(torus) => torus.path(from, to, choice, &mut links),
            Wiring::BCube(bcube) => bcube.path(from, to, choice, &mut links),
        }
        links
    }
}

fn rank_out(rank: Rank) -> LinkId {
    2 * rank as LinkId
}

fn rank_in(rank: Rank) -> LinkId {
    2 * rank as LinkId + 1
}

/// Adds a link and gives its number.
fn add(links: &mut Vec<Link>, from: Node, to: Node, capacity: f64, latency_s: f64) -> LinkId {
    links.push(Link { from, to, capacity, latency_s });
    links.len() as LinkId - 1
}

#[cfg(test)]
mod tests;
