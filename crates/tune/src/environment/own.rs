//! The cost model of our own communicator: the closed formulas of its algorithms, with what the per-call options change.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use paceline_collective::{Topology, registry, select};
use paceline_plan::{Cluster, CollectiveKind, LinkClass, LinkCost, LinkCosts, NetworkModel, Shape};

use super::links::Links;
use super::model::{Call, CostModel, passes};
use super::programs::Admitted;
use crate::action::{Action, Arm, Family, Situation, WireProtocol};
use crate::state::{State, TopologyClass, Transport};

/// Lanes that are tried.
const LANES: [u8; 4] = [1, 2, 4, 8];

/// Reducing threads that are tried.
const THREADS: [u8; 2] = [1, 2];

/// Lanes with which a link has its full rate: one stream of TCP does not fill a fast link.
const LANES_FULL: f64 = 4.0;

/// Seconds that each lane and each thread beyond the first cost a call.
const LANE_S: f64 = 2e-6;
const THREAD_S: f64 = 3e-6;

/// What is believed of our communicator on a cluster.
///
/// Inline, eager and rendezvous trade what a message costs to begin against what a byte costs: alpha times ½, ¾ and 1, and
/// beta times 2, 1¼ and 1 (one copy more, half a copy more, none). A lane of n carries the n-th part up to four of them,
/// where the link is fast (16 Gbit/s); a slow link is full with one. Threads share gamma. These are assumptions for a
/// simulation; on real links, times are measured.
#[derive(Clone, Debug)]
pub struct OwnModel {
    cluster: Cluster,
    costs: LinkCosts,
    /// How the hosts are wired.
    shape: Shape,
    has_nvlink: bool,
    /// What carries calls on one host, and those among several.
    within: Transport,
    across: Transport,
    /// The links that were measured. None in a simulation, where every knob does something.
    links: Option<Links>,
    /// Algorithms besides those of the registry.
    programs: Arc<[Admitted]>,
}

/// Seconds per byte of a link that one stream does not fill: from 16 Gbit/s on.
const FAST: f64 = 8.0 / 16e9;

impl OwnModel {
    /// log2 of the chunks that are tried: 64 KiB to 2 MiB.
    pub const CHUNKS_LOG2: RangeInclusive<u8> = 16..=21;

    /// Lanes that the communicator takes by itself, where the model has them.
    pub const LANES_BY_ITSELF: u8 = LANES[LANES.len() - 1];

    /// Bytes of a call from which on the communicator takes rendezvous by itself, and eager below.
    pub const RENDEZVOUS_FROM: u64 = 1 << 16;

    /// Seconds per byte that hardly any host gets out of TCP: from 40 Gbit/s on, the adapter does it.
    pub const ADAPTERS: f64 = 8.0 / 40e9;

    /// Of a cluster. Whether it has NVLink and RDMA, its constants tell: links within hosts from 20 GB/s on are taken for
    /// NVLink; links between hosts from 5 GB/s on, for RDMA.
    pub fn of(cluster: &Cluster) -> OwnModel {
        let costs = cluster.link_costs();
        // Whoever reads a cluster has refused what is none.
        let shape = cluster.topology.parse().unwrap_or(Shape::Flat);
        let has_nvlink = costs.within.beta > 0.0 && costs.within.beta <= 1.0 / 20e9;
        let across = match 8.0 / costs.across.beta.max(1e-15) {
            _ if costs.across.beta <= OwnModel::ADAPTERS => Transport::Rdma,
            ..5e9 => Transport::Tcp1g,
            ..12e9 => Transport::Tcp10g,
            _ => Transport::Tcp100g,
        };
        OwnModel {
            cluster: cluster.clone(),
            costs,
            shape,
            has_nvlink,
            within: if has_nvlink { Transport::Nvlink } else { Transport::SharedMemory },
            across,
            links: None,
            programs: Arc::default(),
        }
    }

    /// Of links that were measured among ranks on these hosts, wired as they were told; `transport` carries their calls. Processors have
    /// no NVLink, however fast their memory is. Of knobs with which these links do the same, there is one arm.
    pub fn measured(costs: &LinkCosts, ranks: &Topology, transport: Transport, links: Links) -> OwnModel {
        let class =
            |link: &LinkCost| LinkClass { alpha_s: link.alpha, overhead_s: link.overhead, beta_s_per_byte: link.beta };
        let network = NetworkModel { within: class(&costs.within), across: class(&costs.across) };
        let flat = Cluster::of_network(network, ranks.hosts(), ranks.ranks_per_host_max());
        let cluster = Cluster { topology: ranks.shape().to_string(), ..flat };
        let (within, across) = (transport, transport);
        OwnModel { costs: *costs, within, across, has_nvlink: false, links: Some(links), ..OwnModel::of(&cluster) }
    }

    /// With programs as further algorithms, whose numbers are [`Family::PROGRAMS`] and the next ones; the first [`Admitted::MAX`] of
    /// them.
    pub fn with_programs(self, programs: Vec<Admitted>) -> OwnModel {
        OwnModel { programs: programs.into_iter().take(Admitted::MAX).collect(), ..self }
    }

    /// The algorithm of the library that an action's number means for a collective. None if it means none.
    pub fn algorithm(collective: CollectiveKind, number: u8) -> Option<&'static str> {
        let algorithm = registry::registry().get(usize::from(number))?;
        (algorithm.kind() == collective).then(|| algorithm.name())
    }

    /// The ranks of a call. On all hosts of a torus or a BCube, they stand in it.
    fn topology_of(&self, state: &State) -> Topology {
        let (ranks, hosts) = (state.ranks.max(1) as usize, state.hosts.max(1) as usize);
        Topology::filled(ranks, ranks.div_ceil(hosts)).on(self.shape)
    }

    /// The links of the cluster, as these knobs make them.
    fn costs_with(&self, action: &Action) -> LinkCosts {
        let (begin, byte) = trade(action.family.protocol);
        // Lanes are a matter of TCP, threads one of memory; all there is was measured with all the lanes that there are.
        let class = |link: &LinkCost, has_lanes: bool, has_threads: bool| {
            let lanes_full = LANES_FULL.min(f64::from(self.lanes_max()));
            let full = if has_lanes && link.beta > 0.0 && link.beta < FAST { lanes_full } else { 1.0 };
            let threads = if has_threads { f64::from(action.threads.max(1)) } else { 1.0 };
            let filled = (f64::from(action.channels.max(1)) / full).min(1.0).powf(0.5);
            LinkCost {
                alpha: link.alpha * begin,
                overhead: link.overhead * begin,
                beta: link.beta * byte / filled,
                gamma: link.gamma / threads.powf(0.8),
            }
        };
        let is_simulated = self.links.is_none();
        let has_tcp = self.links.is_none_or(Links::has_tcp);
        let has_memory = self.links.is_none_or(Links::has_memory);
        LinkCosts {
            within: class(&self.costs.within, is_simulated || !has_memory, has_memory),
            across: class(&self.costs.across, has_tcp, is_simulated || !has_tcp),
            ..self.costs
        }
    }

    fn arms_of(
        &self,
        algorithm: &dyn paceline_collective::Algorithm,
        state: &State,
        topology: &Topology,
        arms: &mut Vec<Arm>,
    ) {
        let Some(number) = registry::index_of(algorithm) else { return };
        let bytes = block_bytes(state);
        self.arms_with(number, state, arms, |action, costs| {
            Some(algorithm.seconds(topology, bytes, 1 << action.chunk_log2, costs))
        });
    }

    /// What programs cost was found out by walking them on the plain links; knobs change parts of it.
    fn arms_of_programs(&self, state: &State, topology: &Topology, arms: &mut Vec<Arm>) {
        let bytes = block_bytes(state);
        let link = |costs: &LinkCosts| if state.hosts > 1 { costs.across } else { costs.within };
        let plain = link(&self.costs);
        let times = |cost: f64, plain: f64| if plain > 0.0 { cost / plain } else { 1.0 };
        for (number, admitted) in (Family::PROGRAMS..=u8::MAX).zip(self.programs.iter()) {
            if !admitted.fits(state) {
                continue;
            }
            let price = |chunk_log2: u8| admitted.price(topology, bytes, 1 << chunk_log2, &self.costs);
            let prices: Vec<_> = chunks_of(bytes).map(price).collect();
            self.arms_with(number, state, arms, |action, costs| {
                let (price, with) =
                    (prices[usize::from(action.chunk_log2 - OwnModel::CHUNKS_LOG2.start())]?, link(costs));
                let begin = trade(action.family.protocol).0;
                Some(price.of(begin, times(with.beta, plain.beta), times(with.gamma, plain.gamma)))
            });
        }
    }

    /// Over how many lanes a frame can be spread: in a simulation, over all that are tried.
    fn lanes_max(&self) -> u32 {
        self.links.map_or(u32::from(OwnModel::LANES_BY_ITSELF), Links::lanes_max)
    }

    /// All knobs of an algorithm that differ on these links, of which `seconds` says what it takes on links with these costs.
    fn arms_with(
        &self,
        number: u8,
        state: &State,
        arms: &mut Vec<Arm>,
        seconds: impl Fn(&Action, &LinkCosts) -> Option<f64>,
    ) {
        let start_s = self.cluster.start_s(state.ranks.max(1) as usize);
        let lanes_s = |channels: u8| LANE_S * f64::from(u32::from(channels).min(self.lanes_max()) - 1);
        let effect = |action: &Action| match self.links {
            Some(links) => links.effect(action),
            None => (action.family, action.channels, action.threads, action.chunk_log2),
        };
        let mut lanes = LANES;
        if self.lanes_max() <= 1 {
            // The one that is left is called as the communicator does by itself: that means the same wherever the action goes.
            lanes.reverse();
        }
        let mut effects = BTreeSet::new();
        for &protocol in WireProtocol::ALL {
            for (channels, threads) in lanes.iter().flat_map(|&lanes| THREADS.map(|threads| (lanes, threads))) {
                let family = Family { algorithm: number, protocol };
                let costs = self.costs_with(&Action { family, channels, threads, chunk_log2: 0 });
                let knobs_s = start_s * trade(protocol).0 + lanes_s(channels) + THREAD_S * f64::from(threads - 1);
                for chunk_log2 in chunks_of(block_bytes(state)) {
                    let action = Action { family, channels, threads, chunk_log2 };
                    if !effects.insert(effect(&action)) {
                        continue;
                    }
                    if let Some(seconds) = seconds(&action, &costs) {
                        arms.push(Arm { action, modelled_s: (seconds + knobs_s).max(1e-9) });
                    }
                }
            }
        }
    }
}

/// Chunks that are tried of a block: beyond it they are one tile, all the same.
fn chunks_of(bytes: usize) -> RangeInclusive<u8> {
    let longest = (bytes.max(1).next_power_of_two().ilog2() as u8)
        .clamp(*OwnModel::CHUNKS_LOG2.start(), *OwnModel::CHUNKS_LOG2.end());
    *OwnModel::CHUNKS_LOG2.start()..=longest
}

/// By what a protocol multiplies alpha, and beta.
fn trade(protocol: WireProtocol) -> (f64, f64) {
    match protocol {
        WireProtocol::LowLatency => (0.5, 2.0),
        WireProtocol::Middle => (0.75, 1.25),
        WireProtocol::Simple => (1.0, 1.0),
    }
}

/// Bytes of a block: what algorithms count with.
fn block_bytes(state: &State) -> usize {
    let bytes = match state.collective {
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => state.bytes_per_rank(),
        _ => state.bytes,
    };
    bytes as usize
}

impl CostModel for OwnModel {
    fn name(&self) -> String {
        format!("paceline on {}", self.cluster.name)
    }

    fn state(&self, call: &Call) -> State {
        let hosts = call.hosts.min(self.cluster.hosts as u32).max(1);
        call.on(hosts, self.has_nvlink, self.within, (self.across, TopologyClass::of(self.shape)))
    }

    fn situation(&self, state: &State) -> Option<Situation> {
        let topology = self.topology_of(state);
        let serves = |it: &&'static dyn paceline_collective::Algorithm| {
            let has_network = !it.for_network() || it.follows(&topology);
            it.supports(topology.world()) && has_network && (!it.for_hosts() || !topology.is_flat())
        };
        let mut arms = Vec::new();
        for algorithm in registry::of_kind(state.collective).filter(serves) {
            self.arms_of(algorithm, state, &topology, &mut arms);
        }
        self.arms_of_programs(state, &topology, &mut arms);
        // What the communicator does by itself: the cheapest algorithm and tile, all lanes, one thread, and the protocol that
        // suits the size.
        let choice = select::cheapest(state.collective, &topology, block_bytes(state), &self.costs, |_| true)?;
        let chunk_log2 = choice.tile_bytes.ilog2() as u8;
        let is_small = state.bytes < OwnModel::RENDEZVOUS_FROM;
        let protocol = if is_small { WireProtocol::Middle } else { WireProtocol::Simple };
        let family = Family { algorithm: registry::index_of(choice.algorithm)?, protocol };
        let of_it = |arm: &&Arm| arm.action.family == family && arm.action.threads == 1;
        let nearest = arms.iter().filter(of_it).min_by_key(|arm| {
            let lanes = u32::from(arm.action.channels.abs_diff(OwnModel::LANES_BY_ITSELF));
            lanes * 64 + u32::from(arm.action.chunk_log2.abs_diff(chunk_log2))
        });
        let action = nearest?.action;
        let default = arms.iter().position(|arm| arm.action == action)?;
        Situation::new(*state, arms, default)
    }

    fn family_name(&self, _: &State, action: &Action) -> String {
        let number = action.family.algorithm;
        let algorithm = registry::registry().get(usize::from(number)).map(|algorithm| algorithm.name());
        let program = || number.checked_sub(Family::PROGRAMS).and_then(|place| self.programs.get(usize::from(place)));
        let protocol = match action.family.protocol {
            WireProtocol::LowLatency => "inline",
            WireProtocol::Middle => "eager",
            WireProtocol::Simple => "rendezvous",
        };
        let name = algorithm.or_else(|| program().map(|admitted| admitted.program.algorithm.as_str()));
        format!("{} {protocol}", name.unwrap_or("program"))
    }

    fn rounds(&self, state: &State, action: &Action) -> Option<usize> {
        let algorithm = registry::registry().get(usize::from(action.family.algorithm))?;
        Some(algorithm.rounds(&self.topology_of(state)))
    }

    fn bandwidth_s(&self, state: &State) -> f64 {
        let link = if state.hosts > 1 { &self.costs.across } else { &self.costs.within };
        passes(state) * state.bytes as f64 * link.beta
    }
}

#[cfg(test)]
mod tests;
