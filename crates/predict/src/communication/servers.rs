//! What partitions cost on their way to servers and back.
//!
//! Workers of a host add up their gradients among themselves first, so each partition leaves a host once; push and pull use
//! both directions of an interface at once. Stages follow each other partition by partition, and the slowest bounds an
//! iteration, not the sum of all.
//!
//! Source: Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU
//! clusters" (BytePS), OSDI 2020, §3 and §4.

use paceline_engine::shard::Mode;
use paceline_plan::{Cluster, LinkCost, OperationConstants, Plan};
use paceline_schedule::ELEMENT_BYTES;
use paceline_strategy::Servers;

use super::partition_tiles::PartitionTiles;
use super::server_hosts::{hosts_that_serve, supposed};
use super::servers_on_topology::on_topology;
use super::{Traffic, World, all_reduce_factor, servers_by_message};
use crate::interval::MODEL;
use crate::iteration::{Line, Operations, Part};
use crate::prediction::Bottleneck;

/// What partitions cost, by their bytes and their server.
pub(crate) struct ServerCosts {
    pub(super) world: World,
    pub(super) servers: Servers,
    /// How many places there are at which servers may be: hosts, or on one host ranks.
    pub(super) places: usize,
    /// Have servers interfaces that nobody else uses?
    of_their_own: bool,
    /// Seconds in front of each operation, one after the other.
    pub(super) start_s: f64,
    /// On the bus of a host: seconds of each partition, of the messages of each tile, and per byte.
    bus_s: f64,
    bus_tile_s: f64,
    bus_s_per_byte: f64,
    /// Of the latter what bytes take that move within the host. By message the network's time is in the former, too.
    moving_s_per_byte: f64,
    /// Is what goes to servers beside the workers carried by these workers' ports?
    through_ports: bool,
    /// Do workers add up anything there among themselves?
    adds_up: bool,
    /// Seconds per byte of a transfer between ranks of a host.
    within_beta: f64,
    /// On an interface: seconds of each partition, of each message, and per byte.
    partition_s: f64,
    /// Messages in which each of those that push does so with a tile: a worker of a host sends the part that it has added up.
    messages: f64,
    /// Into which tiles partitions are cut.
    tiles: PartitionTiles,
    link: LinkCost,
    /// Seconds per byte of an interface where there is a server: that of a host which only serves may differ.
    own_beta: f64,
    /// What one costs that overtakes others.
    operation: OperationConstants,
    /// On a server's processor: seconds per byte, of all contributions; and of the optimiser.
    combine_s_per_byte: f64,
    apply_s_per_byte: f64,
    /// Why that may be wrong: what the topology does to the links, hosts that the cluster does not have.
    pub(super) doubts: Vec<String>,
}

/// How the doubt begins that partitions are few for so many servers.
pub(crate) const FEW_PARTITIONS: &str = "few partitions for each of";

/// To a server and back.
const ROUNDS: usize = 2;

/// Where servers have interfaces of their own, as many as push to them, and bytes spread over them as evenly as this, workers'
/// interfaces bound them: partitions are on their way to several servers at once ([`ServerCosts::is_even`]).
const EVEN: f64 = 1.1;

/// Where there are more servers than twice this, only so many of those that carry most and of those that carry the last
/// partitions are simulated: of the others hardly one is the last to fall silent.
const INTERFACES: usize = 32;

impl ServerCosts {
    /// Of these servers by formulas, with `start_s` in front of each operation. `update_s_per_byte` is what the optimiser takes, if
    /// the servers have it.
    pub fn of(cluster: &Cluster, world: World, servers: Servers, start_s: f64, update_s_per_byte: f64) -> ServerCosts {
        let costs = cluster.link_costs_among(world.hosts);
        let constants = &cluster.server;
        let between = world.hosts > 1;
        let (workers_hosts, dedicated) = (world.hosts, servers.dedicated);
        let of_their_own = dedicated || (!between && constants.own_ports);
        let places = match (between, dedicated) {
            (true, true) => hosts_that_serve(cluster, workers_hosts),
            (true, false) => workers_hosts,
            // The processes of the servers or their own ports, or the workers beside whom they are.
            (false, _) if of_their_own => servers.shards.max(1),
            (false, _) => world.workers,
        };
        let (link, of_servers) = if between {
            interface_betas(cluster, &costs.across, [servers.shards.clamp(1, places), workers_hosts])
        } else {
            (costs.within, costs.within.beta)
        };
        let (link, of_topology) = on_topology(link, cluster, &world, &servers, places);
        // Whoever is alone on a host, or beside the servers, adds up nothing there.
        let gathers = between || dedicated;
        let (copy, local) = (constants.copy_s_per_byte.value, constants.local_partition_s.value);
        let factor = if gathers { all_reduce_factor(world.per_host) } else { 0.0 };
        let contributions = if between { world.hosts } else { world.workers } as f64;
        // To a server on their own host workers send over the links within it, each its part of the host's sum. Bytes that are
        // copied to the host's memory in any case are there already.
        let own_host = match between && !dedicated && world.per_host > 1 {
            true => costs.within.beta / (world.per_host * servers.shards.clamp(1, places)) as f64,
            false => 0.0,
        };
        let bus_tile_s = if gathers { 2.0 * (world.per_host - 1) as f64 * costs.within.overhead } else { 0.0 };
        let cost_something = bus_tile_s > 0.0 || link.overhead > 0.0;
        let bus_s_per_byte = factor * costs.within.beta + if between { copy.max(own_host) } else { 0.0 };
        ServerCosts {
            world,
            servers,
            places,
            of_their_own,
            start_s,
            bus_s: if gathers { local } else { 0.0 },
            bus_tile_s,
            bus_s_per_byte,
            moving_s_per_byte: bus_s_per_byte,
            // What takes longer to be copied to the host's memory than over a port to the server is read from there: no port carries
            // it, and programs, in which one does, say nothing of it.
            through_ports: between && !dedicated && copy <= own_host,
            adds_up: factor > 0.0,
            within_beta: costs.within.beta,
            partition_s: match (between, gathers) {
                (true, _) => constants.partition_s.value,
                (false, true) => 0.0,
                // On one host workers push to ranks beside them.
                (false, false) => local,
            },
            messages: if between { world.per_host as f64 } else { 1.0 },
            tiles: if cost_something {
                PartitionTiles::of(cluster, &world, dedicated)
            } else {
                PartitionTiles::default()
            },
            link,
            own_beta: if dedicated { of_servers } else { link.beta },
            operation: cluster.operation,
            combine_s_per_byte: (contributions - 1.0) * constants.combine_s_per_byte.value,
            apply_s_per_byte: if servers.apply { update_s_per_byte } else { 0.0 },
            doubts: of_topology.into_iter().chain(supposed(cluster, &world, &servers)).collect(),
        }
    }

    /// The same, but where servers are reached through the ports of workers whom the network outruns, the program decides how long
    /// that takes, if it is short.
    pub fn by_message(mut self, cluster: &Cluster) -> ServerCosts {
        if self.through_ports {
            let costs = cluster.link_costs_among(self.world.hosts);
            let found = servers_by_message::seconds_per_byte(&self.world, self.servers.shards, self.places, &costs);
            self.bus_s_per_byte = found.unwrap_or(0.0).max(self.moving_s_per_byte);
        }
        self
    }

    /// Why what a plan takes may be wrong, in words.
    pub fn doubts(&self, plan: &Plan) -> Vec<String> {
        let few = self.are_few(plan).then(|| {
            format!(
                "{FEW_PARTITIONS} {} servers: these add up in the order of the workers, and until all ports are busy an iteration \
                 may take longer than formulas say (simulate --by-message counts it)",
                self.serving(plan)
            )
        });
        self.doubts.iter().cloned().chain(few).collect()
    }

    /// How many of these are about formulas that leave out what messages know.
    pub fn estimates(&self, plan: &Plan) -> usize {
        usize::from(self.are_few(plan))
    }

    /// Are partitions so few that what formulas leave out may be more than predictions are off anyway?
    fn are_few(&self, plan: &Plan) -> bool {
        self.passed_on(plan) > MODEL
    }

    /// The places that serve, but no more than push.
    fn serving(&self, plan: &Plan) -> usize {
        self.servers.shards.min(self.places).min(plan.shards).min(self.pushing())
    }

    /// How much more a server could have taken in while ports were idle, about, as a share of what it takes in: each of k servers takes in
    /// a tile from one of n workers after the other, so the first worker sends one to each of them before the second can, until k workers
    /// send at once; and in the end the first ones have nothing left. That is k(k − 1) tiles, beside n/k of all. (Of clusters whose
    /// messages cost nothing but their bytes the tiles are not known: their constants are those of other servers, which may take what
    /// comes first.)
    fn passed_on(&self, plan: &Plan) -> f64 {
        if !self.tiles.are_known() || self.world.hosts == 1 {
            return 0.0;
        }
        let tiles: usize =
            plan.partitions().map(|(_, part)| self.tiles.count(part.elements.len() as u64 * ELEMENT_BYTES)).sum();
        let serving = self.serving(plan) as f64;
        serving * (serving - 1.0) / tiles.max(1) as f64 * serving / self.pushing() as f64
    }

    /// How many messages of an operation wait for each other.
    pub fn rounds(&self) -> usize {
        ROUNDS
    }

    /// Do the bytes of an iteration pass through servers at all? Not where the only host's workers have added up everything
    /// among themselves, and what would serve them is elsewhere.
    fn leaves_host(&self) -> bool {
        self.world.hosts > 1 || !self.servers.dedicated
    }

    /// How many push each partition: hosts, which have added it up, or the workers of the only one.
    fn pushing(&self) -> usize {
        if self.world.hosts > 1 { self.world.hosts } else { self.world.workers }
    }

    /// How often an interface carries a partition that goes to the server at `place`: those of workers, and of servers.
    fn carries(&self, interface: Interface, place: usize) -> f64 {
        let pushing = self.pushing() as f64;
        match interface {
            Interface::Workers => 1.0,
            Interface::Server(own) if self.of_their_own => f64::from(u8::from(own == place)) * pushing,
            Interface::Server(own) if own == place => pushing - 1.0,
            // Beside the workers, who push to the others.
            Interface::Server(_) => 1.0,
        }
    }

    /// Seconds for which an interface is busy with a partition that goes to the server at `place`.
    fn interface_busy_s(&self, interface: Interface, bytes: u64, place: usize) -> f64 {
        let times = self.carries(interface, place);
        let beta = match interface {
            Interface::Workers => self.link.beta,
            Interface::Server(_) => self.own_beta,
        };
        let messages = self.messages * self.tiles.count(bytes) as f64;
        let often = times * (messages * self.link.overhead + beta * bytes as f64);
        often + if times > 0.0 { self.partition_s } else { 0.0 }
    }

    fn bus_busy_s(&self, bytes: u64) -> f64 {
        self.bus_s + self.bus_tile_s * self.tiles.count(bytes) as f64 + self.bus_s_per_byte * bytes as f64
    }

    fn server_busy_s(&self, bytes: u64) -> f64 {
        (self.combine_s_per_byte + self.apply_s_per_byte) * bytes as f64
    }

    /// Seconds of a partition that has everything for itself.
    pub fn alone_s(&self, bytes: u64) -> f64 {
        let there_and_back = if self.leaves_host() {
            let busy_s = |interface| self.interface_busy_s(interface, bytes, 0);
            let longest_s = busy_s(Interface::Server(0)).max(busy_s(Interface::Workers));
            longest_s + self.server_busy_s(bytes) + ROUNDS as f64 * self.link.latency()
        } else {
            0.0
        };
        self.start_s + self.bus_busy_s(bytes) + there_and_back
    }

    /// The interfaces that may be the last to fall silent, of a plan that has bytes at these places.
    fn interfaces(&self, bytes_at: &[u64], plan: &Plan) -> Vec<Interface> {
        let mut places: Vec<usize> = (0..bytes_at.len()).filter(|&place| bytes_at[place] > 0).collect();
        if places.len() > 2 * INTERFACES {
            places.sort_by_key(|&place| std::cmp::Reverse(bytes_at[place]));
            places.truncate(INTERFACES);
            let last = plan.buckets.iter().rev().flat_map(|bucket| bucket.partitions.iter().rev());
            places.extend(last.take(INTERFACES).map(|partition| partition.shard.unwrap_or(0) % self.places));
            places.sort_unstable();
            places.dedup();
        }
        let serving = places.into_iter().map(Interface::Server);
        if !self.of_their_own {
            // One beside which a server is carries all that another one does.
            return serving.collect();
        }
        let total: u64 = bytes_at.iter().sum();
        let fullest = bytes_at.iter().max().copied().unwrap_or(0);
        let workers = std::iter::once(Interface::Workers);
        if self.is_even(fullest as f64, total as f64) { workers.collect() } else { workers.chain(serving).collect() }
    }

    /// Do the workers' interfaces bound those of servers, of which the fullest takes in so many of all bytes from each that pushes?
    ///
    /// What counts is for how long interfaces are busy, so bytes weigh more where a server takes longer for each than a worker does, as
    /// where each connection has a core and a server has fewer of them. Where a server is the faster one they do not weigh less: also
    /// one that is busy for less time in all is late where several partitions in a row are its own, as they are where bytes lie
    /// unevenly. Simulated, it makes nothing slower but by that.
    fn is_even(&self, fullest: f64, total: f64) -> bool {
        let slower = (self.own_beta / self.link.beta).max(1.0);
        fullest * self.pushing() as f64 * slower <= EVEN * total
    }

    /// The busiest stage's, with bytes spread as evenly as can be: of n hosts that push to k places with B/k bytes each, a
    /// server with an interface of its own takes in n/k of them; one beside workers n − 1 of its own share and once what goes to
    /// the others. The fullest place of any plan, and of any part of it, has at least the mean.
    pub fn seconds_per_byte_min(&self) -> f64 {
        if !self.leaves_host() {
            return self.bus_s_per_byte;
        }
        let pushing = self.pushing() as f64;
        let shards = self.servers.shards.max(1) as f64;
        let places = shards.min(self.places as f64);
        // Where only some are simulated, they need not be those that are fullest at any time; where the workers' interfaces
        // bound, no server is.
        let some = places > 2.0 * INTERFACES as f64;
        let even = self.is_even(1.0, places);
        let beta = self.link.beta;
        let interface = match self.of_their_own {
            _ if some => beta,
            true if even => beta,
            true => beta.max(pushing / places * self.own_beta),
            false => (1.0 + (pushing - 2.0).max(0.0) / places) * beta,
        };
        let processor = (self.combine_s_per_byte + self.apply_s_per_byte) / shards;
        self.bus_s_per_byte.max(interface).max(processor)
    }

    pub fn traffic(&self, plan: &Plan) -> Traffic {
        let place_of = |shard: Option<usize>| shard.unwrap_or(0) % self.places;
        let mut bytes_at = vec![0; self.places.min(plan.shards.max(1))];
        let parts = || plan.partitions().map(|(_, part)| (part.elements.len() as u64 * ELEMENT_BYTES, part.shard));
        parts().for_each(|(bytes, shard)| bytes_at[place_of(shard)] += bytes);
        let interfaces = if self.leaves_host() { self.interfaces(&bytes_at, plan) } else { Vec::new() };
        let servers = if self.server_busy_s(1) > 0.0 && self.leaves_host() { plan.shards } else { 0 };
        let starting = usize::from(self.start_s > 0.0);
        let mode = if self.servers.apply { Mode::Apply } else { Mode::Aggregate };
        let mut operations = Operations::new(Line::Buses, interfaces.len() + starting, servers, mode);
        let latency_s = if self.leaves_host() { ROUNDS as f64 * self.link.latency() } else { 0.0 };
        let (mut total, mut tiles) = (0, 0);
        for (bytes, shard) in parts() {
            operations.push(self.bus_busy_s(bytes), latency_s);
            operations.later_if_it_overtakes(ROUNDS as f64 * self.operation.overtaking_round_s(bytes));
            if starting > 0 {
                operations.then_link_in_order(Part { link: interfaces.len(), busy_s: self.start_s });
            }
            if !interfaces.is_empty() {
                let place = place_of(shard);
                operations.then_links(
                    interfaces.iter().enumerate().map(|(link, &interface)| Part {
                        link,
                        busy_s: self.interface_busy_s(interface, bytes, place),
                    }),
                );
            }
            if servers > 0 {
                operations.then_server(shard.unwrap_or(0), self.server_busy_s(bytes));
            }
            total += bytes;
            tiles += self.tiles.count(bytes);
        }
        // Where nothing is added up on a bus, workers are disturbed while bytes are on their way.
        let operations = if self.adds_up { operations } else { operations.disturbing_on_links(interfaces.len()) };
        let (bus, links, processors) = operations.busy_s();
        let link = if self.world.hosts > 1 { Bottleneck::LinkBetweenHosts } else { Bottleneck::LinkWithinHost };
        let kind = |interface: &Interface| match interface {
            Interface::Server(_) if self.servers.dedicated => Bottleneck::ServerLink,
            _ => link,
        };
        let mut busy: Vec<(Bottleneck, f64)> = interfaces.iter().map(kind).zip(links.iter().copied()).collect();
        // By message the time of the bus is that of whatever fills up first, which the formula says.
        let of_bus = self.moving_share(total, operations.count(), tiles);
        let fuller = busy.iter().filter(|(_, busy_s)| *busy_s > of_bus * bus);
        let fullest = fuller.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| of_bus < 1.0);
        let of_the_bus = fullest.map_or(Bottleneck::LinkWithinHost, |(place, _)| *place);
        busy.extend(links[interfaces.len()..].iter().map(|&busy_s| (Bottleneck::OperationStart, busy_s)));
        busy.push((of_the_bus, bus));
        busy.extend(processors.into_iter().map(|busy_s| (Bottleneck::ServerProcessor, busy_s)));
        let remote = if self.leaves_host() { 2 * self.pushing() } else { 0 };
        let local = if self.world.hosts > 1 { 2 * (self.world.workers - self.world.hosts) } else { 0 };
        let moved = match (self.adds_up, self.servers.dedicated) {
            (true, _) => all_reduce_factor(self.world.per_host),
            (false, true) => ROUNDS as f64,
            (false, false) => all_reduce_factor(self.pushing()),
        };
        Traffic {
            messages: tiles * (remote + local),
            operations,
            jitter_s: 0.0,
            bytes_sent: total as f64,
            busy,
            within_s: moved * total as f64 * self.within_beta,
            of_bus,
        }
    }

    /// Of the seconds for which operations of so many bytes and tiles keep the bus busy, the share in which bytes move within the host.
    fn moving_share(&self, bytes: u64, operations: usize, tiles: usize) -> f64 {
        if self.bus_s_per_byte <= self.moving_s_per_byte {
            return 1.0;
        }
        let fixed_s = operations as f64 * self.bus_s + tiles as f64 * self.bus_tile_s;
        let seconds = |per_byte: f64| fixed_s + per_byte * bytes as f64;
        let busy_s = seconds(self.bus_s_per_byte);
        if busy_s > 0.0 { seconds(self.moving_s_per_byte) / busy_s } else { 1.0 }
    }
}

/// What bytes take that cross an interface in both directions at once, and seconds for each of them where there is a server only, on so
/// many hosts that serve and with so many that push.
fn interface_betas(cluster: &Cluster, across: &LinkCost, [serving, pushing]: [usize; 2]) -> (LinkCost, f64) {
    let constants = &cluster.server;
    let beta = constants.beta_s_per_byte.map_or(across.beta, |beta| beta.value);
    let share = constants.dedicated_share.map_or(1.0, |share| share.value);
    let of_connections = constants.connection_s_per_byte.map_or(0.0, |connection| connection.value);
    let at = |share: f64, connections: usize| {
        beta * (1.0 + share * constants.duplex_loss.value) + of_connections / connections.max(1) as f64
    };
    (LinkCost { beta: at(1.0, serving), ..*across }, at(share, pushing))
}

/// Whose network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// A host's on which there are workers only.
    Workers,
    /// The one where a server is, by its place.
    Server(usize),
}

#[cfg(test)]
mod tests;
