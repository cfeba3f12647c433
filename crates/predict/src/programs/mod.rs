//! A collective's program, executed in virtual time.
//!
//! The machine: the messages from one rank to another leave one after the other, the earliest tile and step first, as
//! on a connection. The first messages of all connections are flows ([`crate::flows`]) and share the links of the
//! [`Network`] fairly. When its sender is ready, a message is on its way to the receiver for the latency of its route; then,
//! as soon as that is ready for it, it keeps its route busy for its bytes and its overhead; and then it has been taken in,
//! and the sender may overwrite it. So who takes in one message after the other waits for the latency of the first. Over links that
//! are emulated ([`Sending::Emulated`]) there are no flows but turns: ports serve one message after the other.
//! Folding, combining, copying and mapping b bytes takes a rank gamma·b seconds, one piece of work after the other; only a
//! copy that vanishes in place is free. A program is stated for one tile and repeated tile by tile, with as many of them
//! begun as the window allows, as in the engine.
//!
//! Parts of a tile are equally long here (the engine's differ by an element), so ranks that do the same do it at the same
//! time.
//!
//! # Closed formulas
//!
//! On a flat network both depths give one answer, as far as the formulas go (`tests/closed_forms.rs`): ring, direct, and
//! halving-doubling and recursive-doubling of powers of two take what they say, hierarchical all-reduces on regular hosts
//! within 2 % (4 % in few tiles). Where a rank sends several messages at once, the formulas and
//! [`paceline_collective::cost::walk`] have it serve one at a time. One tile of a tree takes just that with
//! [`Sending::InTurn`]; shared fairly, the child whose subtree is the deeper one gets its half as late as the other, and it
//! takes up to a quarter longer. Tiles that overlap take up to a fifth longer than the formula of a tree, as they do in a
//! walk. So predictions take from here what such operations take, as long as programs are short.
//!
//! Where receivers fetch within their host ([`crate::topology::Speeds::fetched`]), both depths have many fetch from one as fast as
//! one does; the overheads of such a sender, which the formulas count one after the other, are not counted here, and
//! [`Sending::InTurn`] would have it lend to one at a time. Not modelled is what a cluster's links lose when many use them:
//! incast ([`paceline_plan::LinkCosts::contention`]), for streams that meet share a port and lose nothing by that, and
//! `across.contention` ([`paceline_plan::Cluster::link_costs_among`]), unless the caller has put it into beta, as [`seconds_on`]
//! does.

mod ports;
mod prepared;
mod state;
mod turns;
mod under_way;

use paceline_collective::cost::Load;
use paceline_collective::verify::Refusal;
use paceline_plan::{Cluster, Hosts, Shape};

pub use prepared::PreparedProgram;
pub(crate) use state::{Operation, Turn};
pub(crate) use under_way::{News, UnderWay};

use crate::PredictError;
use crate::communication::all_to_all_costs;
use crate::job::shape_of;
use crate::topology::{LinkId, Network, PathChoice, Speeds};

/// On what a program runs.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// The links.
    pub network: &'a Network,
    /// Which of several routes messages take.
    pub choice: PathChoice,
    /// How many messages a rank sends at once.
    pub sending: Sending,
    /// Seconds per byte that a rank folds, combines, copies or maps.
    pub gamma: f64,
    /// What a rank takes in meanwhile.
    pub combining: Combining,
}

/// How many messages a rank sends at once, and when they leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sending {
    /// One to each receiver that is ready: they share the rank's port, as TCP connections do.
    #[default]
    AtOnce,
    /// One, and it takes in one, too: of those that can, the earliest tile and step. So the closed formulas have one tile.
    /// (Where tiles overlap, ports wait for each other more than formulas and walks suppose.)
    InTurn,
    /// As over links that are emulated (`docs/emulation.md`): one to each receiver, ready or not, as long as it has not passed two
    /// ports. It takes its turn at its sender's, first come, first served, and when it begins to leave at its receiver's; latency comes
    /// last, and keeps neither busy. Between hosts the ports are those of the hosts, whose ranks share them, and within a host those of
    /// the ranks. Nothing is in the way between ports, nothing stops a message that has left, and whatever ranks combine they do beside.
    /// A message of several blocks takes one turn here, and one for each block there.
    Emulated,
}

/// What a rank takes in while it folds, combines, copies or maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combining {
    /// Whatever comes: a processor does it that has nothing to do with the network.
    #[default]
    Beside,
    /// As much less as if the work came through the rank's port, too ([`Network::port_in`]): one processor does both. So the
    /// closed formulas have it. (Messages that do not take that port, as in a torus or BCube with one rank on each host,
    /// are not slowed.)
    InsteadOfReceiving,
}

/// How a simulated collective went.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// From the start to the last end.
    pub seconds: f64,
    /// When each rank had done its last step.
    pub rank_seconds: Vec<f64>,
    /// Messages, of all tiles.
    pub messages: usize,
    /// The bytes of messages that each link of the network carried, without overhead.
    pub link_bytes: Vec<f64>,
}

impl<'a> Machine<'a> {
    /// One on which combining takes no time.
    pub fn new(network: &'a Network) -> Machine<'a> {
        Machine {
            network,
            choice: PathChoice::default(),
            sending: Sending::default(),
            gamma: 0.0,
            combining: Combining::default(),
        }
    }
}

impl Outcome {
    /// The link that was busiest, for its capacity, and the share of the time for which it was: the bottleneck, if that is
    /// near 1. None if nothing was sent.
    pub fn busiest_link(&self, network: &Network) -> Option<(LinkId, f64)> {
        let busy = |bytes: f64, link: usize| bytes / network.links()[link].capacity / self.seconds;
        let links = self.link_bytes.iter().enumerate().map(|(link, &bytes)| (link as LinkId, busy(bytes, link)));
        // Of several, the first.
        links.filter(|(_, busy)| *busy > 0.0).reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

/// Executes a program on a machine. All ranks begin at once.
///
/// The cost is messages × log(messages under way), and what the flows cost where they share links
/// ([`crate::flows::FlowNetwork`]); the memory about (30 + 4·window) bytes per step.
///
/// # Errors
/// If waits form a cycle, so that the program would never end.
///
/// # Panics
/// If program and network have different numbers of ranks, the window or the tiles are empty, there are 2³² tiles or more, or
/// gamma is negative or not finite.
pub fn simulate(program: &PreparedProgram, load: &Load, machine: &Machine<'_>) -> Result<Outcome, Refusal> {
    under_way::run(Operation { program, load: *load }, machine)
}

/// Seconds that an operation takes on a cluster that is done by this program, a rank on each worker, hosts filled one after
/// the other: what the cluster's operations take to start, and the program on its topology.
///
/// # Errors
/// The cluster makes no sense, its topology would have empty places, or waits form a cycle.
///
/// # Panics
/// As [`simulate`], but for the ranks.
pub fn seconds_on(cluster: &Cluster, program: &PreparedProgram, load: &Load) -> Result<f64, PredictError> {
    cluster.check()?;
    let ranks = program.world();
    let shape = if cluster.hosts_of(ranks) > 1 { shape_of(cluster, ranks)? } else { Shape::Flat };
    let by_rank = (0..ranks).map(|rank| rank / cluster.workers_per_host).collect();
    let Some(hosts) = Hosts::of_ranks(by_rank) else { return Err(PredictError::Nobody) };
    // As predictions of iterations have the links.
    let speeds = Speeds::of_costs(&all_to_all_costs(cluster, hosts.count()), cluster.across.hop_s.value);
    let network = Network::new(shape, &hosts, &speeds)?;
    let gamma = cluster.combine_s_per_byte.value;
    let machine = Machine { gamma, combining: Combining::InsteadOfReceiving, ..Machine::new(&network) };
    let start_s = if ranks > 1 { cluster.start_s(ranks) } else { 0.0 };
    Ok(start_s + simulate(program, load, &machine)?.seconds)
}

#[cfg(test)]
mod tests;
