//! How operations ended, readable without the lock around the core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use paceline_engine::{Failure, OpId};

/// The outcomes of all operations, by operation index. An index is used again, turn by turn; the turns are counted.
#[derive(Default)]
pub(crate) struct Outcomes {
    slots: Vec<Arc<Slot>>,
    failure: Arc<RwLock<Option<Failure>>>,
}

#[derive(Default)]
struct Slot {
    ended: AtomicU64,
    /// The turn that failed. There is at most one: a failure is the end of everything.
    failed: AtomicU64,
}

/// An operation that was started.
#[derive(Clone)]
pub(crate) struct Ticket {
    slot: Arc<Slot>,
    turn: u64,
    failure: Arc<RwLock<Option<Failure>>>,
}

impl Ticket {
    /// Has the operation ended?
    pub fn ended(&self) -> bool {
        self.slot.ended.load(Ordering::Acquire) >= self.turn
    }

    /// How it ended. `Ok` while it has not.
    pub fn outcome(&self) -> Result<(), Failure> {
        if self.slot.failed.load(Ordering::Acquire) != self.turn {
            return Ok(());
        }
        let failure = self.failure.read().unwrap_or_else(PoisonError::into_inner);
        Err(failure.clone().unwrap_or(Failure::Cancelled { reason: "the communicator has failed".into() }))
    }
}

impl Outcomes {
    /// An operation with this index begins; the one before has ended.
    pub fn begin(&mut self, id: OpId) -> Ticket {
        let index = id.index as usize;
        while self.slots.len() <= index {
            self.slots.push(Arc::default());
        }
        let slot = self.slots[index].clone();
        let turn = slot.ended.load(Ordering::Relaxed) + 1;
        Ticket { slot, turn, failure: self.failure.clone() }
    }

    /// The operation with this index has ended.
    pub fn end(&self, id: OpId, failure: Option<Failure>) {
        let slot = &self.slots[id.index as usize];
        if let Some(failure) = failure {
            self.failure.write().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            slot.failed.store(slot.ended.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        slot.ended.fetch_add(1, Ordering::Release);
    }
}
