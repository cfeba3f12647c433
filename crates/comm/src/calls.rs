//! The collectives on plain slices. Each returns when this rank's part is done.

use paceline_plan::{CollectiveKind, Reduction};

use crate::communicator::{Call, Communicator};
use crate::memory::Span;
use crate::{CallOptions, CommError, Element};

impl Communicator {
    /// Every rank's `data` becomes the reduction of all ranks' `data`, in place: the same bits on every rank.
    ///
    /// # Errors
    /// [`CommError::Failed`] if a peer is lost, has made another call, or the deadline passes;
    /// [`CommError::Algorithm`] for an unknown algorithm.
    pub fn all_reduce<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let span = Span::of_mut(data);
        self.run(call::<T>(CollectiveKind::AllReduce, span, span, data.len(), options).reducing(reduction))
    }

    /// As [`Communicator::all_reduce`], out of place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if the lengths differ.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::AllReduce;
        self.check_blocks(kind, "the output", output.len(), 1, input.len())?;
        let (from, into) = (Span::of(input), Span::of_mut(output));
        self.run(call::<T>(kind, from, into, input.len(), options).reducing(reduction))
    }

    /// Rank r's `output` becomes block r of the reduction of all ranks' `input`: `world_size` blocks of the length of
    /// `output`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_into`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::ReduceScatter;
        self.check_blocks(kind, "the input", input.len(), self.world_size(), output.len())?;
        let elements = output.len();
        self.run(call::<T>(kind, Span::of(input), Span::of_mut(output), elements, options).reducing(reduction))
    }

    /// Every rank's `output` becomes the `input` of all ranks, one after the other.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_into`].
    pub fn all_gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::AllGather;
        self.check_blocks(kind, "the output", output.len(), self.world_size(), input.len())?;
        self.run(call::<T>(kind, Span::of(input), Span::of_mut(output), input.len(), options))
    }

    /// Every rank's `data` becomes the root's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if there is no such root.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize, options: &CallOptions) -> Result<(), CommError> {
        let kind = CollectiveKind::Broadcast;
        self.check_rank(kind, "root", root)?;
        let span = Span::of_mut(data);
        self.run(call::<T>(kind, span, span, data.len(), options).rooted(root))
    }

    /// The root's `output` becomes the reduction of all ranks' `input`. On other ranks `output` must be empty.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_into`]; [`CommError::Usage`] if there is no such root.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::Reduce;
        self.check_rank(kind, "root", root)?;
        let blocks = usize::from(self.rank() == root);
        self.check_blocks(kind, "the output", output.len(), blocks, input.len())?;
        let (from, into) = (Span::of(input), Span::of_mut(output));
        self.run(call::<T>(kind, from, into, input.len(), options).reducing(reduction).rooted(root))
    }

    /// The root's `output` becomes the `input` of all ranks, one after the other. On other ranks `output` must be empty.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::Gather;
        self.check_rank(kind, "root", root)?;
        let blocks = if self.rank() == root { self.world_size() } else { 0 };
        self.check_blocks(kind, "the output", output.len(), blocks, input.len())?;
        self.run(call::<T>(kind, Span::of(input), Span::of_mut(output), input.len(), options).rooted(root))
    }

    /// Rank r's `output` becomes block r of the root's `input`. On other ranks `input` must be empty.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::Scatter;
        self.check_rank(kind, "root", root)?;
        let blocks = if self.rank() == root { self.world_size() } else { 0 };
        self.check_blocks(kind, "the input", input.len(), blocks, output.len())?;
        let elements = output.len();
        self.run(call::<T>(kind, Span::of(input), Span::of_mut(output), elements, options).rooted(root))
    }

    /// Block s of rank r's `output` becomes block r of rank s's `input`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_into`]; [`CommError::Usage`] if the length is no multiple of the world's size.
    pub fn all_to_all<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::AllToAll;
        let elements = input.len() / self.world_size();
        self.check_blocks(kind, "the input", input.len(), self.world_size(), elements)?;
        self.check_blocks(kind, "the output", output.len(), self.world_size(), elements)?;
        self.run(call::<T>(kind, Span::of(input), Span::of_mut(output), elements, options))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&self, options: &CallOptions) -> Result<(), CommError> {
        let nothing = Span::EMPTY;
        self.run(call::<u8>(CollectiveKind::Barrier, nothing, nothing, 0, options))
    }

    /// Sends to a rank, which calls [`Communicator::receive`] with the same tag and length. Messages of one tag arrive
    /// in the order in which they are sent.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if there is no such rank, or it is this one.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u32, options: &CallOptions) -> Result<(), CommError> {
        let kind = CollectiveKind::SendReceive;
        self.check_peer(kind, to)?;
        let call = call::<T>(kind, Span::of(data), Span::EMPTY, data.len(), options);
        self.run_message(self.rank(), to, tag, call)
    }

    /// Receives what a rank sends with [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn receive<T: Element>(
        &self,
        data: &mut [T],
        from: usize,
        tag: u32,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let kind = CollectiveKind::SendReceive;
        self.check_peer(kind, from)?;
        let call = call::<T>(kind, Span::EMPTY, Span::of_mut(data), data.len(), options);
        self.run_message(from, self.rank(), tag, call)
    }

    pub(crate) fn check_blocks(
        &self,
        kind: CollectiveKind,
        which: &str,
        found: usize,
        blocks: usize,
        elements: usize,
    ) -> Result<(), CommError> {
        if found == blocks * elements {
            return Ok(());
        }
        let what = format!("{which} has {found} elements, but {blocks} blocks of {elements} are {}", blocks * elements);
        Err(self.usage(kind, what))
    }

    pub(crate) fn check_rank(&self, kind: CollectiveKind, role: &str, rank: usize) -> Result<(), CommError> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(self.usage(kind, format!("{role} {rank} is not one of the {} ranks", self.world_size())))
    }

    fn check_peer(&self, kind: CollectiveKind, rank: usize) -> Result<(), CommError> {
        self.check_rank(kind, "peer", rank)?;
        if rank != self.rank() {
            return Ok(());
        }
        Err(self.usage(kind, "a rank cannot send to itself; copy the data".to_owned()))
    }
}

pub(crate) fn call<T: Element>(
    kind: CollectiveKind,
    input: Span,
    output: Span,
    elements: usize,
    options: &CallOptions,
) -> Call<'_> {
    Call {
        kind,
        data_type: T::DATA_TYPE,
        reduction: Reduction::Sum,
        root: 0,
        input,
        output,
        elements,
        options,
        owners: [None, None],
        background: false,
    }
}

impl Call<'_> {
    pub(crate) fn reducing(self, reduction: Reduction) -> Self {
        Call { reduction, ..self }
    }

    pub(crate) fn rooted(self, root: usize) -> Self {
        Call { root, ..self }
    }
}
