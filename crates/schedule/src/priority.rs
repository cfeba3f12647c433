//! Schedules in which some tensors are more urgent than others.

use paceline_plan::TensorId;
use paceline_strategy::Call;

use crate::{Schedule, ScheduleError, Workload};

/// Every tensor by itself, cut into partitions, urgent in the order in which the next forward pass needs it, a bounded
/// number of bytes in flight, no barrier between iterations. Arguments: partition and credit, both in bytes.
///
/// Source: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler),
/// SOSP 2019, §3 and §4; priorities and pieces first in Jayarajan et al., "Priority-based parameter propagation for
/// distributed DNN training" (P3), MLSys 2019.
pub(crate) fn bytescheduler(call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(Schedule {
        partition_bytes: call.number(0),
        credit_bytes: call.number(1),
        forward_overlap: true,
        ..by_first_use(workload)
    })
}

/// What the study ran as ByteScheduler on servers: workers send as gradients become ready, and wait for everything
/// before the next forward pass; only the servers, where several partitions are complete, answer the urgent one first.
pub(crate) fn server_priority(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(Schedule { server_priority_only: true, ..by_first_use(workload) })
}

/// Every tensor by itself, as urgent as forward needs it soon.
fn by_first_use(workload: &Workload) -> Schedule {
    let buckets: Vec<Vec<TensorId>> = workload.ready.iter().map(|&tensor| vec![tensor]).collect();
    Schedule { priorities: urgency(&buckets, &workload.used), ..Schedule::of(buckets) }
}

/// How urgent each bucket is, 0 the most: as its tensor that forward needs first, if it needs them in the order `used`.
pub fn urgency(buckets: &[Vec<TensorId>], used: &[TensorId]) -> Vec<u32> {
    let mut place = vec![0; used.len()];
    used.iter().enumerate().for_each(|(number, &tensor)| place[tensor] = number as u32);
    let first = |bucket: &Vec<TensorId>| bucket.iter().map(|&tensor| place[tensor]).min().unwrap_or(0);
    buckets.iter().map(first).collect()
}
