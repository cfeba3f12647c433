use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Fnv1a;

/// The index of a tensor in the order of the model's parameters (0 is nearest the input).
pub type TensorId = usize;

/// The number of an operation in a [`Plan`]: the partitions of all buckets, counted bucket by bucket.
pub type OperationNumber = usize;

/// A range of the gradient arena that travels as one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The elements of the arena.
    pub elements: Range<usize>,
    /// The server that adds it up; `None`: the workers do it among themselves, all-to-all.
    pub shard: Option<usize>,
}

/// Tensors that become ready together: a contiguous range of the gradient arena. Its partitions may set off as soon as
/// all its tensors are ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The tensors, in the order in which they lie in the arena.
    pub tensors: Vec<TensorId>,
    /// The elements of the arena that they fill.
    pub elements: Range<usize>,
    /// Lower is more urgent: it is started first and goes first on the links.
    pub priority: u32,
    /// What travels, in order. They tile `elements`; there is at least one, which is empty if the bucket is.
    pub partitions: Vec<Partition>,
}

impl Bucket {
    /// A bucket that travels whole, between workers, as urgent as any other.
    pub fn whole(tensors: Vec<TensorId>, elements: Range<usize>) -> Bucket {
        let partitions = vec![Partition { elements: elements.clone(), shard: None }];
        Bucket { tensors, elements, priority: 0, partitions }
    }
}

/// In which pieces and which order the gradients of a model travel. A pure function of the strategy and of what it was
/// planned for; where that was measured, rank 0 plans and the others take its plan. [`Plan::hash`] proves before the
/// first step that all ranks have the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Stands in every frame of an operation that was issued under the plan. Starts at 1.
    pub version: u32,
    /// The strategy that it carries out, in the grammar of `paceline-strategy`; with what it measures for, if it is carried
    /// out only until another can be planned.
    pub strategy: String,
    /// In the order in which the gradients are expected to become ready. Each tensor is in exactly one bucket.
    pub buckets: Vec<Bucket>,
    /// Servers; 0 if the workers communicate all-to-all.
    pub shards: usize,
    /// How many bytes of operations a worker lets be in flight; `None`: any number.
    pub credit_bytes: Option<u64>,
    /// Does a layer's next forward pass start as soon as *its* parameters have arrived? If not, all arrive before.
    pub forward_overlap: bool,
    /// Do only the servers look at the priorities? Workers then start buckets as they become ready.
    pub server_priority_only: bool,
}

impl Plan {
    /// Elements of the arena: the sum of all tensors.
    pub fn elements(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.elements.end)
    }

    /// Tensors of the model.
    pub fn tensors(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.tensors.len()).sum()
    }

    /// Operations in an iteration: partitions of all buckets. Linear in the buckets.
    pub fn operations(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.partitions.len()).sum()
    }

    /// The operations in the order of their numbers, each with its bucket's number.
    pub fn partitions(&self) -> impl Iterator<Item = (usize, &Partition)> {
        let buckets = self.buckets.iter().enumerate();
        buckets.flat_map(|(number, bucket)| bucket.partitions.iter().map(move |partition| (number, partition)))
    }

    /// An operation and its bucket's number, if there is such an operation. Linear in the buckets.
    pub fn partition(&self, operation: OperationNumber) -> Option<(usize, &Partition)> {
        let mut first = 0;
        for (number, bucket) in self.buckets.iter().enumerate() {
            if let Some(partition) = bucket.partitions.get(operation - first) {
                return Some((number, partition));
            }
            first += bucket.partitions.len();
        }
        None
    }

    /// How urgent a bucket is to a worker; to a server it is as urgent as [`Bucket::priority`] says.
    pub fn worker_priority(&self, bucket: usize) -> u32 {
        if self.server_priority_only { 0 } else { self.buckets[bucket].priority }
    }

    /// A fingerprint ([`Fnv1a`]) of everything that the ranks must agree on. Lengths stand before what they count, so that
    /// no two plans write the same words.
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv1a::default();
        hash.number(u64::from(self.version));
        hash.number(self.strategy.len() as u64);
        self.strategy.bytes().for_each(|byte| _ = hash.number(u64::from(byte)));
        hash.number(self.shards as u64);
        write_optional(&mut hash, self.credit_bytes);
        hash.number(u64::from(self.forward_overlap));
        hash.number(u64::from(self.server_priority_only));
        hash.number(self.buckets.len() as u64);
        for bucket in &self.buckets {
            write_range(&mut hash, &bucket.elements);
            hash.number(u64::from(bucket.priority));
            hash.number(bucket.tensors.len() as u64);
            bucket.tensors.iter().for_each(|&tensor| _ = hash.number(tensor as u64));
            hash.number(bucket.partitions.len() as u64);
            for partition in &bucket.partitions {
                write_range(&mut hash, &partition.elements);
                write_optional(&mut hash, partition.shard.map(|shard| shard as u64));
            }
        }
        hash.value()
    }
}

fn write_range(hash: &mut Fnv1a, range: &Range<usize>) {
    hash.number(range.start as u64).number(range.end as u64);
}

fn write_optional(hash: &mut Fnv1a, value: Option<u64>) {
    hash.number(u64::from(value.is_some())).number(value.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            version: 1,
            strategy: "schedule=none".into(),
            buckets: vec![Bucket::whole(vec![1, 0], 0..12)],
            shards: 0,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        }
    }

    #[test]
    fn the_hash_sees_every_difference() {
        type Change = fn(&mut Plan);
        let changes: [Change; 17] = [
            |_| {},
            |plan| plan.version = 2,
            |plan| plan.strategy += " ",
            |plan| plan.shards = 1,
            |plan| plan.credit_bytes = Some(0),
            |plan| plan.credit_bytes = Some(1),
            |plan| plan.forward_overlap = true,
            |plan| plan.server_priority_only = true,
            |plan| plan.buckets[0].elements.start = 1,
            |plan| plan.buckets[0].elements.end = 13,
            |plan| plan.buckets[0].priority = 1,
            |plan| plan.buckets[0].tensors = vec![0, 1],
            |plan| plan.buckets[0].partitions[0].elements.end = 6,
            |plan| plan.buckets[0].partitions[0].shard = Some(0),
            |plan| plan.buckets[0].partitions.extend_from_within(..),
            |plan| plan.buckets.extend_from_within(..),
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
        let bucket = |tensors: &[usize], elements, priority| Bucket {
            tensors: tensors.to_vec(),
            elements,
            priority,
            partitions: Vec::new(),
        };
        let one = with(vec![bucket(&[1, 0, 0, 4, 7, 0, 0], 0..12, 0)]);
        let two = with(vec![bucket(&[1], 0..12, 0), bucket(&[], 0..4, 7)]);
        assert_ne!(one, two);
        let named =
            |strategy: &str, version| Plan { strategy: strategy.into(), version, buckets: Vec::new(), ..plan() }.hash();
        assert_ne!(named("\0", 1), named("", 1));
    }

    #[test]
    fn operations_are_numbered_bucket_by_bucket() {
        let cut = |elements: Range<usize>, at: usize| {
            let parts = [elements.start..at, at..elements.end];
            let partitions = parts.map(|elements| Partition { elements, shard: Some(1) }).to_vec();
            Bucket { partitions, ..Bucket::whole(vec![], elements) }
        };
        let buckets = vec![cut(0..10, 4), Bucket::whole(vec![], 10..11), cut(11..20, 12)];
        let plan = Plan { buckets, shards: 2, ..plan() };
        assert_eq!((plan.operations(), plan.elements()), (5, 20));
        let found: Vec<_> = plan.partitions().map(|(bucket, part)| (bucket, part.elements.clone())).collect();
        assert_eq!(found, [(0, 0..4), (0, 4..10), (1, 10..11), (2, 11..12), (2, 12..20)]);
        for (operation, expected) in plan.partitions().enumerate() {
            assert_eq!(plan.partition(operation), Some(expected));
        }
        assert_eq!(plan.partition(5), None);
    }

    #[test]
    fn a_worker_may_be_blind_to_priorities() {
        let bucket = Bucket { priority: 7, ..Bucket::whole(vec![0], 0..1) };
        let plan = Plan { buckets: vec![bucket], ..plan() };
        assert_eq!(plan.worker_priority(0), 7);
        assert_eq!(Plan { server_priority_only: true, ..plan }.worker_priority(0), 0);
    }

    #[test]
    fn a_plan_survives_its_file() {
        let plan = Plan { credit_bytes: Some(9), ..plan() };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
