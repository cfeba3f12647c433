//! In which pieces BytePS cut gradients, and which server got which.
//!
//! Facts: `bytedance/byteps` 0.2, `byteps/common/global.cc` and `operations.cc` (keys, hash), `byteps/torch/__init__.py` (the
//! order in which tensors get their numbers).

use std::ops::Range;

use paceline_plan::{Partition, Plan, Profile};
use paceline_schedule::ELEMENT_BYTES;

/// The same plan as BytePS cut and placed it. Each tensor travels alone. A piece has `partition_bytes`, the last one of a tensor what
/// is left; its key is the tensor's number, by name, in the upper bits and its own in the lower 16, and a hash of that chooses the
/// server. So bytes are spread by chance, and unevenly where a few tensors have most of them: over 2, 4 and 8 servers the fullest
/// has 1.06, 1.43 and 1.62 times the mean of ResNet-50.
pub(super) fn place(plan: &mut Plan, profile: &Profile, partition_bytes: u64) {
    let mut by_name: Vec<usize> = (0..profile.tensors.len()).collect();
    by_name.sort_by_key(|&tensor| &profile.tensors[tensor].name);
    let mut numbers = vec![0; by_name.len()];
    by_name.iter().zip(0..).for_each(|(&tensor, number)| numbers[tensor] = number);
    let limit = usize::try_from(partition_bytes / ELEMENT_BYTES).unwrap_or(usize::MAX).max(1);
    let shards = plan.shards.max(1) as u64;
    for bucket in &mut plan.buckets {
        debug_assert_eq!(bucket.tensors.len(), 1, "no tensors are fused");
        let number: u64 = bucket.tensors.first().map_or(0, |&tensor| numbers[tensor]);
        let piece = |(index, elements): (u64, Range<usize>)| {
            let shard = (hash((number << 16) + index) % shards) as usize;
            Partition { elements, shard: Some(shard) }
        };
        bucket.partitions = (0..).zip(pieces(bucket.elements.clone(), limit)).map(piece).collect();
    }
}

/// Full ones, and the rest. One, which is empty, of nothing.
fn pieces(elements: Range<usize>, limit: usize) -> impl Iterator<Item = Range<usize>> {
    let count = elements.len().div_ceil(limit).max(1);
    let start = move |piece: usize| elements.end.min(elements.start + piece * limit);
    (0..count).map(move |piece| start(piece)..start(piece + 1))
}

/// D. J. Bernstein's hash of strings ("djb2"), of a key's decimal digits.
fn hash(key: u64) -> u64 {
    key.to_string().bytes().fold(5381, |hash: u64, digit| hash.wrapping_mul(33).wrapping_add(u64::from(digit)))
}

#[cfg(test)]
mod tests {
    use paceline_schedule::{Workload, plan};
    use paceline_strategy::Registry;

    use super::*;

    #[test]
    fn digits_are_hashed_one_after_the_other() {
        assert_eq!([hash(0), hash(7)], [5381 * 33 + 48, 5381 * 33 + 55]);
        assert_eq!(hash(65_536), "65536".bytes().fold(5381, |hash: u64, digit| hash * 33 + u64::from(digit)));
    }

    #[test]
    fn the_last_piece_is_what_is_left() {
        assert_eq!(pieces(5..15, 4).collect::<Vec<_>>(), [5..9, 9..13, 13..15]);
        assert_eq!(pieces(5..13, 4).collect::<Vec<_>>(), [5..9, 9..13]);
        assert_eq!(pieces(7..7, 4).collect::<Vec<_>>(), [Range { start: 7, end: 7 }]);
    }

    /// The fullest server's bytes over the mean, as counted by a script from the tensors' names and sizes.
    #[test]
    fn a_hash_spreads_bytes_unevenly() {
        let strategy = Registry::built_in().parse("schedule=wfbp,arch=ps:hosts:4096000:dedicated").unwrap();
        for (model, pieces, fullest) in [
            ("resnet50@rtx2080ti", 175, [1.063, 1.425, 1.620]),
            ("bert-base@rtx2080ti", 276, [1.016, 1.050, 1.140]),
            ("bert-large@rtx2080ti", 718, [1.032, 1.055, 1.186]),
        ] {
            let profile = paceline_plan::built_in_profile(model).expect(model);
            for (hosts, expected) in [2, 4, 8].into_iter().zip(fullest) {
                let workload = Workload::of_profile(&profile).with_world(4 * hosts, hosts);
                let mut placed = plan(&strategy, &workload).unwrap();
                place(&mut placed, &profile, 4_096_000);
                placed.check().unwrap();
                assert_eq!(placed.operations(), pieces, "{model}");
                let mut elements_at = vec![0; hosts];
                placed.partitions().for_each(|(_, part)| elements_at[part.shard.unwrap()] += part.elements.len());
                let mean = elements_at.iter().sum::<usize>() as f64 / hosts as f64;
                let found = *elements_at.iter().max().unwrap() as f64 / mean;
                assert!((found - expected).abs() < 1e-3, "{model}, {hosts} servers: {found}");
            }
        }
    }
}
