//! What a call takes by the tables, and what NCCL chooses.

use super::communicator::CpuVendor;
use super::constants::TREE_CORRECTION;
use super::{Algorithm, Communicator, Entry, Function, Protocol, Tables, work_batch};

/// What NCCL chooses for a call when nobody interferes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// At most so many channels.
    pub channels: u32,
    /// Threads per channel.
    pub threads: u32,
    /// By the model, us.
    pub time_us: f32,
}

impl Tables {
    /// What the model says that a call takes, in us, or none where the combination is never chosen. `bytes` are those of the
    /// larger of a rank's buffers (with all-gather and reduce-scatter those of all ranks together); `operations` is what a channel
    /// gets of a group's calls: calls by channels, rounded up.
    pub fn time_us(
        &self,
        function: Function,
        algorithm: Algorithm,
        protocol: Protocol,
        bytes: u64,
        operations: u32,
    ) -> Option<f32> {
        let Entry { mut latency_us, mut bandwidth_gb_s } = self.entry(function, algorithm, protocol);
        if bandwidth_gb_s == 0.0 || !self.offered(function, algorithm) {
            return None;
        }
        bandwidth_gb_s *= self.tree_correction(function, algorithm, protocol, bytes);
        let Communicator { ranks, hosts, channels, compute_capability, .. } = self.communicator;
        let ring = algorithm == Algorithm::Ring;
        let pieces = u64::from(channels) * u64::from(ranks);
        if ring && protocol == Protocol::Simple && hosts > 1 && function == Function::AllReduce && bytes / pieces >= 64
        {
            // Rings stay on a plateau for a while.
            latency_us = (f64::from(latency_us) * if compute_capability < 80 { 1.9 } else { 1.4 }) as f32;
        }
        let starts = if ring { operations } else { operations.div_ceil(work_batch(self.version)) };
        Some(latency_us * starts as f32 + bytes as f32 / (1000.0 * bandwidth_gb_s))
    }

    /// What the tables have and calls do not get: algorithms that have no room for so many ranks of a host
    /// (NCCL_MAX_DIRECT_ARITY, NCCL_MAX_NVLS_ARITY in `src/include/device.h`; `src/enqueue.cc`).
    fn offered(&self, function: Function, algorithm: Algorithm) -> bool {
        const DIRECT: u32 = 8;
        let since = |minor| self.version.since(minor);
        let nvls_ranks = if since(21) { 32 } else { 8 };
        let Communicator { ranks, hosts, .. } = self.communicator;
        let per_host = self.communicator.ranks_per_host();
        match algorithm {
            Algorithm::CollNetDirect => per_host <= DIRECT || !since(23),
            Algorithm::CollNetChain => per_host <= DIRECT || !since(28),
            Algorithm::Nvls if function != Function::AllReduce && since(27) => per_host <= nvls_ranks,
            // Until 2.26 NVLS gathered within a host only.
            Algorithm::Nvls if function != Function::AllReduce => hosts == 1 && ranks <= nvls_ranks,
            _ => true,
        }
    }

    /// The algorithm and protocol with the smallest time, and the channels and threads that NCCL gives them; of equals, the
    /// first. None if there is none.
    pub fn choose(&self, function: Function, bytes: u64, operations: u32) -> Option<Choice> {
        let mut best: Option<(f32, Algorithm, Protocol)> = None;
        for &algorithm in self.algorithms() {
            for &protocol in Protocol::ALL {
                let time = self.time_us(function, algorithm, protocol, bytes, operations);
                if let Some(time) = time.filter(|time| best.is_none_or(|(least, ..)| *time < least)) {
                    best = Some((time, algorithm, protocol));
                }
            }
        }
        let (time_us, algorithm, protocol) = best?;
        let (channels, threads) = self.channels_and_threads(algorithm, protocol, bytes);
        Some(Choice { algorithm, protocol, channels, threads, time_us })
    }

    /// Threads per channel at most.
    pub fn max_threads(&self, algorithm: Algorithm, protocol: Protocol) -> u32 {
        /// Up to this many GB/s (PCI 3.0), half the threads keep up.
        const PCI_GB_S: f32 = 12.0;
        let ring = self.communicator.graph(Algorithm::Ring);
        match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Simple) if ring.intra_gb_s * ring.channels as f32 <= PCI_GB_S => 256,
            (Algorithm::Ring | Algorithm::Tree, Protocol::Ll | Protocol::Simple) => 512,
            (Algorithm::Ring | Algorithm::Tree, Protocol::Ll128) => 640,
            (Algorithm::CollNetDirect | Algorithm::CollNetChain, Protocol::Simple) => 640,
            (Algorithm::Nvls | Algorithm::NvlsTree, Protocol::Simple) => 640,
            // NCCL leaves those that it never uses at 0, and PAT's, which are always 640.
            _ => 0,
        }
    }

    /// Small calls take fewer channels, then fewer threads (`src/enqueue.cc`, as of 2.30).
    pub fn channels_and_threads(&self, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> (u32, u32) {
        let Communicator { ranks, hosts, channels: of_communicator, nvls_channels, .. } = self.communicator;
        let mut threads = self.max_threads(algorithm, protocol);
        let mut threshold = match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(ranks),
            (_, Protocol::Ll | Protocol::Ll128) => 8,
            (Algorithm::CollNetDirect | Algorithm::CollNetChain, Protocol::Simple) => 512,
            _ => 64,
        };
        let mut channels = of_communicator;
        let few =
            |channels: u32, threads: u32, threshold: u64| bytes < u64::from(channels) * u64::from(threads) * threshold;
        match algorithm {
            Algorithm::Nvls if hosts > 1 => channels = nvls_channels.min(of_communicator),
            Algorithm::Nvls | Algorithm::NvlsTree => channels = nvls_channels,
            Algorithm::CollNetDirect => {
                let heads = u64::from(self.communicator.collnet_heads.max(1));
                let mut step = 16;
                let mut shrink = true;
                while step >= 1 && shrink {
                    shrink = few(channels, threads, heads * threshold);
                    while shrink && channels > step {
                        if channels == step + step / 2 {
                            threshold /= 2;
                        }
                        channels -= 1;
                        shrink = few(channels, threads, heads * threshold);
                    }
                    step /= 2;
                }
            }
            _ => {
                while channels >= 2 && few(channels, threads, threshold) {
                    channels -= 1;
                }
                while threads > 0 && threads.is_multiple_of(128) && few(channels, threads, threshold) {
                    threads /= 2;
                }
            }
        }
        // Warps that only wait for memory.
        threads += match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Simple) => 32,
            (Algorithm::Tree, Protocol::Simple) => 128,
            _ => 0,
        };
        let always_all = matches!(algorithm, Algorithm::Tree | Algorithm::Pat);
        (channels, if always_all { 640 } else { threads.max(96) })
    }

    fn tree_correction(&self, function: Function, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> f32 {
        let sizes = match algorithm {
            Algorithm::Tree => 23,
            Algorithm::NvlsTree => {
                let x86 = self.communicator.cpu != CpuVendor::Arm;
                let applies = self.version.since(29) && self.communicator.compute_capability >= 100 && x86;
                if applies { 24 } else { 0 }
            }
            _ => 0,
        };
        let row = &TREE_CORRECTION[protocol.number()][..sizes];
        let size = (bytes >> 6).checked_ilog2();
        let factor = size.and_then(|size| row.get(size as usize)).filter(|_| function == Function::AllReduce);
        factor.copied().unwrap_or(1.0)
    }
}
