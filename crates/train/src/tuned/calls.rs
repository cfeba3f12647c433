//! Further calls of a job that shards parameters or has a pipeline.

use paceline_comm::{CallOptions, CommError, Element, Reduction};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::Call;

use super::TunedCalls;

impl TunedCalls<'_> {
    /// A reduce-scatter. As [`TunedCalls::all_reduce`].
    ///
    /// # Errors
    /// As [`paceline_comm::Communicator::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
        call: &Call,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let place = self.place(CollectiveKind::ReduceScatter, size_of_val(input), call);
        self.timed(place, options, |communicator, options, program| match program {
            Some(program) => communicator.run_program(program, input, output, reduction, options).map(drop),
            None => communicator.reduce_scatter(input, output, reduction, options),
        })
    }

    /// Sends to the other rank of a communicator of two, which calls [`TunedCalls::receive`] with the same length: to both
    /// it is one call of the same kind. As [`TunedCalls::all_reduce`].
    ///
    /// # Errors
    /// As [`paceline_comm::Communicator::send`].
    pub fn send<T: Element>(
        &mut self,
        data: &[T],
        to: usize,
        call: &Call,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let place = self.place(CollectiveKind::SendReceive, size_of_val(data), call);
        self.timed(place, options, |communicator, options, _| communicator.send(data, to, 0, options))
    }

    /// Receives what the other rank of a communicator of two sends with [`TunedCalls::send`].
    ///
    /// # Errors
    /// As [`paceline_comm::Communicator::send`].
    pub fn receive<T: Element>(
        &mut self,
        data: &mut [T],
        from: usize,
        call: &Call,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let place = self.place(CollectiveKind::SendReceive, size_of_val(data), call);
        self.timed(place, options, |communicator, options, _| communicator.receive(data, from, 0, options))
    }
}
