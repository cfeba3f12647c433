//! The collectives on plain slices. Each returns when this rank's part is done.

use paceline_plan::{CollectiveKind, Reduction};

use crate::communicator::Communicator;
use crate::memory::Span;
use crate::{CallOptions, CommError, Element};

impl Communicator {
    /// Every rank's `data` becomes the reduction of all ranks' `data`, in place: the same bits on every rank.
    ///
    /// # Errors
    /// [`CommError::Failed`] if a peer is lost, has made another call, or the deadline passes;
    /// [`CommError::Algorithm`] for an unknown algorithm; [`CommError::Usage`] for options that make no sense.
    pub fn all_reduce<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let span = Span::of_mut(data);
        self.run(self.all_reduce_call::<T>((span, span), reduction, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.all_reduce_call::<T>(spans, reduction, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.reduce_scatter_call::<T>(spans, None, reduction, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.all_gather_call::<T>(spans, None, options)?)
    }

    /// Every rank's `data` becomes the root's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if there is no such root.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize, options: &CallOptions) -> Result<(), CommError> {
        self.run(self.broadcast_call::<T>(Span::of_mut(data), root, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.reduce_call::<T>(spans, root, reduction, options)?)
    }

    /// Push and pull: every rank's `data` becomes the reduction of the `data` of all ranks but the root, the same bits on
    /// every rank. What the root has in it is overwritten. The root (a parameter server's shard) adds in the order of the
    /// ranks, whatever arrives first; or, where ranks share hosts, the sums of the hosts in the hosts' order.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if there is no such root, or no other rank.
    pub fn push_pull<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let output = Span::of_mut(data);
        let input = if self.rank() == root { Span::EMPTY } else { output };
        self.run(self.serving_call::<T>(CollectiveKind::PushPull, (input, output), root, reduction, options)?)
    }

    /// As [`Communicator::push_pull`], out of place. On the root `input` must be empty.
    ///
    /// # Errors
    /// As [`Communicator::push_pull`]; [`CommError::Usage`] if the lengths differ.
    pub fn push_pull_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.serving_call::<T>(CollectiveKind::PushPull, spans, root, reduction, options)?)
    }

    /// The root's `output` becomes the reduction of the `input` of all other ranks, added in the order of the ranks. On the
    /// root `input` must be empty, on the others `output`.
    ///
    /// # Errors
    /// As [`Communicator::push_pull_into`].
    pub fn push<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.serving_call::<T>(CollectiveKind::Push, spans, root, reduction, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.gather_call::<T>(spans, None, root, options)?)
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
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.scatter_call::<T>(spans, None, root, options)?)
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
        self.run(self.all_to_all_call::<T>((Span::of(input), Span::of_mut(output)), options)?)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&self, options: &CallOptions) -> Result<(), CommError> {
        self.run(self.barrier_call(options)?)
    }

    /// Sends to a rank, which calls [`Communicator::receive`] with the same tag and length. Messages of one tag arrive
    /// in the order in which they are sent.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`CommError::Usage`] if there is no such rank, or it is this one.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u32, options: &CallOptions) -> Result<(), CommError> {
        self.run(self.send_call::<T>(Span::of(data), to, tag, options)?)
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
        self.run(self.receive_call::<T>(Span::of_mut(data), from, tag, options)?)
    }
}
