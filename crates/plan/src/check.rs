use crate::{OperationNumber, Plan, TensorId};

/// A plan that cannot be carried out. Planners make none; files and programs of one's own may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Buckets do not tile the arena, or partitions not their bucket.
    #[error("the partitions of bucket {bucket} do not cover its elements one after the other")]
    Torn {
        /// The bucket's number.
        bucket: usize,
    },
    /// Nothing would ever complete it.
    #[error("bucket {bucket} holds no tensor, so it would never set off")]
    NoTensor {
        /// The bucket's number.
        bucket: usize,
    },
    /// A tensor stands in no bucket, or in several.
    #[error("tensor {tensor} must stand in one bucket, once")]
    Tensor {
        /// The tensor.
        tensor: TensorId,
    },
    /// A partition that nobody serves.
    #[error("no shard serves operation {operation}; give every partition one of the {shards} shards")]
    NobodyServes {
        /// Its number.
        operation: OperationNumber,
        /// How many shards there are.
        shards: usize,
    },
    /// A partition for a shard in a plan without.
    #[error("operation {operation} names a shard, and the plan has none; workers add up among themselves")]
    NoShards {
        /// Its number.
        operation: OperationNumber,
    },
    /// It was made for tensors of other sizes.
    #[error(
        "bucket {bucket} has {elements} elements, and its tensors have {wanted}: the plan is for tensors of other sizes"
    )]
    OtherSizes {
        /// The bucket's number.
        bucket: usize,
        /// Its elements.
        elements: usize,
        /// Those of its tensors together.
        wanted: usize,
    },
}

impl Plan {
    /// Can it be carried out? Every tensor is in one bucket, the buckets tile the arena, their partitions tile them (none is
    /// empty, but for the only one of an empty bucket), and shards are named exactly where there are some. Linear in tensors
    /// and partitions.
    ///
    /// # Errors
    /// What is wrong with it first.
    pub fn check(&self) -> Result<(), PlanError> {
        self.check_tensors()?;
        self.check_partitions()?;
        let shards = self.shards;
        for (operation, (_, partition)) in self.partitions().enumerate() {
            match partition.shard {
                Some(_) if shards == 0 => return Err(PlanError::NoShards { operation }),
                Some(shard) if shard < shards => {}
                None if shards == 0 => {}
                _ => return Err(PlanError::NobodyServes { operation, shards }),
            }
        }
        Ok(())
    }

    /// Is it for tensors of these sizes, in elements? Each bucket is as long as its tensors together. Of a plan that
    /// [`Plan::check`] admits, and as many sizes as it has tensors. Linear in tensors.
    ///
    /// # Errors
    /// The first bucket that is not.
    pub fn check_sizes(&self, sizes: &[usize]) -> Result<(), PlanError> {
        for (bucket, content) in self.buckets.iter().enumerate() {
            let wanted = content.tensors.iter().filter_map(|&tensor| sizes.get(tensor)).sum();
            let elements = content.elements.len();
            if elements != wanted {
                return Err(PlanError::OtherSizes { bucket, elements, wanted });
            }
        }
        Ok(())
    }

    fn check_tensors(&self) -> Result<(), PlanError> {
        let mut named = vec![false; self.tensors()];
        for (bucket, content) in self.buckets.iter().enumerate() {
            if content.tensors.is_empty() {
                return Err(PlanError::NoTensor { bucket });
            }
            for &tensor in &content.tensors {
                // As many names as tensors: one too high leaves another one out.
                if named.get_mut(tensor).is_none_or(|named| std::mem::replace(named, true)) {
                    return Err(PlanError::Tensor { tensor });
                }
            }
        }
        Ok(())
    }

    fn check_partitions(&self) -> Result<(), PlanError> {
        let mut end = 0;
        for (bucket, content) in self.buckets.iter().enumerate() {
            let empty = content.elements.is_empty();
            let mut whole = content.elements.start == end && !(empty && content.partitions.len() > 1);
            for partition in &content.partitions {
                let elements = &partition.elements;
                whole &= elements.start == end && elements.end >= end && elements.is_empty() == empty;
                end = elements.end;
            }
            if !whole || content.partitions.is_empty() || content.elements.end != end {
                return Err(PlanError::Torn { bucket });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::{Bucket, Partition};

    /// Three buckets, the second empty, the third cut.
    fn plan() -> Plan {
        let bucket = |tensor, elements: Range<usize>, cuts: &[usize]| {
            let starts = [elements.start].into_iter().chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain([elements.end]);
            let partitions = starts.zip(ends).map(|(start, end)| Partition { elements: start..end, shard: Some(1) });
            Bucket { partitions: partitions.collect(), ..Bucket::whole(vec![tensor], elements) }
        };
        Plan {
            version: 1,
            strategy: String::new(),
            buckets: vec![bucket(2, 0..4, &[]), bucket(0, 4..4, &[]), bucket(1, 4..9, &[7])],
            shards: 2,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        }
    }

    #[test]
    fn what_cannot_be_carried_out_is_named() {
        type Change = fn(&mut Plan);
        let cases: [(Change, PlanError); 16] = [
            (|plan| plan.buckets[0].elements.start = 1, PlanError::Torn { bucket: 0 }),
            (|plan| plan.buckets[0].partitions[0].elements.end = 3, PlanError::Torn { bucket: 0 }),
            (|plan| plan.buckets[0].partitions.clear(), PlanError::Torn { bucket: 0 }),
            (|plan| plan.buckets[1].partitions.extend_from_within(..), PlanError::Torn { bucket: 1 }),
            (|plan| plan.buckets[1].partitions.clear(), PlanError::Torn { bucket: 1 }),
            (|plan| plan.buckets[2].partitions[1].elements.start = 6, PlanError::Torn { bucket: 2 }),
            (|plan| plan.buckets[2].partitions[1].elements.end = 5, PlanError::Torn { bucket: 2 }),
            (|plan| plan.buckets[2].partitions[0].elements = 4..4, PlanError::Torn { bucket: 2 }),
            (|plan| plan.buckets[2].elements.end = usize::MAX, PlanError::Torn { bucket: 2 }),
            (|plan| plan.buckets[0].tensors.clear(), PlanError::NoTensor { bucket: 0 }),
            (|plan| plan.buckets[0].tensors[0] = 1, PlanError::Tensor { tensor: 1 }),
            (|plan| plan.buckets[0].tensors[0] = usize::MAX, PlanError::Tensor { tensor: usize::MAX }),
            (|plan| plan.buckets[2].tensors.push(1), PlanError::Tensor { tensor: 1 }),
            (|plan| plan.shards = 1, PlanError::NobodyServes { operation: 0, shards: 1 }),
            (|plan| plan.buckets[2].partitions[1].shard = None, PlanError::NobodyServes { operation: 3, shards: 2 }),
            (|plan| plan.shards = 0, PlanError::NoShards { operation: 0 }),
        ];
        assert_eq!(plan().check(), Ok(()));
        for (change, error) in cases {
            let mut plan = plan();
            change(&mut plan);
            assert_eq!(plan.check(), Err(error), "{plan:?}");
        }
    }

    #[test]
    fn a_plan_for_tensors_of_other_sizes_is_told() {
        assert_eq!(plan().check_sizes(&[0, 5, 4]), Ok(()));
        let other = |bucket, elements, wanted| Err(PlanError::OtherSizes { bucket, elements, wanted });
        assert_eq!(plan().check_sizes(&[0, 4, 5]), other(0, 4, 5));
        assert_eq!(plan().check_sizes(&[1, 5, 4]), other(1, 0, 1));
        assert_eq!(plan().check_sizes(&[0, 6, 4]), other(2, 5, 6));
    }
}
