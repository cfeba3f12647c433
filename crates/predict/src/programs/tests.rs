use paceline_collective::cost::Load;
use paceline_collective::{Action, Algorithm, Program, RankProgram, Slot, Space, Step, Topology, registry};
use paceline_plan::{BUILT_IN_CLUSTERS, CollectiveKind, Hosts, LinkClass, NetworkModel};

use super::*;
use crate::communication::{AllToAll, World};
use crate::topology::{Network, Node, Speeds, Spines};

const GAMMA: f64 = 0.2e-9;

fn class(alpha_s: f64, overhead_s: f64) -> LinkClass {
    LinkClass { alpha_s, overhead_s, beta_s_per_byte: 1e-9 }
}

fn network(shape: &str, world: usize, across: LinkClass) -> Network {
    let speeds = Speeds::of(NetworkModel { within: across, across });
    Network::new(shape.parse().unwrap(), &Hosts::regular(world, 1), &speeds).unwrap()
}

fn all_reduce(name: &str) -> &'static dyn Algorithm {
    registry::find(CollectiveKind::AllReduce, name).unwrap()
}

fn one_tile(bytes: usize) -> Load {
    Load { bytes, tile_bytes: bytes.max(1), window: 1 }
}

fn prepared(algorithm: &dyn Algorithm, world: usize) -> PreparedProgram {
    PreparedProgram::of_algorithm(algorithm, &Topology::regular(world, 1), 0).unwrap()
}

/// Each rank on a host of its own at one switch.
fn seconds(algorithm: &dyn Algorithm, world: usize, load: &Load, across: LinkClass, combining: Combining) -> f64 {
    let network = network("flat", world, across);
    let machine = Machine { gamma: GAMMA, combining, ..Machine::new(&network) };
    simulate(&prepared(algorithm, world), load, &machine).unwrap().seconds
}

#[test]
fn a_window_of_one_is_one_tile_after_the_other() {
    let (ring, across) = (all_reduce("ring"), class(100e-6, 0.0));
    let of = |bytes, window| seconds(ring, 8, &Load { bytes, tile_bytes: 1 << 20, window }, across, Combining::Beside);
    let (one, four, overlapped) = (of(1 << 20, 1), of(4 << 20, 1), of(4 << 20, 4));
    assert!((four / one - 4.0).abs() < 1e-9, "{four:e} for four, {one:e} for one");
    assert!(overlapped < 0.7 * four, "{overlapped:e}: the latency of one tile hides behind the others");
    // The last tile may be a short one.
    let more = of((4 << 20) + 1024, 1);
    assert!(more > four && more < four + 0.9 * one, "{more:e}");
}

#[test]
fn bytes_are_counted_where_they_go() {
    let network = network("tree:4:1", 8, class(10e-6, 0.0));
    let load = Load { bytes: 8000, tile_bytes: 3000, window: 2 };
    let ring = prepared(all_reduce("ring"), 8);
    let outcome = simulate(&ring, &load, &Machine::new(&network)).unwrap();
    assert_eq!(outcome.messages, 3 * ring.messages());
    let sent = 2.0 * 7.0 / 8.0 * 8000.0;
    let close = |bytes: f64| (bytes / sent - 1.0).abs() < 1e-12;
    let mut carrying = 0;
    for (link, bytes) in network.links().iter().zip(&outcome.link_bytes) {
        // Ranks alone on their hosts have no ports of their own; the ring crosses each switch's link once.
        let used = !matches!((link.from, link.to), (Node::Rank(_), _) | (_, Node::Rank(_)));
        assert!(if used { close(*bytes) } else { *bytes == 0.0 }, "{link:?} carried {bytes}");
        carrying += usize::from(used);
    }
    assert_eq!(carrying, 2 * 8 + 2 * 2);
    assert_eq!(outcome.rank_seconds.iter().copied().fold(0.0, f64::max), outcome.seconds);
    let large = simulate(&ring, &one_tile(1 << 30), &Machine::new(&network)).unwrap();
    let (link, busy) = large.busiest_link(&network).unwrap();
    assert!(busy > 0.99 && busy <= 1.0 + 1e-9, "link {link} was busy for {busy}");
}

#[test]
fn two_runs_are_the_same_to_the_last_bit() {
    let network = network("fat-tree:4:2", 16, class(17e-6, 3e-6));
    for name in ["ring", "halving-doubling", "double-binary-tree", "direct-scatter"] {
        let choice = PathChoice { spines: Spines::Hash { seed: 5 }, ..PathChoice::default() };
        let machine = Machine { choice, gamma: GAMMA, ..Machine::new(&network) };
        let load = Load { bytes: 1_000_003, tile_bytes: 100_000, window: 4 };
        let run = || simulate(&prepared(all_reduce(name), 16), &load, &machine).unwrap();
        assert_eq!(run(), run());
    }
}

/// All algorithms end, whatever the shape, and the busiest link has carried no more than it could.
#[test]
fn every_algorithm_ends_on_every_shape() {
    let mut runs = 0;
    for shape in ["flat", "tree:4:4", "fat-tree:4:2", "torus:4x2", "bcube:2:3"] {
        for (algorithm, ranks_per_host) in registry::registry().iter().flat_map(|one| [(*one, 1), (*one, 2)]) {
            let (world, hosts) = (8 * ranks_per_host, Hosts::regular(8, ranks_per_host));
            let topology = Topology::regular(8, ranks_per_host);
            if !algorithm.supports(world) {
                continue;
            }
            let speeds = Speeds { hop_s: 1e-6, ..Speeds::of(NetworkModel::TEN_GBE) };
            let network = Network::new(shape.parse().unwrap(), &hosts, &speeds).unwrap();
            let program = PreparedProgram::of_algorithm(algorithm, &topology, 0).unwrap();
            for combining in [Combining::Beside, Combining::InsteadOfReceiving] {
                let machine = Machine { gamma: GAMMA, combining, ..Machine::new(&network) };
                let load = Load { bytes: 100_000, tile_bytes: 30_000, window: 3 };
                let outcome = simulate(&program, &load, &machine).unwrap();
                let told = format!("{} {} on {shape}", algorithm.kind(), algorithm.name());
                assert_eq!(outcome.messages, 4 * algorithm.messages(&topology), "{told}");
                let busy = outcome.busiest_link(&network).map_or(0.0, |(_, busy)| busy);
                assert!((0.0..=1.0 + 1e-9).contains(&busy), "{told}: a link was busy for {busy} of the time");
                runs += 1;
            }
        }
    }
    assert!(runs > 200, "only {runs} runs");
}

/// A ring takes what an iteration is predicted to wait for it: the same links, however many hosts are in each other's way.
#[test]
fn a_ring_on_a_built_in_cluster_takes_as_long_at_both_depths() {
    for name in BUILT_IN_CLUSTERS {
        let cluster = Cluster::named(name).unwrap();
        let hosts = [1, 2, 4, 8].into_iter().filter(|&hosts| hosts <= cluster.hosts);
        for workers in hosts.map(|hosts| hosts * cluster.workers_per_host) {
            let world = World::of(workers, cluster.workers_per_host);
            let predicted = AllToAll::of(&cluster, world, "ring", 64 << 20, 0.0).unwrap();
            let program = PreparedProgram::of_algorithm(all_reduce("ring"), &world.topology(), 0).unwrap();
            for (bytes, tile_bytes, predicted_s) in predicted.known().filter(|(bytes, ..)| *bytes >= 64 << 20) {
                // So large that it does not matter in how many tiles; and few of them are soon simulated.
                let load = Load { bytes, tile_bytes: tile_bytes.max(bytes / 16), window: 16 };
                let found_s = seconds_on(&cluster, &program, &load).unwrap() - cluster.start_s(workers);
                let ratio = found_s / predicted_s;
                assert!((ratio - 1.0).abs() < 0.02, "{name}, {workers}, {load:?}: {found_s} {predicted_s}: {ratio}");
            }
        }
    }
}

/// Where no connection waits at both of its ports, turns take what fair shares do.
#[test]
fn messages_over_emulated_links_take_no_longer_where_none_waits_twice() {
    let network = network("flat", 8, class(50e-6, 10e-6));
    for algorithm in [all_reduce("ring"), registry::find(CollectiveKind::Broadcast, "direct").unwrap()] {
        let program = prepared(algorithm, 8);
        let seconds = |sending: Sending| {
            let machine = Machine { sending, gamma: GAMMA, ..Machine::new(&network) };
            simulate(&program, &one_tile(1 << 20), &machine).unwrap().seconds
        };
        let (shared, emulated) = (seconds(Sending::AtOnce), seconds(Sending::Emulated));
        assert!((emulated / shared - 1.0).abs() < 1e-9, "{}: {emulated:e}, not {shared:e}", algorithm.name());
    }
}

/// So many blocks, each as long as a tile.
fn blocks(blocks: u32) -> Slot {
    Slot { space: Space::Output, block: 0, blocks, part: 0, parts: 1 }
}

fn send(to: usize, message: u32, count: u32) -> Step {
    Step { action: Action::Send { to, message, from: blocks(count) }, after: vec![] }
}

fn receive(from: usize, message: u32, count: u32) -> Step {
    Step { action: Action::Receive { from, message, into: blocks(count), fold: None }, after: vec![] }
}

/// Microseconds in which each rank has done these steps, a microsecond for each block that a port carries.
fn microseconds(steps: Vec<Vec<Step>>, hosts: Hosts, sending: Sending) -> Vec<f64> {
    let ranks = steps.into_iter().map(|steps| RankProgram { scratch_blocks: 0, steps }).collect();
    let (algorithm, kind) = ("moves".to_owned(), CollectiveKind::AllReduce);
    let program = PreparedProgram::of_program(&Program { algorithm, kind, root: 0, parts: 1, ranks }).unwrap();
    let speeds = Speeds::of(NetworkModel { within: class(0.0, 0.0), across: class(0.0, 0.0) });
    let network = Network::new("flat".parse().unwrap(), &hosts, &speeds).unwrap();
    let outcome = simulate(&program, &one_tile(1000), &Machine { sending, ..Machine::new(&network) }).unwrap();
    outcome.rank_seconds.iter().map(|seconds| 1e6 * seconds).collect()
}

/// Rank 1's second message to rank 2 may not leave before its first has passed the port there, behind rank 0's, after 4 us; and then
/// it leaves behind what rank 1 sends to rank 3 since 3 us, after 8. Where ports are shared, that of rank 2 is never idle.
#[test]
fn a_connection_that_waits_at_both_ports_comes_last() {
    let steps = || {
        vec![
            vec![send(2, 0, 3)],
            vec![send(2, 0, 1), send(2, 1, 1), receive(3, 0, 3), Step { after: vec![2], ..send(3, 0, 5) }],
            vec![receive(0, 0, 3), receive(1, 0, 1), receive(1, 1, 1)],
            vec![send(1, 0, 3), receive(1, 0, 5)],
        ]
    };
    for (sending, expected) in [(Sending::Emulated, 9.0), (Sending::AtOnce, 5.0)] {
        let ended = microseconds(steps(), Hosts::regular(4, 1), sending)[2];
        assert!((ended - expected).abs() < 1e-6, "{sending:?}: after {ended} us, not {expected}");
    }
}

/// Two ranks that send to another host leave one after the other; what goes to a rank of their own host is not in their way.
#[test]
fn ranks_share_the_emulated_ports_of_their_host_and_have_their_own_within() {
    let steps = vec![
        vec![send(3, 0, 1), send(2, 0, 1)],
        vec![send(4, 0, 1)],
        vec![receive(0, 0, 1)],
        vec![receive(0, 0, 1)],
        vec![receive(1, 0, 1)],
        vec![],
    ];
    let ended = microseconds(steps, Hosts::regular(2, 3), Sending::Emulated);
    let near = ended[2..5].iter().zip([1.0_f64, 1.0, 2.0]).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(near, "{ended:?}");
}

#[test]
fn a_program_that_waits_for_itself_is_refused() {
    let slot = |space| Slot::of_parts(space, 0, 0, 1);
    let rank = |peer| RankProgram {
        scratch_blocks: 0,
        steps: vec![
            Step {
                action: Action::Receive { from: peer, message: 0, into: slot(Space::Output), fold: None },
                after: vec![],
            },
            Step { action: Action::Send { to: peer, message: 0, from: slot(Space::Output) }, after: vec![0] },
        ],
    };
    let program = Program {
        algorithm: "waiting".into(),
        kind: CollectiveKind::AllReduce,
        root: 0,
        parts: 1,
        ranks: vec![rank(1), rank(0)],
    };
    let network = network("flat", 2, class(0.0, 0.0));
    let prepared = PreparedProgram::of_program(&program).unwrap();
    let refusal = simulate(&prepared, &one_tile(8), &Machine::new(&network)).unwrap_err();
    assert_eq!(refusal.to_string(), "rank 0, step 1: waits, in the end, for itself");
}
