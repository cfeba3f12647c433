//! Partitions on their way to servers and back, message by message: where servers are beside workers and the network is faster
//! than the ports within a host, how those share a port has no short formula.

use paceline_collective::cost::Load;
use paceline_collective::verify::Refusal;
use paceline_collective::{Action, Algorithm, Program, RankProgram, Topology, registry};
use paceline_plan::{CollectiveKind, Hosts, LinkClass, LinkCosts, NetworkModel};

use super::World;
use crate::programs::{Machine, PreparedProgram, simulate};
use crate::topology::{Network, Speeds};

/// Programs of more messages in a tile are left to the formula: what is simulated here takes milliseconds.
const MESSAGES_MAX: usize = 256;

/// Tiles that are simulated; what the second half of them takes counts.
const TILES: usize = 32;

/// Of each tile's partition, in bytes. Without latency and overhead all times are in proportion to it.
const PARTITION_BYTES: usize = 1 << 20;

/// Seconds per byte of partitions that many of which follow each other to `shards` servers, the n-th beside the workers of host
/// n modulo `places`, on the topology of the world. None where the formula says it: the network between hosts is not faster than the
/// ports within, hosts are not full; or where the program is too long.
pub(super) fn seconds_per_byte(world: &World, shards: usize, places: usize, costs: &LinkCosts) -> Option<f64> {
    let faster = 0.0 < costs.across.beta && costs.across.beta < costs.within.beta;
    // To and from the server, and within each host between all of its workers.
    let messages = 2 * shards * world.workers * world.per_host;
    if world.hosts == 1 || !world.is_full() || !faster || messages > MESSAGES_MAX {
        return None;
    }
    let of_rate = |beta_s_per_byte| LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte };
    let network = NetworkModel { within: of_rate(costs.within.beta), across: of_rate(costs.across.beta) };
    let servers: Vec<usize> = (0..shards).map(|shard| shard % places).collect();
    let (program, hosts) = program(world, &servers).ok()?;
    let network = Network::new(world.shape, &hosts, &Speeds::of(network)).ok()?;
    let seconds = |tiles: usize| {
        let load = Load { bytes: tiles * PARTITION_BYTES, tile_bytes: PARTITION_BYTES, window: tiles };
        simulate(&program, &load, &Machine::new(&network)).ok().map(|outcome| outcome.seconds)
    };
    let (half, whole) = (seconds(TILES / 2)?, seconds(TILES)?);
    let bytes = (TILES - TILES / 2) * shards * PARTITION_BYTES;
    Some((whole - half) / bytes as f64)
}

/// A push and pull of a partition as large as a tile at each of the servers, which are on these hosts: all at once. Ranks are the
/// workers, then the servers.
fn program(world: &World, servers: &[usize]) -> Result<(PreparedProgram, Hosts), Refusal> {
    let algorithm = registry::find(CollectiveKind::PushPull, "hierarchical").expect("it is built in");
    let mut all = vec![RankProgram::default(); world.workers + servers.len()];
    let mut parts = 1;
    for (server, &host) in servers.iter().enumerate() {
        let one = algorithm.program(&with_server(world, host), world.workers);
        parts = one.parts;
        append(&mut all, &one, server);
    }
    let hosts_of_workers = (0..world.workers).map(|rank| rank / world.per_host);
    let by_rank = hosts_of_workers.chain(servers.iter().copied()).collect();
    let hosts = Hosts::of_ranks(by_rank).expect("hosts have numbers below those of the workers on them");
    let (kind, algorithm) = (CollectiveKind::PushPull, "hierarchical".to_owned());
    let program = Program { algorithm, kind, root: world.workers, parts, ranks: all };
    Ok((PreparedProgram::of_program(&program)?, hosts))
}

/// The workers, and one of the servers: who is on which host.
pub(super) fn with_server(world: &World, host: usize) -> Topology {
    let hosts_of_workers = (0..world.workers).map(|rank| rank / world.per_host);
    Topology::of_hosts(&hosts_of_workers.chain([host]).collect::<Vec<_>>())
}

/// The program of a push and a pull at a single one of so many servers; the others, which have ranks as well, do nothing.
///
/// # Errors
/// As [`PreparedProgram::of_program`].
pub(super) fn program_of_one(
    world: &World,
    algorithm: &dyn Algorithm,
    [server, servers]: [usize; 2],
    host: usize,
) -> Result<PreparedProgram, Refusal> {
    let one = algorithm.program(&with_server(world, host), world.workers);
    let mut all = vec![RankProgram::default(); world.workers + servers];
    append(&mut all, &one, server);
    PreparedProgram::of_program(&Program { root: world.workers + server, ranks: all, ..one })
}

/// Lets all ranks do what `one` says beside what they do already; its root is the server of this number.
fn append(all: &mut [RankProgram], one: &Program, server: usize) {
    let rank_of = |rank: usize| if rank == one.root { rank + server } else { rank };
    // Messages of one sender to one receiver need names of their own.
    let names = one.ranks.iter().map(|rank| rank.steps.len()).sum::<usize>();
    let name_of = |message: u32| message + (server * names) as u32;
    for (rank, program) in one.ranks.iter().enumerate() {
        let steps = &mut all[rank_of(rank)].steps;
        let before = steps.len() as u32;
        for step in &program.steps {
            let mut step = step.clone();
            match &mut step.action {
                Action::Send { to: peer, message, .. } | Action::Receive { from: peer, message, .. } => {
                    (*peer, *message) = (rank_of(*peer), name_of(*message));
                }
                _ => {}
            }
            step.after.iter_mut().for_each(|after| *after += before);
            steps.push(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_collective::{select, tiles};
    use paceline_plan::{Cluster, Constant, Shape};
    use paceline_schedule::{Workload, plan};
    use paceline_strategy::Registry;

    use super::super::{ServerCosts, Traffic};
    use super::*;
    use crate::iteration::tests::profile;
    use crate::iteration::{Length, Training, WorkerClass, simulate as simulate_training};
    use crate::prediction::Bottleneck;
    use crate::programs::Combining;

    /// As many partitions to each server, one after the other: the first one's way there and the last one's back are little beside them.
    const PARTITIONS: usize = 256;
    /// How far both may be apart; and where some tiles tell of all, whose shares of ports settle slowly.
    const NEAR: f64 = 0.02;
    const NEAR_OF_SOME: f64 = 0.03;
    /// On several ports of a host they settle more slowly.
    const NEAR_OF_PORTS: f64 = 0.04;

    /// Hosts of so many workers each, and links of these costs.
    #[derive(Clone, Copy)]
    struct Case {
        hosts: usize,
        per_host: usize,
        network: NetworkModel,
        partitions: usize,
    }

    impl Case {
        fn all(per_host: usize) -> impl Iterator<Item = Case> {
            let within = LinkClass { alpha_s: 5e-6, overhead_s: 0.0, beta_s_per_byte: 1e-10 };
            // Links between hosts that are slower than those within, whose messages cost nothing but their latency, or some of it.
            let across = [0.0, 20e-6].map(|overhead_s| LinkClass { alpha_s: 50e-6, overhead_s, beta_s_per_byte: 1e-9 });
            let networks = across.map(|across| NetworkModel { within, across });
            let networks: Vec<NetworkModel> = networks.into_iter().chain([NetworkModel::HUNDRED_GB_IB]).collect();
            let on = move |hosts| {
                networks.clone().into_iter().map(move |network| Case {
                    hosts,
                    per_host,
                    network,
                    partitions: PARTITIONS,
                })
            };
            [2, 3, 4, 8].into_iter().flat_map(on)
        }

        fn workers(&self) -> usize {
            self.hosts * self.per_host
        }

        /// Seconds of all partitions on their way to servers and back on this topology, nothing else to be done.
        fn predicted(&self, servers: &str, shape: Shape) -> f64 {
            let mut cluster = Cluster::of_network(self.network, self.hosts, self.per_host);
            cluster.combine_s_per_byte = Constant::exact(0.0);
            let text = format!("schedule=none,arch=ps:{servers}");
            let strategy = Registry::built_in().parse(&text).expect("a strategy");
            let of = strategy.servers(self.workers(), self.hosts).expect("servers");
            let profile = profile(&[(self.partitions * PARTITION_BYTES / 4, 1e-12, 1e-12)], 0.0);
            let workload = Workload::of_profile(&profile).with_world(self.workers(), self.hosts);
            let plan = plan(&strategy, &workload).expect("a plan");
            assert_eq!(plan.partitions().count(), self.partitions, "{text}");
            let world = World::of(self.workers(), self.per_host).on(shape);
            let traffic = ServerCosts::of(&cluster, world, of, 0.0, 0.0).by_message(&cluster).traffic(&plan);
            let classes = [WorkerClass::of(&profile, self.workers())];
            simulate_training(&Training::new(&plan, &classes, &traffic.operations), Length::Steady).iteration_s
        }

        /// Seconds of a program whose tiles are those of the partitions, or of as many of them as it has servers, on these hosts.
        fn by_message(
            &self,
            (kind, name): (CollectiveKind, &str),
            by_rank: Vec<usize>,
            partitions_a_tile: usize,
        ) -> f64 {
            let root = by_rank.len() - 1;
            let dedicated = by_rank[root] == self.hosts;
            let topology = Topology::of_hosts(&by_rank);
            let hosts = Hosts::of_ranks(by_rank).expect("hosts");
            let network = Network::new(Shape::Flat, &hosts, &Speeds::of(self.network)).expect("a network");
            let algorithm = registry::find(kind, name).expect("an algorithm");
            let program = PreparedProgram::of_algorithm(algorithm, &topology, root).expect("a program");
            let cut = if self.network.across.overhead_s > 0.0 { self.tiles_of_one(dedicated) } else { 1 };
            let load = Load {
                bytes: PARTITIONS * PARTITION_BYTES,
                tile_bytes: partitions_a_tile * PARTITION_BYTES / cut,
                window: PARTITIONS * cut,
            };
            let machine = Machine { combining: Combining::Beside, ..Machine::new(&network) };
            simulate(&program, &load, &machine).expect("it ends").seconds
        }

        /// Into how many tiles the runtime cuts a partition that is pushed to a server on a host of its own, or beside worker 0, and
        /// pulled from there.
        fn tiles_of_one(&self, dedicated: bool) -> usize {
            let workers = (0..self.workers()).map(|rank| rank / self.per_host);
            let server = if dedicated { self.hosts } else { 0 };
            let topology = Topology::of_hosts(&workers.chain([server]).collect::<Vec<_>>());
            let costs = Cluster::of_network(self.network, self.hosts, self.per_host).counted_costs_among(self.hosts);
            let choice = select::cheapest(CollectiveKind::PushPull, &topology, PARTITION_BYTES, &costs, |_| true);
            tiles(PARTITION_BYTES, choice.expect("a program").tile_bytes)
        }

        fn compare(&self, servers: &str, by_message: f64) {
            self.compare_on(Shape::Flat, servers, by_message);
        }

        fn compare_on(&self, shape: Shape, servers: &str, by_message: f64) {
            let predicted = self.predicted(servers, shape);
            let ratio = predicted / by_message;
            let Case { hosts, per_host, network, .. } = self;
            let name = format!(
                "{shape}, {hosts} x {per_host}, ps:{servers}, overhead {:e} beta {:e}",
                network.across.overhead_s, network.across.beta_s_per_byte
            );
            println!("{name}: {predicted:.6} s, by message {by_message:.6} s: {ratio:.4}");
            let near = match network.across.beta_s_per_byte < network.within.beta_s_per_byte {
                true if matches!(shape, Shape::Torus { .. } | Shape::BCube { .. }) => NEAR_OF_PORTS,
                true => NEAR_OF_SOME,
                false => NEAR,
            };
            assert!((1.0 - near..=1.0 + near).contains(&ratio), "{name}: {predicted}, not {by_message}: {ratio}");
        }
    }

    /// The bus of a program is busy with what the network takes, too: the server's host takes in seven times the bytes at half of the
    /// time for each. Of that only what moves within the host is the bus's, and what is called full is what the formula says.
    #[test]
    fn what_the_network_takes_is_not_the_buss() {
        let class = |beta_s_per_byte| LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte };
        let cluster = Cluster::of_network(NetworkModel { within: class(2e-10), across: class(1e-10) }, 8, 2);
        let strategy = Registry::built_in().parse("schedule=none,arch=ps:1:1MiB").expect("a strategy");
        let servers = strategy.servers(16, 8).expect("servers");
        let profile = profile(&[(64 * PARTITION_BYTES / 4, 1e-12, 1e-12)], 0.0);
        let plan = plan(&strategy, &Workload::of_profile(&profile).with_world(16, 8)).expect("a plan");
        let costs = || ServerCosts::of(&cluster, World::of(16, 2), servers, 0.0, 0.0);
        let (formula, program) = (costs().traffic(&plan), costs().by_message(&cluster).traffic(&plan));
        let bus_s = |traffic: &Traffic| traffic.operations.busy_s().0;
        assert!(bus_s(&program) > 2.0 * bus_s(&formula), "{} {}", bus_s(&program), bus_s(&formula));
        assert_eq!(formula.of_bus, 1.0);
        assert!((program.of_bus * bus_s(&program) / bus_s(&formula) - 1.0).abs() < 1e-9, "{}", program.of_bus);
        for traffic in [formula, program] {
            let fullest = traffic.busy.iter().max_by(|one, other| one.1.total_cmp(&other.1)).expect("links");
            assert_eq!(fullest.0, Bottleneck::LinkBetweenHosts, "{:?}", traffic.busy);
        }
    }

    /// All push to a server on a host of its own, which has one port for all of them.
    #[test]
    fn a_server_elsewhere_takes_what_its_program_does() {
        for case in Case::all(1) {
            let by_rank = (0..=case.hosts).collect();
            case.compare("1:1MiB:dedicated", case.by_message((CollectiveKind::PushPull, "direct"), by_rank, 1));
        }
    }

    /// Workers of a host add up among themselves first, so that each partition crosses its interface once.
    #[test]
    fn a_server_of_whole_hosts_takes_what_its_program_does() {
        for per_host in [2, 4] {
            for case in Case::all(per_host) {
                let workers = (0..case.workers()).map(|rank| rank / per_host);
                let by_rank = workers.chain([case.hosts]).collect();
                case.compare(
                    "1:1MiB:dedicated",
                    case.by_message((CollectiveKind::PushPull, "hierarchical"), by_rank, 1),
                );
            }
        }
    }

    /// A server beside each worker, which keeps its own part: everyone is root of one partition in as many, which is an all-reduce
    /// of everyone to everyone.
    #[test]
    fn servers_beside_all_workers_take_what_their_program_does() {
        let outrun = |case: &Case| case.network.across.beta_s_per_byte < case.network.within.beta_s_per_byte;
        for case in Case::all(1).filter(|case| PARTITIONS.is_multiple_of(case.hosts) && !outrun(case)) {
            let by_rank = (0..case.hosts).collect();
            let by_message = case.by_message((CollectiveKind::AllReduce, "direct-scatter"), by_rank, case.hosts);
            case.compare("hosts:1MiB", by_message);
        }
    }

    /// Beside the workers of one of the hosts, whose ports the network does not outrun, or does.
    #[test]
    fn a_server_beside_workers_takes_what_its_program_does() {
        for per_host in [1, 2, 4] {
            for case in Case::all(per_host) {
                let workers = (0..case.workers()).map(|rank| rank / per_host);
                let by_rank = workers.chain([0]).collect();
                case.compare("1:1MiB", case.by_message((CollectiveKind::PushPull, "hierarchical"), by_rank, 1));
            }
        }
    }

    /// Several servers beside workers, with a network that outruns their ports and with one that does not: everything at once.
    #[test]
    fn servers_beside_hosts_take_what_their_program_does() {
        let hosts = [(2, 1), (4, 1), (6, 1), (2, 2), (4, 2), (2, 4)];
        let cases = hosts.into_iter().flat_map(|(hosts, per_host)| {
            [NetworkModel::HUNDRED_GB_IB, NetworkModel::TEN_GBE].map(|network| Case {
                hosts,
                per_host,
                network,
                partitions: PARTITIONS,
            })
        });
        for (case, shards) in cases.flat_map(|case| (1..=case.hosts).map(move |shards| (case, shards))) {
            let world = World::of(case.workers(), case.per_host);
            let servers: Vec<usize> = (0..shards).collect();
            let (program, by_host) = program(&world, &servers).expect("a program");
            let network = Network::new(Shape::Flat, &by_host, &Speeds::of(case.network)).expect("a network");
            let load = Load { bytes: PARTITIONS * PARTITION_BYTES, tile_bytes: PARTITION_BYTES, window: PARTITIONS };
            let by_message = simulate(&program, &load, &Machine::new(&network)).expect("it ends").seconds;
            let case = Case { partitions: shards * PARTITIONS, ..case };
            case.compare(&format!("{shards}:1MiB"), by_message);
        }
    }

    /// Where links between switches are in the way, or hosts have several ports, too; and switches that are not in the way change
    /// nothing.
    #[test]
    fn servers_on_a_topology_take_what_their_program_does() {
        let network = NetworkModel::HUNDRED_GB_IB;
        let shapes = ["tree:2:1", "tree:2:2", "fat-tree:2:1", "torus:2x2", "bcube:2:2"];
        for (shape, shards) in shapes.into_iter().flat_map(|shape| [1, 2, 4].map(|shards| (shape, shards))) {
            let case = Case { hosts: 4, per_host: 2, network, partitions: shards * PARTITIONS };
            let there: Shape = shape.parse().expect("a shape");
            let servers: Vec<usize> = (0..shards).collect();
            let (program, by_host) = program(&World::of(8, 2), &servers).expect("a program");
            let network = Network::new(there, &by_host, &Speeds::of(network)).expect("a network");
            let load = Load { bytes: PARTITIONS * PARTITION_BYTES, tile_bytes: PARTITION_BYTES, window: PARTITIONS };
            let by_message = simulate(&program, &load, &Machine::new(&network)).expect("it ends").seconds;
            let text = format!("{shards}:1MiB");
            case.compare_on(there, &text, by_message);
            if shape == "tree:2:1" {
                let ratio = case.predicted(&text, there) / case.predicted(&text, Shape::Flat);
                assert!((ratio - 1.0).abs() < 1e-6, "{text}: {ratio}");
            }
        }
    }
}
