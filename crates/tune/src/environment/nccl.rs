//! NCCL's own cost model as a place where tuners learn: what its plug-ins may choose, and what its tables say of that.

mod costs;

use std::collections::BTreeMap;

use paceline_plan::CollectiveKind;

use super::model::{Call, CostModel, counted, passes};
use crate::action::{Action, Arm, Family, Situation, WireProtocol};
use crate::nccl::{self, Algorithm, Communicator, Function, NcclError, Path, Protocol, Tables, Version};
use crate::state::{Context, State, TopologyClass, Transport};
use costs::Believed;

pub use costs::{Costs, CostsError};

/// How often NCCL's own number of channels is halved, and its chunks are: more is hardly ever better, and would only be tried.
const HALVED: u8 = 2;

/// GB/s up to which a network is taken for one of each kind; beyond, for one whose adapters do the work.
const NETWORKS: [(f32, Transport); 3] =
    [(0.625, Transport::Tcp1g), (1.5, Transport::Tcp10g), (5.0, Transport::Tcp100g)];

/// What is believed of NCCL's calls on a cluster.
///
/// Its tables know neither fewer channels than NCCL's own nor smaller chunks. Here, what is not latency takes so many times as long
/// as there are fewer channels, and a chunk changes nothing: assumptions for a simulation, which says in how far a tuner works.
#[derive(Clone, Debug)]
pub struct NcclModel {
    version: Version,
    whole: Communicator,
    handed: BTreeMap<Context, Costs>,
}

impl NcclModel {
    /// Of a release, and of the communicator of all ranks. Calls among fewer of them have the same links and channels.
    ///
    /// # Errors
    /// There is no such communicator.
    pub fn new(version: Version, communicator: Communicator) -> Result<NcclModel, NcclError> {
        communicator.check()?;
        Ok(NcclModel { version, whole: communicator, handed: BTreeMap::new() })
    }

    /// The release.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The communicator of all ranks.
    pub fn communicator(&self) -> &Communicator {
        &self.whole
    }

    /// Believes a table of costs that NCCL has handed over for a call of a context, instead of its formulas: it knows the links as NCCL
    /// has found them.
    pub fn hand_over(&mut self, context: Context, costs: Costs) {
        self.handed.insert(context, costs);
    }

    /// Algorithm and protocol of an action, as NCCL knows them. None if it does not.
    pub fn way(action: &Action) -> Option<(Algorithm, Protocol)> {
        let protocol = match action.family.protocol {
            WireProtocol::LowLatency => Protocol::Ll,
            WireProtocol::Middle => Protocol::Ll128,
            WireProtocol::Simple => Protocol::Simple,
        };
        Some((Algorithm::of_number(action.family.algorithm.into())?, protocol))
    }

    /// What NCCL calls a collective, if its tuners are asked about it.
    pub fn function(collective: CollectiveKind) -> Option<Function> {
        match collective {
            CollectiveKind::AllReduce => Some(Function::AllReduce),
            CollectiveKind::AllGather => Some(Function::AllGather),
            CollectiveKind::ReduceScatter => Some(Function::ReduceScatter),
            CollectiveKind::Broadcast => Some(Function::Broadcast),
            CollectiveKind::Reduce => Some(Function::Reduce),
            _ => None,
        }
    }

    /// The collective that NCCL calls so.
    pub fn collective(function: Function) -> CollectiveKind {
        match function {
            Function::AllReduce => CollectiveKind::AllReduce,
            Function::AllGather => CollectiveKind::AllGather,
            Function::ReduceScatter => CollectiveKind::ReduceScatter,
            Function::Broadcast => CollectiveKind::Broadcast,
            Function::Reduce => CollectiveKind::Reduce,
        }
    }

    /// What NCCL itself chooses for a typical call of a context.
    pub fn own_choice(&self, context: &Context) -> Option<nccl::Choice> {
        let tables = self.tables(context.ranks.into(), context.hosts.into())?;
        let believed = Believed { tables: &tables, costs: self.handed.get(context) };
        believed.choose(NcclModel::function(context.collective)?, context.typical_bytes())
    }

    /// How many channels NCCL gives such a call if it is made the way of an action.
    pub fn own_channels(&self, context: &Context, action: &Action) -> Option<u32> {
        let (algorithm, protocol) = NcclModel::way(action)?;
        let tables = self.tables(context.ranks.into(), context.hosts.into())?;
        Some(tables.channels_and_threads(algorithm, protocol, context.typical_bytes()).0)
    }

    fn tables(&self, ranks: u32, hosts: u32) -> Option<Tables> {
        let communicator = Communicator { ranks, hosts, ..self.whole.clone() };
        Tables::new(self.version, &communicator).ok()
    }

    /// All that a plug-in of this release may choose for a call, and what NCCL chooses by itself.
    fn arms(&self, believed: &Believed<'_>, function: Function, bytes: u64, default: &nccl::Choice) -> Vec<Arm> {
        let tables = believed.tables;
        let ways =
            tables.algorithms().iter().flat_map(|&way| Protocol::ALL.iter().map(move |&protocol| (way, protocol)));
        let mut arms = Vec::new();
        for (algorithm, protocol) in ways {
            // A way that no tuner may name is there as NCCL's own choice, as it is, or not at all.
            let halved_max = match self.may_be_named(function, algorithm, protocol) {
                true => HALVED,
                false if (algorithm, protocol) == (default.algorithm, default.protocol) => 0,
                false => continue,
            };
            let Some(own_us) = believed.time_us(function, algorithm, protocol, bytes) else { continue };
            let latency_us = believed.latency_us(function, algorithm, protocol, bytes, own_us);
            let own = tables.channels_and_threads(algorithm, protocol, bytes).0;
            let family = Family { algorithm: algorithm.number() as u8, protocol: wire_protocol(protocol) };
            // Halves of halves, as long as they are whole.
            for times in (0..=halved_max).map(|halved| 1 << halved).take_while(|times| own.is_multiple_of(*times)) {
                let seconds = 1e-6 * (latency_us + (own_us - latency_us) * f64::from(times));
                let cuts = if self.version.lets_tuners_set_chunks() { 0..=HALVED } else { 0..=0 };
                arms.extend(cuts.map(|chunk_log2| Arm {
                    action: Action { family, channels: (own / times) as u8, threads: 0, chunk_log2 },
                    modelled_s: seconds.max(1e-9),
                }));
            }
        }
        arms
    }

    fn may_be_named(&self, function: Function, algorithm: Algorithm, protocol: Protocol) -> bool {
        !self.version.takes_tuners_unchecked() || Version::is_safe_unchecked(function, algorithm, protocol, false)
    }
}

fn wire_protocol(protocol: Protocol) -> WireProtocol {
    match protocol {
        Protocol::Ll => WireProtocol::LowLatency,
        Protocol::Ll128 => WireProtocol::Middle,
        Protocol::Simple => WireProtocol::Simple,
    }
}

impl CostModel for NcclModel {
    fn name(&self) -> String {
        let Communicator { ranks, hosts, .. } = self.whole;
        format!("NCCL {} among {ranks} ranks on {hosts} hosts", self.version)
    }

    fn state(&self, call: &Call) -> State {
        let hosts = call.hosts.clamp(1, self.whole.hosts);
        let ring = self.whole.graph(Algorithm::Ring);
        let has_nvlink = ring.intra <= Path::NvLinkThroughGpu;
        let rate = ring.channels as f32 * ring.inter_gb_s;
        let network = NETWORKS.iter().find(|(most, _)| rate < *most).map_or(Transport::Rdma, |(_, network)| *network);
        let within = if has_nvlink { Transport::Nvlink } else { Transport::SharedMemory };
        // NCCL has no servers.
        State { is_ps_deployment: false, ..call.on(hosts, has_nvlink, within, (network, TopologyClass::Flat)) }
    }

    fn situation(&self, state: &State) -> Option<Situation> {
        let function = NcclModel::function(state.collective)?;
        let tables = self.tables(state.ranks, state.hosts)?;
        let believed = Believed { tables: &tables, costs: self.handed.get(&state.context()) };
        let own = believed.choose(function, state.bytes)?;
        let arms = self.arms(&believed, function, state.bytes, &own);
        let is_own = |arm: &Arm| {
            let Action { channels, chunk_log2, .. } = arm.action;
            NcclModel::way(&arm.action) == Some((own.algorithm, own.protocol))
                && u32::from(channels) == own.channels
                && chunk_log2 == 0
        };
        let default = arms.iter().position(is_own)?;
        Situation::new(*state, arms, default)
    }

    fn family_name(&self, _: &State, action: &Action) -> String {
        NcclModel::way(action).map_or("program".to_owned(), |(algorithm, protocol)| format!("{algorithm} {protocol}"))
    }

    fn bandwidth_s(&self, state: &State) -> f64 {
        let ring = self.whole.graph(Algorithm::Ring);
        let channel_gb_s = if state.hosts > 1 { ring.inter_gb_s } else { ring.intra_gb_s };
        let rate = 1e9 * f64::from(ring.channels as f32 * channel_gb_s);
        passes(state) * state.bytes as f64 / rate
    }

    /// All channels or half of them, chunks whole or halved.
    fn usual_knobs(&self) -> [f64; 3] {
        [f64::from(self.whole.channels).log2() - 0.5, 0.0, 0.5]
    }

    fn sets_threads(&self) -> bool {
        false
    }

    fn channels_in_words(&self, channels: u8) -> String {
        counted(channels.into(), "channel")
    }

    fn chunk_in_words(&self, chunk_log2: u8) -> String {
        format!("chunks cut in {}", 1u32 << chunk_log2.min(16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Disturbances, Misfit, SimulatedCluster, Workload};
    use crate::nccl::Graph;

    /// Four hosts with eight H100 each.
    fn model(version: &str, collnet: bool) -> NcclModel {
        let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
        let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
        let whole = Communicator { ranks: 32, hosts: 4, compute_capability: 90, ..Communicator::of_graph(graph) };
        let heads = if collnet { 8 } else { 0 };
        let whole = Communicator { collnet, collnet_heads: heads, nvls: true, nvswitch: true, ..whole };
        NcclModel::new(version.parse().expect("a version"), whole).expect("a communicator")
    }

    /// Of all-reduces, as log2 of their bytes.
    const SIZES: [u32; 5] = [10, 16, 20, 24, 30];

    fn situation(model: &NcclModel, bytes: u64) -> Situation {
        let call = Call { bytes, ..Workload::data_parallel(4, 32).calls[0] };
        model.situation(&model.state(&call)).expect("choices")
    }

    #[test]
    fn the_default_is_what_nccl_chooses_and_takes_what_its_tables_say() {
        for (version, size) in ["2.19.4", "2.21.5", "2.30.7"].into_iter().flat_map(|it| SIZES.map(|size| (it, size))) {
            let (model, at) = (model(version, false), format!("{version}, 2^{size}"));
            let tables = Tables::new(model.version(), model.communicator()).expect("a communicator");
            let situation = situation(&model, 1 << size);
            let own = tables.choose(Function::AllReduce, 1 << size, 1).expect("a choice");
            let default = situation.arms[situation.default];
            assert_eq!(NcclModel::way(&default.action), Some((own.algorithm, own.protocol)), "{at}");
            assert_eq!(u32::from(default.action.channels), own.channels, "{at}");
            assert!((default.modelled_s - 1e-6 * f64::from(own.time_us)).abs() < 1e-12, "{at}");
            assert!(situation.arms.iter().all(|arm| arm.modelled_s >= default.modelled_s - 1e-12), "{at}");
        }
    }

    /// What the plug-in would refuse to say is not tried, or trials would compare NCCL's own choice with itself.
    #[test]
    fn where_nccl_takes_tuners_unchecked_only_what_is_everywhere_is_tried() {
        let is_everywhere = |arm: &Arm| {
            let (algorithm, protocol) = NcclModel::way(&arm.action).expect("a way of NCCL's");
            matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && protocol != Protocol::Ll128
        };
        let mut others = 0;
        for (version, size) in ["2.19.4", "2.21.5"].into_iter().flat_map(|it| SIZES.map(|size| (it, size))) {
            let situation = situation(&model(version, true), 1 << size);
            let tried = situation.arms.iter().enumerate().filter(|(number, _)| *number != situation.default);
            assert!(tried.clone().count() > 1, "{version}, 2^{size}");
            for (_, arm) in tried {
                assert!(is_everywhere(arm), "{version}, 2^{size}: {:?}", arm.action);
            }
            others += usize::from(!is_everywhere(&situation.arms[situation.default]));
        }
        assert!(others > 0, "NCCL itself takes others, too");
        let later = situation(&model("2.22.3", true), 1 << 26);
        assert!(!later.arms.iter().all(is_everywhere), "later ones mark what NCCL offers");
    }

    #[test]
    fn only_what_a_release_can_do_is_tried() {
        let chunks =
            |version: &str| situation(&model(version, false), 1 << 26).arms.iter().any(|arm| arm.action.chunk_log2 > 0);
        assert!(chunks("2.30.7") && !chunks("2.29.7"), "chunks are from interface 6 on");
        let has = |collnet: bool, algorithm: Algorithm| {
            let situation = situation(&model("2.30.7", collnet), 1 << 26);
            situation.families.iter().any(|family| usize::from(family.algorithm) == algorithm.number())
        };
        assert!(has(true, Algorithm::CollNetDirect) && !has(false, Algorithm::CollNetDirect));
        let of_all = situation(&model("2.30.7", true), 1 << 26);
        assert!(of_all.arms.iter().all(|arm| arm.action.threads == 0), "no tuner sets threads");
        assert!(of_all.arms.iter().all(|arm| (1..=16).contains(&arm.action.channels)), "never more than NCCL's own");
        // Every knob has a neighbour, so that a search gets everywhere.
        for arm in &of_all.arms {
            assert!(of_all.arms.iter().any(|other| arm.action.is_beside(&other.action)), "{:?}", arm.action);
        }
    }

    #[test]
    fn functions_are_collectives() {
        for &function in Function::ALL {
            assert_eq!(NcclModel::function(NcclModel::collective(function)), Some(function));
        }
    }

    #[test]
    fn nothing_is_decided_about_calls_that_nccl_does_not_ask_about() {
        let model = model("2.30.7", false);
        let call = Workload::data_parallel(4, 32).calls[0];
        for call in [Call { collective: CollectiveKind::SendReceive, ..call }, Call { ranks: 1, hosts: 1, ..call }] {
            assert!(model.situation(&model.state(&call)).is_none(), "{call:?}");
        }
        let whole = Communicator { ranks: 3, hosts: 2, ..model.communicator().clone() };
        assert!(NcclModel::new("2.30".parse().expect("a version"), whole).is_err());
    }

    /// In the mean over many draws, neither all channels nor a quarter of them is always right.
    #[test]
    fn truths_differ_in_what_is_best() {
        let mut best = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let model = Box::new(model("2.30.7", false));
            let mut cluster = SimulatedCluster::new(model, Misfit::USUAL, Disturbances::default(), seed);
            let call = Call { bytes: 1 << 16, ..Workload::data_parallel(4, 32).calls[0] };
            let state = cluster.state(&call, 0);
            let situation = cluster.situation(&state).expect("choices").clone();
            best.insert(situation.arms[cluster.oracle(&situation, 0)].action);
        }
        let chunks: std::collections::BTreeSet<u8> = best.iter().map(|action| action.chunk_log2).collect();
        assert!(best.len() > 6 && chunks.len() > 1, "{best:?}");
    }
}
