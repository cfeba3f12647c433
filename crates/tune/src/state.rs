//! What is known of a call when its knobs are chosen.
//!
//! Everything here is the same on every rank, or was agreed before: a time that one rank has measured, or whether its
//! buffer is registered, would let ranks choose differently, and then they hang.

use paceline_plan::{CollectiveKind, Shape, named_enum};
use serde::{Deserialize, Serialize};

/// The version of [`State`] and [`Context`]: what was learned under another one means nothing here.
pub const STATE_VERSION: u32 = 2;

named_enum! {
    /// What carries the bytes of the slowest link.
    Transport, "transport":
    /// Memory of one host.
    SharedMemory = 0 "shm",
    /// TCP, below 10 Gbit/s.
    Tcp1g = 1 "tcp1g",
    /// TCP, from 10 Gbit/s.
    Tcp10g = 2 "tcp10g",
    /// TCP, from 40 Gbit/s.
    Tcp100g = 3 "tcp100g",
    /// A network adapter that reads and writes memory by itself.
    Rdma = 4 "rdma",
    /// NVLink and nothing else.
    Nvlink = 5 "nvlink",
}

named_enum! {
    /// How hosts are connected.
    TopologyClass, "topology class":
    /// There is one host.
    OneHost = 0 "one-host",
    /// One switch, or as good as.
    Flat = 1 "flat",
    /// Switches in levels, with or without their full bandwidth upwards.
    Tree = 2 "tree",
    /// Neighbours.
    Torus = 3 "torus",
    /// Hosts that forward for each other.
    Bcube = 4 "bcube",
}

named_enum! {
    /// Which kind of parallelism makes the call.
    Parallelism, "kind of parallelism":
    /// Each worker has the model and a part of the batch: few large calls.
    Data = 0 "data",
    /// Each worker has a part of every layer: many small calls, for which computation waits.
    Tensor = 1 "tensor",
    /// Each worker has some of the layers: activations from one to the next.
    Pipeline = 2 "pipeline",
    /// Each worker has a part of the parameters, gathered where they are needed.
    Sharded = 3 "sharded",
}

named_enum! {
    /// How much others are in the way, as all ranks agree.
    Congestion, "level of congestion":
    /// Calls take what they usually take.
    None = 0 "none",
    /// Up to twice as long.
    Light = 1 "light",
    /// Longer.
    Heavy = 2 "heavy",
}

/// A call, as the tuner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// What is called.
    pub collective: CollectiveKind,
    /// Bytes of the larger side of a rank: all of an all-gather's output and of a reduce-scatter's input.
    pub bytes: u64,
    /// Ranks that take part.
    pub ranks: u32,
    /// Hosts that they are on.
    pub hosts: u32,
    /// I = C/D: operations per sample and parameter; 0 if unknown.
    pub model_intensity: f64,
    /// M: samples per worker and iteration.
    pub local_batch: u32,
    /// Are the devices of a host connected by NVLink?
    pub has_nvlink: bool,
    /// What carries the bytes.
    pub transport: Transport,
    /// How hosts are connected.
    pub topology: TopologyClass,
    /// Does the job exchange gradients through parameter servers? Somebody else has decided that.
    pub is_ps_deployment: bool,
    /// Is it one call of several in an iteration, a layer's or a bucket's, under way while others are computed or sent?
    pub is_pipelined_layer: bool,
    /// Does it carry several tensors, fused?
    pub is_fused_call: bool,
    /// Who calls.
    pub parallelism: Parallelism,
    /// How much others are in the way, as all ranks agree.
    pub congestion: Congestion,
}

/// A state as far as choices distinguish them: sizes, intensity and the C2C ratio in powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// What is called.
    pub collective: CollectiveKind,
    /// ⌊log2 bytes⌋.
    pub size_log2: u8,
    /// Ranks, up to 65,535.
    pub ranks: u16,
    /// Hosts, up to 16,383.
    pub hosts: u16,
    /// What carries the bytes.
    pub transport: Transport,
    /// How hosts are connected.
    pub topology: TopologyClass,
    /// Are the devices of a host connected by NVLink?
    pub has_nvlink: bool,
    /// Parameter servers?
    pub is_ps_deployment: bool,
    /// One call of several in an iteration?
    pub is_pipelined_layer: bool,
    /// Several tensors, fused?
    pub is_fused_call: bool,
    /// Who calls.
    pub parallelism: Parallelism,
    /// ⌊log2 I⌋, from 0 to 15.
    pub intensity_log2: u8,
    /// ⌊−log2 of the C2C ratio⌋, from 0 (communication dominates) to 15.
    pub inverse_ratio_log2: u8,
    /// How much others are in the way.
    pub congestion: Congestion,
}

/// A [`Context`] in 64 bits; equal if and only if the contexts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextKey(pub u64);

named_enum! {
    /// The sizes by which people speak of calls, each from its lower end to below its upper one: so a context, which holds sizes from
    /// one power of two to the next, lies in one class.
    SizeClass, "class of sizes":
    /// Latency decides.
    Tiny = 0 "< 16 KiB",
    /// From 16 KiB on.
    Small = 1 "16 to 64 KiB",
    /// From 64 KiB on.
    Middle = 2 "64 to 256 KiB",
    /// From 256 KiB on.
    Large = 3 "256 KiB to 1 MiB",
    /// From 1 MiB on.
    Larger = 4 "1 to 4 MiB",
    /// From 4 MiB on: bandwidth decides.
    Huge = 5 "4 MiB+",
}

impl TopologyClass {
    /// That of several hosts that are connected in this way.
    pub fn of(shape: Shape) -> TopologyClass {
        match shape {
            Shape::Flat => TopologyClass::Flat,
            Shape::Tree(_) | Shape::FatTree { .. } => TopologyClass::Tree,
            Shape::Torus { .. } => TopologyClass::Torus,
            Shape::BCube { .. } => TopologyClass::Bcube,
        }
    }
}

impl SizeClass {
    /// That of so many bytes.
    pub fn of(bytes: u64) -> SizeClass {
        let limits = [1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
        SizeClass::ALL[limits.iter().filter(|&&limit| bytes >= limit).count()]
    }
}

impl State {
    /// Bytes for each rank.
    pub fn bytes_per_rank(&self) -> u64 {
        self.bytes / u64::from(self.ranks.max(1))
    }

    /// Ranks of a host, rounded up.
    pub fn ranks_per_host(&self) -> u32 {
        self.ranks.div_ceil(self.hosts.max(1))
    }

    /// V = f(N)/(M·I), the C2C ratio: communication against computation, as far as it is known before anything runs, with
    /// f(N) = 2(N − 1)/N (Shi et al., arXiv 2005.13247). 0 for one rank, infinite if I is unknown or M is 0.
    pub fn ratio(&self) -> f64 {
        let ranks = f64::from(self.ranks.max(1));
        let amount = f64::from(self.local_batch) * self.model_intensity;
        let factor = 2.0 * (ranks - 1.0) / ranks;
        if factor == 0.0 { 0.0 } else { factor / amount.max(0.0) }
    }

    /// What choices distinguish of it.
    pub fn context(&self) -> Context {
        let bin = |value: f64| value.max(1.0).log2().min(15.0) as u8;
        Context {
            collective: self.collective,
            size_log2: self.bytes.max(1).ilog2() as u8,
            ranks: self.ranks.min(0xffff) as u16,
            hosts: self.hosts.min(0x3fff) as u16,
            transport: self.transport,
            topology: self.topology,
            has_nvlink: self.has_nvlink,
            is_ps_deployment: self.is_ps_deployment,
            is_pipelined_layer: self.is_pipelined_layer,
            is_fused_call: self.is_fused_call,
            parallelism: self.parallelism,
            intensity_log2: bin(self.model_intensity),
            inverse_ratio_log2: bin(1.0 / self.ratio()),
            congestion: self.congestion,
        }
    }
}

impl Context {
    /// In 64 bits. 4 for the collective and 6 for the size; 16 and 14 for ranks and hosts; 3 and 3 for transport and
    /// topology; 4 switches; 2 and 2 for parallelism and congestion; 4 and 4 for intensity and ratio: 62.
    pub fn key(&self) -> ContextKey {
        let fields = [
            (u64::from(self.collective.code()), 4),
            (u64::from(self.size_log2), 6),
            (u64::from(self.ranks), 16),
            (u64::from(self.hosts), 14),
            (self.transport as u64, 3),
            (self.topology as u64, 3),
            (u64::from(self.has_nvlink), 1),
            (u64::from(self.is_ps_deployment), 1),
            (u64::from(self.is_pipelined_layer), 1),
            (u64::from(self.is_fused_call), 1),
            (self.parallelism as u64, 2),
            (self.congestion as u64, 2),
            (u64::from(self.intensity_log2), 4),
            (u64::from(self.inverse_ratio_log2), 4),
        ];
        ContextKey(fields.iter().fold(0, |key, &(value, bits)| key << bits | (value & ((1 << bits) - 1))))
    }

    /// Bytes in the middle of its sizes, by their logarithm.
    pub fn typical_bytes(&self) -> u64 {
        (2f64.powf(f64::from(self.size_log2) + 0.5)) as u64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An all-reduce of 1 MiB among 8 ranks on 8 hosts.
    pub(crate) const CALL: State = State {
        collective: CollectiveKind::AllReduce,
        bytes: 1 << 20,
        ranks: 8,
        hosts: 8,
        model_intensity: 470.0,
        local_batch: 32,
        has_nvlink: false,
        transport: Transport::Tcp10g,
        topology: TopologyClass::Flat,
        is_ps_deployment: false,
        is_pipelined_layer: false,
        is_fused_call: true,
        parallelism: Parallelism::Data,
        congestion: Congestion::None,
    };

    #[test]
    fn the_ratio_is_that_of_the_survey() {
        assert!((CALL.ratio() - 1.75 / (32.0 * 470.0)).abs() < 1e-12);
        assert_eq!(State { ranks: 1, ..CALL }.ratio(), 0.0);
        assert_eq!(State { model_intensity: 0.0, ..CALL }.ratio(), f64::INFINITY);
        assert_eq!(State { ranks: 1, ..CALL }.context().inverse_ratio_log2, 15);
        assert_eq!(State { model_intensity: 0.0, ..CALL }.context().inverse_ratio_log2, 0);
    }

    #[test]
    fn a_key_is_equal_only_where_the_context_is() {
        let states = [
            CALL,
            State { bytes: 1 << 21, ..CALL },
            State { ranks: 16, ..CALL },
            State { hosts: 4, ..CALL },
            State { collective: CollectiveKind::Push, ..CALL },
            State { has_nvlink: true, ..CALL },
            State { transport: Transport::Nvlink, ..CALL },
            State { topology: TopologyClass::Bcube, ..CALL },
            State { is_pipelined_layer: true, ..CALL },
            State { is_fused_call: false, ..CALL },
            State { is_ps_deployment: true, ..CALL },
            State { parallelism: Parallelism::Sharded, ..CALL },
            State { congestion: Congestion::Heavy, ..CALL },
            State { model_intensity: 100.0, ..CALL },
            State { local_batch: 1, ..CALL },
        ];
        for (number, one) in states.iter().enumerate() {
            for other in &states[..number] {
                assert_ne!(one.context().key(), other.context().key(), "{one:?} {other:?}");
            }
        }
        // Within a power of two, sizes are one context.
        assert_eq!(State { bytes: (1 << 20) + 5, ..CALL }.context(), CALL.context());
        // Every value has room in the key.
        assert!(CollectiveKind::ALL.len() <= 16 && Transport::ALL.len() <= 8 && TopologyClass::ALL.len() <= 8);
        assert!(Parallelism::ALL.len() <= 4 && Congestion::ALL.len() <= 4);
    }

    #[test]
    fn sizes_have_classes() {
        let of = |bytes| SizeClass::of(bytes).name();
        assert_eq!([of(0), of((1 << 14) - 1), of(1 << 14)], ["< 16 KiB", "< 16 KiB", "16 to 64 KiB"]);
        assert_eq!([of((1 << 22) - 1), of(1 << 22), of(u64::MAX)], ["1 to 4 MiB", "4 MiB+", "4 MiB+"]);
        for log2 in 0..63 {
            assert_eq!(of(1 << log2), of((1 << (log2 + 1)) - 1), "the sizes of a context are of one class: 2^{log2}");
        }
    }
}
