//! How operations ended, readable without the lock around the core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use paceline_engine::{Failure, OpId};

/// The outcomes of all operations, by operation index. An index is used again, turn by turn; the turns are counted.
#[derive(Default)]
pub(crate) struct Outcomes {
    slots: Vec<Arc<Slot>>,
}

#[derive(Default)]
struct Slot {
    ended: AtomicU64,
    /// The turn that failed, and why. There is at most one: a failure is the end of everything.
    failed: OnceLock<(u64, Failure)>,
}

/// An operation that was started.
#[derive(Clone)]
pub(crate) struct Ticket {
    slot: Arc<Slot>,
    turn: u64,
}

impl Ticket {
    /// Has the operation ended?
    pub fn ended(&self) -> bool {
        self.slot.ended.load(Ordering::Acquire) >= self.turn
    }

    /// How it ended. `Ok` while it has not.
    pub fn outcome(&self) -> Result<(), Failure> {
        match self.slot.failed.get() {
            Some((turn, failure)) if *turn == self.turn => Err(failure.clone()),
            _ => Ok(()),
        }
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
        Ticket { slot, turn }
    }

    /// The operation with this index has ended.
    pub fn end(&self, id: OpId, failure: Option<Failure>) {
        let slot = &self.slots[id.index as usize];
        // Only this thread, which has the lock around the core, writes here.
        let turn = slot.ended.load(Ordering::Relaxed) + 1;
        if let Some(failure) = failure {
            slot.failed.get_or_init(|| (turn, failure));
        }
        slot.ended.store(turn, Ordering::Release);
    }
}
