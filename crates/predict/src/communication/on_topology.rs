use paceline_collective::cost::Load;
use paceline_collective::{Algorithm, Topology, WINDOW, tiles};
use paceline_plan::{Cluster, Hosts, LinkCosts};

use super::World;
use crate::PredictError;
use crate::programs::{Combining, Machine, Outcome, PreparedProgram, simulate};
use crate::topology::{Network, Shape, Speeds};

/// Programs of more messages in a tile are not simulated. A ring of 1,024 ranks has not quite so many, and takes a second; a
/// tree of [`RANKS_MAX`] has fewer.
pub(crate) const TILE_MESSAGES_MAX: usize = 1 << 21;

/// Nor are those of more ranks.
pub(crate) const RANKS_MAX: usize = 1 << 13;

/// Up to so many hosts every program and all servers are compared on their topology; of more only what is named is simulated.
pub(crate) const COMPARED_HOSTS_MAX: usize = 1 << 10;

/// Messages of a simulated operation, about, at most, unless one tile has more: what takes a quarter of a second.
const MESSAGES_MAX: usize = 1 << 18;

/// Operations of so many are simulated whole.
const MESSAGES_WHOLE: usize = 1 << 15;

/// So many further tiles take what as many before them did, or more of a short program: a tile waits for the one that is a window ahead of
/// it, so windows follow each other, once the first of them are under way.
const PERIOD: usize = 2 * WINDOW;

/// Programs on a cluster's topology.
pub(crate) struct Simulated {
    shape: Shape,
    topology: Topology,
    hosts: Hosts,
    speeds: Speeds,
    gamma: f64,
}

/// What becomes of an operation on a topology.
#[derive(Clone, Copy, Debug)]
pub(crate) struct There {
    /// How many times as long as under one switch it takes, and is in the way of those that follow it.
    pub alone: f64,
    pub busy: f64,
    /// Seconds per byte in which the busiest link carries its messages.
    pub carried_s_per_byte: f64,
}

/// Is an algorithm of so many messages in a tile simulated at all?
pub(crate) fn admits(messages: usize) -> bool {
    messages <= TILE_MESSAGES_MAX
}

/// Is one simulation of an algorithm of so many messages in a tile enough, because it is as long as all may be together?
pub(crate) fn once(messages: usize) -> bool {
    messages > MESSAGES_MAX
}

impl Simulated {
    /// None if there are more than [`RANKS_MAX`].
    pub fn new(world: &World, costs: &LinkCosts, cluster: &Cluster) -> Option<Simulated> {
        if world.workers > RANKS_MAX {
            return None;
        }
        let hosts = Hosts::of_ranks((0..world.workers).map(|rank| rank / world.per_host).collect())?;
        let (speeds, gamma) = (Speeds::of_costs(costs, cluster.across.hop_s.value), costs.across.gamma);
        Some(Simulated { shape: world.shape, topology: world.topology(), hosts, speeds, gamma })
    }

    /// What becomes of an operation on the topology, by simulation of its program there and under one switch. Those that follow it
    /// wait for the busiest link: latencies are in no port's way.
    ///
    /// # Errors
    /// The topology has no room for so many hosts, or the program would never end.
    pub fn there(&self, algorithm: &dyn Algorithm, bytes: usize, tile_bytes: usize) -> Result<There, PredictError> {
        let program = PreparedProgram::of_algorithm(algorithm, &self.topology, 0)?;
        let played = |shape: Shape| self.played(shape, &program, bytes, tile_bytes);
        let ([there_s, busiest_there_s], [flat_s, busiest_flat_s]) = (played(self.shape)?, played(Shape::Flat)?);
        Ok(There {
            alone: times(there_s, flat_s),
            busy: times(busiest_there_s, busiest_flat_s),
            carried_s_per_byte: busiest_there_s / bytes.max(1) as f64,
        })
    }

    /// Seconds of an operation, and those for which its busiest link carries messages. Of many tiles some are simulated, and the others
    /// take what each of these adds; where even those would be too many messages, fewer and larger ones take their place.
    fn played(
        &self,
        shape: Shape,
        program: &PreparedProgram,
        bytes: usize,
        tile_bytes: usize,
    ) -> Result<[f64; 2], PredictError> {
        let network = Network::new(shape, &self.hosts, &self.speeds)?;
        let combining = Combining::InsteadOfReceiving;
        let machine = Machine { gamma: self.gamma, combining, ..Machine::new(&network) };
        let of = |bytes: usize, tile_bytes: usize| -> Result<[f64; 2], PredictError> {
            let outcome = simulate(program, &Load { bytes, tile_bytes, window: WINDOW }, &machine)?;
            Ok([outcome.seconds, carried_s(&outcome, &network)])
        };
        let (count, messages) = (tiles(bytes, tile_bytes), program.messages().max(1));
        let tiles_max = (MESSAGES_MAX / messages).max(1);
        if count > tiles_max && tiles_max < 3 * PERIOD {
            return of(bytes, bytes.div_ceil(tiles_max));
        }
        let period = PERIOD.max(MESSAGES_WHOLE / messages / 2 / WINDOW * WINDOW);
        let further = count.saturating_sub(2 * period) / period;
        let first_bytes = bytes - further * period * tile_bytes;
        let first = of(first_bytes, tile_bytes)?;
        if further == 0 {
            return Ok(first);
        }
        let without = of(first_bytes - period * tile_bytes, tile_bytes)?;
        Ok([0, 1].map(|which| first[which] + further as f64 * (first[which] - without[which])))
    }
}

/// Seconds for which the busiest link has carried messages.
pub(super) fn carried_s(outcome: &Outcome, network: &Network) -> f64 {
    outcome.busiest_link(network).map_or(0.0, |(_, share)| share * outcome.seconds)
}

/// How many times as long; what takes no time under one switch takes none elsewhere.
pub(super) fn times(there_s: f64, flat_s: f64) -> f64 {
    if flat_s > 0.0 { there_s / flat_s } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use paceline_collective::registry;
    use paceline_plan::{CollectiveKind, Constant, LinkClass, NetworkModel};

    use super::super::AllToAll;
    use super::*;
    use crate::iteration::tests::{plan_of, profile};

    const BETA: f64 = 1e-9;

    /// With one worker on each host, whose links have this latency.
    fn cluster(hosts: usize, alpha_s: f64) -> Cluster {
        let class = LinkClass { alpha_s, overhead_s: 0.0, beta_s_per_byte: BETA };
        Cluster::of_network(NetworkModel { within: class, across: class }, hosts, 1)
    }

    /// What operations of up to so many bytes take there.
    fn costs(cluster: &Cluster, shape: &str, algorithm: &str, bytes: u64) -> AllToAll {
        let shape = shape.parse().expect("a shape");
        AllToAll::of(cluster, World::of(cluster.hosts, 1).on(shape), algorithm, bytes, 0.0).expect("costs")
    }

    #[test]
    fn programs_of_thousands_of_ranks_are_simulated_or_in_doubt() {
        let (cluster, bytes) = (cluster(2048, 0.0), 1 << 14);
        let profile = profile(&[(1 << 12, 0.0, 0.0)], 0.0);
        let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
        let on = |shape: &str, algorithm: &str| {
            let costs = costs(&cluster, shape, algorithm, bytes);
            (costs.alone_s(bytes), costs.doubts(&plan), costs.seconds_per_byte_min())
        };
        // Nearly all bytes of halving and doubling cross between switches, which have a quarter of the links upwards.
        let (flat_s, there) = (on("flat", "halving-doubling").0, on("tree:64:4", "halving-doubling"));
        assert!(there.0 > 3.0 * flat_s && there.1.is_empty(), "{there:?}, {flat_s} s on a flat network");
        // 31/32 of what 64 hosts have, each way, over as much as 16 have.
        assert!((there.2 / (2.0 * 31.0 / 32.0 * 64.0 / 16.0 * BETA) - 1.0).abs() < 1e-6, "{there:?}");
        let (flat_s, (seconds, doubts, _)) = (on("flat", "ring").0, on("tree:64:4", "ring"));
        let says = "the topology tree:64:4 is taken for flat by ring: ";
        assert!(seconds == flat_s && doubts.len() == 1 && doubts[0].starts_with(says), "{seconds}, {doubts:?}");
        assert!(doubts[0].ends_with("this one has 8384512"), "{doubts:?}");
    }

    /// What a formula leaves out under one switch it leaves out elsewhere.
    #[test]
    fn formulas_of_long_programs_are_in_doubt_on_a_topology_as_well() {
        let profile = profile(&[(1 << 12, 0.0, 0.0)], 0.0);
        let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
        for (hosts, shape, doubtful) in [(11, "tree:4:1", 0), (12, "tree:4:1", 1), (12, "torus:4x3", 1)] {
            let doubts = costs(&cluster(hosts, 0.0), shape, "direct-scatter", 1 << 14).doubts(&plan);
            let says = format!("direct-scatter of {hosts} workers takes what its formula says");
            assert_eq!(doubts.iter().filter(|doubt| doubt.starts_with(&says)).count(), doubtful, "{shape}: {doubts:?}");
            assert_eq!(doubts.len(), doubtful, "{shape}: {doubts:?}");
        }
    }

    /// 2(N − 1)/N · Sβ/K, with the K ports of each host of BCube(P, K), however many levels a program chooses by itself.
    #[test]
    fn the_program_of_a_bcube_uses_all_ports_that_the_cluster_has() {
        for (shape, hosts, ports) in [("bcube:2:4", 16, 4.0), ("bcube:4:2", 16, 2.0), ("bcube:2:3", 8, 3.0)] {
            let bytes = 1 << 20;
            let seconds = costs(&cluster(hosts, 0.0), shape, "bcube", bytes).alone_s(bytes);
            let expected = 2.0 * (hosts - 1) as f64 / hosts as f64 * bytes as f64 * BETA / ports;
            assert!((seconds / expected - 1.0).abs() < 0.05, "{shape}: {seconds} {expected}");
        }
    }

    /// What many tiles take follows from some, to a percent or so: where links between switches are full, where flows meet by chance, and
    /// where latencies are all that counts.
    #[test]
    fn further_tiles_take_what_those_before_them_did() {
        let tile_bytes = 1 << 16;
        let bytes = 1200 * tile_bytes + tile_bytes / 2;
        let cases = [
            (0.0, "tree:4:4"),
            (50e-6, "tree:4:4"),
            (5e-3, "tree:4:4"),
            (50e-6, "fat-tree:4:2:hash"),
            (50e-6, "torus:4x4"),
        ];
        for (alpha_s, shape) in cases {
            let (cluster, world) = (cluster(16, alpha_s), World::of(16, 1).on(shape.parse().expect("a shape")));
            let simulated = Simulated::new(&world, &cluster.link_costs(), &cluster).expect("few ranks");
            for name in ["ring", "halving-doubling", "double-binary-tree"] {
                let algorithm = registry::find(CollectiveKind::AllReduce, name).expect("an algorithm");
                let program = PreparedProgram::of_algorithm(algorithm, &simulated.topology, 0).expect("a program");
                let network = Network::new(world.shape, &simulated.hosts, &simulated.speeds).expect("room");
                let combining = Combining::InsteadOfReceiving;
                let machine = Machine { gamma: simulated.gamma, combining, ..Machine::new(&network) };
                let load = Load { bytes, tile_bytes, window: WINDOW };
                let outcome = simulate(&program, &load, &machine).expect("an end");
                let whole = [outcome.seconds, carried_s(&outcome, &network)];
                let found = simulated.played(world.shape, &program, bytes, tile_bytes).expect("an end");
                for (found_s, whole_s) in found.into_iter().zip(whole) {
                    let off = found_s / whole_s - 1.0;
                    assert!(off.abs() < 0.015, "{name} on {shape}, {alpha_s} s: {found:?}, {whole:?} in full");
                }
            }
        }
    }

    /// Of six messages that wait for each other in eight hosts two cross between switches of four, through two more each.
    #[test]
    fn switches_add_their_latency() {
        let mut cluster = cluster(8, 1e-3);
        let seconds = |cluster: &Cluster, shape| costs(cluster, shape, "halving-doubling", 1 << 10).alone_s(1 << 10);
        let flat_s = seconds(&cluster, "flat");
        assert!((seconds(&cluster, "tree:4:1") / flat_s - 1.0).abs() < 1e-6);
        cluster.across.hop_s = Constant::exact(1e-3);
        let there_s = seconds(&cluster, "tree:4:1");
        assert!(((there_s - flat_s) / 4e-3 - 1.0).abs() < 0.01, "{there_s} {flat_s}");
        assert_eq!(seconds(&cluster, "flat"), flat_s);
    }

    #[test]
    fn flows_that_meet_by_their_hash_take_longer() {
        let cluster = cluster(64, 0.0);
        let on = |shape| costs(&cluster, shape, "halving-doubling", 1 << 13).alone_s(1 << 13);
        let [flat_s, by_receiver_s, by_hash_s] = ["flat", "fat-tree:8:1", "fat-tree:8:1:hash"].map(on);
        assert!((by_receiver_s / flat_s - 1.0).abs() < 1e-6, "{by_receiver_s} {flat_s}");
        assert!(by_hash_s > 1.5 * flat_s, "{by_hash_s} {flat_s}");
    }
}
