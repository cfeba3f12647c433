use paceline_plan::{Bucket, Plan, TensorId};
use paceline_strategy::Strategy;

use crate::fusion::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, fuse};

/// Gradients are exchanged as f32.
const ELEMENT_BYTES: u64 = 4;

/// A parameter tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name, for people.
    pub name: String,
    /// Its elements.
    pub elements: usize,
}

/// The strategy's schedule is none that this crate can plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no planner for schedule={schedule}; planned are none, wfbp, fusion:BYTES[:FIRST] and ddp")]
pub struct ScheduleError {
    /// The method and its arguments.
    pub schedule: String,
}

/// The buckets in which the gradients of `tensors` (in the order of the model's parameters) travel under a strategy. The
/// gradients are expected to become ready in the reverse order. The plan has version 1. Linear in the tensors.
///
/// - `none`: one bucket, which sets off after backward.
/// - `wfbp`: every tensor by itself, as soon as it is ready (Zhang et al., "Poseidon", ATC 2017).
/// - `fusion:BYTES[:FIRST]`, `ddp`: neighbours fused until a bucket holds that much; see [`fuse`].
///
/// # Errors
/// If the schedule is another one.
pub fn plan(strategy: &Strategy, tensors: &[TensorSpec]) -> Result<Plan, ScheduleError> {
    let schedule = &strategy.schedule;
    let (first, bytes) = match schedule.name.as_str() {
        "none" => (u64::MAX, u64::MAX),
        "wfbp" => (0, 0),
        "ddp" => (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES),
        "fusion" => {
            let bytes = schedule.number(0).unwrap_or(DDP_BUCKET_BYTES);
            (schedule.number(1).unwrap_or(bytes), bytes)
        }
        _ => return Err(ScheduleError { schedule: schedule.to_string() }),
    };
    let ready: Vec<TensorId> = (0..tensors.len()).rev().collect();
    let sizes: Vec<u64> = ready.iter().map(|&tensor| tensors[tensor].elements as u64 * ELEMENT_BYTES).collect();
    let mut end = 0;
    let bucket = |positions: std::ops::Range<usize>| {
        let members = ready[positions].to_vec();
        let start = end;
        end += members.iter().map(|&tensor| tensors[tensor].elements).sum::<usize>();
        // All as urgent: links then send in the order in which the buckets set off.
        Bucket { tensors: members, elements: start..end, priority: 0 }
    };
    let buckets = fuse(&sizes, first, bytes).into_iter().map(bucket).collect();
    Ok(Plan { version: 1, strategy: strategy.to_string(), buckets })
}
