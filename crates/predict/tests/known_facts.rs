//! What is known of these topologies.

use std::collections::BTreeSet;

use paceline_collective::cost::Load;
use paceline_collective::{Topology, registry};
use paceline_plan::{CollectiveKind, Hosts, LinkClass, NetworkModel};
use paceline_predict::flows::FlowNetwork;
use paceline_predict::programs::{Machine, PreparedProgram, simulate};
use paceline_predict::topology::{Network, PathChoice, Speeds, Spines};

const CAPACITY: f64 = 1e9;

fn network(shape: &str, hosts: usize) -> Network {
    let class = LinkClass { alpha_s: 10e-6, overhead_s: 0.0, beta_s_per_byte: 1.0 / CAPACITY };
    let speeds = Speeds::of(NetworkModel { within: class, across: class });
    Network::new(shape.parse().unwrap(), &Hosts::regular(hosts, 1), &speeds).unwrap()
}

/// What each of these flows gets if all are under way at once, as a share of a port.
fn shares(network: &Network, pairs: &[(usize, usize)]) -> Vec<f64> {
    let mut flows = FlowNetwork::new(network.links().iter().map(|link| link.capacity));
    let started = pairs.iter().map(|&(from, to)| {
        let route = flows.add_route(&network.route(from, to, &PathChoice::default()).links);
        flows.add(route, 1e9, 0.0)
    });
    let started: Vec<_> = started.collect();
    started.into_iter().map(|flow| flows.rate(flow) / CAPACITY).collect()
}

fn all_are(shares: &[f64], expected: f64) {
    assert!(shares.iter().all(|share| (share / expected - 1.0).abs() < 1e-9), "{shares:?}, not {expected}");
}

/// The hops of a ring that visits the hosts in this order.
fn ring(order: &[usize]) -> Vec<(usize, usize)> {
    (0..order.len()).map(|place| (order[place], order[(place + 1) % order.len()])).collect()
}

/// All hosts are in both rings, and those of a fat-tree have one port: it is the port that the rings share, and so they do under a
/// single switch. Hosts of a BCube have several, of which each ring takes another one (below).
#[test]
fn a_fat_tree_carries_one_ring_at_full_rate_and_two_at_half() {
    for shape in ["flat", "fat-tree:4:1", "fat-tree:4:4", "tree:4:4"] {
        let network = network(shape, 16);
        let forward = ring(&(0..16).collect::<Vec<_>>());
        let backward: Vec<(usize, usize)> = forward.iter().map(|&(from, to)| (to, from)).collect();
        all_are(&shares(&network, &forward), 1.0);
        all_are(&shares(&network, &[forward, backward].concat()), 0.5);
    }
}

/// Here each host is in one ring, whose hops its port has for itself: what both rings share are the links upwards, and where these
/// carry no more than one port does, two rings get half each. The switches of a BCube lie side by side.
#[test]
fn the_links_upwards_of_a_fat_tree_carry_one_ring_at_full_rate_and_two_at_half() {
    let rings = [0, 1].map(|first| ring(&[first, first + 4, first + 8, first + 12]));
    for (shape, of_two) in [
        ("fat-tree:4:4", 0.5),
        ("tree:4:4", 0.5),
        ("fat-tree:4:1", 1.0),
        ("tree:4:1", 1.0),
        ("flat", 1.0),
        ("bcube:4:2", 1.0),
    ] {
        let network = network(shape, 16);
        rings.iter().for_each(|ring| all_are(&shares(&network, ring), 1.0));
        all_are(&shares(&network, &rings.concat()), of_two);
    }
}

/// As many rings as a BCube has levels, if that is a power of two, each through all hosts. Of one level: round its switch. Of twice
/// as many: hosts are pairs of places in a ring of half the levels. One ring moves along the low place, and when that has
/// been round, by one along the high one; another does the same with the places exchanged. At every host one of the two
/// moves the low place and the other the high one, so they take different levels, and those of another ring of half the
/// levels are others again.
fn bcube_rings(ports: usize, levels: u32) -> Vec<Vec<usize>> {
    if levels == 1 {
        return vec![(0..ports).collect()];
    }
    let of_two = |half: Vec<usize>| {
        let hosts = half.len();
        let place = move |step: usize| (step / hosts, (step + step / hosts * (hosts - 1)) % hosts);
        let order = |number: &dyn Fn((usize, usize)) -> usize| -> Vec<usize> {
            (0..hosts * hosts).map(place).map(number).collect()
        };
        [order(&|(high, low)| half[high] * hosts + half[low]), order(&|(high, low)| half[low] * hosts + half[high])]
    };
    bcube_rings(ports, levels / 2).into_iter().flat_map(of_two).collect()
}

#[test]
fn bcube_carries_a_ring_for_each_level_at_full_rate() {
    for (ports, levels) in [(2usize, 2u32), (3, 2), (4, 2), (8, 2), (2, 4), (3, 4), (4, 4), (2, 8)] {
        let hosts = ports.pow(levels);
        let rings: Vec<_> = bcube_rings(ports, levels).iter().map(|order| ring(order)).collect();
        assert_eq!(rings.len(), levels as usize);
        // Every hop crosses one switch, and leaves and enters by ports that no other hop of any ring uses.
        let (mut leaves, mut enters) = (BTreeSet::new(), BTreeSet::new());
        for ring in &rings {
            let visited: BTreeSet<usize> = ring.iter().map(|&(from, _)| from).collect();
            assert_eq!((ring.len(), visited.len()), (hosts, hosts), "BCube({ports}, {levels})");
            for &(from, to) in ring {
                let differs = |level: &u32| from / ports.pow(*level) % ports != to / ports.pow(*level) % ports;
                let crossed: Vec<u32> = (0..levels).filter(differs).collect();
                assert_eq!(crossed.len(), 1, "from {from} to {to} in BCube({ports}, {levels})");
                assert!(leaves.insert((from, crossed[0])) && enters.insert((to, crossed[0])));
            }
        }
        let bcube = network(&format!("bcube:{ports}:{levels}"), hosts);
        rings.iter().for_each(|ring| all_are(&shares(&bcube, ring), 1.0));
        all_are(&shares(&bcube, &rings.concat()), 1.0);
        // With one port, they share it.
        all_are(&shares(&network("flat", hosts), &rings.concat()), 1.0 / f64::from(levels));
    }
}

/// An all-reduce in k slices, one of which exchanges on level i + j of k in its phase j, with everyone who differs in that
/// digit: all levels are in use all the time.
#[test]
fn bcube_carries_a_slice_for_each_level_at_full_rate() {
    for (ports, levels) in [(2usize, 2u32), (3, 3), (4, 4), (4, 2), (2, 4)] {
        let hosts = ports.pow(levels);
        let network = network(&format!("bcube:{ports}:{levels}"), hosts);
        let exchange = |level: u32| {
            let digit = ports.pow(level);
            let peers = move |host: usize| {
                let others = (1..ports).map(move |add| (host / digit % ports + add) % ports);
                others.map(move |other| (host, host - host / digit % ports * digit + other * digit))
            };
            (0..hosts).flat_map(peers).collect::<Vec<_>>()
        };
        let alone = 1.0 / (ports - 1) as f64;
        for phase in 0..levels {
            all_are(&shares(&network, &exchange(phase)), alone);
            let all: Vec<_> = (0..levels).map(|slice| exchange((slice + phase) % levels)).collect();
            all_are(&shares(&network, &all.concat()), alone);
        }
        // With one port, they share it.
        let all: Vec<_> = (0..levels).map(exchange).collect();
        all_are(&shares(&self::network("flat", hosts), &all.concat()), alone / f64::from(levels));
    }
}

#[test]
fn oversubscription_divides_what_crosses() {
    for (oversubscription, expected) in [(1, 1.0), (2, 0.5), (4, 0.25)] {
        for shape in ["tree", "fat-tree"] {
            let network = network(&format!("{shape}:4:{oversubscription}"), 16);
            let crossing: Vec<_> = (0..16).map(|host| (host, (host + 4) % 16)).collect();
            all_are(&shares(&network, &crossing), expected);
            let staying: Vec<_> = (0..16).map(|host| (host, host / 4 * 4 + (host + 1) % 4)).collect();
            all_are(&shares(&network, &staying), 1.0);
        }
    }
}

#[test]
fn flows_that_meet_by_their_hash_take_longer() {
    let network = network("fat-tree:8:1", 64);
    let algorithm = registry::find(CollectiveKind::AllReduce, "halving-doubling").unwrap();
    let program = PreparedProgram::of_algorithm(algorithm, &Topology::regular(64, 1), 0).unwrap();
    let load = Load { bytes: 100_000_000, tile_bytes: 100_000_000, window: 1 };
    let seconds = |spines| {
        let choice = PathChoice { spines, ..PathChoice::default() };
        simulate(&program, &load, &Machine { choice, ..Machine::new(&network) }).unwrap().seconds
    };
    let full = 2.0 * (63.0 / 64.0 * 0.1 + 6.0 * 10e-6);
    assert!((seconds(Spines::ByReceiver) / full - 1.0).abs() < 1e-9);
    for seed in 0..4 {
        // Eight flows on eight spines: the fullest carries two to four.
        let factor = seconds(Spines::Hash { seed }) / full;
        assert!(factor > 1.5 && factor < 5.0, "seed {seed}: {factor}");
    }
}

/// A ring of 16 in a 4 × 4 torus that turns back at the edges takes every hop on a cable of its own; the numbers' order
/// jumps from row to row, and still does.
#[test]
fn a_torus_carries_rings_both_ways() {
    let network = network("torus:4x4", 16);
    let order: Vec<usize> = (0..16).map(|step| step / 4 * 4 + (step + step / 4 * 3) % 4).collect();
    let forward = ring(&order);
    let backward: Vec<_> = forward.iter().map(|&(from, to)| (to, from)).collect();
    all_are(&shares(&network, &forward), 1.0);
    all_are(&shares(&network, &[forward, backward].concat()), 1.0);
}

/// What these programs are for: hosts that have several ports use more than one all the time. (On a torus, one way round along
/// each dimension.)
#[test]
fn the_programs_of_a_torus_and_of_bcube_use_several_ports() {
    let bytes = 100_000_000;
    let load = Load { bytes, tile_bytes: bytes, window: 1 };
    let seconds = |shape: &str, name: &str, hosts: usize| {
        let algorithm = registry::find(CollectiveKind::AllReduce, name).unwrap();
        let program = PreparedProgram::of_algorithm(algorithm, &Topology::regular(hosts, 1), 0).unwrap();
        simulate(&program, &load, &Machine::new(&network(shape, hosts))).unwrap().seconds
    };
    // The ranks of a torus that is not told lie in rows of the shorter side: on a wide one that is not along its cables.
    let torus = registry::find(CollectiveKind::AllReduce, "2d-torus").unwrap();
    let told = PreparedProgram::of_algorithm(torus, &Topology::regular(32, 1).on_torus(8, 4), 0).unwrap();
    let told = simulate(&told, &load, &Machine::new(&network("torus:8x4", 32))).unwrap().seconds;
    assert!(told < 0.8 * seconds("torus:8x4", "2d-torus", 32), "{told}");
    assert!((told / seconds("torus:4x8", "2d-torus", 32) - 1.0).abs() < 0.01, "{told}");
    for (shape, name, hosts, ports) in [
        ("torus:3x3", "2d-torus", 9, 2.0),
        ("torus:4x4", "2d-torus", 16, 2.0),
        ("bcube:3:2", "bcube", 9, 2.0),
        ("bcube:4:2", "bcube", 16, 2.0),
        ("bcube:2:3", "bcube", 8, 3.0),
    ] {
        let one_port = 2.0 * (hosts - 1) as f64 / hosts as f64 * bytes as f64 / CAPACITY;
        let (there, ring) = (seconds(shape, name, hosts), seconds(shape, "ring", hosts));
        assert!((there * ports / one_port - 1.0).abs() < 0.02, "{name} on {shape}: {there}, {one_port} by one port");
        assert!(ring > 0.99 * one_port, "a ring on {shape}: {ring}, {one_port} by one port");
        // Under one switch they are as good as a ring, and no better.
        let flat = seconds("flat", name, hosts);
        assert!((flat / one_port - 1.0).abs() < 0.02, "{name} on flat: {flat}, {one_port}");
    }
}
