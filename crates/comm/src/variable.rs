//! The collectives with a length for each rank (*variable counts*), blocking, in the background and
//! grouped.
//!
//! Where all ranks can know all lengths they all pass them, and a rank that passes others gets an error. In an
//! all-to-all a rank knows only its own row and column; there each message is compared with what its receiver expects.

use paceline_plan::Reduction;

use crate::background::spans;
use crate::communicator::Communicator;
use crate::memory::Span;
use crate::{Buffer, CallOptions, CommError, Element, Group, Pending};

impl Communicator {
    /// As [`Communicator::all_gather`], with `counts[r]` elements from rank r. A count may be 0.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`]; [`CommError::Usage`] if there is not a count for each rank, if they do not fit
    /// the buffers, or if the algorithm named needs blocks of one length; [`CommError::Failed`] if ranks disagree about
    /// the counts.
    pub fn all_gather_variable<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.all_gather_call::<T>(spans, Some(counts), options)?)
    }

    /// As [`Communicator::reduce_scatter`]: rank r gets `counts[r]` elements.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_variable`].
    pub fn reduce_scatter_variable<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.reduce_scatter_call::<T>(spans, Some(counts), reduction, options)?)
    }

    /// As [`Communicator::gather`], with `counts[r]` elements from rank r. All ranks pass all counts.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_variable`]; [`CommError::Usage`] if there is no such root.
    pub fn gather_variable<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.gather_call::<T>(spans, Some(counts), root, options)?)
    }

    /// As [`Communicator::scatter`], with `counts[r]` elements to rank r. All ranks pass all counts.
    ///
    /// # Errors
    /// As [`Communicator::gather_variable`].
    pub fn scatter_variable<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.scatter_call::<T>(spans, Some(counts), root, options)?)
    }

    /// As [`Communicator::all_to_all`]: `input_counts[r]` elements go to rank r, `output_counts[r]` come from it. The
    /// blocks lie one after the other.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_variable`]; [`CommError::Failed`] if a rank sends another length than its receiver
    /// expects; [`CommError::Usage`] for a block of more than 4 GiB, and for `chunk_bytes`.
    pub fn all_to_all_variable<T: Element>(
        &self,
        input: &[T],
        input_counts: &[usize],
        output: &mut [T],
        output_counts: &[usize],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.run(self.all_to_all_variable_call::<T>(spans, (input_counts, output_counts), options)?)
    }

    /// Starts [`Communicator::all_gather_variable`].
    ///
    /// # Errors
    /// As [`Communicator::all_gather_variable`].
    pub fn start_all_gather_variable<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        counts: &[usize],
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let call = self.all_gather_call::<T>(spans(&input, &mut output), Some(counts), options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts [`Communicator::reduce_scatter_variable`].
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_variable`].
    pub fn start_reduce_scatter_variable<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        counts: &[usize],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let call = self.reduce_scatter_call::<T>(spans(&input, &mut output), Some(counts), reduction, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts [`Communicator::gather_variable`].
    ///
    /// # Errors
    /// As [`Communicator::gather_variable`].
    pub fn start_gather_variable<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let call = self.gather_call::<T>(spans(&input, &mut output), Some(counts), root, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts [`Communicator::scatter_variable`].
    ///
    /// # Errors
    /// As [`Communicator::scatter_variable`].
    pub fn start_scatter_variable<T: Element>(
        &self,
        input: Buffer<T>,
        mut output: Buffer<T>,
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let call = self.scatter_call::<T>(spans(&input, &mut output), Some(counts), root, options)?;
        self.start_in_background(call, Some(input), output)
    }

    /// Starts [`Communicator::all_to_all_variable`].
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_variable`].
    pub fn start_all_to_all_variable<T: Element>(
        &self,
        input: Buffer<T>,
        input_counts: &[usize],
        mut output: Buffer<T>,
        output_counts: &[usize],
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let counts = (input_counts, output_counts);
        let call = self.all_to_all_variable_call::<T>(spans(&input, &mut output), counts, options)?;
        self.start_in_background(call, Some(input), output)
    }
}

impl<'data> Group<'data> {
    /// Adds an all-gather with `counts[r]` elements from rank r; see [`Communicator::all_gather_variable`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`], also for counts that do not fit the world or the buffers. If ranks disagree about the
    /// counts, the group fails.
    pub fn all_gather_variable<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        counts: &[usize],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.all_gather_call::<T>(spans, Some(counts), options))
    }

    /// Adds a reduce-scatter of which rank r gets `counts[r]` elements; see [`Communicator::reduce_scatter_variable`].
    ///
    /// # Errors
    /// As [`Group::all_gather_variable`].
    pub fn reduce_scatter_variable<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        counts: &[usize],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.reduce_scatter_call::<T>(spans, Some(counts), reduction, options))
    }

    /// Adds a gather with `counts[r]` elements from rank r; see [`Communicator::gather_variable`].
    ///
    /// # Errors
    /// As [`Group::all_gather_variable`], also if there is no such root.
    pub fn gather_variable<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.gather_call::<T>(spans, Some(counts), root, options))
    }

    /// Adds a scatter with `counts[r]` elements to rank r; see [`Communicator::scatter_variable`].
    ///
    /// # Errors
    /// As [`Group::gather_variable`].
    pub fn scatter_variable<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        counts: &[usize],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.scatter_call::<T>(spans, Some(counts), root, options))
    }

    /// Adds an all-to-all of which `input_counts[r]` elements go to rank r and `output_counts[r]` come from it; see
    /// [`Communicator::all_to_all_variable`].
    ///
    /// # Errors
    /// As [`Group::all_gather_variable`], also for a block of more than 4 GiB and for `chunk_bytes`. If a rank sends
    /// another length than its receiver expects, the group fails.
    pub fn all_to_all_variable<T: Element>(
        &mut self,
        input: &'data [T],
        input_counts: &[usize],
        output: &'data mut [T],
        output_counts: &[usize],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (spans, counts) = ((Span::of(input), Span::of_mut(output)), (input_counts, output_counts));
        self.add(self.communicator.all_to_all_variable_call::<T>(spans, counts, options))
    }
}
