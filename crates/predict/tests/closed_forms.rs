//! Programs on a flat network take what the closed formulas and a walk say, where these apply.

use std::ops::RangeInclusive;

use paceline_collective::cost::{Load, walk};
use paceline_collective::{Algorithm, Topology, msccl, registry};
use paceline_plan::{Cluster, CollectiveKind, Constant, Hosts, LinkClass, LinkCost, LinkCosts, NetworkModel};
use paceline_predict::programs::{Combining, Machine, PreparedProgram, Sending, seconds_on, simulate};
use paceline_predict::topology::{Network, Shape, Speeds};

/// What the formulas suppose: who combines takes nothing in meanwhile.
const COMBINING: Combining = Combining::InsteadOfReceiving;
const BYTES: [usize; 4] = [0, 1 << 10, 1 << 20, 100 << 20];
const ALPHA_S: f64 = 50e-6;
/// Of a message between hosts: none, some, and all of alpha, which is Hockney's model.
const OVERHEADS_S: [f64; 3] = [0.0, 20e-6, ALPHA_S];
const GAMMAS: [f64; 2] = [0.0, 0.2e-9];

/// A program and what it runs on.
struct Case {
    algorithm: &'static dyn Algorithm,
    topology: Topology,
    network: Network,
    costs: LinkCosts,
    gamma: f64,
    name: String,
}

impl Case {
    fn new(
        (kind, name): (CollectiveKind, &str),
        (hosts, ranks_per_host): (usize, usize),
        overhead_s: f64,
        gamma: f64,
        fetched: bool,
    ) -> Case {
        let across = LinkClass { alpha_s: ALPHA_S, overhead_s, beta_s_per_byte: 1e-9 };
        let within = LinkClass { alpha_s: ALPHA_S / 10.0, overhead_s: overhead_s / 10.0, beta_s_per_byte: 1e-10 };
        let speeds = Speeds { fetched, ..Speeds::of(NetworkModel { within, across }) };
        Case {
            algorithm: registry::find(kind, name).unwrap(),
            topology: Topology::regular(hosts, ranks_per_host),
            network: Network::new(Shape::Flat, &Hosts::regular(hosts, ranks_per_host), &speeds).unwrap(),
            costs: LinkCosts {
                within: within.cost(gamma),
                across: across.cost(gamma),
                contention: 0.0,
                contention_within: 0.0,
                fetched,
            },
            gamma,
            name: format!("{kind} {name}, {hosts} x {ranks_per_host}, overhead {overhead_s:e}, gamma {gamma:e}"),
        }
    }

    /// An algorithm with all overheads and gammas.
    fn all(of: (CollectiveKind, &str), hosts: (usize, usize)) -> impl Iterator<Item = Case> {
        let case = move |overhead_s| GAMMAS.map(|gamma| Case::new(of, hosts, overhead_s, gamma, false));
        OVERHEADS_S.into_iter().flat_map(case)
    }

    fn network_model(&self) -> NetworkModel {
        let class =
            |cost: LinkCost| LinkClass { alpha_s: cost.alpha, overhead_s: cost.overhead, beta_s_per_byte: cost.beta };
        NetworkModel { within: class(self.costs.within), across: class(self.costs.across) }
    }

    fn simulated(&self, load: &Load, sending: Sending) -> f64 {
        let program = PreparedProgram::of_algorithm(self.algorithm, &self.topology, 0).unwrap();
        let machine = Machine { sending, gamma: self.gamma, combining: COMBINING, ..Machine::new(&self.network) };
        simulate(&program, load, &machine).unwrap().seconds
    }

    fn formula(&self, load: &Load) -> f64 {
        self.algorithm.seconds(&self.topology, load.bytes, load.tile_bytes, &self.costs)
    }

    fn walked(&self, load: &Load) -> f64 {
        walk(&self.algorithm.program(&self.topology, 0), load, &self.topology, &self.costs).unwrap().seconds
    }

    fn compare(&self, load: &Load, found: f64, expected: f64, ratio: RangeInclusive<f64>) {
        let found_ratio = if found == expected { 1.0 } else { found / expected };
        assert!(ratio.contains(&found_ratio), "{}, {load:?}: {found:e}, not {expected:e}: {found_ratio}", self.name);
    }
}

fn all_reduce(name: &str) -> (CollectiveKind, &str) {
    (CollectiveKind::AllReduce, name)
}

fn in_tiles(bytes: usize, tiles: usize) -> Load {
    Load { bytes, tile_bytes: bytes.div_ceil(tiles).max(1), window: paceline_collective::WINDOW }
}

/// Whose ranks are on these hosts.
const SHARED: [(usize, usize); 5] = [(2, 2), (2, 4), (4, 2), (4, 4), (3, 3)];

fn within(tolerance: f64) -> RangeInclusive<f64> {
    1.0 - tolerance..=1.0 + tolerance
}

#[test]
fn one_tile_takes_what_the_closed_formulas_say() {
    let flat = ["ring", "halving-doubling", "direct"];
    let flat = flat.into_iter().flat_map(|name| [2, 3, 4, 5, 7, 8, 13, 16].map(|hosts| (name, (hosts, 1))));
    let powers_of_two = [2, 4, 8, 16].map(|hosts| ("recursive-doubling", (hosts, 1)));
    let shared = SHARED.map(|hosts| ("hierarchical", hosts));
    for case in flat.chain(powers_of_two).chain(shared).flat_map(|(name, hosts)| Case::all(all_reduce(name), hosts)) {
        for load in BYTES.map(|bytes| in_tiles(bytes, 1)) {
            case.compare(&load, case.simulated(&load, Sending::AtOnce), case.formula(&load), within(1e-6));
        }
    }
}

#[test]
fn a_pipeline_takes_what_the_closed_formulas_say() {
    let any = ["ring", "direct"].into_iter().flat_map(|name| [2, 3, 4, 7, 8, 13, 16].map(|hosts| (name, (hosts, 1))));
    let powers_of_two = ["halving-doubling", "recursive-doubling"];
    let powers_of_two = powers_of_two.into_iter().flat_map(|name| [2, 4, 8, 16].map(|hosts| (name, (hosts, 1))));
    let shared = SHARED.map(|hosts| ("hierarchical", hosts));
    for (name, hosts) in any.chain(powers_of_two).chain(shared) {
        // In few tiles, the pipeline's beginning and end count.
        let near = if name == "hierarchical" { 0.04 } else { 0.02 };
        for case in Case::all(all_reduce(name), hosts) {
            for (load, tolerance) in [(in_tiles(256 << 20, 8), near), (in_tiles(256 << 20, 64), 0.02)] {
                case.compare(&load, case.simulated(&load, Sending::AtOnce), case.formula(&load), within(tolerance));
            }
        }
    }
}

/// Many fetch from one at once, and where as many are sent as taken in, fetching changes nothing.
#[test]
fn what_is_fetched_takes_what_the_closed_formulas_say() {
    let from_one = [CollectiveKind::Broadcast, CollectiveKind::Scatter].map(|kind| (kind, "direct"));
    let on_one_host = from_one.into_iter().chain([all_reduce("direct"), all_reduce("ring")]);
    let on_one_host = on_one_host.flat_map(|of| [2, 3, 4, 8, 16].map(|ranks| (of, (1, ranks))));
    for (of, hosts) in on_one_host.chain(SHARED.map(|hosts| (all_reduce("hierarchical"), hosts))) {
        for (overhead_s, gamma) in
            OVERHEADS_S.into_iter().flat_map(|overhead_s| GAMMAS.map(|gamma| (overhead_s, gamma)))
        {
            let case = Case::new(of, hosts, overhead_s, gamma, true);
            // The overheads of whoever lends to many are counted by the formula only.
            let counted = overhead_s == 0.0 || of.0 == CollectiveKind::AllReduce;
            let (least, tolerance) = if counted { (0, 1e-6) } else { (100 << 20, 0.02) };
            for load in BYTES.into_iter().filter(|&bytes| bytes >= least).map(|bytes| in_tiles(bytes, 1)) {
                case.compare(&load, case.simulated(&load, Sending::AtOnce), case.formula(&load), within(tolerance));
            }
        }
    }
}

/// Where a rank sends and takes in one message at a time, fair sharing has nothing to share: a walk finds the same.
#[test]
fn one_tile_takes_as_long_as_a_walk_if_messages_are_sent_in_turn() {
    let programs =
        ["ring", "binary-tree", "double-binary-tree", "halving-doubling", "recursive-doubling"].map(all_reduce);
    let others = [
        (CollectiveKind::ReduceScatter, "ring"),
        (CollectiveKind::AllGather, "ring"),
        (CollectiveKind::Broadcast, "pipelined"),
        (CollectiveKind::Broadcast, "binomial"),
    ];
    for of in programs.into_iter().chain(others) {
        for case in [2, 4, 8, 16].into_iter().flat_map(|hosts| Case::all(of, (hosts, 1))) {
            // Divisible into all parts: the walk's may differ by a byte.
            for load in [16 * 64, 16 * 65536].map(|bytes| in_tiles(bytes, 1)) {
                case.compare(&load, case.simulated(&load, Sending::InTurn), case.walked(&load), within(1e-9));
            }
        }
    }
}

/// The formula of a tree lets no latency hide behind an overhead; where there is nothing to hide, it is exact.
#[test]
fn one_tile_of_a_tree_takes_what_the_closed_formula_says_if_messages_are_sent_in_turn() {
    for case in
        [2, 3, 4, 7, 8, 13, 16, 31].into_iter().flat_map(|hosts| Case::all(all_reduce("binary-tree"), (hosts, 1)))
    {
        for load in [1 << 20, 100 << 20].map(|bytes| in_tiles(bytes, 1)) {
            case.compare(&load, case.simulated(&load, Sending::InTurn), case.formula(&load), within(0.02));
        }
    }
}

/// Where several messages leave a rank at once, the formulas say too little: they serve the one first for which more waits,
/// and sharing serves all of them late.
#[test]
fn streams_that_share_a_port_take_longer_than_the_closed_formulas_say() {
    let sent = [Sending::AtOnce, Sending::InTurn];
    for (name, ranges) in [
        ("binary-tree", [0.97..=1.26, 0.87..=1.01]),
        ("double-binary-tree", [0.99..=1.11, 0.99..=1.08]),
        ("direct-scatter", [0.99..=1.30, 0.99..=1.30]),
    ] {
        for case in [2, 4, 8, 13, 16].into_iter().flat_map(|hosts| Case::all(all_reduce(name), (hosts, 1))) {
            for (load, (sending, range)) in BYTES
                .into_iter()
                .flat_map(|bytes| sent.into_iter().zip(ranges.clone()).map(move |how| (in_tiles(bytes, 1), how)))
            {
                case.compare(&load, case.simulated(&load, sending), case.formula(&load), range);
            }
        }
    }
}

/// Files of MSCCL are simulated like the algorithms that they are.
#[test]
fn a_program_from_a_file_takes_what_the_closed_formula_says() {
    let load = in_tiles(100 << 20, 1);
    for (name, hosts) in [("ring", (4, 1)), ("halving-doubling", (8, 1)), ("direct", (5, 1)), ("hierarchical", (2, 4))]
    {
        let case = Case::new(all_reduce(name), hosts, 20e-6, 0.2e-9, false);
        let text = msccl::write(&case.algorithm.program(&case.topology, 0)).unwrap();
        let program = PreparedProgram::of_program(&msccl::read(&text).unwrap()).unwrap();
        let mut cluster = Cluster::of_network(case.network_model(), hosts.0, hosts.1);
        cluster.combine_s_per_byte = Constant::exact(case.gamma);
        let seconds = seconds_on(&cluster, &program, &load).unwrap();
        case.compare(&load, seconds, case.formula(&load), within(0.02));
        // What operations take to start comes on top.
        cluster.operation.start_s = Constant::exact(0.25);
        let later = seconds_on(&cluster, &program, &load).unwrap() - cluster.start_s(hosts.0 * hosts.1);
        assert!((later / seconds - 1.0).abs() < 1e-9, "{name}: {later} {seconds}");
        cluster.topology = "torus:3x3".into();
        assert!(seconds_on(&cluster, &program, &load).is_err(), "no torus of nine hosts has fewer");
    }
}
