use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_engine::shard::{Mode, Shard};
use paceline_plan::OperationNumber;

/// A parameter server in virtual time: drives its [`Shard`], and is the processor that works for it.
pub(super) struct Server {
    shard: Shard,
    mode: Mode,
    /// Its partitions, and how urgent each is.
    operations: Vec<OperationNumber>,
    priorities: Vec<u32>,
    /// Of sums: partitions that have come and wait for the processor.
    waiting: BinaryHeap<Reverse<(u32, usize)>>,
    /// Of updates: the partition that the shard has given out, and the processor has not taken up.
    given: Option<usize>,
    working: Option<usize>,
}

impl Server {
    /// A server of these operations, whose numbers rise, each with how urgent it is.
    pub fn new(mode: Mode, operations: Vec<(OperationNumber, u32)>) -> Server {
        let (operations, priorities): (Vec<_>, Vec<_>) = operations.into_iter().unzip();
        // From 1 on: it has its parameters.
        let shard = Shard::new(&priorities, 1..u64::MAX, mode, 1);
        let waiting = BinaryHeap::new();
        let mut server = Server { shard, mode, operations, priorities, waiting, given: None, working: None };
        server.open();
        server
    }

    /// An operation's contributions have come.
    pub fn arrived(&mut self, operation: OperationNumber) {
        let partition = self.partition(operation);
        match self.mode {
            Mode::Aggregate => self.waiting.push(Reverse((self.priorities[partition], partition))),
            Mode::Apply | Mode::Decompress => self.finished(partition),
        }
    }

    /// What the processor takes up now; none if it works, or has nothing to do.
    pub fn next(&mut self) -> Option<OperationNumber> {
        if self.working.is_none() {
            self.working = match self.mode {
                Mode::Aggregate => self.waiting.pop().map(|Reverse((_, partition))| partition),
                Mode::Apply | Mode::Decompress => self.given.take(),
            };
            return self.working.map(|partition| self.operations[partition]);
        }
        None
    }

    /// The processor is through with what it took up.
    pub fn worked(&mut self) -> Option<OperationNumber> {
        let partition = self.working.take()?;
        if self.mode == Mode::Apply {
            self.finished(partition);
        }
        Some(self.operations[partition])
    }

    /// The workers have what came of an operation.
    pub fn ended(&mut self, operation: OperationNumber) {
        self.finished(self.partition(operation));
    }

    fn finished(&mut self, partition: usize) {
        self.shard.finished(partition);
        self.open();
    }

    /// Opens whatever may be opened. The shard gives out work only while none of its is under way.
    fn open(&mut self) {
        while let Some(task) = self.shard.begin() {
            if !task.phase.communicates() {
                self.given = Some(task.partition);
            }
        }
    }

    fn partition(&self, operation: OperationNumber) -> usize {
        let place = self.operations.binary_search(&operation);
        place.unwrap_or_else(|_| panic!("operation {operation} is another server's"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations 3, 5 and 8, the last one the most urgent.
    fn server(mode: Mode) -> Server {
        Server::new(mode, vec![(3, 2), (5, 1), (8, 0)])
    }

    #[test]
    fn the_most_urgent_of_those_that_wait_is_added_first() {
        let mut server = server(Mode::Aggregate);
        assert_eq!(server.next(), None);
        server.arrived(3);
        assert_eq!(server.next(), Some(3));
        server.arrived(5);
        server.arrived(8);
        assert_eq!(server.next(), None, "it works");
        assert_eq!((server.worked(), server.next()), (Some(3), Some(8)));
        assert_eq!((server.worked(), server.next()), (Some(8), Some(5)));
        server.ended(3);
        server.arrived(3);
        assert_eq!((server.next(), server.worked(), server.next()), (None, Some(5), Some(3)), "the next iteration's");
    }

    #[test]
    fn updates_are_made_one_after_the_other_in_every_iteration() {
        let mut server = server(Mode::Apply);
        for _ in 0..3 {
            server.arrived(5);
            assert_eq!(server.next(), Some(5));
            server.arrived(3);
            server.arrived(8);
            assert_eq!(server.next(), None);
            assert_eq!((server.worked(), server.next()), (Some(5), Some(8)));
            server.ended(5);
            assert_eq!((server.worked(), server.next(), server.worked()), (Some(8), Some(3), Some(3)));
            assert_eq!((server.next(), server.worked()), (None, None));
            server.ended(8);
            server.ended(3);
        }
    }
}
