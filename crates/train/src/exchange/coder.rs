//! Compressed contributions: how an operation's gradient becomes bytes, and the bytes of all ranks its sum, here or on a server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Pending};
use paceline_compress::{Compression, Compressor, Piece};
use paceline_server::{ParameterServer, PendingUpdate};

use crate::sync::lock;

/// What compresses and decompresses one operation, iteration after iteration.
#[derive(Clone)]
pub(crate) struct Coder(Arc<Mutex<State>>);

struct State {
    compressor: Box<dyn Compressor>,
    /// Whose bytes are gathered here: everybody's, or nobody's where servers do that.
    ranks: usize,
    /// For the bytes of this rank, and for those that are gathered; an operation under way has them.
    own: Option<Buffer<u8>>,
    all: Option<Buffer<u8>>,
}

/// An operation under way: everybody's bytes are gathered.
pub(crate) struct Gathering {
    pending: Pending<u8>,
    gradient: Buffer<f32>,
    coder: Coder,
}

/// An operation under way: this rank's bytes go to a server, and the sum comes back.
pub(crate) struct Pushing {
    pending: PendingUpdate<u8>,
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
    /// The coder of one operation, with its memory. `ranks`: whose bytes are gathered here.
    pub(super) fn new(
        workers: &Communicator,
        compression: &Compression,
        piece: &Piece,
        ranks: usize,
    ) -> Result<Coder, CommError> {
        let compressor = compression.compressor(piece);
        let bytes = compressor.bytes();
        let (own, all) = (workers.alloc(bytes)?, workers.alloc(bytes.saturating_mul(ranks))?);
        Ok(Coder(Arc::new(Mutex::new(State { compressor, ranks, own: Some(own), all: Some(all) }))))
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
        let own = state.compress(&gradient);
        let pending = workers.start_all_gather(own, taken(&mut state.all), options)?;
        Ok(Gathering { pending, gradient, coder: self.clone() })
    }

    /// Compresses a gradient, and starts to push it; the sum comes back in its place.
    pub(super) fn start_push(
        &self,
        server: &ParameterServer,
        shard: usize,
        gradient: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<Pushing, CommError> {
        let own = lock(&self.0).compress(&gradient);
        let pending = server.start_compressed(shard, own, gradient, options)?;
        Ok(Pushing { pending, coder: self.clone() })
    }
}

impl State {
    fn compress(&mut self, gradient: &[f32]) -> Buffer<u8> {
        let mut own = taken(&mut self.own);
        self.compressor.compress(gradient, &mut own);
        own
    }
}

fn taken(memory: &mut Option<Buffer<u8>>) -> Buffer<u8> {
    memory
        .take()
        .unwrap_or_else(|| unreachable!("an operation is started when the one before it has given its memory back"))
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
        (state.own, state.all) = (own, Some(all));
        gradient
    }
}

impl Pushing {
    /// Has it ended, well or not?
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    /// Waits at most so long for its end.
    pub(super) fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        self.pending.wait_timeout(timeout)
    }

    /// Waits for the sum.
    pub(super) fn wait(self) -> Result<Buffer<f32>, CommError> {
        let (own, sum) = self.pending.wait()?;
        lock(&self.coder.0).own = Some(own);
        Ok(sum)
    }
}
