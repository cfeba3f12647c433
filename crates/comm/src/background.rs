//! The collectives on buffers that the operation owns: they return at once and run in the background.

use paceline_plan::{CollectiveKind, Reduction};

use crate::communicator::Communicator;
use crate::memory::Span;
use crate::prepare::Call;
use crate::{Buffer, CallOptions, CommError, Element, Pending};

type Started<T> = Result<Pending<T>, CommError>;

impl Communicator {
    /// Starts an all-reduce in place. Work on other things, then [`Pending::wait`].
    ///
    /// # Errors
    /// [`CommError::Failed`] if the communicator has failed before; [`CommError::Algorithm`] for an unknown algorithm;
    /// [`CommError::Usage`] for options that make no sense.
    pub fn start_all_reduce<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Started<T> {
        let span = Span::of_mut(&mut buffer);
        let call = self.all_reduce_call::<T>((span, span), reduction, options)?;
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
    ) -> Started<T> {
        let mut buffer = self.alloc(data.len())?;
        buffer.copy_from_slice(data);
        self.start_all_reduce(buffer, reduction, options)
    }

    /// Starts a broadcast in place.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Usage`] if there is no such root.
    pub fn start_broadcast<T: Element>(&self, mut buffer: Buffer<T>, root: usize, options: &CallOptions) -> Started<T> {
        let call = self.broadcast_call::<T>(Span::of_mut(&mut buffer), root, options)?;
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
    ) -> Started<T> {
        let call = self.reduce_scatter_call::<T>(spans(&input, &mut output), None, reduction, options)?;
        self.start_in_background(call, Some(input), output)
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
    ) -> Started<T> {
        let call = self.all_gather_call::<T>(spans(&input, &mut output), None, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts a reduce; see [`Communicator::reduce`].
    ///
    /// # Errors
    /// As [`Communicator::start_reduce_scatter`]; [`CommError::Usage`] if there is no such root.
    pub fn start_reduce<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Started<T> {
        let call = self.reduce_call::<T>(spans(&input, &mut output), root, reduction, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts a push and pull in place; see [`Communicator::push_pull`].
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Usage`] if there is no such root, or no other rank.
    pub fn start_push_pull<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Started<T> {
        let output = Span::of_mut(&mut buffer);
        let input = if self.rank() == root { Span::EMPTY } else { output };
        let call = self.serving_call::<T>(CollectiveKind::PushPull, (input, output), root, reduction, options)?;
        self.start_in_background(call, None, buffer)
    }

    /// Starts a push; see [`Communicator::push`]. [`Pending::wait`] gives back the one buffer: the root's with the result,
    /// the others' with what they have contributed.
    ///
    /// # Errors
    /// As [`Communicator::start_push_pull`].
    pub fn start_push<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Started<T> {
        let span = Span::of_mut(&mut buffer);
        let spans = if self.rank() == root { (Span::EMPTY, span) } else { (span, Span::EMPTY) };
        let call = self.serving_call::<T>(CollectiveKind::Push, spans, root, reduction, options)?;
        self.start_in_background(call, None, buffer)
    }

    /// Starts a gather; see [`Communicator::gather`].
    ///
    /// # Errors
    /// As [`Communicator::start_reduce`].
    pub fn start_gather<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        root: usize,
        options: &CallOptions,
    ) -> Started<T> {
        let call = self.gather_call::<T>(spans(&input, &mut output), None, root, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts a scatter; see [`Communicator::scatter`].
    ///
    /// # Errors
    /// As [`Communicator::start_reduce`].
    pub fn start_scatter<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        root: usize,
        options: &CallOptions,
    ) -> Started<T> {
        let call = self.scatter_call::<T>(spans(&input, &mut output), None, root, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts an all-to-all; see [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// As [`Communicator::start_reduce_scatter`].
    pub fn start_all_to_all<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        options: &CallOptions,
    ) -> Started<T> {
        let call = self.all_to_all_call::<T>(spans(&input, &mut output), options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts to send; [`Pending::wait`] gives the buffer back. See [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`CommError::Usage`] if there is no such rank, or it is this one.
    pub fn start_send<T: Element>(&self, buffer: Buffer<T>, to: usize, tag: u32, options: &CallOptions) -> Started<T> {
        let call = self.send_call::<T>(Span::of(&buffer), to, tag, options)?;
        self.start_in_background(call, None, buffer)
    }

    /// Starts to receive; see [`Communicator::receive`].
    ///
    /// # Errors
    /// As [`Communicator::start_send`].
    pub fn start_receive<T: Element>(
        &self,
        mut buffer: Buffer<T>,
        from: usize,
        tag: u32,
        options: &CallOptions,
    ) -> Started<T> {
        let call = self.receive_call::<T>(Span::of_mut(&mut buffer), from, tag, options)?;
        self.start_in_background(call, None, buffer)
    }

    /// Starts a barrier: this rank has come, and goes on. It is done when all ranks have come.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`].
    pub fn start_barrier(&self, options: &CallOptions) -> Started<u8> {
        let nothing = self.alloc(0)?;
        self.start_in_background(self.barrier_call(options)?, None, nothing)
    }

    pub(crate) fn start_in_background<T: Element>(
        &self,
        call: Call,
        input: Option<Buffer<T>>,
        output: Buffer<T>,
    ) -> Started<T> {
        let kind = call.kind;
        let input_owner = input.as_ref().unwrap_or(&output).owner().clone();
        let owners = [Some(input_owner), Some(output.owner().clone())];
        let (ticket, key) = self.start(Call { owners, background: true, ..call })?;
        Ok(Pending { world: self.world.clone(), ticket, kind, key, input, output })
    }
}

pub(crate) fn spans<T: Element>(input: &Buffer<T>, output: &mut Buffer<T>) -> (Span, Span) {
    (Span::of(input), Span::of_mut(output))
}
