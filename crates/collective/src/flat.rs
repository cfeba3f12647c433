use paceline_plan::{CollectiveKind, LinkCost, LinkCosts, Rank};

use crate::{Algorithm, RankProgram, TileSeconds, Topology};

/// An [`Algorithm`] that does not ask which ranks share a host: a function of the world's size alone.
///
/// Where all links are alike its formulas are exact (or as `docs/algorithms.md` says). Where only some ranks share a host
/// they are an estimate, from how many of its messages cross: the network interface of the busiest host is a port
/// besides.
pub trait FlatAlgorithm: Send + Sync {
    /// As [`Algorithm::name`].
    fn name(&self) -> &'static str;

    /// As [`Algorithm::kind`].
    fn kind(&self) -> CollectiveKind;

    /// As [`Algorithm::supports`].
    fn supports(&self, world: usize) -> bool {
        world >= 1
    }

    /// As [`Algorithm::variable_counts`].
    fn variable_counts(&self) -> bool {
        true
    }

    /// As [`Algorithm::for_network`].
    fn for_network(&self) -> bool {
        false
    }

    /// To whom a rank sends, to all of them about the same. None: to everybody, or to nobody in particular.
    fn peers(&self, _rank: Rank, _world: usize) -> Option<Vec<Rank>> {
        None
    }

    /// As [`Algorithm::parts`].
    fn parts(&self, world: usize) -> u32;

    /// As [`Algorithm::rank_program`].
    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram;

    /// As [`Algorithm::messages`].
    fn messages(&self, world: usize) -> usize;

    /// As [`Algorithm::rounds`].
    fn rounds(&self, world: usize) -> usize;

    /// As [`Algorithm::bytes_sent`].
    fn bytes_sent(&self, world: usize, bytes: f64) -> f64;

    /// As [`Algorithm::fan_in`].
    fn fan_in(&self, world: usize) -> usize {
        world.saturating_sub(1)
    }

    /// As [`Algorithm::tile_seconds`], on links that are all alike.
    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds;

    /// The same where receivers fetch ([`LinkCosts::fetched`]). Where no rank sends to several at once, nothing
    /// changes; a binomial tree's root does, and takes less than its formula says.
    fn fetched_tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        FlatAlgorithm::tile_seconds(self, world, bytes, link)
    }

    /// Seconds for which what one rank sends in a tile keeps a port busy.
    #[doc(hidden)]
    fn sent_by_one(&self, world: usize, bytes: f64, link: &LinkCost) -> f64 {
        self.messages(world) as f64 / world as f64 * link.overhead + self.bytes_sent(world, bytes) * link.beta
    }
}

impl<A: FlatAlgorithm> Algorithm for A {
    fn name(&self) -> &'static str {
        FlatAlgorithm::name(self)
    }

    fn kind(&self) -> CollectiveKind {
        FlatAlgorithm::kind(self)
    }

    fn supports(&self, world: usize) -> bool {
        FlatAlgorithm::supports(self, world)
    }

    fn variable_counts(&self) -> bool {
        FlatAlgorithm::variable_counts(self)
    }

    fn for_network(&self) -> bool {
        FlatAlgorithm::for_network(self)
    }

    fn parts(&self, topology: &Topology) -> u32 {
        FlatAlgorithm::parts(self, topology.world())
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        FlatAlgorithm::rank_program(self, rank, topology.world(), root)
    }

    fn messages(&self, topology: &Topology) -> usize {
        FlatAlgorithm::messages(self, topology.world())
    }

    fn rounds(&self, topology: &Topology) -> usize {
        FlatAlgorithm::rounds(self, topology.world())
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        FlatAlgorithm::bytes_sent(self, topology.world(), bytes)
    }

    fn fan_in(&self, topology: &Topology) -> usize {
        FlatAlgorithm::fan_in(self, topology.world())
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        let world = topology.world();
        let on = |link: &LinkCost| FlatAlgorithm::tile_seconds(self, world, bytes, link);
        if topology.hosts() == 1 {
            let fetched = || self.fetched_tile_seconds(world, bytes, &costs.within);
            return if costs.fetched { fetched() } else { on(&costs.within) };
        }
        if topology.is_flat() {
            return on(&costs.across);
        }
        let crossing = Crossing::of(self, topology);
        let interface = crossing.most * self.sent_by_one(world, bytes, &costs.across);
        // The busiest port is one that leads to another host.
        let next = on(&costs.across.max(&costs.within)).next.max(interface);
        on(&crossing.mean_link(costs)).beside(next, &costs.across)
    }
}

/// What of an algorithm's messages leaves a host.
struct Crossing {
    /// The traffic of how many ranks the interface of the busiest host carries.
    most: f64,
    /// The share of all messages, if they go to the same peers all the time.
    share: Option<f64>,
}

impl Crossing {
    fn of(algorithm: &impl FlatAlgorithm, topology: &Topology) -> Self {
        let world = topology.world();
        let leaving = |rank: Rank| {
            let peers = algorithm.peers(rank, world)?;
            let outside = peers.iter().filter(|&&peer| !topology.same_host(rank, peer)).count();
            Some(outside as f64 / peers.len().max(1) as f64)
        };
        let Some(ranks) = (0..world).map(leaving).collect::<Option<Vec<f64>>>() else {
            // With a root, the root's own port is what is busiest.
            let evenly = |members: usize| (members * (world - members)) as f64 / (world - 1) as f64;
            let most = (0..topology.hosts()).map(|host| evenly(topology.members(host).len())).fold(0.0, f64::max);
            return Crossing { most: if algorithm.kind().has_root() { 0.0 } else { most }, share: None };
        };
        let of_host = |host| topology.members(host).iter().map(|&rank| ranks[rank]).sum::<f64>();
        Crossing {
            most: (0..topology.hosts()).map(of_host).fold(0.0, f64::max),
            share: Some(ranks.iter().sum::<f64>() / world as f64),
        }
    }

    /// A chain of messages crosses so often; if it is not known how often, always.
    fn mean_link(&self, costs: &LinkCosts) -> LinkCost {
        let LinkCosts { within, across, .. } = costs;
        let Some(share) = self.share else { return across.max(within) };
        let mean = |within: f64, across: f64| within + share * (across - within);
        LinkCost {
            alpha: mean(within.alpha, across.alpha),
            overhead: mean(within.overhead, across.overhead),
            beta: mean(within.beta, across.beta),
            gamma: mean(within.gamma, across.gamma),
        }
    }
}
