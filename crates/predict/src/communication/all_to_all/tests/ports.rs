//! For how long ports are busy with an operation, against the messages of its program, counted one by one.

use std::collections::BTreeMap;

use paceline_collective::Action;

use super::*;

/// Latencies are nearly all that small operations take.
const ACROSS: LinkClass = LinkClass { alpha_s: 50e-6, overhead_s: 0.0, beta_s_per_byte: 1e-9 };
const WITHIN: LinkClass = LinkClass { alpha_s: 5e-6, overhead_s: 0.0, beta_s_per_byte: 1e-10 };

/// Workers, how many of them share a host, and how hosts are connected.
const WORLDS: [(usize, usize, &str); 11] = [
    (2, 1, "flat"),
    (3, 1, "flat"),
    (4, 1, "flat"),
    (5, 1, "flat"),
    (8, 1, "flat"),
    (16, 1, "flat"),
    (4, 2, "flat"),
    (8, 4, "flat"),
    (16, 4, "flat"),
    (8, 1, "tree:4:4"),
    (8, 2, "tree:2:2"),
];

const SIZES: [u64; 9] = [1 << 10, 5_000, 1 << 14, 100_000, 1 << 18, 1 << 20, 5_000_000, 1 << 24, 1 << 26];

/// Where messages share ports, some of these stand idle: for no longer than this, where latencies would be up to 200 times as long.
const STRETCHED: f64 = 1.5;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    OutOfRank,
    IntoRank,
    OutOfHost,
    IntoHost,
    OutOfSwitch,
    IntoSwitch,
}

fn cluster(world: &World) -> Cluster {
    Cluster::of_network(NetworkModel { within: WITHIN, across: ACROSS }, world.hosts, world.per_host)
}

/// As a job has them.
fn costs(world: World, algorithm: &dyn Algorithm) -> AllToAll {
    let costs = AllToAll::of(&cluster(&world), world, algorithm.name(), 1 << 26, 0.0).expect("costs");
    if world.shape == Shape::Flat { costs.with_shared_ports() } else { costs }
}

/// Seconds in which the busiest port carries a byte of an operation, of all messages together.
fn busiest_port_s_per_byte(world: &World, algorithm: &dyn Algorithm) -> f64 {
    let topology = world.topology();
    let program = algorithm.program(&topology, 0);
    let mut ports: BTreeMap<(Port, usize), f64> = BTreeMap::new();
    let mut carry = |between: [(Port, usize); 2], seconds: f64| {
        between.into_iter().for_each(|port| *ports.entry(port).or_insert(0.0) += seconds);
    };
    for (rank, content) in program.ranks.iter().enumerate() {
        for step in &content.steps {
            let Action::Send { to, from, .. } = step.action else { continue };
            let share = f64::from(from.blocks * from.parts) / f64::from(program.parts);
            let (here, there) = (topology.host(rank), topology.host(to));
            // What leaves a host has come out of a rank.
            if world.per_host > 1 {
                carry([(Port::OutOfRank, rank), (Port::IntoRank, to)], share * WITHIN.beta_s_per_byte);
            }
            if here != there {
                carry([(Port::OutOfHost, here), (Port::IntoHost, there)], share * ACROSS.beta_s_per_byte);
            }
            if let Shape::Tree(switches) = world.shape
                && here / switches.hosts != there / switches.hosts
            {
                let links = switches.hosts as f64 / switches.oversubscription;
                let between = [(Port::OutOfSwitch, here / switches.hosts), (Port::IntoSwitch, there / switches.hosts)];
                carry(between, share * ACROSS.beta_s_per_byte / links);
            }
        }
    }
    ports.into_values().fold(0.0, f64::max)
}

fn all_reduces(workers: usize) -> impl Iterator<Item = &'static dyn Algorithm> {
    registry::of_kind(CollectiveKind::AllReduce).filter(move |algorithm| algorithm.supports(workers))
}

/// Whatever latencies a program hides: a port carries no byte faster. Nor is it busy with latencies.
#[test]
fn ports_are_busy_with_the_bytes_of_their_messages() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (workers, per_host, shape) in WORLDS {
        let world = World::of(workers, per_host).on(shape.parse().expect("a shape"));
        for algorithm in all_reduces(workers) {
            let (costs, s_per_byte) = (costs(world, algorithm), busiest_port_s_per_byte(&world, algorithm));
            let told = format!("{} of {workers} workers, {per_host} on a host, {shape}", algorithm.name());
            let least = s_per_byte * (1.0 - 1e-9);
            assert!(costs.seconds_per_byte_min() >= least, "{told}: {} {least}", costs.seconds_per_byte_min());
            for bytes in SIZES {
                let (alone_s, busy_s) = costs.between(bytes);
                let carried_s = bytes as f64 * s_per_byte;
                let most = match (workers, world.shape == Shape::Flat && per_host == 1) {
                    // Nobody sends to two at once.
                    (2, true) => 1.001,
                    (_, true) => STRETCHED,
                    // A formula may count more where ranks share hosts; and a tree, what its links make of that.
                    (_, false) => f64::INFINITY,
                };
                let longest = busy_s <= carried_s * most && busy_s <= alone_s * (1.0 + 1e-9);
                if busy_s < carried_s * (1.0 - 1e-9) || !longest {
                    wrong.push(format!("{told}, {bytes} bytes: busy {busy_s} of {alone_s}, {carried_s} with bytes"));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "of {compared}:\n{}", wrong.join("\n"));
    assert!(compared > 800, "{compared}");
}

/// Of operations in flight beside each other, each a tile: what a further one adds, message by message.
#[test]
fn operations_that_follow_each_other_wait_for_ports() {
    let bytes = 4 << 20;
    let mut apart = Vec::new();
    for workers in [2, 3, 5, 8] {
        let world = World::of(workers, 1);
        for algorithm in all_reduces(workers) {
            let program = PreparedProgram::of_algorithm(algorithm, &world.topology(), 0).expect("a program");
            let of = |count: usize| {
                let load = Load { bytes: count * bytes, tile_bytes: bytes, window: count };
                seconds_on(&cluster(&world), &program, &load).expect("it ends")
            };
            let (further_s, busy_s) = ((of(32) - of(16)) / 16.0, costs(world, algorithm).between(bytes as u64).1);
            let off = busy_s / further_s - 1.0;
            if off.abs() > 0.1 {
                apart.push(format!("{} of {workers}: {busy_s}, and one more takes {further_s} s", algorithm.name()));
            }
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}
