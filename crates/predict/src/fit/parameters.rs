//! The constants that are sought: what each means, what is expected of it, and which throughputs it changes.

use paceline_plan::{Cluster, Constant};

use super::least_squares::Unknown;
use super::observations::{Observation, Observations, WITHIN_S_PER_BYTE};

/// Of no study more constants are sought than this: with more, a few dozen throughputs would fit anything.
pub(super) const PARAMETERS_MAX: usize = 20;

/// A constant that is sought.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// Its name in a cluster, as [`Cluster::constants`] has it.
    pub constant: String,
    /// Whose it is; None: all networks have the same.
    pub network: Option<usize>,
    /// Of its value.
    pub unit: &'static str,
    /// What is expected of it.
    pub unknown: Unknown,
    /// Why that.
    pub why: &'static str,
    concerns: Concerns,
}

/// Which throughputs a constant changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concerns {
    All,
    Model(usize),
    /// All-to-all; more than four workers.
    AllToAll,
    Doublings,
    /// Communication beside computation.
    Overlapping,
    /// More than one host; more than two.
    Hosts,
    ManyHosts,
    /// Parameter servers on more than one host, where hosts are in each other's way.
    Connections,
    /// Parameter servers; on more than one host.
    Servers,
    ServersAcross,
}

impl Parameter {
    /// Does an observation change with it?
    pub fn concerns(&self, one: &Observation) -> bool {
        let here = self.network.is_none_or(|network| network == one.network);
        here && match self.concerns {
            Concerns::All => true,
            Concerns::Model(model) => one.model == model,
            Concerns::AllToAll => !one.has_servers(),
            Concerns::Doublings => !one.has_servers() && one.case.workers > 4,
            Concerns::Overlapping => one.case.overlaps,
            Concerns::Hosts => one.hosts > 1,
            Concerns::ManyHosts => one.hosts > 2,
            Concerns::Servers => one.has_servers(),
            Concerns::ServersAcross | Concerns::Connections => one.has_servers() && one.hosts > 1,
        }
    }

    /// Is it the same constant of the same network?
    pub fn is(&self, other: &Parameter) -> bool {
        self.constant == other.constant && self.network == other.network
    }

    /// The share that beta grows by, the seconds that are lost, or those of a connection, where hosts are in each other's way: only
    /// networks on which that is seen have them.
    pub fn is_crowding(&self) -> bool {
        matches!(self.concerns, Concerns::ManyHosts | Concerns::Connections)
    }

    /// Is it the time for a byte between the hosts of a network?
    pub fn is_across(&self, network: usize) -> bool {
        self.concerns == Concerns::Hosts && self.network == Some(network)
    }

    /// Is it something of the links between hosts, which another network would not have?
    pub fn is_of_links(&self, network: usize) -> bool {
        self.network == Some(network)
    }

    /// Sets it.
    pub fn set(&self, clusters: &mut [Cluster], value: Constant) {
        for (index, cluster) in clusters.iter_mut().enumerate() {
            if self.network.is_none_or(|network| network == index)
                && let Some(constant) = cluster.constant_mut(&self.constant)
            {
                *constant = value;
            }
        }
    }

    /// Of a cluster's constant that is at least 0.
    fn of(constant: &str, unit: &'static str, (mean, deviation): (f64, f64), concerns: Concerns) -> Parameter {
        let unknown = Unknown { mean, deviation, least: 0.0, most: f64::MAX, fixed: false };
        Parameter { constant: constant.to_owned(), network: None, unit, unknown, why: "", concerns }
    }

    fn because(self, why: &'static str) -> Parameter {
        Parameter { why, ..self }
    }

    fn between(self, least: f64, most: f64) -> Parameter {
        Parameter { unknown: Unknown { least, most, ..self.unknown }, ..self }
    }

    fn of_network(self, network: usize) -> Parameter {
        Parameter { network: Some(network), ..self }
    }
}

/// The constants that are sought, given on which networks hosts are in each other's way. At most [`PARAMETERS_MAX`], if the
/// networks leave room: where there are many models, none has an overhead; where there are many networks, they share the loss
/// of servers.
pub(super) fn parameters(observations: &Observations, crowded: &[usize]) -> Vec<Parameter> {
    let (networks, models) = (observations.networks.len(), observations.models.len());
    let mut list = shared();
    list.extend((0..networks).map(|network| across(observations, network).of_network(network)));
    let room = PARAMETERS_MAX.saturating_sub(list.len());
    if models < room {
        list.extend((0..models).map(|model| overhead(observations, model)));
    }
    let room = PARAMETERS_MAX.saturating_sub(list.len());
    if networks <= room {
        list.extend((0..networks).map(|network| loss().of_network(network)));
    } else {
        list.push(loss());
    }
    for &network in crowded {
        if PARAMETERS_MAX.saturating_sub(list.len()) >= crowding().len() {
            let of_network = crowding().map(|parameter| parameter.of_network(network));
            // Without a row of servers nothing is said of their connections.
            let is_seen = |parameter: &Parameter| observations.all.iter().any(|one| parameter.concerns(one));
            list.extend(of_network.into_iter().filter(is_seen));
        }
    }
    list
}

const NANO: f64 = 1e-9;
const MILLI: f64 = 1e-3;

fn shared() -> Vec<Parameter> {
    let within = (WITHIN_S_PER_BYTE, 0.5 * WITHIN_S_PER_BYTE);
    vec![
        Parameter::of("within.beta_s_per_byte", "s/byte", within, Concerns::All)
            .between(1e-3 * NANO, f64::MAX)
            .because("PCIe 3.0 x16 through the host's memory: 441 ms for BERT-Large on 4 GPUs (arXiv 2005.13247)"),
        Parameter::of("operation.start_s", "s", (0.15 * MILLI, 0.15 * MILLI), Concerns::AllToAll)
            .because("Horovod's negotiation and NCCL's launch: between nothing and some tenths of a millisecond"),
        Parameter::of("operation.start_per_doubling_s", "s", (0.08 * MILLI, 0.05 * MILLI), Concerns::Doublings)
            .because("negotiation waits for the last of the workers: a tenth of a millisecond for each doubling"),
        Parameter::of("interference.computation", "", (0.6, 0.3), Concerns::Overlapping)
            .between(0.0, 1.0)
            .because("speed-ups of 31.6, 23.2 and 3.1 in the text of arXiv 2005.13247; at most all of it"),
        Parameter::of("server.copy_s_per_byte", "s/byte", (0.05 * NANO, 0.05 * NANO), Concerns::ServersAcross)
            .because("PCIe 3.0 x16 copies a byte in 0.08 ns, partly beside other copies"),
        Parameter::of("server.dedicated_share", "", (0.5, 0.3), Concerns::ServersAcross)
            .between(0.0, 1.0)
            .because("a host that only serves copies nothing to devices meanwhile"),
        Parameter::of("server.partition_s", "s", (0.2 * MILLI, 0.1 * MILLI), Concerns::ServersAcross)
            .because("two messages of TCP, a queue at each end"),
        Parameter::of("server.local_partition_s", "s", (0.03 * MILLI, 0.03 * MILLI), Concerns::Servers)
            .because("a launch of NCCL takes 0.02 ms"),
    ]
}

fn across(observations: &Observations, network: usize) -> Parameter {
    let first = observations.first_beta(network);
    Parameter::of("across.beta_s_per_byte", "s/byte", (first, first.max(0.1 * NANO)), Concerns::Hosts)
        .between(1e-3 * NANO, f64::MAX)
        .because(match observations.suggested_beta(network) {
            Some(_) => "iterations without overlap, less computation, over the bytes of a ring",
            None => "messages from point to point on the network of this name, or 10 Gbit/s",
        })
}

fn overhead(observations: &Observations, model: usize) -> Parameter {
    let model_of = &observations.models[model];
    let name = format!("computation.overhead_s.{}", model_of.name);
    // At most half of the iteration is saved.
    let least = -0.5 * model_of.alone_s;
    Parameter::of(&name, "s", (0.0, (0.03 * model_of.alone_s).max(1e-6)), Concerns::Model(model))
        .between(least, f64::MAX)
        .because("3 % of an iteration: what another loop around the same model costs or saves")
}

fn loss() -> Parameter {
    Parameter::of("server.duplex_loss", "", (0.6, 0.3), Concerns::ServersAcross)
        .between(0.0, 1.0)
        .because("between full and half duplex")
}

fn crowding() -> [Parameter; 3] {
    [
        Parameter::of("server.connection_s_per_byte", "s/byte", (0.0, NANO), Concerns::Connections)
            .because("none on most networks"),
        Parameter::of("across.contention", "", (0.0, 0.05), Concerns::ManyHosts).because("none on most networks"),
        Parameter::of("across.jitter_s", "s", (0.0, 10.0 * MILLI), Concerns::ManyHosts)
            .because("none on most networks"),
    ]
}
