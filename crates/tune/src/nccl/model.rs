//! The tables: latency and bandwidth of each function, algorithm and protocol.

use super::communicator::{CpuVendor, Path};
use super::{Algorithm, Communicator, Constants, Function, NcclError, Protocol, Version};

/// A row's cell, as NCCL prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entry {
    /// Latency, us.
    pub latency_us: f32,
    /// Algorithm bandwidth (bytes over time), GB/s; 0 where the combination is never chosen.
    pub bandwidth_gb_s: f32,
}

/// What NCCL makes when a communicator starts.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(super) version: Version,
    pub(super) communicator: Communicator,
    /// By function, algorithm, protocol.
    entries: [[[Entry; 3]; 7]; 5],
}

/// The kinds of links whose latencies [`Constants`] have.
const NVLINK: usize = 0;
const PCI: usize = 1;
const NET: usize = 2;

impl Tables {
    /// The tables of a release for a communicator.
    ///
    /// # Errors
    /// There is no such communicator.
    pub fn new(version: Version, communicator: &Communicator) -> Result<Tables, NcclError> {
        Tables::with_constants(version, communicator, &Constants::of(version))
    }

    /// The same with other constants, which tuners of version 5 and later may set in NCCL 2.28 to 2.30.
    ///
    /// # Errors
    /// There is no such communicator.
    pub fn with_constants(
        version: Version,
        communicator: &Communicator,
        constants: &Constants,
    ) -> Result<Tables, NcclError> {
        communicator.check()?;
        let mut entries = [[[Entry::default(); 3]; 7]; 5];
        for (&function, entries) in Function::ALL.iter().zip(&mut entries) {
            for (&algorithm, entries) in Algorithm::ALL.iter().zip(entries) {
                for (&protocol, entry) in Protocol::ALL.iter().zip(entries) {
                    let cell = Cell { version, communicator, constants, function, algorithm, protocol };
                    *entry = cell.entry();
                }
            }
        }
        Ok(Tables { version, communicator: communicator.clone(), entries })
    }

    /// A cell.
    pub fn entry(&self, function: Function, algorithm: Algorithm, protocol: Protocol) -> Entry {
        self.entries[function.number()][algorithm.number()][protocol.number()]
    }

    /// The algorithms of this release, in its order: PAT came with 2.23.
    pub fn algorithms(&self) -> &'static [Algorithm] {
        algorithms(self.version)
    }
}

/// The algorithms of a release.
fn algorithms(version: Version) -> &'static [Algorithm] {
    if version.since(23) { Algorithm::ALL } else { &Algorithm::ALL[..6] }
}

/// What a cell is computed from.
struct Cell<'a> {
    version: Version,
    communicator: &'a Communicator,
    constants: &'a Constants,
    function: Function,
    algorithm: Algorithm,
    protocol: Protocol,
}

impl Cell<'_> {
    fn entry(&self) -> Entry {
        if !self.modelled() {
            return Entry::default();
        }
        let bandwidth_gb_s = if self.enabled() { self.bandwidth() } else { 0.0 };
        Entry { latency_us: self.latency(), bandwidth_gb_s }
    }

    fn gathers(&self) -> bool {
        matches!(self.function, Function::AllGather | Function::ReduceScatter)
    }

    fn is_nvls(&self) -> bool {
        matches!(self.algorithm, Algorithm::Nvls | Algorithm::NvlsTree)
    }

    /// Steps of a ring.
    fn steps(&self) -> u32 {
        let ranks = self.communicator.ranks;
        match self.function {
            Function::AllReduce => 2 * (ranks - 1),
            Function::AllGather | Function::ReduceScatter => ranks - 1,
            Function::Broadcast | Function::Reduce => ranks,
        }
    }

    /// Whether NCCL computes this cell at all; others are printed as zeros.
    fn modelled(&self) -> bool {
        let &Cell { version, algorithm, protocol, .. } = self;
        let simple = protocol == Protocol::Simple;
        let for_function = match self.function {
            Function::Broadcast | Function::Reduce => algorithm == Algorithm::Ring,
            Function::AllGather | Function::ReduceScatter => match algorithm {
                Algorithm::Ring | Algorithm::Nvls => true,
                Algorithm::CollNetDirect => version.since(20),
                Algorithm::Pat => simple && self.pat(),
                _ => false,
            },
            Function::AllReduce => algorithm != Algorithm::Pat,
        };
        // From 2.28 on one channel is not enough for the switches.
        let switches = self.communicator.nvls && self.communicator.graph(algorithm).channels >= 2;
        for_function
            && (!self.is_nvls() || (simple && (switches || !version.since(28))))
            && algorithms(version).contains(&algorithm)
    }

    /// Automatic: one rank to a host.
    fn pat(&self) -> bool {
        let Communicator { ranks, hosts, compute_capability, .. } = *self.communicator;
        ranks == hosts && (compute_capability >= 60 || !self.version.since(26))
    }

    /// Whether the cell may be chosen without the user's word (NCCL_ALGO, NCCL_PROTO).
    fn enabled(&self) -> bool {
        let Communicator { hosts, collnet, nvswitch, nvls, .. } = *self.communicator;
        let algorithm = match self.algorithm {
            Algorithm::Tree | Algorithm::Ring | Algorithm::Pat => true,
            Algorithm::CollNetDirect => collnet && nvswitch,
            Algorithm::CollNetChain => collnet,
            Algorithm::Nvls => nvls && (hosts == 1 || collnet),
            Algorithm::NvlsTree => nvls && hosts > 1,
        };
        algorithm && (self.protocol != Protocol::Ll128 || self.ll128())
    }

    /// LL128 is used where stores of 128 bytes are known to arrive in one piece.
    fn ll128(&self) -> bool {
        let Communicator { compute_capability, same_compute_capability, .. } = *self.communicator;
        let graph = self.communicator.graph(self.algorithm);
        let farthest = if compute_capability >= 90 { Path::Pxn } else { Path::Pxb };
        let gpus = match self.version {
            version if version.since(30) => {
                compute_capability >= 70 && (same_compute_capability || compute_capability >= 90)
            }
            version if version.since(27) => same_compute_capability && compute_capability >= 70,
            version if version.since(25) => {
                same_compute_capability && [70, 80, 90, 100, 120].contains(&compute_capability)
            }
            _ => same_compute_capability && [70, 80, 90].contains(&compute_capability),
        };
        gpus && graph.inter <= farthest && graph.intra <= Path::NvLinkThroughGpu
    }

    /// GB/s. Single precision is where NCCL has it.
    fn bandwidth(&self) -> f32 {
        let &Cell { version, communicator, algorithm, protocol, .. } = self;
        let graph = communicator.graph(algorithm);
        let channel = self.channel_bandwidth();
        let mut bus = self.limited(graph.channels as f32 * channel);
        // A host's only rank is always searched as a tree.
        let is_tree = graph.tree_pattern || communicator.ranks == communicator.hosts;
        if algorithm == Algorithm::Tree && is_tree {
            bus = (f64::from(bus) * 0.85) as f32;
        }
        if algorithm == Algorithm::Pat {
            bus = (f64::from(bus) * if version.since(24) { 0.75 } else { 0.85 }) as f32;
        }
        let collnet = matches!(algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain);
        if collnet && protocol != Protocol::Simple {
            return 0.0;
        }
        if algorithm == Algorithm::CollNetDirect {
            bus = self.collnet_direct(bus, channel);
        }
        if self.needs_heads() && !self.has_heads() {
            return 0.0;
        }
        self.algorithm_bandwidth(bus)
    }

    /// What a channel carries.
    fn channel_bandwidth(&self) -> f32 {
        let &Cell { version, communicator, algorithm, .. } = self;
        let graph = communicator.graph(algorithm);
        let (hosts, per_host) = (communicator.hosts, self.per_host());
        let (intra, inter) = (graph.intra_gb_s, graph.inter_gb_s);
        if self.is_nvls() && version.since(28) {
            let channels = graph.channels as f32;
            let share = self.constants.nvls_efficiency[self.generation()];
            let passes = if self.function == Function::AllReduce { 2.0 } else { (per_host - 1.0) / per_host };
            let intra = intra * share * (channels - 1.0) / channels * passes;
            let tree = algorithm == Algorithm::NvlsTree;
            let inter = inter * if tree && hosts <= 2 { 2.0 } else { 1.0 };
            let limit = if tree { self.of_hosts(&self.constants.nvls_tree_gb_s) as f32 } else { f32::MAX };
            return intra.min(inter).min(limit);
        }
        match algorithm {
            Algorithm::Nvls if version.since(27) && self.gathers() => {
                (intra * (per_host - 1.0) / per_host).min(inter * 0.9)
            }
            Algorithm::Nvls => intra.min(inter),
            Algorithm::NvlsTree => intra.min(if hosts <= 2 { inter } else { inter / 2.0 }),
            Algorithm::CollNetDirect | Algorithm::CollNetChain => intra,
            _ if hosts <= 2 => intra,
            _ => inter,
        }
    }

    /// What the protocol leaves of the bus.
    fn limited(&self, bus: f32) -> f32 {
        let &Cell { version, communicator, constants, algorithm, protocol, .. } = self;
        let channels = f64::from(communicator.graph(algorithm).channels);
        let ll_max = constants.ll_max_gb_s[self.ll_row()][self.hosts_column()];
        let one_host = communicator.hosts == 1;
        let wide = f64::from(bus);
        match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => {
                let adds = matches!(self.function, Function::AllReduce | Function::Reduce);
                let share = match version {
                    version if version.since(21) => 0.5,
                    _ if !one_host || adds => 1.0 / 4.0,
                    _ => 1.0 / 3.0,
                };
                ll_max.min(wide * share) as f32
            }
            (Algorithm::Ring, Protocol::Ll128) => {
                let share = if self.per_host() < 2.0 && !version.since(23) { 0.7 } else { 0.92 };
                (wide * share).min(channels * self.of_hosts(&constants.ring_ll128_gb_s)) as f32
            }
            (Algorithm::Tree, _) => {
                let bus = (wide * 0.92).min(channels * self.of_hosts(&constants.tree_gb_s)) as f32;
                let wide = f64::from(bus);
                match protocol {
                    Protocol::Ll => (wide / 3.8).min(ll_max) as f32,
                    Protocol::Ll128 => {
                        let share = if one_host { 7.0 / 9.0 } else { 120.0 / 128.0 };
                        (wide * share).min(channels * self.of_hosts(&constants.tree_ll128_gb_s)) as f32
                    }
                    Protocol::Simple => bus,
                }
            }
            _ => bus,
        }
    }

    fn collnet_direct(&self, bus: f32, channel: f32) -> f32 {
        let &Cell { version, communicator, .. } = self;
        let graph = communicator.graph(self.algorithm);
        let per_host = self.per_host();
        if self.gathers() && version.since(27) {
            return per_host * graph.intra_gb_s.min(graph.inter_gb_s * 0.9);
        }
        if self.gathers() {
            // Between what was measured with one and with eight ranks on a host.
            let weight = f64::from((per_host - 1.0) / 7.0);
            return (f64::from(per_host * channel) * (weight * 0.85 + (1.0 - weight) * 0.95)) as f32;
        }
        // GPUs that share an interface.
        let share = (f64::from(per_host) / f64::from(graph.channels)) as f32;
        let bus = bus / (share - (share - 1.0) / 2.0);
        if communicator.compute_capability >= 90 { (f64::from(bus) * 0.85) as f32 } else { bus }
    }

    /// Whether each GPU needs an interface of its own.
    fn needs_heads(&self) -> bool {
        let nvls = self.algorithm == Algorithm::Nvls && self.version.since(27);
        self.gathers() && self.communicator.hosts > 1 && (nvls || self.algorithm == Algorithm::CollNetDirect)
    }

    fn has_heads(&self) -> bool {
        let communicator = self.communicator;
        communicator.collnet && communicator.ranks_per_host() <= communicator.collnet_heads
    }

    /// Bytes over time, from bytes over a link over time.
    fn algorithm_bandwidth(&self, bus: f32) -> f32 {
        let &Cell { version, algorithm, .. } = self;
        let unchanged = match algorithm {
            Algorithm::Ring => false,
            Algorithm::CollNetDirect => self.gathers(),
            _ => self.gathers() && version.since(23),
        };
        if unchanged {
            return bus;
        }
        let of_ring = (f64::from(self.communicator.ranks) / f64::from(self.steps())) as f32;
        bus * match algorithm {
            Algorithm::Ring => of_ring,
            Algorithm::Nvls | Algorithm::NvlsTree if version.since(28) => of_ring,
            Algorithm::Nvls | Algorithm::NvlsTree => (5.0_f64 / 6.0) as f32,
            _ => 0.5,
        }
    }

    /// Microseconds. Single precision is where NCCL has it.
    fn latency(&self) -> f32 {
        let &Cell { version, communicator, constants, algorithm, protocol, .. } = self;
        let (hosts, per_host) = (communicator.hosts, communicator.ranks_per_host());
        let base = constants.base_latency_us[algorithm.number()][protocol.number()];
        let intra = self.link(self.within(), algorithm);
        let inter = self.inter_latency();
        let levels = hosts.ilog2() as f32;
        let in_host = (per_host - 1) as f32;
        match algorithm {
            Algorithm::Ring => base + self.ring_latency(intra, inter),
            Algorithm::Tree => base + 2.0 * (in_host * intra + levels * inter),
            Algorithm::CollNetDirect => {
                // 0.4 us for each peer that is served one after the other.
                let in_host = f64::from(in_host.min(1.0) * intra) + f64::from(in_host) * 0.4;
                (f64::from(base) + (2.0 * in_host + f64::from(inter))) as f32
            }
            Algorithm::CollNetChain => base + (2.0 * in_host * intra + inter),
            Algorithm::Nvls if hosts > 1 => intra + inter,
            Algorithm::Nvls => intra,
            Algorithm::NvlsTree => base + (intra + 2.0 * levels * inter),
            Algorithm::Pat => {
                let steps = f64::from(levels) * (f64::from(inter) / 3.5);
                debug_assert!(version.since(23));
                (f64::from(base) + (steps + f64::from(communicator.ranks) * 2.8)) as f32
            }
        }
    }

    fn ring_latency(&self, intra: f32, inter: f32) -> f32 {
        let &Cell { version, communicator, algorithm, protocol, .. } = self;
        let (hosts, steps) = (communicator.hosts, self.steps());
        if matches!(self.function, Function::Broadcast | Function::Reduce) {
            let link = if hosts == 1 { self.within() } else { NET };
            if communicator.graph(algorithm).same_channels {
                return self.link(link, algorithm);
            }
            let simple = protocol == Protocol::Simple;
            return steps as f32 * self.link(link, if simple { Algorithm::Tree } else { algorithm });
        }
        let inter_steps = match self.function {
            _ if hosts == 1 => 0,
            Function::AllReduce if version.since(23) => 2 * (hosts - 1),
            Function::AllReduce => 2 * hosts,
            _ => hosts - 1,
        };
        let overhead = if hosts == 1 { 0.0 } else { self.net_overhead() };
        // A signed difference: up to 2.22 one rank to a host has more steps between hosts than steps.
        let intra_steps = f64::from(steps) - f64::from(inter_steps);
        intra_steps as f32 * intra.max(overhead) + inter_steps as f32 * inter
    }

    /// What a processor pays for each step over the network.
    fn net_overhead(&self) -> f32 {
        let of_vendor = if self.communicator.cpu == CpuVendor::Amd { 2.0 } else { 1.0 };
        let overhead = self.communicator.net_overhead_us.unwrap_or(of_vendor);
        if self.protocol == Protocol::Simple { 3.0 * overhead } else { overhead }
    }

    fn inter_latency(&self) -> f32 {
        // One rank to a host hides nothing of the network: from 2.23 on, a tree's latency.
        let exposed = self.version.since(23) && self.communicator.ranks == self.communicator.hosts;
        let link = self.link(NET, if exposed { Algorithm::Tree } else { self.algorithm });
        let beyond = self.communicator.graph(self.algorithm).latency_inter_us;
        // Simple flushes, too.
        if self.protocol == Protocol::Simple { link + beyond + beyond } else { link + beyond }
    }

    fn link(&self, link: usize, algorithm: Algorithm) -> f32 {
        self.constants.link_latency_us[link][algorithm.number()][self.protocol.number()]
    }

    /// The kind of links within a host.
    fn within(&self) -> usize {
        if self.communicator.graph(self.algorithm).intra == Path::NvLink { NVLINK } else { PCI }
    }

    fn per_host(&self) -> f32 {
        self.communicator.ranks as f32 / self.communicator.hosts as f32
    }

    /// Volta, Ampere, Hopper, Blackwell.
    fn generation(&self) -> usize {
        match self.communicator.compute_capability {
            // The row came with 2.25.
            100.. if self.version.since(25) => 3,
            90.. => 2,
            80.. => 1,
            _ => 0,
        }
    }

    fn hosts_column(&self) -> usize {
        self.communicator.hosts.min(3) as usize - 1
    }

    fn of_hosts(&self, constants: &[[f64; 3]; 4]) -> f64 {
        constants[self.generation()][self.hosts_column()]
    }

    /// Within a host LL is limited by the GPU, between hosts by the processor.
    fn ll_row(&self) -> usize {
        match self.communicator.cpu {
            _ if self.communicator.hosts == 1 => self.generation(),
            CpuVendor::Amd => 1,
            CpuVendor::Mixed if self.version.since(24) => 1,
            _ => 0,
        }
    }
}
