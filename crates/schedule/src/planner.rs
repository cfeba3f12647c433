use paceline_plan::{Bucket, Plan, TensorId};
use paceline_strategy::Strategy;

use crate::fusion::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, fuse};
use crate::{ELEMENT_BYTES, Workload};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The strategy's schedule is none that this crate can plan.
    #[error("there is no planner for schedule={schedule}; planned are none, wfbp, fusion:BYTES[:FIRST] and ddp")]
    NoPlanner {
        /// The method and its arguments.
        schedule: String,
    },
    /// An order of the tensors doesn't name each of them once.
    #[error("the {what} order of {tensors} tensors must name each of them once; it has {given} entries{}", at(.culprit))]
    Order {
        /// "ready" or "use".
        what: &'static str,
        /// The tensors of the model.
        tensors: usize,
        /// The entries of the order.
        given: usize,
        /// The first entry that stands for no tensor, or for one that was named before.
        culprit: Option<TensorId>,
    },
    /// The times at which gradients become final contradict their order.
    #[error("the ready times of {tensors} tensors must rise in the ready order; there are {given} times")]
    ReadyTimes {
        /// The tensors of the model.
        tensors: usize,
        /// How many times there are.
        given: usize,
    },
}

fn at(culprit: &Option<TensorId>) -> String {
    culprit.map_or_else(String::new, |tensor| format!(", and tensor {tensor} is unknown or named twice"))
}

/// In which buckets the gradients of a model travel under a strategy. The plan has version 1. Linear in the tensors.
///
/// - `none`: one bucket, which sets off after backward.
/// - `wfbp`: every tensor by itself, as soon as it is ready (Zhang et al., "Poseidon", ATC 2017).
/// - `fusion:BYTES[:FIRST]`: neighbours in the ready order fused until a bucket holds that much; see [`fuse`].
/// - `ddp`: the same in the reverse order of the parameters, whatever the ready order is, as PyTorch does.
///
/// # Errors
/// If the schedule is one without a planner, or if the workload contradicts itself.
pub fn plan(strategy: &Strategy, workload: &Workload) -> Result<Plan, ScheduleError> {
    workload.check()?;
    let sizes = &workload.sizes;
    let schedule = &strategy.schedule;
    let mut order = workload.ready.clone();
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
        Bucket::whole(members, start..end)
    };
    let buckets = fuse(&bytes_in_order, first, bytes).into_iter().map(bucket).collect();
    Ok(Plan {
        version: 1,
        strategy: strategy.to_string(),
        buckets,
        shards: 0,
        credit_bytes: None,
        forward_overlap: false,
        server_priority_only: false,
    })
}
