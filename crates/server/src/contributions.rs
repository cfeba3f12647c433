//! What workers push compressed, on a shard.

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Pending};
use paceline_compress::{Compression, Compressor, Piece};

/// The compressed contributions to one partition.
pub(crate) struct Contributions {
    compressor: Box<dyn Compressor>,
    workers: usize,
    /// This shard's part of what it gathers, which nobody reads; and the bytes of all ranks of its group, this one the last. While
    /// they are gathered, the operation has both.
    memory: Option<(Buffer<u8>, Buffer<u8>)>,
}

impl Contributions {
    /// In the group of all workers and this shard.
    pub(crate) fn new(
        group: &Communicator,
        compression: &Compression,
        piece: &Piece,
    ) -> Result<Contributions, CommError> {
        let (compressor, ranks) = (compression.compressor(piece), group.world_size());
        let bytes = compressor.bytes();
        let memory = Some((group.alloc(bytes)?, group.alloc(bytes.saturating_mul(ranks))?));
        Ok(Contributions { compressor, workers: ranks - 1, memory })
    }

    /// Starts to gather an iteration's.
    pub(crate) fn start(&mut self, group: &Communicator, options: &CallOptions) -> Result<Pending<u8>, CommError> {
        let memory = self.memory.take();
        let (own, all) = memory.unwrap_or_else(|| unreachable!("a partition is in one phase at a time"));
        group.start_gather(own, all, group.rank(), options)
    }

    /// They have come, or it has failed.
    pub(crate) fn take_in(&mut self, gathered: Pending<u8>) -> Result<(), CommError> {
        let (own, all) = gathered.wait_both()?;
        self.memory = own.map(|own| (own, all));
        Ok(())
    }

    /// Adds up what they stand for, in the order of the ranks.
    pub(crate) fn add_up(&self, sum: &mut [f32]) {
        sum.fill(0.0);
        let Some((own, all)) = &self.memory else { return };
        for worker in 0..self.workers {
            self.compressor.add_decompressed(&all[worker * own.len()..][..own.len()], sum);
        }
    }
}
