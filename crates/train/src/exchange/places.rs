//! Where tensors lie among the operations of a plan.

use std::ops::Range;

use paceline_plan::{OperationNumber, Plan, TensorId};

/// Where each tensor lies.
pub(crate) struct Places {
    /// By tensor.
    pieces: Vec<Vec<Piece>>,
}

/// A part of a tensor that travels in one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) operation: OperationNumber,
    /// The elements of the operation's buffer.
    pub(crate) within: Range<usize>,
    /// The first element of the tensor.
    pub(crate) start: usize,
}

impl Places {
    /// `sizes`: elements of each tensor. Linear in tensors and operations.
    pub(crate) fn new(plan: &Plan, sizes: &[usize]) -> Places {
        let mut pieces = vec![Vec::new(); sizes.len()];
        let mut first = 0;
        for bucket in &plan.buckets {
            let mut start = bucket.elements.start;
            let mut current = 0;
            for &tensor in &bucket.tensors {
                let elements = start..start + sizes[tensor];
                start = elements.end;
                // Partitions before this one end where the tensor begins, or before.
                while current + 1 < bucket.partitions.len() && bucket.partitions[current].elements.end <= elements.start
                {
                    current += 1;
                }
                let rest = bucket.partitions[current..].iter().enumerate();
                // An empty tensor waits for an operation, too, so that none is left without a tensor.
                let overlapping =
                    rest.take_while(|(index, partition)| *index == 0 || partition.elements.start < elements.end);
                pieces[tensor].extend(overlapping.map(|(index, partition)| {
                    let part = partition.elements.start.max(elements.start)..partition.elements.end.min(elements.end);
                    Piece {
                        operation: first + current + index,
                        within: part.start - partition.elements.start..part.end - partition.elements.start,
                        start: part.start - elements.start,
                    }
                }));
            }
            first += bucket.partitions.len();
        }
        Places { pieces }
    }

    /// The parts of a tensor, in order.
    pub(crate) fn of(&self, tensor: TensorId) -> &[Piece] {
        &self.pieces[tensor]
    }

    pub(crate) fn tensors(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{Bucket, Partition};

    use super::*;

    fn plan(buckets: Vec<Bucket>) -> Plan {
        Plan {
            version: 1,
            strategy: String::new(),
            buckets,
            shards: 0,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        }
    }

    fn bucket(tensors: &[usize], elements: Range<usize>, cuts: &[usize]) -> Bucket {
        let mut start = elements.start;
        let partition = |end: usize| {
            let elements = start..end;
            start = end;
            Partition { elements, shard: None }
        };
        let partitions = cuts.iter().copied().chain([elements.end]).map(partition).collect();
        Bucket { partitions, ..Bucket::whole(tensors.to_vec(), elements) }
    }

    /// Whatever the cuts, the pieces tile tensors and buffers alike.
    #[test]
    fn pieces_tile_tensors_and_operations() {
        let sizes = [5, 0, 7, 1, 0];
        let plans = [
            plan(vec![bucket(&[3, 2, 1, 0, 4], 0..13, &[])]),
            plan(vec![bucket(&[3, 2, 1, 0, 4], 0..13, &[1, 4, 8, 12])]),
            plan(vec![bucket(&[4], 0..0, &[]), bucket(&[3, 2], 0..8, &[3]), bucket(&[1, 0], 8..13, &[10])]),
        ];
        for plan in plans {
            let places = Places::new(&plan, &sizes);
            let lengths: Vec<usize> = plan.partitions().map(|(_, partition)| partition.elements.len()).collect();
            let mut filled: Vec<Vec<bool>> = lengths.iter().map(|&length| vec![false; length]).collect();
            let mut used = vec![false; lengths.len()];
            for (tensor, &size) in sizes.iter().enumerate() {
                let mut next = 0;
                for piece in places.of(tensor) {
                    assert_eq!(piece.start, next, "tensor {tensor} of {plan:?}");
                    next += piece.within.len();
                    used[piece.operation] = true;
                    for element in &mut filled[piece.operation][piece.within.clone()] {
                        assert!(!std::mem::replace(element, true), "two tensors lie in one place");
                    }
                }
                assert_eq!(next, size, "tensor {tensor} of {plan:?}");
            }
            assert!(filled.iter().flatten().all(|&filled| filled) && used.iter().all(|&used| used), "{plan:?}");
        }
    }
}
