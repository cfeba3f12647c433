//! What the model is told of a communicator.

use std::str::FromStr;

use super::{Algorithm, NcclError};

/// The worst kind of path between two GPUs, or between a GPU and its network interface; from near to far, as in NCCL's
/// logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// The same device.
    Local,
    /// NVLink.
    NvLink,
    /// NVLink through another GPU.
    NvLinkThroughGpu,
    /// The chip-to-chip link of a Grace processor.
    ChipToChip,
    /// One PCI switch.
    Pix,
    /// Several PCI switches.
    Pxb,
    /// PCI behind a chip-to-chip link.
    P2c,
    /// Through another GPU's interface.
    Pxn,
    /// The PCI root of a processor.
    Phb,
    /// Between the processors of a host.
    Sys,
    /// The network.
    Net,
}

const PATHS: [(&str, Path); 11] = [
    ("LOC", Path::Local),
    ("NVL", Path::NvLink),
    ("NVB", Path::NvLinkThroughGpu),
    ("C2C", Path::ChipToChip),
    ("PIX", Path::Pix),
    ("PXB", Path::Pxb),
    ("P2C", Path::P2c),
    ("PXN", Path::Pxn),
    ("PHB", Path::Phb),
    ("SYS", Path::Sys),
    ("NET", Path::Net),
];

/// NCCL's three letters.
impl FromStr for Path {
    type Err = NcclError;

    fn from_str(text: &str) -> Result<Path, NcclError> {
        let found = PATHS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, path)| *path).ok_or_else(|| NcclError::Name {
            what: "link type",
            name: text.to_owned(),
            known: PATHS.map(|(name, _)| name).join(", "),
        })
    }
}

/// Who made the processors of the hosts; they take part where a protocol is limited by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuVendor {
    /// Intel.
    #[default]
    Intel,
    /// AMD.
    Amd,
    /// Intel in some hosts, AMD in others.
    Mixed,
    /// Another one, on x86-64.
    Other,
    /// Arm.
    Arm,
}

impl FromStr for CpuVendor {
    type Err = NcclError;

    fn from_str(text: &str) -> Result<CpuVendor, NcclError> {
        match text.to_ascii_lowercase().as_str() {
            "intel" => Ok(CpuVendor::Intel),
            "amd" => Ok(CpuVendor::Amd),
            "mixed" => Ok(CpuVendor::Mixed),
            "other" => Ok(CpuVendor::Other),
            "arm" => Ok(CpuVendor::Arm),
            _ => Err(NcclError::Name {
                what: "vendor of processors",
                name: text.to_owned(),
                known: "intel, amd, mixed, other, arm".to_owned(),
            }),
        }
    }
}

/// What NCCL's graph search found for an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Graph {
    /// Channels.
    pub channels: u32,
    /// Bandwidth of a channel within a host, GB/s.
    pub intra_gb_s: f32,
    /// Bandwidth of a channel between hosts, GB/s.
    pub inter_gb_s: f32,
    /// Latency of the network's link beyond the model's own, us.
    pub latency_inter_us: f32,
    /// The worst path within a host.
    pub intra: Path,
    /// The worst path to the network.
    pub inter: Path,
    /// All channels run through the GPUs in the same order.
    pub same_channels: bool,
    /// A host's ranks form a tree and no chain: two of them talk to other hosts. So does a host's only rank, whatever stands here.
    pub tree_pattern: bool,
}

/// One channel of PCI and of a slow network.
impl Default for Graph {
    fn default() -> Graph {
        Graph {
            channels: 1,
            intra_gb_s: 12.0,
            inter_gb_s: 12.0,
            latency_inter_us: 0.0,
            intra: Path::Phb,
            inter: Path::Phb,
            same_channels: true,
            tree_pattern: false,
        }
    }
}

/// A communicator, as NCCL's model sees it. All hosts have as many ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Communicator {
    /// Ranks.
    pub ranks: u32,
    /// Hosts ("nodes" in NCCL).
    pub hosts: u32,
    /// The smallest compute capability, as 10 · major + minor: 70, 80, 90, 100, 120.
    pub compute_capability: u32,
    /// All GPUs have that one.
    pub same_compute_capability: bool,
    /// Whose processors.
    pub cpu: CpuVendor,
    /// What NCCL_NET_OVERHEAD says, us; else it follows from the processors.
    pub net_overhead_us: Option<f32>,
    /// Channels of the communicator, by which calls are cut [the ring's].
    pub channels: u32,
    /// Channels of NVLS calls.
    pub nvls_channels: u32,
    /// The network adds up (NCCL_COLLNET_ENABLE, with a plug-in that can).
    pub collnet: bool,
    /// Network interfaces of a host that the network's sums use.
    pub collnet_heads: u32,
    /// The GPUs have an NVLink switch.
    pub nvswitch: bool,
    /// NVLink switches that add up: the NVLS algorithms are there.
    pub nvls: bool,
    /// By algorithm, in NCCL's order.
    pub graphs: [Graph; 7],
}

impl Communicator {
    /// Two V100 on one host, the same graph for all algorithms; to be adapted.
    pub fn of_graph(graph: Graph) -> Communicator {
        Communicator {
            ranks: 2,
            hosts: 1,
            compute_capability: 70,
            same_compute_capability: true,
            cpu: CpuVendor::Intel,
            net_overhead_us: None,
            channels: graph.channels,
            nvls_channels: graph.channels,
            collnet: false,
            collnet_heads: 0,
            nvswitch: false,
            nvls: false,
            graphs: [graph; 7],
        }
    }

    /// The graph of an algorithm.
    pub fn graph(&self, algorithm: Algorithm) -> &Graph {
        &self.graphs[algorithm.number()]
    }

    /// Ranks of a host.
    pub fn ranks_per_host(&self) -> u32 {
        self.ranks / self.hosts.max(1)
    }

    /// Whether there can be such a communicator.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn check(&self) -> Result<(), NcclError> {
        let wrong = |what, value: String, reason| Err(NcclError::Communicator { what, value, reason });
        if !(2..=1 << 24).contains(&self.ranks) {
            return wrong("ranks", self.ranks.to_string(), "it has 2 to 16777216");
        }
        if self.hosts == 0 || !self.ranks.is_multiple_of(self.hosts) {
            return wrong("hosts", self.hosts.to_string(), "at least 1, each with as many ranks");
        }
        if !(30..1000).contains(&self.compute_capability) {
            return wrong("compute capability", self.compute_capability.to_string(), "70, 80, 90, 100 and the like");
        }
        if self.net_overhead_us.is_some_and(|overhead| !(overhead.is_finite() && overhead >= 0.0)) {
            return wrong("network overhead", format!("{:?}", self.net_overhead_us), "microseconds from 0 on");
        }
        let channels = self.graphs.iter().map(|graph| graph.channels).chain([self.channels, self.nvls_channels]);
        for channels in channels {
            if !(1..=64).contains(&channels) {
                return wrong("channels", channels.to_string(), "1 to 64");
            }
        }
        for graph in &self.graphs {
            for bandwidth in [graph.intra_gb_s, graph.inter_gb_s] {
                if !(bandwidth.is_finite() && bandwidth > 0.0) {
                    return wrong("bandwidth", bandwidth.to_string(), "GB/s above 0");
                }
            }
            if !(graph.latency_inter_us.is_finite() && graph.latency_inter_us >= 0.0) {
                return wrong("latency", graph.latency_inter_us.to_string(), "microseconds from 0 on");
            }
        }
        Ok(())
    }
}
