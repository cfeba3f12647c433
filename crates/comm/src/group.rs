//! Several operations started as one.

use std::sync::Arc;

use paceline_plan::{CollectiveKind, Reduction};

use crate::communicator::{Communicator, NoUnwind};
use crate::memory::Span;
use crate::prepare::Call;
use crate::program::ProgramLengths;
use crate::{CallOptions, CommError, Element};

/// The calls of a group, see [`Communicator::group`]. Nothing of them runs while the group is being made.
///
/// Every blocking call of [`Communicator`] that is one operation is here under the same name. Each sends the messages and
/// bytes that it would send alone, by the same algorithm; a group saves waiting, as the latencies of its calls overlap.
///
/// Not here: [`Communicator::split`], [`Communicator::probe`] and [`Communicator::compare_clocks`], which go on with what
/// their operations have brought; and the calls in the background (`start_…`), which wait for nothing anyway.
pub struct Group<'data> {
    pub(crate) communicator: &'data Communicator,
    calls: Vec<Call>,
    /// What programs have filled of their outputs, and who wants to know.
    filled: Vec<(Arc<ProgramLengths>, &'data mut Vec<usize>)>,
}

impl Communicator {
    /// Starts all operations that `build` names as one, and returns when all of them are done. Within a group no call
    /// waits for another: a rank may send to a peer and receive from it in any order. The lock is taken and the links
    /// are flushed once for all.
    ///
    /// The ranks of a collective must name it at the same place among their collectives, as always; they need not group
    /// it with the same other calls.
    ///
    /// ```
    /// # use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
    /// # fn exchange(comm: &Communicator) -> Result<(), CommError> {
    /// let (options, peer) = (CallOptions::default(), 1 - comm.rank());
    /// let (mine, mut theirs, mut sum) = ([1.0f32; 1000], [0.0; 1000], [2i64; 3]);
    /// comm.group(|group| {
    ///     group.send(&mine, peer, 0, &options)?;
    ///     group.receive(&mut theirs, peer, 0, &options)?;
    ///     group.all_reduce(&mut sum, Reduction::Sum, &options)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `build` returns: then nothing is started. Afterwards the first error of any of the operations.
    pub fn group<'data>(
        &'data self,
        build: impl FnOnce(&mut Group<'data>) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        // What the calls borrow, they borrow for `'data`, which is longer than this function's body: the borrows end
        // after the operations have.
        let mut group = Group { communicator: self, calls: Vec::new(), filled: Vec::new() };
        build(&mut group)?;
        let choices = group.calls.iter().map(|call| self.choose(call)).collect::<Result<Vec<_>, _>>()?;
        let kinds: Vec<_> = group.calls.iter().map(|call| call.kind).collect();
        let guard = NoUnwind(&self.world);
        let prepared = group.calls.into_iter().zip(choices).map(|(call, choice)| self.request(call, choice));
        let (keys, requests): (Vec<_>, Vec<_>) =
            prepared.map(|(request, memory)| (request.key, (request, memory))).unzip();
        let tickets = self.world.context.post_all(requests);
        let mut outcome = Ok(());
        for ((ticket, key), kind) in tickets.into_iter().zip(keys).zip(kinds) {
            let end = match ticket {
                Ok(ticket) => self.finish(&ticket, kind, &key),
                Err(failure) => Err(self.not_started(kind, &key, failure)),
            };
            outcome = outcome.and(end);
        }
        std::mem::forget(guard);
        outcome?;
        group.filled.into_iter().for_each(|(lengths, filled)| *filled = lengths.take());
        Ok(())
    }
}

impl<'data> Group<'data> {
    /// Adds an all-reduce; see [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`CommError::Usage`] or [`CommError::Algorithm`], for arguments that make no sense.
    pub fn all_reduce<T: Element>(
        &mut self,
        data: &'data mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let span = Span::of_mut(data);
        self.add(self.communicator.all_reduce_call::<T>((span, span), reduction, options))
    }

    /// Adds an all-reduce out of place; see [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_reduce_into<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.all_reduce_call::<T>(spans, reduction, options))
    }

    /// Adds a reduce-scatter; see [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.reduce_scatter_call::<T>(spans, None, reduction, options))
    }

    /// Adds an all-gather; see [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_gather<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.all_gather_call::<T>(spans, None, options))
    }

    /// Adds a broadcast; see [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn broadcast<T: Element>(
        &mut self,
        data: &'data mut [T],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        self.add(self.communicator.broadcast_call::<T>(Span::of_mut(data), root, options))
    }

    /// Adds a reduce; see [`Communicator::reduce`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn reduce<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.reduce_call::<T>(spans, root, reduction, options))
    }

    /// Adds a push and pull in place; see [`Communicator::push_pull`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn push_pull<T: Element>(
        &mut self,
        data: &'data mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let output = Span::of_mut(data);
        let input = if self.communicator.rank() == root { Span::EMPTY } else { output };
        let (kind, spans) = (CollectiveKind::PushPull, (input, output));
        self.add(self.communicator.serving_call::<T>(kind, spans, root, reduction, options))
    }

    /// Adds a push and pull out of place; see [`Communicator::push_pull_into`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn push_pull_into<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (kind, spans) = (CollectiveKind::PushPull, (Span::of(input), Span::of_mut(output)));
        self.add(self.communicator.serving_call::<T>(kind, spans, root, reduction, options))
    }

    /// Adds a push; see [`Communicator::push`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn push<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (kind, spans) = (CollectiveKind::Push, (Span::of(input), Span::of_mut(output)));
        self.add(self.communicator.serving_call::<T>(kind, spans, root, reduction, options))
    }

    /// Adds a gather; see [`Communicator::gather`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn gather<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.gather_call::<T>(spans, None, root, options))
    }

    /// Adds a scatter; see [`Communicator::scatter`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn scatter<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        root: usize,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        self.add(self.communicator.scatter_call::<T>(spans, None, root, options))
    }

    /// Adds an all-to-all; see [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_to_all<T: Element>(
        &mut self,
        input: &'data [T],
        output: &'data mut [T],
        options: &CallOptions,
    ) -> Result<(), CommError> {
        self.add(self.communicator.all_to_all_call::<T>((Span::of(input), Span::of_mut(output)), options))
    }

    /// Adds a barrier; see [`Communicator::barrier`]. The group is done when all ranks have come to it. It orders nothing
    /// within the group: what stands behind it starts with it.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn barrier(&mut self, options: &CallOptions) -> Result<(), CommError> {
        self.add(self.communicator.barrier_call(options))
    }

    /// Adds a message to a rank; see [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn send<T: Element>(
        &mut self,
        data: &'data [T],
        to: usize,
        tag: u32,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        self.add(self.communicator.send_call::<T>(Span::of(data), to, tag, options))
    }

    /// Adds a message from a rank; see [`Communicator::receive`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn receive<T: Element>(
        &mut self,
        data: &'data mut [T],
        from: usize,
        tag: u32,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        self.add(self.communicator.receive_call::<T>(Span::of_mut(data), from, tag, options))
    }

    pub(crate) fn add(&mut self, call: Result<Call, CommError>) -> Result<(), CommError> {
        self.calls.push(call?);
        Ok(())
    }

    /// Once all is done, `filled` becomes these lengths.
    pub(crate) fn tell(&mut self, lengths: Arc<ProgramLengths>, filled: &'data mut Vec<usize>) {
        self.filled.push((lengths, filled));
    }
}
