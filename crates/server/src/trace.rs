//! What shards note of their work, and how worker 0 learns it.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_comm::{CallOptions, ClockOffset, Communicator, Trace, Traced};
use paceline_plan::OperationKey;
use serde::{Deserialize, Serialize};

use crate::assignment::{AssignmentError, refused};
use crate::error::ServerError;
use crate::roles::Roles;

/// What a shard has done between [`crate::ParameterServer::start_trace`] and [`crate::ParameterServer::end_trace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardTrace {
    /// Which shard.
    pub shard: usize,
    /// By how many nanoseconds all its times may be wrong on worker 0's clock.
    pub clock_error_ns: i64,
    /// In the order of their starts.
    pub spans: Vec<ShardSpan>,
    /// Frames and pieces of work that are missing, because there were more than could be noted.
    pub dropped: u64,
}

/// What a shard does with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ShardWork {
    /// Contributions of workers come in.
    Receiving,
    /// They are added.
    Adding,
    /// The optimiser makes new parameters of the sum.
    Applying,
    /// The sum, or the new parameters, go to the workers.
    Sending,
}

/// From the first to the last byte of one operation in one kind of work: the pull of one tile overlaps the push of the
/// next, so spans of one operation may overlap, as those of different operations do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSpan {
    /// What the shard did.
    pub work: ShardWork,
    /// The plan's.
    pub plan_version: u32,
    /// As [`crate::Assignment::options`] names it: iteration · operations of the plan + operation.
    pub id: u64,
    /// Nanoseconds on worker 0's clock ([`Communicator::clock`]).
    pub start_ns: i64,
    /// Nanoseconds on worker 0's clock.
    pub end_ns: i64,
    /// That were received, added or sent, or of new parameters; of all workers together.
    pub bytes: u64,
}

/// Frames and pieces of work of a shard that are noted: some iterations of a large model.
const EVENTS_MAX: usize = 1 << 17;

/// What a shard tells is never longer: two spans for each event and one for each update, of at most 46 bytes, and what
/// stands before them.
const TRACE_BYTES_MAX: usize = 3 * EVENTS_MAX * 48;

/// Between worker 0 and one rank of each other host, to compare clocks: the shortest counts.
const ROUND_TRIPS: usize = 8;

/// A shard notes what it does.
pub(crate) struct Tracing {
    applied: Vec<Applied>,
    /// Updates for which there was no room.
    dropped: u64,
}

struct Applied {
    key: OperationKey,
    start: Duration,
    end: Duration,
    bytes: u64,
}

impl Tracing {
    pub fn start(world: &Communicator) -> Tracing {
        world.start_trace(EVENTS_MAX);
        Tracing { applied: Vec::new(), dropped: 0 }
    }

    /// The optimiser has made so many bytes of parameters, for that operation.
    pub fn applied(&mut self, plan_version: u32, operation: u64, bytes: usize, start: Duration, end: Duration) {
        if self.applied.len() == EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        let key = OperationKey { plan_version, operation, ..OperationKey::default() };
        self.applied.push(Applied { key, start, end, bytes: bytes as u64 });
    }

    /// Tells worker 0 all of it.
    pub fn hand_over(self, world: &Communicator, shard: usize) -> Result<(), ServerError> {
        let trace = world.end_trace();
        let clock = world.compare_clocks(ROUND_TRIPS)?;
        let spans = self.spans(&trace, &clock);
        let own = ShardTrace { shard, clock_error_ns: clock.error_ns(), spans, dropped: trace.dropped + self.dropped };
        let own = postcard::to_stdvec(&own);
        let own = own.map_err(|error| refused(world, AssignmentError::Unreadable(error.to_string())))?;
        gather(world, &own)?;
        Ok(())
    }

    fn spans(&self, trace: &Trace, clock: &ClockOffset) -> Vec<ShardSpan> {
        let mut spans = BTreeMap::new();
        let mut add = |work: ShardWork, key: &OperationKey, start: Duration, end: Duration, bytes: u64| {
            let (start_ns, end_ns) = (clock.on_rank_0_ns(start), clock.on_rank_0_ns(end));
            let OperationKey { plan_version, operation: id, .. } = *key;
            let new = ShardSpan { work, plan_version, id, start_ns, end_ns, bytes: 0 };
            let span = spans.entry((plan_version, id, work)).or_insert(new);
            span.start_ns = span.start_ns.min(start_ns);
            span.end_ns = span.end_ns.max(end_ns);
            span.bytes += bytes;
        };
        for one in trace.transfers().iter().filter(|one| is_assigned(&one.key)) {
            let work = if one.sent { ShardWork::Sending } else { ShardWork::Receiving };
            add(work, &one.key, one.start, one.end, one.bytes);
            if one.combined {
                add(ShardWork::Adding, &one.key, one.start, one.end, one.bytes);
            }
        }
        for event in &trace.events {
            if let Traced::Work { work: "combine", key: Some(key), bytes, peer: None } = &event.what
                && is_assigned(key)
            {
                add(ShardWork::Adding, key, event.start, event.end, *bytes as u64);
            }
        }
        for Applied { key, start, end, bytes } in &self.applied {
            add(ShardWork::Applying, key, *start, *end, *bytes);
        }
        let mut spans: Vec<ShardSpan> = spans.into_values().collect();
        spans.sort_by_key(|span| span.start_ns);
        spans
    }
}

/// Does an operation carry out an assignment? Others have no name, or no plan.
fn is_assigned(key: &OperationKey) -> bool {
    key.communicator & OperationKey::NAMED != 0
}

/// The workers' side: what all shards have noted, at worker 0; and the offset of this worker's clock from worker 0's.
pub(crate) fn take(world: &Communicator, roles: Roles) -> Result<(ClockOffset, Vec<ShardTrace>), ServerError> {
    let clock = world.compare_clocks(ROUND_TRIPS)?;
    let (all, lengths) = gather(world, &[])?;
    let mut rest = &all[..];
    let mut traces = Vec::with_capacity(roles.shards());
    for length in lengths.into_iter().skip(roles.workers()).take_while(|_| world.rank() == 0) {
        let (one, others) = rest.split_at(length);
        rest = others;
        let trace = postcard::from_bytes(one);
        traces.push(trace.map_err(|error| refused(world, AssignmentError::Unreadable(error.to_string())))?);
    }
    Ok((clock, traces))
}

/// The bytes of all ranks at rank 0, nothing elsewhere; and how many there are of each.
fn gather(world: &Communicator, own: &[u8]) -> Result<(Vec<u8>, Vec<usize>), ServerError> {
    let options = CallOptions::default();
    let mut told = vec![0_i64; world.world_size()];
    world.all_gather(&[own.len() as i64], &mut told, &options)?;
    // All ranks see the same, so none waits for one that refuses.
    let lengths = lengths(&told).map_err(|what| refused(world, AssignmentError::Unreadable(what)))?;
    let mut all = vec![0_u8; if world.rank() == 0 { lengths.iter().sum() } else { 0 }];
    world.gather_variable(own, &mut all, &lengths, 0, &options)?;
    Ok((all, lengths))
}

/// The lengths that ranks have told, if there can be such, and their sum.
fn lengths(told: &[i64]) -> Result<Vec<usize>, String> {
    let mut sum = 0_usize;
    let mut lengths = Vec::with_capacity(told.len());
    for (rank, &bytes) in told.iter().enumerate() {
        let length = usize::try_from(bytes).ok().filter(|&length| length <= TRACE_BYTES_MAX);
        let added = length.and_then(|length| Some((length, sum.checked_add(length)?)));
        let Some((length, all)) = added else {
            return Err(format!("rank {rank} has noted {bytes} bytes; 0 to {TRACE_BYTES_MAX} can be"));
        };
        (sum, _) = (all, lengths.push(length));
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let most = TRACE_BYTES_MAX as i64;
        assert_eq!(lengths(&[0, most, 7]), Ok(vec![0, TRACE_BYTES_MAX, 7]));
        for wrong in [-1, most + 1, i64::MAX, i64::MIN] {
            let error = lengths(&[0, wrong, wrong]).unwrap_err();
            assert!(error.contains(&format!("rank 1 has noted {wrong} bytes")), "{error}");
        }
    }

    #[test]
    fn what_a_shard_tells_at_most_is_not_refused() {
        let longest = ShardSpan {
            work: ShardWork::Sending,
            plan_version: u32::MAX,
            id: u64::MAX,
            start_ns: i64::MIN,
            end_ns: i64::MIN,
            bytes: u64::MAX,
        };
        let spans = vec![longest; 3 * EVENTS_MAX];
        let trace = ShardTrace { shard: usize::MAX, clock_error_ns: i64::MIN, spans, dropped: u64::MAX };
        assert!(postcard::to_stdvec(&trace).expect("it can be written").len() <= TRACE_BYTES_MAX);
    }
}
