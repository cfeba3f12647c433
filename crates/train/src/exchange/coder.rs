//! Compressed contributions: how an operation's gradient becomes bytes, and the bytes of all ranks its sum.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Pending};
use paceline_compress::{Compression, Compressor, Piece};

use crate::sync::lock;

/// What compresses and decompresses one operation, iteration after iteration.
#[derive(Clone)]
pub(crate) struct Coder(Arc<Mutex<State>>);

struct State {
    compressor: Box<dyn Compressor>,
    ranks: usize,
    /// For the bytes of this rank, and for those of all; with an operation under way.
    memory: Option<(Buffer<u8>, Buffer<u8>)>,
}

/// An operation under way: everybody's bytes are gathered.
pub(crate) struct Gathering {
    pending: Pending<u8>,
    gradient: Buffer<f32>,
    coder: Coder,
}

/// Everybody's bytes, and the place for their sum.
pub(crate) struct Gathered {
    own: Option<Buffer<u8>>,
    all: Buffer<u8>,
    gradient: Buffer<f32>,
    coder: Coder,
}

impl Coder {
    /// The coder of one operation, with its memory.
    pub(super) fn new(workers: &Communicator, compression: &Compression, piece: &Piece) -> Result<Coder, CommError> {
        let (compressor, ranks) = (compression.compressor(piece), workers.world_size());
        let bytes = compressor.bytes();
        let memory = Some((workers.alloc(bytes)?, workers.alloc(bytes.saturating_mul(ranks))?));
        Ok(Coder(Arc::new(Mutex::new(State { compressor, ranks, memory }))))
    }

    /// Of one rank's contribution.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.0).compressor.bytes()
    }

    /// Compresses a gradient, and starts to gather what all ranks have made of theirs.
    pub(super) fn start(
        &self,
        workers: &Communicator,
        gradient: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<Gathering, CommError> {
        let mut state = lock(&self.0);
        let Some((mut own, all)) = state.memory.take() else {
            unreachable!("an operation is started when the one before it has been decompressed");
        };
        state.compressor.compress(&gradient, &mut own);
        let pending = workers.start_all_gather(own, all, options)?;
        Ok(Gathering { pending, gradient, coder: self.clone() })
    }
}

impl Gathering {
    /// Has it ended, well or not?
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    /// Waits at most so long for its end.
    pub(super) fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        self.pending.wait_timeout(timeout)
    }

    /// Waits for its end.
    pub(super) fn wait(self) -> Result<Gathered, CommError> {
        let (own, all) = self.pending.wait_both()?;
        Ok(Gathered { own, all, gradient: self.gradient, coder: self.coder })
    }
}

impl Gathered {
    /// Adds up in the order of the ranks, so that all have the same bits. The sum lies where the gradient did.
    pub(crate) fn sum(self) -> Buffer<f32> {
        let Gathered { own, all, mut gradient, coder } = self;
        let mut state = lock(&coder.0);
        let bytes = all.len() / state.ranks;
        gradient.fill(0.0);
        for rank in 0..state.ranks {
            state.compressor.add_decompressed(&all[rank * bytes..][..bytes], &mut gradient);
        }
        state.memory = own.map(|own| (own, all));
        gradient
    }
}
