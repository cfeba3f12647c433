//! One collective on data of one size, ready to be called again and again.

use std::ops::{Deref, DerefMut};

use paceline_collective::blocks;
use paceline_comm::{Buffer, CallOptions, CommError, Communicator, VerifiedProgram};
use paceline_plan::{CollectiveKind, Rank, Reduction};

use crate::failure::Failure;

use super::measure::Measurable;
use super::pattern::{Expected, Pattern, Value, count_wrong, fill, poison};

/// What is called, and how.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The collective.
    pub kind: CollectiveKind,
    /// How contributions become one, where they do.
    pub reduction: Reduction,
    /// The root, where there is one.
    pub root: Rank,
    /// Input and output are the same memory. For an all-reduce only; a broadcast is always in place, unless it is a
    /// program of the user's.
    pub in_place: bool,
    /// The data lies in memory from `Communicator::alloc`.
    pub allocated: bool,
    /// A program of the user's for this collective and root, with input and output apart.
    pub program: Option<VerifiedProgram>,
    /// The algorithm, and so on.
    pub options: CallOptions,
}

impl Subject {
    fn one_memory(&self) -> bool {
        self.in_place || (self.kind == CollectiveKind::Broadcast && self.program.is_none())
    }
}

/// A collective with its data.
pub struct Exercise<'a, T: Value> {
    communicator: &'a Communicator,
    subject: &'a Subject,
    pattern: &'a Pattern<T>,
    /// Elements per block.
    block: usize,
    input: Data<T>,
    output: Data<T>,
}

enum Data<T: Value> {
    Own(Vec<T>),
    Allocated(Buffer<T>),
}

impl<'a, T: Value> Exercise<'a, T> {
    /// Data of at most `bytes` (the larger of input and output at the rank that has most), but at least one element per
    /// block.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn new(
        communicator: &'a Communicator,
        subject: &'a Subject,
        pattern: &'a Pattern<T>,
        bytes: usize,
    ) -> Result<Self, Failure> {
        let (rank, ranks) = (communicator.rank(), communicator.world_size());
        let block = block_of::<T>(subject, ranks, bytes);
        // Where input and output are one memory, it is the output.
        let (inputs, outputs) =
            if subject.one_memory() { (0, 1) } else { blocks(subject.kind, rank, subject.root, ranks) };
        let data = |blocks: u32| Data::new(communicator, subject, block * blocks as usize);
        let (mut input, output) = (data(inputs)?, data(outputs)?);
        if let Some(contributor) = contributor(subject, rank) {
            fill(&mut input, pattern.contribution(contributor));
        }
        Ok(Exercise { communicator, subject, pattern, block, input, output })
    }

    /// The bytes of the larger of input and output, at the rank that has most.
    pub fn bytes(&self) -> usize {
        self.block * size_of::<T>() * largest_blocks(self.subject, self.communicator.world_size())
    }

    /// Input and output, for calls that are made elsewhere. Where they are one memory, it is the output.
    pub fn data(&mut self) -> (&[T], &mut [T]) {
        (self.input.deref(), self.output.deref_mut())
    }

    /// The bytes of a block: what the choice of an algorithm depends on.
    pub fn block_bytes(&self) -> usize {
        self.block * size_of::<T>()
    }
}

impl<T: Value> Measurable for Exercise<'_, T> {
    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    fn refill(&mut self) {
        let rank = self.communicator.rank();
        let is_root = rank == self.subject.root;
        let contributes = self.subject.kind == CollectiveKind::AllReduce || is_root;
        if self.subject.one_memory() && contributes {
            fill(&mut self.output, self.pattern.contribution(rank));
        }
    }

    fn spoil(&mut self) {
        poison(&mut self.output);
    }

    fn call(&mut self) -> Result<(), CommError> {
        let Exercise { communicator, subject, input, output, .. } = self;
        let Subject { kind, reduction, root, options, .. } = subject;
        if let Some(program) = &subject.program {
            return communicator.run_program(program, input, output, *reduction, options).map(drop);
        }
        match kind {
            CollectiveKind::AllReduce if subject.in_place => communicator.all_reduce(output, *reduction, options),
            CollectiveKind::AllReduce => communicator.all_reduce_into(input, output, *reduction, options),
            CollectiveKind::ReduceScatter => communicator.reduce_scatter(input, output, *reduction, options),
            CollectiveKind::AllGather => communicator.all_gather(input, output, options),
            CollectiveKind::Broadcast => communicator.broadcast(output, *root, options),
            CollectiveKind::Reduce => communicator.reduce(input, output, *root, *reduction, options),
            CollectiveKind::PushPull => communicator.push_pull_into(input, output, *root, *reduction, options),
            CollectiveKind::Push => communicator.push(input, output, *root, *reduction, options),
            CollectiveKind::Gather => communicator.gather(input, output, *root, options),
            CollectiveKind::Scatter => communicator.scatter(input, output, *root, options),
            CollectiveKind::AllToAll => communicator.all_to_all(input, output, options),
            CollectiveKind::Barrier => communicator.barrier(options),
            CollectiveKind::SendReceive => match partner(communicator) {
                Partner::Receiver(peer) => communicator.send(input, peer, 0, options),
                Partner::Sender(peer) => communicator.receive(output, peer, 0, options),
                Partner::Nobody => Ok(()),
            },
        }
    }

    fn count_wrong(&self) -> u64 {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.world_size());
        let Subject { kind, root, .. } = *self.subject;
        let of = |period, start| Expected { period, start, elements: self.block };
        let reduced = |start| vec![of(self.pattern.reduced(), start)];
        let rank_by_rank =
            |start: usize| (0..ranks).map(|other| of(self.pattern.contribution(other), start)).collect::<Vec<_>>();
        let expected = match kind {
            CollectiveKind::AllReduce | CollectiveKind::PushPull => reduced(0),
            CollectiveKind::ReduceScatter => reduced(rank * self.block),
            CollectiveKind::Reduce | CollectiveKind::Push if rank == root => reduced(0),
            CollectiveKind::AllGather => rank_by_rank(0),
            CollectiveKind::Gather if rank == root => rank_by_rank(0),
            CollectiveKind::AllToAll => rank_by_rank(rank * self.block),
            CollectiveKind::Broadcast => vec![of(self.pattern.contribution(root), 0)],
            CollectiveKind::Scatter => vec![of(self.pattern.contribution(root), rank * self.block)],
            CollectiveKind::SendReceive => match partner(self.communicator) {
                Partner::Sender(peer) => vec![of(self.pattern.contribution(peer), 0)],
                // It has an output that nothing is sent to.
                Partner::Receiver(_) | Partner::Nobody => return 0,
            },
            CollectiveKind::Reduce | CollectiveKind::Push | CollectiveKind::Gather | CollectiveKind::Barrier => {
                Vec::new()
            }
        };
        count_wrong(&self.output, &expected)
    }
}

/// Whose pattern a rank contributes: its own, or, where the root contributes nothing, that of its place among the others.
fn contributor(subject: &Subject, rank: Rank) -> Option<usize> {
    match subject.kind {
        CollectiveKind::PushPull | CollectiveKind::Push if rank == subject.root => None,
        CollectiveKind::PushPull | CollectiveKind::Push => Some(rank - usize::from(rank > subject.root)),
        _ => Some(rank),
    }
}

/// With whom a rank exchanges a message: ranks 0 and 1, 2 and 3, …; the lower one sends.
enum Partner {
    Receiver(Rank),
    Sender(Rank),
    Nobody,
}

fn partner(communicator: &Communicator) -> Partner {
    let rank = communicator.rank();
    match rank % 2 {
        1 => Partner::Sender(rank - 1),
        _ if rank + 1 < communicator.world_size() => Partner::Receiver(rank + 1),
        _ => Partner::Nobody,
    }
}

/// Elements per block of data of at most so many bytes.
fn block_of<T>(subject: &Subject, ranks: usize, bytes: usize) -> usize {
    let per_block = size_of::<T>() * largest_blocks(subject, ranks);
    if subject.kind == CollectiveKind::Barrier { 0 } else { (bytes / per_block).max(1) }
}

/// The bytes that [`Exercise::bytes`] says of data of at most so many.
pub fn rounded<T>(subject: &Subject, ranks: usize, bytes: usize) -> usize {
    block_of::<T>(subject, ranks, bytes) * size_of::<T>() * largest_blocks(subject, ranks)
}

/// The blocks of the larger of input and output, at the rank that has most: the root, where there is one.
fn largest_blocks(subject: &Subject, ranks: usize) -> usize {
    let (inputs, outputs) = blocks(subject.kind, subject.root, subject.root, ranks);
    inputs.max(outputs) as usize
}

impl<T: Value> Data<T> {
    fn new(communicator: &Communicator, subject: &Subject, elements: usize) -> Result<Data<T>, Failure> {
        if subject.allocated {
            return Ok(Data::Allocated(communicator.alloc(elements)?));
        }
        let mut data = Vec::new();
        data.try_reserve_exact(elements).map_err(|error| {
            let what = format!("rank {} has no memory for {elements} elements", communicator.rank());
            Failure::failed(what).cause(error).help("give a smaller --max, or start fewer ranks on this host")
        })?;
        data.resize(elements, T::zeroed());
        Ok(Data::Own(data))
    }
}

impl<T: Value> Deref for Data<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Data::Own(data) => data,
            Data::Allocated(data) => data,
        }
    }
}

impl<T: Value> DerefMut for Data<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Data::Own(data) => data,
            Data::Allocated(data) => data,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use half::bf16;
    use paceline_collective::registry::registry;
    use paceline_collective::{Program, Topology};
    use paceline_comm::Kernels;

    use super::*;

    /// Every rank spoils its output, sees that this is noticed, calls once, and sees everything right.
    fn exercise<T: Value>(subject: &Subject, ranks: usize, bytes: usize) {
        let pattern = Pattern::<T>::new(subject.reduction, subject.kind.contributors(ranks));
        let world = Communicator::threads(ranks).expect("threads connect");
        thread::scope(|scope| {
            // Each thread has its own, so that they leave the world together.
            for communicator in world {
                let pattern = &pattern;
                scope.spawn(move || {
                    let communicator = &communicator;
                    let name = format!("{subject:?}, rank {} of {ranks}, {bytes} bytes", communicator.rank());
                    let mut exercise = Exercise::new(communicator, subject, pattern, bytes).expect("memory");
                    exercise.spoil();
                    let receives = !matches!(partner(communicator), Partner::Receiver(_) | Partner::Nobody);
                    if subject.kind != CollectiveKind::SendReceive || receives {
                        assert_eq!(exercise.count_wrong(), exercise.output.len() as u64, "{name}: spoilt");
                    }
                    exercise.refill();
                    exercise.call().expect(&name);
                    assert_eq!(exercise.count_wrong(), 0, "{name}");
                    assert!(exercise.bytes() <= bytes.max(ranks * size_of::<T>()), "{name}");
                });
            }
        });
    }

    #[test]
    fn every_collective_gives_what_is_expected_and_nothing_else_passes() {
        for &kind in CollectiveKind::ALL {
            let fewest = if matches!(kind, CollectiveKind::PushPull | CollectiveKind::Push) { 2 } else { 1 };
            for ranks in [1, 2, 3, 5].into_iter().filter(|&ranks| ranks >= fewest) {
                for (reduction, allocated) in [(Reduction::Sum, false), (Reduction::Average, true)] {
                    let options = CallOptions::default();
                    let subject = Subject {
                        kind,
                        reduction,
                        root: ranks / 2,
                        in_place: false,
                        allocated,
                        program: None,
                        options,
                    };
                    exercise::<f32>(&subject, ranks, 1);
                    exercise::<f32>(&subject, ranks, 100_000);
                    exercise::<bf16>(&subject, ranks, 4_001);
                }
            }
        }
    }

    #[test]
    fn an_all_reduce_in_place_gets_its_data_back_before_every_call() {
        let (kind, reduction, options) = (CollectiveKind::AllReduce, Reduction::Product, CallOptions::default());
        let subject = Subject { kind, reduction, root: 0, in_place: true, allocated: false, program: None, options };
        exercise::<f32>(&subject, 3, 50_000);
    }

    #[test]
    fn programs_are_called_like_the_collectives_that_they_are() {
        for algorithm in registry() {
            let (kind, ranks) = (algorithm.kind(), if algorithm.supports(3) { 3 } else { 2 });
            let program = algorithm.program(&Topology::flat(ranks), ranks / 2);
            let root = if kind.has_root() { ranks / 2 } else { 0 };
            let program = Some(VerifiedProgram::new(Program { root, ..program }, Kernels::new()).expect("it is right"));
            let (reduction, options) = (Reduction::Sum, CallOptions::default());
            let subject = Subject { kind, reduction, root, in_place: false, allocated: false, program, options };
            exercise::<f32>(&subject, ranks, 50_000);
        }
    }
}
