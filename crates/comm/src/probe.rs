//! What the links of this world cost: measured by collectives of its own, agreed by all ranks.

use std::sync::atomic::Ordering;
use std::time::Instant;

use paceline_collective::Algorithm;
use paceline_collective::kernels::Elementwise;
use paceline_collective::registry::find;
use paceline_fabric::Transport;
use paceline_plan::{CollectiveKind, DataType, LinkCost, LinkCosts, Reduction};

use crate::{CallOptions, CommError, Communicator};

/// Rounds of a few small all-reduces and a large one: spread over some milliseconds, so that another process on the
/// same processors does not spoil all of them.
const ROUNDS: usize = 8;
const SMALL_CALLS: usize = 8;

/// Of an emulated network, whose times are set and may be stretched to seconds.
const ROUNDS_EMULATED: usize = 2;

/// On an emulated network a timer ends every message and wakes whoever waits for it: so much time of a processor, in seconds,
/// whatever the network's own overhead is, and as many times as much as ranks share each processor, where a worker and the shard
/// beside it count once. As small as that of most networks is, tiles would be too many to keep up with. Measured:
/// docs/emulation.md.
pub const OVERHEAD_EMULATED_S: f64 = 50e-6;

/// No message keeps a processor busy for less, in seconds: through sockets two system calls and the protocols' turn, in memory a few
/// lines that change caches. The measured overhead is a difference of small times, which scheduling makes nothing or less now and
/// then: tiles would seem to cost nothing, and thousands of small ones take twice as long as a few large ones.
const OVERHEAD_SOCKETS_S: f64 = 1e-6;
const OVERHEAD_MEMORY_S: f64 = 0.2e-6;

/// The large one is far beyond eager messages and caches of one core, so it shows the bandwidth.
const LARGE_BYTES: usize = 1 << 20;

/// Where streams meet in a switch, all tiles of a pipeline are in flight; that is when they meet.
const CONTENDED_BYTES: usize = paceline_collective::WINDOW * LARGE_BYTES;
const CONTENDED_ROUNDS: usize = 3;

/// Where ranks far outnumber processors: small enough for messages to decide, and parts large enough to go
/// by reference.
const CROWDED_BYTES: usize = 256 << 10;
const CROWDED_PART_BYTES: usize = 16 << 10;
const CROWDED_ROUNDS: usize = 6;

/// More ranks than this on a processor are a crowd. With up to two that share memory one runs while the other waits, and
/// messages cost what they do by themselves; through sockets the kernel works in between.
const CROWDED_FROM: f64 = 2.0;
const CROWDED_FROM_OVER_SOCKETS: f64 = 1.0;

/// Tiles of the small all-reduce that shows how fast messages follow each other: as many as are in flight at once.
const TILES: usize = 4;

impl Communicator {
    /// Measures alpha, overhead, beta and gamma of the links within the hosts and between them, and makes all ranks of
    /// the world agree on them: from then on `algorithm=auto` chooses by them. All ranks of the *world* call it, at the
    /// same time; it takes some milliseconds. Links of a kind that the world has not count as the others.
    ///
    /// From the times of all-reduces of S bytes (`docs/algorithms.md`): a ring, T = 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ,
    /// at two sizes; and a small direct one, T = α + (n−2)·overhead. Between two ranks, T tiles of one instead of one
    /// cost (T−1)·overhead more; and no overhead is less than what a processor needs for a message. Gamma is measured on its own.
    /// Where more than two hosts can meet: how much longer than its formula says a large halving-doubling takes, in which several
    /// ranks send to one, than a ring, in which nobody is in anybody's way; and the same within a host, if its ranks outnumber its
    /// processors and send through sockets. If they share memory there, and are more than two for each processor: how much longer
    /// than its formula says an all-reduce of many messages takes than one of few; that is the messages' overhead. The agreed values
    /// are the largest of any rank.
    ///
    /// # Errors
    /// As any collective.
    pub fn probe(&self) -> Result<LinkCosts, CommError> {
        let (topology, gamma) = (self.topology().clone(), seconds_per_byte_reduced());
        let mut costs = [0.0; 11];
        if topology.is_flat() {
            let measured = self.measure(gamma)?;
            costs[..3].copy_from_slice(&measured);
            costs[3..6].copy_from_slice(&measured);
            let lost = self.measure_contention(&link_cost(&measured, gamma))?;
            costs[if topology.hosts() == 1 { 9 } else { 7 }] = lost;
        } else {
            // All hosts at once; then one rank of each.
            let host = topology.host(self.rank()) as u32;
            if let Some(within) = self.split(Some(host), 0)? {
                let measured = within.measure(gamma)?;
                costs[..3].copy_from_slice(&measured);
                costs[9] = within.measure_contention(&link_cost(&measured, gamma))?;
            }
            let first = topology.index_on_host(self.rank()) == 0;
            if let Some(across) = self.split(first.then_some(0), 0)? {
                let measured = across.measure(gamma)?;
                costs[3..6].copy_from_slice(&measured);
                costs[7] = across.measure_contention(&link_cost(&measured, gamma))?;
            }
        }
        costs[6] = gamma;
        costs[8] = if self.world.fetches { 0.0 } else { 1.0 };
        let neighbours = (0..topology.world()).filter(|&rank| topology.same_host(self.rank(), rank));
        costs[10] = f64::from(neighbours.filter_map(|rank| self.transport(rank)).any(|it| it == Transport::Tcp));
        self.all_reduce(&mut costs, Reduction::Max, &CallOptions::algorithm("ring"))?;
        let link = |of: &[f64]| link_cost(of, costs[6]);
        let agreed_tcp_within = costs[10] > 0.0;
        let costs = LinkCosts {
            within: link(&costs[..3]),
            across: link(&costs[3..6]),
            contention: costs[7],
            contention_within: costs[9],
            fetched: costs[8] == 0.0,
        };
        self.world.tcp_within.store(agreed_tcp_within, Ordering::Relaxed);
        self.world.set_link_costs(costs);
        Ok(costs)
    }

    /// Alpha, overhead and beta between the ranks of this group; zeros if it has only one.
    fn measure(&self, gamma: f64) -> Result<[f64; 3], CommError> {
        let ranks = self.world_size();
        if ranks == 1 {
            return Ok([0.0; 3]);
        }
        let mut small_data = self.alloc(ranks.max(TILES))?;
        let (mut large_data, element) = (self.alloc(LARGE_BYTES / size_of::<f32>())?, size_of::<f32>());
        let [mut ring, mut direct, mut tiled, mut large] = [f64::INFINITY; 4];
        let rounds = if self.world.keeps_time { ROUNDS_EMULATED } else { ROUNDS };
        for _ in 0..rounds {
            for _ in 0..SMALL_CALLS {
                ring = ring.min(self.seconds("ring", &mut small_data[..ranks], LARGE_BYTES)?);
                direct = direct.min(self.seconds("direct", &mut small_data[..TILES], LARGE_BYTES)?);
                if ranks == 2 {
                    tiled = tiled.min(self.seconds("direct", &mut small_data[..TILES], element)?);
                }
            }
            large = large.min(self.seconds("ring", &mut large_data, LARGE_BYTES)?);
        }
        let steps = 2.0 * (ranks as f64 - 1.0);
        let alpha = ring / steps;
        let overhead = match ranks {
            2 => (tiled - direct) / (TILES as f64 - 1.0),
            _ => (direct - alpha) / (ranks as f64 - 2.0),
        };
        let part = LARGE_BYTES as f64 / ranks as f64;
        let beta = ((large - ring) / (steps * part) - gamma / 2.0).max(1e-12);
        let overhead = overhead.max(self.overhead_min_s()).min(alpha);
        let more = self.measure_crowding(&link_cost(&[alpha, overhead, beta], gamma))?;
        Ok([alpha, (overhead + more).min(alpha), beta])
    }

    /// Seconds for which a message between ranks of this group keeps a port busy at least.
    fn overhead_min_s(&self) -> f64 {
        if self.world.keeps_time {
            return OVERHEAD_EMULATED_S * self.world.turns_per_processor;
        }
        let sockets = (0..self.world_size()).any(|rank| self.transport(rank) == Some(Transport::Tcp));
        if sockets { OVERHEAD_SOCKETS_S } else { OVERHEAD_MEMORY_S }
    }

    /// By how much a message's overhead exceeds the link's, in seconds, where ranks far outnumber their processors: small messages are least in anybody's way just when they arrive together. So an all-reduce of many
    /// messages meets one of few.
    fn measure_crowding(&self, link: &LinkCost) -> Result<f64, CommError> {
        let (ranks, kind) = (self.world_size(), CollectiveKind::AllReduce);
        let [Ok(many), Ok(few)] = ["direct-scatter", "halving-doubling"].map(|name| find(kind, name)) else {
            return Ok(0.0);
        };
        let from = if self.world.fetches { CROWDED_FROM } else { CROWDED_FROM_OVER_SOCKETS };
        let crowded = !self.world.keeps_time && self.world.ranks_per_processor > from;
        if ranks < 3 || self.topology().hosts() > 1 || !self.agree(crowded)? {
            return Ok(0.0);
        }
        let lost =
            self.seconds_lost([few, many], CROWDED_BYTES.max(ranks * CROWDED_PART_BYTES), CROWDED_ROUNDS, link)?;
        // Of its 2(n − 1) overheads two are in alpha (docs/algorithms.md).
        Ok((lost / (2.0 * ranks as f64 - 4.0)).max(0.0))
    }

    /// Seconds per byte that are lost where streams meet; 0 if there are too few ranks to meet, or all are on one host that
    /// has a processor for each or memory that they share.
    fn measure_contention(&self, link: &LinkCost) -> Result<f64, CommError> {
        let (topology, kind) = (self.topology(), CollectiveKind::AllReduce);
        let [Ok(ring), Ok(met)] = ["ring", "halving-doubling"].map(|name| find(kind, name)) else { return Ok(0.0) };
        let meeting = met.fan_in(topology).saturating_sub(1) as f64;
        // The switch of an emulated network loses nothing.
        if meeting == 0.0
            || self.world.keeps_time
            || topology.hosts() == 1 && !self.agree(!self.world.fetches && self.world.ranks_per_processor > 1.0)?
        {
            return Ok(0.0);
        }
        // 0.2 s for 16 ranks on two processors.
        let bytes = if topology.hosts() == 1 { LinkCosts::CONTENTION_WITHIN_FROM } else { CONTENDED_BYTES };
        let lost = self.seconds_lost([ring, met], bytes, CONTENDED_ROUNDS, link)?;
        Ok((lost / (meeting * met.bytes_sent(topology, bytes as f64))).max(0.0))
    }

    /// By how much more the second algorithm takes longer than the first than their formulas say.
    fn seconds_lost(
        &self,
        algorithms: [&dyn Algorithm; 2],
        bytes: usize,
        rounds: usize,
        link: &LinkCost,
    ) -> Result<f64, CommError> {
        let mut data = self.alloc(bytes / size_of::<f32>())?;
        let mut measured = [f64::INFINITY; 2];
        for _ in 0..rounds {
            for (seconds, algorithm) in measured.iter_mut().zip(algorithms) {
                *seconds = seconds.min(self.seconds(algorithm.name(), &mut data, LARGE_BYTES)?);
            }
        }
        let costs = LinkCosts::uniform(*link);
        let expected = algorithms.map(|algorithm| algorithm.seconds(self.topology(), bytes, LARGE_BYTES, &costs));
        Ok((measured[1] - measured[0]) - (expected[1] - expected[0]))
    }

    /// Is it so on any rank? Whoever is bound to fewer processors than others may see it alone.
    fn agree(&self, mine: bool) -> Result<bool, CommError> {
        let mut seen = [f64::from(u8::from(mine))];
        self.all_reduce(&mut seen, Reduction::Max, &CallOptions::algorithm("direct"))?;
        Ok(seen[0] > 0.0)
    }

    fn seconds(&self, algorithm: &str, data: &mut [f32], tile_bytes: usize) -> Result<f64, CommError> {
        let options = CallOptions { chunk_bytes: Some(tile_bytes), ..CallOptions::algorithm(algorithm) };
        let start = Instant::now();
        self.all_reduce(data, Reduction::Sum, &options)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Alpha, overhead and beta as measured, with gamma.
fn link_cost(measured: &[f64], gamma: f64) -> LinkCost {
    LinkCost { alpha: measured[0], overhead: measured[1], beta: measured[2], gamma }
}

/// Gamma: the time to combine a byte, of operands that lie in the second-level cache.
///
/// Takes about a millisecond.
pub fn seconds_per_byte_reduced() -> f64 {
    const BYTES: usize = 256 << 10;
    let sum = Elementwise { data_type: DataType::F32, reduction: Reduction::Sum, divisor: 1 };
    let (mut into, other) = (vec![0u8; BYTES], vec![0u8; BYTES]);
    let mut least = f64::INFINITY;
    for _ in 0..8 {
        let start = Instant::now();
        sum.combine_in_place(&mut into, &other);
        least = least.min(start.elapsed().as_secs_f64());
    }
    least / BYTES as f64
}
