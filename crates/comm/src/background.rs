//! The collectives on buffers that the operation owns: they return at once and run in the background.

use paceline_plan::{CollectiveKind, Reduction};

use crate::calls::call;
use crate::communicator::{Call, Communicator};
use crate::memory::Span;
use crate::{Buffer, CallOptions, CommError, Element, Pending};

impl Communicator {
    /// Starts an all-reduce in place. Work on other things, then [`Pending::wait`].
    ///
    /// # Errors
    /// [`CommError::Failed`] if the communicator has failed before; [`CommError::Algorithm`] for an unknown algorithm.
    pub fn start_all_reduce<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let span = Span::of_mut(&mut buffer);
        let call = call::<T>(CollectiveKind::AllReduce, span, span, buffer.len(), options).reducing(reduction);
        self.start_in_background(call, None, buffer)
    }

    /// Starts an all-reduce of a copy of `data`.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Memory`] if the copy finds no room.
    pub fn start_all_reduce_copy<T: Element>(
        &self,
        data: &[T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let mut buffer = self.alloc(data.len())?;
        buffer.copy_from_slice(data);
        self.start_all_reduce(buffer, reduction, options)
    }

    /// Starts a broadcast in place.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Usage`] if there is no such root.
    pub fn start_broadcast<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        root: usize,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        self.check_rank(CollectiveKind::Broadcast, "root", root)?;
        let span = Span::of_mut(&mut buffer);
        let call = call::<T>(CollectiveKind::Broadcast, span, span, buffer.len(), options).rooted(root);
        self.start_in_background(call, None, buffer)
    }

    /// Starts a reduce-scatter; see [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Usage`] if the lengths do not fit.
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let kind = CollectiveKind::ReduceScatter;
        self.check_blocks(kind, "the input", input.len(), self.world_size(), output.len())?;
        let call = call::<T>(kind, Span::of(&input), Span::of_mut(&mut output), output.len(), options);
        self.start_in_background(call.reducing(reduction), Some(input), output)
    }

    /// Starts an all-gather; see [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As [`Communicator::start_reduce_scatter`].
    pub fn start_all_gather<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let kind = CollectiveKind::AllGather;
        self.check_blocks(kind, "the output", output.len(), self.world_size(), input.len())?;
        let call = call::<T>(kind, Span::of(&input), Span::of_mut(&mut output), input.len(), options);
        self.start_in_background(call, Some(input), output)
    }

    fn start_in_background<T: Element>(
        &self,
        call: Call<'_>,
        input: Option<Buffer<T>>,
        output: Buffer<T>,
    ) -> Result<Pending<T>, CommError> {
        let kind = call.kind;
        let input_owner = input.as_ref().unwrap_or(&output).owner().clone();
        let owners = [Some(input_owner), Some(output.owner().clone())];
        let (ticket, key) = self.start(Call { owners, background: true, ..call })?;
        Ok(Pending { world: self.world.clone(), ticket, kind, key, input, output })
    }
}
