use std::ops::Range;

use paceline_plan::TensorId;
use paceline_strategy::Call;

use crate::{ELEMENT_BYTES, Schedule, ScheduleError, Workload};

/// PyTorch's DDP closes its first bucket at 1 MiB, so that communication starts early …
pub const DDP_FIRST_BUCKET_BYTES: u64 = 1 << 20;

/// … and every other at 25 MiB (Li et al., "PyTorch Distributed", VLDB 2020, §3.2.3; `bucket_cap_mb`).
pub const DDP_BUCKET_BYTES: u64 = 25 << 20;

/// Everything in one bucket, which is complete when backward is over.
pub(crate) fn after_backward(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(fused_in_order(&workload.ready, &workload.sizes, u64::MAX, u64::MAX))
}

/// Every tensor by itself, as soon as its gradient is final. Zhang et al., "Poseidon: an efficient communication
/// architecture for distributed deep learning on GPU clusters", ATC 2017, §3.1.
pub(crate) fn wait_free(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(fused_in_order(&workload.ready, &workload.sizes, 0, 0))
}

/// Neighbours in the ready order, fused until a bucket holds so many bytes. Arguments: bytes, and those of the first bucket.
pub(crate) fn fused(call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    let bytes = call.number(0).unwrap_or(DDP_BUCKET_BYTES);
    Ok(fused_in_order(&workload.ready, &workload.sizes, call.number(1).unwrap_or(bytes), bytes))
}

/// As PyTorch does: in the reverse order of the parameters, whatever the ready order is.
pub(crate) fn ddp(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    let reverse: Vec<TensorId> = (0..workload.sizes.len()).rev().collect();
    Ok(fused_in_order(&reverse, &workload.sizes, DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES))
}

fn fused_in_order(order: &[TensorId], sizes: &[usize], first: u64, bytes: u64) -> Schedule {
    let bytes_in_order: Vec<u64> = order.iter().map(|&tensor| sizes[tensor] as u64 * ELEMENT_BYTES).collect();
    let buckets = fuse(&bytes_in_order, first, bytes);
    Schedule::of(buckets.into_iter().map(|positions| order[positions].to_vec()).collect())
}

/// Fuses neighbours: a bucket is closed as soon as it holds at least `bytes`, the first as soon as it holds at least
/// `first`. `sizes` are the bytes of the tensors in the order in which they become ready. Returns the positions in that
/// order; every bucket but the last reaches its limit, none is empty.
pub fn fuse(sizes: &[u64], first: u64, bytes: u64) -> Vec<Range<usize>> {
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let (mut start, mut held) = (0, 0);
    for (position, &size) in sizes.iter().enumerate() {
        held += size;
        let limit = if buckets.is_empty() { first } else { bytes };
        if held >= limit {
            buckets.push(start..position + 1);
            (start, held) = (position + 1, 0);
        }
    }
    if start < sizes.len() {
        buckets.push(start..sizes.len());
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_zero_gives_each_tensor_its_own_bucket_and_an_endless_one_a_single() {
        assert_eq!(fuse(&[4, 0, 8], 0, 0), [0..1, 1..2, 2..3]);
        assert_eq!(fuse(&[4, 0, 8], u64::MAX, u64::MAX), vec![0..3]);
        assert!(fuse(&[], 1, 1).is_empty());
    }

    #[test]
    fn the_first_bucket_has_a_limit_of_its_own() {
        assert_eq!(fuse(&[3, 3, 3, 3, 3], 3, 6), [0..1, 1..3, 3..5]);
    }
}
