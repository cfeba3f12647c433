//! What an iteration takes by the formulas of the literature, from a profile and a cost function: what measured
//! iterations are compared with.

use paceline_plan::{Plan, Profile};
use paceline_strategy::Servers;

use crate::mg_wfbp::merge;
use crate::{ELEMENT_BYTES, ScheduleError};

/// Where the seconds of an iteration go. All workers are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationTime {
    /// Forward.
    pub forward_s: f64,
    /// Backward.
    pub backward_s: f64,
    /// The optimiser.
    pub update_s: f64,
    /// How long the busiest channel is busy.
    pub communication_s: f64,
    /// How long communication goes on when backward is over.
    pub exposed_s: f64,
}

impl IterationTime {
    /// The iteration: forward, backward, what communication adds, and the optimiser.
    pub fn total_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.exposed_s + self.update_s
    }

    /// The share of communication that can be hidden behind backward, from 0 to 1; 1 where there is none.
    pub fn hidden_share(&self) -> f64 {
        if self.communication_s > 0.0 { (1.0 - self.exposed_s / self.communication_s).clamp(0.0, 1.0) } else { 1.0 }
    }

    fn of(profile: &Profile, communication_s: f64, silent_s: f64) -> IterationTime {
        let backward_s = profile.backward_s();
        IterationTime {
            forward_s: profile.forward_s(),
            backward_s,
            update_s: profile.update_s,
            communication_s,
            exposed_s: (silent_s - backward_s).max(0.0),
        }
    }
}

/// Bulk-synchronous: everything is sent when backward is over. T = t_f + t_b + t_c(M) + t_u.
pub fn bsp(profile: &Profile, communication_s: &dyn Fn(u64) -> f64) -> IterationTime {
    let seconds = communication_s(profile.sizes().iter().sum::<usize>() as u64 * ELEMENT_BYTES);
    IterationTime::of(profile, seconds, profile.backward_s() + seconds)
}

/// Wait-free backpropagation on one channel that takes tensors in the order in which they are ready:
/// τ_c(l) = max(τ_c(l+1) + t_c(l+1), r(l)), T = t_f + τ_c(1) + t_c(1) + t_u. Zhang et al., "Poseidon", ATC 2017, §3.1.
pub fn wfbp(profile: &Profile, communication_s: &dyn Fn(u64) -> f64) -> IterationTime {
    let ready_s = profile.ready_s();
    let jobs = profile.ready_order().into_iter().map(|tensor| {
        let bytes = profile.tensors[tensor].elements as u64 * ELEMENT_BYTES;
        (ready_s[tensor], communication_s(bytes))
    });
    let (busy_s, silent_s) = fifo(jobs);
    IterationTime::of(profile, busy_s, silent_s)
}

/// MG-WFBP: as wait-free backpropagation, of tensors merged in the best way. Shi, Chu and Li, INFOCOM 2019.
///
/// # Errors
/// If the cost function gives something that is no time.
pub fn mg_wfbp(profile: &Profile, communication_s: &dyn Fn(u64) -> f64) -> Result<IterationTime, ScheduleError> {
    let (order, ready_s) = (profile.ready_order(), profile.ready_s());
    let in_order: Vec<f64> = order.iter().map(|&tensor| ready_s[tensor]).collect();
    let bytes = order.iter().map(|&tensor| profile.tensors[tensor].elements as u64 * ELEMENT_BYTES);
    let bytes: Vec<u64> = bytes.collect();
    let (silent_s, ends) = merge(&bytes, &in_order, communication_s)?;
    let mut start = 0;
    let runs = ends.iter().map(|&end| bytes[std::mem::replace(&mut start, end)..end].iter().sum());
    Ok(IterationTime::of(profile, runs.map(communication_s).sum(), silent_s))
}

/// Any plan without overlap with the next forward pass, on one channel that takes operations in the order in which they are
/// ready: [`bsp`], [`wfbp`] and [`mg_wfbp`] are this for their own plans.
pub fn one_channel(profile: &Profile, plan: &Plan, communication_s: &dyn Fn(u64) -> f64) -> IterationTime {
    let jobs = ready_operations(profile, plan).into_iter().map(|(ready_s, bytes, _)| (ready_s, communication_s(bytes)));
    let (busy_s, silent_s) = fifo(jobs);
    IterationTime::of(profile, busy_s, silent_s)
}

/// A network of hosts, each with one interface, full duplex, behind a switch that does not limit. Workers of a host add up what
/// they contribute before it leaves, and share what comes back: how many there are makes no difference to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostNetwork {
    /// Hosts with workers.
    pub hosts: usize,
    /// Seconds from the start of an empty push to the end of its pull.
    pub start_s: f64,
    /// Seconds per byte on an interface, in each direction.
    pub seconds_per_byte: f64,
}

/// A lower bound for a plan on servers, reached where push and pull overlap perfectly: no interface can carry its bytes
/// faster than one after the other as they become ready. What is bound by the slowest stage is not bound by the sum of
/// them (Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU
/// clusters" (BytePS), OSDI 2020, §3 and §4).
///
/// For b bytes on a server and n hosts with workers: the interface of a worker's host carries b in each direction; that of a
/// server with a host of its own n·b; that of a host with workers *and* this server (n−1)·b. Shard s lies on
/// host s mod n, where the workers are ([`paceline_plan::Hosts::rank_of_shard`]) or beyond them.
pub fn servers_bound(profile: &Profile, plan: &Plan, servers: &Servers, network: &HostNetwork) -> IterationTime {
    let HostNetwork { hosts, start_s, seconds_per_byte } = *network;
    let operations = ready_operations(profile, plan);
    // What one interface carries of an operation, as a multiple of its bytes.
    let carries = |host: usize, shard: Option<usize>| {
        let serves = shard.is_some_and(|shard| shard % hosts == host % hosts);
        match (servers.dedicated, host < hosts, serves) {
            (true, true, _) | (false, true, false) => 1,
            (true, false, true) => hosts,
            (false, true, true) => hosts - 1,
            (_, false, _) => 0,
        }
    };
    let interfaces = if servers.dedicated { 2 * hosts } else { hosts };
    let slowest =
        (0..interfaces).map(|host| {
            fifo(operations.iter().map(|&(ready_s, bytes, shard)| {
                (ready_s, (carries(host, shard) as u64 * bytes) as f64 * seconds_per_byte)
            }))
        });
    let (busy_s, silent_s) =
        slowest.fold((0.0, 0.0), |worst: (f64, f64), one| (worst.0.max(one.0), worst.1.max(one.1)));
    IterationTime::of(profile, busy_s, silent_s + start_s)
}

/// When each operation is ready, its bytes and its server, in the order in which they are.
fn ready_operations(profile: &Profile, plan: &Plan) -> Vec<(f64, u64, Option<usize>)> {
    let ready_s = profile.ready_s();
    let bucket_s = plan.buckets.iter().map(|bucket| bucket.tensors.iter().map(|&tensor| ready_s[tensor]));
    let bucket_s: Vec<f64> = bucket_s.map(|times| times.fold(0.0, f64::max)).collect();
    let mut operations: Vec<_> = plan
        .partitions()
        .map(|(bucket, part)| (bucket_s[bucket], part.elements.len() as u64 * ELEMENT_BYTES, part.shard))
        .collect();
    operations.sort_by(|left, right| left.0.total_cmp(&right.0));
    operations
}

/// One job after the other, none before it is ready: how long the channel is busy, and when it falls silent.
fn fifo(jobs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    jobs.fold((0.0, 0.0), |(busy_s, free_s): (f64, f64), (ready_s, seconds)| {
        (busy_s + seconds, free_s.max(ready_s) + seconds)
    })
}
