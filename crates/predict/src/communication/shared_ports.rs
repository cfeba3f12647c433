//! Operations whose programs have ranks send several messages at once: simulated, as no short formula says how those share a
//! port; and those of short programs on a topology, as none says how they share the links between switches.

use std::collections::BTreeMap;

use paceline_collective::cost::Load;
use paceline_collective::select::TILE_BYTES;
use paceline_collective::{WINDOW, tiles};
use paceline_plan::{Hosts, LinkClass, LinkCost, LinkCosts, NetworkModel};

use super::World;
use super::closed_forms::ClosedForm;
use super::on_topology::{There, carried_s, times};
use crate::programs::{Combining, Machine, Outcome, PreparedProgram, simulate};
use crate::topology::{Network, Shape, Speeds};

/// Programs of more messages in a tile are left to their formulas: what is simulated here takes milliseconds.
const MESSAGES_MAX: usize = 256;

/// On a topology those of more: a ring of 16 has not quite so many. There no formula takes the place of a program, and of
/// longer ones only some sizes are simulated ([`super::on_topology`]).
const COMPARED_MESSAGES_MAX: usize = 512;

/// From so many tiles on a pipeline runs evenly: further ones take what the second half of these do. Of short programs as many as
/// have together so many messages.
const TILES: usize = 64;
const MESSAGES_EVEN: usize = 1 << 11;

/// Tiles beside whose bytes overheads hardly count: the longest that the runtime makes.
const LONG_TILE: usize = *TILE_BYTES.end();
/// One of them.
const LONG: Load = Load { bytes: LONG_TILE, tile_bytes: LONG_TILE, window: 1 };

/// Where the latencies of a tile are less than this share of an operation, what its tiles do in them does not matter.
const WAITING: f64 = 0.01;

/// What a tile takes over what ports take for a window of them, where neither of the two decides alone.
const WINDOW_AND_PORTS: std::ops::Range<f64> = 0.75..1.33;

/// The programs of a world under one switch, or on its topology.
pub(crate) struct SharedPorts {
    world: World,
    /// None: there are so many workers that every program is too long.
    network: Option<Network>,
    /// The same, on which messages have no latency beyond what a port is busy with them.
    at_once: Option<Network>,
    /// Programs of more messages in a tile are too long.
    messages_max: usize,
    gamma: f64,
    /// Of a message between hosts, if there are several.
    latency_s: f64,
    /// By the algorithm's name. None: too long.
    programs: BTreeMap<&'static str, Option<PreparedProgram>>,
    /// By the name and the bytes of a tile: seconds of as many tiles as [`even_from`] says, and of each further one.
    pipelines: BTreeMap<(&'static str, usize), (f64, f64)>,
    /// By the name: seconds per byte, as [`SharedPorts::carried_s_per_byte`] and [`SharedPorts::further_s_per_byte`] say.
    carried: BTreeMap<&'static str, f64>,
    further: BTreeMap<&'static str, f64>,
}

impl SharedPorts {
    /// Under one switch. None where formulas are all there is: hosts that are not full, receivers that fetch (whose senders'
    /// overheads a simulation does not count), links without a rate.
    pub fn of(world: World, costs: &LinkCosts) -> Option<SharedPorts> {
        SharedPorts::on(Shape::Flat, world, costs, 0.0, MESSAGES_MAX)
    }

    fn on(shape: Shape, world: World, costs: &LinkCosts, hop_s: f64, messages_max: usize) -> Option<SharedPorts> {
        // The shortest program that there is has a message to and from everybody.
        let short = 2 * (world.workers - 1) <= messages_max;
        if world.workers == 1 || costs.fetched || !world.is_full() {
            return None;
        }
        let class =
            |link: &LinkCost| LinkClass { alpha_s: link.alpha, overhead_s: link.overhead, beta_s_per_byte: link.beta };
        let [within, across] = [class(&costs.within), class(&costs.across)];
        // A class that joins nobody may have no rate.
        let within = if world.per_host == 1 { across } else { within };
        let across = if world.hosts == 1 { within } else { across };
        if within.beta_s_per_byte <= 0.0 || across.beta_s_per_byte <= 0.0 {
            return None;
        }
        let network = |speeds: Speeds| Network::new(shape, &Hosts::regular(world.hosts, world.per_host), &speeds).ok();
        let late = Speeds { hop_s, ..Speeds::of(NetworkModel { within, across }) };
        let at_once = |class: LinkClass| LinkClass { alpha_s: class.overhead_s, ..class };
        let at_once = Speeds::of(NetworkModel { within: at_once(within), across: at_once(across) });
        Some(SharedPorts {
            world,
            network: if short { Some(network(late)?) } else { None },
            at_once: if short { Some(network(at_once)?) } else { None },
            messages_max,
            gamma: costs.across.gamma,
            latency_s: across.alpha_s - across.overhead_s,
            programs: BTreeMap::new(),
            pipelines: BTreeMap::new(),
            carried: BTreeMap::new(),
            further: BTreeMap::new(),
        })
    }

    /// Does the formula, which says so many seconds, leave out how messages share a port here, or who shares a host? Where it is
    /// latencies that tiles wait for, a hierarchical one is left to its formula, like a ring; where it is the window, ports and the
    /// window are in each other's way if both take about as long.
    pub fn concern(&self, form: &ClosedForm, bytes: usize, tile_bytes: usize, formula_s: f64) -> bool {
        let count = tiles(bytes, tile_bytes);
        match form.algorithm.name() {
            "hierarchical" if !self.is_flat() => {
                (2..=TILES).contains(&count) && self.waits(form) <= WAITING * formula_s
            }
            _ if !self.is_flat() => is_estimate(form),
            _ => {
                self.is_irregular(form)
                    || count > WINDOW && WINDOW_AND_PORTS.contains(&form.held_over_window(tile_bytes))
            }
        }
    }

    /// Does a rank send several messages at once, or wait in a pattern that no formula has? Where some ranks share a host,
    /// formulas of algorithms that do not ask are estimates of another kind.
    fn is_irregular(&self, form: &ClosedForm) -> bool {
        let regular = match form.algorithm.name() {
            "ring" | "direct" => true,
            "recursive-doubling" | "halving-doubling" => self.world.workers.is_power_of_two(),
            _ => false,
        };
        self.is_flat() && !regular
    }

    fn is_flat(&self) -> bool {
        self.world.hosts == 1 || self.world.per_host == 1
    }

    /// Is a prediction in doubt whose program is too long? A hierarchical one takes what its formula says, to a few percent, and so
    /// does what is simulated for its window only.
    pub fn doubts(&self, form: &ClosedForm) -> bool {
        form.algorithm.name() != "hierarchical" && self.is_irregular(form)
    }

    /// Seconds of a tile for which no port need be busy.
    fn waits(&self, form: &ClosedForm) -> f64 {
        form.rounds as f64 * self.latency_s
    }

    /// Seconds of an operation. None if its program is too long.
    pub fn seconds(&mut self, form: &ClosedForm, bytes: usize, tile_bytes: usize) -> Option<f64> {
        let name = form.algorithm.name();
        self.prepare(form);
        let program = self.programs.get(name)?.as_ref()?;
        let even = even_from(program.messages());
        if tiles(bytes, tile_bytes) <= even {
            return self.simulated(program, bytes, tile_bytes);
        }
        let (first_s, further_s) = match self.pipelines.get(&(name, tile_bytes)) {
            Some(&known) => known,
            None => {
                let found = self.evenly(self.network.as_ref()?, program, even, tile_bytes, WINDOW)?;
                self.pipelines.insert((name, tile_bytes), found);
                found
            }
        };
        Some(first_s + (bytes as f64 / tile_bytes as f64 - even as f64) * further_s)
    }

    /// How many times as long as its formula says an operation keeps ports from those that follow it, at least 1: as much as
    /// where no latency is in the way, for one that the program hides behind another makes no port carry less. None if its program
    /// is too long.
    pub fn stretch(&mut self, form: &ClosedForm) -> Option<f64> {
        if !self.is_irregular(form) {
            return Some(1.0);
        }
        let further_s = self.further_s_per_byte(form)? * LONG_TILE as f64;
        let formula_s = form.seconds(LONG_TILE, LONG_TILE).1 - form.lost_s(LONG_TILE);
        Some((further_s / formula_s).max(1.0))
    }

    /// Seconds per byte in which the busiest port carries the messages of an operation. None if its program is too long.
    pub fn carried_s_per_byte(&mut self, form: &ClosedForm) -> Option<f64> {
        let name = form.algorithm.name();
        if let Some(&known) = self.carried.get(name) {
            return Some(known);
        }
        self.prepare(form);
        let program = self.programs.get(name)?.as_ref()?;
        let network = self.at_once.as_ref()?;
        let found = carried_s(&self.played(network, program, &LONG)?, network) / LONG_TILE as f64;
        self.carried.insert(name, found);
        Some(found)
    }

    /// Seconds per byte of what follows in a pipeline of which nothing is late, at least the same: more where messages that share
    /// ports leave some of them idle. None if its program is too long.
    fn further_s_per_byte(&mut self, form: &ClosedForm) -> Option<f64> {
        let name = form.algorithm.name();
        if let Some(&known) = self.further.get(name) {
            return Some(known);
        }
        let carried = self.carried_s_per_byte(form)?;
        let program = self.programs.get(name)?.as_ref()?;
        let (_, further_s) = self.evenly(self.at_once.as_ref()?, program, TILES, LONG_TILE, TILES)?;
        let found = (further_s / LONG_TILE as f64).max(carried);
        self.further.insert(name, found);
        Some(found)
    }

    /// Seconds of so many tiles, and of each further one: what one of the second half of them takes.
    fn evenly(
        &self,
        network: &Network,
        program: &PreparedProgram,
        tiles: usize,
        tile_bytes: usize,
        window: usize,
    ) -> Option<(f64, f64)> {
        let load = |tiles: usize| Load { bytes: tiles * tile_bytes, tile_bytes, window };
        let of = |tiles: usize| Some(self.played(network, program, &load(tiles))?.seconds);
        let (half_s, whole_s) = (of(tiles / 2)?, of(tiles)?);
        Some((whole_s, (whole_s - half_s) / (tiles - tiles / 2) as f64))
    }

    fn prepare(&mut self, form: &ClosedForm) {
        let name = form.algorithm.name();
        if !self.programs.contains_key(name) {
            self.programs.insert(name, self.prepared(form));
        }
    }

    fn prepared(&self, form: &ClosedForm) -> Option<PreparedProgram> {
        let short = self.network.is_some() && form.messages <= self.messages_max;
        short.then(|| PreparedProgram::of_algorithm(form.algorithm, &self.world.topology(), 0).ok()).flatten()
    }

    fn simulated(&self, program: &PreparedProgram, bytes: usize, tile_bytes: usize) -> Option<f64> {
        let load = Load { bytes, tile_bytes, window: WINDOW };
        Some(self.played(self.network.as_ref()?, program, &load)?.seconds)
    }

    fn played(&self, network: &Network, program: &PreparedProgram, load: &Load) -> Option<Outcome> {
        let combining = Combining::InsteadOfReceiving;
        let machine = Machine { gamma: self.gamma, combining, ..Machine::new(network) };
        simulate(program, load, &machine).ok()
    }
}

/// The programs of a world on its topology, and the same under one switch.
pub(crate) struct Compared {
    there: SharedPorts,
    flat: SharedPorts,
}

impl Compared {
    /// Switches beyond the first add `hop_s` seconds to a message's latency. None as of [`SharedPorts::of`].
    pub fn of(world: World, costs: &LinkCosts, hop_s: f64) -> Option<Compared> {
        let on = |shape: Shape| SharedPorts::on(shape, world, costs, hop_s, COMPARED_MESSAGES_MAX);
        Some(Compared { there: on(world.shape)?, flat: on(Shape::Flat)? })
    }

    /// What becomes of an operation there. None if its program is too long.
    pub fn there(&mut self, form: &ClosedForm, bytes: usize, tile_bytes: usize) -> Option<There> {
        let Compared { there, flat } = self;
        Some(There {
            alone: times(there.seconds(form, bytes, tile_bytes)?, flat.seconds(form, bytes, tile_bytes)?),
            busy: times(there.further_s_per_byte(form)?, flat.further_s_per_byte(form)?),
            carried_s_per_byte: there.carried_s_per_byte(form)?,
        })
    }
}

/// Where some ranks share a host, is a formula one that does not ask who does? (The tests of both depths hold a ring to its program
/// there, too.)
pub(super) fn is_estimate(form: &ClosedForm) -> bool {
    !form.algorithm.for_hosts() && form.algorithm.name() != "ring"
}

/// From how many tiles on a pipeline of so many messages in each runs evenly.
fn even_from(messages: usize) -> usize {
    TILES.max(MESSAGES_EVEN / messages.max(1))
}

#[cfg(test)]
mod tests {
    use paceline_collective::{Algorithm, registry};
    use paceline_plan::{Cluster, CollectiveKind};

    use super::super::AllToAll;
    use super::*;
    use crate::iteration::tests::{plan_of, profile};

    const ALPHA_S: f64 = 50e-6;

    /// Overhead between hosts, and gamma.
    const COSTS: [(f64, f64); 3] = [(0.0, 0.2e-9), (20e-6, 0.2e-9), (ALPHA_S, 0.0)];

    /// Messages, of all tiles: what is longer would take the test too long.
    const LONGEST: usize = 1 << 14;

    fn cluster((hosts, per_host): (usize, usize), (overhead_s, gamma): (f64, f64)) -> Cluster {
        let across = LinkClass { alpha_s: ALPHA_S, overhead_s, beta_s_per_byte: 1e-9 };
        let within = LinkClass { alpha_s: ALPHA_S / 10.0, overhead_s: overhead_s / 10.0, beta_s_per_byte: 1e-10 };
        let mut cluster = Cluster::of_network(NetworkModel { within, across }, hosts, per_host);
        cluster.combine_s_per_byte = gamma.into();
        cluster
    }

    /// Hosts whose network is faster than the ports of their ranks.
    const FASTER: [(usize, usize); 3] = [(2, 2), (4, 2), (2, 4)];

    fn faster_network(hosts: (usize, usize)) -> Cluster {
        let mut cluster = Cluster::of_network(NetworkModel::HUNDRED_GB_IB, hosts.0, hosts.1);
        cluster.across.alpha_s = ALPHA_S.into();
        cluster
    }

    /// Of what a short formula says nothing.
    fn irregular(name: &str, world: &World) -> bool {
        if world.hosts > 1 && world.per_host > 1 {
            return name != "hierarchical";
        }
        let doubling = ["recursive-doubling", "halving-doubling"].contains(&name);
        !(["ring", "direct", "hierarchical"].contains(&name) || doubling && world.workers.is_power_of_two())
    }

    /// Message by message, independently of what was prepared above.
    fn simulated_s(cluster: &Cluster, algorithm: &dyn Algorithm, load: &Load) -> f64 {
        let world = World::of(cluster.workers(), cluster.workers_per_host);
        let program = PreparedProgram::of_program(&algorithm.program(&world.topology(), 0)).expect("a program");
        crate::programs::seconds_on(cluster, &program, load).expect("it ends")
    }

    /// Both depths say the same, to 2 %, in the tiles that the runtime would choose: of programs that are simulated, always (but a
    /// tenth where most tiles are not, as shares settle slowly); of the others, where they go in one tile, or it is not
    /// latencies that their tiles wait for.
    #[test]
    fn what_is_predicted_is_what_the_program_takes() {
        let flat = [(2, 1), (3, 1), (8, 1), (13, 1), (16, 1), (1, 8)];
        let shared = [(2, 2), (2, 8), (3, 3), (4, 4)];
        let (mut compared, mut in_tiles, mut apart) = (0, 0, Vec::new());
        let all = flat.into_iter().chain(shared).flat_map(|hosts| COSTS.map(|costs| (hosts, cluster(hosts, costs))));
        for (hosts, cluster) in all.chain(FASTER.map(|hosts| (hosts, faster_network(hosts)))) {
            let (overhead_s, gamma) = (cluster.across.overhead_s.value, cluster.combine_s_per_byte.value);
            let world = World::of(cluster.workers(), cluster.workers_per_host);
            let is_flat = hosts.0 == 1 || hosts.1 == 1;
            // Of a ring on shared hosts, which is left to its formula, others are the tests.
            let here = |it: &dyn Algorithm| if is_flat { !it.for_hosts() } else { it.name() != "ring" };
            let of_world = |it: &&dyn Algorithm| it.supports(world.workers) && here(*it);
            for algorithm in registry::of_kind(CollectiveKind::AllReduce).filter(of_world) {
                let name = algorithm.name();
                let costs = AllToAll::of(&cluster, world, name, 64 << 20, 0.0);
                let costs = costs.expect("costs").with_shared_ports();
                for (bytes, tile_bytes, predicted_s) in costs.known().step_by(8) {
                    let count = tiles(bytes, tile_bytes);
                    let messages = algorithm.messages(&world.topology());
                    let waits_s = algorithm.rounds(&world.topology()) as f64 * (ALPHA_S - overhead_s);
                    let applies = irregular(name, &world) || count == 1 || waits_s < WAITING * predicted_s;
                    if !applies || messages > MESSAGES_MAX || messages * count > LONGEST {
                        continue;
                    }
                    let load = Load { bytes, tile_bytes, window: WINDOW };
                    let found_s = simulated_s(&cluster, algorithm, &load);
                    let off = if found_s > 0.0 { predicted_s / found_s - 1.0 } else { predicted_s };
                    let evenly = count > even_from(messages);
                    if off.abs() >= if evenly { 0.1 } else { 0.02 } {
                        apart
                            .push(format!("{name} {hosts:?} {load:?}, overhead {overhead_s}, gamma {gamma}: {off:.3}"));
                    }
                    compared += 1;
                    in_tiles += usize::from(evenly);
                }
            }
        }
        assert!(apart.is_empty(), "of {compared}:\n{}", apart.join("\n"));
        assert!(compared > 500 && in_tiles > 5, "{compared} {in_tiles}");
    }

    /// A rank has four tiles in work: where one takes about as long as its port needs for four, neither says how long it takes alone.
    /// Messages of other lengths in each round leave the port idle now, and are in each other's way then.
    #[test]
    fn where_ports_and_the_window_take_as_long_the_program_decides() {
        let (cluster, world) = (cluster((4, 1), (0.0, 0.0)), World::of(4, 1));
        let costs = cluster.link_costs();
        let mut ports = SharedPorts::of(world, &costs).expect("links");
        let forms = ClosedForm::all(&world, &costs, |known| known.name() == "halving-doubling");
        let (mut concerned, mut most) = (0, 1.0_f64);
        for tile_bytes in [16, 32, 40, 48, 56, 64, 128].map(|kib: usize| kib << 10) {
            let bytes = 32 * tile_bytes;
            let formula_s = forms[0].seconds(bytes, tile_bytes).0;
            let both = WINDOW_AND_PORTS.contains(&forms[0].held_over_window(tile_bytes));
            assert_eq!(ports.concern(&forms[0], bytes, tile_bytes, formula_s), both, "{tile_bytes}");
            assert!(!ports.concern(&forms[0], WINDOW * tile_bytes, tile_bytes, formula_s), "no tile waits for another");
            if both {
                let found_s = ports.seconds(&forms[0], bytes, tile_bytes).expect("it is short");
                let load = Load { bytes, tile_bytes, window: WINDOW };
                let off = found_s / simulated_s(&cluster, forms[0].algorithm, &load) - 1.0;
                assert!(off.abs() < 1e-6, "{load:?}: {off}");
                (concerned, most) = (concerned + 1, most.max(found_s / formula_s));
            }
        }
        assert!((3..7).contains(&concerned) && most > 1.03, "{concerned} {most}");
    }

    /// Without the simulation they would part: the formulas serve one message after the other.
    #[test]
    fn formulas_alone_would_say_less_of_a_tree() {
        let cluster = cluster((8, 1), COSTS[1]);
        let tree = registry::find(CollectiveKind::AllReduce, "binary-tree").expect("a tree");
        let world = World::of(8, 1);
        let costs = AllToAll::of(&cluster, world, tree.name(), 64 << 20, 0.0);
        let costs = costs.expect("costs").with_shared_ports();
        let off = costs.known().map(|(bytes, tile_bytes, predicted_s)| {
            predicted_s / tree.seconds(&world.topology(), bytes, tile_bytes, &cluster.link_costs())
        });
        let most = off.fold(0.0, f64::max);
        assert!(most > 1.05, "{most}");
    }

    #[test]
    fn long_programs_and_fetched_memory_are_left_to_the_formulas() {
        let costs = cluster((64, 1), COSTS[0]).link_costs();
        let seconds = |hosts| {
            let world = World::of(hosts, 1);
            let tree = ClosedForm::all(&world, &costs, |known| known.name() == "double-binary-tree");
            SharedPorts::of(world, &costs).expect("links").seconds(&tree[0], 1 << 20, 1 << 18)
        };
        assert!(seconds(65).is_some());
        assert!(seconds(66).is_none() && seconds(1000).is_none());
        let fetched = LinkCosts { fetched: true, ..costs };
        assert!(SharedPorts::of(World::of(4, 4), &fetched).is_none());
        assert!(SharedPorts::of(World::of(5, 4), &costs).is_none(), "hosts that are not full");
    }

    /// Tiles of 16 KiB are still on their first way when the last of those that are simulated leaves; the ports of nine hosts, two
    /// each, take their time all the same.
    #[test]
    fn tiles_that_are_short_beside_latencies_take_what_ports_need() {
        let cluster = Cluster::of_network(NetworkModel::TEN_GBE, 9, 1);
        let world = World::of(9, 1).on("bcube:3:2".parse().expect("a shape"));
        let bytes = 512 << 20;
        let all_ports_s = 16.0 / 9.0 * bytes as f64 * cluster.across.beta_s_per_byte.value / 2.0;
        for (name, ports) in [("ring", 1.0), ("bcube", 2.0)] {
            let costs = AllToAll::of(&cluster, world, name, bytes, 0.0).expect("costs");
            let over = costs.alone_s(bytes) / (all_ports_s * 2.0 / ports);
            assert!((0.999..1.4).contains(&over), "{name}: {over}");
        }
    }

    /// What leaves the hosts of the study goes past the ports of their ranks over InfiniBand, so that an all-reduce takes what
    /// its bytes take within a host, however large it is: on the emulated network 1.34 GB took 0.295 s on two hosts of two.
    #[test]
    fn a_network_that_is_faster_than_the_ports_of_a_host_does_not_add_to_their_time() {
        let cluster = faster_network((2, 2));
        for bytes in [100 << 20, 1_344_929_032] {
            let costs = AllToAll::of(&cluster, World::of(4, 2), "auto", bytes, 0.0).expect("costs").with_shared_ports();
            let within_s = bytes as f64 * cluster.within.beta_s_per_byte.value;
            assert!((0.999..1.03).contains(&(costs.alone_s(bytes) / within_s)), "{bytes}: {}", costs.alone_s(bytes));
        }
    }

    /// Whoever reads a prediction is told that a formula stands in it which is far off elsewhere.
    #[test]
    fn formulas_of_long_programs_are_in_doubt() {
        let profile = profile(&[(1 << 18, 0.0, 0.0), (1 << 18, 0.0, 0.0)], 0.0);
        let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
        let doubts = |hosts: (usize, usize), name: &str| {
            let cluster = cluster(hosts, COSTS[0]);
            let world = World::of(cluster.workers(), cluster.workers_per_host);
            let costs = AllToAll::of(&cluster, world, name, 2 << 20, 0.0).expect("costs");
            costs.with_shared_ports().doubts(&plan)
        };
        for (hosts, name) in [((130, 1), "binary-tree"), ((12, 1), "direct-scatter"), ((99, 1), "recursive-doubling")] {
            let found = doubts(hosts, name);
            let says = format!("{name} of {} workers takes what its formula says", hosts.0);
            assert!(found.len() == 1 && found[0].starts_with(&says), "{found:?}");
        }
        // Of another kind are estimates for workers that share hosts.
        for (hosts, name) in [((20, 4), "double-binary-tree"), ((8, 4), "halving-doubling")] {
            let found = doubts(hosts, name);
            let says = format!("{name} does not ask who shares a host: where workers do");
            assert!(found.len() == 1 && found[0].starts_with(&says), "{found:?}");
        }
        for (hosts, name) in [
            // Of a mebibyte a hierarchical one is chosen.
            ((8, 4), "auto"),
            ((8, 4), "ring"),
            ((8, 4), "double-binary-tree"),
            ((129, 1), "binary-tree"),
            ((11, 1), "direct-scatter"),
            ((256, 1), "recursive-doubling"),
            ((200, 1), "ring"),
            ((8, 4), "hierarchical"),
        ] {
            assert_eq!(doubts(hosts, name), Vec::<String>::new(), "{name} on {hosts:?}");
        }
    }
}
