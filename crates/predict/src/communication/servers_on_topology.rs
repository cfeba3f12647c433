//! What a topology does to the way between workers' hosts and servers.
//!
//! Each host sends its part of every partition to the place of its server, and gets the sum from there. Taken as flows that are all
//! under way at once, as many bytes for each pair and direction, they share the links max-min fairly ([`crate::flows`]): those get
//! least that cross the link with most of them for its capacity, they all end together, and none of the others ends later. So the
//! traffic takes as long as that link needs for it, which follows from counting.
//!
//! In a torus and a BCube all links are ports of hosts, and what hosts lose is lost at each of them: the link of the cost model takes as
//! many times as long as under one switch, whatever it takes there. Links between switches know nothing of what hosts lose by pushing
//! and pulling at once, or by their connections, be they workers' hosts or servers': where they are fuller than all ports of hosts they
//! take their own time beside these, and the longer of the two counts, as that of workers' interfaces, through which everything goes.
//! Those of hosts that only serve stay what they are.
//!
//! Bytes are taken to be spread evenly over the servers: a partition that travels alone to a server beside workers waits for the link of
//! its server rather than for those between switches, and takes less than is said here.

use paceline_plan::{Cluster, Hosts, LinkCost, Shape};
use paceline_strategy::Servers;

use super::World;
use super::on_topology::{COMPARED_HOSTS_MAX, times};
use crate::topology::{Link, Network, Node, PathChoice, Speeds};

/// Of more pairs of a worker's host and a server's no ways are looked up: so many take some tenths of a second.
const PAIRS_MAX: usize = COMPARED_HOSTS_MAX * COMPARED_HOSTS_MAX;

/// Links that are as full may differ by rounding.
const TIE: f64 = 1e-9;

/// What the interface of a worker's host costs on the topology of the world, if it costs `link` under one switch; and why that may be
/// wrong. Hosts that only serve come behind those of the cluster, at the next switches.
pub(super) fn on_topology(
    link: LinkCost,
    cluster: &Cluster,
    world: &World,
    servers: &Servers,
    places: usize,
) -> (LinkCost, Option<String>) {
    let shape = world.shape;
    if shape == Shape::Flat || world.hosts == 1 {
        return (link, None);
    }
    let in_doubt = |why: String| {
        let doubt = format!("the topology {shape} is taken for flat between workers and servers: {why}");
        (link, Some(doubt))
    };
    if servers.dedicated && shape.hosts().is_some() {
        return in_doubt("it has no place for hosts that only serve".to_owned());
    }
    let pairs = Pairs::of(cluster, world, servers, places);
    let count = pairs.workers * pairs.serving;
    // All servers or none, as what is counted takes longer than what is not; and so for all-to-all.
    if world.hosts > COMPARED_HOSTS_MAX || count > PAIRS_MAX {
        return in_doubt(format!("{} hosts are more than {COMPARED_HOSTS_MAX}", world.hosts.max(pairs.serving)));
    }
    let hosts = Hosts::regular(pairs.hosts(), 1);
    let speeds = Speeds::of_costs(&cluster.link_costs_among(world.hosts), cluster.across.hop_s.value);
    let on = |shape| Network::new(shape, &hosts, &speeds);
    match (on(shape), on(Shape::Flat)) {
        (Ok(there), Ok(flat)) => {
            let (there, flat) = (pairs.fullest(&there), pairs.fullest(&flat));
            let alpha = link.alpha + (there.latency_s - flat.latency_s).max(0.0);
            let beta = match shape.hosts() {
                Some(_) => link.beta * times(there.busy_s, flat.busy_s),
                None if there.between_switches_s <= flat.busy_s * (1.0 + TIE) => link.beta,
                None => link.beta.max(there.between_switches_s / pairs.at_an_interface() as f64),
            };
            (LinkCost { alpha, beta, ..link }, None)
        }
        (Err(error), _) | (_, Err(error)) => in_doubt(error.to_string()),
    }
}

/// Hosts with workers, from 0, and those with servers.
struct Pairs {
    workers: usize,
    /// Do servers have hosts that only serve?
    dedicated: bool,
    /// The number of the first host that serves.
    first: usize,
    serving: usize,
}

/// What a byte of every pair in both directions does to a network.
struct Fullest {
    /// Seconds for which the link is busy that is busy longest.
    busy_s: f64,
    /// The same of links between switches; 0 if there is none.
    between_switches_s: f64,
    /// Of the longest way.
    latency_s: f64,
}

impl Pairs {
    fn of(cluster: &Cluster, world: &World, servers: &Servers, places: usize) -> Pairs {
        let dedicated = servers.dedicated;
        let first = if dedicated { cluster.hosts.max(world.hosts) } else { 0 };
        Pairs { workers: world.hosts, dedicated, first, serving: servers.shards.clamp(1, places.max(1)) }
    }

    fn hosts(&self) -> usize {
        self.workers.max(self.first + self.serving)
    }

    /// Bytes that the fullest interface of a worker's host carries in each direction: to and from each server; beside one also those
    /// that all other hosts send to it. There are at least two hosts with workers.
    fn at_an_interface(&self) -> usize {
        if self.dedicated { self.serving } else { self.workers - 1 + self.serving - 1 }
    }

    /// There and back. Whoever is beside a server needs no link to it.
    fn both_ways(&self) -> impl Iterator<Item = (usize, usize)> {
        let serving = self.first..self.first + self.serving;
        let pairs = (0..self.workers).flat_map(move |worker| serving.clone().map(move |server| (worker, server)));
        pairs.filter(|(worker, server)| worker != server).flat_map(|(one, other)| [(one, other), (other, one)])
    }

    fn fullest(&self, network: &Network) -> Fullest {
        let mut carried = vec![0_u32; network.links().len()];
        let mut latency_s: f64 = 0.0;
        for (from, to) in self.both_ways() {
            let route = network.route(from, to, &PathChoice::default());
            route.links.iter().for_each(|&link| carried[link as usize] += 1);
            latency_s = latency_s.max(route.latency_s);
        }
        let busiest_s = |counts: &dyn Fn(&Link) -> bool| {
            let links = network.links().iter().zip(&carried).filter(|&(link, _)| counts(link));
            links.map(|(link, &bytes)| f64::from(bytes) / link.capacity).fold(0.0, f64::max)
        };
        let joins_switches = |link: &Link| matches!((link.from, link.to), (Node::Switch { .. }, Node::Switch { .. }));
        Fullest { busy_s: busiest_s(&|_| true), between_switches_s: busiest_s(&joins_switches), latency_s }
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{Constant, LinkClass, NetworkModel};
    use paceline_strategy::Registry;

    use super::super::ServerCosts;
    use super::*;
    use crate::flows::FlowNetwork;

    const BETA: f64 = 1e-9;
    const ALPHA_S: f64 = 1e-6;

    /// One worker on each host.
    fn cluster(hosts: usize) -> Cluster {
        let class = LinkClass { alpha_s: ALPHA_S, overhead_s: 0.0, beta_s_per_byte: BETA };
        Cluster { server_hosts: hosts, ..Cluster::of_network(NetworkModel { within: class, across: class }, hosts, 1) }
    }

    fn servers(text: &str, hosts: usize) -> Servers {
        let strategy = Registry::built_in().parse(&format!("schedule=wfbp,arch={text}")).expect("a strategy");
        strategy.servers(hosts, hosts).expect("servers")
    }

    fn costs(cluster: &Cluster, shape: &str, text: &str) -> ServerCosts {
        let world = World::of(cluster.hosts, 1).on(shape.parse().expect("a shape"));
        ServerCosts::of(cluster, world, servers(text, cluster.hosts), 0.0, 0.0)
    }

    /// What a partition takes there and back, less its latencies, and these.
    fn seconds(cluster: &Cluster, shape: &str, text: &str) -> (f64, f64, Option<String>) {
        let costs = costs(cluster, shape, text);
        let (empty_s, all_s) = (costs.alone_s(0), costs.alone_s(1 << 20));
        (all_s - empty_s, empty_s, costs.doubts.into_iter().next())
    }

    /// Of n hosts at switches of H, n − H of the n − 1 others are elsewhere, and the way to these carries 1/O of what it would.
    #[test]
    fn what_crosses_between_switches_takes_as_long_as_they_are_oversubscribed() {
        for (hosts, text, shape, expected) in [
            (8, "ps:hosts", "flat", 1.0),
            (8, "ps:hosts", "tree:4:1", 1.0),
            (8, "ps:hosts", "tree:4:4", 4.0 * 4.0 / 7.0),
            (16, "ps:hosts", "tree:4:4", 4.0 * 12.0 / 15.0),
            (16, "ps:hosts", "fat-tree:4:2", 2.0 * 12.0 / 15.0),
            // All that takes in one server crosses its own link first.
            (8, "ps:1", "tree:4:4", 1.0),
            // To hosts that only serve everything crosses, and what all send to one of them crosses its own link first.
            (8, "ps:hosts:1MiB:dedicated", "tree:4:1", 1.0),
            (8, "ps:hosts:1MiB:dedicated", "tree:4:4", 1.0),
        ] {
            let (flat_s, _, none) = seconds(&cluster(hosts), "flat", text);
            let (there_s, _, doubt) = seconds(&cluster(hosts), shape, text);
            assert!((there_s / flat_s / expected - 1.0).abs() < 1e-9, "{hosts}, {text}, {shape}: {there_s} {flat_s}");
            assert_eq!((none, doubt), (None, None));
        }
    }

    /// Of many partitions: links between switches take their own time, whatever hosts lose, and the longer of the two counts.
    #[test]
    fn links_between_switches_lose_nothing_by_what_hosts_do() {
        let mut lossy = cluster(8);
        (lossy.server.duplex_loss, lossy.server.dedicated_share) = (Constant::exact(0.5), Some(Constant::ZERO));
        for (text, shape, expected, with_loss) in [
            // A host with a server carries seven eighths of all twice.
            ("ps:hosts", "tree:4:1", 7.0 / 4.0, 1.5 * 7.0 / 4.0),
            // Each switch has one link for half of what its four hosts send, and for half of what its four servers answer.
            ("ps:hosts", "tree:4:4", 4.0, 4.0),
            ("ps:hosts", "tree:4:2", 2.0, 1.5 * 7.0 / 4.0),
            // Workers lose, and hosts that only serve do not.
            ("ps:hosts:1MiB:dedicated", "tree:4:1", 1.0, 1.5),
            ("ps:hosts:1MiB:dedicated", "tree:4:4", 4.0, 4.0),
            // Four hosts that only serve take in what eight send, all over the links of one switch.
            ("ps:4:1MiB:dedicated", "tree:4:1", 2.0, 2.0),
            ("ps:4:1MiB:dedicated", "tree:4:4", 8.0, 8.0),
        ] {
            for (cluster, expected) in [(&cluster(8), expected), (&lossy, with_loss)] {
                let found = costs(cluster, shape, text).seconds_per_byte_min() / BETA;
                assert!((found / expected - 1.0).abs() < 1e-9, "{text}, {shape}: {found} {expected}");
            }
        }
        // What one of two servers takes in crosses its own link no faster than the one between switches.
        let [flat_s, there_s] = ["flat", "tree:4:4"].map(|shape| seconds(&lossy, shape, "ps:2:1MiB:dedicated").0);
        assert!((there_s / flat_s - 1.0).abs() < 1e-9, "{there_s} {flat_s}");
    }

    /// Flow by flow: those that get least get what was counted.
    #[test]
    fn the_fullest_link_is_that_of_the_slowest_flows() {
        let cluster = cluster(16);
        let shapes = ["flat", "tree:4:4", "fat-tree:4:2:hash", "torus:4x4", "bcube:4:2", "bcube:2:4"];
        for (shape, text) in shapes.iter().flat_map(|shape| ["ps:hosts", "ps:3", "ps:1"].map(|text| (shape, text))) {
            let world = World::of(16, 1).on(shape.parse().expect("a shape"));
            let pairs = Pairs::of(&cluster, &world, &servers(text, 16), 16);
            let speeds = Speeds::of_costs(&cluster.link_costs(), 0.0);
            let network = Network::new(world.shape, &Hosts::regular(16, 1), &speeds).expect("a network");
            let mut flows = FlowNetwork::new(network.links().iter().map(|link| link.capacity));
            let started = pairs.both_ways().map(|(from, to)| {
                let route = flows.add_route(&network.route(from, to, &PathChoice::default()).links);
                flows.add(route, 1e9, 0.0)
            });
            let started: Vec<_> = started.collect();
            let least = started.into_iter().map(|flow| flows.rate(flow)).fold(f64::INFINITY, f64::min);
            let busy_s = pairs.fullest(&network).busy_s;
            assert!((least * busy_s - 1.0).abs() < 1e-6, "{shape}, {text}: {least} B/s, {busy_s} s");
        }
    }

    #[test]
    fn switches_and_hosts_on_the_way_add_their_latency() {
        let mut cluster = cluster(16);
        let latency_s = |cluster: &Cluster, shape| seconds(cluster, shape, "ps:hosts").1;
        assert!((latency_s(&cluster, "flat") - 2.0 * ALPHA_S).abs() < 1e-12);
        // Two rows and two columns away, each way.
        assert!((latency_s(&cluster, "torus:4x4") - 2.0 * 4.0 * ALPHA_S).abs() < 1e-12);
        cluster.across.hop_s = Constant::exact(1e-3);
        assert!((latency_s(&cluster, "tree:4:1") - 2.0 * (ALPHA_S + 2e-3)).abs() < 1e-12);
    }

    #[test]
    fn what_has_no_place_in_the_topology_is_in_doubt() {
        let cluster = cluster(16);
        let (there_s, _, doubt) = seconds(&cluster, "torus:4x4", "ps:hosts:1MiB:dedicated");
        assert_eq!(there_s, seconds(&cluster, "flat", "ps:hosts:1MiB:dedicated").0);
        let says = "the topology torus:4x4 is taken for flat between workers and servers: it has no place for";
        assert!(doubt.as_ref().is_some_and(|doubt| doubt.starts_with(says)), "{doubt:?}");
        // Beside the workers they have one, and hosts have several ports.
        let (beside_s, _, doubt) = seconds(&cluster, "torus:4x4", "ps:hosts");
        assert!(doubt.is_none() && beside_s < seconds(&cluster, "flat", "ps:hosts").0, "{beside_s} {doubt:?}");
        let (_, _, doubt) = seconds(&self::cluster(2048), "tree:32:4", "ps:4");
        assert!(doubt.as_ref().is_some_and(|doubt| doubt.ends_with("2048 hosts are more than 1024")), "{doubt:?}");
    }
}
