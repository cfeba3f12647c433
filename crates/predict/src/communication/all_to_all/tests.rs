use paceline_collective::cost::Load;
use paceline_collective::registry;
use paceline_plan::{CollectiveKind, LinkClass, LinkCost, NetworkModel};

use super::*;
use crate::iteration::tests::{plan_of, profile};
use crate::iteration::{Length, Training, WorkerClass, simulate};
use crate::programs::{PreparedProgram, seconds_on};

mod ports;

const NETWORK: NetworkModel = NetworkModel {
    within: LinkClass { alpha_s: 6e-6, overhead_s: 1e-6, beta_s_per_byte: 0.1e-9 },
    across: LinkClass { alpha_s: 30e-6, overhead_s: 5e-6, beta_s_per_byte: 0.8e-9 },
};

#[test]
fn places_and_sizes_belong_together() {
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(size), [0, 1024, 1280, 1536, 1792, 2048, 2560]);
    for place_of in 0..130 {
        assert_eq!(place(size(place_of)), place_of);
        assert_eq!(place(size(place_of + 1) - 1), place_of);
    }
}

/// As the runtime chooses, and what that costs: of links that take what it counts; that it counts more for, as on an
/// emulated network; of memory that is shared, where fewer rounds are worth more; and of sockets within crowded hosts, where
/// streams that meet lose time; and of links that take something else than ranks have agreed on.
#[test]
fn what_is_chosen_is_what_the_runtime_chooses() {
    let worlds = [(2, 1), (4, 4), (8, 8), (8, 1), (8, 4), (13, 1), (16, 4), (32, 4)];
    let (mut alike, mut compared) = (0, 0);
    for ((workers, per_host), kind) in
        worlds.into_iter().flat_map(|world| [0, 1, 2, 3, 4].map(move |kind| (world, kind)))
    {
        let world = World::of(workers, per_host);
        let mut cluster = Cluster::of_network(NETWORK, world.hosts, per_host);
        if kind == 1 {
            (cluster.within.counted_overhead_s, cluster.across.counted_overhead_s) = (6e-6, 30e-6);
        }
        cluster.within.fetched = kind == 2;
        if kind == 3 {
            cluster.within.incast_s_per_byte = 0.2e-9.into();
        }
        if kind == 4 {
            // Links that turned out to be others than ranks had agreed.
            let LinkCosts { within, across, .. } = cluster.link_costs();
            let within = LinkCost { alpha: 8.0 * within.alpha, overhead: 4.0 * within.alpha, ..within };
            let across = LinkCost { alpha: 0.5 * across.alpha, overhead: 0.4 * across.alpha, ..across };
            cluster.agreed = Some(LinkCosts { within, across, fetched: per_host > 1, ..cluster.link_costs() });
        }
        let found = AllToAll::of(&cluster, world, "auto", 1 << 30, 0.0).expect("an algorithm");
        let links = cluster.link_costs_among(found.world.hosts);
        let counted = cluster.counted_costs_among(found.world.hosts);
        for entry in found.entries.iter().step_by(3) {
            let bytes = entry.bytes as usize;
            let topology = found.world.topology();
            let choice = select::cheapest(CollectiveKind::AllReduce, &topology, bytes, &counted, |_| true);
            let choice = choice.expect("there are many");
            let algorithm = found.forms[entry.form].algorithm;
            let on = |links| algorithm.seconds(&topology, bytes, entry.tile_bytes, links);
            let told = format!("{kind}: {workers}/{per_host}, {bytes}: {} {entry:?} {choice:?}", algorithm.name());
            // Of what is as good to the runtime, either.
            assert!((on(&counted) / choice.seconds - 1.0).abs() < 0.1, "{told}, {}", on(&counted));
            if algorithm.name() == choice.algorithm.name() && found.world.hosts > 1 {
                // Where two sizes take about the same, the one or the other.
                let apart = entry.tile_bytes.max(choice.tile_bytes) / entry.tile_bytes.min(choice.tile_bytes);
                assert!(apart <= 2, "{told}");
                (alike, compared) = (alike + usize::from(apart == 1), compared + 1);
            }
            // Formulas of a few kilobytes bend between the points at which they are evaluated.
            assert!((entry.alone_s / on(&links) - 1.0).abs() < 0.08, "{told}, {}", on(&links));
        }
    }
    assert!(compared > 300 && alike * 10 > compared * 9, "{alike} of {compared} in the same tiles");
}

/// Tiles that would be too many for this machine are not supposed, though the network would not mind them.
#[test]
fn tiles_are_as_large_as_the_runtime_makes_them() {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 8, 1);
    let of = |cluster: &Cluster| {
        let tree = AllToAll::of(cluster, World::of(8, 1), "double-binary-tree", 64 << 20, 0.0);
        let tree = tree.expect("a tree");
        let entry = tree.entries[place(64 << 20)];
        (entry.tile_bytes, entry.alone_s)
    };
    let (small, optimistic_s) = of(&cluster);
    cluster.across.counted_overhead_s = 50e-6;
    let (large, seconds) = of(&cluster);
    assert!(large >= 4 * small && seconds > optimistic_s, "{small} {large}, {optimistic_s} {seconds}");
    assert_eq!(cluster.across.overhead_s.value, 0.0);
}

/// A start-up of 0.4 ms and 256 bytes on a ring of two hosts with four workers: 14 messages that wait for each other. Where
/// several are in flight, an operation occupies the channel for no more than its ports are busy; one by one, for all of it.
#[test]
fn what_starts_when_nothing_travels_pays_every_latency() {
    let profile = profile(&[(64, 0.0, 0.0), (64, 0.0, 0.0), (64, 0.0, 0.0)], 0.0);
    let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
    let cluster = Cluster::of_network(NETWORK, 2, 4);
    let ring = || AllToAll::of(&cluster, World::of(8, 4), "ring", 1 << 20, 0.4e-3).expect("a ring");
    let classes = [WorkerClass::of(&profile, 8)];
    let three_s = |costs: &AllToAll| {
        let operations = costs.traffic(&plan).operations;
        simulate(&Training::new(&plan, &classes, &operations), Length::Steady).iteration_s
    };
    let (flight, alone) = (ring(), ring().one_by_one());
    let (alone_s, busy_s) = (flight.alone_s(256), flight.between(256).1);
    // Alone: a quarter of the hops cross between hosts.
    assert!((alone_s / (0.4e-3 + 14.0 * (0.25 * 30e-6 + 0.75 * 6e-6)) - 1.0).abs() < 0.01, "{alone_s}");
    assert_eq!(alone.alone_s(256), alone_s);
    assert!((three_s(&flight) - (2.0 * (0.4e-3 + busy_s) + alone_s)).abs() < 1e-12, "{}", three_s(&flight));
    assert!((three_s(&alone) - 3.0 * alone_s).abs() < 1e-12, "{}", three_s(&alone));
    assert!(alone.seconds_per_byte_min() > flight.seconds_per_byte_min());
}

/// A ring without latency is a line: no size between two known ones is off.
#[test]
fn a_ring_takes_what_its_bytes_take() {
    let world = World::of(32, 4);
    let class = |beta_s_per_byte| LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte };
    let network = NetworkModel { within: class(0.2e-9), across: class(0.9e-9) };
    let cluster = Cluster::of_network(network, 8, 4);
    let ring = AllToAll::of(&cluster, world, "ring", 1 << 30, 0.4e-3).expect("a ring");
    for bytes in [0, 4, 1000, 123_456, 4_096_000, 102_228_128, 1_344_929_032] {
        let expected = 0.4e-3 + 1.9375 * bytes as f64 * 0.9e-9;
        assert!((ring.alone_s(bytes) / expected - 1.0).abs() < 1e-9, "{bytes}: {} {expected}", ring.alone_s(bytes));
    }
}

/// As in the study: InfiniBand from host to host, and PCIe across both sockets within one.
#[test]
fn rings_that_were_measured_whole_are_not_slowed_by_each_other() {
    let class = |beta_s_per_byte| LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte };
    let network = NetworkModel { within: class(0.22e-9), across: class(0.20e-9) };
    for (workers, beta) in [(4, 0.22e-9), (8, 0.20e-9), (32, 0.20e-9)] {
        let cluster = Cluster::of_network(network, 8, 4);
        let ring = AllToAll::of(&cluster, World::of(workers, 4), "ring", 1 << 30, 0.0).expect("a ring");
        let expected = all_reduce_factor(workers) * 1e8 * beta;
        assert!((ring.alone_s(100_000_000) / expected - 1.0).abs() < 1e-9, "{workers}: {}", ring.alone_s(100_000_000));
    }
}

#[test]
fn an_unknown_algorithm_is_refused() {
    let cluster = Cluster::of_network(NETWORK, 2, 1);
    let error = AllToAll::of(&cluster, World::of(2, 1), "rign", 1, 0.0).err().expect("a refusal");
    assert!(error.to_string().contains("rign"), "{error}");
}

/// Also where nobody has named it: of operations that a plan has, and of no others.
#[test]
fn an_algorithm_that_is_chosen_is_in_doubt_like_one_that_is_named() {
    // So many workers that the program is too long.
    let cluster = Cluster::of_network(NETWORK, 16, 4);
    let costs = |per_host: usize| {
        let costs = AllToAll::of(&cluster, World::of(64, per_host), "auto", 64 << 20, 0.0);
        costs.expect("costs").with_shared_ports()
    };
    let told = |costs: &AllToAll, layers: &[usize]| {
        let layers: Vec<_> = layers.iter().map(|&elements| (elements, 0.0, 0.0)).collect();
        let plan = plan_of("wfbp-a2a", &profile(&layers, 0.0), &|_| 0.0);
        (costs.doubts(&plan), costs.estimates(&plan))
    };
    // 1 KiB, of which latencies count, and 16 MiB, which a hierarchical one carries.
    let (shared, small, large) = (costs(4), 1 << 8, 4 << 20);
    for layers in [&[small][..], &[large, small, small]] {
        let (doubts, estimates) = told(&shared, layers);
        let says = "recursive-doubling does not ask who shares a host: where workers do";
        assert!(doubts.len() == 1 && doubts[0].starts_with(says) && estimates == 1, "{layers:?}: {doubts:?}");
    }
    assert_eq!(told(&shared, &[large, large]), (Vec::new(), 0));
    assert_eq!(told(&costs(1), &[small, large]), (Vec::new(), 0), "nobody shares a host");
}

/// Nobody may have told the runtime of a torus or a BCube. What it takes by itself is predicted as it runs, and so is what no program
/// follows, as where workers share hosts.
#[test]
fn programs_that_the_runtime_does_not_run_by_itself_are_in_doubt() {
    let plan = plan_of("wfbp-a2a", &profile(&[(1 << 12, 0.0, 0.0)], 0.0), &|_| 0.0);
    for (shape, per_host, name, doubtful) in [
        ("torus:4x4", 1, "2d-torus", false),
        ("torus:2x8", 1, "2d-torus", true),
        ("torus:2x4", 1, "2d-torus", false),
        ("torus:4x2", 1, "2d-torus", true),
        ("torus:4x2", 1, "bcube", false),
        ("torus:4x2", 1, "ring", false),
        ("torus:4x2", 2, "2d-torus", false),
        ("torus:5x1", 1, "2d-torus", false),
        ("bcube:4:2", 1, "bcube", false),
        ("bcube:2:4", 1, "bcube", true),
        ("bcube:2:3", 1, "bcube", false),
        ("bcube:2:2", 2, "bcube", false),
    ] {
        let there: Shape = shape.parse().expect("a shape");
        let hosts = there.hosts().expect("it has places");
        let cluster = Cluster::of_network(NETWORK, hosts, per_host);
        let world = World::of(hosts * per_host, per_host).on(there);
        let costs = AllToAll::of(&cluster, world, name, 1 << 15, 0.0).expect("costs");
        let doubts = costs.doubts(&plan);
        let what = format!("{name} follows {shape} here");
        let next = format!("unless it is started with --topology {shape} (PACELINE_TOPOLOGY)");
        let told = doubts.iter().filter(|doubt| doubt.starts_with(&what) && doubt.ends_with(&next)).count();
        assert_eq!(told, usize::from(doubtful), "{name} on {shape}, {per_host} on a host: {doubts:?}");
    }
}

/// What whole rings took has no latency, so that bytes decide: a ring, or a hierarchical one, which programs hold.
#[test]
fn on_the_clusters_of_the_study_nothing_that_is_chosen_is_in_doubt() {
    for name in ["study-10gbe", "study-100gbe", "study-100gbib"] {
        let cluster = Cluster::named(name).expect("it is built in");
        for workers in [8, 32, 64] {
            let costs = AllToAll::of(&cluster, World::of(workers, 4), "auto", 2 << 30, 0.0);
            let costs = costs.expect("costs").with_shared_ports();
            let doubtful: Vec<&Entry> = costs.entries.iter().filter(|entry| entry.doubt.is_some()).collect();
            assert!(doubtful.is_empty(), "{name}, {workers} workers: {doubtful:?}");
        }
    }
}

/// Between hosts that hang together at two switches, a ring is as fast as under one; what crosses is not.
#[test]
fn switches_in_the_way_cost_what_the_program_takes_on_them() {
    let world = World::of(8, 1);
    let cluster = Cluster::of_network(NETWORK, 8, 1);
    let alone = |shape: &str, algorithm: &str| {
        let shape = shape.parse().expect("a shape");
        AllToAll::of(&cluster, world.on(shape), algorithm, 16 << 20, 0.0).expect("costs").alone_s(16 << 20)
    };
    assert!((alone("tree:4:4", "ring") / alone("flat", "ring") - 1.0).abs() < 0.02);
    let slower = alone("tree:4:4", "halving-doubling") / alone("flat", "halving-doubling");
    assert!(slower > 1.5, "{slower}");
}

/// Of each kind for eight workers, one or two on a host.
const SHAPES: [(&str, usize); 9] = [
    ("tree:4:1", 1),
    ("tree:4:4", 1),
    ("fat-tree:4:2", 1),
    ("fat-tree:4:1:hash", 1),
    ("torus:4x2", 1),
    ("bcube:2:3", 1),
    ("tree:2:2", 2),
    ("torus:2x2", 2),
    ("bcube:2:2", 2),
];

/// More tiles are told by the first of them, and messages of more of all tiles take a test too long.
const TILES_COMPARED: usize = 64;
const LONGEST: usize = 1 << 14;

/// Both depths say the same, to 2 %, in the tiles that the runtime would choose: of those that take their formula under one
/// switch, where that is said of them there, too, which is in one tile, or where it is not latencies that tiles wait for.
#[test]
fn what_is_predicted_on_a_topology_is_what_the_program_takes_there() {
    let (mut compared, mut irregular, mut apart) = (0, 0, Vec::new());
    for (shape, per_host) in SHAPES {
        let flat = Cluster::of_network(NETWORK, 8 / per_host, per_host);
        let cluster = Cluster { topology: shape.to_owned(), ..flat };
        let world = World::of(8, per_host).on(shape.parse().expect("a shape"));
        let of_world = |it: &&dyn Algorithm| it.supports(8) && it.for_hosts() == (per_host > 1);
        for algorithm in registry::of_kind(CollectiveKind::AllReduce).filter(of_world) {
            let (name, topology) = (algorithm.name(), world.topology());
            let regular = ["ring", "direct", "recursive-doubling", "halving-doubling", "hierarchical"].contains(&name);
            let waits_s = algorithm.rounds(&topology) as f64 * (NETWORK.across.alpha_s - NETWORK.across.overhead_s);
            let costs = AllToAll::of(&cluster, world, name, 64 << 20, 0.0).expect("costs");
            let program = PreparedProgram::of_algorithm(algorithm, &topology, 0).expect("a program");
            for (bytes, tile_bytes, predicted_s) in costs.known().step_by(8) {
                let count = tiles(bytes, tile_bytes);
                let applies = !regular || count == 1 || waits_s < 0.01 * predicted_s;
                if !applies || count > TILES_COMPARED || count * algorithm.messages(&topology) > LONGEST {
                    continue;
                }
                let load = Load { bytes, tile_bytes, window: paceline_collective::WINDOW };
                let found_s = seconds_on(&cluster, &program, &load).expect("it ends");
                let off = predicted_s / found_s - 1.0;
                if off.abs() >= 0.02 {
                    apart.push(format!("{name} on {shape}, {load:?}: {off:.3}"));
                }
                compared += 1;
                irregular += usize::from(!regular);
            }
        }
    }
    assert!(apart.is_empty(), "of {compared}:\n{}", apart.join("\n"));
    assert!(compared > 150 && irregular > 75, "{compared} {irregular}");
}

/// What is physically the same takes the same: links upwards that carry all that hosts can send are never in the way.
#[test]
fn a_tree_that_is_not_oversubscribed_is_one_switch() {
    let cluster = Cluster::of_network(NETWORK, 16, 1);
    let profile = profile(&[(1 << 20, 0.0, 0.0)], 0.0);
    let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
    let of_world = |it: &&dyn Algorithm| it.supports(16) && !it.for_hosts();
    for name in registry::of_kind(CollectiveKind::AllReduce).filter(of_world).map(|algorithm| algorithm.name()) {
        let of = |shape: &str| {
            let world = World::of(16, 1).on(shape.parse().expect("a shape"));
            AllToAll::of(&cluster, world, name, 16 << 20, 0.0).expect("costs")
        };
        let (flat, there) = (of("flat").with_shared_ports(), of("tree:4:1"));
        assert_eq!(flat.doubts(&plan), there.doubts(&plan), "{name}");
        for ((bytes, _, flat_s), (_, _, there_s)) in flat.known().zip(there.known()) {
            assert!((there_s / flat_s - 1.0).abs() < 1e-6, "{name}, {bytes}: {there_s}, {flat_s} s under one switch");
        }
    }
}
