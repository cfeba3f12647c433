//! The programs by which the operations of a plan travel, prepared to be played together.

use std::collections::HashMap;

use paceline_collective::cost::Load;
use paceline_collective::verify::Refusal;
use paceline_collective::{WINDOW, select, tiles};
use paceline_plan::{Cluster, CollectiveKind, Constant, Hosts, LinkCosts, Plan, ServerConstants, Shape};
use paceline_schedule::ELEMENT_BYTES;

use super::servers_by_message::{program_of_one, with_server};
use super::{AllToAll, Communication, ServerCosts, World, all_to_all_costs};
use crate::PredictError;
use crate::iteration::{Length, Messages, Starts};
use crate::programs::{Combining, Machine, Operation, PreparedProgram, Sending};
use crate::topology::{Network, Speeds};

/// An iteration of more messages is not played: with as many it takes some seconds, or minutes where many meet at servers.
pub(crate) const MESSAGES_MAX: usize = 1 << 20;

/// The programs of a plan's operations.
pub(crate) struct Programs {
    network: Network,
    gamma: f64,
    server_gamma: f64,
    prepared: Vec<PreparedProgram>,
    /// By operation: which of the prepared, and what it carries.
    operations: Vec<(usize, Load)>,
    start_s: f64,
    starts: Starts,
    /// What the cluster has that does not count here, in words.
    pub left_out: Vec<String>,
}

impl Communication {
    /// The programs of a plan's operations on a cluster, of an iteration of so many messages at most.
    ///
    /// # Errors
    /// Nothing travels, servers are on the only host, there are too many messages, or the topology has no room for the servers.
    pub fn programs(
        &self,
        plan: &Plan,
        cluster: &Cluster,
        length: Length,
        messages_max: usize,
    ) -> Result<Programs, PredictError> {
        // Before there is a program of all these ranks.
        check_messages(self.traffic(plan).messages, length, messages_max)?;
        let programs = match self {
            Communication::None => {
                return Err(PredictError::ByMessage("nothing travels where a worker is alone".into()));
            }
            Communication::AllToAll(costs) => of_all_to_all(costs, plan, cluster)?,
            Communication::Servers(costs) => of_servers(costs, plan, cluster)?,
        };
        // Formulas to which tiles do not matter have not counted them.
        check_messages(programs.messages(), length, messages_max)?;
        Ok(programs)
    }
}

impl Programs {
    /// Messages of an iteration.
    fn messages(&self) -> usize {
        let of =
            |(program, load): &(usize, Load)| self.prepared[*program].messages() * tiles(load.bytes, load.tile_bytes);
        self.operations.iter().map(of).sum()
    }

    /// The machine on which they are played.
    pub fn machine(&self, sending: Sending) -> Machine<'_> {
        let combining = Combining::InsteadOfReceiving;
        Machine { sending, gamma: self.gamma, combining, ..Machine::new(&self.network) }
    }

    /// By the plan's numbers.
    pub fn operations(&self) -> Vec<Operation<'_>> {
        self.operations.iter().map(|&(program, load)| Operation { program: &self.prepared[program], load }).collect()
    }

    /// These operations on this machine, both its own, for workers of these classes.
    pub fn messages_of<'a>(
        &self,
        machine: &'a Machine<'a>,
        operations: &'a [Operation<'a>],
        class_of: &'a [usize],
    ) -> Messages<'a> {
        let Programs { server_gamma, start_s, starts, .. } = *self;
        Messages { machine, operations, class_of, server_gamma, start_s, starts }
    }
}

fn check_messages(messages: usize, length: Length, most: usize) -> Result<(), PredictError> {
    // Iterations that are not drawn are ten at most.
    let times = match length {
        Length::Steady => 1,
        Length::Drawn { iterations, .. } => iterations.div_ceil(10),
    };
    if messages.saturating_mul(times) <= most {
        return Ok(());
    }
    let most = most / times;
    Err(PredictError::ByMessage(format!(
        "an iteration has {messages} messages, and {most} at most are played: take fewer workers"
    )))
}

/// How the operations of a plan travel, found one after the other.
#[derive(Default)]
struct Prepared {
    /// Of each program its server, or 0, and its algorithm.
    names: Vec<(usize, &'static str)>,
    programs: Vec<PreparedProgram>,
    /// By operation: which of the programs, and what it carries.
    operations: Vec<(usize, Load)>,
}

impl Prepared {
    /// The next operation goes by the program of this name, which is prepared if none has gone by it yet.
    fn push(
        &mut self,
        name: (usize, &'static str),
        [bytes, tile_bytes]: [usize; 2],
        prepare: impl FnOnce() -> Result<PreparedProgram, Refusal>,
    ) -> Result<(), Refusal> {
        let program = match self.names.iter().position(|known| *known == name) {
            Some(program) => program,
            None => {
                self.programs.push(prepare()?);
                self.names.push(name);
                self.programs.len() - 1
            }
        };
        self.operations.push((program, Load { bytes, tile_bytes, window: WINDOW }));
        Ok(())
    }
}

/// Bytes of the operations of a plan, by their numbers.
fn bytes_of(plan: &Plan) -> impl Iterator<Item = usize> + '_ {
    plan.partitions().map(|(_, partition)| partition.elements.len() * ELEMENT_BYTES as usize)
}

/// The algorithms and tiles that the runtime would choose.
fn of_all_to_all(costs: &AllToAll, plan: &Plan, cluster: &Cluster) -> Result<Programs, PredictError> {
    let world = costs.world;
    let links = all_to_all_costs(cluster, world.hosts);
    let topology = world.topology();
    let (mut prepared, mut meet) = (Prepared::default(), 1);
    for bytes in bytes_of(plan) {
        let (algorithm, tile_bytes) = costs.way(bytes as u64);
        let program = || {
            meet = meet.max(algorithm.fan_in(&topology));
            PreparedProgram::of_algorithm(algorithm, &topology, 0)
        };
        prepared.push((0, algorithm.name()), [bytes, tile_bytes], program)?;
    }
    let mut left_out = left_out(cluster);
    // As the formulas have it: across hosts nothing is lost within them.
    let incast = if world.hosts > 1 { links.contention } else { links.contention_within };
    if meet > 1 && incast > 0.0 {
        left_out.push("what links lose where several streams meet (incast_s_per_byte)".into());
    }
    let on_hosts: Vec<usize> = (0..world.workers).map(|rank| rank / world.per_host).collect();
    Ok(Programs {
        network: network(&world, on_hosts, &links, cluster)?,
        gamma: links.across.gamma,
        server_gamma: 0.0,
        prepared: prepared.programs,
        operations: prepared.operations,
        start_s: costs.start_s,
        starts: if costs.one_by_one { Starts::OneByOne } else { Starts::OnPort },
        left_out,
    })
}

/// A push and a pull of each partition, by the algorithm and in the tiles that the runtime would choose.
fn of_servers(costs: &ServerCosts, plan: &Plan, cluster: &Cluster) -> Result<Programs, PredictError> {
    let world = costs.world;
    if world.hosts == 1 {
        let why = "servers of a single host's workers share its memory or its ports, which only formulas know";
        return Err(PredictError::ByMessage(why.into()));
    }
    let host_of = |shard: usize| {
        let place = shard % costs.places;
        if costs.servers.dedicated { world.hosts + place } else { place }
    };
    let shards = costs.servers.shards;
    let counted = cluster.counted_costs_among(world.hosts);
    let mut prepared = Prepared::default();
    // By host of the server and bytes: plans have few sizes, and choosing looks at all ranks.
    let mut choices = HashMap::new();
    for ((_, partition), bytes) in plan.partitions().zip(bytes_of(plan)) {
        let shard = partition.shard.unwrap_or(0);
        let host = host_of(shard);
        let choice = *choices.entry((host, bytes)).or_insert_with(|| {
            select::cheapest(CollectiveKind::PushPull, &with_server(&world, host), bytes, &counted, |_| true)
        });
        let Some(choice) = choice else {
            return Err(PredictError::ByMessage(format!("no program pushes from {} workers and pulls", world.workers)));
        };
        let program = || program_of_one(&world, choice.algorithm, [shard, shards], host);
        prepared.push((shard, choice.algorithm.name()), [bytes, choice.tile_bytes], program)?;
    }
    let links = cluster.link_costs_among(world.hosts);
    let mut left_out = left_out(cluster);
    left_out.extend(of_servers_only(&cluster.server));
    if costs.servers.apply {
        left_out.push("the optimiser of the servers, between an operation that pushes and one that pulls".into());
    }
    if plan.server_priority_only {
        left_out.push("that servers answer the most urgent first".into());
    }
    if costs.servers.dedicated && world.shape != Shape::Flat && cluster.hosts > world.hosts {
        left_out.push("switches between the hosts of these workers and those that only serve".into());
    }
    let on_hosts = (0..world.workers).map(|rank| rank / world.per_host).chain((0..shards).map(host_of)).collect();
    Ok(Programs {
        network: network(&world, on_hosts, &links, cluster)?,
        gamma: links.across.gamma,
        server_gamma: cluster.server.combine_s_per_byte.value,
        prepared: prepared.programs,
        operations: prepared.operations,
        start_s: costs.start_s,
        starts: Starts::Beside,
        left_out,
    })
}

fn network(world: &World, on_hosts: Vec<usize>, links: &LinkCosts, cluster: &Cluster) -> Result<Network, PredictError> {
    let hosts = Hosts::of_ranks(on_hosts).ok_or(PredictError::Nobody)?;
    // Within one host nothing takes the topology's links.
    let shape = if world.hosts > 1 { world.shape } else { Shape::Flat };
    Ok(Network::new(shape, &hosts, &Speeds::of_costs(links, cluster.across.hop_s.value))?)
}

/// What has no place among messages.
fn left_out(cluster: &Cluster) -> Vec<String> {
    let (interference, operation) = (&cluster.interference, &cluster.operation);
    let constants = [
        ("what communication costs computation (interference.computation)", interference.computation),
        ("what computation costs communication (interference.communication)", interference.communication),
        ("what an operation costs that overtakes others (operation.overtaking_s)", operation.overtaking_s),
        ("what a small one does (operation.overtaking_small_s)", operation.overtaking_small_s.unwrap_or_default()),
    ];
    named(constants)
}

/// The same of servers.
fn of_servers_only(constants: &ServerConstants) -> Vec<String> {
    named([
        ("what servers take for each partition (server.partition_s)", constants.partition_s),
        ("what partitions take within a host (server.local_partition_s)", constants.local_partition_s),
        ("copies to the host's memory (server.copy_s_per_byte)", constants.copy_s_per_byte),
        ("what pushing and pulling at once cost (server.duplex_loss)", constants.duplex_loss),
        (
            "what a connection's core takes (server.connection_s_per_byte)",
            constants.connection_s_per_byte.unwrap_or_default(),
        ),
        ("the links to servers (server.beta_s_per_byte)", constants.beta_s_per_byte.unwrap_or_default()),
    ])
}

/// Those that are something.
fn named<const COUNT: usize>(constants: [(&str, Constant); COUNT]) -> Vec<String> {
    let counted = constants.into_iter().filter(|(_, constant)| constant.value != 0.0);
    counted.map(|(what, _)| what.to_owned()).collect()
}
