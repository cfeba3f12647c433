use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_plan::{CollectiveKind, OperationKey};

use crate::outcome::Ticket;
use crate::world::World;
use crate::{Buffer, CommError, Element};

/// An operation that was started and runs in the background. It owns its buffers: dropping or forgetting it is safe,
/// the operation goes on.
#[must_use = "the result comes from `wait`"]
pub struct Pending<T: Element> {
    pub(crate) world: Arc<World>,
    pub(crate) ticket: Ticket,
    pub(crate) kind: CollectiveKind,
    pub(crate) key: OperationKey,
    pub(crate) input: Option<Buffer<T>>,
    pub(crate) output: Buffer<T>,
}

impl<T: Element> Pending<T> {
    /// Has it ended, well or not? Costs one atomic load.
    pub fn is_done(&self) -> bool {
        self.ticket.ended()
    }

    /// Waits for the end and gives the result back.
    ///
    /// # Errors
    /// If the operation failed; its deadline is an end, too.
    pub fn wait(self) -> Result<Buffer<T>, CommError> {
        self.wait_both().map(|(_, output)| output)
    }

    /// As [`Pending::wait`], with the input of an operation that has one of its own.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_both(self) -> Result<(Option<Buffer<T>>, Buffer<T>), CommError> {
        self.world.context.wait(&self.ticket, None);
        match self.ticket.outcome() {
            Ok(()) => Ok((self.input, self.output)),
            Err(failure) => Err(self.world.error(name(self.kind, &self.key), failure)),
        }
    }

    /// Waits at most so long.
    ///
    /// # Errors
    /// [`CommError::NotDone`] if it is still pending; [`CommError::Failed`] if it failed.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        if !self.world.context.wait(&self.ticket, Instant::now().checked_add(timeout)) {
            return Err(CommError::NotDone {
                rank: self.world.rank,
                host: self.world.hosts[self.world.rank].clone(),
                operation: name(self.kind, &self.key),
                waited_ms: timeout.as_millis() as u64,
            });
        }
        self.ticket.outcome().map_err(|failure| self.world.error(name(self.kind, &self.key), failure))
    }
}

impl<T: Element> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("operation", &name(self.kind, &self.key))
            .field("done", &self.is_done())
            .finish()
    }
}

/// An operation in words.
pub(crate) fn name(kind: CollectiveKind, key: &OperationKey) -> String {
    format!("{kind} ({key})")
}
