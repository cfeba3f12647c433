//! From a cluster and a strategy to what operations go through.

mod all_to_all;
mod closed_forms;
mod on_topology;
mod partition_tiles;
mod programs_of_plan;
mod server_hosts;
mod servers;
mod servers_by_message;
mod servers_on_topology;
mod shared_ports;

use paceline_collective::Topology;
use paceline_plan::{Cluster, LinkCosts, Plan, Shape};

use crate::iteration::Operations;
use crate::prediction::Bottleneck;

pub(crate) use all_to_all::AllToAll;
pub(crate) use on_topology::COMPARED_HOSTS_MAX;
pub(crate) use programs_of_plan::MESSAGES_MAX;
pub use server_hosts::serving_hosts;
pub(crate) use servers::{FEW_PARTITIONS, ServerCosts};

/// Workers on hosts, as many on each but perhaps the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct World {
    pub workers: usize,
    pub hosts: usize,
    /// On the fullest host.
    pub per_host: usize,
    /// How the hosts are connected.
    pub shape: Shape,
}

impl World {
    /// So many workers on hosts that have room for `per_host`: full ones first, under one switch. Both at least 1.
    pub fn of(workers: usize, per_host: usize) -> World {
        World { workers, hosts: workers.div_ceil(per_host), per_host: per_host.min(workers), shape: Shape::Flat }
    }

    /// The same on hosts that are connected in this way, which programs for a torus or a BCube follow.
    pub fn on(self, shape: Shape) -> World {
        World { shape, ..self }
    }

    /// Have all hosts as many workers?
    pub fn is_full(&self) -> bool {
        self.workers == self.hosts * self.per_host
    }

    /// Which rank is on which host.
    pub fn topology(&self) -> Topology {
        Topology::filled(self.workers, self.per_host).on(self.shape)
    }
}

/// What links cost in operations among the workers of so many hosts.
///
/// Links without a latency are those of a fit: what whole rings took, on one host and on several. The way through the hosts is in
/// both, and the study's rings over InfiniBand were faster than those within one of its hosts.
pub(crate) fn all_to_all_costs(cluster: &Cluster, hosts: usize) -> LinkCosts {
    let mut costs = cluster.link_costs_among(hosts);
    if hosts > 1 && costs.within.alpha == 0.0 && costs.across.alpha == 0.0 {
        costs.within.beta = costs.within.beta.min(costs.across.beta);
    }
    costs
}

/// 2(n − 1)/n: how often each byte of what n ranks add up crosses each port, at least.
pub(crate) fn all_reduce_factor(ranks: usize) -> f64 {
    2.0 * (ranks as f64 - 1.0) / ranks as f64
}

/// How operations travel between workers, and what that costs.
pub(crate) enum Communication {
    /// There is one worker, and no server with ports of its own.
    None,
    AllToAll(AllToAll),
    Servers(ServerCosts),
}

/// What the operations of a plan cost together.
pub(crate) struct Traffic {
    pub operations: Operations,
    /// Seconds lost by an iteration besides.
    pub jitter_s: f64,
    /// Bytes that the busiest worker sends.
    pub bytes_sent: f64,
    /// Of all workers and servers.
    pub messages: usize,
    /// What is busy for how long, besides computation.
    pub busy: Vec<(Bottleneck, f64)>,
    /// Seconds for which bytes move within a host, on its bus.
    pub within_s: f64,
    /// Of the seconds for which a bus between workers and servers is busy, the share in which bytes move within the host.
    pub of_bus: f64,
}

impl Communication {
    /// Seconds of an operation of so many bytes that has the network for itself.
    pub fn alone_s(&self, bytes: u64) -> f64 {
        match self {
            Communication::None => 0.0,
            Communication::AllToAll(costs) => costs.alone_s(bytes),
            Communication::Servers(costs) => costs.alone_s(bytes),
        }
    }

    /// How many messages of an operation of so many bytes wait for each other.
    pub fn rounds(&self, bytes: u64) -> usize {
        match self {
            Communication::None => 0,
            Communication::AllToAll(costs) => costs.rounds(bytes),
            Communication::Servers(costs) => costs.rounds(),
        }
    }

    /// In fewer seconds than this no byte gets through, whatever the plan: some resource is busy for so long with each byte
    /// of any of its operations, on average over them.
    pub fn seconds_per_byte_min(&self) -> f64 {
        match self {
            Communication::None => 0.0,
            Communication::AllToAll(costs) => costs.seconds_per_byte_min(),
            Communication::Servers(costs) => costs.seconds_per_byte_min(),
        }
    }

    /// Why the operations of a plan leave what is known, in words.
    pub fn doubts(&self, plan: &Plan) -> Vec<String> {
        match self {
            Communication::None => Vec::new(),
            Communication::AllToAll(costs) => costs.doubts(plan),
            Communication::Servers(costs) => costs.doubts(plan),
        }
    }

    /// How many of these are about formulas that are estimates: where workers share hosts, and of few partitions for many servers.
    pub fn estimates(&self, plan: &Plan) -> usize {
        match self {
            Communication::AllToAll(costs) => costs.estimates(plan),
            Communication::Servers(costs) => costs.estimates(plan),
            Communication::None => 0,
        }
    }

    /// What the operations of a plan cost.
    pub fn traffic(&self, plan: &Plan) -> Traffic {
        match self {
            Communication::None => Traffic {
                operations: Operations::on_channel(plan, |_| 0.0),
                jitter_s: 0.0,
                bytes_sent: 0.0,
                messages: 0,
                busy: Vec::new(),
                within_s: 0.0,
                of_bus: 1.0,
            },
            Communication::AllToAll(costs) => costs.traffic(plan),
            Communication::Servers(costs) => costs.traffic(plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_filled_one_after_the_other() {
        assert_eq!(World::of(8, 4), World { workers: 8, hosts: 2, per_host: 4, shape: Shape::Flat });
        assert_eq!(World::of(3, 4), World { workers: 3, hosts: 1, per_host: 3, shape: Shape::Flat });
        let uneven = World::of(9, 4);
        assert_eq!((uneven.hosts, uneven.topology().members(2)), (3, &[8][..]));
        assert_eq!([8, 3, 9].map(|workers| World::of(workers, 4).is_full()), [true, true, false]);
        assert_eq!((all_reduce_factor(1), all_reduce_factor(32)), (0.0, 1.9375));
    }

    #[test]
    fn programs_are_told_of_the_torus_or_the_bcube() {
        let on = |shape: &str| World::of(16, 1).on(shape.parse().expect("a shape")).topology();
        assert_eq!((on("torus:8x2").torus(), on("bcube:2:4").bcube()), (Some([8, 2]), Some((2, 4))));
        assert_eq!((on("flat"), on("tree:4:2"), on("fat-tree:4:2")), (on("flat"), on("flat"), on("flat")));
        // Where ranks share hosts, programs do not know their way.
        let shared = World::of(16, 4).on(Shape::BCube { ports: 2, levels: 2 });
        assert_eq!(shared.topology().bcube(), None);
    }
}
