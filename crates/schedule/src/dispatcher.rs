use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use paceline_plan::{OperationNumber, Plan, TensorId};

use crate::prefix_sums::PrefixSums;

/// Decides online, on one worker, which operation of a [`Plan`] starts next: of those whose bucket is complete the most
/// urgent, in the order of the plan among equals, while the credit lasts. The runtime and the simulator both drive it.
///
/// # Call order
/// In each iteration [`begin`](Dispatcher::begin), then [`ready`](Dispatcher::ready) once for each tensor, as backward
/// has its gradient. At any time [`next`](Dispatcher::next), until it gives nothing, and
/// [`finished`](Dispatcher::finished) for each operation that it gave. Both go on after backward, and while the next
/// forward pass runs.
///
/// # Iterations do not mix
/// `begin` wants every operation of the iteration before to have finished. That costs no overlap. An operation of the
/// next iteration needs the memory of the same one before, so it cannot start earlier; it is started by backward; and
/// backward runs after a forward pass that has waited, layer by layer, for everything that the iteration before has sent.
/// (A parameter that forward does not use must be waited for, too, before backward begins.)
///
/// # Credit
/// An operation starts when no more than [`Plan::credit_bytes`] are in flight that are at least as urgent, itself included, so
/// that what becomes ready late and is more urgent finds the network free soon. A partition that is larger than the credit
/// goes when nothing more urgent is in flight. (Peng et al., "A generic communication scheduler for distributed DNN training
/// acceleration", SOSP 2019, §4.) What is less urgent does not count: it makes way on every link, chunk by chunk.
///
/// If it did, ranks would hold each other up. An operation only ends when *all* ranks have started it, and ranks that are
/// apart in backward would fill their credit with different ones; ByteScheduler lets one rank decide for all. Here nobody
/// needs to be asked: the most urgent operation that is complete on all ranks and has not ended waits on none of them for one
/// that is less urgent, and at most for more urgent ones that a rank behind in backward does not have yet. When backward is
/// over everywhere there are none, so it starts, and ends.
///
/// # Cost
/// Per operation a few additions for each doubling of their number, and one insertion per bucket into a heap of the waiting
/// buckets. It allocates only in `new`.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    /// The bucket of each tensor.
    bucket_of: Vec<usize>,
    buckets: Vec<BucketState>,
    operations: Vec<OperationState>,
    /// Of each tensor: it has been announced in this iteration.
    announced: Vec<bool>,
    /// Complete buckets with operations that have not started; the most urgent first.
    waiting: BinaryHeap<Reverse<Waiting>>,
    credit: u64,
    /// Bytes in flight, the most urgent operation first.
    in_flight: PrefixSums,
    /// Operations of this iteration that have not finished.
    unfinished: usize,
}

#[derive(Clone, Debug)]
struct BucketState {
    priority: u32,
    operations: Range<OperationNumber>,
    tensors: usize,
    /// Tensors that are not ready yet.
    missing: usize,
    /// Operations that have not finished.
    unfinished: usize,
}

#[derive(Clone, Debug)]
struct OperationState {
    bucket: usize,
    bytes: u64,
    /// How many operations are more urgent.
    place: usize,
    in_flight: bool,
}

/// Ordered by what goes first. No two have the same `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    priority: u32,
    next: OperationNumber,
    end: OperationNumber,
}

impl Dispatcher {
    /// A worker's dispatcher for a plan, before the first iteration.
    pub fn new(plan: &Plan) -> Dispatcher {
        let mut bucket_of = vec![0; plan.tensors()];
        let mut operations = Vec::with_capacity(plan.operations());
        let mut buckets = Vec::with_capacity(plan.buckets.len());
        for (number, bucket) in plan.buckets.iter().enumerate() {
            bucket.tensors.iter().for_each(|&tensor| bucket_of[tensor] = number);
            let first = operations.len();
            operations.extend(bucket.partitions.iter().map(|partition| OperationState {
                bucket: number,
                bytes: partition.elements.len() as u64 * crate::ELEMENT_BYTES,
                place: 0,
                in_flight: false,
            }));
            buckets.push(BucketState {
                priority: plan.worker_priority(number),
                operations: first..operations.len(),
                tensors: bucket.tensors.len(),
                missing: 0,
                unfinished: 0,
            });
        }
        let mut by_urgency: Vec<OperationNumber> = (0..operations.len()).collect();
        by_urgency.sort_by_key(|&operation| buckets[operations[operation].bucket].priority);
        by_urgency.iter().enumerate().for_each(|(place, &operation)| operations[operation].place = place);
        Dispatcher {
            // Nothing can be announced before the first iteration.
            announced: vec![true; bucket_of.len()],
            bucket_of,
            waiting: BinaryHeap::with_capacity(buckets.len()),
            buckets,
            in_flight: PrefixSums::zeros(operations.len()),
            operations,
            credit: plan.credit_bytes.unwrap_or(u64::MAX),
            unfinished: 0,
        }
    }

    /// A new iteration: no tensor is ready.
    ///
    /// # Panics
    /// If an operation of the iteration before has not finished.
    pub fn begin(&mut self) {
        assert_eq!(self.unfinished, 0, "operations of the iteration before have not finished");
        self.announced.fill(false);
        for bucket in &mut self.buckets {
            bucket.missing = bucket.tensors;
            bucket.unfinished = bucket.operations.len();
        }
        self.unfinished = self.operations.len();
    }

    /// A tensor's gradient is ready. Returns its bucket if that is complete now, so that `next` may give its operations.
    ///
    /// # Panics
    /// If the tensor is not in the plan, or was announced before in this iteration.
    pub fn ready(&mut self, tensor: TensorId) -> Option<usize> {
        assert!(!std::mem::replace(&mut self.announced[tensor], true), "tensor {tensor} was announced twice");
        let number = self.bucket_of[tensor];
        let bucket = &mut self.buckets[number];
        bucket.missing -= 1;
        if bucket.missing > 0 {
            return None;
        }
        let Range { start, end } = bucket.operations;
        self.waiting.push(Reverse(Waiting { priority: bucket.priority, next: start, end }));
        Some(number)
    }

    /// The operation that is to start now; it is in flight from here on. `None`: nothing is ready, or the credit is spent.
    #[expect(clippy::should_implement_trait, reason = "it gives more again after it has given nothing")]
    pub fn next(&mut self) -> Option<OperationNumber> {
        let mut first = self.waiting.peek_mut()?;
        let Reverse(Waiting { next: number, end, .. }) = *first;
        let operation = &mut self.operations[number];
        let spent = self.in_flight.before(operation.place);
        if spent > 0 && spent.saturating_add(operation.bytes) > self.credit {
            return None;
        }
        operation.in_flight = true;
        self.in_flight.add(operation.place, operation.bytes);
        if number + 1 == end {
            PeekMut::pop(first);
        } else {
            first.0.next += 1;
        }
        Some(number)
    }

    /// An operation has ended. Returns its bucket if all of it has arrived now.
    ///
    /// # Panics
    /// If the operation is not in flight.
    pub fn finished(&mut self, number: OperationNumber) -> Option<usize> {
        let operation = &mut self.operations[number];
        assert!(std::mem::take(&mut operation.in_flight), "operation {number} is not in flight");
        self.in_flight.subtract(operation.place, operation.bytes);
        self.unfinished -= 1;
        let bucket = &mut self.buckets[operation.bucket];
        bucket.unfinished -= 1;
        (bucket.unfinished == 0).then_some(operation.bucket)
    }

    /// Is there a complete bucket with an operation that has not started?
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many operations of the plan are more urgent than this one.
    pub fn place(&self, operation: OperationNumber) -> usize {
        self.operations[operation].place
    }

    /// Has every operation of the iteration finished? (Also before the first one.)
    pub fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// Have all operations of a bucket finished in this iteration? (Also before the first one.)
    pub fn has_arrived(&self, bucket: usize) -> bool {
        self.buckets[bucket].unfinished == 0
    }
}
