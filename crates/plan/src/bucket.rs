use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The index of a tensor in the order of the model's parameters (0 is nearest the input).
pub type TensorId = usize;

/// Tensors that travel together: a contiguous range of the gradient arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The tensors, in the order in which they lie in the arena.
    pub tensors: Vec<TensorId>,
    /// The elements of the arena that they fill.
    pub elements: Range<usize>,
    /// Lower goes first on the links.
    pub priority: u32,
}

/// In which buckets the gradients of a model travel. A pure function of the strategy and the model, so every rank
/// computes the same one; [`Plan::hash`] proves it before the first step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Stands in every frame of an operation that was issued under the plan. Starts at 1.
    pub version: u32,
    /// The strategy that it carries out, in the grammar of `paceline-strategy`.
    pub strategy: String,
    /// In the order in which the gradients are expected to become ready. Each tensor is in exactly one bucket.
    pub buckets: Vec<Bucket>,
}

impl Plan {
    /// Elements of the arena: the sum of all tensors.
    pub fn elements(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.elements.end)
    }

    /// A fingerprint (FNV-1a) of everything that the ranks must agree on. Lengths stand before what they count, so that
    /// no two plans write the same words.
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv1a::default();
        hash.write(u64::from(self.version));
        hash.write(self.strategy.len() as u64);
        for byte in self.strategy.bytes() {
            hash.write(u64::from(byte));
        }
        hash.write(self.buckets.len() as u64);
        for bucket in &self.buckets {
            hash.write(bucket.elements.start as u64);
            hash.write(bucket.elements.end as u64);
            hash.write(u64::from(bucket.priority));
            hash.write(bucket.tensors.len() as u64);
            for &tensor in &bucket.tensors {
                hash.write(tensor as u64);
            }
        }
        hash.0
    }
}

/// FNV-1a, 64 bits: stable between builds and machines, unlike the standard library's hasher.
struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    fn write(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let bucket = Bucket { tensors: vec![1, 0], elements: 0..12, priority: 0 };
        Plan { version: 1, strategy: "schedule=none".into(), buckets: vec![bucket] }
    }

    #[test]
    fn the_hash_sees_every_difference() {
        type Change = fn(&mut Plan);
        let changes: [Change; 9] = [
            |_| {},
            |plan| plan.version = 2,
            |plan| plan.strategy += " ",
            |plan| plan.buckets[0].elements.start = 1,
            |plan| plan.buckets[0].elements.end = 13,
            |plan| plan.buckets[0].priority = 1,
            |plan| plan.buckets[0].tensors = vec![0, 1],
            |plan| plan.buckets.push(plan.buckets[0].clone()),
            |plan| plan.buckets.clear(),
        ];
        let hashes = changes.map(|change| {
            let mut plan = plan();
            change(&mut plan);
            plan.hash()
        });
        assert_eq!(hashes[0], plan().hash());
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "change {index} is not seen");
        }
    }

    /// The numbers are the same, one after the other; what they mean is not.
    #[test]
    fn the_hash_sees_where_a_list_ends() {
        let with = |buckets: Vec<Bucket>| Plan { buckets, ..plan() }.hash();
        let bucket = |tensors: &[usize], elements, priority| Bucket { tensors: tensors.to_vec(), elements, priority };
        let one = with(vec![bucket(&[1, 0, 4, 7], 0..12, 0)]);
        let two = with(vec![bucket(&[1], 0..12, 0), bucket(&[], 0..4, 7)]);
        assert_ne!(one, two);
        let named = |strategy: &str, version| Plan { strategy: strategy.into(), version, buckets: Vec::new() }.hash();
        assert_ne!(named("\0", 1), named("", 1));
    }
}
