use std::ops::Range;

/// PyTorch's DDP closes its first bucket at 1 MiB, so that communication starts early …
pub const DDP_FIRST_BUCKET_BYTES: u64 = 1 << 20;

/// … and every other at 25 MiB (Li et al., "PyTorch Distributed", VLDB 2020, §3.2.3; `bucket_cap_mb`).
pub const DDP_BUCKET_BYTES: u64 = 25 << 20;

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
