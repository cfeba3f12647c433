use paceline_plan::{Bucket, Plan, TensorId};
use paceline_strategy::Strategy;

use crate::fusion::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, fuse};

/// Gradients are exchanged as f32.
const ELEMENT_BYTES: u64 = 4;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The strategy's schedule is none that this crate can plan.
    #[error("there is no planner for schedule={schedule}; planned are none, wfbp, fusion:BYTES[:FIRST] and ddp")]
    NoPlanner {
        /// The method and its arguments.
        schedule: String,
    },
    /// The order in which gradients become ready doesn't name each tensor once.
    #[error("the ready order of {tensors} tensors must name each of them once; it has {given} entries{}", at(.culprit))]
    ReadyOrder {
        /// The tensors of the model.
        tensors: usize,
        /// The entries of the order.
        given: usize,
        /// The first entry that stands for no tensor, or for one that was named before.
        culprit: Option<TensorId>,
    },
}

fn at(culprit: &Option<TensorId>) -> String {
    culprit.map_or_else(String::new, |tensor| format!(", and tensor {tensor} is unknown or named twice"))
}

/// The buckets in which the gradients of a model travel under a strategy. `sizes` are the elements of each tensor, in the
/// order of the model's parameters. The gradients are expected to become ready in the reverse order; where a profile knows better, see [`plan_in_order`].
/// The plan has version 1. Linear in the tensors.
///
/// - `none`: one bucket, which sets off after backward.
/// - `wfbp`: every tensor by itself, as soon as it is ready (Zhang et al., "Poseidon", ATC 2017).
/// - `fusion:BYTES[:FIRST]`, `ddp`: neighbours fused until a bucket holds that much; see [`fuse`].
///
/// # Errors
/// If the schedule is another one.
pub fn plan(strategy: &Strategy, sizes: &[usize]) -> Result<Plan, ScheduleError> {
    let reverse: Vec<TensorId> = (0..sizes.len()).rev().collect();
    plan_in_order(strategy, sizes, &reverse)
}

/// As [`plan`], for gradients that become final in the order `ready`: a tied weight, say, is listed with its last layer
/// and final with its first. DDP's buckets don't look at it.
///
/// # Errors
/// If the schedule is one without a planner, or if `ready` doesn't name each tensor once.
pub fn plan_in_order(strategy: &Strategy, sizes: &[usize], ready: &[TensorId]) -> Result<Plan, ScheduleError> {
    check_order(sizes.len(), ready)?;
    let schedule = &strategy.schedule;
    let mut order = ready.to_vec();
    let (first, bytes) = match schedule.name.as_str() {
        "none" => (u64::MAX, u64::MAX),
        "wfbp" => (0, 0),
        "ddp" => {
            order.sort_unstable_by(|left, right| right.cmp(left));
            (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES)
        }
        "fusion" => {
            let bytes = schedule.number(0).unwrap_or(DDP_BUCKET_BYTES);
            (schedule.number(1).unwrap_or(bytes), bytes)
        }
        _ => return Err(ScheduleError::NoPlanner { schedule: schedule.to_string() }),
    };
    let bytes_in_order: Vec<u64> = order.iter().map(|&tensor| sizes[tensor] as u64 * ELEMENT_BYTES).collect();
    let mut end = 0;
    let bucket = |positions: std::ops::Range<usize>| {
        let members = order[positions].to_vec();
        let start = end;
        end += members.iter().map(|&tensor| sizes[tensor]).sum::<usize>();
        // All as urgent: links then send in the order in which the buckets set off.
        Bucket { tensors: members, elements: start..end, priority: 0 }
    };
    let buckets = fuse(&bytes_in_order, first, bytes).into_iter().map(bucket).collect();
    Ok(Plan { version: 1, strategy: strategy.to_string(), buckets })
}

fn check_order(tensors: usize, ready: &[TensorId]) -> Result<(), ScheduleError> {
    let mut named = vec![false; tensors];
    let fresh = |&&tensor: &&TensorId| named.get_mut(tensor).is_some_and(|named| !std::mem::replace(named, true));
    let good = ready.iter().take_while(fresh).count();
    if good == tensors && ready.len() == tensors {
        return Ok(());
    }
    Err(ScheduleError::ReadyOrder { tensors, given: ready.len(), culprit: ready.get(good).copied() })
}
