use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_plan::{OperationNumber, Partition, Plan};
use paceline_schedule::ELEMENT_BYTES;

/// Operations that wait, by their place in the dispatcher's order: the most urgent first.
pub(super) type Queue = BinaryHeap<Reverse<(usize, OperationNumber)>>;

/// What is on the way to servers and back. Links take chunks of the most urgent operation first, so of those that were
/// started not many are halfway at once: as many as the credit lets dispatchers start one after the other.
pub(super) struct Window {
    bytes: Vec<u64>,
    credit: u64,
    /// Bytes that are on the way.
    spent: u64,
    waiting: Queue,
}

impl Window {
    pub fn new(plan: &Plan) -> Window {
        let bytes = |partition: &Partition| partition.elements.len() as u64 * ELEMENT_BYTES;
        Window {
            bytes: plan.partitions().map(|(_, partition)| bytes(partition)).collect(),
            credit: plan.credit_bytes.unwrap_or(u64::MAX),
            spent: 0,
            waiting: Queue::new(),
        }
    }

    /// An operation, at its place in the order, waits to be let in.
    pub fn wait(&mut self, place: usize, operation: OperationNumber) {
        self.waiting.push(Reverse((place, operation)));
    }

    /// The most urgent one is let in, if there is room.
    pub fn next(&mut self) -> Option<OperationNumber> {
        let &Reverse((_, operation)) = self.waiting.peek()?;
        let spent = self.spent.saturating_add(self.bytes[operation]);
        if self.spent > 0 && spent > self.credit {
            return None;
        }
        self.waiting.pop();
        self.spent = spent;
        Some(operation)
    }

    /// An operation has arrived.
    pub fn ended(&mut self, operation: OperationNumber) {
        self.spent -= self.bytes[operation];
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan_of, profile};
    use super::*;

    #[test]
    fn the_most_urgent_is_let_in_while_there_is_room() {
        // The operations of layers 2, 1 and 0, of 2, 6 and 2 KiB.
        let plan = plan_of("wfbp-ps", &profile(&[(512, 1.0, 1.0), (1536, 1.0, 1.0), (512, 1.0, 1.0)], 0.0), &|_| 0.0);
        let mut window = Window::new(&Plan { credit_bytes: Some(4 << 10), ..plan });
        [(2, 0), (1, 1), (0, 2)].into_iter().for_each(|(place, operation)| window.wait(place, operation));
        assert_eq!((window.next(), window.next()), (Some(2), None), "there is room for 2 KiB only");
        window.ended(2);
        assert_eq!((window.next(), window.next()), (Some(1), None), "what is larger than the window goes alone");
        window.wait(0, 2);
        window.ended(1);
        assert_eq!((window.next(), window.next(), window.next()), (Some(2), Some(0), None));
    }
}
