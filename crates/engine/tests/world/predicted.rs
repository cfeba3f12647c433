//! The engine in this world, and the simulator of programs (`paceline_predict::programs`), which execute the same programs over
//! the same links and know nothing else of each other.
//!
//! Compared is how long it takes from the start until the last rank has its result. Here every rank has a link to every
//! other, which share nothing, and what arrives before its receiver is ready waits in the pool. In the simulator messages
//! share the ports of a network, and keep them busy only when their receiver is ready. So the first test takes programs and
//! networks for which that is the same: a port has one message at a time, or each neighbour a cable of its own (in a
//! BCube of switches with two ports), and receivers are ready. Where a rank takes in what several others send at once, as in
//! larger trees, its port takes as much longer in the simulator: those are compared by their latencies, in the second test.

use paceline_collective::cost::Load;
use paceline_collective::registry::find;
use paceline_collective::{Algorithm, Topology};
use paceline_engine::frame::{FRAME_BYTES_MAX, HEADER_BYTES};
use paceline_plan::{CollectiveKind, Hosts, LinkClass, NetworkModel, Protocol};
use paceline_predict::programs::{Machine, PreparedProgram, simulate};
use paceline_predict::topology::{Network, Speeds};

use crate::call::Call;
use crate::link::LinkModel;
use crate::setup::Setup;
use crate::world::World;

/// What the two may differ by. Here a message takes up to three nanoseconds longer, as a nanosecond is the shortest time and
/// a link needs one to wake: that is less than 0.1 % of any latency below. A single latency too many is more than the
/// tolerance in every case, where most of the time is latency: there are at most 42 of them in a row.
const TOLERANCE: f64 = 0.02;

/// 48 kB. Every program below cuts them, and a fifth of them, into equal parts.
const ELEMENTS: usize = 12_000;

/// What every link is like: nanoseconds of latency, and bytes in a microsecond.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub latency: u64,
    pub bytes_per_microsecond: u64,
}

/// The whole message takes 2.4 us, 96 us and 960 us: most of the time is latency, some of both, or bytes.
const MOSTLY_LATENCY: Wire = Wire { latency: 50_000, bytes_per_microsecond: 20_000 };
const BOTH: Wire = Wire { latency: 20_000, bytes_per_microsecond: 500 };
const MOSTLY_BYTES: Wire = Wire { latency: 5000, bytes_per_microsecond: 50 };

impl Wire {
    /// Messages leave whole, as soon as there is room on their link, and local work takes no time.
    pub fn setup(self, world: usize) -> Setup {
        let (calm, frame_bytes) = (Setup::calm(world, 1), FRAME_BYTES_MAX as usize);
        let link = LinkModel {
            latency: self.latency..self.latency + 1,
            bytes_per_microsecond: self.bytes_per_microsecond,
            cut: frame_bytes as u64..frame_bytes as u64 + 1,
            unsent_bytes_max: usize::MAX,
            ..calm.link.clone()
        };
        Setup { link, work: 0..1, frame_bytes, work_bytes: frame_bytes, eager_link_bytes: 1 << 30, ..calm }
    }

    /// As the simulator knows it. A message's header is its overhead.
    pub fn model(self) -> NetworkModel {
        let beta_s_per_byte = 1e-6 / self.bytes_per_microsecond as f64;
        let overhead_s = HEADER_BYTES as f64 * beta_s_per_byte;
        let class = LinkClass { alpha_s: self.latency as f64 * 1e-9 + overhead_s, overhead_s, beta_s_per_byte };
        NetworkModel { within: class, across: class }
    }

    /// The simulator's network, with a rank on each host.
    fn network(self, shape: &str, ranks: usize) -> Network {
        let speeds = Speeds::of(self.model());
        Network::new(shape.parse().expect("a shape"), &Hosts::regular(ranks, 1), &speeds).expect("a network")
    }
}

/// A program, in how many tiles it is executed, and the network on which it is simulated.
#[derive(Clone)]
struct Case {
    algorithm: &'static dyn Algorithm,
    /// Which ranks share a host, as far as the program knows.
    ranks: Topology,
    shape: &'static str,
    elements: usize,
    tiles: usize,
    window: u32,
}

impl Case {
    /// In one tile.
    fn new(kind: CollectiveKind, name: &str, ranks: Topology, shape: &'static str) -> Case {
        let algorithm = find(kind, name).expect("it is in the registry");
        Case { algorithm, ranks, shape, elements: ELEMENTS, tiles: 1, window: 1 }
    }

    fn name(&self) -> String {
        let (kind, name, ranks) = (self.algorithm.kind(), self.algorithm.name(), self.ranks.world());
        format!("{kind} {name} of {ranks} on {}, {} of {} tiles at a time", self.shape, self.window, self.tiles)
    }

    /// Seconds until the last rank of a world has its result, which must be right.
    fn executed_s(&self, wire: Wire) -> f64 {
        let ranks = self.ranks.world();
        let call = Call {
            tile_elements: self.elements / self.tiles,
            window: self.window,
            // No message waits for a grant.
            protocols: [Protocol::Eager; 2],
            ..Call::placed(self.algorithm, &self.ranks, self.elements, 0)
        };
        let mut world = World::new(wire.setup(ranks));
        world.post(&call);
        world.run();
        world.check(&call);
        world.check_clean();
        let last = (0..ranks).map(|rank| world.ended(rank, &call).at).max();
        last.expect("there are ranks") as f64 * 1e-9
    }

    fn simulated_s(&self, wire: Wire) -> f64 {
        let program = PreparedProgram::of_algorithm(self.algorithm, &self.ranks, 0).expect("a whole program");
        let network = wire.network(self.shape, self.ranks.world());
        let bytes = 4 * self.elements;
        let load = Load { bytes, tile_bytes: bytes / self.tiles, window: self.window as usize };
        simulate(&program, &load, &Machine::new(&network)).expect("it ends").seconds
    }
}

fn near(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() <= TOLERANCE
}

/// So many ranks, each on a host of its own.
fn apart(ranks: usize) -> Topology {
    Topology::regular(ranks, 1)
}

/// Programs in which ports are not shared, and receivers are ready.
fn cases() -> Vec<Case> {
    use CollectiveKind::{AllReduce, Broadcast, Reduce};
    let mut cases = Vec::new();
    // All of these send only to ranks whose numbers differ in one bit, to several of them at once.
    for (ranks, shape) in [(2, "flat"), (4, "bcube:2:2"), (8, "bcube:2:3")] {
        let halving = Case::new(AllReduce, "halving-doubling", apart(ranks), shape);
        cases.extend([
            Case { tiles: 5, window: 2, ..halving.clone() },
            halving,
            Case::new(AllReduce, "recursive-doubling", apart(ranks), shape),
            Case::new(AllReduce, "bcube", apart(ranks), shape),
            Case::new(Broadcast, "binomial", apart(ranks), shape),
            Case::new(Reduce, "binomial", apart(ranks), shape),
        ]);
    }
    cases.push(Case::new(AllReduce, "binary-tree", apart(4), "bcube:2:2"));
    for ranks in [2, 4, 6, 8] {
        let ring = Case::new(AllReduce, "ring", apart(ranks), "flat");
        // A sender is done with a tile when it has left here, and when it has been taken in there: a latency later. So the
        // chain, in which that is what further tiles would wait for, begins all at once.
        let chain = Case { tiles: 5, window: 5, ..Case::new(Broadcast, "pipelined", apart(ranks), "flat") };
        cases.extend([Case { tiles: 5, window: 2, ..ring.clone() }, ring, chain]);
    }
    // No power of two: those that sit out come first and last. One message finds its receiver not ready, and is early enough.
    cases.push(Case::new(AllReduce, "halving-doubling", apart(6), "flat"));
    cases.extend([2, 3, 4].map(|hosts| Case::new(AllReduce, "hierarchical", Topology::regular(hosts, 2), "flat")));
    cases
}

#[test]
fn programs_take_as_long_as_they_are_simulated_to_take() {
    for case in cases() {
        let name = case.name();
        for wire in [MOSTLY_LATENCY, BOTH, MOSTLY_BYTES] {
            let (executed_s, simulated_s) = (case.executed_s(wire), case.simulated_s(wire));
            println!("{name}, {wire:?}: {executed_s:.9} s, simulated {simulated_s:.9} s");
            assert!(near(executed_s, simulated_s), "{name}, {wire:?}: {executed_s} s, simulated {simulated_s} s");
        }
        // Other links would not do: the test tells them apart.
        let executed_s = case.executed_s(BOTH);
        let later = Wire { latency: 2 * BOTH.latency, ..BOTH };
        let slower = Wire { bytes_per_microsecond: BOTH.bytes_per_microsecond / 2, ..BOTH };
        for other in [later, slower] {
            let simulated_s = case.simulated_s(other);
            assert!(simulated_s > executed_s * (1.0 + 2.0 * TOLERANCE), "{name}, {other:?}: {simulated_s} s");
        }
    }
}

/// Whoever sends to whom, and however many at once: of messages without bytes to speak of, latencies are what adds up.
#[test]
fn short_messages_take_the_latencies_of_the_longest_chain() {
    use CollectiveKind::AllReduce;
    let wire = Wire { latency: 100_000, bytes_per_microsecond: 20_000 };
    let names =
        ["ring", "binary-tree", "double-binary-tree", "recursive-doubling", "halving-doubling", "direct", "bcube"];
    for ranks in [2_usize, 3, 4, 6, 7, 8] {
        let mut cases = names.map(|name| Case::new(AllReduce, name, apart(ranks), "flat")).to_vec();
        if ranks.is_multiple_of(2) {
            cases.push(Case::new(AllReduce, "hierarchical", Topology::regular(ranks / 2, 2), "flat"));
        }
        for case in cases {
            let case = Case { elements: 24, ..case };
            let chain_s = case.algorithm.rounds(&case.ranks) as f64 * wire.latency as f64 * 1e-9;
            let (executed_s, simulated_s) = (case.executed_s(wire), case.simulated_s(wire));
            let all_near = near(executed_s, chain_s) && near(simulated_s, chain_s) && near(executed_s, simulated_s);
            assert!(all_near, "{}: {executed_s} s, simulated {simulated_s} s, latencies {chain_s} s", case.name());
        }
    }
}
