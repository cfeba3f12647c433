//! Clusters: what machines and their links cost, as predictions count it.
//!
//! `docs/clusters.md` describes the file. Each constant has its unit in its name, and an interval.

mod check;
mod constant;
mod measured;
mod names;
mod presets;
mod protocols;
mod set;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{LinkClass, LinkCost, LinkCosts, NetworkModel};
pub use check::ClusterError;
pub use constant::Constant;
pub use measured::MeasuredRange;
pub use presets::BUILT_IN_CLUSTERS;
pub use protocols::{ProtocolConstants, Protocols};
pub use set::ClusterSet;

/// Hosts with workers, what connects them, and what operations on them cost.
///
/// ```
/// use paceline_plan::{Cluster, Constant};
///
/// let mut cluster = Cluster::named("study-10gbe")?;
/// assert_eq!((cluster.hosts, cluster.workers_per_host), (8, 4));
/// cluster.across.beta_s_per_byte = Constant::between(0.8e-9, 0.7e-9, 0.9e-9);
/// assert_eq!(Cluster::from_toml(&cluster.to_toml())?, cluster);
/// # Ok::<(), paceline_plan::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The version of the form: [`Cluster::SCHEMA`].
    pub schema: u32,
    /// What it is called.
    pub name: String,
    /// Where the constants come from: measured, by what and when; fitted, to what; or stated, by whom.
    pub source: String,
    /// Hosts with workers.
    pub hosts: usize,
    /// Workers on each of them.
    pub workers_per_host: usize,
    /// Further hosts, which may serve and do nothing else.
    #[serde(default)]
    pub server_hosts: usize,
    /// How hosts are connected: `flat`, `tree:HOSTS:OVERSUBSCRIPTION`, `fat-tree:HOSTS:OVERSUBSCRIPTION[:hash]`, `torus:XxY` or
    /// `bcube:PORTS:LEVELS`.
    #[serde(default = "flat")]
    pub topology: String,
    /// Links between the workers of a host. Each worker has a port of its own in each direction.
    #[serde(default)]
    pub within: LinkConstants,
    /// Links between hosts. Each host has one port in each direction, which its workers share.
    #[serde(default)]
    pub across: LinkConstants,
    /// Gamma: seconds in which a worker adds a byte to another.
    #[serde(default)]
    pub combine_s_per_byte: Constant,
    /// What an operation costs besides its messages.
    #[serde(default)]
    pub operation: OperationConstants,
    /// What a parameter server costs besides its messages.
    #[serde(default)]
    pub server: ServerConstants,
    /// What communication and computation cost each other.
    #[serde(default)]
    pub interference: InterferenceConstants,
    /// What workers compute otherwise than a worker alone.
    #[serde(default)]
    pub computation: ComputationConstants,
    /// What is otherwise over a protocol that a strategy names ([`Cluster::over`]).
    #[serde(default, skip_serializing_if = "Protocols::is_empty")]
    pub protocols: Protocols,
    /// Workers that compute slower or faster than the profile says, by their ranks. All others are like it.
    #[serde(rename = "workers", default, skip_serializing_if = "Vec::is_empty")]
    pub unlike: Vec<UnlikeWorkers>,
    /// Between what the constants were measured: a prediction beyond it is an extrapolation. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredRange>,
    /// What the ranks of a world have agreed that their links cost: by that they choose how an operation is done, whatever it then
    /// takes. Of a world that is there, and of no file. None: as the constants say.
    #[serde(skip)]
    pub agreed: Option<LinkCosts>,
    /// What computed meanwhile, such as `rtx2080ti`: the device of a [`Profile`](crate::Profile). None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What a host costs in an hour, in any currency. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_host_hour: Option<f64>,
}

/// A class of links, in the model of [`LinkCost`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConstants {
    /// Alpha: seconds from the start of an empty message to its arrival.
    pub alpha_s: Constant,
    /// Seconds for which an empty message keeps a port busy. At most alpha.
    #[serde(default)]
    pub overhead_s: Constant,
    /// Beta: seconds per byte of payload, at each port.
    pub beta_s_per_byte: Constant,
    /// Between hosts: by which share beta grows for each (hosts² − 4), from the third host on: streams of many hosts that lose rate in
    /// the network. 0 where every host gets its own rate.
    #[serde(default)]
    pub contention: Constant,
    /// Between hosts: seconds that an iteration loses for each (hosts² − 4), from the third host on, to streams that come late.
    #[serde(default)]
    pub jitter_s: Constant,
    /// Between hosts: seconds that each switch beyond the first adds to the latency of a message, where the topology has such.
    #[serde(default)]
    pub hop_s: Constant,
    /// Seconds per byte more for every sender but the first of those whose streams meet at one receiver:
    /// [`LinkCosts::contention`], within a host [`LinkCosts::contention_within`].
    #[serde(default)]
    pub incast_s_per_byte: Constant,
    /// Seconds of overhead that the runtime counts at least when it chooses an algorithm and its tiles, whatever a message
    /// takes: on emulated networks more than that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted_overhead_s: f64,
    /// Within a host: does the receiver fetch the bytes from where the sender has them ([`LinkCosts::fetched`])?
    #[serde(default, skip_serializing_if = "is_false")]
    pub fetched: bool,
    /// Times of single messages as they were measured: bytes, and seconds to their arrival; sizes rising. For those who
    /// want to see how far alpha and beta are from them; nothing is predicted from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<(u64, Constant)>,
}

/// What an operation costs besides its messages. The start of all-to-all operations is negotiation and launch: they start one
/// after the other, so it adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OperationConstants {
    /// Seconds with up to four workers.
    pub start_s: Constant,
    /// Seconds more for each doubling of the workers beyond four.
    pub start_per_doubling_s: Constant,
    /// Seconds for which each round of an operation that overtakes less urgent ones waits for bytes of theirs that links have
    /// taken in; servers are reached and left in two rounds. Of operations of 64 KiB and more.
    pub overtaking_s: Constant,
    /// The same of operations of 4 KiB and less, whose messages go to other ranks and by other ways than those of larger ones;
    /// between the two sizes by the logarithm. None: as larger ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overtaking_small_s: Option<Constant>,
}

/// What a parameter server costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConstants {
    /// Seconds for each partition on its way between hosts.
    pub partition_s: Constant,
    /// Seconds for each partition on its way within a host.
    pub local_partition_s: Constant,
    /// Seconds per byte of a partition between a device's memory and the host's, where there is more than one host.
    pub copy_s_per_byte: Constant,
    /// By which share pushing and pulling at once take longer than one of them: 0 in full duplex, 1 in half.
    pub duplex_loss: Constant,
    /// The share of that loss on an interface that carries a server's traffic only: no worker's copies are in its way. None: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedicated_share: Option<Constant>,
    /// Seconds per byte that a connection takes besides, where a single core works for each: hosts that have k connections to servers,
    /// or from workers' hosts, take 1/k of it. None: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_s_per_byte: Option<Constant>,
    /// Seconds in which a server's processor adds a byte.
    pub combine_s_per_byte: Constant,
    /// Seconds per byte between a worker's host and a server's, where that differs from `across.beta_s_per_byte`: a server
    /// has other connections than a ring. None: it does not differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_s_per_byte: Option<Constant>,
    /// On one host, has a server beside the workers ports of its own, as on emulated networks? All workers push to it then, the
    /// one beside whom it lives as well. If not, it shares that worker's ports, and the two reach each other in memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_ports: bool,
}

/// What communication and computation cost each other where they run at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InterferenceConstants {
    /// Kappa: seconds of computation lost for each second of transfer within the host that runs beside it.
    pub computation: Constant,
    /// Seconds of transfer lost for each second of transfer that runs beside computation.
    pub communication: Constant,
}

/// What workers compute otherwise than a worker alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputationConstants {
    /// By model: seconds that an iteration of several workers computes more than that of a worker alone; negative if less.
    /// `*` stands for all that are not named.
    pub overhead_s: BTreeMap<String, Constant>,
    /// The standard deviation of what workers compute in an iteration, as a share of the mean: stragglers.
    pub spread: Constant,
    /// How they are distributed whose deviation that is.
    pub distribution: Distribution,
    /// So many iterations are drawn, and their mean is the prediction. 0: none is, and each takes what the slowest of all
    /// workers is expected to take.
    pub draws: usize,
    /// Where the draws begin: another seed, other draws; the same, the same.
    pub seed: u32,
}

/// How the seconds that a worker computes differ from iteration to iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Normally.
    #[default]
    Normal,
    /// Their logarithm is normally distributed: rare long delays. The spread is the deviation of the logarithm.
    LogNormal,
    /// Beside what is computed a delay, exponentially distributed: a machine that others use, too. The spread is its mean, too.
    Exponential,
}

/// Workers that compute otherwise than the profile says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnlikeWorkers {
    /// Who they are. A prediction for fewer workers leaves out those that it has not.
    pub ranks: Vec<usize>,
    /// Seconds that each second of the profile takes them.
    pub slower: f64,
}

fn flat() -> String {
    "flat".to_owned()
}

fn is_false(switch: &bool) -> bool {
    !switch
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

impl Cluster {
    /// The version of the form that this version writes and reads.
    pub const SCHEMA: u32 = 1;

    /// A cluster of which nothing is known but its links.
    pub fn of_network(network: NetworkModel, hosts: usize, workers_per_host: usize) -> Cluster {
        Cluster {
            schema: Cluster::SCHEMA,
            name: network.to_string(),
            source: format!("the network {network}, and nothing else"),
            hosts,
            workers_per_host,
            server_hosts: 0,
            topology: flat(),
            within: network.within.into(),
            across: network.across.into(),
            combine_s_per_byte: Constant::ZERO,
            operation: OperationConstants::default(),
            server: ServerConstants::default(),
            interference: InterferenceConstants::default(),
            computation: ComputationConstants::default(),
            protocols: Protocols::default(),
            unlike: Vec::new(),
            measured: None,
            agreed: None,
            device: None,
            price_per_host_hour: None,
        }
    }

    /// Workers on all hosts.
    pub fn workers(&self) -> usize {
        self.hosts * self.workers_per_host
    }

    /// How many hosts so many workers take: full ones first.
    pub fn hosts_of(&self, workers: usize) -> usize {
        workers.div_ceil(self.workers_per_host)
    }

    /// Makes it one of so many hosts with workers, all like those that it has, and of hosts that only serve in proportion.
    pub fn set_hosts(&mut self, hosts: usize) {
        self.server_hosts = self.server_hosts.saturating_mul(hosts).div_ceil(self.hosts.max(1));
        self.hosts = hosts;
    }

    /// What the links of the whole cluster cost, for the cost model of collectives.
    pub fn link_costs(&self) -> LinkCosts {
        self.link_costs_among(self.hosts)
    }

    /// The same while only so many of the hosts communicate.
    pub fn link_costs_among(&self, hosts: usize) -> LinkCosts {
        let gamma = self.combine_s_per_byte.value;
        let across = self.across.cost(gamma);
        let beta = across.beta * (1.0 + self.across.contention.value * crowding(hosts));
        LinkCosts {
            within: self.within.cost(gamma),
            across: LinkCost { beta, ..across },
            contention: self.across.incast_s_per_byte.value,
            contention_within: self.within.incast_s_per_byte.value,
            fetched: self.within.fetched,
        }
    }

    /// What the runtime takes them to cost when it chooses how an operation is done: what ranks have agreed on, if that is known.
    pub fn counted_costs_among(&self, hosts: usize) -> LinkCosts {
        if let Some(agreed) = self.agreed {
            return agreed;
        }
        let mut costs = self.link_costs_among(hosts);
        for (cost, link) in [(&mut costs.within, &self.within), (&mut costs.across, &self.across)] {
            cost.overhead = cost.overhead.max(link.counted_overhead_s).min(cost.alpha);
        }
        costs
    }

    /// Its links as topologies and emulations have them.
    pub fn network(&self) -> NetworkModel {
        NetworkModel { within: self.within.class(), across: self.across.class() }
    }

    /// Workers that really compute, with so many threads each and on no more cores: within a host the same cores move the bytes and
    /// add them up, so what one of them communicates it does not compute, and the other way round. If both are under way each gets
    /// its share of the time. (Of several cores one communicates.) The interval goes to where others do it, that nobody knows of. For
    /// where nobody has measured it. The same over every protocol.
    pub fn share_cores(&mut self, threads: usize) {
        let share = 1.0 / threads.max(1) as f64;
        let lost = Constant::between(share, 0.0, share);
        let communication = if self.hosts == 1 { lost } else { self.interference.communication };
        self.set_interference(InterferenceConstants { computation: lost, communication });
    }

    /// What computation and communication cost each other, the same over every protocol.
    pub fn set_interference(&mut self, interference: InterferenceConstants) {
        self.interference = interference;
        self.protocols.iter_mut().for_each(|(_, own)| own.interference = None);
        self.protocols.tidy();
    }

    /// Seconds that an iteration of so many hosts loses to streams that come late.
    pub fn jitter_s(&self, hosts: usize) -> f64 {
        self.across.jitter_s.value * crowding(hosts)
    }

    /// Seconds in front of each all-to-all operation of so many workers.
    pub fn start_s(&self, workers: usize) -> f64 {
        let doublings = (workers as f64 / 4.0).log2().max(0.0);
        self.operation.start_s.value + self.operation.start_per_doubling_s.value * doublings
    }

    /// Seconds that an iteration of a model computes more than that of a worker alone.
    pub fn overhead_s(&self, model: &str) -> f64 {
        let of = &self.computation.overhead_s;
        of.get(model).or_else(|| of.get("*")).map_or(0.0, |overhead| overhead.value)
    }
}

/// Bytes up to which an operation that overtakes others is a small one, and from which on it is a large one.
pub const OVERTAKING_BYTES: [u64; 2] = [4 << 10, 64 << 10];

/// hosts² − 4, and 0 up to two hosts: how much more hosts are in each other's way than two.
fn crowding(hosts: usize) -> f64 {
    (hosts as f64 * hosts as f64 - 4.0).max(0.0)
}

impl OperationConstants {
    /// Seconds for which each round of an operation of so many bytes waits if it overtakes others.
    pub fn overtaking_round_s(&self, bytes: u64) -> f64 {
        let (large, small) = (self.overtaking_s, self.overtaking_small_s.unwrap_or(self.overtaking_s));
        let [from, to] = OVERTAKING_BYTES.map(|bytes| (bytes as f64).ln());
        let share = ((bytes.max(1) as f64).ln() - from) / (to - from);
        small.value + share.clamp(0.0, 1.0) * (large.value - small.value)
    }
}

impl LinkConstants {
    /// The values, as a cost model has them, with `gamma` seconds per byte reduced.
    pub fn cost(&self, gamma: f64) -> LinkCost {
        self.class().cost(gamma)
    }

    fn class(&self) -> LinkClass {
        LinkClass {
            alpha_s: self.alpha_s.value,
            overhead_s: self.overhead_s.value,
            beta_s_per_byte: self.beta_s_per_byte.value,
        }
    }
}

impl From<LinkClass> for LinkConstants {
    fn from(class: LinkClass) -> LinkConstants {
        LinkConstants {
            alpha_s: class.alpha_s.into(),
            overhead_s: class.overhead_s.into(),
            beta_s_per_byte: class.beta_s_per_byte.into(),
            ..LinkConstants::default()
        }
    }
}
